"""Codecs: encode observations and actions as bytes, for checkpoints and journals.

The format of PlainCodec is described in docs/format.md: a tag of one byte, followed by its payload. An encoder returns
the bytes of a value; for a value that cannot be encoded, the reason is found afterwards. A decoder returns the value at
an offset, and the offset after it; truncated bytes raise IndexError or struct.error. Both take the number of nesting
levels allowed.
"""

import collections
from collections.abc import Callable, Collection, Iterator
import functools
import json
import math
import operator
import struct
import sys
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.persistence import dtypes

_DEEPEST = 100
"""Levels of values within values."""
_TOO_DEEP = f"is nested more than {_DEEPEST} levels deep"
_MOST_ALIKE = 100
"""Keys of a dict with one hash: more of them were made to take for ever."""
_MOST_EMPTY = 2**16
"""Items of an array that take no bytes."""
_LARGEST_ARRAY = 2**62
"""Bytes of an array, where axes of length 0 count as 1."""
_SHORTEST_RUN = 8
"""Numbers in a list: fewer are written one by one."""
_SHORT = 1000
"""Bytes of the description of an array that is worth keeping for the next one."""
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_RUNS = {int: "bhiq", float: "d"}
"""The codes of `struct` for numbers of each type, the narrowest first."""
_WIDTHS = {ord(code): struct.calcsize(f"<{code}") for code in "bhiqd"}


class Codec(Protocol):
    """Encodes observations and actions as bytes; implement it for custom types."""

    @property
    def name(self) -> str:
        """The name stored in files; another codec refuses to read them."""
        ...

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""
        ...

    def decode(self, content: bytes) -> Any:
        """Return the value of the bytes."""
        ...


