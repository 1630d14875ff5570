"""Reads plain values as `codecs` describes, no matter who wrote them: no code runs, and memory is that of the values.

Each function returns the value that starts at an offset, and the offset behind it. It is told how many levels of values
the value may have in it. Bytes that end too early give an IndexError or a struct.error: the codec has the words.
"""

from collections.abc import Callable
import functools
import math
import struct
import sys
from typing import Any, NoReturn, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import plain_encoding

Layout: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], int, bool]

SHORT = 1000
"""Bytes of the description of an array that is worth keeping for the next one."""

_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")


def _break(reason: str, offset: int) -> NoReturn:
    raise errors.CheckpointError(f"plain-1 content {reason}, at byte {offset}")


def _size(content: bytes, offset: int, unit: int = 1) -> tuple[int, int]:
    """Return a size; so many things of at least `unit` bytes are left, or it is refused."""
    start, size = offset, content[offset]
    offset += 1
    if size > 127:
        size &= 127
        for shift in range(7, 63, 7):
            byte = content[offset]
            offset += 1
            size |= (byte & 127) << shift
            if byte < 128:
                break
        else:
            _break("has a size of more than nine bytes", start)
    if size * unit > len(content) - offset:
        _break(f"says {size}, where {len(content) - offset} bytes are left", start)
    return size, offset


def _take(content: bytes, offset: int) -> tuple[bytes, int]:
    size, offset = _size(content, offset)
    return content[offset : offset + size], offset + size


def _take_int(content: bytes, offset: int, levels: int) -> tuple[int, int]:
    digits, end = _take(content, offset)
    if not digits:
        _break("has an int of no bytes", offset)
    return int.from_bytes(digits, "little", signed=True), end


def _take_float(content: bytes, offset: int, levels: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(content, offset)[0], offset + 8


def _take_complex(content: bytes, offset: int, levels: int) -> tuple[complex, int]:
    return complex(*_COMPLEX.unpack_from(content, offset)), offset + 16


def _take_str(content: bytes, offset: int, levels: int) -> tuple[str, int]:
    text, end = _take(content, offset)
    try:
        return text.decode("utf-8", "surrogatepass"), end
    except UnicodeDecodeError:
        _break("has text that is no UTF-8", offset)


def _take_bytes(content: bytes, offset: int, levels: int) -> tuple[bytes, int]:
    return _take(content, offset)


def _take_list(content: bytes, offset: int, levels: int, unit: int = 1) -> tuple[list[Any], int]:
    """Return a list of values: `unit` of them for each that the size counts."""
    start = offset
    size, offset = _size(content, offset, unit)
    if not levels:
        _break(f"is nested more than {plain_encoding.DEEPEST} levels deep", start)
    values = []
    for _ in range(size * unit):
        value, offset = DECODERS[content[offset]](content, offset + 1, levels - 1)
        values.append(value)
    return values, offset


def _take_dict(content: bytes, offset: int, levels: int) -> tuple[dict[Any, Any], int]:
    values, end = _take_list(content, offset, levels, 2)
    # Names are the same in most observations: one of each stays in memory.
    keys = [sys.intern(key) if type(key) is str else key for key in values[::2]]
    _check_keys(keys, offset)
    return dict(zip(keys, values[1::2], strict=True)), end


def _take_set(content: bytes, offset: int, levels: int) -> tuple[set[Any], int]:
    values, end = _take_list(content, offset, levels)
    _check_keys(values, offset)
    return set(values), end


def _check_keys(keys: list[Any], offset: int) -> None:
    try:
        if plain_encoding.are_alike(keys):
            _break(f"has more than {plain_encoding.MOST_ALIKE} keys of the same hash", offset)
        if len(set(keys)) < len(keys):
            _break("has a key twice", offset)
    except TypeError:
        _break("has a key that cannot be one", offset)


def _layout(head: bytes) -> Layout:
    """Return the dtype and shape of an array, how many bytes it has, and whether its values need a look."""
    try:
        layout = dtypes.read_json(head.decode())
    except UnicodeDecodeError:
        layout = None
    if not isinstance(layout, list) or len(layout) != 2 or not isinstance(layout[1], list):
        raise errors.CheckpointError("plain-1 content has an array without a dtype and a shape")
    dtype, shape = dtypes.from_descr(layout[0]), tuple(layout[1])
    is_shape = len(shape) <= 64 and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or not plain_encoding.may_have(dtype, shape):
        raise errors.CheckpointError(f"plain-1 content has an array of shape {validation.short_repr(layout[1])}")
    return dtype, shape, math.prod(shape) * dtype.itemsize, not dtypes.takes_any_bytes(dtype)


_kept_layout = functools.lru_cache(maxsize=1024)(_layout)


def _take_array(content: bytes, offset: int, levels: int) -> tuple[arrays.Array, int]:
    head, start = _take(content, offset)
    if len(head) > dtypes.LONGEST_TEXT:
        _break("has an array with a dtype that is too long", offset)
    dtype, shape, size, needs_a_look = _kept_layout(head) if len(head) <= SHORT else _layout(head)
    if size > len(content) - start:
        _break(f"says {size}, where {len(content) - start} bytes are left", offset)
    array = np.ndarray(shape, dtype, content, start)
    if dtype.names is None:
        array = array.copy()
    else:
        # A copy of fields would have in its gaps what was in memory before.
        fields = array
        array = np.zeros(shape, dtype)
        array[...] = fields
    if needs_a_look:
        dtypes.check_values(array)
    return array, start + size


def _take_scalar(content: bytes, offset: int, levels: int) -> tuple[Any, int]:
    array, end = _take_array(content, offset, levels)
    if array.shape:
        _break("has a scalar with axes", offset)
    # A structured scalar looks into its array, and can be a key only where nobody writes to it.
    array.flags.writeable = False
    return array[()], end


_Decoder: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]


def _made(kind: Callable[[Any], Any], decoder: _Decoder) -> _Decoder:
    """Return a decoder that makes a `kind` of what another one reads."""

    def take(content: bytes, offset: int, levels: int) -> tuple[Any, int]:
        value, end = decoder(content, offset, levels)
        return kind(value), end

    return take


def _take_unknown(content: bytes, offset: int, levels: int) -> NoReturn:
    _break(f"has no value of tag {content[offset - 1]}", offset - 1)


DECODERS: list[_Decoder] = [_take_unknown] * 256
for _tag, _decoder in {
    "N": lambda content, offset, levels: (None, offset),
    "T": lambda content, offset, levels: (True, offset),
    "F": lambda content, offset, levels: (False, offset),
    "i": _take_int,
    "f": _take_float,
    "c": _take_complex,
    "s": _take_str,
    "y": _take_bytes,
    "Y": _made(bytearray, _take_bytes),
    "l": _take_list,
    "t": _made(tuple, _take_list),
    "d": _take_dict,
    "e": _take_set,
    "E": _made(frozenset, _take_set),
    "a": _take_array,
    "g": _take_scalar,
    "u": _made(np.str_, _take_str),
    "z": _made(np.bytes_, _take_bytes),
}.items():
    DECODERS[ord(_tag)] = _decoder
