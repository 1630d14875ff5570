"""Schedules: settings that change with the number of draws. They are stateless: the buffer counts the ticks."""

import abc
import fractions
import math

from relive.common import validation
from relive.persistence import registry


class Schedule(registry.Configurable, abc.ABC):
    """A number for each tick; subclass it and override `value` for a custom schedule."""

    @abc.abstractmethod
    def value(self, tick: int) -> float:
        """Return the value at `tick`, which counts from 0."""


class LinearSchedule(Schedule):
    """Linear interpolation from `start` at tick 0 to `end` at tick `steps`, constant afterwards.

    ::

        value(tick) = start + (end - start) * min(tick / steps, 1)

    computed exactly from the decimal representations of `start` and `end`, and rounded once.

    Args:
        start: The first value.
        end: The last value.
        steps: Number of ticks, at least 1.

    Raises:
        ArgumentError: A value is not a finite number, or `steps` is not an integer of at least 1.

    >>> from relive.samplers import schedules
    >>> beta = schedules.LinearSchedule(0.4, 1.0, steps=100_000)
    >>> beta.value(0), beta.value(11), beta.value(50_000), beta.value(100_000), beta.value(100_001)
    (0.4, 0.400066, 0.7, 1.0, 1.0)
    """

    def __init__(self, start: float, end: float, steps: int) -> None:
        self.start = validation.finite_number("start", start)
        self.end = validation.finite_number("end", end)
        self.steps = validation.positive_int("steps", steps)
        start_exactly, end_exactly = fractions.Fraction(repr(self.start)), fractions.Fraction(repr(self.end))
        # Both ends as integers of one unit, so that only the division rounds, to the nearest float.
        self._units = math.lcm(start_exactly.denominator, end_exactly.denominator)
        self._start_units = int(start_exactly * self._units)
        self._end_units = int(end_exactly * self._units)

    def __repr__(self) -> str:
        return f"LinearSchedule({self.start!r}, {self.end!r}, {self.steps})"

    def value(self, tick: int) -> float:
        """Return the value at `tick`: a schedule counts draws from 0.

        Raises:
            ArgumentTypeError: `tick` is not an integer.
            ArgumentError: `tick` is negative.
        """
        past = min(validation.non_negative_int("tick", tick), self.steps)
        units = self._start_units * (self.steps - past) + self._end_units * past
        return units / (self._units * self.steps)
