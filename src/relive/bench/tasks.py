"""What is asked of every peer alike, and what an adapter of a peer has to do for it."""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import itertools
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.common import arrays
from relive.testing import synthetic

Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], arrays.Array]
"""Returns an array of that shape and dtype."""
Answer: TypeAlias = dict[str, arrays.Array]
"""A batch in the shape that all are compared in.

Transitions have observation [B, ...] or [B, stack, ...], action [B, ...], reward [B], next_observation as observation,
terminal [B] and, where the peer answers one, discount [B], for the bootstrap value. Sequences have observation, action,
reward and terminal [B, T, ...], and a mask [B, T] where the peer pads. Importance weights are weights [B].
"""


DISCRETE = synthetic.Kind((), "int64")
"""The action of most tasks."""

_PRIORITIES = 16
_MOST_STEPS, _MOST_BYTES = 4_000, 1 << 26

Feature: TypeAlias = Literal["n_step", "frame_stack", "sequences", "prioritized", "streams", "by_episode"]
"""What a task may ask for, and not every peer has."""

_WORDS: dict[Feature, str] = {
    "n_step": "several steps at once",
    "frame_stack": "stacks of frames",
    "sequences": "sequences",
    "prioritized": "priorities",
    "streams": "many streams at once",
    "by_episode": "whole episodes",
}


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
    observation: synthetic.Kind
    action: synthetic.Kind = DISCRETE
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

    def story(self, steps: int) -> synthetic.Story:
        """Return episodes of this task's kind, of that many steps at least."""
        steps = max(steps, self.streams * self.episode_lengths[1])  # An episode for every stream.
        return synthetic.Story(self.observation, self.action, self.episode_lengths, steps, self.frame_stack)

    def refuse(self, *features: Feature) -> None:
        """Raise CannotError if the task asks for one of those features."""
        asked = self._asked()
        for feature in features:
            if asked[feature]:
                raise CannotError(f"has nothing for {_WORDS[feature]}")

    def refuse_unless(self, feature: Feature) -> None:
        """Raise CannotError unless the task asks for that feature."""
        if not self._asked()[feature]:
            raise CannotError(f"is for {_WORDS[feature]} alone")

    def refuse_above(self, most: int) -> None:
        """Raise CannotError if more steps are to be stored: for peers that keep Python objects for each."""
        if self.capacity > most:
            raise CannotError(f"keeps Python objects for each step: more than {most:,} of them do not fit")

    def _asked(self) -> dict[Feature, bool]:
        return {
            "n_step": self.n_step > 1,
            "frame_stack": self.frame_stack > 1,
            "sequences": self.sequence_length > 0,
            "prioritized": self.prioritized,
            "streams": self.streams > 1,
            "by_episode": self.by_episode,
        }


class Buffer:
    """A peer's buffer, made for one task. Its name for each verb; a verb that it lacks raises CannotError.

    `prepared` and `answer` are not timed: they turn what all peers share into what a user of this peer has in hand,
    and back.
    """

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        """Store whole episodes in the fastest way the peer has; the last one may still be open."""
        for episode in episodes:
            for step in episode.steps():
                self.add(self.prepared(step))

    def prepared(self, step: synthetic.Step) -> Any:
        """Return a step as the peer's `add` takes it."""
        return step

    def prepared_streams(self, steps: list[synthetic.Step]) -> Any:
        """Return one step of every stream as the peer's `extend` takes it."""
        raise CannotError("has no way to add a step of every stream at once")

    def add(self, prepared: Any) -> None:
        """Add one step."""
        raise CannotError("has no way to add one step")

    def extend(self, prepared: Any) -> None:
        """Add one step of every stream."""
        raise CannotError("has no way to add a step of every stream at once")

    def sample(self) -> Any:
        """Draw a batch."""
        raise CannotError("has no such draw")

    def update(self, sample: Any, priorities: npt.NDArray[np.float64]) -> None:
        """Give the elements of a batch new priorities."""
        raise CannotError("has no priorities")

    def save(self, path: str) -> None:
        """Save itself to a file or directory that may not be there yet, or in the place of what it saved before."""
        raise CannotError("has no way to save itself")

    def load(self, path: str) -> None:
        """Become what was saved at that path."""
        raise CannotError("has no way to load itself")

    def answer(self, sample: Any) -> Answer:
        """Return a batch in the shape that all are compared in."""
        raise CannotError("has no such draw")


class Feed:
    """What a buffer is fed while it is timed, prepared beforehand: steps that go on from those that filled it.

    Args:
        buffer: Prepares them.
        task: Says how many streams there are, and how large a batch is.
        story: What the streams live through.
        episodes: What comes next; the whole ones among them are fed over and over.
    """

    def __init__(
        self,
        buffer: Buffer,
        task: Task,
        story: synthetic.Story,
        episodes: Iterable[synthetic.Episode],
    ) -> None:
        self._buffer, self._task, self._story, self._episodes = buffer, task, story, episodes
        rng = np.random.default_rng(1)
        drawn = [rng.random(task.batch_size) + 0.01 for _ in range(_PRIORITIES)]
        self.priorities: Iterator[npt.NDArray[np.float64]] = itertools.cycle(drawn)

    def steps(self) -> Iterator[Any]:
        """Give single steps, as the buffer's `add` takes them, without end."""
        step_bytes = 2 * self._task.observation.nbytes * self._task.frame_stack
        most = min(_MOST_STEPS, _MOST_BYTES // step_bytes)
        first: list[Any] = []
        whole: list[Any] = []
        for episode in self._episodes:
            prepared = [self._buffer.prepared(step) for step in episode.steps()]
            (first if episode.start else whole).extend(prepared)
            if len(whole) >= most:
                break
        return itertools.chain(first, itertools.cycle(whole))

    def rows(self) -> Iterator[Any]:
        """Give a step of every stream, as the buffer's `extend` takes it, without end.

        Each stream lives through an episode of its own over and over; all are of one length, and begin out of step.
        """
        length, streams = int(self._story.lengths[1]), self._task.streams
        steps = [list(self._story.part(number, 0, length).steps()) for number in range(1, streams + 1)]
        rows = [[steps[k][(t + 7 * k) % length] for k in range(streams)] for t in range(length)]
        return itertools.cycle([self._buffer.prepared_streams(row) for row in rows])


Make: TypeAlias = Callable[[Task], Buffer]
"""Returns a buffer for a task."""


def filled(make: Make, task: Task, steps: int, more: int) -> tuple[Buffer, synthetic.Story, Feed]:
    """Return a buffer that so many steps were added to, the story that they are from, and what comes next.

    Args:
        make: Returns the buffer.
        task: What the buffer is for.
        steps: How many to add.
        more: How many the story has beyond those, at least.
    """
    story, buffer = task.story(steps + more), make(task)
    head, rest = story.until(steps)
    feed = Feed(buffer, task, story, rest)
    if task.streams > 1:
        for row in itertools.islice(feed.rows(), steps // task.streams):
            buffer.extend(row)
    else:
        buffer.fill(head)
    return buffer, story, feed
