"""Tests of the token buffer, with a naive twin that keeps every sequence as a list of tokens."""

import copy
import dataclasses
import errno
import functools
import itertools
import math
import os
import pathlib
import pickle
import random
import tracemalloc
from typing import Any, ClassVar
import uuid

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import token_buffer
from relive.agents import token_entry
from relive.agents import token_episode_test
from relive.agents import tokens as tokens_lib
from relive.storage import memmap
from relive.testing import walks
from relive.testing import zoo

ADVANTAGE = relive.Field((), np.float32)
NUMBER = relive.Field((), float)
Steps = list[relive.TokenStep]
step_of = token_episode_test.step_of


def rows_of(batch: relive.TokenBatch) -> list[list[tuple[Any, ...]]]:
    """Return the tokens of each row, as the naive twin has them."""
    packed = batch.packed()
    columns = zip(*[packed[name].tolist() for name in tokens_lib.FIELDS], strict=True)
    tokens, ends = list(columns), packed["cu_seqlens"].tolist()
    return [tokens[begin:end] for begin, end in itertools.pairwise(ends)]


def held_keys(buffer: relive.TokenReplayBuffer) -> list[int]:
    return list(buffer._store.owners)


def snapshot(buffer: relive.TokenReplayBuffer) -> Any:
    """Return what a refused call must leave as it was."""
    keys = held_keys(buffer)
    rows = rows_of(buffer.read(keys)) if keys else []
    return rows, keys, buffer.get_stats(), buffer.policy_version, copy.deepcopy(buffer.rng.bit_generator.state)


def filled(max_tokens: int = 100, **settings: Any) -> relive.TokenReplayBuffer:
    buffer = relive.TokenReplayBuffer(max_tokens, seed=0, **settings)
    buffer.add_episode([step_of([1, 5], [7, 2], policy_version=3)], agent_id="a")
    buffer.add_episode([step_of([4], [4]), step_of([5], [6], reward=1.5)], agent_id="b", group_id="g")
    return buffer


def test_a_batch_names_episodes_and_where_they_do_not_go_on() -> None:
    buffer = relive.TokenReplayBuffer(100, seed=0)
    buffer.add_episode([step_of([1], [2])], agent_id="a")
    keys = buffer.add_episode([step_of([1], [2]), step_of([2], [3])], agent_id="b", group_id="g")
    assert (keys.tolist(), keys.dtype.str) == ([1, 2], "<i8")
    batch = buffer.read([2, 0, 1])
    assert (batch.agent_ids, batch.group_ids) == (["b", "a", "b"], ["g", None, "g"])
    assert batch.episode_ids[0] == batch.episode_ids[2] != batch.episode_ids[1]
    assert all(str(uuid.UUID(name)) == name for name in batch.episode_ids)
    assert batch.mismatches == [relive.TokenMismatch(step=1, position=0, expected=1, found=2), None, None]
    assert (len(buffer), buffer.capacity) == (6, 100)
    assert repr(buffer) == "<TokenReplayBuffer of 3 sequences, 6 of 100 tokens>"


def test_draws_within_a_lag_take_late_episodes() -> None:
    """P66: NeMo-RL PR 2458."""
    buffer = relive.TokenReplayBuffer(1000, seed=0)
    for version in range(1, 20):
        buffer.set_policy_version(version)
        buffer.add_episode([step_of([version], [1], policy_version=version - 1)], agent_id="late")
        with pytest.raises(errors.NotReadyError, match="^sample found no sequence to draw: the smallest lag is 1: "):
            buffer.sample(4, max_lag=0)
        assert set(buffer.sample(30, max_lag=1).policy_versions[:, 1].tolist()) == {version - 1}
        newest = buffer.eligible_keys(max_lag=3)
        assert newest.tolist() == list(range(max(version - 3, 0), version))
    assert buffer.eligible_keys().tolist() == list(range(19))


def test_padding_and_multiple_are_those_of_the_buffer() -> None:
    batch = filled(pad_token_id=9, pad_to_multiple_of=3).read([0, 1])
    assert batch.tokens.tolist() == [[1, 5, 7, 2, 9, 9], [4, 4, 9, 9, 9, 9]]


def test_writing_into_a_batch_changes_nothing_stored() -> None:
    """P52: TRL PR 6821, a learner that normalises in place."""
    buffer = filled()
    before = snapshot(buffer)
    batch = buffer.read([0, 1, 2])
    for name in (*tokens_lib.FIELDS, "attention_mask", "lengths", "keys", "returns", "is_exact"):
        getattr(batch, name)[...] = 1
    batch.episode_ids.clear()
    keys = np.array([0, 1])
    buffer.read(keys).keys[:] = 9
    assert keys.tolist() == [0, 1]
    assert snapshot(buffer) == before


def test_token_draws_do_not_depend_on_numpys_generator() -> None:
    """P64."""
    one, other = filled(), filled()
    drawn = [one.sample(5).keys.tolist() for _ in range(20)]
    np.random.seed(3)  # noqa: NPY002
    before = repr(np.random.get_state())  # noqa: NPY002
    assert [other.sample(5).keys.tolist() for _ in range(20)] == drawn
    assert repr(np.random.get_state()) == before  # noqa: NPY002


