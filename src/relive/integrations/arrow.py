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

from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import json
import math
import os
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column as column_lib
from relive.buffers import stored
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations import step_columns
from relive.persistence import checkpoint
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
Columns: TypeAlias = dict[str, Any]

VERSION = 1
_FORMAT, _KEY = "relive steps", b"relive"
_BATCH = 1 << 22
"""Bytes of the fields in a batch, at most, if it has more than one row."""
_BROKEN = (errors.CheckpointError, OSError, ValueError, ArithmeticError, pyarrow.ArrowException)
"""What is raised where a table or a file is broken."""
_MARKS = {name: schema_lib.Field((), dtype) for name, dtype in step_columns.MARKS.items()}
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
        buffer: The buffer to read; the reader raises ArgumentError if the buffer changes after the first batch and
            before the last.
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
        path: A file that is missing or was made by `write_parquet`; its parent must exist.
        overwrite: Whether to replace an older file; its mode is kept.
        progress: Called after each batch with the number of bytes read so far and the total.

    Raises:
        ArgumentError: The file cannot hold a field, as in `to_batches`.
        ArgumentTypeError: An argument has the wrong type.
        CheckpointError: `path` is something else, or writing failed.
        NotReadyError: The buffer has no schema yet.
    """
    overwrite = validation.boolean("overwrite", overwrite)
    state.check_progress(progress)
    batches = _reader("write_parquet", buffer, progress=progress)
    place = files.absolute("path", path, "file")
    if os.path.lexists(place):
        if not overwrite:
            raise errors.CheckpointError(f"{files.named(place)} exists: name another path")
        try:
            describe(place)
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{error}: name another path") from error
    try:
        with (
            files.replacing(place) as file,
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
    with _refusing(errors.ArgumentError, "schema cannot be that of a table"):
        kind = _columns(schema, paths, buffer.streams)
    return pyarrow.RecordBatchReader.from_batches(kind, _batches(call, buffer._store, kind, paths, progress))


def _batches(
    call: str, history: steps.StepStore, kind: Any, paths: list[str], progress: state.Progress | None
) -> Iterator[Any]:
    fields, rows = history.schema.fields, step_columns.rows_of(history)
    size = _batch_size(history.schema)
    runs = [np.arange(start, min(start + size, len(rows.slots))) for start in range(0, len(rows.slots), size)]
    for here in step_columns.in_turn(call, history, runs, progress):
        columns = {name: _column(name, field, rows.marks[name][here]) for name, field in _MARKS.items()}
        read = history.read_rows(rows.slots[here], paths)
        columns |= {path: _column(path, fields[path], read[path]) for path in paths}
        has_final = rows.has_final[here]
        turns = pyarrow.array(np.cumsum(has_final) - 1, mask=~has_final)
        for path in columns.keys() & {*schema_lib.paths_of(history.schema, "observation")}:
            finals = step_columns.final_observations(history, rows, path, here[has_final])
            columns[f"final_{path}"] = _column(path, fields[path], finals, sparse=True).take(turns)
        yield pyarrow.record_batch([columns[name] for name in kind.names], schema=kind)


def _batch_size(schema: schema_lib.Schema) -> int:
    return _BATCH // schema.nbytes + 1


# Import.


def add_table(buffer: AnyBuffer, table: "pyarrow.Table | pyarrow.RecordBatchReader | dataset.Dataset") -> int:
    """Add the episodes of a table to a buffer, and return the number of steps added.

    The columns must be those of `to_batches`, in the same order and with the same types: nothing is cast. Keys are new,
    and an episode whose first steps are missing begins with the first remaining step. An open episode is truncated
    after its last step, since its continuation is unknown. Where the observation after that step is unknown too, the
    step cannot be drawn and is left out; after a termination zeros stand for it, as in a batch.

    Args:
        buffer: The buffer to add to; without a schema it takes that of the metadata.
        table: A table, a dataset, or a reader, which is read into memory, with relive's metadata; after other
            libraries `cast(arrow.to_batches(buffer).schema)` restores them.

    Raises:
        ArgumentError: The buffer has too small a capacity, or lacks the stream of an episode.
        ArgumentTypeError: An argument has the wrong type.
        NotReadyError: The limiter holds inserts back; earlier episodes were added.
        SchemaError: The columns differ from those expected, or from the buffer's schema: nothing was added. Or rows
            cannot be read, or do not form an episode: earlier episodes were added.

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
    with _refusing(errors.SchemaError, "table cannot be added"):
        table = table.read_all() if isinstance(table, pyarrow.RecordBatchReader) else table
        source = table if isinstance(table, dataset.Dataset) else dataset.dataset(table)
        said = _described(source.schema, source.count_rows())
        batches = source.to_batches(batch_size=_batch_size(said.schema), batch_readahead=1, fragment_readahead=1)
    return _add(buffer, "table", said, batches, errors.SchemaError)


