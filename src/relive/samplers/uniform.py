"""UniformSampler: draws every eligible anchor with the same probability."""

import math

import numpy as np

from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.kernels import choice
from relive.samplers import anchors as anchors_lib
from relive.samplers import sampler

_MOST_TRIES = 1 << 16
_SPARSE = 64
"""Where less than one row in this many is eligible, a list of eligible rows is faster than trying rows."""


class UniformSampler(sampler.Sampler, is_checked=False):
    """Draws every eligible anchor with the same probability, in O(1) per draw.

    Draws from all stored rows and rejects those that are not eligible. Only if very few are eligible, the first draw
    after a change lists them in O(capacity).
    """

    def attach(self, anchors: anchors_lib.Anchors) -> None:
        """Attach the sampler to the anchors of a buffer; see Sampler."""
        self._kernels = choice.chosen()
        super().attach(anchors)

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        anchors = self.anchors
        num = anchors.num
        rows, count = num.item(append.ROWS), num.item(append.ELIGIBLE)
        probabilities = np.empty(size)
        probabilities.fill(1.0 / count)
        if count * _SPARSE < rows:
            return sampler.Draw(anchors.listed().take((rng.random(size) * count).astype(np.int64)), probabilities)
        draw_uniform = self._kernels.draw_uniform
        slots = draw_uniform(anchors.flags, num, rng.random(_num_tries(size, rows, count)))
        parts, found = [slots], len(slots)
        while found < size:
            parts.append(draw_uniform(anchors.flags, num, rng.random(_num_tries(size - found, rows, count))))
            found += len(parts[-1])
        if len(parts) > 1:  # Once, at the end: a large batch may take a thousand of them.
            slots = np.concatenate(parts)
        return sampler.Draw(slots if found == size else slots[:size], probabilities)

    def probabilities(self, slots: arrays_lib.Slots) -> arrays_lib.Floats:
        """Return 1 / N for each of `slots` [B]; 0 if it is not eligible."""
        return self.anchors.is_eligible(slots) / max(len(self.anchors), 1)

    def effective_sample_size(self) -> float | None:
        """Return N, the number of eligible anchors. O(1)."""
        return super().effective_sample_size() if self._is_checked else float(len(self.anchors))


def _num_tries(missing: int, rows: int, count: int) -> int:
    """Return how many of `rows` rows to try for as many of the `count` eligible ones: more than needed on average."""
    return missing if count == rows else min(math.ceil(1.125 * missing * rows / count) + 16, _MOST_TRIES)
