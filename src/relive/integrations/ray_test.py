"""A fleet of real processes, which are killed. Everything else about fleets is tested in relive.fleet, without Ray."""

import asyncio
import collections
from collections.abc import AsyncIterator, Callable, Iterator
import contextlib
import os
import pathlib
import signal
import threading
import time
import types
from typing import Any

import numpy as np
import pytest
import ray
from ray import cloudpickle
from ray import exceptions

import relive
from relive import errors
from relive import testing
from relive.fleet import shard
from relive.integrations import ray as relive_ray

KILLS = int(os.environ.get("RELIVE_SHARD_KILLS", "4"))
SCHEMA = relive.Schema(relive.Field(3, "int64"), relive.Field((), "int64"), reward=relive.Field((), "float32"))


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(
        include_dashboard=False,
        num_cpus=32,
        logging_level="ERROR",
        log_to_driver=False,
        object_store_memory=100_000_000,
    )
    yield
    ray.shutdown()


def ring() -> Any:
    return relive.RingReplayBuffer(1_000_000, SCHEMA, n_step=3, streams=8, seed=0)


def prioritized() -> Any:
    return relive.PrioritizedReplayBuffer(10_000, SCHEMA, alpha=1.0, epsilon=0.0, beta=1.0, seed=0)


def episodes() -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](max_transitions=100_000, seed=0)


@contextlib.asynccontextmanager
async def fleet(make: Callable[[], Any], **settings: Any) -> AsyncIterator[Any]:
    replay: Any = relive_ray.ShardedReplay.start(make, **settings)
    try:
        yield replay
    finally:
        await replay.close()


def process(kind: type) -> Any:
    """Answers a process that holds an object of that class."""
    return ray.remote(kind).remote()


def told(writer: int, episode: int, steps: int) -> tuple[Any, Any, Any]:
    """Answers observations that say what they are, actions and rewards of an episode."""
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


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.05)


async def test_every_step_is_in_one_shard_and_every_shard_has_some() -> None:
    async with fleet(ring, shards=3) as replay, replay.writer(batch_steps=50) as first, replay.writer() as second:
        third = replay.writer()
        for episode in range(20):
            for number, writer in enumerate((first, second, third)):
                observations, actions, rewards = told(number, episode, 10)
                await writer.add_episode(observations, actions, rewards, terminated=True)
        for writer in (first, second, third):
            await writer.flush()
        expected = [(w, e, t) for w in range(3) for e in range(20) for t in range(10)]
        assert sorted(await all_observations(replay)) == expected
        stats = await replay.stats()
        assert [shard.size for shard in stats.shards] == [200, 200, 200]
        assert (stats.size, stats.inserted, stats.lost, stats.refused) == (600, 600, 0, 0)
        await third.close()
        assert "3 shards, each a RingReplayBuffer" in repr(replay)


async def test_steps_one_by_one_are_the_episodes_they_were() -> None:
    async with fleet(ring, shards=2) as replay, replay.writer(batch_steps=4) as writer:
        for episode in range(7):
            for t in range(9):
                here = np.array([0, episode, t])
                await writer.add(here, t, 1.0, here + np.array([0, 0, 1]), terminated=t == 8)
        await writer.flush()
        assert sorted(await all_observations(replay)) == [(0, e, t) for e in range(7) for t in range(9)]


async def test_uniform_draws_over_uneven_shards_are_those_of_one_buffer() -> None:
    async with fleet(ring, shards=3, seed=1) as replay:
        for number, count in enumerate((1, 2, 7)):
            async with replay.writer() as writer:
                for episode in range(count):
                    await writer.add_episode(*told(number, episode, 4), terminated=True)
        drawn: collections.Counter[tuple[int, ...]] = collections.Counter()
        for _ in range(40):
            batch = await replay.sample(100)
            assert batch.keys.shape == (100,)
            np.testing.assert_allclose(batch.probabilities, 1 / 40, rtol=1e-15)
            assert (batch.weights == 1).all()
            drawn.update(map(tuple, batch.observation.tolist()))
        expected = {(w, e, t): 1 / 40 for w, n in enumerate((1, 2, 7)) for e in range(n) for t in range(4)}
        testing.assert_frequencies([drawn[place] for place in expected], list(expected.values()))


