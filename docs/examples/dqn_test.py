"""The example of DQN: its losses are those on paper."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import dqn
import networks_test
import torch

import relive


@pytest.fixture(autouse=True)
def _early_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to learn after 100 steps."""
    monkeypatch.setattr(dqn, "WARM_UP", 100)


ACTIONS, REWARDS, GAMMA = networks_test.ACTIONS, networks_test.REWARDS, networks_test.GAMMA


VALUES = [[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [5.0, 4.0], [6.0, 7.0]]
TARGET_VALUES = [[0.0, 1.0], [9.0, 9.0], [1.0, 1.0], [2.0, 8.0], [9.0, 4.0]]
"""By observation and action. The networks disagree about the best action in the third and in the last observation."""


def table(values: list[list[float]]) -> torch.nn.Linear:
    """Return a network with these values."""
    network = torch.nn.Linear(5, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor(values).T)
    return network


@pytest.mark.parametrize("terminated", [True, False])
def test_errors_are_relative_to_three_step_double_q_targets(*, terminated: bool) -> None:
    buffer = relive.PrioritizedReplayBuffer(10, n_step=3, gamma=GAMMA)
    batch = networks_test.read_episode(buffer, ACTIONS, terminated=terminated)
    expected = []
    for start in range(4):
        end = min(start + 3, 4)
        target = sum(GAMMA ** (t - start) * REWARDS[t] for t in range(start, end))
        if not (terminated and end == 4):
            best = VALUES[end].index(max(VALUES[end]))
            target += GAMMA ** (end - start) * TARGET_VALUES[end][best]
        expected.append(VALUES[start][ACTIONS[start]] - target)
    assert dqn.errors_of(table(VALUES), table(TARGET_VALUES), batch).tolist() == expected


def test_only_the_values_are_trained_not_their_targets() -> None:
    network, target_network = table(VALUES), table(TARGET_VALUES)
    batch = networks_test.read_episode(
        relive.PrioritizedReplayBuffer(10, n_step=3, gamma=GAMMA), ACTIONS, terminated=False
    )
    dqn.errors_of(network, target_network, batch).sum().backward()
    assert network.weight.grad is not None
    assert network.weight.grad.T.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert target_network.weight.grad is None


def test_a_loss_is_a_weighted_huber_loss() -> None:
    errors, weights = torch.tensor([0.5, -2.0, 3.0, 7.0]), torch.tensor([1.0, 0.5, 0.25, 0.0])
    assert dqn.loss_of(errors, weights).item() == (0.125 + 0.5 * 1.5 + 0.25 * 2.5) / 4


def test_a_target_network_follows_slowly() -> None:
    target_network, network = table([[0.0, 100.0]] * 5), table([[1000.0, 0.0]] * 5)
    dqn.follow(target_network, network)
    assert target_network.weight.T.tolist()[0] == pytest.approx([1000 * dqn.TARGET_RATE, 100 * (1 - dqn.TARGET_RATE)])
    assert network.weight.T.tolist()[0] == [1000.0, 0.0]


def test_the_greedy_action_is_the_best_by_the_values() -> None:
    actions = [dqn.greedy_action(table(VALUES), observation) for observation in np.eye(5, dtype=np.float32)]
    assert actions == [values.index(max(values)) for values in VALUES]


@pytest.mark.parametrize(("name", "n_step"), list(zip(dqn.REPLAYS, [3, 1], strict=True)))
def test_the_loop_weights_losses_and_returns_errors(name: str, n_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, updates = networks_test.spied_buffer(monkeypatch)
    losses: list[tuple[Any, Any]] = []
    followed: list[Any] = []
    loss_of = dqn.loss_of

    def spied(errors: torch.Tensor, weights: torch.Tensor) -> Any:
        losses.append((errors.detach().numpy(), weights.numpy()))
        return loss_of(errors, weights)

    monkeypatch.setattr(dqn, "loss_of", spied)
    monkeypatch.setattr(dqn, "follow", lambda target_network, network: followed.append((target_network, network)))
    dqn.train(140, 0, **dqn.REPLAYS[name])
    assert len(batches) == len(losses) == len(updates) == len(followed) == 41
    assert batches[-1].weights.min() < 1 if n_step == 3 else (batches[-1].weights == 1).all()
    assert {batch.steps.max() for batch in batches} == {n_step}
    for batch, (errors, weights), (keys, priorities) in zip(batches, losses, updates, strict=True):
        assert weights.tolist() == np.float32(batch.weights).tolist()
        assert keys.tolist() == batch.keys.tolist()
        assert priorities.tolist() == abs(errors).tolist()
    assert followed[0][0] is not followed[0][1]
