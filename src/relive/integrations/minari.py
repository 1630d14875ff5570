"""Minari: import and export of datasets, bit for bit.

schema = schema_of("pendulum/expert-v0")
buffer = relive.RingReplayBuffer(1_000_000, schema)
add_dataset(buffer, "pendulum/expert-v0")                  a dataset into a buffer
to_dataset(buffer, "pendulum/mine-v0", env="Pendulum-v1")  and a buffer into a dataset

dataset    observations T + 1    actions T    rewards T    ends       infos T + 1              seed, options
           o0 o1 ... oT          a0 a1 ...    r0 r1 ...    or none    of the reset, i0 i1 ...  s
buffer     o0 o1 ... oT          a0 a1 ...    r0 r1 ...    a status   extras T: i0 i1 ...      extras T: s s ...

A tuple in a dataset is a dict with the keys "0", "1" and so on in a buffer. An info "a/b" is the info b within a.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import functools
import itertools
import os
import shutil
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
import warnings

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations import stored_episodes
from relive.integrations.gymnasium import recording
from relive.integrations.gymnasium import spaces
from relive.kernels import append
from relive.persistence import state
from relive.schema import schema as schema_lib

with imports.optional_dependency("minari"):
    import gymnasium
    from gymnasium.envs import registration
    import minari
    from minari import namespace
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


class Metadata(TypedDict, total=False):
    """Keyword arguments of `minari.create_dataset_from_buffers` that describe a dataset."""

    author: str | set[str] | None
    author_email: str | set[str] | None
    algorithm_name: str | None
    code_permalink: str | None
    description: str | None
    requirements: list[str] | None
    eval_env: "Environment | None"
    expert_policy: Callable[[Any], Any] | None
    ref_min_score: float | None
    ref_max_score: float | None
    num_episodes_average_score: int


# Reading.


def infos_of(dataset: Dataset) -> dict[str, str]:
    """Return the infos in the first episode of a dataset, as a mapping for `infos`, under their own names.

    Infos that a schema cannot hold are omitted: those that are not arrays of numbers or text, and those named like an
    argument of `add`, such as reward.

    Raises:
        ArgumentError: The dataset does not exist or cannot be read.
    """
    first, _ = _first(_opened(dataset))
    return _extras_among(_infos_of(first))


def episode_metadata_of(dataset: Dataset) -> dict[str, str]:
    """Return which of "seed" and "options" the first episode has, as a mapping for `episode_metadata`.

    Raises:
        ArgumentError: The dataset does not exist or cannot be read.
    """
    _, facts = _first(_opened(dataset))
    return _extras_among({name: _repeated(facts[name], 1) for name in ("seed", "options") if name in facts})


def schema_of(
    dataset: Dataset, *, infos: Names | None = None, episode_metadata: Names | None = None
) -> schema_lib.Schema:
    """Return the schema for the steps of a dataset, with the dtypes of its first episode.

    Args:
        dataset: The dataset.
        infos: Maps names of extras to names of infos; "a/b" is the info b within a. Text is as wide as the longest in
            the first episode.
        episode_metadata: Maps names of extras to "seed", "options" or one of the options, such as "options/level".
            Seeds are uint64.

    Raises:
        ArgumentError: The dataset does not exist or cannot be read, its spaces are not supported, or its first episode
            lacks the value of an extra.
        SchemaError: An extra would not be an array.
    """
    opened, names = _opened(dataset), _checked_names(infos, episode_metadata)
    observation = spaces.fields_of("observation_space", opened.observation_space)
    action = spaces.fields_of("action_space", opened.action_space)
    first, facts = _first(opened)
    if first is None and not any(names):
        return schema_lib.Schema(observation, action)
    columns = _arguments_of(opened, first, facts, *names)
    extras = columns.pop("extras")
    return schema_lib.Schema.from_example(*columns.values(), extras=extras, num_leading=1)


def add_dataset(
    buffer: Buffer,
    dataset: Dataset,
    *,
    infos: Names | None = None,
    episode_metadata: Names | None = None,
    progress: state.Progress | None = None,
) -> int:
    """Add every episode of a dataset to stream 0 of a buffer, and return the number of steps added.

    An episode that neither terminates nor is truncated is truncated, since its continuation is unknown. One that does
    both terminates. The infos of resets belong to no step and are not stored.

    Args:
        buffer: The buffer to add to.
        dataset: The dataset.
        infos: As in `schema_of`.
        episode_metadata: As in `schema_of`; stored in every step of an episode.
        progress: Called after each episode with the number of bytes added so far and the total.

    Raises:
        ArgumentError: The dataset does not exist, or its steps exceed the capacity. Or an episode cannot be read, ends
            twice, or lacks the value of an extra: those before it stay in the buffer.
        SchemaError: A field of an episode does not fit; earlier episodes stay in the buffer.
        NotReadyError: The limiter holds inserts back; earlier episodes stay in the buffer.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    state.check_progress(progress)
    opened, names = _opened(dataset), _checked_names(infos, episode_metadata)
    facts = _facts_of(opened, opened.episode_indices)
    total, added = sum(each["total_steps"] for each in facts), 0
    if total > buffer.capacity:
        raise errors.ArgumentError(f"dataset must have at most capacity = {buffer.capacity} steps, got {total}")
    for episode, fact in zip(_episodes(opened, opened.episode_indices), facts, strict=True):
        if len(episode) != (length := fact["total_steps"]):
            raise errors.ArgumentError(f"episode {episode.id} must have {length} steps, got {len(episode)}")
        for name in ("terminations", "truncations"):
            if np.any(getattr(episode, name)[:-1]):
                raise errors.ArgumentError(f"episode {episode.id} must end at its last step alone, got earlier {name}")
        columns = _arguments_of(opened, episode, fact, *names)
        extras = columns.pop("extras")
        try:
            buffer.add_episode(**columns, terminated=bool(episode.terminations[-1]), **extras)
        except errors.SchemaError as error:
            raise errors.SchemaError(f"episode {episode.id}: {error}") from error
        added += length
        if progress is not None and buffer.schema is not None:
            progress(added * buffer.schema.nbytes, total * buffer.schema.nbytes)
    return added


