"""Extras of tokens and of sequences: their fields, and the values that callers give for them."""

from collections.abc import Mapping
import dataclasses
import itertools
from typing import Any

import numpy as np

from relive import errors
from relive.agents import packing
from relive.agents import token_store
from relive.agents import tokens
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.schema import casting
from relive.schema import schema as schema_lib

_RESERVED = frozenset(("agent_id", "group_id", "status", "ticket", *token_store.SEQUENCE_FIELDS)).union(
    ("cu_seqlens", "max_seqlen", "position_ids"), (field.name for field in dataclasses.fields(packing.TokenBatch))
)
"""Names that an extra cannot have: something else of a sequence is called so."""


def checked(
    token_extras: Mapping[str, schema_lib.Field] | None, sequence_extras: Mapping[str, schema_lib.Field] | None
) -> tuple[token_store.Fields, token_store.Fields]:
    """Return the fields of the extras of tokens, and of those of sequences; see TokenReplayBuffer."""
    of_tokens = _checked("token_extras", token_extras, _RESERVED)
    of_sequences = _checked("sequence_extras", sequence_extras, _RESERVED | of_tokens.keys())
    for name, field in of_sequences.items():
        if field.shape:
            raise errors.ArgumentError(f"sequence_extras must be of shape (), got {field.shape} for {name!r}")
    return of_tokens, of_sequences


def _checked(
    name: str, extras: Mapping[str, schema_lib.Field] | None, refused: frozenset[str]
) -> dict[str, schema_lib.Field]:
    """Return the fields of extras, which must not have the refused names."""
    if extras is None:
        return {}
    if not isinstance(extras, Mapping):
        raise errors.ArgumentTypeError(
            f"{name} must be a mapping from names to Fields, got {validation.short_repr(extras)}"
        )
    for extra, field in extras.items():
        if not validation.non_empty_string(f"each name in {name}", extra).isidentifier() or extra in refused:
            rule = "names that are identifiers and that are not taken"
            raise errors.ArgumentError(f"{name} must have {rule}, got {extra!r}")
        validation.require_instance(f"{name} {extra!r}", field, schema_lib.Field)
        if field.dtype.kind not in "biufc":
            raise errors.ArgumentError(f"{name} must be of numbers or bools, got {field.dtype} for {extra!r}")
    return dict(extras)


def of_episode(
    store: token_store.TokenStore, joined: tokens.TokenEpisode, given: Mapping[str, Any]
) -> token_store.Extras:
    """Return the extras of an episode, for all its tokens and sequences; see `TokenReplayBuffer.add_episode`.

    Raises:
        SchemaError: A value does not fit its field, or there is no such extra.
    """
    _check_names(store, given)
    of_tokens = _of_tokens(store.token_extras, given, joined)
    of_sequences = {
        name: np.repeat(casting.cast_exact(name, given.get(name, 0), (), field.dtype), len(joined.lengths))
        for name, field in store.sequence_extras.items()
    }
    return of_tokens, of_sequences


def of_update(
    store: token_store.TokenStore, keys: arrays_lib.Keys, given: Mapping[str, Any]
) -> tuple[arrays_lib.Ints, dict[str, arrays_lib.Array]]:
    """Return the lengths of sequences [k], 0 if they are not stored, and new extras; see `TokenReplayBuffer.update`.

    Raises:
        SchemaError: A value does not fit its field, or there is no such extra.
    """
    _check_names(store, given)
    alive = store.are_stored(keys)
    lengths = np.zeros(len(keys), np.int64)
    lengths[alive] = store.lengths(keys[alive])
    values: dict[str, arrays_lib.Array] = {}
    for name, column in given.items():
        if validation.leading_length(name, column) != len(keys):
            raise errors.SchemaError(f"{name} must be one for each of {len(keys)} keys, got {len(column)}")
        if name in store.sequence_extras:
            values[name] = casting.cast_exact(name, column, (len(keys),), store.sequence_extras[name].dtype)
            continue
        field = store.token_extras[name]
        stored = itertools.compress(zip(keys.tolist(), column, lengths.tolist(), strict=True), alive)
        rows = [_row(name, *each, field) for each in stored]
        values[name] = np.concatenate([np.zeros((0, *field.shape), field.dtype), *rows])
    return lengths, values


def _check_names(store: token_store.TokenStore, given: Mapping[str, Any]) -> None:
    """Raise SchemaError unless every extra is declared."""
    declared = [*store.token_extras, *store.sequence_extras]
    for name in given:
        if name not in declared:
            raise errors.SchemaError(f"unknown extra {name!r}: the buffer has {', '.join(declared) or 'no extras'}")


def _of_tokens(
    fields: Mapping[str, schema_lib.Field], given: Mapping[str, Any], joined: tokens.TokenEpisode
) -> dict[str, arrays_lib.Array]:
    """Return the extras of all tokens of an episode [N, ...], given those of the response of each step."""
    is_response = joined.columns["policy_versions"] >= 0
    counts = np.bincount(joined.columns["steps"][is_response]).tolist()
    columns: dict[str, arrays_lib.Array] = {}
    for name, field in fields.items():
        columns[name] = column = np.zeros((len(is_response), *field.shape), field.dtype)
        if name in given:
            if validation.leading_length(name, given[name]) != len(counts):
                raise errors.SchemaError(f"{name} must be one for each of {len(counts)} steps, got {len(given[name])}")
            rows = [
                casting.cast_exact(f"{name} of step {t}", row, (count, *field.shape), field.dtype)
                for t, (row, count) in enumerate(zip(given[name], counts, strict=True))
            ]
            column[is_response] = np.concatenate(rows)
    return columns


def _row(name: str, key: int, given: Any, length: int, field: schema_lib.Field) -> arrays_lib.Array:
    """Return the first `length` values of an extra of tokens, for the sequence with that key."""
    row, what = casting.as_array(name, given), f"{name} of key {key}"
    if row.ndim == 0 or len(row) < length:
        rule = f"a row of at least {length} values, one for each token"
        raise errors.SchemaError(f"{what} must be {rule}, got shape {row.shape}")
    given = given[:length] if isinstance(given, list | tuple) else row[:length]
    return casting.cast_exact(what, given, (length, *field.shape), field.dtype)
