"""Tickets: the rights of one client to start episodes in a fleet with an admission."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
import contextlib
import os
import weakref

from relive import errors
from relive.agents import admission as admission_lib
from relive.common import validation
from relive.fleet import chunks
from relive.fleet import membership


class Grant:
    """What the coordinator has granted to a ticket, to which episodes refer when the ticket itself may be lost.

    `count` is the number of episodes that it admits, used ones included; only these once the ticket is released or
    lost. `ticket` returns the ticket while it is open.
    """

    def __init__(self, count: int, released: Callable[["Grant"], None]) -> None:
        self.name, self.count, self._released = os.urandom(16), count, released
        self.num_running = self.num_sending = self.num_used = 0
        self.ticket: Callable[[], FleetTicket | None] = lambda: None

    def release_ticket(self, ticket: admission_lib.Ticket, count: int) -> None:
        """Close the ticket; see admission.Counts."""
        self.ticket = lambda: None
        self.count -= count
        if count:
            self._released(self)

    def report_lost(self, count: int) -> None:
        """Record, in any thread, that the ticket was lost; see admission.Counts."""
        self.count -= count

    def sent(self) -> None:
        """Record that an episode is no longer on its way."""
        self.num_sending -= 1

    def take_back(self) -> bool:
        """Record that an episode has failed, and return whether the ticket, if it is open, has its place again."""
        ticket = self.ticket()
        if ticket is not None:
            ticket.take_back()
        return ticket is not None

    @property
    def is_used(self) -> bool:
        """Whether it can still be used, or an episode runs or is on its way to a shard."""
        ticket = self.ticket()
        return self.num_running + self.num_sending > 0 or (ticket is not None and ticket.left > 0)


class FleetTicket(admission_lib.Ticket):
    """The right to start episodes in a fleet; returned by `ShardedReplay.admit`, and used like a Ticket."""

    def __init__(self, grant: Grant) -> None:
        super().__init__(grant, grant.count)
        self.grant, grant.ticket = grant, weakref.ref(self)

    def use(self) -> chunks.Use:
        """Record that an episode starts, and return which one of the ticket's it is."""
        self._require_left()
        self._take()
        self.grant.num_used += 1
        return self.grant.name, self.grant.num_used

    def take_back(self) -> None:
        """Record that an episode has failed: the place is the ticket's again."""
        self._take_back()

    @property
    def waits_for_itself(self) -> bool:
        """Whether the running task would, if it waited for a place; others may use one whose episodes run."""
        return bool(self.left) and (self._has_come_back or not self.grant.num_running) and self._is_held


class Tickets:
    """The tickets of one client, which are renewed while they can be used, or one of their episodes runs."""

    def __init__(self, shards: membership.Membership) -> None:
        self._shards, self._rule = shards, shards.settings.admission
        self._grants: set[Grant] = set()
        self._is_warned = False

    async def admit(self, count: int) -> FleetTicket:
        """Return a ticket for that many episodes; a cancelled call takes none."""
        grant = Grant(admission_lib.checked_count(self._rule, count), self._released)
        ticket = FleetTicket(grant)
        if self._rule is None:
            return ticket
        try:
            while not await self._shards.transport.coordinator("admission", "admit", grant.name, grant.count):
                self._warn_of_self()
        except BaseException:
            ticket.release()
            raise
        self._grants.add(grant)
        self._shards.run_once("tickets", self._renewing)
        return ticket

    def use(self, ticket: FleetTicket | None, call: str) -> chunks.Use | None:
        """Record that an episode starts with a ticket, and return which one of the ticket's it is."""
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
        try:
            yield
        finally:
            grant.num_running -= 1

    def _warn_of_self(self) -> None:
        """Warn once if the running task waits for a ticket while it holds one."""
        found = [grant.ticket() for grant in self._grants]
        if not self._is_warned and any(ticket is not None and ticket.waits_for_itself for ticket in found):
            self._is_warned = True
            admission_lib.warn_of_self()

    def _released(self, grant: Grant) -> None:
        # Without an event loop, the ticket is no longer renewed and expires.
        if self._rule is not None and asyncio._get_running_loop() is not None:
            self._shards.run(self._renew([grant]))

    async def _renewing(self) -> None:
        while grants := {grant for grant in self._grants if grant.is_used}:
            self._grants = grants
            await self._renew(grants)
            await asyncio.sleep(self._shards.settings.lease / 4)

    async def _renew(self, grants: Iterable[Grant]) -> None:
        """Tell the coordinator how many episodes each of them admits, unless the fleet was closed."""
        counts = {grant.name: grant.count for grant in grants}
        with contextlib.suppress(errors.ClosedError):
            await self._shards.transport.coordinator("admission", "renew", counts)
