"""What a demo learns: tasks, which have episodes, and policies, which act in one of them."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Observation: TypeAlias = npt.NDArray[np.float64]

Policy: TypeAlias = Callable[[Observation], int]
"""Chooses an action for each observation [O] of one episode, in their order; it may remember what it has seen there."""


class Task(Protocol):
    """Something with actions 0 to A - 1 and observations [O]: a Gymnasium environment, or the memory task."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def observation_width(self) -> int:
        """O."""
        ...

    @property
    def num_actions(self) -> int:
        """A."""
        ...

    @property
    def solved_at(self) -> float | None:
        """The mean return from which it counts as solved, if there is one."""
        ...

    def reset(self, seed: int | None = None) -> Observation:
        """Begin an episode and return its first observation [O]; a seed makes it and all later ones repeatable."""
        ...

    def step(self, action: int) -> tuple[Observation, float, bool, bool]:
        """Return the next observation [O], the reward, and whether the episode terminated or was truncated."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def seed(task: Task, rng: np.random.Generator) -> None:
    """Make all later episodes of the task repeatable, by a number from `rng`."""
    task.reset(int(rng.integers(2**31)))


def play(task: Task, begin: Callable[[], Policy], episodes: int) -> npt.NDArray[np.float64]:
    """Return the return of each of that many episodes [episodes]; `begin` gives a policy for each of them."""
    returns = np.zeros(episodes)
    for episode in range(episodes):
        observation, act = task.reset(), begin()
        ended = False
        while not ended:
            observation, reward, terminated, truncated = task.step(act(observation))
            returns[episode] += reward
            ended = terminated or truncated
    return returns
