"""PrioritizedSampler: draws in proportion to priorities, with importance weights."""

from collections.abc import Callable
import math
from typing import Any, Literal, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.kernels import append
from relive.persistence import state
from relive.samplers import sampler
from relive.samplers import schedules
from relive.samplers import sum_tree

WeightNormalization: TypeAlias = Literal["batch", "buffer", "none"]


def required(found: sampler.Sampler | None, call: str) -> "PrioritizedSampler":
    """Return the sampler of a buffer, which a call needs to have priorities."""
    if not isinstance(found, PrioritizedSampler):
        kind = None if found is None else type(found).__name__
        raise errors.ArgumentError(f"{call} needs a PrioritizedSampler, got {kind}")
    return found


def importance_weights(
    masses: arrays.Floats, units: arrays.Floats | float, beta: float, normalization: WeightNormalization
) -> arrays.Floats:
    """Return (m_i / u_i)^-beta [B] (Schaul et al. 2016, section 3.4), 0 where m_i is; for "batch" over the largest.

    The quotients may lie beyond float64.

    Raises:
        ArgumentError: A weight lies beyond it.
    """
    if type(units) is float and len(masses):
        least, most = masses.item(masses.argmin()), masses.item(masses.argmax())
        # The least likely has the largest weight.
        unit = least if normalization == "batch" else units
        is_near = least > 0.0 and most / unit < _FAR and unit / least < _FAR
        if is_near and beta * math.log(unit / least) < _LARGEST_LOG:
            relative: arrays.Floats = (masses / unit) ** -beta
            return relative
    weights, likely = np.zeros(len(masses)), masses > 0.0
    if likely.any():
        of_likely = np.broadcast_to(units, masses.shape)[likely]
        weights[likely] = _scaled_weights(masses[likely], of_likely, beta, normalization)
    return weights


_FAR = 1e150
"""Quotients between this and its inverse are far from what float64 cannot hold."""
_LARGEST_LOG = 709.0
"""Of a weight that float64 holds."""


def _checked_beta(beta: object) -> float:
    """Return an exponent of importance weights as a float of at least 0."""
    if callable(beta) or isinstance(beta, schedules.Schedule):
        rule = f"beta must be a finite real number, got {validation.short_repr(beta)}"
        remedy = "the constructor takes a Schedule, such as LinearSchedule(0.4, 1.0, steps=100_000)"
        raise errors.ArgumentTypeError(f"{rule}: {remedy}")
    return validation.non_negative_float("beta", beta)


def _scaled_weights(
    masses: arrays.Floats, units: arrays.Floats, beta: float, normalization: WeightNormalization
) -> arrays.Floats:
    """Do what `importance_weights` does, with quotients of any size: f 2^e, 0.5 <= f < 1."""
    (fractions, exponents), (of_units, others) = np.frexp(masses), np.frexp(units)
    fractions, shifts = np.frexp(fractions / of_units)
    exponents = exponents - others + shifts
    if normalization == "batch":
        least = np.lexsort((fractions, exponents))[0]
        fractions, shifts = np.frexp(fractions / fractions[least])
        exponents = exponents - exponents[least] + shifts
    # Of quotients of at least 1 neither factor is above 1, of others neither is below it: they do not cancel.
    is_large = exponents > 0
    with np.errstate(over="ignore"):
        powers = np.ldexp(fractions, is_large.astype(np.int32)) ** -beta * np.exp2(-beta * (exponents - is_large))
    if not powers.max() < np.inf:
        raise errors.ArgumentError(f"beta must be smaller, or importance weights overflow, got {beta:g}")
    return np.asarray(powers)


