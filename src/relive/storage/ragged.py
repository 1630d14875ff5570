"""RaggedColumns: rows of different lengths in preallocated columns; the oldest rows are evicted for new ones.

    values    a a a b c c c c          column by column, a value in each
    offsets   0     3 4       8        where each row begins, and the last one ends
    keys      0     1 2                names of the rows, never used again

    slot      0 1 2 3 4 5              with max_values = 6, value p of all that ever were lies in slot p modulo 6:
    holds     c c . b c c              row c wraps around, and a has left for it

So any row of at most max_values fits, and nothing is ever moved.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.common import validation
from relive.persistence import state as state_lib
from relive.schema import casting

_SMALLEST = 64


class RaggedColumns(duplicates.CopiedWhole):
    """Rows of at least one value, first in, first out.

    A row has one value per position for each field, and a single value for each row field, in the declared dtypes.

    Args:
        max_values: Maximum number of stored values of a field, over all rows.
        fields: The dtype of each field.
        row_fields: The dtype of each row field.

    >>> from relive.storage import ragged
    >>> rows = ragged.RaggedColumns(6, {"token": "int32"}, {"score": "float64"})
    >>> rows.extend({"token": [7, 7, 7, 8]}, lengths=[3, 1], row_values={"score": [0.5, 0.25]})
    0
    >>> rows.extend({"token": [9, 9, 9, 9]}, lengths=[4], row_values={"score": [1.0]})
    1
    >>> rows.read([2, 1, 2])
    ({'token': array([9, 9, 9, 9, 8, 9, 9, 9, 9], dtype=int32)}, array([0, 4, 5, 9]))
    >>> rows.row_values("score")
    array([0.25, 1.  ])
    """

    def __init__(
        self,
        max_values: int,
        fields: Mapping[str, npt.DTypeLike],
        row_fields: Mapping[str, npt.DTypeLike] | None = None,
    ) -> None:
        self._max_values = validation.positive_int("max_values", max_values)
        self._columns: dict[str, arrays_lib.Array] = {
            name: np.zeros(self._max_values, dtype) for name, dtype in fields.items()
        }
        # The rows from key _base on; those before _oldest were evicted. Value p is the p-th value ever added.
        self._offsets: arrays_lib.Ints = np.zeros(_SMALLEST + 1, np.int64)
        self._row_columns: dict[str, arrays_lib.Array] = {
            name: np.zeros(_SMALLEST, dtype) for name, dtype in (row_fields or {}).items()
        }
        self._base = self._oldest = self._next = 0

    def __len__(self) -> int:
        """Return how many rows are held."""
        return self._next - self._oldest

    @property
    def num_values(self) -> int:
        """Number of stored values of a field, over all rows."""
        return int(self._offsets[self._next - self._base] - self._offsets[self._oldest - self._base])

    @property
    def first_key(self) -> int:
        """The key of the oldest stored row; the others follow consecutively."""
        return self._oldest

    @property
    def lengths(self) -> arrays_lib.Ints:
        """How many values each row has, the oldest first [rows]."""
        return np.diff(self._offsets[self._oldest - self._base : self._next - self._base + 1])

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a field."""
        return self._columns[name].dtype

    def extend(
        self,
        values: Mapping[str, npt.ArrayLike],
        lengths: npt.ArrayLike,
        row_values: Mapping[str, npt.ArrayLike] | None = None,
    ) -> int:
        """Store rows and return how many were evicted. O(values), amortised.

        Args:
            values: The values of each field, row after row [sum of lengths].
            lengths: How many values each row has [k]; at least 1.
            row_values: The value of each row field [k].

        Raises:
            SchemaError: A value does not fit its field, or there is none.
            ArgumentError: A row is empty, or the rows have more than max_values values together.
        """
        sizes = validation.integers("lengths", lengths)
        if (sizes < 1).any():
            raise errors.ArgumentError(f"lengths must be at least 1, got {sizes[sizes < 1][0]}")
        total = sum(sizes.tolist())
        if total > self._max_values:
            raise errors.ArgumentError(f"lengths must sum to at most max_values = {self._max_values}, got {total}")
        columns = _fitted(self._columns, values, total)
        rows = _fitted(self._row_columns, row_values or {}, len(sizes))
        self._make_room(len(sizes))
        leaving = self._evict(self.num_values + total - self._max_values)
        place = self._next - self._base
        begin = int(self._offsets[place]) % self._max_values
        room = self._max_values - begin
        for name, column in self._columns.items():
            column[begin : begin + total] = columns[name][:room]
            column[: max(total - room, 0)] = columns[name][room:]
        for name, row_column in self._row_columns.items():
            row_column[place : place + len(sizes)] = rows[name]
        self._offsets[place + 1 : place + 1 + len(sizes)] = self._offsets[place] + np.cumsum(sizes)
        self._next += len(sizes)
        return leaving

    def read(
        self, keys: npt.ArrayLike, fields: Collection[str] | None = None
    ) -> tuple[dict[str, arrays_lib.Array], arrays_lib.Ints]:
        """Return rows by key [k]: copies of the values of each field [N], row after row, and the offsets [k + 1].

        Row j has the values from offsets[j] to offsets[j + 1]. O(N), without a loop over rows.

        Args:
            keys: Keys of stored rows.
            fields: Names of those to read; all if None.

        Raises:
            UnknownKeyError: A row of one of the keys is not held.
        """
        places = self._places(keys)
        starts = self._offsets[places]
        offsets = np.zeros(len(places) + 1, np.int64)
        np.cumsum(self._offsets[places + 1] - starts, out=offsets[1:])
        slots = np.repeat(starts % self._max_values - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
        slots[slots >= self._max_values] -= self._max_values
        names = self._columns if fields is None else fields
        return {name: self._columns[name].take(slots) for name in names}, offsets

    def row_values(self, name: str, keys: npt.ArrayLike | None = None) -> arrays_lib.Array:
        """Return a copy of a row field for the rows with those keys [k], or for all, oldest first [rows].

        Raises:
            UnknownKeyError: A row of one of the keys is not held.
        """
        column = self._row_columns[name]
        if keys is None:
            return column[self._oldest - self._base : self._next - self._base].copy()
        return column.take(self._places(keys))

    def clear(self) -> None:
        """Remove every row; keys are not reused."""
        self._oldest = self._next

    def state(self) -> dict[str, arrays_lib.Array | state_lib.ChunkedArray]:
        """Return "lengths" and the values of each field and row field, oldest first; gathered lazily."""
        begin, count = int(self._offsets[self._oldest - self._base]), self.num_values

        def gathered(column: arrays_lib.Array) -> state_lib.LazyArray:
            def read(start: int, stop: int) -> arrays_lib.Array:
                return column.take(np.arange(begin + start, begin + stop) % self._max_values)

            return state_lib.LazyArray((count,), column.dtype, read)

        arrays: dict[str, arrays_lib.Array | state_lib.ChunkedArray] = {"lengths": self.lengths}
        arrays |= {f"values/{name}": gathered(column) for name, column in self._columns.items()}
        return arrays | {f"rows/{name}": self.row_values(name) for name in self._row_columns}

    def fill(self, first_key: int, arrays: Mapping[str, state_lib.ChunkedArray]) -> None:
        """Restore a state with rows from first_key on; there must be no rows yet."""
        lengths = state_lib.in_memory(arrays["lengths"])
        self._base = self._oldest = self._next = first_key
        self._make_room(len(lengths))
        self._offsets[1 : len(lengths) + 1] = np.cumsum(lengths)
        self._next += len(lengths)
        for name, column in self._columns.items():
            for start, stop in state_lib.chunks(self.num_values, self.num_values * column.itemsize):
                column[start:stop] = arrays[f"values/{name}"].read(start, stop)
        for name, row_column in self._row_columns.items():
            row_column[: len(lengths)] = state_lib.in_memory(arrays[f"rows/{name}"])

    def check(self) -> None:
        """Raise CorruptionError if an invariant does not hold. O(rows)."""
        if (self.lengths < 1).any():
            raise errors.CorruptionError("a row must have at least one value")
        if self.num_values > self._max_values:
            raise errors.CorruptionError(f"the rows have {self.num_values} values, above the limit {self._max_values}")

    def _places(self, keys: npt.ArrayLike) -> arrays_lib.Ints:
        """Return the positions in the row columns of the rows with those keys [k]."""
        names = validation.integers("keys", keys)
        for key in names[(names < self._oldest) | (names >= self._next)]:
            raise errors.UnknownKeyError(f"key {key} not found: its row was evicted, or never was")
        return names - self._base

    def _evict(self, excess: int) -> int:
        """Evict the oldest rows until at least `excess` values are free, and return how many."""
        if excess <= 0:
            return 0
        first = self._oldest - self._base
        ends = self._offsets[first + 1 : self._next - self._base + 1]
        leaving = int(ends.searchsorted(self._offsets[first] + excess)) + 1
        self._oldest += leaving
        return leaving

    def _make_room(self, count: int) -> None:
        """Make room for `count` more rows: drop evicted ones, and double the space."""
        if self._next - self._base + count < len(self._offsets):
            return
        first, held = self._oldest - self._base, len(self)
        size = max(_SMALLEST, 2 * (held + count))
        offsets = np.zeros(size + 1, np.int64)
        offsets[: held + 1] = self._offsets[first : first + held + 1]
        columns = {name: np.zeros(size, column.dtype) for name, column in self._row_columns.items()}
        for name, column in columns.items():
            column[:held] = self._row_columns[name][first : first + held]
        self._offsets, self._row_columns, self._base = offsets, columns, self._oldest


def padded(values: arrays_lib.Array, mask: arrays_lib.Bools, padding: object) -> arrays_lib.Array:
    """Return the values of rows, one after the other [N], as a rectangle [B, L], padded where the mask is False.

    The mask [B, L] has N entries that are True: those of a row come first in it.
    """
    rectangle: arrays_lib.Array = np.full(mask.shape, padding, values.dtype)
    rectangle[mask] = values
    return rectangle


def _fitted(
    columns: Mapping[str, arrays_lib.Array], values: Mapping[str, npt.ArrayLike], count: int
) -> dict[str, arrays_lib.Array]:
    """Return values [count] for each column, in its dtype."""
    for name in values:
        if name not in columns:
            raise errors.SchemaError(f"field {name} must be one of {', '.join(columns)}")
    for name in columns:
        if name not in values:
            raise errors.SchemaError(f"field {name} must have values, got none")
    return {name: casting.cast_exact(name, values[name], (count,), column.dtype) for name, column in columns.items()}
