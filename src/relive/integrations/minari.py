"""Minari: import and export of datasets, bit for bit.

schema = schema_of("pendulum/expert-v0")
buffer = relive.RingReplayBuffer(1_000_000, schema)
add_dataset(buffer, "pendulum/expert-v0")                  a dataset into a buffer
to_dataset(buffer, "pendulum/mine-v0", env="Pendulum-v1")  and a buffer into a dataset

dataset    observations T + 1    actions T    rewards T    ends       infos T + 1
           o0 o1 ... oT          a0 a1 ...    r0 r1 ...    or none    of the reset, i0 i1 ...
buffer     o0 o1 ... oT          a0 a1 ...    r0 r1 ...    a status   extras T: i0 i1 ...

A tuple in a dataset is a dict with the keys "0", "1" and so on in a buffer. An info "a/b" is the info b within a.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
import contextlib
import shutil
from typing import Any, Literal, TypeAlias
import warnings

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations import step_columns
from relive.integrations import stored_episodes
from relive.integrations.gymnasium import recording
from relive.integrations.gymnasium import spaces
from relive.persistence import state
from relive.schema import schema as schema_lib

with imports.optional_dependency("minari"):
    import gymnasium
    from gymnasium.envs import registration
    import minari
    from minari.data_collector import episode_buffer
    from minari.dataset import minari_dataset
    from minari.storage import datasets_root_dir

Buffer: TypeAlias = "column.ColumnReplayBuffer[Any]"
Dataset: TypeAlias = "minari.MinariDataset | str"
"""A dataset, or the id of one that is on this machine."""
Environment: TypeAlias = "gymnasium.Env[Any, Any] | registration.EnvSpec | str"
Names: TypeAlias = Mapping[str, str]

_FORMATS = ("hdf5", "arrow", "parquet")
_MOST_ROWS = 2**15
"""What Minari reads at once from Arrow and Parquet files: it takes a longer episode for several."""
_ADVICE = "`.*` is set to None|env_spec is None"
"""What Minari warns of where a dataset is not described as one that is to be published should be."""


# Reading.


def infos_of(dataset: Dataset) -> dict[str, str]:
    """Return the infos in the first episode of a dataset, as a mapping for `infos`, under their own names.

    Infos that a schema cannot hold are omitted: those that are not arrays of numbers or text, and those named like an
    argument of `add`, such as reward.

    Raises:
        ArgumentError: The dataset does not exist or cannot be read.
    """
    names = {}
    for episode in _episodes(_opened(dataset), 1):
        for name, values in _infos_of(episode).items():
            with contextlib.suppress(errors.ArgumentError):
                schema_lib.Schema.from_example([0], [0], [0.0], extras={name: values}, num_leading=1)
                names[name] = name
    return names


def schema_of(
    dataset: Dataset, *, infos: Names | None = None, fields: Iterable[str] | None = None
) -> schema_lib.Schema:
    """Return the schema for the steps of a dataset, with the dtypes of its first episode.

    Args:
        dataset: The dataset.
        infos: Maps names of extras to names of infos; "a/b" is the info b within a. Text is as wide as the longest in
            the first episode.
        fields: Paths of what is taken of observations and actions, such as "action" or "observation/position"; None for
            all. It leaves out what a schema cannot hold, such as a text in a Dict.

    Raises:
        ArgumentError: The dataset does not exist or cannot be read, its spaces are not supported, it has no such field,
            or its first episode lacks an info.
        SchemaError: An extra would not be an array.
    """
    opened, names = _opened(dataset), recording.checked_infos(infos)
    taken = _taken(opened, fields)
    schema = schema_lib.Schema(*[_fields_of(f"{name}_space", space) for name, space in taken.items()])
    for episode in _episodes(opened, 1):
        columns, extras = _columns_of(opened, taken, episode), _extras_of(episode, names)
        schema = schema_lib.Schema.from_example(*columns, extras=extras or None, num_leading=1)
    return schema


def add_dataset(
    buffer: Buffer,
    dataset: Dataset,
    *,
    infos: Names | None = None,
    fields: Iterable[str] | None = None,
    progress: state.Progress | None = None,
) -> int:
    """Add every episode of a dataset to stream 0 of a buffer, and return the number of steps added.

    An episode that neither terminates nor is truncated is truncated, since its continuation is unknown. One that does
    both terminates. The infos of resets belong to no step and are not stored.

    Args:
        buffer: The buffer to add to.
        dataset: The dataset.
        infos: As in `schema_of`.
        fields: As in `schema_of`.
        progress: Called after each episode with the number of bytes added so far and the total.

    Raises:
        ArgumentError: The dataset does not exist, or its steps exceed the capacity. Or an episode cannot be read, ends
            twice, or lacks an info: those before it stay in the buffer.
        SchemaError: A field of an episode does not fit; earlier episodes stay in the buffer.
        NotReadyError: The limiter holds inserts back; earlier episodes stay in the buffer.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    state.check_progress(progress)
    opened, names = _opened(dataset), recording.checked_infos(infos)
    taken = _taken(opened, fields)
    with _minari(opened.id, "read"):
        total, added = opened.total_steps, 0
    if total > buffer.capacity:
        raise errors.ArgumentError(f"dataset must have at most capacity = {buffer.capacity} steps, got {total}")
    for episode in _episodes(opened):
        for row in np.flatnonzero((episode.terminations | episode.truncations)[:-1])[:1]:
            raise errors.ArgumentError(f"episode {episode.id} must end at its last step alone, got an end at row {row}")
        columns, extras = _columns_of(opened, taken, episode), _extras_of(episode, names)
        try:
            buffer.add_episode(*columns, terminated=bool(episode.terminations[-1]), **extras)
        except errors.ArgumentError as error:
            raise type(error)(f"episode {episode.id}: {error}") from error
        added += len(episode)
        if progress is not None and buffer.schema is not None:
            progress(added * buffer.schema.nbytes, total * buffer.schema.nbytes)
    if added != total:
        raise errors.ArgumentError(f"dataset {opened.id!r} must have {total} steps to read, got {added}")
    return added


