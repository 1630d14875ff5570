"""The settings of a buffer as JSON values, and back: what its constructor was given.

    3, 0.99, "zeros", None, True       themselves
    MinSize(100)                       {"kind": "MinSize", "n": 100}
    a rule of your own                 {"kind": "own", "class": "agents.Curriculum"}

A checkpoint holds no code: what is of a class of your own has to be given again when the buffer is loaded.
"""

from collections.abc import Callable, Mapping
import numbers
import operator
from typing import Any

import numpy as np

from relive.common import validation
from relive.persistence import dtypes
from relive import errors
from relive.waiting import rate_limiters
from relive.persistence import npy_header
from relive.samplers import prioritized
from relive.samplers import sampler as sampler_lib
from relive.samplers import schedules
from relive.schema import schema as schema_lib
from relive.persistence import state
from relive.common import trees
from relive.windows import windows
from relive.agents import admission
from relive.agents import groups

_OWN = "own"

_KINDS: dict[type, tuple[str, ...]] = {
    rate_limiters.MinSize: ("n",),
    rate_limiters.SampleToInsertRatio: ("ratio", "min_size", "error_buffer"),
    schedules.LinearSchedule: ("start", "end", "steps"),
    sampler_lib.UniformSampler: (),
    prioritized.PrioritizedSampler: prioritized.SETTINGS,
    windows.TransitionWindow: ("n_step", "gamma", "frame_stack", "stack_padding"),
    windows.SequenceWindow: ("length", "burn_in", "stride", "pad"),
    windows.EpisodeWindow: (),
    admission.Admission: ("max_lag", "episodes_per_version"),
    groups.Groups: ("size", "timeout", "min_size"),
}
"""The classes whose objects are kept, and the arguments that make them."""
_BY_NAME = {kind.__name__: kind for kind in _KINDS}
_ADDED = frozenset({"admission", "groups"})
"""What an older checkpoint lacks was None then."""
_DEEPEST = 64
"""So many levels the mappings of an observation have at most."""


def encoded(value: Any) -> Any:
    """Answers a setting as a JSON value."""
    if isinstance(value, schema_lib.Schema):
        return [[path, dtypes.described(field.dtype), list(field.shape)] for path, field in value.fields.items()]
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, numbers.Real):
        return operator.index(value) if isinstance(value, numbers.Integral) else float(value)
    kind = type(value)
    if kind not in _KINDS:
        return {"kind": _OWN, "class": f"{kind.__module__}.{kind.__qualname__}"}
    return {"kind": kind.__name__, **{name: encoded(argument) for name, argument in _arguments(value).items()}}


def are_same(own: Any, other: Any) -> bool:
    """Answers whether a setting as `encoded` answered it equals another one, of which nothing is known."""
    if isinstance(own, dict):
        is_like = type(other) is dict and own.keys() == other.keys()
        return is_like and all(are_same(value, other[name]) for name, value in own.items())
    if isinstance(own, list):
        is_like = type(other) is list and len(own) == len(other)
        return is_like and all(map(are_same, own, other))
    if isinstance(own, bool) or isinstance(other, bool):
        return own is other
    return type(other) in (type(None), int, float, str) and bool(own == other)


def _arguments(value: Any) -> dict[str, Any]:
    """Answers the arguments that make such an object, of one of the classes that are kept."""
    if isinstance(value, prioritized.PrioritizedSampler):
        return value.settings()
    if isinstance(value, rate_limiters.MinSize):
        return {"n": value.min_size}
    return {name: getattr(value, name) for name in _KINDS[type(value)]}


def twin(sampler: sampler_lib.Sampler) -> sampler_lib.Sampler | None:
    """Answers a sampler of the same settings that nobody has taken yet; None for one of a class of its own."""
    kind = type(sampler)
    if kind not in _KINDS:
        return None
    return kind(**_arguments(sampler))


def made(given: state.Given, names: Mapping[str, Any]) -> dict[str, Any]:
    """Answers the settings of those names, made of JSON values, for a constructor.

    Args:
        given: The JSON values.
        names: The settings there must be; a value that is not None is taken instead of what is given.

    Raises:
        CheckpointError: A setting is missing, or is none.
    """
    return {
        name: instead if instead is not None else None if _is_older(given, name) else _made(given, name)
        for name, instead in names.items()
    }


def saved(given: state.Given, name: str) -> Any:
    """Answers the JSON value of a setting.

    Raises:
        CheckpointError: It is missing.
    """
    return None if _is_older(given, name) else given.value(name)


def _is_older(given: state.Given, name: str) -> bool:
    """Answers whether the settings were saved before there was one of that name."""
    return name in _ADDED and not given.has(name)


def _made(given: state.Given, name: str, levels: int = 2) -> Any:
    """Answers a setting; one that is an object may have settings that are, and so on for so many levels."""
    value = given.value(name)
    if name == "schema" and value is not None:
        return schema_of(value)
    if not isinstance(value, dict) or not levels:
        if value is not None and type(value) not in (bool, int, float, str):
            raise given.refused(name, "a plain value or a mapping with a kind", value)
        return value
    part = given.part(name)
    kind = part.text("kind")
    if kind == _OWN:
        raise errors.CheckpointError(
            f"{name} was an object of a class of its own, {part.text('class')}: give {name}= to load"
        )
    if kind not in _BY_NAME:
        raise given.refused(f"{name}/kind", " or ".join(_BY_NAME), kind)
    make: Callable[..., Any] = _BY_NAME[kind]
    arguments = {argument: _made(part, argument, levels - 1) for argument in _KINDS[_BY_NAME[kind]]}
    try:
        return make(**arguments)
    except errors.ArgumentError as error:
        raise errors.CheckpointError(f"{name} cannot be made: {error}") from error


def schema_of(value: Any) -> schema_lib.Schema:
    """Answers the schema whose fields are given as a path, a dtype and a shape each."""
    fields: dict[str, schema_lib.Field] = {}
    rule = "schema must be a list of a path, a dtype and a shape for each field"
    if not isinstance(value, list):
        raise errors.CheckpointError(f"{rule}, got {validation.shown(value)}")
    for row in value:
        is_row = isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[2], list)
        if not is_row or row[0] in fields or row[0].count("/") > _DEEPEST:
            raise errors.CheckpointError(f"{rule}, got {validation.shown(row)}")
        try:
            fields[row[0]] = schema_lib.Field(row[2], npy_header.dtype_of(row[1]))
        except (errors.ArgumentError, errors.CheckpointError) as error:
            raise errors.CheckpointError(f"schema has a field that cannot be: {error}") from error
    try:
        # Whatever they are: the schema refuses what cannot be.
        parts: list[Any] = [trees.nested(part, fields) for part in ("observation", "action", "reward", "extras")]
        schema = schema_lib.Schema(parts[0], parts[1], reward=parts[2], extras=parts[3] or None)
    except (errors.ArgumentError, TypeError, AttributeError, RecursionError) as error:
        raise errors.CheckpointError(f"schema cannot be made: {error}") from error
    if dict(schema.fields) != fields or list(schema.fields) != list(fields):
        raise errors.CheckpointError(f"{rule}, of an observation, an action, a reward and extras alone, in their order")
    return schema
