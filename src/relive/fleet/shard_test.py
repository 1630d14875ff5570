"""A shard: what it stores and once, leases, what survives a restart of its process, and what is counted of the rest."""

import asyncio
from collections.abc import Callable
import os
import pathlib
import platform
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import answers
from relive.fleet import files
from relive.fleet import local_test
from relive.fleet import port_test
from relive.fleet import shard as shard_lib

W, V, U = b"w" * 16, b"v" * 16, b"u" * 16
OF_ONE = {"n": 1, "gamma": 1.0}
PATIENCE = 60.0
"""Seconds after which a test has hung."""


class Crash(BaseException):
    """As if the process had died just here."""


def ring() -> Any:
    return relive.RingReplayBuffer(1000, streams=8, seed=0)


def prioritized() -> Any:
    return relive.PrioritizedReplayBuffer(1000, alpha=1.0, epsilon=0.0, streams=8, seed=0)


def episodes() -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](seed=0)


def whole(start: int, rows: int) -> Any:
    return port_test.columns(start, rows, "TERMINATED", is_start=True)


def wrong(rows: int) -> Any:
    """Return a chunk of which the first step alone is taken."""
    return port_test.steps_of(0, 0, is_start=True, steps=((0, 0, 1.0, 5), *[(0, 0, 1.0, 4)] * (rows - 1)))


def fleet_of(make: Callable[[], Any], directory: pathlib.Path | None = None, **more: Any) -> local_test.LocalFleet:
    return local_test.LocalFleet(make, 1, directory=directory, **more)


def born_again(fleet: local_test.LocalFleet) -> shard_lib.Shard:
    fleet.kill(0)
    fleet.start(0)
    return fleet.shard(0)


async def put(shard: shard_lib.Shard, writer: bytes, number: int, *batch: Any, answered: int | None = None) -> Any:
    return await shard.insert(writer, number, number if answered is None else answered, batch)


async def crash_at(shard: Any, chunk: int, writer: bytes, number: int, *batch: Any) -> None:
    """Store a batch, and dies before that chunk."""
    insert, left = shard._port.insert, [chunk]

    def until_the_crash(*arguments: Any) -> None:
        if not left[0]:
            raise Crash
        left[0] -= 1
        insert(*arguments)

    shard._port.insert = until_the_crash
    with pytest.raises(Crash):
        await put(shard, writer, number, *batch)


def observed(buffer: Any) -> list[int]:
    buffer.check()
    found: list[int] = buffer.read(buffer.eligible_keys()).observation.tolist()
    return found


# Batches.


def test_a_batch_is_stored_and_acknowledged() -> None:
    async def main() -> None:
        fleet = fleet_of(ring)
        shard = fleet.shard(0)
        ack = await put(shard, W, 0, whole(0, 3), whole(10, 2))
        assert (ack.seen.inserted, ack.seen.rows, ack.seen.lost, ack.refused, ack.error) == (5, 5, 0, 0, None)
        assert (await put(shard, W, 1, whole(20, 1))).seen == answers.Seen(
            life=ack.seen.life, inserted=6, rows=6, lost=0
        )
        assert observed(fleet.buffer(0)) == [0, 1, 2, 10, 11, 20]

    local_test.run(main())


def test_a_batch_that_comes_twice_is_stored_once_and_has_the_same_answer() -> None:
    async def main() -> None:
        fleet = fleet_of(episodes)
        shard = fleet.shard(0)
        first = await put(shard, W, 0, wrong(3), answered=0)
        again = await put(shard, W, 0, wrong(3), answered=0)
        assert (first.refused, first.error) == (again.refused, again.error)
        assert (first.refused, str(first.error)) == (
            2,
            "policy_version must be at least 5, that of the step before, got 4",
        )
        stats = await shard.stats()
        assert (stats.inserted, stats.refused, stats.repeated) == (1, 2, 1)

    local_test.run(main())