class PrioritizedSampler(sampler.Sampler, is_checked=False):
    """Draws anchor i with probability P_i = w_i / sum_k w_k, w = (priority + epsilon)^alpha (Schaul et al. 2016).

    The raw priorities are stored, and alpha is applied when a weight is written. An anchor of weight 0 is never drawn;
    where priority and epsilon are 0, the weight is 0 for any alpha.

    Args:
        alpha: Exponent of the priorities, at least 0; with 0, sampling is uniform over what weighs more than 0.
        beta: The exponent of the importance weights (N P_i)^-beta, at least 0: a number, or a schedule over the draws.
            With 1 the weights undo the bias of the draws; values above 1 are allowed, and over-correct it.
        epsilon: Added to every priority, at least 0.
        weight_normalization: What the importance weights are divided by: the largest in the "batch", the largest of any
            eligible anchor ("buffer"), or 1 ("none"). With "none" a draw or read raises ArgumentError if a weight is
            beyond float64.
        stratified: Whether to draw one anchor from each of B equal shares of the weights, shuffled, instead of B
            independently.

    Raises:
        ArgumentError: A setting is invalid.
    """

    def __init__(
        self,
        *,
        alpha: float = 0.6,
        beta: float | schedules.Schedule = 0.4,
        epsilon: float = 1e-6,
        weight_normalization: WeightNormalization = "batch",
        stratified: bool = True,
    ) -> None:
        self._alpha = validation.non_negative_float("alpha", alpha)
        self._epsilon = validation.non_negative_float("epsilon", epsilon)
        self._beta = beta if isinstance(beta, schedules.Schedule) else _checked_beta(beta)
        validation.require_choice("weight_normalization", weight_normalization, ("batch", "buffer", "none"))
        self._weight_normalization: WeightNormalization = weight_normalization
        self._stratified = validation.boolean("stratified", stratified)
        self._ticks = 0
        self._running_maximum = 1.0

    def _prepare(self, capacity: int) -> None:
        self._tree = sum_tree.SumTree(capacity)
        self._raw: arrays.Floats = np.zeros(capacity)

    @property
    def _nbytes(self) -> int:
        return super()._nbytes + self._raw.nbytes + self._tree.nbytes
        try:
            self._weights_of(np.array([self._running_maximum]), self._alpha)
        except errors.ArgumentError:
            rule = f"epsilon must be smaller with alpha = {self._alpha:g}"
            raise errors.ArgumentError(f"{rule}, got {self._epsilon}") from None

    @property
    def _is_tracking(self) -> bool:
        """Whether it must be told which anchors became or ceased to be eligible: that changes their weights."""
        return True

    def _rate(self, slots: arrays.Slots) -> Callable[[], None]:
        """Give rows that became eligible their first priority, and all of `slots` their weights; see Sampler."""
        flags = self.anchors.flags
        found = flags.take(slots)
        is_fresh = (found & append.FRESH) > 0
        raw = self._raw.take(slots)
        fresh, before = slots[is_fresh], raw[is_fresh]
        raw[is_fresh] = self._running_maximum
        is_eligible = (found & append.ELIGIBILITY) == append.READABLE
        found ^= is_fresh * np.uint8(append.FRESH | append.RATED)
        self._tree._write(slots, self._weights_of(raw, self._alpha) * is_eligible)
        # Which needs no memory any more.
        self._raw[slots] = raw
        flags[slots] = found

        def take_back() -> None:
            self._raw[fresh] = before
            flags[fresh] &= np.uint8(~append.RATED & 0xFF)

        return take_back

    @property
    def _current_tree(self) -> sum_tree.SumTree:
        """The tree of weights, up to date."""
        self._catch_up()
        return self._tree

    @property
    def alpha(self) -> float:
        """Exponent of the priorities; setting it recomputes all weights from the raw priorities."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        alpha = validation.non_negative_float("alpha", alpha)
        if self._is_attached:
            # Also check rows that are not eligible now, and the priority of new rows: they must not be refused later.
            self._weights_of(self.priorities(np.arange(self.anchors.capacity)), alpha)
            self._weights_of(np.array([self._running_maximum]), alpha)
            slots = self.anchors.slots()
            self._tree._write(slots, self._weights_of(self._raw[slots], alpha))
        self._alpha = alpha

    @property
    def beta(self) -> float:
        """The exponent of the importance weights at the next draw; raise ArgumentError if a schedule gives none."""
        if type(self._beta) is float:
            return self._beta
        assert isinstance(self._beta, schedules.Schedule)
        return validation.non_negative_float("beta", self._beta.value(self._ticks))

    @property
    def weight_normalization(self) -> WeightNormalization:
        """What the importance weights are divided by."""
        return self._weight_normalization

    @property
    def schedule(self) -> float | schedules.Schedule:
        """The `beta` given to the constructor: a number or a schedule."""
        return self._beta

    @property
    def _total_weight(self) -> float:
        """The sum of the weights of the eligible anchors."""
        return self._current_tree.total

    @property
    def _least_weight(self) -> float:
        """The smallest positive weight; 0 if there is none."""
        tree = self._current_tree
        return tree.min if tree.total > 0.0 else 0.0

    def _note_priority(self, priority: float) -> None:
        """Record a raw priority assigned elsewhere: new rows get the largest of all.

        Raises:
            ArgumentError: It is negative, infinite or NaN, or alpha makes too large a weight of it.
        """
        priority = validation.non_negative_float("priority", priority)
        if priority > self._running_maximum:
            self._weights_of(np.array([priority]), self._alpha)
            self._catch_up()  # Rows that became eligible before get the maximum of that time.
            self._running_maximum = priority

    def _known_settings(self) -> dict[str, Any]:
        names = ("alpha", "beta", "epsilon", "weight_normalization", "stratified")
        return {name: getattr(self, f"_{name}") for name in names}

    def priorities(self, slots: arrays.Slots) -> arrays.Floats:
        """Return the raw priorities of the rows in `slots` [k]; for an unrated row, the one it would get."""
        self._catch_up()
        priorities = self._raw[slots]
        priorities[~self.anchors.has(append.RATED, slots)] = self._running_maximum
        return priorities

    def _set_priorities(
        self, slots: arrays.Slots, priorities: arrays.Floats, record: Callable[[], None] | None = None
    ) -> None:
        """Set the raw priorities [k] of the rows in `slots` [k], finite and at least 0; the last of a row wins.

        `record` is called when nothing else can fail. If anything raises, nothing has changed.

        Raises:
            ArgumentError: alpha makes too large a weight of one of them.
        """
        weights = self._weights_of(priorities, self._alpha)
        self._catch_up()
        flags = self.anchors.flags
        found = flags.take(slots)
        is_eligible = append.are_eligible(found)
        are_all = b"\0" not in is_eligible
        if not are_all:
            weights *= np.frombuffer(is_eligible, np.bool_)
            found |= np.uint8(append.RATED)
        largest = self._running_maximum
        if len(slots) and priorities.item(priorities.argmax()) > largest:
            # For a repeated row, its last priority counts.
            largest = max(largest, *dict(zip(slots.tolist(), priorities.tolist(), strict=True)).values())
        if record is not None:
            self._tree._make_room(len(slots))
            record()
        # From here on, nothing needs memory.
        self._tree._write(slots, weights)
        self._raw[slots] = priorities
        if not are_all:
            flags[slots] = found
        self._running_maximum = largest

    def _check_priorities(self, priorities: arrays.Floats) -> None:
        """Raise ArgumentError if one of the raw priorities [k] is too large to be weighed."""
        self._weights_of(priorities, self._alpha)

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        """Return the probability of each of `slots` [B] in a single draw now; 0 if not eligible."""
        tree = self._current_tree
        return tree._leaves.take(slots) / (tree.total or 1.0)

    def _importance_of(self, slots: arrays.Slots, probabilities: arrays.Floats) -> tuple[arrays.Floats, float]:
        """Return masses [B] and a unit: their quotient is N P_i, or P_i / min_k P_k for "buffer".

        Masses come from the tree, since the smallest probabilities round to 0.
        """
        tree = self._current_tree
        total = tree.total
        masses = probabilities * total if self._is_checked else tree._leaves.take(slots)
        if self._weight_normalization == "buffer" and total:
            return masses, tree.min
        masses *= self.anchors.num.item(append.ELIGIBLE)
        return masses, total

    def _importance_weights(
        self, masses: arrays.Floats, units: arrays.Floats | float, exponent: float | None
    ) -> arrays.Floats:
        """Return (N P_i)^-beta [B], normalised; 0 where P_i is."""
        exponent = self.beta if exponent is None else exponent
        return importance_weights(masses, units, exponent, self._weight_normalization)

    def _exponent_of(self, beta: float | None) -> float | None:
        """Return beta, or the sampler's own if None; raise ArgumentError if it is not a finite number of at least 0."""
        return self.beta if beta is None else _checked_beta(beta)

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        self._catch_up()
        tree = self._tree
        total = tree.total
        if not total:
            raise errors.NotReadyError("every eligible priority weighs 0: update_priorities first")
        slots = tree._draw(size, rng, self._stratified)
        probabilities = tree._leaves.take(slots)
        probabilities /= total
        return sampler.Draw(slots, probabilities)

    def can_draw(self) -> bool:
        """Return whether any priority is not 0."""
        return self._current_tree.total > 0.0

    def _drawable(self) -> arrays.Slots:
        """Return the eligible anchors whose weight is not 0. O(capacity)."""
        slots = self.anchors.slots()
        return slots[self._current_tree._leaves.take(slots) > 0]

    def _drawn(self) -> None:
        """Count a draw, for a schedule of beta."""
        self._ticks += 1

    def _weights_of(self, priorities: arrays.Floats, alpha: float) -> arrays.Floats:
        """Return (priority + epsilon)^alpha [k], 0 where both are 0; raise ArgumentError if one is too large."""
        with np.errstate(over="ignore"):
            sums = priorities + self._epsilon
            weights: arrays.Floats = np.power(sums, alpha)
        if alpha == 0:
            weights *= sums > 0
        if len(weights) and not weights.item(weights.argmax()) <= self._tree._heaviest:
            row = int((weights > self._tree._heaviest).argmax())
            raise errors.ArgumentError(
                f"priority of row {row} must be smaller with alpha = {alpha:g}, got {priorities[row]}"
            )
        return weights

    def state_dict(self, slots: arrays.Slots) -> state.State:
        """Return the priorities, the largest so far and the number of draws; see Sampler."""
        self._catch_up()
        priorities = self._raw[slots]
        priorities[~self.anchors.has(append.RATED, slots)] = np.nan
        values = {"ticks": self._ticks, "running_maximum": self._running_maximum}
        return {**values, "arrays": {"priorities": priorities}}

    def load_state_dict(self, given: state.StateReader, slots: arrays.Slots) -> None:
        """Load priorities; see Sampler."""
        self._ticks, most = given.integer("ticks"), given.number("running_maximum", 1.0)
        priorities = given.array("priorities", np.float64, (len(slots),))
        is_rated, is_eligible = ~np.isnan(priorities), self.anchors.is_eligible(slots)
        rated, priorities = slots[is_rated], priorities[is_rated]
        if priorities.size and not (priorities.view(np.int64).min() >= 0 and priorities.max() < np.inf):
            raise errors.CheckpointError("array sampler/priorities must hold finite numbers of at least 0, and NaN")
        if priorities.max(initial=0.0) > most:
            raise errors.CheckpointError(f"array sampler/priorities must hold at most running_maximum = {most}")
        if not is_rated[is_eligible].all():
            raise errors.CheckpointError("array sampler/priorities must hold a number for each eligible anchor")
        try:
            weights = self._weights_of(np.append(priorities, most), self._alpha)[:-1]
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"sampler cannot be as it was: {error}") from error
        self._running_maximum, self._raw[rated] = most, priorities
        self.anchors.flags[rated] |= append.RATED
        self._tree._write(rated, weights * is_eligible[is_rated])

    def check(self) -> None:
        """Raise CorruptionError if the tree does not hold the weights of the eligible anchors."""
        self._current_tree.check()
        if self.anchors.has(append.FRESH, self.anchors.slots()).any():
            raise errors.CorruptionError("an eligible anchor has no priority")
        weights = np.zeros(self.anchors.capacity)
        slots = self.anchors.slots()
        weights[slots] = self._weights_of(self._raw[slots], self._alpha)
        if not np.array_equal(self._tree.get(np.arange(len(weights))), weights):
            raise errors.CorruptionError("the sum tree does not hold the weights of the eligible anchors")
