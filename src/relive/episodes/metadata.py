"""Metadata of an episode: what its user wants to know of it later, by name, as the bytes of a PlainCodec.

So they are copied in and out, and are in checkpoints and journals whatever codec observations have.
"""

from collections.abc import Mapping
from typing import Any

from relive import errors
from relive.common import validation
from relive.persistence import codec

_PLAIN = codec.PlainCodec()


def encoded(metadata: Any) -> bytes:
    """Return the bytes of metadata; none for an empty mapping or None.

    Raises:
        ArgumentTypeError: It is not a mapping from strings to what a PlainCodec supports.
        ArgumentError: It contains itself, is nested too deeply, or has too many keys with the same hash.
    """
    if metadata is None:
        return b""
    plain = dict(metadata) if isinstance(metadata, Mapping) else None
    if plain is None or not all(type(name) is str for name in plain):
        shown = validation.short_repr(metadata)
        raise errors.ArgumentTypeError(f"metadata must be a mapping from strings to values, got {shown}")
    try:
        return _PLAIN.encode(plain) if plain else b""
    except errors.ReplayError as error:
        reason, _, _ = str(error).partition(": give codec=")  # That would not help here.
        raise type(error)(reason.replace("value", "metadata", 1)) from None


def copied(metadata: Any) -> dict[str, Any]:
    """Return a copy of metadata, or raise the errors of `encoded`."""
    return decoded(encoded(metadata))


def decoded(content: bytes) -> dict[str, Any]:
    """Return the metadata of bytes, which may be untrusted, as a new dict.

    Raises:
        CheckpointError: The bytes are not those of a mapping from strings.
    """
    value = _PLAIN.decode(content) if content else {}
    if type(value) is not dict or not all(type(name) is str for name in value):
        raise errors.CheckpointError(f"metadata cannot be {validation.short_repr(value)}")
    return value
