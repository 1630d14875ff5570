"""A client of a fleet: draws that are those of one buffer, turns, versions, and shards that are gone."""

import asyncio
import collections
from collections.abc import Callable, Sequence
import contextlib
import math
import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.fleet import local_test
from relive.fleet import replay

SIZES = (3, 1, 0, 8)
"""Steps of the episodes in each shard: uneven, and one is empty."""
ALL = [(shard, t) for shard, rows in enumerate(SIZES) for t in range(rows)]
EPISODES = {"n": 1, "gamma": 1.0}


def ring() -> Any:
    return relive.RingReplayBuffer(1000, seed=0)


def sequences() -> Any:
    return relive.SequenceReplayBuffer(1000, length=3, pad=True, seed=0)


def episodes() -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](seed=0)


def prioritized(**settings: Any) -> Callable[[], Any]:
    return lambda: relive.PrioritizedReplayBuffer(1000, seed=0, **{"alpha": 1.0, "epsilon": 0.0, **settings})


def columns_of(shard: int, rows: int) -> dict[str, Any]:
    observations = np.array([(shard, t) for t in range(rows + 1)])
    return {"observations": observations, "actions": np.arange(rows), "rewards": np.ones(rows), "terminated": True}


def fill(fleet: local_test.LocalFleet, sizes: Sequence[int] = SIZES) -> Any:
    """Give each shard an episode, and return one buffer that has all of them."""
    one = fleet._make_buffer()
    for shard, rows in enumerate(sizes):
        if rows:
            one.add_episode(**columns_of(shard, rows))
            fleet.buffer(shard).add_episode(**columns_of(shard, rows))
    return one


def live(buffer: Any, shard: int, rows: int, version: int | None = None, agent: str = "a") -> None:
    """Give a buffer of episodes one that says what it is."""
    episode = buffer.start_episode_nowait(agent, policy_version=version)
    for t in range(rows):
        buffer.append_observation_action_reward_nowait(episode, (shard, t), t, 1.0)
    buffer.end_episode_nowait(episode, (shard, rows))


def fleet_of(make: Callable[[], Any], shards: int = len(SIZES), **more: Any) -> local_test.LocalFleet:
    return local_test.LocalFleet(make, shards, **more)


def places(batch: Any) -> list[tuple[int, int]]:
    """Return the shard and the step of what was drawn."""
    if isinstance(batch, list):
        return [sample.observation for sample in batch]
    first = batch.observation if batch.observation.ndim == 2 else batch.observation[:, 0]
    return [(shard, t) for shard, t in first.tolist()]


def one_keys(batch: Any) -> list[int]:
    """Return the keys that the same rows have in one buffer."""
    return [ALL.index(place) for place in places(batch)]


async def counted(client: replay.Replay[Any], draws: int, size: int, **options: Any) -> collections.Counter[Any]:
    counts: collections.Counter[Any] = collections.Counter()
    for _ in range(draws):
        batch = await client.sample(size, **options)
        assert len(batch) == size
        counts.update(places(batch))
    return counts


def assert_drawn(counts: collections.Counter[Any], expected: dict[Any, float]) -> None:
    assert set(counts) <= set(expected)
    testing.assert_frequencies([counts[place] for place in expected], list(expected.values()))


# Draws.


@pytest.mark.parametrize("make", [ring, sequences])
async def test_uniform_draws_are_those_of_one_buffer(make: Any) -> None:
    fleet = fleet_of(make, seed=1)
    one, client = fill(fleet), fleet.replay()
    eligible = [ALL[key] for key in one.eligible_keys()]
    assert_drawn(await counted(client, 60, 37), dict.fromkeys(eligible, 1 / len(eligible)))
    batch = await client.sample(64)
    twin = one.read(one_keys(batch))
    for name in ("observation", "action", "reward"):
        assert (getattr(batch, name) == getattr(twin, name)).all()
    np.testing.assert_array_max_ulp(batch.probabilities, twin.probabilities, 1)
    assert (batch.weights == 1).all()


async def test_draws_of_episodes_are_those_of_one_buffer() -> None:
    fleet = fleet_of(episodes, seed=1)
    for shard, rows in enumerate(SIZES):
        live(fleet.buffer(shard), shard, rows)
    client = fleet.replay()
    assert_drawn(await counted(client, 60, 37, **EPISODES), dict.fromkeys(ALL, 1 / len(ALL)))
    samples = await client.sample(5, n=2, gamma=0.5)
    assert all(sample.gamma == 0.5 for sample in samples)


PRIORITIES = np.array([0.5, 0.0, 3.0, 1.0, 4.0, 0.25, 2.0, 1.0, 8.0, 0.75, 1.5, 1.0])[: len(ALL)]


