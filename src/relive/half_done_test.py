"""A public call that raises has changed nothing, whatever failed in it; or it is done, where a warning is raised.

The calls of the zoo are made to fail at each point in turn: at each array that numpy allocates, at each file call of a
journal, at each hook of a sampler. A call that succeeds nevertheless, as when memory runs out in the look for misuse at
its very end, is done.
"""

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import functools
import os
import pathlib
import random
import subprocess
import sys
from typing import Any
from unittest import mock
import warnings

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays
from relive.episodes import helpers_test
from relive.persistence import journal as journal_lib
from relive.testing import allocations
from relive.testing import zoo

BY_DAY = (
    "ring of 3 streams, n_step",
    "ring with its own sampler",
    "ring with its own storage",
    "prioritized with frame_stack",
    "prioritized sequences",
    "joint with priorities",
    "episodes in groups",
    "tokens with extras",
    "tokens in groups",
    "items, episodes",
)
Failing = Callable[[int], contextlib.AbstractContextManager[Any]]
"""Lets what has that number fail within a block, counted from 1."""


class FailingError(Exception):
    """What a hook raises here."""


def kinds(names: Any) -> list[Any]:
    """Return names of kinds as parameters, most of them long."""
    return [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.long) for name in names]


def has_failed(call: Callable[[], Any]) -> bool:
    """Make a call, and return whether it failed for want of memory or disk, or in a hook."""
    try:
        call()
    except (MemoryError, FailingError, errors.CheckpointError):
        return True
    except errors.ArgumentError as error:
        if isinstance(error.__cause__, MemoryError):
            return True
        raise
    return False


def count_failures(buffer: Any, failing: Failing, state_of: Callable[[Any], Any], seeds: int) -> int:
    """Make a call of each seed fail at each point, and then succeed; return how many failed and changed nothing."""
    num_failed = 0
    for seed in range(seeds):
        before, number, fails = state_of(buffer), 0, True
        while fails:
            number += 1
            with failing(number):
                fails = has_failed(functools.partial(zoo.work, buffer, random.Random(seed), 1))
            if fails:
                num_failed += 1
                assert state_of(buffer) == before, (seed, number)
                zoo.check(buffer)
    return num_failed


@pytest.mark.parametrize("name", kinds(zoo.KINDS))
def test_a_call_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    buffer = zoo.worked(zoo.KINDS[name].make, count=40)
    seeds = 2 if name.startswith("tokens") else 6
    assert count_failures(buffer, allocations.failing, zoo.state_of, seeds) >= 10
    zoo.work(buffer, random.Random("after"), 20)
    zoo.check(buffer)


OF_MANY_STREAMS: dict[str, Callable[[], Any]] = {
    "ring": lambda: relive.RingReplayBuffer(40, zoo.SCHEMA, streams=9, seed=0),
    "prioritized": lambda: relive.PrioritizedReplayBuffer(40, zoo.SCHEMA, streams=9, n_step=2, seed=0),
    "stacks": lambda: relive.RingReplayBuffer(40, zoo.SCHEMA, streams=9, frame_stack=2, seed=0),
    "sequences": lambda: relive.SequenceReplayBuffer(40, zoo.SCHEMA, streams=9, length=2, seed=0),
}


@pytest.mark.parametrize("name", OF_MANY_STREAMS)
def test_a_round_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    """Of more than are written one by one."""
    buffer = OF_MANY_STREAMS[name]()
    zoo.work(buffer, random.Random(1), 40)
    assert count_failures(buffer, allocations.failing, zoo.state_of, seeds=4) > 30
    zoo.work(buffer, random.Random("after"), 20)
    buffer.check()


