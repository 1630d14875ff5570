"""Archives, written and read; zipfile is the twin of both."""

from collections.abc import Callable
import contextlib
import io
import os
import pathlib
import struct
from typing import Any
import zipfile
import zlib

import numpy as np
import pytest

from relive import errors
from relive.persistence import archive

MEMBERS = {"a": b"one", "b.npy": b"", "c": b"three" * 100}


def nothing(count: int) -> None:
    pass


def written(path: pathlib.Path, members: dict[str, bytes]) -> bytes:
    """Write an archive, and return its bytes."""
    with open(path, "wb", buffering=0) as file:
        writer = archive.Writer(file.fileno(), nothing)
        for name, content in members.items():
            writer.add(name, len(content), [memoryview(content)])
        writer.end()
    return path.read_bytes()


def stored(path: pathlib.Path, members: dict[str, bytes | None]) -> None:
    """Write an archive of the members that are there."""
    written(path, {name: content for name, content in members.items() if content is not None})


def contents_of(path: pathlib.Path) -> dict[str, bytes]:
    """Return the contents of all members of a file."""
    return read(path.read_bytes())


def change_byte(path: pathlib.Path, name: str, place: int) -> None:
    """Change a byte of a member in its file, and nothing else."""
    with zipfile.ZipFile(path) as other:
        start = other.getinfo(name).header_offset + 30 + len(name)
    raw = bytearray(path.read_bytes())
    raw[start + place] ^= 1
    path.write_bytes(raw)


def read(raw: bytes) -> dict[str, bytes]:
    """Return the contents of all members."""
    file = io.BytesIO(raw)
    found = archive.members_of(file, "x")
    return {name: archive.contents(file, each, f"x/{name}") for name, each in found.items()}


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "x"


def test_what_was_written_is_read_here_and_by_zipfile(path: pathlib.Path) -> None:
    raw = written(path, MEMBERS)
    assert read(raw) == MEMBERS
    assert archive.first_of(raw) == ("a", raw[31:])
    with zipfile.ZipFile(path) as other:
        assert other.testzip() is None
        assert {name: other.read(name) for name in other.namelist()} == MEMBERS
        assert [info.date_time for info in other.infolist()] == [(1980, 1, 1, 0, 0, 0)] * 3
    assert read(written(path, {})) == {}


def test_what_zipfile_stores_is_read(path: pathlib.Path) -> None:
    with zipfile.ZipFile(path, "w") as other:
        for name, content in MEMBERS.items():
            with other.open(name, "w", force_zip64=name == "c") as member:
                member.write(content)
        other.writestr(zipfile.ZipInfo("d", (2026, 1, 2, 3, 4, 6)), b"four")
    assert read(path.read_bytes()) == {**MEMBERS, "d": b"four"}
    np.savez(path, a=np.arange(3), b=np.zeros(2))
    assert list(read(pathlib.Path(f"{path}.npz").read_bytes())) == ["a.npy", "b.npy"]


