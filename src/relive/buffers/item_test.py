"""Tests of the item buffer, with a naive twin that keeps every item as lists."""

from collections.abc import Mapping
import copy
import dataclasses
import tracemalloc
from typing import Any, ClassVar, get_args
import weakref

import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import item_cuts
from relive.testing import walks

Unit = item_cuts.StorageUnit
UNITS: tuple[Unit, ...] = get_args(Unit)


def batch_of(unit: Unit, start: int, lengths: list[int]) -> dict[str, Any]:
    """Return a batch whose column c counts on from `start`, for items of the given lengths."""
    rows = sum(lengths)
    batch: dict[str, Any] = {"c": list(range(start, start + rows))}
    if unit == "sequences":
        batch["seq_lens"] = lengths
    if unit == "episodes":
        batch["eps_id"] = np.repeat(np.arange(len(lengths)), lengths).tolist()
        batch["t"] = [t for length in lengths for t in range(length)]
        batch["terminated"] = [t == length - 1 for length in lengths for t in range(length)]
        batch["truncated"] = [False] * rows
    return batch


def drawn(buffer: relive.ItemReplayBuffer, num_items: int) -> dict[str, list[Any]]:
    return {name: values.tolist() for name, values in buffer.sample(num_items).items()}


def stored(buffer: relive.ItemReplayBuffer) -> list[list[int]]:
    """Return column c of each item, the oldest first."""
    items = buffer._items
    keys = range(items.first_key, items.first_key + len(items))
    return [items.read([key])[0]["c"].tolist() for key in keys]


def state(buffer: relive.ItemReplayBuffer) -> Any:
    """Return what a refused call must leave as it was."""
    return stored(buffer), buffer.get_stats(), list(buffer._rows), copy.deepcopy(buffer._rng.bit_generator.state)


# The contract, case by case.


def test_incomplete_episodes_are_dropped_and_counted() -> None:
    buffer = relive.ItemReplayBuffer(10, "episodes", seed=0)
    buffer.add(
        {
            "c": [1, 2, 3, 4, 5, 6, 7],
            "eps_id": [0, 0, 1, 1, 2, 3, 3],
            "t": [0, 1, 0, 1, 5, 0, 1],
            "terminated": [False, True, False, False, True, False, False],
            "truncated": [False, False, False, True, False, False, False],
        }
    )
    assert stored(buffer) == [[1, 2], [3, 4]]
    stats = buffer.get_stats()
    assert (stats.items, stats.added, stats.dropped, stats.timesteps) == (2, 2, 2, 4)
    assert set(drawn(buffer, 30)["eps_id"]) == {0, 1}


def test_a_batch_without_a_complete_episode_stores_nothing() -> None:
    buffer = relive.ItemReplayBuffer(2, "episodes")
    batch = {"c": range(5), "eps_id": [1] * 5, "t": range(5), "truncated": [False] * 5}
    buffer.add(batch)
    buffer.add(batch)
    assert buffer.get_stats() == relive.ItemBufferStats(
        items=0, timesteps=0, bytes=0, added=0, sampled=0, evicted=0, dropped=2
    )
    with pytest.raises(errors.SchemaError, match="column d must be one of the first add's"):
        buffer.add(batch | {"d": range(5)})


def test_a_ragged_fragment_comes_back_unchanged() -> None:
    buffer = relive.ItemReplayBuffer(10, "fragments")
    buffer.add({"a": [1], "b": [2, 3, 4]})
    assert drawn(buffer, 1) == {"a": [1], "b": [2, 3, 4]}
    assert drawn(buffer, 2) == {"a": [1, 1], "b": [2, 3, 4, 2, 3, 4]}
    assert (len(buffer), buffer.get_stats().items, buffer.get_stats().bytes) == (3, 1, 32)


def test_fragments_are_joined_column_by_column() -> None:
    buffer = relive.ItemReplayBuffer(10, "fragments", seed=3)
    buffer.add({"a": [1], "b": [2, 3, 4]})
    buffer.add({"a": [5, 6], "b": [7]})
    batch = drawn(buffer, 12)
    halves = [([1], [2, 3, 4]), ([5, 6], [7])]
    order = [halves[place] for place in np.random.default_rng(3).integers(2, size=12)]
    assert batch == {"a": [x for a, _ in order for x in a], "b": [x for _, b in order for x in b]}
    assert {1, 5} <= set(batch["a"])


