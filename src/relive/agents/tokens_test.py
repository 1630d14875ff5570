"""Tests of a step of tokens: what it takes, what it refuses, and that it gives back what it was given."""

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import copies
from relive.common import validation_test

RAGGED: Any = [[1], [2, 3]]
BRAIN_GRAD = validation_test.Tensor([1.0, 0.0, 1.0], requires_grad=True, dtype="bfloat16")


class JaxBrain:
    """An array of JAX of a dtype that numpy does not have."""

    dtype = "bfloat16"


def step_of(**changes: Any) -> relive.TokenStep:
    arguments: dict[str, Any] = {
        "prompt": [1, 5],
        "response": [7, 2, 9],
        "logprobs": [-0.5, -0.25, -0.125],
        "policy_version": 3,
    }
    return relive.TokenStep(**arguments | changes)


def test_a_step_is_what_it_was_given() -> None:
    step = step_of(loss_mask=[True, False, True], reward=2, policy_version=[3, 3, 4])
    assert step.prompt.tolist() == [1, 5]
    assert step.response.tolist() == [7, 2, 9]
    assert step.logprobs.tolist() == [-0.5, -0.25, -0.125]
    assert step.policy_version.tolist() == [3, 3, 4]
    assert step.loss_mask.tolist() == [True, False, True]
    assert (step.reward, type(step.reward)) == (2.0, float)
    kinds = [step.prompt, step.response, step.logprobs, step.policy_version, step.loss_mask]
    assert [array.dtype.str for array in kinds] == ["<i4", "<i4", "<f8", "<i8", "|b1"]


TINY = [-float(np.finfo(np.float16).smallest_subnormal), -0.0]
KEPT: list[tuple[str, Any, str, list[Any]]] = [
    *[("loss_mask", ones, "|b1", [True, False, True]) for ones in [(1, 0, 1), [True, 0, 1.0], BRAIN_GRAD]],
    *[("loss_mask", np.array([1, 0, 1], kind), "|b1", [True, False, True]) for kind in (np.uint8, np.float16)],
    *[("logprobs", np.array([*TINY, -1.5], kind), kind, [*TINY, -1.5]) for kind in ("<f2", "<f4", "<f8")],
    ("logprobs", np.array([-0.5, -1.0, -1.5], ">f4"), "<f4", [-0.5, -1.0, -1.5]),
    ("logprobs", [0, -1, -2], "<f8", [0.0, -1.0, -2.0]),
    ("logprobs", np.array([0.01, 1e-7, 0.0]), "<f8", [0.01, 1e-7, 0.0]),  # Rounded above zero.
    ("response", np.array([1, 2, 3], ">i2"), "<i4", [1, 2, 3]),
    ("response", range(3), "<i4", [0, 1, 2]),
    ("prompt", [], "<i4", []),
    ("prompt", np.array([2**31 - 1], np.uint64), "<i4", [2**31 - 1]),
    ("policy_version", np.array([1, 2, 3], ">i2"), "<i8", [1, 2, 3]),
]


def test_parts_of_a_step_are_kept_in_a_dtype_that_holds_them(subtests: pytest.Subtests) -> None:
    for name, given, dtype, values in KEPT:
        with subtests.test(name):
            kept = getattr(step_of(**{name: given}), name)
            assert (kept.dtype.str, str(kept.tolist())) == (dtype, str(values))
    step = step_of()
    assert (step.loss_mask.tolist(), step.policy_version.tolist(), step.reward) == ([True] * 3, [3] * 3, 0.0)


