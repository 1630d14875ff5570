"""What an episode is in a dataset of Minari, and what it is in a buffer of columns: both ways.

dataset    observations T + 1    actions T    rewards T    terminations T    truncations T    infos T + 1
           o0 o1 ... oT          a0 a1 ...    r0 r1 ...    at the last step, if anywhere      of the reset, i0 i1 ...
buffer     o0 o1 ... oT          a0 a1 ...    r0 r1 ...    COMPLETED or TRUNCATED             extras T: i0 i1 ...

A tuple of a dataset is a dict with the keys "0", "1" and so on in a buffer. An info "a/b" is the info b within a.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
from typing import Any, Literal, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import imports
from relive.common import trees
from relive.integrations import field_spaces
from relive.integrations import recording
from relive.integrations import spaces
from relive.integrations import stored_episodes
from relive.kernels import append
from relive.persistence import state
from relive.schema import schema as schema_lib

with imports.optional_dependency("minari"):
    from minari.data_collector import episode_buffer

Buffer: TypeAlias = "column.ColumnReplayBuffer[Any]"
DataFormat: TypeAlias = Literal["hdf5", "arrow", "parquet"]
Incomplete: TypeAlias = Literal["refuse", "as_sampled"]

_MOST_ROWS = 2**15
"""What Minari reads at once from Arrow and Parquet files: it takes a longer episode for several."""


# Out of a dataset.


@contextlib.contextmanager
def reading(dataset_id: str) -> Iterator[None]:
    """Raise ArgumentError where Minari cannot read a dataset in its block."""
    try:
        yield
    except errors.ArgumentError:
        raise
    except Exception as error:  # Whatever ails the files, and whichever library reads them, it is one line.
        raise errors.ArgumentError(f"dataset {dataset_id!r} cannot be read: {said(error)}") from error


def said(error: Exception) -> str:
    """Return on one line what an error of another library says, or of what kind it is."""
    return " ".join(str(error).split()) or type(error).__name__


def read_episodes(opened: Any, numbers: Any) -> Iterator[Any]:
    """Yield the episodes of those numbers.

    Raises:
        ArgumentError: One of them cannot be read, or is not there.
    """
    count = 0
    with reading(opened.id):
        for episode in opened.iterate_episodes(numbers):
            yield episode
            count += 1
    if count != len(numbers):
        raise errors.ArgumentError(f"dataset {opened.id!r} must have {len(numbers)} episodes to read, got {count}")


def first_episode(opened: Any) -> Any:
    """Return the first episode; None if there is none."""
    return next(read_episodes(opened, opened.episode_indices[:1])) if len(opened) else None


def infos_of(episode: Any) -> dict[str, Any]:
    """Return the infos of an episode as a tree: HDF5 has nested ones, the other formats have paths, or dicts."""
    return dict(trees.nested("infos", dict(_leaves("infos", getattr(episode, "infos", None) or {}))))


def _leaves(path: str, values: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is no tree in an info, with its path."""
    values = _unpacked(values)
    if not isinstance(values, Mapping):
        yield path, values
        return
    for key, part in values.items():
        yield from _leaves(f"{path}/{key}", part)


def _unpacked(values: Any) -> Any:
    """Return a tree for an array of dicts, as Minari reads it from Arrow and Parquet, and text for one of bytes.

    Bytes are what it reads of text from HDF5. Other objects, and arrays of several shapes, are returned as they are.
    """
    if not isinstance(values, np.ndarray) or values.dtype != object:
        return values
    kinds = set(map(type, values))
    with contextlib.suppress(ValueError):
        if kinds == {dict}:
            return {key: np.array([each[key] for each in values]) for key in values[0]}
        if kinds == {bytes}:
            return np.array([each.decode() for each in values])
    return values


def is_extra(name: str, values: Any) -> bool:
    """Return whether a schema can have an info as an extra of that name."""
    try:
        schema_lib.Schema.from_example([0], [0], [0.0], extras={name: values}, num_leading=1)
    except errors.ArgumentError:
        return False
    return True


