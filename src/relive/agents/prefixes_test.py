"""Shared beginnings: what is stored once is read as if it were stored for each sequence."""

import pathlib
import random
import tempfile
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import prefixes
from relive.agents import token_episode_test
from relive.agents import tokens
from relive.persistence import journal_reader

QUESTION = list(range(100, 4_100))


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let beginnings of two tokens be shared."""
    monkeypatch.setattr(prefixes, "SHORTEST", 2)


def step_of(prompt: list[int], response: list[int], version: int = 0, reward: float = 0.0) -> relive.TokenStep:
    logprobs = [-float(token % 8) for token in response]
    return relive.TokenStep(prompt=prompt, response=response, logprobs=logprobs, policy_version=version, reward=reward)


def rows_of(batch: relive.TokenBatch[Any]) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(batch.tokens, batch.lengths, strict=True)]


def test_branches_of_a_prompt_take_little_more_than_one() -> None:
    buffer = relive.TokenReplayBuffer(5_000, groups=relive.Groups(16), seed=0)
    sizes = []
    for branch in range(16):
        buffer.add_episode([step_of(QUESTION, [branch] * 40)], agent_id="a", group_id="g")
        sizes.append(len(buffer))
    one = sizes[0]
    assert len(buffer) == one + 15 * 40 <= 1.2 * one
    batch = buffer.read(buffer.eligible_keys())
    assert rows_of(batch) == [[*QUESTION, *[branch] * 40] for branch in range(16)]
    assert batch.prefix_ids.tolist() == [0] * 16
    assert batch.prefix_lengths.tolist() == [one, *[4_000] * 15]
    stored = sum(array.nbytes for array in map(np.asarray, buffer.state_dict()["arrays"].values()))
    alone = relive.TokenReplayBuffer(5_000, seed=0)
    alone.add_episode([step_of(QUESTION, [0] * 40)], agent_id="a")
    assert stored <= 1.2 * sum(array.nbytes for array in map(np.asarray, alone.state_dict()["arrays"].values()))
    buffer.check()


def test_turns_that_drop_earlier_reasoning_share_what_stays() -> None:
    """As many chat templates do: of each turn the answer stays in later prompts, and the reasoning goes."""
    history, steps = list(range(500)), []
    for turn in range(30):
        reasoning, answer, question = [10_000 + turn] * 350, [20_000 + turn] * 100, [30_000 + turn] * 50
        steps.append(step_of(history, reasoning + answer, reward=turn))
        history = history + answer + question
    buffer = relive.TokenReplayBuffer(100_000, seed=0)
    batch = buffer.read(buffer.add_episode(steps, agent_id="a"))
    assert rows_of(batch) == [[*each.prompt.tolist(), *each.response.tolist()] for each in steps]
    assert (int(batch.lengths.sum()), len(buffer)) == (93_750, 500 + 30 * 450 + 29 * 150)
    assert [mismatch and mismatch.step for mismatch in batch.mismatches] == [None, *range(1, 30)]
    assert batch.steps[7, [0, 300, batch.lengths[7] - 1]].tolist() == [7] * 3
    assert not batch.loss_mask[7, : len(steps[7].prompt)].any()
    assert batch.rewards.sum(axis=1).tolist() == list(range(30))
    buffer.check()


def test_a_beginning_lives_as_long_as_a_sequence_needs_it() -> None:
    prompt = list(range(100))
    buffer = relive.TokenReplayBuffer(1_000, seed=0)
    for branch in range(3):
        buffer.add_episode([step_of(prompt, [branch] * 100)], agent_id="a", group_id="g")
    for number in range(6):
        buffer.add_episode([step_of([number] * 50, [number] * 50)], agent_id="b")
        assert len(buffer) <= 1_000
    assert len(buffer) == 1_000
    buffer.add_episode([step_of([7] * 50, [7] * 50)], agent_id="b")
    # The first is gone, but for its prompt, and its place is free when the last that begins like it goes.
    assert buffer.get_stats().evicted == 3
    assert len(buffer) == 700
    del buffer
    buffer = relive.TokenReplayBuffer(1_000, seed=0)
    buffer.add_episode([step_of(prompt, [0] * 700)], agent_id="a", group_id="g")
    buffer.add_episode([step_of(prompt, [1] * 100)], agent_id="a", group_id="g")
    buffer.add_episode([step_of([2] * 50, [2] * 50)], agent_id="a")
    assert (len(buffer), buffer.get_stats().evicted) == (1_000, 0)
    buffer.add_episode([step_of([3], [3] * 2)], agent_id="a")
    assert buffer.get_stats().evicted == 2
    buffer.check()


@pytest.mark.usefixtures("_short")
def test_a_late_member_of_a_group_is_stored_whole() -> None:
    """So that a buffer never loses more than a quarter of its sequences at once."""
    buffer = relive.TokenReplayBuffer(100, seed=0)
    add = [lambda token: buffer.add_episode([step_of([5] * 9, [token])], agent_id="a", group_id="g")] * 2
    (first,), (second,) = add[0](1), add[1](2)
    buffer.add_episode([step_of([6] * 19, [6] * 5)], agent_id="a")
    (third,) = add[0](3)
    buffer.add_episode([step_of([7] * 19, [7])], agent_id="a")
    (late,) = add[0](4)
    assert buffer.read([first, second, third, late]).prefix_ids.tolist() == [first, first, first, late]
    assert len(buffer) == 10 + 1 + 24 + 1 + 20 + 10
    (last,) = add[0](5)
    assert buffer.read([last]).prefix_ids.tolist() == [late]


@pytest.mark.usefixtures("_short")
def test_an_evicted_prompt_is_kept_for_the_branch_that_evicts_it(tmp_path: pathlib.Path) -> None:
    """In memory, in checkpoints and in a journal, whose old segments are deleted."""
    buffer = relive.TokenReplayBuffer(100, seed=0)

    def add(prompt: int, response: int, group: str | None) -> int:
        step = step_of([prompt] * 9, [prompt] * response)
        known = {"padding": bytes(100_000)}  # For a segment each.
        return int(buffer.add_episode([step], agent_id="a", group_id=group, metadata=known)[0])

    with relive.Journal(tmp_path / "log", segment_bytes=1, fsync="never") as journal:
        buffer.attach(journal)
        add(1, 41, "g")
        add(2, 1, "h")
        add(1, 1, "g")  # Keeps the first, and so all after it.
        other = add(3, 5, None)
        last = add(2, 30, "h")
        assert (buffer.eligible_keys().tolist(), len(buffer)) == ([other, last], 10 + 1 + 14 + 30)
        newest = add(4, 1, None)
    keys = [other, last, newest]
    for each in (buffer, relive.TokenReplayBuffer.from_state(buffer.state_dict()), relive.recover(tmp_path / "log")):
        assert each.eligible_keys().tolist() == keys
        assert rows_of(each.read(keys)) == [[3] * 14, [2] * 39, [4] * 10]
        assert (len(each), each._store.prefix_index.last_children) == (65, {1: last})
        each.check()
    assert not (tmp_path / "log" / journal_reader.segment_name(0)).exists()


@pytest.mark.usefixtures("_short")
def test_a_branch_too_large_for_its_prompt_is_stored_whole() -> None:
    buffer = relive.TokenReplayBuffer(100, seed=0)
    buffer.add_episode([step_of([5] * 50, [1] * 10)], agent_id="a", group_id="g")
    (key,) = buffer.add_episode([step_of([5] * 50, [2] * 45)], agent_id="a", group_id="g")
    assert (rows_of(buffer.read([key])), len(buffer)) == ([[*[5] * 50, *[2] * 45]], 95)
    buffer.check()


@pytest.mark.usefixtures("_short")
def test_sequences_that_part_at_one_place_begin_like_the_first() -> None:
    buffer = relive.TokenReplayBuffer(1_000, seed=0)
    keys = buffer.add_episode([step_of([5] * 9 + [token], [token]) for token in range(4)], agent_id="a")
    assert buffer.read(keys).prefix_ids.tolist() == [keys[0]] * 4


class Naive:
    """Whole sequences by key, and their extras."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, list[Any]]] = {}

    def add(self, keys: list[int], steps: list[relive.TokenStep]) -> None:
        """Store the sequences of an episode."""
        for key, row in zip(keys, token_episode_test.walked(steps), strict=True):
            columns = map(list, zip(*row, strict=True))
            self.rows[key] = {**dict(zip(tokens.FIELDS, columns, strict=True)), "extra": [0.0] * len(row)}


