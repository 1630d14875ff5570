"""How often an anchor may be drawn: after `max_times_sampled` draws it retires, and is never drawn once more."""

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.kernels import eligibility
from relive.samplers import sampler as sampler_lib


class DrawLimit:
    """Counts the draws of the anchors in `capacity` slots, if there is a limit.

    Attributes:
        num_spent: Anchors that have retired so far.
    """

    def __init__(self, capacity: int, max_times_sampled: int | None) -> None:
        if max_times_sampled is not None:
            max_times_sampled = validation.positive_int("max_times_sampled", max_times_sampled)
        self._most = max_times_sampled
        self._times = np.zeros(0 if max_times_sampled is None else capacity, np.int64)
        self.num_spent = 0

    def can_draw(self, sampler: sampler_lib.Sampler, size: int) -> bool:
        """Return whether `draw` would return `size` anchors; there is at least one. O(capacity) with a limit."""
        if self._most is None:
            return sampler.can_draw()
        # This is asked at every step while a draw is awaited: no sum where not even fresh anchors would be enough.
        return size <= self._most * len(sampler.anchors) and size <= self._num_left(sampler, self._most)

    def require_draw(self, sampler: sampler_lib.Sampler, size: int) -> None:
        """Raise NotReadyError unless `can_draw`."""
        if not self.can_draw(sampler, size):
            raise errors.NotReadyError(
                sampler.why_not_ready()
                if self._most is None
                else f"sample has {self._num_left(sampler, self._most)} draws left with max_times_sampled = "
                f"{self._most}, and {size} were asked for: add steps first"
            )

    def _num_left(self, sampler: sampler_lib.Sampler, most: int) -> int:
        """Return how many draws the anchors have left together."""
        return int(np.sum(most - self._times[sampler.drawable()]))

    def draw(
        self, sampler: sampler_lib.Sampler, size: int, rng: np.random.Generator, beta: float | None
    ) -> tuple[sampler_lib.Draw, arrays.Floats]:
        """Return `size` anchors that the sampler draws, none of them more often than it may, and their weights [B].

        Draws beyond what an anchor has left are made again, from the other anchors: as if one were drawn after another.
        If anything fails, no draw is counted.

        Args:
            sampler: What draws, with `require_draw` passed.
            size: How many anchors, B.
            rng: The randomness.
            beta: What the sampler's `exponent` returned.
        """
        if self._most is None:
            draw = sampler.draw(size, rng)
            weights = sampler.weights(sampler.importance(draw.probabilities), beta)
            sampler.drawn()
            return draw, weights
        before = self._times.copy()
        slots, probabilities, importance = [], [], []
        try:
            while size:
                draw = sampler.draw(size, rng)
                kept = self._times[draw.slots] + _times_before(draw.slots) < self._most
                drawn = draw.slots[kept]
                slots.append(drawn)
                probabilities.append(draw.probabilities[kept])
                importance.append(sampler.importance(draw.probabilities[kept]))
                np.add.at(self._times, drawn, 1)
                spent = np.unique(drawn[self._times[drawn] == self._most])
                sampler.removed(sampler.anchors.set(eligibility.SPENT, spent)[1])
                size -= len(drawn)
            weights = sampler.weights(np.concatenate(importance), beta)
            sampler.drawn()
        except BaseException:
            spent = np.flatnonzero(before < self._times)
            self._times = before
            sampler.added(sampler.anchors.unset(eligibility.SPENT, spent)[0])
            raise
        self.num_spent += int(np.count_nonzero((self._times == self._most) & (before < self._most)))
        return sampler_lib.Draw(np.concatenate(slots), np.concatenate(probabilities)), weights

    def forget(self, slots: arrays.Ints | int) -> None:
        """Start counting anew in `slots`: other rows come there."""
        if self._most is not None:
            self._times[slots] = 0

    @property
    def most(self) -> int | None:
        """How often an anchor may be drawn; None for any number of times."""
        return self._most

    def times(self, slots: arrays.Ints) -> arrays.Ints:
        """Return how often the anchors in `slots` [k] were drawn; there must be a limit."""
        return self._times[slots]

    def restore(self, slots: arrays.Ints, times: arrays.Ints, num_spent: int) -> None:
        """Set how often the anchors in `slots` [k] were drawn, and how many have retired so far."""
        if self._most is not None:
            self._times[slots] = times
        self.num_spent = num_spent

    def check(self, eligible: eligibility.Eligibility) -> None:
        """Raise CorruptionError if an anchor was drawn too often, or retired too early or not at all."""
        if self._most is None:
            return
        if self._times.max(initial=0) > self._most:
            raise errors.CorruptionError(f"an anchor was drawn more often than max_times_sampled = {self._most}")
        if not np.array_equal(self._times == self._most, eligible.has(eligibility.SPENT, np.arange(len(self._times)))):
            raise errors.CorruptionError("the anchors that count as spent are not those that were drawn so often")


def _times_before(slots: arrays.Ints) -> arrays.Ints:
    """Return for each of `slots` [B] how often the same slot stands before it."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    positions = np.arange(len(slots))
    firsts = np.maximum.accumulate(np.where(begins, positions, 0))
    before = np.empty(len(slots), np.int64)
    before[order] = positions - firsts
    return before
