"""ThreadSafeReplayBuffer: a thread-safe wrapper of a buffer.

    actor threads      ThreadSafeReplayBuffer                       learner threads
    add(...)     ────►   one lock around everything         ◄────   sample(...)
                         buffer inside: may it? do it at once
                         if not: wait for the next change

Invariant: every call of the wrapped buffer is made under the lock, from the check whether it may proceed to the last
row copied. So no thread sees a half-written row, and a waiting call has changed nothing yet.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import inspect
import math
import os
import threading
import time
from typing import Any, Generic, NoReturn, Self, TypeVar, overload
import weakref

from relive import errors
from relive.buffers import column
from relive.buffers import prefetch
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.common import validation
from relive.persistence import checkpointable
from relive.persistence import state as state_lib
from relive.waiting import _shell

Batch = TypeVar("Batch")
Answer = TypeVar("Answer")
_MOST_WAITED = 0.1
"""Seconds."""


class SharedBatches(duplicates.NeverCopied, Generic[Batch]):
    """An endless iterator of batches that threads may share; `ThreadSafeReplayBuffer.batches` makes it.

    Args:
        draw: Blocks until the next batch and returns it.
        close: Closes the underlying iterator.
    """

    _INSTEAD = prefetch.INSTEAD

    def __init__(self, draw: Callable[[], Batch], close: Callable[[], None]) -> None:
        self._draw = draw
        self._close = close

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch; waits and raises like `sample`. After NotReadyError, the next call tries again.

        Raises:
            StopIteration: The iterator was closed, or is closed while waiting.
        """
        return self._draw()

    def close(self) -> None:
        """Discard the prefetched batches, wait for their thread, and end the iteration, also of each `next` that waits.

        The buffer stays open.
        """
        self._close()


