"""Group commit: coroutines that wait for the disk share its syncs, and the event loop goes on."""

import asyncio
from collections.abc import Callable
from concurrent import futures
import os
import pathlib
import threading
from typing import Any

import pytest

import relive
from relive import errors
from relive.persistence import files
from relive.persistence import journal
from relive.persistence import journal_reader

PATIENCE = 60.0


class Disk:
    """Syncs when it is allowed to, one at a time, and counts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.num_syncs = 0
        self.threads: set[int] = set()
        self.error: OSError | None = None
        self.begun, self.may_end, self._one = threading.Event(), threading.Event(), threading.Lock()
        self.may_end.set()
        patch.setattr(journal, "sync_file", lambda descriptor: self.sync(os.fstat(descriptor)))

    def sync(self, _: object) -> None:
        assert self._one.acquire(blocking=False)
        self.num_syncs += 1
        self.threads.add(threading.get_ident())
        self.begun.set()
        try:
            assert self.may_end.wait(PATIENCE)
            if self.error is not None:
                raise self.error
        finally:
            self._one.release()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def begun(path: pathlib.Path, **settings: Any) -> relive.Journal:
    log = relive.Journal(path, **settings)
    log._begin(lambda: b"base")
    return log


async def until_begun(disk: Disk) -> None:
    """Wait until a sync is under way; it ends when `may_end` is set."""
    assert await asyncio.to_thread(disk.begun.wait, PATIENCE)


async def append(log: relive.Journal, payload: bytes = b"") -> None:
    with log._delayed_syncs:
        number = log._append(1, payload)
    await log.synced()
    assert log.num_synced > number


async def test_waiting_callers_share_a_sync(tmp_path: pathlib.Path, disk: Disk) -> None:
    """P85: 200 actors; and none of the syncs is in the thread of the event loop."""

    async def act() -> None:
        for _ in range(20):
            await append(log)

    with begun(tmp_path / "log") as log:
        await asyncio.gather(*[act() for _ in range(200)])
        assert log.num_records == log.num_synced == 4001
        assert 20 <= disk.num_syncs < 400
        assert threading.get_ident() not in disk.threads
        num_syncs = disk.num_syncs
        await log.synced()
        await log.synced(17)
        assert disk.num_syncs == num_syncs
    assert len(list(journal_reader.records(tmp_path / "log"))) == 4001


async def test_the_event_loop_runs_during_a_sync(tmp_path: pathlib.Path, disk: Disk) -> None:
    with begun(tmp_path / "log") as log:
        disk.may_end.clear()
        first = asyncio.create_task(append(log))
        await until_begun(disk)
        # What comes while a sync is under way waits for the next one.
        others = [asyncio.create_task(append(log)) for _ in range(5)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *others))
        assert (log.num_records, log.num_synced, disk.num_syncs) == (7, 1, 1)
        disk.may_end.set()
        await asyncio.gather(first, *others)
        assert (log.num_synced, disk.num_syncs) == (7, 2)


async def test_a_synced_record_is_not_waited_for(tmp_path: pathlib.Path, disk: Disk) -> None:
    with begun(tmp_path / "log") as log:
        log._append(1, b"")
        with log._delayed_syncs:
            log._append(1, b"")
        disk.may_end.clear()
        async with asyncio.timeout(PATIENCE):
            await log.synced(2)
        assert log.num_synced == 2
        disk.may_end.set()
        message = "^number must be at most 3, that of all records, got 4$"
        with pytest.raises(errors.ArgumentError, match=message):
            await log.synced(4)


async def test_a_failed_sync_fails_all_waiting_callers(tmp_path: pathlib.Path, disk: Disk) -> None:
    log = begun(tmp_path / "log")
    disk.error = OSError(5, "Input/output error")
    found = await asyncio.gather(*[append(log) for _ in range(5)], return_exceptions=True)
    message = "log cannot be written: the disk failed to sync it: Input/output error; open it again"
    assert [type(each) for each in found] == [errors.CheckpointError] * 5
    assert len({id(each) for each in found}) == 5
    assert all(str(each).endswith(message) for each in found)
    disk.error = None
    for call in (append(log), log.synced()):
        with pytest.raises(errors.CheckpointError, match=message):
            await call
    assert (log.num_synced, disk.num_syncs) == (1, 1)
    await log.synced(1)
    with pytest.raises(errors.CheckpointError, match=message):
        log.close()


async def test_a_cancelled_caller_leaves_the_sync_to_others(tmp_path: pathlib.Path, disk: Disk) -> None:
    with begun(tmp_path / "log") as log:
        disk.may_end.clear()
        tasks = [asyncio.create_task(append(log)) for _ in range(3)]
        await until_begun(disk)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert not tasks[1].done()
        disk.may_end.set()
        await asyncio.gather(*tasks[1:])
        assert (log.num_records, log.num_synced) == (4, 4)


@pytest.mark.parametrize("fsync", ["always", "never"])
async def test_closing_a_journal_wakes_waiting_callers(tmp_path: pathlib.Path, disk: Disk, fsync: Any) -> None:
    """After the final sync, or with an error if there is none."""
    log = begun(tmp_path / "log", fsync=fsync)
    disk.may_end.clear()
    first = asyncio.create_task(append(log))
    await until_begun(disk)
    second = asyncio.create_task(append(log))
    await asyncio.sleep(0)
    threading.Timer(0.05, disk.may_end.set).start()
    log.close()
    await first
    if fsync == "always":
        await second
    else:
        with pytest.raises(errors.ClosedError, match="log cannot be written: it was closed$"):
            await second
    assert log.num_synced == (3 if fsync == "always" else 2)
    await log.synced(log.num_synced)


def test_a_sync_after_closing_touches_no_file(tmp_path: pathlib.Path, disk: Disk) -> None:
    log = begun(tmp_path / "log", fsync="never")
    log._append(1, b"")
    log.close()
    log._sync_in_background()
    assert disk.num_syncs == 0


def in_another_thread(call: Callable[[], Any]) -> futures.Future[Any]:
    """Begin a call, and return it while it waits."""
    pool = futures.ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    with pytest.raises(futures.TimeoutError):
        future.result(0.02)
    return future


def test_a_journal_that_two_threads_close_is_synced_once(tmp_path: pathlib.Path, disk: Disk) -> None:
    log = begun(tmp_path / "log", fsync=relive.EveryRecords(100))
    log._append(1, b"")
    disk.may_end.clear()
    closing = [in_another_thread(log.close) for _ in range(2)]
    disk.may_end.set()
    assert [each.result(PATIENCE) for each in closing] == [None, None]
    assert (disk.num_syncs, log.num_synced) == (1, 2)


@pytest.mark.parametrize("step", ["write", "fsync_directory"])
def test_closing_waits_for_a_write(step: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor could be that of another file otherwise, or a new segment be begun that nobody has locked."""
    log, may_end = begun(tmp_path / "log"), threading.Event()
    if step == "fsync_directory":
        assert log._segment is not None
        log._segment.limit = 0
    module: Any = os if step == "write" else files
    call = getattr(module, step)

    def slow(*given: Any) -> Any:
        assert may_end.wait(PATIENCE)
        return call(*given)

    monkeypatch.setattr(module, step, slow)
    writing = in_another_thread(lambda: log._append(1, b""))
    closing = in_another_thread(log.close)
    may_end.set()
    number = writing.result(PATIENCE)
    assert (closing.result(PATIENCE), log.num_records, log.num_synced) == (None, number + 1, number + 1)
    for late in (log.sync, lambda: log._append(1, b"")):
        with pytest.raises(errors.ClosedError, match="cannot be written: it was closed$"):
            late()


