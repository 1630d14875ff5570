"""What learners of a fleet consume once: each episode or group comes whole, and not twice, whatever dies or hangs.

Observations say what they are: (group, member, attempt, t).
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable
import functools
import pathlib
import random
import shutil
from typing import Any, cast
import zlib

import pytest

import relive
from relive import errors
from relive.agents import queue
from relive.fleet import coordinator
from relive.fleet import deliveries
from relive.fleet import disk_test
from relive.fleet import holds
from relive.fleet import local_test
from relive.fleet import replay

SIZE = 3


def grouped(**settings: Any) -> Any:
    return lambda: relive.EpisodeReplayBuffer[Any, Any](groups=relive.Groups(SIZE), seed=0, **settings)


def singles(**settings: Any) -> Any:
    return lambda: relive.EpisodeReplayBuffer[Any, Any](seed=0, **settings)


def tokens(**settings: Any) -> Any:
    return lambda: relive.TokenReplayBuffer(100_000, groups=relive.Groups(SIZE), seed=0, **settings)


async def play(
    writer: Any, group: int, member: int, version: int = 0, attempt: int = 0, *, ends: bool = True, ticket: Any = None
) -> None:
    """Write an episode of a group, or only begin it."""
    of_group = {"group_id": f"group-{group}", "policy_version": version, "ticket": ticket}
    async with writer.episode(f"agent-{member}", **of_group) as episode:
        for t in range(1 + (group + member) % 4):
            await episode.append((group, member, attempt, t), t, 1.0)
        if ends:
            await episode.end("over")


def member_writer(client: Any) -> tuple[Any, Callable[[int, int], Awaitable[Any]]]:
    """Return a writer of episodes or of tokens, as the buffers are, and what plays a member of a group."""
    if "tokens" not in client._description.writer:
        writer = client.episodes_writer()
        return writer, functools.partial(play, writer)
    writer = client.tokens_writer()

    async def add(group: int, member: int) -> None:
        step = relive.TokenStep(prompt=[group], response=[member], logprobs=[0.0], policy_version=0)
        await writer.add_episode([step], agent_id="a", group_id=f"group-{group}")

    return writer, add


async def live(writer: Any, number: int, version: int | None = 0, steps: int = 2) -> None:
    """Write an episode that belongs to no group."""
    async with writer.episode("agent", policy_version=version) as episode:
        for t in range(steps):
            await episode.append((number, t), t, 1.0)
        await episode.end("over")


def check_group(group: list[Any]) -> int:
    """Check that a group is whole, and so are its episodes; return its number."""
    (number,) = {each.observations[0][0] for each in group}
    assert [each.group_id for each in group] == [f"group-{number}"] * SIZE
    assert sorted(each.observations[0][1] for each in group) == list(range(SIZE))
    for each in group:
        member, attempt = each.observations[0][1:3]
        steps = 1 + (number + member) % 4
        assert each.status == "COMPLETED"
        assert each.observations == [*[(number, member, attempt, t) for t in range(steps)], "over"]
        assert each.actions == list(range(steps))
    return int(number)


class Model:
    """What was written, delivered and dropped, and when shards were killed: a list of events."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[float, float, int]] = []
        """When the call began and returned, and the group."""
        self.places: dict[int, int] = {}
        self.kills: list[tuple[float, int]] = []

    def check(self, *, redelivers: bool) -> None:
        """Check that nothing came twice, but for what its shard had delivered when it was killed."""
        last: dict[int, float] = {}
        for since, now, group in self.deliveries:
            if group in last:
                assert redelivers
                assert any(last[group] <= then <= now and shard == self.places[group] for then, shard in self.kills)
            last[group] = since


async def learn(client: replay.Replay[Any], model: Model, rng: random.Random, num_groups: int, max_lag: int) -> None:
    """Consume groups until each was delivered or dropped as stale; some calls are cancelled."""
    loop, version = asyncio.get_running_loop(), 0
    await client.set_policy_version(version)
    while True:
        try:
            since = loop.time()
            async with asyncio.timeout(rng.random() * 2):
                groups = await client.next_groups(rng.choice([1, 1, 2, 3]), max_lag=max_lag)
        except TimeoutError:
            num_stale = sum((await client.get_drops()).get("stale", {}).values())
            if len({group for *_, group in model.deliveries}) + num_stale // SIZE >= num_groups:
                return
            continue
        for group in groups:
            assert min(each.policy_version for each in group) >= version - max_lag
            model.deliveries.append((since, loop.time(), check_group(group)))
        if rng.random() < 0.3:
            version += 1
            await client.set_policy_version(version)


