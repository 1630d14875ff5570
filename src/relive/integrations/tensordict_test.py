import dataclasses
import re
import sys
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tensordict")

import tensordict
import torch

import relive
from relive import errors
from relive.agents import packing_test
from relive.agents import token_episode_test
from relive.agents import tokens
from relive.integrations import torch as relive_torch

step_of = token_episode_test.step_of
BOTH = pytest.mark.parametrize("nested", [False, True])
VERSION = [int(number) for number in re.findall(r"\d+", str(tensordict.__version__))]
IF_NEW = pytest.mark.skipif(VERSION < [0, 15, 3], reason="it takes no rows of nested tensors")
BOTH_IF_NEW = pytest.mark.parametrize("nested", [False, pytest.param(True, marks=IF_NEW)])


def batch_of(episodes: list[packing_test.Steps], pad_token_id: int = 9, multiple: int = 4) -> relive.TokenBatch:
    """Return a batch with extras of sequences and tokens, with what a buffer has in the padding."""
    batch = relive.TokenBatch.from_episodes(
        [packing_test.episode_of(steps, number, group_id="g") for number, steps in enumerate(episodes)],
        pad_token_id=pad_token_id,
        pad_to_multiple_of=multiple,
    )
    batch.keys = np.arange(len(batch)) + 100
    batch.extras = {
        "pair": (np.arange(2 * batch.tokens.size).reshape(*batch.tokens.shape, 2)).astype(np.int16),
        "weight": (np.arange(len(batch)) / 3).astype(np.float16),
    }
    batch.extras["pair"][~batch.attention_mask] = 0
    return batch


def inexact() -> relive.TokenBatch:
    steps = [step_of([1, 5], [7], reward=1.0), step_of([1, 6, 7], [8], reward=4.0)]
    return batch_of([steps, [step_of([1, 2, 3, 4], [5, 6])]])


