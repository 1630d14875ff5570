"""RaggedColumns: rows of different lengths in preallocated columns; the oldest rows are evicted for new ones.

    values    a a a b c c c c          column by column, a value in each
    offsets   0     3 4       8        where each row begins, and the last one ends
    keys      0     1 2                names of the rows, never used again

    slot      0 1 2 3 4 5              with max_values = 6, value p of all that ever were lies in slot p modulo 6:
    holds     c c . b c c              row c wraps around, and a has left for it

So any row of at most max_values fits, and nothing is ever moved. Where the fields of a row may differ in length, the
length of a row is that of its longest field. Each field has its own offsets then, and as many slots as it needs: they
double when it runs out of them.
"""

from collections.abc import Collection, Mapping
import os
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.common import validation
from relive.persistence import state as state_lib
from relive.schema import casting
from relive.schema import schema as schema_lib
from relive.storage import memory

FieldLike: TypeAlias = schema_lib.Field | npt.DTypeLike
"""A Field, or the dtype of one of shape []."""
Allocate: TypeAlias = memory.Allocate
Update: TypeAlias = list[tuple[arrays_lib.Array, arrays_lib.Ints, arrays_lib.Array]]
"""Arrays, places in them, and what is to be written there, in the dtypes of the arrays."""
_SMALLEST = 64


class NewRows(NamedTuple):
    """Rows for which there is room, in the dtypes of their columns.

    Attributes:
        values: The values of each field, row after row.
        row_values: The value of each row field [k, ...].
        ends: The offset of the end of each row [tracks, k].
        size: The sum of their lengths.
    """

    values: Mapping[str, arrays_lib.Array]
    row_values: Mapping[str, arrays_lib.Array]
    ends: arrays_lib.Ints
    size: int


