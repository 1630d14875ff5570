"""relive's own buffers of columns."""

from collections.abc import Iterable, Iterator
import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt

import relive
from relive.bench import tasks
from relive.kernels import choice
from relive.testing import synthetic


class _Columns(tasks.Buffer):
    """The ring, prioritized or sequence buffer that the task asks for."""

    def __init__(self, task: tasks.Task, allocate: tasks.Allocate | None) -> None:
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
        with _compiled_kernels():
            super().__init__(task, None)

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


def make_compiled(task: tasks.Task) -> tasks.Buffer:
    """Return relive's buffer for the task, on compiled kernels."""
    try:
        return _Compiled(task)
    except relive.MissingExtraError as error:
        raise tasks.CannotError(str(error)) from error


def make(task: tasks.Task, allocate: tasks.Allocate | None = None) -> tasks.Buffer:
    """Return relive's buffer for the task, with columns of its own making or of that function's."""
    return _Columns(task, allocate)
