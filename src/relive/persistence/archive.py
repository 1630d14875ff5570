r"""Archives: zip files of members that are stored one behind another, not compressed, and found by a directory.

    PK\3\4 manifest.json ... | PK\3\4 rows.reward.npy ... | ... | directory: PK\1\2 each | PK\5\6
    0                          local head, name, contents         name, CRC-32, size and place of each member

Any zip tool reads them, and `np.load` shows the arrays. Sizes and places above 4 GiB are in zip64 fields.

The reader takes an archive that another tool wrote, but only of this form: every member is plainly stored, the members
fill all bytes before the directory, the first begins at 0, and each local head says what the directory does. So no
byte is read as two things, and nothing can be hidden.
"""

from collections.abc import Callable, Iterable
import os
import struct
from typing import Any, BinaryIO, NamedTuple
import zlib

from relive import errors
from relive.persistence import files
from relive.persistence import npy

_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENDS = _END_64.size + _LOCATOR.size + _END.size
_IS_LOCAL, _IS_ENTRY, _IS_END, _IS_END_64, _IS_LOCATOR = b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7"
_SATURATED = 0xFFFFFFFF
"""Stands in a field of 32 bits for what is in a zip64 field."""
_LARGE_FROM = _SATURATED
"""From this number on, one is in a zip64 field."""
_ZIP64 = 1
"""The tag of zip64 fields."""
_PLAIN, _LARGE = 20, 45
"""The version of the zip format that a reader must know: without and with zip64 fields."""
_FIRST_OF_1980 = 0x21
"""The earliest date: no time is kept, so equal states make equal files."""
_UTF_8, _ENCRYPTED = 0x800, 1
_MOST_SHORT = 0xFFFF, 0xFFFF, _SATURATED, _SATURATED
"""What the counts and bytes in the end are where they are in the zip64 end."""
_MOST_DIRECTORY_BYTES = 1 << 23
_MOST_SHOWN = 100


# Writing.
class Writer:
    """Writes an archive to an empty file, a member at a time.

    `wrote` is called with the number of bytes of each part of a member.
    """

    def __init__(self, descriptor: int, wrote: Callable[[int], None]) -> None:
        self._descriptor, self._wrote = descriptor, wrote
        self._at = self._count = 0
        self._directory = bytearray()

    def add(self, name: str, size: int, parts: Iterable[memoryview]) -> None:
        """Write a member of that many bytes; `name` is ASCII."""
        raw, start = name.encode(), self._at
        extra = _in_64(size, size) if size >= _LARGE_FROM else b""
        short = _SATURATED if extra else size
        head: list[Any] = [_LARGE if extra else _PLAIN, 0, 0, 0, _FIRST_OF_1980, 0, short, short, len(raw)]
        self._put(memoryview(_LOCAL.pack(_IS_LOCAL, *head, len(extra)) + raw + extra))
        crc32 = 0
        for part in parts:
            crc32 = self._put_summed(part, crc32)
            self._wrote(len(part))
            del part  # Before there is memory for the next one.
        end, head[5] = self._at, crc32
        os.lseek(self._descriptor, start, os.SEEK_SET)  # Now that its sum is known.
        self._put(memoryview(_LOCAL.pack(_IS_LOCAL, *head, len(extra))))
        self._at = os.lseek(self._descriptor, end, os.SEEK_SET)
        if start >= _LARGE_FROM:
            head[0], extra, start = _LARGE, _in_64(*[size] * (2 * bool(extra)), start), _SATURATED
        entry = _ENTRY.pack(_IS_ENTRY, _LARGE, *head, len(extra), 0, 0, 0, 0, start)
        self._directory += entry + raw + extra
        self._count += 1

    def end(self) -> None:
        """Write the directory."""
        count, size, place = self._count, len(self._directory), self._at
        ends = b""
        if place >= _LARGE_FROM:
            ends = _END_64.pack(_IS_END_64, _END_64.size - 12, _LARGE, _LARGE, 0, 0, count, count, size, place)
            ends += _LOCATOR.pack(_IS_LOCATOR, 0, place + size, 1)
        ends += _END.pack(_IS_END, 0, 0, count, count, size, _SATURATED if ends else place, 0)
        self._put(memoryview(bytes(self._directory) + ends))

    def _put_summed(self, part: memoryview, crc32: int) -> int:
        for begin in range(0, len(part), npy.PIECE):
            piece = part[begin : begin + npy.PIECE]
            self._put(piece)
            crc32 = zlib.crc32(piece, crc32)
        return crc32

    def _put(self, memory: memoryview) -> None:
        self._at += len(memory)
        while memory:  # The system may write only part of it at a time.
            memory = memory[os.write(self._descriptor, memory) :]


