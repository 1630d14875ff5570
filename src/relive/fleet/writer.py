"""Writer: the base class of writers of a fleet; StreamWriter: that of writers of steps.

Invariant: an awaited call copies its step, waits for room, then takes it without awaiting in between. So a cancelled
call has either happened completely or not at all.
"""

import abc
import asyncio
import dataclasses
import itertools
from typing import Any, Self

from relive import errors
from relive.common import duplicates
from relive.common import validation
from relive.fleet import chunks
from relive.fleet import holds as holds_lib
from relive.fleet import outbox as outbox_lib
from relive.fleet import tickets as tickets_lib


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
        self._closing = asyncio.get_running_loop().create_task(self._close())
        self._closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._closing

    async def _close(self) -> None:
        await self._outbox.close()

    async def _room(self, shard: int | None = None) -> None:
        if self._closing is not None:
            raise errors.ClosedError("writer is closed: take a new one from the fleet's writer()")
        await self._outbox.room(shard)

    def _seal(self) -> None:
        """Send the collected steps."""

    def _end(self) -> None:
        """End all open episodes."""


class GroupWriter(Writer):
    """Base class of writers of episodes, which may be of groups, and need tickets with an admission."""

    def __init__(self, outbox: outbox_lib.Outbox, holds: holds_lib.Holds, tickets: tickets_lib.Tickets) -> None:
        super().__init__(outbox)
        self._holds, self._tickets = holds, tickets

    async def _close(self) -> None:
        try:
            await super()._close()
        finally:
            await self._holds.close()


@dataclasses.dataclass(slots=True)
class Run:
    """The open episode of a stream, and its unsent steps, of which `first` is the index of the first.

    Columns also have the layout of those, and the observation after the newest.
    """

    episode: int
    first: int = 0
    steps: list[Any] = dataclasses.field(default_factory=list)
    after: Any = None
    layout: Any = None


class StreamWriter(Writer):
    """Base class of writers of steps, which belong to streams.

    Args:
        outbox: Sends the chunks.
        chunk_steps: Maximum number of steps in a chunk.
    """

    def __init__(self, outbox: outbox_lib.Outbox, chunk_steps: int) -> None:
        super().__init__(outbox)
        self._chunk_steps = chunk_steps
        self._runs: dict[int, Run] = {}

    async def end_episode(self, stream: int = 0) -> bool:
        """End the open episode of a stream as truncated, and return whether there was one."""
        stream = validation.non_negative_int("stream", stream)
        await self._room()
        is_open = stream in self._runs
        if is_open:
            self._send(stream, "TRUNCATED")
        return is_open

    def _run(self, stream: int) -> Run:
        """Return the open episode of a stream, in which one begins if there is none."""
        if stream not in self._runs:
            self._runs[stream] = Run(next(self._numbers))
        return self._runs[stream]

    def _seal(self) -> None:
        for stream, run in list(self._runs.items()):
            if run.steps:
                self._send(stream, "OPEN")

    def _end(self) -> None:
        for stream in list(self._runs):
            self._send(stream, "TRUNCATED")

    def _send(self, stream: int, end: chunks.End) -> None:
        """Send the steps of a stream."""
        run = self._runs[stream]
        self._outbox.take(self._chunk(run, end))
        run.first, run.steps = run.first + len(run.steps), []
        if end != "OPEN":
            del self._runs[stream]

    @abc.abstractmethod
    def _chunk(self, run: Run, end: chunks.End) -> chunks.Chunk:
        """Return the unsent steps of an episode, if any, as a chunk."""
