import json
import re

import numpy as np
import pytest

from relive import errors
from relive.persistence import dtypes

SIMPLE = [
    "|b1",
    "|u1",
    "|i1",
    "<i2",
    ">u4",
    "<i8",
    "<f2",
    ">f4",
    "<f8",
    "<c8",
    ">c16",
    "|S0",
    "|S5",
    "<U0",
    ">U7",
    "|V3",
]
DATES = ["<m8", "<M8[D]", ">m8[25s]", "<M8[as]", "<M8[999999999us]", "<m8[generic]"]
ALL = [
    *map(np.dtype, SIMPLE),
    *map(np.dtype, DATES),
    np.dtype(np.longdouble),
    np.dtype([]),
    np.dtype([("x", "<f4"), ("y", ">i8", (2, 3))]),
    np.dtype([("pose", [("x", "<f4"), ("y", "<U3", (0,))]), ("é\ud800", "|b1")]),
    np.dtype([("x", "u1"), ("y", "<f8")], align=True),
    np.dtype({"names": ["x"], "formats": ["<f4"], "offsets": [4], "itemsize": 20}),
]


@pytest.mark.parametrize("dtype", ALL, ids=ascii)
def test_a_dtype_equals_what_its_text_says(dtype: dtypes.DType) -> None:
    text = dtypes.text(dtype)
    assert text.isascii()
    assert dtypes.parsed(text) == dtype
    descr = dtype.str if dtype.names is None else dtype.descr
    assert dtypes.from_descr(descr) == dtype


def deep(levels: int) -> dtypes.DType:
    dtype: dtypes.DType = np.dtype("<f4")
    for _ in range(levels):
        dtype = np.dtype([("x", dtype)])
    return dtype


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype(object),
        np.dtype([("x", object)]),
        np.dtype([(("title", "x"), "<f4")]),
        np.dtype({"names": ["x", "y"], "formats": ["<f4", "<f4"], "offsets": [0, 2]}),
        np.dtype({"names": ["x", "y"], "formats": ["<f4", "<f4"], "offsets": [4, 0]}),
        np.dtype(("<f4", (2,))),
        np.dtype([("x", np.dtype([]), (2,))]),
        deep(dtypes.DEEPEST + 1),
        np.dtype([(f"{name:010}", "<f4") for name in range(4000)]),
    ],
    ids=range(9),
)
def test_a_dtype_without_a_text_is_refused(dtype: dtypes.DType) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^dtype must be of bools, .* that lie one behind another, got .*$"):
        dtypes.text(dtype)


