"""Dtypes as text, without pickle or eval, and parsed strictly.

    "<f4"                                            floats of 4 bytes, the lowest byte first
    [["x", "<f4"], ["image", "|u1", [8, 8]]]         a float, and behind it an array of bytes, of shape [8, 8]
    [["x", "|u1"], ["", "|V3"], ["y", "<i4"]]        the same with a gap of 3 bytes: a nameless part
    [["pose", [["x", "<f4"], ["y", "<f4"]]]]         fields within fields

This is numpy's `dtype.descr` as JSON, with lists for tuples. A text consists of byte order, kind and size:

    order  "<" lowest byte first, ">" highest byte first, "|" where there is none
    kind   "|b1" bool; "i" and "u" integers of 1 ("|"), 2, 4, 8 bytes; "f" floats of 2, 4, 8 bytes; "c" complex of 8,
           16; "|S5" 5 bytes, "<U5" 5 characters of 4 bytes, both filled up with zeros; "|V5" 5 bytes without a
           meaning; "<m8[ms]" durations and "<M8[ms]" dates, in integers of 8 bytes; the unit (Y M W D h m s ms us ns
           ps fs as) may have a factor, as in "[25s]", or be left out with its brackets
    wide   "f12", "f16", "c24" and "c32" are the long double of the machine: readable only where it is the same

Object dtypes have no text. A dtype parsed from its text equals the original.
"""

import functools
import json
import math
import re
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import validation

DType: TypeAlias = np.dtype[Any]

LARGEST_ITEM = 2**31 - 1
"""Bytes of one item."""
LONGEST_TEXT = 2**16 - 1
"""Characters of the text of a dtype."""
DEEPEST = 16
"""Levels of fields within fields."""
MOST_AXES = 32
"""Axes of an array in a field."""
VALUES = "must hold bools that are 0 or 1, and characters of Unicode"
"""The rule that `are_values` asks for."""

_LAST_CHARACTER = 0x10FFFF

_NUMBER = r"0|[1-9][0-9]{0,9}"
_SIMPLE = re.compile(
    rf"\|b1|\|[iu]1|[<>][iu][248]|[<>]f(?:2|4|8|12|16)|[<>]c(?:8|16|24|32)|\|[SV](?P<bytes>{_NUMBER})"
    rf"|[<>]U(?P<characters>{_NUMBER})|[<>][mM]8(?:\[(?:[1-9][0-9]{{0,8}})?(?:[YMWDhms]|[munpfa]s)\])?"
)


def described(dtype: DType) -> Any:
    """Return the description of a dtype, a str or a list of fields; that of another dtype if it has none.

    >>> import numpy as np
    >>> from relive.persistence import dtypes
    >>> dtypes.described(np.dtype([("x", "<f4"), ("image", "u1", (8, 8))]))
    [['x', '<f4'], ['image', '|u1', [8, 8]]]
    """
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


def text(dtype: DType) -> str:
    """Return the text of a dtype, in ASCII.

    Raises:
        ArgumentError: It has none: it holds objects, belongs to another library, or its fields overlap, have titles or
            are out of order.

    >>> import numpy as np
    >>> from relive.persistence import dtypes
    >>> dtypes.text(np.dtype([("x", "<f4"), ("image", "u1", (8, 8))]))
    '[["x","<f4"],["image","|u1",[8,8]]]'
    """
    try:
        written = json.dumps(described(dtype), separators=(",", ":"))
        is_the_same = parsed(written) == dtype
    except (ValueError, RecursionError, errors.CheckpointError):
        written, is_the_same = "", False
    if not is_the_same:
        rule = "be of bools, numbers, text, bytes, dates, durations, or fields of these that lie one behind another"
        raise errors.ArgumentError(f"dtype must {rule}, got {validation.short_repr(dtype)}")
    return written


def parsed(written: str) -> DType:
    """Return the dtype of a text.

    Raises:
        CheckpointError: The text is invalid.
    """
    if len(written) > LONGEST_TEXT:
        raise errors.CheckpointError(f"dtype has a text of {len(written)} characters, more than {LONGEST_TEXT}")
    return from_descr(read_json(written))


