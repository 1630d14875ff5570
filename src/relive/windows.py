"""Windows: which rows make one element of a batch, from which rows one may start, and what is read from them.

A window starts at its anchor and lies forward in time, in one episode:

    TransitionWindow   anchor, and up to n steps on        any step whose next observation is known
    SequenceWindow     anchor, and `length` steps on       steps that so many follow; with padding, fewer
    EpisodeWindow      a whole episode                     the first step of an episode that has ended

`is_readable` is the rule. `candidates` says cheaply where a change may have made it true; `lost` says where evicting
makes it false. The law of this file: reading changes nothing, and answers arrays of its own.
"""

import abc
import dataclasses
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from relive import batches
from relive import checks
from relive import episode_table
from relive import errors
from relive import history as history_lib
from relive import returns
from relive import timeline as timeline_lib
from relive import trees

Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = dict[str, Array]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
StackPadding: TypeAlias = Literal["zeros", "first"]
Batch = TypeVar("Batch", bound=batches.TransitionBatch | batches.SequenceBatch)


class Window(abc.ABC, Generic[Batch]):
    """What a buffer asks of a window."""

    @abc.abstractmethod
    def is_readable(self, timeline: timeline_lib.Timeline, slots: Ints) -> Bools:
        """Answers from which of the rows in `slots` [k] a window may start."""

    @abc.abstractmethod
    def candidates(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> Ints:
        """Answers rows among which are all from which a window may start since the change."""

    def lost(self, timeline: timeline_lib.Timeline, evicted: Ints) -> Ints:
        """Answers the rows from which no window may start any more when the rows in `evicted` go, distinct."""
        return evicted

    @abc.abstractmethod
    def shortfall(self, timeline: timeline_lib.Timeline) -> str:
        """Answers what is missing while there is no anchor, for an error message."""

    @abc.abstractmethod
    def read(self, history: history_lib.History, slots: Ints, probabilities: Floats, weights: Floats) -> Batch:
        """Answers the windows that start in `slots` [B], which must be readable."""


@dataclasses.dataclass(frozen=True)
class TransitionWindow(Window[batches.TransitionBatch]):
    """An n-step transition, with frames stacked in front of its two observations.

    Attributes:
        n_step: Steps in a window at most.
        gamma: The discount factor.
        frame_stack: Frames in an observation. An anchor whose older frames were evicted cannot be read any more.
        stack_padding: What stands before the first frame of an episode: "zeros", or the "first" frame again.
    """

    n_step: int = 1
    gamma: float = 0.99
    frame_stack: int = 1
    stack_padding: StackPadding = "zeros"

    def __post_init__(self) -> None:
        checks.integer_of_at_least_one("n_step", self.n_step)
        checks.discount("gamma", self.gamma)
        checks.integer_of_at_least_one("frame_stack", self.frame_stack)
        checks.one_of("stack_padding", self.stack_padding, ("zeros", "first"))

    def is_readable(self, timeline: timeline_lib.Timeline, slots: Ints) -> Bools:
        """Answers whether the next observation is known, and the older frames of the stack are there [k]."""
        handles = timeline.handles(slots)
        steps = timeline.steps(slots, handles)
        readable: Bools = steps < timeline.episodes.complete[handles]
        older = self.frame_stack - 1
        if older:
            readable &= timeline.num_behind(slots, older) == np.minimum(steps, older)
        return readable

    def candidates(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> Ints:
        """Answers the rows that are complete now."""
        return change.completed

    def lost(self, timeline: timeline_lib.Timeline, evicted: Ints) -> Ints:
        """Answers the rows themselves, and those that have one of them in their stack."""
        if self.frame_stack == 1:
            return evicted
        return np.unique(timeline.ahead(evicted, self.frame_stack))

    def shortfall(self, timeline: timeline_lib.Timeline) -> str:
        """Answers what is missing while there is no anchor."""
        if self.frame_stack > 1:
            return f"no step with a known next observation and all its {self.frame_stack} frames is stored"
        return "no step with a known next observation is stored"

    def read(
        self, history: history_lib.History, slots: Ints, probabilities: Floats, weights: Floats
    ) -> batches.TransitionBatch:
        """Answers the transitions from `slots` [B]."""
        timeline = history.timeline
        episodes = timeline.episodes
        handles = timeline.handles(slots)
        left = episodes.complete[handles] - timeline.steps(slots, handles)
        span = np.minimum(left, self.n_step)
        # The last complete step of an episode that terminated is the one it terminated with.
        is_terminal: Bools = (span == left) & (episodes.end[handles] == episode_table.TERMINATED)
        rows = timeline.ahead(slots, int(span.max(initial=1)))
        rewards = history.storage.read(rows, ["reward"])["reward"]
        return self.assembled(history, slots, rewards, span, is_terminal, probabilities, weights)

    def assembled(
        self,
        history: history_lib.History,
        slots: Ints,
        rewards: Array,
        span: Ints,
        is_terminal: Bools,
        probabilities: Floats,
        weights: Floats,
    ) -> batches.TransitionBatch:
        """Answers the transitions from `slots` [B], given their rewards [B, longest span], spans [B] and ends [B]."""
        timeline = history.timeline
        handles = timeline.handles(slots)
        steps = timeline.steps(slots, handles)
        columns = history.storage.read(slots)
        if self.frame_stack > 1:
            columns |= self._padded(history.observations(timeline.behind(slots, self.frame_stack)), steps)
        reward = returns.discounted_sums(rewards, span, self.gamma)
        discounts = np.array(returns.discount_powers(self.gamma, rewards.shape[1] + 1))[span]
        discounts[is_terminal] = 0.0
        reaches_tail = steps + span == timeline.episodes.length[handles]
        # The row that holds the next observation; in front of a tail, the row before it.
        next_slots = timeline.later(slots, span - reaches_tail)
        next_columns = self._next_columns(history, next_slots, steps + span, handles, reaches_tail)
        return batches.TransitionBatch(
            observation=trees.nested("observation", columns),
            action=trees.nested("action", columns),
            reward=reward,
            next_observation=trees.nested("observation", next_columns),
            next_discount=discounts.astype(reward.dtype, copy=False),
            is_terminal=is_terminal,
            steps=span,
            keys=timeline.keys(slots),
            probabilities=probabilities,
            weights=weights,
            extras=nested_extras(columns),
        )

    def _next_columns(
        self, history: history_lib.History, next_slots: Ints, next_steps: Ints, handles: Ints, reaches_tail: Bools
    ) -> Columns:
        """Answers the observations of `next_steps` [B]: of the rows in `next_slots`, or where those lie just before it.

        There it is the tail of the episode.
        """
        tails = history.tails(handles[reaches_tail])
        if self.frame_stack == 1:
            columns = history.observations(next_slots)
            for path, column in columns.items():
                column[reaches_tail] = tails[path]
            return columns
        columns = history.observations(history.timeline.behind(next_slots, self.frame_stack))
        for path, column in columns.items():
            column[reaches_tail, :-1] = column[reaches_tail, 1:]
            column[reaches_tail, -1] = tails[path]
        return self._padded(columns, next_steps)

    def _padded(self, columns: Columns, steps: Ints) -> Columns:
        """Answers stacks of frames up to `steps` [B] with what stands before the first one; it is there already."""
        if self.stack_padding == "zeros":
            is_before = np.arange(self.frame_stack)[::-1] > steps[:, np.newaxis]
            clear(columns, is_before)
        return columns


@dataclasses.dataclass(frozen=True)
class SequenceWindow(Window[batches.SequenceBatch]):
    """A fixed number of consecutive steps.

    Attributes:
        length: How many steps.
        burn_in: How many of them, from the first on, are marked as not for the loss.
        stride: Anchors are every stride-th step of an episode.
        pad: Whether windows may reach over the end of an episode, so that every step of it is in one: from the first
            step on, until a window has reached the end. What lies beyond is zeros, and masked.
    """

    length: int
    burn_in: int = 0
    stride: int = 1
    pad: bool = False

    def __post_init__(self) -> None:
        checks.integer_of_at_least_one("length", self.length)
        checks.integer_of_at_least_one("stride", self.stride)
        checks.integer_of_at_least_zero("burn_in", self.burn_in)
        checks.boolean("pad", self.pad)
        if self.burn_in >= self.length:
            raise errors.ArgumentError(f"burn_in must be below length = {self.length}, got {self.burn_in}")

    @property
    def _lag(self) -> int:
        """How many steps after its anchor the step is with which a window may start there, unless the anchor is 0."""
        return max(self.length - self.stride, 0) if self.pad else self.length - 1

    def is_readable(self, timeline: timeline_lib.Timeline, slots: Ints) -> Bools:
        """Answers whether a step is an anchor, and enough steps are complete from it on [k]."""
        handles = timeline.handles(slots)
        steps = timeline.steps(slots, handles)
        complete = timeline.episodes.complete[handles]
        readable: Bools = steps + self._lag < complete
        if self.pad:
            readable |= (steps == 0) & (complete > 0)
        readable &= steps % self.stride == 0
        return readable

    def candidates(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> Ints:
        """Answers the rows that lie so far before those that are complete now, and first steps where those count."""
        earlier = timeline.earlier(change.completed, self._lag)
        if self.pad and self._lag:
            first = change.completed[timeline.steps(change.completed, timeline.handles(change.completed)) == 0]
            return np.union1d(earlier, first)
        return earlier

    def shortfall(self, timeline: timeline_lib.Timeline) -> str:
        """Answers what is missing while there is no anchor, and how long the longest episode is."""
        if self.pad:
            return "no step with a known next observation is stored at the start of an episode"
        slots = timeline.alive_slots()
        handles = timeline.handles(slots)
        longest = np.max(timeline.episodes.complete[handles] - timeline.steps(slots, handles), initial=0)
        if longest >= self.length:
            return f"no sequence of {self.length} steps starts at a multiple of stride = {self.stride}"
        return f"a sequence has {self.length} steps and the longest episode is {longest}"

    def read(
        self, history: history_lib.History, slots: Ints, probabilities: Floats, weights: Floats
    ) -> batches.SequenceBatch:
        """Answers the sequences from `slots` [B]."""
        return _read_sequences(history, slots, self.length, self.burn_in, probabilities, weights)


@dataclasses.dataclass(frozen=True)
class EpisodeWindow(Window[batches.SequenceBatch]):
    """A whole episode, once it has ended and while all of it is there; as long as the longest of its batch."""

    def is_readable(self, timeline: timeline_lib.Timeline, slots: Ints) -> Bools:
        """Answers whether a step is the first of an ended episode [k]."""
        handles = timeline.handles(slots)
        episodes = timeline.episodes
        readable: Bools = (episodes.end[handles] != episode_table.OPEN) & (episodes.complete[handles] > 0)
        readable &= timeline.steps(slots, handles) == 0
        return readable

    def candidates(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> Ints:
        """Answers the first rows of the episodes that have ended."""
        return np.unique(timeline.first(change.ended))

    def shortfall(self, timeline: timeline_lib.Timeline) -> str:
        """Answers what is missing while there is no anchor."""
        return "no episode has ended of which every step is stored"

    def read(
        self, history: history_lib.History, slots: Ints, probabilities: Floats, weights: Floats
    ) -> batches.SequenceBatch:
        """Answers the episodes from `slots` [B]."""
        longest = int(history.timeline.episodes.complete[history.timeline.handles(slots)].max(initial=0))
        return _read_sequences(history, slots, longest, 0, probabilities, weights)


def _read_sequences(
    history: history_lib.History, slots: Ints, length: int, burn_in: int, probabilities: Floats, weights: Floats
) -> batches.SequenceBatch:
    """Answers up to `length` steps from each of `slots` [B], padded to it."""
    timeline = history.timeline
    episodes = timeline.episodes
    handles = timeline.handles(slots)
    steps = timeline.steps(slots, handles)
    span = np.minimum(episodes.complete[handles] - steps, length)
    mask = np.arange(length) < span[:, np.newaxis]
    rows = timeline.ahead(slots, length + 1)
    observation_paths = history.schema.observation_paths
    others = [path for path in history.schema.fields if path not in observation_paths]
    columns = history.storage.read(rows[:, :-1], others)
    clear(columns, ~mask)
    observations = history.observations(rows)
    clear(observations, np.arange(length + 1) > span[:, np.newaxis])
    reaches_tail = np.flatnonzero(steps + span == episodes.length[handles])
    tails = history.tails(handles[reaches_tail])
    for path, column in observations.items():
        column[reaches_tail, span[reaches_tail]] = tails[path]
    terminated, truncated = np.zeros_like(mask), np.zeros_like(mask)
    ends = episodes.end[handles[reaches_tail]]
    terminated[reaches_tail, span[reaches_tail] - 1] = ends == episode_table.TERMINATED
    truncated[reaches_tail, span[reaches_tail] - 1] = ends == episode_table.TRUNCATED
    return batches.SequenceBatch(
        observation=trees.nested("observation", observations),
        action=trees.nested("action", columns),
        reward=columns["reward"],
        terminated=terminated,
        truncated=truncated,
        mask=mask,
        is_burn_in=mask & (np.arange(length) < burn_in),
        start_step=steps,
        keys=timeline.keys(slots),
        probabilities=probabilities,
        weights=weights,
        extras=nested_extras(columns),
    )


def clear(columns: Columns, where: Bools) -> None:
    """Writes zeros where `where` [...] of every column [..., *shape]."""
    for column in columns.values():
        column[where] = np.zeros((), column.dtype)


def nested_extras(columns: Columns) -> dict[str, Any]:
    """Answers the extras among the columns, by name."""
    extras: Any = trees.nested("extras", columns)
    return dict(extras)
