"""DQN with prioritized 3-step replay: learns to balance the pole of CartPole-v1 in about a minute on one core.

    environment ── Recorder ──> PrioritizedReplayBuffer ── as_tensors ──> errors ── update_priorities ──> the buffer

What to look at: the buffer sums the rewards and knows the discount behind them, so the target is one line, for
transitions of one step or three, that end as terminated, truncated or not at all. What surprised the network is drawn
again sooner (Schaul et al. 2016); double Q-learning keeps it from believing its own luck (van Hasselt et al. 2016).

    python dqn.py                          solves it: greedy episodes last 475 of 500 steps or more
    python dqn.py --plot dqn.png           and draws the learning curve
    python dqn.py --short                  a few seconds that teach nothing much
"""

import argparse
from collections.abc import Sequence
import copy
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import relive
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations import torch as relive_torch

WARM_UP, BATCH_SIZE, LEARNING_RATE, TARGET_RATE = 1_000, 64, 1e-3, 0.005
SECONDS_BETWEEN_LINES = 5


def new_network(num_inputs: int, num_actions: int, width: int = 128) -> nn.Sequential:
    """Return a network from observations [B, num_inputs] to a value for each action [B, num_actions]."""
    hidden = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return hidden.append(nn.Linear(width, num_actions))


def errors_of(network: Any, target_network: Any, batch: relive.TransitionBatch[torch.Tensor]) -> torch.Tensor:
    """Return by how much the value of each transition's action misses its target [B]."""
    with torch.no_grad():
        next_action = network(batch.next_observation).argmax(dim=1, keepdim=True)
        next_value = target_network(batch.next_observation).gather(1, next_action).squeeze(1)
        target = batch.reward + batch.next_discount * next_value
    errors: torch.Tensor = network(batch.observation).gather(1, batch.action[:, None]).squeeze(1) - target
    return errors


def loss_of(errors: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean of the Huber losses of the errors [B], each times its importance weight [B]."""
    return (weights * nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")).mean()


def follow(target_network: nn.Sequential, network: nn.Sequential) -> None:
    """Move the parameters of the target network a little towards those of the network."""
    with torch.no_grad():
        for slow, fast in zip(target_network.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, TARGET_RATE)


def greedy_action(network: Any, observation: Any) -> int:
    """Return the action of the highest value."""
    with torch.no_grad():
        return int(network(torch.from_numpy(observation)).argmax())


def greedy_return(network: Any, num_episodes: int, seed: int) -> float:
    """Return what episodes without exploration return on average."""
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for episode in range(num_episodes):
        observation, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(greedy_action(network, observation))
            total += float(reward)
            ended = terminated or truncated
    return total / num_episodes


def recent(returns: Sequence[float]) -> str:
    """Return how the last 20 episodes went, of the returns of all of them."""
    if not returns:
        return "no episode has ended"
    last = list(returns)[-20:]
    return f"the last {len(last)} of {len(returns)} episodes return {np.mean(last):.1f} on average"


def save_plot(path: str, lengths: Sequence[int], returns: Sequence[float], final: float) -> None:
    """Draw the return of each episode over the step that it ended with, and the final figure, as a PNG."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(7, 4), layout="constrained")
    axes = picture.add_subplot()
    steps, returns = np.cumsum(lengths), list(returns)
    means = [np.mean(returns[max(0, end - 20) : end]) for end in range(1, len(returns) + 1)]
    axes.plot(steps, returns, ".", color="tab:blue", alpha=0.3, label="an episode, exploring")
    axes.plot(steps, means, color="tab:blue", label="mean of the last 20")
    axes.axhline(final, color="tab:green", linestyle="--", label=f"20 greedy episodes at the end: {final:.1f}")
    axes.set(title="DQN with prioritized 3-step replay on CartPole-v1", xlabel="environment steps", ylabel="return")
    axes.grid(alpha=0.3)
    axes.legend()
    picture.savefig(path, format="png", dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn, and set how well it went."""
    parser = argparse.ArgumentParser(description="DQN with prioritized 3-step replay on CartPole-v1.")
    parser.add_argument("--steps", type=int, default=30_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--short", dest="steps", action="store_const", const=1_200, help="the same as --steps 1200")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same run (default: %(default)s)")
    parser.add_argument("--plot", metavar="PATH", help="where to write the learning curve, as a PNG")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    env = gymnasium.make("CartPole-v1")
    buffer = relive.PrioritizedReplayBuffer(
        50_000,
        relive_gymnasium.from_env(env),
        n_step=3,
        gamma=0.99,
        beta=relive.LinearSchedule(0.4, 1.0, steps=options.steps),
        limiter=relive.MinSize(WARM_UP),
        seed=options.seed,
    )
    statistics = gymnasium.wrappers.RecordEpisodeStatistics(env, buffer_length=options.steps)
    env = relive_gymnasium.Recorder(statistics, buffer)
    exploration = relive.LinearSchedule(1.0, 0.02, steps=max(1, options.steps // 4))

    network = new_network(num_inputs=4, num_actions=2)
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
    slowing = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=options.steps)

    observation, _ = env.reset(seed=options.seed)
    said = time.monotonic()
    for step in range(options.steps):
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
            slowing.step()
            buffer.update_priorities(batch.keys, errors.detach().abs())
            follow(target_network, network)

        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(f"step {step + 1}: {recent(statistics.return_queue)}")

    final = greedy_return(network, num_episodes=20, seed=options.seed + 1_000_000)
    print(f"after {options.steps} steps, 20 greedy episodes return {final:.1f} on average")
    if options.plot:
        save_plot(options.plot, statistics.length_queue, statistics.return_queue, final)


if __name__ == "__main__":
    main()
