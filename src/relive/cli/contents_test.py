"""What is found in a buffer, against what was put in."""

from typing import Any

import numpy as np
import pytest

import relive
from relive.cli import contents
from relive.cli import saved_examples_test as examples


def test_episodes_of_columns_are_as_they_were_added() -> None:
    rng = np.random.default_rng(0)
    buffer = relive.PrioritizedReplayBuffer(60, seed=0)
    episodes = []
    for number in range(12):
        rewards = rng.normal(size=rng.integers(3, 12))
        is_terminated = bool(number % 3)
        for t, reward in enumerate(rewards):
            is_last = t == len(rewards) - 1
            buffer.add(
                t,
                0,
                float(reward),
                t + 1,
                terminated=is_last and is_terminated,
                truncated=is_last and not is_terminated,
            )
        episodes.append(rewards)
    buffer.add(0, 0, 5.0, 1)
    found = contents.of(buffer)
    stored, rows = [], 59
    for rewards in reversed(episodes):
        stored += [rewards] if rows > 0 else []
        rows -= len(rewards)
    lengths = [len(rewards) for rewards in reversed(stored)]
    assert found.distributions["episode_lengths"].kept.tolist() == lengths
    whole = list(reversed(stored if rows == 0 else stored[:-1]))
    assert found.distributions["episode_returns"].kept == pytest.approx([rewards.sum() for rewards in whole])
    assert found.distributions["rewards"].kept.tolist() == [*np.concatenate(episodes)[-59:], 5.0]
    assert found.distributions["ages"].kept.tolist() == list(range(60))


def test_means_by_age_begin_with_the_newest_rows() -> None:
    buffer = relive.PrioritizedReplayBuffer(1000, seed=0, max_times_sampled=3)
    for t in range(1000):
        buffer.add(t, 0, 0.0, t + 1)
    buffer.update_priorities(buffer.eligible_keys(), np.arange(1000.0))
    buffer.sample(100)
    found = contents.of(buffer)
    assert found.by_age["priorities"].tolist() == [989.5 - 20 * group for group in range(50)]
    assert found.by_age["times_sampled"].sum() * 20 == pytest.approx(100)
    assert found.distributions["times_sampled"].count == 1000


def test_few_rows_are_not_cut_into_many_groups() -> None:
    buffer = relive.PrioritizedReplayBuffer(100, seed=0)
    for t in range(11):
        buffer.add(t, 0, 0.0)
    assert len(contents.of(buffer).by_age["priorities"]) == 2


def test_rows_without_a_priority_are_counted_apart() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=5, prioritized=True, seed=0)
    for t in range(20):
        buffer.add(t, 0, 0.0, t + 1)
    spread = contents.of(buffer).distributions["priorities"]
    assert (spread.count, spread.num_not_finite) == (16, 4)


def test_of_an_empty_buffer_there_is_nothing() -> None:
    assert contents.of(relive.RingReplayBuffer(10, seed=0)) == contents.Contents()
    assert contents.of(None) == contents.Contents()
    schema = relive.Schema(relive.Field((), "int64"), relive.Field((), "int64"))
    empty: list[Any] = [relive.PrioritizedReplayBuffer(10, schema, seed=0), relive.EpisodeReplayBuffer(seed=0)]
    for buffer in empty:
        found = contents.of(buffer)
        assert [spread.count for spread in found.distributions.values()] == [0] * len(found.distributions)
        assert found.frames == []
        assert all(not len(means) for means in found.by_age.values())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_rewards_may_be_any_float(dtype: str) -> None:
    schema = relive.Schema(relive.Field((), "int64"), relive.Field((), "int64"), reward=relive.Field((), dtype))
    buffer = relive.RingReplayBuffer(10, schema, seed=0)
    buffer.add(0, 0, 0.5, 1, terminated=True)
    assert contents.of(buffer).distributions["episode_returns"].kept.tolist() == [0.5]


def test_episodes_of_objects_are_as_they_were_written() -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any](max_transitions=100, seed=0)
    statuses: list[relive.FinalStatus | None] = ["COMPLETED", "TRUNCATED", "ABORTED", None, "COMPLETED"]
    for number, status in enumerate(statuses):
        episode_id = buffer.start_episode_nowait("a")
        for t in range(number + 1):
            buffer.append_observation_action_reward_nowait(episode_id, t, 0, 10.0**number)
        if status is not None:
            buffer.end_episode_nowait(episode_id, None, status)
    found = contents.of(buffer)
    assert found.distributions["episode_lengths"].kept.tolist() == [1, 2, 5]
    assert found.distributions["episode_returns"].kept.tolist() == [1, 20, 50_000]
    assert found.distributions["rewards"].count == 15
    assert found.distributions["open_seconds"].count == 1


def test_frames_are_taken_where_they_are_asked_for() -> None:
    for buffer in (examples.prioritized(), examples.episodes()):
        assert len(contents.of(buffer, 2).frames) == 2
        assert contents.of(buffer).frames == []


def test_episodes_come_in_the_order_in_which_they_began() -> None:
    buffer = relive.RingReplayBuffer(10, streams=2, seed=0)
    buffer.add(0, 0, 1.0, 1, stream=1)
    buffer.add(0, 0, 100.0, 1, terminated=True, stream=0)
    buffer.add(1, 0, 10.0, 2, terminated=True, stream=1)
    found = contents.of(buffer)
    assert found.distributions["episode_lengths"].kept.tolist() == [2, 1]
    assert found.distributions["episode_returns"].kept.tolist() == [11.0, 100.0]
