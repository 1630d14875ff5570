"""Ring: maps the keys of rows, which are never reused, to the slots in which they are stored."""

from typing import ClassVar

import numpy as np

from relive.common import arrays
from relive.kernels import append


class Ring(arrays.Derived):
    """Rows in `capacity` slots, where new rows overwrite the oldest.

    Attributes:
        capacity: Maximum number of stored rows.
        num: Counters of the ring, indexed by the names in `kernels.append`.
    """

    _DERIVED: ClassVar[tuple[str, ...]] = ("num_view",)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num: arrays.Ints = np.zeros(append.PAD + 1, np.int64)
        Ring._derive(self)

    def _derive(self) -> None:
        self.num_view = self.num.data

    def __len__(self) -> int:
        """Return the number of stored rows."""
        return self.num_view[append.ROWS]

    @property
    def next_key(self) -> int:
        """The key of the next row."""
        return self.num_view[append.NEXT_KEY]

    @property
    def oldest_key(self) -> int:
        """The key of the oldest stored row; next_key if there is none."""
        return self.num_view[append.NEXT_KEY] - self.num_view[append.ROWS]

    @property
    def num_evicted(self) -> int:
        """How many rows were evicted so far."""
        return self.oldest_key - self.num_view[append.CLEARED]

    def keys(self, slots: arrays.Ints) -> arrays.Keys:
        """Return the keys of the stored rows in `slots`."""
        return append.keys_of(self.num, slots, self.capacity)

    def slots(self, keys: arrays.Ints) -> arrays.Slots:
        """Return the slots of the stored rows with `keys`."""
        return append.slots_of(self.num, keys, self.capacity)

    def is_alive(self, keys: arrays.Ints) -> arrays.Bools:
        """Return whether each of the rows with `keys` is still stored."""
        return (keys >= self.oldest_key) & (keys < self.next_key)

    def are_alive(self, keys: arrays.Ints) -> bool:
        """Return whether all rows with `keys` are still stored."""
        next_key = self.num_view[append.NEXT_KEY]
        return not len(keys) or (
            keys.item(keys.argmin()) >= next_key - self.num_view[append.ROWS] and keys.item(keys.argmax()) < next_key
        )

    def alive_slots(self) -> arrays.Ints:
        """Return the slots of all rows, oldest first."""
        return append.slots_from(self.oldest_key, len(self), self.capacity)