def add_parquet(buffer: AnyBuffer, path: Path, *, progress: state.Progress | None = None) -> int:
    """Add the episodes of a file from `write_parquet` to a buffer, and return the number of steps; see `add_table`.

    Args:
        buffer: The buffer to add to.
        path: The file; memory use is a batch, or the longest episode.
        progress: Called after each episode with the number of bytes added so far and the total.

    Raises:
        CheckpointError: The file is missing, not one of relive's, truncated, or of another version: nothing was added.
            Or it is damaged: earlier episodes were added.
        ReplayError: As in `add_table`.
    """
    validation.require_instance("buffer", buffer, column_lib.ColumnReplayBuffer)
    state.check_progress(progress)
    with _opened(path) as (label, said, file):
        batches = file.iter_batches(batch_size=_batch_size(said.schema))
        return _add(buffer, label, said, batches, errors.CheckpointError, progress)


def describe(path: Path) -> Description:
    """Return the description of a file from `write_parquet`, without reading steps.

    Raises:
        ArgumentError: `path` is not a path.
        CheckpointError: The file is missing, not one of relive's, truncated, or of another version.
    """
    with _opened(path) as (_, said, _):
        return said


def _add(
    buffer: AnyBuffer,
    label: str,
    said: Description,
    batches: Iterable[Any],
    refusal: type[errors.ReplayError],
    progress: state.Progress | None = None,
) -> int:
    """Add the episodes in batches of rows, and return the number of steps; `refusal` is raised if they are broken."""
    if buffer.schema is not None and buffer.schema.fields != said.schema.fields:
        raise errors.SchemaError(f"buffer must have the schema of {label}, {said.schema}, got {buffer.schema}")
    if said.num_steps > buffer.capacity:
        raise errors.ArgumentError(
            f"buffer must have a capacity of at least {said.num_steps} steps, got {buffer.capacity}"
        )
    num_added, size = 0, said.schema.nbytes
    for number, episode in _episodes(said.schema, batches, refusal, f"{label} is damaged"):
        try:
            num_added += len(buffer.add_episode(**episode))
        except errors.ArgumentError as error:
            raise type(error)(f"{error} in episode {number}") from error
        if progress is not None:
            progress(num_added * size, said.num_steps * size)
    return num_added


def _episodes(
    schema: schema_lib.Schema, batches: Iterable[Any], refusal: type[errors.ReplayError], rule: str
) -> Iterator[tuple[int, Columns]]:
    """Yield the number of each episode and its arguments for `add_episode`, wherever batches begin and end."""
    with _refusing(refusal, rule):
        for table in _tables(batches):
            yield from _episodes_of(schema, table)


