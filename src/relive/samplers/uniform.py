"""UniformSampler: draws every eligible anchor with the same probability."""

import math

import numpy as np

from relive.common import arrays
from relive.kernels import append
from relive.kernels import choice
from relive.samplers import sampler

_MOST_TRIES = 1 << 16
_SPARSE = 64
"""Where less than one row in this many is eligible, a list of eligible rows is faster than trying rows."""


class UniformSampler(sampler.Sampler):
    """Draws every eligible anchor with the same probability, in O(1) per draw.

    Draws from all stored rows and rejects those that are not eligible. Only if very few are eligible, the first draw
    after a change lists them in O(capacity).
    """

    def _attached(self, capacity: int) -> None:
        self._kernels = choice.chosen()

    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        """Draw as Sampler does; only eligible anchors are drawn, so no check is needed."""
        return self._draw(size, rng) if type(self) is UniformSampler else super().draw(size, rng)

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        count = len(self.anchors)
        probabilities = np.empty(size)
        probabilities.fill(1.0 / count)
        num = self.anchors.num
        rows, next_key, capacity = num.item(append.ROWS), num.item(append.NEXT_KEY), self.anchors.capacity
        if count * _SPARSE < rows:
            return sampler.Draw(self.anchors.listed().take((rng.random(size) * count).astype(np.int64)), probabilities)
        first = (next_key - rows) % capacity
        if count == rows:
            slots = (rng.random(size) * rows).astype(np.int64)
            if first:
                slots += first
                slots %= capacity
            return sampler.Draw(slots, probabilities)
        parts: list[arrays.Ints] = []
        missing = size
        while missing:
            # Slightly more than needed on average, so that one round usually suffices.
            tries = min(math.ceil(1.125 * missing * rows / count) + 16, _MOST_TRIES)
            slots, num_found = self._kernels.eligible_among(self.anchors.facts, rng.random(tries), rows, first)
            parts.append(slots[: min(num_found, missing)])
            missing -= len(parts[-1])
        return sampler.Draw(parts[0] if len(parts) == 1 else np.concatenate(parts), probabilities)

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        """Return 1 / N for each of `slots` [B]; 0 if it is not eligible."""
        return self.anchors.is_eligible(slots) / max(len(self.anchors), 1)

    def effective_sample_size(self) -> float | None:
        """Return N, the number of eligible anchors. O(1)."""
        return float(len(self.anchors)) if type(self) is UniformSampler else super().effective_sample_size()