@pytest.mark.parametrize("name", kinds(zoo.STORED))
def test_a_load_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    state = zoo.worked(zoo.KINDS[name].make, seed=1, count=40).state_dict()
    buffer, number, num_failed, fails = zoo.worked(zoo.KINDS[name].make, count=40), 0, 0, True
    before = zoo.state_of(buffer)
    while fails:
        number += 1 + number // 16
        with allocations.failing(number):
            fails = has_failed(functools.partial(buffer.load_state_dict, state))
        num_failed += fails
        assert not fails or zoo.state_of(buffer) == before, number
    assert num_failed > 10
    zoo.check(buffer)


# Files.


@contextlib.contextmanager
def failing_file_call(number: int) -> Iterator[None]:
    """Let the file call of that number fail, of all that change a directory or a file."""
    count = 0

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise OSError(28, "No space left on device")
            return call(*arguments, **options)

        return made

    with contextlib.ExitStack() as stack:
        for name in ("open", "write", "rename", "replace", "mkdir", "unlink"):
            stack.enter_context(mock.patch.object(os, name, failing(getattr(os, name))))
        yield


@pytest.mark.parametrize("name", kinds(zoo.JOURNALED))
@pytest.mark.parametrize("failing", [failing_file_call, allocations.failing], ids=["disk", "memory"])
def test_a_call_that_cannot_be_journaled_has_changed_nothing(name: str, failing: Any, tmp_path: pathlib.Path) -> None:
    """Neither the buffer nor what the next records follow in the newest segment."""
    path = tmp_path / "log"

    def state_of(buffer: Any) -> Any:
        newest = max(file.name for file in path.glob("segment*"))
        return zoo.state_of(buffer), newest, (path / newest).read_bytes()

    buffer = zoo.worked(zoo.JOURNALED[name].make, count=40)
    with relive.Journal(path, fsync="never") as journal:
        buffer.attach(journal)
        assert count_failures(buffer, failing, state_of, seeds=4) > 0
        expected = zoo.state_of(buffer)
        buffer.detach()
    if "its own storage" not in name:  # Which a recovered buffer does not have.
        recovered: Any = relive.recover(path)
        zoo.check(recovered)
        assert recovered.get_stats().appended == buffer.get_stats().appended, expected


# Hooks, storages and memory maps.


class RaisingHooks(zoo.AmongNewest):
    """A sampler whose hook of a number raises."""

    fails_at = count = 0

    def _added(self, slots: arrays.Slots) -> None:
        self._call()
        super()._added(slots)

    def _removed(self, slots: arrays.Slots) -> None:
        self._call()
        super()._removed(slots)

    def _call(self) -> None:
        RaisingHooks.count += 1
        if RaisingHooks.count == RaisingHooks.fails_at:
            raise FailingError


