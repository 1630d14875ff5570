"""Arrow and Parquet: the steps of a buffer as a table, a stream of batches or a file, and back, bit for bit.

    key stream episode step terminated truncated    where a step belongs
    observation action reward extras/...            the fields, by path
    final_observation                               by path too; null but in the last row of an episode

    bool, integers, floats     the same                      [N]
    text "<U5", bytes "|S5"    string, binary                [N]
    any of them [N, 6]         lists of 6
    numbers [N, 2, 3]          tensors of shape (2, 3); of bool, text and bytes lists of 6, row by row

A row is a step, episode by episode. The metadata hold the schema under "relive": {"format": "relive steps", "version":
1, "streams": 1, "schema": [["observation", "<f4", [4]], ...]}.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column as column_lib
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations import replaced_file
from relive.integrations import step_columns
from relive.integrations import stored_episodes
from relive.persistence import dtypes
from relive.persistence import files
from relive.persistence import settings
from relive.persistence import state
from relive.schema import schema as schema_lib
from relive.storage import steps

with imports.optional_dependency("arrow"):
    import pyarrow
    from pyarrow import dataset
    from pyarrow import parquet

Path: TypeAlias = str | os.PathLike[str]
AnyBuffer: TypeAlias = "column_lib.ColumnReplayBuffer[Any]"
Columns: TypeAlias = dict[str, arrays_lib.Array]

VERSION = 1
_FORMAT, _KEY, _MAGIC = "relive steps", b"relive", b"PAR1"
_BATCH = 1 << 22
"""Bytes of the fields in a batch, at most, if it has more than one row."""
_BROKEN = (OSError, ValueError, ArithmeticError, pyarrow.ArrowException)
"""What pyarrow raises where a file is broken."""
_MARKS = {name: schema_lib.Field((), dtype) for name, dtype in step_columns.MARKS.items()}
_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_MOST_ELEMENTS = 2**31 - 1
_FINALS = "final observations must be whole, and in the last rows of episodes"
_TEXTS = {"U": pyarrow.string(), "S": pyarrow.binary()}


@dataclasses.dataclass(frozen=True)
class Description:
    """The description stored in a file.

    Attributes:
        schema: The schema of a step.
        num_steps: Number of steps.
        streams: Number of streams of the buffer it was written from.
    """

    schema: schema_lib.Schema
    num_steps: int
    streams: int


class _Source(NamedTuple):
    """A source of steps: its name in errors, its description, and a function to read it repeatedly."""

    label: str
    description: Description
    batches: Callable[[], Iterable[Any]]


# Export.


def to_table(buffer: AnyBuffer, *, fields: Iterable[str] | None = None) -> pyarrow.Table:
    """Return all steps of a buffer as a table; see `to_batches`.

    >>> import relive
    >>> from relive.integrations import arrow
    >>> buffer = relive.RingReplayBuffer(10)
    >>> keys = buffer.add_episode([0, 1, 2], [1, 0], [0.0, 1.0], terminated=True)
    >>> arrow.to_table(buffer).select(["step", "observation", "reward", "terminated"]).to_pandas()
       step  observation  reward  terminated
    0     0            0     0.0       False
    1     1            1     1.0        True
    """
    return to_batches(buffer, fields=fields).read_all()


def to_batches(buffer: AnyBuffer, *, fields: Iterable[str] | None = None) -> pyarrow.RecordBatchReader:
    """Return a reader of all steps of a buffer, episode by episode, in batches of about 4 MiB.

    Its columns are `key`, `stream`, `episode` (its first stored key), `step`, `terminated`, `truncated`; then the
    fields of the schema by path; then, as `final_observation` and so on, the observation after an episode, if known.
    Besides a batch it takes about eighty bytes for each step. Priorities, the random generator and counters are not
    included: use `buffer.save` for those.

    Args:
        buffer: The buffer to read; the reader raises ArgumentError if the buffer changes before the last batch.
        fields: Paths of the fields to take, such as "reward" or "observation/state"; None for all.

    Raises:
        ArgumentError: A path is not one of the schema; or Arrow cannot hold a field: its dtype is complex, a date or
            structured, it has 2**31 elements, or its path is not text or too deep.
        ArgumentTypeError: An argument has the wrong type.
        NotReadyError: The buffer has no schema yet.
    """
    return _reader("to_batches", buffer, fields)


def write_parquet(
    buffer: AnyBuffer, path: Path, *, overwrite: bool = True, progress: state.Progress | None = None
) -> None:
    """Write all steps of a buffer to a Parquet file, replacing an older one that relive wrote.

    The file is replaced atomically: a reader finds either the old or the new one, complete.

    Args:
        buffer: The buffer to read.
        path: A file that is missing, empty, or was made by `write_parquet`; its parent must exist.
        overwrite: Whether to replace an older file; its mode is kept.
        progress: Called after each batch with the number of bytes read so far and the total.

    Raises:
        ArgumentError: The file cannot hold a field, as in `to_batches`.
        ArgumentTypeError: An argument has the wrong type.
        CheckpointError: `path` is something else, in use, or inside a saved directory, or writing failed.
        NotReadyError: The buffer has no schema yet.
    """
    overwrite = validation.boolean("overwrite", overwrite)
    state.check_progress(progress)
    batches = _reader("write_parquet", buffer, progress=progress)
    place = replaced_file.absolute("path", path)
    try:
        with (
            replaced_file.replacing(place, _MAGIC, lambda: _check_free(place, overwrite)) as file,
            parquet.ParquetWriter(file, batches.schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
    except (OSError, pyarrow.ArrowException) as error:
        raise errors.CheckpointError(f"{files.named(place)} cannot be written: {_reason(error)}") from error


def _reader(
    call: str, buffer: AnyBuffer, fields: Iterable[str] | None = None, progress: state.Progress | None = None
) -> pyarrow.RecordBatchReader:
    schema = step_columns.known_schema(call, buffer)
    paths = step_columns.chosen(schema, fields)
    kind = _columns(schema, paths, buffer.streams)
    return pyarrow.RecordBatchReader.from_batches(kind, _batches(call, buffer._store, kind, paths, progress))


def _batches(
    call: str, history: steps.StepStore, kind: Any, paths: list[str], progress: state.Progress | None
) -> Iterator[Any]:
    fields, rows = history.schema.fields, step_columns.rows_of(history)
    size = _batch_size(history.schema)
    places = [np.arange(start, min(start + size, len(rows.slots))) for start in range(0, len(rows.slots), size)]
    for here in step_columns.in_turn(call, history, places, progress):
        columns = {name: _column(name, field, rows.marks[name][here]) for name, field in _MARKS.items()}
        read = history.storage.read(rows.slots[here], paths)
        columns |= {path: _column(path, fields[path], read[path]) for path in paths}
        has_final = rows.has_final[here]
        turns = pyarrow.array(np.cumsum(has_final) - 1, mask=~has_final)
        for path in _seen(history.schema, paths):
            finals = history.behind[path].take(rows.episodes[here][has_final], axis=0)
            columns[f"final_{path}"] = _column(path, fields[path], finals, sparse=True).take(turns)
        yield pyarrow.record_batch([columns[name] for name in kind.names], schema=kind)


def _batch_size(schema: schema_lib.Schema) -> int:
    return _BATCH // schema.nbytes + 1


def _seen(schema: schema_lib.Schema, paths: list[str]) -> list[str]:
    """Return which of the paths belong to the observation."""
    return [path for path in paths if path in schema._observation_paths]


def _check_free(place: str, overwrite: bool) -> None:
    """Raise CheckpointError unless the place is free, or holds an empty file or a replaceable one that relive wrote."""
    if not os.path.lexists(place):
        return
    label = files.named(place)
    if not overwrite:
        raise errors.CheckpointError(f"{label} exists: name another path")
    if os.path.islink(place) or not os.path.isfile(place):
        raise errors.CheckpointError(f"{label} is not a file: name another path")
    if os.path.getsize(place):
        try:
            describe(place)
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{error}: name another path") from error


# Import.


def add_table(buffer: AnyBuffer, table: "pyarrow.Table | pyarrow.RecordBatchReader | dataset.Dataset") -> int:
    """Add all steps of a table to a buffer, and return their number.

    The columns must be those of `to_batches`, in the same order and with the same types: nothing is cast. Each episode
    is added to its original stream, and an open one stays open. Keys are new. An episode whose first steps are missing
    begins with the first remaining step. Everything is checked before the first step is added.

    Args:
        buffer: The buffer to add to; without a schema it takes that of the table's metadata.
        table: A table, or a dataset, which is read twice, or a reader, which is read into memory. Without relive's
            metadata, its columns must match the buffer's schema.

    Raises:
        ArgumentError: The rows do not form whole episodes, or the buffer has too small a capacity, too few streams, or
            an open episode that cannot be ended where one is to begin.
        ArgumentTypeError: An argument has the wrong type.
        NotReadyError: The limiter holds inserts back; earlier episodes were added. It decides once per episode, and
            twice for an episode without a known final observation, which can be left without its last step.
        SchemaError: The columns differ from those expected, or from the buffer's schema, or the table cannot be read.

    >>> import relive
    >>> from relive.integrations import arrow
    >>> buffer = relive.RingReplayBuffer(10)
    >>> keys = buffer.add_episode([0, 1, 2], [1, 0], [0.0, 1.0], terminated=True)
    >>> arrow.add_table(relive.RingReplayBuffer(10), arrow.to_table(buffer))
    2
    """
    validation.require_instance("buffer", buffer, column_lib.ColumnReplayBuffer)
    if not isinstance(table, pyarrow.Table | pyarrow.RecordBatchReader | dataset.Dataset):
        rule = "be a pyarrow Table, RecordBatchReader or Dataset"
        raise errors.ArgumentTypeError(f"table must {rule}, got {validation.short_repr(table)}")
    is_dataset = isinstance(table, dataset.Dataset)
    try:
        table = table.read_all() if isinstance(table, pyarrow.RecordBatchReader) else table
        description = _described(table.schema, table.count_rows() if is_dataset else table.num_rows, buffer.schema)
    except (errors.CheckpointError, *_BROKEN) as error:
        raise errors.SchemaError(f"table cannot be added: {_reason(error)}") from error
    size = _batch_size(description.schema)
    given = (
        {"batch_size": size, "batch_readahead": 1, "fragment_readahead": 1} if is_dataset else {"max_chunksize": size}
    )
    source = _Source("table", description, functools.partial(table.to_batches, **given))
    return _add_all(buffer, source, errors.ArgumentError, "table cannot be added")


def add_parquet(buffer: AnyBuffer, path: Path, *, progress: state.Progress | None = None) -> int:
    """Add all steps of a file from `write_parquet` to a buffer, and return their number; see `add_table`.

    Args:
        buffer: The buffer to add to.
        path: The file; it is read twice, with memory for a batch and for the longest episode.
        progress: Called after each episode with the number of bytes added so far and the total.

    Raises:
        CheckpointError: The file is missing, not one of relive's, truncated, damaged, or of another version.
        ReplayError: As in `add_table`.
    """
    validation.require_instance("buffer", buffer, column_lib.ColumnReplayBuffer)
    with _opened(path) as source:
        return _add_all(buffer, source, errors.CheckpointError, f"{source.label} is damaged", progress)


def describe(path: Path) -> Description:
    """Return the description of a file from `write_parquet`, without reading steps.

    Raises:
        ArgumentError: `path` is not a path.
        CheckpointError: The file is missing, not one of relive's, truncated, or of another version.
    """
    with _opened(path) as source:
        return source.description


def _add_all(
    buffer: AnyBuffer,
    source: _Source,
    refusal: type[errors.ReplayError],
    refused: str,
    progress: state.Progress | None = None,
) -> int:
    """Read all episodes twice: to check them, then to add them."""
    state.check_progress(progress)
    schema, num_steps = source.description.schema, source.description.num_steps
    if buffer.schema is not None and buffer.schema != schema:
        raise errors.SchemaError(f"buffer must have the schema of {source.label}, {schema}, got {buffer.schema}")
    if num_steps > buffer.capacity:
        raise errors.ArgumentError(f"buffer must have a capacity of at least {num_steps} steps, got {buffer.capacity}")

    def episodes() -> Iterator[stored_episodes.StoredEpisode]:
        try:
            yield from _episodes(schema, source.batches(), num_steps)
        except (errors.CheckpointError, *_BROKEN) as error:
            raise refusal(f"{refused}: {_reason(error)}") from error

    num_read = 0
    _check_streams(buffer, {episode.stream for episode in episodes()})
    for episode in episodes():
        _add(buffer, episode)
        num_read += len(episode)
        if progress is not None:
            progress(num_read * schema.nbytes, num_steps * schema.nbytes)
    return num_steps


def _check_streams(buffer: AnyBuffer, streams: set[int]) -> None:
    least = max(streams, default=0) + 1
    if least > buffer.streams:
        raise errors.ArgumentError(f"buffer must have at least {least} streams, got {buffer.streams}")
    for stream in sorted(streams):
        if buffer._store.is_open(stream) and not buffer._store.is_announced(stream):
            raise errors.ArgumentError(
                f"buffer must know the observation after the newest step of stream {stream}: add that step with "
                "next_observation"
            )


def _add(buffer: AnyBuffer, episode: stored_episodes.StoredEpisode) -> None:
    given: Any = (episode.observations, episode.actions, episode.rewards)
    stream, extras, last = episode.stream, episode.extras, len(episode) - 1
    terminated = episode.status == "COMPLETED"
    if _is_whole(episode):
        buffer.add_episode(*given, terminated=terminated, stream=stream, **extras)
        return
    buffer.end_episode(stream=stream)
    if episode.has_final_observation:
        buffer.add_steps(*given, stream=stream, **extras)
        return
    if last:
        rows = slice(0, last)
        actions, rewards, more = [trees.rows(each, rows) for each in (episode.actions, episode.rewards, extras)]
        buffer.add_steps(episode.observations, actions, rewards, stream=stream, **more)
    # An array keeps its byte order; a scalar would not.
    row, more = [trees.rows(each, (last, ...)) for each in given], trees.rows(extras, (last, ...))
    buffer.add(*row, terminated=terminated, stream=stream, **more)


# Files.


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Source]:
    """Open a Parquet file that relive wrote.

    Raises:
        CheckpointError: There is no such file.
    """
    place = replaced_file.absolute("path", path)
    label = files.named(place)
    with replaced_file.opened(place) as raw, contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(parquet.ParquetFile(raw, page_checksum_verification=True))
            kind = file.schema_arrow
        except _BROKEN as error:
            raise errors.CheckpointError(f"{label} is not a Parquet file, or was cut: {_reason(error)}") from error
        if _KEY not in (kind.metadata or {}):
            raise errors.CheckpointError(f"{label} is a Parquet file that relive did not write")
        try:
            description = _described(kind, file.metadata.num_rows)
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{label} cannot be read: {error}") from error
        size = _batch_size(description.schema)
        yield _Source(label, description, functools.partial(file.iter_batches, batch_size=size))


def _reason(error: Exception) -> str:
    """Return the reason for a failure, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())


