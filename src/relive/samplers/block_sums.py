"""Sums of weights in levels of blocks, and the way down through them from a mass to its leaf.

    masses    0   10   36   62          the top as one running sum, which is searched
    top       10  26   26
    leaves    1 2 3 4   5 6 7 8   ...   a block: what stands before each of its entries says which of them has begun

A whole batch goes down a level by one gather, one running sum and one comparison.
"""

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.samplers import block_levels

_AT_ONCE = 1024


class BlockSums(block_levels.Levels):
    """Levels of sums over weights, whose top is searched as one running sum.

    Args:
        lowest: The weights, as `block_levels.leaves` makes them; they are shared, not copied.
    """

    def __init__(self, lowest: arrays.Floats) -> None:
        super().__init__(block_levels.sums, lowest)
        # The mass before each entry of the top, and at last the total.
        self._masses: arrays.Floats = np.zeros(len(self.levels[-1]) + 1)
        self.total = 0.0
        """The sum of the weights when `refresh` was called last."""

    def refresh(self) -> None:
        """Brings the running sum of the top up to date."""
        running_sums(self.levels[-1], self._masses[1:])
        self.total = self._masses.item(-1)

    def find(self, masses: arrays.Floats) -> arrays.Ints:
        """Answers the leaf [k] in whose interval each of `masses` [k] in [0, total) lies; none is of weight zero."""
        count = len(masses)
        if count > _AT_ONCE:
            return np.concatenate([self.find(masses[start : start + _AT_ONCE]) for start in range(0, count, _AT_ONCE)])
        if count < 2 or not self.blocks:
            return self._find_with_care(masses)
        nodes = self._entries_of_the_top(masses)
        rows = np.arange(0, count * block_levels.WIDTH, block_levels.WIDTH)
        left, earlier, places = masses, self._masses, nodes
        for blocks in reversed(self.blocks):
            left = left - earlier.take(places)
            earlier = earlier_sums(blocks.take(nodes, axis=0))
            children = last_begun(earlier, left)
            places = rows + children
            nodes *= block_levels.WIDTH
            nodes += children
        weights = self.levels[0].take(nodes)
        if weights.item(weights.argmin()) == 0.0:
            strays = np.flatnonzero(weights == 0.0)
            nodes[strays] = self._find_with_care(masses[strays])
        return nodes

    def _find_with_care(self, masses: arrays.Floats) -> arrays.Ints:
        """Answers the same, and never a weight of zero, not even where a mass by rounding reaches its block's end."""
        nodes = self._entries_of_the_top(masses)
        left = masses - self._masses.take(nodes)
        rows = np.arange(len(masses))
        running = np.zeros((len(masses), block_levels.WIDTH + 1))
        for blocks in reversed(self.blocks):
            blocks.take(nodes, axis=0).cumsum(axis=1, out=running[:, 1:])
            left = np.minimum(left, np.nextafter(running[:, -1], 0))
            children = np.count_nonzero(running[:, 1:] <= left[:, np.newaxis], axis=1)
            left = left - running[rows, children]
            nodes = nodes * block_levels.WIDTH + children
        return nodes

    def _entries_of_the_top(self, masses: arrays.Floats) -> arrays.Ints:
        """Answers the entry [k] of the top in which each of `masses` [k] lies; it is above zero."""
        return self._masses[1:].searchsorted(masses, side="right").astype(np.int64, copy=False)

    def check(self, name: str) -> None:
        """Recomputes all levels and the running sum.

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
    """Answers the last entry [n] of each row of `begins` [n, 8], which rise from 0, that is at most its mass [n]."""
    # The eight truths of a row are the bytes of one number: a fourth of the time of looking for the last of them.
    has_begun = (begins <= masses[:, np.newaxis]).view(np.uint64)
    entries = np.bitwise_count(has_begun[:, 0]).astype(np.int64)
    entries -= 1
    return entries


def running_sums(entries: arrays.Floats, out: arrays.Floats) -> None:
    """Writes the sums of `entries` [n], n even, up to each of them to `out` [n], which never falls.

    It rises nowhere but at an entry above zero.
    """
    # Those at even places and those at odd ones are added up side by side, in half the time of one after another.
    pairs: npt.NDArray[np.complex128] = entries.view(np.complex128).cumsum()
    np.add(pairs.real, pairs.imag, out=out[1::2])
    np.add(pairs.real[1:], pairs.imag[:-1], out=out[2::2])
    out[0] = entries[0]