def assert_same(buffer: relive.TokenReplayBuffer, naive: Naive) -> None:
    """Check that what is stored is the newest of what was added, and reads as it."""
    buffer.check()
    keys = buffer.eligible_keys()
    assert keys.tolist() == sorted(naive.rows)[len(naive.rows) - len(keys) :]
    assert len(buffer) <= buffer.capacity
    if not len(keys):
        return
    batch = buffer.read(keys)
    for row, key in enumerate(keys.tolist()):
        for name in tokens.FIELDS:
            assert getattr(batch, name)[row, : batch.lengths[row]].tolist() == naive.rows[key][name]
        assert batch.extras["extra"][row, : batch.lengths[row]].tolist() == naive.rows[key]["extra"]
        prefix, length = int(batch.prefix_ids[row]), int(batch.prefix_lengths[row])
        assert naive.rows[prefix]["tokens"][:length] == naive.rows[key]["tokens"][:length]
        assert (length == batch.lengths[row]) == (prefix == key)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 30))])
def test_random_programs_read_what_a_naive_store_reads(seed: int, tmp_path: pathlib.Path) -> None:
    rng, naive = random.Random(seed), Naive()
    fields = {"extra": relive.Field((), np.float64)}
    buffer = relive.TokenReplayBuffer(rng.choice([40, 90, 400]), token_extras=fields, seed=0)
    directories = iter(tempfile.mkdtemp(dir=tmp_path) for _ in range(1_000))
    journal = None
    if seed % 2:
        journal = relive.Journal(next(directories), segment_bytes=rng.choice([500, 5_000]), fsync="never")
        buffer.attach(journal)
    for _ in range(150):
        action = rng.randrange(30)
        if action == 0 and rng.random() < 0.3:
            buffer.clear()
            naive.rows.clear()
        elif action == 1 and journal is None:
            buffer = relive.TokenReplayBuffer.from_state(buffer.state_dict())
        elif action == 2 and journal is not None:
            before = relive.TokenReplayBuffer.from_state(buffer.state_dict())
            journal.close()
            path = journal.path
            buffer = relive.recover(path)
            assert buffer.get_stats() == before.get_stats()
            journal = relive.Journal(path, segment_bytes=500, fsync="never")
            buffer.attach(journal)
        elif action < 6 and len(buffer.eligible_keys()):
            key = int(rng.choice(buffer.eligible_keys()))
            naive.rows[key]["extra"] = [rng.random() for _ in naive.rows[key]["extra"]]
            buffer.update([key], extra=[naive.rows[key]["extra"]])
        else:
            group = rng.choice("gh")
            prompt = [*[ord(group)] * rng.choice([1, 4, 8]), rng.randrange(3)]
            steps: list[relive.TokenStep] = []
            for _ in range(rng.randrange(1, 4)):
                response = [rng.randrange(3) for _ in range(rng.randrange(1, 5))]
                steps.append(step_of(prompt, response, version=rng.randrange(3)))
                kept = response if rng.random() < 0.5 else response[rng.randrange(len(response)) :]
                prompt = [*prompt, *kept, rng.randrange(3)]
            chosen = group if rng.random() < 0.8 else None
            naive.add(buffer.add_episode(steps, agent_id="a", group_id=chosen).tolist(), steps)
        assert_same(buffer, naive)
    assert naive.rows
    if journal is not None:
        journal.close()


