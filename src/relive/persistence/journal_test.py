"""Writing a journal: policies, segments, and that no failure, kill or second writer leaves a wrong record."""

from collections.abc import Callable, Iterator
import contextlib
import gc
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

import relive
from relive import errors
from relive.persistence import files
from relive.persistence import journal
from relive.persistence import journal_reader
from relive.persistence import posix_test
from relive.persistence import seed_blocks_test

PATIENCE = 60.0
"""Seconds after which a test has hung."""


class Crash(BaseException):
    """Stands for the end of the process."""


def begun(path: pathlib.Path, **settings: Any) -> relive.Journal:
    log = relive.Journal(path, **{"fsync": "never", **settings})
    log.begin(lambda: b"base")
    return log


def payloads(path: pathlib.Path) -> list[bytes]:
    """Return what a journal holds, without bases."""
    return [record.payload for record in journal_reader.records(path) if record.kind]


def segments(path: pathlib.Path) -> list[int]:
    return sorted(int(file.stem[-20:]) for file in path.glob("*.relive"))


def failing(number: int = 5, reason: str = "Input/output error") -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise OSError(number, reason)

    return call


def program(text: str, *arguments: object) -> subprocess.Popen[str]:
    """Start another Python with the text and return its process."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(text), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def output(text: str, *arguments: object) -> str:
    process = program(text, *arguments)
    answer, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return answer


# What it counts, and when it syncs.


def test_always_syncs_each_record(tmp_path: pathlib.Path) -> None:
    with begun(tmp_path / "log", fsync="always") as log:
        assert (log.num_records, log.num_synced) == (1, 1)
        for number in range(1, 4):
            assert log.append(1, b"") == number
            assert (log.num_records, log.num_synced) == (number + 1, number + 1)


def test_every_three_records_syncs_the_third(tmp_path: pathlib.Path) -> None:
    with begun(tmp_path / "log", fsync=relive.EveryRecords(3)) as log:
        synced = []
        for _ in range(7):
            log.append(1, b"")
            synced.append(log.num_synced)
        assert synced == [1, 1, 4, 4, 4, 7, 7]
        log.sync()
        assert log.num_synced == 8
        log.append(1, b"")
        log.append(1, b"")
        assert log.num_synced == 8
        log.append(1, b"")
        assert log.num_synced == 11


def test_never_syncs_only_when_a_segment_begins(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[journal.SegmentFile] = []
    monkeypatch.setattr(journal.SegmentFile, "sync", lambda segment: calls.append(segment))
    with begun(tmp_path / "log", segment_bytes=10) as log:
        log.append(1, b"x" * 60)
        assert (log.num_records, log.num_synced, calls) == (2, 1, [])
        log.append(1, b"")
        assert (log.num_records, log.num_synced, len(calls)) == (4, 3, 1)
    assert (log.num_synced, len(calls)) == (3, 1)


def test_closing_syncs(tmp_path: pathlib.Path) -> None:
    log = begun(tmp_path / "log", fsync=relive.EveryRecords(100))
    log.append(1, b"")
    assert log.num_synced == 1
    log.close()
    log.close()
    assert log.num_synced == 2


class Syncs:
    """Watches the syncs of segments, which may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = threading.Semaphore(0)
        self.is_broken = False
        real = journal.SegmentFile.sync

        def sync(segment: journal.SegmentFile) -> None:
            try:
                if self.is_broken:
                    failing()()
                real(segment)
            finally:
                self.calls.release()

        monkeypatch.setattr(journal.SegmentFile, "sync", sync)

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
            log.append(1, b"")
            syncs.until_synced(log)
            assert log.num_synced == number + 1
        assert not syncs.calls.acquire(blocking=False)  # With nothing to sync, nothing is synced.
    assert threading.active_count() == 1 or log._syncer not in threading.enumerate()


