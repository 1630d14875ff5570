"""SAC on Pendulum-v1, or on any other environment of Gymnasium with boxes for observations and actions.

    4 environments ── VectorRecorder ──> RingReplayBuffer(streams=4) ── as_tensors ──> critics, actor, temperature

What to look at: a pendulum never falls for good; its episodes only run out of time. Such an end is `truncated` and not
`terminated`, so the buffer returns `next_discount` = gamma behind the last step too, and the target is one line. Who
takes both for the same teaches the critics that all is over after 200 steps. The learner is Soft Actor-Critic with
twin critics and a temperature that is learned (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications").

    python sac.py                                          about -150 after 15,000 steps, in a minute or two
    python sac.py --plot sac.png                           the same, and the learning curve
    python sac.py --short                                  a few seconds that teach nothing much
    python sac.py --env HalfCheetah-v5 --steps 60000       about 4000 in five minutes; needs gymnasium[mujoco]
"""

import argparse
from collections.abc import Sequence
import copy
import math
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import relive
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations import torch as relive_torch

NUM_ENVS, WARM_UP, BATCH_SIZE, LEARNING_RATE, TARGET_RATE = 4, 1_000, 128, 1e-3, 0.005
SECONDS_BETWEEN_LINES = 5


def new_network(num_inputs: int, num_outputs: int, width: int = 128) -> nn.Sequential:
    """Return a network of two hidden layers, [B, num_inputs] to [B, num_outputs]."""
    hidden = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return hidden.append(nn.Linear(width, num_outputs))


def drawn_actions(actor: Any, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return actions in (-1, 1) [B, A] that the actor draws, and the logarithms of their densities [B]."""
    mean, log_std = actor(observation).chunk(2, dim=-1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    raw = normal.rsample()
    # The density of tanh(raw): that of raw, over 1 - tanh(raw)^2, which is written so that it does not vanish.
    log_slope = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
    return raw.tanh(), (normal.log_prob(raw) - log_slope).sum(dim=-1)


def values_of(critics: Any, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return what each critic says of the actions [critics, B]."""
    return torch.stack([critic(torch.cat([observation, action], dim=-1)).squeeze(-1) for critic in critics])


def critic_loss(
    critics: Any, target_critics: Any, actor: Any, temperature: float, batch: relive.TransitionBatch[torch.Tensor]
) -> torch.Tensor:
    """Return how far the critics are from their targets: the mean square, added up over the critics."""
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
        self.actor = new_network(observation_size, 2 * action_size)
        self.critics = nn.ModuleList(new_network(observation_size + action_size, 1) for _ in range(2))
        self.target_critics = copy.deepcopy(self.critics)
        self.log_temperature = torch.zeros((), requires_grad=True)
        self.target_entropy = -action_size
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), LEARNING_RATE, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), LEARNING_RATE, fused=True)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], LEARNING_RATE)

    def learn(self, batch: relive.TransitionBatch[torch.Tensor]) -> None:
        """Take one step with each of the three optimizers, and move the target critics a little."""
        temperature = self.log_temperature.exp().item()
        descend(self.critic_optimizer, critic_loss(self.critics, self.target_critics, self.actor, temperature, batch))
        action, log_density = drawn_actions(self.actor, batch.observation)
        value = values_of(self.critics, batch.observation, action).amin(dim=0)
        descend(self.actor_optimizer, (temperature * log_density - value).mean())
        surplus = -log_density.detach().mean() - self.target_entropy
        descend(self.temperature_optimizer, self.log_temperature * surplus)
        with torch.no_grad():
            for slow, fast in zip(self.target_critics.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, TARGET_RATE)

    def actions(self, observations: Any) -> Any:
        """Return actions to explore with, as an array."""
        with torch.no_grad():
            return drawn_actions(self.actor, torch.from_numpy(observations))[0].numpy()

    def best_action(self, observation: Any) -> Any:
        """Return the action in the middle, without noise."""
        with torch.no_grad():
            return self.actor(torch.from_numpy(observation)).chunk(2, dim=-1)[0].tanh().numpy()


