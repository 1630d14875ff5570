"""AdmissionService: an admission for a whole fleet.

    actors    admit(ticket, count), renew             ──►  AdmissionService  ──►  Admission
    shards    who waits, runs, was delivered          ──►

    delivered at the learner's version + waiting + running + tickets  <=  (max_lag + 1) * episodes_per_version

This is decided from what all shards say, so it waits while one of them is lost. They are asked once something new was
told, or a second has passed, and only while an actor waits. A ticket counts until its episodes have reached their
shards, or until its client has not renewed it for some time: three times the lease, since episodes may be under way to
a lost shard. An episode that failed while its ticket was open is one that has not reached a shard.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
import dataclasses

from relive.agents import admission as admission_lib
from relive.fleet import deliveries
from relive.fleet import news as news_lib
from relive.fleet import replies
from relive.fleet import timing


@dataclasses.dataclass(slots=True)
class _Ticket:
    """How many episodes a ticket admits, when it expires, which have reached a shard, and whether these failed."""

    count: int
    expires: float = 0.0
    uses: dict[int, bool] = dataclasses.field(default_factory=dict)

    @property
    def left(self) -> int:
        return max(self.count - list(self.uses.values()).count(False), 0)


class AdmissionService:
    """Decides when the actors of a fleet may start episodes, first come, first served.

    `look` returns what each shard, which is told the policy, says of its episodes and of some tickets, and waits for
    lost shards. No ticket is given before `begins`, when clients have renewed those of an earlier process.
    """

    def __init__(
        self,
        rule: admission_lib.Admission,
        lease: float,
        look: Callable[[Iterable[bytes], replies.Policy], Awaitable[Mapping[int, deliveries.Places]]],
    ) -> None:
        self._rule, self._lease, self._look = rule, lease, look
        self.begins, self.news = 0.0, news_lib.News()
        self._tickets: dict[bytes, _Ticket] = {}
        # Those who wait, in order: how many episodes, until when, and what wakes them.
        self._line: dict[bytes, tuple[int, float, asyncio.Future[None]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._policy = replies.Policy()
        # What was delivered at that version, by shard and incarnation; and since when shards do not know the version.
        self._delivered: dict[tuple[int, int], int] = {}
        self._behind: dict[int, float] = {}

    async def admit(self, name: bytes, count: int) -> bool:
        """Wait until that many episodes may start, and return True; False to be asked again."""
        if name not in self._tickets:  # Otherwise it was admitted or released before.
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._looks())
            elif name not in self._line:
                self.news.tell()
            granted = asyncio.get_running_loop().create_future()
            self._line[name] = count, news_lib.now() + 2 * timing.PATIENCE, granted
            await asyncio.wait([granted], timeout=timing.PATIENCE)
        return name in self._tickets

    async def renew(self, counts: Mapping[bytes, int]) -> None:
        """Keep tickets, given how many episodes each admits, used ones included; also one that waits or is unknown."""
        for name, count in counts.items():
            ticket = self._tickets.setdefault(name, _Ticket(count))
            if ticket.count != count or name in self._line:
                self._line.pop(name, None)
                self.news.tell()
            ticket.count, ticket.expires = count, news_lib.now() + 3 * self._lease

    async def _looks(self) -> None:
        """Look at the shards while anyone waits, and grant tickets."""
        while self._line:
            seen = self.news.count
            places = await self._look(list(self._tickets), self._policy)
            admitted, running = self._learn(places)
            if any(each.policy.rank != self._policy.rank for each in places.values()):
                # In the second look, all know the newest policy, unless a disk is full.
                admitted, running = self._learn(await self._look(list(self._tickets), self._policy))
            self._tickets = {name: each for name, each in self._tickets.items() if each.expires > news_lib.now()}
            for name, (count, until, granted) in list(self._line.items()):
                more = count + sum([ticket.left for ticket in self._tickets.values()])
                may_start = admission_lib.is_within(self._rule, admitted=admitted + more, running=running + more)
                if until > news_lib.now():  # Otherwise it asks no more.
                    if news_lib.now() < self.begins or not may_start:
                        break
                    self._tickets[name] = _Ticket(count, news_lib.now() + 3 * self._lease)
                    granted.set_result(None)
                del self._line[name]
            await self.news.wait(seen)

    def _learn(self, places: Mapping[int, deliveries.Places]) -> tuple[int, int]:
        """Return how many episodes are admitted, and how many of them run, beside those of the tickets."""
        newest = replies.newest([self._policy, *[each.policy for each in places.values()]])
        if newest.rank != self._policy.rank:
            self._policy, self._delivered, self._behind = newest, {}, {}
        just_before = 0
        for shard, each in places.items():
            if each.policy.rank == newest.rank:
                # What earlier processes of the shard have delivered was delivered, too.
                self._delivered[shard, each.incarnation] = each.delivered
            elif self._behind.setdefault(shard, news_lib.now()) + timing.PATIENCE > news_lib.now():
                just_before += each.delivered  # Some may be put back before it learns of the version.
            for name, uses in each.uses.items():
                of_ticket = self._tickets[name].uses
                of_ticket |= {number: has_failed or of_ticket.get(number, False) for number, has_failed in uses.items()}
        outstanding = sum([each.outstanding for each in places.values()])
        admitted = just_before + sum(self._delivered.values()) + outstanding
        return admitted, sum([each.running for each in places.values()])
