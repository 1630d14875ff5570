"""The asyncio shell: who waits for what, what wakes whom, wrong arguments, cancellation, closing, many tasks."""

import asyncio
import collections
from collections.abc import Awaitable, Callable
import dataclasses
import pathlib
import random
import threading
from typing import Any, assert_type

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays
from relive.testing import zoo

Shell = relive.AsyncReplayBuffer[Any]
PATIENCE = 60.0
"""Seconds after which a test has hung."""


async def settle(rounds: int = 20) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def in_time(awaited: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaited


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def num_waiting(buffer: Shell) -> tuple[int, int]:
    return len(buffer._gate._inserters.waiting), len(buffer._gate._samplers.waiting)


def ring(capacity: int = 100, **settings: Any) -> Shell:
    return relive.AsyncReplayBuffer(relive.RingReplayBuffer(capacity, seed=0, **settings))


def prioritized(capacity: int = 100, **settings: Any) -> Shell:
    settings = {"alpha": 1.0, "epsilon": 0.0} | settings
    return relive.AsyncReplayBuffer(relive.PrioritizedReplayBuffer(capacity, seed=0, **settings))


def sequences(capacity: int = 100, **settings: Any) -> Shell:
    return relive.AsyncReplayBuffer(relive.SequenceReplayBuffer(capacity, seed=0, **settings))


async def live(buffer: Shell, steps: int, first: int = 0) -> None:
    """Add complete steps; observation t is followed by t + 1."""
    for t in range(first, first + steps):
        await buffer.add(t, 0, 1.0, t + 1)


# What a batch waits for.


async def test_a_batch_waits_for_the_first_step_that_can_be_drawn() -> None:
    buffer = ring()
    waiter = asyncio.create_task(buffer.sample(4))
    await settle()
    await buffer.add(0, 0, 1.0)
    await settle()
    assert not waiter.done()
    await buffer.add(1, 0, 1.0)
    batch = await in_time(waiter)
    assert batch.observation.tolist() == [0, 0, 0, 0]
    assert batch.next_observation.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "write",
    [
        lambda buffer: buffer.add(0, 0, 1.0, 1),
        lambda buffer: buffer.extend([0], [0], [1.0], [1]),
        lambda buffer: buffer.add_episode([0, 1], [0], [1.0], terminated=True),
        lambda buffer: buffer.add_steps([0, 1], [0], [1.0]),
    ],
    ids=["add", "extend", "add_episode", "add_steps"],
)
async def test_every_way_of_writing_wakes_who_waits_for_a_batch(write: Callable[[Shell], Awaitable[Any]]) -> None:
    buffer = ring()
    waiters = [asyncio.create_task(buffer.sample(2)), asyncio.create_task(buffer.sample_keys(3))]
    await settle()
    assert num_waiting(buffer) == (0, 2)
    await write(buffer)
    batch, keys = await in_time(asyncio.gather(*waiters))
    assert batch.keys.tolist() == [0, 0]
    assert keys.tolist() == [0, 0, 0]


async def test_a_batch_waits_for_the_limiter() -> None:
    buffer = ring(limiter=relive.MinSize(5))
    waiter = asyncio.create_task(buffer.sample(2))
    await live(buffer, 4)
    await settle()
    assert not waiter.done()
    await live(buffer, 1, first=4)
    assert len(await in_time(waiter)) == 2


async def test_a_batch_waits_while_samples_run_ahead() -> None:
    buffer = ring(limiter=relive.SampleToInsertRatio(1.0, min_size=2, error_buffer=4.0))
    await live(buffer, 2)
    await buffer.sample(4)
    waiter = asyncio.create_task(buffer.sample(2))
    await live(buffer, 1, first=2)
    await settle()
    assert not waiter.done()
    await live(buffer, 1, first=3)
    await in_time(waiter)
    assert buffer.get_stats().sampled == 6


async def test_a_batch_waits_while_every_eligible_priority_is_0() -> None:
    buffer = prioritized()
    await live(buffer, 3)
    buffer.update_priorities([0, 1, 2], [0.0, 0.0, 0.0])
    with pytest.raises(errors.NotReadyError, match="^every eligible priority weighs 0: update_priorities first$"):
        buffer.buffer.sample(4)
    waiter = asyncio.create_task(buffer.sample(4))
    await settle()
    assert not waiter.done()
    assert buffer.update_priorities([1], [0.5]) == 1
    assert (await in_time(waiter)).keys.tolist() == [1, 1, 1, 1]


async def test_a_batch_waits_for_draws_that_are_left() -> None:
    buffer = ring(max_times_sampled=2)
    await live(buffer, 2)
    await buffer.sample(3)
    waiter = asyncio.create_task(buffer.sample(5))
    await settle()
    await live(buffer, 1, first=2)
    await settle()
    assert not waiter.done()
    with pytest.raises(
        errors.NotReadyError,
        match="^sample has 3 draws left with max_times_sampled = 2, and 5 were asked for: add steps first$",
    ):
        buffer.buffer.sample(5)
    await live(buffer, 1, first=3)
    await in_time(waiter)
    assert (buffer.num_eligible, buffer.get_stats().sampled) == (0, 8)


