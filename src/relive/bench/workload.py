"""A workload: a task, and what is timed of it. The modules in `workloads` each hold a family of them."""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import glob
import itertools
import os
import shutil
import tempfile
from typing import Any, TypeAlias
import weakref

import numpy as np
import numpy.typing as npt

from relive.bench import rounds
from relive.bench import tasks
from relive.testing import synthetic

Timed: TypeAlias = Callable[[tasks.Buffer, "Feed"], rounds.Call]
"""Returns the call to time, given a full buffer and what it is fed. What the call returns is checked, unless None."""

_PRIORITIES = 16
_MOST_STEPS, _MOST_BYTES = 4_000, 1 << 26


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One row of the tables.

    Attributes:
        name: What the command calls it.
        family: A name for this and its like.
        title: What the tables call it.
        task: What the buffer has to do.
        timed: What is timed; None where the memory of a stored step is measured instead.
        steps: Equal parts of a call, by which the time is divided.
        part: What such a part is called.
        why: Why others are faster, said where one is.
    """

    name: str
    family: str
    title: str
    task: tasks.Task
    timed: Timed | None
    steps: int = 1
    part: str = "batch"
    why: str = ""

    @property
    def unit(self) -> str:
        """What the values of the table are."""
        return f"microseconds a {self.part}" if self.timed else f"bytes a {self.part}"

    def quick(self) -> "Workload":
        """Return the same at a hundredth of the size, or less."""
        task = self.task
        least = 8 * max(task.streams, 70, task.batch_size * task.episode_lengths[1] // 4 if task.sequence_length else 0)
        capacity = max(least, min(task.capacity // 100, 2_000))
        return dataclasses.replace(self, task=tasks.with_capacity(task, capacity))


class Feed:
    """What a buffer is fed while it is timed, prepared beforehand: steps that go on from those that filled it.

    Args:
        buffer: Prepares them.
        task: Says how many streams there are, and how large a batch is.
        story: What the streams live through.
        episodes: What comes next; the whole ones among them are fed over and over.
    """

    def __init__(
        self,
        buffer: tasks.Buffer,
        task: tasks.Task,
        story: synthetic.Story,
        episodes: Iterable[synthetic.Episode],
    ) -> None:
        self._buffer, self._task, self._story, self._episodes = buffer, task, story, episodes
        rng = np.random.default_rng(1)
        drawn = [rng.random(task.batch_size) + 0.01 for _ in range(_PRIORITIES)]
        self.priorities: Iterator[npt.NDArray[np.float64]] = itertools.cycle(drawn)

    def steps(self) -> Iterator[Any]:
        """Give single steps, as the buffer's `add` takes them, without end."""
        step_bytes = 2 * self._task.observation.nbytes * self._task.frame_stack
        most = min(_MOST_STEPS, _MOST_BYTES // step_bytes)
        first: list[Any] = []
        whole: list[Any] = []
        for episode in self._episodes:
            prepared = [self._buffer.prepared(step) for step in episode.steps()]
            (first if episode.start else whole).extend(prepared)
            if len(whole) >= most:
                break
        return itertools.chain(first, itertools.cycle(whole))

    def rows(self) -> Iterator[Any]:
        """Give a step of every stream, as the buffer's `extend` takes it, without end.

        Each stream lives through an episode of its own over and over; all are of one length, and begin out of step.
        """
        length, streams = int(self._story.lengths[1]), self._task.streams
        steps = [list(self._story.part(number, 0, length).steps()) for number in range(1, streams + 1)]
        rows = [[steps[k][(t + 7 * k) % length] for k in range(streams)] for t in range(length)]
        return itertools.cycle([self._buffer.prepared_streams(row) for row in rows])


def sampling(buffer: tasks.Buffer, feed: Feed) -> rounds.Call:
    """Time a draw."""
    return buffer.sample


def updating(buffer: tasks.Buffer, feed: Feed) -> rounds.Call:
    """Time a draw and new priorities for what was drawn."""
    sample, update, priorities = buffer.sample, buffer.update, feed.priorities.__next__

    def call() -> object:
        drawn = sample()
        update(drawn, priorities())
        return drawn

    return call


def adding(buffer: tasks.Buffer, feed: Feed) -> rounds.Call:
    """Time one step more."""
    add, step = buffer.add, feed.steps().__next__

    def call() -> None:
        add(step())

    return call


def adding_and_sampling(buffer: tasks.Buffer, feed: Feed) -> rounds.Call:
    """Time one step more, and a draw."""
    add, step, sample = buffer.add, feed.steps().__next__, buffer.sample

    def call() -> object:
        add(step())
        return sample()

    return call


def extending(buffer: tasks.Buffer, feed: Feed) -> rounds.Call:
    """Time one step more of every stream."""
    extend, row = buffer.extend, feed.rows().__next__

    def call() -> None:
        extend(row())

    return call


def saving(buffer: tasks.Buffer, feed: Feed) -> rounds.Call:
    """Time saving, until all of it is on the disk."""
    path = _temporary_path(buffer)

    def call() -> None:
        buffer.save(path)
        _sync(path)

    return call


def loading(buffer: tasks.Buffer, feed: Feed) -> rounds.Call:
    """Time loading, and one draw."""
    path = _temporary_path(buffer)
    buffer.save(path)

    def call() -> object:
        buffer.load(path)
        return buffer.sample()

    return call


def _temporary_path(buffer: tasks.Buffer) -> str:
    """Return a path for what is saved; it goes with the buffer."""
    directory = tempfile.mkdtemp()
    weakref.finalize(buffer, shutil.rmtree, directory, ignore_errors=True)
    return os.path.join(directory, "saved")


def _sync(path: str) -> None:
    """Wait until a file, or the files of a directory, are on the disk."""
    for place in glob.glob(f"{path}*") + glob.glob(f"{path}/*"):
        if os.path.isfile(place):
            descriptor = os.open(place, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def looping(buffer: tasks.Buffer, feed: Feed) -> rounds.Call:
    """Time four steps more, a draw, and new priorities for what was drawn."""
    add, step, sample, update = buffer.add, feed.steps().__next__, buffer.sample, buffer.update
    priorities = feed.priorities.__next__

    def call() -> object:
        add(step())
        add(step())
        add(step())
        add(step())
        drawn = sample()
        update(drawn, priorities())
        return drawn

    return call