def test_a_second_event_loop_can_wait_for_syncs(tmp_path: pathlib.Path, disk: Disk) -> None:
    """The event that the first one waited for is never set."""
    with begun(tmp_path / "log") as log:
        loop = asyncio.new_event_loop()
        disk.may_end.clear()
        task = loop.create_task(append(log))
        loop.run_until_complete(until_begun(disk))
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        disk.may_end.set()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        asyncio.run(append(log))
        assert log.num_synced == 3


async def test_is_due_says_when_a_sync_is_due(tmp_path: pathlib.Path) -> None:
    policies: list[Any] = ["always", relive.EveryRecords(3), relive.EverySeconds(1000.0), "never"]
    for place, fsync in enumerate(policies):
        with begun(tmp_path / str(place), fsync=fsync) as log:
            due = []
            for _ in range(4):
                with log._delayed_syncs:
                    log._append(1, b"")
                due.append(log._is_due)
            assert log.num_synced == 1
            assert due == [[True] * 4, [False, False, True, True], [False] * 4, [False] * 4][place]
            await log.synced()
            assert (log.num_synced, log._is_due) == (5, False)


async def test_a_failed_write_during_a_sync_keeps_the_others(
    tmp_path: pathlib.Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(tmp_path / "log") as log:
        disk.may_end.clear()
        task = asyncio.create_task(append(log, b"kept"))
        await until_begun(disk)
        threading.Timer(0.05, disk.may_end.set).start()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *_: 3)
            with pytest.raises(errors.CheckpointError, match="only 3 of 17 bytes fitted$"), log._delayed_syncs:
                log._append(1, b"")
        await task
        assert (log.num_records, log.num_synced) == (2, 2)
    assert [record.payload for record in journal_reader.records(tmp_path / "log")] == [b"base", b"kept"]


async def test_a_new_segment_syncs_for_waiting_callers(tmp_path: pathlib.Path, disk: Disk) -> None:
    with begun(tmp_path / "log", segment_bytes=60) as log:
        disk.may_end.clear()
        task = asyncio.create_task(append(log, b"x" * 60))
        await until_begun(disk)
        threading.Timer(0.05, disk.may_end.set).start()
        with log._delayed_syncs:
            log._append(1, b"")
        assert log.num_synced == 3  # The one before, and the base.
        await task
        await log.synced()
        assert log.num_synced == 4
