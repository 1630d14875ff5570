"""SyncWriter: a writer for actors with a plain loop, whose calls block.

plain loop       writer.add(...)   ──►   event loop in a thread of its own:  await writer.add(...)
                                   ◄──   the result, or the exception
"""

import asyncio
from collections.abc import Callable, Coroutine
import functools
import inspect
import threading
from typing import Any, Self

from relive import errors
from relive.common import duplicates
from relive.fleet import writer


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
    """

    _INSTEAD = "take another one of the fleet where it is needed"

    def __init__(self, inside: writer.Writer) -> None:
        super().__init__(inside, self._run)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Flush, release the lease, and end the thread. Closing twice has no effect."""
        if self._thread.is_alive():
            try:
                self._run(self._inside.close())
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        """Run the event loop until it is stopped; then cancel what is left."""
        with self._runner:
            self._loop.run_forever()

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
