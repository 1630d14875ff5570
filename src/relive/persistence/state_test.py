from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.common import arrays as arrays_lib
from relive.persistence import state as state_lib


def given(**values: Any) -> state_lib.StateReader:
    arrays = values.pop("arrays", {})
    return state_lib.StateReader({"part": values}, arrays).part("part")


def test_a_value_is_of_its_kind(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        (lambda state: state.integer("a"), [0, 5, 2**61], [2**61 + 1], rf"an integer in \[0, {2**61}\]"),
        (
            lambda state: state.integer("a", 0, 5),
            [0, 5],
            [-1, 6, True, 1.0, "1", None, [], np.int64(3)],
            r"an integer in \[0, 5\]",
        ),
        (
            lambda state: state.number("a", 0.0),
            [0.0, 1e308],
            [-0.5, 1, True, float("nan"), float("inf"), "1", None, np.float64(1)],
            "a finite float of at least 0.0",
        ),
        (lambda state: state.boolean("a"), [True, False], [1, None, "true", np.True_], "true or false"),
        (lambda state: state.text("a"), ["x"], [1, None, b"x", np.str_("x")], "a string"),
        (lambda state: state.one_of("a", "x", "y"), ["x", "y"], ["z"], "x or y"),
        (lambda state: state.part("a") and "part", [], [None, [], 3, "x"], "a mapping"),
    ]
    for call, taken, refused, rule in rows:
        with subtests.test(rule=rule):
            for value in taken:
                found = call(given(a=value))
                assert (found, type(found)) == (value, type(value))
            for value in refused:
                with pytest.raises(errors.CheckpointError, match=f"^part/a must be {rule}, got "):
                    call(given(a=value))
            with pytest.raises(errors.CheckpointError, match="^part/a is missing$"):
                call(given())


def test_a_state_is_a_mapping() -> None:
    rows: list[Any] = [None, [], 3, "x"]
    for value in rows:
        with pytest.raises(errors.CheckpointError, match="^state must be a mapping, got "):
            state_lib.StateReader(value, {})
        with pytest.raises(errors.CheckpointError, match="^arrays must be a mapping, got "):
            state_lib.StateReader({}, value)


def test_an_array_comes_back_as_a_copy() -> None:
    array = np.arange(6.0).reshape(3, 2)[:, ::-1]
    state = given(arrays={"part/a": array})
    copy = state.array("a", "<f8", (None, 2))
    assert copy.tolist() == array.tolist()
    assert copy.flags.c_contiguous
    assert not np.shares_memory(copy, array)
    part = state.column("a", "<f8", (3, 2)).read(1, 3)
    assert part.tolist() == array[1:3].tolist()
    assert not np.shares_memory(part, array)


def test_a_column_comes_back_as_it_is_and_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lib, "CHUNK", 16)
    reads: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> arrays_lib.Array:
        reads.append((start, stop))
        return np.arange(start, stop)

    column = state_lib.LazyArray((5,), np.dtype(np.int64), read)
    state = given(arrays={"part/a": column})
    assert state.column("a", np.int64, (5,)) is column
    assert state.integers("a", None, 0, 4).tolist() == [0, 1, 2, 3, 4]
    assert reads == [(0, 2), (2, 4), (4, 5)]


def test_another_array_is_refused() -> None:
    rule = r"of dtype int64 and shape \(3\), got"
    for array, message in [
        (np.zeros(3, ">i8"), rf"{rule} >i8 and \(3,\)"), (np.zeros((3, 1), np.int64), rf"{rule} int64 and \(3, 1\)"),
        (np.zeros(2, np.int64), rf"{rule} int64 and \(2,\)"), (np.int64(3), r"an array, got np.int64\(3\)"),
        ([1, 2, 3], r"an array, got \[1, 2, 3\]"), (None, "an array, got None"),
    ]:  # fmt: skip
        with pytest.raises(errors.CheckpointError, match=f"^array part/a must be {message}$"):
            given(arrays={"part/a": array}).array("a", np.int64, (3,))


def test_any_length_is_said_so() -> None:
    with pytest.raises(errors.CheckpointError, match=r"must be of dtype float64 and shape \(any, 2\), got "):
        given(arrays={"part/a": np.zeros((4, 3))}).array("a", np.float64, (None, 2))
    with pytest.raises(errors.CheckpointError, match="^array part/a is missing$"):
        given().array("a", np.float64, (None, 2))


def test_integers_lie_in_their_bounds() -> None:
    state = given(arrays={"part/a": np.array([0, 7, 3])})
    assert state.integers("a", 3, 0, 7).tolist() == [0, 7, 3]
    for least, most, first in ((1, 7, 0), (0, 6, 7)):
        message = rf"^array part/a must hold integers in \[{least}, {most}\], got {first}$"
        with pytest.raises(errors.CheckpointError, match=message):
            state.integers("a", 3, least, most)


def test_bools_are_0_and_1() -> None:
    assert given(arrays={"part/a": np.array([True, False])}).booleans("a", 2).tolist() == [True, False]
    strange = np.array([1, 2], np.uint8).view(np.bool_)
    with pytest.raises(errors.CheckpointError, match="^array part/a must hold the bytes 0 and 1 alone$"):
        given(arrays={"part/a": strange}).booleans("a", 2)


def test_chunks_cover_all_rows_once_whatever_a_row_takes() -> None:
    assert list(state_lib.chunks(0, 0)) == []
    assert list(state_lib.chunks(5, 0))[-1][1] == 5
    assert list(state_lib.chunks(5, 5 * state_lib.CHUNK)) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert list(state_lib.chunks(3, 30 * state_lib.CHUNK)) == [(0, 1), (1, 2), (2, 3)]
    assert list(state_lib.chunks(5, 2 * state_lib.CHUNK)) == [(0, 2), (2, 4), (4, 5)]
