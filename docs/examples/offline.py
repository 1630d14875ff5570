"""Offline: a data set of Minari, a buffer, and a policy that is cloned from what was recorded (behaviour cloning).

    pip install 'relive[minari,torch]' matplotlib
    python offline.py                       a quarter of a minute
    python offline.py --plot offline.png    ... and a picture
    python offline.py --short               five episodes and 50 updates, in seconds

Nothing is downloaded: a controller that balances the pole of CartPole is recorded into a Minari data set in a temporary
directory, and half of its actions are random. `relive.integrations.minari` fills a `RingReplayBuffer` with it, and
`data_loader` feeds a network that learns which action was taken in which state. The random actions average out:
expect the clone to balance for all 500 steps, like the undisturbed controller, and unlike what was recorded.
"""

import argparse
from collections.abc import Callable, Sequence
import os
import tempfile
import time
from typing import Any

import gymnasium
import minari
import numpy as np
import numpy.typing as npt
import torch

import relive
from relive.integrations import minari as relive_minari
from relive.integrations import torch as relive_torch

Policy = Callable[[npt.NDArray[np.float32]], int]
Curve = list[tuple[int, float]]

ENVIRONMENT = "CartPole-v1"


def expert(observation: npt.NDArray[np.float32]) -> int:
    """Return what a linear controller of cart and pole does."""
    return int(observation @ (0.1, 0.3, 1.0, 0.5) > 0)


def play(env: "gymnasium.Env[Any, Any]", policy: Policy, seed: int) -> float:
    """Play an episode, and return its return."""
    observation, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        total += float(reward)
        ended = terminated or truncated
    return total


def mean_return(policy: Policy, episodes: int, seed: int) -> float:
    """Return the mean return of a policy over so many episodes."""
    env = gymnasium.make(ENVIRONMENT)
    return sum(play(env, policy, seed + episode) for episode in range(episodes)) / episodes


def record(episodes: int, seed: int) -> Any:
    """Return a data set of the controller, half of whose actions are random."""
    rng = np.random.default_rng(seed)

    def disturbed(observation: npt.NDArray[np.float32]) -> int:
        return int(rng.integers(2)) if rng.random() < 0.5 else expert(observation)

    env = minari.DataCollector(gymnasium.make(ENVIRONMENT))
    for episode in range(episodes):
        play(env, disturbed, seed + episode)
    dataset = env.create_dataset(
        "cartpole/half-random-v0",
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
    """Return how unlikely the network thinks the actions of a batch of tensors: the mean of -log p."""
    return torch.nn.functional.cross_entropy(network(batch.observation), batch.action)


def clone(buffer: relive.RingReplayBuffer, updates: int, episodes: int, seed: int) -> tuple[Policy, Curve]:
    """Return a policy that does as was recorded, and pairs of updates and its mean return after them."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def policy(observation: npt.NDArray[np.float32]) -> int:
        with torch.no_grad():
            return int(network(torch.from_numpy(observation)).argmax())

    loader = relive_torch.data_loader(buffer, 64, num_batches=updates)
    curve = [(0, mean_return(policy, episodes, seed))]
    last_line = time.monotonic()
    for update, batch in enumerate(loader, start=1):
        loss = cloning_loss(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 25 == 0:
            curve.append((update, mean_return(policy, episodes, seed)))
        if time.monotonic() > last_line + 2:
            last_line = time.monotonic()
            print(f"update {update}: loss {loss:.3f}, mean return {curve[-1][1]:.1f}")
    return policy, curve


def plot(curve: Curve, levels: dict[str, float], path: str) -> None:
    """Write a picture of the curve, and of what it is compared with."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(7, 4), layout="constrained")
    axes = picture.add_subplot()
    axes.plot(*np.transpose(curve), label="clone", color="tab:blue")
    for (label, level), style in zip(levels.items(), ("--", "-.", ":"), strict=True):
        axes.axhline(level, label=label, color="tab:gray", linestyle=style)
    axes.set(title=f"Cloning a controller of {ENVIRONMENT}", xlabel="updates", ylabel="mean return", ylim=(0, 520))
    axes.legend(loc="center right")
    axes.grid(alpha=0.3)
    picture.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record a data set, loads it, and clones the policy in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="updates of the clone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="five episodes and 50 updates: to see that it runs")
    parser.add_argument("--plot", metavar="PATH", help="write the learning curve to this PNG")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recorded_episodes, updates, episodes = (5, 50, 2) if options.short else (100, options.steps, 20)
    record_seed, check_seed = 1_000_000 + 1_000 * options.seed, 1_000 * options.seed

    with tempfile.TemporaryDirectory() as directory:
        os.environ["MINARI_DATASETS_PATH"] = directory
        dataset = record(recorded_episodes, record_seed)
        buffer = load(dataset)
        recorded = len(buffer) / dataset.total_episodes  # Each step has a reward of 1.
    print(f"{len(buffer)} steps of {recorded_episodes} episodes are in the buffer")

    policy, curve = clone(buffer, updates, episodes, check_seed)
    rng = np.random.default_rng(check_seed)
    levels = {
        "controller": mean_return(expert, episodes, check_seed),
        "recorded": recorded,
        "random": mean_return(lambda _: int(rng.integers(2)), episodes, check_seed),
    }
    if options.plot:
        plot(curve, levels, options.plot)
    figures = {"clone": mean_return(policy, episodes, check_seed + 500), **levels}
    print("mean return: " + ", ".join(f"{name} {figure:.1f}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
