"""What a copy of an object of ours is: whole, or refused. Pickles are copies too, and half a copy there is not.

CopiedWhole    `copy.copy` does what `copy.deepcopy` does: a shallow copy would be a second one over the same arrays
NeverCopied    all of them are refused: it belongs to threads, to files, or to what goes on beside it
"""

import copy
from typing import ClassVar, NoReturn, Self

from relive import errors


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
