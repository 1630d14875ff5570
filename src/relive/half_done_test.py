"""A public call that raises has changed nothing, whatever failed in it; or it is done, where a warning is raised.

The calls of the zoo are made to fail at each point in turn: at each array that numpy allocates, at each file call of a
journal, at each hook of a sampler. A call that succeeds nevertheless, as when memory runs out in the look for misuse at
its very end, is done.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import os
import pathlib
import random
import subprocess
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.testing import allocations
from relive.testing import zoo

BY_DAY = zoo.BY_DAY | {"ring with its own sampler", "ring with its own storage"}
Failing = Callable[[int], contextlib.AbstractContextManager[Any]]
"""Lets what has that number fail within a block, counted from 1."""


class FailingError(Exception):
    """What a hook raises here."""


def kinds(names: Any) -> list[Any]:
    """Return names of kinds as parameters, most of them long."""
    return [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.long) for name in names]


def has_failed(call: Callable[[], Any]) -> bool:
    """Make a call, and return whether it failed for want of memory or disk, or in a hook."""
    try:
        call()
    except (MemoryError, FailingError, errors.CheckpointError):
        return True
    except errors.ArgumentError as error:
        if isinstance(error.__cause__, MemoryError):
            return True
        raise
    return False


def count_failures(buffer: Any, failing: Failing, state_of: Callable[[Any], Any], seeds: int) -> int:
    """Make a call of each seed fail at each point, and then succeed; return how many failed and changed nothing."""
    num_failed = 0
    for seed in range(seeds):
        before, number, fails = state_of(buffer), 0, True
        while fails:
            number += 1
            with failing(number):
                fails = has_failed(functools.partial(zoo.work, buffer, random.Random(seed), 1))
            if fails:
                num_failed += 1
                assert state_of(buffer) == before, (seed, number)
                zoo.check(buffer)
    return num_failed


@pytest.mark.parametrize("name", kinds(zoo.KINDS))
def test_a_call_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    buffer = zoo.worked(zoo.KINDS[name].make, count=40)
    seeds = 2 if name.startswith("tokens") else 8
    assert count_failures(buffer, allocations.failing, zoo.state_of, seeds) >= 10
    zoo.work(buffer, random.Random("after"), 20)
    zoo.check(buffer)


OF_MANY_STREAMS: dict[str, Callable[[], Any]] = {
    "ring": lambda: relive.RingReplayBuffer(40, zoo.SCHEMA, streams=9, seed=0),
    "prioritized": lambda: relive.PrioritizedReplayBuffer(40, zoo.SCHEMA, streams=9, n_step=2, seed=0),
    "stacks": lambda: relive.RingReplayBuffer(40, zoo.SCHEMA, streams=9, frame_stack=2, seed=0),
    "sequences": lambda: relive.SequenceReplayBuffer(40, zoo.SCHEMA, streams=9, length=2, seed=0),
}


@pytest.mark.parametrize("name", OF_MANY_STREAMS)
def test_a_round_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    """Of more than are written one by one."""
    buffer = OF_MANY_STREAMS[name]()
    zoo.work(buffer, random.Random(1), 40)
    assert count_failures(buffer, allocations.failing, zoo.state_of, seeds=4) > 30
    zoo.work(buffer, random.Random("after"), 20)
    buffer.check()


@pytest.mark.parametrize("name", kinds(zoo.STORED))
def test_a_load_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    state = zoo.worked(zoo.KINDS[name].make, seed=1, count=40).state_dict()
    buffer, number, num_failed, fails = zoo.worked(zoo.KINDS[name].make, count=40), 0, 0, True
    before = zoo.state_of(buffer)
    while fails:
        number += 1 + number // 16
        with allocations.failing(number):
            fails = has_failed(functools.partial(buffer.load_state_dict, state))
        num_failed += fails
        assert not fails or zoo.state_of(buffer) == before, number
    assert num_failed > 8
    zoo.check(buffer)


# Files.


@contextlib.contextmanager
def failing_file_call(number: int) -> Iterator[None]:
    """Let the file call of that number fail, of all that change a directory or a file."""
    count = 0

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise OSError(28, "No space left on device")
            return call(*arguments, **options)

        return made

    with contextlib.ExitStack() as stack:
        for name in ("open", "write", "rename", "replace", "mkdir", "unlink"):
            stack.enter_context(mock.patch.object(os, name, failing(getattr(os, name))))
        yield


@pytest.mark.parametrize("name", kinds(zoo.JOURNALED))
@pytest.mark.parametrize("failing", [failing_file_call, allocations.failing], ids=["disk", "memory"])
def test_a_call_that_cannot_be_journaled_has_changed_nothing(name: str, failing: Any, tmp_path: pathlib.Path) -> None:
    """Neither the buffer nor what the next records follow in the newest segment."""
    path = tmp_path / "log"

    def state_of(buffer: Any) -> Any:
        newest = max(file.name for file in path.glob("segment*"))
        return zoo.state_of(buffer), newest, (path / newest).read_bytes()

    buffer = zoo.worked(zoo.JOURNALED[name].make, count=40)
    with relive.Journal(path, fsync="never") as journal:
        buffer.attach(journal)
        assert count_failures(buffer, failing, state_of, seeds=4) > 0
        expected = zoo.state_of(buffer)
        buffer.detach()
    if "its own storage" not in name:  # Which a recovered buffer does not have.
        recovered: Any = relive.recover(path)
        zoo.check(recovered)
        assert recovered.get_stats().appended == buffer.get_stats().appended, expected


# Hooks, storages and memory maps.


class RaisingHooks(zoo.AmongNewest):
    """A sampler whose hook of a number raises."""

    fails_at = count = 0

    def _added(self, slots: arrays_lib.Slots) -> None:
        self._call()
        super()._added(slots)

    def _removed(self, slots: arrays_lib.Slots) -> None:
        self._call()
        super()._removed(slots)

    def _call(self) -> None:
        RaisingHooks.count += 1
        if RaisingHooks.count == RaisingHooks.fails_at:
            raise FailingError


class RaisingHooksAndPriorities(RaisingHooks, relive.PrioritizedSampler):
    """The same with priorities."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.PrioritizedSampler._draw(self, size, rng)


