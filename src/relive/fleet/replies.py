"""The replies of shards and of their coordinator, and their statistics."""

from collections.abc import Iterable
import dataclasses
from typing import Any, Literal, NamedTuple, TypeAlias


class Policy(NamedTuple):
    """The version of the learner's policy, and from which versions learners have resumed so far, in order.

    The number of these is the generation: a policy is newer than all of earlier generations, whatever their versions.
    """

    resumed: tuple[int, ...] = ()
    version: int | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """What grows whenever the learner moves on or resumes."""
        return len(self.resumed), -1 if self.version is None else self.version


def newest(policies: Iterable[Policy]) -> Policy:
    """Return the newest of some policies; one without a version if there are none."""
    return max(policies, key=lambda policy: policy.rank, default=Policy())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """The numbers of the shards: in use, drawn from until their rows have aged out, and closed then.

    The version grows with each change.
    """

    version: int
    active: tuple[int, ...]
    draining: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()

    @property
    def shards(self) -> list[int]:
        """The numbers of all that can be drawn from, in order."""
        return sorted([*self.active, *self.draining])


class Progress(NamedTuple):
    """What a client has seen of a shard; as in ShardStats.

    Attributes:
        members: The version of the newest Members that the shard knows; 0 if none.
        queue: Changes whenever one who waits for the queue of the shard should look again; 0 without a queue.
    """

    incarnation: int
    inserted: int
    rows: int
    lost: int
    members: int = 0
    disk: str | None = None
    queue: int = 0


Outcome: TypeAlias = Literal["STORED", "FULL", "HELD"]
"""Whether a batch is stored; or not, since the disk is full; or in the buffer, and not yet on the full disk."""


class Receipt(NamedTuple):
    """What became of a batch, how many of its steps were refused, and the first error, if still known.

    If none was refused, that is a MisuseWarning which the process has made an error.
    """

    outcome: Outcome
    refused: int = 0
    error: Exception | None = None
    progress: Progress | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardStats:
    """Statistics of one shard.

    Attributes:
        number: Its number.
        host: The host name of its machine.
        pid: Its process id.
        incarnation: Its incarnation: a different number for each process.
        buffer: The `get_stats` of its buffer.
        inserted: Steps ever stored.
        sampled: Samples ever drawn.
        size: Transitions that can be drawn.
        rows: Number of stored steps; transitions for an episode buffer.
        recovered: Steps ever stored when this incarnation began.
        lost: Rows seen by a client in an earlier incarnation and not recovered.
        refused: Steps that the buffer refused in this incarnation.
        repeated: Batches received again in this incarnation, and not stored twice.
        writers: Writers whose lease has not run out.
        expired_leases: Leases that have run out in this incarnation.
        aborted: Open episodes ended in this incarnation because their writer or the process was gone.
        cut: Open episodes truncated in this incarnation because the buffer has too few streams.
        members: The newest list of shards that the shard knows.
        disk: Why the last batch could not be written to disk; None if it was.
    """

    number: int
    host: str
    pid: int
    incarnation: int
    buffer: Any
    inserted: int
    sampled: int
    size: int
    rows: int
    recovered: int
    lost: int
    refused: int
    repeated: int
    writers: int
    expired_leases: int
    aborted: int
    cut: int
    members: Members | None = None
    disk: str | None = None

    @property
    def progress(self) -> Progress:
        """The corresponding Progress."""
        version = 0 if self.members is None else self.members.version
        return Progress(self.incarnation, self.inserted, self.rows, self.lost, version, self.disk)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorStats:
    """Statistics of the coordinator of a fleet.

    Attributes:
        host: The host name of its machine.
        pid: Its process id.
        members: Which shards there are.
        writers: Number of writers so far; after a restart of its process, those with a lease and all later ones.
        left: For each shard that is being drained, how many steps the others must still store until it is closed;
            None if that is not known yet.
        inserted: Steps counted by the limiter; None without one.
        sampled: Samples counted by the limiter; None without one.
    """

    host: str
    pid: int
    members: Members
    writers: int
    left: dict[int, int | None]
    inserted: int | None
    sampled: int | None
