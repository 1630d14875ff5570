"""Casting of values to fields: the shape must match, and a cast must not change any value.

Where numpy would silently truncate, wrap, round or broadcast, an error names the field and shows the value. Exceptions
are Python floats and complex numbers, which have no dtype to lose, and rewards: they are rounded to a narrower field.
"""

import functools
import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation

DType: TypeAlias = np.dtype[Any]
_LISTS = (list, tuple)


def cast_exact(
    name: str, value: object, shape: tuple[int, ...], dtype: DType, is_weak: bool = False
) -> arrays_lib.Array:
    """Return `value` as an array of exactly `shape` and `dtype`; a matching array is returned itself.

    A cast is made only if every value stays equal: 3 and True fit a float, 3.0 fits an integer, 0.9 and 300 do not fit
    uint8. NaN stays NaN among floats. Numbers, text, bytes, dates and durations are cast only within their own kind,
    and structured values not at all.

    Args:
        name: The name of the value in errors.
        value: An array-like.
        shape: The required shape; nothing is broadcast.
        dtype: The dtype of the result.
        is_weak: Whether any real number may be rounded to a float `dtype`, as Python floats and lists of them always
            may. Finite values must stay finite.

    Raises:
        SchemaError: `value` has another shape, or does not fit.
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
        except FloatingPointError:  # Underflow may be set to raise; it is harmless here.
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
    if source.kind in "iu" and array.size:
        most = most_exact(dtype)
        if array.max() <= most and array.min() >= -most:  # As in lists of small integers.
            return array.astype(dtype)
    may_round = dtype.kind in "fc" and (is_weak or source.kind in "fc")
    return _cast(name, array, dtype, may_round)


def require_finite(name: str, values: arrays_lib.Array) -> None:
    """Raise SchemaError, with the place, if one of the values [...] is infinite or NaN."""
    is_finite = np.isfinite(values)
    if not is_finite.all():
        place = np.argwhere(~is_finite)[0].tolist()
        raise errors.SchemaError(f"{name} must be finite, got {values[tuple(place)]}{f' at {place}' if place else ''}")


def wrong_shape(name: str, shape: tuple[int, ...], found: tuple[int, ...]) -> errors.SchemaError:
    """Return the error for a value of another shape than its field's."""
    remedy = ""
    if name == "reward" and not shape and math.prod(found) == 1:
        remedy = ": give the .item() of one element"
    elif name == "next_observation" and not found:
        remedy = ": the order is observation, action, reward, next_observation"
    elif name.partition("/")[0] == "observations" and found and (found[0] + 1, *found[1:]) == shape:
        remedy = ": give the observation after the last step too"
    return errors.SchemaError(f"{name} must be of shape {shape}, got {found}{remedy}")


def as_array(name: str, value: object) -> arrays_lib.Array:
    """Return the array that numpy makes of `value`; raise SchemaError if it is of objects, or text has changed."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if remedy := validation.tensor_remedy(value):
            raise errors.SchemaError(f"{name} must be what numpy can read, got a tensor{remedy}") from error
        raise _not_an_array(name, value) from error
    if array.dtype.hasobject or isinstance(value, np.ma.MaskedArray):
        raise _not_an_array(name, value)
    if array.dtype.kind in "US" and not hasattr(value, "dtype"):
        # numpy writes the numbers of a mixed list as text, and drops null characters at the end.
        text, null = (str, "\0") if array.dtype.kind == "U" else (bytes, b"\0")
        leaves = np.array(value, object).reshape(-1).tolist()
        if not all(isinstance(leaf, text) for leaf in leaves):
            raise _not_an_array(name, value)
        if any(leaf[-1:] == null for leaf in leaves):
            rule = f"{name} must not end with a null character, which numpy drops"
            raise errors.SchemaError(f"{rule}, got {validation.short_repr(value)}")
    return array


def _not_an_array(name: str, value: object) -> errors.SchemaError:
    rule = "must be an array of numbers, of text or of dates"
    remedy = remedy_for_reset(value) or ": EpisodeReplayBuffer keeps objects of any kind"
    return errors.SchemaError(f"{name} {rule}, got {validation.short_repr(value)}{remedy}")


def remedy_for_reset(value: object) -> str:
    """Return what to do if `value` is the pair that `reset` of an environment returns."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict)
    return ": reset returns (observation, info): pass the first" if is_pair else ""


