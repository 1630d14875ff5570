"""Tells what relive has saved at a path."""

import contextlib
import enum
import os

from relive import errors
from relive.persistence import checkpoint
from relive.persistence import files
from relive.persistence import journal_reader

_MAP_MANIFEST = "storage.json"
PARQUET = b"PAR1"
"""How a Parquet file begins and ends."""
STEPS_ALONE = "holds steps and no buffer: relive.integrations.arrow.add_parquet adds them to one"
FOREIGN = checkpoint.FOREIGN
_MOST_NAMED = 3


class Kind(enum.Enum):
    """The kinds of things that relive writes."""

    CHECKPOINT = "checkpoint"
    JOURNAL = "journal"
    MAP = "memory map"
    PARQUET = "Parquet file"


def kind_of(path: str) -> Kind:
    """Return the kind of what is at an absolute path, by how files begin and how those in a directory are named.

    CheckpointError says what is there, and what to do, if relive did not write it.
    """
    label = files.named(path)
    if not os.path.isdir(path):
        with files.opened(path) as file, files.raising(path, "cannot be read"):
            head = file.read(checkpoint.HEAD_BYTES)
        if checkpoint.begins(head):
            return Kind.CHECKPOINT
        if head.startswith(PARQUET):
            return Kind.PARQUET
        if is_of_journal(os.path.basename(path)):
            raise errors.CheckpointError(f"{label} is a part of a journal: name the directory that it is in")
        checkpoint.refuse_foreign(label, head)
        raise errors.CheckpointError(f"{label} is not a checkpoint")
    with files.raising(path, "cannot be read"), files.Directory(path, follow=True) as directory:
        names = sorted(directory.names())
    if names == [journal_reader.CHECKPOINT] or any(is_of_journal(name) for name in names):
        return Kind.JOURNAL
    if _MAP_MANIFEST in names:
        return Kind.MAP
    if not names:
        raise errors.CheckpointError(f"{label} is empty: neither a checkpoint nor a journal")
    if checkpoint.MANIFEST in names:
        raise errors.CheckpointError(f"{label} is a directory, {checkpoint.rule_of_directory(path)}")
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
    with files.opened(place) as file, files.raising(place, "cannot be read"):
        checkpoint.refuse_foreign(files.named(place), file.read(checkpoint.HEAD_BYTES))


def is_of_journal(name: str) -> bool:
    """Return whether a file of that name is part of a journal, or was set aside."""
    return journal_reader.NAME.fullmatch(name) is not None


def older(path: str) -> list[str]:
    """Return the older checkpoints that `save` kept under that name, newest first."""
    found: list[str] = []
    with contextlib.suppress(errors.CheckpointError):  # Something else has the next number.
        found.extend(checkpoint.older(path))
    return found
