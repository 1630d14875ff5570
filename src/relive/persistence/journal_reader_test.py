"""Reading a journal: a prefix of the bytes gives a prefix of the records; any other change too, or an error."""

from collections.abc import Callable, Iterator
import errno
import os
import pathlib
import random
import re
import shutil
import struct
import tracemalloc
from typing import Any
import zlib

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive import errors
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import posix_test
from relive.persistence import repair
from relive.persistence import seed_blocks_test
from relive.persistence import segment as segment_lib

Twin = list[tuple[int, int, bytes]]
PAYLOADS = [b"payload %d" % number for number in range(30)]


def write(path: pathlib.Path, payloads: list[bytes], *, segment_bytes: int = 2**20) -> Twin:
    """Write a journal, and return what is in it."""
    twin: Twin = []

    def base() -> bytes:
        twin.append((len(twin), 0, b"base %d" % len(twin)))
        return twin[-1][2]

    with relive.Journal(path, fsync="never", segment_bytes=segment_bytes) as log:
        log._begin(base)
        for payload in payloads:
            number = log._append(1 + len(payload) % 255, payload)
            assert number == len(twin)
            twin.append((number, 1 + len(payload) % 255, payload))
        assert log.num_records == len(twin)
    return twin


def read(path: pathlib.Path) -> Twin:
    return [*journal_reader.records(path)]


def segments(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path.glob("*.relive"))


def contents(path: pathlib.Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


OPENINGS: dict[str, Callable[[pathlib.Path], object]] = {
    "records": read, "Journal": relive.Journal, "repair": lambda path: repair.repair_journal(str(path)),
    "drop_damaged": lambda path: repair.repair_journal(str(path), drop_damaged=True), "recover": relive.recover,
}  # fmt: skip
"""What refuses a directory that is no journal."""


def refused(path: pathlib.Path, message: str, *names: str) -> None:
    """Check that a damaged journal is opened in no way, or in none of those named, and stays as it is."""
    before = contents(path)
    for name in names or ("records", "Journal", "repair"):
        with pytest.raises(errors.CheckpointError, match=message):
            OPENINGS[name](path)
    assert contents(path) == before


def with_ten(path: pathlib.Path) -> relive.Journal:
    """Return an open journal of the segments 0, 3, 6, 9 and 12, with ten records of 50 bytes: two fill a segment."""
    log = relive.Journal(path, fsync="never", segment_bytes=100)
    log._begin(lambda: b"base")
    for _ in range(10):
        log._append(1, b"r" * 33)
    return log


def tear(path: pathlib.Path, tail: bytes = b"torn") -> None:
    """Let a journal end with bytes that are no record."""
    with segments(path)[-1].open("ab") as file:
        file.write(tail)


def ends_of(twin: Twin) -> list[int]:
    """Return at which bytes the records of a single segment end."""
    ends = [journal_reader.SEGMENT_HEADER_BYTES]
    for _, _, payload in twin:
        ends.append(ends[-1] + journal_reader.RECORD_HEADER_BYTES + len(payload))
    return ends[1:]


@hypothesis.given(
    payloads=st.lists(st.binary(max_size=40), max_size=30), segment_bytes=st.integers(1, 400), splits=st.integers(1, 4)
)
def test_appended_records_are_read(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], segment_bytes: int, splits: int
) -> None:
    """Also when it was closed and opened in between; its base is only asked for when a segment begins."""
    path = tmp_path_factory.mktemp("any") / "journal"
    twin: Twin = []

    def base() -> bytes:
        twin.append((len(twin), 0, b"base"))
        return b"base"

    for part in range(splits):
        with relive.Journal(path, fsync="never", segment_bytes=segment_bytes) as log:
            assert log.num_records == len(twin)
            log._begin(base)
            for payload in payloads[part::splits]:
                log._append(7, payload)
                twin.append((len(twin), 7, payload))
        assert read(path) == twin
    assert len(segments(path)) == sum(kind == 0 for _, kind, _ in twin)
    shutil.rmtree(path)


