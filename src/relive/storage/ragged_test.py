"""Tests of ragged columns, with a naive twin: a list of lists."""

from typing import Any

from hypothesis import stateful
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive.persistence import state as state_lib
from relive.storage import ragged

FIELDS = {"token": "int32", "score": "float64"}


def values_of(numbers: list[list[int]]) -> dict[str, list[Any]]:
    flat = [number for row in numbers for number in row]
    return {"token": flat, "score": [number / 4 for number in flat]}


def added(rows: ragged.RaggedColumns, numbers: list[list[int]]) -> int:
    lengths = [len(row) for row in numbers]
    return rows.extend(values_of(numbers), lengths, {"name": [row[0] for row in numbers]})


def new(max_values: int) -> ragged.RaggedColumns:
    return ragged.RaggedColumns(max_values, FIELDS, {"name": "int64"})


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


def test_no_keys_are_no_rows() -> None:
    rows = new(10)
    added(rows, [[1]])
    columns, offsets = rows.read([])
    assert (columns["token"].tolist(), offsets.tolist()) == ([], [0])
    assert rows.extend({"token": [], "score": []}, [], {"name": []}) == 0
    assert len(rows) == 1


@pytest.mark.parametrize("cursor", range(7))
def test_a_row_wraps_around_wherever_it_begins(cursor: int) -> None:
    rows = new(6)
    for number in range(cursor):
        added(rows, [[number]])
    added(rows, [[10, 11, 12, 13, 14, 15]])
    assert held(rows) == [[10, 11, 12, 13, 14, 15]]
    assert rows.num_values == 6
    assert added(rows, [[20], [21, 22]]) == 1
    assert held(rows) == [[20], [21, 22]]


def test_the_limit_is_kept_to_the_value() -> None:
    rows = new(5)
    assert added(rows, [[1, 1], [2, 2, 2]]) == 0
    assert added(rows, [[3]]) == 1
    assert held(rows) == [[2, 2, 2], [3]]
    assert added(rows, [[4]]) == 0
    assert added(rows, [[5]]) == 1
    assert added(rows, [[6] * 5]) == 3
    assert rows.num_values == 5


def test_what_is_answered_is_a_copy() -> None:
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


def refused(values: Any, lengths: Any, row_values: Any, error: type[Exception], text: str) -> None:
    rows = new(5)
    added(rows, [[1, 2], [3, 3, 3]])
    before = snapshot(rows)
    with pytest.raises(error, match=f"^{text}$"):
        rows.extend(values, lengths, row_values)
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
def test_what_does_not_fit_its_field_is_refused_and_named(
    values: Any, lengths: Any, row_values: Any, text: str
) -> None:
    refused(values, lengths, row_values, errors.SchemaError, text)


def test_lengths_are_checked() -> None:
    refused(values_of([[1]]), [1, 0], NAME, errors.ArgumentError, "lengths must be at least 1, got 0")
    refused(values_of([[1] * 6]), [6], NAME, errors.ArgumentError, "lengths must sum to at most max_values = 5, got 6")
    refused(values_of([[1]]), [1.0], NAME, errors.ArgumentTypeError, r"lengths must be integers, got \[1.0\]")
    with pytest.raises(errors.ArgumentError, match="^max_values must be at least 1, got 0$"):
        ragged.RaggedColumns(0, FIELDS)


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


def test_rows_without_row_fields_are_rows() -> None:
    rows = ragged.RaggedColumns(4, {"token": "int32"})
    rows.extend({"token": [1, 2]}, [2])
    assert rows.read([0])[0]["token"].tolist() == [1, 2]


def test_memory_is_for_the_rows_held() -> None:
    rows = new(100)
    added(rows, [[number] for number in range(100)])
    assert held(rows) == [[number] for number in range(100)]
    for number in range(2_000):
        added(rows, [[number] * 10])
    assert len(rows._offsets) == 65
    assert len(rows._row_columns["name"]) == 64
    for number in range(200):
        added(rows, [[number]])
    assert len(rows._offsets) <= 2 * 102 + 1
    assert held(rows) == [[number] for number in range(100, 200)]


def test_check_finds_what_is_wrong() -> None:
    rows = new(6)
    added(rows, [[1, 2], [3]])
    rows.check()
    rows._offsets[2] = 2
    with pytest.raises(errors.CorruptionError, match="^a row must have at least one value$"):
        rows.check()
    rows._offsets[2] = 9
    with pytest.raises(errors.CorruptionError, match="^the rows have 9 values, above the limit 6$"):
        rows.check()


def test_padding_stands_on_the_right_alone() -> None:
    mask = np.array([[True, True, False], [True, False, False], [True, True, True]])
    rectangle = ragged.padded(np.array([1, 2, 3, 4, 5, 6], np.int32), mask, -1)
    assert rectangle.tolist() == [[1, 2, -1], [3, -1, -1], [4, 5, 6]]
    assert rectangle.dtype == np.int32


class RaggedMachine(stateful.RuleBasedStateMachine):
    """Compares with lists under any order of calls."""

    @stateful.initialize(max_values=st.integers(1, 30))
    def start(self, max_values: int) -> None:
        self.max_values = max_values
        self.rows = new(max_values)
        self.twin: list[list[int]] = []
        self.first_key = 0
        self.counter = 0

    @stateful.rule(lengths=st.lists(st.integers(1, 12), max_size=5), repeat=st.integers(1, 20))
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
        assert added(self.rows, numbers) == leaving

    @stateful.rule()
    def clear(self) -> None:
        self.first_key += len(self.twin)
        self.twin = []
        self.rows.clear()

    @stateful.rule()
    def save_and_load(self) -> None:
        state = self.rows.state()
        given = state_lib.StateReader({}, {name: state_lib.in_memory(array) for name, array in state.items()})
        kept = {name: given.column(name, array.dtype, (None,)) for name, array in state.items()}
        self.rows = new(self.max_values)
        self.rows.fill(self.first_key, kept)

    @stateful.rule(places=st.lists(st.integers(0, 29), max_size=6))
    def read(self, places: list[int]) -> None:
        drawn = [place for place in places if place < len(self.twin)]
        keys = np.array(drawn, np.int64) + self.first_key
        columns, offsets = self.rows.read(keys)
        expected = [self.twin[place] for place in drawn]
        assert columns["token"].tolist() == [number for row in expected for number in row]
        assert columns["score"].tolist() == [number / 4 for row in expected for number in row]
        assert np.diff(offsets).tolist() == [len(row) for row in expected]
        assert self.rows.row_values("name", keys).tolist() == [row[0] for row in expected]

    @stateful.invariant()
    def the_same_rows_are_held(self) -> None:
        assert snapshot(self.rows) == (
            self.twin,
            self.first_key,
            [row[0] for row in self.twin],
            [len(row) for row in self.twin],
        )
        assert self.rows.num_values == sum(map(len, self.twin))
        assert len(self.rows) == len(self.twin)
        self.rows.check()


TestRaggedMachine = RaggedMachine.TestCase
