"""Games in turns: Q-learning of tic-tac-toe and connect four of PettingZoo, against a player who moves by chance.

    python turns.py                     both games with each of four seeds, five minutes on one core
    python turns.py --plot turns.png    the same, and the learning curves
    python turns.py --short             one seed and too few moves to learn much, in seconds

A `TurnRecorder` stores the steps of both players in one ring, each in a stream of its own. A step lasts from a player's
turn to its next one, so the reply of the other is a part of it, and the last step of each player has its reward and the
end, also where the other made the last move. The network learns from both seats. Illegal moves are masked by -1e9, not
by infinity: on a full board all are, and the target multiplies their value by a discount of 0.
"""

from collections.abc import Sequence
import copy
from typing import Any

import curves
import numpy as np
from pettingzoo import classic
import torch

import relive
from relive.integrations import pettingzoo as relive_pettingzoo
from relive.integrations import torch as relive_torch

BATCH_SIZE, ILLEGAL = 64, -1e9


def legal_values(network: torch.nn.Module, observation: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the values of all moves [B, moves], -1e9 for those that are illegal."""
    values: torch.Tensor = network(observation["observation"].flatten(1).float())
    return values.masked_fill(observation["action_mask"] == 0, ILLEGAL)


def q_loss(
    network: torch.nn.Module, target_network: torch.nn.Module, batch: relive.TransitionBatch[torch.Tensor]
) -> torch.Tensor:
    """Return the mean squared error of Q-learning on a batch of tensors; the moves in it are legal."""
    with torch.no_grad():
        next_values = legal_values(target_network, batch.next_observation).max(dim=1).values
        targets = batch.reward + batch.next_discount * next_values
    values = legal_values(network, batch.observation).gather(1, batch.action[:, None]).squeeze(1)
    return torch.nn.functional.mse_loss(values, targets)


def play(env: Any, network: torch.nn.Module, seat: int, epsilon: float, rng: np.random.Generator) -> float:
    """Play a game in one of the seats against chance, and return the reward: 1 for a game won, -1 for one lost."""
    env.reset()
    returned = 0.0
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        is_own = agent == env.possible_agents[seat]
        returned += reward if is_own else 0.0
        action = None
        if not (terminated or truncated):
            action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
            if is_own and rng.random() >= epsilon:
                seen = {key: torch.from_numpy(part)[None] for key, part in observation.items()}
                with torch.no_grad():
                    action = int(legal_values(network, seen).argmax())
        env.step(action)
    return returned


def train(steps: int, seed: int, *, game: str) -> curves.Run:
    """Return the moves at which the greedy policy was tried, and its points a game."""
    torch.manual_seed(seed)
    rng, check_rng, buffer_rng = np.random.default_rng(seed).spawn(3)
    env = getattr(classic, game).env()
    spaces = [getattr(env, space)(env.possible_agents[0]) for space in ("observation_space", "action_space")]
    layers = torch.nn.Linear(spaces[0]["observation"].shape[0] * spaces[0]["observation"].shape[1] * 2, 256)
    network = torch.nn.Sequential(layers, torch.nn.ReLU(), torch.nn.Linear(256, int(spaces[1].n)))
    target_network, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters(), lr=5e-4)
    buffer = relive.RingReplayBuffer(20_000, gamma=0.97, streams=2, seed=buffer_rng)
    recorder = relive_pettingzoo.TurnRecorder(env, buffer)
    at, points = list[int](), list[float]()
    while buffer.appended < steps:
        for number in range(20):
            play(recorder, network, number % 2, max(0.1, 1 - 4 * buffer.appended / steps), rng)
            for _ in range(8):
                optimizer.zero_grad()
                q_loss(network, target_network, relive_torch.as_tensors(buffer.sample(BATCH_SIZE))).backward()
                optimizer.step()
        for target, parameter in zip(target_network.parameters(), network.parameters(), strict=True):
            target.data.lerp_(parameter.data, 0.3)
        if not at or buffer.appended - at[-1] >= steps / 12:
            at.append(buffer.appended)
            points.append(float(np.mean([play(env, network, each % 2, 0.0, check_rng) for each in range(60)])))
    return at, points


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in both games with several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    cases = {"relive, tic-tac-toe": {"game": "tictactoe_v3"}, "relive, connect four": {"game": "connect_four_v3"}}
    curves.main(train, cases, arguments, steps=10_000, title="Against a random player", ylabel="points a game")


if __name__ == "__main__":
    main()
