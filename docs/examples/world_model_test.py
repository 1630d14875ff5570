"""The example of a world model: it sees the burn-in and nothing of what it imagines."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import torch
import world_model

import relive
from relive.integrations import torch as relive_torch


def drawn(burn_in: int) -> relive.SequenceBatch[torch.Tensor]:
    """Return sequences of pendulums."""
    settings: Any = {"length": burn_in + world_model.IMAGINED, "burn_in": burn_in, "streams": world_model.STREAMS}
    buffer = relive.SequenceReplayBuffer(1_000, **settings, seed=0)
    world_model.filled(buffer, world_model.Pendulums(0), rounds=world_model.LIMIT + 20)
    return relive_torch.as_tensors(buffer.sample(16))


@pytest.mark.parametrize("burn_in", [0, 6])
def test_predictions_depend_on_the_burn_in_alone(burn_in: int) -> None:
    torch.manual_seed(0)
    model, batch = world_model.Model(), drawn(burn_in)
    predicted = model(batch.observation, batch.action, burn_in)
    later, seen = batch.observation.clone(), batch.observation.clone()
    later[:, burn_in + 1 :] += 1
    seen[:, burn_in] += 1
    assert torch.equal(model(later, batch.action, burn_in), predicted)
    assert not torch.isclose(model(seen, batch.action, burn_in)[:, burn_in:], predicted[:, burn_in:]).any(dim=1).all()


def test_the_error_is_of_what_is_imagined() -> None:
    batch = drawn(6)
    off = torch.zeros_like(batch.observation[:, 1:])
    off[:, :6] = 100.0
    off[:, 6:] = 0.5
    error = world_model.error_of(lambda *_: batch.observation[:, 1:] + off, batch, 6)
    assert error.item() == pytest.approx(0.25, rel=1e-5)


def test_sequences_do_not_run_over_a_reset() -> None:
    """A direction moves by a few degrees in a step, and anywhere in a reset."""
    batch = drawn(6)
    assert batch.mask.all()
    assert np.linalg.norm(np.diff(batch.observation.numpy(), axis=1), axis=2).max() < 1.0