@pytest.mark.parametrize("unit", UNITS)
def test_an_item_longer_than_the_capacity_is_refused(unit: Unit) -> None:
    buffer = relive.ItemReplayBuffer(4, unit)
    text = "^columns must hold items of at most capacity = 4 time steps together, got 5$"
    with pytest.raises(errors.ArgumentError, match=text):
        buffer.add(batch_of(unit, 0, [5]))
    assert buffer.get_stats().added == 0
    buffer.add(batch_of(unit, 0, [1, 2]))
    before = state(buffer)
    with pytest.raises(ValueError, match=text):
        buffer.add(batch_of(unit, 3, [5]))
    assert state(buffer) == before


@pytest.mark.parametrize("unit", UNITS)
def test_an_empty_buffer_raises(unit: Unit) -> None:
    buffer = relive.ItemReplayBuffer(4, unit)
    for _ in range(2):
        with pytest.raises(errors.NotReadyError, match=f"^sample found no {unit} to draw: add a batch first$"):
            buffer.sample(1)
        assert buffer.get_stats().sampled == 0
        buffer.add(batch_of(unit, 0, [2]))
        buffer.clear()


# The same columns in every add.


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"c": None}, "^column c must be in every add, as it was in the first, got none$"),
        ({"d": [1, 2]}, "^column d must be one of the first add's: c"),
        (
            {"c": [0.0, 1.0]},
            "column c must have rows of dtype int64 and shape .*, as first added, got dtype float64 and",
        ),
        ({"c": np.array([0, 1], np.int32)}, "column c must have rows of dtype int64 .* got dtype int32"),
        ({"c": [[0], [1]]}, r"column c .* shape \[\], as first added, got dtype int64 and shape \[1\]$"),
        ({"c": [[0], [1, 2]]}, r"^column c must be an array of .*, got \[\[0\], \[1, 2\]\]"),
        ({"c": 3}, "^column c must have a row for each time step, got 3$"),
        ({"c": [None, 1]}, r"^column c must be an array of .*, got \[None, 1\]"),
    ],
)
def test_a_column_unlike_that_of_the_first_add_is_refused(unit: Unit, change: dict[str, Any], text: str) -> None:
    buffer = relive.ItemReplayBuffer(10, unit, seed=0)
    buffer.add(batch_of(unit, 0, [1, 2]))
    before = state(buffer)
    changed = batch_of(unit, 3, [2]) | change
    with pytest.raises(errors.SchemaError, match=text):
        buffer.add({name: values for name, values in changed.items() if values is not None})
    assert state(buffer) == before
    buffer.check()


def test_values_without_bytes_are_refused() -> None:
    with pytest.raises(errors.SchemaError, match=r"^column c must have values of at least one byte, got dtype \|V0$"):
        relive.ItemReplayBuffer(10).add({"c": np.zeros(3, "V0")})


def test_a_capacity_beyond_memory_is_refused_at_the_first_add() -> None:
    buffer = relive.ItemReplayBuffer(2**46)
    with pytest.raises(errors.ArgumentError, match="^capacity must fit in memory, got 70368744177664 steps of 8 bytes"):
        buffer.add({"c": [1]})
    assert state(buffer)[0] == []
    buffer.check()


def test_a_column_of_fragments_takes_memory_for_its_rows() -> None:
    buffer = relive.ItemReplayBuffer(10_000, "fragments")
    tracemalloc.start()
    try:
        for _ in range(300):
            buffer.add({"c": np.zeros(100, np.uint8), "goal": np.zeros((1, 1000), np.uint8)})
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert buffer.get_stats().bytes == 10_000 + 100 * 1000
    assert held < 3 * buffer.get_stats().bytes


def test_fragments_may_bring_their_columns_in_another_order() -> None:
    buffer = relive.ItemReplayBuffer(10, "fragments")
    buffer.add({"a": [1], "b": [2, 3, 4]})
    buffer.clear()
    buffer.add({"b": [5], "a": [6, 7]})
    assert drawn(buffer, 1) == {"a": [6, 7], "b": [5]}


