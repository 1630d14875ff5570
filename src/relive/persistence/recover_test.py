"""Everything written to a journal is recovered, for both families."""

from collections.abc import Callable, Sequence
import dataclasses
import errno
import gc
import os
import pathlib
import random
import shutil
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import queued
from relive.persistence import generators
from relive.persistence import journal_reader
from relive.persistence import posix_test
from relive.persistence import recover
from relive.persistence import segment as segment_lib
from relive.persistence import state as state_lib
from relive.testing import zoo

NOT_HELD = (
    *("sampled", "stale_keys", "num_eligible", "spent", "nbytes", "open_ages", "aborted_steps", "cleared_steps"),
    "effective_sample_size",
)
"""What `get_stats` says and a journal does not."""
LOOKS_WRONG = ("suspected_resets", "continued_truncations")
"""Counts that begin anew with a segment."""
DRAWS = ("times_sampled", "episode_drawn", "learner")
"""The arrays about what was drawn, and sums of what is gone."""
SEEDS = [7, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(7))]

NOT_DEFINED = "a class that is not defined here: give buffer_class="


def content(buffer: Any, but: Sequence[str] = NOT_HELD) -> Any:
    """All that a journal holds of a buffer."""
    state = buffer.state_dict()
    arrays = {
        name: array
        for name, array in state["arrays"].items()
        if not name.startswith(("sampler", "unit_")) and name not in (*DRAWS, "open_age", "growing")
    }
    ledger = queued.queue_of(buffer).known
    # Of groups, a later segment does not know what was given up before it.
    waiting = [] if ledger is None else [unit.key for unit in ledger.line or ()]
    delivered = [] if ledger is None else [each.episode_id for unit in ledger.delivered for each in unit.episodes]
    arrays["units"] = waiting, sorted(delivered)
    stats = {name: value for name, value in vars_of(buffer.get_stats()).items() if name not in but}
    return zoo.plain([state["settings"], arrays, stats])


def episodes_of(buffer: Any) -> dict[str, Any]:
    """Return the stored episodes by id; no public name lists them."""
    return {episode.episode_id: episode for episode in buffer._store}


def vars_of(stats: Any) -> dict[str, Any]:
    return {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}


def opened(path: pathlib.Path, segment_bytes: int = 1 << 20) -> relive.Journal:
    return relive.Journal(path, fsync="never", segment_bytes=segment_bytes)


def segments(path: pathlib.Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith(".relive"))


def written(path: pathlib.Path, buffer: Any, seed: int = 0, count: int = 30, segment_bytes: int = 1 << 20) -> Any:
    """Return a used buffer whose journal at the path is closed."""
    with opened(path, segment_bytes) as log:
        buffer.attach(log)
        zoo.work(buffer, random.Random(seed), count)
        buffer.detach()
    return buffer


