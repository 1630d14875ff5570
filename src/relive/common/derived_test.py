import copy
import pickle
from typing import Any

import numpy as np
import pytest

from relive.common import arrays


class Numbers(arrays.Derived):
    """Has an array, and what writes to it faster."""

    _DERIVED = ("one", "last")

    def __init__(self) -> None:
        self.all = np.zeros(3, np.int64)
        self.name = "numbers"
        self._derive()

    def _derive(self) -> None:
        self.one = self.all.data
        self.last = self.all[-1:]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda numbers: pickle.loads(pickle.dumps(numbers))])
def test_what_is_derived_in_a_copy_is_of_the_arrays_of_the_copy(copied: Any) -> None:
    original = Numbers()
    original.one[0] = 7
    other = copied(original)
    other.one[1] = 8
    other.last[0] = 9
    assert other.all.tolist() == [7, 8, 9]
    assert original.all.tolist() == [7, 0, 0]
    assert other.name == "numbers"


def test_nothing_derived_is_in_the_state() -> None:
    assert set(Numbers().__getstate__()) == {"all", "name"}


def test_what_does_not_say_how_to_derive_cannot_be_made() -> None:
    class Silent(arrays.Derived):
        _DERIVED = ()

    with pytest.raises(TypeError, match="_derive"):
        Silent()  # type: ignore[abstract]
