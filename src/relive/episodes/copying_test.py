"""A copy or a pickle of an episode buffer is whole, and shares nothing with the original."""

import asyncio
from collections.abc import Callable
import copy
import pathlib
import pickle
import random
from typing import Any

import pytest

import relive
from relive.agents import queue_state_test
from relive.episodes import helpers_test
from relive.persistence import recover_test

Buffer = relive.EpisodeReplayBuffer[Any, Any]
live = helpers_test.live
ids = helpers_test.ids


def pickled(buffer: Buffer) -> Buffer:
    answer: Buffer = pickle.loads(pickle.dumps(buffer))
    return answer


COPIED = pytest.mark.parametrize("copied", [copy.deepcopy, pickled])


@COPIED
@pytest.mark.parametrize("seed", range(3))
def test_a_copy_goes_on_as_the_original_does(copied: Callable[[Buffer], Buffer], seed: int) -> None:
    buffer = queue_state_test.worked(seed)
    other = copied(buffer)
    other.check()
    state = buffer.state_dict()
    assert copied(other).sample_n_step_nowait(8, 2, 0.9) == copied(buffer).sample_n_step_nowait(8, 2, 0.9)
    answers = queue_state_test.work(other, random.Random(9), 100)
    buffer.check()
    assert queue_state_test.content(buffer)[1] == queue_state_test.content(pickled(buffer))[1]
    assert buffer.state_dict()["counters"] == state["counters"]
    assert queue_state_test.work(buffer, random.Random(9), 100) == answers


@COPIED
def test_what_a_copy_hands_out_and_evicts_is_its_own(copied: Callable[[Buffer], Buffer]) -> None:
    buffer = Buffer(max_episodes=3, groups=relive.Groups(1))
    lived = [live(buffer) for _ in range(3)]
    buffer.next_episodes_nowait(1)
    other = copied(buffer)
    assert ids(other.next_episodes_nowait(2)) == lived[1:]
    for _ in range(3):
        live(other)
    assert other.get_drops() == buffer.get_drops() == {}
    assert (other.get_training_bias().trained.episodes, buffer.get_training_bias().trained.episodes) == (3, 1)
    for _ in range(3):
        live(buffer)
    assert buffer.get_drops() == {"evicted": {"a": 2}}
    assert other.get_drops() == {}
    other.clear()
    assert len(buffer) == 3
    for each in (buffer, other):
        each.check()


@COPIED
def test_tickets_that_are_not_used_stay_with_the_original(copied: Callable[[Buffer], Buffer]) -> None:
    buffer = Buffer(admission=relive.Admission(0, 3))
    live(buffer, ticket=buffer.admit_nowait())
    ticket = buffer.admit_nowait(2)
    other = copied(buffer)
    assert other.admit_nowait(2).left == 2
    with pytest.raises(relive.ArgumentError, match="^ticket must be of this buffer"):
        other.start_episode_nowait("a", ticket=ticket)
    with pytest.raises(relive.NotReadyError):
        buffer.admit_nowait()
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(
            relive.ArgumentError, match="^a ticket cannot be copied or pickled: admit again where it is"
        ):
            make(ticket)
    ticket.release()
    assert buffer.admit_nowait(2).left == 2


@COPIED
def test_a_copy_belongs_to_no_event_loop_and_nobody_waits_at_it(copied: Callable[[Buffer], Buffer]) -> None:
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


@COPIED
def test_a_buffer_that_writes_to_a_journal_is_copied_once_it_is_detached(
    copied: Callable[[Buffer], Buffer], tmp_path: pathlib.Path
) -> None:
    buffer = Buffer()
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        live(buffer)
        with pytest.raises(
            relive.ArgumentError, match="^a buffer that writes to a journal cannot be copied or pickled: "
        ):
            copied(buffer)
        live(buffer)
        buffer.detach()
        live(copied(buffer))
        assert len(buffer) == 2
    recovered: Any = relive.recover(tmp_path / "log")
    twin = copied(recovered)
    twin.check()
    with recover_test.opened(tmp_path / "log") as log:
        with pytest.raises(relive.ArgumentError, match="^journal must hold what the buffer does"):
            twin.attach(log)
        recovered.attach(log)


@COPIED
def test_a_line_that_begins_at_a_copy_hears_of_evictions(copied: Callable[[Buffer], Buffer]) -> None:
    buffer = Buffer(max_episodes=2)
    live(buffer)
    other = copied(buffer)
    waiting = live(other)
    other.next_episodes_nowait(1)
    live(other)
    live(other)
    assert other.get_drops() == {"evicted": {"a": 1}}
    other.check()
    assert not other._store.has(waiting)
    assert (len(buffer), buffer.get_drops()) == (1, {})
