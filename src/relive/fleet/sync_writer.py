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
from typing import Any, Self, TypeAlias

from relive import errors
from relive.common import duplicates

Wait: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
"""Returns the result of a coroutine."""


class SyncWriter(duplicates.NeverCopied):
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
        self._loop, self._over, self._writer = started.result()

    def close(self) -> None:
        """Flush, release the lease, and end the thread. Closing twice has no effect."""
        if self._thread.is_alive():
            try:
                self._wait(self._writer.close())
            finally:
                self._loop.call_soon_threadsafe(self._over.set)
                self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the awaited writer, which blocks if it is awaited there."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return _blocking(getattr(self._writer, name), self._wait)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
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


class _SyncContext:
    """An object that is used with `with` and has blocking calls, for one with `async with` and awaited calls."""

    def __init__(self, inside: Any, wait: Wait) -> None:
        self._inside, self._wait = inside, wait

    def __enter__(self) -> Any:
        return _SyncContext(self._wait(self._inside.__aenter__()), self._wait)

    def __exit__(self, *exception: Any) -> Any:
        return self._wait(self._inside.__aexit__(*exception))

    def __getattr__(self, name: str) -> Any:
        return _blocking(getattr(self._inside, name), self._wait)


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


def _blocking(attribute: Any, wait: Wait) -> Any:
    """Return an attribute, which blocks if it is awaited."""
    if not callable(attribute):
        return attribute

    @functools.wraps(attribute)
    def call(*arguments: Any, **named: Any) -> Any:
        result = attribute(*arguments, **named)
        if inspect.iscoroutine(result):
            return wait(result)
        return _SyncContext(result, wait) if hasattr(result, "__aenter__") else result

    return call
