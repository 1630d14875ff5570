"""LimitedSampler: a sampler around another one, which draws each anchor at most so many times.

    times      1 2 0 2        how often each anchor was drawn
    flags      . S . S        with a limit of 2; a spent one is not eligible any more

A draw beyond the limit of its anchor is made anew from the others, as if anchors were drawn one by one.
"""

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.common import validation
from relive.kernels import append
from relive.samplers import sampler as sampler_lib

_MOST_TIMES = 2**31 - 1


def checked_limit(most: object) -> int:
    """Return `max_times_sampled` as an int; raise ArgumentError if it is not one that can be counted to."""
    most = validation.positive_int("max_times_sampled", most)
    if most > _MOST_TIMES:
        rule = f"max_times_sampled must be at most {_MOST_TIMES}, or None for any number of times"
        raise errors.ArgumentError(f"{rule}, got {most}")
    return most


class LimitedSampler(duplicates.CopiedWhole):
    """Draws from another sampler, each anchor at most `most` times.

    Args:
        sampler: The other sampler.
        most: The limit.
        capacity: Number of slots.

    Attributes:
        sampler: The other sampler, which is attached to the anchors.
        num_spent: How many anchors have retired so far.
    """

    def __init__(self, sampler: sampler_lib.Sampler, most: int, capacity: int) -> None:
        self.sampler, self.most, self.num_spent = sampler, most, 0
        self._times: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of how often the anchors were drawn."""
        return self._times.nbytes

    def times(self, slots: arrays_lib.Slots) -> arrays_lib.Ints:
        """Return how often the anchors in `slots` were drawn."""
        return self._times[slots].astype(np.int64)

    def begin(self, key: int, count: int) -> None:
        """Take rows from `key` on for new ones, which were not drawn yet."""
        for run in append.slices_from(key, count, len(self._times)):
            self._times[run].fill(0)

    def can_draw(self, size: int) -> bool:
        """Return whether `draw` would return that many. O(1) while there are as many anchors, else O(capacity)."""
        num_eligible = len(self.sampler.anchors)
        if size <= num_eligible and self.sampler.draws_all:
            return True
        return size <= self.most * num_eligible and size <= self._num_left()

    def _num_left(self) -> int:
        """Return how many draws all anchors together have left."""
        return int(np.sum(self.most - self.times(self.sampler.drawable())))

    def draw(self, size: int, rng: np.random.Generator, beta: float | None = None) -> sampler_lib.Weighted:
        """Return what `draw` of the other sampler does, within the limit; see Sampler.

        Raises:
            NotReadyError: Too few draws are left; nothing has changed.
        """
        if not self.can_draw(size):
            rule = f"sample has {self._num_left()} draws left with max_times_sampled = {self.most}"
            raise errors.NotReadyError(f"{rule}, and {size} were asked for: add steps first")
        sampler, left = self.sampler, size
        parts, columns = [np.zeros(0, np.int64)], []
        try:
            while left:
                draw = sampler._draw(left, rng)
                drawn, probabilities = sampler._checked(draw, left) if sampler._is_checked else draw
                is_kept = self._times[drawn] + _times_before(drawn) < self.most
                drawn, probabilities = drawn[is_kept], probabilities[is_kept]
                shares = [np.broadcast_to(share, len(drawn)) for share in sampler._shares(drawn, probabilities)]
                columns.append([probabilities, *shares])
                np.add.at(self._times, drawn, 1)
                parts.append(drawn)
                sampler.anchors.set(append.SPENT, self._spent_of(drawn))
                sampler.tell()
                left -= len(drawn)
            slots = np.concatenate(parts)
            probabilities, *joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
            weights, num_spent = sampler._weighted(tuple(joined), beta), len(self._spent_of(slots))
        except BaseException:
            self._restore(np.concatenate(parts))
            raise
        sampler._ticks += 1
        self.num_spent += num_spent
        return slots, probabilities, weights

    def take_back(self, slots: arrays_lib.Slots) -> None:
        """Count the last draw, which was of `slots`, as not made."""
        self.num_spent -= len(self._spent_of(slots))
        self.sampler.take_back(slots)
        self._restore(slots)

    def _spent_of(self, slots: arrays_lib.Slots) -> arrays_lib.Slots:
        """Return the distinct ones of `slots` that were drawn as often as they may be."""
        slots = np.unique(slots)
        spent: arrays_lib.Slots = slots[self._times[slots] == self.most]
        return spent

    def _restore(self, slots: arrays_lib.Slots) -> None:
        np.subtract.at(self._times, slots, 1)
        self.sampler.anchors.set(append.SPENT, np.unique(slots), False)
        self.sampler.tell()

    def load(self, times: arrays_lib.Ints, slots: arrays_lib.Slots) -> None:
        """Take over how often the anchors in `slots`, the only ones, were drawn."""
        self._times[slots] = times

    def check(self, slots: arrays_lib.Slots) -> None:
        """Raise CorruptionError if the rows in `slots` that count as spent are not those that were drawn so often."""
        times = self._times[slots]
        if times.max(initial=0) > self.most:
            raise errors.CorruptionError(f"an anchor was drawn more often than max_times_sampled = {self.most}")
        if not np.array_equal(times == self.most, self.sampler.anchors.has(append.SPENT, slots)):
            raise errors.CorruptionError("the anchors that count as spent are not those that were drawn so often")


def _times_before(slots: arrays_lib.Ints) -> arrays_lib.Ints:
    """Return how often each of `slots` [B] occurred before in the array."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    before = np.empty(len(slots), np.int64)
    before[order] = np.arange(len(slots)) - np.searchsorted(ordered, ordered)
    return before
