"""The answers of one episode as one row of tokens, if each went on from what was there before it.

    step 0   prompt  1 5 6                answer  7 2
    step 1   prompt  1 5 6 7 2 9 9        answer  8 2       begins with step 0's prompt and answer: exact

    tokens            1   5   6   7   2   9   9   8   2     each once
    loss_mask         .   .   .   T   T   .   .   T   T     answers, where they are to be trained on
    log_probabilities 0   0   0   l   l   0   0   l   l
    policy_versions  -1  -1  -1   v   v  -1  -1   v   v     -1 for what no policy said
    rewards           0   0   0   0   r   0   0   0   r     at the last token of an answer
    steps             0   0   0   0   0   1   1   1   1     what the environment says belongs to the answer after it

The law of this file: nothing is ever spliced. Where a prompt does not begin with what was there, because a text was
tokenized again, a template took thoughts out, or a context was cut, a new sequence begins with the whole prompt. So
each answer stands behind exactly the tokens that the model saw, whatever they were.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from relive import errors
from relive.agents import token_step
from relive.common import arrays
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.windows import returns

FIELDS = ("tokens", "loss_mask", "log_probabilities", "policy_versions", "rewards", "steps")
"""What there is of each token."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenMismatch:
    """Where a prompt stops being what was there before it.

    Attributes:
        step: The step whose prompt it is, from 1 on.
        position: The first token of that prompt that differs.
        expected: The token that the step before had there, in its prompt and answer.
        found: The token that is there; None if the prompt ends before.
    """

    step: int
    position: int
    expected: int
    found: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenEpisode:
    """The steps of one episode, joined: one sequence if they are exact, else more.

    Attributes:
        columns: The FIELDS by name, of the tokens of all sequences one after the other [N].
        lengths: How many tokens each sequence has [S].
        mismatches: Why each sequence does not go on from the one before [S]; None for the first.
        total_reward: The sum of the rewards of all steps.
    """

    columns: dict[str, arrays.Array]
    lengths: arrays.Ints
    mismatches: tuple[TokenMismatch | None, ...]
    total_reward: float

    @property
    def is_exact(self) -> bool:
        """Whether each prompt begins with the whole prompt and answer before it."""
        return len(self.mismatches) == 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SequenceSource:
    """Where a sequence of tokens comes from.

    Attributes:
        episode_id: Its episode.
        agent_id: Who lived that.
        group_id: Which episodes belong together, such as the answers to one prompt; None for none.
        mismatch: Why it does not go on from the sequence before it; None if it begins its episode.
    """

    episode_id: str
    agent_id: str
    group_id: str | None
    mismatch: TokenMismatch | None


def join(steps: Sequence[token_step.TokenStep]) -> TokenEpisode:
    """Answers the steps of an episode, the first one first, as few sequences of tokens as there can be.

    O(tokens of all prompts and answers).

    Raises:
        ArgumentTypeError: `steps` is no sequence, or one of them no TokenStep.
        ArgumentError: There is none.

    >>> import relive
    >>> from relive.agents import token_episode
    >>> first = relive.TokenStep(prompt=[1, 5], answer=[7], log_probabilities=[-0.5], policy_version=0)
    >>> second = relive.TokenStep(prompt=[1, 5, 7, 9], answer=[8], log_probabilities=[-0.25], policy_version=0)
    >>> token_episode.join([first, second]).columns["tokens"]
    array([1, 5, 7, 9, 8], dtype=int32)
    >>> changed = relive.TokenStep(prompt=[1, 6, 7, 9], answer=[8], log_probabilities=[-0.25], policy_version=0)
    >>> joined = token_episode.join([first, changed])
    >>> joined.columns["tokens"], joined.lengths
    (array([1, 5, 7, 1, 6, 7, 9, 8], dtype=int32), array([3, 5]))
    >>> joined.mismatches[1]
    TokenMismatch(step=1, position=1, expected=5, found=6)
    """
    if not isinstance(steps, Sequence):
        raise errors.ArgumentTypeError(f"steps must be a sequence of TokenSteps, got {validation.shown(steps)}")
    if not steps:
        raise errors.ArgumentError("steps must have at least 1 step, got 0")
    for number, step in enumerate(steps):
        validation.instance(f"step {number}", step, token_step.TokenStep)
    mismatches: list[TokenMismatch | None] = [None]
    pieces: list[arrays.Array] = []
    sizes: list[int] = []
    starts, total = [0], 0
    for number, step in enumerate(steps):
        seen = 0
        if number:
            before = steps[number - 1]
            mismatch = _mismatch(number, before, step)
            if mismatch is None:
                seen = len(before.prompt) + len(before.answer)
            else:
                mismatches.append(mismatch)
                starts.append(total)
        pieces += step.prompt[seen:], step.answer
        sizes += len(step.prompt) - seen, len(step.answer)
        total += sizes[-2] + sizes[-1]
    return TokenEpisode(
        columns=_columns(steps, pieces, sizes),
        lengths=np.diff(starts, append=total),
        mismatches=tuple(mismatches),
        total_reward=returns.total([step.reward for step in steps]),
    )


