import decimal
import fractions
import math
import re
import types
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import validation


@pytest.mark.parametrize("value", [1, 7, np.int64(7), np.uint8(1), 2**62])
def test_integers_of_at_least_one_come_back_as_int(value: Any) -> None:
    checked = validation.positive_int("n", value)
    assert type(checked) is int
    assert checked == value


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        *((value, f"at least 1, got {int(value)}") for value in (0, -1, np.int8(-3))),
        (2**62 + 1, r"at most 2\*\*62, got 4611686018427387905"),
        (-(10**5000), "at least 1, got an integer of 16610 bits"),
    ],
    ids=range(5),
)
def test_integers_below_one_are_refused(value: Any, rule: str) -> None:
    """And those above 2**62."""
    with pytest.raises(errors.ArgumentError, match=f"^n must be {rule}$"):
        validation.positive_int("n", value)


@pytest.mark.parametrize("value", [1.0, 1.5, "1", None, True, math.nan, [1], np.ones(1, int)])
def test_values_that_are_not_integers_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^n must be an integer of at least 1, got .+$"):
        validation.positive_int("n", value)


@pytest.mark.parametrize(
    "value",
    [0, -1, 0.5, True, np.float32(0.1), np.float64(-3.5), np.int64(4), np.bool_(True), np.array(2.5), np.array(3), -0.0,
     fractions.Fraction(1, 4), np.longdouble(1.5), 2**53],
)  # fmt: skip
def test_finite_numbers_come_back_as_float(value: Any) -> None:
    number = validation.finite_number("reward", value)
    assert type(number) is float
    assert number == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), np.array(np.inf), 10**400])
def test_numbers_that_are_not_finite_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^reward must be a finite real number, got .+$"):
        validation.finite_number("reward", value)


@pytest.mark.parametrize(
    "value",
    [None, "1.0", 1j, [1.0], np.ones(1), np.ones((2, 2)), np.array(1j), np.array("1"), decimal.Decimal(1), object()],
)
def test_values_that_are_not_real_numbers_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^reward must be a finite real number, got .+$") as caught:
        validation.finite_number("reward", value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [2**53 + 1, fractions.Fraction(1, 3)])
def test_numbers_that_a_float_would_change_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^reward must be a number that a float holds exactly, got .+$"):
        validation.finite_number("reward", value)


@pytest.mark.parametrize("value", [1, 1.0, 0.5, 5e-324, np.float32(0.5)])
def test_discounts_come_back_as_float(value: Any) -> None:
    gamma = validation.discount("gamma", value)
    assert type(gamma) is float
    assert gamma == value


@pytest.mark.parametrize("value", [0, 0.0, -0.1, 1.5, math.nextafter(1, 2), math.nan, math.inf, 10**400])
def test_discounts_outside_their_range_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^gamma must be in \(0, 1\], got .+$"):
        validation.discount("gamma", value)


@pytest.mark.parametrize("value", [None, "0.9", True, 1j, np.ones(1)])
def test_values_that_are_not_discounts_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^gamma must be a number in \(0, 1\], got .+$"):
        validation.discount("gamma", value)


def test_a_seed_becomes_a_generator() -> None:
    rng = np.random.default_rng(1)
    assert validation.generator("seed", rng) is rng
    assert validation.generator("seed", 1).random() == np.random.default_rng(1).random()
    assert validation.generator("seed", None).random() != validation.generator("seed", None).random()


@pytest.mark.parametrize("value", ["x", 1.5, True, [], [1, 2], np.random.RandomState(0)])
def test_values_that_are_not_seeds_are_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^seed must be an integer, a numpy Generator or None, got "):
        validation.generator("seed", value)
    with pytest.raises(errors.ArgumentError, match=r"^seed must be at least 0, got -1$"):
        validation.generator("seed", -1)


def test_a_version_never_goes_down() -> None:
    assert validation.next_version(3, None) == validation.next_version(np.int64(3), 3) == 3
    with pytest.raises(errors.ArgumentError, match="^version must be at least 4, the previous one, got 3$"):
        validation.next_version(3, 4)
    with pytest.raises(errors.ArgumentError, match="^version must be at least 0, got -1$"):
        validation.next_version(-1, None)


