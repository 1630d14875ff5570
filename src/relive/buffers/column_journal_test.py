"""What buffers of columns write to a journal; `recover_test` tests that it is read back."""

from collections.abc import Callable
import os
import pathlib
import shutil
import struct
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import column_journal
from relive.common import arrays as arrays_lib
from relive.persistence import recover_test
from relive.persistence import settings
from relive.testing import zoo

pytestmark = pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")

SCHEMA = relive.Schema(
    relive.Field(2, "uint8"),
    relive.Field((), bool),
    extras={"word": relive.Field((), "U1"), "n": relive.Field((), int)},
)
NEXT = np.array([3, 4], np.uint8)


def ring(streams: int = 1, schema: relive.Schema | None = SCHEMA) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(12, schema, streams=streams, seed=0)


def add(buffer: Any, t: int = 0, **more: Any) -> None:
    buffer.add(np.array([1, t % 256], np.uint8), True, 1.0, NEXT, word="a", n=t, **{"stream": 0, **more})


def extend(buffer: Any, t: int = 0) -> None:
    count = buffer.streams
    observations = np.full((count, 2), t % 256, np.uint8)
    extras = {"word": np.full(count, "b"), "n": np.full(count, t)}
    buffer.extend(observations, np.zeros(count, bool), np.zeros(count), observations, **extras)


def add_episode(buffer: Any, length: int = 3) -> None:
    zeros = np.zeros((length + 1, 2), np.uint8)
    extras = {"word": np.full(length, "c"), "n": np.arange(length)}
    buffer.add_episode(zeros, np.zeros(length, bool), np.zeros(length), terminated=True, stream=0, **extras)


def no_space(*_: object) -> Any:
    raise OSError(28, "No space left on device")


# A step that cannot be written is not stored.