async def act(client: replay.Replay[Any], model: Model, rng: random.Random, members: list[tuple[int, int]]) -> None:
    """Play members of groups; an attempt may be aborted, and is made again."""
    versions: dict[int, int] = {}
    async with client.episodes_writer(batch_steps=rng.choice([1, 5]), max_in_flight=rng.choice([1, 3])) as writer:
        for group, member in members:
            attempt = 0
            version = versions.setdefault(group, client._draws.policy.version or 0)
            while rng.random() < 0.2:
                await play(writer, group, member, version, attempt, ends=False)
                attempt += 1
            await play(writer, group, member, version, attempt)
            await asyncio.sleep(rng.random() * 0.05)
    assert (writer.lost, writer.refused) == (0, 0)


class Trouble(local_test.Trouble):
    """Trouble that a model knows of."""

    model: Model

    async def make(self) -> None:
        fleet: Any = self.fleet
        kill, loop = fleet.kill, asyncio.get_running_loop()

        def noted(shard: int) -> None:
            self.model.kills.append((loop.time(), shard))
            kill(shard)

        fleet.kill = noted
        await super().make()


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 60))])
@pytest.mark.parametrize("redeliver", [True, False])
async def test_groups_arrive_complete_and_once_whatever_dies(
    seed: int, redeliver: bool, tmp_path: pathlib.Path
) -> None:
    rng, model, num_groups = random.Random(seed), Model(), 40
    more: dict[str, Any] = {"timeout": 0.5, "delay": 0.35 if seed % 2 else 0.01, "recovery": 600.0}
    fleet = local_test.LocalFleet(grouped(redeliver=redeliver), 3, directory=tmp_path, seed=seed, **more)
    client = fleet.replay()
    members = [(group, member) for group in range(num_groups) for member in range(SIZE)]
    trouble = Trouble(fleet, rng)
    trouble.model = model
    learners = [asyncio.create_task(learn(client, model, rng, num_groups, 1000)) for _ in range(1)]
    async with trouble.around():
        await asyncio.gather(*[act(fleet.replay(), model, rng, members[each::4]) for each in range(4)])
        await asyncio.sleep(5.0)
    for shard, buffer in enumerate(fleet.buffers()):
        for episode in local_test.episodes_in(buffer, finished=True):
            if episode.group_id is None:  # A failed attempt that came late.
                assert episode.status == "ABORTED"
                continue
            group = int(episode.group_id.removeprefix("group-"))
            model.places[group] = shard
            assert await fleet.coordinator("place_group", episode.group_id) == shard
    if redeliver:
        await asyncio.gather(*learners)
        assert {group for *_, group in model.deliveries} == set(range(num_groups))
    else:
        learners[0].cancel()
        await asyncio.gather(*learners, return_exceptions=True)
    model.check(redelivers=redeliver)
    # Each group is whole where it is.
    for buffer in fleet.buffers():
        counts = collections.Counter(
            each.group_id for each in local_test.episodes_in(buffer, finished=True) if each.status != "ABORTED"
        )
        assert set(counts.values()) <= {SIZE}


async def test_groups_that_are_too_old_are_dropped_in_all_shards() -> None:
    fleet = local_test.LocalFleet(grouped(), 3)
    client = fleet.replay()
    with pytest.raises(errors.ArgumentError, match="max_lag asks for the learner's policy version"):
        await client.next_groups(1, max_lag=1)
    async with client.episodes_writer() as writer:
        for group in range(12):
            for member in range(SIZE):
                await play(writer, group, member, version=group)
    await client.set_policy_version(9)
    groups = await client.next_groups(5, max_lag=2)
    assert sorted(check_group(group) for group in groups) == [7, 8, 9, 10, 11]
    assert {reason: sum(each.values()) for reason, each in (await client.get_drops()).items()} == {"stale": 7 * SIZE}
    totals = await client.get_training_bias()
    assert (totals.produced.episodes, totals.trained.episodes) == (12 * SIZE, 5 * SIZE)
    assert totals.trained.mean_policy_version == 9.0


