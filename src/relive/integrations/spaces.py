"""Spaces of Gymnasium as trees of fields, and their values as trees.

    Dict(image=Box(0, 255, (84, 84), uint8), hand=Tuple((Discrete(3), MultiBinary(2))))

has the columns observation/image, observation/hand/0 and observation/hand/1.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from relive import errors
from relive.common import imports
from relive.common import validation
from relive.schema import schema as schema_lib

with imports.optional_dependency("gymnasium"):
    from gymnasium import spaces

Space: TypeAlias = "spaces.Space[Any]"

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_RULE = "must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple spaces"


def fields_of(name: str, space: object) -> Any:
    """Return the field, or the tree of fields, of a space that is called `name` in an error.

    Raises:
        ArgumentError: It is, or holds, a space of another kind.
    """
    if isinstance(space, _LEAVES):
        return schema_lib.Field(space.shape or (), space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: fields_of(f"{name}/{key}", part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(number): fields_of(f"{name}/{number}", part) for number, part in enumerate(space.spaces)}
    found = type(space).__name__ if isinstance(space, spaces.Space) else validation.short_repr(space)
    raise errors.ArgumentError(f"{name} {_RULE}, got {found}")


def fields_of_extra(name: str, extra: Any) -> Any:
    """Return the same of an extra that may be a space, or fields already."""
    return fields_of(name, extra) if isinstance(extra, spaces.Space) else extra


def one_frame(tree: Any, frame_stack: int) -> Any:
    """Return the fields of one frame of those that stack so many along the first axis.

    Raises:
        ArgumentError: They do not.
    """
    if frame_stack == 1:
        return tree
    if isinstance(tree, dict):
        return {key: one_frame(part, frame_stack) for key, part in tree.items()}
    if tree.shape[:1] != (frame_stack,):
        raise errors.ArgumentError(
            f"observation_space must stack {frame_stack} frames along its first axis, got shape {tree.shape}"
        )
    return schema_lib.Field(tree.shape[1:], tree.dtype)


def tree_of(space: Space, value: Any) -> Any:
    """Return a value of a space, or a batch of them, as a tree: a tuple is a dict with the keys "0", "1" and so on.

    Nothing is copied, and what is not of the space is returned as it is: the schema says what is wrong with it.

    >>> from gymnasium import spaces
    >>> from relive.integrations import spaces as space_trees
    >>> space_trees.tree_of(spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))), (2, 0))
    {'0': 2, '1': 0}
    """
    if isinstance(space, spaces.Dict) and isinstance(value, Mapping):
        return {key: tree_of(space[key], part) if key in space.spaces else part for key, part in value.items()}
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple | list) and len(value) == len(space.spaces):
        return {str(number): tree_of(*pair) for number, pair in enumerate(zip(space.spaces, value, strict=True))}
    return value
