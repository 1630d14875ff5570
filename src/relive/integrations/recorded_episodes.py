"""What a recorder knows of episodes: totals of those under way, and what it says of one that has ended."""

from collections.abc import Callable
import dataclasses
from typing import Literal, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation

End: TypeAlias = Literal["TERMINATED", "TRUNCATED", "ABANDONED"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedEpisode:
    """An episode that was recorded to its end.

    Attributes:
        stream: Of which stream it was.
        length: Its steps.
        total_reward: The sum of its rewards, without discount.
        end: TERMINATED if the task ended, TRUNCATED if the environment stopped it, ABANDONED if it was reset before.
    """

    stream: int
    length: int
    total_reward: float
    end: End


Listener: TypeAlias = Callable[[RecordedEpisode], None]


class Totals:
    """The lengths and the rewards of the episodes under way, one in each stream.

    Args:
        streams: The streams' numbers [S].
        listener: Called with each episode that has ended with a step at least; None for nobody.
    """

    def __init__(self, streams: arrays.Ints, listener: Listener | None) -> None:
        if listener is not None and not callable(listener):
            raise errors.ArgumentTypeError(
                f"on_episode must be callable or None, got {validation.short_repr(listener)}"
            )
        self._streams, self._listener = streams, listener
        self._lengths: arrays.Ints = np.zeros(len(streams), np.int64)
        self._rewards: arrays.Floats = np.zeros(len(streams))

    def add(self, rewards: arrays.Floats, is_step: arrays.Bools) -> None:
        """Count a step with its reward in each stream, where `is_step` [S]; elsewhere the reward is 0."""
        self._lengths += is_step
        self._rewards += rewards

    def ended(self, has_ended: arrays.Bools, terminated: arrays.Bools | None) -> None:
        """Record where episodes have ended [S], and where they terminated [S]; None where they were abandoned."""
        ended: list[RecordedEpisode] = []
        for place in has_ended.nonzero()[0].tolist():
            end: End = "ABANDONED" if terminated is None else "TERMINATED" if terminated[place] else "TRUNCATED"
            length, total_reward = int(self._lengths[place]), float(self._rewards[place])
            ended.append(
                RecordedEpisode(stream=int(self._streams[place]), length=length, total_reward=total_reward, end=end)
            )
            self._lengths[place], self._rewards[place] = 0, 0.0
        # A listener may raise; what it heard of, and what it did not, has ended all the same.
        for episode in ended:
            if self._listener is not None and episode.length:
                self._listener(episode)
