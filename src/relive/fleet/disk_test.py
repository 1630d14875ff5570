"""A full disk: nothing is refused, lost or stored twice; what was not written is sent again, and at last elsewhere."""

import asyncio
import os
import pathlib
import random
import signal
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import adapter_test
from relive.fleet import deliveries
from relive.fleet import local_test
from relive.fleet import replies
from relive.fleet import shard as shard_lib
from relive.fleet import trouble_test
from relive.persistence import posix_test

W, V = b"w" * 16, b"v" * 16


def ring() -> Any:
    return relive.RingReplayBuffer(10_000, streams=8, seed=0)


def fleet_of(make: Any, shards: int, directory: pathlib.Path, **more: Any) -> local_test.LocalFleet:
    settings = {"timeout": 1.0, "recovery": 20.0, **more}
    return local_test.LocalFleet(make, shards, directory=directory, **settings)


class Disk:
    """The disk of a shard, which has room for so many records of the journal; is it known before one is written?"""

    def __init__(self, fleet: local_test.LocalFleet, shard: int, records: int = 0, *, is_known: bool = True) -> None:
        there: Any = fleet.shard(shard)
        self._journal = there._files._journal
        self._write, self.records = self._journal._write, records
        self._journal._write = self.write
        if is_known:
            there._files._check_room = lambda journal: self.records or self.write()

    def write(self, *record: Any) -> Any:
        if not self.records:
            raise errors.CheckpointError("the journal could not be written: No space left on device")
        self.records -= 1
        return self._write(*record)

    def free(self) -> None:
        self.records = 10**9


def whole(number: int) -> Any:
    return adapter_test.columns(10 * number, 3, "TERMINATED", is_start=True)


def outcome(shard: Any, writer: bytes, number: int) -> Any:
    receipt = shard.insert(adapter_test.batch_of(writer, number, whole(number), whole(number + 1)))
    assert (receipt.progress.disk is None) == (receipt.outcome == "STORED")
    return receipt.outcome


async def test_a_full_disk_takes_no_batch(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, 1, tmp_path)
    shard: Any = fleet.shard(0)
    shard._files._journal._largest_together = 2**70
    assert outcome(shard, W, 0) == "FULL"
    assert (shard.stats().inserted, "on its disk, which has" in shard.stats().disk) == (0, True)
    shard._files._journal._largest_together = 0
    assert outcome(shard, W, 0) == "STORED"
    assert shard._files._journal._largest_together > 100


async def test_a_buffer_without_room_of_its_own_refuses_nothing(tmp_path: pathlib.Path) -> None:
    for directory in (None, tmp_path):
        fleet = local_test.LocalFleet(ring, 1, directory=directory)
        shard: Any = fleet.shard(0)
        insert = shard._adapter.insert

        def full(*_: Any, **__: Any) -> None:
            raise errors.CheckpointError("the disk has no room for the rows")

        shard._adapter.insert = full
        assert outcome(shard, W, 0) == "FULL"
        shard._adapter.insert = insert
        assert [outcome(shard, W, 0), outcome(shard, W, 1)] == ["STORED"] * 2
        assert (shard.stats().inserted, shard.stats().refused) == (12, 0)


async def test_the_batch_with_which_the_disk_filled_up_is_held(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, 1, tmp_path)
    shard = fleet.shard(0)
    disk = Disk(fleet, 0, 1, is_known=False)
    assert [outcome(shard, W, number) for number in (0, 1, 2, 1, 0)] == ["STORED", "HELD", "FULL", "HELD", "STORED"]
    assert outcome(shard, V, 0) == "FULL"
    assert (shard.stats().inserted, shard.stats().rows) == (6, 12)
    assert shard.stats().disk == "the journal could not be written: No space left on device"
    with pytest.raises(errors.CheckpointError, match="No space left"):
        shard.save(b"now")
    # Others may be the ones that write it, once there is room.
    disk.free()
    assert [outcome(shard, V, 0), outcome(shard, W, 1), outcome(shard, W, 2)] == ["STORED"] * 3
    assert (shard.stats().inserted, shard.stats().disk) == (24, None)
    disk.records = 0
    assert outcome(shard, V, 1) == "HELD"
    # A process that ends forgets it, even if there is room by then.
    disk.free()
    assert fleet.kill(0) == local_test.Dead(rows=6, held=(V, 1))
    fleet.start(0)
    assert fleet.shard(0).stats().inserted == 24
    assert outcome(fleet.shard(0), V, 1) == "STORED"


