"""The buffer under asyncio: waiting, limiters, cancellation, closing, many actors."""

import asyncio
import collections
from collections.abc import Coroutine
import gc
import pathlib
import random
import sys
import types
from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive import errors
from relive.persistence import recover_test

Buffer = relive.EpisodeReplayBuffer[Any, int]
PATIENCE = 60.0
"""Seconds after which a test has hung."""


async def settle(rounds: int = 20) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def act(buffer: Buffer, steps: int, agent_id: str = "a") -> None:
    """Write one episode; observation = (agent, t)."""
    async with buffer.episode(agent_id) as writer:
        for t in range(steps):
            await writer.append((agent_id, t), t, float(t))
            await asyncio.sleep(0)
        await writer.end((agent_id, steps))


# The block.


async def test_a_block_writes_one_episode() -> None:
    buffer = Buffer()
    async with buffer.episode("a") as writer:
        await writer.append("o0", 0, 1.0)
        await writer.append("o1", 1, 2.0)
        await writer.end("o2", status="TRUNCATED")
        episode_id = writer.episode_id
    samples = await buffer.sample_n_step(20, 5, 1.0)
    assert {sample.episode_id for sample in samples} == {episode_id}
    assert {(s.start_step, s.next_observation, s.window_end) for s in samples} == {
        (0, "o2", "TRUNCATED"),
        (1, "o2", "TRUNCATED"),
    }


async def test_a_block_that_raises_ends_aborted_and_keeps_what_is_known() -> None:
    buffer = Buffer()
    with pytest.raises(ZeroDivisionError):
        async with buffer.episode("a") as writer:
            for t in range(3):
                await writer.append(t, t, 1.0)
            raise ZeroDivisionError
    stats = buffer.get_stats()
    assert (stats.aborted, stats.in_progress, stats.total_transitions) == (1, 0, 2)
    assert {sample.window_end for sample in await buffer.sample_n_step(20, 5, 0.9)} == {"ABORTED"}
    assert not any(sample.is_terminal for sample in await buffer.sample_n_step(20, 5, 0.9))
    buffer.check()


async def test_a_block_that_raises_after_its_end_stays_ended() -> None:
    buffer = Buffer()
    with pytest.raises(ZeroDivisionError):
        async with buffer.episode("a") as writer:
            await writer.append(0, 0, 1.0)
            await writer.end(1)
            raise ZeroDivisionError
    assert (buffer.get_stats().completed, buffer.get_stats().aborted) == (1, 0)


async def test_a_block_left_by_return_ends_aborted() -> None:
    buffer = Buffer()
    async with buffer.episode("a") as writer:
        await writer.append(0, 0, 1.0)
    assert (buffer.get_stats().aborted, len(buffer)) == (1, 0)
    with pytest.raises(ValueError, match="cannot append to finished episode .* it is ABORTED"):
        await writer.append(1, 1, 1.0)


async def test_a_refused_end_leaves_the_block_aborted() -> None:
    buffer = Buffer()
    with pytest.raises(ValueError, match="status must be"):
        async with buffer.episode("a") as writer:
            await writer.append(0, 0, 1.0)
            await writer.end(1, "BOGUS")  # type: ignore[arg-type]
    assert (buffer.get_stats().aborted, len(buffer)) == (1, 0)


async def test_a_block_survives_clear_and_close() -> None:
    buffer = Buffer()
    async with buffer.episode("a"):
        buffer.clear()
    assert buffer.get_stats().total_episodes == 0
    with pytest.raises(relive.ClosedError):
        async with buffer.episode("a") as writer:
            await writer.append(0, 0, 1.0)
            await writer.append(1, 0, 1.0)
            buffer.close()
            await writer.append(2, 0, 1.0)
    assert (buffer.get_stats().aborted, len(buffer)) == (1, 1)
    buffer.check()


