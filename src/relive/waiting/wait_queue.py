"""A queue of coroutines that wait until something may happen.

Deciding is not done here: a waiter brings its question, `ready()`. Whoever changes what the answer depends on calls
`wake()`. Three promises:

- First come, first served: while somebody waits, a newcomer waits behind.
- Nothing is awaited between a True answer and the return to the caller, who takes at once.
- A waiter that leaves, with its turn, by cancellation, or because `ready()` raised, wakes the next one: a wake-up is
  never lost, and an answer that raises reaches everybody.
"""

import asyncio
import collections
from collections.abc import Callable
import itertools


class WaitQueue:
    """Coroutines in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: collections.OrderedDict[object, asyncio.Future[None]] = collections.OrderedDict()
        """Who waits, in order; falsy when nobody does."""

    async def until(self, ready: Callable[[], bool]) -> None:
        """Returns when it is this caller's turn and `ready()` answers True; what `ready` raises comes out here."""
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
            self.wake()

    def wake(self, most: int = 1) -> None:
        """Lets the first `most` waiters ask again, in order; one whose event loop was closed under it is dropped."""
        for waiter, future in list(itertools.islice(self.waiting.items(), most)):
            if future.get_loop().is_closed():
                del self.waiting[waiter]
                self.wake()
            elif not future.done():
                future.set_result(None)