MAKERS = {name: kind.make for name, kind in zoo.JOURNALED.items() if "again" not in name}
"""All that write to journals, but those that deliver again what they delivered before a restart."""


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
class TestEveryBuffer:
    def test_journals_of_large_buffers_begin_with_a_checkpoint(
        self, make: zoo.Make, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state_lib, "CHUNK", 1)
        buffer = make()
        zoo.work(buffer, random.Random(1), 15)
        written(tmp_path / "log", buffer, seed=2, count=15)
        assert sorted(os.listdir(tmp_path / "log"))[:2] == ["base", journal_reader.segment_name(0)]
        other: Any = relive.recover(tmp_path / "log")
        assert content(other) == content(buffer)
        with opened(tmp_path / "log") as log:
            other.attach(log)
            zoo.work(other, random.Random(3), 15)
        again: Any = relive.recover(tmp_path / "log")
        again.check()
        assert content(again) == content(other)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_recovered_buffers_equal_those_that_wrote(self, make: zoo.Make, seed: int, tmp_path: pathlib.Path) -> None:
        """Three processes, one after the other; the first buffer may already hold steps."""
        rng = random.Random(seed)
        buffer, twin, path = make(), make(), tmp_path / "log"
        state = rng.choice([0, 25])
        for each in (buffer, twin):
            zoo.work(each, random.Random(seed), state)
        for lifetime in range(3):
            log = opened(path, rng.choice([200, 2000, 1 << 20]))
            buffer.attach(log)
            count = rng.randrange(50)
            zoo.work(buffer, random.Random(lifetime), count)
            buffer.check()
            log.close()
            recovered: Any = relive.recover(path)
            recovered.check()
            assert type(recovered) is type(buffer)
            expected = content(buffer)
            assert content(recovered) == expected
            if lifetime == 2:
                assert content(relive.recover(path)) == expected
            if is_columns(buffer) and lifetime == 0:
                zoo.work(twin, random.Random(lifetime), count)
                assert content(twin) == expected
            buffer = recovered

    @pytest.mark.parametrize("seed", SEEDS)
    def test_what_is_written_together_is_there_or_not_at_all(
        self, make: zoo.Make, seed: int, tmp_path: pathlib.Path
    ) -> None:
        rng, buffer, path = random.Random(seed), make(), tmp_path / "log"
        log = opened(path, rng.choice([200, 2000, 1 << 20]))
        log._set_note(lambda: b"all")
        vars(log)["_release"] = lambda is_gone: None  # What is cut off below was synced before anything was deleted.
        buffer.attach(log)
        contents = [content(buffer)]
        for piece in range(6):
            with log._group(f"{piece}".encode):
                zoo.work(buffer, random.Random(10 * seed + piece), rng.randrange(25))
            contents.append(content(buffer))
        log.close()
        newest = path / segments(path)[-1]
        for mark in path.glob("*.closed"):
            mark.unlink()
        whole = newest.read_bytes()
        for cut in sorted(rng.sample(range(len(whole) + 1), min(4, len(whole)))):
            newest.write_bytes(whole[:cut])
            heard: list[bytes] = []
            try:
                recovered: Any = recover.played_back(os.fspath(path), None, None, None, None, {}, heard.append)
            except errors.CheckpointError:
                assert cut < len(whole)  # The base of the segment is missing.
                continue
            recovered.check()
            if not heard:
                continue  # The note with which the segment was created is missing.
            pieces = [int(note) for note in heard if note != b"all"]
            assert content(recovered) == contents[pieces[-1] + 1 if pieces else 0]
            assert heard[0] == b"all"

    def test_recovery_begins_with_a_given_checkpoint(self, make: zoo.Make, tmp_path: pathlib.Path) -> None:
        buffer = zoo.worked(make, 1, 20)
        with opened(tmp_path / "log", 2000) as log:
            buffer.attach(log)
            zoo.work(buffer, random.Random(2), 20)
            buffer.save(tmp_path / "saved")
            saved = zoo.plain(buffer.state_dict())
            recovered: Any = type(buffer).load(tmp_path / "saved")
            assert zoo.plain(recovered.state_dict() | {"journal": None}) == saved | {"journal": None}
        recovered = relive.recover(tmp_path / "log", checkpoint=tmp_path / "saved")
        # Nothing came after it: priorities, generator and draws are there too.
        zoo.assert_same(recovered, type(buffer).load(tmp_path / "saved"), 4)
        recovered = relive.recover(tmp_path / "log", checkpoint=tmp_path / "saved")
        with opened(tmp_path / "log", 500) as log:
            recovered.attach(log)
            zoo.work(recovered, random.Random(3), 3)
        again: Any = relive.recover(tmp_path / "log", checkpoint=tmp_path / "saved")
        again.check()
        assert content(again) == content(recovered)
        assert content(relive.recover(tmp_path / "log")) == content(recovered)

    @pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.long)], ids=["ends", "bytes"])
    def test_torn_journals_are_cut_after_the_last_whole_record(
        self, make: zoo.Make, is_whole: bool, tmp_path: pathlib.Path
    ) -> None:
        """The recovered buffer equals one that stopped there: at every byte, or at the ends of records."""
        buffer, twin, rngs = make(), make(), (random.Random(7), random.Random(7))
        stops: list[tuple[int, Any]] = []
        with opened(tmp_path / "log") as log:
            buffer.attach(log)
            (name,) = segments(tmp_path / "log")
            place = tmp_path / "log" / name
            start = place.stat().st_size
            for _ in range(8):
                stops.append((place.stat().st_size, content(twin if is_columns(buffer) else buffer)))
                zoo.work(buffer, rngs[0], 1)
                zoo.work(twin, rngs[1], 1)
        raw = place.read_bytes()
        num_compared = 0
        (tmp_path / "cut").mkdir()
        ends = {stop + more for stop, _ in stops for more in (-1, 0, journal_reader.RECORD_HEADER_BYTES)}
        ends.add(len(raw) - 1)
        for size in range(start, len(raw)):
            if not is_whole and size not in ends:
                continue
            (tmp_path / "cut" / name).write_bytes(raw[:size])
            recovered = relive.recover(tmp_path / "cut")
            stop, expected = [each for each in stops if each[0] <= size][-1]
            # One call may write two records: what is between them is known to no twin.
            if (tmp_path / "cut" / name).stat().st_size == stop:
                num_compared += 1
                assert content(recovered) == expected
        assert num_compared > len(stops)

    def test_recovering_twice_changes_the_file_once(self, make: zoo.Make, tmp_path: pathlib.Path) -> None:
        """Progress reaches the total, and another seed can be given."""
        written(tmp_path / "log", make(), 3, segment_bytes=300)
        place = tmp_path / "log" / segments(tmp_path / "log")[-1]
        place.write_bytes(place.read_bytes() + b"torn")
        heard: list[tuple[int, int]] = []
        first = relive.recover(tmp_path / "log", seed=5, progress=lambda count, total: heard.append((count, total)))
        assert heard == sorted(heard)
        assert heard[-1][0] == heard[-1][1] > 0
        assert generators.state_of(first.rng) == generators.state_of(np.random.default_rng(5))
        before = place.read_bytes()
        assert content(relive.recover(tmp_path / "log")) == content(first)
        assert place.read_bytes() == before

    def test_a_buffer_has_one_journal_and_a_journal_one_buffer(self, make: zoo.Make, tmp_path: pathlib.Path) -> None:
        buffer, other = make(), make()
        with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
            buffer.attach(one)
            with pytest.raises(errors.ArgumentError, match="^a journal is attached already: detach it first$"):
                buffer.attach(two)
            message = "^load_state_dict cannot be recorded in the journal: detach"
            with pytest.raises(errors.ArgumentError, match=message):
                buffer.load_state_dict(other.state_dict())
            message = r"^journal must hold what the buffer does, got one of 1 records: relive\.recover\(path\) returns"
            with pytest.raises(errors.ArgumentError, match=message):
                other.attach(one)
            buffer.detach()
            with pytest.raises(errors.ArgumentError, match=message):
                buffer.attach(one)
            buffer.attach(two)
            assert two.num_records == 1
        with pytest.raises(errors.ArgumentTypeError, match="^journal must be an instance of Journal, got 'log'$"):
            other.attach("log")
        with pytest.raises(errors.CheckpointError, match="log cannot be written: it was closed$"):
            closed = opened(tmp_path / "log")
            closed.close()
            other.attach(closed)
        assert content(other) == content(make())

    def test_buffers_changed_since_recovery_are_not_attached(self, make: zoo.Make, tmp_path: pathlib.Path) -> None:
        buffer = written(tmp_path / "log", make())
        changes: list[Callable[[Any], Any]] = [lambda buffer: buffer.clear()]
        changes.append(lambda buffer: zoo.work(buffer, random.Random(1), 20))
        if is_columns(buffer):
            changes.append(lambda buffer: buffer.set_eligible([0], False))
            changes.append(lambda buffer: buffer.load_state_dict(buffer.state_dict()))
        for change in changes:
            recovered: Any = relive.recover(tmp_path / "log")
            change(recovered)
            message = "since it was recovered|must hold what the buffer does"
            with opened(tmp_path / "log") as log, pytest.raises(errors.ArgumentError, match=message):
                recovered.attach(log)
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            recovered.detach()
            with opened(tmp_path / "new") as log:
                recovered.attach(log)
            assert content(relive.recover(tmp_path / "new")) == content(recovered)

    @pytest.mark.parametrize("fault", ["no record", "no segment", "closed"])
    def test_calls_that_cannot_be_written_change_nothing(
        self, make: zoo.Make, fault: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A record or a segment does not fit on the disk, or the journal was closed; what came before is recovered."""
        buffer, rng, refusals = make(), random.Random(4), list[str]()
        log = opened(tmp_path / "log", 300 if fault == "no segment" else 1 << 20)
        buffer.attach(log)

        def try_one() -> None:
            before, number = zoo.plain(buffer.state_dict()), log.num_records
            try:
                zoo.work(buffer, rng, 1)
            except errors.CheckpointError as error:
                refusals.append(str(error))
                if log.num_records == number:  # Not the second of two calls.
                    assert zoo.plain(buffer.state_dict()) == before

        for _ in range(5 if fault == "closed" else 100):
            if len(refusals) > 6:
                break
            if fault != "closed":
                with monkeypatch.context() as patch:
                    patch.setattr(
                        *((os, "write") if fault == "no record" else (segment_lib, "create")),
                        posix_test.failing(errno.ENOSPC),
                    )
                    try_one()
                    try_one()
            zoo.work(buffer, rng, 1)
        log.close()
        but = (*NOT_HELD, *LOOKS_WRONG)
        expected = content(buffer, but)
        for _ in range(8 * (fault == "closed")):
            try_one()
        reason = {"closed": "cannot be written: it was closed"}.get(fault, "could not be written: No space left on")
        assert refusals
        assert all(f"log {reason}" in refusal for refusal in refusals)
        buffer.check()
        if is_columns(buffer):  # An episode may have been evicted, and it is not yet written that it was.
            assert content(relive.recover(tmp_path / "log"), but) == expected
        buffer.detach()
        zoo.work(buffer, rng, 5)

    def test_records_are_on_the_disk_before_segments_are_deleted(
        self, make: zoo.Make, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise a power failure could lose the steps that evicted what was in them."""
        buffer, unsynced = make(), list[int]()
        with opened(tmp_path / "log", 1000) as log:
            prune = log._prune

            def pruning(before: int) -> int:
                unsynced.append(log.num_records - log.num_synced)
                return prune(before)

            monkeypatch.setattr(log, "_prune", pruning)
            buffer.attach(log)
            zoo.work(buffer, random.Random(1), 80)
        assert set(unsynced) <= {0}


def is_columns(buffer: Any) -> bool:
    return isinstance(buffer, relive.ColumnReplayBuffer)


# Checkpoints that do not fit.


def filled(path: pathlib.Path, log: relive.Journal) -> Any:
    buffer = relive.RingReplayBuffer(5, seed=0)
    buffer.attach(log)
    buffer.add(0.0, 0, 0.0, 1.0)
    buffer.save(path)
    return buffer


def test_a_checkpoint_of_another_journal_is_refused(tmp_path: pathlib.Path) -> None:
    with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        filled(tmp_path / "first", one)
        filled(tmp_path / "second", two)
    relive.RingReplayBuffer(5, seed=0).save(tmp_path / "third")
    for name in ("second", "third"):
        message = f"{name} was saved without this journal: leave it out$"
        with pytest.raises(errors.CheckpointError, match=message):
            relive.recover(tmp_path / "one", checkpoint=tmp_path / name)
    assert len(relive.recover(tmp_path / "one", checkpoint=tmp_path / "first")) == 1


def test_a_checkpoint_older_than_the_journal_is_refused(tmp_path: pathlib.Path) -> None:
    """One just before its first record is not."""
    places: dict[int | None, pathlib.Path] = {}
    first: int | None = None
    with opened(tmp_path / "log", 100) as log:
        buffer = filled(tmp_path / "saved", log)
        for t in range(60):
            buffer.add(float(t), 0, 0.0, t + 1.0)
            places[log.num_records] = tmp_path / f"saved {t}"
            buffer.save(places[log.num_records])
            first = int(segments(tmp_path / "log")[0][8:28])
            if first in places:
                break
    message = f"saved is older than the journal, which begins with record {first}: leave it out$"
    with pytest.raises(errors.CheckpointError, match=message):
        relive.recover(tmp_path / "log", checkpoint=tmp_path / "saved")
    assert content(relive.recover(tmp_path / "log")) == content(buffer)
    assert content(relive.recover(tmp_path / "log", checkpoint=places[first])) == content(buffer)


def test_a_checkpoint_newer_than_the_journal_is_refused(tmp_path: pathlib.Path) -> None:
    with opened(tmp_path / "log") as log:
        buffer = filled(tmp_path / "saved", log)
        buffer.add(5.0, 0, 0.0, 6.0)
        buffer.save(tmp_path / "saved")
    (tmp_path / "log" / f"{journal_reader.segment_name(3)}.closed").unlink()  # As if it had been killed.
    place = tmp_path / "log" / segments(tmp_path / "log")[0]
    os.truncate(place, place.stat().st_size - 1)
    message = "saved is newer than the journal, which ends before record 2: load it, and attach a new journal$"
    with pytest.raises(errors.CheckpointError, match=message):
        relive.recover(tmp_path / "log", checkpoint=tmp_path / "saved")


def test_checkpoints_sync_the_journal(tmp_path: pathlib.Path) -> None:
    with opened(tmp_path / "log") as log:
        buffer = filled(tmp_path / "saved", log)
        assert log.num_synced == log.num_records == 2
        buffer.add(5.0, 0, 0.0, 6.0)
        assert log.num_synced == 2
        buffer.state_dict()
        assert log.num_synced == 3
    buffer.save(tmp_path / "saved")  # A journal that was closed does not keep it from being saved.
    assert len(relive.recover(tmp_path / "log", checkpoint=tmp_path / "saved")) == 2


# Draws that the journal does not record.


def ratio_buffer(family: str) -> Any:
    limiter = relive.SampleToInsertRatio(ratio=4.0, min_size=10, error_buffer=40.0)
    if family == "columns":
        return relive.RingReplayBuffer(100, limiter=limiter, seed=0)
    return relive.EpisodeReplayBuffer[Any, Any](max_transitions=100, limiter=limiter, seed=0)


def add_one(buffer: Any, t: int) -> None:
    if is_columns(buffer):
        buffer.add(float(t), t, 0.0, t + 1.0)
    else:
        ids = buffer.get_stats().open_ages
        episode_id = next(iter(ids)) if ids else buffer.start_episode_nowait("agent")
        buffer.append_observation_action_reward_nowait(episode_id, t, t, 0.0)


def draw_one(buffer: Any, size: int) -> None:
    if is_columns(buffer):
        buffer.sample(size)
    else:
        buffer.sample_n_step_nowait(size, n=1, gamma=0.9)


@pytest.mark.parametrize("family", ["columns", "episodes"])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 300], ids=["one segment", "segments"])
def test_a_recovered_limiter_holds_neither_side_back(family: str, segment_bytes: int, tmp_path: pathlib.Path) -> None:
    """P84: draws are not in the journal, and actors do not wait for them; the ratio holds from then on."""
    buffer = ratio_buffer(family)
    with opened(tmp_path / "log", segment_bytes) as log:
        buffer.attach(log)
        for t in range(200):
            if t == 19:  # No samples are added without need.
                early: Any = relive.recover(shutil.copytree(tmp_path / "log", tmp_path / "early"))
                assert early._limited.can_insert()
                assert early.get_stats().sampled == 0
            while not buffer._limited.can_insert():
                draw_one(buffer, 8)
            add_one(buffer, t)
    recovered: Any = relive.recover(tmp_path / "log")
    assert recovered.get_stats().sampled == 4 * (200 - 10)
    before = content(recovered)
    draw_one(recovered, 32)
    for t in range(200, 218):  # All that the limiter ever allows: (32 + 40) / 4.
        add_one(recovered, t)
    with pytest.raises(errors.NotReadyError, match="held back by SampleToInsertRatio"):
        add_one(recovered, 218)
    assert content(relive.recover(tmp_path / "log")) == before == content(buffer)


