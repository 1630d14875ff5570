"""How many actors one event loop holds: what an awaited append costs where 1,000 coroutines append at once.

    python -m relive.bench.coroutines [--quick]

Each row is a crowd: coroutines that all take the same number of steps. The crowds take turns, so that a machine whose
speed drifts slows all of them, and each is compared with coroutines that await an empty function as often: what asyncio
takes for nothing at all. The garbage collector stays on, as it does for users.

    bare        for t in range(steps): await nothing()
    a buffer    for t in range(steps): await buffer.append_observation_action_reward(episode_id, o_t, a_t, r_t)
"""

import argparse
import asyncio
import collections
from collections.abc import Callable, Coroutine, Iterator, Sequence
import dataclasses
import gc
import statistics
import sys
import time
from typing import Any, TypeAlias

import numpy as np

import relive

Work: TypeAlias = Coroutine[Any, Any, None]

_EPISODE = 50
"""Steps of an episode."""
_STORED = 50_000
_BATCH = 256
_RATIO = 1.0
_GOAL = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Attributes:
        actors: Coroutines at once.
        episodes: That each of them lives through, of 50 steps.
        rounds: In which each crowd has its turn.
    """

    actors: int = 1_000
    episodes: int = 2
    rounds: int = 7

    @property
    def steps(self) -> int:
        """What a crowd takes in a round."""
        return self.actors * self.episodes * _EPISODE


@dataclasses.dataclass(frozen=True)
class Crowd:
    """Those who run at once.

    Attributes:
        act: Returns what an actor does, by its number.
        learn: Returns what a learner does until the actors are through; None for no learner.
        counts: Returns how many steps and samples the buffer has counted.
    """

    act: Callable[[int], Work]
    learn: Callable[[], Work] | None = None
    counts: Callable[[], tuple[int, int]] = lambda: (0, 0)


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        label: What the coroutines do.
        beside: The row that it is compared with.
        make: Returns a crowd with a buffer of its own.
    """

    label: str
    beside: str
    make: Callable[[Size], Crowd]


async def _nothing() -> None:
    """Do nothing."""


async def _kept(stored: collections.deque[tuple[int, int, float]], step: tuple[int, int, float]) -> None:
    """Keep a step in a deque: the least that any store can do."""
    stored.append(step)


def bare(size: Size) -> Crowd:
    """Return coroutines that await an empty function."""

    async def act(number: int) -> None:
        for _ in range(size.episodes):
            for _ in range(_EPISODE):
                await _nothing()

    return Crowd(act)


def bare_giving_way(size: Size) -> Crowd:
    """Return coroutines that await an empty function, and let the others run after each step."""

    async def act(number: int) -> None:
        for _ in range(size.episodes):
            for _ in range(_EPISODE):
                await _nothing()
                await asyncio.sleep(0)

    return Crowd(act)


def plain(size: Size) -> Crowd:
    """Return coroutines that put their steps into a deque."""
    stored: collections.deque[tuple[int, int, float]] = collections.deque(maxlen=_STORED)

    async def act(number: int) -> None:
        for _ in range(size.episodes):
            for t in range(_EPISODE):
                await _kept(stored, (t, 0, 1.0))

    return Crowd(act)


