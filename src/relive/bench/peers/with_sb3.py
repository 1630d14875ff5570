"""stable-baselines3: ReplayBuffer and NStepReplayBuffer; torch tensors on the CPU."""

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
import numpy as np
import stable_baselines3.common.buffers as buffers

from relive.bench import tasks
from relive.schema import schema as schema_lib
from relive.testing import synthetic


def _space(kind: schema_lib.Field) -> spaces.Space[Any]:
    if kind.dtype == "uint8":
        return spaces.Box(0, 255, kind.shape, np.uint8)
    if kind.dtype.kind == "i":
        return spaces.Discrete(2**31)
    return spaces.Box(-np.inf, np.inf, kind.shape, kind.dtype.type)


class _Buffer(tasks.Buffer):
    lacks = ("prioritized", "sequence_length", "by_episode")
    names: Mapping[str, str] = {
        "observation": "observations",
        "action": "actions",
        "reward": "rewards",
        "next_observation": "next_observations",
        "terminal": "dones",
        "discount": "discounts",
    }

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        stack = (task.frame_stack,) if task.frame_stack > 1 else ()
        observation = _space(schema_lib.Field((*stack, *task.observation.shape), task.observation.dtype))
        settings, kind = {"device": "cpu", "n_envs": task.streams}, buffers.ReplayBuffer
        if task.n_step > 1:
            settings, kind = settings | {"n_steps": task.n_step, "gamma": task.gamma}, buffers.NStepReplayBuffer
        self._buffer = kind(task.capacity, observation, _space(task.action), **settings)

    def prepared(self, step: synthetic.Step) -> Any:
        # As a vector environment gives it, also one of a single environment.
        rows = {name: np.asarray(column) for name, column in vars(step).items()}
        if self.task.streams == 1:
            rows = {name: column[np.newaxis] for name, column in rows.items()}
        return (
            *(rows[name] for name in ("observation", "next_observation", "action", "reward")),
            rows["terminated"] | rows["truncated"],
            [{"TimeLimit.truncated": True} if is_truncated else {} for is_truncated in rows["truncated"]],
        )

    def add(self, prepared: Any) -> None:
        self._buffer.add(*prepared)

    def sample(self) -> Any:
        return self._buffer.sample(self.task.batch_size)
