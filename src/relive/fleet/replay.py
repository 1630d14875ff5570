"""Replay: the client side of ShardedReplay, one replay buffer with rows in many shards.

    writer() ─► Writer ─► Outbox ─► one shard          sample ─► the limiter ─► Draws ─► all shards

Shards are reached through a Transport; this module does not depend on processes and machines.
"""

import asyncio
import collections
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
import contextlib
import dataclasses
import os
from typing import Any, Generic, TypeVar

import numpy as np

from relive import errors
from relive.common import validation
from relive.fleet import adapter
from relive.fleet import column_writer
from relive.fleet import draws
from relive.fleet import episodes_writer
from relive.fleet import membership
from relive.fleet import outbox
from relive.fleet import replies
from relive.fleet import shares

Batch = TypeVar("Batch")

_PAUSE = 0.02
"""Seconds between two questions whether a shard is saved."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of the clients of a fleet.

    Attributes:
        shards: Number of shards.
        timeout: Seconds to wait for a call before its shard counts as lost.
        recovery: Seconds to wait for a lost shard before steps in flight to it count as lost.
        lease: Seconds after which a silent writer or learner counts as gone.
        has_limiter: Whether inserts and samples wait for the limiter service.
    """

    shards: int
    timeout: float
    recovery: float
    lease: float
    has_limiter: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FleetStats:
    """Statistics of a fleet.

    Attributes:
        shards: Statistics of each shard; None for one that does not respond, which is not in the sums.
        size: Transitions that can be drawn now.
        inserted: Steps ever stored.
        sampled: Samples ever drawn, also those drawn in vain while the shards changed.
        lost: Steps, or transitions for episode buffers, lost with a process, as far as known to current clients.
        refused: Steps that a buffer refused.
        stale_priorities: Priorities that this client sent for steps no longer stored, or to shards that did not
            respond.
    """

    shards: tuple[replies.ShardStats | None, ...]
    size: int
    inserted: int
    sampled: int
    lost: int
    refused: int
    stale_priorities: int