def _inserting(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return the method that blocks until `method` of the wrapped buffer may be called, and calls it."""

    @_shell.inserting("ThreadSafeReplayBuffer", method)
    def insert(self: "ThreadSafeReplayBuffer[Any]", /, *values: Any, **fields: Any) -> Answer:
        may = getattr(self._buffer, "can_insert", None)  # A rollout has none: it never waits.
        make: Callable[[], Answer] = functools.partial(getattr(self._buffer, method.__name__), *values, **fields)
        return self._when_ready(make, may)

    return insert


class ThreadSafeReplayBuffer(duplicates.NeverCopied, _shell.Shell[Batch]):
    """A thread-safe wrapper that shares a buffer between threads.

    It has the methods of the wrapped buffer, with the same arguments and results, but for `attach`, `detach`,
    `can_insert`, `can_sample` and `rng`, for which there is `locked`. `add` and the other calls that add steps
    block while the limiter holds inserts back. `sample`, `sample_keys` and `next` of `batches` block until a batch
    is available: something is eligible, the limiter allows it, a priority is not 0, and max_times_sampled leaves
    enough draws. All other calls wait only for the lock.

    Further methods of other buffers are available too. What such a buffer has as a plain call with the suffix
    `_nowait` blocks under the name without it: `sample_n_step`, `next_episodes`, `admit` and so on.

    There is a single lock, so rows are never torn and threads add no speed. Waiting calls are woken by each change and
    check again, in no particular order. A call interrupted by Ctrl-C while it waits changes nothing. Do not modify the
    arguments of a call until it returns.

    It cannot be copied, but the wrapped buffer can, in a `locked` block. A forked process has an independent copy,
    unless another thread was in the middle of a call during the fork: then every call there raises ClosedError.

    Args:
        buffer: The wrapped buffer, of any class. Do not use it directly, except in a `locked` block.
        timeout: Maximum wait of a call in seconds, after which it raises NotReadyError; None for no limit.

    Raises:
        ArgumentTypeError: `buffer` is not a buffer, or `timeout` not a number.
        ArgumentError: `timeout` is negative, infinite or NaN.

    >>> import threading
    >>> import relive
    >>> buffer = relive.ThreadSafeReplayBuffer(relive.RingReplayBuffer(1_000, limiter=relive.MinSize(50), seed=0))
    >>> def act():
    ...     for t in range(100):
    ...         buffer.add(float(t), 0, reward=1.0, next_observation=t + 1.0, terminated=t == 99)
    >>> actor = threading.Thread(target=act)
    >>> actor.start()
    >>> float(buffer.sample(batch_size=32).reward.sum())
    32.0
    >>> actor.join()
    """

    _INSTEAD = "copy the buffer inside, in a block of `locked`"

    @overload
    def __init__(self, buffer: _shell.Sharable[Batch], *, timeout: float | None = None) -> None: ...

    @overload
    def __init__(
        self: "ThreadSafeReplayBuffer[Any]", buffer: checkpointable.Checkpointable, *, timeout: float | None = None
    ) -> None: ...

    def __init__(self, buffer: Any, *, timeout: float | None = None) -> None:
        if not isinstance(buffer, checkpointable.Checkpointable):
            raise errors.ArgumentTypeError(f"buffer must be a replay buffer, got {validation.short_repr(buffer)}")
        super().__init__(buffer)
        self._timeout = None if timeout is None else validation.non_negative_float("timeout", timeout)
        self._changed = threading.Condition()
        self._is_closed = False
        _SHELLS.add(self)

    # Blocking calls.

    add = _inserting(column.ColumnReplayBuffer.add)
    extend = _inserting(column.ColumnReplayBuffer.extend)
    add_episode = _inserting(column.ColumnReplayBuffer.add_episode)
    add_episodes = _inserting(column.ColumnReplayBuffer.add_episodes)
    add_steps = _inserting(column.ColumnReplayBuffer.add_steps)

    def sample(self, batch_size: int, **options: Any) -> Batch:
        """Return exactly batch_size windows, drawn with replacement; waits until that is possible.

        Args:
            batch_size: The batch size, B.
            options: Further arguments of the wrapped buffer's `sample`: `beta`, and for transitions `n_step`, `gamma`.

        Raises:
            ArgumentError: An argument is invalid, or the limiter could never allow such a batch.
            NotReadyError: No batch was available before the timeout; the message says what is missing.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        answer: Batch = self._draw(batch_size, lambda: self._buffer.sample(batch_size, **options))
        return answer

    def sample_keys(self, batch_size: int) -> arrays_lib.Keys:
        """Draw as `sample` does and return only the keys [B]; `read` returns their windows.

        Waits and raises like `sample`. Another thread may overwrite the steps before `read` is called, unless both
        calls are in a `locked` block.
        """
        return self._draw(batch_size, lambda: self._buffer.sample_keys(batch_size))

    def batches(self, batch_size: int, **options: Any) -> SharedBatches[Batch]:
        """Return an endless iterator of batches as from `sample`, prefetched in a thread; see `batches` of the buffer.

        Each `next` holds the lock while it draws and until its batch is gathered. If no batch was prefetched and none
        can be drawn, it waits as `sample` does.

        Args:
            batch_size: Number of windows in a batch, B.
            options: As in `sample`; and `prefetch`, the number of batches drawn ahead.

        Raises:
            ArgumentError: An argument is invalid, or the limiter could never allow such a batch.
        """
        with self._changed:
            inside = self._buffer.batches(batch_size, **options)

        def may() -> bool:
            return inside.is_closed or self._buffer.can_sample(batch_size)

        return SharedBatches(lambda: self._when_ready(inside.__next__, may), lambda: self._change(inside.close))

    def _draw(self, batch_size: int, draw: Callable[[], Answer]) -> Answer:
        return self._when_ready(draw, lambda: self._buffer.can_sample(batch_size))

    def _when_ready(self, call: Callable[[], Answer], may: Callable[[], bool] | None = None) -> Answer:
        """Make a call, which may raise NotReadyError, until it does not; invalid arguments raise before it waits.

        Args:
            call: The call.
            may: Asked after every change whether its turn has come; it is made once more, then. If None, it is tried
                after every change, and now and then, as a group times out and a ticket is lost without one.
        """
        end = math.inf if self._timeout is None else time.monotonic() + self._timeout
        is_turn = False
        with self._changed:
            while True:
                self._refuse_if_closed()
                if is_turn:
                    return self._change(lambda: self._decided(True, call))
                try:
                    return self._change(call)
                except errors.NotReadyError as error:
                    left = min(end - time.monotonic(), threading.TIMEOUT_MAX)
                    if left <= 0:
                        raise errors.NotReadyError(f"{error} (waited {self._timeout:g} s)") from None
                if may is None:
                    self._changed.wait(min(left, _MOST_WAITED))
                else:
                    is_turn = self._changed.wait_for(lambda: self._is_over or may(), left)

    def __getattr__(self, name: str) -> Any:
        """Return a method of the wrapped buffer that the wrapper does not have, blocking if it has a form that is."""
        if not name.startswith("_"):
            if name in ("episode", "episode_nowait"):  # The calls of its writer would not take the lock.
                raise AttributeError(f"{name} is not for threads: use start_episode and end_episode")
            if hasattr(type(self._buffer), f"{name}_nowait"):
                return functools.partial(self._until_ready, getattr(self._buffer, f"{name}_nowait"))
            if inspect.iscoroutinefunction(getattr(type(self._buffer), name, None)):
                raise AttributeError(f"{name} of a {type(self._buffer).__name__} is awaited, and not for threads")
        return super().__getattr__(name)

    def _until_ready(self, method: Callable[..., Answer], *values: Any, **named: Any) -> Answer:
        """Make a call of a method of episodes, whose turn cannot be asked for."""

        def call() -> Answer:
            try:
                return method(*values, **named)
            except errors.NotReadyError:
                if method.__name__ == "admit_nowait":
                    method.__self__._queue.ledger().places.warn_of_self()  # type: ignore[attr-defined]
                raise

        return self._when_ready(call)

    def _look(self, call: Callable[[], Answer]) -> Answer:
        with self._changed:
            return call()

    def _change(self, call: Callable[[], Answer]) -> Answer:
        with self._changed:
            answer = call()
            self._changed.notify_all()
            return answer

    @property
    def _is_over(self) -> bool:
        """Whether nothing is worth waiting for: the buffer is closed, or the one inside, if that can be."""
        own = getattr(self._buffer, "_gate", None)
        return self._is_closed or (own is not None and own.is_closed)

    def _refuse_if_closed(self) -> None:
        if self._is_over:
            raise errors.ClosedError(f"buffer is closed: only the {type(self._buffer).__name__} inside still works")

    # Calls that wait only for the lock.

    @contextlib.contextmanager
    def locked(self) -> Iterator[Any]:
        """Hold the lock for a `with` block, and yield the wrapped buffer.

        Use it for attributes that the wrapper does not have, such as `rng`, and for calls that must be atomic
        together. Calls of the wrapped buffer do not wait: they raise NotReadyError.
        """
        with self._changed:
            try:
                yield self._buffer
            finally:
                self._changed.notify_all()

    def save(self, path: str | os.PathLike[str], *, keep: int = 1, progress: state_lib.Progress | None = None) -> None:
        """Save the wrapped buffer while all other threads wait; see ColumnReplayBuffer.save.

        Load it with `ThreadSafeReplayBuffer(RingReplayBuffer.load(path))`, or the class that was wrapped. To avoid
        blocking other threads while writing, take a copy with `state_dict` instead, if there is enough memory.
        """
        with self._changed:
            self._buffer.save(path, keep=keep, progress=progress)

    def close(self) -> None:
        """Close the buffer: blocking calls that wait now, or are made later, raise ClosedError.

        Other calls and the wrapped buffer keep working. Closing twice has no effect.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _begin_in_a_fork(self) -> None:
        if self._changed.acquire(blocking=False):
            self._changed.release()
        else:
            self._changed = _LeftBehind()


class _LeftBehind(threading.Condition):
    """The lock of a buffer in a forked process, where the thread that held it does not exist."""

    def __enter__(self) -> NoReturn:
        raise errors.ClosedError(
            "buffer cannot go on in this fork, made while another thread was in the middle of a call: "
            "fork while none is, or load a checkpoint"
        )


_SHELLS: "weakref.WeakSet[ThreadSafeReplayBuffer[Any]]" = weakref.WeakSet()
_begin_in_a_fork = duplicates.tell_forks(_SHELLS, ThreadSafeReplayBuffer._begin_in_a_fork)
