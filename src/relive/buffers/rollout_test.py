"""Tests of the rollout, with equation 16 of Schulman et al. 2016 written out in plain Python as a twin."""

from collections.abc import Sequence
import fractions
import math
from typing import Any, TypeAlias

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.common import trees
from relive.testing import zoo

plain = zoo.plain
# reward, value, terminated, truncated, next_value
Step: TypeAlias = tuple[Any, Any, bool, bool, Any]


def rollout_of(steps: Sequence[Step]) -> relive.RolloutBuffer:
    rollout = relive.RolloutBuffer(len(steps))
    for t, (reward, value, terminated, truncated, next_value) in enumerate(steps):
        rollout.add(float(t), t, reward, value, terminated=terminated, truncated=truncated, next_value=next_value)
    return rollout


def written_out(steps: Sequence[Step], gamma: Any, lambda_: Any, last_value: Any) -> tuple[list[Any], list[Any]]:
    """Return the sum over l of (gamma lambda)^l delta_{t+l} to the end of t's episode, and that plus the value."""
    deltas = []
    for t, (reward, value, terminated, truncated, next_value) in enumerate(steps):
        if terminated:
            after = 0
        elif truncated:
            after = next_value
        else:
            after = steps[t + 1][1] if t + 1 < len(steps) else last_value
        deltas.append(reward + gamma * after - value)
    advantages = []
    for t in range(len(steps)):
        end = t
        while end + 1 < len(steps) and not (steps[end][2] or steps[end][3]):
            end += 1
        advantages.append(sum((gamma * lambda_) ** (k - t) * deltas[k] for k in range(t, end + 1)))
    return advantages, [advantage + step[1] for advantage, step in zip(advantages, steps, strict=True)]


# Tables worked out by hand.


def test_advantages_worked_out_by_hand() -> None:
    rollout = rollout_of([(1.0, 0.5, False, False, 0), (2.0, 0.25, False, False, 0), (3.0, 4.0, False, False, 0)])
    for lambda_, advantages in [
        (0, [0.625, 3.75, 3.0]),  # 1 + .25/2 - .5, 2 + 4/2 - .25, 3 + 8/2 - 4
        (1, [3.25, 5.25, 3.0]),  # 1 + 5.5/2 - .5, 2 + 7/2 - .25, 3 + 8/2 - 4
        (0.5, [0.625 + 3.75 / 4 + 3 / 16, 3.75 + 3 / 4, 3.0]),  # Errors fade by gamma times lambda.
    ]:
        answer, returns = rollout.advantages(0.5, lambda_, last_value=8.0)
        assert answer.tolist() == advantages
        assert returns.tolist() == (answer + np.array([0.5, 0.25, 4.0])).tolist()


def test_next_value_of_a_step_that_was_not_truncated_is_not_read() -> None:
    nan = math.nan
    rollout = rollout_of([(1.0, 2.0, False, False, nan), (1.0, 2.0, True, False, nan), (1.0, 2.0, True, True, nan)])
    assert rollout.advantages(1, 1, last_value=nan)[1].tolist() == [2.0, 1.0, 1.0]


def test_a_value_that_is_no_number_stays_in_its_own_episode() -> None:
    rollout = rollout_of([(1.0, 2.0, False, False, 0), (1.0, 2.0, False, True, 4.0), (1.0, math.nan, True, False, 0)])
    assert rollout.advantages(1, 1)[1][:2].tolist() == [6.0, 5.0]


# The twin.

EIGHTHS = st.integers(-64, 64).map(lambda number: fractions.Fraction(number, 8))


def steps_of(numbers: Any) -> Any:
    return st.lists(st.tuples(numbers, numbers, st.booleans(), st.booleans(), numbers), min_size=1, max_size=8)


