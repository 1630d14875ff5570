"""JSON that is bounded and strict: the manifest of a checkpoint, and objects that are sealed with a checksum.

    {
     "format": "relive checkpoint",
     "version": 2,
     "relive": "0.2.0",
     ...                                        the state, but for its arrays
     "arrays": {"rows/reward": {"file": "rows.reward.npy", "dtype": "<f8", "shape": [100]}}
    }

Each member is on a line. The first two are checked before the rest is parsed, which takes time and memory bounded by
the size. Values are judged where they are used: by `state.StateReader`.
"""

from collections.abc import Iterable, Mapping
import json
import re
from typing import Any, NoReturn
import zlib

import relive
from relive import errors
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import npy

VERSION = 2
MOST_BYTES = 1 << 21
MARKER = b'{\n "format": "relive checkpoint",\n'
"""How the manifest of every checkpoint begins, whatever its version."""
FORMAT = "relive checkpoint"
_MOST_NAME_CHARACTERS = 100
_MOST_CONTAINERS = 100_000
_MOST_DEPTH = 64
_MOST_LENGTH = 2**63 - 1
_RESERVED = ("format", "version", "relive", "arrays")

_END = re.compile(rb',\n "crc32": (0|[1-9][0-9]{0,9})\n}\n')
_MOST_END = 32
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_NO_TOKENS = bytes({*range(256)} - {*b'[]{}"'})


# Objects.
def _text(members: Mapping[str, Any]) -> bytes:
    """Return a JSON object, a line for a member, without its end; raise ArgumentError if it would not come back."""
    lines = []
    for name, value in members.items():
        line = b""
        try:
            line = f" {_json(name)}: {_json(value)}".encode()
            is_same = json.loads(b"{%s}" % line) == {name: value}
        except (RecursionError, TypeError, ValueError):
            is_same = False
        if not is_same:
            rule = (
                "hold None, bools, finite numbers, strings, lists, and dicts with strings as names, that JSON can hold"
            )
            raise errors.ArgumentError(f"state[{_quoted(name)}] must {rule}, got {validation.short_repr(value)}")
        lines.append(line)
    return b"{\n" + b",\n".join(lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _parsed(label: str, raw: bytes) -> dict[str, Any]:
    """Return the members of a JSON object; raise CheckpointError, which begins with `label`, if it is none."""
    if not _is_flat(raw):
        raise errors.CheckpointError(f"{label} must have {_FLAT}")
    try:
        members = json.loads(raw.decode(), object_pairs_hook=_distinct, parse_constant=_refuse)
    except (ValueError, RecursionError, MemoryError) as error:
        raise errors.CheckpointError(f"{label} is not JSON: {error}") from error
    if not isinstance(members, dict):
        raise errors.CheckpointError(f"{label} must be an object, got {validation.short_repr(members)}")
    return members


def sealed(members: Mapping[str, Any]) -> bytes:
    r"""Return a JSON object whose last member is the CRC-32 of all bytes before it.

    >>> from relive.persistence import manifest
    >>> manifest.sealed({"generation": 3})
    b'{\n "generation": 3,\n "crc32": 360426098\n}\n'
    """
    content = _text(members)
    return content + b',\n "crc32": %d\n}\n' % zlib.crc32(content)


def unsealed(label: str, raw: bytes) -> dict[str, Any]:
    """Return the members of a sealed object; raise CheckpointError, which begins with `label`, if it is damaged."""
    comma = raw.rfind(b",", max(0, len(raw) - _MOST_END))
    end = _END.fullmatch(raw, max(0, comma))
    if end is None or int(end[1]) != zlib.crc32(memoryview(raw)[:comma]):
        raise errors.CheckpointError(f"{label} was changed or cut: its CRC-32 does not match")
    return _parsed(label, raw)


def require_version(label: str, raw: bytes, form: str, version: int) -> None:
    """Raise CheckpointError unless `raw` begins as a manifest of that form and version."""
    begin = re.match(rb'\{\n "format": "%s",\n "version": ([1-9][0-9]{0,8}),\n' % re.escape(form.encode()), raw)
    if begin is None:
        raise errors.CheckpointError(f"{label} is not the manifest of a {form}")
    if int(begin[1]) != version:
        remedy = "update relive" if int(begin[1]) > version else "read it with an older relive"
        found = f"is of format version {int(begin[1])}, and this relive reads {version}"
        raise errors.CheckpointError(f"{label} {found}: {remedy}")


_FLAT = f"at most {_MOST_CONTAINERS} lists and dicts, {_MOST_DEPTH} deep"


def _is_flat(raw: bytes) -> bool:
    """Return whether brackets outside of strings are few and not deeply nested, before parsing."""
    tokens = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_AS_LISTS, _NO_TOKENS)
    brackets = "".join(tokens.decode().split('"')[::2])
    if brackets.count("[") > _MOST_CONTAINERS:
        return False
    for _ in range(_MOST_DEPTH):
        if not brackets:
            return True
        brackets = brackets.replace("[]", "")
    return not brackets


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")


def _quoted(name: str) -> str:
    """Return a name quoted for an error message."""
    return ascii(name[:_MOST_NAME_CHARACTERS])


# Manifests.
def encoded(values: Mapping[str, Any], members: Iterable[npy.Member]) -> bytes:
    """Return the manifest of a state; raise ArgumentError if `decoded` would refuse it."""
    for name in _RESERVED:
        if name in values:
            raise errors.ArgumentError(f"state must not have {name!r}: every manifest has a member of that name")
    arrays = {
        each.name: {"file": each.file, "dtype": dtypes.described(each.dtype), "shape": list(each.shape)}
        for each in members
    }
    head = {"format": FORMAT, "version": VERSION, "relive": relive.__version__}
    raw = _text({**head, **values, "arrays": arrays}) + b"\n}\n"
    if len(raw) > MOST_BYTES or not _is_flat(raw):
        rule = f"be at most {MOST_BYTES} bytes of JSON beside its arrays, and {_FLAT}"
        raise errors.ArgumentError(f"state must {rule}, got {len(raw)} bytes: put long values into arrays")
    return raw


def decoded(raw: bytes, label: str) -> tuple[dict[str, Any], list[npy.Member]]:
    """Return the values of a state and its arrays; raise CheckpointError, which begins with `label`, if it is none."""
    require_version(label, raw, FORMAT, VERSION)
    values = _parsed(label, raw)
    arrays = values.pop("arrays", None)
    if not isinstance(arrays, dict):
        raise errors.CheckpointError(f"{label}: arrays must be a dict, got {validation.short_repr(arrays)}")
    members = []
    for name, value in arrays.items():
        try:
            members.append(_member(name, value))
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{label}: array {_quoted(name)}: {error}") from error
    return {name: value for name, value in values.items() if name not in _RESERVED}, members


def _member(name: str, value: object) -> npy.Member:
    entry = value if isinstance(value, dict) else {}
    if sorted(entry) != ["dtype", "file", "shape"]:
        raise errors.CheckpointError("it must have dtype, file and shape")
    shape: Any = entry["shape"]
    if (
        type(shape) is not list
        or not shape
        or not all(type(each) is int and 0 <= each <= _MOST_LENGTH for each in shape)
    ):
        rule = "be a list of lengths of at least 0"
        raise errors.CheckpointError(f"shape must {rule}, got {validation.short_repr(shape)}")
    member = npy.Member(name, npy.dtype_of(entry["dtype"]), tuple(shape))
    member.check()
    if not name or entry["file"] != member.file:
        raise errors.CheckpointError(f"file must be the one of its name, got {validation.short_repr(entry['file'])}")
    return member
