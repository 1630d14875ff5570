"""HER: Q-learning of a task that chance almost never solves, with and without hindsight.

    python her.py                       both learners with each of four seeds, two minutes on one core
    python her.py --plot her.png        the same, and the learning curves
    python her.py --short               one seed and too few steps to learn much, in seconds

The state is 12 bits, an action flips one of them, and the goal is a state, with 12 actions to reach it. Each step costs
1 until then, and by chance about one episode of 400 gets there: too few to learn from. But every episode reaches some
state. `relive.relabel` replaces the goal in four of five rows of a batch with a state that the same episode reached
later, and computes the reward again: those rows show how a goal is reached (Andrychowicz et al. 2017, "Hindsight
Experience Replay").
"""

from collections.abc import Sequence
import copy

import curves
import numpy as np
import numpy.typing as npt
import torch

import relive
from relive.integrations import torch as relive_torch

Bits = npt.NDArray[np.int8]

BITS, STREAMS, BATCH_SIZE, GAMMA = 12, 16, 128, 0.98


def observe(bits: Bits, goals: Bits) -> dict[str, Bits]:
    """Return observations with the keys of Gymnasium-Robotics."""
    return {"achieved_goal": bits, "desired_goal": goals}


def judge(achieved: Bits, goals: Bits) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the rewards [k] of steps that achieved these bits [k, bits], and whether the episodes terminate [k]."""
    reached = (achieved == goals).all(axis=1)
    return np.where(reached, 0.0, -1.0).astype(np.float32), reached


def action_values(network: torch.nn.Module, observation: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the values of all actions [B, bits]."""
    inputs = torch.cat([observation["achieved_goal"], observation["desired_goal"]], dim=1)
    values: torch.Tensor = network(inputs.float())
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
    network: torch.nn.Module, epsilon: float, rng: np.random.Generator, buffer: relive.RingReplayBuffer | None = None
) -> float:
    """Play an episode in each stream, record it if there is a buffer, and return the success rate."""
    state, goals = rng.integers(2, size=(2, STREAMS, BITS), dtype=np.int8)
    running = np.flatnonzero((state != goals).any(axis=1))
    for t in range(BITS):
        observation = observe(state[running], goals[running])
        with torch.no_grad():
            values = action_values(network, {key: torch.from_numpy(part) for key, part in observation.items()})
        explores = rng.random(len(running)) < epsilon
        actions = np.where(explores, rng.integers(BITS, size=len(running)), values.argmax(dim=1).numpy())
        state[running, actions] ^= 1
        next_observation = observe(state[running], goals[running])
        rewards, reached = judge(state[running], goals[running])
        if buffer is not None:
            ends = {"terminated": reached, "truncated": np.full(len(running), t == BITS - 1)}
            buffer.extend(observation, actions, rewards, next_observation, **ends, streams=running)
        running = running[~reached]
        if not len(running):
            break
    return 1 - len(running) / STREAMS


def train(steps: int, seed: int, *, hindsight: bool) -> curves.Run:
    """Return the steps at which the greedy policy was tried, and its success rate in percent."""
    torch.manual_seed(seed)
    rng, check_rng, buffer_rng = np.random.default_rng(seed).spawn(3)
    network = torch.nn.Sequential(torch.nn.Linear(2 * BITS, 256), torch.nn.ReLU(), torch.nn.Linear(256, BITS))
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    buffer = relive.RingReplayBuffer(100_000, gamma=GAMMA, streams=STREAMS, seed=buffer_rng)
    at, rates = list[int](), list[float]()
    while buffer.get_stats().appended < steps:
        for _ in range(4):
            play(network, 0.2, rng, buffer)
        for _ in range(40):
            batch = buffer.sample(BATCH_SIZE)
            if hindsight:
                batch = relive.relabel(buffer, batch, compute=judge)
            optimizer.zero_grad()
            q_loss(network, target_network, relive_torch.as_tensors(batch)).backward()
            optimizer.step()
        for target, parameter in zip(target_network.parameters(), network.parameters(), strict=True):
            target.data.lerp_(parameter.data, 0.2)
        at.append(buffer.get_stats().appended)
        rates.append(100 * float(np.mean([play(network, 0.0, check_rng) for _ in range(10)])))
    return at, rates


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with and without hindsight and several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    cases = {"relive, with hindsight": {"hindsight": True}, "relive, without": {"hindsight": False}}
    curves.main(train, cases, arguments, steps=40_000, title=f"Flipping {BITS} bits", ylabel="success rate in percent")


if __name__ == "__main__":
    main()
