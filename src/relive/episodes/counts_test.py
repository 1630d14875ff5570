import weakref

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.episodes import counts


class Thing:
    pass


def units_of(deque: counts.CountedDeque[int]) -> list[tuple[int, int]]:
    items, ranks = deque.find(np.arange(deque.total))
    return list(zip(items, ranks, strict=True))


class CountedDequeMachine(stateful.RuleBasedStateMachine):
    """A counted deque beside a list of (item, count)."""

    @stateful.initialize()
    def start(self) -> None:
        self.deque: counts.CountedDeque[int] = counts.CountedDeque()
        self.naive: list[tuple[int, int]] = []
        self.made = 0

    @stateful.rule(length=st.integers(1, 90), most=st.integers(0, 5), seed=st.integers(0, 2**32))
    def append(self, length: int, most: int, seed: int) -> None:
        for count in np.random.default_rng(seed).integers(most, size=length, endpoint=True).tolist():
            self.deque.append(self.made, count)
            self.naive.append((self.made, count))
            self.made += 1

    @stateful.precondition(lambda self: self.naive)
    @stateful.rule(times=st.integers(1, 100))
    def popleft(self, times: int) -> None:
        for _ in range(min(times, len(self.naive))):
            assert self.deque.popleft() == self.naive.pop(0)[0]

    @stateful.invariant()
    def every_unit_is_found(self) -> None:
        assert units_of(self.deque) == [(item, rank) for item, count in self.naive for rank in range(count)]

    @stateful.invariant()
    def contents_are_equal(self) -> None:
        assert len(self.deque) == len(self.naive)
        assert list(self.deque) == [item for item, _ in self.naive]
        assert [self.deque.count(index) for index in range(len(self.deque))] == [count for _, count in self.naive]
        assert self.deque.total == sum(count for _, count in self.naive)
        assert type(self.deque.total) is int

    @stateful.invariant()
    def both_ends_are_reached_by_index(self) -> None:
        if self.naive:
            last = len(self.naive) - 1
            assert (self.deque[0], self.deque[-1]) == (self.naive[0][0], self.naive[-1][0])
            assert (self.deque[last], self.deque[-last - 1]) == (self.naive[-1][0], self.naive[0][0])


CountedDequeMachine.TestCase.settings = hypothesis.settings(stateful_step_count=20)
TestCountedDeque = CountedDequeMachine.TestCase


def test_units_are_found_in_any_order_and_more_than_once() -> None:
    deque: counts.CountedDeque[str] = counts.CountedDeque()
    for item, count in [("a", 2), ("b", 0), ("c", 3)]:
        deque.append(item, count)
    assert deque.find(np.array([4, 0, 2, 4])) == (["c", "a", "c", "c"], [2, 0, 0, 2])
    assert deque.find(np.array([], np.int64)) == ([], [])


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_outside_is_an_error(index: int) -> None:
    deque: counts.CountedDeque[str] = counts.CountedDeque()
    deque.append("gone", 1)
    deque.append("a", 1)
    deque.append("b", 1)
    deque.popleft()
    with pytest.raises(IndexError, match=rf"^index must be in \[-2, 2\), got {index}$"):
        deque[index]


def test_an_empty_deque_has_nothing_to_give() -> None:
    with pytest.raises(IndexError, match=r"index must be in \[0, 0\), got 0"):
        counts.CountedDeque[str]().popleft()


def test_what_has_left_is_forgotten_at_once() -> None:
    deque: counts.CountedDeque[Thing] = counts.CountedDeque()
    deque.append(Thing(), 1)
    deque.append(Thing(), 1)
    left = weakref.ref(deque.popleft())
    assert left() is None


def test_memory_stays_flat_however_many_pass_through() -> None:
    deque: counts.CountedDeque[int] = counts.CountedDeque()
    for item in range(20_000):
        deque.append(item, item % 3)
        if item >= 100:
            deque.popleft()
    assert len(deque._sums) <= 256
    assert len(deque._items) <= 256


def test_memory_is_given_back_when_most_have_left() -> None:
    deque: counts.CountedDeque[int] = counts.CountedDeque()
    for item in range(20_000):
        deque.append(item, 1)
    for _ in range(19_990):
        deque.popleft()
    assert list(deque) == list(range(19_990, 20_000))
    assert max(len(deque._sums), len(deque._items)) <= 256
