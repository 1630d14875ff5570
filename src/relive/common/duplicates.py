"""Copies and pickles of relive's objects: complete, or refused.

CopiedWhole    `copy.copy` does what `copy.deepcopy` does: a shallow copy would share the arrays
NeverCopied    copies are refused: the object is tied to threads, files or background work
tell_forks     notifies objects in a forked process that they belong to its parent
"""

from collections.abc import Callable, Iterable
import contextlib
import copy
import os
from typing import ClassVar, NoReturn, Self, TypeVar

from relive import errors

T = TypeVar("T")


class CopiedWhole:
    """An object whose copies are always deep."""

    def __copy__(self) -> Self:
        return copy.deepcopy(self)


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
