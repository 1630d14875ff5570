"""The head of a .npy file, from a dtype and a shape: what describes them, and nothing that parses it.

    magic, version, length    {'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }    spaces    newline

A dtype is described as in the head, but in JSON: "<f4", or for one with fields a list of [name, description] and [name,
description, shape]. A gap is a field without a name: ["", "|V3"].
"""

import math
import re
import struct
from typing import Any

import numpy as np

from relive import checks
from relive import errors

_SCALAR = re.compile(r"[<>|][biufcSUVmM]([1-9][0-9]{0,9})(\[([1-9][0-9]{0,8})?[A-Za-z]{1,2}\])?")
_MOST_ITEM_BYTES = 2**31 - 1
"""No larger item is made; numpy itself does not notice when the sizes of fields overflow."""

_MOST_LENGTH = 2**63 - 1
MOST_AXES = 32
_MOST_DEPTH = 16
_GROWTH_DIGITS = 21
"""So many characters may the length of the first axis grow to, in place."""

_ALIGNMENT = 64


def described(dtype: np.dtype[Any]) -> Any:
    """Answers the description of a dtype, as JSON."""
    if dtype.names is None:
        return dtype.str
    fields: list[Any] = []
    end = 0
    parts: Any = dtype.fields
    for name in dtype.names:
        field, offset = parts[name][:2]
        if offset > end:
            fields.append(["", f"|V{offset - end}"])
        fields.append([name, described(field.base), *([list(field.shape)] if field.shape else [])])
        end = offset + field.itemsize
    if dtype.itemsize > end:
        fields.append(["", f"|V{dtype.itemsize - end}"])
    return fields


def dtype_of(description: object) -> np.dtype[Any]:
    """Answers the dtype of a description.

    Raises:
        CheckpointError: It is no description that `described` answers, or one of objects, of no bytes, or of too many.
    """
    refused = f"dtype must be a description of values without objects, got {checks.shown(description)}"
    packed, size = _packed(description, _MOST_DEPTH)
    if packed is None or not 0 < size <= _MOST_ITEM_BYTES:
        raise errors.CheckpointError(refused)
    try:
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(packed)
    except Exception as error:  # Whatever numpy thinks of it.
        raise errors.CheckpointError(refused) from error
    if dtype.itemsize != size or dtype.hasobject or described(dtype) != description:
        raise errors.CheckpointError(refused)
    return dtype


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Checks that a file can hold values of a dtype.

    Raises:
        ArgumentError: They are objects, or of no size, or their fields have titles, overlap or are out of order.
    """
    if dtype.hasobject:
        raise errors.ArgumentError(f"{name} must hold no Python objects, got dtype {checks.shown(dtype)}")
    try:
        is_same = dtype_of(described(dtype)) == dtype
    except errors.CheckpointError:
        is_same = False
    if not is_same:
        raise errors.ArgumentError(f"{name} must be of a dtype that a .npy file can hold, got {checks.shown(dtype)}")


def shape_of(value: object) -> tuple[int, ...]:
    """Answers the shape that a list of lengths is.

    Raises:
        CheckpointError: It is none.
    """
    if type(value) is not list or not 1 <= len(value) <= MOST_AXES:
        raise errors.CheckpointError(f"shape must be a list of 1 to {MOST_AXES} lengths, got {checks.shown(value)}")
    if not all(type(length) is int and 0 <= length <= _MOST_LENGTH for length in value):
        raise errors.CheckpointError(f"shape must hold lengths of at least 0, got {checks.shown(value)}")
    return tuple(value)


def _packed(description: object, depth: int) -> tuple[Any, int]:
    """Answers a description as numpy wants it, and the bytes of an item; None and 0 if it is none."""
    if type(description) is str:
        match = _SCALAR.fullmatch(description)
        return (description, int(match[1]) * (4 if description[1] == "U" else 1)) if match else (None, 0)
    if type(description) is not list or not description or depth == 0:
        return None, 0
    fields: list[Any] = []
    size = 0
    for field in description:
        if type(field) is not list or not 2 <= len(field) <= 3 or type(field[0]) is not str:
            return None, 0
        packed, part = _packed(field[1], depth - 1)
        if packed is None:
            return None, 0
        shape = [shape_of(axes) for axes in field[2:]]
        size += part * math.prod(math.prod(lengths) for lengths in shape)
        if size > _MOST_ITEM_BYTES:
            return None, 0
        fields.append((field[0], packed, *shape))
    return fields, size


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Answers all bytes before the first row: version 1.0 of the format, 2.0 if they are too many for it."""
    descr, _ = _packed(described(dtype), _MOST_DEPTH)
    text = f"{{'descr': {descr!a}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (_GROWTH_DIGITS - len(repr(shape[0])))
    prefix = np.lib.format.MAGIC_PREFIX
    size = _aligned(len(prefix) + 4, len(text) + 1)
    if size < 1 << 16:
        prefix += b"\x01\x00" + struct.pack("<H", size)
    else:
        size = _aligned(len(prefix) + 6, len(text) + 1)
        prefix += b"\x02\x00" + struct.pack("<I", size)
    return prefix + text.ljust(size - 1).encode("ascii") + b"\n"


def _aligned(start: int, size: int) -> int:
    """Answers the least size above `size` that, from `start` on, ends where rows may begin."""
    return size + _ALIGNMENT - (start + size) % _ALIGNMENT


def size_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Answers how many bytes the file of an array takes."""
    return len(header(dtype, shape)) + dtype.itemsize * math.prod(shape)
