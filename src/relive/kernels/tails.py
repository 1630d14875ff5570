"""The observation after the newest step of each episode: of the open ones by stream, of the ended ones by handle.

open     announced with the newest step, if it was; replaced by each step that follows
ended    moved to a table as long as that of the episodes
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import arrays as arrays_lib
from relive.kernels import episode_table
from relive.kernels import timeline as timeline_lib
from relive.schema import schema as schema_lib

Columns: TypeAlias = dict[str, arrays_lib.Array]


class Tails(arrays.Derived):
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
        """Says what comes after the newest step of the open episodes in `streams` [k]."""
        for path, column in self.open.items():
            column[streams] = rows[path]

    def announce_one(self, stream: int, row: Sequence[bytes]) -> None:
        """Says it of one stream, or of several from that one on, with the bytes of each block."""
        for block, (memory, size) in enumerate(self._memories):  # Faster than zip(strict=True).
            values = row[block]
            memory[stream * size : stream * size + len(values)] = values

    def keep(self, streams: arrays_lib.Ints) -> None:
        """Moves to the table what was announced in `streams` [k], whose open episodes are about to end."""
        handles = self._timeline.open_handles(streams)
        self.put(handles[handles >= 0], {path: column[streams[handles >= 0]] for path, column in self.open.items()})

    def put(self, handles: arrays_lib.Ints, rows: Mapping[str, arrays_lib.Array]) -> None:
        """Says what came after the last step of those ended episodes [k]."""
        for path, column in self._with_room().items():
            column[handles] = rows[path]

    def put_open(self, stream: int, handle: int) -> None:
        """Says that what was announced in the stream came after the last step of an episode that has ended."""
        for path, column in self._with_room().items():
            column[handle] = self.open[path][stream]

    def _with_room(self) -> Columns:
        """Answers the columns of the ended episodes, as long as there are handles."""
        room = self._timeline.num_handles
        for path, column in self._ended.items():
            if len(column) < room:
                longer = self._ended[path] = np.zeros((room, *column.shape[1:]), column.dtype)
                longer[: len(column)] = column
        return self._ended

    # Reading.

    def differ(self, streams: arrays_lib.Ints, rows: Mapping[str, arrays_lib.Array]) -> arrays_lib.Bools:
        """Answers of each of `streams` [k] whether `rows` are not what was announced there."""
        differs = np.zeros(len(streams), np.bool_)
        for path, column in self.open.items():
            differs |= _differ(column[streams], rows[path])
        return differs

    def read(self, handles: arrays_lib.Ints) -> Columns:
        """Answers the observation after the newest step of each of those episodes [k, ...].

        Zeros where an episode terminated and nobody gave it: nothing is to be bootstrapped from it.
        """
        episodes = self._timeline.episodes
        has_tail, is_open = episodes.has_tail[handles], episodes.end[handles] == episode_table.OPEN
        if arrays.all_set(has_tail) and not arrays.any_set(is_open):
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
        """Says what came after the newest step of those episodes [k], open ones among them."""
        is_open = self._timeline.is_open(handles)
        streams = self._timeline.episodes.stream[handles[is_open]]
        for path, column in self._with_room().items():
            column[handles[~is_open]] = rows[path][~is_open]
            self.open[path][streams] = rows[path][is_open]

    def check(self) -> None:
        """Raises CorruptionError if the tail of an ended episode has no place."""
        episodes = self._timeline.episodes
        handles = episodes.handles()
        with_tail = handles[episodes.has_tail[handles] & ~self._timeline.is_open(handles)]
        if any(len(column) <= with_tail.max(initial=-1) for column in self._ended.values()):
            raise errors.CorruptionError("an episode has a final observation that is nowhere")


def _differ(these: arrays_lib.Array, those: arrays_lib.Array) -> arrays_lib.Bools:
    """Answers whether the rows [k, ...] are unequal; what is not equal to itself, such as NaN, is here."""
    if these.tobytes() == those.tobytes():
        return np.zeros(len(these), np.bool_)
    shape = (len(these), -1, these.itemsize)
    is_same = _bytes_of(these, shape) == _bytes_of(those, shape)
    is_equal = is_same.all(axis=2) | (these == those).reshape(shape[:2])
    if these.dtype.kind in "fc":  # Not every NaN has the same bytes.
        is_equal |= (np.isnan(these) & np.isnan(those)).reshape(shape[:2])
    return np.asarray(~is_equal.all(axis=1))


def _bytes_of(values: arrays_lib.Array, shape: tuple[int, ...]) -> arrays_lib.Array:
    """Answers the bytes of contiguous values, in that shape."""
    return np.frombuffer(values.tobytes(), np.uint8).reshape(shape)
