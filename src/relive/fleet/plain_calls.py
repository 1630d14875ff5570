"""SyncReplay and SyncWriter: a client and a writer of a fleet for plain loops, whose calls block.

plain loop       writer.add(...)   ──►   event loop in a thread of its own:  await writer.add(...)
                                   ◄──   the result, or the exception
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
import functools
import inspect
import threading
from typing import Any, ClassVar, Self

from relive import errors
from relive.common import duplicates


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
            if inspect.isasyncgen(result):
                return self._iterated(result)
            return _Blocking(result, self._wait) if hasattr(result, "__aenter__") else result

        return call

    def _iterated(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        """Yield what a generator yields. Without a caller, asyncio closes it in its loop."""

        async def following() -> Any:
            return await anext(items)

        while True:
            yield self._wait(following())


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
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close what is inside, and end the thread. Closing twice has no effect."""
        self._require_plain()
        if self._thread.is_alive():
            try:
                self._run(self._inside.close())
            finally:
                self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        """Run the event loop until it is stopped; then cancel what is left."""
        with self._runner:
            self._loop.run_forever()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a coroutine, run in the thread; it is cancelled if the wait is interrupted."""
        try:
            self._require_plain()
            if not self._thread.is_alive():
                raise errors.ClosedError(f"{self._NAME} is closed: take a new one from the fleet's {self._SOURCE}()")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except errors.ReplayError:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

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
        ClosedError: The client was closed.
    """

    _NAME, _SOURCE = "client", "sync"

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._stop()
