"""Copies of observations and actions: mutable values are copied on the way in and on the way out.

The table in docs/guides/objects.md lists what is copied and what is shared. An object that occurs twice in one
observation is copied once, and cycles are preserved.
"""

import array
import collections
from collections.abc import Callable, Iterable
import copy
import dataclasses
import enum
import operator
from typing import Any, Self, TypeAlias, TypeVar, cast

import numpy as np

from relive import errors
from relive.common import validation

T = TypeVar("T")
Memo: TypeAlias = dict[int, Any]
"""The copies made so far, by the id of the original: what is shared, or holds itself, stays so."""
Copier: TypeAlias = Callable[[Any, Memo], Any]


def copied(value: T) -> T:
    """Return `value` with copies of what the table says is copied, and all else shared."""
    copier = COPIERS[type(value)]
    return value if copier is None else cast("T", copier(value, {}))


def _part(value: Any, memo: Memo) -> Any:
    """Return a copy of a nested value, the same one each time it occurs."""
    copier = COPIERS[type(value)]
    if copier is None:
        return value
    if id(value) not in memo:
        memo[id(value)] = copier(value, memo)
    return memo[id(value)]


def _are_shared(values: Iterable[Any]) -> bool:
    """Return whether none of the values needs a copy."""
    return not any(map(_copier_of, set(map(type, values))))


def _array(values: Any, memo: Memo) -> Any:
    return values.copy(order="K")


def _shallow(values: Any, memo: Memo) -> Any:
    return copy.copy(values)


def _list(values: Any, memo: Memo) -> Any:
    """Copy a list or deque, or one of a subclass."""
    twin = memo[id(values)] = values.copy() if type(values) is list else copy.copy(values)
    if not _are_shared(values):
        for place, value in enumerate(values):
            twin[place] = _part(value, memo)
    return twin


def _dict(values: Any, memo: Memo) -> Any:
    twin = memo[id(values)] = values.copy() if type(values) is dict else copy.copy(values)
    for key, value in values.items():
        if COPIERS[type(value)] is not None:
            twin[key] = _part(value, memo)
    return twin


def _tuple(values: Any, memo: Memo) -> Any:
    if _are_shared(values):
        return values
    parts = [_part(value, memo) for value in values]
    if all(map(operator.is_, parts, values)):
        return values
    # A part may contain the tuple itself, and then its copy.
    return memo.setdefault(id(values), tuple(parts) if type(values) is tuple else values._make(parts))


def _dataclass(value: Any, memo: Memo) -> Any:
    names = {field.name for field in dataclasses.fields(value) if hasattr(value, field.name)}
    names.update(getattr(value, "__dict__", ()))
    parts = {name: getattr(value, name) for name in names}
    is_frozen = value.__dataclass_params__.frozen
    if is_frozen and _are_shared(parts.values()):
        return value
    twin = memo[id(value)] = copy.copy(value)
    for name, part in parts.items():
        object.__setattr__(twin, name, _part(part, memo))
    if is_frozen and all(getattr(twin, name) is part for name, part in parts.items()):
        memo[id(value)] = value
    return memo[id(value)]


def _clone(value: Any, memo: Memo) -> Any:
    """Copy an object with its `clone` method; a tensor is detached first, so that its graph is not kept alive."""
    return (value.detach() if hasattr(value, "detach") else value).clone()


def shared(kind: type[T]) -> type[T]:
    """Let objects of a class be shared, since nothing in them can change: a decorator."""
    _COPIER_OF_BASE[kind] = None
    return kind


class Copiers(collections.UserDict[type, Callable[[Any], Any]]):
    """A registry of functions that copy objects, by class.

    Objects of a registered class, and of subclasses that are not registered themselves, are copied with its function.
    The registry applies to all buffers of the process, from then on.

    >>> import relive
    >>> class Board:
    ...     def __init__(self, moves):
    ...         self.moves = list(moves)
    >>> relive.copiers[Board] = lambda board: Board(board.moves)
    >>> del relive.copiers[Board]
    """

    def __setitem__(self, kind: type, copier: Callable[[Any], Any]) -> None:
        """Register a function that takes an object of a class and returns a copy.

        Raises:
            ArgumentTypeError: `kind` is not a class, or `copier` cannot be called.
        """
        if not isinstance(kind, type):
            raise errors.ArgumentTypeError(f"a key of copiers must be a class, got {validation.short_repr(kind)}")
        if not callable(copier):
            raise errors.ArgumentTypeError(
                f"the copier of {kind.__name__} must be callable, got {validation.short_repr(copier)}"
            )
        super().__setitem__(kind, copier)
        COPIERS.clear()

    def __delitem__(self, kind: type) -> None:
        super().__delitem__(kind)
        COPIERS.clear()

    def __ior__(self, others: Any) -> Self:  # type: ignore[misc, override]
        self.update(others)  # Where UserDict writes past `__setitem__`.
        return self

    def __repr__(self) -> str:
        return f"<copiers of {', '.join(kind.__name__ for kind in self) or 'no class'}>"


copiers = Copiers()


class _CopierOfEachType(dict[type, Copier | None]):
    """The copier of each type, looked up on first use; None for types that are shared."""

    def __missing__(self, kind: type) -> Copier | None:
        copier: Copier | None = None
        registered = next((copiers[base] for base in kind.__mro__ if base in copiers), None)
        base = next((base for base in kind.__mro__ if base in _COPIER_OF_BASE), None)
        if registered is not None:
            copier = _by(registered)
        elif base is not None:
            copier = _COPIER_OF_BASE[base]
        elif kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_make")):
            copier = _tuple
        elif dataclasses.is_dataclass(kind):
            copier = _dataclass
        elif callable(getattr(kind, "clone", None)):
            copier = _clone
        self[kind] = copier
        return copier


def _by(registered: Callable[[Any], Any]) -> Copier:
    return lambda value, memo: registered(value)


_COPIER_OF_BASE: dict[type, Copier | None] = {
    np.ndarray: _array,
    # A structured scalar is a view into the array that it was taken from.
    np.void: _array,
    list: _list,
    collections.deque: _list,
    dict: _dict,
    set: _shallow,
    bytearray: _shallow,
    array.array: _shallow,
    # Singletons, even if they are dataclasses or have a method `clone`.
    enum.Enum: None,
    type: None,
}
COPIERS = _CopierOfEachType()
_copier_of = COPIERS.__getitem__
