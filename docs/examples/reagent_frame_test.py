"""The frame for ReAgent, compared with lists that the tests write down themselves."""

import pathlib
import runpy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")

import reagent_frame

import relive


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
            possible=np.array([1, 1, key > 0], np.uint8),
        )
    return buffer


def test_each_step_is_a_row_once_and_in_order() -> None:
    frame = reagent_frame.pre_timeline_frame(timeline(), range(3), action_probability="mu")
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


def test_a_terminated_row_has_no_possible_actions() -> None:
    every, first = ["0", "1", "2"], ["0", "1"]
    frame = reagent_frame.pre_timeline_frame(timeline(), range(3))
    assert frame["possible_actions"].tolist() == [every, every, [], every, every]
    assert frame["possible_actions_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [], [1, 1, 1], [1, 1, 1]]
    assert frame["action_probability"].tolist() == [None] * 5
    frame = reagent_frame.pre_timeline_frame(timeline(), "possible")
    assert frame["possible_actions"].tolist() == [first, every, [], every, every]
    assert frame["possible_actions_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [], [1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("actions", "possible", "names"),
    [
        ([True, False], [False, True], ["1", "0"]),
        (["down", "up"], ["up", "down"], ["down", "up"]),
        (np.array([3, 5], np.uint8), np.array([5, 3]), ["3", "5"]),
    ],
)
def test_actions_are_texts_and_observations_are_numbered(actions: Any, possible: Any, names: list[str]) -> None:
    buffer = relive.RingReplayBuffer(2)
    first, second, third = ({"b": np.array([[t], [t / 2]]), "a": np.bool_(t % 2)} for t in (0, 1, 2))
    buffer.add(first, actions[0], 0.0, second)
    buffer.add(second, actions[0], 0.0, third)
    buffer.add(third, actions[1], 1.0)
    frame = reagent_frame.pre_timeline_frame(buffer, possible, ds="today")
    assert frame["action"].tolist() == names
    assert frame["mdp_id"].tolist() == ["1", "1"]
    assert frame["sequence_number"].tolist() == [1, 2], "the first step was evicted"
    assert frame["state_features"].tolist() == [{0: 1.0, 1: 1.0, 2: 0.5}, {0: 0.0, 1: 2.0, 2: 1.0}]
    assert frame["ds"].tolist() == ["today"] * 2


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^action 2 of key 2 must be possible, got \['0', '1'\]$"):
        reagent_frame.pre_timeline_frame(timeline(), range(2))
    for mu in (-0.5, 1.5, np.nan):
        buffer = relive.RingReplayBuffer(9)
        buffer.add(0.0, 0, 0.0, mu=mu)
        with pytest.raises(ValueError, match=rf"^mu of key 0 must be in \[0, 1\], got {mu}$"):
            reagent_frame.pre_timeline_frame(buffer, range(2), action_probability="mu")


def test_the_program_prints_a_frame(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(pathlib.Path(reagent_frame.__file__)), run_name="__main__")
    header, first, last = capsys.readouterr().out.splitlines()
    assert "possible_actions_mask" in header
    assert "[0, 1]" in first
    assert "[]" in last
