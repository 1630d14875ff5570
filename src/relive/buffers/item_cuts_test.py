from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive.buffers import item_cuts


def cut(unit: item_cuts.StorageUnit, **columns: Any) -> tuple[list[int], list[bool]]:
    lengths, is_complete = item_cuts.cut({name: np.asarray(values) for name, values in columns.items()}, unit)
    assert lengths.dtype == np.int64
    assert is_complete.dtype == np.bool_
    return lengths.tolist(), is_complete.tolist()


def test_each_row_is_an_item() -> None:
    assert cut("timesteps", a=[4, 5, 6], b=[[1], [2], [3]]) == ([1, 1, 1], [True] * 3)


def test_seq_lens_says_how_long_sequences_are() -> None:
    assert cut("sequences", c=[1, 2, 3], seq_lens=[1, 2]) == ([1, 2], [True, True])
    assert cut("sequences", seq_lens=np.array([3], np.uint8), c=[1, 2, 3]) == ([3], [True])


def test_episodes_are_cut_at_changes_of_eps_id() -> None:
    assert cut(
        "episodes",
        eps_id=[7, 7, 3, 3, 7, 9, 9, 9, 4],
        t=[0, 1, 0, 1, 2, 1, 2, 3, 0],
        terminated=[False, True, False, False, True, False, False, True, False],
        truncated=[False, False, False, True, False, False, False, False, False],
    ) == ([2, 2, 1, 3, 1], [True, True, False, False, False])


def test_an_end_before_the_last_row_does_not_count() -> None:
    assert cut("episodes", eps_id=[1, 1], t=[0, 1], truncated=[True, False]) == ([2], [False])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_either_end_alone_will_do(end: str) -> None:
    assert cut("episodes", eps_id=["a", "b"], t=[0.0, 0.0], **{end: [1, 0]}) == ([1, 1], [True, False])


EPISODES: dict[str, Any] = {"eps_id": [1, 1], "t": [0, 1], "terminated": [False, True], "truncated": [False, False]}
SUMS = "column seq_lens must hold integers of at least 1 that sum to the 3 rows of the other columns, got .*"
LARGE = [2**63 - 1, 2**63 - 1, 5], np.array([2**64 - 1, 4], np.uint64)
NAMED = "columns must include {} to be cut into {}, got {}"
LENGTHS = "column b must have 2 rows as column a has, got 3"
REFUSED: list[tuple[item_cuts.StorageUnit, dict[str, Any], str]] = [
    *(
        ("sequences", {"c": [1, 2, 3], "seq_lens": np.asarray(lengths, getattr(lengths, "dtype", np.int64))}, SUMS)
        for lengths in ([1, 1], [1, 3], [], [0, 3], [4, -1], *LARGE)
    ),
    *(
        ("sequences", {"c": [1], "seq_lens": wrong}, "column seq_lens must hold an integer a sequence, got dtype .*")
        for wrong in ([1.0, 2.0], [[1, 2]], [True, True])
    ),
    ("sequences", {"c": [1]}, NAMED.format("seq_lens", "sequences", "c")),
    ("sequences", {"seq_lens": [1]}, NAMED.format("a column of rows", "sequences", "seq_lens")),
    *(
        ("episodes", {name: EPISODES[name] for name in there}, NAMED.format(absent, "episodes", ", ".join(there)))
        for absent, there in {
            "eps_id": ("t", "terminated", "truncated"),
            "t": ("eps_id", "terminated", "truncated"),
            "terminated or truncated": ("eps_id", "t"),
            "eps_id and t": ("terminated", "truncated"),
        }.items()
    ),
    *(
        ("episodes", EPISODES | {name: [[0], [1]]}, rf"column {name} must hold .* a row, got .* and shape \[2, 1\]")
        for name in EPISODES
    ),
    *(
        ("episodes", EPISODES | {name: ["True", "False"]}, f"column {name} must hold a number a row, got dtype <U5.*")
        for name in ("t", "terminated", "truncated")
    ),
    ("timesteps", {"a": [1, 2], "b": [1, 2, 3]}, LENGTHS),
    ("sequences", {"a": [1, 2], "seq_lens": [1, 1], "b": [1, 2, 3]}, LENGTHS),
    ("episodes", {"a": [1, 2], **EPISODES, "b": [1, 2, 3]}, LENGTHS),
]


def test_columns_that_cannot_be_cut_are_refused(subtests: pytest.Subtests) -> None:
    for unit, columns, message in REFUSED:
        with subtests.test(message), pytest.raises(errors.SchemaError, match=f"^{message}$"):
            cut(unit, **columns)


def test_a_fragment_is_as_long_as_its_longest_column() -> None:
    assert cut("fragments", a=[1], b=[2, 3, 4], c=[]) == ([3], [True])


@hypothesis.given(
    episodes=st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans(), st.booleans()), min_size=1)
)
def test_complete_episodes_are_found_among_others(episodes: list[tuple[int, bool, bool, bool]]) -> None:
    rows: list[tuple[int, int, bool, bool]] = []
    for number, (length, is_whole, is_terminated, is_truncated) in enumerate(episodes):
        start = 0 if is_whole else 3
        rows += [(number, start + t, False, False) for t in range(length - 1)]
        rows.append((number, start + length - 1, is_terminated, is_truncated))
    eps_id, t, terminated, truncated = zip(*rows, strict=True)
    assert cut("episodes", eps_id=eps_id, t=t, terminated=terminated, truncated=truncated) == (
        [length for length, *_ in episodes],
        [is_whole and (is_terminated or is_truncated) for _, is_whole, is_terminated, is_truncated in episodes],
    )