def _in_64(*values: int) -> bytes:
    return struct.pack(f"<2H{len(values)}Q", _ZIP64, 8 * len(values), *values)


# Reading.
class Found(NamedTuple):
    """A member of an archive."""

    name: str
    start: int
    """Where its contents begin."""
    size: int
    """Their bytes."""
    crc32: int


def first_of(head: bytes) -> tuple[str, bytes]:
    """Return the name of the first member of an archive and the beginning of its contents; ("", b"") if it is none."""
    if len(head) < _LOCAL.size or not head.startswith(_IS_LOCAL):
        return "", b""
    *_, length, extra = _LOCAL.unpack_from(head)
    stop = _LOCAL.size + length
    return head[_LOCAL.size : stop].decode("latin-1"), head[stop + extra :]


def members_of(file: BinaryIO, label: str) -> dict[str, Found]:
    """Return the members of an archive by name, in their order; raise CheckpointError, with `label`, if it is wrong."""
    entries, stop = _entries(file, label)
    at, found = 0, {}
    for entry in sorted(entries, key=lambda entry: entry.place):
        named = label_of(label, entry.name)
        if entry.name in found:
            raise errors.CheckpointError(f"{named} is there twice")
        if entry.place != at:
            rule = "overlaps the one before it" if entry.place < at else f"must begin at {at}, got {entry.place}"
            raise errors.CheckpointError(f"{named} {rule}")
        start = entry.place + _checked_head(file, named, entry)
        at = start + entry.size
        if at > stop:
            raise errors.CheckpointError(f"{named} is too large: its {entry.size} bytes overlap the directory")
        found[entry.name] = Found(entry.name, start, entry.size, entry.crc32)
    if at != stop:
        raise errors.CheckpointError(f"{label} must have its directory at {at}, got {stop}")
    return found


def contents(file: BinaryIO, found: Found, label: str) -> bytes:
    """Return the contents of a member."""
    raw = _read(file, found.start, found.size, label)
    npy.check_crc32(label, found.crc32, zlib.crc32(raw))
    return raw


class _Entry(NamedTuple):
    """What the directory says of a member."""

    name: str
    place: int
    size: int
    crc32: int
    head: tuple[int, ...]
    """What its local head must say, too: flags, method, time, date, CRC-32, and the length of its name."""


def _entries(file: BinaryIO, label: str) -> tuple[list[_Entry], int]:
    """Return what the directory says, and where it begins."""
    size = file.seek(0, os.SEEK_END)
    tail = _read(file, max(0, size - _ENDS), min(size, _ENDS), label).rjust(_ENDS, b"\0")
    end_64, locator, end = tail[: _END_64.size], tail[_END_64.size : -_END.size], tail[-_END.size :]
    if not end.startswith(_IS_END):
        raise errors.CheckpointError(f"{label} ends early, or goes on behind its end")
    _, disk, first_disk, here, count, length, place, comment = _END.unpack(end)
    stop = size - _END.size
    if locator.startswith(_IS_LOCATOR):
        stop -= _END_64.size + _LOCATOR.size
        short = here, count, length, place
        kind, _, _, _, disk, first_disk, here, count, length, place = _END_64.unpack(end_64)
        full = here, count, length, place
        are_same = all(one in (other, most) for one, other, most in zip(short, full, _MOST_SHORT, strict=True))
        if kind != _IS_END_64 or locator != _LOCATOR.pack(_IS_LOCATOR, 0, stop, 1) or not are_same:
            raise errors.CheckpointError(f"{label} has two ends that differ")
    if disk or first_disk or comment or here != count or place + length != stop or length > _MOST_DIRECTORY_BYTES:
        rule = f"must have its directory of at most {_MOST_DIRECTORY_BYTES} bytes right before its end, and no comment"
        raise errors.CheckpointError(f"{label} {rule}")
    raw, at = _read(file, place, length, label), 0
    entries = []
    try:
        while at < length:
            entry, at = _entry(raw, at, label)
            entries.append(entry)
    except (struct.error, UnicodeDecodeError) as error:
        raise errors.CheckpointError(f"{label} has a directory that is cut or not in ASCII: {error}") from error
    if len(entries) != count:
        raise errors.CheckpointError(f"{label} must have {count} members in its directory, got {len(entries)}")
    return entries, place


