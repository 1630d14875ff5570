"""Consumption: the calls of a client that consume each episode or group once, and those on sequences of tokens.

    next_groups(8)  ──►  how many are ready in each shard  ──►  take 3, 1, 4  ──►  8 groups
                                                                one has fewer  ──►  put back, ask again

A client remembers how many are ready, so that mostly one trip suffices. A shard delivers all that it is asked for or
nothing. What does not reach the caller is put back, and delivered to the next one that asks: by the client, or by the
shard itself when the client asks again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
import dataclasses
import os
from typing import Any

import numpy as np

from relive import errors
from relive.agents import bias
from relive.agents import packing
from relive.agents import token_store
from relive.common import arrays
from relive.common import copies
from relive.common import validation
from relive.fleet import adapter
from relive.fleet import deliveries
from relive.fleet import draws
from relive.fleet import membership
from relive.fleet import shares
from relive.fleet import tickets

_PAUSE = 0.05
"""Seconds between two questions whether enough is ready."""
_PAUSE_IF_FULL = 1.0
"""Seconds between two attempts to write to a full disk."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FleetEpisodeFacts(token_store.EpisodeFacts):
    """EpisodeFacts with keys of the fleet."""

    @property
    def keys(self) -> arrays.Keys:
        """The keys of its sequences: one if it is exact, else more."""
        return self.first_key + np.arange(len(self.mismatches)) * shares.MOST_SHARDS


class FleetQueue:
    """The requests of one client for episodes, or for groups, one after the other.

    Args:
        shards: Reaches them.
        draws: Knows the learner's policy version.
        rng: Chooses the shards.
        is_group: Whether they are for groups.
    """

    def __init__(
        self, shards: membership.Membership, draws: draws.Draws, rng: np.random.Generator, *, is_group: bool
    ) -> None:
        self._shards, self._draws, self._rng, self._is_group = shards, draws, rng, is_group
        self._name, self._number = os.urandom(16), 0
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
                units = await self._some(count, max_lag, accept)
                if len(units) == count:
                    return units
                is_near = sum(self._ready.values()) >= count
                await asyncio.sleep(_PAUSE * self._rng.random() if is_near else _PAUSE)

    def kept(self, shard: int) -> tuple[bytes, int]:
        """Return the name of these requests, and the number of the newest one whose reply from a shard was kept."""
        return self._name, self._kept.get(shard, 0)

    async def _some(self, count: int, max_lag: int | None, accept: Callable[[Any], bool] | None) -> list[Any]:
        """Return `count` units, or none."""
        live = self._shards.live()
        self._ready = {shard: self._ready.get(shard, 0) for shard in live}
        wanted = self._wanted(count)
        if not any(wanted.values()):
            await self._ask(wanted, count, max_lag, accept)
            wanted = self._wanted(count)
        if not any(wanted.values()):
            return []
        try:
            replies = await self._ask(wanted, count, max_lag, accept)
        except BaseException:
            self._put_back(wanted)
            raise
        units = [_described(unit, shard) for shard, reply in replies.items() for unit in reply.units]
        if len(units) < count:
            self._put_back(wanted)
            return []
        self._kept |= dict.fromkeys(wanted, self._number)
        return units

    def _wanted(self, count: int) -> dict[int, int]:
        """Return how many units to take from each shard; 0 from all if too few are known to be ready."""
        shards, ready = list(self._ready), list(self._ready.values())
        if len(shards) == 1:
            return {shards[0]: count}
        if sum(ready) < count:
            return dict.fromkeys(shards, 0)
        points = (np.arange(count) + self._rng.random()) / count
        wanted = shares.counts([each / sum(ready) for each in ready], points)
        return dict(zip(shards, wanted.tolist(), strict=True))

    async def _ask(
        self,
        wanted: Mapping[int, int],
        count: int,
        max_lag: int | None,
        accept: Callable[[Any], bool] | None,
    ) -> dict[int, deliveries.Reply]:
        """Ask shards for units, and return the replies of those that are there."""
        self._number += 1
        requests = {
            shard: deliveries.Request(
                learner=self._name,
                number=self._number,
                kept=self._kept.get(shard, 0),
                is_group=self._is_group,
                take=take,
                count=count,
                max_lag=max_lag,
                accept=accept,
                policy_version=self._draws.policy_version,
            )
            for shard, take in wanted.items()
        }
        calls = [self._shards.ask_or_none(shard, "take", request) for shard, request in requests.items()]
        replies = dict(zip(requests, await asyncio.gather(*calls), strict=True))
        there: dict[int, deliveries.Reply] = {}
        for shard, reply in replies.items():
            if reply is not None:
                there[shard], version = reply
                self._shards.note_version(version)
        self._ready = {shard: there[shard].ready if shard in there else 0 for shard in self._ready}
        versions = [reply.policy_version for reply in there.values() if reply.policy_version is not None]
        if versions:
            self._draws.policy_version = max(*versions, self._draws.policy_version or 0)
        return there

    def _put_back(self, shards: Iterable[int]) -> None:
        """Let shards take back what the newest request was sent, also those that are lost, once they are back."""
        self._ready.clear()
        for shard in shards:
            self._shards.run(self._returned(shard, self._number))

    async def _returned(self, shard: int, number: int) -> None:
        while True:
            try:
                await self._shards.ask(shard, "put_back", self._name, number)
                return
            except errors.ShardLostError:
                if not await self._shards.is_back(shard, self._shards.settings.recovery):
                    return
            except errors.CheckpointError:  # Its disk is full.
                await asyncio.sleep(_PAUSE_IF_FULL)


