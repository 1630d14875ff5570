from collections.abc import Callable
import decimal
import fractions
import functools
import math
import re
import types
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import validation

Check = Callable[[Any], Any]
partial = functools.partial
INTEGER, REWARD = partial(validation.positive_int, "n"), partial(validation.finite_number, "reward")
GAMMA, SEED = partial(validation.discount, "gamma"), partial(validation.generator, "seed")
WORD = partial(validation.require_choice, "padding", choices=("zeros", "first"))
ITEMS = partial(validation.items, "ids", kind="strings")
PAD, END = partial(validation.boolean, "pad"), partial(validation.flag, "end")
FLAGS = [False, True, 0, 1, 0.0, 1.0, -0.0, np.False_, np.True_, np.int8(1), np.float16(0), np.array(1), np.array(True)]
TAKEN: list[tuple[Check, type, list[Any]]] = [
    (INTEGER, int, [1, 7, np.int64(7), np.uint8(1), 2**62]),
    (REWARD, float, [0, -1, 0.5, True, np.float32(0.1), np.float64(-3.5), np.int64(4), np.True_, np.array(2.5)]),
    (REWARD, float, [np.array(3), -0.0, fractions.Fraction(1, 4), np.longdouble(1.5), 2**53]),
    (GAMMA, float, [1, 1.0, 0.5, 5e-324, np.float32(0.5)]),
    (PAD, bool, [True, np.True_, np.array(True)]),
    (END, bool, [*FLAGS, [1], np.array([[0.0]])]),
]


def test_values_of_any_type_come_back_as_one_of_python(subtests: pytest.Subtests) -> None:
    for check, kind, values in TAKEN:
        for value in values:
            with subtests.test(value=value):
                checked = check(value)
                assert (type(checked), checked) == (kind, np.array(value).item())


WRONG, KIND = errors.ArgumentError, errors.ArgumentTypeError
REAL, FLAG = "reward must be a finite real number, got .+", "end must be True, False, 0 or 1, got .+"
NO_FLAGS = [2, -1, 0.5, math.nan, math.inf, np.uint8(2), np.array(256), [0, 2], np.array([1, np.nan])]
REFUSED: list[tuple[Check, type[Exception], str, list[Any]]] = [
    (INTEGER, WRONG, "n must be at least 1, got (0|-1|-3)", [0, -1, np.int8(-3)]),
    (INTEGER, WRONG, r"n must be at most 2\*\*62, got 4611686018427387905", [2**62 + 1]),
    (INTEGER, WRONG, "n must be at least 1, got an integer of 16610 bits", [-(10**5000)]),
    (
        INTEGER,
        KIND,
        "n must be an integer of at least 1, got .+",
        [1.0, "1", None, True, math.nan, [1], np.ones(1, int)],
    ),
    (REWARD, WRONG, REAL, [math.nan, math.inf, -math.inf, np.float32("nan"), np.array(np.inf), 10**400]),
    (REWARD, KIND, REAL, [None, "1.0", 1j, [1.0], np.ones(1), np.ones((2, 2)), np.array(1j), np.array("1")]),
    (REWARD, KIND, REAL, [decimal.Decimal(1), object()]),
    (REWARD, WRONG, "reward must be a number that a float holds exactly, .+", [2**53 + 1, fractions.Fraction(1, 3)]),
    (GAMMA, WRONG, r"gamma must be in \(0, 1\], got .+", [0, 0.0, -0.1, 1.5, math.nextafter(1, 2), math.nan, 10**400]),
    (GAMMA, KIND, r"gamma must be a number in \(0, 1\], got .+", [None, "0.9", True, 1j, np.ones(1)]),
    (
        SEED,
        KIND,
        "seed must be an integer, a numpy Generator or None, .+",
        ["x", 1.5, True, [], np.random.RandomState(0)],
    ),
    (SEED, WRONG, "seed must be at least 0, got -1", [-1]),
    (
        lambda value: validation.next_version(value, 4),
        WRONG,
        "version must be at least 4, the previous .+ 3: resume_policy_version .+",
        [3],
    ),
    (lambda value: validation.next_version(value, None), WRONG, "version must be at least 0, got -1", [-1]),
    (PAD, KIND, "pad must be True or False, got .+", [1, 0.0, None, "yes", np.array([True]), np.array(1)]),
    (END, WRONG, FLAG, NO_FLAGS),
    (END, KIND, FLAG, ["1", 1j, [None], [[0], [1, 1]], object()]),
    (END, WRONG, r"end must be one flag, got an array of shape \(2,\)", [[True, False]]),
    (lambda value: validation.flags("end", value, 2), WRONG, FLAG, NO_FLAGS),
    (lambda value: validation.flags("end", value, 1), KIND, FLAG, ["1", 1j, [None], [[0], [1, 1]], object()]),
    (lambda value: validation.flags("end", value, 3), WRONG, r"end must be of shape \(3,\), got .+", [[True, False]]),
    (partial(validation.string, "name"), KIND, "name must be a string, got 3", [3]),
    (
        WORD,
        WRONG,
        "padding must be 'zeros' or 'first', got .+",
        [np.array(["zeros"]), np.zeros(0), ["zeros"], None, "ones"],
    ),
    (ITEMS, KIND, "ids must be a list of strings, got .+", [5, None, "abc", b"abc", np.array(3)]),
]


