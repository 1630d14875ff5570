import weakref

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive import testing
from relive.episodes import counts
from relive.testing import walks


class Thing:
    pass


def units_of(deque: counts.CountedDeque[int]) -> list[tuple[int, int]]:
    items, ranks = deque.find(np.arange(deque.total))
    return list(zip(items, ranks, strict=True))


class CountedDequeMachine(walks.Machine):
    """A counted deque beside a list of (item, count)."""

    @walks.initialize()
    def start(self) -> None:
        self.deque: counts.CountedDeque[int] = counts.CountedDeque()
        self.naive: list[tuple[int, int]] = []
        self.made = 0

    @walks.rule(length=walks.integers(1, 90), most=walks.integers(0, 5), seed=walks.integers(0, 2**32))
    def append(self, length: int, most: int, seed: int) -> None:
        for count in np.random.default_rng(seed).integers(most, size=length, endpoint=True).tolist():
            self.deque.append(self.made, count)
            self.naive.append((self.made, count))
            self.made += 1

    @walks.rule(when=lambda self: self.naive, times=walks.integers(1, 100))
    def popleft(self, times: int) -> None:
        for _ in range(min(times, len(self.naive))):
            assert self.deque.popleft() == self.naive.pop(0)[0]

    @walks.invariant(every=5)
    def every_unit_is_found(self) -> None:
        assert units_of(self.deque) == [(item, rank) for item, count in self.naive for rank in range(count)]

    @walks.invariant(every=5)
    def contents_are_equal(self) -> None:
        assert len(self.deque) == len(self.naive)
        assert list(self.deque) == [item for item, _ in self.naive]
        assert [self.deque.count(index) for index in range(len(self.deque))] == [count for _, count in self.naive]
        assert self.deque.num_empty == sum(not count for _, count in self.naive)
        assert self.deque.total == sum(count for _, count in self.naive)
        assert type(self.deque.total) is int

    @walks.invariant()
    def both_ends_are_reached_by_index(self) -> None:
        if self.naive:
            last = len(self.naive) - 1
            assert (self.deque[0], self.deque[-1]) == (self.naive[0][0], self.naive[-1][0])
            assert (self.deque[last], self.deque[-last - 1]) == (self.naive[-1][0], self.naive[0][0])


TestCountedDeque = walks.tests_of(CountedDequeMachine)


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


def test_a_deque_forgets_what_left() -> None:
    deque: counts.CountedDeque[Thing] = counts.CountedDeque()
    deque.append(Thing(), 1)
    deque.append(Thing(), 1)
    left = weakref.ref(deque.popleft())
    assert left() is None


def test_memory_is_given_back_when_most_have_left() -> None:
    deque: counts.CountedDeque[int] = counts.CountedDeque()
    for item in range(20_000):
        deque.append(item, item % 3)
        if item >= 100:
            deque.popleft()
    assert max(len(deque._sums), len(deque._items)) <= 256
    while len(deque):
        deque.popleft()
    for item in range(20_000):
        deque.append(item, 1)
    for _ in range(19_990):
        deque.popleft()
    assert list(deque) == list(range(19_990, 20_000))
    assert max(len(deque._sums), len(deque._items)) <= 256


def counts_of(naive: dict[str, int]) -> counts.GrowingCounts[str]:
    growing: counts.GrowingCounts[str] = counts.GrowingCounts()
    for item, count in naive.items():
        for _ in range(count):
            growing.grow(item)
    return growing


class GrowingCountsMachine(walks.Machine):
    """Growing counts beside a dict."""

    @walks.initialize()
    def start(self) -> None:
        self.counts: counts.GrowingCounts[str] = counts.GrowingCounts()
        self.naive: dict[str, int] = {}

    @walks.rule(item=walks.sampled_from("abcdef"), times=walks.integers(1, 9))
    def grow(self, item: str, times: int) -> None:
        for _ in range(times):
            self.counts.grow(item)
        self.naive[item] = self.naive.get(item, 0) + times

    @walks.rule(item=walks.sampled_from("abcdefg"))
    def pop(self, item: str) -> None:
        assert self.counts.pop(item) == self.naive.pop(item, 0)

    @walks.invariant()
    def counts_are_equal(self) -> None:
        assert {item: self.counts[item] for item in "abcdefg"} == {item: self.naive.get(item, 0) for item in "abcdefg"}
        assert self.counts.total == sum(self.naive.values())

    @walks.invariant(every=5)
    def the_audit_passes(self) -> None:
        self.counts.check()

    @walks.invariant(every=5)
    def every_draw_is_a_unit(self) -> None:
        if self.naive:
            for item, rank in self.counts.draw(20, np.random.default_rng(0)):
                assert 0 <= rank < self.naive[item]


TestGrowingCounts = walks.tests_of(GrowingCountsMachine)


@pytest.mark.parametrize(
    "naive",
    [
        {"a": 1},
        {"a": 1, "b": 1, "c": 1},
        {"a": 1, "b": 2, "c": 3, "d": 5, "e": 8},
        {"a": 3, "b": 4},
        {"a": 7, "b": 8, "c": 15, "d": 16, "e": 17, "f": 1},
        {"a": 100, "b": 1},
    ],
)
def test_every_unit_is_drawn_equally_often(naive: dict[str, int]) -> None:
    growing = counts_of(naive)
    total = sum(naive.values())
    units = [(item, rank) for item, count in naive.items() for rank in range(count)]
    drawn = dict.fromkeys(units, 0)
    for unit in growing.draw(200 * total, np.random.default_rng(1)):
        drawn[unit] += 1
    testing.assert_frequencies(list(drawn.values()), [1 / total] * total)


def test_draws_are_independent_of_each_other() -> None:
    """Pairs of neighbours in a batch are as frequent as chance: draws are neither sorted nor paired."""
    drawn = counts_of({"a": 1, "b": 3}).draw(20_000, np.random.default_rng(3))
    pairs = {first + second: 0 for first in "ab" for second in "ab"}
    for (first, _), (second, _) in zip(drawn[::2], drawn[1::2], strict=True):
        pairs[first + second] += 1
    testing.assert_frequencies(list(pairs.values()), [1 / 16, 3 / 16, 3 / 16, 9 / 16])


def test_growing_counts_forget_what_left() -> None:
    growing: counts.GrowingCounts[Thing] = counts.GrowingCounts()
    thing = Thing()
    for _ in range(5):
        growing.grow(thing)
    growing.pop(thing)
    left = weakref.ref(thing)
    del thing
    assert left() is None


def test_an_item_that_is_counted_twice_is_found() -> None:
    growing = counts_of({"a": 3, "b": 2})
    growing.put("b", 2)
    with pytest.raises(errors.CorruptionError, match="^growing counts of 2 items do not agree with their shelves$"):
        growing.check()


@hypothesis.given(steps=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60))
def test_items_put_in_their_order_stand_as_they_stood(steps: list[tuple[str, bool]]) -> None:
    """So that the same draws follow."""
    growing: counts.GrowingCounts[str] = counts.GrowingCounts()
    for item, grows in steps:
        if grows:
            growing.grow(item)
        else:
            growing.pop(item)
    copy: counts.GrowingCounts[str] = counts.GrowingCounts()
    for item in growing:
        copy.put(item, growing[item])
    copy.check()
    assert (list(copy), copy.total) == (list(growing), growing.total)
    if growing.total:
        assert copy.draw(50, np.random.default_rng(0)) == growing.draw(50, np.random.default_rng(0))
