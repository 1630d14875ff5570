"""Prefetching: a thread gathers the rows of the next batches while the learner works on the current one.

    next() number i     the learner's thread      draws batch i + prefetch, returns batch i
                        the iterator's thread     gathers the rows of one batch after another

The contents of a batch are decided by the draw, in the learner's thread, so results do not depend on timing. Invariant:
no row is written while a batch is being gathered. Writers wait for pending gathers first.
"""

import collections
from collections.abc import Callable
from concurrent import futures
import os
import threading
from typing import Generic, TypeVar

from relive import errors
from relive.common import duplicates
from relive.common import validation

Batch = TypeVar("Batch")

INSTEAD = "call `batches` again where they are needed"
"""What to do instead of copying an iterator of batches."""


class PendingReads:
    """The gathers of one buffer that may be in progress.

    Attributes:
        ends: One event for each of them, and for some that have ended. If empty, there is nothing to wait for.
    """

    def __init__(self) -> None:
        self.ends: list[threading.Event] = []
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        # A copy of the buffer has no gathers yet.
        return {"ends": [], "_process": os.getpid()}

    def begin(self, executor: futures.Executor, gather: Callable[[], Batch]) -> futures.Future[Batch]:
        """Submit `gather` to the executor, and return its future."""
        self._leave_other_processes()
        end = threading.Event()

        def run() -> Batch:
            try:
                return gather()
            finally:
                end.set()

        self.ends = [earlier for earlier in self.ends if not earlier.is_set()]
        future = executor.submit(run)
        self.ends.append(end)
        return future

    def finish(self) -> None:
        """Wait until no gather is in progress; threads of another process do not count."""
        self._leave_other_processes()
        for end in self.ends:
            end.wait()
        self.ends.clear()

    def _leave_other_processes(self) -> None:
        """Forget the gathers of the parent process, whose threads do not exist here."""
        if os.getpid() != self._process:
            self._process, self.ends = os.getpid(), []


class Batches(duplicates.NeverCopied, Generic[Batch]):
    """An endless iterator of batches, of which up to `prefetch` are drawn ahead; `ColumnReplayBuffer.batches` makes it.

    It must be used in the thread that writes to the buffer, but any thread may close it. It cannot be copied, and a
    forked process cannot use it unless `prefetch` is 0.

    Args:
        draw: Draws one batch, and returns the function that gathers its rows.
        gathers: The pending gathers of the buffer that `draw` draws from.
        prefetch: Number of batches drawn ahead; 0 for none, without a thread.

    Attributes:
        is_closed: Whether the iteration has ended.

    Raises:
        ArgumentError: prefetch is not an integer of at least 0.
    """

    _INSTEAD = INSTEAD

    def __init__(self, draw: Callable[[], Callable[[], Batch]], gathers: PendingReads, prefetch: int) -> None:
        self._prefetch = validation.non_negative_int("prefetch", prefetch)
        self._draw = draw
        self._gathers = gathers
        self._executor = futures.ThreadPoolExecutor(1, "relive gather")
        self._pending: collections.deque[futures.Future[Batch]] = collections.deque()
        self.is_closed = False
        self._process = os.getpid()

    def __iter__(self) -> "Batches[Batch]":
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch, after drawing as many ahead as possible.

        Raises:
            NotReadyError: No batch was drawn ahead, and none can be drawn now. The next call tries again.
            StopIteration: The iterator was closed, or is closed while waiting.
            ArgumentError: This process was forked from the one that the iterator and its thread belong to.
        """
        if self.is_closed:
            raise StopIteration
        if not self._prefetch:
            return self._draw()()
        if os.getpid() != self._process:
            raise errors.ArgumentError(f"batches belong to process {self._process}, of which this is a fork: {INSTEAD}")
        try:
            self._draw_ahead()
            self._pending[0].exception()  # An interrupt while waiting loses no batch.
            if not self.is_closed:
                return self._pending.popleft().result()
        except Exception:
            if not self.is_closed:
                raise
        raise StopIteration  # It was closed meanwhile: what was pending, or was to be, is gone.

    def _draw_ahead(self) -> None:
        """Draw until `prefetch` batches are pending besides the next one."""
        while len(self._pending) <= self._prefetch:
            try:
                gather = self._draw()
            except errors.NotReadyError:
                if not self._pending:
                    raise
                return
            self._pending.append(self._gathers.begin(self._executor, gather))

    def close(self) -> None:
        """Discard the prefetched batches, wait for their thread, and end the iteration, also of a `next` that waits."""
        self.is_closed = True
        self._pending.clear()
        self._executor.shutdown()