async def test_proportional_draws_over_uneven_shards_are_those_of_one_buffer() -> None:
    async with fleet(prioritized, shards=2, seed=2) as replay:
        for number in range(2):
            async with replay.writer() as writer:
                await writer.add_episode(*told(number, 0, 3 + 2 * number), terminated=True)
        keys = np.unique((await replay.sample(2000)).keys)
        assert len(keys) == 8
        priorities = np.arange(1.0, 9.0)
        assert await replay.update_priorities(keys, priorities) == 8
        counts: collections.Counter[int] = collections.Counter()
        for _ in range(40):
            batch = await replay.sample(100)
            places = np.searchsorted(keys, batch.keys)
            np.testing.assert_allclose(batch.probabilities, priorities[places] / 36, rtol=1e-15)
            np.testing.assert_allclose(batch.weights, priorities[places].min() / priorities[places], rtol=1e-14)
            counts.update(batch.keys.tolist())
        testing.assert_frequencies([counts[key] for key in keys.tolist()], (priorities / 36).tolist())


async def test_a_task_of_another_process_writes_and_draws_with_its_own_copy_of_the_client() -> None:
    class Actor:
        async def act(self, replay: Any) -> int:
            async with replay.episodes_writer() as writer, writer.episode("elsewhere") as episode:
                for t in range(5):
                    await episode.append({"t": np.array(t)}, t, 1.0)
                await episode.end({"t": np.array(5)})
            return len(await replay.sample(10, n=2, gamma=0.5))

    async with fleet(episodes, shards=2) as replay:
        assert await process(Actor).act.remote(replay) == 10
        samples = await replay.sample(20, n=1, gamma=1.0)
        assert {sample.agent_id for sample in samples} == {"elsewhere"}
        samples[0].observation["t"][...] = 99
        assert all(sample.observation["t"] == sample.start_step for sample in await replay.sample(20, n=1, gamma=1.0))


async def test_batches_are_drawn_ahead_and_the_last_one_is_not_forgotten() -> None:
    async with fleet(ring, shards=2) as replay, replay.writer() as writer:
        await writer.add_episode(*told(0, 0, 10), terminated=True)
        await writer.flush()
        count = 0
        async with contextlib.aclosing(replay.batches(32, prefetch=2)) as batches:
            async for batch in batches:
                assert len(batch) == 32
                count += 1
                if count == 5:
                    break
        assert (await replay.stats()).sampled >= 5 * 32


async def test_a_shard_answers_what_is_asked_of_it() -> None:
    async with fleet(ring, shards=2) as replay:
        assert await replay.ping() == ["pong", "pong"]
        assert len(await replay.host()) == 2
        assert await replay.apply(lambda buffer, more: len(buffer) + more, 5) == [5, 5]
        assert await replay.shards[1].ping.remote() == "pong"
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            await replay.apply(lambda buffer: 1 / len(buffer))
        with pytest.raises(errors.ArgumentError, match="n_step must be at least 1, got 0"):
            await asyncio.wait_for(sampled_with(replay, n_step=0), 10)


async def sampled_with(replay: Any, **options: Any) -> Any:
    async with replay.writer() as writer:
        await writer.add_episode(*told(0, 0, 3), terminated=True)
    return await replay.sample(4, **options)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"make_buffer": 3}, "make_buffer must be callable, got 3"),
        ({"shards": 0}, "shards must be at least 1, got 0"),
        ({"lease": 0}, "lease must be above 0 seconds, got 0"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds must be above 0 seconds, got -1.0"),
        ({"limiter": 3}, "limiter must be an instance of RateLimiter, got 3"),
        ({"fsync": "sometimes"}, "fsync must be"),
        ({"make_buffer": list}, "make_buffer must answer a buffer of columns or of episodes, got list"),
        (
            {"make_buffer": lambda: relive.RingReplayBuffer(10, limiter=relive.MinSize(2))},
            r"make_buffer must answer a buffer without a limiter, .*, got MinSize\(2\)",
        ),
        ({"make_buffer": lambda: relive.RingReplayBuffer(0)}, "capacity must be at least 1, got 0"),
        (
            {"make_buffer": lambda: relive.EpisodeReplayBuffer(groups=relive.Groups(2))},
            "make_buffer must answer a buffer without groups, which are for one process, got Groups",
        ),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_in_one_line(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ArgumentError, match=text):
        relive_ray.ShardedReplay.start(**{"make_buffer": ring, **settings})


async def test_steps_that_do_not_fit_are_raised_in_the_process_that_wrote_them() -> None:
    async with fleet(ring, shards=1) as replay:
        writer = replay.writer()
        await writer.add_episode(np.zeros((3, 2)), np.zeros(2, np.int64), np.zeros(2), terminated=True)
        with pytest.raises(errors.SchemaError, match="observation"):
            await writer.flush()
        assert (writer.stored, writer.refused) == (0, 2)
        await writer.close()


async def test_a_limiter_holds_for_the_whole_fleet() -> None:
    limiter = relive.SampleToInsertRatio(ratio=1.0, min_size=10, error_buffer=20.0)
    async with fleet(ring, shards=2, limiter=limiter) as replay:
        writer = replay.writer(batch_steps=5, max_in_flight=1)

        async def write() -> None:
            for episode in range(100):
                await writer.add_episode(*told(0, episode, 5), terminated=True)

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.5)
        assert not writing.done()
        assert (await replay.stats()).inserted <= 10 + 20 + 5
        while not writing.done():
            await replay.sample(10)
        await writer.close()
        stats = await replay.stats()
        assert stats.inserted == 500
        assert abs(stats.sampled - (stats.inserted - 10)) <= 20 + 10
        with pytest.raises(errors.ArgumentError, match="batch_size must be at most 39"):
            await replay.sample(40)


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
            await asyncio.sleep(0.01)

    async def learn(self) -> None:
        while not self._is_over:
            batch = await self._replay.sample(64)
            assert len(batch) == 64
            assert (batch.next_observation[:, :2] == batch.observation[:, :2]).all()
            self.batches += 1

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

    async def goes_on(self) -> None:
        """Returns when every writer and the learner has gone on."""
        given, batches = list(self.given), self.batches

        async def has_gone_on() -> bool:
            return self.batches > batches and all(now > then for now, then in zip(self.given, given, strict=True))

        await until(has_gone_on)


