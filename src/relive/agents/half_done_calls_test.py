"""A call on episodes, tokens, items or a rollout that the zoo makes seldom, and that raises, has changed nothing."""

import asyncio
from collections.abc import Callable
import os
import pathlib
from typing import Any
import warnings

import numpy as np
import pytest

import relive
from relive import errors
from relive import half_done_test
from relive.episodes import helpers_test
from relive.persistence import journal as journal_lib
from relive.testing import allocations
from relive.testing import zoo

STEP: Any = {"prompt": [1, 5], "response": [7, 2], "logprobs": [-0.5, -0.25], "policy_version": 0}
NUMBER = relive.Field((), float)


class Watched:
    """An observation whose copies fail on request."""

    fails = False

    def clone(self) -> "Watched":
        if Watched.fails:
            raise half_done_test.FailingError
        return self


def add(buffer: Any, count: int = 1, **given: Any) -> Any:
    """Add a token episode of that many sequences."""
    steps = [relive.TokenStep(**{**STEP, "prompt": [place, 5]}) for place in range(count)]
    return buffer.add_episode(steps, agent_id="a", **given)


def tokens(count: int = 0, **settings: Any) -> Any:
    buffer = relive.TokenReplayBuffer(60, seed=1, **settings)
    for _ in range(count):
        add(buffer, 3)
    return buffer


def extras(count: int = 0) -> Any:
    return tokens(count, token_extras={"advantages": NUMBER}, sequence_extras={"weight": NUMBER})


def episodes(count: int = 3, **settings: Any) -> Any:
    buffer: Any = relive.EpisodeReplayBuffer(seed=1, **settings)
    for number in range(count):
        episode_id = buffer.start_episode_nowait("a")
        for t in range(3):
            observation = np.arange(4) + t
            buffer.append_observation_action_reward_nowait(episode_id, observation, t, 1.0, policy_version=t)
        buffer.end_episode_nowait(episode_id, np.arange(4), "ABORTED" if number == 1 else "COMPLETED")
    return buffer


def taken(count: int) -> Any:
    """Return a buffer whose learner has taken episodes at version 2, and another waits in a group that gathers."""
    buffer = episodes(4, redeliver=True, groups=relive.Groups(2))
    buffer.set_policy_version(2)
    buffer.next_episodes_nowait(count)
    helpers_test.live(buffer, group_id="g")
    helpers_test.live(buffer, status=None)
    return buffer


CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the first token episode": (extras, lambda buffer: add(buffer, advantages=[[1, 2]], weight=3)),
    "a token episode for which others go": (lambda: extras(9), lambda buffer: add(buffer, 3)),
    "more sequences than slots": (lambda: tokens(2, sampler=zoo.AmongNewest()), lambda buffer: add(buffer, 5)),
    "update": (
        lambda: extras(2),
        lambda buffer: buffer.update([1, 3, 99], advantages=np.ones((3, 4)), weight=[1, 2, 3]),
    ),
    "clear, a sampler is told": (lambda: tokens(2, sampler=zoo.AmongNewest()), lambda buffer: buffer.clear()),
    "next_episodes": (episodes, lambda buffer: buffer.next_episodes_nowait(2)),
    "next_episodes, some are accepted": (
        episodes,
        lambda buffer: buffer.next_episodes_nowait(2, accept=lambda episode: True),
    ),
    "the first items": (
        lambda: relive.ItemReplayBuffer(9, seed=1),
        lambda buffer: buffer.add({"x": np.arange(4), "y": np.ones((4, 2))}),
    ),
    "the first step of a rollout": (
        lambda: relive.RolloutBuffer(9),
        lambda buffer: buffer.add(np.ones(2), 1, 0.5, 0.25, name=np.arange(3)),
    ),
}


def fail_often(call: Callable[[], Any], state_of: Callable[[], Any]) -> Any:
    """Return what a call answers in the end; until then it fails at one allocation after the other, of many not all."""
    before, number, answer = state_of(), 0, list[Any]()
    while True:
        number += 1 + number // 40
        with allocations.failing(number) as count:
            half_done_test.has_failed(lambda: answer.append(call()))
        if answer:
            assert 1 <= count() < number
            return answer[0]
        assert state_of() == before, number


@pytest.mark.parametrize("name", CALLS)
def test_each_allocation_of_a_call_may_fail(name: str) -> None:
    make, call = CALLS[name]
    buffer = make()
    before = zoo.state_of(buffer)
    fail_often(lambda: call(buffer), lambda: zoo.state_of(buffer))
    assert zoo.state_of(buffer) != before
    zoo.check(buffer)


