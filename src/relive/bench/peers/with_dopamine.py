"""Dopamine: its jax ReplayBuffer, with a TransitionAccumulator; compressed, as it does by default, for images alone."""

from typing import Any

import dopamine.jax.replay_memory.accumulator as accumulator
import dopamine.jax.replay_memory.elements as elements
import dopamine.jax.replay_memory.replay_buffer as replay_buffer
import dopamine.jax.replay_memory.samplers as samplers
import numpy as np
import numpy.typing as npt

from relive.bench import tasks
from relive.testing import synthetic

_MOST = 1_000_000


class _Buffer(tasks.Buffer):
    def __init__(self, task: tasks.Task) -> None:
        task.refuse("sequences", "by_episode", "streams")
        task.refuse_above(_MOST)
        self._task = task
        sampler = samplers.UniformSamplingDistribution(0)
        self._priority: dict[str, float] = {}
        if task.prioritized:
            sampler = samplers.PrioritizedSamplingDistribution(
                0, priority_exponent=task.alpha, max_capacity=task.capacity
            )
            self._priority = {"priority": 1.0}
        self._buffer: Any = replay_buffer.ReplayBuffer(
            accumulator.TransitionAccumulator(task.frame_stack, task.n_step, task.gamma),
            sampler,
            batch_size=task.batch_size,
            max_capacity=task.capacity,
            compress=task.observation.dtype == "uint8",
        )

    def prepared(self, step: synthetic.Step) -> Any:
        newest = step.observation[-1] if self._task.frame_stack > 1 else step.observation
        return newest, step.action, step.reward, step.terminated, step.terminated or step.truncated

    def add(self, prepared: Any) -> None:
        self._buffer.add(elements.TransitionElement(*prepared), **self._priority)

    def sample(self) -> Any:
        return self._buffer.sample(self._task.batch_size, with_sample_metadata=True)

    def update(self, sample: Any, priorities: npt.NDArray[np.float64]) -> None:
        self._buffer.update(sample[1].keys, priorities=priorities)

    def answer(self, sample: Any) -> tasks.Answer:
        batch, drawn = sample
        answer = {
            "observation": self._first(batch.state),
            "action": batch.action,
            "reward": batch.reward,
            "next_observation": self._first(batch.next_state),
            "terminal": batch.is_terminal,
        }
        if self._task.prioritized:
            answer["weights"] = drawn.probabilities**-self._task.beta
        return answer

    def _first(self, stacks: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Move the axis of a frame stack, which comes last, to where it is compared; one frame is no stack."""
        return np.moveaxis(stacks, -1, 1) if self._task.frame_stack > 1 else stacks[..., 0]


def make(task: tasks.Task) -> tasks.Buffer:
    """Return the buffer for the task."""
    return _Buffer(task)
