"""Fits values to fields: the shape must be the field's, and a cast must change no value.

What numpy would cut, wrap, round or broadcast in silence is an error that names the field and shows the value. One
thing is rounded: Python floats, which have no dtype of their own to lose, in a field of a narrower float.
"""

import contextlib
import functools
import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import validation

DType: TypeAlias = np.dtype[Any]
_LISTS = (list, tuple)


def cast_exact(name: str, value: object, shape: tuple[int, ...], dtype: DType, is_weak: bool = False) -> arrays.Array:
    """Return `value` as an array of exactly `shape` and `dtype`; an array that is so already is returned itself.

    A cast is made where every value stays equal: 3 and True fit a float, 3.0 fits an integer, 0.9 and 300 do not fit
    uint8. NaN stays NaN among floats. Numbers, text, bytes, dates and durations each come from their own kind alone,
    a structured value from its own dtype alone.

    Args:
        name: What the value is called in an error.
        value: An array, or what numpy makes one of.
        shape: The shape that it must have: nothing is broadcast.
        dtype: The dtype that it is returned in.
        is_weak: Whether any real number may be rounded to a float of `dtype`. Python floats, alone and in lists, always
            may. What is finite must stay finite.

    Raises:
        SchemaError: `value` has another shape, or does not fit.

    >>> import numpy as np
    >>> from relive.schema import casting
    >>> casting.cast_exact("action", [1, 2], (2,), np.dtype(np.uint8))
    array([1, 2], dtype=uint8)
    >>> casting.cast_exact("action", [1, 300], (2,), np.dtype(np.uint8))
    Traceback (most recent call last):
    relive.errors.SchemaError: action must fit uint8, got 300
    """
    array = value if type(value) is np.ndarray and not value.dtype.hasobject else as_array(name, value)
    if array.shape != shape:
        raise wrong_shape(name, shape, array.shape)
    source = array.dtype
    if source is dtype:
        return array
    limit = _square_limit(source, dtype)
    if limit and (is_weak or _is_of_python(value)) and np.vdot(array, array) <= limit:
        try:
            return array.astype(dtype)
        except FloatingPointError:  # Somebody wants to know of underflow: not here.
            pass
    if source == dtype:
        return array
    if not _are_alike(source, dtype):
        raise errors.SchemaError(f"{name} must be of dtype {dtype}, got {validation.short_repr(value)}")
    if _holds_all_of(dtype, source):
        return array.astype(dtype)
    if source.kind in "fc" and dtype.kind in "fc" and not is_weak and not _is_of_python(value):
        remedy = f"cast it with .astype({dtype.name!r}), or declare the field {source}"
        raise errors.SchemaError(f"{name} must be of dtype {dtype}, got {source}: {remedy}")
    may_round = dtype.kind in "fc" and (is_weak or source.kind in "fc")
    return _cast(name, array, dtype, may_round)


def wrong_shape(name: str, shape: tuple[int, ...], found: tuple[int, ...]) -> errors.SchemaError:
    """Return the error for a value of another shape than its field's."""
    remedy = ""
    if name == "reward" and not shape and math.prod(found) == 1:
        remedy = ": give the .item() of one element"
    elif name == "next_observation" and not found:
        remedy = ": the order is observation, action, reward, next_observation"
    return errors.SchemaError(f"{name} must be of shape {shape}, got {found}{remedy}")


