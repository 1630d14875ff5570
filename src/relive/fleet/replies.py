"""The replies of a shard to writers, and its statistics."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What a client has seen of a shard.

    Attributes:
        incarnation: The incarnation of the shard: a different number for each process.
        inserted: Number of steps ever stored.
        rows: Number of steps stored then; transitions for an episode buffer.
        lost: Number of rows lost before.
    """

    incarnation: int
    inserted: int
    rows: int
    lost: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """The reply of a shard to a batch.

    Attributes:
        progress: The current state of the shard.
        refused: Number of steps of the batch that the buffer refused.
        error: The error of the first of them.
    """

    progress: Progress
    refused: int = 0
    error: Exception | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """The outcome of a batch that was not acknowledged.

    Attributes:
        passed: How many of its first steps were stored or refused; None for all. The others never will be.
        refused: Number of those that were refused.
        error: The error of the first of them, if still known.
        progress: The current state of the shard, as in an Ack.
    """

    passed: int | None
    refused: int = 0
    error: Exception | None = None
    progress: Progress | None = dataclasses.field(default=None, compare=False)


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

    @property
    def progress(self) -> Progress:
        """The corresponding Progress."""
        return Progress(incarnation=self.incarnation, inserted=self.inserted, rows=self.rows, lost=self.lost)
