"""d3rlpy: ReplayBuffer over a FIFOBuffer, with the transition pickers and the trajectory slicer."""

from collections.abc import Iterable
from typing import Any

import d3rlpy.constants as constants
import d3rlpy.dataset as dataset
import numpy as np

from relive.bench import tasks
from relive.testing import synthetic

_MOST = 1_000_000


class _Buffer(tasks.Buffer):
    def __init__(self, task: tasks.Task) -> None:
        task.refuse("prioritized", "by_episode", "streams")
        task.refuse_above(_MOST)
        self._task = task
        picker: Any = dataset.BasicTransitionPicker()
        if task.n_step > 1:
            picker = dataset.MultiStepTransitionPicker(task.n_step, task.gamma)
        # Images have an axis for their channels, and are stacked along it.
        self._shape = (1, *task.observation.shape) if task.frame_stack > 1 else task.observation.shape
        if task.frame_stack > 1:
            picker = dataset.FrameStackTransitionPicker(task.frame_stack)
        is_discrete = not task.action.shape
        self._buffer = dataset.ReplayBuffer(
            dataset.FIFOBuffer(task.capacity),
            transition_picker=picker,
            observation_signature=dataset.Signature([np.dtype(task.observation.dtype)], [self._shape]),
            action_signature=dataset.Signature([np.dtype(task.action.dtype)], [task.action.shape or (1,)]),
            reward_signature=dataset.Signature([np.dtype(np.float32)], [(1,)]),
            action_space=constants.ActionSpace.DISCRETE if is_discrete else constants.ActionSpace.CONTINUOUS,
            action_size=18 if is_discrete else task.action.shape[0],
        )

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        for episode in episodes:
            if not episode.terminated and not episode.truncated:
                super().fill([episode])
                continue
            size = len(episode)
            self._buffer.append_episode(
                dataset.Episode(
                    episode.frames[:-1].reshape(size, *self._shape),
                    episode.actions.reshape(size, -1),
                    episode.rewards.reshape(size, 1),
                    episode.terminated,
                )
            )

    def prepared(self, step: synthetic.Step) -> Any:
        newest = step.observation[-1] if self._task.frame_stack > 1 else step.observation
        action = step.action if self._task.action.shape else int(step.action)
        return newest.reshape(self._shape), action, step.reward, step.terminated, step.truncated

    def add(self, prepared: Any) -> None:
        observation, action, reward, terminated, truncated = prepared
        self._buffer.append(observation, action, reward)
        if terminated or truncated:
            self._buffer.clip_episode(terminated)

    def sample(self) -> Any:
        if self._task.sequence_length:
            return self._buffer.sample_trajectory_batch(self._task.batch_size, self._task.sequence_length)
        return self._buffer.sample_transition_batch(self._task.batch_size)

    def answer(self, sample: Any) -> tasks.Answer:
        actions = sample.actions if self._task.action.shape else sample.actions[..., 0]
        answer = {"observation": sample.observations, "action": actions, "reward": sample.rewards[..., 0]}
        if self._task.sequence_length:
            return answer | {"terminal": sample.terminals[..., 0] > 0, "mask": sample.masks > 0}
        return answer | {
            "next_observation": sample.next_observations,
            "terminal": sample.terminals[:, 0] > 0,
            "discount": self._task.gamma ** sample.intervals[:, 0],
        }


def make(task: tasks.Task) -> tasks.Buffer:
    """Return the buffer for the task."""
    return _Buffer(task)
