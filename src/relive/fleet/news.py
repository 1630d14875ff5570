"""News: what wakes those who wait for something to happen in the shards."""

import asyncio
import contextlib
import os

_GAP = 0.02
"""Seconds between two pieces of news, at least: what is told in between comes as one."""
_PATIENCE = 1.0
"""Seconds after which one who waits looks anyway: what was told may have been lost with its client."""


class News:
    """Counts what is new.

    Attributes:
        count: A different number after each piece of news; begins anywhere, so that a new process has news for all.
    """

    def __init__(self) -> None:
        self.count = int.from_bytes(os.urandom(6))
        self._changed = asyncio.Event()
        self._last = 0.0
        self._ringing: asyncio.TimerHandle | None = None

    def tell(self) -> None:
        """Wake those who wait, at once or after the gap."""
        if self._ringing is None:
            loop = asyncio.get_running_loop()
            self._ringing = loop.call_at(max(loop.time(), self._last + _GAP), self._ring)

    def _ring(self) -> None:
        self._last, self._ringing = asyncio.get_running_loop().time(), None
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int) -> int:
        """Return `count` once it is not the one that was seen, and after a second in any case."""
        if self.count == seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._changed.wait()
        return self.count
