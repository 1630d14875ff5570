"""Outbox: the batches of a writer that were not acknowledged yet.

    take(chunk) ──►  open batch  ──►  queue  ──►  in flight  ──►  acknowledged
                                                      │ the shard is lost
                                                      └── in doubt: when the shard is back it reports what it stored,
                                                          and the rest is sent again, to a live shard

A writer uses one shard. If that is lost, it switches to another at once, and batches in flight wait for the lost one to
come back: each step is stored once. `room` waits while `max_in_flight` batches are not acknowledged.

A shard knows a writer by name, which changes after a batch was not acknowledged: once `resolve` was called, nothing
more is stored under the old name. Resent steps get a separate name, since later steps may be stored already: steps are
never stored after steps that follow them.

A shard whose disk is full is sent the rest again and again, for `recovery` seconds; then another one is tried.
"""

import asyncio
import collections
from collections.abc import Coroutine
import contextlib
import dataclasses
import os

from relive import errors
from relive.fleet import chunks as chunks_lib
from relive.fleet import membership
from relive.fleet import replies

_PAUSE = 0.05
"""So many seconds lie between two looks for a shard while none is there."""
_PAUSE_IF_FULL = 1.0
"""Seconds between two attempts to write to a full disk."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Chunks that are sent together.

    Attributes:
        chunks: The chunks, in order.
        is_counted: Whether the limiter has counted their steps.
    """

    chunks: tuple[chunks_lib.Chunk, ...]
    is_counted: bool = False

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum([chunk.rows for chunk in self.chunks])