def test_a_failed_background_sync_is_not_tried_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    syncs.is_broken = True
    log = begun(tmp_path / "log", fsync=relive.EverySeconds(0.001))
    log.append(1, b"")
    syncs.until_synced(log)
    syncs.is_broken = False
    message = "log cannot be written: the disk failed to sync it: Input/output error; open it again$"
    for call in (lambda: log.append(1, b""), log.sync, log.close):
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
    log.append(1, b"kept")
    with monkeypatch.context() as patch:
        patch.setattr(journal.SegmentFile, "sync", failing())
        with pytest.raises(errors.CheckpointError, match="log could not be synced: Input/output error$"):
            log.append(1, b"lost")
    assert (log.num_records, log.num_synced) == (2, 2)
    with pytest.raises(errors.CheckpointError, match="the disk failed to sync it"):
        log.append(1, b"lost")
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
        log.append(1, b"")
        assert log._segment is not None
        assert calls == [log._segment.descriptor]


# Segments.


def test_a_segment_begins_when_the_last_is_full(tmp_path: pathlib.Path) -> None:
    bases = []

    def base() -> bytes:
        bases.append(log.num_records)
        return b"b" * 8

    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=100) as log:
        log.begin(base)
        for _ in range(10):
            log.append(1, b"r" * 33)  # 50 bytes: two fill a segment.
    assert bases == segments(tmp_path / "log") == [0, 3, 6, 9, 12]


def test_bases_never_take_up_more_than_half(tmp_path: pathlib.Path) -> None:
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=1) as log:
        log.begin(lambda: b"b" * 946)  # With headers, 1,000 bytes.
        for _ in range(50):
            log.append(1, b"r" * 33)
    assert segments(tmp_path / "log") == [0, 21, 42]


def test_pruning_deletes_old_segments(tmp_path: pathlib.Path) -> None:
    with begun(tmp_path / "log", segment_bytes=100) as log:
        for _ in range(10):
            log.append(1, b"r" * 33)
        assert segments(tmp_path / "log") == [0, 3, 6, 9, 12]
        assert log.prune(2) == 0
        assert log.prune(3) == 1
        assert log.prune(8) == 1
        assert segments(tmp_path / "log") == [6, 9, 12]
        (tmp_path / "log" / journal_reader.segment_name(6)).unlink()
        assert log.prune(10**9) == 2
        assert segments(tmp_path / "log") == [12]
        log.append(1, b"last")
    assert [record.number for record in journal_reader.records(tmp_path / "log")] == [12, 13, 14, 15, 16]
    with begun(tmp_path / "log", segment_bytes=100) as log:
        assert log.num_records == log.num_synced == 17
        log.append(1, b"r" * 33)
        log.append(1, b"r" * 33)
        log.append(1, b"r" * 33)
        assert log.prune(log.num_records) == 2


