"""Where those wait who want to start an episode, and the learner that wants the next ones: each in its own queue.

It is like the gate: whoever waits asks again when something has happened, and takes at once what it is granted. But
here time alone may change the answer, when a group falls due: then a timer rings. It is set only while somebody waits.
"""

import asyncio
from collections.abc import Callable
import contextlib
import time

from relive.waiting import gate as gate_lib
from relive.waiting import wait_queue

_STARTS_A_TURN = 32


class HandOutQueues:
    """Those of one buffer.

    Args:
        gate: What knows whether the buffer is closed.
        due: Answers when time alone will change an answer, by the monotonic clock; None if it will not.
    """

    def __init__(self, gate: gate_lib.Gate, due: Callable[[], float | None]) -> None:
        self.starts = wait_queue.WaitQueue()
        self.episodes = wait_queue.WaitQueue()
        self.groups = wait_queue.WaitQueue()
        self._gate = gate
        self._due = due
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def until(self, queue: wait_queue.WaitQueue, ready: Callable[[], bool]) -> None:
        """Returns when it is the caller's turn in one of the queues and `ready()` answers True.

        It lets the other tasks run first, also where it need not wait.

        Raises:
            ClosedError: The buffer is closed.
        """
        await asyncio.sleep(0)
        self._loop = asyncio.get_running_loop()

        def asked() -> bool:
            self._gate.refuse_if_closed()
            if ready():
                return True
            self._set_timer()
            return False

        try:
            await queue.until(asked)
        finally:
            if self._timer is not None and not self._does_time_matter():
                self._timer.cancel()
                self._timer = None

    def started(self) -> None:
        """Hears that an episode has started: there may be another time to wait for."""
        if self._does_time_matter():
            self._set_timer()

    def wake(self) -> None:
        """Lets the first of each queue ask again."""
        self.wake_starts()
        self.wake_learner()

    def wake_learner(self) -> None:
        """Lets the first of those ask again who want the next episodes or groups."""
        self.episodes.wake()
        self.groups.wake()

    def wake_starts(self) -> None:
        """Lets the first of those ask again who want to start an episode."""
        self.starts.wake(_STARTS_A_TURN)

    def wake_starts_soon(self) -> None:
        """Does the same from any thread, in the event loop, if somebody waits there."""
        if self._loop is not None and self.starts.waiting:
            with contextlib.suppress(RuntimeError):  # It is closed.
                self._loop.call_soon_threadsafe(self.wake_starts)

    def _does_time_matter(self) -> bool:
        """Answers whether somebody waits for what may fall due."""
        return bool(self.starts.waiting or self.groups.waiting)

    def _set_timer(self) -> None:
        """Has the next time rung, if there is one. It only gets later: who starts now falls due last."""
        due = self._due() if self._timer is None else None
        if due is not None and self._loop is not None and not self._loop.is_closed():
            self._timer = self._loop.call_later(max(due - time.monotonic(), 0), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.wake()
