"""What sharing between tasks has beside `waiting_test`: turns, arrays that change, event loops, saving, types."""

import asyncio
import pathlib
import threading
from typing import Any, assert_type

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.testing import zoo
from relive.waiting import waiting_test

Shell = relive.AsyncReplayBuffer[Any]


def ring(capacity: int = 100, **settings: Any) -> Shell:
    return relive.AsyncReplayBuffer(waiting_test.ring(capacity, **settings))


async def live(buffer: Shell, steps: int, first: int = 0) -> None:
    """Add complete steps; observation t is followed by t + 1."""
    for t in range(first, first + steps):
        await buffer.add(t, 0, 1.0, t + 1)


# What a batch waits for.


async def test_awaited_draws_pass_their_options_on() -> None:
    buffer = ring(n_step=2, gamma=0.5)
    await live(buffer, 3)
    batch = await waiting_test.in_time(buffer.sample(batch_size=1, n_step=1, gamma=1.0))
    assert batch.next_discount.tolist() == [1.0]
    assert (await waiting_test.in_time(buffer.sample_keys(batch_size=5))).shape == (5,)
    assert buffer.get_stats().sampled == 6


# Turns.


async def test_small_batches_do_not_overtake() -> None:
    buffer = ring(max_times_sampled=1)
    served = []

    async def learn(size: int) -> None:
        served.append(len(await buffer.sample(size)))

    tasks = [asyncio.create_task(learn(size)) for size in (4, 1, 3, 2)]
    await zoo.settle()
    for t in range(10):
        assert served == [[], [], [], [], [4], [4, 1], [4, 1], [4, 1], [4, 1, 3], [4, 1, 3]][t]
        await live(buffer, 1, first=t)
        await zoo.settle()
    await waiting_test.in_time(asyncio.gather(*tasks))
    assert served == [4, 1, 3, 2]


# Wrong arguments.


async def test_a_step_is_checked_when_its_turn_comes() -> None:
    """Who comes first says what a step holds; a caller that gave way meanwhile is checked anew."""
    buffer = ring()
    waiting_test.give_way_next(buffer)
    late = asyncio.create_task(buffer.add([0.5], 0, 1.0, [0.5]))
    await asyncio.sleep(0)
    await live(buffer, 1)
    with pytest.raises(errors.SchemaError, match=r"^observation must be of shape \(\), got \(1,\)$"):
        await waiting_test.in_time(late)
    await live(buffer, 1, first=1)
    assert buffer.eligible_keys().tolist() == [0, 1]


