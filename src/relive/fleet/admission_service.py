"""AdmissionService: an admission for a whole fleet.

    actors    admit(ticket, count), renew             ──►  AdmissionService  ──►  Admission
    shards    who waits, runs, was delivered          ──►

    delivered at the learner's version + waiting + running + tickets  <=  (max_lag + 1) * episodes_per_version

This is the rule of an Admission, counted anew at each version, as after a restart of a buffer. It is decided from what
all shards say, so it waits while one of them is lost. They are asked once something new was told, or a second has
passed, and only while an actor waits. A ticket counts until its episodes have reached their shards, or until its client
has not renewed it for some time. An episode that failed while its ticket was open is one that has not reached a shard.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
import dataclasses

from relive.agents import admission as admission_lib
from relive.fleet import deliveries
from relive.fleet import news as news_lib

_PATIENCE = 1.0
"""Seconds to wait for a ticket in one call, at most: the caller may have died."""


@dataclasses.dataclass(slots=True)
class _Ticket:
    """How many episodes a ticket admits, when it expires, which have reached a shard, and whether these failed."""

    count: int
    expires: float = 0.0
    uses: dict[int, bool] = dataclasses.field(default_factory=dict)

    @property
    def left(self) -> int:
        """Number of episodes that it admits and that have not reached a shard."""
        return max(self.count - sum([not has_failed for has_failed in self.uses.values()]), 0)


class AdmissionService:
    """Decides when the actors of a fleet may start episodes, first come, first served.

    Args:
        rule: The admission rule.
        lease: Seconds after which a silent actor counts as gone; its tickets count three times as long, since
            episodes may be under way to a lost shard.
        look: Returns what each shard says of its episodes and of those of some tickets, by number; waits for those that
            are lost.
    """

    def __init__(
        self,
        rule: admission_lib.Admission,
        lease: float,
        look: Callable[[Iterable[bytes]], Awaitable[Mapping[int, deliveries.Places]]],
    ) -> None:
        self._rule, self._lease, self._look = rule, lease, look
        self._tickets: dict[bytes, _Ticket] = {}
        # Those who wait, in order: how many episodes, until when, and what wakes them.
        self._line: dict[bytes, tuple[int, float, asyncio.Future[None]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._version: int | None = None
        # What was delivered at that version, by shard and incarnation. A shard that has not heard of it for a moment may
        # have to take back what it delivered before: its learner puts it back first.
        self._delivered: dict[int, dict[int, int]] = {}
        self._behind: dict[int, float] = {}
        self._num_taken = self._num_outstanding = self._num_running = 0
        self._begins = 0.0
        self.news = news_lib.News()
        """What is worth another look."""

    def restarted(self) -> None:
        """Wait until clients had time to renew the tickets that an earlier process gave them."""
        self._begins = _now() + self._lease / 2

    async def admit(self, name: bytes, count: int) -> bool:
        """Wait until that many episodes may start, and return True; return False to make the caller ask again."""
        if name not in self._tickets:  # Otherwise it was admitted or released before.
            if name not in self._line:
                self.news.tell()
            granted = asyncio.get_running_loop().create_future()
            self._line[name] = count, _now() + 2 * _PATIENCE, granted
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._looks())
            await asyncio.wait([granted], timeout=_PATIENCE)
        return name in self._tickets

    async def renew(self, counts: Mapping[bytes, int]) -> None:
        """Keep tickets, given how many episodes each admits, used ones included; also one that waits or is unknown."""
        for name, count in counts.items():
            ticket = self._tickets.setdefault(name, _Ticket(count))
            if ticket.count != count or self._line.pop(name, None):
                self.news.tell()
            ticket.count, ticket.expires = count, _now() + 3 * self._lease

    async def _looks(self) -> None:
        """Look at the shards while anyone waits, and grant tickets."""
        while self._line:
            seen = self.news.count
            self._learn(await self._look(list(self._tickets)))
            for name, (count, until, granted) in list(self._line.items()):
                if until > _now() and not self._may_admit(count):
                    break
                del self._line[name]
                if until > _now():
                    await self.renew({name: count})
                    granted.set_result(None)
            await self.news.wait(seen)

    def _learn(self, places: Mapping[int, deliveries.Places]) -> None:
        versions = [each.policy_version for each in places.values() if each.policy_version is not None]
        if max(versions, default=None) != self._version:
            self._version = max(versions, default=None)
            self._delivered.clear()
            self._behind.clear()
        self._num_taken = 0
        for shard, each in places.items():
            if each.policy_version == self._version:
                # What earlier processes of the shard have delivered was delivered, too.
                self._delivered.setdefault(shard, {})[each.incarnation] = each.delivered
            elif self._behind.setdefault(shard, _now()) + _PATIENCE > _now():
                self._num_taken += each.delivered
            for name, uses in each.uses.items():
                for number, has_failed in uses.items():
                    of_ticket = self._tickets[name].uses
                    of_ticket[number] = has_failed or of_ticket.get(number, False)
        self._num_taken += sum([sum(of_shard.values()) for of_shard in self._delivered.values()])
        self._num_outstanding = sum([each.outstanding for each in places.values()])
        self._num_running = sum([each.running for each in places.values()])

    def _may_admit(self, count: int) -> bool:
        if _now() < self._begins:
            return False
        self._tickets = {name: ticket for name, ticket in self._tickets.items() if ticket.expires > _now()}
        more = count + sum([ticket.left for ticket in self._tickets.values()])
        admitted = self._num_taken + self._num_outstanding + more
        return admission_lib.is_within(self._rule, admitted=admitted, running=self._num_running + more)


def _now() -> float:
    return asyncio.get_running_loop().time()