def test_seq_lens_keeps_its_dtype_too() -> None:
    buffer = relive.ItemReplayBuffer(10, "sequences")
    buffer.add({"c": [1, 2, 3], "seq_lens": np.array([1, 2], np.int32)})
    assert buffer.sample(2)["seq_lens"].dtype == np.int32
    with pytest.raises(errors.SchemaError, match="column seq_lens must have rows of dtype int32 .* got dtype int16"):
        buffer.add({"c": [1], "seq_lens": np.array([1], np.int16)})


def test_a_refused_first_add_fixes_nothing() -> None:
    buffer = relive.ItemReplayBuffer(2, "sequences")
    with pytest.raises(errors.SchemaError):
        buffer.add({"c": [1, 2], "seq_lens": [1]})
    with pytest.raises(errors.ArgumentError):
        buffer.add({"c": [1, 2, 3], "seq_lens": [3]})
    buffer.add({"d": [1.0], "seq_lens": [1]})
    assert drawn(buffer, 1) == {"d": [1.0], "seq_lens": [1]}


@pytest.mark.parametrize("columns", [{}, {"c": []}, {"c": [], "seq_lens": np.array([], np.int64)}])
@pytest.mark.parametrize("unit", UNITS)
def test_a_batch_of_no_time_steps_is_refused(unit: Unit, columns: Mapping[str, Any]) -> None:
    buffer = relive.ItemReplayBuffer(2, unit)
    with pytest.raises(errors.ArgumentError, match="^columns must have at least one time step, got 0$"):
        buffer.add(columns)


def test_columns_come_back_in_the_order_of_the_first_add() -> None:
    buffer = relive.ItemReplayBuffer(4, "sequences")
    buffer.add({"b": [1], "seq_lens": [1], "a": [2]})
    buffer.add({"a": [2], "b": [1], "seq_lens": [1]})
    assert list(buffer.sample(2)) == ["b", "seq_lens", "a"]


VALUES = [
    np.array([0.1, -0.0, np.nan, np.inf, 5e-324]),
    np.array([2**63 - 1, 2**53 + 1, -(2**63), 0, 1]),
    np.array([True, False, True, True, False]),
    np.array([0, 255, 7, 128, 1], np.uint8),
    np.array([6.1e-5, 65504, -0.0, 1, 2], np.float16),
    np.array([1, 2, 3, 4, 5], ">i4"),
    np.array([1 + 2j, 0, -1j, 3, 4], np.complex64),
    np.array(["a", "bcd", "", "ef", "g"]),
    np.array([(1, 0.5), (2, 0.25), (3, 0.1), (4, -0.0), (5, 1e300)], [("x", np.uint8), ("y", "<f8")]),
    np.arange("2020-01-01", "2020-01-06", dtype="datetime64[D]"),
    np.arange(30, dtype=np.int8).reshape(5, 2, 3),
    np.zeros((5, 0)),
]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("values", VALUES, ids=lambda values: str(values.dtype))
def test_values_come_back_bit_for_bit_in_their_own_dtype(unit: Unit, values: np.ndarray[Any, Any]) -> None:
    """P54."""
    buffer = relive.ItemReplayBuffer(8, unit, seed=0)
    buffer.add(batch_of(unit, 7, [3]) | {"x": values[:3]})
    buffer.add(batch_of(unit, 0, [5]) | {"x": values})
    buffer.add(batch_of(unit, 0, [5]) | {"x": values})
    batch = buffer.sample(9)
    assert batch["x"].dtype == values.dtype
    assert batch["x"].shape[1:] == values.shape[1:]
    assert batch["x"].tobytes() == values[batch["c"]].tobytes()


# Copies, in and out.


@pytest.mark.parametrize("unit", UNITS)
def test_items_are_copied_in_and_out(unit: Unit) -> None:
    """P52 and P53: TRL 6804, torchrl PR 3966."""
    buffer = relive.ItemReplayBuffer(10, unit)
    batch = {name: np.array(values) for name, values in batch_of(unit, 0, [3]).items()}
    for _ in range(3):
        buffer.add(batch)
    for values in batch.values():
        values[:] = 1
    before = stored(buffer)
    for num_items in (1, 5):
        for values in buffer.sample(num_items).values():
            assert values.flags.writeable
            assert values.base is None
            values[:] = 1
    assert stored(buffer) == before == ([[0], [1], [2]] * 3 if unit == "timesteps" else [[0, 1, 2]] * 3)


