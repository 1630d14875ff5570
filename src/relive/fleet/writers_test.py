"""Writers: chunks, room, refusals, shards that die under them, and cancellation at every await."""

import asyncio
import collections
from collections.abc import Awaitable, Callable
import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import local_test
from relive.fleet import trouble_test

SCHEMA = trouble_test.SCHEMA
LONG = {"batch_steps": 1000}


def ring() -> Any:
    return relive.RingReplayBuffer(10_000, SCHEMA, streams=8, seed=0)


def lone_stream() -> Any:
    return relive.RingReplayBuffer(10_000, SCHEMA, seed=0)


def fleet_of(make: Callable[[], Any], shards: int = 1, **more: Any) -> local_test.LocalFleet:
    return local_test.LocalFleet(make, shards, **more)


def at(t: int, episode: int = 0) -> tuple[int, int, int]:
    return (0, episode, t)


async def add(writer: Any, t: int, episode: int = 0, **more: Any) -> None:
    await writer.add(at(t, episode), t, 1.0, at(t + 1, episode), **more)


def in_columns(fleet: local_test.LocalFleet) -> list[tuple[int, int]]:
    """Return episode and step of all that is stored."""
    return [(e, t) for _, e, t in trouble_test.stored_in(fleet, "columns")]


def lived(fleet: local_test.LocalFleet, shard: int = 0) -> list[tuple[list[Any], str]]:
    buffer = fleet.buffer(shard)
    return [(episode.observations, episode.status) for episode in local_test.episodes_in(buffer)]


def inserts(fleet: local_test.LocalFleet) -> list[tuple[Any, ...]]:
    """Return the batches that were sent."""
    return [arguments[0]["chunks"] for _, method, arguments in fleet.calls if method == "insert"]


# Columns.


async def test_steps_are_sent_at_an_end_or_when_a_batch_is_full() -> None:
    fleet = fleet_of(ring)
    writer = fleet.replay().writer(batch_steps=4)
    for t in range(3):
        await add(writer, t)
    await local_test.settle(1.0)
    assert inserts(fleet) == []
    await add(writer, 3)
    await add(writer, 4, terminated=True)
    await local_test.settle(1.0)
    assert [[(c.rows, c.first, c.end) for c in batch] for batch in inserts(fleet)] == [[(4, 0, "OPEN")]]
    for t in range(3):
        await add(writer, t, 1, truncated=t == 2)
    await writer.flush()
    sent = [[(c.rows, c.first, c.end) for c in batch] for batch in inserts(fleet)[1:]]
    assert sent == [[(1, 4, "TERMINATED"), (3, 0, "TRUNCATED")]]
    assert in_columns(fleet) == [*[(0, t) for t in range(5)], *[(1, t) for t in range(3)]]
    stats = fleet.buffer(0).get_stats()
    assert (stats.terminated_episodes, stats.truncated_episodes, stats.open_episodes) == (1, 1, 0)
    assert (writer.stored, writer.refused, writer.lost) == (8, 0, 0)


async def test_a_complete_episode_carries_its_end() -> None:
    fleet = fleet_of(ring)
    writer = fleet.replay().writer()
    episode = [at(0), at(1)], [0], [1.0]
    for flags in ({"terminated": True}, {"truncated": True}, {"terminated": False}):
        await writer.add_episode(*episode, **flags)
    for flags in ({}, {"truncated": False}, {"terminated": True, "truncated": True}):
        with pytest.raises(errors.ArgumentError, match="^terminated or truncated must be True, and not both, got "):
            await writer.add_episode(*episode, **flags)
    await writer.flush()
    stats = fleet.buffer(0).get_stats()
    assert (stats.terminated_episodes, stats.truncated_episodes) == (1, 2)


async def test_whole_episodes_leave_open_ones_alone() -> None:
    fleet = fleet_of(ring)
    writer = fleet.replay().writer(**LONG)
    for t in range(4):
        await add(writer, t, terminated=t == 3)
        await writer.add_episode([at(0, 9), at(1, 9)], [0], [1.0], terminated=True)
        await writer.flush()
    assert in_columns(fleet) == [*[(0, t) for t in range(4)], *[(9, 0)] * 4]
    stats = fleet.buffer(0).get_stats()
    assert (stats.terminated_episodes, stats.truncated_episodes) == (5, 0)


async def test_nan_observations_are_equal() -> None:
    fleet = fleet_of(lambda: relive.RingReplayBuffer(100, streams=2, seed=0))
    writer = fleet.replay().writer(**LONG)
    nan = {"a": np.array([np.nan, 1.0]), "b": {"c": np.array(2.0)}}
    await writer.add(nan, 0, 0.0, nan)
    await writer.add(nan, 0, 0.0, nan, terminated=True)
    await writer.add(nan, 0, 0.0, nan)
    other = {"a": np.array([np.nan, 1.0]), "b": {"c": np.array(3.0)}}
    await writer.add(other, 0, 0.0, nan, terminated=True)
    await writer.flush()
    stats = fleet.buffer(0).get_stats()
    assert (stats.terminated_episodes, stats.truncated_episodes) == (2, 1)


