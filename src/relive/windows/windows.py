"""Windows: which rows make one element of a batch, from which rows one may start, and what is read from them.

A window starts at its anchor and lies forward in time, in one episode:

    TransitionWindow   anchor, and up to n steps on        any step whose next observation is known
    SequenceWindow     anchor, and `length` steps on       steps that so many follow; with padding, fewer
    EpisodeWindow      a whole episode                     the first step of an episode that has ended

`is_readable` is the rule. `newly_readable` says cheaply where a change may have made it true; `newly_unreadable` says
where evicting makes it false. The law of this file: reading changes nothing, and returns arrays of its own.
"""

import abc
from collections.abc import Sequence
import dataclasses
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.kernels import episode_table
from relive.kernels import history as history_lib
from relive.kernels import timeline as timeline_lib
from relive.persistence import registry
from relive.windows import batches
from relive.windows import returns

Columns: TypeAlias = dict[str, arrays.Array]
StackPadding: TypeAlias = Literal["zeros", "first"]
Batch = TypeVar("Batch", bound=batches.TransitionBatch | batches.SequenceBatch)


_RULES = {
    "readable_now": ("is_readable", "newly_readable"),
    "readable_now_one": ("is_readable", "newly_readable", "readable_now"),
    "num_older": ("is_readable", "newly_readable", "readable_now", "newly_unreadable"),
    "loses_more": ("newly_unreadable",),
    "newly_unreadable_one": ("newly_unreadable",),
}
"""What follows from which rules: a faster answer holds until one of its rules is overridden."""


