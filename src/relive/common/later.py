"""Modules that are imported when something of them is first used: who never saves does not wait for what saves."""

import importlib
import types
from typing import Any


class _Later(types.ModuleType):
    """Stands for a module."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def module(name: str) -> types.ModuleType:
    """Answers what stands for the module of that name.

    >>> from relive.common import later
    >>> later.module("relive.windows.returns").compute_discounted_return([1.0, 1.0], 0.5)
    1.5
    """
    return _Later(name)
