"""The bytes of a journal: records are read back, and each changed bit is found."""

import struct
import zlib

import pytest

from relive import errors
from relive.persistence import journal_reader

HEADER = journal_reader.segment_header(42, 7)
SEED = journal_reader.seed_of(HEADER, 42)


def test_records_have_the_documented_bytes() -> None:
    start = b"relive journal 1\n" + struct.pack("<QQ", 42, 7)
    assert start + struct.pack("<I", zlib.crc32(start)) == HEADER
    record = journal_reader.framed(43, 9, b"abc", SEED)
    head = struct.pack("<IBQ", 3, 9, 43)
    assert record == head + struct.pack("<I", zlib.crc32(head + b"abc", zlib.crc32(start))) + b"abc"
    assert (len(HEADER), len(record)) == (journal_reader.SEGMENT_HEADER_BYTES, journal_reader.RECORD_HEADER_BYTES + 3)


def test_each_flipped_bit_of_a_record_changes_its_checksum() -> None:
    record = journal_reader.framed(43, 9, b"abc", SEED)
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        head = journal_reader.head_of(bytes(flipped[:17]), SEED)
        assert zlib.crc32(flipped[17:], head.proof) != head.checksum


def test_each_flipped_bit_of_a_header_is_an_error() -> None:
    for bit in range(8 * len(HEADER)):
        flipped = bytearray(HEADER)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.CheckpointError):
            journal_reader.seed_of(bytes(flipped), 42)


def test_a_record_is_valid_in_its_own_segment_alone() -> None:
    record = journal_reader.framed(43, 9, b"abc", SEED)
    head = journal_reader.head_of(record, journal_reader.seed_of(journal_reader.segment_header(42, 8), 42))
    assert zlib.crc32(b"abc", head.proof) != head.checksum


def test_invalid_segment_headers_are_refused() -> None:
    with pytest.raises(errors.CheckpointError, match="^does not begin with the header of a journal$"):
        journal_reader.seed_of(b"{}", 42)
    with pytest.raises(errors.CheckpointError, match="^is a journal of format '2', and this relive reads format '1'$"):
        journal_reader.seed_of(HEADER.replace(b"1\n", b"2\n"), 42)
    with pytest.raises(errors.CheckpointError, match="^ends after 36 of the 37 bytes of its header$"):
        journal_reader.seed_of(HEADER[:-1], 42)
    with pytest.raises(errors.CheckpointError, match="^has a header whose checksum is wrong$"):
        journal_reader.seed_of(HEADER[:-1] + b"!", 42)
    with pytest.raises(errors.CheckpointError, match="^has a header that says its first record is 42$"):
        journal_reader.seed_of(HEADER, 43)
    with pytest.raises(
        errors.CheckpointError, match="^has a header that says its first record is 4611686018427387905$"
    ):
        journal_reader.seed_of(journal_reader.segment_header(2**62 + 1, 0), 2**62 + 1)


def test_the_largest_number_of_a_segment_is_2_to_the_62() -> None:
    assert journal_reader.seed_of(journal_reader.segment_header(2**62, 0), 2**62) > 0


def test_segment_names_hold_their_first_number() -> None:
    for first in (0, 1, 2**62):
        assert journal_reader.first_of(journal_reader.segment_name(first)) == first
    for name in ("segment-1.relive", "segment-" + "٣" * 20 + ".relive", journal_reader.segment_name(0) + ".new", ""):
        assert journal_reader.first_of(name) is None


def test_invalid_records_are_not_framed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="^payload must be bytes, got 'text'$"):
        journal_reader.framed(0, 1, "text", 0)  # type: ignore[arg-type]
    for kind in (-1, 256):
        with pytest.raises(errors.ArgumentError, match=rf"^kind must be in \[0, 256\), got {kind}$"):
            journal_reader.framed(0, kind, b"", 0)
    monkeypatch.setattr(journal_reader, "LARGEST_PAYLOAD", 3)
    assert len(journal_reader.framed(0, 255, b"abc", 0)) == 20
    with pytest.raises(errors.ArgumentError, match="^payload must be at most 3 bytes, got 4$"):
        journal_reader.framed(0, 0, b"abcd", 0)
