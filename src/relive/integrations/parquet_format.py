"""What is in a Parquet file of steps: a row a step, whole episodes in each group of rows.

    key stream episode step terminated truncated status    where a step belongs
    observation action reward extras/...                   the fields, by path
    final_observation                                      by path too, and null but in the last row of an episode

The metadata say, under "relive", what a step holds: {"format": "relive steps", "version": 1, "streams": 1, "schema":
[["observation", "<f4", [4]], ...]}.
"""

from collections.abc import Iterator
import dataclasses
import json
from typing import Any

import numpy as np

from relive import errors
from relive.buffers import column as column_lib
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations import arrow_columns
from relive.integrations import step_columns
from relive.integrations import stored_episodes
from relive.persistence import dtypes
from relive.persistence import settings
from relive.persistence import state
from relive.schema import schema as schema_lib

with imports.optional_dependency("arrow"):
    import pyarrow
    from pyarrow import compute


VERSION = 1
_FORMAT = "relive steps"
_KEY = b"relive"
_STATUS = pyarrow.dictionary(pyarrow.int8(), pyarrow.string())
_COMPLETED, _TRUNCATED = step_columns.STATUSES.index("COMPLETED"), step_columns.STATUSES.index("TRUNCATED")
_MARKS = {name: schema_lib.Field((), dtype) for name, dtype in step_columns.MARKS.items()}


@dataclasses.dataclass(frozen=True)
class Description:
    """What a file says of itself.

    Attributes:
        schema: What a step holds.
        num_steps: How many there are.
        streams: How many streams the buffer had that it was written from.
    """

    schema: schema_lib.Schema
    num_steps: int
    streams: int


# Writing.


def arrow_schema(schema: schema_lib.Schema, streams: int) -> Any:
    """Return the columns of a file, with what is said of them.

    Raises:
        ArgumentError: A field has no place in a file, or would not be found in it again.
    """
    for path in schema.fields:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise errors.ArgumentError(f"paths must be text without lone surrogates, got {path!a}") from error
    columns = [(name, arrow_columns.type_of(name, field)) for name, field in _MARKS.items()]
    columns.append(("status", _STATUS))
    columns += [(path, arrow_columns.type_of(path, field)) for path, field in schema.fields.items()]
    columns += [
        (f"final_{path}", arrow_columns.sparse_type_of(path, schema.fields[path])) for path in schema.observation_paths
    ]
    said = {"format": _FORMAT, "version": VERSION, "streams": streams, "schema": settings.encoded(schema)}
    try:
        schema_lib.Schema.from_description(said["schema"])
    except errors.CheckpointError as error:
        raise errors.ArgumentError(f"schema must be one that can be read again: {error}") from error
    return pyarrow.schema(columns, {_KEY: json.dumps(said).encode()})


def table_of(schema: schema_lib.Schema, kind: Any, group: list[stored_episodes.StoredEpisode]) -> Any:
    """Return the rows of some episodes."""
    given = [step_columns.marks(episode) | step_columns.fields(episode) for episode in group]
    columns = {
        name: arrow_columns.column_of(name, field, np.concatenate([arrays[name] for arrays in given]))
        for name, field in {**_MARKS, **schema.fields}.items()
    }
    lengths = np.array([len(episode) for episode in group])
    codes = np.array([step_columns.STATUSES.index(episode.status) for episode in group], np.int8)
    columns["status"] = pyarrow.DictionaryArray.from_arrays(np.repeat(codes, lengths), step_columns.STATUSES)
    has_final = np.array([episode.has_final_observation for episode in group])
    rows, count = (np.cumsum(lengths) - 1)[has_final], int(lengths.sum())
    known = [step_columns.final_observation(episode) for episode in group if episode.has_final_observation]
    for path in schema.observation_paths:
        field = schema.fields[path]
        finals = np.concatenate([np.zeros((0, *field.shape), field.dtype), *[each[path] for each in known]])
        columns[f"final_{path}"] = arrow_columns.spread(arrow_columns.column_of(path, field, finals), rows, count)
    return pyarrow.table([columns[name] for name in kind.names], schema=kind)


# Reading.


def described(label: str, file: Any) -> Description:
    """Return what an open file says of itself.

    Raises:
        CheckpointError: It is not ours, of another version, or has not the columns of which it speaks.
    """
    raw = (file.schema_arrow.metadata or {}).get(_KEY)
    if raw is None:
        raise errors.CheckpointError(f"{label} is a Parquet file that relive did not write")
    try:
        said = state.StateReader(dtypes.read_json(raw.decode(errors="replace")), {})
        said.one_of("format", _FORMAT)
        version = said.integer("version", 1)
        if version != VERSION:
            raise errors.CheckpointError(
                f"it is of format version {version}, and this relive reads {VERSION}: update relive"
            )
        streams = said.integer("streams", 1, column_lib.MOST_STREAMS)
        schema = schema_lib.Schema.from_description(said.value("schema"))
        _check_columns(file.schema_arrow, schema)
        num_steps = _num_rows(file.metadata)
    except (errors.CheckpointError, errors.ArgumentError) as error:
        raise errors.CheckpointError(f"{label} cannot be read: {error}") from error
    return Description(schema, num_steps, streams)


def _num_rows(metadata: Any) -> int:
    """Return how many rows there are, by two accounts that agree."""
    counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if metadata.num_rows != sum(counts) or min(counts, default=0) < 0:
        raise errors.CheckpointError(f"its groups must have {metadata.num_rows} rows together, got {sum(counts)}")
    return sum(counts)