@contextlib.contextmanager
def failing_hook(number: int) -> Iterator[None]:
    RaisingHooks.count, RaisingHooks.fails_at = 0, number
    yield
    RaisingHooks.fails_at = 0


HOOKED: dict[str, Callable[..., Any]] = {
    "ring": lambda: relive.RingReplayBuffer(17, zoo.SCHEMA, streams=3, frame_stack=2, sampler=RaisingHooks(), seed=0),
    "times": lambda: relive.RingReplayBuffer(17, zoo.SCHEMA, max_times_sampled=2, sampler=RaisingHooks(), seed=0),
    "priorities": lambda: relive.RingReplayBuffer(
        17, zoo.SCHEMA, n_step=2, sampler=RaisingHooksAndPriorities(), seed=0
    ),
    "sequences": lambda: relive.SequenceReplayBuffer(
        17, zoo.SCHEMA, length=3, pad=True, sampler=RaisingHooks(), seed=0
    ),
    "sequences with priorities": lambda: relive.SequenceReplayBuffer(
        17, zoo.SCHEMA, length=2, stride=2, sampler=RaisingHooksAndPriorities(), seed=0
    ),
    "joint": lambda: relive.JointReplayBuffer(9, zoo.SCHEMAS, agents=zoo.AGENTS, sampler=RaisingHooks(), seed=0),
    "a storage": lambda: relive.RingReplayBuffer(
        17, storage=zoo.OwnStorage(zoo.SCHEMA, 17), sampler=RaisingHooks(), seed=0
    ),
    "tokens": lambda: relive.TokenReplayBuffer(60, sampler=RaisingHooks(), seed=0),
}


@pytest.mark.parametrize("is_journaled", [False, True])
@pytest.mark.parametrize("name", HOOKED)
def test_a_call_whose_hook_raises_has_changed_nothing(name: str, is_journaled: bool, tmp_path: pathlib.Path) -> None:
    buffer = HOOKED[name]()
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        if is_journaled:
            buffer.attach(journal)
        zoo.work(buffer, random.Random(0), 60)
        num_records = journal.num_records

        def state_of(buffer: Any) -> Any:
            return zoo.state_of(buffer), journal.num_records

        assert count_failures(buffer, failing_hook, state_of, seeds=40) > 15
        assert journal.num_records > num_records or not is_journaled
        zoo.work(buffer, random.Random("after"), 20)
        zoo.check(buffer)
        with contextlib.suppress(errors.NotReadyError):
            buffer.sample(1)  # The sampler is told again what may be drawn.
        assert sorted(buffer.sampler._newest) == buffer.sampler.anchors.slots().tolist()


