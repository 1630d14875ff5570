"""The example of chunks: its loss and its room are those on paper."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import chunks
import networks_test
import torch

import relive
from relive.integrations import torch as relive_torch


def test_each_chunk_has_a_number() -> None:
    every = chunks.chunk_of(np.arange(64), 3)
    assert len(np.unique(every, axis=0)) == 64
    assert chunks.number_of(torch.from_numpy(every)).tolist() == list(range(64))


def test_q_loss_is_the_mean_squared_error_of_chunks() -> None:
    buffer = relive.RingReplayBuffer(9, n_step=2, gamma=0.5, action_chunks=True)
    observations = np.zeros((4, 1), np.float32)
    buffer.add_episode(observations, [1, 0, 2], np.array([1.0, 2.0, 4.0], np.float32), terminated=True)
    network = networks_test.constant(list(map(float, range(16))), 1)
    batch = relive_torch.as_tensors(buffer.read([0, 1, 2]))
    assert chunks.number_of(batch.action).tolist() == [1, 8, 10]
    loss = chunks.q_loss(network, networks_test.constant([0.0] * 15 + [8.0], 1), batch)
    assert loss.item() == pytest.approx(((2 + 0.25 * 8 - 1) ** 2 + (4 - 8) ** 2 + (4 - 10) ** 2) / 3)


def test_episodes_end_in_the_corner_or_at_the_limit() -> None:
    buffer = relive.RingReplayBuffer(10_000, streams=chunks.STREAMS, seed=0)
    network = networks_test.constant([1.0] + [0.0] * 63, 2 * chunks.SIZE)
    rates = [chunks.play(network, 3, 0.5, np.random.default_rng(seed), buffer) for seed in range(5)]
    stats = buffer.get_stats()
    assert (stats.open_episodes, stats.spliced_episodes) == (0, 0)
    assert stats.terminated_episodes == round(sum(rates) * chunks.STREAMS)
    batch = buffer.read(buffer.eligible_keys())
    places, reached = (
        part.reshape(-1, 2, chunks.SIZE).argmax(axis=2) for part in (batch.observation, batch.next_observation)
    )
    assert (reached == chunks.move(places, batch.action)).all()
    assert (batch.is_terminal == (batch.reward == 1)).all()
