"""The checkpointed state of a token buffer: its sequences, oldest first, and the names of their episodes.

    sequences/lengths          9                 3          [S]
    sequences/values/tokens    1 5 6 7 2 9 9 8 2 4 4 3      and the other fields and extras of a token [N, ...]
    sequences/rows/returns     1.0               0.5        and the other fields and extras of a sequence [S, ...]
    episodes                   c c c c           c c        bytes: a tuple of names and mismatches as a PlainCodec
                                                            writes it for each episode, one after another
    episode_ends               4                 6          [E]
    episode_drawn              T                 F          whether a sequence of the episode was sampled [E]

What else is known of an episode is read from its sequences. Their positions in the ring are not saved.
"""

from collections.abc import Mapping
import dataclasses
import itertools
from typing import Any

import numpy as np

from relive import errors
from relive.agents import token_store
from relive.agents import tokens
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.persistence import codec as codec_lib
from relive.persistence import dtypes
from relive.persistence import npy
from relive.persistence import state as state_lib
from relive.schema import schema
from relive.storage import ragged


def state_dict(store: token_store.TokenStore) -> state_lib.State:
    """Return the state of a store as JSON values and arrays."""
    codec = codec_lib.PlainCodec()
    contents = [codec.encode(plain_names(each.names)) for each in store]
    kept = {} if store.rows is None else store.rows.state_dict()
    return {
        **_head(store, store.evicted),
        "arrays": {
            **{f"sequences/{name}": array for name, array in kept.items()},
            "episodes": np.frombuffer(b"".join(contents), np.uint8),
            "episode_ends": np.cumsum([len(content) for content in contents], dtype=np.int64),
            "episode_drawn": np.array([store.was_drawn(each) for each in store], np.bool_),
        },
    }


def base_state_dict(store: token_store.TokenStore) -> state_lib.State:
    """Return the state as if everything stored had just been evicted."""
    arrays = state_dict(token_store.TokenStore(1, {}, {}))["arrays"]
    if store.rows is not None:
        for name, array in store.rows.state_dict().items():
            arrays[f"sequences/{name}"] = np.zeros((0, *array.shape[1:]), array.dtype)
    return {**_head(store, store.inserted - store.cleared), "arrays": arrays}


def _head(store: token_store.TokenStore, evicted: int) -> state_lib.State:
    dtype = None if store.rows is None else dtypes.described(store.rows.dtype("logprobs"))
    return {
        "counters": {"appended": store.inserted, **store.counters(), "evicted": evicted},
        "policy_version": store.policy_version,
        "sequences": {"log_probability_dtype": dtype},
    }


def load(given: state_lib.StateReader, store: token_store.TokenStore) -> None:
    """Restore an empty store.

    Raises:
        CheckpointError: The state is invalid.
    """
    counters = given.part("counters")
    for name in token_store.COUNTERS:
        setattr(store, name, counters.integer(name))
    store.policy_version = None if given.value("policy_version") is None else given.integer("policy_version")
    try:
        rows = _rows(given.part("sequences"), store)
        names, drawn = _names(given)
        store.fill(rows, names, drawn)
        store.check()
    except errors.CorruptionError as error:
        raise errors.CheckpointError(f"sequences cannot be: {error}") from error
    is_sound = (
        store.inexact_episodes <= store.episodes
        and store.episodes + store.inexact_episodes <= store.inserted
        and (rows is None) == (store.inserted == 0)
        and counters.integer("appended") == store.inserted == store.evicted + store.cleared + len(store)
    )
    if not is_sound:
        raise errors.CheckpointError(f"counters must be of a buffer that holds {len(store)} sequences")


