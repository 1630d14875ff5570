"""Classes whose objects are saved in checkpoints by name and settings.

    MinSize(100)    is saved as    {"kind": "MinSize", "n": 100}    and recreated by    MinSize(n=100)

Settings are remembered from the call of the constructor. Classes register themselves when they are defined, custom
ones too. Loading a file never imports anything but public names of relive.
"""

import abc
from collections.abc import Callable, Mapping
import functools
import inspect
import itertools
import numbers
from typing import Any, ClassVar, Generic, Self, TypeVar
import weakref

import numpy as np

import relive
from relive import errors
from relive.common import words

T = TypeVar("T")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_UNKNOWN = inspect.Parameter.empty


class Registry(Generic[T]):
    """Classes by name, held by weak references."""

    def __init__(self) -> None:
        self._classes: dict[str, dict[tuple[str, str], weakref.ref[type[T]]]] = {}

    def add(self, kind: type[T]) -> None:
        """Register a class; one that is redefined, as in a notebook, replaces the old one."""
        self._classes.setdefault(kind.__name__, {})[kind.__module__, kind.__qualname__] = weakref.ref(kind)

    def find(self, name: str) -> type[T] | None:
        """Return the class of that name; None if there is none; raise CheckpointError if there are several."""
        kind = self._defined(name)
        if kind is None and name in vars(relive)["__all__"]:
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


class Remembering:
    """An object whose settings are the arguments of its constructor."""

    _NOT_KEPT: ClassVar[frozenset[str]] = frozenset()
    """The arguments that are not settings."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        words.name_methods(cls)
        if "__init__" in vars(cls):
            cls.__init__ = _remembering(cls.__init__)  # type: ignore[method-assign]

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor that make an object like this one, by name.

        By default, each is what the constructor was given, if that is a number, a text, None or an object with
        settings. A property of that name counts before it, and an attribute too unless the object is a buffer. Override
        this method for others.
        """
        known = self._known_settings()
        names = [name for name in parameters(type(self)) | known if name not in self._NOT_KEPT]
        found = {name: known[name] if name in known else _argument(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not _UNKNOWN}

    def _known_settings(self) -> dict[str, Any]:
        """Return the settings that may be others by now than what the constructor was given."""
        return {}


def _remembering(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor, which also remembers its arguments, unless a subclass took one of that name."""
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def construct(self: Any, *values: Any, **named: Any) -> None:
        given = {} if type(self).__init__ is construct else vars(self).get("_remembered", {})
        vars(self)["_remembered"] = given
        try:
            bound = signature.bind(self, *values, **named)
        except TypeError:
            words.check_arguments(type(self), values, named)
            return constructor(self, *values, **named)  # It raises a better TypeError.
        bound.apply_defaults()
        for name, value in itertools.islice(bound.arguments.items(), 1, None):
            plain = value.item() if isinstance(value, np.generic) else value
            given.setdefault(name, plain if isinstance(plain, _PLAIN) else _UNKNOWN)
        return constructor(self, *values, **named)

    return construct


def _argument(value: Remembering, name: str) -> Any:
    """Return an argument of the constructor of an object."""
    given = vars(value).get("_remembered", {}).get(name, _UNKNOWN)
    # Of a buffer, an attribute that a subclass sets may be something else.
    is_live = isinstance(value, Configurable) and name in vars(value)
    is_live |= inspect.isdatadescriptor(inspect.getattr_static(type(value), name, None))
    return getattr(value, name, given) if is_live else given


class Configurable(Remembering):
    """An object that is saved by its class name and its settings."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Register the class by its name."""
        super().__init_subclass__(**keywords)
        PARTS.add(cls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{changed(type(self), self.settings())}>"


_PLAIN = (type(None), str, numbers.Real, Configurable)
PARTS: Registry[Configurable] = Registry()
"""The classes of what buffers are made of, such as samplers and limiters."""


class Described(Configurable):
    """An object that is saved by a description, a JSON value, instead of its settings."""

    @abc.abstractmethod
    def _description(self) -> Any:
        """Return the object as a JSON value."""

    @classmethod
    @abc.abstractmethod
    def _from_description(cls, value: Any) -> Self:
        """Return the object with that description; raise CheckpointError if it is invalid."""


_parameters: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()


def parameters(kind: type) -> dict[str, Any]:
    """Return the parameters of a constructor with their defaults; with `**kwargs` or `*args`, those above it too.

    They are worked out once a class; the dict must not be changed.
    """
    if kind not in _parameters:
        _parameters[kind] = _worked_out(kind)
    return _parameters[kind]


def _worked_out(kind: type) -> dict[str, Any]:
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


def settings_of(value: Remembering, label: str = "") -> dict[str, Any]:
    """Return the settings of an object; raise CheckpointError if they do not cover all constructor parameters."""
    kind, found = type(value), value.settings()
    for name in parameters(kind):
        if name not in found and name not in kind._NOT_KEPT:
            rule = f"settings() of {kind.__name__} must return what its constructor takes"
            raise errors.CheckpointError(f"{label}{rule}, got no {name}")
    return found
