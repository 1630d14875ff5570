"""Attempts that fail and are made again: nobody waits for itself, and learners get on.

`handing_out_machine_test` has whose the places of failed attempts are.
"""

import asyncio
from collections.abc import Callable
import contextlib
import random
from typing import Any
import warnings

import pytest

import relive
from relive import errors
from relive.agents import token_episode_test
from relive.episodes import helpers_test
from relive.fleet import local_test

Buffer = helpers_test.Buffer
make_tokens = helpers_test.make_tokens
add = helpers_test.add
ACTORS, SIZE, PER_VERSION, TURNS, VERSIONS = 30, 4, 40, 5, 5


class FailedError(Exception):
    """What a tool or a model raises now and then."""


def end_in_vain(buffer: Any, ticket: relive.Ticket, **described: Any) -> None:
    """Make an attempt that comes to nothing."""
    if isinstance(buffer, relive.TokenReplayBuffer):
        add(buffer, status="ABORTED", ticket=ticket, **described)
    else:
        buffer.abort_episode_nowait(buffer.start_episode_nowait("a", ticket=ticket, **described))


# Whom a task waits for.


def wants(buffer: Any, way: str) -> Any:
    if way == "awaits with a timeout":
        return asyncio.wait_for(buffer.admit(), 1.0)
    return asyncio.create_task(buffer.admit()) if way == "begins a task" else buffer.admit()


@pytest.mark.parametrize("way", ["awaits", "awaits with a timeout", "begins a task", "awaits with a fresh one"])
async def test_a_task_waiting_for_its_own_ticket_is_warned_once(way: str) -> None:
    buffer = Buffer(admission=relive.Admission(0, 4))
    with await buffer.admit(4) as ticket:
        if way != "awaits with a fresh one":
            end_in_vain(buffer, ticket)
        for most in (1, 0):
            with warnings.catch_warnings(record=True) as found, contextlib.suppress(TimeoutError):
                warnings.simplefilter("always")
                async with asyncio.timeout(0.01):
                    await wants(buffer, way)
            assert [each.category for each in found] == [errors.MisuseWarning] * most
            assert all("start with it, or release it" in str(each.message) for each in found)


@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("make", [Buffer, make_tokens])
def test_a_thread_that_waits_for_itself_is_warned_once(make: Any, is_fresh: bool) -> None:
    buffer = make(admission=relive.Admission(0, 2))
    shell: Any = relive.ThreadSafeReplayBuffer(buffer, timeout=0.01)
    with shell.admit(2) as ticket:
        if not is_fresh:
            end_in_vain(buffer, ticket)
        with pytest.warns(errors.MisuseWarning, match="start with it"), pytest.raises(relive.NotReadyError):
            shell.admit()
        with pytest.raises(relive.NotReadyError):
            shell.admit()
    assert shell.abort_open_episodes() == 0


@pytest.mark.parametrize("make", [Buffer, make_tokens])
async def test_who_lets_tasks_try_waits_for_itself(make: Any) -> None:
    """Their places are the ticket's again, whose block this task is in."""
    buffer = make(admission=relive.Admission(0, 2))

    async def attempt(ticket: relive.Ticket) -> None:
        end_in_vain(buffer, ticket)

    with await buffer.admit(2) as ticket:
        await asyncio.gather(attempt(ticket), attempt(ticket))
        with pytest.warns(errors.MisuseWarning, match="start with it, or release it"), pytest.raises(TimeoutError):
            await asyncio.wait_for(buffer.admit(), 0.01)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_place_may_come_back_to_one_who_waits(others: int) -> None:
    buffer = Buffer(admission=relive.Admission(0, 2))
    waiting = [asyncio.create_task(buffer.admit()) for _ in range(others)]
    ticket = buffer.admit_nowait(2)
    episode_id = await buffer.start_episode("agent", ticket=ticket)
    await buffer.start_episode("agent", ticket=ticket)
    asyncio.get_running_loop().call_later(0.01, buffer.abort_episode_nowait, episode_id)
    with pytest.warns(errors.MisuseWarning, match="start with it, or release it"), pytest.raises(TimeoutError):
        await asyncio.wait_for(buffer.admit(), 0.05)
    for each in waiting:
        each.cancel()