class Window(registry.Configurable, abc.ABC, Generic[Batch]):
    """What a buffer asks of a window."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let a class that has a rule of its own answer by that rule in every case."""
        super().__init_subclass__(**keywords)
        ranks = {name: rank for rank, kind in reversed([*enumerate(cls.__mro__)]) for name in vars(kind)}
        for name, rules in _RULES.items():
            if any(ranks[rule] < ranks[name] for rule in rules):
                setattr(cls, name, vars(Window)[name])
                ranks[name] = 0

    @abc.abstractmethod
    def is_readable(self, timeline: timeline_lib.Timeline, slots: arrays.Ints) -> arrays.Bools:
        """Return from which of the rows in `slots` [k] a window may start."""

    @abc.abstractmethod
    def newly_readable(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> arrays.Ints:
        """Return rows among which are all from which a window may start since the change."""

    def newly_unreadable(self, timeline: timeline_lib.Timeline, evicted: arrays.Ints) -> arrays.Ints:
        """Return the rows from which no window may start any more when the rows in `evicted` go, distinct."""
        return evicted

    def readable_now(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> arrays.Ints:
        """Return the rows from which a window may start since the change, and maybe could before."""
        slots = self.newly_readable(timeline, change)
        return slots[self.is_readable(timeline, slots)]

    @property
    def num_older(self) -> int | None:
        """How many rows before its anchor a window reads, where every row that is complete and has them is an anchor.

        None where the rule is another one.
        """
        return None

    @property
    def loses_more(self) -> bool:
        """Whether evicting a row takes windows of other rows too."""
        return type(self).newly_unreadable is not Window.newly_unreadable

    # The same of one row, in plain numbers: `relive bench --workload add`.

    def newly_unreadable_one(self, timeline: timeline_lib.Timeline, evicted: int) -> Sequence[int]:
        """Return what `newly_unreadable` returns of one row."""
        lost: list[int] = self.newly_unreadable(timeline, np.array([evicted])).tolist()
        return lost

    def readable_now_one(
        self, timeline: timeline_lib.Timeline, slot: int, completed: Sequence[int], ended: Sequence[int]
    ) -> Sequence[int]:
        """Return what `readable_now` returns of one new row; the arguments are the fields of its change."""
        slots = np.array([slot])
        change = timeline_lib.Change(
            slots, timeline.handles(slots), np.array(completed, np.int64), np.array(ended, np.int64)
        )
        readable: list[int] = self.readable_now(timeline, change).tolist()
        return readable

    @abc.abstractmethod
    def why_not_ready(self, timeline: timeline_lib.Timeline) -> str:
        """Return what is missing while there is no anchor, for an error message."""

    @abc.abstractmethod
    def read(
        self, history: history_lib.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> Batch:
        """Return the windows that start in `slots` [B], which must be readable."""


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
        validation.positive_int("n_step", self.n_step)
        validation.discount("gamma", self.gamma)
        validation.positive_int("frame_stack", self.frame_stack)
        validation.require_choice("stack_padding", self.stack_padding, ("zeros", "first"))

    def is_readable(self, timeline: timeline_lib.Timeline, slots: arrays.Ints) -> arrays.Bools:
        """Return whether the next observation is known, and the older frames of the stack are there [k]."""
        handles = timeline.handles(slots)
        steps = timeline.steps(slots, handles)
        readable: arrays.Bools = steps < timeline.episodes.complete[handles]
        older = self.frame_stack - 1
        if older:
            readable &= timeline.num_behind(slots, older) == np.minimum(steps, older)
        return readable

    def newly_readable(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> arrays.Ints:
        """Return the rows that are complete now."""
        return change.completed

    def newly_unreadable(self, timeline: timeline_lib.Timeline, evicted: arrays.Ints) -> arrays.Ints:
        """Return the rows themselves, and those that have one of them in their stack."""
        if self.frame_stack == 1:
            return evicted
        return np.unique(timeline.ahead(evicted, self.frame_stack))

    def readable_now(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> arrays.Ints:
        """Return the rows that are complete now and have their older frames."""
        return change.completed if self.frame_stack == 1 else super().readable_now(timeline, change)

    def newly_unreadable_one(self, timeline: timeline_lib.Timeline, evicted: int) -> Sequence[int]:
        """Return the row itself, and those that have it in their stack."""
        return timeline.ahead_of_one(evicted, self.frame_stack)

    @property
    def num_older(self) -> int:
        """How many older frames there are."""
        return self.frame_stack - 1

    @property
    def loses_more(self) -> bool:
        """Whether there are older frames."""
        return self.frame_stack > 1

    def readable_now_one(
        self, timeline: timeline_lib.Timeline, slot: int, completed: Sequence[int], ended: Sequence[int]
    ) -> Sequence[int]:
        """Return which of the rows that are complete now have their older frames."""
        older = self.frame_stack - 1
        if not older:
            return completed
        return [row for row in completed if timeline.earlier_of_one(row, min(timeline.step_of_one(row), older)) >= 0]

    def why_not_ready(self, timeline: timeline_lib.Timeline) -> str:
        """Return what is missing while there is no anchor."""
        if self.frame_stack > 1:
            return f"no step with a known next observation and all its {self.frame_stack} frames is stored"
        return "no step with a known next observation is stored"

    def read(
        self, history: history_lib.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> batches.TransitionBatch:
        """Return the transitions from `slots` [B]."""
        episodes = history.timeline.episodes
        rows = history.timeline.rows(slots)
        span = np.minimum(episodes.complete[rows.handles] - rows.steps, self.n_step)
        is_terminal: arrays.Bools = (span == rows.left) & (episodes.end[rows.handles] == episode_table.TERMINATED)
        return self.assembled(history, rows, span, is_terminal, None, probabilities, weights)

    def assembled(
        self,
        history: history_lib.StepStore,
        rows: timeline_lib.Rows,
        span: arrays.Ints,
        is_terminal: arrays.Bools,
        rewards: arrays.Array | None,
        probabilities: arrays.Floats,
        weights: arrays.Floats,
    ) -> batches.TransitionBatch:
        """Return the transitions from rows [B], given how long they are [B] and whether they terminate [B].

        Args:
            history: Where the rows are.
            rows: The anchors.
            span: How many steps there are in each window.
            is_terminal: Whether the task terminates with the last of them.
            rewards: Those of each window's steps [B, longest span]; None for what is stored.
            probabilities: How likely each of the rows was to be drawn [B].
            weights: Importance weights [B].
        """
        timeline, storage = history.timeline, history.storage
        longest = 1 if self.n_step == 1 else int(span.max(initial=1))
        next_slots = timeline.later_of(rows, span)
        if self.frame_stack == 1:
            columns = storage.read(rows.slots)
        else:
            frames = timeline.behind_of(rows, self.frame_stack)
            columns = history.observations(frames)
            self._pad(columns, rows.steps)
            columns |= storage.read(rows.slots, history.other_paths)
            if longest == 1:  # In `relive bench --workload images`.
                next_slots = np.concatenate([frames[:, 1:], next_slots[:, np.newaxis]], axis=1)
            else:
                run = np.concatenate([frames, timeline.ahead_of(rows, longest + 1)[:, 1:]], axis=1)
                places = span[:, np.newaxis] + np.arange(self.frame_stack)
                next_slots = np.take_along_axis(run, places, axis=1)
        if rewards is None and longest > 1:
            rewards = storage.read(timeline.run_of(rows, longest), ["reward"])["reward"].T
        reward = columns["reward"] if rewards is None else returns.discounted_sums(rewards, span, self.gamma)
        discounts = returns.powers(self.gamma, longest, reward.dtype).take(span)
        discounts[is_terminal] = 0.0
        next_columns = self._next_columns(history, rows, next_slots, span)
        return batches.TransitionBatch(
            observation=trees.nested("observation", columns),
            action=trees.nested("action", columns),
            reward=reward,
            next_observation=trees.nested("observation", next_columns),
            next_discount=discounts,
            is_terminal=is_terminal,
            steps=span,
            keys=rows.keys,
            probabilities=probabilities,
            weights=weights,
            extras=nested_extras(columns),
        )

    def _next_columns(
        self, history: history_lib.StepStore, rows: timeline_lib.Rows, next_slots: arrays.Ints, span: arrays.Ints
    ) -> Columns:
        """Return the observations `span` [B] steps after the rows: in `next_slots`, or tails where those come then.

        There the last slot does not matter.
        """
        columns = history.observations(next_slots)
        (places,) = (span == rows.left).nonzero()
        if len(places):
            where = places if self.frame_stack == 1 else (places, -1)
            for path, tail in history.tails(rows.handles[places]).items():
                columns[path][where] = tail
        if self.frame_stack > 1:
            self._pad(columns, rows.steps + span)
        return columns

    def _pad(self, columns: Columns, steps: arrays.Ints) -> None:
        """Write what stands before the first frame into stacks up to `steps` [B]; the first frame is there already."""
        if self.stack_padding == "first":
            return
        (early,) = (steps < self.frame_stack - 1).nonzero()
        if len(early):
            is_before = np.arange(self.frame_stack)[::-1] > steps[early, np.newaxis]
            rows, frames = is_before.nonzero()
            for column in columns.values():
                column[early[rows], frames] = np.zeros((), column.dtype)


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
        validation.positive_int("length", self.length)
        validation.positive_int("stride", self.stride)
        validation.non_negative_int("burn_in", self.burn_in)
        validation.boolean("pad", self.pad)
        if self.burn_in >= self.length:
            raise errors.ArgumentError(f"burn_in must be below length = {self.length}, got {self.burn_in}")

    @property
    def _lag(self) -> int:
        """How many steps after its anchor the step is with which a window may start there, unless the anchor is 0."""
        return max(self.length - self.stride, 0) if self.pad else self.length - 1

    def is_readable(self, timeline: timeline_lib.Timeline, slots: arrays.Ints) -> arrays.Bools:
        """Return whether a step is an anchor, and enough steps are complete from it on [k]."""
        handles = timeline.handles(slots)
        steps = timeline.steps(slots, handles)
        complete = timeline.episodes.complete[handles]
        readable: arrays.Bools = steps + self._lag < complete
        if self.pad:
            readable |= (steps == 0) & (complete > 0)
        readable &= steps % self.stride == 0
        return readable

    def newly_readable(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> arrays.Ints:
        """Return the rows that lie so far before those that are complete now, and first steps where those count."""
        earlier = timeline.earlier(change.completed, self._lag)
        if self.pad and self._lag:
            first = change.completed[timeline.steps(change.completed, timeline.handles(change.completed)) == 0]
            return np.union1d(earlier, first)
        return earlier

    def readable_now_one(
        self, timeline: timeline_lib.Timeline, slot: int, completed: Sequence[int], ended: Sequence[int]
    ) -> Sequence[int]:
        """Return which of the rows so far before those that are complete now are anchors, and first steps."""
        lag = self._lag
        readable = set()
        for row in completed:
            step = timeline.step_of_one(row)
            if step >= lag and (step - lag) % self.stride == 0:
                earlier = timeline.earlier_of_one(row, lag)
                if earlier >= 0:
                    readable.add(earlier)
            if self.pad and step == 0:
                readable.add(row)
        return sorted(readable)

    def why_not_ready(self, timeline: timeline_lib.Timeline) -> str:
        """Return what is missing while there is no anchor, and how long the longest episode is."""
        if self.pad:
            return "no step with a known next observation is stored at the start of an episode"
        slots = timeline.alive_slots()
        handles = timeline.handles(slots)
        longest = np.max(timeline.episodes.complete[handles] - timeline.steps(slots, handles), initial=0)
        if longest >= self.length:
            return f"no sequence of {self.length} steps starts at a multiple of stride = {self.stride}"
        return f"a sequence has {self.length} steps and the longest episode is {longest}"

    def read(
        self, history: history_lib.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> batches.SequenceBatch:
        """Return the sequences from `slots` [B]."""
        return _read_sequences(history, slots, self.length, self.burn_in, probabilities, weights)


@dataclasses.dataclass(frozen=True)
class EpisodeWindow(Window[batches.SequenceBatch]):
    """A whole episode, once it has ended and while all of it is there; as long as the longest of its batch."""

    def is_readable(self, timeline: timeline_lib.Timeline, slots: arrays.Ints) -> arrays.Bools:
        """Return whether a step is the first of an ended episode [k]."""
        handles = timeline.handles(slots)
        episodes = timeline.episodes
        readable: arrays.Bools = (episodes.end[handles] != episode_table.OPEN) & (episodes.complete[handles] > 0)
        readable &= timeline.steps(slots, handles) == 0
        return readable

    def newly_readable(self, timeline: timeline_lib.Timeline, change: timeline_lib.Change) -> arrays.Ints:
        """Return the first rows of the episodes that have ended."""
        return np.unique(timeline.first(change.ended))

    def readable_now_one(
        self, timeline: timeline_lib.Timeline, slot: int, completed: Sequence[int], ended: Sequence[int]
    ) -> Sequence[int]:
        """Return the first rows of the episodes that have ended."""
        return super().readable_now_one(timeline, slot, completed, ended) if ended else ()

    def why_not_ready(self, timeline: timeline_lib.Timeline) -> str:
        """Return what is missing while there is no anchor."""
        return "no episode has ended of which every step is stored"

    def read(
        self, history: history_lib.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> batches.SequenceBatch:
        """Return the episodes from `slots` [B]."""
        longest = int(history.timeline.episodes.complete[history.timeline.handles(slots)].max(initial=0))
        return _read_sequences(history, slots, longest, 0, probabilities, weights)


def _read_sequences(
    history: history_lib.StepStore,
    slots: arrays.Ints,
    length: int,
    burn_in: int,
    probabilities: arrays.Floats,
    weights: arrays.Floats,
) -> batches.SequenceBatch:
    """Return up to `length` steps from each of `slots` [B], padded to it."""
    timeline = history.timeline
    episodes = timeline.episodes
    rows = timeline.rows(slots)
    span = np.minimum(episodes.complete[rows.handles] - rows.steps, length)
    offsets = np.arange(length + 1)
    mask = offsets[:-1] < span[:, np.newaxis]
    window = timeline.ahead_of(rows, length + 1)
    columns = history.storage.read(window[:, :-1], history.other_paths)
    observations = history.observations(window)
    if span.min(initial=length) < length:
        clear(columns, ~mask)
        clear(observations, offsets > span[:, np.newaxis])
    (places,) = (span == rows.left).nonzero()
    handles, lasts = rows.handles[places], span[places]
    if len(places):
        for path, tail in history.tails(handles).items():
            observations[path][places, lasts] = tail
    terminated, truncated = np.zeros_like(mask), np.zeros_like(mask)
    terminated[places, lasts - 1] = episodes.end[handles] == episode_table.TERMINATED
    truncated[places, lasts - 1] = episodes.end[handles] == episode_table.TRUNCATED
    return batches.SequenceBatch(
        observation=trees.nested("observation", observations),
        action=trees.nested("action", columns),
        reward=columns["reward"],
        terminated=terminated,
        truncated=truncated,
        mask=mask,
        is_burn_in=mask & (offsets[:-1] < burn_in),
        start_step=rows.steps,
        keys=rows.keys,
        probabilities=probabilities,
        weights=weights,
        extras=nested_extras(columns),
    )


def clear(columns: Columns, where: arrays.Bools) -> None:
    """Write zeros where `where` [B, k] of every column [B, k, *shape]."""
    for column in columns.values():
        column[where] = np.zeros((), column.dtype)


def nested_extras(columns: Columns) -> dict[str, Any]:
    """Return the extras among the columns, by name."""
    extras: Any = trees.nested("extras", columns)
    return dict(extras)
