"""Shard: one buffer of a fleet, its writers, and its files.

    writers     insert, renew, leave                         ┐                ┌  buffer
    learners    follow, draw, update_priorities              │                │  sessions: who writes, which batches
                take, put_back, reject, ack, clear           ├──►  Shard  ──► ┤  queue: what is delivered once
                of_keys, update, eligible_keys               │                └  files: journal, checkpoint
    clients     ping, host, stats, apply, save               ┘

Invariant: calls run one at a time, and a batch is stored whole or not at all, once: it is one record of the journal,
which also says whose batch it is. So after a restart, when the buffer is recovered, the shard knows what it has, and
losses are counted. What is due at a certain time, such as the end of a lease, happens at the next call.

A full disk refuses nothing. A batch that could not be written whole is not stored, and may be sent anywhere. Only the
one with which the disk filled up is in the buffer already: it is held until it could be written, or the process ends.

A writer holds a lease, which each of its calls renews. When it expires, the writer's open episodes end as ABORTED, or
as truncated in columns. If the writer was only slow, its next steps begin a new episode: nothing is ever spliced.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import dataclasses
import math
import os
import platform
import time
from typing import Any, TypeVar

import numpy as np

from relive import errors
from relive.common import randomness
from relive.fleet import adapter as adapter_lib
from relive.fleet import adapters
from relive.fleet import chunks as chunks_lib
from relive.fleet import deliveries
from relive.fleet import files as files_lib
from relive.fleet import replies
from relive.fleet import sessions as sessions_lib
from relive.persistence import codec as codec_lib
from relive.persistence import journal

Result = TypeVar("Result")

_DISK_ERRORS = (OSError, errors.CheckpointError)
"""What a journal raises if the disk is full or fails."""
_KEYS_OF_AN_INCARNATION = 2**38
"""Number of keys of a shard without a directory in one incarnation."""
_INCARNATIONS = 2**15
"""So many incarnations of such a shard have keys of their own; with the number of the shard, they fit 63 bits."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Durability:
    """How a shard is persisted, if it has a directory; checkpoint_seconds says how often the whole buffer is saved."""

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
        recovery: Seconds for which clients look for a lost shard.
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
        self._number, self._clock, self._lease = number, clock, lease
        self._checkpoint_seconds = durability.checkpoint_seconds or float("inf")
        self._pause = min(lease / 4, 1.0, self._checkpoint_seconds)
        self._looked = self._saved = clock()
        self._saves: dict[bytes, futures.Future[None]] = {}
        self._saving: futures.Future[None] | None = None
        # A different number for each process; random, since clocks may go backwards.
        self._incarnation = int.from_bytes(os.urandom(7))
        self._sessions = sessions_lib.Sessions(lease)
        self._files = files_lib.Files(durability.directory, durability.fsync, durability.codec)
        buffer = self._files.attached(buffer, lambda note: self._sessions.learn(note, clock()), self._sessions.note)
        _reseed(buffer.rng, number)
        self._adapter = adapters.adapter_of(buffer)
        # Without a directory keys would restart, and keys that a learner still holds must not refer to other steps.
        has_files = durability.directory is not None
        self._first_key = 0 if has_files else self._incarnation % _INCARNATIONS * _KEYS_OF_AN_INCARNATION
        self._is_independent = self._adapter.describe().is_independent
        self._recovered = self._before = self._adapter.inserted
        self._queue = deliveries.ShardQueue(buffer, self._first_key)
        self._sampled = self._adapter.sampled
        self._memory = lease + 2 * recovery
        self._refused = self._repeated = self._expired = 0
        self._aborted, self._is_untidy = 0, True
        self._members: replies.Members | None = None
        self._disk: str | None = None
        # The batch of the newest record, which the journal may not have yet; `_before` was inserted before it.
        self._newest: tuple[bytes, int] | None = None
        self._unended: set[bytes] = set()
        self._is_closed = False
        with contextlib.suppress(*_DISK_ERRORS):  # Otherwise before the next batch, once the disk has room.
            self._tidy_up()

    # For writers.

    def insert(self, batch: chunks_lib.Batch) -> replies.Receipt:
        """Store a writer's batch, unless it is stored already, and return what became of it.

        If the buffer refuses a step, its chunk is refused and counted, and the first error is in the reply; other
        chunks are stored.

        Raises:
            ClosedError: The fleet was closed.
        """
        writer, number = batch["writer"], batch["number"]
        if self._is_closed:
            raise errors.ClosedError("the fleet was closed: start a new one")
        session = self._renewed(writer)
        session.acknowledge(batch["oldest"])
        outcome: replies.Outcome = "STORED"
        try:
            if not session.has(number):
                self._store(session, writer, number, batch["chunks"])
            else:
                self._repeated += 1
                if self._files.is_behind and self._newest == (writer, number):
                    self._files.catch_up()
            self._disk = None
        except _DISK_ERRORS as failure:
            self._disk = str(failure)
            outcome = "HELD" if session.has(number) else "FULL"
        if not batch["stays"]:
            self._end_lease(writer, session)
        refused, error = session.seen.get(number, 0), session.refusals.get(number)
        return replies.Receipt(outcome=outcome, refused=refused, error=error, progress=self._progress())

    def _store(
        self, session: sessions_lib.Session, writer: bytes, number: int, chunks: Sequence[chunks_lib.Chunk]
    ) -> None:
        """Store the chunks of a batch that the shard does not have, as one record of the journal."""
        self._tidy_up()
        with self._together(lambda: self._sessions.note([writer], number)):
            self._newest, session.seen[number] = (writer, number), 0
            for place, chunk in enumerate(chunks):
                before = self._adapter.inserted
                self._queue.note(chunk, self._clock())
                try:
                    self._adapter.insert(writer, chunk)
                except Exception as refusal:
                    is_full = isinstance(refusal, _DISK_ERRORS) and not place  # The disk of the buffer's own files.
                    if is_full and not self._files.has_gathered:
                        del session.seen[number]
                        raise
                    session.refusals.setdefault(number, refusal)
                    session.seen[number] += chunk.rows - (self._adapter.inserted - before)
            self._refused += session.seen[number]

    def renew(self, writer: bytes) -> replies.Progress:
        """Renew the lease of a writer that has nothing to send."""
        self._renewed(writer)
        return self._progress()

    def leave(self, writer: bytes) -> replies.Progress:
        """End the lease of a writer that is closed, and its open episodes."""
        self._end_lease(writer, self._renewed(writer))
        return self._progress()

    def report(self, progress: replies.Progress | None, members: replies.Members) -> None:
        """Count what was lost with an earlier process, given what a client saw of it last, and learn of the shards."""
        if self._members is None or self._members.version < members.version:
            self._members = members
        if progress is not None and progress.incarnation != self._incarnation:
            lost = progress.lost + max(min(progress.inserted - self._recovered, progress.rows), 0)
            if lost > self._sessions.lost:
                self._sessions.lost = lost
                with contextlib.suppress(*_DISK_ERRORS), self._together(lambda: self._sessions.note([])):
                    pass

    # For learners.

    def describe(self) -> adapter_lib.Description:
        """Describe the buffer."""
        self._do_what_is_due()
        return self._adapter.describe()

    def follow(self, policy: replies.Policy) -> tuple[replies.Policy, replies.Progress]:
        """Follow the learner's policy, unless a newer one is known, and return the newest."""
        self._can_follow(policy)
        return self._policy, self._progress()

    def _can_follow(self, policy: replies.Policy | None) -> bool:
        """Follow a policy, if it is newer, and return whether that was possible: the disk may be full."""
        known = self._policy
        if policy is None or policy.version is None or policy == known or policy.rank <= known.rank:
            return True
        missed = policy.resumed[len(known.resumed) :]
        try:
            if missed:
                with self._together(lambda: self._sessions.note([])):
                    self._sessions.resumed = policy.resumed
                    self._adapter.buffer.resume_policy_version(min(missed))
                    self._queue.resumed()
            self._adapter.set_policy_version(policy.version)
        except _DISK_ERRORS as error:
            self._disk = str(error)
            return False
        return True

    @property
    def _policy(self) -> replies.Policy:
        return replies.Policy(self._sessions.resumed, getattr(self._adapter.buffer, "policy_version", None))

    def draw(self, request: adapter_lib.Request) -> tuple[adapter_lib.SamplingWeight, list[Any], int]:
        """Return how much there is to draw from, the samples of some batches, and the version of the list of shards.

        Samples that are independent come as one draw for all batches, in order; others as one for each batch. None
        stands for no samples, also if nothing can be drawn any more.

        Raises:
            TypeError: The buffer's `sample` has no such options.
            ArgumentError: One of them is invalid.
        """
        self._do_what_is_due()
        policy = request["policy"]
        if policy is not None and not self._can_follow(policy):
            nothing = adapter_lib.SamplingWeight(0.0, self._adapter.size, policy=policy)
            return nothing, [None] * len(request["counts"]), self._version
        weight = self._adapter.weight(request["options"])._replace(policy=self._policy)
        counts = [sum(request["counts"])] if self._is_independent else request["counts"]
        with contextlib.ExitStack() as stack:
            stack.enter_context(randomness.Unmoved(self._adapter.buffer.rng))
            parts = [self._part(count, request, stack) for count in counts]
        self._sampled += sum(count for count, part in zip(counts, parts, strict=True) if part is not None)
        self._adapter.set_ticks(max(weight.ticks, request["ticks"]) + request["begun"])
        return weight, parts, self._version

    def _part(self, count: int, request: adapter_lib.Request, stack: contextlib.ExitStack) -> Any:
        """Return rows of a draw, which is taken back if a block of the stack raises; None for none."""
        if not count:
            return None
        try:
            if request.get("keys_only"):
                rows = self._adapter.buffer._draw(count, None, adapter_lib.DrawnKeys.of)
            else:
                rows = self._adapter.draw(count, request["options"])
        except errors.NotReadyError:
            return None
        stack.enter_context(self._adapter.revocable(rows))
        if not isinstance(rows, list) and self._first_key:
            rows._rename_keys(1, self._first_key)
        return rows

    def update_priorities(self, keys: Any, priorities: Any, largest: float) -> tuple[adapter_lib.SamplingWeight, int]:
        """Update the priorities of steps; return how much there is to draw from then, and how many were still stored.

        Keys of rows that a lost shard had not synced are stale, like those of evicted rows. New rows get the largest
        priority of the fleet.
        """
        buffer, counts = self._adapter.buffer, self._adapter.buffer._limited.counts
        keys = keys - self._first_key
        is_known = (keys >= 0) & (keys < counts.inserted)
        alive: int = buffer.update_priorities(keys[is_known], priorities[is_known])
        counts.stale_keys += int(np.count_nonzero(~is_known))
        buffer.sampler._note_priority(largest)
        return self._adapter.weight({}), alive

    def take(
        self, request: deliveries.Request, number: int, wanted: deliveries.Wanted, policy: replies.Policy | None
    ) -> tuple[list[deliveries.Unit], int, replies.Policy, replies.Progress]:
        """Return that many episodes or groups, if they are ready; how many more are; and the learner's policy.

        Args:
            request: The request.
            number: How many to deliver; 0 only to tell how many are ready.
            wanted: Which are wanted; exceptions of LearnerQueue.request and of `accept` propagate.
            policy: The learner's policy, if known.
        """
        self._do_what_is_due()
        if policy is not None and not self._can_follow(policy):
            return [], 0, policy, self._progress()
        if len(self._policy.resumed) > len(policy.resumed if policy is not None else ()):
            number = 0  # It was asked before a learner resumed, perhaps by the one that died.
        try:
            units, ready = self._queue.take(request, self._clock(), number, wanted)
        except errors.CheckpointError as error:  # Other shards deliver meanwhile.
            self._disk, units, ready = str(error), [], 0
        return units, ready, self._policy, self._progress()

    def places(self, tickets: Sequence[bytes], policy: replies.Policy | None = None) -> deliveries.Places:
        """Return what an admission must know, also of those tickets, given the newest policy that it knows."""
        self._do_what_is_due()
        self._can_follow(policy)
        return self._queue.places(self._incarnation, self._policy, tickets)

    def put_back(self, learner: bytes, number: int) -> replies.Progress:
        """Take back what a learner was sent with the request of that number."""
        self._queue.put_back(learner, number)
        return self._progress()

    def groups(self) -> list[str]:
        """Return the ids of the groups that are not complete."""
        return self._queue.own.gathering()

    def abandon(self, group_ids: Sequence[str]) -> int:
        """End the open episodes whose lease is over, give up those groups if they are not complete, and count both."""
        before, self._looked = self._aborted, -math.inf
        self._do_what_is_due()
        return self._aborted - before + self._queue.own.give_up(group_ids)

    def reject(self, episode_ids: Any, reason: str) -> tuple[int, replies.Progress]:
        """Drop episodes that were delivered or wait; return how many, and raise as `reject` of the buffer does."""
        return self._queue.reject(episode_ids, reason), self._progress()

    def ack(self, version: int, generation: int, policy: replies.Policy, kept: Mapping[bytes, int]) -> None:
        """Acknowledge what was delivered before the learner had a version of a generation; see ShardQueue.ack.

        What it had of an older generation is of no use after the versions from which learners have resumed since.
        """
        if not self._can_follow(policy):
            raise errors.CheckpointError(self._disk)
        self._queue.ack(min([version, *self._policy.resumed[generation:]]), kept)

    def of_keys(self, call: str, keys: Any, names: Any) -> Any:
        """Return what that call of the buffer returns for those keys [k], which have other names in the fleet [k].

        Raises:
            UnknownKeyError: Nothing with one of the keys is stored.
        """
        keys = keys - self._first_key
        for name in names[~self._adapter.are_stored(keys)].tolist():
            raise errors.UnknownKeyError(f"key {name} not found: its {self._adapter.unit} was evicted, or never was")
        return getattr(self._adapter.buffer, call)(keys)

    def eligible_keys(self, options: Mapping[str, Any]) -> Any:
        """Return the keys of all that may be drawn; raise as `eligible_keys` of the buffer does."""
        self._do_what_is_due()
        return self._adapter.buffer.eligible_keys(**options) + self._first_key

    def clear(self) -> replies.Progress:
        """Remove all that the buffer holds; raise as its `clear` does."""
        self._adapter.buffer.clear()
        return self._progress()

    def update(self, keys: Any, extras: Mapping[str, Any]) -> int:
        """Write extras of sequences of tokens; return how many are stored, and raise as `update` of the buffer does."""
        updated: int = self._adapter.buffer.update(keys - self._first_key, **extras)
        return updated

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
            inserted=self._inserted,
            sampled=self._sampled,
            size=adapter.size,
            rows=adapter.rows,
            recovered=self._recovered,
            lost=self._sessions.lost,
            refused=self._refused,
            repeated=self._repeated,
            writers=self._sessions.num_leases,
            expired_leases=self._expired,
            aborted=self._aborted,
            cut=adapter.cut,
            members=self._members,
            disk=self._disk,
        )

    def apply(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Apply a function to the buffer, and return its result."""
        self._do_what_is_due()
        return function(self._adapter.buffer, *arguments)

    def save(self, request: bytes) -> bool:
        """Return whether the buffer has been saved for that request; the first call with it starts to, in a thread."""
        if request not in self._saves:
            self._saves[request] = self._files.save(self._adapter.buffer)
        if not self._saves[request].done():
            return False
        self._saves.pop(request).result()
        return True

    def retire(self, group_ids: Sequence[str]) -> bool:
        """Close a drained shard, and delete its files, unless it is still needed; return whether that was done.

        A writer with a lease does, one that writes one of these groups until it is complete, and a learner that has
        asked within the lease while anything waits.
        """
        self._do_what_is_due()
        if self._sessions.num_leases or self._queue.is_needed(group_ids, self._clock() - self._lease):
            return False
        self.close()
        self._files.delete()
        return True

    def close(self) -> None:
        """End open episodes, and close the files. Closing twice has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with contextlib.suppress(*_DISK_ERRORS):  # Otherwise they end when the files are opened again.
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
            self._abandon(writer)
            self._expired += 1
            session.has_lease = False
        for writer in list(self._unended):
            self._abandon(writer)
        self._queue.forget(now - self._memory)
        if now - self._saved >= self._checkpoint_seconds and (self._saving is None or self._saving.done()):
            self._saved = now
            with contextlib.suppress(errors.CheckpointError):  # A full disk must not hold up the call.
                self._saving = self._files.save(self._adapter.buffer)

    @contextlib.contextmanager
    def _together(self, note: Callable[[], bytes]) -> Iterator[None]:
        """Write the changes of a block as one record, with a note; see Journal."""
        with self._files.together(note):
            self._newest, self._before = None, self._adapter.inserted
            yield

    def _tidy_up(self) -> None:
        """End what earlier processes have left open, before there are new episodes."""
        if self._is_untidy:
            self._aborted += self._adapter.abandon_all()
            self._is_untidy = False

    def _renewed(self, writer: bytes) -> sessions_lib.Session:
        self._do_what_is_due()
        return self._sessions.renew(writer, self._clock())

    def _end_lease(self, writer: bytes, session: sessions_lib.Session) -> None:
        session.has_lease = False
        self._abandon(writer)

    def _abandon(self, writer: bytes) -> None:
        """End the open episodes of a writer; later, if the disk is full."""
        try:
            self._aborted += self._adapter.abandon(writer)
            self._unended.discard(writer)
        except _DISK_ERRORS as error:
            self._disk = str(error)
            self._unended.add(writer)

    @property
    def _inserted(self) -> int:
        """Number of steps ever stored, but for those of a batch that is held: its writer will send it again."""
        return self._before if self._files.is_behind else self._adapter.inserted

    def _progress(self) -> replies.Progress:
        return replies.Progress(
            incarnation=self._incarnation,
            inserted=self._inserted,
            rows=self._adapter.rows,
            lost=self._sessions.lost,
            members=self._version,
            disk=self._disk,
            queue=self._queue.number,
        )

    @property
    def _version(self) -> int:
        return 0 if self._members is None else self._members.version


def _reseed(rng: np.random.Generator, number: int) -> None:
    """Give each shard an independent random stream, even if `make_buffer` seeds them all alike."""
    entropy = rng.integers(2**63, size=4).tolist()
    kind = type(rng.bit_generator)
    rng.bit_generator.state = kind(np.random.SeedSequence([*entropy, number])).state
