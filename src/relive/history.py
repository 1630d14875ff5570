"""What has happened, step by step: rows in a storage, the timeline that orders them, and the observations behind them.

    storage    o0  o1  o2  | o0  o1  o2  o3 |  o0  o1         one observation a step
    tails                o3                o4          o2     one an episode: what came after its newest step

So an episode of T steps takes T + 1 observations, and the observation after any step is either the row that follows or
the tail of the episode.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive import schema as schema_lib
from relive import storage as storage_lib
from relive import timeline as timeline_lib

Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = dict[str, Array]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class History:
    """The steps of a buffer.

    Args:
        capacity: How many steps at most.
        streams: How many streams there are.

    Attributes:
        timeline: Which row follows which.
    """

    def __init__(self, capacity: int, streams: int) -> None:
        self.timeline = timeline_lib.Timeline(capacity, streams)
        self._storage: storage_lib.Storage | None = None
        self._tails: Columns = {}

    def begin(self, storage: storage_lib.Storage) -> None:
        """Says where the columns are; before that there is nothing to write to or to read."""
        self._storage = storage
        fields = storage.schema.fields
        for path in storage.schema.observation_paths:
            self._tails[path] = np.zeros((0, *fields[path].shape), fields[path].dtype)

    @property
    def has_begun(self) -> bool:
        """Whether it is known what a step holds."""
        return self._storage is not None

    @property
    def storage(self) -> storage_lib.Storage:
        """The columns of the steps."""
        assert self._storage is not None
        return self._storage

    @property
    def schema(self) -> schema_lib.Schema:
        """What is in them."""
        return self.storage.schema

    # Writing: what is given was checked before.

    def is_spliced(self, streams: Ints, rows: Mapping[str, Array]) -> Bools:
        """Answers of each of `streams` [k] whether its open episode cannot go on with the observations of `rows`.

        That is where the observation after its newest step is known, and is another one.
        """
        handles = self.timeline.open_handles(streams)
        known = handles >= 0
        known[known] = self.timeline.episodes.has_tail[handles[known]]
        differs = np.zeros(len(streams), np.bool_)
        if known.any():
            for path, tails in self._tails.items():
                differs[known] |= _differ(tails[handles[known]], rows[path][known])
        return differs

    def append(
        self,
        streams: Ints,
        rows: Mapping[str, Array],
        next_rows: Mapping[str, Array] | None,
        *,
        cuts: Bools,
        terminated: Bools,
        truncated: Bools,
    ) -> timeline_lib.Change:
        """Adds one row to each of `streams` [k]; there must be room for them.

        Args:
            streams: Where; distinct.
            rows: All columns [k, ...].
            next_rows: The columns of the observation after each of them [k, ...], None where it is not known yet.
            cuts: Whether the open episode there ends as truncated before the row, which begins another [k].
            terminated: Whether the episode terminates with the row [k].
            truncated: Whether it is truncated with it [k].
        """
        self.storage.write(self.timeline.free_slots(len(streams)), rows)
        knows_next = np.full(len(streams), next_rows is not None)
        change = self.timeline.append(
            streams, cuts=cuts, knows_next=knows_next, terminated=terminated, truncated=truncated
        )
        if next_rows is not None:
            self._write_tails(change.handles, next_rows)
        return change

    def append_episode(
        self, stream: int, rows: Mapping[str, Array], last_rows: Mapping[str, Array], *, is_terminated: bool
    ) -> timeline_lib.Change:
        """Adds an ended episode of T steps to the stream: all columns [T, ...] and its final observation [1, ...]."""
        length = len(rows["reward"])
        self.storage.write(self.timeline.free_slots(length), rows)
        change = self.timeline.append_episode(stream, length, is_terminated=is_terminated)
        self._write_tails(change.handles[:1], last_rows)
        return change

    def _write_tails(self, handles: Ints, next_rows: Mapping[str, Array]) -> None:
        room = self.timeline.episodes.room
        for path, tails in self._tails.items():
            if len(tails) < room:
                more = np.zeros((room - len(tails), *tails.shape[1:]), tails.dtype)
                tails = self._tails[path] = np.concatenate([tails, more])
            tails[handles] = next_rows[path]

    # Reading.

    def observations(self, slots: Ints) -> Columns:
        """Answers fresh copies of the observation columns of the rows in `slots`."""
        return self.storage.read(slots, self.schema.observation_paths)

    def tails(self, handles: Ints) -> Columns:
        """Answers the observation after the newest step of each of those episodes [k, ...].

        Zeros where an episode terminated and nobody gave it: nothing is to be bootstrapped from it.
        """
        has_tail = self.timeline.episodes.has_tail[handles]
        columns = {}
        for path, tails in self._tails.items():
            column = np.zeros((len(handles), *tails.shape[1:]), tails.dtype)
            column[has_tail] = tails[handles[has_tail]]
            columns[path] = column
        return columns

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, of the tails beside them and of the timeline."""
        columns = self.schema.nbytes * self.storage.capacity if self.has_begun else 0
        return columns + sum(tails.nbytes for tails in self._tails.values()) + self.timeline.nbytes

    def clear(self) -> None:
        """Forgets every row."""
        self.timeline.clear()

    def check(self) -> None:
        """Raises CorruptionError if the timeline is not in order, or a tail has no place."""
        self.timeline.check()
        episodes = self.timeline.episodes
        with_tail = episodes.handles()[episodes.has_tail[episodes.handles()]]
        if any(len(tails) <= with_tail.max(initial=-1) for tails in self._tails.values()):
            raise errors.CorruptionError("an episode has a final observation that is nowhere")


def _differ(these: Array, those: Array) -> Bools:
    """Answers whether the rows [k, ...] are unequal; what is not equal to itself, such as NaN, is here."""
    if these.tobytes() == those.tobytes():
        return np.zeros(len(these), np.bool_)
    shape = (len(these), -1, these.itemsize)
    is_same = _bytes_of(these, shape) == _bytes_of(those, shape)
    is_equal = is_same.all(axis=2) | (these == those).reshape(shape[:2])
    if these.dtype.kind in "fc":  # Not every NaN has the same bytes.
        is_equal |= (np.isnan(these) & np.isnan(those)).reshape(shape[:2])
    return np.asarray(~is_equal.all(axis=1))


def _bytes_of(values: Array, shape: tuple[int, ...]) -> Array:
    """Answers the bytes of contiguous values, in that shape."""
    return np.frombuffer(values.tobytes(), np.uint8).reshape(shape)
