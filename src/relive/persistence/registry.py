"""Classes whose objects are saved in checkpoints by name and settings.

    MinSize(100)    is saved as    {"kind": "MinSize", "n": 100}    and recreated by    MinSize(n=100)

Classes register themselves when they are defined, custom ones too. Loading a file never imports anything but public
names of relive.
"""

import abc
from collections.abc import Mapping
import importlib
import inspect
from typing import Any, Generic, Self, TypeVar
import weakref

from relive import errors
from relive.common import validation

T = TypeVar("T")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Registry(Generic[T]):
    """Classes by name, held by weak references."""

    def __init__(self) -> None:
        self._classes: dict[str, dict[tuple[str, str], weakref.ref[type[T]]]] = {}

    def add(self, kind: type[T]) -> None:
        """Register a class; one that is redefined, as in a notebook, replaces the old one."""
        self._classes.setdefault(kind.__name__, {})[kind.__module__, kind.__qualname__] = weakref.ref(kind)

    def find(self, name: str) -> type[T] | None:
        """Return the class of that name; None if there is none.

        Raises:
            CheckpointError: There are several.
        """
        kind = self._defined(name)
        relive: Any = importlib.import_module("relive")  # Imports only go down; this looks up.
        if kind is None and name in relive.__all__:
            getattr(relive, name)  # Public names are imported on first use, and register themselves then.
            kind = self._defined(name)
        return kind

    def _defined(self, name: str) -> type[T] | None:
        places = self._classes.get(name, {}).items()
        kinds = {".".join(place): kind for place, reference in places if (kind := reference()) is not None}
        if len(kinds) > 1:
            rule = "the name of a class that is saved must be its own"
            raise errors.CheckpointError(f"{rule}, got {name} of {' and '.join(kinds)}: rename one of them")
        return next(iter(kinds.values()), None)


class Configurable:
    """An object that is saved by its class name and its settings."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Register the class by its name."""
        super().__init_subclass__(**keywords)
        PARTS.add(cls)

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor that make an object like this one, by name.

        By default, the attributes named like the parameters of the constructor. Override this method if they have other
        names.
        """
        return {name: getattr(self, name) for name in parameters(type(self)) if hasattr(self, name)}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{changed(type(self), self.settings())}>"


PARTS: Registry[Configurable] = Registry()
"""The classes of what buffers are made of, such as samplers and limiters."""


class Described(Configurable):
    """An object that is saved by a description, a JSON value, instead of its settings."""

    @abc.abstractmethod
    def description(self) -> Any:
        """Return the object as a JSON value."""

    @classmethod
    @abc.abstractmethod
    def from_description(cls, value: Any) -> Self:
        """Return the object with that description; raise CheckpointError if it is invalid."""


def parameters(kind: type) -> dict[str, Any]:
    """Return the parameters of a constructor with their defaults; with `**kwargs` or `*args`, those above it too."""
    defaults: dict[str, Any] = {}
    for constructor in (vars(each)["__init__"] for each in kind.__mro__[:-1] if "__init__" in vars(each)):
        found = list(inspect.signature(constructor).parameters.values())[1:]
        defaults = {each.name: each.default for each in found if each.kind in _NAMED} | defaults
        if all(each.kind in _NAMED for each in found):
            break
    return defaults


def changed(kind: type, settings: Mapping[str, Any]) -> str:
    """Return the settings that are not the defaults of a constructor, as `, name=value` each, on one line."""
    defaults = parameters(kind)
    shown = {name: " ".join(repr(value).split()) for name, value in settings.items()}
    return "".join(f", {name}={text}" for name, text in shown.items() if text != repr(defaults.get(name)))


def settings_of(name: str, value: Configurable) -> dict[str, Any]:
    """Return the settings of an object that is itself the setting `name`.

    Raises:
        CheckpointError: They do not cover all constructor parameters, or several classes have the same name.
    """
    kind = type(value)
    found = value.settings()
    missing = [parameter for parameter in parameters(kind) if parameter not in found]
    if missing or "kind" in found:
        rule = f"{name} cannot be saved: settings() of {kind.__name__} must return what its constructor takes"
        raise errors.CheckpointError(
            f"{rule}, got no {missing[0]}" if missing else f"{rule}, by other names than 'kind', got one of that name"
        )
    if PARTS.find(kind.__name__) is not kind:
        rule = f"{name} cannot be saved: {kind.__name__} must be the newest class of that name"
        raise errors.CheckpointError(f"{rule}, got {validation.short_repr(kind)}")
    return found