@contextlib.contextmanager
def _minari(dataset_id: str, done: str) -> Iterator[None]:
    """Turn any failure of Minari in the block into a one-line ArgumentError."""
    try:
        yield
    except errors.ReplayError:
        raise
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise errors.ArgumentError(f"dataset {dataset_id!r} cannot be {done}: {said}") from error


def _opened(dataset: Any) -> Any:
    """Return the dataset, given itself or its id."""
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, str):
        rule = "dataset must be a MinariDataset or the id of one"
        raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(dataset)}")
    with _minari(dataset, "read"):
        try:
            return minari.load_dataset(dataset)
        except FileNotFoundError as error:
            remedy = f"`minari download {dataset}` fetches one that is published"
            raise errors.ArgumentError(f"dataset {dataset!r} not found: {remedy}") from error


def _episodes(opened: Any, most: int | None = None) -> Iterator[Any]:
    """Yield the episodes, or the first ones of them."""
    numbers, count = opened.episode_indices[:most], 0
    with _minari(opened.id, "read"):
        for episode in opened.iterate_episodes(numbers):
            yield episode
            count += 1
    if count != len(numbers):
        raise errors.ArgumentError(f"dataset {opened.id!r} must have {len(numbers)} episodes to read, got {count}")


def _taken(opened: Any, fields: Iterable[str] | None) -> "dict[str, spaces.Space]":
    """Return the spaces of observations and actions without what `fields` leave out: Dicts, where tuples are parts."""
    whole = {"observation": opened.observation_space, "action": opened.action_space}
    if fields is None:
        return whole
    wanted, known = [path for path in step_columns.paths_of(fields) if path != "reward"], dict[str, spaces.Space]()
    taken = {name: _part(name, space, wanted, known) for name, space in whole.items()}
    step_columns.require_known(wanted, known)
    for name, space in taken.items():
        if space is None:
            raise errors.ArgumentError(f"fields must hold {name} or a part of it, got {validation.short_repr(wanted)}")
    return taken