def test_journals_cut_at_any_byte_keep_whole_records(tmp_path: pathlib.Path) -> None:
    twin = write(tmp_path / "log", [b"", b"one", b"x" * 40, b"\0" * 50, b"end"])
    (segment,) = segments(tmp_path / "log")
    content, ends = segment.read_bytes(), ends_of(twin)
    assert ends[-1] == len(content)
    for size in range(len(content)):
        segment.write_bytes(content[:size])
        whole = sum(end <= size for end in ends)
        if not whole:
            with pytest.raises(errors.CheckpointError, match="segment-0+.relive is damaged at byte"):
                read(tmp_path / "log")
            continue
        assert read(tmp_path / "log") == twin[:whole]
        findings = journal_reader.examine(tmp_path / "log")
        assert (findings.num_records, findings.num_torn_bytes) == (whole, size - ends[whole - 1])
        with relive.Journal(tmp_path / "log", fsync="never") as log:
            assert log.num_records == whole
            log._begin(lambda: b"")
            log._append(9, b"again")
        assert read(tmp_path / "log") == [*twin[:whole], (whole, 9, b"again")]


def test_garbage_after_the_last_record_is_a_torn_tail(tmp_path: pathlib.Path) -> None:
    twin = write(tmp_path / "log", [b"one", b"two"])
    content = segments(tmp_path / "log")[0].read_bytes()
    for tail in (b"\xff" * 5000, bytes(range(256)) * 4, b"\1" * 3000):
        segments(tmp_path / "log")[0].write_bytes(content + tail)
        assert read(tmp_path / "log") == twin
        assert journal_reader.examine(tmp_path / "log").num_torn_bytes == len(tail)


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="the system has no holes in files")
@pytest.mark.parametrize("has_holes", [True, False])
def test_a_tail_of_zeros_is_torn_unless_records_follow(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, has_holes: bool
) -> None:
    """A hole of 64 GiB costs nothing; the data after it may begin anywhere in a record."""
    if not has_holes:
        monkeypatch.delattr(os, "SEEK_DATA")
    twin, size = write(tmp_path / "log", [b"one"]), 2**36 if has_holes else 2**20
    (segment,) = segments(tmp_path / "log")
    seed, end = journal_reader.seed_of(segment.read_bytes(), 0), ends_of(twin)[-1]
    os.truncate(segment, size)
    assert read(tmp_path / "log") == twin
    assert journal_reader.examine(tmp_path / "log").num_torn_bytes == size - end
    record = journal_reader.framed(256, 1, b"", seed)
    assert record.startswith(bytes(4))
    for place in (size, size - 1, size - 4, size + 3, size + 2**18):
        os.truncate(segment, size)
        with segment.open("r+b") as file:
            file.seek(place + 4)
            file.write(record[4:])
        with pytest.raises(errors.CheckpointError, match=f"is damaged at byte {end}: .*, and whole records follow$"):
            read(tmp_path / "log")


def test_a_torn_payload_that_holds_a_journal_is_no_damage(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "inner", PAYLOADS[:20])
    inner = segments(tmp_path / "inner")[0].read_bytes()
    twin = write(tmp_path / "log", [b"one", inner])
    (segment,) = segments(tmp_path / "log")
    segment.write_bytes(segment.read_bytes()[:-1])
    assert read(tmp_path / "log") == twin[:-1]


def test_whole_records_after_damage_are_always_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_reader, "_CHUNK", 64)
    write(tmp_path / "log", [b"x" * 200])
    (segment,) = segments(tmp_path / "log")
    content = segment.read_bytes()
    bad = journal_reader.SEGMENT_HEADER_BYTES + journal_reader.RECORD_HEADER_BYTES + len(b"base 0")
    for inserted in range(70):
        segment.write_bytes(content[:bad] + b"\xff" * inserted + content[bad:])
        assert (journal_reader.examine(tmp_path / "log").damage is not None) == (inserted > 0)


@pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(75, 2000, 3))
def test_a_flipped_bit_gives_an_error_or_a_prefix(seeds: range, tmp_path: pathlib.Path) -> None:
    twin = write(tmp_path / "log", PAYLOADS[:12], segment_bytes=120)
    files = segments(tmp_path / "log")
    assert len(files) >= 3
    for seed in seeds:
        chance = random.Random(seed)
        segment = chance.choice(files)
        content = bytearray(segment.read_bytes())
        old = bytes(content)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        segment.write_bytes(content)
        got: Twin = []
        message = ""
        try:
            for record in journal_reader.records(tmp_path / "log"):
                got.append(record)
        except errors.CheckpointError as error:
            message = str(error)
        if message:
            assert str(segment) in message
            assert "\n" not in message
            assert got == twin[: len(got)], seed
        else:
            assert segment == files[-1], seed
            assert got == twin[:-1]  # Only the last record of all can be taken for torn.
        segment.write_bytes(old)
    assert read(tmp_path / "log") == twin


def test_records_after_a_long_one_without_its_length_are_found(tmp_path: pathlib.Path) -> None:
    """They begin beyond what a file buffers."""
    for size in (9_000, 28_000, 300_000):
        write(tmp_path / str(size), [b"x" * size] * 3)
        (segment,) = segments(tmp_path / str(size))
        content, end = bytearray(segment.read_bytes()), ends_of([(0, 0, b"base 0")])[0]
        content[end + 3] ^= 1
        segment.write_bytes(content)
        with pytest.raises(errors.CheckpointError, match=f"at byte {end}: .*, and whole records follow$"):
            read(tmp_path / str(size))


def test_a_record_that_claims_4_gib_takes_no_memory(tmp_path: pathlib.Path) -> None:
    twin = write(tmp_path / "log", PAYLOADS[:12], segment_bytes=120)
    files = segments(tmp_path / "log")
    for segment in (files[-1], files[0]):
        with segment.open("ab") as file:
            file.write(b"\xff" * 20)
    tracemalloc.start()
    try:
        message = "claims 4294967295 bytes where 3 are left, and another segment"
        with pytest.raises(errors.CheckpointError, match=message):
            read(tmp_path / "log")
        files[0].write_bytes(files[0].read_bytes()[:-20])
        assert read(tmp_path / "log") == twin
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_tail_that_takes_long_to_search_is_damage(tmp_path: pathlib.Path) -> None:
    """Each ninth byte begins what could be a header of a long record."""
    write(tmp_path / "log", [b"one"])
    (segment,) = segments(tmp_path / "log")
    seed = journal_reader.seed_of(segment.read_bytes(), 0)
    head = bytearray(journal_reader.framed(5, 1, b"", seed))
    head[:4] = (200_000).to_bytes(4, "little")
    tear(tmp_path / "log", bytes(head) * 30_000)
    with pytest.raises(errors.CheckpointError, match="and whole records follow"):
        read(tmp_path / "log")


def test_a_file_that_shrinks_while_it_is_read_is_torn(tmp_path: pathlib.Path) -> None:
    big = b"x" * 200_000
    twin = write(tmp_path / "log", [big, big, big])
    (segment,) = segments(tmp_path / "log")
    walk = journal_reader.records(tmp_path / "log")
    got = [next(walk), next(walk)]
    os.truncate(segment, 500_000)
    got += walk
    assert got == twin[:3]


def test_a_reader_goes_on_after_pruned_segments(tmp_path: pathlib.Path) -> None:
    with with_ten(tmp_path / "log") as log:
        reading = journal_reader.records(tmp_path / "log")
        got = [next(reading).number]
        assert log._prune(6) == 2
        got += [next(reading).number for _ in range(4)]
        log._append(1, b"r" * 33)
        log._append(1, b"r" * 33)
        assert log._prune(log.num_records) == 3
        got += [record.number for record in reading]
        assert got == [0, 1, 2, 6, 7, 8, 15, 16, 17]
        assert journal_reader.examine(tmp_path / "log").damage is None