async def test_a_cancelled_block_ends_aborted() -> None:
    buffer = Buffer()
    task = asyncio.create_task(act(buffer, 1000))
    await settle(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (buffer.get_stats().aborted, buffer.get_stats().in_progress) == (1, 0)
    buffer.check()


# Waiting to sample.


async def test_waiting_samples_are_served_in_order_of_arrival() -> None:
    buffer = Buffer()
    served = []

    async def learner(name: int) -> None:
        await buffer.sample_n_step(1, 1, 0.9)
        served.append(name)

    tasks = [asyncio.create_task(learner(name)) for name in range(5)]
    await settle()
    assert served == []
    await act(buffer, 1)
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]


async def test_min_size_holds_the_first_batch_back() -> None:
    buffer = Buffer(limiter=relive.MinSize(5))
    waiter = asyncio.create_task(buffer.sample_n_step(2, 1, 0.9))
    await act(buffer, 4)
    await settle()
    assert not waiter.done()
    with pytest.raises(relive.NotReadyError, match=r"held back by MinSize\(5\) with 4 transitions: append more steps"):
        buffer.sample_n_step_nowait(2, 1, 0.9)
    await act(buffer, 1)
    assert len(await waiter) == 2


async def test_a_timeout_leaves_no_trace() -> None:
    buffer = Buffer(seed=0)
    twin = Buffer(seed=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await buffer.sample_n_step(4, 1, 0.9)
    for each in (buffer, twin):
        await act(each, 6)
    draws = [[s.start_step for s in await each.sample_n_step(50, 1, 0.9)] for each in (buffer, twin)]
    assert draws[0] == draws[1]
    assert buffer.get_stats().sampled == 50


async def test_a_cancelled_learner_does_not_hold_the_next_one_up() -> None:
    buffer = Buffer()
    first = asyncio.create_task(buffer.sample_n_step(1, 1, 0.9))
    second = asyncio.create_task(buffer.sample_n_step(1, 1, 0.9))
    await settle()
    buffer_filled = asyncio.create_task(act(buffer, 1))
    first.cancel()
    await buffer_filled
    assert len(await asyncio.wait_for(second, PATIENCE)) == 1


async def test_a_producer_that_dies_takes_the_waiting_learner_with_it() -> None:
    buffer = Buffer()

    async def dying() -> None:
        async with buffer.episode("a") as writer:
            await writer.append(0, 0, 0.0)
            await asyncio.sleep(0)
            raise ConnectionError("the environment went away")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(buffer.sample_n_step(1, 1, 0.9))
            group.create_task(dying())
    assert caught.group_contains(ConnectionError)
    assert buffer.get_stats().aborted == 1
    assert len(buffer._gate._samplers.waiting) == 0


async def test_a_producer_that_closes_when_it_dies_frees_the_waiting_learner() -> None:
    buffer = Buffer()
    waiter = asyncio.create_task(buffer.sample_n_step(1, 1, 0.9))
    await settle()
    buffer.close()
    with pytest.raises(relive.ClosedError):
        await asyncio.wait_for(waiter, PATIENCE)


async def test_a_start_that_evicts_below_the_least_size_frees_who_waits_to_insert() -> None:
    """Inserts below min_size are free; a task held back above it must be woken."""
    limiter = relive.SampleToInsertRatio(1.0, 5, 5.0)
    buffer = Buffer(max_episodes=2, limiter=limiter, seed=0)
    await act(buffer, 6)
    tasks = [asyncio.create_task(act(buffer, 20, "b"))]
    await settle(100)
    assert len(buffer._gate._inserters.waiting) == 1
    tasks.append(asyncio.create_task(act(buffer, 20, "c")))
    await settle(100)

    async def learn() -> None:
        while True:
            await buffer.sample_n_step(3, 1, 0.9)

    learner = asyncio.create_task(learn())
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)
    learner.cancel()
    await asyncio.gather(learner, return_exceptions=True)


async def test_a_slow_learner_and_few_episodes_never_hang() -> None:
    for seed in range(4):
        buffer = Buffer(max_episodes=4, limiter=relive.SampleToInsertRatio(1.0, 20, 40.0), seed=seed)
        rng = random.Random(seed)

        async def learn(buffer: Buffer = buffer, rng: random.Random = rng) -> None:
            while True:
                await buffer.sample_n_step(8, 2, 0.9)
                await settle(rng.randint(0, 40))

        async def live(buffer: Buffer = buffer, rng: random.Random = rng) -> None:
            for _ in range(30):
                await act(buffer, rng.randint(0, 15))

        learner = asyncio.create_task(learn())
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(live() for _ in range(3)))
        learner.cancel()
        await asyncio.gather(learner, return_exceptions=True)


