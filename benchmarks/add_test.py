"""One step added to a full buffer."""

import itertools

import numpy as np
import pytest

import relive


@pytest.mark.parametrize(("shape", "dtype", "capacity"), [(4, "float32", 1_000_000), ((84, 84), "uint8", 50_000)])
def test_add(benchmark, schema_of, filled, shape, dtype, capacity):
    buffer = filled(relive.RingReplayBuffer(capacity, schema_of(shape, dtype), seed=0))
    observations = list(np.random.default_rng(0).integers(0, 256, (64, *np.zeros(shape).shape)).astype(dtype))
    steps = itertools.cycle(zip(observations, [*observations[1:], observations[0]], strict=True))

    def add():
        observation, next_observation = next(steps)
        buffer.add(observation, 0, 1.0, next_observation)

    benchmark(add)
    assert buffer.get_stats().spliced_episodes == 0
