"""Writer: the base class of writers of a fleet; StreamWriter: that of writers of steps."""

import abc
import asyncio
from typing import Any, Self

from relive import errors
from relive.common import duplicates
from relive.common import validation
from relive.fleet import chunks
from relive.fleet import outbox as outbox_lib


class Writer(duplicates.NeverCopied):
    """Base class of writers, with an outbox.

    Its attributes count steps: `stored`, acknowledged by a shard; `refused`, refused by its buffer; `lost`, in flight
    to a shard that never came back.
    """

    _INSTEAD = "take another one of the fleet where it is needed"

    def __init__(self, outbox: Any) -> None:
        self._outbox: Any = outbox
        self._closing: asyncio.Task[None] | None = None

    @property
    def stored(self) -> int:
        """Number of steps acknowledged by a shard."""
        return int(self._outbox.stored)

    @property
    def refused(self) -> int:
        """Number of steps that a shard's buffer refused; the first error is raised by the next call."""
        return int(self._outbox.refused)

    @property
    def lost(self) -> int:
        """Number of steps in flight to a shard that never came back."""
        return int(self._outbox.lost)

    async def flush(self) -> None:
        """Wait until every step added so far is stored, or counted in `refused` or `lost`.

        Raises:
            ReplayError: A buffer has refused steps; raised once.
        """
        self._seal()
        await self._outbox.flush()

    async def close(self) -> None:
        """Flush, and release the lease: open episodes end as if the writer had died.

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
        self._closing = asyncio.get_running_loop().create_task(self._outbox.close())
        self._closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._closing

    async def _room(self, *shard: int | None) -> None:
        if self._closing is not None:
            raise errors.ClosedError("writer is closed: take a new one from the fleet's writer()")
        await self._outbox.room(*shard)

    def _seal(self) -> None:
        """Send the collected steps."""

    def _end(self) -> None:
        """End all open episodes."""


class StreamWriter(Writer):
    """Base class of writers of steps, which belong to streams.

    Args:
        outbox: Sends the chunks.
        chunk_steps: Maximum number of steps in a chunk.
    """

    def __init__(self, outbox: outbox_lib.Outbox, chunk_steps: int) -> None:
        super().__init__(outbox)
        self._chunk_steps = chunk_steps
        # The unsent steps of the open episode of each stream.
        self._runs: dict[int, Any] = {}

    async def end_episode(self, stream: int = 0) -> bool:
        """End the open episode of a stream as truncated, and return whether there was one."""
        stream = validation.non_negative_int("stream", stream)
        await self._room()
        is_open = stream in self._runs
        if is_open:
            self._send(stream, "TRUNCATED")
        return is_open

    def _seal(self) -> None:
        for stream, run in list(self._runs.items()):
            if len(run):
                self._send(stream, "OPEN")

    def _end(self) -> None:
        for stream in list(self._runs):
            self._send(stream, "TRUNCATED")

    @abc.abstractmethod
    def _send(self, stream: int, end: chunks.End) -> None:
        """Send the steps of a stream."""
