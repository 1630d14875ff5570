"""The checkpointed state of a token buffer: its sequences, oldest first, and the names of their episodes.

    sequences/lengths          9                 3          [S]
    sequences/values/tokens    1 5 6 7 2 9 9 8 2 4 4 3      and the other fields and extras of a token [N, ...]
    sequences/rows/returns     1.0               0.5        and the other fields and extras of a sequence [S, ...]
    episodes                   c c c c           c c        bytes: a tuple of names and mismatches as a PlainCodec
                                                            writes it for each episode, one after another
    episode_end                4                 6          [E]
    episode_drawn              T                 F          whether a sequence of the episode was sampled [E]
    sampler/priorities         2.5               1.0        and other arrays of the sampler, if there is one [S]

What else is known of an episode is read from its sequences. Their positions in the ring are not saved.
"""

from collections.abc import Mapping
import dataclasses
import itertools
from typing import Any

import numpy as np

from relive import errors
from relive.agents import facts
from relive.agents import token_checks
from relive.agents import token_draws
from relive.agents import token_entry
from relive.agents import token_store
from relive.agents import tokens
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import metadata as metadata_lib
from relive.persistence import codec as codec_lib
from relive.persistence import commands
from relive.persistence import dtypes
from relive.persistence import npy
from relive.persistence import state as state_lib
from relive.schema import schema as schema_lib
from relive.storage import ragged

_PLAIN = codec_lib.PlainCodec()
_CHECKS = (
    commands.is_text,
    commands.is_text,
    commands.or_none(commands.is_text),
    commands.one_of(*episode_lib.FINAL_STATUSES),
    commands.is_bytes,
    lambda value: type(value) is tuple and len(value) > 0 and value[0] is None,
)
_OF_MISMATCH = (commands.is_count, commands.is_count, commands.is_count, commands.or_none(commands.is_count))


def state_dict(
    store: token_store.TokenStore,
    draws: token_draws.TokenDraws | None,
    of_queue: Mapping[str, Any],
    *,
    is_base: bool = False,
) -> state_lib.State:
    """Return the state of a store and its draws, and of the queue; `is_base` as if everything had just been evicted."""
    of_draws = {} if draws is None else draws.state_dict(store, is_base=is_base)
    episodes = list(store)
    kept: dict[str, Any] = {} if store.rows is None else store.rows.state_dict()
    extras: dict[str, Any] = {} if store.extras is None else store.extras.state_dict()
    evicted, dtype = store.evicted, None if store.rows is None else dtypes.described(store.rows.dtype("logprobs"))
    if is_base:
        episodes, evicted = [], store.inserted - store.cleared
        kept, extras = (
            {name: np.zeros((0, *array.shape[1:]), array.dtype) for name, array in each.items()}
            for each in (kept, extras)
        )
    contents = [_PLAIN.encode(plain_names(episode)) for episode in episodes]
    return {
        "counters": {"appended": store.inserted, **store.counters(), "evicted": evicted},
        "policy_version": store.policy_version,
        "sequences": {"log_probability_dtype": dtype},
        "extras": {},
        "arrays": {
            **{f"sequences/{name}": array for name, array in kept.items()},
            **{f"extras/{name}": array for name, array in extras.items()},
            "episodes": np.frombuffer(b"".join(contents), np.uint8),
            "episode_end": np.cumsum([len(content) for content in contents], dtype=np.int64),
            "episode_drawn": np.array([store.was_drawn(episode) for episode in episodes], np.bool_),
            **of_draws.pop("arrays", {}),
            **of_queue,
        },
        **of_draws,
    }


def load(given: state_lib.StateReader, own: token_store.TokenStore) -> token_store.TokenStore:
    """Return a store like this one with the contents of a state.

    Raises:
        CheckpointError: The state is invalid.
    """
    store = token_store.TokenStore(
        own.max_tokens, own.token_extras, own.sequence_extras, own.allocate, own.logprobs_dtype
    )
    counters = given.part("counters")
    for name in token_store.COUNTERS:
        setattr(store, name, counters.integer(name))
    if given.value("policy_version") is not None:
        store.policy_version = given.integer("policy_version", most=validation.LARGEST)
    try:
        token_entry.fill(store, *_rows(given, counters.integer("appended"), store), *_names(given))
        token_checks.parents(store)
        if counters.integer("appended") != store.inserted:
            raise errors.CorruptionError(f"counters must be of a buffer that holds {len(store)} sequences")
        token_checks.store(store)
    except errors.CorruptionError as error:
        raise errors.CheckpointError(f"sequences cannot be: {error}") from error
    return store


