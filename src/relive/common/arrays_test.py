import hypothesis
from hypothesis import strategies as st
import numpy as np

from relive.common import arrays as arrays_lib


@hypothesis.given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3)))
def test_any_set_and_all_set_equal_any_and_all(rows: list[list[bool]]) -> None:
    table = np.array(rows, np.bool_).reshape(-1, 3)
    for chosen in (table, table[:, 0], table[::2, 1:], table.T, table[:, :0], ~table):
        assert arrays_lib.any_set(chosen) == chosen.any()
        assert arrays_lib.all_set(chosen) == chosen.all()


def test_any_set_accepts_a_view_of_memory() -> None:
    bools = np.array([False, False, True])
    assert arrays_lib.any_set(bools.data)
    assert not arrays_lib.any_set(bools.data[:2])