async def test_killed_shards_come_back_and_no_step_is_lost_or_there_twice(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(3)
    settings = {"shards": 2, "directory": tmp_path, "checkpoint_seconds": 0.5, "timeout": 5.0}
    async with fleet(ring, **settings) as replay:
        load = Load(replay)
        async with load.running():
            await load.goes_on()
            for _ in range(KILLS):
                await asyncio.sleep(rng.random() / 2)
                victim = int(rng.integers(2))
                pid = (await pids(replay))[victim]
                os.kill(pid, signal.SIGKILL)
                await load.goes_on()

                async def is_back(victim: int = victim) -> bool:
                    return (await replay.ping())[victim] is not None

                await until(is_back)
        stats = await replay.stats()
        assert (stats.lost, sum(writer.lost for writer in load.writers)) == (0, 0)
        expected = sorted((w, e, t) for w, count in enumerate(load.given) for e in range(count) for t in range(10))
        assert sorted(await all_observations(replay)) == expected
        assert sum(writer.stored for writer in load.writers) == len(expected) == stats.inserted
    # And the whole fleet, from its directory.
    async with fleet(ring, **settings) as replay:
        assert sorted(await all_observations(replay)) == expected
        assert (await replay.stats()).sampled == stats.sampled


async def test_without_a_directory_what_a_shard_had_is_lost_and_counted() -> None:
    async with fleet(ring, shards=2, timeout=5.0, checkpoint_seconds=None) as replay:
        load = Load(replay, writers=2)
        async with load.running():
            await load.goes_on()
            os.kill((await pids(replay))[0], signal.SIGKILL)
            await load.goes_on()

            async def is_back() -> bool:
                return None not in await replay.ping()

            await until(is_back)
            await load.goes_on()
        stats = await replay.stats()
        given = 10 * sum(load.given)
        assert stats.lost > 0
        assert stats.size + stats.lost == sum(writer.stored for writer in load.writers) == given


async def test_a_shard_that_hangs_is_left_out_and_nothing_is_stored_twice() -> None:
    async with fleet(ring, shards=2, timeout=1.0) as replay:
        load = Load(replay, writers=2)
        async with load.running():
            await load.goes_on()
            pid = (await pids(replay))[1]
            os.kill(pid, signal.SIGSTOP)
            try:
                await load.goes_on()
                await load.goes_on()
            finally:
                os.kill(pid, signal.SIGCONT)

            async def is_back() -> bool:
                return None not in await replay.ping()

            await until(is_back)
            await load.goes_on()
        expected = sorted((w, e, t) for w, count in enumerate(load.given) for e in range(count) for t in range(10))
        assert sorted(await all_observations(replay)) == expected


class DyingActor:
    """Writes an episode that it does not end."""

    async def pid(self) -> int:
        return os.getpid()

    async def act(self, replay: Any) -> None:
        self.writer = replay.episodes_writer(batch_steps=1)
        self.block = self.writer.episode("mortal")
        self.episode = await self.block.__aenter__()
        for t in range(5):
            await self.episode.append(t, t, 1.0)
        await self.writer.flush()


async def test_a_writer_that_dies_leaves_its_open_episode_aborted_after_a_lease() -> None:
    async with fleet(episodes, shards=2, lease=1.0) as replay:
        actor = process(DyingActor)
        await actor.act.remote(replay)
        stats = await replay.stats()
        assert [shard.buffer.in_progress for shard in stats.shards if shard.buffer.in_progress] == [1]
        await asyncio.sleep(2.0)
        stats = await replay.stats()
        assert sum(shard.buffer.in_progress for shard in stats.shards) == 1, "it lives, and so does its lease"
        os.kill(await actor.pid.remote(), signal.SIGKILL)

        async def is_aborted() -> bool:
            return bool(sum(shard.buffer.aborted for shard in (await replay.stats()).shards) == 1)

        await until(is_aborted)
        stats = await replay.stats()
        assert (stats.size, sum(shard.expired_leases for shard in stats.shards)) == (4, 1)
        samples = await replay.sample(50, n=3, gamma=1.0)
        assert {sample.window_end for sample in samples} == {"HORIZON", "ABORTED"}


class DyingLearner:
    """Draws until it is killed."""

    async def pid(self) -> int:
        return os.getpid()

    async def learn(self, replay: Any) -> None:
        while True:
            await replay.sample(10)


async def test_a_learner_that_dies_holds_no_writer_up_and_the_next_one_has_no_debt() -> None:
    limiter = relive.SampleToInsertRatio(ratio=1.0, min_size=10, error_buffer=20.0)
    async with fleet(ring, shards=2, limiter=limiter, lease=1.0) as replay:
        learner = process(DyingLearner)
        pid = await learner.pid.remote()
        learning = learner.learn.remote(replay)
        async with replay.writer(batch_steps=5, max_in_flight=1) as writer:
            for episode in range(20):
                await writer.add_episode(*told(0, episode, 5), terminated=True)
            os.kill(pid, signal.SIGKILL)
            for episode in range(20, 120):
                await asyncio.wait_for(writer.add_episode(*told(0, episode, 5), terminated=True), 60)
        with pytest.raises(exceptions.RayError):
            await learning
        before = (await replay.stats()).sampled

        async def draw_on() -> None:
            while True:
                await replay.sample(5)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(draw_on(), 3)
        assert (await replay.stats()).sampled - before <= 2 * 20 + 2 * 10


async def test_turns_go_on_where_they_were_when_their_process_is_killed() -> None:
    limiter = relive.SampleToInsertRatio(ratio=1.0, min_size=10, error_buffer=20.0)
    async with fleet(ring, shards=2, limiter=limiter) as replay:

        async def draw_on() -> None:
            while True:
                await replay.sample(5)

        learning = asyncio.create_task(draw_on())
        async with replay.writer(batch_steps=5, max_in_flight=1) as writer:
            for episode in range(60):
                await asyncio.wait_for(writer.add_episode(*told(0, episode, 5), terminated=True), 60)
                if episode == 30:
                    ray.kill(replay.turns, no_restart=False)
        learning.cancel()
        await asyncio.gather(learning, return_exceptions=True)
        stats = await replay.stats()
        assert stats.inserted == 300
        assert abs(stats.sampled - (stats.inserted - 10)) <= 20 + 10


async def test_a_fleet_that_was_closed_says_so_to_every_client_and_nobody_waits() -> None:
    limiter = relive.MinSize(10)
    replay: Any = relive_ray.ShardedReplay.start(ring, shards=2, limiter=limiter)
    other = cloudpickle.loads(cloudpickle.dumps(replay))
    waiting = asyncio.create_task(other.sample(3))
    writer = replay.writer()
    await writer.add_episode(*told(0, 0, 3), terminated=True)
    await writer.flush()
    await replay.close()
    await replay.close()
    closed = pytest.raises(errors.ClosedError, match="^(the fleet was closed: start a new one|shard . will not come)")
    for call in (replay.sample(3), waiting, replay.stats(), replay.ping(), replay.save(), replay.apply(len)):
        with closed:
            await asyncio.wait_for(call, 30)
    await writer.add_episode(*told(0, 1, 3), terminated=True)
    with closed:
        await asyncio.wait_for(writer.flush(), 30)
    assert (writer.stored, writer.lost + writer.refused) == (3, 3)


async def test_a_shard_that_is_gone_for_good_is_left_out() -> None:
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
    return (await replay.ping())[0] is None


def test_shards_that_find_no_place_in_time_are_an_error() -> None:
    with pytest.raises(errors.ShardLostError, match="2 of 2 shards were not there after 1 seconds: does the cluster"):
        relive_ray.ShardedReplay.start(ring, shards=2, start_timeout=1.0, actor_options={"num_cpus": 1000})


def test_options_that_ray_does_not_know_or_the_fleet_needs_are_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="actor_options must leave max_restarts to the fleet, got max_rest"):
        relive_ray.ShardedReplay.start(ring, actor_options={"max_restarts": 0})
    with pytest.raises(errors.ArgumentError, match="actor_options must be options of Ray, got {'num_cpu': 1}"):
        relive_ray.ShardedReplay.start(ring, actor_options={"num_cpu": 1})