def _rows(
    given: state_lib.StateReader, appended: int, store: token_store.TokenStore
) -> tuple[ragged.RaggedColumns | None, ragged.RaggedColumns | None]:
    """Return the sequences and the extras of their tokens; None if there is no dtype for log-probabilities."""
    of_extras, given = given.part("extras"), given.part("sequences")
    if given.value("log_probability_dtype") is None:
        return None, None
    dtype = npy.dtype_of(given.value("log_probability_dtype"))
    # numpy calls float64 equal to None.
    is_kept = dtype.isnative and (store.logprobs_dtype is None or store.logprobs_dtype == dtype)
    if dtype.type not in tokens.FLOATS or not is_kept:
        rule = f"{store.logprobs_dtype or 'one of floats'}"
        raise given.refused("log_probability_dtype", rule, given.value("log_probability_dtype"))
    first_key = store.evicted + store.cleared
    count = len(given.integers("lengths", None, 1, store.max_tokens))
    first_kept = appended - count  # Those before first_key are evicted, and others begin like them.
    if not 0 <= first_kept <= first_key <= appended:
        raise errors.CorruptionError(f"counters must be of a buffer that holds {count} sequences")
    options: dict[str, Any] = {"allocate": store.allocate}
    rows = ragged.RaggedColumns.from_state(
        given, store.max_tokens, *store.fields(dtype), first_key=first_kept, **options
    )
    rows.evict(first_key - first_kept, first_kept)
    given.booleans("rows/is_exact", count)
    extras = None
    if store.token_extras:
        extras = ragged.RaggedColumns.from_state(
            of_extras, token_entry.MOST_EXTRAS, store.token_extras, is_uneven=True, first_key=first_key, **options
        )
    for part, path, fields in (
        (of_extras, "extras/values", store.token_extras),
        (given, "sequences/rows", store.sequence_extras),
    ):
        for name in [name for name, field in fields.items() if field.dtype == np.bool_]:
            column = part.column(f"{path.partition('/')[2]}/{name}", np.bool_, (None, *fields[name].shape))
            for start, stop in state_lib.chunks(column.shape[0], column.shape[0] * fields[name].nbytes):
                if (column.read(start, stop).view(np.uint8) > 1).any():
                    raise errors.CheckpointError(f"array {path}/{name} must hold the bytes 0 and 1 alone")
    return rows, extras


def _names(given: state_lib.StateReader) -> tuple[list[dict[str, Any]], list[bool]]:
    """Return the names of the episodes, and whether each was sampled."""
    drawn = given.booleans("episode_drawn", None).tolist()
    ends = given.integers("episode_end", len(drawn), 0, state_lib.MOST).tolist()
    content = given.array("episodes", np.uint8, (max(ends, default=0),)).tobytes()
    return [checked_names(_PLAIN.decode(content[i:j])) for i, j in itertools.pairwise([0, *ends])], drawn


def plain_names(episode: facts.EpisodeFacts) -> tuple[Any, ...]:
    """Return the names of an episode as a tuple that a PlainCodec supports."""
    *names, mismatches = episode.names.values()
    return *names, tuple(each and dataclasses.astuple(each) for each in mismatches)


def checked_names(value: Any) -> dict[str, Any]:
    """Return the names of an episode, given the tuple, which is untrusted, or raise CheckpointError."""
    *names, (_, *others) = commands.checked("an episode is one", _CHECKS, value)
    mismatches: list[tokens.TokenMismatch | None] = [None]
    for each in others:
        step, position, expected, found = commands.checked("an episode is one", _OF_MISMATCH, each)
        mismatches.append(tokens.TokenMismatch(step=step, position=position, expected=expected, found=found))
    metadata_lib.decoded(names[-1])
    return dict(zip(facts.NAMES, (*names, tuple(mismatches)), strict=True))


def described(fields: Mapping[str, schema_lib.Field]) -> list[Any]:
    """Return the fields of extras as JSON values: a name, a dtype and a shape each."""
    return [[name, dtypes.described(field.dtype), list(field.shape)] for name, field in fields.items()]


def fields_of(given: state_lib.StateReader, name: str) -> dict[str, schema_lib.Field]:
    """Return the fields of extras from their description, which is untrusted, or raise CheckpointError."""
    fields: dict[str, schema_lib.Field] = {}
    rows = given.value(name)
    for row in rows if type(rows) is list else [rows]:
        match row:
            case [str(extra), dtype, list(shape)] if extra not in fields:
                try:
                    fields[extra] = schema_lib.Field(shape, npy.dtype_of(dtype))
                except (errors.ArgumentError, errors.CheckpointError) as error:
                    raise errors.CheckpointError(f"settings/{name} has an invalid field: {error}") from error
            case _:
                raise given.refused(name, "a list of a name, a dtype and a shape each", row)
    return fields
