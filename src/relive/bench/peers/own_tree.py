"""relive's sum tree alone: a stratified draw of leaves, and their weights set again.

Leaf i weighs i % 4, whatever is set. So it is known where each leaf lies in the total, and which one a draw may find.
"""

import numpy as np
import numpy.typing as npt

from relive.bench import answers
from relive.bench import contestants
from relive.bench import room
from relive.samplers import sum_tree

Ints = npt.NDArray[np.int64]

_BATCH = 256
_CHUNK = 1_000_000
_BYTES = 16
"""Of memory that a leaf takes, with the levels above it."""
_BEFORE = np.array([0, 0, 1, 3])
"""The weight of the leaves before a leaf, among the four that it is one of."""


def contestant(size: int) -> contestants.Contestant:
    """Return a tree of that many leaves.

    Raises:
        CannotError: There is no room for it.
    """
    room.require(memory=size * _BYTES)
    tree, rng = sum_tree.SumTree(size), np.random.default_rng(0)
    for start in range(0, size, _CHUNK):
        leaves = np.arange(start, min(start + _CHUNK, size))
        tree.set(leaves, leaves & 3)

    def call() -> Ints:
        leaves = tree.stratified_sample(_BATCH, rng)
        tree.set(leaves, leaves & 3)
        return leaves

    def checked(drawn: Ints, findings: answers.Findings) -> None:
        check(tree, drawn, findings)

    return contestants.Contestant("relive", call, checked)


def check(tree: sum_tree.SumTree, drawn: Ints, findings: answers.Findings) -> None:
    """Add to the findings what is wrong with leaves that were drawn [B], and with what is set.

    Each stratum of the total has one leaf that lies in it. Leaves whose weight is set to zero leave exactly what the
    others weigh, and come back with theirs: the tree stays as it is.
    """
    leaves, weights = np.sort(drawn), np.sort(drawn) & 3
    total = _mass(np.array([tree.capacity]))[0]
    stratum, start = np.arange(len(leaves)), _mass(leaves)
    is_found = (start < (stratum + 1) * total / len(leaves)) & (start + weights > stratum * total / len(leaves))
    distinct = np.unique(drawn)
    totals = [tree.total]
    for values in (np.zeros(len(distinct)), distinct & 3):
        tree.set(distinct, values)
        totals.append(tree.total)
    is_set = totals == [total, total - (distinct & 3).sum(), total]
    findings.add(
        len(drawn),
        {"leaf without weight": weights == 0, "stratum": ~is_found, "total": np.full(len(drawn), not is_set)},
    )


def _mass(leaves: Ints) -> Ints:
    """Return the weight of all leaves before each of `leaves` [k]."""
    return np.asarray(6 * (leaves // 4) + _BEFORE[leaves & 3])
