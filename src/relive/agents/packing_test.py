"""Tests of batches of tokens: padding, packing, and episodes of an episode buffer."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import token_episode_test
from relive.agents import tokens

Steps = list[relive.TokenStep]
step_of = token_episode_test.step_of
NAMES = (*tokens.FIELDS, "attention_mask")


def episode_of(steps: Steps, number: int = 0, **changes: Any) -> relive.Episode[Any, relive.TokenStep]:
    arguments: dict[str, Any] = {"episode_id": f"e{number}", "agent_id": f"a{number}"}
    return relive.Episode(actions=steps, rewards=[step.reward for step in steps], **arguments | changes)


def test_rows_of_a_batch_name_their_episodes() -> None:
    """An inexact episode has a row for each part."""
    steps = [step_of([1, 5], [7], reward=1.0), step_of([1, 6, 7], [8], reward=4.0)]
    batch = relive.TokenBatch.from_episodes([episode_of(steps), episode_of([step_of([2], [3])], 1, group_id="g")])
    assert [getattr(batch, name).dtype.str for name in NAMES] == ["<i8", "|b1", "<f8", "<i8", "<f8", "<i4", "|b1"]
    assert (len(batch), batch.lengths.tolist(), batch.keys.tolist()) == (3, [3, 4, 2], [-1, -1, -1])
    assert (batch.returns.tolist(), batch.is_exact.tolist()) == ([5.0, 5.0, 0.0], [False, False, True])
    assert batch.rewards.sum(axis=1).tolist() == [1.0, 4.0, 0.0]
    assert (batch.episode_ids, batch.agent_ids) == (["e0", "e0", "e1"], ["a0", "a0", "a1"])
    assert batch.group_ids == [None, None, "g"]
    assert batch.mismatches == [None, relive.TokenMismatch(step=1, position=1, expected=5, found=6), None]


@hypothesis.given(
    episodes=st.lists(token_episode_test.episodes(), min_size=1, max_size=4),
    pad_token_id=st.integers(0, 9),
    multiple=st.integers(1, 5),
)
def test_padding_is_nowhere_else_and_holds_nothing(episodes: list[Steps], pad_token_id: int, multiple: int) -> None:
    batch = relive.TokenBatch.from_episodes(
        [episode_of(steps, number) for number, steps in enumerate(episodes)],
        pad_token_id=pad_token_id,
        pad_to_multiple_of=multiple,
    )
    nothing: dict[str, Any] = {
        "tokens": pad_token_id,
        "loss_mask": False,
        "logprobs": 0.0,
        "policy_versions": -1,
        "rewards": 0.0,
        "steps": -1,
    }
    sequences = [sequence for steps in episodes for sequence in token_episode_test.walked(steps)]
    width = batch.tokens.shape[1]
    longest = max(map(len, sequences))
    assert longest <= width < longest + multiple
    assert width % multiple == 0
    for place, name in enumerate(tokens.FIELDS):
        expected = [[row[place] for row in rows] + [nothing[name]] * (width - len(rows)) for rows in sequences]
        assert getattr(batch, name).tolist() == expected
    assert batch.attention_mask.tolist() == [[True] * len(rows) + [False] * (width - len(rows)) for rows in sequences]
    assert not np.signbit(batch.logprobs[~batch.attention_mask]).any()


REPEATED = ("returns", "is_exact", "lengths", "keys", "weight")


def with_extras(episodes: list[Steps]) -> relive.TokenBatch:
    """Return a batch with an extra of sequences and two of tokens, which number the rows and places."""
    batch = relive.TokenBatch.from_episodes(
        [episode_of(steps, number, group_id="g") for number, steps in enumerate(episodes)],
        pad_token_id=9,
        pad_to_multiple_of=4,
    )
    batch.keys = np.arange(len(batch)) + 100
    batch.extras = {
        "weight": (np.arange(len(batch)) / 3).astype(np.float32),
        "place": np.arange(batch.tokens.size).reshape(batch.tokens.shape),
        "pair": np.arange(2 * batch.tokens.size, dtype=np.int16).reshape(*batch.tokens.shape, 2),
    }
    return batch


def naively_packed(batch: relive.TokenBatch, rows: list[int]) -> dict[str, Any]:
    """Return what `packed` must return of some rows, token by token."""
    found: dict[str, Any] = {name: [] for name in (*tokens.FIELDS, "place", "pair", *REPEATED, "position_ids")}
    found |= {"cu_seqlens": [0], "max_seqlen": 0}
    for row in rows:
        length = int(batch.lengths[row])
        for t in range(length):
            for name in (*tokens.FIELDS, "place", "pair"):
                found[name].append(batch[name][row, t] if name in tokens.FIELDS else batch.extras[name][row, t])
            for name in REPEATED:
                found[name].append(batch.extras[name][row] if name == "weight" else batch[name][row])
            found["position_ids"].append(t)
        found["cu_seqlens"].append(found["cu_seqlens"][-1] + length)
        found["max_seqlen"] = max(found["max_seqlen"], length)
    return found


def check_packed(packed: dict[str, Any], batch: relive.TokenBatch, rows: list[int]) -> None:
    expected = naively_packed(batch, rows)
    assert packed.keys() == expected.keys()
    assert type(packed["max_seqlen"]) is int
    assert (packed["cu_seqlens"].dtype, packed["position_ids"].dtype) == (np.int32, np.int64)
    for name, value in expected.items():
        if name in ("max_seqlen", "cu_seqlens", "position_ids"):
            assert np.array(packed[name]).tolist() == value
        else:
            source: Any = batch.extras.get(name, getattr(batch, name, None))
            assert packed[name].dtype == source.dtype
            assert packed[name].tobytes() == np.array(value, source.dtype).tobytes()


@hypothesis.given(episodes=st.lists(token_episode_test.episodes(), min_size=1, max_size=4))
def test_packed_rows_stand_end_to_end(episodes: list[Steps]) -> None:
    batch = with_extras(episodes)
    packed = batch.packed(repeat=REPEATED)
    check_packed(packed, batch, list(range(len(batch))))
    assert packed.keys() - batch.packed().keys() == set(REPEATED)
    for array in (packed[name] for name in (*tokens.FIELDS, *REPEATED)):
        array[:] = 77
    check_packed(batch.packed(repeat=iter(REPEATED)), batch, list(range(len(batch))))  # type: ignore[arg-type]


@hypothesis.given(episodes=st.lists(token_episode_test.episodes(), min_size=1, max_size=5), ranks=st.integers(1, 3))
def test_packed_micro_batches_hold_the_rows_of_micro_batches(episodes: list[Steps], ranks: int) -> None:
    batch = with_extras(episodes)
    most = int(batch.lengths.max()) + 3
    found = batch.packed_micro_batches(max_tokens=most, ranks=ranks, repeat=iter(REPEATED))  # type: ignore[arg-type]
    expected = relive.micro_batches(batch.lengths, max_tokens=most, ranks=ranks)
    for of_rank, rows_of_rank in zip(found, expected, strict=True):
        for packed, rows in zip(of_rank, rows_of_rank, strict=True):
            assert len(packed["tokens"]) <= most
            check_packed(packed, batch, rows.tolist())


@pytest.mark.parametrize(
    ("repeat", "text"),
    [
        (["rewards"], "repeat must be one of lengths, keys, returns, is_exact, weight, got 'rewards'"),
        (["weight", "pair"], "repeat must be one of lengths, keys, returns, is_exact, weight, got 'pair'"),
        ("weight", "repeat must be a list of names, got 'weight'"),
        (3, "repeat must be a list of names, got 3"),
    ],
)
def test_what_is_repeated_is_named_by_a_list(repeat: Any, text: str) -> None:
    batch = with_extras([[step_of([1], [2])]])
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        batch.packed(repeat=repeat)
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        batch.packed_micro_batches(max_tokens=9, repeat=repeat)


def test_more_tokens_than_int32_are_not_packed() -> None:
    batch = with_extras([[step_of([1], [2])]] * 2)
    no_mask: Any = "so many tokens would take too much memory here"
    batch.attention_mask = no_mask
    batch.lengths = np.array([2**31 - 2, 1])
    with pytest.raises(IndexError, match="^only integers, slices "):
        batch.packed()
    batch.lengths = np.array([2**31 - 1, 1])
    with pytest.raises(
        errors.ArgumentError, match="^packed must have at most 2147483647 tokens for cu_seqlens, got 2147483648$"
    ):
        batch.packed()


def test_an_episode_without_a_step_has_no_row() -> None:
    batch = relive.TokenBatch.from_episodes([episode_of([]), episode_of([step_of([1], [2])], 1), episode_of([])])
    assert batch.episode_ids == ["e1"]
    with pytest.raises(errors.ArgumentError, match="^episodes must have a step in one of them, got 2 without$"):
        relive.TokenBatch.from_episodes([episode_of([]), episode_of([])])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"pad_token_id": -1}, "pad_token_id must be at least 0, got -1"),
        ({"pad_token_id": 0.5}, "pad_token_id must be an integer of at least 0, got 0.5"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of must be at least 1, got 0"),
        ({"episodes": ["x"]}, "episode 0 must be an instance of Episode, got 'x'"),
        ({"episodes": 3}, "episodes must be an instance of Sequence, got 3"),
    ],
)
def test_arguments_of_a_token_batch_are_checked(arguments: dict[str, Any], text: str) -> None:
    defaults: dict[str, Any] = {"episodes": [episode_of([step_of([1], [2])])]}
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        relive.TokenBatch.from_episodes(**defaults | arguments)


# Micro-batches.


def first_fit_decreasing(lengths: list[int], max_tokens: int) -> int:
    """Return how many bins the naive heuristic needs."""
    left: list[int] = []
    for length in sorted(lengths, reverse=True):
        place = next((place for place, room in enumerate(left) if room >= length), None)
        if place is None:
            left.append(max_tokens - length)
        else:
            left[place] -= length
    return len(left)


@hypothesis.given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    max_tokens=st.integers(40, 200),
    ranks=st.integers(1, 5),
)
def test_micro_batches_hold_each_sequence_once_within_the_budget(
    lengths: list[int], max_tokens: int, ranks: int
) -> None:
    parts = relive.micro_batches(lengths, max_tokens=max_tokens, ranks=ranks)
    assert len(parts) == ranks
    assert len({len(of_rank) for of_rank in parts}) == 1
    every = [part.tolist() for of_rank in parts for part in of_rank]
    assert sorted(place for part in every for place in part) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in every)
    sizes = [sum(lengths[place] for place in part) for part in every]
    assert max(sizes) <= max_tokens
    assert sum(not part for part in every) == max(len(every) - len(lengths), 0)
    least = -(-sum(lengths) // max_tokens)
    assert least <= len(every) <= -(-max(first_fit_decreasing(lengths, max_tokens) * 1.02, 1) // ranks) * ranks
    again = relive.micro_batches(np.array(lengths, np.int32), max_tokens=max_tokens, ranks=ranks)
    assert [[part.tolist() for part in each] for each in again] == [[part.tolist() for part in each] for each in parts]
    assert all(part.dtype == np.int64 for of_rank in parts for part in of_rank)


@pytest.mark.parametrize("spread", ["even", "short", "skewed", "near a half"])
def test_micro_batches_are_few_and_balanced(spread: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        count, most = int(rng.integers(50, 400)), 4096
        lengths = {
            "even": rng.integers(1, most + 1, count),
            "short": rng.integers(1, most // 4, count),
            "skewed": np.minimum(1 + rng.lognormal(6, 1, count).astype(int), most),
            "near a half": rng.integers(most // 4, most // 2 + 2, count),
        }[spread].tolist()
        (parts,) = relive.micro_batches(lengths, max_tokens=most)
        assert len(parts) <= 1.02 * first_fit_decreasing(lengths, most)
        halves = relive.micro_batches(lengths, max_tokens=most, ranks=2)
        totals = [[sum(lengths[place] for place in part) for part in of_rank] for of_rank in halves]
        assert abs(sum(totals[0]) - sum(totals[1])) <= most
        if spread in ("short", "skewed"):
            sizes = [sum(lengths[place] for place in part) for part in parts]
            assert max(sizes) <= 1.15 * sum(sizes) / len(sizes)


def test_micro_batches_are_smaller_than_the_budget_if_possible() -> None:
    (parts,) = relive.micro_batches([6, 6, 6, 6, 1, 1, 1, 1], max_tokens=15)
    assert [part.tolist() for part in parts] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert relive.micro_batches([9], max_tokens=9, ranks=2)[1][0].tolist() == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"lengths": [3, 11]}, r"lengths must be in \[1, max_tokens = 10\], got 11 for sequence 1"),
        ({"lengths": [3, 0]}, r"lengths must be in \[1, max_tokens = 10\], got 0 for sequence 1"),
        ({"lengths": []}, "lengths must have at least 1 sequence, got 0"),
        ({"lengths": [0.5]}, r"lengths must be integers, got \[0.5\]"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"ranks": 0}, "ranks must be at least 1, got 0"),
    ],
)
def test_arguments_of_micro_batches_are_checked(arguments: dict[str, Any], text: str) -> None:
    defaults: dict[str, Any] = {"lengths": [3, 4], "max_tokens": 10}
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        relive.micro_batches(**defaults | arguments)


@hypothesis.given(
    episodes=st.lists(token_episode_test.episodes(), min_size=1, max_size=5),
    ranks=st.integers(1, 3),
    multiple=st.integers(1, 5),
)
def test_a_batch_is_divided_into_batches_of_the_same_rows(episodes: list[Steps], ranks: int, multiple: int) -> None:
    whole = with_extras(episodes)
    places = whole.extras["place"]
    most, width = int(whole.lengths.max()) + 3, whole.tokens.shape[1]
    found = whole.micro_batches(max_tokens=most, ranks=ranks, pad_to_multiple_of=multiple)
    expected = relive.micro_batches(whole.lengths, max_tokens=most, ranks=ranks)
    assert [len(of_rank) for of_rank in found] == [len(of_rank) for of_rank in expected]
    for of_rank, rows_of_rank in zip(found, expected, strict=True):
        for part, rows in zip(of_rank, rows_of_rank, strict=True):
            longest = max(whole.lengths[rows].tolist(), default=0)
            own = min(-(-longest // multiple) * multiple, width)
            assert part.tokens.shape == part.extras["place"].shape == (len(rows), own)
            for name in NAMES:
                assert getattr(part, name).tolist() == getattr(whole, name)[rows][:, :own].tolist()
            assert part.extras["place"].tolist() == places[rows][:, :own].tolist()
            for name in ("lengths", "keys", "returns", "is_exact"):
                assert getattr(part, name).tolist() == getattr(whole, name)[rows].tolist()
            assert part.extras["weight"].tolist() == whole.extras["weight"][rows].tolist()
            for name in ("episode_ids", "agent_ids", "group_ids", "mismatches"):
                assert getattr(part, name) == [getattr(whole, name)[row] for row in rows]
            assert len(part.packed()["place"]) == part.lengths.sum()
            part.tokens[...] = -1
    assert (whole.tokens >= 0).all()


@pytest.mark.parametrize("call", ["micro_batches", "packed_micro_batches"])
def test_batches_are_divided_before_they_are_converted(call: str) -> None:
    batch = relive.TokenBatch.from_episodes([episode_of([step_of([1], [2])])]).map(lambda array: array.tolist())
    with pytest.raises(errors.ArgumentTypeError, match=f"^{call} needs a batch of arrays of numpy, got one of list"):
        getattr(batch, call)(max_tokens=9)
