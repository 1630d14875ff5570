"""The kernels of draws in proportion to weights, in numpy.

A sum tree is one flat array of float64, `nodes`: all leaves, then level after level, each entry of one the sum of a
block of 8 of the level below, up to the top. Level i is `nodes[offsets[i] : offsets[i + 1]]`, and `masses` is the
running sum of the top, from 0.0 to the total. No weight is -0.0. Sums are added up from left to right, here and in
`relive.kernels.compiled`, so both write the same bits.
"""

from collections.abc import Sequence
import functools
import itertools

import numpy as np
import numpy.typing as npt

from relive.common import arrays
from relive.kernels import append

SHIFT = 3
WIDTH = 1 << SHIFT
"""How many entries a block has."""
_MOST_SUMMED = 1 << 16
_MOST_FOUND = 1 << 10
_FEW = 192
"""Up to so many points, the blocks of a level are summed in one call."""


def settle(nodes: arrays.Floats, offsets: arrays.Ints, leaves: arrays.Ints, masses: arrays.Floats) -> None:
    """Bring the sums above `leaves` [k] and the running sum of the top up to date. O(k log c) and the top."""
    ends, places = offsets.tolist(), leaves
    if len(leaves) > _MOST_SUMMED:
        sum_above(split(nodes, offsets), leaves)
    else:
        for height in range(len(ends) - 2):
            places = places >> SHIFT
            blocks = nodes[ends[height] : ends[height + 1]].reshape(-1, WIDTH).take(places, axis=0)
            nodes[ends[height + 1] : ends[height + 2]][places] = sums(blocks)
    nodes[ends[-2] : ends[-1]].cumsum(out=masses[1:])


def stratify(points: arrays.Floats, firsts: arrays.Floats, lasts: arrays.Floats, scale: float, highest: float) -> None:
    """Turn `points` [B] in [0, 1) into masses, the j-th in [j scale, (j + 1) scale), none above `highest`.

    Args:
        points: They are overwritten.
        firsts: The first point of each of B strata of width 1, [B].
        lasts: Points so near the ends of the strata that scaling keeps them in, [B].
        scale: The width of a stratum.
        highest: The largest mass.
    """
    points += firsts
    # Rounding could lift the last point of a stratum onto the edge, which belongs to the next one.
    np.minimum(points, lasts, out=points)
    points *= scale
    np.minimum(points, highest, out=points)


def find(
    nodes: arrays.Floats, offsets: arrays.Ints, masses: arrays.Floats, points: arrays.Floats, leaves: arrays.Ints
) -> None:
    """Find the leaf in whose interval each of `points` [B] in [0, total) lies; none is of weight zero. O(B log c).

    A point goes down to the first child whose running sum is above what is left of it, and where by rounding there is
    none, to the last child above zero.

    Args:
        nodes: All levels of the tree.
        offsets: Where each level begins, and where the last one ends.
        masses: The running sum of the top.
        points: Masses in any order; they are overwritten.
        leaves: Where to write the leaves, [B].
    """
    ends = offsets.tolist()
    for start in range(0, len(points), _MOST_FOUND):
        left = points[start : start + _MOST_FOUND]
        places = masses[1:].searchsorted(left, side="right").astype(np.int64, copy=False)
        descend = _descend_rows if len(left) <= _FEW else _descend_columns
        leaves[start : start + _MOST_FOUND] = descend(nodes, ends, left, places, masses.take(places))


def _descend_rows(
    nodes: arrays.Floats, ends: list[int], left: arrays.Floats, places: arrays.Ints, before: arrays.Floats
) -> arrays.Ints:
    """Return the leaves of `left` [k], given their entries of the top and the sums before those; all are overwritten.

    Each block is a row, summed along it: fewest calls, for few points.
    """
    firsts, column = _firsts(len(left)), left[:, np.newaxis]
    for height in range(len(ends) - 3, -1, -1):
        left -= before
        blocks = nodes[ends[height] : ends[height + 1]].reshape(-1, WIDTH).take(places, axis=0)
        running = blocks.cumsum(axis=1)
        children = np.add.reduce(running <= column, axis=1, dtype=np.int64)
        if children.item(children.argmax()) == WIDTH:
            _go_back(children, blocks)
        places *= WIDTH
        places += children
        if height:
            before = running.take(np.maximum(firsts + children, 0))
            before *= children > 0
    return places


