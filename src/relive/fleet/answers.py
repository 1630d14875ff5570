"""The replies of a shard to writers, and its statistics."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a client has seen of a shard.

    Attributes:
        life: The life of the shard: a different number for each process.
        inserted: Number of steps ever stored.
        rows: Number of steps stored then; transitions for an episode buffer.
        lost: Number of rows lost before.
    """

    life: int
    inserted: int
    rows: int
    lost: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """The reply of a shard to a batch.

    Attributes:
        seen: The current state of the shard.
        refused: Number of steps of the batch that the buffer refused.
        error: The error of the first of them.
    """

    seen: Seen
    refused: int = 0
    error: Exception | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """The outcome of a batch that was not acknowledged.

    Attributes:
        passed: How many of its first steps were stored or refused; None for all. The others never will be.
        refused: Number of those that were refused.
        error: The error of the first of them, if still known.
        seen: The current state of the shard, as in an Ack.
    """

    passed: int | None
    refused: int = 0
    error: Exception | None = None
    seen: Seen | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardStats:
    """Statistics of one shard.

    Attributes:
        number: Its number.
        host: The host name of its machine.
        pid: Its process id.
        life: Its life: a different number for each process.
        buffer: The `get_stats` of its buffer.
        inserted: Steps ever stored.
        sampled: Samples ever drawn.
        size: Transitions that can be drawn.
        rows: Number of stored steps; transitions for an episode buffer.
        recovered: Steps ever stored when this life began.
        lost: Rows seen by a client in an earlier life and not recovered.
        refused: Steps that the buffer refused in this life.
        repeated: Batches received again in this life, and not stored twice.
        writers: Writers whose lease has not run out.
        expired_leases: Leases that have run out in this life.
        aborted: Open episodes ended in this life because their writer or the process was gone.
        cut: Open episodes truncated in this life because the buffer has too few streams.
    """

    number: int
    host: str
    pid: int
    life: int
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
    def seen(self) -> Seen:
        """The corresponding Seen."""
        return Seen(life=self.life, inserted=self.inserted, rows=self.rows, lost=self.lost)