async def rated(client: replay.Replay[Any], one: Any, priorities: Any = PRIORITIES) -> None:
    """Give every row its priority, in the fleet and in the one buffer."""
    batch = await client.sample(2000)
    numbers = np.array(one_keys(batch))
    keys, first = np.unique(batch.keys, return_index=True)
    assert len(keys) == len(ALL)
    assert await client.update_priorities(keys, priorities[numbers[first]]) == len(ALL)
    one.update_priorities(np.arange(len(ALL)), priorities)


@pytest.mark.parametrize("normalization", ["batch", "buffer", "none"])
@pytest.mark.parametrize("beta", [None, 1.0, 0.0, 0.7])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
async def test_importance_weights_over_shards_are_those_of_one_buffer(
    normalization: Any, beta: float | None, alpha: float
) -> None:
    fleet = fleet_of(prioritized(weight_normalization=normalization, beta=0.4, alpha=alpha), seed=1)
    one, client = fill(fleet), fleet.replay()
    await rated(client, one)
    for _ in range(5):
        batch = await client.sample(7, **({} if beta is None else {"beta": beta}))
        twin = one.read(one_keys(batch), beta=beta)
        # A share of a share is rounded where one buffer's probability is not: a few units in the last place.
        np.testing.assert_array_max_ulp(batch.probabilities, twin.probabilities, 4)
        np.testing.assert_array_max_ulp(batch.weights, twin.weights, 8)


async def test_a_schedule_advances_once_per_batch_of_a_fleet() -> None:
    beta = relive.LinearSchedule(0.0, 1.0, 100)
    fleet = fleet_of(prioritized(weight_normalization="none", beta=beta), seed=1)
    one, client = fill(fleet), fleet.replay()
    for shard, rows in enumerate(SIZES):
        if rows:
            buffer = fleet.buffer(shard)
            buffer.update_priorities(np.arange(rows), np.arange(rows) + 1.0 + shard)
    one.update_priorities(np.arange(len(ALL)), [t + 1.0 + shard for shard, t in ALL])

    def tick_of(batch: Any) -> float:
        """Return at which tick such weights are right."""
        row = int(np.argmax(np.abs(np.log(batch.probabilities * len(ALL)))))
        return float(-np.log(batch.weights[row]) / np.log(len(ALL) * batch.probabilities[row]) * 100)

    ticks = [tick_of(await client.sample(20)) for _ in range(4)]
    ticks += [tick_of(batch) for batch in await asyncio.gather(*[client.sample(20) for _ in range(5)])]
    assert sorted(round(tick, 6) for tick in ticks) == list(range(9))
    # Another client, or this one in another process, goes on.
    assert round(tick_of(await fleet.replay().sample(200)), 6) == 9
    assert round(tick_of(await client.sample(200)), 6) == 10
    # And so does this one with shards that know nothing of it.
    for shard in range(len(SIZES)):
        fleet.kill(shard)
        fleet.start(shard)
    fill(fleet)
    for _ in range(3):
        with contextlib.suppress(errors.ShardLostError):
            await client.sample(1)
    assert fleet.replay()._draws._ticks == 0
    assert client._draws._ticks == 14


@pytest.mark.parametrize("is_stratified", [True, False])
@pytest.mark.parametrize("drift", [0.9, *[pytest.param(drift, marks=pytest.mark.full) for drift in (0.02, 0.2)]])
async def test_draws_follow_the_weights_at_the_time_of_the_draw(drift: float, is_stratified: bool) -> None:
    fleet = fleet_of(prioritized(stratified=is_stratified), seed=1)
    fill(fleet)
    client = fleet.replay()
    await client.sample(1)
    # Each draw is guessed from the weights at the draw before, which were others.
    states = [[(1 + drift * (-1) ** (shard + odd)) * (t + 1) for shard, t in ALL] for odd in (0, 1)]
    counts = [collections.Counter[Any](), collections.Counter[Any]()]
    for draw in range(120):
        weights = dict(zip(ALL, states[draw % 2], strict=True))
        for shard, rows in enumerate(SIZES):
            fleet.buffer(shard).update_priorities(np.arange(rows), [weights[shard, t] for t in range(rows)])
        batch = await client.sample(60)
        assert len(batch) == 60
        counts[draw % 2].update(places(batch))
        total = sum(weights.values())
        expected = np.array([weights[place] / total for place in places(batch)])
        np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-14)
    for state, of_state in zip(states, counts, strict=True):
        assert_drawn(of_state, {place: weight / sum(state) for place, weight in zip(ALL, state, strict=True)})


