"""DeliveryWaiters: the coroutines that wait for tickets, episodes or groups of one buffer."""

import asyncio
from collections.abc import Callable
import contextlib
from typing import Self

from relive.limits import gate as gate_lib

_STARTS_A_TURN = 32


class DeliveryWaiters:
    """The coroutines waiting for tickets, episodes or groups of one buffer.

    Attributes:
        wakes: How often any of them had a reason to check again.
    """

    def __init__(self) -> None:
        self.wakes = 0
        self.starts = gate_lib.FairCondition()
        self.episodes = gate_lib.FairCondition()
        self.groups = gate_lib.FairCondition()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Return how to make a copy, without waiters."""
        return type(self), ()

    async def wait_for(
        self,
        condition: gate_lib.FairCondition,
        ready: Callable[[], bool],
        due: Callable[[], float | None],
        waiter: object = None,
        *,
        lets_pass: bool = False,
    ) -> None:
        """Wait until it is the caller's turn and `ready()` returns True; see FairCondition. Always yields first.

        One that lets others pass does so whenever it is not ready.
        """
        self._loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        await condition.wait_for(ready, blocks=lambda: not lets_pass, waiter=waiter, due=due)

    def wake(self) -> None:
        """Let the first waiters of each condition check again."""
        self.wake_starts()
        self.wake_learner()

    def wake_learner(self) -> None:
        """Let the first waiters for episodes or groups check again."""
        self.wakes += 1
        self.episodes.notify()
        self.groups.notify()

    def wake_starts(self) -> None:
        """Let the first waiters for a ticket check again."""
        self.wakes += 1
        self.starts.notify(_STARTS_A_TURN)

    def wake_starts_soon(self) -> None:
        """Schedule `wake_starts` in the event loop, from any thread."""
        if self._loop is not None and self.starts.waiting:
            with contextlib.suppress(RuntimeError):  # It is closed.
                self._loop.call_soon_threadsafe(self.wake_starts)
