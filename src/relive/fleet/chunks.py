"""Chunks: what writers send to a shard, whole episodes or the next steps of one.

    writer     o0 o1 o2 o3 | o3 o4 o5 | o5 o6 o7 end       an episode of 7 steps in three chunks
                 a0 a1 a2  |  a3 a4   |  a5 a6
    first       0          |  3       |  5                 by which a shard knows what it follows

A chunk without steps ends its episode after those that were sent.
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
    """Consecutive steps of one episode of a writer, for a shard with a column buffer.

    Attributes:
        episode: The writer's number for the episode.
        first: The index of the first step, t, in the episode.
        observations: o_t to o_{t+T} [T + 1, ...], a tree of arrays.
        actions: a_t to a_{t+T-1} [T, ...].
        rewards: r_t to r_{t+T-1} [T].
        extras: The extras of each step [T, ...], by name.
        end: How the episode ended with the last step, if it did.
    """

    episode: int
    first: int
    observations: Any
    actions: Any
    rewards: Any
    extras: Mapping[str, Any]
    end: End

    @property
    def rows(self) -> int:
        """Number of steps, T."""
        return len(self.rewards)

    def rest(self, stored: int) -> "ColumnChunk":
        """Return a chunk without the first `stored` steps, which must not be all."""
        later = slice(stored, None)
        extras = {name: trees.rows(column, later) for name, column in self.extras.items()}
        return self._replace(
            first=self.first + stored,
            observations=trees.rows(self.observations, later),
            actions=trees.rows(self.actions, later),
            rewards=self.rewards[later],
            extras=extras,
        )


class JointChunk(NamedTuple):
    """Consecutive joint steps of one episode of a writer, as a ColumnChunk; `steps` are the arguments of `add` [T]."""

    episode: int
    first: int
    steps: tuple[Mapping[str, Any], ...]
    end: End

    @property
    def rows(self) -> int:
        """Number of steps, T."""
        return len(self.steps)

    def rest(self, stored: int) -> "JointChunk":
        """Return a chunk without the first `stored` steps, which must not be all."""
        return self._replace(first=self.first + stored, steps=self.steps[stored:])


class EpisodeChunk(NamedTuple):
    """Consecutive steps of one episode of a writer, for a shard with an episode buffer.

    Attributes:
        episode: The writer's number for the episode.
        first: The index of the first step in the episode.
        agent_id: The agent.
        group_id: The group, if any.
        policy_version: The policy version of the first step, unless the step specifies another.
        steps: Observation, action, reward, and the policy version if it changed, for each step [T].
        end: The final observation and the status, if the episode ended after the steps; ABORTED without the former.
        ticket: What admitted the episode, in its first chunk, unless its ticket has the place again.
        returned: What had admitted it, if it failed and its ticket has the place again, in a chunk after the first.
    """

    episode: int
    first: int
    agent_id: str
    group_id: str | None
    policy_version: int | None
    steps: tuple[Step, ...] = ()
    end: tuple[Any, Any] | Literal["OPEN", "ABORTED"] = "OPEN"
    ticket: Use | None = None
    returned: Use | None = None

    @property
    def rows(self) -> int:
        """Number of steps, T."""
        return len(self.steps)

    @property
    def is_failed(self) -> bool:
        """Whether the episode ended as ABORTED after the steps."""
        return self.end == "ABORTED" or self.end[-1] == "ABORTED"

    def rest(self, stored: int) -> "EpisodeChunk":
        """Return a chunk without the first `stored` steps, which must not be all."""
        said = [version for *_, version in self.steps[:stored] if version is not None]
        version = said[-1] if said else self.policy_version
        return self._replace(first=self.first + stored, policy_version=version, steps=self.steps[stored:])


class TokenChunk(NamedTuple):
    """A whole episode of tokens, which counts as one row.

    Attributes:
        joined: Its steps, joined: each token is sent once, however many prompts it is in.
        options: The other arguments of `add_episode`.
        ticket: What admitted the episode, unless it failed and its ticket has the place again.
    """

    joined: tokens.TokenEpisode
    options: Mapping[str, Any]
    ticket: Use | None = None
    episode: int = 0
    first: int = 0
    end: Literal["WHOLE"] = "WHOLE"

    @property
    def rows(self) -> int:
        """Number of episodes."""
        return 1


Chunk: TypeAlias = ColumnChunk | JointChunk | EpisodeChunk | TokenChunk


def episode(chunk: Chunk) -> tuple[int, bool]:
    """Return to which of a writer's episodes a chunk belongs, and whether that is open after it."""
    return chunk.episode, chunk.end == "OPEN"


def unstored(chunks: tuple[Chunk, ...], stored: int) -> tuple[Chunk, ...]:
    """Return the chunks without their first `stored` steps."""
    left: list[Chunk] = []
    for chunk in chunks:
        if not chunk.rows or not stored:
            left.append(chunk)
        elif stored < chunk.rows:
            assert not isinstance(chunk, TokenChunk)
            left.append(chunk.rest(stored))
        stored -= min(stored, chunk.rows)
    return tuple(left)
