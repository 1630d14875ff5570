"""Conversion between Gymnasium spaces and trees of fields, and between their values.

    Dict(image=Box(0, 255, (84, 84), uint8), hand=Tuple((Discrete(3), MultiBinary(2))))

has the columns observation/image, observation/hand/0 and observation/hand/1.
"""

from collections.abc import Mapping
import contextlib
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.schema import schema as schema_lib

with imports.optional_dependency("gymnasium"):
    import gymnasium
    from gymnasium import spaces
    from gymnasium import vector

Environment: TypeAlias = "gymnasium.Env[Any, Any] | vector.VectorEnv[Any, Any, Any] | str"
Space: TypeAlias = "spaces.Space[Any]"

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_RULE = "must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple spaces"


def schema_from_spaces(
    observation_space: Space,
    action_space: Space,
    *,
    frame_stack: int = 1,
    reward_dtype: Any = "float32",
    extras: Mapping[str, Any] | None = None,
    check_finite: bool = False,
) -> schema_lib.Schema:
    """Return the schema for steps of these spaces: a field for each Box, Discrete, MultiDiscrete or MultiBinary.

    Args:
        observation_space: The observation space of one environment.
        action_space: The action space of one environment.
        frame_stack: Number of frames stacked along the first axis of an observation; only one per step is stored.
        reward_dtype: A float dtype; Gymnasium's rewards are float64, and are rounded to it.
        extras: A Field, a tree of Fields, or a space for each extra, by name.
        check_finite: As for a Schema: whether infinite values and NaN are refused.

    Raises:
        ArgumentError: A space is, or contains, one of another kind, or the number of frames is not `frame_stack`.

    >>> import gymnasium
    >>> from relive.integrations import gymnasium as relive_gymnasium
    >>> box, discrete = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)
    >>> relive_gymnasium.schema_from_spaces(box, discrete).fields["observation"]
    Field((4,), 'float32')
    """
    frame_stack = validation.positive_int("frame_stack", frame_stack)
    return schema_lib.Schema(
        _one_frame(fields_of("observation_space", observation_space), frame_stack),
        fields_of("action_space", action_space),
        reward=schema_lib.Field((), reward_dtype),
        extras={
            name: fields_of(name, extra) if isinstance(extra, spaces.Space) else extra
            for name, extra in (extras or {}).items()
        },
        check_finite=check_finite,
    )


def from_env(
    env: Environment,
    *,
    frame_stack: int = 1,
    reward_dtype: Any = "float32",
    extras: Mapping[str, Any] | None = None,
    check_finite: bool = False,
) -> schema_lib.Schema:
    """Return the schema for an environment, or for each environment of a vector environment.

    Args:
        env: The environment; or an id, from which one is created and closed again.
        frame_stack: As in `schema_from_spaces`.
        reward_dtype: As in `schema_from_spaces`.
        extras: As in `schema_from_spaces`.
        check_finite: As in `schema_from_spaces`.

    Raises:
        ArgumentError: As in `schema_from_spaces`; or Gymnasium cannot create an environment from the id.

    >>> from relive.integrations import gymnasium as relive_gymnasium
    >>> relive_gymnasium.from_env("CartPole-v1").action
    Field((), 'int64')
    """
    given: object = env
    options: Any = {
        "frame_stack": frame_stack,
        "reward_dtype": reward_dtype,
        "extras": extras,
        "check_finite": check_finite,
    }
    if isinstance(env, str):
        try:
            made = gymnasium.make(env)
        except (gymnasium.error.Error, ImportError) as error:
            rule = f"env must be an id that Gymnasium has registered, got {env!r}"
            raise errors.ArgumentError(f"{rule}: {' '.join(str(error).split())}") from error
        with contextlib.closing(made):
            return from_env(made, **options)
    if isinstance(env, vector.VectorEnv):
        pair = env.single_observation_space, env.single_action_space
    elif isinstance(given, gymnasium.Env):
        pair = env.observation_space, env.action_space
    else:
        remedy = ": schema_from_spaces takes spaces" if isinstance(given, spaces.Space) else ""
        raise errors.ArgumentTypeError(
            f"env must be an environment of Gymnasium, or an id of one, got {validation.short_repr(given)}{remedy}"
        )
    return schema_from_spaces(*pair, **options)


