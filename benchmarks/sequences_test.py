"""A batch of 16 sequences of 64 images of 64 x 64 x 3, drawn when asked for and drawn ahead."""

import pytest

import relive


@pytest.fixture
def buffer(schema_of, filled):
    return filled(relive.SequenceReplayBuffer(20_000, schema_of((64, 64, 3), "uint8"), length=64, seed=0))


def test_sequences(benchmark, buffer):
    assert benchmark(buffer.sample, 16).observation.shape == (16, 65, 64, 64, 3)


def test_sequences_drawn_ahead(benchmark, buffer):
    batches = buffer.batches(16, prefetch=2)
    assert benchmark(next, batches).observation.shape == (16, 65, 64, 64, 3)
    batches.close()
