"""Replay: the client side of ShardedReplay, one replay buffer with rows in many shards.

writer() ─► Writer ─► Outbox ─► one shard          sample ─► the limiter ─► Draws ─► all shards
"""

import asyncio
import collections
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
import contextlib
import dataclasses
import os
from typing import Any, Generic, Self, TypeVar

import numpy as np

from relive import errors
from relive.agents import queue as queue_lib
from relive.buffers import prefetch as prefetch_lib
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.common import validation
from relive.fleet import adapter
from relive.fleet import consumption
from relive.fleet import draws
from relive.fleet import episode_writers
from relive.fleet import holds
from relive.fleet import membership
from relive.fleet import outbox
from relive.fleet import plain_calls
from relive.fleet import replies
from relive.fleet import shares
from relive.fleet import step_writers
from relive.fleet import tickets
from relive.fleet import timing

Batch = TypeVar("Batch")

_MOST_AHEAD = 32
"""So many batches are under way at most, unless `prefetch` says more."""
_SUMS = ("size", "inserted", "sampled", "lost", "refused")
"""The statistics of a fleet that are the sums of those of its shards."""
_NOWHERE = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FleetStats:
    """Statistics of a fleet.

    Attributes:
        shards: Statistics of each shard; None for one that does not respond, which is not in the sums.
        coordinator: Statistics of the coordinator, which knows which shards are active and which are being drained.
        size: Transitions that can be drawn now.
        inserted: Steps ever stored by these shards.
        sampled: Samples ever drawn from them, also those drawn in vain while the shards changed.
        lost: Steps, or transitions for episode buffers, lost with a process, as far as known to current clients.
        refused: Steps that a buffer refused.
        stale_priorities: Priorities that this client sent for steps no longer stored, or to shards that did not
            respond.
    """

    shards: tuple[replies.ShardStats | None, ...]
    coordinator: replies.CoordinatorStats
    size: int
    inserted: int
    sampled: int
    lost: int
    refused: int
    stale_priorities: int


class FleetBatches(duplicates.NeverCopied, Generic[Batch]):
    """An endless asynchronous iterator of batches, some of which are drawn ahead; `ShardedReplay.batches` makes it.

    Tasks may share it. Once it is garbage collected, nothing is drawn any more.

    Args:
        draw: Returns from 1 to so many batches.
        most: Number of batches that are ready or under way, at most.
    """

    _INSTEAD = prefetch_lib.INSTEAD

    def __init__(self, draw: Callable[[int], Coroutine[Any, Any, list[Batch]]], most: int) -> None:
        self._requests: collections.deque[asyncio.Task[list[Batch]]] = collections.deque()
        # Not of this object, so that the event loop closes it when the object is gone.
        self._items = _drawn(draw, most, self._requests)
        self._turn = asyncio.Lock()
        self._is_closed = False

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Batch:
        """Return the next batch; waits and raises like `sample`.

        Raises:
            StopAsyncIteration: The iterator was closed, or is closed while waiting.
        """
        async with self._turn:
            if self._is_closed:
                raise StopAsyncIteration
            return await anext(self._items)

    async def aclose(self) -> None:
        """Discard the batches drawn ahead, and end the iteration, also of tasks that wait for the next one."""
        self._is_closed = True
        for request in self._requests:
            request.cancel()
        async with self._turn:
            await self._items.aclose()


async def _drawn(
    draw: Callable[[int], Coroutine[Any, Any, list[Batch]]],
    most: int,
    requests: collections.deque[asyncio.Task[list[Batch]]],
) -> AsyncGenerator[Batch, None]:
    """Yield batches until a request for them is cancelled."""
    number = (most + 1) // 2
    ready: collections.deque[Batch] = collections.deque()
    try:
        while True:
            # Two requests are under way, so that neither shards nor learner wait for the other.
            while len(ready) + number * (len(requests) + 1) <= most:
                requests.append(asyncio.create_task(draw(number)))
            if not ready:
                await asyncio.wait([requests[0]])
                if requests[0].cancelled():
                    return
                ready.extend(requests.popleft().result())
                continue
            yield ready.popleft()
    finally:
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