def test_an_empty_buffer_can_be_asked_everything() -> None:
    buffer = relive.TokenReplayBuffer(10)
    buffer.clear()
    buffer.check()
    assert (len(buffer), buffer.eligible_keys().tolist(), buffer.policy_version) == (0, [], None)
    assert buffer.eligible_keys().dtype == np.int64
    assert buffer.get_stats() == relive.TokenBufferStats(
        **dict.fromkeys(token_buffer.TokenBufferStats.__dataclass_fields__, 0)
    )
    with pytest.raises(errors.NotReadyError, match="^sample found no sequence to draw: add an episode first$"):
        buffer.sample(1)
    with pytest.raises(errors.UnknownKeyError, match="^key 0 not found"):
        buffer.read([0])
    buffer.add_episode([step_of([1], [2], loss_mask=[False])], agent_id="a")
    text = "^sample found no sequence to draw: none of 1 has a token that is to be trained on$"
    with pytest.raises(errors.NotReadyError, match=text):
        buffer.sample(1)


WRONG: Any = "wrong"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b: b.add_episode([], agent_id="a"), "steps must have at least 1 step, got 0"),
        (lambda b: b.add_episode([WRONG], agent_id="a"), "step 0 must be an instance of TokenStep, got 'wrong'"),
        (lambda b: b.add_episode([step_of([1], [2])], agent_id=3), "agent_id must be a string, got 3"),
        (lambda b: b.add_episode([step_of([1], [2])], agent_id="a", group_id=3), "group_id must be a string, got 3"),
        (
            lambda b: b.add_episode([step_of([1] * 60, [2]), step_of([1] * 39, [2])], agent_id="a"),
            "steps must have at most max_tokens = 100 tokens when they are joined, got 101",
        ),
        (lambda b: b.sample(0), "batch_size must be at least 1, got 0"),
        (lambda b: b.sample(1, max_lag=-1), "max_lag must be at least 0, got -1"),
        (
            lambda b: b.sample(1, max_lag=2),
            "max_lag needs the learner's policy version: call set_policy_version first",
        ),
        (
            lambda b: b.eligible_keys(max_lag=2),
            "max_lag needs the learner's policy version: call set_policy_version first",
        ),
        (lambda b: b.set_policy_version(-1), "version must be at least 0, got -1"),
        (lambda b: b.set_policy_version(1.5), "version must be an integer of at least 0, got 1.5"),
        (lambda b: b.read([]), "keys must have at least 1 key, got 0"),
        (lambda b: b.read([0.5]), r"keys must be integers, got \[0.5\]"),
        (lambda b: b.read([3]), "key 3 not found: its sequence was evicted, or never was"),
        (lambda b: b.read([-1]), "key -1 not found: its sequence was evicted, or never was"),
        (lambda b: b.lengths([3]), "key 3 not found: its sequence was evicted, or never was"),
        (lambda b: b.lengths(["x"]), r"keys must be integers, got \['x'\]"),
        (lambda b: b.micro_batches([0, 3], max_tokens=9), "key 3 not found: its sequence was evicted, or never was"),
        (lambda b: b.micro_batches([], max_tokens=9), "lengths must have at least 1 sequence, got 0"),
        (
            lambda b: b.micro_batches([0, 1], max_tokens=3),
            r"lengths must be in \[1, max_tokens = 3\], got 4 for sequence 0",
        ),
        (
            lambda b: b.add_episode([step_of([1], [2])], agent_id="a", status="DONE"),
            "status must be 'COMPLETED' or 'TRUNCATED' or 'ABORTED', got 'DONE'",
        ),
        (
            lambda b: b.add_episode([step_of([1], [2])], agent_id="a", group_id=""),
            "group_id must be a string of at least 1 character, got ''",
        ),
        (
            lambda b: b.add_episode([step_of([1], [2])], agent_id="a", advantage=1),
            "unknown extra 'advantage': the buffer has no extras",
        ),
        (lambda b: b.update([0], advantages=[[1]]), "unknown extra 'advantages': the buffer has no extras"),
        (lambda b: b.update(["x"]), r"keys must be integers, got \['x'\]"),
    ],
)
def test_refused_calls_on_tokens_change_nothing(call: Any, text: str) -> None:
    buffer = filled()
    before = snapshot(buffer)
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        call(buffer)
    assert snapshot(buffer) == before
    buffer.check()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"pad_token_id": -1}, "pad_token_id must be at least 0, got -1"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"logprobs_dtype": int}, "logprobs_dtype must be float16, float32 or float64, got <class 'int'>"),
        ({"logprobs_dtype": "bfloat16"}, "logprobs_dtype must be float16, float32 or float64, got 'bfloat16'"),
        ({"token_extras": [3]}, r"token_extras must be a mapping from names to Fields, got \[3\]"),
        ({"token_extras": {"x": 3}}, "token_extras 'x' must be an instance of Field, got 3"),
        ({"token_extras": {3: NUMBER}}, "each name in token_extras must be a string, got 3"),
        (
            {"token_extras": {"x": relive.Field((), "U3")}},
            "token_extras must be of numbers or bools, got <U3 for 'x'",
        ),
        *(
            ({"token_extras": {name: NUMBER}}, f"token_extras must have names .* that are not taken, got '{name}'")
            for name in ("tokens", "keys", "agent_id", "oldest_version", "extras", "a/b", "a b")
        ),
        *(
            ({"token_extras": {name: NUMBER}}, f"token_extras must have names .* that are not taken, got '{name}'")
            for name in ("cu_seqlens", "max_seqlen", "position_ids")
        ),
        (
            {"sequence_extras": {"x": relive.Field(2, float)}},
            r"sequence_extras must be of shape \(\), got \(2,\) for 'x'",
        ),
        (
            {"token_extras": {"x": NUMBER}, "sequence_extras": {"x": NUMBER}},
            "sequence_extras must have names that are identifiers .*, got 'x'",
        ),
    ],
)
def test_settings_of_a_token_buffer_are_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        relive.TokenReplayBuffer(**{"max_tokens": 10, **arguments})