@hypothesis.given(
    steps=steps_of(EIGHTHS), gamma=st.sampled_from([1, 0.5, 0.25]), lambda_=st.sampled_from([0, 0.5, 1]), last=EIGHTHS
)
def test_advantages_equal_the_written_out_sums(
    steps: list[Step], gamma: float, lambda_: float, last: fractions.Fraction
) -> None:
    """All of these numbers and their sums are exact in floats."""
    rollout = rollout_of([tuple(map(float, step)) for step in steps])  # type: ignore[misc]
    advantages, returns = rollout.advantages(gamma, lambda_, float(last))
    expected = written_out(steps, fractions.Fraction(gamma), fractions.Fraction(lambda_), last)
    assert (advantages.tolist(), returns.tolist()) == expected


@hypothesis.given(
    size=st.integers(1, 4), length=st.integers(1, 6), seed=st.integers(0, 2**32), p_end=st.sampled_from([0.0, 0.2, 0.6])
)
def test_environments_side_by_side_equal_each_alone(size: int, length: int, seed: int, p_end: float) -> None:
    rng = np.random.default_rng(seed)

    def any_step() -> Step:
        reward, value, next_value = rng.normal(scale=100, size=3).tolist()
        return reward, value, bool(rng.random() < p_end), bool(rng.random() < p_end), next_value

    streams: list[list[Step]] = [[any_step() for _ in range(size)] for _ in range(length)]
    last = rng.normal(size=size)
    rollout = relive.RolloutBuffer(len(streams))
    for step in streams:
        reward, value, terminated, truncated, next_value = map(np.array, zip(*step, strict=True))
        ends = {"terminated": terminated, "truncated": truncated, "next_value": next_value}
        rollout.add(np.zeros((size, 2)), np.zeros(size), reward, value, **ends)
    together = rollout.advantages(0.9, 0.8, last)
    for k in range(size):
        alone = rollout_of([step[k] for step in streams]).advantages(0.9, 0.8, last[k])
        assert [answer[:, k].tolist() for answer in together] == [answer.tolist() for answer in alone]


# What is stored.


def test_steps_come_back_in_order_under_their_names() -> None:
    rollout = relive.RolloutBuffer(4)
    for t in range(3):
        rollout.add(
            {"image": np.full((2, 2), t, np.uint8), "hand": {"angle": [0.5 * t]}},
            np.int32(t),
            float(t),
            value=np.float32(t / 2),
            terminated=t == 1,
            truncated=t == 2,
            next_value=np.float32(7),
            log_prob=-0.25 * t,
            state={"h": [t, t]},
        )
    arrays = rollout.arrays()
    expected = {
        "observation": {
            "image": np.arange(3, dtype=np.uint8).repeat(4).reshape(3, 2, 2),
            "hand": {"angle": [[0], [0.5], [1]]},
        },
        "action": np.arange(3, dtype=np.int32),
        "reward": [0.0, 1.0, 2.0],
        "value": np.array([0.0, 0.5, 1.0], np.float32),
        "terminated": [False, True, False],
        "truncated": [False, False, True],
        "next_value": np.full(3, 7, np.float32),
        "log_prob": [-0.0, -0.25, -0.5],
        "state": {"h": [[0, 0], [1, 1], [2, 2]]},
    }
    assert list(arrays) == list(expected)
    found, wanted = (dict(trees.flat("", tree)) for tree in (arrays, expected))
    assert plain(found) == plain({path: np.asarray(column) for path, column in wanted.items()})


def test_a_number_stands_for_all_environments() -> None:
    rollout = relive.RolloutBuffer(1)
    rollout.add(np.zeros((3, 2)), [0, 1, 2], np.ones(3), value=0.5, truncated=True, next_value=[1.0, 2.0, 3.0])
    arrays = rollout.arrays()
    assert {name: array.shape for name, array in arrays.items()} == {
        "observation": (1, 3, 2),
        **dict.fromkeys(["action", "reward", "value", "terminated", "truncated", "next_value"], (1, 3)),
    }
    assert arrays["value"].tolist() == [[0.5] * 3]
    assert rollout.advantages(0.5, 1, 9.0)[1].tolist() == [[1.5, 2.0, 2.5]]


