"""The short way of a step that continues its episode, compared with the rule of `kernels.append`."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive.kernels import append
from relive.schema import encoding
from relive.storage import memory
from relive.storage import steps as steps_lib

SCHEMA = relive.Schema({"a": relive.Field((), "i2"), "b": relive.Field(0, "f4")}, relive.Field((), "i2"))
RULES: list[steps_lib.Rule] = [
    (0, 0, 1, 0), (1, 0, 1, 0), (0, 2, 1, 0), (0, 2, 3, 0), (0, 2, 1, 1), (0, 1, 2, 1),
]  # fmt: skip
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("nnnnnnsltud"), st.integers(0, 1)), min_size=1, max_size=60
)


def plain(store: steps_lib.StepStore) -> Any:
    """Return all that a store holds."""
    held = [array.tolist() for array in store.rows]
    columns = store.storage.read(np.arange(store.capacity)) | store.behind
    return held, {path: column.tolist() for path, column in columns.items()}


def taken(store: steps_lib.StepStore, steps: list[tuple[int, str, int]], may_be_short: bool = True) -> int:
    """Write the steps, and return how many of them went the short way, if they may."""
    encoder, clock, num_short = store.encoder, [0, 100, 200], 0
    assert encoder is not None
    short = store._append_next

    def counted(*step: Any) -> bool:
        nonlocal num_short
        is_short = may_be_short and short(*step)
        num_short += is_short
        return is_short

    vars(store)["_append_next"] = counted
    for stream, kind, flags in steps:
        if kind == "s":
            clock[stream] += 50  # It does not follow.
        if kind == "d" and store.last[stream] >= 0:
            store.flags[store.last[stream]] |= (append.BARRED, append.RATED)[flags]
        now = clock[stream] = clock[stream] + 1
        following = None if kind == "l" else {"a": now + 1, "b": []}
        event = {"t": append.TERMINATED, "u": append.TRUNCATED}.get(kind, 0)
        given: Any = {"a": now, "b": []}, now, 0.5, following, {}
        store.append(encoding.steps(encoder, (stream,), (event,), given))
    del vars(store)["_append_next"]
    return num_short


@pytest.mark.parametrize("rule", RULES, ids=str)
@hypothesis.given(capacity=st.integers(3, 9), is_tracking=st.booleans(), steps=STEPS)
def test_the_short_way_of_a_step_equals_the_rule(
    rule: steps_lib.Rule, capacity: int, is_tracking: bool, steps: list[tuple[int, str, int]]
) -> None:
    """Also of lazy steps, over the seam, where rows are barred, and where the list of changes is too short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_lib, "_FEWEST_CHANGES", 12)
        short, ruled = (steps_lib.StepStore(capacity, 3, rule=rule, is_tracking=is_tracking) for _ in range(2))
    for store in (short, ruled):
        store.begin(memory.ColumnStorage(SCHEMA, capacity))
    taken(short, steps)
    taken(ruled, steps, may_be_short=False)
    assert plain(short) == plain(ruled)


def test_most_steps_go_the_short_way() -> None:
    store = steps_lib.StepStore(50, 3)
    store.begin(memory.ColumnStorage(SCHEMA, 50))
    lazy = [(0, "l", 0)] * 60
    assert taken(store, [(0, "n", 0)] * 60 + lazy) == 119
    assert taken(store, [(1, "n", 0), (1, "t", 0), (1, "n", 0), (1, "n", 0)]) == 1
