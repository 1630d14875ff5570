"""The example of HER: its loss and its environment are those on paper."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import her
import networks_test
import torch

import relive
from relive.integrations import torch as relive_torch


def test_q_loss_is_the_mean_squared_error() -> None:
    network, target_network = networks_test.constant([1.0, 2.0, 3.0], 6), networks_test.constant([10.0, 40.0, 20.0], 6)
    observation = {"achieved_goal": np.zeros((2, 3), np.int8), "desired_goal": np.ones((2, 3), np.int8)}
    buffer = relive.RingReplayBuffer(2, gamma=0.98)
    for action, reward, terminated in ((0, -1.0, False), (2, 0.0, True)):
        row = {name: rows[0] for name, rows in observation.items()}
        buffer.add(row, action, np.float32(reward), row, terminated=terminated)
    batch = buffer.read([0, 1])
    loss = her.q_loss(network, target_network, relive_torch.as_tensors(batch))
    assert loss.item() == pytest.approx(((-1 + 0.98 * 40 - 1) ** 2 + (0 - 3) ** 2) / 2, rel=1e-5)


def test_a_step_is_rewarded_by_the_goal_it_reached() -> None:
    rewards, reached = her.judge(np.array([[0, 1], [1, 1]], np.int8), np.array([[1, 1], [1, 1]], np.int8))
    assert rewards.tolist() == [-1.0, 0.0]
    assert reached.tolist() == [False, True]


def test_episodes_end_at_the_goal_or_after_a_step_per_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(her, "BITS", 3)
    buffer = relive.RingReplayBuffer(10_000, streams=her.STREAMS, seed=0)
    network = torch.nn.Linear(6, 3)
    rates = [her.play(network, 0.5, np.random.default_rng(seed), buffer) for seed in range(5)]
    stats = buffer.get_stats()
    assert (stats.open_episodes, stats.spliced_episodes) == (0, 0)
    # An episode that starts at its goal has succeeded without a step.
    assert stats.truncated_episodes == round((len(rates) - sum(rates)) * her.STREAMS)
    batch = buffer.read(buffer.eligible_keys())
    flipped = batch.observation["achieved_goal"] != batch.next_observation["achieved_goal"]
    assert (flipped == np.eye(3, dtype=np.bool_)[batch.action]).all()
    assert (batch.is_terminal == (batch.reward == 0)).all()
