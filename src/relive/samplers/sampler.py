"""Sampler: draws anchors, by slot. The buffer notifies it of changes to the anchors and validates its draws.

A custom sampler is a subclass with one method, `_draw`. To keep track of the anchors it may override two hooks:

    _added     anchors became eligible: they may be drawn from now on
    _removed   anchors ceased to be eligible, or new rows took their slots: they must not be drawn

The buffer calls the public methods, which validate; subclasses override the underscored ones. A sampler belongs to one
buffer.
"""

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

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
    """Drawn anchors and their probabilities.

    Attributes:
        slots: The slots of the anchors [B].
        probabilities: The probability of each in a single draw [B].
    """

    slots: arrays.Slots
    probabilities: arrays.Floats


class _UnattachedError(errors.ArgumentError, AttributeError):
    """A sampler that is in no buffer was asked for what depends on one."""


class Sampler(registry.Configurable, duplicates.CopiedWhole, abc.ABC):
    """Base class of samplers, which draw anchors with replacement.

    Attributes:
        anchors: The anchors of the buffer: `len(self.anchors)`, `self.anchors.slots()`, `self.anchors.capacity`,
            `self.anchors.is_eligible(slots)`, and `self.anchors.read(slots, fields)` for the rows themselves. Available
            once the sampler is attached to a buffer.
    """

    anchors: anchors_lib.Anchors

    if not TYPE_CHECKING:  # A type checker would take any attribute for one that exists.

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; of a sampler without a buffer it is an ArgumentError, which says so."""
            if self.is_attached or name.startswith("__"):
                return self.__getattribute__(name)
            message = f"{type(self).__name__} is in no buffer, and has no {name!r}: give it to one with sampler="
            raise _UnattachedError(message)

    # Called by the buffer.

    @property
    def is_attached(self) -> bool:
        """Whether the sampler is attached to a buffer."""
        return "anchors" in vars(self)

    def attach(self, anchors: anchors_lib.Anchors) -> steps.Rating:
        """Attach the sampler to the anchors of a buffer, and return how its writes handle priorities.

        Raises:
            ArgumentError: The sampler is attached to another buffer.
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
        """Whether `_added` or `_removed` is overridden."""
        return (type(self)._added, type(self)._removed) != (Sampler._added, Sampler._removed)

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

    def appended(self, entered: arrays.Slots, left: arrays.Slots) -> None:
        """Call the hooks after a write: anchors in `left` were removed, then those in `entered` added."""
        for hook, changed in ((self._removed, left), (self._added, entered)):
            if len(changed):
                hook(changed)

    def draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Return `size` anchors, drawn with replacement; at least one must be eligible.

        Raises:
            SamplerError: `_draw` returned something other than `size` eligible anchors and their probabilities.
        """
        return self._checked(self._draw(size, rng), size)

    def _checked(self, draw: Draw, size: int) -> Draw:
        """Return a validated draw of `size` anchors; raise SamplerError if it is invalid."""
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
        """Return the probability of each of `slots` [B] in a single draw now; NaN if unknown."""
        return np.full(len(slots), np.nan)

    def effective_sample_size(self) -> float | None:
        """Return 1 / sum_i P_i^2, the effective number of anchors (Kish 1965). O(capacity).

        It is at most the number of eligible anchors; 0 if nothing can be drawn, None if unknown.
        """
        shares = self.probabilities(self.anchors.slots())
        squares = float(np.square(shares).sum())
        if squares != squares:
            return None
        return float(shares.sum()) ** 2 / squares if squares else 0.0

    # As a whole: see `relive.persistence.state`.

    def state(self, slots: arrays.Slots) -> state_lib.State:
        """Return the state for a checkpoint, given the slots of all rows, oldest first [N]."""
        return self._state(slots)

    def check_state(self, given: state_lib.StateReader, rows: int) -> None:
        """Raise CheckpointError if the state is invalid for this sampler with `rows` rows."""
        self._check_state(given, rows)

    def restore(self, given: state_lib.StateReader, slots: arrays.Slots) -> None:
        """Restore a state in a sampler without anchors; `anchors` holds the eligible ones.

        Args:
            given: A state that `check_state` has accepted.
            slots: The slots of all rows, oldest first [N].
        """
        self._restore(given, slots)

    # For subclasses to override.

    @abc.abstractmethod
    def _draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Return `size` eligible anchors and their probabilities; use no randomness but `rng`."""

    def _attached(self, capacity: int) -> None:
        """Prepare for `capacity` slots; called once, before everything else."""

    def _added(self, slots: arrays.Slots) -> None:
        """Handle anchors that became eligible."""

    def _removed(self, slots: arrays.Slots) -> None:
        """Handle anchors that ceased to be eligible."""

    # Priorities.

    def _rated(self, capacity: int) -> steps.Rating:
        """Return how writes to a buffer of that capacity handle priorities."""
        return steps.unrated(tracked=self.has_hooks)

    def weigh(self, slots: arrays.Slots) -> None:
        """Set the weights of anchors that became eligible, other than by a write."""

    def unweigh(self, slots: arrays.Slots) -> None:
        """Remove the weights of anchors that ceased to be eligible, other than by a write."""

    def _state(self, slots: arrays.Slots) -> state_lib.State:
        """Return the state to save: JSON values by name, and arrays by name under "arrays".

        Args:
            slots: The slots of all rows, oldest first [N]; they are the same in a loaded buffer.
        """
        return {"arrays": {}}

    def _check_state(self, given: state_lib.StateReader, rows: int) -> None:
        """Raise CheckpointError if `_restore` could not restore that state."""

    def _restore(self, given: state_lib.StateReader, slots: arrays.Slots) -> None:
        """Restore a state. By default, call `_added` with every eligible anchor, oldest first."""
        eligible = slots[self.anchors.is_eligible(slots)]
        if len(eligible):
            self._added(eligible)

    def check(self) -> None:
        """Raise CorruptionError if the sampler disagrees with the eligible anchors."""
