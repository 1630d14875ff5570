"""What writers send to a shard: whole episodes, or the next steps of one that goes on.

    writer     o0 o1 o2 o3 | o3 o4 o5 | o5 o6 o7 end       an episode of 7 steps in three chunks
                 a0 a1 a2  |  a3 a4   |  a5 a6

A chunk can be cut: where a shard died in the middle of one, what it had not yet stored is a chunk of its own.
"""

import dataclasses
from typing import Any, ClassVar, Literal, TypeAlias

from relive.common import trees

End: TypeAlias = Literal["OPEN", "TERMINATED", "TRUNCATED"]
"""Whether an episode goes on after a chunk, or how it ended with it."""
Step: TypeAlias = tuple[Any, Any, float, int | None]
"""Observation, action, reward, and which version of the policy chose the action, if that is said."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ColumnChunk:
    """Consecutive steps of one stream of a writer, for a shard with a buffer of columns.

    Attributes:
        stream: Which of the writer's streams they are of; the shard has a stream of its own for it.
        is_start: Whether an episode begins with them.
        observations: o_t to o_{t+T} [T + 1, ...], a tree of arrays.
        actions: a_t to a_{t+T-1} [T, ...].
        rewards: r_t to r_{t+T-1} [T].
        extras: The extras of each step [T, ...], by name.
        end: How the episode ended with the last step, if it did.
    """

    stream: int
    is_start: bool
    observations: Any
    actions: Any
    rewards: Any
    extras: dict[str, Any]
    end: End

    @property
    def rows(self) -> int:
        """How many steps it has, T."""
        return len(self.rewards)

    @property
    def is_whole(self) -> bool:
        """Whether it is an episode from its beginning to its end."""
        return self.is_start and self.end != "OPEN"

    def rest(self, stored: int) -> "ColumnChunk":
        """Return the chunk of its steps after the first `stored` ones, fewer than all."""
        later = slice(stored, None)
        extras = {name: trees.rows(column, later) for name, column in self.extras.items()}
        return dataclasses.replace(
            self,
            is_start=False,
            observations=trees.rows(self.observations, later),
            actions=trees.rows(self.actions, later),
            rewards=self.rewards[later],
            extras=extras,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ColumnEnd:
    """The end of an episode whose steps have all been sent: it is truncated after the newest.

    Attributes:
        stream: Which of the writer's streams it is in.
    """

    stream: int
    rows: ClassVar[int] = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeChunk:
    """Consecutive steps of one episode of a writer, for a shard with a buffer of episodes.

    Attributes:
        episode: The writer's own number of the episode.
        is_start: Whether it begins with them.
        agent_id: Who lives it.
        group_id: Which episodes it belongs with, if somebody has said it.
        policy_version: Which version of the policy its first step was chosen by, unless the step says another one.
        steps: Observation, action, reward, and the version of the policy if it is another one, for each step [T].
        final: The final observation and the status, in a tuple, if it ended after them.
        is_aborted: Whether it ended, and nobody knows what followed the last step.
    """

    episode: int
    is_start: bool
    agent_id: str
    group_id: str | None
    policy_version: int | None
    steps: tuple[Step, ...]
    final: tuple[Any, Any] | None
    is_aborted: bool = False

    @property
    def rows(self) -> int:
        """How many steps it has, T."""
        return len(self.steps)

    def version_after(self, count: int) -> int | None:
        """Return which version of the policy the step after the first `count` ones is of, unless it says so itself."""
        said = [version for *_, version in self.steps[:count] if version is not None]
        return said[-1] if said else self.policy_version

    def rest(self, stored: int) -> "EpisodeChunk":
        """Return the chunk of its steps after the first `stored` ones, fewer than all."""
        return dataclasses.replace(
            self, is_start=False, policy_version=self.version_after(stored), steps=self.steps[stored:]
        )


Chunk: TypeAlias = ColumnChunk | ColumnEnd | EpisodeChunk


def unstored(chunks: tuple[Chunk, ...], stored: int) -> tuple[Chunk, ...]:
    """Return what is left of chunks, in their order, of which the first `stored` steps are stored already."""
    left: list[Chunk] = []
    for chunk in chunks:
        if isinstance(chunk, ColumnEnd) or not chunk.rows or not stored:
            left.append(chunk)
        elif stored < chunk.rows:
            left.append(chunk.rest(stored))
        stored -= min(stored, chunk.rows)
    return tuple(left)
