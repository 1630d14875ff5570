"""The common base of AsyncReplayBuffer and ThreadSafeReplayBuffer: the methods that never wait for the limiter.

    _look     a call that changes nothing
    _change   a call after which waiting callers check again

Each subclass defines what these two do besides the call: take a lock, or wake waiting callers.
"""

import abc
from collections.abc import Callable
import functools
from typing import Any, ClassVar, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar

from relive.buffers import column
from relive.common import validation
from relive.common import words
from relive.limits import rate_limiters
from relive.samplers import sampler as sampler_lib
from relive.schema import schema as schema_lib
from relive.windows import window as window_lib

Batch = TypeVar("Batch")
Batch_co = TypeVar("Batch_co", covariant=True)
Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
Insert = TypeVar("Insert", bound=Callable[..., Any])


class Sharable(rate_limiters.Rules, Protocol[Batch_co]):
    """What the wrappers require of a buffer beside `add` and its other inserts."""

    def sample(self, batch_size: int, /) -> Batch_co:
        """Return a batch, or raise NotReadyError."""
        ...


def _passed_on(
    method: Callable[Concatenate[Any, Arguments], Answer], *, changes: bool = False
) -> "Callable[Concatenate[Shell[Any], Arguments], Answer]":
    """Return a method of the wrapper that is the one of the wrapped buffer of that name, documentation included."""

    def call(self: "Shell[Any]", /, *values: Arguments.args, **named: Arguments.kwargs) -> Answer:
        make: Callable[[], Answer] = functools.partial(getattr(self._buffer, method.__name__), *values, **named)
        return self._change(make) if changes else self._look(make)

    functools.update_wrapper(call, method)
    return call


def inserting(wrapper: str, method: Callable[..., Any]) -> Callable[[Insert], Insert]:
    """Return a decorator that names and documents an insert of a wrapper after the one of the wrapped buffer."""

    def documented(insert: Insert) -> Insert:
        insert.__name__, insert.__qualname__ = method.__name__, f"{wrapper}.{method.__name__}"
        first, *_ = (method.__doc__ or "").split("\n\n")
        insert.__doc__ = f"""{first}

        Waits while the limiter holds inserts back, once for the whole call. See ColumnReplayBuffer.{method.__name__}.

        Args:
            values: The arguments of that method.
            fields: The same by name, and the extras.

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: Another argument is invalid.
            NotReadyError: The limiter held it back until the timeout, if there is one.
            ClosedError: The buffer is closed, or was closed while waiting.
            CheckpointError: The journal could not be written or synced.
        """
        return insert

    return documented


class Shell(abc.ABC, Generic[Batch]):
    """A wrapper of a buffer, with the methods of column buffers that do not wait.

    Further methods of the wrapped buffer are available too, and are made as changes.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        words.name_methods(cls)

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
        """Make a call whose turn was decided; see LimiterState. A buffer without a limiter decides by itself."""
        limited: rate_limiters.LimiterState | None = getattr(self._buffer, "_limited", None)
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

    eligible_keys = _passed_on(column.ColumnReplayBuffer.eligible_keys)
    get_priorities = _passed_on(column.ColumnReplayBuffer.get_priorities)
    explain = _passed_on(column.ColumnReplayBuffer.explain)
    settings = _passed_on(column.ColumnReplayBuffer.settings)
    get_stats = _passed_on(column.ColumnReplayBuffer.get_stats)
    state_dict = _passed_on(column.ColumnReplayBuffer.state_dict)
    check = _passed_on(column.ColumnReplayBuffer.check)
    update_priorities = _passed_on(column.ColumnReplayBuffer.update_priorities, changes=True)
    set_eligible = _passed_on(column.ColumnReplayBuffer.set_eligible, changes=True)
    clear = _passed_on(column.ColumnReplayBuffer.clear, changes=True)
    load_state_dict = _passed_on(column.ColumnReplayBuffer.load_state_dict, changes=True)

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

    def __getitem__(self, place: Any) -> NoReturn:
        """Raise ArgumentTypeError that names what returns steps."""
        raise words.no_rows(self)

    __iter__: ClassVar[None] = None

    def __bool__(self) -> bool:
        """Raise ArgumentTypeError: see Checkpointable."""
        raise validation.ambiguous_truth(self)

    def __len__(self) -> int:
        """Return the number of stored steps."""
        return self._look(lambda: len(self._buffer))

    def __repr__(self) -> str:
        return self._look(lambda: f"<{type(self).__name__} around {self._buffer!r}>")