async def test_a_writer_ends_an_episode_explicitly() -> None:
    fleet = fleet_of(ring)
    writer = fleet.replay().writer(**LONG)
    assert not await writer.end_episode()
    await add(writer, 0)
    assert await writer.end_episode()
    assert not await writer.end_episode()
    await add(writer, 1)
    await writer.flush()
    assert await writer.end_episode()
    await writer.flush()
    stats = fleet.buffer(0).get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.size) == (2, 0, 2)


async def test_a_closed_writer_ends_episodes_and_refuses_steps() -> None:
    # With whole episodes alone a buffer needs no stream for them.
    fleet = fleet_of(lone_stream)
    async with fleet.replay().writer(**LONG) as writer:
        await add(writer, 0)
        await add(writer, 0, 1, stream=3)
    assert in_columns(fleet) == [(0, 0), (1, 0)]
    assert fleet.buffer(0).get_stats().truncated_episodes == 2
    assert fleet.shard(0).stats().writers == 0
    await writer.close()
    for call in (add(writer, 1), writer.end_episode(), writer.add_episode([1, 2], [1], [1.0], terminated=True)):
        with pytest.raises(errors.ClosedError, match="writer is closed: take a new one from the fleet"):
            await call
    nobody = fleet.replay().writer()
    await nobody.close()
    assert nobody.stored == 0


async def test_later_changes_by_the_caller_are_not_sent() -> None:
    fleet = fleet_of(ring)
    writer = fleet.replay().writer(batch_steps=2, max_in_flight=1)
    observation, following = np.array(at(0)), np.array(at(1))
    await writer.add(observation, 0, 1.0, following, terminated=True)
    observation[:], following[:] = 9, 9
    fleet.hang(0)
    await add(writer, 0, 1, terminated=True)
    observations, actions = np.array([at(0, 2), at(1, 2)]), np.array([0])
    waiting = asyncio.create_task(writer.add_episode(observations, actions, [1.0], terminated=True))
    await local_test.settle(1.0)
    assert not waiting.done()
    observations[:], actions[:] = 9, 9
    fleet.go_on(0)
    await waiting
    await writer.flush()
    assert in_columns(fleet) == [(0, 0), (1, 0), (2, 0)]


def add_wrong(**wrong: Any) -> Callable[[Any], Awaitable[None]]:
    """Return a call that adds a step that is wrong in that."""
    step = {"observation": at(1), "action": 1, "reward": 1.0, "next_observation": at(2)}
    return lambda writer: writer.add(**{**step, **wrong})


INVALID: list[tuple[Callable[[Any], Awaitable[None]], str]] = [
    (add_wrong(next_observation=None), "next_observation must be given to a writer of a fleet, got "),
    (add_wrong(next_observation=(0, 0)), r"next_observation must be of the shape of observation, \(3,\), got \(2,\)"),
    (add_wrong(stream=-1), "stream must be at least 0, got -1"),
    (add_wrong(terminated=3), "terminated must be True, False, 0 or 1, got 3"),
    (add_wrong(truncated=3), "truncated must be True, False, 0 or 1, got 3"),
    (add_wrong(observation=object()), "observation"),
    (add_wrong(extra=object()), "extra"),
    (lambda w: w.add_steps([at(0)], [], []), "an episode must have at least 1 step, got 0"),
    (lambda w: w.add_steps([at(0)], [0], [1.0]), r"observations must be 2, one more than .* of shape \(1, 3\)"),
    (lambda w: w.add_steps(0, [0], [1.0]), r"observations must be 2, one more than .* of shape \(\)"),
    (lambda w: w.add_episode([at(0)], [], [], terminated=True), "an episode must have at least 1 step, got 0"),
    (lambda w: w.add_episode([at(0), at(1)], [0], [1.0], terminated=3), "terminated must be True, False, 0 or 1"),
    (lambda w: w.add_episode([at(0), at(1)], [object()], [1.0], terminated=True), "actions"),
]


async def test_invalid_steps_are_refused_at_once_and_change_nothing(subtests: pytest.Subtests) -> None:
    fleet = fleet_of(ring)
    writer = fleet.replay().writer(**LONG)
    await add(writer, 0)
    for call, text in INVALID:
        with subtests.test(text), pytest.raises(errors.ReplayError, match=text):
            await call(writer)
    await add(writer, 1, terminated=True)
    await writer.flush()
    assert in_columns(fleet) == [(0, 0), (0, 1)]
    assert fleet.buffer(0).get_stats().terminated_episodes == 1


