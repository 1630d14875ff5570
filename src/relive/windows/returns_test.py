import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive.windows import returns

REWARDS = st.lists(st.floats(-1e6, 1e6), max_size=12)
GAMMAS = st.floats(0.01, 1.0)


def test_discounted_returns_worked_out_by_hand() -> None:
    assert relive.compute_discounted_return([1, 2, 3], 0.9) == pytest.approx(5.23)
    assert relive.compute_discounted_return([1, 2, 3], 1) == 6.0
    assert relive.compute_discounted_return([], 0.9) == 0.0
    assert isinstance(relive.compute_discounted_return([], 0.9), float)


@hypothesis.given(rewards=REWARDS, gamma=GAMMAS)
def test_the_return_is_the_written_out_sum(rewards: list[float], gamma: float) -> None:
    expected = 0.0
    for k in range(len(rewards)):
        expected = expected + rewards[k] * gamma**k
    assert relive.compute_discounted_return(rewards, gamma) == expected


def test_arrays_are_rewards_too() -> None:
    assert relive.compute_discounted_return(np.array([1.0, 2.0], np.float32), 0.5) == 2.0


@pytest.mark.parametrize("gamma", [0, 1.5, math.nan, -0.1])
def test_a_gamma_outside_its_range_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match=r"gamma must be in \(0, 1\]"):
        relive.compute_discounted_return([1.0], gamma)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^reward must be a finite real number, got nan at \[1\]$"):
        relive.compute_discounted_return([1.0, math.nan], 0.9)


def test_a_total_is_rounded_once_and_the_same_on_every_python() -> None:
    """Ten times 0.1: `sum` returns 0.9999999999999999 before Python 3.12, and 1.0 since."""
    assert returns.total([0.1] * 10) == 1.0
    assert returns.total([1e16, 1.0, -1e16]) == 1.0
    assert returns.total([]) == 0.0
    assert returns.total([1e308, 1e308]) == math.inf


def test_powers_start_at_one() -> None:
    assert returns.discount_powers(0.5, 4) == [1.0, 0.5, 0.25, 0.125]
    assert returns.discount_powers(0.5, 0) == []


def test_weights_must_be_as_many_as_rewards() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        returns.weighted_sum([1.0, 2.0], [1.0])
