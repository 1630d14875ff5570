"""A step appended to one of 10^3 to 10^5 episodes of ten steps, then a batch of 256 five-step transitions of them."""

import pytest

import relive


@pytest.mark.parametrize("episodes", [1_000, 10_000, 100_000])
def test_episodes(benchmark, episodes):
    buffer = relive.EpisodeReplayBuffer(max_episodes=episodes, seed=0)
    for _ in range(episodes):
        episode_id = buffer.start_episode_nowait("agent")
        for t in range(10):
            buffer.append_observation_action_reward_nowait(episode_id, t, 0, 1.0)
        buffer.end_episode_nowait(episode_id, 10)
    running = buffer.start_episode_nowait("agent")

    def append_and_sample():
        buffer.append_observation_action_reward_nowait(running, 0, 0, 1.0)
        return buffer.sample_n_step_nowait(256, n=5, gamma=0.99)

    assert len(benchmark(append_and_sample)) == 256