def test_last_value_is_one_for_all_environments_or_one_each() -> None:
    rollout = relive.RolloutBuffer(1)
    rollout.add(np.zeros(2), np.zeros(2), np.zeros(2))
    assert rollout.advantages(0.5, 1, 4.0)[0].tolist() == [[2.0, 2.0]]
    assert rollout.advantages(0.5, 1, [4.0, 8.0])[0].tolist() == [[2.0, 4.0]]
    with pytest.raises(errors.SchemaError, match=r"^last_value must be of shape \(2,\), got \(3,\)$"):
        rollout.advantages(0.5, 1, np.zeros(3))


def test_advantages_have_the_wider_dtype_of_reward_and_value() -> None:
    one, half = np.float32(1), np.float16(1)
    cases: list[tuple[Any, Any, Any]] = [(one, one, np.float32), (one, 1.0, np.float64), (1.0, one, np.float64)]
    for reward, value, answer in [*cases, (half, one, np.float32), (1, 1, np.float64)]:
        rollout = rollout_of([(reward, value, False, False, value)] * 2)
        assert [array.dtype for array in rollout.advantages(0.9, 0.9, 1.0)] == [answer, answer]


def test_advantages_of_float32_are_computed_in_float64() -> None:
    """Each advantage is rounded once: a thousand small rewards on top of a large one are not lost."""
    rewards = [1e-4] * 1000 + [2.0**14]
    rollout = rollout_of([(np.float32(reward), np.float32(0), False, False, np.float32(0)) for reward in rewards])
    exact = math.fsum(float(np.float32(reward)) for reward in rewards)
    assert rollout.advantages(1, 1)[0][0] == np.float32(exact)


def test_a_rollout_copies_in_and_out() -> None:
    rollout = relive.RolloutBuffer(2)
    observation, reward, value = np.ones((2, 2)), np.ones(2), np.ones(2)
    rollout.add({"x": observation}, [1, 1], reward, value, next_value=value, log_prob=value)
    observation[:] = reward[:] = value[:] = 9
    for _ in range(2):
        arrays = rollout.arrays()
        arrays["x"] = arrays.pop("observation")["x"]
        assert arrays["x"].tolist() == [[[1.0, 1.0]] * 2]
        assert all(arrays[name].tolist() == [[1, 1]] for name in ("action", "reward", "value", "log_prob"))
        answers = rollout.advantages(1, 1, 5.0)
        assert [answer.tolist() for answer in answers] == [[[5.0, 5.0]], [[6.0, 6.0]]]
        for array in (*arrays.values(), *answers):
            array[:] = 7


def test_minibatches_hold_each_row_of_each_environment_once() -> None:
    rollout = relive.RolloutBuffer(8)
    for t in range(3):
        of_each = 10 * t + np.arange(2)
        seen = {"image": np.full((2, 2, 0), t, np.uint8), "x": of_each}
        rollout.add(seen, of_each, of_each, of_each / 2, terminated=[t == 2, False], log_prob=-of_each)
    advantages, returns = rollout.advantages(0.5, 0.5, 1.0)
    columns = {"advantages": advantages, "returns": returns, "twice": np.stack([returns, returns], axis=-1).tolist()}
    batches = list(rollout.minibatches(4, seed=np.random.default_rng(3), **columns))
    order = np.random.default_rng(3).permutation(6)
    assert [len(batch["action"]) for batch in batches] == [4, 2]
    whole = rollout.arrays() | {name: np.asarray(column) for name, column in columns.items()}
    assert batches[0].keys() == whole.keys()
    for start, batch in zip((0, 4), batches, strict=True):
        rows = order[start : start + 4]
        for name in whole.keys() - {"observation"}:
            expected = whole[name].reshape(6, *whole[name].shape[2:])[rows]
            assert (batch[name].dtype, batch[name].tolist()) == (expected.dtype, expected.tolist())
        assert batch["observation"]["x"].tolist() == batch["action"].tolist()
        assert batch["observation"]["image"].shape == (len(rows), 2, 0)


