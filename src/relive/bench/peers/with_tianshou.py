"""tianshou: ReplayBuffer and PrioritizedReplayBuffer; n-step returns as its policies compute them."""

from collections.abc import Iterable
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import tianshou.algorithm.algorithm_base as algorithm_base
import tianshou.data as tianshou_data
import torch

from relive.bench import tasks
from relive.testing import synthetic

_FEW = 10_000


class _Buffer(tasks.Buffer):
    def __init__(self, task: tasks.Task) -> None:
        task.refuse("sequences", "by_episode")
        self._task = task
        settings: dict[str, Any] = {}
        if task.frame_stack > 1:  # As its Atari examples have it.
            settings = {"stack_num": task.frame_stack, "save_only_last_obs": True, "ignore_obs_next": True}
        self._buffer: Any
        if task.streams > 1:
            self._buffer = tianshou_data.VectorReplayBuffer(task.capacity, task.streams, **settings)
        elif task.prioritized:
            self._buffer = tianshou_data.PrioritizedReplayBuffer(
                task.capacity, alpha=task.alpha, beta=task.beta, **settings
            )
        else:
            self._buffer = tianshou_data.ReplayBuffer(task.capacity, **settings)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        capacity = self._task.capacity
        if capacity <= _FEW or self._task.streams > 1:
            super().fill(episodes)
            return
        # Step by step takes minutes; set_batch is how its from_data fills a buffer, with the cursor at slot 0.
        columns: dict[str, list[Any]] = {}
        for episode in episodes:
            observations = episode.frames
            ends = episode.is_last
            part = {
                "obs": observations[:-1],
                "act": episode.actions,
                "rew": episode.rewards.astype(float),
                "terminated": ends & episode.terminated,
                "truncated": ends & episode.truncated,
                "done": ends,
            }
            if self._task.frame_stack == 1:
                part["obs_next"] = observations[1:]
            for name, column in part.items():
                columns.setdefault(name, []).append(column)
        joined = {name: np.concatenate(parts)[-capacity:] for name, parts in columns.items()}
        self._buffer.set_batch(tianshou_data.Batch(info=tianshou_data.Batch(), **joined))
        self._buffer._size = capacity
        self._buffer.last_index = np.array([capacity - 1])
        if self._task.prioritized:
            self._buffer.init_weight(np.arange(capacity))

    def prepared(self, step: synthetic.Step) -> Any:
        return {
            "obs": step.observation,
            "act": step.action,
            "rew": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "obs_next": step.next_observation,
            "info": {},
        }

    def prepared_streams(self, steps: list[synthetic.Step]) -> Any:
        columns = zip(*(self.prepared(step).values() for step in steps), strict=True)
        names = ("obs", "act", "rew", "terminated", "truncated", "obs_next", "info")
        return {name: np.array(column) for name, column in zip(names, columns, strict=True)}

    def add(self, prepared: Any) -> None:
        self._buffer.add(tianshou_data.Batch(**prepared))

    def extend(self, prepared: Any) -> None:
        self._buffer.add(tianshou_data.Batch(**prepared))

    def sample(self) -> Any:
        batch, rows = self._buffer.sample(self._task.batch_size)
        if self._task.n_step == 1:
            return batch, rows
        following: list[Any] = []

        def target(buffer: Any, later: Any) -> torch.Tensor:
            # A user's network would be asked here for the values of what follows. These two make the sum of rewards and
            # the discount of the bootstrap value readable from the returns.
            following.append(buffer[later].obs_next)
            return torch.tensor([[0.0, 1.0]]).repeat(len(later), 1)

        algorithm_base.Algorithm.compute_nstep_return(
            batch, self._buffer, rows, target, self._task.gamma, self._task.n_step
        )
        return batch, following[0]

    def update(self, sample: Any, priorities: npt.NDArray[np.float64]) -> None:
        self._buffer.update_weight(sample[1], priorities)

    def save(self, path: str) -> None:
        # As its documentation has it.
        with open(path, "wb") as file:
            pickle.dump(self._buffer, file)

    def load(self, path: str) -> None:
        with open(path, "rb") as file:
            self._buffer = pickle.load(file)

    def answer(self, sample: Any) -> tasks.Answer:
        batch, other = sample
        answer = {
            "observation": batch.obs,
            "action": batch.act,
            "reward": batch.rew,
            "next_observation": batch.obs_next,
            "terminal": batch.terminated,
        }
        if self._task.n_step > 1:
            sums, with_value = batch.returns.numpy().T
            discount = with_value - sums
            answer |= {"reward": sums, "discount": discount, "terminal": discount == 0, "next_observation": other}
        if self._task.prioritized:
            answer["weights"] = batch.weight
        return answer


make = _Buffer
