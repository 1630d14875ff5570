import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from relive import eligibility
from relive import errors

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
