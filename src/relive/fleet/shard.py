"""Shard: one buffer of a fleet, its writers, and its files.

    writers     insert, resolve, renew, leave                ┐                ┌  buffer
    learners    set_policy_version, draw, update_priorities  ├──►  Shard  ──► ┤  sessions: who writes
    clients     ping, host, stats, apply, save               ┘                └  files: journal, checkpoint, ledger

Invariant: calls run one at a time, and the batches of a writer are stored in the order of their numbers. After a
restart, the buffer is recovered from its files, `resolve` tells each writer what was stored of its last batches, and
losses are counted. What is due at a certain time, such as the end of a lease, happens at the next call.

A writer holds a lease, which each of its calls renews. When it expires, the writer's open episodes end as ABORTED, or
as truncated in columns. If the writer was only slow, its next steps begin a new episode: nothing is ever spliced.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import contextlib
import dataclasses
import os
import platform
import time
from typing import Any, TypeVar

import numpy as np

from relive import errors
from relive.fleet import adapter as adapter_lib
from relive.fleet import adapters
from relive.fleet import chunks as chunks_lib
from relive.fleet import files as files_lib
from relive.fleet import ledger as ledger_lib
from relive.fleet import replies
from relive.fleet import sessions as sessions_lib
from relive.persistence import codec as codec_lib
from relive.persistence import journal

Result = TypeVar("Result")

_KEYS_OF_AN_INCARNATION = 2**38
"""Number of keys of a shard without a directory in one incarnation."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Durability:
    """How a shard is persisted.

    Attributes:
        directory: The directory of the shard's files; None for no persistence.
        fsync: When stored steps are synced to disk; see Journal.
        checkpoint_seconds: How often the whole buffer is saved, including priorities; None for never.
        codec: Encodes observations and actions of an episode buffer.
    """

    directory: str | None = None
    fsync: journal.Policy = dataclasses.field(default_factory=lambda: journal.EverySeconds(1.0))
    checkpoint_seconds: float | None = None
    codec: codec_lib.Codec | None = None


