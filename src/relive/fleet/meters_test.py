"""Meters: what a fleet has counted, in a stand-in for the metrics of Ray that refuses what Ray refuses."""

import asyncio
import collections
import pathlib
from typing import Any

from relive.fleet import local_test
from relive.fleet import meters
from relive.fleet import replay_test

Values = collections.Counter[tuple[str, str, str]]


class Library:
    """What `ray.util.metrics` has, with the values by name, fleet and shard."""

    def __init__(self) -> None:
        self.values: Values = collections.Counter()
        self.incs = 0

    def metric(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Any:
        return Metric(self, name, description, tag_keys)

    Counter = Gauge = metric


class Metric:
    """One counter or gauge."""

    def __init__(self, library: Library, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        assert name.isidentifier()
        assert description.endswith(".")
        assert tag_keys == ("fleet", "shard")
        self._library, self._name = library, name

    def inc(self, value: int, tags: dict[str, str]) -> None:
        assert type(value) is int
        assert value > 0
        self._library.incs += 1
        self._library.values[self._name, tags["fleet"], tags["shard"]] += value

    def set(self, value: int, tags: dict[str, str]) -> None:
        assert type(value) is int
        self._library.values[self._name, tags["fleet"], tags["shard"]] = value


def of(library: Library, name: str) -> list[int]:
    """Return the values of that name, of shards 0 and 1."""
    return [library.values[f"relive_{name}", "main", shard] for shard in "01"]


async def test_meters_say_what_the_statistics_of_shards_say() -> None:
    fleet = replay_test.fleet_of(replay_test.ring, 2, timeout=1.0)
    client, library = fleet.replay(), Library()
    assert fleet.coordinator_process is not None
    reporting = asyncio.create_task(fleet.coordinator_process.report(meters.Meters(library, "main").record))
    await local_test.settle(1.0)
    assert library.incs == 0
    replay_test.fill(fleet, (3, 5))
    await client.sample(20)
    await local_test.settle(6.0)
    stats = await client.stats()
    for name in (*meters._COUNTERS, *meters._GAUGES):
        assert of(library, name) == [getattr(shard, name) for shard in stats.shards]
    assert of(library, "size") == of(library, "inserted") == [3, 5]
    incs = library.incs
    await local_test.settle(60.0)
    assert library.incs == incs
    # A shard that is lost has nothing to draw; a new process without files counts from 0.
    fleet.kill(1)
    await local_test.settle(8.0)
    assert (of(library, "size"), of(library, "inserted")) == ([3, 0], [3, 5])
    fleet.start(1)
    replay_test.fill(fleet, (0, 2))
    await local_test.settle(8.0)
    assert (of(library, "size"), of(library, "inserted")) == ([3, 2], [3, 7])
    reporting.cancel()


async def test_a_shard_that_recovers_is_not_counted_again(tmp_path: pathlib.Path) -> None:
    fleet = replay_test.fleet_of(replay_test.ring, 2, timeout=1.0, directory=tmp_path)
    library = Library()
    replay_test.fill(fleet, (3, 5))
    assert fleet.coordinator_process is not None
    reporting = asyncio.create_task(fleet.coordinator_process.report(meters.Meters(library, "main").record))
    for number in range(2):
        await local_test.settle(6.0)
        fleet.kill(number)
        await local_test.settle(8.0)
        fleet.start(number)
    await local_test.settle(6.0)
    assert of(library, "inserted") == of(library, "rows") == [3, 5]
    reporting.cancel()
