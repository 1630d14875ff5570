import random
from typing import Any, ClassVar

import pytest

from relive.testing import walks


class Counter(walks.Machine):
    """A number that must stay below a limit."""

    often: ClassVar = {"add": 3}
    least: ClassVar = {"above 3": 1}
    limit = 1000

    @walks.initialize(start=walks.integers(0, 1))
    def begin(self, start: int) -> None:
        self.number = start

    @walks.rule(when=lambda self: self.number < 900, more=walks.integers(1, 3))
    def add(self, more: int) -> None:
        self.number += more
        self.reached["above 3"] += self.number > 3

    @walks.rule()
    def look(self) -> None:
        assert self.number >= 0

    @walks.invariant(every=10)
    def is_below_the_limit(self) -> None:
        assert self.number < self.limit


class Low(Counter):
    limit = 4


class Ambitious(Counter):
    least: ClassVar = {"above 3": 10**6}


def lanes_of(machine: type[walks.Machine]) -> Any:
    return walks.tests_of(machine)()


@pytest.mark.parametrize("lane", ["test_by_day", "test_at_night"])
def test_walks_fail_if_a_rule_breaks_or_too_little_is_reached(lane: str) -> None:
    getattr(lanes_of(Counter), lane)()
    with pytest.raises(AssertionError) as caught:
        getattr(lanes_of(Low), lane)()
    assert any("add(more=" in note for note in caught.value.__notes__)
    with pytest.raises(AssertionError, match="reached too seldom"):
        getattr(lanes_of(Ambitious), lane)()


def test_equal_seeds_take_equal_walks() -> None:
    first, second = (walks.walk(Counter, random.Random(3), 50, is_thorough=True) for _ in range(2))
    assert first == second
    assert first["add"] > first["look"] > 0
