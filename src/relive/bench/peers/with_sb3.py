"""stable-baselines3: ReplayBuffer and NStepReplayBuffer; torch tensors on the CPU."""

from typing import Any

from gymnasium import spaces
import numpy as np
import stable_baselines3.common.buffers as buffers

from relive.bench import tasks
from relive.testing import synthetic


def _space(kind: synthetic.Kind) -> spaces.Space[Any]:
    if kind.dtype == "uint8":
        return spaces.Box(0, 255, kind.shape, np.uint8)
    if kind.dtype.startswith("int"):
        return spaces.Discrete(2**31)
    return spaces.Box(-np.inf, np.inf, kind.shape, np.dtype(kind.dtype).type)


class _Buffer(tasks.Buffer):
    def __init__(self, task: tasks.Task) -> None:
        task.refuse("prioritized", "sequences", "by_episode")
        self._batch_size, self._streams, self._has_action_axis = task.batch_size, task.streams, bool(task.action.shape)
        stack = (task.frame_stack,) if task.frame_stack > 1 else ()
        observation = _space(synthetic.Kind(stack + task.observation.shape, task.observation.dtype))
        settings = {"device": "cpu", "n_envs": task.streams}
        if task.n_step > 1:
            settings |= {"n_steps": task.n_step, "gamma": task.gamma}
            self._buffer = buffers.NStepReplayBuffer(task.capacity, observation, _space(task.action), **settings)
        else:
            self._buffer = buffers.ReplayBuffer(task.capacity, observation, _space(task.action), **settings)

    def prepared(self, step: synthetic.Step) -> Any:
        return self.prepared_streams([step])

    def prepared_streams(self, steps: list[synthetic.Step]) -> Any:
        # As a vector environment gives them.
        return (
            np.stack([step.observation for step in steps]),
            np.stack([step.next_observation for step in steps]),
            np.stack([step.action for step in steps]),
            np.array([step.reward for step in steps], np.float32),
            np.array([step.terminated or step.truncated for step in steps]),
            [{"TimeLimit.truncated": True} if step.truncated else {} for step in steps],
        )

    def add(self, prepared: Any) -> None:
        self._buffer.add(*prepared)

    def extend(self, prepared: Any) -> None:
        self._buffer.add(*prepared)

    def sample(self) -> Any:
        return self._buffer.sample(self._batch_size)

    def answer(self, sample: Any) -> tasks.Answer:
        actions = sample.actions.numpy()
        answer = {
            "observation": sample.observations.numpy(),
            "action": actions if self._has_action_axis else actions[:, 0],
            "reward": sample.rewards.numpy()[:, 0],
            "next_observation": sample.next_observations.numpy(),
            "terminal": sample.dones.numpy()[:, 0] > 0,
        }
        if getattr(sample, "discounts", None) is not None:
            answer["discount"] = sample.discounts.numpy()[:, 0]
        return answer


make = _Buffer
