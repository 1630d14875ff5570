"""PrioritizedSampler: draws in proportion to priorities, with importance weights."""

from collections.abc import Callable
import math
from typing import Any, Literal, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.kernels import append
from relive.persistence import state
from relive.samplers import anchors as anchors_lib
from relive.samplers import sampler
from relive.samplers import schedules
from relive.samplers import sum_tree

_NEW = append.READABLE | append.COMPLETE | append.FRESH
"""The flags of a step that was added and goes on."""
_RATED = _NEW ^ (append.FRESH | append.RATED)
"""The same once it has a priority."""
WeightNormalization: TypeAlias = Literal["batch", "buffer", "none"]


def required(found: sampler.Sampler | None, call: str) -> "PrioritizedSampler":
    """Return the sampler of a buffer, which a call needs to have priorities."""
    if not isinstance(found, PrioritizedSampler):
        kind = None if found is None else type(found).__name__
        raise errors.ArgumentError(f"{call} needs a PrioritizedSampler, got {kind}")
    return found


def importance_weights(
    probabilities: arrays_lib.Floats,
    num_eligible: arrays_lib.Floats | float,
    beta: float,
    normalization: WeightNormalization,
    *,
    total: arrays_lib.Floats | float = 1.0,
    least: arrays_lib.Floats | float = 1.0,
) -> arrays_lib.Floats:
    """Return the importance weights (N P_i)^-beta [B] (Schaul et al. 2016, section 3.4); 0 where P_i is.

    Numbers may differ from row to row; N P_i may lie beyond float64.

    Args:
        probabilities: P_i [B], or P_i `total`: the smallest probabilities round to 0, but weights in a tree do not.
        num_eligible: N.
        beta: The exponent.
        normalization: What they are divided by: the largest of them ("batch"), that of the least likely anchor of all
            ("buffer"), or 1 ("none").
        total: What the probabilities of all anchors add up to.
        least: The least of them all above 0, for "buffer".

    Raises:
        ArgumentError: A weight lies beyond float64.
    """
    masses, units = (probabilities, least) if normalization == "buffer" else (probabilities * num_eligible, total)
    if type(units) is float and len(masses):
        smallest, largest = masses.item(masses.argmin()), masses.item(masses.argmax())
        # The least likely has the largest weight.
        unit = smallest if normalization == "batch" else units
        is_near = smallest > 0.0 and largest / unit < _FAR and unit / smallest < _FAR
        if is_near and beta * math.log(unit / smallest) < _LARGEST_LOG:
            relative: arrays_lib.Floats = (masses / unit) ** -beta
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
    masses: arrays_lib.Floats, units: arrays_lib.Floats, beta: float, normalization: WeightNormalization
) -> arrays_lib.Floats:
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
        self._running_maximum = 1.0
        # The largest priority and alpha, and what they make of a new row.
        self._weight_of_new: tuple[tuple[float, float], float] = ((-1.0, -1.0), 0.0)

    def attach(self, anchors: anchors_lib.Anchors) -> None:
        """Attach the sampler to the anchors of a buffer; see Sampler."""
        if not self.is_attached:
            self._tree, self._raw = sum_tree.SumTree(anchors.capacity), np.zeros(anchors.capacity)
            self._check_epsilon()
        super().attach(anchors)

    @property
    def nbytes(self) -> int:
        """Bytes of the priorities and their sums."""
        return super().nbytes + self._raw.nbytes + self._tree.nbytes

    def _check_epsilon(self) -> None:
        """Raise ArgumentError if a new row weighs too much."""
        try:
            self._weights_of(np.array([self._running_maximum]), self._alpha)
        except errors.ArgumentError:
            rule = f"epsilon must be smaller with alpha = {self._alpha:g}"
            raise errors.ArgumentError(f"{rule}, got {self._epsilon}") from None

    def _rate(self, slots: arrays_lib.Slots) -> Callable[[], None]:
        """Give rows that became eligible their first priority, and all of `slots` their weights; see Sampler."""
        flags = self.anchors.flags
        found = flags.take(slots)
        if found.tobytes().count(_NEW) == len(found):  # Rows that were added, and nothing else.
            return self._rate_new(slots)
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

    def _rate_new(self, slots: arrays_lib.Slots) -> Callable[[], None]:
        """Do what `_rate` does where all of `slots` hold steps that go on and have no priority yet."""
        before, flags, key = self._raw.take(slots), self.anchors.flags, (self._running_maximum, self._alpha)
        if self._weight_of_new[0] != key:
            self._weight_of_new = key, self._weights_of(np.array(key[:1]), self._alpha).item()
        self._tree._write(slots, self._weight_of_new[1])
        # Which needs no memory any more.
        self._raw[slots] = self._running_maximum
        flags[slots] = _RATED

        def take_back() -> None:
            self._raw[slots] = before
            flags[slots] &= np.uint8(~append.RATED & 0xFF)

        return take_back

    @property
    def _current_tree(self) -> sum_tree.SumTree:
        """The tree of weights, up to date."""
        self.catch_up()
        return self._tree

    @property
    def alpha(self) -> float:
        """Exponent of the priorities; setting it recomputes all weights from the raw priorities."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        alpha = validation.non_negative_float("alpha", alpha)
        if self.is_attached:
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

    def _note_draws(self, count: int) -> None:
        """Go on as after that many draws, such as those of a whole fleet: a schedule of beta counts them."""
        self._ticks = count

    def _note_priority(self, priority: float) -> None:
        """Record a raw priority assigned elsewhere: new rows get the largest of all.

        Raises:
            ArgumentError: It is negative, infinite or NaN, or alpha makes too large a weight of it.
        """
        priority = validation.non_negative_float("priority", priority)
        if priority > self._running_maximum:
            self._weights_of(np.array([priority]), self._alpha)
            self.catch_up()  # Rows that became eligible before get the maximum of that time.
            self._running_maximum = priority

    def _known_settings(self) -> dict[str, Any]:
        names = ("alpha", "beta", "epsilon", "weight_normalization", "stratified")
        return {name: getattr(self, f"_{name}") for name in names}

    def priorities(self, slots: arrays_lib.Slots) -> arrays_lib.Floats:
        """Return the raw priorities of the rows in `slots` [k]; for an unrated row, the one it would get."""
        self.catch_up()
        priorities = self._raw[slots]
        priorities[~self.anchors.has(append.RATED, slots)] = self._running_maximum
        return priorities

    def _set_priorities(
        self, slots: arrays_lib.Slots, priorities: arrays_lib.Floats, record: Callable[[], None] | None = None
    ) -> None:
        """Set the raw priorities [k] of the rows in `slots` [k], finite and at least 0; the last of a row wins.

        `record` is called when nothing else can fail. If anything raises, nothing has changed.

        Raises:
            ArgumentError: alpha makes too large a weight of one of them.
        """
        weights = self._weights_of(priorities, self._alpha)
        self.catch_up()
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

    def _check_priorities(self, priorities: arrays_lib.Floats) -> None:
        """Raise ArgumentError if one of the raw priorities [k] is too large to be weighed."""
        self._weights_of(priorities, self._alpha)

    def probabilities(self, slots: arrays_lib.Slots) -> arrays_lib.Floats:
        """Return the probability of each of `slots` [B] in a single draw now; 0 if not eligible."""
        tree = self._current_tree
        return tree._leaves.take(slots) / (tree.total or 1.0)

    def check_beta(self, beta: float | None) -> None:
        """Raise ArgumentError if `beta` is not None and not a finite number of at least 0."""
        if beta is not None:
            _checked_beta(beta)

    def _shares(self, slots: arrays_lib.Slots, probabilities: arrays_lib.Floats) -> tuple[Any, ...]:
        """Return the weights of the anchors in `slots` [B], how many there are, the total and the least weight."""
        tree = self._tree
        total = tree.total
        weights = probabilities * total if self._is_checked else tree._leaves.take(slots)
        is_relative = self._weight_normalization == "buffer" and total > 0.0
        return weights, self.anchors.num.item(append.ELIGIBLE), total, tree.min if is_relative else 1.0

    def _weighted(self, shares: tuple[Any, ...], beta: float | None) -> arrays_lib.Floats:
        """Return (N P_i)^-beta [B], normalised; 0 where P_i is."""
        weights, num_eligible, total, least = shares
        beta = self.beta if beta is None else _checked_beta(beta)
        kind = self._weight_normalization
        return importance_weights(weights, num_eligible, beta, kind, total=total, least=least)

    def importance_weights(
        self, slots: arrays_lib.Slots, probabilities: arrays_lib.Floats, beta: float | None = None
    ) -> arrays_lib.Floats:
        """Return (N P_i)^-beta [B], normalised; 0 where P_i is; see Sampler."""
        return self._weighted(self._shares(slots, probabilities), beta)

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        if self.anchors.num.item(append.CHANGED):
            self.catch_up()
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

    @property
    def draws_all(self) -> bool:
        """Whether no eligible anchor weighs 0, because epsilon does not."""
        return super().draws_all and self._epsilon > 0.0 and self._epsilon**self._alpha > 0.0

    def drawable(self) -> arrays_lib.Slots:
        """Return the eligible anchors whose weight is not 0. O(capacity)."""
        slots = self.anchors.slots()
        return slots[self._current_tree._leaves.take(slots) > 0]

    def _weights_of(self, priorities: arrays_lib.Floats, alpha: float) -> arrays_lib.Floats:
        """Return (priority + epsilon)^alpha [k], 0 where both are 0; raise ArgumentError if one is too large."""
        largest = (priorities.item(priorities.argmax()) if len(priorities) else 0.0) + self._epsilon
        log = math.log(largest) if 0.0 < largest < math.inf else 0.0
        if not (largest < math.inf and alpha * log < _LARGEST_LOG - 1.0 - math.log(len(self._raw))):
            self._check_weights(priorities, alpha)
        sums = priorities + self._epsilon
        weights: arrays_lib.Floats = np.power(sums, alpha)
        if alpha == 0:
            weights *= sums > 0
        return weights

    def _check_weights(self, priorities: arrays_lib.Floats, alpha: float) -> None:
        """Raise ArgumentError if a priority [k] is too large to be weighed."""
        with np.errstate(over="ignore"):
            is_heavy = ~(np.power(priorities + self._epsilon, alpha) <= self._tree._heaviest)
        for row in np.flatnonzero(is_heavy).tolist():
            raise errors.ArgumentError(
                f"priority of row {row} must be smaller with alpha = {alpha:g}, got {priorities[row]}"
            )

    def state_dict(self, slots: arrays_lib.Slots) -> state.State:
        """Return the priorities, the largest so far and the number of draws; see Sampler."""
        self.catch_up()
        priorities = self._raw[slots]
        priorities[~self.anchors.has(append.RATED, slots)] = np.nan
        values = {"ticks": self._ticks, "running_maximum": self._running_maximum}
        return {**values, "arrays": {"priorities": priorities}}

    def load_state_dict(self, given: state.StateReader, slots: arrays_lib.Slots) -> None:
        """Load priorities; see Sampler."""
        self._ticks, most = given.integer("ticks"), given.number("running_maximum", 1.0)
        priorities = given.array("priorities", np.float64, (len(slots),))
        run = arrays_lib.run_of(slots)
        is_rated, is_eligible = ~np.isnan(priorities), self.anchors.is_eligible(run)
        are_all_rated, rated, of_rated = arrays_lib.all_set(is_rated), run, is_eligible
        if not are_all_rated:
            rated, priorities, of_rated = slots[is_rated], priorities[is_rated], is_eligible[is_rated]
        if priorities.size and not (priorities.view(np.int64).min() >= 0 and priorities.max() < np.inf):
            raise errors.CheckpointError("array sampler/priorities must hold finite numbers of at least 0, and NaN")
        if priorities.max(initial=0.0) > most:
            raise errors.CheckpointError(f"array sampler/priorities must hold at most running_maximum = {most}")
        if not are_all_rated and not is_rated[is_eligible].all():
            raise errors.CheckpointError("array sampler/priorities must hold a number for each eligible anchor")
        try:
            weights = self._weights_of(priorities, self._alpha)
            self._weights_of(np.array([most]), self._alpha)
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"sampler cannot be as it was: {error}") from error
        weights *= of_rated
        self._running_maximum, self._raw[rated] = most, priorities
        self.anchors.flags[rated] |= append.RATED
        self._tree._fill(rated, weights)

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
