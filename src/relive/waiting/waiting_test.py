"""Waiting, for tasks and threads that share a buffer: what for, ratios, closing, producers that die, cancellation.

A way to share is an adapter: `Tasks` or `Threads`, around a buffer of any kind.

    way.begin(call)      start a call, and return once it waits or is over
    way.do(call)         make a call, and return its answer
    way.settle()         return once every call that was begun waits or is over

A call is a function of the shared buffer; one that makes several calls is a generator that yields each of them. A new
kind of buffer is one entry of `KINDS`.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator
from concurrent import futures
import contextlib
import dataclasses
import inspect
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.testing import zoo

PATIENCE = 60.0
"""Seconds after which a test has hung."""
Call = Callable[[Any], Any]


async def in_time(awaited: Any) -> Any:
    """Return what is awaited, if that does not hang."""
    async with asyncio.timeout(PATIENCE):
        return await awaited


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and return when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def num_waiting(buffer: Any) -> tuple[int, int]:
    """Return how many tasks wait to insert and to sample; no public name says so."""
    return len(buffer._gate._inserters.waiting), len(buffer._gate._samplers.waiting)


def give_way_next(buffer: Any) -> None:
    """Let the next insert give way to other tasks, as one in 32 does."""
    buffer._gate._calls = 31


_STARTING = threading.Lock()


def start(call: Callable[[], Any], begun: Callable[[int], object] = lambda _: None) -> futures.Future[Any]:
    """Make the call in a thread of its own, whose number is told before."""
    future: futures.Future[Any] = futures.Future()
    has_begun = threading.Event()

    def run() -> None:
        begun(threading.get_ident())
        has_begun.set()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    # Coverage of code is traced from a thread's first moment on, and two threads must not begin to trace at once.
    with _STARTING:
        threading.Thread(target=run, daemon=True).start()
        assert has_begun.wait(PATIENCE)
    return future


@contextlib.contextmanager
def hasty() -> Iterator[None]:
    """Switch threads about as often as Python can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class Watched(threading.Condition):
    """A condition that knows which threads wait, and have looked since the last change."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep: set[int] = set()

    def wait(self, timeout: float | None = None) -> bool:
        self.asleep.add(threading.get_ident())
        try:
            return super().wait(timeout)
        finally:
            self.asleep.discard(threading.get_ident())

    def notify_all(self) -> None:
        self.asleep.clear()
        super().notify_all()


class Tasks:
    """Shares a buffer between the tasks of an event loop."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside
        is_shared = isinstance(inside, relive.EpisodeReplayBuffer)
        self.shared: Any = inside if is_shared else relive.AsyncReplayBuffer(inside)
        self._runner = asyncio.Runner()

    def begin(self, call: Call) -> asyncio.Task[Any]:
        async def made() -> Any:
            answer = call(self.shared)
            if inspect.isgenerator(answer):
                return await _awaited(answer)
            return await answer if inspect.isawaitable(answer) else answer

        async def begun() -> asyncio.Task[Any]:
            task = asyncio.create_task(made())
            await zoo.settle()
            return task

        return self._runner.run(begun())

    def answer(self, begun: asyncio.Future[Any]) -> Any:
        return self._runner.run(in_time(begun))

    def do(self, call: Call) -> Any:
        return self.answer(self.begin(call))

    def settle(self) -> None:
        self._runner.run(zoo.settle(60))

    def is_idle(self) -> bool:
        """Return whether nobody waits."""
        return num_waiting(self.shared) == (0, 0)

    def end(self) -> None:
        self._runner.close()


