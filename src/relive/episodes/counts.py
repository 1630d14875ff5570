"""Collections of items with counts, and fast draws of items in proportion to their counts.

    items     a  b     c          finished episodes, oldest first
    counts    2  3     0          their transitions
    sums    0  2  5      5        units before each item, and before the next one
    units     a a b b b           unit 0 is a's first, unit 2 is b's first, unit 4 is b's last

A finished episode never changes, so its sum is written once, by the draw that needs it first; removing on the left only
moves the start of counting. Appending and removing cost O(1), finding k units O(k log items), both amortised.
"""

import bisect
from collections.abc import Hashable, Iterator
import dataclasses
import itertools
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import duplicates

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


@dataclasses.dataclass(slots=True, eq=False)
class _Shelf(Generic[H]):
    """Items with counts in [width / 2, width), and their sum."""

    width: int
    items: list[H] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)
    units: int = 0


class GrowingCounts(Generic[H]):
    """Counts of items, 0 for unknown items."""

    def __init__(self) -> None:
        self._shelves: list[_Shelf[H]] = []
        self._rows: dict[H, tuple[_Shelf[H], int]] = {}
        self.total = 0
        """How many units the items have together."""

    def __getitem__(self, item: H) -> int:
        """Return how many units `item` has."""
        if item not in self._rows:
            return 0
        shelf, row = self._rows[item]
        return shelf.counts[row]

    def grow(self, item: H) -> None:
        """Increment the count of `item`. O(1)."""
        if item not in self._rows:
            self.put(item, 1)
            return
        shelf, row = self._rows[item]
        count = shelf.counts[row] + 1
        if count < shelf.width:
            shelf.counts[row] = count
            shelf.units += 1
            self.total += 1
        else:
            self.put(item, self.pop(item) + 1)

    def __iter__(self) -> Iterator[H]:
        """Yield the items, shelf by shelf."""
        return itertools.chain.from_iterable(shelf.items for shelf in self._shelves)

    def draw(self, size: int, rng: np.random.Generator) -> list[tuple[H, int]]:
        """Draw `size` independent units, each as its item and its rank in it; there must be a unit."""
        ends = list(itertools.accumulate(shelf.units for shelf in self._shelves))
        random = rng.random
        drawn = []
        for unit in rng.integers(self.total, size=size).tolist():
            shelf = self._shelves[bisect.bisect_right(ends, unit)]
            items, counts, width = shelf.items, shelf.counts, shelf.width
            area = len(items) * width
            row, rank = divmod(int(random() * area), width)
            while rank >= counts[row]:
                row, rank = divmod(int(random() * area), width)
            drawn.append((items[row], rank))
        return drawn

    def check(self) -> None:
        """Recount the shelves.

        Raises:
            CorruptionError: A shelf or the total disagrees with its items.
        """
        twin: GrowingCounts[H] = GrowingCounts()
        for item in dict.fromkeys(self):
            twin.put(item, max(self[item], 1))
        if self._contents() != twin._contents():
            raise errors.CorruptionError(f"growing counts of {len(self._rows)} items do not agree with their shelves")

    def _contents(self) -> tuple[Any, ...]:
        shelves = [(each.width, each.items, each.counts, each.units) for each in self._shelves if each.items]
        return shelves, {item: (shelf.width, row) for item, (shelf, row) in self._rows.items()}, self.total

    def put(self, item: H, count: int) -> None:
        """Add a new item with `count` >= 1 units; adding items in the order of `iter` restores the same order."""
        while len(self._shelves) < count.bit_length():
            self._shelves.append(_Shelf(2 << len(self._shelves)))
        shelf = self._shelves[count.bit_length() - 1]
        self._rows[item] = (shelf, len(shelf.items))
        shelf.items.append(item)
        shelf.counts.append(count)
        shelf.units += count
        self.total += count

    def pop(self, item: H) -> int:
        """Remove `item` and return its count; the last one of its shelf takes its place. O(1)."""
        if item not in self._rows:
            return 0
        shelf, row = self._rows.pop(item)
        count = shelf.counts[row]
        last_item, last_count = shelf.items.pop(), shelf.counts.pop()
        if last_item is not item:
            shelf.items[row], shelf.counts[row] = last_item, last_count
            self._rows[last_item] = (shelf, row)
        shelf.units -= count
        self.total -= count
        return count