@pytest.mark.parametrize("make", [grouped, tokens])
async def test_only_unacknowledged_groups_come_again_after_a_restart(make: Any, tmp_path: pathlib.Path) -> None:
    fleet = local_test.LocalFleet(make(redeliver=True), 2, directory=tmp_path)
    client = fleet.replay()
    writer, add = member_writer(client)
    async with writer:
        for group in range(12):
            for member in range(SIZE):
                await add(group, member)
        await writer.flush()
    delivered = []
    for version in range(3):
        await client.set_policy_version(version)
        groups = await client.next_groups(3)
        delivered.append({int(group[0].group_id.removeprefix("group-")) for group in groups})
    await client.ack(2)
    fleet.kill(0)
    fleet.kill(1)
    fleet.start(0)
    fleet.start(1)
    rest = {int(group[0].group_id.removeprefix("group-")) for group in await client.next_groups(6)}
    assert rest == set(range(12)) - delivered[0] - delivered[1]
    await local_test.never(client.next_groups(1))


async def test_a_lost_reply_is_delivered_to_the_next_call() -> None:
    fleet = local_test.LocalFleet(singles(), 1, timeout=1.0)
    client, other = fleet.replay(), fleet.replay()
    async with client.episodes_writer() as writer:
        for number in range(4):
            await live(writer, number)
        await writer.flush()
        is_answered = asyncio.Event()

        async def answered(shard: int, method: str) -> None:
            if method == "take":
                await is_answered.wait()

        # Taken in the shards, while the reply is on its way.
        fleet.answered = answered
        call = asyncio.create_task(client.next_episodes(4))
        await asyncio.sleep(0.5)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()
        is_answered.set()
        fleet.answered = None
        assert numbers(await other.next_episodes(4)) == [0, 1, 2, 3]

        # The reply does not come in time.
        await live(writer, 4)
        await writer.flush()

        async def hangs(shard: int, method: str) -> None:
            if method == "take":
                fleet.hang(0)

        fleet.answered = hangs
        call = asyncio.create_task(client.next_episodes(1))
        await asyncio.sleep(3.0)
        fleet.answered = None
        assert not call.done()
        fleet.go_on(0)
        assert numbers(await call) == [4]


def numbers(episodes: list[Any]) -> list[int]:
    return sorted(each.observations[0][0] for each in episodes)


async def test_old_groups_that_were_put_back_are_dropped() -> None:
    fleet = local_test.LocalFleet(grouped(max_episodes=2 * SIZE + 2), 1)
    client = fleet.replay()

    async def taken(count: int) -> None:
        """Let a call take groups, and put them back."""

        async def answered(shard: int, method: str) -> None:
            if method == "take":
                await asyncio.sleep(1.0)

        fleet.answered = answered
        await local_test.never(client.next_groups(count), 0.5)
        fleet.answered = None
        await asyncio.sleep(2.0)

    async def write(*groups: int, version: int = 0) -> list[str]:
        async with client.episodes_writer() as writer:
            for group in groups:
                for member in range(SIZE):
                    await play(writer, group, member, version)
        return [each.episode_id for each in local_test.episodes_in(fleet.buffer(0), finished=True)]

    await client.set_policy_version(0)
    ids = await write(0, 1)
    await taken(2)
    # With one of its episodes the whole group.
    assert await client.reject([ids[1]], reason="ugly") == SIZE
    assert [check_group(group) for group in await client.next_groups(1)] == [1]
    await write(2, 3)
    await taken(2)
    assert [check_group(group) for group in await client.next_groups(1, accept=is_odd)] == [3]
    await write(4, version=1)
    await write(5, version=2)
    await taken(2)
    await client.set_policy_version(3)
    assert [check_group(group) for group in await client.next_groups(1, max_lag=1)] == [5]
    await write(6)
    await taken(1)
    await write(7, 8)
    await write(9)
    # What was evicted meanwhile is not delivered.
    assert [check_group(group) for group in await client.next_groups(1)] == [8]
    drops = await client.get_drops()
    assert {reason: sum(each.values()) for reason, each in drops.items()} == {
        "evicted": 2 * SIZE,
        "rejected": SIZE,
        "stale": SIZE,
        "ugly": SIZE,
    }


def is_odd(group: list[Any]) -> bool:
    return bool(group[0].observations[0][0] % 2)


