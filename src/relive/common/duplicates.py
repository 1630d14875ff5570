"""What a copy of an object of ours is: whole, or refused. Pickles are copies too, and half a copy there is not.

CopiedWhole    `copy.copy` does what `copy.deepcopy` does: a shallow copy would be a second one over the same arrays
NeverCopied    all of them are refused: it belongs to threads, to files, or to what goes on beside it
tell_forks     a forked process has a copy of everything: what belongs to its parent is told so
"""

from collections.abc import Callable, Iterable
import contextlib
import copy
import os
from typing import ClassVar, NoReturn, Self, TypeVar

from relive import errors

T = TypeVar("T")


class CopiedWhole:
    """An object of which every copy is whole and independent."""

    def __copy__(self) -> Self:
        return copy.deepcopy(self)


class NeverCopied:
    """An object that can be neither copied nor pickled."""

    _INSTEAD: ClassVar[str]
    """What to do instead, for the error."""

    def __reduce__(self) -> NoReturn:
        raise errors.ArgumentTypeError(f"{type(self).__name__} cannot be copied or pickled: {self._INSTEAD}")


def tell_forks(members: Iterable[T], tell: Callable[[T], None]) -> Callable[[], None]:
    """Call `tell` with each of the members that there are then in every process that is forked from now on.

    Returns:
        What each such process calls.
    """

    def tell_all() -> None:
        for member in members:
            tell(member)

    with contextlib.suppress(AttributeError):  # Windows has no forks.
        os.register_at_fork(after_in_child=tell_all)
    return tell_all
