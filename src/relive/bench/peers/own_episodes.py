"""relive's buffer of whole episodes, and beside it what one would write without it."""

import collections
from typing import Any

import numpy as np

import relive
from relive.bench import tasks
from relive.testing import synthetic


def _check(task: tasks.Task) -> None:
    """Raise CannotError unless the task is for buffers of whole episodes."""
    task.refuse("frame_stack", "sequences", "prioritized", "streams")
    task.refuse_unless("by_episode")


class _Episodes(tasks.Buffer):
    """EpisodeReplayBuffer, by its calls that do not wait."""

    def __init__(self, task: tasks.Task) -> None:
        _check(task)
        self._task, self._episode_id = task, ""
        self._buffer: relive.EpisodeReplayBuffer[Any, Any] = relive.EpisodeReplayBuffer(
            max_transitions=task.capacity, seed=0
        )

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
        return self._buffer.sample_n_step_nowait(self._task.batch_size, self._task.n_step, self._task.gamma)

    def answer(self, sample: Any) -> tasks.Answer:
        names = {name: name for name in ("observation", "action", "reward", "next_observation")}
        names |= {"terminal": "is_terminal", "discount": "next_discount"}
        return {name: np.array([getattr(one, attribute) for one in sample]) for name, attribute in names.items()}


class _Naive(tasks.Buffer):
    """A deque of episodes, and numpy's choice among them in proportion to their lengths."""

    def __init__(self, task: tasks.Task) -> None:
        _check(task)
        self._task, self._rng = task, np.random.default_rng(0)
        self._episodes: collections.deque[list[synthetic.Step]] = collections.deque()
        self._is_open, self._steps = False, 0

    def add(self, prepared: Any) -> None:
        if not self._is_open:
            self._episodes.append([])
        self._episodes[-1].append(prepared)
        self._is_open = not (prepared.terminated or prepared.truncated)
        self._steps += 1
        while self._steps > self._task.capacity:
            self._steps -= len(self._episodes.popleft())

    def sample(self) -> Any:
        episodes, gamma = list(self._episodes), self._task.gamma
        lengths = np.array([len(episode) for episode in episodes])
        chosen = self._rng.choice(len(episodes), self._task.batch_size, p=lengths / lengths.sum())
        starts = self._rng.integers(lengths[chosen])
        batch = []
        for number, start in zip(chosen.tolist(), starts.tolist(), strict=True):
            steps = episodes[number][start : start + self._task.n_step]
            reward = sum(step.reward * gamma**k for k, step in enumerate(steps))
            discount = 0.0 if steps[-1].terminated else gamma ** len(steps)
            first = (steps[0].observation, steps[0].action, reward)
            batch.append((*first, steps[-1].next_observation, steps[-1].terminated, discount))
        return batch

    def answer(self, sample: Any) -> tasks.Answer:
        names = ("observation", "action", "reward", "next_observation", "terminal", "discount")
        return dict(zip(names, map(np.array, zip(*sample, strict=True)), strict=True))


make, make_naive = _Episodes, _Naive
