import copy

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from relive import errors
from relive.kernels import eligibility

FACTS = (eligibility.READABLE, eligibility.BARRED, eligibility.SPENT)
STEP = strategies.tuples(
    strategies.sampled_from(["set", "unset", "forget"]),
    strategies.sampled_from(FACTS),
    strategies.sets(strategies.integers(0, 5)),
)


@hypothesis.given(strategies.lists(STEP))
def test_facts_and_changes_equal_those_of_naive_sets(steps: list[tuple[str, int, set[int]]]) -> None:
    eligible = eligibility.Eligibility(6)
    twin: dict[int, set[int]] = {fact: set() for fact in FACTS}

    def drawable() -> set[int]:
        return twin[eligibility.READABLE] - twin[eligibility.BARRED] - twin[eligibility.SPENT]

    for change, fact, chosen in steps:
        before = drawable()
        slots = np.array(sorted(chosen), np.int64)
        entered = left = np.zeros(0, np.int64)
        if change == "forget":
            left = eligible.forget(slots)
            for slots_of_fact in twin.values():
                slots_of_fact -= chosen
        elif change == "set":
            entered, left = eligible.set(fact, slots)
            twin[fact] |= chosen
        else:
            entered, left = eligible.unset(fact, slots)
            twin[fact] -= chosen
        assert set(entered.tolist()) == drawable() - before
        assert set(left.tolist()) == before - drawable()
        assert eligible.slots().tolist() == sorted(drawable())
        assert len(eligible) == len(drawable())
        everywhere = np.arange(6)
        assert eligible.is_eligible(everywhere).tolist() == [slot in drawable() for slot in range(6)]
        for each in FACTS:
            assert eligible.has(each, everywhere).tolist() == [slot in twin[each] for slot in range(6)]
        eligible.check()


def test_check_finds_a_wrong_count() -> None:
    eligible = eligibility.Eligibility(3)
    eligible.set(eligibility.READABLE, np.array([0, 1]))
    eligible._facts[0] = 0
    with pytest.raises(errors.CorruptionError, match="^2 anchors are counted as eligible, which is wrong$"):
        eligible.check()


@hypothesis.given(
    strategies.lists(strategies.integers(0, 7), min_size=6, max_size=6),
    strategies.sampled_from(["set_readable", "unset_readable", "forget_one"]),
    strategies.integers(0, 5),
)
def test_what_is_said_of_one_anchor_is_what_is_said_of_an_array_of_it(facts: list[int], call: str, slot: int) -> None:
    one, by_array = with_facts(facts), with_facts(facts)
    slots = np.array([slot])
    if call == "set_readable":
        entered, left = by_array.set(eligibility.READABLE, slots)
        assert one.set_readable(slot) is (len(entered) == 1)
        assert not len(left)
    elif call == "unset_readable":
        entered, left = by_array.unset(eligibility.READABLE, slots)
        assert one.unset_readable(slot) is (len(left) == 1)
        assert not len(entered)
    else:
        assert one.forget_one(slot) is (len(by_array.forget(slots)) == 1)
    assert_same(one, by_array)


def with_facts(facts: list[int]) -> eligibility.Eligibility:
    """Return the facts of each slot, as they were said one after another."""
    eligible = eligibility.Eligibility(len(facts))
    for slot, of_slot in enumerate(facts):
        for fact in FACTS:
            if of_slot & fact:
                eligible.set(fact, np.array([slot]))
    return eligible


def assert_same(one: eligibility.Eligibility, other: eligibility.Eligibility) -> None:
    assert len(one) == len(other)
    assert one._facts.tolist() == other._facts.tolist()
    one.check()
    other.check()


@hypothesis.given(strategies.data(), strategies.integers(1, 9))
def test_all_side_by_side_are_asked_as_each_is(data: strategies.DataObject, capacity: int) -> None:
    facts = data.draw(strategies.lists(strategies.sampled_from([0, 1, 1, 5]), min_size=capacity, max_size=capacity))
    eligible = with_facts(facts)
    count = data.draw(strategies.integers(1, capacity))
    first = data.draw(strategies.integers(0, capacity - count))
    for asked in (0, 1, 4, 5):
        assert eligible.all_are(asked, first, count) is all(f == asked for f in facts[first : first + count])


@pytest.mark.parametrize("call", ["enter", "leave"])
@hypothesis.given(strategies.data(), strategies.integers(1, 9))
def test_those_side_by_side_enter_and_leave_as_arrays_of_them_do(
    call: str, data: strategies.DataObject, capacity: int
) -> None:
    count = data.draw(strategies.integers(1, capacity))
    first = data.draw(strategies.integers(0, capacity - count))
    facts = data.draw(strategies.lists(strategies.integers(0, 7), min_size=capacity, max_size=capacity))
    facts[first : first + count] = [0 if call == "enter" else eligibility.READABLE] * count
    quick, by_array = with_facts(facts), with_facts(facts)
    if call == "enter":
        quick.enter(first, count)
        by_array.set(eligibility.READABLE, np.arange(first, first + count))
    else:
        quick.leave(first, count)
        by_array.forget(np.arange(first, first + count))
    assert_same(quick, by_array)


def test_a_copy_hears_by_itself() -> None:
    eligible = with_facts([1, 0, 0])
    other = copy.deepcopy(eligible)
    other.set_readable(1)
    assert eligible.slots().tolist() == [0]
    assert other.slots().tolist() == [0, 1]
    other.check()
