"""What the state of an item buffer is, and states that no item buffer can be in."""

from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.testing import zoo

Buffer = relive.ItemReplayBuffer


def state_with(unit: Any, **changes: Any) -> dict[str, Any]:
    """The state of a buffer of one item of two rows, with other values."""
    buffer = Buffer(20, unit, seed=0)
    buffer.add({"c": [1.0, 2.0]} | ({"seq_lens": np.array([2], np.uint8)} if unit == "sequences" else {}))
    state = buffer.state_dict()
    state["arrays"] = state["arrays"] | changes.pop("arrays", {})
    return state | changes


def test_item_state_keeps_names_dtypes_and_shapes() -> None:
    state = zoo.worked(zoo.KINDS["items, timesteps"].make).state_dict()
    assert state["columns"] == [
        ["image/left", "|u1", [2, 2]],
        ["speed", "<f2", []],
        ["name", "<U8", []],
        ["pose", [["x", "<f4"]], []],
        ["flag", "|b1", []],
    ]
    assert list(state) == ["class", "settings", "generator", "counters", "columns", "arrays"]
    assert state["settings"] == {"capacity": 20, "storage_unit": "timesteps"}


def test_impossible_states_of_items_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (
            "timesteps",
            {"columns": None},
            "columns must be a list of a name, a dtype and the shape of a row for each, got None",
        ),
        ("timesteps", {"columns": [["c", "<f8"]]}, "columns must be a list of .*, got \\['c', '<f8'\\]"),
        ("timesteps", {"columns": [["c", "<f8", [-1]]]}, "columns must be a list of .*"),
        ("timesteps", {"columns": [["c", "<f8", []]] * 2}, "columns must be a list of .*"),
        ("timesteps", {"columns": [["c", "|O", []]]}, "column c cannot be: dtype must be .* without objects.*"),
        ("timesteps", {"columns": [["c", "<f8", [2**62, 2**62]]]}, "column c cannot be: .*"),
        ("timesteps", {"columns": []}, "columns must be there where there is an item"),
        ("fragments", {"columns": [], "arrays": {"lengths": np.zeros((1, 0), int)}}, "lengths must be integers in .*"),
        ("fragments", {"arrays": {"lengths": np.array([[0]])}}, "lengths must be .* one above 0 in each row, got .*"),
        ("fragments", {"arrays": {"lengths": np.array([[21]])}}, "lengths must be integers in \\[0, 20\\].*"),
        ("fragments", {"arrays": {"lengths": np.array([[-1]])}}, "lengths must be integers in \\[0, 20\\].*"),
        ("fragments", {"arrays": {"lengths": np.array([[3]])}}, "array values/c must be .* shape \\(3\\), got .*"),
        ("timesteps", {"arrays": {"lengths": np.array([2])}}, "lengths must be 1 for each of the timesteps, got 2"),
        (
            "sequences",
            {
                "arrays": {"lengths": np.array([20, 1])},
                "counters": {"added": 2, "sampled": 0, "evicted": 0, "dropped": 0},
            },
            "lengths must be integers that sum to at most 20, got 21",
        ),
        ("sequences", {"columns": [["c", "<f8", []]]}, "columns cannot be cut into sequences: columns must include .*"),
        (
            "timesteps",
            {"counters": {"added": 3, "sampled": 0, "evicted": 2, "dropped": 0}},
            "counters must be of a buffer that holds 2 items",
        ),
        ("timesteps", {"counters": {"added": 3, "sampled": 0, "evicted": 0}}, "counters/dropped is missing"),
        ("timesteps", {"settings": {"capacity": 20, "storage_unit": "episodes"}}, "settings/storage_unit must be .*"),
    ]
    for unit, changes, text in cases:
        with subtests.test(text), pytest.raises(errors.CheckpointError, match=f"^{text}$"):
            Buffer(20, unit).load_state_dict(state_with(unit, **changes))


def test_a_negative_length_is_refused_whatever_the_sum() -> None:
    buffer = Buffer(20, "fragments")
    for _ in range(2):
        buffer.add({"a": [1, 2], "b": [3]})
    state = buffer.state_dict()
    state["arrays"]["lengths"] = np.array([[2, -1], [2, 3]])
    with pytest.raises(errors.CheckpointError, match=r"^lengths must be integers in \[0, 20\], with one"):
        buffer.load_state_dict(state)


def test_a_length_that_seq_lens_cannot_hold_is_refused() -> None:
    buffer = Buffer(1000, "sequences")
    buffer.add({"c": np.zeros(255), "seq_lens": np.array([255], np.uint8)})
    state = buffer.state_dict()
    buffer.load_state_dict(state)
    state["arrays"] |= {"lengths": np.array([256]), "values/c": np.zeros(256)}
    with pytest.raises(
        errors.CheckpointError, match="^array lengths must hold what uint8 of .* seq_lens holds, got 256$"
    ):
        buffer.load_state_dict(state)


def test_item_states_beyond_memory_are_refused() -> None:
    state = state_with("timesteps")
    state["settings"] = state["settings"] | {"capacity": 2**62}
    rule = "^a ItemReplayBuffer cannot be made of its settings: capacity must fit in memory, got "
    with pytest.raises(errors.CheckpointError, match=rule):
        Buffer.from_state(state)
    state = state_with("timesteps", columns=[["c", "<f8", [2**58]]])
    state["arrays"] |= {"lengths": np.zeros(0, int), "values/c": np.zeros((0, 2**58))}
    with pytest.raises(errors.CheckpointError, match="^there is no memory for the rows: .*"):
        Buffer.from_state(state)


def test_a_dtype_that_no_file_holds_is_refused() -> None:
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]})
    buffer = Buffer(10)
    buffer.add({"c": np.zeros(2, overlapping)})
    with pytest.raises(errors.CheckpointError, match="^column c cannot be saved: column c must be of a dtype that"):
        buffer.state_dict()
