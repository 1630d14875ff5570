import math

import hypothesis
from hypothesis import strategies as st
import pytest

from relive.agents import bias

NUMBERS = st.lists(st.floats(-1e300, 1e300) | st.sampled_from([1e16, -1e16, 1.0, 1e-300, 2.0**-1074]), max_size=50)


def summed(numbers: list[float]) -> bias.ExactSum:
    total = bias.ExactSum()
    for number in numbers:
        total.add(number)
    return total


@hypothesis.given(NUMBERS)
def test_a_running_sum_is_that_of_all_at_once(numbers: list[float]) -> None:
    assert summed(numbers).value == math.fsum(numbers)


def test_memory_is_a_few_terms() -> None:
    total = bias.ExactSum()
    for exponent in range(-1000, 1000):
        total.add(math.ldexp(1.5, exponent))
    assert len(total.terms) < 50
    for _ in range(10_000):
        total.add(0.1)
    assert len(total.terms) < 50


@pytest.mark.parametrize(
    ("numbers", "value"),
    [([1e308] * 4, math.inf), ([-1e308] * 4, -math.inf), ([math.inf, 1.0, -5.0], math.inf), ([], 0.0), ([-0.0], 0.0)],
)
def test_sums_beyond_all_floats_are_infinite(numbers: list[float], value: float) -> None:
    total = summed([1.0, *numbers, -1.0])
    assert total.value == value
    assert not math.isinf(value) or total.terms == [value]


def test_infinities_against_each_other_are_no_number() -> None:
    assert math.isnan(summed([math.inf, -math.inf, 1.0]).value)
