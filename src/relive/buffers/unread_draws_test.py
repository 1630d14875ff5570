"""A draw whose rows cannot be read, for want of memory, counts nothing and has not moved the generator."""

import asyncio
import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relive
from relive.buffers import hindsight
from relive.testing import zoo

SCHEMA = relive.Schema(relive.Field((), np.int64), relive.Field((), np.int64))
LINEAR = relive.LinearSchedule(0.4, 1.0, steps=10)


class Fickle(relive.ColumnStorage):
    """A storage whose reads fail on request."""

    is_full = False

    def read(self, slots: Any, fields: Any = None) -> Any:
        if Fickle.is_full:
            raise MemoryError("no")
        return super().read(slots, fields)


class ToldOfDraws(relive.UniformSampler):
    """Records what it is told."""

    def __init__(self) -> None:
        self.eligible: set[int] = set()

    def _added(self, slots: Any) -> None:
        self.eligible |= {*slots.tolist()}

    def _removed(self, slots: Any) -> None:
        self.eligible -= {*slots.tolist()}


def filled(kind: Any, **settings: Any) -> Any:
    buffer = kind(8, storage=Fickle(SCHEMA, 8), seed=0, **settings)
    buffer.add_episode(range(5), [0] * 4, [1.0] * 4, terminated=True)
    buffer.add_steps(range(5), [0] * 4, [1.0] * 4)
    return buffer


BUFFERS: dict[str, Callable[[], Any]] = {
    "ring": lambda: filled(relive.RingReplayBuffer),
    "n steps": lambda: filled(relive.RingReplayBuffer, n_step=3),
    "frame stack": lambda: filled(relive.RingReplayBuffer, frame_stack=2),
    "limited": lambda: filled(relive.RingReplayBuffer, max_times_sampled=2),
    "told": lambda: filled(relive.RingReplayBuffer, max_times_sampled=2, sampler=ToldOfDraws()),
    "priorities": lambda: filled(relive.PrioritizedReplayBuffer, beta=LINEAR),
    "independent": lambda: filled(relive.PrioritizedReplayBuffer, stratified=False, max_times_sampled=2),
    "sequences": lambda: filled(relive.SequenceReplayBuffer, length=2, pad=True),
    "ratio": lambda: filled(relive.RingReplayBuffer, limiter=relive.SampleToInsertRatio(2.0, 1, 20.0)),
}


def state_of(buffer: Any) -> Any:
    """Return everything that a draw changes."""
    state = buffer.state_dict()
    arrays = {name: array.tolist() for name, array in state.pop("arrays").items()}
    told = buffer.sampler.eligible if isinstance(buffer.sampler, ToldOfDraws) else None
    return repr(state), arrays, buffer.get_stats(), buffer.eligible_keys().tolist(), repr(told)


DRAWS: dict[str, Callable[[Any], Any]] = {
    "sample": lambda buffer: buffer.sample(4),
    "batches": lambda buffer: next(buffer.batches(4, prefetch=0)),
    "threads": lambda buffer: relive.ThreadSafeReplayBuffer(buffer).sample(4),
    "tasks": lambda buffer: asyncio.run(relive.AsyncReplayBuffer(buffer).sample(4)),
}


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fickle, "is_full", False)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_a_draw_that_cannot_be_read_changes_nothing(make: Callable[[], Any], draw: Callable[[Any], Any]) -> None:
    buffer, twin = make(), make()
    for each in (buffer, twin):
        each.sample(2)
    before = state_of(buffer)
    Fickle.is_full = True
    with pytest.raises(MemoryError, match="^no$"):
        draw(buffer)
    Fickle.is_full = False
    assert state_of(buffer) == before
    buffer.check()
    assert draw(buffer).keys.tolist() == twin.sample(4).keys.tolist()
    assert state_of(buffer) == state_of(twin)


