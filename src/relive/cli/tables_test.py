"""Tests of the tables of numbers."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.cli import contents
from relive.cli import formatting
from relive.cli import tables

SAID: dict[str, Any] = {
    "kind": "checkpoint", "class": "Mine", "records": None, "bytes": 3, "generator": None, "notes": [], "faults": [],
    "stats": {}, "schema": None, "settings": {}, "arrays": {},
}  # fmt: skip


def distributions(**found: list[float]) -> tables.Table:
    (table,) = tables.of(SAID, {name: np.array(values) for name, values in found.items()})[1:]
    return table


@hypothesis.given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_spreads_are_those_of_numpy(values: list[float]) -> None:
    table = distributions(rewards=values)
    quartiles = np.quantile(values, (0, 0.25, 0.5, 0.75, 1), method="inverted_cdf").tolist()
    words = [row[1] for row in table.rows]
    assert words[:-1] == [formatting.number(each) for each in (len(values), *quartiles)]
    assert table.rows[-1][0] == "mean"


def test_numbers_at_the_ends_of_the_range_have_a_mean() -> None:
    largest = float(np.finfo(np.float64).max)
    assert distributions(rewards=[largest, largest]).rows[-1] == ("mean", formatting.number(largest))


def test_rows_without_a_number_are_counted_apart() -> None:
    table = distributions(rewards=[1.0, 2.0], priorities=[np.nan, 4.0])
    assert table.header == ("", "rewards", "priorities")
    assert table.rows[:3] == [("count", "2", "1"), ("without", "0", "1"), ("min", "1", "4")]
    assert distributions(priorities=[np.nan]).rows[:3] == [("count", "0"), ("without", "1"), ("min", "—")]


@pytest.mark.parametrize("found", [{}, {"rewards": np.zeros(0)}])
def test_no_numbers_make_no_table(found: dict[str, contents.Values]) -> None:
    assert [table.title for table in tables.of(SAID, found)] == [""]


def test_a_mapping_with_many_entries_is_counted() -> None:
    many = {f"episode {number}": 0.5 for number in range(9)}
    (table,) = tables.of(SAID | {"stats": {"open_ages": many, "dropped": {"stale": 2}}}, {})[1:]
    assert table.rows == [("open ages", "9 of them"), ("dropped", "stale: 2")]
