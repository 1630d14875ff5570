"""Where the callers of a buffer wait: for the limiter, in order of arrival, until the buffer is closed.

    can_insert()                asks, and returns at once        await wait_to_insert()               waits
    can_sample(batch_size)                                       await wait_to_sample(batch_size)

A buffer belongs to an event loop until that loop is closed. Then the next one takes it over, and the callers that still
waited in the first are dropped: they never run again.

When a turn has been waited for, it is to be used at once: nothing is awaited between the last answer and the return.
Every draw, and one in 32 of the other awaited calls, gives the other tasks a turn first: a loop of awaited calls cannot
keep the event loop to itself, although most of them need not wait.
"""

import asyncio
import collections
from collections.abc import Callable
import itertools
from typing import Protocol

from relive import errors


class FairCondition:
    """A queue of coroutines, first come, first served."""

    def __init__(self) -> None:
        self.waiting: collections.OrderedDict[object, asyncio.Future[None]] = collections.OrderedDict()
        """The waiters in order of arrival."""

    async def wait_for(self, ready: Callable[[], bool]) -> None:
        """Return when it is this caller's turn and `ready()` returns True; what `ready` raises comes out here."""
        self._drop_dead()
        if not self.waiting and ready():
            return
        loop = asyncio.get_running_loop()
        me = object()
        try:
            while True:
                self.waiting[me] = loop.create_future()
                await self.waiting[me]
                if next(iter(self.waiting)) is me and ready():
                    return
        finally:
            self.waiting.pop(me, None)
            self.notify()

    def notify(self, most: int = 1) -> None:
        """Let the first `most` waiters ask again, in order."""
        self._drop_dead()
        for future in list(itertools.islice(self.waiting.values(), most)):
            if not future.done():
                future.set_result(None)

    def _drop_dead(self) -> None:
        """Drop the waiters whose event loop was closed under them; they came before those of the next loop."""
        while self.waiting:
            waiter, future = next(iter(self.waiting.items()))
            if not future.get_loop().is_closed():
                return
            del self.waiting[waiter]


_CALLS_A_TURN = 32


class Rules(Protocol):
    """What decides, without waiting."""

    def can_insert(self) -> bool:
        """Return whether a step may be inserted now."""
        ...

    def can_sample(self, batch_size: int) -> bool:
        """Return whether a batch may be drawn now."""
        ...


def _always() -> bool:
    return True


class Gate:
    """Lets inserts and samples pass when the rules allow.

    Args:
        rules: What decides.
        still_there: What returns without waiting, and after the gate was closed; for error messages.
    """

    def __init__(self, rules: Rules, still_there: str) -> None:
        self.is_closed = False
        self._rules = rules
        self._still_there = still_there
        self._inserters = FairCondition()
        self._samplers = FairCondition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls = 0
        # Of the batch that waits first, if the rules allow it: whether what it asks for is there.
        self._is_there = _always

    def bind_to_loop(self) -> None:
        """Make the running event loop the gate's own; it takes over from one that is closed.

        Raises:
            EventLoopError: The gate belongs to another event loop that is not closed.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                raise errors.EventLoopError(
                    f"buffer belongs to another event loop: use one buffer in one loop, or {self._still_there}"
                )
            self._loop = loop
            self._is_there = _always

    def close(self) -> None:
        """Close for good; those who wait get ClosedError."""
        self.is_closed = True
        self.wake()

    def refuse_if_closed(self) -> None:
        """Raise ClosedError if the gate is closed."""
        if self.is_closed:
            raise errors.ClosedError(f"buffer is closed: only {self._still_there} still answers")

    def can_insert(self) -> bool:
        """Return whether one step may be inserted now; raise ClosedError if the gate is closed."""
        self.refuse_if_closed()
        return self._rules.can_insert() or not self._is_there()

    def can_sample(self, batch_size: int) -> bool:
        """Return whether a batch may be drawn now; raise ClosedError if the gate is closed."""
        self.refuse_if_closed()
        return self._rules.can_sample(batch_size)

    def should_yield(self) -> bool:
        """Count an awaited call, and return whether it is the turn of the other tasks."""
        self._calls += 1
        return self._calls % _CALLS_A_TURN == 0

    def must_wait_to_insert(self) -> bool:
        """Return whether `wait_to_insert` has to be awaited before a step is inserted."""
        should_yield = self.should_yield()
        return not self.can_insert() or should_yield or bool(self._inserters.waiting)

    async def wait_to_insert(self) -> None:
        """Return when one step may be inserted."""
        await asyncio.sleep(0)
        await self._inserters.wait_for(self.can_insert)

    async def wait_to_sample(self, batch_size: int, is_there: Callable[[], bool] = _always) -> None:
        """Return when a batch may be drawn, and what it asks for is there.

        While the rules allow it and only that is missing, inserts pass whatever the rules say: what is held up could
        never bring it.
        """
        await asyncio.sleep(0)

        def is_ready() -> bool:
            if not self.can_sample(batch_size):
                self._is_there = _always
                return False
            self._is_there = is_there
            if is_there():
                return True
            self._inserters.notify(_CALLS_A_TURN)
            return False

        try:
            await self._samplers.wait_for(is_ready)
        finally:
            self._is_there = _always

    def wake(self) -> None:
        """Let the first of each queue ask again; to be called after every change of the counts.

        A batch makes room for many inserts, so many may ask again at once: one at a time they would take a pass through
        the event loop each.
        """
        if self._samplers.waiting:
            self._samplers.notify()
        if self._inserters.waiting:
            self._inserters.notify(_CALLS_A_TURN)