@pytest.mark.parametrize("limit", [0, 5, 100, 1000])
def test_large_members_and_places_are_in_zip64_fields(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """With a smaller limit: what is large is the same rule."""
    monkeypatch.setattr(archive, "_LARGE_FROM", limit)
    raw = written(path, MEMBERS)
    assert (b"PK\6\6" in raw) == (limit < 1000)
    assert read(raw) == MEMBERS
    with zipfile.ZipFile(path) as other:
        assert {name: other.read(name) for name in other.namelist()} == MEMBERS


def test_numbers_of_the_limit_are_in_zip64_fields_already(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest number of 32 bits stands for them."""
    extras = []
    for limit in (3, 4, 34, 35):
        monkeypatch.setattr(archive, "_LARGE_FROM", limit)
        raw = written(path, {"a": b"one", "b": b""})
        second = raw.rindex(b"PK\1\2")
        extras.append((raw[28], *struct.unpack_from("<H", raw, second + 30)))
    assert extras == [(20, 12), (0, 12), (0, 12), (0, 0)]


@pytest.mark.skipif(os.name == "nt", reason="the system makes no sparse files unasked")
def test_a_member_of_five_gibibytes_is_found(path: pathlib.Path) -> None:
    """The file is sparse: nobody reads the contents."""
    size = 5 << 30
    with open(path, "wb", buffering=0) as file:
        writer = archive.Writer(file.fileno(), nothing)
        writer.add("a", size, [])
        writer._at = os.lseek(file.fileno(), size, os.SEEK_CUR)
        writer.add("b", 3, [memoryview(b"two")])
        writer.end()
    with open(path, "rb", buffering=0) as file:
        found = archive.members_of(file, "x")
        assert [each.size for each in found.values()] == [size, 3]
        assert archive.contents(file, found["b"], "x/b") == b"two"
    with zipfile.ZipFile(path) as other:
        assert other.getinfo("a").file_size == size
        assert other.read("b") == b"two"


def test_what_the_system_takes_in_parts_is_written_whole(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, counts = os.write, list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, memory: system(descriptor, memory[:7]))
        raw = written(path, MEMBERS)
    assert raw == written(path, MEMBERS)
    with open(path, "wb", buffering=0) as file:
        writer = archive.Writer(file.fileno(), counts.append)
        writer.add("a", 5, [memoryview(b"ab"), memoryview(b"cde")])
    assert counts == [2, 3]


# Refusals.


def test_any_cut_is_found(path: pathlib.Path) -> None:
    raw = written(path, {"a": b"one", "b": b"two"})
    for length in range(len(raw)):
        with pytest.raises(errors.CheckpointError, match="^x ends early, or goes on behind its end$"):
            read(raw[:length])
    for more in (b"\0", b"PK\5\6", raw):
        with pytest.raises(errors.CheckpointError, match=r"^x(/\w)? (ends early|must (begin|have)|is not what)"):
            read(raw + more)


def test_no_flipped_bit_gives_other_contents(path: pathlib.Path) -> None:
    raw, unread = written(path, {"a": b"one", "b": b"two"}), set()
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(errors.CheckpointError):
            assert read(bytes(changed)) == {"a": b"one", "b": b"two"}
            unread.add(bit // 8)
    start = raw.index(b"PK\1\2")
    # What made it and what it needs; in the directory also the attributes of a file.
    assert unread == {4, 5, 38, 39} | {
        start + 47 * entry + byte for entry in (0, 1) for byte in (4, 5, 6, 7, *range(36, 42))
    }


def changed(raw: bytes, kind: bytes, at: int, form: str, value: Any, number: int = 0) -> bytes:
    """Change a field of a local head (PK34), of an entry (PK12) or of the end (PK56)."""
    start = -1
    for _ in range(number + 1):
        start = raw.index(kind, start + 1)
    made = bytearray(raw)
    struct.pack_into(form, made, start + at, value)
    return bytes(made)


def both(raw: bytes, local: int, entry: int, form: str, value: int) -> bytes:
    """Change a field of the second member in both places."""
    return changed(changed(raw, b"PK\3\4", local, form, value, 1), b"PK\1\2", entry, form, value, 1)


FORGED: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda raw: both(raw, 6, 8, "<H", 1), "x/b is encrypted"),
    (lambda raw: both(raw, 8, 10, "<H", 8), "x/b is compressed, by method 8: it must be stored"),
    (lambda raw: both(raw, 6, 8, "<H", 8), "x/b has an entry in the directory that is not of a plainly stored"),
    (lambda raw: changed(raw, b"PK\1\2", 32, "<H", 1, 1), "x(/b)? (has an entry|has a directory that is cut)"),
    (lambda raw: changed(raw, b"PK\1\2", 34, "<H", 1, 1), "x/b has an entry"),
    (lambda raw: changed(raw, b"PK\1\2", 30, "<H", 999, 1), "x/b has an entry"),
    (lambda raw: changed(raw, b"PK\1\2", 0, "<H", 1, 1), "x/b has an entry"),
    (lambda raw: changed(raw, b"PK\1\2", 28, "<H", 0, 1), "x/ has an entry|x must have|x has a directory"),
    (lambda raw: both(raw, 18, 20, "<L", 4), "x/b must be stored in its 3 bytes, got 4"),
    (lambda raw: both(both(raw, 18, 20, "<L", 999), 22, 24, "<L", 999), "x/b is too large: its 999 bytes overlap the"),
    (lambda raw: both(both(raw, 18, 20, "<L", 2), 22, 24, "<L", 2), "x must have its directory at 67, got 68"),
    (lambda raw: both(raw, 22, 24, "<L", 0xFFFFFFFF), "x/b must have 1 values in a zip64 field, and no other field"),
    (lambda raw: changed(raw, b"PK\3\4", 28, "<H", 3, 1), "x/b must have 0 values in a zip64 field"),
    (lambda raw: changed(raw, b"PK\3\4", 28, "<H", 9999, 1), "x/b ends early"),
    (lambda raw: changed(raw, b"PK\1\2", 42, "<L", 0, 1), "x/b overlaps the one before it"),
    (lambda raw: changed(raw, b"PK\1\2", 42, "<L", 33, 1), "x/b overlaps the one before it"),
    (lambda raw: changed(raw, b"PK\1\2", 42, "<L", 35, 1), "x/b must begin at 34, got 35"),
    (lambda raw: changed(raw, b"PK\1\2", 46, "<c", b"a", 1), "x/a is there twice"),
    (lambda raw: changed(raw, b"PK\1\2", 46, "<c", b"c", 1), "x/c is not what the directory says: its head differs"),
    (lambda raw: changed(raw, b"PK\1\2", 46, "<c", b"\xff", 1), "x has a directory that is cut or not in ASCII"),
    (lambda raw: changed(raw, b"PK\1\2", 46, "<c", b"\n", 1), r"x/'\\n' is not what the directory says"),
    (lambda raw: changed(raw, b"PK\1\2", 12, "<H", 7, 1), "x/b is not what the directory says: its head differs"),
    (lambda raw: changed(raw, b"PK\1\2", 16, "<L", 7, 1), "x/b is not what the directory says: its head differs"),
    (lambda raw: both(raw, 14, 16, "<L", 7), "x/b was changed: its CRC-32 must be 7, got "),
    (lambda raw: changed(raw, b"PK\5\6", 8, "<H", 3), "x must have its directory of at most"),
    (lambda raw: changed(changed(raw, b"PK\5\6", 8, "<H", 3), b"PK\5\6", 10, "<H", 3), "x must have 3 members in its"),
    (lambda raw: changed(changed(raw, b"PK\5\6", 8, "<H", 1), b"PK\5\6", 10, "<H", 1), "x must have 1 members in its"),
    (lambda raw: changed(raw, b"PK\5\6", 4, "<H", 1), "x must have its directory of at most"),
    (lambda raw: changed(raw, b"PK\5\6", 6, "<H", 1), "x must have its directory of at most"),
    (lambda raw: changed(raw, b"PK\5\6", 12, "<L", 1), "x must have its directory of at most"),
    (lambda raw: changed(raw, b"PK\5\6", 20, "<H", 1), "x must have its directory of at most"),
]


def test_a_forged_archive_is_refused(path: pathlib.Path, subtests: pytest.Subtests) -> None:
    raw = written(path, {"a": b"one", "b": b"two"})
    for forge, message in FORGED:
        with subtests.test(message=message), pytest.raises(errors.CheckpointError, match=f"^({message})"):
            read(forge(raw))


def test_two_ends_that_differ_are_refused(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_LARGE_FROM", 0)
    raw = written(path, {"a": b"one"})
    for kind, at, form in [(b"PK\6\6", 0, "<L"), (b"PK\6\7", 8, "<Q"), (b"PK\6\7", 16, "<L"), (b"PK\5\6", 12, "<L")]:
        with pytest.raises(errors.CheckpointError, match="^x has two ends that differ$"):
            read(changed(raw, kind, at, form, 9))


def test_a_directory_that_is_too_long_is_not_read(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = written(path, MEMBERS)
    monkeypatch.setattr(archive, "_MOST_DIRECTORY_BYTES", 145)
    assert read(raw) == MEMBERS
    monkeypatch.setattr(archive, "_MOST_DIRECTORY_BYTES", 144)
    with pytest.raises(errors.CheckpointError, match="^x must have its directory of at most 144 bytes right before"):
        read(raw)


def test_what_is_no_archive_has_no_first_member() -> None:
    for head in (b"", b"PK\3\4", b"PAR1" * 20, b"\0" * 99):
        assert archive.first_of(head) == ("", b"")
    assert zlib.crc32(b"") == 0
