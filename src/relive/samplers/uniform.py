"""UniformSampler: draws every eligible anchor with the same probability."""

import numpy as np

from relive import errors
from relive.common import arrays
from relive.kernels import index_set
from relive.persistence import state
from relive.samplers import sampler


class UniformSampler(sampler.Sampler):
    """Draws every eligible anchor with the same probability. O(1) a draw."""

    def _attached(self, capacity: int) -> None:
        self._drawable = index_set.IndexSet(capacity)

    def _added(self, slots: arrays.Slots) -> None:
        self._drawable.add(slots)

    def _removed(self, slots: arrays.Slots) -> None:
        self._drawable.remove(slots)

    def _added_one(self, slot: int) -> None:
        self._drawable.add_one(slot)

    def _removed_one(self, slot: int) -> None:
        self._drawable.remove_one(slot)

    def _turned(self, lost: int, slot: int, count: int) -> None:
        if not self._drawable.turn(lost, slot, count):
            super()._turned(lost, slot, count)

    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        """Return as Sampler does; here are no draws but of eligible anchors, which need no check."""
        return self._draw(size, rng) if type(self) is UniformSampler else super().draw(size, rng)

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        probabilities = np.empty(size)
        probabilities.fill(1.0 / len(self._drawable))
        return sampler.Draw(self._drawable.sample(size, rng), probabilities)

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        """Return 1 / N for each of `slots` [B]; 0 if it is not eligible."""
        return self._drawable.contains(slots) / max(len(self._drawable), 1)

    def effective_sample_size(self) -> float | None:
        """Return N, as they are drawn alike. O(1)."""
        return float(len(self._drawable)) if type(self) is UniformSampler else super().effective_sample_size()

    def _state(self, slots: arrays.Slots) -> state.State:
        is_interval = self._drawable.is_interval
        order = self._drawable.numbers() if len(slots) else slots
        # Its first number says an interval, which need not begin with the oldest row.
        return {"is_interval": is_interval, "arrays": {"order": order[:1] if is_interval else order}}

    def _check_state(self, given: state.StateReader, rows: int) -> None:
        given.boolean("is_interval")
        given.integers("order", None, 0, self.anchors.capacity - 1)

    def _restore(self, given: state.StateReader, slots: arrays.Slots) -> None:
        is_interval, eligible = given.boolean("is_interval"), slots[self.anchors.is_eligible(slots)]
        order = given.integers("order", None, 0, self.anchors.capacity - 1)
        if is_interval and len(order) == min(len(eligible), 1):
            order = (order + np.arange(len(eligible))) % self.anchors.capacity
        if not np.array_equal(np.sort(order), np.sort(eligible)):
            raise errors.CheckpointError("array sampler/order must hold the eligible anchors")
        self._drawable.restore(order, is_interval)

    def check(self) -> None:
        """Raise CorruptionError if the set is not that of the eligible anchors."""
        self._drawable.check()
        if not np.array_equal(np.sort(self._drawable.numbers()), self.anchors.slots()):
            raise errors.CorruptionError("the uniform sampler does not hold the eligible anchors")