# Columns.


def _columns(schema: schema_lib.Schema, paths: list[str], streams: int) -> Any:
    """Return the columns of some fields of a schema, with the metadata for all of it.

    Raises:
        ArgumentError: Arrow cannot hold a field, or not under its path.
    """
    columns = [(name, _type(name, field)) for name, field in _MARKS.items()]
    columns += [(path, _type(path, schema.fields[path])) for path in paths]
    columns += [(f"final_{path}", _type(path, schema.fields[path], sparse=True)) for path in _seen(schema, paths)]
    said = {"format": _FORMAT, "version": VERSION, "streams": streams, "schema": settings.encoded(schema)}
    try:
        schema_lib.Schema._from_description(said["schema"])
        return pyarrow.schema(columns, {_KEY: json.dumps(said).encode()})
    except (errors.CheckpointError, UnicodeEncodeError) as error:
        raise errors.ArgumentError(f"schema must be one that can be read again: {error}") from error


def _described(kind: Any, num_steps: int, schema: schema_lib.Schema | None = None) -> Description:
    """Return the description of columns; without metadata, they must match the given schema.

    Raises:
        CheckpointError: They are foreign, of another version, or do not match their metadata.
    """
    streams = 1
    if _KEY in (kind.metadata or {}):
        said = state.StateReader(dtypes.read_json(kind.metadata[_KEY].decode(errors="replace")), {})
        said.one_of("format", _FORMAT)
        version = said.integer("version", 1)
        if version != VERSION:
            rule = f"it is of format version {version}, and this relive reads {VERSION}"
            raise errors.CheckpointError(f"{rule}: update relive")
        streams = said.integer("streams", 1, column_lib.MOST_STREAMS)
        schema = schema_lib.Schema._from_description(said.value("schema"))
    if schema is None:
        raise errors.CheckpointError("it has no metadata of relive: make the buffer with a schema")
    try:
        wanted = _columns(schema, list(schema.fields), 1)
    except errors.ArgumentError as error:
        raise errors.CheckpointError(str(error)) from error
    if kind.names != wanted.names:
        names = validation.short_repr(kind.names)
        raise errors.CheckpointError(f"its columns must be {', '.join(wanted.names)}, got {names}")
    for name, found, needed in zip(kind.names, kind.types, wanted.types, strict=True):
        if found != needed:  # The names of list elements are not compared.
            raise errors.CheckpointError(f"its column {name} must be of {needed}, got {found}")
    return Description(schema, num_steps, streams)


