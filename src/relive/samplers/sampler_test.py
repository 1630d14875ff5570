from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays
from relive.kernels import eligibility
from relive.samplers import sampler as sampler_lib
from relive.samplers import uniform


def attached(sampler: sampler_lib.Sampler, slots: list[int], capacity: int = 8) -> sampler_lib.Sampler:
    """Return the sampler, attached to anchors in `slots`."""
    anchors = eligibility.Eligibility(capacity)
    sampler.attach(anchors)
    sampler.added(anchors.set(eligibility.READABLE, np.array(slots, np.int64))[0])
    return sampler


class Fixed(sampler_lib.Sampler):
    """Draws what it was told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.heard: list[Any] = []

    def _attached(self, capacity: int) -> None:
        self.heard.append(("attached", capacity))

    def _added(self, slots: arrays.Slots) -> None:
        self.heard.append(("added", slots.tolist()))

    def _removed(self, slots: arrays.Slots) -> None:
        self.heard.append(("removed", slots.tolist()))

    def _overwritten(self, slots: arrays.Slots) -> None:
        self.heard.append(("overwritten", slots.tolist()))

    def _drawn(self) -> None:
        self.heard.append(("drawn",))

    def _draw(self, size: int, rng: np.random.Generator) -> sampler_lib.Draw:
        return self.answer  # type: ignore[no-any-return]


RNG = np.random.default_rng(0)


def test_what_draw_answers_is_passed_on() -> None:
    sampler = attached(Fixed(([1, 3], [0.25, 1.0])), [1, 3])
    draw = sampler.draw(2, RNG)
    assert draw.slots.tolist() == [1, 3]
    assert draw.slots.dtype == np.int64
    assert draw.probabilities.tolist() == [0.25, 1.0]
    wide = attached(Fixed((np.array([3], np.uint8), np.array([0.5], np.float32))), [3])
    assert wide.draw(1, RNG).slots.dtype == np.int64


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "^_draw must return a Draw, got None$"),
        (([1],), r"^_draw must return a Draw, got \(\[1\],\)$"),
        (([1, 3], ["x", "y"]), "^_draw must return a Draw, got "),
        (([1], [0.5]), r"^_draw must return slots of shape \(2,\), got \(1,\)$"),
        (([1, 3], [0.5]), r"^_draw must return probabilities of shape \(2,\), got \(1,\)$"),
        (([1.0, 3.0], [0.5, 0.5]), "^_draw must return slots that are integers, got float64$"),
        (([1, 8], [0.5, 0.5]), "^_draw must return slots below 8, got 8$"),
        (([-1, 1], [0.5, 0.5]), "^_draw must return slots below 8, got -1$"),
        (([1, 2], [0.5, 0.5]), "^_draw must return eligible anchors, got slot 2$"),
        (([1, 3], [0.5, 0.0]), r"^_draw must return probabilities in \(0, 1\], got 0.0$"),
        (([1, 3], [0.5, 1.5]), r"^_draw must return probabilities in \(0, 1\], got 1.5$"),
        (([1, 3], [0.5, np.nan]), r"^_draw must return probabilities in \(0, 1\], got nan$"),
    ],
)
def test_a_wrong_draw_is_refused(answer: Any, message: str) -> None:
    sampler = attached(Fixed(answer), [1, 3])
    with pytest.raises(errors.SamplerError, match=message):
        sampler.draw(2, RNG)


def test_a_sampler_hears_of_changes_and_not_of_nothing() -> None:
    sampler = Fixed(None)
    before = sampler.is_attached
    attached(sampler, [1, 3])
    assert (before, sampler.is_attached) == (False, True)
    nothing = np.zeros(0, np.int64)
    for hear in (sampler.added, sampler.removed, sampler.overwritten):
        hear(nothing)
        hear(np.array([3]))
    sampler.drawn()
    assert sampler.heard == [
        ("attached", 8),
        ("added", [1, 3]),
        ("added", [3]),
        ("removed", [3]),
        ("overwritten", [3]),
        ("drawn",),
    ]


def test_a_sampler_belongs_to_one_buffer() -> None:
    sampler = attached(uniform.UniformSampler(), [0])
    with pytest.raises(errors.ArgumentError, match="^sampler must belong to one buffer alone, got <.*> a second time$"):
        sampler.attach(eligibility.Eligibility(4))


class First(sampler_lib.Sampler):
    """The shortest sampler there is."""

    def _draw(self, size: int, rng: np.random.Generator) -> sampler_lib.Draw:
        return sampler_lib.Draw(np.repeat(self.anchors.slots()[:1], size), np.ones(size))


def test_one_method_is_enough() -> None:
    sampler = attached(First(), [2, 5])
    assert sampler.draw(3, RNG).slots.tolist() == [2, 2, 2]
    sampler.removed(np.array([2]))
    sampler.overwritten(np.array([2]))
    sampler.drawn()
    sampler.check()
    assert sampler.drawable().tolist() == [2, 5]
    assert np.isnan(sampler.probabilities(np.array([2, 5]))).all()
    assert sampler.weights(np.array([0.5, 0.25])).tolist() == [1.0, 1.0]
    with pytest.raises(errors.ArgumentError, match="^beta must be left out without priorities, got 0.4$"):
        sampler.weights(np.array([0.5]), 0.4)


def test_a_sampler_that_does_not_say_otherwise_can_draw() -> None:
    assert attached(First(), [2]).can_draw()


class Waiting(First):
    """Cannot draw now."""

    def can_draw(self) -> bool:
        return False


def test_a_sampler_that_cannot_draw_is_not_asked_to() -> None:
    buffer = relive.RingReplayBuffer(4, sampler=Waiting(), seed=0)
    buffer.add(0.0, 0, 0.0, next_observation=1.0)
    assert not buffer.can_sample(1)
    with pytest.raises(errors.NotReadyError, match="^Waiting can draw none of the eligible anchors now$"):
        buffer.sample(1)


# Single anchors.


def test_a_sampler_hears_of_single_anchors_by_its_hooks_for_arrays() -> None:
    sampler = attached(Fixed(None), [1, 3])
    assert isinstance(sampler, Fixed)
    sampler.heard.clear()
    sampler.added_one(3)
    sampler.removed_one(4)
    sampler.overwritten_one(5)
    assert sampler.heard == [("added", [3]), ("removed", [4]), ("overwritten", [5])]


class Numbers(Fixed):
    """Is told of single anchors by number, if they are added or removed."""

    def _added_one(self, slot: int) -> None:
        self.heard.append(("added one", slot))

    def _removed_one(self, slot: int) -> None:
        self.heard.append(("removed one", slot))


class Arrays(Numbers):
    """Overrides the hook for arrays of a sampler that has one for numbers."""

    def _added(self, slots: arrays.Slots) -> None:
        self.heard.append(("added here", slots.tolist()))


class Heir(Arrays):
    """Overrides nothing."""


class Mixed:
    """Is no sampler itself."""

    heard: list[Any]

    def _removed(self, slots: arrays.Slots) -> None:
        self.heard.append(("removed here", slots.tolist()))


class WithMixed(Mixed, Heir):
    """Has its hook from a class that is no sampler."""


class MixedByNumber(Mixed, Heir):
    """Has one hook from a class that is no sampler, and the one for numbers of its own."""

    def _removed_one(self, slot: int) -> None:
        self.heard.append(("removed one here", slot))


@pytest.mark.parametrize(
    ("kind", "heard"),
    [
        (Numbers, [("added one", 2), ("removed one", 2), ("overwritten", [2])]),
        (Arrays, [("added here", [2]), ("removed one", 2), ("overwritten", [2])]),
        (Heir, [("added here", [2]), ("removed one", 2), ("overwritten", [2])]),
        (MixedByNumber, [("added here", [2]), ("removed one here", 2), ("overwritten", [2])]),
        (WithMixed, [("added here", [2]), ("removed here", [2]), ("overwritten", [2])]),
    ],
)
def test_the_hook_that_was_overridden_last_hears(kind: type[Fixed], heard: list[Any]) -> None:
    sampler = kind(None)
    sampler.added_one(2)
    sampler.removed_one(2)
    sampler.overwritten_one(2)
    assert sampler.heard == heard


def test_a_sampler_without_hooks_hears_nothing_of_single_anchors_either() -> None:
    sampler = attached(First(), [2, 5])
    before = dict(vars(sampler))
    sampler.added_one(2)
    sampler.removed_one(2)
    sampler.overwritten_one(2)
    assert vars(sampler) == before


class Forgetful(uniform.UniformSampler):
    """Does not hear what was removed."""

    def _removed(self, slots: arrays.Slots) -> None:
        pass


def test_draws_of_a_sampler_made_from_one_of_ours_are_checked() -> None:
    sampler = attached(Forgetful(), [1])
    sampler.removed_one(int(sampler.anchors.unset(eligibility.READABLE, np.array([1]))[1][0]))
    with pytest.raises(errors.SamplerError, match="^_draw must return eligible anchors, got slot 1$"):
        sampler.draw(1, RNG)


# Turns.


@pytest.mark.parametrize(
    ("kind", "heard"),
    [
        (Fixed, [("removed", [1]), ("overwritten", [4]), ("added", [4])]),
        (Numbers, [("removed one", 1), ("overwritten", [4]), ("added one", 4)]),
        (Heir, [("removed one", 1), ("overwritten", [4]), ("added here", [4])]),
        (WithMixed, [("removed here", [1]), ("overwritten", [4]), ("added here", [4])]),
    ],
)
def test_a_turn_of_one_anchor_is_what_the_hooks_hear_of_one(kind: type[Fixed], heard: list[Any]) -> None:
    sampler = kind(None)
    sampler.turned(1, 4, 1)
    assert sampler.heard == heard


def test_who_has_no_way_of_its_own_hears_first_who_left_and_then_who_came() -> None:
    for kind in (Fixed, Numbers, Heir, Counting, Forgetful):
        assert not kind.__new__(kind).takes_turns
    for sampler in (uniform.UniformSampler(), OfTurns()):
        assert sampler.takes_turns
    fixed = Fixed(None)
    fixed.left(1, 4, 2)
    fixed.entered(4, 2)
    fixed.left(3, 6, 1)
    fixed.entered(6, 1)
    several, one = fixed.heard[:3], fixed.heard[3:]
    assert several == [("removed", [1, 2]), ("overwritten", [4, 5]), ("added", [4, 5])]
    assert one == [("removed", [3]), ("overwritten", [6]), ("added", [6])]


@pytest.mark.parametrize("kind", [Fixed, Numbers])
def test_a_turn_of_several_anchors_is_what_the_hooks_for_arrays_hear(kind: type[Fixed]) -> None:
    sampler = kind(None)
    sampler.turned(1, 4, 3)
    assert sampler.heard == [("removed", [1, 2, 3]), ("overwritten", [4, 5, 6]), ("added", [4, 5, 6])]


class Counting(uniform.UniformSampler):
    """Overrides one hook of a sampler that is told of turns in its own way."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def _overwritten(self, slots: arrays.Slots) -> None:
        self.heard.append(slots.tolist())


class OfTurns(Counting):
    """Is told of turns in a way of its own again."""

    def _turned(self, lost: int, slot: int, count: int) -> None:
        self.heard.append((lost, slot, count))


def test_who_overrides_a_hook_hears_of_turns_by_it_unless_it_says_otherwise() -> None:
    for kind, heard in [(Counting, [[2, 3]]), (OfTurns, [(0, 2, 2)])]:
        sampler = attached(kind(), [0, 1], 4)
        assert isinstance(sampler, Counting)
        sampler.anchors.leave(0, 2)
        sampler.anchors.enter(2, 2)
        sampler.turned(0, 2, 2)
        assert sampler.heard == heard