def episodes(
    size: Size,
    *,
    observations: Sequence[Any] = range(_EPISODE + 1),
    gives_way: bool = False,
    learns: bool = False,
    limiter: relive.RateLimiter | None = None,
) -> Crowd:
    """Return coroutines that write to an EpisodeReplayBuffer, which is full before they are through.

    Args:
        size: How much is measured.
        observations: o_0 to o_T of each episode.
        gives_way: Whether an actor lets the others run after each step, as one that awaits its environment does.
        learns: Whether a learner draws beside, whenever it has a turn.
        limiter: Of the buffer.
    """
    buffer = relive.EpisodeReplayBuffer[Any, int](
        max_transitions=min(_STORED, size.steps // 2), limiter=limiter, seed=0
    )

    async def act(number: int) -> None:
        append = buffer.append_observation_action_reward
        for _ in range(size.episodes):
            episode_id = await buffer.start_episode("actor")
            for t in range(_EPISODE):
                await append(episode_id, observations[t], 0, 1.0)
                if gives_way:
                    await asyncio.sleep(0)
            await buffer.end_episode(episode_id, observations[-1])

    async def learn() -> None:
        while True:
            await buffer.sample_n_step(_BATCH, 3, 0.99)

    def counts() -> tuple[int, int]:
        stats = buffer.get_stats()
        return stats.appended, stats.sampled

    return Crowd(act, learn if learns else None, counts)


def columns(size: Size, *, learns: bool = False, limiter: relive.RateLimiter | None = None) -> Crowd:
    """Return coroutines that write to an AsyncReplayBuffer around a RingReplayBuffer, each to a stream of its own."""
    capacity = min(_STORED, size.steps // 2)
    buffer = relive.AsyncReplayBuffer(
        relive.RingReplayBuffer(capacity, streams=size.actors, n_step=3, limiter=limiter, seed=0)
    )
    observations = _vectors()

    async def act(number: int) -> None:
        last = _EPISODE - 1
        for _ in range(size.episodes):
            for t in range(_EPISODE):
                await buffer.add(observations[t], 0, 1.0, observations[t + 1], terminated=t == last, stream=number)

    async def learn() -> None:
        while True:
            await buffer.sample(_BATCH)

    def counts() -> tuple[int, int]:
        stats = buffer.get_stats()
        return stats.appended, stats.sampled

    return Crowd(act, learn if learns else None, counts)


def _vectors() -> list[Any]:
    """Return the observations of an episode, float32[4] each."""
    return list(np.arange(4 * (_EPISODE + 1), dtype=np.float32).reshape(-1, 4))


def _ratio() -> relive.RateLimiter:
    """Return a limiter that holds actors and learner together: each step is drawn once on average."""
    return relive.SampleToInsertRatio(_RATIO, min_size=1_000, error_buffer=4.0 * _BATCH)


_BARE, _GIVING_WAY = "await of an empty function", "the same, then sleep(0)"

ROWS = (
    Row(_BARE, _BARE, bare),
    Row("append to a deque", _BARE, plain),
    Row("EpisodeReplayBuffer, integers", _BARE, episodes),
    Row("EpisodeReplayBuffer, f32[4]", _BARE, lambda size: episodes(size, observations=_vectors())),
    Row("  and a learner, at its turns", _BARE, lambda size: episodes(size, observations=_vectors(), learns=True)),
    Row(
        "  and a learner, 1 sample a step",
        _BARE,
        lambda size: episodes(size, observations=_vectors(), learns=True, limiter=_ratio()),
    ),
    Row("AsyncReplayBuffer, ring of f32[4]", _BARE, columns),
    Row("  and a learner, at its turns", _BARE, lambda size: columns(size, learns=True)),
    Row("  and a learner, 1 sample a step", _BARE, lambda size: columns(size, learns=True, limiter=_ratio())),
    Row(_GIVING_WAY, _GIVING_WAY, bare_giving_way),
    Row("EpisodeReplayBuffer, then sleep(0)", _GIVING_WAY, lambda size: episodes(size, gives_way=True)),
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What came of a crowd in one round.

    Attributes:
        seconds: From the first step to the last.
        steps: That the buffer counted; 0 where there is none.
        samples: That the buffer counted.
    """

    seconds: float
    steps: int
    samples: int


async def measured(crowd: Crowd, actors: int) -> Measured:
    """Return how long a crowd takes for all its steps."""
    gc.collect()
    tasks = [asyncio.create_task(crowd.act(number)) for number in range(actors)]
    learner = asyncio.create_task(crowd.learn()) if crowd.learn else None
    start = time.perf_counter()
    await asyncio.gather(*tasks)
    seconds = time.perf_counter() - start
    if learner:
        learner.cancel()
        await asyncio.gather(learner, return_exceptions=True)
    return Measured(seconds, *crowd.counts())


async def rounds(size: Size) -> list[list[Measured]]:
    """Return what came of each row in each round."""
    results: list[list[Measured]] = [[] for _ in ROWS]
    for _ in range(size.rounds):
        for row, found in zip(ROWS, results, strict=True):
            found.append(await measured(row.make(size), size.actors))
    return results


def lines(size: Size, results: Sequence[Sequence[Measured]]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{size.actors:,} coroutines, {size.steps:,} steps a round, medians of {size.rounds} rounds"
    yield f"{'':36}{'ratio':>7}{'us a step':>11}{'steps a s':>12}{'samples a s':>13}"
    seconds = {
        row.label: statistics.median(one.seconds for one in found) for row, found in zip(ROWS, results, strict=True)
    }
    for row, found in zip(ROWS, results, strict=True):
        taken = statistics.median(one.seconds for one in found)
        drawn = statistics.median(one.samples / one.seconds for one in found)
        figures = f"{taken / seconds[row.beside]:7.1f}{taken / size.steps * 1e6:11.2f}{size.steps / taken:12,.0f}"
        yield f"{row.label:36}{figures}{f'{drawn:13,.0f}' if drawn else ''}"
    yield f"ratio: to the {_BARE}, and with sleep(0) to that; the goal is {_GOAL:,} steps a second"


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m relive.bench.coroutines", description="What an awaited append costs among 1,000 coroutines."
    )
    parser.add_argument("--quick", action="store_true", help="few coroutines: to see that it runs, not how fast")
    size = Size(actors=50, episodes=1, rounds=2) if parser.parse_args(arguments).quick else Size()
    for line in lines(size, asyncio.run(rounds(size))):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
