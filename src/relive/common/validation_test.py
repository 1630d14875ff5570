import decimal
import fractions
import math
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.common import validation


@pytest.mark.parametrize("value", [1, 7, np.int64(7), np.uint8(1), 2**62])
def test_integers_of_at_least_one_come_back_as_int(value: Any) -> None:
    checked = validation.positive_int("n", value)
    assert type(checked) is int
    assert checked == value


@pytest.mark.parametrize("value", [0, -1, np.int8(-3)])
def test_integers_below_one_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=rf"^n must be at least 1, got {int(value)}$"):
        validation.positive_int("n", value)


@pytest.mark.parametrize("value", [1.0, 1.5, "1", None, True, math.nan, [1], np.ones(1, int)])
def test_what_is_no_integer_is_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^n must be an integer of at least 1, got .+$"):
        validation.positive_int("n", value)


@pytest.mark.parametrize(
    "value",
    [0, -1, 0.5, True, np.float32(0.1), np.float64(-3.5), np.int64(4), np.bool_(True), np.array(2.5), np.array(3), -0.0,
     fractions.Fraction(1, 4), np.longdouble(1.5), 2**53],
)  # fmt: skip
def test_finite_numbers_come_back_as_float(value: Any) -> None:
    number = validation.finite_number("reward", value)
    assert type(number) is float
    assert number == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), np.array(np.inf), 10**400])
def test_numbers_that_are_not_finite_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^reward must be a finite real number, got .+$"):
        validation.finite_number("reward", value)


@pytest.mark.parametrize(
    "value",
    [None, "1.0", 1j, [1.0], np.ones(1), np.ones((2, 2)), np.array(1j), np.array("1"), decimal.Decimal(1), object()],
)
def test_what_is_no_real_number_is_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^reward must be a finite real number, got .+$") as caught:
        validation.finite_number("reward", value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [2**53 + 1, fractions.Fraction(1, 3)])
def test_numbers_that_a_float_would_change_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^reward must be a number that a float holds exactly, got .+$"):
        validation.finite_number("reward", value)


@pytest.mark.parametrize("value", [1, 1.0, 0.5, 5e-324, np.float32(0.5)])
def test_discounts_come_back_as_float(value: Any) -> None:
    gamma = validation.discount("gamma", value)
    assert type(gamma) is float
    assert gamma == value


@pytest.mark.parametrize("value", [0, 0.0, -0.1, 1.5, math.nextafter(1, 2), math.nan, math.inf, 10**400])
def test_discounts_outside_their_range_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^gamma must be in \(0, 1\], got .+$"):
        validation.discount("gamma", value)


@pytest.mark.parametrize("value", [None, "0.9", True, 1j, np.ones(1)])
def test_what_is_no_discount_is_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^gamma must be a number in \(0, 1\], got .+$"):
        validation.discount("gamma", value)


def test_values_are_shown_on_one_short_line() -> None:
    assert validation.short_repr("x") == "'x'"
    shown = validation.short_repr(np.zeros((100, 100)))
    assert "\n" not in shown
    assert len(shown) < 100


def test_a_seed_becomes_a_generator_and_a_generator_stays_itself() -> None:
    rng = np.random.default_rng(1)
    assert validation.generator("seed", rng) is rng
    assert validation.generator("seed", 1).random() == np.random.default_rng(1).random()
    assert validation.generator("seed", None).random() != validation.generator("seed", None).random()


@pytest.mark.parametrize("value", ["x", 1.5, True, [], [1, 2], np.random.RandomState(0)])
def test_what_is_no_seed_is_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^seed must be an integer, a numpy Generator or None, got "):
        validation.generator("seed", value)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match=r"^seed must be at least 0, got -1$"):
        validation.generator("seed", -1)


def test_no_count_is_above_2_to_the_62() -> None:
    with pytest.raises(errors.ArgumentError, match=r"^n must be at most 2\*\*62, got 4611686018427387905$"):
        validation.positive_int("n", 2**62 + 1)


def test_a_version_never_goes_down() -> None:
    assert validation.next_version(3, None) == validation.next_version(np.int64(3), 3) == 3
    with pytest.raises(errors.ArgumentError, match="^version must be at least 4, the one before, got 3$"):
        validation.next_version(3, 4)
    with pytest.raises(errors.ArgumentError, match="^version must be at least 0, got -1$"):
        validation.next_version(-1, None)


def test_a_string_of_a_subclass_becomes_a_plain_one() -> None:
    plain = validation.string("name", np.str_("agent"))
    assert (type(plain), plain) == (str, "agent")
    assert validation.string("name", plain) is plain
    with pytest.raises(errors.ArgumentTypeError, match="^name must be a string, got 3$"):
        validation.string("name", 3)
