"""A batch of stacks of four frames of 84 x 84, of which each step stores one."""

import pytest

import relive


@pytest.mark.parametrize("batch_size", [32, 256])
def test_images(benchmark, schema_of, filled, batch_size):
    buffer = filled(relive.RingReplayBuffer(50_000, schema_of((84, 84), "uint8"), frame_stack=4, seed=0))
    assert benchmark(buffer.sample, batch_size).observation.shape == (batch_size, 4, 84, 84)
