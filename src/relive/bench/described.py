"""Episodes whose every value says where it belongs, so that a batch can be checked without knowing how it came about.

    observation   (episode, step, checksum ...)          action   of episode and step
    reward        a small integer of episode and step    end      terminated or truncated, by a table of the episodes

Episodes are numbered from 1: no observation is all zeros, as padding is.
"""

from collections.abc import Iterator
import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.common import arrays
from relive.testing import synthetic

_ACTIONS = 18
_BYTE = 256


@dataclasses.dataclass(frozen=True)
class Kind:
    """The shape and the dtype of one value."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """How many bytes one value takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Step:
    """One step as an environment gives it; with a frame stack the observations are stacks [S, ...], newest last."""

    observation: arrays.Array
    action: arrays.Array
    reward: float
    next_observation: arrays.Array
    terminated: bool
    truncated: bool


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode of T steps; neither terminated nor truncated while it is open.

    Attributes:
        frames: [T + 1, ...], single ones also with a frame stack.
        actions: [T, ...].
        rewards: [T], float32.
        terminated: Whether the task ended with the last step.
        truncated: Whether it was left after the last step.
        frame_stack: Frames in an observation.
        start: How many steps came before.
        lead: The frames that came before [frame_stack - 1, ...], zeros where there were none.
    """

    frames: arrays.Array
    actions: arrays.Array
    rewards: npt.NDArray[np.float32]
    terminated: bool
    truncated: bool
    frame_stack: int
    start: int
    lead: arrays.Array

    def __len__(self) -> int:
        """Return T."""
        return len(self.rewards)

    @functools.cached_property
    def observations(self) -> arrays.Array:
        """What the agent saw [T + 1, ...], or [T + 1, stack, ...] with a frame stack: a view of fewer frames."""
        if self.frame_stack == 1:
            return self.frames
        padded = np.concatenate([self.lead, self.frames])
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.frame_stack, axis=0)
        return np.moveaxis(windows, -1, 1)

    @property
    def is_last(self) -> arrays.Bools:
        """Whether it is the last step of an episode that has ended [T]."""
        return np.asarray(np.arange(len(self)) == (len(self) - 1 if self.terminated or self.truncated else -1))

    def steps(self) -> Iterator[Step]:
        """Yield its steps in order, each with arrays of its own."""
        observations, ends = self.observations, self.is_last
        following = np.array(observations[0])
        for t in range(len(self)):
            observation, following = following, np.array(observations[t + 1])
            yield Step(
                observation,
                self.actions[t],
                float(self.rewards[t]),
                following,
                bool(ends[t]) and self.terminated,
                bool(ends[t]) and self.truncated,
            )


class Story:
    """A sequence of episodes, and what there is to know of them.

    Args:
        observation: What one observation, or one frame, is; floats of at least three numbers, or uint8 of at least six.
        action: What one action is.
        lengths: The shortest and the longest episode.
        steps: How many steps there are at least.
        frame_stack: Frames in an observation.

    Attributes:
        lengths: Of the episodes, by number; there is none of number 0 [N + 1].
        is_terminated: How they end, by number [N + 1]; they are truncated otherwise.
    """

    def __init__(
        self, observation: Kind, action: Kind, lengths: tuple[int, int], steps: int, frame_stack: int = 1
    ) -> None:
        self.observation, self.action, self.frame_stack = observation, action, frame_stack
        rng = np.random.default_rng(0)
        count = steps // lengths[0] + 2
        drawn = rng.integers(lengths[0], lengths[1] + 1, count)
        count = int(np.searchsorted(np.cumsum(drawn), steps)) + 1
        self.lengths: arrays.Ints = np.concatenate([[0], drawn[:count]])
        self.is_terminated: arrays.Bools = np.concatenate([[False], rng.random(count) < 0.5])

    def episodes(self, first: int = 1) -> Iterator[Episode]:
        """Yield the episodes from that number on, as they ended."""
        for number in range(first, len(self.lengths)):
            yield self.part(number, 0, int(self.lengths[number]))

    def until(self, steps: int) -> "tuple[Iterator[Episode], Iterator[Episode]]":
        """Return the episodes up to that step, the last of which may be open, and what is left: its rest, and more."""
        ends = np.cumsum(self.lengths)
        number = int(np.searchsorted(ends, steps))
        start = steps - int(ends[number - 1])
        whole = (self.part(other, 0, int(self.lengths[other])) for other in range(1, number))
        head = [self.part(number, 0, start)]
        rest = [self.part(number, start, int(self.lengths[number]))] if start < self.lengths[number] else []
        return itertools.chain(whole, head), itertools.chain(rest, self.episodes(number + 1))

    def part(self, number: int, start: int, stop: int) -> Episode:
        """Return the steps [start, stop) of an episode."""
        is_whole = stop == self.lengths[number]
        steps = np.arange(start, stop + 1)
        lead = self.frames(number, np.arange(start - self.frame_stack + 1, start))
        return Episode(
            self.frames(number, steps),
            self.actions(number, steps[:-1]),
            synthetic.rewards_of(number, steps[:-1]).astype(np.float32),
            bool(is_whole and self.is_terminated[number]),
            bool(is_whole and not self.is_terminated[number]),
            self.frame_stack,
            start,
            lead,
        )

    def frames(self, episodes: Any, steps: Any) -> arrays.Array:
        """Return single observations [..., *shape] of those steps [...]; zeros before the first one."""
        episodes, steps = np.broadcast_arrays(np.asarray(episodes, np.int64), np.asarray(steps, np.int64))
        checksum = (31 * episodes + 7 * steps) % 255 + 1
        lead, dtype = episodes.shape, np.dtype(self.observation.dtype)
        flat = np.empty((*lead, math.prod(self.observation.shape)), dtype)
        flat[...] = checksum[..., np.newaxis]
        if dtype == np.uint8:
            digits = (episodes, episodes // _BYTE, episodes // _BYTE**2, steps, steps // _BYTE)
            flat[..., :5] = np.stack(digits, axis=-1) % _BYTE
        else:
            flat[..., 0], flat[..., 1] = episodes, steps
        flat[steps < 0] = 0
        return flat.reshape((*lead, *self.observation.shape))

    def actions(self, episodes: Any, steps: Any) -> arrays.Array:
        """Return the actions [..., *shape] of those steps [...]."""
        numbers = np.asarray((5 * np.asarray(episodes) + 3 * np.asarray(steps)) % _ACTIONS, self.action.dtype)
        spread = numbers.reshape(numbers.shape + (1,) * len(self.action.shape))
        return np.array(np.broadcast_to(spread, numbers.shape + self.action.shape))

    def place(self, frames: arrays.Array) -> tuple[arrays.Ints, arrays.Ints, arrays.Bools]:
        """Return of which episode and step single observations [..., *shape] are, and whether there is such a one.

        All three are [...]; where there is none, the episode is 0.
        """
        lead = frames.shape[: frames.ndim - len(self.observation.shape)]
        flat = frames.reshape((*lead, -1))
        if np.dtype(self.observation.dtype) == np.uint8:
            digits = flat[..., :5].astype(np.int64)
            episodes = digits[..., 0] + _BYTE * digits[..., 1] + _BYTE**2 * digits[..., 2]
            steps = digits[..., 3] + _BYTE * digits[..., 4]
        else:
            numbers = np.nan_to_num(flat[..., :2]).clip(-1, 2**31).astype(np.int64)
            episodes, steps = numbers[..., 0], numbers[..., 1]
        is_known = (episodes > 0) & (episodes < len(self.lengths)) & (steps >= 0)
        episodes = np.where(is_known, episodes, 0)
        is_known &= steps <= self.lengths[episodes]
        is_known &= (frames == self.frames(episodes, steps)).reshape((*lead, -1)).all(axis=-1)
        return np.where(is_known, episodes, 0), np.where(is_known, steps, 0), is_known
