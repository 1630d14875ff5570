"""States of buffers: JSON values and arrays, validated when read.

    {"class": "RingReplayBuffer", "settings": {...}, "counters": {...}, ..., "arrays": {"rows/reward": [...], ...}}

Everything is a None, bool, int, finite float, str, list or dict with string keys; except under "arrays", which maps
names to arrays of any dtype without objects. Long arrays may be ChunkedArrays, which are read in parts.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation

State: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many bytes were read or written so far, and how many there are."""

CHUNK = 1 << 24
"""Bytes of a column in memory at once."""
MOST = validation.LARGEST // 2
"""The largest count: counts that go on from it can still be saved."""


def check_progress(progress: object) -> None:
    """Raise ArgumentTypeError unless it is a Progress or None."""
    if progress is not None and not callable(progress):
        raise errors.ArgumentTypeError(f"progress must be callable or None, got {validation.short_repr(progress)}")


class ChunkedArray(Protocol):
    """An array that may not be in memory; its first axis is the long one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the entire array."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its values."""
        ...

    def read(self, start: int, stop: int, /) -> arrays_lib.Array:
        """Return the rows [start, stop), which may be those of the writer: they are not written to."""
        ...

    def read_into(self, rows: arrays_lib.Array, start: int, /) -> None:
        """Read the rows from `start` on into a C-ordered array."""
        ...


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """A ChunkedArray whose parts are returned by a function."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[int, int], arrays_lib.Array]

    def read_into(self, rows: arrays_lib.Array, start: int) -> None:
        """Read the rows from `start` on into an array."""
        rows[...] = self.read(start, start + len(rows))


def in_memory(column: arrays_lib.Array | ChunkedArray) -> arrays_lib.Array:
    """Return a copy of an entire array or column."""
    if isinstance(column, np.ndarray):
        return np.array(column, order="C")
    whole: arrays_lib.Array = np.zeros(column.shape, column.dtype)  # Gaps between fields too.
    fill(whole, column, 0)
    return whole


def fill(rows: arrays_lib.Array, column: ChunkedArray, first: int) -> None:
    """Read the rows of a column from `first` on into a C-ordered array, in chunks."""
    for start, stop in chunks(len(rows), rows.nbytes):
        column.read_into(rows[start:stop], first + start)


def whole(state: State) -> State:
    """Return a state with copies of entire arrays."""
    return {**state, "arrays": {name: in_memory(array) for name, array in state["arrays"].items()}}


def chunks(rows: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of chunks of `rows` rows that take `nbytes` in total."""
    step = max(1, CHUNK * rows // max(nbytes, 1))
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


class MissingArrayError(errors.CheckpointError):
    """A state has no array of a name."""


class StateReader:
    """Reads an untrusted state, or the part at a path of one: each method validates what it returns."""

    def __init__(self, values: Any, arrays: Any, path: str = "") -> None:
        name = path.rstrip("/") or "state"
        if not isinstance(values, Mapping):
            raise errors.CheckpointError(f"{name} must be a mapping, got {validation.short_repr(values)}")
        if not isinstance(arrays, Mapping):
            raise errors.CheckpointError(f"arrays must be a mapping, got {validation.short_repr(arrays)}")
        self._values, self._arrays, self._path = values, arrays, path

    def refused(self, name: str, rule: str, value: object) -> errors.CheckpointError:
        """Return the error for an invalid value."""
        return errors.CheckpointError(f"{self._path}{name} must be {rule}, got {validation.short_repr(value)}")

    def has(self, name: str) -> bool:
        """Return whether there is a value of that name."""
        return name in self._values

    def names(self) -> list[str]:
        """Return the names of all values."""
        return list(self._values)

    def value(self, name: str) -> Any:
        """Return a value of any kind."""
        if name not in self._values:
            raise errors.CheckpointError(f"{self._path}{name} is missing")
        return self._values[name]

    def part(self, name: str) -> "StateReader":
        """Return the part of that name, with the arrays whose names begin with it."""
        return StateReader(self.value(name), self._arrays, f"{self._path}{name}/")

    def integer(self, name: str, least: int = 0, most: int = MOST) -> int:
        """Return an integer in [least, most]."""
        value = self.value(name)
        if type(value) is not int or not least <= value <= most:
            raise self.refused(name, f"an integer in [{least}, {most}]", value)
        return value

    def number(self, name: str, least: float = -math.inf) -> float:
        """Return a finite float of at least that."""
        value = self.value(name)
        if type(value) is not float or not math.isfinite(value) or value < least:
            raise self.refused(name, f"a finite float of at least {least}", value)
        return value

    def boolean(self, name: str) -> bool:
        """Return a bool."""
        value = self.value(name)
        if type(value) is not bool:
            raise self.refused(name, "true or false", value)
        return value

    def text(self, name: str) -> str:
        """Return a string."""
        value = self.value(name)
        if type(value) is not str:
            raise self.refused(name, "a string", value)
        return value

    def one_of(self, name: str, *choices: str) -> str:
        """Return a string that is one of the choices."""
        value = self.text(name)
        if value not in choices:
            raise self.refused(name, " or ".join(choices), value)
        return value

    def column(self, name: str, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> ChunkedArray:
        """Return an array of that dtype and shape as a column; None stands for any length."""
        path = self._path + name
        if path not in self._arrays:
            raise MissingArrayError(f"array {path} is missing")
        column = self._arrays[path]
        if not isinstance(column, np.ndarray) and not callable(getattr(column, "read_into", None)):
            raise errors.CheckpointError(f"array {path} must be an array, got {validation.short_repr(column)}")
        is_right = column.dtype == np.dtype(dtype) and len(column.shape) == len(shape)
        if not is_right or any(most not in (None, length) for most, length in zip(shape, column.shape, strict=True)):
            lengths = ", ".join("any" if length is None else str(length) for length in shape)
            rule = f"of dtype {np.dtype(dtype)} and shape ({lengths})"
            raise errors.CheckpointError(f"array {path} must be {rule}, got {column.dtype} and {column.shape}")
        if isinstance(column, np.ndarray):
            whole = np.ascontiguousarray(column)  # Here, so that a part of it needs no memory when it is read.
            return LazyArray(column.shape, column.dtype, lambda start, stop: whole[start:stop])
        checked: ChunkedArray = column
        return checked

    def array(self, name: str, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> arrays_lib.Array:
        """Return an array of that dtype and shape, as a copy."""
        return in_memory(self.column(name, dtype, shape))

    def integers(self, name: str, length: int | None, least: int, most: int) -> arrays_lib.Ints:
        """Return an array of int64 in [least, most]."""
        values: arrays_lib.Ints = self.array(name, np.int64, (length,))
        if len(values) and not least <= values.min() <= values.max() <= most:
            outside = (values < least) | (values > most)
            raise errors.CheckpointError(
                f"array {self._path}{name} must hold integers in [{least}, {most}], got {values[outside][0]}"
            )
        return values

    def booleans(self, name: str, length: int | None) -> arrays_lib.Bools:
        """Return an array of bools."""
        values = self.array(name, np.bool_, (length,))
        if values.view(np.uint8).max(initial=0) > 1:
            raise errors.CheckpointError(f"array {self._path}{name} must hold the bytes 0 and 1 alone")
        return values