def test_values_that_break_a_rule_are_refused_in_one_line(subtests: pytest.Subtests) -> None:
    for check, kind, rule, values in REFUSED:
        for value in values:
            with subtests.test(rule, value=type(value)):
                with pytest.raises(kind, match=f"^{rule}$") as caught:
                    check(value)
                assert (type(caught.value), "\n" in str(caught.value)) == (kind, False)


@pytest.mark.parametrize("value", [np.array(FLAGS[:2]), FLAGS, np.array([0, 1, 1], np.uint8), [0.0, 1], [], None])
def test_flags_come_back_as_bools(value: Any) -> None:
    expected = [False] * 3 if value is None else [bool(flag) for flag in value]
    checked = validation.flags("end", value, len(expected))
    assert (checked.dtype.kind, checked.tolist()) == ("b", expected)


def test_a_seed_becomes_a_generator() -> None:
    rng = np.random.default_rng(1)
    assert validation.generator("seed", rng) is rng
    assert validation.generator("seed", 1).random() == np.random.default_rng(1).random()
    assert validation.generator("seed", None).random() != validation.generator("seed", None).random()


def test_other_values_are_taken_as_they_are() -> None:
    assert validation.next_version(3, None) == validation.next_version(np.int64(3), 3) == 3
    WORD(np.str_("zeros"))
    assert ITEMS(text for text in "ab") == ["a", "b"]


def test_a_string_of_a_subclass_becomes_a_plain_one() -> None:
    plain = validation.string("name", np.str_("agent"))
    assert (type(plain), plain) == (str, "agent")
    assert validation.string("name", plain) is plain


class Tensor:
    """A tensor that numpy refuses until it is detached, moved and cast."""

    def __init__(self, values: Any, dtype: str = "float32", device: str = "cpu", requires_grad: bool = False) -> None:
        self.values, self.requires_grad = values, requires_grad
        self.dtype, self.device = f"torch.{dtype}", types.SimpleNamespace(type=device)

    def _changed(self, **changes: Any) -> "Tensor":
        settings = {"dtype": self.dtype[6:], "device": self.device.type, "requires_grad": self.requires_grad, **changes}
        return Tensor(self.values, **settings)

    def detach(self) -> "Tensor":
        return self._changed(requires_grad=False)

    def cpu(self) -> "Tensor":
        return self._changed(device="cpu")

    def float(self) -> "Tensor":
        return self._changed(dtype="float32")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        if self.device.type != "cpu" or self.dtype == "torch.bfloat16":
            raise TypeError("can't convert it to numpy")
        return np.asarray(self.values)


TENSORS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"requires_grad": True}, ["detach"]),
    ({"device": "cuda"}, ["cpu"]),
    ({"dtype": "bfloat16"}, ["float"]),
    ({"requires_grad": True, "device": "mps", "dtype": "bfloat16"}, ["detach", "cpu", "float"]),
]


