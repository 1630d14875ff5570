"""A learner of a fleet that comes back: no other client, late reply or restarted shard can undo that it resumed."""

import asyncio
import contextlib
import itertools
import pathlib
import random
from typing import Any

import pytest

import relive
from relive import errors
from relive.fleet import adapter_test
from relive.fleet import consumption_test
from relive.fleet import deliveries
from relive.fleet import disk_test
from relive.fleet import local_test
from relive.fleet import replies

pytestmark = pytest.mark.filterwarnings("error")
NUMBERS = itertools.count()
WANTED = deliveries.Wanted("episodes", 9)


def fleet_of(path: pathlib.Path | None = None, shards: int = 2, *, redeliver: bool = True, **settings: Any) -> Any:
    make = consumption_test.singles(redeliver=redeliver)
    return local_test.LocalFleet(make, shards, directory=path, **settings)


def store(fleet: Any, *versions: int) -> None:
    """Store an episode of each version, in the shards in turn."""
    for number, version in enumerate(versions):
        shard = number % len(fleet.processes)
        chunk = adapter_test.steps_of(0, 1, final=(1, "COMPLETED"), agent_id=f"{number}", policy_version=version)
        writer = b"%16d" % next(NUMBERS)
        assert fleet.shard(shard).insert(adapter_test.batch_of(writer, 0, chunk)).outcome == "STORED"


def versions_of(fleet: Any) -> list[int]:
    return [buffer.policy_version for buffer in fleet.buffers()]


def agents(episodes: Any) -> list[str]:
    return sorted(episode.agent_id for episode in episodes)


@local_test.virtual
async def test_a_learner_of_a_fleet_resumes_from_older_weights() -> None:
    fleet = fleet_of()
    client, other = fleet.replay(), fleet.replay()
    for version in range(1, 4):
        await client.set_policy_version(version)
        store(fleet, version, version)
        assert len(await client.next_episodes(2)) == 2
    await client.ack(2)
    again = fleet.replay()  # Of a learner that was restarted.
    with pytest.raises(errors.ArgumentError, match="got 2: resume_policy_version goes back$"):
        await again.set_policy_version(2)
    await again.resume_policy_version(2)
    assert versions_of(fleet) == [2, 2]
    found = await again.next_episodes(4, max_lag=0)
    assert sorted(episode.policy_version for episode in found) == [2, 2, 3, 3]
    # Another client has not heard of it, and goes on as before.
    await other.sample(3, n=1, gamma=1.0)
    rule = "^version must be of weights that go on from version 2, from which another learner has resumed, got 4: load"
    with pytest.raises(errors.ArgumentError, match=rule):
        await client.set_policy_version(4)
    assert versions_of(fleet) == [2, 2]
    await client.set_policy_version(3)  # It has loaded them.
    assert versions_of(fleet) == [3, 3]


@local_test.virtual
async def test_a_shard_that_missed_it_goes_back_when_it_is_told(tmp_path: pathlib.Path) -> None:
    """From the oldest of the versions that it missed; and once it knows, its files do, too."""
    fleet = fleet_of(tmp_path, 2)
    client = fleet.replay()
    await client.set_policy_version(5)
    store(fleet, 5, 5)
    assert len(await client.next_episodes(2)) == 2
    fleet.kill(1)
    for version in (4, 6):
        await client.resume_policy_version(version)
    await client.set_policy_version(7)
    fleet.start(1)
    assert versions_of(fleet) == [7, 5]
    await local_test.settle(5.0)
    await client.sample(3, n=1, gamma=1.0)
    assert versions_of(fleet) == [7, 7]
    assert agents(await client.next_episodes(2)) == ["0", "1"]
    for shard in range(2):
        fleet.kill(shard)
        fleet.start(shard)
        old = replies.Policy((4,), 99)
        assert fleet.shard(shard).follow(old)[0] == ((4, 6), 7)
    assert versions_of(fleet) == [7, 7]


@local_test.virtual
async def test_a_shard_without_files_is_told_again() -> None:
    fleet = fleet_of()
    client = fleet.replay()
    await client.set_policy_version(5)
    await client.resume_policy_version(3)
    fleet.kill(0)
    fleet.start(0)
    assert versions_of(fleet) == [None, 3]
    stale = fleet.replay()
    stale._draws.policy = replies.Policy((), 5)
    store(fleet, 3, 3)
    assert len(await stale.sample(2, n=1, gamma=1.0)) == 2
    assert (versions_of(fleet), stale._draws.policy) == ([3, 3], ((3,), 3))


