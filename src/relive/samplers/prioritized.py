"""PrioritizedSampler: draws in proportion to priorities, with importance weights."""

from collections.abc import Callable
import functools
from typing import Any, Literal, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.kernels import append
from relive.persistence import state
from relive.samplers import anchors as anchors_lib
from relive.samplers import sampler
from relive.samplers import schedules
from relive.samplers import sum_tree
from relive.storage import steps

WeightNormalization: TypeAlias = Literal["batch", "buffer", "none"]
NewPriority: TypeAlias = Literal["running"]


SETTINGS = ("alpha", "beta", "epsilon", "weight_normalization", "stratified", "new_priority")
"""The arguments of PrioritizedSampler."""


_MOST_UNSETTLED = 4096


class _Weights(steps.Rating):
    """The raw priorities of a buffer's rows, and the sum tree of their weights.

    Args:
        anchors: The rows.
        weigh: Returns the weight of a raw priority.
    """

    _DERIVED = ("views", "leaves")

    def __init__(self, anchors: anchors_lib.Anchors, weigh: Callable[[float], float]) -> None:
        self._anchors, self._weigh = anchors, weigh
        capacity = anchors.capacity
        self._tree = sum_tree.SumTree(capacity)
        super().__init__(np.zeros(capacity), self._tree.leaves, np.zeros(_MOST_UNSETTLED, np.int64))

    def _derive(self) -> None:
        self.leaves = self._tree.leaves  # In a copy these would be copies that are never written to.
        super()._derive()

    @property
    def tree(self) -> sum_tree.SumTree:
        """The tree of weights, with its sums up to date."""
        if self._anchors.num.item(append.CHANGED):
            self._settle()
        return self._tree

    def _settle(self) -> None:
        self._tree.settle(self.changed[: self._anchors.num.item(append.CHANGED)])
        self._anchors.num[append.CHANGED] = 0

    def forget_changes(self, num: arrays.Ints) -> None:
        """Reset `changed`, with the sums up to date."""
        self._settle()

    def make_room(self, count: int) -> None:
        """Ensure that `count` more slots fit into `changed`."""
        self._settle()
        if count > len(self.changed):
            super().make_room(count)

    def set_top(self, priority: float) -> None:
        """Set the priority that an unrated row gets when it first becomes eligible."""
        self.top_weight = self._weigh(priority)
        self.top_raw = priority

    def put(self, slots: arrays.Slots, weights: arrays.Floats | float) -> None:
        """Write weights."""
        self.leaves[slots] = weights
        if self._anchors.num.item(append.CHANGED) + len(slots) > len(self.changed):
            self.make_room(len(slots))
        append.record(self.changed, self._anchors.num, append.CHANGED, slots)

    @property
    def heaviest(self) -> float:
        """The largest weight that a row may have."""
        return self._tree.heaviest

    def clear(self, slots: arrays.Slots) -> None:
        """Remove the rows in `slots`, which are all that are stored."""
        self.put(slots, 0.0)

    def check(self) -> None:
        """Raise CorruptionError if the tree is broken."""
        self.tree.check()


