"""Tells what relive has saved at a path."""

import contextlib
import dataclasses
import enum
import os
from typing import Any

from relive import errors
from relive.persistence import checkpoint
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import manifest

_MAP_MANIFEST = "storage.json"
PARQUET = b"PAR1"
"""How a Parquet file begins and ends."""
STEPS_ALONE = "holds steps and no buffer: relive.integrations.arrow.add_parquet adds them to one"
FOREIGN = "docs/guides/my_file.md tells how to read files of other libraries"
_BEGINNINGS = {b"\x89HDF": "an HDF5 file", b"PK": "a zip file, such as .npz", b"\x93NUMPY": ".npy", b"\x80": "a pickle"}
"""How files of others begin, which hold steps often."""
_MOST_NAMED = 3


class Kind(enum.Enum):
    """The kinds of things that relive writes."""

    CHECKPOINT = "checkpoint"
    JOURNAL = "journal"
    MAP = "memory map"
    PARQUET = "Parquet file"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of the manifest of a checkpoint: the state without its arrays, and the entry of each array file."""

    place: str
    """Where it was read: at the path itself, or at the one that a crash left."""
    values: dict[str, Any]
    entries: dict[str, manifest.Entry]


def kind_of(path: str) -> Kind:
    """Return the kind of what is at an absolute path, or at the one that a crash between two renames left.

    CheckpointError says what is there, and what to do, if relive did not write it.
    """
    label = files.named(path)
    place = files.newest(path)
    if not os.path.lexists(place):
        raise errors.CheckpointError(f"{label} does not exist")
    if not os.path.isdir(place):
        if _beginning(place).startswith(PARQUET):
            return Kind.PARQUET
        name = os.path.basename(path)
        is_part = name == files.MANIFEST or name.endswith(".npy") or is_of_journal(name)
        if not is_part:
            refuse_foreign(place)
        remedy = "name the directory that it is in" if is_part else "a checkpoint or a journal is a directory"
        raise errors.CheckpointError(f"{label} is not a directory: {remedy}")
    with files.raising(path, "cannot be read"), files.Directory(place, follow=True) as directory:
        names = sorted(directory.names())
    if files.MANIFEST in names:
        return Kind.CHECKPOINT
    if names == [journal_reader.CHECKPOINT] or any(is_of_journal(name) for name in names):
        return Kind.JOURNAL
    if _MAP_MANIFEST in names:
        return Kind.MAP
    if not names:
        raise errors.CheckpointError(f"{label} is empty: neither a checkpoint nor a journal")
    held = ", ".join(f"{name!a}" for name in names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    raise errors.CheckpointError(f"{label} is neither a checkpoint nor a journal: it holds {held}")


def kind_of_buffer(path: str) -> Kind:
    """Return the `kind_of` what is at a path; raise CheckpointError unless it is a checkpoint or a journal."""
    kind, label = kind_of(path), files.named(path)
    if kind is Kind.MAP:
        remedy = f"load its checkpoint with storage=relive.MemmapStorage({path!r})"
        raise errors.CheckpointError(f"{label} is a memory map, which holds rows and no buffer: {remedy}")
    if kind is Kind.PARQUET:
        raise errors.CheckpointError(f"{label} is a Parquet file, which {STEPS_ALONE}")
    return kind


def refuse_foreign(place: str) -> None:
    """Raise CheckpointError, which names the page, for a file in a format in which other libraries keep steps."""
    for start, form in _BEGINNINGS.items():
        if _beginning(place).startswith(start):
            raise errors.CheckpointError(f"{files.named(place)} is {form} and not of relive: {FOREIGN}")


def _beginning(place: str) -> bytes:
    """Return the first bytes of a regular file, and none of anything else."""
    if not os.path.isfile(place):
        return b""
    with files.raising(place, "cannot be read"), open(place, "rb") as file:
        return file.read(16)


def is_of_journal(name: str) -> bool:
    """Return whether a file of that name is part of a journal, or was set aside."""
    return journal_reader.NAME.fullmatch(name) is not None


def read_manifest(path: str) -> Manifest:
    """Return the manifest of the checkpoint at `path`, without reading other files."""
    place = files.newest(path)
    with contextlib.ExitStack() as opened:
        _, values, entries = checkpoint.read_manifest(place, opened)
    return Manifest(place, values, entries)


def older(path: str) -> list[str]:
    """Return the older checkpoints that `save` kept under that name, newest first."""
    found: list[str] = []
    with contextlib.suppress(errors.CheckpointError):  # Something else has the next number.
        found.extend(files.older(path))
    return found