def _part(path: str, space: Any, wanted: Collection[str], known: "dict[str, spaces.Space]") -> Any:
    """Return the parts of a space with wanted paths, None if there is none; and note all paths in `known`."""
    known[path] = space
    named = getattr(space, "spaces", None)
    if isinstance(named, tuple):
        named = {str(number): part for number, part in enumerate(named)}
    parts = {key: _part(f"{path}/{key}", part, wanted, known) for key, part in (named or {}).items()}
    if path in wanted:
        return space
    kept = {key: part for key, part in parts.items() if part is not None}
    return gymnasium.spaces.Dict(kept) if kept else None


def _fields_of(name: str, space: "spaces.Space") -> Any:
    """Return the fields of a space; where a part of it has none, the error says what leaves that out."""
    try:
        return spaces.fields_of(name, space)
    except errors.ArgumentError as error:
        raise type(error)(f"{error}{': fields= leaves it out' if hasattr(space, 'spaces') else ''}") from error


def _columns_of(opened: Any, taken: "Mapping[str, spaces.Space]", episode: Any) -> tuple[Any, Any, arrays_lib.Array]:
    """Return what is taken of the observations and the actions of an episode, and the rewards."""
    observations = spaces.tree_of(opened.observation_space, episode.observations)
    actions = spaces.tree_of(opened.action_space, episode.actions)
    return _tree(taken["observation"], observations), _tree(taken["action"], actions), episode.rewards


def _tree(space: Any, tree: Any) -> Any:
    """Return the parts of a tree that a Dict space has."""
    if not isinstance(space, gymnasium.spaces.Dict) or not isinstance(tree, Mapping):
        return tree
    return {key: _tree(part, tree[key]) for key, part in space.spaces.items() if key in tree}


def _infos_of(episode: Any) -> dict[str, Any]:
    """Return the infos of the steps as a tree, without those of the reset: HDF5 has nested ones, the others paths."""
    return dict(trees.nested("infos", dict(_leaves("infos", getattr(episode, "infos", None) or {}))))


def _leaves(path: str, values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of an info, with their paths.

    Minari reads a tree from Arrow and Parquet as an array of dicts, and text from HDF5 as one of bytes.
    """
    kinds = set(map(type, values)) if isinstance(values, np.ndarray) and values.dtype.hasobject else set()
    with contextlib.suppress(ValueError):
        if kinds == {dict}:
            values = {key: np.array([each[key] for each in values]) for key in values[0]}
        elif kinds == {bytes}:
            values = np.array([each.decode() for each in values])
    if isinstance(values, Mapping):
        for key, part in values.items():
            yield from _leaves(f"{path}/{key}", part)
    else:
        yield path, values[1:] if np.ndim(values) else values


def _extras_of(episode: Any, names: Names) -> dict[str, Any]:
    """Return the infos of the steps of an episode by the names of extras."""
    infos, extras = _infos_of(episode) if names else {}, {}
    for extra, path in names.items():
        tree: Any = infos
        for key in path.split("/"):
            tree = recording.found(tree if isinstance(tree, Mapping) else {}, extra, key)
        extras[extra] = tree
    return extras


# Writing.


def to_dataset(
    buffer: Buffer,
    dataset_id: str,
    *,
    env: "Environment | None" = None,
    observation_space: "spaces.Space | None" = None,
    action_space: "spaces.Space | None" = None,
    data_format: Literal["hdf5", "arrow", "parquet"] = "hdf5",
    progress: state.Progress | None = None,
    **metadata: Any,
) -> "minari.MinariDataset":
    """Write every stored episode to a new local dataset, and return it.

    Extras become infos, with zeros for the info of the reset. An open episode neither terminates nor is truncated. If
    the oldest steps of an episode were evicted, the rest is written.

    Args:
        buffer: The buffer to write; images are not compressed.
        dataset_id: The id of the dataset, such as "pendulum/mine-v0".
        env: The environment recorded in the dataset: itself, its spec, or its id.
        observation_space: The space of stored observations; None for that of `env`, or for unbounded Boxes.
        action_space: Likewise, the space of actions.
        data_format: Minari's storage format.
        progress: Called after each episode with the number of bytes written so far and the total.
        metadata: What describes the dataset, such as author, description or eval_env: keyword arguments of
            `minari.create_dataset_from_buffers`.

    Raises:
        ArgumentError: The dataset exists already, a space does not match the stored values, Minari cannot store a field
            in that format, the observation after the last step of an episode is not known, or another argument is
            invalid.
        NotReadyError: No step is stored.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    state.check_progress(progress)
    validation.require_choice("data_format", data_format, _FORMATS)
    schema = buffer.schema
    if schema is None or not len(buffer):
        raise errors.NotReadyError("to_dataset has nothing to write: add steps first")
    chosen = {"observation_space": observation_space, "action_space": action_space}
    if env is None:
        for name, part in (("observation", schema.observation), ("action", schema.action)):
            chosen[f"{name}_space"] = chosen[f"{name}_space"] or spaces.space_of(name, part)
    with _minari(dataset_id, "made"), _new(dataset_id):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _ADVICE, UserWarning)
            dataset = minari.create_dataset_from_buffers(
                dataset_id, [], env=env, data_format=data_format, jpeg_encoding=False, **chosen, **metadata
            )
        spaces.check_space("observation_space", dataset.observation_space, schema.observation)
        spaces.check_space("action_space", dataset.action_space, schema.action)
        stored = stored_episodes.stored_episodes(buffer, progress=progress)
        dataset.storage.update_episodes(_written(dataset, each, data_format) for each in stored)
        return minari.load_dataset(dataset_id)


