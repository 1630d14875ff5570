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

from collections.abc import Callable
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import validation

_SHIFT = 3
WIDTH = 1 << _SHIFT
"""How many entries a block has."""
WIDEST_TOP = 4096
"""How many entries the top has at most."""
_CHUNK = 1 << 16
_AT_ONCE = 1024


class Levels(arrays.Derived):
    """Levels of blocks above the leaves: each entry is the reduction of a block of 8 entries of the level below.

    Args:
        reduce: Returns the reductions [n] of blocks [n, 8], each from its block alone.
        lowest: The leaves; they are shared, not copied.
    """

    _DERIVED = ("blocks",)

    def __init__(self, reduce: Callable[[arrays.Floats], arrays.Floats], lowest: arrays.Floats) -> None:
        self._reduce = reduce
        self.levels = [lowest]
        """The leaves, and above them level after level up to the top."""
        while len(self.levels[-1]) > -(-WIDEST_TOP // WIDTH) * WIDTH:
            self.levels.append(np.zeros(len(self.levels[-1]) // WIDTH))
        self._derive()

    def _derive(self) -> None:
        self.blocks: list[arrays.Floats] = [level.reshape(-1, WIDTH) for level in self.levels[:-1]]
        """Each level below the top again, as blocks [n, 8]."""

    def recompute(self, slots: arrays.Ints) -> None:
        """Bring what stands above the leaves `slots` [k] up to date."""
        nodes = slots
        for blocks, parents in zip(self.blocks, self.levels[1:], strict=True):
            nodes = nodes >> _SHIFT
            if len(nodes) <= _CHUNK:
                parents[nodes] = self._reduce(blocks.take(nodes, axis=0))
                continue
            # Slots come in runs mostly: to sort what is left takes an eighth of the time.
            begins = np.ones(len(nodes), np.bool_)
            begins[1:] = nodes[1:] != nodes[:-1]
            nodes = np.unique(nodes[begins])
            for start in range(0, len(nodes), _CHUNK):
                some = nodes[start : start + _CHUNK]
                parents[some] = self._reduce(blocks.take(some, axis=0))

    def check(self, name: str) -> None:
        """Recompute all levels.

        Raises:
            CorruptionError: One is not what the level below makes it.
        """
        for height, (blocks, parents) in enumerate(zip(self.blocks, self.levels[1:], strict=True), start=1):
            expected = self._reduce(blocks)
            is_wrong = parents != expected
            if is_wrong.any():
                entry = int(is_wrong.argmax())
                raise errors.CorruptionError(
                    f"{name} {entry} of level {height} must be {expected[entry]}, found {parents[entry]}"
                )


def leaves(count: int) -> arrays.Floats:
    """Return zeros for at least `count` leaves, padded so that the levels above them have whole blocks."""
    unit = WIDTH
    while -(-count // unit) * WIDTH > -(-WIDEST_TOP // WIDTH) * WIDTH:
        unit *= WIDTH
    return np.zeros(-(-count // unit) * unit)


def sums(blocks: arrays.Floats) -> arrays.Floats:
    """Return the sums [n] of blocks [n, m], each added up from left to right: the same bits on every machine."""
    # numpy adds whole rows to each other, one after the other; the numbers of a single column it adds in an order of
    # its own, so there shall be two.
    columns = blocks.T.copy() if len(blocks) > 1 else np.repeat(blocks.T, 2, axis=1)
    totals: arrays.Floats = np.add.reduce(columns, axis=0)[: len(blocks)]
    return totals


def maxima(blocks: arrays.Floats) -> arrays.Floats:
    """Return the largest entries [n] of blocks [n, m]."""
    # numpy compares whole rows at a time, and these rows are long where those of `blocks` are short.
    return np.asarray(blocks.T.copy().max(axis=0))


def minima(blocks: arrays.Floats) -> arrays.Floats:
    """Return the smallest entries [n] above zero of `blocks` [n, m], infinity where there is none."""
    weights = blocks.T.copy()
    np.copyto(weights, math.inf, where=weights == 0)
    return np.asarray(weights.min(axis=0))


class BlockSums(Levels):
    """Levels of sums over weights, whose top is searched as one running sum.

    Args:
        lowest: The weights, as `leaves` makes them; they are shared, not copied.
    """

    def __init__(self, lowest: arrays.Floats) -> None:
        super().__init__(sums, lowest)
        # The mass before each entry of the top, and at last the total.
        self._masses: arrays.Floats = np.zeros(len(self.levels[-1]) + 1)
        self.total = 0.0
        """The sum of the weights when `refresh` was called last."""

    def refresh(self) -> None:
        """Bring the running sum of the top up to date."""
        running_sums(self.levels[-1], self._masses[1:])
        self.total = self._masses.item(-1)

    def find(self, masses: arrays.Floats) -> arrays.Ints:
        """Return the leaf [k] in whose interval each of `masses` [k] in [0, total) lies; none is of weight zero."""
        count = len(masses)
        if count > _AT_ONCE:
            return np.concatenate([self.find(masses[start : start + _AT_ONCE]) for start in range(0, count, _AT_ONCE)])
        if count < 2 or not self.blocks:
            return self._find_with_care(masses)
        nodes = self._entries_of_the_top(masses)
        rows = np.arange(0, count * WIDTH, WIDTH)
        left, earlier, places = masses, self._masses, nodes
        for blocks in reversed(self.blocks):
            left = left - earlier.take(places)
            earlier = earlier_sums(blocks.take(nodes, axis=0))
            children = last_begun(earlier, left)
            places = rows + children
            nodes *= WIDTH
            nodes += children
        weights = self.levels[0].take(nodes)
        if weights.item(weights.argmin()) == 0.0:
            strays = np.flatnonzero(weights == 0.0)
            nodes[strays] = self._find_with_care(masses[strays])
        return nodes

    def _find_with_care(self, masses: arrays.Floats) -> arrays.Ints:
        """Return the same, and never a weight of zero, not even where a mass by rounding reaches its block's end."""
        nodes = self._entries_of_the_top(masses)
        left = masses - self._masses.take(nodes)
        rows = np.arange(len(masses))
        running = np.zeros((len(masses), WIDTH + 1))
        for blocks in reversed(self.blocks):
            blocks.take(nodes, axis=0).cumsum(axis=1, out=running[:, 1:])
            left = np.minimum(left, np.nextafter(running[:, -1], 0))
            children = np.count_nonzero(running[:, 1:] <= left[:, np.newaxis], axis=1)
            left = left - running[rows, children]
            nodes = nodes * WIDTH + children
        return nodes

    def _entries_of_the_top(self, masses: arrays.Floats) -> arrays.Ints:
        """Return the entry [k] of the top in which each of `masses` [k] lies; it is above zero."""
        return self._masses[1:].searchsorted(masses, side="right").astype(np.int64, copy=False)

    def check(self, name: str) -> None:
        """Recompute all levels and the running sum.

        Raises:
            CorruptionError: Something is not what the weights make it.
        """
        super().check(name)
        masses = np.zeros(len(self._masses))
        running_sums(self.levels[-1], masses[1:])
        if not np.array_equal(self._masses, masses) or self.total != masses[-1]:
            raise errors.CorruptionError("running sums of the top are not those of its entries")


def earlier_sums(blocks: arrays.Floats) -> arrays.Floats:
    """Return the sums [n, 8] of what stands before each entry of its block [n, 8], added up from left to right."""
    sums_before = np.zeros(blocks.shape)
    blocks[:, :-1].cumsum(axis=1, out=sums_before[:, 1:])
    return sums_before


def last_begun(begins: arrays.Floats, masses: arrays.Floats) -> arrays.Ints:
    """Return the last entry [n] of each row of `begins` [n, 8], which rise from 0, that is at most its mass [n]."""
    # The eight truths of a row are the bytes of one number: a fourth of the time of looking for the last of them.
    has_begun = (begins <= masses[:, np.newaxis]).view(np.uint64)
    entries = np.bitwise_count(has_begun[:, 0]).astype(np.int64)
    entries -= 1
    return entries


def running_sums(entries: arrays.Floats, out: arrays.Floats) -> None:
    """Write the sums of `entries` [n], n even, up to each of them to `out` [n], which never falls.

    It rises nowhere but at an entry above zero.
    """
    # Those at even places and those at odd ones are added up side by side, in half the time of one after another.
    pairs: npt.NDArray[np.complex128] = entries.view(np.complex128).cumsum()
    np.add(pairs.real, pairs.imag, out=out[1::2])
    np.add(pairs.real[1:], pairs.imag[:-1], out=out[2::2])
    out[0] = entries[0]


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
        self._capacity = validation.positive_int("capacity", capacity)
        self._sums = BlockSums(leaves(self._capacity))
        self._leaves = self._sums.levels[0]
        self._maxima = Levels(maxima, self._leaves)
        self._minima = Levels(minima, self._leaves)
        # Half of what would fit, so that not even the rounding of a sum reaches infinity.
        self.heaviest = float(np.finfo(np.float64).max) / (2 * self._capacity)
        """The largest weight that a leaf may have."""
        # The leaves set since the sums were last brought up to date.
        self._unsettled: arrays.Ints = np.empty(_MOST_UNSETTLED, np.int64)
        self._num_unsettled = 0
        self._is_settled = True
        # The leaves set since the maxima and minima were last brought up to date; too many for the list mean all.
        self._touched: arrays.Ints = np.empty(len(self._leaves) // WIDTH, np.int64)
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
        return float(minima(self._minima.levels[-1][np.newaxis])[0])

    def set(self, leaves: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Give `leaves` [k] the `weights` [k], or all of them one weight []; of a leaf named twice the last counts.

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

    def write(self, leaves: arrays.Ints, weights: arrays.Floats | float) -> None:
        """Do what `set` does, for a caller who knows that it refuses neither `leaves` [k] nor `weights` [k] or []."""
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
        """Do what `set` does of one leaf, in a fraction of the time.

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

    def get(self, leaves: npt.ArrayLike) -> arrays.Floats:
        """Return the weights [k] of `leaves` [k], as a copy.

        Raises:
            OutOfRangeError: A leaf is not in [0, capacity).
            ArgumentTypeError: The leaves are no integers.
        """
        return self._leaves.take(self._checked_leaves(leaves))

    def read(self, leaves: arrays.Ints) -> arrays.Floats:
        """Do what `get` does, for a caller who knows that `leaves` [k] are there."""
        return self._leaves.take(leaves)

    def find(self, masses: npt.ArrayLike) -> arrays.Ints:
        """Return, for each of `masses` [k] in [0, total], the leaf [k] in whose half-open interval it lies.

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

    def sample(self, size: int, rng: np.random.Generator) -> arrays.Ints:
        """Return `size` leaves [size], each drawn in proportion to the weights, with replacement.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentError: `size` is not an integer of at least 1.
        """
        size = validation.positive_int("size", size)
        self._require_weight("sample")
        return self._sums.find(np.minimum(rng.random(size) * self._sums.total, math.nextafter(self._sums.total, 0)))

    def stratified_sample(self, size: int, rng: np.random.Generator) -> arrays.Ints:
        """Return `size` leaves [size]: with S the total, one of them drawn from each [j S / size, (j + 1) S / size).

        Each stratum is drawn from in proportion to the weights, so the whole is too, with less variance than `sample`.
        The order is shuffled, so that any part of the batch is a draw from the whole.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentError: `size` is not an integer of at least 1.
        """
        size = validation.positive_int("size", size)
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
        """Make all weights zero. O(capacity)."""
        for levels in (self._sums, self._maxima, self._minima):
            for level in levels.levels:
                level.fill(0)
        self._num_unsettled = 0
        self._is_settled = False
        self._num_touched = len(self._touched) + 1

    def check(self) -> None:
        """Recompute everything. O(capacity).

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
        """Bring the sums up to date; raise NotReadyError if there is nothing to draw from."""
        if self.total == 0.0:
            raise errors.NotReadyError(f"{call} found all weights zero: set a weight above 0 first")

    def _settle(self) -> None:
        """Bring the sums up to date."""
        if self._num_unsettled:
            self._recompute(self._unsettled[: self._num_unsettled])
            self._num_unsettled = 0
        self._sums.refresh()
        self._is_settled = True

    def _recompute(self, slots: arrays.Ints) -> None:
        """Bring the sums above `slots` up to date, but not those of the top."""
        self._sums.recompute(slots)
        end = self._num_touched + len(slots)
        if end <= len(self._touched):
            self._touched[self._num_touched : end] = slots
        self._num_touched = end

    def _checked_leaves(self, leaves: npt.ArrayLike) -> arrays.Ints:
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

    def _refuse(self, slots: arrays.Ints, weights: arrays.Floats) -> None:
        """Raise for the first of the wrong `weights` [k] or []."""
        values = np.broadcast_to(weights, slots.shape)
        row = int((~((values >= 0) & (values <= self.heaviest))).argmax())
        rule = f"must be at most {self.heaviest:.6g}, or sums could overflow"
        if not 0 <= values[row] < math.inf:
            rule = "must be finite and at least 0"
        raise errors.ArgumentError(f"weights {rule}, got {values[row]} for leaf {slots[row]} in row {row}")

    def _refresh_extremes(self) -> None:
        if self._num_touched > len(self._touched):
            touched = np.arange(0, len(self._leaves), WIDTH)
        else:
            touched = self._touched[: self._num_touched]
        self._maxima.recompute(touched)
        self._minima.recompute(touched)
        self._num_touched = 0


@functools.lru_cache(maxsize=8)
def _strata(size: int) -> tuple[arrays.Floats, arrays.Floats]:
    """Return the first point of each of `size` strata of width 1, and one so near its end that scaling keeps it in."""
    edges = np.arange(size + 1, dtype=np.float64)
    return edges[:-1], np.nextafter(np.nextafter(edges[1:], 0), 0)


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(
            f"{name} must be an array of numbers, got {validation.short_repr(values)}"
        ) from error


def _real_numbers(name: str, values: npt.ArrayLike) -> arrays.Floats:
    numbers = _array(name, values)
    if numbers.dtype == np.float64:
        return numbers
    if numbers.dtype.kind not in "biuf":
        raise errors.ArgumentTypeError(f"{name} must be real numbers, got {validation.short_repr(values)}")
    with np.errstate(over="ignore"):
        return numbers.astype(np.float64)