@pytest.mark.parametrize("batch_steps", [1, 7, 1000])
@pytest.mark.parametrize("seed", [0, 1, *[pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 5)]])
async def test_many_steps_in_one_call_equal_single_ones(seed: int, batch_steps: int) -> None:
    rng = np.random.default_rng(seed)
    fleet, one = fleet_of(ring), ring()
    writer = fleet.replay().writer(batch_steps=batch_steps)
    episodes, steps = {1: 1, 2: 2}, {1: 0, 2: 0}
    for _ in range(60):
        stream, count, what = int(rng.integers(1, 3)), int(rng.integers(1, 5)), int(rng.integers(8))
        if what == 7:  # Steps that do not follow.
            episodes[stream], steps[stream] = episodes[stream] + 2, 0
        episode, start = episodes[stream], steps[stream]
        times, ends = range(start, start + count), {"terminated": what == 0, "truncated": what == 1}
        singles = [(t, {name: end and t == times[-1] for name, end in ends.items()}) for t in times]
        if rng.random() < 0.5:
            observations = [at(t, episode) for t in range(start, start + count + 1)]
            await writer.add_steps(observations, list(times), np.ones(count), stream=stream, **ends)
        else:
            for t, flags in singles:
                await add(writer, t, episode, **flags, stream=stream)
        for t, flags in singles:
            one.add(at(t, episode), t, 1.0, at(t + 1, episode), stream=stream, **flags)
        steps[stream] += count
        if any(ends.values()):
            episodes[stream], steps[stream] = episode + 2, 0
    await writer.flush()
    found, expected = (buffer.read(buffer.eligible_keys()) for buffer in (fleet.buffer(0), one))
    order, twin = (np.lexsort(batch.observation.T) for batch in (found, expected))
    for name in ("observation", "action", "reward", "next_observation", "is_terminal", "steps"):
        assert (getattr(found, name)[order] == getattr(expected, name)[twin]).all()
    stats, of_one = fleet.buffer(0).get_stats(), one.get_stats()
    for name in ("terminated_episodes", "open_episodes", "truncated_episodes"):
        assert getattr(stats, name) == getattr(of_one, name)
    assert stats.spliced_episodes == 0


async def test_only_steps_of_another_shape_are_refused_and_raised() -> None:
    fleet = fleet_of(ring)
    writer = fleet.replay().writer(batch_steps=100)
    await add(writer, 0)
    await add(writer, 1)
    await writer.add((0, 0), 2, 1.0, (0, 0))
    await writer.add((0, 0), 3, 1.0, (0, 0))
    await add(writer, 4)
    await add(writer, 5, terminated=True)
    with pytest.raises(errors.SchemaError, match=r"observations must be of shape \(2, 3\), got \(2, 2\)"):
        await writer.flush()
    await writer.flush()
    assert in_columns(fleet) == [(0, t) for t in (0, 1, 4, 5)]
    assert (writer.stored, writer.refused) == (4, 2)
    stats = fleet.shard(0).stats()
    assert stats.refused == 2
    assert (stats.buffer.truncated_episodes, stats.buffer.terminated_episodes) == (1, 1)


async def test_values_of_no_common_dtype_do_not_stop_a_writer() -> None:
    fleet = fleet_of(lambda: relive.RingReplayBuffer(100, streams=2, seed=0))
    writer = fleet.replay().writer(**LONG)
    await writer.add(0, 3, 0, 1)
    await writer.add(1, 4, 0.5, 2)
    await writer.add(2, np.datetime64(7, "D"), True, 3)
    await writer.add(3, 5, 1.5, 4, terminated=True)
    with pytest.raises(errors.SchemaError, match="action must be of dtype int64, got"):
        await writer.flush()
    await writer.close()
    assert fleet.buffer(0).read(range(3)).reward.tolist() == [0.0, 0.5, 1.5]
    assert (writer.stored, writer.refused) == (3, 1)


async def test_extras_and_dicts_are_sent_unchanged() -> None:
    fleet = fleet_of(lambda: relive.RingReplayBuffer(100, streams=2, seed=0))
    writer = fleet.replay().writer(batch_steps=2)
    for t in range(4):
        told = [{"image": np.full((2, 2), k), "hand": {"angle": float(k)}} for k in (t, t + 1)]
        await writer.add(told[0], {"push": t}, t, told[1], terminated=t == 3, mood={"joy": t})
    columns = {"image": np.zeros((3, 2, 2), int), "hand": {"angle": [7.0, 8.0, 9.0]}}
    await writer.add_episode(columns, {"push": [7, 8]}, [1, 2], terminated=False, mood={"joy": [7, 8]})
    await writer.flush()
    batch = fleet.buffer(0).read(range(6))
    assert batch.observation["hand"]["angle"].tolist() == [0, 1, 2, 3, 7, 8]
    assert batch.observation["image"][:, 1, 1].tolist() == [0, 1, 2, 3, 0, 0]
    assert batch.action["push"].tolist() == batch.extras["mood"]["joy"].tolist() == [0, 1, 2, 3, 7, 8]