async def test_two_learners_share_all_groups_without_deadlock() -> None:
    fleet = local_test.LocalFleet(grouped(), 4, seed=3)
    clients = [fleet.replay(seed) for seed in range(2)]
    got: list[list[int]] = [[], []]

    async def learn(number: int) -> None:
        for _ in range(10):
            groups = await clients[number].next_groups(4)
            got[number] += [check_group(group) for group in groups]

    async def write() -> None:
        async with fleet.replay().episodes_writer() as writer:
            # Never more ahead than the two need for one call each.
            for group in range(80):
                while group - sum(map(len, got)) >= 8:
                    await local_test.settle(0.01)
                for member in range(SIZE):
                    await play(writer, group, member)
                await writer.flush()

    await asyncio.gather(learn(0), learn(1), write())
    assert sorted(got[0] + got[1]) == list(range(80))


def test_calls_of_one_client_are_served_in_turn() -> None:
    async def main() -> replay.Replay[Any]:
        fleet = local_test.LocalFleet(singles(), 2)
        client = fleet.replay()
        calls = [asyncio.create_task(client.next_episodes(count)) for count in (3, 1)]
        async with client.episodes_writer() as writer:
            for number in range(3):
                await live(writer, number)
            await writer.flush()
            await asyncio.sleep(1.0)
            assert [call.done() for call in calls] == [True, False]
            await live(writer, 3)
        assert numbers(await calls[1]) == [3]
        return client

    client = local_test.run(main())

    async def again() -> None:
        for _ in range(2):  # None of the shards is there any more.
            await local_test.never(asyncio.gather(client.next_episodes(1), client.next_episodes(1)), 1.0)

    local_test.run(again())


async def test_closing_a_fleet_wakes_a_waiting_learner() -> None:
    fleet = local_test.LocalFleet(singles(), 2)
    client = fleet.replay()
    call = asyncio.create_task(client.next_episodes(1))
    await asyncio.sleep(1.0)
    fleet.gone = {0, 1}
    fleet.kill_coordinator()
    with pytest.raises(errors.ClosedError, match="the fleet was closed"):
        await call


