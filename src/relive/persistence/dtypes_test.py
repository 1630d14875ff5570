"""How dtypes are described, the headers of files, and which bytes are values."""

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


EMPTY = [
    *map(np.dtype, ("|S0", "<U0")), np.dtype([]),
    np.dtype([("pose", [("x", "<f4"), ("y", "<U3", (0,))]), ("é\ud800", "|b1")]),
    np.dtype({"names": ["x"], "formats": ["<f4"], "offsets": [4], "itemsize": 20}),
    *map(np.dtype, ("|u1", "|V3", ">m8[25s]", "<M8[as]", "<M8[999999999us]", "<m8[generic]")), np.dtype(np.longdouble),
    np.dtype([("x", "u1"), ("y", "<f8", (2, 3))], align=True),
]  # fmt: skip


def test_a_dtype_equals_what_its_text_says(subtests: pytest.Subtests) -> None:
    for dtype in EMPTY:
        with subtests.test(dtype=dtype):
            text = dtypes.text(dtype)
            assert text.isascii()
            assert dtypes.from_description(dtypes.read_json(text)) == dtype


@hypothesis.given(DTYPES, SHAPES)
def test_a_header_is_that_of_numpy(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    member = npy.Member("a", dtype, shape)
    assert saved(array) == member.header + array.tobytes()
    assert member.size == len(saved(array))


def test_the_length_may_grow_in_place() -> None:
    for length in [0, 9, 10, 10**18]:
        assert len(npy.Member("a", np.dtype("f4"), (length, 3)).header) == 128


def test_a_long_header_is_that_of_numpy() -> None:
    for characters in [*range(1, 70), 9_000, 9_800]:
        dtype = np.dtype([("a" * characters, "<f4")])
        array = np.zeros(2, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert saved(array) == npy.Member("a", dtype, (2,)).header + array.tobytes()


def test_a_name_of_any_characters_is_one_that_numpy_reads() -> None:
    for name in ["é", "日本", "it's", "\n"]:
        dtype = np.dtype([(name, "<f4")])
        array = np.ones(2, dtype)
        read = np.load(io.BytesIO(npy.Member("a", dtype, (2,)).header + array.tobytes()), allow_pickle=False)
        assert read.dtype == dtype
        assert (read == array).all()


def test_what_a_dtype_has_beside_its_values_is_left_out() -> None:
    dtype = np.dtype([("a", np.dtype("f4", metadata={"unit": "m"}))], metadata={"a": 1})
    npy.check_dtype("array", dtype)
    assert dtypes.described(dtype) == [["a", "<f4"]]
    npy.check_dtype("array", np.dtype((np.record, [("a", "<f4")])))


def deep(levels: int) -> dtypes.DType:
    dtype: dtypes.DType = np.dtype("<f4")
    for _ in range(levels):
        dtype = np.dtype([("x", dtype)])
    return dtype


OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["<f4", "<f4"], "offsets": [0, 2]})
DISORDERED = np.dtype({"names": ["a", "b"], "formats": ["<f4", "<f4"], "offsets": [4, 0]})
TITLED = np.dtype([(("title", "a"), "<f4")])
OBJECTS = [np.dtype(object), np.dtype([("a", "f4"), ("b", [("c", object)])]), np.dtypes.StringDType()]
ENDLESS = [np.dtype(("<f4", (2,))), np.dtype([("x", np.dtype([]), (2,))]), deep(dtypes.DEEPEST + 1)]
LONG = np.dtype([(f"{name:010}", "<f4") for name in range(4000)])


def test_a_dtype_without_a_text_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [*OBJECTS[:2], OVERLAPPING, DISORDERED, TITLED, *ENDLESS, LONG]
    for dtype in rows:
        with (
            subtests.test(dtype=dtype),
            pytest.raises(
                errors.ArgumentError, match=r"^dtype must be of bools, .* that lie one behind another, got .*$"
            ),
        ):
            dtypes.text(dtype)


UNNAMED = np.dtype({"names": ["", "a"], "formats": ["V4", "<f4"]})
NOTHING = [np.dtype("S0"), np.dtype([("a", "S0")]), np.dtype([])]


def test_headers_of_objects_are_refused(subtests: pytest.Subtests) -> None:
    """Also of what would come back as another dtype."""
    rows: list[Any] = [*OBJECTS, *NOTHING, TITLED, OVERLAPPING, DISORDERED, UNNAMED]
    for dtype in rows:
        with subtests.test(dtype=dtype):
            rule = "hold no Python objects" if dtype.hasobject else r"be of a dtype that a \.npy file can hold"
            with pytest.raises(errors.ArgumentError, match=rf"^array 'a' must {rule}, got "):
                npy.check_dtype("array 'a'", dtype)


def test_fields_are_as_deep_as_is_said() -> None:
    dtype = deep(dtypes.DEEPEST)
    assert npy.dtype_of(dtypes.described(dtype)) == dtype


