"""A uniform batch of 256 from a million steps."""

import pytest

import relive


@pytest.mark.parametrize(("width", "action"), [(4, relive.Field((), "int64")), (17, relive.Field(6, "float32"))])
def test_uniform(benchmark, schema_of, filled, width, action):
    buffer = filled(relive.RingReplayBuffer(1_000_000, schema_of(width, "float32", action), seed=0))
    assert benchmark(buffer.sample, 256).observation.shape == (256, width)
