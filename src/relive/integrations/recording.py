"""What both recorders share: the buffer they write to, frames out of stacks, and fields out of infos."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import checks
from relive import column_buffer
from relive import errors
from relive import threads

Array: TypeAlias = npt.NDArray[Any]
Bools: TypeAlias = npt.NDArray[np.bool_]
Buffer: TypeAlias = "column_buffer.ColumnReplayBuffer[Any] | threads.ThreadSafeReplayBuffer[Any]"


def checked_buffer(buffer: Any) -> Buffer:
    """Answers the buffer, if it is one of columns that is called and not awaited.

    Raises:
        ArgumentTypeError: It is not.
    """
    if not isinstance(buffer, column_buffer.ColumnReplayBuffer | threads.ThreadSafeReplayBuffer):
        raise errors.ArgumentTypeError(
            f"buffer must be a ColumnReplayBuffer or a ThreadSafeReplayBuffer, got {checks.shown(buffer)}"
        )
    return buffer


def require_insert(buffer: Buffer) -> None:
    """Raises NotReadyError if the limiter holds inserts back: before the environment is stepped, not after it.

    A ThreadSafeReplayBuffer waits instead, once the step is there.
    """
    if isinstance(buffer, column_buffer.ColumnReplayBuffer) and not buffer.can_insert():
        raise errors.NotReadyError(f"step held back by {buffer.limiter!r}: draw samples first")


# Infos.


def checked_infos(infos: Any) -> dict[str, str]:
    """Answers which extra is found under which key of an info.

    Raises:
        ArgumentTypeError: They are not texts by text.
    """
    if infos is None:
        return {}
    if not isinstance(infos, Mapping) or not all(type(text) is str for pair in infos.items() for text in pair):
        raise errors.ArgumentTypeError(f"infos must be keys of the info by extra, got {checks.shown(infos)}")
    return dict(infos)


def check_extras(extras: Mapping[str, Any], infos: Mapping[str, str]) -> None:
    """Raises ArgumentError if an extra is given that is to be found in the info."""
    for extra in extras:
        if extra in infos:
            raise errors.ArgumentError(f"extra {extra!r} must not be given: infos finds it under {infos[extra]!r}")


def found(info: Mapping[str, Any], extra: str, key: str) -> Any:
    """Answers what an info holds under a key.

    Raises:
        ArgumentError: There is nothing.
    """
    if key not in info:
        raise errors.ArgumentError(f"info must hold {key!r} for the extra {extra!r}, got {checks.shown(list(info))}")
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
        self._number = checks.integer_of_at_least_one("frame_stack", frame_stack)
        if isinstance(buffer, threads.ThreadSafeReplayBuffer):
            with buffer.locked() as inside:
                window = inside.window
        else:
            window = buffer.window
        of_buffer = getattr(window, "frame_stack", None)
        if self._number > 1 and of_buffer not in (None, self._number):
            raise errors.ArgumentError(f"frame_stack must be {of_buffer}, as that of the buffer, got {self._number}")
        self._padding = getattr(window, "stack_padding", None) if self._number > 1 else None

    def newest(self, tree: Any, num_leading: int = 0) -> Any:
        """Answers the last frame of each stack; the stack is the first axis behind the leading ones."""
        if self._number == 1:
            return tree
        if isinstance(tree, Mapping):
            return {key: self.newest(part, num_leading) for key, part in tree.items()}
        return tree[(*_lead(num_leading), -1)]

    def check_first(self, tree: Any, num_leading: int = 0) -> None:
        """Raises ArgumentError unless each stack is one frame behind what pads a stack in the buffer."""
        for stack in self._stacks(tree, num_leading):
            before = stack[(*_lead(num_leading), slice(None, -1))]
            last = stack[(*_lead(num_leading), slice(-1, None))]
            padding = {"zeros": np.zeros_like(last), "first": last}.get(str(self._padding))
            if padding is not None and not _are_same(before, np.broadcast_to(padding, before.shape)):
                raise errors.ArgumentError(
                    f"observation must begin with frames that are {self._padding!r}, as the stack_padding of the buffer"
                )

    def check_next(self, before: Any, after: Any, num_leading: int = 0, where: Bools | None = None) -> None:
        """Raises ArgumentError unless each stack is the one before it with another frame behind.

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

    def _stacks(self, tree: Any, num_leading: int) -> list[Array]:
        """Answers the stacks in a tree; none where observations are no stacks."""
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


def _are_same(these: Array, those: Array) -> bool:
    """Answers whether two arrays hold the same values; a NaN is like a NaN."""
    return np.array_equal(these, those, equal_nan=these.dtype.kind in "fc")
