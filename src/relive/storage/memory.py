"""Storage, the protocol for rows in numbered slots, and ColumnStorage, which keeps them in arrays in memory.

slot                  0      1      2      3          capacity 4
observation         [ o0   , o1   , o2   , o3 ]       [capacity, *shape]: an array for each field
action              [ a0   , a1   , a2   , a3 ]
reward              [ r0   , r1   , r2   , r3 ]
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import math
import operator
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.persistence import files
from relive.persistence import state
from relive.schema import casting
from relive.schema import schema as schema_lib

Array: TypeAlias = arrays_lib.Array
Slots: TypeAlias = npt.NDArray[np.int64] | int
"""Addresses of rows, of any shape; an int is one of shape []."""
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Returns an array of a shape and dtype."""
Rows: TypeAlias = Mapping[str, Array]
"""Columns by path, each of shape slots.shape + field.shape."""


class Storage(Protocol):
    """Rows in numbered slots. `testing.StorageTests` is the conformance suite."""

    @property
    def capacity(self) -> int:
        """Number of slots."""
        ...

    @property
    def schema(self) -> schema_lib.Schema:
        """The schema of a row."""
        ...

    def write(self, slots: Slots, rows: Rows) -> None:
        """Write a row into each of `slots` [...], which are distinct.

        `rows` has a column for every field of the schema, of shape slots.shape + field.shape and of the field's dtype;
        the caller ensures this. The storage must not keep references to them.

        Raises:
            IndexError: A slot is not in [0, capacity); nothing has been written.
        """
        ...

    def read(self, slots: Slots, fields: Collection[str] | None = None) -> dict[str, Array]:
        """Return fresh copies of the rows in `slots` [...], which may repeat, as columns by path.

        Each column is of shape slots.shape + field.shape and of the field's dtype. The contents of a slot that was
        never written are undefined.

        Args:
            slots: Where the rows are.
            fields: The paths of the columns to read; None for all.

        Raises:
            IndexError: A slot is not in [0, capacity).
            ValueError: The schema has no such field.
        """
        ...


def checked_rows(schema: schema_lib.Schema, shape: tuple[int, ...], rows: Rows) -> dict[str, Array]:
    """Return the columns of rows for slots of that shape, each of shape + its field's, in the dtypes of the schema.

    Raises:
        ArgumentTypeError: `rows` is not a mapping.
        SchemaError: A column is missing, or does not fit its field.
    """
    validation.require_instance("rows", rows, Mapping)
    columns: dict[str, Array] = {}
    for path, field in schema.fields.items():
        if path not in rows:
            raise errors.SchemaError(f"{path} is missing: rows must hold every column")
        columns[path] = casting.cast_exact(path, rows[path], shape + field.shape, field.dtype)
    return columns


def check_members(storage: object) -> None:
    """Raise ArgumentTypeError if `storage` lacks members of Storage, or is a class."""
    if isinstance(storage, type) or not all(hasattr(storage, name) for name in ("capacity", "schema", "read", "write")):
        raise errors.ArgumentTypeError(
            f"storage must have capacity, schema, read and write, got {validation.short_repr(storage)}"
        )


_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
MOST_BYTES = 2**48
"""No process can address more."""


@contextlib.contextmanager
def room_for(name: str, count: int, nbytes: int, what: str = "steps") -> Iterator[None]:
    """Raise ArgumentError, which names an argument, if memory does not hold `count` things of that many bytes each.

    It replaces a MemoryError of the body too.
    """
    gigabytes = f"{count * nbytes / 2**30:,.1f} GiB in all"
    refused = errors.ArgumentError(f"{name} must fit in memory, got {count} {what} of {nbytes} bytes each, {gigabytes}")
    if count * nbytes > MOST_BYTES:
        raise refused
    try:
        yield
    except MemoryError as error:
        raise refused from error


def check_room(name: str, count: int, nbytes: int, what: str = "steps") -> None:
    """Raise ArgumentError, as `room_for` does, if memory does not hold an array of them now."""
    with room_for(name, count, nbytes, what):
        np.empty(count * nbytes, np.uint8)