@pytest.mark.parametrize(("settings", "calls"), TENSORS)
def test_tensors_are_accepted_as_priorities_and_keys(settings: dict[str, Any], calls: list[str]) -> None:
    priorities, keys = Tensor([1.0, 2.0], **settings), Tensor([0, 1], **settings)
    assert validation.tensor_calls(priorities) == calls
    assert validation.non_negative_floats("priority", priorities, 2).tolist() == [1.0, 2.0]
    assert validation.integers("keys", keys).tolist() == [0, 1]
    buffer = relive.PrioritizedReplayBuffer(4, seed=0)
    buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 0.0], terminated=True)
    assert buffer.update_priorities(keys, priorities) == 2
    assert relive.MixtureSampler([buffer], [1]).update_priorities(keys, priorities) == 2
    assert buffer.get_priorities(keys).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("settings", "calls"), TENSORS[1:])
def test_an_error_names_the_method_of_a_tensor_to_call(settings: dict[str, Any], calls: list[str]) -> None:
    buffer = relive.RingReplayBuffer(4)
    remedy = "".join(f".{call}()" for call in calls)
    rule = f"^observation must be what numpy can read, got a tensor: call {re.escape(remedy)} first$"
    with pytest.raises(errors.SchemaError, match=rule):
        buffer.add(Tensor([0.0], **settings), 0, 0.0, next_observation=[0.0])
    assert len(buffer) == 0


def test_tensors_of_torch_are_accepted_as_priorities_and_keys() -> None:
    torch = pytest.importorskip("torch")
    buffer = relive.PrioritizedReplayBuffer(4, seed=0)
    buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 0.0], terminated=True)
    keys = torch.tensor([0, 1])
    for priorities in (
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.tensor([[1.0], [2.0]], dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True) ** 1,
    ):
        assert buffer.update_priorities(keys, priorities) == 2
        assert buffer.get_priorities(keys).tolist() == [1.0, 2.0]
        buffer.update_priorities(keys, [3.0, 3.0])


def test_a_tensor_that_numpy_refuses_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    elsewhere = torch.ones(1, device="meta", dtype=torch.bfloat16, requires_grad=True)
    rule = r"^observation must be what numpy can read, got a tensor: call .detach\(\).cpu\(\).float\(\) first$"
    with pytest.raises(errors.SchemaError, match=rule):
        relive.RingReplayBuffer(4).add(elsewhere, 0, 0.0, elsewhere)


class Valueless(Tensor):
    """A tensor on torch's device "meta", which has no values."""

    def cpu(self) -> Tensor:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")


def test_a_tensor_without_values_is_refused_in_one_line(subtests: pytest.Subtests) -> None:
    buffer = relive.PrioritizedReplayBuffer(4, streams=2, seed=0)
    buffer.extend([0.0, 1.0], [0, 1], [0.0, 0.0], [1.0, 2.0])
    none, step = Valueless([0, 1], device="meta"), ([1.0, 2.0], [0, 1], [0.0, 0.0], [2.0, 3.0])
    calls: list[tuple[str, Any]] = [
        ("priority must be a real number", lambda: buffer.update_priorities([0, 1], none)),
        ("keys must be integers", lambda: buffer.read(none)),
        ("keys must be integers", lambda: buffer.set_eligible(none, False)),
        ("streams must be integers", lambda: buffer.extend(*step, streams=none)),
        ("terminated must be True, False, 0 or 1", lambda: buffer.extend(*step, terminated=none)),
        ("terminated must be True, False, 0 or 1", lambda: buffer.add(1.0, 0, 0.0, terminated=none, stream=0)),
    ]
    for rule, call in calls:
        with subtests.test(rule), pytest.raises(errors.ArgumentTypeError, match=f"^{rule}.*, got <"):
            call()
    assert buffer.appended == 2


def test_values_are_shown_on_one_short_line() -> None:
    assert validation.short_repr("x") == "'x'"
    assert validation.short_repr([10**5000]) == "[an integer of 16610 bits]"
    shown = validation.short_repr(np.zeros((100, 100)))
    assert "\n" not in shown
    assert len(shown) < 100
    assert [validation.shown(text) for text in ("an id", "a\nb", "\ud800", 5)] == ["an id", "'a\\nb'", "'\\ud800'", "5"]
