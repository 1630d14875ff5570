"""Writer: the base class of writers of a fleet."""

from typing import Self

from relive import errors
from relive.common import duplicates
from relive.fleet import outbox as outbox_lib


class Writer(duplicates.NeverCopied):
    """Base class of writers, with an outbox.

    Its attributes count steps: `stored`, acknowledged by a shard; `refused`, refused by its buffer; `lost`, in flight
    to a shard that never came back.
    """

    _INSTEAD = "take another one of the fleet where it is needed"

    def __init__(self, outbox: outbox_lib.Outbox) -> None:
        self._outbox = outbox
        self._is_closed = False

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
        """Flush, and release the lease: open episodes end as if the writer had died."""
        if not self._is_closed:
            self._is_closed = True
            self._end()
            await self._outbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _room(self) -> None:
        if self._is_closed:
            raise errors.ClosedError("writer is closed: take a new one from the fleet's writer()")
        await self._outbox.room()

    def _seal(self) -> None:
        """Send the collected steps."""

    def _end(self) -> None:
        """End all open episodes."""