def arguments_of(opened: Any, episode: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `add_episode` for an episode, apart from its end."""
    infos, extras = infos_of(episode) if names else {}, {}
    for extra, name in names.items():
        found: Any = infos
        for key in name.split("/"):
            found = recording.found(found if isinstance(found, Mapping) else {}, extra, key)
        extras[extra] = _of_steps(found, len(episode))
    return {
        "observations": spaces.tree_of(opened.observation_space, episode.observations),
        "actions": spaces.tree_of(opened.action_space, episode.actions),
        "rewards": episode.rewards,
        "extras": extras,
    }


def _of_steps(tree: Any, length: int) -> Any:
    """Return the infos of so many steps, without the one of the reset."""
    if isinstance(tree, Mapping):
        return {key: _of_steps(part, length) for key, part in tree.items()}
    return tree[1:] if np.shape(tree)[:1] == (length + 1,) else tree


# Into a dataset.


def check_fields(schema: schema_lib.Schema, data_format: DataFormat) -> None:
    """Raise ArgumentError unless Minari keeps every field to the last bit."""
    for path, field in schema.fields.items():
        if field.dtype.kind not in "biuf" or field.dtype.itemsize > 8 or not field.nbytes:
            rule = "must be of at least one bool, integer or float of at most 64 bits for Minari"
            raise errors.ArgumentError(f"{path} {rule}, got {field}")
        if data_format != "hdf5" and not field.dtype.isnative:
            rule = f"must have the byte order of this machine for {data_format}"
            raise errors.ArgumentError(f"{path} {rule}, got {field}")
        if data_format == "hdf5" and ("." in path.split("/") or "\0" in path):
            raise errors.ArgumentError(f"fields must have no key '.', and no zero byte in one, for hdf5, got {path!r}")


def check_episodes(buffer: Buffer, data_format: DataFormat, incomplete: Incomplete) -> None:
    """Raise ArgumentError unless every stored episode can be written."""
    history = buffer.history
    episodes, lengths = np.unique(history.episodes_of(history.alive_slots()), return_counts=True)
    if data_format != "hdf5" and lengths.max() >= _MOST_ROWS:
        raise errors.ArgumentError(
            f"episodes must have at most {_MOST_ROWS - 1} steps for Minari to read them from {data_format}, "
            f"got {lengths.max()}: say data_format='hdf5'"
        )
    unknown = episodes[~history.is_known(episodes)]
    if incomplete == "refuse" and len(unknown):
        raise errors.ArgumentError(
            f"to_dataset needs the observation after the newest step of every episode, and {len(unknown)} have none, "
            f"such as one of stream {history.episodes[append.STREAM][unknown].min()}: "
            "add steps with next_observation, or say incomplete='as_sampled'"
        )


def episodes_of(
    buffer: Buffer,
    chosen: Mapping[str, Any],
    data_format: DataFormat,
    facts: list[dict[str, int]],
    progress: state.Progress | None,
) -> Iterator[Any]:
    """Yield the episodes for Minari, and set of each its stream and its first step."""
    for stored in stored_episodes.stored_episodes(buffer, progress=progress):
        episode = stored if stored.has_final_observation else _as_sampled(stored)
        if not len(episode):
            continue
        facts.append({"stream": episode.stream, "start_step": episode.start_step})
        # Its annotations say lists, and it takes arrays.
        columns: dict[str, Any] = {
            "observations": field_spaces.value_of(chosen["observation"], episode.observations),
            "actions": field_spaces.value_of(chosen["action"], episode.actions),
            "rewards": episode.rewards,
            "terminations": episode.terminated,
            "truncations": episode.truncated,
            "infos": _infos(episode.extras, data_format),
        }
        yield episode_buffer.EpisodeBuffer(**columns)


def _as_sampled(episode: stored_episodes.StoredEpisode) -> stored_episodes.StoredEpisode:
    """Return an episode with the final observation that batches have; it has none."""
    if episode.status == "COMPLETED":
        return dataclasses.replace(episode, observations=_padded(episode.observations, slice(-1)))
    steps = slice(len(episode) - 1)
    return dataclasses.replace(
        episode,
        keys=episode.keys[steps],
        actions=trees.rows(episode.actions, steps),
        rewards=episode.rewards[steps],
        extras=trees.rows(episode.extras, steps),
    )


def _infos(extras: Mapping[str, Any], data_format: DataFormat) -> dict[str, Any]:
    """Return extras [T, ...] as infos by path [T + 1, ...], the first of which is that of the reset."""
    flat = trees.flat("extras", extras) if extras else {}
    infos = {path.removeprefix("extras/"): _padded(values, slice(1, None)) for path, values in flat.items()}
    if data_format == "hdf5":
        return infos
    # Minari does not read back from the other formats what it has written of arrays of one axis.
    return {path: list(values) if values.ndim == 1 else values for path, values in infos.items()}


def _padded(tree: Any, where: slice) -> Any:
    """Return a tree of arrays that have one row more, which is zeros; the others are `where` says."""
    if isinstance(tree, Mapping):
        return {key: _padded(part, where) for key, part in tree.items()}
    padded = np.zeros((len(tree) + 1, *tree.shape[1:]), tree.dtype)
    padded[where] = tree
    return padded
