"""Tests of ragged columns, with a naive twin: a list of lists."""

from collections.abc import Callable
import copy
import os
import pathlib
import pickle
import tempfile
from typing import Any, ClassVar

import numpy as np
import pytest

import relive
from relive import errors
from relive.persistence import state as state_lib
from relive.storage import memmap
from relive.storage import ragged
from relive.testing import walks

UNEVEN: dict[str, ragged.FieldLike] = {"a": "int32", "b": relive.Field(2, "int64")}
FIELDS = {"token": "int32", "score": "float64"}
ALLOCATE = walks.sampled_from([np.zeros, memmap.TemporaryMaps(tempfile.gettempdir())])


def values_of(numbers: list[list[int]]) -> dict[str, list[Any]]:
    flat = [number for row in numbers for number in row]
    return {"token": flat, "score": [number / 4 for number in flat]}


def added(rows: ragged.RaggedColumns, numbers: list[list[int]]) -> int:
    lengths = [len(row) for row in numbers]
    return rows.extend(values_of(numbers), lengths, {"name": [row[0] for row in numbers]})


def new(max_values: int, allocate: ragged.Allocate = np.zeros) -> ragged.RaggedColumns:
    return ragged.RaggedColumns(max_values, FIELDS, {"name": "int64"}, allocate=allocate)


def held(rows: ragged.RaggedColumns) -> list[list[int]]:
    columns, offsets = rows.read(rows.first_key + np.arange(len(rows)))
    return [part.tolist() for part in np.split(columns["token"], offsets[1:-1])] if len(rows) else []


def snapshot(rows: ragged.RaggedColumns) -> Any:
    return held(rows), rows.first_key, rows.row_values("name").tolist(), rows.lengths.tolist()


def test_rows_come_back_end_to_end_in_the_order_asked_for() -> None:
    rows = new(10)
    assert added(rows, [[1, 2, 3], [4]]) == 0
    columns, offsets = rows.read([1, 0, 1])
    assert columns["token"].tolist() == [4, 1, 2, 3, 4]
    assert columns["score"].tolist() == [1.0, 0.25, 0.5, 0.75, 1.0]
    assert offsets.tolist() == [0, 1, 4, 5]
    assert [column.dtype for column in columns.values()] == [np.int32, np.float64]
    assert rows.read([0], ["score"])[0].keys() == {"score"}
    assert rows.row_values("name", [1, 1, 0]).tolist() == [4, 4, 1]
    assert (rows.num_values, len(rows), rows.dtype("score").str) == (4, 2, "<f8")


def test_rows_of_a_ragged_ring_are_copies() -> None:
    rows = new(5)
    given = np.array([1, 2], np.int32)
    rows.extend({"token": given, "score": np.zeros(2)}, [2], {"name": [1]})
    before = snapshot(rows)
    given[:] = 9
    rows.read([0])[0]["token"][:] = 9
    rows.row_values("name")[:] = 9
    rows.row_values("name", [0])[:] = 9
    rows.lengths[:] = 9
    assert snapshot(rows) == before


def loaded(rows: ragged.RaggedColumns, max_values: int, fields: Any = FIELDS, row_fields: Any = None) -> Any:
    """Return rows of the same state."""
    given = state_lib.StateReader({}, {name: state_lib.in_memory(array) for name, array in rows.state_dict().items()})
    row_fields = {"name": "int64"} if row_fields is None else row_fields
    return ragged.RaggedColumns.from_state(given, max_values, fields, row_fields, first_key=rows.first_key)


def full() -> ragged.RaggedColumns:
    rows = new(5)
    added(rows, [[1, 2], [3, 3, 3]])
    return rows


def refused(call: Callable[[ragged.RaggedColumns], object], error: type[Exception], text: str) -> None:
    """Check that a call on rows that are full is refused, and changes nothing."""
    rows = full()
    before = snapshot(rows)
    with pytest.raises(error, match=f"^{text}$"):
        call(rows)
    assert snapshot(rows) == before
    rows.check()


NAME = {"name": [0]}


