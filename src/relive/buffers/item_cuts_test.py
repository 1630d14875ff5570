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


@pytest.mark.parametrize(
    "lengths", [[1, 1], [1, 3], [], [0, 3], [4, -1], [2**63 - 1, 2**63 - 1, 5], np.array([2**64 - 1, 4], np.uint64)]
)
def test_seq_lens_must_sum_to_the_rows(lengths: Any) -> None:
    text = "^column seq_lens must hold integers of at least 1 that sum to the 3 rows of the other columns, got "
    with pytest.raises(errors.SchemaError, match=text):
        cut("sequences", c=[1, 2, 3], seq_lens=np.asarray(lengths, getattr(lengths, "dtype", np.int64)))


@pytest.mark.parametrize("lengths", [[1.0, 2.0], [[1, 2]], [True, True]])
def test_seq_lens_must_be_integers_one_a_sequence(lengths: Any) -> None:
    with pytest.raises(errors.SchemaError, match="^column seq_lens must hold an integer a sequence, got dtype"):
        cut("sequences", c=[1, 2, 3], seq_lens=lengths)


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


EPISODES = {"eps_id": [1, 1], "t": [0, 1], "terminated": [False, True], "truncated": [False, False]}


@pytest.mark.parametrize(
    ("absent", "text"),
    [
        (["eps_id"], "^columns must include eps_id to be cut into episodes, got t, terminated, truncated$"),
        (["t"], "^columns must include t to be cut into episodes, got eps_id, terminated, truncated$"),
        (["terminated", "truncated"], "^columns must include terminated or truncated to be cut into episodes, got"),
        (["eps_id", "t"], "^columns must include eps_id and t to be cut into episodes, got terminated, truncated$"),
    ],
)
def test_missing_columns_of_episodes_are_named(absent: list[str], text: str) -> None:
    with pytest.raises(errors.SchemaError, match=text):
        cut("episodes", **{name: values for name, values in EPISODES.items() if name not in absent})


def test_missing_columns_of_sequences_are_named() -> None:
    with pytest.raises(errors.SchemaError, match="^columns must include seq_lens to be cut into sequences, got c$"):
        cut("sequences", c=[1])
    text = "^columns must include a column of rows to be cut into sequences, got seq_lens$"
    with pytest.raises(errors.SchemaError, match=text):
        cut("sequences", seq_lens=[1])


@pytest.mark.parametrize("name", ["eps_id", "t", "terminated", "truncated"])
def test_columns_that_episodes_are_cut_by_have_one_value_a_row(name: str) -> None:
    with pytest.raises(
        errors.SchemaError, match=rf"^column {name} must hold .* a row, got dtype .* and shape \[2, 1\]$"
    ):
        cut("episodes", **EPISODES | {name: np.array(EPISODES[name]).reshape(2, 1)})


@pytest.mark.parametrize("name", ["t", "terminated", "truncated"])
def test_times_and_ends_are_numbers(name: str) -> None:
    with pytest.raises(errors.SchemaError, match=f"^column {name} must hold a number a row, got dtype <U5"):
        cut("episodes", **EPISODES | {name: ["True", "False"]})


@pytest.mark.parametrize("unit", ["timesteps", "sequences", "episodes"])
def test_columns_have_equal_lengths(unit: item_cuts.StorageUnit) -> None:
    columns = {"a": [1, 2], "seq_lens": [1, 1]} | EPISODES | {"b": [1, 2, 3]}
    if unit == "timesteps":
        columns["seq_lens"] = [2, 2]
    with pytest.raises(errors.SchemaError, match="^column b must have 2 rows as column a has, got 3$"):
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
