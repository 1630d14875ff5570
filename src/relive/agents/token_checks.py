"""Checks of a token store: all of it is recounted, and what a file says of its tokens is judged.

`tokens`, `columns` and `parents` judge what a journal or a state holds, which is untrusted; `store` is the audit.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from relive import errors
from relive.agents import token_entry
from relive.agents import token_store
from relive.agents import tokens as tokens_lib
from relive.common import arrays as arrays_lib
from relive.storage import ragged


def tokens(columns: Mapping[str, arrays_lib.Array]) -> None:
    """Raise CorruptionError if a token [N] is invalid."""
    logs, versions, mask = columns["logprobs"], columns["policy_versions"], columns["loss_mask"]
    is_generated = versions >= 0
    rules = {
        "tokens must be at least 0": columns["tokens"] >= 0,
        "loss_mask must be made of the bytes 0 and 1 alone": mask.view(np.uint8) <= 1,
        "loss_mask must be False for what no policy generated": is_generated >= mask,
        "logprobs must be finite and at most 0, but for rounding": tokens_lib.are_logprobs(logs),
        "logprobs must be 0 for what no policy generated": is_generated | (logs == 0),
        "policy_versions must be at least -1": versions >= -1,
        "rewards must be finite": np.isfinite(columns["rewards"]),
        "rewards must be 0 for what no policy generated": is_generated | (columns["rewards"] == 0),
        "steps must be at least 0": columns["steps"] >= 0,
    }
    for rule, holds in rules.items():
        if not holds.all():
            raise errors.CorruptionError(rule)


def columns(given: Mapping[str, object], fields: token_store.Fields, count: int) -> None:
    """Raise CheckpointError unless there is an array [count, ...] for each field, and no other."""
    found = {name: isinstance(each, np.ndarray) and (each.dtype, each.shape) for name, each in given.items()}
    if found != {name: (field.dtype, (count, *field.shape)) for name, field in fields.items()}:
        raise errors.CheckpointError("has other columns than the buffer")


def parents(store: token_store.TokenStore) -> None:
    """Raise CorruptionError if a sequence begins like one that it cannot begin like. O(sequences)."""
    rows = store.rows
    if rows is None:
        return
    kept = np.arange(rows.first_kept, rows.first_key + len(rows))
    of_all, shared = rows.row_values("parents", kept), rows.row_values("shared", kept)
    is_live, is_child = kept >= rows.first_key, (of_all >= rows.first_kept) & (of_all < kept)
    sizes, most = rows.kept_lengths + shared, np.zeros(len(kept), np.int64)
    most[is_child] = sizes[of_all[is_child] - rows.first_kept]
    is_right = np.where(is_child, (shared >= 1) & (shared <= most), (shared == 0) & (of_all == -1))
    if not is_right[is_live].all():
        raise errors.CorruptionError("each sequence must begin like an earlier one, or like none")
    for episode in store:
        own = of_all[episode.keys - rows.first_kept]
        others = own[(own >= 0) & (own < episode.first_key)]
        if (others != own[0]).any() or (of_all[others - rows.first_kept] >= 0).any():
            raise errors.CorruptionError("an episode must begin like one other, which begins like none")
    if rows.first_kept != store.prefix_index.first_kept(rows.first_kept, rows.first_key):
        raise errors.CorruptionError("an evicted sequence that nothing begins like must not be kept")


def store(own: token_store.TokenStore) -> None:
    """Recount everything from the tokens. O(tokens).

    Raises:
        CorruptionError: An invariant does not hold; the message says which.
    """
    rows, count = own.rows, len(own.owners)
    if (
        (rows is None) != (own.inserted == 0)
        or own.inserted != own.evicted + own.cleared + count
        or not 2 * own.inexact_episodes <= own.episodes + own.inexact_episodes <= own.inserted
    ):
        raise errors.CorruptionError(f"counters must be of a buffer that holds {count} sequences")
    if rows is None:
        return
    rows.check()
    twin = token_store.TokenStore(own.max_tokens, {}, {})
    token_entry.fill(twin, rows, None, [each.names for each in own], [False] * len(own.by_id))
    parents(twin)
    sizes = own.lengths(rows.first_key + np.arange(len(rows)))
    if own.extras is not None:
        own.extras.check()
        if own.extras.first_key != rows.first_key or not np.array_equal(own.extras.lengths, sizes):
            raise errors.CorruptionError("each token must have its extras")
    for keys in token_entry.parts(sizes, rows.first_key):
        read, lengths = own.read(keys)
        tokens(read)
        _check_rows(rows, token_entry.counted(read, lengths), keys)
    if own.prefix_index.of_stored(rows.first_key) != twin.prefix_index.of_stored(rows.first_key):
        raise errors.CorruptionError("what sequences begin like must be what is stored of them")
    if list(map(dataclasses.astuple, own)) != list(map(dataclasses.astuple, twin)):
        raise errors.CorruptionError("episodes must be what their tokens make them")
    num_parts = np.array([len(each.mismatches) for each in own], np.int64)
    totals = np.array([each.total_reward for each in own], np.float64)
    _check_rows(rows, {"returns": totals.repeat(num_parts), "is_exact": (num_parts == 1).repeat(num_parts)})
    owners = [(key, own.find(episode.episode_id)) for key, episode in twin.owners.items()]
    if list(own.owners.items()) != owners:
        raise errors.CorruptionError("each sequence must belong to an episode, in their order")
    if not own.drawn <= set(own):
        raise errors.CorruptionError("episodes that were sampled must be stored")


def _check_rows(
    rows: ragged.RaggedColumns, expected: Mapping[str, arrays_lib.Array], keys: arrays_lib.Keys | None = None
) -> None:
    """Raise CorruptionError unless the row fields have those values, for the sequences with those keys, or all."""
    for name, values in expected.items():
        if not np.array_equal(values, rows.row_values(name, keys)):
            raise errors.CorruptionError(f"{name} of sequences must be what their tokens make it")