Ints = npt.NDArray[np.int64]
_SMALLEST = 64
_NO_SUMS: Ints = np.zeros(1, np.int64)


class CountedDeque(duplicates.CopiedWhole, Generic[T]):
    """Items in order of arrival, each with a count of units."""

    def __init__(self) -> None:
        # Live items are _items[_head:], with so many units each. Entries before _head are None.
        self._items: list[Any] = []
        self._counts: list[int] = []
        self._head = 0
        # _sums[i] is how many units the first i items have together, up to _num_summed. Only `find` needs them, and
        # makes them: so nothing else runs out of memory.
        self._sums: Ints = _NO_SUMS
        self._num_summed = 0
        self.total = 0
        """How many units the items have together."""
        self.num_empty = 0
        """How many items have no unit."""

    def __len__(self) -> int:
        return len(self._items) - self._head

    def __getitem__(self, index: int) -> T:
        """Return the item at `index`: 0 is the oldest, -1 the newest. O(1)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}")
        return cast(T, self._items[index + (self._head if index >= 0 else len(self._items))])

    def __iter__(self) -> Iterator[T]:
        return iter(self._items[self._head :])

    def append(self, item: T, count: int) -> None:
        """Append `item` with `count` >= 0 units."""
        self._items.append(item)
        self._counts.append(count)
        self.total += count
        self.num_empty += not count

    def popleft(self) -> T:
        """Remove and return the oldest item."""
        item, count = self[0], self.count(0)
        self.num_empty -= not count
        self.total -= count
        self._items[self._head] = None
        self._head += 1
        if self._head > max(_SMALLEST, 2 * len(self)):
            del self._items[: self._head], self._counts[: self._head]
            self._head = self._num_summed = 0
            self._sums = _NO_SUMS
        return item

    def find(self, units: Ints) -> tuple[list[T], list[int]]:
        """Return, for each of `units` [k] in [0, total), its item [k] and its rank among that item's units [k]."""
        if self._num_summed < len(self._items):
            self._sum()
        sums = self._sums[self._head : len(self._items) + 1]
        absolute = units + sums[0]
        # The last item whose sum is not above the unit: items without units repeat a sum, and are passed over.
        places = sums.searchsorted(absolute, side="right") - 1
        items = list(map(self._items.__getitem__, (places + self._head).tolist()))
        return items, (absolute - sums[places]).tolist()

    def count(self, index: int) -> int:
        """Return how many units the item at `index` >= 0 has."""
        return self._counts[self._head + index]

    def _sum(self) -> None:
        """Sum the items that came since the last time, doubling the space where it does not suffice."""
        known, count, sums = self._num_summed, len(self._items), self._sums
        if count >= len(sums):
            sums = np.zeros(max(_SMALLEST, 2 * count), np.int64)
            sums[: known + 1] = self._sums[: known + 1]
        sums[known + 1 : count + 1] = np.cumsum(self._counts[known:], dtype=np.int64) + sums[known]
        self._sums, self._num_summed = sums, count


class Pool(Generic[H]):
    """Units of items that grow, and of those that have finished, in the order of finishing."""

    __slots__ = ("finished", "growing")

    def __init__(self) -> None:
        self.finished: CountedDeque[H] = CountedDeque()
        self.growing: GrowingCounts[H] = GrowingCounts()

    @property
    def total(self) -> int:
        """How many units the items have together."""
        return self.finished.total + self.growing.total

    def draw(self, units: Ints, rng: np.random.Generator) -> list[tuple[H, int]]:
        """Return an item and a rank in it for each of `units` [k], which are random in [0, total).

        Those from finished.total on stand for any unit of the growing items.
        """
        are_finished = units < self.finished.total
        drawn = list(zip(*self.finished.find(units[are_finished]), strict=True))
        if len(drawn) == len(units):
            return drawn
        from_finished, from_growing = iter(drawn), iter(self.growing.draw(len(units) - len(drawn), rng))
        return [next(from_finished if is_finished else from_growing) for is_finished in are_finished.tolist()]
