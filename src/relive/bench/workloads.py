"""What is measured: a task, and what is timed of it."""

from collections.abc import Callable
import dataclasses
import functools
import glob
import itertools
import os
import shutil
import tempfile
from typing import Any, TypeAlias
import weakref

import numpy as np

from relive.bench import catalogue
from relive.bench import tasks
from relive.bench import verification
from relive.schema import schema as schemas

Call: TypeAlias = Callable[[], object]
Timed: TypeAlias = Callable[[tasks.Buffer, tasks.Following], Call]
"""Returns the call to time, given a full buffer and what it is fed. What the call returns is checked, unless None."""

_OVERFILL = 1.05
"""How often over a ring is filled before it is measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One table.

    Attributes:
        name: What the command calls it.
        title: What the tables call it.
        task: What every peer's buffer has to do.
        timed: What is timed of the task; None where the memory of a stored step is measured instead.
        steps: Equal parts of a call, by which the time is divided; 0 if there is one for each stored step.
        part: What such a part is called.
    """

    name: str
    title: str
    task: tasks.Task
    timed: Timed | None = None
    steps: int = 1
    part: str = "batch"

    @property
    def unit(self) -> str:
        """What the values of the table are."""
        return f"{'microseconds' if self.timed else 'bytes'} a {self.part}"

    def quick(self) -> "Workload":
        """Return the same at a hundredth of the size, or less."""
        task = self.task
        sequences = task.batch_size * task.episode_lengths[1] // 4 if task.sequence_length else 0
        least = 8 * max(task.streams, 70, sequences)
        task = dataclasses.replace(task, capacity=max(least, min(task.capacity // 100, 2_000)))
        return dataclasses.replace(self, task=task)

    def entrant(self, peer: catalogue.Peer) -> verification.Entrant:
        """Return a peer, ready to be timed: with a buffer that is full and more.

        What it returns in a small ring was looked at before.

        Raises:
            CannotError: The peer has nothing for the task.
        """
        assert self.timed
        task, make = self.task, peer.load()
        small = verification.Findings() if peer.is_limit else verification.check_small_ring(make, task)
        buffer, story, following = tasks.filled(make, task, int(task.capacity * _OVERFILL), 10_000)

        def check(drawn: Any, findings: verification.Findings) -> None:
            verification.check(task, story, buffer.answer(drawn), findings)

        call, steps = self.timed(buffer, following), self.steps or task.capacity
        return verification.Entrant(call, None if peer.is_limit else check, small, steps)


def adding(buffer: tasks.Buffer, following: tasks.Following) -> Call:
    """Time one step more, or one of every stream."""
    add, step = buffer.add, following().__next__
    return lambda: add(step())


def drawing(buffer: tasks.Buffer, following: tasks.Following, *, adds: int = 0, updates: bool = False) -> Call:
    """Time `adds` steps more, a draw, and new priorities for what was drawn."""
    rng, step = np.random.default_rng(1), following().__next__ if adds else None
    priorities = itertools.cycle([rng.random(buffer.task.batch_size) + 0.01 for _ in range(16)]).__next__
    add, sample, update = buffer.add, buffer.sample, buffer.update

    def call() -> object:
        if step:
            for _ in range(adds):
                add(step())
        drawn = sample()
        if updates:
            update(drawn, priorities())
        return drawn

    return call


def saving(buffer: tasks.Buffer, following: tasks.Following) -> Call:
    """Time saving, until all of it is on the disk."""
    path = _temporary_path(buffer)

    def call() -> None:
        buffer.save(path)
        for place in glob.glob(f"{path}*") + glob.glob(f"{path}/*"):
            if os.path.isfile(place):
                descriptor = os.open(place, os.O_RDWR)  # Windows syncs only what is open for writing.
                os.fsync(descriptor)
                os.close(descriptor)

    return call


def loading(buffer: tasks.Buffer, following: tasks.Following) -> Call:
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


_F4, _F6, _F17 = (schemas.Field((size,), "float32") for size in (4, 6, 17))
_FRAME, _CLIP = schemas.Field((84, 84), "uint8"), schemas.Field((64, 64, 3), "uint8")

# What several workloads have in common. Images are more than any cache holds, and leave room for those who store a
# stack twice a step.
_STACKS: dict[str, Any] = {"observation": _FRAME, "frame_stack": 4, "capacity": 20_000}
_UPDATED: dict[str, Any] = {"prioritized": True, "timed": functools.partial(drawing, updates=True)}
_LOOPED: dict[str, Any] = {"prioritized": True, "timed": functools.partial(drawing, adds=4, updates=True), "steps": 4}
_ADDED: dict[str, Any] = {"timed": adding, "part": "step"}
_STREAMS: dict[str, Any] = {"streams": 64, "steps": 64, "episode_lengths": (100, 100)}
_SAVED: dict[str, Any] = {"prioritized": True, "observation": _F17, "steps": 0, "part": "stored step"}
_SEQUENCES: dict[str, Any] = {"observation": _CLIP, "capacity": 20_000, "sequence_length": 64, "batch_size": 16}
_SEQUENCES |= {"episode_lengths": (100, 300)}
_HELD: dict[str, Any] = {"timed": None, "part": "step"}
_SHORT: dict[str, Any] = {"by_episode": True, "n_step": 5, "episode_lengths": (5, 15)}
_FEW = "episodes of about 10 steps of f32[4]"


def _of(name: str, title: str, **settings: Any) -> Workload:
    """Return a workload, of a million steps if not said otherwise, given its settings and those of its task."""
    of_task: dict[str, Any] = {"capacity": 10**6, "observation": _F4}
    of_task |= {key: settings.pop(key) for key in settings.keys() & tasks.Task.__dataclass_fields__}
    of_workload: dict[str, Any] = {"timed": drawing} | settings
    return Workload(name=name, title=title, task=tasks.Task(**of_task), **of_workload)


FAMILIES = {
    "uniform": (
        _of("uniform", "a draw of 256, observation f32[4]"),
        _of("uniform-17", "a draw of 256, observation f32[17], action f32[6]", observation=_F17, action=_F6),
    ),
    "images": (
        _of("images-32", "a draw of 32 stacks of four 84x84 images", batch_size=32, **_STACKS),
        _of("images-256", "a draw of 256 stacks of four 84x84 images", **_STACKS),
    ),
    "n-step": (_of("n-step", "a 5-step draw of 256, observation f32[4]", n_step=5),),
    "prioritized": tuple(
        _of(f"prioritized-{name}", f"a prioritized draw of 256 and its update, {size:,} steps of f32[4]", **task)
        for name, size in {"10k": 10**4, "100k": 10**5, "1m": 10**6, "10m": 10**7}.items()
        for task in [_UPDATED | {"capacity": size}]
    ),
    "loop": (
        _of("loop", "a loop of 4 adds, a prioritized draw of 32 and its update", batch_size=32, part="step", **_LOOPED),
    ),
    "sequences": (_of("sequences", "a draw of 16 sequences of 64 steps, observation u8[64, 64, 3]", **_SEQUENCES),),
    "episodes": tuple(
        _of(f"episodes-{name}", f"an added step and a 5-step draw of 256 from {size:,} {_FEW}", **task)
        for name, size in {"1k": 10**3, "10k": 10**4, "100k": 10**5}.items()
        for task in [_SHORT | {"timed": functools.partial(drawing, adds=1), "capacity": 10 * size}]
    ),
    "add": (
        _of("add", "adding a step of f32[4]", **_ADDED),
        _of("add-images", "adding a step of four stacked 84x84 images, one of them new", **_ADDED, **_STACKS),
    ),
    "extend": (_of("extend", "adding a step of f32[4] of each of 64 streams", **_ADDED, **_STREAMS),),
    "saving": (
        _of("save", "saving 1,000,000 steps of f32[17] with priorities, to the disk", timed=saving, **_SAVED),
        _of("load", "loading 1,000,000 steps of f32[17] with priorities, and one draw", timed=loading, **_SAVED),
    ),
    "memory": (
        _of("memory", "memory of a step of f32[4]", **_HELD),
        _of("memory-prioritized", "memory of a step of f32[4] with a priority", prioritized=True, **_HELD),
    ),
}
"""The workloads, by a name for each and its like."""

WORKLOADS = {one.name: one for family in FAMILIES.values() for one in family}
