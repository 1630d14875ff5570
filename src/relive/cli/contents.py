"""What is in a buffer, as numbers and images to look at: asked of the buffer itself."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffers import column
from relive.cli import distribution
from relive.cli import frames as frames_lib
from relive.common import arrays
from relive.episodes import buffer as episode_buffer
from relive.kernels import append

_MOST_GROUPS, _LEAST_ROWS = 50, 10
"""How many groups of rows there are at most, and how many rows are in each at least, if there are so many."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """What is in a buffer; nothing of one that is not known, or was not made.

    Attributes:
        distributions: Of lengths and returns in the order in which the episodes began, and of what each row has.
        by_age: Means over groups of rows of about one age, the newest first [groups].
        frames: Observations that are images, if some were asked for.
    """

    distributions: dict[str, distribution.Distribution] = dataclasses.field(default_factory=dict)
    by_age: dict[str, arrays.Floats] = dataclasses.field(default_factory=dict)
    frames: list[frames_lib.Frame] = dataclasses.field(default_factory=list)


def of(buffer: object, num_frames: int = 0) -> Contents:
    """Return what is in a buffer of columns or of episodes, with so many frames of each field at most."""
    if isinstance(buffer, column.ColumnReplayBuffer) and buffer.schema is not None:
        return _of_columns(buffer, num_frames)
    if isinstance(buffer, episode_buffer.EpisodeReplayBuffer):
        return _of_episodes(buffer, num_frames)
    return Contents()


def _of_columns(buffer: "column.ColumnReplayBuffer[Any]", num_frames: int) -> Contents:
    history = buffer.history
    slots = history.alive_slots()
    episodes, first, row_episode, stored = np.unique(
        history.episodes_of(slots), return_index=True, return_inverse=True, return_counts=True
    )
    rewards = history.storage.read(slots, ["reward"])["reward"].astype(np.float64)
    returns = np.bincount(row_episode, rewards, minlength=len(episodes))
    lengths = history.lengths_of(episodes)
    has_ended = history.episodes[append.END][episodes] != append.OPEN
    order = np.argsort(first)
    distributions = {
        "episode_lengths": _spread(lengths[order][has_ended[order]]),
        "episode_returns": _spread(returns[order][(has_ended & (stored == lengths))[order]]),
        "rewards": _spread(rewards),
    }
    per_row: dict[str, npt.NDArray[Any]] = {}
    if buffer.has_priorities:
        keys = history.keys(slots)
        is_eligible = np.isin(keys, buffer.eligible_keys())
        per_row["priorities"] = np.full(len(keys), np.nan)
        per_row["priorities"][is_eligible] = buffer.get_priorities(keys[is_eligible])
    times_sampled = buffer._draws.times_sampled(slots)
    if times_sampled is not None:
        per_row["times_sampled"] = times_sampled
    distributions |= {name: _spread(values) for name, values in per_row.items()}
    return Contents(
        distributions=distributions | {"ages": _spread(np.arange(len(slots)))},
        by_age={name: _means_by_age(values) for name, values in per_row.items()},
        frames=frames_lib.of_columns(buffer, num_frames),
    )


def _of_episodes(buffer: "episode_buffer.EpisodeReplayBuffer[Any, Any]", num_frames: int) -> Contents:
    episodes = list(buffer._store)
    ended = [episode for episode in episodes if episode.status in ("COMPLETED", "TRUNCATED")]
    found = {
        "episode_lengths": [len(episode.rewards) for episode in ended],
        "episode_returns": [sum(episode.rewards) for episode in ended],
        "rewards": [reward for episode in episodes for reward in episode.rewards],
        "open_seconds": list(buffer.get_stats().open_ages.values()),
    }
    return Contents(
        distributions={name: _spread(np.array(values)) for name, values in found.items()},
        frames=frames_lib.of_objects([each for episode in episodes for each in episode.observations], num_frames),
    )


def _spread(values: npt.NDArray[Any]) -> distribution.Distribution:
    return distribution.of([values], len(values))


def _means_by_age(values: npt.NDArray[Any]) -> arrays.Floats:
    """Return the means over groups of rows that were added one after another, the newest first [groups]."""
    rows = len(values)
    groups = min(_MOST_GROUPS, -(-rows // _LEAST_ROWS))
    group = (rows - 1 - np.arange(rows)) * groups // max(rows, 1)
    is_finite = np.isfinite(values)
    counts = np.bincount(group[is_finite], minlength=groups)
    sums = np.bincount(group[is_finite], values[is_finite], minlength=groups)
    means: arrays.Floats = np.full(groups, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