def test_the_dtype_of_log_probabilities_is_that_of_the_first() -> None:
    buffer = relive.TokenReplayBuffer(100, seed=0)
    buffer.add_episode([step_of([1], [2], logprobs=np.array([-0.1], np.float32))], agent_id="a")
    buffer.add_episode([step_of([1], [2], logprobs=np.array([-0.5], np.float16))], agent_id="a")
    before = snapshot(buffer)
    for logs in ([-0.5, -0.25, -1.0], [-0.5, -1e300, -0.1]):  # By their dtype, whether the numbers would fit or not.
        with pytest.raises(
            errors.SchemaError, match="^logprobs must fit float32, as in .*, got float64: cast .*"
        ) as why:
            buffer.add_episode([step_of([1], [2, 3, 4], logprobs=np.array(logs))], agent_id="a")
        assert str(why.value).endswith("with .astype('float32'), or give the buffer logprobs_dtype='float64'")
        assert snapshot(buffer) == before
    assert buffer.read([1]).logprobs.dtype == np.float32


@pytest.mark.parametrize(
    ("declared", "first", "expected"),
    [
        (None, np.float16, np.float16),
        (None, np.float64, np.float64),
        (None, list, np.float32),
        (np.float64, list, np.float64),
        ("float64", np.float32, np.float64),
        (">f2", list, np.float16),
    ],
)
def test_lists_of_log_probabilities_become_the_columns_dtype(declared: Any, first: Any, expected: Any) -> None:
    buffer = relive.TokenReplayBuffer(100, logprobs_dtype=declared, seed=0)
    given = [-0.1] if first is list else np.array([-0.1], first)
    buffer.add_episode([step_of([1], [2], logprobs=given)], agent_id="a")
    buffer.add_episode([step_of([1], [2, 3, 4], logprobs=[-0.1, -1, np.float64(-0.3)])], agent_id="a")
    buffer.add_episode([step_of([1], [2, 3], logprobs=np.array([0, -1]))], agent_id="a")
    kept = buffer.read([0, 1, 2]).logprobs
    assert kept.dtype == expected
    assert kept[0, 1] == (-0.1 if first is list else given[0])
    assert kept[1:, 1:].tolist() == np.array([[-0.1, -1, -0.3], [0, -1, 0]], expected).tolist()


