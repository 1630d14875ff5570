"""Tests of joining: exact where prompts go on, flagged where they do not; the twin walks token by token."""

import math
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import tokens


def step_of(prompt: list[int], answer: list[int], **changes: Any) -> relive.TokenStep:
    arguments: dict[str, Any] = {"logprobs": [-0.5 - 0.25 * place for place in range(len(answer))], "policy_version": 0}
    return relive.TokenStep(prompt=prompt, response=answer, **arguments | changes)


def lists(joined: tokens.TokenEpisode) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in joined.columns.items()}


def test_one_changed_token_in_a_context_flags_the_episode() -> None:
    """P68: rllm PR 272."""
    first, second = step_of([1, 5, 6], [7, 2]), step_of([1, 5, 6, 7, 2, 9], [8], reward=1.0)
    changed = step_of([1, 4, 6, 7, 2, 9, 8, 3], [2, 2])
    joined = tokens.join([first, second, changed])
    assert not joined.is_exact
    assert joined.mismatches == (None, relive.TokenMismatch(step=2, position=1, expected=5, found=4))
    assert tuple(joined.columns) == tokens.FIELDS
    dtypes = [joined.columns[name].dtype.str for name in tokens.FIELDS]
    assert dtypes == ["<i4", "|b1", "<f8", "<i8", "<f8", "<i4"]
    assert joined.lengths.tolist() == [7, 10]
    assert lists(joined)["tokens"] == [1, 5, 6, 7, 2, 9, 8, 1, 4, 6, 7, 2, 9, 8, 3, 2, 2]
    assert lists(joined)["steps"] == [0] * 5 + [1] * 2 + [2] * 10
    assert lists(joined)["loss_mask"] == [False] * 3 + [True] * 2 + [False, True] + [False] * 8 + [True] * 2


def test_log_probabilities_of_two_dtypes_become_the_wider_one() -> None:
    narrow = np.array([-1.1], np.float32)
    joined = tokens.join([step_of([1], [2], logprobs=narrow), step_of([1, 2], [3], logprobs=[-1.1])])
    assert joined.columns["logprobs"].tolist() == [0.0, float(narrow[0]), -1.1]
    alone = tokens.join([step_of([1], [2], logprobs=narrow)])
    assert alone.columns["logprobs"].dtype == np.float32


TOKENS = st.integers(0, 2)


@st.composite
def episodes(draw: st.DrawFn) -> list[relive.TokenStep]:
    """Steps of few different tokens, most of which go on from the one before."""
    steps: list[relive.TokenStep] = []
    for _ in range(draw(st.integers(1, 6))):
        before = [*steps[-1].prompt.tolist(), *steps[-1].response.tolist()] if steps else []
        prompt: list[int] = draw(st.lists(TOKENS, max_size=6))
        if draw(st.integers(0, 3)):
            prompt = before + prompt
        elif draw(st.booleans()):
            prompt = before[: draw(st.integers(0, len(before)))]
        answer = draw(st.lists(TOKENS, min_size=1, max_size=3))
        count = len(answer)
        steps.append(
            relive.TokenStep(
                prompt=prompt,
                response=answer,
                logprobs=np.array(draw(st.lists(st.floats(-100, 0), min_size=count, max_size=count))),
                policy_version=draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)),
                loss_mask=draw(st.lists(st.booleans(), min_size=count, max_size=count)),
                reward=draw(st.sampled_from([0.0, 1.0, -2.5, 0.1])),
            )
        )
    return steps


def walked(steps: list[relive.TokenStep]) -> list[list[tuple[Any, ...]]]:
    """Return the sequences, as a list of tokens each, the slow way."""
    sequences: list[list[tuple[Any, ...]]] = []
    for number, step in enumerate(steps):
        prompt = step.prompt.tolist()
        if not sequences or prompt[: len(sequences[-1])] != [row[0] for row in sequences[-1]]:
            sequences.append([])
        here = sequences[-1]
        here += [(token, False, 0.0, -1, 0.0, number) for token in prompt[len(here) :]]
        rows = zip(
            step.response.tolist(),
            step.loss_mask.tolist(),
            step.logprobs.tolist(),
            step.policy_version.tolist(),
            strict=True,
        )
        here += [(*row, 0.0, number) for row in rows]
        here[-1] = (*here[-1][:4], step.reward, number)
    return sequences


@hypothesis.given(steps=episodes())
def test_joining_equals_walking_token_by_token(steps: list[relive.TokenStep]) -> None:
    joined, expected = tokens.join(steps), walked(steps)
    assert joined.lengths.tolist() == [len(sequence) for sequence in expected]
    assert list(zip(*lists(joined).values(), strict=True)) == [row for sequence in expected for row in sequence]
    assert joined.is_exact == (len(expected) == 1)
    assert joined.total_reward == math.fsum(step.reward for step in steps)


@hypothesis.given(steps=episodes())
def test_a_mismatch_is_the_first_place_that_differs(steps: list[relive.TokenStep]) -> None:
    for mismatch in tokens.join(steps).mismatches[1:]:
        assert mismatch is not None
        before, prompt = steps[mismatch.step - 1], steps[mismatch.step].prompt.tolist()
        known = [*before.prompt.tolist(), *before.response.tolist()]
        place = mismatch.position
        assert prompt[:place] == known[:place]
        assert mismatch.expected == known[place]
        assert mismatch.found == (prompt[place] if place < len(prompt) else None)
        assert mismatch.expected != mismatch.found


def test_joining_other_than_steps_is_refused() -> None:
    wrong: Any = [step_of([1], [2]), "step"]
    with pytest.raises(errors.ArgumentTypeError, match="^step 1 must be an instance of TokenStep, got 'step'$"):
        tokens.join(wrong)
    with pytest.raises(errors.ArgumentError, match="^steps must have at least 1 step, got 0$"):
        tokens.join([])
    single: Any = step_of([1], [2])
    with pytest.raises(errors.ArgumentTypeError, match="^steps must be a sequence of TokenSteps, got <TokenStep "):
        tokens.join(single)


def episode_of(actions: list[Any], rewards: list[float]) -> relive.Episode[Any, Any]:
    return relive.Episode(episode_id="e", agent_id="a", actions=actions, rewards=rewards)


def test_the_steps_of_an_episode_have_its_rewards() -> None:
    actions = [step_of([1], [2]), step_of([1, 2], [3], reward=4.0), step_of([1, 2, 3], [4])]
    steps = tokens.steps_of(episode_of(actions, [0.5, 4.0, 0.0]))
    assert [step.reward for step in steps] == [0.5, 4.0, 0.0]
    assert [step.response.tolist() for step in steps] == [[2], [3], [4]]


def test_two_rewards_of_one_step_are_refused() -> None:
    text = "^action 1 of episode e must have the reward 0.5 of its step, or 0, got 4.0$"
    with pytest.raises(errors.ArgumentError, match=text):
        tokens.steps_of(episode_of([step_of([1], [2]), step_of([1, 2], [3], reward=4.0)], [0.0, 0.5]))


def test_an_episode_of_other_actions_is_refused() -> None:
    text = "^action 0 of episode e must be an instance of TokenStep, got 'left'$"
    with pytest.raises(errors.ArgumentTypeError, match=text):
        tokens.steps_of(episode_of(["left"], [0.0]))
