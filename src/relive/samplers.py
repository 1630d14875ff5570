"""Samplers draw anchors, by slot. The buffer tells them which anchors there are, and checks what they draw.

A sampler of your own is a subclass with one method, `_draw`; it may override `_added`, `_removed` and `_overwritten` to
keep track of the anchors:

    added         an anchor became eligible: it may be drawn from now on
    removed       it ceased to be: it must not be drawn
    overwritten   another row comes to its slot, and whatever was known of the old one is void

The public methods check, the underscored ones vary. A sampler belongs to one buffer.
"""

import abc
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import checks
from relive import eligibility
from relive import errors
from relive import index_set

Slots: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


class Draw(NamedTuple):
    """Anchors, and how likely each was.

    Attributes:
        slots: Where they are [B].
        probabilities: The probability of each of them at one draw [B].
    """

    slots: Slots
    probabilities: Floats


class Sampler(abc.ABC):
    """Draws anchors with replacement.

    Attributes:
        anchors: Which anchors there are: `len(self.anchors)`, `self.anchors.slots()`, `self.anchors.capacity`,
            `self.anchors.is_eligible(slots)`. It is there once a buffer has taken the sampler.
    """

    anchors: eligibility.Eligibility

    # What the buffer calls.

    @property
    def is_attached(self) -> bool:
        """Whether a buffer has taken the sampler."""
        return "anchors" in vars(self)

    def attach(self, eligible: eligibility.Eligibility) -> None:
        """Makes the sampler that of the buffer whose anchors these are.

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

    def added(self, slots: Slots) -> None:
        """Hears that the anchors in `slots` became eligible."""
        if len(slots):
            self._added(slots)

    def removed(self, slots: Slots) -> None:
        """Hears that the anchors in `slots` ceased to be eligible."""
        if len(slots):
            self._removed(slots)

    def overwritten(self, slots: Slots) -> None:
        """Hears that other rows come to `slots`."""
        if len(slots):
            self._overwritten(slots)

    def draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Answers `size` anchors, drawn with replacement; there is at least one.

        Raises:
            SamplerError: `_draw` answered something else than `size` eligible anchors and their probabilities.
        """
        draw = self._draw(size, rng)
        try:
            slots, probabilities = np.asarray(draw[0]), np.asarray(draw[1], np.float64)
        except (TypeError, ValueError, IndexError) as error:
            raise errors.SamplerError(f"_draw must answer a Draw, got {checks.shown(draw)}") from error
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
        """Hears that a batch was drawn and weighed."""
        self._drawn()

    def can_draw(self) -> bool:
        """Answers whether a draw would answer, or raise NotReadyError although there are anchors. O(1)."""
        return True

    def drawable(self) -> Slots:
        """Answers the anchors that a draw may answer. O(capacity)."""
        return self.anchors.slots()

    def probabilities(self, slots: Slots) -> Floats:
        """Answers how likely each of `slots` [B] is at one draw now; NaN if the sampler does not tell."""
        return np.full(len(slots), np.nan)

    def importance(self, probabilities: Floats) -> Floats:
        """Answers what `weights` needs to know of anchors [B] of those probabilities, as things stand now: 1."""
        return np.ones(len(probabilities))

    def weights(self, importance: Floats, beta: float | None = None) -> Floats:
        """Answers the importance weights [B] of a batch: 1.

        Args:
            importance: What `importance` answered when each of its rows was drawn [B].
            beta: Instead of the sampler's own exponent.

        Raises:
            ArgumentError: A beta was given, and there are no priorities.
        """
        if beta is not None:
            raise errors.ArgumentError(f"beta must be left out without priorities, got {checks.shown(beta)}")
        return np.ones(len(importance))

    # What a subclass writes.

    @abc.abstractmethod
    def _draw(self, size: int, rng: np.random.Generator) -> Draw:
        """Answers `size` eligible anchors and their probabilities, with randomness from `rng` alone."""

    def _attached(self, capacity: int) -> None:
        """Hears how many slots there are, once, before everything else."""

    def _added(self, slots: Slots) -> None:
        """Hears which anchors became eligible."""

    def _removed(self, slots: Slots) -> None:
        """Hears which anchors ceased to be eligible."""

    def _overwritten(self, slots: Slots) -> None:
        """Hears to which slots other rows come."""

    def _drawn(self) -> None:
        """Hears that a batch was drawn."""

    def check(self) -> None:
        """Raises CorruptionError if what is kept here does not agree with the eligible anchors."""


class UniformSampler(Sampler):
    """Draws every eligible anchor with the same probability. O(1) a draw."""

    def _attached(self, capacity: int) -> None:
        self._drawable = index_set.IndexSet(capacity)

    def _added(self, slots: Slots) -> None:
        self._drawable.add(slots)

    def _removed(self, slots: Slots) -> None:
        self._drawable.remove(slots)

    def _draw(self, size: int, rng: np.random.Generator) -> Draw:
        return Draw(self._drawable.sample(size, rng), np.full(size, 1.0 / len(self._drawable)))

    def probabilities(self, slots: Slots) -> Floats:
        """Answers 1 / N for each of `slots` [B]; 0 if it is not eligible."""
        return self._drawable.contains(slots) / max(len(self._drawable), 1)

    def check(self) -> None:
        """Raises CorruptionError if the set is not that of the eligible anchors."""
        self._drawable.check()
        if not np.array_equal(np.sort(self._drawable.numbers()), self.anchors.slots()):
            raise errors.CorruptionError("the uniform sampler does not hold the eligible anchors")