class PlainCodec:
    r"""Encodes JSON values, bytes, complex numbers, tuples, sets, and numpy arrays and scalars, nested arbitrarily.

    Values are restored exactly, with their types: integers of any size, the payload of a NaN, the order of a dict.
    Objects shared inside a value become copies. Arrays are restored with an equal dtype, in C order, writable, and in
    their own memory. Only exactly these types are supported: a named tuple, an enum, an OrderedDict, a dataclass or a
    subclass of ndarray is refused rather than converted to its base.

    >>> from relive.persistence import codec
    >>> codec = codec.PlainCodec()
    >>> content = codec.encode({"role": "user", "tokens": (15, -3)})
    >>> content
    b'd\x02s\x04roles\x04users\x06tokenst\x02i\x01\x0fi\x01\xfd'
    >>> codec.decode(content)
    {'role': 'user', 'tokens': (15, -3)}
    """

    name = "plain-1"

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value.

        Raises:
            ArgumentTypeError: The value contains an unsupported type.
            ArgumentError: The value contains itself, is nested too deeply, or has too many keys with the same hash.
        """
        try:
            try:
                return _ENCODERS[type(value)](value, _DEEPEST)
            except (KeyError, errors.ReplayError):
                refused = _refusal("value", value, ())
        except RecursionError:
            raise errors.ArgumentError(
                "value is nested too deeply for the call stack: encode it from fewer nested calls"
            ) from None
        raise refused or errors.ArgumentError("value must not change while it is written")

    def decode(self, content: bytes) -> Any:
        """Return the value of the bytes, which may be untrusted: no code is run, and memory is bounded by the value.

        Raises:
            ArgumentTypeError: `content` is not bytes.
            CheckpointError: The bytes are invalid.
        """
        if type(content) is not bytes:
            raise errors.ArgumentTypeError(f"content must be bytes, got {validation.short_repr(content)}")
        try:
            value, end = _DECODERS[content[0]](content, 1, _DEEPEST)
        except (IndexError, struct.error):
            raise errors.CheckpointError("plain-1 content ends in the middle of a value") from None
        except RecursionError:
            raise errors.CheckpointError("plain-1 content is nested too deeply for the call stack") from None
        if end < len(content):
            raise errors.CheckpointError(f"plain-1 content has bytes after its value, at byte {end}")
        return value


def checked(codec: Codec | None) -> Codec:
    """Return the codec, a PlainCodec if None; raise ArgumentTypeError if it is not a Codec."""
    if codec is None:
        return PlainCodec()
    has_name = isinstance(getattr(codec, "name", None), str)
    if not (has_name and callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
        rule = "have a name, of type str, and the methods encode and decode"
        raise errors.ArgumentTypeError(f"codec must {rule}, got {validation.short_repr(codec)}")
    return codec


def _head(tag: bytes, size: int) -> bytes:
    head = bytearray(tag)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head)


_INT_HEADS, _STR_HEADS, _DICT_HEADS = (tuple(_head(tag, size) for size in range(128)) for tag in (b"i", b"s", b"d"))


def _int(value: int, levels: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return (_INT_HEADS[size] if size < 128 else _head(b"i", size)) + value.to_bytes(size, "little", signed=True)


def _str(value: str, levels: int) -> bytes:
    text = value.encode("utf-8", "surrogatepass")
    size = len(text)
    return (_STR_HEADS[size] if size < 128 else _head(b"s", size)) + text


def _sized(tag: bytes, content: bytes) -> bytes:
    return _head(tag, len(content)) + content


def _sequence(run_tag: bytes, tag: bytes) -> Callable[[Any, int], bytes]:
    """Return the encoder of lists or of tuples."""
    heads = tuple(_head(tag, size) for size in range(128))

    def encode(values: list[Any] | tuple[Any, ...], levels: int) -> bytes:
        size = len(values)
        run = _run(run_tag, values, levels) if size >= _SHORTEST_RUN else None
        return run or _joined(heads[size] if size < 128 else _head(tag, size), values, levels)

    return encode


def _set(tag: bytes, values: Collection[Any], levels: int) -> bytes:
    if _are_alike(values):
        raise errors.ArgumentError
    return _joined(_head(tag, len(values)), values, levels)


def _joined(head: bytes, values: Collection[Any], levels: int) -> bytes:
    if not levels:
        raise errors.ArgumentError
    return head + b"".join([_ENCODERS[type(value)](value, levels - 1) for value in values])


def _run(tag: bytes, values: list[Any] | tuple[Any, ...], levels: int) -> bytes | None:
    """Return the numbers as one block; None if they are of different types, or too large."""
    kind = type(values[0])
    if levels and kind in _RUNS and operator.countOf(map(type, values), kind) == len(values):
        for code in _RUNS[kind]:
            try:
                block = struct.pack(f"<{len(values)}{code}", *values)
            except struct.error:
                continue
            return _head(tag + code.encode(), len(values)) + block
    return None


def _dict(values: dict[Any, Any], levels: int) -> bytes:
    if not levels or _are_alike(values):
        raise errors.ArgumentError
    size = len(values)
    parts = [_DICT_HEADS[size] if size < 128 else _head(b"d", size)]
    for key, value in values.items():
        parts.append(_ENCODERS[type(key)](key, levels - 1))
        parts.append(_ENCODERS[type(value)](value, levels - 1))
    return b"".join(parts)


def _are_alike(keys: Collection[Any]) -> bool:
    """Return whether so many keys share a hash that a dict of them takes quadratic time."""
    return len(keys) > _MOST_ALIKE and max(collections.Counter(map(hash, keys)).values()) > _MOST_ALIKE


def _array(value: arrays_lib.Array | np.generic, levels: int) -> bytes:
    head, needs_a_look = _array_head(b"a" if type(value) is np.ndarray else b"g", value.dtype, value.shape)
    if needs_a_look:
        dtypes.check_values(np.asarray(value))
    return head + value.tobytes()


_dtype_text = functools.lru_cache(maxsize=256)(dtypes.text)


@functools.lru_cache(maxsize=1024)
def _array_head(tag: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, bool]:
    """Return the encoded header of an array, and whether its items must be checked."""
    layout = f"[{_dtype_text(dtype)},{json.dumps(shape, separators=(',', ':'))}]"
    if len(layout) > dtypes.LONGEST_TEXT or not _may_have(dtype, shape):
        raise errors.ArgumentError
    return _sized(tag, layout.encode()), not dtypes.takes_any_bytes(dtype)


def _may_have(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether an array of that dtype and shape is allowed; numpy loops over items of no bytes one by one."""
    size = math.prod(max(length, 1) for length in shape)
    return size * dtype.itemsize <= _LARGEST_ARRAY if dtype.itemsize else size <= _MOST_EMPTY


