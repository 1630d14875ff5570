"""Which shards answer: what is lost is asked again until it is there, and told what was progress of it."""

import asyncio
from typing import Any

import pytest

import relive
from relive import errors
from relive.fleet import adapter_test
from relive.fleet import local_test
from relive.fleet import membership
from relive.fleet import replies

W = b"w" * 16


def fleet_of(shards: int = 2, **more: Any) -> local_test.LocalFleet:
    return local_test.LocalFleet(lambda: relive.RingReplayBuffer(100, seed=0), shards, **more)


SETTINGS = membership.Settings(timeout=1.0, recovery=60.0, lease=30.0, has_limiter=False)


def members_in(fleet: local_test.LocalFleet) -> replies.Members:
    return replies.Members(version=1, active=tuple(fleet.processes))


def members_of(fleet: local_test.LocalFleet) -> membership.Membership:
    return membership.Membership(fleet, members_in(fleet), SETTINGS)


async def insert(members: membership.Membership, shard: int, writer: bytes, start: int) -> replies.Progress:
    chunk = adapter_test.columns(start, 5, "TERMINATED", is_start=True)
    progress: replies.Progress = (await members.ask(shard, "insert", adapter_test.batch_of(writer, 0, chunk))).progress
    return progress


async def test_a_shard_that_does_not_reply_is_lost_until_it_does() -> None:
    fleet = fleet_of()
    members = members_of(fleet)
    assert members.live() == [0, 1]
    assert await members.ask(1, "ping") == "pong"
    fleet.hang(1)
    with pytest.raises(errors.ShardLostError, match="shard 1 does not respond to ping"):
        await members.ask(1, "ping")
    assert members.live() == [0]
    calls = len(fleet.calls)
    text = "shard 1 does not respond: its process is being restarted"
    with pytest.raises(errors.ShardLostError, match=text):
        await members.ask(1, "host")
    assert await members.ask_or_none(1, "host") is None
    assert len(fleet.calls) == calls
    assert not await members.is_back(1, 3.0)
    fleet.go_on(1)
    assert await members.is_back(1, 3.0)
    assert await members.is_back(1, 0.0)
    assert members.live() == [0, 1]
    assert await members.ask_or_none(1, "ping") == "pong"


async def test_a_shard_that_is_gone_is_not_searched_for() -> None:
    fleet = fleet_of(3)
    members = members_of(fleet)
    fleet.gone.add(2)
    with pytest.raises(errors.ShardLostError, match="shard 2 is gone: it was closed"):
        await members.ask(2, "ping")
    with pytest.raises(errors.ShardLostError, match="shard 2 is gone$"):
        await members.ask(2, "ping")
    calls = len(fleet.calls)
    assert members.live() == [0, 1]
    assert not await members.is_back(2, 100.0)
    fleet.kill(1)
    assert await members.ask_or_none(1, "ping") is None
    assert len(fleet.calls) == calls + 1
    fleet.gone.add(1)
    assert not await members.is_back(1, 100.0)
    assert members.live() == [0]
    fleet.gone.add(0)
    assert await members.ask_or_none(0, "ping") is None
    with pytest.raises(errors.ClosedError, match="^the fleet was closed: start a new one$"):
        members.live()


async def test_a_shard_that_raises_does_not_count_as_lost() -> None:
    members = members_of(fleet_of())
    with pytest.raises(ZeroDivisionError):
        await members.ask(1, "apply", lambda buffer: 1 / len(buffer))
    assert members.live() == [0, 1]


async def test_an_unnoticed_restart_is_told_its_newest_progress() -> None:
    fleet = fleet_of()
    members = members_of(fleet)
    newest = await insert(members, 1, W, 0)
    older = replies.Progress(incarnation=newest.incarnation, inserted=3, rows=3, lost=0)
    assert not await members.note(1, newest)
    assert not await members.note(1, older)
    fleet.kill(1)
    fleet.start(1)
    assert await members.note(1, await insert(members, 1, W, 0))
    assert (fleet.shard(1).stats()).lost == 5
    assert not await members.note(1, await insert(members, 1, b"v" * 16, 10))
    assert (fleet.shard(1).stats()).lost == 5


