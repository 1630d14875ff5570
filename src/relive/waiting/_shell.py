"""The common base of AsyncReplayBuffer and ThreadSafeReplayBuffer: the methods that never wait for the limiter.

    _look     a call that changes nothing
    _change   a call after which waiting callers check again

Each subclass defines what these two do besides the call: take a lock, or wake waiting callers.
"""

import abc
from collections.abc import Callable
import functools
from typing import TYPE_CHECKING, Any, Generic, Protocol, SupportsIndex, TypeVar

from relive.buffers import column
from relive.buffers import column_stats
from relive.common import arrays
from relive.common import validation
from relive.common import words
from relive.persistence import state as state_lib
from relive.samplers import sampler as sampler_lib
from relive.schema import schema as schema_lib
from relive.waiting import rate_limiters
from relive.windows import window as window_lib

if TYPE_CHECKING:
    from relive.buffers import origins

Batch = TypeVar("Batch")
Batch_co = TypeVar("Batch_co", covariant=True)
Answer = TypeVar("Answer")


class Sharable(Protocol[Batch_co]):
    """What the wrappers require of a buffer beside `add` and its other inserts."""

    def can_insert(self) -> bool:
        """Return whether an insert may happen now."""
        ...

    def can_sample(self, batch_size: int, /) -> bool:
        """Return whether a batch of that size may be drawn now."""
        ...

    def sample(self, batch_size: int, /) -> Batch_co:
        """Return a batch, or raise NotReadyError."""
        ...


class Shell(abc.ABC, Generic[Batch]):
    """A wrapper of a buffer, with the methods of column buffers that do not wait.

    Further methods of the wrapped buffer are available too, and are made as changes.
    """

    def __init__(self, buffer: Any) -> None:
        # Any other buffer has some of its methods, and the rest through `__getattr__`.
        self._buffer: column.ColumnReplayBuffer[Any] = buffer

    def __getattr__(self, name: str) -> Any:
        """Return a method of the wrapped buffer that the wrapper does not have itself."""
        is_known = name.startswith("_") or hasattr(column.ColumnReplayBuffer, name)
        method = None if is_known else getattr(type(self._buffer), name, None)
        if not callable(method):
            has = dir(type(vars(self).get("_buffer")))  # A copy that is being made has none yet.
            raise words.missing_attribute(self, name, has, words.METHODS, 1)
        return functools.partial(self._further, getattr(self._buffer, name))

    def _further(self, method: Callable[..., Answer], *values: Any, **named: Any) -> Answer:
        return self._change(lambda: method(*values, **named))

    def _decided(self, decision: bool, call: Callable[[], Answer]) -> Answer:
        """Make a call whose turn was decided; see LimitedBuffer. A buffer without a limiter decides by itself."""
        limited: rate_limiters.LimitedBuffer | None = getattr(self._buffer, "_limited", None)
        return call() if limited is None else limited.decided(decision, call)

    @abc.abstractmethod
    def _look(self, call: Callable[[], Answer]) -> Answer:
        """Make a call that changes nothing, and return its result."""

    @abc.abstractmethod
    def _change(self, call: Callable[[], Answer]) -> Answer:
        """Make a call, let waiting callers check again, and return its result."""

    def end_episode(self, *episode: Any, **named: Any) -> Any:
        """End the open episode of a stream as truncated, or whatever `end_episode` of the wrapped buffer does."""
        method = getattr(self._buffer, "end_episode_nowait", self._buffer.end_episode)
        return self._change(lambda: method(*episode, **named))

    def read(self, keys: Any, **options: Any) -> Batch:
        """Return the windows that start at the steps with those keys [B]; see `read` of the wrapped buffer."""
        answer: Batch = self._look(lambda: self._buffer.read(keys, **options))
        return answer

    def eligible_keys(self) -> arrays.Keys:
        """Return the keys of all anchors that may be drawn now, oldest first. O(capacity)."""
        return self._look(self._buffer.eligible_keys)

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Update the priorities of steps, and return how many of them were still stored.

        See ColumnReplayBuffer.update_priorities.
        """
        return self._change(lambda: self._buffer.update_priorities(keys, priorities))

    def get_priorities(self, keys: Any) -> arrays.Floats:
        """Return the raw priorities of the steps with those keys [B]; see ColumnReplayBuffer.get_priorities."""
        return self._look(lambda: self._buffer.get_priorities(keys))

    def set_eligible(self, keys: Any, eligible: bool) -> int:
        """Set whether the anchors with those keys may be drawn, and return how many of them were still stored.

        See ColumnReplayBuffer.set_eligible.
        """
        return self._change(lambda: self._buffer.set_eligible(keys, eligible))

    def explain(self, key: SupportsIndex, /) -> "origins.RowOrigin":
        """Return the origin of the step with that key; see ColumnReplayBuffer.explain."""
        return self._look(lambda: self._buffer.explain(key))

    def settings(self) -> dict[str, Any]:
        """Return the saved constructor arguments of the wrapped buffer, by name."""
        return self._look(self._buffer.settings)

    def get_stats(self) -> column_stats.ColumnBufferStats:
        """Return statistics of the buffer. O(episodes)."""
        return self._look(self._buffer.get_stats)

    def clear(self) -> None:
        """Remove every step and every open episode; see ColumnReplayBuffer.clear."""
        self._change(self._buffer.clear)

    def state_dict(self) -> state_lib.State:
        """Return the state of the buffer in memory; see ColumnReplayBuffer.state_dict."""
        return self._look(self._buffer.state_dict)

    def load_state_dict(self, state: state_lib.State) -> None:
        """Restore a state of the wrapped buffer; see ColumnReplayBuffer.load_state_dict."""
        self._change(lambda: self._buffer.load_state_dict(state))

    def check(self) -> None:
        """Verify all invariants by recounting everything that is stored.

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        self._look(self._buffer.check)

    @property
    def capacity(self) -> int:
        """Maximum number of stored steps."""
        return self._buffer.capacity

    @property
    def streams(self) -> int:
        """Number of environments or actors that write in parallel."""
        return self._buffer.streams

    @property
    def schema(self) -> schema_lib.Schema | None:
        """The fields of a step; None until the first step is added."""
        return self._look(lambda: self._buffer.schema)

    @property
    def window(self) -> window_lib.Window[Any]:
        """The window, which decides which rows make one element of a batch."""
        return self._buffer.window

    @property
    def sampler(self) -> sampler_lib.Sampler:
        """The sampler, which draws the anchors; do not change it directly."""
        return self._buffer.sampler

    @property
    def limiter(self) -> rate_limiters.RateLimiter:
        """The rate limiter, which decides when steps may be added and batches drawn."""
        return self._buffer.limiter

    @property
    def appended(self) -> int:
        """How many steps were added so far."""
        return self._look(lambda: self._buffer.appended)

    @property
    def has_priorities(self) -> bool:
        """Whether the buffer has priorities."""
        return self._buffer.has_priorities

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full, so that the next step evicts the oldest."""
        return self._look(lambda: self._buffer.is_full)

    @property
    def num_eligible(self) -> int:
        """Number of anchors that may be drawn now."""
        return self._look(lambda: self._buffer.num_eligible)

    def __bool__(self) -> bool:
        """Raise ArgumentTypeError: see Checkpointable."""
        raise validation.ambiguous_truth(self)

    def __len__(self) -> int:
        """Return the number of stored steps."""
        return self._look(lambda: len(self._buffer))

    def __repr__(self) -> str:
        return self._look(lambda: f"<{type(self).__name__} around {self._buffer!r}>")