@local_test.virtual
async def test_a_reply_from_before_a_learner_resumed_is_not_kept() -> None:
    fleet = fleet_of(shards=1, seed=0, delay=1.0)
    client, other = fleet.replay(), fleet.replay()
    await client.set_policy_version(2)
    store(fleet, 2, 2)
    taking = asyncio.create_task(client.next_episodes(2))
    while not fleet.shard(0)._queue._sent:
        await local_test.settle(0.01)
    assert not taking.done()
    client._draws.learn([replies.Policy((1,), 1)])  # It hears of it before the reply arrives.
    await other.resume_policy_version(1)
    assert agents(await taking) == ["0", "1"]
    assert [call[1] for call in fleet.calls].count("take") > 1
    await local_test.never(other.next_episodes(1))


@local_test.virtual
async def test_what_comes_again_is_not_put_back_by_an_earlier_learner() -> None:
    fleet = fleet_of(shards=1)
    shard = fleet.shard(0)
    shard.follow(replies.Policy((), 2))
    store(fleet, 2, 2)

    def take(name: bytes, number: int, count: int) -> list[str]:
        units, *_ = shard.take(deliveries.Request(name * 16, number, 0), count, WANTED, shard._policy)
        return agents(episode for (episode,) in units)

    assert take(b"a", 1, 2) == ["0", "1"]
    shard.follow(replies.Policy((1,), 1))
    assert (take(b"b", 1, 2), take(b"a", 2, 0)) == (["0", "1"], [])
    assert take(b"c", 1, 1) == []
    store(fleet, 1)
    assert shard.take(deliveries.Request(b"late" * 4, 1, 0), 1, WANTED, replies.Policy((), 2))[0] == []
    shard.reject([episode.episode_id for episode in fleet.buffer(0)._store][2:], "seen")
    assert shard.places([]).delivered == 2


