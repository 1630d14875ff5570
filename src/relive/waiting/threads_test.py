"""The thread shell: rows are never torn, who waits for what, timeouts, closing, interrupts, and what holds the lock."""

import collections
from collections.abc import Callable, Collection, Iterator
from concurrent import futures
import contextlib
import pathlib
import signal
import sys
import threading
from typing import Any, TypeVar, assert_type

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays
from relive.persistence import posix_test
from relive.storage import memory
from relive.testing import zoo

Shell = relive.ThreadSafeReplayBuffer[Any]
Answer = TypeVar("Answer")
PATIENCE = 60.0
"""Seconds after which a test has hung."""


class Watched(threading.Condition):
    """A condition that tells who is about to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.release()
        return super().wait(timeout)

    def until_waiting(self, times: int = 1) -> None:
        """Return when a thread has begun to wait so many times more, and does."""
        for _ in range(times):
            assert self.waits.acquire(timeout=PATIENCE)
        with self:
            pass


def shell_of(buffer: Any, **settings: Any) -> tuple[Shell, Watched]:
    """Return a shell around the buffer, and its condition."""
    shell: Shell = relive.ThreadSafeReplayBuffer(buffer, **settings)
    shell._changed = Watched()
    return shell, shell._changed


def ring(capacity: int = 100, **settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(capacity, seed=0, **settings)


def prioritized(capacity: int = 100, **settings: Any) -> relive.PrioritizedReplayBuffer:
    settings = {"alpha": 1.0, "epsilon": 0.0} | settings
    return relive.PrioritizedReplayBuffer(capacity, seed=0, **settings)


def sequences(capacity: int = 100, **settings: Any) -> relive.SequenceReplayBuffer:
    return relive.SequenceReplayBuffer(capacity, seed=0, **settings)


_STARTING = threading.Lock()


def start(call: Callable[[], Answer]) -> futures.Future[Answer]:
    """Make the call in a thread of its own."""
    future: futures.Future[Answer] = futures.Future()
    has_begun = threading.Event()

    def run() -> None:
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


def together(shell: Shell, *calls: Callable[[], Any]) -> list[Any]:
    """Return what the calls answer that are made in a thread each; nobody waits for one that failed."""
    started = [start(call) for call in calls]
    finished, _ = futures.wait(started, PATIENCE, return_when=futures.FIRST_EXCEPTION)
    if len(finished) < len(started):
        shell.close()
        for future in finished:
            future.result()
    return [future.result(PATIENCE) for future in started]


def is_held(shell: Shell) -> bool:
    """Return whether another thread would have to wait for the shell's lock."""

    def is_free() -> bool:
        is_mine = shell._changed.acquire(blocking=False)
        if is_mine:
            shell._changed.release()
        return is_mine

    return not start(is_free).result(PATIENCE)


def live(buffer: Any, steps: int, first: int = 0) -> None:
    """Add complete steps; observation t is followed by t + 1."""
    for t in range(first, first + steps):
        buffer.add(t, 0, 1.0, t + 1)


# Rows are whole.

WIDTH = 6


def checksum(number: Any) -> Any:
    return number * 31 % 1009


def row(number: int) -> dict[str, Any]:
    """Return a step that says the same in every field, as often as there is room."""
    return {
        "observation": np.full(WIDTH, number),
        "action": number,
        "reward": float(number),
        "next_observation": np.full(WIDTH, number + 1),
        "checksum": checksum(number),
    }


def rows(first: int, count: int) -> dict[str, Any]:
    """Return an episode of them."""
    numbers = np.arange(first, first + count)
    observations = np.repeat(np.arange(first, first + count + 1)[:, np.newaxis], WIDTH, axis=1)
    values = {"observations": observations, "actions": numbers, "rewards": numbers * 1.0}
    return values | {"terminated": False, "checksum": checksum(numbers)}