def _check_columns(found: Any, schema: schema_lib.Schema) -> None:
    """Raise CheckpointError unless those are the columns of a file of that schema."""
    wanted = arrow_schema(schema, 1)
    if found.names != wanted.names:
        raise errors.CheckpointError(
            f"its columns must be {', '.join(wanted.names)}, got {validation.short_repr(found.names)}"
        )
    for name in wanted.names:
        kinds = [each.field(name).type for each in (found, wanted)]
        if name == "status":  # Versions of pyarrow read back different dictionaries of the same texts.
            kinds = [kind.value_type if pyarrow.types.is_dictionary(kind) else kind for kind in kinds]
        if kinds[0] != kinds[1]:  # What they call the elements of a list is not compared.
            raise errors.CheckpointError(f"its column {name} must be of {kinds[1]}, got {kinds[0]}")


def episodes(schema: schema_lib.Schema, table: Any) -> Iterator[stored_episodes.StoredEpisode]:
    """Yield the episodes of a group.

    Raises:
        CheckpointError: They cannot be what was stored.
    """
    marks = {name: arrow_columns.array_of(name, field, table[name]) for name, field in _MARKS.items()}
    columns = {path: arrow_columns.array_of(path, field, table[path]) for path, field in schema.fields.items()}
    codes = _codes(table["status"])
    numbers = marks["episode"]
    is_last = np.diff(numbers, append=numbers[-1:] + 1) != 0
    goes_on = ~is_last[:-1]
    orders = [
        (np.diff(marks["step"]) == 1)[goes_on].all() and bool((marks["step"] >= 0).all()),
        (np.diff(marks["key"]) > 0)[goes_on].all(),
        (np.diff(marks["stream"]) == 0)[goes_on].all() and bool((marks["stream"] >= 0).all()),
        (np.diff(codes) == 0)[goes_on].all(),
        np.array_equal(marks["terminated"], is_last & (codes == _COMPLETED)),
        np.array_equal(marks["truncated"], is_last & (codes == _TRUNCATED)),
    ]
    for name, is_in_order in zip(("step", "key", "stream", "status", "terminated", "truncated"), orders, strict=True):
        if not is_in_order:
            raise errors.CheckpointError(f"column {name} is not that of whole episodes")
    has_final, finals = _finals(schema, table, is_last)
    start = place = 0
    for end in (np.flatnonzero(is_last) + 1).tolist():
        rows = {path: column[start:end] for path, column in columns.items()}
        if has_final[end - 1]:
            for path, column in finals.items():
                rows[path] = np.empty((end - start + 1, *column.shape[1:]), column.dtype)
                rows[path][:-1], rows[path][-1] = columns[path][start:end], column[place]
            place += 1
        yield stored_episodes.StoredEpisode(
            keys=marks["key"][start:end],
            stream=int(marks["stream"][start]),
            start_step=int(marks["step"][start]),
            status=step_columns.STATUSES[codes[start]],
            observations=trees.nested("observation", rows),
            actions=trees.nested("action", rows),
            rewards=rows["reward"],
            extras=dict(trees.nested("extras", rows)),
            has_final_observation=bool(has_final[end - 1]),
        )
        start = end


def _codes(column: Any) -> arrays_lib.Array:
    """Return the numbers of statuses [N]."""
    functions: Any = compute  # Made when it is imported: nobody has annotated them.
    codes = functions.index_in(column.cast(pyarrow.string()), pyarrow.array(step_columns.STATUSES)).combine_chunks()
    if codes.null_count:
        raise errors.CheckpointError(f"column status must hold {' or '.join(step_columns.STATUSES)} alone")
    numbers: arrays_lib.Array = codes.to_numpy()
    return numbers


def _finals(
    schema: schema_lib.Schema, table: Any, is_last: arrays_lib.Array
) -> tuple[arrays_lib.Array, dict[str, arrays_lib.Array]]:
    """Return behind which rows there is an observation [N], and the columns of those that there are."""
    columns = {path: table[f"final_{path}"].combine_chunks() for path in schema.observation_paths}
    has_finals = [column.is_valid().to_numpy(zero_copy_only=False) for column in columns.values()]
    has_final = has_finals[0]
    if any(not np.array_equal(each, has_final) for each in has_finals) or (has_final & ~is_last).any():
        raise errors.CheckpointError("final observations must be whole, and in the last rows of episodes")
    return has_final, {
        path: arrow_columns.array_of(f"final_{path}", schema.fields[path], column.drop_null())
        for path, column in columns.items()
    }


class Order:
    """Knows the newest episode of each stream."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, str, bool]] = {}

    def check(self, episode: stored_episodes.StoredEpisode) -> None:
        """Record of the next episode.

        Raises:
            CheckpointError: It cannot have followed in its stream.
        """
        before = self._newest.get(episode.stream)
        self._newest[episode.stream] = (int(episode.keys[-1]), episode.status, episode.has_final_observation)
        if before is None:
            return
        key, status, has_final = before
        # An episode that nobody ended, and that has no final observation, was cut when a whole one was added.
        is_whole = episode.has_final_observation and episode.status != "IN_PROGRESS"
        was_cut = status == "TRUNCATED" and not has_final
        if key >= episode.keys[0] or status == "IN_PROGRESS" or (was_cut and not is_whole):
            raise errors.CheckpointError(f"the episode from key {episode.keys[0]} cannot have followed in its stream")
