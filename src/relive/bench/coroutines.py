"""What a step costs where many coroutines append at once, and what draws and appends cost as episodes become many."""

import asyncio
from collections.abc import Callable, Coroutine
import dataclasses
import itertools
from typing import Any, TypeAlias

import numpy as np

import relive
from relive.bench import verification

_EPISODE, _EPISODES = 50, 2
"""Steps of an episode, and how many of them a coroutine lives through."""
_STORED, _LEAST, _BATCH, _APPENDS = 50_000, 500, 256, 2_000
_OBSERVATIONS: list[Any] = list(np.arange(4 * (_EPISODE + 1), dtype=np.float32).reshape(-1, 4))

_Work: TypeAlias = Coroutine[Any, Any, None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Crowd:
    """Those who run at once.

    Attributes:
        act: Returns what a coroutine does, by its number.
        draw: Returns an awaited draw, where there is something to draw from.
        stats: Returns the statistics of the buffer, where there is one.
    """

    act: Callable[[int], _Work]
    draw: Callable[[], Coroutine[Any, Any, object]] | None = None
    stats: Callable[[], Any] | None = None


def _capacity(size: int) -> int:
    """Return how many steps a buffer stores, so that it evicts before all were taken."""
    return min(_STORED, size * _EPISODES * _EPISODE // 2)


def _awaiting(size: int, yields: bool, limiter: relive.RateLimiter | None) -> _Crowd:
    async def nothing() -> None:
        pass

    async def act(number: int) -> None:
        for _ in range(_EPISODES * _EPISODE):
            await nothing()
            if yields:
                await asyncio.sleep(0)

    return _Crowd(act=act)


def _to_episodes(size: int, yields: bool, limiter: relive.RateLimiter | None) -> _Crowd:
    buffer = relive.EpisodeReplayBuffer[Any, int](max_transitions=_capacity(size), limiter=limiter, seed=0)

    async def act(number: int) -> None:
        for _ in range(_EPISODES):
            episode_id = await buffer.start_episode("actor")
            for t in range(_EPISODE):
                await buffer.append_observation_action_reward(episode_id, _OBSERVATIONS[t], 0, 1.0)
                if yields:
                    await asyncio.sleep(0)
            await buffer.end_episode(episode_id, _OBSERVATIONS[-1])

    return _Crowd(act=act, draw=lambda: buffer.sample_n_step(_BATCH, 3, 0.99), stats=buffer.get_stats)


def _to_columns(size: int, yields: bool, limiter: relive.RateLimiter | None) -> _Crowd:
    buffer = relive.AsyncReplayBuffer(
        relive.RingReplayBuffer(_capacity(size), streams=size, n_step=3, limiter=limiter, seed=0)
    )

    async def act(number: int) -> None:
        for _ in range(_EPISODES):
            for t in range(_EPISODE):
                step = (_OBSERVATIONS[t], 0, 1.0, _OBSERVATIONS[t + 1])
                await buffer.add(*step, terminated=t == _EPISODE - 1, stream=number)
                if yields:
                    await asyncio.sleep(0)

    return _Crowd(act=act, draw=lambda: buffer.sample(_BATCH), stats=buffer.get_stats)


_CROWDS = {"relive": _to_columns, "relive-episodes": _to_episodes, "await": _awaiting}


def crowd(
    size: int, peer: str, *, yields: bool = False, learns: bool = False, limits: bool = False
) -> verification.Entrant:
    """Return coroutines that take 100 steps each, with a new buffer in every call.

    Args:
        size: How many there are.
        peer: What they append to.
        yields: Whether each lets the others run after a step, as one that awaits its environment does.
        learns: Whether a learner draws beside them, whenever it has a turn.
        limits: Whether a limiter holds them and the learner together: each step is drawn once on average.
    """
    steps = size * _EPISODES * _EPISODE

    async def run() -> Any:
        ratio = relive.SampleToInsertRatio(1.0, min_size=_LEAST, error_buffer=4.0 * _BATCH) if limits else None
        crowd = _CROWDS[peer](size, yields, ratio)
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


async def _draw(draw: Callable[[], Coroutine[Any, Any, object]]) -> None:
    while True:
        await draw()


def _with_episodes(episodes: int, steps: int, is_open: bool) -> tuple[relive.EpisodeReplayBuffer[int, int], list[str]]:
    """Return a buffer with that many episodes of that many steps, and their ids."""
    buffer = relive.EpisodeReplayBuffer[int, int](seed=0)
    ids = [buffer.start_episode_nowait("agent") for _ in range(episodes)]
    for episode_id in ids:
        for t in range(steps):
            buffer.append_observation_action_reward_nowait(episode_id, t, t, float(t))
        if not is_open:
            buffer.end_episode_nowait(episode_id, steps)
    return buffer, ids


def drawing(episodes: int) -> verification.Entrant:
    """Return a draw of 256 from a million transitions in that many finished episodes: of 10,000 steps at most."""
    buffer, _ = _with_episodes(episodes, min(10_000, 1_000_000 // episodes), is_open=False)

    def check(samples: list[relive.ReplaySample[int, int]], findings: verification.Findings) -> None:
        starts, steps = (np.array([getattr(one, name) for one in samples]) for name in ("start_step", "actual_n"))
        is_wrong = [one.observation != one.start_step or one.action != one.start_step for one in samples]
        following = np.array([one.next_observation for one in samples])
        findings.add(len(samples), {"observation": np.array(is_wrong), "next observation": following != starts + steps})

    return verification.Entrant(lambda: buffer.sample_n_step_nowait(_BATCH, 3, 0.99), check)


def appending(episodes: int) -> verification.Entrant:
    """Return awaited appends to that many open episodes by turns."""
    buffer, ids = _with_episodes(episodes, 2, is_open=True)
    turns = itertools.cycle(ids)

    async def append() -> None:
        for episode_id in itertools.islice(turns, _APPENDS):
            await buffer.append_observation_action_reward(episode_id, 0, 0, 1.0)

    return verification.Entrant(lambda: asyncio.run(append()), steps=_APPENDS)