async def test_a_batch_waits_while_every_anchor_is_barred() -> None:
    buffer = ring()
    await live(buffer, 2)
    assert buffer.set_eligible([0, 1], False) == 2
    waiter = asyncio.create_task(buffer.sample(3))
    await settle()
    assert not waiter.done()
    assert buffer.set_eligible([1], True) == 1
    assert (await in_time(waiter)).keys.tolist() == [1, 1, 1]


async def test_an_episode_is_ended_by_a_plain_call() -> None:
    buffer = ring()
    await live(buffer, 2)
    assert buffer.end_episode()
    assert not buffer.end_episode(stream=0)
    assert buffer.get_stats().truncated_episodes == 1


async def test_a_batch_waits_for_the_first_sequence() -> None:
    buffer = sequences(length=3)
    waiter = asyncio.create_task(buffer.sample(2))
    await live(buffer, 2)
    await settle()
    assert not waiter.done()
    await live(buffer, 1, first=2)
    assert (await in_time(waiter)).observation.tolist() == [[0, 1, 2, 3]] * 2


async def test_a_batch_that_can_be_drawn_does_not_wait() -> None:
    buffer = ring(n_step=2, gamma=0.5)
    await live(buffer, 3)
    batch = await in_time(buffer.sample(batch_size=1, n_step=1, gamma=1.0))
    assert batch.next_discount.tolist() == [1.0]
    assert (await in_time(buffer.sample_keys(batch_size=5))).shape == (5,)
    assert buffer.get_stats().sampled == 6


# What an insert waits for.


def limited(capacity: int = 100, streams: int = 1) -> Shell:
    """Two samples an insert; surplus = 2 * (steps - 4) - samples within [-8, 8]: eight steps, then it is full."""
    limiter = relive.SampleToInsertRatio(2.0, min_size=4, error_buffer=8.0)
    return ring(capacity, limiter=limiter, streams=streams)


async def held_back(streams: int = 1) -> Shell:
    """A buffer whose limiter holds inserts back until four samples more are drawn."""
    buffer = limited(streams=streams)
    await live(buffer, 8)
    assert not buffer.buffer.can_insert()
    return buffer


@pytest.mark.parametrize(
    ("write", "keys"),
    [
        (lambda buffer: buffer.add(8, 0, 1.0, 9), 8),
        (lambda buffer: buffer.extend([8], [0], [1.0], [9]), [8]),
        (lambda buffer: buffer.add_episode([8, 9, 10], [0, 0], [1.0, 1.0], terminated=True), [8, 9]),
    ],
    ids=["add", "extend", "add_episode"],
)
async def test_inserts_wait_while_they_run_ahead(write: Callable[[Shell], Awaitable[Any]], keys: Any) -> None:
    buffer = await held_back()
    with pytest.raises(errors.NotReadyError, match=r"^add held back by SampleToInsertRatio\(.*\): draw samples first$"):
        buffer.buffer.add(8, 0, 1.0, 9)
    waiter = asyncio.create_task(write(buffer))  # type: ignore[arg-type, var-annotated]
    await settle()
    assert num_waiting(buffer) == (1, 0)
    assert len(buffer) == 8
    await buffer.sample(2)
    assert np.asarray(await in_time(waiter)).tolist() == keys
    assert buffer.eligible_keys().tolist() == list(range(8 + np.size(keys)))
    buffer.check()


async def test_drawing_keys_wakes_who_waits_to_insert() -> None:
    buffer = await held_back()
    waiter = asyncio.create_task(live(buffer, 1, first=8))
    await settle()
    await buffer.sample_keys(2)
    await in_time(waiter)
    assert len(buffer) == 9


@pytest.mark.parametrize(
    "make_small",
    [
        lambda buffer: buffer.clear(),
        lambda buffer: buffer.set_eligible(np.arange(5), False),
    ],
    ids=["clear", "set_eligible"],
)
async def test_inserts_below_the_least_size_are_free_and_who_waits_hears_of_it(make_small: Any) -> None:
    buffer = await held_back()
    waiter = asyncio.create_task(live(buffer, 1, first=8))
    await settle()
    assert num_waiting(buffer) == (1, 0)
    make_small(buffer)
    await in_time(waiter)
    assert buffer.get_stats().appended == 9


async def test_actors_and_learner_keep_the_ratio() -> None:
    buffer = limited(streams=4)
    surpluses = []

    async def act(stream: int) -> None:
        for t in range(50):
            await buffer.add(t, 0, 1.0, t + 1, stream=stream)
            stats = buffer.get_stats()
            surpluses.append(2 * (stats.appended - 4) - stats.sampled)

    async def learn() -> None:
        while True:
            await buffer.sample(4)
            stats = buffer.get_stats()
            surpluses.append(2 * (stats.appended - 4) - stats.sampled)

    learner = asyncio.create_task(learn())
    await in_time(asyncio.gather(*map(act, range(4))))
    await cancelled(learner)
    assert buffer.get_stats().appended == 200
    assert min(surpluses) >= -8
    assert max(surpluses) <= 8
    assert 2 * 196 - 8 <= buffer.get_stats().sampled <= 2 * 196 + 8
    buffer.check()


# Turns.


async def test_batches_are_served_in_order_of_arrival_and_small_ones_do_not_overtake() -> None:
    buffer = ring(max_times_sampled=1)
    served = []

    async def learn(size: int) -> None:
        served.append(len(await buffer.sample(size)))

    tasks = [asyncio.create_task(learn(size)) for size in (4, 1, 3, 2)]
    await settle()
    for t in range(10):
        assert served == [[], [], [], [], [4], [4, 1], [4, 1], [4, 1], [4, 1, 3], [4, 1, 3]][t]
        await live(buffer, 1, first=t)
        await settle()
    await in_time(asyncio.gather(*tasks))
    assert served == [4, 1, 3, 2]


