import array as arrays_of_python
import re
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.schema import casting

REALS = [
    np.dtype(name) for name in ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">i4", ">f4"]
]
NUMBERS = [*REALS, np.dtype("c8"), np.dtype("c16")]
EDGES = [
    sign * (2**bits + step) for sign in (1, -1) for bits in (0, 7, 8, 11, 16, 24, 31, 53, 63, 64) for step in (-1, 0, 1)
]


def fit(value: Any, dtype: Any, is_weak: bool = False) -> arrays_lib.Array:
    """Return `value` fitted to its own shape."""
    return casting.cast_exact("x", value, np.shape(value), np.dtype(dtype), is_weak)


def refusal(value: Any, dtype: Any, is_weak: bool = False) -> str:
    with pytest.raises(errors.SchemaError) as caught:
        fit(value, dtype, is_weak)
    return str(caught.value)


@st.composite
def drawn_arrays(draw: st.DrawFn, dtypes: list[np.dtype[Any]]) -> arrays_lib.Array:
    """Draw an array whose values are often at the edge of what another dtype holds."""
    dtype = draw(st.sampled_from(dtypes))
    elements: st.SearchStrategy[Any] = hnp.from_dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        elements |= st.sampled_from([edge for edge in EDGES if limits.min <= edge <= limits.max])
    elif dtype.kind != "b":
        with np.errstate(all="ignore"):
            elements |= st.sampled_from(np.array(EDGES, np.float64).astype(dtype).tolist())
    array: arrays_lib.Array = draw(
        hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3), elements=elements)
    )
    return array


