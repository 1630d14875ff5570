"""Settings: the constructor arguments of a buffer as JSON values.

    3, 0.99, "zeros", None, True       themselves
    MinSize(100)                       {"kind": "MinSize", "n": 100}
    a schema                           its fields: a path, a dtype and a shape each

A checkpoint holds no code: classes are looked up by their registered names.
"""

from collections.abc import Callable
import numbers
import operator
from typing import Any

import numpy as np

from relive import errors
from relive.common import validation
from relive.persistence import registry
from relive.persistence import state

_MOST_LEVELS = 8
"""So many levels objects that are settings may have."""


def encoded(value: Any, name: str = "a setting", levels: int = _MOST_LEVELS) -> Any:
    """Return the setting `name` as a JSON value; raise CheckpointError if it has none."""
    if isinstance(value, registry.Described):
        return value._description()
    if isinstance(value, np.generic | np.ndarray) and value.size == 1:
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, numbers.Real):
        return operator.index(value) if isinstance(value, numbers.Integral) else float(value)
    if not isinstance(value, registry.Configurable):
        rule = f"{name} cannot be saved: it must be a number, a text, None or an object with settings()"
        raise errors.CheckpointError(f"{rule}, got {validation.short_repr(value)}")
    if not levels:
        raise errors.CheckpointError(f"{name} cannot be saved: it must be within at most {_MOST_LEVELS} objects")
    kind, label = type(value).__name__, f"{name} cannot be saved: "
    parts = registry.settings_of(value, label)
    if "kind" in parts:
        rule = f"settings() of {kind} must return what its constructor takes, by other names than 'kind'"
        raise errors.CheckpointError(f"{label}{rule}, got one of that name")
    if registry.PARTS.find(kind) is not type(value):
        rule = f"{label}{kind} must be the newest class of that name"
        raise errors.CheckpointError(f"{rule}, got {validation.short_repr(type(value))}")
    return {"kind": kind, **{part: encoded(each, f"{name}/{part}", levels - 1) for part, each in parts.items()}}


def are_same(own: Any, other: Any) -> bool:
    """Return whether a setting from `encoded` equals another, untrusted one."""
    if isinstance(own, dict) and type(other) is dict:
        return own.keys() == other.keys() and all(are_same(value, other[name]) for name, value in own.items())
    if isinstance(own, list) and type(other) is list:
        return len(own) == len(other) and all(map(are_same, own, other))
    if isinstance(own, bool) or isinstance(other, bool):
        return own is other
    return type(other) in (type(None), int, float, str) and bool(own == other)


def schema_of(value: Any) -> Any:
    """Return the Schema whose JSON value that is, from `encoded`; raise CheckpointError if it is invalid."""
    described: Any = registry.PARTS.find("Schema")
    return described._from_description(value)


def load(given: state.StateReader, name: str, levels: int = _MOST_LEVELS) -> Any:
    """Return the setting of that name from JSON values, in which objects may be nested for that many levels."""
    value = given.value(name)
    if name == "schema" and value is not None:
        return schema_of(value)
    if not isinstance(value, dict) or not levels:
        if value is not None and type(value) not in (bool, int, float, str):
            raise given.refused(name, "a plain value or a mapping with a kind", value)
        return value
    part = given.part(name)
    kind = registry.PARTS.find(part.text("kind"))
    if kind is None:
        message = f"{name} was a {validation.short_repr(part.text('kind'))}, a class that is not defined here"
        raise errors.CheckpointError(f"{message}: import its module, or give {name}= to load")
    names = {*registry.parameters(kind), *value} - {"kind"}
    arguments = {argument: load(part, argument, levels - 1) for argument in sorted(names)}
    make: Callable[..., Any] = kind
    try:
        return make(**arguments)
    except (errors.ArgumentError, TypeError) as error:
        raise errors.CheckpointError(f"{name} cannot be made: {error}") from error