def _are_alike(source: DType, dtype: DType) -> bool:
    """Return whether both are dtypes of the same kind: real numbers, complex numbers, text, dates and so on."""
    if source.kind in "biuf":
        return dtype.kind in "biufc"
    return source.kind == dtype.kind and source.kind in "cUSmM" and np.can_cast(source, dtype, "same_kind")


def _is_of_python(value: Any) -> bool:
    """Return whether `value` is a Python number, or a list of numbers, numpy scalars included."""
    first = value
    while isinstance(first, _LISTS) and first:
        first = first[0]
    return not hasattr(first, "dtype") or (first is not value and isinstance(first, np.generic))


@functools.lru_cache(maxsize=256)
def _square_limit(source: DType, dtype: DType) -> float:
    """Return the sum of squares up to which all floats of `source` stay finite as `dtype`; 0 if not applicable.

    No square exceeds the sum of squares, which takes one pass and is NaN if any value is.
    """
    if source.kind != "f" or dtype.kind != "f" or source.itemsize <= dtype.itemsize:
        return 0.0
    largest = float(np.finfo(dtype).max)
    return largest if dtype.itemsize >= np.dtype(np.float64).itemsize else largest**2


@functools.lru_cache(maxsize=256)
def most_exact(dtype: DType) -> int:
    """Return up to which number all integers are values of a float `dtype`; -1 for others."""
    return int(2 ** (np.finfo(dtype).nmant + 1)) if dtype.kind in "fc" else -1


@functools.lru_cache(maxsize=256)
def _holds_all_of(dtype: DType, source: DType) -> bool:
    """Return whether `dtype`, of the same kind, can represent every value of `source`."""
    if source.kind in "iu" and dtype.kind in "fc":
        # numpy calls int64 to float64 safe, though a float64 has 53 bits for a number.
        return int(np.iinfo(source).max) <= most_exact(dtype)
    return np.can_cast(source, dtype, "equiv" if dtype.kind in "mM" else "safe")


def _cast(name: str, array: arrays_lib.Array, dtype: DType, may_round: bool) -> arrays_lib.Array:
    """Return `array` [...] as `dtype` if every value stays equal, or finite where rounding is allowed."""
    try:
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
            fits = np.asarray(np.isfinite(cast) >= np.isfinite(array)) if may_round else _stays(array, cast)
    except OverflowError:  # Some versions of numpy raise it for a date out of range, others return a wrong one.
        for value in array.reshape(-1, 1) if array.size > 1 else ():
            _cast(name, value, dtype, may_round)
        raise errors.SchemaError(f"{name} must fit {dtype}, got {array.reshape(-1)[0]}") from None
    if np.count_nonzero(fits) == fits.size:
        return cast
    first, first_cast = array[~fits][0], cast[~fits][0]
    shown = validation.short_repr(first.item()) if dtype.kind in "US" else str(first)
    would_lose_digits = array.dtype.kind in "fc" and dtype.kind in "iufc" and np.isfinite([first, first_cast]).all()
    hint = f": cast it yourself, or declare the field {array.dtype}" if would_lose_digits else ""
    raise errors.SchemaError(f"{name} must fit {dtype}, got {shown}{hint}")


def _stays(array: arrays_lib.Array, cast: arrays_lib.Array) -> npt.NDArray[np.bool_]:
    """Return where [...] the value of `cast` equals that of `array`."""
    source, target = array.dtype.kind, cast.dtype.kind
    if target == "c":
        return np.asarray(_stays(np.real(array), np.real(cast)) & _stays(np.imag(array), np.imag(cast)))
    if source == "f" and target in "iu":
        # Outside the range of an integer the result of the cast is undefined.
        return np.asarray(_lies_in(array, cast.dtype) & (cast == array))
    if source in "iu" and target == "f":
        # Comparing int64 with float64 would round first, so cast back and compare.
        is_inside = _lies_in(cast, array.dtype)
        return np.asarray(is_inside & (np.where(is_inside, cast, 0).astype(array.dtype) == array))
    if source == "f":
        return np.asarray((cast == array) | (np.isnan(array) & (target == "f")))
    if source in "mM":
        return np.asarray((cast.astype(array.dtype) == array) | (np.isnat(array) & np.isnat(cast)))
    return np.asarray(cast == array)


def _lies_in(array: arrays_lib.Array, dtype: DType) -> npt.NDArray[np.bool_]:
    """Return where [...] a float of `array` is in the range of the integer `dtype`."""
    limits = np.iinfo(dtype)
    return np.asarray((array >= np.float64(limits.min)) & (array < np.float64(limits.max + 1)))
