"""Consumption: the calls of a client that consume each episode or group once, and those on sequences of tokens.

    next_groups(8)  ──►  how many are ready in each shard  ──►  take 3, 1, 4  ──►  8 groups
                                                                one has fewer  ──►  put back, ask again
                         too few: wait for news of the coordinator  ──►  ask again

A client remembers how many are ready, so that mostly one trip suffices. What does not reach the caller is put back: by
the client, or by the shard itself when the client asks again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
import dataclasses
import os
from typing import Any

import numpy as np

from relive import errors
from relive.agents import bias
from relive.agents import facts
from relive.agents import packing
from relive.agents import queue as queue_lib
from relive.agents import queued
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.common import validation
from relive.episodes import sums as sums_lib
from relive.fleet import adapter
from relive.fleet import deliveries
from relive.fleet import draws
from relive.fleet import membership
from relive.fleet import shares
from relive.fleet import tickets
from relive.fleet import timing

_NONE = np.zeros(0, np.int64)


class FleetQueue:
    """The requests of one client for episodes, or for groups, one after the other."""

    def __init__(
        self, shards: membership.Membership, draws: draws.Draws, rng: np.random.Generator, kind: queue_lib.Kind
    ) -> None:
        self._shards, self._draws, self._rng = shards, draws, rng
        self._kind: queue_lib.Kind = kind
        self._name, self._number, self._news = os.urandom(16), 0, 0
        self._kept: dict[int, int] = {}
        self._ready: dict[int, int] = {}
        self._turn: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next(self, count: int, max_lag: int | None, accept: Any) -> list[Any]:
        """Return the next units, `count` of them; waits until there are enough."""
        loop = asyncio.get_running_loop()
        if self._turn is None or self._loop is not loop:
            self._turn, self._loop = asyncio.Lock(), loop
        async with self._turn:
            while True:
                numbers = self._numbers(count)
                units = await self._take(numbers, deliveries.Wanted(self._kind, count, max_lag, accept))
                if len(units) == count:
                    return units
                if sum(self._ready.values()) < count:
                    self._news = await self._shards.transport.coordinator("news", self._news)
                elif any(numbers.values()):  # Another learner was faster.
                    await asyncio.sleep(timing.LOOK_AGAIN * self._rng.random())

    def kept(self, shard: int) -> tuple[bytes, int]:
        """Return the name of these requests, and the number of the newest one whose reply from a shard was kept."""
        return self._name, self._kept.get(shard, 0)

    def _numbers(self, count: int) -> dict[int, int]:
        """Return how many units to take from each live shard; 0 from all if too few are known to be ready."""
        live = self._shards.live()
        if len(live) == 1:
            return {live[0]: count}
        ready = [self._ready.get(shard, 0) for shard in live]
        if sum(ready) < count:
            return dict.fromkeys(live, 0)
        points = (np.arange(count) + self._rng.random()) / count
        return dict(zip(live, shares.counts([each / sum(ready) for each in ready], points).tolist(), strict=True))

    async def _take(self, numbers: Mapping[int, int], wanted: deliveries.Wanted) -> list[Any]:
        """Return so many units of each shard, or none if one has fewer; note how many are ready then."""
        self._number += 1
        policies = dict.fromkeys(numbers, self._draws.policy)
        units: dict[int, list[Any] | None] = dict.fromkeys(numbers)
        self._ready, is_whole = {}, False
        try:
            calls = [self._ask(shard, number, wanted) for shard, number in numbers.items()]
            for shard, reply in zip(numbers, await asyncio.gather(*calls), strict=True):
                if reply is not None:
                    units[shard], self._ready[shard], policies[shard], progress = reply
                    self._draws.learn([policies[shard]])
                    await self._shards.note(shard, progress)
            # What was sent before a learner resumed is taken back where that is known.
            is_whole = {len(each.resumed) for each in policies.values()} == {len(self._draws.policy.resumed)}
            is_whole &= all(len(units[shard] or ()) == number for shard, number in numbers.items())
        finally:
            if is_whole:
                self._kept |= dict.fromkeys(numbers, self._number)
            else:
                for shard, number in numbers.items():
                    of_shard = units[shard]
                    self._ready[shard] = self._ready.get(shard, 0) + len(of_shard or ())
                    if number and of_shard != []:  # Also what a shard has not said; once it is back, if it is lost.
                        self._shards.run(self._put_back(shard, self._number))
        return [_described(each, shard) for shard, found in units.items() for each in found or ()] if is_whole else []

    def _ask(self, shard: int, number: int, wanted: deliveries.Wanted) -> Awaitable[Any]:
        request = deliveries.Request(self._name, self._number, self._kept.get(shard, 0))
        return self._shards.ask_or_none(shard, "take", request, number, wanted, self._draws.policy)

    async def _put_back(self, shard: int, number: int) -> None:
        while True:
            try:
                await self._shards.ask(shard, "put_back", self._name, number)
                return
            except errors.ShardLostError:
                if not await self._shards.is_back(shard, self._shards.settings.recovery):
                    return
            except errors.CheckpointError:  # Its disk is full.
                await asyncio.sleep(timing.PAUSE_IF_FULL)


class Consumption:
    """The calls of a client that consume each episode or group once, and those on sequences of tokens."""

    _shards: membership.Membership
    _draws: draws.Draws
    _description: adapter.Description
    _queues: Mapping[queue_lib.Kind, FleetQueue]
    _tickets: tickets.Tickets
    _of_each: Callable[..., Awaitable[list[Any]]]
    _resumed: tuple[int, ...] | None = None
    """The generation of the policy of which this client's learner has set a version; None before it has."""

    async def admit(self, count: int = 1) -> tickets.FleetTicket:
        """Return a ticket to start `count` episodes; waits while the fleet's admission requires it.

        See EpisodeReplayBuffer.admit. A cancelled call takes none.
        """
        self._require_episodes("admit")
        return await self._tickets.admit(count)

    async def next_episodes(
        self, count: int, *, max_lag: int | None = None, accept: Callable[[Any], bool] | None = None
    ) -> list[Any]:
        """Return the next `count` episodes of all shards; waits until there are enough.

        See EpisodeReplayBuffer.next_episodes, also for the arguments. They come in the order in which they ended in a
        shard, where `accept` is called.
        """
        return [episode for (episode,) in await self._next("episodes", count, max_lag, accept)]

    async def next_groups(
        self, count: int, *, max_lag: int | None = None, accept: Callable[[list[Any]], bool] | None = None
    ) -> list[list[Any]]:
        """Return the next `count` complete groups of all shards; otherwise like `next_episodes`."""
        return await self._next("groups", count, max_lag, accept)

    async def _next(self, kind: queue_lib.Kind, count: int, max_lag: int | None, accept: Any) -> list[Any]:
        self._require_episodes(f"next_{kind}")
        return await self._queues[kind].next(validation.positive_int("count", count), max_lag, accept)

    async def reject(self, episode_ids: Iterable[str], *, reason: str = "rejected") -> int:
        """Drop episodes that were delivered or wait, but for those in lost shards, and return how many.

        See EpisodeReplayBuffer.reject.
        """
        self._require_episodes("reject")
        given = validation.items("episode_ids", episode_ids, "strings")
        ids = [validation.string("each of episode_ids", episode_id) for episode_id in given]
        reason = validation.non_empty_string("reason", reason)
        shards, num_dropped = self._shards.members.shards, 0
        for shard, reply in zip(shards, await self._of_each("reject", ids, reason), strict=True):
            if reply is not None:
                num_dropped += reply[0]
                await self._shards.note(shard, reply[1])
        return num_dropped

    async def abort_open_episodes(self) -> int:
        """End what crashed actors left unfinished, and return how much it was; see EpisodeReplayBuffer.

        Only open episodes whose writer has been silent for the lease end as ABORTED, and only groups that no live
        writer holds are given up: one that is open, in a process that is alive, and has begun an episode of the group.
        Waits while a shard is lost, and right after a restart of the coordinator, until it knows who holds what.
        """
        self._require_episodes("abort_open_episodes")
        return int(await self._shards.transport.coordinator("abort_open_episodes"))

    async def ack(self, version: int) -> None:
        """Acknowledge all that was delivered before the learner had that policy version.

        See EpisodeReplayBuffer.ack. A shard that is lost when this is called delivers again what it has delivered. If
        another learner has resumed from an older version meanwhile, only what was delivered before that counts.
        """
        self._require_episodes("ack")
        policy = self._draws.policy
        generation = len(policy.resumed if self._resumed is None else self._resumed)
        calls = [
            self._shards.ask_or_none(
                shard, "ack", version, generation, policy, dict([queue.kept(shard) for queue in self._queues.values()])
            )
            for shard in self._shards.members.shards
        ]
        await asyncio.gather(*calls)

    async def get_drops(self) -> dict[str, dict[str, int]]:
        """Return the number of episodes dropped before training, of all shards: reason -> agent_id -> episodes."""
        self._require_episodes("get_drops")
        drops = bias.Drops()
        for of_shard in await self._of_each("apply", lambda buffer: buffer.get_drops()):
            for reason, by_agent in (of_shard or {}).items():
                for agent, episodes in by_agent.items():
                    drops.count(reason, agent, episodes)
        return drops.view()

    async def get_training_bias(self) -> bias.TrainingBias:
        """Return statistics of all ended episodes, and of those that learners trained on; see EpisodeReplayBuffer."""
        self._require_episodes("get_training_bias")
        found = [of_shard for of_shard in await self._of_each("apply", _sums) if of_shard is not None]
        produced, trained = (sums_lib.Tally.total([of_shard[which] for of_shard in found]) for which in (0, 1))
        return bias.TrainingBias(produced=produced.totals(), trained=trained.totals())

    async def read(self, keys: Any) -> packing.TokenBatch[arrays_lib.Array]:
        """Return the sequences of tokens with those keys [B]; see TokenReplayBuffer.read. Probabilities are NaN.

        Raises ShardLostError if a shard with one of them is lost.
        """
        keys = self._keys("read", keys)
        if not len(keys):
            raise errors.ArgumentError("keys must have at least 1 key, got 0")
        batches, order = await self._of_keys("read", keys)
        batch = shares.joined_tokens(batches, order, self._description.padding)
        batch.prefix_ids = keys + (batch.prefix_ids - batch.keys) * shares.MOST_SHARDS  # Of one shard.
        batch.keys, batch.probabilities = keys.copy(), np.full(len(keys), np.nan)
        return batch

    async def lengths(self, keys: Any) -> arrays_lib.Ints:
        """Return the number of tokens of the sequences with those keys [B], without reading them; raises as `read`."""
        of_each, order = await self._of_keys("lengths", self._keys("lengths", keys))
        return np.concatenate([_NONE, *of_each])[order]

    async def micro_batches(self, keys: Any, *, max_tokens: int, ranks: int = 1) -> list[list[arrays_lib.Keys]]:
        """Return those keys [B] divided into micro-batches of at most `max_tokens` tokens, without reading them.

        See TokenReplayBuffer.micro_batches. Raises ShardLostError if a shard with one of them is lost.
        """
        keys = self._keys("micro_batches", keys)
        parts = packing.micro_batches(await self.lengths(keys), max_tokens=max_tokens, ranks=ranks)
        return [[keys[places] for places in of_rank] for of_rank in parts]

    async def eligible_keys(self, **options: Any) -> arrays_lib.Keys:
        """Return the keys of all that may be drawn, those of each shard oldest first; lost shards are skipped.

        Args:
            options: The arguments of the buffers' `eligible_keys`: `max_lag` for buffers of tokens.

        Raises:
            ArgumentError: An argument is invalid, or the shards have buffers of episodes.
            ShardLostError: No shard has responded for `recovery` seconds.
        """
        if self._description.writer == "episodes_writer":
            raise errors.ArgumentError(
                f"eligible_keys needs buffers of columns or tokens, got {self._description.kind}"
            )
        await self._draws.refresh(options)  # All shards then have one policy version.
        shards = self._shards.members.shards
        of_each = zip(shards, await self._of_each("eligible_keys", options), strict=True)
        keys = [keys * shares.MOST_SHARDS + shard for shard, keys in of_each if keys is not None]
        return np.concatenate([_NONE, *keys])

    async def update(self, keys: Any, **extras: Any) -> int:
        """Write extras of sequences of tokens, and return how many were still stored; see TokenReplayBuffer.update.

        Those in lost shards are not written.
        """
        keys = self._keys("update", keys)
        for name, given in extras.items():
            if validation.leading_length(name, given) != len(keys):
                raise errors.SchemaError(f"{name} must be one for each of {len(keys)} keys, got {len(given)}")
        calls = []
        for shard, here in shares.by_shard(keys).items():
            own = {name: [given[place] for place in here.tolist()] for name, given in extras.items()}
            calls.append(self._shards.ask_or_none(shard, "update", keys[here] // shares.MOST_SHARDS, own))
        return sum([updated or 0 for updated in await asyncio.gather(*calls)])

    def _keys(self, call: str, keys: Any) -> arrays_lib.Ints:
        if self._description.writer != "tokens_writer":
            raise errors.ArgumentError(f"{call} needs buffers of tokens, got {self._description.kind}")
        return validation.integers("keys", keys)

    async def _of_keys(self, call: str, keys: arrays_lib.Ints) -> tuple[list[Any], arrays_lib.Ints]:
        """Return the replies of shards to a call with their keys, and where those of `keys` [B] are in all of them [B].

        Raises UnknownKeyError for keys of no shard, and ShardLostError if a shard with one of them is lost.
        """
        places = shares.by_shard(keys)
        if not places.keys() <= set(self._shards.members.shards):
            await self._shards.refresh()
        for shard in places.keys() - set(self._shards.members.shards):
            raise errors.UnknownKeyError(f"key {keys[places[shard][0]]} not found: the fleet has no shard {shard}")
        calls = [
            self._shards.ask(shard, "of_keys", call, keys[here] // shares.MOST_SHARDS, keys[here])
            for shard, here in places.items()
        ]
        return await asyncio.gather(*calls), np.argsort(np.concatenate([_NONE, *places.values()]), kind="stable")

    def _require_episodes(self, call: str) -> None:
        if self._description.has_columns:
            raise errors.ArgumentError(f"{call} needs buffers of episodes or tokens, got {self._description.kind}")


def _described(unit: deliveries.Unit, shard: int) -> deliveries.Unit:
    """Return a unit with keys of the fleet, and nothing that is read-only or shared."""
    step = shares.MOST_SHARDS
    return [
        dataclasses.replace(episode, first_key=episode.first_key * step + shard, key_step=step)
        if isinstance(episode, facts.EpisodeFacts)
        else copies.copied(episode)
        for episode in unit
    ]


def _sums(buffer: Any) -> tuple[sums_lib.Tally, sums_lib.Tally]:
    sums = queued.sums_of(buffer)
    return sums.produced, sums.trained  # Without the queue, which holds all that waits.
