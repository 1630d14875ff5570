"""Draws from a buffer: tracks which rows are eligible and notifies the sampler of changes.

    what happens             what it does to anchors
    rows come and go         `kernels.append`, by the rule of the window
    set_eligible is called   BARRED
    a batch is drawn         SPENT, where draws are limited

Eligibility is decided when something changes, so a draw never has to reject a row. What has changed is listed: a
sampler with hooks is told at once, and one with weights catches up when it needs them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.common import validation
from relive.kernels import append
from relive.persistence import registry
from relive.persistence import state as state_lib
from relive.samplers import anchors as anchors_lib
from relive.samplers import sampler as sampler_lib
from relive.storage import steps as steps_lib
from relive.windows import window as window_lib

_MOST_TIMES = 2**31 - 1
_NO_SLOTS: arrays_lib.Ints = np.zeros(0, np.int64)


class Draws(duplicates.CopiedWhole):
    """The draws from one buffer, once the sampler is attached to `anchors`.

    Attributes:
        anchors: The rows that may be drawn.
        num_spent: How many anchors have retired so far.
    """

    def __init__(
        self,
        store: steps_lib.StepStore,
        window: window_lib.Window[Any],
        sampler: sampler_lib.Sampler,
        max_times_sampled: int | None,
    ) -> None:
        if max_times_sampled is not None:
            max_times_sampled = validation.positive_int("max_times_sampled", max_times_sampled)
            if max_times_sampled > _MOST_TIMES:
                rule = f"max_times_sampled must be at most {_MOST_TIMES}, or None for any number of times"
                raise errors.ArgumentError(f"{rule}, got {max_times_sampled}")
        self._store, self._window = store, window
        self.max_times_sampled = max_times_sampled
        self.anchors = anchors_lib.Anchors(store.rows, store.read_rows)
        self.sampler = sampler
        self.num_spent = 0
        self._times: npt.NDArray[np.int32] = np.zeros(0 if max_times_sampled is None else store.capacity, np.int32)
        self._has_hooks = sampler._has_hooks
        self.follows_writes = self._has_hooks or max_times_sampled is not None
        """Whether there is something to do after each write."""

    @property
    def tell(self) -> steps_lib.Tell | None:
        """Calls the hooks of the sampler for all that has changed since they were last called; None if it has none."""
        return self.sampler._catch_up if self._has_hooks else None

    def times_sampled(self, slots: arrays_lib.Ints) -> arrays_lib.Ints | None:
        """Return how often the anchors in `slots` were drawn; None if draws are not counted."""
        return None if self.max_times_sampled is None else self._times[slots].astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the priorities, of their sums, and of how often anchors were drawn."""
        return self.sampler._nbytes + self._times.nbytes

    # Changes of the rows.

    def count_anew(self, key: int, count: int) -> None:
        """Take rows from `key` on for new ones, which were not drawn yet."""
        for run in append.slices_from(key, count, self._store.capacity):
            self._times[run].fill(0)

    def set_barred(self, slots: arrays_lib.Ints, is_barred: bool, record: Callable[[], None] | None = None) -> None:
        """Bar the anchors in `slots` from being drawn, or lift the bar; `record` is called at the end.

        If anything raises, no anchor has changed.
        """
        slots = np.unique(slots)
        changed = slots[self.anchors.has(append.BARRED, slots) != is_barred]
        flags = self._store.flags.take(changed)
        self.anchors.set(append.BARRED, changed, is_barred)
        try:
            if self.tell is not None:
                self.tell()
            if record is not None:
                record()
        except BaseException:
            self.anchors.set(append.BARRED, changed, not is_barred)
            self._store.flags[changed] = flags  # Which have no first priority yet.
            raise

    def clear(self) -> None:
        """Remove every row."""
        self._store.clear()
        if self.tell is not None:
            self.tell()

    # Drawing.

    def can_draw(self, size: int) -> bool:
        """Return whether `_draw_checked` would return that many. O(capacity) with max_times_sampled."""
        most = self.max_times_sampled
        if most is None:
            return len(self.anchors) > 0 and self.sampler.can_draw()
        # Called at every step while a draw is awaited, so skip the sum if not even fresh anchors would suffice.
        return size <= most * len(self.anchors) and size <= self._num_left(most)

    def require_any(self) -> None:
        """Raise NotReadyError, which says why, if nothing is eligible."""
        if len(self.anchors):
            return
        if not len(self._store):
            why = "no step is stored"
        elif self.anchors.has(append.READABLE, self._store.alive_slots()).any():
            why = "every anchor was made ineligible, or drawn max_times_sampled times"
        else:
            why = self._window._why_not_ready(self._store)
        raise errors.NotReadyError(f"sample has nothing to draw: {why}")

    def _num_left(self, most: int) -> int:
        """Return how many draws all anchors together have left."""
        return int(np.sum(most - self._times[self.sampler._drawable()].astype(np.int64)))

    def draw(
        self, size: int, rng: np.random.Generator, beta: float | None
    ) -> tuple[arrays_lib.Slots, arrays_lib.Floats, arrays_lib.Floats]:
        """Return `size` anchors, their probabilities and importance weights [size]; `count` or `take_back` follows.

        Draws beyond an anchor's limit are redrawn from the other anchors, as if drawn one at a time. NotReadyError is
        raised if too few are left. `beta` is what the sampler's `_exponent_of` returned; None for its own.
        """
        if not self.anchors.num.item(append.ELIGIBLE):
            self.require_any()
        if self.tell is not None:
            self.tell()  # Of what a call that failed has taken back.
        most = self.max_times_sampled
        if most is None:
            slots, probabilities = self.sampler._draw_checked(size, rng)
            masses, unit = self.sampler._importance_of(slots, probabilities)
            return slots, probabilities, self.sampler._importance_weights(masses, unit, beta)
        if not self.can_draw(size):
            rule = f"sample has {self._num_left(most)} draws left with max_times_sampled = {most}"
            raise errors.NotReadyError(f"{rule}, and {size} were asked for: add steps first")
        parts, of_each, masses_of, units_of = [_NO_SLOTS], [], [], []
        try:
            while size:
                draw = self.sampler._draw_checked(size, rng)
                kept = self._times[draw.slots] + _times_before(draw.slots) < most
                drawn = draw.slots[kept]
                of_each.append(draw.probabilities[kept])
                masses, unit = self.sampler._importance_of(drawn, of_each[-1])
                masses_of.append(masses)
                units_of.append(np.full(len(drawn), unit))
                np.add.at(self._times, drawn, 1)
                parts.append(drawn)
                self.anchors.set(append.SPENT, np.unique(drawn[self._times[drawn] == most]))
                if self.tell is not None:
                    self.tell()
                size -= len(drawn)
            weights = self.sampler._importance_weights(np.concatenate(masses_of), np.concatenate(units_of), beta)
            return np.concatenate(parts), np.concatenate(of_each), weights
        except BaseException:
            self.take_back(np.concatenate(parts))
            raise

    def count(self, slots: arrays_lib.Ints) -> int:
        """Count a draw of the anchors in `slots` [B], and return B."""
        if self.max_times_sampled is not None:
            self.num_spent += int(np.count_nonzero(self._times[np.unique(slots)] == self.max_times_sampled))
        self.sampler._drawn()
        return len(slots)

    def take_back(self, slots: arrays_lib.Ints) -> None:
        """Make the anchors in `slots` [B] as if they had not been drawn, but for the generator."""
        if self.max_times_sampled is not None:
            np.subtract.at(self._times, slots, 1)
            self.anchors.set(append.SPENT, np.unique(slots), False)
            if self.tell is not None:
                self.tell()

    # As a whole.

    def state_dict(self, slots: arrays_lib.Ints) -> state_lib.State:
        """Return what a checkpoint keeps of the rows in `slots`, oldest first [N].

        Readability is not saved: it follows from the rows.
        """
        arrays: dict[str, npt.NDArray[Any]] = {"barred": self.anchors.has(append.BARRED, slots)}
        times = self.times_sampled(slots)
        if times is not None:
            arrays["times_sampled"] = times
        sampler = self.sampler.state_dict(slots)
        arrays |= {f"sampler/{name}": array for name, array in sampler.pop("arrays").items()}
        return {"num_spent": self.num_spent, "sampler": sampler, "arrays": arrays}

    def twin(self, store: steps_lib.StepStore) -> "Draws":
        """Return the draws from another store with the same settings, and a sampler of its own."""
        sampler = type(self.sampler)(**registry.settings_of(self.sampler, "sampler cannot be saved: "))
        draws = Draws(store, self._window, sampler, self.max_times_sampled)
        sampler._attach(draws.anchors)
        return draws

    def load_state_dict(self, given: state_lib.StateReader) -> None:
        """Restore a state for the rows that the store has now; raise CheckpointError if it is invalid."""
        store, most, num_spent = self._store, self.max_times_sampled, 0
        slots = store.alive_slots()
        flags = np.where(store.is_readable(slots), append.READABLE, 0).astype(np.uint8)
        flags[given.booleans("barred", len(slots))] |= append.BARRED
        if most is not None:
            times = given.integers("times_sampled", len(slots), 0, most)
            num_spent, num_drawn = int(np.count_nonzero(times == most)), int(times.sum())
            if num_drawn > (sampled := given.part("counters").integer("sampled")):
                rule = f"counters/sampled must be at least the {num_drawn} draws of rows"
                raise errors.CheckpointError(f"{rule}, got {sampled}")
            flags[times == most] |= append.SPENT
            self._times[slots] = times
        self.num_spent = given.integer("num_spent", num_spent, num_spent if most is None else store.next_key)
        store.flags[slots] |= flags
        self.anchors.recount(slots)
        self.sampler.load_state_dict(given.part("sampler"), slots)
        self.sampler._begin_telling(slots)

    def check(self) -> None:
        """Raise CorruptionError if eligibility disagrees with the rows, the barred anchors or the draws."""
        slots = self._store.alive_slots()
        if not np.array_equal(self.anchors.has(append.READABLE, slots), self._store.is_readable(slots)):
            raise errors.CorruptionError("the anchors that count as readable are not those that can be read")
        self.anchors.check()
        most = self.max_times_sampled
        if most is not None:
            times = self._times[slots]
            if times.max(initial=0) > most:
                raise errors.CorruptionError(f"an anchor was drawn more often than max_times_sampled = {most}")
            if not np.array_equal(times == most, self.anchors.has(append.SPENT, slots)):
                raise errors.CorruptionError("the anchors that count as spent are not those that were drawn so often")
        self.sampler.check()


def _times_before(slots: arrays_lib.Ints) -> arrays_lib.Ints:
    """Return how often each of `slots` [B] occurred before in the array."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    before = np.empty(len(slots), np.int64)
    before[order] = np.arange(len(slots)) - np.searchsorted(ordered, ordered)
    return before
