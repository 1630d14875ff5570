"""A batch of 256 by priority and its new priorities, at 10^4 to 10^7 steps."""

import numpy as np
import pytest

import relive


@pytest.mark.parametrize("capacity", [10_000, 100_000, 1_000_000, 10_000_000])
def test_prioritized(benchmark, schema_of, filled, capacity):
    buffer = filled(relive.PrioritizedReplayBuffer(capacity, schema_of(4, "float32"), seed=0))
    rng = np.random.default_rng(0)
    keys = buffer.eligible_keys()
    buffer.update_priorities(keys, rng.random(len(keys)))
    priorities = rng.random(256)

    def sample_and_update():
        return buffer.update_priorities(buffer.sample(256).keys, priorities)

    assert benchmark(sample_and_update) == 256
