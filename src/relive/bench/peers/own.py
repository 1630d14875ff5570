"""relive's own buffers: of columns, with both kinds of kernels, and of whole episodes."""

from collections.abc import Iterable
import importlib
from typing import Any

import numpy as np

import relive
from relive.bench import catalogue
from relive.bench import tasks
from relive.common import arrays as arrays_lib
from relive.testing import synthetic

_SAME = {name: name for name in ("observation", "action", "reward", "next_observation")}
_ENDS = {"terminal": "is_terminal", "discount": "next_discount"}


class _Columns(tasks.Buffer):
    """The ring, prioritized or sequence buffer that the task asks for."""

    kernels = "numpy"

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self.names = _SAME | {"weights": "weights", "mask": "mask"} | _ENDS
        if task.sequence_length:
            self.names |= {"terminal": "terminated"}
        schema = relive.Schema(task.observation, task.action, reward=relive.Field((), "float32"))
        settings: dict[str, Any] = {"streams": task.streams, "seed": 0}
        kind: Any = relive.PrioritizedReplayBuffer if task.prioritized else relive.RingReplayBuffer
        if task.sequence_length:
            kind = relive.SequenceReplayBuffer
            settings |= {"length": task.sequence_length, "prioritized": task.prioritized}
        else:
            settings |= {"n_step": task.n_step, "gamma": task.gamma, "frame_stack": task.frame_stack}
        if task.prioritized:
            settings |= {"alpha": task.alpha, "beta": task.beta}
        self._torch: Any = None
        if task.returns == "tensors":
            try:
                self._torch = importlib.import_module("relive.integrations.torch")
            except relive.MissingExtraError as error:
                raise tasks.CannotError(catalogue.MISSING) from error
        self._use_kernels()
        self.buffer = kind(task.capacity, schema, **settings)

    def _use_kernels(self) -> None:
        try:
            relive.use_kernels(self.kernels)
        except relive.MissingExtraError as error:
            raise tasks.CannotError(catalogue.MISSING) from error

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        for episode in episodes:
            if episode.terminated or episode.truncated:
                rows = episode.rows
                self.buffer.add_episode(episode.frames, rows.action, rows.reward, terminated=episode.terminated)
            else:
                super().fill([episode])

    def prepared(self, step: synthetic.Step) -> Any:
        columns = dict(vars(step))
        if self.task.frame_stack > 1:  # The buffer stacks frames itself: it is given the newest one.
            columns |= {name: columns[name][-1] for name in ("observation", "next_observation")}
        return columns

    def add(self, prepared: Any) -> None:
        if self.task.streams > 1:
            self.buffer.extend(**prepared)
        else:
            self.buffer.add(**prepared)

    def sample(self) -> Any:
        batch = self.buffer.sample(self.task.batch_size)
        return self._torch.as_tensors(batch) if self._torch else batch

    def update(self, sample: Any, priorities: arrays_lib.Floats) -> None:
        self.buffer.update_priorities(sample.keys, priorities)

    def save(self, path: str) -> None:
        self.buffer.save(path)

    def load(self, path: str) -> None:
        self._use_kernels()
        self.buffer = type(self.buffer).load(path)


class _CompiledColumns(_Columns):
    """The same with kernels compiled by numba."""

    kernels = "numba"


class _Episodes(tasks.Buffer):
    """EpisodeReplayBuffer, by its calls that do not wait."""

    lacks = ("frame_stack", "sequence_length", "prioritized", "streams")
    is_for_episodes = True
    names = _SAME | _ENDS

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self._episode_id = ""
        self._buffer = relive.EpisodeReplayBuffer[Any, Any](max_transitions=task.capacity, seed=0)

    def add(self, prepared: Any) -> None:
        if not self._episode_id:
            self._episode_id = self._buffer.start_episode_nowait("agent")
        self._buffer.append_observation_action_reward_nowait(
            self._episode_id, prepared.observation, prepared.action, prepared.reward
        )
        if prepared.terminated or prepared.truncated:
            status: relive.FinalStatus = "COMPLETED" if prepared.terminated else "TRUNCATED"
            self._buffer.end_episode_nowait(self._episode_id, prepared.next_observation, status)
            self._episode_id = ""

    def sample(self) -> Any:
        return self._buffer.sample_n_step_nowait(self.task.batch_size, self.task.n_step, self.task.gamma)

    def answer(self, sample: Any) -> tasks.Answer:
        return {name: np.array([getattr(one, key) for one in sample]) for name, key in self.names.items()}