@pytest.mark.parametrize(
    ("values", "lengths", "row_values", "text"),
    [
        (values_of([[1]]), [1], None, "field name must have values, got none"),
        ({"token": [1]}, [1], NAME, "field score must have values, got none"),
        (values_of([[1]]) | {"x": [1]}, [1], NAME, "field x must be one of token, score"),
        (values_of([[1]]), [1], {"name": [1], "x": [1]}, "field x must be one of name"),
        ({"token": [2**31], "score": [0.0]}, [1], NAME, "token must fit int32, got 2147483648"),
        ({"token": [1.5], "score": [0.0]}, [1], NAME, "token must fit int32, got 1.5.*"),
        ({"token": [1], "score": [0.0]}, [2], NAME, r"token must be of shape \(2,\), got \(1,\)"),
        (values_of([[1]]), [1], {"name": [1, 2]}, r"name must be of shape \(1,\), got \(2,\)"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(values: Any, lengths: Any, row_values: Any, text: str) -> None:
    refused(lambda rows: rows.extend(values, lengths, row_values), errors.SchemaError, text)


@pytest.mark.parametrize(
    ("numbers", "lengths", "error", "text"),
    [
        ([1], [1, 0], errors.ArgumentError, "lengths must be at least 1, got 0"),
        ([1] * 6, [6], errors.ArgumentError, "lengths must sum to at most max_values = 5, got 6"),
        ([1], [1.0], errors.ArgumentTypeError, r"lengths must be integers, got \[1.0\]"),
    ],
)
def test_lengths_are_checked(numbers: list[int], lengths: Any, error: type[Exception], text: str) -> None:
    refused(lambda rows: rows.extend(values_of([numbers]), lengths, NAME), error, text)
    with pytest.raises(errors.ArgumentError, match="^max_values must be at least 1, got 0$"):
        ragged.RaggedColumns(0, FIELDS)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (3, "count must be at most the 2 rows held, got 3"),
        (-1, "count must be at least 0, got -1"),
        (1.0, "count must be an integer of at least 0, got 1.0"),
    ],
)
def test_only_rows_that_are_held_are_evicted(count: Any, text: str) -> None:
    refused(lambda rows: rows.evict(count), errors.ReplayError, text)


def uneven(max_values: int, allocate: ragged.Allocate = np.zeros) -> ragged.RaggedColumns:
    return ragged.RaggedColumns(max_values, UNEVEN, is_uneven=True, allocate=allocate)


def added_unevenly(rows: ragged.RaggedColumns, numbers: list[tuple[list[int], list[int]]]) -> int:
    a, b = ([number for row in numbers for number in row[field]] for field in range(2))
    pairs = np.array([[number, -number] for number in b], np.int64).reshape(-1, 2)
    return rows.extend({"a": a, "b": pairs}, [[len(row[0]), len(row[1])] for row in numbers])


def held_unevenly(rows: ragged.RaggedColumns) -> list[tuple[list[int], list[int]]]:
    found = []
    for key in range(rows.first_key, rows.first_key + len(rows)):
        columns, offsets = rows.read([key])
        assert offsets.tolist() == [0, max(map(len, columns.values()))]
        assert columns["b"].tolist() == [[number, -number] for number, _ in columns["b"].tolist()]
        found.append((columns["a"].tolist(), columns["b"][:, 0].tolist()))
    return found


def test_fields_that_differ_in_length_are_counted_by_the_longest() -> None:
    rows = uneven(6)
    assert added_unevenly(rows, [([1], [2, 3, 4]), ([], [5])]) == 0
    assert (rows.num_values, rows.lengths.tolist(), rows.nbytes) == (4, [3, 1], 4 + 4 * 16)
    columns, offsets = rows.read([1, 0, 1])
    assert (columns["a"].tolist(), columns["b"][:, 0].tolist()) == ([1], [5, 2, 3, 4, 5])
    assert offsets.tolist() == [0, 1, 4, 5]
    assert added_unevenly(rows, [([6, 7, 8], [])]) == 1
    assert rows.state_dict()["lengths"].tolist() == [[0, 1], [3, 0]]  # type: ignore[union-attr]
    assert rows.update([1, 2, 0], {"a": [9, 10, 11, 0]}, [[0, 1], [3, 0], [1, 3]]) == 2
    assert held_unevenly(rows) == [([], [5]), ([9, 10, 11], [])]


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ([[1, 0], [0, 0]], "lengths must be at least 1, got 0"),
        ([[2, -1]], "lengths must be at least 0, got -1"),
        ([[7, 1]], "lengths must sum to at most max_values = 6, got 7"),
        ([[1, 1]], r"b must be of shape \(1, 2\), got \(0, 2\)"),
    ],
)
def test_lengths_of_fields_are_checked(lengths: Any, text: str) -> None:
    rows = uneven(6)
    added_unevenly(rows, [([1, 2], [3])])
    with pytest.raises(errors.ReplayError, match=f"^{text}$"):
        rows.extend({"a": [1], "b": np.zeros((0, 2))}, lengths)
    assert held_unevenly(rows) == [([1, 2], [3])]
    with pytest.raises(errors.ArgumentError, match="^lengths must be 1 for key 0, as stored, got 2$"):
        rows.update([5, 0], {}, [[1, 2], [2, 2]])


