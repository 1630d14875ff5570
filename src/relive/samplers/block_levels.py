"""Levels of blocks over an array of leaves: each entry reduces a block of 8 entries of the level below it.

    top       at most 4096 entries
    ...
    level 1   one entry for 8 leaves
    leaves

The top is padded with zeros to whole blocks, and below an entry of the top there is always a block, if of zeros.

An entry is computed from its block alone, so it depends on what is there and not on what was there before.
"""

from collections.abc import Callable
import math

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SHIFT = 3
WIDTH = 1 << _SHIFT
"""How many entries a block has."""
WIDEST_TOP = 4096
"""How many entries the top has at most."""
_CHUNK = 1 << 16


class Levels(arrays.Derived):
    """Levels of blocks above the leaves: each entry is the reduction of a block of 8 entries of the level below.

    Args:
        reduce: Answers the reductions [n] of blocks [n, 8], each from its block alone.
        lowest: The leaves; they are shared, not copied.
    """

    _DERIVED = ("blocks",)

    def __init__(self, reduce: Callable[[Floats], Floats], lowest: Floats) -> None:
        self._reduce = reduce
        self.levels = [lowest]
        """The leaves, and above them level after level up to the top."""
        while len(self.levels[-1]) > _widest_top():
            self.levels.append(np.zeros(len(self.levels[-1]) // WIDTH))
        self._derive()

    def _derive(self) -> None:
        self.blocks: list[Floats] = [level.reshape(-1, WIDTH) for level in self.levels[:-1]]
        """Each level below the top again, as blocks [n, 8]."""

    def recompute(self, slots: Ints) -> None:
        """Brings what stands above the leaves `slots` [k] up to date."""
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
        """Recomputes all levels.

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


def leaves(count: int) -> Floats:
    """Answers zeros for at least `count` leaves, padded so that the levels above them have whole blocks."""
    unit = WIDTH
    while -(-count // unit) * WIDTH > _widest_top():
        unit *= WIDTH
    return np.zeros(-(-count // unit) * unit)


def _widest_top() -> int:
    return -(-WIDEST_TOP // WIDTH) * WIDTH


def sums(blocks: Floats) -> Floats:
    """Return the sums [n] of blocks [n, m], each added up from left to right: the same bits on every machine."""
    # numpy adds whole rows to each other, one after the other; the numbers of a single column it adds in an order of
    # its own, so there shall be two.
    columns = blocks.T.copy() if len(blocks) > 1 else np.repeat(blocks.T, 2, axis=1)
    totals: Floats = np.add.reduce(columns, axis=0)[: len(blocks)]
    return totals


def maxima(blocks: Floats) -> Floats:
    """Answers the largest entries [n] of blocks [n, m]."""
    # numpy compares whole rows at a time, and these rows are long where those of `blocks` are short.
    largest: Floats = blocks.T.copy().max(axis=0)
    return largest


def minima(blocks: Floats) -> Floats:
    """Answers the smallest entries [n] above zero of `blocks` [n, m], infinity where there is none."""
    weights = blocks.T.copy()
    np.copyto(weights, math.inf, where=weights == 0)
    smallest: Floats = weights.min(axis=0)
    return smallest
