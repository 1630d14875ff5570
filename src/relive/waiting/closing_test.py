"""Closing while another thread or task waits: the waiting call raises ClosedError, or its iteration ends."""

from collections.abc import Callable, Iterator
import threading
import time
from typing import Any

import pytest

import relive
from relive import errors
from relive.buffers import prefetch as prefetch_lib
from relive.episodes import helpers_test
from relive.waiting import waiting_test

Call = Callable[[Any], Any]
ENDED = object()
TICKETS: list[Any] = []
"""Kept open: nobody else is admitted."""


def full() -> Any:
    """Return a buffer whose limiter holds inserts back."""
    inside = relive.RingReplayBuffer(100, limiter=relive.SampleToInsertRatio(2.0, min_size=4, error_buffer=8.0), seed=0)
    for t in range(8):
        inside.add(t, 0, 1.0, t + 1)
    return inside


def ring() -> Any:
    return relive.RingReplayBuffer(100, seed=0)


def agents(kind: Any = relive.EpisodeReplayBuffer, *capacity: int) -> Any:
    """Return a buffer at which actors and learners wait."""
    rule = relive.Admission(max_lag=0, episodes_per_version=2)
    buffer = kind(*capacity, groups=relive.Groups(2), admission=rule, seed=0)
    TICKETS.append(buffer.admit_nowait(2))
    return buffer


def versioned() -> Any:
    """Return a buffer whose steps are too old."""
    buffer: Any = relive.EpisodeReplayBuffer(seed=0)
    helpers_test.lived(buffer, [1])
    buffer.set_policy_version(4)
    return buffer


def tokens() -> Any:
    return agents(relive.TokenReplayBuffer, 100)


def follow(shared: Any) -> Any:
    batches = shared.batches(2)
    return anext(batches) if hasattr(batches, "__anext__") else next(batches)


CALLS: dict[str, tuple[Callable[[], Any], Call]] = {
    "add": (full, lambda shared: shared.add(8, 0, 1.0, 9)),
    "sample": (ring, lambda shared: shared.sample(2)),
    "sample_keys": (ring, lambda shared: shared.sample_keys(2)),
    "batches": (ring, follow),
    "sample_n_step": (agents, lambda shared: shared.sample_n_step(2, 1, 0.9)),
    "sample_n_step of a version": (versioned, lambda shared: shared.sample_n_step(2, 1, 0.9, max_lag=0)),
    "next_episodes": (agents, lambda shared: shared.next_episodes(1)),
    "next_groups": (agents, lambda shared: shared.next_groups(1)),
    "admit": (agents, lambda shared: shared.admit(2)),
    "sample of tokens": (tokens, lambda shared: shared.sample(2)),
    "next_episodes of tokens": (tokens, lambda shared: shared.next_episodes(1)),
    "next_groups of tokens": (tokens, lambda shared: shared.next_groups(1)),
    "admit of tokens": (tokens, lambda shared: shared.admit(2)),
}
"""What waits for ever, and at what."""


@pytest.fixture
def share() -> Iterator[Callable[[Any, Any], Any]]:
    ways: list[Any] = []

    def shared(way: Any, inside: Any) -> Any:
        ways.append(way(inside))
        return ways[-1]

    yield shared
    for way in ways:
        way.end()


def closed_by(by: str, way: Any, waiter: Any, close: Callable[[], Any]) -> Any:
    """Return the answer of a call that waits while something is closed."""
    assert not waiter.done()
    if by == "another task":
        close()
        return way.answer(waiter)
    closer = threading.Timer(0.01, close)  # An event loop sleeps by then.
    closer.start()
    try:
        return way.answer(waiter)
    finally:
        closer.join()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", [waiting_test.Tasks, waiting_test.Threads])
@pytest.mark.parametrize("by", ["another task", "another thread"])
def test_closing_ends_every_wait(by: str, way: Any, name: str, share: Any) -> None:
    make, wait = CALLS[name]
    shared = share(way, make())
    waiter = shared.begin(wait)
    with pytest.raises(errors.ClosedError, match="^buffer is closed: only .* still works?$"):
        closed_by(by, shared, waiter, shared.shared.close)


@pytest.mark.parametrize("name", [name for name, (make, _) in CALLS.items() if make in (agents, tokens)])
def test_closing_the_buffer_inside_ends_the_waits_of_threads(name: str, share: Any) -> None:
    make, wait = CALLS[name]
    way = share(waiting_test.Threads, make())
    waiter = way.begin(wait)
    with way.shared.locked() as inside:
        inside.close()
    with pytest.raises(errors.ClosedError, match="^buffer is closed: only the .* inside still works$"):
        way.answer(waiter)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("limiter", [None, relive.MinSize(5)])
def test_closing_an_iterator_ends_the_iteration_of_threads(prefetch: int, limiter: Any, share: Any) -> None:
    way = share(waiting_test.Threads, relive.RingReplayBuffer(100, limiter=limiter, seed=0))
    batches = way.shared.batches(2, prefetch=prefetch)
    waiters = [way.begin(lambda _: next(batches, ENDED)) for _ in range(2)]
    batches.close()
    batches.close()
    assert [way.answer(waiter) for waiter in waiters] == [ENDED] * 2
    assert way.do(lambda shared: shared.add(0, 0, 1.0, 1)) == 0  # Only the iteration has ended.
    assert next(batches, ENDED) is ENDED


def test_closing_an_iterator_ends_the_wait_for_a_gather() -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def gather() -> None:
        begun.set()
        assert may_go_on.wait(waiting_test.PATIENCE)

    batches = prefetch_lib.Batches(lambda: gather, prefetch_lib.PendingReads(), 2)
    waiter = waiting_test.start(lambda: next(batches, ENDED))
    assert begun.wait(waiting_test.PATIENCE)
    closer = waiting_test.start(batches.close)
    while not batches.is_closed:
        time.sleep(1e-4)
    may_go_on.set()
    assert waiter.result(waiting_test.PATIENCE) is ENDED
    closer.result(waiting_test.PATIENCE)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_draw_may_close_its_own_iterator(prefetch: int) -> None:
    """As a signal handler does in the middle of a call."""
    buffer = ring()
    buffer.add(0, 0, 1.0, 1)
    batches = buffer.batches(2, prefetch=prefetch)
    draw = batches._draw

    def closing() -> Any:
        batches.close()
        return draw()

    batches._draw = closing
    next(batches, ENDED)
    assert next(batches, ENDED) is ENDED
    assert "relive gather" not in [thread.name for thread in threading.enumerate()]
