"""Datasets of Minari in and out of buffers of columns, to the last bit.

schema = schema_of("pendulum/expert-v0")
buffer = relive.RingReplayBuffer(1_000_000, schema)
add_dataset(buffer, "pendulum/expert-v0")                  a dataset into a buffer
to_dataset(buffer, "pendulum/mine-v0", env="Pendulum-v1")  and a buffer into a dataset
"""

from collections.abc import Iterator, Mapping
import contextlib
import inspect
import itertools
import os
import shutil
from typing import Any, TypeAlias
import warnings

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import imports
from relive.common import validation
from relive.integrations import field_spaces
from relive.integrations import minari_episodes
from relive.integrations import recording
from relive.integrations import spaces
from relive.persistence import state
from relive.schema import schema as schema_lib

with imports.optional_dependency("minari"):
    import gymnasium
    from gymnasium.envs import registration
    import minari
    from minari import namespace
    from minari.dataset import minari_dataset
    from minari.storage import datasets_root_dir

Buffer: TypeAlias = "column.ColumnReplayBuffer[Any]"
Dataset: TypeAlias = "minari.MinariDataset | str"
"""A dataset, or the id of one that is on this machine."""
Environment: TypeAlias = "gymnasium.Env[Any, Any] | registration.EnvSpec | str"

_FORMATS = ("hdf5", "arrow", "parquet")
_OWN = ("dataset_id", "buffer", "env", "observation_space", "action_space", "data_format", "jpeg_encoding")
_TEXTS = ("algorithm_name", "author", "author_email", "code_permalink", "description")
_SETS = ("author", "author_email")
_ADVICE = "`.*` is set to None|env_spec is None"
"""What Minari warns of where a dataset is not described as one that is to be published should be."""


# Reading.


def infos_of(dataset: Dataset) -> dict[str, str]:
    """Return the infos that the first episode of a dataset has, as `infos` want them: by their own names.

    Those are left out that no schema can have: what is no array of numbers or text, and what has the name of an
    argument of `add`, such as reward.

    Raises:
        ArgumentError: There is no such dataset, or it cannot be read.
    """
    infos = minari_episodes.infos_of(minari_episodes.first_episode(_opened(dataset)))
    return {name: name for name, values in infos.items() if minari_episodes.is_extra(name, values)}


def schema_of(dataset: Dataset, *, infos: Mapping[str, str] | None = None) -> schema_lib.Schema:
    """Return the schema that the steps of a dataset fit, with the dtypes that its first episode has.

    Args:
        dataset: The dataset.
        infos: Names of infos, by the extra that each of them is stored as; "a/b" is the info b within a. Text is as
            wide as the longest of the first episode.

    Raises:
        ArgumentError: There is no such dataset, it cannot be read, its spaces are not those that a schema can be made
            of, or its first episode lacks an info.
        SchemaError: An info is no array.
    """
    opened, names = _opened(dataset), recording.checked_infos(infos)
    observation = spaces.fields_of("observation_space", opened.observation_space)
    action = spaces.fields_of("action_space", opened.action_space)
    first = minari_episodes.first_episode(opened)
    if first is None and not names:
        return schema_lib.Schema(observation, action)
    columns = minari_episodes.arguments_of(opened, first, names)
    return schema_lib.Schema.from_example(
        columns["observations"], columns["actions"], columns["rewards"], extras=columns["extras"], num_leading=1
    )


