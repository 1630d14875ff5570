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

It is a sealed object: see `sealed_json`.
"""

from collections.abc import Mapping
import dataclasses
import importlib
import re
from typing import Any
import zlib

import numpy as np

from relive import errors
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import npy
from relive.persistence import sealed_json

VERSION = 1
_FORMAT = "relive checkpoint"
_MOST_NAME_CHARACTERS = 100
_RESERVED = ("format", "version", "relive", "arrays", "crc32")


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
    """Check that the values of a state, without its arrays, can be stored in a manifest.

    Raises:
        ArgumentError: A value is not JSON, or has a reserved name.
    """
    sealed_json.check(values)
    for name in _RESERVED:
        if name in values:
            raise errors.ArgumentError(f"state must not have {name!r}: every manifest has a member of that name")


def encoded(values: Mapping[str, Any], entries: Mapping[str, Entry]) -> bytes:
    """Return the manifest of a state checked by `check_values`.

    Raises:
        ArgumentError: It is larger than `decoded` reads.
    """
    members = {
        "format": _FORMAT,
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
    raw = sealed_json.sealed(members)
    fault = sealed_json.size_fault(raw)
    if fault is not None:
        raise errors.ArgumentError(
            f"state must be {fault} beside its arrays, got {len(raw)} bytes: put long values into arrays"
        )
    return raw


def decoded(raw: bytes, label: str) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Return the values of a state and the entry of each of its arrays.

    Args:
        raw: The manifest, of at most `MOST_BYTES`.
        label: Its name in errors.

    Raises:
        CheckpointError: It is not a manifest, of another version, damaged or invalid.
    """
    sealed_json.require_version(label, raw, _FORMAT, VERSION)
    members = sealed_json.unsealed(label, raw)
    arrays = members.get("arrays")
    if not isinstance(arrays, dict):
        raise errors.CheckpointError(f"{label}: arrays must be a dict, got {validation.short_repr(arrays)}")
    entries = {}
    for name, value in arrays.items():
        try:
            entries[name] = _entry(name, value)
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{label}: array {sealed_json.quoted(name)}: {error}") from error
    return {name: value for name, value in members.items() if name not in _RESERVED}, entries


def _entry(name: str, value: object) -> Entry:
    """Return the checked entry of an array."""
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
