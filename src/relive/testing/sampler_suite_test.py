"""The suite passes for correct classes, and fails for broken ones."""

from collections.abc import Callable
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.samplers import anchors as anchors_lib
from relive.testing import sampler_suite


class BySlot(relive.PrioritizedSampler):
    """Draws in proportion to the slot, counted by five."""

    def _added(self, slots: arrays_lib.Slots) -> None:
        super()._added(slots)
        self._set_priorities(slots, (slots % 5).astype(np.float64))


class Even(relive.Sampler):
    """Draws only even slots, and reports their probabilities."""

    def drawable(self) -> arrays_lib.Slots:
        return np.intersect1d(self.anchors.slots(), np.arange(0, self.anchors.capacity, 2))

    def can_draw(self) -> bool:
        return len(self.drawable()) > 0

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        if not self.can_draw():
            raise errors.NotReadyError("no slot is even: add steps first")
        return relive.Draw(rng.choice(self.drawable(), size), np.full(size, 1 / len(self.drawable())))


class Honest(relive.Sampler):
    """A sampler to break in one way at a time."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def _added(self, slots: arrays_lib.Slots) -> None:
        self.kept += slots.tolist()

    def _removed(self, slots: arrays_lib.Slots) -> None:
        self.kept = [slot for slot in self.kept if slot not in slots]

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.Draw(rng.choice(self.kept, size), np.full(size, 1 / len(self.kept)))

    def probabilities(self, slots: arrays_lib.Slots) -> arrays_lib.Floats:
        return self.anchors.is_eligible(slots) / max(len(self.kept), 1)


def suite(make: Callable[[], relive.Sampler]) -> sampler_suite.SamplerTests:
    """Return the suite of the samplers that `make` makes."""

    class Suite(sampler_suite.SamplerTests):
        def make(self) -> relive.Sampler:
            return make()

    return Suite()


TESTS = [name for name in vars(sampler_suite.SamplerTests) if name.startswith("test_")]


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(
    "make",
    [
        relive.UniformSampler,
        lambda: BySlot(stratified=True),
        lambda: BySlot(stratified=False, epsilon=0.0),  # Some, of priority 0, are never drawn.
        pytest.param(Even, marks=pytest.mark.long),
        Honest,
    ],
)
def test_a_correct_sampler_passes(make: Callable[[], relive.Sampler], test: str) -> None:
    getattr(suite(make), test)()


def honest_with(**members: Any) -> type[relive.Sampler]:
    """Return a class of samplers that have those members instead of their own."""
    return type("Broken", (Honest,), members)


class KeepsNoSetting(Honest):
    """Takes an argument that is neither a number nor a text, and does not say what would do instead."""

    def __init__(self, limits: tuple[int, ...] = (5,)) -> None:
        super().__init__()


def choice(share: Callable[[Any], float]) -> type[relive.Sampler]:
    """Return a class of samplers that report another share as the probability of each anchor."""

    def draw(self: Any, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.Draw(rng.choice(self.kept, size), np.full(size, share(self)))

    return honest_with(_draw=draw, probabilities=lambda self, slots: np.full(len(slots), np.nan))


IGNORES_REMOVED = honest_with(_removed=lambda self, slots: None)


class IsOutOfOrder(Honest):
    def check(self) -> None:
        if len(self.kept) > 3:
            raise errors.CorruptionError("something is wrong")


class RefusesSilently(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        if len(self.kept) < 3:
            raise errors.NotReadyError("too few anchors: add steps first")
        return super()._draw(size, rng)


class DrawsThoughItCannot(Honest):
    def can_draw(self) -> bool:
        return len(self.kept) > 2


class NeverDrawsOne(DrawsThoughItCannot):
    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        if not self.can_draw():
            raise errors.NotReadyError("too few anchors: add steps first")
        return super()._draw(size, rng)


class StaysWithTheFirst(Honest):
    def _added(self, slots: arrays_lib.Slots) -> None:
        super()._added(slots)
        self.first = getattr(self, "first", slots[0])

    def _checked(self, draw: relive.Draw, size: int) -> relive.Draw:
        return relive.Draw(np.full(size, self.first), np.ones(size))


class Reports(Honest):
    """Reports probabilities of places in a batch."""

    def probabilities(self, slots: arrays_lib.Slots) -> arrays_lib.Floats:
        return np.full(len(slots), np.nan)

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        slots = rng.choice(self.kept, size)
        return relive.Draw(slots, np.linspace(0.1, 0.2, size))


class Changes(Reports):
    """Reports right probabilities at first, and wrong ones later."""

    num_draws = 0

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        self.num_draws += 1
        share = 1.0 if self.num_draws < 50 else 0.99
        return relive.Draw(rng.choice(self.kept, size), np.full(size, share / len(self.kept)))


class PrefersTheFirst(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        places = np.maximum(rng.integers(-1, len(self.kept), size), 0)
        return relive.Draw(np.array(self.kept)[places], np.full(size, 1 / len(self.kept)))


class NeverDrawsTheLast(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        slots = self.kept[: max(len(self.kept) - 1, 1)]
        return relive.Draw(rng.choice(slots, size), np.full(size, 1 / len(self.kept)))


class DrawsFromNumpy(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        slots = np.random.choice(self.kept, size)  # noqa: NPY002
        return relive.Draw(slots, np.full(size, 1 / len(self.kept)))


class DrawsFromPython(Honest):
    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.Draw(np.array(random.choices(self.kept, k=size)), np.full(size, 1 / len(self.kept)))


class BelongsToAll(Honest):
    def attach(self, anchors: anchors_lib.Anchors) -> None:
        self.anchors = anchors
        self._told = np.full(anchors.capacity, -1)


class GoesOver(relive.UniformSampler):
    """Refuses a second buffer, but then draws for it."""

    def attach(self, anchors: anchors_lib.Anchors) -> None:
        is_another = self.is_attached
        if not is_another:
            super().attach(anchors)
        self.anchors = anchors
        if is_another:
            raise errors.ArgumentError("sampler must belong to one buffer alone")

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.Draw(np.resize(np.append(self.anchors.slots(), 0), size), np.ones(size))


SUITE = sampler_suite.SamplerTests
BROKEN: dict[Callable[..., None], list[type[relive.Sampler]]] = {
    SUITE.test_draws_are_of_the_size_that_was_asked_for: [
        honest_with(draw=lambda self, size, rng: Honest.draw(self, min(size, len(self.kept)), rng)),
        honest_with(draw=lambda self, *given: (np.zeros(1, int), *Honest.draw(self, *given)[1:])),
        honest_with(draw=lambda self, size, rng: (Honest.draw(self, size, rng)[0], np.ones(1), np.ones(size))),
    ],
    SUITE.test_draws_are_eligible_whatever_has_happened: [
        IGNORES_REMOVED,
        type("Unchecked", (IGNORES_REMOVED,), {"_checked": lambda self, draw, size: draw}),
        honest_with(drawable=lambda self: np.array(self.kept[len(self.kept) > 5 :], np.int64)),
        honest_with(drawable=lambda self: np.arange(self.anchors.capacity)),
        IsOutOfOrder,
    ],
    SUITE.test_a_draw_that_cannot_be_made_is_told_of: [RefusesSilently, DrawsThoughItCannot],
    SUITE.test_a_single_anchor_is_drawn: [
        honest_with(can_draw=lambda self: False),
        NeverDrawsOne,
        choice(lambda self: 1 / self.anchors.capacity),
        StaysWithTheFirst,
    ],
    SUITE.test_probabilities_are_those_of_a_draw: [
        honest_with(probabilities=lambda self, slots: np.full(len(slots), 1 / max(len(self.kept), 1))),
        honest_with(probabilities=lambda self, slots: Honest.probabilities(self, slots) * 0.999),
        honest_with(
            draw=lambda self, size, rng: (Honest._draw(self, size, rng).slots, np.full(size, 1.5), np.ones(size)),
            probabilities=lambda self, slots: np.full(len(slots), np.nan),
        ),
        Reports,
    ],
    SUITE.test_draws_fall_as_often_as_they_say: [
        Changes,
        choice(lambda self: 0.5 / len(self.kept)),
        choice(lambda self: min(2 / len(self.kept), 1.0)),
        PrefersTheFirst,
        NeverDrawsTheLast,
    ],
    SUITE.test_the_same_generator_state_gives_the_same_draws: [
        honest_with(_draw=lambda self, size, rng: Honest._draw(self, size, np.random.default_rng())),
        honest_with(can_draw=lambda self: bool(np.random.default_rng().random() < 0.5)),
        DrawsFromNumpy,
    ],
    SUITE.test_global_randomness_is_left_alone: [DrawsFromNumpy, DrawsFromPython],
    SUITE.test_it_belongs_to_one_buffer: [BelongsToAll, GoesOver],
    SUITE.test_a_buffer_with_it_can_be_saved: [KeepsNoSetting],
    SUITE.test_a_row_drawn_max_times_sampled_times_is_not_drawn: [RefusesSilently, IGNORES_REMOVED],
}
"""What fails each test."""


@pytest.mark.parametrize(("broken", "test"), [(each, test) for test, makers in BROKEN.items() for each in makers])
def test_a_broken_sampler_fails(broken: type[relive.Sampler], test: Callable[..., None]) -> None:
    kinds = AssertionError, errors.SamplerError, errors.NotReadyError, errors.CorruptionError, errors.CheckpointError
    with pytest.raises(kinds):
        test(suite(broken))


def test_every_test_of_samplers_can_fail() -> None:
    assert {test.__name__ for test in BROKEN} == set(TESTS)
