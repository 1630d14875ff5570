"""torchrl: TensorDictReplayBuffer over a LazyTensorStorage, with its MultiStepTransform and SliceSampler."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensordict
import torch
import torchrl.data as torchrl_data
import torchrl.envs.transforms as transforms

from relive.bench import tasks
from relive.common import arrays as arrays_lib
from relive.testing import synthetic


class _Buffer(tasks.Buffer):
    lacks = ("streams",)
    names: Mapping[str, Any] = {
        "observation": "observation",
        "action": "action",
        "reward": ("next", "reward"),
        "next_observation": ("next", "observation"),
        "terminal": ("next", "terminated"),
    }

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        settings: dict[str, Any] = {"batch_size": task.batch_size}
        if task.sequence_length:
            settings["batch_size"] = task.batch_size * task.sequence_length
            settings["sampler"] = torchrl_data.SliceSampler(slice_len=task.sequence_length, end_key=("next", "done"))
        elif task.by_episode:  # Slices of the episodes; shorter ones of episodes that are.
            settings["batch_size"] = task.batch_size * task.n_step
            settings["sampler"] = torchrl_data.SliceSampler(
                num_slices=task.batch_size, end_key=("next", "done"), strict_length=False
            )
        self._has_transform = task.n_step > 1 and not task.by_episode
        if self._has_transform:
            settings["transform"] = transforms.MultiStepTransform(n_steps=task.n_step, gamma=task.gamma)
        kind = torchrl_data.TensorDictReplayBuffer
        if task.prioritized:
            kind = torchrl_data.TensorDictPrioritizedReplayBuffer
            settings |= {"alpha": task.alpha, "beta": task.beta}
        self._buffer = kind(storage=torchrl_data.LazyTensorStorage(task.capacity), **settings)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        for episode in episodes:
            self._buffer.extend(_rows(episode.rows))

    def prepared(self, step: synthetic.Step) -> Any:
        rows = _rows(synthetic.Step(*(np.asarray(value)[np.newaxis] for value in vars(step).values())))
        # The transform joins steps over time: it is for those that come as a batch with that axis.
        return rows if self._has_transform else rows[0]

    def add(self, prepared: Any) -> None:
        if self._has_transform:
            self._buffer.extend(prepared)
        else:
            self._buffer.add(prepared)

    def sample(self) -> Any:
        return self._buffer.sample()

    def update(self, sample: Any, priorities: arrays_lib.Floats) -> None:
        self._buffer.update_priority(sample["index"], torch.as_tensor(priorities))

    def answer(self, sample: Any) -> tasks.Answer:
        if self.task.by_episode:
            return self._windows(sample)
        if self.task.sequence_length:
            sample = sample.reshape(self.task.batch_size, self.task.sequence_length)
        answer = super().answer(sample)
        if self._has_transform:
            answer["discount"] = self.task.gamma ** sample["steps_to_next_obs"].numpy().reshape(-1)
        return answer

    def _windows(self, sample: Any) -> tasks.Answer:
        """Return each slice as one transition of as many steps as it has."""
        following, gamma = sample["next"], self.task.gamma
        last = np.flatnonzero(following["truncated"].numpy()[:, 0])
        first = np.concatenate([[0], last[:-1] + 1])
        rewards, lengths = following["reward"].numpy()[:, 0], last - first + 1
        spans = [np.arange(start, stop + 1) for start, stop in zip(first, last, strict=True)]
        return {
            "observation": sample["observation"].numpy()[first],
            "action": sample["action"].numpy()[first],
            "reward": np.array([rewards[span] @ gamma ** (span - span[0]) for span in spans]),
            "next_observation": following["observation"].numpy()[last],
            "terminal": following["terminated"].numpy()[last, 0],
            "discount": gamma**lengths,
        }


def _rows(steps: synthetic.Step) -> Any:
    """Return steps as collectors of torchrl give them."""
    flags = {name: torch.as_tensor(getattr(steps, name))[:, None] for name in ("terminated", "truncated")}
    return tensordict.TensorDict(
        {
            "observation": torch.as_tensor(np.array(steps.observation)),
            "action": torch.as_tensor(steps.action),
            "next": {
                "observation": torch.as_tensor(np.array(steps.next_observation)),
                "reward": torch.as_tensor(steps.reward, dtype=torch.float32)[:, None],
                "done": flags["terminated"] | flags["truncated"],
                **flags,
            },
        },
        [len(steps.reward)],
    )
