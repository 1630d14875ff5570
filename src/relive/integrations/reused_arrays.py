"""Whether environments write every observation into one array: with SAME_STEP the last one of an episode is lost then.

step      the environment returns o_T in its array, and the vector environment keeps that array as "final_obs"
reset     the environment writes o_0 into its array: "final_obs" is o_0 now
step      it writes o_1 there, and what was "final_obs" shows it: nobody else's array would
"""

from typing import Any

import numpy as np

from relive import errors
from relive.common import copies
from relive.common import trees


class ReusedArrays:
    """Watches last observations that look like the first one after them, until the next step."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[Any, Any]] = {}

    def watch(self, row: int, last: Any, first: Any) -> None:
        """Record what came last in an environment, and what its reset returned."""
        if _are_same(last, first):
            self._watched[row] = last, copies.copied(last)

    def check(self, observations: Any) -> None:
        """Raise ArgumentError if what came last has become what came now [S, ...], a step later."""
        watched, self._watched = self._watched, {}
        for row, (handed, was) in watched.items():
            if not _are_same(handed, was) and _are_same(handed, trees.rows(observations, row)):
                raise errors.ArgumentError(
                    f"env must not write each observation of environment {row} into one array: with SAME_STEP the last "
                    "one of an episode is lost, so let a wrapper copy it"
                )


def _are_same(these: Any, those: Any) -> bool:
    """Return whether two trees hold the same values."""
    one, other = trees.flat("observation", these), trees.flat("observation", those)
    return one.keys() == other.keys() and all(np.array_equal(one[path], other[path]) for path in one)