@pytest.mark.parametrize("scalar", [np.array, np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("declared", [None, np.float16, np.float64])
def test_a_list_of_any_scalars_is_cast_as_a_list(scalar: Any, declared: Any) -> None:
    buffer = relive.TokenReplayBuffer(100, logprobs_dtype=declared)
    for kind in (list, tuple):
        step = step_of([1], [2, 3], logprobs=kind(map(scalar, [-0.1, -1.0])))
        assert step.logprobs.dtype == np.float64
        buffer.add_episode([step], agent_id="a")
    kept = buffer.read([0, 1]).logprobs
    assert kept.dtype == (declared or np.float32)
    assert kept[:, 1:].tolist() == np.array([[np.float64(scalar(-0.1)), -1.0]] * 2, kept.dtype).tolist()


def test_a_list_that_would_overflow_is_refused() -> None:
    buffer = relive.TokenReplayBuffer(100)
    with pytest.raises(errors.SchemaError, match=r"^logprobs must fit float32, got -1e\+300$"):
        buffer.add_episode([step_of([1], [2], logprobs=[-1e300])], agent_id="a")
    assert len(buffer) == 0


def test_a_list_is_cast_after_its_step_was_copied_and_saved() -> None:
    step = step_of([1], [2], logprobs=[-0.1])
    codec = relive.TokenStepCodec()
    episode = relive.Episode[Any, Any](episode_id="e", agent_id="a", actions=[step], rewards=[2.0])
    twins = [copy.deepcopy(step), pickle.loads(pickle.dumps(step)), codec.decode(codec.encode(step))]
    buffer = relive.TokenReplayBuffer(100, logprobs_dtype=np.float32)
    for twin in [*twins, *tokens_lib.steps_of(episode)]:
        assert twin.logprobs.tolist() == [-0.1]
        buffer.add_episode([twin], agent_id="a")
    assert buffer.read([3]).returns.tolist() == [2.0]


def test_the_dtype_of_log_probabilities_is_a_setting(tmp_path: pathlib.Path) -> None:
    buffer = relive.TokenReplayBuffer(100, logprobs_dtype=np.float64)
    buffer.save(tmp_path / "empty")
    loaded = relive.TokenReplayBuffer.load(tmp_path / "empty")
    keys = loaded.add_episode([step_of([1], [2], logprobs=[-0.1])], agent_id="a")
    assert loaded.read(keys).logprobs.tolist() == [[0.0, -0.1]]
    loaded.save(tmp_path / "filled")
    with pytest.raises(errors.CheckpointError, match="sequences/log_probability_dtype must be float32, got '<f8'$"):
        relive.TokenReplayBuffer.load(tmp_path / "filled", logprobs_dtype=np.float32)
    with relive.Journal(tmp_path / "journal") as journal:
        loaded.attach(journal)
        loaded.add_episode([step_of([1], [2], logprobs=[-0.3])], agent_id="a")
    recovered: Any = relive.recover(tmp_path / "journal")
    assert recovered.read([1]).logprobs.tolist() == [[0.0, -0.3]]


@pytest.mark.parametrize("stored", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("declared", [np.float16, np.float32, np.float64])
def test_stored_log_probabilities_keep_their_dtype(stored: Any, declared: Any, tmp_path: pathlib.Path) -> None:
    buffer = relive.TokenReplayBuffer(100)
    buffer.add_episode([step_of([1], [2], logprobs=np.array([-0.1], stored))], agent_id="a")
    buffer.save(tmp_path / "saved")
    with relive.Journal(tmp_path / "log") as journal:
        buffer.attach(journal)
    for restore in (
        functools.partial(relive.load, tmp_path / "saved"),
        functools.partial(relive.recover, tmp_path / "log"),
        functools.partial(relive.TokenReplayBuffer.from_state, buffer.state_dict()),
    ):
        if stored is declared:
            assert restore(logprobs_dtype=declared).read([0]).logprobs.dtype == stored
        else:
            named = f"must be {np.dtype(declared).name}, got '{np.dtype(stored).str}'$"
            with pytest.raises(errors.CheckpointError, match=f"sequences/log_probability_dtype {named}"):
                restore(logprobs_dtype=declared)


def test_a_list_takes_the_dtype_of_the_array_beside_it() -> None:
    steps = [step_of([1], [2], logprobs=[-0.1]), step_of([1, 2], [3], logprobs=np.array([-0.3], np.float16))]
    buffer = relive.TokenReplayBuffer(100)
    batch = buffer.read(buffer.add_episode(steps, agent_id=np.str_("a"), group_id=np.str_("g")))
    assert batch.logprobs.dtype.str == "<f2"
    assert batch.logprobs.tolist() == np.array([[0, -0.1, -0.3]], np.float16).tolist()
    assert [type(name) for name in (*batch.agent_ids, *batch.group_ids)] == [str, str]


@dataclasses.dataclass
class Twin:
    """A sequence, as the naive twin stores it."""

    episode: int
    rows: list[tuple[Any, ...]]
    total: float
    is_exact: bool
    agent: str
    status: str
    advantages: list[float]
    temperature: float


def with_extras() -> relive.TokenReplayBuffer:
    """A buffer of an episode of two sequences, of 4 and 3 tokens."""
    buffer = relive.TokenReplayBuffer(
        100, token_extras={"advantages": ADVANTAGE, "logits": relive.Field(2, "i1")}, sequence_extras={"t": NUMBER}
    )
    buffer.add_episode([step_of([1, 5], [7, 2]), step_of([4, 4], [4])], agent_id="a", advantages=[[1, 2], [3]], t=0.5)
    return buffer


def test_extras_are_given_for_tokens_or_whole_episodes() -> None:
    batch = with_extras().read([0, 1])
    assert list(batch.extras) == ["advantages", "logits", "t"]
    assert batch.extras["advantages"].tolist() == [[0, 0, 1, 2], [0, 0, 3, 0]]
    assert batch.extras["logits"].tolist() == [[[0, 0]] * 4] * 2
    assert batch.extras["t"].tolist() == [0.5, 0.5]
    assert [batch.extras[name].dtype.str for name in ("advantages", "logits", "t")] == ["<f4", "|i1", "<f8"]
    packed = batch.packed()
    assert packed["advantages"].tolist() == [0, 0, 1, 2, 0, 0, 3]
    assert packed["logits"].shape == (7, 2)
    assert "t" not in packed


def test_extras_are_written_back_padded_or_row_by_row() -> None:
    buffer = with_extras()
    batch = buffer.read([1, 0])
    for values in (
        batch.loss_mask * np.float32(2),
        [[0, 0, 2], [0, 0, 2, 2]],
        [np.array([0, 0, 2, 9, 9]), (0, 0, 2, 2)],
    ):
        buffer.update([0, 1], advantages=np.zeros((2, 4), int))
        assert buffer.update(batch.keys, advantages=values) == 2
        assert buffer.read([0, 1]).extras["advantages"].tolist() == [[0, 0, 2, 2], [0, 0, 2, 0]]
    assert buffer.update([0, 1, 0], t=[1, 2, 3], logits=np.arange(24).reshape(3, 4, 2)) == 3
    found = buffer.read([0, 1]).extras
    assert found["t"].tolist() == [3, 2]
    assert found["logits"][0].tolist() == [[16, 17], [18, 19], [20, 21], [22, 23]]
    assert buffer.update([], t=[]) == buffer.update([]) == 0
    assert buffer.update([7, 0, -1], advantages=[[1], [5, 5, 5, 5], []], t=[7, 8, 9]) == 1
    assert buffer.read([0, 1]).extras["t"].tolist() == [8, 2]
    assert buffer.get_stats().stale_keys == 2


STEP = step_of([1], [2, 3])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b: b.update([0], other=[1]), "unknown extra 'other': the buffer has advantages, logits, t"),
        (lambda b: b.update([0], tokens=[1]), "unknown extra 'tokens': the buffer has advantages, logits, t"),
        (lambda b: b.update([0, 1], t=[1]), "t must be one for each of 2 keys, got 1"),
        (lambda b: b.update([0, 1], advantages=[[1]]), "advantages must be one for each of 2 keys, got 1"),
        (lambda b: b.update([0, 1], t=[1, 2], advantages=3), "advantages must be a sequence, got 3"),
        (
            lambda b: b.update([0, 1], t=[1, 2], advantages=[[1, 2, 3, 4], [1, 2]]),
            r"advantages of key 1 must be a row of at least 3 values, one for each token, got shape \(2,\)",
        ),
        (
            lambda b: b.update([0], advantages=[1]),
            r"advantages of key 0 must be a row of at least 4 values, one for each token, got shape \(\)",
        ),
        (
            lambda b: b.update([0], logits=np.zeros((1, 4))),
            r"logits of key 0 must be of shape \(4, 2\), got \(4,\)",
        ),
        (lambda b: b.update([0], t=[1], logits=np.full((1, 4, 2), 300)), "logits of key 0 must fit int8, got 300"),
        (lambda b: b.update([0], advantages=np.zeros((1, 4))), "advantages of key 0 must be of dtype float32, got .*"),
        (lambda b: b.update([0], t=["x"]), r"t must be of dtype float64, got \['x'\]"),
        (lambda b: b.add_episode([STEP], agent_id="a", t=[1, 2]), r"t must be of shape \(\), got \(2,\)"),
        (
            lambda b: b.add_episode([STEP], agent_id="a", advantages=[[1, 2], [3]]),
            "advantages must be one for each of 1 steps, got 2",
        ),
        (
            lambda b: b.add_episode([STEP], agent_id="a", advantages=[[1, 2, 3]]),
            r"advantages of step 0 must be of shape \(2,\), got \(3,\)",
        ),
    ],
)
def test_extras_that_do_not_fit_change_nothing(call: Any, text: str) -> None:
    buffer = with_extras()
    before = snapshot(buffer), [(name, each.tolist()) for name, each in buffer.read([0, 1]).extras.items()]
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        call(buffer)
    assert (snapshot(buffer), [(name, each.tolist()) for name, each in buffer.read([0, 1]).extras.items()]) == before
    buffer.check()


