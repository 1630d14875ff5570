"""Whole episodes written at once, beside `append` row by row."""

from typing import Any

import numpy as np
import pytest

from relive.kernels import append
from relive.kernels import whole
from relive.storage import step_table
from relive.storage import steps

RULES = {
    "transitions": step_table.Rule(0, 0, 1, 0),
    "frame stacks": step_table.Rule(2, 0, 1, 0),
    "sequences": step_table.Rule(0, 2, 1, 0),
    "every second one": step_table.Rule(0, 1, 2, 0),
    "padded": step_table.Rule(0, 2, 1, 1),
}


def facts(store: steps.StepStore) -> Any:
    """Return all that is known of rows and episodes, whatever the numbers of episodes are."""
    slots, kept = store.alive_slots(), store.rows_state()
    back = store.back[slots].tolist() if len(store.back) else []
    return (
        store.flags[slots].tolist(),
        back,
        store.last.tolist(),
        store.knows.tolist(),
        store.num_view[append.ELIGIBLE],
        store.num_view[append.FREE],
        {name: array.tolist() for name, array in kept.arrays().items()},
        kept.values(),
    )


@pytest.mark.parametrize("is_tracking", [False, True])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_episodes_at_once_are_episodes_row_by_row(rule: step_table.Rule, is_tracking: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        capacity = int(rng.integers(8, 20))
        flat, twin = (steps.StepStore(capacity, 2, rule=rule, is_tracking=is_tracking) for _ in range(2))
        for store in (flat, twin):
            store.make_room(64)
        for _ in range(4):
            stream, known = int(rng.integers(2)), int(rng.integers(2))
            for store in (flat, twin):
                for _ in range(int(known)):
                    append.append(store.views, [stream], bytes(1), known)
            lengths = rng.integers(1, 4, rng.integers(1, 4))[: capacity // 4]
            ends = rng.integers(1, 3, len(lengths)).astype(np.uint8)
            knows = rng.random(len(lengths)) < 0.5
            numbers = whole.append_episodes(flat.rows, stream, lengths, ends, knows)
            assert flat.lengths_of(numbers).tolist() == lengths.tolist()
            event = append.CUT
            for length, end, knows_last in zip(lengths.tolist(), ends.tolist(), knows.tolist(), strict=True):
                for i in range(length):
                    is_last = i == length - 1
                    append.append(
                        twin.views, [stream], bytes([event | (is_last and end)]), int(knows_last or not is_last)
                    )
                    event = 0
        assert facts(flat) == facts(twin)
        flat.check()
        if is_tracking and flat.num_view[append.CHANGED] <= len(flat.changed):
            changed = {*flat.changed[: flat.num_view[append.CHANGED]].tolist()}
            assert {*flat.alive_slots()[flat.is_readable(flat.alive_slots())].tolist()} <= changed
