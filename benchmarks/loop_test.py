"""Four steps added, then a batch of 32 by priority and its new priorities; a step is a quarter of it."""

import numpy as np

import relive


def test_loop(benchmark, schema_of, filled):
    buffer = filled(relive.PrioritizedReplayBuffer(1_000_000, schema_of(4, "float32"), seed=0))
    observation = np.zeros(4, np.float32)
    priorities = np.random.default_rng(0).random(32)

    def four_steps():
        for _ in range(4):
            buffer.add(observation, 0, 1.0, observation)
        return buffer.update_priorities(buffer.sample(32).keys, priorities)

    assert benchmark(four_steps) == 32
