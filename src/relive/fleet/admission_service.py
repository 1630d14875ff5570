"""AdmissionService: an admission for a whole fleet.

    actors    admit(ticket, count), renew, release    ──►  AdmissionService  ──►  Admission
    shards    who waits, runs, was delivered          ──►

    delivered at the learner's version + waiting + running + tickets  <=  (max_lag + 1) * episodes_per_version

This is the rule of an Admission, counted anew at each version, as after a restart of a buffer. It is decided from what
all shards say, so it waits while one of them is lost. A ticket counts until its episodes have reached their shards, or
until its client has not renewed it for some time. An episode that failed while its ticket was open is one that has not
reached a shard.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
import dataclasses

from relive.agents import admission as admission_lib
from relive.fleet import deliveries

_PATIENCE = 1.0
"""Seconds to wait for a ticket in one call, at most."""
_PAUSE = 0.05
"""Seconds between two looks at the shards."""


@dataclasses.dataclass(slots=True)
class _Ticket:
    """A ticket: how many episodes it admits, which have reached a shard, which of these failed, and when it expires."""

    count: int
    expires: float
    used: set[int] = dataclasses.field(default_factory=set)
    returned: set[int] = dataclasses.field(default_factory=set)

    @property
    def left(self) -> int:
        """Number of episodes that it admits and that have not reached a shard."""
        return max(self.count - len(self.used - self.returned), 0)


class AdmissionService:
    """Decides when the actors of a fleet may start episodes.

    Args:
        rule: The admission rule.
        lease: Seconds after which a silent actor counts as gone; its tickets count three times as long, since
            episodes may be under way to a lost shard.
        look: Returns what each shard says of its episodes, by number; waits for those that are lost.
    """

    def __init__(
        self,
        rule: admission_lib.Admission,
        lease: float,
        look: Callable[[], Awaitable[Mapping[int, deliveries.Places]]],
    ) -> None:
        self._rule, self._lease, self._look = rule, lease, look
        self._tickets: dict[bytes, _Ticket] = {}
        self._version: int | None = None
        self._delivered: dict[int, dict[int, int]] = {}
        self._turn = asyncio.Lock()
        self._begins = 0.0

    def restarted(self) -> None:
        """Wait until clients had time to renew the tickets that an earlier process gave them."""
        self._begins = _now() + self._lease / 2

    async def admit(self, name: bytes, count: int) -> bool:
        """Wait until that many episodes may start, and return True; return False to make the caller ask again."""
        try:
            async with asyncio.timeout(_PATIENCE), self._turn:
                while name not in self._tickets:  # Otherwise it was admitted or released before.
                    if await self._may_admit(count) and name not in self._tickets:
                        await self.renew({name: count})
                    else:
                        await asyncio.sleep(_PAUSE)
                return True
        except TimeoutError:
            return False

    async def renew(self, counts: Mapping[bytes, int]) -> None:
        """Keep tickets, given how many episodes each admits, used ones included; after a restart, learn of them."""
        for name, count in counts.items():
            ticket = self._tickets.setdefault(name, _Ticket(count, 0.0))
            ticket.count, ticket.expires = count, _now() + 3 * self._lease

    async def release(self, name: bytes, count: int) -> None:
        """Record that a ticket admits only that many episodes, used ones included; also one that still waits."""
        await self.renew({name: count})

    async def _may_admit(self, count: int) -> bool:
        places = await self._look()
        versions = [each.policy_version for each in places.values()]
        version = max([each for each in versions if each is not None], default=None)
        if version != self._version:
            self._version = version
            self._delivered.clear()
        for shard, each in places.items():
            if each.policy_version == version:
                # What earlier processes of the shard have delivered was delivered, too.
                self._delivered.setdefault(shard, {})[each.incarnation] = each.delivered
            for name in each.used.keys() | each.returned.keys():
                if name in self._tickets:
                    self._tickets[name].used.update(each.used.get(name, ()))
                    self._tickets[name].returned.update(each.returned.get(name, ()))
        now = _now()
        if now < self._begins:
            return False
        self._tickets = {name: ticket for name, ticket in self._tickets.items() if ticket.expires > now}
        reserved = sum([ticket.left for ticket in self._tickets.values()])
        delivered = sum([sum(of_shard.values()) for of_shard in self._delivered.values()])
        counter = admission_lib.AdmissionCounter(self._rule, _nothing, _nothing)
        counter.begin(0, delivered + sum([each.outstanding for each in places.values()]))
        counter.running = sum([each.running for each in places.values()])
        held = counter.admit(reserved)
        may_admit = counter.can_admit(count)
        held.release()
        return may_admit


def _nothing() -> None:
    pass


def _now() -> float:
    return asyncio.get_running_loop().time()
