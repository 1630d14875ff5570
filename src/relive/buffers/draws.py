"""Draws from a buffer: which rows are eligible, whether a batch may be drawn of them, and how many were.

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
from relive.kernels import append
from relive.persistence import checkpointable
from relive.persistence import registry
from relive.persistence import state as state_lib
from relive.samplers import anchors as anchors_lib
from relive.samplers import limited
from relive.samplers import sampler as sampler_lib
from relive.storage import steps as steps_lib
from relive.windows import window as window_lib


class Draws(duplicates.CopiedWhole):
    """The draws from one buffer, once the sampler is attached to `anchors`; `len` is how many anchors may be drawn.

    Attributes:
        anchors: The rows that may be drawn.
        sampled: How many were drawn so far.
        stale_keys: Keys whose step was no longer stored when something was set for it.
    """

    def __init__(
        self,
        store: steps_lib.StepStore,
        window: window_lib.Window[Any],
        sampler: sampler_lib.Sampler,
        max_times_sampled: int | None,
    ) -> None:
        self._store, self._window = store, window
        self.anchors = anchors_lib.Anchors(store.rows, store.read_rows)
        self.sampler = sampler
        self.limited: limited.LimitedSampler | None = None
        if max_times_sampled is not None:
            most = limited.checked_limit(max_times_sampled)
            self.limited = limited.LimitedSampler(sampler, most, store.capacity)
        self.sampled = self.stale_keys = 0

    def __len__(self) -> int:
        """Return how many anchors may be drawn now."""
        return self.anchors.num.item(append.ELIGIBLE)

    @property
    def inserted(self) -> int:
        """How many steps were added so far."""
        return self._store.next_key

    @property
    def max_times_sampled(self) -> int | None:
        """How often an anchor may be drawn; None for no limit."""
        return None if self.limited is None else self.limited.most

    @property
    def num_spent(self) -> int:
        """How many anchors have retired so far."""
        return 0 if self.limited is None else self.limited.num_spent

    @property
    def tell(self) -> steps_lib.Tell | None:
        """Calls the hooks of the sampler for all that has changed since they were last called; None if it has none."""
        return self.sampler.catch_up if self.sampler.has_hooks else None

    def begin(self, key: int, count: int) -> None:
        """Take rows from `key` on for new ones, which were not drawn yet."""
        if self.limited is not None:
            self.limited.begin(key, count)

    @property
    def nbytes(self) -> int:
        """Bytes of the priorities, of their sums, and of how often anchors were drawn."""
        return self.sampler.nbytes + (0 if self.limited is None else self.limited.nbytes)

    def set_barred(self, slots: arrays_lib.Ints, is_barred: bool, record: Callable[[], None] | None = None) -> None:
        """Bar the anchors in `slots` from being drawn, or lift the bar; `record` is called at the end.

        If anything raises, no anchor has changed.
        """
        slots = np.unique(slots)
        changed = slots[self.anchors.has(append.BARRED, slots) != is_barred]
        flags = self._store.flags.take(changed)
        self.anchors.set(append.BARRED, changed, is_barred)
        try:
            self.sampler.tell()
            if record is not None:
                record()
        except BaseException:
            self.anchors.set(append.BARRED, changed, not is_barred)
            self._store.flags[changed] = flags  # Which have no first priority yet.
            raise

    def clear(self) -> None:
        """Remove every row."""
        self._store.clear()
        self.sampler.tell()

    # Drawing.

    def can_draw(self, size: int) -> bool:
        """Return whether `draw` would return that many. O(1); see LimitedSampler."""
        return len(self) > 0 and (self.sampler.can_draw() if self.limited is None else self.limited.can_draw(size))

    def require_any(self) -> None:
        """Raise NotReadyError, which says why, if nothing is eligible."""
        if len(self):
            return
        if not len(self._store):
            why = "no step is stored"
        elif self.anchors.has(append.READABLE, self._store.alive_slots()).any():
            why = "every anchor was made ineligible, or drawn max_times_sampled times"
        else:
            why = self._window.why_not_ready(self._store)
        raise errors.NotReadyError(f"sample has nothing to draw: {why}")

    def draw(self, size: int, rng: np.random.Generator, beta: float | None) -> sampler_lib.Weighted:
        """Return what `draw` of the sampler does, within max_times_sampled; `take_back` may follow."""
        if not self.anchors.num.item(append.ELIGIBLE):
            self.require_any()
        if self.sampler.has_hooks:
            self.sampler.catch_up()  # With what a call that failed has taken back.
        drawn = (self.limited or self.sampler).draw(size, rng, beta)
        self.sampled += size
        return drawn

    def take_back(self, slots: arrays_lib.Slots) -> None:
        """Make all as if the last draw, which was of `slots`, had not been made, but for the generator."""
        self.sampled -= len(slots)
        (self.limited or self.sampler).take_back(slots)

    # As a whole.

    def state_dict(self, slots: arrays_lib.Ints) -> state_lib.State:
        """Return what a checkpoint keeps of the rows in `slots`, oldest first [N].

        Readability is not saved: it follows from the rows.
        """
        arrays: dict[str, npt.NDArray[Any]] = {"barred": self.anchors.has(append.BARRED, slots)}
        if self.limited is not None:
            arrays["times_sampled"] = self.limited.times(slots)
        sampler = self.sampler.state_dict(slots)
        arrays |= {f"sampler/{name}": array for name, array in sampler.pop("arrays").items()}
        return {"num_spent": self.num_spent, "sampler": sampler, "arrays": arrays}

    def twin(self, store: steps_lib.StepStore) -> "Draws":
        """Return the draws from another store with the same settings, and a sampler of its own."""
        sampler = type(self.sampler)(**registry.settings_of(self.sampler, "sampler cannot be saved: "))
        draws = Draws(store, self._window, sampler, self.max_times_sampled)
        sampler.attach(draws.anchors)
        return draws

    def keep_sampler(self, own: sampler_lib.Sampler) -> None:
        """Go on with a sampler that a user may hold, which becomes what the one here is."""
        self.sampler = checkpointable.become(own, self.sampler)
        if self.limited is not None:
            self.limited.sampler = self.sampler

    def load_state_dict(self, given: state_lib.StateReader) -> None:
        """Restore a state for the rows that the store has now; raise CheckpointError if it is invalid."""
        store, counters = self._store, given.part("counters")
        self.sampled = counters.integer("sampled", 0, state_lib.MOST)
        self.stale_keys = counters.integer("stale_keys", 0, state_lib.MOST)
        slots = store.alive_slots()
        flags = given.booleans("barred", len(slots)) * np.uint8(append.BARRED)
        if self.limited is None:
            given.integer("num_spent", 0, 0)
        else:
            times = given.integers("times_sampled", len(slots), 0, self.limited.most)
            num_drawn = int(times.sum())
            if num_drawn > self.sampled:
                rule = f"counters/sampled must be at least the {num_drawn} draws of rows"
                raise errors.CheckpointError(f"{rule}, got {self.sampled}")
            is_spent = times == self.limited.most
            flags[is_spent] |= append.SPENT
            self.limited.load(times, slots)
            self.limited.num_spent = given.integer("num_spent", int(np.count_nonzero(is_spent)), store.next_key)
        if flags.any():
            store.flags[slots] |= flags
        self.anchors.recount(slots)
        self.sampler.restore(given.part("sampler"), slots)

    def check(self) -> None:
        """Raise CorruptionError if eligibility disagrees with the rows, the barred anchors or the draws."""
        slots = self._store.alive_slots()
        if not np.array_equal(self.anchors.has(append.READABLE, slots), self._store.is_readable(slots)):
            raise errors.CorruptionError("the anchors that count as readable are not those that can be read")
        self.anchors.check()
        if self.limited is not None:
            self.limited.check(slots)
        self.sampler.check()
