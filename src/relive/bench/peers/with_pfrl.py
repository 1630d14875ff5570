"""pfrl: ReplayBuffer and PrioritizedReplayBuffer, EpisodicReplayBuffer for sequences; made into tensors as it does."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pfrl.replay_buffer as replay_buffer
import pfrl.replay_buffers as replay_buffers
import pfrl.utils as pfrl_utils
import torch

from relive.bench import tasks
from relive.testing import synthetic

_MOST = 1_000_000
_CPU = torch.device("cpu")


class _Buffer(tasks.Buffer):
    def __init__(self, task: tasks.Task) -> None:
        task.refuse("by_episode", "streams")
        task.refuse_above(_MOST)
        self._task = task
        if task.sequence_length:
            self._buffer = replay_buffers.EpisodicReplayBuffer(task.capacity)
        elif task.prioritized:
            settings = {"alpha": task.alpha, "beta0": task.beta, "betasteps": None, "error_max": None}
            self._buffer = replay_buffers.PrioritizedReplayBuffer(task.capacity, **settings)
        else:
            self._buffer = replay_buffers.ReplayBuffer(task.capacity, num_steps=task.n_step)

    def prepared(self, step: synthetic.Step) -> Any:
        # A frame stack is kept as its agents have it: the arrays of single frames, shared by all stacks they are in.
        step_columns = {
            "state": step.observation,
            "action": step.action,
            "reward": step.reward,
            "next_state": step.next_observation,
            "is_state_terminal": step.terminated,
        }
        return step_columns, step.truncated

    def add(self, prepared: Any) -> None:
        columns, is_truncated = prepared
        self._buffer.append(**columns)
        if is_truncated:
            self._buffer.stop_current_episode()

    def sample(self) -> Any:
        task = self._task
        if not task.sequence_length:
            drawn = self._buffer.sample(task.batch_size)
            return drawn, replay_buffer.batch_experiences(drawn, _CPU, _same, task.gamma)
        episodes = self._buffer.sample_episodes(task.batch_size, task.sequence_length)
        columns = {
            "observation": torch.stack(
                [pfrl_utils.batch_states([one["state"] for one in episode], _CPU, _same) for episode in episodes]
            )
        }
        for name, key in (("action", "action"), ("reward", "reward"), ("terminal", "is_state_terminal")):
            columns[name] = torch.as_tensor(np.array([[one[key] for one in episode] for episode in episodes]))
        return episodes, columns

    def update(self, sample: Any, priorities: npt.NDArray[np.float64]) -> None:
        self._buffer.update_errors(priorities)

    def answer(self, sample: Any) -> tasks.Answer:
        drawn, batch = sample
        if self._task.sequence_length:
            return {name: column.numpy() for name, column in batch.items()}
        names = {
            "observation": "state",
            "action": "action",
            "reward": "reward",
            "next_observation": "next_state",
            "terminal": "is_state_terminal",
            "discount": "discount",
        }
        answer = {name: batch[key].numpy() for name, key in names.items()}
        if self._task.prioritized:
            answer["weights"] = np.array([experience[0]["weight"] for experience in drawn])
        return answer


def _same(state: Any) -> Any:
    return state


def make(task: tasks.Task) -> tasks.Buffer:
    """Return the buffer for the task."""
    return _Buffer(task)
