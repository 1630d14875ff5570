"""Copies, pickles and forks of everything public: whole and independent, or refused in one line.

first, second = copied(thing), copied(thing)
use(first), use(thing), use(second)              the same results, so no copy has affected another
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent import futures
import contextlib
import copy
import multiprocessing
import os
import pathlib
import pickle
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import prefetch
from relive.fleet import episode_writers
from relive.fleet import step_writers
from relive.persistence import posix_test
from relive.storage import memmap
from relive.storage import ragged
from relive.testing import zoo
from relive.waiting import threads

pytestmark = pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
SCHEMA = relive.Schema(relive.Field(2, np.float32), relive.Field((), np.int64), extras={"x": relive.Field((), "u1")})
Make = Callable[[pathlib.Path], Any]


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def sent(thing: Any) -> Any:
    """Pickled with buffers out of band in memory that is read-only, as `ray.get` returns it."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(each) for each in buffers])


plain = zoo.plain
COPIED = pytest.mark.parametrize("copied", [copy.deepcopy, pickled, sent])


def compare(thing: Any, first: Any, second: Any, use: Callable[[Any], Any]) -> None:
    """Check that two copies behave like the original, and that none is affected by another."""
    answers = plain(use(first))
    use(first)  # What it writes is not what the others write at the same places.
    assert plain(use(thing)) == answers
    assert plain(use(second)) == answers


# Buffers of columns.


def add_steps(buffer: Any, count: int) -> Any:
    """Add that many steps to each stream; episodes end now and then."""
    for t in range(buffer.appended, buffer.appended + count * buffer.streams, buffer.streams):
        numbers = np.arange(buffer.streams) + t
        buffer.extend(
            np.stack([numbers, -numbers], 1).astype(np.float32),
            numbers,
            numbers * 0.5,
            np.stack([numbers + buffer.streams, -numbers - buffer.streams], 1).astype(np.float32),
            terminated=numbers % 7 == 6,
            truncated=numbers % 11 == 10,
            x=numbers % 200,
        )
    return buffer


def ring(**options: Any) -> Any:
    return add_steps(relive.RingReplayBuffer(12, **{"schema": SCHEMA, "seed": 0, **options}), 9)


def prioritized(**options: Any) -> Any:
    return add_steps(relive.PrioritizedReplayBuffer(12, SCHEMA, seed=0, **options), 9)


def use(buffer: Any) -> Any:
    """Use a buffer, and return what that gave, and all that it then holds."""
    answers = zoo.work(buffer, random.Random(repr(zoo.state_of(buffer))), 40)
    zoo.check(buffer)
    return [answers, zoo.drawn(buffer), zoo.state_of(buffer)]


def use_tokens(buffer: Any) -> Any:
    for number in range(3):
        version = (buffer.policy_version or 0) + 1
        buffer.set_policy_version(version)
        step = relive.TokenStep(
            prompt=[1, version], response=[number + 2] * 5, logprobs=[-0.5] * 5, policy_version=version
        )
        buffer.add_episode([step], agent_id="a")
    return buffer.sample(3).tokens


def use_episodes(buffer: Any) -> Any:
    for number in range(4):
        episode_id = buffer.start_episode_nowait("a")
        for t in range(number + 1):
            buffer.append_observation_action_reward_nowait(episode_id, [number, t], t, 1.0)
        buffer.end_episode_nowait(episode_id, [number, -1])
    return len(buffer)


def joint(**options: Any) -> Any:
    buffer = relive.JointReplayBuffer(6, agents=["a", "b"], seed=0, n_step=2)
    for t in range(8):
        values, following = dict.fromkeys("ab", float(t)), dict.fromkeys("ab", t + 1.0)
        buffer.add(values, values, values, following, terminations=dict.fromkeys("ab", t % 5 == 4))
    return buffer


def episode_buffer(**options: Any) -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](max_transitions=20, seed=0, **options)


BUFFERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    name: (kind.make, use) for name, kind in zoo.KINDS.items() if name != "mixture"
}


# What buffers are made of, what stands around them, and what refers to them.


def storage() -> Any:
    return relive.ColumnStorage(SCHEMA, 4)


def use_storage(rows: Any) -> Any:
    before = rows.read(np.arange(4))
    number = before["reward"].max() + 1
    row = {path: np.full(field.shape, number, field.dtype) for path, field in SCHEMA.fields.items()}
    rows.write(int(number) % 4, row)
    return before, rows.read(np.arange(4))