# Episodes.


async def test_an_episode_sent_in_chunks_is_unchanged() -> None:
    fleet = fleet_of(trouble_test.episodes)
    writer = fleet.replay().episodes_writer(batch_steps=3)
    async with writer.episode("agent", group_id="g", policy_version=2) as episode:
        for t in range(7):
            await episode.append([t], t, 1.0, policy_version=5 if t == 4 else None)
        await episode.end([7], "TRUNCATED")
    await writer.flush()
    assert [chunk.rows for batch in inserts(fleet) for chunk in batch] == [3, 3, 1]
    (stored,) = local_test.episodes_in(fleet.buffer(0))
    assert (stored.agent_id, stored.group_id, stored.status) == ("agent", "g", "TRUNCATED")
    assert stored.observations == [[t] for t in range(8)]
    assert stored.policy_versions == [2, 2, 2, 2, 5, 5, 5]
    await writer.close()


async def test_a_piece_of_an_episode_knows_its_policy_version() -> None:
    fleet = fleet_of(trouble_test.episodes, lease=10.0)
    writer = fleet.replay().episodes_writer(**LONG)
    async with writer.episode("agent", policy_version=2) as episode:
        await episode.append(0, 0, 1.0, policy_version=5)
        await writer.flush()
        shard: Any = fleet.shard(0)
        assert shard._adapter.abandon_all() == 1
        await episode.append(1, 1, 1.0)
        await episode.end(2)
    await writer.flush()
    assert [stored.policy_versions for stored in local_test.episodes_in(fleet.buffer(0))] == [[5], [5]]


async def test_a_block_that_is_left_early_aborts_its_episode() -> None:
    fleet = fleet_of(trouble_test.episodes)
    writer = fleet.replay().episodes_writer(**LONG)
    block = writer.episode("agent")
    episode = await block.__aenter__()
    await episode.append(0, 0, 1.0)
    await episode.append(1, 1, 1.0)
    assert not await block.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    async with writer.episode("agent"):
        pass
    await writer.flush()
    assert lived(fleet) == [([0, 1], "ABORTED"), ([], "ABORTED")]
    for call in (episode.append(2, 2, 1.0), episode.end(3)):
        with pytest.raises(errors.ArgumentError, match="finished"):
            await call


async def test_a_closed_writer_aborts_open_episodes() -> None:
    fleet = fleet_of(trouble_test.episodes)
    writer = fleet.replay().episodes_writer(**LONG)
    async with writer.episode("a") as first, writer.episode("b") as second:
        await first.append(0, 0, 1.0)
        await second.append(0, 0, 1.0)
        await second.end(1)
        await writer.close()
        with pytest.raises(errors.ArgumentError, match="cannot append to finished episode of a: it is ABORTED"):
            await first.append(1, 1, 1.0)
    assert lived(fleet) == [([0, 1], "COMPLETED"), ([0], "ABORTED")] or lived(fleet) == [
        ([0], "ABORTED"),
        ([0, 1], "COMPLETED"),
    ]
    with pytest.raises(errors.ClosedError):
        async with writer.episode("c"):
            pass


async def test_an_episode_that_cannot_begin_is_refused_at_once() -> None:
    writer: Any = fleet_of(trouble_test.episodes).replay().episodes_writer()
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"agent_id": 3}, errors.ArgumentTypeError, "agent_id must be a string, got 3"),
        ({"group_id": 3}, errors.ArgumentTypeError, "group_id must be a string, got 3"),
        ({"group_id": ""}, errors.ArgumentError, "group_id must be a string of at least 1 character, got ''"),
        ({"policy_version": -1}, errors.ArgumentError, "policy_version must be at least 0, got -1"),
        ({"colour": 1}, TypeError, "unexpected keyword argument 'colour'"),
    ]
    for arguments, error, text in wrong:
        with pytest.raises(error, match=text):
            async with writer.episode(**{"agent_id": "a", **arguments}):
                pass
    await writer.flush()
    assert writer.stored == 0


async def test_an_invalid_step_of_an_episode_is_refused_at_once() -> None:
    fleet = fleet_of(trouble_test.episodes)
    writer = fleet.replay().episodes_writer(**LONG)
    async with writer.episode("a", policy_version=3) as episode:
        with pytest.raises(errors.ArgumentError, match="reward must be a finite real number, got nan"):
            await episode.append(0, 0, float("nan"))
        with pytest.raises(errors.ArgumentError, match="policy_version must be at least 3, that of the start"):
            await episode.append(0, 0, 1.0, policy_version=2)
        with pytest.raises(errors.ArgumentError, match="policy_version must be at least 0, got -1"):
            await episode.append(0, 0, 1.0, policy_version=-1)
        await episode.append(0, 0, 1.0, policy_version=3)
        await episode.append(1, 1, 1.0, policy_version=4)
        with pytest.raises(errors.ArgumentError, match="policy_version must be at least 4, that of the step"):
            await episode.append(0, 0, 1.0, policy_version=3)
        with pytest.raises(errors.ArgumentError, match="status must be one of COMPLETED, "):
            await episode.end(2, "IN_PROGRESS")  # type: ignore[arg-type]
        await episode.end(2)
    await writer.flush()
    assert lived(fleet) == [([0, 1, 2], "COMPLETED")]


