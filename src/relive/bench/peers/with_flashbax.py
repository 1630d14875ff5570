"""flashbax: flat, prioritised flat and trajectory buffers, jitted on the CPU, their state donated to each call."""

from collections.abc import Iterable
from typing import Any

import flashbax
import jax
import numpy as np

from relive.bench import tasks
from relive.common import arrays as arrays_lib
from relive.testing import synthetic

_CHUNK, _FEW = 1_000, 10_000


class _Buffer(tasks.Buffer):
    lacks = ("by_episode", "streams", "n_step")

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        limits = {"max_length": task.capacity, "min_length": 1, "sample_batch_size": task.batch_size}
        buffer: Any
        if task.sequence_length:
            buffer = flashbax.make_trajectory_buffer(
                add_batch_size=1,
                sample_batch_size=task.batch_size,
                sample_sequence_length=task.sequence_length,
                period=1,
                min_length_time_axis=task.sequence_length,
                max_length_time_axis=task.capacity,
            )
        elif task.prioritized:
            buffer = flashbax.make_prioritised_flat_buffer(add_sequences=True, priority_exponent=task.alpha, **limits)
        else:
            buffer = flashbax.make_flat_buffer(add_sequences=True, **limits)
        first = next(task.story(1_000).episodes()).rows
        self._state = buffer.init({name: column[0] for name, column in self._columns(first).items()})
        self._key = jax.random.PRNGKey(0)
        self._add = jax.jit(buffer.add, donate_argnums=0)
        self._sample = jax.jit(lambda state, key: (buffer.sample(state, key), jax.random.split(key, 1)[0]))
        if task.prioritized:
            self._set = jax.jit(buffer.set_priorities, donate_argnums=0)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        if self.task.capacity <= _FEW:
            super().fill(episodes)
            return
        parts = [self._columns(episode.rows) for episode in episodes]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        total = len(columns["reward"])
        # The last whole chunks: one length, or it would be compiled once for each.
        for start in range(total % _CHUNK, total, _CHUNK):
            self.add(self._lead({name: column[start : start + _CHUNK] for name, column in columns.items()}))

    def prepared(self, step: synthetic.Step) -> Any:
        return self._lead({name: value[np.newaxis] for name, value in self._columns(step).items()})

    def add(self, prepared: Any) -> None:
        self._state = jax.block_until_ready(self._add(self._state, prepared))

    def sample(self) -> Any:
        sample, self._key = jax.block_until_ready(self._sample(self._state, self._key))
        return sample

    def update(self, sample: Any, priorities: arrays_lib.Floats) -> None:
        self._state = jax.block_until_ready(self._set(self._state, sample.indices, priorities))

    def answer(self, sample: Any) -> tasks.Answer:
        if self.task.sequence_length:
            return {name: np.asarray(column) for name, column in sample.experience.items()}
        first, second = sample.experience.first, sample.experience.second
        answer = {name: np.asarray(column) for name, column in first.items()}
        return answer | {"next_observation": np.asarray(second["observation"])}

    def _columns(self, step: synthetic.Step) -> dict[str, Any]:
        return {
            "observation": np.asarray(step.observation),
            "action": np.asarray(step.action, np.int32 if self.task.action.dtype == "int64" else None),
            "reward": np.asarray(step.reward, np.float32),
            "terminal": np.asarray(step.terminated),
        }

    def _lead(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Add the axis of the batch that a trajectory buffer wants."""
        return {name: column[np.newaxis] for name, column in rows.items()} if self.task.sequence_length else rows
