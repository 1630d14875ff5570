"""Steps as columns, one value a step: what a data frame and a Parquet file name alike.

key stream episode step terminated truncated status | observation action reward extras/...
marks: where a step belongs                         | fields, by path: what the schema says
"""

from typing import Any

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.integrations import stored_episodes
from relive.schema import schema as schema_lib

MARKS: dict[str, np.dtype[Any]] = {
    "key": np.dtype(np.int64),
    "stream": np.dtype(np.int64),
    "episode": np.dtype(np.int64),
    "step": np.dtype(np.int64),
    "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
}
"""The marks that are numbers, and their dtypes; the status of the episode is a text."""

STATUSES: tuple[stored_episodes.StoredStatus, ...] = ("IN_PROGRESS", "COMPLETED", "TRUNCATED")
"""What a status can be."""


def known_schema(call: str, buffer: object) -> schema_lib.Schema:
    """Return what a step of a buffer holds.

    Raises:
        ArgumentTypeError: It is no buffer of columns.
        NotReadyError: No step has said so yet.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    schema: schema_lib.Schema | None = getattr(buffer, "schema", None)
    if schema is None:
        raise errors.NotReadyError(f"{call} has no columns: no step has said what a step holds, so add one first")
    return schema


def marks(episode: stored_episodes.StoredEpisode) -> dict[str, arrays.Array]:
    """Return the marks of the steps of an episode [T], by name; an episode is called by its first key."""
    steps = np.arange(episode.start_step, episode.start_step + len(episode))
    return {
        "key": episode.keys,
        "stream": np.full(len(episode), episode.stream),
        "episode": np.full(len(episode), episode.keys[0]),
        "step": steps,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
    }


def fields(episode: stored_episodes.StoredEpisode) -> dict[str, arrays.Array]:
    """Return the fields of the steps of an episode by path [T, ...], without the observation after the last one."""
    columns = {path: array[: len(episode)] for path, array in trees.flat("observation", episode.observations).items()}
    columns |= trees.flat("action", episode.actions)
    columns["reward"] = episode.rewards
    return columns | (trees.flat("extras", episode.extras) if episode.extras else {})


def next_observations(episode: stored_episodes.StoredEpisode) -> dict[str, arrays.Array]:
    """Return the observations after the steps of an episode by path [T, ...], [T - 1, ...] without the last one."""
    return {path: array[1:] for path, array in trees.flat("observation", episode.observations).items()}


def final_observation(episode: stored_episodes.StoredEpisode) -> dict[str, arrays.Array]:
    """Return the last observation of an episode by path [1, ...]."""
    return {path: array[-1:] for path, array in trees.flat("observation", episode.observations).items()}