async def test_what_cannot_be_sent_is_refused_in_one_line() -> None:
    lock = threading.Lock()
    with pytest.raises(
        errors.ArgumentTypeError, match="^make_buffer must be something that can be sent .* pickle .*lock.*$"
    ):
        relive_ray.ShardedReplay.start(lambda: relive.RingReplayBuffer(int(lock.locked()) + 1))
    async with fleet(episodes, shards=1) as replay:
        writer = replay.episodes_writer()
        async with writer.episode("agent") as episode:
            await episode.append(lock, 0, 1.0)
            await episode.end(None)
        with pytest.raises(
            errors.ArgumentTypeError, match="^what is sent to a shard must be something that can be sent"
        ):
            await writer.flush()
        assert (writer.stored, writer.refused) == (0, 1)
        await writer.close()


async def test_a_directory_of_another_number_of_shards_is_refused(tmp_path: pathlib.Path) -> None:
    async with fleet(ring, shards=2, directory=tmp_path):
        pass
    with pytest.raises(errors.CheckpointError, match="holds a fleet of 2 shards, got shards=3: start as many, or name"):
        relive_ray.ShardedReplay.start(ring, shards=3, directory=tmp_path)
    for _ in range(2):
        with pytest.raises(
            errors.CheckpointError, match="the state is of a RingReplayBuffer, and not of a Prioritized"
        ):
            relive_ray.ShardedReplay.start(prioritized, shards=2, directory=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(errors.CheckpointError, match="shard-0-of-1 cannot be made: Not a directory"):
        relive_ray.ShardedReplay.start(ring, directory=tmp_path / "file")


async def test_without_ray_a_client_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(ring, shards=1) as replay:
        with monkeypatch.context() as patched:
            patched.setattr(ray, "is_initialized", lambda: False)
            with pytest.raises(errors.ClosedError, match="Ray was shut down, and the fleet with it"):
                await replay.apply(len)


async def test_turns_begin_with_what_the_shards_have_also_one_that_is_being_started_again() -> None:
    deaths = [exceptions.RayActorError()]

    async def stats() -> Any:
        if deaths:
            raise deaths.pop()
        return types.SimpleNamespace(inserted=30, sampled=7, size=20)

    handle = types.SimpleNamespace(stats=types.SimpleNamespace(remote=stats))
    turns = relive_ray._Turns(relive.MinSize(1), 1.0, [handle, handle])
    assert await turns.counts() == (60, 14)


def test_a_fleet_whose_shards_cannot_be_started_twice_says_so() -> None:
    with pytest.raises(ZeroDivisionError):
        relive_ray._make(lambda: 1 / 0, 0, 1.0, shard.Durability(), 1.0)
    error = relive_ray._reason((ring, 0, 1.0, shard.Durability(), 1.0), RuntimeError("the machine burns"))
    assert isinstance(error, errors.ShardLostError)
    assert str(error) == "shards could not be started: RuntimeError"
    assert relive_ray._raised(error) is error


async def test_save_needs_a_directory(tmp_path: pathlib.Path) -> None:
    async with fleet(ring, shards=1) as replay:
        with pytest.raises(errors.ArgumentError, match="save needs a fleet with a directory"):
            await replay.save()
    async with fleet(ring, shards=2, directory=tmp_path) as replay:
        await replay.save()
    assert sorted(os.listdir(tmp_path)) == ["shard-0-of-2", "shard-1-of-2"]
    assert len(relive.RingReplayBuffer.load(tmp_path / "shard-0-of-2" / "checkpoint")) == 0
