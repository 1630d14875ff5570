"""relive's fleets in their benchmark: shards and writers are actors of Ray, this process is the learner.

A program that returns lines; `relive.bench.fleet_programs` says what they are. Every writer process has a writer for
each shard, and gives them its episodes in turn, so that all shards have as much to do.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
import contextlib
import functools
import json
import os
import sys
import time
from typing import Any

import numpy as np
import ray

import relive
from relive.bench import fleet_processor
from relive.integrations import ray as fleet_lib
from relive.testing import fleet_work

_STORE_BYTES = 200_000_000


class Writer:
    """A process that sends whole episodes, as an actor."""

    def __init__(self, replay: fleet_lib.ShardedReplay[Any], work: Mapping[str, Any]) -> None:
        self._replay = replay
        self._shards, self._in_flight = work["shards"], work["in_flight"]
        with np.load(work["path"]) as episodes:
            self._episodes = [episodes[name] for name in ("observations", "actions", "rewards")]

    async def process(self) -> int:
        """Return the number of the process."""
        return os.getpid()

    async def send(self, seconds: float, message_steps: int) -> tuple[int, float]:
        """Send episodes for that long, in messages of so many steps; return how many are stored, and the seconds."""
        in_flight = max(1, self._in_flight // self._shards)
        writers = [self._replay.writer(batch_steps=message_steps, max_in_flight=in_flight) for _ in range(self._shards)]
        count, sent = len(self._episodes[0]), 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            observations, actions, rewards = (column[sent % count] for column in self._episodes)
            await writers[sent % self._shards].add_episode(observations, actions, rewards, terminated=True)
            sent += 1
        await asyncio.gather(*[writer.flush() for writer in writers])
        taken = time.perf_counter() - start
        await asyncio.gather(*[writer.close() for writer in writers])
        return sum(writer.stored for writer in writers), taken


class _Fleet:
    """A fleet, and those who use it."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        self._work = work
        make = functools.partial(relive.RingReplayBuffer, work["capacity"] // work["shards"], seed=0)
        self._replay: fleet_lib.ShardedReplay[Any] = fleet_lib.ShardedReplay.start(make, shards=work["shards"], seed=0)
        actor = ray.remote(Writer)
        self._writers = [actor.remote(self._replay, work) for _ in range(work["writers"])]
        self._processes: dict[str, set[int]] = {
            "writers": set(ray.get([writer.process.remote() for writer in self._writers]))
        }

    async def begin(self) -> None:
        """Learn which processes are whose."""
        shards = (await self._replay.stats()).shards
        self._processes["shards"] = {shard.pid for shard in shards if shard is not None}
        self._processes["learner"] = {os.getpid()}

    async def turn(self, mode: str, seconds: float, **asked: int) -> dict[str, Any]:
        """Return what came of a turn, in which some of the work may be other than usual."""
        work = {**self._work, **asked}
        before = fleet_processor.seconds_by_process()
        answer: dict[str, Any] = {"inserted": 0, "insert_seconds": 0.0, "drawn": 0, "draw_seconds": 0.0}
        parts = []
        if mode in ("insert", "both"):
            parts.append(self._insert(seconds, work))
        if mode in ("sample", "both"):
            parts.append(self._sample(seconds, work))
        if mode == "ping":
            parts.append(self._ping(seconds))
        for part in await asyncio.gather(*parts):
            answer |= part
        after = fleet_processor.seconds_by_process()
        taken = {number: after[number] - before.get(number, 0.0) for number in after}
        kinds = {kind: sum(taken.pop(number, 0.0) for number in numbers) for kind, numbers in self._processes.items()}
        return {**answer, "processor": {**kinds, "rest": sum(taken.values())}}

    async def _insert(self, seconds: float, work: Mapping[str, Any]) -> dict[str, float]:
        sent = await asyncio.gather(*[writer.send.remote(seconds, work["message_steps"]) for writer in self._writers])
        return {"inserted": sum(rows for rows, _ in sent), "insert_seconds": max(taken for _, taken in sent)}

    async def _sample(self, seconds: float, work: Mapping[str, Any]) -> dict[str, float]:
        drawn, batch_size = 0, work["batch_size"]
        batches = self._replay.batches(batch_size, prefetch=work["prefetch"])
        assert isinstance(batches, AsyncGenerator)
        async with contextlib.aclosing(batches):
            start = time.perf_counter()
            while time.perf_counter() - start < seconds:
                batch = await anext(batches)
                drawn += batch_size
            taken = time.perf_counter() - start
        wrong = fleet_work.wrong(
            batch.observation, batch.action, batch.reward, batch.next_observation, batch.is_terminal, work["steps"]
        )
        return {"drawn": drawn, "draw_seconds": taken, "wrong": wrong}

    async def _ping(self, seconds: float) -> dict[str, float]:
        """Ask as many shards at a time as batches are drawn at a time."""
        asked, start, together = 0, time.perf_counter(), self._work["prefetch"] + 1
        while time.perf_counter() - start < seconds:
            asked += sum(map(len, await asyncio.gather(*[self._replay.ping() for _ in range(together)])))
        return {"asked": asked}


async def _main() -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    fleets = {name: _Fleet(work) for name, work in json.loads(sys.argv[1]).items()}
    for fleet in fleets.values():
        await fleet.begin()
    print(json.dumps({"version": f"relive {relive.__version__} on ray {ray.__version__}"}), file=lines)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        print(json.dumps(await fleets[asked.pop("fleet")].turn(**asked)), file=lines)


if __name__ == "__main__":
    os.environ["RAY_DEDUP_LOGS"] = "0"
    ray.init(
        include_dashboard=False,
        num_cpus=16,
        logging_level="ERROR",
        log_to_driver=False,
        object_store_memory=_STORE_BYTES,
    )
    try:
        asyncio.run(_main())
    finally:
        ray.shutdown()
