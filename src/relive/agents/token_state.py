"""The checkpointed state of a token buffer: its sequences, oldest first, and their sources.

    sequences/lengths          9                 3          [S]
    sequences/values/tokens    1 5 6 7 2 9 9 8 2 4 4 3      and the other fields of a token [N]
    sequences/rows/returns     1.0               0.5        and the other fields of a sequence [S]
    sources                    c c c c           c c        bytes, as a PlainCodec writes a source, one after another
    source_ends                4                 6          [S]

Their positions in the ring are not saved.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np

from relive import errors
from relive.agents import packing
from relive.agents import tokens
from relive.common import validation
from relive.persistence import codec as codec_lib
from relive.persistence import dtypes
from relive.persistence import npy
from relive.persistence import state as state_lib
from relive.storage import ragged

COUNTERS = ("episodes", "inexact_episodes", "appended", "evicted", "cleared", "sampled")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenState:
    """The state of a buffer.

    Attributes:
        rows: Its sequences; None if no episode was ever added.
        sources: The source of each, by key, oldest first.
        policy_version: The policy version, if it was set.
        counters: The counters, by name.
    """

    rows: ragged.RaggedColumns | None
    sources: dict[int, tokens.SequenceSource]
    policy_version: int | None
    counters: Mapping[str, int]

    def state(self) -> state_lib.State:
        """Return it as JSON values and arrays."""
        rows = self.rows
        dtype = None if rows is None else dtypes.described(rows.dtype("logprobs"))
        codec = codec_lib.PlainCodec()
        contents = [codec.encode(_plain(source)) for source in self.sources.values()]
        kept = {} if rows is None else {f"sequences/{name}": array for name, array in rows.state().items()}
        return {
            "counters": dict(self.counters),
            "policy_version": self.policy_version,
            "sequences": {"log_probability_dtype": dtype},
            "arrays": {
                **kept,
                "sources": np.frombuffer(b"".join(contents), np.uint8),
                "source_ends": np.cumsum([len(content) for content in contents], dtype=np.int64),
            },
        }

    @classmethod
    def of(cls, given: state_lib.StateReader, max_tokens: int) -> "TokenState":
        """Validate and return the state, for a buffer of that many tokens.

        Raises:
            CheckpointError: The state is invalid.
        """
        version = None if given.value("policy_version") is None else given.integer("policy_version")
        counters = {name: given.part("counters").integer(name) for name in COUNTERS}
        rows = _rows(given.part("sequences"), counters, max_tokens)
        held = 0 if rows is None else len(rows)
        is_sound = (
            counters["appended"] == counters["evicted"] + counters["cleared"] + held
            and counters["inexact_episodes"] <= counters["episodes"]
            and counters["episodes"] + counters["inexact_episodes"] <= counters["appended"]
            and (rows is None) == (counters["appended"] == 0)
        )
        if not is_sound:
            raise errors.CheckpointError(f"counters must be of a buffer that holds {held} sequences")
        return cls(rows=rows, sources=_sources(given, rows), policy_version=version, counters=counters)


def _rows(given: state_lib.StateReader, counters: Mapping[str, int], max_tokens: int) -> ragged.RaggedColumns | None:
    """Return the sequences; None if there is no dtype for them."""
    if given.value("log_probability_dtype") is None:
        return None
    dtype = npy.dtype_of(given.value("log_probability_dtype"))
    if dtype.type not in tokens.FLOATS or not dtype.isnative:
        raise given.refused("log_probability_dtype", "one of floats", given.value("log_probability_dtype"))
    lengths = given.integers("lengths", None, 1, max_tokens)
    total = sum(lengths.tolist())
    if total > max_tokens:
        raise errors.CheckpointError(
            f"array sequences/lengths must sum to at most max_tokens = {max_tokens}, got {total}"
        )
    arrays: dict[str, state_lib.ChunkedArray] = {"lengths": given.column("lengths", np.int64, (len(lengths),))}
    for name, kind in (*packing.FIELDS.items(), ("logprobs", dtype)):
        arrays[f"values/{name}"] = given.column(f"values/{name}", kind, (total,))
    for name, kind in packing.SEQUENCE_FIELDS.items():
        arrays[f"rows/{name}"] = given.column(f"rows/{name}", kind, (len(lengths),))
    given.booleans("rows/is_exact", len(lengths))
    if np.isnan(given.array("rows/returns", np.float64, (len(lengths),))).any():
        raise errors.CheckpointError("array sequences/rows/returns must hold no NaN")
    try:
        rows = packing.new(max_tokens, dtype)
        rows.fill(max(counters["appended"] - len(lengths), 0), arrays)
        packing.check(rows)
    except (MemoryError, ValueError) as error:
        raise errors.CheckpointError(f"there is no memory for the tokens: {error}") from error
    except errors.CorruptionError as error:
        raise errors.CheckpointError(f"sequences cannot be: {error}") from error
    return rows


def _sources(given: state_lib.StateReader, rows: ragged.RaggedColumns | None) -> dict[int, tokens.SequenceSource]:
    """Return the source of each sequence, by key."""
    first_key, count = (0, 0) if rows is None else (rows.first_key, len(rows))
    ends = given.integers("source_ends", count, 0, state_lib.MOST)
    content = given.array("sources", np.uint8, (int(ends[-1]) if count else 0,)).tobytes()
    codec = codec_lib.PlainCodec()
    sources = {}
    begin = 0
    for key, end in enumerate(ends.tolist(), first_key):
        sources[key] = _source(codec.decode(content[begin:end]))
        begin = end
    return sources


def _plain(source: tokens.SequenceSource) -> tuple[Any, ...]:
    mismatch = None if source.mismatch is None else dataclasses.astuple(source.mismatch)
    return source.episode_id, source.agent_id, source.group_id, mismatch


def _source(value: Any) -> tokens.SequenceSource:
    if type(value) is tuple and len(value) == 4:
        *names, mismatch = value
        is_mismatch = mismatch is None or (
            type(mismatch) is tuple
            and len(mismatch) == 4
            and all(type(number) is int and number >= 0 for number in mismatch[:3])
            and (mismatch[3] is None or (type(mismatch[3]) is int and mismatch[3] >= 0))
        )
        if [type(name) for name in names[:2]] == [str, str] and type(names[2]) in (str, type(None)) and is_mismatch:
            return tokens.SequenceSource(
                episode_id=names[0],
                agent_id=names[1],
                group_id=names[2],
                mismatch=None
                if mismatch is None
                else tokens.TokenMismatch(
                    step=mismatch[0], position=mismatch[1], expected=mismatch[2], found=mismatch[3]
                ),
            )
    raise errors.CheckpointError(f"a source must be three names and a mismatch, got {validation.short_repr(value)}")
