"""Writing a journal: policies, segments, and that no failure, kill or second writer leaves a wrong record."""

from collections.abc import Callable, Iterator
import contextlib
import errno
import gc
import io
import os
import pathlib
import threading
from typing import Any

import pytest

import relive
from relive import errors
from relive.persistence import files
from relive.persistence import journal
from relive.persistence import journal as journal_lib
from relive.persistence import journal_crash_test
from relive.persistence import journal_reader
from relive.persistence import journal_reader_test
from relive.persistence import posix_test

PATIENCE = 60.0
"""Seconds after which a test has hung."""


def begun(path: pathlib.Path, **settings: Any) -> relive.Journal:
    log = relive.Journal(path, **{"fsync": "never", **settings})
    log._begin(lambda: b"base")
    return log


def payloads(path: pathlib.Path) -> list[bytes]:
    """Return what a journal holds, without bases."""
    return [record.payload for record in journal_reader.records(path) if record.kind]


def segments(path: pathlib.Path) -> list[int]:
    return sorted(int(file.stem[-20:]) for file in path.glob("*.relive"))


# What it counts, and when it syncs.


@pytest.mark.parametrize(
    ("fsync", "synced"),
    [
        ("always", [*range(2, 13)]),
        (relive.EveryRecords(3), [1, 1, 4, 4, 4, 7, 7, 8, 8, 11, 11]),
        ("never", [1] * 7 + [8] * 4),
    ],
    ids=["always", "every three", "never"],
)
def test_records_are_synced_as_the_policy_says(tmp_path: pathlib.Path, fsync: Any, synced: list[int]) -> None:
    found = []
    with begun(tmp_path / "log", fsync=fsync) as log:
        for number in range(1, 12):
            assert log._append(1, b"") == number
            found.append(log.num_synced)
            if number == 7:
                log.sync()
    assert (found, log.num_records) == (synced, 12)
    assert log.num_synced == (8 if fsync == "never" else 12)