def test_read_only_strided_and_foreign_arrays_are_accepted() -> None:
    values = np.arange(12)[::-2]
    values.flags.writeable = False
    buffer = relive.ItemReplayBuffer(6)
    buffer.add({"c": values, "d": range(6), "e": memoryview(bytes(6))})
    assert stored(buffer) == [[11], [9], [7], [5], [3], [1]]


@pytest.mark.parametrize("unit", UNITS)
def test_memory_of_items_is_flat(unit: Unit) -> None:
    """P57: ray PR 22678 and 49964."""
    buffer = relive.ItemReplayBuffer(50, unit)
    batch = {
        name: np.array(values) for name, values in batch_of(unit, 0, [2, 3] if unit != "fragments" else [5]).items()
    }
    held = []
    tracemalloc.start()
    try:
        for _ in range(3):
            for _ in range(150):
                buffer.add(batch)
                buffer.sample(2)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[2] - held[1] < 1_000


@pytest.mark.parametrize("unit", UNITS)
def test_no_batch_that_was_added_is_kept_alive(unit: Unit) -> None:
    """P57: also not the first, whose dtypes and shapes are remembered."""
    buffer = relive.ItemReplayBuffer(50, unit)
    for start in (0, 3):
        batch = {name: np.array(values) for name, values in batch_of(unit, start, [3]).items()}
        alive = [weakref.ref(values) for values in batch.values()]
        buffer.add(batch)
        del batch
        assert not any(ref() is not None for ref in alive)


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"capacity": 0}, "^capacity must be at least 1, got 0$"),
        ({"capacity": 1.5}, "^capacity must be an integer of at least 1, got 1.5$"),
        ({"seed": -1}, "^seed must be at least 0, got -1$"),
        (
            {"storage_unit": "rows"},
            "^storage_unit must be one of timesteps, sequences, episodes, fragments, got 'rows'$",
        ),
        ({"storage_unit": None}, "^storage_unit must be one of .*, got None$"),
    ],
)
def test_wrong_settings_of_item_buffers_are_refused(arguments: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        relive.ItemReplayBuffer(**{"capacity": 3} | arguments)


def test_columns_are_a_mapping_from_strings() -> None:
    buffer = relive.ItemReplayBuffer(3)
    wrong: Any = [1, 2]
    with pytest.raises(TypeError, match=r"^columns must be a mapping of names to arrays, got \[1, 2\]$"):
        buffer.add(wrong)
    wrong_name: Any = {1: [1]}
    with pytest.raises(TypeError, match="^columns must have strings for names, got 1$"):
        buffer.add(wrong_name)


@pytest.mark.parametrize("num_items", [0, -1, 1.5, True])
def test_num_items_is_an_integer_of_at_least_one(num_items: Any) -> None:
    buffer = relive.ItemReplayBuffer(3)
    buffer.add({"c": [1]})
    with pytest.raises(ValueError, match="^num_items must be"):
        buffer.sample(num_items)
    assert buffer.get_stats().sampled == 0


# Everything else.


def test_repr_and_stats_of_an_item_buffer() -> None:
    buffer = relive.ItemReplayBuffer(10, "sequences")
    buffer.add({"c": np.zeros((3, 2), np.float32), "seq_lens": [1, 2]})
    assert repr(buffer) == "<ItemReplayBuffer of 2 sequences, 3 of 10 time steps>"
    assert (len(buffer), buffer.capacity, buffer.storage_unit) == (3, 10, "sequences")
    assert buffer.get_stats().bytes == 24
    with pytest.raises(dataclasses.FrozenInstanceError):
        buffer.get_stats().items = 3  # type: ignore[misc]


def test_clearing_forgets_items_and_keeps_columns_and_counters() -> None:
    for unit in UNITS:
        buffer = relive.ItemReplayBuffer(5, unit)
        buffer.add(batch_of(unit, 0, [4]))
        buffer.add(batch_of(unit, 4, [4]))
        buffer.sample(3)
        before = buffer.get_stats()
        buffer.clear()
        buffer.check()
        assert buffer.get_stats() == dataclasses.replace(before, items=0, timesteps=0, bytes=0)
        with pytest.raises(errors.SchemaError, match="column c must have rows of dtype int64"):
            buffer.add(batch_of(unit, 0, [4]) | {"c": [0.5] * 4})
        buffer.add(batch_of(unit, 8, [5]))
        assert [row for item in stored(buffer) for row in item] == [8, 9, 10, 11, 12]
        buffer.check()


def test_check_finds_damaged_items() -> None:
    buffer = relive.ItemReplayBuffer(5, "fragments")
    buffer.add({"c": [1, 2]})
    buffer.check()
    buffer._items._offsets[0, 1] = 3
    with pytest.raises(errors.CorruptionError, match="^a row must be as long as its longest field$"):
        buffer.check()


def test_check_finds_a_wrong_counter_of_items() -> None:
    buffer = relive.ItemReplayBuffer(5)
    buffer.add({"c": [1, 2]})
    buffer._counts["evicted"] = 1
    with pytest.raises(errors.CorruptionError, match="^2 items were added and 1 evicted, but 2 are held$"):
        buffer.check()


class ItemBufferMachine(walks.Machine):
    """An item buffer beside lists of lists, drawn from by a generator of the same seed (P12, P13, P55, P64)."""

    often: ClassVar = {"add": 9, "sample": 4}
    least: ClassVar = {"evicted": 200, "an item too long": 50}

    @walks.initialize(unit=walks.sampled_from(UNITS), capacity=walks.integers(3, 15), seed=walks.integers(0, 99))
    def start(self, unit: Unit, capacity: int, seed: int) -> None:
        self.unit: Unit = unit
        self.capacity = capacity
        self.buffer = relive.ItemReplayBuffer(capacity, unit, seed=seed)
        self.rng = np.random.default_rng(seed)
        self.items: list[list[int]] = []
        self.rows = 0
        self.added = self.sampled = self.evicted = self.dropped = 0

    @walks.rule(lengths=walks.lists(walks.integers(1, 5), 1, 4), broken=walks.subsets(range(8), 0, 7))
    def add(self, lengths: list[int], broken: set[int]) -> None:
        batch = batch_of(self.unit, self.rows, lengths)
        items = [[self.rows + sum(lengths[:k]) + t for t in range(length)] for k, length in enumerate(lengths)]
        self.rows += sum(lengths)
        kept = items
        if self.unit == "timesteps":
            kept = [[row] for item in items for row in item]
        if self.unit == "fragments":
            kept = [[row for item in items for row in item]]
        if self.unit == "episodes":
            kept = [item for k, item in enumerate(items) if k not in broken]
            lasts = {items[k][-1] for k in broken if k < len(items)}
            batch["terminated"] = [
                is_last and row not in lasts for row, is_last in zip(batch["c"], batch["terminated"], strict=True)
            ]
        if sum(map(len, kept)) > self.capacity:
            self.reached["an item too long"] += 1
            with pytest.raises(errors.ArgumentError, match="columns must hold items of at most capacity"):
                self.buffer.add(batch)
            return
        self.buffer.add(batch)
        self.dropped += len(items) - len(kept) if self.unit == "episodes" else 0
        self.added += len(kept)
        while sum(map(len, self.items)) + sum(map(len, kept)) > self.capacity:
            self.items.pop(0)
            self.evicted += 1
            self.reached["evicted"] += 1
        self.items += kept

    @walks.rule(when=lambda self: self.items, num_items=walks.integers(1, 9))
    def sample(self, num_items: int) -> None:
        order = [self.items[place] for place in self.rng.integers(len(self.items), size=num_items)]
        batch = drawn(self.buffer, num_items)
        assert batch["c"] == [row for item in order for row in item]
        if self.unit == "sequences":
            assert batch["seq_lens"] == [len(item) for item in order]
        self.sampled += num_items

    @walks.rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.items = []

    @walks.invariant(every=3)
    def contents_and_counters_are_equal(self) -> None:
        assert stored(self.buffer) == self.items
        stats = self.buffer.get_stats()
        assert len(self.buffer) == stats.timesteps == sum(map(len, self.items)) <= self.capacity
        assert (stats.items, stats.added, stats.sampled) == (len(self.items), self.added, self.sampled)
        assert (stats.evicted, stats.dropped) == (self.evicted, self.dropped)
        row_bytes = {"timesteps": 8, "sequences": 8, "episodes": 8 + 8 + 8 + 1 + 1, "fragments": 8}
        assert stats.bytes == len(self.buffer) * row_bytes[self.unit]
        self.buffer.check()


TestItemBuffer = walks.tests_of(ItemBufferMachine)
