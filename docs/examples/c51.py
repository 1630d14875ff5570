"""Categorical DQN (C51) on frames of 10 x 10: prioritized 3-step replay beside uniform 1-step replay.

    Catch ── TimeLimit ── Recorder ──> PrioritizedReplayBuffer ── as_tensors ──> divergences ──> the buffer

The network predicts the distribution of the return (Bellemare et al. 2017), so its target is a whole distribution:
every possible return z moves to `reward + next_discount * z`. It is the line of DQN, and the buffer makes it right
for transitions of one step or three, at termination and at the time limit. With dueling heads, double Q-learning,
n-step returns and priorities, the learner is Rainbow without noisy networks (Hessel et al. 2018).

    python c51.py --plot c51.png           both kinds of replay with each of four seeds, and the learning curves
    python c51.py --short                  one seed and too few steps to learn much, in seconds
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

WARM_UP, BATCH_SIZE, LEARNING_RATE, STEPS_PER_UPDATE, STEPS_PER_TARGET = 1_000, 32, 5e-4, 2, 500
SUPPORT = torch.linspace(0, 20, 51)
"""The returns that a distribution gives probabilities to [51]: with gamma 0.99, a ball every five steps is worth 20."""
REPLAYS: dict[str, Any] = {
    "relive, prioritized 3-step": {"n_step": 3},
    "relive, uniform 1-step": {"n_step": 1, "alpha": 0.0},
}


class Catch(gymnasium.Env[Any, int]):
    """Balls fall by a row a step; a paddle in the last row catches each for a reward of 1, until it misses one."""

    observation_space = gymnasium.spaces.Box(0, 1, (2, 10, 10), np.uint8)
    action_space: Any = gymnasium.spaces.Discrete(3)  # Move left, stay, move right.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with the paddle in the middle and no ball."""
        super().reset(seed=seed)
        self.balls, self.paddle, self.column, self.age = np.zeros((10, 10), np.uint8), 5, 5, 0
        return self.frame(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the paddle and the balls; every fifth step a ball appears, within reach of where the last one did."""
        self.paddle = int(np.clip(self.paddle + action - 1, 0, 9))
        self.balls = np.roll(self.balls, 1, axis=0)
        self.balls[0] = 0
        if self.age % 5 == 0:
            self.column = int(np.clip(self.column + self.np_random.integers(-4, 5), 0, 9))
            self.balls[0, self.column] = 1
        self.age += 1
        caught = bool(self.balls[9, self.paddle])
        missed = bool(self.balls[9].any()) and not caught
        return self.frame(), float(caught), missed, False, {}

    def frame(self) -> Any:
        """Return the balls and the paddle [2, 10, 10]."""
        paddle = np.zeros_like(self.balls)
        paddle[9, self.paddle] = 1
        return np.stack([self.balls, paddle])


class Network(nn.Module):
    """Dueling heads on a convolution: the logarithms of the probabilities of each return [B, actions, returns]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 128), nn.ReLU())
        self.value, self.advantage = nn.Linear(128, len(SUPPORT)), nn.Linear(128, 3 * len(SUPPORT))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the distributions of the returns after `frames` [B, 2, 10, 10]."""
        features = self.body(frames.float())
        advantage = self.advantage(features).unflatten(1, (3, len(SUPPORT)))
        logits = self.value(features)[:, None] + advantage - advantage.mean(dim=1, keepdim=True)
        return nn.functional.log_softmax(logits, dim=2)

    def best_actions(self, frames: torch.Tensor) -> Any:
        """Return the actions with the highest expected return [B]."""
        return (self(frames).exp() @ SUPPORT).argmax(dim=1)


def projected(returns: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Return distributions over `SUPPORT` [B, returns]: each probability is shared by the two nearest returns."""
    distance = (returns.clamp(SUPPORT[0], SUPPORT[-1])[:, :, None] - SUPPORT).abs() / (SUPPORT[1] - SUPPORT[0])
    return (probabilities[:, :, None] * (1 - distance).clamp(min=0)).sum(dim=1)


def divergences_of(network: Any, target_network: Any, batch: relive.TransitionBatch[torch.Tensor]) -> torch.Tensor:
    """Return the Kullback-Leibler divergence of each transition's distribution from its target [B]."""
    rows = torch.arange(len(batch.reward))
    with torch.no_grad():
        next_actions = network.best_actions(batch.next_observation)
        next_probabilities = target_network(batch.next_observation)[rows, next_actions].exp()
        returns = batch.reward[:, None] + batch.next_discount[:, None] * SUPPORT
        target = projected(returns, next_probabilities)
    log_probabilities = network(batch.observation)[rows, batch.action]
    return nn.functional.kl_div(log_probabilities, target, reduction="none").sum(dim=1)


def train(steps: int, seed: int, **replay: Any) -> curves.Run:
    """Return the steps at which the episodes of a run ended, and the mean return of the last 20 at each."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gymnasium.wrappers.TimeLimit(Catch(), 200)
    buffer = relive.PrioritizedReplayBuffer(
        50_000, relive_gymnasium.from_env(env), limiter=relive.MinSize(WARM_UP), seed=seed, **replay
    )
    statistics = gymnasium.wrappers.RecordEpisodeStatistics(env, buffer_length=steps)
    recorder = relive_gymnasium.Recorder(statistics, buffer)
    exploration = relive.LinearSchedule(1.0, 0.02, steps=max(1, steps // 4))
    network = Network()
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)

    frame, _ = recorder.reset(seed=seed)
    for step in range(steps):
        with torch.no_grad():
            best = int(network.best_actions(torch.from_numpy(frame[None])))
        action = int(rng.integers(3)) if rng.random() < exploration.value(step) else best
        frame, _, terminated, truncated, _ = recorder.step(action)
        if terminated or truncated:
            frame, _ = recorder.reset()

        if step % STEPS_PER_UPDATE == 0 and buffer.can_sample(BATCH_SIZE):
            batch = relive_torch.as_tensors(buffer.sample(BATCH_SIZE))
            divergences = divergences_of(network, target_network, batch)
            optimizer.zero_grad()
            (batch.weights * divergences).mean().backward()
            optimizer.step()
            buffer.update_priorities(batch.keys, divergences.detach().clamp(min=0))
        if step % STEPS_PER_TARGET == 0:
            target_network.load_state_dict(network.state_dict())
    return np.cumsum(statistics.length_queue).tolist(), curves.running_mean(list(statistics.return_queue), window=20)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with both kinds of replay and several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    curves.main(train, REPLAYS, arguments, steps=20_000, title="C51 on Catch", ylabel="return, mean of 20 episodes")


if __name__ == "__main__":
    main()