class Shard:
    """One buffer of a fleet.

    Args:
        make_buffer: Returns a new buffer.
        number: The number of the shard.
        lease: Seconds after which a silent writer counts as gone.
        durability: How it is persisted.
        recovery: Seconds for which writers look for a lost shard, and for which their sessions are remembered beyond
            the lease.
        clock: Returns the time in seconds.

    Raises:
        ArgumentError: The buffer is not supported.
        CheckpointError: The files cannot be read back.
    """

    def __init__(
        self,
        make_buffer: Callable[[], adapters.Buffer],
        number: int,
        lease: float,
        durability: Durability,
        recovery: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        buffer = make_buffer()
        adapters.adapter_of(buffer)
        self._number, self._clock = number, clock
        self._checkpoint_seconds = durability.checkpoint_seconds or float("inf")
        self._pause = min(lease / 4, 1.0, self._checkpoint_seconds)
        self._looked = self._saved = clock()
        self._saves: dict[bytes, futures.Future[None]] = {}
        # A different number for each process; random, since clocks may go backwards.
        self._incarnation = int.from_bytes(os.urandom(7))
        self._files = files_lib.Files(durability.directory, durability.fsync, durability.codec)
        self._ledger = self._files.ledger
        buffer = self._files.attached(buffer)
        _reseed(buffer.rng, number)
        self._adapter = adapters.adapter_of(buffer)
        # Without a directory keys would restart, and keys that a learner still holds must not refer to other steps.
        self._first_key = 0 if durability.directory is not None else self._incarnation % 2**16 * _KEYS_OF_AN_INCARNATION
        self._is_independent = self._adapter.describe().is_independent
        self._recovered = self._adapter.inserted
        self._lost = self._ledger.lost
        self._sampled = max(self._ledger.sampled, self._adapter.sampled)
        for entry in self._ledger.found.values():
            self._ledger.put(entry.resolved(self._recovered))
        self._sessions = sessions_lib.Sessions(lease, 2 * recovery, self._ledger.found)
        self._refused = self._repeated = self._expired = 0
        self._aborted = self._adapter.abandon_all()
        self._is_closed = False

    # For writers.

    def insert(
        self, writer: bytes, number: int, acknowledged: int, batch: Sequence[chunks_lib.Chunk]
    ) -> replies.Ack | None:
        """Store a writer's batch, unless it was stored before.

        Return None if it must come under another name, since the session was closed or an earlier batch was lost on the
        way. If the buffer refuses a step, its chunk is refused and counted, and the first error is in the reply; other
        chunks are stored.

        Args:
            writer: The writer's name, 16 bytes.
            number: The number of the batch: 0, 1, 2 and so on.
            acknowledged: The first number without a reply to the writer.
            batch: The chunks to store.

        Raises:
            ClosedError: The fleet was closed.
        """
        if self._is_closed:
            raise errors.ClosedError("the fleet was closed: start a new one")
        session = self._renewed(writer)
        session.acknowledge(acknowledged)
        if number > session.next:
            self._close(writer, session)
        if session.is_closed:
            return None
        if number < session.next:
            self._repeated += 1
        else:
            session.next = number + 1
            refusal = self._store(writer, number, batch)
            if refusal is not None:
                session.refusals[number] = refusal
        refused, error = session.refusals.get(number, (0, None))
        return replies.Ack(progress=self._progress(), refused=refused, error=error)

    def resolve(self, writer: bytes, number: int) -> replies.Resolution:
        """Return what became of a batch without a reply, and close its session.

        Args:
            writer: The writer's name, 16 bytes.
            number: The number of the batch.
        """
        session = self._renewed(writer)
        self._close(writer, session)
        return dataclasses.replace(self._resolution(session, writer, number), progress=self._progress())

    def _resolution(self, session: sessions_lib.Session, writer: bytes, number: int) -> replies.Resolution:
        if number < session.next:
            refused, error = session.refusals.get(number, (0, None))
            return replies.Resolution(passed=None, refused=refused, error=error)
        entry = self._ledger.found.get(writer)
        if entry is None or number > entry.number:
            return replies.Resolution(passed=0)
        if number < entry.number:
            return replies.Resolution(passed=None)
        return replies.Resolution(passed=entry.passed(self._recovered), refused=entry.refused)

    def renew(self, writer: bytes) -> replies.Progress:
        """Renew the lease of a writer that has nothing to send."""
        self._renewed(writer)
        return self._progress()

    def leave(self, writer: bytes) -> replies.Progress:
        """End the lease of a writer that is closed, and its open episodes."""
        self._close(writer, self._renewed(writer))
        return self._progress()

    def report(self, progress: replies.Progress) -> None:
        """Record what a client saw of an earlier incarnation of the shard, and count the losses."""
        if progress.incarnation != self._incarnation:
            lost = progress.lost + max(min(progress.inserted - self._recovered, progress.rows), 0)
            self._lost = max(self._lost, lost)
            self._ledger.put_counts(self._lost, self._sampled)

    # For learners.

    def describe(self) -> adapter_lib.Description:
        """Describe the buffer."""
        self._do_what_is_due()
        return self._adapter.describe()

    def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version.

        Raises:
            ArgumentError: It is a column buffer.
        """
        self._adapter.set_policy_version(version)

    def draw(self, request: adapter_lib.Request) -> tuple[adapter_lib.SamplingWeight, list[Any]]:
        """Return how much there is to draw from, and the samples of some batches, drawn now.

        Samples that are independent come as one draw for all batches, in order; others as one for each batch. None
        stands for no samples, also if nothing can be drawn any more.

        Raises:
            TypeError: The buffer's `sample` has no such options.
            ArgumentError: One of them is invalid.
        """
        self._do_what_is_due()
        if request.policy_version is not None:
            self._adapter.set_policy_version(request.policy_version)
        self._adapter.check(request.options)
        weight = self._adapter.weight(request.options)
        counts = [sum(request.counts)] if self._is_independent else request.counts
        parts = [self._part(count, request.options) for count in counts]
        self._adapter.set_ticks(max(weight.ticks, request.ticks) + request.begun)
        if any(request.counts):
            self._ledger.put_counts(self._lost, self._sampled)
        return weight, parts

    def _part(self, count: int, options: Mapping[str, Any]) -> Any:
        if not count:
            return None
        try:
            rows = self._adapter.draw(count, options)
        except errors.NotReadyError:
            return None
        self._sampled += count
        if not isinstance(rows, list) and self._first_key:
            rows.keys = rows.keys + self._first_key
        return rows

    def update_priorities(self, keys: Any, priorities: Any, largest: float) -> tuple[adapter_lib.SamplingWeight, int]:
        """Update the priorities of steps; return how much there is to draw from then, and how many were still stored.

        Args:
            keys: Their keys [k].
            priorities: Their priorities [k].
            largest: The largest priority of the fleet.
        """
        buffer = self._adapter.buffer
        alive: int = buffer.update_priorities(keys - self._first_key, priorities)
        buffer.sampler.note_priority(largest)
        return self._adapter.weight({}), alive

    # For all clients.

    def ping(self) -> str:
        """Return "pong"."""
        self._do_what_is_due()
        return "pong"

    def host(self) -> str:
        """Return the host name of the machine."""
        return platform.node()

    def stats(self) -> replies.ShardStats:
        """Return statistics of the shard."""
        self._do_what_is_due()
        adapter = self._adapter
        return replies.ShardStats(
            number=self._number,
            host=platform.node(),
            pid=os.getpid(),
            incarnation=self._incarnation,
            buffer=adapter.buffer.get_stats(),
            inserted=adapter.inserted,
            sampled=self._sampled,
            size=adapter.size,
            rows=adapter.rows,
            recovered=self._recovered,
            lost=self._lost,
            refused=self._refused,
            repeated=self._repeated,
            writers=self._sessions.num_leases,
            expired_leases=self._expired,
            aborted=self._aborted,
            cut=adapter.cut,
        )

    def apply(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Apply a function to the buffer, and return its result."""
        self._do_what_is_due()
        return function(self._adapter.buffer, *arguments)

    def save(self, request: bytes) -> bool:
        """Return whether the buffer has been saved for that request; the first call with it starts to, in a thread.

        Raises:
            ArgumentError: The shard has no directory.
            CheckpointError: The checkpoint could not be written.
        """
        if request not in self._saves:
            self._saves[request] = self._files.save(self._adapter.buffer)
        if not self._saves[request].done():
            return False
        self._saves.pop(request).result()
        return True

    def close(self) -> None:
        """End open episodes, and close the files. Closing twice has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._aborted += self._adapter.abandon_all()
        finally:
            self._adapter.buffer.detach()
            self._files.close()

    # Internal.

    def _do_what_is_due(self) -> None:
        """End the leases that have run out, and start to save a checkpoint if it is time."""
        now = self._clock()
        if now - self._looked < self._pause or self._is_closed:
            return
        self._looked = now
        for writer, session in self._sessions.silent(now).items():
            self._aborted += self._adapter.abandon(writer)
            self._expired += 1
            session.has_lease = False
        for writer in self._sessions.forget(now):
            self._ledger.forget(writer)
        if now - self._saved >= self._checkpoint_seconds:
            self._saved = now
            with contextlib.suppress(errors.CheckpointError):  # A full disk must not hold up the call.
                self._files.save(self._adapter.buffer)

    def _renewed(self, writer: bytes) -> sessions_lib.Session:
        self._do_what_is_due()
        return self._sessions.renew(writer, self._clock())

    def _close(self, writer: bytes, session: sessions_lib.Session) -> None:
        """Close a session, and end its open episodes."""
        session.close()
        self._aborted += self._adapter.abandon(writer)

    def _store(
        self, writer: bytes, number: int, batch: Sequence[chunks_lib.Chunk]
    ) -> tuple[int, Exception | None] | None:
        """Store the chunks of a batch, and return how many steps were refused, and the first error; None if none."""
        rows = sum([chunk.rows for chunk in batch])
        entry = ledger_lib.Entry(writer, number, self._adapter.inserted, rows)
        self._ledger.put(entry)
        error, refused = None, 0
        for chunk in batch:
            before = self._adapter.inserted
            try:
                self._adapter.insert(writer, chunk)
            except Exception as refusal:
                error = error or refusal
                refused += chunk.rows - (self._adapter.inserted - before)
                self._ledger.put(dataclasses.replace(entry, refused=refused))
        self._refused += refused
        return None if error is None else (refused, error)

    def _progress(self) -> replies.Progress:
        adapter = self._adapter
        return replies.Progress(
            incarnation=self._incarnation, inserted=adapter.inserted, rows=adapter.rows, lost=self._lost
        )


def _reseed(rng: np.random.Generator, number: int) -> None:
    """Give each shard an independent random stream, even if `make_buffer` seeds them all alike."""
    entropy = rng.integers(2**63, size=4).tolist()
    kind = type(rng.bit_generator)
    rng.bit_generator.state = kind(np.random.SeedSequence([*entropy, number])).state
