"""A world model: a recurrent network imagines ten steps of a pendulum, with and without a burn-in.

    pendulums ── extend ──> SequenceReplayBuffer(length=16, burn_in=6) ── 6 steps seen, 10 imagined ──> errors

The model sees the direction of a pendulum and not its velocity, which its state must infer from the burn-in: six steps
that are fed to it as they were. It imagines the ten after them from its own predictions and the actions, as in PlaNet
and Dreamer (Hafner et al. 2019, 2020), but without latent noise. The baseline has no burn-in.

    python world_model.py --plot world_model.png           both with each of four seeds, and the learning curves
    python world_model.py --short                          one seed and too few steps to learn much, in seconds
"""

from collections.abc import Sequence
from typing import Any

import curves
import numpy as np
import torch
from torch import nn

import relive
from relive.integrations import torch as relive_torch

STREAMS, LIMIT, IMAGINED, BATCH_SIZE, WIDTH = 8, 50, 10, 32, 64
CASES: dict[str, Any] = {"relive, burn-in": {"burn_in": 6}, "relive, no burn-in": {"burn_in": 0}}


class Pendulums:
    """Pendulums that are pushed to the left, to the right or not at all."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """Begin new episodes."""
        self.angle, self.velocity = self.rng.uniform(-np.pi, np.pi, STREAMS), self.rng.normal(0, 2, STREAMS)

    @property
    def observation(self) -> Any:
        """The directions [S, 2]."""
        return np.stack([np.cos(self.angle), np.sin(self.angle)], axis=1).astype(np.float32)

    def step(self, action: Any) -> None:
        """Push each [S] with -1, 0 or 1 for a twentieth of a second."""
        self.velocity = self.velocity + 0.05 * (10 * np.sin(self.angle) + 4 * action)
        self.angle = self.angle + 0.05 * self.velocity


class Model(nn.Module):
    """Predicts the next observation from a recurrent state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = (
            nn.GRUCell(3, WIDTH),
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ELU(), nn.Linear(WIDTH, 2)),
        )

    def forward(self, observation: torch.Tensor, action: torch.Tensor, burn_in: int) -> torch.Tensor:
        """Return predictions [B, T, 2] of the observations after T actions [B, T], of which it sees `burn_in` + 1."""
        state, predicted = torch.zeros(len(action), WIDTH), list[torch.Tensor]()
        for t in range(action.shape[1]):
            seen = observation[:, t] if t <= burn_in else predicted[-1]
            state = self.cell(torch.cat([seen, action[:, t, None]], dim=1), state)
            predicted.append(seen + self.head(state))
        return torch.stack(predicted, dim=1)


def error_of(model: Any, batch: relive.SequenceBatch[torch.Tensor], burn_in: int) -> torch.Tensor:
    """Return the mean squared error of what is imagined after the burn-in."""
    predicted = model(batch.observation, batch.action, burn_in)
    error: torch.Tensor = ((predicted - batch.observation[:, 1:]) ** 2)[:, burn_in:].mean()
    return error


def filled(buffer: relive.SequenceReplayBuffer, pendulums: Pendulums, rounds: int, first: int = 0) -> None:
    """Write rounds of steps with random actions."""
    for t in range(first, first + rounds):
        before, action = pendulums.observation, pendulums.rng.integers(-1, 2, STREAMS).astype(np.float32)
        pendulums.step(action)
        ends = [t % LIMIT == LIMIT - 1] * STREAMS
        buffer.extend(before, action, np.zeros(STREAMS), pendulums.observation, truncated=ends)
        if ends[0]:
            pendulums.reset()


def train(steps: int, seed: int, *, burn_in: int) -> curves.Run:
    """Return steps, and the root mean square error by then, in percent, of what is imagined of pendulums never seen."""
    torch.manual_seed(seed)
    settings: Any = {"length": burn_in + IMAGINED, "burn_in": burn_in, "streams": STREAMS, "seed": seed}
    buffer, unseen = (relive.SequenceReplayBuffer(20_000, **settings) for _ in range(2))
    filled(unseen, Pendulums(1_000 + seed), rounds=4 * LIMIT)
    test, pendulums = relive_torch.as_tensors(unseen.sample(256)), Pendulums(seed)
    model, measured, errors = Model(), list[int](), list[float]()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    filled(buffer, pendulums, LIMIT)
    for step in range(LIMIT, max(steps // STREAMS, LIMIT + 1)):
        filled(buffer, pendulums, 1, first=step)
        optimizer.zero_grad()
        error_of(model, relive_torch.as_tensors(buffer.sample(BATCH_SIZE)), burn_in).backward()
        optimizer.step()
        if step % 25 == 0:
            with torch.no_grad():
                errors.append(100 * error_of(model, test, burn_in).sqrt().item())
            measured.append(step * STREAMS)
    return measured, errors


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with and without a burn-in and several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    curves.main(
        train, CASES, arguments, steps=8_000, title="World model", ylabel="error of ten imagined steps in percent"
    )


if __name__ == "__main__":
    main()
