import random

import numpy as np
import pytest

from relive import errors
from relive.testing import expectations


def refuse(*arguments: object, **named: object) -> None:
    raise KeyError("no")


def accept(*arguments: object, **named: object) -> None:
    pass


def test_a_call_that_raises_is_expected() -> None:
    expectations.assert_raises(KeyError, refuse, 1, name=2)
    expectations.assert_raises(LookupError, refuse)


def test_a_call_that_does_not_raise_fails() -> None:
    with pytest.raises(AssertionError, match=r"^accept\(1, 2\) should have raised KeyError$"):
        expectations.assert_raises(KeyError, accept, 1, 2)
    with pytest.raises(AssertionError, match=r"^accept\{'name': 3\} should have raised KeyError$"):
        expectations.assert_raises(KeyError, accept, name=3)


def test_another_error_is_passed_on() -> None:
    with pytest.raises(KeyError):
        expectations.assert_raises(TypeError, refuse)


def test_local_generators_are_allowed() -> None:
    with expectations.untouched_global_randomness():
        np.random.default_rng(0).random()
        random.Random(0).random()


def test_a_draw_from_a_global_generator_fails() -> None:
    with (
        pytest.raises(AssertionError, match="a global generator was drawn from"),
        expectations.untouched_global_randomness(),
    ):
        np.random.random()  # noqa: NPY002
    with (
        pytest.raises(AssertionError, match="a global generator was drawn from"),
        expectations.untouched_global_randomness(),
    ):
        random.random()


# Frequencies.


def test_fair_counts_pass() -> None:
    expectations.assert_frequencies([100, 205, 295], [1 / 6, 1 / 3, 1 / 2])


def test_a_certain_outcome_passes() -> None:
    expectations.assert_frequencies([100], [1.0])


@pytest.mark.parametrize("counts", [[700, 300], [570, 430], [430, 570]])
def test_unfair_counts_fail(counts: list[int]) -> None:
    with pytest.raises(AssertionError, match=r"chi-square is .* for 1 degrees of freedom"):
        expectations.assert_frequencies(counts, [0.5, 0.5])


def test_an_impossible_outcome_fails() -> None:
    expectations.assert_frequencies([0, 100], [0.0, 1.0])
    with pytest.raises(AssertionError, match="probability 0 was drawn 1 times"):
        expectations.assert_frequencies([1, 100], [0.0, 1.0])


def test_the_limit_is_the_quantile_of_one_in_thirty_thousand() -> None:
    """The quantile of 10 degrees of freedom at 1 - 3.2e-5 is 38.4; Wilson and Hilferty come within two percent."""
    counts = [1000] * 11
    counts[0] += 205
    expectations.assert_frequencies(counts, [1 / 11] * 11)
    counts[0] += 7
    with pytest.raises(AssertionError, match=r"above 39\.0 for 10"):
        expectations.assert_frequencies(counts, [1 / 11] * 11)


def test_arguments_of_expectations_are_checked() -> None:
    with pytest.raises(errors.ArgumentError, match="counts must have 2 entries, got 1"):
        expectations.assert_frequencies([1], [0.5, 0.5])
    with pytest.raises(errors.ArgumentError, match=r"probabilities must sum to 1, got 0\.9"):
        expectations.assert_frequencies([10, 10], [0.5, 0.4])
    with pytest.raises(errors.ArgumentError, match=r"expect each outcome 5 times, got 4\.5"):
        expectations.assert_frequencies([5, 4], [0.5, 0.5])
