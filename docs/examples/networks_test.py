"""What the tests of the examples share: networks of known values, and an episode on paper."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import relive
from relive.integrations import torch as relive_torch

# An episode of four steps, whose observations are one-hot.
ACTIONS, REWARDS, GAMMA = [0, 1, 0, 1], [1.0, 2.0, 4.0, 8.0], 0.5


def constant(values: list[float], num_inputs: int) -> Any:
    """Return a network with these outputs for every input."""
    network = torch.nn.Linear(num_inputs, len(values))
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor(values))
    return network


def read_episode(buffer: relive.RingReplayBuffer, actions: Any, *, terminated: bool) -> Any:
    """Write the episode, and return the transitions from each of its steps."""
    observations = np.eye(5, dtype=np.float32)
    keys = buffer.add_episode(observations, actions, np.array(REWARDS, np.float32), terminated=terminated)
    return relive_torch.as_tensors(buffer.read(keys))


def spied_buffer(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Return the batches that prioritized buffers give from now on, and the priorities that they get."""
    batches: list[Any] = []
    updates: list[tuple[Any, Any]] = []

    class Spied(relive.PrioritizedReplayBuffer):
        def sample(self, *arguments: Any, **options: Any) -> Any:
            batches.append(super().sample(*arguments, **options))
            return batches[-1]

        def update_priorities(self, keys: Any, priorities: Any) -> int:
            updates.append((keys, priorities))
            return super().update_priorities(keys, priorities)

    monkeypatch.setattr(relive, "PrioritizedReplayBuffer", Spied)
    return batches, updates
