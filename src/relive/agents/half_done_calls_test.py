"""A call on episodes, tokens, items or a rollout that raises has changed nothing, and nothing of it is in a file."""

import asyncio
from collections.abc import Callable
import os
import pathlib
import random
from typing import Any
import warnings

import numpy as np
import pytest

import relive
from relive import errors
from relive.episodes import helpers_test
from relive.persistence import journal as journal_lib
from relive.testing import allocations
from relive.testing import zoo

STEP: Any = {"prompt": [1, 5], "response": [7, 2], "logprobs": [-0.5, -0.25], "policy_version": 0}
NUMBER = relive.Field((), float)


class BrokenError(Exception):
    """Something of the user's raised."""


class ToldOrRaising(zoo.AmongNewest):
    """A sampler whose hooks raise at the call of a number."""

    calls_left: float = np.inf

    def _added(self, slots: Any) -> None:
        self._count()
        super()._added(slots)

    def _removed(self, slots: Any) -> None:
        self._count()
        super()._removed(slots)

    def _count(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise BrokenError


class Watched:
    """An observation whose copies fail on request."""

    fails = False

    def clone(self) -> "Watched":
        if Watched.fails:
            raise BrokenError
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


def loads(make: Callable[[], Any]) -> Callable[[Any], Any]:
    state = zoo.worked(make).state_dict()
    return lambda buffer: buffer.load_state_dict(state)


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
    "load episodes": (lambda: zoo.KINDS["episodes"].make(), loads(zoo.KINDS["episodes"].make)),
    "load tokens": (
        lambda: tokens(2, sampler=zoo.AmongNewest()),
        lambda buffer: buffer.load_state_dict(tokens(3, sampler=zoo.AmongNewest()).state_dict()),
    ),
    "load items": (lambda: zoo.KINDS["items, episodes"].make(), loads(zoo.KINDS["items, episodes"].make)),
    "load a rollout": (lambda: zoo.KINDS["rollout"].make(), loads(zoo.KINDS["rollout"].make)),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_allocation_of_a_call_may_fail(name: str) -> None:
    make, call = CALLS[name]
    buffer, number = make(), 0
    before = zoo.state_of(buffer)
    while True:
        number += 1 + number // 40  # Of many, not all.
        with allocations.failing(number) as count:
            try:
                call(buffer)
                break
            except (MemoryError, errors.ArgumentError, errors.CheckpointError):
                pass
        assert zoo.state_of(buffer) == before, number
    assert 1 <= count() < number
    assert zoo.state_of(buffer) != before
    zoo.check(buffer)


def contents_of(folder: pathlib.Path) -> Any:
    """Return what is in the files of a journal."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stored(buffer: Any) -> Any:
    """Return the tokens that a buffer holds."""
    keys = np.arange(buffer.get_stats().evicted + buffer.get_stats().cleared, buffer.get_stats().appended)
    return zoo.plain(buffer.read(keys)) if len(keys) else None


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another": lambda buffer: add(buffer, 2),
    "more than slots": lambda buffer: add(buffer, 9),
    "clear": lambda buffer: buffer.clear(),
    "a sample of some": lambda buffer: buffer.sample(2, max_lag=1),
}


@pytest.mark.parametrize("is_journaled", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_hook_that_raises_leaves_a_token_buffer_as_it_was(
    tmp_path: pathlib.Path, name: str, is_journaled: bool
) -> None:
    sampler = ToldOrRaising()
    buffer = tokens(2, sampler=sampler)
    add(buffer, steps := 2)
    buffer.set_policy_version(1)
    buffer.add_episode([relive.TokenStep(**{**STEP, "policy_version": 1})] * steps, agent_id="b")
    buffer.set_policy_version(2)
    with relive.Journal(tmp_path / "journal", fsync="always") as journal:
        if is_journaled:
            buffer.attach(journal)
        before, contents, failures = (zoo.state_of(buffer), stored(buffer)), contents_of(tmp_path / "journal"), 0
        while True:
            sampler.calls_left = failures
            try:
                CHANGES[name](buffer)
                break
            except BrokenError:
                failures += 1
            sampler.calls_left = np.inf
            assert (zoo.state_of(buffer), stored(buffer)) == before
            assert contents_of(tmp_path / "journal") == contents
            with np.errstate(all="raise"):
                buffer._draws.draw(1, np.random.default_rng(0), None)  # The sampler knows what may be drawn again.
            assert sorted(sampler._newest) == sampler.anchors.slots().tolist()
            buffer.check()
    assert failures
    assert sorted(sampler._newest) == sampler.anchors.slots().tolist()


JOURNALED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a token episode": (lambda: tokens(9, sampler=ToldOrRaising()), lambda buffer: add(buffer, 4)),
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
        with pytest.raises(BrokenError):
            call()
        assert zoo.plain(buffer.get_stats()) == before
    monkeypatch.setattr(Watched, "fails", False)
    buffer.end_episode_nowait(episode_id, Watched())
    stats, drops = zoo.plain(buffer.get_stats()), buffer.get_drops()
    monkeypatch.setattr(Watched, "fails", True)
    with pytest.raises(BrokenError):
        buffer.next_episodes_nowait(2, accept=accept)
    assert (zoo.plain(buffer.get_stats()), buffer.get_drops(), buffer._queue) == (stats, drops, None)
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


def test_a_codec_that_raises_leaves_an_episode_as_it_was(tmp_path: pathlib.Path) -> None:
    buffer = episodes()
    episode_id = buffer.start_episode_nowait("a")
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        before, contents = zoo.state_of(buffer), contents_of(tmp_path / "journal")
        calls: tuple[Callable[[], Any], ...] = (
            lambda: buffer.append_observation_action_reward_nowait(episode_id, 1, object(), 1.0, policy_version=3),
            lambda: buffer.end_episode_nowait(episode_id, object()),
        )
        for call in calls:
            with pytest.raises(errors.ArgumentTypeError, match="value must be None"):
                call()
            assert zoo.state_of(buffer) == before
            assert contents_of(tmp_path / "journal") == contents


def test_a_ticket_is_unused_after_a_start_that_failed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = tokens(sampler=(sampler := ToldOrRaising()), admission=relive.Admission(0, 2))
    with buffer.admit_nowait(2) as ticket:
        sampler.calls_left = 0
        with pytest.raises(BrokenError):
            add(buffer, ticket=ticket)
        sampler.calls_left = np.inf
        assert (ticket.left, buffer._queue.places.admitted, len(buffer)) == (2, 0, 0)
        add(buffer, ticket=ticket)
        assert (ticket.left, buffer._queue.places.admitted) == (1, 1)


def test_what_failed_leaves_no_trace_in_what_follows() -> None:
    """A buffer of tokens whose sampler raised now and then draws as one whose sampler never did."""
    buffers = [tokens(sampler=ToldOrRaising()) for _ in range(2)]
    broken, rng = buffers[0], random.Random(3)
    for _ in range(60):
        count = rng.randrange(1, 6)
        broken.sampler.calls_left = rng.randrange(2)
        try:
            add(broken, count)
        except BrokenError:
            broken.sampler.calls_left = np.inf
            add(broken, count)
        broken.sampler.calls_left = np.inf
        add(buffers[1], count)
    batches = [each.read(each.eligible_keys()) for each in buffers]
    assert zoo.plain((batches[0].tokens, batches[0].keys)) == zoo.plain((batches[1].tokens, batches[1].keys))
    assert broken.sample(64).keys.tolist() == buffers[1].sample(64).keys.tolist()
    broken.check()


@pytest.mark.parametrize("make", [lambda: episodes(1), lambda: extras(1)])
def test_a_save_without_memory_leaves_the_older_checkpoint(tmp_path: pathlib.Path, make: Any) -> None:
    buffer, number = make(), 0
    buffer.save(tmp_path / "saved")
    contents = contents_of(tmp_path / "saved")
    buffer.clear()
    while True:
        number += 1
        with allocations.failing(number) as count:
            try:
                buffer.save(tmp_path / "saved")
                break
            except (MemoryError, errors.CheckpointError):
                pass
        assert {*os.listdir(tmp_path)} <= {"saved", ".saved.lock"}
        assert contents_of(tmp_path / "saved") == contents
    assert 1 <= count() < number
    assert zoo.state_of(type(buffer).load(tmp_path / "saved")) == zoo.state_of(buffer)


@pytest.mark.parametrize("make", [lambda: episodes(1), lambda: extras(1)])
def test_a_recovery_without_memory_leaves_the_journal(tmp_path: pathlib.Path, make: Any) -> None:
    buffer, number = make(), 0
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        buffer.set_policy_version(1)
    contents = contents_of(tmp_path / "journal")
    while True:
        number += 1 + number // 40
        with allocations.failing(number) as count:
            try:
                recovered = relive.recover(tmp_path / "journal")
                break
            except (MemoryError, errors.ArgumentError, errors.CheckpointError):
                pass
        assert contents_of(tmp_path / "journal") == contents
    assert 1 <= count() < number
    assert zoo.plain(recovered.get_stats()) == zoo.plain(buffer.get_stats())


def test_a_warning_that_is_an_error_takes_no_ticket() -> None:
    async def main() -> None:
        buffer: Any = relive.EpisodeReplayBuffer(admission=relive.Admission(0, 1))
        with buffer.admit_nowait() as ticket:
            with warnings.catch_warnings(), pytest.raises(errors.MisuseWarning, match="^admit waits while"):
                warnings.simplefilter("error")
                await buffer.admit()
            assert (ticket.left, buffer._queue.places.reserved) == (1, 1)
        assert (await buffer.admit()).left == 1

    asyncio.run(main())
