"""Sampler: draws anchors, by slot. The buffer notifies it of changes to the anchors and validates its draws.

A custom sampler is a subclass with one method, `_draw`. To keep track of the anchors it may override two hooks:

    _removed       anchors ceased to be eligible, or their rows were overwritten: they must not be drawn
    _added         anchors became eligible: they may be drawn from now on

The buffer calls the public methods, which validate; subclasses override the underscored ones. A sampler belongs to one
buffer.
"""

import abc
from collections.abc import Callable
import functools
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
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

    slots: arrays_lib.Slots
    probabilities: arrays_lib.Floats


Weighted: TypeAlias = tuple[arrays_lib.Slots, arrays_lib.Floats, arrays_lib.Floats]
"""Drawn anchors, their probabilities and their importance weights, each [B]."""


def refuse_beta(beta: float | None) -> None:
    """Raise ArgumentError if a beta was given where there are no priorities."""
    if beta is not None:
        raise errors.ArgumentError(f"beta must be left out without priorities, got {validation.short_repr(beta)}")


class _UnattachedError(errors.ArgumentError, AttributeError):
    """A sampler that is in no buffer was asked for what depends on one."""


class Sampler(registry.Configurable, duplicates.CopiedWhole, abc.ABC):
    """Base class of samplers, which draw anchors with replacement."""

    has_hooks: ClassVar[bool] = False
    """Whether `_added` or `_removed` is overridden: they are called at once."""
    is_tracking: ClassVar[bool] = False
    """Whether it must be told which anchors became or ceased to be eligible."""
    _is_checked: ClassVar[bool] = True
    """Whether what `_draw` returns is validated."""
    _ticks = 0
    """How many draws were made."""

    def __init_subclass__(cls, *, is_checked: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.has_hooks = (cls._added, cls._removed) != (Sampler._added, Sampler._removed)
        cls.is_tracking = cls.has_hooks or cls._rate != Sampler._rate
        if "_draw" in vars(cls):
            cls._is_checked = is_checked

    @functools.cached_property
    def anchors(self) -> anchors_lib.Anchors:
        """The anchors of the buffer, once the sampler is in one.

        There are `len(self.anchors)`, `self.anchors.slots()`, `self.anchors.capacity`, `is_eligible(slots)`,
        `keys(slots)`, which ascend with time, and `read(slots, fields)` for the rows themselves.
        """
        raise _UnattachedError(
            f"{type(self).__name__} is in no buffer, and has no 'anchors': give it to one with sampler="
        )

    # Called by the buffer.

    @property
    def is_attached(self) -> bool:
        """Whether the sampler is in a buffer."""
        return "anchors" in vars(self)

    def attach(self, anchors: anchors_lib.Anchors) -> None:
        """Attach the sampler to the anchors of a buffer.

        Raises:
            ArgumentError: The sampler is attached to another buffer.
        """
        if self.is_attached:
            raise errors.ArgumentError(f"sampler must belong to one buffer alone, got {self!r} a second time")
        self.anchors = anchors
        try:
            # The keys of the rows that the hooks were told of, by slot; -1 for none.
            self._told: arrays_lib.Keys = np.full(anchors.capacity if self.has_hooks else 0, -1)
            self._attached(anchors.capacity)
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Leave the anchors, if any, to be attached to others."""
        vars(self).pop("anchors", None)

    @property
    def nbytes(self) -> int:
        """Bytes of what a sampler of relive keeps for the rows of its buffer."""
        return self._told.nbytes

    def catch_up(self) -> Callable[[], None]:
        """Take in which anchors became or ceased to be eligible since the last call; the hooks are called.

        Return a function that takes back the first priorities of rows, for a call that fails later. If anything raises,
        the next call does it again, except for hooks that have returned.
        """
        if not self.anchors.num.item(append.CHANGED):
            return nothing
        slots = self.anchors.changes()
        self.anchors.forget_changes()  # Before the hooks, which may ask what makes the sampler catch up.
        try:
            if self.has_hooks:
                self._tell(np.unique(slots))
            return self._rate(slots)
        except BaseException:
            self.anchors.suspect_all()
            raise

    def _rate(self, slots: arrays_lib.Slots) -> Callable[[], None]:
        """Set the weights of the anchors in `slots`, which may repeat and of which only some may have changed.

        Return a function that takes back the first priorities that some get; the next `catch_up` sets weights anew.
        """
        return nothing

    def tell(self) -> Callable[[], None]:
        """Do what `catch_up` does if there are hooks, which are called at once."""
        return self.catch_up() if self.has_hooks else nothing

    def _tell(self, slots: arrays_lib.Slots) -> None:
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

    def draw(self, size: int, rng: np.random.Generator, beta: float | None = None) -> Weighted:
        """Return `size` anchors, drawn with replacement, their probabilities and importance weights, each [size].

        At least one anchor must be eligible. The draw is counted.

        Args:
            size: How many, B.
            rng: The generator to draw from.
            beta: Exponent of the importance weights; None for the sampler's own.

        Raises:
            NotReadyError: Nothing can be drawn now.
            SamplerError: `_draw` returned something other than `size` eligible anchors and their probabilities.
            ArgumentError: `beta` is invalid, or given without priorities.
        """
        draw = self._draw(size, rng)
        slots, probabilities = self._checked(draw, size) if self._is_checked else draw
        weights = self.importance_weights(slots, probabilities, beta)
        self._ticks += 1
        return slots, probabilities, weights

    def take_back(self, slots: arrays_lib.Slots) -> None:
        """Count the last draw, which was of `slots`, as not made."""
        self._ticks -= 1

    def _checked(self, draw: Draw, size: int) -> Draw:
        """Return a validated draw of `size` anchors; raise SamplerError if it is invalid."""
        try:
            # Copies: contiguous, and the sampler's own arrays may change while a batch is read.
            slots = np.asarray(draw[0]).copy()
            probabilities = np.asarray(draw[1]).astype(np.float64, casting="same_kind")
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

    @property
    def draws_all(self) -> bool:
        """Whether every eligible anchor may be drawn; of a custom sampler that is not known."""
        return not self._is_checked

    def drawable(self) -> arrays_lib.Slots:
        """Return the anchors that a draw may return. O(capacity)."""
        return self.anchors.slots()

    def probabilities(self, slots: arrays_lib.Slots) -> arrays_lib.Floats:
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

    def check_beta(self, beta: float | None) -> None:
        """Raise ArgumentError if `beta` is no exponent for `draw`."""
        refuse_beta(beta)

    def importance_weights(
        self, slots: arrays_lib.Slots, probabilities: arrays_lib.Floats, beta: float | None = None
    ) -> arrays_lib.Floats:
        """Return the importance weights [B] of anchors with those probabilities [B] as one batch; 1 by default."""
        if beta is not None:
            refuse_beta(beta)
        ones = np.empty(len(slots))
        ones.fill(1.0)
        return ones

    def _shares(self, slots: arrays_lib.Slots, probabilities: arrays_lib.Floats) -> tuple[Any, ...]:
        """Return how likely the anchors in `slots` [B] are now: what `_weighted` takes, numbers or [B]."""
        return slots, probabilities

    def _weighted(self, shares: tuple[Any, ...], beta: float | None) -> arrays_lib.Floats:
        """Return the importance weights [B] of one batch, which has them from several draws."""
        slots, probabilities = shares
        return self.importance_weights(slots, probabilities, beta)

    def restore(self, given: state_lib.StateReader, slots: arrays_lib.Slots) -> None:
        """Do what `load_state_dict` does, and call the hooks for what changes from now on."""
        self.load_state_dict(given, slots)
        if self.has_hooks:
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

    def _added(self, slots: arrays_lib.Slots) -> None:
        """Handle anchors that became eligible."""

    def _removed(self, slots: arrays_lib.Slots) -> None:
        """Handle anchors that ceased to be eligible."""

    def state_dict(self, slots: arrays_lib.Slots) -> state_lib.State:
        """Return the state to save: JSON values by name, and arrays by name under "arrays"; see `persistence.state`.

        Args:
            slots: The slots of all rows, oldest first [N]; they are the same in a loaded buffer.
        """
        return {"arrays": {}}

    def load_state_dict(self, given: state_lib.StateReader, slots: arrays_lib.Slots) -> None:
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
