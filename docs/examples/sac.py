"""SAC on pendulums that are cut off every 25 steps: truncation told apart from termination, and taken for it.

    4 environments ── VectorRecorder ──> RingReplayBuffer(streams=4) ── as_tensors ──> critics, actor, temperature

The time limit ends the episode, not the motion: such an end is `truncated`, not `terminated`, and the buffer returns
`next_discount` = gamma for it. One flag `done` for both, as in the second curve, teaches the critics that no costs
follow the last step (Pardo et al. 2018). The learner is Soft Actor-Critic (Haarnoja et al. 2018).

    python sac.py --plot sac.png           both ways with each of four seeds, and the learning curves
    python sac.py --short                  one seed and too few steps to learn much, in seconds
"""

from collections.abc import Sequence
import copy
from typing import Any

import curves
import gymnasium
import torch
from torch import nn

import relive
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations import torch as relive_torch

Batch = relive.TransitionBatch[torch.Tensor]
NUM_ENVS, WARM_UP, BATCH_SIZE, LEARNING_RATE, TARGET_RATE = 4, 1_000, 128, 1e-3, 0.005
TIME_LIMIT, MAX_TORQUE, TARGET_ENTROPY, STEPS_PER_EVALUATION = 25, 2, -1, 500


def new_network(num_inputs: int, num_outputs: int, width: int = 128) -> nn.Sequential:
    """Return a network of two hidden layers, [B, num_inputs] to [B, num_outputs]."""
    hidden = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return hidden.append(nn.Linear(width, num_outputs))


def drawn_actions(actor: Any, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return torques drawn from the policy [B, 1], and the logarithms of the densities of torque / MAX_TORQUE [B]."""
    mean, log_std = actor(observation).chunk(2, dim=-1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    policy = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform(cache_size=1))
    action = policy.rsample()
    return MAX_TORQUE * action, policy.log_prob(action).sum(dim=-1)


def values_of(critics: Any, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return the value of each action by each critic [critics, B]."""
    return torch.stack([critic(torch.cat([observation, action], dim=-1)).squeeze(-1) for critic in critics])


def critic_loss(critics: Any, target_critics: Any, actor: Any, temperature: float, batch: Batch) -> torch.Tensor:
    """Return the mean squared error of each critic, summed over the critics."""
    with torch.no_grad():
        next_action, log_density = drawn_actions(actor, batch.next_observation)
        next_value = values_of(target_critics, batch.next_observation, next_action).amin(dim=0)
        target = batch.reward + batch.next_discount * (next_value - temperature * log_density)
    return (values_of(critics, batch.observation, batch.action) - target).square().mean(dim=1).sum()


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Take one step down the gradient of a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Learner:
    """The networks of SAC, and how they learn from a batch."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        self.actor: nn.Module = new_network(observation_size, 2 * action_size)
        self.critics = nn.ModuleList(new_network(observation_size + action_size, 1) for _ in range(2))
        self.target_critics = copy.deepcopy(self.critics)
        self.log_temperature = torch.zeros((), requires_grad=True)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), LEARNING_RATE, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), LEARNING_RATE, fused=True)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], LEARNING_RATE)

    def learn(self, batch: Batch) -> None:
        """Take one step with each of the three optimizers, and move the target critics a little."""
        temperature = self.log_temperature.exp().item()
        descend(self.critic_optimizer, critic_loss(self.critics, self.target_critics, self.actor, temperature, batch))
        action, log_density = drawn_actions(self.actor, batch.observation)
        value = values_of(self.critics, batch.observation, action).amin(dim=0)
        descend(self.actor_optimizer, (temperature * log_density - value).mean())
        surplus = -log_density.detach().mean() - TARGET_ENTROPY
        descend(self.temperature_optimizer, self.log_temperature * surplus)
        for slow, fast in zip(self.target_critics.parameters(), self.critics.parameters(), strict=True):
            slow.data.lerp_(fast.data, TARGET_RATE)

    @torch.no_grad()
    def actions(self, observations: Any, *, explores: bool) -> Any:
        """Return actions drawn from the policy, or its best ones, as an array."""
        observation = torch.from_numpy(observations)
        best = MAX_TORQUE * self.actor(observation).chunk(2, dim=-1)[0].tanh()
        return (drawn_actions(self.actor, observation)[0] if explores else best).numpy()


class OneFlag(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Reports every end of an episode as termination, as an environment with a single flag `done` does."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step of the environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info


def mean_return(learner: Learner) -> float:
    """Return the mean return of 10 whole episodes, of 200 steps each, without exploration."""
    envs, total = gymnasium.make_vec("Pendulum-v1", 10, vectorization_mode="sync"), 0.0
    observations, _ = envs.reset(seed=1_000_000)
    for _ in range(200):
        observations, rewards, *_ = envs.step(learner.actions(observations, explores=False))
        total += rewards.mean()
    return total


def train(steps: int, seed: int, wrappers: Sequence[Any]) -> curves.Run:
    """Return the steps at which the policy was evaluated, and its mean return at each."""
    torch.manual_seed(seed)
    envs = gymnasium.make_vec(
        "Pendulum-v1", NUM_ENVS, vectorization_mode="sync", wrappers=wrappers, max_episode_steps=TIME_LIMIT
    )
    buffer = relive.RingReplayBuffer(
        100_000, relive_gymnasium.from_env(envs), streams=NUM_ENVS, limiter=relive.MinSize(WARM_UP), seed=seed
    )
    recorder = relive_gymnasium.VectorRecorder(envs, buffer)
    learner, returns = Learner(observation_size=3, action_size=1), {}
    recorder.action_space.seed(seed)
    observations, _ = recorder.reset(seed=seed)
    for step in range(0, steps, NUM_ENVS):
        if step % STEPS_PER_EVALUATION == 0:
            returns[step] = mean_return(learner)
        learns = buffer.can_sample(BATCH_SIZE)
        actions = learner.actions(observations, explores=True) if learns else recorder.action_space.sample()
        observations, *_ = recorder.step(actions)
        for _ in range(NUM_ENVS if learns else 0):
            learner.learn(relive_torch.as_tensors(buffer.sample(BATCH_SIZE)))
    return list(returns), list(returns.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both ways with several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    cases = {"relive, truncated and terminated": {"wrappers": []}, "relive, one flag for both": {"wrappers": [OneFlag]}}
    curves.main(train, cases, arguments, steps=7_000, title="SAC on Pendulum-v1", ylabel="return without exploration")


if __name__ == "__main__":
    main()
