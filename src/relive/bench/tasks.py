"""The task that every peer gets, and what an adapter of a peer has to do for it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
from typing import Any, TypeAlias

import numpy as np

from relive.common import arrays as arrays_lib
from relive.schema import schema as schema_lib
from relive.testing import synthetic

Answer: TypeAlias = dict[str, arrays_lib.Array]
"""A batch in the shape that all are compared in.

Transitions have observation [B, ...] or [B, stack, ...], action [B, ...], reward [B], next_observation as observation,
terminal [B] and, where the peer returns one, discount [B], for the bootstrap value. Sequences have observation, action,
reward and terminal [B, T, ...], and a mask [B, T] where the peer pads. Importance weights are weights [B].
"""

_VECTOR, _DISCRETE = schema_lib.Field((4,), "float32"), schema_lib.Field((), "int64")
_MOST_STEPS, _MOST_BYTES = 4_000, 1 << 26

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
        observation: What one observation, or one frame of a stack, is.
        action: What one action is.
        batch_size: Elements of a batch.
        n_step: Steps in a transition at most.
        gamma: The discount factor.
        frame_stack: Frames in an observation, one new a step.
        sequence_length: Steps in a sequence; 0 for transitions.
        prioritized: Whether draws follow priorities, with the exponents alpha and beta.
        by_episode: Whether the task is for buffers that keep whole episodes.
        returns: What a batch is made of: "arrays" or "tensors"; nothing where that does not matter.
        streams: Environments that write side by side.
        in_step: Whether their episodes end in the same calls.
        episode_lengths: The shortest and the longest episode.
    """

    capacity: int = 1_000_000
    observation: schema_lib.Field = _VECTOR
    action: schema_lib.Field = _DISCRETE
    batch_size: int = 256
    n_step: int = 1
    gamma: float = 0.99
    frame_stack: int = 1
    sequence_length: int = 0
    prioritized: bool = False
    alpha: float = 0.6
    beta: float = 0.4
    by_episode: bool = False
    returns: str = ""
    streams: int = 1
    in_step: bool = False
    episode_lengths: tuple[int, int] = (50, 350)

    @property
    def least(self) -> int:
        """A capacity of some hundred steps, or one that holds more episodes than a batch has sequences."""
        return max(500, 16 * self.streams, 2 * self.batch_size * self.episode_lengths[1] * bool(self.sequence_length))

    def story(self, steps: int) -> synthetic.Story:
        """Return episodes of this task's kind, of that many steps at least."""
        steps = max(steps, self.streams * self.episode_lengths[1])  # An episode for every stream.
        return synthetic.Story(self.observation, self.action, self.episode_lengths, steps, self.frame_stack)


class Buffer:
    """A peer's buffer, made for one task. Its name for each verb; a verb that it lacks raises CannotError.

    `prepared` and `answer` are not timed: they turn what all peers share into what a user of this peer has in hand,
    and back.

    Attributes:
        lacks: Features that the peer does not have.
        is_for_episodes: Whether it takes part in tasks by episode alone.
        names: Under which name, or by which key, a batch has what is called so in an Answer.
    """

    lacks: Sequence[str] = ()
    is_for_episodes = False
    names: Mapping[str, Any] = {}

    def __init__(self, task: Task) -> None:
        for feature in self.lacks:
            if getattr(task, feature) != getattr(Task, feature):
                raise CannotError(f"has nothing for {_FEATURES[feature]}")
        if self.is_for_episodes and not task.by_episode:
            raise CannotError("is for whole episodes alone")
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

    def update(self, sample: Any, priorities: arrays_lib.Floats) -> None:
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


def filled(make: Make, task: Task, steps: int, more: int) -> tuple[Buffer, synthetic.Story, Iterator[Any]]:
    """Return a buffer with that many steps, the story they are from, and the steps that follow, prepared, without end.

    Args:
        make: Returns the buffer.
        task: What the buffer is for.
        steps: How many to add.
        more: How many the story has beyond those, at least.
    """
    story, buffer = task.story(steps + more), make(task)
    if task.streams > 1:
        rows = _following_rows(buffer, task, story)
        for row in itertools.islice(rows, steps // task.streams):
            buffer.add(row)
        return buffer, story, rows
    head, rest = story.until(steps)
    buffer.fill(head)
    return buffer, story, _following_steps(buffer, task, rest)


def _following_steps(buffer: Buffer, task: Task, episodes: Iterable[synthetic.Episode]) -> Iterator[Any]:
    """Return the steps of those episodes; once at their end, the whole episodes among them over and over."""
    most = min(_MOST_STEPS, _MOST_BYTES // (2 * task.observation.nbytes * task.frame_stack))
    first: list[Any] = []
    whole: list[Any] = []
    for episode in episodes:
        (first if episode.start else whole).extend(map(buffer.prepared, episode.steps()))
        if len(whole) >= most:
            break
    return itertools.chain(first, itertools.cycle(whole))


def _following_rows(buffer: Buffer, task: Task, story: synthetic.Story) -> Iterator[Any]:
    """Return a step of every stream over and over; their episodes are of one length."""
    length, streams, lead = int(story.lengths[1]), range(task.streams), 0 if task.in_step else 7
    steps = [[vars(step).values() for step in story.part(k + 1, 0, length).steps()] for k in streams]
    rows = [[steps[k][(t + lead * k) % length] for k in streams] for t in range(length)]
    return itertools.cycle([buffer.prepared(synthetic.Step(*map(np.array, zip(*row, strict=True)))) for row in rows])