def draws_of(fleet: local_test.LocalFleet) -> list[list[int]]:
    """Return for how many rows of each batch the shards were asked since the last time, and forget it."""
    asked = [arguments[0]["counts"] for _, method, arguments in fleet.calls if method == "draw"]
    fleet.calls.clear()
    return asked


async def test_a_batch_takes_one_trip_once_the_weights_are_known() -> None:
    fleet = fleet_of(prioritized(), 4)
    fill(fleet, (30, 20, 30, 20))
    client = fleet.replay()
    await client.sample(50)
    assert draws_of(fleet) == [[0], [0], [0], [0], [15], [10], [15], [10]]
    await client.sample(50)
    assert draws_of(fleet) == [[15], [10], [15], [10]]
    rng = np.random.default_rng(0)
    trips = []
    for _ in range(40):
        for buffer, rows in zip(fleet.buffers(), (30, 20, 30, 20), strict=True):
            buffer.update_priorities(np.arange(rows), np.full(rows, rng.uniform(0.99, 1.01)))
        await client.sample(50)
        trips.append(len(draws_of(fleet)) > 4)
    assert sum(trips) < 10
    # A priority that this client sends changes what it knows.
    keys = np.unique((await client.sample(500)).keys)
    await client.update_priorities(keys[keys % 4 == 0], np.full(30, 50.0))
    draws_of(fleet)
    await client.sample(50)
    assert [asked[0] > 40 for asked in draws_of(fleet)] == [True, False, False, False]


async def test_a_stratified_batch_is_spread_evenly_over_the_shards() -> None:
    even, independent = (fleet_of(prioritized(stratified=stratified), seed=1) for stratified in (True, False))
    spreads = []
    for fleet in (even, independent):
        fill(fleet)
        client = fleet.replay()
        batches = [await client.sample(10) for _ in range(50)]
        spreads.append([int((batch.observation[:, 0] == 0).sum()) for batch in batches])
    assert set(spreads[0]) == {2, 3}  # 10 times 3/12
    assert set(spreads[1]) > {1, 2, 3, 4}


async def test_new_rows_get_the_largest_priority_of_the_fleet() -> None:
    fleet = fleet_of(prioritized(), 2, seed=1)
    fill(fleet, (3, 2))
    client = fleet.replay()
    batch = await client.sample(200)
    of_first = np.unique(batch.keys[batch.observation[:, 0] == 0])
    assert await client.update_priorities(of_first, [2.0, 50.0, 1.0]) == 3
    assert await client.update_priorities(of_first, [2.0, 5.0, 1.0]) == 3
    for shard, buffer in enumerate(fleet.buffers()):
        keys = buffer.add_episode(**columns_of(shard, 2))
        assert buffer.get_priorities(keys).tolist() == [50.0, 50.0]
    assert fleet.buffer(0).get_priorities([0, 1, 2]).tolist() == [2.0, 5.0, 1.0]
    assert fleet.buffer(1).get_priorities([0, 1]).tolist() == [1.0, 1.0]


async def test_priorities_go_to_their_shard_and_the_last_one_wins() -> None:
    fleet = fleet_of(prioritized(), 2, seed=1)
    fill(fleet, (3, 3))
    client = fleet.replay()
    batch = await client.sample(500)
    given = np.arange(500.0)
    assert await client.update_priorities(batch.keys, given.reshape(-1, 1)) == 500
    for shard in range(2):
        for t in range(3):
            last = [i for i, place in enumerate(places(batch)) if place == (shard, t)][-1]
            assert fleet.buffer(shard).get_priorities([t]).tolist() == [float(last)]
    assert await client.update_priorities([], []) == 0


async def test_keys_of_evicted_rows_are_not_counted() -> None:
    fleet = fleet_of(prioritized(), 2, timeout=1.0)
    fill(fleet, (3, 3))
    client = fleet.replay()
    batch = await client.sample(100)
    fleet.buffer(0).clear()
    of_second = int((batch.observation[:, 0] == 1).sum())
    assert await client.update_priorities(batch.keys, np.ones(100)) == of_second
    fleet.kill(1)
    assert await client.update_priorities(batch.keys, np.ones(100)) == 0
    fleet.start(1)
    fill(fleet, (0, 3))
    await local_test.settle(1.0)
    # The rows in their place are others.
    assert await client.update_priorities(batch.keys, np.full(100, 9.0)) == 0
    assert fleet.buffer(1).get_priorities([0, 1, 2]).tolist() == [1.0, 1.0, 1.0]
    assert (await client.stats()).stale_priorities == 3 * 100 - of_second
    assert await client.update_priorities([-5, 2**40], [1.0, 1.0]) == 0