def _entry(raw: bytes, at: int, label: str) -> tuple[_Entry, int]:
    """Return the entry at a place in the directory, and where the next one is."""
    values = _ENTRY.unpack_from(raw, at)
    kind, _, _, flags, method, time, date, crc32, stored, size, length, extra_length, comment, disk, _, _, place = (
        values
    )
    at += _ENTRY.size
    name, extra = raw[at : at + length].decode("ascii"), raw[at + length : at + length + extra_length]
    named = label_of(label, name)
    if flags & _ENCRYPTED:
        raise errors.CheckpointError(f"{named} is encrypted")
    if method:
        raise errors.CheckpointError(f"{named} is compressed, by method {method}: it must be stored")
    if kind != _IS_ENTRY or comment or disk or len(extra) != extra_length or flags not in (0, _UTF_8):
        raise errors.CheckpointError(f"{named} has an entry in the directory that is not of a plainly stored member")
    size, stored, place = _from_64(extra, named, size, stored, place)
    if size != stored:
        raise errors.CheckpointError(f"{named} must be stored in its {size} bytes, got {stored}")
    return _Entry(name, place, size, crc32, (flags, method, time, date, crc32, length)), at + length + extra_length


def _checked_head(file: BinaryIO, named: str, entry: _Entry) -> int:
    """Return the bytes of the local head of a member; raise CheckpointError unless it says what the directory does."""
    raw = _read(file, entry.place, _LOCAL.size + len(entry.name), named)
    kind, _, *head, stored, size, length, extra_length = _LOCAL.unpack_from(raw)
    extra = _read(file, entry.place + len(raw), extra_length, named) if extra_length else b""
    sizes = _from_64(extra, named, size, stored)
    is_same = (*head, length) == entry.head and raw[_LOCAL.size :] == entry.name.encode()
    if kind != _IS_LOCAL or not is_same or sizes != (entry.size, entry.size):
        raise errors.CheckpointError(f"{named} is not what the directory says: its head differs")
    return len(raw) + len(extra)


def _from_64(extra: bytes, named: str, *values: int) -> tuple[int, ...]:
    """Return values, those that did not fit in 32 bits from a zip64 field, which is all that an extra may be."""
    count = values.count(_SATURATED)
    if not count and not extra:
        return values
    if len(extra) != 4 + 8 * count or extra[:4] != struct.pack("<2H", _ZIP64, 8 * count):
        raise errors.CheckpointError(f"{named} must have {count} values in a zip64 field, and no other field")
    large = iter(struct.unpack(f"<{count}Q", extra[4:]))
    return tuple(next(large) if value == _SATURATED else value for value in values)


def _read(file: BinaryIO, start: int, count: int, label: str) -> bytes:
    """Return so many bytes from a place on."""
    raw = bytearray(count)
    file.seek(start)
    if not files.read_into(file, memoryview(raw)):
        raise errors.CheckpointError(f"{label} ends early")
    return bytes(raw)


def label_of(label: str, name: str) -> str:
    """Return a member for an error message."""
    return f"{label}/{files.named(name[:_MOST_SHOWN])}"
