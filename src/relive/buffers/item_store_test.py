from typing import Any
import weakref

import numpy as np
import pytest

from relive import errors
from relive.buffers import item_store

Store = item_store.Rows | item_store.Fragments


def add(store: Store, start: int, *lengths: int) -> int:
    """Add items whose rows count on from `start`; return how many items left."""
    rows = np.arange(start, start + sum(lengths))
    return store.add({"a": rows, "b": np.stack([rows, -rows], axis=1)}, np.array(lengths))


def contents(store: Store) -> list[list[int]]:
    columns = [store.read(np.array([place]))[0] for place in range(store.items)]
    for column in columns:
        assert column["b"].tolist() == [[row, -row] for row in column["a"].tolist()]
    return [column["a"].tolist() for column in columns]


def test_an_item_may_run_over_the_end_of_the_ring() -> None:
    rows = item_store.Rows(8)
    assert add(rows, 0, 3, 2, 1) == 0
    assert add(rows, 6, 4) == 1
    assert contents(rows) == [[3, 4], [5], [6, 7, 8, 9]]
    assert rows._starts[:4].tolist() == [0, 3, 5, 6]
    rows.check()
    assert rows._cursor == 2
    columns, lengths = rows.read(np.array([2, 0, 2]))
    assert columns["a"].tolist() == [6, 7, 8, 9, 3, 4, 6, 7, 8, 9]
    assert lengths.tolist() == [4, 2, 4]


@pytest.mark.parametrize("lengths", [[8], [1] * 8, [3, 5]])
def test_a_batch_may_fill_the_whole_ring_from_any_slot(lengths: list[int]) -> None:
    for offset in range(9):
        rows = item_store.Rows(8)
        for start in range(offset):
            add(rows, start, 1)
        assert add(rows, 100, *lengths) == min(offset, 8)
        ends = np.cumsum(lengths).tolist()
        assert contents(rows) == [
            list(range(100 + end - length, 100 + end)) for end, length in zip(ends, lengths, strict=True)
        ]
        rows.check()


def test_no_more_leave_than_must() -> None:
    for kind in (item_store.Rows, item_store.Fragments):
        store = kind(10)
        for start, length in [(0, 1), (1, 2), (3, 3), (6, 2), (8, 2)]:
            assert add(store, start, length) == 0
        assert add(store, 10, 5) == 3
        assert contents(store) == [[6, 7], [8, 9], [10, 11, 12, 13, 14]]
        assert add(store, 15, 1) == 0
        assert add(store, 16, 1) == 1
        assert store.timesteps == 9


def test_the_ring_is_allocated_once_and_keeps_nothing_that_was_added() -> None:
    rows = item_store.Rows(100)
    add(rows, 0, 1)
    allocated = [*rows._columns.values(), rows._starts, rows._lengths]
    for start in range(1, 2000):
        add(rows, start, 1 + start % 7)
    after = [*rows._columns.values(), rows._starts, rows._lengths]
    assert all(one is other for one, other in zip(allocated, after, strict=True))
    batch = np.arange(5)
    gone = weakref.ref(batch)
    rows.add({"a": batch, "b": np.zeros((5, 2), np.int64)}, np.array([5]))
    del batch
    assert gone() is None


def test_a_fragment_that_leaves_is_freed() -> None:
    fragments = item_store.Fragments(4)
    add(fragments, 0, 3)
    gone = weakref.ref(fragments._deque[0]["a"])
    add(fragments, 3, 3)
    assert gone() is None
    assert fragments.bytes == 3 * 3 * 8


def test_a_fragment_does_not_keep_the_batch_that_it_is_a_view_of() -> None:
    fragments = item_store.Fragments(4)
    batch = np.arange(1000)
    gone = weakref.ref(batch)
    fragments.add({"a": batch[:2]}, np.array([2]))
    del batch
    assert gone() is None


def test_numbers_of_items_are_64_bit() -> None:
    rows = item_store.Rows(7)
    rows._oldest = rows._next = 2**31 - 2
    for start in range(0, 30, 2):
        add(rows, start, 2)
    assert contents(rows) == [[24, 25], [26, 27], [28, 29]]
    rows.check()


def set_(entries: Any, place: int, value: int) -> int:
    entries[place] = value
    return value


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda rows: set_(rows._lengths, 1, 3), "^the items have 7 time steps, counted as 6$"),
        (lambda rows: setattr(rows, "timesteps", 5), "^the items have 6 time steps, counted as 5$"),
        (lambda rows: (set_(rows._lengths, 1, 0), set_(rows._lengths, 2, 3)), "^an item must have at least one"),
        (lambda rows: setattr(rows, "_capacity", 5), "^the items have 6 time steps, above the capacity of 5$"),
        (lambda rows: set_(rows._starts, 1, 4), "^the rows of an item must end where those of the next one start$"),
        (lambda rows: set_(rows._starts, 0, 1), "^the rows of an item must end where"),
        (lambda rows: setattr(rows, "_cursor", 7), "^the rows of an item must end where"),
    ],
)
def test_a_damaged_ring_is_found_out(damage: Any, text: str) -> None:
    rows = item_store.Rows(8)
    rows.check()
    add(rows, 0, 3, 2, 1)
    rows.check()
    damage(rows)
    with pytest.raises(errors.CorruptionError, match=text):
        rows.check()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda fragments: fragments._deque[0].update(a=np.arange(4)), "^the items have 6 time steps, counted as 5$"),
        (lambda fragments: fragments._deque[0].update(c=np.arange(1)), "^the items have 128 bytes, counted as 120$"),
        (
            lambda fragments: setattr(fragments, "_capacity", 4),
            "^the items have 5 time steps, above the capacity of 4$",
        ),
    ],
)
def test_damaged_fragments_are_found_out(damage: Any, text: str) -> None:
    fragments = item_store.Fragments(8)
    fragments.check()
    add(fragments, 0, 3)
    add(fragments, 3, 2)
    fragments.check()
    damage(fragments)
    with pytest.raises(errors.CorruptionError, match=text):
        fragments.check()
