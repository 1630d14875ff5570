"""manifest.json: the state without its arrays, and a description of each array file.

    {
     "format": "relive checkpoint",
     "version": 1,
     "relive": "0.2.0",
     ...                                        the state, but for its arrays
     "arrays": {
      "rows/reward": {"file": "rows.reward.npy", "dtype": "<f8", "shape": [100], "crc32": 7, "nbytes": 928}
     },
     "crc32": 123456789                         of all bytes before the comma above
    }

The first two members of a manifest and the last one are on separate lines, so that format, version and checksum are
checked before parsing, which takes time and memory bounded by the size.
"""

from collections.abc import Mapping
import dataclasses
import json
import math
import re
from typing import Any
import zlib

import numpy as np

import relive
from relive import errors
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import npy

VERSION = 1
MOST_BYTES = 1 << 21
_FORMAT = "relive checkpoint"
_MOST_NAME_CHARACTERS = 100
_MOST_CONTAINERS = 100_000
_MOST_DEPTH = 64
_MOST_LENGTH = 2**63 - 1
_LARGEST = 1 << 1024
_RESERVED = ("format", "version", "relive", "arrays", "crc32")
_JSON = (type(None), bool, int, float, str, list, dict)

_END = re.compile(rb',\n "crc32": (0|[1-9][0-9]{0,9})\n}\n')
_MOST_END = 32
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_NO_TOKENS = bytes({*range(256)} - {*b'[]{}"'})


# Sealed objects.
def sealed(members: dict[str, Any]) -> bytes:
    r"""Return a JSON object whose last member is the CRC-32 of all bytes before it.

    >>> from relive.persistence import manifest
    >>> manifest.sealed({"generation": 3})
    b'{\n "generation": 3,\n "crc32": 360426098\n}\n'
    """
    content = json.dumps(members, indent=1, ensure_ascii=False, allow_nan=False).encode().removesuffix(b"\n}")
    return content + b',\n "crc32": %d\n}\n' % zlib.crc32(content)


def unsealed(label: str, raw: bytes) -> dict[str, Any]:
    """Return the members of a sealed object; raise CheckpointError, which begins with `label`, if it is damaged."""
    comma = raw.rfind(b",", max(0, len(raw) - _MOST_END))
    end = _END.fullmatch(raw, max(0, comma))
    if end is None or int(end[1]) != zlib.crc32(memoryview(raw)[:comma]):
        raise errors.CheckpointError(f"{label} was changed or cut: its CRC-32 does not match")
    if not _is_flat(raw):
        raise errors.CheckpointError(
            f"{label} must have at most {_MOST_CONTAINERS} lists and dicts, {_MOST_DEPTH} deep"
        )
    try:
        members: dict[str, Any] = json.loads(raw.decode(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError, MemoryError) as error:
        raise errors.CheckpointError(f"{label} is not JSON: {error}") from error
    fault = _fault(members, _MOST_DEPTH)
    if fault is not None:
        raise errors.CheckpointError(f"{label}: state{fault[0]} must be {fault[1]}")
    return members


def require_version(label: str, raw: bytes, form: str, version: int) -> None:
    """Raise CheckpointError unless `raw` begins as a manifest of that form and version."""
    begin = re.match(rb'\{\n "format": "%s",\n "version": ([1-9][0-9]{0,8}),\n' % re.escape(form.encode()), raw)
    if begin is None:
        raise errors.CheckpointError(f"{label} is not the manifest of a {form}")
    if int(begin[1]) != version:
        remedy = "update relive" if int(begin[1]) > version else "read it with an older relive"
        found = f"is of format version {int(begin[1])}, and this relive reads {version}"
        raise errors.CheckpointError(f"{label} {found}: {remedy}")


def _is_flat(raw: bytes) -> bool:
    """Return whether brackets outside of strings are few and not deeply nested, before parsing."""
    tokens = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_AS_LISTS, _NO_TOKENS)
    brackets = "".join(tokens.decode().split('"')[::2])
    if brackets.count("[") > _MOST_CONTAINERS:
        return False
    for _ in range(_MOST_DEPTH):
        brackets = brackets.replace("[]", "")
    return not brackets


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _fault(value: object, depth: int) -> tuple[str, str] | None:
    """Return the path of the first part of a value that is not JSON, and what it must be; None if all is valid."""
    if type(value) not in _JSON:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        rule = "None, a bool, an int, a float, a str, a list or a dict"
        return "", f"{rule}, got a {kind}, {validation.short_repr(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "", f"a finite number, got {value}"
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return "", f"less than 2**1024, got an integer of {value.bit_length()} bits"
    if isinstance(value, str) and not is_text(value):
        return "", f"a string without lone surrogates, got {validation.short_repr(value)}"
    if not isinstance(value, list | dict):
        return None
    if depth == 0:
        return "", f"at most {_MOST_DEPTH} lists and dicts deep"
    for name, member in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and (type(name) is not str or not is_text(name)):
            return "", f"a dict with strings as names, got {validation.short_repr(name)}"
        fault = _fault(member, depth - 1)
        if fault is not None:
            return f"[{quoted(name)}]{fault[0]}", fault[1]
    return None