class Replay(Generic[Batch]):
    """A replay buffer in many shards.

    Args:
        transport: Reaches them.
        settings: The settings.
        description: The description of their buffers.
        seed: Seed for the shares of the shards in a batch, and for the order of rows.
    """

    def __init__(
        self,
        transport: membership.Transport,
        settings: Settings,
        description: adapter.Description,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self._transport, self._settings, self._description = transport, settings, description
        self._shards = membership.Membership(transport, settings.shards, timeout=settings.timeout)
        self._first = int(np.random.default_rng().integers(settings.shards))
        self._draws = draws.Draws(self._shards, description, settings.recovery, validation.generator("seed", seed))
        self._returning: set[asyncio.Task[None]] = set()
        self._largest_priority = 1.0
        self._stale_priorities = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._settings.shards} shards, each a {self._description.kind}>"

    # Writing.

    def writer(self, *, batch_steps: int = 1000, max_in_flight: int = 4) -> column_writer.ColumnWriter:
        """Return a writer of steps, for a fleet of column buffers. It uses one shard as long as that is live.

        Args:
            batch_steps: Number of steps in a batch.
            max_in_flight: Maximum number of unacknowledged batches; beyond it, the writer's calls wait.

        Raises:
            ArgumentError: An argument is invalid, or the shards have episode buffers.
        """
        if not self._description.has_columns:
            raise errors.ArgumentError(f"writer needs buffers of columns, got {self._description.kind}")
        return column_writer.ColumnWriter(*self._outbox(batch_steps, max_in_flight))

    def episodes_writer(self, *, batch_steps: int = 100, max_in_flight: int = 4) -> episodes_writer.EpisodesWriter:
        """Return a writer of episodes, for a fleet of episode buffers; otherwise like `writer`."""
        if self._description.has_columns:
            raise errors.ArgumentError(f"episodes_writer needs buffers of episodes, got {self._description.kind}")
        return episodes_writer.EpisodesWriter(*self._outbox(batch_steps, max_in_flight))

    def _outbox(self, batch_steps: int, max_in_flight: int) -> tuple[outbox.Outbox, int]:
        batch_steps = validation.positive_int("batch_steps", batch_steps)
        max_in_flight = validation.positive_int("max_in_flight", max_in_flight)
        self._first = (self._first + 1) % self._settings.shards
        answer = outbox.Outbox(
            self._shards,
            self._transport if self._settings.has_limiter else None,
            first=self._first,
            batch_steps=batch_steps,
            max_in_flight=max_in_flight,
            recovery=self._settings.recovery,
            lease=self._settings.lease,
        )
        return answer, batch_steps

    # Drawing.

    async def sample(self, batch_size: int, **options: Any) -> Batch:
        """Return exactly batch_size samples, drawn with replacement from all shards as from a single buffer.

        A shard is drawn in proportion to its eligible anchors or transitions, or with priorities to the sum of its
        weights. Waits until anything can be drawn and the limiter allows it. Lost shards are skipped.

        Args:
            batch_size: The batch size, B.
            options: Further arguments of the buffers' `sample`, or of `sample_n_step` for episode buffers.

        Raises:
            ArgumentError: An argument is invalid, or the limiter could never allow such a batch.
            ShardLostError: No shard has responded for `recovery` seconds.
        """
        return (await self._some(validation.positive_int("batch_size", batch_size), 1, options))[0]

    async def _some(self, size: int, number: int, options: Mapping[str, Any]) -> list[Batch]:
        """Return from 1 to `number` batches: as many as the limiter allows now."""
        if not self._settings.has_limiter:
            return await self._draws.batches(size, number, options)
        while True:
            await self._draws.refresh(options)
            granted = await self._turns(size, number)
            if granted:
                break
        try:
            batches: list[Batch] = await self._draws.batches(size, granted, options)
        except BaseException:
            self._return(self._give_back(size * granted))
            raise
        return batches

    async def _turns(self, size: int, number: int) -> int:
        """Wait for the turns of some batches, and return how many came; a cancelled call takes none."""
        asked = asyncio.ensure_future(self._transport.limiter("sample_turns", size, number, self._draws.size))
        try:
            return int(await asyncio.shield(asked))
        except asyncio.CancelledError:
            self._return(self._give_back_those(asked, size))
            raise

    async def _give_back_those(self, asked: Awaitable[int], size: int) -> None:
        with contextlib.suppress(errors.ReplayError):
            await self._give_back(size * await asked)

    async def _give_back(self, samples: int) -> None:
        await self._transport.limiter("give_back", samples)

    def _return(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def batches(self, batch_size: int, *, prefetch: int = 2, **options: Any) -> AsyncGenerator[Batch, None]:
        """Yield batches as from `sample`, endlessly, with prefetching while the learner works.

        Once half of them are used, the next ones are drawn in one request. Additions and priorities after a batch was
        drawn do not affect it. Cancelling a wait for the next batch ends the iteration.

        Args:
            batch_size: The batch size, B.
            prefetch: Number of batches drawn ahead, at most.
            options: As in `sample`.

        Raises:
            ArgumentError: An argument is invalid.
        """
        size = validation.positive_int("batch_size", batch_size)
        most = validation.non_negative_int("prefetch", prefetch) + 1
        ready: collections.deque[Batch] = collections.deque()
        request: asyncio.Task[list[Batch]] | None = None
        try:
            while True:
                if request is None and len(ready) <= most // 2:
                    request = asyncio.create_task(self._some(size, most - len(ready), options))
                if not ready:
                    assert request is not None
                    ready.extend(await request)
                    request = None
                yield ready.popleft()
        finally:
            if request is not None:
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)

    async def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Update the priorities of steps in their shards, and return how many of them were still stored.

        Args:
            keys: Keys of the steps, such as `batch.keys` [B].
            priorities: Raw priorities, finite and at least 0 [B] or [B, 1]; for a repeated key, the last one wins.

        Raises:
            ArgumentError: A priority is invalid, the lengths differ, or the buffers have no priorities.
        """
        keys = validation.integers("keys", keys)
        priorities = validation.non_negative_floats("priority", priorities, len(keys))
        if self._description.beta is None:
            raise errors.ArgumentError(f"update_priorities needs buffers with priorities, got {self._description.kind}")
        places = shares.by_shard(keys, self._settings.shards)
        largest = max(self._largest_priority, float(priorities.max(initial=0.0)))
        # A new row gets the largest priority of the whole fleet, so every shard is told of a larger one.
        asked = range(self._settings.shards) if largest > self._largest_priority else sorted(places)
        nowhere = np.zeros(0, np.int64)

        async def update(shard: int) -> int:
            here = places.get(shard, nowhere)
            arguments = keys[here] // self._settings.shards, priorities[here], largest
            updated = await self._shards.ask_or_none(shard, "update_priorities", *arguments)
            weight, alive = (None, 0) if updated is None else updated
            if weight is not None:
                self._draws.note(shard, weight)
            self._stale_priorities += len(here) - alive
            return int(alive)

        alive = await asyncio.gather(*[update(shard) for shard in asked])
        self._largest_priority = max(self._largest_priority, largest)
        return sum(alive)

    async def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version in every shard, from which the lag of steps is counted.

        A shard that is lost or restarts gets it with the next batch that this client draws.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0, or below the previous version, or the shards have column buffers.
        """
        version = validation.next_version(version, self._draws.policy_version)
        await self._of_each("set_policy_version", version)
        self._draws.policy_version = max(version, self._draws.policy_version or 0)

    # Fleet management.

    async def ping(self) -> list[str | None]:
        """Return "pong" for each live shard, None for the others."""
        return await self._of_each("ping")

    async def host(self) -> list[str | None]:
        """Return the host name of each shard; None for a lost shard."""
        return await self._of_each("host")

    async def stats(self) -> FleetStats:
        """Return statistics of the fleet and of each shard."""
        of_each: list[replies.ShardStats | None] = await self._of_each("stats")
        seen = [None if stats is None else stats.progress for stats in of_each]
        notes = [await self._shards.note(shard, of_shard) for shard, of_shard in enumerate(seen)]
        if any(notes):
            of_each = await self._of_each("stats")
        there = [stats for stats in of_each if stats is not None]
        return FleetStats(
            shards=tuple(of_each),
            size=sum(stats.size for stats in there),
            inserted=sum(stats.inserted for stats in there),
            sampled=sum(stats.sampled for stats in there),
            lost=sum(stats.lost for stats in there),
            refused=sum(stats.refused for stats in there),
            stale_priorities=self._stale_priorities,
        )

    async def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Apply a function to the buffer of each shard, and return the results in order.

        Args:
            function: Called as `function(buffer, *arguments)` in the process of the shard.
            arguments: Further arguments of the function.

        Raises:
            ShardLostError: A shard is lost, or was lost while the function ran; it may have run in others.
            Exception: Any exception of the function.
        """
        shards = range(self._settings.shards)
        calls = [self._transport.call(shard, "apply", function, *arguments, seconds=None) for shard in shards]
        return list(await asyncio.gather(*calls))

    async def save(self) -> None:
        """Save every shard, in its directory.

        Raises:
            ArgumentError: The fleet has no directory.
            CheckpointError: A shard could not be saved.
            ShardLostError: A shard is lost.
        """
        await asyncio.gather(*[self._save(shard) for shard in range(self._settings.shards)])

    async def _save(self, shard: int) -> None:
        request = os.urandom(16)
        while True:
            if await self._transport.call(shard, "save", request, seconds=None):
                return
            await asyncio.sleep(_PAUSE)

    async def _of_each(self, method: str, *arguments: Any) -> list[Any]:
        shards = range(self._settings.shards)
        calls = [self._shards.ask_or_none(shard, method, *arguments) for shard in shards]
        of_each = list(await asyncio.gather(*calls))
        self._shards.live()  # Raises if all shards are gone for good.
        return of_each