def add_dataset(
    buffer: Buffer,
    dataset: Dataset,
    *,
    infos: Mapping[str, str] | None = None,
    progress: state.Progress | None = None,
) -> int:
    """Add every episode of a dataset to stream 0 of a buffer, and return how many steps those were.

    An episode that neither terminates nor is truncated ends as truncated: nobody knows what came after it. One that
    does both terminates. What belongs to no step is not stored: seeds and options of resets, the infos they returned.

    Args:
        buffer: Where to.
        dataset: The dataset.
        infos: Names of infos, by the extra that each of them is stored as; "a/b" is the info b within a.
        progress: Called after each episode with the bytes of the rows added so far, and of all of them.

    Raises:
        ArgumentError: There is no such dataset, or the buffer has no room for all of its steps. Or an episode cannot
            be read, ends twice, or lacks an info: those before it stay in the buffer.
        SchemaError: A field of an episode does not fit; the same.
        NotReadyError: The limiter holds inserts back; the same.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    state.check_progress(progress)
    opened, names = _opened(dataset), recording.checked_infos(infos)
    with minari_episodes.reading(opened.id):
        lengths = [int(facts["total_steps"]) for facts in opened.storage.get_episode_metadata(opened.episode_indices)]
    total, added = sum(lengths), 0
    if total > buffer.capacity:
        raise errors.ArgumentError(f"dataset must have at most capacity = {buffer.capacity} steps, got {total}")
    for episode, length in zip(minari_episodes.read_episodes(opened, opened.episode_indices), lengths, strict=True):
        if len(episode) != length:
            raise errors.ArgumentError(f"episode {episode.id} must have {length} steps, got {len(episode)}")
        for name in ("terminations", "truncations"):
            if np.any(getattr(episode, name)[:-1]):
                raise errors.ArgumentError(f"episode {episode.id} must end at its last step alone, got earlier {name}")
        columns = minari_episodes.arguments_of(opened, episode, names)
        try:
            buffer.add_episode(
                columns["observations"],
                columns["actions"],
                columns["rewards"],
                terminated=bool(episode.terminations[-1]),
                **columns["extras"],
            )
        except errors.SchemaError as error:
            raise errors.SchemaError(f"episode {episode.id}: {error}") from error
        added += length
        if progress is not None and buffer.schema is not None:
            progress(added * buffer.schema.nbytes, total * buffer.schema.nbytes)
    return added


def _opened(dataset: Any) -> Any:
    """Return the dataset, which may be named."""
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, str):
        raise errors.ArgumentTypeError(
            f"dataset must be a MinariDataset or the id of one, got {validation.short_repr(dataset)}"
        )
    with minari_episodes.reading(dataset):
        try:
            return minari.load_dataset(dataset)
        except FileNotFoundError as error:
            raise errors.ArgumentError(
                f"dataset {dataset!r} not found: `minari download {dataset}` fetches one that is published"
            ) from error


# Writing.


def to_dataset(
    buffer: Buffer,
    dataset_id: str,
    *,
    env: "Environment | None" = None,
    observation_space: "spaces.Space | None" = None,
    action_space: "spaces.Space | None" = None,
    data_format: minari_episodes.DataFormat = "hdf5",
    incomplete: minari_episodes.Incomplete = "refuse",
    metadata: Mapping[str, Any] | None = None,
    progress: state.Progress | None = None,
) -> "minari.MinariDataset":
    """Write every stored episode to a new dataset on this machine, and return it.

    Extras become infos, with zeros in the place of the info of the reset. An open episode has neither a termination
    nor a truncation. Of an episode whose oldest steps were evicted the others are written. `get_episode_metadata` of
    the dataset's storage returns the `stream` of each episode, and as `start_step` how many steps are missing.

    Args:
        buffer: What to write; images are not compressed.
        dataset_id: Such as "pendulum/mine-v0".
        env: The environment, for those who wants to recover it from the dataset: itself, its spec, or its id.
        observation_space: Of one observation as it is stored; None for that of `env`, or for a Box of any values, or
            a Dict of those.
        action_space: The same of an action.
        data_format: How Minari stores it.
        incomplete: What to do where the observation after the newest step of an episode is not known: raise, or write
            what batches have. They have zeros there if the step has terminated, and otherwise not the step.
        metadata: More arguments for `minari.create_dataset_from_buffers`, such as author or description.
        progress: Called after each episode with the bytes of the rows written so far, and of all of them.

    Raises:
        ArgumentError: There is such a dataset already, a space is not that of what is stored, Minari cannot keep a
            field in that format, an observation is not known, or another argument breaks its rule.
        NotReadyError: No step is stored, or none that batches have.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    state.check_progress(progress)
    validation.require_choice("data_format", data_format, _FORMATS)
    validation.require_choice("incomplete", incomplete, ("refuse", "as_sampled"))
    options = _checked_metadata(metadata)
    _check_id(dataset_id)
    schema = buffer.schema
    if schema is None or not len(buffer):
        raise errors.NotReadyError("to_dataset has nothing to write: add steps first")
    minari_episodes.check_fields(schema, data_format)
    minari_episodes.check_episodes(buffer, data_format, incomplete)
    with _made(env) as environment, _whole(dataset_id):
        given = {"observation": observation_space, "action": action_space}
        chosen: dict[str, Any] = {}
        for name, tree in (("observation", schema.observation), ("action", schema.action)):
            space = given[name] if given[name] is not None else getattr(environment, f"{name}_space", None)
            chosen[name] = space = field_spaces.space_of(name, tree) if space is None else space
            field_spaces.check_space(f"{name}_space", space, tree)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _ADVICE, UserWarning)
            try:
                dataset = minari.create_dataset_from_buffers(
                    dataset_id,
                    [],
                    env=environment,
                    observation_space=chosen["observation"],
                    action_space=chosen["action"],
                    data_format=data_format,
                    jpeg_encoding=False,
                    **options,
                )
            except (AssertionError, TypeError, ValueError) as error:
                raise errors.ArgumentError(
                    f"dataset {dataset_id!r} cannot be made: {minari_episodes.said(error)}"
                ) from error
        facts: list[dict[str, int]] = []
        dataset.storage.update_episodes(minari_episodes.episodes_of(buffer, chosen, data_format, facts, progress))
        if not facts:
            raise errors.NotReadyError("to_dataset has nothing to write: no observation after a step is known")
        dataset.storage.update_episode_metadata(facts, range(len(facts)))
        return minari.load_dataset(dataset_id)


