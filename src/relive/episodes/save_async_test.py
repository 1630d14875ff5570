"""`save_async` saves the buffer as it was when the call began; actors and learners go on meanwhile."""

import asyncio
import pathlib
import random
import threading
import time
import tracemalloc
from typing import Any

import pytest

import relive
from relive.episodes import helpers_test
from relive.persistence import checkpoint
from relive.persistence import recover_test
from relive.persistence import state as state_lib
from relive.testing import zoo

Buffer = helpers_test.Buffer
PATIENCE = helpers_test.PATIENCE
GROUPS, LIMITS = zoo.KINDS["episodes in groups"], zoo.KINDS["episodes within limits"]


class Slow(relive.PlainCodec):
    """Waits before it encodes in any thread but the one that made it."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()
        self._own = threading.get_ident()

    def encode(self, value: Any) -> bytes:
        if threading.get_ident() != self._own:
            self.has_begun.set()
            assert self.may_go_on.wait(PATIENCE)
        return super().encode(value)


async def begun(saving: "asyncio.Task[None]", codec: Slow) -> None:
    """Return when the thread is in the middle of it."""
    assert await asyncio.to_thread(codec.has_begun.wait, PATIENCE)
    assert not saving.done()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [GROUPS, LIMITS], ids=["groups", "limits"])
def test_save_async_saves_the_buffer_as_the_call_began(seed: int, kind: zoo.Kind, tmp_path: pathlib.Path) -> None:
    buffer, rng, codec = zoo.worked(kind.make, seed, 150), random.Random(f"more {seed}"), Slow()

    async def main() -> Any:
        saving = asyncio.create_task(buffer.save_async(tmp_path / "saved", codec=codec))
        await asyncio.sleep(0)
        before = zoo.plain(buffer.state_dict())
        await begun(saving, codec)
        zoo.work(buffer, rng, 100)
        for episode_id in list(buffer.get_stats().open_ages):
            buffer.append_observation_action_reward_nowait(episode_id, "late", "late", 9.0)
            buffer.end_episode_nowait(episode_id, "late")
        assert zoo.plain(buffer.state_dict()) != before
        codec.may_go_on.set()
        await saving
        return before

    before = asyncio.run(main())
    loaded = Buffer.load(tmp_path / "saved")
    loaded.check()
    assert zoo.plain(loaded.state_dict()) == before


def test_save_async_saves_the_ages_of_the_call(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, own = Buffer(groups=relive.Groups(2, timeout=60.0)), threading.get_ident()
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 if threading.get_ident() == own else 107.0)
    helpers_test.live(buffer, group_id="g")
    asyncio.run(buffer.save_async(tmp_path / "saved"))
    assert Buffer.load(tmp_path / "saved").state_dict()["arrays"]["unit_age"] == 0.0


def test_a_cancelled_save_of_a_closed_buffer_is_finished(tmp_path: pathlib.Path) -> None:
    buffer, codec = zoo.worked(GROUPS.make, 1, 150), Slow()
    buffer.close()

    async def main() -> None:
        saving = asyncio.create_task(buffer.save_async(tmp_path / "saved", codec=codec, keep=2))
        await begun(saving, codec)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        # The thread that has begun writes all.
        codec.may_go_on.set()

    asyncio.run(main())
    assert zoo.plain(Buffer.load(tmp_path / "saved").state_dict()) == zoo.plain(buffer.state_dict())


def test_a_failed_save_async_leaves_the_old_checkpoint(tmp_path: pathlib.Path) -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    with pytest.raises(relive.ArgumentError, match="^keep must be at least 1, got 0$"):
        asyncio.run(buffer.save_async(tmp_path / "saved", keep=0))
    asyncio.run(buffer.save_async(tmp_path / "saved"))
    buffer.append_observation_action_reward_nowait(episode_id, object(), 0, 0.0)
    with pytest.raises(relive.CheckpointError, match=f"^observation 0 of episode {episode_id} cannot be saved: "):
        asyncio.run(buffer.save_async(tmp_path / "saved"))
    assert Buffer.load(tmp_path / "saved").get_stats().in_progress == 1


def test_a_journal_goes_on_from_an_asynchronous_save(tmp_path: pathlib.Path) -> None:
    buffer, codec = zoo.worked(GROUPS.make, 1, 150), Slow()
    rng = random.Random(3)

    async def main() -> int:
        with recover_test.opened(tmp_path / "log") as log:
            buffer.attach(log)
            zoo.work(buffer, rng, 30)
            saving = asyncio.create_task(buffer.save_async(tmp_path / "saved", codec=codec))
            await begun(saving, codec)
            known = log.num_records
            assert log.num_synced == known
            zoo.work(buffer, rng, 30)
            codec.may_go_on.set()
            await saving
            assert log.num_records > known
            return known

    known = asyncio.run(main())
    with checkpoint.opened(tmp_path / "saved") as state:
        assert state["journal"]["num_records"] == known
    recovered: Any = relive.recover(tmp_path / "log", checkpoint=tmp_path / "saved")
    recovered.check()
    assert recover_test.content(recovered) == recover_test.content(buffer)


@pytest.mark.parametrize("is_async", [False, True])
def test_saving_takes_little_more_memory_than_a_chunk(
    is_async: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is two numbers of 8 bytes a step, and a few for each episode."""
    monkeypatch.setattr(state_lib, "CHUNK", 2**18)
    buffer, steps = Buffer(), 50_000
    for _ in range(steps // 500):
        episode_id = buffer.start_episode_nowait("a")
        for t in range(500):
            buffer.append_observation_action_reward_nowait(episode_id, "observation", t, 0.5)
        buffer.end_episode_nowait(episode_id, "end")
    if is_async:
        asyncio.run(buffer.save_async(tmp_path / "warm"))
    else:
        buffer.save(tmp_path / "warm")
    tracemalloc.start()
    try:
        if is_async:
            asyncio.run(buffer.save_async(tmp_path / "saved"))
        else:
            buffer.save(tmp_path / "saved")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * steps + 4 * 2**18 + 2**19
