"""Tests of group advantages and truncated importance weights, with naive twins that take one sequence at a time."""

import fractions
import math
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors

NUMBERS = st.integers(-8, 8).map(lambda n: n / 4)
EPISODES = st.lists(st.tuples(st.lists(NUMBERS, max_size=4), st.sampled_from("abc")), max_size=8)
ROWS = st.lists(st.tuples(NUMBERS, st.sampled_from("abc")), max_size=12)


def naive(returns: list[float], group_ids: list[Any], place: int, normalize: str) -> fractions.Fraction | float:
    """Return the advantage of one sequence from the definition, with exact sums."""
    group = [
        fractions.Fraction(each) for each, name in zip(returns, group_ids, strict=True) if name == group_ids[place]
    ]
    own = fractions.Fraction(returns[place])
    if normalize == "leave_one_out":
        others = sum(group) - own
        return own - others / (len(group) - 1) if len(group) > 1 else 0.0
    mean = sum(group) / len(group)
    if normalize == "mean":
        return own - mean
    squares = sum((each - mean) ** 2 for each in group)
    return float(own - mean) / math.sqrt(squares / (len(group) - 1)) if squares else 0.0


@pytest.mark.parametrize("normalize", ["mean", "mean_std", "leave_one_out"])
@hypothesis.given(rows=ROWS)
def test_advantages_are_those_of_the_definition(normalize: Any, rows: list[tuple[float, str]]) -> None:
    returns, group_ids = [number for number, _ in rows], [name for _, name in rows]
    found = relive.group_advantages(returns, group_ids, normalize=normalize)
    assert (found.shape, found.dtype.str) == ((len(rows),), "<f8")
    for place, advantage in enumerate(found.tolist()):
        expected = naive(returns, group_ids, place, normalize)
        assert abs(advantage - expected) <= 8 * math.ulp(4.0)
        assert (advantage == 0) == (expected == 0)


@hypothesis.given(rows=ROWS, seed=st.integers(0, 99), normalize=st.sampled_from(["mean", "mean_std", "leave_one_out"]))
def test_advantages_do_not_depend_on_the_order(rows: list[tuple[float, str]], seed: int, normalize: Any) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))
    returns, group_ids = np.array([number for number, _ in rows]), np.array([name for _, name in rows])
    found = relive.group_advantages(returns, group_ids, normalize=normalize)
    shuffled = relive.group_advantages(returns[order], group_ids[order], normalize=normalize)
    assert shuffled.tolist() == found[order].tolist()


@pytest.mark.parametrize("normalize", ["mean", "mean_std", "leave_one_out"])
def test_equal_returns_give_zeros_however_means_round(normalize: Any) -> None:
    for number in (0.1, 1 / 3, 1e308, -7.7):
        for count in range(1, 12):
            found = relive.group_advantages([number] * count, ["g"] * count, normalize=normalize)
            assert found.tolist() == [0.0] * count


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_the_deviation_neither_overflows_nor_vanishes(scale: float) -> None:
    found = relive.group_advantages([scale, 0.0, 0.0, 0.0], ["g"] * 4, normalize="mean_std")
    assert found.tolist() == [1.5, -0.5, -0.5, -0.5]


def test_epsilon_is_added_to_the_deviation_of_the_sample() -> None:
    def of(returns: list[float], epsilon: float) -> list[float]:
        found = relive.group_advantages(returns, ["g"] * len(returns), normalize="mean_std", epsilon=epsilon)
        return list(found.tolist())

    assert of([1, 0, 0, 0], 0.0) == [1.5, -0.5, -0.5, -0.5]
    assert of([1, 0, 0, 0], 0.5) == [0.75, -0.25, -0.25, -0.25]
    assert of([3e-300, 1e-300, 2e-300], 1.0) == pytest.approx([1e-300, -1e-300, 0.0], rel=1e-15, abs=0)
    assert of([5e-324, 0.0], 1e300) == [0.0, 0.0]
    assert of([1e308, 0.0, 0.0, 0.0], 1e308) == pytest.approx([0.5, -1 / 6, -1 / 6, -1 / 6], rel=1e-15)
    assert of([0.7] * 3, 1e-4) == [0.0] * 3
    assert of([2.5], 1e-4) == [0.0]
    turns = relive.group_advantages([[1, 1], [0], [0], [0]], ["g"] * 4, normalize="mean_std", epsilon=0.5, by="turn")
    assert [row.tolist() for row in turns] == [[0.75, 0.0], [-0.25], [-0.25], [-0.25]]