def as_array(name: str, value: object) -> arrays.Array:
    """Return `value` as the array that numpy makes of it.

    Raises:
        SchemaError: It makes none, or one of Python objects, or text of what was no text, or forgets a mask.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        calls = "".join(f".{call}()" for call in validation.tensor_calls(value))
        if calls:
            raise errors.SchemaError(f"{name} must be what numpy can read, got a tensor: call {calls} first") from error
        raise _not_an_array(name, value) from error
    if array.dtype.hasobject or isinstance(value, np.ma.MaskedArray):
        raise _not_an_array(name, value)
    if array.dtype.kind in "US" and not hasattr(value, "dtype"):
        # numpy writes the numbers of a mixed list as text.
        text = str if array.dtype.kind == "U" else bytes
        if not all(isinstance(leaf, text) for leaf in np.array(value, object).flat):
            raise _not_an_array(name, value)
    return array


def _not_an_array(name: str, value: object) -> errors.SchemaError:
    rule = "must be an array of numbers, of text or of dates"
    return errors.SchemaError(
        f"{name} {rule}, got {validation.short_repr(value)}: EpisodeReplayBuffer keeps objects of any kind"
    )


def _are_alike(source: DType, dtype: DType) -> bool:
    """Return whether both are dtypes of real numbers, or both of complex ones, of text, of dates and so on."""
    if source.kind in "biuf":
        return dtype.kind in "biufc"
    return source.kind == dtype.kind and source.kind in "cUSmM" and np.can_cast(source, dtype, "same_kind")


def _is_of_python(value: Any) -> bool:
    """Return whether `value` is Python's own: a number, or lists of numbers, among them numpy's."""
    first = value
    while isinstance(first, _LISTS) and first:
        first = first[0]
    return not hasattr(first, "dtype") or (first is not value and isinstance(first, np.generic))


@functools.lru_cache(maxsize=256)
def _square_limit(source: DType, dtype: DType) -> float:
    """Return the sum of squares up to which all floats of `source` stay finite as `dtype`; 0 if that is no question.

    No square is larger than the sum of all of them, which takes one pass and is NaN if one of them is.
    """
    if source.kind != "f" or dtype.kind != "f" or source.itemsize <= dtype.itemsize:
        return 0.0
    largest = float(np.finfo(dtype).max)
    return largest if dtype.itemsize >= np.dtype(np.float64).itemsize else largest**2


@functools.lru_cache(maxsize=256)
def _holds_all_of(dtype: DType, source: DType) -> bool:
    """Return whether every value of `source` has its equal in `dtype`, a dtype of the same sort of things."""
    if source.kind in "iu" and dtype.kind in "fc":
        # numpy calls int64 to float64 safe, though a float64 has 53 bits for a number.
        return np.iinfo(source).bits <= np.finfo(dtype).nmant + 1
    return np.can_cast(source, dtype, "equiv" if dtype.kind in "mM" else "safe")


def _first_overflow(array: arrays.Array, dtype: DType) -> object:
    """Return the first value of `array` [...] that numpy does not cast to `dtype`; there is one."""
    values = iter(array.reshape(-1, 1))
    value = next(values)
    with contextlib.suppress(OverflowError):
        while True:
            value.astype(dtype)
            value = next(values)
    return value[0]


def _cast(name: str, array: arrays.Array, dtype: DType, may_round: bool) -> arrays.Array:
    """Return `array` [...] as `dtype`, if every value stays what it was, or stays finite where it may be rounded."""
    try:
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
            fits = _stays_finite(array, cast) if may_round else _stays(array, cast)
    except OverflowError:  # Some versions of numpy raise it for a date that is out of range, others answer a wrong one.
        raise errors.SchemaError(f"{name} must fit {dtype}, got {_first_overflow(array, dtype)}") from None
    if np.count_nonzero(fits) == fits.size:
        return cast
    first, first_cast = array[~fits][0], cast[~fits][0]
    shown = validation.short_repr(first.item()) if dtype.kind in "US" else str(first)
    would_lose_digits = array.dtype.kind in "fc" and dtype.kind in "iufc" and np.isfinite([first, first_cast]).all()
    hint = f": cast it yourself, or declare the field {array.dtype}" if would_lose_digits else ""
    raise errors.SchemaError(f"{name} must fit {dtype}, got {shown}{hint}")


def _stays_finite(array: arrays.Array, cast: arrays.Array) -> npt.NDArray[np.bool_]:
    """Return where [...] a value of `cast` [...] is finite if that of `array` [...] is, which it was cast from."""
    return np.asarray(np.isfinite(cast) >= np.isfinite(array))


def _stays(array: arrays.Array, cast: arrays.Array) -> npt.NDArray[np.bool_]:
    """Return where [...] a value of `cast` [...] is that of `array` [...], which it was cast from."""
    source, target = array.dtype.kind, cast.dtype.kind
    if target == "c":
        return np.asarray(_stays(np.real(array), np.real(cast)) & _stays(np.imag(array), np.imag(cast)))
    if source == "f" and target in "iu":
        # Outside the range of an integer the cast is whatever the machine makes of it.
        return np.asarray(_lies_in(array, cast.dtype) & (cast == array))
    if source in "iu" and target == "f":
        # Comparing an int64 with a float64 would round it first: the way back tells, where there is one.
        is_inside = _lies_in(cast, array.dtype)
        return np.asarray(is_inside & (np.where(is_inside, cast, 0).astype(array.dtype) == array))
    if source == "f":
        return np.asarray((cast == array) | (np.isnan(array) & (target == "f")))
    if source in "mM":
        return np.asarray((cast.astype(array.dtype) == array) | (np.isnat(array) & np.isnat(cast)))
    return np.asarray(cast == array)


def _lies_in(array: arrays.Array, dtype: DType) -> npt.NDArray[np.bool_]:
    """Return where [...] a float of `array` [...] lies in the range of the integers of `dtype`."""
    limits = np.iinfo(dtype)
    return np.asarray((array >= np.float64(limits.min)) & (array < np.float64(limits.max + 1)))