def assert_whole(batch: Any) -> None:
    """Raise AssertionError if a row says different things in different places, or is not followed by the next."""
    if isinstance(batch, relive.SequenceBatch):
        length = batch.mask.shape[1]
        real = np.concatenate([np.ones((len(batch), 1), np.bool_), batch.mask], axis=1)
        numbers = np.where(real, batch.action[:, :1] + np.arange(length + 1), 0)
        assert (batch.observation == numbers[:, :, np.newaxis]).all()
        assert (batch.action == numbers[:, :-1] * batch.mask).all()
        assert (batch.reward == batch.action).all()
        assert (batch.extras["checksum"] == checksum(batch.action) * batch.mask).all()
        return
    numbers = batch.action
    assert (batch.extras["checksum"] == checksum(numbers)).all()
    assert (batch.reward == batch.steps * numbers + batch.steps * (batch.steps - 1) // 2).all()
    for stack, newest in ((batch.observation, numbers), (batch.next_observation, numbers + batch.steps)):
        frames = stack.reshape(len(batch), -1, WIDTH)
        ages = np.arange(frames.shape[1])[::-1]
        expected = (newest[:, np.newaxis] - ages)[:, :, np.newaxis]
        assert ((frames == expected) | ((frames == 0) & (ages[:, np.newaxis] > 0))).all()
        assert (frames[:, -1] == newest[:, np.newaxis]).all()


SCHEMA = relive.Schema(
    relive.Field(WIDTH, np.int64),
    relive.Field((), np.int64),
    extras={"checksum": relive.Field((), np.int64)},
)


class SplitStorage(relive.ColumnStorage):
    """A storage that lets a test do something between reading one column and the next, and between writing them."""

    between: Callable[[], object] | None = None

    def write(self, slots: memory.Slots, rows: memory.Rows) -> None:
        for path in self.schema.fields:
            self._pause(path)
            super().write(slots, {**super().read(slots), path: rows[path]})

    def read(self, slots: memory.Slots, fields: Collection[str] | None = None) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for path in self.schema.fields if fields is None else fields:
            self._pause(path)
            columns |= super().read(slots, [path])
        return columns

    def _pause(self, path: str) -> None:
        """Do it once, in front of the action."""
        if path == "action" and self.between is not None:
            between, self.between = self.between, None
            between()


@contextlib.contextmanager
def hasty() -> Iterator[None]:
    """Switch threads about as often as Python can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def test_without_the_lock_a_row_is_torn_and_the_checksum_tells() -> None:
    storage = SplitStorage(SCHEMA, 4)
    buffer = ring(4, gamma=1.0, storage=storage)
    buffer.add_episode(**rows(1, 4))
    assert_whole(buffer.sample(8))
    storage.between = lambda: start(lambda: buffer.add_episode(**rows(101, 4))).result(PATIENCE)
    torn = buffer.sample(8)
    with pytest.raises(AssertionError):
        assert_whole(torn)


@pytest.mark.parametrize("split", ["read", "write"])
def test_with_the_lock_nobody_comes_between_two_columns(split: str) -> None:
    storage = SplitStorage(SCHEMA, 4)
    shell, _ = shell_of(ring(4, gamma=1.0, storage=storage))
    shell.add_episode(**rows(1, 4))
    others: list[futures.Future[Any]] = []

    def between() -> None:
        assert is_held(shell)
        others.append(start(lambda: shell.add_episode(**rows(101, 4))))
        others.append(start(lambda: shell.sample(8)))

    storage.between = between
    if split == "read":
        assert_whole(shell.sample(8))
    else:
        shell.add_episode(**rows(51, 4))
    _, batch = [other.result(PATIENCE) for other in others]
    assert_whole(batch)
    assert_whole(shell.read(shell.eligible_keys()))


BUFFERS: dict[str, Callable[[], Any]] = {
    "ring": lambda: ring(64, gamma=1.0, streams=4),
    "n-step": lambda: ring(64, gamma=1.0, streams=4, n_step=3),
    "stacks": lambda: ring(64, gamma=1.0, streams=4, frame_stack=3),
    "priorities": lambda: prioritized(64, gamma=1.0, streams=4, epsilon=0.01),
    "sequences": lambda: sequences(64, length=4, streams=4, prioritized=True, pad=True),
}


@pytest.mark.parametrize("steps", [100, pytest.param(5_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", BUFFERS)
def test_no_row_is_torn_between_writers_and_readers(kind: str, steps: int) -> None:
    """TorchRL 3463, LeRobot 2309. The ring is overwritten all the time."""
    shell, _ = shell_of(BUFFERS[kind]())
    is_over = threading.Event()

    def write(stream: int) -> int:
        number = first = 1 + 100_000 * stream
        rng = np.random.default_rng(stream)
        while number < first + steps:
            choice = rng.random()
            if choice < 0.05:
                shell.add_episode(**rows(number, 5), stream=stream)
                number += 5
                continue
            step = row(number)
            step["terminated"] = bool(rng.random() < 0.1)
            if choice < 0.3:
                shell.extend(**{name: [value] for name, value in step.items()}, streams=[stream])
            else:
                shell.add(**step, stream=stream)
            number += 1
        return number - first

    def read(seed: int) -> int:
        rng = np.random.default_rng(seed)
        drawn = 0
        while not is_over.is_set():
            batch = shell.sample(int(rng.integers(1, 24)))
            drawn += len(batch)
            assert_whole(batch)
            if kind in ("priorities", "sequences"):
                shell.update_priorities(batch.keys, rng.random(len(batch)))
            with shell.locked() as buffer:
                assert_whole(buffer.read(shell.sample_keys(4)))
            drawn += 4
        return drawn

    readers = []

    def write_all() -> list[int]:
        try:
            return together(shell, *(lambda stream=stream: write(stream) for stream in range(4)))
        finally:
            is_over.set()

    with hasty():
        written, *readers = together(shell, write_all, *(lambda seed=seed: read(seed) for seed in range(3)))
    shell.check()
    stats = shell.get_stats()
    assert stats.appended == sum(written) >= 4 * steps
    assert stats.evicted == stats.appended - 64
    assert stats.sampled == sum(readers)
    assert stats.spliced_episodes == 0
    assert_whole(shell.read(shell.eligible_keys()))


def test_no_anchor_is_drawn_more_often_than_it_may() -> None:
    """Reverb df9ee82, TorchRL 3911."""
    shell, _ = shell_of(ring(200, max_times_sampled=3, streams=4))
    draws: collections.Counter[int] = collections.Counter()
    lock = threading.Lock()

    def write(stream: int) -> None:
        for t in range(40):
            shell.add(t, 0, 1.0, t + 1, stream=stream)

    def read(size: int) -> None:
        with contextlib.suppress(errors.ClosedError):
            while True:
                keys = shell.sample(size).keys.tolist()
                with lock:
                    draws.update(keys)

    with hasty():
        readers = [start(lambda size=size: read(size)) for size in (1, 1, 2, 5)]  # type: ignore[misc]
        together(shell, *(lambda stream=stream: write(stream) for stream in range(4)))
        with shell._changed:
            assert shell._changed.wait_for(lambda: shell.num_eligible == 0, PATIENCE)
        shell.close()
        for reader in readers:
            reader.result(PATIENCE)
    assert draws == dict.fromkeys(range(160), 3)
    shell.check()


def test_writers_and_readers_keep_the_ratio() -> None:
    limiter = relive.SampleToInsertRatio(2.0, min_size=4, error_buffer=8.0)
    shell, _ = shell_of(ring(streams=4, limiter=limiter))
    surpluses: list[int] = []

    def note() -> None:
        stats = shell.get_stats()
        surpluses.append(2 * (stats.appended - 4) - stats.sampled)

    def write(stream: int) -> None:
        for t in range(50):
            shell.add(t, 0, 1.0, t + 1, stream=stream)
            note()

    def read() -> None:
        with contextlib.suppress(errors.ClosedError):
            while True:
                shell.sample(4)
                note()

    with hasty():
        readers = [start(read) for _ in range(3)]
        together(shell, *(lambda stream=stream: write(stream) for stream in range(4)))
        shell.close()
        for reader in readers:
            reader.result(PATIENCE)
    assert shell.get_stats().appended == 200
    assert min(surpluses) >= -8
    assert max(surpluses) <= 8


# What a batch waits for.


def zeroed() -> Any:
    buffer = prioritized()
    live(buffer, 2)
    buffer.update_priorities([0, 1], [0.0, 0.0])
    return buffer


def spent() -> Any:
    buffer = ring(max_times_sampled=2)
    live(buffer, 2)
    buffer.sample(3)
    return buffer


def barred() -> Any:
    buffer = ring()
    live(buffer, 2)
    buffer.set_eligible([0, 1], False)
    return buffer


def ahead() -> Any:
    buffer = ring(limiter=relive.SampleToInsertRatio(1.0, min_size=2, error_buffer=4.0))
    live(buffer, 2)
    buffer.sample(4)
    return buffer


Change = Callable[[Shell], object]
WAITS: dict[str, tuple[Callable[[], Any], str, Change, Change]] = {
    "first step": (
        ring,
        "^sample has nothing to draw: no step is stored$",
        lambda shell: shell.add(0, 0, 1.0),
        lambda shell: shell.add(1, 0, 1.0),
    ),
    "first step, extend": (
        ring,
        "^sample has nothing to draw: no step is stored$",
        lambda shell: shell.extend([0], [0], [1.0]),
        lambda shell: shell.extend([1], [0], [1.0]),
    ),
    "first sequence": (
        lambda: sequences(length=2),
        "^sample has nothing to draw: no step is stored$",
        lambda shell: shell.add_episode([0, 1], [0], [1.0], terminated=True),
        lambda shell: shell.add_episode([2, 3, 4], [0, 0], [1.0, 1.0], terminated=True),
    ),
    "least size": (
        lambda: ring(limiter=relive.MinSize(2)),
        "^sample has nothing to draw: no step is stored$",
        lambda shell: shell.add(0, 0, 1.0, 1),
        lambda shell: shell.add(1, 0, 1.0, 2),
    ),
    "ratio": (
        ahead,
        r"^sample held back by SampleToInsertRatio\(.*\): add steps first$",
        lambda shell: shell.add(2, 0, 1.0, 3),
        lambda shell: live(shell, 2, first=3),
    ),
    "priorities": (
        zeroed,
        "^every eligible priority weighs 0: update_priorities first$",
        lambda shell: shell.update_priorities([0], [0.0]),
        lambda shell: shell.update_priorities([1], [0.5]),
    ),
    "draws left": (
        spent,
        "^sample has 1 draws left with max_times_sampled = 2, and 3 were asked for: add steps first$",
        lambda shell: shell.sample(1),
        lambda shell: live(shell, 2, first=2),
    ),
    "barred": (
        barred,
        "^sample has nothing to draw: every anchor was made ineligible",
        lambda shell: shell.set_eligible([0], False),
        lambda shell: shell.set_eligible([1], True),
    ),
    "block": (
        ring,
        "^sample has nothing to draw",
        lambda shell: add_in_block(shell, 0),
        lambda shell: add_in_block(shell, 1),
    ),
}


def add_in_block(shell: Shell, observation: int) -> None:
    with shell.locked() as buffer:
        buffer.add(observation, 0, 1.0)


@pytest.mark.parametrize("verb", ["sample", "sample_keys"])
@pytest.mark.parametrize("reason", WAITS)
def test_a_batch_waits_until_it_is_possible(reason: str, verb: str) -> None:
    make, message, too_little, enough = WAITS[reason]
    inside = make()
    with pytest.raises(errors.NotReadyError, match=message):
        getattr(inside, verb)(3)
    shell, changed = shell_of(inside)
    before = inside.get_stats()
    waiter = start(lambda: getattr(shell, verb)(3))
    changed.until_waiting()
    assert shell.get_stats() == before
    too_little(shell)
    changed.until_waiting()
    assert not waiter.done()
    enough(shell)
    assert len(waiter.result(PATIENCE)) == 3
    shell.check()


# What an insert waits for.


def held_back(**settings: Any) -> tuple[Shell, Watched]:
    """A shell whose limiter holds inserts back: surplus = 2 * (steps - 4) - samples is 8 and within [-8, 8]."""
    inside = ring(limiter=relive.SampleToInsertRatio(2.0, min_size=4, error_buffer=8.0))
    live(inside, 8)
    assert not inside.can_insert()
    return shell_of(inside, **settings)


INSERTS: dict[str, Callable[[Shell], Any]] = {
    "add": lambda shell: shell.add(8, 0, 1.0, 9),
    "extend": lambda shell: shell.extend([8], [0], [1.0], [9]),
    "add_episode": lambda shell: shell.add_episode([8, 9], [0], [1.0], terminated=True),
    "add_steps": lambda shell: shell.add_steps([8, 9], [0], [1.0]),
}


@pytest.mark.parametrize("verb", INSERTS)
@pytest.mark.parametrize(
    "make_room",
    [
        lambda shell: shell.sample(2),
        lambda shell: shell.sample_keys(2),
        lambda shell: shell.clear(),
        lambda shell: shell.set_eligible(range(5), False),
    ],
    ids=["sample", "sample_keys", "clear", "set_eligible"],
)
def test_an_insert_waits_while_they_run_ahead(verb: str, make_room: Change) -> None:
    shell, changed = held_back()
    waiter = start(lambda: INSERTS[verb](shell))
    changed.until_waiting()
    assert shell.get_stats().appended == 8
    make_room(shell)
    assert np.ravel(waiter.result(PATIENCE)).tolist() == [8]
    assert shell.read([8]).observation.tolist() == [8]
    shell.check()


# Timeouts.


@pytest.mark.parametrize("timeout", [0, 0.01, np.float32(0.0)])
def test_a_call_that_may_not_wait_longer_says_what_it_waited_for(timeout: Any) -> None:
    shell, _ = held_back(timeout=timeout)
    before, state = shell.get_stats(), shell._buffer.rng.bit_generator.state
    for call, insert in INSERTS.items():
        with pytest.raises(
            errors.NotReadyError,
            match=rf"^{call} held back by SampleToInsertRatio\(.*\): draw samples first \(waited {timeout:g} s\)$",
        ):
            insert(shell)
    shell.set_eligible(range(8), False)
    for draw in (shell.sample, shell.sample_keys):
        with pytest.raises(
            errors.NotReadyError, match=rf"^sample has nothing to draw: .* \(waited {timeout:g} s\)$"
        ) as e:
            draw(2)
        assert e.value.__cause__ is None
        assert e.value.__suppress_context__
    shell.set_eligible(range(8), True)
    assert shell.get_stats() == before
    assert shell._buffer.rng.bit_generator.state == state
    assert not is_held(shell)


def test_what_is_said_is_what_is_missing_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, changed = shell_of(ring(limiter=relive.MinSize(2)), timeout=0.5)

    def too_little_in_time(may: Callable[[], bool], timeout: float | None) -> bool:
        assert timeout == 0.5
        shell.add(0, 0, 1.0, 1)
        return may()

    monkeypatch.setattr(changed, "wait_for", too_little_in_time)
    with pytest.raises(
        errors.NotReadyError, match=r"^sample held back by MinSize\(2\): add steps first \(waited 0.5 s\)$"
    ):
        shell.sample(3)


@pytest.mark.parametrize("timeout", [None, PATIENCE, 1e300])
def test_a_long_timeout_is_not_waited_for(timeout: float | None) -> None:
    shell, changed = shell_of(ring(), timeout=timeout)
    waiter = start(lambda: shell.sample(3))
    changed.until_waiting()
    live(shell, 1)
    assert len(waiter.result(PATIENCE)) == 3


@pytest.mark.parametrize(
    ("timeout", "error", "message"),
    [
        (-0.5, errors.ArgumentError, "^timeout must be at least 0, got -0.5$"),
        (float("nan"), errors.ArgumentError, "^timeout must be a finite real number, got nan$"),
        (float("inf"), errors.ArgumentError, "^timeout must be a finite real number, got inf$"),
        ("1", errors.ArgumentTypeError, "^timeout must be a finite real number, got '1'$"),
    ],
)
def test_a_wrong_timeout_is_refused(timeout: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        relive.ThreadSafeReplayBuffer(ring(), timeout=timeout)


def test_an_extra_may_be_called_timeout() -> None:
    shell, _ = shell_of(ring())
    shell.add(0, 0, 1.0, 1, timeout=7)
    assert shell.sample(1).extras["timeout"].tolist() == [7]


# Wrong arguments.


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.add(0.5, 0, 1.0, 1), errors.SchemaError, "^observation must fit int64, got 0.5"),
        (lambda s: s.add(0, 0, 1.0, stream=1), errors.ArgumentError, "^stream must be below streams = 1, got 1$"),
        (lambda s: s.add(0, 0), TypeError, "reward"),
        (lambda s: s.extend([0, 1], [0], [1.0]), errors.SchemaError, r"^observation must be of shape \(1,\)"),
        (lambda s: s.add_episode([0], [], [], terminated=True), errors.ArgumentError, "^an episode must have 1 to"),
        (lambda s: s.sample(0), errors.ArgumentError, "^batch_size must be at least 1, got 0$"),
        (lambda s: s.sample(15), errors.ArgumentError, r"^batch_size must be at most 14 with SampleToInsertRatio\("),
        (lambda s: s.sample_keys(15), errors.ArgumentError, "^batch_size must be at most 14 with"),
        (lambda s: s.sample(2, n_step=0), errors.ArgumentError, "^n_step must be at least 1, got 0$"),
        (lambda s: s.sample(2, beta=0.5), errors.ArgumentError, "^beta must be left out without priorities, got 0.5$"),
        (lambda s: s.sample(2, alpha=0.5), TypeError, "alpha"),
    ],
)
def test_a_wrong_argument_is_refused_at_once_and_not_after_the_wait(
    call: Callable[[Shell], Any], error: type[Exception], message: str
) -> None:
    shell, _ = held_back()
    shell.set_eligible(range(4), False)
    before = shell.get_stats()
    with pytest.raises(error, match=message):
        start(lambda: call(shell)).result(PATIENCE)
    assert shell.get_stats() == before
    assert not is_held(shell)


class Moody(relive.UniformSampler):
    """Refuses to draw although there are anchors, and does not say so beforehand."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        raise errors.NotReadyError("not in the mood")


def test_a_sampler_that_refuses_without_a_word_is_heard_and_not_waited_for() -> None:
    shell, _ = shell_of(ring(sampler=Moody()))
    live(shell, 1)
    with pytest.raises(errors.NotReadyError, match="^not in the mood$"):
        start(lambda: shell.sample(1)).result(PATIENCE)


# The end.


def test_closing_frees_whoever_waits_and_refuses_later_calls() -> None:
    shell, changed = held_back()
    waiters = [start(lambda verb=verb: INSERTS[verb](shell)) for verb in INSERTS]  # type: ignore[misc]
    changed.until_waiting(3)
    shell.close()
    shell.close()
    message = "^buffer is closed: only the RingReplayBuffer inside still works$"
    for waiter in waiters:
        with pytest.raises(errors.ClosedError, match=message):
            waiter.result(PATIENCE)
    for call in (*INSERTS.values(), VERBS["sample"], VERBS["sample_keys"]):
        with pytest.raises(errors.ClosedError, match=message):
            call(shell)
    assert shell.get_stats().appended == 8
    assert shell.read([7]).observation.tolist() == [7]
    with shell.locked() as buffer:
        assert len(buffer.sample(3)) == 3


@pytest.mark.parametrize("verb", ["sample", "sample_keys"])
def test_closing_frees_who_waits_for_a_batch(verb: str) -> None:
    shell, changed = shell_of(ring())
    waiters = [start(lambda: getattr(shell, verb)(2)) for _ in range(2)]
    changed.until_waiting(2)
    shell.close()
    for waiter in waiters:
        with pytest.raises(errors.ClosedError):
            waiter.result(PATIENCE)


@posix_test.SIGNALS
@pytest.mark.parametrize("verb", ["add", "sample"])
def test_a_wait_that_is_interrupted_leaves_no_trace(verb: str) -> None:
    shell, changed = held_back()
    if verb == "sample":
        shell.set_eligible(range(5), False)
    before, state = shell.get_stats(), shell._buffer.rng.bit_generator.state
    is_through = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        changed.until_waiting()
        # Python sleeps through a signal that comes just before a lock is waited for.
        while not is_through.wait(0.02):
            signal.pthread_kill(main, signal.SIGINT)

    def raise_once(*_: object) -> None:
        signal.signal(signal.SIGINT, lambda *_: None)
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGINT, raise_once)
    interrupter = start(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            VERBS[verb](shell)
    finally:
        is_through.set()
        interrupter.result(PATIENCE)
        signal.signal(signal.SIGINT, handler)
    assert shell.get_stats() == before
    assert not is_held(shell)
    assert not shell._changed._waiters  # type: ignore[attr-defined]
    assert shell._buffer.rng.bit_generator.state == state
    shell.set_eligible(range(5), True)
    assert len(shell.sample(8)) == 8
    shell.check()


# The other calls.

PLAIN: dict[str, Callable[[Shell], Any]] = {
    "read": lambda shell: shell.read([3], n_step=2),
    "eligible_keys": lambda shell: shell.eligible_keys(),
    "update_priorities": lambda shell: shell.update_priorities([3], [2.0]),
    "get_priorities": lambda shell: shell.get_priorities([3]),
    "set_eligible": lambda shell: shell.set_eligible([3], False),
    "end_episode": lambda shell: shell.end_episode(),
    "explain": lambda shell: shell.explain(3),
    "settings": lambda shell: shell.settings(),
    "schema": lambda shell: shell.schema,
    "appended": lambda shell: shell.appended,
    "get_stats": lambda shell: shell.get_stats(),
    "clear": lambda shell: shell.clear(),
    "check": lambda shell: shell.check(),
    "is_full": lambda shell: shell.is_full,
    "num_eligible": lambda shell: shell.num_eligible,
    "__len__": len,
    "__repr__": repr,
}
VERBS: dict[str, Callable[[Shell], Any]] = (
    PLAIN
    | INSERTS
    | {
        "sample": lambda shell: shell.sample(2),
        "sample_keys": lambda shell: shell.sample_keys(2),
        "batches": lambda shell: next(shell.batches(2)),
    }
)


class Spied(relive.PrioritizedReplayBuffer):
    """A buffer that tells of each call."""

    def called(self, name: str) -> None:
        """Record of a call."""

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name not in VERBS:
            return value
        if not callable(value):
            self.called(name)
            return value

        def call(*values: Any, **fields: Any) -> Any:
            self.called(name)
            return value(*values, **fields)

        return call

    def __len__(self) -> int:
        self.called("__len__")
        return super().__len__()

    def __repr__(self) -> str:
        self.called("__repr__")
        return super().__repr__()


@pytest.mark.parametrize("verb", VERBS)
def test_every_call_is_made_under_the_lock(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell, _ = shell_of(Spied(100, seed=0))
    live(shell, 8)
    calls: list[tuple[str, bool]] = []
    monkeypatch.setattr(Spied, "called", lambda inside, name: calls.append((name, is_held(shell))))
    VERBS[verb](shell)
    assert (verb, True) in calls
    assert all(held for _, held in calls)
    assert not is_held(shell)


def test_a_block_of_locked_holds_the_lock_and_frees_it_when_it_fails() -> None:
    shell, _ = shell_of(ring())
    live(shell, 1)
    with pytest.raises(ZeroDivisionError), shell.locked() as buffer:
        assert is_held(shell)
        assert len(shell) == len(buffer) == 1
        raise ZeroDivisionError
    assert not is_held(shell)


def test_plain_calls_answer_what_the_buffer_inside_answers() -> None:
    inside = prioritized(8)
    shell, _ = shell_of(inside)
    live(shell, 9)
    assert shell.capacity == 8
    assert (len(shell), shell.is_full, shell.num_eligible) == (8, True, 8)
    assert shell.eligible_keys().tolist() == list(range(1, 9))
    assert shell.update_priorities([0, 3], [7.0, 2.0]) == 1
    assert shell.get_priorities([3, 4]).tolist() == [2.0, 1.0]
    assert shell.read([3], n_step=2, gamma=1.0).reward.tolist() == [2.0]
    assert shell.set_eligible([0, 3, 4], False) == 2
    assert (len(shell), shell.num_eligible) == (8, 6)
    assert shell.get_stats() == inside.get_stats()
    assert repr(shell) == f"<ThreadSafeReplayBuffer around {inside!r}>"
    shell.clear()
    assert (len(shell), shell.is_full) == (0, False)


def test_what_the_buffer_inside_is_can_be_asked_for() -> None:
    limiter = relive.MinSize(1)
    inside = prioritized(8, streams=2, limiter=limiter)
    shell, _ = shell_of(inside)
    assert [shell.schema] == [None]
    assert shell.add_steps([[0], [1], [2]], [0, 1], [1.0, 2.0], stream=1).tolist() == [0, 1]
    assert [shell.schema] == [inside.schema] != [None]
    assert (shell.streams, shell.appended, shell.has_priorities) == (2, 2, True)
    assert (shell.limiter, shell.sampler, shell.window) == (limiter, inside.sampler, inside.window)
    assert shell.settings() == inside.settings()
    assert shell.explain(1) == inside.explain(1)
    batch = inside.read([1, 0])
    assert shell.explain(batch) == inside.explain(batch)
    assert shell.end_episode(stream=1)
    assert not shell.end_episode(1)


# Batch after batch.


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_those_of_the_buffer_and_wait_as_sample_does(prefetch: int) -> None:
    shell, watched = shell_of(ring())
    drawn = shell.batches(4, n_step=2, prefetch=prefetch)
    assert iter(drawn) is drawn
    first = start(lambda: next(drawn))
    watched.until_waiting()
    assert not first.done()
    twin = ring()
    for buffer in (shell, twin):
        buffer.add_episode(range(31), [0] * 30, [1.0] * 30, terminated=True)
    plain = zoo.plain
    batches_of_twin = twin.batches(4, n_step=2, prefetch=prefetch)
    assert plain(first.result(PATIENCE)) == plain(next(batches_of_twin))
    for t in range(5):
        assert plain(next(drawn)) == plain(next(batches_of_twin))
        for buffer in (shell, twin):
            buffer.add(t, 0, 1.0, t + 1)
    assert shell.get_stats() == twin.get_stats()
    drawn.close()
    with pytest.raises(StopIteration):
        next(drawn)


def test_batches_try_again_after_a_wait_that_was_too_long_and_end_with_the_buffer() -> None:
    shell, _ = shell_of(ring(), timeout=0.01)
    drawn = shell.batches(4)
    with pytest.raises(errors.NotReadyError, match=r"\(waited 0.01 s\)$"):
        next(drawn)
    live(shell, 5)
    assert len(next(drawn)) == 4
    shell.close()
    with pytest.raises(errors.ClosedError, match="^buffer is closed"):
        next(drawn)


def test_wrong_arguments_of_batches_are_refused_at_once() -> None:
    shell, _ = shell_of(ring())
    with pytest.raises(errors.ArgumentError, match="^prefetch must be at least 0, got -1$"):
        shell.batches(4, prefetch=-1)


def test_batches_gathered_ahead_are_not_torn_by_threads_that_write_and_draw() -> None:
    """Observation, action and reward of a row are one number; one iterator serves two threads."""
    shell, _ = shell_of(ring(64))
    shell.add_episode(np.arange(65.0), np.arange(64.0), np.arange(64.0), terminated=True)
    drawn = shell.batches(256, prefetch=2)

    def write(actor: int) -> None:
        for t in range(300):
            number = 1000.0 * actor + t
            shell.add(number, number, number, number + 1, terminated=True)

    def learn(turns: int) -> int:
        for _ in range(turns):
            batch = next(drawn)
            assert batch.observation.tolist() == batch.action.tolist() == batch.reward.tolist()
            assert (batch.next_observation == batch.observation + 1).all()
        return turns

    assert together(shell, lambda: write(1), lambda: learn(60), lambda: write(2), lambda: learn(60))[1::2] == [60, 60]
    assert shell.get_stats().sampled == 256 * 122
    drawn.close()
    shell.check()


def test_saving_holds_the_lock_and_a_state_wakes_who_waits(tmp_path: pathlib.Path) -> None:
    inside = ring(8)
    shell, watched = shell_of(inside)
    live(shell, 5)
    held: list[bool] = []
    shell.save(tmp_path / "saved", keep=2, progress=lambda count, total: held.append(is_held(shell)))
    assert held
    assert all(held)
    loaded = relive.RingReplayBuffer.load(tmp_path / "saved")
    state = shell.state_dict()
    assert zoo.plain(state) == zoo.plain(loaded.state_dict())
    shell.clear()
    waiting = start(lambda: shell.sample(2))
    watched.until_waiting()
    shell.load_state_dict(state)
    assert zoo.plain(waiting.result(PATIENCE)) == zoo.plain(loaded.sample(2))
    shell.save(tmp_path / "saved", keep=2)
    assert {"saved", "saved.1"} <= {path.name for path in tmp_path.iterdir()}


def test_check_says_what_is_wrong_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = ring()
    shell, _ = shell_of(inside)
    shell.check()

    def find_something() -> None:
        raise errors.CorruptionError("a row is wrong")

    monkeypatch.setattr(inside, "check", find_something)
    with pytest.raises(errors.CorruptionError, match="^a row is wrong$"):
        shell.check()


@pytest.mark.parametrize("inside", [None, [], relive.ThreadSafeReplayBuffer(ring())])
def test_what_is_no_column_buffer_is_refused(inside: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="^buffer must be a .*buffer.*, got "):
        relive.ThreadSafeReplayBuffer(inside)


def test_types_survive_the_shell() -> None:
    transitions = relive.ThreadSafeReplayBuffer(ring(10))
    assert_type(transitions, relive.ThreadSafeReplayBuffer[relive.TransitionBatch])
    assert_type(transitions.add(0, 0, 1.0, 1), int)
    assert_type(transitions.extend([0], [0], [1.0], [1]), arrays.Keys)
    assert_type(transitions.add_episode([0, 1], [0], [1.0], terminated=True), arrays.Keys)
    assert_type(transitions.sample(1), relive.TransitionBatch)
    assert_type(transitions.sample_keys(1), arrays.Keys)
    assert_type(transitions.read([0]), relive.TransitionBatch)
    assert_type(next(transitions.batches(1)), relive.TransitionBatch)
    assert_type(transitions.explain(0), relive.RowOrigin)
    runs = relive.ThreadSafeReplayBuffer(sequences(10, length=1))
    runs.add(0, 0, 1.0, 1)
    assert_type(runs.sample(1), relive.SequenceBatch)