def test_lengths_and_micro_batches_are_found_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = relive.TokenReplayBuffer(1000, seed=0)
    rng = np.random.default_rng(0)
    for size in rng.integers(1, 20, 40).tolist():
        buffer.add_episode([step_of([], [1] * size)], agent_id="a")
    keys = rng.permutation(40)
    lengths = buffer.read(keys).lengths.tolist()
    monkeypatch.setattr(buffer._store.rows, "read", None)
    assert buffer.lengths(keys).tolist() == lengths
    assert buffer.lengths([]).tolist() == []
    parts = buffer.micro_batches(keys, max_tokens=30, ranks=2)
    places = relive.micro_batches(lengths, max_tokens=30, ranks=2)
    assert [[part.tolist() for part in each] for each in parts] == [
        [keys[part].tolist() for part in each] for each in places
    ]


def test_an_episode_takes_little_more_memory_than_its_tokens() -> None:
    rng = np.random.default_rng(0)
    steps: Steps = []
    for _ in range(30):
        context = [*steps[-1].prompt.tolist(), *steps[-1].response.tolist()] if steps else []
        logprobs = np.full(60, -0.5, np.float32)
        steps.append(step_of([*context, *rng.integers(50_000, size=90)], [5] * 60, logprobs=logprobs))
    count = 30 * 150
    buffer = relive.TokenReplayBuffer(count, seed=0)
    buffer.add_episode(steps, agent_id="a")
    rows = buffer._store.rows
    assert rows is not None
    per_token = sum(column[:1].nbytes for column in rows._columns.values())
    assert (rows.num_values, per_token) == (count, 29)
    tracemalloc.start()
    more = relive.TokenReplayBuffer(count, seed=0)
    before = tracemalloc.get_traced_memory()[0]
    more.add_episode(steps, agent_id="a")
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert rows.nbytes <= 1.1 * count * per_token
    assert taken <= 1.1 * count * per_token


def some_steps(rng: random.Random) -> Steps:
    """Return steps of few different tokens, most of which go on from the one before."""
    steps: Steps = []
    for _ in range(rng.randint(1, 6)):
        before = [*steps[-1].prompt.tolist(), *steps[-1].response.tolist()] if steps else []
        prompt, answer = (rng.choices(range(3), k=rng.randint(*most)) for most in ((0, 4), (1, 3)))
        if rng.randrange(4):
            prompt = before + prompt
        elif rng.randrange(2):
            prompt = before[: rng.randint(0, len(before))]
        steps.append(
            relive.TokenStep(
                prompt=prompt,
                response=answer,
                logprobs=np.array([rng.uniform(-100, 0) for _ in answer]),
                policy_version=[rng.randint(0, 9) for _ in answer],
                loss_mask=[rng.random() < 0.5 for _ in answer],
                reward=rng.choice([0.0, 1.0, -2.5, 0.1]),
            )
        )
    return steps


