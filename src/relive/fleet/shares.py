"""Combines draws of many shards into one with the distribution of a single buffer.

    weights         [30, 10, 0, 40]          how much there is in each shard
    probabilities   [3/8, 1/8, 0, 1/2]
    counts          [ 3,  1, 0,  4]          of a batch of 8: how many random numbers fall into the share of each
    parts           3 rows, 1 row, 4 rows    gathered in parallel, joined and shuffled

A row i of shard s is drawn with probability (m_s / M) (w_i / m_s) = w_i / M, that of one buffer with all rows.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from relive.agents import packing
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.fleet import adapter
from relive.samplers import prioritized

MOST_SHARDS = 512
"""A fleet has at most so many shards, ever: key x of shard s is key 512 x + s of the fleet."""


def probabilities(weights: Sequence[adapter.SamplingWeight]) -> list[float]:
    """Return the probability of each shard, m_s / M [k]; 0 for all if there is nothing to draw."""
    if not any(weight.weight > 0 for weight in weights):
        return [0.0] * len(weights)
    scale = max([weight.log_scale for weight in weights if weight.weight > 0])
    # Of an empty shard the scale says nothing.
    likely = [each.weight and each.weight * math.exp(each.log_scale - scale) for each in weights]
    # Divided by the largest first, since their sum could overflow.
    most = max(likely)
    likely = [each / most for each in likely]
    total = math.fsum(likely)
    return [each / total for each in likely]


def counts(probabilities: Sequence[float], points: arrays_lib.Floats) -> arrays_lib.Ints:
    """Return how many of the points [B], from 0 to 1, fall into the interval of each shard [k]."""
    if len(probabilities) == 1:
        return np.array([len(points)])
    shards = np.searchsorted(np.cumsum(probabilities)[:-1], points, side="right")
    return np.bincount(shards, minlength=len(probabilities))


def importance_weights(
    weights: Sequence[adapter.SamplingWeight],
    exponent: float,
    normalization: prioritized.WeightNormalization,
    drawn: arrays_lib.Floats,
) -> arrays_lib.Floats:
    """Return (N P_i)^-beta of rows drawn with probabilities P_i [B] (Schaul et al. 2016, section 3.4), normalized."""
    size = float(sum([weight.size for weight in weights]))
    if normalization != "buffer":
        return prioritized.importance_weights(drawn, size, exponent, normalization)
    # The least probability itself may round to 0.
    total, least = sum([weight.weight for weight in weights]), min([each.least for each in weights if each.weight])
    return prioritized.importance_weights(total * drawn, size, exponent, normalization, total=total, least=least)


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """The part of a draw from one shard, which has probability m_s / M: `count` of the `length` rows from `start`."""

    shard: int
    probability: float
    rows: Any
    start: int
    length: int
    count: int

    def of(self, column: Any) -> Any:
        """Return the rows of this part in a column of all of them."""
        return column[self.start : self.start + self.length]


def joined(parts: Sequence[Part], rng: np.random.Generator, padding: tuple[int, int] = (0, 1)) -> Any:
    """Join at least one part into a batch, or a list of samples, in random order, with keys of the fleet."""
    # One whole part is in random order already.
    order = None if len(parts) == 1 and parts[0].length == parts[0].count else _order(parts, rng)
    if isinstance(parts[0].rows, list):
        samples = [sample for part in parts for sample in part.of(part.rows)]
        chosen = samples if order is None else [samples[place] for place in order.tolist()]
        return [copies.copied(sample) for sample in chosen]  # Arrays from other processes may be read-only.
    if isinstance(parts[0].rows, packing.TokenBatch):
        batches = [part.rows._rows(np.arange(part.start, part.start + part.length), padding[1]) for part in parts]
        for part, batch in zip(parts, batches, strict=True):
            batch._rename_keys(MOST_SHARDS, part.shard)
            batch.probabilities = batch.probabilities * part.probability
        return batches[0] if order is None else joined_tokens(batches, order, padding)
    kind = type(parts[0].rows)
    columns = {name: [getattr(part.rows, name) for part in parts] for name in kind.__dataclass_fields__}
    for name in columns.keys() & {"keys", "episodes"}:
        columns[name] = [getattr(part.rows, name) * MOST_SHARDS + part.shard for part in parts]
    columns["probabilities"] = [part.rows.probabilities * part.probability for part in parts]
    return kind(**{name: _taken(column, parts, order) for name, column in columns.items()})


def by_shard(keys: arrays_lib.Ints) -> dict[int, arrays_lib.Ints]:
    """Return the positions in `keys` [B] of each shard's keys, for the shards that have any."""
    shards = keys % MOST_SHARDS
    return {int(shard): np.flatnonzero(shards == shard) for shard in np.unique(shards)}


def _order(parts: Sequence[Part], rng: np.random.Generator) -> arrays_lib.Ints:
    """Return which rows of all parts [sum of their lengths] to take [B], in random order."""
    places, start = [], 0
    for part in parts:
        is_whole = part.count == part.length
        places.append(start + (np.arange(part.count) if is_whole else rng.permutation(part.length)[: part.count]))
        start += part.length
    return rng.permutation(np.concatenate(places))


def _taken(columns: list[Any], parts: Sequence[Part], order: arrays_lib.Ints | None) -> Any:
    """Join the parts of trees of arrays, and take rows in that order; None for one part, copied if it is read-only.

    An agent that a shard has never seen is absent in its rows: None stands for zeros.
    """
    known = [column for column in columns if column is not None]
    if isinstance(known[0], dict):
        names = dict.fromkeys(name for column in sorted(known, key=len, reverse=True) for name in column)
        fields = {name: [None if column is None else column.get(name) for column in columns] for name in names}
        return {name: _taken(column, parts, order) for name, column in fields.items()}
    if dataclasses.is_dataclass(known[0]):
        kind: Any = type(known[0])
        names = kind.__dataclass_fields__
        fields = {name: [None if column is None else getattr(column, name) for column in columns] for name in names}
        return kind(**{name: _taken(column, parts, order) for name, column in fields.items()})
    nothing = known[0][:0]
    pieces = [
        np.zeros((part.length, *nothing.shape[1:]), nothing.dtype) if column is None else part.of(column)
        for part, column in zip(parts, columns, strict=True)
    ]
    if order is not None:
        return np.concatenate(pieces).take(order, axis=0)
    return pieces[0] if pieces[0].flags.writeable else pieces[0].copy()


def joined_tokens(
    batches: Sequence[packing.TokenBatch[arrays_lib.Array]], order: arrays_lib.Ints, padding: tuple[int, int]
) -> packing.TokenBatch[arrays_lib.Array]:
    """Join batches of tokens, and take rows in that order."""
    columns = [batch._columns() for batch in batches]
    of_rows = ("keys", "prefix_ids", "prefix_lengths", "probabilities", "weights", "returns", "is_exact")
    lists = ("episode_ids", "agent_ids", "group_ids", "mismatches")
    whole = packing.TokenBatch.of(
        {name: np.concatenate([each[name] for each in columns]) for name in columns[0]},
        np.concatenate([batch.lengths for batch in batches]),
        {
            name: np.concatenate([batch.extras[name] for batch in batches])
            for name, column in batches[0].extras.items()
            if column.ndim == 1
        },
        padding,
        **{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in of_rows},
        metadata=tuple(each for batch in batches for each in batch.metadata),
        **{name: [each for batch in batches for each in getattr(batch, name)] for name in lists},
    )
    return whole._rows(order, padding[1])
