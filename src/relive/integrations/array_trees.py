"""Trees of arrays, such as the observations of a vector environment: rows of all of them at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def rows(tree: Any, where: Any) -> Any:
    """Answers those rows of every array in a tree, as copies."""
    if isinstance(tree, Mapping):
        return {key: rows(part, where) for key, part in tree.items()}
    return np.asarray(tree)[where]


def put(tree: Any, where: Any, values: Any) -> None:
    """Writes rows into every array of a tree."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            put(part, where, values[key])
    else:
        tree[where] = values
