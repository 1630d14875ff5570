"""The checkpointed state of an item buffer: its items, oldest first, and the required columns.

    lengths      3        1    2              rows of each item [items]; of fragments, of each column [items, columns]
    values/name  r r r    r    r r            those of one item after those of another

Their positions in the ring are not saved.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive import errors
from relive.buffers import item_cuts
from relive.common import arrays
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import npy
from relive.persistence import state
from relive.storage import ragged

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


def read(
    given: state.StateReader, unit: item_cuts.StorageUnit, capacity: int, allocate: ragged.Allocate
) -> tuple[dict[str, arrays.Array], ragged.RaggedColumns, dict[str, int]]:
    """Return an empty column for each required name, the items, and the counters of a buffer of that capacity.

    Raises:
        CheckpointError: The state is invalid.
    """
    columns = _columns(given.value("columns"))
    if columns:
        try:
            item_cuts.CUTS[unit](columns)
        except errors.SchemaError as error:
            raise errors.CheckpointError(f"columns cannot be cut into {unit}: {error}") from error
    fields = item_cuts.fields_of(item_cuts.stored(columns, unit))
    items = ragged.RaggedColumns.loaded(given, capacity, fields, is_uneven=unit == "fragments", allocate=allocate)
    if len(items) and not columns:
        raise errors.CheckpointError("columns must be there where there is an item")
    longest = items.lengths.max(initial=0)
    if unit == "timesteps" and longest > 1:
        raise given.refused("lengths", "1 for each of the timesteps", int(longest))
    if unit == "sequences" and len(items) and longest > np.iinfo(columns["seq_lens"].dtype).max:
        raise errors.CheckpointError(
            f"array lengths must hold what {columns['seq_lens'].dtype} of column seq_lens holds, got {longest}"
        )
    counters = {name: given.part("counters").integer(name) for name in COUNTERS}
    if counters["added"] - counters["evicted"] < len(items):
        raise errors.CheckpointError(f"counters must be of a buffer that holds {len(items)} items")
    return columns, items, counters


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
