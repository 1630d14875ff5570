"""What episodes under asyncio have beside `waiting_test`: blocks, appends that wait, memory, event loops."""

import asyncio
from collections.abc import Coroutine
import gc
import pathlib
import sys
import types
from typing import Any

import pytest

import relive
from relive import errors
from relive.episodes import helpers_test
from relive.persistence import recover_test
from relive.testing import zoo
from relive.waiting import waiting_test

Buffer = relive.EpisodeReplayBuffer[Any, int]


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


async def test_a_block_that_raises_ends_aborted() -> None:
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


async def test_a_block_left_by_return_ends_aborted() -> None:
    buffer = Buffer()
    async with buffer.episode("a") as writer:
        await writer.append(0, 0, 1.0)
    assert (buffer.get_stats().aborted, len(buffer)) == (1, 0)
    with pytest.raises(ValueError, match="cannot append to finished episode .* it is ABORTED"):
        await writer.append(1, 1, 1.0)


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


class Watched(Buffer):
    """A subclass that notes each start and end."""

    seen: list[str]

    def start_episode_nowait(self, agent_id: str, **options: Any) -> str:
        self.seen.append(f"start {agent_id}")
        return super().start_episode_nowait(agent_id, **options)

    def end_episode_nowait(self, episode_id: str, final_observation: Any, status: Any = "COMPLETED") -> None:
        self.seen.append(f"end {final_observation}")
        super().end_episode_nowait(episode_id, final_observation, status)


@pytest.mark.parametrize("is_journaled", [False, True])
async def test_awaited_calls_make_the_plain_ones_once(is_journaled: bool, tmp_path: pathlib.Path) -> None:
    buffer = Watched()
    buffer.seen = []
    with relive.Journal(tmp_path / "log") as log:
        if is_journaled:
            buffer.attach(log)
        await buffer.end_episode(await buffer.start_episode("a"), 1)
        async with buffer.episode("b") as writer:
            await writer.end(2)
        with buffer.episode_nowait("c") as plain:
            plain.end(3)
        with pytest.raises(errors.UnknownEpisodeError, match="^episode x not found$"):
            await buffer.end_episode("x", 4)
        buffer.detach()
    assert buffer.seen == ["start a", "end 1", "start b", "end 2", "start c", "end 3", "end 4"]


# Waiting to sample.


async def test_a_start_that_evicts_lets_inserts_in() -> None:
    """Inserts below min_size are free; a task held back above it must be woken."""
    limiter = relive.SampleToInsertRatio(1.0, 5, 5.0)
    buffer = Buffer(max_episodes=2, limiter=limiter, seed=0)
    await act(buffer, 6)
    tasks = [asyncio.create_task(act(buffer, 20, "b"))]
    await zoo.settle(100)
    assert waiting_test.num_waiting(buffer) == (1, 0)
    tasks.append(asyncio.create_task(act(buffer, 20, "c")))
    await zoo.settle(100)

    async def learn() -> None:
        while True:
            await buffer.sample_n_step(3, 1, 0.9)

    learner = asyncio.create_task(learn())
    async with asyncio.timeout(waiting_test.PATIENCE):
        await asyncio.gather(*tasks)
    learner.cancel()
    await asyncio.gather(learner, return_exceptions=True)


# Waiting to insert.


def limited() -> Buffer:
    """Two samples an insert; surplus = 2 * (steps - 4) - samples within [-8, 8]."""
    return Buffer(limiter=relive.SampleToInsertRatio(2.0, min_size=4, error_buffer=8.0), seed=0)


async def test_starts_and_ends_never_wait_for_the_limiter() -> None:
    buffer = limited()
    actor = asyncio.create_task(act(buffer, 20))
    await zoo.settle(100)
    async with asyncio.timeout(waiting_test.PATIENCE):
        episode_id = await buffer.start_episode("b")
        await buffer.end_episode(episode_id, 0)
    actor.cancel()
    await asyncio.gather(actor, return_exceptions=True)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda buffer, i: buffer.append_observation_action_reward("nobody", 0, 0, 0.0), relive.UnknownEpisodeError),
        (lambda buffer, i: buffer.append_observation_action_reward(i, 0, 0, float("nan")), ValueError),
        (lambda buffer, i: buffer.append_observation_action_reward(i, 0, 0, 0.0), ValueError),
    ],
    ids=["unknown", "nan", "finished"],
)
async def test_bad_appends_are_refused_before_the_wait(call: Any, error: type[Exception]) -> None:
    buffer = limited()
    finished = await buffer.start_episode("b")
    opened = finished
    actor = asyncio.create_task(act(buffer, 20))
    await zoo.settle(100)
    await buffer.end_episode(finished, 0)
    with pytest.raises(error):
        async with asyncio.timeout(waiting_test.PATIENCE):
            await call(buffer, opened)
    actor.cancel()
    await asyncio.gather(actor, return_exceptions=True)


