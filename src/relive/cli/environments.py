"""Gymnasium environments that a demo can learn: made, checked, and scaled."""

import numpy as np

from relive import errors
from relive.cli import tasks
from relive.common import imports

with imports.optional_dependency("demo"):
    import gymnasium as gym

LONGEST_EPISODE = 10_000
"""Where an environment without a time limit of its own is truncated: a greedy policy may go in circles for ever."""

NO_LIMIT = 1e6
"""Bounds from here on, such as infinity or the largest float32, say nothing about the observations."""


class Environment:
    """One environment with actions 0 to A - 1, and observations [O] that are scaled to [-1, 1] where they have bounds.

    Scaled, because a network learns slowly from an angle that is never above 0.2 beside a speed that may be 2.

    Raises:
        ArgumentError: There is no such environment, or the demo cannot learn it: a line for the user.
    """

    def __init__(self, name: str) -> None:
        try:
            gymnasium_environment = gym.make(name)
        except Exception as error:  # Whatever somebody's constructor raises, the user should read one line.
            reason = _on_one_line(error).rstrip(".") or type(error).__name__
            raise errors.ArgumentError(f"cannot make environment {name!r}: {reason}") from error
        observations, actions = gymnasium_environment.observation_space, gymnasium_environment.action_space
        if not isinstance(actions, gym.spaces.Discrete):
            raise errors.ArgumentError(
                f"the actions of {name} must be Discrete for Q-learning, got {_on_one_line(actions)}"
            )
        if not isinstance(observations, gym.spaces.Box) or len(observations.shape) != 1:
            raise errors.ArgumentError(
                f"the observations of {name} must be a Box of one axis, got {_on_one_line(observations)}"
            )
        spec = gymnasium_environment.spec
        if spec is None or spec.max_episode_steps is None:
            gymnasium_environment = gym.wrappers.TimeLimit(gymnasium_environment, LONGEST_EPISODE)
        self.name = name
        self.observation_width = observations.shape[0]
        self.num_actions = int(actions.n)
        self.solved_at = None if spec is None else spec.reward_threshold
        self._environment = gymnasium_environment
        self._scale = _scale(observations)
        self._first_action = int(actions.start)

    def reset(self, seed: int | None = None) -> tasks.Observation:
        """Begin an episode and return its first observation [O]; a seed makes it and all later ones repeatable."""
        observation, _ = self._environment.reset(seed=seed)
        return np.asarray(observation, np.float64) / self._scale

    def step(self, action: int) -> tuple[tasks.Observation, float, bool, bool]:
        """Return the next observation [O], the reward, and whether the episode terminated or was truncated."""
        observation, reward, terminated, truncated, _ = self._environment.step(self._first_action + action)
        return np.asarray(observation, np.float64) / self._scale, float(reward), bool(terminated), bool(truncated)

    def close(self) -> None:
        """Give back what the environment holds."""
        self._environment.close()


def _on_one_line(thing: object) -> str:
    return " ".join(str(thing).split())


def _scale(observations: gym.spaces.Box) -> tasks.Observation:
    """Return by what to divide observations [O]: the largest magnitude, or 1 where there is no limit to speak of."""
    largest = np.maximum(np.abs(observations.low), np.abs(observations.high)).astype(np.float64)
    return np.where((largest > 0.0) & (largest < NO_LIMIT), largest, 1.0)