def quoted(name: str | int) -> str:
    """Return a name quoted for an error message, or a number."""
    return ascii(name[:_MOST_NAME_CHARACTERS] if isinstance(name, str) else name)


def is_text(text: str) -> bool:
    """Return whether a string can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Manifests.
@dataclasses.dataclass(frozen=True)
class Entry:
    """The entry of an array file in a manifest."""

    file: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    crc32: int

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return npy.size_of(self.dtype, self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows."""
        return self.dtype.itemsize * math.prod(self.shape)

    def members(self) -> dict[str, Any]:
        """Return what a manifest says of the file."""
        dtype, shape = dtypes.described(self.dtype), list(self.shape)
        return {"file": self.file, "dtype": dtype, "shape": shape, "crc32": self.crc32, "nbytes": self.nbytes}


def file_name(name: str) -> str:
    """Return the file name of an array, without any directory.

    Letters, digits, "_" and "-" are kept, "/" becomes ".", any other UTF-8 byte its hexadecimal number. Long names are
    cut. Long names and names with capitals, which some file systems do not distinguish, get a checksum at the end.

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
    """Raise ArgumentError if the values of a state, without its arrays, are not JSON or have a reserved name."""
    fault = _fault(values, _MOST_DEPTH)
    if fault is not None:
        raise errors.ArgumentError(f"state{fault[0]} must be {fault[1]}")
    for name in _RESERVED:
        if name in values:
            raise errors.ArgumentError(f"state must not have {name!r}: every manifest has a member of that name")


def encoded(values: Mapping[str, Any], entries: Mapping[str, Entry]) -> bytes:
    """Return the manifest of a state checked by `check_values`; raise ArgumentError if `decoded` would refuse it."""
    arrays = {name: entry.members() for name, entry in entries.items()}
    raw = sealed({"format": _FORMAT, "version": VERSION, "relive": relive.__version__, **values, "arrays": arrays})
    if len(raw) > MOST_BYTES or not _is_flat(raw):
        rule = f"be at most {MOST_BYTES} bytes and {_MOST_CONTAINERS} lists and dicts of JSON beside its arrays"
        raise errors.ArgumentError(f"state must {rule}, got {len(raw)} bytes: put long values into arrays")
    return raw


def decoded(raw: bytes, label: str) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Return the values of a state and the entry of each of its arrays.

    A CheckpointError that begins with `label` says that it is not a manifest, of another version, or damaged.
    """
    require_version(label, raw, _FORMAT, VERSION)
    members = unsealed(label, raw)
    arrays = members.get("arrays")
    if not isinstance(arrays, dict):
        raise errors.CheckpointError(f"{label}: arrays must be a dict, got {validation.short_repr(arrays)}")
    entries = {}
    for name, value in arrays.items():
        try:
            entries[name] = _entry(name, value)
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{label}: array {quoted(name)}: {error}") from error
    return {name: value for name, value in members.items() if name not in _RESERVED}, entries


def _entry(name: str, value: object) -> Entry:
    members = value if isinstance(value, dict) else {}
    if sorted(members) != ["crc32", "dtype", "file", "nbytes", "shape"]:
        raise errors.CheckpointError("it must have crc32, dtype, file, nbytes and shape")

    def require(is_right: bool, member: str, rule: str) -> None:
        if not is_right:
            raise errors.CheckpointError(f"{member} must {rule}, got {validation.short_repr(members[member])}")

    file, crc32, shape, nbytes = file_name(name), members["crc32"], members["shape"], members["nbytes"]
    require(bool(name) and members["file"] == file, "file", f"be {file}")
    require(type(crc32) is int and 0 <= crc32 < 1 << 32, "crc32", "be an integer in [0, 2**32)")
    dtype, most = npy.dtype_of(members["dtype"]), dtypes.MOST_AXES
    require(type(shape) is list and 1 <= len(shape) <= most, "shape", f"be a list of 1 to {most} lengths")
    are_lengths = all(type(length) is int and 0 <= length <= _MOST_LENGTH for length in shape)
    require(are_lengths, "shape", "hold lengths of at least 0")
    entry = Entry(file, dtype, tuple(shape), crc32)
    require(type(nbytes) is int and nbytes == entry.nbytes, "nbytes", f"be {entry.nbytes}")
    return entry