def test_pruning_that_fails_leaves_no_gap(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(tmp_path / "log", segment_bytes=100) as log:
        for _ in range(10):
            log.append(1, b"r" * 33)
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", failing(30, "Read-only file system"))
            with pytest.raises(errors.CheckpointError, match="log could not be pruned: Read-only file system$"):
                log.prune(100)
        assert segments(tmp_path / "log") == [0, 3, 6, 9, 12]
        assert log.prune(100) == 4


def test_pruning_leaves_a_segment_that_is_being_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows deletes no open file: it goes when the journal is opened again."""
    real = os.unlink

    def unlink(path: str, **place: Any) -> None:
        if path.endswith(".relive"):
            raise PermissionError(13, "Permission denied")
        real(path, **place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with begun(tmp_path / "log", segment_bytes=100) as log:
            for _ in range(10):
                log.append(1, b"r" * 33)
            assert log.prune(100) == 4
            log.append(1, b"new")
        begun(tmp_path / "log").close()
    assert payloads(tmp_path / "log")[-1] == b"new"
    assert segments(tmp_path / "log")[0] == 0
    begun(tmp_path / "log").close()
    assert segments(tmp_path / "log")[0] == 12


def test_pruning_syncs_the_new_start_before_it_deletes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=100) as log:
        assert log.prune(5) == 0
        log.begin(lambda: b"base")
        for _ in range(10):
            log.append(1, b"r" * 33)
        with monkeypatch.context() as patch:
            patch.setattr(files, "fsync_directory", failing())
            with pytest.raises(errors.CheckpointError, match="log could not be pruned: Input/output error$"):
                log.prune(6)
        assert segments(tmp_path / "log") == [0, 3, 6, 9, 12]
        assert [log.prune(6), log.prune(9)] == [2, 1]
    assert sorted(file.name for file in (tmp_path / "log").iterdir()) == [
        journal_reader.segment_name(9),
        f"{journal_reader.segment_name(9)}.oldest",
        journal_reader.segment_name(12),
    ]
    assert [record.number for record in journal_reader.records(tmp_path / "log")] == list(range(9, 15))


def test_carried_records_are_created_with_their_segment(tmp_path: pathlib.Path) -> None:
    """It is part of what the records of a segment must exceed."""
    carried = [(7, b"one"), (8, b"x" * 929)]
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=1) as log:
        log.begin(lambda: b"base", lambda: iter(carried))
        assert (log.num_records, log.num_synced) == (3, 3)
        assert log.append(1, b"") == 3
        for _ in range(65):
            log.append(1, b"")
    assert [record[1:] for record in journal_reader.records(tmp_path / "log")][:4] == [(0, b"base"), *carried, (1, b"")]
    assert segments(tmp_path / "log") == [0, 64]


def test_carried_records_that_fail_begin_no_segment(tmp_path: pathlib.Path) -> None:
    outcomes = [[], ZeroDivisionError("codec"), []]

    def carried() -> Iterator[tuple[int, bytes]]:
        outcome = outcomes.pop(0)
        yield 7, b"carried"
        if isinstance(outcome, Exception):
            raise outcome

    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=10) as log:
        log.begin(lambda: b"base", carried)
        log.append(1, b"x" * 90)
        with pytest.raises(ZeroDivisionError, match="codec"):
            log.append(1, b"one")
        log.append(1, b"two")
    assert payloads(tmp_path / "log") == [b"carried", b"x" * 90, b"carried", b"two"]


# What fails: nothing counts.


@pytest.mark.parametrize("reason", ["No space left on device", "File too large", "Input/output error"])
def test_a_write_that_fails_appends_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    with begun(tmp_path / "log", fsync="always") as log:
        log.append(1, b"one")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing(1, reason))
            with pytest.raises(errors.CheckpointError, match=f"log could not be written: {reason}$"):
                log.append(1, b"two")
        assert (log.num_records, log.num_synced) == (2, 2)
        log.append(1, b"three")
    assert payloads(tmp_path / "log") == [b"one", b"three"]


def test_a_short_write_is_taken_back(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with begun(tmp_path / "log") as log:
        for size in range(19):
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", lambda descriptor, record, size=size: real(descriptor, record[:size]))
                with pytest.raises(errors.CheckpointError, match=f"written: only {size} of 20 bytes fitted$"):
                    log.append(1, b"two")
            assert log.append(1, b"%d" % size) == size + 1
    assert payloads(tmp_path / "log") == [b"%d" % size for size in range(19)]


def test_an_interrupt_after_the_write_appends_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def interrupted(descriptor: int, record: bytes) -> int:
        real(descriptor, record)
        raise KeyboardInterrupt

    with begun(tmp_path / "log") as log:
        log.append(1, b"one")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(1, b"two")
        assert log.append(1, b"three") == 2
    assert payloads(tmp_path / "log") == [b"one", b"three"]


def test_an_interrupt_after_the_sync_appends_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(tmp_path / "log", fsync="always") as log:
        real = log.sync

        def interrupted() -> None:
            real()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(log, "sync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(1, b"one")
        assert (log.num_records, log.num_synced) == (1, 1)
        log.append(1, b"two")
    assert payloads(tmp_path / "log") == [b"two"]


def test_a_record_that_stays_stops_the_journal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with begun(tmp_path / "log", fsync="always") as log:
        log.append(1, b"one")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, record: real(descriptor, record[:5]))
            patch.setattr(os, "ftruncate", failing())
            with pytest.raises(errors.CheckpointError, match="only 5 of 20 bytes fitted$"):
                log.append(1, b"two")
        with pytest.raises(
            errors.CheckpointError,
            match="log cannot be written: an append that failed left a part of its record in it; open it again$",
        ):
            log.append(1, b"three")
        assert log.num_records == 2
    with begun(tmp_path / "log") as log:
        log.append(1, b"four")
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
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Crash()])
def test_a_failure_in_a_new_segment_loses_nothing(tmp_path: pathlib.Path, error: BaseException, is_late: bool) -> None:
    """Whichever call fails or is the last one before a crash, the journal opens and holds every reported record."""
    failures = 0
    for passing in range(30):
        path = tmp_path / str(passing)
        log = begun(path, fsync=relive.EveryRecords(1000), segment_bytes=60)
        log.append(1, b"x" * 60)
        expected = [b"x" * 60]
        with pytest.MonkeyPatch.context() as patch:
            breaker = Breaker(patch, passing, error, is_late=is_late)
            try:
                log.append(1, b"second")
                expected.append(b"second")
            except (errors.CheckpointError, Crash):
                failures += 1
        assert payloads(path) == expected
        refusals = []
        if isinstance(error, OSError):
            try:
                log.append(1, b"third")
                expected.append(b"third")
            except errors.CheckpointError as refusal:
                refusals.append(str(refusal))
        try:
            log.close()
        except errors.CheckpointError as refusal:
            refusals.append(str(refusal))
        assert all(refusal.endswith("; open it again") for refusal in refusals)
        with begun(path) as log:
            log.append(1, b"fourth")
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
                    log.begin(lambda: b"base")
                    passed = breaker.passing
                    continue
            with pytest.raises((errors.ArgumentError, errors.CheckpointError), match="begin first$|open it again$"):
                log.append(1, b"")
        with begun(path) as log:
            log.append(1, b"one")
        assert payloads(path) == [b"one"]
        failures += 1
    assert passed > 0
    assert failures >= 5


def test_a_rename_that_worked_but_failed_is_undone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def renaming(source: str, target: str) -> None:
        real(source, target)
        failing()()

    with begun(tmp_path / "log", segment_bytes=10) as log:
        log.append(1, b"x" * 60)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", renaming)
            with pytest.raises(errors.CheckpointError, match="log could not be written: Input/output error$"):
                log.append(1, b"one")
        assert segments(tmp_path / "log") == [0]
        log.append(1, b"two")
    assert segments(tmp_path / "log") == [0, 2]
    assert payloads(tmp_path / "log") == [b"x" * 60, b"two"]


def test_a_segment_is_on_the_disk_before_it_has_its_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(tmp_path / "log", segment_bytes=10) as log:
        log.append(1, b"x" * 60)
        steps: list[str] = []

        def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                steps.append(name)
                return real(*arguments)

            return call

        for module, name in ((files, "fsync_file"), (os, "rename"), (files, "fsync_directory")):
            monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
        log.append(1, b"y")
        assert steps[-3:] == ["fsync_file", "rename", "fsync_directory"]


def test_a_segment_is_whole_when_it_is_synced(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(files, "fsync_file", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    begun(tmp_path / "log").close()
    assert sizes == [(tmp_path / "log" / journal_reader.segment_name(0)).stat().st_size]


def test_files_of_a_journal_have_the_usual_permissions(tmp_path: pathlib.Path) -> None:
    (tmp_path / "usual").touch()
    with begun(tmp_path / "log", segment_bytes=10) as log:
        log.append(1, b"x" * 60)
        log.append(1, b"y")
        assert log.prune(2) == 1
    files_of_log = list((tmp_path / "log").glob("segment-*"))
    assert sorted(file.suffix for file in files_of_log) == [".oldest", ".relive"]
    assert {file.stat().st_mode for file in files_of_log} == {(tmp_path / "usual").stat().st_mode}


def test_a_half_made_segment_stops_the_journal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def renaming(source: str, target: str) -> None:
        real(source, target)
        monkeypatch.setattr(os, "unlink", failing())
        raise OSError(5, "Input/output error")

    log = begun(tmp_path / "log", segment_bytes=10)
    log.append(1, b"x" * 60)
    monkeypatch.setattr(os, "rename", renaming)
    with pytest.raises(errors.CheckpointError, match="log could not be written: Input/output error$"):
        log.append(1, b"")
    with pytest.raises(errors.CheckpointError, match="making a segment was interrupted; open it again$"):
        log.append(1, b"")
    log.close()
    assert [record.kind for record in journal_reader.records(tmp_path / "log")] == [0, 1, 0]


def test_a_base_that_cannot_be_written_leaves_the_old_segment(tmp_path: pathlib.Path) -> None:
    bases: list[Any] = [b"base", "text", b"base"]
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=10) as log:
        log.begin(lambda: bases.pop(0))
        log.append(1, b"x" * 60)
        with pytest.raises(errors.ArgumentTypeError, match="^payload must be bytes, got 'text'$"):
            log.append(1, b"one")
        log.append(1, b"two")
    assert payloads(tmp_path / "log") == [b"x" * 60, b"two"]


@posix_test.LIMITS
def test_a_full_disk_loses_no_records(tmp_path: pathlib.Path) -> None:
    text = """
        import resource, signal, sys
        import relive
        from relive import errors
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = relive.Journal(sys.argv[1], fsync="always", segment_bytes=10**6)
        log.begin(lambda: b"base")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        failed = []
        for size in [*range(100), 0, 0]:
            try:
                log.append(1, bytes(size))
            except errors.CheckpointError as error:
                failed.append(str(error))
        print(log.num_records, log.num_synced, len(failed), sep="\\n")
        print(*failed, sep="\\n")
        log.close()
    """
    num_records, num_synced, count, *failed = output(text, tmp_path / "log").splitlines()
    got = payloads(tmp_path / "log")
    assert int(num_records) == int(num_synced) == 1 + len(got)
    assert int(count) == len(failed) == 102 - len(got) > 50
    assert all("could not be written: only " in each or each.endswith("written: File too large") for each in failed)
    sizes = [len(payload) for payload in got]
    assert sizes == [*range(sizes.index(max(sizes)) + 1), *[0] * sizes[1:].count(0)]
    assert all(end.stat().st_size <= 1000 for end in (tmp_path / "log").iterdir())


@posix_test.LIMITS
def test_a_segment_too_large_for_the_disk_is_not_begun(tmp_path: pathlib.Path) -> None:
    text = """
        import resource, sys
        import relive
        from relive import errors
        bases = [b"base", bytes(3000), b"base"]
        log = relive.Journal(sys.argv[1], fsync="never", segment_bytes=10)
        log.begin(lambda: bases.pop(0))
        log.append(1, bytes(60))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            log.append(1, b"one")
        except errors.CheckpointError as error:
            print(error)
        log.append(1, b"two")
        log.close()
    """
    assert output(text, tmp_path / "log").endswith("log could not be written: File too large\n")
    assert payloads(tmp_path / "log") == [bytes(60), b"two"]
    assert segments(tmp_path / "log") == [0, 2]
    assert len(list((tmp_path / "log").iterdir())) == 2


# Who may write.


def test_a_journal_is_open_once(tmp_path: pathlib.Path) -> None:
    with begun(tmp_path / "log"):
        with pytest.raises(errors.CheckpointError, match="log is in use by this process"):
            relive.Journal(tmp_path / "log")
        assert payloads(tmp_path / "log") == []
    begun(tmp_path / "log").close()


def test_another_process_learns_the_pid_of_the_writer(tmp_path: pathlib.Path) -> None:
    text = """
        import sys
        import relive
        from relive import errors
        try:
            relive.Journal(sys.argv[1])
        except errors.CheckpointError as error:
            print(error)
    """
    with begun(tmp_path / "log"):
        message = output(text, tmp_path / "log")
    assert f"log is in use by another process (pid {os.getpid()})" in message
    assert message.count("\n") == 1


@posix_test.FORKS
def test_a_fork_cannot_write_to_a_journal(tmp_path: pathlib.Path) -> None:
    text = """
        import os, sys
        import relive
        from relive import errors
        log = relive.Journal(sys.argv[1], fsync="never")
        log.begin(lambda: b"base")
        log.append(1, b"parent")
        if os.fork() == 0:
            for call in (lambda: log.append(1, b"child"), log.sync, lambda: log.prune(5)):
                try:
                    call()
                except errors.CheckpointError as error:
                    print(str(error).replace(str(os.getppid()), "1").replace(str(os.getpid()), "2"))
            log.close()
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        log.append(1, b"parent again")
        try:
            relive.Journal(sys.argv[1])
        except errors.CheckpointError:
            print("locked")
        log.close()
    """
    *refused, last = output(text, tmp_path / "log").splitlines()
    assert last == "locked"
    assert len(refused) == 3
    assert all(
        line.endswith("log cannot be written: it was opened by process 1, and this is its fork 2") for line in refused
    )
    assert payloads(tmp_path / "log") == [b"parent", b"parent again"]


def test_closing_in_another_process_only_unlocks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the fork above, without a fork."""
    log = begun(tmp_path / "log", fsync="always")
    log.append(1, b"one")
    pid = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid + 1)
        journal._stop_in_a_fork()
        for call in (lambda: log.append(1, b"two"), log.sync, lambda: log.prune(9), lambda: log.begin(lambda: b"")):
            with pytest.raises(errors.CheckpointError, match=f"it was opened by process {pid}, and this is its fork"):
                call()
        patch.setattr(journal.SegmentFile, "sync", failing())
        log.close()
    assert payloads(tmp_path / "log") == [b"one"]


