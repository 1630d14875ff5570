"""Columns of numpy as columns of Arrow and back, to the last bit.

bool, integers, floats     the same          [N]
text "<U5", bytes "|S5"    string, binary    [N]
any of them [N, 2, 3]      lists of 6, row by row; the shape is in the schema
"""

import math
from typing import Any

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import imports
from relive.schema import schema as schema_lib

with imports.optional_dependency("arrow"):
    import pyarrow


_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_MOST_ELEMENTS = 2**31 - 1
_TEXTS = {"U": pyarrow.string(), "S": pyarrow.binary()}


def type_of(path: str, field: schema_lib.Field) -> Any:
    """Return the type that a column of a field has.

    Raises:
        ArgumentError: There is none, or a value has no element or too many.
    """
    size, dtype = math.prod(field.shape), field.dtype
    if not size:
        raise errors.ArgumentError(f"{path} must have an element at least, got shape {field.shape}")
    if size > _MOST_ELEMENTS:
        raise errors.ArgumentError(f"{path} must have at most {_MOST_ELEMENTS} elements, got shape {field.shape}")
    if dtype.kind in _TEXTS:
        values = _TEXTS[dtype.kind]
    elif f"{dtype.kind}{dtype.itemsize}" in _NUMBERS:
        values = pyarrow.from_numpy_dtype(dtype.newbyteorder("="))
    else:
        rule = "be of bools, integers, floats of 2, 4 or 8 bytes, text or bytes"
        raise errors.ArgumentError(f"{path} must {rule}, got {dtype}")
    return pyarrow.list_(values, size) if field.shape else values


def sparse_type_of(path: str, field: schema_lib.Field) -> Any:
    """Return the type of a column that is null in most rows; lists in it are of any length, as null is of none.

    Raises:
        ArgumentError: What `type_of` raises.
    """
    dense = type_of(path, field)
    return pyarrow.list_(dense.value_type) if field.shape else dense


def column_of(path: str, field: schema_lib.Field, array: arrays.Array) -> Any:
    """Return the column of the values of a field [N, ...].

    Raises:
        ArgumentError: A text holds a lone surrogate, which UTF-8 does not have.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if field.dtype.kind in _TEXTS:
        try:
            values = pyarrow.array(flat.tolist(), _TEXTS[field.dtype.kind])
        except UnicodeEncodeError as error:
            raise errors.ArgumentError(f"{path} must be text without lone surrogates, got {error.object!a}") from error
    else:
        values = pyarrow.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
    return pyarrow.FixedSizeListArray.from_arrays(values, math.prod(field.shape)) if field.shape else values


def spread(column: Any, rows: arrays.Ints, count: int) -> Any:
    """Return a sparse column of `count` rows with those of `column` at `rows`, ascending, and nulls elsewhere."""
    is_null = np.ones(count, np.bool_)
    is_null[rows] = False
    if not pyarrow.types.is_fixed_size_list(column.type):
        places = np.cumsum(~is_null) - 1
        return column.take(pyarrow.array(places, mask=is_null))
    ends = np.cumsum(~is_null) * column.type.list_size
    offsets = pyarrow.array(np.append(0, ends), pyarrow.int32())
    return pyarrow.ListArray.from_arrays(offsets, column.flatten(), mask=pyarrow.array(is_null))


def array_of(path: str, field: schema_lib.Field, column: Any) -> arrays.Array:
    """Return a copy of the values of a column of the field's type, as an array [N, ...] of the field's dtype.

    Raises:
        CheckpointError: A value is missing, or is of another length.
    """
    values = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    num_missing = values.null_count
    if field.shape:
        size = math.prod(field.shape)
        if pyarrow.types.is_list(values.type) and (values.value_lengths().to_numpy(zero_copy_only=False) != size).any():
            raise errors.CheckpointError(f"column {path} must have lists of {size}")
        values = values.flatten()
        num_missing += values.null_count
    if num_missing:
        raise errors.CheckpointError(f"column {path} must have a value in every row, got {num_missing} nulls")
    if field.dtype.kind in _TEXTS:
        texts = values.to_pylist()
        longest, most = (
            max(map(len, texts), default=0),
            field.dtype.itemsize // np.dtype(f"{field.dtype.kind}1").itemsize,
        )
        if longest > most:
            raise errors.CheckpointError(f"column {path} must hold values of at most {most} characters, got {longest}")
        array = np.array(texts, field.dtype)
    else:
        array = values.to_numpy(zero_copy_only=False).astype(field.dtype)
    return array.reshape(-1, *field.shape)
