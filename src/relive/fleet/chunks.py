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
    extras: Any
    end: End

    @property
    def rows(self) -> int:
        """Number of steps, T."""
        return len(self.rewards)


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


class EpisodeChunk(NamedTuple):
    """Consecutive steps of one episode of a writer, for a shard with an episode buffer; see ColumnChunk.

    Attributes:
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
"""`episode` is the writer's number, and `end` is "OPEN" if the episode is open after the chunk."""


class Batch(TypedDict):
    """Chunks that are sent together: a plain dict, which is sent without being pickled.

    Attributes:
        writer: The writer's name, 16 bytes.
        number: The number of the batch: 0, 1, 2 and so on, over all shards.
        oldest: The oldest number for which the writer waits.
        stays: Whether the writer goes on with this shard; if not, it leaves.
        chunks: The chunks, in order.
    """

    writer: bytes
    number: int
    oldest: int
    stays: bool
    chunks: tuple[Chunk, ...]
