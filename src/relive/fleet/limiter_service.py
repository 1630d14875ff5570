"""LimiterService: the rate limiter of a whole fleet, where writers and learners wait, first come, first served.

    writers     await insert_turn(rows)                        ┐
                                                               ├──►  LimiterService  ──►  RateLimiter
    learners    await sample_turns(batch_size, number, size)   ┘

Granted turns are counted. A learner that is gone does not block writers: if none has asked for `lease` seconds, inserts
pass without being counted, so that the next learner has no backlog. After a restart of this process, which continues
from the shards' counts, any backlog is forgiven too.
"""

import asyncio
import bisect
from collections.abc import Awaitable, Callable
import dataclasses

from relive.fleet import news
from relive.fleet import timing
from relive.limits import gate
from relive.limits import rate_limiters


@dataclasses.dataclass(slots=True)
class _Counts:
    """How many steps and samples were counted, and how many transitions there are."""

    inserted: int = 0
    sampled: int = 0
    size: int = 0

    def __len__(self) -> int:
        return self.size


class LimiterService:
    """Decides when writers may insert and learners may draw.

    `count` returns how many steps the fleet has ever stored and drawn, and how many transitions there are.
    """

    def __init__(
        self, limiter: rate_limiters.RateLimiter, lease: float, count: Callable[[], Awaitable[tuple[int, int, int]]]
    ) -> None:
        self._counts, self._count, self._lease = _Counts(), count, lease
        self._rules = rate_limiters.LimiterState(limiter, self._counts, rate_limiters.Limits("size", None))
        self._begins, self._has_begun = asyncio.Lock(), False
        self._last_draw: float | None = None
        self._waiting_learners = 0
        self._inserters, self._samplers = gate.FairCondition(), gate.FairCondition()

    async def insert_turn(self, rows: int) -> int | None:
        """Wait until `rows` steps may be inserted, since one may, and return how many count; None to be asked again."""
        await self._begin()
        may_insert = await _turn(self._inserters, lambda: self._is_learner_gone() or self._rules.can_insert())
        return self._inserted(rows) if may_insert else None

    def _inserted(self, rows: int) -> int:
        """Record that `rows` steps are inserted, and return how many count."""
        counted = 0 if self._is_learner_gone() else rows
        self._counts.inserted += counted
        self._counts.size += rows
        self._wake()
        return counted

    async def sample_turns(self, batch_size: int, number: int, size: int) -> int:
        """Wait until a batch may be drawn, and return how many may, at most `number`; 0 to be asked again.

        `size` is the number of transitions in all shards. Batches that the limiter never allows raise ArgumentError.
        """
        self._rules.checked_batch_size(batch_size)
        await self._begin()
        self._counts.size = size
        self._last_draw = news.now()
        self._waiting_learners += 1
        self._wake()
        granted = 0
        try:
            is_turn = await _turn(self._samplers, lambda: self._rules.can_sample(batch_size))
            while is_turn and granted < number and self._rules.can_sample(batch_size):
                self._counts.sampled += batch_size
                granted += 1
            self._wake()
        finally:
            self._waiting_learners -= 1
            self._last_draw = news.now()
        return granted

    async def give_back(self, samples: int, inserts: int) -> None:
        """Record that granted samples were not drawn, or steps that counted not stored."""
        self._counts.sampled -= samples
        self._counts.inserted -= inserts
        self._counts.size -= inserts
        self._wake()

    async def counts(self) -> tuple[int, int]:
        """Return how many steps and samples were granted and counted."""
        await self._begin()
        return self._counts.inserted, self._counts.sampled

    async def _begin(self) -> None:
        """Begin with the counts of the fleet, reduced until an insert and a sample may pass."""
        async with self._begins:
            if self._has_begun:
                return
            counts, limiter = self._counts, self._rules.limiter
            inserted, sampled, size = counts.inserted, counts.sampled, counts.size = await self._count()
            self._has_begun = True
            self._last_draw = news.now() if sampled else None
            counts.inserted = _most(
                inserted, lambda count: limiter.can_insert(size=size, inserted=count, sampled=sampled)
            )
            holds_inserts = counts.inserted < inserted
            counts.sampled = (
                sampled
                if holds_inserts or size < limiter.min_size
                else _most(sampled, lambda count: limiter.can_sample(1, size=size, inserted=inserted, sampled=count))
            )

    def _wake(self) -> None:
        self._samplers.notify()
        self._inserters.notify()

    def _is_learner_gone(self) -> bool:
        """Return whether there was a learner and none is left."""
        if self._waiting_learners or self._last_draw is None:
            return False
        return news.now() - self._last_draw > self._lease


async def _turn(queue: gate.FairCondition, ready: Callable[[], bool]) -> bool:
    try:
        async with asyncio.timeout(timing.PATIENCE):
            await queue.wait_for(ready)
    except TimeoutError:
        return False
    return True


def _most(limit: int, may_pass: Callable[[int], bool]) -> int:
    """Return the largest count up to `limit` at which one more may pass, as at all smaller ones; 0 if there is none."""
    return max(bisect.bisect_right(range(limit + 1), False, key=lambda count: not may_pass(count)) - 1, 0)
