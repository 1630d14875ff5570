"""Which rows have been drawn, one bit a row; and the last draws themselves.

    note      keeps a copy of what was drawn, and the key of the next row then: all that a draw waits for
    settle    of many draws at once: clears the bits of the rows that came since, sets those of the rows drawn

The bit of a row is that of its slot. Nobody has to say which rows come and go: what key a slot had when it was drawn,
and whether another row has come to it since, follows from the next key, then and now.
"""

import numpy as np

from relive import errors
from relive.common import arrays
from relive.persistence import state

LAST = 256
"""So many of the last draws are known."""


class DrawnRows:
    """The rows in `capacity` slots that have been drawn.

    Attributes:
        last_keys: The keys of the last draws, the newest last [at most LAST]; of those that are settled.
        last_ages: How many rows had come behind each of them when it was drawn.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Few enough not to count beside the rows, and to be settled in the caches of the processor.
        self._room = min(max(capacity // 8, 2_048), 15_000)
        self._slots: arrays.Ints = np.empty(self._room, np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget every draw."""
        self._bits = np.zeros(self._capacity // 8 + 1, np.uint8)
        # Of the rows with smaller keys the bits say whether they were drawn.
        self._next_key = 0
        # Of each draw that is not settled, one after the other: where in _slots it ends, and the next key then.
        self._draws: list[int] = []
        self._count = 0
        self.last_keys: arrays.Ints = np.zeros(0, np.int64)
        self.last_ages: arrays.Ints = np.zeros(0, np.int64)

    def record(self, slots: arrays.Ints, next_key: int) -> None:
        """Record that the rows in `slots` [B] were drawn just now. O(B)."""
        start = self._count
        stop = start + len(slots)
        if stop > self._room:
            self.flush(next_key)
            start, stop = 0, len(slots)
            if stop > self._room:
                self._settle(slots, [stop, next_key], next_key)
                return
        self._slots[start:stop] = slots
        self._draws += (stop, next_key)
        self._count = stop

    def flush(self, next_key: int) -> None:
        """Bring all up to date, given the key of the row that comes next."""
        self._clear_newer(next_key)
        if self._draws:
            self._settle(self._slots[: self._count], self._draws, next_key)
            self._draws, self._count = [], 0

    def _settle(self, slots: arrays.Ints, draws: list[int], next_key: int) -> None:
        """Set the bits of the rows in `slots` [k] that are still there.

        Args:
            slots: Of one draw after another.
            draws: As in `_draws`.
            next_key: The next key now.
        """
        ends, next_keys = np.array(draws).reshape(-1, 2).T
        # Most of them were drawn before, and to set a bit takes several times as long as to look at it.
        new = np.flatnonzero(~self.has(slots))
        places = np.concatenate([new, np.arange(max(len(slots) - LAST, 0), len(slots))])
        newest = next_keys[np.searchsorted(ends, places, side="right")] - 1
        ages = np.remainder(newest - slots[places], self._capacity)
        keys, count = newest - ages, len(new)
        self._set(slots[new[keys[:count] >= next_key - self._capacity]])
        self.last_keys = np.concatenate([self.last_keys, keys[count:]])[-LAST:].copy()
        self.last_ages = np.concatenate([self.last_ages, ages[count:]])[-LAST:].copy()

    def has(self, slots: arrays.Ints) -> arrays.Bools:
        """Return which of the rows in `slots` [k] were drawn, as far as that is settled [k]."""
        bits = self._bits[slots >> 3]
        bits >>= slots.astype(np.uint8) & np.uint8(7)
        bits &= 1
        are_set: arrays.Bools = bits.astype(np.bool_)
        return are_set

    def num_missing(self, mask: arrays.Bools) -> int:
        """Return how many of the rows where `mask` [capacity] is true were not drawn, as far as that is settled."""
        bits = np.packbits(mask, bitorder="little")
        bits &= ~self._bits[: len(bits)]
        return int(np.bitwise_count(bits).sum())

    def _set(self, slots: arrays.Ints) -> None:
        np.bitwise_or.at(self._bits, slots >> 3, np.left_shift(1, slots & 7).astype(np.uint8))

    def _clear_newer(self, next_key: int) -> None:
        """Clear the bits of the slots to which rows have come since the last time."""
        count = min(next_key - self._next_key, self._capacity)
        start = (next_key - count) % self._capacity
        self._clear(start, min(start + count, self._capacity))
        self._clear(0, max(start + count - self._capacity, 0))
        self._next_key = next_key

    def _clear(self, start: int, stop: int) -> None:
        """Clear the bits of the slots from `start` on, up to `stop`."""
        first, last = start >> 3, stop >> 3
        before, behind = (1 << (start & 7)) - 1, 0xFF << (stop & 7) & 0xFF
        if first == last:
            self._bits[first] &= before | behind
        else:
            self._bits[first] &= before
            self._bits[first + 1 : last] = 0
            self._bits[last] &= behind

    # As a whole.

    def last(self) -> dict[str, arrays.Ints]:
        """Return what a checkpoint keeps of the last draws."""
        return {"draw_key": self.last_keys.copy(), "draw_age": self.last_ages.copy()}

    def restore(self, slots: arrays.Ints, next_key: int, last_keys: arrays.Ints, last_ages: arrays.Ints) -> None:
        """Restore a state.

        Args:
            slots: Where the rows are that have been drawn [k].
            next_key: The key of the row that comes next.
            last_keys: Of the last draws, as in the attribute.
            last_ages: The same.
        """
        self.clear()
        self._set(slots)
        self._next_key, self.last_keys, self.last_ages = next_key, last_keys, last_ages


def checked_last(given: state.StateReader, next_key: int) -> tuple[arrays.Ints, arrays.Ints]:
    """Return keys and ages of the last draws, as `DrawnRows.last` has returned them.

    Raises:
        CheckpointError: No rows with keys below `next_key` can have been drawn like that.
    """
    keys = given.integers("draw_key", None, 0, next_key - 1)
    if len(keys) > LAST:
        raise errors.CheckpointError(f"array draw_key must hold at most {LAST} keys, got {len(keys)}")
    ages = given.integers("draw_age", len(keys), 0, next_key - 1)
    if (keys + ages >= next_key).any():
        raise errors.CheckpointError("array draw_age must hold how many rows had come behind each of draw_key")
    return keys, ages