@posix_test.SIGNALS
@pytest.mark.parametrize("kills", seed_blocks_test.seed_blocks(3, 15, 6))
def test_a_killed_writer_leaves_all_reported_records(kills: range, tmp_path: pathlib.Path) -> None:
    """The writer is killed again and again; payloads describe themselves, and each run goes on where the last ended."""
    text = """
        import os, sys
        import relive
        log = relive.Journal(sys.argv[1], fsync=relive.EveryRecords(3), segment_bytes=900)
        log.begin(lambda: b"%d" % log.num_records)
        for size in range(10**9):
            number = log.num_records
            log.append(1 + number % 255, b"%d " % log.append(1, b"") + b"x" * (size % 90))
            os.write(1, b"%d %d\\n" % (log.num_records, log.num_synced))
            log.prune(log.num_records - 200)
    """
    path = tmp_path / "log"
    for kill in kills:
        process = program(text, path)
        assert process.stdout is not None
        line = ""
        for _ in range(1 + 37 * kill % 110):
            line = process.stdout.readline()
        process.kill()
        rest = process.stdout.read().splitlines()
        process.wait(PATIENCE)
        process.stdout.close()
        appended, synced = map(int, ([line, *rest[:-1]][-1]).split())
        got = list(journal_reader.records(path))
        assert [record.number for record in got] == list(range(got[0].number, got[-1].number + 1))
        assert got[-1].number + 1 >= appended >= synced
        for record in got:
            if record.kind == 0:
                assert record.payload == b"%d" % record.number
            elif record.payload:
                assert int(record.payload.split()[0]) in (record.number - 1, record.number - 2)
        with relive.Journal(path) as log:
            assert log.num_records == got[-1].number + 1
        assert list(journal_reader.records(path)) == got


