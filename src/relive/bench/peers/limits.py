"""What numpy and Python take without a library: the least for the same bytes, and a buffer that one would write."""

import collections
from collections.abc import Iterable
import itertools
from typing import Any

import numpy as np

from relive.bench import tasks
from relive.schema import schema as schema_lib
from relive.testing import synthetic

_BATCHES = 4096
"""Batches drawn beforehand: so many that their rows are not in a cache because they were read a moment ago."""


class _Take(tasks.Buffer):
    """Gathers the rows of a batch, which were drawn beforehand, by a `take` a column; assigns where steps are added.

    It need not be filled: every byte of its columns was written to, and what it holds does not matter.
    """

    lacks = ("by_episode", "prioritized")

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        kinds = {"observation": task.observation, "action": task.action, "reward": schema_lib.Field((), "float32")}
        kinds |= dict.fromkeys(("terminated", "truncated"), schema_lib.Field((), "bool"))
        self._columns = {
            name: np.full((task.capacity, *kind.shape), kind.dtype != "bool", kind.dtype)
            for name, kind in kinds.items()
        }
        self._cursor = 0
        spans = np.arange(task.sequence_length) if task.sequence_length else np.arange(1 - task.frame_stack, 1)
        first = np.random.default_rng(0).integers(
            task.frame_stack, task.capacity - max(task.sequence_length, task.n_step), (_BATCHES, task.batch_size)
        )
        self._rows = itertools.cycle(first[..., np.newaxis] + spans if len(spans) > 1 else first)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        pass

    def prepared(self, step: synthetic.Step) -> Any:
        newest = step.observation[-1] if self.task.frame_stack > 1 else step.observation
        return newest, step.action, step.reward, step.terminated, step.truncated

    def add(self, prepared: Any) -> None:
        start, stop = self._cursor, self._cursor + self.task.streams
        place = slice(start, stop) if self.task.streams > 1 else start
        for column, value in zip(self._columns.values(), prepared, strict=True):
            column[place] = value
        self._cursor = stop if stop + self.task.streams <= self.task.capacity else 0

    def sample(self) -> Any:
        rows, columns, task = next(self._rows), self._columns, self.task
        batch = {"observation": columns["observation"].take(rows, axis=0)}
        anchors = rows if task.sequence_length or rows.ndim == 1 else rows[:, -1]
        for name in ("action", "reward", "terminated"):
            batch[name] = columns[name].take(anchors, axis=0)
        if not task.sequence_length:
            batch["next_observation"] = columns["observation"].take(rows + task.n_step, axis=0)
        return batch


class _Copy(_Take):
    """Copies a batch that was gathered beforehand."""

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self._batches = itertools.cycle([super(_Copy, self).sample() for _ in range(2)])
        del self._columns, self._rows

    def add(self, prepared: Any) -> None:
        raise tasks.CannotError("has no way to add one step")

    def sample(self) -> Any:
        return {name: column.copy() for name, column in next(self._batches).items()}


class _Naive(tasks.Buffer):
    """A deque of episodes, and numpy's choice among them in proportion to their lengths."""

    lacks = ("frame_stack", "sequence_length", "prioritized", "streams")
    is_for_episodes = True

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self._rng = np.random.default_rng(0)
        self._episodes: collections.deque[list[synthetic.Step]] = collections.deque()
        self._is_open, self._steps = False, 0

    def add(self, prepared: Any) -> None:
        if not self._is_open:
            self._episodes.append([])
        self._episodes[-1].append(prepared)
        self._is_open = not (prepared.terminated or prepared.truncated)
        self._steps += 1
        while self._steps > self.task.capacity:
            self._steps -= len(self._episodes.popleft())

    def sample(self) -> Any:
        episodes, gamma = list(self._episodes), self.task.gamma
        lengths = np.array([len(episode) for episode in episodes])
        chosen = self._rng.choice(len(episodes), self.task.batch_size, p=lengths / lengths.sum())
        starts = self._rng.integers(lengths[chosen])
        batch = []
        for number, start in zip(chosen.tolist(), starts.tolist(), strict=True):
            steps = episodes[number][start : start + self.task.n_step]
            reward = sum(step.reward * gamma**k for k, step in enumerate(steps))
            discount = 0.0 if steps[-1].terminated else gamma ** len(steps)
            first = (steps[0].observation, steps[0].action, reward)
            batch.append((*first, steps[-1].next_observation, steps[-1].terminated, discount))
        return batch

    def answer(self, sample: Any) -> tasks.Answer:
        names = ("observation", "action", "reward", "next_observation", "terminal", "discount")
        return dict(zip(names, map(np.array, zip(*sample, strict=True)), strict=True))
