"""An `accept` that fails, waits or calls the buffer; and no fleet hangs for what its learner does not want."""

import asyncio
import gc
import itertools
import pathlib
import random
import time
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive.episodes import helpers_test
from relive.fleet import local_test

Buffer = helpers_test.Buffer
live = helpers_test.live
ids = helpers_test.ids


def longer_than_one(episode: relive.Episode[Any, Any]) -> bool:
    return len(episode) > 1


# accept.


@pytest.mark.parametrize("fault", ["raises", "says 1", "says nothing"])
def test_an_accept_that_fails_changes_nothing(fault: str) -> None:
    buffer = Buffer(groups=relive.Groups(1))
    single, grouped = live(buffer), live(buffer, group_id="g")

    def accept(unit: Any) -> Any:
        if fault == "raises":
            raise ZeroDivisionError("no judge")
        return 1 if fault == "says 1" else None

    expected: Any = (ZeroDivisionError, "^no judge$")
    if fault != "raises":
        got = 1 if fault == "says 1" else None
        expected = (relive.ArgumentError, f"^what accept returns must be True or False, got {got}$")
    for call in (buffer.next_episodes_nowait, buffer.next_groups_nowait):
        with pytest.raises(expected[0], match=expected[1]):
            call(1, accept=accept)
    assert buffer.get_drops() == {}
    assert ids(buffer.next_episodes_nowait(1)) == [single]
    assert ids(buffer.next_groups_nowait(1)[0]) == [grouped]


async def test_a_waiting_call_raises_what_accept_raises() -> None:
    buffer = Buffer()

    def accept(episode: relive.Episode[Any, Any]) -> bool:
        raise ZeroDivisionError("no judge")

    first, second = (asyncio.create_task(buffer.next_episodes(1, accept=each)) for each in (accept, None))
    await asyncio.sleep(0)
    lived = live(buffer)
    with pytest.raises(ZeroDivisionError):
        await first
    assert ids(await second) == [lived]


async def test_a_waiting_call_asks_once_and_cancelled_takes_none() -> None:
    buffer = Buffer(admission=relive.Admission(0, 4), max_episodes=4)
    asked: list[str] = []

    def accept(episode: relive.Episode[Any, Any]) -> bool:
        asked.append(episode.episode_id)
        return longer_than_one(episode)

    learner = asyncio.create_task(buffer.next_episodes(4, accept=accept))
    lived: list[str] = []
    for steps in (2, 1, 1, 3, 1):
        lived.append(live(buffer, steps=steps, ticket=await buffer.admit()))
        for _ in range(5):
            await asyncio.sleep(0)
    assert not learner.done()
    assert asked == lived
    learner.cancel()
    await asyncio.wait([learner])
    assert buffer.get_drops() == {"evicted": {"a": 1}, "rejected": {"a": 3}}
    # One of the two that were accepted is gone since, to make room.
    assert ids(buffer.next_episodes_nowait(1)) == [lived[3]]
    buffer.check()


# Nothing hangs.