@pytest.mark.parametrize(
    ("keys", "priorities", "text"),
    [
        ([0, 1], [1.0], "priority"),
        ([0], [-1.0], "priority of row 0 must be a finite number of at least 0, got -1"),
        ([0], [np.nan], "priority of row 0"),
        ([0.5], [1.0], "keys must be"),
    ],
)
async def test_invalid_priorities_are_refused_and_change_nothing(keys: Any, priorities: Any, text: str) -> None:
    fleet = fleet_of(prioritized(), 2)
    fill(fleet, (3, 3))
    with pytest.raises(errors.ArgumentError, match=text):
        await fleet.replay().update_priorities(keys, priorities)
    assert not any(method == "update_priorities" for _, method, _ in fleet.calls)


async def test_a_refused_large_priority_does_not_affect_later_ones() -> None:
    fleet = fleet_of(prioritized(alpha=2.0), 1)
    fill(fleet, (3,))
    client = fleet.replay()
    keys = np.unique((await client.sample(100)).keys)
    with pytest.raises(errors.ArgumentError, match="must be smaller with alpha = 2, got 1e"):
        await client.update_priorities(keys[:1], [1e200])
    assert await client.update_priorities(keys[:1], [4.0]) == 1


async def test_only_priorities_can_be_updated() -> None:
    client = fleet_of(ring).replay()
    with pytest.raises(errors.ArgumentError, match="update_priorities needs buffers with priorities, got Ring"):
        await client.update_priorities([1], [1.0])


# Waiting.


async def test_a_batch_waits_until_a_row_can_be_drawn() -> None:
    fleet = fleet_of(prioritized())
    client = fleet.replay()
    waiting = asyncio.create_task(client.sample(5))
    await local_test.settle(10.0)
    assert not waiting.done()
    fill(fleet)
    assert len(await waiting) == 5
    for shard, rows in enumerate(SIZES):
        fleet.buffer(shard).update_priorities(np.arange(rows), np.zeros(rows))
    waiting = asyncio.create_task(client.sample(5))
    await local_test.settle(10.0)
    assert not waiting.done()
    fleet.buffer(3).update_priorities([2], [1.0])
    assert places(await waiting) == [(3, 2)] * 5


async def test_draws_of_a_shard_that_dies_are_taken_from_others() -> None:
    fleet = fleet_of(ring, 2, seed=1, timeout=1.0)
    fill(fleet, (3, 3))
    client = fleet.replay()

    async def die(shard: int, method: str) -> None:
        if method == "draw" and shard == 1:
            fleet.kill(1)
            await asyncio.sleep(0)

    fleet.answered = die
    batch = await client.sample(50)
    assert len(batch) == 50
    assert {shard for shard, _ in places(batch)} == {0}
    np.testing.assert_array_max_ulp(batch.probabilities[-1:], np.array([1 / 3]), 1)


async def test_draws_of_an_emptied_shard_are_taken_from_others() -> None:
    fleet = fleet_of(ring, 2)
    fill(fleet, (3, 3))

    async def empty(shard: int, method: str) -> None:
        if method == "draw" and shard == 1:
            fleet.buffer(1).clear()

    fleet.answered = empty
    assert {shard for shard, _ in places(await fleet.replay().sample(50))} == {0}


async def test_a_batch_waits_for_rows_below_max_times_sampled() -> None:
    fleet = fleet_of(lambda: relive.RingReplayBuffer(100, max_times_sampled=2, seed=0), 2, seed=1)
    fill(fleet, (3, 3))
    client = fleet.replay()
    waiting = asyncio.create_task(client.sample(24))
    await local_test.settle(10.0)
    assert not waiting.done()
    for buffer in fleet.buffers():
        buffer.add_episode(**columns_of(5, 9))
    batch = await waiting
    assert len(batch) == 24
    assert max(collections.Counter(batch.keys.tolist()).values()) <= 2


async def test_every_row_is_drawn_max_times_sampled_times() -> None:
    fleet = fleet_of(lambda: relive.RingReplayBuffer(1000, max_times_sampled=2, seed=0), 3, seed=1)
    client = fleet.replay()
    rng = np.random.default_rng(0)
    counts: collections.Counter[int] = collections.Counter()
    added = 0
    for _ in range(30):
        for buffer in fleet.buffers():
            rows = int(rng.integers(5, 15))
            buffer.add_episode(**columns_of(0, rows))
            added += rows
        counts.update((await client.sample(15)).keys.tolist())
    counts.update((await client.sample(2 * added - 30 * 15)).keys.tolist())
    assert len(counts) == added
    assert set(counts.values()) == {2}


