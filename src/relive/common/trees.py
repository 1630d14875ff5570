"""Trees: nested mappings with string keys, flattened by path.

    {"image": I, "hand": {"angle": A}}     is for the name "observation"
    {"observation/image": I, "observation/hand/angle": A}

Anything that is not a mapping is a leaf, lists and tuples included.
"""

from collections.abc import Callable, Collection, Mapping
import operator
from typing import Any, TypeVar

import numpy as np

from relive import errors
from relive.common import validation

T = TypeVar("T")


def flat(name: str, value: Any) -> dict[str, Any]:
    """Return the leaves of `value` by path, in their order; a value that is not a mapping is the leaf at `name`.

    Raises:
        ArgumentError: A mapping is empty, or a key is not a non-empty string without "/".

    >>> from relive.common import trees
    >>> trees.flat("observation", {"image": 1, "hand": {"angle": 2}})
    {'observation/image': 1, 'observation/hand/angle': 2}
    >>> trees.flat("action", 3)
    {'action': 3}
    """
    if type(value) is np.ndarray or not isinstance(value, Mapping):
        return {name: value}
    if not value:
        raise errors.ArgumentError(f"{name} must have at least one key, got {validation.short_repr(value)}")
    leaves: dict[str, Any] = {}
    for key, child in value.items():
        if not isinstance(key, str) or not key or "/" in key:
            rule = f"keys of {name} must be non-empty strings without '/'"
            raise errors.ArgumentError(f"{rule}, got {validation.short_repr(key)}")
        leaves |= flat(f"{name}/{key}", child)
    return leaves


def nested(name: str, columns: Mapping[str, T]) -> T | dict[str, Any]:
    """Return the tree at `name` from `columns`, the inverse of `flat`; paths of other trees are ignored.

    If no path is `name` or begins with it, the tree is an empty dict.

    >>> from relive.common import trees
    >>> trees.nested("observation", {"observation/image": 1, "observation/hand/angle": 2, "reward": 3})
    {'image': 1, 'hand': {'angle': 2}}
    >>> trees.nested("reward", {"observation/image": 1, "reward": 3})
    3
    """
    tree: T | dict[str, Any] = nester(name, columns)(columns)
    return tree


def nester(name: str, paths: Collection[str]) -> Callable[[Mapping[str, Any]], Any]:
    """Return the function that returns the tree at `name` from columns with those paths, as `nested` does."""
    if name in paths:
        return operator.itemgetter(name)
    places = [(path[len(name) + 1 :].split("/"), path) for path in paths if path.startswith(name + "/")]

    def nest(columns: Mapping[str, Any]) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for (*parents, key), path in places:
            branch = tree
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[key] = columns[path]
        return tree

    return nest


def rows(tree: Any, places: Any) -> Any:
    """Return the rows of every leaf at those places, as a tree: copies, or views for a slice."""
    if type(tree) is not np.ndarray and isinstance(tree, Mapping):
        return {key: rows(child, places) for key, child in tree.items()}
    column = np.asarray(tree)
    # Of several axes, `take` reads rows four times as fast as an index does.
    return (
        column.take(places, axis=0) if isinstance(places, np.ndarray) and places.dtype.kind == "i" else column[places]
    )


def put(tree: Any, places: Any, values: Any) -> None:
    """Write every leaf of `values` [k, ...] into that of the tree [B, ...], at `places` [k]."""
    if type(tree) is not np.ndarray and isinstance(tree, Mapping):
        for key, child in tree.items():
            put(child, places, values[key])
    else:
        tree[places] = values
