"""A sum tree: weights at the leaves, drawn in proportion to them.

    top       10         26         26          searched as one running sum: 0 10 36 62
              |          |          |
    leaves    1 2 3 4    5 6 7 8    8 7 6 5     here in blocks of 4
    masses    0 1 3 6    10 ..      36 ..       leaf i owns [masses_i, masses_i + weight_i): a mass of 3.5 finds leaf 2

The actual block size is 8, and there are as many levels as needed for the top to have at most 4096 entries. All levels
are in one flat array, leaves first, on which the kernels of `relive.kernels.draw` run, compiled or not. A parent is
recomputed from its children, never adjusted by a difference, so a sum depends on the weights alone, not on their
history. Blocks are wider than two because of the overhead of numpy calls: one gather, one running sum and one
comparison descend a level for the whole batch. The levels above the leaves are updated lazily, for all leaves set
since. With capacity c, a batch of k costs

    set    O(k log c) in the long run      find, sample, stratified_sample     O(k log c)
    get    O(k)                            total                               O(log c) for each leaf set since
                                           max, min                            O(c), once until a weight is set

The idea, in a binary tree: Schaul et al. 2016, "Prioritized Experience Replay", appendix B.2.1.
"""

import functools
import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.kernels import choice
from relive.kernels import draw
from relive.storage import memory

WIDEST_TOP = 4096
"""How many entries the top has at most."""
_CACHE_LINE = 64
_CHUNK = 1 << 15
_MOST_UNSETTLED = 1024
_LEAF_BYTES = 10
"""About how many bytes a leaf takes with the levels above it."""


