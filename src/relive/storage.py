"""Rows in numbered slots: the protocol that every storage keeps, and the storage that is one array a field.

slot              0    1    2    3          capacity 4
observation     [ o0 , o1 , o2 , o3 ]       each column [capacity, *field.shape]
reward          [ r0 , r1 , r2 , r3 ]
"""

from collections.abc import Callable, Collection, Mapping
import operator
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import checks
from relive import errors
from relive import fitting
from relive import schema as schemas

Array: TypeAlias = fitting.Array
Slots: TypeAlias = npt.NDArray[np.int64] | int
"""Addresses of rows, of any shape; an int is one of shape []."""
Rows: TypeAlias = Mapping[str, Array]
"""Columns by path, each of shape slots.shape + field.shape."""


class Storage(Protocol):
    """Rows in numbered slots; `testing.StorageTests` are its law."""

    @property
    def capacity(self) -> int:
        """How many slots there are."""
        ...

    @property
    def schema(self) -> schemas.Schema:
        """What a row holds."""
        ...

    def write(self, slots: Slots, rows: Rows) -> None:
        """Writes a row into each of `slots` [...], which are distinct.

        `rows` holds a column for every field of the schema, of shape slots.shape + field.shape and of the field's
        dtype: the caller has seen to it. Nothing that is kept aliases them.

        Raises:
            IndexError: A slot is not in [0, capacity); nothing has been written.
        """
        ...

    def read(self, slots: Slots, fields: Collection[str] | None = None) -> dict[str, Array]:
        """Answers fresh copies of the rows in `slots` [...], which may repeat, as columns by path.

        Each column is of shape slots.shape + field.shape and of the field's dtype. A slot that was never written holds
        anything.

        Args:
            slots: Where the rows are.
            fields: The paths of the columns to read; None for all.

        Raises:
            IndexError: A slot is not in [0, capacity).
            ValueError: The schema has no such field.
        """
        ...


def check_members(storage: object) -> None:
    """Raises ArgumentTypeError if `storage` has not the members of a Storage, or is a class."""
    if isinstance(storage, type) or not all(hasattr(storage, name) for name in ("capacity", "schema", "read", "write")):
        raise errors.ArgumentTypeError(
            f"storage must have capacity, schema, read and write, got {checks.shown(storage)}"
        )


class ColumnStorage:
    """A storage that is one array a field, allocated once.

    Writing and reading k rows take O(k) time.

    >>> import numpy as np
    >>> import relive
    >>> from relive import storage
    >>> rows = storage.ColumnStorage(relive.Schema(relive.Field(2, "uint8"), relive.Field((), int)), capacity=10)
    >>> columns = {"observation": np.array([3, 4], np.uint8), "action": np.array(1), "reward": np.array(0.5)}
    >>> rows.write(7, columns)
    >>> rows.read(np.array([[7, 0], [7, 7]]), ["observation"])["observation"].shape
    (2, 2, 2)
    >>> rows.nbytes
    180
    """

    def __init__(
        self,
        schema: schemas.Schema,
        capacity: int,
        *,
        allocate: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.zeros,
    ) -> None:
        """Allocates `capacity` rows of `schema`.

        Args:
            schema: What a row holds.
            capacity: How many slots there are.
            allocate: Answers an array of a shape and a dtype, such as a file's; called once a field, in their order.

        Raises:
            ArgumentTypeError: `capacity` is not an integer.
            ArgumentError: `capacity` is below 1, or `allocate` answers something else.
        """
        self._capacity = checks.integer_of_at_least_one("capacity", capacity)
        checks.instance("schema", schema, schemas.Schema)
        self._schema = schema
        self._columns: dict[str, Array] = {}
        for path, field in schema.fields.items():
            shape = (self._capacity, *field.shape)
            column = np.asarray(allocate(shape, field.dtype))
            if column.shape != shape or column.dtype != field.dtype:
                raise errors.ArgumentError(
                    f"allocate must answer an array of shape {shape} and dtype {field.dtype} for {path}, "
                    f"got {column.shape} and {column.dtype}"
                )
            self._columns[path] = column

    @property
    def capacity(self) -> int:
        """How many slots there are."""
        return self._capacity

    @property
    def schema(self) -> schemas.Schema:
        """What a row holds."""
        return self._schema

    @property
    def nbytes(self) -> int:
        """How many bytes the columns take together."""
        return sum(column.nbytes for column in self._columns.values())

    def write(self, slots: Slots, rows: Rows) -> None:
        """Writes a row into each of `slots` [...], which are distinct; `rows` holds every column.

        Raises:
            OutOfRangeError: A slot is not in [0, capacity); nothing has been written.
            ArgumentTypeError: `slots` is neither an integer nor an array of int64.
        """
        slots = self._checked(slots)
        for path, column in self._columns.items():
            column[slots] = rows[path]

    def read(self, slots: Slots, fields: Collection[str] | None = None) -> dict[str, Array]:
        """Answers fresh copies of the rows in `slots` [...], each column of shape slots.shape + field.shape.

        Raises:
            OutOfRangeError: A slot is not in [0, capacity).
            ArgumentTypeError: `slots` is neither an integer nor an array of int64.
            ArgumentError: The schema has no field of a name in `fields`.
        """
        slots = self._checked(slots)
        columns = self._columns if fields is None else self._chosen(fields)
        if isinstance(slots, int):
            return {path: column[slots, ...].copy() for path, column in columns.items()}
        return {path: column.take(slots, axis=0) for path, column in columns.items()}

    def _chosen(self, fields: Collection[str]) -> dict[str, Array]:
        """Answers the columns of `fields`."""
        for path in fields:
            if path not in self._columns:
                raise errors.ArgumentError(f"fields must be among {', '.join(self._columns)}, got {checks.shown(path)}")
        return {path: self._columns[path] for path in fields}

    def _checked(self, slots: Slots) -> Slots:
        """Answers slots that are all there, a single one as an int."""
        if not isinstance(slots, np.ndarray) or slots.shape == ():
            slot = operator.index(slots)
            if not 0 <= slot < self._capacity:
                raise errors.OutOfRangeError(f"slots must be in [0, {self._capacity}), got {slot}")
            return slot
        if slots.dtype != np.int64:
            raise errors.ArgumentTypeError(f"slots must be an integer or an array of int64, got {slots.dtype}")
        # As unsigned numbers the negative ones are the largest: one pass finds what lies outside on either side.
        if slots.size and slots.view(np.uint64).max() >= self._capacity:
            outside = slots[(slots < 0) | (slots >= self._capacity)][0]
            raise errors.OutOfRangeError(f"slots must be in [0, {self._capacity}), got {outside}")
        return slots
