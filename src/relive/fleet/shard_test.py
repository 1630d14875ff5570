"""A shard: what it stores and once, leases, what survives a restart of its process, and what is counted of the rest."""

import asyncio
from collections.abc import Callable
import os
import pathlib
import platform
import time
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import adapter
from relive.fleet import adapter_test
from relive.fleet import files
from relive.fleet import local_test
from relive.fleet import replies
from relive.fleet import shard as shard_lib
from relive.persistence import checkpoint
from relive.testing import zoo

MEMBERS = replies.Members(version=1, active=(0,))
W, V, U = b"w" * 16, b"v" * 16, b"u" * 16
OF_ONE = {"n": 1, "gamma": 1.0}
PATIENCE = 60.0
"""Seconds after which a test has hung."""


class Crash(BaseException):
    """As if the process had died just here."""


def request(counts: list[int], options: dict[str, Any], policy: replies.Policy | None = None) -> adapter.Request:
    return adapter.Request(counts=counts, options=options, ticks=0, begun=0, policy=policy)


def ring() -> Any:
    return relive.RingReplayBuffer(1000, streams=8, seed=0)


def prioritized() -> Any:
    return relive.PrioritizedReplayBuffer(1000, alpha=1.0, epsilon=0.0, streams=8, seed=0)


def episodes() -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](seed=0)


def whole(start: int, rows: int) -> Any:
    return adapter_test.columns(start, rows, "TERMINATED", is_start=True)


def wrong(rows: int) -> Any:
    """Return a chunk of which the first step alone is taken."""
    return adapter_test.steps_of(0, 0, is_start=True, steps=((0, 0, 1.0, 5), *[(0, 0, 1.0, 4)] * (rows - 1)))


def fleet_of(make: Callable[[], Any], directory: pathlib.Path | None = None, **more: Any) -> local_test.LocalFleet:
    return local_test.LocalFleet(make, 1, directory=directory, **more)


def born_again(fleet: local_test.LocalFleet) -> shard_lib.Shard:
    fleet.kill(0)
    fleet.start(0)
    return fleet.shard(0)


def put(shard: shard_lib.Shard, writer: bytes, number: int, *batch: Any, **more: Any) -> Any:
    return shard.insert(adapter_test.batch_of(writer, number, *batch, **more))


def crash_at(shard: Any, chunk: int, writer: bytes, number: int, *batch: Any) -> None:
    """Store a batch, and dies before that chunk."""
    insert, left = shard._adapter.insert, [chunk]

    def until_the_crash(*arguments: Any) -> None:
        if not left[0]:
            raise Crash
        left[0] -= 1
        insert(*arguments)

    shard._adapter.insert = until_the_crash
    with pytest.raises(Crash):
        put(shard, writer, number, *batch)


def observed(buffer: Any) -> list[int]:
    buffer.check()
    found: list[int] = buffer.read(buffer.eligible_keys()).observation.tolist()
    return found


# Batches.


async def test_a_repeated_batch_is_stored_once_with_the_same_reply() -> None:
    fleet = fleet_of(episodes)
    shard = fleet.shard(0)
    first = put(shard, W, 0, wrong(3))
    again = put(shard, W, 0, wrong(3))
    assert (first.refused, first.error) == (again.refused, again.error)
    assert (first.refused, str(first.error)) == (2, "policy_version must be at least 5, that of the step before, got 4")
    stats = shard.stats()
    assert (stats.inserted, stats.refused, stats.repeated) == (1, 2, 1)


async def test_numbers_that_were_seen_are_known_not_the_newest() -> None:
    fleet = fleet_of(ring)
    shard = fleet.shard(0)
    for number in (3, 1, 2, 1, 3, 0, 0):
        assert put(shard, W, number, whole(10 * number, 2))[:3] == ("STORED", 0, None)
    assert observed(fleet.buffer(0)) == [30, 31, 10, 11, 20, 21, 0, 1]
    assert shard.stats().repeated == 3
    # What the writer does not wait for any more is not stored either.
    receipts = [put(shard, W, 5, whole(50, 1), oldest=5), put(shard, W, 4, whole(40, 1))]
    assert [each.outcome for each in receipts] == ["STORED"] * 2
    assert shard.stats().inserted == 9
    assert put(shard, V, 4, whole(40, 1)).progress.inserted == 10