def use_ragged(rows: Any) -> Any:
    end = rows.first_key + len(rows)
    before = rows.read(np.arange(rows.first_key, end))
    left = rows.extend({"token": np.arange(5) + end}, [2, 3], {"score": [end, 0.5]})
    rows.check()
    return before, left, rows.read([end, end + 1]), rows.row_values("score"), rows.lengths


def use_tree(tree: Any) -> Any:
    rng = np.random.default_rng(int(tree.total * 10))
    tree.set(rng.integers(20, size=5), rng.random(5))
    tree.check()
    return tree.total, tree.max, tree.min, tree.sample(4, rng), tree.get(np.arange(20))


def use_sampler(sampler: Any) -> Any:
    rng = np.random.default_rng(1)
    answer = plain(sampler.draw(6, rng))
    if isinstance(sampler, relive.PrioritizedSampler):
        slots = sampler.anchors.slots()
        sampler._set_priorities(slots, sampler.priorities(slots) * 1.5)
        sampler.alpha /= 2
        answer = answer, sampler._total_weight, sampler._ticks, sampler.beta
    sampler.check()
    return answer


def use_shell(shell: Any) -> Any:
    async def work() -> Any:
        for t in range(9):
            await shell.add(np.ones(2, np.float32), t, float(t), np.ones(2, np.float32), x=1)
        return await shell.sample(5)

    batch = asyncio.run(work())
    shell.check()
    return batch, shell.get_stats(), shell.state_dict()


PARTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "columns": (storage, use_storage),
    "ragged columns": (lambda: ragged.RaggedColumns(9, {"token": int}, {"score": float}), use_ragged),
    "sum tree": (lambda: relive.SumTree(20), use_tree),
    "uniform sampler": (lambda: ring().sampler, use_sampler),
    "prioritized sampler": (lambda: prioritized().sampler, use_sampler),
    "sampler with hooks": (lambda: ring(sampler=zoo.AmongNewest()).sampler, use_sampler),
    "asyncio shell": (lambda: relive.AsyncReplayBuffer(prioritized()), use_shell),
}
WHOLE = BUFFERS | PARTS


# All have each way within two kinds; nights have all ways of all kinds.
WAYS = [copy.copy, pickled, copy.deepcopy, sent]
CASES = [
    pytest.param(name, copied, marks=[pytest.mark.long] * ((place + way) % 2), id=f"{copied.__name__}-{name}")
    for place, name in enumerate(WHOLE)
    for way, copied in enumerate(WAYS)
]


@pytest.mark.parametrize(("name", "copied"), CASES)
def test_copies_are_independent_of_the_original(name: str, copied: Callable[[Any], Any]) -> None:
    make, use = WHOLE[name]
    thing = make()
    for _ in range(2):  # One that is new, and one that was used.
        compare(thing, copied(thing), copied(thing), use)


# What refers to buffers is copied with them: a shallow copy refers to the same ones, as that of a list would.


def dataset() -> Any:
    relive_torch = pytest.importorskip("relive.integrations.torch", exc_type=ImportError)
    return relive_torch.ReplayDataset(ring(), 3, num_batches=4)


def sb3_buffer() -> Any:
    relive_sb3 = pytest.importorskip("relive.integrations.stable_baselines3", exc_type=ImportError)
    spaces = pytest.importorskip("gymnasium").spaces
    return relive_sb3.ReplayBuffer(8, spaces.Box(-1, 1, (2,)), spaces.Discrete(3), "cpu", seed=0)


def use_sb3(buffer: Any) -> Any:
    for number in range(5):
        o, a = np.full((1, 2), number, np.float32), np.array([[number % 3]])
        buffer.add(o, o + 1, a, np.array([float(buffer.size())]), np.array([number == 4]), [{}])
    buffer.buffer.check()
    return buffer.sample(4).rewards, buffer.size(), buffer.pos, buffer.full


def recorder() -> Any:
    gymnasium = pytest.importorskip("gymnasium")
    relive_gymnasium = pytest.importorskip("relive.integrations.gymnasium", exc_type=ImportError)
    env = gymnasium.make("CartPole-v1")
    env = relive_gymnasium.Recorder(env, relive.RingReplayBuffer(30, relive_gymnasium.from_env(env), seed=0))
    env.reset(seed=0)
    env.step(0)
    return env


