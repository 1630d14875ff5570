import dataclasses

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


def naive_sample(
    episode: relive.Episode[list[int], int], start: int, n: int, gamma: float
) -> relive.ReplaySample[list[int], int]:
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
        observation=[start],
        action=start,
        next_observation=[t],
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


def test_samples_of_a_completed_episode_are_a_table() -> None:
    episode = episode_of(5, "COMPLETED")
    samples = samples_lib.read([(episode, start) for start in range(5)], 3, 0.9)
    assert [sample.reward for sample in samples] == pytest.approx([5.23, 7.94, 10.65, 8.5, 5.0])
    assert [sample.actual_n for sample in samples] == [3, 3, 3, 2, 1]
    assert [sample.is_terminal for sample in samples] == [False, False, True, True, True]
    assert [sample.next_discount for sample in samples] == pytest.approx([0.729, 0.729, 0, 0, 0])
    assert [sample.next_observation for sample in samples] == [[3], [4], [5], [5], [5]]
    assert [sample.window_end for sample in samples] == ["HORIZON", "HORIZON", *["TERMINATED"] * 3]


def test_a_horizon_beyond_every_episode_costs_no_memory() -> None:
    (sample,) = samples_lib.read([(episode_of(4, "TRUNCATED"), 0)], 10**12, 0.5)
    assert (sample.actual_n, sample.next_discount) == (4, 0.0625)


def test_the_target_formula_holds_without_cases() -> None:
    """reward + next_discount * V(next) equals the value of the start, for every n."""
    episode = episode_of(6, "COMPLETED")
    values = [sum(0.9**k * (t + k + 1) for k in range(6 - t)) for t in range(7)]
    for n in range(1, 8):
        for sample in samples_lib.read([(episode, start) for start in range(6)], n, 0.9):
            target = sample.reward + sample.next_discount * values[sample.next_observation[0]]
            assert target == pytest.approx(values[sample.start_step])


def test_two_horizons_from_the_same_starts_see_the_same_step() -> None:
    """Rainbow is all you need, issue 10: 1-step and n-step views of the same draws differ in observation and action."""
    draws = [(episode_of(9, "TRUNCATED"), start) for start in [4, 8, 0, 4]]
    for one, three in zip(samples_lib.read(draws, 1, 0.9), samples_lib.read(draws, 3, 0.9), strict=True):
        assert (one.observation, one.action, one.start_step) == (three.observation, three.action, three.start_step)


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