@pytest.mark.parametrize("is_late", [False, True])
def test_a_listing_beside_a_pruning_writer_is_no_damage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The names are read before the writer prunes, or those of segments after it and those of marks before."""
    own = files.Directory.names
    with with_ten(tmp_path / "log") as log:
        log._prune(3)
        (tmp_path / "log" / journal_reader.CHECKPOINT).mkdir()

        def names(directory: files.Directory) -> list[str]:
            before = own(directory)
            if log._prune(9) and is_late:
                return [name for name in own(directory) if not name.endswith(journal_reader.OLDEST)]
            return before

        monkeypatch.setattr(files.Directory, "names", names)
        assert [record.number for record in journal_reader.records(tmp_path / "log")] == [9, 10, 11, 12, 13, 14]
        assert log.num_records == 15


def test_a_segment_missing_while_reading_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "log", PAYLOADS[:20], segment_bytes=120)
    names = sorted(os.listdir(tmp_path / "log"))
    reading = journal_reader.records(tmp_path / "log")
    next(reading)
    (tmp_path / "log" / names[1]).unlink()
    with pytest.raises(errors.CheckpointError, match=f"{names[1]} is missing$"):
        list(reading)
    (tmp_path / "log" / names[0]).unlink()
    with pytest.raises(journal_reader.DamageError, match=f"{names[0]} is damaged at byte 0: it is missing$"):
        read(tmp_path / "log")


def test_a_record_cut_while_it_is_checked_is_no_record(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"short")
    with (tmp_path / "file").open("rb", buffering=0) as file:
        assert journal_reader._checksum(file, 6, 0) == zlib.crc32(b"short")


def test_an_overlap_of_segments_is_damage(tmp_path: pathlib.Path) -> None:
    forged(tmp_path / "log", *[(number, min(number, 1), b"") for number in range(5)])
    segment_lib.create(str(tmp_path / "log" / journal_reader.segment_name(3)), 3, [(0, b"")], 1)
    message = "is damaged at byte 0: the segment before it ends before record 5"
    with pytest.raises(errors.CheckpointError, match=message):
        read(tmp_path / "log")


@pytest.mark.parametrize("place", [1, 2, -1], ids=["second", "third", "last"])
def test_a_segment_of_another_journal_is_refused(tmp_path: pathlib.Path, place: int) -> None:
    """P81: also if its records have the same numbers; and nothing is cut, though the end is torn."""
    for name in ("log", "other"):
        write(tmp_path / name, PAYLOADS[:20], segment_bytes=120)
    strange = segments(tmp_path / "log")[place]
    shutil.copy(tmp_path / "other" / strange.name, strange)
    tear(tmp_path / "log")
    refused(tmp_path / "log", f"{strange.name} is damaged at byte 0: it is of another journal than the one before it")


@pytest.mark.parametrize("fsync", ["always", "never"])
@pytest.mark.parametrize("num_left", [0, 1, 3])
def test_a_closed_journal_misses_its_newest_segments(tmp_path: pathlib.Path, num_left: int, fsync: Any) -> None:
    """P110; repaired, it is what is left."""
    with relive.Journal(tmp_path / "log", fsync=fsync, segment_bytes=120) as log:
        log._begin(lambda: b"base")
        for payload in PAYLOADS[:20]:
            log._append(1, payload)
    twin = read(tmp_path / "log")
    num_closed = twin[-1][0] + 1 if fsync == "always" else int(segments(tmp_path / "log")[-1].stem[-20:]) + 1
    left, gone = segments(tmp_path / "log")[:num_left], segments(tmp_path / "log")[num_left:]
    for each in gone:
        each.unlink()
    num_records = int(gone[0].stem[-20:])
    what = f"it ends before record {num_records}, and the journal was closed with {num_closed} records"
    message = f"{left[-1].name} is damaged at byte .*: {what}" if left else "segment-0+.relive is damaged .*missing"
    refused(tmp_path / "log", message)
    report = repair.repair_journal(str(tmp_path / "log"), drop_damaged=True)
    assert (report.num_records, report.set_aside) == (num_records, ())
    assert str(report) == f"{num_records} whole records: {report.damage}"
    assert read(tmp_path / "log") == twin[:num_records]
    assert str(repair.repair_journal(str(tmp_path / "log"))) == f"{num_records} whole records: nothing to repair"
    relive.Journal(tmp_path / "log").close()


def test_a_closed_journal_has_no_torn_tail(tmp_path: pathlib.Path) -> None:
    """A flipped bit in its last record is damage; set aside, not cut off."""
    with relive.Journal(tmp_path / "log") as log:
        log._begin(lambda: b"base")
        log._append(1, b"one")
        log._append(1, b"two")
    (segment,) = segments(tmp_path / "log")
    content = segment.read_bytes()[:-1] + b"!"
    segment.write_bytes(content)
    refused(
        tmp_path / "log", "at byte 78: its record 2 has a wrong checksum, and the journal was closed with 3 records"
    )
    report = repair.repair_journal(str(tmp_path / "log"), drop_damaged=True)
    assert (report.num_records, report.set_aside) == (2, (f"{segment.name}.damaged",))
    assert (tmp_path / "log" / report.set_aside[0]).read_bytes() == content
    assert read(tmp_path / "log") == [(0, 0, b"base"), (1, 1, b"one")]


def test_opening_reads_the_last_segment_alone(tmp_path: pathlib.Path) -> None:
    """P103: what is damaged in another one, or missing, is seen when that is read."""
    write(tmp_path / "log", PAYLOADS, segment_bytes=120)
    second, content = segments(tmp_path / "log")[1], segments(tmp_path / "log")[1].read_bytes()
    second.write_bytes(content[:37] + bytes(len(content) - 37))
    relive.Journal(tmp_path / "log").close()
    refused(tmp_path / "log", f"{second.name} is damaged at byte 37: its record", "records", "repair")
    second.write_bytes(content[:36])
    refused(tmp_path / "log", "it ends after 36 of the 37 bytes of its header$", "Journal")
    second.unlink()
    relive.Journal(tmp_path / "log").close()
    refused(tmp_path / "log", "the segment before it ends before record", "records", "repair")


def test_a_reader_beside_an_opening_writer_sees_no_damage(tmp_path: pathlib.Path) -> None:
    """What it has listed is closed; then the mark goes, segments are pruned, and another mark comes."""
    for num_read in (1, 4, 12):
        path = tmp_path / str(num_read)
        write(path, PAYLOADS, segment_bytes=120)
        reading = journal_reader.records(path)
        got = [next(reading).number for _ in range(num_read)]
        with relive.Journal(path, segment_bytes=120) as log:
            log._begin(lambda: b"base")
            for payload in PAYLOADS:
                log._append(1, payload)
            log._prune(log.num_records - 20)
        got += [record.number for record in reading]
        assert got == sorted(got)
        assert got[-1] >= 36


@pytest.mark.parametrize("num_pruned", [0, 2], ids=["whole", "pruned"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_missing_segment_is_refused(tmp_path: pathlib.Path, num_pruned: int, place: int) -> None:
    """P81: a pruned segment is not missing. Opening to write reads only the last one."""
    write(tmp_path / "log", PAYLOADS, segment_bytes=120)
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        log._prune(int(segments(tmp_path / "log")[num_pruned].stem[-20:]))
    read(tmp_path / "log")
    gone, after, *_ = segments(tmp_path / "log")[place:]
    gone.unlink()
    tear(tmp_path / "log")
    reason = "the segment before it ends before record" if place else "it is missing"
    message = f"{(after if place else gone).name} is damaged at byte 0: {reason}"
    refused(tmp_path / "log", message, "records", "repair", *(() if place else ("Journal",)))


def test_a_pruned_journal_without_segments_is_refused(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "log", PAYLOADS, segment_bytes=120)
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        log._prune(log.num_records)
    (last,) = segments(tmp_path / "log")
    last.unlink()
    refused(tmp_path / "log", f"{last.name} is damaged at byte 0: it is missing$", "records")


def test_segments_about_to_be_deleted_are_not_read(tmp_path: pathlib.Path) -> None:
    """The process may have been killed before it had deleted each segment, and files go from a disk in any order."""
    twin = write(tmp_path / "log", PAYLOADS, segment_bytes=120)
    files = segments(tmp_path / "log")
    for begins in (files[1], files[3]):
        begins.with_name(f"{begins.name}.oldest").touch()
    files[1].unlink()
    expected = twin[int(files[3].stem[-20:]) :]
    assert read(tmp_path / "log") == expected
    with relive.Journal(tmp_path / "log", fsync="never"):
        pass
    kept = [f"{files[3].name}.oldest", *(each.name for each in files[3:])]
    assert sorted(name for name in contents(tmp_path / "log") if not name.endswith(".closed")) == sorted(kept)
    assert read(tmp_path / "log") == expected


def forged(path: pathlib.Path, *framed: tuple[int, int, bytes]) -> pathlib.Path:
    """Make a segment of any records, with right checksums."""
    path.mkdir()
    header = journal_reader.segment_header(0, 1)
    seed = journal_reader.seed_of(header, 0)
    content = header + b"".join(journal_reader.framed(*record, seed) for record in framed)
    (path / journal_reader.segment_name(0)).write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("framed", "found"),
    [
        ([], "is damaged at byte 37: it ends before its base$"),
        ([(0, 1, b"")], "is damaged at byte 37: its record 0 is of kind 1$"),
        ([(1, 0, b"")], "is damaged at byte 37: its record 0 has the number 1$"),
        ([(0, 0, b""), (1, 0, b"")], 1),
        ([(0, 0, b""), (2, 1, b"")], 1),
        ([(0, 0, b""), (1, 0, b""), (2, 1, b"")], "at byte 54: its record 1 is of kind 0, and whole records follow$"),
    ],
)
def test_a_segment_begins_with_exactly_one_base(tmp_path: pathlib.Path, framed: Twin, found: Any) -> None:
    path = forged(tmp_path / "log", *framed)
    if found == 1:
        assert read(path) == framed[:1]
    else:
        with pytest.raises(errors.CheckpointError, match=found):
            read(path)


def test_a_segment_without_its_header_is_damage(tmp_path: pathlib.Path) -> None:
    path = forged(tmp_path / "log", (0, 0, b""))
    for content in (b"", b"relive journal 1\n", b"relive journal 9\n" + b"x" * 40, b"x" * 100):
        (path / journal_reader.segment_name(0)).write_bytes(content)
        refused(path, "segment-0+.relive is damaged at byte 0: it ", "records")


@posix_test.PIPES
def test_links_pipes_and_directories_are_no_segments(tmp_path: pathlib.Path) -> None:
    path = forged(tmp_path / "log", (0, 0, b""))
    segment = path / journal_reader.segment_name(0)
    segment.rename(tmp_path / "real")
    segment.symlink_to(tmp_path / "real")
    with pytest.raises(errors.CheckpointError, match="is a link$"):
        read(path)
    for make in (os.mkfifo, os.mkdir):
        segment.unlink()
        make(segment)
        with pytest.raises(errors.CheckpointError, match="is not a regular file$"):
            read(path)


def test_a_read_that_fails_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = forged(tmp_path / "log", (0, 0, b""))

    failing = posix_test.failing(errno.EIO)
    monkeypatch.setattr(journal_reader.Reading, "_read", failing)
    with pytest.raises(errors.CheckpointError, match=r"segment-0+.relive could not be read: Input/output error$"):
        read(path)
    monkeypatch.setattr(os, "listdir", failing)
    with pytest.raises(errors.CheckpointError, match="log could not be read: Input/output error$"):
        read(path)


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS.keys())
def test_what_is_no_journal_is_left_alone(tmp_path: pathlib.Path, opening: Callable[[pathlib.Path], object]) -> None:
    """No lock is left beside it either."""
    path = tmp_path / "home"
    path.mkdir()
    for name in ("thesis.txt", "a\nb"):
        (path / name).write_text("all of it")
        message = f"home holds {name!a}, which is not part of a journal: move it away$"
        with pytest.raises(errors.CheckpointError, match=re.escape(message[:-1]) + "$"):
            opening(path)
        assert contents(path) == {name: b"all of it"}
        (path / name).unlink()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.CheckpointError, match="file is a file, not a journal: if it is a checkpoint, load it$"):
        opening(tmp_path / "file")
    if opening is not relive.Journal:  # It makes one.
        with pytest.raises(errors.CheckpointError, match="nowhere could not be read: No such file or directory$"):
            opening(tmp_path / "nowhere")
    with pytest.raises(errors.CheckpointError, match="deeper could not be (read|opened): No such file or directory$"):
        opening(tmp_path / "nowhere" / "deeper")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "home"]


def test_incomplete_and_damaged_files_are_not_read(tmp_path: pathlib.Path) -> None:
    path = forged(tmp_path / "log", (0, 0, b"base"))
    for end in (".new", ".damaged", ".1.damaged"):
        (path / f"{journal_reader.segment_name(3)}{end}").write_bytes(b"anything")
    assert read(path) == [(0, 0, b"base")]
    if os.name != "nt":
        (tmp_path / "link").symlink_to(path)
        assert read(tmp_path / "link") == [(0, 0, b"base")]


def test_a_directory_without_segments_has_no_records(tmp_path: pathlib.Path) -> None:
    assert read(tmp_path) == []
    with pytest.raises(errors.CheckpointError, match=" holds no record$"):
        relive.recover(tmp_path)
    findings = journal_reader.examine(tmp_path)
    assert (findings.num_segments, findings.num_records, findings.num_torn_bytes, findings.damage) == (0, 0, 0, None)


# The bytes of records.


HEADER = journal_reader.segment_header(42, 7)
SEED = journal_reader.seed_of(HEADER, 42)


def test_records_have_the_documented_bytes() -> None:
    start = b"relive journal 1\n" + struct.pack("<QQ", 42, 7)
    assert start + struct.pack("<I", zlib.crc32(start)) == HEADER
    record = journal_reader.framed(43, 9, b"abc", SEED)
    head = struct.pack("<IBQ", 3, 9, 43)
    assert record == head + struct.pack("<I", zlib.crc32(head + b"abc", zlib.crc32(start))) + b"abc"
    assert (len(HEADER), len(record)) == (journal_reader.SEGMENT_HEADER_BYTES, journal_reader.RECORD_HEADER_BYTES + 3)


def flips(content: bytes) -> Iterator[bytes]:
    """Yield the bytes with each bit flipped."""
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def test_each_flipped_bit_of_a_record_is_found() -> None:
    """Also of the header of its segment, or if it is taken for a record of another one."""
    record = journal_reader.framed(43, 9, b"abc", SEED)
    other = journal_reader.seed_of(journal_reader.segment_header(42, 8), 42)
    for content, seed in [*((flipped, SEED) for flipped in flips(record)), (record, other)]:
        (checksum,) = struct.unpack_from("<I", content, 13)
        assert zlib.crc32(content[17:], zlib.crc32(content[:13], seed)) != checksum
    for header in flips(HEADER):
        with pytest.raises(errors.CheckpointError):
            journal_reader.seed_of(header, 42)


def test_invalid_segment_headers_are_refused(subtests: pytest.Subtests) -> None:
    for header, first, message in [
        (b"{}", 42, "does not begin with the header of a journal"),
        (HEADER.replace(b"1\n", b"2\n"), 42, "is a journal of format '2', and this relive reads format '1'"),
        (HEADER[:-1], 42, "ends after 36 of the 37 bytes of its header"),
        (HEADER[:-1] + b"!", 42, "has a header whose checksum is wrong"),
        (HEADER, 43, "has a header that says its first record is 42"),
        (journal_reader.segment_header(2**62 + 1, 0), 2**62 + 1, "has a header that says its first record is 461168.*"),
    ]:
        with subtests.test(message=message):
            with pytest.raises(errors.CheckpointError, match=f"^{message}$"):
                journal_reader.seed_of(header, first)
            assert journal_reader.seed_of(journal_reader.segment_header(2**62, 0), 2**62) > 0


def test_invalid_records_are_not_framed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_reader, "LARGEST_PAYLOAD", 3)
    assert len(journal_reader.framed(0, 255, b"abc", 0)) == 20
    with pytest.raises(errors.ArgumentError, match="^payload must be at most 3 bytes, got 4$"):
        journal_reader.framed(0, 0, b"abcd", 0)