class Threads:
    """Shares a buffer between threads."""

    def __init__(self, inside: Any, **settings: Any) -> None:
        self.inside = inside
        self.shared: Any = relive.ThreadSafeReplayBuffer(inside, **settings)
        self.changed = self.shared._changed = Watched()
        self._begun: list[tuple[futures.Future[Any], int]] = []

    def begin(self, call: Call) -> futures.Future[Any]:
        def made() -> Any:
            answer = call(self.shared)
            return _called(answer) if inspect.isgenerator(answer) else answer

        numbers: list[int] = []
        future = start(made, numbers.append)
        self._begun.append((future, numbers[0]))
        self.settle()
        return future

    def answer(self, begun: futures.Future[Any]) -> Any:
        return begun.result(PATIENCE)

    def do(self, call: Call) -> Any:
        return self.answer(self.begin(call))

    def settle(self) -> None:
        end = time.monotonic() + PATIENCE
        while not all(future.done() or number in self.changed.asleep for future, number in self._begun):
            assert time.monotonic() < end
            time.sleep(1e-4)

    def is_held(self) -> bool:
        """Return whether another thread would have to wait for the lock."""

        def is_free() -> bool:
            is_mine = self.changed.acquire(blocking=False)
            if is_mine:
                self.changed.release()
            return is_mine

        return not start(is_free).result(PATIENCE)

    def is_idle(self) -> bool:
        """Return whether nobody waits."""
        return not self.is_held() and not self.changed.asleep

    def end(self) -> None:
        self.shared.close()
        futures.wait([future for future, _ in self._begun], PATIENCE)


async def _awaited(calls: Generator[Any, Any, Any]) -> Any:
    answer = None
    try:
        while True:
            each = calls.send(answer)
            answer = await each if inspect.isawaitable(each) else each
    except StopIteration as stop:
        return stop.value
    finally:
        calls.close()


def _called(calls: Generator[Any, Any, Any]) -> Any:
    answer = None
    try:
        while True:
            answer = calls.send(answer)
    except StopIteration as stop:
        return stop.value


Way = Any  # Tasks or Threads.
Share = Callable[..., Way]


@pytest.fixture(params=[Tasks, Threads])
def share(request: pytest.FixtureRequest) -> Iterator[Share]:
    """Return how to share a buffer, between tasks or between threads."""
    ways: list[Way] = []

    def shared(inside: Any) -> Way:
        ways.append(request.param(inside))
        return ways[-1]

    yield shared
    for way in ways:
        way.end()


