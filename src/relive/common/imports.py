"""Lazy imports: modules that are imported on first use."""

from collections.abc import Iterator
import contextlib
import importlib
import types
from typing import Any

from relive import errors


@contextlib.contextmanager
def optional_dependency(extra: str) -> Iterator[None]:
    """Turn a failed import in the `with` block into an error that names the extra to install.

    Raises:
        MissingExtraError: A library of that extra is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise errors.MissingExtraError(
            f'{error.name or error} is not installed: it comes with the extra "{extra}" of relive', name=error.name
        ) from error


class _LazyModule(types.ModuleType):
    """A module that is imported on first use."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def lazy_module(name: str) -> types.ModuleType:
    """Return a module that is imported when an attribute is first used."""
    return _LazyModule(name)