class PrioritizedSampler(sampler.Sampler):
    """Draws anchor i with probability P_i = w_i / sum_k w_k, w = (priority + epsilon)^alpha (Schaul et al. 2016).

    The raw priorities are stored, and alpha is applied when a weight is written. An anchor of weight 0 is never drawn.

    Args:
        alpha: Exponent of the priorities, at least 0; with 0, sampling is uniform.
        beta: The exponent of the importance weights (N P_i)^-beta, at least 0: a number, or a schedule over the draws.
            With 1 the weights undo the bias of the draws; values above 1 are allowed, and over-correct it.
        epsilon: Added to every priority, at least 0.
        weight_normalization: What the importance weights are divided by: the largest in the "batch", the largest of any
            eligible anchor ("buffer"), or 1 ("none").
        stratified: Whether to draw one anchor from each of B equal shares of the weights, shuffled, instead of B
            independently.
        new_priority: The priority of an unrated row: the largest raw priority so far ("running"), at least 1.

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
        new_priority: NewPriority = "running",
    ) -> None:
        self._alpha = validation.non_negative_float("alpha", alpha)
        self._epsilon = validation.non_negative_float("epsilon", epsilon)
        self._beta = beta if isinstance(beta, schedules.Schedule) else validation.non_negative_float("beta", beta)
        validation.require_choice("weight_normalization", weight_normalization, ("batch", "buffer", "none"))
        validation.require_choice("new_priority", new_priority, ("running",))
        self._weight_normalization: WeightNormalization = weight_normalization
        self._new_priority = new_priority
        self._stratified = validation.boolean("stratified", stratified)
        self._ticks = 0
        self._running_maximum = 1.0

    def _rated(self, capacity: int) -> steps.Rating:
        self._weights = _Weights(self.anchors, functools.partial(_weight_of, self))
        try:
            self._weights.set_top(self._running_maximum)
        except errors.ArgumentError:
            rule = f"epsilon must be smaller with alpha = {self._alpha:g}"
            raise errors.ArgumentError(f"{rule}, got {self._epsilon}") from None
        return self._weights

    @property
    def alpha(self) -> float:
        """Exponent of the priorities; setting it recomputes all weights from the raw priorities."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        alpha = validation.non_negative_float("alpha", alpha)
        if self.is_attached:
            slots = self.anchors.slots()
            # Also check rows that are not eligible now, and the priority of new rows: they must not be refused later.
            self._weights_of(self.priorities(np.arange(self.anchors.capacity)), alpha)
            self._weights_of(np.array([self._running_maximum]), alpha)
            self._weights.put(slots, self._weights_of(self._weights.raw[slots], alpha))
            self._alpha = alpha
            self._weights.set_top(self._running_maximum)
        self._alpha = alpha

    @property
    def beta(self) -> float:
        """The exponent of the importance weights at the next draw; raise ArgumentError if a schedule gives none."""
        if isinstance(self._beta, schedules.Schedule):
            return validation.non_negative_float("beta", self._beta.value(self._ticks))
        return self._beta

    @property
    def ticks(self) -> int:
        """Number of draws counted for a schedule of beta; a fleet sets it to keep its samplers in step."""
        return self._ticks

    @ticks.setter
    def ticks(self, ticks: int) -> None:
        self._ticks = validation.non_negative_int("ticks", ticks)

    @property
    def weight_normalization(self) -> WeightNormalization:
        """What the importance weights are divided by."""
        return self._weight_normalization

    @property
    def schedule(self) -> float | schedules.Schedule:
        """The `beta` given to the constructor: a number or a schedule."""
        return self._beta

    @property
    def total_weight(self) -> float:
        """The sum of the weights of the eligible anchors."""
        return self._weights.tree.total

    @property
    def least_weight(self) -> float:
        """The smallest positive weight; 0 if there is none."""
        tree = self._weights.tree
        return tree.min if tree.total > 0.0 else 0.0

    def note_priority(self, priority: float) -> None:
        """Record a raw priority assigned elsewhere: new rows get the largest of all.

        Raises:
            ArgumentError: It is negative, infinite or NaN, or alpha makes too large a weight of it.
        """
        priority = validation.non_negative_float("priority", priority)
        if priority > self._running_maximum:
            self._weights.set_top(priority)
            self._running_maximum = priority

    def settings(self) -> dict[str, Any]:
        """Return the arguments that make such a sampler, by name."""
        return {name: getattr(self, f"_{name}") for name in SETTINGS}

    def priorities(self, slots: arrays.Slots) -> arrays.Floats:
        """Return the raw priorities of the rows in `slots` [k]; for an unrated row, the one it would get."""
        priorities = self._weights.raw[slots]
        priorities[~self.anchors.has(append.RATED, slots)] = self._running_maximum
        return priorities

    def set_priorities(self, slots: arrays.Slots, priorities: arrays.Floats) -> None:
        """Set the raw priorities [k] of the rows in `slots` [k], finite and at least 0; the last of a row wins.

        Raises:
            ArgumentError: alpha makes too large a weight of one of them. Nothing has changed.
        """
        if not len(slots):
            return
        weights = self._weights_of(priorities, self._alpha)
        if not self.anchors.are_eligible(slots):
            weights *= self.anchors.is_eligible(slots)
        self._keep(slots, priorities)
        self._weights.put(slots, weights)

    def check_priorities(self, priorities: arrays.Floats) -> None:
        """Raise ArgumentError if one of the raw priorities [k] is too large to be kept or weighed."""
        self._weights_of(priorities, self._alpha)

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        """Return the probability of each of `slots` [B] in a single draw now; 0 if not eligible."""
        tree = self._weights.tree
        return tree.read(slots) / (tree.total or 1.0)

    def importance(self, probabilities: arrays.Floats) -> arrays.Floats:
        """Return N P_i [B], or P_i / min_k P_k [B] if weights are relative to the largest in the buffer.

        Args:
            probabilities: P_i [B]; N is the number of eligible anchors.
        """
        tree = self._weights.tree
        if self._weight_normalization == "buffer" and tree.total > 0.0:
            return probabilities / (tree.min / tree.total)
        return len(self.anchors) * probabilities

    def weights(self, importance: arrays.Floats, exponent: float) -> arrays.Floats:
        """Return (N P_i)^-beta [B] (Schaul et al. 2016, section 3.4), normalised; 0 where P_i is.

        Args:
            importance: What `importance` returned when each of the rows was drawn [B].
            exponent: What `exponent` returned, beta.
        """
        weights = np.zeros(len(importance))
        if not len(importance):
            return weights
        if importance.item(importance.argmin()) > 0:
            return self._normalized(importance, exponent)
        likely = importance > 0
        if likely.any():
            weights[likely] = self._normalized(importance[likely], exponent)
        return weights

    def exponent(self, beta: float | None = None) -> float:
        """Return beta, or the sampler's own if None; a schedule is evaluated here, once per draw.

        Raises:
            ArgumentError: That is not a finite number of at least 0.
        """
        return self.beta if beta is None else validation.non_negative_float("beta", beta)

    def _normalized(self, importance: arrays.Floats, exponent: float) -> arrays.Floats:
        """Return the importance weights [k >= 1] of importance above 0 [k]."""
        if self._weight_normalization == "batch":
            # The least likely has the largest weight; dividing by it first prevents overflow.
            importance = importance / importance.item(importance.argmin())
        weights: arrays.Floats = importance**-exponent
        return weights

    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        """Draw as Sampler does; only eligible anchors are drawn, so no check is needed."""
        return self._draw(size, rng) if type(self) is PrioritizedSampler else super().draw(size, rng)

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        tree = self._weights.tree
        total = tree.total
        if not total:
            raise errors.NotReadyError(self.why_not_ready())
        slots = tree.draw(size, rng, self._stratified)
        probabilities = tree.read(slots)
        probabilities /= total
        return sampler.Draw(slots, probabilities)

    def can_draw(self) -> bool:
        """Return whether any priority is not 0."""
        return self._weights.tree.total > 0.0

    def why_not_ready(self) -> str:
        """Return that every priority is 0."""
        return "every eligible priority weighs 0: update_priorities first"

    def drawable(self) -> arrays.Slots:
        """Return the eligible anchors whose weight is not 0. O(capacity)."""
        slots = self.anchors.slots()
        return slots[self._weights.leaves[slots] > 0]

    def tick(self) -> None:
        """Count a draw for a schedule of beta."""
        self._ticks += 1

    def weigh(self, slots: arrays.Slots) -> None:
        """Give anchors that became eligible their weights."""
        priorities = self.priorities(slots)
        self._keep(slots, priorities)
        self._weights.put(slots, self._weights_of(priorities, self._alpha))

    def unweigh(self, slots: arrays.Slots) -> None:
        """Remove the weights of anchors that ceased to be eligible."""
        self._weights.put(slots, 0.0)

    def weigh_rated(self) -> None:
        """Set the weights of rows that became eligible by a write and were rated before."""
        self.anchors.num[append.UNWEIGHED] = 0
        slots = self._weights.changed[: self.anchors.num.item(append.CHANGED)]
        slots = slots[self.anchors.is_eligible(slots)]
        self._weights.leaves[slots] = self._weights_of(self._weights.raw[slots], self._alpha)

    def _keep(self, slots: arrays.Slots, priorities: arrays.Floats) -> None:
        """Keep the raw priorities [k] of the rows in `slots` [k]."""
        raw = self._weights.raw
        raw[slots] = priorities
        append.mark_rated(self.anchors.facts, slots)
        if priorities.item(priorities.argmax()) > self._running_maximum:
            # For a repeated row, its current priority counts.
            self._running_maximum = max(self._running_maximum, float(raw[slots].max()))
            self._weights.set_top(self._running_maximum)

    def _weights_of(self, priorities: arrays.Floats, alpha: float) -> arrays.Floats:
        """Return (priority + epsilon)^alpha [k], 0 where both are 0; raise ArgumentError if one is too large."""
        sums = priorities + self._epsilon
        if alpha <= 1:
            weights: arrays.Floats = np.power(sums, alpha)
        else:
            with np.errstate(over="ignore"):
                weights = np.power(sums, alpha)
        if alpha == 0:
            weights *= sums > 0
        if len(weights) and not weights.item(weights.argmax()) <= self._weights.heaviest:
            row = int((weights > self._weights.heaviest).argmax())
            raise errors.ArgumentError(
                f"priority of row {row} must be smaller with alpha = {alpha:g}, got {priorities[row]}"
            )
        return weights

    def _state(self, slots: arrays.Slots) -> state.State:
        priorities = self._weights.raw[slots]
        priorities[~self.anchors.has(append.RATED, slots)] = np.nan
        values = {"ticks": self._ticks, "running_maximum": self._running_maximum}
        return {**values, "arrays": {"priorities": priorities}}

    def _check_state(self, given: state.StateReader, rows: int) -> None:
        given.integer("ticks")
        most = given.number("running_maximum", 1.0)
        priorities = given.array("priorities", np.float64, (rows,))
        rated = priorities[~np.isnan(priorities)]
        if not (np.isfinite(rated) & (rated >= 0)).all() or np.signbit(rated).any():
            raise errors.CheckpointError("array sampler/priorities must hold finite numbers of at least 0, and NaN")
        if rated.max(initial=0.0) > most:
            raise errors.CheckpointError(f"array sampler/priorities must hold at most running_maximum = {most}")
        try:
            self._weights_of(np.append(rated, most), self._alpha)
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"sampler cannot be as it was: {error}") from error

    def _restore(self, given: state.StateReader, slots: arrays.Slots) -> None:
        priorities = given.array("priorities", np.float64, (len(slots),))
        is_rated = ~np.isnan(priorities)
        self._ticks, self._running_maximum = given.integer("ticks"), given.number("running_maximum", 1.0)
        is_eligible = self.anchors.is_eligible(slots)
        if not is_rated[is_eligible].all():
            raise errors.CheckpointError("array sampler/priorities must hold a number for each eligible anchor")
        rated = slots[is_rated]
        self._weights.raw[rated] = priorities[is_rated]
        append.mark_rated(self.anchors.facts, rated)
        self._weights.set_top(self._running_maximum)
        self._weights.put(rated, self._weights_of(priorities[is_rated], self._alpha) * is_eligible[is_rated])

    def check(self) -> None:
        """Raise CorruptionError if the tree does not hold the weights of the eligible anchors."""
        self._weights.check()
        weights = np.zeros(self.anchors.capacity)
        slots = self.anchors.slots()
        weights[slots] = self._weights_of(self._weights.raw[slots], self._alpha)
        if not np.array_equal(self._weights.tree.get(np.arange(len(weights))), weights):
            raise errors.CorruptionError("the sum tree does not hold the weights of the eligible anchors")


def _weight_of(sampler: PrioritizedSampler, priority: float) -> float:
    """Return the weight of a raw priority; raise ArgumentError if it is too large."""
    return float(sampler._weights_of(np.array([priority]), sampler._alpha)[0])