async def test_inserts_are_let_in_in_order_of_arrival_and_a_newcomer_waits_behind() -> None:
    buffer = await held_back()
    tasks = [asyncio.create_task(buffer.add(100 + place, 0, 0.0, 0)) for place in range(3)]
    await settle()
    await buffer.sample(2)
    newcomer = asyncio.create_task(buffer.add(200, 0, 0.0, 0))
    await settle()
    assert buffer.read([8]).observation.tolist() == [100]
    await buffer.sample(6)
    assert await in_time(asyncio.gather(*tasks, newcomer)) == [8, 9, 10, 11]
    assert buffer.read([8, 9, 10, 11]).observation.tolist() == [100, 101, 102, 200]


async def test_one_in_32_inserts_and_every_draw_gives_way() -> None:
    buffer = ring()
    ran: list[int] = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    await live(buffer, 31)
    assert not ran
    await live(buffer, 1, first=31)
    assert ran == [1]
    for draw in (buffer.sample, buffer.sample_keys):
        asyncio.get_running_loop().call_soon(ran.append, 2)
        await draw(1)
        assert ran.pop() == 2


async def test_awaited_calls_cannot_keep_the_event_loop_to_themselves() -> None:
    buffer = ring(streams=2)
    turns = 0

    async def bystander() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def endless_actor(stream: int) -> None:
        while True:
            await buffer.add(0, 0, 0.0, 0, stream=stream)

    async def busy_learner() -> None:
        while True:
            await buffer.sample(4)

    tasks = [asyncio.create_task(work) for work in (bystander(), endless_actor(0), endless_actor(1), busy_learner())]
    await settle(20)
    await cancelled(*tasks)
    assert turns > 15
    assert buffer.get_stats().sampled > 40
    assert 32 * 15 < buffer.get_stats().appended < 32 * 50


# Wrong arguments.

STEPS: list[tuple[str, Callable[[Shell], Awaitable[Any]], type[Exception], str]] = [
    ("add", lambda b: b.add(0.5, 0, 1.0, 1), errors.SchemaError, "^observation must fit int64, got 0.5"),
    ("add", lambda b: b.add(0, 0, 1.0, 1, logp=1), errors.SchemaError, "^unknown extra 'logp': the schema has no extr"),
    ("add", lambda b: b.add(0, 0, 1.0, truncated=True), errors.ArgumentError, "^next_observation must be given"),
    ("add", lambda b: b.add(0, 0, 1.0, stream=1), errors.ArgumentError, "^stream must be below streams = 1, got 1$"),
    ("add", lambda b: b.add(0, 0), TypeError, "reward"),
    ("extend", lambda b: b.extend([0, 1], [0], [1.0]), errors.SchemaError, r"^observation must be of shape \(1,\)"),
    (
        "add_episode",
        lambda b: b.add_episode([0], [], [], terminated=True),
        errors.ArgumentError,
        "^an episode must have 1 to",
    ),
]


@pytest.mark.parametrize(("write", "error", "message"), [case[1:] for case in STEPS])
async def test_a_wrong_step_is_refused_at_once_and_not_after_the_wait(
    write: Callable[[Shell], Awaitable[Any]], error: type[Exception], message: str
) -> None:
    buffer = await held_back()
    waiter = asyncio.create_task(live(buffer, 1, first=8))
    await settle()
    with pytest.raises(error, match=message):
        await in_time(write(buffer))
    assert num_waiting(buffer) == (1, 0)
    assert buffer.get_stats().appended == 8
    await cancelled(waiter)


@pytest.mark.parametrize(("write", "error", "message"), [case[1:] for case in STEPS])
async def test_a_wrong_step_is_refused_where_it_need_not_wait_too(
    write: Callable[[Shell], Awaitable[Any]], error: type[Exception], message: str
) -> None:
    buffer = ring()
    await live(buffer, 1)
    for calls in (0, 31):
        buffer._gate._calls = calls
        with pytest.raises(error, match=message):
            await in_time(write(buffer))
    assert buffer.get_stats().appended == 1


DRAWS: list[tuple[Callable[[Shell], Awaitable[Any]], type[Exception], str]] = [
    (lambda b: b.sample(0), errors.ArgumentError, "^batch_size must be at least 1, got 0$"),
    (lambda b: b.sample(True), errors.ArgumentTypeError, "^batch_size must be an integer"),
    (lambda b: b.sample_keys(0), errors.ArgumentError, "^batch_size must be at least 1, got 0$"),
    (
        lambda b: b.sample(15),
        errors.ArgumentError,
        r"^batch_size must be at most 14 with SampleToInsertRatio\(.*\), go",
    ),
    (lambda b: b.sample_keys(15), errors.ArgumentError, "^batch_size must be at most 14 with"),
    (lambda b: b.sample(2, n_step=0), errors.ArgumentError, "^n_step must be at least 1, got 0$"),
    (lambda b: b.sample(2, gamma=0.0), errors.ArgumentError, r"^gamma must be in \(0, 1\], got 0.0$"),
    (lambda b: b.sample(2, beta=0.5), errors.ArgumentError, "^beta must be left out without priorities, got 0.5$"),
    (lambda b: b.sample(2, alpha=0.5), TypeError, "alpha"),
]


