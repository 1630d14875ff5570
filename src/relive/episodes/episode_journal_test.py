"""What the buffer of episodes writes to a journal; `recover_test` tests that it is read back."""

from collections.abc import Callable
import json
import os
import pathlib
import random
import shutil
from typing import Any

import pytest

import relive
from relive import errors
from relive.agents import queue_journal
from relive.common import validation
from relive.episodes import episode_journal
from relive.persistence import commands
from relive.persistence import files
from relive.persistence import journal
from relive.persistence import journal_reader
from relive.persistence import recover_test
from relive.testing import zoo

UUID = "01234567-89ab-cdef-0123-456789abcdef"
OTHER = "11234567-89ab-cdef-0123-456789abcdef"


def first_open(buffer: Any) -> str:
    episode_id: str = next(iter(buffer.get_stats().open_ages))
    return episode_id


def no_space(*_: object) -> Any:
    raise OSError(28, "No space left on device")


def filled(count: int = 3, **limits: Any) -> Any:
    buffer = relive.EpisodeReplayBuffer[Any, Any](seed=0, **limits)
    for number in range(count):
        episode_id = buffer.start_episode_nowait(f"agent {number}")
        for t in range(number):
            buffer.append_observation_action_reward_nowait(episode_id, t, "a", 1.0)
        if number % 2:
            buffer.end_episode_nowait(episode_id, -1)
    return buffer


def test_refused_calls_on_episodes_are_not_written(tmp_path: pathlib.Path) -> None:
    buffer = filled()
    (ended,) = [each.episode_id for each in recover_test.episodes_of(buffer).values() if each.status == "COMPLETED"]
    wrong: Any = "BOGUS"
    calls: list[Callable[[], Any]] = [
        lambda: buffer.start_episode_nowait(3),
        lambda: buffer.append_observation_action_reward_nowait(ended, 1, 2, 3.0),
        lambda: buffer.append_observation_action_reward_nowait(UUID, 1, 2, 3.0),
        lambda: buffer.append_observation_action_reward_nowait(first_open(buffer), 1, 2, float("nan")),
        lambda: buffer.end_episode_nowait(ended, 1),
        lambda: buffer.end_episode_nowait(UUID, 1),
        lambda: buffer.end_episode_nowait(first_open(buffer), 1, wrong),
    ]
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        for call in calls:
            with pytest.raises(errors.ArgumentError):
                call()
        buffer.close()
        with pytest.raises(errors.ClosedError, match="closed"):
            buffer.start_episode_nowait("agent")
        assert log.num_records == 1


# Codecs.


class Unknown:
    """An object that no codec can encode."""


def test_values_unknown_to_the_codec_are_refused(tmp_path: pathlib.Path) -> None:
    buffer = filled()
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        before = zoo.plain(buffer.state_dict())
        calls: list[Callable[[], Any]] = [
            lambda: buffer.append_observation_action_reward_nowait(first_open(buffer), Unknown(), 0, 0.0),
            lambda: buffer.append_observation_action_reward_nowait(first_open(buffer), 0, Unknown(), 0.0),
            lambda: buffer.end_episode_nowait(first_open(buffer), [Unknown()]),
        ]
        for call in calls:
            with pytest.raises(errors.ArgumentTypeError, match="Unknown"):
                call()
        assert zoo.plain(buffer.state_dict()) == before
        assert log.num_records == 1
    buffer.detach()
    buffer.append_observation_action_reward_nowait(first_open(buffer), Unknown(), 0, 0.0)
    with recover_test.opened(tmp_path / "other") as log:
        with pytest.raises(errors.CheckpointError, match="observation 0 of episode .* cannot be saved: .*Unknown"):
            buffer.attach(log)
        assert log.num_records == 0
    assert not buffer._store.listeners


class JsonCodec:
    """A custom codec."""

    name = "json"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def decode(self, content: bytes) -> Any:
        return json.loads(content)