# What cannot be recovered.


RING_STATE = {"arrays": {}, "journal_id": "x", "class": "RingReplayBuffer"}
BASES: dict[str, Any] = {
    "a base must hold a state, got 3": 3, "arrays must be a mapping, got None": {"journal_id": "x"},
    "journal_id is missing": {"arrays": {}}, "class is missing": {"arrays": {}, "journal_id": "x"},
    r"class must be a string, got \[1\]": RING_STATE | {"class": [1]},
    f"it is of a 'Own', {NOT_DEFINED}": RING_STATE | {"class": "Own"},
    "it is of ItemReplayBuffer, which has no journal": RING_STATE | {"class": "ItemReplayBuffer"},
    "has_checkpoint is missing": RING_STATE, "settings is missing": RING_STATE | {"has_checkpoint": False},
}  # fmt: skip


@pytest.mark.parametrize("rule", BASES)
def test_invalid_bases_are_refused(rule: str, tmp_path: pathlib.Path) -> None:
    with opened(tmp_path / "log") as log:
        log._begin(lambda: relive.PlainCodec().encode(BASES[rule]))
    with pytest.raises(errors.CheckpointError, match=f"log begins with an invalid record: {rule}$"):
        relive.recover(tmp_path / "log")


@pytest.mark.parametrize(
    "make", [lambda: relive.RingReplayBuffer(5), relive.EpisodeReplayBuffer], ids=["ring", "episodes"]
)
def test_records_of_an_unknown_kind_are_refused(make: zoo.Make, tmp_path: pathlib.Path) -> None:
    with opened(tmp_path / "log") as log:
        make().attach(log)
        log._append(99, b"abc")
    message = "log: record 1 is of kind 99 with 3 bytes, which is not valid here$"
    with pytest.raises(errors.CheckpointError, match=message):
        relive.recover(tmp_path / "log")


