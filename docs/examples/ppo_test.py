"""The example of PPO: its loss is the one on paper, and what it stores is what happened."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import ppo
import torch

import relive


def constant(logits: list[float], value: float) -> Any:
    """Return a network with these logits and this value of all observations."""

    def network(observation: torch.Tensor) -> Any:
        every = torch.tensor([logits] * len(observation), dtype=torch.float64)
        return torch.distributions.Categorical(logits=every), torch.full((len(observation),), value)

    return network


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"),
    [(1.1, 2.0, 2.2), (1.5, 2.0, 2.4), (0.5, 2.0, 1.0), (0.5, -2.0, -1.6), (1.5, -2.0, -3.0)],
)
def test_a_gain_beyond_the_clip_does_not_count(ratio: float, advantage: float, gain: float) -> None:
    batch = {
        "observation": torch.zeros(1, 4),
        "action": torch.tensor([0]),
        "log_prob": torch.tensor([math.log(0.5 / ratio)], dtype=torch.float64),
        "advantage": torch.tensor([advantage]),
        "return": torch.tensor([3.0]),
    }
    loss = ppo.loss_of(constant([0.0, 0.0], value=1.0), batch)
    assert loss.item() == pytest.approx(0.5 * (3.0 - 1.0) ** 2 - gain - 0.01 * math.log(2))


def test_the_rollout_holds_what_the_environments_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations follow each other within an episode, and a truncated step has the value of its last one."""
    rollouts: list[dict[str, Any]] = []

    class Spied(relive.RolloutBuffer):
        def clear(self) -> None:
            rollouts.append({name: np.array(column) for name, column in self.arrays().items()})
            super().clear()

    monkeypatch.setattr(relive, "RolloutBuffer", Spied)
    monkeypatch.setattr(ppo, "ROLLOUT", 32)
    ppo.train(ppo.STREAMS * 64, 0, lambda_=0.95)
    assert len(rollouts) == 2
    steps = {name: np.concatenate([each[name] for each in rollouts]) for name in rollouts[0]}
    assert steps["reward"].tolist() == [[1.0] * ppo.STREAMS] * 64
    position, velocity = steps["observation"][..., 0], steps["observation"][..., 1]
    goes_on = ~(steps["terminated"] | steps["truncated"])[:-1]
    assert goes_on.any()
    assert (~goes_on).any()
    moved = position[1:] - position[:-1] - 0.02 * velocity[:-1]
    assert abs(moved[goes_on]).max() < 1e-6
    assert abs(position[1:][~goes_on]).max() <= 0.05
