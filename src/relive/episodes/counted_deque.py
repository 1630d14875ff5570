"""A deque of items, each with a count, and running sums that find the item to which the p-th unit belongs.

    items     a  b     c          finished episodes, oldest first
    counts    2  3     0          their transitions
    sums    0  2  5      5        units before each item, and before the next one
    units     a a b b b           unit 0 is a's first, unit 2 is b's first, unit 4 is b's last

A finished episode never changes, so its sum is written once; what leaves on the left only moves the line from which
units are counted. Appending and leaving cost O(1) amortised, finding k units O(k log items).
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Ints = npt.NDArray[np.int64]

_SMALLEST = 64


class CountedDeque(Generic[T]):
    """Items in the order in which they came, each with a count of units."""

    def __init__(self) -> None:
        # Live items are _items[_head:], and item i has _sums[i + 1] - _sums[i] units. Before _head stands None.
        self._items: list[Any] = []
        self._sums: Ints = np.zeros(_SMALLEST, np.int64)
        self._head = 0
        self.total = 0
        """How many units the items have together."""

    def __len__(self) -> int:
        return len(self._items) - self._head

    def __getitem__(self, index: int) -> T:
        """Answers the item at `index`: 0 is the oldest, -1 the newest. O(1)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}")
        return cast(T, self._items[index + (self._head if index >= 0 else len(self._items))])

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))

    def append(self, item: T, count: int) -> None:
        """Puts `item` last, with `count` >= 0 units."""
        last = len(self._items)
        if last + 1 == len(self._sums):
            last = self._squeeze()
        self._sums[last + 1] = self._sums[last] + count
        self._items.append(item)
        self.total += count

    def popleft(self) -> T:
        """Takes the oldest item out and answers it."""
        item = self[0]
        self._items[self._head] = None
        self._head += 1
        self.total = int(self._sums[len(self._items)] - self._sums[self._head])
        if self._head > max(_SMALLEST, 2 * len(self)):
            self._squeeze()
        return item

    def find(self, units: Ints) -> tuple[list[T], list[int]]:
        """Answers, for each of `units` [k] in [0, total), its item [k] and its rank among that item's units [k]."""
        sums = self._sums[self._head : len(self._items) + 1]
        absolute = units + sums[0]
        # The last item whose sum is not above the unit: items without units repeat a sum, and are passed over.
        places = sums.searchsorted(absolute, side="right") - 1
        items = list(map(self._items.__getitem__, (places + self._head).tolist()))
        return items, (absolute - sums[places]).tolist()

    def count(self, index: int) -> int:
        """Answers how many units the item at `index` >= 0 has."""
        return int(self._sums[self._head + index + 1] - self._sums[self._head + index])

    def _squeeze(self) -> int:
        """Drops what has left, makes room for as many again as there are, and answers how many there are."""
        live = self._sums[self._head : len(self._items) + 1]
        sums = np.zeros(max(_SMALLEST, 2 * len(live)), np.int64)
        sums[: len(live)] = live
        self._sums = sums
        del self._items[: self._head]
        self._head = 0
        return len(self._items)
