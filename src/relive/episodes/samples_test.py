import dataclasses
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive.episodes import samples as samples_lib

STATUSES: list[relive.EpisodeStatus] = ["IN_PROGRESS", "COMPLETED", "TRUNCATED", "ABORTED"]


def episode_of(steps: int, status: relive.EpisodeStatus, final_known: bool = True) -> relive.Episode[list[int], int]:
    """Return ep(steps): observations [0], [1], ..., actions 0, 1, ..., rewards 1, 2, ..."""
    episode: relive.Episode[list[int], int] = relive.Episode(episode_id="e", agent_id="a")
    for t in range(steps):
        episode.append_observation_action_reward([t], t, float(t + 1))
    if status == "ABORTED" and not final_known:
        episode.abort()
    elif status != "IN_PROGRESS":
        episode.append_final_observation([steps], status)
    return episode


def naive_sample(episode: relive.Episode[Any, Any], start: int, n: int, gamma: float) -> relive.ReplaySample[Any, Any]:
    """Walk the window step by step, as the definition says."""
    rewards: list[float] = []
    powers: list[float] = []
    t = start
    while len(rewards) < n and t + 1 < len(episode.observations):
        powers.append(gamma ** len(rewards))
        rewards.append(episode.rewards[t])
        t += 1
    at_the_end = t + 1 == len(episode.observations)
    terminal = at_the_end and episode.status == "COMPLETED"
    end: relive.WindowEnd
    if terminal:
        end = "TERMINATED"
    elif len(rewards) == n:
        end = "HORIZON"
    elif episode.status == "TRUNCATED":
        end = "TRUNCATED"
    elif episode.status == "ABORTED":
        end = "ABORTED"
    else:
        end = "OPEN"
    return relive.ReplaySample(
        episode_id=episode.episode_id,
        agent_id=episode.agent_id,
        observation=episode.observations[start],
        action=episode.actions[start],
        next_observation=episode.observations[t],
        next_discount=0.0 if terminal else gamma ** len(rewards),
        is_terminal=terminal,
        rewards_seq=rewards,
        discount_powers=powers,
        start_step=start,
        actual_n=len(rewards),
        gamma=gamma,
        window_end=end,
    )


@hypothesis.given(
    steps=st.integers(1, 12),
    status=st.sampled_from(STATUSES),
    final_known=st.booleans(),
    n=st.integers(1, 15),
    gamma=st.floats(0.01, 1.0),
)
def test_every_window_is_the_one_walked_step_by_step(
    steps: int, status: relive.EpisodeStatus, final_known: bool, n: int, gamma: float
) -> None:
    episode = episode_of(steps, status, final_known)
    starts = range(len(episode))
    samples = samples_lib.read([(episode, start) for start in starts], n, gamma)
    assert samples == [naive_sample(episode, start, n, gamma) for start in starts]
    assert [(sample.observation, sample.action) for sample in samples] == [([start], start) for start in starts]


def test_a_horizon_beyond_every_episode_costs_no_memory() -> None:
    (sample,) = samples_lib.read([(episode_of(4, "TRUNCATED"), 0)], 10**12, 0.5)
    assert (sample.actual_n, sample.next_discount) == (4, 0.0625)


def test_a_sample_owns_its_arrays_and_lists() -> None:
    episode: relive.Episode[dict[str, np.ndarray], np.ndarray] = relive.Episode(episode_id="e", agent_id="a")
    for _ in range(3):
        episode.append_observation_action_reward({"x": np.zeros(2)}, np.zeros(1), 1.0)
    first, second = samples_lib.read([(episode, 0), (episode, 0)], 2, 0.9)
    before = dataclasses.asdict(second)
    first.observation["x"][:] = 7
    first.next_observation["x"][:] = 7
    first.action[:] = 7
    first.rewards_seq[0] = 7.0
    first.discount_powers[0] = 7.0
    first.observation.clear()
    for sample in [second, *samples_lib.read([(episode, 0)], 2, 0.9)]:
        assert str(dataclasses.asdict(sample)) == str(before)


def test_the_reward_is_derived() -> None:
    (sample,) = samples_lib.read([(episode_of(3, "COMPLETED"), 0)], 3, 0.5)
    assert sample.reward == relive.compute_discounted_return(sample.rewards_seq, sample.gamma) == 2.75
    with pytest.raises(AttributeError):
        sample.reward = 1.0  # type: ignore[misc]


def test_a_sample_takes_neither_positions_nor_new_attributes() -> None:
    (sample,) = samples_lib.read([(episode_of(3, "COMPLETED"), 0)], 3, 0.5)
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        relive.ReplaySample("e", "a")  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="next_obs"):
        sample.next_obs = [0]  # type: ignore[attr-defined]