def test_wrong_arguments_of_recover_are_refused(tmp_path: pathlib.Path) -> None:
    calls = [("buffer_class", each, "a class of buffers, got ") for each in (3, dict, "RingReplayBuf")]
    calls += [("progress", 3, "callable or None, got 3$"), ("path", 3, "a path, got 3$")]
    for name, value, message in calls:
        arguments: dict[str, Any] = {"path": tmp_path / "log", name: value}
        with pytest.raises(errors.ArgumentTypeError, match=f"^{name} must be {message}"):
            relive.recover(**arguments)


# Custom classes.


class JournaledBuffer(relive.ColumnReplayBuffer[Any]):
    """A custom class of buffers."""


class JournaledSampler(relive.UniformSampler):
    """A custom sampler."""


def test_buffers_of_a_custom_class_are_recovered(tmp_path: pathlib.Path) -> None:
    buffer = JournaledBuffer(10, window=relive.TransitionWindow(), sampler=JournaledSampler())
    written(tmp_path / "log", buffer)
    given = relive.recover(tmp_path / "log", buffer_class=JournaledBuffer, sampler=JournaledSampler())
    for recovered in (relive.recover(tmp_path / "log"), given):
        assert type(recovered) is JournaledBuffer
        assert type(recovered.sampler) is JournaledSampler
        assert content(recovered) == content(buffer)
    with opened(tmp_path / "typed") as log:
        relive.EpisodeReplayBuffer[str, int]().attach(log)
    typed = relive.recover(tmp_path / "typed", buffer_class=relive.EpisodeReplayBuffer[str, int])
    assert type(typed) is relive.EpisodeReplayBuffer


