"""Repairs a journal: cuts what is torn, and sets aside what is damaged when told to.

    torn      segment-...42.relive   =======......       is cut after its last whole record
    damaged   segment-...42.relive   ===x====            is cut before its first bad one; the whole of it stays as
              segment-...57.relive   ========            segment-...42.relive.damaged, and what followed as
                                                         segment-...57.relive.damaged

A repair that was interrupted is completed by the next one, and a repaired journal has nothing to repair.
"""

import dataclasses
import os

from relive import errors
from relive.common import validation
from relive.persistence import files
from relive.persistence import journal_reader

_CHUNK = 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What `repair` did; as a string, in words."""

    num_records: int
    """The whole records that are left."""
    num_bytes_cut: int
    """The bytes of a torn tail that were cut off."""
    damage: str | None
    """What was damaged and where; None if nothing was."""
    set_aside: tuple[str, ...]
    """The files that hold what was damaged and what came after it, in the journal's directory."""

    def __str__(self) -> str:
        """Return the report on one line."""
        text = f"{self.num_records} whole records"
        if self.damage is not None:
            return f"{text}: {self.damage}; set aside as {', '.join(self.set_aside)}"
        if self.num_bytes_cut:
            return f"{text}: cut {self.num_bytes_cut} bytes after them, which are no record"
        return f"{text}: nothing to repair"


def repair(path: str | os.PathLike[str], *, drop_damaged: bool = False) -> Report:
    """Cut a torn tail off the journal at `path`, and return what was cut; a second call finds nothing to do.

    Args:
        path: The journal's directory.
        drop_damaged: Whether a damaged journal is to end with the last record before the damage. The files with what
            was damaged and what followed stay in the directory, under names that end in ".damaged".

    Raises:
        CheckpointError: The journal is damaged, and `drop_damaged` is False; or it is open elsewhere, cannot be read or
            written, or holds files that are none of its own.
    """
    validation.boolean("drop_damaged", drop_damaged)
    path = files.absolute("path", path)
    with journal_reader.opened(path) as directory:
        journal_reader.listed(directory)  # What is no journal gets no lock beside it.
        with files.locked(path):
            listing = journal_reader.listed(directory)
            findings = journal_reader.examine(path)
            damage = findings.damage
            if damage is not None and not drop_damaged:
                raise errors.CheckpointError(
                    f"{damage}: repair with drop_damaged=True keeps the {findings.num_records} records before it"
                )
            set_aside: list[str] = []
            try:
                if damage is not None:
                    set_aside = _set_aside(path, listing, damage)
                elif findings.ending is not None and findings.num_torn_bytes:
                    cut(os.path.join(path, journal_reader.segment_name(listing.firsts[-1])), findings.ending.offset)
            except OSError as error:
                raise errors.CheckpointError(
                    f"{files.named(path)} could not be repaired: {files.reason(error)}"
                ) from error
    return Report(
        num_records=findings.num_records,
        num_bytes_cut=findings.num_torn_bytes,
        damage=None if damage is None else str(damage),
        set_aside=tuple(set_aside),
    )


def cut(path: str, size: int) -> None:
    """Shorten the file at `path` to `size` bytes, on the disk too.

    Raises:
        OSError: It could not be written.
    """
    descriptor = os.open(path, os.O_WRONLY | files.STRICT)
    try:
        os.ftruncate(descriptor, size)
        files.fsync_file(descriptor)
    finally:
        os.close(descriptor)


def _set_aside(path: str, listing: journal_reader.Listing, damage: journal_reader.DamageError) -> list[str]:
    """End the journal before the damage, and return the names of the files that hold what followed.

    The newest go first, so that what is left at any moment is the journal with its damage, or without.
    """
    names = []
    for first in reversed([first for first in listing.firsts if first >= damage.first]):
        name = journal_reader.segment_name(first)
        source = os.path.join(path, name)
        aside = _free_name(path, name)
        if first == damage.first and damage.whole:
            _copy(source, os.path.join(path, aside))
            files.fsync_directory(path)
            cut(source, damage.whole)
        else:
            os.rename(source, os.path.join(path, aside))
            files.fsync_directory(path)
        names.append(aside)
    if 0 < listing.oldest == damage.first and not damage.whole:  # What begins next begins with record 0.
        for name in (*listing.left_over, journal_reader.segment_name(listing.oldest) + journal_reader.OLDEST):
            os.unlink(os.path.join(path, name))
            files.fsync_directory(path)
    return names[::-1]


def _free_name(path: str, name: str) -> str:
    """Return under which name in the directory a segment can be set aside."""
    free, count = f"{name}{journal_reader.DAMAGED}", 1
    while os.path.lexists(os.path.join(path, free)):
        free, count = f"{name}.{count}{journal_reader.DAMAGED}", count + 1
    return free


def _copy(source: str, target: str) -> None:
    """Copy a file, on the disk too; nothing may stand at the target yet."""
    descriptor = os.open(source, os.O_RDONLY | files.STRICT)
    with open(descriptor, "rb") as old, open(target, "xb") as new:
        while piece := old.read(_CHUNK):
            new.write(piece)
        new.flush()
        files.fsync_file(new.fileno())