def wrapped(env: "gymnasium.Env[Any, Any]") -> "gymnasium.Wrapper[Any, Any, Any, Any]":
    """Return an environment with observations in float32, and actions from -1 to 1."""
    space = gymnasium.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
    in_float32 = gymnasium.wrappers.TransformObservation(env, np.float32, space)
    return gymnasium.wrappers.RescaleAction(in_float32, np.float32(-1), np.float32(1))


def mean_return(learner: Learner, env_id: str, num_episodes: int, seed: int) -> float:
    """Return what episodes without noise return on average."""
    env, total = wrapped(gymnasium.make(env_id)), 0.0
    for episode in range(num_episodes):
        observation, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(learner.best_action(observation))
            total += float(reward)
            ended = terminated or truncated
    return total / num_episodes


def recent(returns: Sequence[float]) -> str:
    """Return how the last 10 episodes went, of the returns of all of them."""
    if not returns:
        return "no episode has ended"
    last = list(returns)[-10:]
    return f"the last {len(last)} of {len(returns)} episodes return {np.mean(last):.1f} on average"


def save_plot(path: str, env_id: str, lengths: Sequence[Any], returns: Sequence[Any], final: float) -> None:
    """Draw the return of each episode over the steps up to its end, and the final figure, as a PNG."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(7, 4), layout="constrained")
    axes = picture.add_subplot()
    steps, returns = np.cumsum(lengths), list(returns)
    means = [np.mean(returns[max(0, end - 10) : end]) for end in range(1, len(returns) + 1)]
    axes.plot(steps, returns, ".", color="tab:blue", alpha=0.3, label="an episode, exploring")
    axes.plot(steps, means, color="tab:blue", label="mean of the last 10")
    axes.axhline(final, color="tab:green", linestyle="--", label=f"20 episodes without noise at the end: {final:.1f}")
    axes.set(title=f"SAC on {env_id}", xlabel="environment steps", ylabel="return")
    axes.grid(alpha=0.3)
    axes.legend()
    picture.savefig(path, format="png", dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn, and set how well it went."""
    parser = argparse.ArgumentParser(description="SAC on an environment of Gymnasium.")
    parser.add_argument("--env", default="Pendulum-v1", help="which environment (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=15_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--short", dest="steps", action="store_const", const=1_200, help="the same as --steps 1200")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same run (default: %(default)s)")
    parser.add_argument("--plot", metavar="PATH", help="where to write the learning curve, as a PNG")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    envs = gymnasium.make_vec(options.env, NUM_ENVS, vectorization_mode="sync", wrappers=[wrapped])
    buffer = relive.RingReplayBuffer(
        1_000_000,
        relive_gymnasium.from_env(envs),
        gamma=0.99,
        streams=NUM_ENVS,
        limiter=relive.MinSize(WARM_UP),
        seed=options.seed,
    )
    statistics = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs, buffer_length=options.steps)
    envs = relive_gymnasium.VectorRecorder(statistics, buffer)
    flatdim = gymnasium.spaces.flatdim
    learner = Learner(flatdim(envs.single_observation_space), flatdim(envs.single_action_space))

    envs.action_space.seed(options.seed)
    observations, _ = envs.reset(seed=options.seed)
    said = time.monotonic()
    for step in range(0, options.steps, NUM_ENVS):
        is_learning = buffer.can_sample(BATCH_SIZE)
        actions = learner.actions(observations) if is_learning else envs.action_space.sample()
        observations, *_ = envs.step(actions)
        if is_learning:
            for _ in range(NUM_ENVS):
                learner.learn(relive_torch.as_tensors(buffer.sample(BATCH_SIZE)))
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(f"step {step + NUM_ENVS}: {recent(statistics.return_queue)}")

    final = mean_return(learner, options.env, num_episodes=20, seed=options.seed + 1_000_000)
    stats = buffer.get_stats()
    print(
        f"{stats.truncated_episodes} episodes were truncated, {stats.terminated_episodes} terminated; "
        f"after {options.steps} steps, 20 episodes without noise return {final:.1f} on average"
    )
    if options.plot:
        save_plot(options.plot, options.env, statistics.length_queue, statistics.return_queue, final)


if __name__ == "__main__":
    main()
