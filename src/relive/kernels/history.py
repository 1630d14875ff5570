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
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.kernels import episode_table
from relive.kernels import timeline as timeline_lib
from relive.kernels import timeline_state
from relive.persistence import state as state_lib
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory

Columns: TypeAlias = dict[str, arrays_lib.Array]


class FinalObservations(arrays_lib.Derived):
    """The columns of those observations.

    Args:
        blocks: The fields of an observation by path, those that lie side by side in each block of its bytes.
        timeline: Whose episodes they are of.

    Attributes:
        open: The columns of the open episodes, by stream.
    """

    _DERIVED = ("open", "_memories")

    def __init__(self, blocks: Sequence[Mapping[str, schema_lib.Field]], timeline: timeline_lib.Timeline) -> None:
        self._timeline = timeline
        self._dtypes = [
            np.dtype([(path, field.dtype, field.shape) for path, field in fields.items()]) for fields in blocks
        ]
        self._blocks: list[npt.NDArray[np.uint8]] = [
            np.zeros(timeline.streams * dtype.itemsize, np.uint8) for dtype in self._dtypes
        ]
        self._derive()
        self._ended: Columns = {}
        for path, column in self.open.items():
            self._ended[path] = np.zeros((0, *column.shape[1:]), column.dtype)

    def _derive(self) -> None:
        self.open: Columns = {}
        self._memories: list[tuple[memoryview, int]] = []
        for dtype, block in zip(self._dtypes, self._blocks, strict=True):
            self._memories.append((block.data, dtype.itemsize))
            array: arrays_lib.Array = np.ndarray(self._timeline.streams, dtype, block)
            self.open |= {path: array[path] for path in dtype.names or ()}

    @property
    def nbytes(self) -> int:
        """Bytes of a row for each stream, and for each ended episode that has rows; there may be room for more."""
        num_ended = len(self._timeline.episodes) - self._timeline.num_open
        return (self._timeline.streams + num_ended) * sum(dtype.itemsize for dtype in self._dtypes)

    # Writing.

    def announce(self, streams: timeline_lib.Run, rows: Mapping[str, arrays_lib.Array]) -> None:
        """Set the observations after the newest steps of the open episodes in `streams` [k]."""
        for path, column in self.open.items():
            column[streams] = rows[path]

    def announce_one(self, stream: int, row: Sequence[bytes]) -> None:
        """Set it of one stream, or of several from that one on, with the bytes of each block."""
        for block, (own, size) in enumerate(self._memories):  # Faster than zip(strict=True).
            values = row[block]
            own[stream * size : stream * size + len(values)] = values

    def keep(self, streams: arrays_lib.Ints) -> None:
        """Move to the table what was announced in `streams` [k], whose open episodes are about to end."""
        handles = self._timeline.open_handles(streams)
        self.put(handles[handles >= 0], {path: column[streams[handles >= 0]] for path, column in self.open.items()})

    def put(self, handles: arrays_lib.Ints, rows: Mapping[str, arrays_lib.Array]) -> None:
        """Set the observations after the last steps of those ended episodes [k]."""
        for path, column in self._with_room().items():
            column[handles] = rows[path]

    def put_open(self, stream: int, handle: int) -> None:
        """Set that what was announced in the stream came after the last step of an episode that has ended."""
        for path, column in self._with_room().items():
            column[handle] = self.open[path][stream]

    def _with_room(self) -> Columns:
        """Return the columns of the ended episodes, as long as there are handles."""
        room = self._timeline.num_handles
        for path, column in self._ended.items():
            if len(column) < room:
                longer = self._ended[path] = np.zeros((room, *column.shape[1:]), column.dtype)
                longer[: len(column)] = column
        return self._ended

    # Reading.

    def differ(self, streams: arrays_lib.Ints, rows: Mapping[str, arrays_lib.Array]) -> arrays_lib.Bools:
        """Return of each of `streams` [k] whether `rows` are not what was announced there."""
        differs = np.zeros(len(streams), np.bool_)
        for path, column in self.open.items():
            differs |= _differ(column[streams], rows[path])
        return differs

    def read(self, handles: arrays_lib.Ints) -> Columns:
        """Return the observation after the newest step of each of those episodes [k, ...].

        Zeros where an episode terminated and nobody gave it: nothing is to be bootstrapped from it.
        """
        episodes = self._timeline.episodes
        has_tail, is_open = episodes.has_tail[handles], episodes.end[handles] == episode_table.OPEN
        if arrays_lib.all_set(has_tail) and not arrays_lib.any_set(is_open):
            return {path: column.take(handles, axis=0) for path, column in self._ended.items()}
        ended = has_tail & ~is_open
        streams = episodes.stream[handles[is_open]]
        columns = {}
        for path, column in self.open.items():
            tails = columns[path] = np.zeros((len(handles), *column.shape[1:]), column.dtype)
            tails[is_open] = column[streams]
            tails[ended] = self._ended[path][handles[ended]]
        return columns

    def restore(self, handles: arrays_lib.Ints, rows: Mapping[str, arrays_lib.Array]) -> None:
        """Set the observations after the newest steps of those episodes [k], open or ended."""
        is_open = self._timeline.is_open(handles)
        streams = self._timeline.episodes.stream[handles[is_open]]
        for path, column in self._with_room().items():
            column[handles[~is_open]] = rows[path][~is_open]
            self.open[path][streams] = rows[path][is_open]

    def check(self) -> None:
        """Raise CorruptionError if the tail of an ended episode has no place."""
        episodes = self._timeline.episodes
        handles = episodes.handles()
        with_tail = handles[episodes.has_tail[handles] & ~self._timeline.is_open(handles)]
        if any(len(column) <= with_tail.max(initial=-1) for column in self._ended.values()):
            raise errors.CorruptionError("an episode has a final observation that is nowhere")


