"""LimiterService: the limiter of a whole fleet, learners that die, and a process that begins again."""

import asyncio
import collections
import random
from typing import Any

import pytest

import relive
from relive import errors
from relive.fleet import limiter_service
from relive.fleet import local_test

LEASE = 10.0


def ratio(value: float = 1.0, min_size: int = 10, error_buffer: float = 20.0) -> relive.SampleToInsertRatio:
    return relive.SampleToInsertRatio(value, min_size=min_size, error_buffer=error_buffer)


def turns_of(limiter: Any, inserted: int = 0, sampled: int = 0, size: int = 0) -> limiter_service.LimiterService:
    async def count() -> tuple[int, int, int]:
        await asyncio.sleep(1.0)
        return inserted, sampled, size

    return limiter_service.LimiterService(limiter, LEASE, count)


async def insert_until_held(line: limiter_service.LimiterService, rows: int = 1, most: int = 1000) -> int:
    """Return how many inserts pass before one is held up."""
    for count in range(most):
        if await line.insert_turn(rows) is None:
            return count
    return most


async def sample_until_held(
    line: limiter_service.LimiterService, size: int, batch_size: int = 1, most: int = 1000
) -> int:
    for count in range(most):
        if not await line.sample_turns(batch_size, 1, size):
            return count
    return most


async def test_batches_are_granted_as_if_requested_one_by_one() -> None:
    several, one_by_one = turns_of(ratio()), turns_of(ratio())
    for line in (several, one_by_one):
        assert await insert_until_held(line) == 30
    assert await several.sample_turns(3, 5, 30) == 5
    assert await several.sample_turns(3, 100, 30) == await sample_until_held(one_by_one, 30, 3) - 5
    assert await several.sample_turns(3, 100, 30) == 0
    assert await several.counts() == await one_by_one.counts()


class Twin:
    """The limiter's equation, and nothing else."""

    def __init__(self, limiter: relive.RateLimiter) -> None:
        self.limiter, self.inserted, self.sampled = limiter, 0, 0

    def may_insert(self, rows: int) -> bool:
        may = self.limiter.can_insert(size=self.inserted, inserted=self.inserted, sampled=self.sampled)
        self.inserted += rows * may
        return may

    def may_sample(self, batch_size: int) -> bool:
        may = self.inserted >= self.limiter.min_size and self.limiter.can_sample(
            batch_size, size=self.inserted, inserted=self.inserted, sampled=self.sampled
        )
        self.sampled += batch_size * may
        return may


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limiter", [ratio(), ratio(0.25, 3, 1.0), ratio(8.0, 20, 100.0), relive.MinSize(15)])
async def test_turns_are_those_of_the_limiter(limiter: Any, seed: int) -> None:
    rng, line, twin = random.Random(seed), turns_of(limiter), Twin(limiter)
    for _ in range(200):
        if rng.random() < 0.5:
            rows = rng.randrange(1, 6)
            assert await line.insert_turn(rows) == (rows if twin.may_insert(rows) else None)
        else:
            batch_size = rng.randrange(1, int(min(limiter.max_batch_size or 20, 20)) + 1)
            assert await line.sample_turns(batch_size, 1, twin.inserted) == twin.may_sample(batch_size)
    assert await line.counts() == (twin.inserted, twin.sampled)


async def test_a_waiter_goes_on_as_soon_as_the_other_side_moves() -> None:
    line = turns_of(ratio())
    now = asyncio.get_running_loop().time
    await insert_until_held(line)
    waiting = asyncio.create_task(line.insert_turn(1))
    await local_test.settle(0.5)
    assert not waiting.done()
    start = now()
    assert await line.sample_turns(1, 1, 30)
    assert await waiting
    assert now() == start
    await sample_until_held(line, 31)
    drawing = asyncio.create_task(line.sample_turns(1, 1, 31))
    await local_test.settle(0.5)
    assert not drawing.done()
    await line.insert_turn(1)
    assert await drawing


async def test_turns_are_granted_in_order_of_arrival() -> None:
    line, order = turns_of(ratio()), list[int]()
    await insert_until_held(line)

    async def insert(number: int) -> None:
        assert await line.insert_turn(1)
        order.append(number)

    waiting = [asyncio.create_task(insert(number)) for number in range(5)]
    await local_test.settle()
    for _ in range(5):
        assert await line.sample_turns(1, 1, 30)
    await asyncio.gather(*waiting)
    assert order == list(range(5))


async def test_a_batch_that_could_never_pass_is_refused() -> None:
    line = turns_of(ratio())
    with pytest.raises(errors.ArgumentError, match="batch_size must be at most 39 with SampleToInsertRatio"):
        await line.sample_turns(40, 1, 100)


def test_only_a_limiter_limits() -> None:
    with pytest.raises(errors.ArgumentTypeError, match="limiter must be a RateLimiter, got 3"):
        turns_of(3)


# Learners that are gone.


async def test_writers_wait_for_the_first_learner() -> None:
    line = turns_of(ratio())
    assert await insert_until_held(line) == 30
    await asyncio.sleep(10 * LEASE)
    assert await line.insert_turn(1) is None


