from typing import Any

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st
import numpy as np
import numpy.typing as npt
import pytest

from relive import errors
from relive import testing
from relive.kernels import index_set

Ints = npt.NDArray[np.int64]


def ints(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def in_arrays(capacity: int, *numbers: int) -> index_set.IndexSet:
    """Return a set whose numbers came out of order: the last one first, twice."""
    slots = index_set.IndexSet(capacity)
    slots.add(ints(*reversed(numbers)))
    slots.remove(ints(numbers[0], numbers[-1]))
    slots.add(ints(numbers[0], numbers[-1]))
    assert slots._arrays is not None
    return slots


class IndexSetMachine(stateful.RuleBasedStateMachine):
    """A set of numbers beside Python's own, driven as a ring or in any order."""

    @stateful.initialize(capacity=st.integers(1, 40))
    def start(self, capacity: int) -> None:
        self.slots = index_set.IndexSet(capacity)
        self.naive: set[int] = set()
        self.is_ring = True
        self.oldest = self.newest = 0

    def out(self) -> list[int]:
        return sorted(set(range(self.slots.capacity)) - self.naive)

    def follow(self, first: int, count: int) -> list[int]:
        return [(first + step) % self.slots.capacity for step in range(count)]

    @stateful.precondition(lambda self: self.is_ring)
    @stateful.rule(chosen=st.data())
    def add_behind_the_newest(self, chosen: st.DataObject) -> None:
        numbers = self.follow(self.newest, chosen.draw(st.integers(0, len(self.out()))))
        self.slots.add(ints(*numbers))
        self.naive.update(numbers)
        self.newest = (self.newest + len(numbers)) % self.slots.capacity

    @stateful.precondition(lambda self: self.is_ring)
    @stateful.rule(chosen=st.data())
    def remove_from_the_oldest_on(self, chosen: st.DataObject) -> None:
        numbers = self.follow(self.oldest, chosen.draw(st.integers(0, len(self.naive))))
        self.slots.remove(ints(*numbers))
        self.naive.difference_update(numbers)
        self.oldest = (self.oldest + len(numbers)) % self.slots.capacity

    @stateful.precondition(lambda self: self.is_ring and len(self.naive) < self.slots.capacity)
    @stateful.rule()
    def add_the_next_one(self) -> None:
        self.slots.add_one(self.newest)
        self.naive.add(self.newest)
        self.newest = (self.newest + 1) % self.slots.capacity

    @stateful.precondition(lambda self: self.is_ring and self.naive)
    @stateful.rule()
    def remove_the_oldest_one(self) -> None:
        self.slots.remove_one(self.oldest)
        self.naive.remove(self.oldest)
        self.oldest = (self.oldest + 1) % self.slots.capacity

    @stateful.precondition(lambda self: self.is_ring and self.naive)
    @stateful.rule(chosen=st.data())
    def turn_the_ring(self, chosen: st.DataObject) -> None:
        count = chosen.draw(st.integers(1, len(self.naive)))
        lost, come = self.follow(self.oldest, count), self.follow(self.newest, count)
        assert self.slots.turn(lost[0], come[0], count)
        self.naive.difference_update(lost)
        self.naive.update(come)
        self.oldest = (self.oldest + count) % self.slots.capacity
        self.newest = (self.newest + count) % self.slots.capacity

    @stateful.precondition(lambda self: self.naive and not (self.is_ring and len(self.out()) == 0))
    @stateful.rule(chosen=st.data())
    def turn_what_is_no_ring(self, chosen: st.DataObject) -> None:
        """Nothing has changed: the contents are compared after it as after any other call."""
        lost, come = chosen.draw(st.sampled_from(sorted(self.naive))), chosen.draw(st.sampled_from(self.out() or [0]))
        is_interval = self.slots._arrays is None and (lost, come) == (self.slots._first, self.behind())
        assert is_interval or not self.slots.turn(lost, come, 1)

    def behind(self) -> int:
        return (self.slots._first + len(self.naive)) % self.slots.capacity

    @stateful.precondition(lambda self: self.out())
    @stateful.rule(chosen=st.data())
    def add_any_one(self, chosen: st.DataObject) -> None:
        number = chosen.draw(st.sampled_from(self.out()))
        self.slots.add_one(number)
        self.naive.add(number)
        self.is_ring = False

    @stateful.precondition(lambda self: self.naive)
    @stateful.rule(chosen=st.data())
    def remove_any_one(self, chosen: st.DataObject) -> None:
        number = chosen.draw(st.sampled_from(sorted(self.naive)))
        self.slots.remove_one(number)
        self.naive.remove(number)
        self.is_ring = False

    @stateful.rule(chosen=st.data())
    def add_any(self, chosen: st.DataObject) -> None:
        numbers = chosen.draw(st.permutations(self.out()))
        numbers = numbers[: chosen.draw(st.integers(0, len(numbers)))]
        self.slots.add(ints(*numbers))
        self.naive.update(numbers)
        self.is_ring = False

    @stateful.rule(chosen=st.data())
    def remove_any(self, chosen: st.DataObject) -> None:
        numbers = chosen.draw(st.permutations(sorted(self.naive)))
        numbers = numbers[: chosen.draw(st.integers(0, len(numbers)))]
        self.slots.remove(ints(*numbers))
        self.naive.difference_update(numbers)
        self.is_ring = False

    @stateful.precondition(lambda self: self.naive)
    @stateful.rule(chosen=st.data())
    def be_refused(self, chosen: st.DataObject) -> None:
        others = self.out()[:3]
        number = chosen.draw(st.sampled_from(sorted(self.naive)))
        for wrong in ([*others, number], [number, *others], [-1], [*others, self.slots.capacity]):
            with pytest.raises(errors.ArgumentError):
                self.slots.add(ints(*wrong))
        for wrong in ([number, number], [-1], [number, self.slots.capacity], *([number, other] for other in others)):
            with pytest.raises(errors.ArgumentError):
                self.slots.remove(ints(*wrong))
        for wrong_one in (number, -1, self.slots.capacity):
            with pytest.raises(errors.ArgumentError):
                self.slots.add_one(wrong_one)
        for wrong_one in (*others, -1, self.slots.capacity):
            with pytest.raises(errors.ArgumentError):
                self.slots.remove_one(wrong_one)

    @stateful.rule()
    def clear(self) -> None:
        self.slots.clear()
        assert self.slots._arrays is None
        self.naive.clear()
        self.is_ring = True
        self.oldest = self.newest = 0

    @stateful.invariant()
    def contents_are_equal(self) -> None:
        numbers = self.slots.numbers()
        assert numbers.dtype == np.int64
        assert sorted(numbers.tolist()) == sorted(self.naive)
        assert len(self.slots) == len(self.naive)
        everything = np.arange(self.slots.capacity)
        assert self.slots.contains(everything).tolist() == [number in self.naive for number in everything.tolist()]

    @stateful.invariant()
    def a_ring_has_no_arrays(self) -> None:
        assert not self.is_ring or self.slots._arrays is None

    @stateful.invariant()
    def every_draw_is_in(self) -> None:
        if self.naive:
            drawn = self.slots.sample(20, np.random.default_rng(0))
            assert drawn.dtype == np.int64
            assert set(drawn.tolist()) <= self.naive

    @stateful.invariant()
    def the_audit_passes(self) -> None:
        self.slots.check()


IndexSetMachine.TestCase.settings = hypothesis.settings(stateful_step_count=20)
TestIndexSet = IndexSetMachine.TestCase


def test_a_ring_needs_no_arrays() -> None:
    slots = index_set.IndexSet(10)
    slots.add(np.arange(4))
    for step in range(4, 100, 2):
        slots.add(np.arange(step, step + 2) % 10)
        slots.remove(np.arange(step - 4, step - 2) % 10)
        assert slots.numbers().tolist() == [number % 10 for number in range(step - 2, step + 2)]
    assert slots._arrays is None


def test_a_full_ring_goes_round_without_arrays() -> None:
    slots = index_set.IndexSet(3)
    slots.add(ints(2, 0, 1))
    for step in range(2, 50):
        slots.remove(ints(step % 3))
        slots.add(ints(step % 3))
    slots.remove(slots.numbers())
    slots.add(ints(1))
    assert slots.numbers().tolist() == [1]
    assert slots._arrays is None


def test_a_full_ring_goes_round_one_by_one_without_arrays() -> None:
    slots = index_set.IndexSet(3)
    for number in (2, 0, 1):
        slots.add_one(number)
    for step in range(2, 20):
        slots.remove_one(step % 3)
        slots.check()
        assert slots.numbers().tolist() == [(step + 1) % 3, (step + 2) % 3]
        slots.add_one(step % 3)
        slots.check()
    assert slots._arrays is None


def test_one_number_that_cannot_come_or_leave_is_refused_as_many_are() -> None:
    slots = index_set.IndexSet(3)
    for number in (-1, 3):
        with pytest.raises(errors.OutOfRangeError, match=f"got {number} in row 0$"):
            slots.add_one(number)
    with pytest.raises(errors.ArgumentError, match="^numbers must be in the set, got 0 in row 0$"):
        slots.remove_one(0)
    slots.add(np.arange(3))
    with pytest.raises(errors.ArgumentError, match="^numbers must not be in the set, got 0 in row 0$"):
        slots.add_one(0)
    assert len(slots) == 3
    slots.check()


def test_a_turn_of_a_ring_is_none_unless_the_oldest_leave_and_the_next_come() -> None:
    for lost, first in [(3, 6), (2, 5), (2, 7), (1, 6)]:
        slots = index_set.IndexSet(8)
        slots.add(ints(2, 3, 4, 5))
        assert not slots.turn(lost, first, 1)
        assert slots.numbers().tolist() == [2, 3, 4, 5]
    assert slots.turn(2, 6, 3)
    assert slots.numbers().tolist() == [5, 6, 7, 0]
    arrays = in_arrays(8, 2, 3, 4)
    assert not arrays.turn(2, 5, 1)
    assert sorted(arrays.numbers().tolist()) == [2, 3, 4]


@pytest.mark.parametrize("call", ["add behind a gap", "add in front", "add backwards", "remove the newest"])
def test_the_first_call_out_of_order_makes_arrays(call: str) -> None:
    slots = index_set.IndexSet(8)
    slots.add(ints(6, 7, 0))
    expected = {0, 6, 7}
    if call == "remove the newest":
        slots.remove(ints(0))
        expected.remove(0)
    else:
        numbers = {"add behind a gap": [2], "add in front": [5], "add backwards": [2, 1]}[call]
        slots.add(ints(*numbers))
        expected.update(numbers)
    assert slots._arrays is not None
    assert set(slots.numbers().tolist()) == expected
    slots.remove(slots.numbers())
    slots.add(ints(0))
    assert slots._arrays is not None
    slots.clear()
    assert slots._arrays is None


def test_draws_are_the_same_from_an_interval_and_from_its_arrays() -> None:
    interval, arrays = index_set.IndexSet(9), index_set.IndexSet(9)
    for slots in (interval, arrays):
        slots.add(ints(7, 8, 0, 1, 2))
    arrays.add(ints(5))
    arrays.remove(ints(5))
    assert (interval._arrays is None, arrays._arrays is None) == (True, False)
    drawn = [slots.sample(100, np.random.default_rng(1)).tolist() for slots in (interval, arrays)]
    assert drawn[0] == drawn[1]
    assert interval.numbers().tolist() == arrays.numbers().tolist() == [7, 8, 0, 1, 2]


def test_those_that_would_move_may_leave_themselves() -> None:
    """Of 0 .. 9 the last five stand where numbers are about to leave; three of them leave as well."""
    slots = index_set.IndexSet(10)
    slots.add(np.arange(10))
    slots.remove(ints(9, 0, 7, 3, 8))
    assert set(slots.numbers().tolist()) == {1, 2, 4, 5, 6}
    slots.check()


@pytest.mark.parametrize("numbers", [[3], [4, 1], [8, 9, 0, 1], list(range(10))])
@pytest.mark.parametrize("as_arrays", [False, True])
def test_every_number_is_drawn_equally_often(as_arrays: bool, numbers: list[int]) -> None:
    slots = in_arrays(10, *numbers) if as_arrays and len(numbers) > 1 else index_set.IndexSet(10)
    slots.add(ints(*set(numbers) - set(slots.numbers().tolist())))
    drawn = np.bincount(slots.sample(2000, np.random.default_rng(2)), minlength=10)
    testing.assert_frequencies(drawn.tolist(), [(number in numbers) / len(numbers) for number in range(10)])


def test_what_is_answered_is_a_copy() -> None:
    for slots in (index_set.IndexSet(4), in_arrays(4, 0, 1)):
        slots.clear()
        slots.add(ints(2, 1))
        slots.numbers()[:] = 0
        slots.check()
        assert set(slots.numbers().tolist()) == {1, 2}


def test_what_is_added_is_copied() -> None:
    slots, numbers = index_set.IndexSet(4), ints(2, 1)
    slots.add(numbers)
    numbers[:] = 0
    assert set(slots.numbers().tolist()) == {1, 2}


@pytest.mark.parametrize(("capacity", "dtype"), [(5, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)])
def test_arrays_are_no_wider_than_the_numbers_need(capacity: int, dtype: Any) -> None:
    assert index_set._dtype_for(capacity) == dtype


def test_a_set_of_more_numbers_than_int32_holds_is_an_interval_like_any() -> None:
    slots = index_set.IndexSet(2**40)
    slots.add(np.arange(2**40 - 2, 2**40))
    slots.add(ints(0))
    assert slots.numbers().tolist() == [2**40 - 2, 2**40 - 1, 0]
    assert slots.contains(ints(2**40 - 3, 2**40 - 1, 1)).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("call", "numbers", "error", "message"),
    [
        ("add", [4, 3], errors.ArgumentError, "numbers must not be in the set, got 3 in row 1"),
        ("add", [6, 4, 6], errors.ArgumentError, r"numbers must be distinct, got array\(\[6, 4, 6\]\)"),
        ("remove", [3, 4], errors.ArgumentError, "numbers must be in the set, got 4 in row 1"),
        ("remove", [2, 1, 2], errors.ArgumentError, r"numbers must be distinct, got array\(\[2, 1, 2\]\)"),
        ("add", [4, 8], errors.OutOfRangeError, r"numbers must be in \[0, 8\), got 8 in row 1"),
        ("remove", [0, 1, -1], errors.OutOfRangeError, r"numbers must be in \[0, 8\), got -1 in row 2"),
        ("contains", [8, 1], errors.OutOfRangeError, r"numbers must be in \[0, 8\), got 8 in row 0"),
    ],
)
@pytest.mark.parametrize("as_arrays", [False, True])
def test_a_refused_call_changes_nothing(
    as_arrays: bool, call: str, numbers: list[int], error: type[Exception], message: str
) -> None:
    if as_arrays:
        slots = in_arrays(8, 1, 2, 3)
    else:
        slots = index_set.IndexSet(8)
        slots.add(ints(1, 2, 3))
    before = slots.numbers().tolist()
    with pytest.raises(error, match=f"^{message}$"):
        getattr(slots, call)(ints(*numbers))
    assert slots.numbers().tolist() == before
    slots.check()


