"""Ledger in a file: what a crash leaves of them, places used again, and files that nobody wrote."""

import os
import pathlib
import tempfile

import hypothesis
from hypothesis import strategies as st
import pytest

from relive.fleet import ledger

NUMBERS = st.integers(0, 2**63)
NAMES = st.binary(min_size=16, max_size=16)
MARKS = st.builds(ledger.Entry, NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
A, B, C = (ledger.Entry(letter * 16, number, 100, 10) for number, letter in enumerate((b"a", b"b", b"c")))


def reopened(path: pathlib.Path) -> ledger.Ledger:
    found = ledger.Ledger(str(path))
    found.close()
    return found


def named(*some: ledger.Entry) -> dict[bytes, ledger.Entry]:
    return {mark.writer: mark for mark in some}


@pytest.mark.parametrize(
    ("inserted", "passed"), [(0, 0), (100, 0), (101, 1), (105, 5), (109, 9), (110, 10), (111, 10), (10**9, 10)]
)
def test_passed_steps_after_a_mark_are_at_most_those_of_a_batch(inserted: int, passed: int) -> None:
    assert A.passed(inserted) == passed


def test_refused_steps_count_as_passed() -> None:
    mark = ledger.Entry(b"w" * 16, 3, before=100, rows=10, refused=4)
    assert [mark.passed(inserted) for inserted in (100, 103, 106, 107)] == [4, 7, 10, 10]


@hypothesis.given(mark=MARKS, stored=NUMBERS, more=NUMBERS)
def test_a_resolved_entry_is_not_changed_by_later_steps(mark: ledger.Entry, stored: int, more: int) -> None:
    inserted = mark.before + stored
    settled = mark.resolved(inserted)
    assert settled.passed(inserted + more) == mark.passed(inserted)
    assert settled.resolved(inserted + more) == settled


@hypothesis.given(given=st.lists(MARKS, max_size=8), counts=st.tuples(NUMBERS, NUMBERS))
def test_entries_and_counts_survive_a_restart(given: list[ledger.Entry], counts: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "marks"
        written = ledger.Ledger(str(path))
        for mark in given:
            written.put(mark)
        written.put_counts(*counts)
        found = reopened(path)
        assert found.found == named(*given)
        assert (found.lost, found.sampled) == counts
        written.close()


def test_a_newer_mark_of_a_writer_replaces_its_last_one(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "marks"
    written = ledger.Ledger(str(path))
    newer = ledger.Entry(A.writer, 7, 200, 3, 1)
    for mark in (A, B, newer):
        written.put(mark)
    assert reopened(path).found == named(newer, B)
    assert path.stat().st_size == 3 * 64
    written.close()


def test_a_forgotten_writers_place_is_used_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "marks"
    written = ledger.Ledger(str(path))
    written.put(A)
    written.put(B)
    written.forget(A.writer)
    written.forget(A.writer)
    assert reopened(path).found == named(B)
    written.put(C)
    assert reopened(path).found == named(B, C)
    assert path.stat().st_size == 3 * 64
    written.close()
    # And by a process that comes after it.
    later = ledger.Ledger(str(path))
    later.forget(B.writer)
    later.put(A)
    later.put(B)
    later.close()
    assert reopened(path).found == named(A, B, C)
    assert path.stat().st_size == 4 * 64


def test_a_ledger_without_a_file_keeps_nothing() -> None:
    nowhere = ledger.Ledger(None)
    nowhere.put(A)
    nowhere.put_counts(1, 2)
    nowhere.forget(A.writer)
    nowhere.close()
    assert (nowhere.found, nowhere.lost, nowhere.sampled) == ({}, 0, 0)


def test_closing_a_ledger_twice_has_no_effect(tmp_path: pathlib.Path) -> None:
    written = ledger.Ledger(str(tmp_path / "marks"))
    written.close()
    written.close()
    written.put(A)
    assert reopened(tmp_path / "marks").found == {}


@hypothesis.given(place=st.integers(0, 3), at=st.integers(0, 63), flip=st.integers(1, 255))
def test_a_damaged_entry_is_dropped_alone(place: int, at: int, flip: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "marks"
        written = ledger.Ledger(str(path))
        for mark in (A, B, C):
            written.put(mark)
        written.put_counts(5, 6)
        written.close()
        content = bytearray(path.read_bytes())
        content[place * 64 + at] ^= flip
        path.write_bytes(content)
        found = reopened(path)
        left = [mark for number, mark in enumerate((A, B, C), 1) if number != place]
        assert found.found == named(*left)
        assert (found.lost, found.sampled) == ((5, 6) if place else (0, 0))


@hypothesis.given(size=st.integers(0, 4 * 64))
def test_complete_entries_of_a_torn_file_are_read(size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "marks"
        written = ledger.Ledger(str(path))
        for mark in (A, B, C):
            written.put(mark)
        written.close()
        path.write_bytes(path.read_bytes()[:size])
        found = ledger.Ledger(str(path))
        assert found.found == named(*[A, B, C][: max(size // 64 - 1, 0)])
        # Who writes on does so in places of its own.
        for mark in (A, B, C):
            found.put(mark)
        found.close()
        assert reopened(path).found == named(A, B, C)
        assert path.stat().st_size <= 5 * 64


@hypothesis.given(content=st.binary(max_size=300))
def test_a_foreign_file_holds_no_entry(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "marks"
        path.write_bytes(content)
        found = reopened(path)
        assert (found.found, found.lost, found.sampled) == ({}, 0, 0)


def test_a_repeated_mark_counts_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "marks"
    written = ledger.Ledger(str(path))
    written.put(A)
    written.close()
    content = path.read_bytes()
    path.write_bytes(content + content[64:])
    found = ledger.Ledger(str(path))
    assert found.found == named(A)
    found.put(B)
    found.close()
    assert reopened(path).found == named(A, B)


def test_a_mark_in_the_place_of_the_counts_is_ignored(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "marks"
    written = ledger.Ledger(str(path))
    written.put(A)
    written.close()
    path.write_bytes(path.read_bytes()[64:])
    found = reopened(path)
    assert (found.found, found.lost, found.sampled) == ({}, 0, 0)


def test_a_ledger_works_without_posix_functions(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("O_CLOEXEC", "pread", "pwrite"):
        monkeypatch.delattr(os, name, raising=False)
    written = ledger.Ledger(str(tmp_path / "ledger"))
    written.put(A)
    written.put(B)
    written.put_counts(3, 4)
    found = reopened(tmp_path / "ledger")
    assert (found.found, found.lost, found.sampled) == (named(A, B), 3, 4)


def test_a_short_write_is_an_error_for_entries_only(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ledger.Ledger(str(tmp_path / "ledger"))
    one.put(ledger.Entry(b"w" * 16, 0, 0, 3))
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:10]))
    with pytest.raises(OSError, match="only 10 of 64 bytes fitted"):
        one.put(ledger.Entry(b"w" * 16, 1, 3, 3))
    one.put_counts(1, 2)
    one.forget(b"w" * 16)
    one.close()
