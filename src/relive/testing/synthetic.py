"""Self-describing synthetic steps, a writer of them, and checks of batches against them.

    observation   [episode, step, ... a checksum of them]        action, reward, extra   of episode and step

Episodes are numbered from 1, so that no observation is all zeros, as padding is. Any mix-up shows in the batch.
"""

from collections.abc import Iterator
import dataclasses
import itertools
import math
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.buffers import column as column_lib
from relive.common import arrays as arrays_lib
from relive.schema import schema as schema_lib
from relive.windows import batches

_ACTIONS = 18
_BYTE = 256


@dataclasses.dataclass(frozen=True)
class Step:
    """One step as an environment gives it, or several with an axis in front: a float and two bools, or arrays of them.

    With a frame stack the observations are stacks [S, ...], newest last.
    """

    observation: arrays_lib.Array
    action: arrays_lib.Array
    reward: Any
    next_observation: arrays_lib.Array
    terminated: Any
    truncated: Any


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode of T steps; neither terminated nor truncated while it is open.

    Attributes:
        frames: [T + 1, ...], single ones also with a frame stack.
        rows: All of its steps in arrays [T, ...]; stacks are a view of fewer frames.
        terminated: Whether the task ended with the last step.
        truncated: Whether it was left after the last step.
        start: How many steps came before.
    """

    frames: arrays_lib.Array
    rows: Step
    terminated: bool
    truncated: bool
    start: int

    def steps(self) -> Iterator[Step]:
        """Yield its steps in order, each with arrays of its own."""
        rows, following = self.rows, np.array(self.rows.observation[0])
        flags = zip(rows.terminated.tolist(), rows.truncated.tolist(), strict=True)
        for t, ends in enumerate(flags):
            observation, following = following, np.array(rows.next_observation[t])
            yield Step(observation, rows.action[t], float(rows.reward[t]), following, *ends)


class Values:
    """What observations and actions are of which step.

    Args:
        observation: What one observation, or one frame, is: at least three numbers, or six of uint8.
        action: What one action is.
    """

    def __init__(self, observation: schema_lib.Field, action: schema_lib.Field) -> None:
        self.observation, self.action = observation, action

    def frames(self, episodes: Any, steps: Any) -> arrays_lib.Array:
        """Return single observations [..., *shape] of those steps [...]; zeros before the first one."""
        episodes, steps = np.broadcast_arrays(np.asarray(episodes, np.int64), np.asarray(steps, np.int64))
        checksum = (31 * episodes + 7 * steps) % 255 + 1
        lead, dtype = episodes.shape, self.observation.dtype
        flat = np.empty((*lead, math.prod(self.observation.shape)), dtype)
        flat[...] = checksum[..., np.newaxis]
        if dtype == np.uint8:
            digits = (episodes, episodes // _BYTE, episodes // _BYTE**2, steps, steps // _BYTE)
            flat[..., :5] = np.stack(digits, axis=-1) % _BYTE
        else:
            flat[..., 0], flat[..., 1] = episodes, steps
        flat[steps < 0] = 0
        return flat.reshape((*lead, *self.observation.shape))

    def actions(self, episodes: Any, steps: Any) -> arrays_lib.Array:
        """Return the actions [..., *shape] of those steps [...]."""
        numbers = np.asarray((5 * np.asarray(episodes) + 3 * np.asarray(steps)) % _ACTIONS, self.action.dtype)
        spread = numbers.reshape(numbers.shape + (1,) * len(self.action.shape))
        return np.array(np.broadcast_to(spread, numbers.shape + self.action.shape))


class Story(Values):
    """A sequence of episodes, and everything known about them.

    Args:
        observation: As for Values.
        action: The same.
        lengths: The shortest and the longest episode.
        steps: How many steps there are at least.
        frame_stack: Frames in an observation.

    Attributes:
        lengths: Of the episodes, by number; there is none of number 0 [N + 1].
        is_terminated: How they end, by number [N + 1]; they are truncated otherwise.
    """

    def __init__(
        self,
        observation: schema_lib.Field,
        action: schema_lib.Field,
        lengths: tuple[int, int],
        steps: int,
        frame_stack: int = 1,
    ) -> None:
        super().__init__(observation, action)
        self.frame_stack = frame_stack
        rng = np.random.default_rng(0)
        count = steps // lengths[0] + 2
        drawn = rng.integers(lengths[0], lengths[1] + 1, count)
        count = int(np.searchsorted(np.cumsum(drawn), steps)) + 1
        self.lengths: arrays_lib.Ints = np.concatenate([[0], drawn[:count]])
        self.is_terminated: arrays_lib.Bools = np.concatenate([[False], rng.random(count) < 0.5])

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
        steps = np.arange(start, stop)
        # With a stack, so many frames before the first one that it has a stack, too.
        observations = frames = self.frames(number, np.arange(start - self.frame_stack + 1, stop + 1))
        if self.frame_stack > 1:
            windows = np.lib.stride_tricks.sliding_window_view(frames, self.frame_stack, axis=0)
            observations = np.moveaxis(windows, -1, 1)
        is_whole, is_last = stop == self.lengths[number], steps == stop - 1
        terminated = bool(is_whole and self.is_terminated[number])
        truncated = bool(is_whole and not terminated)
        rows = Step(
            observations[:-1],
            self.actions(number, steps),
            rewards_of(number, steps).astype(np.float32),
            observations[1:],
            is_last & terminated,
            is_last & truncated,
        )
        return Episode(frames[self.frame_stack - 1 :], rows, terminated, truncated, start)

    def place(self, frames: arrays_lib.Array) -> tuple[arrays_lib.Ints, arrays_lib.Ints, arrays_lib.Bools]:
        """Return of which episode and step single observations [..., *shape] are, and whether there is such a one.

        All three are [...]; where there is none, the episode is 0.
        """
        lead = frames.shape[: frames.ndim - len(self.observation.shape)]
        flat = frames.reshape((*lead, -1))
        if self.observation.dtype == np.uint8:
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


Batch: TypeAlias = batches.TransitionBatch | batches.SequenceBatch
_VALUES = Values(schema_lib.Field(3, np.int64), schema_lib.Field((), np.int64))
SCHEMA = schema_lib.Schema(_VALUES.observation, _VALUES.action, extras={"checksum": schema_lib.Field((), np.int64)})


def rewards_of(episodes: Any, steps: Any) -> npt.NDArray[np.float64]:
    """Return the rewards [...] of those steps [...]: small integers, some of them negative."""
    return np.asarray((7 * np.asarray(episodes) + 3 * np.asarray(steps)) % 11 - 5.0)


def columns_of(episodes: Any, steps: Any) -> dict[str, arrays_lib.Array]:
    """Return the columns of those steps [...], by the names of `add`."""
    return {
        "observation": _VALUES.frames(episodes, steps),
        "action": _VALUES.actions(episodes, steps),
        "reward": rewards_of(episodes, steps),
        "checksum": np.asarray(1_000 * np.asarray(episodes) + np.asarray(steps) + 1),
    }


def episode_of(number: int, length: int) -> dict[str, arrays_lib.Array]:
    """Return the arrays of an episode of that many steps, by the names of `add_episode`."""
    columns = columns_of(number, np.arange(length))
    return {
        "observations": _VALUES.frames(number, np.arange(length + 1)),
        "actions": columns["action"],
        "rewards": columns["reward"],
        "checksum": columns["checksum"],
    }


@dataclasses.dataclass
class _Episode:
    """The facts of an episode; `is_known_to_the_end` tells whether the observation after it was given."""

    number: int
    planned: int
    length: int = 0
    is_known_to_the_end: bool = False
    end: Literal["open", "terminated", "truncated"] = "open"


class Writer:
    """Writes random steps into a buffer, and knows what each of them is.

    Args:
        buffer: The buffer to write to.
        seed: The same seed gives the same steps.

    Attributes:
        spliced: How many episodes were left without notice.
        given: The arrays of the last call.
    """

    def __init__(self, buffer: column_lib.ColumnReplayBuffer[Any], seed: int) -> None:
        self.buffer = buffer
        self.rng = np.random.default_rng(seed)
        self.spliced = 0
        self.given: dict[str, arrays_lib.Array] = {}
        self._episodes: list[_Episode] = []
        self._open: list[_Episode | None] = [None] * buffer.streams
        self._rows: list[tuple[int, int]] = []

    @property
    def num_steps(self) -> int:
        """How many steps were written."""
        return len(self._rows)

    # Writing.

    def write(self) -> None:
        """Add a step, one of each of some streams, or an episode, and assert that their keys count on."""
        before = self.num_steps
        choice = self.rng.random()
        if choice < 0.5:
            keys = [self._add()]
        elif choice < 0.9:
            keys = self._extend()
        else:
            keys = self.add_episode(int(self.rng.integers(1, self.buffer.capacity + 1)))
        assert keys == list(range(before, self.num_steps)), f"keys are {keys} after {before} steps"

    def clear(self) -> None:
        """Clear the buffer."""
        self.buffer.clear()
        self._open = [None] * self.buffer.streams

    def _add(self) -> int:
        stream = int(self.rng.integers(self.buffer.streams))
        columns = self._columns([stream])
        ends = {name: bool(columns.pop(name)[0]) for name in ("terminated", "truncated")}
        self.given = {name: column[0, ...] for name, column in columns.items()}
        step: dict[str, Any] = self.given | ends
        return self.buffer.add(**step, stream=stream)

    def _extend(self) -> list[int]:
        streams = self.rng.permutation(self.buffer.streams)[: self.rng.integers(1, self.buffer.streams + 1)]
        self.given = self._columns(streams.tolist())
        keys: list[int] = self.buffer.extend(**self.given, streams=streams).tolist()
        return keys

    def add_episode(self, length: int) -> list[int]:
        """Add an episode of that many steps to a random stream, and return their keys."""
        stream = int(self.rng.integers(self.buffer.streams))
        self._leave(stream)
        episode = self._begin(stream)
        episode.length, episode.is_known_to_the_end = length, True
        episode.end = "terminated" if self.rng.random() < 0.5 else "truncated"
        self._open[stream] = None
        self._rows += [(episode.number, step) for step in range(length)]
        self.given = episode_of(episode.number, length)
        terminated = episode.end == "terminated"
        keys: list[int] = self.buffer.add_episode(**self.given, terminated=terminated, stream=stream).tolist()
        return keys

    def _columns(self, streams: list[int]) -> dict[str, arrays_lib.Array]:
        """Return the columns of the next step of each of `streams`, with or without what comes after them."""
        gives_next = bool(self.rng.random() < 0.5)
        terminated, truncated = np.zeros((2, len(streams)), np.bool_)
        for place, stream in enumerate(streams):
            episode = self._open[stream]
            if episode is not None and episode.is_known_to_the_end and self.rng.random() < 0.1:
                self._leave(stream)
                self.spliced += 1
                episode = None
            episode = episode or self._begin(stream)
            self._rows.append((episode.number, episode.length))
            episode.length += 1
            episode.is_known_to_the_end = gives_next
            if episode.length >= episode.planned:
                terminated[place] = not gives_next or self.rng.random() < 0.5
                truncated[place] = gives_next and (not terminated[place] or self.rng.random() < 0.3)
                episode.end = "terminated" if terminated[place] else "truncated"
                self._open[stream] = None
        episodes, steps = np.array(self._rows[-len(streams) :]).T
        columns = columns_of(episodes, steps) | {"terminated": terminated, "truncated": truncated}
        return columns | ({"next_observation": _VALUES.frames(episodes, steps + 1)} if gives_next else {})

    def _begin(self, stream: int) -> _Episode:
        longest = 2 * self.buffer.capacity if self.rng.random() < 0.2 else 8
        episode = _Episode(len(self._episodes) + 1, planned=int(self.rng.integers(1, longest + 1)))
        self._episodes.append(episode)
        self._open[stream] = episode
        return episode

    def _leave(self, stream: int) -> None:
        """End the open episode of the stream, if there is one, as truncated where it stands."""
        episode = self._open[stream]
        if episode is not None:
            episode.end = "truncated"

    # Checking.

    def assert_describes(self, batch: Batch, gamma: float) -> None:
        """Raise AssertionError unless every row of the batch is what its key says.

        Args:
            batch: What the buffer returned.
            gamma: The discount factor of its transitions.
        """
        rows = _Rows(self._episodes, *np.array(self._rows)[batch.keys].T)
        assert np.all(rows.left > 0), f"nothing is known to follow keys {batch.keys[rows.left <= 0]}"
        if isinstance(batch, batches.TransitionBatch):
            rows.check_transitions(batch, gamma)
        else:
            rows.check_sequences(batch)
        likely = (batch.probabilities > 0) & (batch.probabilities <= 1 + 1e-9)
        assert np.all(np.isnan(batch.probabilities) | likely), f"probabilities are {batch.probabilities}"
        assert np.isfinite(batch.weights).all(), f"importance weights are {batch.weights}"


class _Rows:
    """The expected rows of a batch: one step each, with the facts of its episode, all [B]."""

    def __init__(self, episodes: list[_Episode], numbers: arrays_lib.Ints, steps: arrays_lib.Ints) -> None:
        of_rows = [episodes[number - 1] for number in numbers]
        self.numbers, self.steps = numbers, steps
        self.lengths = np.array([episode.length for episode in of_rows])
        self.has_tail = np.array([episode.is_known_to_the_end for episode in of_rows])
        self.is_terminated = np.array([episode.end == "terminated" for episode in of_rows])
        self.is_truncated = np.array([episode.end == "truncated" for episode in of_rows])
        self.left = self.lengths - ~(self.has_tail | self.is_terminated) - steps

    def check_transitions(self, batch: batches.TransitionBatch, gamma: float) -> None:
        """Compare a batch of transitions."""
        span = np.minimum(self.left, batch.steps.max())
        offsets = np.arange(span.max())
        later = self.steps[:, np.newaxis] + offsets
        rewards = np.where(offsets < span[:, np.newaxis], rewards_of(self.numbers[:, np.newaxis], later), 0.0)
        is_terminal = self.is_terminated & (self.steps + span == self.lengths)
        expected = columns_of(self.numbers, self.steps)
        self._check_frames("observation", batch.observation, self.steps)
        self._check_frames("next_observation", batch.next_observation, self.steps + span)
        _check("action", batch.action, expected["action"])
        _check("extras['checksum']", batch.extras["checksum"], expected["checksum"])
        _check("steps", batch.steps, span)
        _check("is_terminal", batch.is_terminal, is_terminal)
        _check("reward", batch.reward, (rewards * gamma**offsets).sum(axis=1))
        _check("next_discount", batch.next_discount, np.where(is_terminal, 0.0, gamma**span))

    def check_sequences(self, batch: batches.SequenceBatch) -> None:
        """Compare a batch of sequences."""
        length = batch.mask.shape[1]
        span = np.minimum(self.left, length)[:, np.newaxis]
        numbers, lengths = self.numbers[:, np.newaxis], self.lengths[:, np.newaxis]
        steps = self.steps[:, np.newaxis] + np.arange(length + 1)
        is_there = (np.arange(length + 1) <= span) & ((steps < lengths) | self.has_tail[:, np.newaxis])
        expected = columns_of(numbers, steps)
        mask, is_last = np.arange(length) < span, steps[:, :-1] == (self.steps + self.left)[:, np.newaxis] - 1
        _check("observation", batch.observation, np.where(is_there[..., np.newaxis], expected["observation"], 0))
        _check("mask", batch.mask, mask)
        _check("action", batch.action, np.where(mask, expected["action"][:, :-1], 0))
        _check("reward", batch.reward, np.where(mask, expected["reward"][:, :-1], 0.0))
        _check("terminated", batch.terminated, mask & is_last & self.is_terminated[:, np.newaxis])
        _check("truncated", batch.truncated, mask & is_last & self.is_truncated[:, np.newaxis])
        _check("start_step", batch.start_step, self.steps)
        _check("extras['checksum']", batch.extras["checksum"], np.where(mask, expected["checksum"][:, :-1], 0))
        burn_in = batch.is_burn_in.sum(axis=1).max()
        _check("is_burn_in", batch.is_burn_in, mask & (np.arange(length) < burn_in))

    def _check_frames(self, name: str, frames: arrays_lib.Ints, steps: arrays_lib.Ints) -> None:
        """Compare observations of `steps` [B], or stacks of frames up to them."""
        stacks = frames if frames.ndim == 3 else frames[:, np.newaxis]
        times = steps[:, np.newaxis] - np.arange(stacks.shape[1])[::-1]
        is_there = (times < self.lengths[:, np.newaxis]) | self.has_tail[:, np.newaxis]
        # Before the first frame of an episode there are zeros, or that frame again.
        is_there &= (times >= 0) | stacks.any(axis=-1)
        expected = _VALUES.frames(self.numbers[:, np.newaxis], np.maximum(times, 0))
        _check(name, stacks, np.where(is_there[..., np.newaxis], expected, 0))


def _check(name: str, column: arrays_lib.Array, expected: arrays_lib.Array) -> None:
    """Raise AssertionError unless the column is the expected one in shape, dtype and values, but for rounding."""
    assert column.dtype == expected.dtype, f"{name} is of dtype {column.dtype} instead of {expected.dtype}"
    assert column.shape == expected.shape, f"{name} is of shape {column.shape} instead of {expected.shape}"
    differs = ~np.isclose(column, expected, 1e-9, 1e-9) if column.dtype.kind == "f" else column != expected
    for row in np.flatnonzero(differs.reshape(len(column), -1).any(axis=1)):
        raise AssertionError(f"{name} of row {row} is {column[row].tolist()} instead of {expected[row].tolist()}")