def test_the_sequences_of_an_episode_count_as_one() -> None:
    returns, groups, episodes = [3.0, 3.0, 3.0, 0.0], [("p", 1)] * 4, ["e", "e", "e", 7]
    found = relive.group_advantages(returns, groups, episode_ids=episodes)
    assert found.tolist() == [1.5, 1.5, 1.5, -1.5]
    assert relive.group_advantages(returns, groups).tolist() == [0.75, 0.75, 0.75, -2.25]


@hypothesis.given(
    rows=st.lists(st.lists(st.floats(-1e9, 1e9), max_size=6), max_size=4), gamma=st.sampled_from([1.0, 0.99, 0.5])
)
def test_returns_to_go_are_those_of_the_definition(rows: list[list[float]], gamma: float) -> None:
    found = relive.returns_to_go([np.array(row) for row in rows], gamma)
    assert [row.dtype.str for row in found] == ["<f8"] * len(rows)
    for row, returns in zip(rows, found, strict=True):
        expected = 0.0
        for t in reversed(range(len(row))):
            expected = row[t] + gamma * expected
            assert returns[t] == expected
        assert len(returns) == len(row)


def test_returns_to_go_take_rows_of_several_kinds() -> None:
    rows: list[Any] = [(1, 2), np.array([0.5], np.float32), [], np.array([3, 1], np.uint8)]
    found = relive.returns_to_go(iter(rows), gamma=0.5)
    assert [row.tolist() for row in found] == [[2.0, 2.0], [0.5], [], [3.5, 1.0]]
    assert relive.returns_to_go([], gamma=1) == []


@pytest.mark.parametrize("normalize", ["mean", "mean_std", "leave_one_out"])
@hypothesis.given(episodes=EPISODES)
def test_turns_are_compared_with_the_same_turn(normalize: Any, episodes: list[tuple[list[float], str]]) -> None:
    rows, groups = [row for row, _ in episodes], [name for _, name in episodes]
    found = relive.group_advantages(rows, groups, normalize=normalize, by="turn")
    assert [(len(row), row.dtype.str) for row in found] == [(len(row), "<f8") for row in rows]
    for t in range(4):
        places = [place for place, row in enumerate(rows) if len(row) > t]
        returns, names = [rows[place][t] for place in places], [groups[place] for place in places]
        alone = relive.group_advantages(returns, names, normalize=normalize, by="episode")
        assert [found[place][t] for place in places] == alone.tolist()


def test_turns_of_uneven_groups_have_the_members_they_have() -> None:
    rows = [[1.0, 4.0, 0.1], [3.0, 0.0], [], [0.3]]
    found = relive.group_advantages(rows, ["p", "p", "p", "q"], by="turn")
    assert [row.tolist() for row in found] == [[-1.0, 2.0, 0.0], [1.0, -2.0], [], [0.0]]
    assert relive.group_advantages([], [], by="turn") == []
    square = relive.group_advantages(np.array([[1.0, 4.0], [3.0, 0.0]]), ["p", "p"], by="turn")
    assert [row.tolist() for row in square] == [[-1.0, 2.0], [1.0, -2.0]]
    square[0][:] = 7.0
    assert square[1].tolist() == [1.0, -2.0]


def test_turns_of_an_episode_in_several_sequences_count_once() -> None:
    rows = [[3.0, 1.0], [3.0, 1.0], [0.0, 0.0]]
    found = relive.group_advantages(rows, ["p"] * 3, episode_ids=["e", "e", "f"], by="turn")
    assert [row.tolist() for row in found] == [[1.5, 0.5], [1.5, 0.5], [-1.5, -0.5]]


