"""relive's own buffers of columns, also in files that are mapped into memory, and its sum tree alone.

Mapped files are where temporary ones go (TMPDIR), an array each, and have no name: nothing is left of them afterwards.
"""

from collections.abc import Iterable, Iterator
import contextlib
import functools
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

import relive
from relive.bench import machine
from relive.bench import tasks
from relive.bench import verification
from relive.bench.peers import limits
from relive.common import arrays
from relive.kernels import choice
from relive.samplers import sum_tree
from relive.testing import synthetic

_PLAIN, _PRIORITIZED = 8, 32
"""Bytes of memory beside the columns that a step takes, and one with a priority."""
_BATCH = 256
_CHUNK = 1_000_000
_BYTES = 16
"""Of memory that a leaf takes, with the levels above it."""
_BEFORE = np.array([0, 0, 1, 3])
"""The weight of the leaves before a leaf, among the four that it is one of."""


class _Columns(tasks.Buffer):
    """The ring, prioritized or sequence buffer that the task asks for."""

    def __init__(self, task: tasks.Task, allocate: tasks.Allocate | None = None) -> None:
        self._batch_size, self._streams = task.batch_size, task.streams
        schema = relive.Schema(
            relive.Field(task.observation.shape, task.observation.dtype),
            relive.Field(task.action.shape, task.action.dtype),
            reward=relive.Field((), "float32"),
        )
        self._is_stacked = task.frame_stack > 1
        common: dict[str, Any] = {"streams": task.streams, "seed": 0}
        if allocate:
            common["storage"] = relive.ColumnStorage(schema, task.capacity, allocate=allocate)
        priorities: dict[str, Any] = {"alpha": task.alpha, "beta": task.beta}
        windows: dict[str, Any] = {"n_step": task.n_step, "gamma": task.gamma, "frame_stack": task.frame_stack}
        self.buffer: Any
        if task.sequence_length:
            task.refuse("frame_stack")
            self.buffer = relive.SequenceReplayBuffer(
                task.capacity, schema, length=task.sequence_length, prioritized=task.prioritized, **priorities, **common
            )
        elif task.prioritized:
            self.buffer = relive.PrioritizedReplayBuffer(task.capacity, schema, **windows, **priorities, **common)
        else:
            self.buffer = relive.RingReplayBuffer(task.capacity, schema, **windows, **common)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        for episode in episodes:
            if episode.terminated or episode.truncated:
                self.buffer.add_episode(
                    episode.frames, episode.actions, episode.rewards, terminated=episode.terminated, stream=0
                )
            else:
                super().fill([episode])

    def prepared(self, step: synthetic.Step) -> Any:
        # The buffer stacks frames itself: it is given the newest one.
        frames = (step.observation, step.next_observation)
        observation, following = (frame[-1] for frame in frames) if self._is_stacked else frames
        return {
            "observation": observation,
            "action": step.action,
            "reward": step.reward,
            "next_observation": following,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "stream": 0,
        }

    def prepared_streams(self, steps: list[synthetic.Step]) -> Any:
        each = [self.prepared(step) for step in steps]
        return {name: np.stack([step[name] for step in each]) for name in each[0] if name != "stream"}

    def add(self, prepared: Any) -> None:
        self.buffer.add(**prepared)

    def extend(self, prepared: Any) -> None:
        self.buffer.extend(**prepared)

    def sample(self) -> Any:
        return self.buffer.sample(self._batch_size)

    def update(self, sample: Any, priorities: npt.NDArray[np.float64]) -> None:
        self.buffer.update_priorities(sample.keys, priorities)

    def save(self, path: str) -> None:
        self.buffer.save(path)

    def load(self, path: str) -> None:
        self.buffer = type(self.buffer).load(path)

    def answer(self, sample: Any) -> tasks.Answer:
        common = {"observation": sample.observation, "action": sample.action, "reward": sample.reward}
        if isinstance(sample, relive.SequenceBatch):
            return common | {"terminal": sample.terminated, "mask": sample.mask, "weights": sample.weights}
        return common | {
            "next_observation": sample.next_observation,
            "terminal": sample.is_terminal,
            "discount": sample.next_discount,
            "weights": sample.weights,
        }