class Syncs:
    """Watches the syncs of segments, which may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = threading.Semaphore(0)
        self.is_broken = False
        real = journal.sync_file

        def sync(descriptor: int) -> None:
            try:
                if self.is_broken:
                    posix_test.failing(errno.EIO)()
                real(descriptor)
            finally:
                self.calls.release()

        monkeypatch.setattr(journal, "sync_file", sync)

    def until_synced(self, log: relive.Journal) -> None:
        """Return when a sync in the background is over."""
        assert self.calls.acquire(timeout=PATIENCE)
        with log._lock:
            pass


def test_every_few_seconds_an_idle_process_is_synced_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    with begun(tmp_path / "log", fsync=relive.EverySeconds(0.001)) as log:
        for number in range(1, 4):
            log._append(1, b"")
            syncs.until_synced(log)
            assert log.num_synced == number + 1
        assert not syncs.calls.acquire(blocking=False)  # With nothing to sync, nothing is synced.
    assert threading.active_count() == 1 or log._syncer not in threading.enumerate()


def test_a_failed_background_sync_is_not_tried_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    syncs.is_broken = True
    log = begun(tmp_path / "log", fsync=relive.EverySeconds(0.001))
    log._append(1, b"")
    syncs.until_synced(log)
    syncs.is_broken = False
    message = "log cannot be written: the disk failed to sync it: Input/output error; open it again$"
    for call in (lambda: log._append(1, b""), log.sync, log.close):
        with pytest.raises(errors.CheckpointError, match=message):
            call()
    assert (log.num_records, log.num_synced) == (2, 1)
    assert not syncs.calls.acquire(blocking=False)
    log.close()


def test_a_dropped_journal_ends_its_thread_and_lock(tmp_path: pathlib.Path) -> None:
    logs = [begun(tmp_path / "log", fsync=relive.EverySeconds(0.001))]
    thread = logs[0]._syncer
    assert thread is not None

    def drop() -> None:
        logs.clear()
        thread.join(PATIENCE)
        gc.collect()

    with pytest.warns(ResourceWarning):
        drop()
    assert not thread.is_alive()
    begun(tmp_path / "log").close()


def test_a_sync_that_fails_takes_its_record_back(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = begun(tmp_path / "log", fsync="always")
    log._append(1, b"kept")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "sync_file", posix_test.failing(errno.EIO))
        with pytest.raises(errors.CheckpointError, match="log could not be synced: Input/output error$"):
            log._append(1, b"lost")
    assert (log.num_records, log.num_synced) == (2, 2)
    with pytest.raises(errors.CheckpointError, match="the disk failed to sync it"):
        log._append(1, b"lost")
    log.close()
    assert payloads(tmp_path / "log") == [b"kept"]


@pytest.mark.parametrize("has_fdatasync", [False, True])
def test_segments_sync_with_fdatasync_or_fsync(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, has_fdatasync: bool
) -> None:
    calls: list[int] = []
    with begun(tmp_path / "log", fsync="always") as log:
        if has_fdatasync:
            monkeypatch.setattr(os, "fdatasync", calls.append, raising=False)
        else:
            monkeypatch.delattr(os, "fdatasync", raising=False)
            monkeypatch.setattr(os, "fsync", calls.append)
        log._append(1, b"")
        assert calls == [log._segment and log._segment.descriptor]


# Segments.


def test_a_segment_begins_when_the_last_is_full(tmp_path: pathlib.Path) -> None:
    bases = []

    def base() -> bytes:
        bases.append(log.num_records)
        return b"b" * 8

    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=100) as log:
        log._begin(base)
        for _ in range(10):
            log._append(1, b"r" * 33)  # 50 bytes: two fill a segment.
    assert bases == segments(tmp_path / "log") == [0, 3, 6, 9, 12]


def test_bases_never_take_up_more_than_half(tmp_path: pathlib.Path) -> None:
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=1) as log:
        log._begin(lambda: b"b" * 930)  # With headers, 1,000 bytes.
        for _ in range(50):
            log._append(1, b"r" * 33)
    assert segments(tmp_path / "log") == [0, 21, 42]


def test_pruning_deletes_old_segments(tmp_path: pathlib.Path) -> None:
    with journal_reader_test.with_ten(tmp_path / "log") as log:
        assert [log._prune(2), log._prune(3), log._prune(8)] == [0, 1, 1]
        assert segments(tmp_path / "log") == [6, 9, 12]
        (tmp_path / "log" / journal_reader.segment_name(6)).unlink()
        assert log._prune(10**9) == 2
        assert segments(tmp_path / "log") == [12]
        log._append(1, b"last")
    assert [record.number for record in journal_reader.records(tmp_path / "log")] == [12, 13, 14, 15, 16]
    with begun(tmp_path / "log", segment_bytes=100) as log:
        assert log.num_records == log.num_synced == 17
        for _ in range(3):
            log._append(1, b"r" * 33)
        assert log._prune(log.num_records) == 2


@pytest.mark.parametrize(("module", "name"), [(os, "unlink"), (files, "fsync_directory")])
def test_pruning_that_fails_leaves_no_gap(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """The new start is synced before anything is deleted."""
    with journal_reader_test.with_ten(tmp_path / "log") as log:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, posix_test.failing(errno.EIO))
            with pytest.raises(errors.CheckpointError, match="log could not be pruned: Input/output error$"):
                log._prune(6)
        assert segments(tmp_path / "log") == [0, 3, 6, 9, 12]
        assert [log._prune(6), log._prune(9)] == [2, 1]
    assert sorted(file.name for file in (tmp_path / "log").iterdir()) == [
        journal_reader.segment_name(9),
        f"{journal_reader.segment_name(9)}.oldest",
        journal_reader.segment_name(12),
        f"{journal_reader.segment_name(13)}.closed",
    ]
    assert [record.number for record in journal_reader.records(tmp_path / "log")] == list(range(9, 15))
    with relive.Journal(tmp_path / "new") as log:
        assert log._prune(5) == 0


def test_segments_are_released_with_their_newest(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go up to the first whose newest is there; a call that failed is made again; so after a restart."""
    gone: set[int] = set()
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=100) as log:
        log._begin(lambda: b"base", newest=lambda: log.num_records)
        for _ in range(10):
            log._append(1, b"r" * 33)
        for newest, left in ((6, [0, 3, 6, 9, 12]), (3, [6, 9, 12])):
            gone.add(newest)
            log._release(gone.__contains__)
            assert segments(tmp_path / "log") == left
        gone.add(12)
        log._release(gone.__contains__)
        gone.add(9)
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", posix_test.failing(errno.EIO))
            with pytest.raises(errors.CheckpointError, match="log could not be pruned: Input/output error$"):
                log._release(gone.__contains__)
        assert log.num_synced == log.num_records
        log._release(gone.__contains__)
        assert segments(tmp_path / "log") == [12]
        log._append(1, b"r" * 33)
        log._append(1, b"r" * 33)
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=100) as log:
        log._begin(lambda: b"base", begun=[(12, 12), (15, 15)])
        log._release(lambda newest: True)
        assert segments(tmp_path / "log") == [15]