class Alien:
    """An array of another library."""

    def __init__(self, *values: float) -> None:
        self.values = np.array(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


class Refusing:
    """An array of another library that cannot be read now."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("call detach first")


@pytest.mark.parametrize("must_wait", [True, False], ids=["held back", "giving way"])
async def test_arrays_are_copied_when_an_insert_begins(must_wait: bool) -> None:
    buffer = relive.AsyncReplayBuffer(waiting_test.limited() if must_wait else waiting_test.ring())
    frame, arm, alien, pair = np.zeros(2), [0.0, 0.0], Alien(0.0, 0.0), [Alien(1.0), Alien(2.0)]
    action, extra = [0, 0], np.zeros((), np.int64)
    observation = {"frame": frame, "deep": {"arm": arm, "alien": alien, "pair": pair}}
    twin = {"frame": np.ones(2), "deep": {"arm": (1.0, 1.0), "alien": np.ones(2), "pair": np.ones((2, 1))}}
    for _ in range(8 if must_wait else 1):
        await buffer.add(observation, action, 1.0, twin, extra=extra)
    waiting_test.give_way_next(buffer)
    waiter = asyncio.create_task(
        buffer.add(observation, action, np.float64(2.0), next_observation=twin, terminated=np.True_, extra=extra)
    )
    await asyncio.sleep(0)
    assert not waiter.done()
    frame[:], arm[0], alien.values[0], pair[1].values[0], action[0], extra[()] = 9.0, 9.0, 9.0, 9.0, 9, 9
    observation["frame"] = np.full(2, 9.0)
    if must_wait:
        await zoo.settle()
        await buffer.sample(2)
    batch = buffer.read([await waiting_test.in_time(waiter)])
    assert batch.observation["frame"].tolist() == [[0.0, 0.0]]
    assert batch.observation["deep"]["arm"].tolist() == [[0.0, 0.0]]
    assert batch.observation["deep"]["alien"].tolist() == [[0.0, 0.0]]
    assert batch.observation["deep"]["pair"].tolist() == [[[1.0], [2.0]]]
    assert batch.action.tolist() == [[0, 0]]
    assert batch.extras["extra"].tolist() == [0]
    assert (batch.reward.tolist(), batch.is_terminal.tolist()) == ([2.0], [True])


@pytest.mark.parametrize("gives_way", [False, True])
@pytest.mark.parametrize("given", [Refusing(), np.ma.masked_equal([1, 2], 2)], ids=["refusing", "masked"])
async def test_unreadable_arrays_are_refused_by_awaited_inserts(given: Any, gives_way: bool) -> None:
    buffer = ring()
    if gives_way:
        waiting_test.give_way_next(buffer)
    with pytest.raises(errors.SchemaError, match="must be an array of numbers, of text or of dates, got "):
        await waiting_test.in_time(buffer.add(given, 0, 1.0))
    assert len(buffer) == 0


# The question.


@st.composite
def actions(draw: st.DrawFn) -> tuple[str, int]:
    verb = draw(
        st.sampled_from(["add", "add", "add", "end", "sample", "sample", "bar", "allow", "rate", "zero", "clear"])
    )
    return verb, draw(st.integers(1, 12))


@hypothesis.given(
    steps=st.lists(actions(), max_size=40),
    limiter=st.sampled_from([None, relive.MinSize(3), relive.SampleToInsertRatio(1.5, min_size=2, error_buffer=6.0)]),
    most=st.sampled_from([None, 2, 3]),
)
def test_can_insert_and_can_sample_say_what_calls_will_do(
    steps: list[tuple[str, int]], limiter: relive.RateLimiter | None, most: int | None
) -> None:
    inside = waiting_test.prioritized(8, limiter=limiter, max_times_sampled=most)
    for verb, number in steps:
        state, stats = inside.rng.bit_generator.state, inside.get_stats()
        may_insert = inside.can_insert()
        may_sample = None
        if number <= (inside.limiter.max_batch_size or number):
            may_sample = inside.can_sample(number)
        assert inside.rng.bit_generator.state == state
        assert inside.get_stats() == stats
        try:
            if verb == "add":
                inside.add(number, 0, 1.0)
            elif verb == "end":
                inside.add(number, 0, 1.0, terminated=True)
            elif verb == "sample":
                inside.sample(number)
            elif verb in ("bar", "allow"):
                inside.set_eligible(inside.eligible_keys()[:number] if verb == "bar" else range(400), verb == "allow")
            elif verb in ("rate", "zero"):
                count = inside.appended
                inside.update_priorities(range(count), np.full(count, float(number) if verb == "rate" else 0.0))
            else:
                inside.clear()
        except errors.NotReadyError:
            assert (verb in ("add", "end") and not may_insert) or (verb == "sample" and may_sample is False)
            assert inside.rng.bit_generator.state == state
            assert inside.get_stats() == stats
        except errors.ArgumentError:
            assert verb == "sample"
            assert may_sample is None
            with pytest.raises(errors.ArgumentError, match="^batch_size must be at most"):
                inside.can_sample(number)
        else:
            assert may_insert or verb not in ("add", "end")
            assert may_sample or verb != "sample"
    inside.check()


# The end.


def test_a_second_open_event_loop_is_refused(tmp_path: pathlib.Path) -> None:
    buffer = ring()
    with asyncio.Runner() as first:
        first.run(live(buffer, 2))
        for call in (live(buffer, 1), buffer.sample(1), buffer.sample_keys(1), buffer.save(tmp_path / "saved")):
            with pytest.raises(
                errors.EventLoopError,
                match="^buffer belongs to another event loop: use one buffer in one loop, or the RingReplayBuffer ins",
            ):
                asyncio.run(call)
    assert buffer.read([0]).observation.tolist() == [0]
    assert len(buffer.buffer.sample(3)) == 3
    assert not list(tmp_path.iterdir())


def test_the_next_event_loop_takes_over_from_a_closed_one(tmp_path: pathlib.Path) -> None:
    buffer = ring()

    async def sample(steps: int) -> int:
        learner = asyncio.create_task(buffer.sample(3))
        await zoo.settle()
        await live(buffer, steps)
        return len((await waiting_test.in_time(learner)).keys)

    async def wait() -> None:
        task = asyncio.create_task(buffer.sample(3))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        left.append(task)
        await zoo.settle()

    left: list[asyncio.Task[Any]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    loop.close()
    assert waiting_test.num_waiting(buffer) == (0, 1)
    assert [asyncio.run(sample(steps)) for steps in (5, 1)] == [3, 3]
    buffer.close()
    for _ in range(2):
        asyncio.run(buffer.save(tmp_path / "saved", keep=2))
    assert relive.RingReplayBuffer.load(tmp_path / "saved.1").appended == 6
    assert waiting_test.num_waiting(buffer) == (0, 0)


# Saving.


async def test_tasks_go_on_while_a_snapshot_is_saved(tmp_path: pathlib.Path) -> None:
    buffer = ring(6)
    await live(buffer, 5)
    before = zoo.plain(buffer.state_dict())
    may_go_on, writers = threading.Event(), set[int]()

    def progress(count: int, total: int) -> None:
        writers.add(threading.get_ident())
        assert may_go_on.wait(waiting_test.PATIENCE)

    saving = asyncio.create_task(buffer.save(tmp_path / "saved", progress=progress))
    await zoo.settle()
    await live(buffer, 5, first=5)
    await buffer.sample(3)
    assert not saving.done()
    may_go_on.set()
    await waiting_test.in_time(saving)
    assert writers == writers - {threading.get_ident()} != set()
    loaded = relive.RingReplayBuffer.load(tmp_path / "saved")
    assert zoo.plain(loaded.state_dict()) == before
    assert zoo.plain(buffer.state_dict()) != before


def test_a_cancelled_save_is_still_written(tmp_path: pathlib.Path) -> None:
    buffer = ring()
    begun, may_go_on = threading.Event(), threading.Event()

    def progress(count: int, total: int) -> None:
        begun.set()
        assert may_go_on.wait(waiting_test.PATIENCE)

    async def save_and_cancel() -> None:
        await live(buffer, 5)
        saving = asyncio.create_task(buffer.save(tmp_path / "saved", progress=progress))
        assert await asyncio.to_thread(begun.wait, waiting_test.PATIENCE)
        with pytest.raises(errors.CheckpointError, match="saved"):
            await waiting_test.in_time(buffer.save(tmp_path / "saved"))
        await waiting_test.cancelled(saving)
        assert saving.cancelled()
        may_go_on.set()

    asyncio.run(save_and_cancel())  # It ends when the threads have.
    loaded = relive.RingReplayBuffer.load(tmp_path / "saved")
    assert zoo.plain(loaded.state_dict()) == zoo.plain(buffer.state_dict())


# Batch after batch.


async def test_awaited_batches_are_those_of_sample() -> None:
    buffer, twin = ring(limiter=relive.MinSize(3)), ring()
    rounds = buffer.batches(4, n_step=2)
    assert aiter(rounds) is rounds
    waiting = asyncio.create_task(anext(rounds))
    await live(buffer, 2)
    await zoo.settle()
    assert not waiting.done()
    await live(buffer, 1, first=2)
    await live(twin, 3)
    drawn = [await waiting_test.in_time(waiting)]
    async for batch in rounds:
        drawn.append(batch)
        if len(drawn) == 3:
            break
    for batch in drawn:
        assert zoo.plain(batch) == zoo.plain(await twin.sample(4, n_step=2))
    assert buffer.get_stats().sampled == 12


def test_awaited_batches_take_no_prefetch() -> None:
    with pytest.raises(TypeError, match="prefetch"):
        ring().batches(4, prefetch=2)


async def test_types_survive_the_wrapper_for_tasks() -> None:
    transitions = relive.AsyncReplayBuffer(relive.RingReplayBuffer(10))
    assert_type(transitions, relive.AsyncReplayBuffer[relive.TransitionBatch])
    assert_type(await transitions.add(0, 0, 1.0, 1), int)
    assert_type(await transitions.extend([0], [0], [1.0], [1]), arrays_lib.Keys)
    assert_type(await transitions.add_episode([0, 1], [0], [1.0], terminated=True), arrays_lib.Keys)
    assert_type(await transitions.sample(1), relive.TransitionBatch)
    assert_type(await transitions.sample_keys(1), arrays_lib.Keys)
    assert_type(transitions.read([0]), relive.TransitionBatch)
    assert_type(await anext(transitions.batches(1)), relive.TransitionBatch)
    assert_type(transitions.explain(0), relive.RowOrigin)
    runs = relive.AsyncReplayBuffer(relive.SequenceReplayBuffer(10, length=1))
    await runs.add(0, 0, 1.0, 1)
    assert_type(await runs.sample(1), relive.SequenceBatch)
