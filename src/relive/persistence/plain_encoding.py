"""Writes plain values as `codecs` describes: each function returns the bytes of a value.

A function is told how many levels of values the value may have in it. On the way nothing is kept but the bytes: what is
wrong with a value that cannot be written, and where, is looked up afterwards.
"""

import collections
from collections.abc import Callable, Collection, Iterator
import functools
import json
import math
import struct
from typing import Any

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.persistence import dtypes

DEEPEST = 100
"""Levels of values within values."""
MOST_ALIKE = 100
"""Keys of a dict with one hash: more of them were made to take for ever."""
MOST_EMPTY = 2**16
"""Items of an array that take no bytes."""
LARGEST_ARRAY = 2**62
"""Bytes of an array, where axes of length 0 count as 1."""


class NotPlainError(Exception):
    """A value cannot be written; `refusal` finds out which and why."""


def are_alike(keys: Collection[Any]) -> bool:
    """Return whether so many keys have one hash that a dict of them takes quadratic time."""
    return len(keys) > MOST_ALIKE and max(collections.Counter(map(hash, keys)).values()) > MOST_ALIKE


def _head(tag: bytes, size: int) -> bytes:
    head = bytearray(tag)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head)


_HEADS = {tag: tuple(_head(tag, size) for size in range(128)) for tag in (b"i", b"s", b"l", b"t", b"d")}
_INT_HEADS, _STR_HEADS, _LIST_HEADS, _TUPLE_HEADS, _DICT_HEADS = _HEADS.values()
_TAGGED_FLOAT = struct.Struct("<cd").pack
_TAGGED_COMPLEX = struct.Struct("<cdd").pack


def _int(value: int, levels: int) -> bytes:
    size = value.bit_length() // 8 + 1
    head = _INT_HEADS[size] if size < 128 else _head(b"i", size)
    return head + value.to_bytes(size, "little", signed=True)


def _float(value: float, levels: int) -> bytes:
    return _TAGGED_FLOAT(b"f", value)


def _complex(value: complex, levels: int) -> bytes:
    return _TAGGED_COMPLEX(b"c", value.real, value.imag)


def _str(value: str, levels: int) -> bytes:
    text = value.encode("utf-8", "surrogatepass")
    size = len(text)
    return (_STR_HEADS[size] if size < 128 else _head(b"s", size)) + text


def _sized(tag: bytes, content: bytes | bytearray) -> bytes:
    return _head(tag, len(content)) + content


def _list(values: list[Any], levels: int) -> bytes:
    size = len(values)
    return _joined(_LIST_HEADS[size] if size < 128 else _head(b"l", size), values, levels)


def _tuple(values: tuple[Any, ...], levels: int) -> bytes:
    size = len(values)
    return _joined(_TUPLE_HEADS[size] if size < 128 else _head(b"t", size), values, levels)


def _set(tag: bytes, values: Collection[Any], levels: int) -> bytes:
    if are_alike(values):
        raise NotPlainError
    return _joined(_head(tag, len(values)), values, levels)


def _joined(head: bytes, values: Collection[Any], levels: int) -> bytes:
    if not levels:
        raise NotPlainError
    return head + b"".join([ENCODERS[type(value)](value, levels - 1) for value in values])


def _dict(values: dict[Any, Any], levels: int) -> bytes:
    size = len(values)
    if not levels or (size > MOST_ALIKE and are_alike(values)):
        raise NotPlainError
    parts = [_DICT_HEADS[size] if size < 128 else _head(b"d", size)]
    for key, value in values.items():
        parts.append(ENCODERS[type(key)](key, levels - 1))
        parts.append(ENCODERS[type(value)](value, levels - 1))
    return b"".join(parts)


def _array(value: arrays.Array, levels: int) -> bytes:
    head, needs_a_look = _array_head(b"a", value.dtype, value.shape)
    if needs_a_look:
        dtypes.check_values(value)
    return head + value.tobytes()