def test_minibatches_are_of_the_rollout_at_the_call() -> None:
    rollout = relive.RolloutBuffer(2)
    for t in range(2):
        rollout.add(t, t, 0.0)
    batches = rollout.minibatches(1, seed=0)
    rollout.clear()
    rollout.add(7, 7, 0.0)
    seen = [batch["observation"] for batch in batches]
    assert sorted(each.item() for each in seen) == [0, 1]
    seen[0][:] = 9  # A copy: the rollout has not changed.
    assert rollout.arrays()["observation"].tolist() == [7]


def test_minibatches_are_refused_before_the_first() -> None:
    rollout = relive.RolloutBuffer(3)
    with pytest.raises(errors.NotReadyError, match="^minibatches found no step: add one first$"):
        rollout.minibatches(2)
    rollout.add(np.zeros(2), np.zeros(2), np.zeros(2), log_prob=np.zeros(2))
    for name in ("reward", "observation", "log_prob", "next_value"):
        rule = f"^columns must not be named like an array of the rollout, got '{name}'$"
        with pytest.raises(errors.ArgumentError, match=rule):
            rollout.minibatches(2, **{name: np.zeros((1, 2))})  # type: ignore[arg-type]
    for wrong in (np.zeros(2), np.zeros((2, 2)), 0.0):
        rule = r"^returns must be of a shape that begins with \(1, 2\), got \("
        with pytest.raises(errors.SchemaError, match=rule):
            rollout.minibatches(2, returns=wrong)
    with pytest.raises(errors.ArgumentError, match="^batch_size must be at least 1, got 0$"):
        rollout.minibatches(0)
    with pytest.raises(errors.ArgumentError, match="^seed must be at least 0, got -1$"):
        rollout.minibatches(1, seed=-1)


# What is refused.


def test_a_rollout_is_full_with_max_steps() -> None:
    rollout = relive.RolloutBuffer(2)
    for t in range(2):
        assert not rollout.is_full
        rollout.add(float(t), t, 1.0)
    assert (rollout.is_full, rollout.capacity, repr(rollout)) == (True, 2, "<RolloutBuffer of 2 steps, max_steps=2>")
    before = plain(rollout.state_dict())
    text = "^add found the rollout full with max_steps = 2 steps: learn from it and clear it first$"
    with pytest.raises(errors.ArgumentError, match=text):
        rollout.add(2.0, 2, 1.0)
    assert plain(rollout.state_dict()) == before
    for wrong in (0, -1, 1.5):
        with pytest.raises(ValueError, match="^max_steps must be"):
            relive.RolloutBuffer(wrong)  # type: ignore[arg-type]


GOOD: dict[str, Any] = {"observation": np.zeros(2, np.float32), "action": np.uint8(1), "reward": 1.0, "log_prob": 0.5}


def test_a_step_unlike_the_first_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"observation": np.zeros(3, np.float32)}, r"^observation must be of shape \(2,\), got \(3,\)$"),
        ({"observation": np.full(2, 0.1)}, "^observation must be of dtype float32, got float64"),
        ({"observation": {"x": np.zeros(2)}}, "^observation must"),
        ({"action": 300}, "^action must fit uint8, got 300$"),
        ({"action": 0.9}, "^action must fit uint8, got 0.9: cast it yourself"),
        ({"action": math.nan}, "^action must fit uint8, got nan$"),
        ({"reward": [1.0]}, r"^reward must be of shape \(\), got \(1,\)"),
        ({"reward": "1"}, "^reward must"),
        ({"value": [1.0]}, r"^value must be of shape \(\), got \(1,\)$"),
        ({"next_value": "high"}, "^next_value must"),
        ({"terminated": 2}, "^terminated must fit bool, got 2$"),
        ({"truncated": [False]}, r"^truncated must be of shape \(\), got \(1,\)$"),
        ({"log_prob": [0.5]}, r"log_prob.* must be of shape \(\), got \(1,\)$"),
        ({"entropy": 0.5}, "entropy"),
        ({"log_prob": ...}, "log_prob.* missing"),
    ]
    for change, text in cases:
        with subtests.test(text):
            rollout = relive.RolloutBuffer(2)
            rollout.add(**GOOD)
            before = plain(rollout.state_dict())
            with pytest.raises(errors.SchemaError, match=text):
                rollout.add(**{name: value for name, value in (GOOD | change).items() if value is not ...})
            assert plain(rollout.state_dict()) == before
            rollout.add(**GOOD)