# What closing leaves.


def closed(path: pathlib.Path) -> list[int]:
    return sorted(int(file.name[8:28]) for file in path.glob("*.closed"))


def test_closing_marks_how_many_records_there_are(tmp_path: pathlib.Path) -> None:
    """P110: the next opening takes the mark away; a process that does not close leaves none."""
    relive.Journal(tmp_path / "log").close()
    assert closed(tmp_path / "log") == []
    for number in range(1, 4):
        with begun(tmp_path / "log", fsync=relive.EveryRecords(100)) as log:
            assert (closed(tmp_path / "log"), log.num_records) == ([], number)
            log._append(1, b"x")
        log.close()
        assert closed(tmp_path / "log") == [number + 1]
    relive.Journal(tmp_path / "log").close()
    assert closed(tmp_path / "log") == [4]
    with begun(tmp_path / "log") as log:
        log._append(1, b"not synced")
    assert closed(tmp_path / "log") == [4]
    journal_crash_test.kill(relive.Journal(tmp_path / "log"))
    assert closed(tmp_path / "log") == []


def test_an_opened_journal_has_lost_its_mark_before_it_writes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "log").close()
    (segment,) = (tmp_path / "log").glob("*.relive")
    with segment.open("ab") as file:
        file.write(b"torn")
    steps: list[str] = []
    for module, name in ((os, "unlink"), (files, "fsync_directory"), (os, "ftruncate"), (os, "write")):
        real = getattr(module, name)

        def watched(*arguments: Any, name: str = name, real: Any = real) -> Any:
            steps.append(f"{name} {os.path.basename(arguments[0])}" if isinstance(arguments[0], str) else name)
            return real(*arguments)

        monkeypatch.setattr(module, name, watched)
    journal_crash_test.kill(begun(tmp_path / "log"))
    start = steps.index(f"unlink {journal_reader.segment_name(1)}.closed")
    assert [step for step in steps[start:] if "_" in step or "nc" in step][1:3] == ["fsync_directory log", "ftruncate"]


def test_a_mark_that_cannot_be_left_is_no_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is like one of a process that was killed."""
    log = begun(tmp_path / "log", fsync="always")
    log._append(1, b"one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", posix_test.failing(errno.ENOSPC))
        log.close()
    assert closed(tmp_path / "log") == []
    log = begun(tmp_path / "log", fsync=relive.EveryRecords(9))
    log._append(1, b"two")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "sync_file", posix_test.failing(errno.EIO))
        with pytest.raises(errors.CheckpointError, match="log could not be synced"):
            log.close()
    assert closed(tmp_path / "log") == []
    assert payloads(tmp_path / "log") == [b"one", b"two"]


def test_pruning_leaves_a_segment_that_is_being_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows deletes no open file: it goes when the journal is opened again."""
    real = os.unlink

    def unlink(path: str, **place: Any) -> None:
        if path.endswith(".relive"):
            raise PermissionError(13, "Permission denied")
        real(path, **place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with journal_reader_test.with_ten(tmp_path / "log") as log:
            assert log._prune(100) == 4
            log._append(1, b"new")
        begun(tmp_path / "log").close()
    assert payloads(tmp_path / "log")[-1] == b"new"
    assert segments(tmp_path / "log")[0] == 0
    begun(tmp_path / "log").close()
    assert segments(tmp_path / "log")[0] == 12


def test_carried_records_are_created_with_their_segment(tmp_path: pathlib.Path) -> None:
    """It is part of what the records of a segment must exceed."""
    carried = [(7, b"one"), (8, b"x" * 913)]
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=1) as log:
        log._begin(lambda: b"base", lambda: iter(carried))
        assert (log.num_records, log.num_synced) == (3, 3)
        assert log._append(1, b"") == 3
        for _ in range(65):
            log._append(1, b"")
    assert [record[1:] for record in journal_reader.records(tmp_path / "log")][:4] == [(0, b"base"), *carried, (1, b"")]
    assert segments(tmp_path / "log") == [0, 63]


