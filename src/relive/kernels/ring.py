"""A ring of rows: which keys there are, and which slots they are in. The only modulo arithmetic is here.

key       0   1   2   3   4   5   6   7   8   9  10  11  12        counts the rows ever added
slot      0   1   2   3   4   5   6   7   0   1   2   3   4        key % capacity, here 8
                              └────────── alive ─────────┘         the newest `len(ring)` keys
"""

from typing import TypeAlias

import numpy as np

from relive.common import arrays

Run: TypeAlias = slice | arrays.Ints
"""Slots of rows with consecutive keys: a slice of the ring, or where they wrap around its end the slots."""


class Ring:
    """The names of the rows in `capacity` slots.

    Attributes:
        capacity: How many rows are alive at most.
        next_key: The key of the row that comes next.
        num_evicted: How many rows were evicted so far.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.next_key = 0
        self.num_evicted = 0
        self._num_rows = 0

    def __len__(self) -> int:
        """Answers how many rows are alive."""
        return self._num_rows

    @property
    def is_full(self) -> bool:
        """Whether there is a row in every slot, and the next one takes the place of the oldest."""
        return self._num_rows == self.capacity

    @property
    def oldest_key(self) -> int:
        """The key of the oldest row that is alive; next_key if there is none."""
        return self.next_key - self._num_rows

    def keys(self, slots: arrays.Ints) -> arrays.Ints:
        """Answers the keys of the rows in `slots`."""
        newest = self.next_key - 1
        return newest - self.around(newest - slots)

    def slots(self, keys: arrays.Ints) -> arrays.Ints:
        """Answers where the rows with `keys` are, or were."""
        return self.around(keys)

    def is_alive(self, keys: arrays.Ints) -> arrays.Bools:
        """Answers whether the rows with `keys` are still there."""
        return (keys >= self.oldest_key) & (keys < self.next_key)

    def alive_slots(self) -> arrays.Ints:
        """Answers where all rows are, oldest first."""
        return self.oldest_slots(self._num_rows)

    def oldest_slots(self, count: int) -> arrays.Ints:
        """Answers where the `count` oldest rows are, oldest first."""
        return self.slots_from(self.oldest_key, count)

    def free_slots(self, count: int) -> arrays.Ints:
        """Answers where the next `count` rows go; they hold the oldest rows as long as those are not evicted."""
        return self.slots_from(self.next_key, count)

    def key_of_one(self, slot: int) -> int:
        """Answers the key of the row in `slot`."""
        return self.next_key - 1 - (self.next_key - 1 - slot) % self.capacity

    def run(self, key: int, count: int) -> Run:
        """Answers where the rows of `count` keys are, from that key on."""
        slot = key % self.capacity
        if slot + count <= self.capacity:
            return slice(slot, slot + count)
        return self.slots_from(key, count)

    def slots_from(self, key: int, count: int) -> arrays.Ints:
        """Answers the slots of the rows of at most `capacity` keys, from that key on."""
        slot = key % self.capacity
        slots = np.arange(slot, slot + count)
        if slot + count > self.capacity:
            slots[self.capacity - slot :] -= self.capacity  # A division a row would take several times as long.
        return slots

    def around(self, places: arrays.Ints) -> arrays.Ints:
        """Answers the slots of places counted on beyond the ends of the ring."""
        return np.remainder(places, self.capacity)