def test_a_field_has_memory_for_its_own_values() -> None:
    rows = uneven(1000)
    for number in range(500):
        added_unevenly(rows, [([number] * 50, [number])])
    assert held_unevenly(rows) == [([number] * 50, [number]) for number in range(480, 500)]
    assert rows.nbytes == 1000 * 4 + 20 * 16
    assert [len(column) for column in rows._columns.values()] == [1000, 22]


POINT = np.dtype([("x", "<f4"), ("y", ">i2")])


def test_values_of_any_shape_and_dtype_come_back_bit_for_bit() -> None:
    fields: dict[str, ragged.FieldLike] = {
        "image": relive.Field((2, 2), "uint8"),
        "nothing": relive.Field(0, float),
        "point": POINT,
    }
    row_fields: dict[str, ragged.FieldLike] = {"goal": relive.Field(3, ">f2"), "name": "<U3"}
    rows = ragged.RaggedColumns(4, fields, row_fields)
    rows.extend(
        {"image": np.zeros((3, 2, 2), "u1"), "nothing": np.zeros((3, 0)), "point": np.zeros(3, POINT)}, [3], ROW
    )
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    points = np.array([(1, 2), (-0.0, 4), (5, 6)], POINT)
    assert rows.extend({"image": images, "nothing": np.zeros((3, 0)), "point": points}, [1, 2], TWO_ROWS) == 1
    columns, _ = rows.read([2, 1])
    assert columns["image"].tobytes() == images[[1, 2, 0]].tobytes()
    assert columns["point"].tobytes() == points[[1, 2, 0]].tobytes()
    assert columns["nothing"].shape == (3, 0)
    assert rows.row_values("goal", [2]).tobytes() == np.array([[4, 5, 6]], ">f2").tobytes()
    assert rows.row_values("name").tolist() == ["b", "c"]
    again = loaded(rows, 4, fields, row_fields)
    assert [array.tobytes() for array in again.read([2, 1])[0].values()] == [
        array.tobytes() for array in columns.values()
    ]
    assert again.row_values("goal").tobytes() == rows.row_values("goal").tobytes()
    with pytest.raises(errors.SchemaError, match=r"^image must be of shape \(1, 2, 2\), got \(1, 2\)$"):
        rows.update([1], {"image": [[1, 2]]}, [1])


ROW: dict[str, Any] = {"goal": np.zeros((1, 3), ">f2"), "name": ["a"]}
TWO_ROWS: dict[str, Any] = {"goal": np.array([[1, 2, 3], [4, 5, 6]], ">f2"), "name": ["b", "c"]}


