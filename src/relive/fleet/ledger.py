"""Ledger: records which batch of each writer a shard has begun to store, beside the buffer's journal.

    place 0    the shard: steps lost and samples drawn so far
    place 1    writer, number of the batch, steps stored before it, steps in it, refused ones, CRC      one system call
    place 2    writer, ...                                                                              for each

An entry is written before the batch is stored, and batches are stored one at a time. So after a crash the buffer's step
count tells how much of the batch of the last entry was stored; every earlier one was stored completely. A writer
without an acknowledgement asks, and resends what is missing: no step is stored twice or left out.
"""

import contextlib
import dataclasses
import os
import struct
import zlib

from relive.persistence import files

_MARK = struct.Struct("<16sQQQQ")
_CRC = struct.Struct("<I")
_COUNTS = b"lost and sampled"
_SIZE = 64
"""Bytes of a place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The newest batch of one writer that a shard began to store.

    Attributes:
        writer: The writer's name, 16 bytes.
        number: The number of the batch: 0, 1, 2 and so on.
        before: Number of steps the shard had ever stored before.
        rows: Number of steps in the batch.
        refused: Number of those refused so far.
    """

    writer: bytes
    number: int
    before: int
    rows: int
    refused: int = 0

    def passed(self, inserted: int) -> int:
        """Return how many first steps of the batch are settled in a buffer that has ever stored `inserted` steps.

        Each of those is stored or refused.
        """
        return min(max(inserted - self.before, 0) + self.refused, self.rows)

    def resolved(self, inserted: int) -> "Entry":
        """Return the entry reduced to the steps counted by `passed`, unaffected by later steps."""
        return dataclasses.replace(self, before=0, rows=self.passed(inserted))


class Ledger:
    """The entries of one shard, in a file.

    Args:
        path: The file, created if missing. None for no persistence.

    Raises:
        OSError: It could not be opened.
    """

    def __init__(self, path: str | None) -> None:
        self._descriptor = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT | files.STRICT, 0o644)
        self._places: dict[bytes, int] = {}
        self._free: list[int] = []
        self._num_places = 1
        self.found: dict[bytes, Entry] = {}
        """The entries that were there when the file was opened, by writer."""
        self.lost = 0
        """How many steps were lost before that."""
        self.sampled = 0
        """How many samples were drawn before that."""
        if self._descriptor is not None:
            self._read(self._descriptor)

    def put(self, entry: Entry) -> None:
        """Write the entry of a writer, replacing its previous one.

        Raises:
            OSError: It could not be written.
        """
        if self._descriptor is None:
            return
        place = self._places.get(entry.writer)
        if place is None:
            place = self._places[entry.writer] = self._free_place()
        self._write(
            self._descriptor, place, _framed(entry.writer, entry.number, entry.before, entry.rows, entry.refused)
        )

    def forget(self, writer: bytes) -> None:
        """Free the place of a writer that will not return."""
        place = self._places.pop(writer, None)
        if self._descriptor is not None and place is not None:
            with contextlib.suppress(OSError):  # A full disk must not hold up the call.
                self._write(self._descriptor, place, b"")
            self._free.append(place)

    def put_counts(self, lost: int, sampled: int) -> None:
        """Write how many steps were lost, and how many samples drawn, so far."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._write(self._descriptor, 0, _framed(_COUNTS, lost, sampled, 0, 0))

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _free_place(self) -> int:
        if self._free:
            return self._free.pop()
        self._num_places += 1
        return self._num_places - 1

    def _write(self, descriptor: int, place: int, content: bytes) -> None:
        os.lseek(descriptor, place * _SIZE, os.SEEK_SET)  # Windows has no pwrite.
        written = os.write(descriptor, content.ljust(_SIZE, b"\0"))
        if written != _SIZE:
            raise OSError(f"only {written} of {_SIZE} bytes fitted")

    def _read(self, descriptor: int) -> None:
        # A torn place holds no entry: its batch counts as unknown and is sent again.
        content = os.read(descriptor, os.fstat(descriptor).st_size)
        self._num_places = max(len(content) // _SIZE, 1)
        for place in range(len(content) // _SIZE):
            framed = content[place * _SIZE : (place + 1) * _SIZE]
            fields = framed[: _MARK.size]
            is_whole = framed == _with_crc(fields).ljust(_SIZE, b"\0")
            writer, *numbers = _MARK.unpack(fields)
            if place == 0:
                if is_whole and writer == _COUNTS:
                    self.lost, self.sampled = numbers[:2]
            elif is_whole:
                self.found[writer] = Entry(writer, *numbers)
                self._places[writer] = place
            else:
                self._free.append(place)


def _framed(name: bytes, *numbers: int) -> bytes:
    """Return the bytes of a place."""
    return _with_crc(_MARK.pack(name, *numbers))


def _with_crc(fields: bytes) -> bytes:
    return fields + _CRC.pack(zlib.crc32(fields))
