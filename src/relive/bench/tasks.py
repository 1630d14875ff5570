"""The task that every peer gets, and what an adapter of a peer has to do for it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any, TypeAlias

import numpy as np

from relive.common import arrays
from relive.schema import schema as schemas
from relive.testing import synthetic

Answer: TypeAlias = dict[str, arrays.Array]
"""A batch in the shape that all are compared in.

Transitions have observation [B, ...] or [B, stack, ...], action [B, ...], reward [B], next_observation as observation,
terminal [B] and, where the peer returns one, discount [B], for the bootstrap value. Sequences have observation, action,
reward and terminal [B, T, ...], and a mask [B, T] where the peer pads. Importance weights are weights [B].
"""

_MOST_STEPS, _MOST_BYTES = 4_000, 1 << 26
_DISCRETE = schemas.Field((), "int64")

_FEATURES = {
    "n_step": "several steps at once",
    "frame_stack": "stacks of frames",
    "sequence_length": "sequences",
    "prioritized": "priorities",
    "streams": "many streams at once",
    "by_episode": "whole episodes",
}
"""What a task may ask for, and not every peer has, by the attribute of the task."""


class CannotError(Exception):
    """A peer has nothing for a task; the message says what."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What a buffer has to hold and to return.

    Attributes:
        capacity: Steps stored.
        batch_size: Elements of a batch.
        observation: What one observation, or one frame of a stack, is.
        action: What one action is.
        n_step: Steps in a transition at most.
        gamma: The discount factor.
        frame_stack: Frames in an observation, one new a step.
        sequence_length: Steps in a sequence; 0 for transitions.
        prioritized: Whether draws follow priorities, with the exponents alpha and beta.
        by_episode: Whether the task is for buffers that keep whole episodes.
        streams: Environments that write side by side.
        episode_lengths: The shortest and the longest episode.
    """

    capacity: int
    observation: schemas.Field
    action: schemas.Field = _DISCRETE
    batch_size: int = 256
    n_step: int = 1
    gamma: float = 0.99
    frame_stack: int = 1
    sequence_length: int = 0
    prioritized: bool = False
    alpha: float = 0.6
    beta: float = 0.4
    by_episode: bool = False
    streams: int = 1
    episode_lengths: tuple[int, int] = (50, 350)

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """The shape of an observation with its stack."""
        return (self.frame_stack, *self.observation.shape) if self.frame_stack > 1 else self.observation.shape

    def story(self, steps: int) -> synthetic.Story:
        """Return episodes of this task's kind, of that many steps at least."""
        steps = max(steps, self.streams * self.episode_lengths[1])  # An episode for every stream.
        return synthetic.Story(self.observation, self.action, self.episode_lengths, steps, self.frame_stack)

    def asks(self, feature: str) -> bool:
        """Return whether a buffer needs that feature."""
        return bool(getattr(self, feature) != getattr(Task, feature))


