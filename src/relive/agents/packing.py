"""TokenBatch: sequences of tokens as rectangles, padded on the right, with a mask.

    tokens     1 5 6 7 2 9 9 8 2        mask    T T T T T T T T T
               1 5 6 4 0 0 0 0 0                T T T T . . . . .

Padding exists only in batches: stored sequences have none.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from relive import errors
from relive.agents import tokens
from relive.agents import tokens as tokens_lib
from relive.common import arrays
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.storage import ragged
from relive.windows import batches

FIELDS: dict[str, np.dtype[Any]] = {
    "tokens": np.dtype(np.int32),
    "loss_mask": np.dtype(np.bool_),
    "policy_versions": np.dtype(np.int64),
    "rewards": np.dtype(np.float64),
    "steps": np.dtype(np.int32),
}
"""What is kept of each token beside its log-probability, which has the dtype of the first ones that were added."""
SEQUENCE_FIELDS: dict[str, np.dtype[Any]] = {
    "returns": np.dtype(np.float64),
    "is_exact": np.dtype(np.bool_),
    "trained": np.dtype(np.int64),
    "oldest_version": np.dtype(np.int64),
}
"""What is kept of each sequence: the sum of the rewards of its episode, whether that is exact, and two counts."""
_AT_ONCE = 2**18
"""So many tokens are recounted at once, or those of one sequence if it has more."""


def new(max_tokens: int, log_probability_dtype: np.dtype[Any]) -> ragged.RaggedColumns:
    """Return an empty store for sequences of `max_tokens` tokens in total."""
    return ragged.RaggedColumns(max_tokens, FIELDS | {"logprobs": log_probability_dtype}, SEQUENCE_FIELDS)


def add(rows: ragged.RaggedColumns, joined: tokens.TokenEpisode) -> int:
    """Store the sequences of an episode, which must fit, and return how many were evicted.

    Raises:
        SchemaError: The dtype of the log-probabilities does not fit that of the column.
    """
    count = len(joined.lengths)
    values = {
        "returns": np.full(count, joined.total_reward),
        "is_exact": np.full(count, joined.is_exact),
        **_counted(joined.columns, joined.lengths),
    }
    try:
        return rows.extend(joined.columns, joined.lengths, values)
    except errors.SchemaError:
        # Everything else has the dtype of its column.
        raise errors.SchemaError(
            f"logprobs must fit {rows.dtype('logprobs')}, which the first episode had: give them as that, "
            f"got {joined.columns['logprobs'].dtype}"
        ) from None


def check(rows: ragged.RaggedColumns) -> None:
    """Raise CorruptionError if a stored sequence is invalid. O(tokens)."""
    rows.check()
    ends = np.cumsum(rows.lengths)
    first, begin = 0, 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, begin + _AT_ONCE, side="right")))
        keys = rows.first_key + np.arange(first, last)
        columns, offsets = rows.read(keys)
        _check_tokens(columns)
        for name, counts in _counted(columns, np.diff(offsets)).items():
            if not np.array_equal(counts, rows.row_values(name, keys)):
                raise errors.CorruptionError(f"{name} of sequences must be what their tokens make it")
        first, begin = last, int(ends[last - 1])


def _check_tokens(columns: Mapping[str, arrays.Array]) -> None:
    """Raise CorruptionError if a token [N] is invalid."""
    logs, versions, mask = columns["logprobs"], columns["policy_versions"], columns["loss_mask"]
    is_generated = versions >= 0
    rules = {
        "tokens must be at least 0": columns["tokens"] >= 0,
        "loss_mask must be made of the bytes 0 and 1 alone": mask.view(np.uint8) <= 1,
        "loss_mask must be False for what no policy generated": is_generated >= mask,
        "logprobs must be finite and at most 0, but for rounding": tokens.are_logprobs(logs),
        "logprobs must be 0 for what no policy generated": is_generated | (logs == 0),
        "policy_versions must be at least -1": versions >= -1,
        "rewards must be finite": np.isfinite(columns["rewards"]),
        "rewards must be 0 for what no policy generated": is_generated | (columns["rewards"] == 0),
        "steps must be at least 0": columns["steps"] >= 0,
    }
    for rule, holds in rules.items():
        if not holds.all():
            raise errors.CorruptionError(rule)


def _counted(columns: Mapping[str, arrays.Array], lengths: arrays.Ints) -> dict[str, arrays.Ints]:
    """Return the two counts for sequences of those lengths [S], whose tokens are concatenated in columns [N]."""
    starts = np.cumsum(lengths) - lengths
    mask = columns["loss_mask"]
    trained = np.add.reduceat(mask, starts, dtype=np.int64)
    versions = np.where(mask, columns["policy_versions"], np.iinfo(np.int64).max)
    oldest = np.minimum.reduceat(versions, starts)
    oldest[trained == 0] = -1
    return {"trained": trained, "oldest_version": oldest}


_PADDING = {"loss_mask": False, "logprobs": 0.0, "policy_versions": -1, "rewards": 0.0, "steps": -1}


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class TokenBatch(batches.Batch[batches.A]):
    """A batch of token sequences, one per row. B is the number of rows, L the length of the longest.

    Rows are padded on the right, where `attention_mask` is False; exclude the padding from the loss. A row is an
    episode, or the part of one between two mismatches.

    Attributes:
        tokens: [B, L]; int64; `pad_token_id` in the padding.
        attention_mask: Whether there is a token [B, L].
        loss_mask: Whether the token was generated and should be trained on [B, L].
        logprobs: Log-probability of each generated token at generation time, given all tokens before it in its row, bit
            for bit as it was given; 0 elsewhere [B, L].
        policy_versions: The policy version that generated the token; -1 elsewhere [B, L].
        rewards: The reward of a response, at its last token; 0 elsewhere [B, L].
        steps: The step of the episode that the token belongs to, as part of its prompt or response; -1 for none [B, L].
        lengths: Number of tokens in the row [B].
        keys: Keys of the sequences in the buffer; -1 for none [B].
        returns: Undiscounted return of the episode, including rewards in its other rows [B].
        is_exact: Whether each prompt of the episode began with the entire previous prompt and response [B].
        episode_ids: The episode [B].
        agent_ids: The agent of the episode [B].
        group_ids: The group of the episode, such as all responses to one prompt; None for none [B].
        mismatches: Why the row does not continue the previous row of its episode; None for the first row [B].
    """

    _NAMES: ClassVar[tuple[str, ...]] = ("keys", "episode_ids", "agent_ids", "group_ids", "mismatches")

    tokens: batches.A
    attention_mask: batches.A
    loss_mask: batches.A
    logprobs: batches.A
    policy_versions: batches.A
    rewards: batches.A
    steps: batches.A
    lengths: batches.A
    keys: arrays.Keys
    returns: batches.A
    is_exact: batches.A
    episode_ids: list[str]
    agent_ids: list[str]
    group_ids: list[str | None]
    mismatches: list[tokens_lib.TokenMismatch | None]

    if TYPE_CHECKING:

        def map(self, function: Callable[[batches.A], batches.B]) -> "TokenBatch[batches.B]": ...  # noqa: D102

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[episode_lib.Episode[Any, tokens_lib.TokenStep]],
        *,
        pad_token_id: int = 0,
        pad_to_multiple_of: int = 1,
    ) -> "TokenBatch[arrays.Array]":
        """Return a batch of the sequences of episodes whose actions are TokenSteps, in order.

        An inexact episode gives a row for each part, an episode without steps none. Rewards are taken from the
        episodes, whose observations are ignored.

        Args:
            episodes: The episodes, such as a group from an EpisodeReplayBuffer.
            pad_token_id: The token used as padding.
            pad_to_multiple_of: L is a multiple of this.

        Raises:
            ArgumentTypeError: An element is not an Episode, or an action is not a TokenStep.
            ArgumentError: No episode has a step, `pad_token_id` or `pad_to_multiple_of` is invalid, or a step has a
                reward that differs from that in its episode.

        >>> import relive
        >>> step = relive.TokenStep(prompt=[1, 5], response=[7, 2], logprobs=[-0.5, -0.25], policy_version=0)
        >>> episode = relive.Episode(episode_id="e", agent_id="a", actions=[step], rewards=[1.0])
        >>> batch = relive.TokenBatch.from_episodes([episode], pad_to_multiple_of=8)
        >>> batch.tokens
        array([[1, 5, 7, 2, 0, 0, 0, 0]])
        >>> batch.logprobs
        array([[ 0.  ,  0.  , -0.5 , -0.25,  0.  ,  0.  ,  0.  ,  0.  ]])
        """
        validation.require_instance("episodes", episodes, Sequence)
        for number, each in enumerate(episodes):
            validation.require_instance(f"episode {number}", each, episode_lib.Episode)
        pad_token_id, multiple = checked_padding(pad_token_id, pad_to_multiple_of)
        lived = [each for each in episodes if each.actions]
        if not lived:
            raise errors.ArgumentError(f"episodes must have a step in one of them, got {len(episodes)} without")
        joined = [tokens_lib.join(tokens_lib.steps_of(each)) for each in lived]
        parts = [len(each.lengths) for each in joined]
        return TokenBatch.of(
            {name: np.concatenate([each.columns[name] for each in joined]) for name in tokens_lib.FIELDS},
            np.concatenate([each.lengths for each in joined]),
            keys=np.full(sum(parts), -1),
            returns=np.repeat([each.total_reward for each in joined], parts),
            is_exact=np.repeat([each.is_exact for each in joined], parts),
            sources=[
                source
                for each, whole in zip(lived, joined, strict=True)
                for source in sources_of(whole, each.episode_id, each.agent_id, each.group_id)
            ],
            pad_token_id=pad_token_id,
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
        sources: Sequence[tokens_lib.SequenceSource],
        pad_token_id: int,
        pad_to_multiple_of: int,
    ) -> "TokenBatch[arrays.Array]":
        """Return a batch of at least one sequence of those lengths [B], given concatenated columns.

        The other arguments are as in the batch.
        """
        width = -(-int(lengths.max()) // pad_to_multiple_of) * pad_to_multiple_of
        mask = np.arange(width) < lengths[:, np.newaxis]
        return TokenBatch(
            tokens=ragged.padded(columns["tokens"].astype(np.int64), mask, pad_token_id),
            attention_mask=mask,
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

    def packed(self: "TokenBatch[arrays.Array]") -> dict[str, arrays.Array]:
        """Return the rows concatenated without padding: fresh arrays by name.

        Returns:
            tokens, loss_mask, logprobs, policy_versions, rewards and steps [N], and cu_seqlens [B + 1]: row b extends
            from cu_seqlens[b] to cu_seqlens[b + 1].

        Raises:
            ArgumentTypeError: The batch holds arrays of a framework: pack first, then convert.
        """
        self._require_numpy("packed")
        columns: dict[str, arrays.Array] = {
            name: getattr(self, name)[self.attention_mask] for name in tokens_lib.FIELDS
        }
        return columns | {"cu_seqlens": np.append(0, np.cumsum(self.lengths))}


def sources_of(
    joined: tokens_lib.TokenEpisode, episode_id: str, agent_id: str, group_id: str | None
) -> list[tokens_lib.SequenceSource]:
    """Return the source of each sequence of an episode [S]."""
    return [
        tokens_lib.SequenceSource(episode_id=episode_id, agent_id=agent_id, group_id=group_id, mismatch=mismatch)
        for mismatch in joined.mismatches
    ]


def checked_padding(pad_token_id: object, pad_to_multiple_of: object) -> tuple[int, int]:
    """Return both as ints.

    Raises:
        ArgumentError: `pad_token_id` is not an integer of at least 0, or `pad_to_multiple_of` is not one of at least 1.
    """
    return (
        validation.non_negative_int("pad_token_id", pad_token_id),
        validation.positive_int("pad_to_multiple_of", pad_to_multiple_of),
    )