def test_a_custom_codec_writes_and_reads(tmp_path: pathlib.Path) -> None:
    buffer = filled()
    with recover_test.opened(tmp_path / "log", 200) as log:
        buffer.attach(log, codec=JsonCodec())
        for t in range(30):
            buffer.append_observation_action_reward_nowait(first_open(buffer), {"t": t}, [t], 1.0)
    with pytest.raises(errors.CheckpointError, match="codec must be the one of the checkpoint, json, got plain-1$"):
        relive.recover(tmp_path / "log")
    recovered: Any = relive.recover(tmp_path / "log", codec=JsonCodec())
    assert recover_test.content(recovered) == recover_test.content(buffer)
    with recover_test.opened(tmp_path / "log") as log:
        with pytest.raises(errors.ArgumentError, match="^codec must be the one of the journal, json, got plain-1$"):
            recovered.attach(log)
        recovered.attach(log, codec=JsonCodec())
    wrong: Any = 3
    with pytest.raises(errors.ArgumentTypeError, match="^codec must have a name"):
        relive.recover(tmp_path / "log", codec=wrong)


class FailingCodec(JsonCodec):
    """It cannot decode its own bytes."""

    def decode(self, content: bytes) -> Any:
        raise ZeroDivisionError("no")


def test_a_codec_that_fails_to_decode_is_an_error(tmp_path: pathlib.Path) -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any]()
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log, codec=JsonCodec())
        buffer.append_observation_action_reward_nowait(buffer.start_episode_nowait("a"), 1, 2, 3.0)
    with pytest.raises(
        errors.CheckpointError, match="log: record 2 holds a value that cannot be decoded: ZeroDivisionError: no$"
    ):
        relive.recover(tmp_path / "log", codec=FailingCodec())


# Segments and evictions.


class Snapshots:
    """Copies a journal after each of its last records, as a process killed there would leave it."""

    def __init__(self, log: relive.Journal, place: pathlib.Path, patch: pytest.MonkeyPatch) -> None:
        self._log, self._place, self._append = log, place, log._append
        self._copies: list[pathlib.Path] = []
        self.is_on = False
        patch.setattr(log, "_append", self.append)

    def append(self, kind: int, payload: bytes) -> int:
        number = self._append(kind, payload)
        if self.is_on:
            self._copies.append(self._place / str(number))
            shutil.copytree(self._log.path, self._copies[-1])
        return number

    def check(self, buffer: Any) -> None:
        """The buffer recovered after each record of one call; before the last, with some episodes evicted."""
        for copy in self._copies:
            recovered: Any = relive.recover(copy)
            recovered.check()
            if copy is self._copies[-1]:
                assert recover_test.content(recovered) == recover_test.content(buffer)
            assert recover_test.episodes_of(recovered).keys() >= recover_test.episodes_of(buffer).keys()
        self._copies.clear()


