"""What is in a buffer, as numbers to look at: asked of the buffer itself."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.buffers import column
from relive.common import arrays
from relive.episodes import buffer as episode_buffer
from relive.kernels import append

Values: TypeAlias = arrays.Floats
Contents: TypeAlias = dict[str, Values]
"""Numbers by what they are: of episodes in the order in which they began, of rows from the oldest to the newest.

A priority is NaN where a row may not be drawn.
"""


def of(buffer: object) -> Contents:
    """Return what is in a buffer of columns or of episodes; nothing of another one."""
    found: dict[str, npt.ArrayLike] = {}
    if isinstance(buffer, column.ColumnReplayBuffer) and buffer.schema is not None:
        found = _of_columns(buffer)
    elif isinstance(buffer, episode_buffer.EpisodeReplayBuffer):
        found = _of_episodes(buffer)
    return {name: np.asarray(values, np.float64) for name, values in found.items()}


def _of_columns(buffer: "column.ColumnReplayBuffer[Any]") -> dict[str, npt.ArrayLike]:
    history = buffer._store
    slots = history.alive_slots()
    episodes, first, row_episode, stored = np.unique(
        history.episodes_of(slots), return_index=True, return_inverse=True, return_counts=True
    )
    rewards = history.storage.read(slots, ["reward"])["reward"].astype(np.float64)
    returns = np.bincount(row_episode, rewards, minlength=len(episodes))
    lengths = history.lengths_of(episodes)
    has_ended = history.episodes[append.END][episodes] != append.OPEN
    order = np.argsort(first)
    found: dict[str, npt.ArrayLike] = {
        "episode lengths": lengths[order][has_ended[order]],
        "episode returns": returns[order][(has_ended & (stored == lengths))[order]],
        "rewards": rewards,
    }
    if buffer.has_priorities:
        keys = history.keys(slots)
        is_eligible = np.isin(keys, buffer.eligible_keys())
        priorities = np.full(len(keys), np.nan)
        priorities[is_eligible] = buffer.get_priorities(keys[is_eligible])
        found["priorities"] = priorities
    times_sampled = buffer._draws.times_sampled(slots)
    return found if times_sampled is None else found | {"times sampled": times_sampled}


def _of_episodes(buffer: "episode_buffer.EpisodeReplayBuffer[Any, Any]") -> dict[str, npt.ArrayLike]:
    episodes = list(buffer._store)
    ended = [episode for episode in episodes if episode.status in ("COMPLETED", "TRUNCATED")]
    return {
        "episode lengths": [len(episode.rewards) for episode in ended],
        "episode returns": [sum(episode.rewards) for episode in ended],
        "rewards": [reward for episode in episodes for reward in episode.rewards],
        "seconds open": list(buffer.get_stats().open_ages.values()),
    }