def read_json(written: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        CheckpointError: It is invalid.
    """
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        raise errors.CheckpointError(f"{validation.short_repr(written)} is not JSON") from None


def from_descr(descr: object) -> DType:
    """Return the dtype that is described by a str, or by lists or tuples of fields.

    Raises:
        CheckpointError: It is invalid.
    """
    return _dtype(descr, DEEPEST)


def _dtype(descr: object, levels: int) -> DType:
    if isinstance(descr, str):
        return _simple(descr)
    if not isinstance(descr, list | tuple):
        raise errors.CheckpointError(f"dtype must be a text or a list of fields, got {validation.short_repr(descr)}")
    if not levels:
        raise errors.CheckpointError(f"dtype must have at most {DEEPEST} levels of fields")
    names: list[str] = []
    formats: list[DType] = []
    offsets: list[int] = []
    end = 0
    for field in descr:
        name, part = _field(field, levels - 1)
        if name:
            names.append(name)
            formats.append(part)
            offsets.append(end)
        end += part.itemsize
    if end > LARGEST_ITEM:
        raise errors.CheckpointError(f"dtype must have items of at most {LARGEST_ITEM} bytes, got {end}")
    if len(set(names)) < len(names):
        raise errors.CheckpointError(f"dtype must have fields of different names, got {validation.short_repr(names)}")
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": end})


@functools.lru_cache(maxsize=256)
def _simple(descr: str) -> DType:
    match = _SIMPLE.fullmatch(descr)
    if match is None:
        raise errors.CheckpointError(f"{validation.short_repr(descr)} is not a dtype that files may have")
    if int(match["bytes"] or 0) + 4 * int(match["characters"] or 0) > LARGEST_ITEM:
        raise errors.CheckpointError(f"dtype must have items of at most {LARGEST_ITEM} bytes, got {descr}")
    try:
        return np.dtype(descr)
    except TypeError:
        raise errors.CheckpointError(f"{descr} is a dtype that this machine does not have") from None


def _field(field: object, levels: int) -> tuple[str, DType]:
    """Return the name of a field, empty for a gap, and its dtype."""
    if not isinstance(field, list | tuple) or len(field) not in (2, 3) or not isinstance(field[0], str):
        raise errors.CheckpointError(
            f"field of a dtype must be a name, a dtype and a shape, got {validation.short_repr(field)}"
        )
    name = field[0]
    part = _dtype(field[1], levels)
    if not name and (len(field) > 2 or part.kind != "V" or part.names is not None):
        raise errors.CheckpointError(
            f"gap in a dtype must be bytes without a meaning, got {validation.short_repr(field)}"
        )
    if len(field) < 3:
        return name, part
    shape = field[2]
    is_shape = isinstance(shape, list | tuple) and all(type(size) is int and size >= 0 for size in shape)
    # There may be any number of items without bytes, and numpy loops over them one by one.
    if not is_shape or len(shape) > MOST_AXES or not part.itemsize:
        raise errors.CheckpointError(f"field {validation.short_repr(name)} of a dtype has no shape that can be read")
    if math.prod(max(size, 1) for size in shape) * part.itemsize > LARGEST_ITEM:
        raise errors.CheckpointError(
            f"field {validation.short_repr(name)} of a dtype has more than {LARGEST_ITEM} bytes"
        )
    return name, np.dtype((part, tuple(shape)))


def takes_any_bytes(dtype: DType) -> bool:
    """Return whether any bytes are valid values of a dtype: true except for bools and characters."""
    if dtype.fields is not None:
        return all(takes_any_bytes(field[0].base) for field in dtype.fields.values())
    return dtype.kind not in "bU"


def are_values(array: npt.NDArray[Any]) -> bool:
    """Return whether bytes are valid values; numpy accepts any bytes as bools or characters, and fails later."""
    dtype = array.dtype
    if takes_any_bytes(dtype) or not array.size:
        return True
    if dtype.names is not None:
        return all(are_values(array.reshape(-1)[name]) for name in dtype.names)
    if dtype.kind == "b":
        return bool(array.view(np.uint8).max() <= 1)
    characters = array.view((dtype.str[0] + "u4", (dtype.itemsize // 4,)))
    return not dtype.itemsize or bool(characters.max() <= _LAST_CHARACTER)


def check_values(array: npt.NDArray[Any]) -> None:
    """Check values that were read as bytes.

    Raises:
        CheckpointError: A bool is neither 0 nor 1, or a character lies beyond 0x10FFFF.
    """
    if not are_values(array):
        raise errors.CheckpointError(f"an array {VALUES}")
