"""The names of rows in a ring: a key is never used again, a slot is where the row of a key is while it is alive."""

from typing import ClassVar

import numpy as np

from relive.common import arrays
from relive.kernels import append


class Ring(arrays.Derived):
    """The rows in `capacity` slots, the newest of which take the places of the oldest.

    Attributes:
        capacity: How many rows are alive at most.
        num: Numbers of the ring, by the names in `kernels.append`.
    """

    _DERIVED: ClassVar[tuple[str, ...]] = ("num_view",)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num: arrays.Ints = np.zeros(8, np.int64)
        Ring._derive(self)

    def _derive(self) -> None:
        self.num_view = self.num.data

    def __len__(self) -> int:
        """Return how many rows are alive."""
        return self.num_view[append.ROWS]

    @property
    def next_key(self) -> int:
        """The key of the row that comes next."""
        return self.num_view[append.NEXT_KEY]

    @property
    def oldest_key(self) -> int:
        """The key of the oldest row that is alive; next_key if there is none."""
        return self.num_view[append.NEXT_KEY] - self.num_view[append.ROWS]

    @property
    def num_evicted(self) -> int:
        """How many rows were evicted so far."""
        return self.oldest_key - self.num_view[append.CLEARED]

    @property
    def is_full(self) -> bool:
        """Whether there is a row in every slot, and the next one takes the place of the oldest."""
        return self.num_view[append.ROWS] == self.capacity

    def keys(self, slots: arrays.Ints) -> arrays.Ints:
        """Return the keys of the rows in `slots`."""
        newest = self.next_key - 1
        ages: arrays.Ints = np.remainder(newest - slots, self.capacity)
        return newest - ages

    def slots(self, keys: arrays.Ints) -> arrays.Ints:
        """Return where the rows with `keys` are, or were."""
        return np.remainder(keys, self.capacity)

    def is_alive(self, keys: arrays.Ints) -> arrays.Bools:
        """Return whether the rows with `keys` are still there."""
        return (keys >= self.oldest_key) & (keys < self.next_key)

    def are_alive(self, keys: arrays.Ints) -> bool:
        """Return whether all rows with `keys` are still there."""
        return not len(keys) or (
            keys.item(keys.argmin()) >= self.oldest_key and keys.item(keys.argmax()) < self.next_key
        )

    def alive_slots(self) -> arrays.Ints:
        """Return where all rows are, oldest first."""
        return append.slots_from(self.oldest_key, len(self), self.capacity)
