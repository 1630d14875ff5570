"""Entries: what is decided of an episode before a token store takes it, and what is read of episodes that it holds.

a new episode     shortened by what it shares, its log-probabilities in the dtype of the others, what it evicts
its rows          with all memory that they need: `TokenStore.add` cannot fail
its EpisodeFacts  the names that are given, and what follows from its tokens
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
from typing import Any

import numpy as np

from relive import errors
from relive.agents import facts
from relive.agents import prefixes
from relive.agents import token_store
from relive.agents import tokens
from relive.common import arrays as arrays_lib
from relive.schema import casting
from relive.storage import ragged

MOST_EXTRAS = 2**62
"""So many extras of tokens may be stored: these columns grow."""
_FARTHEST = 4
"""A beginning is shared while that part of max_tokens at most was stored since: they may have to leave together."""
_AT_ONCE = 2**18
"""That many tokens are recounted at once, or those of one sequence if it has more."""


def fitted(
    store: token_store.TokenStore, names: Mapping[str, Any], joined: tokens.TokenEpisode, extras: token_store.Extras
) -> token_store.Entry:
    """Return an episode as it is to be stored.

    Its log-probabilities have the dtype of the others, what it shares is left out, and there is room for it.

    Args:
        store: The store.
        names: What EpisodeFacts has of it that is not in its tokens.
        joined: The episode.
        extras: Its extras.

    Raises:
        ArgumentError: It has more than max_tokens tokens, memory does not hold them, or this process is a fork.
        SchemaError: Its log-probabilities do not fit that dtype.
        CheckpointError: There is no room on disk.
    """
    rows, given, logprobs = store.rows, joined.logprobs_dtype, joined.columns["logprobs"]
    first = store.logprobs_dtype or given or np.dtype(np.float32)
    dtype = first if rows is None else rows.dtype("logprobs")
    if given is not None and not np.can_cast(given, dtype, "safe"):
        remedy = f"cast them with .astype({dtype.name!r}), or give the buffer logprobs_dtype={given.name!r}"
        raise errors.SchemaError(f"logprobs must fit {dtype}, as in the whole buffer, got {given}: {remedy}")
    logprobs = casting.cast_exact("logprobs", logprobs, logprobs.shape, dtype, is_weak=True)
    whole = dataclasses.replace(joined, columns={**joined.columns, "logprobs": logprobs})
    joined = _shortened(store, whole, names["group_id"])
    total = int(joined.lengths.sum())
    if total > store.max_tokens:
        rule = f"at most max_tokens = {store.max_tokens} tokens when they are joined"
        raise errors.ArgumentError(f"steps must have {rule}, got {total}")
    return planned(store, names, joined, extras, _first_key_after(store, joined))


def planned(
    store: token_store.TokenStore,
    names: Mapping[str, Any],
    joined: tokens.TokenEpisode,
    extras: token_store.Extras,
    first_key: int,
) -> token_store.Entry:
    """Return an episode as it is to be stored, with room for it.

    Args:
        store: The store.
        names: What EpisodeFacts has of it that is not in its tokens.
        joined: The episode, whose log-probabilities are in the dtype of the buffer, without what it shares.
        extras: Its extras.
        first_key: The first sequence that is not evicted for it.

    Raises:
        ArgumentError: It does not fit, or as in `fitted`.
    """
    rows, token_rows, count = store.rows, store.extras, len(joined.lengths)
    sizes, counts = joined.lengths + joined.shared, counted(joined.columns, joined.lengths)
    own = {"returns": np.full(count, joined.total_reward), "is_exact": np.full(count, joined.is_exact), **counts}
    own |= {"parents": joined.parents, "shared": joined.shared, **extras[1]}
    known: dict[str, Any] = {**names, "mismatches": joined.mismatches, "rewards": joined.rewards}
    episode = _episode(known, store.inserted, sizes, counts["oldest_version"])
    of_tokens: tuple[ragged.RaggedColumns, ragged.NewRows] | None = None
    with store.room():
        if rows is None:
            fields = store.fields(joined.columns["logprobs"].dtype)
            rows = ragged.RaggedColumns(store.max_tokens, *fields, allocate=store.allocate)
            if store.token_extras:
                options: Any = {"is_uneven": True, "allocate": store.allocate}  # Since such columns grow.
                token_rows = ragged.RaggedColumns(MOST_EXTRAS, store.token_extras, **options)
        of_sequences = rows, rows.planned(joined.columns, joined.lengths, own)
        if token_rows is not None:
            of_tokens = token_rows, token_rows.planned(extras[0], np.repeat(sizes, len(store.token_extras)))
    return token_store.Entry(episode, joined, extras, first_key, of_sequences, of_tokens)


def has_room(store: token_store.TokenStore, entry: token_store.Entry) -> bool:
    """Return whether an episode fits once those before its `first_key` are evicted, which may be untrusted."""
    rows, _ = entry.rows
    first_key, parent = max(entry.first_key, rows.first_key), int(entry.joined.parents[0])
    kept = store.prefix_index.first_kept(rows.first_kept, first_key, parent)
    return rows.num_values_from(kept) + int(entry.joined.lengths.sum()) <= store.max_tokens


def _shortened(store: token_store.TokenStore, joined: tokens.TokenEpisode, group_id: str | None) -> tokens.TokenEpisode:
    """Return an episode without what it shares."""
    rows, key = store.rows, store.prefix_index.parents.get(group_id)
    if rows is None or key is None:
        return prefixes.shortened(joined, store.inserted, None, lambda count: False)
    known = rows.read([key], ("tokens",))[0]["tokens"]  # Parents share nothing themselves.
    since, total = rows.num_values_from(key), int(joined.lengths.sum())

    def may_share(count: int) -> bool:
        return since - len(known) <= store.max_tokens // _FARTHEST and since + total - count <= store.max_tokens

    return prefixes.shortened(joined, store.inserted, (key, known), may_share)


def _first_key_after(store: token_store.TokenStore, joined: tokens.TokenEpisode) -> int:
    """Return the first sequence that is not evicted for an episode."""
    rows = store.rows
    if rows is None:
        return 0
    first_key, first_kept, episodes = rows.first_key, rows.first_kept, iter(store)
    while rows.num_values_from(first_kept) + int(joined.lengths.sum()) > store.max_tokens:
        first_key += len(next(episodes).mismatches)
        first_kept = store.prefix_index.first_kept(first_kept, first_key, int(joined.parents[0]))
    return first_key


def fill(
    store: token_store.TokenStore,
    rows: ragged.RaggedColumns | None,
    extras: ragged.RaggedColumns | None,
    names: Sequence[Mapping[str, Any]],
    drawn: Sequence[bool],
) -> None:
    """Load sequences into an empty store, with the NAMES of each episode, and whether it was sampled.

    Raises:
        CorruptionError: The episodes have other sequences.
    """
    store.rows, store.extras = rows, extras
    rewards: list[tuple[float, ...]] = []
    place, first_key, first_kept, lengths, oldest, parents = 0, 0, 0, *[np.zeros(0, np.int64)] * 3
    if rows is not None:
        first_key, first_kept = rows.first_key, rows.first_kept
        oldest, parents = rows.row_values("oldest_version"), rows.row_values("parents")
        lengths = rows.lengths + rows.row_values("shared")
        for keys in parts(rows.lengths, first_key):
            columns, offsets = rows.read(keys, ("steps", "rewards"))
            rewards += step_rewards(columns, np.diff(offsets))
    if sum(len(each["mismatches"]) for each in names) != len(rewards):
        raise errors.CorruptionError(f"episodes must have the {len(rewards)} sequences that are stored")
    for of_episode, is_drawn in zip(names, drawn, strict=True):
        own = slice(place, place + len(of_episode["mismatches"]))
        known = {**of_episode, "rewards": tuple(itertools.chain.from_iterable(rewards[own]))}
        episode = _episode(known, first_key + place, lengths[own], oldest[own])
        store.register(episode, int(parents[place]), first_kept)
        store.drawn.update([episode] if is_drawn else [])
        place = own.stop
    if len(store.by_id) != len(names):
        raise errors.CorruptionError("episodes must have ids of their own")


def _episode(
    known: Mapping[str, Any], first_key: int, lengths: arrays_lib.Ints, oldest: arrays_lib.Ints
) -> facts.EpisodeFacts:
    """Return what is known of an episode, with the lengths and oldest versions of its sequences."""
    version = min((version for version in oldest.tolist() if version >= 0), default=None)
    return facts.EpisodeFacts(**known, first_key=first_key, policy_version=version, num_tokens=int(lengths.sum()))


def parts(lengths: arrays_lib.Ints, first_key: int) -> Iterator[arrays_lib.Keys]:
    """Yield the keys of sequences of those lengths [S], a few at a time."""
    ends = np.cumsum(lengths)
    first, begin = 0, 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, begin + _AT_ONCE, side="right")))
        yield first_key + np.arange(first, last)
        first, begin = last, int(ends[last - 1])


def counted(columns: Mapping[str, arrays_lib.Array], lengths: arrays_lib.Ints) -> dict[str, arrays_lib.Ints]:
    """Return the two counts for sequences of those lengths [S], whose tokens are concatenated in columns [N]."""
    starts, mask = np.cumsum(lengths) - lengths, columns["loss_mask"]
    trained = np.add.reduceat(mask, starts, dtype=np.int64)
    versions = np.where(mask, columns["policy_versions"], np.iinfo(np.int64).max)
    oldest = np.minimum.reduceat(versions, starts)
    oldest[trained == 0] = -1
    return {"trained": trained, "oldest_version": oldest}


def step_rewards(columns: Mapping[str, arrays_lib.Array], lengths: arrays_lib.Ints) -> list[tuple[float, ...]]:
    """Return the rewards of the steps in each sequence of those lengths [S]: those of the last tokens of the steps."""
    ends = np.cumsum(lengths)
    is_last = np.append(columns["steps"][1:] != columns["steps"][:-1], True)
    is_last[ends - 1] = True
    counts = np.add.reduceat(is_last, ends - lengths, dtype=np.int64)
    rewards = np.split(columns["rewards"][is_last], np.cumsum(counts)[:-1])
    return [tuple(part.tolist()) for part in rewards]