def cast(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a Python number as one that the dtype holds, or None if no number there is near it."""
    if dtype.kind in "biu":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return int(value) if np.isfinite(value) and low <= value <= high else None
    if isinstance(value, complex) and dtype.kind != "c":
        return None
    with np.errstate(all="ignore"):
        number = dtype.type(value).item()
    return None if np.isfinite(value) and not np.isfinite(number) else number


def same(one: Any, other: Any) -> bool:
    if isinstance(one, complex) or isinstance(other, complex):
        return other is not None and same(one.real, other.real) and same(one.imag, other.imag)
    return bool(one == other or (one != one and other is not None and other != other))


@hypothesis.given(array=drawn_arrays(REALS), dtype=st.sampled_from(NUMBERS))
def test_a_cast_is_made_only_if_all_values_stay_equal(array: arrays_lib.Array, dtype: np.dtype[Any]) -> None:
    """Python compares an int with a float exactly. Floats of another array are not cast to a smaller dtype at all."""
    values = array.ravel().tolist()
    wrong = [place for place, value in enumerate(values) if not same(value, cast(value, dtype))]
    if array.dtype.kind == "f" and dtype.kind in "fc" and not np.can_cast(array.dtype, dtype):
        assert refusal(array, dtype).startswith(f"x must be of dtype {dtype}, got {array.dtype}: cast it")
    elif wrong:
        message = refusal(array, dtype)
        assert message.split(": ")[0] == f"x must fit {dtype}, got {array.ravel()[wrong[0]]!s}"
    else:
        answer = fit(array, dtype)
        assert answer.dtype == dtype
        assert answer.shape == array.shape
        assert all(map(same, values, answer.ravel().tolist()))


@hypothesis.given(
    array=drawn_arrays([np.dtype("c8"), np.dtype("c16")]), dtype=st.sampled_from([np.dtype("c8"), np.dtype("c16")])
)
def test_complex_numbers_fit_where_both_parts_do(array: arrays_lib.Array, dtype: np.dtype[Any]) -> None:
    if array.dtype.itemsize > dtype.itemsize:
        assert refusal(array, dtype).startswith(f"x must be of dtype {dtype}, got {array.dtype}: cast it")
    elif all(same(value, cast(value, dtype)) for value in array.ravel().tolist()):
        answer = fit(array, dtype)
        assert answer.dtype == dtype
        assert all(map(same, array.ravel().tolist(), answer.ravel().tolist()))
    else:
        assert refusal(array, dtype).startswith(f"x must fit {dtype}, got ")


@hypothesis.given(array=drawn_arrays(REALS), dtype=st.sampled_from([dtype for dtype in NUMBERS if dtype.kind in "fc"]))
def test_a_weak_value_may_be_rounded_but_stays_finite(array: arrays_lib.Array, dtype: np.dtype[Any]) -> None:
    values = array.ravel().tolist()
    wrong = [value for value in values if cast(value, dtype) is None]
    if wrong:
        assert refusal(array, dtype, True).startswith(f"x must fit {dtype}, got ")
    else:
        assert all(map(same, [cast(value, dtype) for value in values], fit(array, dtype, True).ravel().tolist()))


def test_a_weak_value_is_rounded_to_no_integer() -> None:
    for value in [0.9, [0.5, 2.0], np.float64(0.5), np.array([300.0]), np.nan, np.inf, -1]:
        assert refusal(value, np.uint8, True) == refusal(value, np.uint8)


def test_the_first_value_that_does_not_fit_is_shown(subtests: pytest.Subtests) -> None:
    for value, dtype, shown in [
        (0.9, "u1", "uint8, got 0.9"), (300, "u1", "uint8, got 300"), (-1, "u1", "uint8, got -1"),
        (float("nan"), "i4", "int32, got nan"), (2**53 + 1, "f8", "float64, got 9007199254740993"),
        (2**63 - 1, "f8", "float64, got 9223372036854775807"), (2**64 - 1, "f8", "float64, got 18446744073709551615"),
        (float(2**63), "i8", "int64, got 9.223372036854776e+18"), (-np.inf, "i8", "int64, got -inf"),
        (2, "?", "bool, got 2"), (1e300, "f4", "float32, got 1e+300"), (16777217, "f4", "float32, got 16777217"),
        (70000, "f2", "float16, got 70000"), (np.int32(-(2**31)), "f2", "float16, got -2147483648"),
        (1e300j, "c8", "complex64, got 1e+300j"), (2**53 + 1, "c16", "complex128, got 9007199254740993"),
        ([[1, 2], [-3, 400]], "u1", "uint8, got -3"), (["ab", "abc"], "U2", "<U2, got 'abc'"),
        (b"abc", "S2", "|S2, got b'abc'"),
        (np.datetime64("2020-01-02T03"), "M8[D]", "datetime64[D], got 2020-01-02T03"),
        (np.timedelta64(3_000_000_000, "h"), "m8[ns]", "timedelta64[ns], got 3000000000 hours"),
        (np.timedelta64(1500, "ms"), "m8[s]", "timedelta64[s], got 1500 milliseconds"),
        (np.array(["2500-01-01"], "M8[s]"), "M8[ns]", "datetime64[ns], got 2500-01-01T00:00:00"),
    ]:  # fmt: skip
        with subtests.test(shown=shown):
            assert refusal(value, dtype).split(": ")[0] == f"x must fit {shown}"


def test_values_that_stay_equal_fit(subtests: pytest.Subtests) -> None:
    for value, dtype in [
        (np.int64(3), "u1"), (True, "f4"), (np.bool_(True), "c8"), (3.0, "i2"), (-0.0, "u1"), (1.0, "?"),
        (2**62, "f8"), (-(2**63), "f4"), (0.5, "f4"), (np.inf, "f2"), (np.longdouble(0.1), "c32"),
        (np.float64(0.1), "g"), ("ab", "U2"), ("", "U1"), (b"ab", "S5"), (np.datetime64("2020-01-02"), "M8[ns]"),
        (np.timedelta64(2, "h"), "m8[s]"),
    ]:  # fmt: skip
        with subtests.test(value=value):
            answer = fit(value, dtype)
            assert answer.dtype == np.dtype(dtype)
            assert answer == value


def test_values_that_underflow_to_zero_fit() -> None:
    with np.errstate(all="raise"):
        assert fit([5e-324, 1.0], np.float32).tolist() == [0.0, 1.0]
        assert fit(np.array(1e-300), np.float32, is_weak=True).tolist() == 0.0


def test_the_largest_float_that_is_rounded_to_a_finite_one_fits() -> None:
    for narrow, largest in [("f2", 65519.0), ("f4", 3.4028235677973362e38)]:
        for count in (1, 1_000):
            assert fit([largest] * count, narrow).tolist() == [float(np.finfo(narrow).max)] * count
            assert (
                refusal([1.0] * count + [largest * 1.001], narrow)
                == f"x must fit {np.dtype(narrow)}, got {largest * 1.001}"
            )


def test_python_floats_are_rounded_to_a_narrower_float() -> None:
    for value in [
        0.1, [0.1, 0.2], ((0.1,), (0.2,)), [1, 0.1], arrays_of_python.array("d", [0.1]), 1e-300, [], [[], []],
    ]:  # fmt: skip
        assert np.array_equal(fit(value, np.float32), np.asarray(value, np.float32))
    assert fit(0.1j, np.complex64) == np.complex64(0.1j)
    assert fit(0.1, np.complex64) == np.complex64(0.1)


@pytest.mark.parametrize("value", [np.float64(0.5), np.array([0.5]), [[np.array(0.5)]], np.zeros(0)])
def test_arrays_are_not_narrowed(value: Any) -> None:
    """By their dtype, whatever the values are: at the first step, and not at the first that loses a digit."""
    for dtype in (np.float32, np.float16, np.complex64):
        name = np.dtype(dtype).name
        remedy = f"cast it with .astype({name!r}), or declare the field float64"
        assert refusal(value, dtype) == f"x must be of dtype {name}, got float64: {remedy}"


def test_complex_arrays_are_not_narrowed() -> None:
    remedy = "cast it with .astype('complex64'), or declare the field complex128"
    assert refusal(np.complex128(0.5j), np.complex64) == f"x must be of dtype complex64, got complex128: {remedy}"


def test_nan_stays_nan_and_nat_stays_nat() -> None:
    assert np.isnan(fit([np.nan], np.float16)).all()
    assert np.isnan(fit(np.array([np.nan], np.float16), np.float64)).all()
    assert np.isnan(fit([complex(np.nan, 1), complex(1, np.nan)], np.complex64)).all()
    assert np.isnat(fit(np.array(["NaT", "NaT"], "m8[ns]"), "m8[s]")).all()
    assert np.isnat(fit(np.array(["NaT"], "M8[ns]"), "M8[s]")).all()


def test_nothing_is_broadcast_or_reshaped() -> None:
    for shape in [(), (1,), (3,), (4, 1), (1, 4), (2, 2), (0,)]:
        for dtype in [np.float64, np.int8]:
            message = rf"^observation must be of shape \(4,\), got {re.escape(str(shape))}$"
            with pytest.raises(errors.SchemaError, match=message):
                casting.cast_exact("observation", np.zeros(shape, dtype), (4,), np.dtype(np.float64))


@pytest.mark.parametrize("dtype", ["f8", "u1", "?", "U3", "M8[s]", [("a", "i4")]])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2,)])
def test_an_array_that_fits_is_returned_itself(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    assert fit(array, dtype) is array


def test_a_scalar_of_numpy_fits_its_own_dtype(subtests: pytest.Subtests) -> None:
    rows: list[Any] = ["f8", "u1", "?", "U3", "M8[s]", "V4", [("a", "i4"), ("b", "U2")]]
    for dtype in rows:
        with subtests.test(dtype=dtype):
            scalar = np.zeros(2, dtype)[0]
            answer = fit(scalar, dtype)
            assert type(answer) is np.ndarray
            assert answer.dtype == np.dtype(dtype)
            assert answer[()] == scalar


@pytest.mark.parametrize("dtype", ["f4", "u1", "?", "c8"])
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_an_empty_array_fits_every_dtype_of_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    answer = fit(np.zeros(shape, np.float16 if np.dtype(dtype).kind in "fc" else np.float64), dtype)
    assert answer.dtype == np.dtype(dtype)
    assert answer.shape == shape


def test_the_byte_order_does_not_matter() -> None:
    for native in ["i4", "f8", "c8", "U3", "M8[s]"]:
        swapped = np.dtype(native).newbyteorder()
        values = np.array([1, 2, 3]).astype(native)
        for value, dtype in [(values, swapped), (values.astype(swapped), np.dtype(native))]:
            answer = fit(value, dtype)
            assert answer.dtype == dtype
            assert answer.tolist() == values.tolist()


def test_values_of_another_kind_are_refused(subtests: pytest.Subtests) -> None:
    for value, dtype in [
        ("1", "f8"), (["1", "2"], "i8"), (b"1", "u1"), (1, "U3"), (True, "S3"), (2.5, "M8[s]"), ("a", "S3"),
        (b"a", "U3"), (1j, "f8"), (np.zeros(0, "c8"), "f8"), (1, "M8[s]"), (1, "m8[s]"),
        (np.timedelta64(1, "Y"), "m8[D]"), (np.datetime64(1, "s"), "i8"), (np.datetime64(1, "s"), "m8[s]"),
        ("2020", "M8[Y]"), (np.zeros((), "i4,i4"), "i4,i8"), (1, "i4,i8"), (np.zeros((), "i4,i4"), "i4"),
        (np.zeros((), "V8"), "f8"),
    ]:  # fmt: skip
        with subtests.test(value=value):
            assert refusal(value, dtype) == f"x must be of dtype {np.dtype(dtype)}, got {validation.short_repr(value)}"


@pytest.mark.parametrize(
    "value",
    [None, [1, None], object(), [[1], [1, 2]], [np.zeros(2), np.zeros(3)], {"a": 1}, {1}, 2**70, np.array([1], object)],
)
@pytest.mark.parametrize("dtype", ["f8", "U3", "i4,i4"])
def test_python_objects_are_refused(value: Any, dtype: str) -> None:
    message = (
        r"^x must be an array of numbers, of text or of dates, got .+: EpisodeReplayBuffer keeps objects of any kind$"
    )
    with pytest.raises(errors.SchemaError, match=message):
        casting.cast_exact("x", value, (), np.dtype(dtype))


@pytest.mark.parametrize("value", [["a", 1], [["a"], [0.5]], [True, "a"], [b"a", 1], [b"a", "b"]])
@pytest.mark.parametrize("dtype", ["U40", "S40"])
def test_numbers_beside_text_are_refused(value: Any, dtype: str) -> None:
    assert refusal(value, dtype).startswith("x must be an array of numbers, of text or of dates, got [")


def test_masked_arrays_are_refused() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    assert refusal(masked, np.float64).startswith("x must be an array of numbers, of text or of dates, got masked_")


def test_objects_with_arrays_in_them_are_refused() -> None:
    value = np.zeros(2, [("a", "i4"), ("b", object)])
    assert refusal(value, np.int32).startswith("x must be an array of numbers")
    assert refusal(np.array(["a"], np.dtypes.StringDType()), "U3").startswith("x must be an array of numbers")


class Tensor:
    """An object of another library with `__array__`."""

    dtype = "float64"

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> arrays_lib.Array:
        if self.values is None:
            raise RuntimeError("the values are on another machine")
        return np.array(self.values)


def test_objects_with_array_methods_are_accepted() -> None:
    assert fit(Tensor([1.5, 2.5]), np.float64).tolist() == [1.5, 2.5]


def test_a_failing_array_method_is_refused_with_its_reason() -> None:
    with pytest.raises(errors.SchemaError, match="^x must be an array of numbers") as caught:
        casting.cast_exact("x", Tensor(None), (2,), np.dtype(np.float32))
    assert str(caught.value.__cause__) == "the values are on another machine"


def test_a_subclass_of_ndarray_becomes_a_plain_array() -> None:
    class Special(np.ndarray[Any, Any]):
        pass

    special = np.zeros(3).view(Special)
    assert type(fit(special, np.float64)) is np.ndarray


class Refusing(np.ndarray[Any, Any]):
    """Dates of which numpy casts none beyond the year 2262, as its newer versions do."""

    def astype(self, dtype: Any, *arguments: Any, **named: Any) -> Any:
        if (np.asarray(self) > np.datetime64("2262-01-01")).any():
            raise OverflowError("Overflow when converting between datetime64 units")
        return np.asarray(self).astype(dtype, *arguments, **named)


def test_a_date_that_numpy_refuses_is_named() -> None:
    dates = np.array([["2000-01-01", "2500-01-01"], ["2600-01-01", "2000-01-01"]], "M8[s]").view(Refusing)
    with pytest.raises(errors.SchemaError, match=r"^x must fit datetime64\[ns\], got 2500-01-01T00:00:00$"):
        casting._cast("x", dates, np.dtype("M8[ns]"), False)