class Outbox:
    """Sends the chunks of one writer, in order.

    Args:
        shards: Reaches them.
        batch_steps: Number of steps in a batch.
        max_in_flight: Maximum number of unacknowledged batches.
    """

    def __init__(
        self,
        shards: membership.Membership,
        *,
        batch_steps: int,
        max_in_flight: int,
    ) -> None:
        self._shards, self._settings = shards, shards.settings
        self._batch_steps, self._max_in_flight = batch_steps, max_in_flight
        self._writer: int | None = None
        self._shard: int | None = None
        self._away_since: float | None = None
        self._open_episodes: set[int] = set()
        self._rename()
        self._open: list[chunks_lib.Chunk] = []
        self._open_steps = 0
        self._queue: collections.deque[Batch] = collections.deque()
        self._unanswered = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._refusal: Exception | None = None
        self.stored = 0
        """Steps that a shard has said are stored."""
        self.refused = 0
        """Steps that the buffer of a shard refused."""
        self.lost = 0
        """Steps that were on their way to a shard that did not come back in time."""

    async def room(self) -> None:
        """Wait until `take` may be called: while too many batches are in flight.

        Raises:
            ReplayError: A buffer refused steps sent earlier; raised once.
        """
        self._raise_refusal()
        while self._unanswered >= self._max_in_flight:
            await self._change()
            self._raise_refusal()

    def take(self, chunk: chunks_lib.Chunk) -> None:
        """Take a chunk, which must not change any more, right after awaiting `room`."""
        self._open.append(chunk)
        # Count chunks without steps too, so that batches of them cannot grow forever.
        self._open_steps += max(chunk.rows, 1)
        if self._open_steps >= self._batch_steps:
            self._seal()
        self._keep_lease()

    async def flush(self) -> None:
        """Wait until everything is stored, or counted as refused or lost; raises like `room`."""
        self._seal()
        while self._queue or self._tasks:
            await self._change()
        self._raise_refusal()

    async def close(self) -> None:
        """Flush, and tell the shard that the writer has left."""
        try:
            await self.flush()
        finally:
            if self._renewal is not None:
                self._renewal.cancel()
            if self._shard is not None:
                await self._tell("leave", self._shard, self._name)

    def _seal(self) -> None:
        """Queue the open batch."""
        if self._open:
            self._queue.append(Batch(tuple(self._open)))
            self._open, self._open_steps = [], 0
            self._unanswered += 1
            if self._pump is None or self._pump.done():
                self._pump = self._run(self._pumping())

    async def _pumping(self) -> None:
        """Send the queued batches, in order."""
        while self._queue:
            batch = self._queue[0]
            try:
                batch = dataclasses.replace(batch, is_counted=await self._take_turn(batch.steps))
            except Exception as error:
                self._refuse(self._queue.popleft(), error)
                self._answered()
                continue
            shard = await self._find()
            self._queue.popleft()
            if shard is None:
                self._lose(batch)
                self._answered()
                continue
            for episode, is_open in map(chunks_lib.episode, batch.chunks):
                (self._open_episodes.add if is_open else self._open_episodes.discard)(episode)
            self._flying.add(self._number)
            # Tasks start in the order in which they are created, and so do the calls of a shard.
            self._run(self._deliver(batch, shard, self._name, self._number, min(self._flying)))
            self._number += 1
            await asyncio.sleep(0)

    async def _take_turn(self, steps: int) -> bool:
        """Wait until the steps may be inserted, and return whether they count."""
        counted: int | None = None if self._settings.has_limiter else 0
        while counted is None:
            counted = await self._shards.transport.coordinator("limiter", "insert_turn", steps)
        return counted > 0

    async def _find(self) -> int | None:
        """Return the shard to use, under a new name if it changed; None if there is none."""
        deadline = asyncio.get_running_loop().time() + self._settings.recovery
        try:
            if self._writer is None:
                self._writer = int(await self._shards.transport.coordinator("next_writer"))
            while (shard := self._choose(self._writer)) is None:
                if asyncio.get_running_loop().time() > deadline:
                    return None
                await asyncio.sleep(_PAUSE)
        except errors.ClosedError as error:
            self._refusal = self._refusal or error
            return None
        return shard

    def _choose(self, writer: int) -> int | None:
        """Return the shard to use now, under a new name if it changed; None if there is none.

        The writer leaves a live shard once none of its episodes is open there, or after `lease` seconds.
        """
        now, shards = asyncio.get_running_loop().time(), self._shards.preferred(writer)
        is_live = self._shard is not None and self._shard in self._shards.live()
        if not shards or self._shard == shards[0]:
            self._away_since = None
            return self._shard if shards else None
        self._away_since = now if self._away_since is None else self._away_since
        if self._shard is not None and is_live:
            can_stay = self._open_episodes and not self._shards.is_avoided(self._shard)
            if can_stay and now - self._away_since < self._settings.lease:
                return self._shard
            self._run(self._tell("leave", self._shard, self._name))
        self._shard, self._away_since = shards[0], None
        self._open_episodes.clear()
        self._rename()
        return self._shard

    def _rename(self) -> None:
        self._name, self._number = os.urandom(16), 0
        self._flying: set[int] = set()

    async def _deliver(self, batch: Batch, shard: int, name: bytes, number: int, answered: int) -> None:
        """Send a batch, and resend missing steps, until each is stored, refused or lost."""
        left = await self._send(batch, shard, name, number, answered)
        if name == self._name:
            self._flying.discard(number)
            if left is None or left.chunks:
                self._rename()
        # While a disk is full, batches wait at the caller, and not here.
        is_held = left is not None and self._shards.is_full(shard)
        if not is_held:
            self._answered()
        await self._redeliver(batch, left, shard, name, number)
        if is_held:
            self._answered()

    async def _redeliver(self, batch: Batch, left: Batch | None, shard: int, name: bytes, number: int) -> None:
        """Resend what is left of a batch; None if that is in doubt."""
        while True:
            if left is None:
                left = await self._unstored(batch, shard, name, number)
            if not left.chunks:
                return
            if self._shards.is_full(shard):
                await asyncio.sleep(_PAUSE_IF_FULL)
            again = await self._find()
            if again is None:
                self._lose(left)
                return
            batch, shard, name, number = left, again, os.urandom(16), 0
            left = await self._send(batch, shard, name, number, 0)
            if left is not None and not left.chunks:
                await self._tell("leave", shard, name)

    async def _send(self, batch: Batch, shard: int, name: bytes, number: int, answered: int) -> Batch | None:
        """Send a batch, and return the rest; None if that is in doubt."""
        try:
            resolution = await self._shards.ask(shard, "insert", name, number, answered, batch.chunks)
        except membership.NotAskedError:
            return batch
        except errors.ShardLostError as error:
            # A shard that was drained and closed has refused it, and others have not.
            is_closed = isinstance(error.__cause__, errors.ClosedError)
            return batch if is_closed and shard not in self._shards.members.active else None
        except Exception as error:  # Such as objects that cannot be serialized.
            self._refuse(batch, error)
            return dataclasses.replace(batch, chunks=())
        return await self._rest(batch, shard, resolution)

    async def _unstored(self, batch: Batch, shard: int, name: bytes, number: int) -> Batch:
        """Ask what became of a batch in doubt, and return what must be sent again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.recovery
        resolution: replies.Resolution | None = None
        while resolution is None:
            if not await self._shards.is_back(shard, max(deadline - loop.time(), 0)):
                if await self._shards.was_drained(shard):
                    return batch  # If it was stored there, it is there no more.
                self._lose(batch)
                return dataclasses.replace(batch, chunks=())
            resolution = await self._shards.ask_or_none(shard, "resolve", name, number)
        return await self._rest(batch, shard, resolution)

    async def _rest(self, batch: Batch, shard: int, resolution: replies.Resolution) -> Batch:
        """Count what became of a batch, and return what must be sent again."""
        await self._shards.note(shard, resolution.progress)
        chunks = () if resolution.passed is None else chunks_lib.unstored(batch.chunks, resolution.passed)
        left = dataclasses.replace(batch, chunks=chunks)
        self.stored += batch.steps - left.steps - resolution.refused
        if resolution.refused:
            error = resolution.error or errors.ArgumentError(
                f"shard {shard} has refused {resolution.refused} steps, and died before it could say why"
            )
            self._count_refused(batch, resolution.refused, error)
        return left

    def _refuse(self, batch: Batch, error: Exception) -> None:
        self._count_refused(batch, batch.steps, error)

    def _count_refused(self, batch: Batch, steps: int, error: Exception) -> None:
        self.refused += steps
        self._refusal = self._refusal or error
        self._give_back(batch, steps)

    def _lose(self, batch: Batch) -> None:
        self.lost += batch.steps
        self._give_back(batch, batch.steps)

    def _give_back(self, batch: Batch, steps: int) -> None:
        """Tell the limiter that steps which it has counted are not stored."""
        if batch.is_counted:
            self._run(self._giving_back(steps))

    async def _giving_back(self, steps: int) -> None:
        with contextlib.suppress(errors.ReplayError):
            await self._shards.transport.coordinator("limiter", "give_back", 0, steps)

    def _answered(self) -> None:
        self._unanswered -= 1
        self._changed.set()

    async def _change(self) -> None:
        """Wait until any reply has arrived."""
        self._changed.clear()
        await self._changed.wait()

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task that `flush` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()

    def _raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def _keep_lease(self) -> None:
        """Renew the lease while the writer is open."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.get_running_loop().create_task(self._renewing())

    async def _renewing(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease / 4)
            if self._writer is not None:
                with contextlib.suppress(errors.ClosedError):
                    self._choose(self._writer)
            if self._shard is not None:
                await self._tell("renew", self._shard, self._name)

    async def _tell(self, method: str, shard: int, name: bytes) -> None:
        await self._shards.note(shard, await self._shards.ask_or_none(shard, method, name))
