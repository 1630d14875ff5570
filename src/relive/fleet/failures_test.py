"""Each row of the table of failures in the guide is a course of events: what dies, what is lost, what goes on."""

import asyncio
from collections.abc import Awaitable, Callable
import pathlib
import random
import re
from typing import Any

import pytest

import relive
from relive.fleet import consumption_test
from relive.fleet import disk_test
from relive.fleet import local_test
from relive.fleet import trouble_test

Course = Callable[[random.Random, pathlib.Path], Awaitable[None]]


class Life:
    """A fleet, and actors that write to it while something fails."""

    def __init__(self, rng: random.Random, directory: pathlib.Path | None, kind: str = "columns", **more: Any) -> None:
        self.rng, self.kind, self.has_files = rng, kind, directory is not None
        make, actor, _ = trouble_test.KINDS[kind]
        settings = {"timeout": 0.5, "recovery": 60.0, "seed": rng.randrange(1000), **more}
        self.fleet = local_test.LocalFleet(make, 3, directory=directory, **settings)
        self.actors = [actor(self.fleet.replay(), number, rng) for number in range(3)]

    async def through(self, failure: Callable[[], Awaitable[None]]) -> None:
        """Let the actors write, and something fail meanwhile, until all is flushed."""
        acting = [asyncio.create_task(actor.act(15)) for actor in self.actors]
        await asyncio.sleep(self.rng.random())
        await failure()
        await asyncio.gather(*acting)
        for actor in self.actors:
            await actor.writer.close()

    async def restart(self, shard: int) -> None:
        """Kill a shard, with which no row dies if it has files; those of other shards are all there."""
        there = len(self.fleet.buffer(shard))
        dead = self.fleet.kill(shard)
        assert (dead.rows, dead.held) == (0 if self.has_files else there, None)
        await asyncio.sleep(self.rng.random())
        self.fleet.start(shard)

    def stored(self) -> list[Any]:
        return trouble_test.stored_in(self.fleet, self.kind)

    def given(self) -> list[Any]:
        return trouble_test.given_by(self.actors)

    def lost(self) -> int:
        return sum(actor.writer.lost for actor in self.actors)

    def acknowledged(self) -> int:
        return sum(actor.writer.stored for actor in self.actors)


async def killed_with_files(rng: random.Random, path: pathlib.Path) -> None:
    life = Life(rng, path, "episodes")
    await life.through(lambda: life.restart(rng.randrange(3)))
    assert (life.stored(), life.lost()) == (life.given(), 0)
    for buffer in life.fleet.buffers():
        assert {episode.status for episode in local_test.episodes_in(buffer)} <= {"COMPLETED", "ABORTED"}


async def killed_without_files(rng: random.Random, path: pathlib.Path) -> None:
    life = Life(rng, None)
    await life.through(lambda: life.restart(rng.randrange(3)))
    stored, stats = life.stored(), await life.fleet.replay().stats()
    assert len(stored) == len(set(stored))
    assert set(stored) <= set(life.given())
    assert stats.lost >= life.acknowledged() - len(stored)


