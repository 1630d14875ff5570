"""Calls of a fleet that mean what they mean for one buffer: by key, of all keys, and `clear`."""

import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.fleet import joint_tokens_test
from relive.fleet import local_test
from relive.fleet import replay_test


def fleet_keys(fleet: local_test.LocalFleet, **options: Any) -> list[int]:
    """Return what the shards themselves say of their keys, in order of the shards."""
    found: list[int] = []
    for number in fleet.processes:
        shard: Any = fleet.shard(number)
        found += [512 * (key + shard._first_key) + number for key in fleet.buffer(number).eligible_keys(**options)]
    return found


async def test_eligible_keys_are_those_of_all_shards() -> None:
    fleet = replay_test.fleet_of(replay_test.ring, timeout=1.0)
    client = fleet.replay()
    assert (await client.eligible_keys()).tolist() == []
    replay_test.fill(fleet)
    keys = await client.eligible_keys()
    assert keys.dtype == np.int64
    assert keys.tolist() == fleet_keys(fleet)
    assert len(keys) == len(replay_test.ALL)
    assert {*(await client.sample(200)).keys.tolist()} == {*keys.tolist()}
    with pytest.raises(TypeError, match="max_lag"):
        await client.eligible_keys(max_lag=1)
    fleet.kill(3)
    assert (await client.eligible_keys()).tolist() == keys[:4].tolist()


async def test_eligible_keys_of_tokens_are_chosen_by_lag(tmp_path: pathlib.Path) -> None:
    fleet = joint_tokens_test.token_fleet(directory=tmp_path)
    client = fleet.replay()
    with pytest.raises(errors.ArgumentError, match="call set_policy_version first"):
        await client.eligible_keys(max_lag=0)
    fleet.kill(0)
    await client.set_policy_version(4)
    fleet.start(0)
    await local_test.settle(1.0)
    assert fleet.buffer(0).policy_version is None  # It was lost when the others learned of it.
    keys = await client.eligible_keys(max_lag=2)
    assert fleet.buffer(0).policy_version == 4
    assert keys.tolist() == fleet_keys(fleet, max_lag=2)
    assert 0 < len(keys) < len(await client.eligible_keys())
    for wrong in (-1, 1.5):
        with pytest.raises(errors.ArgumentError, match="max_lag must be"):
            await client.eligible_keys(max_lag=wrong)


async def test_priorities_are_read_by_the_keys_of_batches() -> None:
    fleet = replay_test.fleet_of(replay_test.prioritized(), timeout=1.0)
    replay_test.fill(fleet)
    client = fleet.replay()
    keys = await client.eligible_keys()
    given = np.arange(1.0, len(keys) + 1)
    await client.update_priorities(keys, given)
    order = np.random.default_rng(0).integers(len(keys), size=50)
    found = await client.get_priorities(keys[order])
    assert found.dtype == np.float64
    assert found.tolist() == given[order].tolist()
    assert (await client.get_priorities([])).tolist() == []
    late = keys[-1:].copy()
    fleet.buffer(3).clear()
    assert await client.update_priorities(late, [9.0]) == 0
    with pytest.raises(errors.UnknownKeyError, match=f"^key {late[0]} not found: its step was evicted, or never was$"):
        await client.get_priorities([keys[0], late[0]])
    fleet.kill(0)
    with pytest.raises(errors.ShardLostError):
        await client.get_priorities(keys[:1])
    assert (await client.get_priorities(keys[3:4])).tolist() == [4.0]


