"""Writer: the base class of writers of a fleet.

Invariant: an awaited call copies its step, waits for room, then takes it without awaiting in between. So a cancelled
call has either happened completely or not at all.
"""

import asyncio
import itertools
from typing import Self

from relive.common import duplicates
from relive.fleet import outbox as outbox_lib


class Writer(duplicates.NeverCopied):
    """Base class of writers, with an outbox.

    Calls that add something wait while too many batches are in flight. They raise ReplayError, once, if a buffer has
    refused what was sent earlier, and ClosedError if the writer is closed.
    """

    _INSTEAD = "take another one of the fleet where it is needed"

    def __init__(self, outbox: outbox_lib.Outbox) -> None:
        self._outbox = outbox
        self._closing: asyncio.Task[None] | None = None
        self._numbers = itertools.count()

    @property
    def stored(self) -> int:
        """Number of steps acknowledged by a shard."""
        return self._outbox.stored

    @property
    def refused(self) -> int:
        """Number of steps that a shard's buffer refused; the first error is raised by the next call."""
        return self._outbox.refused

    @property
    def lost(self) -> int:
        """Number of steps in flight to a shard that never came back."""
        return self._outbox.lost

    async def flush(self) -> None:
        """Wait until every step added so far is stored, or counted in `refused` or `lost`.

        Raises:
            ReplayError: A buffer has refused steps; raised once.
        """
        self._seal()
        await self._outbox.flush()

    async def close(self) -> None:
        """Flush, and release the lease: open episodes end as if the writer had died.

        Calls of other tasks that wait to add something raise ClosedError, and have added nothing.
        A call that is cancelled ends at once, and what was added is still sent in the background.
        """
        if self._closing is None:
            await asyncio.shield(self._start_closing())
        else:
            await asyncio.wait([self._closing])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is asyncio.CancelledError and self._closing is None:
            self._start_closing()
        else:
            await self.close()

    def _start_closing(self) -> asyncio.Task[None]:
        self._end()
        self._outbox.let_no_more_in()
        self._closing = asyncio.get_running_loop().create_task(self._close())
        self._closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._closing

    async def _close(self) -> None:
        await self._outbox.close()

    async def _room(self, shard: int | None = None) -> None:
        await self._outbox.room(shard)

    def _seal(self) -> None:
        """Send the collected steps."""

    def _end(self) -> None:
        """End all open episodes."""
