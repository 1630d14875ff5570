"""cpprb: ReplayBuffer and PrioritizedReplayBuffer, with its compressions of next observations and stacks."""

from collections.abc import Iterable, Mapping
from typing import Any

import cpprb
import numpy as np

from relive.bench import tasks
from relive.common import arrays as arrays_lib
from relive.testing import synthetic


class _Buffer(tasks.Buffer):
    lacks = ("sequence_length", "by_episode", "streams")
    names: Mapping[str, str] = {
        "observation": "obs",
        "action": "act",
        "reward": "rew",
        "next_observation": "next_obs",
        "terminal": "done",
        "discount": "discounts",
        "weights": "weights",
    }

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        stacked = (*task.observation.shape, task.frame_stack) if task.frame_stack > 1 else task.observation.shape
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
        kind = cpprb.PrioritizedReplayBuffer if task.prioritized else cpprb.ReplayBuffer
        self._drawn = {"beta": task.beta} if task.prioritized else {}
        self._buffer = kind(task.capacity, fields, **settings, **({"alpha": task.alpha} if task.prioritized else {}))

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        for episode in episodes:
            self.add(self.prepared(episode.rows))

    def prepared(self, step: synthetic.Step) -> Any:
        columns = {
            "obs": self._stack_last(step.observation),
            "next_obs": self._stack_last(step.next_observation),
            "act": step.action,
            "rew": step.reward,
            "done": np.float32(step.terminated),
        }
        return columns, np.any(step.terminated | step.truncated)

    def add(self, prepared: Any) -> None:
        columns, is_last = prepared
        self._buffer.add(**columns)
        if is_last:
            self._buffer.on_episode_end()

    def sample(self) -> Any:
        return self._buffer.sample(self.task.batch_size, **self._drawn)

    def update(self, sample: Any, priorities: arrays_lib.Floats) -> None:
        self._buffer.update_priorities(sample["indexes"], priorities)

    def save(self, path: str) -> None:
        self._buffer.save_transitions(path)

    def load(self, path: str) -> None:
        self._buffer.clear()
        self._buffer.load_transitions(f"{path}.npz")

    def answer(self, sample: Any) -> tasks.Answer:
        answer = super().answer(sample)
        if self.task.frame_stack > 1:
            answer |= {name: np.moveaxis(answer[name], -1, 1) for name in ("observation", "next_observation")}
        return answer

    def _stack_last(self, stacks: arrays_lib.Array) -> arrays_lib.Array:
        """Move the axis of a frame stack to the end, where cpprb has it."""
        task = self.task
        return np.moveaxis(stacks, -1 - len(task.observation.shape), -1) if task.frame_stack > 1 else stacks