async def test_lengths_and_micro_batches_are_those_of_one_buffer(tmp_path: pathlib.Path) -> None:
    fleet = joint_tokens_test.token_fleet(directory=tmp_path)
    client = fleet.replay()
    keys = np.random.default_rng(1).choice(await client.eligible_keys(), 40)
    own = [int(fleet.buffer(key % 512).lengths([key // 512])[0]) for key in keys.tolist()]
    assert (await client.lengths(keys)).tolist() == own == (await client.read(keys)).lengths.tolist()
    assert (await client.lengths([])).tolist() == []
    parts = relive.micro_batches(own, max_tokens=30, ranks=2)
    expected = [[keys[places].tolist() for places in of_rank] for of_rank in parts]
    found = await client.micro_batches(keys, max_tokens=30, ranks=2)
    assert [[each.tolist() for each in of_rank] for of_rank in found] == expected
    for call in (client.lengths, client.read):
        with pytest.raises(
            errors.UnknownKeyError, match="^key 51200 not found: its sequence was evicted, or never was"
        ):
            await call([*keys, 100 * 512])
        with pytest.raises(errors.UnknownKeyError, match="^key 511 not found: the fleet has no shard 511"):
            await call([*keys, 511])
        with pytest.raises(errors.UnknownKeyError, match="not found: the fleet has no shard 511"):
            await call([-1])
    with pytest.raises(errors.ArgumentError, match=r"lengths must be in \[1, max_tokens = 1\], got 7"):
        await client.micro_batches(keys, max_tokens=1)
    fleet.kill(1)
    with pytest.raises(errors.ShardLostError):
        await client.micro_batches(keys, max_tokens=30)


async def test_keys_of_a_shard_that_was_added_later_are_found() -> None:
    fleet = replay_test.fleet_of(replay_test.prioritized(), 2)
    early, client = fleet.replay(), fleet.replay()
    shard = await client.add_shard()
    fleet.buffer(shard).add_episode(**replay_test.columns_of(shard, 3))
    keys = await client.eligible_keys()
    assert {*(keys % 512).tolist()} == {shard}
    assert (await early.get_priorities(keys)).tolist() == [1.0] * 3


@pytest.mark.parametrize("make", [replay_test.ring, replay_test.prioritized(beta=0.5), replay_test.sequences])
def test_sampled_keys_are_those_of_sample(make: Any) -> None:
    async def drawn(keys_only: bool) -> list[int]:
        fleet = replay_test.fleet_of(make)
        replay_test.fill(fleet)
        for number in fleet.processes:
            fleet.shard(number)._first_key = 0
            fleet.buffer(number).rng.bit_generator.state = np.random.PCG64(number).state
        client = fleet.replay()
        batches = [await client.sample_keys(20) if keys_only else (await client.sample(20)).keys for _ in range(5)]
        assert all(len(batch) == 20 for batch in batches)
        assert (await client.stats()).sampled >= 100
        return [key for batch in batches for key in batch.tolist()]

    assert local_test.run(drawn(keys_only=True)) == local_test.run(drawn(keys_only=False))


async def test_keys_are_sampled_by_priority_without_reading_rows() -> None:
    limiter = relive.SampleToInsertRatio(1.0, min_size=5, error_buffer=100.0)
    fleet = replay_test.fleet_of(replay_test.prioritized(), limiter=limiter)
    replay_test.fill(fleet)
    client = fleet.replay()
    keys = await client.eligible_keys()
    weights = np.array([0.0, *[1.0] * 5, *[2.0] * 6])
    for buffer in fleet.buffers():
        buffer._window = None
    await client.sample_keys(1)
    await client.update_priorities(keys, weights)
    drawn = np.concatenate([await client.sample_keys(20) for _ in range(5)])
    counts = [int((drawn == key).sum()) for key in keys]
    testing.assert_frequencies(counts, (weights / weights.sum()).tolist())
    await local_test.never(client.sample_keys(20))
    with pytest.raises(errors.ArgumentError, match="batch_size must be at least 1, got 0"):
        await client.sample_keys(0)


async def test_a_second_trip_for_sampled_keys_reads_no_rows_either() -> None:
    fleet = replay_test.fleet_of(replay_test.prioritized(), 2)
    replay_test.fill(fleet, (3, 3))
    client = fleet.replay()
    await client.sample_keys(8)
    for number, buffer in enumerate(fleet.buffers()):
        buffer._window = None
        buffer.update_priorities([0, 1, 2], [1.0 + 99 * number] * 3)
    assert len(await client.sample_keys(200)) == 200


@pytest.mark.parametrize("make", [replay_test.ring, replay_test.episodes, joint_tokens_test.tokens])
@pytest.mark.parametrize("has_files", [False, True])
def test_a_fleet_is_cleared_and_nothing_counts_as_lost(make: Any, has_files: bool, tmp_path: pathlib.Path) -> None:
    async def clear() -> None:
        fleet = local_test.LocalFleet(make, 2, directory=tmp_path if has_files else None, timeout=1.0)
        client = fleet.replay()
        for number, buffer in enumerate(fleet.buffers()):
            if make is replay_test.episodes:
                replay_test.live(buffer, number, 3)
            elif make is replay_test.ring:
                buffer.add_episode(**replay_test.columns_of(number, 3))
            else:
                buffer.add_episode([joint_tokens_test.token_step(number, 1)], agent_id=f"{number} 1")
        before = await client.stats()
        assert before.size > 0
        assert await client.clear() is None  # type: ignore[func-returns-value]  # As on one buffer.
        assert await client.clear() is None  # type: ignore[func-returns-value]
        after = await client.stats()
        assert (after.size, after.inserted) == (0, before.inserted)
        for number in range(2):
            fleet.kill(number)
            with pytest.raises(errors.ShardLostError):
                await client.clear()
            fleet.start(number)
            await local_test.settle(2.0)
        again = await client.stats()
        assert (again.size, again.lost) == (0, 0)

    local_test.run(clear())


async def test_the_other_shards_are_cleared_beside_a_lost_one(tmp_path: pathlib.Path) -> None:
    fleet = replay_test.fleet_of(replay_test.ring, 3, directory=tmp_path, timeout=1.0)
    replay_test.fill(fleet, (3, 3, 3))
    client = fleet.replay()
    fleet.kill(1)
    with pytest.raises(errors.ShardLostError):
        await client.clear()
    fleet.start(1)
    await local_test.settle(2.0)
    assert [len(buffer) for buffer in fleet.buffers()] == [0, 3, 0]


async def test_calls_that_the_buffers_lack_are_refused() -> None:
    columns = replay_test.fleet_of(replay_test.ring, 1).replay()
    agents = replay_test.fleet_of(replay_test.episodes, 1).replay()
    tokens = replay_test.fleet_of(joint_tokens_test.tokens, 1).replay()
    for client, kind in ((columns, "RingReplayBuffer"), (agents, "EpisodeReplayBuffer")):
        with pytest.raises(errors.ArgumentError, match=f"lengths needs buffers of tokens, got {kind}"):
            await client.lengths([0])
        with pytest.raises(errors.ArgumentError, match=f"micro_batches needs buffers of tokens, got {kind}"):
            await client.micro_batches([0], max_tokens=3)
    for client, kind in ((columns, "RingReplayBuffer"), (agents, "EpisodeReplayBuffer"), (tokens, "TokenReplayBuffer")):
        with pytest.raises(errors.ArgumentError, match=f"get_priorities needs buffers with priorities, got {kind}"):
            await client.get_priorities([0])
    for client, kind in ((agents, "EpisodeReplayBuffer"), (tokens, "TokenReplayBuffer")):
        with pytest.raises(errors.ArgumentError, match=f"sample_keys needs buffers of columns, got {kind}"):
            await client.sample_keys(3)
    with pytest.raises(errors.ArgumentError, match="eligible_keys needs buffers of columns or tokens, got Episode"):
        await agents.eligible_keys()


@local_test.virtual
async def test_what_is_no_shard_or_function_is_refused_before_a_call() -> None:
    """An array cannot be compared, and True would be shard 1."""
    client = local_test.LocalFleet(lambda: relive.RingReplayBuffer(9)).replay()
    for shard in (True, np.zeros(3), "1"):
        with pytest.raises(errors.ArgumentTypeError, match=r"^shard must be an integer of at least 0, got "):
            await client.drain(shard)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentTypeError, match=r"^function must be a function, got 'len'$"):
        await client.apply("len")  # type: ignore[arg-type]