class TokenMachine(walks.Machine):
    """Compares with lists under any order of calls."""

    often: ClassVar = {"add": 8, "update": 4, "sample": 4}
    least: ClassVar = {
        "evicted": 200,
        "an episode too long": 3,
        "a key that left is updated": 100,
        "nothing to draw": 10,
    }

    @walks.initialize(max_tokens=walks.integers(20, 80))
    def start(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.buffer = self.new()
        self.twin: dict[int, Twin] = {}
        self.appended = self.evicted = self.cleared = self.episodes = self.inexact = self.sampled = self.stale = 0
        self.version: int | None = None

    def new(self) -> relive.TokenReplayBuffer:
        return relive.TokenReplayBuffer(
            self.max_tokens, token_extras={"advantages": ADVANTAGE}, sequence_extras={"temperature": NUMBER}, seed=0
        )

    @walks.rule(
        steps=some_steps,
        agent=walks.sampled_from("ab"),
        status=walks.sampled_from(["COMPLETED", "TRUNCATED", "ABORTED"]),
        extra=walks.maybe(walks.integers(1, 99)),
    )
    def add(self, steps: Steps, agent: str, status: Any, extra: int | None) -> None:
        sequences = token_episode_test.walked(steps)
        extras: dict[str, Any] = {}
        if extra is not None:
            extras = {"advantages": [[extra] * len(step.response) for step in steps], "temperature": extra / 4}
        if sum(map(len, sequences)) > self.max_tokens:
            self.reached["an episode too long"] += 1
            with pytest.raises(errors.ArgumentError, match="^steps must have at most max_tokens"):
                self.buffer.add_episode(steps, agent_id=agent, status=status, **extras)
            return
        keys = self.buffer.add_episode(steps, agent_id=agent, status=status, **extras)
        assert keys.tolist() == list(range(self.appended, self.appended + len(sequences)))
        for key, rows in zip(keys.tolist(), sequences, strict=True):
            self.twin[key] = Twin(
                episode=self.episodes,
                rows=rows,
                total=math.fsum(step.reward for step in steps),
                is_exact=len(sequences) == 1,
                agent=agent,
                status=status,
                advantages=[float(extra or 0) * (row[3] >= 0) for row in rows],
                temperature=(extra or 0) / 4,
            )
        while sum(len(each.rows) for each in self.twin.values()) > self.max_tokens:
            oldest = next(iter(self.twin.values())).episode
            for key in [key for key, each in self.twin.items() if each.episode == oldest]:
                del self.twin[key]
                self.evicted += 1
                self.reached["evicted"] += 1
        self.appended += len(sequences)
        self.episodes += 1
        self.inexact += len(sequences) > 1

    @walks.rule(data=walks.generator, names=walks.subsets(["advantages", "temperature"], 0, 2))
    def update(self, data: random.Random, names: set[str]) -> None:
        keys = [data.randint(-1, self.appended) for _ in range(data.randint(0, 5))]
        width = max([len(self.twin[key].rows) for key in keys if key in self.twin], default=0) + data.randint(0, 2)
        number = data.randint(0, 50)
        rectangle = number + np.arange(len(keys) * width, dtype=np.float32).reshape(len(keys), width)
        given: dict[str, Any] = {"advantages": rectangle, "temperature": number + np.arange(len(keys)) / 4}
        alive = self.buffer.update(keys, **{name: given[name] for name in names})
        assert alive == sum(key in self.twin for key in keys)
        self.stale += len(keys) - alive
        self.reached["a key that left is updated"] += len(keys) - alive
        for place, key in enumerate(keys):
            if key in self.twin and "advantages" in names:
                self.twin[key].advantages = rectangle[place, : len(self.twin[key].rows)].tolist()
            if key in self.twin and "temperature" in names:
                self.twin[key].temperature = number + place / 4

    @walks.rule(more=walks.integers(0, 3))
    def set_policy_version(self, more: int) -> None:
        self.version = (self.version or 0) + more
        self.buffer.set_policy_version(self.version)

    @walks.rule()
    def clear(self) -> None:
        self.cleared += len(self.twin)
        self.twin = {}
        self.buffer.clear()

    def eligible(self, max_lag: int | None) -> list[int]:
        found = []
        for key, each in self.twin.items():
            versions = [row[3] for row in each.rows if row[1]]
            if versions and (max_lag is None or self.version is None or self.version - min(versions) <= max_lag):
                found.append(key)
        return found

    @walks.rule(size=walks.integers(1, 5), max_lag=walks.maybe(walks.integers(0, 9)))
    def sample(self, size: int, max_lag: int | None) -> None:
        if max_lag is not None and self.version is None:
            with pytest.raises(errors.ArgumentError, match="^max_lag needs the learner's policy version"):
                self.buffer.sample(size, max_lag=max_lag)
            return
        eligible = self.eligible(max_lag)
        assert self.buffer.eligible_keys(max_lag=max_lag).tolist() == eligible
        if not eligible:
            self.reached["nothing to draw"] += 1
            with pytest.raises(errors.NotReadyError, match="^sample found no sequence to draw: "):
                self.buffer.sample(size, max_lag=max_lag)
            return
        batch = self.buffer.sample(size, max_lag=max_lag)
        self.sampled += size
        assert len(batch) == size
        assert set(batch.keys.tolist()) <= set(eligible)
        self.compare(batch)

    @walks.rule()
    def save_and_load(self) -> None:
        buffer = self.new()
        buffer.load_state_dict(self.buffer.state_dict())
        self.buffer = buffer

    def compare(self, batch: relive.TokenBatch) -> None:
        expected = [self.twin[key] for key in batch.keys.tolist()]
        assert rows_of(batch) == [each.rows for each in expected]
        assert batch.returns.tolist() == [each.total for each in expected]
        assert batch.is_exact.tolist() == [each.is_exact for each in expected]
        assert batch.agent_ids == [each.agent for each in expected]
        assert [self.buffer._store.owners[key].status for key in batch.keys.tolist()] == [x.status for x in expected]
        width, nothing = batch.tokens.shape[1], ~batch.attention_mask
        for name in tokens_lib.FIELDS:
            assert set(getattr(batch, name)[nothing].tolist()) <= {-1 if name in ("policy_versions", "steps") else 0}
        padded = [each.advantages + [0.0] * (width - len(each.rows)) for each in expected]
        assert batch.extras["advantages"].tolist() == padded
        assert batch.packed()["advantages"].tolist() == [number for each in expected for number in each.advantages]
        assert batch.extras["temperature"].tolist() == [each.temperature for each in expected]
        assert self.buffer.lengths(batch.keys).tolist() == batch.lengths.tolist()

    @walks.invariant(every=5)
    def the_same_is_held(self) -> None:
        self.buffer.check()
        assert held_keys(self.buffer) == list(self.twin)
        if self.twin:
            self.compare(self.buffer.read(list(self.twin)))
        rows = [row for each in self.twin.values() for row in each.rows]
        assert len(self.buffer) == len(rows)
        assert self.buffer.get_stats() == relive.TokenBufferStats(
            sequences=len(self.twin),
            tokens=len(rows),
            trained_tokens=sum(row[1] for row in rows),
            episodes=self.episodes,
            inexact_episodes=self.inexact,
            appended=self.appended,
            evicted=self.evicted,
            cleared=self.cleared,
            sampled=self.sampled,
            stale_keys=self.stale,
        )
        assert self.appended == len(self.twin) + self.evicted + self.cleared


TestTokenMachine = walks.tests_of(TokenMachine)


# The audit.


def broken(name: str, place: int, value: Any) -> Any:
    def change(buffer: relive.TokenReplayBuffer) -> None:
        assert buffer._store.rows is not None
        column = buffer._store.rows._columns[name]
        (column.view(np.uint8) if name == "loss_mask" else column)[place] = value

    return change


def broken_row(name: str, value: int) -> Any:
    def change(buffer: relive.TokenReplayBuffer) -> None:
        assert buffer._store.rows is not None
        buffer._store.rows._row_columns[name][1] = value

    return change


def facts(**changes: Any) -> Any:
    """Change what is known of the first episode."""

    def change(buffer: relive.TokenReplayBuffer) -> None:
        episode = buffer._store.owners[0]
        for name, value in changes.items():
            object.__setattr__(episode, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (broken("tokens", 0, -1), "tokens must be at least 0"),
        (broken("loss_mask", 2, 2), "loss_mask must be made of the bytes 0 and 1 alone"),
        (broken("loss_mask", 0, 1), "loss_mask must be False for what no policy generated"),
        (broken("logprobs", 2, np.nan), "logprobs must be finite and at most 0, but for rounding"),
        (broken("logprobs", 2, 0.5), "logprobs must be finite and at most 0, but for rounding"),
        (broken("logprobs", 0, -1.0), "logprobs must be 0 for what no policy generated"),
        (broken("policy_versions", 0, -2), "policy_versions must be at least -1"),
        (broken("rewards", 3, np.inf), "rewards must be finite"),
        (broken("rewards", 1, 1.0), "rewards must be 0 for what no policy generated"),
        (broken("steps", 1, -1), "steps must be at least 0"),
        (broken("policy_versions", 2, 9), None),
        (broken("policy_versions", 3, 2), "oldest_version of sequences must be what their tokens make it"),
        (broken("loss_mask", 3, 0), "trained of sequences must be what their tokens make it"),
        (broken_row("trained", 2), "trained of sequences must be what their tokens make it"),
        (broken_row("oldest_version", 1), "oldest_version of sequences must be what their tokens make it"),
        (lambda b: b._store.owners.pop(1), "counters must be of a buffer that holds 2 sequences"),
        (lambda b: b._store.owners.update({0: copy.copy(b._store.owners[0])}), "each sequence must belong to .*"),
        (lambda b: b._store.by_id.popitem(), "episodes must have the 3 sequences that are stored"),
        (lambda b: b._store.drawn.add(copy.copy(b._store.owners[0])), "episodes that were sampled must be stored"),
        (facts(policy_version=2), "episodes must be what their tokens make them"),
        (facts(rewards=(0.5,)), "episodes must be what their tokens make them"),
        (facts(num_tokens=3), "episodes must be what their tokens make them"),
        (facts(mismatches=(None, None)), "episodes must have the 3 sequences that are stored"),
        (broken_row("returns", 2), "returns of sequences must be what their tokens make it"),
        (broken_row("is_exact", 1), "is_exact of sequences must be what their tokens make it"),
        (lambda b: setattr(b._store, "evicted", 1), "counters must be of a buffer that holds 3 sequences"),
    ],
)
@pytest.mark.parametrize("at_once", [1, 5, 2**18])
def test_an_audit_finds_damaged_tokens(
    change: Any, text: str | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_entry, "_AT_ONCE", at_once)
    buffer = filled()
    buffer.check()
    change(buffer)
    if text is None:
        buffer.check()
        return
    with pytest.raises(errors.CorruptionError, match=f"^{text}$"):
        buffer.check()


