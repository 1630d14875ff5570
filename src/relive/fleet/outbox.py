"""Outbox: the batches of a writer, until each is settled.

    state      what it means                               what comes next
    QUEUED     it waits for its turn, and for a shard      SENT
                                                           LOST, if no shard is there for `recovery` seconds
    SENT       it is on its way to a shard                 STORED, or QUEUED again if the shard has not taken it
                                                           IN_DOUBT, if there is no reply, or the shard holds it
                                                           REFUSED, if it cannot be sent at all
    IN_DOUBT   its shard alone knows whether it has it     SENT again, to that shard, once it is back
                                                           QUEUED, if the shard was drained, and its rows are gone
                                                           LOST, if it is not back within `recovery` seconds
    STORED, REFUSED, LOST: settled

A batch has a number, by which a shard knows what it has: it is safe to send it again, to the shard that may have it.
A writer uses one shard. If that is lost, it goes on with another at once, while batches in doubt wait for the lost one.
Episodes of groups are pinned to the shard of their group, each a batch of its own.

At most `max_in_flight` batches for a shard are QUEUED or SENT for the first time; beyond that, `room` waits. Those that
a full disk has no room for are QUEUED again, and wait here, so that the writer does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
import contextlib
import dataclasses
import enum
import os

from relive import errors
from relive.fleet import chunks as chunks_lib
from relive.fleet import membership
from relive.fleet import replies
from relive.fleet import timing

State = enum.Enum("State", ["QUEUED", "SENT", "IN_DOUBT", "STORED", "REFUSED", "LOST"])
SETTLED = frozenset([State.STORED, State.REFUSED, State.LOST])


@dataclasses.dataclass(slots=True, eq=False)
class Batch:
    """Chunks that are sent together, under the writer's number; to that shard alone if it is pinned."""

    number: int
    chunks: tuple[chunks_lib.Chunk, ...]
    pinned: int | None = None
    state: State = State.QUEUED
    shard: int | None = None
    """The one that it was sent to last."""
    may_be_stored: bool = False
    is_held: bool = False
    takes_room: bool = True
    is_counted: bool = False
    """Whether the limiter has counted its steps."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum([chunk.rows for chunk in self.chunks])


class Outbox:
    """Sends the chunks of one writer, in order, and counts the steps that are stored, refused and lost."""

    def __init__(self, shards: membership.Membership, *, batch_steps: int, max_in_flight: int) -> None:
        self._shards, self._settings = shards, shards.settings
        self._batch_steps, self._max_in_flight = batch_steps, max_in_flight
        self._name, self._number = os.urandom(16), 0
        self._open: list[chunks_lib.Chunk] = []
        self._open_steps = 0
        self._batches: dict[int, Batch] = {}
        # Those that were never sent, and the task that sends them.
        self._fresh: list[Batch] = []
        self._pump: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewal: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._is_closed = False
        self._refusal: Exception | None = None
        # The writer's number in the fleet, and the shard that it uses now.
        self._writer: int | None = None
        self._shard: int | None = None
        self._away_since: float | None = None
        self._open_episodes: set[int] = set()
        self._next: dict[State, Callable[[Batch], Awaitable[State]]] = {
            State.QUEUED: self._address,
            State.SENT: self._send,
            State.IN_DOUBT: self._look_for,
        }
        self.stored = self.refused = self.lost = 0

    async def room(self, shard: int | None = None) -> None:
        """Wait while too many batches are in flight for that shard; raise once what was refused, or ClosedError."""
        self.refuse_if_closed()
        self._raise_refusal()
        while self._in_flight(shard) >= self._max_in_flight:
            await self._change()
            self.refuse_if_closed()
            self._raise_refusal()

    def let_no_more_in(self) -> None:
        """Refuse callers of `room` from now on, also those that wait: what they took would not be sent any more."""
        self._is_closed = True
        self._changed.set()

    def refuse_if_closed(self) -> None:
        """Raise ClosedError if nothing more is taken."""
        if self._is_closed:
            raise errors.ClosedError("writer is closed: take a new one from the fleet's writer()")

    def take(self, chunk: chunks_lib.Chunk, shard: int | None = None) -> None:
        """Take a chunk, which must not change any more, for any shard or that one, right after awaiting `room`."""
        if shard is not None:
            self._queue(Batch(self._number, (chunk,), shard))
            return
        self._open.append(chunk)
        # Count chunks without steps too, so that batches of them cannot grow forever.
        self._open_steps += max(chunk.rows, 1)
        if self._open_steps >= self._batch_steps:
            self.seal()
        self._keep_lease()

    def seal(self) -> None:
        """Send what was taken for any shard."""
        if self._open:
            self._queue(Batch(self._number, tuple(self._open)))
            self._open, self._open_steps = [], 0

    async def flush(self) -> None:
        """Wait until every batch is settled; raises like `room`."""
        self.seal()
        while self._batches or self._tasks:
            await self._change()
        self._raise_refusal()

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call something once all that was taken so far is settled."""
        number = self._number + bool(self._open)

        async def wait() -> None:
            while min(self._batches, default=number) < number:
                await self._change()
            call()

        self._run(wait())

    async def close(self) -> None:
        """Flush, and tell the shard that the writer has left."""
        try:
            await self.flush()
        finally:
            if self._renewal is not None:
                self._renewal.cancel()
            if self._shard is not None:
                await self._tell("leave", self._shard)

    def _queue(self, batch: Batch) -> None:
        self._batches[batch.number] = batch
        self._number += 1
        self._fresh.append(batch)
        if self._pump is None or self._pump.done():
            self._pump = self._run(self._pumping())

    async def _pumping(self) -> None:
        """Send the batches for the first time, in order."""
        while self._fresh:
            batch = self._fresh[0]
            try:
                batch.is_counted = await self._take_turn(batch.steps)
            except Exception as error:
                batch.state = self._refuse(batch, batch.steps, error)
            if batch.pinned is None and batch.state is State.QUEUED:
                batch.state = await self._address(batch)
                for chunk in batch.chunks:
                    (self._open_episodes.add if chunk.end == "OPEN" else self._open_episodes.discard)(chunk.episode)
            del self._fresh[0]
            # Tasks start in the order in which they are created, and so do the calls of a shard.
            self._run(self._deliver(batch))
            await asyncio.sleep(0)

    async def _deliver(self, batch: Batch) -> None:
        """Take a batch from state to state until it is settled."""
        while batch.state not in SETTLED:
            batch.state = await self._next[batch.state](batch)
        del self._batches[batch.number]
        self._changed.set()

    # What takes a batch to its next state.

    async def _address(self, batch: Batch) -> State:
        """QUEUED: find a shard."""
        if batch.shard is not None and self._shards.is_full(batch.shard):
            await asyncio.sleep(timing.PAUSE_IF_FULL)
        try:
            batch.shard = await self._find() if batch.pinned is None else await self._pinned(batch.pinned)
        except errors.ClosedError as error:
            self._refusal = self._refusal or error
            return self._lose(batch)
        return self._lose(batch) if batch.shard is None else State.SENT

    async def _send(self, batch: Batch) -> State:
        """SENT: ask the shard to store it."""
        assert batch.shard is not None
        sent = chunks_lib.Batch(
            writer=self._name,
            number=batch.number,
            oldest=min(self._batches),
            stays=batch.shard == self._shard,
            chunks=batch.chunks,
        )
        try:
            receipt: replies.Receipt = await self._shards.ask(batch.shard, "insert", sent)
        except errors.ShardLostError as error:
            was_held, batch.is_held = batch.is_held, False
            # A shard that was drained and closed has refused it, and others have not.
            is_closed = isinstance(error.__cause__, errors.ClosedError)
            if is_closed and batch.shard not in self._shards.members.active:
                batch.may_be_stored = False
            elif was_held or not isinstance(error, membership.NotAskedError):
                batch.may_be_stored = True
            return self._doubt(batch) if batch.may_be_stored else State.QUEUED
        except Exception as error:  # Such as objects that cannot be serialized.
            return self._refuse(batch, batch.steps, error)
        await self._shards.note(batch.shard, receipt.progress)
        batch.is_held, batch.may_be_stored = receipt.outcome == "HELD", False
        if receipt.outcome == "FULL":
            return State.QUEUED
        if batch.is_held:
            return State.IN_DOUBT
        self.stored += batch.steps - receipt.refused
        if receipt.refused:
            unsaid = f"shard {batch.shard} has refused {receipt.refused} steps, and died before it could say why"
            self._refuse(batch, receipt.refused, receipt.error or errors.ArgumentError(unsaid))
        self._refusal = self._refusal or receipt.error
        return State.STORED

    async def _look_for(self, batch: Batch) -> State:
        """IN_DOUBT: wait for the shard that may have it."""
        assert batch.shard is not None
        if batch.is_held:
            await asyncio.sleep(timing.PAUSE_IF_FULL)
            return State.SENT
        if await self._shards.is_back(batch.shard, self._settings.recovery):
            return State.SENT
        if await self._shards.was_drained(batch.shard):
            batch.may_be_stored = False
            return State.QUEUED
        return self._lose(batch)

    def _doubt(self, batch: Batch) -> State:
        batch.takes_room = False
        self._changed.set()
        return State.IN_DOUBT

    def _refuse(self, batch: Batch, steps: int, error: Exception) -> State:
        self.refused += steps
        self._refusal = self._refusal or error
        self._give_back(batch, steps)
        return State.REFUSED

    def _lose(self, batch: Batch) -> State:
        self.lost += batch.steps
        self._give_back(batch, batch.steps)
        return State.LOST

    # The limiter.

    async def _take_turn(self, steps: int) -> bool:
        """Wait until the steps may be inserted, and return whether they count."""
        counted: int | None = None if self._settings.has_limiter else 0
        while counted is None:
            counted = await self._shards.transport.coordinator("limiter", "insert_turn", steps)
        return counted > 0

    def _give_back(self, batch: Batch, steps: int) -> None:
        """Tell the limiter that steps which it has counted are not stored."""

        async def give_back() -> None:
            with contextlib.suppress(errors.ReplayError):
                await self._shards.transport.coordinator("limiter", "give_back", 0, steps)

        if batch.is_counted:
            self._run(give_back())

    # The shard.

    async def _pinned(self, shard: int) -> int | None:
        """Return that shard, once it is there; None if it does not come back."""
        self._shards.live()  # Raises if all shards are gone for good.
        return shard if await self._shards.is_back(shard, self._settings.recovery) else None

    async def _find(self) -> int | None:
        """Return the shard to use; None if there is none."""
        deadline = asyncio.get_running_loop().time() + self._settings.recovery
        if self._writer is None:
            self._writer = int(await self._shards.transport.coordinator("next_writer"))
        while (shard := self._choose(self._writer)) is None:
            if asyncio.get_running_loop().time() > deadline:
                return None
            await asyncio.sleep(timing.LOOK_AGAIN)
        return shard

    def _choose(self, writer: int) -> int | None:
        """Return the shard to use now; None if there is none.

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
            self._run(self._tell("leave", self._shard))
        self._shard, self._away_since = shards[0], None
        self._open_episodes.clear()
        return self._shard

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
                await self._tell("renew", self._shard)

    async def _tell(self, method: str, shard: int) -> None:
        await self._shards.note(shard, await self._shards.ask_or_none(shard, method, self._name))

    # Waiting.

    def _in_flight(self, shard: int | None) -> int:
        return sum([batch.takes_room and batch.pinned == shard for batch in self._batches.values()])

    async def _change(self) -> None:
        """Wait until any batch has changed its state."""
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
