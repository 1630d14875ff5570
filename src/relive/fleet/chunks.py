"""Chunks: what writers send to a shard, whole episodes or the next steps of one.

    writer     o0 o1 o2 o3 | o3 o4 o5 | o5 o6 o7 end       an episode of 7 steps in three chunks
                 a0 a1 a2  |  a3 a4   |  a5 a6
    first       0          |  3       |  5                 by which a shard knows what it follows

A chunk without steps ends its episode after those that were sent.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from relive.agents import tokens

Use: TypeAlias = tuple[bytes, int]
"""The name of a ticket, and which of its episodes one is."""
End: TypeAlias = Literal["OPEN", "TERMINATED", "TRUNCATED"]
"""Whether an episode goes on after a chunk, or how it ended with it."""
Step: TypeAlias = tuple[Any, Any, float, int | None]
"""Observation, action, reward, and which version of the policy chose the action, if that is said."""


class ColumnChunk(NamedTuple):
    """Consecutive steps of one episode of a writer: T rows of columns, and T + 1 of observations; trees of arrays."""

    episode: int
    first: int
    observations: Any
    actions: Any
    rewards: Any
    extras: Any
    end: End

    @property
    def rows(self) -> int:
        """Number of steps."""
        return len(self.rewards)


class JointChunk(NamedTuple):
    """Consecutive joint steps of one episode of a writer, as the arguments of `add`."""

    episode: int
    first: int
    steps: tuple[Mapping[str, Any], ...]
    end: End

    @property
    def rows(self) -> int:
        """Number of steps."""
        return len(self.steps)


class EpisodeChunk(NamedTuple):
    """Consecutive steps of one episode of a writer, which may end after them with an observation and its status.

    The first chunk has the ticket. If an episode fails whose ticket has the place again, the first chunk has none, or a
    later one returns it.
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
    metadata: Mapping[str, Any] | None = None

    @property
    def rows(self) -> int:
        """Number of steps."""
        return len(self.steps)

    @property
    def is_failed(self) -> bool:
        """Whether the episode ended as ABORTED after the steps."""
        return self.end == "ABORTED" or self.end[-1] == "ABORTED"


class TokenChunk(NamedTuple):
    """A whole episode of tokens, which counts as one row, and the other arguments of `add_episode`.

    Its steps are joined: each token is sent once, however many prompts it is in.
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
"""`episode` is the writer's number, and `end` is "OPEN" if the episode is open after the chunk."""


class Batch(TypedDict):
    """Chunks that are sent together: a plain dict, which is sent without being pickled.

    A writer numbers its batches over all shards, and says which is the oldest for which it waits, and whether it stays
    with this shard or leaves.
    """

    writer: bytes
    number: int
    oldest: int
    stays: bool
    chunks: tuple[Chunk, ...]
