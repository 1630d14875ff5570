"""AsyncReplayBuffer: an asyncio wrapper of a buffer.

    actor coroutines         AsyncReplayBuffer                      learner coroutine
    await add(...)     ────►   gate: wait until it may     ◄────    await sample(...)
                               buffer inside: do it at once

Invariant: deciding and waiting are separate. An awaited call waits until it may proceed, then makes the plain call of
the wrapped buffer, which does not ask again, without awaiting in between. So a cancelled call has either happened
completely or not at all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
import contextlib
import os
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from relive import errors
from relive.buffers import column
from relive.buffers import prefetch
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.common import duplicates
from relive.common import imports
from relive.common import validation
from relive.limits import gate
from relive.persistence import checkpointable
from relive.persistence import state as state_lib
from relive.schema import casting
from relive.waiting import _shell

if TYPE_CHECKING:
    from relive.persistence import checkpoint
else:
    checkpoint = imports.lazy_module("relive.persistence.checkpoint")

Batch = TypeVar("Batch")
Answer = TypeVar("Answer")


class AsyncBatches(duplicates.NeverCopied, Generic[Batch]):
    """An endless asynchronous iterator of batches; `AsyncReplayBuffer.batches` makes it.

    Args:
        draw: Awaited to draw one batch.
    """

    _INSTEAD = prefetch.INSTEAD

    def __init__(self, draw: Callable[[], Awaitable[Batch]]) -> None:
        self._draw = draw

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Batch:
        """Return the next batch; waits and raises like `sample`."""
        return await self._draw()


def _inserting(method: Callable[..., Answer]) -> Callable[..., Coroutine[Any, Any, Answer]]:
    """Return the coroutine that waits for the turn of `method` of the wrapped buffer, and calls it."""

    @_shell.inserting("AsyncReplayBuffer", method)
    async def insert(self: "AsyncReplayBuffer[Any]", /, *values: Any, **fields: Any) -> Answer:
        return await self._insert(getattr(self._buffer, method.__name__), values, fields)

    return insert


class AsyncReplayBuffer(duplicates.CopiedWhole, _shell.Shell[Batch]):
    """An asyncio wrapper that shares a buffer between the tasks of an event loop.

    It has the methods of the wrapped buffer, with the same arguments and results, but for `attach`, `detach`,
    `can_insert`, `can_sample` and `rng`, which `buffer` has. `add`, `extend`, `add_episode`, `add_episodes` and
    `add_steps` are coroutines that wait while the limiter holds inserts back. `sample` and `sample_keys` are
    coroutines that wait until a batch is available: something is eligible, the limiter allows it, a priority is not
    0, and max_times_sampled leaves enough draws; the same holds for `async for` over `batches`. `save` is a
    coroutine that writes in a thread. All other methods are plain calls and never wait.

    Arrays are copied when an insert is called. With a journal that must be synced, it returns once its record is on
    disk; concurrent calls share one sync. If the sync fails, or the call is cancelled meanwhile, the step stays stored.

    Inserts and samples wait in separate queues, first come, first served. A cancelled call has either happened
    completely or not at all. Every draw, and one in 32 inserts, yields to other tasks first.

    Use one wrapper per buffer, in one running event loop at a time. It has no locks; for threads, use
    ThreadSafeReplayBuffer.

    Further methods of other buffers, such as those of a TokenReplayBuffer, are available as they are.

    Args:
        buffer: The wrapped buffer, of columns, joint steps, items or tokens. Changes made to it directly do not wake
            waiting callers. An EpisodeReplayBuffer needs no wrapper, and a RolloutBuffer has nothing to wait for.

    Raises:
        ArgumentTypeError: `buffer` is not such a buffer.

    >>> import asyncio
    >>> import relive
    >>> async def act(buffer):
    ...     for t in range(100):
    ...         await buffer.add(float(t), 0, reward=1.0, next_observation=t + 1.0, terminated=t == 99)
    >>> async def main():
    ...     buffer = relive.AsyncReplayBuffer(relive.RingReplayBuffer(1_000, limiter=relive.MinSize(50), seed=0))
    ...     async with asyncio.TaskGroup() as group:
    ...         learner = group.create_task(buffer.sample(batch_size=32))
    ...         group.create_task(act(buffer))
    ...     return learner.result().reward.sum()
    >>> float(asyncio.run(main()))
    32.0
    """

    def __init__(self, buffer: _shell.Sharable[Batch]) -> None:
        if not isinstance(buffer, checkpointable.Checkpointable) or not hasattr(buffer, "can_sample"):
            raise errors.ArgumentTypeError(
                "buffer must be a buffer that does not wait itself, such as a RingReplayBuffer, "
                f"got {validation.short_repr(buffer)}"
            )
        super().__init__(buffer)
        self._gate = gate.Gate(buffer, f"the {type(buffer).__name__} inside")

    # Coroutines.

    add = _inserting(column.ColumnReplayBuffer.add)
    extend = _inserting(column.ColumnReplayBuffer.extend)
    add_episode = _inserting(column.ColumnReplayBuffer.add_episode)
    add_episodes = _inserting(column.ColumnReplayBuffer.add_episodes)
    add_steps = _inserting(column.ColumnReplayBuffer.add_steps)

    async def sample(self, batch_size: int, **options: Any) -> Batch:
        """Return exactly batch_size windows, drawn with replacement; waits until that is possible.

        Args:
            batch_size: The batch size, B.
            options: Further arguments of the wrapped buffer's `sample`: `beta`, and for transitions `n_step`, `gamma`.

        Raises:
            ArgumentError: An argument is invalid, or the limiter could never allow such a batch.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        return await self._draw(batch_size, lambda: self._buffer.sample(batch_size, **options))

    async def sample_keys(self, batch_size: int) -> arrays_lib.Keys:
        """Draw as `sample` does and return only the keys [B]; `read` returns their windows.

        Waits and raises like `sample`.
        """
        return await self._draw(batch_size, lambda: self._buffer.sample_keys(batch_size))

    def batches(self, batch_size: int, **options: Any) -> AsyncBatches[Batch]:
        """Return an endless asynchronous iterator of batches as from `sample`, for `async for`.

        Each batch is drawn when requested, none ahead. A cancelled iteration draws nothing, and the iterator stays
        usable.

        Args:
            batch_size: Number of windows in a batch, B.
            options: As in `sample`.

        Raises:
            ArgumentError: An argument is invalid, or the limiter could never allow such a batch.
        """
        draws = self._buffer.batches(batch_size, prefetch=0, **options)
        return AsyncBatches(lambda: self._draw(batch_size, draws.__next__))

    async def _insert(
        self, insert: Callable[..., Answer], values: tuple[Any, ...], fields: Mapping[str, Any]
    ) -> Answer:
        """Wait for the turn of a call, and make it."""
        self._gate.bind_to_loop()
        can_insert = self._gate.can_insert()
        if self._gate.must_wait_to_insert(can_insert):
            if not can_insert:
                self._check(lambda: insert(*values, **fields))
            values, fields = tuple(map(_owned, values)), _owned(fields)
            await self._gate.wait_to_insert()
        journal = getattr(self._buffer, "_journal", None)
        with contextlib.nullcontext() if journal is None else journal.delayed_syncs():
            answer = self._decided(True, lambda: insert(*values, **fields))
        self._gate.wake()
        if journal is not None:
            await journal.synced()
        return answer

    async def _draw(self, batch_size: int, draw: Callable[[], Answer]) -> Answer:
        """Wait for the turn of a call, and make it."""
        self._gate.bind_to_loop()
        if not self._gate.can_sample(batch_size):
            self._check(draw)
        await self._gate.wait_to_sample(batch_size)
        answer = self._decided(True, draw)
        self._gate.wake()
        return answer

    def _check(self, call: Callable[[], Answer]) -> None:
        """Raise what a call that must wait raises for its arguments; changes nothing."""
        if hasattr(self._buffer, "_limited"):
            with contextlib.suppress(errors.NotReadyError):
                self._decided(False, call)

    async def save(
        self, path: str | os.PathLike[str], *, keep: int = 1, progress: state_lib.Progress | None = None
    ) -> None:
        """Save the wrapped buffer as it is when the call begins; other tasks run while it is written.

        The contents are copied first, which takes memory and blocks the event loop; then a thread writes the copy. If
        there is no memory for a copy, use `save` of the wrapped buffer, which needs one chunk but blocks the event loop
        while writing. If the call is cancelled, a started thread still finishes, or fails and leaves the old
        checkpoint. A closed buffer can be saved.

        Load it with `AsyncReplayBuffer(RingReplayBuffer.load(path))`, or the class that was wrapped.

        Args:
            path: The file; see ColumnReplayBuffer.save.
            keep: Number of checkpoints to keep.
            progress: Called in the thread with the bytes written so far and the bytes there are.

        Raises:
            ArgumentError: `keep` is not an integer of at least 1, or `path` is not a path.
            CheckpointError: `path` is something other than a checkpoint, it could not be written, or an earlier call is
                still writing to it.
        """
        self._gate.bind_to_loop()
        state = self._buffer.state_dict()
        await asyncio.to_thread(checkpoint.save, state, path, keep=keep, progress=progress)

    # Plain calls.

    def _look(self, call: Callable[[], Answer]) -> Answer:
        return call()

    def _change(self, call: Callable[[], Answer]) -> Answer:
        answer = call()
        self._gate.wake()
        return answer

    def close(self) -> None:
        """Close the buffer: coroutines that wait now, or are called later, raise ClosedError.

        `save`, the plain calls and the wrapped buffer keep working, but a TokenReplayBuffer, whose own calls are
        awaited too, is closed with it. Any thread may close the buffer. Closing twice has no effect.
        """
        self._gate.close()
        inside: Any = self._buffer
        if hasattr(inside, "_gate"):  # Its own awaited calls wait there.
            inside.close()

    @property
    def buffer(self) -> Any:
        """The wrapped buffer. Changes made to it directly do not wake waiting callers."""
        return self._buffer


def _owned(value: Any) -> Any:
    """Return `value` with its arrays copied, which the caller may change while a call waits."""
    if isinstance(value, Mapping):
        return {key: _owned(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_owned(part) for part in value]
    if hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic):
        return casting.as_array("what is added", value).copy()  # Another library's array, such as a tensor.
    return copies.copied(value)
