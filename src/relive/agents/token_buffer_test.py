"""Tests of the token buffer, with a naive twin that keeps every sequence as a list of tokens."""

import copy
import itertools
import math
from typing import Any
import uuid

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive import testing
from relive.agents import packing
from relive.agents import token_buffer
from relive.agents import token_episode_test
from relive.agents import tokens as tokens_lib

Steps = list[tokens_lib.TokenStep]
step_of = token_episode_test.step_of


def rows_of(batch: packing.TokenBatch) -> list[list[tuple[Any, ...]]]:
    """Return the tokens of each row, as the naive twin has them."""
    packed = batch.packed()
    columns = zip(*[packed[name].tolist() for name in tokens_lib.FIELDS], strict=True)
    tokens, ends = list(columns), packed["cu_seqlens"].tolist()
    return [tokens[begin:end] for begin, end in itertools.pairwise(ends)]


def held_keys(buffer: token_buffer.TokenReplayBuffer) -> list[int]:
    return list(buffer._sources)


def snapshot(buffer: token_buffer.TokenReplayBuffer) -> Any:
    """Return what a refused call must leave as it was."""
    keys = held_keys(buffer)
    rows = rows_of(buffer.read(keys)) if keys else []
    return rows, keys, buffer.get_stats(), buffer.policy_version, copy.deepcopy(buffer.rng.bit_generator.state)


def filled(max_tokens: int = 100, **settings: Any) -> token_buffer.TokenReplayBuffer:
    buffer = token_buffer.TokenReplayBuffer(max_tokens, seed=0, **settings)
    buffer.add_episode([step_of([1, 5], [7, 2], policy_version=3)], agent_id="a")
    buffer.add_episode([step_of([4], [4]), step_of([5], [6], reward=1.5)], agent_id="b", group_id="g")
    return buffer


def test_an_exact_episode_is_one_sequence_and_another_is_as_many_as_its_parts() -> None:
    buffer = token_buffer.TokenReplayBuffer(100, seed=0)
    assert buffer.add_episode([step_of([1], [2]), step_of([1, 2], [3])], agent_id="a").tolist() == [0]
    keys = buffer.add_episode(
        [step_of([1], [2], reward=1.0), step_of([2], [3]), step_of([3], [4], reward=2.0)], agent_id="b", group_id="g"
    )
    assert (keys.tolist(), keys.dtype.str) == ([1, 2, 3], "<i8")
    batch = buffer.read([3, 0, 1])
    assert batch.tokens.tolist() == [[3, 4, 0], [1, 2, 3], [1, 2, 0]]
    assert batch.keys.tolist() == [3, 0, 1]
    assert batch.returns.tolist() == [3.0, 0.0, 3.0]
    assert batch.is_exact.tolist() == [False, True, False]
    assert (batch.agent_ids, batch.group_ids) == (["b", "a", "b"], ["g", None, "g"])
    assert batch.episode_ids[0] == batch.episode_ids[2] != batch.episode_ids[1]
    assert all(str(uuid.UUID(name)) == name for name in batch.episode_ids)
    mismatch = tokens_lib.TokenMismatch(step=2, position=0, expected=2, found=3)
    assert batch.mismatches == [mismatch, None, None]
    assert buffer.get_stats() == token_buffer.TokenBufferStats(
        sequences=4,
        tokens=9,
        trained_tokens=5,
        episodes=2,
        inexact_episodes=1,
        appended=4,
        evicted=0,
        cleared=0,
        sampled=0,
    )
    assert (len(buffer), buffer.capacity) == (9, 100)
    assert repr(buffer) == "<TokenReplayBuffer of 4 sequences, 9 of 100 tokens>"


def test_the_oldest_sequences_leave_whole_and_are_counted() -> None:
    buffer = token_buffer.TokenReplayBuffer(6, seed=0)
    for number in range(3):
        buffer.add_episode([step_of([number], [number])], agent_id="a")
    assert buffer.add_episode([step_of([7, 7], [7])], agent_id="a").tolist() == [3]
    assert held_keys(buffer) == [2, 3]
    stats = buffer.get_stats()
    assert (stats.appended, stats.evicted, stats.sequences, len(buffer)) == (4, 2, 2, 5)
    with pytest.raises(errors.UnknownKeyError, match="^key 1 not found: its sequence was evicted, or never was$"):
        buffer.read([2, 1])
    buffer.check()


