"""Those who wait for a queue of a fleet ask no shard meanwhile, are woken at once, and do so without their client."""

import asyncio
import collections
import sys
from typing import Any

import pytest

import relive
from relive.fleet import admission_service
from relive.fleet import admission_test
from relive.fleet import consumption_test
from relive.fleet import deliveries
from relive.fleet import local_test
from relive.fleet import news
from relive.fleet import replies

SIZE = consumption_test.SIZE


def now() -> float:
    return asyncio.get_running_loop().time()


def calls_of(fleet: local_test.LocalFleet) -> collections.Counter[str]:
    """Return how often each method of a shard was called since this was asked last."""
    found = collections.Counter([method for _, method, _ in fleet.calls])
    fleet.calls.clear()
    return found


async def test_nobody_asks_the_shards_while_nothing_happens() -> None:
    rule = relive.Admission(max_lag=0, episodes_per_version=2)
    fleet = local_test.LocalFleet(consumption_test.singles(), 3, admission=rule)
    learner, actor = fleet.replay(), fleet.replay()
    async with actor.episodes_writer() as writer:
        with await actor.admit(2) as ticket:
            for number in range(2):
                await admission_test.play(writer, ticket, number)
    assert len(await learner.next_episodes(2)) == 2
    await asyncio.sleep(5.0)
    calls_of(fleet)
    await asyncio.sleep(100.0)
    assert not calls_of(fleet)
    # Those who wait look once a second.
    learning = asyncio.create_task(learner.next_episodes(1))
    acting = [asyncio.create_task(each.admit()) for each in (learner, actor)]
    await asyncio.sleep(100.0)
    calls = calls_of(fleet)
    assert calls.keys() == {"take", "places"}
    assert all(280 <= count <= 330 for count in calls.values())
    for task in [learning, *acting]:
        task.cancel()
    await asyncio.sleep(5.0)
    calls_of(fleet)
    await asyncio.sleep(100.0)
    assert not calls_of(fleet)


@pytest.mark.parametrize("what", ["end", "version", "reject", "put back", "abandon"])
async def test_those_who_wait_hear_at_once(what: str) -> None:
    rule = relive.Admission(max_lag=0, episodes_per_version=2)
    fleet = local_test.LocalFleet(consumption_test.grouped(), 2, admission=rule, lease=1.0)
    client, other = fleet.replay(), fleet.replay()
    await client.set_policy_version(0)
    ids: list[str] = []
    async with client.episodes_writer() as writer:
        with await client.admit(2) as ticket:
            for number in range(1 + (what != "end")):
                await admission_test.play(writer, ticket, number)
            if what == "abandon":
                ids = []
            elif what != "end":
                await writer.flush()
                ids = [each.episode_id for each in await client.next_episodes(2)]
            await asyncio.sleep(3.3)
            if what in ("end", "put back"):
                waiting: Any = asyncio.create_task(other.next_episodes(2))
            else:
                waiting = asyncio.create_task(other.admit(2))
            await asyncio.sleep(7.77)
            assert not waiting.done()
            start = now()
            if what == "end":
                await admission_test.play(writer, ticket, 1)
                await writer.flush()
            elif what == "version":
                await client.set_policy_version(1)
            elif what == "reject":
                await client.reject(ids)
            elif what == "put back":
                queue: Any = client._queues["episodes"]
                for shard in range(2):
                    queue._shards.run(queue._put_back(shard, queue._number))
            else:
                await client.reject([each.episode_id for each in await client.next_episodes(2)])
            await waiting
            assert now() - start < 0.1


async def test_news_that_died_with_their_client_are_seen_in_a_second() -> None:
    fleet = local_test.LocalFleet(consumption_test.singles(), 2)
    learner = fleet.replay()
    waiting = asyncio.create_task(learner.next_episodes(1))
    await asyncio.sleep(7.7)
    buffer = fleet.buffer(1)
    buffer.end_episode_nowait(start(buffer), 1)
    began = now()
    await waiting
    assert 0.0 < now() - began <= 1.0


def start(buffer: Any) -> str:
    episode_id: str = buffer.start_episode_nowait("agent", policy_version=0)
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0)
    return episode_id


