"""Objects some of whose attributes are views of others: a copy or a pickle makes them anew, of its own arrays."""

import abc
from typing import Any, ClassVar


class Derived(abc.ABC):
    """An object with derived attributes.

    A copied view would be an array of its own, which nobody writes to; a memoryview cannot be copied at all.
    """

    _DERIVED: ClassVar[tuple[str, ...]]
    """The names of what `_derive` makes."""

    @abc.abstractmethod
    def _derive(self) -> None:
        """Makes the derived attributes from the others."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._DERIVED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._derive()
