"""A learner that comes back: versions through restarts, and calls around a recovery that happen whole or not at all."""

from collections.abc import Callable
import contextlib
import os
import pathlib
import threading
from typing import Any

import pytest

import relive
from relive import errors
from relive.agents import half_done_calls_test
from relive.episodes import helpers_test
from relive.persistence import journal as journal_lib
from relive.persistence import journal_reader

MAKERS: dict[str, Callable[..., Any]] = {
    "episodes": relive.EpisodeReplayBuffer,
    "tokens": lambda **settings: relive.TokenReplayBuffer(1000, **settings),
}
BOTH = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def loaded(buffer: Any, path: pathlib.Path) -> Any:
    buffer.save(path / "saved")
    return type(buffer).load(path / "saved")


def restored(buffer: Any, path: pathlib.Path) -> Any:
    buffer.load_state_dict(buffer.state_dict())
    return buffer


def recovered(buffer: Any, path: pathlib.Path) -> Any:
    with relive.Journal(path / "journal") as journal:
        buffer.attach(journal)
    return relive.recover(path / "journal")


RESTARTS = pytest.mark.parametrize("restart", [loaded, restored, recovered])


def live(buffer: Any, version: int | None = 0, group_id: str | None = None) -> str:
    """Store an episode of that version, and return its id."""
    ticket = buffer.admit_nowait()
    if isinstance(buffer, relive.TokenReplayBuffer):
        step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-0.5], policy_version=version or 0)
        buffer.add_episode([step], agent_id="a", group_id=group_id, ticket=ticket)
        return helpers_test.ids(helpers_test.stored(buffer))[-1]
    return helpers_test.live(buffer, policy_version=version, group_id=group_id, ticket=ticket)


def num_places(buffer: Any) -> int:
    """Return how many episodes may start now."""
    with contextlib.ExitStack() as stack:
        for number in range(100):
            try:
                stack.enter_context(buffer.admit_nowait())
            except relive.NotReadyError:
                return number
    raise AssertionError


def versions(episodes: Any) -> list[int]:
    return [episode.policy_version for episode in episodes]


# Restarts.


@RESTARTS
@BOTH
@pytest.mark.parametrize(("saved", "then"), [(0, 5), (10, 17), (3, 3)])
def test_the_first_version_after_a_restart_counts_places_anew(
    saved: int, then: int, make: Any, restart: Any, tmp_path: pathlib.Path
) -> None:
    """P132: one place and not six, whatever was delivered before."""
    buffer = make(admission=relive.Admission(0, 1))
    buffer.set_policy_version(saved)
    lived = live(buffer, saved)
    buffer.next_episodes_nowait(1)
    buffer = restart(buffer, tmp_path)
    buffer.set_policy_version(then)
    assert num_places(buffer) == 1
    assert buffer.reject([lived]) == 1
    assert num_places(buffer) == 1  # It held none.
    buffer.set_policy_version(then + 1)
    assert num_places(buffer) == 2
    buffer.check()


@RESTARTS
@BOTH
def test_a_learner_resumes_from_older_weights(make: Any, restart: Any, tmp_path: pathlib.Path) -> None:
    """P133: what was trained into the lost weights comes again, in order, and no lag is below 0."""
    buffer = make(redeliver=True)
    for version in range(1, 4):
        buffer.set_policy_version(version)
        live(buffer, version)
        assert versions(buffer.next_episodes_nowait(1)) == [version]
    buffer.ack(2)
    rule = "version must be at least 3, the previous one, got 2: resume_policy_version goes back$"
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.set_policy_version(2)
    buffer = restart(buffer, tmp_path)
    buffer.resume_policy_version(2)
    assert (buffer.policy_version, versions(buffer.next_episodes_nowait(2, max_lag=0))) == (2, [2, 3])
    buffer.resume_policy_version(2)  # Without a restart, too.
    assert versions(buffer.next_episodes_nowait(2)) == [2, 3]
    buffer.resume_policy_version(3)  # They were delivered at 2.
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(1)
    buffer.check()


def test_a_version_to_resume_from_is_a_count() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int]()
    with pytest.raises(errors.ArgumentError, match="^version must be at least 0, got -1$"):
        buffer.resume_policy_version(-1)
    buffer.resume_policy_version(7)  # Nothing was ever said or delivered.
    assert (buffer.policy_version, buffer._queue.known) == (7, None)


def test_a_record_tells_what_becomes_of_what_comes_back(tmp_path: pathlib.Path) -> None:
    """Not the settings of the buffer that replays it."""
    buffer: Any = relive.EpisodeReplayBuffer(redeliver=True)
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        buffer.set_policy_version(0)
        live(buffer)
        for _ in range(2):
            buffer.next_episodes_nowait(1)
            buffer.resume_policy_version(0)
    other: Any = relive.recover(tmp_path / "journal", redeliver=False)
    assert (len(other.next_episodes_nowait(1)), other.get_drops()) == (1, {})


def test_what_nobody_could_acknowledge_does_not_come_again() -> None:
    buffer: Any = relive.EpisodeReplayBuffer()
    live(buffer)
    buffer.next_episodes_nowait(1)
    with pytest.raises(relive.NotReadyError):
        relive.EpisodeReplayBuffer.from_state(buffer.state_dict(), redeliver=True).next_episodes_nowait(1)


# All or nothing.


