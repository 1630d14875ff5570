import copy
import pickle
from typing import Any

import numpy as np
import pytest

from relive.common import arrays as arrays_lib
from relive.common import duplicates


class Numbers(arrays_lib.Derived):
    """Has an array, and what writes to it faster."""

    _DERIVED = "one", "last"

    def __init__(self) -> None:
        self.all = np.zeros(3, np.int64)
        self.name = "numbers"
        self._derive()

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
    numbers._derive()
    assert set(numbers.__getstate__()) == {"all", "name"}


def test_a_class_without_a_derivation_cannot_be_made() -> None:
    class Silent(arrays_lib.Derived):
        pass

    with pytest.raises(TypeError, match="_derive"):
        Silent()  # type: ignore[abstract]


class Slotted(duplicates.CopiedWhole):
    __slots__ = ("held",)
    held: Any


def test_what_is_unpickled_is_writable_and_shared_as_before() -> None:
    first, second, whole = Slotted(), Numbers(), np.zeros(2)
    first.held = {"a": [whole, (whole, "text")]}
    first.other, second.all = whole, whole  # type: ignore[attr-defined, assignment]
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps([first, second], protocol=5, buffer_callback=buffers.append)
    first, second = pickle.loads(data, buffers=[bytes(each) for each in buffers])
    second.all[0] = 7
    second.one[1] = 8
    array, (again, _) = first.held["a"]
    assert array is again is first.other is second.all
    assert array.tolist() == [7, 8]
    assert not duplicates._COPIES
