"""What a token buffer keeps: values of each token in ragged columns, and what is known of each sequence.

tokens     1 5 6 7 2 9 9 8 2 | 4 4 3          tokens of sequences, end to end, with the other fields of a token
trained    4                 | 1              how many are in the loss mask
oldest     v                 | v              the oldest version of the policy that generated one of those; or -1
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive import errors
from relive.agents import token_episode
from relive.agents import token_step
from relive.common import arrays
from relive.storage import ragged

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
    """Answers a place for sequences of so many tokens together."""
    return ragged.RaggedColumns(max_tokens, FIELDS | {"log_probabilities": log_probability_dtype}, SEQUENCE_FIELDS)


def add(rows: ragged.RaggedColumns, joined: token_episode.TokenEpisode) -> int:
    """Stores the sequences of an episode, which fit together, and answers how many left for them.

    Raises:
        SchemaError: The log-probabilities do not fit their dtype.
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
        # All else has the dtype of its column.
        logs, dtype = joined.columns["log_probabilities"], rows.dtype("log_probabilities")
        with np.errstate(all="ignore"):
            misfit = logs[logs.astype(dtype) != logs][0]
        raise errors.SchemaError(
            f"log_probabilities must fit {dtype}, which the first episode had: give them as that, got {misfit}"
        ) from None


def check(rows: ragged.RaggedColumns) -> None:
    """Raises CorruptionError if a sequence held is none that could be added. O(tokens)."""
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
    """Raises CorruptionError if a token [N] cannot be."""
    logs, versions, mask = columns["log_probabilities"], columns["policy_versions"], columns["loss_mask"]
    is_generated = versions >= 0
    rules = {
        "tokens must be at least 0": columns["tokens"] >= 0,
        "loss_mask must be made of the bytes 0 and 1 alone": mask.view(np.uint8) <= 1,
        "loss_mask must be False for what no policy generated": is_generated >= mask,
        "log_probabilities must be finite and at most 0, but for rounding": token_step.are_log_probabilities(logs),
        "log_probabilities must be 0 for what no policy generated": is_generated | (logs == 0),
        "policy_versions must be at least -1": versions >= -1,
        "rewards must be finite": np.isfinite(columns["rewards"]),
        "rewards must be 0 for what no policy generated": is_generated | (columns["rewards"] == 0),
        "steps must be at least 0": columns["steps"] >= 0,
    }
    for rule, holds in rules.items():
        if not holds.all():
            raise errors.CorruptionError(rule)


def _counted(columns: Mapping[str, arrays.Array], lengths: arrays.Ints) -> dict[str, arrays.Ints]:
    """Answers the two counts of sequences of those lengths [S], whose tokens stand end to end in columns [N]."""
    starts = np.cumsum(lengths) - lengths
    mask = columns["loss_mask"]
    trained = np.add.reduceat(mask, starts, dtype=np.int64)
    versions = np.where(mask, columns["policy_versions"], np.iinfo(np.int64).max)
    oldest = np.minimum.reduceat(versions, starts)
    oldest[trained == 0] = -1
    return {"trained": trained, "oldest_version": oldest}