def test_carried_records_that_fail_begin_no_segment(tmp_path: pathlib.Path) -> None:
    outcomes = [[], ZeroDivisionError("codec"), []]

    def carried() -> Iterator[tuple[int, bytes]]:
        outcome = outcomes.pop(0)
        yield 7, b"carried"
        if isinstance(outcome, Exception):
            raise outcome

    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=10) as log:
        log._begin(lambda: b"base", carried)
        log._append(1, b"x" * 90)
        with pytest.raises(ZeroDivisionError, match="codec"):
            log._append(1, b"one")
        log._append(1, b"two")
    assert payloads(tmp_path / "log") == [b"carried", b"x" * 90, b"carried", b"two"]


# What fails: nothing counts.


def after(real: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """Return a call that fails once it has done its work."""

    def call(*arguments: Any) -> Any:
        real(*arguments)
        raise error

    return call


INTERRUPT = KeyboardInterrupt("Ctrl-C")
FAILURES: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "no space": (os, "write", posix_test.failing(errno.ENOSPC), "log could not be written: No space left on dev"),
    "not written": (os, "write", posix_test.failing(errno.EIO), "log could not be written: Input/output error$"),
    "interrupted, written": (os, "write", after(os.write, INTERRUPT), "Ctrl-C"),
    "interrupted, synced": (relive.Journal, "sync", after(relive.Journal.sync, INTERRUPT), "Ctrl-C"),
}