def test_more_than_there_is_cannot_leave_nor_come() -> None:
    slots = index_set.IndexSet(4)
    slots.add(ints(1, 2, 3))
    with pytest.raises(errors.ArgumentError, match="^numbers must be in the set, got 0 in row 3$"):
        slots.remove(ints(1, 2, 3, 0))
    slots.clear()
    slots.add(ints(1, 2, 3))
    with pytest.raises(errors.ArgumentError, match="^numbers must not be in the set, got 1 in row 1$"):
        slots.add(ints(0, 1))


def test_an_empty_set_has_nothing_to_draw() -> None:
    slots = index_set.IndexSet(4)
    assert slots.contains(np.arange(4)).tolist() == [False] * 4
    rng = np.random.default_rng(0)
    with pytest.raises(errors.NotReadyError, match="^sample found nothing in the set: add numbers first$"):
        slots.sample(1, rng)
    slots.add(ints(1))
    with pytest.raises(errors.ArgumentError, match="^size must be at least 1, got 0$"):
        slots.sample(0, rng)
    with pytest.raises(errors.ArgumentError, match="^capacity must be at least 1, got 0$"):
        index_set.IndexSet(0)


def test_the_audit_says_what_is_wrong() -> None:
    slots = index_set.IndexSet(4)
    for first, count in [(0, 5), (0, -1), (4, 1), (-1, 1)]:
        slots._first, slots._count = first, count
        message = f"a set of 4 numbers must be at most that many from one of them on, found {count} from {first} on"
        with pytest.raises(errors.CorruptionError, match=f"^{message}$"):
            slots.check()

    slots = in_arrays(4, 0, 1, 2)
    assert slots._arrays is not None
    slots._arrays.positions[slots._arrays.numbers[1]] = 4
    with pytest.raises(errors.CorruptionError, match=r"^number \d must stand at 1, found it at 3$"):
        slots.check()

    slots = in_arrays(4, 0, 1, 2)
    assert slots._arrays is not None
    slots._arrays.positions[3] = 1
    with pytest.raises(errors.CorruptionError, match="^a set must have as many positions as numbers, 3, found 4$"):
        slots.check()


@hypothesis.given(numbers=st.permutations(range(5)), count=st.integers(0, 5), is_interval=st.booleans())
def test_what_is_restored_stands_as_it_stood(numbers: list[int], count: int, is_interval: bool) -> None:
    if is_interval:
        numbers = [(numbers[0] + rank) % 5 for rank in range(count)]
    slots = index_set.IndexSet(5)
    slots.add(np.array([4, 1]))
    slots.restore(np.array(numbers[:count], np.int64), is_interval)
    slots.check()
    assert slots.is_interval is is_interval
    assert slots.numbers().tolist() == numbers[:count]
    again = index_set.IndexSet(5)
    again.restore(slots.numbers(), slots.is_interval)
    for number in numbers[:count][::2]:
        slots.remove(np.array([number]))
        again.remove(np.array([number]))
        assert slots.numbers().tolist() == again.numbers().tolist()


def test_what_cannot_be_restored_leaves_nothing() -> None:
    for numbers, error in (([1, 5], errors.OutOfRangeError), ([2, 2], errors.ArgumentError)):
        slots = index_set.IndexSet(5)
        slots.add(np.array([0]))
        with pytest.raises(error):
            slots.restore(np.array(numbers), False)
        assert len(slots) == 0
        slots.check()
