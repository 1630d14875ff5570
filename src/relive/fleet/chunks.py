"""Chunks: what writers send to a shard, whole episodes or the next steps of one.

    writer     o0 o1 o2 o3 | o3 o4 o5 | o5 o6 o7 end       an episode of 7 steps in three chunks
                 a0 a1 a2  |  a3 a4   |  a5 a6

A chunk can be split: if a shard dies while storing one, the rest becomes a separate chunk.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from relive.agents import tokens
from relive.common import trees

Use: TypeAlias = tuple[bytes, int]
"""The name of a ticket, and which of its episodes one is."""
End: TypeAlias = Literal["OPEN", "TERMINATED", "TRUNCATED"]
"""Whether an episode goes on after a chunk, or how it ended with it."""
Step: TypeAlias = tuple[Any, Any, float, int | None]
"""Observation, action, reward, and which version of the policy chose the action, if that is said."""


class ColumnChunk(NamedTuple):
    """Consecutive steps of one stream of a writer, for a shard with a column buffer.

    Attributes:
        stream: The writer's stream, which the shard maps to one of its own.
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
        """Number of steps, T."""
        return len(self.rewards)

    @property
    def is_whole(self) -> bool:
        """Whether it is a complete episode."""
        return self.is_start and self.end != "OPEN"

    def rest(self, stored: int) -> "ColumnChunk":
        """Return a chunk without the first `stored` steps, which must not be all."""
        later = slice(stored, None)
        extras = {name: trees.rows(column, later) for name, column in self.extras.items()}
        return self._replace(
            is_start=False,
            observations=trees.rows(self.observations, later),
            actions=trees.rows(self.actions, later),
            rewards=self.rewards[later],
            extras=extras,
        )


class JointChunk(NamedTuple):
    """Consecutive joint steps of one stream of a writer, for a shard with a joint buffer.

    Attributes:
        stream: The writer's stream, which the shard maps to one of its own.
        is_start: Whether an episode begins with them.
        steps: The arguments of `add` for each step [T].
        end: Whether the episode ended with the last step.
    """

    stream: int
    is_start: bool
    steps: tuple[Mapping[str, Any], ...]
    end: End

    @property
    def rows(self) -> int:
        """Number of steps, T."""
        return len(self.steps)

    @property
    def is_whole(self) -> bool:
        """Whether it is a complete episode."""
        return self.is_start and self.end != "OPEN"

    def rest(self, stored: int) -> "JointChunk":
        """Return a chunk without the first `stored` steps, which must not be all."""
        return self._replace(is_start=False, steps=self.steps[stored:])


class ColumnEnd(NamedTuple):
    """The end of an episode whose steps were all sent: truncated after the newest.

    Attributes:
        stream: The writer's stream.
    """

    stream: int

    @property
    def rows(self) -> int:
        """Number of steps."""
        return 0


class EpisodeChunk(NamedTuple):
    """Consecutive steps of one episode of a writer, for a shard with an episode buffer.

    Attributes:
        episode: The writer's number for the episode.
        is_start: Whether it begins with them.
        agent_id: The agent.
        group_id: The group, if any.
        policy_version: The policy version of the first step, unless the step specifies another.
        steps: Observation, action, reward, and the policy version if it changed, for each step [T].
        final: The tuple of final observation and status, if the episode ended after the steps.
        is_aborted: Whether it ended without a final observation.
        ticket: What admitted the episode, in its first chunk, unless its ticket has the place again.
        returned: What had admitted it, if it failed and its ticket has the place again, in a chunk after the first.
    """

    episode: int
    is_start: bool
    agent_id: str
    group_id: str | None
    policy_version: int | None
    steps: tuple[Step, ...]
    final: tuple[Any, Any] | None
    is_aborted: bool = False
    ticket: Use | None = None
    returned: Use | None = None

    @property
    def rows(self) -> int:
        """Number of steps, T."""
        return len(self.steps)

    @property
    def is_failed(self) -> bool:
        """Whether the episode ended as ABORTED after the steps."""
        return self.is_aborted or (self.final is not None and self.final[1] == "ABORTED")

    def version_after(self, count: int) -> int | None:
        """Return the policy version of the step after the first `count`, unless it specifies one."""
        said = [version for *_, version in self.steps[:count] if version is not None]
        return said[-1] if said else self.policy_version

    def rest(self, stored: int) -> "EpisodeChunk":
        """Return a chunk without the first `stored` steps, which must not be all."""
        return self._replace(is_start=False, policy_version=self.version_after(stored), steps=self.steps[stored:])


class TokenChunk(NamedTuple):
    """A whole episode of tokens; stored as a whole or not at all, it counts as one row.

    Attributes:
        joined: Its steps, joined: each token is sent once, however many prompts it is in.
        options: The other arguments of `add_episode`.
        ticket: What admitted the episode, unless it failed and its ticket has the place again.
    """

    joined: tokens.TokenEpisode
    options: Mapping[str, Any]
    ticket: Use | None = None

    @property
    def rows(self) -> int:
        """Number of episodes."""
        return 1


Chunk: TypeAlias = ColumnChunk | JointChunk | ColumnEnd | EpisodeChunk | TokenChunk


def episode(chunk: Chunk) -> tuple[int, bool]:
    """Return to which of a writer's episodes a chunk belongs, and whether that is open after it."""
    if isinstance(chunk, TokenChunk):
        return 0, False
    if isinstance(chunk, EpisodeChunk):
        return chunk.episode, chunk.final is None and not chunk.is_aborted
    return chunk.stream, not isinstance(chunk, ColumnEnd) and chunk.end == "OPEN"


def unstored(chunks: tuple[Chunk, ...], stored: int) -> tuple[Chunk, ...]:
    """Return the chunks without their first `stored` steps."""
    left: list[Chunk] = []
    for chunk in chunks:
        if not chunk.rows or not stored:
            left.append(chunk)
        elif stored < chunk.rows:
            assert not isinstance(chunk, ColumnEnd | TokenChunk)
            left.append(chunk.rest(stored))
        stored -= min(stored, chunk.rows)
    return tuple(left)