@local_test.virtual
async def test_an_ack_of_lost_weights_counts_up_to_those_resumed_from(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(tmp_path, 1)
    client, other = fleet.replay(), fleet.replay()
    for version in range(4):
        await client.set_policy_version(version)
        store(fleet, version)
        await client.next_episodes(1)
    await other.resume_policy_version(1)
    for version in range(1, 4):
        await other.set_policy_version(version)
        await other.next_episodes(1)
    await client.ack(3)  # It was under way.
    fleet.kill(0)
    fleet.start(0)
    assert [episode.policy_version for episode in await other.next_episodes(3)] == [1, 2, 3]
    await local_test.never(other.next_episodes(1))


@local_test.virtual
async def test_a_full_disk_delays_that_a_learner_resumes(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(tmp_path, 1)
    client = fleet.replay()
    await client.set_policy_version(3)
    store(fleet, 3)
    assert len(await client.next_episodes(1)) == 1
    disk = disk_test.Disk(fleet, 0, is_known=False)
    with pytest.raises(errors.CheckpointError, match="No space left"):
        fleet.shard(0).ack(2, 1, replies.Policy((2,), 2), {})  # It heard of that version with the call alone.
    await client.resume_policy_version(2)
    await local_test.never(client.next_episodes(1))
    with pytest.raises(errors.CheckpointError, match="No space left"):
        await client.ack(2)
    disk.free()
    assert agents(await client.next_episodes(1)) == ["0"]
    fleet.kill(0)
    fleet.start(0)
    assert fleet.shard(0)._policy == ((2, 2), 2)  # Twice: once with the call, then as the learner asked.


@local_test.virtual
async def test_what_is_too_old_for_the_learner_holds_no_place() -> None:
    fleet = fleet_of(shards=1, admission=relive.Admission(0, 1))
    client = fleet.replay()
    await client.set_policy_version(0)
    store(fleet, 0)
    await local_test.never(client.admit())
    await client.set_policy_version(5)
    await local_test.never(client.next_episodes(1, max_lag=0))
    assert (await client.admit()).left == 1
    await local_test.never(client.admit())


@local_test.virtual
async def test_columns_have_no_version_to_resume_from() -> None:
    client = local_test.LocalFleet(disk_test.ring, 1).replay()
    with pytest.raises(errors.ArgumentError, match="^resume_policy_version needs buffers of episodes or tokens, got"):
        await client.resume_policy_version(1)


# A learner that saves its weights every ten versions is killed; another one takes groups beside it.


class Run:
    """The saved weights, and the groups that are complete."""

    def __init__(self, seed: int) -> None:
        self.fleet = local_test.LocalFleet(
            consumption_test.grouped(redeliver=True), 2, seed=seed, admission=relive.Admission(2, 2 * GROUP)
        )
        self.saved: tuple[int, list[str]] = (0, [])
        self.version, self.complete = 0, set[str]()
        self.asked: asyncio.Queue[tuple[int, asyncio.Future[Any]]] = asyncio.Queue()

    async def act(self, name: str) -> None:
        client = self.fleet.replay()
        async with client.episodes_writer() as writer:
            for number in itertools.count():
                with await client.admit(GROUP) as ticket:
                    group: dict[str, Any] = {
                        "group_id": f"{name}/{number}",
                        "policy_version": self.version,
                        "ticket": ticket,
                    }
                    for _ in range(GROUP):
                        async with writer.episode("actor", **group) as episode:
                            await episode.append(0, 0, 1.0)
                            await episode.end(1)
                    await writer.flush()
                    self.complete.add(group["group_id"])

    async def assist(self) -> None:
        """Take a group for each that is asked for; one that came too late is for who asks next."""
        client, spare = self.fleet.replay(), list[tuple[int, Any]]()
        while True:
            generation, answer = await self.asked.get()
            spare = [each for each in spare if each[0] >= generation]
            if not spare:
                (group,) = await client.next_groups(1, max_lag=2)
                spare.append((len(client._draws.policy.resumed), group))
            if spare[0][0] == generation and not answer.cancelled():
                answer.set_result(spare.pop()[1])
            elif spare[0][0] < generation:  # It was delivered before a learner resumed.
                self.asked.put_nowait((generation, answer))

    async def learn(self, client: Any) -> None:
        self.version, trained = self.saved[0], [*self.saved[1]]
        await client.resume_policy_version(self.version)
        await client.ack(self.version)
        while True:
            answer = asyncio.get_running_loop().create_future()
            self.asked.put_nowait((len(client._resumed), answer))
            groups = [*await client.next_groups(1, max_lag=2), await answer]
            assert max(self.version - each.policy_version for group in groups for each in group) <= 2
            trained += [group[0].group_id for group in groups]
            self.version += 1
            if self.version % 10 == 0:
                self.saved = self.version, [*trained]
            await client.set_policy_version(self.version)
            if self.version % 10 == 0:
                await client.ack(self.version)


GROUP = consumption_test.SIZE


@pytest.mark.parametrize("kills", [pytest.param(4, marks=pytest.mark.full), pytest.param(20, marks=pytest.mark.long)])
@local_test.virtual
async def test_a_killed_learner_of_a_fleet_trains_each_group_once(kills: int) -> None:
    run, rng = Run(kills), random.Random(kills)
    others = [asyncio.create_task(run.act(f"{number}")) for number in range(3)]
    others.append(asyncio.create_task(run.assist()))
    for number in range(kills + 1):
        client = run.fleet.replay()
        learner = asyncio.create_task(run.learn(client))
        least = run.saved[0] + (10 if number == kills else 0)
        until = least + rng.randrange(5, 25)
        while run.version < until:
            await local_test.settle(0.05 * rng.random())
            assert not learner.done(), learner.exception()
        run.fleet.kill_client(client)
        learner.cancel()
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    version, trained = run.saved
    assert len(trained) == len(set(trained)) == 2 * version >= 20
    client, left = run.fleet.replay(), list[str]()
    await client.resume_policy_version(version)
    await client.ack(version)
    with contextlib.suppress(TimeoutError):
        while True:
            left += [(await asyncio.wait_for(client.next_groups(1), 5.0))[0][0].group_id]
    assert not set(left) & set(trained)
    num_stale = sum((await client.get_drops()).get("stale", {}).values()) // GROUP
    assert len({*left, *trained} & run.complete) + num_stale >= len(run.complete)