@pytest.mark.parametrize(("module", "name", "call", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_a_write_that_fails_appends_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: Any, message: str
) -> None:
    with begun(tmp_path / "log", fsync="always") as log:
        log._append(1, b"one")
        with monkeypatch.context() as patch:
            patch.setattr(module, name, call)
            with pytest.raises((errors.CheckpointError, KeyboardInterrupt), match=message):
                log._append(1, b"two")
        assert (log.num_records, log.num_synced) == (2, 2)
        assert log._append(1, b"three") == 2
    assert payloads(tmp_path / "log") == [b"one", b"three"]


def test_a_short_write_is_taken_back(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with begun(tmp_path / "log") as log:
        for size in range(19):
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", lambda descriptor, record, size=size: real(descriptor, record[:size]))
                with pytest.raises(errors.CheckpointError, match=f"written: only {size} of 20 bytes fitted$"):
                    log._append(1, b"two")
            assert log._append(1, b"%d" % size) == size + 1
    assert payloads(tmp_path / "log") == [b"%d" % size for size in range(19)]


def test_a_record_that_stays_stops_the_journal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with begun(tmp_path / "log", fsync="always") as log:
        log._append(1, b"one")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, record: real(descriptor, record[:5]))
            patch.setattr(os, "ftruncate", posix_test.failing(errno.EIO))
            with pytest.raises(errors.CheckpointError, match="only 5 of 20 bytes fitted$"):
                log._append(1, b"two")
        with pytest.raises(
            errors.CheckpointError,
            match="log cannot be written: an append that failed left a part of its record in it; open it again$",
        ):
            log._append(1, b"three")
        assert log.num_records == 2
    with begun(tmp_path / "log") as log:
        log._append(1, b"four")
    assert payloads(tmp_path / "log") == [b"one", b"four"]


CALLS = ("fsync", "ftruncate", "open", "rename", "unlink", "write", "fdatasync")


class Breaker:
    """Lets so many calls of the system pass, and makes the next one fail, before or after it has done its work."""

    def __init__(self, patch: pytest.MonkeyPatch, passing: int, error: BaseException, *, is_late: bool) -> None:
        self.passing, self.error, self.is_late = passing, error, is_late
        for name in CALLS:
            if hasattr(os, name):
                patch.setattr(os, name, self.around(getattr(os, name)))

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.passing -= 1
            if self.passing == -1 and not self.is_late:
                raise self.error
            answer = real(*arguments, **named)
            if self.passing == -1:
                if real is os.open or real.__name__ == "open":
                    os.close(answer)
                raise self.error
            return answer

        return call


@posix_test.DIRECTORIES
@pytest.mark.parametrize("is_late", [False, True])
def test_a_failure_in_a_new_segment_loses_nothing(tmp_path: pathlib.Path, is_late: bool) -> None:
    """Whichever call fails, the journal opens and holds every reported record."""
    failures = 0
    for passing in range(30):
        path = tmp_path / str(passing)
        log = begun(path, fsync=relive.EveryRecords(1000), segment_bytes=60)
        log._append(1, b"x" * 60)
        expected = [b"x" * 60]
        with pytest.MonkeyPatch.context() as patch:
            breaker = Breaker(patch, passing, OSError(28, "No space left on device"), is_late=is_late)
            try:
                log._append(1, b"second")
                expected.append(b"second")
            except errors.CheckpointError:
                failures += 1
        assert payloads(path) == expected
        refusals = []
        try:
            log._append(1, b"third")
            expected.append(b"third")
        except errors.CheckpointError as refusal:
            refusals.append(str(refusal))
        try:
            log.close()
        except errors.CheckpointError as refusal:
            refusals.append(str(refusal))
        assert all(refusal.endswith("; open it again") for refusal in refusals)
        with begun(path) as log:
            log._append(1, b"fourth")
        assert payloads(path) == [*expected, b"fourth"]
        assert not list(path.glob("*.new"))
        if breaker.passing >= 0:
            break
    assert failures >= 7


@posix_test.DIRECTORIES
@pytest.mark.parametrize("is_late", [False, True])
def test_a_failure_in_the_first_segment_leaves_none(tmp_path: pathlib.Path, is_late: bool) -> None:
    failures = passed = 0
    for passing in range(15):
        path = tmp_path / str(passing)
        with relive.Journal(path, fsync="never") as log:
            with pytest.MonkeyPatch.context() as patch:
                breaker = Breaker(patch, passing, OSError(28, "No space left on device"), is_late=is_late)
                with contextlib.suppress(errors.CheckpointError):
                    log._begin(lambda: b"base")
                    passed = breaker.passing
                    continue
            with pytest.raises((AssertionError, errors.CheckpointError)):
                log._append(1, b"")
        with begun(path) as log:
            log._append(1, b"one")
        assert payloads(path) == [b"one"]
        failures += 1
    assert passed > 0
    assert failures >= 5


def test_files_of_a_journal_have_the_usual_permissions(tmp_path: pathlib.Path) -> None:
    (tmp_path / "usual").touch()
    with begun(tmp_path / "log", segment_bytes=10) as log:
        log._append(1, b"x" * 60)
        log._append(1, b"y")
        assert log._prune(2) == 1
    files_of_log = list((tmp_path / "log").glob("segment-*"))
    assert sorted(file.suffix for file in files_of_log) == [".closed", ".oldest", ".relive"]
    assert {file.stat().st_mode for file in files_of_log} == {(tmp_path / "usual").stat().st_mode}


def test_a_half_made_segment_stops_the_journal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def renaming(source: str, target: str) -> None:
        real(source, target)
        monkeypatch.setattr(os, "unlink", posix_test.failing(errno.EIO))
        posix_test.failing(errno.EIO)()

    log = begun(tmp_path / "log", segment_bytes=10)
    log._append(1, b"x" * 60)
    monkeypatch.setattr(os, "rename", renaming)
    for message in (
        "log could not be written: Input/output error$",
        "making a segment was interrupted; open it again$",
    ):
        with pytest.raises(errors.CheckpointError, match=message):
            log._append(1, b"")
    log.close()
    assert [record.kind for record in journal_reader.records(tmp_path / "log")] == [0, 1, 0]


class Reporting(io.FileIO):
    """A file of which the system reports an error when it is closed, as that of a network may."""

    def close(self) -> None:
        was_open = not self.closed
        super().close()
        if was_open:
            raise OSError(errno.EIO, "Input/output error")


def test_an_error_of_closing_a_synced_segment_is_ignored(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "FileIO", Reporting)
    log = begun(tmp_path / "log", fsync="always", segment_bytes=1)
    for _ in range(3):
        log._append(1, b"x" * 60)
    log.close()
    assert segments(tmp_path / "log") == [0, 2, 4]
    relive.Journal(tmp_path / "log").close()  # It is not locked.
    assert payloads(tmp_path / "log") == [b"x" * 60] * 3


def test_a_base_that_cannot_be_written_leaves_the_old_segment(tmp_path: pathlib.Path) -> None:
    bases: list[Any] = [b"base", None, b"base"]
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=10) as log:
        log._begin(lambda: bases.pop(0))
        log._append(1, b"x" * 60)
        with pytest.raises(TypeError):
            log._append(1, b"one")
        log._append(1, b"two")
    assert payloads(tmp_path / "log") == [b"x" * 60, b"two"]


# Who may write.