async def test_refused_steps_are_counted_apart_on_a_full_disk(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, 1, tmp_path)
    shard = fleet.shard(0)
    Disk(fleet, 0, is_known=False)
    wrong: Any = adapter_test.columns(0, 2, "TERMINATED", is_start=True)
    wrong.observations.resize((3, 1))
    for _ in range(2):
        receipt = shard.insert(adapter_test.batch_of(W, 0, whole(0), wrong))
        assert (receipt.outcome, receipt.refused, type(receipt.error)) == ("HELD", 2, errors.SchemaError)
    assert (shard.stats().inserted, shard.stats().rows, shard.stats().refused) == (0, 3, 2)


async def test_an_episode_is_ended_once_the_disk_has_room(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(trouble_test.episodes, 1, tmp_path, lease=4.0)
    shard = fleet.shard(0)
    for writer in (W, V):
        shard.insert(adapter_test.batch_of(writer, 0, adapter_test.steps_of(0, 3, is_start=True)))
    disk = Disk(fleet, 0)
    await asyncio.sleep(5.0)
    shard.ping()
    assert (shard.stats().aborted, shard.stats().buffer.in_progress) == (0, 2)
    assert shard.stats().disk == "the journal could not be written: No space left on device"
    assert len(await fleet.replay().sample(5, n=1, gamma=1.0)) == 5
    disk.free()
    await asyncio.sleep(2.0)
    shard.ping()
    assert (shard.stats().aborted, shard.stats().buffer.in_progress) == (2, 0)
    shard.insert(adapter_test.batch_of(b"u" * 16, 0, adapter_test.steps_of(0, 3, is_start=True)))
    Disk(fleet, 0)
    shard.close()


@posix_test.LIMITS
async def test_steps_beyond_the_file_size_limit_are_sent_again(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, 1, tmp_path)
    client = fleet.replay()
    writer = client.writer(batch_steps=10)

    async def write() -> None:
        for number in range(20):
            await writer.add_episode(np.arange(5) + 10 * number, np.zeros(4), np.zeros(4), terminated=True)
        await writer.close()

    before = posix_test.resource.getrlimit(posix_test.resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        posix_test.resource.setrlimit(posix_test.resource.RLIMIT_FSIZE, (2000, before[1]))
        writing = asyncio.create_task(write())
        await local_test.settle(10.0)
    finally:
        posix_test.resource.setrlimit(posix_test.resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert 0 < writer.stored < 80
    assert "could not be written: " in str(fleet.shard(0).stats().disk)
    await writing
    assert (writer.stored, writer.refused, writer.lost) == (80, 0, 0)
    fleet.kill(0)
    fleet.start(0)
    rows = fleet.buffer(0).read(fleet.buffer(0).eligible_keys()).observation
    assert sorted(rows.tolist()) == sorted(10 * number + t for number in range(20) for t in range(4))


@pytest.mark.parametrize("kind", ["columns", "episodes"])
async def test_writers_wait_for_room_with_bounded_memory(kind: str, tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(trouble_test.KINDS[kind][0], 2, tmp_path, seed=1)
    make = trouble_test.KINDS[kind][1]
    actors = [make(fleet.replay(), number, random.Random(number)) for number in range(4)]
    acting = [asyncio.create_task(actor.act(15)) for actor in actors]
    await asyncio.sleep(0.2)
    disks = [Disk(fleet, shard, records=5 * shard) for shard in range(2)]
    await asyncio.sleep(60.0)
    # Both are full, so nobody loses a step, and nobody goes on either.
    given = [len(actor.given) for actor in actors]
    assert not any(task.done() for task in acting)
    assert all(len(actor.given) - actor.writer.stored <= 6 * 20 for actor in actors)
    await asyncio.sleep(15.0)
    assert [len(actor.given) for actor in actors] == given
    disks[1].free()
    # After `recovery` seconds the writers of the full shard go to the other one.
    await asyncio.gather(*acting)
    for actor in actors:
        await actor.writer.close()
        assert (actor.writer.stored, actor.writer.refused, actor.writer.lost) == (len(actor.given), 0, 0)
    assert trouble_test.stored_in(fleet, kind) == trouble_test.given_by(actors)


async def test_writers_go_back_to_a_shard_that_has_room_again(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, 2, tmp_path)
    client = fleet.replay()
    writer: Any = client.writer(batch_steps=1)
    shards: list[int] = []

    async def write(seconds: int) -> None:
        for _ in range(seconds):
            await writer.add_episode(np.arange(3), np.zeros(2), np.zeros(2), terminated=True)
            await asyncio.sleep(1.0)
            shards.append(writer._outbox._shard)

    await write(3)
    disk = Disk(fleet, 0)
    await write(60)
    assert shards[:3] == [0, 0, 0]
    assert set(shards[30:]) == {0, 1}  # It is tried now and then.
    assert shards[30:].count(1) > 20
    disk.free()
    await write(40)
    assert set(shards[-10:]) == {0}
    await writer.close()
    assert (writer.stored, writer.lost) == (2 * 103, 0)
    assert sum(len(buffer) for buffer in fleet.buffers()) == 2 * 103


async def test_a_held_batch_is_lost_with_a_shard_that_never_returns(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, 1, tmp_path, recovery=5.0)
    writer: Any = fleet.replay().writer(batch_steps=1)
    disk = Disk(fleet, 0, is_known=False)
    await writer.add_episode(np.arange(3), np.zeros(2), np.zeros(2), terminated=True)
    await local_test.settle(3.0)
    assert (len(fleet.buffer(0)), writer.stored, writer.lost, disk.records) == (2, 0, 0, 0)
    assert fleet.kill(0) == local_test.Dead(rows=2, held=(writer._outbox._name, 0))
    await writer.close()
    assert (writer.stored, writer.lost) == (0, 2)


@pytest.mark.parametrize("kind", trouble_test.KINDS)
async def test_a_held_batch_that_dies_is_sent_again_and_not_lost(kind: str, tmp_path: pathlib.Path) -> None:
    make, actor, _ = trouble_test.KINDS[kind]
    fleet = fleet_of(make, 1, tmp_path)
    alone = actor(fleet.replay(), 0, random.Random(0))
    await alone.act(2)
    disk = Disk(fleet, 0, is_known=False)
    acting = asyncio.create_task(alone.act(5))
    await local_test.settle(5.0)
    disk.free()
    dead = fleet.kill(0)
    assert (dead.rows > 0, dead.held is not None) == (True, True)
    fleet.start(0)
    await acting
    await alone.writer.close()
    assert trouble_test.stored_in(fleet, kind) == trouble_test.given_by([alone])
    stats = await fleet.replay().stats()
    assert (stats.lost, alone.writer.lost, alone.writer.stored) == (0, 0, len(alone.given))


@pytest.mark.parametrize("kind", ["columns", "episodes", "redelivered"])
async def test_a_shard_starts_again_on_a_full_disk(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes = {"columns": ring, "episodes": trouble_test.episodes}
    fleet = fleet_of(makes.get(kind, redelivering), 1, tmp_path)
    steps = adapter_test.columns if kind == "columns" else adapter_test.steps_of
    assert fleet.shard(0).insert(adapter_test.batch_of(W, 0, steps(0, 3, is_start=True))).outcome == "STORED"
    fleet.kill(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        fleet.start(0)
        assert fleet.shard(0).insert(adapter_test.batch_of(V, 0, steps(9, 2, is_start=True))).outcome != "STORED"
        assert fleet.shard(0).stats().inserted == 3
    assert fleet.shard(0).insert(adapter_test.batch_of(V, 0, steps(9, 2, is_start=True))).outcome == "STORED"
    assert (fleet.shard(0).stats().inserted, fleet.shard(0).stats().aborted) == (5, 1)
    fleet.kill(0)
    fleet.start(0)
    assert fleet.shard(0).stats().inserted == 5


def redelivering() -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](redeliver=True, seed=0)


def full_disk(*_: object) -> int:
    raise OSError(28, "No space left on device")


async def test_draws_of_episodes_go_on_beside_a_full_disk(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(trouble_test.episodes, 2, tmp_path)
    client = fleet.replay()
    for shard in range(2):
        fleet.shard(shard).insert(adapter_test.batch_of(W, 0, adapter_test.steps_of(0, 3, is_start=True)))
    disk = Disk(fleet, 0)
    await client.set_policy_version(1)
    assert len(await client.sample(5, n=1, gamma=1.0)) == 5
    wanted = deliveries.Wanted("episodes", 1)
    policy = replies.Policy(version=1)
    assert fleet.shard(0).take(deliveries.Request(W, 1, 0), 1, wanted, policy)[:3] == ([], 0, policy)
    disk.free()
    assert len(await client.sample(5, n=1, gamma=1.0)) == 5
    assert [buffer.policy_version for buffer in fleet.buffers()] == [1, 1]


@pytest.mark.parametrize("is_held", [False, True])
async def test_others_deliver_while_a_disk_is_full(is_held: bool, tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(trouble_test.episodes, 2, tmp_path)
    client = fleet.replay()
    await client.set_policy_version(0)
    whole = [adapter_test.steps_of(0, 2, final=(2, "COMPLETED"), agent_id=f"{shard}") for shard in range(2)]
    disk = Disk(fleet, 0, records=0 if is_held else 1, is_known=False)
    outcomes = [fleet.shard(shard).insert(adapter_test.batch_of(W, 0, whole[shard])).outcome for shard in range(2)]
    assert outcomes == ["HELD" if is_held else "STORED", "STORED"]
    assert [episode.agent_id for episode in await client.next_episodes(1)] == ["1"]
    await local_test.never(client.next_episodes(1))
    assert "No space left" in str(fleet.shard(0).stats().disk)
    disk.free()
    if is_held:
        assert fleet.kill(0).rows == 2
        fleet.start(0)
        fleet.shard(0).insert(adapter_test.batch_of(W, 0, whole[0]))
        await local_test.settle(1.0)
    assert [episode.agent_id for episode in await client.next_episodes(1)] == ["0"]


@pytest.mark.parametrize("kind", ["episodes", "tokens"])
async def test_a_ticket_is_kept_while_its_episode_waits_for_room(kind: str, tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(trouble_test.KINDS[kind][0], 1, tmp_path, admission=relive.Admission(0, 1), lease=5.0)
    client = fleet.replay()
    await client.set_policy_version(0)
    disk = Disk(fleet, 0)
    ticket = await client.admit()
    if kind == "tokens":
        writer: Any = client.tokens_writer()
        await writer.add_episode(trouble_test.token_steps(0, 0, 1), agent_id="a", number=0, ticket=ticket)
    else:
        writer = client.episodes_writer()
        async with writer.episode("a", ticket=ticket) as episode:
            await episode.append(0, 0, 1.0)
            await episode.end(1)
    await local_test.never(client.admit(), 100.0)
    disk.free()
    await writer.close()
    await local_test.never(client.admit())
    await client.set_policy_version(1)
    assert len(await client.next_episodes(1)) == 1


async def test_a_new_shard_needs_room_for_its_journal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise errors.CheckpointError("the journal could not be written: No space left on device")

    durability = shard_lib.Durability(directory=str(tmp_path / "new"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full_disk)
        with pytest.raises(errors.CheckpointError, match="No space left on device"):
            shard_lib.Shard(ring, 0, 1.0, durability)
    fleet = fleet_of(redelivering, 1, tmp_path / "old")
    fleet.kill(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        patch.setattr(relive.Journal, "_group", refuse)
        with pytest.raises(errors.CheckpointError, match="No space left on device"):
            fleet.start(0)
    fleet.start(0)
