"""AsyncReplayBuffer: a buffer of columns whose calls are awaited.

    actor coroutines         AsyncReplayBuffer                      learner coroutine
    await add(...)     ────►   gate: wait until it may     ◄────    await sample(...)
                               buffer inside: do it at once

The law of this file: deciding and waiting are apart. An awaited call waits for its turn, then makes the plain call of
the buffer inside, and awaits nothing in between. So a call that was cancelled has either happened or left no trace.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
import contextlib
import os
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import copies
from relive.common import duplicates
from relive.common import imports
from relive.persistence import state as state_lib
from relive.schema import casting
from relive.waiting import _shell
from relive.waiting import gate
from relive.waiting import prefetch
from relive.windows import batches

if TYPE_CHECKING:
    from relive.persistence import checkpoint
else:
    checkpoint = imports.lazy_module("relive.persistence.checkpoint")

Batch = TypeVar("Batch", bound=batches.TransitionBatch | batches.SequenceBatch)
Answer = TypeVar("Answer")


class AsyncBatches(duplicates.NeverCopied, Generic[Batch]):
    """An endless asynchronous iterator of batches; `AsyncReplayBuffer.batches` makes it.

    Args:
        draw: Waits for one batch and draws it.
    """

    _INSTEAD = prefetch.INSTEAD

    def __init__(self, draw: Callable[[], Awaitable[Batch]]) -> None:
        self._draw = draw

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Batch:
        """Return the next batch; waits, and raises, as `sample` does."""
        return await self._draw()


class AsyncReplayBuffer(duplicates.CopiedWhole, _shell.Shell[Batch]):
    """Shares a RingReplayBuffer, PrioritizedReplayBuffer or SequenceReplayBuffer between the tasks of an event loop.

    The verbs are those of the buffer inside, with the same arguments and the same returns. `add`, `extend`,
    `add_episode` and `add_steps` are awaited, and wait while the limiter holds inserts back. `sample` and `sample_keys`
    are awaited, and wait until there is such a batch: something is eligible, the limiter allows it, a priority is not
    0, and max_times_sampled leaves enough draws; so does each round of `async for` over `batches`. `save` is awaited,
    and writes in a thread. All other calls are plain and never wait.

    Inserts wait in one queue and samples in another, first come, first served. A cancelled call has either happened or
    left no trace. Every draw, and one in 32 inserts, lets the other tasks run first.

    One buffer has one shell, and one running event loop at a time. The shell has no locks;
    ThreadSafeReplayBuffer is for threads.

    Args:
        buffer: The one inside. What is changed through it, and not through the shell, wakes nobody who waits.

    Raises:
        ArgumentTypeError: `buffer` is no ColumnReplayBuffer.

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

    def __init__(self, buffer: column.ColumnReplayBuffer[Batch]) -> None:
        super().__init__(buffer)
        self._gate = gate.Gate(buffer, f"the {type(buffer).__name__} inside")

    # Awaited.

    async def add(self, *step: Any, **fields: Any) -> int:
        """Add one step as `ColumnReplayBuffer.add` does, and return its key; waits while the limiter holds it back.

        What is stored is what the arrays held when the call began to run. With a journal that is to be synced it
        returns when the step is on the disk, and all who wait for that share one sync; if that fails, or the call is
        cancelled meanwhile, the step is stored nevertheless.

        Args:
            step: observation, action, reward, next_observation.
            fields: The same by name; `terminated`, `truncated`, `stream`, and the extras.

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: Another argument breaks its rule.
            ClosedError: The buffer is closed, or was closed while waiting.
            CheckpointError: The journal could not be written or synced.
        """
        return await self._insert(self._buffer.add, step, fields)

    async def extend(self, *steps: Any, **fields: Any) -> arrays.Keys:
        """Add one step of every stream as `ColumnReplayBuffer.extend` does, and return their keys [S].

        It waits, and raises, as `add` does.

        Args:
            steps: observation, action, reward, next_observation [S, ...].
            fields: The same by name; `terminated`, `truncated`, `streams`, and the extras.
        """
        return await self._insert(self._buffer.extend, steps, fields)

    async def add_episode(self, *episode: Any, **fields: Any) -> arrays.Keys:
        """Add a whole episode of T steps as `ColumnReplayBuffer.add_episode` does, and return their keys [T].

        It waits, and raises, as `add` does; once for the whole episode.

        Args:
            episode: observations [T + 1, ...], actions, rewards [T, ...].
            fields: The same by name; `terminated`, `stream`, and the extras.
        """
        return await self._insert(self._buffer.add_episode, episode, fields)

    async def add_steps(self, *steps: Any, **fields: Any) -> arrays.Keys:
        """Add T consecutive steps of one stream as `ColumnReplayBuffer.add_steps` does, and return their keys [T].

        It waits, and raises, as `add` does; once for all of them.

        Args:
            steps: observations [T + 1, ...], actions, rewards [T, ...].
            fields: The same by name; `terminated`, `truncated`, `stream`, and the extras.
        """
        return await self._insert(self._buffer.add_steps, steps, fields)

    async def sample(self, batch_size: int, **options: Any) -> Batch:
        """Return exactly batch_size windows, drawn with replacement; waits until that is possible.

        Args:
            batch_size: How many, B.
            options: What `sample` of the buffer inside takes beside it: `beta`, and for transitions `n_step`, `gamma`.

        Raises:
            ArgumentError: An argument breaks its rule, or the limiter could never allow such a batch.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        return await self._draw(batch_size, lambda: self._buffer.sample(batch_size, **options))

    async def sample_keys(self, batch_size: int) -> arrays.Keys:
        """Draw as `sample` does, and return the keys alone [B]; `read` returns their windows.

        It waits, and raises, as `sample` does.
        """
        return await self._draw(batch_size, lambda: self._buffer.sample_keys(batch_size))

    def batches(self, batch_size: int, **options: Any) -> AsyncBatches[Batch]:
        """Return an endless asynchronous iterator of what `sample` returns, for `async for`.

        Each batch is drawn when its turn has come, and none ahead. A round that is cancelled has drawn nothing, and the
        iterator goes on after it.

        Args:
            batch_size: How many windows in a batch, B.
            options: As in `sample`.

        Raises:
            ArgumentError: An argument breaks its rule, or the limiter could never allow such a batch.
        """
        draws = self._buffer.batches(batch_size, prefetch=0, **options)
        return AsyncBatches(lambda: self._draw(batch_size, draws.__next__))

    async def _insert(
        self, insert: Callable[..., Answer], values: tuple[Any, ...], fields: Mapping[str, Any]
    ) -> Answer:
        """Make the call when its turn has come."""
        self._gate.bind_to_loop()
        if self._gate.must_wait_to_insert():
            if not self._buffer.can_insert():
                # It cannot happen now; but the buffer checks arguments first, so wrong ones raise before the wait.
                with contextlib.suppress(errors.NotReadyError):
                    insert(*values, **fields)
            values, fields = tuple(map(_owned, values)), _owned(fields)
            await self._gate.wait_to_insert()
        journal = self._buffer._journal
        with contextlib.nullcontext() if journal is None else journal.syncing_later():
            answer = insert(*values, **fields)
        self._gate.wake()
        if journal is not None:
            await journal.synced()
        return answer

    async def _draw(self, batch_size: int, draw: Callable[[], Answer]) -> Answer:
        """Make the call when its turn has come."""
        self._gate.bind_to_loop()
        if not self._gate.can_sample(batch_size):
            # As above.
            with contextlib.suppress(errors.NotReadyError):
                draw()
        await self._gate.wait_to_sample(batch_size)
        answer = draw()
        self._gate.wake()
        return answer

    async def save(
        self, path: str | os.PathLike[str], *, keep: int = 1, progress: state_lib.Progress | None = None
    ) -> None:
        """Save the buffer inside as it is when the call begins to run; the other tasks go on while it is written.

        It takes memory for a copy of all that is stored, and the event loop waits while that is made; then a thread
        writes it. Where there is no room for a copy, `buffer.save(path)` of the buffer inside needs one chunk, and the
        event loop waits for the disk. If the call is cancelled, a thread that has begun still writes all, or fails and
        leaves what was there. A closed buffer can be saved.

        To load it: `AsyncReplayBuffer(RingReplayBuffer.load(path))`, or whichever class is inside.

        Args:
            path: The directory; see ColumnReplayBuffer.save.
            keep: How many checkpoints stay.
            progress: Called in the thread with the bytes written so far and the bytes there are.

        Raises:
            ArgumentError: `path` is something else than a checkpoint, or `keep` is not an integer of at least 1.
            CheckpointError: It could not be written, or an earlier call is still writing to the same path.
        """
        self._gate.bind_to_loop()
        state = self._buffer.state_dict()
        await asyncio.to_thread(checkpoint.save, state, path, keep=keep, progress=progress)

    # Plain.

    def _look(self, call: Callable[[], Answer]) -> Answer:
        return call()

    def _change(self, call: Callable[[], Answer]) -> Answer:
        answer = call()
        self._gate.wake()
        return answer

    def close(self) -> None:
        """End the awaited calls: those who wait in one, and those who make one later, get ClosedError.

        `save` and the plain calls go on, and so does the buffer inside. Closing twice is closing once.
        """
        self._gate.close()

    @property
    def buffer(self) -> column.ColumnReplayBuffer[Batch]:
        """The buffer inside. What is changed through it, and not through the shell, wakes nobody who waits."""
        return self._buffer


def _owned(value: Any) -> Any:
    """Return `value` with a copy of every array in it: what the caller may change while a call waits."""
    if isinstance(value, Mapping):
        return {key: _owned(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_owned(part) for part in value]
    if hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic):
        return casting.as_array("what is added", value).copy()  # Another library's array, such as a tensor.
    return copies.copied(value)