# Opening, and refused calls.


def test_an_empty_directory_becomes_a_journal(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    with begun(path) as log:
        assert log.path == str(path)
        log.append(1, b"one")
    assert payloads(path) == [b"one"]


def test_a_damaged_journal_is_not_opened(tmp_path: pathlib.Path) -> None:
    with begun(tmp_path / "log") as log:
        log.append(1, b"one")
        log.append(1, b"two")
    (segment,) = (tmp_path / "log").iterdir()
    content = bytearray(segment.read_bytes())
    content[-30] ^= 1
    segment.write_bytes(content)
    with pytest.raises(
        errors.CheckpointError, match="is damaged at byte 58: its record 1 .*, and whole records follow$"
    ):
        relive.Journal(tmp_path / "log")
    assert segment.read_bytes() == content


def test_a_torn_tail_that_cannot_be_cut_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "log").close()
    (segment,) = (tmp_path / "log").iterdir()
    with segment.open("ab") as file:
        file.write(b"torn")
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", failing(30, "Read-only file system"))
        with pytest.raises(errors.CheckpointError, match="log c.*: Read-only file system$"):
            relive.Journal(tmp_path / "log")
    begun(tmp_path / "log").close()
    assert segment.stat().st_size == 37 + 17 + 4


def test_opening_syncs_the_last_segment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have been killed before it was."""
    begun(tmp_path / "log").close()
    with monkeypatch.context() as patch:
        patch.setattr(journal.SegmentFile, "sync", failing())
        with pytest.raises(errors.CheckpointError, match="log could not be opened: Input/output error$"):
            relive.Journal(tmp_path / "log")
    gc.collect()  # A file left open would warn.
    begun(tmp_path / "log").close()


def test_opening_syncs_the_directories(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P81: its writer may have been killed between renaming it and syncing the directory."""
    begun(tmp_path / "log").close()
    synced: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(files, "fsync_directory", synced.append)
        with relive.Journal(tmp_path / "log") as log:
            assert log.num_synced == 1
            assert synced == [str(tmp_path), str(tmp_path / "log")]
        patch.setattr(files, "fsync_directory", failing())
        with pytest.raises(errors.CheckpointError, match="log could not be opened: Input/output error$"):
            relive.Journal(tmp_path / "log")
    begun(tmp_path / "log").close()