def _tables(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield tables of whole episodes."""
    rest: list[Any] = []
    newest: Any = None
    for batch in batches:
        numbers = batch["episode"].to_numpy(zero_copy_only=False)
        newest = numbers[:0] if newest is None else newest
        (changes,) = np.diff(numbers, prepend=newest).nonzero()
        num_whole = int(changes[-1]) + 1 - len(newest) if len(changes) else 0
        if changes.size:
            yield pyarrow.Table.from_batches([*rest, batch.slice(0, num_whole)])
            rest = []
        rest.append(batch.slice(num_whole))
        newest = numbers[-1:] if len(numbers) else newest
    if newest is not None and len(newest):
        yield pyarrow.Table.from_batches(rest)


def _episodes_of(schema: schema_lib.Schema, table: Any) -> Iterator[tuple[int, Columns]]:
    """Yield the number of each episode of a table, and its arguments for `add_episode`.

    Raises:
        CheckpointError: A value is missing, or the rows do not form episodes.
    """
    (batch,) = table.combine_chunks().to_batches()
    columns = {name: _array(name, field, batch[name]) for name, field in {**_MARKS, **schema.fields}.items()}
    seen = schema_lib.paths_of(schema, "observation")
    is_known = batch[f"final_{seen[0]}"].is_valid()
    finals = {path: _array(path, schema.fields[path], batch[f"final_{path}"].filter(is_known)) for path in seen}
    has_final, terminated = is_known.to_numpy(zero_copy_only=False), columns["terminated"]
    goes_on = np.diff(columns["episode"], append=~columns["episode"][-1]) == 0
    is_wrong = goes_on & (terminated | columns["truncated"] | has_final)
    is_wrong[:-1] |= goes_on[:-1] & ((np.diff(columns["step"]) != 1) | (np.diff(columns["stream"]) != 0))
    for number in columns["episode"][is_wrong]:
        raise errors.CheckpointError(f"episode {number} must have its steps one after another, and end with the last")
    ends, num_finals = np.flatnonzero(~goes_on) + 1, np.cumsum(has_final)
    for start, stop in zip([0, *ends], ends, strict=False):
        last = stop - 1
        if has_final[last]:
            after = {path: finals[path][num_finals[last] - 1 : num_finals[last]] for path in seen}
        elif terminated[last]:
            after = {path: np.zeros_like(columns[path][:1]) for path in seen}
        else:
            after, stop = {path: columns[path][last:stop] for path in seen}, last
        if start == stop:
            continue
        rows: Columns = {path: columns[path][start:stop] for path in schema.fields}
        # An array of another byte order keeps it.
        around = {path: np.concatenate([rows[path], after[path]], dtype=after[path].dtype) for path in seen}
        arguments = {
            "observations": trees.nested("observation", around),
            "actions": trees.nested("action", rows),
            "rewards": rows["reward"],
            "terminated": bool(terminated[last]),
            "stream": int(columns["stream"][last]),
            **trees.nested("extras", rows),
        }
        yield int(columns["episode"][last]), arguments


# Files.


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[str, Description, parquet.ParquetFile]]:
    """Open a Parquet file that relive wrote, and yield its name in errors, its description, and it.

    Raises:
        CheckpointError: There is no such file.
    """
    place = files.absolute("path", path, "file")
    label = files.named(place)
    if not os.path.isfile(place):  # A pipe would be waited for.
        raise errors.CheckpointError(f"{label} {'is not a file' if os.path.lexists(place) else 'does not exist'}")
    with files.opened(place) as file, files.raising(place, "cannot be read"):
        checkpoint.refuse_foreign(label, file.read(checkpoint.HEAD_BYTES))
    with contextlib.ExitStack() as stack:
        with _refusing(errors.CheckpointError, f"{label} is not a Parquet file, or was cut"):
            file = stack.enter_context(parquet.ParquetFile(place, page_checksum_verification=True))
        with _refusing(errors.CheckpointError, f"{label} cannot be read"):
            said = _described(file.schema_arrow, file.metadata.num_rows)
        yield label, said, file


@contextlib.contextmanager
def _refusing(refusal: type[errors.ReplayError], rule: str) -> Iterator[None]:
    """Turn what a broken table or file raises into an error of one line."""
    try:
        yield
    except _BROKEN as error:
        raise refusal(f"{rule}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the reason for a failure, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())


# Columns.


def _columns(schema: schema_lib.Schema, paths: list[str], streams: int) -> Any:
    """Return the columns of some fields of a schema, with the metadata for all of it."""
    columns = [(name, _type(name, field)) for name, field in _MARKS.items()]
    columns += [(path, _type(path, schema.fields[path])) for path in paths]
    seen = [path for path in paths if path in schema_lib.paths_of(schema, "observation")]
    columns += [(f"final_{path}", _type(path, schema.fields[path], sparse=True)) for path in seen]
    said = {"format": _FORMAT, "version": VERSION, "streams": streams, "schema": settings.encoded(schema)}
    return pyarrow.schema(columns, {_KEY: json.dumps(said).encode()})


def _described(kind: Any, num_steps: int) -> Description:
    """Return the description of columns by their metadata.

    Raises:
        ReplayError: They are foreign, of another version, or do not match their metadata.
    """
    if _KEY not in (kind.metadata or {}):
        is_ours = kind.names[: len(_MARKS)] == list(_MARKS)
        remedy = "cast(arrow.to_batches(buffer).schema) restores them" if is_ours else checkpoint.FOREIGN
        raise errors.CheckpointError(f"it has no metadata of relive: {remedy}")
    said = state.StateReader(dtypes.read_json(kind.metadata[_KEY].decode(errors="replace")), {})
    said.one_of("format", _FORMAT)
    version = said.integer("version", 1)
    if version != VERSION:
        rule = f"it is of format version {version}, and this relive reads {VERSION}"
        raise errors.CheckpointError(f"{rule}: update relive")
    streams = said.integer("streams", 1, stored.MOST_STREAMS)
    schema = settings.schema_of(said.value("schema"))
    wanted = _columns(schema, list(schema.fields), streams)
    if kind.names != wanted.names:
        names = validation.short_repr(kind.names)
        raise errors.CheckpointError(f"its columns must be {', '.join(wanted.names)}, got {names}")
    for name, found, needed in zip(kind.names, kind.types, wanted.types, strict=True):
        if found != needed:  # The names of list elements are not compared.
            raise errors.CheckpointError(f"its column {name} must be of {needed}, got {found}")
    return Description(schema, num_steps, streams)


def _type(path: str, field: schema_lib.Field, *, sparse: bool = False) -> Any:
    """Return the column type of a field; for sparse columns variable-length lists, since nulls have no length."""
    size, kind = math.prod(field.shape), field.dtype.kind
    if kind not in "biufUS" or not size:
        raise errors.ArgumentError(f"{path} must be of bools, integers, floats, text or bytes, got {field}")
    values = _TEXTS.get(kind) or pyarrow.from_numpy_dtype(field.dtype.newbyteorder("="))
    if not field.shape:
        return values
    if len(field.shape) > 1 and kind in "iuf" and not sparse:
        return pyarrow.fixed_shape_tensor(values, field.shape)
    return pyarrow.list_(values, -1 if sparse else size)


def _column(path: str, field: schema_lib.Field, array: arrays_lib.Array, *, sparse: bool = False) -> Any:
    """Return the column of the values of a field [N, ...]."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if field.dtype.kind in _TEXTS:
        values = pyarrow.array(flat.tolist(), _TEXTS[field.dtype.kind])
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