@pytest.mark.parametrize("value", [True, np.True_, np.array(True)])
def test_a_bool_of_numpy_is_a_bool(value: Any) -> None:
    assert validation.boolean("pad", value) is True


@pytest.mark.parametrize("value", [1, 0.0, None, "yes", np.array([True]), np.array(1)])
def test_a_setting_that_is_not_a_bool_is_refused(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="^pad must be True or False, got "):
        validation.boolean("pad", value)


FLAGS = [False, True, 0, 1, 0.0, 1.0, -0.0, np.False_, np.True_, np.int8(1), np.float16(0), np.array(1), np.array(True)]


@pytest.mark.parametrize("value", [*FLAGS, [1], np.array([[0.0]])])
def test_bools_and_0_and_1_of_any_type_are_flags(value: Any) -> None:
    checked = validation.flag("end", value)
    assert type(checked) is bool
    assert checked == np.array(value).item()


@pytest.mark.parametrize("value", [np.array(FLAGS[:2]), FLAGS, np.array([0, 1, 1], np.uint8), [0.0, 1], [], None])
def test_flags_come_back_as_bools(value: Any) -> None:
    expected = [False] * 3 if value is None else [bool(flag) for flag in value]
    checked = validation.flags("end", value, len(expected))
    assert checked.dtype == np.bool_
    assert checked.tolist() == expected


@pytest.mark.parametrize(
    "value", [2, -1, 0.5, math.nan, math.inf, np.uint8(2), np.array(256), [0, 2], np.array([1, np.nan])]
)
def test_numbers_other_than_0_and_1_are_not_flags(value: Any) -> None:
    rule = "^end must be True, False, 0 or 1, got "
    with pytest.raises(errors.ArgumentError, match=rule):
        validation.flag("end", value)
    with pytest.raises(errors.ArgumentError, match=rule):
        validation.flags("end", value, 2)


@pytest.mark.parametrize("value", ["1", 1j, [None], [[0], [1, 1]], object()])
def test_values_that_are_not_numbers_are_not_flags(value: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="^end must be True, False, 0 or 1, got "):
        validation.flag("end", value)
    with pytest.raises(errors.ArgumentTypeError, match="^end must be True, False, 0 or 1, got "):
        validation.flags("end", value, 1)


def test_a_flag_is_required_for_each_step() -> None:
    with pytest.raises(errors.ArgumentError, match=r"^end must be one flag, got an array of shape \(2,\)$"):
        validation.flag("end", [True, False])
    with pytest.raises(errors.ArgumentError, match=r"^end must be of shape \(3,\), got \(2,\)$"):
        validation.flags("end", [True, False], 3)


def test_a_string_of_a_subclass_becomes_a_plain_one() -> None:
    plain = validation.string("name", np.str_("agent"))
    assert (type(plain), plain) == (str, "agent")
    assert validation.string("name", plain) is plain
    with pytest.raises(errors.ArgumentTypeError, match="^name must be a string, got 3$"):
        validation.string("name", 3)


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


def test_values_are_shown_on_one_short_line() -> None:
    assert validation.short_repr("x") == "'x'"
    assert validation.short_repr([10**5000]) == "[an integer of 16610 bits]"
    shown = validation.short_repr(np.zeros((100, 100)))
    assert "\n" not in shown
    assert len(shown) < 100
    assert [validation.shown(text) for text in ("an id", "a\nb", "\ud800", 5)] == ["an id", "'a\\nb'", "'\\ud800'", "5"]


@pytest.mark.parametrize("value", [np.array(["zeros"]), np.zeros(0), ["zeros"], None, 5, "ones"])
def test_a_word_outside_the_choices_is_refused(value: object) -> None:
    with pytest.raises(errors.ArgumentError, match="^padding must be 'zeros' or 'first', got "):
        validation.require_choice("padding", value, ("zeros", "first"))
    validation.require_choice("padding", np.str_("zeros"), ("zeros", "first"))


@pytest.mark.parametrize("value", [5, None, "abc", b"abc", np.array(3)])
def test_a_value_without_items_is_refused(value: object) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="^ids must be a list of strings, got "):
        validation.items("ids", value, "strings")
    assert validation.items("ids", (text for text in "ab"), "strings") == ["a", "b"]