class RaisingHooksAndPriorities(RaisingHooks, relive.PrioritizedSampler):
    """The same with priorities."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.PrioritizedSampler._draw(self, size, rng)


@contextlib.contextmanager
def failing_hook(number: int) -> Iterator[None]:
    RaisingHooks.count, RaisingHooks.fails_at = 0, number
    yield
    RaisingHooks.fails_at = 0


HOOKED: dict[str, Callable[..., Any]] = {
    "ring": lambda: relive.RingReplayBuffer(17, zoo.SCHEMA, streams=3, frame_stack=2, sampler=RaisingHooks(), seed=0),
    "times": lambda: relive.RingReplayBuffer(17, zoo.SCHEMA, max_times_sampled=2, sampler=RaisingHooks(), seed=0),
    "priorities": lambda: relive.RingReplayBuffer(
        17, zoo.SCHEMA, n_step=2, sampler=RaisingHooksAndPriorities(), seed=0
    ),
    "sequences": lambda: relive.SequenceReplayBuffer(
        17, zoo.SCHEMA, length=3, pad=True, sampler=RaisingHooks(), seed=0
    ),
    "sequences with priorities": lambda: relive.SequenceReplayBuffer(
        17, zoo.SCHEMA, length=2, stride=2, sampler=RaisingHooksAndPriorities(), seed=0
    ),
    "joint": lambda: relive.JointReplayBuffer(9, zoo.SCHEMAS, agents=zoo.AGENTS, sampler=RaisingHooks(), seed=0),
    "a storage": lambda: relive.RingReplayBuffer(
        17, storage=zoo.OwnStorage(zoo.SCHEMA, 17), sampler=RaisingHooks(), seed=0
    ),
    "tokens": lambda: relive.TokenReplayBuffer(60, sampler=RaisingHooks(), seed=0),
}


@pytest.mark.parametrize("is_journaled", [False, True])
@pytest.mark.parametrize("name", HOOKED)
def test_a_call_whose_hook_raises_has_changed_nothing(name: str, is_journaled: bool, tmp_path: pathlib.Path) -> None:
    buffer = HOOKED[name]()
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        if is_journaled:
            buffer.attach(journal)
        zoo.work(buffer, random.Random(0), 60)
        num_records = journal.num_records

        def state_of(buffer: Any) -> Any:
            return zoo.state_of(buffer), journal.num_records

        assert count_failures(buffer, failing_hook, state_of, seeds=40) > 15
        assert journal.num_records > num_records or not is_journaled
        zoo.work(buffer, random.Random("after"), 20)
        zoo.check(buffer)
        with contextlib.suppress(errors.NotReadyError):
            buffer.sample(1)  # The sampler is told again what may be drawn.
        assert sorted(buffer.sampler._newest) == buffer.sampler.anchors.slots().tolist()


def test_an_end_that_cannot_be_journaled_is_not_counted(tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(5, seed=0)
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffer.attach(journal)
        buffer.add(0, 0, 0.0, 1)
        before = zoo.state_of(buffer)
        with failing_file_call(1), pytest.raises(errors.CheckpointError, match="No space left"):
            buffer.end_episode()
        assert zoo.state_of(buffer) == before


@pytest.mark.parametrize("name", ["priorities", "sequences with priorities"])
def test_a_record_that_fails_has_changed_no_priority(name: str, tmp_path: pathlib.Path) -> None:
    buffer = HOOKED[name]()
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffer.attach(journal, priorities=True)
        zoo.work(buffer, random.Random(0), 60)
        assert count_failures(buffer, failing_file_call, zoo.state_of, seeds=60) > 20


def test_priorities_of_a_mixture_not_written_change_none(tmp_path: pathlib.Path) -> None:
    buffers = [zoo.worked(zoo.COLUMNS["prioritized"]) for _ in range(3)]
    mixture = relive.MixtureSampler(buffers, [1, 1, 1])
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffers[0].attach(journal, priorities=True)
        keys, before = mixture.sample(9).keys, zoo.state_of(mixture)
        with failing_file_call(1), pytest.raises(errors.CheckpointError, match="No space left"):
            mixture.update_priorities(keys, [3.0] * 9)
        assert zoo.state_of(mixture) == before
        assert mixture.update_priorities(keys, [3.0] * 9) == 9


def test_an_episode_that_is_not_written_has_changed_no_priority(tmp_path: pathlib.Path) -> None:
    buffer = relive.TokenReplayBuffer(40, sampler=RaisingHooksAndPriorities(), seed=0)
    steps = [relive.TokenStep(prompt=[1, 2], response=[3, 4, 5], logprobs=[-1.0] * 3, policy_version=0)]
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffer.attach(journal)
        for number in range(20):
            buffer.add_episode(steps, agent_id="a")
            buffer.update_priorities([number], [1.0 + number % 3])
            before = zoo.state_of(buffer)
            with failing_file_call(1), pytest.raises(errors.CheckpointError, match="No space left"):
                buffer.add_episode(steps, agent_id="a")
            assert zoo.state_of(buffer) == before


class FailingStorage(zoo.OwnStorage):
    """A custom storage whose write of a number fails in the middle of its rows, or which cannot be read."""

    fails_at = count = 0
    can_be_read = True

    def read(self, slots: Any, fields: Any = None) -> dict[str, arrays.Array]:
        if not self.can_be_read:
            raise FailingError
        return super().read(slots, fields)

    def write(self, slots: Any, rows: Any) -> None:
        FailingStorage.count += 1
        some = [*rows][:: 2 if FailingStorage.count == FailingStorage.fails_at else 1]
        super().write(slots, super().read(slots) | {path: rows[path] for path in some})
        if len(some) < len(rows):
            raise FailingError


@contextlib.contextmanager
def failing_write(number: int) -> Iterator[None]:
    FailingStorage.count, FailingStorage.fails_at = 0, number
    yield
    FailingStorage.fails_at = 0


@pytest.mark.parametrize("options", [{}, {"streams": 3}, {"sampler": RaisingHooks()}])
def test_a_storage_that_fails_in_a_write_has_its_rows_back(options: dict[str, Any]) -> None:
    buffer = relive.RingReplayBuffer(17, storage=FailingStorage(zoo.SCHEMA, 17), seed=0, **options)
    zoo.work(buffer, random.Random(0), 60)
    assert count_failures(buffer, failing_write, zoo.state_of, seeds=40) > 15


def test_a_look_for_misuse_that_fails_is_left_out() -> None:
    """The step is stored by then."""
    storage = FailingStorage(relive.Schema(relive.Field((), "int64"), relive.Field((), "int64")), 17)
    buffer = relive.RingReplayBuffer(17, storage=storage, seed=0)
    storage.can_be_read = False
    for t in range(8):
        buffer.add(2 * t, 0, 0.0, 2 * t + 1)
    assert buffer.get_stats().spliced_episodes == 7


def test_a_write_to_a_memory_map_that_fails_has_changed_nothing(tmp_path: pathlib.Path) -> None:
    with relive.MemmapStorage(tmp_path / "rows", zoo.SCHEMA, 17) as storage:
        buffer = relive.PrioritizedReplayBuffer(17, storage=storage, frame_stack=2, seed=0)
        zoo.work(buffer, random.Random(0), 40)
        num_failed = 0
        for seed in range(4):
            storage.flush()  # The next write marks the map as dirty.
            num_failed += count_failures(buffer, failing_file_call, zoo.state_of, seeds=1)
            num_failed += count_failures(buffer, allocations.failing, zoo.state_of, seeds=seed)
        assert num_failed > 30


def test_a_draw_that_runs_out_of_memory_forgets_no_new_row() -> None:
    """New rows get their priorities when the next draw needs them."""

    def filled() -> relive.PrioritizedReplayBuffer:
        buffer = relive.PrioritizedReplayBuffer(20, streams=2, alpha=1.0, seed=0)
        for t in range(12):
            buffer.extend([t, t], [0, 0], [0.0, 0.0], [t + 1, t + 1])
        return buffer

    expected, number, fails = filled().explain(23).probability, 0, True
    while fails:
        number, buffer = number + 1, filled()
        with allocations.failing(number):
            fails = has_failed(functools.partial(buffer.sample, 4))
        buffer.check()
        assert [buffer.explain(key).probability for key in buffer.eligible_keys()] == [expected] * 20
    assert number > 20


# Calls on episodes and tokens, which the zoo makes seldom.


STEP: Any = {"prompt": [1, 5], "response": [7, 2], "logprobs": [-0.5, -0.25], "policy_version": 0}
NUMBER = relive.Field((), float)


class Watched:
    """An observation whose copies fail on request."""

    fails = False

    def clone(self) -> "Watched":
        if Watched.fails:
            raise FailingError
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
    while not answer:
        number += 1 + number // 40
        with allocations.failing(number) as count:
            has_failed(lambda: answer.append(call()))
        assert answer or state_of() == before, number
    assert 1 <= count() < number
    return answer[0]


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
    "a token episode": (lambda: tokens(9, sampler=RaisingHooks()), lambda buffer: add(buffer, 4)),
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
        with pytest.raises(FailingError):
            call()
        assert zoo.plain(buffer.get_stats()) == before
    monkeypatch.setattr(Watched, "fails", False)
    buffer.end_episode_nowait(episode_id, Watched())
    stats, drops = zoo.plain(buffer.get_stats()), buffer.get_drops()
    monkeypatch.setattr(Watched, "fails", True)
    with pytest.raises(FailingError):
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


def test_a_ticket_is_unused_after_a_start_that_failed() -> None:
    buffer = tokens(sampler=RaisingHooks(), admission=relive.Admission(0, 2))
    with buffer.admit_nowait(2) as ticket:
        with failing_hook(1), pytest.raises(FailingError):
            add(buffer, ticket=ticket)
        assert (ticket.left, buffer._queue.places.admitted, len(buffer)) == (2, 0, 0)
        add(buffer, ticket=ticket)
        assert (ticket.left, buffer._queue.places.admitted) == (1, 1)


@pytest.mark.parametrize("make", [lambda: episodes(1), lambda: extras(1)])
def test_a_save_without_memory_leaves_the_older_checkpoint(tmp_path: pathlib.Path, make: Any) -> None:
    buffer = make()
    buffer.save(tmp_path / "saved")
    buffer.clear()
    fail_often(
        lambda: buffer.save(tmp_path / "saved"),
        lambda: ({*os.listdir(tmp_path)} - {".saved.lock"}, contents_of(tmp_path / "saved")),
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
            assert (ticket.left, buffer._queue.places.reserved) == (1, 1)
        assert (await buffer.admit()).left == 1

    asyncio.run(main())


# Warnings that are errors.


def add_steps(buffer: Any) -> None:
    for t in range(300):
        buffer.add(float(t % 7), 0, 1.0, float(t % 5))


def add_joint_steps(buffer: Any) -> None:
    for t in range(300):
        of_agents = dict.fromkeys(buffer.agents, float(t % 7))
        buffer.add(of_agents, dict.fromkeys(of_agents, 0), of_agents, dict.fromkeys(of_agents, float(t % 5)))


@pytest.mark.parametrize(
    ("make", "add"),
    [
        (lambda: relive.PrioritizedReplayBuffer(50, seed=0), add_steps),
        (lambda: relive.RingReplayBuffer(50, sampler=RaisingHooks(), seed=0), add_steps),
        (lambda: relive.JointReplayBuffer(50, agents=["left", "right"], seed=0), add_joint_steps),
    ],
)
def test_a_call_that_raises_a_warning_is_done(make: Callable[[], Any], add: Callable[[Any], None]) -> None:
    """So it is also with a warning that is only shown."""
    warned, other, num_warned = make(), make(), 0
    with pytest.warns(errors.MisuseWarning):
        add(other)
    original = warned.add

    def add_or_warn(*arguments: Any, **options: Any) -> None:
        nonlocal num_warned
        try:
            original(*arguments, **options)
        except errors.MisuseWarning:
            num_warned += 1

    with mock.patch.object(warned, "add", add_or_warn):
        add(warned)
    assert num_warned >= 1
    assert zoo.state_of(warned) == zoo.state_of(other)
    warned.check()


# The address space of a process.

PROGRAM = """
import resource
import numpy as np
import relive

buffer = relive.RingReplayBuffer(1 << 14, relive.Schema(relive.Field(1024, "int64"), relive.Field((), "int64")), seed=0)
use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (use + (24 << 20), most))
num_failed = 0
for t in range(3_000):
    step = np.full(1024, 2 * t), t, 0.0, np.full(1024, 2 * t + 1)
    try:
        buffer.add(*step, truncated=True)
    except MemoryError:
        num_failed += 1
        assert len(buffer) == t
        buffer.check()
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        buffer.add(*step, truncated=True)
batch = buffer.read(np.arange(3_000))
assert (batch.next_observation[:, 0] == 2 * np.arange(3_000) + 1).all()
assert num_failed == 1, num_failed
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads its size from /proc")
def test_memory_may_run_out_while_final_observations_are_added() -> None:
    """P117: with a limit of the system on the address space."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
