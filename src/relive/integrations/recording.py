"""What both recorders share: the buffer, what comes with a step, frames out of stacks, and fields of infos."""

from collections.abc import Iterator, Mapping
import contextlib
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import copies
from relive.common import validation
from relive.integrations import spaces
from relive.schema import schema as schema_lib
from relive.waiting import threads

Buffer: TypeAlias = "column.ColumnReplayBuffer[Any] | threads.ThreadSafeReplayBuffer[Any]"


def checked_buffer(buffer: Any, infos: Mapping[str, str]) -> Buffer:
    """Return the buffer, if it is one of columns that is called and not awaited.

    Raises:
        ArgumentTypeError: It is not.
        ArgumentError: It has no such extra as one of the infos is for.
    """
    if not isinstance(buffer, column.ColumnReplayBuffer | threads.ThreadSafeReplayBuffer):
        raise errors.ArgumentTypeError(
            f"buffer must be a ColumnReplayBuffer or a ThreadSafeReplayBuffer, got {validation.short_repr(buffer)}"
        )
    with _inside(buffer) as columns:
        schema = columns.schema
    for extra in infos:
        if schema is not None and extra not in schema.extras:
            known = ", ".join(schema.extras) or "none"
            raise errors.ArgumentError(f"infos must be for extras of the schema, which are {known}, got {extra!r}")
    return buffer


def num_streams(buffer: Buffer) -> int:
    """Return how many streams a buffer has."""
    with _inside(buffer) as columns:
        return columns.streams


@contextlib.contextmanager
def _inside(buffer: Buffer) -> "Iterator[column.ColumnReplayBuffer[Any]]":
    """Yield the buffer itself, or the one in a shell while no other thread is at it."""
    if isinstance(buffer, column.ColumnReplayBuffer):
        yield buffer
    else:
        with buffer.locked() as columns:
            yield columns


def require_insert(buffer: Buffer) -> None:
    """Raise NotReadyError if the limiter holds inserts back: before the environment is stepped, not after it.

    A ThreadSafeReplayBuffer waits instead, once the step is there.
    """
    if isinstance(buffer, column.ColumnReplayBuffer) and not buffer.can_insert():
        raise errors.NotReadyError(f"step held back by {buffer.limiter!r}: draw samples first")


# What an environment answers, and what it is given.


def kept(space: spaces.Space, value: Any) -> Any:
    """Return a value of a space, or a batch of them, as a tree of copies; arrays of other libraries become numpy's.

    Raises:
        ArgumentError: One of those is on another device, or belongs to a graph of gradients.
    """
    return _kept(spaces.tree_of(space, value))


