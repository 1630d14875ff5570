"""DQN on CartPole-v1: prioritized 3-step replay beside uniform 1-step replay, the same learner and the same seeds.

    environment ── Recorder ──> PrioritizedReplayBuffer ── as_tensors ──> errors ── update_priorities ──> the buffer

The buffer sums the rewards and returns the discount after them, so the target is one line, for transitions of one step
or three, that end as terminated, truncated or not at all. Transitions with large errors are drawn more often, and
importance weights correct the loss for it (Schaul et al. 2016). The learner is double DQN (van Hasselt et al. 2016).

    python dqn.py --plot dqn.png           both kinds of replay with each of four seeds, and the learning curves
    python dqn.py --short                  one seed and too few steps to learn much, in seconds
"""

from collections.abc import Sequence
import copy
from typing import Any

import curves
import gymnasium
import numpy as np
import torch
from torch import nn

import relive
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations import torch as relive_torch

WARM_UP, BATCH_SIZE, LEARNING_RATE, TARGET_RATE = 1_000, 64, 1e-3, 0.005
REPLAYS: dict[str, Any] = {
    "relive, prioritized 3-step": {"n_step": 3},
    "relive, uniform 1-step": {"n_step": 1, "alpha": 0.0},
}
"""What differs between the curves: with alpha=0 all priorities are equal, and so are the weights."""


def new_network(num_inputs: int, num_actions: int, width: int = 128) -> nn.Sequential:
    """Return a network from observations [B, num_inputs] to a value for each action [B, num_actions]."""
    hidden = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return hidden.append(nn.Linear(width, num_actions))


def errors_of(network: Any, target_network: Any, batch: relive.TransitionBatch[torch.Tensor]) -> torch.Tensor:
    """Return the value of each transition's action minus its target [B]."""
    with torch.no_grad():
        next_action = network(batch.next_observation).argmax(dim=1, keepdim=True)
        next_value = target_network(batch.next_observation).gather(1, next_action).squeeze(1)
        target = batch.reward + batch.next_discount * next_value
    errors: torch.Tensor = network(batch.observation).gather(1, batch.action[:, None]).squeeze(1) - target
    return errors


def loss_of(errors: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean of the Huber losses of the errors [B], each times its importance weight [B]."""
    return (weights * nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")).mean()


def follow(target_network: nn.Module, network: nn.Module) -> None:
    """Move the parameters of the target network a little towards those of the network."""
    with torch.no_grad():
        for slow, fast in zip(target_network.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, TARGET_RATE)


def greedy_action(network: Any, observation: Any) -> int:
    """Return the action of the highest value."""
    with torch.no_grad():
        return int(network(torch.from_numpy(observation)).argmax())


def train(steps: int, seed: int, **replay: Any) -> curves.Run:
    """Return the steps at which the episodes of a run ended, and the mean return of the last 20 at each."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gymnasium.make("CartPole-v1")
    buffer = relive.PrioritizedReplayBuffer(
        50_000,
        relive_gymnasium.from_env(env),
        gamma=0.99,
        beta=relive.LinearSchedule(0.4, 1.0, steps=steps),
        limiter=relive.MinSize(WARM_UP),
        seed=seed,
        **replay,
    )
    statistics = gymnasium.wrappers.RecordEpisodeStatistics(env, buffer_length=steps)
    env = relive_gymnasium.Recorder(statistics, buffer)
    exploration = relive.LinearSchedule(1.0, 0.02, steps=max(1, steps // 4))

    network = new_network(num_inputs=4, num_actions=2)
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=steps)

    observation, _ = env.reset(seed=seed)
    for step in range(steps):
        explores = rng.random() < exploration.value(step)
        action = int(rng.integers(2)) if explores else greedy_action(network, observation)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()

        if buffer.can_sample(BATCH_SIZE):
            batch = relive_torch.as_tensors(buffer.sample(BATCH_SIZE))
            errors = errors_of(network, target_network, batch)
            optimizer.zero_grad()
            loss_of(errors, batch.weights).backward()
            optimizer.step()
            decay.step()
            buffer.update_priorities(batch.keys, errors.detach().abs())
            follow(target_network, network)
    return np.cumsum(statistics.length_queue).tolist(), curves.running_mean(list(statistics.return_queue), window=20)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with both kinds of replay and several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    curves.main(
        train, REPLAYS, arguments, steps=20_000, title="DQN on CartPole-v1", ylabel="return, mean of 20 episodes"
    )


if __name__ == "__main__":
    main()