async def test_statistics_count_lost_rows_of_a_shard_at_once() -> None:
    """The client that asks for them is the one that finds another life of the shard, and tells it."""
    fleet = fleet_of(ring, 2)
    fill(fleet, (3, 4))
    client = fleet.replay()
    before = await client.stats()
    fleet.kill(1)
    fleet.start(1)
    after = await client.stats()
    assert (before.size, before.lost) == (7, 0)
    assert (after.size, after.lost) == (3, 4)


async def test_a_batch_without_any_shard_waits_and_then_fails() -> None:
    fleet = fleet_of(ring, 2, recovery=20.0)
    fill(fleet, (3, 3))
    client = fleet.replay()
    for shard in range(2):
        fleet.kill(shard)
    waiting = asyncio.create_task(client.sample(5))
    await local_test.settle(15.0)
    fleet.start(0)
    fleet.buffer(0).add_episode(**columns_of(0, 3))
    assert len(await waiting) == 5
    fleet.kill(0)
    with pytest.raises(errors.ShardLostError, match="sample found no shard for 20 seconds"):
        await client.sample(5)


@pytest.mark.parametrize(
    ("make", "size", "options", "error", "text"),
    [
        (ring, 0, {}, errors.ArgumentError, "batch_size must be at least 1, got 0"),
        (ring, 3, {"colour": 1}, TypeError, "unexpected keyword argument 'colour'"),
        (prioritized(), 3, {"beta": -1.0}, errors.ArgumentError, "beta must be at least 0, got -1"),
        (ring, 3, {"n_step": 0}, errors.ArgumentError, "n_step must be at least 1, got 0"),
        (episodes, 3, {"n": 0, "gamma": 1.0}, errors.ArgumentError, "n must be at least 1, got 0"),
        (episodes, 3, {"n": 1}, TypeError, "missing a required argument: 'gamma'"),
        (ring, 3, {"beta": 0.5}, errors.ArgumentError, "beta"),
        (episodes, 3, {**EPISODES, "colour": 1}, TypeError, "unexpected keyword argument 'colour'"),
        (episodes, 3, {**EPISODES, "gamma": 1.5}, errors.ArgumentError, r"gamma must be in \(0, 1\], got 1\.5"),
        (episodes, 3, {**EPISODES, "max_lag": -1}, errors.ArgumentError, "max_lag must be at least 0, got -1"),
        (episodes, 3, {**EPISODES, "lag_decay": 0}, errors.ArgumentError, r"lag_decay must be in \(0, 1\], got 0"),
        (
            episodes,
            3,
            {**EPISODES, "max_lag": 1},
            errors.ArgumentError,
            "max_lag and lag_decay need the learner's policy version: call set_policy_version first",
        ),
    ],
)
async def test_invalid_arguments_of_sample_are_refused_by_a_fleet(
    make: Any, size: int, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    fleet = fleet_of(make, 2)
    if make is ring:
        fill(fleet, (3, 3))
    with pytest.raises(error, match=text):
        await fleet.replay().sample(size, **options)


def test_an_invalid_schedule_is_refused_by_a_fleet() -> None:
    class Odd(relive.Schedule):
        def value(self, tick: int) -> float:
            return 0.5 if tick < 2 else -1.0

    async def main() -> None:
        fleet = fleet_of(prioritized(beta=Odd()), 1)
        fill(fleet, (3,))
        client = fleet.replay()
        for _ in range(2):
            await client.sample(3)
        with pytest.raises(errors.ArgumentError, match="beta must be at least 0, got -1"):
            await client.sample(3)
        assert len(await client.sample(3, beta=0.5)) == 3

    local_test.run(main())


# Ahead.


async def test_batches_are_prefetched_up_to_the_limit() -> None:
    fleet = fleet_of(ring, 2)
    fill(fleet, (3, 3))
    client = fleet.replay()
    async with contextlib.aclosing(client.batches(4, prefetch=2)) as batches:
        for drawn in (2, 4, 4, 6, 6):
            assert len(await anext(batches)) == 4
            await local_test.settle(1.0)
            assert (await client.stats()).sampled == drawn * 4
        numbers = [len(asked) for asked in draws_of(fleet)]
        assert numbers == [2] * 8  # The first ones took two trips.
    async with contextlib.aclosing(client.batches(4, prefetch=0)) as batches:
        await anext(batches)
        await local_test.settle(1.0)
    assert (await client.stats()).sampled == 7 * 4
    async with contextlib.aclosing(client.batches(4, prefetch=7)) as batches:
        await anext(batches)
        await local_test.settle(1.0)
        assert [len(asked) for asked in draws_of(fleet)[-4:]] == [4] * 4
    assert (await client.stats()).sampled == 15 * 4


@pytest.mark.parametrize(("shards", "ahead"), [(1, 4), (3, 12), (20, 32)])
async def test_more_shards_are_drawn_further_ahead(shards: int, ahead: int) -> None:
    fleet = fleet_of(ring, shards)
    fill(fleet, [3] * shards)
    client = fleet.replay()
    await client.sample(4)
    async with contextlib.aclosing(client.batches(4)) as batches:
        await anext(batches)
        await local_test.settle(1.0)
    assert [len(asked) for asked in draws_of(fleet)[-2 * shards :]] == [ahead // 2] * 2 * shards
    assert (await client.stats()).sampled == (1 + ahead) * 4


async def test_a_closed_iterator_leaves_no_request_pending() -> None:
    fleet = fleet_of(ring, 2)
    client = fleet.replay()
    batches = client.batches(4)
    waiting = asyncio.ensure_future(anext(batches))
    await local_test.settle(1.0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    fill(fleet, (3, 3))
    await local_test.settle(1.0)
    assert (await client.stats()).sampled == 0
    for prefetch in (-1, 0.5):
        with pytest.raises(errors.ArgumentError, match="prefetch must be"):
            await anext(client.batches(4, prefetch=prefetch))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        await anext(client.batches(4, colour=1))


@pytest.mark.parametrize("prefetch", [0, 3])
async def test_closing_an_iterator_ends_the_waits_of_tasks(prefetch: int) -> None:
    fleet = fleet_of(ring, 2)
    client = fleet.replay()
    batches, other = client.batches(4, prefetch=prefetch), client.batches(4)
    waiting = [asyncio.ensure_future(anext(batches, None)) for _ in range(2)]
    untouched = asyncio.ensure_future(anext(other))
    await local_test.settle(1.0)
    await batches.aclose()
    await batches.aclose()
    assert await asyncio.gather(*waiting) == [None, None]
    fill(fleet, (3, 3))
    assert len(await untouched) == 4
    assert [batch async for batch in batches] == []
    await other.aclose()


# LimiterService.


def limited(**more: Any) -> local_test.LocalFleet:
    limiter = relive.SampleToInsertRatio(1.0, min_size=10, error_buffer=20.0)
    return fleet_of(ring, 2, limiter=limiter, **more)


async def write(writer: Any, count: int) -> None:
    for episode in range(count):
        await writer.add_episode(**columns_of(episode, 2))


async def test_a_limiter_limits_the_whole_fleet() -> None:
    fleet = limited(seed=1)
    client = fleet.replay()
    writers = [client.writer(batch_steps=2, max_in_flight=1) for _ in range(4)]
    writing = [asyncio.create_task(write(writer, 20)) for writer in writers]
    await local_test.settle(10.0)
    inserted = (await client.stats()).inserted
    assert 30 <= inserted < 30 + 2 * 4
    assert len(await client.sample(39)) == 39
    while not all(task.done() for task in writing):
        await client.sample(10)
    for writer in writers:
        await writer.close()
    stats = await client.stats()
    assert stats.inserted == 4 * 20 * 2
    assert abs(stats.inserted - 10 - (await fleet.limiter_process.counts())[1]) <= 20 + 10
    inserted, sampled = await fleet.limiter_process.counts()
    assert inserted == stats.inserted
    assert sampled <= stats.sampled <= 1.5 * sampled  # Some samples were drawn in vain.
    with pytest.raises(errors.ArgumentError, match="batch_size must be at most 39"):
        await client.sample(40)


@pytest.mark.parametrize("awaits", range(1, 60, 4))
async def test_a_cancelled_batch_takes_no_turn(awaits: int) -> None:
    fleet = limited(seed=awaits, delay=1e-9)
    client = fleet.replay()
    async with client.writer() as writer:
        await write(writer, 8)
    drawing = asyncio.create_task(client.sample(5))
    for _ in range(awaits):
        await asyncio.sleep(0)
    drawing.cancel()
    await asyncio.gather(drawing, return_exceptions=True)
    await local_test.settle(5.0)
    drawn = 0 if drawing.cancelled() else 5
    assert await fleet.limiter_process.counts() == (16, drawn)


async def test_prefetching_is_bounded_by_the_limiter() -> None:
    fleet = limited()
    client = fleet.replay()
    async with client.writer() as writer:
        await write(writer, 8)
        await writer.flush()
        async with contextlib.aclosing(client.batches(10, prefetch=9)) as batches:
            for _ in range(2):
                assert len(await anext(batches)) == 10
            waiting = asyncio.ensure_future(anext(batches))
            await local_test.settle(20.0)
            assert not waiting.done()
            assert await fleet.limiter_process.counts() == (16, 20)
            await write(writer, 5)
            await writer.flush()
            assert len(await waiting) == 10


async def test_a_batch_that_fails_gives_its_turn_back() -> None:
    fleet = limited()
    client = fleet.replay()
    async with client.writer() as writer:
        await write(writer, 8)
    with pytest.raises(errors.ArgumentError, match="n_step must be at least 1, got 0"):
        await client.sample(5, n_step=0)
    await local_test.settle(1.0)
    assert await fleet.limiter_process.counts() == (16, 0)


async def test_a_cancelled_batch_is_forgotten_while_turns_fail() -> None:
    fleet = limited()
    client = fleet.replay()

    async def fail(*_: Any) -> bool:
        await asyncio.sleep(1.0)
        raise errors.ShardLostError("gone")

    service: Any = fleet.limiter_process
    service.sample_turns = fail
    drawing = asyncio.create_task(client.sample(5))
    await local_test.settle(0.5)
    drawing.cancel()
    await local_test.settle(5.0)
    assert drawing.cancelled()
    with pytest.raises(errors.ShardLostError, match="gone"):
        await client.sample(5)


async def test_restarted_turns_count_the_steps_of_all_shards() -> None:
    fleet = limited()
    client = fleet.replay()
    async with client.writer(batch_steps=2) as writer:
        await write(writer, 10)
    await client.sample(7)
    fleet.kill_coordinator()
    fleet.start_coordinator()
    assert await fleet.limiter_process.counts() == (20, 7)
    await client.sample(3)
    assert await fleet.limiter_process.counts() == (20, 10)


# Versions of the policy.


def versions_of(fleet: local_test.LocalFleet) -> list[Any]:
    return [buffer.policy_version for buffer in fleet.buffers()]


@pytest.mark.parametrize(("max_lag", "lag_decay"), [(None, 0.7), (3, 1.0), (3, 0.8), (0, 1.0), (10_000, 0.7)])
async def test_draws_by_lag_are_those_of_one_buffer(max_lag: int | None, lag_decay: float) -> None:
    fleet = fleet_of(episodes, 3, seed=1)
    of_shards: list[list[tuple[int | None, int]]] = [[(1, 4), (7, 2)], [(8, 6), (None, 5)], [(9, 1), (5, 3)]]
    for shard, lived in enumerate(of_shards):
        for number, (version, rows) in enumerate(lived):
            live(fleet.buffer(shard), 10 * shard + number, rows, version)
    client = fleet.replay()
    await client.set_policy_version(8)
    options = {**EPISODES, "max_lag": max_lag, "lag_decay": lag_decay}
    weights: dict[tuple[int, int], float] = {}
    for shard, lived in enumerate(of_shards):
        for number, (version, rows) in enumerate(lived):
            if version is not None and (max_lag is None or 8 - version <= max_lag):
                weight = lag_decay ** max(8 - version, 0)
                weights |= {(10 * shard + number, t): weight for t in range(rows)}
    total = math.fsum(weights.values())
    expected = {place: weight / total for place, weight in weights.items()}
    assert_drawn(await counted(client, 25, 60, **options), expected)


async def test_a_policy_version_reaches_restarted_shards_too() -> None:
    fleet = fleet_of(episodes, 2, timeout=1.0)
    client, other = fleet.replay(), fleet.replay()
    await client.set_policy_version(3)
    assert versions_of(fleet) == [3, 3]
    fleet.kill(0)
    await client.set_policy_version(5)
    fleet.start(0)
    await local_test.settle(2.0)
    assert versions_of(fleet) == [None, 5]
    for shard in range(2):
        live(fleet.buffer(shard), shard, 2, 5)
    # Whoever draws learns the newest one from the shards that know, and tells the others.
    await other.sample(10, **EPISODES)
    assert versions_of(fleet) == [5, 5]
    assert {shard for shard, _ in await counted(other, 5, 20, **EPISODES, max_lag=0)} == {0, 1}
    fleet.kill(1)
    fleet.start(1)
    live(fleet.buffer(1), 1, 2, 5)
    await client.sample(10, **EPISODES)
    assert versions_of(fleet) == [5, 5]
    await other.set_policy_version(9)
    await client.sample(10, **EPISODES)
    with pytest.raises(errors.ArgumentError, match="version must be at least 9, the previous one, got 8"):
        await client.set_policy_version(8)
    assert versions_of(fleet) == [9, 9]


async def test_concurrent_policy_versions_end_with_the_newest() -> None:
    fleet = fleet_of(episodes, 2, seed=1)
    client = fleet.replay()
    await asyncio.gather(*[client.set_policy_version(version) for version in (3, 9, 6)])
    assert versions_of(fleet) == [9, 9]
    with pytest.raises(errors.ArgumentError, match="version must be at least 9"):
        await client.set_policy_version(8)


@pytest.mark.parametrize(
    ("make", "version", "text"),
    [
        (episodes, -1, "version must be at least 0, got -1"),
        (episodes, 0.5, "version must be an integer"),
        (ring, 3, "set_policy_version needs buffers of episodes or tokens, got RingReplayBuffer"),
    ],
)
async def test_invalid_policy_versions_are_refused(make: Any, version: Any, text: str) -> None:
    fleet = fleet_of(make, 2)
    with pytest.raises(errors.ArgumentError, match=text):
        await fleet.replay().set_policy_version(version)
    fill(fleet, (3, 3)) if make is ring else live(fleet.buffer(0), 0, 3)
    await fleet.replay().sample(3, **({} if make is ring else EPISODES))


# Everything else.


async def test_a_client_reads_keys_and_statistics_of_every_shard() -> None:
    fleet = fleet_of(ring, 3, timeout=1.0)
    fill(fleet, (3, 1, 2))
    client = fleet.replay()
    assert repr(client) == "<Replay of 3 shards, each a RingReplayBuffer>"
    await client.sample(4)
    fleet.kill(1)
    assert await client.ping() == ["pong", None, "pong"]
    hosts = await client.host()
    assert hosts[1] is None
    assert hosts[0] == hosts[2]
    stats = await client.stats()
    assert [shard is not None and shard.number for shard in stats.shards] == [0, False, 2]
    assert (stats.size, stats.inserted, stats.refused, stats.lost, stats.stale_priorities) == (5, 5, 0, 0, 0)
    fleet.start(1)
    await local_test.settle(1.0)
    assert await client.ping() == ["pong"] * 3


async def test_a_function_is_applied_to_every_shard() -> None:
    fleet = fleet_of(ring, 3)
    fill(fleet, (3, 1, 2))
    client = fleet.replay()
    assert await client.apply(lambda buffer, more: len(buffer) + more, 10) == [13, 11, 12]
    with pytest.raises(ZeroDivisionError):
        await client.apply(lambda buffer: 1 / (len(buffer) - 1))
    fleet.kill(1)
    with pytest.raises(errors.ShardLostError, match="shard 1"):
        await client.apply(len)


async def test_a_fleet_without_a_directory_cannot_be_saved() -> None:
    with pytest.raises(errors.ArgumentError, match="save needs a fleet with a directory"):
        await fleet_of(ring, 2).replay().save()


def test_a_fleet_is_saved_shard_by_shard(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        await fleet_of(ring, 2, directory=tmp_path).replay().save()

    local_test.run(main(), seconds=1e9)
    assert all((tmp_path / f"shard-{shard}" / "checkpoint").is_file() for shard in range(2))


async def test_a_writer_fits_the_kind_of_the_buffers() -> None:
    with pytest.raises(errors.ArgumentError, match="^writer cannot write to EpisodeReplayBuffer: use episodes_wr"):
        fleet_of(episodes, 1).replay().writer()
    for option in ("batch_steps", "max_in_flight"):
        for writer in (fleet_of(ring, 1).replay().writer, fleet_of(episodes, 1).replay().episodes_writer):
            with pytest.raises(errors.ArgumentError, match=f"{option} must be at least 1, got 0"):
                writer(**{option: 0})
    for name in ("episodes_writer", "joint_writer", "tokens_writer"):
        with pytest.raises(errors.ArgumentError, match=f"^{name} cannot write to RingReplayBuffer: use writer$"):
            getattr(fleet_of(ring, 1).replay(), name)()


def test_a_fleet_of_the_same_seed_gives_the_same_batches() -> None:
    async def main() -> list[Any]:
        fleet = fleet_of(ring)
        fill(fleet)
        client = fleet.replay(seed=5)
        return [places(await client.sample(20)) for _ in range(5)]

    assert local_test.run(main()) == local_test.run(main())


def test_no_call_to_a_closed_fleet_waits() -> None:
    async def main() -> None:
        fleet = fleet_of(prioritized(), 2, timeout=1.0)
        client = fleet.replay()
        writer = client.writer()
        await writer.add_episode(**columns_of(0, 2))
        await writer.flush()
        fleet.gone |= {0, 1}
        # The first shard is found out, then the other one; then there is none to go on with.
        for _ in range(2):
            await writer.add_episode(**columns_of(0, 2))
            await writer.flush()
        await writer.add_episode(**columns_of(0, 2))
        with pytest.raises(errors.ClosedError, match="the fleet was closed: start a new one"):
            await writer.flush()
        assert (writer.stored, writer.refused, writer.lost) == (2, 0, 6)
        for call in (client.sample(3), client.stats(), client.ping()):
            with pytest.raises(errors.ClosedError, match="the fleet was closed: start a new one"):
                await call

    local_test.run(main(), 30.0)