def test_updates_overwrite_the_rows_held_and_skip_others() -> None:
    rows = new(6)
    added(rows, [[0], [1, 1]])
    added(rows, [[2, 2, 2], [3]])
    assert rows.first_key == 1
    assert rows.update([3, 0, 9, 2], {"token": [30, 7, 7, 7, 20, 21, 22]}, [1, 1, 2, 3]) == 2
    assert rows.update([0, 2, 9, 2], {}, [1, 3, 1, 3], {"name": [7, 5, 7, 6]}) == 2
    assert rows.read([1, 2, 3])[0]["token"].tolist() == [1, 1, 20, 21, 22, 30]
    assert rows.read([1, 2, 3])[0]["score"].tolist() == [0.25, 0.25, 0.5, 0.5, 0.5, 0.75]
    assert rows.row_values("name").tolist() == [1, 6, 3]
    assert rows.update([], {"token": []}, []) == rows.update([], {}, [], {"name": []}) == 0


@pytest.mark.parametrize(
    ("keys", "values", "lengths", "text"),
    [
        ([0, 1], {"token": [1, 2, 3]}, [1, 2], "lengths must be 2 for key 0, as stored, got 1"),
        ([0, 1], {"token": [1, 2, 3]}, [3], "lengths must be those of 2 rows, one a key, got 1"),
        ([0, 9], {"token": [1]}, [2, -1], "lengths must be at least 1, got -1"),
        ([0, 9], {"token": [1, 2]}, [2, 1], r"token must be of shape \(3,\), got \(2,\)"),
        ([0], {"token": [1, 2], "score": [1, 2j]}, [2], "score must be of dtype float64, got .*"),
        ([0], {"token": [1, 2**31]}, [2], "token must fit int32, got 2147483648"),
        ([9], {"token": [2**31]}, [1], "token must fit int32, got 2147483648"),
        ([0], {"token": [1, 2], "name": [1]}, [2], "field name must be one of token, score"),
        ([0.5], {"token": [1, 2]}, [2], r"keys must be integers, got \[0.5\]"),
    ],
)
def test_an_update_that_does_not_fit_changes_nothing(keys: Any, values: Any, lengths: Any, text: str) -> None:
    refused(lambda rows: rows.update(keys, values, lengths), errors.ReplayError, text)


@pytest.mark.parametrize(
    ("keys", "row_values", "text"),
    [
        ([0, 1], {"name": [1]}, r"name must be of shape \(2,\), got \(1,\)"),
        ([0, 9], {"name": [1, 0.5]}, "name must fit int64, got 0.5.*"),
        ([0], {"name": [7], "token": [1]}, "field token must be one of name"),
        (["a"], {"name": [1]}, r"keys must be integers, got \['a'\]"),
    ],
)
def test_a_wrong_update_of_row_fields_changes_nothing(keys: Any, row_values: Any, text: str) -> None:
    refused(lambda rows: rows.update(keys, {}, [2] * len(keys), row_values), errors.ReplayError, text)


def test_keys_that_are_not_held_are_refused() -> None:
    rows = new(2)
    for number in range(4):
        added(rows, [[number]])
    for key in (-1, 1, 4):
        text = f"^key {key} not found: its row was evicted, or never was$"
        with pytest.raises(errors.UnknownKeyError, match=text):
            rows.read([2, key])
        with pytest.raises(errors.UnknownKeyError, match=text):
            rows.row_values("name", [key])


def test_memory_is_for_the_rows_held() -> None:
    rows = new(100)
    added(rows, [[number] for number in range(100)])
    assert held(rows) == [[number] for number in range(100)]
    for number in range(2_000):
        added(rows, [[number] * 10])
    assert rows._offsets.shape == (1, 65)
    assert len(rows._row_columns["name"]) == 64
    for number in range(200):
        added(rows, [[number]])
    assert rows._offsets.shape[1] <= 2 * 102 + 1
    assert held(rows) == [[number] for number in range(100, 200)]
    assert snapshot(loaded(rows, 100)) == snapshot(rows)