def test_batches_that_overtake_each_other_are_stored_in_order() -> None:
    async def main() -> None:
        fleet = fleet_of(ring)
        shard = fleet.shard(0)
        order = [3, 0, 2, 1]
        calls = [
            asyncio.create_task(put(shard, W, number, port_test.columns(number, 1, is_start=number == 0), answered=0))
            for number in order
        ]
        acks = await asyncio.gather(*calls)
        assert [ack.seen.inserted for ack in acks] == [4, 1, 3, 2]
        assert observed(fleet.buffer(0)) == [0, 1, 2, 3]
        assert fleet.buffer(0).get_stats().spliced_episodes == 0

    local_test.run(main())


def test_the_refused_steps_of_a_chunk_are_counted_and_the_other_chunks_are_stored() -> None:
    async def main() -> None:
        fleet = fleet_of(episodes)
        shard = fleet.shard(0)
        good = port_test.steps_of(0, 3, is_start=True, episode=7, final=(3, "COMPLETED"))
        odd = port_test.steps_of(0, 2, is_start=True, episode=8, agent_id=3)
        ack = await put(shard, W, 0, wrong(3), good, odd)
        assert (ack.refused, ack.seen.inserted) == (2 + 2, 1 + 3)
        assert "policy_version must be at least 5" in str(ack.error)
        assert (await shard.stats()).refused == 4
        # What is no error of this package does not take the others with it either.
        ack = await put(shard, W, 1, port_test.steps_of(0, 0, episode=9, is_start=True, steps=((1,),)), good)
        assert isinstance(ack.error, ValueError)
        assert (ack.refused, ack.seen.inserted) == (1, 7)

    local_test.run(main())


# What a writer is told that had no answer.


def test_of_a_batch_of_this_life_all_has_passed_or_nothing_ever_will() -> None:
    async def main() -> None:
        shard = fleet_of(episodes).shard(0)
        await put(shard, W, 0, wrong(3), answered=0)
        late = asyncio.create_task(put(shard, W, 2, wrong(3), answered=0))
        await local_test.settle()
        settled = await shard.settle(W, 0)
        assert (settled.passed, settled.refused) == (None, 2)
        assert "policy_version must be at least 5" in str(settled.error)
        assert await late is None
        assert await shard.settle(W, 1) == answers.Settlement(passed=0)
        assert await shard.settle(W, 2) == answers.Settlement(passed=0)
        # What comes now comes too late.
        assert await put(shard, W, 1, wrong(3), answered=0) is None
        assert await shard.settle(V, 0) == answers.Settlement(passed=0)
        assert await put(shard, V, 0, wrong(3)) is None
        assert (await shard.stats()).inserted == 1

    local_test.run(main())


def test_settling_ends_what_the_writer_has_open_under_that_name() -> None:
    async def main() -> None:
        fleet = fleet_of(ring)
        shard = fleet.shard(0)
        await put(shard, W, 0, port_test.columns(0, 2, is_start=True))
        await put(shard, V, 0, port_test.columns(0, 2, is_start=True))
        assert await shard.settle(W, 0) == answers.Settlement(passed=None)
        assert fleet.buffer(0).get_stats().open_episodes == 1
        stats = await shard.stats()
        assert (stats.aborted, stats.writers) == (1, 1)

    local_test.run(main())


