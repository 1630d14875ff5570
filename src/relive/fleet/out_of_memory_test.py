"""Memory runs out at any array that a call of a client or a shard makes: the call is done, or nothing has changed."""

from collections.abc import Callable, Coroutine, Generator
import functools
import itertools
import pathlib
import random
import types
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import adapter_test
from relive.fleet import local_test
from relive.fleet import trouble_test
from relive.testing import allocations

W = b"w" * 16


Call = Callable[[], Coroutine[Any, Any, Any]]


@types.coroutine
def failing(number: int, call: Coroutine[Any, Any, Any]) -> Generator[Any, Any, None]:
    """Make a call in which an allocation fails, by its number, unless it waits before."""
    try:
        with allocations.failing(number):
            waits_for = call.send(None)
        while True:
            waits_for = call.send((yield waits_for))
    except StopIteration:
        pass


async def at_every_place(script: Callable[[], Coroutine[Any, Any, tuple[list[Call], Call]]]) -> int:
    """Make the calls of a script, each of which first fails at one place, for every place; return how often one failed.

    What fails is made again. The script returns its calls, and what checks the outcome, which must be the same.
    """
    failed = 0
    for number in itertools.count(1):
        calls, check = await script()
        before = failed
        for call in calls:
            try:
                await failing(number, call())
            except MemoryError:
                failed += 1
                await call()
        await check()
        if failed == before:
            break
    return failed


def step(writer: Any, number: int, episode: int, t: int, **more: Any) -> Call:
    observation = np.array([number, episode, t])
    return lambda: writer.add(observation, t, 1.0, np.add(observation, (0, 0, 1)), **more)


async def of_columns() -> tuple[list[Call], Call]:
    fleet = local_test.LocalFleet(trouble_test.ring, 1)
    writer: Any = fleet.replay().writer(batch_steps=3)
    whole = np.array([[0, 4, t] for t in range(4)])
    columns = whole, np.arange(3), np.ones(3)
    calls = [step(writer, 0, 0, t) for t in range(4)]
    calls += [step(writer, 0, 1, 0), step(writer, 0, 1, 1, terminated=True)]  # Episode 0 is truncated.
    calls += [step(writer, 0, 2, t, stream=1) for t in range(2)]
    calls += [lambda: writer.add_steps(np.add(whole, (0, 1, 0)), *columns[1:], stream=1)]  # And episode 2.
    calls += [lambda: writer.add_episode(*columns, truncated=True), writer.flush]
    calls += [step(writer, 0, 6, 0), lambda: writer.end_episode(0), step(writer, 0, 7, 0), writer.close]
    steps = [(0, 0, 4), (0, 1, 2), (0, 2, 2), (0, 4, 3), (0, 5, 3), (0, 6, 1), (0, 7, 1)]
    return calls, lambda: stored(fleet, writer, "columns", steps)


async def of_joint() -> tuple[list[Call], Call]:
    fleet = local_test.LocalFleet(trouble_test.joint, 1)
    writer: Any = fleet.replay().joint_writer(batch_steps=3)

    def joint_step(episode: int, t: int, is_last: bool = False) -> Call:
        here, after = [dict.fromkeys("ab", np.array([0, episode, t + later])) for later in (0, 1)]
        ends = dict.fromkeys("ab", is_last)
        return lambda: writer.add(here, dict.fromkeys("ab", t), dict.fromkeys("ab", 1.0), after, terminations=ends)

    calls = [joint_step(0, t, t == 4) for t in range(5)] + [joint_step(1, t) for t in range(2)]
    calls += [lambda: writer.end_episode(0), joint_step(2, 0), writer.flush, writer.close]
    return calls, lambda: stored(fleet, writer, "joint", [(0, 0, 5), (0, 1, 2), (0, 2, 1)])


async def of_episodes() -> tuple[list[Call], Call]:
    fleet = local_test.LocalFleet(trouble_test.episodes, 1)
    writer: Any = fleet.replay().episodes_writer(batch_steps=3)
    block = writer.episode("agent")
    episode = await block.__aenter__()
    steps = [(np.array([0, 0, t]), t, 1.0) for t in range(5)]
    calls: list[Call] = [functools.partial(episode.append, *each) for each in steps]
    calls += [writer.flush, lambda: episode.end(np.array([0, 0, 5])), lambda: block.__aexit__(None, None, None)]

    async def check() -> None:
        await writer.close()
        (one,) = local_test.episodes_in(fleet.buffer(0))
        assert (writer.stored, writer.refused, writer.lost, one.status) == (5, 0, 0, "COMPLETED")
        assert np.array(one.observations).tolist() == [[0, 0, t] for t in range(6)]

    return calls, check


