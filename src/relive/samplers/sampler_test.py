from collections.abc import Callable
import copy
from typing import Any

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.samplers import anchors_test


def attached(sampler: relive.Sampler, slots: list[int], capacity: int = 8) -> relive.Sampler:
    """Return the sampler, attached to anchors in `slots`."""
    anchors = anchors_test.made(capacity, capacity if sampler.is_tracking else 0)
    sampler.attach(anchors)
    change(sampler, slots, True)
    return sampler


def change(sampler: relive.Sampler, slots: list[int], is_readable: bool) -> None:
    """Make anchors readable, or not, and tell the sampler."""
    sampler.anchors.set(append.READABLE, np.array(slots, np.int64), is_readable)
    sampler.catch_up()


class Fixed(relive.Sampler):
    """Draws the slots that the test sets."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.heard: list[Any] = []

    def _attached(self, capacity: int) -> None:
        self.heard.append(("attached", capacity))

    def _added(self, slots: arrays_lib.Slots) -> None:
        self.heard.append(("added", slots.tolist()))

    def _removed(self, slots: arrays_lib.Slots) -> None:
        self.heard.append(("removed", slots.tolist()))

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return self.answer  # type: ignore[no-any-return]


RNG = np.random.default_rng(0)


def test_results_of_draw_are_passed_on() -> None:
    sampler = attached(Fixed(([1, 3], [0.25, 1.0])), [1, 3])
    slots, probabilities, weights = sampler.draw(2, RNG)
    assert slots.tolist() == [1, 3]
    assert slots.dtype == np.int64
    assert (probabilities.tolist(), weights.tolist()) == ([0.25, 1.0], [1.0, 1.0])
    wide = attached(Fixed((np.array([3], np.uint8), np.array([0.5], np.float32))), [3])
    assert wide.draw(1, RNG)[0].dtype == np.int64


def test_a_wrong_draw_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (None, "^_draw must return a Draw, got None$"),
        (([1],), r"^_draw must return a Draw, got \(\[1\],\)$"),
        (([1, 3], ["x", "y"]), "^_draw must return a Draw, got "),
        (([1, 3], ["0.5", "0.5"]), "^_draw must return a Draw, got "),
        (([1, 3], [0.5, 0.5j]), "^_draw must return a Draw, got "),
        (([1], [0.5]), r"^_draw must return slots of shape \(2,\), got \(1,\)$"),
        (([1, 3], [0.5]), r"^_draw must return probabilities of shape \(2,\), got \(1,\)$"),
        (([1.0, 3.0], [0.5, 0.5]), "^_draw must return slots that are integers, got float64$"),
        (([1, 8], [0.5, 0.5]), "^_draw must return slots below 8, got 8$"),
        (([-1, 1], [0.5, 0.5]), "^_draw must return slots below 8, got -1$"),
        (([1, 2], [0.5, 0.5]), "^_draw must return eligible anchors, got slot 2$"),
        (([1, 3], [0.5, 0.0]), r"^_draw must return probabilities in \(0, 1\], got 0.0$"),
        (([1, 3], [0.5, 1.5]), r"^_draw must return probabilities in \(0, 1\], got 1.5$"),
        (([1, 3], [0.5, np.nan]), r"^_draw must return probabilities in \(0, 1\], got nan$"),
    ]
    for answer, message in cases:
        with subtests.test(message):
            sampler = attached(Fixed(answer), [1, 3])
            with pytest.raises(errors.SamplerError, match=message):
                sampler.draw(2, RNG)


def test_a_sampler_is_told_of_changes_alone() -> None:
    sampler = Fixed(None)
    before = sampler.is_attached
    attached(sampler, [1, 3])
    assert (before, sampler.is_attached) == (False, True)
    change(sampler, [], True)
    change(sampler, [3, 5], True)
    change(sampler, [1, 3, 7], False)
    sampler.anchors.set(append.READABLE, np.array([5]), False)
    sampler.anchors.set(append.READABLE, np.array([4]))
    sampler.anchors.set(append.BARRED, np.array([4]))
    sampler.catch_up()
    sampler.catch_up()
    change(sampler, [6], True)
    assert sampler.heard == [
        ("attached", 8),
        ("added", [1, 3]),
        ("added", [5]),
        ("removed", [1, 3]),
        ("removed", [5]),
        ("added", [6]),
    ]


def test_a_sampler_belongs_to_one_buffer() -> None:
    sampler = attached(relive.UniformSampler(), [0])
    with pytest.raises(errors.ArgumentError, match="^sampler must belong to one buffer alone, got <.*> a second time$"):
        sampler.attach(anchors_test.made(4))


class First(relive.Sampler):
    """The shortest sampler there is."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.Draw(np.repeat(self.anchors.slots()[:1], size), np.ones(size))


