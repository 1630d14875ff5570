"""What has happened, step by step: rows in a storage, the timeline that orders them, and the observations behind them.

    storage    o0  o1  o2  | o0  o1  o2  o3 |  o0  o1         one observation a step
    tails                o3                o4          o2     one an episode: what came after its newest step

So an episode of T steps takes T + 1 observations, and the observation after any step is either the row that follows or
the tail of the episode.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import TypeAlias

import numpy as np

from relive.common import arrays
from relive.common import arrays as arrays_lib
from relive.kernels import history_state
from relive.kernels import tails as tails_lib
from relive.kernels import timeline as timeline_lib
from relive.kernels import timeline_state
from relive.persistence import state as state_lib
from relive.schema import row_bytes
from relive.schema import schema as schema_lib
from relive.storage import memory

Columns: TypeAlias = dict[str, arrays_lib.Array]


_ALL = -1


class History:
    """The steps of a buffer.

    Args:
        capacity: How many steps at most.
        streams: How many streams there are.

    Attributes:
        timeline: Which row follows which.
        observation_paths: The paths of the observation's fields, once it is known what a step holds.
        other_paths: Those of the action, the reward and the extras.
    """

    observation_paths: tuple[str, ...] = ()
    other_paths: tuple[str, ...] = ()

    def __init__(self, capacity: int, streams: int) -> None:
        self.timeline = timeline_lib.Timeline(capacity, streams)
        self._storage: memory.Storage | None = None
        self._rows: row_bytes.RowBytes | None = None
        self._tails = tails_lib.Tails((), self.timeline)
        self._write_row: Callable[[int, row_bytes.Row], None]
        # The bytes of what was announced: of single streams, and of all of them under the name of `_ALL`.
        self._announced: dict[int, row_bytes.Row] = {}
        self._all = 0 if streams == 1 else _ALL
        self._turns = False

    def begin(self, storage: memory.Storage) -> None:
        """Says where the columns are; before that there is nothing to write to or to read."""
        self._storage = storage
        self._rows = rows = row_bytes.RowBytes(storage.schema)
        fields = storage.schema.fields
        self.observation_paths = storage.schema.observation_paths
        self.other_paths = tuple(path for path in fields if path not in self.observation_paths)
        blocks = [{path: fields[path] for path in paths} for paths in rows.observation_blocks]
        self._tails = tails_lib.Tails(blocks, self.timeline)
        self._write_row = self._write_columns
        writes_itself = getattr(storage.write, "__func__", None) is memory.ColumnStorage.write
        if isinstance(storage, memory.ColumnStorage) and writes_itself:
            self._write_row = storage.write_row
            # Elsewhere a write may fail, and a turn writes before it evicts.
            self._turns = True

    @property
    def has_begun(self) -> bool:
        """Whether it is known what a step holds."""
        return self._storage is not None

    @property
    def storage(self) -> memory.Storage:
        """The columns of the steps."""
        assert self._storage is not None
        return self._storage

    @property
    def schema(self) -> schema_lib.Schema:
        """What is in them."""
        return self.storage.schema

    @property
    def rows(self) -> row_bytes.RowBytes | None:
        """What makes the bytes of a row; None until it is known what a step holds."""
        return self._rows

    # Writing: what is given was checked before.

    def is_spliced(self, streams: arrays_lib.Ints, rows: Mapping[str, arrays_lib.Array]) -> arrays_lib.Bools | None:
        """Answers of each of `streams` [k] whether its open episode cannot go on with the observations of `rows`.

        That is where the observation after its newest step is known, and is another one. None if it is nowhere.
        """
        chosen = self.timeline.chosen(streams)
        if all(column[chosen].tobytes() == rows[path].tobytes() for path, column in self._tails.open.items()):
            return None
        known = self.timeline.are_announced(streams)
        known[known] = self._tails.differ(streams[known], {path: rows[path][known] for path in self._tails.open})
        return known if known.any() else None

    def is_spliced_one(self, stream: int, row: row_bytes.Row) -> bool:
        """Does what `is_spliced` does for one stream, with the bytes of each block of the row."""
        announced = self._announced.get(stream)
        if announced is not None and announced == row[: len(announced)]:
            return False
        if not self.timeline.are_announced(np.array([stream]))[0]:
            return False
        assert self._rows is not None
        return self.is_spliced(np.array([stream]), self._rows.columns(row, 1)) is not None

    def turning_slot(self, row: row_bytes.Row) -> int:
        """Answers where `turn` may write the next rows of all streams, given as the bytes of each block; -1 if not.

        An episode that goes on must begin with the observation that was announced.
        """
        if not self._turns:
            return -1
        announced = self._announced.get(self._all)
        is_known = announced is not None and announced == row[: len(announced)]
        if is_known or not self.timeline.num_open or not self._are_spliced(row, announced):
            return self.timeline.turning_slot()
        return -1

    def _are_spliced(self, row: row_bytes.Row, announced: row_bytes.Row | None) -> bool:
        """Answers whether an open episode cannot go on with its part of the rows of all streams."""
        streams = self.timeline.streams
        known = self.timeline.are_announced(np.arange(streams))
        if announced is not None:
            # What is equal to the byte need not be looked at.
            differs = np.zeros(streams, np.bool_)
            for these, those in zip(announced, row, strict=False):
                if these != those:
                    size = f"V{len(these) // streams}"
                    differs |= np.frombuffer(these, size) != np.frombuffer(those, size)
            known &= differs
            if not arrays.any_set(known):
                return False
        assert self._rows is not None
        columns = self._rows.columns(row, streams)
        return bool(self._tails.differ(known.nonzero()[0], {p: columns[p][known] for p in self._tails.open}).any())

    def turn(self, slot: int, row: row_bytes.Row, next_row: row_bytes.Row) -> None:
        """Adds one row to every stream from that slot on, given as the bytes of each block, and what comes after."""
        self._write_row(slot, row)
        self._tails.announce_one(0, next_row)
        # What single streams had announced before is void.
        self._announced = {self._all: next_row}
        self.timeline.turn(slot)

    def end(self, has_ended: arrays_lib.Bools, terminated: arrays_lib.Bools) -> None:
        """Ends episodes of which the final observation was announced: where `has_ended` [S], of all streams."""
        (streams,) = has_ended.nonzero()
        handles = self.timeline.end(streams, terminated[streams])
        self._tails.put(handles, {path: column[streams] for path, column in self._tails.open.items()})

    def end_one(self, stream: int, terminated: bool) -> None:
        """Does what `end` does for one stream."""
        self._tails.put_open(stream, self.timeline.end_one(stream, terminated))

    def announced(self, next_row: row_bytes.Row) -> None:
        """Hears the bytes of what `append` has announced for all streams."""
        self._announced[self._all] = next_row

    def append(
        self,
        streams: arrays_lib.Ints,
        rows: Mapping[str, arrays_lib.Array],
        next_rows: Mapping[str, arrays_lib.Array] | None,
        *,
        cuts: arrays_lib.Bools | None,
        terminated: arrays_lib.Bools,
        truncated: arrays_lib.Bools,
    ) -> timeline_lib.Change:
        """Adds one row to each of `streams` [k]; there must be room for them.

        Args:
            streams: Where; distinct.
            rows: All columns [k, ...].
            next_rows: The columns of the observation after each of them [k, ...], None where it is not known yet.
            cuts: Whether the open episode there ends as truncated before the row, which begins another [k]; None for
                nowhere.
            terminated: Whether the episode terminates with the row [k].
            truncated: Whether it is truncated with it [k].
        """
        self.storage.write(self.timeline.free_slots(len(streams)), rows)
        if cuts is not None:
            self._tails.keep(streams[cuts])
        change = self.timeline.append(
            streams, cuts=cuts, knows_next=next_rows is not None, terminated=terminated, truncated=truncated
        )
        self._announced.clear()
        if next_rows is not None:
            self._tails.announce(self.timeline.chosen(streams), next_rows)
            if len(change.ended):
                has_ended = terminated | truncated
                ended_rows = {path: next_rows[path][has_ended] for path in next_rows}
                self._tails.put(change.handles[has_ended], ended_rows)
        return change

    def cut(self, stream: int) -> timeline_lib.Change:
        """Truncates the episode that is open in the stream; the observation after its newest step was announced."""
        streams = np.array([stream])
        self._tails.keep(streams)
        self._announced.clear()
        return self.timeline.cut(streams)

    def append_one(
        self,
        stream: int,
        row: row_bytes.Row,
        next_row: row_bytes.Row | None,
        cuts: bool,
        terminated: bool,
        truncated: bool,
    ) -> tuple[int, Sequence[int], Sequence[int]]:
        """Does what `append` does for one stream, with the bytes of each block; answers as the timeline does."""
        timeline, tails = self.timeline, self._tails
        self._write_row(timeline.next_key % timeline.capacity, row)
        if cuts:
            tails.keep(np.array([stream]))
        written = timeline.append_one(stream, cuts, next_row is not None, terminated, truncated)
        if self._all == _ALL:
            self._announced.pop(_ALL, None)
        if next_row is None:
            self._announced.pop(stream, None)
            return written
        tails.announce_one(stream, next_row)
        self._announced[stream] = next_row
        if terminated or truncated:
            tails.put_open(stream, written[2][-1])
        return written

    def _write_columns(self, slot: int, row: row_bytes.Row) -> None:
        """Writes the bytes of each block of one row to a storage that takes columns."""
        assert self._rows is not None
        columns = self._rows.columns(row, 1)
        self.storage.write(slot, {path: column[0, ...] for path, column in columns.items()})

    def append_episode(
        self,
        stream: int,
        rows: Mapping[str, arrays_lib.Array],
        last_rows: Mapping[str, arrays_lib.Array],
        *,
        is_terminated: bool,
    ) -> timeline_lib.Change:
        """Adds an ended episode of T steps to the stream: all columns [T, ...] and its final observation [1, ...]."""
        length = len(rows["reward"])
        self.storage.write(self.timeline.free_slots(length), rows)
        self._tails.keep(np.array([stream]))
        change = self.timeline.append_episode(stream, length, is_terminated=is_terminated)
        self._announced.clear()
        self._tails.put(change.handles[:1], last_rows)
        return change

    # Reading.

    def observations(self, slots: arrays_lib.Ints) -> Columns:
        """Answers fresh copies of the observation columns of the rows in `slots`."""
        return self.storage.read(slots, self.observation_paths)

    def tails(self, handles: arrays_lib.Ints) -> Columns:
        """Answers the observation after the newest step of each of those episodes [k, ...].

        Zeros where an episode terminated and nobody gave it: nothing is to be bootstrapped from it.
        """
        return self._tails.read(handles)

    def state(self, kept: timeline_state.TimelineState) -> state_lib.State:
        """Answers what a checkpoint keeps of those rows: what lies in the storage when it is asked for."""
        arrays: dict[str, arrays_lib.Array | state_lib.Column] = dict(kept.arrays())
        if self._storage is not None:
            arrays |= {f"final/{path}": column for path, column in self.tails(kept.handles[kept.has_tail]).items()}
            for path, field in self.schema.fields.items():
                shape = (len(kept), *field.shape)
                arrays[f"rows/{path}"] = state_lib.Gathered(shape, field.dtype, functools.partial(self._part, path))
        return {**kept.values(), "arrays": arrays}

    def _part(self, path: str, start: int, stop: int) -> arrays_lib.Array:
        """Answers a field of the rows from the `start`-th oldest one on."""
        slots = self.timeline.slots_from(self.timeline.oldest_key + start, stop - start)
        return self.storage.read(slots, (path,))[path]

    def restore(self, state: history_state.HistoryState) -> None:
        """Takes the place of what it was; the storage is that of the state's schema, if it has one.

        Raises:
            CheckpointError: A column turns out to be damaged. There is no row any more.
        """
        self.clear()
        kept = state.timeline
        for start, stop in state_lib.chunks(len(kept), len(kept) * self.schema.nbytes) if state.rows else ():
            slots = self.timeline.slots_from(kept.next_key - len(kept) + start, stop - start)
            self.storage.write(slots, {path: column.read(start, stop) for path, column in state.rows.items()})
        handles = self.timeline.restore(kept)
        if state.final:
            self._tails.restore(handles[kept.has_tail], state.final)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, of the tails beside them and of the timeline."""
        columns = self.schema.nbytes * self.storage.capacity if self.has_begun else 0
        return columns + self._tails.nbytes + self.timeline.nbytes

    def clear(self) -> None:
        """Forgets every row."""
        self._announced.clear()
        self.timeline.clear()

    def check(self) -> None:
        """Raises CorruptionError if the timeline is not in order, or a tail has no place."""
        self.timeline.check()
        self._tails.check()
