"""Limiters whose answer changes from one question to the next, as one that reads a clock: one question, one answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
import contextlib
import random
import threading
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors

PATIENCE = 60.0
"""Seconds after which a test has hung."""


class Fickle(relive.RateLimiter):
    """A limiter with a list of answers, given one after the other, over and over."""

    def __init__(self, answers: list[bool]) -> None:
        self.answers, self.asked = answers, 0

    def _next(self) -> bool:
        self.asked += 1
        return self.answers[(self.asked - 1) % len(self.answers)]

    def can_insert(self, *, size: int, inserted: int, sampled: int) -> bool:
        """Return the next answer."""
        return self._next()

    def can_sample(self, batch_size: int, *, size: int, inserted: int, sampled: int) -> bool:
        """Return the next answer."""
        return self._next()


def coins(seed: int) -> list[bool]:
    rng = random.Random(seed)
    return [rng.random() < 0.5 for _ in range(997)]


async def wake(shell: Any) -> None:
    """Let all callers that wait ask again, over and over."""
    while True:
        shell.set_eligible([], True)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def woken(shell: Any) -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE):
        waker = asyncio.create_task(wake(shell))
        try:
            yield
        finally:
            waker.cancel()


def rows(t: int) -> dict[str, Any]:
    """Return one step of two streams, numbered."""
    return {"observation": [t, t], "action": [0, 0], "reward": [1.0, 1.0], "next_observation": [t + 1, t + 1]}


def run(t: int) -> dict[str, Any]:
    return {"observations": [t, t + 0.5, t + 1], "actions": [0, 0], "rewards": [1.0, 1.0]}


WRITES: dict[str, tuple[Callable[[Any, int], Any], int]] = {
    "add": (lambda shell, t: shell.add(t, 0, 1.0, t + 1, stream=t % 2), 1),
    "extend": (lambda shell, t: shell.extend(**rows(t)), 2),
    "add_steps": (lambda shell, t: shell.add_steps(**run(t), stream=0), 2),
    "add_episode": (lambda shell, t: shell.add_episode(**run(t), terminated=True, stream=1), 2),
}


def ring(answers: list[bool], capacity: int = 100_000, **settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(capacity, streams=2, limiter=Fickle(answers), seed=0, **settings)


def check_row(buffer: Any, key: int, observation: float) -> None:
    assert buffer.read([key]).observation.tolist() == [observation]


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("first", [True, False])
def test_every_awaited_write_happens_once(name: str, first: bool) -> None:
    write, count = WRITES[name]

    async def main() -> None:
        buffer = ring([first, not first])
        shell = relive.AsyncReplayBuffer(buffer)
        async with woken(shell):
            for t in range(100):
                key = np.asarray(await write(shell, t)).reshape(-1)
                assert key.tolist() == list(range(count * t, count * (t + 1)))
                check_row(buffer, int(key[0]), t)
        buffer.check()

    asyncio.run(main())


DRAWS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "sample": lambda shell: shell.sample(4),
    "sample_keys": lambda shell: shell.sample_keys(4),
    "batches": lambda shell: anext(shell.batches(4)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("answers", [[True, False], [False, True], coins(1)])
def test_every_awaited_draw_happens_once(name: str, answers: list[bool]) -> None:
    async def main() -> None:
        buffer, twin = ring(answers), relive.RingReplayBuffer(100_000, streams=2, seed=0)
        shell = relive.AsyncReplayBuffer(buffer)
        for each in (buffer, twin):
            with contextlib.suppress(errors.NotReadyError):
                while each.appended < 10:
                    each.add(each.appended, 0, 1.0, 0.0, stream=0)
        async with woken(shell):
            while buffer.appended < 10:
                await shell.add(buffer.appended, 0, 1.0, 0.0, stream=0)
            for _ in range(100):
                drawn, wanted = await DRAWS[name](shell), twin.sample_keys(4)
                assert (drawn if name == "sample_keys" else drawn.keys).tolist() == wanted.tolist()
        assert buffer.get_stats().sampled == 400

    asyncio.run(main())


@hypothesis.given(answers=st.lists(st.booleans(), min_size=1, max_size=12).filter(any), actors=st.integers(1, 4))
@hypothesis.settings(max_examples=25, deadline=None)
def test_concurrent_actors_store_each_step_once(answers: list[bool], actors: int) -> None:
    async def main() -> None:
        buffer = ring(answers)
        shell = relive.AsyncReplayBuffer(buffer)
        keys: dict[int, float] = {}

        async def act(actor: int) -> None:
            for t in range(20):
                keys[await shell.add(1000 * actor + t, 0, 1.0, 0.0, stream=actor % 2)] = 1000 * actor + t

        async with woken(shell), asyncio.TaskGroup() as group:
            for actor in range(actors):
                group.create_task(act(actor))
        assert len(keys) == buffer.appended == 20 * actors
        for key, observation in keys.items():
            check_row(buffer, key, observation)

    asyncio.run(main())


async def test_a_wrong_step_is_refused_although_the_limiter_opens() -> None:
    buffer = ring([False, True])
    shell = relive.AsyncReplayBuffer(buffer)
    with pytest.raises(errors.ArgumentError, match="reward must be finite"):
        await shell.add(0.0, 0, float("nan"), stream=0)
    assert buffer.appended == 0


class Choosy(relive.RingReplayBuffer):
    """Decides itself when steps may be added, without a limiter that holds any back."""

    is_open = False

    def can_insert(self) -> bool:
        """Return whether it was opened."""
        return self.is_open


async def test_a_buffer_that_decides_itself_stores_a_step_once() -> None:
    buffer = Choosy(10, seed=0)
    shell = relive.AsyncReplayBuffer(buffer)
    waiter = asyncio.create_task(shell.add(0.0, 0, 1.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert buffer.appended == 0
    buffer.is_open = True
    shell.set_eligible([], True)
    assert await waiter == 0
    assert buffer.appended == 1


async def test_a_joint_step_is_stored_once() -> None:
    buffer = relive.JointReplayBuffer(100, agents=["a", "b"], limiter=Fickle([False, True, True]), seed=0)
    shell = relive.AsyncReplayBuffer(buffer)
    async with woken(shell):
        for t in range(20):
            now, later = {"a": float(t), "b": 0.0}, {"a": t + 1.0, "b": 0.0}
            assert await shell.add(now, {"a": 0, "b": 1}, {"a": 1.0, "b": 1.0}, later) == t
    assert buffer.appended == 20


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("answers", [[False, False, True], coins(2)])
def test_threads_store_each_step_once(name: str, answers: list[bool]) -> None:
    write, count = WRITES[name]
    buffer = ring(answers)
    shell = relive.ThreadSafeReplayBuffer(buffer, timeout=PATIENCE)
    is_over = threading.Event()

    def wake_threads() -> None:
        while not is_over.wait(1e-4):
            shell.set_eligible([], True)

    waker = threading.Thread(target=wake_threads)
    waker.start()
    try:
        for t in range(40):
            key = np.asarray(write(shell, t)).reshape(-1)
            assert key.tolist() == list(range(count * t, count * (t + 1)))
            check_row(buffer, int(key[0]), t)
        draws = shell.batches(4, prefetch=0)
        for number in range(20):
            shell.sample(4)
            next(draws)
            assert buffer.get_stats().sampled == 8 * (number + 1)
    finally:
        is_over.set()
        waker.join()
