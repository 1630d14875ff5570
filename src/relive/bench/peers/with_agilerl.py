"""AgileRL: ReplayBuffer, MultiStepReplayBuffer and PrioritizedReplayBuffer over a TensorDict."""

from collections.abc import Iterable
from typing import Any

import agilerl.components.replay_buffer as replay_buffer
import numpy as np
import numpy.typing as npt
import tensordict
import torch

from relive.bench import tasks
from relive.testing import synthetic


class _Buffer(tasks.Buffer):
    def __init__(self, task: tasks.Task) -> None:
        task.refuse("sequences", "by_episode", "streams")
        self._task = task
        self._buffer: Any
        if task.prioritized:
            self._buffer = replay_buffer.PrioritizedReplayBuffer(task.capacity, alpha=task.alpha)
        elif task.n_step > 1:
            self._buffer = replay_buffer.MultiStepReplayBuffer(task.capacity, n_step=task.n_step, gamma=task.gamma)
        else:
            self._buffer = replay_buffer.ReplayBuffer(task.capacity)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        if self._task.n_step > 1:  # Joined as they are added, one by one.
            super().fill(episodes)
            return
        for episode in episodes:
            if len(episode):
                observations = episode.observations
                ends = episode.is_last & episode.terminated
                self._buffer.add(_rows(observations[:-1], episode.actions, episode.rewards, observations[1:], ends))

    def prepared(self, step: synthetic.Step) -> Any:
        one = (step.observation, step.action, step.reward, step.next_observation, step.terminated)
        return [np.asarray(value)[np.newaxis] for value in one]

    def add(self, prepared: Any) -> None:
        self._buffer.add(_rows(*prepared))

    def sample(self) -> Any:
        if self._task.prioritized:
            return self._buffer.sample(self._task.batch_size, beta=self._task.beta)
        return self._buffer.sample(self._task.batch_size)

    def update(self, sample: Any, priorities: npt.NDArray[np.float64]) -> None:
        self._buffer.update_priorities(sample["idxs"], priorities)

    def answer(self, sample: Any) -> tasks.Answer:
        actions = sample["action"].numpy()
        answer = {
            "observation": sample["obs"].numpy(),
            "action": actions if self._task.action.shape else actions[:, 0],
            "reward": sample["reward"].numpy()[:, 0],
            "next_observation": sample["next_obs"].numpy(),
            "terminal": sample["done"].numpy()[:, 0] > 0,
        }
        if self._task.prioritized:
            answer["weights"] = sample["weights"].numpy()[:, 0]
        return answer


def _rows(observation: Any, action: Any, reward: Any, following: Any, terminated: Any) -> Any:
    """Return steps as its training loops make them."""
    columns = {"obs": observation, "action": action, "reward": reward, "next_obs": following, "done": terminated}
    floats = {name: torch.as_tensor(np.array(column)) for name, column in columns.items()}
    for name in ("reward", "done"):
        floats[name] = floats[name].to(torch.float32)
    return tensordict.TensorDict(floats, [len(observation)])


def make(task: tasks.Task) -> tasks.Buffer:
    """Return the buffer for the task."""
    return _Buffer(task)