async def test_later_changes_by_an_actor_are_not_sent() -> None:
    fleet = fleet_of(trouble_test.episodes)
    writer = fleet.replay().episodes_writer(**LONG)
    async with writer.episode("a") as episode:
        history: list[int] = []
        for t in range(3):
            await episode.append(history, [t], 1.0)
            history.append(t)
        await episode.end(history)
        history.append(99)
    await writer.flush()
    assert lived(fleet) == [([[], [0], [0, 1], [0, 1, 2]], "COMPLETED")]


async def test_episodes_without_steps_do_not_pile_up() -> None:
    fleet = fleet_of(trouble_test.episodes)
    writer = fleet.replay().episodes_writer(batch_steps=10)
    for _ in range(35):
        async with writer.episode("crashing"):
            pass
    await local_test.settle(1.0)
    assert len(lived(fleet)) == 30
    await writer.close()
    assert len(lived(fleet)) == 35


async def test_an_episode_of_a_group_leaves_open_ones_alone() -> None:
    fleet = fleet_of(lambda: relive.EpisodeReplayBuffer[Any, Any](groups=relive.Groups(2), max_episodes=9, seed=0))
    writer = fleet.replay().episodes_writer(batch_steps=1)
    async with writer.episode("lone") as episode:
        for t in range(3):
            await episode.append(t, t, 1.0)
            async with writer.episode("member", group_id="g") as member:
                await member.append(9, 9, 1.0)
            await writer.flush()
        await episode.end(3)
    await writer.close()
    assert ([0, 1, 2, 3], "COMPLETED") in lived(fleet)


# Under way.


async def test_closing_a_writer_ends_the_waits_for_room() -> None:
    """What such a call was to add is not added after all: the writer would not send it any more."""
    fleet = fleet_of(ring)
    writer = fleet.replay().writer(batch_steps=1, max_in_flight=1)
    fleet.hang(0)
    await add(writer, 0, 0, terminated=True)
    calls = [add(writer, 0, 1), add(writer, 0, 2, terminated=True), writer.end_episode(), writer.flush()]
    waiting = [asyncio.create_task(call) for call in calls]
    await local_test.settle(1.0)
    closing = asyncio.create_task(writer.close())
    await local_test.settle(1.0)
    assert [task.done() for task in (*waiting, closing)] == [True, True, True, False, False]
    for task in waiting[:3]:
        with pytest.raises(errors.ClosedError, match=r"^writer is closed: take a new one from the fleet's writer\(\)$"):
            await task
    fleet.go_on(0)
    await asyncio.gather(closing, waiting[3])
    assert in_columns(fleet) == [(0, 0)]


async def test_closing_a_writer_ends_the_calls_of_its_episodes() -> None:
    fleet = fleet_of(trouble_test.episodes)
    writer = fleet.replay().episodes_writer(batch_steps=1, max_in_flight=1)
    async with writer.episode("a") as episode, writer.episode("b") as other:
        fleet.hang(0)
        await episode.append(0, 0, 1.0)
        waiting = [asyncio.create_task(call) for call in (other.append(0, 0, 1.0), episode.end(1))]
        await local_test.settle(1.0)
        closing = asyncio.create_task(writer.close())
        await local_test.settle(1.0)
        fleet.go_on(0)
        await closing
        for task in waiting:
            with pytest.raises(errors.ClosedError, match="^writer is closed: take a new one"):
                await task
    assert {one.agent_id: one.status for one in local_test.episodes_in(fleet.buffer(0))} == {
        "a": "ABORTED",
        "b": "ABORTED",
    }


async def test_a_closed_writer_holds_no_group() -> None:
    client = fleet_of(lambda: relive.EpisodeReplayBuffer[Any, Any](groups=relive.Groups(2))).replay()
    writer = client.episodes_writer()
    await writer.close()
    tasks = asyncio.all_tasks()
    with pytest.raises(errors.ClosedError, match="^writer is closed"):
        async with writer.episode("a", group_id="g"):
            pass
    assert asyncio.all_tasks() == tasks


