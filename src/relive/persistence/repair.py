"""Repairs journals after a crash or a disk fault.

    torn      segment-...42.relive   =======......       is cut after its last complete record
    damaged   segment-...42.relive   ===x====            is cut before its first bad one; the whole of it stays as
              segment-...57.relive   ========            segment-...42.relive.damaged, and what followed as
                                                         segment-...57.relive.damaged

An interrupted repair is completed by the next one, and repairing twice changes nothing. A checkpoint needs none: a
crash leaves the old one or the new one.
"""

import dataclasses
import os

from relive import errors
from relive.persistence import files
from relive.persistence import journal_reader

_FAILED = "could not be repaired"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repair:
    """The result of a repair of a journal; `str` describes it in words.

    Attributes:
        place: Its path.
        num_records: Number of complete records left.
        num_bytes_cut: Number of bytes of a torn record that were cut off.
        damage: The damage and its place; None if there was none.
        set_aside: The files with the damaged part and what followed, in the journal's directory.
    """

    place: str
    num_records: int
    num_bytes_cut: int = 0
    damage: str | None = None
    set_aside: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a description on one line."""
        done = []
        if self.damage is not None:
            done.append(self.damage)
            done += [f"set aside as {', '.join(self.set_aside)}"] if self.set_aside else []
        if self.num_bytes_cut:
            done.append(f"cut {self.num_bytes_cut} bytes after them, which are no record")
        return f"{self.num_records} whole records: {'; '.join(done) or 'nothing to repair'}"


def repair_journal(path: str, *, drop_damaged: bool = False) -> Repair:
    """Repair the journal at an absolute path; see `inspect.repair`."""
    with journal_reader.locked(path):
        found = journal_reader.examine(path)
        if found.damage is not None and not drop_damaged:
            raise refusal(found.damage, found.num_records)
        with files.raising(path, _FAILED):
            set_aside = () if found.damage is None else _set_aside(found, found.damage)
        num_bytes_cut = cut_tail(found)
    return Repair(
        place=path,
        num_records=found.num_records,
        num_bytes_cut=num_bytes_cut,
        damage=None if found.damage is None else str(found.damage),
        set_aside=set_aside,
    )


def cut_tail(reading: journal_reader.Reading) -> int:
    """Cut off a torn tail of a journal that was read to its end, and return its bytes."""
    if reading.num_torn_bytes and reading.segment is not None:
        with files.raising(reading.path, _FAILED):
            _cut(reading.segment.path, reading.segment.end)
    return reading.num_torn_bytes


def refusal(damage: journal_reader.DamageError, num_records: int) -> errors.CheckpointError:
    """Return the error for a journal that is damaged after that many records."""
    return errors.CheckpointError(f"{damage}: repair with drop_damaged=True keeps the {num_records} records before it")


def _cut(path: str, size: int) -> None:
    with open(os.open(path, os.O_RDWR | files.STRICT), "r+b") as file:
        file.truncate(size)
        files.fsync_file(file.fileno())


def _set_aside(found: journal_reader.Reading, damage: journal_reader.DamageError) -> tuple[str, ...]:
    """End the journal before the damage, and return the names of the files that hold what followed.

    The newest files are renamed first, so that at any moment the journal is either damaged as before or repaired.
    """
    path, names = found.path, []
    for first in reversed([first for first in found.firsts if first >= damage.first]):
        name = journal_reader.segment_name(first)
        source, aside = os.path.join(path, name), _free_name(path, name)
        if first > damage.first or not damage.whole:
            os.rename(source, os.path.join(path, aside))
        elif os.path.getsize(source) > damage.whole:
            files.copy_file(source, os.path.join(path, aside))
            files.fsync_directory(path)
            _cut(source, damage.whole)
        else:
            continue
        files.fsync_directory(path)
        names.append(aside)
    left_over = found.left_over  # With the marks of having been closed.
    if 0 < found.oldest == damage.first and not damage.whole:  # The next segment begins with record 0.
        left_over = [*left_over, journal_reader.segment_name(found.oldest) + journal_reader.OLDEST]
    for name in left_over:
        os.unlink(os.path.join(path, name))
        files.fsync_directory(path)
    return tuple(names[::-1])


def _free_name(path: str, name: str) -> str:
    """Return a free name in the directory for a segment that is set aside."""
    free, count = f"{name}{journal_reader.DAMAGED}", 1
    while os.path.lexists(os.path.join(path, free)):
        free, count = f"{name}.{count}{journal_reader.DAMAGED}", count + 1
    return free
