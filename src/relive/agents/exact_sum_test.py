import math

import hypothesis
from hypothesis import strategies as st
import pytest

from relive.agents import bias
from relive.agents import bias_test

NUMBERS = st.lists(st.floats(-1e300, 1e300) | st.sampled_from([1e16, -1e16, 1.0, 1e-300, 2.0**-1074]), max_size=50)


def mean_return(returns: list[list[float]]) -> float | None:
    tally = bias.Tally()
    for rewards in returns:
        tally.add(bias_test.episode_of(rewards))
    return tally.totals().mean_return


@hypothesis.given(NUMBERS)
def test_a_running_sum_is_that_of_all_at_once(numbers: list[float]) -> None:
    assert mean_return([[number] for number in numbers]) == (math.fsum(numbers) / len(numbers) if numbers else None)


@pytest.mark.parametrize(
    ("numbers", "value"),
    [([1e308] * 4, math.inf), ([-1e308] * 4, -math.inf), ([1e308] * 4 + [-1e308] * 4, 0.0), ([-0.0], 0.0)],
)
def test_sums_beyond_all_floats_are_infinite(numbers: list[float], value: float) -> None:
    assert mean_return([[1.0], *([number] for number in numbers), [-1.0]]) == value
    assert mean_return([[1.0, *numbers, -1.0]]) == value
