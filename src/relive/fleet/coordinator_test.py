"""Coordinator: which shards there are; writers that go home; shards that come, are drained, and are restarted."""

import asyncio
import collections
import itertools
import pathlib
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import consumption_test
from relive.fleet import coordinator
from relive.fleet import local_test
from relive.fleet import replies
from relive.fleet import trouble_test

COLUMNS = {"observations": np.arange(11), "actions": np.arange(10), "rewards": np.ones(10), "terminated": True}


def ring(capacity: int = 100_000) -> Any:
    return relive.RingReplayBuffer(capacity, seed=0)


def fleet_of(shards: int, **more: Any) -> local_test.LocalFleet:
    return local_test.LocalFleet(ring, shards, **{"timeout": 1.0, "lease": 10.0, **more})


def process_of(fleet: local_test.LocalFleet) -> coordinator.Coordinator:
    assert fleet.coordinator_process is not None
    return fleet.coordinator_process


def restart_coordinator(fleet: local_test.LocalFleet) -> None:
    fleet.kill_coordinator()
    fleet.start_coordinator()


async def restart(fleet: local_test.LocalFleet, shard: int) -> None:
    """Kill a shard, and start it again a little later."""
    fleet.kill(shard)
    await asyncio.sleep(0.5)
    fleet.start(shard)
    await asyncio.sleep(1.0)


def shards_of(writers: list[Any]) -> collections.Counter[int]:
    """Return how many writers use each shard."""
    return collections.Counter(writer._outbox._shard for writer in writers)


async def write_to_all(writers: list[Any], episodes: int = 1) -> None:
    for _ in range(episodes):
        await asyncio.gather(*[writer.add_episode(**COLUMNS) for writer in writers])
        await asyncio.gather(*[writer.flush() for writer in writers])


# Which shards there are.


async def test_a_new_coordinator_knows_the_numbers_of_the_shards() -> None:
    fleet = fleet_of(3)
    process = process_of(fleet)
    assert await process.ping() == "pong"
    first = await process.members()
    assert (first.active, first.draining, first.gone, first.shards) == ((0, 1, 2), (), (), [0, 1, 2])
    assert [await process.next_shard() for _ in range(2)] == [3, 4]
    await fleet.launch(4)
    second = await process.add(4)
    assert await process.add(4) == second
    fleet.buffer(0).add_episode(**COLUMNS)
    third = await process.drain(1)
    assert await process.drain(1) == third
    assert (third.active, third.draining, third.version) == ((0, 2, 4), (1,), first.version + 2)
    await local_test.settle(0.5)
    restart_coordinator(fleet)
    assert await process_of(fleet).members() == third
    assert await process_of(fleet).next_shard() == 5
    await local_test.settle(2.0)
    assert (await process_of(fleet).members()).draining == (1,)
    fleet.buffer(4).add_episode(**COLUMNS)
    await local_test.settle(2.0)
    assert (await process_of(fleet).members()).gone == (1,)
    assert fleet.gone == {1}


@pytest.mark.parametrize(
    ("shard", "text"),
    [
        (2, r"shard must be one of the active ones, \[0, 1\], got 2"),
        (1, "drain needs another active shard, .* shard 1"),
    ],
)
async def test_invalid_drains_are_refused(shard: int, text: str) -> None:
    fleet = fleet_of(2)
    if shard == 1:
        await fleet.replay().drain(0)
    with pytest.raises(errors.ArgumentError, match=text):
        await fleet.replay().drain(shard)


async def test_a_fleet_has_at_most_512_shards_in_its_life() -> None:
    fleet = fleet_of(1)
    members = await process_of(fleet).members()
    fleet.shard(0).report(None, replies.Members(version=members.version + 1, active=(0,), gone=(510,)))
    restart_coordinator(fleet)
    client = fleet.replay()
    assert await client.add_shard() == 511
    with pytest.raises(errors.ArgumentError, match="add_shard must find a number below 512, counting all shards"):
        await client.add_shard()


