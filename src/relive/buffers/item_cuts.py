"""How a batch of columns is cut into items."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.schema import schema as schema_lib

StorageUnit = Literal["timesteps", "sequences", "episodes", "fragments"]


def stored(columns: Mapping[str, arrays_lib.Array], unit: StorageUnit) -> dict[str, arrays_lib.Array]:
    """Return the columns that are stored: all but seq_lens, which holds the lengths of the items."""
    return {name: column for name, column in columns.items() if (unit, name) != ("sequences", "seq_lens")}


def stored_fields(columns: Mapping[str, arrays_lib.Array], unit: StorageUnit) -> dict[str, schema_lib.Field]:
    """Return what a row of each column is that is stored."""
    return {name: schema_lib.Field(column.shape[1:], column.dtype) for name, column in stored(columns, unit).items()}


def cut(columns: Mapping[str, arrays_lib.Array], unit: StorageUnit) -> tuple[arrays_lib.Ints, arrays_lib.Bools]:
    """Return the lengths of the items in a batch [k], and whether each is complete [k]; others are dropped."""
    if unit == "episodes":
        return _episodes(columns)
    if unit == "sequences":
        lengths = _sequences(columns)
    elif unit == "timesteps":
        lengths = np.ones(_row_count(columns), np.int64)
    else:
        lengths = np.array([max(map(len, columns.values()))])
    return lengths, np.ones(len(lengths), np.bool_)


def _row_count(columns: Mapping[str, arrays_lib.Array]) -> int:
    first, *others = columns
    rows = len(columns[first])
    for name in others:
        if len(columns[name]) != rows:
            raise errors.SchemaError(
                f"column {name} must have {rows} rows as column {first} has, got {len(columns[name])}"
            )
    return rows


def _sequences(columns: Mapping[str, arrays_lib.Array]) -> arrays_lib.Ints:
    """Return the lengths of the runs of rows given by seq_lens."""
    others = {name: column for name, column in columns.items() if name != "seq_lens"}
    _require(columns, "sequences", {"seq_lens": "seq_lens" in columns, "a column of rows": bool(others)})
    rows = _row_count(others)
    lengths = _column(columns, "seq_lens", "iu", "an integer a sequence").astype(np.int64)
    # No length exceeds the number of rows, so the sum cannot overflow.
    if (lengths < 1).any() or (lengths > rows).any() or lengths.sum() != rows:
        raise errors.SchemaError(
            f"column seq_lens must hold integers of at least 1 that sum to the {rows} rows of the other columns, "
            f"got {validation.short_repr(lengths.tolist())}"
        )
    return lengths


def _episodes(columns: Mapping[str, arrays_lib.Array]) -> tuple[arrays_lib.Ints, arrays_lib.Bools]:
    """Return the runs of equal eps_id; complete are those whose first t is 0 and whose last row ends the episode."""
    ends = [name for name in ("terminated", "truncated") if name in columns]
    present = {"eps_id": "eps_id" in columns, "t": "t" in columns, "terminated or truncated": bool(ends)}
    _require(columns, "episodes", present)
    rows = _row_count(columns)
    ids = _column(columns, "eps_id", "biufUS", "a number or a string a row")
    times = _column(columns, "t", "biuf", "a number a row")
    is_first = np.ones(rows, np.bool_)
    is_first[1:] = ids[1:] != ids[:-1]
    firsts = np.flatnonzero(is_first)
    lengths = np.diff(firsts, append=rows)
    is_over = np.zeros(len(firsts), np.bool_)
    for name in ends:
        is_over |= _column(columns, name, "biuf", "a number a row")[firsts + lengths - 1].astype(np.bool_)
    return lengths, (times[firsts] == 0) & is_over


def _column(columns: Mapping[str, arrays_lib.Array], name: str, kinds: str, rule: str) -> arrays_lib.Array:
    """Return the column [k] that items are cut by; its dtype must be one of the numpy `kinds`."""
    column = columns[name]
    if column.ndim != 1 or column.dtype.kind not in kinds:
        raise errors.SchemaError(
            f"column {name} must hold {rule}, got dtype {column.dtype} and shape {list(column.shape)}"
        )
    return column


def _require(columns: Mapping[str, arrays_lib.Array], unit: str, names: Mapping[str, bool]) -> None:
    missing = " and ".join(name for name, is_there in names.items() if not is_there)
    if missing:
        raise errors.SchemaError(f"columns must include {missing} to be cut into {unit}, got {', '.join(columns)}")
