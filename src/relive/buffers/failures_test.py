"""A call that fails half-way has changed nothing, and unusual calls do not fail."""

import os
import pathlib
import signal
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.persistence import posix_test

SCHEMA = relive.Schema(relive.Field((), "int64"), relive.Field((), "int64"))


class Refusing(relive.ColumnStorage):
    """A storage whose writes fail on request."""

    refuses = False

    def write(self, slots: Any, rows: Any) -> None:
        if self.refuses:
            raise OSError("no")
        super().write(slots, rows)


class RefusingRows(relive.ColumnStorage):
    """The same for rows of bytes."""

    refuses = False

    def _write_rows(self, slot: int, count: int, rows: Any) -> None:
        if self.refuses:
            raise OSError("no")
        super()._write_rows(slot, count, rows)


def contents(buffer: Any) -> Any:
    """Return what a buffer holds and counts, and its generator."""
    columns = buffer._store.storage.read(np.arange(len(buffer)))
    held = {path: column.tolist() for path, column in columns.items()}
    return buffer.get_stats(), buffer.eligible_keys().tolist(), held, str(buffer.rng.bit_generator.state)


def filled(storage: relive.Storage, **settings: Any) -> relive.PrioritizedReplayBuffer:
    buffer = relive.PrioritizedReplayBuffer(6, storage=storage, streams=2, seed=0, **settings)
    for t in range(5):
        buffer.extend([t, t], [0, 0], [0.0, 0.0], [t + 1, t + 1])
    return buffer


CALLS = {
    "add": lambda buffer: buffer.add(9, 0, 0.0, 10, stream=1),
    "extend": lambda buffer: buffer.extend([5, 5], [0, 0], [0.0, 0.0], [6, 6], terminated=[True, False]),
    "add_episode": lambda buffer: buffer.add_episode(range(4), [0] * 3, [0.0] * 3, terminated=True, stream=0),
    "add_steps": lambda buffer: buffer.add_steps(range(5, 9), [0] * 3, [0.0] * 3, stream=0),
}


@pytest.mark.parametrize("kind", [Refusing, RefusingRows])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_storage_that_refuses_a_write_has_lost_nothing(call: Any, kind: Any, tmp_path: pathlib.Path) -> None:
    storage = kind(SCHEMA, 6)
    buffer = filled(storage)
    with relive.Journal(tmp_path / "log") as journal:
        buffer.attach(journal)
        before, records = contents(buffer), journal.num_records
        storage.refuses = True
        with pytest.raises(OSError, match="^no$"):
            call(buffer)
        assert contents(buffer) == before
        assert journal.num_records == records
        storage.refuses = False
        call(buffer)
        buffer.check()


class Hooked(relive.PrioritizedSampler):
    """Has a hook that does nothing."""

    def _added(self, slots: Any) -> None:
        super()._added(slots)


def test_a_waiting_row_is_weighed_for_a_sampler_with_hooks() -> None:
    buffer = relive.RingReplayBuffer(10, SCHEMA, sampler=Hooked(), seed=0)
    buffer.add(0, 0, 0.0)
    buffer.update_priorities([0], [5.0])
    buffer.add(1, 0, 0.0)
    buffer.check()
    assert buffer.sample(2).keys.tolist() == [0, 0]


@pytest.mark.parametrize("streams", [2, 12])
def test_an_observation_may_hold_nothing(streams: int) -> None:
    schema = relive.Schema(relive.Field(0, "float32"), relive.Field((), "int64"))
    buffer = relive.RingReplayBuffer(40, schema, streams=streams, seed=0)
    nothing, zeros = np.zeros((streams, 0), np.float32), np.zeros(streams, np.int64)
    for _ in range(25):
        buffer.extend(nothing, zeros, zeros, nothing)
    buffer.check()
    assert buffer.sample(3).next_observation.shape == (3, 0)


def test_more_frames_than_there_are_rows_cost_nothing() -> None:
    buffer = relive.PrioritizedReplayBuffer(10, SCHEMA, frame_stack=10**7, seed=0)
    buffer.add(0, 0, 0.0, 1)
    buffer.check()
    assert buffer.num_eligible == 1


def test_draws_are_counted_up_to_a_limit() -> None:
    buffer = relive.RingReplayBuffer(10, SCHEMA, max_times_sampled=2**31 - 1, seed=0)
    for t in range(3):
        buffer.add(t, 0, 0.0, t + 1)
    assert len(buffer.sample(2)) == 2
    with pytest.raises(errors.ArgumentError, match="^max_times_sampled must be at most 2147483647, or None for any"):
        relive.RingReplayBuffer(10, SCHEMA, max_times_sampled=2**31)


@posix_test.FORKS
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    buffer = relive.RingReplayBuffer(50, SCHEMA, seed=0)
    for t in range(60):
        buffer.add(t, 0, 0.0, t + 1)
    batches = buffer.batches(4)
    next(batches)
    for end in buffer._gathers.ends:
        end.clear()
    child = os.fork()
    if not child:  # pragma: no cover
        signal.alarm(5)
        buffer.add(1, 0, 0.0, 2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    batches.close()