async def test_a_writer_moves_and_settles_with_its_first_shard_later() -> None:
    fleet = fleet_of(ring, 2, timeout=1.0)
    writer = fleet.replay().writer(batch_steps=2, max_in_flight=2)
    await add(writer, 0, 0, terminated=True)
    await writer.flush()
    home = [len(buffer) for buffer in fleet.buffers()].index(1)
    fleet.hang(home)
    for episode in range(1, 7):
        await add(writer, 0, episode)
        await add(writer, 1, episode, terminated=True)
    await local_test.settle(2.0)
    assert len(fleet.buffer(1 - home)) == 8
    assert writer.stored == 9
    fleet.go_on(home)
    await writer.flush()
    # What was under way to it has happened there after all.
    assert [len(buffer) for buffer in fleet.buffers()][home] == 5
    assert (writer.stored, writer.lost) == (13, 0)
    assert in_columns(fleet) == sorted([(0, 0), *[(e, t) for e in range(1, 7) for t in range(2)]])


async def test_an_episode_cut_by_a_crash_is_stored_as_pieces_in_order(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(trouble_test.episodes, 2, directory=tmp_path, timeout=1.0)
    writer = fleet.replay().episodes_writer(batch_steps=2, max_in_flight=3)
    async with writer.episode("a") as episode:
        for t in range(4):
            await episode.append(t, t, 1.0)
        await writer.flush()
        home = [buffer.appended for buffer in fleet.buffers()].index(4)
        fleet.hang(home)
        for t in range(4, 8):
            await episode.append(t, t, 1.0)
        await local_test.settle()
        fleet.kill(home)
        for t in range(8, 12):
            await episode.append(t, t, 1.0)
        await episode.end(12)
    await local_test.settle(3.0)
    fleet.start(home)
    await writer.flush()
    assert (writer.stored, writer.lost) == (12, 0)
    pieces = sorted(lived(fleet, 0) + lived(fleet, 1))
    assert pieces == [
        ([0, 1, 2, 3], "ABORTED"),
        ([4, 5], "ABORTED"),
        ([6, 7], "ABORTED"),
        ([8, 9, 10, 11, 12], "COMPLETED"),
    ]
    await writer.close()
    assert all(status != "IN_PROGRESS" for _, status in lived(fleet, 0) + lived(fleet, 1))


async def test_writers_without_shards_wait_and_count_losses() -> None:
    fleet = fleet_of(ring, 2, timeout=1.0, recovery=20.0)
    client = fleet.replay()
    writer = client.writer(batch_steps=1, max_in_flight=1)
    for shard in range(2):
        fleet.kill(shard)
    assert await client.ping() == [None, None]
    await add(writer, 0, 0, terminated=True)
    await local_test.settle(15.0)
    for shard in range(2):
        fleet.start(shard)
    await writer.flush()
    assert (writer.stored, writer.lost) == (1, 0)
    for shard in range(2):
        fleet.kill(shard)
    # The first has no answer, and then it is known that nobody is there.
    for episode in (1, 2, 3):
        await add(writer, 0, episode, terminated=True)
    await writer.flush()
    assert (writer.stored, writer.lost) == (1, 3)
    for shard in range(2):
        fleet.start(shard)
    await local_test.settle(1.0)
    await add(writer, 0, 4, terminated=True)
    await writer.close()
    assert (writer.stored, writer.lost) == (2, 3)
    assert in_columns(fleet) == [(4, 0)]


async def test_batches_to_resend_are_lost_too_without_shards() -> None:
    fleet = fleet_of(ring, 1, timeout=1.0, recovery=5.0)
    client = fleet.replay()
    writer = client.writer(batch_steps=1)
    await client.stats()
    fleet.hang(0)
    await add(writer, 0, terminated=True)
    await local_test.settle(0.5)

    async def die(shard: int, method: str) -> None:
        if method == "insert":
            fleet.kill(shard)
            await asyncio.sleep(0)

    fleet.answered = die
    fleet.kill(0)
    fleet.start(0)
    await writer.flush()
    assert (writer.stored, writer.lost) == (0, 1)
    assert [method for _, method, _ in fleet.calls].count("insert") == 2


async def test_refused_steps_are_reported_despite_a_lost_reply(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(ring, 1, directory=tmp_path, timeout=1.0)
    writer = fleet.replay().writer(batch_steps=4)

    async def swallow(shard: int, method: str) -> None:
        if method == "insert":
            fleet.answered = None
            fleet.kill(shard)
            fleet.start(shard)
            await asyncio.sleep(0)

    fleet.answered = swallow
    await add(writer, 0)
    await add(writer, 1)
    await writer.add((0, 0), 2, 1.0, (0, 0))
    await add(writer, 3)
    text = "shard 0 has refused 1 steps, and died before it could say why"
    with pytest.raises(errors.ArgumentError, match=text):
        await writer.flush()
    assert (writer.stored, writer.refused, writer.lost) == (3, 1, 0)
    assert in_columns(fleet) == [(0, 0), (0, 1), (0, 3)]


async def test_steps_that_cannot_be_sent_are_refused_and_raised_once() -> None:
    fleet = fleet_of(trouble_test.episodes)
    writer = fleet.replay().episodes_writer(batch_steps=1)

    class Unsendable:
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("cannot be sent")

    async with writer.episode("a") as episode:
        await episode.append(Unsendable(), 0, 1.0)
        await local_test.settle(1.0)
        with pytest.raises(RuntimeError, match="cannot be sent"):
            await episode.append(1, 1, 1.0)
        await episode.append(1, 1, 1.0)
        await episode.end(2)
    await writer.flush()
    assert (writer.stored, writer.refused) == (1, 1)


async def test_failed_turns_refuse_their_steps() -> None:
    fleet = fleet_of(ring, limiter=relive.MinSize(1))
    writer = fleet.replay().writer(batch_steps=1)

    async def fail(rows: int) -> bool:
        raise ZeroDivisionError(f"of a limiter, {rows}")

    turns: Any = fleet.limiter_process
    turns.insert_turn = fail
    await add(writer, 0)
    with pytest.raises(ZeroDivisionError, match="of a limiter, 1"):
        await writer.flush()
    del turns.insert_turn
    await add(writer, 1)
    await writer.flush()
    assert (writer.stored, writer.refused) == (1, 1)


async def test_a_writer_that_renews_its_lease_keeps_its_episode_open() -> None:
    fleet = fleet_of(trouble_test.episodes, lease=10.0)
    writer = fleet.replay().episodes_writer(batch_steps=1)
    async with writer.episode("a") as episode:
        await episode.append(0, 0, 1.0)
        await asyncio.sleep(100.0)
        assert lived(fleet) == [([0], "IN_PROGRESS")]
        # As if the process were stopped: no call of it arrives.
        outbox: Any = writer._outbox
        outbox._renewal.cancel()
        await asyncio.sleep(13.0)
        fleet.shard(0).ping()
        assert lived(fleet) == [([0], "ABORTED")]
        await episode.append(1, 1, 1.0)
        await episode.end(2)
    await writer.flush()
    assert lived(fleet) == [([0], "ABORTED"), ([1, 2], "COMPLETED")]
    await writer.close()


async def test_the_renewal_of_leases_notices_a_loss() -> None:
    fleet = fleet_of(ring, lease=10.0)
    writer = fleet.replay().writer(batch_steps=1)
    await add(writer, 0)
    await writer.flush()
    fleet.kill(0)
    fleet.start(0)
    await asyncio.sleep(5.0)
    assert fleet.shard(0).stats().lost == 1
    await writer.close()


# Cancellation.


class CancelledAfter:
    """An awaitable that is cancelled when it has been resumed so often."""

    def __init__(self, awaited: Awaitable[Any], awaits: int) -> None:
        self.awaited, self.awaits = awaited, awaits

    async def run(self) -> bool:
        """Return whether the call had ended before that."""
        task = asyncio.ensure_future(self.awaited)
        for _ in range(self.awaits):
            if task.done():
                break
            await asyncio.sleep(0)
        if task.done():
            task.result()
            return True
        task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        return not isinstance(results[0], BaseException)


@pytest.mark.parametrize("awaits", range(0, 40, 3))
async def test_a_cancelled_call_has_happened_or_changed_nothing(awaits: int) -> None:
    fleet = fleet_of(ring, 2, seed=3, delay=1e-9)
    client = fleet.replay()
    first, second = client.writer(batch_steps=2, max_in_flight=1), client.writer(batch_steps=2, max_in_flight=1)
    happened = collections.Counter[str]()
    for episode in range(10):
        whole = [at(t, 100 + episode) for t in range(3)]
        for name, call in (
            ("add", add(first, 0, episode, terminated=True)),
            ("add_episode", second.add_episode(whole, [0, 1], [1.0, 1.0], terminated=True)),
        ):
            happened[name] += await CancelledAfter(call, awaits).run()
        await CancelledAfter(first.flush(), awaits).run()
        await CancelledAfter(second.end_episode(), awaits).run()
    await first.flush()
    await second.close()
    found = in_columns(fleet)
    assert len(set(found)) == len(found)
    assert sum(episode < 100 for episode, _ in found) == happened["add"] == first.stored
    assert sum(episode >= 100 for episode, _ in found) == 2 * happened["add_episode"] == second.stored
    await CancelledAfter(first.close(), awaits).run()
    await first.close()


@pytest.mark.parametrize("awaits", range(0, 30, 3))
async def test_a_cancelled_episode_has_the_steps_that_happened(awaits: int) -> None:
    fleet = fleet_of(trouble_test.episodes, 2, seed=3, delay=1e-9)
    writer = fleet.replay().episodes_writer(batch_steps=2, max_in_flight=1)
    expected = []
    for _ in range(5):
        async with writer.episode("a") as episode:
            steps = [t for t in range(6) if await CancelledAfter(episode.append(t, t, 1.0), awaits).run()]
            is_over = await CancelledAfter(episode.end(6), awaits).run()
        expected.append(([*steps, 6], "COMPLETED") if is_over else (steps, "ABORTED"))
    await writer.close()
    assert sorted(lived(fleet, 0) + lived(fleet, 1)) == sorted(expected)


async def test_closing_sends_everything_even_if_cancelled() -> None:
    fleet = fleet_of(ring, timeout=1.0)
    writer = fleet.replay().writer(batch_steps=1, max_in_flight=3)
    fleet.hang(0)
    for episode in range(3):
        await add(writer, 0, episode, terminated=True)
    closing = asyncio.create_task(writer.close())
    await local_test.settle(0.1)
    closing.cancel()
    await local_test.settle(0.1)
    fleet.go_on(0)
    await asyncio.gather(closing, return_exceptions=True)
    assert closing.cancelled()
    await writer.flush()
    assert (len(in_columns(fleet)), writer.stored) == (3, 3)


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_cancelled_writer_ends_and_its_steps_are_sent_later(is_held: bool) -> None:
    limiter = relive.SampleToInsertRatio(1.0, min_size=1, error_buffer=2.0)
    fleet = fleet_of(ring, 2, timeout=1.0, limiter=limiter if is_held else None)
    client = fleet.replay()
    writer = client.writer(batch_steps=1, max_in_flight=9)
    await add(writer, 0, terminated=True)
    await writer.flush()

    async def act() -> None:
        async with writer:
            for episode in range(1, 6):
                await add(writer, 0, episode, terminated=True)
            await add(writer, 0, 6)
            await asyncio.sleep(1000.0)

    acting = asyncio.create_task(act())
    await local_test.settle(1.0)
    for shard in range(2):
        fleet.hang(shard)
    before = asyncio.get_running_loop().time()
    acting.cancel()
    await asyncio.wait([acting])
    assert acting.cancelled()
    assert asyncio.get_running_loop().time() == before
    with pytest.raises(errors.ClosedError, match="writer is closed"):
        await add(writer, 0, 7)
    for shard in range(2):
        fleet.go_on(shard)
    for _ in range(7 if is_held else 1):
        await client.sample(1)
    await writer.close()
    assert (writer.stored, writer.lost) == (7, 0)
    assert in_columns(fleet) == [(episode, 0) for episode in range(7)]
    assert sum(fleet.shard(shard).stats().writers for shard in range(2)) == 0


async def test_an_error_of_an_abandoned_writer_is_forgotten() -> None:
    fleet = fleet_of(ring, 1)
    writer = fleet.replay().writer(batch_steps=1)
    await writer.add_episode(np.zeros((3, 2)), np.zeros(2), np.zeros(2), terminated=True)
    with pytest.raises(asyncio.CancelledError):
        async with writer:
            raise asyncio.CancelledError
    await writer.close()
    await writer.close()
    assert (writer.stored, writer.refused) == (0, 2)


async def test_a_limiter_counts_only_stored_steps() -> None:
    limiter = relive.SampleToInsertRatio(1.0, min_size=10, error_buffer=10.0)
    fleet = fleet_of(ring, 1, limiter=limiter, timeout=1.0, recovery=5.0)
    client = fleet.replay()
    writer = client.writer(batch_steps=2)
    await writer.add_episode(np.zeros((3, 3)), np.zeros(2), np.zeros(2), terminated=True)
    await writer.flush()
    for number in range(30):
        await writer.add_episode(np.zeros((3, 2, 2)), np.zeros(2), np.zeros(2), terminated=True)
        with pytest.raises(errors.SchemaError):
            await writer.flush()
        assert await fleet.limiter_process.counts() == (2, 0), number
    fleet.hang(0)
    await writer.add_episode(np.zeros((3, 3)), np.zeros(2), np.zeros(2), terminated=True)
    await writer.flush()
    assert (writer.stored, writer.refused, writer.lost) == (2, 60, 2)
    assert await fleet.limiter_process.counts() == (2, 0)


async def test_steps_not_counted_by_the_limiter_are_not_given_back() -> None:
    limiter = relive.SampleToInsertRatio(1.0, min_size=2, error_buffer=4.0)
    fleet = fleet_of(ring, 1, limiter=limiter, lease=10.0)
    client = fleet.replay()
    async with client.writer(batch_steps=2) as writer:
        await writer.add_episode(np.zeros((3, 3)), np.zeros(2), np.zeros(2), terminated=True)
        await writer.flush()
        await client.sample(1)
        await asyncio.sleep(20.0)
        for _ in range(10):
            await writer.add_episode(np.zeros((3, 2)), np.zeros(2), np.zeros(2), terminated=True)
            with pytest.raises(errors.SchemaError):
                await writer.flush()
        assert await fleet.limiter_process.counts() == (2, 1)