def _kept(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _kept(part) for key, part in tree.items()}
    if isinstance(tree, np.ndarray) or not hasattr(tree, "__array__"):
        return copies.copied(tree)
    try:
        return np.asarray(tree).copy()
    except (TypeError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise errors.ArgumentError(f"a {type(tree).__name__} must become an array of numpy: {said}") from error


class StepValues:
    """What the code that steps the environments gives: it is copied, and checked before the environments are stepped.

    Args:
        buffer: Where the steps go.
        space: Of one action.
        infos: Which extras are found in infos, by key.
        lead: The axes that lead: none, or one of all environments.
    """

    def __init__(self, buffer: Buffer, space: spaces.Space, infos: Mapping[str, str], lead: tuple[int, ...]) -> None:
        self._buffer, self._space, self._infos, self._lead = buffer, space, infos, lead
        self._schema: schema_lib.Schema | None = None
        self._zeros = np.zeros(lead)

    def taken(self, action: Any, extras: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return copies of an action, as a tree, and of extras.

        Raises:
            ArgumentError: An extra is given that infos hold, or a stream.
            SchemaError: A value does not fit its field, or an extra is missing or unknown; if there is a schema.
        """
        for extra in extras:
            if extra in self._infos:
                raise errors.ArgumentError(
                    f"extra {extra!r} must not be given: infos finds it under {self._infos[extra]!r}"
                )
            if extra in ("stream", "streams"):
                raise errors.ArgumentError(f"{extra} must not be given: a recorder knows where its steps go")
        action, extras = kept(self._space, action), {name: _kept(value) for name, value in extras.items()}
        schema = self._of_the_caller()
        if schema is not None:
            schema.rows(self._zeros, action, self._zeros, extras, self._lead)
        return action, extras

    def _of_the_caller(self) -> schema_lib.Schema | None:
        """Return the schema of what is given; None as long as the buffer has none."""
        if self._schema is None:
            with _inside(self._buffer) as columns:
                whole = columns.schema
            if whole is not None:
                unused = schema_lib.Field((), np.float64)
                extras = {name: fields for name, fields in whole.extras.items() if name not in self._infos}
                self._schema = schema_lib.Schema(unused, whole.action, reward=unused, extras=extras)
        return self._schema


# Infos.


def checked_infos(infos: Any) -> dict[str, str]:
    """Return which extra is found under which key of an info.

    Raises:
        ArgumentTypeError: They are not texts by text.
    """
    if infos is None:
        return {}
    if not isinstance(infos, Mapping) or not all(type(text) is str for pair in infos.items() for text in pair):
        raise errors.ArgumentTypeError(f"infos must be keys of the info by extra, got {validation.short_repr(infos)}")
    return dict(infos)


def found(info: Mapping[str, Any], extra: str, key: str) -> Any:
    """Return what an info holds under a key.

    Raises:
        ArgumentError: There is nothing.
    """
    if key not in info:
        raise errors.ArgumentError(
            f"info must hold {key!r} for the extra {extra!r}, got {validation.short_repr(list(info))}"
        )
    return info[key]


# Frames.


class Frames:
    """Takes single frames out of observations that an environment has stacked.

    Args:
        buffer: Where the frames go, one a step; it stacks them again when it draws.
        frame_stack: How many frames an observation has along its first axis; 1 if it is no stack.

    Raises:
        ArgumentError: The buffer stacks another number of frames.
    """

    def __init__(self, buffer: Buffer, frame_stack: int) -> None:
        self._number = validation.positive_int("frame_stack", frame_stack)
        with _inside(buffer) as columns:
            window = columns.window
        of_buffer = getattr(window, "frame_stack", None)
        if self._number > 1 and of_buffer not in (None, self._number):
            raise errors.ArgumentError(f"frame_stack must be {of_buffer}, as that of the buffer, got {self._number}")
        self._padding = getattr(window, "stack_padding", None) if self._number > 1 else None

    def newest(self, tree: Any, num_leading: int = 0) -> Any:
        """Return the last frame of each stack; the stack is the first axis behind the leading ones."""
        if self._number == 1:
            return tree
        if isinstance(tree, Mapping):
            return {key: self.newest(part, num_leading) for key, part in tree.items()}
        return tree[(*_lead(num_leading), -1)]

    def check_first(self, tree: Any, num_leading: int = 0) -> None:
        """Raise ArgumentError unless each stack is one frame behind what pads a stack in the buffer."""
        for stack in self._stacks(tree, num_leading):
            before = stack[(*_lead(num_leading), slice(None, -1))]
            last = stack[(*_lead(num_leading), slice(-1, None))]
            padding = {"zeros": np.zeros_like(last), "first": last}.get(str(self._padding))
            if padding is not None and not _are_same(before, np.broadcast_to(padding, before.shape)):
                raise errors.ArgumentError(
                    f"observation must begin with frames that are {self._padding!r}, as the stack_padding of the buffer"
                )

    def check_next(self, before: Any, after: Any, num_leading: int = 0, where: arrays.Bools | None = None) -> None:
        """Raise ArgumentError unless each stack is the one before it with another frame behind.

        Args:
            before: The stacks of the observations before.
            after: The same a step later.
            num_leading: How many axes lead.
            where: Which rows to look at, of one leading axis; None for all.
        """
        pairs = zip(self._stacks(before, num_leading), self._stacks(after, num_leading), strict=True)
        for old, new in pairs:
            kept = old[(*_lead(num_leading), slice(1, None))], new[(*_lead(num_leading), slice(None, -1))]
            if where is not None:
                kept = kept[0][where], kept[1][where]
            if not _are_same(*kept):
                raise errors.ArgumentError("observation must be the stack before it with another frame behind")

    def _stacks(self, tree: Any, num_leading: int) -> list[arrays.Array]:
        """Return the stacks in a tree; none where observations are no stacks."""
        if self._number == 1:
            return []
        if isinstance(tree, Mapping):
            return [stack for key in sorted(tree) for stack in self._stacks(tree[key], num_leading)]
        stack = np.asarray(tree)
        if stack.ndim <= num_leading or stack.shape[num_leading] != self._number:
            raise errors.ArgumentError(f"observation must be a stack of {self._number} frames, got shape {stack.shape}")
        return [stack]


def _lead(count: int) -> tuple[slice, ...]:
    return (slice(None),) * count


def _are_same(these: arrays.Array, those: arrays.Array) -> bool:
    """Return whether two arrays hold the same values; a NaN is like a NaN."""
    return np.array_equal(these, those, equal_nan=these.dtype.kind in "fc")