def contents_of(folder: pathlib.Path) -> Any:
    """Return what is in the files of a journal."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


JOURNALED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a token episode": (lambda: tokens(9, sampler=half_done_test.RaisingHooks()), lambda buffer: add(buffer, 4)),
    "update of tokens": (lambda: extras(2), lambda buffer: buffer.update([1], weight=[1])),
    "clear of tokens": (lambda: extras(2), lambda buffer: buffer.clear()),
    "priorities of tokens": (
        lambda: tokens(2, sampler=relive.PrioritizedSampler()),
        lambda buffer: buffer.update_priorities([1], [2.0]),
    ),
    "next_episodes": (episodes, lambda buffer: buffer.next_episodes_nowait(1)),
    "next_episodes, too few": (episodes, lambda buffer: buffer.next_episodes_nowait(9)),
    "reject": (episodes, lambda buffer: buffer.reject([each.episode_id for each in buffer._store])),
    "set_policy_version": (episodes, lambda buffer: buffer.set_policy_version(3)),
    "resume_policy_version": (lambda: taken(1), lambda buffer: buffer.resume_policy_version(1)),
    "ack": (lambda: taken(1), lambda buffer: buffer.ack(2)),
    "abort_open_episodes": (lambda: taken(1), lambda buffer: buffer.abort_open_episodes()),
    "reject of what comes again": (
        lambda: taken(2),
        lambda buffer: buffer.reject([buffer._store.finished[0].episode_id]),
    ),
    "clear": (episodes, lambda buffer: buffer.clear()),
    "start": (episodes, lambda buffer: buffer.start_episode_nowait("b")),
}


@pytest.mark.parametrize("fails", [(os, "write"), (journal_lib, "sync_file")], ids=["write", "sync"])
@pytest.mark.parametrize("name", JOURNALED)
def test_a_file_call_that_fails_changes_neither_buffer_nor_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, fails: Any
) -> None:
    make, call = JOURNALED[name]
    buffer = make()
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal, **({"priorities": True} if name == "priorities of tokens" else {}))
        before, contents = zoo.state_of(buffer), contents_of(tmp_path / "journal")

        def fail(*_: Any) -> Any:
            raise OSError("full")

        with monkeypatch.context() as patch:
            patch.setattr(fails[0], fails[1], fail)
            # What the learner asks for is synced with the next record.
            if fails[1] == "write" or not name.startswith(("next", "reject")):
                with pytest.raises(errors.CheckpointError, match="full"):
                    call(buffer)
                assert zoo.state_of(buffer) == before
                assert contents_of(tmp_path / "journal") == contents
        buffer.check()


@pytest.mark.parametrize("accept", [None, lambda episode: True])
def test_a_copy_that_fails_takes_no_episode(accept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer: Any = relive.EpisodeReplayBuffer(seed=1)
    helpers_test.live(buffer, steps=1)
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, Watched(), 0, 1.0)
    before = zoo.plain(buffer.get_stats())
    monkeypatch.setattr(Watched, "fails", True)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: buffer.append_observation_action_reward_nowait(episode_id, 1, Watched(), 1.0, policy_version=3),
        lambda: buffer.end_episode_nowait(episode_id, Watched()),
    )
    for call in calls:
        with pytest.raises(half_done_test.FailingError):
            call()
        assert zoo.plain(buffer.get_stats()) == before
    monkeypatch.setattr(Watched, "fails", False)
    buffer.end_episode_nowait(episode_id, Watched())
    stats, drops = zoo.plain(buffer.get_stats()), buffer.get_drops()
    monkeypatch.setattr(Watched, "fails", True)
    with pytest.raises(half_done_test.FailingError):
        buffer.next_episodes_nowait(2, accept=accept)
    assert (zoo.plain(buffer.get_stats()), buffer.get_drops(), buffer._queue.known) == (stats, drops, None)
    buffer.check()
    monkeypatch.setattr(Watched, "fails", False)
    assert len(buffer.next_episodes_nowait(2, accept=accept)) == 2


def test_an_episode_that_was_refused_stays_so_when_accept_raises() -> None:
    buffer = episodes()
    answers = iter([False])
    with pytest.raises(StopIteration):
        buffer.next_episodes_nowait(1, accept=lambda episode: next(answers))
    assert buffer.get_drops() == {"aborted": {"a": 1}, "rejected": {"a": 1}}
    assert len(buffer.next_episodes_nowait(1)) == 1
    buffer.check()


def test_a_ticket_is_unused_after_a_start_that_failed() -> None:
    buffer = tokens(sampler=half_done_test.RaisingHooks(), admission=relive.Admission(0, 2))
    with buffer.admit_nowait(2) as ticket:
        with half_done_test.failing_hook(1), pytest.raises(half_done_test.FailingError):
            add(buffer, ticket=ticket)
        assert (ticket.left, buffer._queue.ledger().places.admitted, len(buffer)) == (2, 0, 0)
        add(buffer, ticket=ticket)
        assert (ticket.left, buffer._queue.ledger().places.admitted) == (1, 1)


@pytest.mark.parametrize("make", [lambda: episodes(1), lambda: extras(1)])
def test_a_save_without_memory_leaves_the_older_checkpoint(tmp_path: pathlib.Path, make: Any) -> None:
    buffer = make()
    buffer.save(tmp_path / "saved")
    buffer.clear()
    fail_often(
        lambda: buffer.save(tmp_path / "saved"),
        lambda: ({*os.listdir(tmp_path)} - {".saved.lock"}, (tmp_path / "saved").read_bytes()),
    )
    assert zoo.state_of(type(buffer).load(tmp_path / "saved")) == zoo.state_of(buffer)


@pytest.mark.parametrize("make", [lambda: episodes(1), lambda: extras(1)])
def test_a_recovery_without_memory_leaves_the_journal(tmp_path: pathlib.Path, make: Any) -> None:
    buffer = make()
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        buffer.set_policy_version(1)
    recovered = fail_often(lambda: relive.recover(tmp_path / "journal"), lambda: contents_of(tmp_path / "journal"))
    assert zoo.plain(recovered.get_stats()) == zoo.plain(buffer.get_stats())


def test_a_warning_that_is_an_error_takes_no_ticket() -> None:
    async def main() -> None:
        buffer: Any = relive.EpisodeReplayBuffer(admission=relive.Admission(0, 1))
        with buffer.admit_nowait() as ticket:
            with warnings.catch_warnings(), pytest.raises(errors.MisuseWarning, match="^admit waits while"):
                warnings.simplefilter("error")
                await buffer.admit()
            assert (ticket.left, buffer._queue.ledger().places.reserved) == (1, 1)
        assert (await buffer.admit()).left == 1

    asyncio.run(main())