class RaggedColumns(duplicates.CopiedWhole):
    """Rows of different lengths, first in, first out.

    A row has one value per position for each field, and a single value for each row field, in the declared dtypes and
    shapes.

    Args:
        max_values: Maximum number of stored values of a field, over all rows.
        fields: What a value of each field is.
        row_fields: What the value of each row field is.
        is_uneven: Whether the fields of a row may differ in length. Then `lengths` below are [k, fields], a row is as
            long as its longest field, and the memory of a field grows with its stored values.
        allocate: Returns a writable array of zeros of a shape and dtype for the values of a field, such as
            `memmap.TemporaryMaps`. A fork must not write to those that share memory with its parent. Copies are in
            memory.

    >>> from relive.storage import ragged
    >>> rows = ragged.RaggedColumns(6, {"token": "int32"}, {"score": "float64"})
    >>> rows.extend({"token": [7, 7, 7, 8]}, lengths=[3, 1], row_values={"score": [0.5, 0.25]})
    0
    >>> rows.extend({"token": [9, 9, 9, 9]}, lengths=[4], row_values={"score": [1.0]})
    1
    >>> rows.read([2, 1, 2])
    ({'token': array([9, 9, 9, 9, 8, 9, 9, 9, 9], dtype=int32)}, array([0, 4, 5, 9]))
    >>> rows.update([0, 1], {"token": [7, 7, 7, 6]}, lengths=[3, 1])  # Row 0 was evicted.
    1
    >>> rows.read([1])[0]["token"], rows.row_values("score")
    (array([6], dtype=int32), array([0.25, 1.  ]))
    """

    def __init__(
        self,
        max_values: int,
        fields: Mapping[str, FieldLike],
        row_fields: Mapping[str, FieldLike] | None = None,
        *,
        is_uneven: bool = False,
        allocate: Allocate = np.zeros,
    ) -> None:
        self._max_values = validation.positive_int("max_values", max_values)
        validation.require_function("allocate", allocate)
        self._is_uneven, self._allocate, self._process = is_uneven, allocate, os.getpid()
        count = 1 if is_uneven else self._max_values
        self._columns = {name: _allocated(name, allocate, *_layout(count, field)) for name, field in fields.items()}
        self._row_columns = {name: np.zeros(*_layout(_SMALLEST, field)) for name, field in (row_fields or {}).items()}
        # The offsets of the rows from key _base on; those before _oldest were evicted, and those from _kept on still
        # have their values. Value p is the p-th value ever added. Track 0 is for the lengths of the rows, and for
        # their fields unless these have tracks of their own.
        self._tracks = {name: place if is_uneven else 0 for place, name in enumerate(fields, 1)}
        self._offsets: arrays_lib.Ints = np.zeros((max(self._tracks.values(), default=0) + 1, _SMALLEST + 1), np.int64)
        self._base = self._kept = self._oldest = self._next = 0

    @classmethod
    def from_state(
        cls,
        given: state_lib.StateReader,
        max_values: int,
        fields: Mapping[str, FieldLike],
        row_fields: Mapping[str, FieldLike] | None = None,
        *,
        is_uneven: bool = False,
        first_key: int = 0,
        allocate: Allocate = np.zeros,
    ) -> Self:
        """Return the rows of a state, with keys from first_key on.

        Raises:
            CheckpointError: The state does not have such rows, or there is no memory for them.
        """
        try:
            rows = cls(max_values, fields, row_fields, is_uneven=is_uneven, allocate=allocate)
        except (MemoryError, ValueError) as error:
            raise errors.CheckpointError(f"there is no memory for the rows: {error}") from error
        if is_uneven:
            lengths: arrays_lib.Ints = given.array("lengths", np.int64, (None, len(fields)))
            longest = lengths.max(axis=1, initial=0)
            if (lengths < 0).any() or (longest < 1).any() or (longest > max_values).any():
                raise given.refused("lengths", f"integers in [0, {max_values}], with one above 0 in each row", lengths)
        else:
            lengths = given.integers("lengths", None, 1, max_values)
        table = rows._table(lengths)
        total, totals = rows._totals(table)
        if total > max_values:
            raise given.refused("lengths", f"integers that sum to at most {max_values}", total)
        rows._base = rows._kept = rows._oldest = rows._next = first_key
        rows._enter(rows._ends(table, totals))
        for name, column in rows._columns.items():
            values = given.column(f"values/{name}", column.dtype, (totals[name], *column.shape[1:]))
            state_lib.fill(column[: totals[name]], values, 0)
        for name, row_column in rows._row_columns.items():
            shape = (len(lengths), *row_column.shape[1:])
            row_column[: len(lengths)] = given.array(f"rows/{name}", row_column.dtype, shape)
        return rows

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._allocate = np.zeros

    def __len__(self) -> int:
        """Return how many rows are held."""
        return self._next - self._oldest

    @property
    def num_values(self) -> int:
        """Number of stored values of a field, over all rows, evicted ones with their values included."""
        return self.num_values_from(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all stored values."""
        stored = sum(np.ptp(self._span(name)) * column[:1].nbytes for name, column in self._columns.items())
        kept = self._next - self._kept
        return int(stored) + sum(column[:kept].nbytes for column in self._row_columns.values())

    @property
    def first_key(self) -> int:
        """The key of the oldest stored row; the others follow consecutively."""
        return self._oldest

    @property
    def first_kept(self) -> int:
        """The key of the first row whose values are stored: an evicted one, or `first_key`."""
        return self._kept

    @property
    def lengths(self) -> arrays_lib.Ints:
        """How many values each row has, the oldest first [rows]."""
        lengths: arrays_lib.Ints = np.diff(self._held()[0])
        return lengths

    @property
    def kept_lengths(self) -> arrays_lib.Ints:
        """How many values each row has whose values are stored, from `first_kept` on [rows]."""
        lengths: arrays_lib.Ints = np.diff(self._stored()[0])
        return lengths

    @property
    def row_names(self) -> list[str]:
        """The names of the row fields."""
        return list(self._row_columns)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of the values of a field."""
        return self._columns[name].dtype

    def extend(
        self,
        values: Mapping[str, npt.ArrayLike],
        lengths: npt.ArrayLike,
        row_values: Mapping[str, npt.ArrayLike] | None = None,
    ) -> int:
        """Store rows and return how many were evicted. O(values), amortised.

        Args:
            values: The values of each field, row after row [sum of lengths, ...].
            lengths: How many values each row has [k]; at least 1.
            row_values: The value of each row field [k, ...].

        Raises:
            SchemaError: A value does not fit its field, or there is none.
            ArgumentError: A row is empty, or the rows have more than max_values values together.
        """
        rows, leaving = self.planned(values, lengths, row_values), 0
        excess = self.num_values + rows.size - self._max_values
        if excess > 0:
            held = self._held()[0]
            leaving = int(held[1:].searchsorted(held[0] + excess)) + 1
            self.evict(leaving)
        self.enter(rows)
        self.write(rows)
        return leaving

    def planned(
        self,
        values: Mapping[str, npt.ArrayLike],
        lengths: npt.ArrayLike,
        row_values: Mapping[str, npt.ArrayLike] | None = None,
    ) -> "NewRows":
        """Return rows to be added by `enter` and `write`, which then cannot fail: it has the arguments of `extend`.

        Raises:
            SchemaError: As in `extend`. Nothing has changed.
            ArgumentError: As in `extend`. Nothing has changed.
        """
        self._refuse_forks()
        table = self._table(lengths)
        total, totals = self._totals(table)
        if total > self._max_values:
            raise errors.ArgumentError(f"lengths must sum to at most max_values = {self._max_values}, got {total}")
        row_values = row_values or {}
        for kept, given in ((self._columns, values), (self._row_columns, row_values)):
            for name in kept:
                if name not in given:
                    raise errors.SchemaError(f"field {name} must have values, got none")
        columns = _fitted(self._columns, values, totals)
        rows = _fitted(self._row_columns, row_values, dict.fromkeys(self._row_columns, len(table[0])))
        return NewRows(columns, rows, self._ends(table, totals), total)

    def enter(self, rows: "NewRows") -> None:
        """Take in planned rows, but for the values of their fields, which must not be read before `write`."""
        place = self._next - self._base
        for name, column in rows.row_values.items():
            self._row_columns[name][place : place + len(column)] = column
        self._enter(rows.ends)

    def write(self, rows: "NewRows") -> None:
        """Write the values of the rows that were taken in last."""
        place = self._next - self._base - rows.ends.shape[1]
        for name, values in rows.values.items():
            column = self._columns[name]
            begin = int(self._offsets[self._tracks[name], place]) % len(column)
            room = len(column) - begin
            column[begin : begin + len(values)] = values[:room]
            column[: max(len(values) - room, 0)] = values[room:]

    @property
    def position(self) -> tuple[int, int, int]:
        """Which rows are held; see `go_back`."""
        return self._kept, self._oldest, self._next

    def go_back(self, position: tuple[int, int, int]) -> None:
        """Hold the rows again that were held at a position, since when rows were evicted and taken in, not written."""
        self._kept, self._oldest, self._next = position

    def lengths_of(self, keys: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many values the rows with those keys have [k], by their longest fields. O(k)."""
        places = self._places(keys)
        lengths: arrays_lib.Ints = self._offsets[0, places + 1] - self._offsets[0, places]
        return lengths

    def num_values_from(self, key: int) -> int:
        """Return the number of stored values of a field in the rows from a key on."""
        return int(self._stored()[0, -1] - self._offsets[0, key - self._base])

    def evict(self, count: int, keep_from: int | None = None) -> None:
        """Evict the oldest `count` rows. Evicted ones from the key `keep_from` on keep their values till the next call.

        Raises:
            ArgumentError: There are fewer, or `count` is not an integer of at least 0.
        """
        count = validation.non_negative_int("count", count)
        if count > len(self):
            raise errors.ArgumentError(f"count must be at most the {len(self)} rows held, got {count}")
        self._oldest += count
        self._kept = self._oldest if keep_from is None else keep_from

    def update(
        self,
        keys: npt.ArrayLike,
        values: Mapping[str, npt.ArrayLike],
        lengths: npt.ArrayLike,
        row_values: Mapping[str, npt.ArrayLike] | None = None,
    ) -> int:
        """Overwrite some fields and row fields of rows, and return how many of the rows are held; others are skipped.

        Args:
            keys: Keys of rows [k]; for the same key twice, the last values are kept.
            values: The values of each field, row after row, those of skipped rows included [sum of lengths, ...].
            lengths: How many values each row has [k].
            row_values: The value of each row field [k, ...].

        Raises:
            SchemaError: A value does not fit its field, or there is no such field. Nothing has changed.
            ArgumentError: A row has another length. Nothing has changed.
        """
        num_alive = int(self._alive(validation.integers("keys", keys)).sum())
        carry_out(self.planned_update(keys, values, lengths, row_values))
        return num_alive

    def planned_update(
        self,
        keys: npt.ArrayLike,
        values: Mapping[str, npt.ArrayLike],
        lengths: npt.ArrayLike,
        row_values: Mapping[str, npt.ArrayLike] | None = None,
    ) -> "Update":
        """Return what `carry_out` writes for an `update` with the same arguments, and raise the same exceptions."""
        self._refuse_forks()
        names, table = validation.integers("keys", keys), self._table(lengths)
        if len(table[0]) != len(names):
            raise errors.ArgumentError(f"lengths must be those of {len(names)} rows, one a key, got {len(table[0])}")
        columns = _fitted(self._columns, values, self._totals(table)[1])
        rows = _fitted(self._row_columns, row_values or {}, dict.fromkeys(self._row_columns, len(names)))
        alive = self._alive(names)
        places = names[alive] - self._base
        slots, offsets = self._slots(places, columns)
        held, given = np.diff(offsets), table[:, alive]
        for track, row in np.argwhere(held != given):
            raise errors.ArgumentError(
                f"lengths must be {held[track, row]} for key {names[alive][row]}, as stored, got {given[track, row]}"
            )
        plan: Update = []
        for name, column in columns.items():
            stored = self._columns[name]
            plan.append((stored, slots[name] % len(stored), column[np.repeat(alive, table[self._tracks[name]])]))
        return plan + [(self._row_columns[name], places, column[alive]) for name, column in rows.items()]

    def read(
        self, keys: npt.ArrayLike, fields: Collection[str] | None = None
    ) -> tuple[dict[str, arrays_lib.Array], arrays_lib.Ints]:
        """Return rows by key [k]: copies of the values of each field [N, ...], row after row, and the offsets [k + 1].

        Row j has the values from offsets[j] to offsets[j + 1]. O(N), without a loop over rows.

        Args:
            keys: Keys of stored rows.
            fields: Names of those to read; all if None.

        Raises:
            UnknownKeyError: A row of one of the keys is not held.
        """
        slots, offsets = self._slots(self._places(keys), self._columns if fields is None else fields)
        return {name: self._columns[name].take(slots[name], axis=0, mode="wrap") for name in slots}, offsets[0]

    def values_at(self, name: str, keys: arrays_lib.Ints, positions: arrays_lib.Ints) -> arrays_lib.Array:
        """Return values of a field at positions in rows with those keys [N, ...]; they may be evicted ones."""
        column = self._columns[name]
        starts: arrays_lib.Ints = self._offsets[self._tracks[name], self._places(keys, self._kept)]
        values: arrays_lib.Array = column.take(starts % len(column) + positions, axis=0, mode="wrap")
        return values

    def row_values(self, name: str, keys: npt.ArrayLike | None = None) -> arrays_lib.Array:
        """Return a copy of a row field for the rows with those keys [k, ...], or for all, oldest first [rows, ...].

        Evicted rows that keep their values may be among the keys.

        Raises:
            UnknownKeyError: A row of one of the keys is not held.
        """
        column = self._row_columns[name]
        if keys is None:
            return column[self._oldest - self._base : self._next - self._base].copy()
        return column.take(self._places(keys, self._kept), axis=0)

    def clear(self) -> None:
        """Remove every row; keys are not reused."""
        self._kept = self._oldest = self._next

    def state_dict(self) -> dict[str, arrays_lib.Array | state_lib.ChunkedArray]:
        """Return "lengths" and the values of each field and row field, from `first_kept` on; gathered lazily."""

        def gathered(name: str, column: arrays_lib.Array) -> state_lib.LazyArray:
            begin, end = self._span(name)

            def read(start: int, stop: int) -> arrays_lib.Array:
                return column.take(np.arange(begin + start, begin + stop) % len(column), axis=0)

            return state_lib.LazyArray((end - begin, *column.shape[1:]), column.dtype, read)

        lengths = np.diff(self._stored())
        arrays: dict[str, arrays_lib.Array | state_lib.ChunkedArray] = {
            "lengths": np.array(lengths[1:].T, order="C") if self._is_uneven else lengths[0]
        }
        arrays |= {f"values/{name}": gathered(name, column) for name, column in self._columns.items()}
        kept = np.arange(self._kept, self._next)
        return arrays | {f"rows/{name}": self.row_values(name, kept) for name in self._row_columns}

    def check(self) -> None:
        """Raise CorruptionError if an invariant does not hold. O(rows)."""
        lengths = np.diff(self._stored())
        if (lengths[0] < 1).any():
            raise errors.CorruptionError("a row must have at least one value")
        if self._is_uneven and ((lengths < 0).any() or (lengths[1:].max(axis=0, initial=0) != lengths[0]).any()):
            raise errors.CorruptionError("a row must be as long as its longest field")
        if self.num_values > self._max_values:
            raise errors.CorruptionError(f"the rows have {self.num_values} values, above the limit {self._max_values}")

    def _refuse_forks(self) -> None:
        if self._allocate is not np.zeros and self._process != os.getpid():
            raise errors.ArgumentError(
                f"rows of {self._allocate!r} must not be written by a fork of the process that made them: write there"
            )

    def _table(self, lengths: npt.ArrayLike) -> arrays_lib.Ints:
        """Return the checked lengths of rows for each track [tracks, k]."""
        sizes = validation.integers("lengths", lengths)
        if self._is_uneven:
            width = len(self._columns)
            sizes = sizes.reshape(len(sizes) // max(width, 1), width)
            if sizes.min(initial=0) < 0:
                raise errors.ArgumentError(f"lengths must be at least 0, got {sizes.min()}")
            table = np.concatenate((sizes.max(axis=1, initial=0, keepdims=True), sizes), axis=1).T
        else:
            table = sizes[np.newaxis]
        if table[0].min(initial=1) < 1:
            raise errors.ArgumentError(f"lengths must be at least 1, got {table[0].min()}")
        return table

    def _totals(self, table: arrays_lib.Ints) -> tuple[int, dict[str, int]]:
        """Return the sum of the lengths of rows [tracks, k], and how many values they have of each field."""
        totals = table.sum(axis=1, dtype=np.float64).tolist()  # Integers could overflow.
        return int(totals[0]), {name: int(totals[track]) for name, track in self._tracks.items()}

    def _held(self) -> arrays_lib.Ints:
        """Return the offsets of the rows held [tracks, rows + 1]."""
        return self._offsets[:, self._oldest - self._base : self._next - self._base + 1]

    def _stored(self) -> arrays_lib.Ints:
        """Likewise, including the evicted rows that keep their values."""
        return self._offsets[:, self._kept - self._base : self._next - self._base + 1]

    def _span(self, name: str) -> tuple[int, int]:
        """Return the first value that is stored of a field, and the one after the last, as values ever added."""
        offsets = self._stored()[self._tracks[name]]
        return int(offsets[0]), int(offsets[-1])

    def _alive(self, keys: arrays_lib.Ints, oldest: int | None = None) -> arrays_lib.Bools:
        return (keys >= (self._oldest if oldest is None else oldest)) & (keys < self._next)

    def _places(self, keys: npt.ArrayLike, oldest: int | None = None) -> arrays_lib.Ints:
        """Return the positions in the row columns of the rows with those keys [k]."""
        names = validation.integers("keys", keys)
        for key in names[~self._alive(names, oldest)]:
            raise errors.UnknownKeyError(f"key {key} not found: its row was evicted, or never was")
        return names - self._base

    def _slots(
        self, places: arrays_lib.Ints, names: Collection[str]
    ) -> tuple[dict[str, arrays_lib.Ints], arrays_lib.Ints]:
        """Return the slots of the values of rows [N] by field, and the offsets [tracks, k + 1].

        Slots beyond the last one stand for those from 0 on.
        """
        starts = self._offsets[:, places]
        lengths = self._offsets[:, places + 1] - starts
        offsets = np.zeros((len(starts), len(places) + 1), np.int64)
        lengths.cumsum(axis=1, out=offsets[:, 1:])
        slots: dict[int, arrays_lib.Ints] = {}
        for name in names:
            track = self._tracks[name]
            if track not in slots:
                firsts = starts[track] % len(self._columns[name]) - offsets[track, :-1]
                slots[track] = np.repeat(firsts, lengths[track]) + np.arange(offsets[track, -1])
        return {name: slots[self._tracks[name]] for name in names}, offsets

    def _ends(self, table: arrays_lib.Ints, totals: Mapping[str, int]) -> arrays_lib.Ints:
        """Return the ends of further rows of those lengths [tracks, k], for which there is room from now on."""
        if self._is_uneven:
            self._columns = {name: self._with_room(name, totals[name]) for name in self._columns}
        self._make_room(table.shape[1])
        ends: arrays_lib.Ints = self._offsets[:, self._next - self._base, np.newaxis] + table.cumsum(axis=1)
        return ends

    def _enter(self, ends: arrays_lib.Ints) -> None:
        """Add rows with those ends [tracks, k], whose values the caller writes."""
        place, count = self._next - self._base, ends.shape[1]
        self._offsets[:, place + 1 : place + 1 + count] = ends
        self._next += count

    def _with_room(self, name: str, count: int) -> arrays_lib.Array:
        """Return the column of a field with room for `count` more values: itself, or a larger copy."""
        column = self._columns[name]
        begin, end = self._span(name)
        needed = min(end - begin + count, self._max_values)
        if needed <= len(column):
            return column
        shape = (min(2 * needed, self._max_values), *column.shape[1:])
        larger = _allocated(name, self._allocate, shape, column.dtype)
        stored = np.arange(begin, end)
        larger[stored % len(larger)] = column[stored % len(column)]
        return larger

    def _make_room(self, count: int) -> None:
        """Make room for `count` more rows: drop evicted ones, and double the space."""
        if self._next - self._base + count < self._offsets.shape[1]:
            return
        first, held = self._kept - self._base, self._next - self._kept
        size = max(_SMALLEST, 2 * (held + count))
        offsets = np.zeros((len(self._offsets), size + 1), np.int64)
        offsets[:, : held + 1] = self._stored()
        columns = {}
        for name, column in self._row_columns.items():
            columns[name] = np.zeros((size, *column.shape[1:]), column.dtype)
            columns[name][:held] = column[first : first + held]
        self._offsets, self._row_columns, self._base = offsets, columns, self._kept


def carry_out(update: Update) -> None:
    """Write what was planned; this cannot fail."""
    for array, places, values in update:
        array[places] = values


def _allocated(name: str, allocate: Allocate, shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays_lib.Array:
    """Do what `memory.allocated` does, but refuse an array that cannot be written to."""
    column = memory.allocated(name, allocate, shape, dtype)
    if not column.flags.writeable:
        raise errors.ArgumentError(f"allocate must return a writable array for {name}, got a read-only one")
    return column


def _layout(count: int, field: FieldLike) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the dtype of an array of that many values of a field."""
    field = field if isinstance(field, schema_lib.Field) else schema_lib.Field((), field)
    return (count, *field.shape), field.dtype


def _fitted(
    columns: Mapping[str, arrays_lib.Array], values: Mapping[str, npt.ArrayLike], counts: Mapping[str, int]
) -> dict[str, arrays_lib.Array]:
    """Return the values [count, ...] in the dtypes of their columns."""
    for name in values:
        if name not in columns:
            raise errors.SchemaError(f"field {name} must be one of {', '.join(columns)}")
    return {
        name: casting.cast_exact(name, column, (counts[name], *columns[name].shape[1:]), columns[name].dtype)
        for name, column in values.items()
    }
