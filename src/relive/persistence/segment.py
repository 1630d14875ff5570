"""Segments as the owner of a journal writes them: made whole, the last one open for records, marks beside them.

`journal_reader` has their format, and reads them.
"""

from collections.abc import Iterable
import contextlib
import io
import os
from typing import TypeAlias

from relive.persistence import files
from relive.persistence import journal_reader

Records: TypeAlias = Iterable[tuple[int, bytes]]
"""Kinds and payloads."""


def create(path: str, first: int, records: Records, salt: int = 0) -> journal_reader.Segment:
    """Create the segment at `path`, atomically, of its base and what is carried over; its directory is not synced.

    If OSError is raised, it does not exist, unless it could not be deleted either.
    """
    header = journal_reader.segment_header(first, salt)
    seed, number, new = journal_reader.seed_of(header, first), first, f"{path}{journal_reader.NEW}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | files.STRICT
        with open(os.open(new, flags, 0o666), "wb") as file:
            file.write(header)
            for number, (kind, payload) in enumerate(records, first):
                file.write(journal_reader.framed(number, kind, payload, seed))
            size = file.tell()
            file.flush()
            files.fsync_file(file.fileno())
        os.rename(new, path)
    except OSError:
        for name in (new, path):  # A network file system can rename and still report a failure.
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise
    return journal_reader.Segment(path, first, salt, seed, size, start=size, end=size, number=number + 1)


class OpenSegment(journal_reader.Segment):
    """A segment to which records are appended.

    Args:
        segment: The segment.
        nbytes: It is full with so many bytes of records, or as many as its base and what was carried over take.
    """

    def __init__(self, segment: journal_reader.Segment, nbytes: int) -> None:
        super().__init__(**vars(segment))
        self.limit = self.start + max(nbytes, self.start)
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | files.STRICT)
        self._file = io.FileIO(self.descriptor, "ab")

    def write(self, record: bytes) -> None:
        """Append the bytes of a record; if OSError is raised, a part of them may be in the file."""
        written = os.write(self.descriptor, record)
        if written != len(record):
            raise OSError(f"only {written} of {len(record)} bytes fitted")
        self.end += written

    def cut(self, end: int) -> None:
        """Cut the file off after `end` bytes."""
        os.ftruncate(self.descriptor, end)
        self.end = end

    def close(self) -> None:
        """Close the file; an error is ignored, for whatever had to be on disk was synced before."""
        with contextlib.suppress(OSError):
            self._file.close()


def mark(directory: str, number: int, kind: str) -> None:
    """Put a file beside the segments, on disk, whose name says where the journal begins or how far it goes."""
    descriptor = os.open(
        journal_reader.segment_path(directory, number) + kind, os.O_WRONLY | os.O_CREAT | files.STRICT, 0o666
    )
    files.write_file(descriptor, journal_reader.MAGIC)
    files.fsync_directory(directory)


def delete(directory: str, first: int) -> None:
    """Delete a segment and the mark that the journal begins with it, unless a process reads them on Windows."""
    path = journal_reader.segment_path(directory, first)
    for each in (path, path + journal_reader.OLDEST):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.unlink(each)
