"""The suite passes for correct classes, and fails for broken ones."""

from collections.abc import Callable
import random
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.common import arrays
from relive.samplers import anchors as anchors_lib
from relive.samplers import prioritized
from relive.samplers import sampler
from relive.samplers import sum_tree
from relive.samplers import uniform
from relive.schema import schema as schemas
from relive.storage import memory as storages
from relive.storage import steps
from relive.testing import sampler_suite


class BySlot(prioritized.PrioritizedSampler):
    """Draws in proportion to the slot, counted by five."""

    def _added(self, slots: arrays.Slots) -> None:
        super()._added(slots)
        self.set_priorities(slots, (slots % 5).astype(np.float64))


class Newest(sampler.Sampler):
    """Draws among the newest anchors: the one of the guide."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.newest = np.zeros(0, np.int64)

    def _added(self, slots: arrays.Slots) -> None:
        self.newest = np.concatenate([self.newest, slots])[-self.most :]

    def _removed(self, slots: arrays.Slots) -> None:
        self.newest = self.newest[~np.isin(self.newest, slots)]

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        newest = self.newest if self.newest.size else self.anchors.slots()
        return sampler.Draw(rng.choice(newest, size), np.full(size, 1 / newest.size))


class Even(sampler.Sampler):
    """Draws only even slots, and reports their probabilities."""

    def drawable(self) -> arrays.Slots:
        return np.intersect1d(self.anchors.slots(), np.arange(0, self.anchors.capacity, 2))

    def can_draw(self) -> bool:
        return len(self.drawable()) > 0

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        if not self.can_draw():
            raise errors.NotReadyError("no slot is even: add steps first")
        return sampler.Draw(rng.choice(self.drawable(), size), np.full(size, 1 / len(self.drawable())))


class Balanced(sampler.Sampler):
    """Draws every label equally often, and looks for it in a storage: the one of the guide."""

    def __init__(self, storage: storages.Storage, num_labels: int) -> None:
        self.storage = storage
        self.trees = [sum_tree.SumTree(storage.capacity) for _ in range(num_labels)]

    def _added(self, slots: arrays.Slots) -> None:
        labels = self.storage.read(slots, ["extras/label"])["extras/label"]
        for label, tree in enumerate(self.trees):
            tree.set(slots[labels == label], 1.0)

    def _removed(self, slots: arrays.Slots) -> None:
        for tree in self.trees:
            tree.set(slots, 0.0)

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        trees = [tree for tree in self.trees if tree.total]
        slots, probabilities = np.empty(size, np.int64), np.empty(size)
        chosen = rng.integers(len(trees), size=size)
        for label, tree in enumerate(trees):
            here = np.flatnonzero(chosen == label)
            if here.size:
                slots[here] = tree.sample(here.size, rng)
                probabilities[here] = 1 / (len(trees) * tree.total)
        return sampler.Draw(slots, probabilities)


class TestUniformSampler(sampler_suite.SamplerTests):
    def make(self) -> sampler.Sampler:
        return uniform.UniformSampler()


class TestPrioritizedSampler(sampler_suite.SamplerTests):
    def make(self) -> sampler.Sampler:
        return BySlot(stratified=True)


class TestPrioritizedSamplerThatNeverDrawsSome(sampler_suite.SamplerTests):
    """Those of priority 0."""

    def make(self) -> sampler.Sampler:
        return BySlot(stratified=False, epsilon=0.0, new_priority="live")


class TestNewest(sampler_suite.SamplerTests):
    def make(self) -> sampler.Sampler:
        return Newest(5)


@pytest.mark.long
class TestEven(sampler_suite.SamplerTests):
    def make(self) -> sampler.Sampler:
        return Even()


@pytest.mark.long
class TestBalanced(sampler_suite.SamplerTests):
    def make(self) -> sampler.Sampler:
        field = schemas.Field((), np.int64)
        storage = storages.ColumnStorage(schemas.Schema(field, field, extras={"label": field}), 40)
        slots = np.arange(40)
        columns = {"observation": slots, "action": slots, "reward": np.zeros(40), "extras/label": slots % 7 % 3}
        storage.write(slots, columns)
        return Balanced(storage, 3)


class Honest(sampler.Sampler):
    """A sampler to break in one way at a time."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def _added(self, slots: arrays.Slots) -> None:
        self.kept += slots.tolist()

    def _removed(self, slots: arrays.Slots) -> None:
        self.kept = [slot for slot in self.kept if slot not in slots]

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return sampler.Draw(rng.choice(self.kept, size), np.full(size, 1 / len(self.kept)))

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        return self.anchors.is_eligible(slots) / max(len(self.kept), 1)


class TestHonest(sampler_suite.SamplerTests):
    def make(self) -> sampler.Sampler:
        return Honest()


class KeepsNoSetting(Honest):
    def __init__(self, most: int = 5) -> None:
        super().__init__()


class Fewer(Honest):
    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return super().draw(min(size, len(self.kept)), rng)