def _refusal(path: str, value: Any, around: tuple[Any, ...]) -> errors.ArgumentError | None:
    """Return the first error found in a value; None if it can be encoded."""
    if type(value) not in (list, tuple, dict, set, frozenset):
        try:
            _ENCODERS[type(value)](value, 0)
        except errors.CheckpointError:
            return errors.ArgumentError(f"{path} {dtypes.VALUES}")
        except (KeyError, errors.ReplayError):
            return _not_plain(path, value)
        return None
    if any(value is other for other in around):
        return errors.ArgumentError(f"{path} must not contain itself, got {validation.short_repr(value)}")
    if len(around) == _DEEPEST:
        return errors.ArgumentError(f"value must be nested at most {_DEEPEST} levels deep")
    if not isinstance(value, list | tuple) and _are_alike(value):
        return errors.ArgumentError(f"{path} must have at most {_MOST_ALIKE} keys of the same hash")
    found = (_refusal(*part, (*around, value)) for part in _parts(path, value))
    return next(filter(None, found), None)


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
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
    what = f"{kind.__module__}.{kind.__qualname__} {validation.short_repr(value)}".removeprefix("builtins.")
    if isinstance(value, np.ndarray | np.generic) and kind in _ENCODERS:
        what = f"{what} of {validation.short_repr(value.dtype)}"
    rule = "be None, bool, int, float, complex, str, bytes, list, tuple, dict, set, or an array or a number of numpy"
    return errors.ArgumentTypeError(f"{path} must {rule}, got {what}: give codec= an object with encode and decode")


_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    type(None): lambda value, levels: b"N",
    bool: lambda value, levels: b"T" if value else b"F",
    int: _int,
    float: lambda value, levels: b"f" + _FLOAT.pack(value),
    complex: lambda value, levels: b"c" + _COMPLEX.pack(value.real, value.imag),
    str: _str,
    bytes: lambda value, levels: _sized(b"y", value),
    list: _sequence(b"r", b"l"),
    tuple: _sequence(b"R", b"t"),
    dict: _dict,
    set: lambda values, levels: _set(b"e", values, levels),
    frozenset: lambda values, levels: _set(b"E", values, levels),
    **dict.fromkeys((np.ndarray, *(np.dtype(code).type for code in "?bhilqBHILQefdgFDGmMV")), _array),
}


def _break(reason: str, offset: int) -> NoReturn:
    raise errors.CheckpointError(f"plain-1 content {reason}, at byte {offset}")


def _size(content: bytes, offset: int, unit: int = 1) -> tuple[int, int]:
    """Return a size, checked against the bytes left for that many items of at least `unit` bytes."""
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


def _take_str(content: bytes, offset: int, levels: int) -> tuple[str, int]:
    text, end = _take(content, offset)
    try:
        return text.decode("utf-8", "surrogatepass"), end
    except UnicodeDecodeError:
        _break("has text that is not UTF-8", offset)


def _take_list(content: bytes, offset: int, levels: int, unit: int = 1) -> tuple[list[Any], int]:
    """Return a list of values, `unit` of them for each item of the size."""
    if not levels:
        _break(_TOO_DEEP, offset)
    size, offset = _size(content, offset, unit)
    values = []
    for _ in range(size * unit):
        value, offset = _DECODERS[content[offset]](content, offset + 1, levels - 1)
        values.append(value)
    return values, offset


def _take_run(content: bytes, offset: int, levels: int) -> tuple[tuple[Any, ...], int]:
    if not levels:
        _break(_TOO_DEEP, offset)
    code = content[offset]
    if code not in _WIDTHS:
        _break(f"has a run of numbers of code {code}", offset)
    size, start = _size(content, offset + 1, _WIDTHS[code])
    return struct.unpack_from(f"<{size}{code:c}", content, start), start + size * _WIDTHS[code]


def _take_dict(content: bytes, offset: int, levels: int) -> tuple[dict[Any, Any], int]:
    values, end = _take_list(content, offset, levels, 2)
    # Intern names, which are the same in most observations.
    keys = [sys.intern(key) if type(key) is str else key for key in values[::2]]
    _check_keys(keys, offset)
    return dict(zip(keys, values[1::2], strict=True)), end


