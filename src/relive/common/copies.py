"""Copies of observations and actions: what a caller may still change is copied on the way in and on the way out.

Copied, at any depth: arrays of numpy and of the standard library; list, dict, set, deque, bytearray and their
subclasses, such as OrderedDict, defaultdict and Counter; tuple and named tuple; dataclasses, the frozen ones where
something in them needs a copy; other objects with a method `clone()`, such as torch tensors, which are detached first;
and objects of the classes in `copiers`, in the way that is registered there. Any other object is kept by reference:
strings and numbers need no copy, and only the author of another mutable class knows how to copy it. So are the elements
of an array of dtype object. What is shared inside one observation stays shared in its copy, and a graph keeps its
cycles.
"""

import array
import collections
from collections.abc import Callable, Iterator, MutableMapping
import copy
import dataclasses
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from relive import errors
from relive.common import validation

T = TypeVar("T")
Memo: TypeAlias = dict[int, Any]
"""The copies made so far, by the id of the original: what is shared, or holds itself, stays so."""
Copier: TypeAlias = Callable[[Any, Memo], Any]


def copied(value: T) -> T:
    """Return `value`, with a copy of everything in it that may change."""
    copier = COPIERS[type(value)]
    return value if copier is None else cast("T", copier(value, {}))


def _part(value: Any, memo: Memo) -> Any:
    """Return a copy of what is inside something else, the same one each time it is met."""
    copier = COPIERS[type(value)]
    if copier is None:
        return value
    if id(value) not in memo:
        memo[id(value)] = copier(value, memo)
    return memo[id(value)]


def _array(values: Any, memo: Memo) -> Any:
    return values.copy(order="K")


def _shallow(values: Any, memo: Memo) -> Any:
    return copy.copy(values)


def _list(values: Any, memo: Memo) -> Any:
    twin: list[Any] = []
    memo[id(values)] = twin
    twin.extend(_part(value, memo) for value in values)
    return twin


def _tuple(values: Any, memo: Memo) -> Any:
    for value in values:
        if COPIERS[type(value)] is not None:
            return tuple(_part(value, memo) for value in values)
    return values


def _named_tuple(values: Any, memo: Memo) -> Any:
    return values._make(_part(value, memo) for value in values)


def _dict(values: Any, memo: Memo) -> Any:
    twin: dict[Any, Any] = {}
    memo[id(values)] = twin
    for key, value in values.items():
        twin[key] = _part(value, memo)
    return twin


def _items(values: Any, memo: Memo) -> Any:
    """Copy what keeps its items by key or by index, of a type that a shallow copy knows how to make."""
    twin = memo[id(values)] = copy.copy(values)
    for key in values if isinstance(values, dict) else range(len(values)):
        twin[key] = _part(values[key], memo)
    return twin


def _dataclass(value: Any, memo: Memo) -> Any:
    names = {field.name for field in dataclasses.fields(value) if hasattr(value, field.name)}
    names.update(getattr(value, "__dict__", ()))
    if value.__dataclass_params__.frozen and all(COPIERS[type(getattr(value, name))] is None for name in names):
        return value
    twin = memo[id(value)] = copy.copy(value)
    for name in names:
        object.__setattr__(twin, name, _part(getattr(value, name), memo))
    return twin


def _clone(value: Any, memo: Memo) -> Any:
    """Copy an object by its own method; a tensor without the history of its gradient, which would be kept with it."""
    return (value.detach() if hasattr(value, "detach") else value).clone()


class Copiers(MutableMapping[type, Callable[[Any], Any]]):
    """A registry of functions that copy objects; each takes an object of its class and returns a copy.

    A class that is registered here is copied in that way and no other, and so are its subclasses, unless they are
    registered themselves. It holds for all buffers of the process, and for what is stored or read from then on.

    >>> import relive
    >>> class Board:
    ...     def __init__(self, moves):
    ...         self.moves = list(moves)
    >>> relive.copiers[Board] = lambda board: Board(board.moves)
    >>> del relive.copiers[Board]
    """

    def __init__(self) -> None:
        self._functions: dict[type, Callable[[Any], Any]] = {}

    def __setitem__(self, kind: type, copier: Callable[[Any], Any]) -> None:
        """Register how objects of a class are copied.

        Raises:
            ArgumentTypeError: `kind` is not a class, or `copier` cannot be called.
        """
        if not isinstance(kind, type):
            raise errors.ArgumentTypeError(f"a key of copiers must be a class, got {validation.short_repr(kind)}")
        if not callable(copier):
            raise errors.ArgumentTypeError(
                f"the copier of {kind.__name__} must be callable, got {validation.short_repr(copier)}"
            )
        self._functions[kind] = copier
        COPIERS.clear()

    def __getitem__(self, kind: type) -> Callable[[Any], Any]:
        return self._functions[kind]

    def __delitem__(self, kind: type) -> None:
        del self._functions[kind]
        COPIERS.clear()

    def __iter__(self) -> Iterator[type]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return f"<copiers of {', '.join(kind.__name__ for kind in self) or 'no class'}>"


copiers = Copiers()


class _CopierOfEachType(dict[type, Copier | None]):
    """How to copy a value of each type; None for types that are kept by reference. Learns a type when it meets one."""

    def __missing__(self, kind: type) -> Copier | None:
        copier: Copier | None = None
        registered = next((copiers[base] for base in kind.__mro__ if base in copiers), None)
        if registered is not None:
            copier = _by(registered)
        elif kind in _BUILT_IN:
            copier = _BUILT_IN[kind]
        elif issubclass(kind, np.ndarray):
            copier = _array
        elif issubclass(kind, dict | list | collections.deque):
            copier = _items
        elif issubclass(kind, set | bytearray | array.array):
            copier = _shallow
        elif issubclass(kind, tuple) and hasattr(kind, "_make"):
            copier = _named_tuple
        elif dataclasses.is_dataclass(kind):
            copier = _dataclass
        elif callable(getattr(kind, "clone", None)):
            copier = _clone
        self[kind] = copier
        return copier


def _by(registered: Callable[[Any], Any]) -> Copier:
    return lambda value, memo: registered(value)


_BUILT_IN: dict[type, Copier] = {list: _list, tuple: _tuple, dict: _dict}
COPIERS = _CopierOfEachType()
