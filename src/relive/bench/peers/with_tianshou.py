"""tianshou: ReplayBuffer and PrioritizedReplayBuffer; n-step returns as its policies compute them."""

from collections.abc import Iterable, Mapping
import pickle
from typing import Any

import numpy as np
import tianshou.algorithm.algorithm_base as algorithm_base
import tianshou.data as tianshou_data
import torch

from relive.bench import tasks
from relive.common import arrays as arrays_lib
from relive.testing import synthetic

_NAMES = {"obs": "observation", "act": "action", "rew": "reward", "obs_next": "next_observation"}
_NAMES |= {name: name for name in ("terminated", "truncated")}


class _Buffer(tasks.Buffer):
    lacks = ("sequence_length", "by_episode")
    names: Mapping[str, str] = {
        **{attribute: name for name, attribute in _NAMES.items()},
        "terminal": "terminated",
        "weights": "weight",
    }

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        settings: dict[str, Any] = {}
        if task.frame_stack > 1:  # As its Atari examples have it.
            settings = {"stack_num": task.frame_stack, "save_only_last_obs": True, "ignore_obs_next": True}
        kind: Any = tianshou_data.ReplayBuffer
        if task.streams > 1:
            kind, settings["buffer_num"] = tianshou_data.VectorReplayBuffer, task.streams
        elif task.prioritized:
            kind = tianshou_data.PrioritizedReplayBuffer
            settings |= {"alpha": task.alpha, "beta": task.beta}
        self._buffer = kind(task.capacity, **settings)

    def prepared(self, step: synthetic.Step) -> Any:
        info: Any = {} if self.task.streams == 1 else np.array([{}] * self.task.streams)
        return {name: getattr(step, attribute) for name, attribute in _NAMES.items()} | {"info": info}

    def add(self, prepared: Any) -> None:
        self._buffer.add(tianshou_data.Batch(**prepared))

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        # Step by step, ten million of them take ten minutes. What it calls `update` moves whole buffers.
        if self.task.streams > 1 or self.task.frame_stack > 1:
            super().fill(episodes)
            return
        for episode in episodes:
            rows = {name: np.asarray(getattr(episode.rows, attribute)) for name, attribute in _NAMES.items()}
            part = tianshou_data.ReplayBuffer.from_data(**rows, done=rows["terminated"] | rows["truncated"])
            self._buffer.update(part)

    def sample(self) -> Any:
        drawn = self._drawn()
        if self.task.returns == "tensors":
            drawn[0].to_torch_()
        return drawn

    def _drawn(self) -> Any:
        batch, rows = self._buffer.sample(self.task.batch_size)
        if self.task.n_step == 1:
            return batch, rows
        following: list[Any] = []

        def target(buffer: Any, later: Any) -> torch.Tensor:
            # A user's network would be asked here for the values of what follows. These two make the sum of rewards and
            # the discount of the bootstrap value readable from the returns.
            following.append(buffer[later].obs_next)
            return torch.tensor([[0.0, 1.0]]).repeat(len(later), 1)

        algorithm_base.Algorithm.compute_nstep_return(
            batch, self._buffer, rows, target, self.task.gamma, self.task.n_step
        )
        return batch, following[0]

    def update(self, sample: Any, priorities: arrays_lib.Floats) -> None:
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
        answer = super().answer(batch)
        if self.task.n_step > 1:
            sums, with_value = batch.returns.numpy().T
            discount = with_value - sums
            answer |= {"reward": sums, "discount": discount, "terminal": discount == 0, "next_observation": other}
        return answer