async def test_a_coordinator_waits_for_a_shard_of_an_open_fleet() -> None:
    fleet = fleet_of(2)
    for shard in range(2):
        fleet.kill(shard)
    asking = asyncio.create_task(process_of(fleet).members())
    await local_test.settle(5.0)
    assert not asking.done()
    fleet.start(1)
    assert (await asking).active == (0, 1)
    fleet.gone |= {0, 1}
    restart_coordinator(fleet)
    with pytest.raises(errors.ClosedError, match="the fleet was closed: start a new one"):
        await coordinator.Coordinator(fleet, [0, 1], fleet.settings, None).members()


async def test_all_clients_draw_from_a_new_shard() -> None:
    fleet = fleet_of(1, seed=1)
    operator, learner, actor = fleet.replay(0), fleet.replay(1), fleet.replay(2)
    writers = [actor.writer(batch_steps=1) for _ in range(4)]
    await write_to_all(writers)
    await learner.sample(10)
    assert await operator.add_shard() == 1
    await write_to_all(writers)
    await local_test.settle(1.0)
    await write_to_all(writers)
    assert shards_of(writers) == {0: 2, 1: 2}
    await learner.sample(10)
    await local_test.settle(1.0)
    assert set((await learner.sample(100)).keys % 512) == {0, 1}
    stats = await learner.stats()
    assert (stats.inserted, stats.coordinator.members.active, stats.coordinator.writers) == (120, (0, 1), 4)
    assert [shard.members for shard in stats.shards if shard is not None] == [stats.coordinator.members] * 2
    for writer in writers:
        await writer.close()


def test_a_new_shard_gets_the_largest_priority_of_the_fleet() -> None:
    def prioritized() -> Any:
        return relive.PrioritizedReplayBuffer(1000, alpha=1.0, epsilon=0.0, seed=0)

    async def main() -> None:
        fleet = local_test.LocalFleet(prioritized, 1)
        client = fleet.replay()
        fleet.buffer(0).add_episode(**COLUMNS)
        keys = np.unique((await client.sample(500)).keys)
        await client.update_priorities(keys, np.full(10, 7.0))
        await client.add_shard()
        assert await client.update_priorities([*keys[:1], 511], [1.0, 2.0]) == 1
        fleet.buffer(1).add_episode(**COLUMNS)
        assert fleet.buffer(1).sampler._total_weight == 70.0
        assert (await client.stats()).stale_priorities == 1

    local_test.run(main())


