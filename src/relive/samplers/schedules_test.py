import fractions
import math
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_beta_goes_up_in_a_straight_line_and_stays() -> None:
    beta = relive.LinearSchedule(0.4, 1.0, steps=100_000)
    values = [beta.value(tick) for tick in (0, 1, 11, 50_000, 99_999, 100_000, 10**9)]
    assert values == [0.4, 0.400006, 0.400066, 0.7, 0.999994, 1.0, 1.0]


@hypothesis.given(
    start=FINITE, end=FINITE, steps=st.integers(1, 10**6), ticks=st.lists(st.integers(0, 2 * 10**6), min_size=1)
)
def test_every_value_is_the_one_on_paper(start: float, end: float, steps: int, ticks: list[int]) -> None:
    schedule = relive.LinearSchedule(start, end, steps)
    low, high = (fractions.Fraction(repr(edge)) for edge in (start, end))
    for tick in [*ticks, 0, steps - 1, steps, steps + 1]:
        exact = low + (high - low) * min(fractions.Fraction(tick, steps), fractions.Fraction(1))
        assert schedule.value(tick) == float(exact)
    assert (schedule.value(0), schedule.value(steps), schedule.value(10 * steps)) == (start, end, end)
    values = [schedule.value(tick) for tick in sorted(ticks)]
    assert values == sorted(values, reverse=start > end)


def test_values_are_floats_whatever_the_numbers_are() -> None:
    steps: Any = np.int64(2)
    schedule = relive.LinearSchedule(np.float64(0.5), 1, steps)
    assert [type(schedule.value(tick)) for tick in (0, 1, 2)] == [float] * 3
    assert schedule.value(steps - 1) == 0.75


def test_repr_of_a_linear_schedule() -> None:
    schedule = relive.LinearSchedule(0.4, 1, 100_000)
    assert repr(schedule) == "LinearSchedule(0.4, 1.0, 100000)"
    assert (schedule.start, schedule.end, schedule.steps) == (0.4, 1.0, 100_000)


def test_settings_that_make_no_line_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, Any, str]] = [
        (math.nan, 1.0, 10, "start must be a finite real number, got nan"),
        (0.4, math.inf, 10, "end must be a finite real number, got inf"),
        ("0.4", 1.0, 10, "start must be a finite real number, got '0.4'"),
        (0.4, 1.0, 0, "steps must be at least 1, got 0"),
        (0.4, 1.0, 1.5, "steps must be an integer of at least 1, got 1.5"),
    ]
    for start, end, steps, message in cases:
        with subtests.test(message), pytest.raises(errors.ArgumentError, match=f"^{message}$"):
            relive.LinearSchedule(start, end, steps)


def test_a_tick_that_is_no_count_is_refused() -> None:
    for tick in (-1, 0.5, True):
        with pytest.raises(errors.ArgumentError, match=f"^tick must be .*at least 0, got {tick}$"):
            relive.LinearSchedule(0.4, 1.0, 10).value(tick)  # type: ignore[arg-type]


def test_a_schedule_of_your_own_is_a_subclass_with_one_method() -> None:
    class Halving(relive.Schedule):
        def value(self, tick: int) -> float:
            return 0.5**tick

    assert Halving().value(2) == 0.25
    with pytest.raises(TypeError, match="abstract"):
        relive.Schedule()  # type: ignore[abstract]
