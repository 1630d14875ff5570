"""Combines draws of many shards into one with the distribution of a single buffer.

    masses    [30, 10, 0, 40]          how much there is in each shard
    counts    [ 3,  1, 0,  4]          of a batch of 8: a multinomial draw, as of episodes within a buffer
    parts     3 rows, 1 row, 4 rows    gathered in parallel, joined and shuffled

A row i of shard s is drawn with probability (m_s / M) (w_i / m_s) = w_i / M, that of one buffer with all rows.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from relive.common import arrays
from relive.common import copies
from relive.fleet import port
from relive.samplers import prioritized


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Importance:
    """How to compute the importance weights of a batch; see PrioritizedSampler.

    Attributes:
        exponent: beta.
        normalization: What they are divided by.
        size: N, the number of eligible anchors in all shards.
        least: The smallest probability of one of them.
    """

    exponent: float
    normalization: prioritized.WeightNormalization
    size: int
    least: float

    def weights(self, probabilities: arrays.Floats) -> arrays.Floats:
        """Return (N P_i)^-beta [B] (Schaul et al. 2016, section 3.4), divided by the largest or by 1."""
        if self.normalization == "none":
            return (self.size * probabilities) ** -self.exponent
        least = probabilities.min() if self.normalization == "batch" else self.least
        return (probabilities / least) ** -self.exponent


def of(masses: Sequence[port.Mass]) -> arrays.Floats:
    """Return the share of each shard in the total mass, m_s / M [k]; at least one must be above 0."""
    scales = np.array([mass.log_scale if mass.weight > 0 else -np.inf for mass in masses])
    weights = np.array([mass.weight for mass in masses]) * np.exp(scales - scales.max())
    # Divided by the largest first, since their sum could overflow.
    weights /= weights.max()
    answer: arrays.Floats = weights / weights.sum()
    return answer


def importance(
    masses: Sequence[port.Mass], exponent: float, normalization: prioritized.WeightNormalization
) -> Importance:
    """Return how to compute the importance weights of a batch drawn from shards with those masses."""
    likely = [(share, mass) for share, mass in zip(of(masses).tolist(), masses, strict=True) if mass.weight > 0]
    return Importance(
        exponent=exponent,
        normalization=normalization,
        size=sum([mass.size for mass in masses]),
        least=min([share * (mass.least / mass.weight) for share, mass in likely]),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """The part of a draw from one shard.

    Attributes:
        shard: Its number.
        share: Its share of the total mass, m_s / M.
        rows: A batch, or a list of samples.
    """

    shard: int
    share: float
    rows: Any


def joined(parts: Sequence[Part], num_shards: int, importance: Importance | None, rng: np.random.Generator) -> Any:
    """Join the parts into one batch, in random order, with keys of the fleet.

    Args:
        parts: At least one.
        num_shards: Number of shards, k: key x of shard s becomes x k + s.
        importance: How to compute importance weights; None to keep them.
        rng: Shuffles.
    """
    order = rng.permutation(sum(len(part.rows) for part in parts))
    if isinstance(parts[0].rows, list):
        # Arrays from other processes may be read-only.
        samples = [copies.copied(sample) for part in parts for sample in part.rows]
        return [samples[place] for place in order.tolist()]
    kind = type(parts[0].rows)
    columns = {name: [getattr(part.rows, name) for part in parts] for name in _names(kind)}
    columns["keys"] = [part.rows.keys * num_shards + part.shard for part in parts]
    columns["probabilities"] = [part.rows.probabilities * part.share for part in parts]
    batch = kind(**{name: _shuffled(column, order) for name, column in columns.items()})
    if importance is not None:
        batch.weights = importance.weights(batch.probabilities)
    return batch


def by_shard(keys: arrays.Ints, num_shards: int) -> dict[int, arrays.Ints]:
    """Return the positions in `keys` [B] of each shard's keys, for the shards that have any."""
    shards = keys % num_shards
    return {int(shard): np.flatnonzero(shards == shard) for shard in np.unique(shards)}


def _names(kind: type[Any]) -> list[str]:
    """Return the names of a batch's fields."""
    return [field.name for field in dataclasses.fields(kind)]


def _shuffled(parts: list[Any], order: arrays.Ints) -> Any:
    """Concatenate trees of arrays [B_i, ...] into one [B, ...], in the given order."""
    if isinstance(parts[0], dict):
        return {name: _shuffled([part[name] for part in parts], order) for name in parts[0]}
    return np.concatenate(parts).take(order, axis=0)