class SumTree(arrays_lib.Derived):
    """A sum tree: a weight for each leaf 0 .. capacity - 1, initially 0, and draws in proportion to the weights.

    Args:
        capacity: Number of leaves, at least 1.

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

    _DERIVED = ("_leaves", "_levels")

    def __init__(self, capacity: int) -> None:
        self._capacity = validation.positive_int("capacity", capacity)
        self._kernels = choice.chosen()
        sizes = _sizes(self._capacity)
        with memory.room_for("capacity", self._capacity, _LEAF_BYTES, "leaves"):
            self._offsets: arrays_lib.Ints = np.array([0, *itertools.accumulate(sizes)], np.int64)
            # Blocks are aligned to cache lines; those of copies need not be.
            room = np.zeros(sum(sizes) + draw.WIDTH)
            skipped = -room.ctypes.data % _CACHE_LINE // room.itemsize
            self._nodes: arrays_lib.Floats = room[skipped : skipped + sum(sizes)]
            # The mass before each entry of the top, followed by the total.
            self._masses: arrays_lib.Floats = np.zeros(sizes[-1] + 1)
        self._total = 0.0
        # The largest weight, and the smallest above zero; None where the tree has changed since they were asked for.
        self._max: float | None = None
        self._min: float | None = None
        # Half of what would fit, so that not even the rounding of a sum reaches infinity.
        self._heaviest = float(np.finfo(np.float64).max) / (2 * self._capacity)
        """The largest weight that a leaf may have."""
        # The leaves set since the sums were last brought up to date.
        self._unsettled: arrays_lib.Ints = np.empty(_MOST_UNSETTLED, np.int64)
        self._num_unsettled = 0
        self._derive()

    def _derive(self) -> None:
        self._leaves: arrays_lib.Floats = self._nodes[: self._offsets.item(1)]
        """The weights, and zeros beyond them; who writes to them calls `_settle` before asking anything else."""
        self._levels = self._kernels.levels(self._nodes, self._offsets)

    @property
    def capacity(self) -> int:
        """Number of leaves."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, of their sums, and of the list of what is not summed yet."""
        return self._nodes.nbytes + self._masses.nbytes + self._unsettled.nbytes

    @property
    def total(self) -> float:
        """The sum of the weights; exactly 0.0 when all are zero."""
        if self._num_unsettled:
            self._settle(self._unsettled[: self._num_unsettled])
            self._num_unsettled = 0
        return self._total

    @property
    def max(self) -> float:
        """The largest weight.

        Raises:
            NotReadyError: All weights are zero.
        """
        self._require_weight("max")
        if self._max is None:
            self._max = float(self._leaves.max())
        return self._max

    @property
    def min(self) -> float:
        """The smallest weight above zero.

        Raises:
            NotReadyError: All weights are zero.
        """
        self._require_weight("min")
        if self._min is None:
            # Numbers of at least 0 are in the order of their bits. Less one, those of 0 become the largest there are.
            bits = self._leaves.view(np.uint64)
            starts = range(0, len(bits), _CHUNK)
            least = min((bits[start : start + _CHUNK] - np.uint64(1)).min() for start in starts)
            self._min = float((least + np.uint64(1)).view(np.float64))
        return self._min

    def set(self, leaves: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Set the `weights` [k] or [] of `leaves` [k]; for a repeated leaf, the last weight wins.

        Raises:
            OutOfRangeError: A leaf is not in [0, capacity).
            ArgumentTypeError: The leaves are not integers, or the weights not real numbers.
            ArgumentError: A weight is negative, NaN, infinite or so large that sums could overflow; or the lengths
                differ.
        """
        slots = self._checked_leaves(leaves)
        values = _real_numbers("weights", weights)
        if values.shape not in (slots.shape, ()):
            raise errors.ArgumentError(f"weights must be of shape {slots.shape} or (), got {values.shape}")
        if slots.size == 0:
            return
        if not (values.item(values.argmin()) >= 0 and values.item(values.argmax()) <= self._heaviest):
            values = np.broadcast_to(values, slots.shape)
            row = int((~((values >= 0) & (values <= self._heaviest))).argmax())
            rule = f"must be at most {self._heaviest:.6g}, or sums could overflow"
            if not 0 <= values[row] < math.inf:
                rule = "must be finite and at least 0"
            raise errors.ArgumentError(f"weights {rule}, got {values[row]} for leaf {slots[row]} in row {row}")
        self._write(slots, values + 0.0)  # Which makes 0.0 of -0.0.

    def _write(self, leaves: arrays_lib.Ints, weights: arrays_lib.Floats | float) -> None:
        """Do what `set` does without checking `leaves` [k] and `weights` [k] or []."""
        self._make_room(len(leaves))
        end = self._num_unsettled + len(leaves)
        self._leaves[leaves] = weights
        self._unsettled[self._num_unsettled : end] = leaves
        self._num_unsettled = end

    def _fill(self, leaves: slice | arrays_lib.Ints, weights: arrays_lib.Floats) -> None:
        """Do what `_write` does for many leaves, at once: every sum is computed anew. O(capacity)."""
        self._leaves[leaves] = weights
        levels = draw.levels(self._nodes, self._offsets)
        for blocks, level in zip(levels.blocks, levels.entries[1:], strict=True):
            for start in range(0, len(level), _CHUNK):
                level[start : start + _CHUNK] = draw.sums(blocks[start : start + _CHUNK])
        levels.entries[-1].cumsum(out=self._masses[1:])
        self._total, self._num_unsettled = self._masses.item(-1), 0
        self._max = self._min = None

    def _make_room(self, count: int) -> None:
        """Make sure that `_write` of `count` leaves needs no memory."""
        if self._num_unsettled + count > len(self._unsettled):
            _ = self.total
            if count > len(self._unsettled):
                self._unsettled = np.empty(count, np.int64)

    def _settle(self, leaves: arrays_lib.Ints) -> None:
        """Update the levels above `leaves` [k], after weights in [0, heaviest] were written to `leaves`.

        Args:
            leaves: Contiguous int64 in [0, capacity); leaves may repeat.
        """
        self._kernels.settle(self._levels, leaves, self._masses)
        self._total = self._masses.item(-1)
        self._max = self._min = None

    def get(self, leaves: npt.ArrayLike) -> arrays_lib.Floats:
        """Return the weights [k] of `leaves` [k], as a copy.

        Raises:
            OutOfRangeError: A leaf is not in [0, capacity).
            ArgumentTypeError: The leaves are not integers.
        """
        return self._leaves.take(self._checked_leaves(leaves))

    def find(self, masses: npt.ArrayLike) -> arrays_lib.Ints:
        """Return, for each of `masses` [k] in [0, total], the leaf [k] in whose half-open interval it lies.

        A leaf of weight zero is never found; the total itself finds the last leaf above zero.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentTypeError: The masses are not real numbers.
            ArgumentError: A mass is NaN or not in [0, total].
        """
        self._require_weight("find")
        points = _real_numbers("masses", masses)
        if points.ndim != 1:
            raise errors.ArgumentError(f"masses must be of shape [k], got shape {points.shape}")
        is_wrong = ~((points >= 0) & (points <= self._total))
        for row in np.flatnonzero(is_wrong):
            raise errors.ArgumentError(f"masses must be in [0, {self._total}], got {points[row]} in row {row}")
        return self._find(np.minimum(points, math.nextafter(self._total, 0)))

    def sample(self, size: int, rng: np.random.Generator) -> arrays_lib.Ints:
        """Return `size` leaves [size], each drawn in proportion to the weights, with replacement.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentError: `size` is not an integer of at least 1, or `rng` not a generator of numpy.
        """
        return self._checked_draw("sample", size, rng, False)

    def stratified_sample(self, size: int, rng: np.random.Generator) -> arrays_lib.Ints:
        """Return `size` leaves [size], one drawn from each of `size` equal strata of the total weight.

        Within its stratum each leaf is drawn in proportion to the weights, so overall too, with less variance than
        `sample`. The order is shuffled, so that any part of the batch is a draw from all leaves.

        Raises:
            NotReadyError: All weights are zero.
            ArgumentError: `size` is not an integer of at least 1, or `rng` not a generator of numpy.
        """
        return self._checked_draw("stratified_sample", size, rng, True)

    def _checked_draw(self, call: str, size: int, rng: np.random.Generator, is_stratified: bool) -> arrays_lib.Ints:
        validation.require_instance("rng", rng, np.random.Generator)
        size = validation.batch_size("size", size)
        self._require_weight(call)
        return self._draw(size, rng, is_stratified)

    def _draw(self, size: int, rng: np.random.Generator, is_stratified: bool) -> arrays_lib.Ints:
        """Do what `stratified_sample` or `sample` does without checks; `total` was asked for, and is above zero."""
        points, highest = rng.random(size), math.nextafter(self._total, 0)
        if not is_stratified:
            return self._find(np.minimum(points * self._total, highest))
        self._kernels.stratify(points, *_strata(size), self._total / size, highest)
        leaves = self._find(points)
        rng.shuffle(leaves)
        return leaves

    def clear(self) -> None:
        """Set all weights to zero. O(capacity)."""
        self._nodes.fill(0)
        self._masses.fill(0)
        self._total = 0.0
        self._num_unsettled = 0
        self._max = self._min = None

    def check(self) -> None:
        """Verify all sums by recomputing them. O(capacity).

        Raises:
            CorruptionError: A weight is invalid, or a sum is wrong.
        """
        live = self._leaves[: self._capacity]
        is_legal = (live >= 0) & (live <= self._heaviest)
        for leaf in np.flatnonzero(~is_legal):
            raise errors.CorruptionError(
                f"weight of leaf {leaf} must be in [0, {self._heaviest:.6g}], found {live[leaf]}"
            )
        if self._leaves[self._capacity :].any():
            raise errors.CorruptionError(f"weights beyond leaf {self._capacity - 1} must be 0")
        total = self.total
        levels = draw.levels(self._nodes, self._offsets)
        for height, (below, level) in enumerate(zip(levels.blocks, levels.entries[1:], strict=True), start=1):
            expected = draw.sums(below)
            for entry in np.flatnonzero(level != expected):
                raise errors.CorruptionError(
                    f"sum {entry} of level {height} must be {expected[entry]}, found {level[entry]}"
                )
        masses = np.concatenate([[0.0], levels.entries[-1].cumsum()])
        if not np.array_equal(self._masses, masses) or total != masses[-1]:
            raise errors.CorruptionError("running sums of the top are not those of its entries")

    def _require_weight(self, call: str) -> None:
        """Update the sums; raise NotReadyError if all weights are zero."""
        if self.total == 0.0:
            raise errors.NotReadyError(f"{call} found all weights zero: set a weight above 0 first")

    def _find(self, points: arrays_lib.Floats) -> arrays_lib.Ints:
        """Return the leaves [k] of `points` [k] in [0, total), which are overwritten."""
        leaves: arrays_lib.Ints = self._kernels.find(self._levels, self._masses, points)
        return leaves

    def _checked_leaves(self, leaves: npt.ArrayLike) -> arrays_lib.Ints:
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


def _sizes(capacity: int) -> list[int]:
    """Return how many entries each level has, the leaves first: whole blocks up to the top."""
    widest = -(-WIDEST_TOP // draw.WIDTH) * draw.WIDTH
    unit = draw.WIDTH
    while -(-capacity // unit) * draw.WIDTH > widest:
        unit *= draw.WIDTH
    sizes = [-(-capacity // unit) * unit]
    while sizes[-1] > widest:
        sizes.append(sizes[-1] // draw.WIDTH)
    return sizes


@functools.lru_cache(maxsize=8)
def _strata(size: int) -> tuple[arrays_lib.Floats, arrays_lib.Floats]:
    """Return the start of each of `size` strata of width 1, and a point near its end that scaling keeps inside."""
    edges = np.arange(size + 1, dtype=np.float64)
    return edges[:-1], np.nextafter(np.nextafter(edges[1:], 0), 0)


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(
            f"{name} must be an array of numbers, got {validation.short_repr(values)}"
        ) from error


def _real_numbers(name: str, values: npt.ArrayLike) -> arrays_lib.Floats:
    numbers = _array(name, values)
    if numbers.dtype == np.float64:
        return numbers
    if numbers.dtype.kind not in "biuf":
        raise errors.ArgumentTypeError(f"{name} must be real numbers, got {validation.short_repr(values)}")
    with np.errstate(over="ignore"):
        return numbers.astype(np.float64)
