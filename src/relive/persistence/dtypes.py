"""Dtypes as text, without pickle or eval, and parsed strictly.

    "<f4"                                            floats of 4 bytes, the lowest byte first
    [["x", "<f4"], ["image", "|u1", [8, 8]]]         a float, and behind it an array of bytes, of shape [8, 8]
    [["x", "|u1"], ["", "|V3"], ["y", "<i4"]]        the same with a gap of 3 bytes: a nameless part
    [["pose", [["x", "<f4"], ["y", "<f4"]]]]         fields within fields

This is how numpy describes dtypes in its files, with lists for tuples. A description is valid if numpy makes a dtype
of it that describes itself in the same way. Object dtypes have none. `docs/format.md` has the texts of single values.
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

_LARGEST_ITEM = 2**31 - 1
"""Bytes of one item."""
LONGEST_TEXT = 2**16 - 1
"""Characters of the text of a dtype."""
DEEPEST = 16
"""Levels of fields within fields."""
MOST_AXES = 32
"""Axes of an array in a file, or in a field."""
VALUES = "must hold bools that are 0 or 1, and characters of Unicode"
"""The rule that `are_values` asks for."""

_LAST_CHARACTER = 0x10FFFF
_SIMPLE = re.compile(r"[<>|][biufcSUVmM][0-9]+(\[([1-9][0-9]*)?[A-Za-z]+\])?")
"""What may be given to numpy, which also takes lists of types, names of classes and units of no length."""


def described(dtype: DType) -> Any:
    """Return the description of a dtype, a str or a list of fields; that of another dtype if it has none.

    >>> import numpy as np
    >>> from relive.persistence import dtypes
    >>> dtypes.described(np.dtype([("x", "<f4"), ("image", "u1", (8, 8))]))
    [['x', '<f4'], ['image', '|u1', [8, 8]]]
    """
    return _in_lists(as_numpy_writes(dtype))


def as_numpy_writes(dtype: DType) -> Any:
    """Return the description with tuples, as it is in a .npy file."""
    return dtype.str if dtype.names is None else np.lib.format.drop_metadata(dtype).descr


def _in_lists(description: Any) -> Any:
    return [_in_lists(part) for part in description] if isinstance(description, list | tuple) else description


def has_description(dtype: DType) -> bool:
    """Return whether a dtype comes back from its description: false for objects, titles and overlapping fields."""
    try:
        return from_description(described(dtype)) == dtype
    except (ValueError, RecursionError, errors.CheckpointError):
        return False


def text(dtype: DType) -> str:
    """Return the text of a dtype, in ASCII; raise ArgumentError if it has no description."""
    written = json.dumps(described(dtype), separators=(",", ":")) if has_description(dtype) else ""
    if not 0 < len(written) <= LONGEST_TEXT:
        rule = "be of bools, numbers, text, bytes, dates, durations, or fields of these that lie one behind another"
        raise errors.ArgumentError(f"dtype must {rule}, got {validation.short_repr(dtype)}")
    return written


def from_description(description: object) -> DType:
    """Return the dtype that is described by a str or by lists of fields; raise CheckpointError if they are invalid."""
    return _of_text(description) if isinstance(description, str) else _of(description)


def _of(description: object) -> DType:
    try:
        dtype = np.lib.format.descr_to_dtype(_in_tuples(description, DEEPEST))
        if _is_readable(dtype) and described(dtype) == description:
            return dtype
    except (TypeError, ValueError, OverflowError):
        pass
    rule = "be a description of values without objects, that this machine has"
    raise errors.CheckpointError(f"dtype must {rule}, got {validation.short_repr(description)}")


_of_text = functools.lru_cache(256)(_of)


def _in_tuples(description: Any, levels: int) -> Any:
    """Return a description that numpy can be given safely, for numpy."""
    if isinstance(description, str) and _SIMPLE.fullmatch(description):
        return description
    if isinstance(description, str) or not levels:
        raise ValueError("not the text of single values, or too many levels")
    return [(name, _in_tuples(part, levels - 1), *map(tuple, shape)) for name, part, *shape in description]


def _is_readable(dtype: DType) -> bool:
    """Return whether no field is without a name, and no array in one too large, or of items without bytes.

    There may be any number of these, and numpy loops over them one by one.
    """
    if dtype.subdtype is not None:
        nbytes = math.prod(max(size, 1) for size in dtype.shape) * dtype.base.itemsize
        return 0 < nbytes <= _LARGEST_ITEM and len(dtype.shape) <= MOST_AXES and _is_readable(dtype.base)
    return dtype.names is None or ("" not in dtype.names and all(_is_readable(dtype[name]) for name in dtype.names))


def read_json(written: str) -> Any:
    """Return the value of a JSON text; raise CheckpointError if it is invalid."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        raise errors.CheckpointError(f"{validation.short_repr(written)} is not JSON") from None


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
    """Raise CheckpointError unless `are_values`."""
    if not are_values(array):
        raise errors.CheckpointError(f"an array {VALUES}")