def test_arrays_are_copied_and_cannot_be_written_to() -> None:
    given = {
        "prompt": np.array([1, 5], np.int32),
        "response": np.array([7, 2, 9], np.int32),
        "logprobs": np.full(3, -0.5),
        "policy_version": np.full(3, 2),
        "loss_mask": np.ones(3, bool),
    }
    step = step_of(**given)
    before = {name: getattr(step, name).copy() for name in given}
    for name, array in given.items():
        array[...] = 0
        assert getattr(step, name).tolist() == before[name].tolist()
        with pytest.raises(ValueError, match="read-only"):
            getattr(step, name)[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.__setattr__("reward", 1.0)


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, copies.copied, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_step_can_be_copied_and_sent(twin_of: Any) -> None:
    step = step_of(reward=1.5)
    twin = twin_of(step)
    assert type(twin) is relive.TokenStep
    for field in dataclasses.fields(step):
        assert np.array_equal(getattr(twin, field.name), getattr(step, field.name))
    arrays = (twin.prompt, twin.response, twin.logprobs, twin.policy_version, twin.loss_mask)
    assert twin_of is copies.copied or not any(array.flags.writeable for array in arrays)
    assert copies.copied(step).response is not step.response


def test_replace_checks_again() -> None:
    assert dataclasses.replace(step_of(), reward=4.0).reward == 4.0
    with pytest.raises(errors.ArgumentError, match="^response must have at least 1 token, got 0$"):
        dataclasses.replace(step_of(), response=np.zeros(0, np.int32))


def test_a_token_step_has_a_repr() -> None:
    assert repr(step_of(reward=1.0)) == "<TokenStep of a prompt of 2 tokens and a response of 3, reward=1.0>"


LARGEST = 2**31 - 1
LOGS = "logprobs must be finite numbers of at most 0, up to 0.01 for rounding"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompt": [0, -1]}, rf"prompt must be integers in \[0, {LARGEST}\], got -1 at position 1"),
        ({"response": [0, 2**31, 1]}, rf"response must be integers in \[0, {LARGEST}\], got {2**31} at position 1"),
        ({"response": []}, "response must have at least 1 token, got 0"),
        ({"logprobs": [-0.5, -0.5]}, "logprobs must be one for each of 3 tokens of the response, got 2"),
        ({"logprobs": [-0.5, np.nan, 0]}, f"{LOGS}, got nan at position 1"),
        ({"logprobs": [-0.5, -0.5, -np.inf]}, f"{LOGS}, got -inf at position 2"),
        ({"logprobs": [0.011, -0.5, 0]}, f"{LOGS}, got 0.011 at position 0"),
        ({"logprobs": np.array([0.6, 0.3, 0.1])}, f"{LOGS}, got 0.6 at position 0"),
        ({"logprobs": [np.longdouble("-1e999")] * 3}, "logprobs must fit float64, got -1e[+]999.*"),
        ({"policy_version": -1}, "policy_version must be at least 0, got -1"),
        ({"policy_version": [0, 0, -1]}, r"policy_version must be integers in \[0, \d+\], got -1 at position 2"),
        (
            {"policy_version": [0, 0, 2**62 + 1]},
            rf"policy_version must be integers in \[0, {2**62}\], got {2**62 + 1} .*",
        ),
        ({"policy_version": [0, 0]}, "policy_version must be one for each of 3 tokens of the response, got 2"),
        ({"loss_mask": [True]}, r"loss_mask must be of shape \(3,\), got \(1,\)"),
        ({"loss_mask": True}, r"loss_mask must be of shape \(3,\), got \(\)"),
        ({"loss_mask": [0, 2, 1]}, r"loss_mask must be True, False, 0 or 1, got \[0, 2, 1\]"),
        ({"loss_mask": [0, 0.5, 1]}, r"loss_mask must be True, False, 0 or 1, got \[0, 0.5, 1\]"),
        ({"reward": np.inf}, "reward must be a finite real number, got inf"),
    ],
)
def test_token_steps_that_break_a_rule_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        step_of(**changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompt": [1.0, 2.0]}, r"prompt must be a row of integers, got \[1.0, 2.0\]"),
        ({"prompt": [1, True]}, r"prompt must be a row of integers, got \[1, True\]"),
        ({"prompt": (1, np.True_)}, r"prompt must be a row of integers, got \(1, .*True.*\)"),
        ({"response": np.array([True, False])}, "response must be a row of integers, got .*"),
        ({"response": [[1], [2]]}, r"response must be a row of integers, got \[\[1\], \[2\]\]"),
        ({"response": RAGGED}, "response must be a row of integers, got .*"),
        ({"response": "abc"}, "response must be a row of integers, got 'abc'"),
        ({"response": ["a"]}, r"response must be a row of integers, got \['a'\]"),
        ({"response": [2**70]}, "response must be a row of integers, got .*"),
        ({"response": 3}, "response must be a row of integers, got 3"),
        ({"response": np.ma.masked_array([1], [True])}, "response must be a row of integers, got .*"),
        ({"logprobs": [True, False, True]}, "logprobs must be a row of floats, got .*"),
        ({"logprobs": np.zeros(3, bool)}, "logprobs must be a row of floats, got .*"),
        ({"logprobs": [-0.5, "a", 0]}, "logprobs must be a row of floats, got .*"),
        ({"logprobs": np.zeros(3, np.longdouble)}, "logprobs must be a row of floats, got .*"),
        ({"logprobs": [np.zeros(1)] * 3}, "logprobs must be a row of floats, got .*"),
        ({"logprobs": -0.5}, "logprobs must be a row of floats, got -0.5"),
        ({"policy_version": RAGGED}, "policy_version must be .*"),
        ({"policy_version": 1.5}, "policy_version must be an integer of at least 0, got 1.5"),
        ({"policy_version": True}, "policy_version must be an integer of at least 0, got True"),
        ({"policy_version": [1.5, 1, 1]}, r"policy_version must be a row of integers, got \[1.5, 1, 1\]"),
        ({"loss_mask": ["1", "0", "1"]}, "loss_mask must be True, False, 0 or 1, got .*"),
        ({"loss_mask": np.ma.masked_array([1, 0, 1], [True, False, False])}, "loss_mask must be True, .*"),
        ({"logprobs": BRAIN_GRAD}, r"logprobs must be a row of floats, .*: call \.detach\(\)\.float\(\) first"),
        ({"logprobs": [BRAIN_GRAD] * 3}, r"logprobs must be a row of floats, .*: call \.detach\(\)\.float\(\) first"),
        ({"prompt": BRAIN_GRAD}, r"prompt must be a row of integers, .*: call \.detach\(\)\.float\(\) first"),
        ({"logprobs": JaxBrain()}, r"logprobs must be a row of floats, .*: call \.astype\('float32'\) first"),
        ({"reward": "1"}, "reward must be a finite real number, got '1'"),
    ],
)
def test_token_steps_of_other_types_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=f"^{text}$"):
        step_of(**changes)