async def test_tickets_are_given_in_the_order_of_asking() -> None:
    fleet = local_test.LocalFleet(consumption_test.singles(), 1, admission=relive.Admission(0, 1))
    clients, order = [fleet.replay() for _ in range(6)], list[int]()
    first = await clients[0].admit()

    async def admit(number: int) -> None:
        (await clients[number].admit()).release()
        order.append(number)

    tasks = []
    for number in range(6):
        tasks.append(asyncio.create_task(admit(number)))
        await asyncio.sleep(0.3)
    tasks[2].cancel()
    await asyncio.sleep(20.0)
    first.release()
    await asyncio.sleep(1.0)
    assert order == [0, 1, 3, 4, 5]


async def test_a_busy_queue_wakes_a_waiter_only_now_and_then() -> None:
    own, woken = news.News(), 0

    async def wait() -> None:
        nonlocal woken
        seen = own.count
        while True:
            seen = await own.wait(seen)
            woken += 1

    waiting = asyncio.create_task(wait())
    for _ in range(1000):
        own.tell()
        await asyncio.sleep(0.001)
    waiting.cancel()
    assert 40 <= woken <= 110


@pytest.mark.parametrize("make", [consumption_test.singles, consumption_test.grouped])
async def test_a_look_costs_the_same_however_much_is_stored(make: Any) -> None:
    fleet, costs = local_test.LocalFleet(make(), 1), []
    buffer, shard = fleet.buffer(0), fleet.shard(0)
    shard.places([], replies.Policy(version=0))
    stored = 0
    for count in (100, 3000):
        while stored < count:
            buffer.end_episode_nowait(start(buffer), 1)
            stored += 1
        shard.ping()
        calls = 0

        def called(*_: Any) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(called)
        places = shard.places([bytes(16)])
        sys.setprofile(None)
        assert places.outstanding == count
        costs.append(calls)
    assert costs[0] == costs[1] < 90


class Shards:
    """What shards say to an AdmissionService, as a test sets it."""

    def __init__(self, rule: relive.Admission, num_shards: int = 1) -> None:
        self.looks = 0
        self.service = admission_service.AdmissionService(rule, 30.0, self.look)
        self.places = {shard: self.said() for shard in range(num_shards)}

    def said(self, version: int | None = 0, **places: Any) -> deliveries.Places:
        none: dict[str, Any] = {"delivered": 0, "outstanding": 0, "running": 0, "uses": {}}
        return deliveries.Places(incarnation=0, policy=replies.Policy(version=version), **(none | places))

    async def look(self, *_: Any) -> dict[int, deliveries.Places]:
        self.looks += 1
        return dict(self.places)


async def test_a_large_ticket_is_not_overtaken_by_small_ones() -> None:
    service = Shards(relive.Admission(0, 4)).service
    assert await service.admit(b"first", 2)
    asking = asyncio.create_task(service.admit(b"large", 3))
    await asyncio.sleep(0.1)
    assert not await service.admit(b"small", 1)
    # The one who asked for the large one asks no more.
    assert not await asking
    await asyncio.sleep(1.5)
    assert await service.admit(b"small", 1)
    assert b"large" not in service._tickets


async def test_a_shard_that_knows_no_new_version_counts_for_a_second() -> None:
    shards = Shards(relive.Admission(0, 4), 2)
    service = shards.service
    shards.places = {0: shards.said(1), 1: shards.said(0, delivered=4)}
    start = now()
    assert not await service.admit(b"ticket", 1)
    assert await service.admit(b"ticket", 1)
    assert 1.0 <= now() - start <= 2.5


async def test_a_place_that_came_back_stays_back() -> None:
    shards = Shards(relive.Admission(0, 2), 2)
    assert await shards.service.admit(b"ticket", 2)
    shards.places = {0: shards.said(uses={b"ticket": {1: True}}), 1: shards.said(uses={b"ticket": {1: False}})}
    assert not await shards.service.admit(b"other", 1)
    assert shards.service._tickets[b"ticket"].left == 2


async def test_a_first_call_looks_at_once() -> None:
    shards = Shards(relive.Admission(0, 2))
    asking = asyncio.create_task(shards.service.admit(b"large", 2))
    shards.places[0] = shards.said(outstanding=2)
    await asyncio.sleep(0.5)
    looks = shards.looks
    shards.places[0] = shards.said()
    other = asyncio.create_task(shards.service.admit(b"other", 2))
    await asyncio.sleep(0.1)
    assert shards.looks == looks + 1
    assert await asking
    other.cancel()
