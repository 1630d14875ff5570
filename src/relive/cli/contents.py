"""What is in a buffer, as numbers and images to look at: asked of the buffer itself."""

from collections.abc import Iterator
import itertools
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
Image: TypeAlias = npt.NDArray[np.uint8]

_LEAST_SIDE = 8
_MOST_SIDE = 512
_MOST_PIXELS = 1 << 24
_MOST_IMAGES = 24


def of(buffer: object) -> Contents:
    """Return what is in a buffer of columns or of episodes; nothing of another one."""
    found: dict[str, npt.ArrayLike] = {}
    if isinstance(buffer, column.ColumnReplayBuffer) and buffer.schema is not None:
        found = _of_columns(buffer)
    elif isinstance(buffer, episode_buffer.EpisodeReplayBuffer):
        found = _of_episodes(buffer)
    return {name: np.asarray(values, np.float64) for name, values in found.items()}


def _of_columns(buffer: "column.ColumnReplayBuffer[Any]") -> dict[str, npt.ArrayLike]:
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


def images(buffer: object, count: int) -> Iterator[tuple[str, Image]]:
    """Yield what are images among so many observations at random, the same at each call: a title, and [H, W, 3]."""
    found = ((title, image_of(value)) for title, value in _observations(buffer, count))
    return itertools.islice(((title, image) for title, image in found if image is not None), _MOST_IMAGES)


def _observations(buffer: object, count: int) -> Iterator[tuple[str, Any]]:
    """Yield observations, or the values in those that are dicts, and what they are."""
    if isinstance(buffer, column.ColumnReplayBuffer) and buffer.schema is not None:
        slots = buffer.history.alive_slots()
        rows = _some(len(slots), count)
        fields = buffer.history.storage.read(slots[rows], buffer.schema.observation_paths)
        for path, values in fields.items():
            yield from ((f"{path}, row {row:,}", value) for row, value in zip(rows, values, strict=True))
    elif isinstance(buffer, episode_buffer.EpisodeReplayBuffer):
        stored = [observation for episode in buffer._store for observation in episode.observations]
        for place in _some(len(stored), count):
            observation = stored[place]
            yield f"observation {place:,}", observation
            if isinstance(observation, dict):
                yield from ((f"observation {place:,}, {name}", value) for name, value in observation.items())


def _some(rows: int, count: int) -> list[int]:
    """Return the numbers of at most `count` rows, in order."""
    rng = np.random.default_rng(0)
    return sorted(rng.choice(rows, min(rows, count), replace=False, shuffle=False).tolist()) if rows else []


def image_of(value: Any) -> Image | None:
    """Return an array of bytes as an image [H, W, 3]: one of [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels.

    Three channels are colours; four are more often the newest frames of a game than red, green, blue and opacity, and
    are put side by side. A large image loses rows and columns. Anything else is none.
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or not 2 <= value.ndim <= 3:
        return None
    planes = value[..., np.newaxis] if value.ndim == 2 else value
    if planes.shape[2] not in (1, 3, 4):
        planes = np.moveaxis(planes, 0, 2)
    if planes.shape[2] not in (1, 3, 4) or min(planes.shape[:2]) < _LEAST_SIDE or value.size > _MOST_PIXELS:
        return None
    step = -(-max(planes.shape[:2]) // _MOST_SIDE)
    planes = planes[::step, ::step]
    if planes.shape[2] == 3:
        return planes
    grey = np.concatenate(list(np.moveaxis(planes, 2, 0)), axis=1)
    return np.stack([grey] * 3, axis=2)
