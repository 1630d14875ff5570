"""manifest.json: what a state holds beside its arrays, and what is in the file of each.

    {
     "format": "relive checkpoint",
     "version": 1,
     "relive": "0.1.0",
     ...                                        the state, but for its arrays
     "arrays": {
      "rows/reward": {"file": "rows.reward.npy", "dtype": "<f8", "shape": [100], "crc32": 7, "nbytes": 928}
     },
     "crc32": 123456789                         of all bytes before the comma above
    }

It is UTF-8. The first two members and the last one stand on lines of their own, so that a reader can tell whose file it
is, of which version, and whether it is whole, before it parses anything.
"""

from collections.abc import Mapping
import dataclasses
import importlib
import json
import math
import re
from typing import Any
import zlib

import numpy as np

from relive import errors
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import files
from relive.persistence import npy

VERSION = 1
MOST_BYTES = 1 << 21
_MOST_CONTAINERS = 100_000
_MOST_DEPTH = 64
_LARGEST = 1 << 1024
"""No integer is larger: reading one with many digits takes long."""

_MOST_DIGITS = 320
_MOST_NAME_CHARACTERS = 100
_RESERVED = ("format", "version", "relive", "arrays", "crc32")
_JSON = (type(None), bool, int, float, str, list, dict)

_BEGIN = re.compile(re.escape(files.MARKER) + rb' "version": ([1-9][0-9]{0,8}),\n')
_END = re.compile(rb',\n "crc32": (0|[1-9][0-9]{0,9})\n}\n')
_MOST_END = 32
# A string to its end, or to the end of all, so that no character is looked at twice; or brackets of a kind in a row.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.?)*+"?|[\[{]+|[\]}]+', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a manifest says about the file of an array."""

    file: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    crc32: int

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return npy.size_of(self.dtype, self.shape)


def file_name(name: str) -> str:
    """Return the name of the file of an array: it says where nothing is but in its directory.

    Letters, digits, "_" and "-" stay, "/" becomes ".", any other byte of UTF-8 its number. A long name is cut, and one
    with capitals, which some file systems take for small letters, stays: a checksum at the end makes them differ.

    >>> from relive.persistence import manifest
    >>> manifest.file_name("rows/observation/camera 1")
    'rows.observation.camera%201.npy'
    >>> manifest.file_name("../RAM")
    '%2e%2e.RAM~84f3525f.npy'
    """
    raw = name.encode()
    text = re.sub(rb"[^0-9A-Za-z_/-]", lambda match: b"%%%02x" % match[0][0], raw).decode().replace("/", ".")
    if len(text) > _MOST_NAME_CHARACTERS or text != text.lower():
        text = f"{text[:_MOST_NAME_CHARACTERS]}~{zlib.crc32(raw):08x}"
    return f"{text}.npy"


def check_values(values: Mapping[str, Any]) -> None:
    """Check that the values of a state, without its arrays, can stand in a manifest.

    Raises:
        ArgumentError: One is no JSON value, or has the name of a member that every manifest has.
    """
    fault = _fault(values, _MOST_DEPTH)
    if fault is not None:
        raise errors.ArgumentError(f"state{fault[0]} must be {fault[1]}")
    for name in _RESERVED:
        if name in values:
            raise errors.ArgumentError(f"state must not have {name!r}: every manifest has a member of that name")


def encoded(values: Mapping[str, Any], entries: Mapping[str, Entry]) -> bytes:
    """Return the manifest of a state that `check_values` let pass.

    Raises:
        ArgumentError: It is larger than `decoded` reads.
    """
    members = {
        "format": "relive checkpoint",
        "version": VERSION,
        "relive": importlib.import_module("relive").__version__,  # Imports only go down; this looks up.
        **values,
        "arrays": {
            name: {
                "file": entry.file,
                "dtype": dtypes.described(entry.dtype),
                "shape": list(entry.shape),
                "crc32": entry.crc32,
                "nbytes": entry.nbytes,
            }
            for name, entry in entries.items()
        },
    }
    begin = json.dumps(members, indent=1, ensure_ascii=False, allow_nan=False).encode().removesuffix(b"\n}")
    raw = begin + b',\n "crc32": %d\n}\n' % zlib.crc32(begin)
    if len(raw) > MOST_BYTES or not _is_flat(raw):
        rule = f"at most {MOST_BYTES} bytes and {_MOST_CONTAINERS} lists and dicts of JSON beside its arrays"
        raise errors.ArgumentError(f"state must be {rule}, got {len(raw)} bytes: put what is long into arrays")
    return raw


