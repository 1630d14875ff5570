"""What an append and a draw cost does not depend on how many episodes there are: operations and bytes are counted."""

from collections.abc import Callable
import tracemalloc

import pytest

import relive
from relive.buffers import call_counts_test
from relive.episodes import helpers_test


def costs(call: Callable[[], object]) -> tuple[int, int]:
    """Return how many operations the call makes in relive's own code, and how many bytes it takes meanwhile."""
    call()  # What is made on first use, and kept, does not count.
    tracemalloc.start()
    try:
        call()
        allocated = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return call_counts_test.count(call), allocated


@pytest.mark.parametrize("policy_version", [None, 3])
def test_an_append_costs_the_same_among_many_open_episodes(policy_version: int | None) -> None:
    few, many = (relive.EpisodeReplayBuffer[int, int](seed=0) for _ in range(2))

    def cost(buffer: helpers_test.Buffer, episodes: int) -> tuple[int, int]:
        ids = [buffer.start_episode_nowait("agent") for _ in range(episodes)]
        for episode_id in ids:
            buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0, policy_version=policy_version)
        append = buffer.append_observation_action_reward_nowait
        return costs(lambda: [append(one, 0, 0, 1.0, policy_version=policy_version) for one in ids[:10]])

    for less, more in zip(cost(few, 10), cost(many, 10_000), strict=True):
        assert more <= 2 * less


def test_a_draw_costs_the_same_from_many_episodes() -> None:
    def cost(episodes: int) -> tuple[int, int]:
        buffer: helpers_test.Buffer = relive.EpisodeReplayBuffer(seed=0)
        for _ in range(episodes):
            helpers_test.live(buffer, steps=2)
        return costs(lambda: buffer.sample_n_step_nowait(256, 3, 0.99))

    for less, more in zip(cost(100), cost(10_000), strict=True):
        assert more <= 2 * less
