"""Reverb: a server in this process, trajectory writers, and a TrajectoryDataset, which draws ahead on another core."""

from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from relive.bench import tasks
from relive.testing import synthetic

_TABLE = "steps"


class _Buffer(tasks.Buffer):
    lacks = ("n_step", "by_episode", "streams")
    most = 1_000_000

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        if task.prioritized:
            raise tasks.CannotError("draws ahead of the updates, and is not measured with priorities")
        self._length = task.sequence_length + 1 if task.sequence_length else 2
        kinds = {
            "observation": (self._length, *task.stacked_shape),
            "action": (self._length - 1, *task.action.shape),
            "reward": (self._length - 1,),
            "terminal": (self._length - 1,),
        }
        dtypes = (task.observation.dtype, task.action.dtype, "float32", "bool")
        table = reverb.Table(
            _TABLE,
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=task.capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature={
                name: tf.TensorSpec(shape, dtype) for (name, shape), dtype in zip(kinds.items(), dtypes, strict=True)
            },
        )
        self._server = reverb.Server([table])
        self._client = reverb.Client(f"localhost:{self._server.port}")
        self._writer = self._client.trajectory_writer(num_keep_alive_refs=self._length)
        self._steps = 0
        self._batches: Any = None

    def prepared(self, step: synthetic.Step) -> Any:
        row = {
            "observation": step.observation,
            "action": step.action,
            "reward": np.float32(step.reward),
            "terminal": np.bool_(step.terminated),
        }
        last = row | {"observation": step.next_observation} if step.terminated or step.truncated else None
        return row, last

    def add(self, prepared: Any) -> None:
        row, last = prepared
        self._append(row)
        if last is not None:
            self._append(last)
            self._writer.end_episode()
            self._steps = 0

    def _append(self, row: dict[str, Any]) -> None:
        """Write a row, and the item that it completes."""
        self._writer.append(row)
        self._steps += 1
        if self._steps >= self._length:
            history = self._writer.history
            item = {name: history[name][-self._length : -1] for name in ("action", "reward", "terminal")}
            self._writer.create_item(_TABLE, 1.0, {"observation": history["observation"][-self._length :], **item})

    def sample(self) -> Any:
        if self._batches is None:
            self._writer.flush()
            dataset = reverb.TrajectoryDataset.from_table_signature(
                self._client.server_address, _TABLE, max_in_flight_samples_per_worker=2 * self.task.batch_size
            )
            self._batches = dataset.batch(self.task.batch_size).prefetch(2).as_numpy_iterator()
        return next(self._batches).data

    def answer(self, sample: Any) -> tasks.Answer:
        observation = sample["observation"]
        names = ("action", "reward", "terminal")
        if self.task.sequence_length:
            return {"observation": observation[:, :-1], **{name: sample[name] for name in names}}
        rest = {name: sample[name][:, 0] for name in names}
        return {"observation": observation[:, 0], "next_observation": observation[:, 1], **rest}


make = _Buffer