async def test_who_aborts_for_others_does_not_hold_their_ticket() -> None:
    buffer = Buffer(admission=relive.Admission(0, 2))

    async def act() -> None:
        with buffer.admit_nowait(2) as ticket:
            await buffer.start_episode("agent", ticket=ticket)
            await asyncio.sleep(0.01)

    acting = asyncio.create_task(act())
    await asyncio.sleep(0.001)
    (episode_id,) = buffer.get_stats().open_ages
    buffer.abort_episode_nowait(episode_id)
    assert (await asyncio.wait_for(buffer.admit(2), 1.0)).left == 2
    await acting


async def test_a_callback_of_the_event_loop_may_take_a_ticket() -> None:
    buffer = Buffer(admission=relive.Admission(0, 1))
    tickets: list[relive.Ticket] = []
    asyncio.get_running_loop().call_soon(lambda: tickets.append(buffer.admit_nowait()))
    await asyncio.sleep(0.001)
    assert tickets[0].left == 1


async def test_tasks_that_were_given_tickets_are_no_misuse() -> None:
    """A task that admits, and lets others play, waits for them."""
    buffer = make_tokens(admission=relive.Admission(0, 4), groups=relive.Groups(2))
    buffer.set_policy_version(0)

    async def play(ticket: relive.Ticket, number: int) -> None:
        with ticket:
            for _ in range(3):
                await asyncio.sleep(0.001)
                end_in_vain(buffer, ticket, group_id=f"{number}")
            for _ in range(2):
                await asyncio.sleep(0.001)
                add(buffer, ticket=ticket, group_id=f"{number}")

    async def learn() -> None:
        for version in range(1, 5):
            await buffer.next_groups(2)
            buffer.set_policy_version(version)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(learn())
        for number in range(8):
            ticket = await buffer.admit(2)
            tasks.create_task(play(ticket, number))


# Many actors.


async def play_episode(buffer: Any, described: Any, fails: Callable[[], bool]) -> None:
    async with buffer.episode("agent", **described) as writer:
        for t in range(TURNS):
            await asyncio.sleep(1.0)
            if fails():
                raise FailedError
            await writer.append(t, t, 1.0)
        await writer.end(TURNS)


async def play_tokens(buffer: Any, described: Any, fails: Callable[[], bool]) -> None:
    for _ in range(TURNS):
        await asyncio.sleep(1.0)
        if fails():
            raise FailedError
    buffer.add_episode([token_episode_test.step_of([1], [2])] * 2, agent_id="agent", **described)


def seconds_to_train(make: Any, play: Any, share: float, backoff: float = 0.0) -> float:
    """Return how long a learner takes for all versions if attempts fail in that share of their turns.

    By a virtual clock, where a turn takes a second, and an update of the learner as long as an episode.
    """
    rng = random.Random(0)
    buffer = make(admission=relive.Admission(4, PER_VERSION), groups=relive.Groups(SIZE))

    async def attempt(**described: Any) -> None:
        while True:
            try:
                await play(buffer, described, lambda: rng.random() < share)
                return
            except FailedError:
                await asyncio.sleep(backoff)

    async def act(name: str) -> None:
        for number in range(1_000):
            with await buffer.admit(SIZE) as ticket:
                group = {"group_id": f"{name}/{number}", "ticket": ticket}
                await asyncio.gather(*[attempt(**group) for _ in range(SIZE)])

    async def main() -> float:
        start = asyncio.get_running_loop().time()
        actors = [asyncio.create_task(act(f"{number}")) for number in range(ACTORS)]
        for version in range(VERSIONS):
            buffer.set_policy_version(version)
            await buffer.next_groups(PER_VERSION // SIZE)
            await asyncio.sleep(TURNS)
        for actor in actors:
            actor.cancel()
        await asyncio.wait(actors)
        buffer.check()
        return asyncio.get_running_loop().time() - start

    return local_test.run(main())


@pytest.mark.parametrize(("make", "play"), [(Buffer, play_episode), (make_tokens, play_tokens)])
def test_actors_that_retry_reach_all_versions(make: Any, play: Any) -> None:
    without, rarely, often = (seconds_to_train(make, play, share) for share in (0.0, 0.02, 0.2))
    assert max(rarely, often, seconds_to_train(make, play, 0.02, backoff=1.0)) <= 1.5 * without
