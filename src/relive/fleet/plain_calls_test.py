"""SyncReplay and SyncWriter: the same as the awaited client and writer, in a plain loop."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent import futures
import copy
import functools
import gc
import inspect
import itertools
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import local_test
from relive.fleet import replay
from relive.waiting import waiting_test


class Remote:
    """A transport to a fleet in the event loop of another thread, as that of an actor."""

    def __init__(self, fleet: local_test.LocalFleet, loop: asyncio.AbstractEventLoop) -> None:
        self._fleet, self._loop = fleet, loop

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        call = self._fleet.call(shard, method, *arguments, seconds=seconds)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    async def coordinator(self, method: str, *arguments: Any) -> Any:
        call = self._fleet.coordinator(method, *arguments)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    async def launch(self, shard: int) -> None:
        raise NotImplementedError

    def end(self, shard: int) -> None:
        raise NotImplementedError


def client_of(make: Callable[[], Any], **settings: Any) -> Iterator[Any]:
    """Yield a client of a fleet that lives in another thread, and the fleet."""
    started: futures.Future[tuple[Any, Any]] = futures.Future()

    async def live() -> None:
        fleet, over = local_test.LocalFleet(make, 2, **settings), asyncio.Event()
        client = fleet.replay()
        loop = asyncio.get_running_loop()
        remote = replay.Replay[Any](Remote(fleet, loop), fleet.settings, client._description, client._shards.members)
        started.set_result(((remote, fleet), (loop, over)))
        await over.wait()
        fleet.close()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    both, (loop, over) = started.result()
    yield both
    loop.call_soon_threadsafe(over.set)
    thread.join()


@pytest.fixture
def columns() -> Iterator[Any]:
    yield from client_of(lambda: relive.RingReplayBuffer(1000, streams=4, seed=0))


@pytest.fixture
def agents() -> Iterator[Any]:
    yield from client_of(lambda: relive.EpisodeReplayBuffer[Any, Any](seed=0))


def test_steps_are_added_in_a_plain_loop(columns: Any) -> None:
    client, fleet = columns
    threads = threading.active_count()
    with client.sync_writer(batch_steps=5) as writer:
        for t in range(20):
            writer.add(float(t), 0, 1.0, float(t + 1), terminated=t == 19)
        writer.add_episode(np.arange(4.0) + 100, np.zeros(3), np.ones(3), terminated=True)
        writer.flush()
        assert (writer.stored, writer.refused, writer.lost) == (23, 0, 0)
        assert not writer.end_episode()
        writer.add(200.0, 0, 1.0, 201.0)
    assert threading.active_count() == threads
    there = [buffer.read(buffer.eligible_keys()).observation for buffer in fleet.buffers() if len(buffer)]
    rows = np.sort(np.concatenate(there)).tolist()
    assert rows == [*range(20), 100, 101, 102, 200]
    assert writer.stored == 24


def test_episodes_are_written_in_a_plain_loop(agents: Any) -> None:
    client, fleet = agents
    with client.sync_writer() as writer:
        with writer.episode("a") as episode:
            episode.append(0, 0, 1.0)
            episode.append(1, 0, 1.0)
            episode.end(2)
        with pytest.raises(ZeroDivisionError), writer.episode("b") as episode:
            episode.append(5, 0, 1.0)
            raise ZeroDivisionError
    found = {one.agent_id: one.status for buffer in fleet.buffers() for one in local_test.episodes_in(buffer)}
    assert found == {"a": "COMPLETED", "b": "ABORTED"}


def test_a_sync_writer_raises_errors_from_its_calls(columns: Any) -> None:
    client, _ = columns
    threads = threading.active_count()
    with pytest.raises(errors.ArgumentError, match="batch_steps must be at least 1, got 0"):
        client.sync_writer(batch_steps=0)
    with pytest.raises(TypeError, match="colour"):
        client.sync_writer(colour=3)
    writer = client.sync_writer()
    with pytest.raises(errors.ArgumentError, match="stream must be at least 0, got -1"):
        writer.end_episode(stream=-1)
    with pytest.raises(AttributeError, match="sample"):
        writer.sample(3)
    with pytest.raises(AttributeError, match="_secret"):
        _ = writer._secret
    with pytest.raises(TypeError):
        copy.copy(writer)
    writer.add_episode(np.zeros((3, 2)), np.zeros(2), np.zeros(2), terminated=True)
    writer.flush()
    writer.add_episode(np.zeros((3, 1)), np.zeros(2), np.zeros(2), terminated=True)
    with pytest.raises(errors.SchemaError, match="observation"):
        writer.close()
    writer.close()
    with pytest.raises(errors.ClosedError, match=r"writer is closed: take a new one from the fleet's sync_writer\(\)"):
        writer.flush()
    assert threading.active_count() == threads


def test_an_interrupted_call_is_cancelled(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = columns
    with client.sync_writer() as writer:
        over: list[str] = []

        async def forever() -> None:
            try:
                await asyncio.sleep(1000.0)
            finally:
                over.append("cancelled")

        inside: Any = writer._inside
        inside.forever = forever
        real = asyncio.run_coroutine_threadsafe

        def interrupted(work: Any, loop: Any) -> Any:
            future = real(work, loop)
            if work.__name__ == "forever":
                future.add_done_callback(lambda _: None)
                monkeypatch.setattr(future, "result", interrupt)
            return future

        def interrupt() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.forever()
        writer.flush()
        assert over == ["cancelled"]


@pytest.fixture
def prioritized() -> Iterator[Any]:
    yield from client_of(lambda: relive.PrioritizedReplayBuffer(1000, streams=4, seed=0))


def test_a_plain_loop_writes_draws_and_learns(prioritized: Any) -> None:
    client, fleet = prioritized
    threads = threading.active_count()
    with client.sync() as plain:
        with plain.writer(batch_steps=5) as writer:
            writer.add_episode(np.arange(21.0), np.zeros(20), np.ones(20), terminated=True)
        keys = plain.eligible_keys()
        assert plain.update_priorities(keys, np.arange(20.0)) == 20
        assert plain.get_priorities(keys).tolist() == [*range(20)]
        assert len(plain.sample(8, beta=0.5)) == len(plain.sample_keys(8)) == 8
        for number, batch in enumerate(plain.batches(8, prefetch=3)):
            assert len(batch) == 8
            if number == 10:
                break
        assert plain.ping() == ["pong"] * 2
        assert sum(plain.apply(len)) == 20
        assert plain.stats().size == 20
        with pytest.raises(errors.ArgumentError, match="batch_size must be at least 1, got 0"):
            plain.sample(0)
        with pytest.raises(TypeError, match="colour"):
            next(plain.batches(8, colour=3))
        plain.clear()
    assert threading.active_count() == threads
    assert [len(buffer) for buffer in fleet.buffers()] == [0, 0]
    with pytest.raises(errors.ClosedError, match=r"^client is closed: take a new one from the fleet's sync\(\)$"):
        plain.ping()


def test_episodes_are_consumed_in_a_plain_loop(agents: Any) -> None:
    client, _ = agents
    with client.sync() as plain:
        plain.set_policy_version(0)
        with plain.admit() as ticket, plain.episodes_writer() as writer, writer.episode("a", ticket=ticket) as episode:
            episode.append(0, 0, 1.0)
            episode.end(1)
        assert [episode.agent_id for episode in plain.next_episodes(1)] == ["a"]
        plain.set_policy_version(1)
    with plain:  # Twice does no harm.
        pass


@pytest.mark.parametrize("name", [name for name, _ in inspect.getmembers(replay.Replay, inspect.iscoroutinefunction)])
def test_every_awaited_call_has_a_plain_one(name: str, columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(self: Any, *arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return arguments, named

    monkeypatch.setattr(replay.Replay, name, call)
    with columns[0].sync() as plain:
        if name.startswith("_"):
            with pytest.raises(AttributeError):
                getattr(plain, name)()
        else:
            assert getattr(plain, name)(1, two=2) == ((1,), {"two": 2})


def test_threads_share_a_client(columns: Any) -> None:
    client, _ = columns
    with client.sync_writer() as writer:
        writer.add_episode(np.arange(4.0), np.zeros(3), np.ones(3), terminated=True)
    with client.sync() as plain, futures.ThreadPoolExecutor(4) as pool:
        sizes = [len(batch) for batch in pool.map(plain.sample, range(1, 41))]
    assert sizes == [*range(1, 41)]


def test_plain_calls_are_refused_where_an_event_loop_runs(columns: Any) -> None:
    client, _ = columns
    plain, writer = client.sync(), client.sync_writer()

    async def call() -> None:
        for each, name in ((plain.ping, "client"), (plain.close, "client"), (writer.flush, "writer")):
            with pytest.raises(
                errors.EventLoopError,
                match=f"^{name} would block the event loop that is running: await the same call of the fleet$",
            ):
                each()

    asyncio.run(call())
    assert plain.ping() == ["pong"] * 2
    writer.close()
    with plain:
        pass


def test_closing_a_client_closes_the_fleet(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = columns
    closed: list[Any] = []

    async def close(self: Any) -> None:
        closed.append(self)

    monkeypatch.setattr(replay.Replay, "close", close, raising=False)
    plain = client.sync()
    with pytest.raises(TypeError, match="cannot be copied or pickled: take another one of the fleet where it is"):
        copy.copy(plain)
    plain.close()
    plain.close()
    assert len(closed) == 1
    with pytest.raises(errors.ClosedError, match="client is closed"):
        plain.sample(3)


PATIENCE = 60.0
FOREVER: dict[str, Callable[[Any], Any]] = {
    "sample": lambda plain: plain.sample(3, n=1, gamma=0.9),
    "batches": lambda plain: next(plain.batches(3, n=1, gamma=0.9)),
    "next_groups": lambda plain: plain.next_groups(1),
    "admit": lambda plain: plain.admit(),
}


def waiting(call: Callable[[], Any]) -> futures.Future[Any]:
    """Make a call in a thread of its own, and return it while it waits."""
    future = waiting_test.start(call)
    with pytest.raises(futures.TimeoutError):
        future.result(0.05)
    return future


@pytest.fixture
def scarce() -> Iterator[Any]:
    """A fleet in which learners and actors wait."""
    admission = relive.Admission(max_lag=0, episodes_per_version=2)
    limiter = relive.SampleToInsertRatio(1.0, min_size=1, error_buffer=10.0)
    make = functools.partial(relive.EpisodeReplayBuffer[Any, Any], groups=relive.Groups(2), seed=0)
    yield from client_of(make, admission=admission, limiter=limiter)


@pytest.mark.parametrize("name", FOREVER)
def test_leaving_the_block_of_a_client_ends_its_calls(name: str, scarce: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, _ = scarce
    threads = threading.active_count()
    with client.sync() as plain:
        ticket = plain.admit(2)
        waiters = [waiting(lambda: FOREVER[name](plain)) for _ in range(2)]
    for waiter in waiters:
        with pytest.raises(errors.ClosedError, match=r"^client is closed: take a new one from the fleet's sync\(\)$"):
            waiter.result(PATIENCE)
    assert (threading.active_count(), caplog.records, ticket.left) == (threads, [], 2)


def test_an_episode_ends_with_the_block_of_its_client(scarce: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, fleet = scarce
    may_go_on = threading.Event()
    with client.sync() as plain:
        ticket = plain.admit(2)

        def act() -> None:
            with plain.episodes_writer() as writer, writer.episode("a", ticket=ticket) as episode:
                episode.append(0, 0, 1.0)
                assert may_go_on.wait(PATIENCE)
                episode.append(1, 0, 1.0)

        acting = waiting(act)
    may_go_on.set()
    with pytest.raises(errors.ClosedError, match="^client is closed"):
        acting.result(PATIENCE)
    gc.collect()
    assert (caplog.records, sum(map(len, fleet.buffers()))) == ([], 0)


def test_closing_an_iterator_ends_its_waits_and_no_others(columns: Any) -> None:
    client, _ = columns
    with client.sync() as plain:
        batches, others = plain.batches(3), plain.batches(3)
        waiters = [waiting(lambda: next(batches, None)) for _ in range(2)]
        other = waiting(lambda: next(others))
        batches.close()
        batches.close()
        assert [waiter.result(PATIENCE) for waiter in waiters] == [None, None]
        assert not other.done()
        assert next(batches, None) is None
        with client.sync_writer() as writer:
            writer.add(0.0, 0, 1.0, 1.0)
        assert len(other.result(PATIENCE)) == 3
        others.close()
    others.close()
    with pytest.raises(errors.ClosedError, match="client is closed"):
        next(others)


def test_calls_that_race_with_the_end_are_made_or_refused(columns: Any) -> None:
    client, _ = columns
    for _ in range(10):
        plain = client.sync()

        def ping(plain: Any = plain) -> int:
            for number in itertools.count():
                try:
                    assert plain.ping() == ["pong"] * 2
                except errors.ClosedError:
                    return number
            raise AssertionError

        callers = [waiting_test.start(ping) for _ in range(4)]
        while not plain.ping():
            pass
        with plain:
            pass
        assert all(caller.result(PATIENCE) >= 0 for caller in callers)


def test_several_threads_may_close_a_writer(columns: Any) -> None:
    client, _ = columns
    writer = client.sync_writer()
    may_go_on, close = threading.Event(), writer._inside.close

    async def slow() -> None:
        await asyncio.to_thread(may_go_on.wait, PATIENCE)
        await close()

    writer._inside.close = slow
    writer.add(0.0, 0, 1.0, 1.0)
    closers = [waiting(writer.close) for _ in range(2)]
    may_go_on.set()
    assert [closer.result(PATIENCE) for closer in closers] == [None, None]
    assert writer.stored == 1


def test_a_writer_says_when_it_closes_that_the_fleet_was_closed(columns: Any) -> None:
    writer, threads = columns[0].sync_writer(), threading.active_count()

    async def close() -> None:
        raise errors.ClosedError("the fleet was closed")

    writer._inside.close = close
    with pytest.raises(errors.ClosedError, match="^the fleet was closed$"):
        writer.close()
    assert threading.active_count() == threads - 1


def test_batches_that_nobody_has_are_no_longer_drawn(columns: Any) -> None:
    client, _ = columns
    with client.sync_writer() as writer:
        writer.add_episode(np.arange(4.0), np.zeros(3), np.ones(3), terminated=True)
    with client.sync() as plain:
        generators = plain._loop._asyncgens
        batches = plain.batches(8)
        assert len(next(batches)) == 8
        assert len(generators) == 1
        del batches
        plain.ping()
        plain.ping()
        assert len(generators) == 0


def test_a_program_may_end_in_the_middle_of_batches() -> None:
    program = """
import relive.fleet.plain_calls_test as tests, relive
client, fleet = next(living := tests.client_of(lambda: relive.RingReplayBuffer(9, seed=0)))
with client.sync_writer() as writer:
    writer.add_episode([0.0, 1.0, 2.0], [0, 0], [0.0, 0.0], terminated=True)
plain = client.sync()
batches = plain.batches(4)
print(len(next(batches)))
next(living, None)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("4\n", "")
