"""Shard: one buffer of a fleet, its writers, and its files.

    writers     insert, settle, renew, leave          ┐                ┌  buffer
    learners    learn, mass, draw, update_priorities  ├──►  Shard  ──► ┤  sessions: who writes
    clients     ping, host, stats, apply, save        ┘                └  files: journal, checkpoint, marks

Invariant: storing and drawing happen between two awaits, so calls are serialized, and the batches of a writer are
stored in the order of their numbers even if they overtake each other in transit. After a restart, the buffer is
recovered from its files, `settle` tells each writer what was stored of its last batches, and losses are counted.

A writer holds a lease, which each of its calls renews. When it expires, the writer's open episodes end as ABORTED, or
as truncated in columns. If the writer was only slow, its next steps begin a new episode: nothing is ever spliced.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import os
import platform
from typing import Any, TypeVar

import numpy as np

from relive import errors
from relive.fleet import answers
from relive.fleet import chunks as chunks_lib
from relive.fleet import files as files_lib
from relive.fleet import marks as marks_lib
from relive.fleet import port as port_lib
from relive.fleet import ports
from relive.fleet import sessions as sessions_lib
from relive.persistence import codec as codec_lib
from relive.persistence import journal

Answer = TypeVar("Answer")

_KEYS_OF_A_LIFE = 2**38
"""So many keys a shard without a directory has in one life."""


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

    Raises:
        ArgumentError: The buffer is not supported.
        CheckpointError: The files cannot be read back.
    """

    def __init__(
        self,
        make_buffer: Callable[[], ports.Buffer],
        number: int,
        lease: float,
        durability: Durability,
        recovery: float = 60.0,
    ) -> None:
        buffer = make_buffer()
        ports.port_of(buffer)
        self._number, self._lease = number, lease
        self._checkpoint_seconds = durability.checkpoint_seconds
        # A different number for each process; random, since clocks may go backwards.
        self._life = int.from_bytes(os.urandom(7))
        self._files = files_lib.Files(durability.directory, durability.fsync, durability.codec)
        self._marks = self._files.marks
        buffer = self._files.attached(buffer)
        _reseed(buffer.rng, number)
        self._port = ports.port_of(buffer)
        # Without a directory keys would restart, and keys that a learner still holds must not refer to other steps.
        self._first_key = 0 if durability.directory is not None else self._life % 2**16 * _KEYS_OF_A_LIFE
        self._recovered = self._port.inserted
        self._lost = self._marks.lost
        self._sampled = max(self._marks.sampled, self._port.sampled)
        for mark in self._marks.found.values():
            self._marks.put(mark.settled(self._recovered))
        self._sessions = sessions_lib.Sessions(lease, 2 * recovery, self._marks.found)
        self._refused = self._repeated = self._expired = 0
        self._aborted = self._port.abandon_all()
        self._watcher: asyncio.Task[None] | None = None
        self._is_closed = False

    # For writers.

    async def insert(
        self, writer: bytes, number: int, answered: int, batch: Sequence[chunks_lib.Chunk]
    ) -> answers.Ack | None:
        """Store a writer's batch in order, unless it was stored before; return None if the session was closed.

        If the buffer refuses a step, the rest of its chunk is dropped and counted, and the first error is in the reply;
        other chunks are stored.

        Args:
            writer: The writer's name, 16 bytes.
            number: The number of the batch: 0, 1, 2 and so on.
            answered: The first number without a reply to the writer.
            batch: The chunks to store.

        Raises:
            ClosedError: The fleet was closed.
        """
        if self._is_closed:
            raise errors.ClosedError("the fleet was closed: start a new one")
        session = self._heard(writer)
        if not await session.turn(number, answered):
            return None
        if number < session.next:
            self._repeated += 1
        else:
            session.begin(number)
            refusal = self._store(writer, number, batch)
            if refusal is not None:
                session.refusals[number] = refusal
        refused, error = session.refusals.get(number, (0, None))
        return answers.Ack(seen=self._seen(), refused=refused, error=error)

    async def settle(self, writer: bytes, number: int) -> answers.Settlement:
        """Return what became of a batch without a reply, and close its session.

        Args:
            writer: The writer's name, 16 bytes.
            number: The number of the batch.
        """
        session = self._heard(writer)
        self._close(writer, session)
        return dataclasses.replace(self._settlement(session, writer, number), seen=self._seen())

    def _settlement(self, session: sessions_lib.Session, writer: bytes, number: int) -> answers.Settlement:
        if number < session.next:
            refused, error = session.refusals.get(number, (0, None))
            return answers.Settlement(passed=None, refused=refused, error=error)
        mark = self._marks.found.get(writer)
        if mark is None or number > mark.number:
            return answers.Settlement(passed=0)
        if number < mark.number:
            return answers.Settlement(passed=None)
        return answers.Settlement(passed=mark.passed(self._recovered), refused=mark.refused)

    async def renew(self, writer: bytes) -> answers.Seen:
        """Renew the lease of a writer that has nothing to send."""
        self._heard(writer)
        return self._seen()

    async def leave(self, writer: bytes) -> answers.Seen:
        """End the lease of a writer that is closed, and its open episodes."""
        self._close(writer, self._heard(writer))
        return self._seen()

    async def report(self, seen: answers.Seen) -> None:
        """Record what a client saw of an earlier life of the shard, and count the losses."""
        if seen.life != self._life:
            lost = seen.lost + max(min(seen.inserted - self._recovered, seen.rows), 0)
            self._lost = max(self._lost, lost)
            self._marks.put_counts(self._lost, self._sampled)

    # For learners.

    async def describe(self) -> port_lib.Description:
        """Describe the buffer."""
        self._watch()
        return self._port.describe()

    async def learn(self, policy_version: int) -> None:
        """Set the learner's policy version.

        Raises:
            ArgumentError: It is a column buffer.
        """
        self._port.learn(policy_version)

    async def mass(self, options: Mapping[str, Any], policy_version: int | None) -> port_lib.Mass:
        """Return how much there is to draw from; also sets the learner's version, if given.

        Raises:
            TypeError: The buffer's `sample` has no such options.
            ArgumentError: One of them is invalid.
        """
        self._watch()
        if policy_version is not None:
            self._port.learn(policy_version)
        return self._port.mass(options)

    async def draw(self, count: int, options: Mapping[str, Any], tick: int) -> Any:
        """Return `count` samples; None if nothing can be drawn any more."""
        try:
            rows = self._port.draw(count, options, tick)
        except errors.NotReadyError:
            return None
        self._sampled += count
        self._marks.put_counts(self._lost, self._sampled)
        if not isinstance(rows, list):
            rows.keys = rows.keys + self._first_key
        return rows

    async def update_priorities(self, keys: Any, priorities: Any, largest: float) -> int:
        """Update the priorities of steps, and return how many were still stored; `largest` is the fleet's largest."""
        buffer = self._port.buffer
        alive: int = buffer.update_priorities(keys - self._first_key, priorities)
        buffer.sampler.note_priority(largest)
        return alive

    # For all clients.

    async def ping(self) -> str:
        """Return "pong"."""
        self._watch()
        return "pong"

    async def host(self) -> str:
        """Return the host name of the machine."""
        return platform.node()

    async def stats(self) -> answers.ShardStats:
        """Return statistics of the shard."""
        port = self._port
        return answers.ShardStats(
            number=self._number,
            host=platform.node(),
            pid=os.getpid(),
            life=self._life,
            buffer=port.buffer.get_stats(),
            inserted=port.inserted,
            sampled=self._sampled,
            size=port.size,
            rows=port.rows,
            recovered=self._recovered,
            lost=self._lost,
            refused=self._refused,
            repeated=self._repeated,
            writers=self._sessions.num_leases,
            expired_leases=self._expired,
            aborted=self._aborted,
            cut=port.cut,
        )

    async def apply(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Apply a function to the buffer, and return its result."""
        return function(self._port.buffer, *arguments)

    async def save(self) -> None:
        """Save the buffer, writing in a thread while other calls run.

        Raises:
            ArgumentError: The shard has no directory.
            CheckpointError: The checkpoint could not be written.
        """
        await self._files.save(self._port.buffer)

    async def close(self) -> None:
        """End open episodes, and close the files. Closing twice has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._watcher is not None:
            self._watcher.cancel()
        self._sessions.close()
        try:
            self._aborted += self._port.abandon_all()
        finally:
            self._port.buffer.detach()
            self._files.close()

    # Internal.

    def expire(self, now: float) -> None:
        """End the leases that have expired by that time of the event loop's clock."""
        for writer, session in self._sessions.silent(now).items():
            self._aborted += self._port.abandon(writer)
            self._expired += 1
            session.has_lease = False
        for writer in self._sessions.forget(now):
            self._marks.forget(writer)

    def _watch(self) -> None:
        """Expire leases and save checkpoints periodically."""
        if self._watcher is None and not self._is_closed:
            self._watcher = asyncio.get_running_loop().create_task(self._watching())

    async def _watching(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self._checkpoint_seconds
        pause = min(self._lease / 4, 1.0, seconds or 1.0)
        saved = loop.time()
        while True:
            await asyncio.sleep(pause)
            with contextlib.suppress(errors.CheckpointError):  # A full disk must not end this loop.
                self.expire(loop.time())
                if seconds is not None and loop.time() - saved >= seconds:
                    saved = loop.time()
                    await self.save()

    def _heard(self, writer: bytes) -> sessions_lib.Session:
        self._watch()
        return self._sessions.hear(writer)

    def _close(self, writer: bytes, session: sessions_lib.Session) -> None:
        """Close a session, and end its open episodes."""
        session.close()
        self._aborted += self._port.abandon(writer)

    def _store(
        self, writer: bytes, number: int, batch: Sequence[chunks_lib.Chunk]
    ) -> tuple[int, Exception | None] | None:
        """Store the chunks of a batch, and return how many steps were refused, and the first error; None if none."""
        rows = sum([chunk.rows for chunk in batch])
        mark = marks_lib.Mark(writer, number, self._port.inserted, rows)
        self._marks.put(mark)
        error, refused = None, 0
        for chunk in batch:
            before = self._port.inserted
            try:
                self._port.insert(writer, chunk)
            except Exception as refusal:
                error = error or refusal
                refused += chunk.rows - (self._port.inserted - before)
                self._marks.put(dataclasses.replace(mark, refused=refused))
        self._refused += refused
        return None if error is None else (refused, error)

    def _seen(self) -> answers.Seen:
        return answers.Seen(life=self._life, inserted=self._port.inserted, rows=self._port.rows, lost=self._lost)


def _reseed(rng: np.random.Generator, number: int) -> None:
    """Give each shard an independent random stream, even if `make_buffer` seeds them all alike."""
    entropy = rng.integers(2**63, size=4).tolist()
    kind = type(rng.bit_generator)
    rng.bit_generator.state = kind(np.random.SeedSequence([*entropy, number])).state