def test_a_refused_first_step_fixes_nothing() -> None:
    rollout = relive.RolloutBuffer(2)
    for wrong in ({"value": "high"}, {"terminated": 2}, {"next_value": [1.0, 2.0]}, {"reward": object()}):
        with pytest.raises(errors.SchemaError):
            rollout.add(**GOOD | wrong)
    with pytest.raises(errors.SchemaError, match=r"^reward must be a number or of shape \[environments\], got shape"):
        rollout.add(**GOOD | {"reward": [[1.0]]})
    assert len(rollout) == 0
    rollout.add([1, 2, 3], [0.5, 0.5, 0.5], [1.0, 2.0, 3.0])
    assert rollout.arrays()["observation"].tolist() == [[1, 2, 3]]


def test_factors_outside_their_range_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, str]] = [
        (0, 0.5, r"^gamma must be in \(0, 1\], got 0$"),
        (1.5, 0.5, r"^gamma must be in \(0, 1\], got 1.5$"),
        (math.nan, 0.5, r"^gamma must be in \(0, 1\], got nan$"),
        (0.9, -0.1, r"^lambda_ must be in \[0, 1\], got -0.1$"),
        (0.9, 1.1, r"^lambda_ must be in \[0, 1\], got 1.1$"),
        (0.9, math.nan, "^lambda_ must be a finite real number, got nan$"),
        (0.9, "x", "^lambda_ must be a finite real number, got 'x'$"),
    ]
    for gamma, lambda_, text in cases:
        with subtests.test(text), pytest.raises(ValueError, match=text):
            rollout_of([(1.0, 0.0, False, False, 0)]).advantages(gamma, lambda_)


CUT = r"^next_value must be given with a truncated step once a value was: V of its final observation, got None"


@pytest.mark.parametrize("value", [0.0, 0, np.float32(0.5), np.zeros(())])
@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_a_truncated_step_with_values_needs_its_next_value(value: Any, steps_before: int) -> None:
    """Also where a value was given earlier alone, before the rollout was cleared, or before it was saved."""
    rollout = relive.RolloutBuffer(4)
    for _ in range(steps_before):
        rollout.add(**GOOD, value=value)
    own = {"value": value} if steps_before < 2 else {}
    for again in (rollout, relive.RolloutBuffer.from_state(rollout.state_dict())):
        for _ in range(2):
            before = plain(again.state_dict())
            with pytest.raises(errors.ArgumentError, match=f"{CUT}$"):
                again.add(**GOOD, **own, truncated=True)
            assert plain(again.state_dict()) == before
            again.clear()
        again.add(**GOOD, **own, truncated=True, terminated=True)
        again.add(**GOOD, **own, truncated=True, next_value=4.0)
        assert again.arrays()["next_value"].tolist() == [0.0, 4.0]


@pytest.mark.parametrize(
    ("truncated", "terminated", "place"),
    [
        ([False, True, True], False, 1),
        ([False, True, True], [False, True, False], 2),
        (True, False, 0),
        (True, [True, False, False], 1),
    ],
)
def test_some_environments_that_are_truncated_need_next_values(truncated: Any, terminated: Any, place: int) -> None:
    rollout = relive.RolloutBuffer(2)
    step: dict[str, Any] = {"observation": np.zeros(3), "action": np.zeros(3), "reward": np.ones(3)}
    with pytest.raises(errors.ArgumentError, match=rf"{CUT} at \[{place}\]$"):
        rollout.add(**step, value=0.5, truncated=truncated, terminated=terminated)
    assert len(rollout) == 0
    rollout.add(**step, value=0.5, truncated=truncated, terminated=True)
    rollout.add(**step, truncated=truncated, terminated=terminated, next_value=[1, 2, 3])


