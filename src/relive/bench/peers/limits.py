"""What numpy takes for the same bytes: one `take` a column, a plain copy, plain assignments, and files of columns."""

from collections.abc import Iterable
import itertools
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.bench import tasks
from relive.testing import synthetic

_BATCHES = 4096
"""Batches drawn beforehand: so many that their rows are not in a cache because they were read a moment ago."""


def _columns(task: tasks.Task, allocate: tasks.Allocate) -> dict[str, npt.NDArray[Any]]:
    """Return an array a field, every byte of it written to: a step's observation, action, reward, and two flags."""
    kinds = {"observation": task.observation, "action": task.action, "reward": synthetic.Kind((), "float32")}
    kinds |= dict.fromkeys(("terminated", "truncated"), synthetic.Kind((), "bool"))
    columns = {name: allocate((task.capacity, *kind.shape), np.dtype(kind.dtype)) for name, kind in kinds.items()}
    for name, column in columns.items():
        column.fill(kinds[name].dtype != "bool")
    return columns


class _Written(tasks.Buffer):
    """What need not be filled: every array was written to, and what it holds does not matter."""

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        pass


class _Take(_Written):
    """Gathers the rows of a batch, which were drawn beforehand, by a `take` a column; assigns where steps are added."""

    def __init__(self, task: tasks.Task, allocate: tasks.Allocate = np.empty) -> None:
        task.refuse("by_episode", "prioritized")
        self._task, self._columns, self._cursor = task, _columns(task, allocate), 0
        rng = np.random.default_rng(0)
        spans = np.arange(task.sequence_length) if task.sequence_length else np.arange(1 - task.frame_stack, 1)
        shape = (_BATCHES, task.batch_size)
        first = rng.integers(task.frame_stack, task.capacity - max(task.sequence_length, task.n_step), shape)
        self._rows = itertools.cycle(first[..., np.newaxis] + spans if len(spans) > 1 else first)

    def prepared(self, step: synthetic.Step) -> Any:
        newest = step.observation[-1] if self._task.frame_stack > 1 else step.observation
        return newest, step.action, step.reward, step.terminated, step.truncated

    def prepared_streams(self, steps: list[synthetic.Step]) -> Any:
        return tuple(np.stack(column) for column in zip(*map(self.prepared, steps), strict=True))

    def add(self, prepared: Any) -> None:
        for column, value in zip(self._columns.values(), prepared, strict=True):
            column[self._cursor] = value
        self._cursor = (self._cursor + 1) % self._task.capacity

    def extend(self, prepared: Any) -> None:
        stop = self._cursor + len(prepared[0])
        if stop > self._task.capacity:
            self._cursor, stop = 0, len(prepared[0])
        for column, value in zip(self._columns.values(), prepared, strict=True):
            column[self._cursor : stop] = value
        self._cursor = stop

    def sample(self) -> Any:
        rows, columns, task = next(self._rows), self._columns, self._task
        batch = {"observation": columns["observation"].take(rows, axis=0)}
        anchors = rows if task.sequence_length or rows.ndim == 1 else rows[:, -1]
        for name in ("action", "reward", "terminated"):
            batch[name] = columns[name].take(anchors, axis=0)
        if not task.sequence_length:
            batch["next_observation"] = columns["observation"].take(rows + task.n_step, axis=0)
        return batch


class _Copy(_Written):
    """Copies a batch that was gathered beforehand."""

    def __init__(self, task: tasks.Task) -> None:
        take = _Take(task)
        self._batches = itertools.cycle([take.sample() for _ in range(2)])

    def sample(self) -> Any:
        return {name: column.copy() for name, column in next(self._batches).items()}


class _Files(_Written):
    """Columns like those of a prioritized buffer, a file each: `np.save` and `np.load` of the same bytes."""

    def __init__(self, task: tasks.Task) -> None:
        task.refuse_unless("prioritized")
        self._columns = _columns(task, np.empty) | {"priority": np.ones(task.capacity)}
        self._is_loaded = False

    def save(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        for name, column in self._columns.items():
            np.save(os.path.join(path, f"{name}.npy"), column)

    def load(self, path: str) -> None:
        self._columns = {name: np.load(os.path.join(path, f"{name}.npy")) for name in self._columns}
        self._is_loaded = True

    def sample(self) -> Any:
        if not self._is_loaded:
            raise tasks.CannotError("is a limit of saving")


class _Await(tasks.Buffer):
    """No buffer at all."""

    def __init__(self, task: tasks.Task) -> None:
        raise tasks.CannotError("is a limit of coroutines")


make_take, make_copy, make_files, make_await = _Take, _Copy, _Files, _Await