class Buffer:
    """A peer's buffer, made for one task. Its name for each verb; a verb that it lacks raises CannotError.

    `prepared` and `answer` are not timed: they turn what all peers share into what a user of this peer has in hand,
    and back.

    Attributes:
        lacks: Features that the peer does not have.
        needs: Features without which it is of no use.
        most: Steps at most, for a peer that keeps Python objects for each.
        names: Under which name, or by which key, a batch has what is called so in an Answer.
    """

    lacks: Sequence[str] = ()
    needs: Sequence[str] = ()
    most: float = math.inf
    names: Mapping[str, Any] = {}

    def __init__(self, task: Task) -> None:
        for feature in self.lacks:
            if task.asks(feature):
                raise CannotError(f"has nothing for {_FEATURES[feature]}")
        for feature in self.needs:
            if not task.asks(feature):
                raise CannotError(f"is for {_FEATURES[feature]} alone")
        if task.capacity > self.most:
            raise CannotError(f"keeps Python objects for each step: more than {self.most:,} of them do not fit")
        self.task = task

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        """Store whole episodes in the fastest way the peer has; the last one may still be open."""
        for episode in episodes:
            for step in episode.steps():
                self.add(self.prepared(step))

    def prepared(self, step: synthetic.Step) -> Any:
        """Return a step, or one of every stream with an axis in front, as `add` takes it."""
        return step

    def add(self, prepared: Any) -> None:
        """Add a step, or one of every stream."""
        raise CannotError("has no way to add one step")

    def sample(self) -> Any:
        """Draw a batch."""
        raise CannotError("has no such draw")

    def update(self, sample: Any, priorities: arrays.Floats) -> None:
        """Update the priorities of a batch."""
        raise CannotError("has no priorities")

    def save(self, path: str) -> None:
        """Save itself to a file or directory that may not be there yet, or in the place of what it saved before."""
        raise CannotError("has no way to save itself")

    def load(self, path: str) -> None:
        """Become what was saved at that path."""
        raise CannotError("has no way to load itself")

    def answer(self, sample: Any) -> Answer:
        """Return a batch in the shape that all are compared in; what `names` finds in it, if not said otherwise."""
        shaped = ("observation", "next_observation", "action" if self.task.action.shape else "")
        lead, answer = 2 if self.task.sequence_length else 1, {}
        for name, key in self.names.items():
            column = sample.get(key) if hasattr(sample, "get") else getattr(sample, key, None)
            if column is not None:
                column = np.asarray(column)
                answer[name] = column if name in shaped else column.reshape(column.shape[:lead])
        return answer


Make: TypeAlias = Callable[[Task], Buffer]
"""Returns a buffer for a task."""
Following: TypeAlias = Callable[[], Iterator[Any]]
"""Returns what a buffer is fed while it is timed, prepared beforehand and without end."""


def filled(make: Make, task: Task, steps: int, more: int) -> tuple[Buffer, synthetic.Story, Following]:
    """Return a buffer with that many steps, the story they are from, and the steps that follow.

    Args:
        make: Returns the buffer.
        task: What the buffer is for.
        steps: How many to add.
        more: How many the story has beyond those, at least.
    """
    story, buffer = task.story(steps + more), make(task)
    head, rest = story.until(steps)
    if task.streams > 1:
        rows = functools.partial(following_rows, buffer, task, story)
        for row in itertools.islice(rows(), steps // task.streams):
            buffer.add(row)
        return buffer, story, rows
    buffer.fill(head)
    return buffer, story, functools.partial(following_steps, buffer, task, rest)


def following_steps(buffer: Buffer, task: Task, episodes: Iterable[synthetic.Episode]) -> Iterator[Any]:
    """Return the steps of those episodes; once at their end, the whole episodes among them over and over."""
    most = min(_MOST_STEPS, _MOST_BYTES // (2 * task.observation.nbytes * task.frame_stack))
    first: list[Any] = []
    whole: list[Any] = []
    for episode in episodes:
        (first if episode.start else whole).extend(map(buffer.prepared, episode.steps()))
        if len(whole) >= most:
            break
    return itertools.chain(first, itertools.cycle(whole))


def following_rows(buffer: Buffer, task: Task, story: synthetic.Story) -> Iterator[Any]:
    """Return a step of every stream over and over.

    Each stream has its own episode; all are of one length, and begin out of step.
    """
    length, streams = int(story.lengths[1]), range(task.streams)
    steps = [[vars(step).values() for step in story.part(k + 1, 0, length).steps()] for k in streams]
    rows = [[steps[k][(t + 7 * k) % length] for k in streams] for t in range(length)]
    return itertools.cycle([buffer.prepared(synthetic.Step(*map(np.array, zip(*row, strict=True)))) for row in rows])


def joined(parts: Iterable[dict[str, arrays.Array]]) -> dict[str, arrays.Array]:
    """Return columns one after the other."""
    kept = list(parts)
    return {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}


def in_one_line(error: BaseException) -> str:
    """Return the type and the first line of what an error says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
