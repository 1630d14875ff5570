"""Frames of pandas: compared with lists that the tests write down themselves."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")

import pandas

import relive
from relive import errors
from relive.integrations import pandas as relive_pandas
from relive.integrations import stored_episodes

SCHEMA = relive.Schema(
    {"image": relive.Field((2, 2), "uint8"), "state": relive.Field(2, ">f4")},
    relive.Field((), "int64"),
    reward=relive.Field((), "float32"),
    extras={"logp": relive.Field((), "float64"), "policy": {"name": relive.Field((), "<U3")}},
)
MARKS = ["key", "stream", "episode", "step", "terminated", "truncated"]


def observation(number: int) -> dict[str, Any]:
    return {"image": np.full((2, 2), number, np.uint8), "state": np.array([number, number / 4], ">f4")}


def rest(number: int) -> dict[str, Any]:
    return {"action": number % 3, "reward": number / 8, "logp": -number / 3, "policy": {"name": f"p{number % 7}"}}


def filled() -> relive.RingReplayBuffer:
    """Return steps 2 to 9 of ten, in two streams; the observation of step k is number 10 * stream + its step."""
    buffer = relive.RingReplayBuffer(8, SCHEMA, streams=2, seed=0)
    for k in range(10):
        stream, step = k % 2, k // 2
        more: dict[str, Any] = {}
        if k == 5:  # The third step of stream 1.
            more = {"next_observation": observation(13), "truncated": True}
        if k == 8:  # The fifth step of stream 0.
            more = {"next_observation": observation(99), "terminated": True}
        buffer.add(observation(10 * stream + step), **rest(k), **more, stream=stream)
    return buffer


def test_each_row_of_a_frame_names_its_stream_and_episode() -> None:
    frame = relive_pandas.steps_frame(filled())
    assert frame.columns.tolist() == [
        *MARKS,
        *("observation/image", "observation/state[0]", "observation/state[1]", "action", "reward"),
        *("extras/logp", "extras/policy/name", "has_next_observation"),
        *("next_observation/image", "next_observation/state[0]", "next_observation/state[1]"),
    ]
    assert frame[MARKS].values.tolist() == [
        [2, 0, 2, 1, False, False],
        [4, 0, 2, 2, False, False],
        [6, 0, 2, 3, False, False],
        [8, 0, 2, 4, True, False],
        [3, 1, 3, 1, False, False],
        [5, 1, 3, 2, False, True],
        [7, 1, 7, 0, False, False],
        [9, 1, 7, 1, False, False],
    ]
    assert frame.index.equals(pandas.RangeIndex(8))


def test_fields_are_columns_of_their_dtypes() -> None:
    frame = relive_pandas.steps_frame(filled())
    keys = [2, 4, 6, 8, 3, 5, 7, 9]
    numbers = [1, 2, 3, 4, 11, 12, 13, 14]
    assert frame["action"].tolist() == [key % 3 for key in keys]
    assert frame["reward"].tolist() == [key / 8 for key in keys]
    assert frame["extras/logp"].tolist() == [-key / 3 for key in keys]
    assert frame["extras/policy/name"].tolist() == [f"p{key % 7}" for key in keys]
    assert frame["observation/state[0]"].tolist() == numbers
    assert frame["observation/state[1]"].tolist() == [number / 4 for number in numbers]
    assert [cell.tolist() for cell in frame["observation/image"]] == [[[number] * 2] * 2 for number in numbers]
    assert frame["observation/image"][0].dtype == np.uint8
    dtypes = {name: str(frame[name].dtype) for name in ("key", "terminated", "action", "reward", "extras/logp")}
    assert dtypes == {
        "key": "int64", "terminated": "bool", "action": "int64", "reward": "float32", "extras/logp": "float64"
    }  # fmt: skip
    assert frame["observation/state[0]"].dtype == np.dtype("f4")


def test_each_row_of_a_frame_has_its_next_observation() -> None:
    frame = relive_pandas.steps_frame(filled())
    assert frame["has_next_observation"].tolist() == [True] * 7 + [False]
    following = [2, 3, 4, 99, 12, 13, 14, 0]
    assert frame["next_observation/state[0]"].tolist() == following
    assert frame["next_observation/state[1]"].tolist() == [number / 4 for number in following]
    assert [cell[0, 0] for cell in frame["next_observation/image"]] == following


def test_fields_of_a_frame_can_be_chosen() -> None:
    frame = relive_pandas.steps_frame(filled(), fields=["reward", "action"])
    assert frame.columns.tolist() == [*MARKS, "action", "reward"]
    frame = relive_pandas.steps_frame(filled(), fields={"observation/state"})
    assert frame.columns.tolist() == [
        *MARKS, "observation/state[0]", "observation/state[1]",
        "has_next_observation", "next_observation/state[0]", "next_observation/state[1]",
    ]  # fmt: skip
    assert relive_pandas.steps_frame(filled(), fields=[]).columns.tolist() == MARKS
    message = "fields must be among observation/image, .*, extras/policy/name, got 'state'"
    with pytest.raises(errors.ArgumentError, match=message):
        relive_pandas.steps_frame(filled(), fields=["state"])
    with pytest.raises(errors.ArgumentTypeError, match="fields must be a collection of paths, got 'reward'"):
        relive_pandas.steps_frame(filled(), fields="reward")
    with pytest.raises(errors.ArgumentTypeError, match="fields must be a collection of paths, got 3"):
        relive_pandas.steps_frame(filled(), fields=3)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match=r"fields must be among .*, got \['reward'\]"):
        relive_pandas.steps_frame(filled(), fields=[["reward"]])  # type: ignore[list-item]


def test_fields_may_be_an_iterator() -> None:
    frame = relive_pandas.steps_frame(filled(), fields=(path for path in ("reward", "action")))
    assert frame.columns.tolist() == [*MARKS, "action", "reward"]


def test_no_steps_have_the_same_columns() -> None:
    frame = relive_pandas.steps_frame(relive.RingReplayBuffer(8, SCHEMA))
    full = relive_pandas.steps_frame(filled())
    assert len(frame) == 0
    assert frame.dtypes.drop("extras/policy/name").equals(full.dtypes.drop("extras/policy/name"))
    assert frame.columns.equals(full.columns)


def test_the_frame_owns_its_memory() -> None:
    buffer = filled()
    before = [each.rewards.tolist() for each in stored_episodes.stored_episodes(buffer)]
    frame = relive_pandas.steps_frame(buffer)
    frame["observation/image"][0][...] = 255
    frame["reward"] = 77.0
    assert relive_pandas.steps_frame(buffer)["observation/image"][0].tolist() == [[1, 1], [1, 1]]
    assert [each.rewards.tolist() for each in stored_episodes.stored_episodes(buffer)] == before


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.float16(0.5), "float16"),
        (np.uint8(3), "uint8"),
        (np.complex64(1j), "complex64"),
        (np.longdouble(0.1), np.dtype(np.longdouble)),
        (np.datetime64("2020-01-01", "ms"), "datetime64[ms]"),
        (np.timedelta64(3, "s"), "timedelta64[s]"),
        (np.array(3, ">i4"), "int32"),
    ],
)
def test_dtypes_that_pandas_has_are_kept(value: Any, dtype: Any) -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add(0.0, 0, 0.0, odd=value)
    column = relive_pandas.steps_frame(buffer)["extras/odd"]
    assert column.dtype == dtype
    assert column[0] == value


@pytest.mark.parametrize(
    "value",
    [
        np.bytes_(b"a\0b"),
        np.datetime64("2020-01-01T00:00:00.000000000001", "ps"),
        np.datetime64("2020-01-01", "D"),
        np.array(3, "M8[25s]"),
        np.array((1.5, [1, 2]), [("x", "f4"), ("y", "i2", 2)]),
    ],
)
def test_values_without_a_pandas_dtype_stay_cells_of_numpy(value: Any) -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add(0.0, 0, 0.0, odd=value)
    column = relive_pandas.steps_frame(buffer)["extras/odd"]
    assert column.dtype == object
    assert column[0].dtype == value.dtype
    assert column[0].tobytes() == value.tobytes()


def test_texts_have_the_string_dtype_of_pandas() -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add(0.0, 0, 0.0, word="žluť")
    frame = relive_pandas.steps_frame(buffer)
    assert frame["extras/word"].tolist() == ["žluť"]
    assert frame["extras/word"].dtype == pandas.DataFrame({"word": np.array(["a"])})["word"].dtype


def test_vectors_of_nothing_have_no_columns() -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add(np.zeros(0), 0, 0.0, empty=np.zeros((2, 0)))
    frame = relive_pandas.steps_frame(buffer)
    assert frame.columns.tolist() == [*MARKS, "action", "reward", "extras/empty", "has_next_observation"]
    assert frame["extras/empty"][0].shape == (2, 0)


def test_two_columns_of_one_name_are_refused() -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add({"x": np.zeros(2), "x[1]": 0.0}, 0, 0.0)
    message = r"fields must not make two columns of one name, got observation/x\[1\]: leave one out"
    with pytest.raises(errors.ArgumentError, match=message):
        relive_pandas.steps_frame(buffer)
    relive_pandas.steps_frame(buffer, fields=["observation/x"])


def test_a_frame_needs_a_buffer_with_a_schema() -> None:
    with pytest.raises(errors.NotReadyError, match="steps_frame has no columns, as the buffer has no schema yet"):
        relive_pandas.steps_frame(relive.RingReplayBuffer(8))
    wrong: Any = None
    with pytest.raises(errors.ArgumentTypeError, match="buffer must be an instance of ColumnReplayBuffer, got None"):
        relive_pandas.steps_frame(wrong)
