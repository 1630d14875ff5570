"""What it takes to save a full buffer with priorities, and to load it."""

from collections.abc import Callable
import functools

from relive.bench import tasks
from relive.bench import workload
from relive.testing import synthetic

_TASK = tasks.Task(capacity=1_000_000, observation=synthetic.Kind((17,), "float32"), prioritized=True)
_WORKLOAD: Callable[..., workload.Workload] = functools.partial(
    workload.Workload,
    family="saving",
    task=_TASK,
    steps=_TASK.capacity,
    part="stored step",
)

WORKLOADS = (
    _WORKLOAD(
        name="save",
        title="saving 1,000,000 steps of f32[17] with priorities, to the disk",
        timed=workload.saving,
        why="relive takes a checksum of every byte. What is pickled can be read by nobody else, and runs code.",
    ),
    _WORKLOAD(
        name="load",
        title="loading 1,000,000 steps of f32[17] with priorities, and one draw",
        timed=workload.loading,
        why="relive checks every byte, and makes sure that what it reads can be: a file may come from anywhere.",
    ),
)
