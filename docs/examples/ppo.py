"""PPO on CartPole-v1: advantages with GAE beside one-step errors, the same learner and the same seeds.

    8 environments ── 128 steps ──> RolloutBuffer ── advantages, arrays ──> 4 epochs of minibatches ── clear

A rollout is used a few times and forgotten (Schulman et al. 2017, arXiv 1707.06347). The buffer computes generalized
advantage estimates (Schulman et al. 2016, arXiv 1506.02438): where an episode was truncated, at CartPole's limit of 500
steps, they bootstrap from the value of the final observation, and where it terminated from 0.

    python ppo.py --plot ppo.png           both kinds of advantages with each of four seeds, and the learning curves
    python ppo.py --short                  one seed and too few steps to learn much, in seconds
"""

from collections.abc import Sequence
from typing import Any

import curves
import gymnasium
import numpy as np
import torch
from torch import nn

import relive
from relive.integrations import torch as relive_torch

STREAMS, ROLLOUT, EPOCHS, MINIBATCH = 8, 128, 4, 256
GAMMA, CLIP, LEARNING_RATE = 0.98, 0.2, 1e-3
CASES: dict[str, Any] = {"relive, GAE": {"lambda_": 0.95}, "relive, one-step errors": {"lambda_": 0.0}}


class Network(nn.Module):
    """A policy and a critic."""

    def __init__(self, num_inputs: int, num_actions: int, width: int = 64) -> None:
        super().__init__()
        self.policy, self.critic = (
            nn.Sequential(
                nn.Linear(num_inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out)
            )
            for out in (num_actions, 1)
        )

    def forward(self, observation: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        """Return the distribution of actions, and the values [B], of observations [B, num_inputs]."""
        actions = torch.distributions.Categorical(logits=self.policy(observation), validate_args=False)
        return actions, self.critic(observation).squeeze(-1)


def loss_of(network: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the clipped loss of the policy, half the squared error of the critic, and a bonus for entropy."""
    actions, value = network(batch["observation"])
    ratio = (actions.log_prob(batch["action"]) - batch["log_prob"]).exp()
    gain = torch.minimum(ratio * batch["advantage"], ratio.clamp(1 - CLIP, 1 + CLIP) * batch["advantage"])
    loss: torch.Tensor = (0.5 * (value - batch["return"]) ** 2 - gain - 0.01 * actions.entropy()).mean()
    return loss


def learn(network: Network, optimizer: torch.optim.Optimizer, steps: dict[str, Any]) -> None:
    """Update the network with the steps of a rollout, by name [T, S, ...]."""
    batch = {name: column.flatten(0, 1) for name, column in relive_torch.as_tensors(steps).items()}
    advantage = batch["advantage"]
    batch["advantage"] = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(advantage)).split(MINIBATCH):
            optimizer.zero_grad()
            loss_of(network, {name: column[rows] for name, column in batch.items()}).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()


def train(steps: int, seed: int, *, lambda_: float) -> curves.Run:
    """Return the steps at which the episodes of a run ended, and the mean return of the last 20 at each."""
    torch.manual_seed(seed)
    modes: Any = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    env = gymnasium.make_vec("CartPole-v1", STREAMS, vectorization_mode="sync", vector_kwargs=modes)
    network, rollout = Network(num_inputs=4, num_actions=2), relive.RolloutBuffer(ROLLOUT)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, eps=1e-5)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=max(1, steps // (STREAMS * ROLLOUT)))
    so_far, ends, returns = np.zeros(STREAMS), list[int](), list[float]()
    observation, _ = env.reset(seed=seed)
    for step in range(STREAMS, steps + 1, STREAMS):
        with torch.no_grad():
            actions, value = network(torch.from_numpy(observation))
            action = actions.sample()
            next_observation, reward, terminated, truncated, infos = env.step(action.numpy())
            following, has_ended = next_observation.copy(), np.flatnonzero(terminated | truncated)
            for stream in has_ended:  # The environment has begun the next episode already.
                following[stream] = infos["final_obs"][stream]
            next_value = network(torch.from_numpy(following))[1].numpy()
        known = {"next_value": next_value, "terminated": terminated, "truncated": truncated}
        known["log_prob"] = actions.log_prob(action).numpy()
        rollout.add(observation, action.numpy(), reward.astype(np.float32), value.numpy(), **known)
        if rollout.is_full:
            advantages, targets = rollout.advantages(GAMMA, lambda_, last_value=next_value)
            learn(network, optimizer, {**rollout.arrays(), "advantage": advantages, "return": targets})
            rollout.clear()
            decay.step()
        observation, so_far = next_observation, so_far + reward
        ends += [step] * len(has_ended)
        returns += so_far[has_ended].tolist()
        so_far[has_ended] = 0
    env.close()
    return ends, curves.running_mean(returns, window=20)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with both kinds of advantages and several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    curves.main(train, CASES, arguments, steps=50_000, title="PPO on CartPole-v1", ylabel="return, mean of 20 episodes")


if __name__ == "__main__":
    main()
