"""Many steps under storms of cancellations: memory stays flat, and every counter adds up."""

import asyncio
import gc
import pathlib
import random
import sys
from typing import Any, TypeAlias

import numpy as np
import pytest

import relive

LONGEST, BATCH = 50, 64
OBSERVATIONS = list(np.arange(4 * (LONGEST + 1), dtype=np.float32).reshape(-1, 4))


class Episodes:
    """Actors that write episodes, with counts of the calls that returned."""

    def __init__(self, capacity: int, actors: int, limiter: relive.RateLimiter) -> None:
        self.buffer: Any = relive.EpisodeReplayBuffer[Any, Any](max_transitions=capacity, limiter=limiter, seed=0)
        self.appended = self.sampled = 0
        self.rng = random.Random(0)

    async def act(self, place: int) -> None:
        while True:
            async with self.buffer.episode(f"actor-{place}") as writer:
                for t in range(self.rng.randint(1, LONGEST)):
                    await writer.append(OBSERVATIONS[t], {"move": t}, float(t))
                    self.appended += 1
                await writer.end(OBSERVATIONS[-1], self.rng.choice(("COMPLETED", "TRUNCATED")))

    async def learn(self) -> None:
        while True:
            self.sampled += len(await self.buffer.sample_n_step(BATCH, 3, 0.99))

    def check_counts(self) -> None:
        stats = self.buffer.get_stats()
        gone = stats.evicted_transitions + stats.aborted_steps + stats.cleared_steps
        assert stats.total_transitions + stats.waiting_steps + gone == self.appended
        assert stats.in_progress == 0


class Ring:
    """Actors that write to one stream each, with counts of the calls that returned."""

    kind: type[relive.RingReplayBuffer] | type[relive.PrioritizedReplayBuffer] = relive.RingReplayBuffer

    def __init__(self, capacity: int, actors: int, limiter: relive.RateLimiter) -> None:
        self.buffer: Any = self.kind(capacity, streams=actors, n_step=3, limiter=limiter, seed=0)
        self.shell = relive.AsyncReplayBuffer(self.buffer)
        self.appended = self.sampled = 0
        self.rng = random.Random(0)

    async def act(self, place: int) -> None:
        try:
            while True:
                last = self.rng.randrange(LONGEST)
                for t in range(last + 1):
                    step = (OBSERVATIONS[t], t, float(t), OBSERVATIONS[t + 1])
                    await self.shell.add(*step, terminated=t == last, stream=place)
                    self.appended += 1
        finally:
            self.shell.end_episode(stream=place)

    async def learn(self) -> None:
        while True:
            batch = await self.shell.sample(BATCH)
            self.sampled += len(batch.keys)
            if self.buffer.has_priorities:
                self.shell.update_priorities(batch.keys, np.full(BATCH, self.rng.random()))

    def check_counts(self) -> None:
        stats = self.buffer.get_stats()
        assert len(self.buffer) + stats.evicted == self.appended
        assert stats.spliced_episodes == 0


class Prioritized(Ring):
    """The same, with priorities."""

    kind = relive.PrioritizedReplayBuffer


Soaked: TypeAlias = Episodes | Ring


async def cancelled(*tasks: "asyncio.Task[None]") -> None:
    """Cancel tasks, none of which may have ended by itself."""
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(end, asyncio.CancelledError), end


async def soak(soaked: Soaked, actors: int, steps: int, storms: int, path: pathlib.Path) -> list[int]:
    """Return how many blocks the interpreter had allocated after each storm."""
    rng = random.Random(0)
    acting = [asyncio.create_task(soaked.act(place)) for place in range(actors)]
    learner = asyncio.create_task(soaked.learn())
    blocks = []
    for storm in range(1, storms + 1):
        while soaked.appended < steps * storm // storms:
            await asyncio.sleep(0)
            await cancelled(*(task for task in (learner, *acting) if task.done()))
        places = rng.sample(range(actors), rng.randint(1, actors // 2))
        soaked.buffer.save(path)
        await cancelled(learner, *(acting[place] for place in places))
        for place in places:
            acting[place] = asyncio.create_task(soaked.act(place))
        learner = asyncio.create_task(soaked.learn())
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    await cancelled(learner, *acting)
    return blocks


def check(make: type[Soaked], steps: int, storms: int, path: pathlib.Path) -> list[int]:
    """Soak a buffer that evicts nearly all the time, check all that was counted, and return the allocated blocks."""
    capacity = max(steps // 100, 100)
    actors = max(capacity // 50, 4)
    limiter = relive.SampleToInsertRatio(0.5, min_size=capacity // 10, error_buffer=4.0 * BATCH)
    soaked = make(capacity, actors, limiter)
    blocks = asyncio.run(soak(soaked, actors, steps, storms, path))
    soaked.buffer.check()
    type(soaked.buffer).load(path).check()
    stats = soaked.buffer.get_stats()
    assert (stats.appended, stats.sampled) == (soaked.appended, soaked.sampled)
    soaked.check_counts()
    return blocks


@pytest.mark.parametrize("make", [Episodes, Ring, Prioritized])
def test_every_counter_adds_up_after_storms_of_cancellations(make: type[Soaked], tmp_path: pathlib.Path) -> None:
    check(make, 2_000, 10, tmp_path / "saved")


@pytest.mark.long
@pytest.mark.parametrize("make", [Episodes, Ring, Prioritized])
def test_memory_is_flat_over_two_million_steps(make: type[Soaked], tmp_path: pathlib.Path) -> None:
    """The last storm leaves at most 2 % more than one early on, and 10,000 blocks of what comes and goes."""
    blocks = check(make, 2_000_000, 50, tmp_path / "saved")
    assert blocks[-1] <= 1.02 * blocks[10] + 10_000
