"""Pre-timeline frames: compared with lists that the tests write down themselves."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")

import pandas

import relive
from relive import errors
from relive.integrations import reagent

ARGUMENTS: dict[str, Any] = {"action_probability": "mu", "possible_actions": range(3)}


def timeline(**settings: Any) -> relive.RingReplayBuffer:
    """Return an episode that terminated and one that was truncated."""
    buffer = relive.RingReplayBuffer(9, **settings)
    for key in range(5):
        end = {2: "terminated", 4: "truncated"}.get(key)
        buffer.add(
            np.array([key, key / 2], np.float32),
            key % 3,
            key / 4,
            next_observation=np.array([key + 1, (key + 1) / 2], np.float32),
            **({end: True} if end else {}),
            mu=key / 5,
            possible=np.array([1, key != 4, key > 0], np.uint8),
        )
    return buffer


def test_reagent_gets_a_row_for_each_transition() -> None:
    frame = reagent.pre_timeline_frame(timeline(), **ARGUMENTS)
    assert frame.columns.tolist() == [
        *("mdp_id", "sequence_number", "state_features", "action", "reward", "action_probability"),
        *("possible_actions", "possible_actions_mask", "metrics", "ds"),
    ]
    assert frame["mdp_id"].tolist() == ["0", "0", "0", "3", "3"]
    assert frame["sequence_number"].tolist() == [0, 1, 2, 0, 1]
    assert frame["state_features"].tolist() == [{0: float(key), 1: key / 2} for key in range(5)]
    assert frame["action"].tolist() == ["0", "1", "2", "0", "1"]
    assert frame["reward"].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert frame["metrics"].tolist() == [{"reward": key / 4} for key in range(5)]
    assert frame["action_probability"].tolist() == [key / 5 for key in range(5)]
    assert frame["ds"].tolist() == ["2019-01-01"] * 5
    assert [str(frame[name].dtype) for name in ("sequence_number", "reward", "action_probability")] == [
        "int64", "float64", "float64"
    ]  # fmt: skip


def test_a_terminated_row_has_no_possible_actions() -> None:
    frame = reagent.pre_timeline_frame(timeline(), **ARGUMENTS)
    every = ["0", "1", "2"]
    assert frame["possible_actions"].tolist() == [every, every, [], every, every]
    assert frame["possible_actions_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [], [1, 1, 1], [1, 1, 1]]


def test_a_mask_gives_the_possible_actions() -> None:
    buffer = timeline()
    buffer.add(np.zeros(2, np.float32), 0, 0.0, mu=1.0, possible=np.array([2, 0, 0], np.uint8))
    with pytest.raises(
        errors.ArgumentError, match=r"possible_actions must hold every .* as '1' of key 4, got \['0', '2'\]"
    ):
        reagent.pre_timeline_frame(buffer, action_probability="mu", possible_actions="possible")
    buffer = relive.RingReplayBuffer(9)
    for key in range(3):
        mask = np.array([True, key > 0, False, True])
        buffer.add(0.0, 3 * (key % 2), 0.0, 0.0, terminated=key == 2, mu=0.5, possible=mask)
    frame = reagent.pre_timeline_frame(buffer, action_probability="mu", possible_actions="possible")
    assert frame["possible_actions"].tolist() == [["0", "3"], ["0", "1", "3"], []]
    assert frame["possible_actions_mask"].tolist() == [[1, 0, 0, 1], [1, 1, 0, 1], []]


def test_a_terminated_action_must_be_possible_too() -> None:
    with pytest.raises(errors.ArgumentError, match=r"such as '2' of key 2, got \['0', '1'\]"):
        reagent.pre_timeline_frame(timeline(), action_probability="mu", possible_actions=range(2))


@pytest.mark.parametrize(
    ("actions", "possible", "names"),
    [
        ([True, False], [False, True], ["1", "0"]),
        (np.array(["up", "down"]), ["down", "up"], ["up", "down"]),
        (np.array([3, 5], np.uint8), np.array([5, 3]), ["3", "5"]),
        (np.array([3, 5], ">i2"), iter([3, 4, "5"]), ["3", "5"]),
    ],
)
def test_actions_of_reagent_are_texts(actions: Any, possible: Any, names: list[str]) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add_episode([0, 1, 2], actions, [0.0, 1.0], terminated=False)
    frame = reagent.pre_timeline_frame(buffer, action_probability=None, possible_actions=possible)
    assert frame["action"].tolist() == names
    assert set(names) <= set(frame["possible_actions"][0])
    assert frame["action_probability"].tolist() == [None, None]


def test_vector_actions_are_maps() -> None:
    buffer = relive.RingReplayBuffer(9)
    observations = {"b": np.arange(6.0).reshape(3, 2, 1), "a": np.array([True, False, True])}
    buffer.add_episode(
        observations, np.array([[0.5, -1.0], [2.0, 3.0]]), [0.0, 1.0], terminated=True, action_probability=[0.25, 7.5]
    )
    frame = reagent.pre_timeline_frame(buffer, ds="today")
    assert frame["action"].tolist() == [{0: 0.5, 1: -1.0}, {0: 2.0, 1: 3.0}]
    assert frame["state_features"].tolist() == [{0: 1.0, 1: 0.0, 2: 1.0}, {0: 0.0, 1: 2.0, 2: 3.0}]
    assert frame["action_probability"].tolist() == [0.25, 7.5]
    assert frame["ds"].tolist() == ["today", "today"]
    assert "possible_actions" not in frame
    assert "possible_actions_mask" not in frame
    message = r"possible_actions must be None where an action is not one integer or text, got range\(0, 3\)"
    with pytest.raises(errors.ArgumentError, match=message):
        reagent.pre_timeline_frame(buffer, possible_actions=range(3))


def test_an_evicted_beginning_keeps_its_numbers() -> None:
    buffer = relive.RingReplayBuffer(2)
    buffer.add_episode([0, 1, 2], [0, 1], [0.0, 1.0], terminated=False)
    buffer.add(2, 1, 0.0)
    frame = reagent.pre_timeline_frame(buffer, action_probability=None, possible_actions=range(2))
    assert frame["mdp_id"].tolist() == ["1", "2"]
    assert frame["sequence_number"].tolist() == [1, 0]


def test_final_rows_tell_terminated_episodes_from_others() -> None:
    buffer = timeline()
    mask = np.ones(3, np.uint8)
    buffer.add(
        np.array([7.0, 3.5], np.float32), 1, 0.5, terminated=True, mu=1.0, possible=mask
    )  # The next observation is unknown.
    buffer.add(np.array([8.0, 4.0], np.float32), 2, 0.5, mu=1.0, possible=mask)
    plain = reagent.pre_timeline_frame(buffer, **ARGUMENTS)
    frame = reagent.pre_timeline_frame(buffer, **ARGUMENTS, final_rows=True)
    every = ["0", "1", "2"]
    is_final = frame["action"] == ""
    assert is_final.tolist() == [False, False, False, True, False, False, True, False, True, False]
    told = ["mdp_id", "sequence_number", "state_features", "reward", "possible_actions", "possible_actions_mask", "ds"]
    assert frame.loc[is_final, told].values.tolist() == [
        ["0", 3, {0: 3.0, 1: 1.5}, 0.0, [], [], "2019-01-01"],
        ["3", 2, {0: 5.0, 1: 2.5}, 0.0, every, [1, 1, 1], "2019-01-01"],
        ["5", 1, {}, 0.0, [], [], "2019-01-01"],
    ]
    assert frame.loc[is_final, "action_probability"].isna().all()
    assert frame.loc[is_final, "metrics"].tolist() == [{"reward": 0.0}] * 3
    others = frame[~is_final].reset_index(drop=True)
    assert others["possible_actions"].tolist() == [every] * 7
    assert others["possible_actions_mask"].tolist() == [[1, 1, 1]] * 7
    same = [name for name in plain.columns if not name.startswith("possible_actions")]
    pandas.testing.assert_frame_equal(others[same], plain[same])
    assert frame.columns.equals(plain.columns)


def test_final_rows_need_to_know_all_actions() -> None:
    message = "final_rows must be False unless possible_actions are all actions, got True and "
    with pytest.raises(errors.ArgumentError, match=f"^{message}'possible'$"):
        reagent.pre_timeline_frame(timeline(), action_probability="mu", possible_actions="possible", final_rows=True)
    buffer = relive.RingReplayBuffer(9)
    buffer.add([0.0], [0.0], 0.0)
    with pytest.raises(errors.ArgumentError, match=f"^{message}None$"):
        reagent.pre_timeline_frame(buffer, action_probability=None, final_rows=True)
    with pytest.raises(errors.ArgumentTypeError, match="final_rows must be True or False, got 1"):
        reagent.pre_timeline_frame(timeline(), **ARGUMENTS, final_rows=1)  # type: ignore[arg-type]


def test_no_steps_have_the_same_pre_timeline_columns() -> None:
    buffer = timeline()
    full = reagent.pre_timeline_frame(buffer, **ARGUMENTS)
    buffer.clear()
    empty = reagent.pre_timeline_frame(buffer, **ARGUMENTS)
    assert len(empty) == 0
    assert empty.columns.equals(full.columns)
    assert empty.dtypes.equals(full.dtypes)
    maps = relive.RingReplayBuffer(9)
    maps.add([0.0], [0.0], 0.0)
    full = reagent.pre_timeline_frame(maps, action_probability=None)
    maps.clear()
    assert reagent.pre_timeline_frame(maps, action_probability=None).dtypes.equals(full.dtypes)


MASK = "possible_actions must be all actions, such as range(4), or the name of an extra that is a mask of them, got "
PROBABILITY = (
    "action_probability must be the name of an extra that is one float, or None for a policy that is not stochastic"
    ", got "
)
THERE = "the schema has mu, number, possible, vector"


@pytest.mark.parametrize(
    ("probability", "possible", "message"),
    [
        ("action_probability", range(3), f"{PROBABILITY}'action_probability': {THERE}"),
        ("possible", range(3), f"{PROBABILITY}'possible', a Field((3,), 'uint8')"),
        (3, range(3), f"{PROBABILITY}3: {THERE}"),
        ("vector", range(3), f"{PROBABILITY}'vector', a Field((1,), 'float64')"),
        ("number", range(3), f"{PROBABILITY}'number', a Field((), 'int64')"),
        ("mu", None, f"{MASK}None"),
        ("mu", 3, f"{MASK}3"),
        ("mu", [0, 0.5], f"{MASK}[0, 0.5]"),
        ("mu", "mu", f"{MASK}'mu', a Field((), 'float64')"),
        ("mu", "x", f"{MASK}'x': {THERE}"),
        ("mu", [0, 1, 1], "possible_actions must be distinct, got [0, 1, 1]"),
    ],
)
def test_missing_columns_are_an_error_with_a_remedy(probability: Any, possible: Any, message: str) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add(0.0, 0, 0.0, mu=0.5, number=1, possible=np.ones(3, np.uint8), vector=[0.5])
    with pytest.raises(errors.ArgumentError) as raised:
        reagent.pre_timeline_frame(buffer, action_probability=probability, possible_actions=possible)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("actions", "maps"),
    [(np.array([[1, 2], [3, 4]]), [{0: 1.0, 1: 2.0}, {0: 3.0, 1: 4.0}]), (np.array([0.5, 2.0]), [{0: 0.5}, {0: 2.0}])],
)
def test_vector_and_float_actions_become_maps(actions: Any, maps: Any) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add_episode([0, 1, 2], actions, [0.0, 1.0], terminated=True)
    frame = reagent.pre_timeline_frame(buffer, action_probability=None)
    assert frame["action"].tolist() == maps


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8"])
def test_a_mask_may_hold_bools_or_integers(dtype: str) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add(0.0, 2, 0.0, mask=np.array([1, 0, 1], dtype))
    frame = reagent.pre_timeline_frame(buffer, action_probability=None, possible_actions="mask")
    assert frame["possible_actions"].tolist() == [["0", "2"]]


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_a_mask_must_be_a_vector(shape: Any) -> None:
    schema = relive.Schema(relive.Field((), "f4"), relive.Field((), "i8"), extras={"mask": relive.Field(shape, "bool")})
    with pytest.raises(errors.ArgumentError, match=r"that is a mask of them, got 'mask', a Field\("):
        reagent.pre_timeline_frame(relive.RingReplayBuffer(9, schema), action_probability=None, possible_actions="mask")


def test_a_mask_of_floats_is_refused() -> None:
    schema = relive.Schema(relive.Field((), "f4"), relive.Field((), "i8"), extras={"mask": relive.Field(3, "f4")})
    with pytest.raises(errors.ArgumentError, match=r"got 'mask', a Field\(\(3,\), 'float32'\)"):
        reagent.pre_timeline_frame(relive.RingReplayBuffer(9, schema), action_probability=None, possible_actions="mask")


def test_the_name_of_a_data_set_must_be_a_text() -> None:
    with pytest.raises(errors.ArgumentTypeError, match="ds must be a text, got 2019"):
        reagent.pre_timeline_frame(timeline(), **ARGUMENTS, ds=2019)  # type: ignore[arg-type]


def test_a_buffer_without_extras_is_refused_by_name() -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add(0.0, 0, 0.0)
    with pytest.raises(errors.ArgumentError, match="got 'action_probability': the schema has no extras"):
        reagent.pre_timeline_frame(buffer, possible_actions=[0])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-0.7, r"key 1 must be in \[0, 1\], got -0.7: give np.exp of a logarithm when you add the step$"),
        (1.5, r"key 1 must be in \[0, 1\], got 1.5$"),
        (np.nan, r"key 1 must be in \[0, 1\], got nan$"),
    ],
)
def test_an_impossible_probability_is_refused(value: float, message: str) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add_episode([0, 1, 2, 3], [0, 1, 0], [0.0, 1.0, 2.0], terminated=False, mu=np.array([1.0, value, 0.0]))
    with pytest.raises(errors.ArgumentError, match=f"^action_probability of {message}"):
        reagent.pre_timeline_frame(buffer, action_probability="mu", possible_actions=range(2))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_probability_rounded_above_one_is_accepted(dtype: Any) -> None:
    eps = np.finfo(dtype).eps
    for ulps in (1, 4, 5):
        buffer = relive.RingReplayBuffer(9)
        value = dtype(1) + dtype(ulps * eps)
        buffer.add_episode([0, 1, 2], [0, 1], [0.0, 1.0], terminated=False, mu=np.array([value, 0.5], dtype))
        if ulps < 5:
            frame = reagent.pre_timeline_frame(buffer, action_probability="mu", possible_actions=range(2))
            assert frame["action_probability"].tolist() == [1.0, 0.5]
            continue
        with pytest.raises(errors.ArgumentError, match=r"^action_probability of key 0 must be in \[0, 1\], got 1.0"):
            reagent.pre_timeline_frame(buffer, action_probability="mu", possible_actions=range(2))


@pytest.mark.parametrize("value", [-0.5, np.inf, np.nan])
def test_a_negative_density_is_refused(value: float) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add([0.0], [0.0], 0.0, action_probability=value)
    message = f"action_probability of key 0 must be finite and at least 0, got {value}"
    with pytest.raises(errors.ArgumentError, match=message):
        reagent.pre_timeline_frame(buffer)


def test_features_must_fit_a_float() -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add({"a": 0.0, "b": 2**53 + 1}, [0.0], 0.0)
    with pytest.raises(errors.SchemaError, match="observation/b must fit float64, got 9007199254740993"):
        reagent.pre_timeline_frame(buffer, action_probability=None)
    buffer = relive.RingReplayBuffer(9)
    buffer.add("a word", [0.0], 0.0)
    with pytest.raises(errors.SchemaError, match="observation must be of dtype float64, got "):
        reagent.pre_timeline_frame(buffer, action_probability=None)


def test_features_of_different_parts_are_distinguished() -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add([1.0], {"x": 2.0, "y": [3.0, 4.0]}, 0.0, action_x=5.0, observation_=6.0)
    frame = reagent.pre_timeline_frame(buffer, action_probability=None)
    assert frame["action"].tolist() == [{0: 2.0, 1: 3.0, 2: 4.0}]
    assert frame["state_features"].tolist() == [{0: 1.0}]


def test_a_table_for_reagent_needs_a_buffer_with_a_schema() -> None:
    with pytest.raises(
        errors.NotReadyError, match="pre_timeline_frame has no columns, as the buffer has no schema yet"
    ):
        reagent.pre_timeline_frame(relive.RingReplayBuffer(8))
    wrong: Any = None
    with pytest.raises(errors.ArgumentTypeError, match="buffer must be an instance of ColumnReplayBuffer, got None"):
        reagent.pre_timeline_frame(wrong)
    wrong = 3
    with pytest.raises(errors.ArgumentTypeError, match="progress must be callable or None, got 3"):
        reagent.pre_timeline_frame(timeline(), progress=wrong, **ARGUMENTS)


def test_progress_of_reagent_is_reported() -> None:
    told: list[tuple[int, int]] = []
    reagent.pre_timeline_frame(timeline(), **ARGUMENTS, progress=lambda *numbers: told.append(numbers))
    assert [5 * number // total for number, total in told] == [3, 5]
