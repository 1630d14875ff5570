"""The kernels of draws in proportion to weights, in numpy.

A sum tree is one flat array of float64, `nodes`: all leaves, then level after level, each entry of one the sum of a
block of 8 of the level below, up to the top. Level i is `nodes[offsets[i] : offsets[i + 1]]`, and `masses` is the
running sum of the top, from 0.0 to the total. No weight is -0.0. Sums are added up from left to right, here and in
`relive.kernels.compiled`, so both write the same bits.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relive.common import arrays as arrays_lib
from relive.kernels import append

SHIFT = 3
WIDTH = 1 << SHIFT
"""How many entries a block has."""
_MOST_SUMMED = 1 << 16
_MOST_FOUND = 1 << 10
_FEW = 128
"""Up to so many points, the blocks of a level are summed in one call."""
_WIDTH = np.array(WIDTH)
"""numpy takes an array faster than an int."""
_NUM_SET = np.array([number.bit_count() for number in range(256)])
_ALL_BEGUN = 0xFF


class Levels(NamedTuple):
    """The levels of a tree, the leaves first.

    Attributes:
        entries: The entries of each.
        blocks: Those of each below the top, in blocks [n, 8].
    """

    entries: list[arrays_lib.Floats]
    blocks: list[arrays_lib.Floats]


def levels(nodes: arrays_lib.Floats, offsets: arrays_lib.Ints) -> Levels:
    """Return the levels of a tree as views, as `settle` and `find` take them."""
    entries = [nodes[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
    return Levels(entries, [level.reshape(-1, WIDTH) for level in entries[:-1]])


def settle(levels: Levels, leaves: arrays_lib.Ints, masses: arrays_lib.Floats) -> None:
    """Bring the sums above `leaves` [k] and the running sum of the top up to date. O(k log c) and the top."""
    places = leaves
    if len(leaves) > _MOST_SUMMED:
        sum_above(levels, leaves)
    else:
        for below, level in zip(levels.blocks, levels.entries[1:], strict=True):
            places = places >> SHIFT
            level[places] = sums(below.take(places, 0))
    levels.entries[-1].cumsum(out=masses[1:])


def stratify(
    points: arrays_lib.Floats, firsts: arrays_lib.Floats, lasts: arrays_lib.Floats, scale: float, highest: float
) -> None:
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


def find(levels: Levels, masses: arrays_lib.Floats, points: arrays_lib.Floats) -> arrays_lib.Ints:
    """Return the leaf in whose interval each of `points` [B] in [0, total) lies; none is of weight zero. O(B log c).

    A point goes down to the first child whose running sum is above what is left of it, and where by rounding there is
    none, to the last child above zero.

    Args:
        levels: The tree.
        masses: The running sum of the top.
        points: Masses in any order; they are overwritten.
    """
    if len(points) > _MOST_FOUND:
        parts = [points[start : start + _MOST_FOUND] for start in range(0, len(points), _MOST_FOUND)]
        return np.concatenate([find(levels, masses, part) for part in parts])
    places = masses[1:].searchsorted(points, "right").astype(np.int64, copy=False)
    descend = _descend_rows if len(points) <= _FEW else _descend_columns
    return descend(levels.blocks, points, places, masses.take(places))


def _descend_rows(
    blocks: list[arrays_lib.Floats], left: arrays_lib.Floats, places: arrays_lib.Ints, before: arrays_lib.Floats
) -> arrays_lib.Ints:
    """Return the leaves of `left` [k], given their entries of the top and the sums before those; all are overwritten.

    Each block is a row, summed along it: fewest calls, for few points.
    """
    count, column = len(left), left[:, np.newaxis]
    running = np.zeros((count, WIDTH + 1))
    after = running[:, 1:]
    for height in range(len(blocks) - 1, -1, -1):
        left -= before
        found = blocks[height].take(places, 0)
        found.cumsum(1, None, after)
        begun = np.packbits(after <= column)  # A byte for each row.
        children = _NUM_SET.take(begun)
        if _ALL_BEGUN in begun.tobytes():
            _go_back(children, found)
        places *= _WIDTH
        places += children
        if height:
            children += _firsts(count)
            before = running.take(children)
    return places


def _descend_columns(
    blocks: list[arrays_lib.Floats], left: arrays_lib.Floats, places: arrays_lib.Ints, before: arrays_lib.Floats
) -> arrays_lib.Ints:
    """Do what `_descend_rows` does; a call for each child adds numbers of all points, which is fastest for many."""
    count = len(left)
    running, columns = np.empty((WIDTH + 1, count)), np.arange(count)
    running[0] = 0.0
    flat, after, totals = running.reshape(-1), running[1:], [*running]
    for height in range(len(blocks) - 1, -1, -1):
        left -= before
        found = blocks[height].take(places, 0)
        for total, child, following in zip(totals, found.T, totals[1:], strict=False):
            np.add(total, child, following)  # Faster than `accumulate`, along either axis.
        begun = np.add.reduce((after <= left).view(np.uint8), axis=0, dtype=np.uint8)
        children = begun.astype(np.int64)
        if WIDTH in begun.tobytes():
            _go_back(children, found)
        places *= _WIDTH
        places += children
        if height:
            children *= count
            children += columns
            before = flat.take(children)
    return places


def _go_back(children: arrays_lib.Ints, blocks: arrays_lib.Floats) -> None:
    """Where rounding has led beyond the last child, take the last one above zero."""
    for row in np.flatnonzero(children == WIDTH).tolist():
        children[row] = np.flatnonzero(blocks[row])[-1]


@functools.lru_cache(maxsize=8)
def _firsts(count: int) -> arrays_lib.Ints:
    """Return where in a flat table of `count` rows of running sums each begins."""
    firsts = np.arange(0, count * (WIDTH + 1), WIDTH + 1)
    firsts.flags.writeable = False
    return firsts


def sum_above(levels: Levels, leaves: arrays_lib.Ints) -> None:
    """Compute anew each entry above `leaves` [k], which may repeat: the sum of its block of the level below."""
    places = leaves
    for below, level in zip(levels.blocks, levels.entries[1:], strict=True):
        places = places >> SHIFT
        if len(places) > _MOST_SUMMED:
            is_above = np.zeros(len(level), np.bool_)
            is_above[places] = True
            (places,) = is_above.nonzero()
        for start in range(0, len(places), _MOST_SUMMED):
            some = places[start : start + _MOST_SUMMED]
            level[some] = sums(below.take(some, axis=0))


def sums(blocks: arrays_lib.Floats) -> arrays_lib.Floats:
    """Return the sums [n] of blocks [n, 8], each added up from left to right."""
    # numpy adds whole rows to each other, one after the other; the numbers of a single column it would add in an order
    # of its own.
    if len(blocks) == 1:
        return np.asarray(blocks.cumsum(axis=1)[:, -1])
    return np.asarray(np.add.reduce(blocks.T.copy(), axis=0))


def draw_uniform(flags: npt.NDArray[np.uint8], num: arrays_lib.Ints, points: arrays_lib.Floats) -> arrays_lib.Ints:
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