CALLS: list[tuple[Any, dict[str, Any]]] = [
    (relive.returns_to_go, {"rows": [[1.0]], "gamma": 1.0}),
    (
        relive.truncated_importance_weights,
        {"logprobs": [-1.0, -1.0], "behaviour_logprobs": [-1.0, -1.0], "limit": 2.0, "mask": None},
    ),
    (relive.group_advantages, {"returns": [1.0, 2.0], "group_ids": ["g", "g"], "normalize": "leave_one_out"}),
]
TURNS: dict[str, Any] = {"returns": [[1.0], [2.0]], "by": "turn"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"normalize": "std"}, "normalize must be 'mean' or .*, got 'std': say 'mean_std'"),
        ({"normalize": "grpo"}, "normalize must be 'mean' or .*, got 'grpo': say 'mean_std'"),
        ({"normalize": "dr_grpo"}, "normalize must be 'mean' or .*, got 'dr_grpo': say 'mean'"),
        ({"normalize": "rloo"}, "normalize must be 'mean' or .*, got 'rloo': say 'leave_one_out'"),
        ({"normalize": "batch"}, "normalize must be 'mean' or 'mean_std' or 'leave_one_out', got 'batch'"),
        ({"normalize": ["std"]}, r"normalize must be 'mean' or 'mean_std' or 'leave_one_out', got \['std'\]"),
        ({"epsilon": 1e-4}, "epsilon must be 0 unless normalize is 'mean_std', got 0.0001"),
        ({"epsilon": -1e-4, "normalize": "mean_std"}, "epsilon must be at least 0, got -0.0001"),
        ({"epsilon": math.inf}, "epsilon must be a finite real number, got inf"),
        ({"epsilon": "x"}, "epsilon must be a finite real number, got 'x'"),
        ({"returns": ["x", "y"]}, r"returns must be real numbers, got \['x', 'y'\]"),
        ({"returns": [[1.0], [1.0, 2.0]]}, "returns must be real numbers, got .*"),
        ({"returns": [True, False]}, r"returns must be real numbers, got \[True, False\]"),
        ({"returns": 3.0}, r"returns must be of shape \[B\], got \[\]"),
        ({"returns": [[1.0, 2.0]]}, r"returns must be of shape \[B\], got \[1, 2\]"),
        ({"returns": [1.0, math.nan]}, "returns must be finite, got nan at position 1"),
        ({"returns": [1.0, -math.inf]}, "returns must be finite, got -inf at position 1"),
        ({"returns": [1e308, -1e308]}, "returns must have sums and differences that a float holds, got larger ones"),
        ({"group_ids": "gg"}, "group_ids must be a list of ids, got 'gg'"),
        ({"group_ids": 3}, "group_ids must be a list of ids, got 3"),
        ({"group_ids": ["g"]}, "group_ids must be one for each of 2 returns, got 1"),
        ({"group_ids": ["g", None]}, "group_ids must be ids, such as strings, got None at position 1"),
        ({"group_ids": [[], "g"]}, r"group_ids must be ids, such as strings, got \[\] at position 0"),
        ({"group_ids": ["g", (["p"], 1)]}, r"group_ids must be ids, such as strings, got \(\['p'\], 1\) at position 1"),
        ({"episode_ids": [{}, "e"]}, r"episode_ids must be ids, such as strings, got {} at position 0"),
        ({"episode_ids": ["e"]}, "episode_ids must be one for each of 2 returns, got 1"),
        (
            {"episode_ids": ["e", "e"]},
            r"sequences of one episode must have one group and one return, got \('g', 1.0\) and \('g', 2.0\) for 'e'",
        ),
        ({"by": "token"}, "by must be 'episode' or 'turn', got 'token'"),
        (TURNS | {"returns": 3.0}, "returns must be a list of rows, got 3.0"),
        (TURNS | {"returns": [1.0, 2.0]}, r"row 0 of returns must be of shape \[T\], got \[\]"),
        (TURNS | {"returns": [[1.0], ["x"]]}, r"row 1 of returns must be real numbers, got \['x'\]"),
        (TURNS | {"returns": [[1.0], [2.0, math.inf]]}, "row 1 of returns must be finite, got inf at position 1"),
        (TURNS | {"returns": [[1e308], [-1e308]]}, "returns must have sums and differences .*, got larger ones"),
        (TURNS | {"group_ids": ["g"]}, "group_ids must be one for each of 2 returns, got 1"),
        (TURNS | {"episode_ids": ["e"]}, "episode_ids must be one for each of 2 returns, got 1"),
        (
            TURNS | {"returns": [[1.0], [1.0, 2.0]], "episode_ids": ["e", "e"]},
            r"sequences of one .*, got \('g', \[1.0\]\) and \('g', \[1.0, 2.0\]\) for 'e'",
        ),
        ({"gamma": 0.0}, r"gamma must be in \(0, 1\], got 0.0"),
        ({"gamma": 1.5}, r"gamma must be in \(0, 1\], got 1.5"),
        ({"gamma": "x"}, r"gamma must be a number in \(0, 1\], got 'x'"),
        ({"rows": 3}, "rows must be a list of rows, got 3"),
        ({"rows": [1.0, 2.0]}, r"row 0 must be of shape \[T\], got \[\]"),
        ({"rows": [[1.0], [[2.0]]]}, r"row 1 must be of shape \[T\], got \[1, 1\]"),
        ({"rows": [[1.0], ["x"]]}, r"row 1 must be real numbers, got \['x'\]"),
        ({"rows": [[1.0], [0.0, math.nan]]}, "row 1 must be finite, got nan at position 1"),
        ({"rows": [[1e308, 1e308]]}, "row 0 must have sums that a float holds, got larger ones"),
        ({"rows": [[-1e308, 1e308, 1e308, -math.inf]]}, "row 0 must be finite, got -inf at position 3"),
        ({"limit": 0}, "limit must be above 0, got 0.0"),
        ({"limit": -1}, "limit must be at least 0, got -1"),
        ({"limit": math.inf}, "limit must be .*, got inf"),
        ({"logprobs": "x"}, "logprobs must be real numbers, got 'x'"),
        ({"behaviour_logprobs": [-1.0]}, r"behaviour_logprobs must be of the shape of logprobs, \[2\], got \[1\]"),
        ({"mask": [True]}, r"mask must be of the shape of logprobs, \[2\], got \[1\]"),
        ({"mask": [1, 0]}, r"mask must be bools, got \[1, 0\]"),
        ({"mask": [[True], [True, False]]}, r"mask must be bools, got \[\[True\], \[True, False\]\]"),
        (
            {"logprobs": [-1.0, math.nan]},
            r"logprobs - behaviour_logprobs must be a number where the mask is True, got nan at position \(1,\)",
        ),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], text: str) -> None:
    """Those of the call that has an argument of the name; the last has all others."""
    call, defaults = next((each for each in CALLS[:2] if arguments.keys() <= each[1].keys()), CALLS[2])
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        call(**defaults | arguments)