@pytest.mark.parametrize("crash", [0, 1, 2])
def test_after_a_crash_in_a_batch_its_first_steps_have_passed(crash: int, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(ring, tmp_path)
        await put(fleet.shard(0), W, 0, whole(0, 4))
        await put(fleet.shard(0), V, 0, whole(50, 4))
        await crash_at(fleet.shard(0), crash, W, 1, whole(10, 2), whole(20, 3), whole(30, 1))
        for _ in range(2):
            shard = born_again(fleet)
            assert await shard.settle(W, 0) == answers.Settlement(passed=None)
            assert await shard.settle(W, 1) == answers.Settlement(passed=[0, 2, 5][crash])
            assert await shard.settle(W, 2) == answers.Settlement(passed=0)
            assert await shard.settle(V, 0) == answers.Settlement(passed=4)
            assert await shard.settle(U, 0) == answers.Settlement(passed=0)
            # What others store after it changes nothing, also in the life after that.
            await put(shard, os.urandom(16), 0, whole(100, 9))
        assert (await fleet.shard(0).stats()).recovered == 8 + [0, 2, 5][crash] + 9

    local_test.run(main())


def test_after_a_crash_refused_steps_have_passed_and_are_known_as_refused(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(episodes, tmp_path)
        chunks = [port_test.steps_of(0, 2, is_start=True, episode=number) for number in range(3)]
        await crash_at(fleet.shard(0), 3, W, 0, chunks[0], wrong(4), chunks[1], chunks[2])
        settled = await born_again(fleet).settle(W, 0)
        assert settled == answers.Settlement(passed=2 + 4 + 2, refused=3)

    local_test.run(main())


def test_a_writer_that_did_not_notice_the_crash_goes_on(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(ring, tmp_path)
        await put(fleet.shard(0), W, 0, port_test.columns(0, 2, is_start=True))
        shard = born_again(fleet)
        assert (await shard.stats()).aborted == 1
        ack = await put(shard, W, 1, port_test.columns(2, 2, "TERMINATED"))
        assert ack.seen.inserted == 4
        assert observed(fleet.buffer(0)) == [0, 1, 2, 3]
        assert fleet.buffer(0).get_stats().truncated_episodes == 1
        # Its next batch in doubt is that of this life.
        assert await shard.settle(W, 1) == answers.Settlement(passed=None)

    local_test.run(main())


# Leases.


def test_a_writer_that_gives_no_sign_of_life_leaves_its_episode_aborted() -> None:
    async def main() -> None:
        fleet = fleet_of(episodes, lease=10.0)
        shard = fleet.shard(0)
        for writer in (W, V):
            await put(shard, writer, 0, port_test.steps_of(0, 3, is_start=True))
        for _ in range(4):
            await asyncio.sleep(5.0)
            await shard.renew(V)
        seen = await shard.renew(V)
        assert (seen.inserted, seen.rows) == (6, 4)
        assert [episode.status for episode in fleet.buffer(0)._store] == ["ABORTED", "IN_PROGRESS"]
        stats = await shard.stats()
        assert (stats.expired_leases, stats.aborted, stats.writers, stats.size) == (1, 1, 1, 4)
        await shard.leave(V)
        assert [episode.status for episode in fleet.buffer(0)._store] == ["ABORTED", "ABORTED"]
        stats = await shard.stats()
        assert (stats.expired_leases, stats.aborted, stats.writers) == (1, 2, 0)

    local_test.run(main())


def test_a_slow_writer_that_comes_back_begins_another_episode() -> None:
    async def main() -> None:
        fleet = fleet_of(ring, lease=10.0)
        shard = fleet.shard(0)
        await put(shard, W, 0, port_test.columns(0, 2, is_start=True))
        await asyncio.sleep(20.0)
        assert fleet.buffer(0).get_stats().truncated_episodes == 1
        ack = await put(shard, W, 1, port_test.columns(2, 2, "TERMINATED"))
        assert ack.seen.inserted == 4
        assert fleet.buffer(0).get_stats().terminated_episodes == 1
        stats = await shard.stats()
        assert (stats.writers, stats.expired_leases) == (1, 1)
        # Also after so long that nothing is known of it any more.
        await asyncio.sleep(1000.0)
        ack = await put(shard, W, 2, port_test.columns(4, 2))
        assert ack.seen.inserted == 6

    local_test.run(main())


def test_what_a_writer_has_sent_is_known_as_long_as_it_may_ask(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(ring, tmp_path, lease=1.0, recovery=100.0)
        await put(fleet.shard(0), W, 0, whole(0, 3))
        await asyncio.sleep(150.0)
        assert await fleet.shard(0).settle(W, 0) == answers.Settlement(passed=None)
        shard = born_again(fleet)
        await shard.ping()
        await asyncio.sleep(150.0)
        assert await shard.settle(W, 0) == answers.Settlement(passed=3)
        await asyncio.sleep(250.0)
        born_again(fleet)
        assert await fleet.shard(0).settle(W, 0) == answers.Settlement(passed=0)

    local_test.run(main())


def test_a_full_disk_does_not_end_the_leases(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        fleet = fleet_of(ring, tmp_path, lease=10.0)
        shard: Any = fleet.shard(0)
        for writer in (W, V):
            await put(shard, writer, 0, port_test.columns(0, 2, is_start=True))

        def full(**_: Any) -> None:
            raise errors.CheckpointError("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(fleet.buffer(0), "end_episode", full)
            await asyncio.sleep(20.0)
            assert fleet.buffer(0).get_stats().open_episodes == 2
        await asyncio.sleep(20.0)
        stats = await shard.stats()
        assert (fleet.buffer(0).get_stats().open_episodes, stats.expired_leases, stats.writers) == (0, 2, 0)

    local_test.run(main())


# What is lost.


@pytest.mark.parametrize("has_files", [True, False])
def test_what_was_seen_of_an_earlier_life_and_is_not_there_is_lost(has_files: bool, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(ring, tmp_path if has_files else None)
        first = (await put(fleet.shard(0), W, 0, whole(0, 5))).seen
        shard = born_again(fleet)
        await shard.report(first)
        await shard.report(first)
        assert (await shard.stats()).lost == (0 if has_files else 5)
        second = (await put(shard, V, 0, whole(0, 2))).seen
        await shard.report(second)
        assert second.lost == (await shard.stats()).lost == (0 if has_files else 5)
        shard = born_again(fleet)
        await shard.report(first)
        await shard.report(second)
        assert (await shard.stats()).lost == (0 if has_files else 7)

    local_test.run(main())


def test_rows_that_were_not_synced_are_lost_and_that_is_not_forgotten(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(ring, tmp_path)
        seen = (await put(fleet.shard(0), W, 0, whole(0, 5))).seen
        # As if power had failed, and the disk had only so much of the journal.
        more = answers.Seen(life=seen.life, inserted=9, rows=9, lost=0)
        shard = born_again(fleet)
        await shard.report(more)
        stats = await shard.stats()
        assert (stats.lost, stats.recovered) == (4, 5)
        assert (await born_again(fleet).stats()).lost == 4

    local_test.run(main())


def test_of_rows_that_were_evicted_long_ago_none_is_lost() -> None:
    async def main() -> None:
        shard = fleet_of(ring).shard(0)
        await shard.report(answers.Seen(life=1, inserted=10**6, rows=1000, lost=0))
        assert (await shard.stats()).lost == 1000

    local_test.run(main())


def test_a_key_of_an_earlier_life_is_none_of_this_one() -> None:
    async def main() -> None:
        fleet = fleet_of(prioritized)
        await put(fleet.shard(0), W, 0, whole(0, 5))
        batch = await fleet.shard(0).draw(10, {}, 0)
        ones = np.ones(10)
        assert await fleet.shard(0).update_priorities(batch.keys, ones, 1.0) == 10
        shard = born_again(fleet)
        await put(shard, W, 0, whole(0, 5))
        assert await shard.update_priorities(batch.keys, ones, 1.0) == 0
        assert fleet.buffer(0).get_stats().stale_keys == 10

    local_test.run(main())


def test_with_files_keys_go_on(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(prioritized, tmp_path)
        await put(fleet.shard(0), W, 0, whole(0, 5))
        batch = await fleet.shard(0).draw(10, {}, 0)
        assert (batch.keys == batch.observation).all()
        assert await born_again(fleet).update_priorities(batch.keys, np.full(10, 3.0), 7.0) == 10
        buffer = fleet.buffer(0)
        assert buffer.get_priorities(batch.keys).tolist() == [3.0] * 10
        # What is added now has the largest priority anywhere.
        await put(fleet.shard(0), V, 0, whole(0, 1))
        assert buffer.get_priorities([5]).tolist() == [7.0]

    local_test.run(main())


def test_the_draws_of_all_lives_are_counted(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(episodes, tmp_path)
        await put(fleet.shard(0), W, 0, port_test.steps_of(0, 3, is_start=True))
        assert len(await fleet.shard(0).draw(10, OF_ONE, 0)) == 10
        shard = born_again(fleet)
        await shard.draw(5, OF_ONE, 0)
        assert (await shard.stats()).sampled == 15
        assert (await born_again(fleet).stats()).sampled == 15

    local_test.run(main())


# Checkpoints.


def durable(directory: pathlib.Path, **more: Any) -> shard_lib.Shard:
    durability = shard_lib.Durability(directory=str(directory), fsync="never", **more)
    return shard_lib.Shard(prioritized, 0, 30.0, durability)


async def priorities_after(shard: shard_lib.Shard) -> list[float]:
    answer: list[float] = await shard.apply(lambda buffer: buffer.get_priorities([0, 1, 2]).tolist())
    return answer


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the directory of a shard that was saved: rated before, added to after that."""

    async def main() -> None:
        shard = durable(tmp_path)
        await put(shard, W, 0, whole(0, 3))
        await shard.update_priorities(np.arange(3), np.array([1.0, 2.0, 3.0]), 9.0)
        await shard.save()
        await put(shard, W, 1, whole(10, 2))
        await shard.close()

    asyncio.run(main())
    return tmp_path


def reopened(directory: pathlib.Path) -> tuple[list[float], int]:
    async def main() -> tuple[list[float], int]:
        shard = durable(directory)
        try:
            return await priorities_after(shard), (await shard.stats()).recovered
        finally:
            await shard.close()

    return asyncio.run(main())


def test_priorities_come_back_from_the_checkpoint_and_later_steps_from_the_journal(saved: pathlib.Path) -> None:
    assert reopened(saved) == ([1.0, 2.0, 3.0], 5)


def test_without_a_checkpoint_that_can_be_read_the_journal_has_all_steps(saved: pathlib.Path) -> None:
    (saved / "checkpoint" / "manifest.json").write_text("{}")
    assert reopened(saved) == ([1.0, 1.0, 1.0], 5)


def test_a_process_that_died_before_its_journal_began_is_no_hindrance(tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(errors.UnknownKeyError):
        reopened(tmp_path)


def test_a_journal_that_cannot_be_read_is_no_empty_one(saved: pathlib.Path) -> None:
    for segment in (saved / "journal").iterdir():
        segment.write_bytes(b"nonsense" * 100)
    with pytest.raises(errors.CheckpointError):
        reopened(saved)


def test_shards_are_saved_now_and_then(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        shard = durable(tmp_path, checkpoint_seconds=0.05)
        await put(shard, W, 0, whole(0, 3))
        await shard.update_priorities(np.arange(3), np.array([1.0, 2.0, 3.0]), 9.0)
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "checkpoint").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await shard.close()

    asyncio.run(main())
    assert reopened(tmp_path) == ([1.0, 2.0, 3.0], 3)


def test_what_has_no_directory_cannot_be_saved() -> None:
    async def main() -> None:
        shard = fleet_of(ring).shard(0)
        with pytest.raises(errors.ArgumentError, match=r"save needs a fleet with a directory: give start\(directory="):
            await shard.save()

    local_test.run(main())


# Everything else.


def test_a_shard_answers_who_it_is() -> None:
    async def main() -> None:
        fleet = local_test.LocalFleet(ring, 2)
        shard = fleet.shard(1)
        assert await shard.ping() == "pong"
        assert await shard.host() == platform.node()
        stats = await shard.stats()
        assert (stats.number, stats.host, stats.pid) == (1, platform.node(), os.getpid())
        assert stats.seen == answers.Seen(life=stats.life, inserted=0, rows=0, lost=0)
        assert stats.buffer == fleet.buffer(1).get_stats()
        assert (await shard.describe()).kind == "RingReplayBuffer"
        assert await shard.apply(lambda buffer, more: buffer.capacity + more, 5) == 1005
        with pytest.raises(ZeroDivisionError):
            await shard.apply(lambda buffer: 1 / len(buffer))
        born_again(fleet)
        assert (await fleet.shard(0).stats()).life != stats.life

    local_test.run(main())


def test_an_empty_shard_has_nothing_to_draw_from() -> None:
    async def main() -> None:
        shard = fleet_of(ring).shard(0)
        assert (await shard.mass({}, None)).weight == 0
        assert await shard.draw(3, {}, 0) is None
        assert (await shard.stats()).sampled == 0

    local_test.run(main())


def test_a_shard_learns_the_version_of_the_policy_with_every_look() -> None:
    async def main() -> None:
        fleet = fleet_of(episodes)
        shard = fleet.shard(0)
        assert (await shard.mass(OF_ONE, None)).policy_version is None
        assert (await shard.mass(OF_ONE, 4)).policy_version == 4
        assert (await shard.mass(OF_ONE, 3)).policy_version == 4
        await shard.learn(6)
        assert fleet.buffer(0).policy_version == 6

    local_test.run(main())


def test_shards_of_one_seed_draw_each_its_own() -> None:
    async def main() -> None:
        fleet = local_test.LocalFleet(ring, 3)
        states = {str(buffer.rng.bit_generator.state) for buffer in fleet.buffers()}
        assert len(states) == 3
        again = local_test.LocalFleet(ring, 3)
        assert {str(buffer.rng.bit_generator.state) for buffer in again.buffers()} == states

    local_test.run(main())


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_generators_of_every_kind_are_given_a_stream_of_their_own(kind: Any) -> None:
    async def main() -> None:
        fleet = local_test.LocalFleet(lambda: relive.RingReplayBuffer(9, seed=np.random.Generator(kind(1))), 2)
        first, second = (buffer.rng.random(4).tolist() for buffer in fleet.buffers())
        assert first != second

    local_test.run(main())


def test_a_closed_shard_takes_nothing_and_its_files_are_free(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        fleet = fleet_of(ring, tmp_path)
        shard: Any = fleet.shard(0)
        await put(shard, W, 0, port_test.columns(0, 2, is_start=True))
        late = asyncio.create_task(put(shard, W, 5, whole(0, 2), answered=1))
        await local_test.settle()
        await shard.close()
        await shard.close()
        assert await late is None
        with pytest.raises(errors.ClosedError, match="the fleet was closed: start a new one"):
            await put(shard, W, 1, whole(0, 2))
        await shard.ping()
        assert shard._watcher.cancelled() or shard._watcher.cancelling()
        stats = await born_again(fleet).stats()
        assert (stats.recovered, stats.aborted) == (2, 0)

    local_test.run(main())


def test_a_shard_that_nobody_asked_anything_is_closed_too() -> None:
    async def main() -> None:
        shard: Any = fleet_of(ring).shard(0)
        await shard.close()
        await shard.ping()
        assert shard._watcher is None

    local_test.run(main())


def test_a_buffer_that_no_shard_can_have_leaves_no_file(tmp_path: pathlib.Path) -> None:
    durability = shard_lib.Durability(directory=str(tmp_path / "shard"))
    with pytest.raises(errors.ArgumentError, match="make_buffer must return"):
        shard_lib.Shard(lambda: relive.RingReplayBuffer(9, limiter=relive.MinSize(2)), 0, 1.0, durability)
    assert not (tmp_path / "shard").exists()


@pytest.mark.parametrize("seed", range(3))
def test_a_shard_is_what_was_passed_to_it_whatever_comes_twice_late_or_in_another_order(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        fleet = fleet_of(ring)
        shard = fleet.shard(0)
        calls = [(writer, number) for writer in (W, V, U) for number in range(8)] * 2
        rng.shuffle(calls)
        start = {W: 0, V: 100, U: 200}

        async def call(writer: bytes, number: int) -> Any:
            await asyncio.sleep(rng.random())
            return await put(shard, writer, number, whole(start[writer] + 10 * number, 2), answered=0)

        acks = await asyncio.gather(*[call(*each) for each in calls])
        assert all(ack.refused == 0 for ack in acks)
        found = observed(fleet.buffer(0))
        for first in start.values():
            of_writer = [first + 10 * number + t for number in range(8) for t in range(2)]
            assert [step for step in found if step in of_writer] == of_writer
        assert len(found) == 48
        assert (await shard.stats()).repeated == 24

    local_test.run(main())


def test_a_directory_that_cannot_be_made_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.CheckpointError, match="file/shard cannot be made: Not a directory"):
        files.Files(str(tmp_path / "file" / "shard"), "never", None)
