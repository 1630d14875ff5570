import copy

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from relive import errors
from relive.kernels import append
from relive.samplers import anchors as anchors_lib

FLAGS = (append.READABLE, append.BARRED, append.SPENT)
OTHERS = append.COMPLETE | append.TERMINAL
STEP = strategies.tuples(
    strategies.sampled_from(["set", "unset"]),
    strategies.sampled_from(FLAGS),
    strategies.sets(strategies.integers(0, 5)),
)


def made(capacity: int) -> anchors_lib.Anchors:
    """Return the anchors of a full ring, none of which is readable."""
    num = np.zeros(8, np.int64)
    num[append.NEXT_KEY] = num[append.ROWS] = capacity
    return anchors_lib.Anchors(np.full(capacity, append.NO_LINK | OTHERS), num, lambda slots, fields=None: {})


@hypothesis.given(strategies.lists(STEP))
def test_flags_and_changes_equal_those_of_naive_sets(steps: list[tuple[str, int, set[int]]]) -> None:
    anchors = made(6)
    twin: dict[int, set[int]] = {flag: set() for flag in FLAGS}

    def drawable() -> set[int]:
        return twin[append.READABLE] - twin[append.BARRED] - twin[append.SPENT]

    for change, flag, chosen in steps:
        before = drawable()
        slots = np.array(sorted(chosen), np.int64)
        if change == "set":
            entered, left = anchors.set(flag, slots)
            twin[flag] |= chosen
        else:
            entered, left = anchors.unset(flag, slots)
            twin[flag] -= chosen
        assert set(entered.tolist()) == drawable() - before
        assert set(left.tolist()) == before - drawable()
        assert anchors.slots().tolist() == anchors.listed().tolist() == sorted(drawable())
        assert len(anchors) == len(drawable())
        everywhere = np.arange(6)
        assert anchors.is_eligible(everywhere).tolist() == [slot in drawable() for slot in range(6)]
        for each in FLAGS:
            assert anchors.has(each, everywhere).tolist() == [slot in twin[each] for slot in range(6)]
        assert (anchors.facts & ~append.ELIGIBILITY == append.NO_LINK | OTHERS).all()
        anchors.check()


def test_the_list_of_anchors_is_new_after_a_write() -> None:
    anchors = made(3)
    anchors.set(append.READABLE, np.array([0, 1]))
    listed = anchors.listed()
    assert anchors.listed() is listed
    anchors.facts[2] |= append.READABLE
    anchors.num[append.ELIGIBLE] += 1
    anchors.num[append.NEXT_KEY] += 1
    assert anchors.listed().tolist() == [0, 1, 2]


def test_check_finds_a_wrong_count() -> None:
    anchors = made(3)
    anchors.set(append.READABLE, np.array([0, 1]))
    anchors.facts[0] = 0
    with pytest.raises(errors.CorruptionError, match="^2 anchors are counted as eligible, which is wrong$"):
        anchors.check()


def test_a_copy_changes_by_itself() -> None:
    anchors = made(3)
    anchors.set(append.READABLE, np.array([0]))
    other = copy.deepcopy(anchors)
    other.set(append.READABLE, np.array([1]))
    assert anchors.slots().tolist() == [0]
    assert other.slots().tolist() == [0, 1]
    other.check()