def test_log_probabilities_come_back_bit_for_bit_and_beside_their_tokens() -> None:
    """P67: miles PR 1829."""
    rng = np.random.default_rng(1)
    for dtype in (np.float16, np.float32, np.float64):
        buffer = token_buffer.TokenReplayBuffer(1000, seed=0)
        given = {}
        for number in range(50):
            count = int(rng.integers(1, 9))
            logs = (-rng.exponential(size=count)).astype(dtype)
            key = buffer.add_episode(
                [step_of([number] * int(rng.integers(4)), [number + 1] * count, logprobs=logs)], agent_id="a"
            )
            given[int(key[0])] = logs
        for _ in range(20):
            batch = buffer.sample(16)
            assert batch.logprobs.dtype == dtype
            for key, logs, mask in zip(batch.keys.tolist(), batch.logprobs, batch.loss_mask, strict=True):
                assert logs[mask].tobytes() == given[key].tobytes()
            said = batch.policy_versions >= 0
            assert not batch.logprobs[~said].any()


def test_a_changed_context_is_flagged_and_every_pair_survives() -> None:
    """P68: rllm PR 272."""
    steps = [step_of([1, 5], [7, 2])]
    for _ in range(3):
        steps.append(step_of([*steps[-1].prompt.tolist(), *steps[-1].response.tolist(), 9], [8, 2]))
    prompt = steps[2].prompt.tolist()
    prompt[3] = 6
    steps[2] = step_of(prompt, [8, 2])
    buffer = token_buffer.TokenReplayBuffer(100, seed=0)
    keys = buffer.add_episode(steps, agent_id="a")
    batch = buffer.read(keys)
    assert not batch.is_exact.any()
    assert [mismatch and (mismatch.step, mismatch.position) for mismatch in batch.mismatches] == [None, (2, 3), (3, 3)]
    assert [(mismatch.expected, mismatch.found) for mismatch in batch.mismatches if mismatch] == [(2, 6), (6, 2)]
    assert rows_of(batch) == token_episode_test.walked(steps)
    assert (buffer.get_stats().inexact_episodes, buffer.get_stats().appended) == (1, 3)


def test_a_window_of_versions_lets_late_episodes_in_where_an_exact_match_starves() -> None:
    """P66: NeMo-RL PR 2458."""
    buffer = token_buffer.TokenReplayBuffer(1000, seed=0)
    for version in range(1, 20):
        buffer.set_policy_version(version)
        buffer.add_episode([step_of([version], [1], policy_version=version - 1)], agent_id="late")
        with pytest.raises(errors.NotReadyError, match="^sample found no sequence to draw: the smallest lag is 1: "):
            buffer.sample(4, max_lag=0)
        assert set(buffer.sample(30, max_lag=1).policy_versions[:, 1].tolist()) == {version - 1}
        newest = buffer.eligible_keys(max_lag=3)
        assert newest.tolist() == list(range(max(version - 3, 0), version))
    assert buffer.eligible_keys().tolist() == list(range(19))


def test_the_oldest_token_that_is_trained_on_decides_the_lag() -> None:
    buffer = token_buffer.TokenReplayBuffer(1000, seed=0)
    buffer.add_episode([step_of([], [1, 2, 3], policy_version=[2, 5, 7], loss_mask=[False, True, True])], agent_id="a")
    buffer.add_episode([step_of([], [1], policy_version=9)], agent_id="a")
    buffer.set_policy_version(8)
    assert [buffer.eligible_keys(max_lag=lag).tolist() for lag in (0, 2, 3)] == [[1], [1], [0, 1]]
    text = "^sample found no sequence to draw: the smallest lag is 1: add newer ones, or give a larger max_lag$"
    buffer.set_policy_version(10)
    with pytest.raises(errors.NotReadyError, match=text):
        buffer.sample(1, max_lag=0)


