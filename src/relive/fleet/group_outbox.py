"""Outboxes: those of one writer of episodes, since all episodes of a group go to one shard.

    take(chunk)           ──►  Outbox        any shard; if it is lost, another one
    take(chunk, shard)    ──►  GroupOutbox   that shard; if it is lost, the chunk waits for it to come back

The coordinator places groups. Their episodes are sent as a whole, so that each is stored once or not at all. The writer
holds the groups that it has begun, which it says again and again: those that no live writer holds can be given up.
"""

import asyncio
from collections.abc import Callable

from relive import errors
from relive.fleet import chunks
from relive.fleet import holds
from relive.fleet import membership
from relive.fleet import outbox as outbox_lib
from relive.fleet import tickets as tickets_lib


class GroupOutbox(outbox_lib.Outbox):
    """Sends whole episodes to one shard. It needs no lease, since no episode is open there."""

    def use(self, shard: int) -> None:
        """Set the shard."""
        self._shard = shard

    async def _find(self) -> int | None:
        assert self._shard is not None
        try:
            self._shards.live()
        except errors.ClosedError as error:
            self._refusal = self._refusal or error
            return None
        return self._shard if await self._shards.is_back(self._shard, self._settings.recovery) else None

    def _keep_lease(self) -> None:
        pass


class Outboxes:
    """The outboxes of one writer, with the methods of one; see Outbox.

    Args:
        outbox: The one for all but groups.
        make: Returns one for groups.
        shards: Reaches the coordinator.
        has_groups: Whether groups have an effect.
        tickets: The tickets of the client.
    """

    def __init__(
        self,
        outbox: outbox_lib.Outbox,
        make: Callable[[], GroupOutbox],
        shards: membership.Membership,
        has_groups: bool,
        tickets: tickets_lib.Tickets,
    ) -> None:
        self._make, self.tickets = make, tickets
        self.holds = holds.Holds(shards, has_groups)
        self.place = self.holds.place
        self._outboxes: dict[int | None, outbox_lib.Outbox] = {None: outbox}

    async def room(self, shard: int | None = None) -> None:
        """Wait until `take` may be called for that shard; raises what any of them has been refused."""
        if shard not in self._outboxes:
            assert shard is not None
            outbox = self._outboxes[shard] = self._make()
            outbox.use(shard)
        for each in self._outboxes.values():
            each._raise_refusal()
        await self._outboxes[shard].room()

    def take(self, chunk: chunks.Chunk, shard: int | None = None) -> None:
        """Take a chunk for that shard, right after awaiting `room`."""
        self._outboxes[shard].take(chunk)

    def seal(self) -> None:
        """Send what was taken for any shard."""
        self._outboxes[None]._seal()

    async def flush(self) -> None:
        """Flush all of them."""
        await self._all("flush")

    async def close(self) -> None:
        """Close all of them."""
        try:
            await self._all("close")
        finally:
            await self.holds.close()

    async def _all(self, method: str) -> None:
        calls = [getattr(each, method)() for each in self._outboxes.values()]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if error is not None:
                raise error

    @property
    def stored(self) -> int:
        """Steps that a shard has said are stored."""
        return sum([each.stored for each in self._outboxes.values()])

    @property
    def refused(self) -> int:
        """Steps that the buffer of a shard refused."""
        return sum([each.refused for each in self._outboxes.values()])

    @property
    def lost(self) -> int:
        """Steps that were on their way to a shard that did not come back in time."""
        return sum([each.lost for each in self._outboxes.values()])