class FewerSlots(Honest):
    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        slots, probabilities = super().draw(size, rng)
        return sampler.Draw(slots[:1], probabilities)


class OneProbability(Honest):
    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return sampler.Draw(super().draw(size, rng).slots, np.ones(1))


class IgnoresRemoved(Honest):
    def _removed(self, slots: arrays.Slots) -> None:
        pass


class IgnoresAllButOverwritten(IgnoresRemoved):
    def _overwritten(self, slots: arrays.Slots) -> None:
        Honest._removed(self, slots)


class Unchecked(IgnoresRemoved):
    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return self._draw(size, rng)


class HidesSome(Honest):
    def drawable(self) -> arrays.Slots:
        return np.array(self.kept[1:], np.int64)


class ShowsTooMuch(Honest):
    def drawable(self) -> arrays.Slots:
        return np.arange(self.anchors.capacity)


class IsOutOfOrder(Honest):
    def check(self) -> None:
        if len(self.kept) > 3:
            raise errors.CorruptionError("something is wrong")


class WritesIntoWhatItHears(Honest):
    def _removed(self, slots: arrays.Slots) -> None:
        super()._removed(slots)
        slots[...] = 0


class RefusesSilently(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        if len(self.kept) < 3:
            raise errors.NotReadyError("too few anchors: add steps first")
        return super()._draw(size, rng)


class DrawsThoughItCannot(Honest):
    def can_draw(self) -> bool:
        return len(self.kept) > 2


class NeverDraws(Honest):
    def can_draw(self) -> bool:
        return False


class NeverDrawsOne(DrawsThoughItCannot):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        if not self.can_draw():
            raise errors.NotReadyError("too few anchors: add steps first")
        return super()._draw(size, rng)


class StaysWithTheFirst(Honest):
    def _added(self, slots: arrays.Slots) -> None:
        super()._added(slots)
        self.first = getattr(self, "first", slots[0])

    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return sampler.Draw(np.full(size, self.first), np.ones(size))


class CountsSlots(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return sampler.Draw(rng.choice(self.kept, size), np.full(size, 1 / self.anchors.capacity))


class TellsOfTheIneligible(Honest):
    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        return np.full(len(slots), 1 / max(len(self.kept), 1))


class TellsSomethingElse(Honest):
    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        return super().probabilities(slots) * 0.999


class Reports(Honest):
    """Reports probabilities of places in a batch."""

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        return np.full(len(slots), np.nan)

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        slots = rng.choice(self.kept, size)
        return sampler.Draw(slots, np.linspace(0.1, 0.2, size))


class IsTooSure(Reports):
    def draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return sampler.Draw(super().draw(size, rng).slots, np.full(size, 1.5))


class Changes(Reports):
    """Reports right probabilities at first, and wrong ones later."""

    num_draws = 0

    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        self.num_draws += 1
        share = 1.0 if self.num_draws < 50 else 0.99
        return sampler.Draw(rng.choice(self.kept, size), np.full(size, share / len(self.kept)))


class ReportsHalf(Reports):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return sampler.Draw(rng.choice(self.kept, size), np.full(size, 0.5 / len(self.kept)))


class ReportsTwice(Reports):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return sampler.Draw(rng.choice(self.kept, size), np.full(size, min(2 / len(self.kept), 1.0)))


class PrefersTheFirst(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        places = np.maximum(rng.integers(-1, len(self.kept), size), 0)
        return sampler.Draw(np.array(self.kept)[places], np.full(size, 1 / len(self.kept)))


class NeverDrawsTheLast(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        slots = self.kept[: max(len(self.kept) - 1, 1)]
        return sampler.Draw(rng.choice(slots, size), np.full(size, 1 / len(self.kept)))


class SeedsItself(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return super()._draw(size, np.random.default_rng())


class CannotByChance(Honest):
    def can_draw(self) -> bool:
        return bool(np.random.default_rng().random() < 0.5)


class DrawsFromNumpy(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        slots = np.random.choice(self.kept, size)  # noqa: NPY002
        return sampler.Draw(slots, np.full(size, 1 / len(self.kept)))


class DrawsFromPython(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler.Draw:
        return sampler.Draw(np.array(random.choices(self.kept, k=size)), np.full(size, 1 / len(self.kept)))


class BelongsToAll(Honest):
    def attach(self, anchors: anchors_lib.Anchors) -> steps.Rating:
        self.anchors = anchors
        return steps.unrated(tracked=True)


class GoesOver(Honest):
    """Refuses a second buffer, but then works with it."""

    def attach(self, anchors: anchors_lib.Anchors) -> steps.Rating:
        is_another = self.is_attached
        self.anchors = anchors
        if is_another:
            raise errors.ArgumentError("sampler must belong to one buffer alone")
        return steps.unrated(tracked=True)


class WeighsOne(Honest):
    def weights(self, importance: arrays.Floats, beta: float | None = None) -> arrays.Floats:
        return importance[:1]


class WeighsNothing(Honest):
    def weights(self, importance: arrays.Floats, beta: float | None = None) -> arrays.Floats:
        return importance * np.nan


SUITE = sampler_suite.SamplerTests
BROKEN: list[tuple[type[sampler.Sampler], Callable[..., None]]] = [
    (Fewer, SUITE.test_draws_are_of_the_size_that_was_asked_for),
    (FewerSlots, SUITE.test_draws_are_of_the_size_that_was_asked_for),
    (OneProbability, SUITE.test_draws_are_of_the_size_that_was_asked_for),
    (IgnoresRemoved, SUITE.test_draws_are_eligible_whatever_has_happened),
    (IgnoresAllButOverwritten, SUITE.test_draws_are_eligible_whatever_has_happened),
    (Unchecked, SUITE.test_draws_are_eligible_whatever_has_happened),
    (HidesSome, SUITE.test_draws_are_eligible_whatever_has_happened),
    (ShowsTooMuch, SUITE.test_draws_are_eligible_whatever_has_happened),
    (IsOutOfOrder, SUITE.test_draws_are_eligible_whatever_has_happened),
    (WritesIntoWhatItHears, SUITE.test_draws_are_eligible_whatever_has_happened),
    (RefusesSilently, SUITE.test_a_draw_that_cannot_be_made_is_told_of),
    (DrawsThoughItCannot, SUITE.test_a_draw_that_cannot_be_made_is_told_of),
    (NeverDraws, SUITE.test_a_single_anchor_is_drawn),
    (NeverDrawsOne, SUITE.test_a_single_anchor_is_drawn),
    (CountsSlots, SUITE.test_a_single_anchor_is_drawn),
    (StaysWithTheFirst, SUITE.test_a_single_anchor_is_drawn),
    (TellsOfTheIneligible, SUITE.test_probabilities_are_those_of_a_draw),
    (TellsSomethingElse, SUITE.test_probabilities_are_those_of_a_draw),
    (IsTooSure, SUITE.test_probabilities_are_those_of_a_draw),
    (Reports, SUITE.test_probabilities_are_those_of_a_draw),
    (Changes, SUITE.test_draws_fall_as_often_as_they_say),
    (ReportsHalf, SUITE.test_draws_fall_as_often_as_they_say),
    (ReportsTwice, SUITE.test_draws_fall_as_often_as_they_say),
    (PrefersTheFirst, SUITE.test_draws_fall_as_often_as_they_say),
    (NeverDrawsTheLast, SUITE.test_draws_fall_as_often_as_they_say),
    (SeedsItself, SUITE.test_the_same_generator_state_gives_the_same_draws),
    (CannotByChance, SUITE.test_the_same_generator_state_gives_the_same_draws),
    (DrawsFromNumpy, SUITE.test_the_same_generator_state_gives_the_same_draws),
    (DrawsFromNumpy, SUITE.test_global_randomness_is_left_alone),
    (DrawsFromPython, SUITE.test_global_randomness_is_left_alone),
    (BelongsToAll, SUITE.test_it_belongs_to_one_buffer),
    (GoesOver, SUITE.test_it_belongs_to_one_buffer),
    (KeepsNoSetting, SUITE.test_a_buffer_with_it_can_be_saved),
    (IgnoresRemoved, SUITE.test_a_ring_that_wraps_many_times_is_drawn_from),
    (Unchecked, SUITE.test_a_ring_that_wraps_many_times_is_drawn_from),
    (IsOutOfOrder, SUITE.test_a_ring_that_wraps_many_times_is_drawn_from),
    (WeighsOne, SUITE.test_a_ring_that_wraps_many_times_is_drawn_from),
    (WeighsNothing, SUITE.test_a_ring_that_wraps_many_times_is_drawn_from),
    (IgnoresAllButOverwritten, SUITE.test_what_is_set_ineligible_in_a_ring_is_not_drawn),
    (IgnoresRemoved, SUITE.test_a_ring_that_was_cleared_is_drawn_from_anew),
    (RefusesSilently, SUITE.test_what_has_been_drawn_max_times_sampled_times_is_not_drawn),
    (IgnoresAllButOverwritten, SUITE.test_what_has_been_drawn_max_times_sampled_times_is_not_drawn),
]


@pytest.mark.parametrize(("broken", "test"), BROKEN)
def test_a_sampler_that_is_broken_fails(broken: type[sampler.Sampler], test: Callable[..., None]) -> None:
    class Suite(sampler_suite.SamplerTests):
        def make(self) -> sampler.Sampler:
            return broken()

    kinds = AssertionError, errors.SamplerError, errors.NotReadyError, errors.CorruptionError, errors.CheckpointError
    with pytest.raises(kinds):
        test(Suite())


def test_every_test_of_samplers_can_fail() -> None:
    tested: set[Any] = {test.__name__ for _, test in BROKEN}
    assert tested == {name for name in vars(sampler_suite.SamplerTests) if name.startswith("test_")}
