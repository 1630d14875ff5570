"""Copies of observations and actions: what a caller may still change is copied on the way in and on the way out.

Copied, at any depth: arrays of numpy and of the standard library; list, dict, set, deque, bytearray and their
subclasses, such as OrderedDict, defaultdict and Counter; tuple and named tuple; dataclasses, the frozen ones where
something in them needs a copy. Any other object is kept by reference: strings and numbers need no copy, and only the
author of another mutable class knows how to copy it. So are the elements of an array of dtype object.
"""

import array
import collections
from collections.abc import Callable
import copy
import dataclasses
import operator
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

T = TypeVar("T")
Copier: TypeAlias = Callable[[Any], Any]


def copied(value: T) -> T:
    """Answers `value`, with a copy of every array and built-in container in it."""
    copier = COPIERS[type(value)]
    return value if copier is None else cast("T", copier(value))


def _array(values: Any) -> Any:
    return values.copy()


def _list(values: Any) -> Any:
    return list(map(copied, values))


def _tuple(values: Any) -> Any:
    for value in values:
        if COPIERS[type(value)] is not None:
            return tuple(map(copied, values))
    return values


def _named_tuple(values: Any) -> Any:
    return values._make(map(copied, values))


def _dict(values: Any) -> Any:
    return {key: copied(value) for key, value in values.items()}


def _items(values: Any) -> Any:
    """Copies what keeps its items by key or by index, of a type that a shallow copy knows how to make."""
    twin = copy.copy(values)
    for key in values if isinstance(values, dict) else range(len(values)):
        twin[key] = copied(values[key])
    return twin


def _dataclass(value: Any) -> Any:
    names = [field.name for field in dataclasses.fields(value)]
    values = [getattr(value, name) for name in names]
    copies = list(map(copied, values))
    is_frozen = type(value).__dataclass_params__.frozen
    if is_frozen and all(map(operator.is_, values, copies)):
        return value
    twin = copy.copy(value)
    for name, part in zip(names, copies, strict=True):
        object.__setattr__(twin, name, part)
    return twin


class _Copiers(dict[type, Copier | None]):
    """How to copy a value of each type; None for types that are kept by reference. Learns a type when it meets one."""

    def __missing__(self, kind: type) -> Copier | None:
        copier: Copier | None = None
        if issubclass(kind, np.ndarray):
            copier = _array
        elif issubclass(kind, dict | list | collections.deque):
            copier = _items
        elif issubclass(kind, set | bytearray | array.array):
            copier = copy.copy
        elif issubclass(kind, tuple) and hasattr(kind, "_make"):
            copier = _named_tuple
        elif dataclasses.is_dataclass(kind):
            copier = _dataclass
        self[kind] = copier
        return copier


COPIERS = _Copiers({list: _list, tuple: _tuple, dict: _dict})
