"""What a step costs where many coroutines append at once, and where many episodes are open."""

import asyncio
from collections.abc import Callable, Coroutine
import itertools
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import relive
from relive.bench import verification
from relive.bench.peers import own

_EPISODE, _EPISODES = 50, 2
"""Steps of an episode, and episodes of a coroutine."""
_STORED, _LEAST, _BATCH, _APPENDS = 50_000, 500, 256, 2_000
_OBSERVATIONS: list[Any] = list(np.arange(4 * (_EPISODE + 1), dtype=np.float32).reshape(-1, 4))

_Work: TypeAlias = Coroutine[Any, Any, Any]


class _Crowd(NamedTuple):
    """What a coroutine does, by its number; an awaited draw, and the statistics, where there is a buffer."""

    act: Callable[[int], _Work]
    draw: Callable[[], _Work] | None = None
    stats: Callable[[], Any] | None = None


def _capacity(size: int) -> int:
    """Return how many steps a buffer stores, so that it evicts before all were taken."""
    return min(_STORED, size * _EPISODES * _EPISODE // 2)


def _awaiting(peer: str, size: int, yields: bool, limiter: relive.RateLimiter | None) -> _Crowd:
    async def nothing() -> None:
        pass

    async def act(number: int) -> None:
        for _ in range(_EPISODES * _EPISODE):
            await nothing()
            if yields:
                await asyncio.sleep(0)

    return _Crowd(act)


def _to_episodes(peer: str, size: int, yields: bool, limiter: relive.RateLimiter | None) -> _Crowd:
    buffer = relive.EpisodeReplayBuffer[Any, int](max_transitions=_capacity(size), limiter=limiter, seed=0)

    async def act(number: int) -> None:
        for _ in range(_EPISODES):
            episode_id = await buffer.start_episode("actor")
            for t in range(_EPISODE):
                await buffer.append_observation_action_reward(episode_id, _OBSERVATIONS[t], 0, 1.0)
                if yields:
                    await asyncio.sleep(0)
            await buffer.end_episode(episode_id, _OBSERVATIONS[-1])

    return _Crowd(act, lambda: buffer.sample_n_step(_BATCH, 3, 0.99), buffer.get_stats)


def _to_columns(peer: str, size: int, yields: bool, limiter: relive.RateLimiter | None) -> _Crowd:
    with own.kernels(own.KERNELS[peer]):
        ring = relive.RingReplayBuffer(_capacity(size), streams=size, n_step=3, limiter=limiter, seed=0)
    buffer = relive.AsyncReplayBuffer(ring)

    async def act(number: int) -> None:
        for _ in range(_EPISODES):
            for t in range(_EPISODE):
                step = (_OBSERVATIONS[t], 0, 1.0, _OBSERVATIONS[t + 1])
                await buffer.add(*step, terminated=t == _EPISODE - 1, stream=number)
                if yields:
                    await asyncio.sleep(0)

    return _Crowd(act, lambda: buffer.sample(_BATCH), buffer.get_stats)


_CROWDS = {"relive": _to_columns, "relive-numba": _to_columns, "relive-episodes": _to_episodes, "await": _awaiting}


def crowd(
    peer: str, size: int, *, yields: bool = False, learns: bool = False, limits: bool = False
) -> verification.Entrant:
    """Return coroutines that take 100 steps each, with a new buffer in every call.

    Args:
        peer: What they append to.
        size: How many there are.
        yields: Whether each lets the others run after a step, as one that awaits its environment does.
        learns: Whether a learner draws beside them, whenever it has a turn.
        limits: Whether a limiter holds them and the learner together: each step is drawn once on average.
    """
    steps = size * _EPISODES * _EPISODE

    async def run() -> Any:
        ratio = relive.SampleToInsertRatio(1.0, min_size=_LEAST, error_buffer=4.0 * _BATCH) if limits else None
        crowd = _CROWDS[peer](peer, size, yields, ratio)
        learner = asyncio.create_task(_draw(crowd.draw)) if learns and crowd.draw else None
        await asyncio.gather(*map(crowd.act, range(size)))
        if learner:
            learner.cancel()
            await asyncio.gather(learner, return_exceptions=True)
        return crowd.stats() if crowd.stats else None

    def check(stats: Any, findings: verification.Findings) -> None:
        least = steps - _LEAST - 8 * _BATCH if limits else int(learns)
        findings.add(1, {"steps": np.array([stats.appended != steps]), "samples": np.array([stats.sampled < least])})

    return verification.Entrant(lambda: asyncio.run(run()), check, steps=steps)


async def _draw(draw: Callable[[], _Work]) -> None:
    while True:
        await draw()


def appending(peer: str, episodes: int) -> verification.Entrant:
    """Return awaited appends to that many open episodes by turns."""
    buffer = relive.EpisodeReplayBuffer[int, int](seed=0)
    turns = itertools.cycle([buffer.start_episode_nowait("agent") for _ in range(episodes)])

    async def append() -> None:
        for episode_id in itertools.islice(turns, _APPENDS):
            await buffer.append_observation_action_reward(episode_id, 0, 0, 1.0)

    return verification.Entrant(lambda: asyncio.run(append()), steps=_APPENDS)