async def test_a_writer_that_does_not_stay_leaves_with_its_batch() -> None:
    fleet = fleet_of(ring)
    shard = fleet.shard(0)
    put(shard, W, 0, adapter_test.columns(0, 2, is_start=True))
    put(shard, V, 0, adapter_test.columns(0, 2, is_start=True))
    for _ in range(2):
        put(shard, W, 1, adapter_test.columns(2, 2), stays=False)
        stats = shard.stats()
        assert (stats.aborted, stats.writers, fleet.buffer(0).get_stats().open_episodes) == (1, 1, 1)


async def test_a_refused_chunk_is_counted_and_the_others_are_stored() -> None:
    fleet = fleet_of(episodes)
    shard = fleet.shard(0)
    good = adapter_test.steps_of(0, 3, is_start=True, episode=7, final=(3, "COMPLETED"))
    odd = adapter_test.steps_of(0, 2, is_start=True, episode=8, agent_id=3)
    ack = put(shard, W, 0, wrong(3), good, odd)
    assert (ack.refused, ack.progress.inserted) == (2 + 2, 1 + 3)
    assert "policy_version must be at least 5" in str(ack.error)
    assert shard.stats().refused == 4
    # What is no error of this package does not take the others with it either.
    ack = put(shard, W, 1, adapter_test.steps_of(0, 0, episode=9, is_start=True, steps=((1,),)), good)
    assert isinstance(ack.error, ValueError)
    assert (ack.refused, ack.progress.inserted) == (1, 7)


# Crashes.


@pytest.mark.parametrize("crash", [0, 1, 2])
async def test_a_batch_is_there_whole_or_not_at_all_after_a_crash(crash: int, tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, tmp_path)
    put(fleet.shard(0), W, 0, whole(0, 4))
    put(fleet.shard(0), V, 0, whole(50, 4))
    crash_at(fleet.shard(0), crash, W, 1, whole(10, 2), whole(20, 3), whole(30, 1))
    before = [*range(4), *range(50, 54)]
    for number in range(1, 3):
        shard = born_again(fleet)
        assert shard.stats().recovered == len(before)
        for writer, known in ((W, 0), (V, 0), (W, number)):
            put(shard, writer, known, whole(100 * number, 6))
        before += range(100 * number, 100 * number + 6)
        assert observed(fleet.buffer(0)) == before