@hypothesis.given(
    rows=st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0), st.booleans()), max_size=12),
    limit=st.sampled_from([0.5, 1.0, 2.0, 1e9]),
)
def test_weights_are_those_of_the_definition(rows: list[tuple[float, float, bool]], limit: float) -> None:
    logprobs, behaviour = ([row[place] for row in rows] for place in (0, 1))
    mask = np.array([row[2] for row in rows], bool)
    found = relive.truncated_importance_weights(logprobs, behaviour, limit=limit, mask=mask)
    assert (found.shape, found.dtype.str) == ((len(rows),), "<f8")
    for weight, (own, other, is_used) in zip(found.tolist(), rows, strict=True):
        expected = min(math.exp(own - other), limit) if is_used else 0.0
        assert weight == pytest.approx(expected, rel=1e-14, abs=0)
        assert weight <= limit


def test_weights_are_exact_where_policies_agree_and_at_the_limit() -> None:
    logprobs = np.array([[-0.3, -1.0, -7.0], [-0.3, -math.inf, 0.0]], np.float32)
    behaviour = np.array([[-0.3, -9.0, -1.0], [-900.0, -0.5, -math.inf]], np.float32)
    found = relive.truncated_importance_weights(logprobs, behaviour, limit=2)
    assert found[0, :2].tolist() == [1.0, 2.0]
    assert found[1].tolist() == [2.0, 0.0, 2.0]
    assert 0 < found[0, 2] < 0.003


def test_values_outside_of_the_mask_are_ignored() -> None:
    odd = np.array([math.nan, math.inf, -math.inf, -1.0])
    mask = np.array([False, False, False, True])
    found = relive.truncated_importance_weights(odd, odd, limit=1.0, mask=mask)
    assert found.tolist() == [0.0, 0.0, 0.0, 1.0]