def decoded(raw: bytes, label: str) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Return the values of a state and the entry of each of its arrays.

    Args:
        raw: The manifest, of at most `MOST_BYTES`.
        label: What it is called in an error.

    Raises:
        CheckpointError: It is no manifest, of another version, damaged, or says what none says.
    """
    begin = _BEGIN.match(raw)
    if begin is None:
        raise errors.CheckpointError(f"{label} is no manifest of a relive checkpoint")
    if int(begin[1]) != VERSION:
        remedy = "update relive" if int(begin[1]) > VERSION else "read it with an older relive"
        found = f"is of format version {int(begin[1])}, and this relive reads {VERSION}"
        raise errors.CheckpointError(f"{label} {found}: {remedy}")
    comma = raw.rfind(b",", max(0, len(raw) - _MOST_END))
    end = _END.fullmatch(raw, max(0, comma))
    if end is None or int(end[1]) != zlib.crc32(memoryview(raw)[:comma]):
        raise errors.CheckpointError(f"{label} was changed or cut: its CRC-32 is another")
    members = _parsed(raw, label)
    arrays = members.get("arrays")
    if not isinstance(arrays, dict):
        raise errors.CheckpointError(f"{label}: arrays must be a dict, got {validation.short_repr(arrays)}")
    entries = {}
    for name, value in arrays.items():
        try:
            entries[name] = _entry(name, value)
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{label}: array {_quoted(name)}: {error}") from error
    return {name: value for name, value in members.items() if name not in _RESERVED}, entries


def _parsed(raw: bytes, label: str) -> dict[str, Any]:
    """Return the members of a manifest, in a memory and a time that its size bounds."""
    if not _is_flat(raw):
        raise errors.CheckpointError(
            f"{label} must have at most {_MOST_CONTAINERS} lists and dicts, {_MOST_DEPTH} deep"
        )
    try:
        members: dict[str, Any] = json.loads(
            raw.decode(), object_pairs_hook=_distinct, parse_int=_integer, parse_constant=_refused
        )
    except (ValueError, RecursionError, MemoryError) as error:
        raise errors.CheckpointError(f"{label} is no JSON: {error}") from error
    fault = _fault(members, _MOST_DEPTH)
    if fault is not None:
        raise errors.CheckpointError(f"{label}: state{fault[0]} must be {fault[1]}")
    return members


def _is_flat(raw: bytes) -> bool:
    """Return whether brackets are few and not deep, before a parser goes down into them."""
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
        raise ValueError("a name stands twice")
    return members


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("an integer has too many digits")
    return int(digits)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _fault(value: object, depth: int) -> tuple[str, str] | None:
    """Return where in a value something is that is not JSON, and what it must be; None if all is."""
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
                return f"[{_quoted(name)}]{fault[0]}", fault[1]
    if isinstance(value, list):
        for number, member in enumerate(value):
            fault = _fault(member, depth - 1)
            if fault is not None:
                return f"[{number}]{fault[0]}", fault[1]
    return None


def _quoted(name: str) -> str:
    """Return a name for an error message."""
    return ascii(name[:_MOST_NAME_CHARACTERS])


def is_text(text: str) -> bool:
    """Return whether UTF-8 has all characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(name: str, value: object) -> Entry:
    """Return what a manifest says of an array."""
    members = value if isinstance(value, dict) else {}
    if sorted(members) != ["crc32", "dtype", "file", "nbytes", "shape"]:
        raise errors.CheckpointError("it must have crc32, dtype, file, nbytes and shape")
    file, crc32 = file_name(name), members["crc32"]
    if not name or members["file"] != file:
        raise errors.CheckpointError(f"file must be {file}, got {validation.short_repr(members['file'])}")
    if type(crc32) is not int or not 0 <= crc32 < 1 << 32:
        raise errors.CheckpointError(f"crc32 must be an integer in [0, 2**32), got {validation.short_repr(crc32)}")
    entry = Entry(file, npy.dtype_of(members["dtype"]), npy.shape_of(members["shape"]), crc32)
    if type(members["nbytes"]) is not int or members["nbytes"] != entry.nbytes:
        raise errors.CheckpointError(f"nbytes must be {entry.nbytes}, got {validation.short_repr(members['nbytes'])}")
    return entry
