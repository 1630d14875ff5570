import random
from typing import Any

import numpy as np
import pytest

import relive
from relive.kernels import append
from relive.schema import encoding
from relive.storage import memory
from relive.storage import splices
from relive.storage import steps as steps_lib

SCHEMA = relive.Schema({"a": relive.Field((), "f4"), "b": relive.Field(2, "i2")}, relive.Field((), "i2"))
SAME_NAN = np.array([0x7FC00000, 0x7FC00001], np.uint32).view("f4")


def steps_of(
    store: steps_lib.StepStore, streams: list[int], seen: Any, following: Any, events: list[int]
) -> encoding.Steps:
    """Return steps of observations whose fields are all one number."""
    parts = [{"a": np.asarray(each, "f4"), "b": np.stack([np.isfinite(each)] * 2, 1)} for each in (seen, following)]
    given: Any = parts[0], np.zeros(len(streams)), np.zeros(len(streams)), parts[1], {}
    numbers = encoding.stream_numbers(12, streams)
    return encoding.steps(store.encoder, numbers, bytes(events), given)


@pytest.mark.parametrize("capacity", [12, 40, 500])
def test_rows_are_spliced_or_resume_as_a_list_of_finals_says(capacity: int) -> None:
    """Of each stream: what was announced last, how its episode goes on, and the key of its newest row."""
    draw, store, found = random.Random(capacity), steps_lib.StepStore(capacity, 12), [0, 0, 0]
    store.begin(memory.ColumnStorage(SCHEMA, capacity))
    newest: dict[int, tuple[float, int, int]] = {}
    for _ in range(150):
        streams = sorted(draw.sample(range(12), draw.choice([1, 3, 9, 12])))
        seen, cuts, after = [], 0, {append.TERMINATED: list[int](), append.TRUNCATED: list[int]()}
        for place, stream in enumerate(streams):
            final, end, key = newest.get(stream, (0.0, append.CUT, 0))
            seen.append(final if draw.random() < 0.7 else draw.uniform(1, 2))
            if end == append.OPEN:
                cuts += seen[-1] != final
            elif end != append.CUT and seen[-1] == final and key >= store.oldest_key:
                after[end].append(place)
        following = [draw.choice([3.0, 4.0]) for _ in streams]
        seen = np.array(seen, "f4").tolist()
        events = [draw.choice([0, 0, append.TERMINATED, append.TRUNCATED]) for _ in streams]
        for place, stream in enumerate(streams):
            newest[stream] = following[place], events[place], store.next_key + place
        steps = steps_of(store, streams, seen, following, events)
        written = store.append(steps)
        ends = sum(event > 0 for event in events)
        assert tuple(map(list, written[2:])) == (after[append.TERMINATED], after[append.TRUNCATED])
        assert written[:2] == (cuts, ends)
        found = [found[0] + cuts, found[1] + len(after[append.TERMINATED]), found[2] + len(after[append.TRUNCATED])]
    assert min(found[:1] if capacity == 12 else found) > 10
    store.check()


def test_a_step_follows_where_only_the_bytes_of_numbers_differ() -> None:
    store = steps_lib.StepStore(40, 12)
    store.begin(memory.ColumnStorage(SCHEMA, 40))
    first = steps_of(store, [0, 1, 2], [1.0, 1.0, 1.0], [0.0, SAME_NAN[0], 5.0], [0, 0, 0])
    store.append(first)
    steps = steps_of(store, [0, 1, 2], [-0.0, SAME_NAN[1], 6.0], [1.0, 1.0, 1.0], [0, 0, 0])
    assert splices.may_be_spliced(store, store.finals, steps)
    events, count = splices.with_cuts(store, store.finals, steps)
    assert (events, count) == (bytes([0, 0, append.CUT]), 1)
    assert splices.with_cuts(store, store.finals, steps, ("observation/b",))[1] == 0