def _checked_names(infos: Any, episode_metadata: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return the checked mappings of extras to infos and to episode metadata."""
    kept = {} if episode_metadata is None else episode_metadata
    if not isinstance(kept, Mapping) or not all(
        name == "seed" or (isinstance(name, str) and name.split("/")[0] == "options") for name in kept.values()
    ):
        rule = "must map extras to 'seed', 'options' or a path such as 'options/level'"
        raise errors.ArgumentError(f"episode_metadata {rule}, got {validation.short_repr(kept)}")
    names = recording.checked_infos(infos)
    for extra in names:
        if extra in kept:
            raise errors.ArgumentError(f"infos and episode_metadata must be for different extras, got {extra!r} twice")
    return names, dict(kept)


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


def _episodes(opened: Any, numbers: Any) -> Iterator[Any]:
    """Yield the episodes of those numbers, all of them."""
    count = 0
    with _minari(opened.id, "read"):
        for episode in opened.iterate_episodes(numbers):
            yield episode
            count += 1
    if count != len(numbers):
        raise errors.ArgumentError(f"dataset {opened.id!r} must have {len(numbers)} episodes to read, got {count}")


def _facts_of(opened: Any, numbers: Any) -> list[dict[str, Any]]:
    """Return the metadata of the episodes of those numbers."""
    with _minari(opened.id, "read"):
        facts = list(opened.storage.get_episode_metadata(numbers))
        for fact in facts:
            fact["total_steps"] = int(fact["total_steps"])
            if fact.get("seed") is not None:  # Minari draws seeds of 64 bits.
                fact["seed"] = np.uint64(fact["seed"])
    return facts


def _first(opened: Any) -> tuple[Any, dict[str, Any]]:
    """Return the first episode and its metadata; None and an empty dict if there is none."""
    numbers = opened.episode_indices[:1]
    return (next(_episodes(opened, numbers)), _facts_of(opened, numbers)[0]) if len(numbers) else (None, {})


def _extras_among(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the names, by themselves, of what a schema can have as extras of those names."""
    names = {}
    for name, values in tree.items():
        with contextlib.suppress(errors.ArgumentError):
            schema_lib.Schema.from_example([0], [0], [0.0], extras={name: values}, num_leading=1)
            names[name] = name
    return names


def _infos_of(episode: Any) -> dict[str, Any]:
    """Return the infos of an episode as a tree: HDF5 has nested ones, the other formats have paths, or dicts."""
    return dict(trees.nested("infos", dict(_leaves("infos", getattr(episode, "infos", None) or {}))))


def _leaves(path: str, values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of an info, with their paths.

    Minari reads a tree from Arrow and Parquet as an array of dicts, and text from HDF5 as one of bytes. Other objects,
    and arrays of several shapes, are yielded as they are.
    """
    kinds = set(map(type, values)) if isinstance(values, np.ndarray) and values.dtype.hasobject else set()
    with contextlib.suppress(ValueError):
        if kinds == {dict}:
            values = {key: np.array([each[key] for each in values]) for key in values[0]}
        elif kinds == {bytes}:
            values = np.array([each.decode() for each in values])
    if not isinstance(values, Mapping):
        yield path, values
        return
    for key, part in values.items():
        yield from _leaves(f"{path}/{key}", part)


def _arguments_of(opened: Any, episode: Any, facts: Mapping[str, Any], infos: Names, kept: Names) -> dict[str, Any]:
    """Return the arguments of `add_episode` for an episode, apart from its end."""
    found = _infos_of(episode) if infos else {}
    extras = {extra: _mapped(lambda tree: _of_steps(tree, episode), _at(found, extra, infos[extra])) for extra in infos}
    extras |= {extra: _repeated(_at(facts, extra, kept[extra]), len(episode)) for extra in kept}
    return {
        "observations": spaces.tree_of(opened.observation_space, episode.observations),
        "actions": spaces.tree_of(opened.action_space, episode.actions),
        "rewards": episode.rewards,
        "extras": extras,
    }


def _at(tree: Any, extra: str, path: str) -> Any:
    """Return the value of an extra in a tree of infos or metadata."""
    for key in path.split("/"):
        tree = recording.found(tree if isinstance(tree, Mapping) else {}, extra, key)
    return tree


def _repeated(tree: Any, length: int) -> Any:
    """Repeat a value of an episode for each of its steps."""
    return _mapped(lambda value: [value] * length, tree)


def _of_steps(values: Any, episode: Any) -> Any:
    """Return the infos of the steps of an episode, without the one of the reset."""
    return values[1:] if np.shape(values)[:1] == (len(episode) + 1,) else values


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to each leaf of a tree."""
    if isinstance(tree, Mapping):
        return {key: _mapped(function, part) for key, part in tree.items()}
    return function(tree)


# Writing.


def to_dataset(
    buffer: Buffer,
    dataset_id: str,
    *,
    env: "Environment | None" = None,
    observation_space: "spaces.Space | None" = None,
    action_space: "spaces.Space | None" = None,
    data_format: Literal["hdf5", "arrow", "parquet"] = "hdf5",
    incomplete: Literal["refuse", "as_sampled"] = "refuse",
    episode_metadata: Names | None = None,
    progress: state.Progress | None = None,
    **metadata: Unpack[Metadata],
) -> "minari.MinariDataset":
    """Write every stored episode to a new local dataset, and return it.

    Extras become infos, with zeros for the info of the reset. An open episode neither terminates nor is truncated. If
    the oldest steps of an episode were evicted, the rest is written. `get_episode_metadata` of the dataset's storage
    returns the `stream` of each episode, and the number of missing steps as `start_step`.

    Args:
        buffer: The buffer to write; images are not compressed.
        dataset_id: The id of the dataset, such as "pendulum/mine-v0".
        env: The environment recorded in the dataset: itself, its spec, or its id.
        observation_space: The space of stored observations; None for that of `env`, or for unbounded Boxes.
        action_space: Likewise, the space of actions.
        data_format: Minari's storage format.
        incomplete: What to do if the observation after the newest step of an episode is not known: raise, or write what
            batches contain, that is, zeros if the step terminated, and otherwise not the step.
        episode_metadata: Extras that are constant within an episode and are written as its "seed", its "options", or
            one of those, such as "options/level", instead of infos.
        progress: Called after each episode with the number of bytes written so far and the total.
        metadata: Metadata of the dataset, such as author or description; see `Metadata`.

    Raises:
        ArgumentError: The dataset exists already, a space does not match the stored values, Minari cannot store a field
            in that format, an observation is not known, or another argument is invalid.
        NotReadyError: No step is stored, or none that batches contain.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    state.check_progress(progress)
    validation.require_choice("data_format", data_format, _FORMATS)
    validation.require_choice("incomplete", incomplete, ("refuse", "as_sampled"))
    _, kept = _checked_names(None, episode_metadata)
    _check_metadata(metadata)
    _check_id(dataset_id)
    schema = buffer.schema
    if schema is None or not len(buffer):
        raise errors.NotReadyError("to_dataset has nothing to write: add steps first")
    _check_fields(schema, data_format, kept)
    _check_episodes(buffer, data_format, incomplete == "refuse")
    with contextlib.ExitStack() as stack:
        for context in (_whole(dataset_id), _minari(dataset_id, "made")):
            stack.enter_context(context)
        if isinstance(env, str | registration.EnvSpec):
            env = stack.enter_context(contextlib.closing(gymnasium.make(env)))
        elif env is not None:
            validation.require_instance("env", env, gymnasium.Env)
        chosen: dict[str, Any] = {}
        for part, space in (("observation", observation_space), ("action", action_space)):
            name, tree = f"{part}_space", getattr(schema, part)
            space = getattr(env, name, None) if space is None else space
            chosen[name] = spaces.space_of(part, tree) if space is None else space
            spaces.check_space(name, chosen[name], tree)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _ADVICE, UserWarning)
            dataset = minari.create_dataset_from_buffers(
                dataset_id, [], env=env, data_format=data_format, jpeg_encoding=False, **chosen, **metadata
            )
        facts: list[dict[str, int]] = []
        stored = stored_episodes.stored_episodes(buffer, progress=progress)
        dataset.storage.update_episodes(_written(stored, chosen, data_format, kept, facts))
        if not facts:
            raise errors.NotReadyError("to_dataset has nothing to write: no observation after a step is known")
        dataset.storage.update_episode_metadata(facts, range(len(facts)))
        return minari.load_dataset(dataset_id)


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise ArgumentError for metadata that Minari would silently ignore, or store although not text."""
    for name in ("author", "author_email", "algorithm_name", "code_permalink", "description"):
        given, can_be_set = metadata.get(name), name.startswith("author")
        texts = given if isinstance(given, set) and can_be_set else [given]
        if given is not None and not all(isinstance(text, str) for text in texts):
            rule = "a text or a set of texts" if can_be_set else "a text"
            raise errors.ArgumentError(f"{name} must be {rule}, got {validation.short_repr(given)}")
    env = metadata.get("eval_env")
    if isinstance(env, gymnasium.Env) and env.spec is None:
        raise errors.ArgumentError(f"eval_env must be a registered environment, got {validation.short_repr(env)}")


def _check_id(dataset_id: Any) -> None:
    """Raise ArgumentError unless a dataset with that id can be created."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    if root is not None and not os.path.isabs(root):
        raise errors.ArgumentError(f"MINARI_DATASETS_PATH must be an absolute path, got {root!r}")
    try:
        minari_dataset.parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:
        rule = "like 'namespace/name-v0', with a namespace of at least two letters, digits, - and _"
        raise errors.ArgumentError(f"dataset_id must be {rule}, got {validation.short_repr(dataset_id)}") from error
    if datasets_root_dir.get_dataset_path(dataset_id).exists():
        raise errors.ArgumentError(f"dataset_id must be a new one, got {dataset_id!r}")


def _check_fields(schema: schema_lib.Schema, data_format: str, kept: Names) -> None:
    """Raise ArgumentError unless Minari stores every field exactly."""
    if any(f"{one}/".startswith(f"{other}/") for one, other in itertools.permutations(kept.values(), 2)):
        raise errors.ArgumentError(f"episode_metadata must name nothing twice, got {validation.short_repr(kept)}")
    for extra, name in kept.items():
        if extra not in schema.extras:
            known = ", ".join(schema.extras) or "none"
            raise errors.ArgumentError(
                f"episode_metadata must be of extras of the schema, which are {known}, got {extra!r}"
            )
        field = schema.extras[extra]
        if name == "seed" and not (
            isinstance(field, schema_lib.Field) and field.dtype.kind in "iu" and not field.shape
        ):
            raise errors.ArgumentError(f"extras/{extra} must be one integer for the seed of an episode, got {field}")
    for path, field in schema.fields.items():
        is_text = field.dtype.kind == "U" and not field.shape and path.startswith("extras/")
        is_number = field.dtype.kind in "biuf" and field.dtype.itemsize <= 8
        if not (is_text or is_number) or not field.nbytes:
            rule = "must be of at least one bool, integer or float of at most 64 bits for Minari"
            raise errors.ArgumentError(f"{path} {rule}, got {field}")
        if data_format != "hdf5" and not field.dtype.isnative:
            rule = f"must have the byte order of this machine for {data_format}"
            raise errors.ArgumentError(f"{path} {rule}, got {field}")
        if data_format == "hdf5" and ("." in path.split("/") or "\0" in path):
            raise errors.ArgumentError(f"fields must have no key '.', and no zero byte in one, for hdf5, got {path!r}")


def _check_episodes(buffer: Buffer, data_format: str, must_be_known: bool) -> None:
    """Raise ArgumentError unless every stored episode can be written."""
    history = buffer._store
    episodes, lengths = np.unique(history.episodes_of(history.alive_slots()), return_counts=True)
    if data_format != "hdf5" and lengths.max() >= _MOST_ROWS:
        raise errors.ArgumentError(
            f"episodes must have at most {_MOST_ROWS - 1} steps for Minari to read them from {data_format}, "
            f"got {lengths.max()}: pass data_format='hdf5'"
        )
    unknown = episodes[~history.is_known(episodes)]
    if must_be_known and len(unknown):
        raise errors.ArgumentError(
            f"to_dataset needs the observation after the newest step of every episode, and {len(unknown)} have none, "
            f"such as one of stream {history.episodes[append.STREAM][unknown].min()}: "
            "add steps with next_observation, or pass incomplete='as_sampled'"
        )


@contextlib.contextmanager
def _whole(dataset_id: str) -> Iterator[None]:
    """Delete a dataset and its new namespaces if the block fails."""
    path = datasets_root_dir.get_dataset_path(dataset_id)
    new = list(itertools.takewhile(lambda folder: not folder.exists(), path.parents))
    try:
        yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # Namespaces with another dataset stay, and those above them.
            for folder in new:
                if os.listdir(folder) == [namespace.NAMESPACE_METADATA_FILENAME]:
                    (folder / namespace.NAMESPACE_METADATA_FILENAME).unlink()
                folder.rmdir()
        raise


def _written(
    episodes: Iterable[stored_episodes.StoredEpisode],
    chosen: Mapping[str, Any],
    data_format: str,
    kept: Names,
    facts: list[dict[str, int]],
) -> Iterator[Any]:
    """Yield the episodes for Minari, with the final observations that batches have, and record their streams."""
    for episode in episodes:
        count = len(episode) - (not episode.has_final_observation and episode.status != "COMPLETED")
        if not count:
            continue
        facts.append({"stream": episode.stream, "start_step": episode.start_step})
        told = {name: _of_all_steps(extra, episode.extras[extra]) for extra, name in kept.items()}
        observations = _mapped(functools.partial(_resized, length=count + 1), episode.observations)
        actions = trees.rows(episode.actions, slice(count))
        is_last = np.arange(count) == count - 1
        # It is annotated with lists, but accepts arrays.
        columns: dict[str, Any] = {
            "seed": told.get("seed"),
            "options": trees.nested("options", told) or None,
            "observations": spaces.value_of(chosen["observation_space"], observations),
            "actions": spaces.value_of(chosen["action_space"], actions),
            "rewards": episode.rewards[:count],
            "terminations": is_last & (episode.status == "COMPLETED"),
            "truncations": is_last & (episode.status == "TRUNCATED"),
        }
        infos: dict[str, Any] = {}
        for path, values in (trees.flat("extras", episode.extras) if episode.extras else {}).items():
            _, extra, *_ = path.split("/")
            if extra in kept:
                continue
            # The reset comes first, with unknown infos.
            info = np.roll(_resized(values[:count], count + 1), 1, axis=0)
            # Text is a list for Minari; and from the other formats it does not read back an array of one axis.
            as_list = info.dtype.kind == "U" or (info.ndim == 1 and data_format != "hdf5")
            infos[path.removeprefix("extras/")] = list(info) if as_list else info
        yield episode_buffer.EpisodeBuffer(**columns, infos=infos)


def _of_all_steps(extra: str, tree: Any) -> Any:
    """Return the value of an extra that is the same in all steps of an episode."""
    for path, values in trees.flat(f"extras/{extra}", tree).items():
        if (values != values[0]).any():
            rule = "must be the same in all steps of an episode"
            raise errors.ArgumentError(f"{path} {rule}, got {validation.short_repr(values)}")
    return _mapped(lambda values: values[0].tolist(), tree)


def _resized(values: Any, length: int) -> Any:
    """Resize an array to that many rows, padding with zeros."""
    resized = np.zeros((length, *values.shape[1:]), values.dtype)
    resized[: len(values)] = values[:length]
    return resized