def check_equal(found: Any, expected: Any) -> None:
    """Check that all fields are equal to the last bit, and of one type."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            check_equal(found[name], expected[name])
    elif isinstance(expected, relive.TokenBatch):
        for field in dataclasses.fields(expected):
            check_equal(found[field.name], expected[field.name])
    else:
        assert found == expected


@BOTH
@hypothesis.given(
    episodes=st.lists(token_episode_test.episodes(), min_size=1, max_size=4),
    pad_token_id=st.integers(0, 3),
    multiple=st.integers(1, 5),
)
def test_a_tensordict_comes_back_to_the_last_bit(
    nested: bool, episodes: list[packing_test.Steps], pad_token_id: int, multiple: int
) -> None:
    batch = batch_of(episodes, pad_token_id, multiple)
    td = relive_torch.as_tensordict(batch, nested=nested)
    assert type(td) is tensordict.TensorDict
    assert td.batch_size == (len(batch),)
    check_equal(relive_torch.from_tensordict(td), batch)


def test_a_padded_tensordict_has_the_arrays_of_the_batch() -> None:
    batch = inexact()
    td = relive_torch.as_tensordict(batch)
    fields = {field.name for field in dataclasses.fields(batch)} - {"extras"}
    assert set(td.keys()) == {*fields, "extras/pair", "extras/weight"}
    for name in (*tokens.FIELDS, "attention_mask", "lengths", "keys", "returns", "is_exact"):
        check_equal(td[name].numpy(), batch[name])
    for name, array in batch.extras.items():
        check_equal(td[f"extras/{name}"].numpy(), array)
    assert td["tokens"].data_ptr() == batch.tokens.ctypes.data
    assert td.get("mismatches").tolist() == batch.mismatches
    assert td.get("episode_ids").tolist() == ["e0", "e0", "e1"]


def test_a_nested_tensordict_holds_what_is_packed() -> None:
    batch = inexact()
    td, packed = relive_torch.as_tensordict(batch, nested=True), batch.packed()
    for name in tokens.FIELDS:
        assert td[name].layout is torch.jagged
        check_equal(td[name].values().numpy(), packed[name])
        assert td[name].offsets() is td["tokens"].offsets()
    check_equal(td["extras/pair"].values().numpy(), packed["pair"])
    assert td["tokens"].offsets().tolist() == packed["cu_seqlens"].tolist()
    assert (td["logprobs"] * td["loss_mask"]).shape == td["tokens"].shape
    assert td["padding"].tolist() == [[9, 8]] * 3


@BOTH_IF_NEW
def test_rows_of_a_tensordict_may_be_taken_and_joined(nested: bool) -> None:
    batch = inexact()
    td = relive_torch.as_tensordict(batch, nested=nested)
    check_equal(relive_torch.from_tensordict(td[1:]), batch[1:])
    swapped = relive_torch.from_tensordict(torch.cat([td[1:], td[:1]]))
    check_equal(swapped.tokens, batch.tokens[[1, 2, 0]])
    check_equal(swapped.mismatches, [batch.mismatches[row] for row in (1, 2, 0)])


@IF_NEW
def test_tensordicts_of_other_widths_are_joined_if_nested() -> None:
    wide, narrow = inexact(), batch_of([[step_of([1], [2])]], multiple=1)
    parts = [relive_torch.as_tensordict(each, nested=True) for each in (narrow, wide)]
    joined = relive_torch.from_tensordict(torch.cat(parts))
    assert joined.tokens.shape == (4, 8)
    assert joined.tokens[0].tolist() == [1, 2] + [9] * 6
    check_equal(joined.tokens[1:], wide.tokens)
    assert len(relive_torch.from_tensordict(parts[0][:0])) == 0


@BOTH
def test_what_was_computed_in_torch_comes_back(nested: bool) -> None:
    batch = inexact()
    td = relive_torch.as_tensordict(batch, nested=nested)
    td["rewards"] = (td["rewards"] * 2).requires_grad_()
    td["extras/half"] = td["lengths"] / 2
    found = relive_torch.from_tensordict(td)
    assert found.rewards.tolist() == (2 * batch.rewards).tolist()
    assert found.extras["half"].tolist() == (batch.lengths / 2).tolist()


@pytest.mark.parametrize(
    ("wrong", "options", "text"),
    [
        (3, {}, "batch must be an instance of TokenBatch, got 3"),
        ({"tokens": np.ones((1, 2))}, {}, "batch must be an instance of TokenBatch, got .*"),
        (
            relive_torch.as_tensors(inexact()),
            {},
            "as_tensordict needs a batch of arrays of numpy, got one of Tensor: .*",
        ),
        (inexact(), {"nested": "yes"}, "nested must be True or False, got 'yes'"),
    ],
)
def test_only_a_batch_of_tokens_becomes_a_tensordict(wrong: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=f"^{text}$"):
        relive_torch.as_tensordict(wrong, **options)


@BOTH
def test_dtypes_that_the_other_side_lacks_are_refused_by_name(nested: bool) -> None:
    batch = inexact()
    batch.extras["word"] = np.array(["a", "b", "c"])
    with pytest.raises(errors.ArgumentError, match="^extras/word must be of a dtype that tensors have, got <U1$"):
        relive_torch.as_tensordict(batch, nested=nested)
    td = relive_torch.as_tensordict(inexact(), nested=nested)
    td["extras/weight"] = td["extras/weight"].bfloat16()
    with pytest.raises(
        errors.ArgumentError, match="^extras/weight must be of a dtype that numpy has, got torch.bfloat16$"
    ):
        relive_torch.from_tensordict(td)


CHANGED = {
    "half": (lambda td: td.half(), "attention_mask must be bools|tokens must be integers, torch.int64"),
    "double": (lambda td: td.double(), ".*"),
    "bfloat16": (lambda td: td.to(torch.bfloat16), ".*"),
    "int": (lambda td: td.to(torch.int32), ".*"),
    "ints of 32 bits": (lambda td: td.set("keys", td["keys"].int()), "keys must be integers, torch.int64"),
    "mask": (lambda td: td.set("loss_mask", td["loss_mask"].int()), "loss_mask must be bools"),
    "steps": (lambda td: td.set("steps", td["steps"].long()), "steps must be integers, torch.int32"),
    "exact": (lambda td: td.set("is_exact", td["is_exact"].float()), "is_exact must be bools"),
    "returns": (lambda td: td.set("returns", td["returns"].long()), "returns must be floats"),
}


@BOTH
@pytest.mark.parametrize(("change", "text"), CHANGED.values(), ids=CHANGED)
def test_a_dtype_that_was_changed_is_refused(change: Any, text: str, nested: bool) -> None:
    with pytest.raises(errors.ArgumentError, match=rf"^({text}), got torch\.\w+$" if text != ".*" else "must be"):
        relive_torch.from_tensordict(change(relive_torch.as_tensordict(inexact(), nested=nested)))


STRIDED = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


def jagged(td: tensordict.TensorDict, layout: Any = torch.jagged) -> tensordict.TensorDict:
    """Return a TensorDict whose entries of tokens came back as rows, as from a queue."""
    rows = {name: [*each] for name, each in td.items() if isinstance(each, torch.Tensor) and each.ndim > 1}
    for name, each in rows.items():
        td = td.set(name, torch.nested.as_nested_tensor(each, layout=layout))
    return td


@STRIDED
def test_a_padded_batch_that_became_jagged_comes_back() -> None:
    batch = inexact()
    batch.logprobs[~batch.attention_mask] = -7.0  # Not even the padding changes.
    for layout in (torch.jagged, torch.strided):
        check_equal(relive_torch.from_tensordict(jagged(relive_torch.as_tensordict(batch), layout)), batch)


@STRIDED
def test_a_nested_batch_that_became_dense_or_strided_comes_back() -> None:
    even = batch_of([[step_of([1, 5], [7])], [step_of([1, 6], [8])]])
    td = relive_torch.as_tensordict(even, nested=True)
    for name, each in [*td.items()]:
        if isinstance(each, torch.Tensor) and each.is_nested:
            td[name] = torch.stack([*each.unbind()])
    check_equal(relive_torch.from_tensordict(td), even)
    td = relive_torch.as_tensordict(inexact(), nested=True).exclude("extras/pair")
    td["mismatches"] = [each and dataclasses.asdict(each) for each in td["mismatches"]]
    back = relive_torch.from_tensordict(jagged(td, torch.strided))
    check_equal(back.tokens, inexact().tokens)
    assert back.mismatches == inexact().mismatches


def test_a_jagged_tensor_with_holes_is_read_without_them() -> None:
    td = relive_torch.as_tensordict(inexact())
    for name in [name for name, each in td.items() if isinstance(each, torch.Tensor) and each.ndim == 2]:
        starts, lengths = torch.zeros(3, dtype=torch.int64), torch.tensor([3, 4, 6])
        td[name] = torch.nested.narrow(td[name], 1, starts, lengths, layout=torch.jagged)
    td["padding"] = torch.tensor([[9, 8]] * 3)
    found = relive_torch.from_tensordict(td.exclude("extras/pair"))
    check_equal(found.tokens, inexact().tokens)
    check_equal(found.attention_mask, inexact().attention_mask)


@BOTH
def test_a_batch_without_extras_comes_back_without(nested: bool) -> None:
    batch = inexact()
    batch.extras = {}
    td = relive_torch.as_tensordict(batch, nested=nested)
    assert not [name for name in td.keys() if "extras" in name]  # noqa: SIM118
    check_equal(relive_torch.from_tensordict(td), batch)


@IF_NEW
def test_a_lazy_stack_of_rows_says_how_it_is_stacked() -> None:
    td = relive_torch.as_tensordict(inexact(), nested=True)
    lazy = tensordict.lazy_stack([*td])
    text = r"^td must have rows that stack, got other shapes of tokens: call td.densify\(layout=torch.jagged\)$"
    with pytest.raises(errors.ArgumentError, match=text):
        relive_torch.from_tensordict(lazy)
    check_equal(relive_torch.from_tensordict(lazy.densify(layout=torch.jagged)), inexact())


def without(*names: str, nested: bool = False) -> tensordict.TensorDict:
    return relive_torch.as_tensordict(inexact(), nested=nested).exclude(*names)


def with_entry(name: str, entry: Any, nested: bool = False) -> tensordict.TensorDict:
    td = relive_torch.as_tensordict(inexact(), nested=nested)
    td[name] = entry
    return td


def of_other_lengths() -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(torch.zeros(13), torch.tensor([0, 4, 7, 13]))


RAGGED = relive_torch.as_tensordict(inexact(), nested=True)["tokens"]
WRONG = {
    "number": (3, "td must be an instance of TensorDictBase, got 3"),
    "dict": ({"tokens": [1]}, "td must be an instance of TensorDictBase, got .*"),
    "nothing": (
        tensordict.TensorDict({}, [2]),
        "td must have all fields of a TokenBatch, but has no tokens, .*, metadata",
    ),
    "fields": (without("steps", "mismatches"), "td must have all fields of a TokenBatch, but has no steps, mismatches"),
    "padding": (without("padding", nested=True), "td must have all fields of a TokenBatch, but has no padding"),
    "size": (relive_torch.as_tensordict(inexact())[0], r"td must have a batch size of \[B\], got \[\]"),
    "short": (with_entry("logprobs", torch.zeros(3, 7)), r"logprobs must be \[B, L\], as tokens, got .*"),
    "flat": (with_entry("logprobs", torch.zeros(3)), r"logprobs must be \[B, L\], as tokens, got .*"),
    "deep": (with_entry("steps", torch.zeros(3, 8, 1)), r"steps must be \[B, L\], as tokens, got .*"),
    "texts": (with_entry("tokens", ["a", "b", "c"]), r"tokens must be \[B, L\], as tokens, got .*"),
    "padded": (with_entry("steps", torch.zeros(3, 8), True), r"steps must be \[B, L\], as tokens, got .*"),
    "nested": (with_entry("attention_mask", RAGGED), r"attention_mask must be \[B, L\], as tokens, got .*"),
    "width": (without("padding", nested=True)[:2], "td must have all fields .*, but has no padding"),
    "keys": (with_entry("keys", torch.zeros(3, 2)), r"keys must be \[B\], got .*"),
    "text": (with_entry("returns", ["a", "b", "c"]), r"returns must be \[B\], got .*"),
    "names": (with_entry("group_ids", torch.zeros(3)), "group_ids must be non-tensor data, one for each row, got .*"),
    "extra": (with_entry("extras/x", torch.zeros(3, 7)), r"extras/x must be \[B\] or \[B, L, ...\], as tokens, got .*"),
    "list": (with_entry("extras/x", ["a", "b", "c"]), r"extras/x must be \[B\] or \[B, L, ...\], as tokens, got .*"),
    "rows": (with_entry("padding", torch.zeros(3), True), r"padding must be \[B, 2\], got .*"),
    "tree": (
        with_entry("extras", tensordict.TensorDict({"x": torch.zeros(3)}, [3])),
        r'td must have extras as entries extras/NAME, got extras: call td.flatten_keys\("/"\)',
    ),
    "meta": (
        relive_torch.as_tensordict(inexact()).to("meta"),
        "tokens must be a tensor that numpy can read, got one on meta",
    ),
    "uneven": (with_entry("rewards", of_other_lengths(), True), r"rewards must be \[B, L\], as tokens, got .*"),
}


@pytest.mark.parametrize(("td", "text"), WRONG.values(), ids=WRONG)
def test_what_is_no_batch_in_a_tensordict_is_said_in_one_line(td: Any, text: str) -> None:
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        relive_torch.from_tensordict(td)


def test_without_tensordict_the_error_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensordict", None)
    text = '^tensordict is not installed: it comes with the extra "tensordict" of relive$'
    with pytest.raises(errors.MissingExtraError, match=text):
        relive_torch.as_tensordict(inexact())
    with pytest.raises(errors.MissingExtraError, match=text):
        relive_torch.from_tensordict({})