class Replay(consumption.Consumption, Generic[Batch]):
    """A replay buffer in many shards."""

    def __init__(
        self,
        transport: membership.Transport,
        settings: membership.Settings,
        description: adapter.Description,
        members: replies.Members,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self._transport, self._settings, self._description = transport, settings, description
        self._shards = membership.Membership(transport, members, settings)
        rng = validation.generator("seed", seed)
        self._draws = draws.Draws(self._shards, description, rng)
        kinds: tuple[queue_lib.Kind, ...] = ("episodes", "groups")
        self._queues = {each: consumption.FleetQueue(self._shards, self._draws, rng, each) for each in kinds}
        self._tickets = tickets.Tickets(self._shards)
        self._largest_priority, self._told_version = 1.0, members.version
        self._stale_priorities = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._shards.members.shards)} shards, each a {self._description.kind}>"

    # Writing.

    def writer(self, *, batch_steps: int = 1000, max_in_flight: int = 4) -> step_writers.ColumnWriter:
        """Return a writer of steps, for a fleet of column buffers. It uses one shard as long as that is live.

        Args:
            batch_steps: Number of steps in a batch.
            max_in_flight: Maximum number of unacknowledged batches; beyond it, the writer's calls wait.

        Raises:
            ArgumentError: An argument is invalid, or the shards have other buffers.
        """
        return step_writers.ColumnWriter(self._outbox("writer", batch_steps, max_in_flight), batch_steps)

    def joint_writer(self, *, batch_steps: int = 1000, max_in_flight: int = 4) -> step_writers.JointWriter:
        """Return a writer of joint steps, for a fleet of joint buffers; otherwise like `writer`."""
        return step_writers.JointWriter(self._outbox("joint_writer", batch_steps, max_in_flight), batch_steps)

    def episodes_writer(self, *, batch_steps: int = 100, max_in_flight: int = 4) -> episode_writers.EpisodesWriter:
        """Return a writer of episodes, for a fleet of episode buffers; otherwise like `writer`."""
        outbox = self._outbox("episodes_writer", batch_steps, max_in_flight)
        held = holds.Holds(self._shards, self._description.has_groups)
        return episode_writers.EpisodesWriter(outbox, batch_steps, held, self._tickets)

    def tokens_writer(self, *, batch_episodes: int = 1, max_in_flight: int = 4) -> episode_writers.TokensWriter:
        """Return a writer of episodes of tokens, for a fleet of token buffers; otherwise like `writer`."""
        outbox = self._outbox("tokens_writer", batch_episodes, max_in_flight)
        held = holds.Holds(self._shards, self._description.has_groups)
        return episode_writers.TokensWriter(outbox, held, self._tickets)

    def _outbox(self, call: str, batch_steps: int, max_in_flight: int) -> outbox.Outbox:
        if call != self._description.writer:
            kind = self._description.kind
            raise errors.ArgumentError(f"{call} cannot write to {kind}: use {self._description.writer}")
        batch_steps = validation.positive_int("batch_steps", batch_steps)
        max_in_flight = validation.positive_int("max_in_flight", max_in_flight)
        return outbox.Outbox(self._shards, batch_steps=batch_steps, max_in_flight=max_in_flight)

    def sync_writer(self, **settings: Any) -> plain_calls.SyncWriter:
        """Return a writer for a plain loop, with blocking calls.

        Args:
            settings: The arguments of `writer`, or of the corresponding method for other buffers.
        """
        return plain_calls.SyncWriter(getattr(self._another(), self._description.writer)(**settings))

    def sync(self) -> plain_calls.SyncReplay:
        """Return a client for a plain loop, whose calls block: every method of this one, none of which is awaited."""
        return plain_calls.SyncReplay(self._another())

    def _another(self) -> Self:
        """Return another client of the same fleet, for an event loop of its own."""
        return type(self)(self._transport, self._settings, self._description, self._shards.members)

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
        return (await self._some(validation.batch_size("batch_size", batch_size), 1, options))[0]

    async def sample_keys(self, batch_size: int) -> arrays_lib.Keys:
        """Draw as `sample` does from buffers of columns, and return only the keys [B].

        Raises:
            ArgumentError: As in `sample`, or the shards have other buffers.
            ShardLostError: As in `sample`.
        """
        if not self._description.has_columns:
            raise errors.ArgumentError(f"sample_keys needs buffers of columns, got {self._description.kind}")
        batch: Any = (await self._some(validation.batch_size("batch_size", batch_size), 1, {}, keys_only=True))[0]
        keys: arrays_lib.Keys = batch.keys
        return keys

    async def _some(self, size: int, number: int, options: Mapping[str, Any], keys_only: bool = False) -> list[Batch]:
        """Return from 1 to `number` batches, or their keys: as many as the limiter allows now."""
        if not self._settings.has_limiter:
            return await self._draws.batches(size, number, options, keys_only)
        asked: asyncio.Future[int] | None = None
        try:
            while asked is None or not asked.result():
                await self._draws.refresh(options)
                turns = self._transport.coordinator("limiter", "sample_turns", size, number, self._draws.size)
                asked = asyncio.ensure_future(turns)
                await asyncio.shield(asked)
            batches: list[Batch] = await self._draws.batches(size, asked.result(), options, keys_only)
        except BaseException:
            if asked is not None:
                self._shards.run(self._give_back(size, asked))
            raise
        return batches

    async def _give_back(self, size: int, turns: Awaitable[int]) -> None:
        """Tell the limiter that batches are not drawn, even if their turns are still to come."""
        with contextlib.suppress(errors.ReplayError):
            await self._transport.coordinator("limiter", "give_back", size * await turns, 0)

    def batches(self, batch_size: int, *, prefetch: int | None = None, **options: Any) -> "FleetBatches[Batch]":
        """Return an endless asynchronous iterator of batches as from `sample`, prefetched while the learner works.

        They are drawn in requests for half of them, of which two are under way if `prefetch` is odd. Additions and
        priorities after a batch was drawn do not affect it. Cancelling a wait for the next batch ends the iteration,
        and so does `aclose()`.

        Args:
            batch_size: The batch size, B.
            prefetch: Number of batches drawn ahead, at most. By default 4 for each shard, less 1, and at most 31: so a
                call of a shard draws the rows of two batches, however many shards there are.
            options: As in `sample`.

        Raises:
            ArgumentError: An argument is invalid.
        """
        size = validation.batch_size("batch_size", batch_size)
        if prefetch is None:
            prefetch = min(4 * len(self._shards.members.shards), _MOST_AHEAD) - 1
        most = validation.non_negative_int("prefetch", prefetch) + 1
        return FleetBatches(lambda number: self._some(size, number, options), most)

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
        self._require_priorities("update_priorities")
        places, members = shares.by_shard(keys), self._shards.members
        largest = max(self._largest_priority, float(priorities.max(initial=0.0)))
        # A new row gets the largest priority of the whole fleet, so every shard is told of a larger one.
        is_news = largest > self._largest_priority or members.version > self._told_version
        asked = {shard: places.get(shard, _NOWHERE) for shard in members.shards if is_news or shard in places}
        calls = [
            self._shards.ask_or_none(
                shard, "update_priorities", keys[here] // shares.MOST_SHARDS, priorities[here], largest
            )
            for shard, here in asked.items()
        ]
        stored = 0
        for shard, updated in zip(asked, await asyncio.gather(*calls), strict=True):
            if updated is not None:
                self._draws.weights[shard], in_shard = updated
                stored += in_shard
        self._largest_priority, self._told_version = max(self._largest_priority, largest), members.version
        self._stale_priorities += len(keys) - stored
        return stored

    async def get_priorities(self, keys: Any) -> arrays_lib.Floats:
        """Return the raw priorities of the steps with those keys [B].

        Raises:
            UnknownKeyError: No step of one of the keys is stored.
            ArgumentError: The buffers have no priorities.
            ShardLostError: A shard with one of the keys is lost.
        """
        self._require_priorities("get_priorities")
        of_each, order = await self._of_keys("get_priorities", validation.integers("keys", keys))
        return np.concatenate([np.zeros(0), *of_each])[order]

    def _require_priorities(self, call: str) -> None:
        if self._description.beta is None:
            raise errors.ArgumentError(f"{call} needs buffers with priorities, got {self._description.kind}")

    async def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version in every shard, from which the lag of steps is counted.

        A shard that is lost or restarts gets it with the next batch that this client draws.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0, or below the previous version; the shards have column buffers; or another
                client has called `resume_policy_version` since the last version that this one has set. The next call
                is then of a learner that has resumed, too.
        """
        self._require_episodes("set_policy_version")
        is_first = self._resumed is None
        while is_first or self._resumed == self._draws.policy.resumed:
            before = self._draws.policy
            version, self._resumed = validation.next_version(version, before.version), before.resumed
            await self._follow(replies.Policy(before.resumed, version))
            if before.resumed == self._draws.policy.resumed:
                if is_first:  # It may be the client of a learner that was restarted with older weights.
                    validation.next_version(version, self._draws.policy.version)
                return
        self._resumed = self._draws.policy.resumed
        raise errors.ArgumentError(
            f"version must be of weights that go on from version {self._resumed[-1]}, from which another learner has "
            f"resumed, got {version}: load them first"
        )

    async def resume_policy_version(self, version: int) -> None:
        """Let the learner go on from weights of that policy version, newer or older than its own.

        See EpisodeReplayBuffer.resume_policy_version. What was delivered at that version or later, to any client, and
        is not acknowledged, comes again or is dropped. No other client, late reply or restarted shard can undo it; a
        shard that is lost follows once it is there again.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0, or the shards have column buffers.
        """
        self._require_episodes("resume_policy_version")
        version = validation.non_negative_int("version", version)
        await self._follow(replies.Policy())
        self._resumed = (*self._draws.policy.resumed, version)
        await self._follow(replies.Policy(self._resumed, version))

    async def _follow(self, policy: replies.Policy) -> None:
        """Let every shard follow a policy, unless it knows a newer one, and learn of the newest."""
        shards = self._shards.members.shards
        for shard, reply in zip(shards, await self._of_each("follow", policy), strict=True):
            if reply is not None:
                self._draws.learn([reply[0]])
                await self._shards.note(shard, reply[1])
        self._draws.learn([policy])

    # Fleet management.

    async def add_shard(self) -> int:
        """Start another shard, and return its number; writers spread over all shards again.

        In a fleet without a name, it lives as long as the process that added it.
        """
        shard = int(await self._transport.coordinator("next_shard"))
        await self._transport.launch(shard)
        self._shards.learn(await self._transport.coordinator("add", shard))
        return shard

    async def drain(self, shard: int) -> None:
        """Begin to remove a shard: it is no longer written to, and its rows can be drawn until they have aged out.

        That is when the other shards have stored as many steps as the whole fleet held now. Then its process ends, and
        its files are deleted. `stats().coordinator.left` says how many steps are missing.

        Raises:
            ArgumentTypeError: It is not an integer.
            ArgumentError: It is not one of the active shards, or the last of them.
        """
        shard = validation.non_negative_int("shard", shard)
        self._shards.learn(await self._transport.coordinator("drain", shard))

    async def clear(self) -> None:
        """Remove all that the buffers of the shards hold; see `clear` of the buffer.

        Raises:
            ShardLostError: A shard is lost, and keeps what it has; the others are cleared.
        """
        await asyncio.gather(*[self._shards.ask(shard, "clear") for shard in self._shards.members.shards])

    async def ping(self) -> list[str | None]:
        """Return "pong" for each live shard, None for the others."""
        return await self._of_each("ping")

    async def host(self) -> list[str | None]:
        """Return the host name of each shard; None for a lost shard."""
        return await self._of_each("host")

    async def stats(self) -> FleetStats:
        """Return statistics of the fleet and of each shard."""
        coordinator: replies.CoordinatorStats = await self._transport.coordinator("stats")
        self._shards.learn(coordinator.members)
        shards = self._shards.members.shards
        of_each: list[replies.ShardStats | None] = await self._of_each("stats")
        seen = [None if stats is None else stats.progress for stats in of_each]
        notes = [await self._shards.note(shard, of_shard) for shard, of_shard in zip(shards, seen, strict=True)]
        if any(notes):
            of_each = await self._of_each("stats")
        there = [stats for stats in of_each if stats is not None]
        sums = {name: sum(getattr(stats, name) for stats in there) for name in _SUMS}
        return FleetStats(
            shards=tuple(of_each), coordinator=coordinator, stale_priorities=self._stale_priorities, **sums
        )

    async def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Apply a function to the buffer of each shard, and return the results in order.

        Args:
            function: Called as `function(buffer, *arguments)` in the process of the shard.
            arguments: Further arguments of the function.

        Raises:
            ArgumentTypeError: `function` cannot be called.
            ShardLostError: A shard is lost, or was lost while the function ran; it may have run in others.
            Exception: Any exception of the function.
        """
        validation.require_function("function", function)
        shards = self._shards.members.shards
        calls = [self._transport.call(shard, "apply", function, *arguments, seconds=None) for shard in shards]
        return list(await asyncio.gather(*calls))

    async def save(self) -> None:
        """Save every shard, in its directory.

        Raises:
            ArgumentError: The fleet has no directory.
            CheckpointError: A shard could not be saved.
            ShardLostError: A shard is lost.
        """
        await asyncio.gather(*[self._save(shard) for shard in self._shards.members.shards])

    async def _save(self, shard: int) -> None:
        request = os.urandom(16)
        while True:
            if await self._transport.call(shard, "save", request, seconds=None):
                return
            await asyncio.sleep(timing.PAUSE)

    async def _of_each(self, method: str, *arguments: Any) -> list[Any]:
        shards = self._shards.members.shards
        calls = [self._shards.ask_or_none(shard, method, *arguments) for shard in shards]
        of_each = list(await asyncio.gather(*calls))
        self._shards.live()  # Raises if all shards are gone for good.
        return of_each
