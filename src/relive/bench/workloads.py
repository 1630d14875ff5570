"""What is measured: a task, and what is timed of it."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import itertools
import os
import pathlib
import shutil
import tempfile
from typing import Any, TypeAlias
import weakref

import numpy as np

from relive.bench import tasks
from relive.schema import schema as schema_lib

Call: TypeAlias = Callable[[], object]
Timed: TypeAlias = Callable[[tasks.Buffer, Iterator[Any]], Call]
"""Returns the call to time, given a full buffer and what it is fed. What the call returns is checked, unless None."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One table.

    Attributes:
        name: What the command calls it.
        title: What the tables call it.
        task: What every peer's buffer has to do.
        timed: What is timed of the task; None where the memory of a stored step is measured instead.
        part: What the value is of.
        parts: How many of those are in a call; 0 if there is one for each stored step.
    """

    name: str
    title: str
    task: tasks.Task
    timed: Timed | None
    part: str = "batch"
    parts: int = 1

    @property
    def unit(self) -> str:
        """What the values of the table are."""
        return f"{'microseconds' if self.timed else 'bytes'} a {self.part}"

    def quick(self) -> "Workload":
        """Return the same at a hundredth of the size, or less."""
        capacity = max(self.task.least, min(self.task.capacity // 100, 2_000))
        return dataclasses.replace(self, task=dataclasses.replace(self.task, capacity=capacity))


def adding(buffer: tasks.Buffer, following: Iterator[Any]) -> Call:
    """Time one step more, or one of every stream."""
    add, step = buffer.add, following.__next__
    return lambda: add(step())


def drawing(buffer: tasks.Buffer, following: Iterator[Any], *, adds: int = 0, updates: bool = False) -> Call:
    """Time `adds` steps more, a draw, and new priorities for what was drawn."""
    rng, step = np.random.default_rng(1), following.__next__
    priorities = itertools.cycle([rng.random(buffer.task.batch_size) + 0.01 for _ in range(16)]).__next__
    add, sample, update = buffer.add, buffer.sample, buffer.update

    def call() -> object:
        for _ in range(adds):
            add(step())
        drawn = sample()
        if updates:
            update(drawn, priorities())
        return drawn

    return call


def saving(buffer: tasks.Buffer, following: Iterator[Any]) -> Call:
    """Time saving, until all of it is on the disk."""
    path = _temporary_path(buffer)

    def call() -> None:
        buffer.save(str(path))
        for place in filter(pathlib.Path.is_file, path.parent.rglob("*")):
            with place.open("r+b") as file:  # Windows syncs only what is open for writing.
                os.fsync(file)

    return call


def loading(buffer: tasks.Buffer, following: Iterator[Any]) -> Call:
    """Time loading, and one draw."""
    path = str(_temporary_path(buffer))
    buffer.save(path)

    def call() -> object:
        buffer.load(path)
        return buffer.sample()

    return call


def _temporary_path(buffer: tasks.Buffer) -> pathlib.Path:
    """Return a path for what is saved; it goes with the buffer."""
    directory = tempfile.mkdtemp()
    weakref.finalize(buffer, shutil.rmtree, directory, ignore_errors=True)
    return pathlib.Path(directory, "saved")


_F6, _F17 = (schema_lib.Field((size,), "float32") for size in (6, 17))
_FRAME, _CLIP = schema_lib.Field((84, 84), "uint8"), schema_lib.Field((64, 64, 3), "uint8")

# Images are more than any cache holds, and leave room for those who store a stack twice a step.
_STACKS = tasks.Task(capacity=20_000, observation=_FRAME, frame_stack=4)
_FEW_STACKS = dataclasses.replace(_STACKS, batch_size=32)
_WIDE = tasks.Task(observation=_F17, action=_F6)
_CLIPS = tasks.Task(capacity=20_000, observation=_CLIP, batch_size=16, sequence_length=64, episode_lengths=(100, 300))
_PRIORITIZED = tasks.Task(prioritized=True)
_LOOP = tasks.Task(batch_size=32, prioritized=True)
_STREAMS = tasks.Task(streams=64, episode_lengths=(100, 100))
_SAVED = tasks.Task(observation=_F17, prioritized=True)

_ADDING, _UPDATING = functools.partial(drawing, adds=1), functools.partial(drawing, updates=True)
_LOOPING = functools.partial(drawing, adds=4, updates=True)

_ADDED = "an added step and a 5-step draw of 256 from"
_MILLION = "1,000,000 steps of f32[17] with priorities"


def _draws(
    name: str, title: str, task: tasks.Task, timed: Timed = drawing, sizes: Sequence[int] = (), **parts: Any
) -> Iterator[Workload]:
    """Yield a workload of arrays and one of tensors, for each size of a batch; the first size is not in the name."""
    for size in sizes or (task.batch_size,):
        sized = f"{name}-{size}" if size in sizes[1:] else name
        for kind, full_name in (("arrays", sized), ("tensors", f"tensors-{sized}")):
            told = dataclasses.replace(task, batch_size=size, returns=kind)
            yield Workload(full_name, title.format(size=size, kind=kind), told, timed, **parts)


_UPDATED = "a prioritized draw of {size} as {kind} and its update, "
_LOOPED = "a loop of 4 adds, a prioritized draw of 32 as {kind} and its update"

_ALL = (
    *_draws("uniform", "a draw of {size} as {kind}, observation f32[4]", tasks.Task(), sizes=(256, 32)),
    *_draws("uniform-17", "a draw of 256 as {kind}, observation f32[17], action f32[6]", _WIDE),
    *_draws("images-256", "a draw of 256 stacks of four 84x84 images as {kind}", _STACKS),
    *_draws("images-32", "a draw of 32 stacks of four 84x84 images as {kind}", _FEW_STACKS),
    *_draws("n-step", "a 5-step draw of {size} as {kind}, observation f32[4]", tasks.Task(n_step=5), sizes=(256, 32)),
    *(
        Workload(f"prioritized-{name}", words.format(size=256, kind="arrays"), task, _UPDATING)
        for name, size in (("10k", 10**4), ("100k", 10**5), ("10m", 10**7))
        for task in [tasks.Task(capacity=size, prioritized=True, returns="arrays")]
        for words in [f"{_UPDATED}{size:,} steps of f32[4]"]
    ),
    *_draws("prioritized-1m", f"{_UPDATED}1,000,000 steps of f32[4]", _PRIORITIZED, _UPDATING, sizes=(256, 32)),
    *_draws("loop", _LOOPED, _LOOP, _LOOPING, part="step", parts=4),
    *_draws("sequences", "a draw of 16 sequences of 64 steps as {kind}, observation u8[64, 64, 3]", _CLIPS),
    *(
        Workload(f"episodes-{name}", f"{_ADDED} {size:,} episodes of about 10 steps of f32[4]", task, _ADDING)
        for name, size in (("1k", 10**3), ("10k", 10**4), ("100k", 10**5))
        for task in [tasks.Task(capacity=10 * size, by_episode=True, n_step=5, episode_lengths=(5, 15))]
    ),
    Workload("add", "adding a step of f32[4]", tasks.Task(), adding, "step"),
    Workload("add-images", "adding a step of four stacked 84x84 images, one of them new", _STACKS, adding, "step"),
    *(
        Workload(
            f"extend{name}", f"adding a step of f32[4] of each of {task.streams:,} streams{how}", task, adding, *of
        )
        for size in (64, 1_024)
        for in_step, how in ((False, ""), (True, " that end in step"))
        for task in [dataclasses.replace(_STREAMS, streams=size, in_step=in_step)]
        for name in [f"{'' if size == 64 else '-1k'}{'-in-step' if in_step else ''}"]
        for of in [("step", size)]
    ),
    Workload("save", f"saving {_MILLION}, to the disk", _SAVED, saving, "stored step", 0),
    Workload("load", f"loading {_MILLION}, and one draw", _SAVED, loading, "stored step", 0),
    Workload("memory", "memory of a step of f32[4]", tasks.Task(), None, "step"),
    Workload("memory-prioritized", "memory of a step of f32[4] with a priority", _PRIORITIZED, None, "step"),
)

WORKLOADS = {one.name: one for one in _ALL}
