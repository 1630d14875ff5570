"""relive's buffers, and the limit beside them, with their columns in files that are mapped into memory.

The files are where temporary ones go (TMPDIR), an array each, and have no name: nothing is left of them afterwards.
"""

import os
import tempfile
from typing import Any

import numpy as np

from relive.bench import room
from relive.bench import tasks
from relive.bench.peers import limits
from relive.bench.peers import own
from relive.common import arrays

_PLAIN, _PRIORITIZED = 8, 32
"""Bytes of memory beside the columns that a step takes, and one with a priority."""


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays.Array:
    """Return an array in a file of its own, which is gone when the array is."""
    with tempfile.TemporaryFile() as file:
        return np.asarray(np.memmap(file, dtype, "w+", shape=shape))  # A memmap would be slower to take from.


def make(task: tasks.Task) -> tasks.Buffer:
    """Return relive's buffer for the task.

    Raises:
        CannotError: There is no room for it.
    """
    room.require(memory=task.capacity * (_PRIORITIZED if task.prioritized else _PLAIN), disk=_bytes(task))
    return own.make(task, allocate)


def make_take(task: tasks.Task) -> tasks.Buffer:
    """Return a limit for the task: gathering from columns like those.

    Raises:
        CannotError: There is no room for it.
    """
    room.require(memory=0, disk=_bytes(task))
    return limits.make_take(task, allocate)


def settle() -> None:
    """Wait until what was written is on the disk, where the system can say so: timing must not run beside that."""
    getattr(os, "sync", lambda: None)()


def _bytes(task: tasks.Task) -> int:
    """Return what the columns take: an observation, an action, a reward and two flags a step, at most."""
    return task.capacity * (task.observation.nbytes + task.action.nbytes + 6)
