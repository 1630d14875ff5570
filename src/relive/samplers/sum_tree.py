"""A sum tree: weights at the leaves, drawn in proportion to them.

    top       10         26         26          searched as one running sum: 0 10 36 62
              |          |          |
    leaves    1 2 3 4    5 6 7 8    8 7 6 5     here in blocks of 4
    masses    0 1 3 6    10 ..      36 ..       leaf i owns [masses_i, masses_i + weight_i): a mass of 3.5 finds leaf 2

In truth blocks are of 8, and levels of blocks stand on each other until one has at most 4096 entries, the top.
A parent is recomputed from its children, never adjusted by a difference, so a sum depends on the weights alone, not on
their history. Blocks are wider than two because numpy pays by the call: one gather, one running sum and one comparison
go down a level for the whole batch. What stands above the leaves is brought up to date when somebody asks, for all that
were set since. With c the capacity, a batch of k costs

    set, set_one    O(k log c) in the long run      find, sample, stratified_sample     O(k log c)
    get             O(k)                            total, max, min                     O(log c) for each leaf set since

The idea, in a binary tree: Schaul et al. 2016, "Prioritized Experience Replay", appendix B.2.1.
"""

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import validation
from relive.samplers import block_levels
from relive.samplers import block_sums

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MOST_UNSETTLED = 1024


