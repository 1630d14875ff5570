"""Where the callers of a buffer wait: for the limiter, in order of arrival, in one event loop, until it is closed.

    must_wait_to_insert()   asks, and answers at once        await insert_turn()    waits
    can_insert()                                              await sample_turn()
    can_sample(batch_size)

When a turn has been waited for, it is to be used at once: nothing is awaited between the last answer and the return.
Every draw, and every 32nd insert, gives the other tasks a turn first: a loop of awaited calls cannot keep the event
loop to itself, although most of them need not wait.
"""

import asyncio
from typing import Protocol

from relive import errors
from relive import limiters
from relive import wait_queue

_INSERTS_A_TURN = 32


class Counts(Protocol):
    """What a limiter decides from."""

    @property
    def inserted(self) -> int:
        """Steps inserted so far."""

    @property
    def sampled(self) -> int:
        """Samples drawn so far."""

    def __len__(self) -> int:
        """How many transitions can be drawn now."""


class Gate:
    """Lets inserts and samples pass when the limiter allows."""

    def __init__(self, limiter: limiters.RateLimiter, counts: Counts) -> None:
        self.limiter = limiter
        self.is_closed = False
        self._counts = counts
        self._inserters = wait_queue.WaitQueue()
        self._samplers = wait_queue.WaitQueue()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind_to_loop(self) -> None:
        """Makes the running event loop the gate's own.

        Raises:
            EventLoopError: It has another one.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                raise errors.EventLoopError(
                    "buffer belongs to another event loop: use one buffer in one loop, or its _nowait methods"
                )
            self._loop = loop

    def close(self) -> None:
        """Closes for good; whoever waits gets ClosedError."""
        self.is_closed = True
        self._inserters.wake_all()
        self._samplers.wake_all()

    def refuse_if_closed(self) -> None:
        """Raises ClosedError if the gate is closed."""
        if self.is_closed:
            raise errors.ClosedError("buffer is closed: only sample_n_step_nowait still answers")

    def can_insert(self) -> bool:
        """Answers whether one step may be inserted now; raises ClosedError if none ever may."""
        if self.is_closed:
            self.refuse_if_closed()
        counts = self._counts
        return self.limiter.can_insert(size=len(counts), inserted=counts.inserted, sampled=counts.sampled)

    def can_sample(self, batch_size: int) -> bool:
        """Answers whether a batch may be drawn now; raises ClosedError if nobody may wait for it."""
        self.refuse_if_closed()
        counts = self._counts
        size = len(counts)
        return size > 0 and self.limiter.can_sample(
            batch_size, size=size, inserted=counts.inserted, sampled=counts.sampled
        )

    def must_wait_to_insert(self) -> bool:
        """Answers whether `insert_turn` has to be awaited before a step is inserted."""
        is_turn_of_others = self._counts.inserted % _INSERTS_A_TURN == 0 or bool(self._inserters.waiting)
        return not self.can_insert() or is_turn_of_others

    async def insert_turn(self) -> None:
        """Returns when one step may be inserted."""
        await asyncio.sleep(0)
        await self._inserters.until(self.can_insert)

    async def sample_turn(self, batch_size: int) -> None:
        """Returns when a batch may be drawn."""
        await asyncio.sleep(0)
        await self._samplers.until(lambda: self.can_sample(batch_size))

    def wake(self) -> None:
        """Lets the first of each queue ask again; to be called after every change of the counts."""
        if self._samplers.waiting:
            self._samplers.wake()
        if self._inserters.waiting:
            self._inserters.wake()
