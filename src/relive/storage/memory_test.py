from collections.abc import Collection
import errno
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.common import arrays as arrays_lib
from relive.persistence import state
from relive.storage import memory as storages

PLAIN = relive.Schema(relive.Field(2, np.float32), relive.Field((), np.int64))


class ListStorage:
    """A storage that a user wrote: a list of rows, each a dict of arrays."""

    def __init__(self, schema: relive.Schema, capacity: int) -> None:
        self.schema = schema
        self.capacity = capacity
        row = {path: np.zeros(field.shape, field.dtype) for path, field in schema.fields.items()}
        self.rows = [row] * capacity

    def write(self, slots: storages.Slots, rows: storages.Rows) -> None:
        self.check(slots)
        for place, slot in np.ndenumerate(slots):
            self.rows[slot] = {path: column[(*place, ...)].copy() for path, column in rows.items()}

    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        self.check(slots)
        columns = {}
        for path in self.schema.fields if fields is None else fields:
            if path not in self.schema.fields:
                raise ValueError(f"no field {path}")
            field = self.schema.fields[path]
            columns[path] = np.zeros(np.shape(slots) + field.shape, field.dtype)
            for place, slot in np.ndenumerate(slots):
                columns[path][place] = self.rows[slot][path]
        return columns

    def check(self, slots: storages.Slots) -> None:
        for slot in np.ravel(slots):
            if not 0 <= slot < self.capacity:
                raise IndexError(f"no slot {slot}")


class TestColumnStorage(testing.StorageTests):
    def make(self, schema: relive.Schema, capacity: int) -> relive.Storage:
        return relive.ColumnStorage(schema, capacity)


class TestFileStorage(testing.StorageTests):
    """Columns that are files instead of memory."""

    @pytest.fixture(autouse=True)
    def start(self, tmp_path: pathlib.Path) -> None:
        self.folder = tmp_path

    def make(self, schema: relive.Schema, capacity: int) -> relive.Storage:
        numbers = itertools.count(len(list(self.folder.iterdir())))

        def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays_lib.Array:
            if 0 in shape:
                return np.zeros(shape, dtype)
            return np.memmap(self.folder / str(next(numbers)), dtype, "w+", shape=shape)

        return relive.ColumnStorage(schema, capacity, allocate=allocate)


class TestListStorage(testing.StorageTests):
    def make(self, schema: relive.Schema, capacity: int) -> relive.Storage:
        return ListStorage(schema, capacity)


def row(value: float) -> dict[str, arrays_lib.Array]:
    return {"observation": np.full(2, value, np.float32), "action": np.array(int(value)), "reward": np.array(value)}


def test_a_slot_outside_is_an_error_of_either_kind() -> None:
    rows: list[Any] = [-1, 3, np.int64(3), np.array(-1), np.array([0, 3]), np.array([[0], [-1]])]
    for slots in rows:
        storage = relive.ColumnStorage(PLAIN, 3)
        slot = np.ravel(slots)[-1]
        calls: list[Any] = [storage.read]
        calls += [
            lambda slot, n=n, storage=storage: storage._write_rows(int(slot), n, [b"1" * 8 * n] * 3) for n in (1, 2)
        ]
        for call in calls if np.ndim(slots) == 0 else calls[:1]:
            with pytest.raises(errors.OutOfRangeError, match=rf"^slots must be in \[0, 3\), got {slot}$") as raised:
                call(slots)
            assert isinstance(raised.value, IndexError)
            assert isinstance(raised.value, errors.ArgumentError)
        assert not any(column.any() for column in storage.read(np.arange(3)).values())


def test_an_unknown_field_is_named() -> None:
    storage = relive.ColumnStorage(PLAIN, 3)
    message = r"^fields must be among observation, action, reward, got 'rewards'$"
    with pytest.raises(errors.ArgumentError, match=message):
        storage.read(0, ["reward", "rewards"])


def test_slots_of_another_dtype_are_refused() -> None:
    for slots in [np.array([0.0]), np.array([True]), np.array([0], np.int32)]:
        storage = relive.ColumnStorage(PLAIN, 3)
        rule = r"^slots must be an integer or an array of int64, got (float64|bool|int32)$"
        with pytest.raises(errors.ArgumentTypeError, match=rule):
            storage.read(slots)
        with pytest.raises(errors.ArgumentTypeError, match=rule):
            storage.write(slots, row(1.0))


def test_an_integer_of_any_sort_is_a_slot() -> None:
    rows: list[Any] = [np.int64(1), np.uint8(1), np.array(1), np.array(1, np.int32)]
    for slot in rows:
        storage = relive.ColumnStorage(PLAIN, 3)
        storage.write(slot, row(5.0))
        assert storage.read(slot)["observation"].tolist() == [5.0, 5.0]
        assert storage.read(np.arange(3))["reward"].tolist() == [0.0, 5.0, 0.0]


MIXED = relive.Schema(
    {"image": relive.Field((5, 5, 3), np.uint8), "arm": relive.Field(3, np.float32), "hand": relive.Field((), bool)},
    relive.Field((), np.int16),
    reward=relive.Field((), np.float32),
    extras={
        "logp": relive.Field((), np.float32),
        "state": relive.Field(17, np.float32),
        "name": relive.Field((), "U3"),
    },
)
"""Fields of several sorts."""


def random_rows(schema: relive.Schema, lead: tuple[int, ...], seed: int) -> dict[str, arrays_lib.Array]:
    rng = np.random.default_rng(seed)
    return {path: rng.integers(1, 99, lead + field.shape).astype(field.dtype) for path, field in schema.fields.items()}


