"""Distributions of numbers in parts, against those of numpy over all of them."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.cli import distribution

FINITE = st.floats(-1e6, 1e6)


@hypothesis.given(parts=st.lists(st.lists(FINITE, max_size=5), max_size=5))
def test_what_fits_in_memory_is_as_numpy_has_it(parts: list[list[float]]) -> None:
    numbers = np.concatenate([np.zeros(0), *map(np.array, parts)])
    found = distribution.of([np.array(part, np.float64) for part in parts], len(numbers))
    assert found.count == len(numbers)
    assert np.array_equal(found.kept, numbers)
    if len(numbers):
        assert (found.least, found.most) == (numbers.min(), numbers.max())
        assert found.quartiles == tuple(np.quantile(numbers, (0.25, 0.5, 0.75), method="inverted_cdf"))
        assert found.mean == pytest.approx(numbers.mean(), abs=1e-9)
        assert found.least is not None
        assert found.mean is not None
        assert found.most is not None
        assert found.least <= found.mean <= found.most


def test_of_no_numbers_there_is_nothing_to_say() -> None:
    assert distribution.of([], 0).as_json() == {
        "count": 0,
        "not_finite": 0,
        "min": None,
        "q1": None,
        "median": None,
        "q3": None,
        "max": None,
        "mean": None,
    }


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    found = distribution.of([np.array([np.nan, 2.0]), np.array([np.inf]), np.array([4.0], np.float32)], 4)
    assert (found.count, found.num_not_finite, found.least, found.most, found.mean) == (2, 2, 2.0, 4.0, 3.0)


def test_numbers_at_the_ends_of_the_range_have_a_mean() -> None:
    largest = float(np.finfo(np.float64).max)
    assert distribution.of([np.array([largest, largest])], 2).mean == largest
    assert distribution.of([np.array([True, False])], 2).mean == 0.5


def test_of_many_numbers_a_fair_share_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "MOST_KEPT", 1000)
    parts = [np.arange(start, start + 1000) for start in range(0, 20_000, 1000)]
    found = distribution.of(parts, 20_000)
    assert (found.count, found.least, found.most) == (20_000, 0, 19_999)
    assert found.mean == pytest.approx(9999.5)
    assert 850 < len(found.kept) < 1150
    assert found.quartiles == pytest.approx((5000, 10_000, 15_000), abs=1000)
    assert np.array_equal(found.kept, np.sort(found.kept))
    assert np.array_equal(found.kept, distribution.of(parts, 20_000).kept)