class SumTree:
    """A weight for each leaf 0 .. capacity - 1, 0 at first, and draws in proportion to the weights.

    Args:
        capacity: How many leaves there are, at least 1.

    Raises:
        ArgumentError: `capacity` is not an integer of at least 1.

    >>> from relive.samplers import sum_tree
    >>> tree = sum_tree.SumTree(4)
    >>> tree.set([0, 1, 2, 3], [0.5, 1.0, 0.5, 0.5])
    >>> tree.total
    2.5
    >>> tree.find([1.0, 1.5])
    array([1, 2])
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = validation.integer_of_at_least_one("capacity", capacity)
        self._sums = block_sums.BlockSums(block_levels.leaves(self._capacity))
        self._leaves = self._sums.levels[0]
        self._maxima = block_levels.Levels(block_levels.maxima, self._leaves)
        self._minima = block_levels.Levels(block_levels.minima, self._leaves)
        # Half of what would fit, so that not even the rounding of a sum reaches infinity.
        self.heaviest = float(np.finfo(np.float64).max) / (2 * self._capacity)
        """The largest weight that a leaf may have."""
        # The leaves set since the sums were last brought up to date.
        self._unsettled: Ints = np.empty(_MOST_UNSETTLED, np.int64)
        self._num_unsettled = 0
        self._is_settled = True
        # The leaves set since the maxima and minima were last brought up to date; too many for the list mean all.
        self._touched: Ints = np.empty(len(self._leaves) // block_levels.WIDTH, np.int64)
        self._num_touched = len(self._touched) + 1

    @property
    def capacity(self) -> int:
        """How many leaves there are."""
        return self._capacity

    @property
    def total(self) -> float:
        """The sum of the weights; exactly 0.0 when all are zero."""
        if not self._is_settled:
            self._settle()
        return self._sums.total

    @property
    def max(self) -> float:
        """The largest weight.

        Raises:
            NotReadyError: All weights are zero.
        """
        self._require_weight("max")
        self._refresh_extremes()
        return float(self._maxima.levels[-1].max())

    @property
    def min(self) -> float:
        """The smallest weight above zero.

        Raises:
            NotReadyError: All weights are zero.
        """
        self._require_weight("min")
        self._refresh_extremes()
        return float(block_levels.minima(self._minima.levels[-1][np.newaxis])[0])

    def set(self, leaves: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Gives `leaves` [k] the `weights` [k], or all of them one weight []; of a leaf named twice the last counts.

        Raises:
            OutOfRangeError: A leaf is not in [0, capacity).
            ArgumentTypeError: The leaves are no integers, or the weights no real numbers.
            ArgumentError: A weight is negative, NaN, infinite or so large that sums could overflow; or the lengths
                differ.
        """
        slots = self._checked_leaves(leaves)
        values = _real_numbers("weights", weights)
        if values.shape not in (slots.shape, ()):
            raise errors.ArgumentError(f"weights must be of shape {slots.shape} or (), got {values.shape}")
        if slots.size == 0:
            return
        if not (values.item(values.argmin()) >= 0 and values.item(values.argmax()) <= self.heaviest):
            self._refuse(slots, values)
        self.write(slots, values)

    def write(self, leaves: Ints, weights: Floats | float) -> None:
        """Does what `set` does, for a caller who knows that it refuses neither `leaves` [k] nor `weights` [k] or []."""
        self._leaves[leaves] = weights
        self._is_settled = False
        end = self._num_unsettled + len(leaves)
        if end <= len(self._unsettled):
            self._unsettled[self._num_unsettled : end] = leaves
            self._num_unsettled = end
        else:
            self._recompute(np.concatenate([self._unsettled[: self._num_unsettled], leaves]))
            self._num_unsettled = 0

    def set_one(self, leaf: int, weight: float) -> None:
        """Does what `set` does of one leaf, in a fraction of the time.

        Raises:
            OutOfRangeError: The leaf is not in [0, capacity).
            ArgumentError: The weight is negative, NaN, infinite or so large that sums could overflow.
        """
        if not (0 <= leaf < self._capacity and 0 <= weight <= self.heaviest):
            self.set([leaf], [weight])  # Which refuses.
        if self._num_unsettled == len(self._unsettled):
            self._recompute(self._unsettled)
            self._num_unsettled = 0
        self._leaves[leaf] = weight
        self._unsettled[self._num_unsettled] = leaf
        self._num_unsettled += 1
        self._is_settled = False

    def get(self, leaves: npt.ArrayLike) -> Floats:
        """Answers the weights [k] of `leaves` [k], as a copy.

        Raises:
            OutOfRangeError: A leaf is not in [0, capacity).
            ArgumentTypeError: The leaves are no integers.
        """
        return self._leaves.take(self._checked_leaves(leaves))

    def read(self, leaves: Ints) -> Floats:
        """Does what `get` does, for a caller who knows that `leaves` [k] are there."""
        return self._leaves.take(leaves)

    def find(self, masses: npt.ArrayLike) -> Ints:
        """Answers, for each of `masses` [k] in [0, total], the leaf [k] in whose half-open interval it lies.

        A leaf of weight zero is never found; the total itself finds the last leaf above zero.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentTypeError: The masses are no real numbers.
            ArgumentError: A mass is NaN or not in [0, total].
        """
        self._require_weight("find")
        points = _real_numbers("masses", masses)
        if points.ndim != 1:
            raise errors.ArgumentError(f"masses must be of shape [k], got shape {points.shape}")
        is_wrong = ~((points >= 0) & (points <= self._sums.total))
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise errors.ArgumentError(f"masses must be in [0, {self._sums.total}], got {points[row]} in row {row}")
        return self._sums.find(np.minimum(points, math.nextafter(self._sums.total, 0)))

    def sample(self, size: int, rng: np.random.Generator) -> Ints:
        """Answers `size` leaves [size], each drawn in proportion to the weights, with replacement.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentError: `size` is not an integer of at least 1.
        """
        size = validation.integer_of_at_least_one("size", size)
        self._require_weight("sample")
        return self._sums.find(np.minimum(rng.random(size) * self._sums.total, math.nextafter(self._sums.total, 0)))

    def stratified_sample(self, size: int, rng: np.random.Generator) -> Ints:
        """Answers `size` leaves [size]: with S the total, one of them drawn from each [j S / size, (j + 1) S / size).

        Each stratum is drawn from in proportion to the weights, so the whole is too, with less variance than `sample`.
        The order is shuffled, so that any part of the batch is a draw from the whole.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentError: `size` is not an integer of at least 1.
        """
        size = validation.integer_of_at_least_one("size", size)
        self._require_weight("stratified_sample")
        firsts, lasts = _strata(size)
        points = rng.random(size)
        points += firsts
        # Rounding could lift the last point of a stratum onto the edge, which belongs to the next one.
        np.minimum(points, lasts, out=points)
        points *= self._sums.total / size
        np.minimum(points, math.nextafter(self._sums.total, 0), out=points)
        leaves = self._sums.find(points)
        rng.shuffle(leaves)
        return leaves

    def clear(self) -> None:
        """Makes all weights zero. O(capacity)."""
        for levels in (self._sums, self._maxima, self._minima):
            for level in levels.levels:
                level.fill(0)
        self._num_unsettled = 0
        self._is_settled = False
        self._num_touched = len(self._touched) + 1

    def check(self) -> None:
        """Recomputes everything. O(capacity).

        Raises:
            CorruptionError: A weight is not legal, or a sum, maximum or minimum is not what the weights make it.
        """
        live = self._leaves[: self._capacity]
        is_legal = (live >= 0) & (live <= self.heaviest)
        if not is_legal.all():
            leaf = int(is_legal.argmin())
            raise errors.CorruptionError(
                f"weight of leaf {leaf} must be in [0, {self.heaviest:.6g}], found {live[leaf]}"
            )
        if self._leaves[self._capacity :].any():
            raise errors.CorruptionError(f"weights beyond leaf {self._capacity - 1} must be 0")
        if not self._is_settled:
            self._settle()
        self._sums.check("sum")
        self._refresh_extremes()
        self._maxima.check("maximum")
        self._minima.check("minimum")

    def _require_weight(self, call: str) -> None:
        """Brings the sums up to date; raises NotReadyError if there is nothing to draw from."""
        if self.total == 0.0:
            raise errors.NotReadyError(f"{call} found all weights zero: set a weight above 0 first")

    def _settle(self) -> None:
        """Brings the sums up to date."""
        if self._num_unsettled:
            self._recompute(self._unsettled[: self._num_unsettled])
            self._num_unsettled = 0
        self._sums.refresh()
        self._is_settled = True

    def _recompute(self, slots: Ints) -> None:
        """Brings the sums above `slots` up to date, but not those of the top."""
        self._sums.recompute(slots)
        end = self._num_touched + len(slots)
        if end <= len(self._touched):
            self._touched[self._num_touched : end] = slots
        self._num_touched = end

    def _checked_leaves(self, leaves: npt.ArrayLike) -> Ints:
        slots = _array("leaves", leaves)
        if slots.ndim != 1:
            raise errors.ArgumentError(f"leaves must be of shape [k], got shape {slots.shape}")
        if slots.size == 0:
            return np.zeros(0, np.int64)
        if slots.dtype.kind not in "iu":
            raise errors.ArgumentTypeError(f"leaves must be integers, got {slots.dtype}")
        if slots.item(slots.argmin()) < 0 or slots.item(slots.argmax()) >= self._capacity:
            row = int(((slots < 0) | (slots >= self._capacity)).argmax())
            raise errors.OutOfRangeError(f"leaves must be in [0, {self._capacity}), got {slots[row]} in row {row}")
        return slots.astype(np.int64, copy=False)

    def _refuse(self, slots: Ints, weights: Floats) -> None:
        """Raises for the first of the wrong `weights` [k] or []."""
        values = np.broadcast_to(weights, slots.shape)
        row = int((~((values >= 0) & (values <= self.heaviest))).argmax())
        rule = f"must be at most {self.heaviest:.6g}, or sums could overflow"
        if not 0 <= values[row] < math.inf:
            rule = "must be finite and at least 0"
        raise errors.ArgumentError(f"weights {rule}, got {values[row]} for leaf {slots[row]} in row {row}")

    def _refresh_extremes(self) -> None:
        if self._num_touched > len(self._touched):
            touched = np.arange(0, len(self._leaves), block_levels.WIDTH)
        else:
            touched = self._touched[: self._num_touched]
        self._maxima.recompute(touched)
        self._minima.recompute(touched)
        self._num_touched = 0


@functools.lru_cache(maxsize=8)
def _strata(size: int) -> tuple[Floats, Floats]:
    """Answers the first point of each of `size` strata of width 1, and one so near its end that scaling keeps it in."""
    edges = np.arange(size + 1, dtype=np.float64)
    return edges[:-1], np.nextafter(np.nextafter(edges[1:], 0), 0)


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(f"{name} must be an array of numbers, got {validation.shown(values)}") from error


def _real_numbers(name: str, values: npt.ArrayLike) -> Floats:
    numbers = _array(name, values)
    if numbers.dtype == np.float64:
        return numbers
    if numbers.dtype.kind not in "biuf":
        raise errors.ArgumentTypeError(f"{name} must be real numbers, got {validation.shown(values)}")
    with np.errstate(over="ignore"):
        return numbers.astype(np.float64)
