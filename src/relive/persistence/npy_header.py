"""The head of a .npy file, from a dtype and a shape: what describes them, and nothing that parses it.

    magic, version, length    {'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }    spaces    newline

A dtype is described as in the head, but in JSON, as `dtypes` has it.
"""

import math
import struct
from typing import Any

import numpy as np

from relive import errors
from relive.common import validation
from relive.persistence import dtypes

_MOST_LENGTH = 2**63 - 1
MOST_AXES = 32
_GROWTH_DIGITS = 21
"""So many characters may the length of the first axis grow to, in place."""

_ALIGNMENT = 64


def dtype_of(description: object) -> np.dtype[Any]:
    """Answers the dtype of a description.

    Raises:
        CheckpointError: It is no description that `dtypes.described` answers, or one of no bytes.
    """
    refused = f"dtype must be a description of values without objects, got {validation.shown(description)}"
    try:
        dtype = dtypes.from_descr(description)
    except errors.CheckpointError as error:
        raise errors.CheckpointError(refused) from error
    if not dtype.itemsize or dtypes.described(dtype) != description:
        raise errors.CheckpointError(refused)
    return dtype


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Checks that a file can hold values of a dtype.

    Raises:
        ArgumentError: They are objects, or of no size, or their fields have titles, overlap or are out of order.
    """
    if dtype.hasobject:
        raise errors.ArgumentError(f"{name} must hold no Python objects, got dtype {validation.shown(dtype)}")
    try:
        is_same = dtype_of(dtypes.described(dtype)) == dtype
    except errors.CheckpointError:
        is_same = False
    if not is_same:
        raise errors.ArgumentError(
            f"{name} must be of a dtype that a .npy file can hold, got {validation.shown(dtype)}"
        )


def shape_of(value: object) -> tuple[int, ...]:
    """Answers the shape that a list of lengths is.

    Raises:
        CheckpointError: It is none.
    """
    if type(value) is not list or not 1 <= len(value) <= MOST_AXES:
        raise errors.CheckpointError(f"shape must be a list of 1 to {MOST_AXES} lengths, got {validation.shown(value)}")
    if not all(type(length) is int and 0 <= length <= _MOST_LENGTH for length in value):
        raise errors.CheckpointError(f"shape must hold lengths of at least 0, got {validation.shown(value)}")
    return tuple(value)


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Answers all bytes before the first row: version 1.0 of the format, 2.0 if they are too many for it."""
    text = f"{{'descr': {_packed(dtypes.described(dtype))!a}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (_GROWTH_DIGITS - len(repr(shape[0])))
    prefix = np.lib.format.MAGIC_PREFIX
    size = _aligned(len(prefix) + 4, len(text) + 1)
    if size < 1 << 16:
        prefix += b"\x01\x00" + struct.pack("<H", size)
    else:
        size = _aligned(len(prefix) + 6, len(text) + 1)
        prefix += b"\x02\x00" + struct.pack("<I", size)
    return prefix + text.ljust(size - 1).encode("ascii") + b"\n"


def _packed(description: Any) -> Any:
    """Answers a description in tuples, as numpy writes it."""
    if isinstance(description, str):
        return description
    return [(name, _packed(part), *map(tuple, shape)) for name, part, *shape in description]


def _aligned(start: int, size: int) -> int:
    """Answers the least size above `size` that, from `start` on, ends where rows may begin."""
    return size + _ALIGNMENT - (start + size) % _ALIGNMENT


def size_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Answers how many bytes the file of an array takes."""
    return len(header(dtype, shape)) + dtype.itemsize * math.prod(shape)