# Kinds of buffers.


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of buffer.

    Attributes:
        make: Returns a new one; takes a limiter, if it can have one.
        add: Adds step t, which can be drawn then.
        sample: Draws that many.
    """

    make: Callable[..., Any]
    add: Callable[[Any, int], Any] = lambda shared, t: shared.add(t, 0, 1.0, t + 1)
    sample: Callable[[Any, int], Any] = lambda shared, size: shared.sample(size)


def ring(capacity: int = 100, **settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(capacity, seed=0, **settings)


def prioritized(capacity: int = 100, **settings: Any) -> relive.PrioritizedReplayBuffer:
    return relive.PrioritizedReplayBuffer(capacity, seed=0, **{"alpha": 1.0, "epsilon": 0.0, **settings})


def sequences(capacity: int = 100, **settings: Any) -> relive.SequenceReplayBuffer:
    return relive.SequenceReplayBuffer(capacity, seed=0, **{"length": 1, **settings})


def add_joint(shared: Any, t: int) -> Any:
    return shared.add({"a": t}, {"a": 0}, {"a": 1.0}, {"a": t + 1})


def add_episode(shared: Any, t: int) -> Any:
    episode_id = yield shared.start_episode("a")
    yield shared.append_observation_action_reward(episode_id, t, 0, 1.0)
    yield shared.end_episode(episode_id, t + 1)


def add_tokens(shared: Any, t: int) -> Any:
    step = relive.TokenStep(prompt=[t], response=[1], logprobs=[-0.5], policy_version=0)
    return shared.add_episode([step], agent_id="a")


LIMITED: dict[str, Kind] = {
    "ring": Kind(ring),
    "prioritized": Kind(prioritized),
    "sequences": Kind(sequences),
    "joint": Kind(lambda **settings: relive.JointReplayBuffer(100, agents=["a"], seed=0, **settings), add_joint),
    "episodes": Kind(
        lambda **settings: relive.EpisodeReplayBuffer[Any, Any](seed=0, **settings),
        add_episode,
        lambda shared, size: shared.sample_n_step(size, 1, 0.9),
    ),
}
KINDS = {
    **LIMITED,
    "items": Kind(lambda: relive.ItemReplayBuffer(100, "fragments", seed=0), lambda shared, t: shared.add({"a": [t]})),
    "tokens": Kind(lambda: relive.TokenReplayBuffer(300, seed=0), add_tokens),
}
OF_ANY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
OF_A_LIMITED_KIND = pytest.mark.parametrize("kind", LIMITED.values(), ids=LIMITED.keys())


def live(way: Way, steps: int, first: int = 0, kind: Kind = LIMITED["ring"]) -> None:
    """Add steps; observation t is followed by t + 1."""
    for t in range(first, first + steps):
        way.do(lambda shared, t=t: kind.add(shared, t))


def limited(kind: Kind = LIMITED["ring"], **settings: Any) -> Any:
    """Two samples an insert; surplus = 2 * (steps - 4) - samples within [-8, 8]: eight steps, then it is full."""
    return kind.make(limiter=relive.SampleToInsertRatio(2.0, min_size=4, error_buffer=8.0), **settings)


def held_back(share: Share, kind: Kind = LIMITED["ring"]) -> Way:
    """Return a way whose limiter holds inserts back until two samples are drawn."""
    way = share(limited(kind))
    live(way, 8, kind=kind)
    return way


# What a batch waits for.


@OF_ANY_KIND
def test_a_batch_waits_for_the_first_step(kind: Kind, share: Share) -> None:
    way = share(kind.make())
    waiters = [way.begin(lambda shared: kind.sample(shared, 3)) for _ in range(2)]
    assert not any(waiter.done() for waiter in waiters)
    live(way, 1, kind=kind)
    for waiter in waiters:
        way.answer(waiter)
    assert way.shared.get_stats().sampled == 6
    assert way.is_idle()
    way.inside.check()


@OF_A_LIMITED_KIND
def test_a_batch_waits_for_the_least_size(kind: Kind, share: Share) -> None:
    way = share(kind.make(limiter=relive.MinSize(5)))
    waiter = way.begin(lambda shared: kind.sample(shared, 2))
    live(way, 4, kind=kind)
    way.settle()
    assert not waiter.done()
    live(way, 1, first=4, kind=kind)
    assert len(way.answer(waiter)) == 2


@OF_A_LIMITED_KIND
def test_a_batch_waits_while_samples_run_ahead(kind: Kind, share: Share) -> None:
    way = share(kind.make(limiter=relive.SampleToInsertRatio(1.0, min_size=2, error_buffer=4.0)))
    live(way, 2, kind=kind)
    way.do(lambda shared: kind.sample(shared, 4))
    waiter = way.begin(lambda shared: kind.sample(shared, 2))
    live(way, 1, first=2, kind=kind)
    way.settle()
    assert not waiter.done()
    live(way, 1, first=3, kind=kind)
    way.answer(waiter)
    assert way.shared.get_stats().sampled == 6


def zeroed() -> Any:
    buffer = prioritized()
    for t in range(2):
        buffer.add(t, 0, 1.0, t + 1)
    buffer.update_priorities([0, 1], [0.0, 0.0])
    return buffer


def spent() -> Any:
    buffer = ring(max_times_sampled=2)
    for t in range(2):
        buffer.add(t, 0, 1.0, t + 1)
    buffer.sample(3)
    return buffer


def barred() -> Any:
    buffer = ring()
    for t in range(2):
        buffer.add(t, 0, 1.0, t + 1)
    buffer.set_eligible([0, 1], False)
    return buffer


def full() -> relive.RingReplayBuffer:
    buffer = ring()
    buffer.add_episode(range(4), [0] * 3, [1.0] * 3, terminated=True)
    return buffer


NO_STEP = "^sample has nothing to draw: no step is stored$"
WAITS: dict[str, tuple[Callable[[], Any], str, Call, Call]] = {
    "add": (ring, NO_STEP, lambda shared: shared.add(0, 0, 1.0), lambda shared: shared.add(1, 0, 1.0)),
    "extend": (
        ring,
        NO_STEP,
        lambda shared: shared.extend([0], [0], [1.0]),
        lambda shared: shared.extend([1], [0], [1.0]),
    ),
    "add_episode": (
        lambda: sequences(length=2),
        NO_STEP,
        lambda shared: shared.add_episode([0, 1], [0], [1.0], terminated=True),
        lambda shared: shared.add_episode([2, 3, 4], [0, 0], [1.0, 1.0], terminated=True),
    ),
    "add_steps": (
        lambda: sequences(length=3),
        NO_STEP,
        lambda shared: shared.add_steps([0, 1, 2], [0, 0], [1.0, 1.0]),
        lambda shared: shared.add_steps([2, 3], [0], [1.0]),
    ),
    "add_episodes": (
        ring,
        NO_STEP,
        lambda shared: shared.add_episodes([0], [0], [1.0], terminated=[False], unknown_end="keep"),
        lambda shared: shared.add_episodes([0, 1], [0, 0], [1.0, 1.0], terminated=[False, True]),
    ),
    "priorities": (
        zeroed,
        "^every eligible priority weighs 0: update_priorities first$",
        lambda shared: shared.update_priorities([0], [0.0]),
        lambda shared: shared.update_priorities([1], [0.5]),
    ),
    "draws left": (
        spent,
        "^sample has 1 draws left with max_times_sampled = 2, and 3 were asked for: add steps first$",
        lambda shared: shared.add(2, 0, 1.0),
        lambda shared: shared.add(3, 0, 1.0),
    ),
    "barred": (
        barred,
        "^sample has nothing to draw: every anchor was made ineligible",
        lambda shared: shared.set_eligible([0], False),
        lambda shared: shared.set_eligible([1], True),
    ),
    "a state": (
        ring,
        NO_STEP,
        lambda shared: shared.load_state_dict(ring().state_dict()),
        lambda shared: shared.load_state_dict(full().state_dict()),
    ),
}


@pytest.mark.parametrize("draw", ["sample", "sample_keys", "batches"])
@pytest.mark.parametrize("reason", WAITS)
def test_a_batch_of_columns_waits_until_it_is_possible(reason: str, draw: str, share: Share) -> None:
    """It is then the one that the buffer inside would have drawn, and nothing was drawn before."""
    make, message, too_little, enough = WAITS[reason]
    way = share(make())
    with pytest.raises(errors.NotReadyError, match=message):
        way.inside.sample(3)
    state, before = way.inside.rng.bit_generator.state, way.shared.get_stats().sampled

    def drawn(shared: Any) -> Any:
        if draw != "batches":
            return getattr(shared, draw)(3)
        return anext(shared.batches(3)) if isinstance(way, Tasks) else next(shared.batches(3, prefetch=0))

    waiter = way.begin(drawn)
    assert (way.inside.rng.bit_generator.state, way.shared.get_stats().sampled) == (state, before)
    way.do(too_little)
    way.settle()
    assert not waiter.done()
    way.do(enough)
    answer = way.answer(waiter)
    assert len(answer if draw == "sample_keys" else answer.keys) == 3
    assert way.inside.get_stats().sampled == (3 if reason == "a state" else before + 3)
    assert way.is_idle()
    way.shared.check()


def test_a_sampler_that_refuses_is_not_waited_for(share: Share) -> None:
    """It did not say so beforehand."""

    class Moody(relive.UniformSampler):
        def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
            raise errors.NotReadyError("not in the mood")

    way = share(ring(sampler=Moody()))
    live(way, 1)
    with pytest.raises(errors.NotReadyError, match="^not in the mood$"):
        way.do(lambda shared: shared.sample(1))
    assert way.is_idle()


# What an insert waits for.


@OF_A_LIMITED_KIND
def test_an_insert_waits_while_inserts_run_ahead(kind: Kind, share: Share) -> None:
    way = held_back(share, kind)
    waiters = [way.begin(lambda shared, t=t: kind.add(shared, t)) for t in (8, 9)]
    assert not any(waiter.done() for waiter in waiters)
    assert way.shared.get_stats().appended == 8
    way.do(lambda shared: kind.sample(shared, 2))
    way.settle()
    assert [waiter.done() for waiter in waiters].count(True) == 1
    assert way.shared.get_stats().appended == 9
    way.do(lambda shared: kind.sample(shared, 2))
    for waiter in waiters:
        way.answer(waiter)
    assert way.shared.get_stats().appended == 10
    assert way.is_idle()
    way.inside.check()


INSERTS: dict[str, tuple[Call, int]] = {
    "add": (lambda shared: shared.add(8, 0, 1.0, 9), 1),
    "extend": (lambda shared: shared.extend([8], [0], [1.0], [9]), 1),
    "add_episode": (lambda shared: shared.add_episode([8, 9, 10], [0, 0], [1.0, 1.0], terminated=True), 2),
    "add_steps": (lambda shared: shared.add_steps([8, 9, 10], [0, 0], [1.0, 1.0]), 2),
}
"""Calls that add steps 8, 9 and so on, and how many."""


@pytest.mark.parametrize("verb", INSERTS)
@pytest.mark.parametrize(
    "make_room",
    [
        lambda shared: shared.sample(2),
        lambda shared: shared.sample_keys(2),
        lambda shared: shared.clear(),
        lambda shared: shared.set_eligible(range(5), False),
    ],
    ids=["sample", "sample_keys", "clear", "set_eligible"],
)
def test_every_call_that_makes_room_lets_inserts_in(verb: str, make_room: Call, share: Share) -> None:
    """Inserts below the least size are free, after `clear` and `set_eligible`."""
    way = held_back(share)
    insert, count = INSERTS[verb]
    with pytest.raises(errors.NotReadyError, match=r" held back by SampleToInsertRatio\(.*\): draw samples first$"):
        insert(way.inside)
    waiter = way.begin(insert)
    assert not waiter.done()
    assert way.shared.get_stats().appended == 8
    way.do(make_room)
    keys = list(range(8, 8 + count))
    assert np.ravel(way.answer(waiter)).tolist() == keys
    assert way.shared.read(keys).observation.tolist() == keys
    way.shared.check()


@OF_A_LIMITED_KIND
def test_producers_and_learners_keep_the_ratio(kind: Kind, share: Share) -> None:
    """However far they run ahead of each other; a learner that has enough closes the buffer."""
    name = next(name for name, each in LIMITED.items() if each is kind)
    way = share(limited(kind, **({} if name == "episodes" else {"streams": 4})))
    surpluses: list[float] = []

    def note() -> None:
        with way.shared.locked() if isinstance(way, Threads) else contextlib.nullcontext():
            stats = way.inside.get_stats()
            surpluses.append(2 * (stats.appended - 4) - stats.sampled)

    def act(shared: Any, stream: int) -> Any:
        for t in range(50):
            if name == "episodes":
                yield from kind.add(shared, t)
            elif name == "joint":
                yield shared.add({"a": t}, {"a": 0}, {"a": 1.0}, {"a": t + 1}, stream=stream)
            else:
                yield shared.add(t, 0, 1.0, t + 1, stream=stream)
            note()

    def learn(shared: Any) -> Any:
        while True:
            yield kind.sample(shared, 4)
            note()

    with hasty():
        actors = [way.begin(lambda shared, stream=stream: act(shared, stream)) for stream in range(4)]
        learners = [way.begin(learn) for _ in range(3)]
        for actor in actors:
            way.answer(actor)
        way.settle()
        way.shared.close()
    for learner in learners:
        with pytest.raises(errors.ClosedError):
            way.answer(learner)
    stats = way.inside.get_stats()
    assert stats.appended == 200
    assert min(surpluses) >= -8
    assert max(surpluses) <= 8
    assert 2 * 196 - 8 <= stats.sampled <= 2 * 196 + 8
    way.inside.check()


# Wrong arguments.

WRONG: list[tuple[Call, type[Exception], str]] = [
    (lambda b: b.add(0.5, 0, 1.0, 1), errors.SchemaError, "^observation must fit int64, got 0.5"),
    (lambda b: b.add(0, 0, 1.0, 1, logp=1), errors.SchemaError, "^unknown extra 'logp': the schema has no extr"),
    (lambda b: b.add(0, 0, 1.0, truncated=True), errors.ArgumentError, "^next_observation must be given"),
    (lambda b: b.add(0, 0, 1.0, stream=1), errors.ArgumentError, "^stream must be below streams = 1, got 1$"),
    (lambda b: b.add(0, 0), TypeError, "reward"),
    (lambda b: b.extend([0, 1], [0], [1.0]), errors.SchemaError, r"^observation must be of shape \(1,\)"),
    (lambda b: b.add_episode([0], [], [], terminated=True), errors.ArgumentError, "^an episode must have 1 to"),
    (lambda b: b.sample(0), errors.ArgumentError, "^batch_size must be at least 1, got 0$"),
    (lambda b: b.sample(True), errors.ArgumentTypeError, "^batch_size must be an integer"),
    (
        lambda b: b.sample(15),
        errors.ArgumentError,
        r"^batch_size must be at most 14 with SampleToInsertRatio\(.*\), go",
    ),
    (lambda b: b.sample_keys(0), errors.ArgumentError, "^batch_size must be at least 1, got 0$"),
    (lambda b: b.sample_keys(15), errors.ArgumentError, "^batch_size must be at most 14 with"),
    (lambda b: b.sample(2, n_step=0), errors.ArgumentError, "^n_step must be at least 1, got 0$"),
    (lambda b: b.sample(2, gamma=0.0), errors.ArgumentError, r"^gamma must be in \(0, 1\], got 0.0$"),
    (lambda b: b.sample(2, beta=0.5), errors.ArgumentError, "^beta must be left out without priorities, got 0.5$"),
    (lambda b: b.sample(2, alpha=0.5), TypeError, "alpha"),
    (lambda b: b.batches(0), errors.ArgumentError, "^batch_size must be at least 1, got 0$"),
]


@pytest.mark.parametrize("steps", [0, 5, 8])
def test_wrong_arguments_are_refused_before_the_wait(steps: int, share: Share, subtests: pytest.Subtests) -> None:
    """And not after the wait; nobody who waits is let in meanwhile. Eight steps hold inserts back."""
    way, is_held_back = share(limited()), steps == 8
    live(way, steps)
    waiter = way.begin(lambda shared: shared.add(8, 0, 1.0, 9)) if is_held_back else None
    before, state = way.shared.get_stats(), way.inside.rng.bit_generator.state
    for call, error, message in WRONG if steps else WRONG[7:]:  # The first step says what a step holds.
        with subtests.test(message):
            with pytest.raises(error, match=message):
                way.do(call)
            if not is_held_back and isinstance(way, Tasks):
                give_way_next(way.shared)
                with pytest.raises(error, match=message):
                    way.do(call)
            assert waiter is None or not waiter.done()
            assert (way.shared.get_stats(), way.inside.rng.bit_generator.state) == (before, state)


# The end.


def test_a_closed_buffer_of_columns_only_answers(share: Share) -> None:
    way = held_back(share)
    waiters = [way.begin(insert) for insert, _ in INSERTS.values()]
    way.shared.close()
    message = "^buffer is closed: only the RingReplayBuffer inside still works$"
    for waiter in waiters:
        with pytest.raises(errors.ClosedError, match=message):
            way.answer(waiter)
    draws: list[Call] = [lambda shared: shared.sample(1), lambda shared: shared.sample_keys(1)]
    for call in (*(insert for insert, _ in INSERTS.values()), *draws):
        with pytest.raises(errors.ClosedError, match=message):
            way.do(call)
    assert way.shared.get_stats().appended == 8
    assert way.shared.read([7]).observation.tolist() == [7]
    assert len(way.inside.sample(3)) == 3
    way.shared.check()


@OF_ANY_KIND
async def test_a_producer_that_dies_takes_the_learner_with_it(kind: Kind) -> None:
    """A task group cancels the learner, which waits."""
    inside = kind.make()
    shared: Any = inside if isinstance(inside, relive.EpisodeReplayBuffer) else relive.AsyncReplayBuffer(inside)

    async def die() -> None:
        await zoo.settle()
        raise ConnectionError("the environment went away")

    async def learn() -> None:
        await kind.sample(shared, 1)

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(learn())
            group.create_task(die())
    assert caught.group_contains(ConnectionError)
    assert num_waiting(shared) == (0, 0)


# Turns, which threads do not take.


@OF_ANY_KIND
async def test_busy_calls_leave_the_event_loop_to_others(kind: Kind) -> None:
    """Actors and a learner that await nothing else make progress, and so does a third task."""
    inside = kind.make()
    shared: Any = inside if isinstance(inside, relive.EpisodeReplayBuffer) else relive.AsyncReplayBuffer(inside)
    turns = adds = draws = 0

    async def stand_by() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def act() -> None:
        nonlocal adds
        while True:
            answer = kind.add(shared, 0)
            await (_awaited(answer) if inspect.isgenerator(answer) else answer)
            adds += 1

    async def learn() -> None:
        nonlocal draws
        while True:
            await kind.sample(shared, 4)
            draws += 1

    tasks = [asyncio.create_task(work()) for work in (stand_by, act, act, learn)]
    await zoo.settle(20)
    await cancelled(*tasks)
    assert turns > 15
    assert draws > 10
    assert 8 * 15 < adds < 32 * 50


# What both ways have of the buffer inside.

MISSING = {
    "attach": "a journal is attached to the buffer inside, before it is shared",
    "can_insert": "the verbs wait instead, and the next change makes the answer wrong",
    "can_sample": "as can_insert",
    "detach": "as attach",
    "from_state": "as load",
    "load": "a class is loaded, and a shell put around it",
    "rng": "each draw changes it",
}
"""The public names of a buffer that shells do not have, and why; `buffer` or `locked` gives the buffer inside."""


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("shell", "own"),
    [(relive.AsyncReplayBuffer, {"buffer", "close"}), (relive.ThreadSafeReplayBuffer, {"close", "locked"})],
)
def test_a_shell_has_the_public_names_of_the_buffer(shell: type, own: set[str]) -> None:
    """All but those listed."""
    there, inside = public(shell), public(relive.ColumnReplayBuffer)
    assert inside.keys() - there.keys() == MISSING.keys()
    assert there.keys() - inside.keys() == own
    for name in inside.keys() & there.keys():
        assert isinstance(there[name], property) == isinstance(inside[name], property), name


def test_plain_calls_answer_as_the_buffer_inside(share: Share) -> None:
    way = share(prioritized(8))
    shared, inside = way.shared, way.inside
    live(way, 9)
    assert inside.capacity == shared.capacity == 8
    assert (len(shared), shared.is_full, shared.num_eligible) == (8, True, 8)
    assert shared.eligible_keys().tolist() == list(range(1, 9))
    assert shared.update_priorities([0, 3], [7.0, 2.0]) == 1
    assert shared.get_priorities([3, 4]).tolist() == [2.0, 1.0]
    assert shared.read([3], n_step=2, gamma=1.0).reward.tolist() == [2.0]
    assert shared.set_eligible([0, 3, 4], False) == 2
    assert (len(shared), shared.num_eligible) == (8, 6)
    assert shared.get_stats() == inside.get_stats()
    assert repr(shared) == f"<{type(shared).__name__} around {inside!r}>"
    assert shared.end_episode()
    assert shared.get_stats().truncated_episodes == 1
    shared.clear()
    assert (len(shared), shared.is_full) == (0, False)


def test_attributes_answer_as_the_buffer_inside(share: Share) -> None:
    limiter = relive.MinSize(1)
    way = share(prioritized(8, streams=2, limiter=limiter))
    shared, inside = way.shared, way.inside
    assert [shared.schema] == [None]
    keys = way.do(lambda shared: shared.add_steps([[0], [1], [2]], [0, 1], [1.0, 2.0], stream=1))
    assert keys.tolist() == [0, 1]
    assert [shared.schema] == [inside.schema] != [None]
    assert (shared.streams, shared.appended, shared.has_priorities) == (2, 2, True)
    assert (shared.limiter, shared.sampler, shared.window) == (limiter, inside.sampler, inside.window)
    assert shared.settings() == inside.settings()
    assert shared.explain(1) == inside.explain(1)
    assert shared.end_episode(stream=1)
    assert not shared.end_episode(1)


def test_check_says_what_is_wrong_inside(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    way = share(ring())
    way.shared.check()

    def find_something() -> None:
        raise errors.CorruptionError("a row is wrong")

    monkeypatch.setattr(way.inside, "check", find_something)
    with pytest.raises(errors.CorruptionError, match="^a row is wrong$"):
        way.shared.check()


@pytest.mark.parametrize("shell", [relive.AsyncReplayBuffer, relive.ThreadSafeReplayBuffer])
def test_what_is_no_buffer_is_not_shared(shell: Any) -> None:
    insides: list[Any] = [None, [], shell(ring())]
    for inside in insides:
        with pytest.raises(errors.ArgumentTypeError, match="^buffer must be a .*buffer.*, got "):
            shell(inside)


@pytest.mark.parametrize("make", [relive.EpisodeReplayBuffer, lambda: relive.RolloutBuffer(3)])
def test_what_needs_no_wrapper_for_tasks_is_refused(make: Callable[[], Any]) -> None:
    """It waits itself, or never."""
    with pytest.raises(relive.ArgumentTypeError, match="^buffer must be a buffer that does not wait itself, such as"):
        relive.AsyncReplayBuffer(make())


@pytest.mark.parametrize("name", ["save_async", "attach", "_store", "nothing"])
def test_private_and_awaited_names_are_not_for_threads(name: str) -> None:
    shell = relive.ThreadSafeReplayBuffer(relive.EpisodeReplayBuffer[Any, Any]())
    with pytest.raises(AttributeError, match=name):
        getattr(shell, name)
