"""The short ways of a step that goes on and of a round behind a round, compared with the rule of `kernels.append`."""

from collections.abc import Sequence
import pathlib
import random
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive.kernels import append
from relive.schema import encoding
from relive.storage import memory
from relive.storage import next_round
from relive.storage import step_table
from relive.storage import steps as steps_lib

SCHEMA = relive.Schema({"a": relive.Field((), "i2"), "b": relive.Field(0, "f4")}, relive.Field((), "i2"))
RULES = [
    step_table.Rule(*numbers)
    for numbers in [(0, 0, 1, 0), (1, 0, 1, 0), (0, 2, 1, 0), (0, 2, 3, 0), (0, 2, 1, 1), (0, 1, 2, 1)]
]
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("nnnrrrrrRRRszpLltudec"), st.integers(0, 1)), min_size=1, max_size=60
)


def plain(store: steps_lib.StepStore) -> Any:
    """Return all that a store holds."""
    held = [array.tolist() for array in store.rows]
    columns = store.storage.read(np.arange(store.capacity)) | store.finals.columns
    return held, {path: column.tolist() for path, column in columns.items()}


def counted(short: Any, nothing: Any, may_be_short: bool, taken: list[Any]) -> Any:
    """Return a short way that may be taken or not, and is counted."""

    def way(*step: Any) -> Any:
        found = short(*step) if may_be_short else nothing
        taken.extend([1] * (found is not nothing))
        return found

    return way


def taken(
    store: steps_lib.StepStore,
    steps: list[tuple[int, str, int]],
    may_be_short: bool = True,
    apart: int = 100,
    pace: int = 1,
) -> tuple[int, list[Any]]:
    """Write the steps, and return how many of them went the short way, if they may, and what was found out.

    Observations are numbers that grow by `pace` in each stream; those of two streams are `apart`.
    """
    clock, short_ones, written = [0, apart, 2 * apart], list[int](), list[Any]()
    assert store.encoder is not None
    derive = store._derive

    def derived() -> None:
        derive()
        store.append_next = counted(store.append_next, -1, may_be_short, short_ones)
        store.append_next_round = counted(store.append_next_round, None, may_be_short, short_ones)

    with mock.patch.object(store, "_derive", derived):
        store._derive()
        for stream, kind, flags in steps:
            streams, events = [stream], [{"t": append.TERMINATED, "u": append.TRUNCATED}.get(kind, 0)]
            if kind in "rRLEC":
                streams, events = [0, 1, 2], [0, 0, 0]
                events[stream] = {"R": append.TERMINATED, "E": append.TERMINATED, "C": append.CUT}.get(kind, 0)
            if kind == "E":
                events[stream - 1] = events[stream - 2] = append.TRUNCATED if flags else append.ENDS
            if kind in "pP":
                streams = [[2, 0, 1], [0, 2], [1, 2]][stream]
                events = [append.TRUNCATED if kind == "P" else 0] * len(streams)
            if kind in "sz":
                clock[stream] += 50  # It does not follow.
            if kind == "z":
                streams = [0, 1, 2]
                events = [0] * 3
            if kind == "d" and store.last[stream] >= 0:
                store.flags[store.last[stream]] |= (append.BARRED, append.RATED)[flags]
            if kind == "e" and store.is_open(stream):
                store.cut(stream)
            if kind == "c":
                store.clear()
            if kind in "ec" and flags:
                continue
            for each in streams:
                clock[each] += pace
            now = np.array([clock[each] for each in streams])
            nothing = np.zeros((len(streams), 0), np.float32)
            following = None if kind in "lL" else {"a": now + pace, "b": nothing}
            given: Any = {"a": now, "b": nothing}, now, np.full(len(streams), 0.5), following, {}
            numbers = encoding.stream_numbers(3, streams)
            found = store.append(encoding.steps(store.encoder, numbers, bytes(events), given))
            written.append([list(value) if isinstance(value, Sequence) else value for value in found])
            for each, event in zip(streams, events, strict=True):
                clock[each] += 20 * (flags and event > 0)  # The next episode begins elsewhere.
    store._derive()
    return len(short_ones), written


