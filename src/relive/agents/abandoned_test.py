"""What a crash left unfinished is ended by `abort_open_episodes`, and lives after it run like the first one.

`handing_out_machine_test` compares what is aborted and counted with a naive twin.
"""

import asyncio
import pathlib
import random
import shutil
from typing import Any
import warnings

import pytest

import relive
from relive import errors
from relive.episodes import helpers_test
from relive.fleet import local_test
from relive.persistence import recover_test

Buffer = helpers_test.Buffer
make_tokens = helpers_test.make_tokens
add = helpers_test.add
opened = recover_test.opened
FAMILIES = pytest.mark.parametrize("make", [Buffer, make_tokens], ids=["episodes", "tokens"])
SIZE, ACTORS, PER_VERSION, VERSIONS = 4, 6, 8, 4


def test_a_buffer_of_samples_is_left_with_what_ended() -> None:
    buffer = Buffer(seed=0)
    add(buffer, group_id="g")
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0)
    buffer.close()
    assert (buffer.abort_open_episodes(), buffer.abort_open_episodes()) == (1, 0)
    assert (buffer.get_stats().in_progress, buffer.get_stats().aborted, len(buffer)) == (0, 1, 1)


def test_nothing_is_ended_if_the_journal_fails(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer(groups=relive.Groups(2))
    with opened(tmp_path / "log") as log:
        buffer.attach(log)
        buffer.start_episode_nowait("a", group_id="g")

        def fails(*record: Any, **options: Any) -> int:
            raise errors.CheckpointError("log cannot be written: disk full")

        with monkeypatch.context() as patched:
            patched.setattr(log, "_append", fails)
            with pytest.raises(errors.CheckpointError, match="disk full"):
                buffer.abort_open_episodes()
        assert buffer.get_stats().in_progress == 1
        assert buffer.abort_open_episodes() == 1


@FAMILIES
@pytest.mark.parametrize("is_named", [False, True])
def test_torn_groups_are_given_up_in_their_order(make: Any, is_named: bool) -> None:
    buffer, ids = make(groups=relive.Groups(2)), [f"g{number}" for number in range(12)]
    for group_id in ids:
        add(buffer, group_id=group_id, agent_id=f"of {group_id}")
    if is_named:
        assert buffer._queue.give_up([*reversed(ids), "unknown"]) == 12
    else:
        buffer.abort_open_episodes()
    assert list(buffer.get_drops()["straggler"]) == [f"of {group_id}" for group_id in ids]


@FAMILIES
def test_a_journal_attached_later_records_it_too(make: Any, tmp_path: pathlib.Path) -> None:
    buffer = make(groups=relive.Groups(2), redeliver=True)
    with opened(tmp_path / "log") as log:
        buffer.attach(log)
        for group_id in ("torn", "whole", "whole"):
            add(buffer, group_id=group_id)
        if make is Buffer:
            buffer.start_episode_nowait("a")
    recovered = relive.recover(tmp_path / "log")
    assert recovered.abort_open_episodes() == 1
    assert recovered.abort_open_episodes() == 0
    with opened(tmp_path / "log") as log:
        recovered.attach(log)
        recovered.detach()
    again = relive.recover(tmp_path / "log")
    assert again.abort_open_episodes() == 0
    assert recover_test.content(again) == recover_test.content(recovered)
    assert again.get_drops() == recovered.get_drops()
    written = relive.recover(tmp_path / "log")
    add(written, group_id="new")
    written.abort_open_episodes()
    with opened(tmp_path / "log") as log, pytest.raises(relive.ArgumentError, match="^the buffer was written to since"):
        written.attach(log)


async def test_aborting_open_episodes_wakes_waiting_tasks() -> None:
    buffer = Buffer(admission=relive.Admission(0, 2, max_running=2), groups=relive.Groups(2))
    buffer.set_policy_version(0)
    ticket = buffer.admit_nowait(2)
    add(buffer, group_id="g", ticket=ticket)
    buffer.start_episode_nowait("a", group_id="g", ticket=ticket)
    waiter = asyncio.create_task(buffer.admit(2))
    await asyncio.sleep(0.01)
    assert not waiter.done()
    assert buffer.abort_open_episodes() == 1
    async with asyncio.timeout(10):
        assert (await waiter).left == 2


# Crashes.


async def act(buffer: Any, name: str, rng: random.Random) -> None:
    for number in range(1_000):
        with await buffer.admit(SIZE) as ticket:
            await asyncio.gather(*[attempt(buffer, f"{name}/{number}", ticket, rng) for _ in range(SIZE)])


async def attempt(buffer: Any, group_id: str, ticket: Any, rng: random.Random) -> None:
    await asyncio.sleep(rng.random())
    if isinstance(buffer, relive.TokenReplayBuffer):
        add(buffer, group_id=group_id, ticket=ticket)
        return
    async with buffer.episode("a", group_id=group_id, ticket=ticket) as writer:
        await writer.append(0, 0, 1.0)
        await asyncio.sleep(rng.random())
        await writer.end(1)


async def train(buffer: Any, life: int, path: pathlib.Path) -> None:
    """Train for some versions, then go on until all groups that may start have begun, and copy the files: a kill."""
    rng = random.Random(0)
    actors = [asyncio.create_task(act(buffer, f"{life}/{number}", rng)) for number in range(ACTORS)]
    for _ in range(VERSIONS):
        await buffer.next_groups(PER_VERSION // SIZE)
        buffer.set_policy_version((buffer.policy_version or 0) + 1)
    await asyncio.sleep(0.7)
    shutil.copytree(path / "log", path / f"life {life}")
    for actor in actors:
        actor.cancel()
    await asyncio.wait(actors)


@FAMILIES
@pytest.mark.parametrize("lives", [4, pytest.param(30, marks=pytest.mark.long)])
def test_the_last_life_runs_like_the_first(make: Any, lives: int, tmp_path: pathlib.Path) -> None:
    counts: list[int] = []

    async def live_once(buffer: Any, life: int, log: Any) -> float:
        if life % 2:
            buffer.attach(log)
        if life > 1:
            counts.append(buffer.abort_open_episodes())
        if not life % 2:
            buffer.attach(log)
        start = asyncio.get_running_loop().time()
        await train(buffer, life, tmp_path)
        buffer.detach()
        return asyncio.get_running_loop().time() - start

    buffer = make(admission=relive.Admission(1, PER_VERSION), groups=relive.Groups(SIZE))
    buffer.set_policy_version(0)
    seconds: list[float] = []
    for life in range(1, lives + 1):
        with opened(tmp_path / "log") as log:
            seconds.append(local_test.run(live_once(buffer, life, log)))
        shutil.rmtree(tmp_path / "log")
        shutil.copytree(tmp_path / f"life {life}", tmp_path / "log")
        buffer = relive.recover(tmp_path / "log")
        buffer.check()
    assert min(counts) > 0
    assert max(seconds) <= 1.5 * seconds[0]


@FAMILIES
@pytest.mark.parametrize("is_open", [False, True])
async def test_a_learner_that_waits_for_torn_groups_is_warned(make: Any, is_open: bool) -> None:
    buffer = make(admission=relive.Admission(0, 2), groups=relive.Groups(2))
    buffer.set_policy_version(0)
    ticket = buffer.admit_nowait(2)
    add(buffer, group_id="g", ticket=ticket)
    if is_open and make is Buffer:
        buffer.start_episode_nowait("a", group_id="h", ticket=ticket)
    else:
        add(buffer, group_id="h", ticket=ticket)
    other = type(buffer).from_state(buffer.state_dict())
    tasks = [asyncio.create_task(other.next_groups(1)), asyncio.create_task(other.admit(2))]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        await asyncio.sleep(0.01)
    (warning,) = found
    assert warning.category is errors.MisuseWarning
    assert "After a crash, call abort_open_episodes" in str(warning.message)
    is_running = is_open and make is Buffer
    assert ("group 'g' holds places but is not complete" in str(warning.message)) == (not is_running)
    other.abort_open_episodes()
    async with asyncio.timeout(10):
        ticket = await tasks[1]
    for _ in range(2):
        add(other, group_id="i", ticket=ticket)
    async with asyncio.timeout(10):
        assert len((await tasks[0])[0]) == 2
