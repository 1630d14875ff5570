import asyncio
from collections.abc import Callable, Coroutine
import copy
import pickle

import pytest

from relive.limits import gate
from relive.testing import zoo

settle = zoo.settle
PATIENCE = 60.0
"""Seconds after which a test has hung."""


class Tokens:
    """Tokens to take, and a queue in front of them."""

    def __init__(self) -> None:
        self.left = 0
        self.queue = gate.FairCondition()
        self.taken: list[str] = []
        self.asked = 0

    def ready(self) -> bool:
        self.asked += 1
        return self.left > 0

    async def take(self, name: str) -> None:
        await self.queue.wait_for(self.ready)
        assert self.left > 0
        self.left -= 1
        self.taken.append(name)

    def give(self, count: int) -> None:
        self.left += count
        self.queue.notify()


def start(tokens: Tokens, names: str) -> dict[str, asyncio.Task[None]]:
    return {name: asyncio.create_task(tokens.take(name)) for name in names}


async def test_waiters_woken_together_are_served_in_one_pass() -> None:
    tokens = Tokens()
    tasks = start(tokens, "abcde")
    await settle()
    tokens.left = 3
    tokens.queue.notify(4)
    await asyncio.sleep(0)
    assert tokens.taken == ["a", "b", "c"]
    tokens.give(2)
    await asyncio.gather(*tasks.values())
    assert tokens.taken == ["a", "b", "c", "d", "e"]


def test_a_waiter_whose_loop_was_closed_is_dropped() -> None:
    tokens = Tokens()
    loop = asyncio.new_event_loop()
    stuck = [tokens.queue.wait_for(tokens.ready) for _ in range(2)]
    for coroutine in stuck:

        async def drive(coroutine: Coroutine[None, None, None] = coroutine) -> None:
            coroutine.send(None)

        loop.run_until_complete(drive())
    loop.close()
    assert len(tokens.queue.waiting) == 2
    tokens.give(1)
    assert len(tokens.queue.waiting) == 0

    async def take_and_wait() -> None:
        await tokens.take("a")  # Nobody is before it.
        waiting = start(tokens, "b")["b"]
        await settle()
        for coroutine in stuck:
            coroutine.close()
        await settle()
        assert len(tokens.queue.waiting) == 1
        tokens.give(1)
        await waiting

    asyncio.run(take_and_wait())
    assert tokens.taken == ["a", "b"]


async def test_a_newcomer_does_not_overtake() -> None:
    tokens = Tokens()
    tasks = start(tokens, "a")
    await settle()
    tokens.give(1)
    newcomer = asyncio.create_task(tokens.take("b"))
    await settle()
    assert tokens.taken == ["a"]
    tokens.give(1)
    await newcomer
    await tasks["a"]


async def test_only_the_first_in_the_queue_is_asked() -> None:
    """A wake-up costs the same whether ten wait or ten thousand."""
    tokens = Tokens()
    tasks = start(tokens, "abcdefgh")
    await settle()
    tokens.asked = 0
    for _ in range(5):
        tokens.queue.notify()
        await settle()
    assert tokens.asked == 5
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("victim", ["a", "b", "c"])
async def test_a_cancelled_waiter_leaves_no_trace(victim: str) -> None:
    tokens = Tokens()
    tasks = start(tokens, "abc")
    await settle()
    tasks[victim].cancel()
    await settle()
    tokens.give(2)
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert tokens.taken == [name for name in "abc" if name != victim]
    assert len(tokens.queue.waiting) == 0


async def test_a_waiter_cancelled_after_its_wake_up_passes_it_on() -> None:
    tokens = Tokens()
    tasks = start(tokens, "ab")
    await settle()
    tokens.give(1)
    tasks["a"].cancel()
    async with asyncio.timeout(PATIENCE):
        await tasks["b"]
    assert tokens.taken == ["b"]


async def test_every_waiter_raises_what_ready_raises() -> None:
    queue = gate.FairCondition()
    answer: Callable[[], bool] = lambda: False  # noqa: E731
    tasks = [asyncio.create_task(queue.wait_for(lambda: answer())) for _ in range(3)]
    await settle()

    def fail() -> bool:
        raise RuntimeError("closed")

    answer = fail
    queue.notify()
    assert [str(error) for error in await asyncio.gather(*tasks, return_exceptions=True)] == ["closed"] * 3
    assert len(queue.waiting) == 0


async def test_a_waiter_that_steps_aside_keeps_its_place() -> None:
    tokens = Tokens()
    special = 0

    async def take_special() -> None:
        await tokens.queue.wait_for(lambda: special > 0, blocks=lambda: False)
        tokens.taken.append("special")

    first = asyncio.create_task(take_special())
    await settle()
    tasks = start(tokens, "ab")
    await settle()
    tokens.give(1)
    await settle()
    assert tokens.taken == ["a"]  # "b" waits behind both.
    special = 1
    tokens.give(1)
    await asyncio.gather(first, tasks["b"])
    assert tokens.taken == ["a", "special", "b"]
    assert len(tokens.queue.waiting) == 0


async def test_a_woken_waiter_is_not_overtaken() -> None:
    tokens = Tokens()
    special = 0

    async def take_special() -> None:
        await tokens.queue.wait_for(lambda: special > 0, blocks=lambda: False)
        tokens.taken.append("special")

    newcomer = tokens.take("a")
    first = asyncio.create_task(take_special())
    await settle()
    special = 1
    tokens.give(1)
    await newcomer  # It comes before `first` has had the time to ask.
    await first
    assert tokens.taken == ["special", "a"]


async def test_a_waiter_may_begin_to_step_aside_and_may_stop() -> None:
    tokens = Tokens()
    blocks = True
    first = asyncio.create_task(tokens.queue.wait_for(lambda: False, blocks=lambda: blocks))
    tasks = start(tokens, "ab")
    await settle()
    tokens.give(1)
    await settle()
    assert tokens.taken == []
    blocks = False
    tokens.queue.notify()
    await settle()
    assert tokens.taken == ["a"]
    blocks = True
    tokens.give(1)
    await settle()
    assert tokens.taken == ["a"]
    first.cancel()
    await tasks["b"]


async def test_a_given_waiter_is_in_the_queue_while_it_waits() -> None:
    tokens = Tokens()
    name = "the caller"
    waiting = asyncio.create_task(tokens.queue.wait_for(tokens.ready, waiter=name))
    await settle()
    assert list(tokens.queue.waiting) == [name]
    tokens.give(1)
    await waiting


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda queue: pickle.loads(pickle.dumps(queue))])
async def test_nobody_waits_at_a_copy(copied: Callable[[gate.FairCondition], gate.FairCondition]) -> None:
    tokens = Tokens()
    waiting = start(tokens, "a")["a"]
    await settle()
    assert len(copied(tokens.queue).waiting) == 0
    tokens.give(1)
    await waiting