class _Compiled(_Columns):
    """The same, on kernels that numba compiles."""

    def __init__(self, task: tasks.Task) -> None:
        try:
            with _compiled_kernels():
                super().__init__(task)
        except relive.MissingExtraError as error:
            raise tasks.CannotError(str(error)) from error

    def load(self, path: str) -> None:
        with _compiled_kernels():
            super().load(path)


@contextlib.contextmanager
def _compiled_kernels() -> Iterator[None]:
    """Have buffers that are made or loaded meanwhile run on compiled kernels."""
    before = choice.chosen().name
    relive.use_kernels("numba")
    try:
        yield
    finally:
        relive.use_kernels(before)


make, make_compiled = _Columns, _Compiled


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays.Array:
    """Return an array in a file of its own, which is gone when the array is."""
    with tempfile.TemporaryFile() as file:
        return np.asarray(np.memmap(file, dtype, "w+", shape=shape))  # A memmap would be slower to take from.


def make_mapped(task: tasks.Task) -> tasks.Buffer:
    """Return relive's buffer for the task.

    Raises:
        CannotError: There is no room for it.
    """
    machine.require(memory=task.capacity * (_PRIORITIZED if task.prioritized else _PLAIN), disk=_bytes(task))
    return make(task, allocate)


def make_mapped_take(task: tasks.Task) -> tasks.Buffer:
    """Return a limit for the task: gathering from columns like those.

    Raises:
        CannotError: There is no room for it.
    """
    machine.require(disk=_bytes(task))
    return limits.make_take(task, allocate)


def _bytes(task: tasks.Task) -> int:
    """Return what the columns take: an observation, an action, a reward and two flags a step, at most."""
    return task.capacity * (task.observation.nbytes + task.action.nbytes + 6)


def tree(size: int) -> verification.Entrant:
    """Return a stratified draw from a tree of that many leaves, and their weights set again.

    Leaf i weighs i % 4, whatever is set: so it is known where each leaf lies in the total, and which a draw may find.

    Raises:
        CannotError: There is no room for it.
    """
    machine.require(memory=size * _BYTES)
    weights, rng = sum_tree.SumTree(size), np.random.default_rng(0)
    for start in range(0, size, _CHUNK):
        leaves = np.arange(start, min(start + _CHUNK, size))
        weights.set(leaves, leaves & 3)

    def call() -> arrays.Ints:
        leaves = weights.stratified_sample(_BATCH, rng)
        weights.set(leaves, leaves & 3)
        return leaves

    return verification.Entrant(call, functools.partial(check_tree, weights))


def check_tree(tree: sum_tree.SumTree, drawn: arrays.Ints, findings: verification.Findings) -> None:
    """Add to the findings what is wrong with leaves that were drawn [B], and with what is set.

    Each stratum of the total has one leaf that lies in it. Leaves whose weight is set to zero leave exactly what the
    others weigh, and come back with theirs: the tree stays as it is.
    """
    leaves, weights = np.sort(drawn), np.sort(drawn) & 3
    total = _mass(np.array([tree.capacity]))[0]
    stratum, start = np.arange(len(leaves)), _mass(leaves)
    is_found = (start < (stratum + 1) * total / len(leaves)) & (start + weights > stratum * total / len(leaves))
    distinct = np.unique(drawn)
    totals = [tree.total]
    for values in (np.zeros(len(distinct)), distinct & 3):
        tree.set(distinct, values)
        totals.append(tree.total)
    is_set = totals == [total, total - (distinct & 3).sum(), total]
    findings.add(
        len(drawn),
        {"leaf without weight": weights == 0, "stratum": ~is_found, "total": np.full(len(drawn), not is_set)},
    )


def _mass(leaves: arrays.Ints) -> arrays.Ints:
    """Return the weight of all leaves before each of `leaves` [k]."""
    return np.asarray(6 * (leaves // 4) + _BEFORE[leaves & 3])
