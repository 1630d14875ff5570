"""One shard of a fleet: a buffer, who writes to it, and what outlives its process.

    writers     insert, settle, renew, leave          ┐                ┌  buffer
    learners    learn, mass, draw, update_priorities  ├──►  Shard  ──► ┤  sessions: who writes
    anybody     ping, host, stats, apply, save        ┘                └  files: journal, checkpoint, marks

The law of this file: what is stored or drawn is so between two awaits; so calls happen one after the other, and the
batches of a writer in the order of their numbers, though they may overtake each other on their way. When the process
is killed and made again, the buffer comes back from its files, `settle` tells each writer what of its last batches is
there, and what is gone is counted.

A writer holds a lease, which each of its calls renews. When it has run out the writer's open episodes end, as ABORTED
or in columns as truncated. If it was only slow, its next steps begin a new episode: nothing is ever spliced.
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
    """What of a shard outlives its process.

    Attributes:
        directory: Where the shard keeps its files; None for nowhere.
        fsync: When what it has stored is on the disk; see Journal.
        checkpoint_seconds: How often it is saved as a whole, with its priorities; None for never.
        codec: What makes bytes of observations and actions, of a buffer of episodes.
    """

    directory: str | None = None
    fsync: journal.Policy = dataclasses.field(default_factory=lambda: journal.EverySeconds(1.0))
    checkpoint_seconds: float | None = None
    codec: codec_lib.Codec | None = None


class Shard:
    """One buffer of a fleet.

    Args:
        make_buffer: Returns a new buffer.
        number: Which shard it is.
        lease: For how many seconds a writer is waited for.
        durability: How it persists.
        recovery: For how many seconds writers look for a lost shard; it knows so much longer what they have sent.

    Raises:
        ArgumentError: The buffer is none that a shard can have.
        CheckpointError: What was kept cannot be read back.
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
        # A number of their own for each process; the clock of a machine may go back.
        self._life = int.from_bytes(os.urandom(7))
        self._files = files_lib.Files(durability.directory, durability.fsync, durability.codec)
        self._marks = self._files.marks
        buffer = self._files.attached(buffer)
        _reseed(buffer.rng, number)
        self._port = ports.port_of(buffer)
        # Without a directory keys begin again, and those that a learner still has must not be of other steps.
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
        """Store a writer's batch after those before it, unless it has come before; None if that name was closed.

        A chunk that the buffer refuses is left out from the step on that it refused, counted, and the first error is in
        the answer; the others are stored.

        Args:
            writer: 16 bytes of its own.
            number: Of the batch: 0, 1, 2 and so on.
            answered: The first number whose answer the writer has not had.
            batch: What to store.

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
        """Return what became of a batch to which its writer had no answer, and close the name it was sent under.

        Args:
            writer: Its 16 bytes.
            number: Of the batch.
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
        """Record what the shard has returned to somebody in an earlier life, and count what of that is lost."""
        if seen.life != self._life:
            lost = seen.lost + max(min(seen.inserted - self._recovered, seen.rows), 0)
            self._lost = max(self._lost, lost)
            self._marks.put_counts(self._lost, self._sampled)

    # For learners.

    async def describe(self) -> port_lib.Description:
        """Return what kind of buffer it is."""
        self._watch()
        return self._port.describe()

    async def learn(self, policy_version: int) -> None:
        """Record which version the learner's policy is of.

        Raises:
            ArgumentError: The buffer is one of columns.
        """
        self._port.learn(policy_version)

    async def mass(self, options: Mapping[str, Any], policy_version: int | None) -> port_lib.Mass:
        """Return how much there is to draw from, and record of the learner's version if it has one.

        Raises:
            TypeError: The buffer's `sample` takes no such options.
            ArgumentError: One of them breaks its rule.
        """
        self._watch()
        if policy_version is not None:
            self._port.learn(policy_version)
        return self._port.mass(options)

    async def draw(self, count: int, options: Mapping[str, Any], tick: int) -> Any:
        """Return `count` samples; None if there is nothing to draw from any more."""
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
        """Give steps new priorities, and return how many were still stored; `largest` is the largest anywhere."""
        buffer = self._port.buffer
        alive: int = buffer.update_priorities(keys - self._first_key, priorities)
        buffer.sampler.note_priority(largest)
        return alive

    # For anybody.

    async def ping(self) -> str:
        """Return "pong"."""
        self._watch()
        return "pong"

    async def host(self) -> str:
        """Return the name of the machine."""
        return platform.node()

    async def stats(self) -> answers.ShardStats:
        """Return numbers about the shard."""
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
        """Return what a function does with the buffer; what it raises comes out."""
        return function(self._port.buffer, *arguments)

    async def save(self) -> None:
        """Save the buffer; the other calls go on while a thread writes it.

        Raises:
            ArgumentError: The shard has no directory.
            CheckpointError: It could not be written.
        """
        await self._files.save(self._port.buffer)

    async def close(self) -> None:
        """End what is open, and let go of the files. Closing twice is closing once."""
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

    # Within.

    def expire(self, now: float) -> None:
        """End the leases that have run out at that time of the event loop's clock."""
        for writer, session in self._sessions.silent(now).items():
            self._aborted += self._port.abandon(writer)
            self._expired += 1
            session.has_lease = False
        for writer in self._sessions.forget(now):
            self._marks.forget(writer)

    def _watch(self) -> None:
        """See to it that leases run out, and that checkpoints are made."""
        if self._watcher is None and not self._is_closed:
            self._watcher = asyncio.get_running_loop().create_task(self._watching())

    async def _watching(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self._checkpoint_seconds
        pause = min(self._lease / 4, 1.0, seconds or 1.0)
        saved = loop.time()
        while True:
            await asyncio.sleep(pause)
            with contextlib.suppress(errors.CheckpointError):  # A full disk must not end the watching.
                self.expire(loop.time())
                if seconds is not None and loop.time() - saved >= seconds:
                    saved = loop.time()
                    await self.save()

    def _heard(self, writer: bytes) -> sessions_lib.Session:
        self._watch()
        return self._sessions.hear(writer)

    def _close(self, writer: bytes, session: sessions_lib.Session) -> None:
        """Store nothing more under a name."""
        session.close()
        self._aborted += self._port.abandon(writer)

    def _store(
        self, writer: bytes, number: int, batch: Sequence[chunks_lib.Chunk]
    ) -> tuple[int, Exception | None] | None:
        """Store the chunks of a batch, and return how many steps were refused, and why; None if none was."""
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
    """Give the generator of each shard a stream of its own, whatever seed `make_buffer` gives them all."""
    entropy = rng.integers(2**63, size=4).tolist()
    kind = type(rng.bit_generator)
    rng.bit_generator.state = kind(np.random.SeedSequence([*entropy, number])).state
