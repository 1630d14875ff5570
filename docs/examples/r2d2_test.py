"""The example of R2D2: its loss is that on paper, and its states are those of the actor."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import networks_test
import r2d2
import torch

import relive
from relive.integrations import torch as relive_torch


def sequences(**fields: Any) -> relive.SequenceBatch[torch.Tensor]:
    """Return two sequences of 4 + 3 steps; the first has 2 steps beyond the burn-in and ends, the other goes on."""
    rng = np.random.default_rng(0)
    steps = r2d2.BURN_IN + 3
    terminated, mask = np.zeros((2, steps), np.bool_), np.ones((2, steps), np.bool_)
    terminated[0, -2], mask[0, -1] = True, False
    arrays: dict[str, Any] = {
        "observation": rng.random((2, steps + 1, 5), np.float32),
        "action": np.array([[0, 0, 0, 0, 2, 1, 0], [0, 0, 0, 0, 1, 1, 3]]),
        "reward": np.array([[9, 9, 9, 9, 0, 1, 0], [9, 9, 9, 9, 0, 0, 0]], np.float32),
        "terminated": terminated,
        "truncated": np.zeros((2, steps), np.bool_),
        "mask": mask,
        "is_burn_in": np.broadcast_to(np.arange(steps) < r2d2.BURN_IN, (2, steps)).copy(),
        "start_step": np.zeros(2, np.int64),
        "probabilities": np.ones(2),
        "weights": np.array([1.0, 0.5], np.float32),
        "extras": {"state": rng.random((2, steps, r2d2.STATE_WIDTH), np.float32)},
    }
    return relive_torch.as_tensors(relive.SequenceBatch(keys=np.arange(2), **(arrays | fields)))


def test_sequence_loss_is_double_q_after_the_burn_in() -> None:
    """Values 0, 1, 2, 3 of the network and 0, 10, 20, 40 of the target network, whatever is observed."""
    networks = []
    for values in ([0.0, 1.0, 2.0, 3.0], [0.0, 10.0, 20.0, 40.0]):
        network = r2d2.Network(memory=True)
        network.head = networks_test.constant(values, r2d2.STATE_WIDTH)
        networks.append(network)
    loss, priorities = r2d2.sequence_loss(networks[0], networks[1], sequences())
    bootstrap = r2d2.GAMMA * 40.0
    errors = [[bootstrap - 2.0, 1.0 - 1.0], [bootstrap - 1.0, bootstrap - 1.0, bootstrap - 3.0]]
    means = [sum(error**2 for error in row) / len(row) for row in errors]
    assert loss.item() == pytest.approx((1.0 * means[0] + 0.5 * means[1]) / 2, rel=1e-5)
    expected = [0.9 * max(row) + 0.1 * sum(row) / len(row) for row in errors]
    assert priorities.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_sequence_without_a_step_to_learn_from_has_no_loss() -> None:
    network, target_network = r2d2.Network(memory=True), r2d2.Network(memory=True)
    mask = np.zeros((2, r2d2.BURN_IN + 3), np.bool_)
    mask[:, 0] = True
    loss, priorities = r2d2.sequence_loss(network, target_network, sequences(mask=mask))
    assert loss.item() == 0.0
    assert priorities.tolist() == [0.0, 0.0]


def test_no_gradient_goes_back_into_the_burn_in() -> None:
    network, target_network = r2d2.Network(memory=True), r2d2.Network(memory=True)
    batch = sequences()
    batch.extras["state"].requires_grad_()
    batch.observation.requires_grad_()
    loss, _ = r2d2.sequence_loss(network, target_network, batch)
    loss.backward()
    assert batch.extras["state"].grad is None
    gradient = batch.observation.grad
    assert not gradient[:, : r2d2.BURN_IN].any()
    assert gradient[:, r2d2.BURN_IN].any()


@pytest.mark.parametrize("constant", [0, 1])
def test_both_networks_start_from_the_burned_in_state(constant: int) -> None:
    networks = [r2d2.Network(memory=True), r2d2.Network(memory=True)]
    networks[constant].head = networks_test.constant([0.0, 1.0, 2.0, 3.0], r2d2.STATE_WIDTH)
    batch = sequences()
    loss, _ = r2d2.sequence_loss(networks[0], networks[1], batch)
    for step, reaches in ((0, True), (1, False)):
        state = batch.extras["state"].numpy().copy()
        state[:, step] += 1
        changed, _ = r2d2.sequence_loss(networks[0], networks[1], sequences(extras={"state": state}))
        assert (changed.item() != loss.item()) == reaches
    observation = batch.observation.numpy().copy()
    observation[:, r2d2.BURN_IN - 1] += 1
    changed, _ = r2d2.sequence_loss(networks[0], networks[1], sequences(observation=observation))
    assert changed.item() != loss.item()


def test_a_network_without_memory_uses_only_one_observation() -> None:
    network = r2d2.Network(memory=False)
    observations, state = torch.rand(2, 3, 5), torch.rand(2, r2d2.STATE_WIDTH)
    values, last = network(observations, state)
    assert last is state
    outputs, _ = network.recurrent(observations.reshape(6, 1, 5))
    assert torch.equal(values, network.head(outputs).reshape(2, 3, r2d2.DOORS))


def test_the_stored_states_are_those_of_the_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a step is that of the network after the steps before it in the episode."""
    made: dict[type[Any], Any] = {}

    def remember(kind: type[Any]) -> Any:
        def make(*arguments: Any, **options: Any) -> Any:
            instance = kind(*arguments, **options)
            return made.setdefault(kind, instance)

        return make

    networks, buffers = r2d2.Network, relive.SequenceReplayBuffer
    monkeypatch.setattr(r2d2, "Network", remember(networks))
    monkeypatch.setattr(relive, "SequenceReplayBuffer", remember(buffers))
    monkeypatch.setattr(buffers, "can_sample", lambda buffer, size: False)  # The network stays as it is.
    r2d2.train(800, seed=0, memory=True)
    batch = relive_torch.as_tensors(made[buffers].sample(200))
    states, starts = batch.extras["state"], batch.start_step == 0
    assert starts.any()
    assert not starts.all()
    assert not states[starts, 0].any()
    with torch.no_grad():
        outputs, _ = made[networks].recurrent(batch.observation[:, :-1], states[None, :, 0].contiguous())
    follows = batch.mask[:, 1:]
    assert torch.allclose(outputs[:, :-1][follows], states[:, 1:][follows], atol=1e-6)


def test_the_door_is_on_the_sign_and_the_sign_goes_dark() -> None:
    corridors = r2d2.Corridors(500, np.random.default_rng(0))
    signs = corridors.observe()[:, : r2d2.DOORS].argmax(axis=1)
    lengths = np.zeros(500, np.int64)
    for t in range(24):
        running = lengths == 0
        is_lit = corridors.observe()[running, : r2d2.DOORS].any(axis=1)
        assert (is_lit == (t < r2d2.LIT_STEPS)).all()
        asks = corridors.observe()[running, r2d2.DOORS] == 1
        _, rewards, terminated = corridors.step(signs)
        assert (rewards[running] == terminated[running]).all()
        assert (asks == terminated[running]).all()
        lengths[running & terminated] = t + 1
    assert set(lengths.tolist()) == set(range(8, 25))