async def test_waiting_appends_to_removed_episodes_are_refused() -> None:
    buffer = limited()
    actor = asyncio.create_task(act(buffer, 20))
    await zoo.settle(100)
    buffer.clear()
    with pytest.raises(relive.UnknownEpisodeError):
        await actor
    assert buffer.get_stats().appended == 8
    buffer.check()


@pytest.mark.parametrize("must_wait", [True, False], ids=["held back", "giving way"])
async def test_steps_are_copied_when_an_append_begins(must_wait: bool) -> None:
    """An actor's array may change while its append waits."""
    buffer, count = (limited(), 8) if must_wait else (Buffer(), 0)
    episode_id = helpers_test.live(buffer, steps=count, status=None)
    observation = [8]
    waiting_test.give_way_next(buffer)
    append = asyncio.create_task(buffer.append_observation_action_reward(episode_id, observation, 0, 0.0))
    await (zoo.settle() if must_wait else asyncio.sleep(0))
    assert (waiting_test.num_waiting(buffer)[0], buffer.get_stats().appended) == (int(must_wait), count)
    observation[0] = -1
    if must_wait:
        await buffer.sample_n_step(4, 1, 0.9)
    await append
    assert recover_test.episodes_of(buffer)[episode_id].observations[count:] == [[8]]


async def test_calls_that_are_held_back_say_why() -> None:
    buffer = limited()
    episode_id = helpers_test.live(buffer, steps=8, status=None)
    with pytest.raises(
        relive.NotReadyError,
        match=r"^append_observation_action_reward_nowait held back by SampleToInsertRatio\(.*\): draw samples first",
    ):
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
    message = r"^batch_size must be at most 14 with SampleToInsertRatio\(.*\), got 15$"
    with pytest.raises(ValueError, match=message):
        await buffer.sample_n_step(15, 1, 0.9)
    with pytest.raises(ValueError, match=message):
        buffer.sample_n_step_nowait(15, 1, 0.9)
    buffer = Buffer(limiter=relive.MinSize(5))
    helpers_test.live(buffer, steps=4)
    with pytest.raises(relive.NotReadyError, match=r"held back by MinSize\(5\) with 4 transitions: append more steps"):
        buffer.sample_n_step_nowait(2, 1, 0.9)


async def test_one_in_32_starts_and_appends_yield() -> None:
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
    for _ in range(15):
        await buffer.end_episode(await buffer.start_episode("a"), 0)
    episode_id = await buffer.start_episode("a")
    assert ran == [1]
    await buffer.end_episode(episode_id, 0)  # It never yields, but counts.
    await buffer.start_episode("a")
    assert ran == [1, 2]


# Many.


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


@pytest.mark.parametrize("steps", [20_000, pytest.param(5_000_000, marks=pytest.mark.long)])
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
        await zoo.settle()
        return tasks

    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(wait())
    loop.close()
    assert not any(task.done() for task in tasks)
    return tasks


def test_waiters_of_a_closed_loop_hold_nobody_up() -> None:
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
        await zoo.settle()
        left.clear()
        gc.collect()  # The learner of the first loop is finished; that of this one still lets steps in.
        async with asyncio.timeout(waiting_test.PATIENCE):
            for t in range(3, 5):
                await buffer.append_observation_action_reward(episode_id, t, t, 0.0, policy_version=1)
            assert [sample.start_step for sample in await learner] == [3]

    asyncio.run(go_on())
    buffer.check()


@pytest.mark.parametrize("way", ["an error", "a cancellation", "a return"])
async def test_blocks_end_although_the_journal_fails(
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
                monkeypatch.setattr(log, "_append", fails)
                if way == "an error":
                    raise ZeroDivisionError("the actor's own")
                if way == "a cancellation":
                    await asyncio.Event().wait()

        actor = asyncio.create_task(act())
        await zoo.settle()
        actor.cancel()
        await asyncio.wait([actor])
        (episode,) = recover_test.episodes_of(buffer).values()
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
