"""What actors of a fleet left unfinished when they died is ended, and what living ones hold is not."""

import asyncio
import pathlib
from typing import Any

import pytest

import relive
from relive import errors
from relive.fleet import consumption_test
from relive.fleet import local_test

LEASE = 10.0
SIZE = consumption_test.SIZE


def fleet_of(make: Any = consumption_test.grouped, **more: Any) -> local_test.LocalFleet:
    return local_test.LocalFleet(make(), 2, lease=LEASE, seed=0, **more)


async def add(writer: Any, group_id: str | None = None, **described: Any) -> None:
    if hasattr(writer, "add_episode"):
        step = relive.TokenStep(prompt=[1], response=[2], logprobs=[0.0], policy_version=0)
        await writer.add_episode([step], agent_id="agent", group_id=group_id, **described)
        return
    async with writer.episode("agent", group_id=group_id, **described) as episode:
        await episode.append(0, 0, 1.0)
        await episode.end(1)


MAKES = pytest.mark.parametrize("make", [consumption_test.grouped, consumption_test.tokens])


def writer_of(client: Any, make: Any) -> Any:
    return client.tokens_writer() if make is consumption_test.tokens else client.episodes_writer()


@MAKES
async def test_groups_of_dead_writers_are_abandoned(make: Any) -> None:
    fleet = fleet_of(make, admission=relive.Admission(max_lag=0, episodes_per_version=3 * SIZE))
    client, other = fleet.replay(), fleet.replay()
    await client.set_policy_version(0)
    dead, alive = writer_of(other, make), writer_of(client, make)
    ticket = await client.admit(3 * SIZE)
    for _ in range(SIZE):
        await add(dead, "whole", ticket=ticket)
    for writer, group_id in ((dead, "torn"), (dead, "torn too"), (alive, "mine"), (dead, "shared")):
        await add(writer, group_id, ticket=ticket)
        await writer.flush()
    await add(alive, "shared", ticket=ticket)
    await alive.flush()
    ticket.release()
    assert await client.abort_open_episodes() == 0
    fleet.kill_client(other)
    await asyncio.sleep(LEASE + 1)
    assert await client.abort_open_episodes() == 2
    assert await client.abort_open_episodes() == 0
    assert (await client.get_drops())["straggler"] == {"agent": 2}
    assert len((await client.next_groups(1))[0]) == SIZE
    async with asyncio.timeout(10):
        ticket = await client.admit(3 * SIZE - SIZE - 3)
    for _ in range(SIZE - 1):
        await add(alive, "mine", ticket=ticket)
    assert [len(group) for group in await client.next_groups(1)] == [SIZE]
    await alive.close()
    assert await client.abort_open_episodes() == 1  # Nobody holds the shared group any more.


async def test_open_episodes_are_aborted_when_their_lease_is_over() -> None:
    fleet = fleet_of(consumption_test.singles)
    client, *others = [fleet.replay() for _ in range(3)]
    writers = [other.episodes_writer(batch_steps=1) for other in others]
    blocks = [writer.episode("agent") for writer in writers]
    for block, writer in zip(blocks, writers, strict=True):
        await (await block.__aenter__()).append(0, 0, 1.0)
        await writer.flush()
    fleet.kill_client(others[0])
    assert await client.abort_open_episodes() == 0
    await asyncio.sleep(LEASE - 0.4)
    await client.ping()  # A shard looks for silent writers when it is called, but not at each call.
    await asyncio.sleep(0.6)
    assert await client.abort_open_episodes() == 1
    assert sorted(len(buffer._store.open) for buffer in fleet.buffers()) == [0, 1]
    assert await client.abort_open_episodes() == 0


@MAKES
def test_a_killed_fleet_goes_on_at_once(make: Any, tmp_path: pathlib.Path) -> None:
    async def live(life: int) -> None:
        rule = relive.Admission(max_lag=0, episodes_per_version=SIZE)
        fleet = fleet_of(make, admission=rule, directory=tmp_path)
        client = fleet.replay()
        start = asyncio.get_running_loop().time()
        assert await client.abort_open_episodes() == (life > 0)
        await client.set_policy_version(life)
        async with writer_of(client, make) as writer:
            async with asyncio.timeout(60):
                with await client.admit(SIZE) as ticket:
                    for _ in range(SIZE):
                        await add(writer, f"{life}", ticket=ticket)
                await client.next_groups(1)
                await client.set_policy_version(life + 1)
                await add(writer, f"{life} torn", ticket=await client.admit())
                await writer.flush()
            assert asyncio.get_running_loop().time() - start < LEASE / 4

    for life in range(5):
        local_test.run(live(life))


@MAKES
async def test_a_new_coordinator_learns_what_writers_hold(make: Any) -> None:
    fleet = fleet_of(make)
    client, other = fleet.replay(), fleet.replay()
    writer = writer_of(other, make)
    await add(writer, "mine")
    await writer.flush()
    await client.stats()
    await asyncio.sleep(1.0)
    fleet.kill_coordinator()
    fleet.start_coordinator()
    assert await client.abort_open_episodes() == 0
    fleet.kill_client(other)
    await asyncio.sleep(LEASE + 1)
    assert await client.abort_open_episodes() == 1


async def test_a_writer_holds_its_newest_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.fleet.holds._MOST_HELD", 2)
    fleet = fleet_of()
    client = fleet.replay()
    writer = client.episodes_writer()
    for group_id in ("a", "b", "a", "c"):
        await add(writer, group_id)
    await writer.flush()
    await asyncio.sleep(LEASE / 2)
    assert await client.abort_open_episodes() == 1
    assert (await client.get_drops())["straggler"] == {"agent": 1}


async def test_columns_cannot_abandon_groups() -> None:
    client = local_test.LocalFleet(lambda: relive.RingReplayBuffer(9), 1).replay()
    with pytest.raises(errors.ArgumentError, match="abort_open_episodes needs buffers of episodes or tokens"):
        await client.abort_open_episodes()