WRONG: list[Any] = [
    "|O", "O", "O8", "|O8", "<O8", "object", "f4", "=f4", "<f3", "<f04", "<b1", "|f4", "<i1", "float32", "", "<f4 ",
    " <f4", "<f4\n", "<f٤", "|S05", "(2,)<f4", "<f4,<f4", "2<f4", "|V8,", "<M8[B]", "<M8[0s]", "<M8[1s]", "<M8[s/2]",
    "<M8[xx]", "<M8[9999999999s]", "<M8[μs]", "<M8[generic]", "T", "|T16", "|V-1", "__import__('os')", "<f9999999999",
    "|a5", "|c1", "<f12,", "|S" + "9" * 60_000, [["a", [["b", "|O8"]]]],
    None, 3, True, 1.5, {"x": 1}, {}, [None], [[]],
    "|S2147483648", "<U536870912", "|V4294967297", [["x", "|S2147483647"], ["y", "|u1"]],
    [["a", [["b", "|S2147483647"], ["c", "|S2147483647"]], [0]]],
    [["x", "<f4"], ["x", "<f8"]], ["x", "<f4"], [["x"]], [["x", "<f4", [1], 2]], [["x", "<f4", [1], [2]]],
    [[["t", "x"], "<f4"]], [[1, "<f4"]], [[None, "<f4"]], [["a", "<f4"], {}], ["x<"],
    [["", "<f4"]], [["", "|V4", [2]]], [["", [["x", "|V4"]]]], [["", []]],
    [["x", "<f4", 2]], [["x", "<f4", [True]]], [["x", "<f4", [2.0]]], [["x", "<f4", [-1]]], [["x", "<f4", ["2"]]],
    [["x", "<f4", "2"]], [["x", "<f4", []]], [["x", "<f4", None]], [["x", "<f4", [[2]]]],
    [["x", "|V0", [2]]], [["x", [], [10**9]]], [["x", [["y", "<f4", [0]]], [10**9]]], [["x", "|u1", [1] * 33]],
    [["x", "<f4", [2**29]]], [["x", "<f4", [0, 2**63]]], [["x", "<f4", [0, 2**31 - 1, 2**31 - 1]]],
    dtypes.described(deep(17)), dtypes.described(deep(30)), dtypes.read_json("[" * 500 + "]" * 500),
]  # fmt: skip


def test_what_describes_no_dtype_is_refused(subtests: pytest.Subtests) -> None:
    for description in WRONG:
        with subtests.test(description=description):
            with pytest.raises(
                errors.CheckpointError, match="^dtype must be a description of values .*, got "
            ) as refused:
                dtypes.from_description(description)
            assert "\n" not in str(refused.value)
            assert len(str(refused.value)) < 400


def test_values_in_files_have_bytes() -> None:
    for description in [[], "|S0", "|V0", [["a", "<f4", [0]]], [["a", []]]]:
        assert dtypes.described(dtypes.from_description(description)) == description
        with pytest.raises(errors.CheckpointError, match="^dtype must have bytes, got "):
            npy.dtype_of(description)


def test_a_text_that_is_not_json_is_refused() -> None:
    for text in ["", "<f4", "[" * 60_000, "1" * 5000]:
        with pytest.raises(errors.CheckpointError, match="is not JSON") as refused:
            dtypes.read_json(text)
        assert "\n" not in str(refused.value)


def test_the_largest_items_are_read() -> None:
    for description, nbytes in [
        ("|S2147483647", 2**31 - 1), ("<U536870911", 2**31 - 4), ([["x", "<f4", [536870911]]], 2**31 - 4),
        ([["x", "|S2147483646"], ["y", "|u1"]], 2**31 - 1), ([["x", "|u1", [1] * 32]], 1),
    ]:  # fmt: skip
        assert dtypes.from_description(description).itemsize == nbytes


def test_a_dtype_of_another_machine_is_refused() -> None:
    """No machine has both of the wide floats."""
    for name in {"<f12", "<f16"} - {np.dtype(np.longdouble).newbyteorder("<").str}:
        with pytest.raises(errors.CheckpointError, match=f", that this machine has, got '{name}'$"):
            dtypes.from_description(name)


NESTED = np.dtype([("pad", "|u1"), ("rows", [("flag", "|b1", (2,)), ("name", ">U2")], (3,))])


VALUES = (np.array([True, False]), np.array("\U0010ffff"), np.zeros((2, 3), NESTED), np.zeros(3, "<f4"))
NONE = (np.zeros((3, 0), bool), np.ndarray((3,), "<U0"), np.zeros((0, 5), NESTED), np.zeros((2, 0), "<U3"))
BAD = (np.array([0, 1, 2], np.uint8).view(bool), *(np.array([0x110000], f"{c}u4").view(f"{c}U1") for c in "<>"))


def test_what_numpy_would_break_on_is_refused() -> None:
    for array in (*VALUES, *NONE):
        dtypes.check_values(array)
    for array in BAD:
        with pytest.raises(errors.CheckpointError, match="an array must hold bools that are 0 or 1"):
            dtypes.check_values(array)


def test_a_bad_value_is_found_in_any_field(subtests: pytest.Subtests) -> None:
    for position in range(1, NESTED.itemsize):
        with subtests.test(position=position):
            array = np.frombuffer(bytearray(2 * NESTED.itemsize), NESTED)
            array.view(np.uint8)[NESTED.itemsize + position] = 255
            # In text with the highest byte first, the lower two bytes of a character may be anything.
            place = (position - 1) % 10
            if place >= 2 and place % 4 in (0, 1):
                dtypes.check_values(array)
            else:
                with pytest.raises(errors.CheckpointError, match="an array must hold "):
                    dtypes.check_values(array)


def test_only_bools_and_text_need_a_look() -> None:
    assert dtypes.takes_any_bytes(np.dtype([("x", "<f4"), ("y", "|S3", (2,))]))
    assert not dtypes.takes_any_bytes(NESTED)
    assert not dtypes.takes_any_bytes(np.dtype("<U3"))
