"""Reads the complete records of a journal in order, and tells torn tails from damage.

    segment-...00.relive   ======================|        whole
    segment-...42.relive   =================......        torn: the last segment ends with an incomplete record
    segment-...42.relive   ======x==========              damaged: complete records follow invalid bytes

A process that dies while writing, or a power loss, leaves a torn tail, which is not an error: the journal ends before
it. Anything else is damage: a bad record before whole ones or in an earlier segment, a segment without its base or of
another journal, the first one missing, a gap between segments. Damage is an error that names the file and the byte;
only an explicit repair sets it aside.

File contents are not trusted: lengths are checked against the rest of the file before anything is read, links are not
followed, and only regular files are opened.
"""

from collections.abc import Generator, Iterator
import contextlib
import dataclasses
import errno
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
LARGEST_PAYLOAD = 2**32 - 1
"""The most bytes a payload can have."""
MAGIC = b"relive journal 1\n"
_ANY_VERSION = b"relive journal "
_SEGMENT = struct.Struct("<17sQQ")
_RECORD = struct.Struct("<IBQ")
_CHECKSUM = struct.Struct("<I")
_NAME = re.compile(r"segment-([0-9]{20})\.relive")
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CHECKSUM.size
RECORD_HEADER_BYTES = _RECORD.size + _CHECKSUM.size
_pack_record = _RECORD.pack
_pack_checksum = _CHECKSUM.pack
_join = b"".join
_crc32 = zlib.crc32


class Record(NamedTuple):
    """One record of a journal."""

    number: int
    kind: int
    payload: bytes


class Head(NamedTuple):
    """The header of a record."""

    length: int
    kind: int
    number: int
    checksum: int
    proof: int
    """What the checksum is if the payload is empty; with a payload, it goes on from here."""


def segment_name(first: int) -> str:
    """Return the name of the segment whose first record has the number `first`.

    >>> from relive.persistence import journal_reader
    >>> journal_reader.segment_name(42)
    'segment-00000000000000000042.relive'
    """
    return f"segment-{first:020}.relive"


