"""Holds: the groups of episodes that one writer has begun, each on the shard that the coordinator chose for it.

A writer says again and again which groups it holds: others can be given up, and keep no shard that is drained.
"""

import asyncio
import contextlib
import os

from relive import errors
from relive.fleet import membership

_MOST_HELD = 1000
"""A writer holds the newest groups that it has begun, at most so many."""


class Holds:
    """The groups of one writer."""

    def __init__(self, shards: membership.Membership, has_groups: bool) -> None:
        self._shards, self._has_groups, self._name = shards, has_groups, os.urandom(16)
        self._held: dict[str, int | None] = {}
        self._holding: asyncio.Task[None] | None = None

    async def place(self, group_id: str | None) -> int | None:
        """Return the shard of a group, which the writer holds from now on; None for any shard."""
        if group_id is None or not self._has_groups:
            return None
        shard = self._held[group_id] = self._held.pop(group_id, None)
        if len(self._held) > _MOST_HELD:
            del self._held[next(iter(self._held))]
        if self._holding is None or self._holding.done():
            self._holding = asyncio.get_running_loop().create_task(self._hold())
        if shard not in self._shards.members.shards:
            shard = int(await self._shards.transport.coordinator("place_group", group_id, self._name))
            if group_id in self._held:
                self._held[group_id] = shard
        return shard

    async def close(self) -> None:
        """Hold no group any more."""
        if self._holding is not None:
            self._holding.cancel()
            with contextlib.suppress(errors.ClosedError):
                await self._shards.transport.coordinator("hold", self._name, {})

    async def _hold(self) -> None:
        while True:
            await asyncio.sleep(self._shards.settings.lease / 4)
            with contextlib.suppress(errors.ClosedError):
                await self._shards.transport.coordinator("hold", self._name, self._held.copy())
