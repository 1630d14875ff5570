"""A fleet of real processes, which are killed. Everything else about fleets is tested in relive.fleet, without Ray.

A process takes seconds to start, so what leaves no trace shares two fleets, which are emptied for each test.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
import contextlib
import os
import pathlib
import signal
import sys
import threading
import time
import types
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

import ray
from ray import cloudpickle
from ray import exceptions
from ray._common import ray_option_utils

import relive
from relive import errors
from relive.fleet import shard
from relive.integrations import ray as relive_ray

PATIENCE = 120.0
"""Seconds after which a test has hung; a busy machine may take twenty to start a process."""

SCHEMA = relive.Schema(relive.Field(3, "int64"), relive.Field((), "int64"), reward=relive.Field((), "float32"))


def ring() -> Any:
    return relive.RingReplayBuffer(1_000_000, SCHEMA, n_step=3, streams=8, seed=0)


def prioritized() -> Any:
    settings: dict[str, Any] = {"n_step": 3, "streams": 8, "alpha": 1.0, "epsilon": 0.0, "beta": 1.0, "seed": 0}
    return relive.PrioritizedReplayBuffer(10_000, SCHEMA, **settings)


def episodes() -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](max_transitions=100_000, seed=0)


@contextlib.asynccontextmanager
async def fleet(make: Callable[[], Any], **settings: Any) -> AsyncIterator[Any]:
    replay: Any = relive_ray.ShardedReplay.start(make, **settings)
    try:
        yield replay
    finally:
        await replay.close()


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Processes need not import pytest.
    ray.init(
        include_dashboard=False, num_cpus=2, logging_level="ERROR", log_to_driver=False, object_store_memory=100_000_000
    )
    yield
    ray.shutdown()


def started(make: Callable[[], Any], **settings: Any) -> Iterator[Any]:
    """Yield a fleet that lasts, and end it."""
    replay: Any = relive_ray.ShardedReplay.start(make, **settings)
    yield replay
    asyncio.run(copy_of(replay).close())


def copy_of(replay: Any) -> Any:
    """Return another client of a fleet, as a process has it that the client is sent to."""
    return cloudpickle.loads(cloudpickle.dumps(replay))


@pytest.fixture(scope="module")
def _columns() -> Iterator[Any]:
    yield from started(prioritized, shards=2, timeout=10.0, recovery=PATIENCE, checkpoint_seconds=None, seed=1)


@pytest.fixture(scope="module")
def _episodes() -> Iterator[Any]:
    yield from started(episodes, shards=2, lease=5.0, recovery=PATIENCE)


@pytest.fixture
async def columns(_columns: Any) -> Any:
    """Return a new client of an empty fleet of two shards with priorities, which all are there."""
    return await emptied(_columns)


@pytest.fixture
async def agents(_episodes: Any) -> Any:
    """Return a new client of an empty fleet of two shards of episodes."""
    return await emptied(_episodes)


async def emptied(replay: Any) -> Any:
    client = copy_of(replay)
    await until(lambda: all_are_there(client))
    await client.apply(lambda buffer: buffer.clear())
    return client


async def all_are_there(replay: Any) -> bool:
    return None not in await replay.ping()


def process(kind: type) -> Any:
    """Return a process that holds an object of that class."""
    return ray.remote(kind).remote()


def told(writer: int, episode: int, steps: int) -> tuple[Any, Any, Any]:
    """Return observations that say what they are, actions and rewards of an episode."""
    observations = [(writer, episode, t) for t in range(steps + 1)]
    return np.array(observations), np.arange(steps), np.ones(steps, np.float32)


def stored_observations(buffer: Any) -> list[tuple[int, ...]]:
    batch = buffer.read(buffer.eligible_keys())
    follows = batch.observation + batch.steps[:, None] * np.array([0, 0, 1])
    assert (batch.next_observation == follows).all()
    buffer.check()
    return [tuple(observation) for observation in batch.observation.tolist()]


async def all_observations(replay: Any) -> list[tuple[int, ...]]:
    return [each for of_shard in await replay.apply(stored_observations) for each in of_shard]


async def pids(replay: Any) -> list[int]:
    answer: list[int] = await replay.apply(lambda buffer: os.getpid())
    return answer


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.1)


async def test_every_step_is_in_exactly_one_shard(columns: Any) -> None:
    before = await columns.stats()
    async with columns.writer(batch_steps=50) as first, columns.writer() as second:
        third = columns.writer()
        for episode in range(20):
            for number, writer in enumerate((first, second, third)):
                observations, actions, rewards = told(number, episode, 10)
                await writer.add_episode(observations, actions, rewards, terminated=True)
        for writer in (first, second, third):
            await writer.flush()
        expected = [(w, e, t) for w in range(3) for e in range(20) for t in range(10)]
        assert sorted(await all_observations(columns)) == expected
        stats = await columns.stats()
        assert sorted(shard.size for shard in stats.shards) == [200, 400]
        assert (stats.size, stats.inserted - before.inserted) == (600, 600)
        assert (stats.lost, stats.refused) == (before.lost, before.refused)
        await third.close()
    assert "2 shards, each a PrioritizedReplayBuffer" in repr(columns)


async def test_shards_answer_the_calls_of_a_client(columns: Any) -> None:
    assert await columns.ping() == ["pong"] * 2
    assert len(await columns.host()) == 2
    assert await columns.apply(lambda buffer, more: len(buffer) + more, 5) == [5, 5]
    assert await columns.shards[1].ping.remote() == "pong"
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        await columns.apply(lambda buffer: 1 / len(buffer))
    async with columns.writer() as writer:
        await writer.add_episode(*told(0, 0, 3), terminated=True)
    with pytest.raises(errors.ArgumentError, match="n_step must be at least 1, got 0"):
        await asyncio.wait_for(columns.sample(4, n_step=0), PATIENCE)
    with pytest.raises(errors.ArgumentError, match="save needs a fleet with a directory"):
        await columns.save()


class Eager(relive.MinSize):
    def __init__(self) -> None:
        super().__init__(1)
        self.min_size = 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"make_buffer": 3}, "make_buffer must be callable, got 3"),
        ({"shards": 0}, "shards must be at least 1, got 0"),
        ({"shards": 513}, "shards must be at most 512, got 513"),
        ({"name": 3}, "name must be a string, got 3"),
        ({"name": ""}, "name must be"),
        ({"get_if_exists": True}, "name must be given with get_if_exists=True, got None"),
        ({"get_if_exists": 3, "name": "a"}, "get_if_exists must be"),
        ({"lease": 0}, "lease must be above 0 seconds, got 0"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds must be above 0 seconds, got -1.0"),
        ({"limiter": 3}, "limiter must be an instance of RateLimiter, got 3"),
        ({"limiter": Eager()}, "limiter.min_size must be at least 1, got 0"),
        ({"admission": 3}, "admission must be an instance of Admission, got 3"),
        ({"fsync": "sometimes"}, "fsync must be"),
        pytest.param(
            {"make_buffer": list},
            "make_buffer must return a buffer of columns, episodes or tokens, got list",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {
                "make_buffer": lambda: relive.RingReplayBuffer(10, max_times_sampled=2),
                "limiter": relive.SampleToInsertRatio(2.5, min_size=1, error_buffer=16.0),
            },
            r"ratio must be at most max_times_sampled = 2, or inserts stop for ever, got SampleToInsertRatio",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_invalid_fleet_is_refused_in_one_line(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ArgumentError, match=text):
        relive_ray.ShardedReplay.start(**{"make_buffer": ring, **settings})


def faults(buffer: Any) -> int:
    """Return how many pages the system has to give for batches of arrays of 32 MB."""
    import resource

    counts = []
    for _ in range(13):
        _ = [np.ones(4_000_000) for _ in range(4)]
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return counts[-1] - counts[2]


async def test_shards_keep_the_memory_of_large_batches(columns: Any) -> None:
    assert max(await columns.apply(faults)) < 100


@pytest.mark.parametrize(("answers", "options"), [([1, 1], [-3, -1]), ([0], [-3]), ([], [])])
def test_memory_is_kept_only_where_the_system_can(
    answers: list[int], options: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def mallopt(option: int, value: int) -> int:
        asked.append((option, value))
        return answers[len(asked) - 1]

    library = types.SimpleNamespace(**({"mallopt": mallopt} if answers else {}))
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    process = relive_ray._Shard(ring, 0, 30.0, shard.Durability())
    assert asked == [(option, 2**30) for option in options]
    process.close()


async def test_invalid_steps_are_raised_in_the_writing_process(columns: Any) -> None:
    writer = columns.writer()
    await writer.add_episode(np.zeros((3, 2)), np.zeros(2, np.int64), np.zeros(2), terminated=True)
    with pytest.raises(errors.SchemaError, match="observation"):
        await writer.flush()
    assert (writer.stored, writer.refused) == (0, 2)
    await writer.close()


async def test_objects_that_cannot_be_sent_are_refused_in_one_line(agents: Any) -> None:
    lock = threading.Lock()
    with pytest.raises(
        errors.ArgumentTypeError, match="^make_buffer must be something that can be sent .* pickle .*lock.*$"
    ):
        relive_ray.ShardedReplay.start(lambda: relive.RingReplayBuffer(int(lock.locked()) + 1))
    limiter: Any = relive.MinSize(1)
    limiter.lock = lock
    with pytest.raises(errors.ArgumentTypeError, match="^limiter must be something that can be sent .* pickle .*lock"):
        relive_ray.ShardedReplay.start(ring, limiter=limiter)
    writer = agents.episodes_writer()
    async with writer.episode("agent") as episode:
        await episode.append(lock, 0, 1.0)
        await episode.end(None)
    with pytest.raises(errors.ArgumentTypeError, match="^what is sent to a shard must be something that can be sent"):
        await writer.flush()
    assert (writer.stored, writer.refused) == (0, 1)
    await writer.close()


async def test_a_client_without_ray_is_an_error_of_one_line(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(errors.ClosedError, match="Ray was shut down, and the fleet with it"):
        await columns.apply(len)


# What dies.


class Load:
    """Writers and a learner of a fleet, which go on until they are told to stop."""

    def __init__(self, replay: Any, writers: int = 3) -> None:
        self._replay, self._is_over = replay, False
        self.writers = [replay.writer(batch_steps=40) for _ in range(writers)]
        self.given, self.batches = [0] * writers, 0

    async def write(self, number: int) -> None:
        episode = 0
        while not self._is_over:
            await self.writers[number].add_episode(*told(number, episode, 10), terminated=True)
            episode += 1
            self.given[number] = episode
            await asyncio.sleep(0.02)

    async def learn(self) -> None:
        while not self._is_over:
            batch = await self._replay.sample(64)
            assert len(batch) == 64
            assert (batch.next_observation[:, :2] == batch.observation[:, :2]).all()
            self.batches += 1
            await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(len(self.writers)):
                group.create_task(self.write(number))
            group.create_task(self.learn())
            try:
                yield
            finally:
                self._is_over = True
        for writer in self.writers:
            await writer.close()

    def expected(self) -> list[tuple[int, ...]]:
        """Return the observations of all steps that were given."""
        return [(w, e, t) for w, count in enumerate(self.given) for e in range(count) for t in range(10)]

    async def goes_on(self) -> None:
        """Return when every writer and the learner has gone on."""
        given, batches = list(self.given), self.batches

        async def has_gone_on() -> bool:
            return self.batches > batches and all(now > then for now, then in zip(self.given, given, strict=True))

        await until(has_gone_on)


@pytest.mark.parametrize(
    ("kills", "seed"), [(1, 3), *[pytest.param(50, seed, marks=pytest.mark.long) for seed in range(6)]]
)
async def test_killed_shards_come_back_without_losses_or_repeats(kills: int, seed: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(seed)
    settings = {"shards": 2, "directory": tmp_path, "checkpoint_seconds": 0.5, "timeout": 10.0, "recovery": PATIENCE}
    async with fleet(ring, **settings) as replay:
        load = Load(replay)
        async with load.running():
            await load.goes_on()
            for _ in range(kills):
                await asyncio.sleep(rng.random() / 2)
                os.kill((await pids(replay))[int(rng.integers(2))], signal.SIGKILL)
                await load.goes_on()
                await until(lambda: all_are_there(replay))
        stats = await replay.stats()
        assert (stats.lost, sum(writer.lost for writer in load.writers)) == (0, 0)
        expected = load.expected()
        assert sorted(await all_observations(replay)) == expected
        assert sum(writer.stored for writer in load.writers) == len(expected) == stats.inserted
    if kills > 1:
        async with fleet(ring, **settings) as replay:
            assert sorted(await all_observations(replay)) == expected


async def test_a_hanging_shard_is_left_out_without_repeats() -> None:
    async with fleet(ring, shards=2, timeout=2.0, recovery=PATIENCE, checkpoint_seconds=None) as replay:
        load = Load(replay, writers=3)
        async with load.running():
            await load.goes_on()
            pid = (await pids(replay))[1]
            os.kill(pid, signal.SIGSTOP)
            try:
                await load.goes_on()
                await load.goes_on()
            finally:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: all_are_there(replay))
            await load.goes_on()
        await until(lambda: all_are_there(replay))
        assert sorted(await all_observations(replay)) == load.expected()


class DyingActor:
    """Writes two episodes, and ends the first."""

    async def pid(self) -> int:
        return os.getpid()

    async def act(self, replay: Any) -> int:
        self.writer = replay.episodes_writer(batch_steps=1)
        async with self.writer.episode("mortal") as episode:
            for t in range(5):
                await episode.append({"t": np.array(t)}, t, 1.0)
            await episode.end({"t": np.array(5)})
        await self.writer.flush()
        samples = await replay.sample(10, n=2, gamma=0.5)
        self.block = self.writer.episode("mortal")
        self.episode = await self.block.__aenter__()
        for t in range(5):
            await self.episode.append({"t": np.array(t)}, t, 1.0)
        await self.writer.flush()
        return len(samples)


async def test_the_episode_of_a_dead_client_process_is_aborted(agents: Any) -> None:
    before = await agents.stats()
    actor = process(DyingActor)
    assert await actor.act.remote(agents) == 10
    samples = await agents.sample(20, n=1, gamma=1.0)
    assert {sample.agent_id for sample in samples} == {"mortal"}
    samples[0].observation["t"][...] = 99
    assert all(sample.observation["t"] == sample.start_step for sample in await agents.sample(20, n=1, gamma=1.0))
    stats = await agents.stats()
    assert [shard.buffer.in_progress for shard in stats.shards if shard.buffer.in_progress] == [1]
    os.kill(await actor.pid.remote(), signal.SIGKILL)

    async def aborted() -> int:
        return sum(shard.buffer.aborted for shard in (await agents.stats()).shards)

    async def is_aborted() -> bool:
        return bool(await aborted() == sum(shard.buffer.aborted for shard in before.shards) + 1)

    await until(is_aborted)
    stats = await agents.stats()
    expired = sum(shard.expired_leases for shard in stats.shards) - sum(shard.expired_leases for shard in before.shards)
    assert (stats.size, expired) == (5 + 4, 1)
    samples = await agents.sample(50, n=3, gamma=1.0)
    assert {sample.window_end for sample in samples} == {"HORIZON", "TERMINATED", "ABORTED"}


class DyingLearner:
    """Draws until it is killed."""

    async def pid(self) -> int:
        return os.getpid()

    async def learn(self, replay: Any, **options: Any) -> None:
        while True:
            await replay.sample(10, **options)


LIMITER = relive.SampleToInsertRatio(ratio=1.0, min_size=10, error_buffer=20.0)


@pytest.mark.long
async def test_a_fleet_survives_twenty_killed_clients() -> None:
    async with fleet(episodes, shards=2, lease=2.0, recovery=PATIENCE) as replay:
        settled: list[int] = []
        async with replay.episodes_writer(batch_steps=1) as writer:
            for number in range(20):
                # The actor has ended one episode and begun another.
                actor, learner = process(DyingActor), process(DyingLearner)
                learning = learner.learn.remote(replay, n=1, gamma=1.0)
                assert await asyncio.wait_for(asyncio.wrap_future(actor.act.remote(replay).future()), PATIENCE) == 10
                for each in (actor, learner):
                    os.kill(await each.pid.remote(), signal.SIGKILL)
                with pytest.raises(exceptions.RayError):
                    await learning
                async with asyncio.timeout(PATIENCE), writer.episode("immortal") as episode:
                    await episode.append({"t": np.array(0)}, 0, 1.0)
                    await episode.end({"t": np.array(1)})
                await asyncio.wait_for(writer.flush(), PATIENCE)
                settled.append(number)

        async def are_aborted() -> bool:
            return bool(sum(shard.buffer.aborted for shard in (await replay.stats()).shards) == 20)

        await until(are_aborted)
        stats = await replay.stats()
        assert (len(settled), stats.lost, stats.refused) == (20, 0, 0)
        assert stats.size == 20 * (5 + 4 + 1)
        assert sum(shard.writers for shard in stats.shards) == 0


async def test_turns_survive_their_process_until_the_fleet_is_closed() -> None:
    async with fleet(ring, shards=1, limiter=LIMITER, lease=PATIENCE, recovery=PATIENCE) as replay:
        other = copy_of(replay)
        writer = replay.writer(batch_steps=5, max_in_flight=1)

        async def write() -> None:
            for episode in range(60):
                await writer.add_episode(*told(0, episode, 5), terminated=True)
            await writer.flush()  # While the learner still draws: the limiter holds the last steps back too.

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.5)
        assert not writing.done()
        assert (await replay.stats()).inserted <= 10 + 20 + 5
        for number in range(200):
            if writing.done():
                break
            await asyncio.wait_for(replay.sample(5), PATIENCE)
            if number == 20:
                ray.kill(replay.coordinator, no_restart=False)
        await asyncio.wait_for(writing, PATIENCE)
        stats = await replay.stats()
        assert stats.inserted == 300
        assert abs(stats.sampled - (stats.inserted - 10)) <= 20 + 10
        with pytest.raises(errors.ArgumentError, match="batch_size must be at most 39"):
            await replay.sample(40)

        async def draw_on() -> None:
            while True:
                await other.sample(5)

        waiting = asyncio.create_task(draw_on())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await replay.close()
        await replay.close()
        closed = pytest.raises(errors.ClosedError, match="^(the fleet was closed: start a new one|shard . will not)")
        for call in (replay.sample(3), waiting, replay.stats(), replay.ping(), replay.save(), replay.apply(len)):
            with closed:
                await asyncio.wait_for(call, PATIENCE)
        await writer.add_episode(*told(0, 60, 3), terminated=True)
        with closed:
            await asyncio.wait_for(writer.flush(), PATIENCE)
        assert (writer.stored, writer.lost + writer.refused) == (300, 3)


class Operator:
    """Starts a fleet that outlives this process."""

    async def pid(self) -> int:
        return os.getpid()

    async def start(self, name: str, namespace: str) -> None:
        settings: dict[str, Any] = {"limiter": LIMITER, "recovery": PATIENCE, "name": name, "namespace": namespace}
        replay: Any = relive_ray.ShardedReplay.start(ring, shards=2, **settings)
        async with replay.writer(batch_steps=5) as writer:
            await writer.add_episode(*told(0, 0, 12), terminated=True)


async def test_clients_attach_to_a_named_fleet_after_its_process() -> None:
    operator = process(Operator)
    await operator.start.remote("memory", "lab")
    os.kill(await operator.pid.remote(), signal.SIGKILL)
    replay: Any = relive_ray.ShardedReplay.attach("memory", "lab", seed=1)
    try:
        assert len(await asyncio.wait_for(replay.sample(5), PATIENCE)) == 5
        with pytest.raises(
            errors.ArgumentError, match="name must be new, got 'memory': attach to that fleet, or close"
        ):
            relive_ray.ShardedReplay.start(ring, name="memory", namespace="lab")
        with pytest.raises(errors.ArgumentError, match="name must be that of a running fleet, got 'memory'"):
            relive_ray.ShardedReplay.attach("memory")
        # Shards come and go; a new process of the coordinator finds them all by their names.
        assert await replay.add_shard() == 2
        await replay.drain(0)
        os.kill((await replay.stats()).coordinator.pid, signal.SIGKILL)
        other: Any = relive_ray.ShardedReplay.attach("memory", "lab")
        writers = [other.writer(batch_steps=5) for _ in range(4)]

        async def is_drained() -> bool:
            for writer in writers:
                await writer.add_episode(*told(1, 0, 5), terminated=True)
            await replay.sample(20)
            return bool((await replay.stats()).coordinator.members.gone == (0,))

        await until(is_drained)
        for writer in writers:
            await writer.close()
            assert writer.lost == 0
        stats = await replay.stats()
        assert stats.coordinator.members.active == (1, 2)
        assert [shard.number for shard in stats.shards] == [1, 2]
        assert all(shard.inserted > 0 for shard in stats.shards)
        assert len(replay.shards) == 2
    finally:
        await replay.close()
    with pytest.raises(errors.ArgumentError, match="name must be that of a running fleet, got 'memory'"):
        relive_ray.ShardedReplay.attach("memory", "lab")


def shared(**settings: Any) -> Any:
    settings = {"shards": 2, "recovery": PATIENCE, "name": "shared", "get_if_exists": True, **settings}
    return relive_ray.ShardedReplay.start(ring, **settings)


def test_starters_at_once_get_one_fleet_with_its_name(tmp_path: pathlib.Path) -> None:
    start = ray.remote(num_cpus=0)(lambda: shared(directory=tmp_path))
    first, second = ray.get([start.remote(), start.remote()], timeout=PATIENCE)
    with futures.ThreadPoolExecutor(1) as pool:
        with relive_ray._claimed("shared", ray.get_runtime_context().namespace):
            waiting = pool.submit(shared, shards=1, directory=tmp_path)  # Settings do not matter any more.
            time.sleep(1.0)
            assert not waiting.done()
        third = waiting.result(PATIENCE)
    with third.sync() as plain:
        try:
            with pytest.raises(errors.ArgumentError, match="name must be new, got 'shared': attach to that fleet, or"):
                shared(get_if_exists=False)
            assert {each._transport._fleet for each in (first, second, third)} == {third._transport._fleet}
            names = sorted(actor["name"] for actor in ray.util.list_named_actors(True) if "shared" in actor["name"])
            assert names == ["shared", f"{third._transport._fleet}-0", f"{third._transport._fleet}-1"]
            assert third._transport._fleet.startswith("shared-")
            with plain.writer() as writer:
                writer.add_episode(*told(0, 0, 5), terminated=True)
            assert len(plain.sample(4)) == len(plain.sample_keys(4)) == 4
            assert len(next(plain.batches(4))) == 4
            assert len(plain.eligible_keys()) == plain.stats().size == 5
            plain.clear()
            assert plain.stats().size == 0
        finally:
            plain.close()
    with pytest.raises(errors.ClosedError, match="^client is closed"):
        plain.ping()
    with pytest.raises(errors.ArgumentError, match="name must be that of a running fleet, got 'shared'"):
        relive_ray.ShardedReplay.attach("shared")


def test_an_actor_is_shown_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    context = types.SimpleNamespace(get_actor_name=lambda: "memory")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert repr(relive_ray._Named()) == "memory"


async def test_a_restarted_coordinator_finds_the_shards(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = await columns._transport.coordinator("plan")
    calls: list[str] = []
    context = types.SimpleNamespace(
        current_actor=types.SimpleNamespace(ping=types.SimpleNamespace(remote=lambda: calls.append("ping")))
    )
    with monkeypatch.context() as patch:
        patch.setattr(ray, "get_runtime_context", lambda: context)
        process = relive_ray._Coordinator(plan, columns._description, None)
    assert calls == ["ping"]
    assert await process.plan() is plan
    place, settings, _, members = await process.contact()
    assert (place, settings, members.active) == ((plan.fleet, plan.namespace), columns._settings, (0, 1))
    # While the coordinator is being restarted, a client that attaches waits for it.
    deaths: list[Exception] = [exceptions.ActorUnavailableError("it is restarting", None)]
    real = ray.get

    def get(reference: Any) -> Any:
        if deaths:
            raise deaths.pop()
        return real(reference)

    with monkeypatch.context() as patch:
        patch.setattr(ray, "get", get)
        client: Any = relive_ray.ShardedReplay.attach(plan.fleet)
    assert not deaths
    assert await client.ping() == ["pong"] * 2
    with pytest.raises(errors.ClosedError, match="shard 7 will not come back: it has ended"):
        client._transport.handle(7)
    client._transport.end(7)


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
async def test_a_killed_coordinator_comes_back_and_nothing_is_lost(kills: int) -> None:
    limiter = relive.SampleToInsertRatio(ratio=1.0, min_size=10, error_buffer=400.0)
    async with fleet(ring, shards=2, limiter=limiter, lease=5.0, recovery=PATIENCE) as replay:
        load = Load(replay)
        async with load.running():
            for _ in range(kills):
                await load.goes_on()
                before = (await replay.stats()).coordinator
                os.kill(before.pid, signal.SIGKILL)
                await load.goes_on()
                after = (await replay.stats()).coordinator
                assert after.pid != before.pid
                assert after.members == before.members
        expected = load.expected()
        assert sorted(await all_observations(replay)) == expected
        stats = await replay.stats()
        assert (stats.lost, stats.inserted) == (0, len(expected))
        # A backlog of the writers is forgiven when the process starts again.
        assert 0 < stats.coordinator.inserted <= len(expected)


async def test_a_shard_that_is_gone_is_left_out() -> None:
    async with fleet(ring, shards=2, recovery=1.0) as replay:
        writers = [replay.writer() for _ in range(2)]
        for number, writer in enumerate(writers):
            await writer.add_episode(*told(number, 0, 3), terminated=True)
            await writer.flush()
        ray.kill(replay.shards[0])
        await until(lambda: is_lost(replay))
        for number, writer in enumerate(writers):
            await writer.add_episode(*told(number, 1, 3), terminated=True)
            await writer.close()
        assert len(await replay.sample(5)) == 5
        assert await replay.ping() == [None, "pong"]
        with pytest.raises(errors.ClosedError, match="shard 0 will not come back"):
            await replay.apply(len)


async def is_lost(replay: Any) -> bool:
    return bool((await replay.ping())[0] is None)


def test_shards_that_cannot_be_placed_in_time_are_an_error() -> None:
    with pytest.raises(errors.ShardLostError, match="2 of 2 shards were not there after 1 seconds: does the cluster"):
        relive_ray.ShardedReplay.start(ring, shards=2, start_timeout=1.0, actor_options={"num_cpus": 1000})


def test_unknown_options_of_ray_are_refused() -> None:
    start: Any = relive_ray.ShardedReplay.start
    for setting in ("actor_options", "coordinator_options"):
        with pytest.raises(errors.ArgumentError, match=f"{setting} must be options of Ray, got {{'num_cpu': 1}}"):
            start(ring, **{setting: {"num_cpu": 1}})


@pytest.mark.parametrize("option", [*relive_ray._OURS])
def test_options_that_belong_to_the_fleet_are_options_of_ray(option: str) -> None:
    assert option in ray_option_utils.actor_options


async def test_only_the_same_fleet_goes_on_from_a_directory(tmp_path: pathlib.Path) -> None:
    async with fleet(ring, directory=tmp_path) as replay, replay.writer() as writer:
        await writer.add_episode(*told(0, 0, 3), terminated=True)
        await writer.flush()
        await replay.sample(5)
        await replay.save()
        await writer.add_episode(*told(0, 1, 3), terminated=True)
    assert os.listdir(tmp_path) == ["shard-0"]
    assert len(relive.RingReplayBuffer.load(tmp_path / "shard-0" / "checkpoint")) == 3
    (tmp_path / "shard-7").mkdir()
    with pytest.raises(errors.CheckpointError, match="holds a fleet of 2 shards, got shards=1: start as many, or name"):
        relive_ray.ShardedReplay.start(ring, directory=tmp_path)
    (tmp_path / "shard-7").rmdir()
    with pytest.raises(errors.CheckpointError, match="the state is of a RingReplayBuffer, and not of a Prioritized"):
        relive_ray.ShardedReplay.start(prioritized, directory=tmp_path)
    async with fleet(ring, directory=tmp_path) as replay:
        assert sorted(await all_observations(replay)) == [(0, e, t) for e in range(2) for t in range(3)]
        assert (await replay.stats()).sampled == 5


@pytest.mark.long
def test_an_impossible_directory_of_a_fleet_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.CheckpointError, match="shard-0 cannot be made: Not a directory"):
        relive_ray.ShardedReplay.start(ring, directory=tmp_path / "file")


def test_a_failed_start_of_shards_is_reported_with_its_reason() -> None:
    error = relive_ray._reason((ring, 0, 1.0, shard.Durability(), 1.0), RuntimeError("the machine burns"))
    assert isinstance(error, errors.ShardLostError)
    assert str(error) == "shards could not be started: RuntimeError"
    assert relive_ray._raised(error) is error


async def test_closing_a_fleet_ends_every_call_that_waits() -> None:
    def make() -> Any:
        return relive.EpisodeReplayBuffer[Any, Any](groups=relive.Groups(2), seed=0)

    rule = relive.Admission(max_lag=0, episodes_per_version=2)
    replay: Any = relive_ray.ShardedReplay.start(make, shards=2, admission=rule)
    ticket, plain = await replay.admit(2), replay.sync()
    drawn = {"n": 1, "gamma": 0.9}
    calls: list[Any] = [replay.sample(3, **drawn), anext(replay.batches(3, **drawn)), replay.next_groups(1)]
    calls += [
        replay.admit(),
        asyncio.to_thread(plain.next_episodes, 1),
        asyncio.to_thread(next, plain.batches(3, **drawn)),
    ]
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(1.0)
    await replay.close()
    for call in waiting:
        with pytest.raises(errors.ClosedError, match="^the fleet was closed: start a new one$"):
            await asyncio.wait_for(call, PATIENCE)
    assert ticket.left == 2
    await asyncio.to_thread(plain.close)
    with pytest.raises(errors.ClosedError, match="^client is closed"):
        await asyncio.to_thread(plain.ping)
