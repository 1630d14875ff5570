import io
from typing import Any
import warnings

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive.persistence import dtypes
from relive.persistence import npy

SCALARS = (
    "?", "i1", "u1", "<i2", ">i2", "<u4", ">i8", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16", "S1", "S7", "<U3", ">U3",
    "<M8[ns]", ">M8[25s]", "<M8", "<m8[D]", "<m8", "V3", "g", "G",
)  # fmt: skip
NAMES = st.text("abcxyz_ 9", min_size=1, max_size=4)
SHAPES = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


def structured(dtypes: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(
        st.tuples(NAMES, dtypes, st.none() | SHAPES), min_size=1, max_size=4, unique_by=lambda field: field[0]
    )
    return st.builds(
        lambda fields, align: np.dtype(
            [(name, part) if shape is None else (name, part, shape) for name, part, shape in fields], align=align
        ),
        fields,
        st.booleans(),
    ).filter(lambda dtype: dtype.itemsize > 0)


DTYPES: st.SearchStrategy[np.dtype[Any]] = st.recursive(
    st.sampled_from(SCALARS).map(np.dtype), structured, max_leaves=6
)


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def as_json(description: Any) -> Any:
    return [as_json(part) for part in description] if isinstance(description, list | tuple) else description


@hypothesis.given(DTYPES)
def test_a_dtype_is_described_as_numpy_does_and_comes_back(dtype: np.dtype[Any]) -> None:
    description = dtypes.described(dtype)
    assert description == as_json(np.lib.format.dtype_to_descr(dtype))
    assert npy.dtype_of(description) == dtype
    npy.check_dtype("array", dtype)


@hypothesis.given(DTYPES, SHAPES)
def test_a_header_is_that_of_numpy(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    assert saved(array) == npy.header(dtype, shape) + array.tobytes()
    assert npy.size_of(dtype, shape) == len(saved(array))


@pytest.mark.parametrize("length", [0, 9, 10, 10**18])
def test_the_length_may_grow_in_place(length: int) -> None:
    assert len(npy.header(np.dtype("f4"), (length, 3))) == 128


@pytest.mark.parametrize("characters", [*range(1, 70), 65_400, 65_470, 65_480, 65_490, 65_500, 65_534, 70_000])
def test_a_long_header_is_that_of_numpy(characters: int) -> None:
    dtype = np.dtype([("a" * characters, "<f4")])
    array = np.zeros(2, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert saved(array) == npy.header(dtype, (2,)) + array.tobytes()


@pytest.mark.parametrize("name", ["é", "日本", "it's", "\n"])
def test_a_name_of_any_characters_is_one_that_numpy_reads(name: str) -> None:
    dtype = np.dtype([(name, "<f4")])
    array = np.ones(2, dtype)
    read = np.load(io.BytesIO(npy.header(dtype, (2,)) + array.tobytes()), allow_pickle=False)
    assert read.dtype == dtype
    assert (read == array).all()


def test_what_a_dtype_has_beside_its_values_is_left_out() -> None:
    dtype = np.dtype([("a", np.dtype("f4", metadata={"unit": "m"}))], metadata={"a": 1})
    npy.check_dtype("array", dtype)
    assert dtypes.described(dtype) == [["a", "<f4"]]
    npy.check_dtype("array", np.dtype((np.record, [("a", "<f4")])))


@pytest.mark.parametrize(
    "dtype", [np.dtype(object), np.dtype([("a", "f4"), ("b", [("c", object)])]), np.dtypes.StringDType()]
)
def test_headers_of_objects_are_refused(dtype: np.dtype[Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^array 'a' must hold no Python objects, got dtype "):
        npy.check_dtype("array 'a'", dtype)


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("S0"),
        np.dtype([("a", "S0")]),
        np.dtype([]),
        np.dtype([(("title", "a"), "<f4")]),
        np.dtype({"names": ["a", "b"], "formats": ["<f4", "<f4"], "offsets": [0, 2]}),
        np.dtype({"names": ["a", "b"], "formats": ["<f4", "<f4"], "offsets": [4, 0]}),
        np.dtype({"names": ["", "a"], "formats": ["V4", "<f4"]}),
    ],
)
def test_a_dtype_that_would_come_back_as_another_is_refused(dtype: np.dtype[Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^array must be of a dtype that a \.npy file can hold, got "):
        npy.check_dtype("array", dtype)


def nested(depth: int) -> Any:
    return "<f4" if depth == 0 else [["a", nested(depth - 1)]]


def test_fields_may_lie_sixteen_deep() -> None:
    assert npy.dtype_of(nested(16)).itemsize == 4
    with pytest.raises(errors.CheckpointError, match="dtype must be a description"):
        npy.dtype_of(nested(17))


@pytest.mark.parametrize(
    "description",
    [
        None, 0, True, 1.5, {}, "", [], "O", "|O", "|O8", "<O8", "object", "float32", "f4", "=f4", "<f3", "<f04",
        "<f4 ", " <f4", "<f4\n", "|S0", "<f9999999999", "|S2147483648", "<U536870912", "|V4294967297", "<i1", "|f4",
        "<b1", "|T16", "<M8[xx]", "<M8[0s]", "<M8[9999999999s]", "<M8[μs]", "<M8[1s]", "<M8[B]", "(3,)<f4", "<f4,<f4",
        "2<f4", "|V8,",
        "<f٤", ["<f4"], [["a"]], [["a", "<f4", [2], 1]], [["a", "|O"]], [["a", [["b", "|O8"]]]], [[1, "<f4"]],
        [[["t", "a"], "<f4"]], [["a", "<f4"], ["a", "<f4"]], [["a", "<f4", 2]], [["a", "<f4", []]],
        [["a", "<f4", [-1]]],
        [["a", "<f4", [True]]], [["a", "<f4", [2.0]]], [["a", "<f4", [0]]], [["a", "<f4", [2**63]]], [["a", []]],
        [["a", "<f4", [2**31]]], [["a", "|S2147483647"], ["b", "|S2147483647"]], [["a", "<f4", [1] * 33]],
        [["a", "<f4", ["2"]]], [["", "<f4", [2]]], [["a", "<f4"], {}], ["a", "<f4"], nested(300),
        [["a", "|V4"], "<f4"], [["a", ["b", "<f4"]]], [["a\ud800", "|O"]],
        [["a", [["b", "|S2147483647"], ["c", "|S2147483647"]], [0]], ["d", "<f4"]],
    ],
)  # fmt: skip
def test_what_describes_no_dtype_is_refused(description: Any) -> None:
    with pytest.raises(errors.CheckpointError, match=r"^(dtype|shape) must be .*, got |^shape must hold lengths"):
        npy.dtype_of(description)


@pytest.mark.parametrize(
    "value", [None, 3, "3", [], {}, [3.0], [True], ["3"], [-1], [2**63], [None], [[3]], [1] * 33, (3,)]
)
def test_what_is_no_shape_is_refused(value: Any) -> None:
    with pytest.raises(errors.CheckpointError, match="^shape must "):
        npy.shape_of(value)


def test_a_shape_is_a_list_of_lengths() -> None:
    assert npy.shape_of([2**63 - 1, 0, 3]) == (2**63 - 1, 0, 3)
    assert npy.shape_of([1] * 32) == (1,) * 32