def test_evicted_rows_keep_their_values_until_they_are_let_go() -> None:
    rows = ragged.RaggedColumns(20, {"token": "int32"}, {"number": "int64"})
    for number in range(6):
        rows.extend({"token": [number] * 3}, lengths=[3], row_values={"number": [number]})
    rows.evict(4, keep_from=2)
    for _ in range(2):
        assert (rows.first_kept, rows.first_key, len(rows), rows.num_values, rows.num_values_from(3)) == (
            2,
            4,
            2,
            12,
            9,
        )
        keys, positions = np.array([2, 3, 5]), np.array([0, 1, 2])
        assert (
            rows.values_at("token", keys, positions).tolist() == rows.row_values("number", keys).tolist() == [2, 3, 5]
        )
        assert rows.kept_lengths.tolist() == np.asarray(rows.state_dict()["lengths"]).tolist() == [3] * 4
        with pytest.raises(errors.UnknownKeyError, match="key 1 not found"):
            rows.values_at("token", np.array([1]), np.array([0]))
        with pytest.raises(errors.UnknownKeyError, match="key 3 not found"):
            rows.read([3])
        rows.check()
        rows._make_room(200)  # Moves what is known of the rows.
    rows.extend({"token": [6] * 8}, lengths=[8], row_values={"number": [6]})
    assert rows.read([4, 5, 6])[0]["token"].tolist() == [4] * 3 + [5] * 3 + [6] * 8
    assert rows.values_at("token", np.array([2, 3]), np.array([2, 2])).tolist() == [2, 3]
    rows.evict(0)
    assert (rows.first_kept, rows.num_values) == (4, 14)


def test_check_finds_wrong_rows_of_a_ragged_ring() -> None:
    rows = new(6)
    added(rows, [[1, 2], [3]])
    rows.check()
    rows._offsets[0, 2] = 2
    with pytest.raises(errors.CorruptionError, match="^a row must have at least one value$"):
        rows.check()
    rows._offsets[0, 2] = 9
    with pytest.raises(errors.CorruptionError, match="^the rows have 9 values, above the limit 6$"):
        rows.check()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ((1, 1, 4), "a row must be as long as its longest field"),
        ((2, 1, -1), "a row must be as long as its longest field"),
        ((0, 2, 3), "a row must have at least one value"),
        ((0, 2, 9), "a row must be as long as its longest field"),
    ],
)
def test_check_finds_what_is_wrong_with_fields(damage: tuple[int, int, int], text: str) -> None:
    rows = uneven(6)
    added_unevenly(rows, [([1, 2], [3, 4, 5]), ([6], [7])])
    rows.check()
    rows._offsets[damage[:2]] = damage[2]
    with pytest.raises(errors.CorruptionError, match=f"^{text}$"):
        rows.check()


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (
            {"lengths": np.array([[1, 0], [0, 0]])},
            r"lengths must be integers in \[0, 6\], with one above 0 in each row.*",
        ),
        ({"lengths": np.array([[2, -1]])}, "lengths must be integers in .*"),
        ({"lengths": np.array([[7, 1]])}, "lengths must be integers in .*"),
        ({"lengths": np.array([[3, 1], [1, 4]])}, "lengths must be integers that sum to at most 6, got 7"),
        (
            {"lengths": np.array([[1, 1]])},
            r"array values/b must be of dtype int64 and shape \(1, 2\), got int64 and \(3, 2\)",
        ),
        ({"values/a": np.zeros(1)}, "array values/a must be of dtype int32 .*"),
        ({"lengths": np.array([1])}, "array lengths must be of .*"),
    ],
)
def test_impossible_states_of_ragged_rings_are_refused(arrays: Any, text: str) -> None:
    rows = uneven(6)
    added_unevenly(rows, [([1], [2, 3, 4])])
    given = {name: state_lib.in_memory(array) for name, array in rows.state_dict().items()}
    assert held_unevenly(loaded_unevenly(given)) == [([1], [2, 3, 4])]
    with pytest.raises(errors.CheckpointError, match=f"^{text}$"):
        loaded_unevenly(given | arrays)


def loaded_unevenly(arrays: Any, max_values: int = 6, first_key: int = 0) -> ragged.RaggedColumns:
    given = state_lib.StateReader({}, arrays)
    return ragged.RaggedColumns.from_state(given, max_values, UNEVEN, is_uneven=True, first_key=first_key)


