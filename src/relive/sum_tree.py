"""A sum tree: weights at the leaves, drawn in proportion to them.

    top       10         26         26          searched as one running sum: 0 10 36 62
              |          |          |
    leaves    1 2 3 4    5 6 7 8    8 7 6 5     here in blocks of 4
    masses    0 1 3 6    10 ..      36 ..       leaf i owns [masses_i, masses_i + weight_i): a mass of 3.5 finds leaf 2

In truth blocks are of 16, and levels of blocks stand on each other until one has at most 4096 entries, the top.
A parent is recomputed from its children, never adjusted by a difference, so a sum depends on the weights alone, not on
their history. Blocks are wider than two because numpy pays by the call: one gather, one running sum and one comparison
go down a level for the whole batch. With c the capacity, a batch of k costs

    set       O(k log c)                find, sample, stratified_sample       O(k log c), and the top once after a set
    get       O(k)                      max, min       O(log c) for each leaf set since the last call

The idea, in a binary tree: Schaul et al. 2016, "Prioritized Experience Replay", appendix B.2.1.
"""

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import block_levels
from relive import checks
from relive import errors

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class SumTree:
    """A weight for each leaf 0 .. capacity - 1, 0 at first, and draws in proportion to the weights.

    Args:
        capacity: How many leaves there are, at least 1.

    Raises:
        ArgumentError: `capacity` is not an integer of at least 1.

    >>> from relive import sum_tree
    >>> tree = sum_tree.SumTree(4)
    >>> tree.set([0, 1, 2, 3], [0.5, 1.0, 0.5, 0.5])
    >>> tree.total
    2.5
    >>> tree.find([1.0, 1.5])
    array([1, 2])
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = checks.integer_of_at_least_one("capacity", capacity)
        self._sums = block_levels.Levels(block_levels.sums, block_levels.leaves(self._capacity))
        leaves = self._sums.levels[0]
        self._maxima = block_levels.Levels(block_levels.maxima, leaves)
        self._minima = block_levels.Levels(block_levels.minima, leaves)
        # Half of what would fit, so that not even the rounding of a sum reaches infinity.
        self.heaviest = float(np.finfo(np.float64).max) / (2 * len(leaves))
        """The largest weight that a leaf may have."""
        self._masses: Floats = np.zeros(len(self._sums.levels[-1]) + 1)
        self._masses_are_stale = False
        # The leaves set since the maxima and minima were last brought up to date; too many for the list mean all.
        self._touched: Ints = np.empty(len(leaves) // block_levels.WIDTH, np.int64)
        self._num_touched = len(self._touched) + 1

    @property
    def capacity(self) -> int:
        """How many leaves there are."""
        return self._capacity

    @property
    def total(self) -> float:
        """The sum of the weights; exactly 0.0 when all are zero."""
        return float(self._running_masses()[-1])

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
        if not (values.min() >= 0 and values.max() <= self.heaviest):
            self._refuse(slots, values)
        self._sums.levels[0][slots] = values
        self._sums.recompute(slots)
        self._masses_are_stale = True
        self._touch(slots)

    def get(self, leaves: npt.ArrayLike) -> Floats:
        """Answers the weights [k] of `leaves` [k], as a copy.

        Raises:
            OutOfRangeError: A leaf is not in [0, capacity).
            ArgumentTypeError: The leaves are no integers.
        """
        return self._sums.levels[0].take(self._checked_leaves(leaves))

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
        is_wrong = ~((points >= 0) & (points <= self.total))
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise errors.ArgumentError(f"masses must be in [0, {self.total}], got {points[row]} in row {row}")
        return self._find(np.minimum(points, np.nextafter(self._masses[-1], 0)))

    def sample(self, size: int, rng: np.random.Generator) -> Ints:
        """Answers `size` leaves [size], each drawn in proportion to the weights, with replacement.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentError: `size` is not an integer of at least 1.
        """
        size = checks.integer_of_at_least_one("size", size)
        self._require_weight("sample")
        total = self._masses[-1]
        return self._find(np.minimum(rng.random(size) * total, np.nextafter(total, 0)))

    def stratified_sample(self, size: int, rng: np.random.Generator) -> Ints:
        """Answers `size` leaves [size]: with S the total, one of them drawn from each [j S / size, (j + 1) S / size).

        Each stratum is drawn from in proportion to the weights, so the whole is too, with less variance than `sample`.
        The order is shuffled, so that any part of the batch is a draw from the whole.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentError: `size` is not an integer of at least 1.
        """
        size = checks.integer_of_at_least_one("size", size)
        self._require_weight("stratified_sample")
        width = self._masses[-1] / size
        edges = np.arange(size + 1) * width
        edges[-1] = self._masses[-1]
        # Rounding could lift the last point of a stratum onto the edge, which belongs to the next one.
        points = np.minimum(edges[:-1] + rng.random(size) * width, np.nextafter(edges[1:], 0))
        leaves = self._find(points)
        rng.shuffle(leaves)
        return leaves

    def clear(self) -> None:
        """Makes all weights zero. O(capacity)."""
        for levels in (self._sums, self._maxima, self._minima):
            for level in levels.levels:
                level.fill(0)
        self._masses_are_stale = True
        self._num_touched = len(self._touched) + 1

    def check(self) -> None:
        """Recomputes everything. O(capacity).

        Raises:
            CorruptionError: A weight is not legal, or a sum, maximum or minimum is not what the weights make it.
        """
        leaves = self._sums.levels[0]
        live = leaves[: self._capacity]
        is_legal = (live >= 0) & (live <= self.heaviest)
        if not is_legal.all():
            leaf = int(is_legal.argmin())
            raise errors.CorruptionError(
                f"weight of leaf {leaf} must be in [0, {self.heaviest:.6g}], found {live[leaf]}"
            )
        if leaves[self._capacity :].any():
            raise errors.CorruptionError(f"weights beyond leaf {self._capacity - 1} must be 0")
        self._sums.check("sum")
        if not np.array_equal(self._running_masses()[1:], self._sums.levels[-1].cumsum()) or self._masses[0] != 0:
            raise errors.CorruptionError("running sums of the top are not those of its entries")
        self._refresh_extremes()
        self._maxima.check("maximum")
        self._minima.check("minimum")

    def _running_masses(self) -> Floats:
        """Answers the mass before each entry of the top, and at last the total."""
        if self._masses_are_stale:
            self._sums.levels[-1].cumsum(out=self._masses[1:])
            self._masses_are_stale = False
        return self._masses

    def _require_weight(self, call: str) -> None:
        if self._running_masses()[-1] == 0:
            raise errors.NotReadyError(f"{call} found all weights zero: set a weight above 0 first")

    def _find(self, masses: Floats) -> Ints:
        """Answers the leaf [k] of each of `masses` [k] in [0, total)."""
        sums = self._masses
        nodes = sums[1:].searchsorted(masses, side="right").astype(np.int64, copy=False)
        before = sums.take(nodes)
        size = len(masses)
        rows = np.arange(size)
        running = np.zeros((block_levels.WIDTH + 1, size))
        steps = list(itertools.pairwise(running))
        for blocks in reversed(self._sums.blocks):
            # One addition at a time for all rows at once: in a cumsum along each row they would wait for each other.
            for (sum_before, sum_after), weights in zip(steps, blocks.take(nodes, axis=0).T, strict=True):
                np.add(sum_before, weights, sum_after)
            # What is left of a mass may by rounding reach the end of its block, beyond which no weight is.
            masses = np.minimum(masses - before, np.nextafter(running[-1], 0))
            children = (running[1:] <= masses).view(np.int8).sum(axis=0, dtype=np.int8)
            before = running[children, rows]
            nodes = nodes * block_levels.WIDTH + children
        return nodes

    def _checked_leaves(self, leaves: npt.ArrayLike) -> Ints:
        slots = _array("leaves", leaves)
        if slots.ndim != 1:
            raise errors.ArgumentError(f"leaves must be of shape [k], got shape {slots.shape}")
        if slots.size == 0:
            return np.zeros(0, np.int64)
        if slots.dtype.kind not in "iu":
            raise errors.ArgumentTypeError(f"leaves must be integers, got {slots.dtype}")
        if slots.min() < 0 or slots.max() >= self._capacity:
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

    def _touch(self, slots: Ints) -> None:
        """Notes that the maxima and minima above `slots` are out of date."""
        end = self._num_touched + len(slots)
        if end <= len(self._touched):
            self._touched[self._num_touched : end] = slots
        self._num_touched = end

    def _refresh_extremes(self) -> None:
        if self._num_touched > len(self._touched):
            touched = np.arange(0, len(self._sums.levels[0]), block_levels.WIDTH)
        else:
            touched = self._touched[: self._num_touched]
        self._maxima.recompute(touched)
        self._minima.recompute(touched)
        self._num_touched = 0


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(f"{name} must be an array of numbers, got {checks.shown(values)}") from error


def _real_numbers(name: str, values: npt.ArrayLike) -> Floats:
    numbers = _array(name, values)
    if numbers.dtype == np.float64:
        return numbers
    if numbers.dtype.kind not in "biuf":
        raise errors.ArgumentTypeError(f"{name} must be real numbers, got {checks.shown(values)}")
    with np.errstate(over="ignore"):
        return numbers.astype(np.float64)
