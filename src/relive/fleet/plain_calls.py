"""SyncReplay and SyncWriter: a client and a writer of a fleet for plain loops, whose calls block.

plain loop       writer.add(...)   ──►   event loop in a thread of its own:  await writer.add(...)
                                   ◄──   the result, or the exception
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent import futures
import contextlib
import functools
import inspect
import threading
from typing import Any, ClassVar, Self

from relive import errors
from relive.buffers import prefetch
from relive.common import duplicates
from relive.fleet import timing


class _Blocking:
    """An object with blocking calls, used with `with`, for one with awaited calls, used with `async with`."""

    def __init__(self, inside: Any, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._inside, self._wait = inside, wait

    def __enter__(self) -> Any:
        return _Blocking(self._wait(self._inside.__aenter__()), self._wait)

    def __exit__(self, *exception: Any) -> Any:
        return self._wait(self._inside.__aexit__(*exception))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the object inside, which blocks if it is awaited there."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        attribute = getattr(self._inside, name)
        if not callable(attribute):
            return attribute

        @functools.wraps(attribute)
        def call(*arguments: Any, **named: Any) -> Any:
            result = attribute(*arguments, **named)
            if inspect.iscoroutine(result):
                return self._wait(result)
            if hasattr(result, "__anext__"):
                return _Iterator(result, self._wait)
            return _Blocking(result, self._wait) if hasattr(result, "__aenter__") else result

        return call


class _Iterator(duplicates.NeverCopied):
    """An iterator over what an asynchronous one returns, which threads may share, and any of them may close."""

    _INSTEAD = prefetch.INSTEAD

    def __init__(self, items: Any, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._items, self._wait = items, wait

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next item; raise StopIteration if the iterator was closed, or is closed while waiting."""
        try:
            return self._wait(self._items.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """End the iteration, also of each `next` that waits."""
        with contextlib.suppress(errors.ClosedError):
            self._wait(self._items.aclose())


class _Threaded(duplicates.NeverCopied, _Blocking):
    """Something with blocking calls, which are awaited in the event loop of a thread of its own."""

    _INSTEAD = "take another one of the fleet where it is needed"
    _NAME: ClassVar[str]
    _SOURCE: ClassVar[str]
    """The call of the fleet that returns another one."""

    def __init__(self, inside: Any) -> None:
        super().__init__(inside, self._run)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._lock, self._has_ended = threading.RLock(), False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close what is inside, and end the thread: calls under way in other threads raise ClosedError.

        Closing twice has no effect.
        """
        self._require_plain()
        try:
            self._run(self._inside.close())
        except errors.ClosedError:
            if not self._is_over:
                raise
        finally:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop(self) -> None:
        """End the thread, if it has not ended."""
        if self._thread.is_alive():
            with self._lock:
                if not self._has_ended:
                    self._loop.call_soon_threadsafe(self._loop.stop)
                self._has_ended = True
            self._thread.join()

    def _serve(self) -> None:
        """Run the event loop until it is stopped; then cancel what is left."""
        with self._runner:
            self._loop.run_forever()
            self._runner.run(_cancel_others())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a coroutine, run in the thread; it is cancelled if the wait is interrupted."""
        try:
            self._require_plain()
            self._refuse_if_over()
            with self._lock:  # What is begun before the thread is ended is cancelled by it.
                self._refuse_if_over()
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except errors.ReplayError:
            work.close()
            raise
        try:
            return future.result()
        except futures.CancelledError:
            raise self._closed() from None
        except BaseException:
            future.cancel()
            raise

    @property
    def _is_over(self) -> bool:
        return self._has_ended or not self._thread.is_alive()  # A fork has none.

    def _refuse_if_over(self) -> None:
        if self._is_over:
            raise self._closed()

    def _closed(self) -> errors.ClosedError:
        return errors.ClosedError(f"{self._NAME} is closed: take a new one from the fleet's {self._SOURCE}()")

    def _require_plain(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise errors.EventLoopError(
                f"{self._NAME} would block the event loop that is running: await the same call of the fleet"
            )


class SyncWriter(_Threaded):
    """A writer of a fleet with blocking calls; returned by `ShardedReplay.sync_writer`.

    It has the methods of the awaited writer, with the same arguments and results. What is used with `async with` there,
    such as `episode`, is used with `with` here. `close` flushes, releases the lease, and ends its thread.
    """

    _NAME, _SOURCE = "writer", "sync_writer"


class SyncReplay(_Threaded):
    """A client of a fleet with blocking calls; returned by `ShardedReplay.sync`.

    It has the methods of ShardedReplay, with the same arguments and results; `batches` is iterated with a plain `for`,
    and a writer is used with `with`. Threads may share it. `with replay.sync() as client:` ends its thread with the
    block, and leaves the fleet running; `close` shuts the fleet down for every client.

    Raises:
        EventLoopError: A call was made where an event loop is running, which it would block.
        ClosedError: The client was closed, or its block was left, perhaps by another thread while the call waited.
    """

    _NAME, _SOURCE = "client", "sync"

    def __exit__(self, *_: object) -> None:
        self._stop()


async def _cancel_others() -> None:
    """Cancel all other tasks of the event loop, and wait a little for what they begin then, such as giving turns back.

    A turn that is still to come is not waited for: it is that of a client that is gone.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if begun := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(begun, timeout=timing.PATIENCE)
