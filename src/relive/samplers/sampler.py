"""Samplers draw anchors, by slot. The buffer tells them which anchors there are, and checks what they draw.

A custom sampler is a subclass with one method, `_draw`. To keep track of the anchors it may override three hooks:

    _added         anchors became eligible: they may be drawn from now on
    _removed       they ceased to be: they must not be drawn
    _overwritten   other rows come to their slots: what was known of the old rows is void

The buffer calls the public methods, which check; a subclass overrides the underscored ones. A sampler belongs to one
buffer.
"""

import abc
from typing import NamedTuple

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import duplicates
from relive.common import validation
from relive.persistence import registry
from relive.persistence import state as state_lib
from relive.samplers import anchors as anchors_lib
from relive.storage import steps


class Draw(NamedTuple):
    """Anchors, and how likely each was.

    Attributes:
        slots: Where they are [B].
        probabilities: The probability of each of them at one draw [B].
    """

    slots: arrays.Slots
    probabilities: arrays.Floats


class Sampler(registry.Configurable, duplicates.CopiedWhole, abc.ABC):
    """Draws anchors with replacement.

    Attributes:
        anchors: Which anchors there are: `len(self.anchors)`, `self.anchors.slots()`, `self.anchors.capacity`,
            `self.anchors.is_eligible(slots)`. It is there once a buffer has taken the sampler.
    """

    anchors: anchors_lib.Anchors

    # What the buffer calls.

    @property
    def is_attached(self) -> bool:
        """Whether a buffer has taken the sampler."""
        return "anchors" in vars(self)

    def attach(self, anchors: anchors_lib.Anchors) -> steps.Rating:
        """Take the anchors of the buffer that the sampler draws from, and return what its writes do about priorities.

        Raises:
            ArgumentError: It is another buffer's.
        """
        if self.is_attached:
            raise errors.ArgumentError(f"sampler must belong to one buffer alone, got {self!r} a second time")
        self.anchors = anchors
        try:
            rating = self._rated(anchors.capacity)
            self._attached(anchors.capacity)
        except BaseException:
            del self.anchors
            raise
        return rating

    @property
    def has_hooks(self) -> bool:
        """Whether `_added`, `_removed` or `_overwritten` is overridden."""
        kind = type(self)
        return (kind._added, kind._removed, kind._overwritten) != (
            Sampler._added,
            Sampler._removed,
            Sampler._overwritten,
        )

    def added(self, slots: arrays.Slots) -> None:
        """Tell the sampler that the anchors in `slots` became eligible."""
        if len(slots):
            self.weigh(slots)
            self._added(slots)

    def removed(self, slots: arrays.Slots) -> None:
        """Tell the sampler that the anchors in `slots` ceased to be eligible."""
        if len(slots):
            self.unweigh(slots)
            self._removed(slots)

    def appended(self, slots: arrays.Slots, overwritten: arrays.Slots, left: arrays.Slots) -> None:
        """Tell the hooks what a write has done: anchors left, other rows came, anchors became eligible.

        Args:
            slots: What became eligible.
            overwritten: Where other rows came.
            left: What ceased to be eligible.
        """
        for hook, changed in ((self._removed, left), (self._overwritten, overwritten), (self._added, slots)):
            if len(changed):
                hook(changed)

    def draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Return `size` anchors, drawn with replacement; there is at least one.

        Raises:
            SamplerError: `_draw` returned something else than `size` eligible anchors and their probabilities.
        """
        state = rng.bit_generator.state
        try:
            return self._checked(self._draw(size, rng), size)
        except BaseException:
            rng.bit_generator.state = state
            raise

    def _checked(self, draw: Draw, size: int) -> Draw:
        """Return a draw of `size` anchors; raise SamplerError if it is none."""
        try:
            slots, probabilities = np.asarray(draw[0]), np.array(draw[1], np.float64)
        except (TypeError, ValueError, IndexError) as error:
            raise errors.SamplerError(f"_draw must return a Draw, got {validation.short_repr(draw)}") from error
        for name, array in (("slots", slots), ("probabilities", probabilities)):
            if array.shape != (size,):
                raise errors.SamplerError(f"_draw must return {name} of shape ({size},), got {array.shape}")
        if slots.dtype.kind not in "iu":
            raise errors.SamplerError(f"_draw must return slots that are integers, got {slots.dtype}")
        outside = (slots < 0) | (slots >= self.anchors.capacity)
        if outside.any():
            raise errors.SamplerError(f"_draw must return slots below {self.anchors.capacity}, got {slots[outside][0]}")
        eligible = self.anchors.is_eligible(slots)
        if not eligible.all():
            raise errors.SamplerError(f"_draw must return eligible anchors, got slot {slots[~eligible][0]}")
        likely = (probabilities > 0) & (probabilities <= 1 + 1e-9)
        if not likely.all():
            raise errors.SamplerError(f"_draw must return probabilities in (0, 1], got {probabilities[~likely][0]}")
        return Draw(slots.astype(np.int64, copy=False), probabilities)

    def drawn(self) -> None:
        """Tell the sampler that a batch was drawn and weighed."""
        self._drawn()

    def can_draw(self) -> bool:
        """Return whether anything can be drawn, given that there are anchors. O(1)."""
        return True

    def why_not_ready(self) -> str:
        """Return why `can_draw` is False, for an error message."""
        return f"{type(self).__name__} can draw none of the eligible anchors now"

    def drawable(self) -> arrays.Slots:
        """Return the anchors that a draw may return. O(capacity)."""
        return self.anchors.slots()

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        """Return how likely each of `slots` [B] is at one draw now; NaN if the sampler does not tell."""
        return np.full(len(slots), np.nan)

    def effective_sample_size(self) -> float | None:
        """Return 1 / sum_i P_i^2: so many anchors, drawn alike, would be as diverse (Kish 1965). O(capacity).

        It is at most the number of eligible anchors; 0 if nothing can be drawn, None if the sampler does not tell.
        """
        shares = self.probabilities(self.anchors.slots())
        squares = float(np.square(shares).sum())
        if squares != squares:
            return None
        return float(shares.sum()) ** 2 / squares if squares else 0.0

    def importance(self, probabilities: arrays.Floats) -> arrays.Floats:
        """Return what `weights` needs to know of anchors [B] with those probabilities, at the time of the draw."""
        return probabilities

    def exponent(self, beta: float | None = None) -> float | None:
        """Return what `weights` takes as beta in the next draw. The buffer calls it once a draw, before anything moves.

        Here: `beta`, if `weights` accepts it.

        Args:
            beta: Instead of the sampler's own exponent.

        Raises:
            ArgumentError: `weights` refuses beta.
        """
        if beta is not None or type(self).weights is not Sampler.weights:
            self.weights(np.zeros(0), beta)
        return beta

    def weights(self, importance: arrays.Floats, beta: float | None = None) -> arrays.Floats:
        """Return the importance weights [B] of a batch: 1.

        Args:
            importance: What `importance` returned when each of its rows was drawn [B].
            beta: What `exponent` returned.

        Raises:
            ArgumentError: A beta was given, and there are no priorities.
        """
        if beta is not None:
            raise errors.ArgumentError(f"beta must be left out without priorities, got {validation.short_repr(beta)}")
        ones = np.empty(len(importance))
        ones.fill(1.0)
        return ones

    # As a whole: see `relive.persistence.state`.

    def state(self, slots: arrays.Slots) -> state_lib.State:
        """Return what a checkpoint keeps, given the slots of all rows, oldest first [N]."""
        return self._state(slots)

    def check_state(self, given: state_lib.StateReader, rows: int) -> None:
        """Raise CheckpointError if that is no state of such a sampler with `rows` rows."""
        self._check_state(given, rows)

    def restore(self, given: state_lib.StateReader, slots: arrays.Slots) -> None:
        """Restore a state in a sampler that knows of no anchor; `anchors` says which are eligible now.

        Args:
            given: A state that `check_state` has accepted.
            slots: The slots of all rows, oldest first [N].
        """
        self._restore(given, slots)

    # What a subclass writes.

    @abc.abstractmethod
    def _draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Return `size` eligible anchors and their probabilities, with randomness from `rng` alone."""

    def _attached(self, capacity: int) -> None:
        """Prepare for so many slots; called once, before everything else."""

    def _added(self, slots: arrays.Slots) -> None:
        """Take note of anchors that became eligible."""

    def _removed(self, slots: arrays.Slots) -> None:
        """Take note of anchors that ceased to be eligible."""

    def _overwritten(self, slots: arrays.Slots) -> None:
        """Forget what is known of the rows in `slots`: other rows come there."""

    def _drawn(self) -> None:
        """Take note that a batch was drawn."""

    # What priorities are to a sampler that has some.

    def _rated(self, capacity: int) -> steps.Rating:
        """Return what writes to a buffer of that capacity do about priorities."""
        return steps.unrated(tracked=self.has_hooks)

    def weigh(self, slots: arrays.Slots) -> None:
        """Give anchors that became eligible, other than by a write, their weights."""

    def unweigh(self, slots: arrays.Slots) -> None:
        """Take the weights of anchors that ceased to be eligible, other than by a write."""

    def _state(self, slots: arrays.Slots) -> state_lib.State:
        """Return what a checkpoint has to keep: JSON values by name, and under "arrays" arrays by name.

        Args:
            slots: The slots of all rows, oldest first [N]; they are the same in a loaded buffer.
        """
        return {"arrays": {}}

    def _check_state(self, given: state_lib.StateReader, rows: int) -> None:
        """Raise CheckpointError if `_restore` could not take that."""

    def _restore(self, given: state_lib.StateReader, slots: arrays.Slots) -> None:
        """Restore a state. Here: have every eligible anchor added, the oldest first."""
        eligible = slots[self.anchors.is_eligible(slots)]
        if len(eligible):
            self._added(eligible)

    def check(self) -> None:
        """Raise CorruptionError if what is kept here does not agree with the eligible anchors."""