def test_refused_steps_are_not_written(tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(12, SCHEMA, limiter=relive.SampleToInsertRatio(1.0, 1, error_buffer=2.0))
    wrong: Any = "x"
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        with pytest.raises(errors.SchemaError):
            buffer.add(wrong, True, 0.0, NEXT, word="a", n=1)
        with pytest.raises(errors.ArgumentError):
            buffer.set_eligible([1.5], True)
        for t in range(20):
            try:
                add(buffer, t)
            except errors.NotReadyError:
                break
        assert log.num_records == 1 + len(buffer) < 20


def test_a_schema_that_was_not_written_is_not_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ring(schema=None)
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", no_space)
            with pytest.raises(errors.CheckpointError, match="No space left"):
                buffer.add(0.0, 0, 0.0)
        assert buffer.schema is None
        add(buffer)
    recovered: Any = relive.recover(tmp_path / "log")
    assert recovered.schema == buffer.schema
    assert recover_test.content(recovered) == recover_test.content(buffer)


# Segments.


@pytest.mark.parametrize("schema", [SCHEMA, None], ids=["schema", "inferred"])
def test_segments_are_deleted_with_their_rows(schema: relive.Schema | None, tmp_path: pathlib.Path) -> None:
    buffer = ring(schema=schema)
    most = 0
    with recover_test.opened(tmp_path / "log", 100) as log:
        buffer.attach(log)
        for t in range(500):
            add(buffer, t)
            most = max(most, len(recover_test.segments(tmp_path / "log")))
        assert most <= 3
        buffer.clear()
        while len(recover_test.segments(tmp_path / "log")) > 1:
            add(buffer)
            assert len(buffer) < 12
    assert recover_test.content(relive.recover(tmp_path / "log")) == recover_test.content(buffer)


def test_undeletable_segments_are_deleted_later(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ring()
    with recover_test.opened(tmp_path / "log", 100) as log:
        buffer.attach(log)
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlink_failing(os.unlink))
            before: list[Any] = []

            def adding() -> None:
                for t in range(500):
                    before.append(zoo.plain(buffer.state_dict()))
                    add(buffer, t)

            with pytest.raises(errors.CheckpointError, match="log could not be pruned: Input/output error$"):
                adding()
            assert zoo.plain(buffer.state_dict()) == before[-1]
        assert len(buffer) == 12
        for t in range(500):
            add(buffer, t)
        assert len(recover_test.segments(tmp_path / "log")) <= 3
    assert recover_test.content(relive.recover(tmp_path / "log")) == recover_test.content(buffer)


def unlink_failing(unlink: Callable[..., None]) -> Callable[..., None]:
    def call(path: str, **named: Any) -> None:
        if path.endswith(".relive"):
            raise OSError(5, "Input/output error")
        unlink(path, **named)

    return call


def test_a_row_is_in_the_journal_until_it_was_evicted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the step that would have evicted it was refused."""
    buffer = ring()
    with recover_test.opened(tmp_path / "log", 100) as log:
        buffer.attach(log)
        for t in range(36):
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", no_space)
                with pytest.raises(errors.CheckpointError, match="No space left"):
                    add(buffer, t)
            shutil.copytree(tmp_path / "log", tmp_path / f"copy {t}")
            assert recover_test.content(relive.recover(tmp_path / f"copy {t}")) == recover_test.content(buffer)
            add(buffer, t)


def test_the_first_step_without_a_schema_may_begin_a_segment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous segment may be deleted at once."""
    for call in (add, extend, add_episode):
        buffer = ring(schema=None)
        path = tmp_path / call.__name__
        with recover_test.opened(path, 10) as log:
            buffer.attach(log)
            for _ in range(40):
                buffer.clear()
            call(buffer)
            call(buffer)
        assert recover_test.content(relive.recover(path)) == recover_test.content(buffer)


# Invalid records.


def forged(
    path: pathlib.Path, kind: int, payload: bytes, schema: relive.Schema | None = SCHEMA, streams: int = 2
) -> Any:
    with recover_test.opened(path) as log:
        ring(streams, schema).attach(log)
        log._append(kind, payload)
    return relive.recover(path)


ROW = b"".join([b"\1\2", b"\1", bytes(8), bytes(8), b"a\0\0\0"])
HEAD = struct.Struct("<IB")


def steps(count: int, flags: int, streams: list[int], events: list[int], rows: bytes) -> bytes:
    """Return the payload of a record of steps."""
    return HEAD.pack(count, flags) + np.array(streams, "<u4").tobytes() + bytes(events) + rows


def one(flags: int, stream: int, event: int, rows: bytes = ROW) -> tuple[int, bytes]:
    """Return the record of one step."""
    return column_journal.STEPS, steps(1, flags, [stream], [event], rows)


def columns(count: int, action: bytes = b"\0") -> bytes:
    return b"".join([bytes(2 * count), action * count, bytes(8 * count), bytes(8 * count), b"a\0\0\0" * count])


NOTHING = "is of steps that do not exist"
STREAMS = "is of streams that do not exist"
ENDS = "is of episodes that cannot end as it says"
VALUES = "an array must hold bools that are 0 or 1, and characters of Unicode"
NO_NEXT = "is of a truncated step without a next observation"
FORGED: list[tuple[str, tuple[int, bytes]]] = [
    ("is of kind 7 with 0 bytes, which is not valid here", (7, b"")),
    ("is of kind 6 with 15 bytes, which is not valid here", (column_journal.PRIORITIES, bytes(15))),
    (
        "sets invalid priorities: .* needs a PrioritizedSampler, got UniformSampler",
        (column_journal.PRIORITIES, bytes(16)),
    ),
    ("is of kind 3 with 7 bytes, which is not valid here", (column_journal.CLEAR, bytes(7))),
    ("is of kind 4 with 9 bytes, which is not valid here", (column_journal.ELIGIBLE, b"\2" + bytes(8))),
    ("is of kind 4 with 8 bytes, which is not valid here", (column_journal.ELIGIBLE, bytes(8))),
    ("is of kind 5 with 3 bytes, which is not valid here", (column_journal.END, bytes(3))),
    ("ends an episode of stream 1, where none is open", (column_journal.END, b"\1\0\0\0")),
    ("ends an episode of stream 2, where none is open", (column_journal.END, b"\2\0\0\0")),
    ("counts 1 rows as evicted, more than there were", (column_journal.CLEAR, b"\1" + bytes(7))),
    ("sets the schema, which is already known", (column_journal.FIRST, bytes(4))),
    ("ends in the middle of a value", one(0, 0, 0, ROW[:-1])),
    ("ends in the middle of a value", (column_journal.STEPS, bytes(4))),
    ("has bytes after its last value", one(0, 0, 0, ROW + b"x")),
    (NO_NEXT, one(0, 0, 2)),
    (NO_NEXT, (column_journal.STEPS, steps(2, 0, [1, 0], [0, 2], columns(2)))),
    (NOTHING, (column_journal.STEPS, HEAD.pack(0, 0))),
    (NOTHING, (column_journal.STEPS, HEAD.pack(3, 0))),
    (NOTHING, one(4, 0, 0)),
    (NOTHING, (column_journal.STEPS, HEAD.pack(0, 3))),
    (NOTHING, (column_journal.STEPS, HEAD.pack(13, 3))),
    (STREAMS, (column_journal.STEPS, steps(2, 0, [1, 1], [0, 0], columns(2)))),
    (STREAMS, one(0, 2, 0)),
    (STREAMS, one(0, 2**32 - 1, 0)),
    (STREAMS, (column_journal.STEPS, steps(2, 3, [2], [0, 0], columns(2) + b"\1\2"))),
    (ENDS, one(0, 0, 3)),
    (ENDS, one(0, 0, 4)),
    (ENDS, (column_journal.STEPS, steps(2, 3, [1], [0, 3], columns(2) + b"\1\2"))),
    (ENDS, (column_journal.STEPS, steps(2, 3, [1], [1, 0], columns(2) + b"\1\2"))),
    (ENDS, (column_journal.STEPS, steps(2, 3, [1], [0, 4], columns(2) + b"\1\2"))),
    (ENDS, (column_journal.STEPS, steps(3, 3, [1], [0, 1, 0], columns(3) + b"\1\2"))),
    (VALUES, (column_journal.STEPS, steps(2, 0, [1, 0], [0, 0], columns(2, b"\2")))),
    (VALUES, one(0, 0, 0, b"\1\2\1" + bytes(16) + b"\xff" * 4)),
    (VALUES, one(2, 0, 0, b"\1\2\2" + bytes(20) + b"\1\2")),
]


@pytest.mark.parametrize(("rule", "record"), FORGED)
def test_forged_records_of_columns_are_refused(rule: str, record: tuple[int, bytes], tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.CheckpointError, match=f"log: record 1 {rule}$"):
        forged(tmp_path / "log", *record)


def test_valid_records_of_columns_are_taken(tmp_path: pathlib.Path) -> None:
    several = steps(2, 0, [1, 0], [1, 0], columns(2))
    assert len(forged(tmp_path / "several", column_journal.STEPS, several)) == 2
    assert len(forged(tmp_path / "one", *one(2, 1, 2, ROW + b"\1\2"))) == 1
    for number, events in enumerate(([4, *[0] * 10, 1], [0] * 12, [4, *[0] * 10, 2])):
        run = steps(12, 3, [1], events, columns(12) + b"\1\2")
        assert len(forged(tmp_path / f"run {number}", column_journal.STEPS, run)) == 12
        run = steps(12, 1, [1], events, columns(12))
        assert len(forged(tmp_path / f"run {number} whose end is unknown", column_journal.STEPS, run)) == 12


def test_an_end_before_an_incomplete_step_is_recovered(tmp_path: pathlib.Path) -> None:
    with recover_test.opened(tmp_path / "log") as log:
        buffer = ring()
        buffer.attach(log)
        for n in range(2):
            buffer.add(NEXT, True, 0.0, word="a", n=n)
        assert buffer.end_episode()
    recovered: Any = relive.recover(tmp_path / "log")
    assert recovered.get_stats() == buffer.get_stats()
    assert recovered.eligible_keys().tolist() == [0]


def test_an_unrecorded_end_prevents_attaching(tmp_path: pathlib.Path) -> None:
    with recover_test.opened(tmp_path / "log") as log:
        buffer = ring()
        buffer.attach(log)
        add(buffer)
    recovered: Any = relive.recover(tmp_path / "log")
    assert recovered.end_episode()
    message = "journal must hold what the buffer does"
    with recover_test.opened(tmp_path / "log") as log, pytest.raises(errors.ArgumentError, match=message):
        recovered.attach(log)


def first(fields: Any) -> bytes:
    encoded = relive.PlainCodec().encode(fields)
    return struct.pack("<I", len(encoded)) + encoded


def test_a_forged_schema_is_refused(tmp_path: pathlib.Path) -> None:
    large = relive.Schema(relive.Field((2**40,), "float64"), relive.Field((), int))
    cases = {
        "schema must be a list of .*": first(3),
        "has a schema whose rows do not fit in memory: .*": first(settings.encoded(large)),
        "ends in the middle of a value": first(settings.encoded(SCHEMA)),
    }
    for number, (rule, payload) in enumerate(cases.items()):
        with pytest.raises(errors.CheckpointError, match=f"log{number}: record 1 {rule}$"):
            forged(tmp_path / f"log{number}", column_journal.FIRST, payload, schema=None)
    with pytest.raises(errors.CheckpointError, match="record 1 is of kind 1 with 33 bytes, which is not valid here$"):
        forged(tmp_path / "unknown", *one(0, 0, 0), schema=None)


class Refusing(relive.UniformSampler):
    def _added(self, slots: arrays_lib.Slots) -> None:
        raise ValueError(f"no to {slots}")


def test_a_sampler_that_fails_in_recovery_is_an_error(tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(12, SCHEMA, streams=3)
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        for t in range(20):
            extend(buffer, t)
    with pytest.raises(errors.CheckpointError, match="log: record [0-9]* cannot be played back: "):
        relive.recover(tmp_path / "log", sampler=Refusing())


# Priorities.


def prioritized(**settings: Any) -> relive.PrioritizedReplayBuffer:
    return relive.PrioritizedReplayBuffer(12, seed=0, **settings)


def draws_of(buffer: relive.PrioritizedReplayBuffer) -> Any:
    keys = buffer.eligible_keys()
    return keys.tolist(), buffer.get_priorities(keys).tolist()


@pytest.mark.parametrize("segment_bytes", [300, 2**20])
def test_written_priorities_are_recovered(tmp_path: pathlib.Path, segment_bytes: int) -> None:
    rng = np.random.default_rng(0)
    buffer = prioritized()
    with recover_test.opened(tmp_path / "log", segment_bytes) as log:
        buffer.attach(log, priorities=True)
        for t in range(60):
            buffer.add([t], 0, 1.0, [t + 1], truncated=t % 7 == 6)
            if t % 3 == 0:
                buffer.update_priorities(rng.integers(max(0, t - 16), t + 1, 3), t * rng.random(3))
    other: Any = relive.recover(tmp_path / "log")
    other.check()
    assert draws_of(other) == draws_of(buffer)


def test_priorities_are_not_written_unless_told(tmp_path: pathlib.Path) -> None:
    buffer = prioritized()
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        buffer.add([0], 0, 1.0, [1])
        buffer.update_priorities([0], [5.0])
        assert log.num_records == 2
    with recover_test.opened(tmp_path / "other") as log:
        with pytest.raises(errors.ArgumentError, match="^attach with priorities=True needs a PrioritizedSampler"):
            ring().attach(log, priorities=True)
        with pytest.raises(errors.ArgumentTypeError, match="^priorities must be True or False, got 1$"):
            prioritized().attach(log, priorities=1)  # type: ignore[arg-type]
        assert log.num_records == 0


def test_refused_priorities_are_not_written(tmp_path: pathlib.Path) -> None:
    buffer = prioritized(alpha=2.0)
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log, priorities=True)
        for t in range(20):
            buffer.add([t], 0, 1.0, [t + 1])
        before = log.num_records
        for journal in (True, False):
            with pytest.raises(errors.ArgumentError, match="1e\\+300"):
                buffer.update_priorities([0, 19], [1.0, 1e300])
            assert (log.num_records, buffer.get_stats().stale_keys) == (before, 0)
            if journal:
                buffer.detach()


def test_forged_priorities_are_refused(tmp_path: pathlib.Path) -> None:
    buffer = prioritized()
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        buffer.add([0], 0, 1.0, [1])
        log._append(column_journal.PRIORITIES, bytes(8) + np.array([-1.0]).tobytes())
    with pytest.raises(errors.CheckpointError, match="record 2 sets invalid priorities: .*, got -1.0$"):
        relive.recover(tmp_path / "log")
