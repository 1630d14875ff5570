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
from collections.abc import Callable, Iterable
import itertools
from typing import Any, Protocol, Self

from relive import errors


def _always() -> bool:
    return True


class FairCondition:
    """A queue of coroutines, first come, first served.

    A waiter that has nothing to do with what the others wait for steps aside: it keeps its place, and those behind it
    are asked as if it was not there.
    """

    def __init__(self) -> None:
        self.waiting: collections.OrderedDict[object, asyncio.Future[None]] = collections.OrderedDict()
        """The waiters in order of arrival."""
        # Those of them that have stepped aside since they were last told to ask.
        self._aside: set[object] = set()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Return how to make a copy, at which nobody waits: a coroutine waits at the original."""
        return type(self), ()

    async def wait_for(
        self, ready: Callable[[], bool], *, blocks: Callable[[], bool] = _always, waiter: object = None
    ) -> None:
        """Return when it is this caller's turn and `ready()` returns True; what `ready` raises comes out here.

        Args:
            ready: Asked whenever it is the caller's turn.
            blocks: Asked when `ready` has returned False: whether those who come later have to wait too.
            waiter: What stands for the caller in `waiting`; something new if None.
        """
        self._drop_dead()
        loop = asyncio.get_running_loop()
        me = object() if waiter is None else waiter
        try:
            while True:
                is_turn = self._is_turn(me)
                if is_turn and ready():
                    return
                self.waiting[me] = loop.create_future()
                if is_turn and not blocks():
                    self._aside.add(me)
                    self._wake(itertools.islice(itertools.dropwhile(lambda each: each is not me, self.waiting), 1, 2))
                await self.waiting[me]
        finally:
            self._remove(me)
            self.notify()

    def notify(self, most: int = 1) -> None:
        """Let the first `most` waiters ask again, in order."""
        self._drop_dead()
        self._wake(itertools.islice(self.waiting, most))

    def _is_turn(self, me: object) -> bool:
        """Return whether all who came before have stepped aside."""
        return next((each is me for each in self.waiting if each is me or each not in self._aside), True)

    def _wake(self, waiters: Iterable[object]) -> None:
        for waiter in waiters:
            self._aside.discard(waiter)
            future = self.waiting[waiter]
            if not future.done():
                future.set_result(None)

    def _drop_dead(self) -> None:
        """Drop the waiters whose event loop was closed under them; they came before those of the next loop."""
        while self.waiting:
            waiter, future = next(iter(self.waiting.items()))
            if not future.get_loop().is_closed():
                return
            self._remove(waiter)

    def _remove(self, waiter: object) -> None:
        self.waiting.pop(waiter, None)
        self._aside.discard(waiter)


_CALLS_A_TURN = 32


class Rules(Protocol):
    """What decides, without waiting."""

    def can_insert(self) -> bool:
        """Return whether a step may be inserted now."""
        ...

    def can_sample(self, batch_size: int) -> bool:
        """Return whether a batch may be drawn now."""
        ...


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
        # The sizes of the batches that wait for more than the rules, and whether that is there.
        self._wanted: dict[object, tuple[int, Callable[[], bool]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: nobody waits at it, and it belongs to no event loop."""
        return {**vars(self), "_loop": None, "_wanted": {}}

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
            self._wanted.clear()

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
        return self._rules.can_insert() or self._is_more_wanted()

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

    async def wait_to_sample(self, batch_size: int, is_there: Callable[[], bool] | None = None) -> None:
        """Return when a batch may be drawn, and what it asks for is there, if it asks for more than the rules.

        While the rules allow it and only that is missing, the batches behind it pass; and so do inserts, whatever the
        rules say: what is held up could never bring it.
        """
        await asyncio.sleep(0)
        if is_there is None:
            await self._samplers.wait_for(lambda: self.can_sample(batch_size))
            return

        def is_ready() -> bool:
            if not self.can_sample(batch_size):
                return False
            if is_there():
                return True
            self._inserters.notify(_CALLS_A_TURN)
            return False

        me = object()
        self._wanted[me] = batch_size, is_there
        try:
            await self._samplers.wait_for(is_ready, blocks=lambda: not self.can_sample(batch_size))
        finally:
            self._wanted.pop(me, None)

    def _is_more_wanted(self) -> bool:
        """Return whether the rules allow a batch that waits, and what else it asks for is not there."""
        return any(self._rules.can_sample(size) and not is_there() for size, is_there in self._wanted.values())

    def wake(self) -> None:
        """Let the first of each queue ask again; to be called after every change of the counts.

        A batch makes room for many inserts, so many may ask again at once: one at a time they would take a pass through
        the event loop each.
        """
        if self._samplers.waiting:
            self._samplers.notify()
        if self._inserters.waiting:
            self._inserters.notify(_CALLS_A_TURN)