async def test_invalid_requests_are_refused() -> None:
    client = local_test.LocalFleet(singles(), 2).replay()
    for text, call in (
        ("count must be", client.next_episodes(0)),
        ("max_lag must be", client.next_episodes(1, max_lag=-1)),
        ("accept must be a function, got 1", client.next_episodes(1, accept=1)),  # type: ignore[arg-type]
        ("next_groups needs a buffer with groups", client.next_groups(1)),
        ("episode_ids must be a list of strings, got 'a'", client.reject("a")),
        ("episode_ids must be a list of strings, got 1", client.reject(1)),  # type: ignore[arg-type]
        ("reason must be a string of at least 1", client.reject([], reason="")),
        ("ack needs a buffer that delivers again", client.ack(0)),
        ("none was set", local_test.LocalFleet(singles(redeliver=True), 2).replay().ack(0)),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            await call
    columns = local_test.LocalFleet(lambda: relive.RingReplayBuffer(9), 1).replay()
    text = "next_groups needs buffers of episodes or tokens, got RingReplayBuffer"
    with pytest.raises(errors.ArgumentError, match=text):
        await columns.next_groups(1)


async def test_group_ids_have_no_effect_without_a_group_rule() -> None:
    fleet = local_test.LocalFleet(singles(), 2)
    client = fleet.replay()
    async with client.episodes_writer(batch_steps=1) as writer:
        await play(writer, 0, 0)
    assert len(await client.next_episodes(1)) == 1
    assert "place_group" not in [method for _, method, _ in fleet.calls]


async def test_unconfirmed_deliveries_are_forgotten_in_time() -> None:
    fleet = local_test.LocalFleet(singles(), 1, lease=10.0, recovery=20.0)
    client = fleet.replay()
    async with client.episodes_writer() as writer:
        await live(writer, 0)
    await client.next_episodes(1)
    shard: Any = fleet.shard(0)
    await asyncio.sleep(45.0)
    shard.ping()
    assert len(shard._queue._sent) == 1
    await asyncio.sleep(10.0)
    shard.ping()
    assert not shard._queue._sent


# Groups.


async def written(client: replay.Replay[Any], count: int) -> None:
    """Write so many single episodes."""
    async with client.episodes_writer() as writer:
        for number in range(count):
            await live(writer, number)
    await client.set_policy_version(0)


async def all_that_comes(client: replay.Replay[Any]) -> list[int]:
    """Return the numbers of the episodes that are delivered within a few seconds."""
    found: list[int] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            while True:
                found += numbers(await client.next_episodes(1))
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_a_learner_acknowledges_while_the_next_request_runs(seed: int) -> None:
    rng = random.Random(seed)
    client = local_test.LocalFleet(singles(redeliver=True), 2, seed=seed, delay=0.02).replay()
    await written(client, 40)
    found, episodes = [], await client.next_episodes(4)
    for version in range(1, 9):
        found += numbers(episodes)
        request = asyncio.create_task(client.next_episodes(4))
        await asyncio.sleep(rng.random() * 0.05)
        await client.set_policy_version(version)
        await client.ack(version)
        episodes = await request
    assert len({*found, *numbers(episodes)}) == 36


async def test_unconfirmed_deliveries_are_put_back_by_the_next_request() -> None:
    fleet = local_test.LocalFleet(singles(), 1)
    await written(fleet.replay(), 4)

    def take(number: int, kept: int) -> list[int]:
        wanted = deliveries.Wanted("episodes", 2)
        units, *_ = fleet.shard(0).take(deliveries.Request(bytes(16), number, kept), 2, wanted, None)
        return numbers([episode for (episode,) in units])

    assert [take(1, 0), take(2, 0), take(3, 2)] == [[0, 1], [0, 1], [2, 3]]
    fleet.shard(0).put_back(bytes(16), 2)  # It comes too late: request 3 has confirmed that.
    assert fleet.shard(0).places([]).outstanding == 0


async def test_episodes_are_put_back_once_a_disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = local_test.LocalFleet(singles(), 1)
    first, second = fleet.replay(), fleet.replay()
    await written(first, 4)
    fleet.hang(0)
    await local_test.never(first.next_episodes(4), 0.5)
    monkeypatch.setattr(queue.LearnerQueue, "put_back", full)
    fleet.go_on(0)
    await local_test.settle(2.5)
    monkeypatch.undo()
    await local_test.settle(1.0)
    assert await all_that_comes(second) == [0, 1, 2, 3]


def full(*_: Any) -> None:
    raise errors.CheckpointError("No space left on device")


async def test_a_learner_that_only_takes_finds_new_shards() -> None:
    fleet = local_test.LocalFleet(singles(), 1)
    learner, operator = fleet.replay(), fleet.replay()
    await written(operator, 1)
    assert numbers(await learner.next_episodes(1)) == [0]
    assert await operator.add_shard() == 1
    writers = [operator.episodes_writer() for _ in range(2)]
    for number, writer in enumerate(writers):
        await live(writer, number)
        await writer.close()
    assert [len(local_test.episodes_in(buffer, finished=True)) for buffer in fleet.buffers()] == [2, 1]
    assert numbers(await learner.next_episodes(2)) == [0, 1]


async def test_acknowledged_episodes_of_two_learners_never_come_again(tmp_path: pathlib.Path) -> None:
    fleet = local_test.LocalFleet(singles(redeliver=True), 1, directory=tmp_path)
    first, second = fleet.replay(), fleet.replay()
    await written(first, 6)
    await first.next_episodes(2)
    await second.next_episodes(2)
    kept = numbers(await first.next_episodes(1))
    for client in (first, second):
        await client.set_policy_version(1)
    await first.ack(1)
    # What the other learner has, or may not have received, is not acknowledged.
    shutil.copytree(tmp_path, tmp_path / "then")
    await second.ack(1)
    fleet.kill(0)
    fleet.start(0)
    assert await all_that_comes(fleet.replay()) == [5]
    then = local_test.LocalFleet(singles(redeliver=True), 1, directory=tmp_path / "then")
    assert (await all_that_comes(then.replay()), kept) == ([2, 3, 5], [4])


async def test_requests_to_a_hung_shard_are_put_back() -> None:
    fleet = local_test.LocalFleet(singles(), 1, timeout=1.0)
    first, second = fleet.replay(), fleet.replay()
    await written(first, 4)
    fleet.hang(0)
    await local_test.never(first.next_episodes(4), 3.0)
    fleet.go_on(0)
    await local_test.settle(2.0)
    assert await all_that_comes(second) == [0, 1, 2, 3]
    # Nobody waits for a shard that is gone.
    fleet.hang(0)
    await local_test.never(first.next_episodes(1), 3.0)
    fleet.end(0)
    await local_test.settle(2.0)
    assert not first._shards._tasks


@pytest.mark.parametrize("make", [grouped(), tokens()])
async def test_a_group_stays_together_when_the_fleet_changes(make: Any) -> None:
    fleet = local_test.LocalFleet(make, 2)
    client: Any = fleet.replay()
    writer, add = member_writer(client)
    async with writer:
        for group in range(12):
            await add(group, 0)
        await writer.flush()
        await client.add_shard()
        fleet.kill_coordinator()
        fleet.start_coordinator()
        for group in range(12):
            for member in range(1, SIZE):
                await add(group, member)
        await writer.flush()
        found = [group[0].group_id for group in await client.next_groups(12)]
        assert sorted(found) == sorted(f"group-{group}" for group in range(12))


async def test_a_group_is_lost_if_its_shard_does_not_return(tmp_path: pathlib.Path) -> None:
    fleet = local_test.LocalFleet(grouped(), 2, directory=tmp_path, timeout=1.0, recovery=10.0)
    client = fleet.replay()
    home = await fleet.coordinator("place_group", "group-0")
    async with client.episodes_writer(batch_steps=1) as writer:
        await play(writer, 0, 0)
        await writer.flush()
        fleet.kill(home)
        await play(writer, 0, 1)
        await live(writer, 7)  # Others go to the other shard.
        await asyncio.sleep(5.0)
        fleet.start(home)
        await play(writer, 0, 2)
        await writer.flush()
        assert [check_group(group) for group in await client.next_groups(1)] == [0]
        assert fleet.buffer(1 - home).get_stats().total_episodes == 1
        fleet.kill(home)
        other = 1
        while await fleet.coordinator("place_group", f"group-{other}") != home:
            other += 1
        await play(writer, other, 0)
        assert writer.lost == 0
        await writer.flush()
        assert writer.lost == 1 + other % 4
        # When the fleet is closed, what is begun is lost at once.
        with pytest.raises(errors.ClosedError, match="the fleet was closed"):
            async with writer.episode("agent", group_id="group-0") as episode:
                await episode.append(0, 0, 1.0)
                for shard in (0, 1):
                    fleet.end(shard)
                await client.stats()
                await asyncio.sleep(1.0)
                await episode.end(1)
                await writer.flush()


async def test_groups_do_not_move_when_shards_come_and_go() -> None:
    fleet = local_test.LocalFleet(grouped(), 4)
    names = [f"group-{number}" for number in range(40)]
    places = [await fleet.coordinator("place_group", name) for name in names]
    assert set(places) == {0, 1, 2, 3}
    fleet.kill_coordinator()
    fleet.start_coordinator()
    assert [await fleet.coordinator("place_group", name) for name in reversed(names)] == places[::-1]
    await written(fleet.replay(), 1)
    await fleet.coordinator("drain", 1)
    assert [await fleet.coordinator("place_group", name) for name in names] == places
    later = [await fleet.coordinator("place_group", f"{name} later") for name in names]
    assert set(later) == {0, 2, 3}


@pytest.mark.parametrize("what", ["a group is held", "a learner asks", "nothing"])
async def test_a_drained_shard_waits_for_its_groups(what: str) -> None:
    fleet = local_test.LocalFleet(grouped(), 2, lease=5.0, timeout=1.0)
    client = fleet.replay()
    home = await fleet.coordinator("place_group", "group-0")
    groups = iter(range(1, 99))
    async with client.episodes_writer() as writer:

        async def fill() -> None:
            """Write as much to the other shard as there was in both."""
            for _ in range(4):
                group = next(groups)
                for member in range(SIZE):
                    await play(writer, group, member)
            await writer.flush()
            await asyncio.sleep(3.0)

        for member in range(SIZE - (what == "a group is held")):
            await play(writer, 0, member)
        await writer.flush()
        await client.drain(home)
        await asyncio.sleep(2.0)
        learner = asyncio.create_task(client.next_groups(99 if what == "a learner asks" else 1))
        await fill()
        if what == "a group is held":
            await asyncio.sleep(20.0)
            fleet.kill_coordinator()
            fleet.start_coordinator()
            await client.stats()
            await asyncio.sleep(20.0)
            assert not fleet.gone
            await play(writer, 0, SIZE - 1)
        elif what == "a learner asks":
            await asyncio.sleep(20.0)
            assert not fleet.gone
            learner.cancel()
        await asyncio.sleep(2.0)
        await fill()
        await fill()
        await asyncio.sleep(10.0)
        assert fleet.gone == {home}
        assert (writer.lost, writer.refused) == (0, 0)


async def test_a_held_group_keeps_its_place_at_a_coordinator_restart() -> None:
    fleet = local_test.LocalFleet(grouped(), 2, lease=4.0)
    client = fleet.replay()
    writer: Any = client.episodes_writer()
    places = [await writer._holds.place(f"group-{number}") for number in range(20)]
    await client.add_shard()
    await client.add_shard()
    fleet.kill_coordinator()
    fleet.start_coordinator()
    await asyncio.sleep(2.0)
    assert [await fleet.coordinator("place_group", f"group-{number}") for number in range(20)] == places
    await writer.close()


async def test_the_coordinator_remembers_a_bounded_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_MOST_PLACES", 10)
    fleet = local_test.LocalFleet(grouped(), 2)
    for number in range(30):
        await fleet.coordinator("place_group", f"group-{number}")
    assert fleet.coordinator_process is not None
    assert list(fleet.coordinator_process._places or ()) == [f"group-{number}" for number in range(20, 30)]


async def test_a_group_episode_torn_in_a_crash_is_stored_again(tmp_path: pathlib.Path) -> None:
    for stored in range(7):
        fleet = local_test.LocalFleet(grouped(), 1, directory=tmp_path / str(stored), timeout=1.0)
        buffer = fleet.buffer(0)
        append, end, calls = buffer.append_observation_action_reward_nowait, buffer.end_episode_nowait, [0]

        def dies(call: Any, most: int = stored, calls: list[int] = calls, buffer: Any = buffer) -> Any:
            def checked(*arguments: Any, **options: Any) -> Any:
                if calls[0] == most:
                    buffer.abort_episode_nowait = lambda _: None  # It has no time for that.
                    raise Killed
                calls[0] += 1
                return call(*arguments, **options)

            return checked

        client = fleet.replay()
        async with client.episodes_writer(batch_steps=100) as writer:
            await live(writer, 0)
            await play(writer, 0, 0)
            await writer.flush()
            buffer.append_observation_action_reward_nowait, buffer.end_episode_nowait = dies(append), dies(end)
            shard: Any = fleet.shard(0)
            shard._adapter.insert = as_a_process(shard._adapter.insert, fleet)
            await play(writer, 0, 1)  # Of two steps.
            await play(writer, 0, 2)  # Of three.
            flush = asyncio.create_task(writer.flush())
            await asyncio.sleep(5.0)
            assert fleet.processes[0] is None
            fleet.start(0)
            await flush
            assert [check_group(group) for group in await client.next_groups(1)] == [0]
            assert writer.stored == 2 + 1 + 2 + 3


async def test_a_group_episode_on_a_full_disk_is_stored_later(tmp_path: pathlib.Path) -> None:
    for stored in range(3):
        fleet = local_test.LocalFleet(grouped(), 1, directory=tmp_path / str(stored))
        client, disk = fleet.replay(), disk_test.Disk(fleet, 0, stored, is_known=stored != 1)
        async with client.episodes_writer() as writer:
            for member in (1, 2, 0):
                await play(writer, 0, member)
            await asyncio.sleep(3.0)
            assert fleet.shard(0).stats().disk is not None
            disk.free()
            await writer.flush()
            assert [check_group(group) for group in await client.next_groups(1)] == [0]
            assert (writer.stored, writer.refused, writer.lost) == (1 + 2 + 3, 0, 0)


class Killed(BaseException):
    """The process dies here."""


def as_a_process(insert: Any, fleet: local_test.LocalFleet) -> Any:
    """Return `insert`, in which the process of shard 0 may die."""

    def inserted(*arguments: Any) -> None:
        try:
            insert(*arguments)
        except Killed:
            fleet.kill(0)
            raise RuntimeError from None

    return inserted


async def add_tokens(writer: Any, group_id: str, status: str = "COMPLETED") -> None:
    """Write an episode of a group of tokens."""
    step = relive.TokenStep(prompt=[1], response=[2], logprobs=[0.0], policy_version=0)
    await writer.add_episode([step], agent_id="agent", group_id=group_id, status=status)


async def add_steps(writer: Any, group_id: str, status: str = "COMPLETED") -> None:
    """Write an episode of a group of an episode buffer."""
    async with writer.episode("agent", group_id=group_id) as episode:
        await episode.append(0, 0, 1.0)
        await episode.end(1, status)


@pytest.mark.parametrize("make", [grouped, tokens])
async def test_a_group_has_the_names_that_a_plain_buffer_takes(make: Any) -> None:
    add = add_tokens if make is tokens else add_steps
    client = local_test.LocalFleet(make(), 2).replay()
    async with client.tokens_writer() if make is tokens else client.episodes_writer() as writer:
        with pytest.raises(errors.ArgumentError, match="^group_id must be a string of at least 1 character, got ''$"):
            await add(writer, "")
        for _ in range(SIZE):
            await add(writer, "\ud800")
        ((first, *_),) = await client.next_groups(1)
        assert first.group_id == "\ud800"


async def test_metadata_comes_back_with_episodes_of_a_fleet() -> None:
    fleet = local_test.LocalFleet(singles(), 2)
    client = fleet.replay()
    async with client.episodes_writer(batch_steps=1) as writer:
        for number in range(4):
            known: dict[str, Any] = {"number": number, "list": [number]}
            async with writer.episode(f"agent-{number}", metadata=known) as episode:
                known["list"].clear()
                for t in range(5):
                    await episode.append(t, t, 1.0)
                await episode.end(5)
        with pytest.raises(errors.ArgumentTypeError, match="metadata must be a mapping from strings to values, got 1"):
            async with writer.episode("agent", metadata=cast(Any, 1)):
                pass
    delivered: list[Any] = await client.next_episodes(4)
    for each in [*delivered, *await client.sample(20, n=1, gamma=1.0)]:
        number = int(each.agent_id[-1])
        assert each.metadata == {"number": number, "list": [number]}


async def test_late_aborted_tokens_do_not_need_their_group() -> None:
    client = local_test.LocalFleet(tokens(), 1).replay()
    async with client.tokens_writer() as writer:
        for status in [*["COMPLETED"] * SIZE, "ABORTED"]:
            await add_tokens(writer, "group", status)
        await writer.flush()
        assert (writer.stored, writer.refused) == (SIZE + 1, 0)
        assert len((await client.next_groups(1))[0]) == SIZE
        await add_tokens(writer, "group")
        with pytest.raises(errors.ArgumentError, match="no episode can start in group 'group'"):
            await writer.flush()


async def test_a_drained_shard_waits_for_a_learner_in_doubt() -> None:
    fleet = local_test.LocalFleet(grouped(redeliver=True), 1)
    async with fleet.replay().episodes_writer() as writer:
        for member in range(SIZE):
            await play(writer, 0, member)
    shard = fleet.shard(0)
    wanted = deliveries.Wanted("groups", 1)
    units, *_ = shard.take(deliveries.Request(b"l" * 16, 1, 0), 1, wanted, None)
    assert (len(units), shard.retire([])) == (1, False)  # The reply may be lost, and the group be put back.


async def test_a_group_is_placed_by_the_newest_list_of_shards() -> None:
    fleet = local_test.LocalFleet(grouped(), 3, timeout=1.0)
    client = fleet.replay()
    writer = client.episodes_writer()
    group = next(group for group in range(99) if zlib.crc32(f"group-{group}".encode()) % 3 == 2)
    await fleet.coordinator("members")
    fleet.hang(0)  # The coordinator asks it which groups it has.
    playing = [asyncio.create_task(play(writer, group, member)) for member in range(SIZE)]
    await asyncio.sleep(0.1)
    await client.drain(2)
    await asyncio.sleep(4.0)
    fleet.go_on(0)
    await asyncio.gather(*playing)
    await writer.close()
    assert writer.lost == 0
    assert [check_group(each) for each in await client.next_groups(1)] == [group]


async def test_episodes_of_a_lost_shard_are_not_rejected() -> None:
    fleet = local_test.LocalFleet(singles(), 2, timeout=1.0)
    client = fleet.replay()
    async with client.episodes_writer() as writer, writer.episode("a") as episode:
        await episode.append(0, 0, 1.0)
        await episode.end(1)
    (one,) = await client.next_episodes(1)
    fleet.kill([len(buffer) for buffer in fleet.buffers()].index(0))
    assert await client.reject([one.episode_id]) == 1


async def test_a_group_may_be_let_go_while_it_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "_MOST_HELD", 1)
    fleet = local_test.LocalFleet(grouped(), 2)
    writer: Any = fleet.replay().episodes_writer()
    places = await asyncio.gather(*[writer._holds.place(f"group-{number}") for number in range(3)])
    assert set(places) <= {0, 1}
    assert list(writer._holds._held) == ["group-2"]
    await writer.close()