def first_of(name: str) -> int | None:
    """Return the number of the first record of the segment of that name; None if it is not a segment's name.

    >>> from relive.persistence import journal_reader
    >>> journal_reader.first_of("segment-00000000000000000042.relive"), journal_reader.first_of("notes.txt")
    (42, None)
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def segment_header(first: int, salt: int) -> bytes:
    """Return the header of a segment whose first record has the number `first`.

    `salt` is random, in [0, 2^64), and the same in all segments of a journal.
    """
    header = _SEGMENT.pack(MAGIC, first, salt)
    return header + _pack_checksum(_crc32(header))


def seed_of(header: bytes, first: int) -> int:
    """Return the initial value of the record checksums of a segment, from its first bytes.

    Raises:
        CheckpointError: They are not the header of a segment whose first record has the number `first`; the message
            is a reason, without the file's name.
    """
    if not header.startswith(MAGIC):
        if header.startswith(_ANY_VERSION):
            version = validation.short_repr(header[len(_ANY_VERSION) : len(MAGIC)].decode("latin-1").strip())
            raise errors.CheckpointError(f"is a journal of format {version}, and this relive reads format '1'")
        raise errors.CheckpointError("does not begin with the header of a journal")
    if len(header) < SEGMENT_HEADER_BYTES:
        raise errors.CheckpointError(f"ends after {len(header)} of the {SEGMENT_HEADER_BYTES} bytes of its header")
    _, own_first, _ = _SEGMENT.unpack_from(header)
    (checksum,) = _CHECKSUM.unpack_from(header, _SEGMENT.size)
    if checksum != _crc32(header[: _SEGMENT.size]):
        raise errors.CheckpointError("has a header whose checksum is wrong")
    if own_first != first or first > validation.LARGEST:
        raise errors.CheckpointError(f"has a header that says its first record is {own_first}")
    return int(checksum)


def framed(number: int, kind: int, payload: bytes, seed: int) -> bytes:
    """Return the bytes of a record in the segment whose checksums start from `seed`.

    Raises:
        ArgumentTypeError: `payload` is not bytes.
        ArgumentError: `kind` lies outside [0, 256), or `payload` is longer than 2^32 - 1 bytes.
    """
    if type(payload) is not bytes:
        raise errors.ArgumentTypeError(f"payload must be bytes, got {validation.short_repr(payload)}")
    if not 0 <= kind < 256:
        raise errors.ArgumentError(f"kind must be in [0, 256), got {validation.short_repr(kind)}")
    if len(payload) > LARGEST_PAYLOAD:
        raise errors.ArgumentError(f"payload must be at most {LARGEST_PAYLOAD} bytes, got {len(payload)}")
    head = _pack_record(len(payload), kind, number)
    return _join((head, _pack_checksum(_crc32(payload, _crc32(head, seed))), payload))


def head_of(header: bytes, seed: int) -> Head:
    """Return the header of a record [17 bytes], unverified: the checksum covers it together with the payload."""
    length, kind, number = _RECORD.unpack_from(header)
    (checksum,) = _CHECKSUM.unpack_from(header, _RECORD.size)
    return Head(length, kind, number, checksum, _crc32(header[: _RECORD.size], seed))


NEW = ".new"
"""Ends the name of a segment that is still being made."""
DAMAGED = ".damaged"
"""Ends the name of a segment that was set aside."""
CHECKPOINT = "base"
"""The directory of the checkpoint with which the first segment begins, if its buffer held steps."""
OLDEST = ".oldest"
"""Ends the name of a file that marks the segment with which the journal begins, where those before it were deleted."""
_BESIDE = re.compile(r"segment-([0-9]{20})\.relive(\.new|\.oldest|(\.[0-9]{1,9})?\.damaged)")
_CHUNK = 1 << 18
_HEADER = RECORD_HEADER_BYTES


class Ending(NamedTuple):
    """Where the complete records of a segment end."""

    path: str
    """The segment."""
    number: int
    """The number that the next record has."""
    offset: int
    """The byte after the last whole record."""
    size: int
    """The bytes of the file; what lies beyond `offset` is torn."""
    start: int
    """The byte after the base."""
    seed: int
    """Where the checksums of the segment start."""
    salt: int
    """The number that all segments of the journal have in their headers."""


class Listing(NamedTuple):
    """The files of a journal."""

    firsts: list[int]
    """The numbers of the first records of its segments, in order."""
    oldest: int
    """The number of the record that it begins with."""
    left_over: list[str]
    """The names of files that are not needed: incomplete ones, and those about to be deleted."""

    @property
    def is_whole(self) -> bool:
        """Whether the segment with which it begins is there, or there is none at all."""
        return self.firsts[:1] == [self.oldest] or not (self.firsts or self.oldest)


class DamageError(errors.CheckpointError):
    """A journal is damaged.

    Args:
        path: The segment.
        reason: What is wrong with it.
        first: The number of its first record.
        offset: The first bad byte.
        whole: Number of valid bytes before it; 0 if the segment lacks its base.
    """

    def __init__(self, path: str, reason: str, *, first: int, offset: int, whole: int) -> None:
        super().__init__(f"{files.named(path)} is damaged at byte {offset}: {reason}")
        self.first = first
        self.whole = whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """The contents of a journal."""

    num_segments: int
    """The segment files there are."""
    num_records: int
    """The whole records, up to what is torn or damaged."""
    ending: Ending | None
    """Where the last segment's whole records end; None if there is no segment, or something is damaged."""
    damage: DamageError | None
    """What is damaged and where; None if nothing is."""

    @property
    def num_torn_bytes(self) -> int:
        """The bytes of a torn tail; 0 if the journal ends with a whole record, or is damaged."""
        return 0 if self.ending is None else self.ending.size - self.ending.offset