def fields_of(name: str, space: object) -> Any:
    """Return the field or the tree of fields of a space, called `name` in errors."""
    if isinstance(space, _LEAVES):
        return schema_lib.Field(space.shape or (), space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: fields_of(f"{name}/{key}", part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(number): fields_of(f"{name}/{number}", part) for number, part in enumerate(space.spaces)}
    found = type(space).__name__ if isinstance(space, spaces.Space) else validation.short_repr(space)
    raise errors.ArgumentError(f"{name} {_RULE}, got {found}")


def _one_frame(tree: Any, frame_stack: int) -> Any:
    """Return the fields of a single frame, given those of stacks along the first axis."""
    if frame_stack == 1:
        return tree
    if isinstance(tree, Mapping):
        return {key: _one_frame(part, frame_stack) for key, part in tree.items()}
    if tree.shape[:1] != (frame_stack,):
        raise errors.ArgumentError(
            f"observation_space must stack {frame_stack} frames along its first axis, got shape {tree.shape}"
        )
    return schema_lib.Field(tree.shape[1:], tree.dtype)


def tree_of(space: Space, value: Any) -> Any:
    """Return a value of a space, or a batch of them, as a tree: a tuple is a dict with the keys "0", "1" and so on.

    Nothing is copied, and values that do not match the space are returned unchanged, for the schema to check.
    """
    if isinstance(space, spaces.Dict) and isinstance(value, Mapping):
        return {key: tree_of(space[key], part) if key in space.spaces else part for key, part in value.items()}
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple | list) and len(value) == len(space.spaces):
        return {str(number): tree_of(*pair) for number, pair in enumerate(zip(space.spaces, value, strict=True))}
    return value


def space_of(name: str, tree: schema_lib.Tree) -> Space:
    """Return the space of all values of a tree of fields, called `name` in errors; fields have no bounds."""
    if not isinstance(tree, schema_lib.Field):
        return spaces.Dict({key: space_of(f"{name}/{key}", part) for key, part in tree.items()})
    dtype: Any = tree.dtype
    if dtype.kind not in "biuf":
        raise errors.ArgumentError(f"{name} must be of bools, integers or floats for a space, got {dtype}")
    bounds: Any = {"b": (False, True), "f": (-np.inf, np.inf)}.get(dtype.kind)
    low, high = bounds or (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(np.full(tree.shape, low, dtype), np.full(tree.shape, high, dtype), tree.shape, dtype)


def check_space(name: str, space: object, tree: schema_lib.Tree) -> None:
    """Raise ArgumentError unless a space, called `name` in it, has the shapes and dtypes of the fields."""
    declared, stored = trees.flat(name, fields_of(name, space)), trees.flat(name, tree)
    if (path := _different(stored, declared)) is not None:
        rule = f"{path} must be of {stored.get(path, 'no field')}, as what is stored"
        raise errors.ArgumentError(f"{rule}, got {declared.get(path, 'none')}")


def check_shapes(name: str, space: object, tree: schema_lib.Tree, frame_stack: int = 1) -> None:
    """Raise ArgumentError unless a part `name` of a schema has the fields of a space, whatever their dtypes.

    A space that has no fields, such as Text, is not compared.
    """
    try:
        declared = fields_of(name, space)
    except errors.ArgumentError:
        return
    wanted, stored = (
        {path: field.shape for path, field in trees.flat(name, each).items()}
        for each in (_one_frame(declared, frame_stack), tree)
    )
    if (path := _different(wanted, stored)) is not None:
        rule = f"of shape {wanted[path]}, as in the environment" if path in wanted else "left out"
        found = f"{path} in the schema of the buffer must be {rule}, got {stored.get(path, 'none')}"
        raise errors.ArgumentError(f"{found}: from_env makes its schema")


def _different(these: Mapping[str, Any], those: Mapping[str, Any]) -> str | None:
    """Return the first path at which two mappings differ; None if they are equal."""
    return next((path for path in {**these, **those} if these.get(path) != those.get(path)), None)


def value_of(space: Space, tree: Any) -> Any:
    """Return a tree as a value of a space, or as a batch of them: the inverse of `tree_of`."""
    if isinstance(space, spaces.Dict):
        return {key: value_of(part, tree[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(value_of(part, tree[str(number)]) for number, part in enumerate(space.spaces))
    return tree
