"""Argument checks: each returns the argument in a canonical type, or raises an error that names it.

It is an ArgumentTypeError for a value of another type, and an ArgumentError for one that is not allowed, or that is
none of a few choices.
"""

from collections.abc import Mapping, Sequence
import math
import numbers
import operator
import reprlib
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors

LARGEST = 2**62
"""No count is larger: sums of two still fit in 64 bits."""
LARGEST_BATCH = 2**40
"""No memory holds the rows of more."""
_NUMBERS = frozenset((bool, int, float))
_LONGEST_REPR = 200


class _ShortRepr(reprlib.Repr):
    """Python's `reprlib`, which fails for integers of more than 4300 digits."""

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"an integer of {x.bit_length()} bits"


_SHORT_REPR = _ShortRepr()


def short_repr(value: object) -> str:
    """Return the representation of `value` for an error message, on one short line."""
    line = " ".join(_SHORT_REPR.repr(value).split())
    return line if len(line) <= _LONGEST_REPR else f"{line[: _LONGEST_REPR - 3]}..."


def shown(value: object) -> str:
    """Return printable text as it is, and the representation of anything else, for an error message."""
    return value if isinstance(value, str) and value.isprintable() else short_repr(value)


def positive_int(name: str, value: object) -> int:
    """Return `value` as an int of at least 1."""
    return _int_of_at_least(1, name, value)


def batch_size(name: str, value: object) -> int:
    """Return the number of rows to draw as an int."""
    size = _int_of_at_least(1, name, value)
    if size > LARGEST_BATCH:
        raise errors.ArgumentError(f"{name} must be at most {LARGEST_BATCH}, got {size}")
    return size


def non_negative_int(name: str, value: object) -> int:
    """Return `value` as an int of at least 0."""
    return _int_of_at_least(0, name, value)


def _int_of_at_least(least: int, name: str, value: object) -> int:
    if type(value) is int:
        number = value
    elif isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise errors.ArgumentTypeError(f"{name} must be an integer of at least {least}, got {short_repr(value)}")
    else:
        number = operator.index(value)
    if number < least:
        raise errors.ArgumentError(f"{name} must be at least {least}, got {short_repr(number)}")
    if number > LARGEST:
        raise errors.ArgumentError(f"{name} must be at most 2**62, got {short_repr(number)}")
    return number


def next_version(version: object, before: int | None) -> int:
    """Return the next policy version as an int of at least the previous one, if any."""
    number = non_negative_int("version", version)
    if before is not None and number < before:
        raise errors.ArgumentError(
            f"version must be at least {before}, the previous one, got {number}: resume_policy_version goes back"
        )
    return number


def string(name: str, value: object) -> str:
    """Return the string `value`; subclasses such as numpy's become plain str, which files need."""
    if not isinstance(value, str):
        raise errors.ArgumentTypeError(f"{name} must be a string, got {short_repr(value)}")
    return value if type(value) is str else "".join(value)


def non_empty_string(name: str, value: object) -> str:
    """Return the string `value`, which must have a character."""
    text = string(name, value)
    if not text:
        raise errors.ArgumentError(f"{name} must be a string of at least 1 character, got ''")
    return text