async def test_a_dead_learner_holds_up_nobody_and_leaves_no_debt() -> None:
    line = turns_of(ratio())
    assert await insert_until_held(line) == 30
    assert await line.sample_turns(10, 1, 30)
    assert await insert_until_held(line) == 10
    await asyncio.sleep(LEASE - 1.5)
    assert await line.insert_turn(1) is None
    await asyncio.sleep(1.0)
    assert await insert_until_held(line) == 1000
    # As many samples as before, and not a thousand more.
    assert await sample_until_held(line, 1040, most=2000) == 40
    assert await line.counts() == (40, 50)
    assert await insert_until_held(line) == 40


async def test_a_waiting_learner_never_counts_as_dead() -> None:
    line = turns_of(ratio(min_size=1000))
    for _ in range(30):
        assert not await line.sample_turns(1, 1, 0)
    assert await insert_until_held(line, rows=100) == 11
    waiting = asyncio.create_task(line.sample_turns(30, 1, 1100))
    assert await waiting


async def test_a_cancelled_waiter_holds_up_nobody() -> None:
    line = turns_of(ratio())
    await insert_until_held(line)
    first, second = (asyncio.create_task(line.insert_turn(1)) for _ in range(2))
    await local_test.settle()
    first.cancel()
    assert await line.sample_turns(1, 1, 30)
    assert await second
    assert await line.counts() == (31, 1)
    await sample_until_held(line, 31)
    drawing, next_one = (asyncio.create_task(line.sample_turns(1, 1, 31)) for _ in range(2))
    await local_test.settle()
    drawing.cancel()
    assert await line.insert_turn(1)
    assert await next_one == 1
    assert await line.counts() == (32, 42)
    # A second later that learner counts as gone as if it had had its turn.
    await asyncio.sleep(LEASE + 0.1)
    assert await insert_until_held(line) == 1000


async def test_samples_given_back_may_be_drawn_by_others() -> None:
    line = turns_of(ratio())
    await insert_until_held(line)
    assert await line.sample_turns(39, 1, 30)
    waiting = asyncio.create_task(line.sample_turns(20, 1, 30))
    await local_test.settle()
    await line.give_back(39, 0)
    assert await waiting
    assert await line.counts() == (30, 20)


# A process that begins again.


async def test_a_restarted_limiter_goes_on_from_the_counts_of_shards() -> None:
    line = turns_of(ratio(), inserted=100, sampled=80, size=100)
    assert await line.counts() == (100, 80)
    assert await insert_until_held(line) == 10
    assert await sample_until_held(line, 110) == 40


async def test_concurrent_calls_wait_for_one_count() -> None:
    calls = collections.Counter[str]()

    async def count() -> tuple[int, int, int]:
        calls["count"] += 1
        await asyncio.sleep(1.0)
        return 100, 80, 100

    line = limiter_service.LimiterService(ratio(), LEASE, count)
    await asyncio.gather(*[line.insert_turn(1) for _ in range(5)], line.sample_turns(1, 1, 100))
    assert calls["count"] == 1
    assert await line.counts() == (105, 81)


async def test_a_failed_count_is_repeated_by_the_next_call() -> None:
    failures = [errors.ShardLostError("gone")]

    async def count() -> tuple[int, int, int]:
        if failures:
            raise failures.pop()
        return 100, 80, 100

    line = limiter_service.LimiterService(ratio(), LEASE, count)
    with pytest.raises(errors.ShardLostError):
        await line.insert_turn(1)
    assert await line.counts() == (100, 80)


@pytest.mark.parametrize("inserted", [120, 121, 500, 10**9])
async def test_inserts_without_a_learner_are_no_debt_after_a_restart(inserted: int) -> None:
    line = turns_of(ratio(), inserted=inserted, sampled=90, size=1000)
    assert await line.counts() == (min(inserted, 119) if inserted > 120 else 119, 90)
    assert await insert_until_held(line) == 1
    assert await sample_until_held(line, 1000, most=200) == 40


@pytest.mark.parametrize("sampled", [110, 111, 500, 10**9])
async def test_samples_of_lost_rows_are_no_debt_after_a_restart(sampled: int) -> None:
    line = turns_of(ratio(), inserted=100, sampled=sampled, size=100)
    assert await line.counts() == (100, 109)
    assert await sample_until_held(line, 100) == 1
    assert await insert_until_held(line) == 40


@pytest.mark.parametrize("counts", [(0, 0, 0), (5, 0, 5), (5, 300, 5), (100, 90, 100), (119, 90, 100), (100, 109, 100)])
async def test_counts_that_hold_up_nobody_are_not_changed(counts: tuple[int, int, int]) -> None:
    assert await turns_of(ratio(), *counts).counts() == counts[:2]


class Never(relive.RateLimiter):
    """Lets nothing pass."""

    def can_insert(self, *, size: int, inserted: int, sampled: int) -> bool:
        return False

    def can_sample(self, batch_size: int, *, size: int, inserted: int, sampled: int) -> bool:
        return False


async def test_a_limiter_that_allows_nothing_allows_no_insert() -> None:
    assert await turns_of(Never(), 100, 50, 100).counts() == (0, 50)
    assert await turns_of(Never(), 100, 50, 100).insert_turn(1) is None


async def test_an_earlier_learner_holds_up_nobody_after_a_restart() -> None:
    line = turns_of(ratio(), inserted=100, sampled=80, size=100)
    assert await insert_until_held(line) == 10
    await asyncio.sleep(LEASE)
    assert await insert_until_held(line) == 1000