async def test_steps_refused_before_a_crash_stay_refused(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(episodes, tmp_path)
    first = put(fleet.shard(0), W, 0, wrong(4), adapter_test.steps_of(0, 2, is_start=True, episode=1))
    again = put(born_again(fleet), W, 0, wrong(4))
    assert (first.refused, again.refused, again.error) == (3, 3, None)


async def test_a_writer_that_did_not_notice_a_crash_goes_on(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, tmp_path)
    put(fleet.shard(0), W, 0, adapter_test.columns(0, 2, is_start=True))
    shard = born_again(fleet)
    assert shard.stats().aborted == 1
    ack = put(shard, W, 1, adapter_test.columns(2, 2, "TERMINATED"))
    assert ack.progress.inserted == 4
    assert observed(fleet.buffer(0)) == [0, 1, 2, 3]
    assert fleet.buffer(0).get_stats().truncated_episodes == 1


# Leases.


async def test_the_episode_of_a_silent_writer_is_aborted() -> None:
    fleet = fleet_of(episodes, lease=10.0)
    shard = fleet.shard(0)
    for writer in (W, V):
        put(shard, writer, 0, adapter_test.steps_of(0, 3, is_start=True))
    for _ in range(4):
        await asyncio.sleep(5.0)
        shard.renew(V)
    progress = shard.renew(V)
    assert (progress.inserted, progress.rows) == (6, 4)
    assert [episode.status for episode in local_test.episodes_in(fleet.buffer(0))] == ["ABORTED", "IN_PROGRESS"]
    stats = shard.stats()
    assert (stats.expired_leases, stats.aborted, stats.writers, stats.size) == (1, 1, 1, 4)
    shard.leave(V)
    assert [episode.status for episode in local_test.episodes_in(fleet.buffer(0))] == ["ABORTED", "ABORTED"]
    stats = shard.stats()
    assert (stats.expired_leases, stats.aborted, stats.writers) == (1, 2, 0)


async def test_a_slow_writer_that_comes_back_begins_another_episode() -> None:
    fleet = fleet_of(ring, lease=10.0)
    shard = fleet.shard(0)
    put(shard, W, 0, adapter_test.columns(0, 2, is_start=True))
    await asyncio.sleep(20.0)
    shard.ping()
    assert fleet.buffer(0).get_stats().truncated_episodes == 1
    ack = put(shard, W, 1, adapter_test.columns(2, 2, "TERMINATED"))
    assert ack.progress.inserted == 4
    assert fleet.buffer(0).get_stats().terminated_episodes == 1
    stats = shard.stats()
    assert (stats.writers, stats.expired_leases) == (1, 1)
    # Also after so long that nothing is known of it any more.
    await asyncio.sleep(1000.0)
    ack = put(shard, W, 2, adapter_test.columns(4, 2))
    assert ack.progress.inserted == 6


async def test_sent_batches_are_known_after_any_silence(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, tmp_path, lease=1.0, recovery=1.0)
    put(fleet.shard(0), W, 0, whole(0, 3))
    for repeated in range(1, 3):
        await asyncio.sleep(1000.0)
        put(fleet.shard(0), V, repeated, whole(10 * repeated, 3))
        put(fleet.shard(0), W, 0, whole(0, 3))
        assert fleet.shard(0).stats().repeated == 1
        born_again(fleet)
    assert fleet.shard(0).stats().inserted == 9


# What is lost.


@pytest.mark.parametrize("has_files", [True, False])
async def test_reported_steps_missing_after_a_restart_count_as_lost(has_files: bool, tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, tmp_path if has_files else None)
    first = (put(fleet.shard(0), W, 0, whole(0, 5))).progress
    shard = born_again(fleet)
    shard.report(first, MEMBERS)
    shard.report(first, MEMBERS)
    assert shard.stats().lost == (0 if has_files else 5)
    second = (put(shard, V, 0, whole(0, 2))).progress
    shard.report(second, MEMBERS)
    assert second.lost == shard.stats().lost == (0 if has_files else 5)
    shard = born_again(fleet)
    shard.report(first, MEMBERS)
    shard.report(second, MEMBERS)
    assert shard.stats().lost == (0 if has_files else 7)


async def test_unsynced_rows_stay_counted_as_lost(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, tmp_path)
    progress = (put(fleet.shard(0), W, 0, whole(0, 5))).progress
    # As if power had failed, and the disk had only so much of the journal.
    more = replies.Progress(incarnation=progress.incarnation, inserted=9, rows=9, lost=0)
    shard = born_again(fleet)
    shard.report(more, MEMBERS)
    stats = shard.stats()
    assert (stats.lost, stats.recovered) == (4, 5)
    assert born_again(fleet).stats().lost == 4


async def test_evicted_rows_do_not_count_as_lost() -> None:
    shard = fleet_of(ring).shard(0)
    shard.report(replies.Progress(incarnation=1, inserted=10**6, rows=1000, lost=0), MEMBERS)
    assert shard.stats().lost == 1000


async def test_keys_continue_after_a_restart_with_files(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(prioritized, tmp_path)
    put(fleet.shard(0), W, 0, whole(0, 5))
    batch = fleet.shard(0).draw(request([10], {}))[1][0]
    assert (batch.keys == batch.observation).all()
    assert born_again(fleet).update_priorities(batch.keys, np.full(10, 3.0), 7.0)[1] == 10
    buffer = fleet.buffer(0)
    assert buffer.get_priorities(batch.keys).tolist() == [3.0] * 10
    # What is added now has the largest priority anywhere.
    put(fleet.shard(0), V, 0, whole(0, 1))
    assert buffer.get_priorities([5]).tolist() == [7.0]


# Checkpoints.


def durable(directory: pathlib.Path, clock: Callable[[], float] = time.monotonic, **more: Any) -> Any:
    durability = shard_lib.Durability(directory=str(directory), fsync="never", **more)
    return shard_lib.Shard(prioritized, 0, 30.0, durability, clock=clock)


def save(shard: shard_lib.Shard) -> None:
    deadline, request = time.monotonic() + PATIENCE, os.urandom(16)
    while not shard.save(request):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the directory of a shard that was saved: rated before, added to after that."""

    shard = durable(tmp_path)
    put(shard, W, 0, whole(0, 3))
    shard.update_priorities(np.arange(3), np.array([1.0, 2.0, 3.0]), 9.0)
    save(shard)
    put(shard, W, 1, whole(10, 2))
    shard.close()
    return tmp_path


def reopened(directory: pathlib.Path) -> tuple[list[float], int]:
    shard = durable(directory)
    try:
        return shard.apply(lambda buffer: buffer.get_priorities([0, 1, 2]).tolist()), shard.stats().recovered
    finally:
        shard.close()


def test_a_restart_uses_both_the_checkpoint_and_the_journal(saved: pathlib.Path) -> None:
    assert reopened(saved) == ([1.0, 2.0, 3.0], 5)


def test_a_journal_replaces_an_unreadable_checkpoint(saved: pathlib.Path) -> None:
    (saved / "checkpoint").write_text("{}")
    assert reopened(saved) == ([1.0, 1.0, 1.0], 5)


def test_a_crash_before_the_journal_began_does_no_harm(tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(errors.UnknownKeyError):
        reopened(tmp_path)


def test_an_unreadable_journal_is_an_error(saved: pathlib.Path) -> None:
    for segment in (saved / "journal").iterdir():
        segment.write_bytes(b"nonsense" * 100)
    with pytest.raises(errors.CheckpointError):
        reopened(saved)


def test_a_shard_is_saved_by_the_first_call_after_the_interval(tmp_path: pathlib.Path) -> None:
    clock = [0.0]
    shard = durable(tmp_path, clock=lambda: clock[0], checkpoint_seconds=300.0)
    put(shard, W, 0, whole(0, 3))
    shard.update_priorities(np.arange(3), np.array([1.0, 2.0, 3.0]), 9.0)
    clock[0] = 299.0
    shard.ping()
    shard._files._thread.submit(int).result()
    assert not (tmp_path / "checkpoint").exists()
    clock[0] = 300.0
    shard.ping()
    shard.close()
    assert reopened(tmp_path) == ([1.0, 2.0, 3.0], 3)


def test_a_failed_checkpoint_is_retried_later(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    shard = durable(tmp_path, clock=lambda: clock[0], checkpoint_seconds=300.0)

    def fail(*_: Any, **__: Any) -> None:
        raise errors.CheckpointError("no space left")

    for module, name in ((shard._files, "save"), (checkpoint, "save")):
        clock[0] += 300.0
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            put(shard, W, shard.stats().inserted, whole(0, 1))
            shard._files._thread.submit(int).result()
        assert not (tmp_path / "checkpoint").exists()
    monkeypatch.setattr(checkpoint, "save", fail)
    with pytest.raises(errors.CheckpointError, match="no space left"):
        save(shard)
    monkeypatch.undo()
    save(shard)
    assert (tmp_path / "checkpoint").exists()
    shard.close()


# Everything else.


async def test_a_shard_describes_itself() -> None:
    fleet = local_test.LocalFleet(ring, 2)
    shard = fleet.shard(1)
    assert shard.ping() == "pong"
    assert shard.host() == platform.node()
    stats = shard.stats()
    assert (stats.number, stats.host, stats.pid) == (1, platform.node(), os.getpid())
    assert stats.progress == replies.Progress(incarnation=stats.incarnation, inserted=0, rows=0, lost=0)
    assert stats.buffer == fleet.buffer(1).get_stats()
    assert shard.describe().kind == "RingReplayBuffer"
    assert shard.apply(lambda buffer, more: buffer.capacity + more, 5) == 1005
    with pytest.raises(ZeroDivisionError):
        shard.apply(lambda buffer: 1 / len(buffer))
    born_again(fleet)
    assert fleet.shard(0).stats().incarnation != stats.incarnation


async def test_an_empty_shard_has_no_draws() -> None:
    shard = fleet_of(ring).shard(0)
    weight, parts, _ = shard.draw(request([3, 0], {}))
    assert (weight.weight, parts) == (0.0, [None])
    assert shard.stats().sampled == 0


@pytest.mark.parametrize(("make", "lengths"), [(ring, [7]), (prioritized, [3, None, 4])])
async def test_independent_samples_of_several_batches_are_one_draw(make: Any, lengths: list[int | None]) -> None:
    shard = fleet_of(make).shard(0)
    put(shard, W, 0, whole(0, 5))
    _, parts, _ = shard.draw(request([3, 0, 4], {}))
    assert [part and len(part) for part in parts] == lengths


class Tired(relive.UniformSampler):
    """Fails at its second draw."""

    draws = 0

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        self.draws += 1
        if self.draws == 2:
            raise MemoryError
        return super()._draw(size, rng)

    def settings(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("most", [None, 2])
async def test_a_draw_that_fails_at_its_second_batch_counts_none(most: int | None) -> None:
    fleet = fleet_of(lambda: relive.RingReplayBuffer(9, sampler=Tired(), max_times_sampled=most, seed=0))
    shard = fleet.shard(0)
    put(shard, W, 0, whole(0, 5))
    before = zoo.plain(shard._adapter.buffer.state_dict())
    with pytest.raises(MemoryError):
        shard.draw(request([3, 0, 4], {}))
    assert zoo.plain(shard._adapter.buffer.state_dict()) == before
    assert shard.stats().sampled == 0
    shard.draw(request([3, 0, 4], {}))
    assert shard.stats().sampled == shard._adapter.sampled == 7


async def test_every_draw_carries_the_policy_version_to_the_shard() -> None:
    fleet = fleet_of(episodes)
    shard = fleet.shard(0)
    for version, known in ((None, None), (4, 4), (3, 4)):
        weight, _, _ = shard.draw(request([], OF_ONE, replies.Policy(version=version)))
        assert weight.policy.version == known
    shard.follow(replies.Policy(version=6))
    assert fleet.buffer(0).policy_version == 6


async def test_shards_of_one_seed_draw_differently() -> None:
    fleet = local_test.LocalFleet(ring, 3)
    states = {str(buffer.rng.bit_generator.state) for buffer in fleet.buffers()}
    assert len(states) == 3
    again = local_test.LocalFleet(ring, 3)
    assert {str(buffer.rng.bit_generator.state) for buffer in again.buffers()} == states


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
async def test_generators_of_every_kind_are_spawned_for_a_shard(kind: Any) -> None:
    fleet = local_test.LocalFleet(lambda: relive.RingReplayBuffer(9, seed=np.random.Generator(kind(1))), 2)
    first, second = (buffer.rng.random(4).tolist() for buffer in fleet.buffers())
    assert first != second


async def test_a_closed_shard_refuses_calls_and_frees_its_files(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, tmp_path)
    shard: Any = fleet.shard(0)
    put(shard, W, 0, adapter_test.columns(0, 2, is_start=True))
    shard.close()
    shard.close()
    with pytest.raises(errors.ClosedError, match="the fleet was closed: start a new one"):
        put(shard, W, 1, whole(0, 2))
    await asyncio.sleep(1000.0)
    assert shard.ping() == "pong"
    stats = born_again(fleet).stats()
    assert (stats.recovered, stats.aborted) == (2, 0)


def test_an_unsuitable_buffer_leaves_no_file(tmp_path: pathlib.Path) -> None:
    durability = shard_lib.Durability(directory=str(tmp_path / "shard"))
    with pytest.raises(errors.ArgumentError, match="make_buffer must return"):
        shard_lib.Shard(lambda: relive.RingReplayBuffer(9, limiter=relive.MinSize(2)), 0, 1.0, durability)
    assert not (tmp_path / "shard").exists()


def test_an_impossible_directory_of_a_shard_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.CheckpointError, match="file/shard cannot be made: Not a directory"):
        files.Files(str(tmp_path / "file" / "shard"), "never", None)