def _columns(
    steps: Sequence[token_step.TokenStep], pieces: list[arrays.Array], sizes: list[int]
) -> dict[str, arrays.Array]:
    """Answers the columns [N] of steps [K] whose new prompts and answers, in turn, are pieces of those sizes [2 K]."""
    is_answer = np.repeat(np.tile([False, True], len(steps)), sizes)
    ends = np.cumsum(sizes)
    log_probabilities = np.concatenate([step.log_probabilities for step in steps])
    columns = {
        "tokens": np.concatenate(pieces),
        "loss_mask": np.zeros(len(is_answer), np.bool_),
        "log_probabilities": np.zeros(len(is_answer), log_probabilities.dtype),
        "policy_versions": np.full(len(is_answer), -1, np.int64),
        "rewards": np.zeros(len(is_answer)),
        "steps": np.repeat(np.arange(len(steps), dtype=np.int32), np.diff(ends[1::2], prepend=0)),
    }
    columns["loss_mask"][is_answer] = np.concatenate([step.loss_mask for step in steps])
    columns["log_probabilities"][is_answer] = log_probabilities
    columns["policy_versions"][is_answer] = np.concatenate([step.policy_version for step in steps])
    columns["rewards"][ends[1::2] - 1] = [step.reward for step in steps]
    return columns


def _mismatch(number: int, before: token_step.TokenStep, after: token_step.TokenStep) -> TokenMismatch | None:
    """Answers where the prompt of a step differs from the prompt and answer before it, if it does."""
    begin = 0
    for known in (before.prompt, before.answer):
        given = after.prompt[begin : begin + len(known)]
        places = np.flatnonzero(known[: len(given)] != given)
        place = int(places[0]) if len(places) else len(given)
        if place < len(known):
            found = int(given[place]) if place < len(given) else None
            return TokenMismatch(step=number, position=begin + place, expected=int(known[place]), found=found)
        begin += len(known)
    return None


def steps_of(episode: episode_lib.Episode[Any, token_step.TokenStep]) -> list[token_step.TokenStep]:
    """Answers the steps of an episode whose actions are TokenSteps, each with the reward that it got in the episode.

    Observations are not looked at: a TokenStep has all that its model saw.

    Raises:
        ArgumentTypeError: An action is no TokenStep.
        ArgumentError: A step came with a reward of its own, not 0, and not that of the episode.
    """
    steps = []
    for number, (step, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
        validation.instance(f"action {number} of episode {episode.episode_id}", step, token_step.TokenStep)
        if step.reward not in (0, reward):
            raise errors.ArgumentError(
                f"action {number} of episode {episode.episode_id} must have the reward {reward} of its step, or 0, "
                f"got {step.reward}"
            )
        steps.append(dataclasses.replace(step, reward=reward))
    return steps
