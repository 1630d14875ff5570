"""Array types, fast checks of flags, and a base class for objects that hold views of their arrays."""

import abc
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.common import duplicates

Array: TypeAlias = npt.NDArray[Any]
Bools: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Keys: TypeAlias = npt.NDArray[np.int64]
Slots: TypeAlias = npt.NDArray[np.int64]


def any_set(flags: Bools | memoryview) -> bool:
    """Return whether one of a few flags is True; several times faster than `any` of numpy."""
    # In a bool array viewed from other numbers, every nonzero byte is True.
    content = flags.tobytes()
    return content != bytes(len(content))


def all_set(flags: Bools) -> bool:
    """Return whether all of a few flags are True; several times faster than `all` of numpy."""
    return b"\x00" not in flags.tobytes()


def run_of(slots: Ints) -> slice | Ints:
    """Return slots as a slice if they ascend one by one, which is several times as fast; else themselves.

    >>> import numpy as np
    >>> from relive.common import arrays
    >>> arrays.run_of(np.array([3, 4, 5])), arrays.run_of(np.array([4, 5, 0]))
    (slice(3, 6, None), array([4, 5, 0]))
    """
    count = len(slots)
    if count and slots.item(-1) - slots.item(0) == count - 1 and bool((slots[1:] > slots[:-1]).all()):
        return slice(slots.item(0), slots.item(0) + count)
    return slots


class Derived(duplicates.CopiedWhole, abc.ABC):
    """An object with attributes that are views of its arrays; copies and pickles recreate them.

    A copied view would be a separate array that is never written to, and a memoryview cannot be copied.
    """

    _DERIVED: ClassVar[tuple[str, ...]]
    """The names of what `_derive` makes."""

    @abc.abstractmethod
    def _derive(self) -> None:
        """Create the derived attributes from the others, which exist already; once more when the arrays are others."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._DERIVED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._derive()