def _take_keys(content: bytes, offset: int, levels: int) -> tuple[list[Any], int]:
    keys, end = _take_list(content, offset, levels)
    _check_keys(keys, offset)
    return keys, end


def _check_keys(keys: list[Any], offset: int) -> None:
    try:
        if _are_alike(keys):
            _break(f"has more than {_MOST_ALIKE} keys of the same hash", offset)
        if len(set(keys)) < len(keys):
            _break("has a key twice", offset)
    except TypeError:
        _break("has a key that is not hashable", offset)


def _layout(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, bool]:
    """Return the dtype, shape and number of bytes of an array, and whether its values must be checked."""
    try:
        layout = dtypes.read_json(head.decode())
    except UnicodeDecodeError:
        layout = None
    if not isinstance(layout, list) or len(layout) != 2 or not isinstance(layout[1], list):
        raise errors.CheckpointError("plain-1 content has an array without a dtype and a shape")
    dtype, shape = dtypes.from_description(layout[0]), tuple(layout[1])
    is_shape = len(shape) <= 64 and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or not _may_have(dtype, shape):
        raise errors.CheckpointError(f"plain-1 content has an array of shape {validation.short_repr(layout[1])}")
    return dtype, shape, math.prod(shape) * dtype.itemsize, not dtypes.takes_any_bytes(dtype)


_kept_layout = functools.lru_cache(maxsize=1024)(_layout)


def _take_array(content: bytes, offset: int, levels: int) -> tuple[arrays_lib.Array, int]:
    head, start = _take(content, offset)
    if len(head) > dtypes.LONGEST_TEXT:
        _break("has an array with a dtype that is too long", offset)
    dtype, shape, size, needs_a_look = _kept_layout(head) if len(head) <= _SHORT else _layout(head)
    if size > len(content) - start:
        _break(f"says {size}, where {len(content) - start} bytes are left", offset)
    # Zero the gaps between fields, which would otherwise hold uninitialized memory.
    array = np.empty(shape, dtype) if dtype.names is None else np.zeros(shape, dtype)
    array[...] = np.ndarray(shape, dtype, content, start)
    if needs_a_look:
        dtypes.check_values(array)
    return array, start + size


def _take_scalar(content: bytes, offset: int, levels: int) -> tuple[Any, int]:
    array, end = _take_array(content, offset, levels)
    if array.shape or array.dtype.kind in "SU":
        _break("has a scalar with axes, or of text", offset)
    # A structured scalar is a view into its array, and is hashable only if that is read-only.
    array.flags.writeable = False
    return array[()], end


_Decoder: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]


def _made(kind: Callable[[Any], Any], decoder: _Decoder) -> _Decoder:
    """Return a decoder that converts the result of another one to `kind`."""

    def take(content: bytes, offset: int, levels: int) -> tuple[Any, int]:
        value, end = decoder(content, offset, levels)
        return kind(value), end

    return take


def _take_unknown(content: bytes, offset: int, levels: int) -> NoReturn:
    _break(f"has no value of tag {content[offset - 1]}", offset - 1)


_TAKERS: dict[str, _Decoder] = {
    "N": lambda content, offset, levels: (None, offset),
    "T": lambda content, offset, levels: (True, offset),
    "F": lambda content, offset, levels: (False, offset),
    "i": _take_int,
    "f": lambda content, offset, levels: (*_FLOAT.unpack_from(content, offset), offset + 8),
    "c": lambda content, offset, levels: (complex(*_COMPLEX.unpack_from(content, offset)), offset + 16),
    "s": _take_str,
    "y": lambda content, offset, levels: _take(content, offset),
    "l": _take_list,
    "t": _made(tuple, _take_list),
    "r": _made(list, _take_run),
    "R": _take_run,
    "d": _take_dict,
    "e": _made(set, _take_keys),
    "E": _made(frozenset, _take_keys),
    "a": _take_array,
    "g": _take_scalar,
}
_DECODERS = [_TAKERS.get(chr(tag), _take_unknown) for tag in range(256)]
