"""The segment of a journal that records are appended to: its file, and how it comes to be.

segment-...42.relive.new    header, base      written, synced
segment-...42.relive        header, base      renamed: from now on it is a segment
segment-...42.relive        header, base, record, record, ...
"""

import contextlib
import io
import os

from relive.persistence import directories
from relive.persistence import journal_reader
from relive.persistence import records


class SegmentFile:
    """An open segment; what is written goes to its end.

    Args:
        path: The file, which is there.
        ending: Where its whole records end; what lies beyond is cut off.

    Raises:
        OSError: It cannot be opened or cut.
    """

    def __init__(self, path: str, ending: journal_reader.Ending) -> None:
        self.path = path
        self.seed = ending.seed
        """Where the checksums of its records start."""
        self.start = ending.start
        """How many of its bytes are header and base."""
        self.size = ending.offset
        """How many bytes it has, up to the last whole record."""
        self._file = io.FileIO(os.open(path, os.O_WRONLY | os.O_APPEND | directories.STRICT), "ab")
        self.descriptor = self._file.fileno()
        if ending.size > ending.offset:
            try:
                self.cut(ending.offset)
            except OSError:
                self.close()
                raise

    def cut(self, size: int) -> None:
        """Cuts off all but the first `size` bytes."""
        os.ftruncate(self.descriptor, size)
        self.size = size

    def sync(self) -> None:
        """Returns when its bytes are on the disk."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(self.descriptor)
        else:
            directories.fsync_file(self.descriptor)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def create(path: str, first: int, base: bytes) -> journal_reader.Ending:
    """Makes a segment whose first record is `base`, and answers where that ends; a crash leaves it whole or not there.

    The directory that it is in is not synced.

    Raises:
        ArgumentError: The base is no bytes or too long.
        OSError: It could not be written; it is not there, unless it could not be deleted either.
    """
    header = records.segment_header(first, int.from_bytes(os.urandom(8), "little"))
    seed = records.seed_of(header, first)
    content = header + records.framed(first, records.BASE, base, seed)
    new = f"{path}{journal_reader.NEW}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | directories.STRICT
        directories.write_file(os.open(new, flags, 0o666), content)
        os.rename(new, path)
    except OSError:
        for name in (new, path):  # A file system over the network can rename and say that it failed.
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise
    return journal_reader.Ending(first + 1, len(content), len(content), len(content), seed)
