"""Reads the complete records of a journal in order, and tells torn tails from damage.

    segment-...00.relive   ======================|        whole
    segment-...42.relive   =================......        torn: the last segment ends with an incomplete record
    segment-...42.relive   ======x==========              damaged: complete records follow invalid bytes

A process that dies while writing, or a power loss, leaves a torn tail, which is not an error: the journal ends before
it. Anything else is damage: a bad record before whole ones, in an earlier segment, or before the end at which the
journal was closed; a segment without its base or of another journal; one that is missing.
"""

from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import errno
import io
import os
import re
import struct
from typing import BinaryIO, Final, NamedTuple
import zlib

import numpy as np

from relive import errors
from relive.common import validation
from relive.persistence import files

BASE: Final = 0
"""The kind of the first record of a segment."""
TOGETHER: Final = 255
"""The kind of a record that stands for several, with a note."""
LARGEST_PAYLOAD = 2**32 - 1
"""The most bytes a payload can have."""
MAGIC = b"relive journal 1\n"
_ANY_VERSION = b"relive journal "
_SEGMENT = struct.Struct("<17sQQ")
_HEAD = struct.Struct("<IBQ")
_RECORD = struct.Struct("<IBQI")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_PART = struct.Struct("<BI")
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CHECKSUM.size
RECORD_HEADER_BYTES = _RECORD.size
_pack_head = _HEAD.pack
_pack_checksum = _CHECKSUM.pack
_join = b"".join
_crc32 = zlib.crc32

NEW = ".new"
"""Ends the name of a segment that is still being made."""
DAMAGED = ".damaged"
"""Ends the name of a segment that was set aside."""
OLDEST = ".oldest"
"""Ends the name of a file that marks the segment with which the journal begins, where those before it were deleted."""
CLOSED = ".closed"
"""Ends the name of a file that marks how many records were on disk when the journal was closed."""
CHECKPOINT = "base"
"""The directory of the checkpoint with which the first segment begins, if its buffer held steps."""
NAME = re.compile(r"segment-([0-9]{20})\.relive(\.new|\.oldest|\.closed|(\.[0-9]{1,9})?\.damaged)?")
"""The names of segments and of the files beside them."""
_CHUNK = 1 << 18
_FAILED = "could not be read"


class Record(NamedTuple):
    """One record of a journal."""

    number: int
    kind: int
    payload: bytes


@dataclasses.dataclass
class Segment:
    """A segment, as far as it was read or written."""

    path: str
    first: int
    """The number of its first record."""
    salt: int
    """The number that all segments of the journal have in their headers."""
    seed: int
    """Where the checksums of its records start."""
    size: int
    """The bytes of the file; what lies beyond `end` is torn."""
    start: int = SEGMENT_HEADER_BYTES
    """The byte after its base, and after what was carried over when it was made."""
    end: int = SEGMENT_HEADER_BYTES
    """The byte after its last whole record."""
    number: int = 0
    """The number that its next record has."""


def segment_name(first: int) -> str:
    """Return the name of the segment whose first record has that number."""
    return f"segment-{first:020}.relive"


def segment_path(directory: str, first: int) -> str:
    """Return the path of that segment."""
    return os.path.join(directory, segment_name(first))


def segment_header(first: int, salt: int) -> bytes:
    """Return the header of a segment; `salt` is random, and the same in all segments of a journal."""
    header = _SEGMENT.pack(MAGIC, first, salt)
    return header + _pack_checksum(_crc32(header))


def seed_of(header: bytes, first: int) -> int:
    """Return the initial value of the record checksums of a segment, from its header; CheckpointError is a reason."""
    if not header.startswith(MAGIC):
        if header.startswith(_ANY_VERSION):
            version = validation.short_repr(header[len(_ANY_VERSION) : len(MAGIC)].decode("latin-1").strip())
            raise errors.CheckpointError(f"is a journal of format {version}, and this relive reads format '1'")
        raise errors.CheckpointError("does not begin with the header of a journal")
    if len(header) < SEGMENT_HEADER_BYTES:
        raise errors.CheckpointError(f"ends after {len(header)} of the {SEGMENT_HEADER_BYTES} bytes of its header")
    own_first = _SEGMENT.unpack_from(header)[1]
    (checksum,) = _CHECKSUM.unpack_from(header, _SEGMENT.size)
    if checksum != _crc32(header[: _SEGMENT.size]):
        raise errors.CheckpointError("has a header whose checksum is wrong")
    if own_first != first or first > validation.LARGEST:
        raise errors.CheckpointError(f"has a header that says its first record is {own_first}")
    return int(checksum)


