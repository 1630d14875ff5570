"""Coordinator: which shards a fleet has, and what is counted over all of them.

    clients     members, next_writer, place_group    ┐                      ┌  shards: active, draining, gone
                hold, abort_open_episodes            │                      │  groups: which writers hold them
                told, news                           ├──►  Coordinator  ──► ┤  number of the next writer, News
                limiter: insert_turn, sample_turns   │                      │  LimiterService
                admission: admit, renew              │                      └  AdmissionService
    operator    next_shard, add, drain, stats        ┘

    active   ──drain──►   draining   ──its rows have aged out──►   gone
                          written to only for groups that were begun there, and drawn from until the others have stored
                          as many steps as the whole fleet held when the drain began, or for longer if it is needed

The coordinator has no file. A new process learns what is true from the shards, and from writers which groups they hold;
the aging of shards that are being drained begins anew.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
import dataclasses
import functools
import os
import platform
import time
from typing import Any
import zlib

from relive import errors
from relive.fleet import admission_service
from relive.fleet import limiter_service
from relive.fleet import membership
from relive.fleet import news as news_lib
from relive.fleet import replies
from relive.fleet import shares
from relive.fleet import timing
from relive.limits import rate_limiters

_MOST_PLACES = 100_000
"""The shards of so many groups are remembered."""


class Coordinator:
    """The coordinator of a fleet, given the numbers of the shards whose processes there are."""

    def __init__(
        self,
        transport: membership.Transport,
        shards: Iterable[int],
        settings: membership.Settings,
        limiter: rate_limiters.RateLimiter | None,
    ) -> None:
        self._transport, self._found = transport, tuple(shards)
        self._timeout, self._lease, rule = settings.timeout, settings.lease, settings.admission
        self._limiter: limiter_service.LimiterService | None = None
        if limiter is not None:
            self._limiter = limiter_service.LimiterService(limiter, self._lease, self._count)
        self._admission: admission_service.AdmissionService | None = None
        if rule is not None:
            look = functools.partial(self._ask_all, "places")
            self._admission = admission_service.AdmissionService(rule, self._lease, look)
        self._begins = asyncio.Lock()
        self._members: replies.Members | None = None
        self._writers, self._last_shard = 0, -1
        self._left: dict[int, int] = {}
        self._places: dict[str, int] | None = None
        # By the name of each writer, until when it holds its groups, and these with their shards.
        self._holds: dict[bytes, tuple[float, dict[str, int | None]]] = {}
        self._holds_are_known = 0.0
        self._news, self._queues = news_lib.News(), dict[int, int]()
        self._tasks: dict[object, asyncio.Task[Any]] = {}

    async def ping(self) -> str:
        """Return "pong", once the shards are known."""
        await self.members()
        return "pong"

    async def members(self) -> replies.Members:
        """Return which shards there are."""
        async with self._begins:
            if self._members is None:
                self._members = await self._begin()
                self._change()
                if self._members.draining:
                    self._run("drain", self._age())
            return self._members

    async def next_writer(self) -> int:
        """Return the number of the next writer."""
        await self.members()
        self._writers += 1
        return self._writers - 1

    async def told(self, queues: Mapping[int, int]) -> None:
        """Wake those who wait for the queues of these shards, given the numbers that are new; see Progress."""
        if queues.items() - self._queues.items():
            self._queues |= queues
            self._wake()

    async def news(self, seen: int) -> int:
        """Wait until anything has happened in a queue since `seen` was returned, or for a second."""
        return await self._news.wait(seen)

    async def place_group(self, group_id: str, writer: bytes | None = None) -> int:
        """Return the shard of all episodes of a group, which that writer holds from now on; see `hold`.

        It follows from the id and the active shards. A change of those moves no group that was begun or is held.
        """
        if writer is not None:
            _, held = self._holds.get(writer, (0.0, {}))
            self._holds[writer] = news_lib.now() + self._lease, {**held, group_id: held.get(group_id)}
        if self._places is None:
            begun = await self._ask_all("groups")
            known = {group: shard for group, shard in self._held().items() if shard is not None}
            self._places = {group: shard for shard, groups in begun.items() for group in groups} | known
        members = await self.members()
        shard = self._places.get(group_id, -1)
        if shard not in members.shards:
            place = zlib.crc32(group_id.encode("utf-8", "surrogatepass"))  # Any string is a name.
            shard = self._places[group_id] = members.active[place % len(members.active)]
            if len(self._places) > _MOST_PLACES:
                del self._places[next(iter(self._places))]
        if writer is not None:
            self._holds.setdefault(writer, (news_lib.now() + self._lease, {}))[1][group_id] = shard
        return shard

    async def hold(self, writer: bytes, groups: Mapping[str, int | None]) -> None:
        """Record that a writer holds those groups, given their shards where known, and no others, for a lease."""
        _, known = self._holds.get(writer, (0.0, {}))
        held = {group: known.get(group) if shard is None else shard for group, shard in groups.items()}
        self._holds[writer] = news_lib.now() + self._lease, held
        if self._places is not None:
            self._places |= {group: shard for group, shard in groups.items() if shard is not None}

    def _held(self) -> dict[str, int | None]:
        """Return the shards of the groups that live writers hold."""
        self._holds = {writer: hold for writer, hold in self._holds.items() if hold[0] > news_lib.now()}
        return {group: shard for _, groups in self._holds.values() for group, shard in groups.items()}

    async def abort_open_episodes(self) -> int:
        """End the open episodes whose lease is over, give up the groups that no live writer holds, and count both."""
        members = await self.members()
        await asyncio.sleep(max(self._holds_are_known - news_lib.now(), 0.0))
        count = 0
        for shard in members.shards:
            gathering = await self._ask(shard, "groups")  # Before the holders: they hold a group before they write it.
            held = self._held()
            count += await self._ask(shard, "abandon", [each for each in gathering or () if each not in held]) or 0
        self._wake()
        return count

    async def limiter(self, method: str, *arguments: Any) -> Any:
        """Call a method of the fleet's LimiterService."""
        return await getattr(self._limiter, method)(*arguments)

    async def admission(self, method: str, *arguments: Any) -> Any:
        """Call a method of the fleet's AdmissionService."""
        await self.members()
        return await getattr(self._admission, method)(*arguments)

    async def next_shard(self) -> int:
        """Return a number for a new shard, which no other has had; raise ArgumentError if none is left."""
        members = await self.members()
        number = max(self._last_shard, *members.active, *members.draining, *members.gone) + 1
        if number >= shares.MOST_SHARDS:
            raise errors.ArgumentError(
                f"add_shard must find a number below {shares.MOST_SHARDS}, counting all shards that the fleet ever had"
            )
        self._last_shard = number
        return number

    async def add(self, shard: int) -> replies.Members:
        """Record that a shard is there, and can be written to."""
        members = await self.members()
        if shard in members.active:
            return members
        return self._change(active=tuple(sorted([*members.active, shard])))

    async def drain(self, shard: int) -> replies.Members:
        """Begin to drain a shard; raise ArgumentError if it is not one of the active ones, or the last of them."""
        members = await self.members()
        if shard in members.draining:
            return members
        if shard not in members.active:
            raise errors.ArgumentError(f"shard must be one of the active ones, {list(members.active)}, got {shard!r}")
        if len(members.active) == 1:
            raise errors.ArgumentError(f"drain needs another active shard, for the writers of shard {shard}: add one")
        self._run("drain", self._age())
        active = tuple([other for other in members.active if other != shard])
        return self._change(active=active, draining=(*members.draining, shard))

    async def stats(self) -> replies.CoordinatorStats:
        """Return statistics of the coordinator."""
        members = await self.members()
        inserted, sampled = (None, None) if self._limiter is None else await self._limiter.counts()
        return replies.CoordinatorStats(
            host=platform.node(),
            pid=os.getpid(),
            members=members,
            writers=self._writers,
            left={shard: self._left.get(shard) for shard in members.draining},
            inserted=inserted,
            sampled=sampled,
        )

    # Internal.

    async def _begin(self) -> replies.Members:
        """Learn from the shards which of them there are, and which are being drained."""
        found: dict[int, replies.ShardStats] = {}
        while not found:
            found, gone = await self._stats(self._found)
            if len(gone) == len(self._found):
                raise errors.ClosedError("the fleet was closed: start a new one")
        self._writers = sum([stats.writers for stats in found.values()])
        known = [stats.members for stats in found.values() if stats.members is not None]
        if not known:  # The version is larger than that of a list that died with all processes that knew it.
            return replies.Members(version=int(time.time()), active=self._found)
        self._holds_are_known = news_lib.now() + self._lease / 2
        if self._admission is not None:
            self._admission.begins = self._holds_are_known
        return max(known, key=lambda members: members.version)

    async def _count(self) -> tuple[int, int, int]:
        """Return how many steps were ever stored and drawn, and how many transitions there are."""
        there = (await self._ask_all("stats")).values()
        inserted, sampled = sum([each.inserted for each in there]), sum([each.sampled for each in there])
        return inserted, sampled, sum([each.size for each in there])

    def _wake(self) -> None:
        """Wake those who wait for the queues."""
        self._news.tell()
        if self._admission is not None:
            self._admission.news.tell()

    def _change(self, **changes: Any) -> replies.Members:
        """Change the list of shards, and tell it to every shard, from which clients learn that there is a new one."""
        assert self._members is not None
        if changes:
            self._members = dataclasses.replace(self._members, version=self._members.version + 1, **changes)
        for shard in self._members.shards:
            self._run(shard, self._ask(shard, "report", None, self._members))
        return self._members

    async def _age(self) -> None:
        """Close each shard that is being drained, once its rows have aged out and it is not needed."""
        inserted: dict[int, int] = {}
        while (members := await self.members()).draining:
            found, gone = await self._stats(members.shards)
            rows = sum([stats.rows for stats in found.values()])
            stored = {shard: max(now.inserted - inserted.get(shard, now.inserted), 0) for shard, now in found.items()}
            inserted |= {shard: stats.inserted for shard, stats in found.items()}
            for shard in members.draining:
                is_new = shard not in self._left or stored.get(shard)  # What has just come must age, too.
                self._left[shard] = rows if is_new else self._left[shard] - sum(stored.values())
                if shard in gone or (shard in found and self._left[shard] <= 0):
                    await self._close(shard)
            await asyncio.sleep(timing.PAUSE_OF_DRAINING)

    async def _close(self, shard: int) -> None:
        """Close a shard for good, unless it is still needed."""
        held = [group for group, place in self._held().items() if place == shard]
        if news_lib.now() < self._holds_are_known:
            held += await self._ask(shard, "groups") or ()
        if await self._ask(shard, "retire", held) is not False:
            members = await self.members()
            draining = tuple([other for other in members.draining if other != shard])
            self._change(draining=draining, gone=(*members.gone, shard))
            del self._left[shard]
            self._transport.end(shard)

    async def _stats(self, shards: Iterable[int]) -> tuple[dict[int, replies.ShardStats], list[int]]:
        """Return statistics of the shards that respond in time, and the numbers of those that are gone for good."""
        tasks = {shard: asyncio.create_task(self._ask(shard, "stats")) for shard in shards}
        await asyncio.wait(tasks.values(), timeout=self._timeout)
        done = {shard: task.result() for shard, task in tasks.items() if task.done()}
        for task in tasks.values():
            task.cancel()
        gone = [shard for shard, stats in done.items() if stats is None]
        return {shard: stats for shard, stats in done.items() if stats is not None}, gone

    async def _ask_all(self, method: str, *arguments: Any) -> dict[int, Any]:
        """Return what a method of each shard returns, but for those that are gone; see `_ask`."""
        shards = (await self.members()).shards
        found = await asyncio.gather(*[self._ask(shard, method, *arguments) for shard in shards])
        return {shard: reply for shard, reply in zip(shards, found, strict=True) if reply is not None}

    async def _ask(self, shard: int, method: str, *arguments: Any) -> Any:
        """Call a method of a shard; wait for one that is being restarted; return None for one that is gone."""
        while True:
            try:
                return await self._transport.call(shard, method, *arguments, seconds=self._timeout)
            except errors.ShardLostError:
                await asyncio.sleep(timing.RETRY)
            except errors.ClosedError:
                return None

    def _run(self, key: object, work: Coroutine[Any, Any, Any]) -> None:
        """Do something in the background, instead of what was being done under that key."""
        if key in self._tasks:
            self._tasks[key].cancel()
        self._tasks[key] = asyncio.get_running_loop().create_task(work)
