"""Gate: where callers wait for the limiter, in order of arrival, until the buffer is closed.

    can_insert()                returns at once                  await wait_to_insert()               waits
    can_sample(batch_size)                                       await wait_to_sample(batch_size)

A buffer belongs to an event loop until that loop is closed. Then the next one takes it over, and callers still waiting
in the first, which never run again, are dropped.

A turn must be used at once: nothing may be awaited between the final check and the action. Every draw yields to other
tasks first, and so does an insert once 32 awaited calls have not, so that a loop of calls that need not wait cannot
starve the event loop.
"""

import asyncio
import collections
from collections.abc import Callable, Iterable
import contextlib
import itertools
import time
from typing import Any, Self

from relive import errors
from relive.limits import rate_limiters


def _always() -> bool:
    return True


class FairCondition:
    """A queue of coroutines, first come, first served.

    A waiter whose missing condition does not concern the others steps aside: it keeps its place, but those behind it
    may pass.
    """

    def __init__(self) -> None:
        self.waiting: collections.OrderedDict[object, asyncio.Future[None]] = collections.OrderedDict()
        """The waiters in order of arrival."""
        # The waiters that stepped aside since they were last notified.
        self._aside: set[object] = set()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Return how to make a copy, without waiters: coroutines wait at the original."""
        return type(self), ()

    async def wait_for(
        self,
        ready: Callable[[], bool],
        *,
        blocks: Callable[[], bool] = _always,
        waiter: object = None,
        due: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Wait until it is this caller's turn and `ready()` returns True; exceptions of `ready` propagate.

        Args:
            ready: Called whenever it is the caller's turn.
            blocks: Called when `ready` returned False: whether later callers must wait too.
            waiter: The object that represents the caller in `waiting`; a new one if None.
            due: Called then, too: when passing time makes `ready` worth calling again, by the monotonic clock; None if
                it does not.
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
                until = due() if is_turn else None
                if until is None:
                    await self.waiting[me]
                else:
                    await asyncio.wait([self.waiting[me]], timeout=max(until - time.monotonic(), 0))
        finally:
            self._remove(me)
            self.notify()

    def notify(self, most: int = 1) -> None:
        """Let the first `most` waiters check again, in order."""
        self._drop_dead()
        self._wake(itertools.islice(self.waiting, most))

    def _is_turn(self, me: object) -> bool:
        """Return whether all earlier waiters have stepped aside."""
        return next((each is me for each in self.waiting if each is me or each not in self._aside), True)

    def _wake(self, waiters: Iterable[object]) -> None:
        for waiter in waiters:
            self._aside.discard(waiter)
            future = self.waiting[waiter]
            if not future.done():
                future.set_result(None)

    def _drop_dead(self) -> None:
        """Drop the waiters whose event loop was closed; they come before those of the current loop."""
        while self.waiting:
            waiter, future = next(iter(self.waiting.items()))
            if not future.get_loop().is_closed():
                return
            self._remove(waiter)

    def _remove(self, waiter: object) -> None:
        self.waiting.pop(waiter, None)
        self._aside.discard(waiter)


_CALLS_A_TURN = 32


class Gate:
    """Lets inserts and samples pass when the rules allow them.

    Args:
        rules: Decides whether a call may pass.
        still_there: The calls that still work after the gate is closed; for error messages.
    """

    def __init__(self, rules: rate_limiters.Rules, still_there: str) -> None:
        self.is_closed = False
        self._rules = rules
        self._still_there = still_there
        self._inserters = FairCondition()
        self._samplers = FairCondition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls = 0
        # The sizes of the batches that wait for an extra condition, and the condition.
        self._wanted: dict[object, tuple[int, Callable[[], bool]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: without waiters and without an event loop."""
        return {**vars(self), "_loop": None, "_wanted": {}}

    def bind_to_loop(self) -> None:
        """Begin an awaited call: count it, and bind the gate to the running event loop, replacing a closed one.

        Raises:
            EventLoopError: The gate belongs to another event loop that is not closed.
        """
        self._calls += 1
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                raise errors.EventLoopError(
                    f"buffer belongs to another event loop: use one buffer in one loop, or {self._still_there}"
                )
            self._loop = loop
            self._wanted.clear()

    def close(self) -> None:
        """Close permanently; waiting callers raise ClosedError. Works in any thread, and in a signal handler."""
        self.is_closed = True
        self.call_soon(self.wake)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Make a call in the event loop in which callers may wait, even if it sleeps; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # It was closed, and those who waited in it are dead.
                self._loop.call_soon_threadsafe(call)

    def refuse_if_closed(self) -> None:
        """Raise ClosedError if the gate is closed."""
        if self.is_closed:
            raise errors.ClosedError(f"buffer is closed: only {self._still_there} still works")

    def can_insert(self) -> bool:
        """Return whether one step may be inserted now; raise ClosedError if the gate is closed."""
        self.refuse_if_closed()
        return self._rules.can_insert() or self._is_more_wanted()

    def can_sample(self, batch_size: int, /) -> bool:
        """Return whether a batch may be drawn now; raise ClosedError if the gate is closed."""
        self.refuse_if_closed()
        return self._rules.can_sample(batch_size)

    def should_yield(self) -> bool:
        """Return whether so many awaited calls have begun that one should yield to other tasks."""
        return self._calls >= _CALLS_A_TURN

    async def give_way(self) -> None:
        """Yield to other tasks."""
        self._calls = 0
        await asyncio.sleep(0)

    def must_wait_to_insert(self, can_insert: bool) -> bool:
        """Return whether `wait_to_insert` has to be awaited before a step is inserted, given what `can_insert` said."""
        return not can_insert or bool(self._inserters.waiting) or self.should_yield()

    async def wait_to_insert(self) -> None:
        """Wait until one step may be inserted."""
        await self.give_way()
        await self._inserters.wait_for(self.can_insert)

    async def wait_to_sample(self, batch_size: int, is_there: Callable[[], bool] = _always) -> None:
        """Wait until a batch may be drawn and its extra condition holds.

        While only the extra condition is missing, batches behind it may pass, and inserts pass whatever the rules say,
        since otherwise the condition might never become true.
        """
        await self.give_way()
        may = False

        def is_ready() -> bool:
            nonlocal may
            may = self.can_sample(batch_size)
            if may and not is_there():
                self._inserters.notify(_CALLS_A_TURN)
                return False
            return may

        me = object()
        self._wanted[me] = batch_size, is_there
        try:
            await self._samplers.wait_for(is_ready, blocks=lambda: not may)
        finally:
            self._wanted.pop(me, None)

    def _is_more_wanted(self) -> bool:
        """Return whether the rules allow a waiting batch whose extra condition is missing."""
        return any(not is_there() and self._rules.can_sample(size) for size, is_there in self._wanted.values())

    def wake(self) -> None:
        """Let the first waiters of each queue check again; call this after every change of the counts.

        A batch makes room for many inserts, so several waiters are notified at once instead of one per pass through the
        event loop.
        """
        if self._samplers.waiting:
            self._samplers.notify()
        if self._inserters.waiting:
            self._inserters.notify(_CALLS_A_TURN)