# Waiting to insert.


def limited() -> Buffer:
    """Two samples an insert; surplus = 2 * (steps - 4) - samples within [-8, 8]."""
    return Buffer(limiter=relive.SampleToInsertRatio(2.0, min_size=4, error_buffer=8.0), seed=0)


async def test_inserts_wait_while_they_run_ahead() -> None:
    buffer = limited()
    actor = asyncio.create_task(act(buffer, 20))
    await settle(100)
    assert buffer.get_stats().appended == 8
    with pytest.raises(
        relive.NotReadyError,
        match=r"^append_observation_action_reward_nowait held back by SampleToInsertRatio\(.*\): draw samples first",
    ):
        buffer.append_observation_action_reward_nowait(next(iter(buffer.get_stats().open_ages)), 0, 0, 0.0)
    await buffer.sample_n_step(4, 1, 0.9)
    await settle(100)
    assert buffer.get_stats().appended == 10
    actor.cancel()
    await asyncio.gather(actor, return_exceptions=True)
    buffer.check()


async def test_the_other_calls_never_wait_for_the_limiter() -> None:
    buffer = limited()
    actor = asyncio.create_task(act(buffer, 20))
    await settle(100)
    async with asyncio.timeout(PATIENCE):
        episode_id = await buffer.start_episode("b")
        await buffer.end_episode(episode_id, 0)
    actor.cancel()
    await asyncio.gather(actor, return_exceptions=True)


async def test_actors_and_learner_keep_the_ratio() -> None:
    buffer = limited()
    surpluses = []

    async def learn() -> None:
        while True:
            await buffer.sample_n_step(4, 2, 0.9)
            stats = buffer.get_stats()
            surpluses.append(2 * (stats.appended - 4) - stats.sampled)

    learner = asyncio.create_task(learn())
    await asyncio.gather(*(act(buffer, 50, f"agent-{i}") for i in range(4)))
    learner.cancel()
    await asyncio.gather(learner, return_exceptions=True)
    assert buffer.get_stats().appended == 200
    assert min(surpluses) >= -8
    assert max(surpluses) <= 8
    assert 2 * 196 - 8 <= buffer.get_stats().sampled <= 2 * 196 + 8


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda buffer, i: buffer.append_observation_action_reward("nobody", 0, 0, 0.0), relive.UnknownEpisodeError),
        (lambda buffer, i: buffer.append_observation_action_reward(i, 0, 0, float("nan")), ValueError),
        (lambda buffer, i: buffer.append_observation_action_reward(i, 0, 0, 0.0), ValueError),
    ],
    ids=["unknown", "nan", "finished"],
)
async def test_a_bad_append_is_refused_at_once_not_after_the_wait(call: Any, error: type[Exception]) -> None:
    buffer = limited()
    finished = await buffer.start_episode("b")
    opened = finished
    actor = asyncio.create_task(act(buffer, 20))
    await settle(100)
    await buffer.end_episode(finished, 0)
    with pytest.raises(error):
        async with asyncio.timeout(PATIENCE):
            await call(buffer, opened)
    actor.cancel()
    await asyncio.gather(actor, return_exceptions=True)


async def test_a_waiting_append_to_an_episode_that_went_away_is_refused() -> None:
    buffer = limited()
    actor = asyncio.create_task(act(buffer, 20))
    await settle(100)
    buffer.clear()
    with pytest.raises(relive.UnknownEpisodeError):
        await actor
    assert buffer.get_stats().appended == 8
    buffer.check()