def _checked_metadata(metadata: Any) -> dict[str, Any]:
    """Return arguments for Minari that it knows, and that are not given otherwise."""
    if metadata is None:
        return {}
    known = [name for name in inspect.signature(minari.create_dataset_from_buffers).parameters if name not in _OWN]
    if not isinstance(metadata, Mapping) or not all(name in known for name in metadata):
        raise errors.ArgumentError(
            f"metadata must be by the names {', '.join(known)}, got {validation.short_repr(metadata)}"
        )
    for name in _TEXTS:
        given = metadata.get(name)
        texts = given if isinstance(given, set) and name in _SETS else [given]
        if given is not None and not all(isinstance(text, str) for text in texts):
            rule = "a text or a set of texts" if name in _SETS else "a text"
            raise errors.ArgumentError(f"metadata/{name} must be {rule}, got {validation.short_repr(given)}")
    _check_eval_env(metadata.get("eval_env"))
    return dict(metadata)


def _check_eval_env(env: Any) -> None:
    """Raise ArgumentError unless an environment can be made again of what was given."""
    rule = f"metadata/eval_env must be a registered environment, its spec or its id, got {validation.short_repr(env)}"
    try:
        spec = gymnasium.spec(env) if isinstance(env, str) else getattr(env, "spec", env)
    except gymnasium.error.Error as error:
        raise errors.ArgumentError(f"{rule}: {minari_episodes.said(error)}") from error
    if not isinstance(spec, registration.EnvSpec) and env is not None:
        raise errors.ArgumentError(rule)


def _check_id(dataset_id: Any) -> None:
    """Raise ArgumentError unless a dataset of that id can be made."""
    root = os.environ.get("MINARI_DATASETS_PATH", os.sep)
    if not os.path.isabs(root):
        raise errors.ArgumentError(f"MINARI_DATASETS_PATH must be an absolute path, got {root!r}")
    try:
        minari_dataset.parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentError(
            "dataset_id must be like 'namespace/name-v0', with a namespace of at least two letters, digits, - and _, "
            f"got {validation.short_repr(dataset_id)}"
        ) from error
    if datasets_root_dir.get_dataset_path(dataset_id).exists():
        raise errors.ArgumentError(f"dataset_id must be a new one, got {dataset_id!r}")


@contextlib.contextmanager
def _made(env: Any) -> Iterator[Any]:
    """Yield the environment, which may be named; if it is, it is closed afterwards."""
    if env is None or isinstance(env, gymnasium.Env):
        yield env
        return
    if not isinstance(env, str | registration.EnvSpec):
        raise errors.ArgumentTypeError(
            f"env must be an environment, its spec or its id, got {validation.short_repr(env)}"
        )
    try:
        made = gymnasium.make(env)
    except gymnasium.error.Error as error:
        raise errors.ArgumentError(f"env cannot be made: {minari_episodes.said(error)}") from error
    with contextlib.closing(made):
        yield made


@contextlib.contextmanager
def _whole(dataset_id: str) -> Iterator[None]:
    """Take a dataset away again if what happens in its block fails, with the namespaces that came with it."""
    path = datasets_root_dir.get_dataset_path(dataset_id)
    new = list(itertools.takewhile(lambda folder: not folder.exists(), path.parents))
    try:
        yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # One that has another dataset by now stays, and those above it.
            for folder in new:
                if os.listdir(folder) == [namespace.NAMESPACE_METADATA_FILENAME]:
                    (folder / namespace.NAMESPACE_METADATA_FILENAME).unlink()
                folder.rmdir()
        raise
