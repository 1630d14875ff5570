"""Tickets: the rights of one client to start episodes in a fleet with an admission."""

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import os
import types
from typing import Any, Self
import weakref

from relive import errors
from relive.agents import admission as admission_lib
from relive.common import duplicates
from relive.common import validation
from relive.fleet import chunks
from relive.fleet import membership


class FleetTicket(duplicates.NeverCopied):
    """The right to start episodes in a fleet; returned by `ShardedReplay.admit`, and used like a Ticket.

    Args:
        count: Number of episodes.
        released: Called when unused episodes are given back.
    """

    _INSTEAD = "admit again where it is needed"

    def __init__(self, count: int, released: Callable[["FleetTicket"], None]) -> None:
        self.name = os.urandom(16)
        self.count = count
        """Number of episodes that it admits, used ones included."""
        self.num_running = 0
        """Number of episodes that were started with it and have not been sent."""
        self._used = 0
        self._released = released

    @property
    def left(self) -> int:
        """Number of episodes that the ticket still admits."""
        return self.count - self._used

    def use(self) -> chunks.Use:
        """Record that an episode starts, and return which one of the ticket's it is."""
        if not self.left:
            raise errors.ArgumentError("ticket must admit another episode, got one that is used up: admit again")
        self._used += 1
        return self.name, self._used

    def release(self) -> None:
        """Give back what is left of the ticket, if anything."""
        if self.left:
            self.count = self._used
            self._released(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.release()


@contextlib.contextmanager
def running(ticket: FleetTicket | None) -> Iterator[None]:
    """Return a context manager in which an episode of a ticket runs, if there is a ticket."""
    if ticket is not None:
        ticket.num_running += 1
    try:
        yield
    finally:
        if ticket is not None:
            ticket.num_running -= 1


class Tickets:
    """The tickets of one client, which are renewed while they can be used.

    Args:
        shards: Reaches the coordinator.
    """

    def __init__(self, shards: membership.Membership) -> None:
        self._shards, self._rule = shards, shards.settings.admission
        self._tickets: weakref.WeakSet[FleetTicket] = weakref.WeakSet()
        self._renewal: asyncio.Task[Any] | None = None

    async def admit(self, count: int) -> FleetTicket:
        """Return a ticket for that many episodes; a cancelled call takes none."""
        desk = admission_lib.Desk(self._rule, lambda: None, lambda: None)
        ticket = FleetTicket(desk.checked_count(count), self._released)
        if self._rule is None:
            return ticket
        try:
            while not await self._shards.transport.coordinator("admission", "admit", ticket.name, ticket.count):
                pass
        except BaseException:
            ticket.release()
            raise
        self._tickets.add(ticket)
        if self._renewal is None or self._renewal.done():
            self._renewal = self._shards.run(self._renewing())
        return ticket

    def use(self, ticket: FleetTicket | None, call: str) -> chunks.Use | None:
        """Record that an episode starts with a ticket, and return which one of the ticket's it is.

        Raises:
            ArgumentTypeError: It is not a ticket.
            ArgumentError: There is no ticket, but an admission; or it is used up.
        """
        if ticket is None:
            if self._rule is not None:
                raise errors.ArgumentError(f"{call} needs a ticket with {self._rule!r}: await replay.admit() first")
            return None
        validation.require_instance("ticket", ticket, FleetTicket)
        return ticket.use()

    def _released(self, ticket: FleetTicket) -> None:
        # Without an event loop, the ticket is no longer renewed and expires.
        if self._rule is not None and asyncio._get_running_loop() is not None:
            self._shards.run(self._shards.transport.coordinator("admission", "release", ticket.name, ticket.count))

    async def _renewing(self) -> None:
        """Renew the tickets, while there are any that can be used, or whose episodes run."""
        while counts := {each.name: each.count for each in self._tickets if each.left or each.num_running}:
            await self._shards.transport.coordinator("admission", "renew", counts)
            await asyncio.sleep(self._shards.settings.lease / 4)