def _scalar(value: np.generic, levels: int) -> bytes:
    head, needs_a_look = _array_head(b"g", value.dtype, ())
    if needs_a_look:
        dtypes.check_values(np.asarray(value))
    return head + value.tobytes()


@functools.lru_cache(maxsize=1024)
def _array_head(tag: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, bool]:
    """Return all that is written of an array but its items, and whether these need a look."""
    layout = f"[{_dtype_text(dtype)},{json.dumps(shape, separators=(',', ':'))}]"
    if len(layout) > dtypes.LONGEST_TEXT or not may_have(dtype, shape):
        raise NotPlainError
    return _sized(tag, layout.encode()), not dtypes.takes_any_bytes(dtype)


@functools.lru_cache(maxsize=256)
def _dtype_text(dtype: np.dtype[Any]) -> str:
    try:
        return dtypes.text(dtype)
    except errors.ArgumentError:
        raise NotPlainError from None


def may_have(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether there are arrays of a dtype of this shape: numpy goes over items of no bytes one by one."""
    size = math.prod(max(length, 1) for length in shape)
    return size * dtype.itemsize <= LARGEST_ARRAY if dtype.itemsize else size <= MOST_EMPTY


def refusal(value: Any) -> errors.ArgumentError:
    """Return what is wrong with a value that cannot be written: the first thing met on the way through it."""
    walk: list[Iterator[tuple[str, Any]]] = [iter([("value", value)])]
    around: list[Any] = []
    while walk:
        step = next(walk[-1], None)
        if step is None:
            walk.pop()
            del around[-1:]
            continue
        path, item = step
        if type(item) not in (list, tuple, dict, set, frozenset):
            try:
                ENCODERS[type(item)](item, 0)
            except (KeyError, NotPlainError):
                return _not_plain(path, item)
            except errors.CheckpointError:
                return errors.ArgumentError(f"{path} {dtypes.VALUES}")
            continue
        if any(item is other for other in around):
            return errors.ArgumentError(f"{path} must not be what it is a part of, got {validation.short_repr(item)}")
        if len(around) == DEEPEST:
            return errors.ArgumentError(f"value must be nested at most {DEEPEST} levels deep")
        if not isinstance(item, list | tuple) and are_alike(item):
            return errors.ArgumentError(f"{path} must have at most {MOST_ALIKE} keys of the same hash")
        around.append(item)
        walk.append(_parts(path, item))
    return errors.ArgumentError("value must not change while it is written")


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is in a value, and where, in the order of writing."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"a key of {path}", key
            yield f"{path}[{validation.short_repr(key)}]", item
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield f"{path}[{position}]", item
    else:
        for item in value:
            yield f"an item of {path}", item


def _not_plain(path: str, value: Any) -> errors.ArgumentTypeError:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else kind.__module__ + "."
    what = f"{module}{kind.__qualname__} {validation.short_repr(value)}"
    if isinstance(value, np.ndarray | np.generic) and kind in ENCODERS:
        what = f"{what} of {validation.short_repr(value.dtype)}"
    rule = "be None, bool, int, float, complex, str, bytes, list, tuple, dict, set or of numpy without objects"
    return errors.ArgumentTypeError(f"{path} must {rule}, got {what}: give codec= an object with encode and decode")


ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    type(None): lambda value, levels: b"N",
    bool: lambda value, levels: b"T" if value else b"F",
    int: _int,
    float: _float,
    complex: _complex,
    str: _str,
    bytes: lambda value, levels: _sized(b"y", value),
    bytearray: lambda value, levels: _sized(b"Y", value),
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: lambda values, levels: _set(b"e", values, levels),
    frozenset: lambda values, levels: _set(b"E", values, levels),
    np.ndarray: _array,
    **dict.fromkeys((np.dtype(code).type for code in "?bhilqBHILQefdgFDGmMV"), _scalar),
    np.str_: lambda value, levels: _sized(b"u", value.encode("utf-8", "surrogatepass")),
    np.bytes_: lambda value, levels: _sized(b"z", bytes(value)),
}
