"""Rewards at the end of what a float holds: the same rule in every buffer.

A reward is finite as float64; a sum of them that is beyond its dtype is infinite, and numpy warns where it adds up.
"""

from collections.abc import Callable
import itertools
import math
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

HUGE = np.longdouble("1e400")
IS_WIDE = np.isfinite(HUGE)
"""Not so where a long double is a double."""
MOST = {"float16": 6e4, "float32": 3e38, "float64": 1.5e308, "longdouble": 1.5e308}


def ring(reward: Any, **settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer with an episode of three such rewards."""
    buffer = relive.RingReplayBuffer(10, gamma=1.0, seed=0, **settings)
    buffer.add_episode(range(4), [0] * 3, np.array([reward] * 3), terminated=True)
    return buffer


def joint(reward: Any, n_step: int = 1) -> Any:
    buffer = relive.JointReplayBuffer(10, agents=["a"], n_step=n_step, gamma=1.0, seed=0)
    for t in range(3):
        buffer.add({"a": t}, {"a": 0}, {"a": reward}, {"a": t + 1})
    return buffer


def episodes(reward: Any) -> Any:
    buffer = relive.EpisodeReplayBuffer[int, int](seed=0)
    episode_id = buffer.start_episode_nowait("a")
    for t in range(3):
        buffer.append_observation_action_reward_nowait(episode_id, t, 0, reward)
    buffer.end_episode_nowait(episode_id, 3)
    return buffer


def tokens(reward: Any) -> Any:
    step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-0.5], policy_version=0, reward=reward)
    buffer = relive.TokenReplayBuffer(100, seed=0)
    buffer.add_episode([step] * 3, agent_id="a")
    return buffer


def rollout(reward: Any) -> Any:
    buffer = relive.RolloutBuffer(10)
    for t in range(3):
        buffer.add(t, 0, reward, np.zeros_like(reward))
    return buffer


WIDE = relive.Schema(relive.Field((), np.int64), relive.Field((), np.int64), reward=relive.Field((), np.longdouble))
WRITES: dict[str, Callable[[Any], Any]] = {
    "add": lambda reward: relive.RingReplayBuffer(10).add(0, 0, reward, 1),
    "add to a schema": lambda reward: relive.RingReplayBuffer(10, WIDE).add(0, 0, reward, 1),
    "extend": lambda reward: relive.RingReplayBuffer(10, WIDE).extend([0], [0], np.array([reward]), [1]),
    "add_steps": lambda reward: relive.RingReplayBuffer(10).add_steps([0, 1], [0], np.array([reward])),
    "add_episode": ring,
    "joint": joint,
    "episodes": episodes,
    "tokens": tokens,
    "rollout": rollout,
    "return": lambda reward: relive.compute_discounted_return([reward], 1.0),
}


@pytest.mark.skipif(not IS_WIDE, reason="a long double is a double here")
def test_a_reward_that_no_float64_holds_is_refused(subtests: pytest.Subtests) -> None:
    for reward, write in itertools.product([HUGE, -HUGE], WRITES.values()):
        with subtests.test(str(reward)):
            rule = r"reward must be (finite as float64, got -?1e\+400|a finite real number, got -?np.longdouble)"
            with pytest.raises(errors.ArgumentError, match=rule):
                write(reward)


def test_the_largest_rewards_are_stored() -> None:
    for reward in (np.finfo(np.float64).max, np.longdouble(np.finfo(np.float64).max), np.float32(3e38)):
        buffer = ring(reward)
        assert buffer.read([0]).reward == reward
        assert rollout(reward).arrays()["reward"].tolist() == [reward] * 3


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_sum_of_rewards_beyond_its_dtype_is_infinite(dtype: str, size: int) -> None:
    buffer = ring(np.dtype(dtype).type(MOST[dtype]), n_step=3)
    with pytest.warns(RuntimeWarning, match="overflow"):
        batch = buffer.read(np.arange(size) % 3)
    assert batch.reward.dtype == dtype
    one = float(np.dtype(dtype).type(MOST[dtype]))
    assert batch.reward.tolist() == [[math.inf, math.inf, one][place % 3] for place in range(size)]
    with pytest.warns(RuntimeWarning, match="overflow"):
        agent = joint(np.dtype(dtype).type(MOST[dtype]), n_step=3).read([0]).agents["a"]
    assert (agent.reward.dtype, agent.reward.tolist()) == (dtype, [math.inf])


def test_sums_of_floats_beyond_float64_are_infinite() -> None:
    samples = episodes(1e308).sample_n_step_nowait(20, 3, 1.0)
    assert {sample.reward for sample in samples} == {1e308, math.inf}
    assert relive.compute_discounted_return([1e308] * 3, 1.0) == math.inf
    assert tokens(1e308).sample(1).returns.tolist() == [math.inf]
    with pytest.warns(RuntimeWarning, match="overflow"):
        advantages, returns = rollout(1e308).advantages(1.0, 1.0)
    assert advantages.tolist() == returns.tolist() == [math.inf, math.inf, 1e308]
    with pytest.warns(RuntimeWarning, match="overflow"):
        advantages, _ = rollout(np.float32(3e38)).advantages(1.0, 1.0)
    assert (advantages.dtype, advantages.tolist()[:2]) == (np.float32, [math.inf, math.inf])
