"""What sharing between threads has beside `waiting_test`: whole rows, timeouts, interrupts, what holds the lock."""

from collections.abc import Callable
from concurrent import futures
import pathlib
import signal
import threading
import time
from typing import Any, assert_type

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.persistence import posix_test
from relive.testing import zoo
from relive.waiting import waiting_test

Shell = relive.ThreadSafeReplayBuffer[Any]


def shell_of(buffer: Any, **settings: Any) -> tuple[Shell, waiting_test.Threads]:
    """Return a buffer that is shared, and its adapter."""
    way = waiting_test.Threads(buffer, **settings)
    return way.shared, way


def held_back(**settings: Any) -> tuple[Shell, waiting_test.Threads]:
    """Return one whose limiter holds inserts back until two samples are drawn."""
    inside = waiting_test.limited()
    live(inside, 8)
    return shell_of(inside, **settings)


def together(shell: Shell, *calls: Callable[[], Any]) -> list[Any]:
    """Return what the calls answer that are made in a thread each; nobody waits for one that failed."""
    started = [waiting_test.start(call) for call in calls]
    finished, _ = futures.wait(started, waiting_test.PATIENCE, return_when=futures.FIRST_EXCEPTION)
    if len(finished) < len(started):
        shell.close()
        for future in finished:
            future.result()
    return [future.result(waiting_test.PATIENCE) for future in started]


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


BUFFERS: dict[str, Callable[[], Any]] = {
    "ring": lambda: waiting_test.ring(64, gamma=1.0, streams=4),
    "n-step": lambda: waiting_test.ring(64, gamma=1.0, streams=4, n_step=3),
    "stacks": lambda: waiting_test.ring(64, gamma=1.0, streams=4, frame_stack=3),
    "priorities": lambda: waiting_test.prioritized(64, gamma=1.0, streams=4, epsilon=0.01),
    "sequences": lambda: waiting_test.sequences(64, length=4, streams=4, prioritized=True, pad=True),
}


