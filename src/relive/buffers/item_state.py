"""The checkpointed state of an item buffer: its items, oldest first, and the required columns.

    lengths      3        1    2              rows of each item [items]; of fragments, of each column [items, columns]
    rows/name    r r r    r    r r            those of one item after those of another

Their positions in the ring are not saved.
"""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

import numpy as np

from relive import errors
from relive.buffers import item_cuts
from relive.common import arrays
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import npy
from relive.persistence import state

COUNTERS = ("added", "sampled", "evicted", "dropped")


def described(columns: Mapping[str, arrays.Array]) -> list[Any]:
    """Return the name, the dtype and the shape of a row of each column, as JSON values.

    Raises:
        CheckpointError: A file cannot hold such values.
    """
    for name, column in columns.items():
        try:
            npy.check_dtype(f"column {name}", column.dtype)
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"column {name} cannot be saved: {error}") from error
    return [[name, dtypes.described(column.dtype), list(column.shape[1:])] for name, column in columns.items()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemState:
    """The items of a buffer, oldest first.

    Attributes:
        columns: An empty column for each required name.
        lengths: How many rows each item has [items], or of fragments each column of it [items, columns].
        rows: The rows of the items, one after the other, by name.
        counters: The counters, by name.
    """

    columns: Mapping[str, arrays.Array]
    lengths: arrays.Ints
    rows: Mapping[str, state.ChunkedArray]
    counters: Mapping[str, int]

    @classmethod
    def of(cls, given: state.StateReader, unit: item_cuts.StorageUnit, capacity: int) -> "ItemState":
        """Return the state that was given, for a buffer of that unit and capacity.

        Raises:
            CheckpointError: The state is invalid.
        """
        columns = _columns(given.value("columns"))
        if columns:
            try:
                item_cuts.CUTS[unit](columns)
            except errors.SchemaError as error:
                raise errors.CheckpointError(f"columns cannot be cut into {unit}: {error}") from error
        stored = [name for name in columns if (unit, name) != ("sequences", "seq_lens")]
        if unit == "fragments":
            lengths = _ragged(given, len(stored), capacity)
            totals = [sum(lengths[:, place].tolist()) for place in range(len(stored))]
        else:
            lengths = given.integers("lengths", None, 1, 1 if unit == "timesteps" else capacity)
            totals = [sum(lengths.tolist())] * len(stored)
        if len(lengths) and not columns:
            raise errors.CheckpointError("columns must be there where there is an item")
        timesteps = sum(item_lengths(lengths).tolist())
        if timesteps > capacity:
            raise errors.CheckpointError(
                f"array lengths must sum to at most capacity = {capacity} time steps, got {timesteps}"
            )
        if unit == "sequences" and len(lengths) and lengths.max() > np.iinfo(columns["seq_lens"].dtype).max:
            raise errors.CheckpointError(
                f"array lengths must hold what {columns['seq_lens'].dtype} of column seq_lens holds, "
                f"got {lengths.max()}"
            )
        counters = {name: given.part("counters").integer(name) for name in COUNTERS}
        if counters["added"] - counters["evicted"] < len(lengths):
            raise errors.CheckpointError(f"counters must be of a buffer that holds {len(lengths)} items")
        rows = {
            name: given.column(f"rows/{name}", columns[name].dtype, (total, *columns[name].shape[1:]))
            for name, total in zip(stored, totals, strict=True)
        }
        return cls(columns=columns, lengths=lengths, rows=rows, counters=counters)


def item_lengths(lengths: arrays.Ints) -> arrays.Ints:
    """Return how many time steps each item has [items], from the saved lengths."""
    return lengths if lengths.ndim == 1 else lengths.max(axis=1, initial=0)


def pieces(column: state.ChunkedArray, lengths: arrays.Ints) -> Iterator[arrays.Array]:
    """Yield the rows of each item of those lengths [items], as separate arrays; reads about a chunk at a time."""
    ends = np.cumsum(lengths)
    row_bytes = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    size = max(1, state.CHUNK // max(row_bytes, 1))
    first = begin = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, begin + size, side="right")))
        part = column.read(begin, int(ends[last - 1]))
        start = 0
        for end in (ends[first:last] - begin).tolist():
            yield part[start:end].copy()
            start = end
        first, begin = last, int(ends[last - 1])


def _columns(value: object) -> dict[str, arrays.Array]:
    """Return a column of no rows for each that was described."""
    rule = "columns must be a list of a name, a dtype and the shape of a row for each"
    if not isinstance(value, list):
        raise errors.CheckpointError(f"{rule}, got {validation.short_repr(value)}")
    columns: dict[str, arrays.Array] = {}
    for row in value:
        is_row = isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[2], list)
        if not is_row or row[0] in columns or not all(type(axis) is int and axis >= 0 for axis in row[2]):
            raise errors.CheckpointError(f"{rule}, got {validation.short_repr(row)}")
        try:
            columns[row[0]] = np.zeros((0, *row[2]), npy.dtype_of(row[1]))
        except (ValueError, OverflowError, MemoryError, errors.CheckpointError) as error:
            raise errors.CheckpointError(f"column {row[0]} cannot be: {error}") from error
    return columns


def _ragged(given: state.StateReader, columns: int, capacity: int) -> arrays.Ints:
    """Return how many rows each column of each fragment has [items, columns]."""
    lengths: arrays.Ints = given.array("lengths", np.int64, (None, columns))
    longest = item_lengths(lengths)
    if (lengths < 0).any() or (longest < 1).any() or (longest > capacity).any():
        raise errors.CheckpointError(
            f"array lengths must hold integers in [0, {capacity}], and in each row one above 0, where there is an item"
        )
    return lengths
