import random

import numpy as np
import pytest

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


def test_generators_of_ones_own_are_nobodys_business() -> None:
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