def use_recorder(env: Any) -> Any:
    answers = [env.step(t % 2)[0] for t in range(5)]
    env.reset()
    env.step(1)
    env.buffer.check()
    return [*answers, env.buffer.sample(4), env.buffer.get_stats()]


def vector_recorder() -> Any:
    gymnasium = pytest.importorskip("gymnasium")
    relive_gymnasium = pytest.importorskip("relive.integrations.gymnasium", exc_type=ImportError)
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    buffer = relive.RingReplayBuffer(30, relive_gymnasium.from_env(envs), streams=2, seed=0)
    envs = relive_gymnasium.VectorRecorder(envs, buffer)
    envs.reset(seed=0)
    return envs


def use_vector_recorder(envs: Any) -> Any:
    answers = [envs.step(np.array([t % 2, 1]))[0] for t in range(30)]
    envs.buffer.check()
    return [*answers, envs.buffer.sample(4), envs.buffer.get_stats()]


def writer_of(kind: Any) -> Callable[[], Any]:
    def writer() -> Any:
        buffer = episode_buffer()
        return kind(buffer, buffer.start_episode_nowait("a"))

    return writer


def use_writer(writer: Any) -> Any:
    answer = writer.append("o", "a", 1.0)
    if answer is not None:
        asyncio.run(answer)
    writer._buffer.check()
    return writer.episode_id, len(writer._buffer._store[writer.episode_id].actions)


OPTIONAL = (dataset, sb3_buffer, recorder)
REFERRING: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "mixture": (zoo.KINDS["mixture"].make, use),
    "writer of an episode": (writer_of(relive.EpisodeWriter), use_writer),
    "plain writer of an episode": (writer_of(relive.PlainEpisodeWriter), use_writer),
    "dataset": (dataset, lambda dataset: [batch.reward for batch in dataset]),
    "stable_baselines3": (sb3_buffer, use_sb3),
    "recorder": (recorder, use_recorder),
}


@pytest.mark.parametrize("name", REFERRING)
@COPIED
def test_copying_an_object_copies_the_buffer_it_refers_to(name: str, copied: Callable[[Any], Any]) -> None:
    make, use = REFERRING[name]
    thing = make()
    compare(thing, copied(thing), copied(thing), use)


def test_copying_a_vector_recorder_copies_its_buffer() -> None:
    """The environments that Gymnasium makes itself cannot be pickled."""
    thing = vector_recorder()
    compare(thing, copy.deepcopy(thing), copy.deepcopy(thing), use_vector_recorder)


def test_a_shallow_copy_of_a_buffer_of_sb3_is_complete() -> None:
    thing = sb3_buffer()
    compare(thing, copy.copy(thing), copy.copy(thing), use_sb3)


# What can only be read is copied as Python has it.


def records() -> dict[str, Any]:
    episodes, tokens = episode_buffer(), relive.TokenReplayBuffer(30, seed=0)
    use_episodes(episodes)
    use_tokens(tokens)
    columns = ring()
    batch = columns.sample(3)
    both = joint()
    runs = zoo.worked(zoo.JOINT["joint sequences"])
    (sample,) = episodes.sample_n_step_nowait(1, 2, 0.9)
    kinds = [getattr(relive, name) for name in vars(relive)["__all__"]]
    raised = [kind("what it says") for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)]
    step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-0.5], policy_version=0)
    other = relive.TokenStep(prompt=[3], response=[2], logprobs=[-0.5], policy_version=0)
    tokens.add_episode([step, other], agent_id="a")
    return {
        "batches": [batch, add_steps(relive.SequenceReplayBuffer(12, SCHEMA, length=2, seed=0), 9).sample(2)],
        "other batches": [both.sample(2), runs.sample(2), tokens.sample(2)],
        "origins": [columns.explain(batch.keys[0])],
        "samples": [sample, *episodes._store, columns.sampler._draw(2, columns.rng), step],
        "mismatches": [each for facts in tokens._store for each in facts.mismatches if each],
        "facts": tokens.next_episodes_nowait(1),
        "statistics": [each.get_stats() for each in (columns, episodes, tokens, both, relive.ItemReplayBuffer(3))],
        "training bias": episodes.get_training_bias(),
        "fields": [SCHEMA.fields["observation"], SCHEMA, columns.window, relive.SequenceWindow(3)],
        "rules": [
            relive.MinSize(2),
            relive.SampleToInsertRatio(1.0, 1, 1000.0),
            relive.LinearSchedule(0.4, 1.0, 10),
            zoo.EachAlike(),
        ],
        "rules of hand-outs": [
            relive.Admission(1, 2),
            relive.Groups(2),
            relive.EveryRecords(3),
            relive.EverySeconds(1.0),
        ],
        "codecs": [each.encode([1, "a"]) for each in (relive.PlainCodec(), relive.TokenStepCodec())],
        "errors": raised,
    }  # fmt: skip


