"""A batch of 256 five-step transitions from a million steps."""

import relive


def test_five_steps(benchmark, schema_of, filled):
    buffer = filled(relive.RingReplayBuffer(1_000_000, schema_of(4, "float32"), n_step=5, seed=0))
    assert benchmark(buffer.sample, 256).steps.max() == 5