def records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yield the complete records of the journal at `path`, in order, without a torn tail.

    They are read one at a time. A directory without segments has no records. The journal may be written to meanwhile;
    where its oldest segments are pruned, the records go on with the oldest one that is left.

    Raises:
        CheckpointError: During iteration: the journal is damaged or cannot be read; the message names the file.
    """
    yield from walk(files.absolute("path", path))


def examine(path: str | os.PathLike[str]) -> Findings:
    """Read the journal at `path` to its end and return its contents; changes nothing.

    Raises:
        CheckpointError: It cannot be read, or holds foreign files.
    """
    path = files.absolute("path", path)
    with opened(path) as directory:
        num_segments = len(listed(directory).firsts)
    reading, num_records = walk(path), 0
    try:
        while True:
            next(reading)
            num_records += 1
    except StopIteration as stop:
        return Findings(num_segments=num_segments, num_records=num_records, ending=stop.value, damage=None)
    except DamageError as error:
        return Findings(num_segments=num_segments, num_records=num_records, ending=None, damage=error)


def listed(directory: files.Directory) -> Listing:
    """Return the files of the journal in a directory.

    What looks wrong is looked at again until its names stay the same: a writer may prune the journal meanwhile.

    Raises:
        CheckpointError: It cannot be read, or holds foreign entries, or a mark that is not a file.
    """
    names: list[str] = []
    while True:
        before, names = names, _names(directory)
        try:
            listing = _listing(directory, names)
        except (FileNotFoundError, errors.CheckpointError):  # What was deleted after it was listed is missing.
            if names == before:
                raise
            continue
        if listing.is_whole or names == before:
            return listing


def _names(directory: files.Directory) -> list[str]:
    try:
        return sorted(directory.names())
    except OSError as error:
        raise errors.CheckpointError(
            f"{files.named(directory.path)} could not be read: {files.reason(error)}"
        ) from error


def _listing(directory: files.Directory, names: list[str]) -> Listing:
    if files.MANIFEST in names:
        raise errors.CheckpointError(f"{files.named(directory.path)} is a checkpoint, not a journal: load it")
    firsts, begins, left_over = [], [0], []
    for name in names:
        first, beside = first_of(name), _BESIDE.fullmatch(name)
        if first is not None:
            firsts.append(first)
        elif name == CHECKPOINT and directory.is_directory(name):
            continue
        elif beside is None:
            raise errors.CheckpointError(
                f"{files.named(directory.path)} holds {name!a}, which is not part of a journal: move it away"
            )
        elif beside[2] == OLDEST:
            os.close(directory.open(name))
            begins.append(int(beside[1]))
        elif beside[2] == NEW:
            left_over.append(name)
    oldest = begins.pop()
    left_over += [segment_name(first) for first in firsts if first < oldest]
    left_over += [segment_name(first) + OLDEST for first in begins[1:]]
    return Listing([first for first in firsts if first >= oldest], oldest, left_over)


def checkpoint_of(path: str) -> str:
    """Return the path of the checkpoint that the journal at `path` may begin with."""
    return os.path.join(path, CHECKPOINT, "checkpoint")


def locked(path: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of the journal at `path`, in a `with`: that of the directory itself, if `path` is a link to it.

    Raises:
        CheckpointError: It is held elsewhere, or the file system does not support locks.
    """
    return files.locked(os.path.realpath(path))


def opened(path: str) -> files.Directory:
    """Open the directory at `path`, which may be a link to one.

    Raises:
        CheckpointError: There is no such directory.
    """
    try:
        return files.Directory(path, follow=True)
    except OSError as error:
        raise errors.CheckpointError(f"{files.named(path)} could not be read: {files.reason(error)}") from error


def _read_segment(
    file: BinaryIO, path: str, first: int, before: Ending | None, *, is_last: bool
) -> Generator[Record, None, Ending]:
    """Yield the complete records of a segment, given the ending of the previous one, and return where they end."""
    size = os.fstat(file.fileno()).st_size
    header = file.read(SEGMENT_HEADER_BYTES)
    try:
        seed = seed_of(header, first)
    except errors.CheckpointError as error:
        raise DamageError(path, f"it {error}", first=first, offset=0, whole=0) from None
    _, _, salt = _SEGMENT.unpack_from(header)
    if before is not None and before.salt != salt:
        raise DamageError(path, "it is of another journal than the one before it", first=first, offset=0, whole=0)
    if before is not None and before.number != first:
        reason = f"the segment before it ends before record {before.number}"
        raise DamageError(path, reason, first=first, offset=0, whole=0)
    start = offset = SEGMENT_HEADER_BYTES
    number, wrong = first, "it ends before its base"
    while offset < size:
        record = _read_record(file, size - offset, number, seed)
        if isinstance(record, str):
            wrong = record
            break
        if (record.kind == BASE) != (number == first):
            wrong = f"its record {number} is of kind {record.kind}"
            break
        yield record
        offset += _HEADER + len(record.payload)
        if number == first:
            start = offset
        number += 1
    if number == first:
        raise DamageError(path, wrong, first=first, offset=offset, whole=0)
    if offset < size:
        if not is_last:
            raise DamageError(path, f"{wrong}, and another segment follows", first=first, offset=offset, whole=offset)
        if _has_record(file, offset + 1, size, number, seed):
            raise DamageError(path, f"{wrong}, and whole records follow", first=first, offset=offset, whole=offset)
    return Ending(path, number, offset, size, start, seed, salt)


