"""The buffers of a soak: how the actors write to each and its learner draws, and what their calls have done."""

import abc
import asyncio
from collections.abc import Coroutine
import pathlib
import random
from typing import Any, TypeAlias

import numpy as np

import relive

Work: TypeAlias = Coroutine[Any, Any, None]

_BATCH = 64
_LONGEST = 50
_OBSERVATIONS = list(np.arange(4 * (_LONGEST + 1), dtype=np.float32).reshape(-1, 4))


class Soaked(abc.ABC):
    """A buffer in a soak, and what the calls that returned have done with it.

    Args:
        buffer: What the actors write to; awaited.

    Attributes:
        appended: Steps.
        sampled: Samples.
    """

    def __init__(self, buffer: Any) -> None:
        self.appended = self.sampled = 0
        self._buffer = buffer
        self._mark = 0
        self._is_there = asyncio.Event()

    @abc.abstractmethod
    def act(self, place: int) -> Work:
        """Write without end; no other actor have that place."""

    @abc.abstractmethod
    def learn(self) -> Work:
        """Draw without end."""

    @abc.abstractmethod
    def save(self, path: pathlib.Path) -> None:
        """Save the buffer, while everybody waits."""

    @abc.abstractmethod
    def complaint(self, path: pathlib.Path) -> str:
        """Check the buffer and its checkpoint, and return which counter does not add up; nothing if all do."""

    def close(self) -> None:
        """Close the buffer."""
        self._buffer.close()

    def count_step(self) -> None:
        """Count a step whose call has returned."""
        self.appended += 1
        if self.appended == self._mark:
            self._is_there.set()

    async def until(self, steps: int) -> None:
        """Return when so many steps were appended."""
        self._mark = steps
        self._is_there.clear()
        if self.appended < steps:
            await self._is_there.wait()


class Episodes(Soaked):
    """Episodes of arrays and dicts, of 1 to 50 steps.

    Args:
        capacity: Transitions stored.
        actors: How many write.
        seed: Of what is done.
    """

    def __init__(self, capacity: int, actors: int, seed: int) -> None:
        self._episodes = relive.EpisodeReplayBuffer[Any, Any](
            max_transitions=capacity, limiter=_limiter(capacity), seed=seed
        )
        super().__init__(self._episodes)
        self._rng = random.Random(seed)

    async def act(self, place: int) -> None:
        """Live one episode after the other."""
        rng = self._rng
        while True:
            async with self._episodes.episode(f"actor-{place}") as writer:
                for t in range(rng.randint(1, _LONGEST)):
                    await writer.append(_OBSERVATIONS[t], {"move": t}, float(t))
                    self.count_step()
                await writer.end(_OBSERVATIONS[-1], rng.choice(("COMPLETED", "TRUNCATED")))

    async def learn(self) -> None:
        """Draw batches of 3-step samples."""
        while True:
            self.sampled += len(await self._episodes.sample_n_step(_BATCH, 3, 0.99))

    def save(self, path: pathlib.Path) -> None:
        """Save the buffer."""
        self._episodes.save(path)

    def complaint(self, path: pathlib.Path) -> str:
        """Check the buffer and its checkpoint, and return which counter does not add up; nothing if all do."""
        self._episodes.check()
        relive.EpisodeReplayBuffer[Any, Any].load(path).check()
        stats = self._episodes.get_stats()
        kept = stats.total_transitions + stats.waiting_steps
        gone = stats.evicted_transitions + stats.aborted_steps + stats.cleared_steps
        return _differences(
            ("appended", stats.appended, self.appended),
            ("sampled", stats.sampled, self.sampled),
            ("stored and gone", kept + gone, self.appended),
            ("left open", stats.in_progress, 0),
        )


class Columns(Soaked):
    """Steps of a RingReplayBuffer or a PrioritizedReplayBuffer, a stream an actor, behind an AsyncReplayBuffer.

    Args:
        kind: The class.
        capacity: Steps stored.
        actors: How many write.
        seed: Of what is done.
    """

    def __init__(
        self,
        kind: type[relive.RingReplayBuffer] | type[relive.PrioritizedReplayBuffer],
        capacity: int,
        actors: int,
        seed: int,
    ) -> None:
        self._inside = kind(capacity, streams=actors, n_step=3, limiter=_limiter(capacity), seed=seed)
        self._shell = relive.AsyncReplayBuffer(self._inside)
        super().__init__(self._shell)
        self._rng = random.Random(seed)

    async def act(self, place: int) -> None:
        """Live one episode after the other; the one that is open when it is cancelled is truncated."""
        rng = self._rng
        try:
            while True:
                last = rng.randrange(_LONGEST)
                for t in range(last + 1):
                    step = (_OBSERVATIONS[t], t, float(t), _OBSERVATIONS[t + 1])
                    await self._shell.add(*step, terminated=t == last, stream=place)
                    self.count_step()
        finally:
            self._shell.end_episode(stream=place)

    async def learn(self) -> None:
        """Draw batches, and give what it drew new priorities, where there are some."""
        rng = np.random.default_rng(self._rng.getrandbits(32))
        while True:
            batch = await self._shell.sample(_BATCH)
            self.sampled += len(batch.keys)
            if self._inside.has_priorities:
                self._shell.update_priorities(batch.keys, rng.random(_BATCH))

    def save(self, path: pathlib.Path) -> None:
        """Save the buffer."""
        self._inside.save(path)

    def complaint(self, path: pathlib.Path) -> str:
        """Check the buffer and its checkpoint, and return which counter does not add up; nothing if all do."""
        self._inside.check()
        type(self._inside).load(path).check()
        stats = self._inside.get_stats()
        return _differences(
            ("appended", stats.appended, self.appended),
            ("sampled", stats.sampled, self.sampled),
            ("stored and evicted", len(self._inside) + stats.evicted, self.appended),
            ("spliced", stats.spliced_episodes, 0),
        )


def _limiter(capacity: int) -> relive.RateLimiter:
    """Return what holds actors and learner together: a sample for two steps."""
    return relive.SampleToInsertRatio(0.5, min_size=capacity // 10, error_buffer=4.0 * _BATCH)


def _differences(*counts: tuple[str, int, int]) -> str:
    """Return which counts are not what they should be, in words."""
    return "; ".join(f"{name}: {found:,}, not {right:,}" for name, found, right in counts if found != right)
