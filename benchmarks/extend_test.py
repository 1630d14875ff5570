"""One step of 64 streams at once added to a full buffer; a step is a 64th of it."""

import numpy as np

import relive


def test_extend(benchmark, schema_of, filled):
    buffer = filled(relive.RingReplayBuffer(1_000_000, schema_of(4, "float32"), streams=64, seed=0))
    observation = np.zeros((64, 4), np.float32)
    actions, rewards, never = np.zeros(64, np.int64), np.zeros(64, np.float32), np.zeros(64, np.bool_)
    keys = benchmark(buffer.extend, observation, actions, rewards, observation, never, never)
    assert len(keys) == 64
