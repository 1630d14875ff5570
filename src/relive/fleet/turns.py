"""The rate limiter of a whole fleet: writers and learners wait here for their turns, first come, first served.

    writers     await insert_turn(rows)              ┐
                                                     ├──►  Turns  ──►  RateLimiter
    learners    await sample_turn(batch_size, size)  ┘

What is counted is what was let pass. A learner that is gone holds nobody up: when none has asked for `lease` seconds,
inserts pass and are not counted, so that the next one finds no debt to work off. Nor does it where this process was
made again, and the shards' counts are all there is to go on from: what holds inserts or samples up then is forgiven.
"""

import asyncio
import bisect
from collections.abc import Awaitable, Callable

from relive import errors
from relive.common import validation
from relive.waiting import gate
from relive.waiting import rate_limiters

_PATIENCE = 1.0
"""For so many seconds a turn is waited for at most in one call."""


class Turns:
    """Decides when writers may insert and learners may draw.

    Args:
        limiter: What decides. Of two counts of inserts it allows one more at the smaller if it does at the larger, and
            so for samples.
        lease: For how many seconds a learner that asks for nothing counts as there.
        count: Returns how many steps the fleet has ever stored, how many samples it has drawn, and how many
            transitions it has: a process that begins, perhaps in the place of a dead one, goes on from there.
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
        self._learner_heard: float | None = None
        self._waiting_learners = 0
        self._inserters, self._samplers = gate.FairCondition(), gate.FairCondition()

    async def ping(self) -> str:
        """Return "pong"."""
        return "pong"

    async def insert_turn(self, rows: int) -> bool:
        """Return True once `rows` steps may be inserted, or False if that must be asked again.

        They may when one may, as with the calls of a buffer that add several.
        """
        await self._begin()

        def take() -> None:
            if not self._is_learner_gone():
                self._inserted += rows
            self._size += rows

        return await self._take_turn(self._inserters, self._may_insert, take)

    async def sample_turn(self, batch_size: int, size: int) -> bool:
        """Return True once a batch may be drawn, or False if that must be asked again, with the size of then.

        Args:
            batch_size: How many samples.
            size: How many transitions all shards together have.

        Raises:
            ArgumentError: The limiter never lets so large a batch pass.
        """
        most = self.limiter.max_batch_size
        if most is not None and batch_size > most:
            raise errors.ArgumentError(f"batch_size must be at most {most} with {self.limiter!r}, got {batch_size}")
        await self._begin()
        self._size = size
        self._learner_heard = _now()
        self._waiting_learners += 1
        self._wake()

        def take() -> None:
            self._sampled += batch_size

        try:
            return await self._take_turn(self._samplers, lambda: self._may_sample(batch_size), take)
        finally:
            self._waiting_learners -= 1
            self._learner_heard = _now()

    async def give_back(self, samples: int) -> None:
        """Record that so many samples which were let pass have not been drawn: the caller was cancelled."""
        self._sampled -= samples
        self._wake()

    async def counts(self) -> tuple[int, int]:
        """Return how many steps and samples were let pass, and counted."""
        await self._begin()
        return self._inserted, self._sampled

    async def _begin(self) -> None:
        """Go on from what the fleet has."""
        async with self._begins:
            if self._count is not None:
                self._inserted, self._sampled, self._size = await self._count()
                self._count = None
                self._learner_heard = _now() if self._sampled else None
                self._forgive()

    def _forgive(self) -> None:
        """Count no more inserts than let one pass, and no more samples."""
        limiter, size, inserted, sampled = self.limiter, self._size, self._inserted, self._sampled

        def holds_insert(count: int) -> bool:
            return not limiter.can_insert(size=size, inserted=count, sampled=sampled)

        def holds_sample(count: int) -> bool:
            return not limiter.can_sample(1, size=size, inserted=inserted, sampled=count)

        if holds_insert(inserted):
            self._inserted = max(bisect.bisect_left(range(inserted), True, key=holds_insert) - 1, 0)
        elif size >= limiter.min_size and holds_sample(sampled):
            self._sampled = max(bisect.bisect_left(range(sampled), True, key=holds_sample) - 1, 0)

    async def _take_turn(self, queue: gate.FairCondition, ready: Callable[[], bool], take: Callable[[], None]) -> bool:
        """Wait for a turn and take it; not for long, since who has asked may have died."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await queue.wait_for(ready)
        except TimeoutError:
            return False
        take()
        self._wake()
        return True

    def _wake(self) -> None:
        self._samplers.notify()
        self._inserters.notify()

    def _may_insert(self) -> bool:
        counts = {"size": self._size, "inserted": self._inserted, "sampled": self._sampled}
        return self._is_learner_gone() or self.limiter.can_insert(**counts)

    def _may_sample(self, batch_size: int) -> bool:
        counts = {"size": self._size, "inserted": self._inserted, "sampled": self._sampled}
        return self._size >= self.limiter.min_size and self.limiter.can_sample(batch_size, **counts)

    def _is_learner_gone(self) -> bool:
        """Return whether there was a learner, and none is left."""
        if self._waiting_learners or self._learner_heard is None:
            return False
        return _now() - self._learner_heard > self._lease


def _now() -> float:
    return asyncio.get_running_loop().time()