def test_impossible_states_of_even_rows_are_refused() -> None:
    rows = new(6)
    added(rows, [[1, 2], [3]])
    arrays = {f"it/{name}": state_lib.in_memory(array) for name, array in rows.state_dict().items()}
    for change, text in [
        ({"it/lengths": np.array([0, 3])}, r"array it/lengths must hold integers in \[1, 6\], got 0"),
        ({"it/lengths": np.array([6, 1])}, "it/lengths must be integers that sum to at most 6, got 7"),
        (
            {"it/rows/name": np.array([1])},
            r"array it/rows/name must be of dtype int64 and shape \(2\), got int64 and .*",
        ),
        ({"it/values/score": np.zeros(2)}, r"array it/values/score must be of dtype float64 and shape \(3\), got .*"),
    ]:
        given = state_lib.StateReader({"it": {}}, arrays | change).part("it")
        with pytest.raises(errors.CheckpointError, match=f"^{text}$"):
            ragged.RaggedColumns.from_state(given, 6, FIELDS, {"name": "int64"})
    given = state_lib.StateReader({"it": {}}, arrays).part("it")
    with pytest.raises(errors.CheckpointError, match="^there is no memory for the rows: "):
        ragged.RaggedColumns.from_state(given, 2**62, FIELDS)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda rows: pickle.loads(pickle.dumps(rows))])
def test_copies_of_mapped_rows_are_in_memory_and_their_own(copied: Any, tmp_path: pathlib.Path) -> None:
    rows = new(4, memmap.TemporaryMaps(tmp_path))
    added(rows, [[1, 2], [3]])
    other = copied(rows)
    other._process = -1
    added(other, [[4, 5]])
    assert held(other) == [[3], [4, 5]]
    assert held(rows) == [[1, 2], [3]]


def test_a_fork_reads_mapped_rows_and_must_not_write_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, own = new(4, memmap.TemporaryMaps(tmp_path)), new(4)
    for each in (rows, own):
        added(each, [[1, 2]])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(errors.ArgumentError, match="^rows of TemporaryMaps.* must not be written by a fork"):
        added(rows, [[3]])
    with pytest.raises(errors.ArgumentError, match="^rows of TemporaryMaps.* must not be written by a fork"):
        rows.update([0], {"token": [7, 7]}, [2])
    assert held(rows) == [[1, 2]]
    added(own, [[3]])
    assert held(own) == [[1, 2], [3]]


class RaggedMachine(walks.Machine):
    """Compares with lists under any order of calls."""

    often: ClassVar = {"extend": 6, "update": 3, "read": 3}
    least: ClassVar = {"evicted": 500}

    @walks.initialize(max_values=walks.integers(1, 30), allocate=ALLOCATE)
    def start(self, max_values: int, allocate: ragged.Allocate) -> None:
        self.max_values = max_values
        self.rows = new(max_values, allocate)
        self.twin: list[list[int]] = []
        self.first_key = 0
        self.counter = 0

    @walks.rule(lengths=walks.lists(walks.integers(1, 12), 0, 5), repeat=walks.integers(1, 20))
    def extend(self, lengths: list[int], repeat: int) -> None:
        for _ in range(repeat):
            self._extend(lengths)

    def _extend(self, lengths: list[int]) -> None:
        numbers = []
        for length in lengths:
            numbers.append(list(range(self.counter, self.counter + length)))
            self.counter += length
        if sum(lengths) > self.max_values:
            with pytest.raises(errors.ArgumentError, match="must sum to at most"):
                added(self.rows, numbers)
            return
        self.twin += numbers
        leaving = 0
        while sum(map(len, self.twin)) > self.max_values:
            del self.twin[0]
            leaving += 1
        self.first_key += leaving
        self.reached["evicted"] += leaving
        assert added(self.rows, numbers) == leaving

    @walks.rule(count=walks.integers(0, 5))
    def evict(self, count: int) -> None:
        if count > len(self.twin):
            with pytest.raises(errors.ArgumentError, match="^count must be at most"):
                self.rows.evict(count)
            return
        self.rows.evict(count)
        self.first_key += count
        del self.twin[:count]

    @walks.rule(places=walks.lists(walks.integers(-3, 30), 0, 6))
    def update(self, places: list[int]) -> None:
        """Rows that are not held have one value, which must go nowhere."""
        held = [place for place in places if 0 <= place < len(self.twin)]
        numbers = []
        for place in places:
            length = len(self.twin[place]) if 0 <= place < len(self.twin) else 1
            numbers.append(list(range(self.counter, self.counter + length)))
            self.counter += length
        keys = np.array(places, np.int64) + self.first_key
        names = {"name": [row[0] for row in numbers]}
        assert self.rows.update(keys, values_of(numbers), list(map(len, numbers)), names) == len(held)
        for place, row in zip(places, numbers, strict=True):
            if 0 <= place < len(self.twin):
                self.twin[place] = row

    @walks.rule()
    def clear(self) -> None:
        self.first_key += len(self.twin)
        self.twin = []
        self.rows.clear()

    @walks.rule()
    def save_and_load(self) -> None:
        assert self.rows.first_key == self.first_key
        self.rows = loaded(self.rows, self.max_values)

    @walks.rule(places=walks.lists(walks.integers(0, 29), 0, 6))
    def read(self, places: list[int]) -> None:
        drawn = [place for place in places if place < len(self.twin)]
        keys = np.array(drawn, np.int64) + self.first_key
        columns, offsets = self.rows.read(keys)
        expected = [self.twin[place] for place in drawn]
        assert columns["token"].tolist() == [number for row in expected for number in row]
        assert columns["score"].tolist() == [number / 4 for row in expected for number in row]
        assert np.diff(offsets).tolist() == [len(row) for row in expected]
        assert self.rows.row_values("name", keys).tolist() == [row[0] for row in expected]

    @walks.invariant(every=3)
    def the_same_rows_are_held(self) -> None:
        firsts, lengths = [row[0] for row in self.twin], [len(row) for row in self.twin]
        assert snapshot(self.rows) == (self.twin, self.first_key, firsts, lengths)
        assert self.rows.num_values == sum(map(len, self.twin))
        assert len(self.rows) == len(self.twin)
        self.rows.check()


