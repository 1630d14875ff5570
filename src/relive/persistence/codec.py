"""Observations and actions as bytes, and back: in a checkpoint and in a journal.

PlainCodec writes a value as a tag of one byte and what belongs to it. A size is an unsigned LEB128: seven bits a byte,
the lowest first, the high bit set in all bytes but the last; at most nine of them. Numbers are lowest byte first.

    tag  value          behind the tag
    N    None           nothing
    T F  True, False    nothing
    i    int            size, and so many bytes: two's complement; 0 has one byte
    f    float          8 bytes, IEEE 754
    c    complex        8 bytes of the real and 8 of the imaginary part, IEEE 754
    s    str            size, and so many bytes of UTF-8; a lone surrogate is 3 bytes, as if it were a character
    y    bytes          size, and the bytes
    Y    bytearray      as bytes
    l    list           size, and so many values
    t    tuple          as list
    d    dict           size, and so many pairs of values, key and item, in the order of the dict; no key comes twice
    e    set            as list, in any order; no value comes twice
    E    frozenset      as set
    a    numpy.ndarray  size, and so many bytes of JSON, `[dtype, [length, ...]]`, the dtype as in
                        `relive.persistence.dtypes`; then the items, the last axis fastest, without gaps
    g    numpy.generic  as an array, with the shape []
    u    numpy.str_     as str
    z    numpy.bytes_   as bytes

A content is one value and nothing behind it. Values are nested at most 100 deep. Not more than 100 keys of a dict, or
values of a set, have one hash in common in Python, which never happens by chance. The JSON of an array is at most
65,535 bytes; of items that take no bytes an array has at most 65,536.
"""

import struct
from typing import Any, Protocol

from relive import errors
from relive.common import validation
from relive.persistence import plain_decoding
from relive.persistence import plain_encoding


class Codec(Protocol):
    """Turns observations and actions into bytes and back: what you write for types of your own."""

    @property
    def name(self) -> str:
        """Kept in the file: what one codec wrote, another one does not read."""
        ...

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""
        ...

    def decode(self, content: bytes) -> Any:
        """Return the value of the bytes."""
        ...


class PlainCodec:
    r"""Writes what JSON has, and bytes, complex numbers, tuples, sets and numpy arrays and scalars; nested at will.

    A value comes back with its types and to the last bit: integers of any size, the payload of a NaN, the order of a
    dict. What is shared inside a value comes back as copies. An array comes back with an equal dtype in C order,
    writable, in memory of its own, whatever it was laid out like. Read and written are exactly these types: a named
    tuple, an enum, an OrderedDict, a dataclass or a subclass of ndarray is refused rather than turned into its base.

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
            ArgumentTypeError: Something in it is of another type.
            ArgumentError: It holds itself, or is nested too deep, or its keys have too often the same hash.
        """
        try:
            return plain_encoding.ENCODERS[type(value)](value, plain_encoding.DEEPEST)
        except (KeyError, plain_encoding.NotPlainError, errors.CheckpointError):
            raise plain_encoding.refusal(value) from None
        except RecursionError:
            raise errors.ArgumentError("value finds no room on the stack of calls: encode it less deep in it") from None

    def decode(self, content: bytes) -> Any:
        """Return the value of the bytes, no matter who wrote them: no code runs, and memory is that of the value.

        Raises:
            ArgumentTypeError: `content` is no bytes.
            CheckpointError: `encode` does not write such bytes.
        """
        if type(content) is not bytes:
            raise errors.ArgumentTypeError(f"content must be bytes, got {validation.short_repr(content)}")
        try:
            value, end = plain_decoding.DECODERS[content[0]](content, 1, plain_encoding.DEEPEST)
        except (IndexError, struct.error):
            raise errors.CheckpointError("plain-1 content ends in the middle of a value") from None
        except RecursionError:
            raise errors.CheckpointError("plain-1 content finds no room on the stack of calls") from None
        if end < len(content):
            raise errors.CheckpointError(f"plain-1 content has bytes behind its value, at byte {end}")
        return value


def checked(codec: Codec | None) -> Codec:
    """Return the codec, a PlainCodec if None; raise ArgumentTypeError as `check_codec` does."""
    if codec is None:
        return PlainCodec()
    check_codec(codec)
    return codec


def check_codec(codec: object) -> None:
    """Raise ArgumentTypeError if `codec` does not have what a Codec has."""
    has_name = isinstance(getattr(codec, "name", None), str)
    if not (has_name and callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
        rule = "have a name, of type str, and the methods encode and decode"
        raise errors.ArgumentTypeError(f"codec must {rule}, got {validation.short_repr(codec)}")
