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
    strategies.booleans(),
    strategies.sampled_from(FLAGS),
    strategies.sets(strategies.integers(0, 5)),
    strategies.booleans(),
)


def made(capacity: int, num_changes: int = 0) -> anchors_lib.Anchors:
    """Return the anchors of a full ring, none of which is readable; so many changes are noted one by one."""
    num = np.zeros(append.PAD + 1, np.int64)
    num[append.NEXT_KEY] = num[append.ROWS] = capacity
    rows = np.full(capacity, OTHERS, np.uint8), np.zeros(num_changes, np.int64), num
    return anchors_lib.Anchors(rows, lambda slots, fields=None: {})


# As many as before are eligible, and others.
@hypothesis.example([(True, FLAGS[0], {0}, True), (False, FLAGS[0], {0}, False), (True, FLAGS[0], {1}, True)], 0)
@hypothesis.given(strategies.lists(STEP), strategies.sampled_from([0, 1, 4, 99]))
def test_flags_and_changes_equal_those_of_naive_sets(steps: list[tuple[bool, int, set[int], bool]], room: int) -> None:
    anchors = made(6, room)
    fresh: set[int] = set()
    twin: dict[int, set[int]] = {flag: set() for flag in FLAGS}

    def drawable() -> set[int]:
        return twin[append.READABLE] - twin[append.BARRED] - twin[append.SPENT]

    for is_set, flag, chosen, is_listed in steps:
        before = drawable()
        slots = np.array(sorted(chosen), np.int64)
        anchors.set(flag, slots, is_set)
        twin[flag] = twin[flag] | chosen if is_set else twin[flag] - chosen
        changed = before ^ drawable()
        fresh |= drawable() - before if room else set()
        if not room or len(changed) <= room:
            assert set(anchors.changes().tolist()) == (changed if room else set())
        else:
            assert anchors.changes().tolist() == list(range(6)), "any may have changed"
        anchors.forget_changes()
        assert anchors.changes().tolist() == []
        assert anchors.slots().tolist() == sorted(drawable())
        if is_listed:
            assert anchors.listed().tolist() == sorted(drawable())
        assert len(anchors) == len(drawable())
        everywhere = np.arange(6)
        assert anchors.is_eligible(everywhere).tolist() == [slot in drawable() for slot in range(6)]
        for each in FLAGS:
            assert anchors.has(each, everywhere).tolist() == [slot in twin[each] for slot in range(6)]
        marks = [OTHERS | append.FRESH if slot in fresh else OTHERS for slot in range(6)]
        assert (anchors.flags & ~np.uint8(append.ELIGIBILITY)).tolist() == marks
        anchors.check()


@pytest.mark.parametrize(
    ("slots", "changes"),
    [
        ([0, 1, 2], {append.ELIGIBLE: 1}),
        ([0, 2], {append.NEXT_KEY: 1}),
        ([0], {append.ROWS: -1, append.ELIGIBLE: -1}),
        ([0, 2], {append.ROWS: -1}),
    ],
    ids=["becomes eligible", "comes", "goes", "goes and becomes eligible"],
)
def test_the_list_of_anchors_is_new_after_a_write(slots: list[int], changes: dict[int, int]) -> None:
    """P118: whatever a kernel does to rows, where `set` is not called."""
    anchors = made(3)
    anchors.set(append.READABLE, np.array([0, 1]))
    listed = anchors.listed()
    assert anchors.listed() is listed
    anchors.flags[:] = [OTHERS | append.READABLE if slot in slots else OTHERS for slot in range(3)]
    for number, change in changes.items():
        anchors.num[number] += change
    assert anchors.listed().tolist() == slots


def test_check_finds_a_wrong_count() -> None:
    anchors = made(3)
    anchors.set(append.READABLE, np.array([0, 1]))
    anchors.flags[0] = 0
    with pytest.raises(errors.CorruptionError, match="^2 anchors are counted as eligible, which is wrong$"):
        anchors.check()


@pytest.mark.parametrize("room", [1, 4])
def test_all_anchors_are_suspected_until_changes_are_forgotten(room: int) -> None:
    anchors = made(6, room)
    anchors.suspect_all()
    assert anchors.changes().tolist() == list(range(6))
    anchors.forget_changes()
    assert anchors.changes().tolist() == []
