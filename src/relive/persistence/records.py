r"""The bytes of a journal: segment files of framed records, each proven by a checksum.

    segment file      header, record, record, ...      named segment-<number of its first record>.relive

    header            "relive journal 1\n"   number of the first record u64   salt u64   CRC-32 of these 33 bytes u32
    record            payload length u32      kind u8      number u64      CRC-32 u32     payload

All numbers are little endian. The CRC-32 of a record covers length, kind, number and payload, and starts from the CRC
of its segment's header, not from zero: with the salt, which is random, a record is valid in its own segment alone. A
payload that happens to hold the bytes of a journal is therefore not taken for records of this one.

Records are numbered without gaps from 0 over all segments. The first of a segment is a base, of kind 0; no other is.
"""

import re
import struct
from typing import Final, NamedTuple
import zlib

from relive import errors
from relive.common import validation

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
    """What a record's header says."""

    length: int
    kind: int
    number: int
    checksum: int
    proof: int
    """What the checksum is if the payload is empty; with a payload, it goes on from here."""


def segment_name(first: int) -> str:
    """Answers the name of the segment whose first record has the number `first`.

    >>> from relive.persistence import records
    >>> records.segment_name(42)
    'segment-00000000000000000042.relive'
    """
    return f"segment-{first:020}.relive"


def first_of(name: str) -> int | None:
    """Answers the number of the first record of the segment of that name; None if it is no segment's name.

    >>> from relive.persistence import records
    >>> records.first_of("segment-00000000000000000042.relive"), records.first_of("notes.txt")
    (42, None)
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def segment_header(first: int, salt: int) -> bytes:
    """Answers the header of a segment whose first record has the number `first`; `salt` is random, in [0, 2^64)."""
    header = _SEGMENT.pack(MAGIC, first, salt)
    return header + _pack_checksum(_crc32(header))


def seed_of(header: bytes, first: int) -> int:
    """Answers where the checksums of a segment's records start, from the segment's first bytes.

    Raises:
        CheckpointError: They are not the header of a segment whose first record has the number `first`; the message
            is a reason, without the file's name.
    """
    if not header.startswith(MAGIC):
        if header.startswith(_ANY_VERSION):
            version = validation.shown(header[len(_ANY_VERSION) : len(MAGIC)].decode("latin-1").strip())
            raise errors.CheckpointError(f"is a journal of format {version}, and this relive reads format '1'")
        raise errors.CheckpointError("does not begin as a journal does")
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
    """Answers the bytes of a record in the segment whose checksums start from `seed`.

    Raises:
        ArgumentTypeError: `payload` is not bytes.
        ArgumentError: `kind` lies outside [0, 256), or `payload` is longer than 2^32 - 1 bytes.
    """
    if type(payload) is not bytes:
        raise errors.ArgumentTypeError(f"payload must be bytes, got {validation.shown(payload)}")
    if not 0 <= kind < 256:
        raise errors.ArgumentError(f"kind must be in [0, 256), got {validation.shown(kind)}")
    if len(payload) > LARGEST_PAYLOAD:
        raise errors.ArgumentError(f"payload must be at most {LARGEST_PAYLOAD} bytes, got {len(payload)}")
    head = _pack_record(len(payload), kind, number)
    return _join((head, _pack_checksum(_crc32(payload, _crc32(head, seed))), payload))


def head_of(header: bytes, seed: int) -> Head:
    """Answers what the header of a record says [17 bytes], true or not: the checksum tells, with the payload."""
    length, kind, number = _RECORD.unpack_from(header)
    (checksum,) = _CHECKSUM.unpack_from(header, _RECORD.size)
    return Head(length, kind, number, checksum, _crc32(header[: _RECORD.size], seed))