@pytest.mark.parametrize("rule", RULES, ids=str)
@hypothesis.given(capacity=st.integers(3, 9), is_tracking=st.booleans(), steps=STEPS)
def test_the_short_ways_equal_the_rule(
    rule: step_table.Rule, capacity: int, is_tracking: bool, steps: list[tuple[int, str, int]]
) -> None:
    """Also of lazy steps, over the seam, where rows are barred, and where the list of changes is too short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_table, "_FEWEST_CHANGES", 12)
        short, ruled = (steps_lib.StepStore(capacity, 3, rule=rule, is_tracking=is_tracking) for _ in range(2))
    for store in (short, ruled):
        store.begin(memory.ColumnStorage(SCHEMA, capacity))
    (_, written), (_, expected) = taken(short, steps), taken(ruled, steps, may_be_short=False)
    assert (plain(short), written) == (plain(ruled), expected)


@pytest.mark.parametrize("few", [0, 2])
@pytest.mark.parametrize("is_tracking", [False, True])
def test_rounds_equal_the_rule(is_tracking: bool, few: int) -> None:
    """Most go the short way; between them steps of all kinds, and ends and beginnings in some of them, or in all."""
    draw, num_short, num_steps = random.Random(is_tracking), 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_round, "_FEWEST", 2)
        patch.setattr(append, "FEW", few)
        for number in range(70):
            kinds = draw.choice(
                ["rrrrC", "rrrRE", "rrrrrzREEnnllpPsutec", "rrrrEERec", "rppPPPRr", "rrrLLeER", "rllll"]
            )
            steps = [(draw.randrange(3), draw.choice(kinds), draw.randrange(2)) for _ in range(30)]
            stores = [steps_lib.StepStore(3 + number % 10, 3, is_tracking=is_tracking) for _ in range(2)]
            for store in stores:
                store.begin(memory.ColumnStorage(SCHEMA, store.capacity))
            ways: Any = {"apart": number % 2, "pace": number % 3 > 0}
            num, written = taken(stores[0], steps, **ways)
            _, expected = taken(stores[1], steps, may_be_short=False, **ways)
            num_short, num_steps = num_short + num, num_steps + len(written)
            assert (plain(stores[0]), written) == (plain(stores[1]), expected), steps
            stores[0].check()
            stores[0].work_out()  # As after a load.
            assert stores[0].flags.tolist() == stores[1].flags.tolist()
    assert num_short > 0.4 * num_steps


def test_most_steps_go_the_short_way() -> None:
    store = steps_lib.StepStore(50, 3)
    store.begin(memory.ColumnStorage(SCHEMA, 50))
    lazy = [(0, "l", 0)] * 60
    assert taken(store, [(0, "n", 0)] * 60 + lazy)[0] == 119
    assert taken(store, [(1, "n", 0), (1, "t", 0), (1, "n", 0), (1, "n", 0)])[0] == 1


@pytest.mark.parametrize("few", [0, 2])
def test_rounds_go_the_short_way_after_ends(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one: first there are no numbers for so many episodes. Some of the next ones begin elsewhere."""
    monkeypatch.setattr(append, "FEW", few)
    store = steps_lib.StepStore(50, 3)
    store.begin(memory.ColumnStorage(SCHEMA, 50))
    assert taken(store, [(0, "r", 0), (1, "R", 1), (2, "R", 0), (0, "E", 1), (0, "E", 0)] * 3)[0] == 14
    store.check()


def test_a_first_round_makes_a_memory_map_ready(tmp_path: pathlib.Path) -> None:
    schema = relive.Schema(relive.Field((), "i2"), relive.Field((), "i2"))
    with relive.MemmapStorage(tmp_path / "rows", schema, 100) as storage:
        buffer = relive.RingReplayBuffer(100, storage=storage, streams=40)
        rows = np.arange(40, dtype=np.int16)
        assert buffer.extend(rows, rows, np.zeros(40), rows + 1).tolist() == list(range(40))
        assert buffer.read(range(40)).observation.tolist() == rows.tolist()


def test_a_round_goes_on_in_a_stream_whose_newest_row_went() -> None:
    """Stream 0 is lazy and waits, while stream 1 fills the ring of four rows twice."""
    steps = [(0, "l", 0), *[(1, "n", 0)] * 7, (0, "r", 0)]
    stores = [steps_lib.StepStore(4, 3) for _ in range(2)]
    for store, may_be_short in zip(stores, (True, False), strict=True):
        store.begin(memory.ColumnStorage(SCHEMA, 4))
        taken(store, steps, may_be_short=may_be_short)
    assert plain(stores[0]) == plain(stores[1])
