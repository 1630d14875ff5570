"""The schedules that a draw evaluates, how often, and what a refused or failed draw leaves unchanged."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays
from relive.testing import zoo


class Scripted(relive.Schedule):
    """Returns given values, one for each call, whatever the tick."""

    def __init__(self, *script: float | Exception) -> None:
        self.script = list(script)
        self.asked: list[int] = []

    def value(self, tick: int) -> float:
        self.asked.append(tick)
        value = self.script[(len(self.asked) - 1) % len(self.script)]
        if isinstance(value, Exception):
            raise value
        return value

    def settings(self) -> dict[str, Any]:
        return {}


def filled(buffer: Any, steps: int = 6) -> Any:
    """Return the buffer with one episode of that many steps; priorities 1, 2, 3 and so on."""
    keys = buffer.add_episode(np.arange(steps + 1, dtype=np.float32), np.arange(steps), np.ones(steps), terminated=True)
    if buffer.has_priorities:
        buffer.update_priorities(keys, np.arange(1.0, steps + 1))
    return buffer


def prioritized(beta: relive.Schedule, **settings: Any) -> Any:
    return filled(relive.PrioritizedReplayBuffer(8, alpha=1.0, epsilon=0.0, beta=beta, seed=3, **settings))


def observed(buffer: Any) -> Any:
    """Return the visible state of a buffer, without the generator."""
    sampler = buffer.sampler
    return (
        zoo.plain(buffer.get_stats()),
        buffer.eligible_keys().tolist(),
        [origin.times_sampled for origin in map(buffer.explain, range(len(buffer)))],
        getattr(sampler, "ticks", None),
    )


DRAWS: dict[str, Callable[[Any], object]] = {
    "sample": lambda buffer: buffer.sample(4),
    "sample_keys": lambda buffer: buffer.sample_keys(4),
    "batches": lambda buffer: next(buffer.batches(4, prefetch=0)),
    "mixture": lambda buffer: relive.MixtureSampler([buffer], [1]).sample(4),
}


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_schedule_is_asked_once_a_draw(draw: Callable[[Any], object], limit: int | None) -> None:
    beta = Scripted(0.5)
    buffer = prioritized(beta, max_times_sampled=limit)
    for tick in range(3):
        draw(buffer)
        assert beta.asked == list(range(tick + 1))


def test_a_schedule_is_asked_once_a_read() -> None:
    beta = Scripted(0.0, 1.0)
    buffer = prioritized(beta)
    assert buffer.read([0, 1]).weights.tolist() == [1.0, 1.0]
    assert buffer.read([0, 1]).weights.tolist() == [1.0, 0.5]
    assert beta.asked == [0, 0]


def test_a_schedule_is_asked_once_for_each_batch_drawn_ahead() -> None:
    beta = Scripted(0.5)
    batches = prioritized(beta).batches(4, prefetch=2)
    assert beta.asked == []
    next(batches)
    assert beta.asked == [0, 1, 2]
    next(batches)
    assert beta.asked == [0, 1, 2, 3]
    batches.close()


def test_the_value_that_was_asked_for_is_the_one_that_weighs() -> None:
    beta = Scripted(0.0, 1.0)
    buffer = prioritized(beta, weight_normalization="none")
    for exponent in (0.0, 1.0, 0.0):
        batch = buffer.sample(4)
        np.testing.assert_allclose(batch.weights, (6 * batch.probabilities) ** -exponent)


def test_a_beta_that_is_given_asks_no_schedule() -> None:
    beta = Scripted(0.5)
    buffer = prioritized(beta)
    buffer.sample(4, beta=1.0)
    relive.MixtureSampler([buffer], [1]).sample(4, beta=1.0)
    next(buffer.batches(4, prefetch=1, beta=1.0))
    buffer.read([0], beta=0.5)
    assert beta.asked == []


def test_a_schedule_is_not_asked_for_a_draw_that_cannot_be() -> None:
    beta = Scripted(0.5)
    empty = relive.PrioritizedReplayBuffer(8, beta=beta, seed=0)
    held = prioritized(beta, limiter=relive.MinSize(7))
    spent = prioritized(beta, max_times_sampled=1)
    zero = prioritized(beta)
    zero.update_priorities(range(6), np.zeros(6))
    rules = (
        "no step is stored$",
        "^sample held back by ",
        "^sample has 6 draws left",
        "^every eligible priority weighs 0",
    )
    for buffer, rule in zip((empty, held, spent, zero), rules, strict=True):
        for draw in (buffer.sample, buffer.sample_keys):
            with pytest.raises(errors.NotReadyError, match=rule):
                draw(7)
    assert beta.asked == []


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
@pytest.mark.parametrize("value", [-1.0, float("nan"), "x", RuntimeError("out of order")])
def test_a_bad_value_of_a_schedule_changes_nothing(
    draw: Callable[[Any], object], limit: int | None, value: Any
) -> None:
    buffer = prioritized(Scripted(value), max_times_sampled=limit)
    before, state = observed(buffer), buffer.rng.bit_generator.state
    with pytest.raises((errors.ArgumentError, RuntimeError)):
        draw(buffer)
    assert observed(buffer) == before
    assert buffer.rng.bit_generator.state == state


class Faulty(relive.UniformSampler):
    """Works until `fault` names the method that fails."""

    fault: str | None = None
    answer: Any = None
    rounds = 0

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        self.rounds += 1
        if self.fault == "_draw" and self.rounds > 1:
            raise RuntimeError("_draw failed")
        draw = super()._draw(size, rng)
        # The first round draws one anchor only: with a limit another round is needed.
        return self.answer or relive.Draw(np.repeat(draw.slots[:1], size), draw.probabilities)

    def importance(self, probabilities: arrays.Floats) -> arrays.Floats:
        if self.fault == "importance":
            raise RuntimeError("importance failed")
        return super().importance(probabilities)

    def weights(self, importance: arrays.Floats, beta: float | None = None) -> arrays.Floats:
        if self.fault == "weights" and len(importance):
            raise RuntimeError("weights failed")
        return super().weights(importance, beta)

    def _drawn(self) -> None:
        if self.fault == "_drawn":
            raise RuntimeError("_drawn failed")


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("fault", ["_draw", "importance", "weights", "_drawn", "answer"])
def test_a_sampler_that_fails_leaves_what_is_counted_as_it_was(fault: str, limit: int | None) -> None:
    sampler = Faulty()
    buffer = filled(relive.RingReplayBuffer(8, sampler=sampler, max_times_sampled=limit, seed=0))
    sampler.rounds = int(limit is None)
    before = observed(buffer)
    sampler.fault = fault
    if fault == "answer":
        sampler.answer = relive.Draw(np.array([7] * 4), np.ones(4))
    rule = "^_draw must return eligible anchors, got slot 7$" if fault == "answer" else f"^{fault} failed$"
    for call in (buffer.sample, buffer.sample_keys):
        sampler.rounds = int(limit is None)
        with pytest.raises((RuntimeError, errors.SamplerError), match=rule):
            call(4)
        assert observed(buffer) == before
        buffer.check()
    sampler.fault = sampler.answer = None
    assert len(buffer.sample(4).keys) == 4
    buffer.check()


class Refusing(relive.UniformSampler):
    """Cannot be attached."""

    def _attached(self, capacity: int) -> None:
        raise errors.ArgumentError("this one is not taken")


SCHEMA = relive.Schema(relive.Field((), "float32"), relive.Field((), "int64"))

CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "ring": relive.RingReplayBuffer,
    "sequences": lambda *arguments, **settings: relive.SequenceReplayBuffer(*arguments, length=2, **settings),
    "a window": lambda *arguments, **settings: relive.ColumnReplayBuffer(
        *arguments, window=relive.EpisodeWindow(), **settings
    ),
}
REFUSED: dict[str, dict[str, Any]] = {
    "limiter": {"limiter": relive.MinSize(9)},
    "no limiter": {"limiter": 3},
    "max_times_sampled": {"max_times_sampled": 0},
    "seed": {"seed": -1},
    "streams": {"streams": 9},
    "storage": {"storage": relive.ColumnStorage(SCHEMA, 9)},
    "schema": {"schema": 3},
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("make", CONSTRUCTORS.values(), ids=CONSTRUCTORS.keys())
def test_a_constructor_that_refuses_leaves_the_sampler_free(make: Callable[..., Any], refused: dict[str, Any]) -> None:
    sampler, rng = relive.PrioritizedSampler(), np.random.default_rng(0)
    state = rng.bit_generator.state
    with pytest.raises(errors.ArgumentError):
        make(8, **{"sampler": sampler, "seed": rng, **refused})
    assert not sampler.is_attached
    assert rng.bit_generator.state == state
    assert make(8, sampler=sampler, seed=rng).sampler is sampler


def test_a_schema_that_no_memory_holds_leaves_the_sampler_free() -> None:
    sampler = relive.PrioritizedSampler()
    with pytest.raises((MemoryError, ValueError)):
        relive.RingReplayBuffer(
            8, relive.Schema(relive.Field(2**59, "float32"), relive.Field((), int)), sampler=sampler
        )
    assert not sampler.is_attached


@pytest.mark.parametrize("make", CONSTRUCTORS.values(), ids=CONSTRUCTORS.keys())
def test_a_sampler_that_refuses_leaves_storage_and_generator_as_they_were(make: Callable[..., Any]) -> None:
    storage, rng = relive.ColumnStorage(SCHEMA, 8), np.random.default_rng(0)
    state = rng.bit_generator.state
    with pytest.raises(errors.ArgumentError, match="^this one is not taken$"):
        make(8, sampler=Refusing(), storage=storage, seed=rng)
    assert rng.bit_generator.state == state
    buffer = filled(make(8, storage=storage, seed=rng))
    assert len(buffer) == 6
    buffer.check()


def test_a_row_that_waits_gets_the_running_maximum_when_it_can_first_be_drawn() -> None:
    buffer = relive.PrioritizedReplayBuffer(8, seed=0)
    first = buffer.add(np.float32(0), 0, 0.0, np.float32(1))
    waiting = buffer.add(np.float32(1), 0, 0.0)
    assert buffer.eligible_keys().tolist() == [first]
    buffer.update_priorities([first], [5.0])
    after = buffer.add(np.float32(2), 0, 0.0)
    assert buffer.eligible_keys().tolist() == [first, waiting]
    buffer.update_priorities([first, waiting], [1.0, 7.0])
    assert buffer.get_priorities([waiting]).tolist() == [7.0]
    buffer.update_priorities([waiting], [2.0])
    buffer.add(np.float32(3), 0, 0.0)
    assert buffer.get_priorities([first, waiting, after]).tolist() == [1.0, 2.0, 7.0]
    assert buffer.eligible_keys().tolist() == [first, waiting, after]
    buffer.update_priorities([waiting], [9.0])
    assert buffer.get_priorities([after]).tolist() == [7.0], "what it got once stays"