def walk(path: str) -> Generator[Record, None, Ending | None]:
    """Yield the records of the journal at an absolute path; return where those of its last segment end, if it has one.

    Raises:
        CheckpointError: As `records`.
    """
    with opened(path) as directory:
        listing = listed(directory)
        if not listing.is_whole:
            place = os.path.join(path, segment_name(listing.oldest))
            raise DamageError(place, "it is missing", first=listing.oldest, offset=0, whole=0)
        ending, firsts = None, listing.firsts
        while firsts:
            first, *later = firsts
            place = os.path.join(path, segment_name(first))
            try:
                descriptor = directory.open(segment_name(first))
            except errors.CheckpointError:
                firsts = listed(directory).firsts
                if not firsts or firsts[0] <= first:
                    raise
                # It was pruned meanwhile, and so was all before the segment that is the first now.
                ending = ending and ending._replace(number=firsts[0])
                continue
            with open(descriptor, "rb") as file:
                try:
                    ending = yield from _read_segment(file, place, first, ending, is_last=not later)
                except OSError as error:
                    reason = files.reason(error)
                    raise errors.CheckpointError(f"{files.named(place)} could not be read: {reason}") from error
            firsts = later
        return ending


def _read_record(file: BinaryIO, left: int, number: int, seed: int) -> Record | str:
    """Return the next record of a file with `left` bytes left, or what is wrong with it."""
    header = file.read(_HEADER)
    if left < _HEADER or len(header) < _HEADER:
        return f"its record {number} ends after {left} bytes"
    head = head_of(header, seed)
    if head.length > left - _HEADER:
        return f"its record {number} claims {head.length} bytes where {left - _HEADER} are left"
    payload = file.read(head.length)
    if zlib.crc32(payload, head.proof) != head.checksum:
        return f"its record {number} has a wrong checksum"
    if head.number != number:
        return f"its record {number} has the number {head.number}"
    return Record(number, head.kind, payload)


def _has_record(file: BinaryIO, start: int, size: int, number: int, seed: int) -> bool:
    """Return whether a complete record with that number or a later one begins at any byte in [start, size).

    Few bytes look like a header with a matching number, so this takes about the time of reading the file; zeros, which
    a crash may leave, and holes cannot be one. A malicious file could take quadratic time: after reading a few times
    its size, return True.
    """
    patience = 4 * (size - start) + _CHUNK
    most = (size - start) // _HEADER
    begin = start - _CHUNK
    while (begin := _next_data(file, begin + _CHUNK)) < size:
        file.seek(begin)
        chunk = file.read(_CHUNK + _HEADER - 1)
        if chunk == bytes(len(chunk)):
            continue
        count = len(chunk) - _HEADER + 1
        if count <= 0:
            break
        # The number in the header that would begin at each byte, as overlapping views.
        lengths = np.ndarray((count,), "<u4", chunk, 0, (1,))
        numbers = np.ndarray((count,), "<u8", chunk, 5, (1,))
        left = np.arange(size - begin - _HEADER, size - begin - _HEADER - count, -1)
        plausible = np.flatnonzero((numbers - np.uint64(number) <= most) & (lengths <= left))
        for place in plausible.tolist():
            head = head_of(chunk[place : place + _HEADER], seed)
            patience -= head.length + 1024
            if patience < 0 or _is_proven(file, begin + place + _HEADER, head):
                return True
    return False


def _next_data(file: BinaryIO, start: int) -> int:
    """Return the first position from `start` on that may hold data, skipping holes.

    A header may begin in a hole, shortly before the data.
    """
    try:
        place = os.lseek(file.fileno(), start, os.SEEK_DATA)
    except (AttributeError, OSError) as error:  # There is no more data, or the call is not supported.
        return validation.LARGEST if getattr(error, "errno", None) == errno.ENXIO else start
    return max(start, place - _HEADER + 1)


def _is_proven(file: BinaryIO, start: int, head: Head) -> bool:
    """Return whether the payload at `start` matches the checksum in its header."""
    file.seek(start)
    proof, left = head.proof, head.length
    while left:
        piece = file.read(min(left, _CHUNK))
        if not piece:
            return False
        proof = zlib.crc32(piece, proof)
        left -= len(piece)
    return proof == head.checksum