async def test_rows_of_a_drained_shard_are_drawn_until_they_age_out(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(3, directory=tmp_path)
    client = fleet.replay()
    writers = [client.writer(batch_steps=1) for _ in range(6)]
    await write_to_all(writers, 5)
    assert [len(buffer) for buffer in fleet.buffers()] == [100, 100, 100]
    await client.drain(1)
    await write_to_all(writers, 4)
    await local_test.settle(3.0)
    assert len(fleet.buffer(1)) == 100
    assert shards_of(writers) == {0: 3, 2: 3}
    assert set((await client.sample(300)).keys % 512) == {0, 1, 2}
    left = (await client.stats()).coordinator.left[1]
    assert left == 60
    restart_coordinator(fleet)
    assert await process_of(fleet).ping() == "pong"
    await local_test.settle(3.0)
    assert (await client.stats()).coordinator.left[1] == 540
    await write_to_all(writers, 8)
    await local_test.settle(3.0)
    assert (tmp_path / "shard-1").exists()
    await write_to_all(writers)
    await local_test.settle(3.0)
    assert not (tmp_path / "shard-1").exists()
    stats = await client.stats()
    assert (stats.coordinator.members.gone, len(stats.shards), stats.lost) == ((1,), 2, 0)
    assert set((await client.sample(300)).keys % 512) == {0, 2}
    assert sum(writer.lost for writer in writers) == 0


async def test_a_batch_sent_to_a_drained_shard_goes_elsewhere() -> None:
    fleet = fleet_of(2)
    client, operator = fleet.replay(), fleet.replay()
    # The third to come is at home in shard 0, and knows nothing of its end.
    async with operator.writer() as first, operator.writer() as second, client.writer(batch_steps=1) as writer:
        await write_to_all([first, second])
        await operator.drain(0)
        fleet.kill(0)
        for _ in range(2):
            await writer.add_episode(**COLUMNS)
        await local_test.settle(3.0)
        fleet.end(0)
        await writer.flush()
    await local_test.settle(3.0)
    assert (writer.stored, writer.lost, len(fleet.buffer(1))) == (20, 0, 30)
    assert (await operator.stats()).coordinator.members.gone == (0,)


# Writers and their homes.


@pytest.mark.parametrize("num_shards", [4, pytest.param(8, marks=pytest.mark.full)])
async def test_writers_return_to_their_home_shards_after_restarts(num_shards: int, tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(num_shards, seed=0, directory=tmp_path)
    client = fleet.replay()
    writers = [client.writer(batch_steps=10) for _ in range(8 * num_shards)]
    await write_to_all(writers)
    assert shards_of(writers) == dict.fromkeys(range(num_shards), 8)
    for shard in range(num_shards):
        fleet.kill(shard)
        for _ in range(2):
            for writer in writers:
                await writer.add_episode(**COLUMNS)
            await local_test.settle(1.0)
        assert len(shards_of(writers)) == num_shards - 1
        # The writers of a lost shard spread over the others.
        assert max(shards_of(writers).values()) <= 8 + 3
        fleet.start(shard)
        await local_test.settle(1.0)
        await write_to_all(writers)
    await write_to_all(writers)
    assert shards_of(writers) == dict.fromkeys(range(num_shards), 8)
    await client.drain(3)
    assert [await client.add_shard() for _ in range(2)] == [num_shards, num_shards + 1]
    await write_to_all(writers)
    assert set(shards_of(writers)) == {*range(num_shards + 2)} - {3}
    least = len(writers) // (num_shards + 1)
    assert set(shards_of(writers).values()) == {least, least + 1}
    for writer in writers:
        await writer.close()
        assert (writer.stored, writer.lost) == (10 * (3 * num_shards + 3), 0)
    assert sum(len(buffer) for buffer in fleet.buffers()) == len(writers) * writers[0].stored
    leases = [shard.writers for shard in (await client.stats()).shards if shard is not None]
    assert sum(leases) == 0


async def add(writer: Any, t: int, **end: Any) -> None:
    await writer.add(float(t), 0, 1.0, float(t + 1), **end)


async def test_an_open_episode_stays_in_its_shard_until_it_is_cut() -> None:
    fleet = local_test.LocalFleet(lambda: relive.RingReplayBuffer(1000, streams=4, seed=0), 2, lease=10.0)
    client = fleet.replay()
    writer: Any = client.writer(batch_steps=1)
    outbox = writer._outbox
    await add(writer, 0)
    await writer.flush()
    assert outbox._shard == 0
    await client.drain(0)
    for t in range(1, 4):
        await add(writer, t)
    await writer.flush()
    assert (outbox._shard, len(fleet.buffer(0))) == (0, 4)
    await add(writer, 4, terminated=True)
    await add(writer, 5)
    await writer.flush()
    assert (outbox._shard, len(fleet.buffer(0)), len(fleet.buffer(1))) == (1, 5, 1)
    await client.add_shard()
    await client.drain(1)
    for t in range(6, 20):
        await asyncio.sleep(1.0)
        await add(writer, t)
    await writer.close()
    assert outbox._shard == 2
    assert 8 <= len(fleet.buffer(1)) <= 12
    assert len(fleet.buffer(1)) + len(fleet.buffer(2)) == 15
    assert fleet.shard(1).stats().aborted == 1


async def test_a_silent_writer_returns_to_its_home_shard() -> None:
    fleet = fleet_of(2, lease=8.0)
    client = fleet.replay()
    writer: Any = client.writer(batch_steps=1)
    await writer.add_episode(**COLUMNS)
    await writer.flush()
    await client.drain(0)
    await local_test.settle(2.5)
    assert (writer._outbox._shard, fleet.shard(0).stats().writers) == (1, 0)
    fleet.gone |= {0, 1}
    await local_test.settle(10.0)
    # It has nothing to send, so it does not matter.
    await writer.close()
    assert writer.lost == 0


# Whatever dies.


class Load:
    """Writers and learners of a fleet, whose limiter keeps the writers as slow as the learners."""

    def __init__(self, fleet: local_test.LocalFleet, kind: str, writers: int, learners: int, seed: int) -> None:
        rng = random.Random(seed)
        self.fleet, self.kind = fleet, kind
        self.client = fleet.replay(seed)
        make = trouble_test.KINDS[kind][1]
        self.actors = [make(fleet.replay(number), number, random.Random(rng.random())) for number in range(writers)]
        self._learners = [fleet.replay(seed + number) for number in range(learners)]
        self.batches = [0] * learners
        self._learning: list[asyncio.Task[None]] = []
        self._acting: list[asyncio.Task[None]] = []

    def begin(self, episodes: int) -> None:
        self._learning = [asyncio.create_task(self._learn(number)) for number in range(len(self._learners))]
        self._acting = [asyncio.create_task(actor.act(episodes)) for actor in self.actors]

    async def _learn(self, number: int) -> None:
        while True:
            options = {} if self.kind == "columns" else {"n": 1, "gamma": 1.0}
            batch = await self._learners[number].sample(16, **options)
            assert len(batch) == 16
            self.batches[number] += 1
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        """Wait for the writers, which are still at work, and check that every step is stored once."""
        assert not any(task.done() for task in self._acting)
        await asyncio.gather(*self._acting)
        for task in self._learning:
            task.cancel()
        ends = await asyncio.gather(*self._learning, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        for actor in self.actors:
            await actor.writer.close()
            assert (actor.writer.stored, actor.writer.lost, actor.writer.refused) == (len(actor.given), 0, 0)
        assert trouble_test.stored_in(self.fleet, self.kind) == trouble_test.given_by(self.actors)
        assert min(self.batches) > 10


LIMITER = relive.SampleToInsertRatio(1.0, min_size=10, error_buffer=200.0)
LONG = [pytest.param(20, seed, marks=pytest.mark.long, id=f"block{seed}") for seed in range(8)]


@pytest.mark.parametrize(("kills", "seed"), [(3, 0), *LONG])
@pytest.mark.parametrize("kind", ["columns", "episodes"])
async def test_a_coordinator_that_dies_loses_nothing(kind: str, kills: int, seed: int, tmp_path: pathlib.Path) -> None:
    rng = random.Random(seed)
    fleet = local_test.LocalFleet(
        trouble_test.KINDS[kind][0], 3, directory=tmp_path, seed=seed, timeout=1.0, lease=2.0, limiter=LIMITER
    )
    load = Load(fleet, kind, writers=3, learners=2, seed=seed)
    await load.client.drain(2)
    load.begin(15 * kills)
    for _ in range(kills):
        await asyncio.sleep(rng.random() * 0.3)
        before = await process_of(fleet).members()
        fleet.kill_coordinator()
        await asyncio.sleep(rng.random() * 0.3)
        fleet.start_coordinator()
        after = await process_of(fleet).members()
        assert (after.active, after.shards) == (before.active, before.shards)
    await load.end()
    restart_coordinator(fleet)
    stats = await load.client.stats()
    assert stats.coordinator.inserted is not None
    # Any backlog is forgiven: what was under way, of at most 4 batches of 20 steps of each writer.
    assert 0 <= stats.inserted - stats.coordinator.inserted <= 240


ROUNDS = pytest.mark.parametrize(
    ("shards", "rounds", "seed"),
    [
        (2, 1, 0),
        *[pytest.param(4, 5, seed, marks=pytest.mark.long, id=f"block{seed}") for seed in range(6)],
    ],
)


@ROUNDS
@pytest.mark.parametrize("kind", ["columns", "episodes"])
async def test_a_rolling_restart_loses_nothing(
    kind: str, shards: int, rounds: int, seed: int, tmp_path: pathlib.Path
) -> None:
    settings: Any = {"timeout": 1.0, "lease": 2.0, "recovery": 600.0, "limiter": LIMITER}
    fleet = local_test.LocalFleet(trouble_test.KINDS[kind][0], shards, directory=tmp_path, seed=seed, **settings)
    load = Load(fleet, kind, writers=2 * shards, learners=2, seed=seed)
    load.begin(75 * rounds)
    for shard in [*range(shards)] * rounds:
        await restart(fleet, shard)
    await load.end()
    # After it each writer is at home again.
    for actor in load.actors:
        writer = actor.writer
        outbox = getattr(writer._outbox, "_outboxes", {None: writer._outbox})[None]
        assert outbox._shard == outbox._writer % shards
    # And once more, from the files alone.
    for shard in range(shards):
        fleet.kill(shard)
    restart_coordinator(fleet)
    for shard in range(shards):
        fleet.start(shard)
    assert trouble_test.stored_in(fleet, kind) == trouble_test.given_by(load.actors)
    stats = await fleet.replay().stats()
    assert (stats.lost, stats.coordinator.members.active) == (0, tuple(range(shards)))


@ROUNDS
async def test_a_rolling_restart_tears_no_group(shards: int, rounds: int, seed: int, tmp_path: pathlib.Path) -> None:
    rng, model, size = random.Random(seed), consumption_test.Model(), consumption_test.SIZE
    settings: Any = {"timeout": 1.0, "lease": 2.0, "recovery": 600.0, "limiter": LIMITER, "seed": seed}
    settings["admission"] = relive.Admission(max_lag=2, episodes_per_version=8 * size)
    fleet = local_test.LocalFleet(consumption_test.grouped(redeliver=True), shards, directory=tmp_path, **settings)
    numbers, version, batches, is_over = itertools.count(), 0, [0, 0], False

    async def act(client: Any) -> int:
        """Play groups, all of whose episodes were admitted, until the restarts are over; return how many steps."""
        writer = client.episodes_writer(batch_steps=rng.choice([1, 5]), max_in_flight=rng.choice([1, 3]))
        async with writer:
            while not is_over:
                with await client.admit(size) as ticket:
                    group = next(numbers)
                    for member in range(size):
                        await consumption_test.play(writer, group, member, version, ticket=ticket)
                        await asyncio.sleep(rng.random() * 0.1)
        assert (writer.lost, writer.refused) == (0, 0)
        return int(writer.stored)

    async def draw(client: Any, learner: int) -> None:
        while True:
            batches[learner] += len(await client.sample(16, n=1, gamma=1.0)) == 16
            await asyncio.sleep(0.02)

    async def train(client: Any, learner: int) -> None:
        """Train on each group; the first learner leads."""
        nonlocal version
        while True:
            since = asyncio.get_running_loop().time()
            for group in await client.next_groups(1 + learner):
                now = asyncio.get_running_loop().time()
                model.deliveries.append((since, now, consumption_test.check_group(group)))
            if not learner:
                version += 1
                await client.set_policy_version(version)
                await client.ack(version)

    learners = [fleet.replay(seed + number) for number in range(2)]
    await learners[0].set_policy_version(0)
    learning = [asyncio.create_task(work(learners[number], number)) for work in (draw, train) for number in (0, 1)]
    acting = [asyncio.create_task(act(fleet.replay(number))) for number in range(2 * shards)]
    for shard in [*range(shards)] * rounds:
        fleet.kill(shard)
        model.kills.append((asyncio.get_running_loop().time(), shard))
        await asyncio.sleep(0.5)
        fleet.start(shard)
        await asyncio.sleep(1.0)
    assert not any(task.done() for task in [*acting, *learning])
    is_over = True
    stored = sum(await asyncio.gather(*acting))
    groups = next(numbers)
    await local_test.settle(20.0)
    assert {group for *_, group in model.deliveries} == set(range(groups))
    for task in learning:
        task.cancel()
    ends = await asyncio.gather(*learning, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert min(batches) > 5 * shards
    # Every step is there once, in a whole group; also in the files.
    of_members = {(group, member): 1 + (group + member) % 4 for group in range(groups) for member in range(size)}
    given = [(*of_member, 0, t) for of_member, steps in of_members.items() for t in range(steps)]
    assert stored == len(given)
    for _ in range(2):
        found = []
        for shard, buffer in enumerate(fleet.buffers()):
            buffer.check()
            of_groups = collections.Counter(each.group_id for each in local_test.episodes_in(buffer, finished=True))
            assert set(of_groups.values()) == {size}
            assert groups / 2 / shards < len(of_groups) < 2 * groups / shards
            model.places |= {int(group.removeprefix("group-")): shard for group in of_groups}
            found += [
                step
                for each in local_test.episodes_in(buffer, finished=True)
                for step in each.observations[: len(each)]
            ]
        assert sorted(found) == given
        for shard in range(shards):
            fleet.kill(shard)
            fleet.start(shard)
    # What came twice was delivered by a process that was killed, and not acknowledged.
    model.check(redelivers=True)
    assert (await fleet.replay().stats()).lost == 0
