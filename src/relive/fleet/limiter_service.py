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
import contextlib

from relive import errors
from relive.common import validation
from relive.waiting import gate
from relive.waiting import rate_limiters

_PATIENCE = 1.0
"""Seconds to wait for a turn in one call, at most."""


class LimiterService:
    """Decides when writers may insert and learners may draw.

    Args:
        limiter: The limiter; if it allows an insert at some count of inserts, it allows one at smaller counts, and
            likewise for samples.
        lease: Seconds after which a silent learner counts as gone.
        count: Returns how many steps the fleet has ever stored and drawn, and how many transitions there are.
    """

    def __init__(
        self, limiter: rate_limiters.RateLimiter, lease: float, count: Callable[[], Awaitable[tuple[int, int, int]]]
    ) -> None:
        validation.require_instance("limiter", limiter, rate_limiters.RateLimiter)
        self.limiter = limiter
        self._lease = lease
        self._count: Callable[[], Awaitable[tuple[int, int, int]]] | None = count
        self._begins = asyncio.Lock()
        self._inserted = self._sampled = self._size = 0
        self._last_draw: float | None = None
        self._waiting_learners = 0
        self._inserters, self._samplers = gate.FairCondition(), gate.FairCondition()

    async def insert_turn(self, rows: int) -> int | None:
        """Wait until `rows` steps may be inserted, and return how many count; return None to make the caller ask again.

        They may if one may, as with calls of a buffer that add several steps.
        """
        await self._begin()
        if not await self._turn(self._inserters, self._may_insert):
            return None
        counted = 0 if self._is_learner_gone() else rows
        self._inserted += counted
        self._size += rows
        self._wake()
        return counted

    async def sample_turns(self, batch_size: int, number: int, size: int) -> int:
        """Wait until a batch may be drawn, and return how many may; return 0 to make the caller ask again.

        Args:
            batch_size: Number of samples in a batch.
            number: Number of batches, at most.
            size: Number of transitions in all shards, updated with each call.

        Raises:
            ArgumentError: The limiter never allows so large a batch.
        """
        most = self.limiter.max_batch_size
        if most is not None and batch_size > most:
            raise errors.ArgumentError(f"batch_size must be at most {most} with {self.limiter!r}, got {batch_size}")
        await self._begin()
        self._size = size
        self._last_draw = _now()
        self._waiting_learners += 1
        self._wake()
        granted = 0
        try:
            is_turn = await self._turn(self._samplers, lambda: self._may_sample(batch_size))
            while is_turn and granted < number and self._may_sample(batch_size):
                self._sampled += batch_size
                granted += 1
            self._wake()
        finally:
            self._waiting_learners -= 1
            self._last_draw = _now()
        return granted

    async def give_back(self, samples: int, inserts: int) -> None:
        """Record that granted samples were not drawn, or steps that counted not stored."""
        self._sampled -= samples
        self._inserted -= inserts
        self._size -= inserts
        self._wake()

    async def counts(self) -> tuple[int, int]:
        """Return how many steps and samples were granted and counted."""
        await self._begin()
        return self._inserted, self._sampled

    async def _begin(self) -> None:
        """Initialize the counts from the fleet."""
        async with self._begins:
            if self._count is not None:
                self._inserted, self._sampled, self._size = await self._count()
                self._count = None
                self._last_draw = _now() if self._sampled else None
                self._forgive()

    def _forgive(self) -> None:
        """Reduce the counts of inserts and samples until one of each may pass."""
        limiter, size, inserted, sampled = self.limiter, self._size, self._inserted, self._sampled

        def holds_insert(count: int) -> bool:
            return not limiter.can_insert(size=size, inserted=count, sampled=sampled)

        def holds_sample(count: int) -> bool:
            return not limiter.can_sample(1, size=size, inserted=inserted, sampled=count)

        if holds_insert(inserted):
            self._inserted = max(bisect.bisect_left(range(inserted), True, key=holds_insert) - 1, 0)
        elif size >= limiter.min_size and holds_sample(sampled):
            self._sampled = max(bisect.bisect_left(range(sampled), True, key=holds_sample) - 1, 0)

    async def _turn(self, queue: gate.FairCondition, ready: Callable[[], bool]) -> bool:
        """Wait for a turn; only for a short time, since the caller may have died."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await queue.wait_for(ready)
                return True
        return False

    def _wake(self) -> None:
        self._samplers.notify()
        self._inserters.notify()

    def _may_insert(self) -> bool:
        return self._is_learner_gone() or self.limiter.can_insert(
            size=self._size, inserted=self._inserted, sampled=self._sampled
        )

    def _may_sample(self, batch_size: int) -> bool:
        return self._size >= self.limiter.min_size and self.limiter.can_sample(
            batch_size, size=self._size, inserted=self._inserted, sampled=self._sampled
        )

    def _is_learner_gone(self) -> bool:
        """Return whether there was a learner and none is left."""
        if self._waiting_learners or self._last_draw is None:
            return False
        return _now() - self._last_draw > self._lease


def _now() -> float:
    return asyncio.get_running_loop().time()
