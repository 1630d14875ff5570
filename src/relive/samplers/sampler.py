"""Samplers draw anchors, by slot. The buffer tells them which anchors there are, and checks what they draw.

A sampler of your own is a subclass with one method, `_draw`; it may override `_added`, `_removed` and `_overwritten` to
keep track of the anchors:

    added         an anchor became eligible: it may be drawn from now on
    removed       it ceased to be: it must not be drawn
    overwritten   another row comes to its slot, and whatever was known of the old one is void

Of a single anchor they hear by the same methods, as an array of one slot; a sampler for which that is too slow
overrides `_added_one`, `_removed_one` and `_overwritten_one` as well, which hear of it by a plain number.

The public methods check, the underscored ones vary. A sampler belongs to one buffer.
"""

import abc
from typing import Any, NamedTuple

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.kernels import eligibility
from relive.kernels import index_set
from relive.persistence import registry
from relive.persistence import state as state_lib


class Draw(NamedTuple):
    """Anchors, and how likely each was.

    Attributes:
        slots: Where they are [B].
        probabilities: The probability of each of them at one draw [B].
    """

    slots: arrays.Slots
    probabilities: arrays.Floats


class Sampler(registry.Configurable, abc.ABC):
    """Draws anchors with replacement.

    Attributes:
        anchors: Which anchors there are: `len(self.anchors)`, `self.anchors.slots()`, `self.anchors.capacity`,
            `self.anchors.is_eligible(slots)`. It is there once a buffer has taken the sampler.
    """

    anchors: eligibility.Eligibility

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let a class that overrides the hook for arrays alone hear of single anchors by that hook too."""
        super().__init_subclass__(**keywords)
        for hook, hook_of_one, by_array in _HOOKS:
            defining = next(kind for kind in cls.__mro__ if hook in vars(kind) or hook_of_one in vars(kind))
            if hook_of_one not in vars(defining):
                setattr(cls, hook_of_one, by_array)
        names = ("_turned", *(name for hook, hook_of_one, _ in _HOOKS for name in (hook, hook_of_one)))
        defining = next(kind for kind in cls.__mro__ if not vars(kind).keys().isdisjoint(names))
        if "_turned" not in vars(defining):
            cls._turned = Sampler._turned  # type: ignore[method-assign]

    # What the buffer calls.

    @property
    def is_attached(self) -> bool:
        """Whether a buffer has taken the sampler."""
        return "anchors" in vars(self)

    def attach(self, eligible: eligibility.Eligibility) -> None:
        """Make the sampler that of the buffer whose anchors these are.

        Raises:
            ArgumentError: It is another buffer's.
        """
        if self.is_attached:
            raise errors.ArgumentError(f"sampler must belong to one buffer alone, got {self!r} a second time")
        self.anchors = eligible
        try:
            self._attached(eligible.capacity)
        except BaseException:
            del self.anchors
            raise

    def added(self, slots: arrays.Slots) -> None:
        """Record that the anchors in `slots` became eligible."""
        if len(slots):
            self._added(slots)

    def removed(self, slots: arrays.Slots) -> None:
        """Record that the anchors in `slots` ceased to be eligible."""
        if len(slots):
            self._removed(slots)

    def overwritten(self, slots: arrays.Slots) -> None:
        """Record that other rows come to `slots`."""
        if len(slots):
            self._overwritten(slots)

    def added_one(self, slot: int) -> None:
        """Record that the anchor in `slot` became eligible."""
        self._added_one(slot)

    def removed_one(self, slot: int) -> None:
        """Record that the anchor in `slot` ceased to be eligible."""
        self._removed_one(slot)

    def overwritten_one(self, slot: int) -> None:
        """Record that another row comes to `slot`."""
        self._overwritten_one(slot)

    @property
    def hears_turns(self) -> bool:
        """Whether `turned` is to be called, and not `left` and `entered` one after the other."""
        return type(self)._turned is not Sampler._turned

    def turned(self, lost: int, slot: int, count: int) -> None:
        """Record what `left` and `entered` say, at once."""
        self._turned(lost, slot, count)

    def left(self, lost: int, slot: int, count: int) -> None:
        """Record that `count` anchors from `lost` on ceased to be eligible, and other rows came from `slot` on."""
        if count == 1:
            self._removed_one(lost)
            self._overwritten_one(slot)
        else:
            self._removed(np.arange(lost, lost + count))
            self._overwritten(np.arange(slot, slot + count))

    def entered(self, slot: int, count: int) -> None:
        """Record that `count` anchors from `slot` on became eligible."""
        if count == 1:
            self._added_one(slot)
        else:
            self._added(np.arange(slot, slot + count))

    def draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Return `size` anchors, drawn with replacement; there is at least one.

        Raises:
            SamplerError: `_draw` returned something else than `size` eligible anchors and their probabilities.
        """
        draw = self._draw(size, rng)
        try:
            slots, probabilities = np.asarray(draw[0]), np.array(draw[1], np.float64)
        except (TypeError, ValueError, IndexError) as error:
            raise errors.SamplerError(f"_draw must answer a Draw, got {validation.short_repr(draw)}") from error
        for name, array in (("slots", slots), ("probabilities", probabilities)):
            if array.shape != (size,):
                raise errors.SamplerError(f"_draw must answer {name} of shape ({size},), got {array.shape}")
        if slots.dtype.kind not in "iu":
            raise errors.SamplerError(f"_draw must answer slots that are integers, got {slots.dtype}")
        outside = (slots < 0) | (slots >= self.anchors.capacity)
        if outside.any():
            raise errors.SamplerError(f"_draw must answer slots below {self.anchors.capacity}, got {slots[outside][0]}")
        eligible = self.anchors.is_eligible(slots)
        if not eligible.all():
            raise errors.SamplerError(f"_draw must answer eligible anchors, got slot {slots[~eligible][0]}")
        likely = (probabilities > 0) & (probabilities <= 1 + 1e-9)
        if not likely.all():
            raise errors.SamplerError(f"_draw must answer probabilities in (0, 1], got {probabilities[~likely][0]}")
        return Draw(slots.astype(np.int64, copy=False), probabilities)

    def drawn(self) -> None:
        """Record that a batch was drawn and weighed."""
        self._drawn()

    def can_draw(self) -> bool:
        """Return whether a draw would return, or raise NotReadyError although there are anchors. O(1)."""
        return True

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
        """Return what `weights` needs to know of anchors [B] of those probabilities, as things stand now."""
        return probabilities

    def weights(self, importance: arrays.Floats, beta: float | None = None) -> arrays.Floats:
        """Return the importance weights [B] of a batch: 1.

        Args:
            importance: What `importance` returned when each of its rows was drawn [B].
            beta: Instead of the sampler's own exponent.

        Raises:
            ArgumentError: A beta was given, and there are no priorities.
        """
        if beta is not None:
            raise errors.ArgumentError(f"beta must be left out without priorities, got {validation.short_repr(beta)}")
        return np.ones(len(importance))

    def check_beta(self, beta: float | None) -> None:
        """Raise ArgumentError if `weights` would refuse that beta now."""
        if beta is not None or type(self).weights is not Sampler.weights:
            self.weights(np.zeros(0), beta)

    # As a whole: see `relive.persistence.state`.

    def state(self, slots: arrays.Slots) -> state_lib.State:
        """Return what a checkpoint keeps, given where all rows are, oldest first [N]."""
        return self._state(slots)

    def check_state(self, given: state_lib.StateReader, rows: int) -> None:
        """Raise CheckpointError if that is no state of a sampler like this one, of so many rows."""
        self._check_state(given, rows)

    def restore(self, given: state_lib.StateReader, slots: arrays.Slots) -> None:
        """Take the place of what it was; no anchor was known, and which are eligible now is in `anchors`.

        Args:
            given: What `check_state` has found nothing wrong with.
            slots: Where all rows are, oldest first [N].
        """
        self._restore(given, slots)

    # What a subclass writes.

    @abc.abstractmethod
    def _draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Return `size` eligible anchors and their probabilities, with randomness from `rng` alone."""

    def _attached(self, capacity: int) -> None:
        """Record how many slots there are, once, before everything else."""

    def _added(self, slots: arrays.Slots) -> None:
        """Record which anchors became eligible."""

    def _removed(self, slots: arrays.Slots) -> None:
        """Record which anchors ceased to be eligible."""

    def _overwritten(self, slots: arrays.Slots) -> None:
        """Record to which slots other rows come."""

    def _added_one(self, slot: int) -> None:
        """Record that one anchor became eligible: what `_added` would do of an array of it."""

    def _removed_one(self, slot: int) -> None:
        """Record that one anchor ceased to be eligible: what `_removed` would do of an array of it."""

    def _overwritten_one(self, slot: int) -> None:
        """Record that another row comes to one slot: what `_overwritten` would do of an array of it."""

    def _turned(self, lost: int, slot: int, count: int) -> None:
        """Record at once what the other hooks would hear of: only where a class has its own way."""
        self.left(lost, slot, count)
        self.entered(slot, count)

    def _drawn(self) -> None:
        """Record that a batch was drawn."""

    def _state(self, slots: arrays.Slots) -> state_lib.State:
        """Return what a checkpoint has to keep: JSON values by name, and under "arrays" arrays by name.

        Args:
            slots: Where all rows are, oldest first [N]; in a loaded buffer they are in the same slots.
        """
        return {"arrays": {}}

    def _check_state(self, given: state_lib.StateReader, rows: int) -> None:
        """Raise CheckpointError if `_restore` could not take that."""

    def _restore(self, given: state_lib.StateReader, slots: arrays.Slots) -> None:
        """Take the place of what it was. Here: hears of every eligible anchor, the oldest first."""
        self.added(slots[self.anchors.is_eligible(slots)])

    def check(self) -> None:
        """Raise CorruptionError if what is kept here does not agree with the eligible anchors."""


def _added_by_array(sampler: Sampler, slot: int) -> None:
    sampler._added(np.array([slot]))


def _removed_by_array(sampler: Sampler, slot: int) -> None:
    sampler._removed(np.array([slot]))


def _overwritten_by_array(sampler: Sampler, slot: int) -> None:
    sampler._overwritten(np.array([slot]))


_HOOKS = (
    ("_added", "_added_one", _added_by_array),
    ("_removed", "_removed_one", _removed_by_array),
    ("_overwritten", "_overwritten_one", _overwritten_by_array),
)


class UniformSampler(Sampler):
    """Draws every eligible anchor with the same probability. O(1) a draw."""

    def _attached(self, capacity: int) -> None:
        self._drawable = index_set.IndexSet(capacity)

    def _added(self, slots: arrays.Slots) -> None:
        self._drawable.add(slots)

    def _removed(self, slots: arrays.Slots) -> None:
        self._drawable.remove(slots)

    def _added_one(self, slot: int) -> None:
        self._drawable.add_one(slot)

    def _removed_one(self, slot: int) -> None:
        self._drawable.remove_one(slot)

    def _turned(self, lost: int, slot: int, count: int) -> None:
        if not self._drawable.turn(lost, slot, count):
            super()._turned(lost, slot, count)

    def draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Return as Sampler does; here are no draws but of eligible anchors, which need no check."""
        return self._draw(size, rng) if type(self) is UniformSampler else super().draw(size, rng)

    def _draw(self, size: int, rng: np.random.Generator) -> Draw:
        probabilities = np.empty(size)
        probabilities.fill(1.0 / len(self._drawable))
        return Draw(self._drawable.sample(size, rng), probabilities)

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        """Return 1 / N for each of `slots` [B]; 0 if it is not eligible."""
        return self._drawable.contains(slots) / max(len(self._drawable), 1)

    def effective_sample_size(self) -> float | None:
        """Return N, as they are drawn alike. O(1)."""
        return float(len(self._drawable)) if type(self) is UniformSampler else super().effective_sample_size()

    def _state(self, slots: arrays.Slots) -> state_lib.State:
        is_interval = self._drawable.is_interval
        order = self._drawable.numbers() if len(slots) else slots
        # Its first number says an interval, which need not begin with the oldest row.
        return {"is_interval": is_interval, "arrays": {"order": order[:1] if is_interval else order}}

    def _check_state(self, given: state_lib.StateReader, rows: int) -> None:
        given.boolean("is_interval")
        given.integers("order", None, 0, self.anchors.capacity - 1)

    def _restore(self, given: state_lib.StateReader, slots: arrays.Slots) -> None:
        is_interval, eligible = given.boolean("is_interval"), slots[self.anchors.is_eligible(slots)]
        order = given.integers("order", None, 0, self.anchors.capacity - 1)
        if is_interval and len(order) == min(len(eligible), 1):
            order = (order + np.arange(len(eligible))) % self.anchors.capacity
        if not np.array_equal(np.sort(order), np.sort(eligible)):
            raise errors.CheckpointError("array sampler/order must hold the eligible anchors")
        self._drawable.restore(order, is_interval)

    def check(self) -> None:
        """Raise CorruptionError if the set is not that of the eligible anchors."""
        self._drawable.check()
        if not np.array_equal(np.sort(self._drawable.numbers()), self.anchors.slots()):
            raise errors.CorruptionError("the uniform sampler does not hold the eligible anchors")
