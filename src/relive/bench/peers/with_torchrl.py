"""torchrl: TensorDictReplayBuffer over a LazyTensorStorage, with its MultiStepTransform and SliceSampler."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensordict
import torch
import torchrl.data as torchrl_data
import torchrl.envs.transforms as transforms

from relive.bench import tasks
from relive.testing import synthetic


class _Buffer(tasks.Buffer):
    def __init__(self, task: tasks.Task) -> None:
        task.refuse("streams")
        self._task = task
        settings: dict[str, Any] = {"batch_size": task.batch_size}
        if task.sequence_length:
            settings["batch_size"] = task.batch_size * task.sequence_length
            settings["sampler"] = torchrl_data.SliceSampler(slice_len=task.sequence_length, end_key=("next", "done"))
        self._has_transform = task.n_step > 1 and not task.by_episode
        if task.by_episode:  # Slices of the episodes; shorter ones of episodes that are.
            settings["batch_size"] = task.batch_size * task.n_step
            settings["sampler"] = torchrl_data.SliceSampler(
                num_slices=task.batch_size, end_key=("next", "done"), strict_length=False
            )
        if self._has_transform:
            settings["transform"] = transforms.MultiStepTransform(n_steps=task.n_step, gamma=task.gamma)
        storage = torchrl_data.LazyTensorStorage(task.capacity)
        self._buffer: Any
        if task.prioritized:
            self._buffer = torchrl_data.TensorDictPrioritizedReplayBuffer(
                alpha=task.alpha, beta=task.beta, storage=storage, **settings
            )
        else:
            self._buffer = torchrl_data.TensorDictReplayBuffer(storage=storage, **settings)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        for episode in episodes:
            if len(episode):
                ends = episode.is_last
                columns = (episode.observations[:-1], episode.actions, episode.rewards, episode.observations[1:])
                self._buffer.extend(_rows(*columns, ends & episode.terminated, ends & episode.truncated))

    def prepared(self, step: synthetic.Step) -> Any:
        one = (step.observation, step.action, step.reward, step.next_observation, step.terminated, step.truncated)
        rows = _rows(*(np.asarray(value)[np.newaxis] for value in one))
        # The transform joins steps over time: it is for those that come as a batch with that axis.
        return rows if self._has_transform else rows[0]

    def add(self, prepared: Any) -> None:
        if self._has_transform:
            self._buffer.extend(prepared)
        else:
            self._buffer.add(prepared)

    def sample(self) -> Any:
        return self._buffer.sample()

    def update(self, sample: Any, priorities: npt.NDArray[np.float64]) -> None:
        self._buffer.update_priority(sample["index"], torch.as_tensor(priorities))

    def answer(self, sample: Any) -> tasks.Answer:
        shape = (self._task.batch_size, self._task.sequence_length) if self._task.sequence_length else (len(sample),)
        following = sample["next"]
        columns = {
            "observation": sample["observation"],
            "action": sample["action"],
            "reward": following["reward"][:, 0],
            "next_observation": following["observation"],
            "terminal": following["terminated"][:, 0],
        }
        if self._task.by_episode:
            return self._windows(sample)
        if self._has_transform:
            columns["discount"] = self._task.gamma ** sample["steps_to_next_obs"]
        return {name: column.numpy().reshape(shape + column.shape[1:]) for name, column in columns.items()}

    def _windows(self, sample: Any) -> tasks.Answer:
        """Return each slice as one transition of as many steps as it has."""
        following, gamma = sample["next"], self._task.gamma
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


def _rows(observation: Any, action: Any, reward: Any, following: Any, terminated: Any, truncated: Any) -> Any:
    """Return steps as collectors of torchrl give them."""
    flags = {"terminated": torch.as_tensor(terminated)[:, None], "truncated": torch.as_tensor(truncated)[:, None]}
    return tensordict.TensorDict(
        {
            "observation": torch.as_tensor(np.array(observation)),
            "action": torch.as_tensor(action),
            "next": {
                "observation": torch.as_tensor(np.array(following)),
                "reward": torch.as_tensor(reward, dtype=torch.float32)[:, None],
                "done": flags["terminated"] | flags["truncated"],
                **flags,
            },
        },
        [len(observation)],
    )


make = _Buffer
