"""Tests of batches of tokens: padding, packing, and episodes of an episode buffer."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive.agents import packing
from relive.agents import token_episode_test
from relive.agents import tokens
from relive.episodes import buffer as buffer_lib
from relive.episodes import episode

Steps = list[tokens.TokenStep]
step_of = token_episode_test.step_of
NAMES = (*tokens.FIELDS, "attention_mask")


def episode_of(steps: Steps, number: int = 0, **changes: Any) -> episode.Episode[Any, tokens.TokenStep]:
    arguments: dict[str, Any] = {"episode_id": f"e{number}", "agent_id": f"a{number}"}
    return episode.Episode(actions=steps, rewards=[step.reward for step in steps], **arguments | changes)


def test_a_batch_of_episodes_is_padded_on_the_right() -> None:
    steps = [step_of([1, 5], [7, 2], reward=1.0, loss_mask=[True, False]), step_of([1, 5, 7, 2, 9], [8], reward=2.0)]
    other = [step_of([3], [4], policy_version=6, reward=-1.0)]
    batch = packing.TokenBatch.from_episodes([episode_of(steps), episode_of(other, 1, group_id="g")], pad_token_id=99)
    assert {name: getattr(batch, name).tolist() for name in NAMES} == {
        "tokens": [[1, 5, 7, 2, 9, 8], [3, 4, 99, 99, 99, 99]],
        "attention_mask": [[True] * 6, [True, True, False, False, False, False]],
        "loss_mask": [[False, False, True, False, False, True], [False, True, False, False, False, False]],
        "logprobs": [[0, 0, -0.5, -0.75, 0, -0.5], [0, -0.5, 0, 0, 0, 0]],
        "policy_versions": [[-1, -1, 0, 0, -1, 0], [-1, 6, -1, -1, -1, -1]],
        "rewards": [[0, 0, 0, 1.0, 0, 2.0], [0, -1.0, 0, 0, 0, 0]],
        "steps": [[0, 0, 0, 0, 1, 1], [0, 0, -1, -1, -1, -1]],
    }
    assert [getattr(batch, name).dtype.str for name in NAMES] == ["<i8", "|b1", "<f8", "<i8", "<f8", "<i4", "|b1"]
    assert (len(batch), batch.lengths.tolist(), batch.keys.tolist()) == (2, [6, 2], [-1, -1])
    assert (batch.returns.tolist(), batch.is_exact.tolist()) == ([3.0, -1.0], [True, True])
    assert (batch.episode_ids, batch.agent_ids, batch.group_ids) == (["e0", "e1"], ["a0", "a1"], [None, "g"])
    assert batch.mismatches == [None, None]


def test_an_inexact_episode_has_a_row_for_each_part_and_its_return_in_all_of_them() -> None:
    steps = [step_of([1, 5], [7], reward=1.0), step_of([1, 6, 7], [8], reward=4.0)]
    batch = packing.TokenBatch.from_episodes([episode_of(steps), episode_of([step_of([2], [3])], 1)])
    assert batch.tokens.tolist() == [[1, 5, 7, 0], [1, 6, 7, 8], [2, 3, 0, 0]]
    assert batch.returns.tolist() == [5.0, 5.0, 0.0]
    assert batch.rewards.sum(axis=1).tolist() == [1.0, 4.0, 0.0]
    assert batch.is_exact.tolist() == [False, False, True]
    assert batch.episode_ids == ["e0", "e0", "e1"]
    mismatch = tokens.TokenMismatch(step=1, position=1, expected=5, found=6)
    assert batch.mismatches == [None, mismatch, None]


@pytest.mark.parametrize(("multiple", "width"), [(1, 5), (2, 6), (5, 5), (6, 6), (64, 64)])
def test_rows_are_as_long_as_the_longest_up_to_a_multiple(multiple: int, width: int) -> None:
    episodes = [episode_of([step_of([1, 2, 3], [4, 5])]), episode_of([step_of([1], [4, 5])])]
    batch = packing.TokenBatch.from_episodes(episodes, pad_to_multiple_of=multiple)
    assert batch.tokens.shape == (2, width)
    assert batch.lengths.tolist() == [5, 3]
    assert batch.attention_mask.sum(axis=1).tolist() == [5, 3]


@hypothesis.given(
    episodes=st.lists(token_episode_test.episodes(), min_size=1, max_size=4),
    pad_token_id=st.integers(0, 9),
    multiple=st.integers(1, 5),
)
def test_padding_is_nowhere_else_and_holds_nothing(episodes: list[Steps], pad_token_id: int, multiple: int) -> None:
    batch = packing.TokenBatch.from_episodes(
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


@hypothesis.given(episodes=st.lists(token_episode_test.episodes(), min_size=1, max_size=4))
def test_packed_rows_stand_end_to_end(episodes: list[Steps]) -> None:
    batch = packing.TokenBatch.from_episodes([episode_of(steps) for steps in episodes], pad_to_multiple_of=3)
    packed = batch.packed()
    assert list(packed) == [*tokens.FIELDS, "cu_seqlens"]
    sequences = [sequence for steps in episodes for sequence in token_episode_test.walked(steps)]
    assert packed["cu_seqlens"].tolist() == [0, *np.cumsum([len(rows) for rows in sequences]).tolist()]
    for place, name in enumerate(tokens.FIELDS):
        assert packed[name].tolist() == [row[place] for rows in sequences for row in rows]
    packed["tokens"][:] = 77
    assert 77 not in batch.tokens


def test_an_episode_without_a_step_has_no_row() -> None:
    batch = packing.TokenBatch.from_episodes([episode_of([]), episode_of([step_of([1], [2])], 1), episode_of([])])
    assert batch.episode_ids == ["e1"]
    with pytest.raises(errors.ArgumentError, match="^episodes must have a step in one of them, got 2 without$"):
        packing.TokenBatch.from_episodes([episode_of([]), episode_of([])])


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
def test_arguments_are_checked(arguments: dict[str, Any], text: str) -> None:
    defaults: dict[str, Any] = {"episodes": [episode_of([step_of([1], [2])])]}
    with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
        packing.TokenBatch.from_episodes(**defaults | arguments)


def test_an_agent_stores_its_steps_in_an_episode_buffer_and_they_come_back_bit_for_bit() -> None:
    """P67: miles PR 1829."""
    logs = [np.array([-0.1, -0.2], np.float32), np.array([-1 / 3], np.float32)]
    steps = [
        step_of([1, 5], [7, 2], logprobs=logs[0], policy_version=3),
        step_of([1, 5, 7, 2, 9], [8], logprobs=logs[1], policy_version=[4]),
    ]
    buffer = buffer_lib.EpisodeReplayBuffer[Any, tokens.TokenStep](seed=0)
    episode_id = buffer.start_episode_nowait("agent", group_id="prompt")
    for step, reward in zip(steps, [0.0, 1.0], strict=True):
        buffer.append_observation_action_reward_nowait(episode_id, step.prompt, step, reward)
    buffer.end_episode_nowait(episode_id, None)
    (lived,) = buffer._store
    batch = packing.TokenBatch.from_episodes([lived])
    assert batch.tokens.tolist() == [[1, 5, 7, 2, 9, 8]]
    assert batch.logprobs[batch.loss_mask].tobytes() == np.concatenate(logs).tobytes()
    assert batch.rewards.tolist() == [[0, 0, 0, 0, 0, 1.0]]
    assert (batch.episode_ids, batch.agent_ids, batch.group_ids) == ([episode_id], ["agent"], ["prompt"])
