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
    flag = synthetic.Kind((), "bool")
    kinds = {
        "observation": task.observation,
        "action": task.action,
        "reward": synthetic.Kind((), "float32"),
        "terminated": flag,
        "truncated": flag,
    }
    columns = {name: allocate((task.capacity, *kind.shape), np.dtype(kind.dtype)) for name, kind in kinds.items()}
    for name, column in columns.items():
        column.fill(kinds[name] is not flag)
    return columns


class _Limit(tasks.Buffer):
    """Columns, and rows that were drawn beforehand."""

    def __init__(self, task: tasks.Task, allocate: tasks.Allocate = np.empty) -> None:
        task.refuse("by_episode", "prioritized")
        self._task = task
        self._columns = _columns(task, allocate)
        self._cursor = 0
        rng = np.random.default_rng(0)
        spans = np.arange(max(task.sequence_length, 1)) if task.sequence_length else np.arange(1 - task.frame_stack, 1)
        shape = (_BATCHES, task.batch_size)
        first = rng.integers(task.frame_stack, task.capacity - max(task.sequence_length, task.n_step), shape)
        rows = first[..., np.newaxis] + spans if len(spans) > 1 else first
        self._rows = itertools.cycle(rows)
        self._shift = task.n_step if not task.sequence_length else 0

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        """Do nothing: every array was written to, and what it holds does not matter."""

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

    def _taken(self) -> dict[str, npt.NDArray[Any]]:
        """PendingReads a batch: the fields of each row, and the observations that follow them."""
        rows, columns = next(self._rows), self._columns
        batch = {"observation": columns["observation"].take(rows, axis=0)}
        anchors = rows if self._task.sequence_length or rows.ndim == 1 else rows[:, -1]
        for name in ("action", "reward", "terminated"):
            batch[name] = columns[name].take(anchors, axis=0)
        if self._shift:
            batch["next_observation"] = columns["observation"].take(rows + self._shift, axis=0)
        return batch


class _Take(_Limit):
    """PendingReads the rows of a batch, a `take` a column."""

    def sample(self) -> Any:
        return self._taken()


class _Copy(_Limit):
    """Copies a batch that was gathered beforehand."""

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self._batches = itertools.cycle([self._taken() for _ in range(2)])

    def sample(self) -> Any:
        return {name: column.copy() for name, column in next(self._batches).items()}

    def add(self, prepared: Any) -> None:
        raise tasks.CannotError("is of no use here")

    def extend(self, prepared: Any) -> None:
        raise tasks.CannotError("is of no use here")


def make_take(task: tasks.Task, allocate: tasks.Allocate = np.empty) -> tasks.Buffer:
    """Return a limit for the task: gathering, and assigning where steps are added; the columns are that function's."""
    return _Take(task, allocate)


def make_copy(task: tasks.Task) -> tasks.Buffer:
    """Return a limit for the task: a plain copy."""
    return _Copy(task)


class _Files(tasks.Buffer):
    """Columns like those of a prioritized buffer, a file each."""

    def __init__(self, task: tasks.Task) -> None:
        task.refuse_unless("prioritized")
        self._columns = _columns(task, np.empty) | {"priority": np.ones(task.capacity)}
        self._is_loaded = False

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        """Do nothing: every array was written to, and what it holds does not matter."""

    def save(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        for name, column in self._columns.items():
            with open(os.path.join(path, f"{name}.npy"), "wb") as file:
                np.save(file, column)

    def load(self, path: str) -> None:
        self._columns = {name: np.load(os.path.join(path, f"{name}.npy")) for name in self._columns}
        self._is_loaded = True

    def sample(self) -> Any:
        if not self._is_loaded:
            raise tasks.CannotError("is a limit of saving")


def make_files(task: tasks.Task) -> tasks.Buffer:
    """Return a limit for the task: `np.save` and `np.load` of the same bytes."""
    return _Files(task)
