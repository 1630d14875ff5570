"""Batches drawn ahead are those that `sample` would have returned, whatever is written before they are handed out."""

import collections
from collections.abc import Callable, Collection, Iterator
import gc
import pickle
import random
import subprocess
import sys
import threading
import time
from typing import Any, assert_type
import weakref

import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import prefetch
from relive.storage import steps as steps_lib
from relive.testing import zoo

Buffer = relive.ColumnReplayBuffer[Any]
PATIENCE = 60.0
"""Seconds after which a test has hung."""


plain = zoo.plain


def ring(capacity: int = 10, **settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(capacity, seed=0, **settings)


def priorities(capacity: int = 10) -> Buffer:
    return relive.PrioritizedReplayBuffer(capacity, beta=relive.LinearSchedule(0.0, 1.0, 30), seed=0)


@pytest.fixture(autouse=True)
def slow_gathers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every gather in a thread begin late, and assert that none is left after the test."""
    for window in (relive.TransitionWindow, relive.SequenceWindow):

        def read(self: Any, *arguments: Any, _read: Any = window._read) -> Any:
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.001)
            return _read(self, *arguments)

        monkeypatch.setattr(window, "_read", read)
    before = set(threading.enumerate())
    yield
    if set(threading.enumerate()) - before:
        gc.collect()  # An iterator in a cycle, as in the traceback of an error, keeps its threads.
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def fill(buffer: Buffer, count: int, first: int = 0) -> None:
    """Add steps whose observation is the time; every fourth ends an episode."""
    for t in range(first, first + count):
        buffer.add([t, -t], t, float(t), [t + 1, -t - 1], terminated=t % 4 == 3)


class Twin:
    """Draws ahead as `Batches` does, but reads at once."""

    def __init__(self, sample: Callable[[], Any], ahead: int) -> None:
        self._sample = sample
        self._ahead = ahead
        self._pending: collections.deque[Any] = collections.deque()

    def __next__(self) -> Any:
        while len(self._pending) <= self._ahead:
            try:
                self._pending.append(self._sample())
            except errors.NotReadyError:
                if not self._pending:
                    raise
                break
        return self._pending.popleft()


@pytest.mark.parametrize("make", zoo.COLUMNS.values(), ids=zoo.COLUMNS)
@pytest.mark.parametrize("ahead", [2, *(pytest.param(ahead, marks=pytest.mark.long) for ahead in (0, 1, 3))])
def test_batches_are_those_of_sample_when_they_were_drawn(make: zoo.Make, ahead: int) -> None:
    """Much of what was drawn is overwritten before it is handed out."""
    buffer, twin = make(), make()
    rngs = random.Random(ahead), random.Random(ahead)
    iterator, expected = buffer.batches(3, prefetch=ahead), Twin(lambda: twin.sample(3), ahead)
    drawn = 0

    def outcome(batches: Any) -> Any:
        try:
            return plain(next(batches))
        except errors.ReplayError as error:
            return str(error)

    for _ in range(40):
        assert zoo.work(buffer, rngs[0], 3) == zoo.work(twin, rngs[1], 3)
        answer = outcome(iterator)
        assert answer == outcome(expected)
        assert buffer.get_stats() == twin.get_stats()
        drawn += not isinstance(answer, str)
    buffer.check()
    assert drawn > 10
    assert buffer.rng.bit_generator.state == twin.rng.bit_generator.state


def test_several_iterators_draw_in_the_order_of_the_calls() -> None:
    buffer, twin = priorities(6), priorities(6)
    iterators = [buffer.batches(2, prefetch=1), buffer.batches(3, prefetch=2), buffer.batches(1, prefetch=0)]
    expected = [Twin(lambda: twin.sample(2), 1), Twin(lambda: twin.sample(3), 2), Twin(lambda: twin.sample(1), 0)]
    for t in range(30):
        fill(buffer, 2, 2 * t)
        fill(twin, 2, 2 * t)
        assert plain(next(iterators[t % 3])) == plain(next(expected[t % 3]))
        assert plain(buffer.sample(2)) == plain(twin.sample(2))


def test_options_are_those_of_sample() -> None:
    ring, ring_twin = priorities(50), priorities(50)
    settings: Any = {"length": 3, "pad": True, "prioritized": True, "seed": 0}
    runs, runs_twin = relive.SequenceReplayBuffer(50, **settings), relive.SequenceReplayBuffer(50, **settings)
    for buffer in (ring, ring_twin, runs, runs_twin):
        fill(buffer, 30)
        buffer.update_priorities(np.arange(30), np.arange(30) + 1.0)
    options: dict[str, Any] = {"n_step": 3, "gamma": 0.5, "beta": 0.9}
    iterator = ring.batches(8, prefetch=1, **options)
    assert plain(next(iterator)) == plain(ring_twin.sample(8, **options))
    assert plain(next(iterator)) == plain(ring_twin.sample(8, **options))
    assert plain(next(runs.batches(8, beta=0.9))) == plain(runs_twin.sample(8, beta=0.9))


# When it draws.


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_so_many_batches_are_drawn_ahead(ahead: int) -> None:
    buffer = ring()
    fill(buffer, 5)
    iterator = buffer.batches(4, **({} if ahead == 2 else {"prefetch": ahead}))
    assert (iter(iterator) is iterator, buffer.get_stats().sampled) == (True, 0)
    for number in range(1, 5):
        next(iterator)
        assert buffer.get_stats().sampled == 4 * (number + ahead)


def test_prefetched_batches_come_before_an_error() -> None:
    """The limiter allows three batches, then none until a step comes."""
    buffer = relive.RingReplayBuffer(10, limiter=relive.SampleToInsertRatio(4.0, 1, 12.0), seed=0)
    iterator = buffer.batches(4, prefetch=5)
    with pytest.raises(errors.NotReadyError, match="sample has nothing to draw: no step is stored"):
        next(iterator)
    buffer.add(0, 0, 0.0, 1)
    for _ in range(3):
        assert next(iterator).observation.tolist() == [0] * 4
    with pytest.raises(errors.NotReadyError, match="sample held back by SampleToInsertRatio"):
        next(iterator)
    buffer.add(1, 0, 0.0, 2)
    assert len(next(iterator)) == 4
    assert buffer.get_stats().sampled == 16


def test_what_was_drawn_ahead_outlives_clear() -> None:
    buffer = ring()
    fill(buffer, 5)
    iterator = buffer.batches(4, prefetch=1)
    next(iterator)
    buffer.clear()
    assert set(next(iterator).keys.tolist()) <= set(range(5))
    with pytest.raises(errors.NotReadyError, match="no step is stored"):
        next(iterator)


# Who waits for whom.


class Held:
    """Holds the gathers back until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        read = relive.TransitionWindow._read

        def held_read(*arguments: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                self.begun.release()
                assert self.may_go_on.wait(PATIENCE)
            return read(*arguments)

        monkeypatch.setattr(relive.TransitionWindow, "_read", held_read)


def known(store: steps_lib.StepStore) -> bytes:
    """Return all that is known of rows, streams and episodes."""
    return pickle.dumps(store.rows)


@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
@pytest.mark.parametrize(
    "settings",
    [{"n_step": 3}, {"n_step": 2, "streams": 2}, {"window": relive.SequenceWindow(3, pad=True)}],
    ids=["ring", "streams", "sequences"],
)
def test_a_gather_changes_nothing_that_another_thread_may_read(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = relive.ColumnReplayBuffer if "window" in settings else relive.RingReplayBuffer
    buffer = kind(12, seed=0, **settings)
    window = type(buffer.window)
    read = window._read

    def pure_read(self: Any, store: steps_lib.StepStore, *arguments: Any) -> Any:
        before = known(store)
        batch = read(self, store, *arguments)
        assert known(store) == before
        return batch

    monkeypatch.setattr(window, "_read", pure_read)
    iterator = buffer.batches(3, prefetch=1)
    for t in range(40):
        row = [[t, t]] * buffer.streams
        following = [[t + 1, t + 1]] * buffer.streams
        buffer.extend(
            row, [t] * buffer.streams, [0.0] * buffer.streams, following, terminated=[t % 5 == 4] * buffer.streams
        )
        if t >= 10:
            next(iterator)


@pytest.mark.parametrize(
    "write",
    [
        lambda buffer: buffer.add([9, 9], 0, 0.0, [10, 10]),
        lambda buffer: buffer.extend([[9, 9]], [0], [0.0], [[10, 10]]),
        lambda buffer: buffer.add_episode([[9, 9], [10, 10]], [0], [0.0], terminated=True),
        lambda buffer: buffer.end_episode(),
        lambda buffer: buffer.clear(),
    ],
    ids=["add", "extend", "add_episode", "end_episode", "clear"],
)
def test_a_call_that_writes_waits_for_the_gathers_under_way(
    write: Callable[[Buffer], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = ring()
    fill(buffer, 5)
    held = Held(monkeypatch)
    iterator = buffer.batches(4, prefetch=2)
    # The main thread would wait for ever: two others play the learner and the writer.
    learner = threading.Thread(target=next, args=(iterator,))
    learner.start()
    assert held.begun.acquire(timeout=PATIENCE)
    while len(buffer._gathers.ends) < 3:
        time.sleep(0.001)
    before = buffer.get_stats()
    assert before.sampled == 12
    writer = threading.Thread(target=write, args=(buffer,))
    writer.start()
    writer.join(0.01)
    assert writer.is_alive()
    assert buffer.get_stats() == before
    held.may_go_on.set()
    for thread in (writer, learner):
        thread.join(PATIENCE)
    assert buffer.get_stats() != before


def test_reading_rating_and_drawing_wait_for_no_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = priorities(10)
    fill(buffer, 5)
    held = Held(monkeypatch)
    iterator = buffer.batches(4, prefetch=1)
    learner = threading.Thread(target=next, args=(iterator,))
    learner.start()
    assert held.begun.acquire(timeout=PATIENCE)
    while buffer.get_stats().sampled < 8:  # The learner draws the next batch too, and then waits.
        time.sleep(0.001)
    assert buffer.update_priorities([0, 1], [1.0, 2.0]) == 2
    assert buffer.set_eligible([3], False) == 1
    assert len(buffer.sample(4)) == 4
    assert len(buffer.read([0, 1])) == 2
    buffer.check()
    assert learner.is_alive()
    held.may_go_on.set()
    learner.join(PATIENCE)


def test_without_prefetching_there_are_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(threading.Thread, "start")
    buffer = ring()
    fill(buffer, 5)
    assert len(next(buffer.batches(4, prefetch=0))) == 4


# Errors.


class FailingStorage(relive.ColumnStorage):
    """A disk that fails at one of its reads."""

    def __init__(self, schema: relive.Schema, capacity: int, failing: int) -> None:
        super().__init__(schema, capacity)
        self.reads = 0
        self.failing = failing

    def read(self, slots: Any, fields: Collection[str] | None = None) -> Any:
        self.reads += 1
        if self.reads == self.failing:
            raise OSError("the disk is gone")
        return super().read(slots, fields)


def test_an_error_of_a_gather_comes_in_the_place_of_its_batch() -> None:
    schema = relive.Schema(relive.Field(2, "int64"), relive.Field((), "int64"))
    storage = FailingStorage(schema, 10, -1)
    buffer = relive.RingReplayBuffer(10, storage=storage, seed=0)
    fill(buffer, 5)
    iterator = buffer.batches(4, prefetch=1)
    next(iterator)
    buffer.clear()  # Both gathers are through.
    fill(buffer, 5)
    storage.failing = storage.reads + 1
    next(iterator)
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    assert len(next(iterator)) == 4


class FailingSampler(relive.UniformSampler):
    """Draws nonsense at its third draw."""

    draws = 0

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        self.draws += 1
        draw = super()._draw(size, rng)
        return relive.Draw(draw.slots - 100, draw.probabilities) if self.draws == 3 else draw


def test_an_error_of_a_draw_loses_no_batch_that_was_drawn_before() -> None:
    buffer = relive.RingReplayBuffer(10, sampler=FailingSampler(), seed=0)
    twin = relive.RingReplayBuffer(10, seed=0)
    for each in (buffer, twin):
        fill(each, 5)
    iterator = buffer.batches(4, prefetch=1)
    drawn = [twin.sample(4) for _ in range(3)]  # The draw that failed has not moved the generator.
    assert plain(next(iterator)) == plain(drawn[0])
    with pytest.raises(errors.SamplerError, match="_draw must return slots below 10"):
        next(iterator)
    assert plain(next(iterator)) == plain(drawn[1])
    assert plain(next(iterator)) == plain(drawn[2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer of at least 1, got 2.5"),
        ({"batch_size": 4, "prefetch": -1}, "prefetch must be at least 0, got -1"),
        ({"batch_size": 4, "prefetch": 1.5}, "prefetch must be an integer of at least 0, got 1.5"),
        ({"batch_size": 4, "prefetch": None}, "prefetch must be an integer of at least 0, got None"),
        ({"batch_size": 4, "beta": 0.5}, "beta must be left out without priorities, got 0.5"),
        ({"batch_size": 4, "n_step": 0}, "n_step must be at least 1, got 0"),
        ({"batch_size": 4, "gamma": 1.5}, r"gamma must be in \(0, 1], got 1.5"),
    ],
)
def test_wrong_arguments_of_batches_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    buffer = ring()
    with pytest.raises(errors.ArgumentError, match=f"^{message}$"):
        buffer.batches(**arguments)


# The end.


def num_gathers() -> int:
    return sum(thread.name.startswith("relive gather") for thread in threading.enumerate())


def test_closing_leaves_no_thread_and_no_batch() -> None:
    buffer = ring()
    fill(buffer, 5)
    iterator = buffer.batches(4, prefetch=3)
    next(iterator)
    assert num_gathers() > 0
    iterator.close()
    assert num_gathers() == 0
    assert next(iterator, None) is None
    iterator.close()
    fill(buffer, 20, 5)
    assert buffer.get_stats().sampled == 16


def test_an_iterator_that_nobody_has_any_more_leaves_no_thread() -> None:
    buffer = ring()
    fill(buffer, 5)
    iterator = buffer.batches(4, prefetch=3)
    next(iterator)
    (thread,) = (thread for thread in threading.enumerate() if thread.name.startswith("relive gather"))
    gone = weakref.ref(iterator)
    del iterator
    assert gone() is None
    thread.join(PATIENCE)
    assert not thread.is_alive()
    fill(buffer, 20, 5)


def test_returned_and_dropped_batches_are_freed() -> None:
    buffer = ring()
    fill(buffer, 5)
    iterator = buffer.batches(4, prefetch=1)
    seen = [weakref.ref(next(iterator).keys) for _ in range(3)]
    assert [reference() for reference in seen] == [None, None, None]
    ahead = weakref.ref(iterator._pending[0].result().keys)
    iterator.close()
    assert ahead() is None
    assert len(buffer._gathers.ends) <= 2
    fill(buffer, 1, 5)
    assert not buffer._gathers.ends


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "raise SystemExit(3)",
        pytest.param("iterator.close()", marks=pytest.mark.long),
        pytest.param("del iterator", marks=pytest.mark.long),
    ],
)
def test_python_ends_while_batches_are_drawn_ahead(ending: str) -> None:
    program = f"""
import numpy as np
import relive
buffer = relive.RingReplayBuffer(1_000, seed=0)
buffer.add_episode(np.zeros((101, 64, 64)), np.zeros(100), np.zeros(100), terminated=True)
iterator = buffer.batches(256, prefetch=3)
next(iterator)
{ending}
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stderr) == (3 if "raise" in ending else 0, b"")


def test_the_types_of_batches_are_those_of_sample() -> None:
    ring = relive.RingReplayBuffer(10)
    runs = relive.SequenceReplayBuffer(10, length=2)
    assert_type(ring.batches(1), prefetch.Batches[relive.TransitionBatch])
    assert_type(runs.batches(1), prefetch.Batches[relive.SequenceBatch])
    fill(ring, 5)
    assert_type(next(ring.batches(1)), relive.TransitionBatch)
