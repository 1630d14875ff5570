"""Items whose counts grow by one at a time, drawn in proportion to their counts.

An item stands on a shelf by the size of its count: shelf s is for counts from 2^s to 2^(s+1) - 1, and is 2^(s+1) wide.

    shelf 0    a #.                   a has 1 unit
    shelf 1    b ##..  c ###.         b has 2, c has 3
    shelf 2    d #####...             d has 5

A draw takes a shelf in proportion to its units (#), then throws darts at the shelf until one hits a unit; every
other dart does, since at least half of each item's width is units. The unit that was hit is uniform among the shelf's,
so it is also a uniform unit of its item. Growing costs O(1), a draw O(1) expected, however many items there are
(Matias, Vitter and Ni 2003, "Dynamic generation of discrete random variates").
"""

import bisect
from collections.abc import Hashable, Iterator
import itertools
from typing import Generic, TypeVar

import numpy as np

from relive import errors

T = TypeVar("T", bound=Hashable)


class _Shelf(Generic[T]):
    """Items beside each other, with their counts."""

    __slots__ = ("counts", "items", "units", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.items: list[T] = []
        self.counts: list[int] = []
        self.units = 0


class GrowingCounts(Generic[T]):
    """Counts of items, 0 for an item never heard of; memory is for the others alone."""

    def __init__(self) -> None:
        self._shelves: list[_Shelf[T]] = []
        self._rows: dict[T, tuple[_Shelf[T], int]] = {}
        self.total = 0
        """How many units the items have together."""

    def __getitem__(self, item: T) -> int:
        """Answers how many units `item` has."""
        if item not in self._rows:
            return 0
        shelf, row = self._rows[item]
        return shelf.counts[row]

    def grow(self, item: T) -> None:
        """Gives `item` one unit more. O(1)."""
        if item in self._rows:
            shelf, row = self._rows[item]
            count = shelf.counts[row] + 1
            if count < shelf.width:
                shelf.counts[row] = count
                shelf.units += 1
            else:
                self._take(item)
                self._place(item, count)
        else:
            self._place(item, 1)
        self.total += 1

    def put(self, item: T, count: int) -> None:
        """Takes in an item that is new with `count` >= 1 units: in the order of `iter`, all stand as they stood."""
        self._place(item, count)
        self.total += count

    def __iter__(self) -> Iterator[T]:
        """Gives the items as they stand, shelf by shelf."""
        return itertools.chain.from_iterable(shelf.items for shelf in self._shelves)

    def pop(self, item: T) -> int:
        """Takes `item` out and answers how many units it had. O(1)."""
        count = self._take(item) if item in self._rows else 0
        self.total -= count
        return count

    def draw(self, size: int, rng: np.random.Generator) -> list[tuple[T, int]]:
        """Answers `size` independent units, each as its item and its rank in it; there must be a unit."""
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
        """Recounts the shelves.

        Raises:
            CorruptionError: A shelf or the total is not what its items make it.
        """
        for number, shelf in enumerate(self._shelves):
            rows = [self._rows.get(item) for item in shelf.items]
            is_sound = (
                shelf.width == 2 << number
                and len(shelf.items) == len(shelf.counts)
                and all(shelf.width // 2 <= count < shelf.width for count in shelf.counts)
                and shelf.units == sum(shelf.counts)
                and rows == [(shelf, row) for row in range(len(rows))]
            )
            if not is_sound:
                raise errors.CorruptionError(f"shelf {number} of growing counts does not agree with its items")
        if len(self._rows) != sum(len(shelf.items) for shelf in self._shelves):
            raise errors.CorruptionError(f"growing counts have {len(self._rows)} items, but not on their shelves")

    def _place(self, item: T, count: int) -> None:
        """Puts an item that stands nowhere on the shelf for `count`."""
        while len(self._shelves) < count.bit_length():
            self._shelves.append(_Shelf(2 << len(self._shelves)))
        shelf = self._shelves[count.bit_length() - 1]
        self._rows[item] = (shelf, len(shelf.items))
        shelf.items.append(item)
        shelf.counts.append(count)
        shelf.units += count

    def _take(self, item: T) -> int:
        """Takes an item off its shelf, puts the shelf's last one in its row, and answers its count."""
        shelf, row = self._rows.pop(item)
        count = shelf.counts[row]
        last_item, last_count = shelf.items.pop(), shelf.counts.pop()
        if last_item is not item:
            shelf.items[row], shelf.counts[row] = last_item, last_count
            self._rows[last_item] = (shelf, row)
        shelf.units -= count
        return count