async def of_tokens() -> tuple[list[Call], Call]:
    fleet = local_test.LocalFleet(trouble_test.tokens, 1)
    writer: Any = fleet.replay().tokens_writer(batch_episodes=2)
    tokens = [trouble_test.token_steps(0, episode, 4) for episode in range(3)]
    calls = [functools.partial(writer.add_episode, steps, agent_id="agent-0", number=0) for steps in tokens]
    return [*calls, writer.flush, writer.close], lambda: stored(fleet, writer, "tokens", None)


async def stored(fleet: local_test.LocalFleet, writer: Any, kind: str, steps: list[trouble_test.Step] | None) -> None:
    """Check that a closed writer has stored so many steps of each episode, once; or three episodes of tokens."""
    expected = [(0, episode, 4) for episode in range(3)]
    if steps is not None:
        expected = [(number, episode, t) for number, episode, count in steps for t in range(count)]
    assert (writer.stored, writer.refused, writer.lost) == (len(expected), 0, 0)
    assert trouble_test.stored_in(fleet, kind) == expected


@pytest.mark.parametrize("script", [of_columns, of_joint, of_episodes, of_tokens])
async def test_a_call_of_a_writer_without_memory_has_done_nothing(script: Any) -> None:
    assert await at_every_place(script) > 5


CHUNKS: dict[str, Callable[[int], Any]] = {
    "columns": lambda n: adapter_test.columns(10 * n, 3, "TERMINATED", is_start=True),
    "episodes": lambda n: adapter_test.steps_of(10 * n, 3, is_start=True, final=(10 * n + 3, "COMPLETED")),
}


def rows_in(shard: Any, kind: str) -> list[Any]:
    buffer = shard._adapter.buffer
    buffer.check()
    if kind == "episodes":
        return [action for episode in buffer._store for action in episode.actions]
    return buffer.read(buffer.eligible_keys()).observation.ravel().tolist() if len(buffer) else []


@pytest.mark.parametrize("has_files", [False, True])
@pytest.mark.parametrize("kind", CHUNKS)
async def test_a_shard_that_finds_no_memory_for_steps_refuses_them(
    kind: str, has_files: bool, tmp_path: pathlib.Path
) -> None:
    makes = {"columns": lambda: relive.RingReplayBuffer(1000, streams=4, seed=0), "episodes": trouble_test.episodes}
    number = 0
    for number in itertools.count(1):
        fleet = local_test.LocalFleet(makes[kind], 1, directory=tmp_path / f"{number}" if has_files else None)
        shard: Any = fleet.shard(0)
        shard.insert(adapter_test.batch_of(W, 0, CHUNKS[kind](0)))
        batch = adapter_test.batch_of(W, 1, CHUNKS[kind](1), CHUNKS[kind](2))
        with allocations.failing(number) as count:
            receipt = shard.insert(batch)
        assert (receipt.outcome, receipt.progress.inserted) == ("STORED", 9 - receipt.refused)
        assert (receipt.error is None) == (receipt.refused == 0)
        assert len(rows_in(shard, kind)) == 9 - receipt.refused
        assert shard.insert(batch)[:2] == receipt[:2]
        shard.insert(adapter_test.batch_of(W, 2, CHUNKS[kind](3)))
        found = rows_in(shard, kind)
        if has_files:
            assert fleet.kill(0).rows == 0
            fleet.start(0)
            assert rows_in(fleet.shard(0), kind) == found
        if number > count():
            break
    assert number > 3 or kind == "episodes"


@pytest.mark.parametrize("kind", ["columns", "joint"])
async def test_steps_are_stored_though_a_warning_of_them_is_an_error(kind: str) -> None:
    make, actor, _ = trouble_test.KINDS[kind]
    fleet = local_test.LocalFleet(make, 1)
    buffer = fleet.buffer(0)

    def warned(add: Callable[..., Any]) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            add(*arguments, **named)
            raise errors.MisuseWarning("told at the very end")

        return call

    buffer.add, buffer.add_steps = warned(buffer.add), warned(buffer.add_steps)
    writer = actor(fleet.replay(), 0, random.Random(0)).writer
    for t in range(6):
        given: list[Any] = [np.array([0, 0, t]), t, 1.0, np.array([0, 0, t + 1])]
        await writer.add(*(given if kind == "columns" else [dict.fromkeys("ab", value) for value in given]))
        if t % 3 == 2:
            with pytest.raises(errors.MisuseWarning, match="^told at the very end$"):
                await writer.flush()
    assert (writer.stored, writer.refused, buffer.get_stats().open_episodes) == (6, 0, 1)
    await writer.close()
    assert trouble_test.stored_in(fleet, kind) == [(0, 0, t) for t in range(6)]
