"""Tickets, waiting tasks and the line of a copied episode buffer; copies_and_forks_test has the rest."""

import asyncio
from collections.abc import Callable
import copy
import pickle
from typing import Any

import pytest

import relive
from relive.episodes import helpers_test

Buffer = helpers_test.Buffer
live = helpers_test.live
ids = helpers_test.ids


def pickled(buffer: Buffer) -> Buffer:
    answer: Buffer = pickle.loads(pickle.dumps(buffer))
    return answer


COPIED = pytest.mark.parametrize("copied", [copy.deepcopy, pickled])


@COPIED
def test_unused_tickets_stay_with_the_original(copied: Callable[[Buffer], Buffer]) -> None:
    buffer = Buffer(admission=relive.Admission(0, 3))
    live(buffer, ticket=buffer.admit_nowait())
    ticket = buffer.admit_nowait(2)
    other = copied(buffer)
    assert other.admit_nowait(2).left == 2
    with pytest.raises(relive.ArgumentError, match="^ticket must be of this buffer"):
        other.start_episode_nowait("a", ticket=ticket)
    with pytest.raises(relive.NotReadyError):
        buffer.admit_nowait()
    ticket.release()
    assert buffer.admit_nowait(2).left == 2


@COPIED
def test_a_copied_buffer_belongs_to_no_event_loop(copied: Callable[[Buffer], Buffer]) -> None:
    buffer = Buffer(groups=relive.Groups(2, timeout=50.0), admission=relive.Admission(0, 2), seed=0)
    ticket = buffer.admit_nowait(2)
    buffer.start_episode_nowait("a", group_id="g", ticket=ticket)
    buffer.set_policy_version(1)

    async def copy_it() -> Buffer:
        calls: list[Any] = [buffer.next_episodes(1), buffer.next_groups(1, max_lag=0), buffer.admit()]
        calls.append(buffer.sample_n_step(1, 1, 0.9, max_lag=0))
        waiting = [asyncio.create_task(call) for call in calls]
        for _ in range(10):
            await asyncio.sleep(0)
        other = copied(buffer)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        return other

    async def use(other: Buffer) -> None:
        learner = asyncio.create_task(other.next_episodes(1))
        await asyncio.sleep(0)
        live(other, ticket=await other.admit(), policy_version=1)
        assert len(await asyncio.wait_for(learner, 10)) == 1
        assert len(await other.sample_n_step(1, 1, 0.9, max_lag=0)) == 1

    other = asyncio.run(copy_it())
    asyncio.run(use(other))
    other.check()
    buffer.check()
