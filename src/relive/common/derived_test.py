import copy
import pickle
from typing import Any

import numpy as np
import pytest

from relive.common import arrays


class Numbers(arrays.Derived):
    """Has an array, and what writes to it faster."""

    def __init__(self) -> None:
        self.all = np.zeros(3, np.int64)
        self.name = "numbers"
        self._rederive()

    def _derive(self) -> None:
        self.one = self.all.data
        self.last = self.all[-1:]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda numbers: pickle.loads(pickle.dumps(numbers))])
def test_a_copy_derives_from_its_own_arrays(copied: Any) -> None:
    original = Numbers()
    original.one[0] = 7
    other = copied(original)
    other.one[1] = 8
    other.last[0] = 9
    assert other.all.tolist() == [7, 8, 9]
    assert original.all.tolist() == [7, 0, 0]
    assert other.name == "numbers"


def test_nothing_derived_is_in_the_state() -> None:
    numbers = Numbers()
    numbers._rederive()
    assert set(numbers.__getstate__()) == {"all", "name"}


def test_a_class_without_a_derivation_cannot_be_made() -> None:
    class Silent(arrays.Derived):
        pass

    with pytest.raises(TypeError, match="_derive"):
        Silent()  # type: ignore[abstract]
