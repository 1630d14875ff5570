"""relive's buffer of whole episodes, and beside it what one would write without it."""

import collections
from typing import Any

import numpy as np

import relive
from relive.bench import tasks
from relive.testing import synthetic


class _Samples(tasks.Buffer):
    """A buffer of whole episodes, that returns a list of samples."""

    def __init__(self, task: tasks.Task) -> None:
        task.refuse("frame_stack", "sequences", "prioritized", "streams")
        task.refuse_unless("by_episode")
        self._task = task

    def answer(self, sample: Any) -> tasks.Answer:
        return {
            "observation": np.array([one.observation for one in sample]),
            "action": np.array([one.action for one in sample]),
            "reward": np.array([one.reward for one in sample]),
            "next_observation": np.array([one.next_observation for one in sample]),
            "terminal": np.array([one.is_terminal for one in sample]),
            "discount": np.array([one.next_discount for one in sample]),
        }


class _Episodes(_Samples):
    """EpisodeReplayBuffer, by its calls that do not wait."""

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self._buffer: relive.EpisodeReplayBuffer[Any, Any] = relive.EpisodeReplayBuffer(
            max_transitions=task.capacity, seed=0
        )
        self._episode_id = ""

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


class _Naive(_Samples):
    """A deque of episodes, and numpy's choice among them in proportion to their lengths."""

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self._rng = np.random.default_rng(0)
        self._episodes: collections.deque[list[synthetic.Step]] = collections.deque()
        self._is_open = False
        self._steps = 0

    def add(self, prepared: Any) -> None:
        if not self._is_open:
            self._episodes.append([])
        self._episodes[-1].append(prepared)
        self._is_open = not (prepared.terminated or prepared.truncated)
        self._steps += 1
        while self._steps > self._task.capacity:
            self._steps -= len(self._episodes.popleft())

    def sample(self) -> Any:
        episodes = list(self._episodes)
        lengths = np.array([len(episode) for episode in episodes])
        chosen = self._rng.choice(len(episodes), self._task.batch_size, p=lengths / lengths.sum())
        starts = self._rng.integers(lengths[chosen])
        windows: list[relive.ReplaySample[Any, Any]] = []
        gamma = self._task.gamma
        for number, start in zip(chosen.tolist(), starts.tolist(), strict=True):
            steps = episodes[number][start : start + self._task.n_step]
            is_terminal = steps[-1].terminated
            windows.append(
                relive.ReplaySample(
                    episode_id=str(number),
                    agent_id="agent",
                    observation=steps[0].observation,
                    action=steps[0].action,
                    next_observation=steps[-1].next_observation,
                    next_discount=0.0 if is_terminal else gamma ** len(steps),
                    is_terminal=is_terminal,
                    rewards_seq=[step.reward for step in steps],
                    discount_powers=[gamma**k for k in range(len(steps))],
                    start_step=start,
                    actual_n=len(steps),
                    gamma=gamma,
                    window_end="HORIZON",
                )
            )
        return windows


def make(task: tasks.Task) -> tasks.Buffer:
    """Return relive's buffer for the task."""
    return _Episodes(task)


def make_naive(task: tasks.Task) -> tasks.Buffer:
    """Return the naive one."""
    return _Naive(task)