def test_an_undefined_class_must_be_given(tmp_path: pathlib.Path) -> None:
    def leave() -> None:
        class Gone(relive.RingReplayBuffer):
            pass

        written(tmp_path / "log", Gone(10))

    leave()
    gc.collect()
    with pytest.raises(errors.CheckpointError, match=f"it is of a 'Gone', {NOT_DEFINED}$"):
        relive.recover(tmp_path / "log")


@pytest.fixture
def with_checkpoint(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A journal that begins with a checkpoint, of five rows."""
    monkeypatch.setattr(state_lib, "CHUNK", 1)
    buffer = relive.RingReplayBuffer(5)
    buffer.add_episode(range(6), range(5), range(5), terminated=True)
    with opened(tmp_path / "log") as log:
        buffer.attach(log)
        buffer.add(7, 7, 7)
    return tmp_path / "log"


def test_the_base_checkpoint_must_be_there(with_checkpoint: pathlib.Path) -> None:
    base = with_checkpoint / "base"
    assert len(relive.recover(with_checkpoint)) == 5
    shutil.move(base / "checkpoint", with_checkpoint.parent / "elsewhere")
    for change, message in (
        (list, "log/base/checkpoint does not exist$"),
        (lambda: shutil.rmtree(base), "log/base/checkpoint does not exist$"),
        (lambda: base.symlink_to(with_checkpoint.parent), "log holds 'base', which is not part of a journal: move it"),
    ):
        change()
        with pytest.raises(errors.CheckpointError, match=message):
            relive.recover(with_checkpoint)


def test_the_base_checkpoint_is_deleted_with_its_segment(
    with_checkpoint: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, kept = with_checkpoint / "base", with_checkpoint.parent / "kept"
    shutil.copytree(base, kept)
    buffer: Any = relive.recover(with_checkpoint)
    with opened(with_checkpoint, segment_bytes=100) as log:
        buffer.attach(log)
        for _ in range(40):
            buffer.add(7, 7, 7)
    assert not base.exists()
    assert content(relive.recover(with_checkpoint)) == content(buffer)
    # Of a process that was killed before it was deleted.
    shutil.copytree(kept, base)
    assert content(relive.recover(with_checkpoint)) == content(buffer)
    with opened(with_checkpoint):
        assert not base.exists()


def test_a_failed_base_checkpoint_attaches_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a record, of a process that was killed, is replaced."""
    monkeypatch.setattr(state_lib, "CHUNK", 1)
    buffer = relive.RingReplayBuffer(5)
    buffer.add(7, 7, 7)
    with opened(tmp_path / "log") as log:
        (tmp_path / "log" / "base").write_bytes(b"")
        with pytest.raises(errors.CheckpointError, match="log could not be written: File exists$"):
            buffer.attach(log)
        (tmp_path / "log" / "base").unlink()
        os.mkdir(tmp_path / "log" / "base")
        buffer.save(journal_reader.checkpoint_of(str(tmp_path / "log")))
    with pytest.raises(errors.CheckpointError, match="log holds no record$"):
        relive.recover(tmp_path / "log")
    with opened(tmp_path / "log") as log:
        buffer.attach(log)
        buffer.add(8, 8, 8)
    assert content(relive.recover(tmp_path / "log")) == content(buffer)


def test_journals_in_use_are_refused_by_any_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with opened(tmp_path / "log") as log:
        relive.RingReplayBuffer(5).attach(log)
        for call, name in ((opened, "link"), (relive.recover, "link"), (relive.recover, "log")):
            with pytest.raises(errors.CheckpointError, match="log is in use by this process"):
                call(tmp_path / name)


def test_another_base_checkpoint_is_refused(with_checkpoint: pathlib.Path) -> None:
    """A broken one is not repaired."""
    buffer: Any = relive.recover(with_checkpoint)
    with opened(with_checkpoint) as log:
        buffer.attach(log)
        buffer.save(with_checkpoint / "base" / "checkpoint")
    with pytest.raises(errors.CheckpointError, match="base/checkpoint is not what the journal begins with$"):
        relive.recover(with_checkpoint)
    (with_checkpoint / "base" / "checkpoint").unlink()
    message = "base/checkpoint.*: recover with an older checkpoint=, or not at all"
    with pytest.raises(errors.CheckpointError, match=message):
        relive.repair(with_checkpoint)


def test_a_checkpoint_is_not_recovered_as_a_journal(tmp_path: pathlib.Path) -> None:
    relive.RingReplayBuffer(10).save(tmp_path / "buffer")
    with pytest.raises(
        errors.CheckpointError, match="buffer is a file, not a journal: if it is a checkpoint, load it$"
    ):
        relive.recover(tmp_path / "buffer")
    written(tmp_path / "log", relive.RingReplayBuffer(5))
    message = "^codec must be left out for a RingReplayBuffer, which holds no ob"
    for call in (relive.recover, relive.load):
        with pytest.raises(errors.ArgumentError, match=message):
            call(tmp_path / "log", codec=relive.PlainCodec())


def test_contradictory_records_are_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(buffer: object) -> None:
        raise errors.CorruptionError("the rows are not those of their episodes")

    written(tmp_path / "log", relive.RingReplayBuffer(9))
    monkeypatch.setattr(relive.RingReplayBuffer, "check", check)
    with pytest.raises(errors.CheckpointError, match="log: the rows are not those of their episodes$"):
        relive.recover(tmp_path / "log")