@posix_test.FORKS
@posix_test.THREADED
def test_a_fork_cannot_write_to_a_journal(tmp_path: pathlib.Path) -> None:
    log = begun(tmp_path / "log")
    log._append(1, b"parent")

    def go_on() -> None:
        message = f"it was opened by process {os.getppid()}, and this is its fork {os.getpid()}$"
        for call in (lambda: log._append(1, b"child"), log.sync, lambda: log._prune(5)):
            with pytest.raises(errors.CheckpointError, match=f"log cannot be written: {message}"):
                call()
        log.close()

    posix_test.in_a_fork(go_on)
    log._append(1, b"parent again")
    with pytest.raises(errors.CheckpointError, match="log is in use by this process"):
        relive.Journal(tmp_path / "log")
    log.close()
    assert payloads(tmp_path / "log") == [b"parent", b"parent again"]


def test_closing_in_another_process_only_unlocks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the fork above, without a fork."""
    log = begun(tmp_path / "log", fsync="always")
    log._append(1, b"one")
    pid = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid + 1)
        journal._stop_in_a_fork()
        for call in (lambda: log._append(1, b"two"), log.sync, lambda: log._prune(9), lambda: log._begin(lambda: b"")):
            with pytest.raises(errors.CheckpointError, match=f"it was opened by process {pid}, and this is its fork"):
                call()
        patch.setattr(journal, "sync_file", posix_test.failing(errno.EIO))
        log.close()
    assert payloads(tmp_path / "log") == [b"one"]


# Opening, and refused calls.


def test_a_torn_tail_that_cannot_be_cut_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "log").close()
    (segment,) = (tmp_path / "log").glob("*.relive")
    with segment.open("ab") as file:
        file.write(b"torn")
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", posix_test.failing(errno.EROFS))
        with pytest.raises(errors.CheckpointError, match="log c.*: Read-only file system$"):
            relive.Journal(tmp_path / "log")
    begun(tmp_path / "log").close()
    assert segment.stat().st_size == 37 + 17 + 4


def test_opening_syncs_the_directories(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P81: its writer may have been killed between renaming it and syncing the directory, or before it synced it."""
    begun(tmp_path / "log").close()
    synced: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(files, "fsync_directory", synced.append)
        with relive.Journal(tmp_path / "log") as log:
            assert log.num_synced == 1
            assert synced == [str(tmp_path), str(tmp_path / "log")]
    for owner, name in ((files, "fsync_directory"), (journal, "sync_file")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, posix_test.failing(errno.EIO))
            with pytest.raises(errors.CheckpointError, match="log could not be opened: Input/output error$"):
                relive.Journal(tmp_path / "log")
        gc.collect()  # A file left open would warn.
    begun(tmp_path / "log").close()


def test_a_journal_keeps_its_absolute_path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").mkdir()
    with begun(pathlib.Path("log"), segment_bytes=10) as log:
        assert log.path == str(tmp_path / "log")
        monkeypatch.chdir("/")
        log._append(1, b"x" * 60)
        log._append(1, b"y")
    assert segments(tmp_path / "log") == [0, 2]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        *(("fsync", policy, "'always', 'never', EveryRecords") for policy in ("sometimes", None, 3, ["always"])),
        ("segment_bytes", 0, "at least 1, got 0$"),
        ("path", 5, "a path, got 5$"),
        ("count", 0, "at least 1, got 0$"),
        *(("seconds", seconds, "above 0 and at most [0-9]*, got") for seconds in (0, -1, 1e30)),
        ("seconds", float("nan"), "a finite real number, got nan$"),
    ],
)
def test_refused_arguments_create_no_journal(tmp_path: pathlib.Path, name: str, value: Any, rule: str) -> None:
    makers: dict[str, Callable[[Any], object]] = {"count": relive.EveryRecords, "seconds": relive.EverySeconds}
    make = makers.get(name, lambda value: relive.Journal(**{"path": tmp_path / "log", name: value}))
    with pytest.raises(errors.ArgumentError, match=f"^{name} must be {rule}"):
        make(value)
    assert not (tmp_path / "log").exists()


