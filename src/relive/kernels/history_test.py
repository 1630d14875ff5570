import numpy as np

import relive
from relive.kernels import history as history_lib


def history() -> history_lib.StepStore:
    """Return a history of one open episode that announced an observation, and a stream where nothing began."""
    schema = relive.Schema(
        {"x": relive.Field(2, np.float32), "y": relive.Field((), np.int64)}, relive.Field((), np.int8)
    )
    made = history_lib.StepStore(4, streams=3)
    made.begin(relive.ColumnStorage(schema, 4))
    rows = schema.rows({"x": [[0.0, 0.0]], "y": [0]}, [0], [0.0], {}, (1,))
    next_rows = schema.observation_rows("next_observation", {"x": [[np.nan, 1.0]], "y": [1]}, (1,))
    never = np.array([False])
    made.append(np.array([1]), rows, next_rows, cuts=None, terminated=never, truncated=never)
    return made


def test_only_another_observation_than_the_one_announced_splices() -> None:
    made = history()
    streams = np.array([0, 1, 2])
    same = {"observation/x": np.array([[9, 9], [np.nan, 1], [9, 9]], np.float32), "observation/y": np.array([9, 1, 9])}
    assert made.is_spliced(streams, same) is None
    for path, other in [
        ("observation/x", np.array([[9, 9], [np.nan, 2], [9, 9]], np.float32)),
        ("observation/x", np.array([[9, 9], [0, 1], [9, 9]], np.float32)),
        ("observation/y", np.array([9, 2, 9])),
    ]:
        spliced = made.is_spliced(streams, {**same, path: other})
        assert spliced is not None
        assert spliced.tolist() == [False, True, False]
    minus = {**same, "observation/y": np.array([9, 1, 9])}
    assert made.is_spliced(streams[::-1], minus) is None


def test_a_tail_that_nobody_gave_is_zeros_also_where_another_episode_left_one() -> None:
    made = history()
    schema = made.schema
    handle = made.timeline.open_handles(np.array([1]))
    assert np.isnan(made.tails(handle)["observation/x"][0, 0])
    assert made.tails(handle)["observation/y"].tolist() == [1]
    made.clear()
    rows = schema.rows({"x": [[0.0, 0.0]], "y": [0]}, [0], [0.0], {}, (1,))
    never = np.array([False])
    change = made.append(np.array([1]), rows, None, cuts=None, terminated=~never, truncated=never)
    assert change.handles.tolist() == handle.tolist(), "the place is used again"
    assert made.tails(change.handles)["observation/x"].tolist() == [[0.0, 0.0]]
    assert made.tails(change.handles)["observation/y"].tolist() == [0]


def test_bytes_are_those_of_the_columns_the_tails_and_the_timeline() -> None:
    made = history()
    row, tail = 2 * 4 + 8 + 1 + 8, 2 * 4 + 8
    assert made.nbytes == 4 * row + 3 * tail + made.timeline.nbytes, "an open episode a stream"
    rows = made.schema.rows({"x": [[0.0, 1.0]], "y": [1]}, [0], [0.0], {}, (1,))
    made.append_episode(
        0, rows, made.schema.observation_rows("", {"x": [[0.0, 1.0]], "y": [1]}, (1,)), is_terminated=True
    )
    assert made.nbytes == 4 * row + (3 + 1) * tail + made.timeline.nbytes, "and an ended one"


def test_an_observation_that_differs_in_one_of_its_blocks_alone_splices() -> None:
    image = relive.Field(100, "uint8")
    schema = relive.Schema({"a": image, "b": image}, relive.Field((), "int64"))
    buffer = relive.RingReplayBuffer(10, schema)
    zeros, ones = np.zeros(100, np.uint8), np.ones(100, np.uint8)
    buffer.add({"a": zeros, "b": zeros}, 0, 0.0, {"a": zeros, "b": zeros})
    buffer.add({"a": zeros, "b": zeros}, 0, 0.0, {"a": zeros, "b": zeros})
    assert buffer.get_stats().spliced_episodes == 0
    for count, (a, b) in enumerate([(zeros, ones), (ones, zeros), (ones, ones)], 1):
        buffer.add({"a": a, "b": b}, 0, 0.0, {"a": zeros, "b": zeros})
        assert buffer.get_stats().spliced_episodes == count
