"""SyncWriter: a writer for actors with a plain loop, whose calls block.

    plain loop       writer.add(...)   ──►   event loop in a thread:  await writer.add(...)
                                       ◄──   the result, or the exception

Each writer has a thread of its own, and with it its own client of the fleet.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent import futures
import functools
import inspect
import threading
from typing import Any, Self

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
            return _Blocking(result, self._wait) if hasattr(result, "__aenter__") else result

        return call


class SyncWriter(duplicates.NeverCopied, _Blocking):
    """A writer of a fleet with blocking calls; returned by `ShardedReplay.sync_writer`.

    It has the methods of the awaited writer, with the same arguments and results. What is used with `async with` there,
    such as `episode`, is used with `with` here.

    Args:
        make: Returns the awaited writer; called in the thread of the event loop.
    """

    _INSTEAD = "take another one of the fleet where it is needed"

    def __init__(self, make: Callable[[], Any]) -> None:
        started: futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Any]] = futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(_serve(make, started)), daemon=True)
        self._thread.start()
        self._loop, self._over, inside = started.result()
        super().__init__(inside, self._run)

    def close(self) -> None:
        """Flush, release the lease, and end the thread. Closing twice has no effect."""
        if self._thread.is_alive():
            try:
                self._run(self._inside.close())
            finally:
                self._loop.call_soon_threadsafe(self._over.set)
                self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a coroutine, run in the thread; it is cancelled if the wait is interrupted."""
        if not self._thread.is_alive():
            work.close()
            raise errors.ClosedError("writer is closed: take a new one from the fleet's sync_writer()")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _serve(
    make: Callable[[], Any], started: futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Any]]
) -> None:
    """Make a writer, and keep the event loop running until it is over."""
    over = asyncio.Event()
    try:
        started.set_result((asyncio.get_running_loop(), over, make()))
    except BaseException as error:
        started.set_exception(error)
    else:
        await over.wait()
