"""ThreadSafeReplayBuffer: a buffer of columns for several threads, whose calls block until they may.

    actor threads      ThreadSafeReplayBuffer                       learner threads
    add(...)     ────►   one lock around everything         ◄────   sample(...)
                         buffer inside: may it? do it at once
                         if not: wait for the next change

The law of this file: every call of the buffer inside is made under the lock, from the question whether it may to the
last row that is copied. So no thread sees a row half written, and a call that waits has changed nothing yet.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
import threading
from typing import Any, Generic, NoReturn, Self, TypeVar
import weakref

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import duplicates
from relive.common import validation
from relive.persistence import state as state_lib
from relive.waiting import _shell
from relive.waiting import prefetch
from relive.windows import batches

Batch = TypeVar("Batch", bound=batches.TransitionBatch | batches.SequenceBatch)
Answer = TypeVar("Answer")


class SharedBatches(duplicates.NeverCopied, Generic[Batch]):
    """An endless iterator of batches that threads may share; `ThreadSafeReplayBuffer.batches` makes it.

    Args:
        draw: Waits for the next batch and returns it.
        close: Ends the iterator inside.
    """

    _INSTEAD = prefetch.INSTEAD

    def __init__(self, draw: Callable[[], Batch], close: Callable[[], None]) -> None:
        self._draw = draw
        self._close = close

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch; waits, and raises, as `sample` does. After NotReadyError the next call tries again.

        Raises:
            StopIteration: The iterator was closed.
        """
        return self._draw()

    def close(self) -> None:
        """Forget the batches that were drawn ahead, and wait for their thread; there will be no more batches."""
        self._close()