async def run_fleet(
    seed: int, rate: float, max_lag: int, size: int, due: float | None, num_actors: int, judges_later: bool
) -> None:
    """Actors that die, and a learner that rejects at a rate: it gets its batch for each version."""
    rng = random.Random(seed)
    min_size = None if due is None else rng.choice([None, 1, size])
    buffer = Buffer(admission=relive.Admission(max_lag, 2 * size), groups=relive.Groups(size, due, min_size))
    started: list[str] = []
    kept: list[str] = []

    async def answer(group_id: str, ticket: Any, ended: list[str]) -> None:
        async with buffer.episode(
            "a", group_id=group_id, policy_version=buffer.policy_version, ticket=ticket
        ) as writer:
            started.append(writer.episode_id)
            steps = rng.choice([0, *[1, 2, 3] * 6])
            for t in range(steps):
                await writer.append(t, t, 1.0)
                await asyncio.sleep(rng.choice([0, 0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 4.0]))
            if rng.random() < 0.05:
                raise ZeroDivisionError
            await writer.end(0)
            if steps:
                ended.append(writer.episode_id)

    async def act(name: str) -> None:
        for prompt in itertools.count():
            ended: list[str] = []
            try:
                with await buffer.admit(size) as ticket:
                    answers = (answer(f"{name}/{prompt}", ticket, ended) for _ in range(size))
                    await asyncio.gather(*answers, return_exceptions=True)
            finally:
                if due is None and len(ended) < size:  # Else time gives it up.
                    buffer.reject(ended, reason="given up")

    async def kill_and_restart() -> None:
        for number in itertools.count():
            await asyncio.sleep(rng.uniform(5.0, 60.0))
            place = rng.randrange(num_actors)
            actors[place].cancel()
            actors[place] = asyncio.create_task(act(f"{place}.{number}"))

    def wants(group: Any) -> bool:
        return rng.random() >= rate

    async def learn() -> None:
        for version in range(5):
            buffer.set_policy_version(version)
            if judges_later:
                batch: list[Any] = []
                while len(batch) < 2:
                    (group,) = await buffer.next_groups(1)
                    await asyncio.sleep(rng.choice([0, 0.1]))
                    if wants(group):
                        batch.append(group)
                    else:
                        assert buffer.reject(ids(group)) == len(group)
            else:
                batch = await buffer.next_groups(2, accept=wants)
            kept.extend(each for group in batch for each in ids(group))
            add_up()

    def add_up() -> None:
        dropped = sum(sum(sources.values()) for sources in buffer.get_drops().values())
        waiting = helpers_test.num_waiting(buffer)
        running = buffer.get_stats().in_progress
        assert len(started) == dropped + len(kept) + waiting + running
        assert helpers_test.queue_of(buffer)["admitted"] == len(kept) + waiting + running
        assert buffer.get_training_bias().trained.episodes == len(kept)

    actors = [asyncio.create_task(act(f"{place}")) for place in range(num_actors)]
    killer = asyncio.create_task(kill_and_restart())
    async with asyncio.timeout(3_000.0):
        await learn()
    for task in (killer, *actors):
        task.cancel()
    await asyncio.wait([killer, *actors])
    gc.collect()
    add_up()
    assert buffer.get_stats().in_progress == 0
    assert helpers_test.num_reserved(buffer) == 0
    buffer.check()


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 3)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    rate=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    max_lag=st.integers(0, 8),
    size=st.integers(1, 4),
    due=st.sampled_from([None, 5.0, 20.0]),
    num_actors=st.integers(1, 6),
    judges_later=st.booleans(),
)
def test_fleets_with_rejections_never_hang_and_counts_add_up(**program: Any) -> None:
    async def by_that_clock() -> None:
        with mock.patch.object(time, "monotonic", asyncio.get_running_loop().time):
            await run_fleet(**program)

    local_test.run(by_that_clock())


def test_without_groups_their_deliveries_do_not_come_back(tmp_path: pathlib.Path) -> None:
    buffer = Buffer(groups=relive.Groups(2))
    lived = [live(buffer, group_id=group_id) for group_id in "gghhk"]
    buffer.next_groups_nowait(1)
    buffer.reject(lived[2:4])
    buffer.save(tmp_path / "saved")
    loaded = Buffer.load(tmp_path / "saved", groups=None)
    assert ids(loaded.next_episodes_nowait(1)) == lived[4:]
    with pytest.raises(relive.NotReadyError):
        loaded.next_episodes_nowait(1)
    loaded.check()


def test_an_accept_that_calls_the_buffer_breaks_nothing() -> None:
    """It must not; but the learner gets nothing that it has not seen."""
    buffer, seen = Buffer(), []

    def accept(episode: Any) -> bool:
        seen.append(episode.episode_id)
        if len(seen) == 1:
            buffer.next_episodes_nowait(1)
        elif len(seen) == 2:
            buffer.reject([episode.episode_id])
            return False
        elif len(seen) == 3:
            buffer.reject([lived[3]])
        return True

    lived = [live(buffer) for _ in range(6)]
    assert ids(buffer.next_episodes_nowait(2, accept=accept)) == [lived[2], lived[4]]
    assert seen == [*lived[:3], lived[4]]
    buffer.check()


@pytest.mark.parametrize("call", ["clear", "load_state_dict"])
@pytest.mark.parametrize("kind", ["episodes", "groups"])
def test_an_accept_cannot_take_away_what_it_is_asked_about(kind: str, call: str) -> None:
    """What waits in another state would be delivered twice, and a clear be journaled before the line begins."""
    buffer = Buffer(groups=relive.Groups(1))
    live(buffer, group_id="g" if kind == "groups" else None)
    arguments = [buffer.state_dict()] if call == "load_state_dict" else []
    with pytest.raises(relive.ArgumentError, match=rf"^accept must not call {call}: return True or False first$"):
        getattr(buffer, f"next_{kind}_nowait")(1, accept=lambda unit: getattr(buffer, call)(*arguments))
    assert len(getattr(buffer, f"next_{kind}_nowait")(1)) == 1
    getattr(buffer, call)(*arguments)
    buffer.check()


def test_an_accept_cannot_clear_tokens() -> None:
    buffer = relive.TokenReplayBuffer(100)
    step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-0.5], policy_version=0)
    buffer.add_episode([step], agent_id="a")
    with pytest.raises(relive.ArgumentError, match=r"^accept must not call clear: return True or False first$"):
        buffer.next_episodes_nowait(1, accept=lambda episode: [buffer.clear()] == [])  # type: ignore[func-returns-value]
    assert len(buffer) == 2
