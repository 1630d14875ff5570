"""The anchors of a buffer: which rows may be drawn, kept in step with what is written and evicted.

    what happens             asked of the window              said to the sampler
    rows are about to go     which windows are lost?          removed, overwritten
    rows have come           which windows can be read now?   added
    a user says no, or yes                                    removed, or added
    a batch is drawn                                          removed, what has been drawn often enough

Eligibility is decided when something changes, so a draw never finds a row in vain.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import draw_limit
from relive import eligibility
from relive import errors
from relive import samplers
from relive import timeline as timeline_lib
from relive import windows

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class Anchors:
    """The anchors among the rows of a timeline; `len` is how many are eligible.

    Args:
        timeline: The rows.
        window: From which of them a window may start.
        sampler: What draws them.
        max_times_sampled: How often an anchor may be drawn before it retires; None for any number of times.

    Raises:
        ArgumentError: The sampler belongs to another buffer, or max_times_sampled breaks its rule.
    """

    def __init__(
        self,
        timeline: timeline_lib.Timeline,
        window: windows.Window[Any],
        sampler: samplers.Sampler,
        max_times_sampled: int | None,
    ) -> None:
        self._timeline = timeline
        self._window = window
        self._draw_limit = draw_limit.DrawLimit(timeline.capacity, max_times_sampled)
        self.eligibility = eligibility.Eligibility(timeline.capacity)
        self.sampler = sampler
        sampler.attach(self.eligibility)

    def __len__(self) -> int:
        """Answers how many anchors are eligible."""
        return len(self.eligibility)

    @property
    def num_spent(self) -> int:
        """How many anchors have retired so far."""
        return self._draw_limit.num_spent

    def slots(self) -> Ints:
        """Answers where the eligible anchors are, in ascending order."""
        return self.eligibility.slots()

    def is_readable(self, slots: Ints) -> Bools:
        """Answers from which of `slots` a window can be read, whether or not it may be drawn."""
        return self.eligibility.has(eligibility.READABLE, slots)

    # What happens to the rows.

    def evicting(self, slots: Ints) -> None:
        """Hears that the rows in `slots` are about to go."""
        _, left = self.eligibility.unset(eligibility.READABLE, self._window.lost(self._timeline, slots))
        self.sampler.removed(left)
        self.forgetting(slots)

    def forgetting(self, slots: Ints) -> None:
        """Hears that nothing is to be remembered of the rows in `slots`."""
        self.sampler.removed(self.eligibility.forget(slots))
        self.sampler.overwritten(slots)
        self._draw_limit.forget(slots)

    def written(self, change: timeline_lib.Change) -> None:
        """Hears which rows have come."""
        slots = self._window.candidates(self._timeline, change)
        slots = slots[self._window.is_readable(self._timeline, slots)]
        entered, _ = self.eligibility.set(eligibility.READABLE, slots)
        self.sampler.added(entered)

    def set_barred(self, slots: Ints, is_barred: bool) -> None:
        """Takes the anchors in `slots`, which are distinct, out of the draws whatever they are, or lets them in."""
        change = self.eligibility.set if is_barred else self.eligibility.unset
        entered, left = change(eligibility.BARRED, slots)
        self.sampler.added(entered)
        self.sampler.removed(left)

    # Drawing.

    def can_draw(self, size: int) -> bool:
        """Answers whether `draw` would answer that many. O(capacity) with max_times_sampled."""
        return len(self) > 0 and self._draw_limit.can_draw(self.sampler, size)

    def draw(self, size: int, rng: np.random.Generator) -> tuple[samplers.Draw, samplers.Floats]:
        """Answers `size` anchors, and their importance when they were drawn.

        Raises:
            NotReadyError: Nothing is eligible, or it may not be drawn so often. Nothing has changed.
        """
        if not len(self):
            raise errors.NotReadyError(f"sample has nothing to draw: {self._shortfall()}")
        return self._draw_limit.draw(self.sampler, size, rng)

    def _shortfall(self) -> str:
        """Answers why no anchor is eligible."""
        if not len(self._timeline):
            return "no step is stored"
        if self.is_readable(self._timeline.alive_slots()).any():
            return "every anchor was made ineligible, or drawn max_times_sampled times"
        return self._window.shortfall(self._timeline)

    def check(self) -> None:
        """Raises CorruptionError if what may be drawn is not what the rows, the users and the draws make of it."""
        alive = self._timeline.alive_slots()
        readable = np.zeros(self._timeline.capacity, np.bool_)
        readable[alive] = self._window.is_readable(self._timeline, alive)
        if not np.array_equal(self.is_readable(np.arange(len(readable))), readable):
            raise errors.CorruptionError("the anchors that count as readable are not those that can be read")
        self.eligibility.check()
        self._draw_limit.check(self.eligibility)
        self.sampler.check()