@contextlib.contextmanager
def _new(dataset_id: str) -> Iterator[None]:
    """Raise ArgumentError if there is a dataset of that id; delete what the block has written if it fails."""
    try:
        minari_dataset.parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:
        rule = "like 'namespace/name-v0', with a namespace of at least two letters, digits, - and _"
        raise errors.ArgumentError(f"dataset_id must be {rule}, got {validation.short_repr(dataset_id)}") from error
    path = datasets_root_dir.get_dataset_path(dataset_id)
    if path.exists():
        raise errors.ArgumentError(f"dataset_id must be a new one, got {dataset_id!r}")
    try:
        yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _written(dataset: Any, episode: stored_episodes.StoredEpisode, data_format: str) -> Any:
    """Return an episode for Minari."""
    length = len(episode)
    if not episode.has_final_observation:
        raise errors.ArgumentError(
            "to_dataset needs the observation after the newest step of every episode, and that of key "
            f"{episode.keys[-1]} is not known: add steps with next_observation"
        )
    if data_format != "hdf5" and length >= _MOST_ROWS:
        rule = f"at most {_MOST_ROWS - 1} steps for Minari to read them from {data_format}"
        raise errors.ArgumentError(f"episodes must have {rule}, got {length}: pass data_format='hdf5'")
    infos: dict[str, Any] = {}
    for path, values in (trees.flat("extras", episode.extras) if episode.extras else {}).items():
        # The reset comes first, with unknown infos.
        info = np.concatenate([np.zeros_like(values[:1]), values], dtype=values.dtype)
        # Text is a list for Minari; and from the other formats it does not read back an array of one axis.
        as_list = info.dtype.kind == "U" or (info.ndim == 1 and data_format != "hdf5")
        infos[path.removeprefix("extras/")] = list(info) if as_list else info
    # It is annotated with lists, but accepts arrays.
    columns: dict[str, Any] = {
        "observations": spaces.value_of(dataset.observation_space, episode.observations),
        "actions": spaces.value_of(dataset.action_space, episode.actions),
        "rewards": episode.rewards,
        "terminations": episode.terminated,
        "truncations": episode.truncated,
        "infos": infos,
    }
    return episode_buffer.EpisodeBuffer(**columns)