def test_a_journal_holds_a_shared_beginning_once(tmp_path: pathlib.Path) -> None:
    buffer = relive.TokenReplayBuffer(100_000, seed=0)
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffer.attach(journal)
        sizes = []
        for branch in range(16):
            buffer.add_episode([step_of(QUESTION, [branch] * 40)], agent_id="a", group_id="g")
            sizes.append(sum(each.stat().st_size for each in (tmp_path / "log").iterdir()))
    assert sizes[15] < 1.3 * sizes[0]
    assert rows_of(relive.recover(tmp_path / "log").read(range(16))) == rows_of(buffer.read(range(16)))


def test_check_finds_wrong_tables_of_what_is_shared() -> None:
    def made() -> relive.TokenReplayBuffer:
        buffer = relive.TokenReplayBuffer(1_000, token_extras={"extra": relive.Field((), np.float64)}, seed=0)
        buffer.add_episode([step_of([1], [2])], agent_id="a")
        buffer.clear()
        for branch in range(2):
            buffer.add_episode([step_of([5] * 99, [branch])], agent_id="a", group_id="g")
        buffer.check()
        return buffer

    kept, extras, parents = made(), made(), made()
    assert kept._store.rows is not None
    kept._store.rows._kept = 0
    assert extras._store.extras is not None
    extras._store.extras.evict(1)
    parents._store.prefix_index.parents["h"] = 1
    for buffer, text in (
        (kept, "an evicted sequence that nothing begins like must not be kept"),
        (extras, "each token must have its extras"),
        (parents, "what sequences begin like must be what is stored of them"),
    ):
        with pytest.raises(errors.CorruptionError, match=f"^{text}$"):
            buffer.check()
