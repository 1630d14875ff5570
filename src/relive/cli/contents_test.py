"""Statistics of a buffer, compared with the steps that were added."""

from typing import Any

import numpy as np
import pytest

import relive
from relive.cli import contents


def test_episodes_of_columns_are_as_they_were_added() -> None:
    rng = np.random.default_rng(0)
    buffer = relive.PrioritizedReplayBuffer(60, seed=0)
    episodes = []
    for number in range(12):
        rewards = rng.normal(size=rng.integers(3, 12))
        is_terminated = bool(number % 3)
        for t, reward in enumerate(rewards):
            is_last = t == len(rewards) - 1
            ends = {"terminated": is_last and is_terminated, "truncated": is_last and not is_terminated}
            buffer.add(t, 0, float(reward), t + 1, **ends)
        episodes.append(rewards)
    buffer.add(0, 0, 5.0, 1)
    found = contents.of(buffer)
    stored, rows = [], 59
    for rewards in reversed(episodes):
        stored += [rewards] if rows > 0 else []
        rows -= len(rewards)
    lengths = [len(rewards) for rewards in reversed(stored)]
    assert found["episode lengths"].tolist() == lengths
    whole = list(reversed(stored if rows == 0 else stored[:-1]))
    assert found["episode returns"] == pytest.approx([rewards.sum() for rewards in whole])
    assert found["rewards"].tolist() == [*np.concatenate(episodes)[-59:], 5.0]


def test_rows_without_a_priority_are_counted_apart() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=5, prioritized=True, seed=0)
    for t in range(20):
        buffer.add(t, 0, 0.0, t + 1)
    assert np.isnan(contents.of(buffer)["priorities"]).tolist() == [False] * 16 + [True] * 4


def test_an_empty_buffer_has_no_episodes_to_show() -> None:
    schema = relive.Schema(relive.Field((), "int64"), relive.Field((), "int64"))
    empty: list[Any] = [
        relive.PrioritizedReplayBuffer(10, schema, seed=0), relive.EpisodeReplayBuffer(seed=0),
        relive.RingReplayBuffer(10, seed=0), relive.RolloutBuffer(10), None,
    ]  # fmt: skip
    for buffer in empty:
        assert all(values.size == 0 for values in contents.of(buffer).values())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_rewards_may_be_any_float(dtype: str) -> None:
    schema = relive.Schema(relive.Field((), "int64"), relive.Field((), "int64"), reward=relive.Field((), dtype))
    buffer = relive.RingReplayBuffer(10, schema, seed=0)
    buffer.add(0, 0, 0.5, 1, terminated=True)
    assert contents.of(buffer)["episode returns"].tolist() == [0.5]


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
    assert found["episode lengths"].tolist() == [1, 2, 5]
    assert found["episode returns"].tolist() == [1, 20, 50_000]
    assert found["rewards"].size == 15
    assert found["seconds open"].size == 1


def test_episodes_come_in_the_order_in_which_they_began() -> None:
    buffer = relive.RingReplayBuffer(10, streams=2, seed=0)
    buffer.add(0, 0, 1.0, 1, stream=1)
    buffer.add(0, 0, 100.0, 1, terminated=True, stream=0)
    buffer.add(1, 0, 10.0, 2, terminated=True, stream=1)
    found = contents.of(buffer)
    assert found["episode lengths"].tolist() == [2, 1]
    assert found["episode returns"].tolist() == [11.0, 100.0]
