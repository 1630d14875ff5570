"""Memory: a new buffer touches no page, and steps and draws take little more than their fields."""

from collections.abc import Callable
import dataclasses
import gc
import json
import os
import pathlib
import subprocess
import sys
import tracemalloc
import types
from typing import Any

import numpy as np
import pytest

import relive

Buffer = relive.ColumnReplayBuffer[Any]
STATM = pathlib.Path("/proc/self/statm")
MIB = 2**20

SCHEMA = relive.Schema(relive.Field(4, "float32"), relive.Field((), "int64"), reward=relive.Field((), "float32"))
IMAGES = relive.Schema(relive.Field((84, 84), "uint8"), relive.Field((), "int64"), reward=relive.Field((), "float32"))

KINDS: dict[str, Callable[..., Buffer]] = {
    "ring": relive.RingReplayBuffer,
    "streams": lambda *arguments: relive.RingReplayBuffer(*arguments, streams=50),
    "limited draws": lambda *arguments: relive.RingReplayBuffer(*arguments, max_times_sampled=2),
    "priorities": relive.PrioritizedReplayBuffer,
    "sequences": lambda *arguments: relive.SequenceReplayBuffer(*arguments, length=8),
}


def fill(buffer: Buffer, episodes: int, length: int) -> None:
    """Add episodes of zeros."""
    assert buffer.schema is not None
    field = buffer.schema.fields["observation"]
    observations = np.zeros((length + 1, *field.shape), field.dtype)
    if buffer.streams == 1:
        for _ in range(episodes):
            buffer.add_episode(observations, np.zeros(length, int), np.zeros(length), terminated=True)
    else:
        zeros = np.zeros((buffer.streams, *field.shape), field.dtype)
        for t in range(episodes * length // buffer.streams):
            is_last = np.full(buffer.streams, t % length == length - 1)
            buffer.extend(zeros, np.zeros(buffer.streams, int), np.zeros(buffer.streams), None, terminated=is_last)


def resident() -> int:
    """Return how many bytes of this process are in memory."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def taken(capacity: int) -> dict[str, int]:
    """Return how many bytes making a buffer of each kind brings into memory."""
    made, sizes = [], {}
    for kind, make in KINDS.items():
        before = resident()
        made.append(make(capacity, SCHEMA))
        sizes[kind] = resident() - before
    assert not any(map(len, made))
    return sizes


@pytest.mark.skipif(not STATM.exists(), reason="needs the counts of Linux")
def test_a_buffer_touches_no_memory_before_it_is_written_to() -> None:
    """In a separate process: memory that other buffers have freed is cleared, and so touched."""
    program = "import json; from relive.buffers import memory_test; print(json.dumps(memory_test.taken(10_000_000)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    sizes = json.loads(done.stdout)
    assert sizes.keys() == KINDS.keys()
    assert max(sizes.values()) < 8 * MIB, sizes


def arrays_of(root: object) -> list[np.ndarray[Any, Any]]:
    """Return the arrays that an object holds, each once, and none that is a view of another."""
    found: dict[int, np.ndarray[Any, Any]] = {}
    seen: dict[int, object] = {}
    queue = [root]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type | types.ModuleType | types.FunctionType):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, np.ndarray):
            while isinstance(thing.base, np.ndarray):
                thing = thing.base
            found[id(thing)] = thing
        else:
            queue += gc.get_referents(thing)
    return list(found.values())


# Bytes a step beside the schema's, at most, with those of an episode of 500 steps; less is better.
BESIDE = {"ring": 17, "streams": 17, "limited draws": 21, "priorities": 38, "sequences": 17}


@pytest.mark.parametrize("kind", BESIDE)
def test_a_step_takes_little_more_memory_than_its_fields(kind: str) -> None:
    capacity = 50_000
    buffer = KINDS[kind](capacity, SCHEMA)
    fill(buffer, episodes=110, length=500)
    assert buffer.is_full
    taken = sum(array.nbytes for array in arrays_of(buffer))
    assert taken <= (SCHEMA.nbytes + BESIDE[kind]) * capacity
    assert taken - MIB / 16 <= buffer.get_stats().nbytes <= taken


def num_bytes(batch: Any) -> int:
    """Return the bytes of the arrays of a batch."""
    return sum(array.nbytes for array in arrays_of([getattr(batch, f.name) for f in dataclasses.fields(batch)]))


# How many bytes a row that is read may be needed for a moment, beside the answer; less is better. A row of numbers such
# as slots and keys is 8, so this is how many of them there are at once.
SCRATCH: dict[str, tuple[Callable[[], Buffer], int, int, int]] = {
    "transitions": (lambda: relive.RingReplayBuffer(1_000, SCHEMA, seed=0), 256, 256, 10),
    "5 steps": (lambda: relive.RingReplayBuffer(1_000, SCHEMA, n_step=5, seed=0), 256, 256, 24),
    "priorities": (lambda: relive.PrioritizedReplayBuffer(1_000, SCHEMA, seed=0), 256, 256, 10),
    "images": (lambda: relive.RingReplayBuffer(1_000, IMAGES, seed=0), 32, 32, 8),
    "frame stacks": (lambda: relive.RingReplayBuffer(1_000, IMAGES, frame_stack=4, seed=0), 32, 128, 4),
    "sequences": (lambda: relive.SequenceReplayBuffer(1_000, IMAGES, length=64, seed=0), 16, 1_024, 4),
    "padded sequences": (lambda: relive.SequenceReplayBuffer(1_000, IMAGES, length=64, pad=True, seed=0), 16, 1_024, 4),
}


@pytest.mark.parametrize("kind", SCRATCH)
def test_a_draw_allocates_its_answer_and_a_few_numbers_a_row(kind: str) -> None:
    make, batch_size, num_rows, numbers = SCRATCH[kind]
    buffer = make()
    fill(buffer, episodes=13, length=100)
    for _ in range(3):
        buffer.sample(batch_size)
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        batch = buffer.sample(batch_size)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    answer = num_bytes(batch)
    assert peak - before - answer < 8 * numbers * num_rows + 8_192
    assert after - before - answer < 8_192