async def machine_lost(rng: random.Random, path: pathlib.Path) -> None:
    life = Life(rng, path)

    async def lose_power() -> None:
        shard = rng.randrange(3)
        there: Any = life.fleet.shard(shard)
        synced = there._files._journal._segment.start  # The base, at least.
        life.fleet.kill(shard)
        segment = max((path / f"shard-{shard}" / "journal").glob("*.relive"))
        content = segment.read_bytes()
        segment.write_bytes(content[: rng.randrange(max(len(content) * 3 // 4, synced), len(content) + 1)])
        life.fleet.start(shard)

    await life.through(lose_power)
    stored, stats = life.stored(), await life.fleet.replay().stats()
    assert len(stored) == len(set(stored))
    assert set(stored) <= set(life.given())
    gone = life.acknowledged() - len(stored)
    assert 0 <= gone <= stats.lost
    assert life.lost() == 0


async def hangs(rng: random.Random, path: pathlib.Path) -> None:
    life = Life(rng, rng.choice([path, None]))

    async def hang() -> None:
        shard = rng.randrange(3)
        life.fleet.hang(shard)
        await asyncio.sleep(rng.random() * 10)
        life.fleet.go_on(shard)

    await life.through(hang)
    assert (life.stored(), life.lost()) == (life.given(), 0)


async def writer_dies(rng: random.Random, path: pathlib.Path) -> None:
    life = Life(rng, path, "episodes", lease=5.0)
    client = life.fleet.replay()
    writer = client.episodes_writer(batch_steps=3)

    async def die() -> None:
        context = writer.episode("dead")
        episode = await context.__aenter__()
        for t in range(3):
            await episode.append((9, 0, t), t, 1.0)
        await writer.flush()
        await episode.append((9, 0, 3), 3, 1.0)  # Not yet sent, so it dies too.
        life.fleet.kill_client(client)
        await asyncio.sleep(8.0)
        await life.fleet.replay().ping()
        left = [each for buffer in life.fleet.buffers() for each in local_test.episodes_in(buffer)]
        assert [each.status for each in left if each.agent_id == "dead"] == ["ABORTED"]

    await life.through(die)
    assert life.stored() == sorted([*life.given(), *[(9, 0, t) for t in range(3)]])


async def learner_dies(rng: random.Random, path: pathlib.Path) -> None:
    limiter = relive.SampleToInsertRatio(1.0, min_size=10, error_buffer=20.0)
    life = Life(rng, path, lease=5.0, limiter=limiter)

    async def die() -> None:
        learner = life.fleet.replay()
        for _ in range(rng.randrange(1, 4)):
            await learner.sample(10)

    await life.through(die)  # Writers go on once its lease is over.
    assert life.stored() == life.given()
    assert len((await life.fleet.replay().sample(10)).keys) == 10  # There is no debt to work off.


async def coordinator_dies(rng: random.Random, path: pathlib.Path) -> None:
    life = Life(rng, path)

    async def die() -> None:
        for _ in range(3):
            life.fleet.kill_coordinator()
            await asyncio.sleep(rng.random())
            life.fleet.start_coordinator()
            await asyncio.sleep(rng.random())

    await life.through(die)
    assert (life.stored(), life.lost()) == (life.given(), 0)


async def disk_fills_up(rng: random.Random, path: pathlib.Path) -> None:
    life = Life(rng, path, recovery=5.0)

    async def fill() -> None:
        disk = disk_test.Disk(life.fleet, rng.randrange(3), rng.randrange(5), is_known=rng.random() < 0.5)
        await asyncio.sleep(rng.random() * 20)
        disk.free()

    await life.through(fill)
    assert (life.stored(), life.lost()) == (life.given(), 0)


async def everything_dies(rng: random.Random, path: pathlib.Path) -> None:
    make = consumption_test.grouped(redeliver=True)
    fleet = local_test.LocalFleet(make, 3, directory=path, seed=rng.randrange(1000))
    client = fleet.replay()
    async with client.episodes_writer() as writer:
        for group in range(8):
            for member in range(consumption_test.SIZE):
                await consumption_test.play(writer, group, member)
    taken = [consumption_test.check_group(group) for group in await client.next_groups(3)]
    fleet.kill_coordinator()
    for shard in range(3):
        fleet.kill(shard)
    for shard in range(3):
        fleet.start(shard)
    fleet.start_coordinator()
    # What was not acknowledged comes again, and nothing is there twice.
    again = [consumption_test.check_group(group) for group in await fleet.replay().next_groups(8)]
    assert sorted(again) == list(range(8))
    assert set(taken) <= set(again)


COURSES: dict[str, Course | None] = {
    "a shard, killed; with a directory": killed_with_files,
    "a shard, killed; without a directory": killed_without_files,
    "a shard's machine": machine_lost,
    "a shard that hangs": hangs,
    "a writer": writer_dies,
    "a learner": learner_dies,
    "the coordinator": coordinator_dies,
    "a shard's disk, full": disk_fills_up,
    "the process that called `start`": None,  # There are no processes here.
    "all machines": everything_dies,
}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
@pytest.mark.parametrize("what", [what for what, course in COURSES.items() if course is not None])
async def test_what_the_table_of_failures_says(what: str, seed: int, tmp_path: pathlib.Path) -> None:
    course = COURSES[what]
    assert course is not None
    await course(random.Random(seed), tmp_path)


def test_every_row_of_the_table_of_failures_is_a_course() -> None:
    guide = pathlib.Path(__file__).parents[3] / "docs" / "guides" / "fleet.md"
    table = guide.read_text().partition("| what dies |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([^-].*?) \|", table, re.MULTILINE) == list(COURSES)
