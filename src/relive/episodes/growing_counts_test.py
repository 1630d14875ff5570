import weakref

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import testing
from relive.episodes import counts as counts_lib


class Thing:
    pass


def counts_of(naive: dict[str, int]) -> counts_lib.GrowingCounts[str]:
    counts: counts_lib.GrowingCounts[str] = counts_lib.GrowingCounts()
    for item, count in naive.items():
        for _ in range(count):
            counts.grow(item)
    return counts


class GrowingCountsMachine(stateful.RuleBasedStateMachine):
    """Growing counts beside a dict."""

    @stateful.initialize()
    def start(self) -> None:
        self.counts: counts_lib.GrowingCounts[str] = counts_lib.GrowingCounts()
        self.naive: dict[str, int] = {}

    @stateful.rule(item=st.sampled_from("abcdef"), times=st.integers(1, 9))
    def grow(self, item: str, times: int) -> None:
        for _ in range(times):
            self.counts.grow(item)
        self.naive[item] = self.naive.get(item, 0) + times

    @stateful.rule(item=st.sampled_from("abcdefg"))
    def pop(self, item: str) -> None:
        assert self.counts.pop(item) == self.naive.pop(item, 0)

    @stateful.invariant()
    def counts_are_equal(self) -> None:
        assert {item: self.counts[item] for item in "abcdefg"} == {item: self.naive.get(item, 0) for item in "abcdefg"}
        assert self.counts.total == sum(self.naive.values())

    @stateful.invariant()
    def the_audit_passes(self) -> None:
        self.counts.check()

    @stateful.invariant()
    def every_draw_is_a_unit(self) -> None:
        if self.naive:
            for item, rank in self.counts.draw(20, np.random.default_rng(0)):
                assert 0 <= rank < self.naive[item]


GrowingCountsMachine.TestCase.settings = hypothesis.settings(stateful_step_count=20)
TestGrowingCounts = GrowingCountsMachine.TestCase


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
    counts = counts_of(naive)
    total = sum(naive.values())
    units = [(item, rank) for item, count in naive.items() for rank in range(count)]
    drawn = dict.fromkeys(units, 0)
    for unit in counts.draw(200 * total, np.random.default_rng(1)):
        drawn[unit] += 1
    testing.assert_frequencies(list(drawn.values()), [1 / total] * total)


def test_draws_stay_uniform_after_items_have_left() -> None:
    counts = counts_of({"a": 5, "b": 6, "c": 7, "d": 4, "e": 1})
    counts.pop("a")
    counts.pop("d")
    counts.grow("e")
    drawn = {"b": 0, "c": 0, "e": 0}
    for item, _ in counts.draw(6000, np.random.default_rng(2)):
        drawn[item] += 1
    testing.assert_frequencies(list(drawn.values()), [6 / 15, 7 / 15, 2 / 15])


def test_draws_are_independent_of_each_other() -> None:
    """Pairs of neighbours in a batch are as frequent as chance: draws are neither sorted nor paired."""
    drawn = counts_of({"a": 1, "b": 3}).draw(20_000, np.random.default_rng(3))
    pairs = {first + second: 0 for first in "ab" for second in "ab"}
    for (first, _), (second, _) in zip(drawn[::2], drawn[1::2], strict=True):
        pairs[first + second] += 1
    testing.assert_frequencies(list(pairs.values()), [1 / 16, 3 / 16, 3 / 16, 9 / 16])


def test_the_same_generator_gives_the_same_draws() -> None:
    counts = counts_of({"a": 5, "b": 6})
    assert counts.draw(50, np.random.default_rng(7)) == counts.draw(50, np.random.default_rng(7))


def test_what_has_left_is_forgotten() -> None:
    counts: counts_lib.GrowingCounts[Thing] = counts_lib.GrowingCounts()
    thing = Thing()
    for _ in range(5):
        counts.grow(thing)
    counts.pop(thing)
    left = weakref.ref(thing)
    del thing
    assert left() is None


@hypothesis.given(steps=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60))
def test_items_put_in_their_order_stand_as_they_stood(steps: list[tuple[str, bool]]) -> None:
    """So that the same draws follow."""
    counts: counts_lib.GrowingCounts[str] = counts_lib.GrowingCounts()
    for item, grows in steps:
        if grows:
            counts.grow(item)
        else:
            counts.pop(item)
    copy: counts_lib.GrowingCounts[str] = counts_lib.GrowingCounts()
    for item in counts:
        copy.put(item, counts[item])
    copy.check()
    assert (list(copy), copy.total) == (list(counts), counts.total)
    if counts.total:
        assert copy.draw(50, np.random.default_rng(0)) == counts.draw(50, np.random.default_rng(0))
