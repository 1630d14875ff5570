"""Learners that wait for fresher data than there is: the others pass, and leave them what they wait for."""

import asyncio
from typing import Any

import pytest

import relive
from relive.episodes import helpers_test
from relive.testing import zoo

Buffer = helpers_test.Buffer
live = helpers_test.live
ids = helpers_test.ids
settle = zoo.settle


async def test_a_learner_that_wants_fresh_episodes_is_passed() -> None:
    buffer = Buffer()
    buffer.set_policy_version(5)
    picky = asyncio.create_task(buffer.next_episodes(2, max_lag=0))
    others = [asyncio.create_task(buffer.next_episodes(1)) for _ in range(2)]
    await settle()
    old = [live(buffer, policy_version=version) for version in (3, None)]
    await settle()
    assert [ids(other.result()) for other in others] == [old[:1], old[1:]]
    fresh = [live(buffer, policy_version=5) for _ in range(2)]
    assert ids(await picky) == fresh
    assert buffer.get_drops() == {}


async def test_fresh_episodes_are_kept_for_who_waits_for_them() -> None:
    buffer = Buffer()
    buffer.set_policy_version(5)
    picky = asyncio.create_task(buffer.next_episodes(2, max_lag=1))
    other = asyncio.create_task(buffer.next_episodes(2))
    await settle()
    first, old, second = (live(buffer, policy_version=version) for version in (5, 3, 4))
    assert ids(await picky) == [first, second]
    assert buffer.get_drops() == {"stale": {"a": 1}}  # It came before one that was handed out.
    await settle()
    assert not other.done()
    later = [live(buffer), live(buffer)]
    assert ids(await other) == later
    assert old not in later


async def test_a_passed_learner_takes_its_turn() -> None:
    buffer = Buffer()
    buffer.set_policy_version(5)
    picky = asyncio.create_task(buffer.next_episodes(4, max_lag=1))
    served = 0

    async def take() -> None:
        nonlocal served
        while True:
            episodes = await buffer.next_episodes(1)
            served += len(episodes)

    others = [asyncio.create_task(take()) for _ in range(3)]
    await settle()
    for number in range(8):
        assert not picky.done()
        live(buffer, policy_version=5 if number % 2 else 3)
        await settle()
    assert [episode.policy_version for episode in await picky] == [5] * 4
    assert served == 4
    for other in others:
        other.cancel()
    await asyncio.wait(others)


@pytest.mark.parametrize("way", ["the version moves on", "it is cancelled"])
async def test_kept_episodes_that_it_cannot_use_are_passed_on(way: str) -> None:
    buffer = Buffer()
    buffer.set_policy_version(5)
    picky = asyncio.create_task(buffer.next_episodes(2, max_lag=0))
    other = asyncio.create_task(buffer.next_episodes(1))
    kept = live(buffer, policy_version=5)
    await settle()
    assert not other.done()
    if way == "it is cancelled":
        picky.cancel()
    else:
        buffer.set_policy_version(6)
    assert ids(await asyncio.wait_for(other, 10)) == [kept]
    picky.cancel()
    await asyncio.wait([picky])


async def test_groups_are_kept_and_passed_on() -> None:
    buffer = Buffer(groups=relive.Groups(2))
    buffer.set_policy_version(5)
    asked: list[str | None] = []

    def accept(group: list[relive.Episode[Any, Any]]) -> bool:
        asked.append(group[0].group_id)
        return True

    picky = asyncio.create_task(buffer.next_groups(2, max_lag=0, accept=accept))
    less_so = asyncio.create_task(buffer.next_groups(1, max_lag=2, accept=accept))
    other = asyncio.create_task(buffer.next_groups(1, accept=accept))
    await settle()
    for group_id, version in (("fresh", 5), ("late", 4), ("old", 0), ("fresh too", 5)):
        for _ in range(2):
            live(buffer, group_id=group_id, policy_version=version)
        await settle()
    names = [[group[0].group_id for group in task.result()] for task in (picky, less_so, other)]
    assert names == [["fresh", "fresh too"], ["late"], ["old"]]
    assert asked == ["fresh", "late", "old", "fresh too"]


async def test_a_learner_that_wants_fresh_steps_is_passed() -> None:
    """The limiter allows each of them; what is there is drawn, and what is not is waited for."""
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 1, error_buffer=8.0), seed=0)
    live(buffer, steps=4, policy_version=1)
    buffer.set_policy_version(5)
    picky = [asyncio.create_task(buffer.sample_n_step(2, 1, 0.9, max_lag=lag)) for lag in (0, 1)]
    other = asyncio.create_task(buffer.sample_n_step(2, 1, 0.9))
    await settle()
    assert other.done()
    # Those that wait aside still let inserts pass, whatever the limiter says.
    steps = 0
    async with buffer.episode("a", policy_version=4) as writer:
        async with asyncio.timeout(10):
            for t in range(40):
                if not picky[1].done():
                    steps += 1
                await writer.append(t, 0, 1.0)
                await settle()
        await writer.end(0)
    assert picky[1].done()
    assert steps < 40
    assert not picky[0].done()
    live(buffer, policy_version=5)
    assert len(await picky[0]) == 2


async def test_a_batch_held_by_the_limiter_is_not_passed() -> None:
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 1, error_buffer=4.0), seed=0)
    buffer.set_policy_version(1)
    large = asyncio.create_task(buffer.sample_n_step(4, 1, 0.9, max_lag=0))
    live(buffer, steps=1, policy_version=1)
    buffer.sample_n_step_nowait(2, 1, 0.9)
    small = asyncio.create_task(buffer.sample_n_step(1, 1, 0.9))
    await settle()
    assert (large.done(), small.done()) == (False, False)
    live(buffer, steps=3, policy_version=1)
    await asyncio.gather(large, small)