def test_a_sequence_without_a_token_to_be_trained_on_is_stored_and_never_drawn() -> None:
    buffer = token_buffer.TokenReplayBuffer(1000, seed=0)
    keys = buffer.add_episode([step_of([1], [2], loss_mask=[False])], agent_id="a")
    text = "^sample found no sequence to draw: none of 1 has a token that is to be trained on$"
    with pytest.raises(errors.NotReadyError, match=text):
        buffer.sample(1)
    assert not buffer.read(keys).loss_mask.any()
    buffer.add_episode([step_of([3], [4])], agent_id="a")
    buffer.set_policy_version(0)
    assert buffer.eligible_keys().tolist() == buffer.eligible_keys(max_lag=5).tolist() == [1]
    assert buffer._rows is not None
    assert buffer._rows.row_values("oldest_version").tolist() == [-1, 0]
    assert set(buffer.sample(50).keys.tolist()) == {1}
    buffer.check()


def test_draws_are_uniform_over_sequences_however_long_they_are() -> None:
    buffer = token_buffer.TokenReplayBuffer(100, seed=1)
    for length in (1, 30, 2, 9):
        buffer.add_episode([step_of([], [1] * length)], agent_id="a")
    keys = buffer.sample(4000).keys
    testing.assert_frequencies(np.bincount(keys, minlength=4).tolist(), [0.25] * 4)
    assert buffer.get_stats().sampled == 4000


def test_a_batch_has_exactly_as_many_rows_as_asked_for() -> None:
    buffer = token_buffer.TokenReplayBuffer(10)
    buffer.add_episode([step_of([1], [2])], agent_id="a")
    assert buffer.sample(7).tokens.tolist() == [[1, 2]] * 7


def test_padding_and_multiple_are_those_of_the_buffer() -> None:
    batch = filled(pad_token_id=9, pad_to_multiple_of=3).read([0, 1])
    assert batch.tokens.tolist() == [[1, 5, 7, 2, 9, 9], [4, 4, 9, 9, 9, 9]]


def test_what_other_sequences_left_behind_is_never_in_the_padding() -> None:
    buffer = token_buffer.TokenReplayBuffer(64, seed=0)
    poison = step_of([77] * 10, [77] * 30, reward=77.0, policy_version=77, logprobs=[-77.0] * 30)
    for number in range(40):
        buffer.add_episode([poison], agent_id="a")
        buffer.add_episode([step_of([1] * (number % 3), [2])], agent_id="a")
        batch = buffer.sample(8)
        nothing = ~batch.attention_mask
        for name in ("tokens", "loss_mask", "logprobs", "rewards"):
            assert not getattr(batch, name)[nothing].any()
        assert (batch.policy_versions[nothing] == -1).all()
        assert (batch.steps[nothing] == -1).all()


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


def test_the_same_seed_draws_the_same_whatever_numpy_does() -> None:
    """P64."""
    one, other = filled(), filled()
    drawn = [one.sample(5).keys.tolist() for _ in range(20)]
    np.random.seed(3)  # noqa: NPY002
    before = repr(np.random.get_state())  # noqa: NPY002
    assert [other.sample(5).keys.tolist() for _ in range(20)] == drawn
    assert repr(np.random.get_state()) == before  # noqa: NPY002


def test_clear_forgets_everything_and_counts_it() -> None:
    buffer = filled()
    buffer.set_policy_version(3)
    buffer.sample(2)
    buffer.clear()
    stats = buffer.get_stats()
    assert (stats.sequences, stats.tokens, stats.trained_tokens) == (0, 0, 0)
    assert (stats.appended, stats.cleared, stats.evicted, stats.sampled) == (3, 3, 0, 2)
    assert (stats.episodes, stats.inexact_episodes, buffer.policy_version) == (2, 1, 3)
    buffer.check()
    with pytest.raises(errors.NotReadyError, match="^sample found no sequence to draw: add an episode first$"):
        buffer.sample(1)
    with pytest.raises(errors.UnknownKeyError, match="^key 0 not found"):
        buffer.read([0])
    assert buffer.add_episode([step_of([1], [2])], agent_id="a").tolist() == [3]
    buffer.check()


