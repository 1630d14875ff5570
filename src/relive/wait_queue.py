"""A queue of coroutines that wait until something may happen.

Deciding is not done here: a waiter brings its question, `ready()`. Whoever changes what the answer depends on calls
`wake()`. Three promises:

- First come, first served: while somebody waits, a newcomer waits behind.
- Nothing is awaited between a True answer and the return to the caller, who takes at once.
- A waiter that is cancelled leaves the queue as if it had never been there, and passes a wake-up on.
"""

import asyncio
import collections
from collections.abc import Callable


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
                if ready():
                    return
        finally:
            del self.waiting[me]
            self.wake()

    def wake(self) -> None:
        """Lets the first waiter ask again."""
        if self.waiting:
            future = next(iter(self.waiting.values()))
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """Lets every waiter ask again, whoever's turn it is: for an answer that raises."""
        for future in self.waiting.values():
            if not future.done():
                future.set_result(None)