async def test_a_returning_shard_is_told_its_progress_until_it_answers() -> None:
    fleet = fleet_of()
    members = members_of(fleet)
    assert not await members.note(1, await insert(members, 1, W, 0))
    assert not await members.note(1, None)
    fleet.kill(1)
    await members.ask_or_none(1, "ping")
    fleet.start(1)
    failures = ["report"]

    async def hang_once(shard: int, method: str) -> None:
        if method in failures:
            failures.remove(method)
            await asyncio.sleep(10.0)

    fleet.answered = hang_once
    assert await members.is_back(1, 10.0)
    assert [method for _, method, _ in fleet.calls].count("report") == 2
    assert [fleet.shard(shard).stats().lost for shard in (0, 1)] == [0, 5]


async def test_a_closed_membership_searches_for_no_shard() -> None:
    fleet = fleet_of()
    members = members_of(fleet)
    fleet.kill(1)
    await members.ask_or_none(1, "ping")
    members.close()
    calls = len(fleet.calls)
    await local_test.settle(10.0)
    assert len(fleet.calls) == calls


async def test_a_newer_list_of_shards_is_requested_once() -> None:
    fleet = fleet_of(2, seed=1, delay=1.0)
    members = members_of(fleet)
    await members.refresh()
    known = members.members
    await members.refresh()
    assert members.members is known
    await fleet.launch(2)
    process: Any = fleet.coordinator_process
    newest = await process.add(2)
    for _ in range(3):
        members.note_version(newest.version)
    await local_test.settle(5.0)
    assert members.members == newest
    assert sorted(members.live()) == [0, 1, 2]
    # A closed client does not ask, and of a closed fleet there is no list.
    members.note_version(newest.version + 1)
    members.close()
    await local_test.settle(5.0)
    fleet.gone |= {0, 1, 2}
    fleet.kill_coordinator()
    members.note_version(newest.version + 1)
    await local_test.settle(5.0)
    assert members.members == newest


async def test_writers_of_a_lost_shard_spread_over_the_others() -> None:
    fleet = fleet_of(4)
    members = members_of(fleet)
    assert [members.preferred(writer)[0] for writer in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    fleet.kill(1)
    await members.ask_or_none(1, "ping")
    assert [members.preferred(writer)[0] for writer in (1, 5, 9, 13)] == [2, 3, 0, 2]
    assert [members.preferred(writer)[0] for writer in (0, 2, 3)] == [0, 2, 3]


def test_a_lost_shard_is_searched_for_in_a_new_event_loop() -> None:
    fleets: list[local_test.LocalFleet] = []

    class Switched:
        """A transport to the fleet of the moment."""

        async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
            return await fleets[-1].call(shard, method, *arguments, seconds=seconds)

        coordinator: Any = None
        launch: Any = None
        end: Any = None

    members = membership.Membership(Switched(), replies.Members(version=1, active=(0, 1)), SETTINGS)

    async def lose() -> None:
        fleets.append(fleet_of())
        fleets[-1].kill(1)
        assert await members.ask_or_none(1, "ping") is None

    async def find() -> None:
        fleets.append(fleet_of())
        assert members.live() == [0]
        assert await members.is_back(1, 3.0)

    local_test.run(lose())
    local_test.run(find())


async def test_a_client_learns_of_shards_that_replaced_all_it_knew() -> None:
    fleet = local_test.LocalFleet(lambda: relive.RingReplayBuffer(9, streams=2), 1, timeout=1.0)
    admin, learner = fleet.replay(), fleet.replay()
    await fleet.coordinator("members")
    await learner.ping()
    fleet.kill(0)
    assert await learner.ping() == [None]
    await admin.add_shard()
    await admin.drain(0)
    fleet.end(0)
    await asyncio.sleep(3.0)
    assert (await learner.ping())[-1] == "pong"
