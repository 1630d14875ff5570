"""Storage of items, first in, first out: in a ring of rows, or each in its own arrays.

Both count capacity in time steps, evict the oldest items until a new one fits, and return copies. Callers check
arguments: the columns are the required ones, and the items together fit the capacity.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.episodes import counts
from relive.persistence import state

if TYPE_CHECKING:
    from relive.buffers import item_state
else:
    item_state = imports.lazy_module("relive.buffers.item_state")


class Rows:
    """Items of columns of equal length, in a ring of rows that is allocated once.

        slot    0  1  2  3  4  5  6  7          an item has lengths[k] rows from slot starts[k] on; this one has
        rows    c  c     a  a  b  c  c          starts 3, 5, 6 and lengths 2, 1, 4, and the next row goes to slot 2

    So an item costs 16 bytes and no Python object, a draw is one `take` per column, and evicted rows are overwritten.
    The k-th item ever added has its entries at k modulo capacity.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: dict[str, arrays_lib.Array] = {}
        self._starts: arrays_lib.Ints = np.zeros(capacity, np.int64)
        self._lengths: arrays_lib.Ints = np.zeros(capacity, np.int64)
        self._oldest = self._next = 0  # numbers of items
        self._cursor = 0  # the slot of the next row
        self.timesteps = 0
        """Time steps held."""

    @property
    def items(self) -> int:
        """Items held."""
        return self._next - self._oldest

    @property
    def bytes(self) -> int:
        """Bytes of the rows held."""
        return self.timesteps * sum(column[:1].nbytes for column in self._columns.values())

    def add(self, columns: Mapping[str, arrays_lib.Array], lengths: arrays_lib.Ints) -> int:
        """Store items of the given lengths [items], at least 1 each, and return how many were evicted."""
        if not self._columns:
            self._allocate(columns)
        rows = int(lengths.sum())
        evicted = self._evict(self.timesteps + rows - self._capacity)
        room = self._capacity - self._cursor
        for name, values in columns.items():
            column = self._columns[name]
            column[self._cursor : self._cursor + rows] = values[:room]
            column[: max(rows - room, 0)] = values[room:]
        entries = np.arange(self._next, self._next + len(lengths)) % self._capacity
        self._starts[entries] = (self._cursor + np.cumsum(lengths) - lengths) % self._capacity
        self._lengths[entries] = lengths
        self._next += len(lengths)
        self._cursor = (self._cursor + rows) % self._capacity
        self.timesteps += rows
        return evicted

    def _allocate(self, columns: Mapping[str, arrays_lib.Array]) -> None:
        """Allocate a ring for each column."""
        self._columns = {
            name: np.zeros((self._capacity, *values.shape[1:]), values.dtype) for name, values in columns.items()
        }

    def _evict(self, excess: int) -> int:
        """Evict the oldest items until at least `excess` rows are free, and return how many. O(excess)."""
        if excess <= 0:
            return 0
        entries = np.arange(self._oldest, self._oldest + min(excess, self.items)) % self._capacity
        freed = np.cumsum(self._lengths[entries])
        leaving = int(freed.searchsorted(excess)) + 1
        self._oldest += leaving
        self.timesteps -= int(freed[leaving - 1])
        return leaving

    def read(self, places: arrays_lib.Ints) -> tuple[dict[str, arrays_lib.Array], arrays_lib.Ints]:
        """Return the rows of the items at `places` [k], 0 the oldest, one after the other, and their lengths [k]."""
        entries = (self._oldest + places) % self._capacity
        lengths = self._lengths[entries]
        ends = np.cumsum(lengths)
        rows = np.repeat(self._starts[entries] - (ends - lengths), lengths) + np.arange(ends[-1])
        slots = rows % self._capacity
        return {name: column.take(slots, axis=0) for name, column in self._columns.items()}, lengths

    def state(self) -> dict[str, arrays_lib.Array | state.LazyArray]:
        """Return the lengths of the items [items] and their rows, oldest first; the rows are read lazily."""
        first_slot = (self._cursor - self.timesteps) % self._capacity
        arrays: dict[str, arrays_lib.Array | state.LazyArray] = {
            "lengths": _of_ring(self._lengths, self._oldest, self.items)
        }
        for name, column in self._columns.items():
            arrays[f"rows/{name}"] = _of_ring(column, first_slot, self.timesteps)
        return arrays

    def fill(self, kept: "item_state.ItemState") -> None:
        """Load the items of a state into an empty store."""
        self._allocate({name: kept.columns[name] for name in kept.rows})
        items, self.timesteps = len(kept.lengths), int(kept.lengths.sum())
        for name, rows in kept.rows.items():
            column = self._columns[name]
            for start, stop in state.chunks(self.timesteps, column[: self.timesteps].nbytes):
                column[start:stop] = rows.read(start, stop)
        self._starts[:items] = np.cumsum(kept.lengths) - kept.lengths
        self._lengths[:items] = kept.lengths
        self._next = items
        self._cursor = self.timesteps % self._capacity

    def clear(self) -> None:
        """Remove every item."""
        self._oldest = self._next
        self.timesteps = 0

    def check(self) -> None:
        """Raise CorruptionError if an invariant does not hold. O(items)."""
        entries = np.arange(self._oldest, self._next) % self._capacity
        lengths, starts = self._lengths[entries], self._starts[entries]
        _check_counts(lengths, self.timesteps, self._capacity)
        ends = (starts + lengths) % self._capacity
        if not np.array_equal(ends, np.append(starts[1:], self._cursor)[: self.items]):
            raise errors.CorruptionError("the rows of an item must end where those of the next one start")


