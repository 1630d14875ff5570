from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive.kernels import drawn_rows
from relive.persistence import state


class Naive:
    """Rows by key, and all their draws."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.next_key = capacity, 0
        self.drawn: set[int] = set()
        self.keys: list[int] = []
        self.ages: list[int] = []

    def draw(self, keys: list[int]) -> None:
        self.drawn.update(keys)
        self.keys += keys
        self.ages += [self.next_key - 1 - key for key in keys]

    @property
    def alive(self) -> range:
        return range(max(self.next_key - self.capacity, 0), self.next_key)


def assert_same(rows: drawn_rows.DrawnRows, naive: Naive) -> None:
    rows.flush(naive.next_key)
    slots = np.array([key % naive.capacity for key in naive.alive], np.int64)
    expected = [key in naive.drawn for key in naive.alive]
    assert rows.has(slots).tolist() == expected
    mask = np.zeros(naive.capacity, np.bool_)
    mask[slots] = True
    assert rows.num_missing(mask) == expected.count(False)
    mask[slots[::2]] = False
    assert rows.num_missing(mask) == expected[1::2].count(False)
    assert rows.last_keys.tolist() == naive.keys[-drawn_rows.LAST :]
    assert rows.last_ages.tolist() == naive.ages[-drawn_rows.LAST :]


@hypothesis.given(st.integers(1, 70), st.randoms(use_true_random=False), st.sampled_from([3, 40, 2_048]))
def test_the_rows_drawn_are_those_of_a_list_of_all_draws(capacity: int, rng: Any, room: int) -> None:
    """Rows come and go between draws; now and then all is settled, saved and restored."""
    rows, naive = drawn_rows.DrawnRows(capacity), Naive(capacity)
    rows._room = room
    for _ in range(40):
        action = rng.randrange(8)
        if action < 3:
            naive.next_key += rng.choice([1, 1, 2, 9, capacity, 3 * capacity])
        elif action < 6 and naive.next_key:
            newest = naive.alive[-rng.choice([1, 3, capacity]) :]
            keys = rng.choices(newest, k=rng.choice([1, 2, 5]))
            rows.record(np.array(keys) % capacity, naive.next_key)
            naive.draw(keys)
        elif action == 6:
            assert_same(rows, naive)
        else:
            assert_same(rows, naive)
            slots = np.array([key % capacity for key in naive.alive if key in naive.drawn], np.int64)
            rows.restore(slots, naive.next_key, rows.last_keys, rows.last_ages)
    assert_same(rows, naive)


@pytest.mark.parametrize("capacity", [1, 7, 8, 9, 64, 1000, 100_000])
def test_many_draws_are_settled_on_the_way(capacity: int) -> None:
    rng, naive = np.random.default_rng(capacity), Naive(capacity)
    rows = drawn_rows.DrawnRows(capacity)
    naive.next_key = 3 * capacity // 2 + 1
    for size in (1, 300, 700, 1_500, 20_000, 5, 40_000, 60):
        keys = rng.integers(naive.alive[0], naive.next_key, size)
        rows.record(keys % capacity, naive.next_key)
        naive.draw(keys.tolist())
        naive.next_key += size % 11
    assert_same(rows, naive)


@pytest.mark.parametrize("size", [255, 256, 257, 5_000])
def test_of_one_large_draw_the_last_rows_are_known(size: int) -> None:
    rows, naive = drawn_rows.DrawnRows(10_000), Naive(10_000)
    naive.next_key = 12_345
    keys = np.random.default_rng(size).integers(naive.alive[0], naive.next_key, size)
    rows.record(keys % 10_000, naive.next_key)
    naive.draw(keys.tolist())
    assert_same(rows, naive)


def test_no_draw_is_known_after_clear() -> None:
    rows = drawn_rows.DrawnRows(10)
    rows.record(np.array([1, 2]), 5)
    rows.flush(5)
    rows.record(np.array([3]), 5)
    rows.clear()
    rows.flush(5)
    assert not rows.has(np.arange(10)).any()
    assert rows.last_keys.tolist() == rows.last_ages.tolist() == []


def test_what_was_drawn_may_be_changed_afterwards() -> None:
    rows, slots = drawn_rows.DrawnRows(10), np.array([1, 2])
    rows.record(slots, 5)
    slots[:] = 3
    rows.flush(5)
    assert np.flatnonzero(rows.has(np.arange(10))).tolist() == [1, 2]
    answer = rows.last()
    answer["draw_key"][:] = answer["draw_age"][:] = 0
    assert (rows.last_keys.tolist(), rows.last_ages.tolist()) == ([1, 2], [3, 2])


def given(keys: Any, ages: Any) -> state.StateReader:
    return state.StateReader({}, {"draw_key": np.array(keys, np.int64), "draw_age": np.array(ages, np.int64)})


def test_last_draws_are_taken_as_they_were() -> None:
    keys, ages = drawn_rows.checked_last(given([4, 0, 4], [0, 3, 0]), 5)
    assert (keys.tolist(), ages.tolist()) == ([4, 0, 4], [0, 3, 0])
    assert len(drawn_rows.checked_last(given([], []), 0)[0]) == 0
    assert len(drawn_rows.checked_last(given([0] * 256, [0] * 256), 1)[0]) == 256


@pytest.mark.parametrize(
    ("keys", "ages", "rule"),
    [
        ([5], [0], r"draw_key must hold integers in \[0, 4\], got 5"),
        ([-1], [0], r"draw_key must hold integers in \[0, 4\], got -1"),
        ([0], [5], r"draw_age must hold integers in \[0, 4\], got 5"),
        ([2], [3], "draw_age must hold how many rows had come behind each of draw_key"),
        ([0], [0, 0], r"draw_age must be of dtype int64 and shape \(1\), got int64 and \(2,\)"),
        ([0] * 257, [0] * 257, "draw_key must hold at most 256 keys, got 257"),
    ],
)
def test_last_draws_that_cannot_have_been_are_refused(keys: list[int], ages: list[int], rule: str) -> None:
    with pytest.raises(errors.CheckpointError, match=f"^array {rule}$"):
        drawn_rows.checked_last(given(keys, ages), 5)
