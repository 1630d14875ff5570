"""StorageTests: the conformance suite for storages."""

import abc
from collections.abc import Mapping
import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.schema import schema as schema_lib
from relive.storage import memory as storages
from relive.testing import expectations

Rows: TypeAlias = dict[str, npt.NDArray[Any]]

_SLOTS: list[storages.Slots] = [0, np.array(1), np.arange(4), np.array([[0, 1], [2, 3]]), np.array([2])]
"""Slots among the first four, in every way to give them."""


class StorageTests(abc.ABC):
    """Tests that every storage must pass; pytest collects them from a subclass whose name begins with Test.

    >>> import relive
    >>> from relive import testing
    >>> class TestMyStorage(testing.StorageTests):
    ...     def make(self, schema, capacity):
    ...         return relive.ColumnStorage(schema, capacity)
    """

    schema = schema_lib.Schema(
        observation={
            "image": schema_lib.Field((2, 3), np.uint8),
            "arm": {"angle": schema_lib.Field((), np.float16), "touches": schema_lib.Field(2, np.bool_)},
        },
        action=schema_lib.Field((), [("joint", np.int16), ("force", np.float32, (2,))]),
        extras={
            "step": schema_lib.Field((), np.int64),
            "word": schema_lib.Field(2, "U3"),
            "nothing": schema_lib.Field(0, "f4"),
        },
    )
    """The schema of the tests' storages."""

    @abc.abstractmethod
    def make(self, schema: schema_lib.Schema, capacity: int) -> storages.Storage:
        """Return a fresh storage of `capacity` slots for rows of `schema`."""

    def test_capacity_and_schema_are_those_it_was_made_of(self) -> None:
        """They are those given to `make`."""
        storage = self.make(self.schema, 7)
        assert storage.capacity == 7, f"capacity is {storage.capacity} instead of 7"
        assert storage.schema == self.schema, f"schema is {storage.schema} instead of {self.schema}"

    def test_rows_come_back_in_the_shape_of_their_slots(self) -> None:
        """A column is of shape slots.shape + field.shape, whatever that of the slots, and holds every bit."""
        rng = np.random.default_rng(1)
        for shape in [(), (1,), (5,), (3, 4), (2, 1, 3), (0,), (0, 3), (3, 0)]:
            storage = self.make(self.schema, 12)
            slots = rng.permutation(12)[: math.prod(shape)].reshape(shape)
            rows = _random_rows(self.schema, shape, rng)
            storage.write(slots, rows)
            _assert_equal(storage.read(slots), rows)

    def test_an_int_is_a_slot(self) -> None:
        """An int stands for an array of slots of shape []."""
        rng = np.random.default_rng(2)
        storage = self.make(self.schema, 5)
        row = _random_rows(self.schema, (), rng)
        storage.write(4, row)
        _assert_equal(storage.read(4), row)
        _assert_equal(storage.read(np.array([[4, 4]])), _taken(self.schema, {4: row}, np.array([[4, 4]])))

    def test_no_value_is_rounded(self) -> None:
        """Values that another dtype could not represent are preserved."""
        values: dict[Any, list[float]] = {
            np.float64: [0.1, 1 / 3, 1e300, 5e-324, -0.0, np.nan, -np.inf],
            np.float16: [6e-8, 65504, 0.1, -0.0, np.nan, np.inf, 1],
            np.int64: [2**53 + 1, 2**63 - 1, -(2**63), 0, -1, 2**62 + 1, 1],
            np.uint64: [2**53 + 1, 2**64 - 1, 0, 1, 2**63, 2**63 + 1, 7],
            np.uint8: [0, 1, 255, 128, 127, 7, 9],
            np.bool_: [True, False, True, True, False, False, True],
        }
        for dtype, listed in values.items():
            storage = self.make(schema_lib.Schema(schema_lib.Field((), dtype), schema_lib.Field((), dtype)), 7)
            column = np.array(listed, dtype)
            rows = {"observation": column, "action": column[::-1], "reward": np.array(values[np.float64])}
            storage.write(np.arange(7), rows)
            _assert_equal(storage.read(np.arange(7)), rows)

    def test_a_slot_that_was_never_written_can_be_read(self) -> None:
        """The values are undefined, but have the right shape and dtype."""
        read = self.make(self.schema, 5).read(np.array([[0, 4]]))
        for path, field in self.schema.fields.items():
            assert read[path].shape == (1, 2, *field.shape), f"{path} is of shape {read[path].shape}"
            assert read[path].dtype == field.dtype, f"{path} is of dtype {read[path].dtype}"

    def test_fields_are_those_asked_for(self) -> None:
        """Reading returns the columns that were asked for, and no others."""
        storage, rows = self._filled(3)
        for fields in [[], ["reward"], ("observation/arm/angle", "extras/word"), {"action"}, list(self.schema.fields)]:
            chosen = {path: rows[path] for path in fields}
            _assert_equal(storage.read(np.arange(3), fields), chosen)

    def test_an_unknown_field_is_refused(self) -> None:
        """A path that the schema does not have is an error, not a column less."""
        storage, _ = self._filled(3)
        for field in ["no_such_field", "observation", "extras/no_such_field"]:
            expectations.assert_raises(ValueError, storage.read, 0, ["reward", field])

    def test_a_slot_outside_is_refused_and_nothing_is_written(self) -> None:
        """A slot below 0 does not count from the end; the good slots beside a bad one keep their rows."""
        rng = np.random.default_rng(3)
        storage, rows = self._filled(4)
        for outside in [-1, 4, -4, -5, 2**40, -(2**63), 2**63 - 1]:
            for slots in [np.array(outside), np.array([0, 3, outside]), np.array([[outside, 2]])]:
                others = _random_rows(self.schema, slots.shape, rng)
                expectations.assert_raises(IndexError, storage.read, slots)
                expectations.assert_raises(IndexError, storage.write, slots, others)
            expectations.assert_raises(IndexError, storage.read, outside, ["reward"])
        _assert_equal(storage.read(np.arange(4)), rows)

    def test_writing_into_what_was_read_changes_nothing(self) -> None:
        """Arrays that are returned belong to the caller."""
        storage, rows = self._filled(4)
        for slots in _SLOTS:
            for column in storage.read(slots).values():
                column[...] = np.zeros((), column.dtype)
            _assert_equal(storage.read(np.arange(4)), rows)

    def test_writing_into_what_was_written_changes_nothing(self) -> None:
        """Arrays that are written still belong to the caller."""
        rng = np.random.default_rng(4)
        for slots in _SLOTS:
            storage, _ = self._filled(4)
            rows = _random_rows(self.schema, np.shape(slots), rng)
            before = {path: column.copy() for path, column in rows.items()}
            storage.write(slots, rows)
            for column in rows.values():
                column[...] = np.zeros((), column.dtype)
            _assert_equal(storage.read(slots), before)

    def test_arrays_of_any_layout_are_written_and_left_alone(self) -> None:
        """Slots and columns may be read-only, transposed and reversed."""
        rng = np.random.default_rng(5)
        storage = self.make(self.schema, 12)
        slots = np.arange(12)[::-2].reshape(3, 2).T
        rows = {path: column.swapaxes(0, 1) for path, column in _random_rows(self.schema, (3, 2), rng).items()}
        for array in [slots, *rows.values()]:
            array.flags.writeable = False
        storage.write(slots, rows)
        _assert_equal(storage.read(slots), rows)

    def test_random_operations_agree_with_a_dict(self) -> None:
        """The last row that was written to a slot is the one that is read, and no other slot changes."""
        rng = np.random.default_rng(6)
        for capacity in [1, 2, 9]:
            storage = self.make(self.schema, capacity)
            rows: dict[int, Rows] = {}
            for _ in range(60):
                slots = rng.permutation(capacity)[: rng.integers(capacity + 1)]
                written = _random_rows(self.schema, slots.shape, rng)
                storage.write(slots, written)
                rows |= {slot: {path: written[path][place] for path in written} for place, slot in enumerate(slots)}
                asked = rng.choice(sorted(rows), (2, 3)) if rows else np.zeros((2, 0), np.int64)
                _assert_equal(storage.read(asked), _taken(self.schema, rows, asked))

    def _filled(self, capacity: int) -> tuple[storages.Storage, Rows]:
        """Return a full storage, and what is in slots 0 to capacity - 1."""
        storage = self.make(self.schema, capacity)
        rows = _random_rows(self.schema, (capacity,), np.random.default_rng(0))
        storage.write(np.arange(capacity), {path: column.copy() for path, column in rows.items()})
        return storage, rows


