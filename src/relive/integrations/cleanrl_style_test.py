"""Updates as in CleanRL, on batches of tensors as they come: no cast, and no shape that the network does not need."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

import relive
from relive.integrations import torch as relive_torch

Batch = relive.TransitionBatch[torch.Tensor]
NUM_ACTIONS, NUM_ATOMS = 2, 5


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    state = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)


def buffer_of(new_action: Callable[[np.random.Generator], Any]) -> relive.PrioritizedReplayBuffer:
    """Return a buffer of steps as Python and numpy make them: observations and rewards of float64."""
    buffer, rng = relive.PrioritizedReplayBuffer(100, n_step=3, seed=0), np.random.default_rng(0)
    for t in range(60):
        buffer.add(rng.random(4), new_action(rng), rng.random(), rng.random(4), terminated=t % 9 == 8)
    return buffer


def discrete(rng: np.random.Generator) -> int:
    return int(rng.integers(NUM_ACTIONS))


def continuous(rng: np.random.Generator) -> Any:
    return rng.uniform(-1, 1, 2)


def network(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_inputs, 16), nn.ReLU(), nn.Linear(16, num_outputs))


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def batches(buffer: relive.PrioritizedReplayBuffer) -> Iterator[Batch]:
    for _ in range(5):
        batch = relive_torch.as_tensors(buffer.sample(16))
        floats = (batch.observation, batch.next_observation, batch.reward, batch.next_discount, batch.weights)
        assert {each.dtype for each in floats} == {torch.float32}
        yield batch


def test_dqn_learns_without_a_cast() -> None:
    buffer, q_network, target_network = buffer_of(discrete), network(4, NUM_ACTIONS), network(4, NUM_ACTIONS)
    optimizer = torch.optim.Adam(q_network.parameters())
    for batch in batches(buffer):
        assert batch.action.dtype == torch.int64
        with torch.no_grad():
            target_max = target_network(batch.next_observation).max(dim=1).values
            td_target = batch.reward + batch.next_discount * target_max
        old_value = q_network(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        td_errors = td_target - old_value
        step(optimizer, (batch.weights * td_errors**2).mean())
        assert buffer.update_priorities(batch.keys, td_errors.abs()) == 16


def test_c51_learns_without_a_cast() -> None:
    """The projection of equation 7 of Bellemare et al. 2017, with its triangular kernel written out."""
    buffer = buffer_of(discrete)
    q_network, target_network = network(4, NUM_ACTIONS * NUM_ATOMS), network(4, NUM_ACTIONS * NUM_ATOMS)
    optimizer = torch.optim.Adam(q_network.parameters())
    atoms = torch.linspace(-1, 3, NUM_ATOMS)
    gap = atoms[1] - atoms[0]
    for batch in batches(buffer):
        rows = torch.arange(len(batch))
        with torch.no_grad():
            next_pmfs = target_network(batch.next_observation).view(-1, NUM_ACTIONS, NUM_ATOMS).softmax(dim=2)
            best = (next_pmfs * atoms).sum(dim=2).argmax(dim=1)
            next_atoms = batch.reward.unsqueeze(1) + batch.next_discount.unsqueeze(1) * atoms
            distances = (next_atoms.clamp(-1, 3).unsqueeze(1) - atoms.unsqueeze(1)).abs() / gap
            target_pmfs = ((1 - distances).clamp(min=0) * next_pmfs[rows, best].unsqueeze(1)).sum(dim=2)
        assert torch.allclose(target_pmfs.sum(dim=1), torch.ones(16))
        old_logits = q_network(batch.observation).view(-1, NUM_ACTIONS, NUM_ATOMS)[rows, batch.action]
        step(optimizer, -(target_pmfs * old_logits.log_softmax(dim=1)).sum(dim=1).mean())


def values(q_network: nn.Module, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = q_network(torch.cat([observation, action], dim=1)).squeeze(1)
    return value


def test_td3_learns_without_a_cast() -> None:
    actor, target_actor = network(4, 2), network(4, 2)
    critics, target_critics = ([network(6, 1), network(6, 1)] for _ in range(2))
    actor_optimizer = torch.optim.Adam(actor.parameters())
    critic_optimizer = torch.optim.Adam([*critics[0].parameters(), *critics[1].parameters()])
    for batch in batches(buffer_of(continuous)):
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(batch.action)).clamp(-0.5, 0.5)
            next_action = (target_actor(batch.next_observation).tanh() + noise).clamp(-1, 1)
            next_values = [values(each, batch.next_observation, next_action) for each in target_critics]
            target = batch.reward + batch.next_discount * torch.min(*next_values)
        losses = [functional.mse_loss(values(each, batch.observation, batch.action), target) for each in critics]
        step(critic_optimizer, losses[0] + losses[1])
        step(actor_optimizer, -values(critics[0], batch.observation, actor(batch.observation).tanh()).mean())


def drawn_action(actor: nn.Module, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return squashed Gaussian actions and their log-densities [B]."""
    mean, log_std = actor(observation).chunk(2, dim=1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    raw = normal.rsample()
    action = raw.tanh()
    log_density: torch.Tensor = (normal.log_prob(raw) - (1 - action**2 + 1e-6).log()).sum(dim=1)
    return action, log_density


def test_sac_learns_without_a_cast() -> None:
    actor, log_alpha = network(4, 4), torch.zeros(1, requires_grad=True)
    critics, target_critics = ([network(6, 1), network(6, 1)] for _ in range(2))
    actor_optimizer, alpha_optimizer = torch.optim.Adam(actor.parameters()), torch.optim.Adam([log_alpha])
    critic_optimizer = torch.optim.Adam([*critics[0].parameters(), *critics[1].parameters()])
    for batch in batches(buffer_of(continuous)):
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            next_action, next_log_density = drawn_action(actor, batch.next_observation)
            next_values = [values(each, batch.next_observation, next_action) for each in target_critics]
            target = batch.reward + batch.next_discount * (torch.min(*next_values) - alpha * next_log_density)
        losses = [functional.mse_loss(values(each, batch.observation, batch.action), target) for each in critics]
        step(critic_optimizer, losses[0] + losses[1])
        action, log_density = drawn_action(actor, batch.observation)
        least = torch.min(*[values(each, batch.observation, action) for each in critics])
        step(actor_optimizer, (alpha * log_density - least).mean())
        step(alpha_optimizer, (-log_alpha.exp() * (log_density.detach() - 2)).mean())