@pytest.mark.parametrize("name", records())
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_copies_of_immutable_values_are_equal(name: str, copied: Callable[[Any], Any]) -> None:
    thing = records()[name]
    assert plain(copied(thing)) == plain(thing)


# What belongs to threads, to files or to an event loop.


def threaded(buffer: Any = None) -> Any:
    return relive.ThreadSafeReplayBuffer(ring() if buffer is None else buffer)


def ticket(path: pathlib.Path) -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](admission=relive.Admission(0, 3)).admit_nowait()


def batches_of_a_ring(path: pathlib.Path) -> Any:
    iterator = ring().batches(3)
    next(iterator)
    return iterator


AGAIN = "cannot be copied or pickled: call `batches` again where they are needed$"
ELSEWHERE = "cannot be copied or pickled: take another one of the fleet where it is needed$"
NO_MAP = "^a memory map cannot be copied or pickled: open .* where it is needed$"
NO_OUTBOX: Any = None
REFUSED: dict[str, tuple[Make, str]] = {
    "batches": (batches_of_a_ring, f"^Batches {AGAIN}"),
    "batches for threads": (lambda path: threaded().batches(3), f"^SharedBatches {AGAIN}"),
    "batches for asyncio": (lambda path: relive.AsyncReplayBuffer(ring()).batches(3), f"^AsyncBatches {AGAIN}"),
    "thread-safe shell": (
        lambda path: threaded(),
        "^ThreadSafeReplayBuffer cannot be copied or pickled: copy the buffer inside, in a block of `locked`$",
    ),
    "memory map": (lambda path: relive.MemmapStorage(path, SCHEMA, 12), NO_MAP),
    "journal": (
        relive.Journal,
        "^Journal cannot be copied or pickled: close it, and open its directory where it is needed$",
    ),
    "ticket": (ticket, "^a ticket cannot be copied or pickled: admit again where it is needed$"),
    "writer of steps": (lambda path: step_writers.ColumnWriter(NO_OUTBOX, 10), f"^ColumnWriter {ELSEWHERE}"),
    "writer of episodes": (
        lambda path: episode_writers.EpisodesWriter(NO_OUTBOX, 10, NO_OUTBOX, NO_OUTBOX),
        f"^EpisodesWriter {ELSEWHERE}",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_an_error_about_a_copy_says_what_to_do(name: str, copied: Callable[[Any], Any], tmp_path: pathlib.Path) -> None:
    make, rule = REFUSED[name]
    thing = make(tmp_path / "it")
    with pytest.raises(errors.ArgumentTypeError, match=rule):
        copied(thing)
    if isinstance(thing, prefetch.Batches | relive.MemmapStorage | relive.Journal):
        thing.close()


@COPIED
def test_a_memory_mapped_buffer_is_not_copied(copied: Callable[[Any], Any], tmp_path: pathlib.Path) -> None:
    with relive.MemmapStorage(tmp_path / "rows", SCHEMA, 12) as rows:
        buffer = ring(storage=rows)
        with pytest.raises(errors.ArgumentTypeError, match=NO_MAP):
            copied(buffer)


@pytest.mark.parametrize("make", [ring, episode_buffer])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_buffer_with_a_journal_is_copied_once_it_is_detached(
    make: Callable[[], Any], copied: Callable[[Any], Any], tmp_path: pathlib.Path
) -> None:
    buffer = make()
    with relive.Journal(tmp_path / "log") as log:
        buffer.attach(log)
        with pytest.raises(errors.ArgumentError, match="^a buffer that writes to a journal cannot be copied or pickle"):
            copied(buffer)
        buffer.detach()
        copied(buffer).check()
    recovered = relive.recover(tmp_path / "log")
    with relive.Journal(tmp_path / "log") as log:
        twin = copied(recovered)
        with pytest.raises(errors.ArgumentError, match="^journal must hold what the buffer does"):
            twin.attach(log)
        recovered.attach(log)


@COPIED
def test_prefetched_batches_and_waiters_are_not_copied(copied: Callable[[Any], Any]) -> None:
    buffer = ring()
    iterator = buffer.batches(3)
    next(iterator)
    for end in buffer._gathers.ends:
        end.clear()  # As if its thread were still at it.
    other = copied(buffer)
    add_steps(other, 3)
    other.clear()
    other.check()
    iterator.close()


@COPIED
def test_a_copied_async_buffer_has_no_loop_and_no_waiters(copied: Callable[[Any], Any]) -> None:
    async def copy_it() -> Any:
        shell = relive.AsyncReplayBuffer(relive.RingReplayBuffer(12, SCHEMA, seed=0))
        waiting = asyncio.create_task(shell.sample(3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        other = copied(shell)
        waiting.cancel()
        return other

    other = asyncio.run(copy_it())
    assert len(use_shell(other)[0].keys) == 5


# Forks.


@posix_test.FORKS
@posix_test.THREADED
@pytest.mark.parametrize("name", WHOLE | REFERRING)
def test_parent_and_fork_are_independent(name: str) -> None:
    make, use = (WHOLE | REFERRING)[name]
    thing = make()
    answers = plain(use(copy.deepcopy(thing)))

    def compare() -> None:
        assert plain(use(thing)) == answers

    posix_test.in_a_fork(compare)
    compare()


@posix_test.FORKS
@posix_test.THREADED
def test_a_fork_does_not_wait_for_prefetching_threads() -> None:
    buffer = ring()
    iterator = buffer.batches(3)
    next(iterator)
    for end in buffer._gathers.ends:
        end.clear()

    def go_on() -> None:
        with pytest.raises(
            errors.ArgumentError, match=f"^batches belong to process {os.getppid()}, of which this is a"
        ):
            next(iterator)
        others = buffer.batches(3)
        next(others)
        add_steps(buffer, 3)
        buffer.clear()
        others.close()
        iterator.close()
        buffer.check()

    posix_test.in_a_fork(go_on)
    for end in buffer._gathers.ends:
        end.set()
    next(iterator)
    iterator.close()


def test_batches_of_another_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ring()
    iterator = buffer.batches(3)
    next(iterator)
    pid = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid + 1)
        with pytest.raises(errors.ArgumentError, match=f"^batches belong to process {pid}, of which this is a fork: c"):
            next(iterator)
        add_steps(buffer, 1)
        assert buffer._gathers.ends == []
    next(iterator)
    iterator.close()


@posix_test.FORKS
@posix_test.THREADED
def test_batches_without_prefetching_go_on_in_a_fork() -> None:
    iterator = ring().batches(3, prefetch=0)
    posix_test.in_a_fork(iterator.__next__)


@contextlib.contextmanager
def thread_at(work: Callable[[threading.Event, threading.Event], None]) -> Iterator[None]:
    """Run another thread during the block; it sets one event when it has started, and waits for the other."""
    begun, may_end = threading.Event(), threading.Event()
    thread = threading.Thread(target=work, args=(begun, may_end))
    thread.start()
    assert begun.wait(posix_test.PATIENCE)
    try:
        yield
    finally:
        may_end.set()
        thread.join()


@posix_test.FORKS
@posix_test.THREADED
def test_a_fork_does_not_wait_for_locks_of_its_parent() -> None:
    shell = threaded()
    iterator = shell.batches(3)

    def hold(begun: threading.Event, may_end: threading.Event) -> None:
        with shell._changed:
            begun.set()
            assert may_end.wait(posix_test.PATIENCE)

    def go_on() -> None:
        calls: list[Callable[[], Any]] = [lambda: add_steps(shell, 1), lambda: shell.sample(3), shell.check]
        calls += [shell.close, iterator.__next__, lambda: len(shell), lambda: shell.locked().__enter__()]
        for call in calls:
            with pytest.raises(
                errors.ClosedError,
                match="^buffer cannot go on in this fork, made while another thread was in the middle",
            ):
                call()
        assert shell.capacity == 12

    with thread_at(hold):
        posix_test.in_a_fork(go_on)
    assert len(shell.sample(3).keys) == 3
    free = threaded()
    with thread_at(hold):
        threads._begin_in_a_fork()  # As if this process were one.
        go_on()
    assert len(free.sample(3).keys) == 3


@posix_test.FORKS
@posix_test.THREADED
def test_a_fork_uses_a_buffer_at_which_threads_wait() -> None:
    shell = threaded(relive.RingReplayBuffer(12, SCHEMA, seed=0))
    waiting = threading.Thread(target=shell.sample, args=(3,))
    waiting.start()
    while not shell._changed._waiters:
        time.sleep(0.001)

    def go_on() -> None:
        add_steps(shell, 3)
        assert len(shell.sample(3).keys) == 3
        shell.check()

    posix_test.in_a_fork(go_on)
    with shell.locked():
        posix_test.in_a_fork(go_on)
    go_on()
    waiting.join()


@posix_test.FORKS
@posix_test.THREADED
def test_a_fork_can_only_read_a_memory_map(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows"
    fresh = relive.MemmapStorage(tmp_path / "others", SCHEMA, 12)
    closed = relive.MemmapStorage(tmp_path / "closed", SCHEMA, 12)
    closed.close()
    rows = relive.MemmapStorage(path, SCHEMA, 12)
    buffer = ring(storage=rows)
    answers = plain(buffer.read(buffer.eligible_keys()))

    def go_on() -> None:
        assert plain(buffer.read(buffer.eligible_keys())) == answers
        for each in (buffer, relive.RingReplayBuffer(12, storage=fresh)):
            with pytest.raises(errors.ArgumentError, match="^rows must not be written to .* by a fork of the process"):
                add_steps(each, 1)
        with pytest.raises(errors.ClosedError):
            closed.read(0)
        rows.flush()
        assert rows.is_dirty
        rows.close()
        fresh.close()

    posix_test.in_a_fork(go_on)
    assert (path / "dirty.json").exists()
    assert not fresh.is_dirty
    with pytest.raises(errors.CheckpointError, match=rf"is in use by this process \(pid {os.getpid()}\)"):
        relive.MemmapStorage(path)
    add_steps(buffer, 20)
    rows.close()
    fresh.close()
    with relive.MemmapStorage(path) as again:
        assert (again.was_dirty, again.generation) == (False, 1)


def test_a_memory_map_opened_elsewhere_is_read_only(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = relive.MemmapStorage(tmp_path / "rows", SCHEMA, 12)
    buffer = ring(storage=rows)
    memmap._begin_in_a_fork()  # As if this process were one.
    with pytest.raises(
        errors.ArgumentError, match="^rows must not be written to .* by a fork of the process that opened"
    ):
        add_steps(buffer, 1)
    assert len(buffer) == 9
    buffer.check()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    rows.close()
    assert rows.is_dirty
    assert (tmp_path / "rows" / "dirty.json").exists()
    assert (tmp_path / ".rows.lock").read_text() == f"{pid}\n"


@posix_test.FORKS
@posix_test.THREADED
def test_a_fork_does_not_use_the_event_loop_of_its_parent() -> None:
    shell = relive.AsyncReplayBuffer(ring())

    async def fork() -> None:
        await shell.sample(3)

        def go_on() -> None:
            with pytest.raises(errors.EventLoopError, match="^buffer belongs to another event loop: "):
                asyncio.run(shell.sample(3))
            assert len(shell.buffer.sample(3).keys) == 3

        posix_test.in_a_fork(go_on)

    asyncio.run(fork())


# Another process, which knows what is pickled.


def used(name: str, thing: Any) -> Any:
    return plain((WHOLE | REFERRING)[name][1](thing))


def test_a_spawned_process_continues_identically() -> None:
    things = {name: make() for name, (make, _) in WHOLE.items()} | {"mixture": zoo.KINDS["mixture"].make()}
    spawn = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, spawn) as pool:
        answers = list(pool.map(used, things, things.values(), timeout=60))
    assert answers == [used(name, thing) for name, thing in things.items()]


# Nothing is left out.


def test_every_public_class_is_tested_for_copies() -> None:
    things: list[Any] = [make() for make, _ in (WHOLE | REFERRING).values() if make not in OPTIONAL]
    for record in records().values():
        things += record if isinstance(record, list) else [record]
    found = {kind for thing in things for kind in type(thing).__mro__}
    found |= {type(records()["other batches"][0].agents["a"]), relive.EpisodeTotals}
    elsewhere = {relive.Journal, relive.MemmapStorage, relive.Ticket, relive.ThreadSafeReplayBuffer}
    found |= {relive.PlainCodec, relive.TokenStepCodec, relive.TemporaryMaps}
    protocols = {relive.Codec, relive.Storage}
    kinds = {kind for name in vars(relive)["__all__"] if isinstance(kind := getattr(relive, name), type)}
    assert kinds - found - protocols == elsewhere