def used(path: pathlib.Path, make: Any) -> Any:
    """Return a recovered buffer, of which episodes wait again and a group was given up."""
    buffer = make(redeliver=True, groups=relive.Groups(2))
    with relive.Journal(path, segment_bytes=1500) as journal:
        buffer.attach(journal)
        buffer.set_policy_version(1)
        for group in (None, None, None, "g", "h"):
            live(buffer, 1, group)
        buffer.next_episodes_nowait(2)
    return relive.recover(path)


@pytest.mark.parametrize("fails", [(os, "write"), (journal_lib, "sync_file")], ids=["write", "sync"])
@BOTH
def test_an_attach_that_fails_leaves_all_as_it_was(
    make: Any, fails: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P126: the next try attaches and writes, and the journal is recovered with all that follows."""
    buffer, path = used(tmp_path / "journal", make), tmp_path / "journal"
    buffer.abort_open_episodes()

    def fail(*_: Any) -> Any:
        raise OSError("full")

    with relive.Journal(path) as journal:
        before = half_done_calls_test.contents_of(path)
        with monkeypatch.context() as patch:
            patch.setattr(fails[0], fails[1], fail)
            for _ in range(2):
                with pytest.raises(errors.CheckpointError, match="full"):
                    buffer.attach(journal)
        assert (half_done_calls_test.contents_of(path), buffer._journal) == (before, None)
    with relive.Journal(path) as journal:
        buffer.attach(journal)
        taken = versions(buffer.next_episodes_nowait(3))
        kinds = [record.kind for record in journal_reader.records(path)][-2:]
    assert (taken, kinds) == ([1, 1, 1], [journal_reader.TOGETHER, 11])
    again: Any = relive.recover(path)
    again.check()
    assert len(again.next_episodes_nowait(3)) == 3
    assert again.get_drops() == buffer.get_drops()


def refuse_all(buffer: Any) -> None:
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(9, accept=lambda episode: False)


REQUESTS: dict[str, Callable[[Any], Any]] = {
    "next_episodes": lambda buffer: buffer.next_episodes_nowait(1),
    "next_groups": lambda buffer: buffer.next_groups_nowait(1),
    "refused": lambda buffer: refuse_all(buffer),
    "reject": lambda buffer: buffer.reject([each.episode_id for each in buffer._store]),
    "ack": lambda buffer: buffer.ack(1),
    "set_policy_version": lambda buffer: buffer.set_policy_version(1),
    "resume_policy_version": lambda buffer: buffer.resume_policy_version(1),
    "put_back": lambda buffer: buffer._queue.put_back([[next(iter(buffer._store)).episode_id]]),
}


@pytest.mark.parametrize("name", REQUESTS)
@BOTH
def test_a_buffer_that_delivered_since_recovery_is_not_attached(make: Any, name: str, tmp_path: pathlib.Path) -> None:
    """P129."""
    buffer = used(tmp_path / "journal", lambda **settings: make(**settings | {"groups": relive.Groups(1)}))
    REQUESTS[name](buffer)
    with relive.Journal(tmp_path / "journal") as journal:
        before = journal.num_records
        with pytest.raises(errors.ArgumentError, match="^the buffer was written to since it was recovered"):
            buffer.attach(journal)
        assert journal.num_records == before


@BOTH
def test_a_delivery_is_put_back_whole_or_not_at_all(
    make: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P127: the disk fills up after the first write; nobody gets an episode that another holds."""
    buffer, write = make(groups=relive.Groups(1)), os.write
    ids = [[live(buffer, group_id=name)] for name in "xyz"]
    with relive.Journal(tmp_path / "journal", fsync="never") as journal:
        buffer.attach(journal)
        buffer.next_groups_nowait(3)
        for most in (0, 1):
            left = [most]

            def fill_up(*arguments: Any, left: list[int] = left) -> int:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError("full")
                return write(*arguments)

            with monkeypatch.context() as patch:
                patch.setattr(os, "write", fill_up)
                with contextlib.suppress(errors.CheckpointError):
                    buffer._queue.put_back(ids)
            if not most:
                with pytest.raises(relive.NotReadyError):
                    buffer.next_groups_nowait(1)
        buffer.detach()
    for again in (buffer, relive.recover(tmp_path / "journal")):
        assert [[each.episode_id for each in group] for group in again.next_groups_nowait(3)] == ids


def test_a_sync_beside_grouped_records_writes_each_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P131: a thread syncs as soon as the group is complete."""
    with relive.Journal(tmp_path / "journal", fsync="never") as journal:
        journal._begin(lambda: b"base")
        threads = list[threading.Thread]()

        def sync() -> None:
            threads.append(threading.Thread(target=journal.sync))
            threads[-1].start()
            threads[-1].join(0.01)

        def after_sync(call: Callable[..., Any]) -> Callable[..., Any]:
            def made(*arguments: Any) -> Any:
                sync()
                return call(*arguments)

            return made

        with monkeypatch.context() as patch:
            patch.setattr(journal_reader, "packed", after_sync(journal_reader.packed))
            patch.setattr(os, "write", after_sync(os.write))
            for number in range(3):
                with journal._group(bytes):
                    journal._append(1, b"%d" % number)
        for thread in threads:
            thread.join()
        assert (len(threads), journal.num_records) == (6, 4)
    found = [record.payload for record in journal_reader.records(tmp_path / "journal")][1:]
    assert [journal_reader.unpacked(payload)[1] for payload in found] == [[(1, b"%d" % number)] for number in range(3)]
