"""What a shard returns to writers, and numbers about it."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a shard had when it returned: what a client has seen of it.

    Attributes:
        life: Which life of the shard it was, another number for each process.
        inserted: How many steps it had ever stored.
        rows: How many steps were stored then; of a buffer of episodes, transitions.
        lost: How many rows were lost before.
    """

    life: int
    inserted: int
    rows: int
    lost: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """What a shard returns for a batch.

    Attributes:
        seen: What the shard has now.
        refused: Steps of the batch that the buffer refused.
        error: Why, of the first of them.
    """

    seen: Seen
    refused: int = 0
    error: Exception | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """What became of a batch that the writer had no answer to.

    Attributes:
        passed: How many of its first steps were stored or refused; None for all. The others never will be.
        refused: How many of those were refused.
        error: Why, of the first of them, if the shard still knows.
        seen: What the shard has now, as in an Ack: what counts as stored here is lost if the shard is.
    """

    passed: int | None
    refused: int = 0
    error: Exception | None = None
    seen: Seen | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardStats:
    """Numbers about one shard.

    Attributes:
        number: Which one.
        host: The name of its machine.
        pid: Its process.
        life: Which life it is in, another number for each process.
        buffer: What its buffer says of itself, as `get_stats` does.
        inserted: Steps ever stored.
        sampled: Samples ever drawn.
        size: Transitions that can be drawn.
        rows: Steps stored; of a buffer of episodes, transitions.
        recovered: Steps ever stored when this life began.
        lost: Rows that were there when a client last heard of an earlier life, and did not outlive it.
        refused: Steps that the buffer refused in this life.
        repeated: Batches that came a second time in this life, and were not stored again.
        writers: Writers whose lease has not run out.
        expired_leases: Leases that have run out in this life.
        aborted: Open episodes that were ended since their writer, or the process, was gone; in this life.
        cut: Open episodes that were truncated in this life since the buffer has too few streams for all of them.
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
        """What a client has seen of the shard who has these numbers."""
        return Seen(life=self.life, inserted=self.inserted, rows=self.rows, lost=self.lost)
