"""An awaited call returns when its record is on the disk, and shares the sync with all waiting calls."""

import asyncio
import contextlib
import os
import pathlib
import threading
from typing import Any

import pytest

import relive
from relive.persistence import journal as journal_lib

PATIENCE = 60.0


class Disk:
    """Counts syncs, which end when they may."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.num_syncs = 0
        self.error: OSError | None = None
        self.may_end = threading.Event()
        self.may_end.set()
        self.threads: set[int] = set()
        sync = journal_lib.sync_file

        def counted(descriptor: int) -> None:
            self.num_syncs += 1
            self.threads.add(threading.get_ident())
            assert self.may_end.wait(PATIENCE)
            if self.error is not None:
                raise self.error
            sync(descriptor)

        patch.setattr(journal_lib, "sync_file", counted)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def attached(path: pathlib.Path, **settings: Any) -> tuple[relive.EpisodeReplayBuffer[str, int], relive.Journal]:
    buffer = relive.EpisodeReplayBuffer[str, int](seed=0)
    journal = relive.Journal(path, **settings)
    buffer.attach(journal)
    return buffer, journal


def test_actors_share_syncs_and_each_record_is_on_the_disk(tmp_path: pathlib.Path, disk: Disk) -> None:
    buffer, journal = attached(tmp_path / "journal")
    disk.num_syncs, steps = 0, 5

    async def act(number: int) -> None:
        async with buffer.episode(f"agent-{number}") as writer:
            for step in range(steps):
                await writer.append(f"{step}", step, 0.0)
                assert journal.num_synced >= 1
            await writer.end("end")
            assert buffer._store[writer.episode_id].status == "COMPLETED"

    async def main() -> None:
        await asyncio.gather(*map(act, range(50)))

    asyncio.run(main())
    assert journal.num_synced == journal.num_records == 1 + 50 * (steps + 2)
    assert disk.num_syncs < 50 * (steps + 2) / 2
    assert threading.get_ident() not in disk.threads
    journal.close()
    assert relive.recover(tmp_path / "journal").get_stats().completed == 50


def test_a_plain_call_syncs_itself(tmp_path: pathlib.Path, disk: Disk) -> None:
    buffer, journal = attached(tmp_path / "journal")
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, "o", 0, 0.0)
    buffer.end_episode_nowait(episode_id, "end")
    assert journal.num_synced == journal.num_records == 4
    assert disk.threads == {threading.get_ident()}
    journal.close()


def test_a_step_whose_sync_fails_or_is_cancelled_is_stored(tmp_path: pathlib.Path, disk: Disk) -> None:
    buffer, journal = attached(tmp_path / "journal")

    async def main() -> None:
        episode_id = await buffer.start_episode("a")
        disk.may_end.clear()
        waiting = asyncio.create_task(buffer.append_observation_action_reward(episode_id, "o0", 0, 0.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        disk.error = OSError(5, os.strerror(5))
        disk.may_end.set()
        with pytest.raises(relive.CheckpointError, match="cannot be written|could not be synced"):
            await buffer.append_observation_action_reward(episode_id, "o1", 1, 0.0)
        assert len(buffer._store[episode_id].actions) in (1, 2)
        buffer.check()

    asyncio.run(main())
    _close(journal)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_an_episode_whose_start_nobody_heard_of_is_aborted(
    tmp_path: pathlib.Path, disk: Disk, is_cancelled: bool
) -> None:
    buffer, journal = attached(tmp_path / "journal")

    async def main() -> None:
        disk.may_end.clear()
        starting = asyncio.create_task(buffer.start_episode("a"))
        await asyncio.sleep(0)
        assert buffer.get_stats().in_progress == 1
        if is_cancelled:
            starting.cancel()
        else:
            disk.error = OSError(5, os.strerror(5))
        disk.may_end.set()
        with pytest.raises(asyncio.CancelledError if is_cancelled else relive.CheckpointError):
            await starting

    asyncio.run(main())
    assert (buffer.get_stats().in_progress, buffer.get_stats().aborted) == (0, 1)
    buffer.check()
    _close(journal)


def _close(journal: relive.Journal) -> None:
    """Close a journal whose disk has perhaps failed."""
    with contextlib.suppress(relive.CheckpointError):
        journal.close()
