import hypothesis
from hypothesis import strategies as st
import numpy as np

from relive.common import arrays


@hypothesis.given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3)))
def test_any_set_and_all_set_equal_any_and_all(rows: list[list[bool]]) -> None:
    table = np.array(rows, np.bool_).reshape(-1, 3)
    for chosen in (table, table[:, 0], table[::2, 1:], table.T, table[:, :0], ~table):
        assert arrays.any_set(chosen) == chosen.any()
        assert arrays.all_set(chosen) == chosen.all()


def test_any_set_accepts_a_view_of_memory() -> None:
    bools = np.array([False, False, True])
    assert arrays.any_set(bools.data)
    assert not arrays.any_set(bools.data[:2])