class Consumption:
    """The calls of a client that consume each episode or group once, and those on sequences of tokens."""

    _shards: membership.Membership
    _draws: draws.Draws
    _description: adapter.Description
    _queues: list[FleetQueue]
    _tickets: tickets.Tickets
    _of_each: Callable[..., Awaitable[list[Any]]]

    async def admit(self, count: int = 1) -> tickets.FleetTicket:
        """Return a ticket to start `count` episodes; waits while the fleet's admission requires it.

        A cancelled call takes none. Without an admission, a ticket is always available.

        Args:
            count: Number of episodes, such as the size of a group: all are admitted together, or none.

        Raises:
            ArgumentError: `count` is not an integer of at least 1, or more than can ever be admitted.
            ClosedError: The fleet was closed.
        """
        self._require_episodes("admit")
        return await self._tickets.admit(count)

    async def next_episodes(
        self, count: int, *, max_lag: int | None = None, accept: Callable[[Any], bool] | None = None
    ) -> list[Any]:
        """Return the next `count` episodes of all shards; waits until there are enough.

        They come in the order in which they ended in each shard. See EpisodeReplayBuffer.next_episodes.

        Args:
            count: The exact number of episodes to return. A cancelled call takes none.
            max_lag: Maximum lag of an episode's oldest version behind the learner's; older ones are dropped as "stale".
            accept: A plain function that takes an episode and returns whether to deliver it; called in the processes of
                the shards, and again for an accepted episode that could not be delivered yet.

        Raises:
            ArgumentError: An argument is invalid, max_lag is given before `set_policy_version` was called, or the
                shards have column buffers.
            ClosedError: The fleet was closed.
        """
        return [episode for (episode,) in await self._next("next_episodes", 0, count, max_lag, accept)]

    async def next_groups(
        self, count: int, *, max_lag: int | None = None, accept: Callable[[list[Any]], bool] | None = None
    ) -> list[list[Any]]:
        """Return the next `count` complete groups of all shards; waits until there are enough.

        See EpisodeReplayBuffer.next_groups; the arguments are those of `next_episodes`.
        """
        return await self._next("next_groups", 1, count, max_lag, accept)

    async def _next(self, call: str, kind: int, count: int, max_lag: int | None, accept: Any) -> list[Any]:
        self._require_episodes(call)
        count = validation.positive_int("count", count)
        if max_lag is not None:
            max_lag = validation.non_negative_int("max_lag", max_lag)
        if not (accept is None or callable(accept)):
            raise errors.ArgumentTypeError(f"accept must be a function, got {validation.short_repr(accept)}")
        return await self._queues[kind].next(count, max_lag, accept)

    async def reject(self, episode_ids: Iterable[str], *, reason: str = "rejected") -> int:
        """Drop episodes that were delivered or wait, and return how many; see EpisodeReplayBuffer.reject.

        Those in lost shards are not dropped.
        """
        self._require_episodes("reject")
        if isinstance(episode_ids, str) or not isinstance(episode_ids, Iterable):
            raise errors.ArgumentTypeError(
                f"episode_ids must be a list of strings, got {validation.short_repr(episode_ids)}"
            )
        ids = [validation.string("each of episode_ids", episode_id) for episode_id in episode_ids]
        reason = validation.non_empty_string("reason", reason)
        return sum([dropped or 0 for dropped in await self._of_each("reject", ids, reason)])

    async def abort_open_episodes(self) -> int:
        """End what crashed actors left unfinished, and return how much it was; see EpisodeReplayBuffer.

        Only open episodes whose writer has been silent for the lease end as ABORTED, and only groups that no live
        writer holds are given up: one that is open, in a process that is alive, and has begun an episode of the group.
        Waits while a shard is lost, and right after a restart of the coordinator, until it knows who holds what.

        Returns:
            The number of episodes that were open, and of groups that were given up.

        Raises:
            ArgumentError: The shards have column buffers.
            ClosedError: The fleet was closed.
        """
        self._require_episodes("abort_open_episodes")
        return int(await self._shards.transport.coordinator("abort_open_episodes"))

    async def ack(self, version: int) -> None:
        """Acknowledge all that was delivered before the learner had that policy version.

        See EpisodeReplayBuffer.ack. A shard that is lost when this is called delivers again what it has delivered.
        """
        self._require_episodes("ack")
        policy_version = self._draws.policy_version
        shards = self._shards.members.shards
        kept = [dict([queue.kept(shard) for queue in self._queues]) for shard in shards]
        calls = [
            self._shards.ask_or_none(shard, "ack", version, policy_version, of_shard)
            for shard, of_shard in zip(shards, kept, strict=True)
        ]
        await asyncio.gather(*calls)

    async def get_drops(self) -> dict[str, dict[str, int]]:
        """Return the number of episodes dropped before training, of all shards: reason -> agent_id -> episodes."""
        self._require_episodes("get_drops")
        drops: dict[str, dict[str, int]] = {}
        for of_shard in await self._of_each("apply", _drops):
            for reason, by_agent in (of_shard or {}).items():
                own = drops.setdefault(reason, {})
                for agent, episodes in by_agent.items():
                    own[agent] = own.get(agent, 0) + episodes
        return drops

    async def get_training_bias(self) -> bias.TrainingBias:
        """Return statistics of all ended episodes, and of those that learners trained on; see EpisodeReplayBuffer."""
        self._require_episodes("get_training_bias")
        sums = [bias.Tally(), bias.Tally()]
        for of_shard in filter(None, await self._of_each("apply", _sums)):
            for total, tally in zip(sums, of_shard, strict=True):
                for field in dataclasses.fields(total):
                    setattr(total, field.name, getattr(total, field.name) + getattr(tally, field.name))
        return bias.TrainingBias(produced=sums[0].totals(), trained=sums[1].totals())

    async def read(self, keys: Any) -> packing.TokenBatch[arrays.Array]:
        """Return the sequences of tokens with those keys [B]; see TokenReplayBuffer.read.

        Raises:
            UnknownKeyError: No sequence with one of the keys is stored.
            ShardLostError: A shard with one of them is lost.
        """
        keys = self._keys("read", keys)
        places = shares.by_shard(keys)
        calls = [
            self._shards.ask(shard, "read", keys[here] // shares.MOST_SHARDS, keys[here])
            for shard, here in places.items()
        ]
        batches = await asyncio.gather(*calls)
        for batch, here in zip(batches, places.values(), strict=True):
            batch.keys = keys[here]
        order = np.argsort(np.concatenate(list(places.values())), kind="stable")
        return shares.joined_tokens(batches, order, self._description.padding)

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

    def _keys(self, call: str, keys: Any) -> arrays.Ints:
        if self._description.writer != "tokens_writer":
            raise errors.ArgumentError(f"{call} needs buffers of tokens, got {self._description.kind}")
        checked = validation.integers("keys", keys)
        if not len(checked):
            raise errors.ArgumentError("keys must have at least 1 key, got 0")
        return checked

    def _require_episodes(self, call: str) -> None:
        if self._description.has_columns:
            raise errors.ArgumentError(f"{call} needs buffers of episodes or tokens, got {self._description.kind}")


def _described(unit: deliveries.Unit, shard: int) -> deliveries.Unit:
    """Return a unit with keys of the fleet, and nothing that is read-only or shared."""
    return [
        FleetEpisodeFacts(
            **{
                field.name: getattr(episode, field.name)
                for field in dataclasses.fields(episode)
                if field.name != "first_key"
            },
            first_key=episode.first_key * shares.MOST_SHARDS + shard,
        )
        if isinstance(episode, token_store.EpisodeFacts)
        else copies.copied(episode)
        for episode in unit
    ]


def _drops(buffer: Any) -> dict[str, dict[str, int]]:
    drops: dict[str, dict[str, int]] = buffer.get_drops()
    return drops


def _sums(buffer: Any) -> tuple[bias.Tally, bias.Tally]:
    sums: bias.Sums = buffer._store.sums.with_stored(buffer._store)
    return sums.produced, sums.trained