def test_journal_calls_out_of_order_are_refused(tmp_path: pathlib.Path) -> None:
    for num_records in (0, 1):
        log = relive.Journal(tmp_path / "log")
        log.sync()
        assert log.num_records == log.num_synced == num_records
        log._begin(lambda: b"base")
        with pytest.raises(errors.ArgumentError, match="^begin was called before: a journal has one owner$"):
            log._begin(lambda: b"base")
        with pytest.raises(errors.ArgumentError, match=r"^kind must be in \[1, 255\), got 0$"):
            log._append(0, b"")
        assert log.num_records == 1
        log.close()
    for call in (lambda: log._append(1, b""), log.sync, lambda: log._prune(1), lambda: log._begin(lambda: b"")):
        with pytest.raises(errors.ClosedError, match="log cannot be written: it was closed$"):
            call()


# Together.


def test_records_together_are_one_record_with_a_note(tmp_path: pathlib.Path) -> None:
    with begun(tmp_path / "log") as log:
        with log._group(lambda: b"note"):
            assert (log._append(1, b"a"), log._append(254, b""), log.num_records) == (1, 1, 1)
            assert payloads(tmp_path / "log") == []
        assert (log._append(2, b"c"), log.num_records) == (2, 3)
        with log._group(lambda: b""):
            pass
    found = [(record.kind, record.payload) for record in journal_reader.records(tmp_path / "log")][1:]
    assert journal_reader.unpacked(found[0][1]) == (b"note", [(1, b"a"), (254, b"")])
    assert found[1:] == [(2, b"c"), (255, bytes(4))]


def test_a_journal_that_is_behind_writes_nothing_else_first(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(tmp_path / "log", fsync="always")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", posix_test.failing(errno.ENOSPC))
        with pytest.raises(errors.CheckpointError, match="No space left on device$"), log._group(lambda: b"note"):
            log._append(1, b"a")
        for call in (lambda: log._append(1, b"b"), log._catch_up, log.sync, lambda: log._group(bytes).__enter__()):
            assert log._is_behind
            with pytest.raises(errors.CheckpointError, match="No space left on device$"):
                call()
    assert payloads(tmp_path / "log") == []
    assert log._append(1, b"b") == 2
    assert not log._is_behind
    log.close()
    assert payloads(tmp_path / "log") == [journal_reader.packed(b"note", [(1, b"a")]), b"b"]


def test_a_journal_that_is_behind_catches_up_when_closed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(tmp_path / "log")
    buffer = relive.RingReplayBuffer(10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", posix_test.failing(errno.ENOSPC))
        with pytest.raises(errors.CheckpointError), log._group(lambda: b"note"):
            log._append(1, b"a")
    log.close()
    assert len(payloads(tmp_path / "log")) == 1
    with relive.Journal(tmp_path / "other") as log:
        buffer.attach(log)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", posix_test.failing(errno.ENOSPC))
            with pytest.raises(errors.CheckpointError), log._group(lambda: b"note"):
                buffer.add(0, 0, 0.0, 0)
            with pytest.raises(errors.CheckpointError, match="No space left on device$"):
                buffer.state_dict()  # It would have more than its place in the journal says.


def test_what_is_interrupted_together_stops_the_journal(tmp_path: pathlib.Path) -> None:
    log = begun(tmp_path / "log")
    with pytest.raises(KeyboardInterrupt), log._group(lambda: b""):
        log._append(1, b"a")
        raise KeyboardInterrupt
    with pytest.raises(errors.CheckpointError, match="records that belong together were interrupted; open it again$"):
        log._append(1, b"b")
    log.close()
    assert payloads(tmp_path / "log") == []


def test_records_together_fit_into_one_record(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_lib, "_MOST_TOGETHER", 5)
    with begun(tmp_path / "log") as log, log._group(lambda: b""):
        log._append(1, bytes(3))
        with pytest.raises(errors.ArgumentError, match="^records together must have at most 5 bytes, got 6$"):
            log._append(1, bytes(3))
        log._append(1, bytes(2))
    assert len(payloads(tmp_path / "log")[0]) == 4 + 2 * 5 + 5


def test_forged_records_together_are_refused(tmp_path: pathlib.Path) -> None:
    zeros, more = bytes(4), (b"\1", b"\1\1\0\0\0", bytes(5), b"\xff" + bytes(4))
    for number, payload in enumerate((b"", b"\1\0\0\0", *(zeros + part for part in more))):
        with relive.Journal(tmp_path / f"log {number}") as log:
            relive.RingReplayBuffer(10).attach(log)
            segment: Any = log._segment
            log._write(segment, 255, payload)
        with pytest.raises(errors.CheckpointError, match=": record 1 stands for records that it does not hold$"):
            relive.recover(tmp_path / f"log {number}")