def _type(path: str, field: schema_lib.Field, *, sparse: bool = False) -> Any:
    """Return the column type of a field; for sparse columns variable-length lists, since nulls have no length.

    Raises:
        ArgumentError: There is none, or a value has no elements or too many.
    """
    size, dtype = math.prod(field.shape), field.dtype
    if not 1 <= size <= _MOST_ELEMENTS:
        raise errors.ArgumentError(f"{path} must have 1 to {_MOST_ELEMENTS} elements, got shape {field.shape}")
    if dtype.kind in _TEXTS:
        values = _TEXTS[dtype.kind]
    elif f"{dtype.kind}{dtype.itemsize}" in _NUMBERS:
        values = pyarrow.from_numpy_dtype(dtype.newbyteorder("="))
    else:
        rule = "be of bools, integers, floats of 2, 4 or 8 bytes, text or bytes"
        raise errors.ArgumentError(f"{path} must {rule}, got {dtype}")
    if not field.shape:
        return values
    if len(field.shape) > 1 and dtype.kind in "iuf" and not sparse:
        return pyarrow.fixed_shape_tensor(values, field.shape)
    return pyarrow.list_(values, -1 if sparse else size)


def _column(path: str, field: schema_lib.Field, array: arrays_lib.Array, *, sparse: bool = False) -> Any:
    """Return the column of the values of a field [N, ...].

    Raises:
        ArgumentError: A text holds a lone surrogate, which UTF-8 cannot encode.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if field.dtype.kind in _TEXTS:
        try:
            values = pyarrow.array(flat.tolist(), _TEXTS[field.dtype.kind])
        except UnicodeEncodeError as error:
            raise errors.ArgumentError(f"{path} must be text without lone surrogates, got {error.object!a}") from error
    else:
        values = pyarrow.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
    if not field.shape:
        return values
    size, kind = math.prod(field.shape), _type(path, field)
    if sparse:
        offsets = pyarrow.array(range(0, len(flat) + 1, size), pyarrow.int32())
        return pyarrow.ListArray.from_arrays(offsets, values)
    lists = pyarrow.FixedSizeListArray.from_arrays(values, size)
    return kind.wrap_array(lists) if isinstance(kind, pyarrow.BaseExtensionType) else lists


def _array(path: str, field: schema_lib.Field, column: Any) -> arrays_lib.Array:
    """Return a copy of the values of a column of the field's type, as an array [N, ...] of the field's dtype.

    Raises:
        CheckpointError: A value is missing or has a wrong length.
    """
    num_missing = column.null_count
    if field.shape:
        size = math.prod(field.shape)
        column = column.storage if isinstance(column, pyarrow.ExtensionArray) else column
        if pyarrow.types.is_list(column.type) and (column.value_lengths().to_numpy(zero_copy_only=False) != size).any():
            raise errors.CheckpointError(f"column {path} must have lists of {size}")
        column = column.flatten()
        num_missing += column.null_count
    if num_missing:
        raise errors.CheckpointError(f"column {path} must have a value in every row, got {num_missing} nulls")
    if field.dtype.kind not in _TEXTS:
        array: arrays_lib.Array = column.to_numpy(zero_copy_only=False).astype(field.dtype)
        return array.reshape(-1, *field.shape)
    texts = column.to_pylist()
    longest, most = max(map(len, texts), default=0), field.dtype.itemsize // np.dtype(f"{field.dtype.kind}1").itemsize
    if longest > most:
        raise errors.CheckpointError(f"column {path} must hold values of at most {most} characters, got {longest}")
    return np.array(texts, field.dtype).reshape(-1, *field.shape)


# Episodes.


def _episodes(
    schema: schema_lib.Schema, batches: Iterable[Any], num_steps: int
) -> Iterator[stored_episodes.StoredEpisode]:
    """Yield the episodes from batches of rows, wherever the batches begin and end.

    Raises:
        CheckpointError: The rows are inconsistent.
    """
    newest: dict[int, tuple[int, bool, bool]] = {}
    num_read = 0
    for _, parts in itertools.groupby(_parts(schema, batches), lambda part: int(part["episode"][0])):
        episode = _episode(schema, list(parts))
        key, was_open, was_cut = newest.get(episode.stream, (-1, False, False))
        if key >= episode.keys[0] or was_open or (was_cut and not _is_whole(episode)):
            raise errors.CheckpointError(f"the episode from key {episode.keys[0]} cannot have followed in its stream")
        # An episode without an end and a final observation was cut when a whole one was added.
        is_cut = episode.status == "TRUNCATED" and not episode.has_final_observation
        newest[episode.stream] = (int(episode.keys[-1]), episode.status == "IN_PROGRESS", is_cut)
        num_read += len(episode)
        yield episode
    if num_read != num_steps:
        raise errors.CheckpointError(f"it must have {num_steps} rows, got {num_read}")
    for key, _, was_cut in newest.values():
        if was_cut:
            raise errors.CheckpointError(f"the episode up to key {key} must be followed by the one that cut it")


def _is_whole(episode: stored_episodes.StoredEpisode) -> bool:
    return episode.has_final_observation and episode.status != "IN_PROGRESS"


def _parts(schema: schema_lib.Schema, batches: Iterable[Any]) -> Iterator[Columns]:
    """Yield the columns of adjacent rows of one episode in a batch."""
    fields = {**_MARKS, **schema.fields}
    for batch in batches:
        if not batch.num_rows:
            continue
        columns = {name: _array(name, field, batch[name]) for name, field in fields.items()}
        found = {path: batch[f"final_{path}"] for path in schema._observation_paths}
        masks = [each.is_valid().to_numpy(zero_copy_only=False) for each in found.values()]
        if any(not np.array_equal(each, masks[0]) for each in masks):
            raise errors.CheckpointError(_FINALS)
        finals = {path: _array(f"final_{path}", schema.fields[path], each.drop_null()) for path, each in found.items()}
        columns["has_final"], places = masks[0], np.append(0, np.cumsum(masks[0]))
        bounds = [0, *(np.flatnonzero(np.diff(columns["episode"])) + 1).tolist(), batch.num_rows]
        for start, stop in itertools.pairwise(bounds):
            part = {name: array[start:stop] for name, array in columns.items()}
            yield part | {f"final_{path}": array[places[start] : places[stop]] for path, array in finals.items()}


def _episode(schema: schema_lib.Schema, parts: list[Columns]) -> stored_episodes.StoredEpisode:
    """Join parts into an episode.

    Raises:
        CheckpointError: The parts do not form an episode.
    """
    columns = parts[0] if len(parts) == 1 else {name: _joined(*[part[name] for part in parts]) for name in parts[0]}
    key, stream, step, terminated, truncated = (columns[name] for name in _MARKS if name != "episode")
    has_final = columns["has_final"]
    kept = {
        "step": step[0] >= 0 and np.array_equal(step[1:], step[:-1] + 1),
        "key": (key[1:] > key[:-1]).all(),
        "stream": stream[0] >= 0 and (stream == stream[0]).all(),
        "terminated": not terminated[:-1].any(),
        "truncated": not truncated[:-1].any() and not (terminated & truncated).any(),
    }
    for name, is_kept in kept.items():
        if not is_kept:
            raise errors.CheckpointError(f"column {name} is not that of whole episodes")
    if has_final[:-1].any():
        raise errors.CheckpointError(_FINALS)
    if not np.isfinite(columns["reward"]).all():
        raise errors.CheckpointError("column reward must be finite")
    rows = {path: columns[path] for path in schema.fields}
    if has_final[-1]:
        rows |= {path: _joined(rows[path], columns[f"final_{path}"]) for path in schema._observation_paths}
    return stored_episodes.StoredEpisode(
        keys=key,
        stream=int(stream[0]),
        start_step=int(step[0]),
        status="COMPLETED" if terminated[-1] else "TRUNCATED" if truncated[-1] else "IN_PROGRESS",
        observations=trees.nested("observation", rows),
        actions=trees.nested("action", rows),
        rewards=rows["reward"],
        extras=dict(trees.nested("extras", rows)),
        has_final_observation=bool(has_final[-1]),
    )


def _joined(*parts: arrays_lib.Array) -> arrays_lib.Array:
    """Concatenate arrays, preserving their byte order."""
    return np.concatenate(parts, dtype=parts[0].dtype)