def _rows(given: state_lib.StateReader, store: token_store.TokenStore) -> ragged.RaggedColumns | None:
    """Return the sequences; None if there is no dtype for their log-probabilities."""
    if given.value("log_probability_dtype") is None:
        return None
    dtype = npy.dtype_of(given.value("log_probability_dtype"))
    # numpy calls float64 equal to None.
    is_kept = dtype.isnative and (store.logprobs_dtype is None or store.logprobs_dtype == dtype)
    if dtype.type not in tokens.FLOATS or not is_kept:
        rule = f"{store.logprobs_dtype or 'one of floats'}"
        raise given.refused("log_probability_dtype", rule, given.value("log_probability_dtype"))
    options: dict[str, Any] = {"first_key": store.evicted + store.cleared, "allocate": store.allocate}
    rows = ragged.RaggedColumns.from_state(given, store.max_tokens, *store.fields(dtype), **options)
    given.booleans("rows/is_exact", len(rows))
    for part, fields in (("values", store.token_extras), ("rows", store.sequence_extras)):
        for name in [name for name, field in fields.items() if field.dtype == np.bool_]:
            column = given.column(f"{part}/{name}", np.bool_, (None, *fields[name].shape))
            for start, stop in state_lib.chunks(column.shape[0], column.shape[0] * fields[name].nbytes):
                if (column.read(start, stop).view(np.uint8) > 1).any():
                    raise errors.CheckpointError(f"array sequences/{part}/{name} must hold the bytes 0 and 1 alone")
    return rows


def _names(given: state_lib.StateReader) -> tuple[list[dict[str, Any]], list[bool]]:
    """Return the names of the episodes, and whether each was sampled."""
    drawn = given.booleans("episode_drawn", None).tolist()
    ends = given.integers("episode_ends", len(drawn), 0, state_lib.MOST).tolist()
    content = given.array("episodes", np.uint8, (max(ends, default=0),)).tobytes()
    codec = codec_lib.PlainCodec()
    return [checked_names(codec.decode(content[i:j])) for i, j in itertools.pairwise([0, *ends])], drawn


def plain_names(names: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the names of an episode as a tuple that a PlainCodec supports."""
    mismatches = tuple(each and dataclasses.astuple(each) for each in names["mismatches"])
    return *(names[name] for name in token_store.NAMES[:-1]), mismatches


def checked_names(value: Any) -> dict[str, Any]:
    """Return the names of an episode, given the tuple, which is untrusted.

    Raises:
        CheckpointError: It is invalid.
    """
    if type(value) is tuple and len(value) == len(token_store.NAMES) and type(value[-1]) is tuple and value[-1]:
        *texts, status, (first, *others) = value
        is_named = [type(text) for text in texts[:2]] == [str, str] and type(texts[2]) in (str, type(None))
        if is_named and status in episode_lib.FINAL_STATUSES and first is None and all(map(_is_mismatch, others)):
            names = ("step", "position", "expected", "found")
            mismatches = [tokens.TokenMismatch(**dict(zip(names, each, strict=True))) for each in others]
            return dict(zip(token_store.NAMES, (*texts, status, (None, *mismatches)), strict=True))
    raise errors.CheckpointError(
        f"an episode must be two ids, a group, a status and mismatches, got {validation.short_repr(value)}"
    )


def _is_mismatch(value: Any) -> bool:
    """Return whether that is four integers, the last of which may be None."""
    if type(value) is not tuple or len(value) != 4:
        return False
    return all(type(each) is int and each >= 0 for each in value[:3] + value[3:] * (value[3] is not None))


def described(fields: Mapping[str, schema.Field]) -> list[Any]:
    """Return the fields of extras as JSON values: a name, a dtype and a shape each."""
    return [[name, dtypes.described(field.dtype), list(field.shape)] for name, field in fields.items()]


def fields_of(given: state_lib.StateReader, name: str) -> dict[str, schema.Field]:
    """Return the fields of extras from their description, which is untrusted.

    Raises:
        CheckpointError: The description is invalid.
    """
    fields: dict[str, schema.Field] = {}
    rows = given.value(name)
    for row in rows if type(rows) is list else [rows]:
        is_row = type(row) is list and len(row) == 3 and type(row[0]) is str and type(row[2]) is list
        if not is_row or row[0] in fields:
            raise given.refused(name, "a list of a name, a dtype and a shape each", row)
        try:
            fields[row[0]] = schema.Field(row[2], npy.dtype_of(row[1]))
        except (errors.ArgumentError, errors.CheckpointError) as error:
            raise errors.CheckpointError(f"settings/{name} has an invalid field: {error}") from error
    return fields