@pytest.mark.parametrize("steps", [100, pytest.param(5_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", BUFFERS)
def test_no_row_is_torn_between_threads(kind: str, steps: int) -> None:
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

    with waiting_test.hasty():
        written, *readers = together(shell, write_all, *(lambda seed=seed: read(seed) for seed in range(3)))
    shell.check()
    stats = shell.get_stats()
    assert stats.appended == sum(written) >= 4 * steps
    assert stats.evicted == stats.appended - 64
    assert stats.sampled == sum(readers)
    assert stats.spliced_episodes == 0
    assert_whole(shell.read(shell.eligible_keys()))


# Timeouts.


@pytest.mark.parametrize("timeout", [0, 0.01, np.float32(0.0)])
def test_a_timeout_says_what_was_waited_for(timeout: Any) -> None:
    shell, way = held_back(timeout=timeout)
    before, state = shell.get_stats(), way.inside.rng.bit_generator.state
    for call, (insert, _) in waiting_test.INSERTS.items():
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
    assert way.inside.rng.bit_generator.state == state
    assert not way.is_held()


def test_a_timeout_says_what_is_missing_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, way = shell_of(waiting_test.ring(limiter=relive.MinSize(2)), timeout=0.05)

    def too_little_in_time(may: Callable[[], bool], timeout: float | None) -> bool:
        assert timeout is not None
        assert 0 < timeout <= 0.05
        shell.add(0, 0, 1.0, 1)
        time.sleep(timeout)
        return may()

    monkeypatch.setattr(way.changed, "wait_for", too_little_in_time)
    with pytest.raises(
        errors.NotReadyError, match=r"^sample held back by MinSize\(2\): add steps first \(waited 0.05 s\)$"
    ):
        shell.sample(3)


@pytest.mark.parametrize("timeout", [None, waiting_test.PATIENCE, 1e300])
def test_a_long_timeout_ends_with_the_wait(timeout: float | None) -> None:
    shell, way = shell_of(waiting_test.ring(), timeout=timeout)
    waiter = way.begin(lambda shared: shared.sample(3))
    live(shell, 1)
    assert len(way.answer(waiter)) == 3


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
        relive.ThreadSafeReplayBuffer(waiting_test.ring(), timeout=timeout)


def test_an_extra_may_be_called_timeout() -> None:
    shell, _ = shell_of(waiting_test.ring())
    shell.add(0, 0, 1.0, 1, timeout=7)
    assert shell.sample(1).extras["timeout"].tolist() == [7]


# The end.


@posix_test.SIGNALS
@pytest.mark.parametrize("verb", ["add", "sample"])
def test_an_interrupted_wait_leaves_no_trace(verb: str) -> None:
    shell, way = held_back()
    if verb == "sample":
        shell.set_eligible(range(5), False)
    before, state = shell.get_stats(), way.inside.rng.bit_generator.state
    is_through = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while main not in way.changed.asleep:
            time.sleep(1e-4)
        # Python sleeps through a signal that comes just before a lock is waited for.
        while not is_through.wait(0.02):
            signal.pthread_kill(main, signal.SIGINT)

    def raise_once(*_: object) -> None:
        signal.signal(signal.SIGINT, lambda *_: None)
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGINT, raise_once)
    interrupter = waiting_test.start(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            VERBS[verb](shell)
    finally:
        is_through.set()
        interrupter.result(waiting_test.PATIENCE)
        signal.signal(signal.SIGINT, handler)
    assert shell.get_stats() == before
    assert way.is_idle()
    assert way.inside.rng.bit_generator.state == state
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
    | {name: insert for name, (insert, _) in waiting_test.INSERTS.items()}
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
    shell, way = shell_of(Spied(100, seed=0))
    live(shell, 8)
    calls: list[tuple[str, bool]] = []
    monkeypatch.setattr(Spied, "called", lambda inside, name: calls.append((name, way.is_held())))
    VERBS[verb](shell)
    assert (verb, True) in calls
    assert all(held for _, held in calls)
    assert not way.is_held()


def test_locked_blocks_hold_the_lock_until_they_end() -> None:
    shell, way = shell_of(waiting_test.ring())
    live(shell, 1)
    with pytest.raises(ZeroDivisionError), shell.locked() as buffer:
        assert way.is_held()
        assert len(shell) == len(buffer) == 1
        raise ZeroDivisionError
    assert not way.is_held()


def test_leaving_a_locked_block_wakes_who_waits() -> None:
    shell, way = shell_of(waiting_test.ring())
    waiter = way.begin(lambda shared: shared.sample(2))
    for t in range(2):
        assert not waiter.done()
        with shell.locked() as buffer:
            buffer.add(t, 0, 1.0)
        way.settle()
    assert len(way.answer(waiter)) == 2


# Batch after batch.


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_of_threads_are_those_of_the_buffer(prefetch: int) -> None:
    shell, way = shell_of(waiting_test.ring())
    drawn = shell.batches(4, n_step=2, prefetch=prefetch)
    assert iter(drawn) is drawn
    first = way.begin(lambda _: next(drawn))
    assert not first.done()
    twin = waiting_test.ring()
    for buffer in (shell, twin):
        buffer.add_episode(range(31), [0] * 30, [1.0] * 30, terminated=True)
    plain = zoo.plain
    batches_of_twin = twin.batches(4, n_step=2, prefetch=prefetch)
    assert plain(way.answer(first)) == plain(next(batches_of_twin))
    for t in range(5):
        assert plain(next(drawn)) == plain(next(batches_of_twin))
        for buffer in (shell, twin):
            buffer.add(t, 0, 1.0, t + 1)
    assert shell.get_stats() == twin.get_stats()
    drawn.close()
    with pytest.raises(StopIteration):
        next(drawn)


def test_batches_go_on_after_a_timeout_until_the_end() -> None:
    shell, _ = shell_of(waiting_test.ring(), timeout=0.01)
    drawn = shell.batches(4)
    with pytest.raises(errors.NotReadyError, match=r"\(waited 0.01 s\)$"):
        next(drawn)
    live(shell, 5)
    assert len(next(drawn)) == 4
    shell.close()
    with pytest.raises(errors.ClosedError, match="^buffer is closed"):
        next(drawn)


def test_prefetched_batches_are_not_torn_by_threads() -> None:
    """Observation, action and reward of a row are one number; one iterator serves two threads."""
    shell, _ = shell_of(waiting_test.ring(64))
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


def test_saving_holds_the_lock(tmp_path: pathlib.Path) -> None:
    inside = waiting_test.ring(8)
    shell, way = shell_of(inside)
    live(shell, 5)
    held: list[bool] = []
    shell.save(tmp_path / "saved", keep=2, progress=lambda count, total: held.append(way.is_held()))
    assert held
    assert all(held)
    loaded = relive.RingReplayBuffer.load(tmp_path / "saved")
    state = shell.state_dict()
    assert zoo.plain(state) == zoo.plain(loaded.state_dict())
    shell.clear()
    waiter = way.begin(lambda shared: shared.sample(2))
    shell.load_state_dict(state)
    assert zoo.plain(way.answer(waiter)) == zoo.plain(loaded.sample(2))
    shell.save(tmp_path / "saved", keep=2)
    assert {"saved", "saved.1"} <= {path.name for path in tmp_path.iterdir()}


def test_types_survive_the_wrapper_for_threads() -> None:
    transitions = relive.ThreadSafeReplayBuffer(waiting_test.ring(10))
    assert_type(transitions, relive.ThreadSafeReplayBuffer[relive.TransitionBatch])
    assert_type(transitions.add(0, 0, 1.0, 1), int)
    assert_type(transitions.extend([0], [0], [1.0], [1]), arrays_lib.Keys)
    assert_type(transitions.add_episode([0, 1], [0], [1.0], terminated=True), arrays_lib.Keys)
    assert_type(transitions.sample(1), relive.TransitionBatch)
    assert_type(transitions.sample_keys(1), arrays_lib.Keys)
    assert_type(transitions.read([0]), relive.TransitionBatch)
    assert_type(next(transitions.batches(1)), relive.TransitionBatch)
    assert_type(transitions.explain(0), relive.RowOrigin)
    runs = relive.ThreadSafeReplayBuffer(waiting_test.sequences(10, length=1))
    runs.add(0, 0, 1.0, 1)
    assert_type(runs.sample(1), relive.SequenceBatch)


# Buffers of episodes.


def act(shell: Any, agents: int, episodes: int) -> None:
    for number in range(agents * episodes):
        with shell.admit() as ticket:
            episode_id = shell.start_episode(f"{number % agents}", group_id=f"{number // 2}", ticket=ticket)
        for t in range(3):
            shell.append_observation_action_reward(episode_id, (number, t), t, 1.0)
        shell.end_episode(episode_id, (number, 3))


def test_threads_share_groups_of_episodes() -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any](groups=relive.Groups(2), admission=relive.Admission(0, 2), seed=0)
    shell: Any = relive.ThreadSafeReplayBuffer(buffer, timeout=20.0)
    actor = threading.Thread(target=act, args=(shell, 2, 5))
    actor.start()
    for version in range(5):
        shell.set_policy_version(version)
        ((first, second),) = shell.next_groups(1)
        assert [first.agent_id, second.agent_id] == ["0", "1"]
        assert all(sample.reward == 3.0 for sample in shell.sample_n_step(8, 3, 1.0) if not sample.start_step)
    actor.join()
    shell.check()
    assert shell.get_stats().completed == 10


def test_threads_wait_for_episodes_until_the_timeout() -> None:
    shell = relive.ThreadSafeReplayBuffer(relive.EpisodeReplayBuffer[Any, Any](), timeout=0.15)
    began = time.monotonic()
    with pytest.raises(relive.NotReadyError, match=r"^next_episodes_nowait found 0 of 1 .* \(waited 0.15 s\)$"):
        shell.next_episodes(1)
    assert time.monotonic() - began >= 0.15
    with pytest.raises(relive.ArgumentError, match="^count must be at least 1, got 0$"):
        shell.next_episodes(0)
    patient = relive.ThreadSafeReplayBuffer(relive.EpisodeReplayBuffer[Any, Any]())
    threading.Timer(0.1, patient.close).start()
    with pytest.raises(relive.ClosedError, match="^buffer is closed: only the EpisodeReplayBuffer inside still works$"):
        patient.next_episodes(1)