def step_alone(buffer: Any, episode_id: str, t: int) -> None:
    versions = {} if t < 3 else {"policy_version": 5 + t // 4}
    buffer.append_observation_action_reward_nowait(episode_id, ["observation", t], t, float(t), **versions)


def test_an_idle_episode_does_not_keep_old_segments(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P79: whenever the process is killed, the recovered buffer equals the one that there was."""
    for module, name in ((files, "fsync_file"), (files, "fsync_directory"), (journal, "sync_file")):
        monkeypatch.setattr(module, name, lambda _: None)  # There are thousands.
    buffer = relive.EpisodeReplayBuffer[Any, Any](max_episodes=50)
    with recover_test.opened(tmp_path / "log", 2000) as log:
        snapshots = Snapshots(log, tmp_path, monkeypatch)
        buffer.attach(log)
        idle = [buffer.start_episode_nowait("idle"), buffer.start_episode_nowait("grouped", group_id="group")]
        for t in range(10):
            for each in idle:
                step_alone(buffer, each, t)
        sizes = []
        for number in range(500):
            episode_id = buffer.start_episode_nowait(f"agent {number}", policy_version=number)
            snapshots.check(buffer)
            for t in range(2):
                buffer.append_observation_action_reward_nowait(episode_id, t, number, 0.0)
                snapshots.check(buffer)
            buffer.end_episode_nowait(episode_id, None)
            snapshots.check(buffer)
            snapshots.is_on = number >= 485
            if number % 50 == 49:
                sizes.append(size_of(tmp_path / "log"))
        step_alone(buffer, idle[0], 10)
        # What the records of the episodes take up that are stored.
        with recover_test.opened(tmp_path / "fresh") as fresh:
            other = relive.EpisodeReplayBuffer[Any, Any]()
            other.attach(fresh)
            start = size_of(tmp_path / "fresh")
            for episode in recover_test.episodes_of(buffer).values():
                other._journal.start(episode)
                for step in zip(episode.observations, episode.actions, episode.rewards, strict=False):
                    other._journal.append(episode, *step, None)
            stored = size_of(tmp_path / "fresh") - start
    assert max(sizes) < 4 * stored
    recovered: Any = relive.recover(tmp_path / "log")
    assert recover_test.content(recovered) == recover_test.content(buffer)
    # It goes on, and the segments that it found go too.
    with recover_test.opened(tmp_path / "log", 2000) as log:
        recovered.attach(log)
        for _ in range(200):
            recovered.end_episode_nowait(recovered.start_episode_nowait("agent"), None)
        assert size_of(tmp_path / "log") < 4 * stored
        for each in idle:
            step_alone(recovered, each, 11)
            recovered.end_episode_nowait(each, None)
    assert recover_test.content(relive.recover(tmp_path / "log")) == recover_test.content(recovered)


def size_of(path: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def test_carried_episodes_are_recovered_once(tmp_path: pathlib.Path) -> None:
    """Also to a checkpoint that was saved just before the segment began."""
    buffer = filled(2)
    with recover_test.opened(tmp_path / "log", 1) as log:
        buffer.attach(log)
        for t in range(100):
            before = len(recover_test.segments(tmp_path / "log"))
            buffer.save(tmp_path / "saved")
            step_alone(buffer, first_open(buffer), t)
            if len(recover_test.segments(tmp_path / "log")) > before > 1:
                break
    kinds = {record.kind for record in journal_reader.records(tmp_path / "log")}
    assert kinds >= {*episode_journal.CARRIED.values()}
    assert recover_test.content(relive.recover(tmp_path / "log")) == recover_test.content(buffer)
    recovered = relive.recover(tmp_path / "log", checkpoint=tmp_path / "saved")
    assert recover_test.content(recovered) == recover_test.content(buffer)


def test_evictions_that_fail_to_be_written_are_written_later(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled(1, max_episodes=1)
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        buffer.end_episode_nowait(first_open(buffer), None)
        append = log._append
        with monkeypatch.context() as patch:

            def appending(kind: int, payload: bytes) -> int:
                if kind == episode_journal.EVICT:
                    raise errors.CheckpointError("no space")
                return append(kind, payload)

            patch.setattr(log, "_append", appending)
            buffer.start_episode_nowait("agent")
        assert buffer.get_stats().evicted_episodes == 1
        unsettled: Any = len(list(journal_reader.records(tmp_path / "log")))
        buffer.append_observation_action_reward_nowait(first_open(buffer), [1], 2, 3.0)
        assert len(list(journal_reader.records(tmp_path / "log"))) == unsettled + 2
    assert recover_test.content(relive.recover(tmp_path / "log")) == recover_test.content(buffer)


def test_unwritten_evictions_happen_again(tmp_path: pathlib.Path) -> None:
    buffer = filled(1, max_episodes=1)
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        buffer.end_episode_nowait(first_open(buffer), None)
        buffer.start_episode_nowait("agent")
        place = tmp_path / "log" / recover_test.segments(tmp_path / "log")[0]
    os.truncate(place, place.stat().st_size - 1)
    recovered: Any = relive.recover(tmp_path / "log")
    assert recovered.get_stats().total_episodes == 2
    recovered.start_episode_nowait("agent")
    assert recovered.get_stats().total_episodes == 2
    assert recovered.get_stats().evicted_episodes == 1
    recovered.check()


def test_segments_left_by_a_clear_are_deleted_later(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled(3)
    with recover_test.opened(tmp_path / "log", 300) as log:
        buffer.attach(log)
        zoo.work(buffer, random.Random(1), 100)
        count = len(recover_test.segments(tmp_path / "log"))
        assert count > 2
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", no_space)
            buffer.clear()
        assert len(recover_test.segments(tmp_path / "log")) >= count
        assert len(buffer) == 0
        buffer.clear()
        assert len(recover_test.segments(tmp_path / "log")) == 1
    assert recover_test.content(relive.recover(tmp_path / "log")) == recover_test.content(buffer)


def test_a_detached_journal_gets_no_records(tmp_path: pathlib.Path) -> None:
    buffer = filled(2, max_episodes=2)
    buffer.detach()
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        buffer.detach()
        for _ in range(3):
            buffer.start_episode_nowait("agent")
        assert log.num_records == 1


# Invalid records.


def forged(path: pathlib.Path, *records: tuple[int, bytes]) -> Any:
    with recover_test.opened(path) as log:
        relive.EpisodeReplayBuffer[Any, Any]().attach(log)
        for kind, payload in records:
            log._append(kind, payload)
    return relive.recover(path)


def started(
    episode_id: Any = UUID,
    agent: Any = "agent",
    group: Any = None,
    start_time: Any = 0.0,
    version: Any = None,
    known: Any = b"",
) -> tuple[int, bytes]:
    return episode_journal.START, commands.encoded(episode_id, agent, group, version, known, start_time)


def appended(
    reward: Any = 0.0, observation: Any = b"N", action: Any = b"N", version: Any = None, episode_id: Any = UUID
) -> tuple[int, bytes]:
    return episode_journal.APPEND, commands.encoded(episode_id, observation, action, reward, version)


def ended(status: Any = "COMPLETED", value: Any = b"N", episode_id: Any = UUID) -> tuple[int, bytes]:
    return episode_journal.END, commands.encoded(episode_id, value, status)


def evicted(episodes: Any = 0, transitions: Any = 0, *ids: Any) -> tuple[int, bytes]:
    return episode_journal.EVICT, commands.encoded(episodes, transitions, list(ids))


def carried(record: tuple[int, bytes]) -> tuple[int, bytes]:
    return episode_journal.CARRIED[record[0]], record[1]


def handed(*lists: Any) -> tuple[int, bytes]:
    return queue_journal.DELIVER, commands.encoded(True, *lists)


ABORTED = episode_journal.ABORT, commands.encoded(UUID)
NOT_A_UUID = UUID[:-1] + "X"
FORGED: dict[str, list[tuple[int, bytes]]] = {
    "is of kind 10 with 1 bytes, which is not valid here": [(10, b"N")],
    r"calls clear, which cannot be with \(1,\)": [(episode_journal.CLEAR, commands.encoded(1))],
    r"calls clear, which cannot be with \[\]": [(episode_journal.CLEAR, relive.PlainCodec().encode([]))],
    "calls deliver, which cannot be with 3": [(queue_journal.DELIVER, relive.PlainCodec().encode(3))],
    r"calls deliver, which cannot be with \[3\]": [handed([3], [], "")],
    "calls deliver, which cannot be with None": [handed([], [], None)],
    "drops episodes without a reason, or has a reason and drops none": [handed([], [UUID], "")],
    "drops episodes without a reason, or has a reason and drops none ": [handed([], [], "stale")],
    f"hands out episode {UUID}, which cannot be": [started(), handed([UUID], [], "")],
    f"hands out episode {UUID}, which cannot be ": [started(), appended(), ended(), *[handed([UUID], [], "")] * 2],
    f"hands out episode {UUID}, which cannot be  ": [
        *[started(), appended(), ended()],
        (queue_journal.REJECT, commands.encoded(True, [UUID], "mine")),
        handed([UUID], [], ""),
    ],
    r"calls evict, which cannot be with \(0, 1\)": [(episode_journal.EVICT, commands.encoded(0, 1))],
    "calls evict, which cannot be with -1": [evicted(-1)],
    f"calls evict, which cannot be with {2**62 + 1}": [evicted(0, 2**62 + 1)],
    r"calls evict, which cannot be with \['x'\]": [evicted(1, 2, "x")],
    r"calls evict, which cannot be with \(\)": [(episode_journal.EVICT, commands.encoded(1, 2, ()))],
    "calls start_episode, which cannot be with nan": [started(start_time=float("nan"))],
    "calls start_episode, which cannot be with 0": [started(start_time=0)],
    "calls start_episode, which cannot be with 3": [started(agent=3)],
    "calls start_episode, which cannot be with 4": [started(group=4)],
    "calls start_episode, which cannot be with -1": [started(version=-1)],
    "calls start_episode, which cannot be with True": [started(version=True)],
    f"calls start_episode, which cannot be with {2**62 + 1}": [started(version=2**62 + 1)],
    "calls start_episode, which cannot be with '.*X'": [started(NOT_A_UUID)],
    r"calls start_episode, which cannot be with \(.*, 'a'\)": [(episode_journal.START, commands.encoded(UUID, "a"))],
    f"starts episode {UUID}, which is stored": [started(), started()],
    f"starts episode {UUID}, which is stored ": [started(), ended(), started()],
    f"calls abort_episode, which cannot be with .*{UUID[-9:]}x'": [
        (episode_journal.ABORT, commands.encoded(UUID + "x"))
    ],
    "calls abort_episode, which cannot be with b'.*'": [(episode_journal.ABORT, commands.encoded(UUID.encode()))],
    "plain-1 content ends in the middle of a value": [(episode_journal.START, started()[1][:-1])],
    "plain-1 content ends in the middle of a value ": [(episode_journal.START, b"")],
    "holds a value that cannot be decoded: plain-1 content ends in the middle of a value": [
        started(),
        appended(observation=b"i"),
    ],
    "holds a value that cannot be decoded: plain-1 content has bytes after its value, at byte 1": [
        started(),
        appended(action=b"NN"),
    ],
    "holds a value that cannot be decoded: plain-1 content has no value of tag 255, at byte 0": [
        started(),
        ended(value=b"\xff"),
    ],
    "calls end_episode, which cannot be with 'IN_PROGRESS'": [started(), ended("IN_PROGRESS")],
    "calls end_episode, which cannot be with 1": [started(), ended(1)],
    "calls end_episode, which cannot be with None": [started(), ended(value=None)],
    "calls append_step, which cannot be with inf": [started(), appended(reward=float("inf"))],
    "calls append_step, which cannot be with 1": [started(), appended(reward=1)],
    "calls append_step, which cannot be with 'N'": [started(), appended(observation="N")],
    "calls append_step, which cannot be with None": [started(), appended(action=None)],
    "calls append_step, which cannot be with -2": [started(), appended(version=-2)],
    "calls append_step, which cannot be with 'x'": [started(), appended(episode_id="x")],
    "calls carry_start, which cannot be with 3": [carried(started(agent=3))],
    "calls start_episode, which cannot be with None": [started(known=None)],
    "metadata cannot be None": [started(known=b"N")],
    "calls carry_start, which cannot be with 'x'": [carried(started("x"))],
    "calls carry_step, which cannot be with nan": [carried(started()), carried(appended(reward=float("nan")))],
    f"starts episode {UUID}, which is stored  ": [carried(started()), started()],
}


@pytest.mark.parametrize("rule", FORGED)
def test_forged_records_of_episodes_are_refused(rule: str, tmp_path: pathlib.Path) -> None:
    records = FORGED[rule]
    with pytest.raises(errors.CheckpointError, match=f"log: record {len(records)} {rule.rstrip()}$"):
        forged(tmp_path / "log", *records)


def test_valid_records_of_episodes_are_taken(tmp_path: pathlib.Path) -> None:
    buffer = forged(tmp_path / "log", started(), appended(), appended(), ended("TRUNCATED"), started(OTHER))
    stats = buffer.get_stats()
    assert (len(buffer), stats.truncated, stats.in_progress, stats.appended) == (2, 1, 1, 2)
    past = [appended(episode_id=OTHER)] * 3
    again = map(carried, [appended(), started(), appended(), started(), appended()])
    stats = forged(tmp_path / "carried", *past, *again).get_stats()
    assert (stats.waiting_steps, stats.in_progress, stats.appended) == (1, 1, 3)
    buffer = forged(tmp_path / "evicted", started(), ended(), evicted(validation.LARGEST, 0, UUID))
    assert (buffer.get_stats().total_episodes, buffer.get_stats().evicted_episodes) == (0, validation.LARGEST)


def test_records_of_deleted_episodes_are_skipped(tmp_path: pathlib.Path) -> None:
    records = appended(), appended(), ended(), ABORTED, evicted(1, 2, UUID)
    buffer = forged(tmp_path / "log", *records)
    stats = buffer.get_stats()
    assert (stats.total_episodes, stats.appended, stats.evicted_episodes, stats.evicted_transitions) == (0, 2, 1, 2)
    buffer.check()


@pytest.mark.parametrize(
    "records", [[evicted(0, 1)], [carried(started()), carried(appended())]], ids=["evicted", "carried"]
)
def test_more_steps_than_were_appended_are_refused(records: list[tuple[int, bytes]], tmp_path: pathlib.Path) -> None:
    """Their buffer could be saved, but not loaded."""
    with pytest.raises(
        errors.CheckpointError,
        match="log counts 0 steps as appended, fewer than the 1 that are stored, evicted or aborted$",
    ):
        forged(tmp_path / "log", *records)


async def test_writes_without_sync_are_synced_by_the_policy(tmp_path: pathlib.Path) -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any]()
    episode = buffer._store.new_episode("agent")
    with relive.Journal(tmp_path / "log", fsync=relive.EveryRecords(3)) as log:
        buffer.attach(log)
        writes: list[Callable[[], None]] = [
            lambda: buffer._journal.start(episode),
            lambda: buffer._journal.append(episode, 0, 0, 0.0, None),
            lambda: buffer._journal.end(episode, 1, "COMPLETED"),
        ]
        found = []
        for write in writes:
            with buffer._journal.delayed_syncs():
                write()
            found.append(log.num_synced)
            await buffer._journal.synced()
            found.append(log.num_synced)
    assert found == [1, 1, 1, 1, 1, 4]
    assert len(relive.recover(tmp_path / "log")) == 1


def test_deliveries_of_deleted_episodes_are_skipped(tmp_path: pathlib.Path) -> None:
    buffer = forged(tmp_path / "log", started(), appended(), ended(), handed([UUID, OTHER], [], ""))
    buffer.check()
    assert buffer.get_training_bias().trained.episodes == 1


def test_what_was_dropped_before_is_passed_over_without_effect(tmp_path: pathlib.Path) -> None:
    lived = [started(), appended(), ended()]
    rejected = queue_journal.REJECT, commands.encoded(True, [UUID], "mine")
    buffer = forged(tmp_path / "log", *lived, rejected, handed([], [UUID], "stale"))
    buffer.check()
    assert buffer.get_drops() == {"mine": {"agent": 1}}


def test_a_restart_that_found_no_room_is_written_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](redeliver=True)
    with relive.Journal(tmp_path / "log") as log:
        buffer.attach(log)
        episode_id = buffer.start_episode_nowait("a")
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0)
        buffer.end_episode_nowait(episode_id, 1)
        assert len(buffer.next_episodes_nowait(1)) == 1
    recovered: Any = relive.recover(tmp_path / "log")
    with relive.Journal(tmp_path / "log") as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", no_space)
            with pytest.raises(relive.CheckpointError, match="No space left on device$"):
                recovered.attach(log)
        assert [episode.episode_id for episode in recovered.next_episodes_nowait(1)] == [episode_id]
    again: Any = relive.recover(tmp_path / "log")
    again.check()
    assert [episode.episode_id for episode in again.next_episodes_nowait(1)] == [episode_id]
