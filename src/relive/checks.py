"""Checks of arguments: each answers the argument in the library's own type, or raises an error that names it."""

import math
import numbers
import operator
import reprlib
from typing import Any, SupportsFloat

import numpy as np

from relive import errors


def shown(value: object) -> str:
    """Answers `value` for an error message: its representation on one short line."""
    return " ".join(reprlib.repr(value).split())


def integer_of_at_least_one(name: str, value: object) -> int:
    """Answers `value` as an int.

    Raises:
        ArgumentTypeError: `value` is not an integer.
        ArgumentError: `value` is below 1.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise errors.ArgumentTypeError(f"{name} must be an integer of at least 1, got {shown(value)}")
    number = operator.index(value)
    if number < 1:
        raise errors.ArgumentError(f"{name} must be at least 1, got {number}")
    return number


def finite_number(name: str, value: object) -> float:
    """Answers the real number `value` as a float; numpy scalars and arrays of shape [] are numbers too.

    Raises:
        ArgumentTypeError: `value` is not a real number.
        ArgumentError: `value` is infinite or NaN, or no float equals it.
    """
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if not isinstance(value, numbers.Real | np.bool_):
        raise errors.ArgumentTypeError(f"{name} must be a finite real number, got {shown(value)}")
    number = as_float(value)
    if not math.isfinite(number):
        raise errors.ArgumentError(f"{name} must be a finite real number, got {shown(value)}")
    if number != value:
        raise errors.ArgumentError(f"{name} must be a number that a float holds exactly, got {shown(value)}")
    return number


def as_float(value: SupportsFloat) -> float:
    """Answers `value` as a float, infinity if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def generator(name: str, value: Any) -> np.random.Generator:
    """Answers the generator that numpy makes of a seed; a generator is answered itself.

    Raises:
        ArgumentTypeError: `value` is no seed.
        ArgumentError: `value` is negative.
    """
    if value is None or isinstance(value, np.random.Generator):
        return np.random.default_rng(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise errors.ArgumentTypeError(f"{name} must be an integer, a numpy Generator or None, got {shown(value)}")
    seed = operator.index(value)
    if seed < 0:
        raise errors.ArgumentError(f"{name} must be at least 0, got {seed}")
    return np.random.default_rng(seed)


def discount(name: str, value: object) -> float:
    """Answers the discount factor `value`, in (0, 1], as a float.

    Raises:
        ArgumentTypeError: `value` is not a real number.
        ArgumentError: `value` lies outside (0, 1].
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise errors.ArgumentTypeError(f"{name} must be a number in (0, 1], got {shown(value)}")
    gamma = as_float(value)
    if not 0 < gamma <= 1:
        raise errors.ArgumentError(f"{name} must be in (0, 1], got {shown(value)}")
    return gamma
