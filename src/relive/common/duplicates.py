"""Copies and pickles of relive's objects: complete, or refused.

CopiedWhole    `copy.copy` does what `copy.deepcopy` does, as a shallow copy would share the arrays; and an unpickled
               object can write to its arrays, whatever memory they were unpickled from
NeverCopied    copies are refused: the object is tied to threads, files or background work
tell_forks     notifies objects in a forked process that they belong to its parent
"""

from collections.abc import Callable, Iterable
import contextlib
import copy
import os
import sys
from typing import Any, ClassVar, NoReturn, Self, TypeVar
import weakref

import numpy as np
import numpy.typing as npt

from relive import errors

T = TypeVar("T")
_COPIES: dict[int, tuple[weakref.ref[npt.NDArray[Any]], npt.NDArray[Any]]] = {}
"""The writable copy of each read-only array that is being unpickled, by its id: who shares the one shares the other."""


class CopiedWhole:
    """An object whose copies are always deep, and that owns its arrays once it is unpickled."""

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def __setstate__(self, state: Any) -> None:
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        attributes = {sys.intern(name): _writable(value) for name, value in (attributes or {}).items()}
        others: Any = super()
        if hasattr(others, "__setstate__"):  # Those of another library.
            others.__setstate__(attributes)
        else:
            vars(self).update(attributes)
        for name, value in (slots or {}).items():
            setattr(self, name, _writable(value))


def _writable(value: Any) -> Any:
    """Return an attribute in which no array is read-only, as arrays in buffers out of band are (`ray.get`)."""
    if type(value) is dict:
        value.update({key: _writable(part) for key, part in value.items()})
    elif type(value) is list:
        value[:] = map(_writable, value)
    elif type(value) is tuple:
        return tuple(map(_writable, value))
    elif isinstance(value, np.ndarray) and not value.flags.writeable:
        key = id(value)
        if key not in _COPIES:
            _COPIES[key] = weakref.ref(value, lambda _: _COPIES.pop(key)), value.copy(order="K")
        return _COPIES[key][1]
    return value


class NeverCopied:
    """An object that can be neither copied nor pickled."""

    _INSTEAD: ClassVar[str]
    """What to do instead, for the error."""

    def __reduce__(self) -> NoReturn:
        raise errors.ArgumentTypeError(f"{type(self).__name__} cannot be copied or pickled: {self._INSTEAD}")


def tell_forks(members: Iterable[T], tell: Callable[[T], None]) -> Callable[[], None]:
    """In every process forked from now on, call `tell` with each of the current members.

    Returns:
        The function that each such process calls.
    """

    def tell_all() -> None:
        for member in members:
            tell(member)

    with contextlib.suppress(AttributeError):  # Windows has no forks.
        os.register_at_fork(after_in_child=tell_all)
    return tell_all
