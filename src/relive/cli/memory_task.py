"""A task that nobody solves without memory: a corridor that goes dark, and four doors at its end.

    t               0    1    2   |  3    4    5   ...   T-1
    observation    sign sign sign | dark dark dark ...  dark
    action          -    -    -      -    -    -    ... door: reward 1 for the one on the sign, 0 for another

A sign at the entrance shows one door of four. From the fourth step on the observation is all zeros, and only the last
of 10 to 14 steps goes through a door. Nothing in the dark says which step that is, nor what the sign was: a policy that
looks at the observation alone cannot do better than guessing, a mean return of 1/4. One that remembers gets 1. It is a
T-maze (Bakker 2002, "Reinforcement learning with long short-term memory") with two more arms and an unlit junction.
"""

import numpy as np

from relive.cli import tasks

DOORS = 4
LIT_STEPS = 3
"""Observations that show the sign; all later ones are zeros."""

SHORTEST, LONGEST = 10, 14
"""Steps in an episode, each number of them equally likely."""


class MemoryTask:
    """One `tasks.Task`; it never truncates.

    Attributes:
        name: What it is called.
        observation_width: One number for each door: 1 for the one on the sign, 0 for others and in the dark.
        num_actions: One for each door.
        solved_at: Mean return from which it counts as solved; 1/4 is chance and 1 the best.

    Example:
        >>> from relive.cli import memory_task
        >>> task = memory_task.MemoryTask()
        >>> task.reset(seed=0)
        array([0., 0., 0., 1.])
        >>> ends = [task.step(action=3) for _ in range(13)]
        >>> [observation.any().item() for observation, _, _, _ in ends[:5]]
        [True, True, False, False, False]
        >>> ends[-1]
        (array([0., 0., 0., 0.]), 1.0, True, False)
    """

    name = "FourDoors"
    observation_width = DOORS
    num_actions = DOORS
    solved_at = 0.9

    def __init__(self) -> None:
        self._rng = np.random.default_rng()
        self.reset()

    def reset(self, seed: int | None = None) -> tasks.Observation:
        """Begin an episode and return its first observation [O]; a seed makes it and all later ones repeatable."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._door = int(self._rng.integers(DOORS))
        self._length = int(self._rng.integers(SHORTEST, LONGEST + 1))
        self._steps = 0
        return self._observation()

    def step(self, action: int) -> tuple[tasks.Observation, float, bool, bool]:
        """Return the next observation [O], the reward, and whether the episode terminated or was truncated."""
        self._steps += 1
        is_last = self._steps == self._length
        return self._observation(), float(is_last and action == self._door), is_last, False

    def close(self) -> None:
        """Give back what the environment holds: nothing."""

    def _observation(self) -> tasks.Observation:
        observation = np.zeros(DOORS)
        if self._steps < LIT_STEPS:
            observation[self._door] = 1.0
        return observation
