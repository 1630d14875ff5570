"""Sealed JSON: objects whose last member is the CRC-32 of all bytes before it, to detect damage.

    {
     "format": "relive checkpoint",
     "version": 1,
     ...
     "crc32": 123456789                         of all bytes before the comma above
    }

They are UTF-8. The first two members of a manifest and the last one are on separate lines, so that a reader can check
format, version and checksum before parsing. Parsing takes time and memory bounded by the size.
"""

import json
import math
import re
from typing import Any
import zlib

from relive import errors
from relive.common import validation

MOST_BYTES = 1 << 21
_MOST_CONTAINERS = 100_000
_MOST_DEPTH = 64
_LARGEST = 1 << 1024
"""No integer is larger: reading one with many digits takes long."""

_MOST_DIGITS = 320
_MOST_NAME_CHARACTERS = 100
_JSON = (type(None), bool, int, float, str, list, dict)

_END = re.compile(rb',\n "crc32": (0|[1-9][0-9]{0,9})\n}\n')
_MOST_END = 32
# A string to its end, or to the end of the text, so that no character is read twice; or a run of brackets.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.?)*+"?|[\[{]+|[\]}]+', re.DOTALL)


def sealed(members: dict[str, Any]) -> bytes:
    r"""Return a JSON object whose last member is the CRC-32 of all bytes before it.

    >>> from relive.persistence import sealed_json
    >>> sealed_json.sealed({"generation": 3})
    b'{\n "generation": 3,\n "crc32": 360426098\n}\n'
    """
    content = json.dumps(members, indent=1, ensure_ascii=False, allow_nan=False).encode().removesuffix(b"\n}")
    return content + b',\n "crc32": %d\n}\n' % zlib.crc32(content)


def unsealed(label: str, raw: bytes) -> dict[str, Any]:
    """Return the members of a sealed object, the inverse of `sealed`.

    Raises:
        CheckpointError: `raw` is damaged or something else; the message begins with `label`.
    """
    comma = raw.rfind(b",", max(0, len(raw) - _MOST_END))
    end = _END.fullmatch(raw, max(0, comma))
    if end is None or int(end[1]) != zlib.crc32(memoryview(raw)[:comma]):
        raise errors.CheckpointError(f"{label} was changed or cut: its CRC-32 does not match")
    return _parsed(raw, label)


def require_version(label: str, raw: bytes, form: str, version: int) -> None:
    """Raise CheckpointError unless `raw` begins as a manifest of that form and version."""
    begin = re.match(rb'\{\n "format": "%s",\n "version": ([1-9][0-9]{0,8}),\n' % re.escape(form.encode()), raw)
    if begin is None:
        raise errors.CheckpointError(f"{label} is not the manifest of a {form}")
    if int(begin[1]) != version:
        remedy = "update relive" if int(begin[1]) > version else "read it with an older relive"
        found = f"is of format version {int(begin[1])}, and this relive reads {version}"
        raise errors.CheckpointError(f"{label} {found}: {remedy}")


def size_fault(raw: bytes) -> str | None:
    """Return why a sealed object is too large for `unsealed`; None if it is not."""
    if len(raw) <= MOST_BYTES and _is_flat(raw):
        return None
    return f"at most {MOST_BYTES} bytes and {_MOST_CONTAINERS} lists and dicts of JSON"


def check(values: object) -> None:
    """Raise ArgumentError if values cannot be stored in a sealed object."""
    found = _fault(values, _MOST_DEPTH)
    if found is not None:
        raise errors.ArgumentError(f"state{found[0]} must be {found[1]}")


def _parsed(raw: bytes, label: str) -> dict[str, Any]:
    """Return the members of a manifest, in time and memory bounded by its size."""
    if not _is_flat(raw):
        raise errors.CheckpointError(
            f"{label} must have at most {_MOST_CONTAINERS} lists and dicts, {_MOST_DEPTH} deep"
        )
    try:
        members: dict[str, Any] = json.loads(
            raw.decode(), object_pairs_hook=_distinct, parse_int=_integer, parse_constant=_refused
        )
    except (ValueError, RecursionError, MemoryError) as error:
        raise errors.CheckpointError(f"{label} is not JSON: {error}") from error
    fault = _fault(members, _MOST_DEPTH)
    if fault is not None:
        raise errors.CheckpointError(f"{label}: state{fault[0]} must be {fault[1]}")
    return members


def _is_flat(raw: bytes) -> bool:
    """Return whether brackets are few and not deeply nested, before parsing."""
    count = depth = 0
    for match in _TOKENS.finditer(raw):
        first, length = raw[match.start()], match.end() - match.start()
        if first in b"[{":
            count += length
            depth += length
            if count > _MOST_CONTAINERS or depth > _MOST_DEPTH:
                return False
        elif first in b"]}":
            depth -= length
    return True


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("an integer has too many digits")
    return int(digits)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _fault(value: object, depth: int) -> tuple[str, str] | None:
    """Return the path of the first part of a value that is not JSON, and what it must be; None if all is valid."""
    if type(value) not in _JSON:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return (
            "",
            f"None, a bool, an int, a float, a str, a list or a dict, got a {kind}, {validation.short_repr(value)}",
        )
    if isinstance(value, float) and not math.isfinite(value):
        return "", f"a finite number, got {value}"
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return "", f"less than 2**1024, got an integer of {value.bit_length()} bits"
    if isinstance(value, str) and not is_text(value):
        return "", f"a string without lone surrogates, got {validation.short_repr(value)}"
    if isinstance(value, list | dict) and depth == 0:
        return "", f"at most {_MOST_DEPTH} lists and dicts deep"
    if isinstance(value, dict):
        for name, member in value.items():
            if type(name) is not str or not is_text(name):
                return "", f"a dict with strings as names, got {validation.short_repr(name)}"
            fault = _fault(member, depth - 1)
            if fault is not None:
                return f"[{quoted(name)}]{fault[0]}", fault[1]
    if isinstance(value, list):
        for number, member in enumerate(value):
            fault = _fault(member, depth - 1)
            if fault is not None:
                return f"[{number}]{fault[0]}", fault[1]
    return None


def quoted(name: str) -> str:
    """Return a name quoted for an error message."""
    return ascii(name[:_MOST_NAME_CHARACTERS])


def is_text(text: str) -> bool:
    """Return whether a string can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