def test_tokens_may_be_in_files_and_are_loaded_into_files(tmp_path: pathlib.Path) -> None:
    allocated: list[tuple[tuple[int, ...], Any]] = []
    maps = memmap.TemporaryMaps(tmp_path)

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        allocated.append((shape, dtype))
        return maps(shape, dtype)

    in_memory, in_files = filled(20), filled(20, allocate=allocate)
    assert len(allocated) == 6
    assert rows_of(in_files.sample(5)) == rows_of(in_memory.sample(5))
    in_files.save(tmp_path / "saved")
    loaded = relive.TokenReplayBuffer.load(tmp_path / "saved", allocate=allocate)
    loaded.load_state_dict(loaded.state_dict())
    assert allocated == allocated[:6] * 3
    assert rows_of(loaded.sample(5)) == rows_of(in_memory.sample(5))


def no_disk(shape: tuple[int, ...], dtype: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def no_memory(shape: tuple[int, ...], dtype: Any) -> Any:
    raise MemoryError


def nothing(shape: tuple[int, ...], dtype: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("fails", "error", "text"),
    [
        (
            no_disk,
            errors.CheckpointError,
            r"allocate cannot hold \d+ bytes for (tokens|rewards): No space left on device",
        ),
        (
            no_memory,
            errors.ArgumentError,
            "max_tokens must fit in memory, got 100 tokens of 25 bytes each, 0.0 GiB in all",
        ),
        (nothing, errors.ArgumentError, r"allocate must return an array of shape \(100,\) and dtype .*"),
    ],
)
@pytest.mark.parametrize("place", [0, 3])
def test_an_episode_without_room_changes_nothing(
    fails: Any, error: type[Exception], text: str, place: int, tmp_path: pathlib.Path
) -> None:
    calls = itertools.count()

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        return (fails if next(calls) == place else np.zeros)(shape, dtype)

    buffer = relive.TokenReplayBuffer(
        100,
        allocate=allocate,
        admission=relive.Admission(max_lag=0, episodes_per_version=2),
        groups=relive.Groups(2),
        seed=0,
    )
    with relive.Journal(tmp_path / "log") as journal:
        buffer.attach(journal)
        ticket = buffer.admit_nowait(2)
        before, num_records = zoo.state_of(buffer), journal.num_records
        given: dict[str, Any] = {"agent_id": "a", "group_id": "g", "ticket": ticket}
        with pytest.raises(error, match=f"^{text}$"):
            buffer.add_episode([step_of([1], [2], logprobs=np.array([-0.5], np.float16))], **given)
        assert (ticket.left, journal.num_records) == (2, num_records)
        assert zoo.state_of(buffer) == before
        for _ in range(2):  # Of another dtype: the one that was refused left none.
            buffer.add_episode([step_of([1], [2])], **given)
        assert len(buffer.next_groups_nowait(1)[0]) == 2
        expected = buffer.get_stats()
    recovered: Any = relive.recover(tmp_path / "log")
    assert recovered.get_stats().appended == expected.appended == 2


def test_an_episode_without_a_record_leaves_no_dtype(tmp_path: pathlib.Path) -> None:
    buffer = relive.TokenReplayBuffer(100, seed=0)
    journal = relive.Journal(tmp_path / "log")
    buffer.attach(journal)
    before = zoo.state_of(buffer)
    journal.close()
    with pytest.raises(errors.CheckpointError):
        buffer.add_episode([step_of([1], [2], logprobs=np.array([-0.5], np.float16))], agent_id="a")
    assert zoo.state_of(buffer) == before


def test_tokens_are_loaded_only_where_there_is_room(tmp_path: pathlib.Path) -> None:
    filled().save(tmp_path / "saved")
    for fails, text in (
        (no_disk, "allocate cannot hold"),
        (no_memory, "there is no memory"),
        (nothing, "there is no memory"),
    ):
        with pytest.raises(errors.CheckpointError, match=f"^{text}"):
            relive.TokenReplayBuffer.load(tmp_path / "saved", allocate=fails)


def test_rows_without_memory_change_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = relive.TokenReplayBuffer(200, admission=relive.Admission(max_lag=0, episodes_per_version=65), seed=0)
    ticket, zeros = buffer.admit_nowait(65), np.zeros

    def small_zeros(shape: Any, *dtype: Any) -> Any:
        if np.prod(shape) > 100:
            raise MemoryError
        return zeros(shape, *dtype)

    with relive.Journal(tmp_path / "log") as journal:
        buffer.attach(journal)
        for _ in range(64):
            buffer.add_episode([step_of([1], [2])], agent_id="a", ticket=ticket)
        before, num_records = zoo.state_of(buffer), journal.num_records
        with (
            monkeypatch.context() as patched,
            pytest.raises(errors.ArgumentError, match="^max_tokens must fit in memory"),
        ):
            patched.setattr(np, "zeros", small_zeros)
            buffer.add_episode([step_of([1], [2])], agent_id="a", ticket=ticket)
        assert (ticket.left, journal.num_records) == (1, num_records)
        assert zoo.state_of(buffer) == before
        buffer.add_episode([step_of([1], [2])], agent_id="a", ticket=ticket)


def test_a_fork_takes_no_ticket(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = relive.Admission(max_lag=0, episodes_per_version=2)
    buffer = relive.TokenReplayBuffer(100, allocate=memmap.TemporaryMaps(tmp_path), admission=admission, seed=0)
    ticket = buffer.admit_nowait(2)
    buffer.add_episode([step_of([1], [2])], agent_id="a", ticket=ticket)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(errors.ArgumentError, match="must not be written by a fork"):
        buffer.add_episode([step_of([1], [2])], agent_id="a", ticket=ticket)
    assert (ticket.left, buffer.get_stats().episodes) == (1, 1)
