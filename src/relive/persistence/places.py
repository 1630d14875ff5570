"""Tells what relive has saved at a path, reads its manifest, and finds broken files."""

import dataclasses
import enum
import itertools
import os
from typing import Any

from relive import errors
from relive.persistence import checkpoint
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import manifest
from relive.persistence import state as state_lib

_MAP_MANIFEST = "storage.json"
_PARQUET = b"PAR1"
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
        if _is_parquet(place):
            return Kind.PARQUET
        name = os.path.basename(path)
        is_part = name == files.MANIFEST or name.endswith(".npy") or journal_reader.first_of(name) is not None
        remedy = "name the directory that it is in" if is_part else "a checkpoint or a journal is a directory"
        raise errors.CheckpointError(f"{label} is not a directory: {remedy}")
    try:
        with files.Directory(place, follow=True) as directory:
            names = sorted(directory.names())
    except OSError as error:
        raise errors.CheckpointError(f"{label} cannot be opened: {files.reason(error)}") from error
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
        remedy = "relive.integrations.arrow.add_parquet adds them to one"
        raise errors.CheckpointError(f"{label} is a Parquet file, which holds steps and no buffer: {remedy}")
    return kind


def _is_parquet(place: str) -> bool:
    """Return whether a regular file begins like a Parquet file, from relive or another writer."""
    if not os.path.isfile(place):
        return False
    try:
        with open(place, "rb") as file:
            return file.read(len(_PARQUET)) == _PARQUET
    except OSError as error:
        raise errors.CheckpointError(f"{files.named(place)} cannot be opened: {files.reason(error)}") from error


def is_of_journal(name: str) -> bool:
    """Return whether a file of that name is a segment of a journal, or was one."""
    segment = name.removesuffix(journal_reader.NEW)
    if name.endswith(journal_reader.DAMAGED):
        segment = name[: len(journal_reader.segment_name(0))]
    return journal_reader.first_of(segment) is not None


def read_manifest(path: str) -> Manifest:
    """Return the manifest of the checkpoint at `path`, without reading other files."""
    place = files.newest(path)
    try:
        with files.Directory(place, follow=True) as directory:
            return Manifest(place, *checkpoint.read_manifest(directory))
    except OSError as error:
        label = f"{files.named(place)}/{files.MANIFEST}"
        raise errors.CheckpointError(f"{label} cannot be read: {files.reason(error)}") from error


def faults(path: str, progress: state_lib.Progress | None = None) -> list[str]:
    """Read all files of the checkpoint at `path`, and return a line for each that is broken."""
    try:
        with checkpoint.opened(path, verify=True, progress=progress):
            return []
    except errors.CheckpointError as error:
        return _faults_of_each(path, progress) or [str(error)]


def _faults_of_each(path: str, progress: state_lib.Progress | None) -> list[str]:
    try:
        found = read_manifest(path)
    except errors.CheckpointError as error:
        return [str(error)]
    lines, done = [], 0
    total = sum(entry.row_bytes for entry in found.entries.values())
    with files.Directory(found.place, follow=True) as directory:
        for entry in found.entries.values():
            try:
                with checkpoint.reader_of(directory, entry, lambda count: None) as reader:
                    reader.verify()
            except errors.CheckpointError as error:
                lines.append(str(error))
            done += entry.row_bytes
            if progress is not None:
                progress(done, total)
    return lines


def older(path: str) -> list[str]:
    """Return the older checkpoints that `save` kept under that name, newest first."""
    places = (f"{path}.{number}" for number in itertools.count(1))
    return list(itertools.takewhile(_is_older, places))


def _is_older(place: str) -> bool:
    was_saved_under_that_name = os.path.lexists(files.beside(place, "lock"))
    return not was_saved_under_that_name and os.path.isfile(os.path.join(place, files.MANIFEST))
