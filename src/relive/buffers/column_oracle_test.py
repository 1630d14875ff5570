"""A naive twin of the column buffers: whole episodes in lists, nothing forgotten, every result computed anew.

It is imported by the tests that compare with it.
"""

import dataclasses
from typing import Any

Row = tuple[int, "OracleEpisode", int]
"""A key, its episode, and the step in it."""


def assert_windows(batch: Any, windows: list[dict[str, Any]]) -> None:
    """Assert that a batch is of those windows, as the twin reads them."""
    for name in windows[0] if windows else ():
        column = batch.extras[name] if name == "extra" else getattr(batch, name)
        assert column.tolist() == [fields[name] for fields in windows], name


@dataclasses.dataclass(eq=False)
class OracleEpisode:
    """The steps of an episode, evicted ones too."""

    observations: list[Any] = dataclasses.field(default_factory=list)
    actions: list[Any] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    extras: list[Any] = dataclasses.field(default_factory=list)
    keys: list[int] = dataclasses.field(default_factory=list)
    tail: Any = None
    end: str = "open"

    def observation(self, step: int) -> Any:
        """Return the observation of a step, or None if it is unknown."""
        return self.observations[step] if step < len(self.observations) else self.tail

    @property
    def complete(self) -> int:
        """How many steps can be learned from."""
        length = len(self.actions)
        return length if self.tail is not None or self.end == "terminated" else length - 1


class Oracle:
    """What a column buffer should return."""

    def __init__(self, capacity: int, streams: int = 1) -> None:
        self.capacity = capacity
        self.rows: list[Row] = []
        self.first_alive = 0
        self.open: list[OracleEpisode | None] = [None] * streams
        self.spliced = 0
        self.barred: set[int] = set()

    # Writing.

    def add(
        self,
        observation: Any,
        action: Any,
        reward: float,
        next_observation: Any = None,
        terminated: bool = False,
        truncated: bool = False,
        stream: int = 0,
        extra: Any = 0,
    ) -> int:
        episode = self.open[stream]
        if episode is not None and episode.tail is not None and episode.tail != observation:
            episode.end = "truncated"
            self.spliced += 1
            episode = None
        if episode is None:
            episode = OracleEpisode()
        key = len(self.rows)
        episode.observations.append(observation)
        episode.actions.append(action)
        episode.rewards.append(reward)
        episode.extras.append(extra)
        episode.keys.append(key)
        episode.tail = next_observation
        if terminated or truncated:
            episode.end = "terminated" if terminated else "truncated"
        self.open[stream] = None if terminated or truncated else episode
        self.rows.append((key, episode, len(episode.actions) - 1))
        self.first_alive = max(self.first_alive, len(self.rows) - self.capacity)
        return key

    def add_episode(
        self,
        observations: list[Any],
        actions: list[Any],
        rewards: list[float],
        terminated: bool,
        stream: int = 0,
        extras: list[Any] | None = None,
    ) -> None:
        episode = self.open[stream]
        if episode is not None:
            episode.end = "truncated"
            self.open[stream] = None
        for t, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
            is_last = t == len(actions) - 1
            self.add(
                observations[t],
                action,
                reward,
                observations[t + 1],
                terminated and is_last,
                not terminated and is_last,
                stream,
                extras[t] if extras else 0,
            )

    def end_episode(self, stream: int) -> bool:
        episode = self.open[stream]
        if episode is None:
            return False
        episode.end = "truncated"
        self.open[stream] = None
        return True

    def clear(self) -> None:
        self.first_alive = len(self.rows)
        self.open = [None] * len(self.open)

    # Which keys can be read.

    def is_alive(self, key: int) -> bool:
        return self.first_alive <= key < len(self.rows)

    def alive(self) -> list[Row]:
        return self.rows[self.first_alive :]

    def transition_keys(self, stack: int = 1) -> list[int]:
        """Return the keys from which a transition with stacked frames can be read."""
        return [
            key
            for key, episode, step in self.alive()
            if step < episode.complete
            and key not in self.barred
            and all(self.is_alive(episode.keys[t]) for t in range(max(step - stack + 1, 0), step))
        ]

    def sequence_keys(self, length: int, stride: int = 1, pad: bool = False) -> list[int]:
        """Return the keys from which a sequence can be read."""

        def starts(episode: OracleEpisode) -> list[int]:
            every = list(range(0, episode.complete, stride))
            whole = [start for start in every if start + length <= episode.complete]
            # Padded ones follow while the steps up to the end are in no other.
            is_covered = bool(whole) and whole[-1] + length == episode.complete
            return every[: len(whole) + (pad and not is_covered)]

        return [key for key, episode, step in self.alive() if step in starts(episode) and key not in self.barred]

    # Reading.

    def transition(
        self, key: int, n: int, gamma: float, stack: int = 1, padding: str = "zeros", *, chunks: bool = False
    ) -> dict[str, Any]:
        """Return the fields of one transition."""
        _, episode, step = self.rows[key]
        m = min(n, episode.complete - step)
        reward = 0.0
        for k in range(m):
            reward += gamma**k * episode.rewards[step + k]
        is_terminal = episode.end == "terminated" and step + m == len(episode.actions)
        chunk = [episode.actions[step + min(k, m - 1)] for k in range(n)]
        return {
            "observation": self.stack(episode, step, stack, padding),
            "action": chunk if chunks else chunk[0],
            "reward": reward,
            "next_observation": self.stack(episode, step + m, stack, padding),
            "next_discount": 0.0 if is_terminal else gamma**m,
            "is_terminal": is_terminal,
            "steps": m,
            "extra": episode.extras[step],
        }

    def stack(self, episode: OracleEpisode, step: int, stack: int, padding: str) -> Any:
        """Return the frames up to `step`, the frame alone without a stack; unknown ones are 0."""
        frames = []
        for t in range(step - stack + 1, step + 1):
            if t < 0:
                frames.append(0 if padding == "zeros" else episode.observation(0))
            else:
                frames.append(episode.observation(t) or 0)
        return frames if stack > 1 else frames[0]

    def sequence(self, key: int, length: int) -> dict[str, Any]:
        """Return the fields of one sequence, padded with zeros."""
        _, episode, step = self.rows[key]
        real = min(length, episode.complete - step)
        padding = length - real
        stops = step + real == episode.complete
        last = [False] * (real - 1)
        return {
            "observation": [episode.observation(step + k) or 0 for k in range(real + 1)] + [0] * padding,
            "action": episode.actions[step : step + real] + [0] * padding,
            "reward": episode.rewards[step : step + real] + [0] * padding,
            "terminated": [*last, stops and episode.end == "terminated"] + [False] * padding,
            "truncated": [*last, stops and episode.end == "truncated"] + [False] * padding,
            "mask": [True] * real + [False] * padding,
            "start_step": step,
            "extra": episode.extras[step : step + real] + [0] * padding,
        }