class ThreadSafeReplayBuffer(duplicates.NeverCopied, _shell.Shell[Batch]):
    """Shares a RingReplayBuffer, PrioritizedReplayBuffer or SequenceReplayBuffer between threads.

    The verbs are those of the buffer inside, with the same arguments and the same returns. `add`, `extend`,
    `add_episode` and `add_steps` block while the limiter holds inserts back. `sample`, `sample_keys` and `next` of
    `batches` block until there is such a batch: something is eligible, the limiter allows it, a priority is not 0, and
    max_times_sampled leaves enough draws. All other calls wait for the lock alone.

    There is one lock: one call at a time, so rows are never torn, and threads add no speed. Who waits is woken by each
    change and asks again, in no promised order. A call that Ctrl-C interrupts while it waits has left no trace. What a
    call was given must not be changed until it returns.

    It cannot be copied, but the buffer inside can, in a block of `locked`. A forked process has a copy that goes on by
    itself; unless another thread was in the middle of a call just then, for what that thread had half done stays so:
    then every call there raises ClosedError.

    Args:
        buffer: The one inside. It must not be used beside the shell, but in a block of `locked`.
        timeout: How long a call waits at most, in seconds; None for ever. Then it raises NotReadyError.

    Raises:
        ArgumentTypeError: `buffer` is no ColumnReplayBuffer, or `timeout` no number.
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

    def __init__(self, buffer: column.ColumnReplayBuffer[Batch], *, timeout: float | None = None) -> None:
        super().__init__(buffer)
        self._timeout = None if timeout is None else validation.non_negative_float("timeout", timeout)
        self._changed = threading.Condition()
        self._is_closed = False
        _SHELLS.add(self)

    # What may wait.

    def add(self, *step: Any, **fields: Any) -> int:
        """Add one step as `ColumnReplayBuffer.add` does, and return its key; waits while the limiter holds it back.

        Args:
            step: observation, action, reward, next_observation.
            fields: The same by name; `terminated`, `truncated`, `stream`, and the extras.

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: Another argument breaks its rule.
            NotReadyError: The limiter has held it back for the length of the timeout.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        return self._when(self._buffer.can_insert, lambda: self._buffer.add(*step, **fields))

    def extend(self, *steps: Any, **fields: Any) -> arrays.Keys:
        """Add one step of every stream as `ColumnReplayBuffer.extend` does, and return their keys [S].

        It waits, and raises, as `add` does.

        Args:
            steps: observation, action, reward, next_observation [S, ...].
            fields: The same by name; `terminated`, `truncated`, `streams`, and the extras.
        """
        return self._when(self._buffer.can_insert, lambda: self._buffer.extend(*steps, **fields))

    def add_episode(self, *episode: Any, **fields: Any) -> arrays.Keys:
        """Add a whole episode of T steps as `ColumnReplayBuffer.add_episode` does, and return their keys [T].

        It waits, and raises, as `add` does; once for the whole episode.

        Args:
            episode: observations [T + 1, ...], actions, rewards [T, ...].
            fields: The same by name; `terminated`, `stream`, and the extras.
        """
        return self._when(self._buffer.can_insert, lambda: self._buffer.add_episode(*episode, **fields))

    def add_steps(self, *steps: Any, **fields: Any) -> arrays.Keys:
        """Add T consecutive steps of one stream as `ColumnReplayBuffer.add_steps` does, and return their keys [T].

        It waits, and raises, as `add` does; once for all of them.

        Args:
            steps: observations [T + 1, ...], actions, rewards [T, ...].
            fields: The same by name; `terminated`, `truncated`, `stream`, and the extras.
        """
        return self._when(self._buffer.can_insert, lambda: self._buffer.add_steps(*steps, **fields))

    def sample(self, batch_size: int, **options: Any) -> Batch:
        """Return exactly batch_size windows, drawn with replacement; waits until that is possible.

        Args:
            batch_size: How many, B.
            options: What `sample` of the buffer inside takes beside it: `beta`, and for transitions `n_step`, `gamma`.

        Raises:
            ArgumentError: An argument breaks its rule, or the limiter could never allow such a batch.
            NotReadyError: There was no such batch for the length of the timeout; the message says what is missing.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        return self._when(
            lambda: self._buffer.can_sample(batch_size), lambda: self._buffer.sample(batch_size, **options)
        )

    def sample_keys(self, batch_size: int) -> arrays.Keys:
        """Draw as `sample` does, and return the keys alone [B]; `read` returns their windows.

        It waits, and raises, as `sample` does. Until `read` is called, another thread may overwrite the steps; in a
        block of `locked` none can.
        """
        return self._when(lambda: self._buffer.can_sample(batch_size), lambda: self._buffer.sample_keys(batch_size))

    def batches(self, batch_size: int, **options: Any) -> SharedBatches[Batch]:
        """Return an endless iterator of what `sample` returns, gathered ahead in a thread; see `batches` of the buffer.

        Each `next` holds the lock while it draws, also ahead, and until its batch is gathered. Where no batch was drawn
        ahead and none can be drawn, it waits as `sample` does.

        Args:
            batch_size: How many windows in a batch, B.
            options: As in `sample`; and `prefetch`, how many batches are drawn ahead.

        Raises:
            ArgumentError: An argument breaks its rule, or the limiter could never allow such a batch.
        """
        with self._changed:
            inside = self._buffer.batches(batch_size, **options)
        return SharedBatches(
            lambda: self._when(lambda: self._buffer.can_sample(batch_size), inside.__next__),
            lambda: self._change(inside.close),
        )

    def _when(self, may: Callable[[], bool], call: Callable[[], Answer]) -> Answer:
        """Make the call as soon as `may()` returns True; wrong arguments are refused before that."""
        with self._changed:
            self._refuse_if_closed()
            with contextlib.suppress(errors.NotReadyError):
                return self._change(call)
            timeout = None if self._timeout is None else min(self._timeout, threading.TIMEOUT_MAX)
            is_in_time = self._changed.wait_for(lambda: self._is_closed or may(), timeout)
            self._refuse_if_closed()
            try:
                return self._change(call)
            except errors.NotReadyError as error:
                if is_in_time:
                    raise
                raise errors.NotReadyError(f"{error} (waited {self._timeout:g} s)") from None

    def _look(self, call: Callable[[], Answer]) -> Answer:
        with self._changed:
            return call()

    def _change(self, call: Callable[[], Answer]) -> Answer:
        with self._changed:
            answer = call()
            self._changed.notify_all()
            return answer

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise errors.ClosedError(f"buffer is closed: only the {type(self._buffer).__name__} inside still answers")

    # What never waits but for the lock.

    @contextlib.contextmanager
    def locked(self) -> Iterator[column.ColumnReplayBuffer[Batch]]:
        """Yield the buffer inside for the length of a `with` block, while all other threads wait.

        For what the shell does not have, such as `history`, and for calls between which nothing may change. The calls
        of the buffer inside do not wait: they raise NotReadyError.
        """
        with self._changed:
            try:
                yield self._buffer
            finally:
                self._changed.notify_all()

    def save(self, path: str | os.PathLike[str], *, keep: int = 1, progress: state_lib.Progress | None = None) -> None:
        """Save the buffer inside, while all other threads wait; see ColumnReplayBuffer.save.

        To load it: `ThreadSafeReplayBuffer(RingReplayBuffer.load(path))`, or whichever class is inside. Where the
        others should not wait for the disk, and there is memory for a copy, take `state_dict` instead.
        """
        with self._changed:
            self._buffer.save(path, keep=keep, progress=progress)

    def close(self) -> None:
        """End the calls that may wait: those who wait in one, and those who make one later, get ClosedError.

        The other calls go on, and so does the buffer inside. Closing twice is closing once.
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
    """The lock of a buffer in a forked process, which has not the thread that held it."""

    def __enter__(self) -> NoReturn:
        raise errors.ClosedError(
            "buffer cannot go on in this fork, made while another thread was in the middle of a call: "
            "fork while none is, or load a checkpoint"
        )


_SHELLS: "weakref.WeakSet[ThreadSafeReplayBuffer[Any]]" = weakref.WeakSet()
_begin_in_a_fork = duplicates.tell_forks(_SHELLS, ThreadSafeReplayBuffer._begin_in_a_fork)