async def test_a_step_is_stored_as_it_was_when_the_call_was_made() -> None:
    """An actor's array may change while its append waits for the limiter."""
    buffer = limited()
    episode_id = await buffer.start_episode("a")
    for t in range(8):
        await buffer.append_observation_action_reward(episode_id, [t], 0, 0.0)
    observation = [8]
    append = asyncio.create_task(buffer.append_observation_action_reward(episode_id, observation, 0, 0.0))
    await settle()
    assert len(buffer._gate._inserters.waiting) == 1
    observation[0] = -1
    await buffer.sample_n_step(4, 1, 0.9)
    await append
    assert buffer._store[episode_id].observations == [[t] for t in range(9)]


async def test_a_step_is_stored_as_it_was_before_the_others_ran() -> None:
    buffer = Buffer()
    episode_id = await buffer.start_episode("a")
    observation = [5]
    buffer._gate._calls = 31
    append = asyncio.create_task(buffer.append_observation_action_reward(episode_id, observation, 0, 0.0))
    await asyncio.sleep(0)
    assert buffer.get_stats().appended == 0
    observation[0] = -1
    await append
    assert buffer._store[episode_id].observations == [[5]]


async def test_closing_frees_waiting_actors() -> None:
    buffer = limited()
    actors = [asyncio.create_task(act(buffer, 20, str(i))) for i in range(3)]
    await settle(100)
    buffer.close()
    assert all(isinstance(e, relive.ClosedError) for e in await asyncio.gather(*actors, return_exceptions=True))
    assert buffer.get_stats().aborted == 3
    buffer.check()


async def test_a_batch_that_could_wait_for_ever_is_refused() -> None:
    buffer = limited()
    with pytest.raises(ValueError, match=r"^batch_size must be at most 14 with SampleToInsertRatio\(.*\), got 15$"):
        await buffer.sample_n_step(15, 1, 0.9)
    with pytest.raises(ValueError, match="batch_size must be at most 14"):
        buffer.sample_n_step_nowait(15, 1, 0.9)


async def test_awaited_calls_cannot_keep_the_event_loop_to_themselves() -> None:
    """An actor and a learner that await nothing else both make progress, and so does a third task."""
    buffer = Buffer(seed=0)
    turns = 0

    async def bystander() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def endless_actor() -> None:
        async with buffer.episode("a") as writer:
            while True:
                await writer.append(0, 0, 0.0)

    async def busy_learner() -> None:
        while True:
            await buffer.sample_n_step(4, 3, 0.9)

    tasks = [asyncio.create_task(work()) for work in (bystander, endless_actor, endless_actor, busy_learner)]
    await settle(50)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    stats = buffer.get_stats()
    assert turns > 40
    assert stats.sampled > 100
    assert 32 * 40 < stats.appended < 32 * 120


async def test_one_in_32_starts_and_appends_gives_way() -> None:
    buffer = Buffer()
    ran: list[int] = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    episode_id = await buffer.start_episode("a")
    for t in range(30):
        await buffer.append_observation_action_reward(episode_id, t, 0, 0.0)
    assert not ran
    await buffer.append_observation_action_reward(episode_id, 30, 0, 0.0)
    assert ran
    asyncio.get_running_loop().call_soon(ran.append, 2)
    for _ in range(31):
        await buffer.end_episode(await buffer.start_episode("a"), 0)
    assert ran == [1]
    await buffer.start_episode("a")
    assert ran == [1, 2]


async def test_a_call_cancelled_while_the_others_run_has_left_no_trace() -> None:
    buffer = Buffer()
    episode_id = await buffer.start_episode("a")
    buffer._gate._calls = 31
    append = asyncio.create_task(buffer.append_observation_action_reward(episode_id, 0, 0, 0.0))
    draw = asyncio.create_task(buffer.sample_n_step(1, 1, 0.9))
    await asyncio.sleep(0)
    append.cancel()
    draw.cancel()
    await asyncio.gather(append, draw, return_exceptions=True)
    assert (buffer.get_stats().appended, buffer.get_stats().sampled) == (0, 0)
    assert len(buffer._gate._samplers.waiting) == len(buffer._gate._inserters.waiting) == 0


# Many.


