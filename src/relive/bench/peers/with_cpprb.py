"""cpprb: ReplayBuffer and PrioritizedReplayBuffer, with its compressions of next observations and stacks."""

from collections.abc import Iterable
from typing import Any

import cpprb
import numpy as np
import numpy.typing as npt

from relive.bench import tasks
from relive.testing import synthetic


class _Buffer(tasks.Buffer):
    def __init__(self, task: tasks.Task) -> None:
        task.refuse("sequences", "by_episode", "streams")
        self._task = task
        shape = task.observation.shape
        stacked = (*shape, task.frame_stack) if task.frame_stack > 1 else shape
        fields: dict[str, Any] = {
            "obs": {"shape": stacked, "dtype": task.observation.dtype},
            "act": {"shape": task.action.shape or 1, "dtype": task.action.dtype},
            "rew": {},
            "done": {},
        }
        settings: dict[str, Any] = {"next_of": "obs"}
        if task.frame_stack > 1:
            settings["stack_compress"] = "obs"
        if task.n_step > 1:
            settings = {"Nstep": {"size": task.n_step, "gamma": task.gamma, "rew": "rew", "next": "next_obs"}}
            fields["next_obs"] = fields["obs"]
        if task.prioritized:
            self._buffer = cpprb.PrioritizedReplayBuffer(task.capacity, fields, alpha=task.alpha, **settings)
        else:
            self._buffer = cpprb.ReplayBuffer(task.capacity, fields, **settings)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        for episode in episodes:
            observations = self._last(episode.observations, 1)
            if len(episode):
                self._buffer.add(
                    obs=observations[:-1],
                    next_obs=observations[1:],
                    act=episode.actions,
                    rew=episode.rewards,
                    done=episode.is_last * np.float32(episode.terminated),
                )
            if episode.terminated or episode.truncated:
                self._buffer.on_episode_end()

    def prepared(self, step: synthetic.Step) -> Any:
        columns = {
            "obs": self._last(step.observation, 0),
            "next_obs": self._last(step.next_observation, 0),
            "act": step.action,
            "rew": step.reward,
            "done": float(step.terminated),
        }
        return columns, step.terminated or step.truncated

    def add(self, prepared: Any) -> None:
        columns, is_last = prepared
        self._buffer.add(**columns)
        if is_last:
            self._buffer.on_episode_end()

    def sample(self) -> Any:
        if self._task.prioritized:
            return self._buffer.sample(self._task.batch_size, beta=self._task.beta)
        return self._buffer.sample(self._task.batch_size)

    def update(self, sample: Any, priorities: npt.NDArray[np.float64]) -> None:
        self._buffer.update_priorities(sample["indexes"], priorities)

    def save(self, path: str) -> None:
        self._buffer.save_transitions(path)

    def load(self, path: str) -> None:
        self._buffer.clear()
        self._buffer.load_transitions(f"{path}.npz")

    def answer(self, sample: Any) -> tasks.Answer:
        answer = {
            "observation": self._first(sample["obs"]),
            "action": sample["act"] if self._task.action.shape else sample["act"][:, 0],
            "reward": sample["rew"][:, 0],
            "next_observation": self._first(sample["next_obs"]),
            "terminal": sample["done"][:, 0] > 0,
        }
        if "discounts" in sample:
            answer["discount"] = sample["discounts"][:, 0]
        if "weights" in sample:
            answer["weights"] = sample["weights"]
        return answer

    def _last(self, stacks: Any, axis: int) -> Any:
        """Move the axis of a frame stack to the end, where cpprb has it."""
        return np.moveaxis(stacks, axis, -1) if self._task.frame_stack > 1 else stacks

    def _first(self, stacks: Any) -> Any:
        """Move the axis of a frame stack back."""
        return np.moveaxis(stacks, -1, 1) if self._task.frame_stack > 1 else stacks


make = _Buffer
