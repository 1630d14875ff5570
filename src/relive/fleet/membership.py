"""Membership: which shards of a fleet respond, as seen by one client.

    ask(shard, call)  ──►  returns                             it is live
                      ──►  ShardLostError, at once from then   it is lost; it is asked again and again in the background
                                                               until it responds, and is told what was seen of it
                                                               or it is gone for good

A client continues with the live shards; if all are gone, the fleet was closed.
"""

import asyncio
from typing import Any, Protocol

from relive import errors
from relive.fleet import replies


class Transport(Protocol):
    """How a client reaches shards; implement it to use another runtime than Ray."""

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        """Call a method of a shard; return its result or raise its exception.

        Calls to a shard that are made in one process happen one at a time, in that order. A call without a reply may
        have happened, or may still happen, or never.

        Args:
            shard: Its number.
            method: The name of one of Shard's methods.
            arguments: The arguments of the method.
            seconds: How long to wait; None to wait as long as the shard lives.

        Raises:
            ShardLostError: The shard did not respond.
            ClosedError: The shard will never respond again.
        """
        ...

    async def limiter(self, method: str, *arguments: Any) -> Any:
        """Call a method of the fleet's LimiterService; waits for a lost one to come back."""
        ...


class Membership:
    """The shards of a client, live and lost.

    Args:
        transport: Reaches them.
        num_shards: Number of shards.
        timeout: Seconds to wait for a call before the shard counts as lost.
        retry: Seconds between attempts to reach a lost shard.
    """

    def __init__(self, transport: Transport, num_shards: int, *, timeout: float, retry: float = 0.2) -> None:
        self.num_shards = num_shards
        self._transport = transport
        self._timeout, self._retry = timeout, retry
        self._searches: dict[int, asyncio.Task[None]] = {}
        self._lost: set[int] = set()
        self._gone: set[int] = set()
        self._progress: dict[int, replies.Progress] = {}

    def live(self) -> list[int]:
        """Return the numbers of the live shards, and start looking for the others.

        Raises:
            ClosedError: All shards are gone for good.
        """
        if len(self._gone) == self.num_shards:
            raise errors.ClosedError("the fleet was closed: start a new one")
        for shard in self._lost - self._gone:
            self._search(shard)
        return [shard for shard in range(self.num_shards) if shard not in self._lost]

    async def ask(self, shard: int, method: str, *arguments: Any) -> Any:
        """Call a method of a shard, and return its result.

        Raises:
            ShardLostError: The shard is lost.
        """
        if shard in self._gone:
            raise errors.ShardLostError(f"shard {shard} is gone")
        if shard in self._lost:
            self._search(shard)
            raise errors.ShardLostError(f"shard {shard} does not respond: its process is being restarted")
        try:
            return await self._transport.call(shard, method, *arguments, seconds=self._timeout)
        except errors.ShardLostError:
            self._lost.add(shard)
            self._search(shard)
            raise
        except errors.ClosedError as error:
            self._lose_for_good(shard)
            raise errors.ShardLostError(f"shard {shard} is gone: {error}") from error

    async def ask_or_none(self, shard: int, method: str, *arguments: Any) -> Any:
        """Call a method of a shard; return None if the shard is lost."""
        try:
            return await self.ask(shard, method, *arguments)
        except errors.ShardLostError:
            return None

    async def is_back(self, shard: int, seconds: float) -> bool:
        """Wait until a lost shard is back, and return whether it was within that many seconds."""
        if shard in self._lost and shard not in self._gone:
            await asyncio.wait([self._search(shard)], timeout=seconds)
        return shard not in self._lost

    async def note(self, shard: int, progress: replies.Progress | None) -> bool:
        """Remember the newest state of a shard, and tell a new incarnation of it what was seen of the old one.

        Returns whether there was anything to tell. `progress` is None for a lost shard.
        """
        if progress is None:
            return False
        before = self._progress.get(shard)
        if before is None or before.incarnation != progress.incarnation or before.inserted < progress.inserted:
            self._progress[shard] = progress
        if before is None or before.incarnation == progress.incarnation:
            return False
        await self.ask_or_none(shard, "report", before)
        return True

    def close(self) -> None:
        """Stop looking for lost shards."""
        for search in self._searches.values():
            search.cancel()
        self._searches.clear()

    def _search(self, shard: int) -> asyncio.Task[None]:
        """Return the task that looks for a lost shard; each event loop has its own."""
        search = self._searches.get(shard)
        if search is None or search.done() or search.get_loop() is not asyncio.get_running_loop():
            search = self._searches[shard] = asyncio.get_running_loop().create_task(self._find(shard))
        return search

    async def _find(self, shard: int) -> None:
        while True:
            try:
                await self._transport.call(shard, "ping", seconds=self._timeout)
                if shard in self._progress:
                    await self._transport.call(shard, "report", self._progress[shard], seconds=self._timeout)
            except errors.ShardLostError:
                await asyncio.sleep(self._retry)
            except errors.ClosedError:
                self._lose_for_good(shard)
                return
            else:
                self._lost.discard(shard)
                return

    def _lose_for_good(self, shard: int) -> None:
        self._lost.add(shard)
        self._gone.add(shard)