async def storm(seed: int, actors: int, cancels: int, limiter: relive.RateLimiter | None) -> None:
    """Actors and learners, cancelled anywhere: every invariant holds at all times, and no episodes are spliced."""
    rng = random.Random(seed)
    buffer = Buffer(max_transitions=400, limiter=limiter, seed=seed)
    status: collections.Counter[str] = collections.Counter()

    async def actor(number: int) -> None:
        for _ in range(3):
            async with buffer.episode(f"agent-{number}") as writer:
                try:
                    for t in range(rng.randint(0, 6)):
                        await writer.append((writer.episode_id, t), t, float(t))
                        if rng.random() < 0.7:
                            await asyncio.sleep(0)
                    await writer.end((writer.episode_id, len(buffer._store[writer.episode_id].actions)))
                    status["COMPLETED"] += 1
                except asyncio.CancelledError:
                    status["ABORTED"] += 1
                    raise

    async def learner() -> None:
        while True:
            for s in await buffer.sample_n_step(8, 3, 0.9):
                assert s.observation == (s.episode_id, s.start_step)
                assert s.next_observation == (s.episode_id, s.start_step + s.actual_n)
                assert s.rewards_seq == [float(s.start_step + k) for k in range(s.actual_n)]
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(actor(number)) for number in range(actors)]
    learners = [asyncio.create_task(learner()) for _ in range(2)]
    for _ in range(cancels):
        await settle(rng.randint(0, 3))
        rng.choice(tasks).cancel()
        if rng.random() < 0.3:
            buffer.check()
        if rng.random() < 0.1:
            learners.append(asyncio.create_task(learner()))
            learners.pop(0).cancel()
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    for task in learners:
        task.cancel()
    ends = await asyncio.gather(*learners, return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    buffer.check()
    stats = buffer.get_stats()
    assert stats.in_progress == 0
    assert len(buffer._gate._samplers.waiting) == len(buffer._gate._inserters.waiting) == 0
    assert stats.completed + stats.aborted + stats.evicted_episodes == sum(status.values())


@pytest.mark.parametrize("limiter", [None, relive.SampleToInsertRatio(2.0, 10, 64.0)])
@pytest.mark.parametrize("actors", [150, pytest.param(1_000, marks=pytest.mark.long)])
async def test_many_actors_with_random_cancellation(actors: int, limiter: relive.RateLimiter | None) -> None:
    await storm(seed=1, actors=actors, cancels=actors * 7 // 10, limiter=limiter)


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2)
@hypothesis.given(seed=st.integers(0, 10**6), limited=st.booleans())
def test_small_storms_of_any_kind(seed: int, limited: bool) -> None:
    limiter = relive.SampleToInsertRatio(4.0, 3, 16.0) if limited else None
    asyncio.run(storm(seed, actors=6, cancels=8, limiter=limiter))


def memory_of(root: object) -> int:
    """Return the bytes of all objects that can be reached from this one, as far as they are not code."""
    code = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
    seen: dict[int, object] = {}
    left = [root]
    while left:
        thing = left.pop()
        if id(thing) not in seen and not isinstance(thing, code):
            seen[id(thing)] = thing
            left += gc.get_referents(thing)
    return sum(map(sys.getsizeof, seen.values()))


@pytest.mark.parametrize("steps", [60_000, pytest.param(5_000_000, marks=pytest.mark.long)])
def test_memory_stays_flat(steps: int) -> None:
    """Ray pull request 22678 and others: evicted episodes are freed, and no bookkeeping grows with time."""
    buffer = Buffer(max_transitions=1000, max_episodes=150, seed=0)

    def live(steps: int) -> None:
        for _ in range(steps // 100):
            episode_id = buffer.start_episode_nowait("a")
            for t in range(100):
                buffer.append_observation_action_reward_nowait(episode_id, t, t, 0.0)
            buffer.end_episode_nowait(episode_id, 100)
            buffer.sample_n_step_nowait(4, 3, 0.9)

    live(10_000)
    before = memory_of(buffer)
    live(steps)
    assert memory_of(buffer) <= 1.02 * before
    assert (buffer.get_stats().appended, len(buffer)) == (10_000 + steps, 1000)
    buffer.check()


# Event loops that come and go.


def left_behind(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Return tasks that waited in an event loop that is closed now."""

    async def wait() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.get_running_loop().create_task(coroutine) for coroutine in coroutines]
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        await settle()
        return tasks

    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(wait())
    loop.close()
    assert not any(task.done() for task in tasks)
    return tasks


def test_a_waiting_actor_and_a_waiting_learner_of_a_closed_loop_hold_nobody_up() -> None:
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 1, 1.0), seed=0)
    buffer.set_policy_version(1)
    episode_id = buffer.start_episode_nowait("a", policy_version=0)
    for t in range(2):
        buffer.append_observation_action_reward_nowait(episode_id, t, t, 0.0)
    held = (episode_id, 2, 2, 0.0)
    with pytest.raises(relive.NotReadyError):
        buffer.append_observation_action_reward_nowait(*held)
    # While the learner waits for a newer step, steps are let in: it goes with its loop, and so does that.
    left = left_behind(buffer.sample_n_step(1, 1, 0.9, max_lag=0))
    buffer.append_observation_action_reward_nowait(*held)

    async def go_on() -> None:
        with pytest.raises(relive.NotReadyError):
            await buffer.start_episode("b")
            buffer.append_observation_action_reward_nowait(*held)
        learner = asyncio.create_task(buffer.sample_n_step(1, 1, 0.9, max_lag=0))
        await settle()
        left.clear()
        gc.collect()  # The learner of the first loop is finished; that of this one still lets steps in.
        async with asyncio.timeout(PATIENCE):
            for t in range(3, 5):
                await buffer.append_observation_action_reward(episode_id, t, t, 0.0, policy_version=1)
            assert [sample.start_step for sample in await learner] == [3]

    asyncio.run(go_on())
    buffer.check()


def test_a_held_up_actor_of_a_closed_loop_writes_nothing() -> None:
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 1, 1.0), seed=0)
    episode_id = buffer.start_episode_nowait("a")
    for t in range(2):
        buffer.append_observation_action_reward_nowait(episode_id, t, t, 0.0)
    left = left_behind(*(buffer.append_observation_action_reward(episode_id, 2, 2, 0.0) for _ in range(3)))

    async def go_on() -> None:
        await buffer.sample_n_step(1, 1, 0.9)
        async with asyncio.timeout(PATIENCE):
            await buffer.append_observation_action_reward(episode_id, 3, 3, 0.0)

    asyncio.run(go_on())
    left.clear()
    gc.collect()
    assert buffer._store[episode_id].observations == [0, 1, 3]
    assert not buffer._gate._inserters.waiting


@pytest.mark.parametrize("way", ["an error", "a cancellation", "a return"])
async def test_a_block_that_is_left_while_the_journal_cannot_be_written(
    way: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = Buffer(admission=relive.Admission(0, 1))

    def fails(*record: Any, **options: Any) -> int:
        raise errors.CheckpointError("log cannot be written: disk full")

    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)

        async def act() -> None:
            async with buffer.episode("a", ticket=buffer.admit_nowait()) as writer:
                await writer.append(0, 0, 1.0)
                await writer.append(1, 0, 1.0)
                monkeypatch.setattr(log, "append", fails)
                if way == "an error":
                    raise ZeroDivisionError("the actor's own")
                if way == "a cancellation":
                    await asyncio.Event().wait()

        actor = asyncio.create_task(act())
        await settle()
        actor.cancel()
        await asyncio.wait([actor])
        (episode,) = buffer._store
        if way == "a return":
            # Only the journal failed, and it can be written to again.
            assert isinstance(actor.exception(), errors.CheckpointError)
            assert episode.status == "IN_PROGRESS"
            monkeypatch.undo()
            assert buffer.abort_episode_nowait(episode.episode_id)
        elif way == "an error":
            error = actor.exception()
            assert isinstance(error, ZeroDivisionError)
            assert error.__notes__ == [
                f"episode {episode.episode_id} ended as ABORTED, but the journal has no record of it: "
                "log cannot be written: disk full"
            ]
        else:
            assert actor.cancelled()
        assert episode.status == "ABORTED"
        assert len(buffer) == 1
        assert buffer.admit_nowait().left == 1
        buffer.check()
        buffer.detach()