@pytest.mark.parametrize(("draw", "error", "message"), DRAWS)
@pytest.mark.parametrize("steps", [0, 8])
async def test_a_wrong_draw_is_refused_at_once_and_not_after_the_wait(
    draw: Callable[[Shell], Awaitable[Any]], error: type[Exception], message: str, steps: int
) -> None:
    buffer = limited()
    await live(buffer, steps)
    with pytest.raises(error, match=message):
        await in_time(draw(buffer))
    assert num_waiting(buffer) == (0, 0)
    assert buffer.get_stats().sampled == 0


async def test_a_step_that_no_longer_fits_when_its_turn_comes_is_refused_and_the_next_one_is_not() -> None:
    """Who comes first says what a step holds; a caller that gave way meanwhile is checked anew."""
    buffer = ring()
    buffer._gate._calls = 31
    late = asyncio.create_task(buffer.add([0.5], 0, 1.0, [0.5]))
    await asyncio.sleep(0)
    await live(buffer, 1)
    with pytest.raises(errors.SchemaError, match=r"^observation must be of shape \(\), got \(1,\)$"):
        await in_time(late)
    await live(buffer, 1, first=1)
    assert buffer.eligible_keys().tolist() == [0, 1]


class Alien:
    """An array of another library."""

    def __init__(self, *values: float) -> None:
        self.values = np.array(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


class Refusing:
    """An array of another library that cannot be read now."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("call detach first")


@pytest.mark.parametrize("must_wait", [True, False], ids=["held back", "giving way"])
async def test_what_is_stored_is_what_the_arrays_held_when_the_call_began(must_wait: bool) -> None:
    buffer = limited() if must_wait else ring()
    frame, arm, alien, pair = np.zeros(2), [0.0, 0.0], Alien(0.0, 0.0), [Alien(1.0), Alien(2.0)]
    action, extra = [0, 0], np.zeros((), np.int64)
    observation = {"frame": frame, "deep": {"arm": arm, "alien": alien, "pair": pair}}
    twin = {"frame": np.ones(2), "deep": {"arm": (1.0, 1.0), "alien": np.ones(2), "pair": np.ones((2, 1))}}
    for _ in range(8 if must_wait else 1):
        await buffer.add(observation, action, 1.0, twin, extra=extra)
    buffer._gate._calls = 31
    waiter = asyncio.create_task(
        buffer.add(observation, action, np.float64(2.0), next_observation=twin, terminated=np.True_, extra=extra)
    )
    await asyncio.sleep(0)
    assert not waiter.done()
    frame[:], arm[0], alien.values[0], pair[1].values[0], action[0], extra[()] = 9.0, 9.0, 9.0, 9.0, 9, 9
    observation["frame"] = np.full(2, 9.0)
    if must_wait:
        await settle()
        await buffer.sample(2)
    batch = buffer.read([await in_time(waiter)])
    assert batch.observation["frame"].tolist() == [[0.0, 0.0]]
    assert batch.observation["deep"]["arm"].tolist() == [[0.0, 0.0]]
    assert batch.observation["deep"]["alien"].tolist() == [[0.0, 0.0]]
    assert batch.observation["deep"]["pair"].tolist() == [[[1.0], [2.0]]]
    assert batch.action.tolist() == [[0, 0]]
    assert batch.extras["extra"].tolist() == [0]
    assert (batch.reward.tolist(), batch.is_terminal.tolist()) == ([2.0], [True])


@pytest.mark.parametrize("calls", [0, 31], ids=["straight on", "giving way"])
async def test_an_array_that_cannot_be_read_is_refused(calls: int) -> None:
    buffer = ring()
    buffer._gate._calls = calls
    with pytest.raises(errors.SchemaError, match="must be an array of numbers, of text or of dates, got <"):
        await in_time(buffer.add(Refusing(), 0, 1.0))
    assert len(buffer) == 0


async def test_a_masked_array_is_refused_after_giving_way_too() -> None:
    buffer = ring()
    buffer._gate._calls = 31
    with pytest.raises(errors.SchemaError, match="^observation must be an array of numbers"):
        await in_time(buffer.add(np.ma.masked_equal([1, 2], 2), 0, 1.0))


# The question.


@st.composite
def actions(draw: st.DrawFn) -> tuple[str, int]:
    verb = draw(
        st.sampled_from(["add", "add", "add", "end", "sample", "sample", "bar", "allow", "rate", "zero", "clear"])
    )
    return verb, draw(st.integers(1, 12))


@hypothesis.given(
    steps=st.lists(actions(), max_size=40),
    limiter=st.sampled_from([None, relive.MinSize(3), relive.SampleToInsertRatio(1.5, min_size=2, error_buffer=6.0)]),
    most=st.sampled_from([None, 1, 3]),
)
def test_the_questions_foretell_what_the_verbs_do_and_change_nothing(
    steps: list[tuple[str, int]], limiter: relive.RateLimiter | None, most: int | None
) -> None:
    inside = prioritized(8, limiter=limiter, max_times_sampled=most).buffer
    for verb, number in steps:
        state, stats = inside.rng.bit_generator.state, inside.get_stats()
        may_insert = inside.can_insert()
        may_sample = None
        if number <= (inside.limiter.max_batch_size or number):
            may_sample = inside.can_sample(number)
        assert inside.rng.bit_generator.state == state
        assert inside.get_stats() == stats
        try:
            if verb == "add":
                inside.add(number, 0, 1.0)
            elif verb == "end":
                inside.add(number, 0, 1.0, terminated=True)
            elif verb == "sample":
                inside.sample(number)
            elif verb in ("bar", "allow"):
                inside.set_eligible(inside.eligible_keys()[:number] if verb == "bar" else range(400), verb == "allow")
            elif verb in ("rate", "zero"):
                count = inside.appended
                inside.update_priorities(range(count), np.full(count, float(number) if verb == "rate" else 0.0))
            else:
                inside.clear()
        except errors.NotReadyError:
            assert (verb in ("add", "end") and not may_insert) or (verb == "sample" and may_sample is False)
            assert inside.rng.bit_generator.state == state
            assert inside.get_stats() == stats
        except errors.ArgumentError:
            assert verb == "sample"
            assert may_sample is None
            with pytest.raises(errors.ArgumentError, match="^batch_size must be at most"):
                inside.can_sample(number)
        else:
            assert may_insert or verb not in ("add", "end")
            assert may_sample or verb != "sample"
    inside.check()


class Moody(relive.UniformSampler):
    """Refuses to draw although there are anchors, and does not say so beforehand."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        raise errors.NotReadyError("not in the mood")


async def test_a_sampler_that_refuses_without_a_word_is_heard_and_not_waited_for() -> None:
    buffer = ring(sampler=Moody())
    await live(buffer, 1)
    with pytest.raises(errors.NotReadyError, match="^not in the mood$"):
        await in_time(buffer.sample(1))
    assert num_waiting(buffer) == (0, 0)


# Cancelled calls.


async def test_a_cancelled_draw_has_drawn_nothing() -> None:
    buffer, twin = ring(), ring()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await buffer.sample(4)
    for each in (buffer, twin):
        await live(each, 50)
    waiter = asyncio.create_task(buffer.sample(4))
    await asyncio.sleep(0)
    await cancelled(waiter)
    assert (await buffer.sample(50)).keys.tolist() == (await twin.sample(50)).keys.tolist()
    assert buffer.get_stats().sampled == 50


async def test_a_cancelled_insert_has_added_nothing() -> None:
    buffer = await held_back()
    before = buffer.get_stats()
    waiters = [asyncio.create_task(live(buffer, 1, first=8)) for _ in range(2)]
    await settle()
    await cancelled(waiters[0])
    assert buffer.get_stats() == before
    await buffer.sample(2)
    await in_time(waiters[1])
    assert buffer.get_stats().appended == 9
    assert num_waiting(buffer) == (0, 0)


async def test_a_call_cancelled_after_its_wake_up_passes_it_on() -> None:
    buffer = ring()
    waiters = [asyncio.create_task(buffer.sample(1)) for _ in range(2)]
    await settle()
    await live(buffer, 1)
    waiters[0].cancel()
    assert len(await in_time(waiters[1])) == 1
    assert buffer.get_stats().sampled == 1
    await cancelled(waiters[0])


async def test_a_producer_that_dies_takes_the_waiting_learner_with_it() -> None:
    buffer = ring()

    async def dying() -> None:
        await buffer.add(0, 0, 1.0)
        raise ConnectionError("the environment went away")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(buffer.sample(1))
            group.create_task(dying())
    assert caught.group_contains(ConnectionError)
    assert num_waiting(buffer) == (0, 0)


@dataclasses.dataclass
class Log:
    """What the calls that returned have done."""

    added: int = 0
    sampled: int = 0
    draws: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)