def finite_number(name: str, value: object) -> float:
    """Return the finite real number `value` as the float that equals it; numpy arrays of shape [] are numbers too."""
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if not isinstance(value, numbers.Real | np.bool_):
        raise errors.ArgumentTypeError(f"{name} must be a finite real number, got {short_repr(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise errors.ArgumentError(f"{name} must be a finite real number, got {short_repr(value)}")
    if number != value:
        raise errors.ArgumentError(f"{name} must be a number that a float holds exactly, got {short_repr(value)}")
    return number


def generator(name: str, value: Any) -> np.random.Generator:
    """Return the numpy generator for a seed; a generator is returned itself."""
    if value is None or isinstance(value, np.random.Generator):
        return np.random.default_rng(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise errors.ArgumentTypeError(f"{name} must be an integer, a numpy Generator or None, got {short_repr(value)}")
    seed = operator.index(value)
    if seed < 0:
        raise errors.ArgumentError(f"{name} must be at least 0, got {short_repr(seed)}")
    return np.random.default_rng(seed)


def discount(name: str, value: object) -> float:
    """Return the discount factor `value`, in (0, 1], as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise errors.ArgumentTypeError(f"{name} must be a number in (0, 1], got {short_repr(value)}")
    gamma = float(value) if value <= 1 and not value <= 0 else 0.0
    if not gamma:
        raise errors.ArgumentError(f"{name} must be in (0, 1], got {short_repr(value)}")
    return gamma


def non_negative_float(name: str, value: object) -> float:
    """Return `value` as a finite float of at least 0."""
    if isinstance(value, bool):
        raise errors.ArgumentTypeError(f"{name} must be a finite real number, got {short_repr(value)}")
    number = finite_number(name, value)
    if number < 0:
        raise errors.ArgumentError(f"{name} must be at least 0, got {short_repr(value)}")
    return number


def boolean(name: str, value: object) -> bool:
    """Return `value` as a bool; numpy bools and bool arrays of shape [] are accepted."""
    if hasattr(value, "dtype"):
        array = array_of(value)
        value = array[()] if array is not None and array.shape == () else value
    if not isinstance(value, bool | np.bool_):
        raise errors.ArgumentTypeError(f"{name} must be True or False, got {short_repr(value)}")
    return bool(value)


def require_choice(name: str, value: object, choices: Sequence[str], meant: Mapping[str, str] = {}) -> None:
    """Raise ArgumentError if `value` is none of the choices; `meant` has those that other words mean."""
    remedy = ""
    try:
        if value in {*choices}:
            return
        remedy = f": say {meant[value]!r}" if isinstance(value, str) and value in meant else ""
    except TypeError:  # It has no hash, as arrays: one of them is equal to a word in each of its entries.
        pass
    rule = " or ".join(map(repr, choices)) if len(choices) < 4 else f"one of {', '.join(choices)}"
    raise errors.ArgumentError(f"{name} must be {rule}, got {short_repr(value)}{remedy}")


def require_function(name: str, value: object) -> None:
    """Raise ArgumentTypeError if `value` cannot be called."""
    if not callable(value):
        raise errors.ArgumentTypeError(f"{name} must be a function, got {short_repr(value)}")


def items(name: str, value: Any, kind: str) -> list[Any]:
    """Return the items of an iterable that is no string; `kind` says in errors what they are."""
    try:
        found = None if isinstance(value, str | bytes) else list(value)
    except TypeError:
        found = None
    if found is None:
        raise errors.ArgumentTypeError(f"{name} must be a list of {kind}, got {short_repr(value)}")
    return found


def require_instance(name: str, value: object, kind: type) -> None:
    """Raise ArgumentTypeError if `value` is not an instance of the class."""
    if not isinstance(value, kind):
        raise errors.ArgumentTypeError(f"{name} must be an instance of {kind.__name__}, got {short_repr(value)}")


def ambiguous_truth(buffer: object) -> errors.ArgumentTypeError:
    """Return the error for a buffer used as a truth value."""
    return errors.ArgumentTypeError(
        f"{type(buffer).__name__} is neither True nor False: use `len(buffer) > 0` or `buffer is not None`"
    )


def integers(name: str, value: Any) -> npt.NDArray[np.int64]:
    """Return `value` as a flat array of integers [k]."""
    array = value if type(value) is np.ndarray else array_of(value)
    if array is None or (array.dtype.kind not in "iu" and array.size):
        # Integers of more than 64 bits are objects to numpy.
        kind = "integers of int64" if array is not None and array.dtype.hasobject else "integers"
        raise errors.ArgumentTypeError(f"{name} must be {kind}, got {short_repr(value)}")
    integers_ = array.astype(np.int64, copy=False)
    return integers_ if integers_.ndim == 1 else integers_.reshape(-1)


def require_given_out(keys: npt.NDArray[np.int64], appended: int, what: str) -> None:
    """Raise ArgumentError if one of the keys [k] is of none of the rows, called `what`, that were ever added."""
    for key in keys[(keys < 0) | (keys >= appended)]:
        raise errors.ArgumentError(
            f"keys must be those of batches, below {appended}, the number of {what} added so far, got {key}, "
            "which was never given out and may be a slot"
        )


def flag(name: str, value: object) -> bool:
    """Return a flag as a bool: True, False, or an integer or float 0 or 1, alone or as an array of one element."""
    kind = type(value)
    if kind is np.bool_ or (kind in _NUMBERS and value in (0, 1)):
        return bool(value)
    array = _flags(name, value)
    if array.size != 1:
        raise errors.ArgumentError(f"{name} must be one flag, got an array of shape {array.shape}")
    return bool(array.item())


def is_terminated(terminated: object, truncated: object) -> bool:
    """Return whether an episode that has ended terminated, by two flags of which just one may be True.

    Either may be None, but truncated=False alone does not say how it ended.
    """
    if terminated is not True and terminated is not False and terminated is not None:
        terminated = flag("terminated", terminated)
    if truncated is None and terminated is not None:
        return terminated
    ended = terminated is True
    if truncated is None or flag("truncated", truncated) is ended:
        given = f"got terminated={short_repr(terminated)} and truncated={short_repr(truncated)}"
        raise errors.ArgumentError(f"terminated or truncated must be True, and not both, {given}")
    return ended


def flags(name: str, value: Any, count: int) -> npt.NDArray[np.bool_]:
    """Return flags as an array of bools [count], as `flag` does for one; None is all False."""
    if value is None:
        return np.zeros(count, np.bool_)
    array = value if type(value) is np.ndarray and value.dtype == np.bool_ else _flags(name, value)
    if array.shape != (count,):
        raise errors.ArgumentError(f"{name} must be of shape ({count},), got {array.shape}")
    return array


def _flags(name: str, value: Any) -> npt.NDArray[np.bool_]:
    """Return flags as an array of bools [...], which may be `value` itself."""
    array = array_of(value)
    if array is not None and array.dtype.kind in "b":
        return array
    is_number = array is not None and array.dtype.kind in "iuf"
    if array is not None and is_number:
        bools = array.astype(np.bool_)
        if (bools == array).all():
            return bools
    error = errors.ArgumentError if is_number else errors.ArgumentTypeError
    raise error(f"{name} must be True, False, 0 or 1, got {short_repr(value)}")


def non_negative_floats(name: str, value: Any, count: int) -> npt.NDArray[np.float64]:
    """Return `value`, of shape [count] or [count, 1], as an array of finite floats of at least 0 [count]."""
    array = value if type(value) is np.ndarray and value.dtype.kind != "V" else array_of(value)
    if array is None or (array.dtype.kind not in "biuf" and array.size):
        raise errors.ArgumentTypeError(f"{name} must be a real number in every row, got {short_repr(value)}")
    if array.shape not in ((count,), (count, 1)):
        raise errors.ArgumentError(f"{name} must be of shape ({count},), got {array.shape}")
    if array.dtype.itemsize > np.dtype(np.float64).itemsize:
        with np.errstate(over="ignore"):  # A long double that no float64 holds becomes infinite, and is refused below.
            array = array.astype(np.float64)
    numbers_ = (array.astype(np.float64, copy=False) + 0.0).reshape(-1)  # -0.0 is 0.0.
    # Where there is a NaN, `argmin` finds it.
    if count and not (numbers_.item(numbers_.argmin()) >= 0 and numbers_.item(numbers_.argmax()) < math.inf):
        row = int((~(np.isfinite(numbers_) & (numbers_ >= 0))).argmax())
        raise errors.ArgumentError(f"{name} of row {row} must be a finite number of at least 0, got {numbers_[row]}")
    return numbers_


def array_of(value: Any) -> npt.NDArray[Any] | None:
    """Return `value` as a numpy array; None if that fails, as for ragged rows, or if it is masked."""
    if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
        return None
    try:
        array = np.asarray(value)
        # The dtype of JAX's bfloat16 is none of numpy's own; float32 has all its values.
        return array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.name == "bfloat16" else array
    except (TypeError, ValueError, RuntimeError):
        calls = tensor_calls(value)
    try:
        return array_of(getattr(value, calls[0])()) if calls else None
    except NotImplementedError:  # A tensor on torch's device "meta", which has no values.
        return None


def tensor_calls(value: Any) -> list[str]:
    """Return the methods to call, in order, before numpy can read a tensor.

    No framework is imported: anything with a method `detach` is a tensor. The list is empty for anything else.
    """
    if not hasattr(value, "detach"):
        return []
    calls = ["detach"] if getattr(value, "requires_grad", False) else []
    if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
        calls.append("cpu")
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        # numpy has no such dtype.
        calls.append("float")
    return calls


def tensor_remedy(value: Any) -> str:
    """Return what to do, for the end of an error message, before numpy can read a tensor or a list of tensors."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    calls = "".join(f".{call}()" for call in tensor_calls(value))
    if not calls and str(getattr(value, "dtype", "")) == "bfloat16":
        calls = ".astype('float32')"
    return f": call {calls} first" if calls else ""


def leading_length(name: str, value: Any) -> int:
    """Return the length of `value`; raise ArgumentTypeError if it is a scalar."""
    try:
        return len(value)
    except TypeError:
        raise errors.ArgumentTypeError(f"{name} must be a sequence, got {short_repr(value)}") from None
