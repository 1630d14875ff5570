"""What every writer of a fleet has: an outbox, and counts of what has become of its steps."""

from typing import Self

from relive import errors
from relive.common import duplicates
from relive.fleet import outbox as outbox_lib


class Writer(duplicates.NeverCopied):
    """What every writer has: an outbox.

    Attributes are counts of steps: `stored`, those that a shard has said it has; `refused`, those that its buffer did
    not take; `lost`, those that were under way to a shard that never came back.
    """

    _INSTEAD = "take another one of the fleet where it is needed"

    def __init__(self, outbox: outbox_lib.Outbox) -> None:
        self._outbox = outbox
        self._is_closed = False

    @property
    def stored(self) -> int:
        """Steps that a shard has said are stored."""
        return self._outbox.stored

    @property
    def refused(self) -> int:
        """Steps that the buffer of a shard refused; the first error is raised by the next call."""
        return self._outbox.refused

    @property
    def lost(self) -> int:
        """Steps that were under way to a shard that did not come back."""
        return self._outbox.lost

    async def flush(self) -> None:
        """Return when every step given so far is stored, or counted in `refused` or `lost`.

        Raises:
            ReplayError: A buffer has refused steps; it is raised once.
        """
        self._seal()
        await self._outbox.flush()

    async def close(self) -> None:
        """Flush, and give the lease back: episodes that are open end, as if the writer had died."""
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
            raise errors.ClosedError("writer is closed: the fleet's writer() answers a new one")
        await self._outbox.room()

    def _seal(self) -> None:
        """Let go of the steps that were waiting for more."""

    def _end(self) -> None:
        """End the episodes that are open."""