TestRaggedMachine = walks.tests_of(RaggedMachine)


LENGTHS = [(long, short) for long in range(7) for short in range(4) if long or short]


class UnevenMachine(walks.Machine):
    """Compares rows whose fields differ in length with lists."""

    often: ClassVar = {"extend": 5}
    least: ClassVar = {"evicted": 200}

    @walks.initialize(max_values=walks.integers(1, 20), allocate=ALLOCATE)
    def start(self, max_values: int, allocate: ragged.Allocate) -> None:
        self.max_values = max_values
        self.rows = uneven(max_values, allocate)
        self.twin: list[tuple[list[int], list[int]]] = []
        self.gone = self.counter = 0

    @walks.rule(lengths=walks.lists(walks.sampled_from(LENGTHS), 0, 4))
    def extend(self, lengths: list[tuple[int, int]]) -> None:
        total = sum(map(max, lengths))
        numbers = [tuple(list(range(self.counter, self.counter + length)) for length in both) for both in lengths]
        self.counter += 7
        if total > self.max_values:
            with pytest.raises(errors.ArgumentError, match="must sum to at most"):
                added_unevenly(self.rows, numbers)  # type: ignore[arg-type]
            return
        leaving = 0
        while sum(max(map(len, row)) for row in self.twin[leaving:]) + total > self.max_values:
            leaving += 1
        assert added_unevenly(self.rows, numbers) == leaving  # type: ignore[arg-type]
        self.gone += leaving
        self.reached["evicted"] += leaving
        self.twin = self.twin[leaving:] + numbers  # type: ignore[operator]

    @walks.rule(count=walks.integers(0, 2))
    def evict(self, count: int) -> None:
        count = min(count, len(self.twin))
        self.rows.evict(count)
        self.gone += count
        del self.twin[:count]

    @walks.rule()
    def save_and_load(self) -> None:
        arrays = {name: state_lib.in_memory(array) for name, array in self.rows.state_dict().items()}
        self.rows = loaded_unevenly(arrays, self.max_values, self.gone)

    @walks.invariant(every=3)
    def the_same_rows_are_held(self) -> None:
        assert (held_unevenly(self.rows), self.rows.first_key) == (self.twin, self.gone)
        self.rows.check()


TestUnevenMachine = walks.tests_of(UnevenMachine)