STORMS: dict[str, Callable[[int], Shell]] = {
    "ring": lambda streams: ring(150, streams=streams, n_step=3),
    "stacks": lambda streams: ring(150, streams=streams, frame_stack=3),
    "ratio": lambda streams: ring(
        150, streams=streams, limiter=relive.SampleToInsertRatio(4.0, min_size=10, error_buffer=40.0)
    ),
    "priorities": lambda streams: prioritized(150, streams=streams),
    "three times": lambda streams: prioritized(150, streams=streams, max_times_sampled=3),
    "sequences": lambda streams: sequences(150, streams=streams, length=3, prioritized=True, epsilon=0.0),
}


def assert_not_spliced(batch: Any) -> None:
    """Observations count up by one a step within their episode."""
    if isinstance(batch, relive.SequenceBatch):
        assert (np.diff(batch.observation, axis=1) == 1).all()
        return
    newest, next_newest = batch.observation, batch.next_observation
    if newest.ndim == 2:
        newest, next_newest = newest[:, -1], next_newest[:, -1]
        known = batch.observation[:, :-1] > 0
        assert (np.diff(batch.observation, axis=1)[known] == 1).all()
    assert (next_newest == newest + batch.steps).all()


async def storm(kind: str, seed: int, actors: int, cancels: int) -> None:
    """Actors and learners, cancelled anywhere; what has happened is what the calls that returned have done."""
    rng = random.Random(seed)
    buffer = STORMS[kind](actors)
    log = Log()

    async def act(stream: int) -> None:
        for episode in range(3):
            first = 1 + 1000 * (3 * stream + episode)
            if rng.random() < 0.2:
                length = rng.randint(1, 5)
                places = [first + t for t in range(length + 1)]
                keys = await buffer.add_episode(places, places[1:], [1.0] * length, terminated=True, stream=stream)
                log.added += len(keys)
            steps = rng.randint(1, 5)
            for t in range(steps):
                step: dict[str, Any] = {"observation": first + 100 + t, "action": 0, "reward": 1.0}
                step["next_observation"] = first + 101 + t if rng.random() < 0.7 else None
                if rng.random() < 0.7:
                    await buffer.add(**step, stream=stream)
                else:
                    rows = {name: [value] for name, value in step.items() if value is not None}
                    await buffer.extend(**rows, streams=[stream])
                log.added += 1
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
            await buffer.add(first + 100 + steps, 0, 1.0, first + 101 + steps, truncated=True, stream=stream)
            log.added += 1

    async def learn() -> None:
        while True:
            size = rng.randint(1, 8)
            if rng.random() < 0.2:
                keys = await buffer.sample_keys(size)
                assert_not_spliced(buffer.read(keys))
            else:
                batch = await buffer.sample(size)
                keys = batch.keys
                assert_not_spliced(batch)
            log.sampled += size
            log.draws.update(keys.tolist())
            if buffer.buffer.has_priorities:
                buffer.update_priorities(keys, [rng.choice([0.0, 1.0, 5.0]) for _ in keys])
            if rng.random() < 0.1:
                buffer.set_eligible(keys, rng.random() < 0.5)
            await settle(rng.randint(0, 2))

    tasks = [asyncio.create_task(act(stream)) for stream in range(actors)]
    learners = [asyncio.create_task(learn()) for _ in range(3)]
    for cancel in range(cancels):
        await settle(rng.randint(0, 2))
        rng.choice(tasks).cancel()
        if rng.random() < 0.2:
            learners.append(asyncio.create_task(learn()))
            learners[-4].cancel()
        if cancel % 16 == 0:
            buffer.check()
            assert (buffer.get_stats().appended, buffer.get_stats().sampled) == (log.added, log.sampled)
    results = await in_time(asyncio.gather(*tasks, return_exceptions=True))
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    await settle()
    for task in learners:
        task.cancel()
    ends = await asyncio.gather(*learners, return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    buffer.check()
    assert (buffer.get_stats().appended, buffer.get_stats().sampled) == (log.added, log.sampled)
    assert num_waiting(buffer) == (0, 0)
    if kind == "three times":
        assert max(log.draws.values()) <= 3


@pytest.mark.parametrize("actors", [40, pytest.param(140, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", STORMS)
async def test_many_tasks_with_random_cancellation(kind: str, actors: int) -> None:
    await storm(kind, seed=1, actors=actors, cancels=2 * actors)


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 4)
@hypothesis.given(kind=st.sampled_from(list(STORMS)), seed=st.integers(0, 10**6))
def test_small_storms_of_any_kind(kind: str, seed: int) -> None:
    asyncio.run(storm(kind, seed, actors=5, cancels=6))


@pytest.mark.parametrize("make", [ring, prioritized])
async def test_no_anchor_is_drawn_more_often_than_it_may_by_learners_side_by_side(make: Callable[..., Shell]) -> None:
    """Reverb df9ee82, TorchRL 3911."""
    buffer = make(200, max_times_sampled=3, streams=4)
    draws: collections.Counter[int] = collections.Counter()

    async def learn(size: int) -> None:
        while True:
            draws.update((await buffer.sample(size)).keys.tolist())
            assert max(draws.values()) <= 3
            await settle(size % 3)

    async def act(stream: int) -> None:
        for t in range(40):
            await buffer.add(t, 0, 1.0, t + 1, stream=stream)
            await settle(stream)

    learners = [asyncio.create_task(learn(size)) for size in (1, 1, 2, 5, 7)]
    await in_time(asyncio.gather(*map(act, range(4))))
    await settle(200)
    assert num_waiting(buffer) == (0, 5)
    assert sum(draws.values()) == buffer.get_stats().sampled
    await cancelled(*learners)
    while buffer.num_eligible:
        draws.update((await in_time(buffer.sample(1))).keys.tolist())
    assert draws == dict.fromkeys(range(160), 3)
    assert buffer.get_stats().spent == 160
    buffer.check()


# The end.


async def test_closing_frees_whoever_waits_and_refuses_later_calls() -> None:
    buffer = await held_back()
    inserters = [
        asyncio.create_task(buffer.add(8, 0, 1.0, 9)),
        asyncio.create_task(buffer.extend([8], [0], [1.0], [9])),
        asyncio.create_task(buffer.add_episode([8, 9], [0], [1.0], terminated=True)),
    ]
    buffer.set_eligible(range(5), False)
    buffer.set_eligible(range(5), True)
    await settle()
    assert num_waiting(buffer) == (3, 0)
    buffer.close()
    buffer.close()
    message = "^buffer is closed: only the RingReplayBuffer inside still works$"
    for error in await in_time(asyncio.gather(*inserters, return_exceptions=True)):
        assert type(error) is errors.ClosedError
    for call in (
        lambda: buffer.add(8, 0, 1.0, 9),
        lambda: buffer.extend([8], [0], [1.0], [9]),
        lambda: buffer.add_episode([8, 9], [0], [1.0], terminated=True),
        lambda: buffer.sample(1),
        lambda: buffer.sample_keys(1),
    ):
        with pytest.raises(errors.ClosedError, match=message):
            await in_time(call())
    assert buffer.get_stats().appended == 8
    assert len(buffer.buffer.sample(3)) == 3
    assert buffer.read([7]).observation.tolist() == [7]
    buffer.check()


async def test_closing_frees_who_waits_for_a_batch() -> None:
    buffer = ring()
    waiters: list[asyncio.Task[Any]] = [
        asyncio.create_task(buffer.sample(1)),
        asyncio.create_task(buffer.sample_keys(2)),
    ]
    await settle()
    buffer.close()
    for error in await in_time(asyncio.gather(*waiters, return_exceptions=True)):
        assert type(error) is errors.ClosedError
    assert num_waiting(buffer) == (0, 0)


def test_two_open_event_loops_are_refused() -> None:
    buffer = ring()
    with asyncio.Runner() as first:
        first.run(live(buffer, 2))
        for call in (live(buffer, 1), buffer.sample(1), buffer.sample_keys(1)):
            with pytest.raises(
                errors.EventLoopError,
                match="^buffer belongs to another event loop: use one buffer in one loop, or the RingReplayBuffer ins",
            ):
                asyncio.run(call)
    assert buffer.read([0]).observation.tolist() == [0]
    assert len(buffer.buffer.sample(3)) == 3


def test_the_next_event_loop_takes_a_shell_over_once_the_first_is_closed(tmp_path: pathlib.Path) -> None:
    buffer = ring()

    async def sample(steps: int) -> int:
        learner = asyncio.create_task(buffer.sample(3))
        await settle()
        await live(buffer, steps)
        return len((await in_time(learner)).keys)

    async def wait() -> None:
        task = asyncio.create_task(buffer.sample(3))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        left.append(task)
        await settle()

    left: list[asyncio.Task[Any]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    loop.close()
    assert num_waiting(buffer) == (0, 1)
    assert [asyncio.run(sample(steps)) for steps in (5, 1)] == [3, 3]
    asyncio.run(buffer.save(tmp_path / "saved"))
    assert num_waiting(buffer) == (0, 0)


# Saving.


async def test_the_other_tasks_go_on_while_the_buffer_is_written_as_it_was(tmp_path: pathlib.Path) -> None:
    buffer = ring(6)
    await live(buffer, 5)
    before = zoo.plain(buffer.state_dict())
    may_go_on, writers = threading.Event(), set[int]()

    def progress(count: int, total: int) -> None:
        writers.add(threading.get_ident())
        assert may_go_on.wait(PATIENCE)

    saving = asyncio.create_task(buffer.save(tmp_path / "saved", progress=progress))
    await settle()
    await live(buffer, 5, first=5)
    await buffer.sample(3)
    assert not saving.done()
    may_go_on.set()
    await in_time(saving)
    assert writers == writers - {threading.get_ident()} != set()
    loaded = relive.RingReplayBuffer.load(tmp_path / "saved")
    assert zoo.plain(loaded.state_dict()) == before
    assert zoo.plain(buffer.state_dict()) != before


def test_a_cancelled_save_is_written_all_the_same(tmp_path: pathlib.Path) -> None:
    buffer = ring()
    begun, may_go_on = threading.Event(), threading.Event()

    def progress(count: int, total: int) -> None:
        begun.set()
        assert may_go_on.wait(PATIENCE)

    async def save_and_cancel() -> None:
        await live(buffer, 5)
        saving = asyncio.create_task(buffer.save(tmp_path / "saved", progress=progress))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        with pytest.raises(errors.CheckpointError, match="saved"):
            await in_time(buffer.save(tmp_path / "saved"))
        await cancelled(saving)
        assert saving.cancelled()
        may_go_on.set()

    asyncio.run(save_and_cancel())  # It ends when the threads have.
    loaded = relive.RingReplayBuffer.load(tmp_path / "saved")
    assert zoo.plain(loaded.state_dict()) == zoo.plain(buffer.state_dict())


async def test_a_closed_buffer_can_be_saved_and_the_next_one_goes_on(tmp_path: pathlib.Path) -> None:
    buffer = ring()
    await live(buffer, 5)
    buffer.close()
    await buffer.save(tmp_path / "saved")
    await buffer.save(tmp_path / "saved", keep=2)
    other = relive.AsyncReplayBuffer(relive.RingReplayBuffer.load(tmp_path / "saved.1"))
    assert zoo.plain(await other.sample(3)) == zoo.plain(buffer.buffer.sample(3))


async def test_a_state_that_is_loaded_wakes_who_waits() -> None:
    full, buffer = ring(), ring()
    await live(full, 5)
    waiting = asyncio.create_task(buffer.sample(3))
    await settle()
    buffer.load_state_dict(full.state_dict())
    assert zoo.plain(await in_time(waiting)) == zoo.plain(await full.sample(3))


def test_saving_belongs_to_the_event_loop_too(tmp_path: pathlib.Path) -> None:
    buffer = ring()
    with asyncio.Runner() as first:
        first.run(live(buffer, 2))
        with pytest.raises(errors.EventLoopError, match="^buffer belongs to another event loop"):
            asyncio.run(buffer.save(tmp_path / "saved"))
    assert not list(tmp_path.iterdir())


# The plain calls.


async def test_plain_calls_answer_what_the_buffer_inside_answers() -> None:
    buffer = prioritized(8)
    await live(buffer, 9)
    assert buffer.buffer.capacity == buffer.capacity == 8
    assert (len(buffer), buffer.is_full, buffer.num_eligible) == (8, True, 8)
    assert buffer.eligible_keys().tolist() == list(range(1, 9))
    assert buffer.update_priorities([0, 3], [7.0, 2.0]) == 1
    assert buffer.get_priorities([3, 4]).tolist() == [2.0, 1.0]
    assert buffer.read([3], n_step=2, gamma=1.0).reward.tolist() == [2.0]
    assert buffer.set_eligible([0, 3, 4], False) == 2
    assert (len(buffer), buffer.num_eligible) == (8, 6)
    assert buffer.get_stats() == buffer.buffer.get_stats()
    assert repr(buffer) == f"<AsyncReplayBuffer around {buffer.buffer!r}>"
    buffer.clear()
    assert (len(buffer), buffer.is_full) == (0, False)


async def test_what_the_buffer_inside_is_can_be_asked_for() -> None:
    limiter = relive.MinSize(1)
    buffer = prioritized(8, streams=2, limiter=limiter)
    assert [buffer.schema] == [None]
    keys = await buffer.add_steps([[0], [1], [2]], [0, 1], [1.0, 2.0], stream=1)
    inside = buffer.buffer
    assert keys.tolist() == [0, 1]
    assert [buffer.schema] == [inside.schema] != [None]
    assert (buffer.streams, buffer.appended, buffer.has_priorities) == (2, 2, True)
    assert (buffer.limiter, buffer.sampler, buffer.window) == (limiter, inside.sampler, inside.window)
    assert buffer.settings() == inside.settings()
    assert buffer.explain(1) == inside.explain(1)
    batch = inside.read([1, 0])
    assert buffer.explain(batch) == inside.explain(batch)
    assert buffer.end_episode(stream=1)
    assert not buffer.end_episode(1)


# Batch after batch.


async def test_each_round_waits_and_draws_as_sample_does() -> None:
    buffer, twin = ring(limiter=relive.MinSize(3)), ring()
    rounds = buffer.batches(4, n_step=2)
    assert aiter(rounds) is rounds
    waiting = asyncio.create_task(anext(rounds))
    await live(buffer, 2)
    await settle()
    assert not waiting.done()
    await live(buffer, 1, first=2)
    await live(twin, 3)
    drawn = [await in_time(waiting)]
    async for batch in rounds:
        drawn.append(batch)
        if len(drawn) == 3:
            break
    for batch in drawn:
        assert zoo.plain(batch) == zoo.plain(await twin.sample(4, n_step=2))
    assert buffer.get_stats().sampled == 12


async def test_a_round_that_is_cancelled_has_drawn_nothing_and_the_next_one_goes_on() -> None:
    buffer, twin = ring(), ring()
    rounds = buffer.batches(4)
    first = asyncio.create_task(anext(rounds))
    await settle()
    await cancelled(first)
    for each in (buffer, twin):
        await live(each, 5)
    assert (await in_time(anext(rounds))).keys.tolist() == (await twin.sample(4)).keys.tolist()
    assert buffer.get_stats() == twin.get_stats()


async def test_rounds_end_with_the_buffer() -> None:
    buffer = ring()
    waiting = asyncio.create_task(anext(buffer.batches(4)))
    await settle()
    buffer.close()
    with pytest.raises(errors.ClosedError, match="^buffer is closed"):
        await in_time(waiting)


def test_wrong_arguments_of_rounds_are_refused_at_once() -> None:
    with pytest.raises(errors.ArgumentError, match="^batch_size must be at least 1, got 0$"):
        ring().batches(0)
    with pytest.raises(TypeError, match="prefetch"):
        ring().batches(4, prefetch=2)


def test_check_says_what_is_wrong_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ring()
    buffer.check()

    def find_something() -> None:
        raise errors.CorruptionError("a row is wrong")

    monkeypatch.setattr(buffer.buffer, "check", find_something)
    with pytest.raises(errors.CorruptionError, match="^a row is wrong$"):
        buffer.check()


@pytest.mark.parametrize("inside", [None, [], ring()])
def test_what_is_no_column_buffer_is_refused(inside: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="^buffer must be a .*buffer.*, got "):
        relive.AsyncReplayBuffer(inside)


async def test_types_survive_the_shell() -> None:
    transitions = relive.AsyncReplayBuffer(relive.RingReplayBuffer(10))
    assert_type(transitions, relive.AsyncReplayBuffer[relive.TransitionBatch])
    assert_type(await transitions.add(0, 0, 1.0, 1), int)
    assert_type(await transitions.extend([0], [0], [1.0], [1]), arrays.Keys)
    assert_type(await transitions.add_episode([0, 1], [0], [1.0], terminated=True), arrays.Keys)
    assert_type(await transitions.sample(1), relive.TransitionBatch)
    assert_type(await transitions.sample_keys(1), arrays.Keys)
    assert_type(transitions.read([0]), relive.TransitionBatch)
    assert_type(await anext(transitions.batches(1)), relive.TransitionBatch)
    assert_type(transitions.explain(0), relive.RowOrigin)
    runs = relive.AsyncReplayBuffer(relive.SequenceReplayBuffer(10, length=1))
    await runs.add(0, 0, 1.0, 1)
    assert_type(await runs.sample(1), relive.SequenceBatch)
