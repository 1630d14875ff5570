"""HER: a task that Q-learning never solves, and solves at once when it learns from the goals that it did reach.

    pip install 'relive[torch]' matplotlib
    python her.py                       both curves, about half a minute
    python her.py --plot her.png        ... and a picture of them
    python her.py --short               the same with 6 bits, in seconds

The state is 12 bits, an action flips one of them, and the goal is a state, with 12 actions to get there. Each step
costs 1 until the goal is reached, which by chance happens in about one episode of 400: nothing tells better from worse.
But every episode reaches *some* states. `relive.relabel` gives four in five rows of a batch such a state as their goal,
and from those one can learn how a goal is reached. Same network, same steps: expect a success rate near 1 with
hindsight, and near 0 without (Andrychowicz et al. 2017, "Hindsight Experience Replay").
"""

import argparse
from collections.abc import Sequence
import copy
import time

import numpy as np
import numpy.typing as npt
import torch

import relive
from relive.integrations import torch as relive_torch

Bits = npt.NDArray[np.int8]
Curve = list[tuple[int, float]]

GAMMA = 0.98
STREAMS = 16
BATCH_SIZE = 128


def observe(bits: Bits, goals: Bits) -> dict[str, Bits]:
    """Return observations as those of Gymnasium-Robotics: where one is, and where one should be."""
    return {"achieved_goal": bits, "desired_goal": goals}


def judge(achieved: Bits, goals: Bits) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the rewards [k] of steps that achieved that, and whether the task terminates with them [k]."""
    reached = (achieved == goals).all(axis=1)
    return np.where(reached, 0.0, -1.0).astype(np.float32), reached


def action_values(network: torch.nn.Module, observation: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the values of all actions [B, bits]."""
    goals = torch.cat([observation["achieved_goal"], observation["desired_goal"]], dim=1)
    values: torch.Tensor = network(goals.float())
    return values


def q_loss(
    network: torch.nn.Module, target_network: torch.nn.Module, batch: relive.TransitionBatch[torch.Tensor]
) -> torch.Tensor:
    """Return the mean squared error of Q-learning on a batch of tensors."""
    with torch.no_grad():
        next_values = action_values(target_network, batch.next_observation).max(dim=1).values
        targets = batch.reward + batch.next_discount * next_values
    values = action_values(network, batch.observation).gather(1, batch.action[:, None]).squeeze(1)
    return torch.nn.functional.mse_loss(values, targets)


def play(
    network: torch.nn.Module,
    bits: int,
    epsilon: float,
    rng: np.random.Generator,
    buffer: relive.RingReplayBuffer | None = None,
) -> float:
    """Play an episode of each stream side by side, into the buffer if there is one, and return the success rate."""
    state, goals = rng.integers(2, size=(2, STREAMS, bits), dtype=np.int8)
    running = np.flatnonzero((state != goals).any(axis=1))
    for t in range(bits):
        observation = observe(state[running], goals[running])
        with torch.no_grad():
            greedy = action_values(network, {key: torch.from_numpy(part) for key, part in observation.items()})
        explores = rng.random(len(running)) < epsilon
        actions = np.where(explores, rng.integers(bits, size=len(running)), greedy.argmax(dim=1).numpy())
        state[running, actions] ^= 1
        next_observation = observe(state[running], goals[running])
        rewards, reached = judge(state[running], goals[running])
        if buffer is not None:
            truncated = np.full(len(running), t == bits - 1)
            buffer.extend(
                observation,
                actions,
                rewards,
                next_observation,
                terminated=reached,
                truncated=truncated,
                streams=running,
            )
        running = running[~reached]
        if not len(running):
            break
    return 1 - len(running) / STREAMS


def train(bits: int, steps: int, seed: int, *, hindsight: bool) -> Curve:
    """Return pairs of environment steps and the success rate of the greedy policy after them."""
    torch.manual_seed(seed)
    rng, check_rng, buffer_rng = np.random.default_rng(seed).spawn(3)
    network = torch.nn.Sequential(torch.nn.Linear(2 * bits, 256), torch.nn.ReLU(), torch.nn.Linear(256, bits))
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    buffer = relive.RingReplayBuffer(100_000, gamma=GAMMA, streams=STREAMS, seed=buffer_rng)

    def check() -> float:
        return float(np.mean([play(network, bits, 0.0, check_rng) for _ in range(10)]))

    curve = [(0, check())]
    last_line = time.monotonic()
    while buffer.get_stats().appended < steps:
        for _ in range(4):
            play(network, bits, 0.2, rng, buffer)
        for _ in range(40):
            batch = buffer.sample(BATCH_SIZE)
            if hindsight:
                batch = relive.relabel(buffer, batch, compute=judge)
            loss = q_loss(network, target_network, relive_torch.as_tensors(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for target, parameter in zip(target_network.parameters(), network.parameters(), strict=True):
            target.data.lerp_(parameter.data, 0.2)
        curve.append((buffer.get_stats().appended, check()))
        if time.monotonic() > last_line + 2:
            last_line = time.monotonic()
            name = "with" if hindsight else "without"
            print(f"{name} hindsight: step {curve[-1][0]}, success rate {curve[-1][1]:.2f}")
    return curve


def plot(curves: dict[str, Curve], title: str, path: str) -> None:
    """Write a picture of the curves."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(7, 4), layout="constrained")
    axes = picture.add_subplot()
    for label, curve in curves.items():
        axes.plot(*np.transpose(curve), label=label)
    axes.set(title=title, xlabel="environment steps", ylabel="success rate of the greedy policy", ylim=(-0.02, 1.02))
    axes.legend(loc="center right")
    axes.grid(alpha=0.3)
    picture.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with and without hindsight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60_000, help="environment steps of each of the two runs")
    parser.add_argument("--bits", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="6 bits, 2,000 steps: to see that it runs")
    parser.add_argument("--plot", metavar="PATH", help="write both learning curves to this PNG")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    bits, steps = (6, 2_000) if options.short else (options.bits, options.steps)

    curves = {
        "with hindsight": train(bits, steps, options.seed, hindsight=True),
        "without": train(bits, steps, options.seed, hindsight=False),
    }
    if options.plot:
        plot(curves, f"Flipping {bits} bits", options.plot)
    finals = {label: np.mean([rate for _, rate in curve[-5:]]) for label, curve in curves.items()}
    print(f"success rate at {bits} bits: " + ", ".join(f"{rate:.2f} {label}" for label, rate in finals.items()))


if __name__ == "__main__":
    main()