class Fragments:
    """Items whose columns may differ in length, each with its own arrays, which are freed on eviction.

    One ring per column would waste memory: a column with one row per fragment would get a slot for every time step.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._deque: counts.CountedDeque[dict[str, arrays_lib.Array]] = counts.CountedDeque()
        self._columns: Mapping[str, arrays_lib.Array] = {}
        self.bytes = 0

    @property
    def items(self) -> int:
        """Items held."""
        return len(self._deque)

    @property
    def timesteps(self) -> int:
        """Time steps held."""
        return self._deque.total

    def add(self, columns: Mapping[str, arrays_lib.Array], lengths: arrays_lib.Ints) -> int:
        """Store the columns as one item of that length [1], and return how many were evicted."""
        self._columns = self._columns or {name: values[:0].copy() for name, values in columns.items()}
        fragment = {name: values.copy() for name, values in columns.items()}
        before, steps = self.items, int(lengths[0])
        while self.timesteps + steps > self._capacity:
            self.bytes -= _bytes(self._deque.popleft())
        evicted = before - self.items
        self._deque.append(fragment, steps)
        self.bytes += _bytes(fragment)
        return evicted

    def read(self, places: arrays_lib.Ints) -> tuple[dict[str, arrays_lib.Array], arrays_lib.Ints]:
        """Return the columns of the items at `places` [k], 0 the oldest, each joined, and the items' lengths [k]."""
        drawn = [self._deque[place] for place in places.tolist()]
        lengths = np.array([self._deque.count(place) for place in places.tolist()])
        columns = {
            name: np.concatenate([fragment[name] for fragment in drawn], dtype=first.dtype)
            for name, first in drawn[0].items()
        }
        return columns, lengths

    def state(self) -> dict[str, arrays_lib.Array | state.LazyArray]:
        """Return how many rows each column of each item has [items, columns], and the rows, oldest first."""
        fragments = list(self._deque)
        lengths = np.zeros((len(fragments), len(self._columns)), np.int64)
        arrays: dict[str, arrays_lib.Array | state.LazyArray] = {"lengths": lengths}
        for place, (name, column) in enumerate(self._columns.items()):
            parts = [fragment[name] for fragment in fragments]
            lengths[:, place] = list(map(len, parts))
            arrays[f"rows/{name}"] = _joined(column, parts, lengths[:, place])
        return arrays

    def fill(self, kept: "item_state.ItemState") -> None:
        """Load the items of a state into an empty store."""
        self._columns = kept.columns
        columns = {
            name: list(item_state.pieces(rows, kept.lengths[:, place]))
            for place, (name, rows) in enumerate(kept.rows.items())
        }
        for item, steps in enumerate(item_state.item_lengths(kept.lengths).tolist()):
            fragment = {name: arrays[item] for name, arrays in columns.items()}
            self._deque.append(fragment, steps)
            self.bytes += _bytes(fragment)

    def clear(self) -> None:
        """Remove every item."""
        self._deque = counts.CountedDeque()
        self.bytes = 0

    def check(self) -> None:
        """Raise CorruptionError if an invariant does not hold. O(items)."""
        fragments = list(self._deque)
        longest = [max(map(len, fragment.values())) for fragment in fragments]
        _check_counts(np.array(longest, np.int64), self.timesteps, self._capacity)
        total = sum(map(_bytes, fragments))
        if total != self.bytes:
            raise errors.CorruptionError(f"the items have {total} bytes, counted as {self.bytes}")


def _of_ring(ring: arrays_lib.Array, first: int, count: int) -> state.LazyArray:
    """Return `count` entries of a ring, starting at `first`, as a column."""

    def read(start: int, stop: int) -> arrays_lib.Array:
        return ring.take(np.arange(first + start, first + stop) % len(ring), axis=0)

    return state.LazyArray((count, *ring.shape[1:]), ring.dtype, read)


def _joined(column: arrays_lib.Array, arrays: Sequence[arrays_lib.Array], lengths: arrays_lib.Ints) -> state.LazyArray:
    """Return the concatenation of arrays of those lengths, with rows like `column`, as a lazy column."""
    ends = np.cumsum(lengths)
    begins = ends - lengths

    def read(start: int, stop: int) -> arrays_lib.Array:
        first, last = np.searchsorted(ends, (start, stop - 1), side="right").tolist()
        parts = [
            array[max(start - begin, 0) : stop - begin]
            for array, begin in zip(arrays[first : last + 1], begins[first : last + 1].tolist(), strict=True)
        ]
        return np.concatenate(parts, dtype=column.dtype)

    return state.LazyArray((int(lengths.sum()), *column.shape[1:]), column.dtype, read)


def _bytes(fragment: Mapping[str, arrays_lib.Array]) -> int:
    return sum(values.nbytes for values in fragment.values())


def _check_counts(lengths: arrays_lib.Ints, timesteps: int, capacity: int) -> None:
    if (lengths < 1).any():
        raise errors.CorruptionError("an item must have at least one time step")
    if lengths.sum() != timesteps:
        raise errors.CorruptionError(f"the items have {lengths.sum()} time steps, counted as {timesteps}")
    if timesteps > capacity:
        raise errors.CorruptionError(f"the items have {timesteps} time steps, above the capacity of {capacity}")