def test_a_read_only_directory_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "log").close()
    real = os.open

    def opening(path: str, flags: int, *arguments: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            failing(30, "Read-only file system")()
        return real(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", opening)
    with pytest.raises(errors.CheckpointError, match="log cannot be locked.*Read-only file system"):
        relive.Journal(tmp_path / "log")
    monkeypatch.setattr(os, "mkdir", failing(30, "Read-only file system"))
    with pytest.raises(errors.CheckpointError, match="fresh could not be opened: Read-only file system$"):
        relive.Journal(tmp_path / "fresh")
    assert payloads(tmp_path / "log") == []


def test_a_journal_keeps_its_absolute_path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with relive.Journal("log", fsync="never", segment_bytes=10) as log:
        log.begin(lambda: b"base")
        monkeypatch.chdir("/")
        log.append(1, b"x" * 60)
        log.append(1, b"y")
    assert segments(tmp_path / "log") == [0, 2]


def test_refused_arguments_create_no_journal(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    policies: list[Any] = ["sometimes", None, 3, ["always"]]
    for policy in policies:
        with pytest.raises(errors.ArgumentError, match=r"^fsync must be 'always', 'never', EveryRecords\(n\) or Every"):
            relive.Journal(path, fsync=policy)
    with pytest.raises(errors.ArgumentError, match="^segment_bytes must be at least 1, got 0$"):
        relive.Journal(path, segment_bytes=0)
    with pytest.raises(errors.ArgumentTypeError, match="^path must be a path, got 5$"):
        relive.Journal(5)  # type: ignore[arg-type]
    assert not path.exists()
    with pytest.raises(errors.ArgumentError, match="^count must be at least 1, got 0$"):
        relive.EveryRecords(0)
    for seconds in (0, -1, 1e30):
        with pytest.raises(errors.ArgumentError, match="^seconds must be above 0 and at most [0-9]*, got"):
            relive.EverySeconds(seconds)
    with pytest.raises(errors.ArgumentError, match="^seconds must be a finite real number, got nan$"):
        relive.EverySeconds(float("nan"))


def test_journal_calls_out_of_order_are_refused(tmp_path: pathlib.Path) -> None:
    log = relive.Journal(tmp_path / "log")
    with pytest.raises(errors.ArgumentError, match="^append has no segment to write to: call begin first$"):
        log.append(1, b"")
    log.sync()
    assert log.num_records == log.num_synced == 0
    log.begin(lambda: b"base")
    with pytest.raises(errors.ArgumentError, match="^begin was called before: a journal has one owner$"):
        log.begin(lambda: b"base")
    with pytest.raises(errors.ArgumentError, match=r"^kind must be in \[1, 256\), got 0$"):
        log.append(0, b"")
    assert log.num_records == 1
    log.close()
    calls = (lambda: log.append(1, b""), log.sync, lambda: log.prune(1), lambda: log.begin(lambda: b""))
    for call in calls:
        with pytest.raises(errors.ClosedError, match="log cannot be written: it was closed$"):
            call()


def test_opening_without_begin_changes_nothing(tmp_path: pathlib.Path) -> None:
    with begun(tmp_path / "log") as log:
        log.append(1, b"one")
    with relive.Journal(tmp_path / "log") as log:
        with pytest.raises(errors.ArgumentError, match="call begin first$"):
            log.append(1, b"two")
        assert (log.num_records, log.num_synced) == (2, 2)
    assert payloads(tmp_path / "log") == [b"one"]