def test_a_sampler_needs_draw_alone() -> None:
    sampler = attached(First(), [2, 5])
    assert sampler.draw(3, RNG)[0].tolist() == [2, 2, 2]
    sampler.check()
    assert (sampler.can_draw(), sampler.drawable().tolist()) == (True, [2, 5])
    assert np.isnan(sampler.probabilities(np.array([2, 5]))).all()
    buffer = relive.RingReplayBuffer(4, sampler=First(), seed=0)
    buffer.add(0.0, 0, 0.0, next_observation=1.0)
    assert buffer.sample(2).weights.tolist() == [1.0, 1.0]
    with pytest.raises(errors.ArgumentError, match="^beta must be left out without priorities, got 0.4$"):
        buffer.read([0], beta=0.4)


class Forgetful(relive.UniformSampler):
    """Draws what was removed, too."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.Draw(np.full(size, 1), np.ones(size))


def test_draws_of_a_sampler_made_from_one_of_ours_are_checked() -> None:
    sampler = attached(Forgetful(), [1])
    assert sampler.draw(1, RNG)[0].tolist() == [1]
    change(sampler, [1], False)
    with pytest.raises(errors.SamplerError, match="^_draw must return eligible anchors, got slot 1$"):
        sampler.draw(1, RNG)


def test_an_attachment_that_fails_leaves_the_sampler_free() -> None:
    class Picky(First):
        def _attached(self, capacity: int) -> None:
            if capacity < 4:
                raise ValueError("too small")

    sampler = Picky()
    with pytest.raises(ValueError, match="^too small$"):
        sampler.attach(anchors_test.made(3))
    assert not sampler.is_attached
    sampler.attach(anchors_test.made(4))


# Hooks.


class Hook:
    """A mixin that is not a sampler."""

    def _removed(self, slots: arrays_lib.Slots) -> None:
        pass


class WithHook(Hook, First):
    """Inherits its hook from a class that is not a sampler."""


class Heir(WithHook):
    """Overrides nothing."""


def test_a_sampler_has_hooks_if_a_class_of_it_overrides_one() -> None:
    kinds: dict[type[relive.Sampler], bool] = {First: False, relive.UniformSampler: False}
    kinds |= {relive.PrioritizedSampler: False, Fixed: True, WithHook: True, Heir: True}
    for kind, has_hooks in kinds.items():
        assert kind.__new__(kind).has_hooks is has_hooks
    for name in ("_added", "_removed"):
        assert type("One", (First,), {name: lambda self, slots: None})().has_hooks


class Diarist(relive.Sampler):
    """Compares the calls of its hooks with the storage."""

    buffer: Any
    told: dict[int, int]

    def _attached(self, capacity: int) -> None:
        super()._attached(capacity)
        self.told = {}

    def _keys(self, slots: arrays_lib.Slots) -> list[int]:
        """Return which rows are in those slots, as the storage has them."""
        assert len(set(slots.tolist())) == len(slots) > 0
        numbers: list[int] = self.buffer._store.storage.read(slots, ["extras/number"])["extras/number"].tolist()
        return numbers

    def _added(self, slots: arrays_lib.Slots) -> None:
        for slot, number in zip(slots.tolist(), self._keys(slots), strict=True):
            assert slot not in self.told
            self.told[slot] = number

    def _removed(self, slots: arrays_lib.Slots) -> None:
        for slot in slots.tolist():
            self.told.pop(slot)


class Plain(Diarist, First):
    """Draws the first one."""


class Rated(Diarist, relive.PrioritizedSampler):
    """Draws by priorities."""


SAMPLERS: dict[str, Callable[[], Diarist]] = {"plain": Plain, "rated": Rated}
HOOKED: dict[str, dict[str, Any]] = {
    "transitions": {"window": relive.TransitionWindow(2)},
    "stacks": {"window": relive.TransitionWindow(frame_stack=3)},
    "limited": {"window": relive.TransitionWindow(), "max_times_sampled": 2},
    "sequences": {"window": relive.SequenceWindow(3, 0, 2, pad=True)},
}


@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
@pytest.mark.parametrize("kind", HOOKED)
@pytest.mark.parametrize("name", SAMPLERS)
@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 4)
@hypothesis.given(strategies.sampled_from([1, 3, 9]), strategies.integers(0, 6), strategies.integers(0, 2**32))
def test_hooks_are_told_of_every_change_when_the_rows_are_there(
    name: str, kind: str, streams: int, more: int, seed: int
) -> None:
    """Removals are reported first, and the reported slots are the eligible ones, with their current rows."""
    rng, sampler = np.random.default_rng(seed), SAMPLERS[name]()
    capacity = streams + more
    buffer: Any = relive.ColumnReplayBuffer(capacity, sampler=sampler, streams=streams, seed=0, **HOOKED[kind])
    sampler.buffer = buffer
    for _ in range(24):
        number = buffer.appended
        match rng.choice(["add", "extend", "extend", "episode", "bar", "clear"], p=[0.3, 0.2, 0.2, 0.1, 0.15, 0.05]):
            case "add":
                stream = int(rng.integers(streams))
                following = number + 1 if rng.random() < 0.7 else None
                buffer.add(number, 0, 0.0, following, terminated=bool(rng.random() < 0.2), stream=stream, number=number)
            case "extend":
                numbers = number + np.arange(streams)
                following = numbers + 1 if rng.random() < 0.7 else None
                ends = rng.random(streams) < 0.2
                buffer.extend(numbers, numbers, np.zeros(streams), following, terminated=ends, number=numbers)
            case "episode":
                length = int(rng.integers(1, capacity + 1))
                numbers = number + np.arange(length)
                stream = int(rng.integers(streams))
                rewards = np.zeros(length)
                buffer.add_episode(range(length + 1), numbers, rewards, terminated=True, stream=stream, number=numbers)
            case "bar":
                keys = rng.integers(max(number - capacity, 0), number + 1, 3)
                buffer.set_eligible(keys, bool(rng.random() < 0.5))
            case "clear":
                buffer.clear()
        if buffer.can_sample(2) and rng.random() < 0.3:
            buffer.sample_keys(2)
        keys = buffer.eligible_keys()
        assert sampler.told == dict(zip((keys % capacity).tolist(), keys.tolist(), strict=True))
        buffer.check()


@pytest.mark.parametrize(
    "call",
    [
        lambda sampler: sampler.draw(2, np.random.default_rng(0)),
        lambda sampler: sampler.drawable(),
        lambda sampler: sampler.probabilities(np.zeros(1, np.int64)),
        lambda sampler: sampler.effective_sample_size(),
        lambda sampler: sampler.anchors,
    ],
)
@pytest.mark.parametrize("kind", [relive.UniformSampler, relive.PrioritizedSampler])
def test_a_sampler_in_no_buffer_says_so(kind: Any, call: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=rf"^{kind.__name__} is in no buffer, and has no '\w+': give it to"):
        call(kind())
    assert not hasattr(kind(), "anchors")
    assert copy.deepcopy(kind()).is_attached is False