def assert_same(columns: dict[str, arrays_lib.Array], expected: dict[str, arrays_lib.Array]) -> None:
    assert columns.keys() == expected.keys()
    for path, column in columns.items():
        assert column.tobytes() == expected[path].tobytes(), path


def test_a_run_of_rows_wraps_around() -> None:
    for dtype in ["<i8", ">i2"]:
        storage = relive.ColumnStorage(relive.Schema(relive.Field(2, dtype), relive.Field((), int)), 5)
        values = np.arange(10).reshape(5, 2).astype(dtype)
        storage.write(np.arange(5), {"observation": values, "action": np.arange(5), "reward": np.zeros(5)})
        for slot in range(5):
            for count in range(6):
                run = storage._run("observation", slot, count)
                assert run.dtype == np.dtype(dtype)
                assert run.tolist() == np.concatenate([values, values])[slot : slot + count].tolist()


def test_a_column_is_read_where_it_belongs() -> None:
    for slot, expected in [(0, [0, 1, 2, 0, 0]), (2, [0, 0, 0, 1, 2]), (3, [2, 0, 0, 0, 1]), (4, [1, 2, 0, 0, 0])]:
        rows = storages.ColumnStorage(PLAIN, 5)
        column = state.LazyArray((3,), np.dtype(np.float64), lambda start, stop: np.arange(3.0)[start:stop])
        rows._fill("reward", slot, column)
        assert rows.read(np.arange(5))["reward"].tolist() == expected


def test_every_field_is_allocated_once_in_their_order() -> None:
    calls: list[tuple[tuple[int, ...], Any]] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays_lib.Array:
        calls.append((shape, dtype))
        return np.ones(shape, dtype)

    storage = relive.ColumnStorage(MIXED, 3, allocate=allocate)
    for _ in range(3):
        storage.write(np.arange(3), storage.read(np.arange(3)))
    assert calls == [((3, *field.shape), field.dtype) for field in MIXED.fields.values()]
    assert storage.read(2)["observation/arm"].tolist() == [1.0, 1.0, 1.0]
    assert storage.nbytes == 3 * MIXED.nbytes


def test_columns_that_were_read_are_whole_arrays_of_their_own() -> None:
    storage = relive.ColumnStorage(MIXED, 6)
    columns = list(storage.read(np.array([[1, 2], [5, 5]])).values())
    for number, column in enumerate(columns):
        assert column.flags.c_contiguous
        assert column.flags.aligned
        assert column.flags.owndata
        assert not any(np.may_share_memory(column, other) for other in columns[:number])


def bytes_of(rows: dict[str, arrays_lib.Array], slots: list[int]) -> list[bytes]:
    """Return the bytes of each field of MIXED, for the rows in `slots`."""
    return [b"".join(rows[path][slot, ...].tobytes() for slot in slots) for path in MIXED.fields]


def test_rows_can_be_written_as_the_bytes_of_fields() -> None:
    """However many there are, around the end too, and the others stay as they are."""
    for buffered in [bytes, memoryview]:
        rows = random_rows(MIXED, (7,), 0)
        for slot in range(7):
            for count in range(8):
                by_columns, by_bytes = relive.ColumnStorage(MIXED, 7), relive.ColumnStorage(MIXED, 7)
                before = random_rows(MIXED, (7,), 1)
                by_columns.write(np.arange(7), before)
                by_bytes.write(np.arange(7), before)
                slots = [(slot + k) % 7 for k in range(count)]
                by_columns.write(np.array(slots, np.int64), {path: column[slots] for path, column in rows.items()})
                by_bytes._write_rows(slot, count, [buffered(values) for values in bytes_of(rows, slots)])
                assert_same(by_bytes.read(np.arange(7)), by_columns.read(np.arange(7)))


def test_a_single_value_keeps_its_dtype() -> None:
    rows: list[Any] = [">f4", "<U5", "S3", "M8[ms]", [("a", ">i2"), ("b", "U2")]]
    for dtype in rows:
        schema = relive.Schema(relive.Field((), dtype), relive.Field((), np.int8))
        storage = relive.ColumnStorage(schema, 2)
        slots: list[storages.Slots] = [1, np.array(1)]
        for slot in slots:
            (value,) = storage.read(slot, ["observation"]).values()
            assert type(value) is np.ndarray
            assert value.dtype == np.dtype(dtype)
            assert value.shape == ()


def full(shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays_lib.Array:
    raise OSError(errno.ENOSPC, "No space left on device")


RULE = r"^allocate must return an array of shape \(4, 2\) and dtype float32"


def test_results_of_allocate_are_checked(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"capacity": 0}, "^capacity must be at least 1, got 0$"),
        ({"capacity": -1}, "^capacity must be at least 1, got -1$"),
        ({"schema": None}, "^schema must be an instance of Schema, got None$"),
        ({"allocate": lambda shape, dtype: np.zeros(shape, dtype, "F")}, "for observation, in the order of C, got "),
        ({"allocate": lambda shape, dtype: np.zeros(shape, np.int64)}, RULE),
        ({"allocate": lambda shape, dtype: np.zeros(3, dtype)}, RULE),
        ({"allocate": full}, "^allocate cannot hold 32 bytes for observation: No space left"),
    ]
    for settings, message in rows:
        with (
            subtests.test(message=message),
            pytest.raises((errors.ArgumentError, errors.CheckpointError), match=message),
        ):
            relive.ColumnStorage(**{"schema": PLAIN, "capacity": 4, **settings})
