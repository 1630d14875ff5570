"""Sampler: draws anchors, by slot. The buffer notifies it of changes to the anchors and validates its draws.

A custom sampler is a subclass with one method, `_draw`. To keep track of the anchors it may override two hooks:

    _removed       anchors ceased to be eligible, or their rows were overwritten: they must not be drawn
    _added         anchors became eligible: they may be drawn from now on

The buffer calls the public methods, which validate; subclasses override the underscored ones. A sampler belongs to one
buffer.
"""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import duplicates
from relive.common import validation
from relive.kernels import append
from relive.persistence import registry
from relive.persistence import state as state_lib
from relive.samplers import anchors as anchors_lib


def nothing() -> None:
    """Take nothing back: no row got its first priority."""


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
            `self.anchors.is_eligible(slots)`, `self.anchors.keys(slots)`, which ascend with time, and
            `self.anchors.read(slots, fields)` for the rows themselves. Available once the sampler is attached to a
            buffer.
    """

    anchors: anchors_lib.Anchors

    if not TYPE_CHECKING:  # A type checker would take any attribute for one that exists.

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; of a sampler without a buffer it is an ArgumentError, which says so."""
            if self._is_attached or name.startswith("__"):
                return self.__getattribute__(name)
            message = f"{type(self).__name__} is in no buffer, and has no {name!r}: give it to one with sampler="
            raise _UnattachedError(message)

    # Called by the buffer.

    @property
    def _is_attached(self) -> bool:
        """Whether the sampler is attached to a buffer."""
        return "anchors" in vars(self)

    def _attach(self, anchors: anchors_lib.Anchors) -> None:
        """Attach the sampler to the anchors of a buffer.

        Raises:
            ArgumentError: The sampler is attached to another buffer.
        """
        if self._is_attached:
            raise errors.ArgumentError(f"sampler must belong to one buffer alone, got {self!r} a second time")
        self.anchors = anchors
        try:
            # The keys of the rows that the hooks were told of, by slot; -1 for none.
            self._told: arrays.Keys = np.full(anchors.capacity if self._has_hooks else 0, -1)
            self._prepare(anchors.capacity)
            self._attached(anchors.capacity)
        except BaseException:
            del self.anchors
            raise

    def _prepare(self, capacity: int) -> None:
        """Allocate what a sampler of relive needs, so that a subclass may override `_attached` alone."""

    @property
    def _nbytes(self) -> int:
        """Bytes of what a sampler of relive keeps for the rows of its buffer."""
        return self._told.nbytes

    @property
    def _has_hooks(self) -> bool:
        """Whether `_added` or `_removed` is overridden."""
        kind = type(self)
        return (kind._added, kind._removed) != (Sampler._added, Sampler._removed)

    @property
    def _is_tracking(self) -> bool:
        """Whether the sampler must be told which anchors became or ceased to be eligible."""
        return self._has_hooks

    def _catch_up(self) -> Callable[[], None]:
        """Take in which anchors became or ceased to be eligible since the last call; the hooks are called.

        Return a function that takes back the first priorities of rows, for a call that fails later. If anything raises,
        the next call does it again, except for hooks that have returned.
        """
        if not self.anchors.num.item(append.CHANGED):
            return nothing
        slots = self.anchors.changes()
        self.anchors.forget_changes()  # Before the hooks, which may ask what makes the sampler catch up.
        try:
            if len(self._told):
                self._tell(np.unique(slots))
            return self._rate(slots)
        except BaseException:
            self.anchors.suspect_all()
            raise

    def _rate(self, slots: arrays.Slots) -> Callable[[], None]:
        """Set the weights of the anchors in `slots`, which may repeat and of which only some may have changed.

        Return a function that takes back the first priorities that some get; the next `_catch_up` sets weights anew.
        """
        return nothing

    def _tell(self, slots: arrays.Slots) -> None:
        """Call the hooks for those of the anchors in the distinct `slots` that have changed."""
        now = np.where(self.anchors.is_eligible(slots), self.anchors.keys(slots), -1)
        was = self._told[slots]
        self._told[slots] = now
        has_changed, has_told = was != now, False
        try:
            for hook, keys in ((self._removed, was), (self._added, now)):
                changed = slots[has_changed & (keys >= 0)]
                if changed.size:
                    hook(changed)
                has_told = True
        except BaseException:
            self._told[slots] = np.where(has_changed, -1, was) if has_told else was
            raise

    def _draw_checked(self, size: int, rng: np.random.Generator) -> Draw:
        """Return `size` anchors, drawn with replacement; at least one must be eligible.

        Raises:
            NotReadyError: Nothing can be drawn now.
            SamplerError: `_draw` returned something other than `size` eligible anchors and their probabilities.
        """
        draw = self._draw(size, rng)
        return self._checked(draw, size) if self._is_checked else draw

    _is_checked: ClassVar[bool] = True
    """Whether what `_draw` returns is validated."""

    def __init_subclass__(cls, *, is_checked: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "_draw" in vars(cls):
            cls._is_checked = is_checked

    def _checked(self, draw: Draw, size: int) -> Draw:
        """Return a validated draw of `size` anchors; raise SamplerError if it is invalid."""
        try:
            # Copies: contiguous, and the sampler's own arrays may change while a batch is read.
            slots, probabilities = np.array(draw[0]), np.array(draw[1], np.float64)
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

    def _drawable(self) -> arrays.Slots:
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

    # Importance weights.

    def _exponent_of(self, beta: float | None) -> float | None:
        """Return the beta of a draw, given that of its caller; None without priorities.

        Raises:
            ArgumentError: A beta was given, and there are no priorities.
        """
        if beta is not None:
            raise errors.ArgumentError(f"beta must be left out without priorities, got {validation.short_repr(beta)}")
        return None

    def _importance_of(self, slots: arrays.Slots, probabilities: arrays.Floats) -> tuple[arrays.Floats, float]:
        """Return how likely anchors [B] with those probabilities are now, as masses [B] and their unit."""
        return probabilities, 1.0

    def _importance_weights(
        self, masses: arrays.Floats, units: arrays.Floats | float, exponent: float | None
    ) -> arrays.Floats:
        """Return the importance weights [B] of a batch; 1 without priorities.

        Args:
            masses: What `_importance_of` returned when each of its rows was drawn [B].
            units: The unit of all of them, or of each [B].
            exponent: What `_exponent_of` returned, or None for its own.
        """
        ones = np.empty(len(masses))
        ones.fill(1.0)
        return ones

    def _drawn(self) -> None:
        """Take in that a batch was drawn, weighted and read."""

    def _begin_telling(self, slots: arrays.Slots) -> None:
        """Call the hooks from now on, after a state was loaded that knows the eligible ones of `slots`."""
        if len(self._told):
            eligible = slots[self.anchors.is_eligible(slots)]
            self._told[eligible] = self.anchors.keys(eligible)

    # For subclasses to override.

    @abc.abstractmethod
    def _draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Return `size` eligible anchors and their probabilities; use no randomness but `rng`."""

    def _attached(self, capacity: int) -> None:
        """Prepare for `capacity` slots; called before everything else.

        A TokenReplayBuffer calls it again when it needs more slots: the sampler then begins anew, as when it is loaded.
        """

    def _added(self, slots: arrays.Slots) -> None:
        """Handle anchors that became eligible."""

    def _removed(self, slots: arrays.Slots) -> None:
        """Handle anchors that ceased to be eligible."""

    def state_dict(self, slots: arrays.Slots) -> state_lib.State:
        """Return the state to save: JSON values by name, and arrays by name under "arrays"; see `persistence.state`.

        Args:
            slots: The slots of all rows, oldest first [N]; they are the same in a loaded buffer.
        """
        return {"arrays": {}}

    def load_state_dict(self, given: state_lib.StateReader, slots: arrays.Slots) -> None:
        """Load a state in a sampler that was told of no anchors yet; `anchors` holds the eligible ones.

        By default, call `_added` with all of these, in order.

        Args:
            given: The state.
            slots: The slots of all rows, oldest first [N].

        Raises:
            CheckpointError: The state is invalid.
        """
        eligible = slots[self.anchors.is_eligible(slots)]
        if len(eligible):
            self._added(eligible)

    def check(self) -> None:
        """Raise CorruptionError if the sampler disagrees with the eligible anchors."""