def packed(note: bytes, records: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the payload of a record that stands for several, with a note."""
    parts = [part for kind, payload in records for part in (_PART.pack(kind, len(payload)), payload)]
    return _join([_LENGTH.pack(len(note)), note, *parts])


def unpacked(payload: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Return the note and the records that a record stands for; CheckpointError is a reason."""
    note, records, end = b"", [], _LENGTH.size
    try:
        end += _LENGTH.unpack_from(payload)[0]
        note = payload[_LENGTH.size : end]
        while end < len(payload):
            kind, length = _PART.unpack_from(payload, end)
            start, end = end + _PART.size, end + _PART.size + length
            records.append((kind, payload[start:end]))
    except struct.error:
        end = len(payload) + 1
    if end > len(payload) or any(kind in (BASE, TOGETHER) for kind, _ in records):
        raise errors.CheckpointError("stands for records that it does not hold")
    return note, records


def framed(number: int, kind: int, payload: bytes, seed: int) -> bytes:
    """Return the bytes of a record in the segment whose checksums start from `seed`."""
    if len(payload) > LARGEST_PAYLOAD:
        raise errors.ArgumentError(f"payload must be at most {LARGEST_PAYLOAD} bytes, got {len(payload)}")
    head = _pack_head(len(payload), kind, number)
    return _join((head, _pack_checksum(_crc32(payload, _crc32(head, seed))), payload))


class DamageError(errors.CheckpointError):
    """A journal is damaged, in the segment at `path` that begins with record `first`.

    The first bad byte is at `offset`; the segment can be cut to its first `whole` bytes, or has no base if that is 0.
    """

    def __init__(self, path: str, reason: str, *, first: int, offset: int = 0, whole: int = 0) -> None:
        super().__init__(f"{files.named(path)} is damaged at byte {offset}: {reason}")
        self.first = first
        self.whole = whole


class Reading:
    """Reads the journal in the directory at an absolute path, once."""

    firsts: list[int]
    """The numbers of the first records of its segments, in order."""
    oldest: int
    """The number of the record that it begins with."""
    closed: int
    """How many records there were at least when it was closed; 0 if it was not."""
    left_over: list[str]
    """The names of what is not needed: incomplete files, those about to be deleted, marks of having been closed."""

    def __init__(self, path: str) -> None:
        self.path = path
        # What was read so far: whole records, the last segment, and what `examine` found damaged.
        self.num_records = 0
        self.segment: Segment | None = None
        self.damage: DamageError | None = None
        with _opened(path) as directory:
            self._list(directory)
        self.num_segments = len(self.firsts)

    @property
    def num_torn_bytes(self) -> int:
        """The bytes of a torn tail; 0 if the journal ends with a whole record, or is damaged."""
        return 0 if self.segment is None or self.damage is not None else self.segment.size - self.segment.end

    def records(self, *, only_last: bool = False) -> Iterator[tuple[int, int, bytes]]:
        """Yield number, kind and payload of each complete record; if `only_last`, of those in the last segment."""
        if self.firsts[:1] != [self.oldest] and (self.firsts or self.oldest or self.closed):
            raise DamageError(segment_path(self.path, self.oldest), "it is missing", first=self.oldest)
        before, firsts = None, self.firsts[::-1]
        with _opened(self.path) as directory:
            while firsts:
                first = firsts.pop()
                try:
                    descriptor = directory.open(segment_name(first))
                except errors.CheckpointError:
                    self._list(directory)
                    if not self.firsts or self.firsts[0] <= first:
                        raise
                    # It was pruned meanwhile, and so was all before the segment that is the first now.
                    before, firsts = None, self.firsts[::-1]
                    continue
                place = segment_path(self.path, first)
                with files.raising(place, _FAILED), open(descriptor, "rb", _CHUNK) as file:
                    self.segment = before = _begun(file, place, first, before)
                    if firsts and only_last:
                        before.number = firsts[-1]
                    else:
                        yield from self._read(file, before, is_last=not firsts)

    def _read(self, file: BinaryIO, segment: Segment, *, is_last: bool) -> Iterator[tuple[int, int, bytes]]:
        """Yield the complete records of a segment whose header was read."""
        read, unpack, seed = file.read, _RECORD.unpack, segment.seed
        number, left, wrong = segment.first, segment.size - SEGMENT_HEADER_BYTES, ""
        while left:
            header = read(RECORD_HEADER_BYTES)
            if len(header) < RECORD_HEADER_BYTES:
                wrong = f"its record {number} ends after {left} bytes"
                break
            length, kind, own_number, checksum = unpack(header)
            if length > left - RECORD_HEADER_BYTES:
                wrong = f"its record {number} claims {length} bytes where {left - RECORD_HEADER_BYTES} are left"
                break
            payload = read(length)
            if _crc32(payload, _crc32(header[: _HEAD.size], seed)) != checksum:
                wrong = f"its record {number} has a wrong checksum"
                break
            if own_number != number:
                wrong = f"its record {number} has the number {own_number}"
                break
            if (kind == BASE) != (number == segment.first):
                wrong = f"its record {number} is of kind {kind}"
                break
            yield number, kind, payload
            left -= RECORD_HEADER_BYTES + length
            if kind == BASE:
                segment.start = segment.size - left
            number += 1
        segment.number, segment.end = number, segment.size - left
        self.num_records += number - segment.first
        if number == segment.first:
            reason = wrong or "it ends before its base"
            raise DamageError(segment.path, reason, first=number, offset=segment.end)
        follows = ""
        if is_last and number < self.closed:
            follows = f"the journal was closed with {self.closed} records"
        elif left and not is_last:
            follows = "another segment follows"
        elif left and _has_record(io.FileIO(file.fileno(), closefd=False), segment):
            follows = "whole records follow"
        if follows:
            reason = f"{wrong or f'it ends before record {number}'}, and {follows}"
            raise DamageError(segment.path, reason, first=segment.first, offset=segment.end, whole=segment.end)

    def _list(self, directory: files.Directory) -> None:
        """List the files, until their names stay the same: a writer may prune the journal meanwhile."""
        before, names = None, [""]
        with files.raising(self.path, _FAILED):
            while names != before:
                before, names = names, sorted(directory.names())
        found: dict[str, list[int]] = {"": [], NEW: [], OLDEST: [], CLOSED: []}
        for name in names:
            match = NAME.fullmatch(name)
            if match is not None:
                found.setdefault(match[2] or "", []).append(int(match[1]))
            elif name != CHECKPOINT or os.path.islink(os.path.join(self.path, name)):
                raise errors.CheckpointError(
                    f"{files.named(self.path)} holds {name!a}, which is not part of a journal: move it away"
                )
        *passed, self.oldest = [0, *found[OLDEST]]
        self.closed = max(found[CLOSED], default=0)
        self.firsts = [first for first in found[""] if first >= self.oldest]
        found[""], found[OLDEST] = [first for first in found[""] if first < self.oldest], passed[1:]
        self.left_over = [segment_name(first) + end for end in (NEW, CLOSED, "", OLDEST) for first in found[end]]


def records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yield the complete records of the journal at `path`, in order, without a torn tail.

    The journal may be written to meanwhile; where its oldest segments are pruned, the records go on with the oldest one
    that is left.
    """
    yield from map(Record._make, Reading(files.absolute("path", path)).records())


def examine(path: str | os.PathLike[str]) -> Reading:
    """Read the journal at `path` to its end or to where it is damaged, and return the reading."""
    reading = Reading(files.absolute("path", path))
    try:
        for _ in reading.records():
            pass
    except DamageError as damage:
        reading.damage = damage
    return reading


def checkpoint_of(path: str) -> str:
    """Return the path of the checkpoint that the journal at `path` may begin with."""
    return os.path.join(path, CHECKPOINT, "checkpoint")


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of the journal at `path`, in a `with`: that of the directory itself, if `path` is a link to it."""
    Reading(path)  # If no journal is there, no lock file is created.
    with files.locked(os.path.realpath(path)):
        yield


def _opened(path: str) -> files.Directory:
    """Open the directory at `path`, which may be a link to one."""
    if os.path.isfile(path):
        raise errors.CheckpointError(f"{files.named(path)} is a file, not a journal: if it is a checkpoint, load it")
    with files.raising(path, _FAILED):
        return files.Directory(path, follow=True)


def _begun(file: BinaryIO, path: str, first: int, before: Segment | None) -> Segment:
    """Read the header of a segment that follows another, if not None."""
    header = file.read(SEGMENT_HEADER_BYTES)
    try:
        seed = seed_of(header, first)
    except errors.CheckpointError as error:
        raise DamageError(path, f"it {error}", first=first) from None
    _, _, salt = _SEGMENT.unpack_from(header)
    if before is not None and salt != before.salt:
        raise DamageError(path, "it is of another journal than the one before it", first=first)
    if before is not None and before.number != first:
        raise DamageError(path, f"the segment before it ends before record {before.number}", first=first)
    return Segment(path, first, salt, seed, size=os.fstat(file.fileno()).st_size)


def _has_record(file: io.FileIO, segment: Segment) -> bool:
    """Return whether a complete record of a later number begins at any byte behind the end of a segment.

    Few bytes look like a header with a matching number, so this takes about the time of reading the file. A malicious
    file could take quadratic time: after reading a few times its size, return True.
    """
    start, size = segment.end + 1, segment.size
    patience = 4 * (size - start) + _CHUNK
    most = (size - start) // RECORD_HEADER_BYTES
    begin = start - _CHUNK
    while (begin := _next_data(file, begin + _CHUNK)) < size:
        file.seek(begin)
        chunk = file.read(_CHUNK + RECORD_HEADER_BYTES - 1)
        if chunk == bytes(len(chunk)):
            continue
        count = len(chunk) - RECORD_HEADER_BYTES + 1
        if count <= 0:
            break
        # The number in the header that would begin at each byte, as overlapping views.
        lengths = np.ndarray((count,), "<u4", chunk, 0, (1,))
        numbers = np.ndarray((count,), "<u8", chunk, 5, (1,))
        end = size - begin - RECORD_HEADER_BYTES
        left = np.arange(end, end - count, -1)
        plausible = np.flatnonzero((numbers - np.uint64(segment.number) <= most) & (lengths <= left))
        for place in plausible.tolist():
            length, _, _, checksum = _RECORD.unpack_from(chunk, place)
            patience -= length + 1024
            file.seek(begin + place + RECORD_HEADER_BYTES)
            proof = _crc32(chunk[place : place + _HEAD.size], segment.seed)
            if patience < 0 or _checksum(file, length, proof) == checksum:
                return True
    return False


def _next_data(file: io.FileIO, start: int) -> int:
    """Return the first position from `start` on that may hold data, skipping holes.

    A header may begin in a hole, shortly before the data.
    """
    try:
        place = os.lseek(file.fileno(), start, os.SEEK_DATA)
    except (AttributeError, OSError) as error:  # There is no more data, or the call is not supported.
        return validation.LARGEST if getattr(error, "errno", None) == errno.ENXIO else start
    return max(start, place - RECORD_HEADER_BYTES + 1)


def _checksum(file: io.FileIO, length: int, checksum: int) -> int:
    """Return the checksum of the next `length` bytes of a file, or of all that are left, going on from another one."""
    while length and (piece := file.read(min(length, _CHUNK))):
        checksum = _crc32(piece, checksum)
        length -= len(piece)
    return checksum
