"""Sequences of tokens as rectangles: padded on the right, with a mask, and nowhere else.

    tokens     1 5 6 7 2 9 9 8 2        mask    T T T T T T T T T
               1 5 6 4 0 0 0 0 0                T T T T . . . . .

Padding exists in a batch alone: what is stored has none.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.agents import token_episode
from relive.agents import token_step
from relive.common import arrays
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.storage import ragged

Int32s: TypeAlias = npt.NDArray[np.int32]

_PADDING = {"loss_mask": False, "log_probabilities": 0.0, "policy_versions": -1, "rewards": 0.0, "steps": -1}


@dataclasses.dataclass(kw_only=True, slots=True, eq=False)
class TokenBatch:
    """Sequences of tokens, a row each, as fresh arrays. B is how many, L the length of the longest.

    Rows are padded on the right, where `mask` is False: nothing there is to be trained on. A row is an episode, or the
    part of one between two mismatches.

    Attributes:
        tokens: [B, L]; int64, as indices are; the padding token where there is none.
        mask: Whether there is a token [B, L].
        loss_mask: Whether it was generated and is to be trained on [B, L].
        log_probabilities: That of each generated token when it was generated, given all tokens before it in its row,
            bit for bit as it was given; 0 elsewhere [B, L].
        policy_versions: Which version of the policy generated the token; -1 elsewhere [B, L].
        rewards: What followed an answer, at its last token; 0 elsewhere [B, L].
        steps: The step of the episode that the token belongs to, as part of its prompt or answer; -1 for none [B, L].
        lengths: How many tokens the row has [B].
        keys: Names of the rows in the buffer that they are from; -1 for none [B].
        returns: The sum of all rewards of the episode, also of those that are in other rows [B].
        is_exact: Whether each prompt of the episode began with the whole prompt and answer before it [B].
        episode_ids: The episode [B].
        agent_ids: Who lived it [B].
        group_ids: Which episodes it belongs with, such as the other answers to its prompt; None for none [B].
        mismatches: Why the row does not go on from the one before in its episode; None for the first one of it [B].
    """

    tokens: arrays.Ints
    mask: arrays.Bools
    loss_mask: arrays.Bools
    log_probabilities: arrays.Array
    policy_versions: arrays.Ints
    rewards: arrays.Floats
    steps: Int32s
    lengths: arrays.Ints
    keys: arrays.Ints
    returns: arrays.Floats
    is_exact: arrays.Bools
    episode_ids: list[str]
    agent_ids: list[str]
    group_ids: list[str | None]
    mismatches: list[token_episode.TokenMismatch | None]

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[episode_lib.Episode[Any, token_step.TokenStep]],
        *,
        padding: int = 0,
        pad_to_multiple_of: int = 1,
    ) -> Self:
        """Answers the sequences of episodes whose actions are TokenSteps, in order; of an inexact one each part.

        Rewards are those of the episodes, whose observations are not looked at. An episode without a step has no row.

        Args:
            episodes: Such as a group of an EpisodeReplayBuffer.
            padding: The token where there is none.
            pad_to_multiple_of: L is a multiple of this.

        Raises:
            ArgumentTypeError: Something is no Episode, or an action no TokenStep.
            ArgumentError: No episode has a step, `padding` or `pad_to_multiple_of` breaks its rule, or a step came with
                a reward that is not that of its episode.

        >>> import relive
        >>> step = relive.TokenStep(prompt=[1, 5], answer=[7, 2], log_probabilities=[-0.5, -0.25], policy_version=0)
        >>> episode = relive.Episode(episode_id="e", agent_id="a", actions=[step], rewards=[1.0])
        >>> batch = relive.TokenBatch.from_episodes([episode], pad_to_multiple_of=8)
        >>> batch.tokens
        array([[1, 5, 7, 2, 0, 0, 0, 0]])
        >>> batch.log_probabilities
        array([[ 0.  ,  0.  , -0.5 , -0.25,  0.  ,  0.  ,  0.  ,  0.  ]])
        """
        validation.instance("episodes", episodes, Sequence)
        for number, each in enumerate(episodes):
            validation.instance(f"episode {number}", each, episode_lib.Episode)
        padding, multiple = checked_padding(padding, pad_to_multiple_of)
        lived = [each for each in episodes if each.actions]
        if not lived:
            raise errors.ArgumentError(f"episodes must have a step in one of them, got {len(episodes)} without")
        joined = [token_episode.join(token_episode.steps_of(each)) for each in lived]
        parts = [len(each.lengths) for each in joined]
        return cls.of(
            {name: np.concatenate([each.columns[name] for each in joined]) for name in token_episode.FIELDS},
            np.concatenate([each.lengths for each in joined]),
            keys=np.full(sum(parts), -1),
            returns=np.repeat([each.total_reward for each in joined], parts),
            is_exact=np.repeat([each.is_exact for each in joined], parts),
            sources=[
                source
                for each, whole in zip(lived, joined, strict=True)
                for source in sources_of(whole, each.episode_id, each.agent_id, each.group_id)
            ],
            padding=padding,
            pad_to_multiple_of=multiple,
        )

    @classmethod
    def of(
        cls,
        columns: dict[str, arrays.Array],
        lengths: arrays.Ints,
        *,
        keys: arrays.Ints,
        returns: arrays.Floats,
        is_exact: arrays.Bools,
        sources: Sequence[token_episode.SequenceSource],
        padding: int,
        pad_to_multiple_of: int,
    ) -> Self:
        """Answers sequences of those lengths [B], at least one, whose tokens and the like stand end to end in columns.

        The rest is as in the batch.
        """
        width = -(-int(lengths.max()) // pad_to_multiple_of) * pad_to_multiple_of
        mask = np.arange(width) < lengths[:, np.newaxis]
        return cls(
            tokens=ragged.padded(columns["tokens"].astype(np.int64), mask, padding),
            mask=mask,
            **{name: ragged.padded(columns[name], mask, nothing) for name, nothing in _PADDING.items()},
            lengths=lengths,
            keys=keys,
            returns=returns,
            is_exact=is_exact,
            episode_ids=[source.episode_id for source in sources],
            agent_ids=[source.agent_id for source in sources],
            group_ids=[source.group_id for source in sources],
            mismatches=[source.mismatch for source in sources],
        )

    def __len__(self) -> int:
        """Answers B."""
        return len(self.lengths)

    def packed(self) -> dict[str, arrays.Array]:
        """Answers the rows end to end, without padding: fresh arrays by name.

        Returns:
            tokens, loss_mask, log_probabilities, policy_versions, rewards and steps [N], and offsets [B + 1]: row b
            stands from offsets[b] to offsets[b + 1]. Others call these cu_seqlens.
        """
        columns: dict[str, arrays.Array] = {name: getattr(self, name)[self.mask] for name in token_episode.FIELDS}
        return columns | {"offsets": np.append(0, np.cumsum(self.lengths))}


def sources_of(
    joined: token_episode.TokenEpisode, episode_id: str, agent_id: str, group_id: str | None
) -> list[token_episode.SequenceSource]:
    """Answers where each sequence of an episode comes from [S]."""
    return [
        token_episode.SequenceSource(episode_id=episode_id, agent_id=agent_id, group_id=group_id, mismatch=mismatch)
        for mismatch in joined.mismatches
    ]


def checked_padding(padding: object, pad_to_multiple_of: object) -> tuple[int, int]:
    """Answers both as ints.

    Raises:
        ArgumentError: `padding` is no integer of at least 0, or `pad_to_multiple_of` none of at least 1.
    """
    return (
        validation.integer_of_at_least_zero("padding", padding),
        validation.integer_of_at_least_one("pad_to_multiple_of", pad_to_multiple_of),
    )