@pytest.mark.parametrize("same_generator", [False, True])
@pytest.mark.parametrize("make", [BUFFERS["priorities"], BUFFERS["told"]])
def test_a_mixture_draws_from_all_its_buffers_or_none(make: Callable[[], Any], same_generator: bool) -> None:
    first, second = make(), filled(relive.RingReplayBuffer)
    if same_generator:
        second._rng = first.rng
    mixture = relive.MixtureSampler([first, second], [1, 1])
    before = state_of(first), state_of(second)
    second._store.reader.read = second._store.storage.read
    reads = collections.Counter[str]()

    def read(slots: Any, fields: Any = None) -> Any:
        reads["all"] += len(slots) > 0
        if reads["all"]:
            raise MemoryError("no")
        return Fickle.read(second._store.storage, slots, fields)

    second._store.reader.read = read
    with pytest.raises(MemoryError, match="^no$"):
        mixture.sample(8)
    assert (state_of(first), state_of(second)) == before
    second._store.reader.read = second._store.storage.read
    mixture.sample(8)
    assert (first.get_stats().sampled, second.get_stats().sampled) == (4, 4)


class Uncopied:
    """An observation that there is no memory for a copy of, on request."""

    def clone(self) -> "Uncopied":
        if Fickle.is_full:
            raise MemoryError("no")
        return self


@pytest.mark.parametrize("max_lag", [None, 3])
def test_samples_that_cannot_be_copied_are_not_drawn(max_lag: int | None) -> None:
    buffer = relive.EpisodeReplayBuffer[Any, int](seed=0)
    buffer.set_policy_version(0)
    episode_id = buffer.start_episode_nowait("a", policy_version=0)
    for _ in range(5):
        buffer.append_observation_action_reward_nowait(episode_id, Uncopied(), 0, 1.0)
    before = buffer.get_stats(), buffer.rng.bit_generator.state
    Fickle.is_full = True
    with pytest.raises(MemoryError, match="^no$"):
        buffer.sample_n_step_nowait(4, 1, 0.9, max_lag=max_lag)
    after = buffer.get_stats(), buffer.rng.bit_generator.state
    assert after[1] == before[1]
    assert (after[0].sampled, after[0].total_transitions) == (0, 4)


def test_goals_that_cannot_be_written_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise MemoryError("no")

    buffer = relive.RingReplayBuffer(8, seed=0)
    places = {"achieved_goal": [0, 1, 2, 3], "desired_goal": [9, 9, 9, 9]}
    keys = buffer.add_episode(places, [1, 1, 1], [-1.0, -1.0, -1.0], terminated=False)
    batch, state = buffer.read(keys), buffer.rng.bit_generator.state
    monkeypatch.setattr(hindsight, "_write_goals", fail)
    with pytest.raises(MemoryError, match="^no$"):
        relive.relabel(buffer, batch, compute=lambda a, b: (np.zeros(len(a)), a == b))
    assert buffer.rng.bit_generator.state == state


def test_a_batch_gathered_ahead_raises_in_its_place() -> None:
    buffer = filled(relive.RingReplayBuffer)
    draws = buffer.batches(4, prefetch=1)
    Fickle.is_full = True
    with pytest.raises(MemoryError, match="^no$"):
        next(draws)
    draws.close()


@pytest.mark.parametrize("name", zoo.STORED)
def test_a_batch_that_no_memory_holds_is_refused(name: str) -> None:
    buffer = zoo.worked(zoo.KINDS[name].make)
    draw = getattr(buffer, "sample_n_step_nowait", getattr(buffer, "sample", None))
    if draw is None:
        pytest.skip("it draws nothing")
    before = zoo.state_of(buffer)
    with pytest.raises(relive.ArgumentError, match=f"must be at most {2**40}, got {2**60}$"):
        draw(*((2**60, 1, 0.9) if isinstance(buffer, relive.EpisodeReplayBuffer) else (2**60,)))
    assert zoo.state_of(buffer) == before
