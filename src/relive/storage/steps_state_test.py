from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.kernels import append
from relive.persistence import state as state_lib
from relive.storage import memory
from relive.storage import step_table
from relive.storage import steps
from relive.storage import steps_state

State = steps_state.StepsState
SCHEMA = relive.Schema(relive.Field((), int), relive.Field((), int))


def given(state: State) -> state_lib.StateReader:
    final = np.zeros(np.count_nonzero(state.has_tail), int)
    return state_lib.StateReader(state.values(), {**state.arrays(), "final/observation": final})


def plain(state: State) -> dict[str, Any]:
    return {**state.values(), **{name: array.tolist() for name, array in state.arrays().items()}}


def state_of(**changes: Any) -> State:
    """Two streams: episode 0 has keys 2 and 4, its step 0 was evicted; 1 has 3; 2 has 5 and is open."""
    values: dict[str, Any] = {
        "next_key": 6, "num_evicted": 2, "episode": np.array([0, 1, 0, 2]), "stream": np.array([0, 1, 1]),
        "length": np.array([3, 1, 1]), "first_key": np.array([0, 3, 5]),
        "end": np.array([append.TRUNCATED, append.TERMINATED, append.OPEN], np.uint8),
        "has_tail": np.array([True, False, True]),
    }  # fmt: skip
    return State(**values | changes)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def ends(*values: int) -> Any:
    return np.array(values, np.uint8)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"next_key": -1}, r"next_key must be an integer in \[0, "),
    ({"num_evicted": 3}, "num_evicted must be at most 2, got 3"),
    ({"episode": ints(0, 1, 0, 3)}, r"array row_episode must hold integers in \[0, 2\], got 3"),
    ({"episode": ints(*[0] * 20)}, "row_episode must have at most capacity = 10, got 20"),
    ({"stream": ints(0, 2, 1)}, r"array episode_stream must hold integers in \[0, 1\], got 2"),
    ({"length": ints(3, 1)}, r"array episode_length must be of dtype int64 and shape \(3\)"),
    ({"length": ints(3, 0, 1)}, "array episode_length must hold integers"),
    ({"length": ints(7, 1, 1)}, "array episode_length must hold integers"),
    ({"next_key": 2**60, "length": ints(2**36, 1, 1)}, "array episode_length must hold integers"),
    ({"first_key": ints(-1, 3, 5)}, "array episode_first_key must hold integers"),
    ({"end": ends(3, 1, 0)}, "an end must be at most 2"), ({"length": ints(1, 1, 1)}, "none more rows than steps"),
    ({"episode": ints(0, 2, 0, 2), "length": ints(3, 1, 2), "first_key": ints(0, 3, 3)}, "has ended must have a row"),
    ({"end": ends(2, 0, 0)}, "two are open in one stream"),
    ({"first_key": ints(0, 4, 5)}, "must have the key of its first row"),
    ({"first_key": ints(2, 3, 5)}, "must have begun before"),
    ({"stream": ints(0, 0, 1)}, "without those of another between them"),
    ({"length": ints(3, 1, 2), "first_key": ints(0, 3, 0)}, "must be the oldest of its stream"),
    ({"end": ends(2, 0, 1)}, "one that is open must be the newest of its stream"),
]  # fmt: skip


def test_a_genuine_state_of_steps_is_accepted() -> None:
    state = state_of()
    assert plain(State.of(given(state), SCHEMA, 10, 2, has_rows=False)) == plain(state)
    store = steps.StepStore(10, 2)
    store.load_state_dict(state)
    store.check()
    assert plain(store.rows_state()) == plain(state)


def test_impossible_states_of_steps_are_refused(subtests: pytest.Subtests) -> None:
    for changes, message in WRONG:
        with subtests.test(message=message), pytest.raises(errors.CheckpointError, match=message):
            State.of(given(state_of(**changes)), None, 10, 2)


def test_an_episode_without_rows_is_alone_in_its_stream() -> None:
    changes = {
        "stream": ints(0, 1, 1, 1), "length": ints(3, 1, 1, 1), "first_key": ints(0, 3, 5, 1), "end": ends(2, 1, 2, 0),
        "has_tail": np.array([True, False, True, True]),
    }  # fmt: skip
    with pytest.raises(errors.CheckpointError, match="one that is open without a row must be alone in its stream"):
        State.of(given(state_of(**changes)), None, 10, 2)


def test_open_episodes_go_on_without_their_rows() -> None:
    """What a segment of a journal begins with."""
    base = state_of(numbers=ints(0, 1, 2)).without_rows()
    assert (len(base), base.num_evicted, base.stream.tolist(), base.length.tolist()) == (0, 6, [1], [1])
    store = steps.StepStore(10, 2)
    store.begin(memory.ColumnStorage(SCHEMA, 10))
    store.load_state_dict(State.of(given(base), SCHEMA, 10, 2, has_rows=False))
    store.check()
    assert plain(store.rows_state()) == plain(base)


def test_there_are_not_more_episodes_than_have_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(count: int) -> State:
        return State(
            next_key=count,
            num_evicted=0,
            episode=np.arange(count),
            stream=np.zeros(count, np.int64),
            length=np.ones(count, np.int64),
            first_key=np.arange(count),
            end=np.ones(count, np.uint8),
            has_tail=np.zeros(count, np.bool_),
        )

    monkeypatch.setattr(step_table, "_MOST_EPISODES", 100)
    store = steps.StepStore(200, 1)
    store.load_state_dict(ended(100))
    store.check()
    with pytest.raises(errors.ArgumentError, match="^episodes must be at most 100 at once, got more$"):
        steps.StepStore(200, 1).load_state_dict(ended(101))
