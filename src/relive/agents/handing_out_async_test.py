"""Waiting for tickets, episodes and groups: in order, cancelled at any await, woken by time, and closed."""

import asyncio
from collections.abc import Coroutine
import gc
import random
import time
from typing import Any

import pytest

import relive
from relive.episodes import helpers_test
from relive.fleet import local_test
from relive.testing import zoo

Buffer = helpers_test.Buffer
PATIENCE = helpers_test.PATIENCE
settle = zoo.settle
live = helpers_test.live
ids = helpers_test.ids


def run(work: Coroutine[Any, Any, None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a coroutine by a clock that stands still while there is something to do, and jumps when there is not."""

    async def by_that_clock() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        await work

    local_test.run(by_that_clock())


def has_timer() -> bool:
    scheduled: Any = vars(asyncio.get_running_loop())["_scheduled"]
    return any(not timer.cancelled() for timer in scheduled)


def idle(buffer: Buffer) -> bool:
    """Whether nobody waits."""
    waiters = buffer._waiters
    return not (waiters.starts.waiting or waiters.episodes.waiting or waiters.groups.waiting)


async def test_tickets_are_given_first_come_first_served() -> None:
    buffer = Buffer(admission=relive.Admission(0, 2))
    buffer.set_policy_version(0)
    first = await buffer.admit(2)
    served = []

    async def actor(name: str, count: int) -> None:
        ticket = await buffer.admit(count)
        served.append(name)
        await asyncio.sleep(0)
        ticket.release()

    tasks = [asyncio.create_task(actor(name, count)) for name, count in (("large", 2), ("small", 1), ("small too", 1))]
    await settle()
    assert served == []
    live(buffer, ticket=first)
    await settle()
    assert served == []
    first.release()
    await settle()
    assert served == []  # One place is free, but the one that came first wants two.
    buffer.set_policy_version(1)
    await asyncio.gather(*tasks)
    assert served == ["large", "small", "small too"]
    assert idle(buffer)


@pytest.mark.parametrize("way", ["version", "abort", "release", "lost", "clear", "load"])
async def test_each_place_that_comes_back_wakes_who_waits(way: str) -> None:
    buffer = Buffer(admission=relive.Admission(0, 1))
    buffer.set_policy_version(0)
    empty = buffer.state_dict()
    ticket: Any = await buffer.admit()
    episode_id = ""
    if way in ("abort", "clear"):
        episode_id = buffer.start_episode_nowait("a", ticket=ticket)
    waiter = asyncio.create_task(buffer.admit())
    await settle()
    assert not waiter.done()
    if way == "version":
        buffer.set_policy_version(1)
    elif way == "abort":
        buffer.abort_episode_nowait(episode_id)
        await settle()
        assert (waiter.done(), ticket.left) == (False, 1)
        ticket.release()
    elif way == "release":
        ticket.release()
    elif way == "lost":
        del ticket
    elif way == "clear":
        buffer.clear()
    else:
        buffer.load_state_dict(empty)
    assert (await asyncio.wait_for(waiter, PATIENCE)).left == 1
    assert idle(buffer)


@pytest.mark.parametrize("waits_first", [False, True])
def test_a_straggler_gives_its_place_to_a_waiting_task(waits_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        buffer = Buffer(admission=relive.Admission(0, 2), groups=relive.Groups(2, timeout=10.0))
        ticket = await buffer.admit(2)
        waiter = asyncio.create_task(buffer.admit())
        await settle(20 if waits_first else 0)
        live(buffer, group_id="g", ticket=ticket)
        buffer.start_episode_nowait("a", group_id="g", ticket=ticket)
        await asyncio.sleep(9.9)
        assert not waiter.done()
        await asyncio.sleep(0.2)
        assert (await waiter).left == 1
        assert buffer.get_drops() == {"straggler": {"a": 1}}
        assert idle(buffer)

    run(main(), monkeypatch)


def test_a_group_that_falls_due_wakes_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        buffer = Buffer(groups=relive.Groups(2, timeout=20.0, min_size=1))
        learner = asyncio.create_task(buffer.next_groups(2))
        await settle()
        first = live(buffer, group_id="g")
        await asyncio.sleep(5.0)
        second = live(buffer, group_id="h")
        await asyncio.sleep(19.9)
        assert not learner.done()
        await asyncio.sleep(0.2)
        assert [ids(group) for group in await learner] == [[first], [second]]
        assert idle(buffer)

    run(main(), monkeypatch)


async def test_a_timer_stops_when_nobody_waits_for_it() -> None:
    buffer = Buffer(groups=relive.Groups(2, timeout=1000.0))
    live(buffer, group_id="g")
    learners = [asyncio.create_task(buffer.next_groups(1)) for _ in range(2)]
    await settle()
    live(buffer)
    assert len(await buffer.next_episodes(1)) == 1  # Who leaves another queue leaves the timer.
    await settle()
    for learner in learners:
        assert has_timer()
        learner.cancel()
        await settle()
    assert idle(buffer)
    assert not has_timer()


@pytest.mark.parametrize("group_ids", [[None] * 4, ["g", "g", "h", "h"]], ids=["episodes", "groups"])
async def test_waiting_learners_are_served_in_order(group_ids: list[str | None]) -> None:
    buffer = Buffer(groups=relive.Groups(2))
    call: Any = buffer.next_episodes if group_ids[0] is None else buffer.next_groups
    learners = [asyncio.create_task(call(2 if group_ids[0] is None else 1)) for _ in range(2)]
    lived: list[str] = []
    for group_id in group_ids:
        await settle()
        assert not learners[len(lived) // 2].done()
        lived.append(live(buffer, group_id=group_id))
    found = [await learner for learner in learners]
    assert [ids(each if group_ids[0] is None else each[0]) for each in found] == [lived[:2], lived[2:]]
    assert idle(buffer)


@pytest.mark.parametrize("call", ["admit", "next_episodes", "next_groups"])
async def test_a_call_cancelled_at_any_await_leaves_no_trace(call: str) -> None:
    """It is cancelled after another number of rounds in each of the buffers."""
    buffers = [Buffer(admission=relive.Admission(0, 1), groups=relive.Groups(1)) for _ in range(6)]

    async def has_happened(buffer: Buffer, rounds: int) -> bool:
        with buffer.admit_nowait() as ticket:
            task: asyncio.Task[Any] = asyncio.create_task(getattr(buffer, call)(1))
            await settle(rounds)
            if call == "admit":
                ticket.release()
            else:
                live(buffer, ticket=ticket, group_id="g" if call == "next_groups" else None)
            await settle(rounds // 2)
            task.cancel()
            await asyncio.wait([task])
        return not task.cancelled()

    happened = [await has_happened(buffer, rounds) for rounds, buffer in enumerate(buffers)]
    gc.collect()
    await settle()
    found = []
    for buffer in buffers:
        try:
            found.append(buffer.admit_nowait().left if call == "admit" else len(getattr(buffer, f"{call}_nowait")(1)))
        except relive.NotReadyError:
            found.append(0)
        assert idle(buffer)
        buffer.check()
    # A ticket that was given to a task that is gone has gone back; what was handed out has not.
    assert found == [1 if call == "admit" else int(not it_did) for it_did in happened]
    assert set(happened) == {False, True}


def test_a_ticket_may_be_lost_after_its_event_loop() -> None:
    buffer = Buffer(admission=relive.Admission(0, 1))
    tickets = [buffer.admit_nowait()]

    async def wait() -> None:
        asyncio.get_running_loop().create_task(buffer.admit()).set_name("left behind")
        await settle()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    task = next(iter(asyncio.all_tasks(loop)))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    tickets.clear()
    assert buffer.admit_nowait().left == 1
    live(buffer, ticket=buffer.admit_nowait())
    buffer.close()


async def storm(seed: int, actors: int) -> None:
    """Actors that are cancelled at any await, and a learner that goes on as long as there is something."""
    rng = random.Random(seed)
    rule = relive.Admission(2, 8)
    buffer = Buffer(max_episodes=200, admission=rule, groups=relive.Groups(2, timeout=5.0, min_size=1), seed=0)
    buffer.set_policy_version(0)
    handed: list[str] = []

    async def actor(name: int) -> None:
        for turn in range(rng.randrange(1, 4)):
            group_id = f"{name}/{turn}" if name % 2 else None
            with await buffer.admit(2) as ticket:
                for _ in range(2):
                    version = buffer.policy_version
                    async with buffer.episode(
                        f"{name}", group_id=group_id, policy_version=version, ticket=ticket
                    ) as writer:
                        for t in range(rng.randrange(4)):
                            await writer.append(t, t, 1.0)
                            await asyncio.sleep(rng.choice([0, 0, 0, 1.0]))
                        if rng.random() < 0.9:
                            await writer.end(0)

    async def learner() -> None:
        version = 0
        while True:
            episodes = [each for group in await buffer.next_groups(2, max_lag=4) for each in group]
            handed.extend(ids(episodes))
            version += 1
            buffer.set_policy_version(version)

    async def other_learner() -> None:
        while True:
            handed.extend(ids(await buffer.next_episodes(3)))
            await asyncio.sleep(0)

    learners = [asyncio.create_task(learner()), asyncio.create_task(other_learner())]
    tasks = [asyncio.create_task(actor(name)) for name in range(actors)]
    for _ in range(actors // 2):
        await asyncio.sleep(rng.choice([0, 0, 0, 0.1]))
        rng.choice(tasks).cancel()
        if rng.random() < 0.05:
            buffer.check()
    await asyncio.wait(tasks, timeout=1000.0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in learners:
        task.cancel()
    await asyncio.wait(learners)
    failed = [task.exception() for task in tasks if not task.cancelled() and task.exception()]
    assert {type(error) for error in failed} <= {relive.ArgumentError}, failed  # A group may have been given up.
    assert len(handed) == len(set(handed)) > 0
    tasks.clear()
    failed.clear()
    gc.collect()
    await settle()
    assert idle(buffer)
    assert buffer.get_stats().in_progress == 0
    assert helpers_test.num_reserved(buffer) == 0
    buffer.check()
    buffer.clear()
    produced = buffer.get_training_bias().produced.episodes
    dropped = sum(sum(sources.values()) for sources in buffer.get_drops().values())
    assert len(handed) + dropped == produced
    assert helpers_test.queue_of(buffer)["admitted"] == len(handed)


@pytest.mark.parametrize(
    ("seed", "actors"),
    [(0, 200), (1, 60), (2, 60), (3, 60)]
    + [pytest.param(seed, 1_000, marks=pytest.mark.long) for seed in range(4, 40)],
)
def test_many_queued_actors_with_random_cancellation(seed: int, actors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run(storm(seed, actors), monkeypatch)


def test_a_closed_event_loop_takes_its_waiters_with_it() -> None:
    """The second loop is served, and its own timer rings."""
    buffer = Buffer(admission=relive.Admission(0, 2), groups=relive.Groups(2, timeout=0.5, min_size=1))
    ticket = buffer.admit_nowait(2)
    buffer.start_episode_nowait("a", group_id="g", ticket=ticket)

    def calls() -> list[Coroutine[Any, Any, Any]]:
        return [buffer.next_groups(1), buffer.next_episodes(1), buffer.admit(), buffer.sample_n_step(1, 1, 0.9)]

    async def wait() -> None:
        for coroutine in calls():
            task = asyncio.get_running_loop().create_task(coroutine)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            left.append(task)
        await settle()
        assert has_timer()

    async def live_on() -> None:
        tasks = [asyncio.create_task(coroutine) for coroutine in calls()]
        await settle()
        assert has_timer()
        left.clear()
        gc.collect()  # What the first loop left behind is finished, and does no harm.
        buffer.set_policy_version(0)
        (episode_id,) = buffer.get_stats().open_ages
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0)
        buffer.end_episode_nowait(episode_id, 1)
        async with asyncio.timeout(PATIENCE):
            ((episode,),) = await tasks[0]
            assert episode.episode_id == episode_id
            buffer.set_policy_version(1)
            with await tasks[2] as second:
                live(buffer, ticket=second)
            assert len(await tasks[1]) == 1
            assert len(await tasks[3]) == 1

    left: list[asyncio.Task[Any]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    loop.close()
    asyncio.run(live_on())
    assert idle(buffer)


# Bounds.


async def test_max_running_limits_episodes_that_run_at_once() -> None:
    buffer = Buffer(admission=relive.Admission(9, 9, max_running=2))
    running = most = 0

    async def actor() -> None:
        nonlocal running, most
        for _ in range(5):
            with await buffer.admit() as ticket:
                async with buffer.episode("a", ticket=ticket) as writer:
                    running += 1
                    most = max(most, running)
                    await asyncio.sleep(0)
                    await writer.append(0, 0, 0.0)
                    await writer.end(1)
                    running -= 1

    async with asyncio.timeout(20):
        await asyncio.gather(*(actor() for _ in range(6)))
    assert most == 2
    assert buffer.get_stats().completed == 30
