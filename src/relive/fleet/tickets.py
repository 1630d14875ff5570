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


class Grant:
    """What the coordinator has granted to a ticket, which its episodes refer to when the ticket itself may be lost.

    Args:
        ticket: The ticket.
        count: Number of episodes.

    Attributes:
        name: Its name for the coordinator.
        used: Number of episodes that were started with it, but for those that failed while it was open.
        num_running: Number of those that have not been sent.
    """

    def __init__(self, ticket: "FleetTicket", count: int) -> None:
        self.name, self._count = os.urandom(16), count
        self.used = self.num_running = self._newest = 0
        self._ticket: Callable[[], FleetTicket | None] = weakref.ref(ticket)

    @property
    def count(self) -> int:
        """Number of episodes that it admits, used ones included; only these once the ticket is released or lost."""
        return self.used if self._ticket() is None else self._count

    def use(self) -> chunks.Use:
        """Record that an episode starts, and return which one of the ticket's it is."""
        self.used += 1
        self._newest += 1
        return self.name, self._newest

    def take_back(self) -> bool:
        """Record that an episode has failed, and return whether the ticket, if it is open, has its place again."""
        ticket = self._ticket()
        if ticket is None:
            return False
        self.used -= 1
        ticket._has_come_back = True
        return True

    def close(self) -> bool:
        """Keep only the places that are used, and return whether there were others."""
        had_more = self.count > self.used
        self._ticket = lambda: None
        return had_more


class FleetTicket(duplicates.NeverCopied, admission_lib.Holdable):
    """The right to start episodes in a fleet; returned by `ShardedReplay.admit`, and used like a Ticket.

    Args:
        count: Number of episodes.
        released: Called when unused episodes are given back.
    """

    _INSTEAD = "admit again where it is needed"

    def __init__(self, count: int, released: Callable[[Grant], None]) -> None:
        self.grant = Grant(self, count)
        self._released = released
        self._hold()

    @property
    def left(self) -> int:
        """Number of episodes that the ticket still admits."""
        return self.grant.count - self.grant.used

    def use(self) -> chunks.Use:
        """Record that an episode starts, and return which one of the ticket's it is."""
        if not self.left:
            raise errors.ArgumentError("ticket must admit another episode, got one that is used up: admit again")
        self._use()
        return self.grant.use()

    def release(self) -> None:
        """Give back what is left of the ticket, if anything; it admits no further episode."""
        if self.grant.close():
            self._released(self.grant)

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.release()


class Tickets:
    """The tickets of one client, which are renewed while they can be used.

    Args:
        shards: Reaches the coordinator.
    """

    def __init__(self, shards: membership.Membership) -> None:
        self._shards, self._rule = shards, shards.settings.admission
        self._tickets: weakref.WeakSet[FleetTicket] = weakref.WeakSet()
        self._running: set[Grant] = set()
        self._is_warned = False
        self._renewal: asyncio.Task[Any] | None = None

    async def admit(self, count: int) -> FleetTicket:
        """Return a ticket for that many episodes; a cancelled call takes none."""
        counter = admission_lib.AdmissionCounter(self._rule, lambda: None, lambda: None)
        ticket = FleetTicket(counter.checked_count(count), self._released)
        if self._rule is None:
            return ticket
        grant = ticket.grant
        try:
            while not await self._shards.transport.coordinator("admission", "admit", grant.name, grant.count):
                self._warn_of_self()
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

    @contextlib.contextmanager
    def running(self, grant: Grant | None) -> Iterator[None]:
        """Return a context manager in which an episode runs; its grant, if it has one, is renewed meanwhile."""
        if grant is None:
            yield
            return
        grant.num_running += 1
        self._running.add(grant)
        try:
            yield
        finally:
            grant.num_running -= 1
            if not grant.num_running:
                self._running.discard(grant)

    def _warn_of_self(self) -> None:
        """Warn once if the running task waits for a ticket that it holds; one whose episodes run may be in use."""
        held = [each for each in self._tickets if each.left and each._is_held]
        if not self._is_warned and any(each._has_come_back or not each.grant.num_running for each in held):
            self._is_warned = True
            admission_lib.warn_of_self()

    def _released(self, grant: Grant) -> None:
        # Without an event loop, the ticket is no longer renewed and expires.
        if self._rule is not None and asyncio._get_running_loop() is not None:
            self._shards.run(self._shards.transport.coordinator("admission", "release", grant.name, grant.count))

    async def _renewing(self) -> None:
        """Renew the tickets, while there are any that can be used, or whose episodes run."""
        while grants := self._running.union([each.grant for each in self._tickets if each.left]):
            counts = {grant.name: grant.count for grant in grants}
            await self._shards.transport.coordinator("admission", "renew", counts)
            await asyncio.sleep(self._shards.settings.lease / 4)