def test_an_empty_buffer_can_be_asked_everything() -> None:
    buffer = token_buffer.TokenReplayBuffer(10)
    buffer.clear()
    buffer.check()
    assert (len(buffer), buffer.eligible_keys().tolist(), buffer.policy_version) == (0, [], None)
    assert buffer.eligible_keys().dtype == np.int64
    assert buffer.get_stats() == token_buffer.TokenBufferStats(
        **dict.fromkeys(token_buffer.TokenBufferStats.__dataclass_fields__, 0)
    )
    with pytest.raises(errors.NotReadyError, match="^sample found no sequence to draw: add an episode first$"):
        buffer.sample(1)
    with pytest.raises(errors.UnknownKeyError, match="^key 0 not found"):
        buffer.read([0])


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
            "max_lag asks for the learner's policy version: call set_policy_version first",
        ),
        (
            lambda b: b.eligible_keys(max_lag=2),
            "max_lag asks for the learner's policy version: call set_policy_version first",
        ),
        (lambda b: b.set_policy_version(-1), "version must be at least 0, got -1"),
        (lambda b: b.set_policy_version(1.5), "version must be an integer of at least 0, got 1.5"),
        (lambda b: b.read([]), "keys must have at least 1 key, got 0"),
        (lambda b: b.read([0.5]), r"keys must be integers, got \[0.5\]"),
        (lambda b: b.read([3]), "key 3 not found: its sequence was evicted, or never was"),
        (lambda b: b.read([-1]), "key -1 not found: its sequence was evicted, or never was"),
    ],
)
def test_a_refused_call_changes_nothing(call: Any, text: str) -> None:
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
    ],
)
def test_the_constructor_checks(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        token_buffer.TokenReplayBuffer(**{"max_tokens": 10} | arguments)


def test_versions_do_not_go_back() -> None:
    buffer = filled()
    for version in (3, 3, 5):
        buffer.set_policy_version(version)
    with pytest.raises(errors.ArgumentError, match="^version must be at least 5, the one before, got 4$"):
        buffer.set_policy_version(4)
    assert buffer.policy_version == 5


def test_the_dtype_of_log_probabilities_is_that_of_the_first() -> None:
    buffer = token_buffer.TokenReplayBuffer(100, seed=0)
    buffer.add_episode([step_of([1], [2], logprobs=np.array([-0.1], np.float32))], agent_id="a")
    buffer.add_episode([step_of([1], [2], logprobs=np.array([-0.5], np.float16))], agent_id="a")
    before = snapshot(buffer)
    for logs in ([-0.5, -0.25, -1.0], [-0.5, -1e300, -0.1]):  # By their dtype, whether the numbers would fit or not.
        with pytest.raises(
            errors.SchemaError,
            match="^logprobs must fit float32, which the first episode had: give them as that, got float64$",
        ):
            buffer.add_episode([step_of([1], [2, 3, 4], logprobs=logs)], agent_id="a")
        assert snapshot(buffer) == before
    assert buffer.read([1]).logprobs.dtype == np.float32


def test_names_are_kept_as_plain_strings() -> None:
    buffer = token_buffer.TokenReplayBuffer(100)
    keys = buffer.add_episode([step_of([1], [2])], agent_id=np.str_("a"), group_id=np.str_("g"))
    batch = buffer.read(keys)
    assert [type(name) for name in (*batch.agent_ids, *batch.group_ids)] == [str, str]


class TokenMachine(stateful.RuleBasedStateMachine):
    """Compares with lists under any order of calls."""

    @stateful.initialize(max_tokens=st.integers(20, 80))
    def start(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.buffer = token_buffer.TokenReplayBuffer(max_tokens, seed=0)
        self.twin: dict[int, tuple[list[tuple[Any, ...]], float, bool, str]] = {}
        self.appended = self.evicted = self.cleared = self.episodes = self.inexact = self.sampled = 0
        self.version: int | None = None

    @stateful.rule(steps=token_episode_test.episodes(), agent=st.sampled_from("ab"))
    def add(self, steps: Steps, agent: str) -> None:
        sequences = token_episode_test.walked(steps)
        if sum(map(len, sequences)) > self.max_tokens:
            with pytest.raises(errors.ArgumentError, match="^steps must have at most max_tokens"):
                self.buffer.add_episode(steps, agent_id=agent)
            return
        keys = self.buffer.add_episode(steps, agent_id=agent)
        assert keys.tolist() == list(range(self.appended, self.appended + len(sequences)))
        for key, rows in zip(keys.tolist(), sequences, strict=True):
            self.twin[key] = rows, math.fsum(step.reward for step in steps), len(sequences) == 1, agent
        while sum(len(rows) for rows, *_ in self.twin.values()) > self.max_tokens:
            del self.twin[next(iter(self.twin))]
            self.evicted += 1
        self.appended += len(sequences)
        self.episodes += 1
        self.inexact += len(sequences) > 1

    @stateful.rule(more=st.integers(0, 3))
    def set_policy_version(self, more: int) -> None:
        self.version = (self.version or 0) + more
        self.buffer.set_policy_version(self.version)

    @stateful.rule()
    def clear(self) -> None:
        self.cleared += len(self.twin)
        self.twin = {}
        self.buffer.clear()

    def eligible(self, max_lag: int | None) -> list[int]:
        found = []
        for key, (rows, *_) in self.twin.items():
            versions = [row[3] for row in rows if row[1]]
            if versions and (max_lag is None or self.version is None or self.version - min(versions) <= max_lag):
                found.append(key)
        return found

    @stateful.rule(size=st.integers(1, 5), max_lag=st.none() | st.integers(0, 9))
    def sample(self, size: int, max_lag: int | None) -> None:
        if max_lag is not None and self.version is None:
            with pytest.raises(errors.ArgumentError, match="^max_lag asks for the learner's policy version"):
                self.buffer.sample(size, max_lag=max_lag)
            return
        eligible = self.eligible(max_lag)
        assert self.buffer.eligible_keys(max_lag=max_lag).tolist() == eligible
        if not eligible:
            with pytest.raises(errors.NotReadyError, match="^sample found no sequence to draw: "):
                self.buffer.sample(size, max_lag=max_lag)
            return
        batch = self.buffer.sample(size, max_lag=max_lag)
        self.sampled += size
        assert len(batch) == size
        assert set(batch.keys.tolist()) <= set(eligible)
        self.compare(batch)

    @stateful.rule()
    def save_and_load(self) -> None:
        buffer = token_buffer.TokenReplayBuffer(self.max_tokens)
        buffer.load_state_dict(self.buffer.state_dict())
        self.buffer = buffer

    def compare(self, batch: packing.TokenBatch) -> None:
        expected = [self.twin[key] for key in batch.keys.tolist()]
        assert rows_of(batch) == [rows for rows, *_ in expected]
        assert batch.returns.tolist() == [total for _, total, _, _ in expected]
        assert batch.is_exact.tolist() == [is_exact for _, _, is_exact, _ in expected]
        assert batch.agent_ids == [agent for *_, agent in expected]

    @stateful.invariant()
    def the_same_is_held(self) -> None:
        self.buffer.check()
        assert held_keys(self.buffer) == list(self.twin)
        if self.twin:
            self.compare(self.buffer.read(list(self.twin)))
        rows = [row for rows, *_ in self.twin.values() for row in rows]
        assert len(self.buffer) == len(rows)
        assert self.buffer.get_stats() == token_buffer.TokenBufferStats(
            sequences=len(self.twin),
            tokens=len(rows),
            trained_tokens=sum(row[1] for row in rows),
            episodes=self.episodes,
            inexact_episodes=self.inexact,
            appended=self.appended,
            evicted=self.evicted,
            cleared=self.cleared,
            sampled=self.sampled,
        )
        assert self.appended == len(self.twin) + self.evicted + self.cleared


TestTokenMachine = TokenMachine.TestCase
TestTokenMachine.settings = hypothesis.settings(stateful_step_count=30)


# The audit.


def broken(name: str, place: int, value: Any) -> Any:
    def change(buffer: token_buffer.TokenReplayBuffer) -> None:
        assert buffer._rows is not None
        column = buffer._rows._columns[name]
        (column.view(np.uint8) if name == "loss_mask" else column)[place] = value

    return change


def broken_row(name: str, value: int) -> Any:
    def change(buffer: token_buffer.TokenReplayBuffer) -> None:
        assert buffer._rows is not None
        buffer._rows._row_columns[name][1] = value

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
        (lambda b: b._rows._offsets.put(2, 4), "a row must have at least one value"),
        (lambda b: b._sources.pop(1), "each sequence must have a source, in their order"),
        (lambda b: setattr(b, "_evicted", 1), "1 sequences were evicted and 0 cleared, but 0 have left"),
    ],
)
@pytest.mark.parametrize("at_once", [1, 5, 2**18])
def test_check_finds_what_is_wrong(
    change: Any, text: str | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_AT_ONCE", at_once)
    buffer = filled()
    buffer.check()
    change(buffer)
    if text is None:
        buffer.check()
        return
    with pytest.raises(errors.CorruptionError, match=f"^{text}$"):
        buffer.check()
