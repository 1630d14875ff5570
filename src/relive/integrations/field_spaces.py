"""Spaces of Gymnasium for trees of fields, and values of spaces out of trees: the way back of `spaces`.

    {"image": Field((84, 84), "uint8"), "angle": Field((), "float32")}

is Dict(image=Box(0, 255, (84, 84), uint8), angle=Box(-inf, inf, (), float32)).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive import errors
from relive.common import imports
from relive.common import validation
from relive.integrations import spaces as space_trees
from relive.schema import schema as schema_lib

with imports.optional_dependency("gymnasium"):
    from gymnasium import spaces


def space_of(name: str, tree: schema_lib.Tree) -> space_trees.Space:
    """Return the space of all values of a tree of fields, which is called `name` in an error.

    A field does not know of narrower bounds, or that its numbers are those of a Discrete.

    Raises:
        ArgumentError: A field is of a dtype that no Box has.

    >>> import relive
    >>> from relive.integrations import field_spaces
    >>> field_spaces.space_of("action", relive.Field(2, "float32"))
    Box(-inf, inf, (2,), float32)
    """
    if not isinstance(tree, schema_lib.Field):
        return spaces.Dict({key: space_of(f"{name}/{key}", part) for key, part in tree.items()})
    dtype: Any = tree.dtype
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, tree.shape, dtype)
    if dtype.kind in "iu":
        return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, tree.shape, dtype)
    if dtype.kind == "b":
        low: Any = np.zeros(tree.shape, np.bool_)
        high: Any = np.ones(tree.shape, np.bool_)
        return spaces.Box(low, high, tree.shape, dtype)
    raise errors.ArgumentError(f"{name} must be of bools, integers or floats for a space, got {dtype}")


def check_space(name: str, space: object, tree: schema_lib.Tree) -> None:
    """Raise ArgumentError unless a space has the shapes and the dtypes of a tree of fields.

    Args:
        name: What the space is called in an error.
        space: The space.
        tree: The fields.
    """
    _check_same(name, space_trees.fields_of(name, space), tree)


def _check_same(name: str, declared: schema_lib.Tree, stored: schema_lib.Tree) -> None:
    """Raise ArgumentError unless two trees have the same fields."""
    if isinstance(declared, Mapping) and isinstance(stored, Mapping) and declared.keys() == stored.keys():
        for key in sorted(stored):
            _check_same(f"{name}/{key}", declared[key], stored[key])
    elif declared != stored:
        raise errors.ArgumentError(f"{name} must be of {_shown(stored)}, as what is stored, got {_shown(declared)}")


def _shown(tree: schema_lib.Tree) -> str:
    """Return a field, or the keys of a tree, for an error message."""
    return f"keys {validation.short_repr(sorted(tree))}" if isinstance(tree, Mapping) else str(tree)


def value_of(space: space_trees.Space, tree: Any) -> Any:
    """Return a tree as a value of a space, or as a batch of them: a tuple where the space is a Tuple.

    >>> from gymnasium import spaces
    >>> from relive.integrations import field_spaces
    >>> field_spaces.value_of(spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))), {"0": 2, "1": 0})
    (2, 0)
    """
    if isinstance(space, spaces.Dict):
        return {key: value_of(part, tree[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(value_of(part, tree[str(number)]) for number, part in enumerate(space.spaces))
    return tree