def test_an_end_that_cannot_be_journaled_is_not_counted(tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(5, seed=0)
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffer.attach(journal)
        buffer.add(0, 0, 0.0, 1)
        before = zoo.state_of(buffer)
        with failing_file_call(1), pytest.raises(errors.CheckpointError, match="No space left"):
            buffer.end_episode()
        assert zoo.state_of(buffer) == before


@pytest.mark.parametrize("name", ["priorities", "sequences with priorities"])
def test_a_record_that_fails_has_changed_no_priority(name: str, tmp_path: pathlib.Path) -> None:
    buffer = HOOKED[name]()
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffer.attach(journal, priorities=True)
        zoo.work(buffer, random.Random(0), 60)
        assert count_failures(buffer, failing_file_call, zoo.state_of, seeds=60) > 20


def test_priorities_of_a_mixture_not_written_change_none(tmp_path: pathlib.Path) -> None:
    buffers = [zoo.worked(zoo.COLUMNS["prioritized"]) for _ in range(3)]
    mixture = relive.MixtureSampler(buffers, [1, 1, 1])
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffers[0].attach(journal, priorities=True)
        keys, before = mixture.sample(9).keys, zoo.state_of(mixture)
        with failing_file_call(1), pytest.raises(errors.CheckpointError, match="No space left"):
            mixture.update_priorities(keys, [3.0] * 9)
        assert zoo.state_of(mixture) == before
        assert mixture.update_priorities(keys, [3.0] * 9) == 9


def test_an_episode_that_is_not_written_has_changed_no_priority(tmp_path: pathlib.Path) -> None:
    buffer = relive.TokenReplayBuffer(40, sampler=RaisingHooksAndPriorities(), seed=0)
    steps = [relive.TokenStep(prompt=[1, 2], response=[3, 4, 5], logprobs=[-1.0] * 3, policy_version=0)]
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffer.attach(journal)
        for number in range(20):
            buffer.add_episode(steps, agent_id="a")
            buffer.update_priorities([number], [1.0 + number % 3])
            before = zoo.state_of(buffer)
            with failing_file_call(1), pytest.raises(errors.CheckpointError, match="No space left"):
                buffer.add_episode(steps, agent_id="a")
            assert zoo.state_of(buffer) == before


class FailingStorage(zoo.OwnStorage):
    """A custom storage whose write of a number fails in the middle of its rows, or which cannot be read."""

    fails_at = count = 0
    can_be_read = True

    def read(self, slots: Any, fields: Any = None) -> dict[str, arrays_lib.Array]:
        if not self.can_be_read:
            raise FailingError
        return super().read(slots, fields)

    def write(self, slots: Any, rows: Any) -> None:
        FailingStorage.count += 1
        some = [*rows][:: 2 if FailingStorage.count == FailingStorage.fails_at else 1]
        super().write(slots, super().read(slots) | {path: rows[path] for path in some})
        if len(some) < len(rows):
            raise FailingError


@contextlib.contextmanager
def failing_write(number: int) -> Iterator[None]:
    FailingStorage.count, FailingStorage.fails_at = 0, number
    yield
    FailingStorage.fails_at = 0


@pytest.mark.parametrize("options", [{}, {"streams": 3}, {"sampler": RaisingHooks()}])
def test_a_storage_that_fails_in_a_write_has_its_rows_back(options: dict[str, Any]) -> None:
    buffer = relive.RingReplayBuffer(17, storage=FailingStorage(zoo.SCHEMA, 17), seed=0, **options)
    zoo.work(buffer, random.Random(0), 60)
    assert count_failures(buffer, failing_write, zoo.state_of, seeds=40) > 15


def test_a_look_for_misuse_that_fails_is_left_out() -> None:
    """The step is stored by then."""
    storage = FailingStorage(relive.Schema(relive.Field((), "int64"), relive.Field((), "int64")), 17)
    buffer = relive.RingReplayBuffer(17, storage=storage, seed=0)
    storage.can_be_read = False
    for t in range(8):
        buffer.add(2 * t, 0, 0.0, 2 * t + 1)
    assert buffer.get_stats().spliced_episodes == 7


@pytest.mark.parametrize("options", [{}, {"frame_stack": 2}, {"streams": 3}])
def test_a_write_to_a_memory_map_that_fails_has_changed_nothing(
    options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    with relive.MemmapStorage(tmp_path / "rows", zoo.SCHEMA, 17) as storage:
        buffer = relive.PrioritizedReplayBuffer(17, storage=storage, **options, seed=0)
        zoo.work(buffer, random.Random(0), 40)
        num_failed = 0
        for seed in range(4):
            storage.flush()  # The next write marks the map as dirty.
            num_failed += count_failures(buffer, failing_file_call, zoo.state_of, seeds=1)
            num_failed += count_failures(buffer, allocations.failing, zoo.state_of, seeds=seed)
        assert num_failed > 30


def test_a_draw_that_runs_out_of_memory_forgets_no_new_row() -> None:
    """New rows get their priorities when the next draw needs them."""

    def filled() -> relive.PrioritizedReplayBuffer:
        buffer = relive.PrioritizedReplayBuffer(20, streams=2, alpha=1.0, seed=0)
        for t in range(12):
            buffer.extend([t, t], [0, 0], [0.0, 0.0], [t + 1, t + 1])
        return buffer

    expected, number, fails = filled().explain(23).probability, 0, True
    while fails:
        number, buffer = number + 1, filled()
        with allocations.failing(number):
            fails = has_failed(functools.partial(buffer.sample, 4))
        buffer.check()
        assert [buffer.explain(key).probability for key in buffer.eligible_keys()] == [expected] * 20
    assert number > 20


# Warnings that are errors.


def add_steps(buffer: Any) -> None:
    for t in range(300):
        buffer.add(float(t % 7), 0, 1.0, float(t % 5))


def add_joint_steps(buffer: Any) -> None:
    for t in range(300):
        of_agents = dict.fromkeys(buffer.agents, float(t % 7))
        buffer.add(of_agents, dict.fromkeys(of_agents, 0), of_agents, dict.fromkeys(of_agents, float(t % 5)))


@pytest.mark.parametrize(
    ("make", "add"),
    [
        (lambda: relive.PrioritizedReplayBuffer(50, seed=0), add_steps),
        (lambda: relive.RingReplayBuffer(50, sampler=RaisingHooks(), seed=0), add_steps),
        (lambda: relive.JointReplayBuffer(50, agents=["left", "right"], seed=0), add_joint_steps),
    ],
)
def test_a_call_that_raises_a_warning_is_done(make: Callable[[], Any], add: Callable[[Any], None]) -> None:
    """So it is also with a warning that is only shown."""
    warned, other, num_warned = make(), make(), 0
    with pytest.warns(errors.MisuseWarning):
        add(other)
    original = warned.add

    def add_or_warn(*arguments: Any, **options: Any) -> None:
        nonlocal num_warned
        try:
            original(*arguments, **options)
        except errors.MisuseWarning:
            num_warned += 1

    with mock.patch.object(warned, "add", add_or_warn):
        add(warned)
    assert num_warned >= 1
    assert zoo.state_of(warned) == zoo.state_of(other)
    warned.check()


# The address space of a process.

PROGRAM = """
import resource
import numpy as np
import relive

buffer = relive.RingReplayBuffer(1 << 14, relive.Schema(relive.Field(1024, "int64"), relive.Field((), "int64")), seed=0)
use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (use + (24 << 20), most))
num_failed = 0
for t in range(3_000):
    step = np.full(1024, 2 * t), t, 0.0, np.full(1024, 2 * t + 1)
    try:
        buffer.add(*step, truncated=True)
    except MemoryError:
        num_failed += 1
        assert len(buffer) == t
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        buffer.check()
        buffer.add(*step, truncated=True)
batch = buffer.read(np.arange(3_000))
assert (batch.next_observation[:, 0] == 2 * np.arange(3_000) + 1).all()
assert num_failed == 1, num_failed
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads its size from /proc")
def test_memory_may_run_out_while_final_observations_are_added() -> None:
    """P117: with a limit of the system on the address space."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
