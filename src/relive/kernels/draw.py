"""The kernels of draws in proportion to weights, in numpy.

A sum tree is one flat array of float64, `nodes`: all leaves, then level after level, each entry of one the sum of a
block of 8 of the level below, up to the top. Level i is `nodes[offsets[i] : offsets[i + 1]]`, and `masses` is the
running sum of the top, from 0.0 to the total. No weight is -0.0. Sums are added up from left to right, here and in
`relive.kernels.compiled`, so both write the same bits.
"""

from collections.abc import Sequence
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


def settle(nodes: arrays.Floats, offsets: arrays.Ints, leaves: arrays.Ints, masses: arrays.Floats) -> None:
    """Bring the sums above `leaves` [k] and the running sum of the top up to date. O(k log c) and the top."""
    levels = split(nodes, offsets)
    sum_above(levels, leaves)
    levels[-1].cumsum(out=masses[1:])


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
        count = len(left)
        columns = np.arange(count)
        running = np.zeros((WIDTH + 1, count))
        sums_before, entries = masses, places
        for height in range(len(ends) - 3, -1, -1):
            left -= sums_before.take(entries)
            blocks = nodes[ends[height] : ends[height + 1]].reshape(-1, WIDTH).take(places, axis=0)
            for child in range(WIDTH):  # Faster than `accumulate`, along either axis.
                np.add(running[child], blocks[:, child], out=running[child + 1])
            begun = (running[1:] <= left).view(np.uint8)
            children = np.add.reduce(begun, axis=0, dtype=np.int64)
            if children.item(children.argmax()) == WIDTH:
                for row in np.flatnonzero(children == WIDTH).tolist():
                    children[row] = np.flatnonzero(blocks[row])[-1]
            places = places * WIDTH
            places += children
            children *= count
            children += columns
            sums_before, entries = running.reshape(-1), children
        leaves[start : start + _MOST_FOUND] = places


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
    points *= alive
    slots = points.astype(np.int64)
    if alive < capacity and (first := (num.item(append.NEXT_KEY) - alive) % capacity):
        slots += first
        slots -= (slots >= capacity) * capacity
    if num.item(append.ELIGIBLE) < alive:
        is_eligible = append.are_eligible(flags.take(slots))
        if b"\0" in is_eligible:
            slots = slots[np.frombuffer(is_eligible, np.bool_)]
    return slots
