"""The anchors of a buffer: which rows may be drawn, kept in step with what is written and evicted.

    what happens             asked of the window              told to the sampler
    rows are about to go     which windows are lost?          removed, overwritten
    rows have come           which windows can be read now?   added
    set_eligible is called                                    removed, or added
    a batch is drawn                                          removed, what has been drawn often enough

Eligibility is decided when something changes, so a draw never finds a row in vain.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.kernels import drawn_rows
from relive.kernels import eligibility
from relive.kernels import timeline as timeline_lib
from relive.kernels import timeline_state
from relive.persistence import state as state_lib
from relive.samplers import draw_limit
from relive.samplers import sampler as sampler_lib
from relive.windows import windows

if TYPE_CHECKING:
    from relive.persistence import settings
else:
    settings = imports.lazy_module("relive.persistence.settings")


class Anchors:
    """The anchors among the rows of a timeline; `len` is how many are eligible.

    Args:
        timeline: The rows.
        window: From which of them a window may start.
        sampler: What draws them, once `attach` was called.
        max_times_sampled: How often an anchor may be drawn before it retires; None for any number of times.

    Raises:
        ArgumentError: max_times_sampled breaks its rule.
    """

    def __init__(
        self,
        timeline: timeline_lib.Timeline,
        window: windows.Window[Any],
        sampler: sampler_lib.Sampler,
        max_times_sampled: int | None,
    ) -> None:
        self._timeline = timeline
        self._window = window
        self._draw_limit = draw_limit.DrawLimit(timeline.capacity, max_times_sampled)
        self._loses_more = window.loses_more
        self._older = window.num_older
        self._has_draw_limit = max_times_sampled is not None
        self.eligibility = eligibility.Eligibility(timeline.capacity)
        self.drawn = drawn_rows.DrawnRows(timeline.capacity)
        self.sampler = sampler

    def attach(self) -> None:
        """Make the sampler that of these anchors: the last thing in a constructor that can fail.

        Raises:
            ArgumentError: The sampler belongs to another buffer, or cannot draw with its settings.
        """
        self.sampler.attach(self.eligibility)

    def __len__(self) -> int:
        """Return how many anchors are eligible."""
        return len(self.eligibility)

    @property
    def num_spent(self) -> int:
        """How many anchors have retired so far."""
        return self._draw_limit.num_spent

    def slots(self) -> arrays_lib.Ints:
        """Return where the eligible anchors are, in ascending order."""
        return self.eligibility.slots()

    def is_readable(self, slots: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return from which of `slots` a window can be read, whether or not it may be drawn."""
        return self.eligibility.has(eligibility.READABLE, slots)

    def times_sampled(self, slots: arrays_lib.Ints) -> arrays_lib.Ints | None:
        """Return how often the anchors in `slots` were drawn; None where draws are not counted."""
        return self._draw_limit.times(slots) if self._has_draw_limit else None

    # What happens to the rows.

    def on_evict(self, slots: arrays_lib.Ints) -> None:
        """Take away the anchors that go with the rows in `slots`, which are about to be evicted."""
        if self._loses_more:
            _, left = self.eligibility.unset(eligibility.READABLE, self._window.newly_unreadable(self._timeline, slots))
            self.sampler.removed(left)
        self.discard(slots)

    def discard(self, slots: arrays_lib.Ints) -> None:
        """Forget everything about the rows in `slots`."""
        self.sampler.removed(self.eligibility.forget(slots))
        self.sampler.overwritten(slots)
        self._draw_limit.forget(slots)

    @property
    def turns(self) -> bool:
        """Whether every row of a turn is an anchor at once, where none goes."""
        return self._older is not None and not self._has_draw_limit

    def lost_in_turn(self, slot: int) -> int:
        """Return which anchors go when a turn of the timeline replaces the rows from that slot on; -1 if not as many.

        They are the rows themselves, or with a frame stack those that lose their oldest frame: as many as come, side by
        side, from the returned slot on. -1 also unless each row that comes is an anchor at once.
        """
        older, timeline, eligible = self._older, self._timeline, self.eligibility
        if older is None or self._has_draw_limit:
            return -1
        count = timeline.streams
        if not older:
            return slot if eligible.all_are(eligibility.READABLE, slot, count) else -1
        lost = (slot + older * count) % timeline.capacity
        # A row that has lost its older frames and is no anchor any more; what is lost now is the last that needs it.
        is_usual = (
            timeline.are_streams_in_turn
            and (older + 1) * count <= timeline.capacity
            and lost + count <= timeline.capacity
            and eligible.all_are(0, slot, count)
            and eligible.all_are(eligibility.READABLE, lost, count)
            and timeline.are_of_one_episode(slot, lost, count)
        )
        return lost if is_usual else -1

    def turned(self, slot: int, lost: int | None) -> None:
        """Take in the anchors of a turn that came to the rows from that slot on, and drop those that it replaced."""
        count, sampler = self._timeline.streams, self.sampler
        if lost is None:
            self.eligibility.enter(slot, count)
            sampler.entered(slot, count)
        elif sampler.takes_turns:
            if lost != slot:
                self.eligibility.leave(lost, count)
                self.eligibility.enter(slot, count)
            sampler.turned(lost, slot, count)
        else:
            self.eligibility.leave(lost, count)
            sampler.left(lost, slot, count)
            self.eligibility.enter(slot, count)
            sampler.entered(slot, count)

    def evicting_one(self, slot: int) -> None:
        """Take away the anchors that go with the row in `slot`, the oldest, which is about to be evicted."""
        sampler = self.sampler
        if self._loses_more:
            for lost in self._window.newly_unreadable_one(self._timeline, slot):
                if self.eligibility.unset_readable(lost):
                    sampler.removed_one(lost)
        if self.eligibility.forget_one(slot):
            sampler.removed_one(slot)
        sampler.overwritten_one(slot)
        if self._has_draw_limit:
            self._draw_limit.forget(slot)

    def written_one(self, slot: int, completed: Sequence[int], ended: Sequence[int]) -> None:
        """Take in the anchors that a row in `slot` completes; the rest is as in a `timeline.Change`."""
        for readable in self._window.readable_now_one(self._timeline, slot, completed, ended):
            if self.eligibility.set_readable(readable):
                self.sampler.added_one(readable)

    def on_append(self, change: timeline_lib.Change) -> None:
        """Take in the anchors that a change of the rows completes."""
        slots = self._window.readable_now(self._timeline, change)
        entered, _ = self.eligibility.set(eligibility.READABLE, slots)
        self.sampler.added(entered)

    def set_barred(self, slots: arrays_lib.Ints, is_barred: bool) -> None:
        """Take the anchors in `slots`, which are distinct, out of the draws whatever they are, or let them in."""
        change = self.eligibility.set if is_barred else self.eligibility.unset
        entered, left = change(eligibility.BARRED, slots)
        self.sampler.added(entered)
        self.sampler.removed(left)

    # Drawing.

    def num_never_drawn(self) -> int:
        """Return how many of the eligible anchors no draw has had. O(capacity)."""
        self.drawn.flush(self._timeline.next_key)
        return self.drawn.num_missing(self.eligibility.mask())

    def can_draw(self, size: int) -> bool:
        """Return whether `draw` would return that many. O(capacity) with max_times_sampled."""
        return len(self) > 0 and self._draw_limit.can_draw(self.sampler, size)

    def require_any(self) -> None:
        """Raise NotReadyError if nothing is eligible."""
        if not len(self):
            raise errors.NotReadyError(f"sample has nothing to draw: {self._shortfall()}")

    def require_draw(self, size: int) -> None:
        """Raise NotReadyError if the anchors, of which there is one, may not be drawn so often."""
        self._draw_limit.require_draw(self.sampler, size)

    def draw(
        self, size: int, rng: np.random.Generator, beta: float | None
    ) -> tuple[sampler_lib.Draw, arrays_lib.Floats]:
        """Return `size` anchors and their importance weights [size]; if the sampler fails, no draw is counted.

        Args:
            size: How many, with `require_draw` passed.
            rng: The randomness.
            beta: What the sampler's `exponent` returned.
        """
        draw, weights = self._draw_limit.draw(self.sampler, size, rng, beta)
        self.drawn.record(draw.slots, self._timeline.next_key)
        return draw, weights

    def _shortfall(self) -> str:
        """Return why no anchor is eligible."""
        if not len(self._timeline):
            return "no step is stored"
        if self.is_readable(self._timeline.alive_slots()).any():
            return "every anchor was made ineligible, or drawn max_times_sampled times"
        return self._window.why_not_ready(self._timeline)

    # As a whole.

    def state(self, slots: arrays_lib.Ints) -> state_lib.State:
        """Return what a checkpoint keeps of the rows in `slots`, oldest first [N].

        That a window can be read is not kept: it follows from the rows.
        """
        self.drawn.flush(self._timeline.next_key)
        arrays: dict[str, npt.NDArray[Any]] = {"barred": self.eligibility.has(eligibility.BARRED, slots)}
        times = self.times_sampled(slots)
        arrays |= {"drawn": self.drawn.has(slots)} if times is None else {"times_sampled": times}
        arrays |= self.drawn.last()
        sampler = self.sampler.state(slots)
        arrays |= {f"sampler/{name}": array for name, array in sampler.pop("arrays").items()}
        return {"num_spent": self.num_spent, "sampler": sampler, "arrays": arrays}

    def check_state(self, given: state_lib.StateReader, rows: int) -> None:
        """Raise CheckpointError if that is no state of the anchors among so many rows."""
        sampled, most = given.part("counters").integer("sampled"), self._draw_limit.most
        given.booleans("barred", rows)
        num_drawn = num_spent = 0
        if most is not None:
            times = given.integers("times_sampled", rows, 0, most)
            num_drawn, num_spent = int(times.sum()), int(np.count_nonzero(times == most))
        elif _knows_draws(given):
            num_drawn = int(np.count_nonzero(given.booleans("drawn", rows)))
        if num_drawn > sampled:
            raise errors.CheckpointError(
                f"counters/sampled must be at least the {num_drawn} draws of rows, got {sampled}"
            )
        given.integer("num_spent", num_spent, num_spent if most is None else given.integer("next_key"))
        _last_draws(given)
        self.sampler.check_state(given.part("sampler"), rows)

    @property
    def max_times_sampled(self) -> int | None:
        """How often an anchor may be drawn before it retires; None for any number of times."""
        return self._draw_limit.most

    def rehearse(self, rows: timeline_state.TimelineState, given: state_lib.StateReader) -> None:
        """Raise what `restore` would raise with those rows, by restoring a twin; nothing changes here."""
        timeline = timeline_lib.Timeline(self._timeline.capacity, self._timeline.streams)
        timeline.restore(rows)
        twin = Anchors(timeline, self._window, settings.twin(self.sampler), self.max_times_sampled)
        twin.attach()
        twin.restore(given)

    def restore(self, given: state_lib.StateReader) -> None:
        """Restore a state, with the rows that the timeline has now; nothing was known of them."""
        slots = self._timeline.alive_slots()
        facts = np.where(self._window.is_readable(self._timeline, slots), eligibility.READABLE, 0).astype(np.uint8)
        facts[given.booleans("barred", len(slots))] |= eligibility.BARRED
        times = np.zeros(len(slots), np.int64)
        if self._draw_limit.most is not None:
            times = given.integers("times_sampled", len(slots), 0, self._draw_limit.most)
            facts[times == self._draw_limit.most] |= eligibility.SPENT
        elif _knows_draws(given):
            times = given.booleans("drawn", len(slots)).astype(np.int64)
        self.drawn.restore(slots[times > 0], self._timeline.next_key, *_last_draws(given))
        self._draw_limit.restore(slots, times, given.integer("num_spent"))
        self.eligibility.restore(slots, facts)
        self.sampler.restore(given.part("sampler"), slots)

    def check(self) -> None:
        """Raise CorruptionError if what may be drawn is not what the rows, the users and the draws make of it."""
        alive = self._timeline.alive_slots()
        readable = np.zeros(self._timeline.capacity, np.bool_)
        readable[alive] = self._window.is_readable(self._timeline, alive)
        if not np.array_equal(self.is_readable(np.arange(len(readable))), readable):
            raise errors.CorruptionError("the anchors that count as readable are not those that can be read")
        self.eligibility.check()
        self._draw_limit.check(self.eligibility)
        self.drawn.flush(self._timeline.next_key)
        times = self.times_sampled(alive)
        if times is not None and self.drawn.has(alive[times == 0]).any():
            raise errors.CorruptionError("a row counts as drawn, and no draw of it is counted")
        self.sampler.check()


def _knows_draws(given: state_lib.StateReader) -> bool:
    """Return whether a state says which rows were drawn: it has all arrays about draws then, and else none."""
    return any(given.has_array(name) for name in ("drawn", "draw_key", "draw_age"))


def _last_draws(given: state_lib.StateReader) -> tuple[arrays_lib.Ints, arrays_lib.Ints]:
    """Return keys and ages of the last draws."""
    if not _knows_draws(given):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return drawn_rows.checked_last(given, given.integer("next_key"))