def _random_rows(schema: schema_lib.Schema, lead: tuple[int, ...], rng: np.random.Generator) -> Rows:
    """Return random columns, each of shape `lead` + its field's shape."""
    return {path: _random(field.dtype, lead + field.shape, rng) for path, field in schema.fields.items()}


def _random(dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return an array [shape] of random values of `dtype`, which no other dtype could represent."""
    if dtype.names:
        array = np.zeros(shape, dtype)
        for name in dtype.names:
            array[name] = _random(dtype[name].base, (*shape, *dtype[name].shape), rng)
        return array
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "U":
        return rng.choice(np.array(["", "a", "Zoë"], dtype), shape)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _taken(schema: schema_lib.Schema, rows: Mapping[int, Rows], slots: npt.NDArray[Any]) -> Rows:
    """Return the rows of `slots` [...] as columns, one value at a time."""
    columns = {path: np.zeros(slots.shape + field.shape, field.dtype) for path, field in schema.fields.items()}
    for place, slot in np.ndenumerate(slots):
        for path, column in columns.items():
            column[place] = rows[slot][path]
    return columns


def _assert_equal(columns: Rows, expected: Rows) -> None:
    """Raise AssertionError unless the columns have the paths, the shapes, the dtypes and every bit of the expected."""
    assert columns.keys() == expected.keys(), f"columns are {list(columns)} instead of {list(expected)}"
    for path, column in columns.items():
        twin = expected[path]
        assert type(column) is np.ndarray, f"{path} is a {type(column).__name__}, not an array"
        assert column.dtype == twin.dtype, f"{path} is of dtype {column.dtype} instead of {twin.dtype}"
        assert column.shape == twin.shape, f"{path} is of shape {column.shape} instead of {twin.shape}"
        assert column.tobytes() == twin.tobytes(), f"{path} holds {column} instead of {twin}"