def _descend_columns(
    nodes: arrays.Floats, ends: list[int], left: arrays.Floats, places: arrays.Ints, before: arrays.Floats
) -> arrays.Ints:
    """Do what `_descend_rows` does; a call for each child adds numbers of all points, which is fastest for many."""
    count = len(left)
    running = np.empty((WIDTH + 1, count))
    running[0] = 0.0
    flat, after, columns = running.reshape(-1), running[1:], np.arange(count)
    for height in range(len(ends) - 3, -1, -1):
        left -= before
        blocks = nodes[ends[height] : ends[height + 1]].reshape(-1, WIDTH).take(places, axis=0)
        for total, child, following in zip(running, blocks.T, after, strict=False):
            np.add(total, child, following)  # Faster than `accumulate`, along either axis.
        children: arrays.Ints = np.add.reduce((after <= left).view(np.uint8), axis=0, dtype=np.int64)
        if children.item(children.argmax()) == WIDTH:
            _go_back(children, blocks)
        places *= WIDTH
        places += children
        if height:
            children *= count
            children += columns
            before = flat.take(children)
    return places


def _go_back(children: arrays.Ints, blocks: arrays.Floats) -> None:
    """Where rounding has led beyond the last child, take the last one above zero."""
    for row in np.flatnonzero(children == WIDTH).tolist():
        children[row] = np.flatnonzero(blocks[row])[-1]


@functools.lru_cache(maxsize=8)
def _firsts(count: int) -> arrays.Ints:
    """Return where in a flat table of `count` blocks each begins, less 1."""
    firsts = np.arange(0, count * WIDTH, WIDTH) - 1
    firsts.flags.writeable = False
    return firsts


def split(nodes: arrays.Floats, offsets: arrays.Ints) -> list[arrays.Floats]:
    """Return the levels of a tree as views, the leaves first."""
    return [nodes[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]


def sum_above(levels: Sequence[arrays.Floats], leaves: arrays.Ints) -> None:
    """Compute anew each entry above `leaves` [k]: the sum of its block of the level below.

    Args:
        levels: The leaves, and the levels above them.
        leaves: Some leaves, each as often as it may be.
    """
    places = leaves
    for below, level in itertools.pairwise(levels):
        blocks = below.reshape(-1, WIDTH)
        places = places >> SHIFT
        if len(places) > _MOST_SUMMED:
            is_above = np.zeros(len(level), np.bool_)
            is_above[places] = True
            (places,) = is_above.nonzero()
        for start in range(0, len(places), _MOST_SUMMED):
            some = places[start : start + _MOST_SUMMED]
            level[some] = sums(blocks.take(some, axis=0))


def sums(blocks: arrays.Floats) -> arrays.Floats:
    """Return the sums [n] of blocks [n, 8], each added up from left to right."""
    # numpy adds whole rows to each other, one after the other; the numbers of a single column it would add in an order
    # of its own.
    if len(blocks) == 1:
        return np.asarray(blocks.cumsum(axis=1)[:, -1])
    return np.asarray(np.add.reduce(blocks.T.copy(), axis=0))


def draw_uniform(flags: npt.NDArray[np.uint8], num: arrays.Ints, points: arrays.Floats) -> arrays.Ints:
    """Return the eligible ones of rows drawn from all that are alive: by age, or in a full ring by slot.

    Args:
        flags: What is known of each row, as in `kernels.append`.
        num: The numbers of the ring.
        points: In [0, 1), one for each draw; they are overwritten.
    """
    capacity, alive = len(flags), num.item(append.ROWS)
    points *= float(alive)  # numpy takes a float faster than an int.
    slots = points.astype(np.int64)
    if alive < capacity and (first := (num.item(append.NEXT_KEY) - alive) % capacity):
        slots += first
        slots -= (slots >= capacity) * capacity
    if num.item(append.ELIGIBLE) < alive:
        is_eligible = append.are_eligible(flags.take(slots))
        if b"\0" in is_eligible:
            slots = slots[np.frombuffer(is_eligible, np.bool_)]
    return slots
