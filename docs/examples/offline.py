"""Offline: a Minari data set becomes a buffer, and a policy is cloned from it.

    python offline.py                       four seeds, two minutes on one core
    python offline.py --plot offline.png    the same, and the learning curves
    python offline.py --short               one seed, five episodes and 50 updates, in seconds

Nothing is downloaded: a controller that balances the pole of CartPole is recorded into a Minari data set in a temporary
directory, and half of its actions are random. `relive.integrations.minari` adds it to a `RingReplayBuffer`, and
`data_loader` feeds a network that learns which action was taken in which state (behaviour cloning). The random actions
average out: the clone balances for all 500 steps, like the controller without them. The baseline is what was recorded.
"""

import argparse
from collections.abc import Callable, Sequence
import os
import tempfile
from typing import Any

import curves
import gymnasium
import minari
import numpy as np
import torch

import relive
from relive.integrations import minari as relive_minari
from relive.integrations import torch as relive_torch

Policy = Callable[[Any], int]
ENVIRONMENT = "CartPole-v1"


def controller(observation: Any) -> int:
    """Return the action of a linear controller of cart and pole."""
    return int(observation @ (0.1, 0.3, 1.0, 0.5) > 0)


def play(env: Any, policy: Policy, seed: int) -> float:
    """Play an episode, and return its return."""
    observation, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        total += float(reward)
        ended = terminated or truncated
    return total


def record(episodes: int, seed: int) -> Any:
    """Return a data set of the controller, half of whose actions are random."""
    rng = np.random.default_rng(seed)

    def disturbed(observation: Any) -> int:
        return int(rng.integers(2)) if rng.random() < 0.5 else controller(observation)

    env = minari.DataCollector(gymnasium.make(ENVIRONMENT))
    for episode in range(episodes):
        play(env, disturbed, 1_000_000 + 1_000 * seed + episode)
    dataset = env.create_dataset(
        f"cartpole/half-random-{seed}-v0",
        eval_env=ENVIRONMENT,
        algorithm_name="linear controller",
        description="A controller of CartPole, half of whose actions are random.",
        author="relive",
        author_email="relive@example.org",
        code_permalink="https://example.org/offline.py",
    )
    env.close()
    return dataset


def load(dataset: Any) -> relive.RingReplayBuffer:
    """Return a buffer that holds the data set."""
    buffer = relive.RingReplayBuffer(dataset.total_steps, relive_minari.schema_of(dataset), seed=0)
    relive_minari.add_dataset(buffer, dataset)
    return buffer


def cloning_loss(network: torch.nn.Module, batch: relive.TransitionBatch[torch.Tensor]) -> torch.Tensor:
    """Return the mean of -log p of the actions of a batch of tensors."""
    return torch.nn.functional.cross_entropy(network(batch.observation), batch.action)


def clone(buffer: relive.RingReplayBuffer, updates: int, seed: int) -> curves.Run:
    """Return numbers of updates, and the mean return of the clone in 20 episodes after each."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    env = gymnasium.make(ENVIRONMENT)

    @torch.no_grad()
    def policy(observation: Any) -> int:
        return int(network(torch.from_numpy(observation)).argmax())

    def mean_return() -> float:
        return float(np.mean([play(env, policy, 1_000 * seed + episode) for episode in range(20)]))

    at, returns = [0], [mean_return()]
    for update, batch in enumerate(relive_torch.data_loader(buffer, 64, num_batches=updates), start=1):
        optimizer.zero_grad()
        cloning_loss(network, batch).backward()
        optimizer.step()
        if update % 25 == 0:
            at.append(update)
            returns.append(mean_return())
    return at, returns


def main(arguments: Sequence[str] | None = None) -> None:
    """Record and clone with several seeds, and print the mean returns of both."""
    parser = argparse.ArgumentParser(description="Behaviour cloning of a Minari data set of CartPole-v1.")
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="one seed, five episodes and 50 updates")
    parser.add_argument("--plot", metavar="PATH", help="where to write the learning curves, as a PNG")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds, episodes, updates = (1, 5, 50) if options.short else (options.seeds, 100, 600)
    runs: dict[str, list[curves.Run]] = {"relive, clone": [], "recorded": []}
    with tempfile.TemporaryDirectory() as directory:
        os.environ["MINARI_DATASETS_PATH"] = directory
        for seed in range(seeds):
            dataset = record(episodes, seed)
            buffer = load(dataset)
            recorded = len(buffer) / dataset.total_episodes  # Each step has a reward of 1.
            runs["relive, clone"].append(clone(buffer, updates, seed))
            runs["recorded"].append(([0, updates], [recorded, recorded]))
            returns = runs["relive, clone"][-1][1]
            print(f"seed {seed}: mean return: recorded {recorded:.1f}, clone {returns[-1]:.1f}")
    if options.plot:
        title = f"Cloning a controller of {ENVIRONMENT}"
        curves.plot(options.plot, runs, ylabel="mean return", title=title, xlabel="updates")


if __name__ == "__main__":
    main()
