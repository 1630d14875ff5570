"""A set of numbers 0 .. capacity - 1 from which uniform draws cost O(1).

    numbers      7 2 9 4 | - - - -      what is in, densely, in no order
    positions    . . 2 . 4 . . 1 . 3    where each number stands among them, counted from 1; at most 0 if it is out

Taking out fills the holes with the numbers that stood last, so that what is in stays dense.

A ring adds numbers in cyclic order behind the newest and takes them out in cyclic order from the oldest. While that is
all that happens, what is in is an interval, and a first number and a count say it all:

    capacity 8, first 6, count 5:       6 7 0 1 2

The first call out of that order turns the interval into the two arrays, for good until `clear`. Returns are the same.
"""

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import validation

Ints = npt.NDArray[np.int64]


class IndexSet:
    """A set of numbers, empty at first.

    Args:
        capacity: The numbers that may be in are 0 .. capacity - 1.

    Raises:
        ArgumentError: `capacity` is not an integer of at least 1.

    >>> import numpy as np
    >>> from relive.kernels import index_set
    >>> slots = index_set.IndexSet(10)
    >>> slots.add(np.arange(6))
    >>> slots.remove(np.array([1, 4]))
    >>> slots.contains(np.array([3, 4]))
    array([ True, False])
    >>> sorted(slots.numbers().tolist())
    [0, 2, 3, 5]
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = validation.positive_int("capacity", capacity)
        self._first = 0
        self._count = 0
        # None while what is in is the interval of _count numbers from _first on; from anywhere while it is empty.
        self._arrays: _Arrays | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def capacity(self) -> int:
        """How many numbers there can be."""
        return self._capacity

    def add(self, numbers: Ints) -> None:
        """Put in `numbers` [k], none of which may be in. O(k).

        Raises:
            OutOfRangeError: A number is not in [0, capacity).
            ArgumentError: A number is in, or given twice.
        """
        self._require_range(numbers)
        if self._arrays is None:
            first = self._first if self._count else int(numbers[0]) if len(numbers) else 0
            if self._count + len(numbers) <= self._capacity and self._follow(first + self._count, numbers):
                self._first = first
                self._count += len(numbers)
                return
        arrays = self._arrays or _Arrays(self._capacity, self.numbers())
        arrays.add(self._count, numbers)
        self._arrays = arrays
        self._count += len(numbers)

    def remove(self, numbers: Ints) -> None:
        """Take out `numbers` [k], all of which must be in. O(k).

        Raises:
            OutOfRangeError: A number is not in [0, capacity).
            ArgumentError: A number is not in, or given twice.
        """
        self._require_range(numbers)
        if self._arrays is None and len(numbers) <= self._count and self._follow(self._first, numbers):
            self._first = (self._first + len(numbers)) % self._capacity
            self._count -= len(numbers)
            return
        arrays = self._arrays or _Arrays(self._capacity, self.numbers())
        arrays.remove(self._count, numbers)
        self._arrays = arrays
        self._count -= len(numbers)

    def add_one(self, number: int) -> None:
        """Put in one number, as `add` does. O(1)."""
        if self._arrays is None and 0 <= number < self._capacity:
            if self._count == 0:
                self._first, self._count = number, 1
                return
            if self._count < self._capacity and number == (self._first + self._count) % self._capacity:
                self._count += 1
                return
        self.add(np.array([number]))

    def remove_one(self, number: int) -> None:
        """Take out one number, as `remove` does. O(1)."""
        if self._arrays is None and self._count and number == self._first:
            self._first = (number + 1) % self._capacity
            self._count -= 1
            return
        self.remove(np.array([number]))

    def turn(self, lost: int, first: int, count: int) -> bool:
        """Take out `count` numbers from `lost` on and put in as many from `first` on, or return False. O(1).

        False, and nothing has changed, unless what is in is an interval before and after.
        """
        capacity = self._capacity
        if self._arrays is not None or lost != self._first or first != (lost + self._count) % capacity:
            return False
        self._first = (lost + count) % capacity
        return True

    def contains(self, numbers: Ints) -> npt.NDArray[np.bool_]:
        """Return which of `numbers` [k] are in [k]. O(k).

        Raises:
            OutOfRangeError: A number is not in [0, capacity).
        """
        self._require_range(numbers)
        if self._arrays is None:
            return (numbers - self._first) % self._capacity < self._count
        return self._arrays.positions[numbers] > 0

    def numbers(self) -> Ints:
        """Return what is in [count], in no order that means anything, as a copy."""
        return self._at(np.arange(self._count))

    def sample(self, size: int, rng: np.random.Generator) -> Ints:
        """Return `size` of the numbers that are in [size], uniformly and with replacement. O(size).

        Raises:
            ArgumentError: `size` is not an integer of at least 1.
            NotReadyError: Nothing is in.
        """
        size = validation.positive_int("size", size)
        if self._count == 0:
            raise errors.NotReadyError("sample found nothing in the set: add numbers first")
        # Half the time of rng.integers, and as even as 53 bits allow. What is below 1, times the count, is below it.
        positions = (rng.random(size) * self._count).astype(np.int64)
        if self._arrays is None and self._count == self._capacity:
            return positions
        return self._at(positions)

    def clear(self) -> None:
        """Take everything out, and make do with an interval again."""
        self._count = 0
        self._arrays = None

    @property
    def is_interval(self) -> bool:
        """Whether a first number and a count say it all."""
        return self._arrays is None

    def restore(self, numbers: Ints, is_interval: bool) -> None:
        """Hold just those numbers [k], in the order in which `numbers` returned them.

        Args:
            numbers: What is in.
            is_interval: What `is_interval` returned then.

        Raises:
            OutOfRangeError: A number is not in [0, capacity). Nothing is in.
            ArgumentError: A number is given twice. Nothing is in.
        """
        self.clear()
        self.add(numbers)
        if not is_interval and self._arrays is None:
            self._arrays = _Arrays(self._capacity, numbers)

    def check(self) -> None:
        """Recount. O(capacity).

        Raises:
            CorruptionError: The arrays do not agree, or the count is impossible.
        """
        if not (0 <= self._count <= self._capacity and 0 <= self._first < self._capacity):
            raise errors.CorruptionError(
                f"a set of {self._capacity} numbers must be at most that many from one of them on, "
                f"found {self._count} from {self._first} on"
            )
        if self._arrays is not None:
            self._arrays.check(self._count)

    def _at(self, positions: Ints) -> Ints:
        """Return the numbers [k] at `positions` [k] in [0, count)."""
        if self._arrays is None:
            return (self._first + positions) % self._capacity
        return self._arrays.numbers[positions].astype(np.int64, copy=False)

    def _follow(self, first: int, numbers: Ints) -> bool:
        """Return whether `numbers` are the cyclic run from `first` on."""
        return bool((numbers == (first + np.arange(len(numbers))) % self._capacity).all())

    def _require_range(self, numbers: Ints) -> None:
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= self._capacity):
            row = int(((numbers < 0) | (numbers >= self._capacity)).argmax())
            raise errors.OutOfRangeError(f"numbers must be in [0, {self._capacity}), got {numbers[row]} in row {row}")


class _Arrays:
    """The two arrays of a set of any numbers; how many are in, the set knows.

    They are zeros where nothing was ever in, so that a large capacity alone takes no memory.
    """

    def __init__(self, capacity: int, members: Ints) -> None:
        dtype = _dtype_for(capacity)
        self.numbers: npt.NDArray[np.int32 | np.int64] = np.zeros(capacity, dtype)
        self.positions: npt.NDArray[np.int32 | np.int64] = np.zeros(capacity, dtype)
        self.add(0, members)

    def add(self, count: int, numbers: Ints) -> None:
        """Put `numbers` [k] behind the `count` that are in."""
        is_in = self.positions[numbers] > 0
        if is_in.any():
            row = int(is_in.argmax())
            raise errors.ArgumentError(f"numbers must not be in the set, got {numbers[row]} in row {row}")
        end = count + len(numbers)
        ranks = np.arange(count + 1, end + 1)
        self.positions[numbers] = ranks
        # A number given twice now has the later of its two positions.
        if (self.positions[numbers] != ranks).any():
            self.positions[numbers] = 0
            raise errors.ArgumentError(f"numbers must be distinct, got {validation.short_repr(numbers)}")
        self.numbers[count:end] = numbers

    def remove(self, count: int, numbers: Ints) -> None:
        """Take `numbers` [k] out of the `count` that are in."""
        holes = self.positions[numbers]
        is_out = holes <= 0
        if is_out.any():
            row = int(is_out.argmax())
            raise errors.ArgumentError(f"numbers must be in the set, got {numbers[row]} in row {row}")
        marks = -1 - np.arange(len(numbers))
        self.positions[numbers] = marks
        # A number given twice now has the later of its two marks.
        if (self.positions[numbers] != marks).any():
            self.positions[numbers] = holes
            raise errors.ArgumentError(f"numbers must be distinct, got {validation.short_repr(numbers)}")
        left = count - len(numbers)
        # Of those that stood last some are out themselves; the others are exactly as many as the holes before them.
        last = self.numbers[left:count]
        movers = last[self.positions[last] > 0]
        holes = holes[holes <= left]
        self.numbers[holes - 1] = movers
        self.positions[movers] = holes

    def check(self, count: int) -> None:
        """Raise CorruptionError if the arrays are not those of `count` numbers."""
        is_wrong = self.positions[self.numbers[:count]] != np.arange(1, count + 1)
        if is_wrong.any():
            rank = int(is_wrong.argmax())
            number = self.numbers[rank]
            raise errors.CorruptionError(
                f"number {number} must stand at {rank}, found it at {self.positions[number] - 1}"
            )
        found = np.count_nonzero(self.positions > 0)
        if found != count:
            raise errors.CorruptionError(f"a set must have as many positions as numbers, {count}, found {found}")


def _dtype_for(capacity: int) -> type[np.int32 | np.int64]:
    """Return the smaller dtype that holds every position and its mark."""
    return np.int32 if capacity < 2**31 else np.int64
