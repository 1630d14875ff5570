"""News: wakes those who wait for something to happen in the shards; and the clock by which all wait."""

import asyncio
import contextlib
import os

from relive.fleet import timing


def now() -> float:
    """Return the time of the event loop."""
    return asyncio.get_running_loop().time()


class News:
    """Counts what is new; from any number, so that all is new after a restart."""

    def __init__(self) -> None:
        self.count, self._changed = int.from_bytes(os.urandom(6)), asyncio.Event()
        self._next: asyncio.TimerHandle | None = None
        self._last = 0.0

    def tell(self) -> None:
        """Wake those who wait, at once or after the gap."""
        if self._next is None:
            self._next = asyncio.get_running_loop().call_at(max(now(), self._last + timing.PAUSE), self._wake)

    def _wake(self) -> None:
        self._next, self._last = None, now()
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int) -> int:
        """Return `count` once it is not the one that was seen, and after a second in any case."""
        if self.count == seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timing.PATIENCE):
                    await self._changed.wait()
        return self.count