def _differ(these: arrays_lib.Array, those: arrays_lib.Array) -> arrays_lib.Bools:
    """Return whether the rows [k, ...] are unequal; what is not equal to itself, such as NaN, is here."""
    if these.tobytes() == those.tobytes():
        return np.zeros(len(these), np.bool_)
    shape = (len(these), -1, these.itemsize)
    is_same = _bytes_of(these, shape) == _bytes_of(those, shape)
    is_equal = is_same.all(axis=2) | (these == those).reshape(shape[:2])
    if these.dtype.kind in "fc":  # Not every NaN has the same bytes.
        is_equal |= (np.isnan(these) & np.isnan(those)).reshape(shape[:2])
    return np.asarray(~is_equal.all(axis=1))


def _bytes_of(values: arrays_lib.Array, shape: tuple[int, ...]) -> arrays_lib.Array:
    return np.frombuffer(values.tobytes(), np.uint8).reshape(shape)


_ALL = -1


class StepStore:
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
        self._rows: encoding.RowBytes | None = None
        self._tails = FinalObservations((), self.timeline)
        self._write_row: Callable[[int, encoding.Row], None]
        # The bytes of what was announced: of single streams, and of all of them under the name of `_ALL`.
        self._announced: dict[int, encoding.Row] = {}
        self._all = 0 if streams == 1 else _ALL
        self._turns = False

    def begin(self, storage: memory.Storage) -> None:
        """Set where the columns are; before that there is nothing to write to or to read."""
        self._storage = storage
        self._rows = rows = encoding.RowBytes(storage.schema)
        fields = storage.schema.fields
        self.observation_paths = storage.schema.observation_paths
        self.other_paths = tuple(path for path in fields if path not in self.observation_paths)
        blocks = [{path: fields[path] for path in paths} for paths in rows.observation_blocks]
        self._tails = FinalObservations(blocks, self.timeline)
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
    def rows(self) -> encoding.RowBytes | None:
        """What makes the bytes of a row; None until it is known what a step holds."""
        return self._rows

    # Writing: what is given was checked before.

    def is_spliced(self, streams: arrays_lib.Ints, rows: Mapping[str, arrays_lib.Array]) -> arrays_lib.Bools | None:
        """Return of each of `streams` [k] whether its open episode cannot go on with the observations of `rows`.

        That is where the observation after its newest step is known, and is another one. None if it is nowhere.
        """
        chosen = self.timeline.chosen(streams)
        if all(column[chosen].tobytes() == rows[path].tobytes() for path, column in self._tails.open.items()):
            return None
        known = self.timeline.are_announced(streams)
        known[known] = self._tails.differ(streams[known], {path: rows[path][known] for path in self._tails.open})
        return known if known.any() else None

    def is_spliced_one(self, stream: int, row: encoding.Row) -> bool:
        """Do what `is_spliced` does for one stream, with the bytes of each block of the row."""
        announced = self._announced.get(stream)
        if announced is not None and announced == row[: len(announced)]:
            return False
        if not self.timeline.are_announced(np.array([stream]))[0]:
            return False
        assert self._rows is not None
        return self.is_spliced(np.array([stream]), self._rows.columns(row, 1)) is not None

    def turning_slot(self, row: encoding.Row) -> int:
        """Return where `turn` may write the next rows of all streams, given as the bytes of each block; -1 if not.

        An episode that goes on must begin with the observation that was announced.
        """
        if not self._turns:
            return -1
        announced = self._announced.get(self._all)
        is_known = announced is not None and announced == row[: len(announced)]
        if is_known or not self.timeline.num_open or not self._are_spliced(row, announced):
            return self.timeline.turning_slot()
        return -1

    def _are_spliced(self, row: encoding.Row, announced: encoding.Row | None) -> bool:
        """Return whether an open episode cannot go on with its part of the rows of all streams."""
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
            if not arrays_lib.any_set(known):
                return False
        assert self._rows is not None
        columns = self._rows.columns(row, streams)
        return bool(self._tails.differ(known.nonzero()[0], {p: columns[p][known] for p in self._tails.open}).any())

    def turn(self, slot: int, row: encoding.Row, next_row: encoding.Row) -> None:
        """Add one row to every stream from that slot on, given as the bytes of each block, and what comes after."""
        self._write_row(slot, row)
        self._tails.announce_one(0, next_row)
        # What single streams had announced before is void.
        self._announced = {self._all: next_row}
        self.timeline.turn(slot)

    def end(self, has_ended: arrays_lib.Bools, terminated: arrays_lib.Bools) -> None:
        """End episodes of which the final observation was announced: where `has_ended` [S], of all streams."""
        (streams,) = has_ended.nonzero()
        handles = self.timeline.end(streams, terminated[streams])
        self._tails.put(handles, {path: column[streams] for path, column in self._tails.open.items()})

    def end_one(self, stream: int, terminated: bool) -> None:
        """Do what `end` does for one stream."""
        self._tails.put_open(stream, self.timeline.end_one(stream, terminated))

    def announced(self, next_row: encoding.Row) -> None:
        """Record the bytes of what `append` has announced for all streams."""
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
        """Add one row to each of `streams` [k]; there must be room for them.

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
        """Truncate the episode that is open in the stream; the observation after its newest step was announced."""
        streams = np.array([stream])
        self._tails.keep(streams)
        self._announced.clear()
        return self.timeline.cut(streams)

    def append_one(
        self,
        stream: int,
        row: encoding.Row,
        next_row: encoding.Row | None,
        cuts: bool,
        terminated: bool,
        truncated: bool,
    ) -> tuple[int, Sequence[int], Sequence[int]]:
        """Do what `append` does for one stream, with the bytes of each block; return as the timeline does."""
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

    def _write_columns(self, slot: int, row: encoding.Row) -> None:
        """Write the bytes of each block of one row to a storage that takes columns."""
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
        """Add an ended episode of T steps to the stream: all columns [T, ...] and its final observation [1, ...]."""
        length = len(rows["reward"])
        self.storage.write(self.timeline.free_slots(length), rows)
        self._tails.keep(np.array([stream]))
        change = self.timeline.append_episode(stream, length, is_terminated=is_terminated)
        self._announced.clear()
        self._tails.put(change.handles[:1], last_rows)
        return change

    # Reading.

    def observations(self, slots: arrays_lib.Ints) -> Columns:
        """Return fresh copies of the observation columns of the rows in `slots`."""
        return self.storage.read(slots, self.observation_paths)

    def tails(self, handles: arrays_lib.Ints) -> Columns:
        """Return the observation after the newest step of each of those episodes [k, ...].

        Zeros where an episode terminated and nobody gave it: nothing is to be bootstrapped from it.
        """
        return self._tails.read(handles)

    def state(self, kept: timeline_state.TimelineState) -> state_lib.State:
        """Return what a checkpoint keeps of those rows: what lies in the storage when it is asked for."""
        arrays: dict[str, arrays_lib.Array | state_lib.ChunkedArray] = dict(kept.arrays())
        if self._storage is not None:
            arrays |= {f"final/{path}": column for path, column in self.tails(kept.handles[kept.has_tail]).items()}
            for path, field in self.schema.fields.items():
                shape = (len(kept), *field.shape)
                arrays[f"rows/{path}"] = state_lib.LazyArray(shape, field.dtype, functools.partial(self._part, path))
        return {**kept.values(), "arrays": arrays}

    def _part(self, path: str, start: int, stop: int) -> arrays_lib.Array:
        """Return a field of the rows from the `start`-th oldest one on."""
        slots = self.timeline.slots_from(self.timeline.oldest_key + start, stop - start)
        return self.storage.read(slots, (path,))[path]

    def restore(self, state: timeline_state.StepStoreState) -> None:
        """Restore a state; the storage is that of the state's schema, if it has one.

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
        """Forget every row."""
        self._announced.clear()
        self.timeline.clear()

    def check(self) -> None:
        """Raise CorruptionError if the timeline is not in order, or a tail has no place."""
        self.timeline.check()
        self._tails.check()
