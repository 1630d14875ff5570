"""An awaited insert into a buffer of columns returns when its record is on the disk, and shares the sync."""

import asyncio
import errno
import os
import pathlib
import threading
from typing import Any

import numpy as np
import pytest

import relive
from relive.episodes import group_commit_test

disk = group_commit_test.disk
NUM_ACTORS = 20


def attached(path: pathlib.Path, **settings: Any) -> tuple[Any, Any, relive.Journal]:
    inside = relive.RingReplayBuffer(1_000, streams=NUM_ACTORS, seed=0)
    journal = relive.Journal(path, **settings)
    inside.attach(journal)
    return relive.AsyncReplayBuffer(inside), inside, journal


def test_every_insert_is_on_the_disk_when_it_returns(tmp_path: pathlib.Path, disk: group_commit_test.Disk) -> None:
    buffer, inside, journal = attached(tmp_path / "journal")

    async def act(stream: int) -> None:
        for t in range(5):
            before = journal.num_records
            await buffer.add(float(t), stream, 1.0, t + 1.0, stream=stream)
            assert journal.num_synced > before
        await buffer.add_episode(np.zeros(3), np.zeros(2, int), np.zeros(2), terminated=True, stream=stream)
        await buffer.add_steps(np.zeros(3), np.zeros(2, int), np.zeros(2), stream=stream)

    async def main() -> None:
        await buffer.add(0.0, 0, 1.0, 1.0, stream=0)
        disk.num_syncs = 0
        disk.threads.clear()
        await asyncio.gather(*map(act, range(NUM_ACTORS)))
        assert disk.num_syncs < 7 * NUM_ACTORS / 2
        assert threading.get_ident() not in disk.threads
        disk.num_syncs = 0
        await buffer.extend(*[np.zeros(NUM_ACTORS, dtype) for dtype in (float, int, float, float)])
        assert disk.num_syncs == 1

    asyncio.run(main())
    assert journal.num_synced == journal.num_records == 3 + 7 * NUM_ACTORS
    # Plain calls sync themselves.
    before = disk.num_syncs
    buffer.set_eligible([0], False)
    inside.end_episode(stream=0)
    assert (disk.num_syncs, journal.num_synced) == (before + 2, journal.num_records)
    journal.close()
    assert len(relive.recover(tmp_path / "journal")) == len(inside)


def test_a_failed_sync_fails_all_waiting_inserts(tmp_path: pathlib.Path, disk: group_commit_test.Disk) -> None:
    buffer, inside, journal = attached(tmp_path / "journal")

    async def main() -> list[Any]:
        disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
        disk.may_end.clear()
        adds = [asyncio.create_task(buffer.add(0.0, 0, 1.0, 1.0, stream=stream)) for stream in range(3)]
        await asyncio.sleep(0)
        assert len(inside) == 3
        disk.may_end.set()
        return await asyncio.gather(*adds, return_exceptions=True)

    found = asyncio.run(main())
    assert all(isinstance(each, relive.CheckpointError) for each in found)
    # They are stored, and may be on the disk or not.
    assert len(inside) == 3
    with pytest.raises(relive.CheckpointError, match="the disk failed to sync it: Input/output error; open it again$"):
        inside.add(0.0, 0, 1.0, 1.0, stream=0)
    with pytest.raises(relive.CheckpointError):
        journal.close()


def test_inserts_do_not_wait_for_syncs_with_never(tmp_path: pathlib.Path, disk: group_commit_test.Disk) -> None:
    buffer, _, journal = attached(tmp_path / "journal", fsync="never")
    disk.num_syncs = 0
    asyncio.run(buffer.add(0.0, 0, 1.0, 1.0, stream=0))
    assert (disk.num_syncs, journal.num_records - journal.num_synced) == (0, 1)
    journal.close()


def test_awaited_episodes_of_tokens_share_a_sync(tmp_path: pathlib.Path, disk: group_commit_test.Disk) -> None:
    inside = relive.TokenReplayBuffer(300, seed=0)
    journal = relive.Journal(tmp_path / "journal")
    inside.attach(journal)
    buffer: Any = relive.AsyncReplayBuffer(inside)
    step = relive.TokenStep(prompt=[0], response=[1], logprobs=[-0.5], policy_version=0)

    async def main() -> None:
        await buffer.add_episode([step], agent_id="a")
        disk.num_syncs = 0
        await asyncio.gather(*[buffer.add_episode([step], agent_id="a") for _ in range(NUM_ACTORS)])
        assert disk.num_syncs < NUM_ACTORS / 2

    asyncio.run(main())
    assert journal.num_synced == journal.num_records
    journal.close()
    assert len(relive.recover(tmp_path / "journal")) == len(inside)


def test_blocks_that_sync_later_may_be_nested(tmp_path: pathlib.Path) -> None:
    with relive.Journal(tmp_path / "journal") as journal:
        journal._begin(lambda: b"base")
        with journal._delayed_syncs:
            with journal._delayed_syncs:
                journal._append(1, b"")
            journal._append(1, b"")
            assert journal.num_synced == 1
        journal._append(1, b"")
        assert journal.num_synced == 4