def allocated(name: str, allocate: Allocate, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of that shape and dtype from `allocate`, for the fields of that name.

    Raises:
        ArgumentError: It returns something else.
        CheckpointError: The disk has no room for it.
    """
    try:
        array = np.asarray(allocate(shape, dtype))
    except OSError as error:
        nbytes = math.prod(shape) * dtype.itemsize
        raise errors.CheckpointError(
            f"allocate cannot hold {nbytes} bytes for {name}: {files.reason(error)}"
        ) from error
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise errors.ArgumentError(
            f"allocate must return an array of shape {shape} and dtype {dtype} for {name}, "
            f"in the order of C, got {array.shape} and {array.dtype}"
        )
    return array


def unknown_field(path: object, known: Iterable[str]) -> errors.ArgumentError:
    """Return the error for a field to read that the schema does not have."""
    return errors.ArgumentError(f"fields must be among {', '.join(known)}, got {validation.short_repr(path)}")


def records_of(column: Array) -> Array:
    """Return a view of a column [k, ...] as records of bytes [k], which numpy moves as a whole."""
    return column.reshape(-1).view(f"V{column.itemsize * math.prod(column.shape[1:])}")


def bytes_of(column: Array) -> memoryview:
    """Return a view of the bytes of a column."""
    return column.reshape(-1).view(np.uint8).data


class ColumnStorage(arrays_lib.Derived):
    """A storage in memory, with one preallocated array for each field.

    Writing and reading k rows take O(k) time.

    >>> import numpy as np
    >>> import relive
    >>> from relive.storage import memory
    >>> rows = memory.ColumnStorage(relive.Schema(relive.Field(2, "uint8"), relive.Field((), int)), capacity=10)
    >>> columns = {"observation": np.array([3, 4], np.uint8), "action": np.array(1), "reward": np.array(0.5)}
    >>> rows.write(7, columns)
    >>> rows.read(np.array([[7, 0], [7, 7]]), ["observation"])["observation"].shape
    (2, 2, 2)
    >>> rows.nbytes
    180
    """

    _DERIVED = "_records", "_bytes"
    _is_ready = True
    """Whether rows may be written without asking `_prepare` first."""

    def __init__(self, schema: schema_lib.Schema, capacity: int, *, allocate: Allocate = np.zeros) -> None:
        """Allocate `capacity` rows of `schema`.

        Args:
            schema: The schema of a row.
            capacity: Number of slots.
            allocate: Returns a C-contiguous array of a shape and dtype, such as a memory map; called once for each
                field, in order. Rows can be written if it is writable.

        Raises:
            ArgumentTypeError: `capacity` is not an integer.
            ArgumentError: `capacity` is below 1 or more than memory holds, or `allocate` returns something else.
            CheckpointError: `allocate` finds no room on disk.
        """
        self._capacity = validation.positive_int("capacity", capacity)
        schema_lib.require("schema", schema)
        self._schema = schema
        validation.require_function("allocate", allocate)
        with room_for("capacity", self._capacity, schema.nbytes):
            self._columns: Mapping[str, Array] = {
                path: allocated(path, allocate, (self._capacity, *field.shape), field.dtype)
                for path, field in schema.fields.items()
            }
        self._derive()

    def _derive(self) -> None:
        fields = self._schema.fields
        # Pickle converts non-native byte orders to the native one.
        self._columns = {path: column.astype(fields[path].dtype, copy=False) for path, column in self._columns.items()}
        columns = [(field, column) for field, column in enumerate(self._columns.values()) if column.size]
        # One row is written fastest as a record, and several as bytes.
        self._records = [(field, records_of(column)) for field, column in columns]
        self._bytes = [(field, bytes_of(column), column.nbytes // self._capacity) for field, column in columns]

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self._capacity

    @property
    def schema(self) -> schema_lib.Schema:
        """The schema of a row."""
        return self._schema

    @property
    def nbytes(self) -> int:
        """Number of bytes of all arrays."""
        return sum(column.nbytes for column in self._columns.values())

    @property
    def _rewards(self) -> Array:
        """The rewards by slot [capacity], read-only."""
        rewards = self._columns["reward"].view()
        rewards.flags.writeable = False
        return rewards

    def _prepare(self) -> None:
        """Raise an error if rows cannot be written; if this returns, the next write cannot fail."""

    def write(self, slots: Slots, rows: Rows) -> None:
        """Write a row into each of `slots` [...], which are distinct; `rows` holds every column.

        Raises:
            OutOfRangeError: A slot is not in [0, capacity); nothing has been written.
            ArgumentTypeError: `slots` is neither an integer nor an array of int64, or `rows` is not a mapping.
            SchemaError: A column is missing, or does not fit its field.
        """
        slots = self._checked(slots)
        values = checked_rows(self._schema, np.shape(slots), rows)
        if not self._is_ready:
            self._prepare()
        for path, column in self._columns.items():
            column[slots] = values[path]

    def _write_rows(self, slot: int, count: int, rows: Sequence[bytes | memoryview]) -> None:
        """Write `count` rows to the slots from `slot` on, wrapping around at the end.

        Args:
            slot: Where the first row goes.
            count: How many rows, at most `capacity`.
            rows: For each field, the concatenated bytes of its values.

        Raises:
            OutOfRangeError: The slot is not in [0, capacity); nothing has been written.
        """
        if not 0 <= slot < self._capacity:
            raise errors.OutOfRangeError(f"slots must be in [0, {self._capacity}), got {slot}")
        if not self._is_ready:
            self._prepare()
        if count == 1:
            for field, records in self._records:
                records[slot] = rows[field]
            return
        before_end = self._capacity - slot
        if count <= before_end:
            stop = slot + count
            for field, memory, size in self._bytes:
                memory[slot * size : stop * size] = rows[field]
            return
        for field, memory, size in self._bytes:
            values = memoryview(rows[field])  # Whose parts are no copies: no memory is needed.
            memory[slot * size :] = values[: before_end * size]
            memory[: (count - before_end) * size] = values[before_end * size :]

    def _fill(self, path: str, slot: int, column: state.ChunkedArray) -> None:
        """Write a field of as many rows as a column has, at most `capacity`, from a slot on, once `_is_ready`."""
        before_end = min(column.shape[0], self._capacity - slot)
        state.fill(self._columns[path][slot : slot + before_end], column, 0)
        state.fill(self._columns[path][: column.shape[0] - before_end], column, before_end)

    def read(self, slots: Slots, fields: Collection[str] | None = None) -> dict[str, Array]:
        """Return fresh copies of the rows in `slots` [...], each column of shape slots.shape + field.shape.

        Raises:
            OutOfRangeError: A slot is not in [0, capacity).
            ArgumentTypeError: `slots` is neither an integer nor an array of int64.
            ArgumentError: `fields` has a name that the schema does not have.
        """
        slots = self._checked(slots)
        if isinstance(slots, int):
            return {path: column[0, ...] for path, column in self.read(np.array([slots]), fields).items()}
        try:
            return self._gather(slots, fields)
        except TypeError:
            rule = "fields must be a collection of names"
            raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(fields)}") from None

    def _gather(self, slots: npt.NDArray[np.int64], fields: Collection[str] | None = None) -> dict[str, Array]:
        """Do what `read` does without checking the slots [...]."""
        columns: Mapping[str, Array] = self._columns
        rows = {}
        try:
            for path in columns if fields is None else fields:  # A comprehension is a call.
                rows[path] = columns[path].take(slots, 0)
            return rows
        except KeyError as error:
            raise unknown_field(error.args[0], columns) from None

    def _run(self, path: str, slot: int, count: int) -> Array:
        """Return a field of `count` rows from a slot on, wrapping around at the end: a view, unless they do."""
        column, before_end = self._columns[path], self._capacity - slot
        if count <= before_end:
            return column[slot : slot + count]
        return np.concatenate([column[slot:], column[: count - before_end]], dtype=column.dtype)

    def _checked(self, slots: Slots) -> Slots:
        """Return the checked slots, a single one as an int."""
        rule = "slots must be an integer or an array of int64"
        if isinstance(slots, np.ndarray) and slots.shape:
            if slots.dtype != _INT64:
                raise errors.ArgumentTypeError(f"{rule}, got {slots.dtype}")
            # As unsigned numbers, negative slots are the largest, so one pass finds both kinds of invalid slots.
            if not slots.size or slots.view(_UINT64).max() < self._capacity:
                return slots
            slot = int(slots[(slots < 0) | (slots >= self._capacity)][0])
        else:
            try:
                slot = operator.index(slots)
            except TypeError:
                raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(slots)}") from None
            if 0 <= slot < self._capacity:
                return slot
        raise errors.OutOfRangeError(f"slots must be in [0, {self._capacity}), got {validation.short_repr(slot)}")


class Access:
    """The rows of a ColumnStorage as a store reads and writes them: as bytes, and without checks of slots.

    Attributes:
        storage: The storage.
        write: Writes `count` rows to the slots from one on, given for each field the concatenated bytes of its values.
        read: Does what `read` of the storage does; -1 stands for any row.
        rewards: Has `take(slots)`, which returns rewards.
        records: The fields of the rows as records, by number, where nothing can prevent that they are written; or None.
        contents: The same as bytes, with the size of one.
        can_fail: Whether a write may fail after `prepare`.
        takes_any: Whether `read` takes -1.
    """

    takes_any = True

    def __init__(self, storage: ColumnStorage) -> None:
        self.storage, self.write, self.read = storage, storage._write_rows, storage._gather
        self.rewards = storage._rewards
        self.can_fail = not is_own(storage, "_write_rows")
        is_plain = type(storage) is ColumnStorage
        self.records = storage._records if is_plain else None
        self.contents = storage._bytes if is_plain else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.storage,)

    def prepare(self) -> None:
        """Raise an error if rows cannot be written; if this returns, the next write fails only where it `can_fail`."""
        if not self.storage._is_ready:
            self.storage._prepare()

    def run(self, path: str, slot: int, count: int) -> Array:
        """Return a field of `count` rows from a slot on, wrapping around at the end: a view, unless they do."""
        return self.storage._run(path, slot, count)

    def fill(self, slot: int, columns: Mapping[str, state.ChunkedArray]) -> None:
        """Write all fields of as many rows as a column has, at most `capacity`, from a slot on."""
        self.prepare()
        for path, column in columns.items():
            self.storage._fill(path, slot, column)


def is_own(storage: Storage, *calls: str) -> bool:
    """Return whether methods are those of ColumnStorage, not overridden."""
    return all(getattr(getattr(storage, call), "__func__", None) is getattr(ColumnStorage, call) for call in calls)