def test_a_rollout_without_values_needs_no_next_value() -> None:
    rollout = relive.RolloutBuffer(3)
    for _ in range(2):
        rollout.add(0.0, 0, 1.0, truncated=True)
        rollout = relive.RolloutBuffer.from_state(rollout.state_dict())
    assert rollout.advantages(0.5, 1.0)[1].tolist() == [1.0, 1.0]
    rollout.clear()
    rollout.add(0.0, 0, 1.0, truncated=True)


# From one rollout to the next.


def test_an_empty_rollout_has_nothing_to_answer() -> None:
    rollout = relive.RolloutBuffer(2)
    for _ in range(2):
        with pytest.raises(errors.NotReadyError, match="^arrays found no step: add one first$"):
            rollout.arrays()
        with pytest.raises(errors.NotReadyError, match="^advantages found no step: add one first$"):
            rollout.advantages(0.9, 0.9)
        rollout.add(0.0, 0, 1.0)
        rollout.clear()


def test_the_next_rollout_sees_nothing_of_the_last() -> None:
    rollout = rollout_of([(1.0, 2.0, True, True, 4.0)] * 3)
    columns = dict(rollout._columns)
    rollout.clear()
    assert len(rollout) == 0
    rollout.add(9.0, 9, 0.5)
    assert all(rollout._columns[path] is column for path, column in columns.items())
    zeros = {name: [0] for name in ("value", "terminated", "truncated", "next_value")}
    given = {"observation": [9.0], "action": [9], "reward": [0.5]}
    assert {name: array.tolist() for name, array in rollout.arrays().items()} == given | zeros
    with pytest.raises(errors.SchemaError, match="^action must fit int64, got 0.5: cast it yourself"):
        rollout.add(9.0, 0.5, 0.5)


# Persistence.


def worked(seed: int = 0, steps: int = 7) -> relive.RolloutBuffer:
    """Return a rollout of 3 environments."""
    rollout: relive.RolloutBuffer = zoo.worked(zoo.KINDS["rollout of 3 environments"].make, seed, steps)
    return rollout


def test_impossible_states_of_rollouts_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"size": 10}, r"size must be an integer in \[0, 8\], got 10"),
        ({"schema": None}, r"size must be an integer in \[0, 0\], got 7"),
        ({"schema": []}, "schema .*"),
        ({"environments": -1}, "environments must be an integer in .*, got -1"),
        ({"environments": 4}, r"array rows/observation/image must be .* shape \(7, 4, 2, 2\), got .*"),
        ({"value_dtype": "<i8"}, "value_dtype must be null or one of floats, got '<i8'"),
        ({"schema": None, "size": 0}, "value_dtype must be null before the first step, got '<f4'"),
        ({"value_dtype": "|O"}, "dtype must be a description of .*"),
        ({"generator": {"bit_generator": "PCG64"}}, "generator must be null, got .*"),
        ({"class": "Other"}, "the state is of a Other, and not of a RolloutBuffer: use Other"),
        ({"settings": {"max_steps": 9}}, "settings/max_steps must be 8, as in this object, got 9"),
    ]
    for changes, text in cases:
        with subtests.test(text):
            rollout = worked(1)
            before = plain(rollout.state_dict())
            with pytest.raises(errors.CheckpointError, match=f"^{text}$"):
                rollout.load_state_dict(worked().state_dict() | changes)
            assert plain(rollout.state_dict()) == before


def test_rollout_states_beyond_memory_are_refused() -> None:
    state = worked(steps=0).state_dict() | {
        "schema": [["observation", "<f8", [2**58]], ["action", "<f8", []], ["reward", "<f8", []]],
        "arrays": {"rows/observation": np.zeros((0, 2**58))},
    }
    with pytest.raises(errors.CheckpointError, match="^there is no memory for the steps: "):
        relive.RolloutBuffer.from_state(state)