def test_fields_are_as_deep_as_is_said() -> None:
    dtype = deep(dtypes.DEEPEST)
    assert dtypes.parsed(dtypes.text(dtype)) == dtype


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not JSON"),
        ("<f4", "is not JSON"),
        ("[" * 60_000, "is not JSON"),
        ('"' + " " * 65_534 + '"', "more than 65535"),
        ("1" * 5000, "is not JSON"),
        ("3", "dtype must be a text or a list of fields, got 3"),
        ('{"x": 1}', "dtype must be a text or a list"),
        *(
            (json.dumps(name), "is not a dtype that files may have")
            for name in ("|O", "O8", "f4", "<b1", "|f4", "<f4,<f4")
        ),
        *(
            (json.dumps(name), "is not a dtype that files may have")
            for name in ("float32", "", "<f4 ", "<f٤", "|S05", "(2,)<f4", "<M8[B]")
        ),
        *(
            (json.dumps(name), "is not a dtype that files may have")
            for name in ("<M8[0s]", "<M8[s/2]", "T", "|V-1", "__import__('os')")
        ),
        ('"|S2147483648"', r"at most 2147483647 bytes, got \|S2147483648"),
        ('"<U536870912"', "at most 2147483647 bytes, got <U536870912"),
        ('[["x", "|S2147483647"], ["y", "|u1"]]', "at most 2147483647 bytes, got 2147483648"),
        ('[["x", "<f4"], ["x", "<f8"]]', r"fields of different names, got \['x', 'x'\]"),
        ('["x", "<f4"]', "field of a dtype must be a name, a dtype and a shape, got 'x'"),
        ('[["x"]]', "field of a dtype must be"),
        ('[["x", "<f4", [1], 2]]', "field of a dtype must be"),
        ('[[["t", "x"], "<f4"]]', "field of a dtype must be"),
        ('[["", "<f4"]]', "gap in a dtype must be bytes"),
        ('[["", "|V4", [2]]]', "gap in a dtype must be bytes"),
        ('[["", [["x", "|V4"]]]]', "gap in a dtype must be bytes"),
        ('[["x", "<f4", 2]]', "field 'x' of a dtype has no shape"),
        ('[["x", "<f4", [true]]]', "field 'x' of a dtype has no shape"),
        ('[["x", "<f4", [2.0]]]', "field 'x' of a dtype has no shape"),
        ('[["x", "<f4", [-1]]]', "field 'x' of a dtype has no shape"),
        ('[["x", "|V0", [2]]]', "field 'x' of a dtype has no shape"),
        (json.dumps([["x", "|u1", [1] * 33]]), "field 'x' of a dtype has no shape"),
        ('[["x", "<f4", [536870912]]]', "field 'x' of a dtype has more than 2147483647 bytes"),
        ('[["x", "<f4", [0, 9223372036854775808]]]', "field 'x' of a dtype has more than"),
    ],
)
def test_a_text_of_no_dtype_is_refused(text: str, reason: str) -> None:
    with pytest.raises(errors.CheckpointError, match=reason) as refused:
        dtypes.parsed(text)
    assert "\n" not in str(refused.value)


def test_the_largest_items_are_read() -> None:
    assert dtypes.parsed('"|S2147483647"').itemsize == 2**31 - 1
    assert dtypes.parsed('"<U536870911"').itemsize == 2**31 - 4
    assert dtypes.parsed('[["x", "<f4", [536870911]]]').itemsize == 2**31 - 4
    assert dtypes.parsed('[["x", "|S2147483646"], ["y", "|u1"]]').itemsize == 2**31 - 1
    assert dtypes.parsed(json.dumps([["x", "|u1", [1] * 32]])).itemsize == 1


def test_a_dtype_of_another_machine_is_refused() -> None:
    """No machine has both of the wide floats."""
    missing = {"<f12", "<f16"} - {np.dtype(np.longdouble).newbyteorder("<").str}
    for name in missing:
        with pytest.raises(
            errors.CheckpointError, match=f"^{re.escape(name)} is a dtype that this machine does not have"
        ):
            dtypes.parsed(json.dumps(name))


NESTED = np.dtype([("pad", "|u1"), ("rows", [("flag", "|b1", (2,)), ("name", ">U2")], (3,))])


def test_values_that_numpy_makes_are_values() -> None:
    for array in (np.array([True, False]), np.array("\U0010ffff"), np.zeros((2, 3), NESTED), np.zeros(3, "<f4")):
        dtypes.check_values(array)


def test_no_values_are_values() -> None:
    for array in (np.zeros((3, 0), bool), np.ndarray((3,), "<U0"), np.zeros((0, 5), NESTED), np.zeros((2, 0), "<U3")):
        dtypes.check_values(array)


def test_what_numpy_would_break_on_is_refused() -> None:
    with pytest.raises(errors.CheckpointError, match="an array must hold bools that are 0 or 1"):
        dtypes.check_values(np.array([0, 1, 2], np.uint8).view(bool))
    for order in "<>":
        with pytest.raises(errors.CheckpointError, match="an array must hold bools that are 0 or 1"):
            dtypes.check_values(np.array([0x10FFFF, 0x110000], order + "u4").view(order + "U2"))


@pytest.mark.parametrize("position", range(1, NESTED.itemsize))
def test_a_bad_value_is_found_in_any_field(position: int) -> None:
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
