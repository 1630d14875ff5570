from collections.abc import Callable
import errno
import gc
import itertools
import json
import mmap
import os
import pathlib
import random
import signal
from typing import Any
import zlib

import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.common import arrays as arrays_lib
from relive.persistence import files
from relive.persistence import manifest
from relive.persistence import posix_test
from relive.storage import memmap
from relive.testing import zoo

PLAIN = relive.Schema(relive.Field(2, np.float32), relive.Field((), np.int64))
FRAMES = relive.Schema(relive.Field((84, 84, 4), np.uint8), relive.Field((), np.int64))
OTHER = relive.Schema(relive.Field(3, np.float32), relive.Field((), np.int64))


def row(value: float) -> dict[str, arrays_lib.Array]:
    return {"observation": np.full(2, value, np.float32), "action": np.array(int(value)), "reward": np.array(value)}


def row_bytes(value: float) -> list[bytes]:
    return [column.tobytes() for column in row(value).values()]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "map"


def made(path: pathlib.Path, values: tuple[float, ...] = (1.0, 2.0, 3.0)) -> None:
    """Make a map of four rows, closed and of generation 1."""
    with relive.MemmapStorage(path, PLAIN, 4) as rows:
        for slot, value in enumerate(values):
            rows.write(slot, row(value))


def names(path: pathlib.Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


class TestMemmapStorage(testing.StorageTests):
    @pytest.fixture(autouse=True)
    def start(self, tmp_path: pathlib.Path) -> None:
        self.numbers = itertools.count()
        self.folder = tmp_path

    def make(self, schema: relive.Schema, capacity: int) -> relive.Storage:
        return relive.MemmapStorage(self.folder / str(next(self.numbers)), schema, capacity)


# The same buffer on a file.


@pytest.mark.parametrize(
    ("make", "settings", "streams"),
    [
        (relive.RingReplayBuffer, {"n_step": 3, "gamma": 0.9}, 3),
        (relive.RingReplayBuffer, {"n_step": 2, "frame_stack": 3}, 1),
        (relive.SequenceReplayBuffer, {"length": 3, "burn_in": 1, "pad": True}, 3),
        (relive.PrioritizedReplayBuffer, {"n_step": 2}, 1),
    ],
)
def test_a_buffer_on_a_map_equals_one_in_memory(
    tmp_path: pathlib.Path, make: Any, settings: dict[str, Any], streams: int
) -> None:
    for capacity in (3, 11):
        rows = relive.MemmapStorage(tmp_path / str(capacity), zoo.SCHEMA, capacity)
        mapped, plain = (
            make(capacity, zoo.SCHEMA, streams=streams, seed=1, storage=storage, **settings) for storage in (rows, None)
        )
        rngs = random.Random(capacity), random.Random(capacity)
        for _ in range(5):
            assert zoo.work(mapped, rngs[0], 12) == zoo.work(plain, rngs[1], 12)
            zoo.assert_same(mapped, plain, 9)
            rows.flush()
            assert not rows.is_dirty
        rows.close()
        with relive.MemmapStorage(rows.path) as again:
            everything = np.arange(capacity)
            assert zoo.plain(again.read(everything)) == zoo.plain(plain._store.storage.read(everything))


def test_a_buffer_writes_bytes_of_rows_into_the_files(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows, written = relive.MemmapStorage._write_rows, []

    def counted(self: relive.MemmapStorage, slot: int, count: int, rows: Any) -> None:
        written.append((slot, count))
        write_rows(self, slot, count, rows)

    monkeypatch.setattr(relive.MemmapStorage, "_write_rows", counted)
    with relive.MemmapStorage(path, PLAIN, 4) as rows:
        buffer = relive.RingReplayBuffer(4, storage=rows)
        for value in range(3):
            buffer.add(np.full(2, value, np.float32), value, float(value), np.full(2, value + 1, np.float32))
        buffer.add_steps(np.arange(3, 7).repeat(2).reshape(4, 2).astype(np.float32), [3, 4, 5], [3.0, 4.0, 5.0])
        assert written == [(0, 1), (1, 1), (2, 1), (3, 3)]
        found = np.load(path / "rows-2.npy", mmap_mode="r")
        assert found.tolist() == [4.0, 5.0, 2.0, 3.0]


# Files.


def test_rows_of_a_map_are_there_after_reopening(path: pathlib.Path) -> None:
    made(path)
    for schema, capacity in [(None, None), (PLAIN, None), (None, 4), (PLAIN, 4)]:
        with relive.MemmapStorage(path, schema, capacity) as rows:
            assert rows.schema == PLAIN
            assert rows.capacity == 4
            assert rows.read(np.arange(4))["observation"].tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [0.0, 0.0]]
            assert (rows.generation, rows.was_dirty, rows.is_dirty) == (1, False, False)
            assert rows.path == path


def test_each_map_has_an_id_of_its_own(tmp_path: pathlib.Path) -> None:
    """Its parents are made, and an empty directory is taken."""
    (tmp_path / "empty").mkdir()
    ids = set()
    for path in (tmp_path / "some" / "where" / "map", tmp_path / "empty"):
        with relive.MemmapStorage(path, PLAIN, 4) as rows:
            ids.add(rows._id)
            assert (rows.generation, rows.was_dirty, rows.is_dirty) == (0, False, False)
        with relive.MemmapStorage(str(path)) as rows:
            ids.add(rows._id)
        assert names(path) == ["clean.json", "rows-0.npy", "rows-1.npy", "rows-2.npy", "storage.json"]
    assert len(ids) == 2


def test_the_path_of_a_map_is_absolute(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = relive.MemmapStorage("map", PLAIN, 4)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rows.write(0, row(1.0))
    rows.close()
    assert rows.path == tmp_path / "map"
    assert names(tmp_path / "map") == ["clean.json", "rows-0.npy", "rows-1.npy", "rows-2.npy", "storage.json"]


def taken(path: pathlib.Path) -> int:
    """Return the bytes that the files take on the disk."""
    return sum(entry.stat().st_blocks * 512 for entry in path.iterdir())


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="says which pages of a file are in memory")
def test_a_sparse_map_takes_the_room_of_rows_written(path: pathlib.Path) -> None:
    capacity = 720_000
    slots = np.array([0, 1, capacity // 2, capacity - 2, capacity - 1])
    frames = np.random.default_rng(0).integers(0, 255, (5, 84, 84, 4), np.uint8)
    with relive.MemmapStorage(path, FRAMES, capacity) as rows:
        assert rows.nbytes > 20e9
        rows.write(slots, {"observation": frames, "action": np.arange(5), "reward": np.arange(5.0)})
        buffer = relive.RingReplayBuffer(capacity, storage=rows)
        assert buffer.add(frames[4], 7, 7.0, frames[3]) == 0
    before = taken(path)
    assert before < 2e6
    with relive.MemmapStorage(path) as rows:
        maps = pathlib.Path("/proc/self/smaps").read_text().split("VmFlags")
        resident = [part.split("\nRss:")[1].split("\n")[0].split() for part in maps if f"{path}/rows-0.npy" in part]
        assert resident == [["0", "kB"]]
        assert rows.read(slots[1:])["observation"].tobytes() == frames[1:].tobytes()
        assert rows.read(slots)["action"].tolist() == [7, 1, 2, 3, 4]
        assert not rows.is_dirty
    assert taken(path) == before


def test_a_field_of_no_bytes_has_a_file_without_rows(path: pathlib.Path) -> None:
    schema = relive.Schema(relive.Field((0, 3), np.float32), relive.Field((), np.int64))
    relive.MemmapStorage(path, schema, 4).close()
    with relive.MemmapStorage(path) as rows:
        assert rows.read(np.arange(2))["observation"].shape == (2, 0, 3)
    assert (path / "rows-0.npy").stat().st_size == 128


@posix_test.LIMITS
def test_files_that_cannot_be_made_leave_nothing(path: pathlib.Path) -> None:
    resource = posix_test.resource
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        message = r"/map/rows-0.npy cannot be made of 8000128 bytes: File too large$"
        with pytest.raises(errors.CheckpointError, match=message):
            relive.MemmapStorage(path, PLAIN, 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(path) == []
    relive.MemmapStorage(path, PLAIN, 10).close()


def test_files_of_a_map_killed_while_made_are_made_anew(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    os.rename(path / "storage.json", path / "storage.json.new")
    os.remove(path / "rows-2.npy")
    removed = []
    unlink = files.Directory.unlink

    def hear(self: files.Directory, name: str) -> None:
        unlink(self, name)
        removed.append(name)

    monkeypatch.setattr(files.Directory, "unlink", hear)
    with relive.MemmapStorage(path, PLAIN, 4) as rows:
        assert rows.read(0)["reward"] == 0.0
        assert rows.generation == 0
    # Killed again before that, it is still known for what it is.
    assert removed[:4] == ["clean.json", "rows-0.npy", "rows-1.npy", "storage.json.new"]
    assert names(path) == ["clean.json", "rows-0.npy", "rows-1.npy", "rows-2.npy", "storage.json"]


@pytest.mark.parametrize("name", ["manifest.json", "notes.txt", "rows-0.npy", "storage.json.new", "a\nb"])
def test_a_directory_of_something_else_is_left_alone(path: pathlib.Path, name: str) -> None:
    path.mkdir()
    (path / name).write_text("mine")
    if name == "storage.json.new":
        (path / "zebra").write_text("mine")
    before = names(path)
    rule = "and no storage.json: a memory map needs a directory that is new or empty$"
    with pytest.raises(errors.CheckpointError, match=rule) as caught:
        relive.MemmapStorage(path, PLAIN, 4)
    assert "\n" not in str(caught.value)
    assert names(path) == before
    assert (path / name).read_text() == "mine"


def test_a_map_is_not_taken_for_a_checkpoint(path: pathlib.Path) -> None:
    made(path)
    assert "manifest.json" not in names(path)
    buffer = relive.RingReplayBuffer(4, PLAIN)
    before = names(path)
    with pytest.raises(errors.CheckpointError, match=f"^{path} is a directory, and a checkpoint is a file: "):
        buffer.save(path)
    assert names(path) == before


# Arguments.


def test_settings_unlike_those_of_the_files_are_refused(path: pathlib.Path) -> None:
    made(path)
    for schema in (OTHER, relive.Schema(relive.Field(2, ">f4"), relive.Field((), np.int64))):
        with pytest.raises(errors.ArgumentError, match=rf"^schema must be that of {path}, Schema\(.*, got Schema\("):
            relive.MemmapStorage(path, schema)
    with pytest.raises(errors.ArgumentError, match=rf"^capacity must be that of {path}, 4, got 5$"):
        relive.MemmapStorage(path, PLAIN, 5)
    with relive.MemmapStorage(path, PLAIN, 4) as again:
        assert again.read(0)["reward"] == 1.0


ENDLESS = relive.Schema(relive.Field((1,) * 70, "u1"), relive.Field((), int))


def test_arguments_are_checked_before_anything_is_made(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        ({"path": 3}, "path must be a path, got 3$"),
        ({"path": ""}, "path must be the path of a directory in another, got ''$"),
        ({"schema": "no schema"}, "schema must be an instance of Schema, got 'no schema'$"),
        ({"schema": ENDLESS}, "schema must be one that"),
        ({"capacity": 0}, "capacity must be at least 1, got 0$"),
        ({"capacity": 2**61}, r"capacity must fit in memory, got 2305843009213693952 rows of \d+ bytes each, "),
    ]
    for arguments, rule in rows:
        with subtests.test(rule=rule):
            monkeypatch.chdir(tmp_path)
            with pytest.raises(errors.ArgumentError, match=f"^{rule}"):
                relive.MemmapStorage(**{"path": "map", "schema": PLAIN, "capacity": 4, **arguments})
            assert names(tmp_path) == []


def test_a_dtype_that_no_file_can_name_is_refused(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "0" * 32, OTHER, 4
    monkeypatch.setattr(memmap, "_decoded", lambda file, content: other)
    with pytest.raises(errors.ArgumentError, match=r"^schema must be one that files can hold, got Schema\("):
        relive.MemmapStorage(path, PLAIN, 4)
    assert not path.exists()


# Clean and dirty.


def is_clean(path: pathlib.Path) -> bool:
    """Return whether a map is clean, by its files."""
    assert ("clean.json" in names(path)) != ("dirty.json" in names(path))
    return "clean.json" in names(path)


def writes(rows: relive.MemmapStorage, value: float = 9.0) -> list[Callable[[], None]]:
    """Return all ways to write to a map."""
    many = {path: column[None] for path, column in row(value).items()}
    return [
        lambda: rows.write(0, row(value)),
        lambda: rows._write_rows(1, 1, row_bytes(value)),
        lambda: rows.write(np.array([2]), many),
    ]


def test_a_write_makes_a_map_dirty_and_a_flush_clean(path: pathlib.Path) -> None:
    """A refused write or a read does not."""
    rows = relive.MemmapStorage(path, PLAIN, 4)
    for generation, write in enumerate(writes(rows, 2.0)):
        with pytest.raises(errors.OutOfRangeError):
            rows.write(4, row(1.0))
        with pytest.raises(errors.OutOfRangeError):
            rows._write_rows(4, 1, row_bytes(1.0))
        rows.read(np.arange(4))
        assert (rows.is_dirty, rows.generation, is_clean(path)) == (False, generation, True)
        for _ in range(2):
            write()
            assert (rows.is_dirty, rows.generation, is_clean(path)) == (True, generation, False)
        for _ in range(2):
            rows.flush()
            assert (rows.is_dirty, rows.generation, is_clean(path)) == (False, generation + 1, True)
    assert rows.read(np.arange(4))["reward"].tolist() == [2.0, 2.0, 2.0, 0.0]
    rows.close()


def test_a_map_is_dirty_on_disk_before_a_row_changes(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    rows = relive.MemmapStorage(path)
    for write in writes(rows):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", posix_test.failing(errno.EIO))
            message = r"clean.json cannot be renamed to dirty.json: Input/output error$"
            with pytest.raises(errors.CheckpointError, match=message):
                write()
        assert rows.read(np.arange(4))["reward"].tolist() == [1.0, 2.0, 3.0, 0.0]
        assert not rows.is_dirty
    rows._write_rows(0, 1, row_bytes(8.0))
    assert rows.read(0)["reward"] == 8.0
    rows.close()


def test_a_failed_flush_leaves_a_map_dirty(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = relive.MemmapStorage(path, PLAIN, 4)
    rows.write(0, row(1.0))
    for call in (rows.flush, rows.close):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", posix_test.failing(errno.ENOSPC))
            message = r"/map/clean.json.new cannot be written: No space left on device$"
            with pytest.raises(errors.CheckpointError, match=message):
                call()
        assert (rows.is_dirty, rows.generation, is_clean(path)) == (True, 0, False)
    rows.write(1, row(2.0))
    rows.close()
    with relive.MemmapStorage(path) as rows:
        assert (rows.generation, rows.was_dirty) == (1, False)


def test_a_flush_that_fails_late_leaves_a_map_dirty(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (1, 2):
        rows = relive.MemmapStorage(path, PLAIN, 4)
        rows.write(0, row(1.0))
        calls = itertools.count(1)

        def fail(_: str, calls: Any = calls, call: int = call) -> None:
            if next(calls) == call:
                raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(files, "fsync_directory", fail)
            with pytest.raises(errors.CheckpointError, match=r": Input/output error$"):
                rows.flush()
        assert rows.is_dirty
        assert not is_clean(path)
        rows.write(0, row(2.0))
        del rows
        gc.collect()  # The error that was raised holds it.
        with relive.MemmapStorage(path) as again:
            assert again.was_dirty


def test_a_map_is_clean_once_all_is_synced(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    synced: list[Any] = []

    class Map(mmap.mmap):
        def flush(self, *arguments: Any) -> None:
            synced.append(names(path))
            super().flush(*arguments)

    def fsync_file(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(mmap, "mmap", Map)
    monkeypatch.setattr(files, "fsync_file", fsync_file)
    monkeypatch.setattr(files, "fsync_directory", lambda where: synced.append(names(path)))
    with relive.MemmapStorage(path) as rows:
        rows.write(0, row(1.0))
        others = ["rows-0.npy", "rows-1.npy", "rows-2.npy", "storage.json"]
        dirty = ["dirty.json", *others]
        assert synced == [dirty]
        rows.flush()
        size = (path / "clean.json").stat().st_size
        assert synced[1:] == [dirty] * 3 + [size, ["clean.json", *dirty], ["clean.json", *others]]


def test_a_map_that_was_not_closed_opens_dirty(path: pathlib.Path) -> None:
    made(path)
    rows = relive.MemmapStorage(path)
    rows.write(3, row(4.0))
    del rows
    gc.collect()
    rows = relive.MemmapStorage(path)
    assert (rows.was_dirty, rows.is_dirty, rows.generation) == (True, True, 1)
    assert rows.read(3)["reward"] == 4.0
    rows.write(3, row(5.0))
    rows.flush()
    # Whoever remembers generation 1 must not take this for it.
    assert (rows.was_dirty, rows.is_dirty, rows.generation) == (True, False, 2)
    rows.close()
    with relive.MemmapStorage(path) as again:
        assert (again.was_dirty, again.is_dirty, again.generation) == (False, False, 2)


def test_a_map_that_was_only_opened_is_clean(path: pathlib.Path) -> None:
    """Also one that was killed at the end of a flush."""
    made(path)
    rows = relive.MemmapStorage(path)
    rows.read(0)
    del rows
    (path / "dirty.json").write_bytes(b"of an older generation")
    with relive.MemmapStorage(path) as rows:
        assert (rows.was_dirty, rows.generation) == (False, 1)
        rows.write(0, row(7.0))
        assert "clean.json" not in names(path)
    with relive.MemmapStorage(path) as rows:
        assert (rows.was_dirty, rows.generation, is_clean(path)) == (False, 2, True)


# Who may do what.


def test_one_process_at_a_time_may_write_a_map(path: pathlib.Path) -> None:
    rows = relive.MemmapStorage(path, PLAIN, 4)
    link = path.with_name("link")
    link.symlink_to(path)
    for where in (path, link):
        with pytest.raises(errors.CheckpointError, match=f"^{path} is in use by this process"):
            relive.MemmapStorage(where)
    rows.write(0, row(1.0))
    rows.close()
    with relive.MemmapStorage(link) as rows:
        assert rows.read(0)["reward"] == 1.0


def test_a_map_opened_to_read_changes_nothing(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    opened = os.open

    def open_to_read(name: str, flags: int, *arguments: Any, **options: Any) -> int:
        assert flags & os.O_ACCMODE == os.O_RDONLY
        return opened(name, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", open_to_read)
    before = {name: (path / name).read_bytes() for name in names(path)}
    rows, both = memmap.reader(str(path)), memmap.reader(str(path))
    assert both.read(1)["reward"] == rows.read(1)["reward"] == 2.0
    message = f"^rows must not be written to {path}, which is open for reading alone$"
    for write in writes(rows):
        with pytest.raises(errors.ArgumentError, match=message):
            write()
    rows.flush()
    rows.close()
    both.close()
    assert {name: (path / name).read_bytes() for name in names(path)} == before
    with pytest.raises(errors.CheckpointError, match="map2 cannot be opened: No such file or directory$"):
        memmap.reader(str(path.with_name("map2")))


def test_reading_a_dirty_map_leaves_it_dirty(path: pathlib.Path) -> None:
    rows = relive.MemmapStorage(path, PLAIN, 4)
    rows.write(0, row(1.0))
    with memmap.reader(str(path)) as reader:
        assert reader.is_dirty
        reader.flush()
        assert reader.is_dirty
    assert "dirty.json" in names(path)
    rows.close()


def test_calls_on_a_closed_map_are_refused(path: pathlib.Path) -> None:
    rows = relive.MemmapStorage(path, PLAIN, 4)
    buffer = relive.RingReplayBuffer(4, storage=rows)
    for value in range(3):
        buffer.add(np.full(2, value, np.float32), value, float(value))
    rows.close()
    rows.close()
    rows.flush()
    calls: list[Callable[[], object]] = [*writes(rows), lambda: rows.read(0), lambda: buffer.sample(3)]
    calls += [lambda: rows.read(np.array([0]), ["reward"]), lambda: buffer.add(np.zeros(2, np.float32), 0, 0.0)]
    for call in calls:
        with pytest.raises(errors.ClosedError, match=f"^{path} was closed: open it again$"):
            call()
    assert (rows.generation, rows.is_dirty, rows.capacity) == (1, False, 4)
    assert "clean.json" in names(path)


def test_numpy_maps_the_files_too(path: pathlib.Path) -> None:
    made(path)
    columns = [np.lib.format.open_memmap(path / f"rows-{number}.npy", "r+") for number in range(3)]
    with relive.MemmapStorage(path) as rows:
        for column, (name, field) in zip(columns, PLAIN.fields.items(), strict=True):
            assert (column.dtype, column.shape) == (field.dtype, (4, *field.shape))
            assert column.tolist() == rows.read(np.arange(4))[name].tolist()


# Hostile files.


def refused(path: pathlib.Path, rule: str) -> None:
    """Check that the map can be opened in no way, and that the reason is one line that names a file of it."""
    before = names(path)
    for opened in (memmap.reader, relive.MemmapStorage):
        with pytest.raises(errors.CheckpointError, match=rule) as caught:
            opened(str(path))
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)
    assert names(path) == before


def test_a_missing_file_is_named(path: pathlib.Path) -> None:
    made(path)
    for name in ("clean.json", "rows-1.npy"):
        kept = (path / name).rename(path.with_name("kept"))
        refused(path, f"/{name} is missing$")
        kept.rename(path / name)
    os.remove(path / "storage.json")
    with pytest.raises(errors.CheckpointError, match="/storage.json is missing$"):
        relive.MemmapStorage(path)
    with pytest.raises(errors.CheckpointError, match="/map2 cannot be opened: No such file or directory$"):
        relive.MemmapStorage(path.with_name("map2"), PLAIN)
    with pytest.raises(errors.CheckpointError, match="/rows-0.npy cannot be opened: Not a directory$"):
        relive.MemmapStorage(path / "rows-0.npy", PLAIN, 4)


@posix_test.PIPES
def test_links_pipes_and_directories_are_refused(path: pathlib.Path) -> None:
    made(path)
    for name in ("storage.json", "clean.json", "rows-1.npy"):
        kept = (path / name).rename(path.with_name("kept"))
        (path / name).symlink_to(kept)
        refused(path, f"/{name} is a link$")
        for make, remove in ((os.mkfifo, os.unlink), (os.mkdir, os.rmdir)):
            (path / name).unlink(missing_ok=True)
            make(path / name)
            refused(path, f"/{name} is not a regular file$")
            remove(path / name)
        kept.rename(path / name)


def test_a_file_of_rows_of_another_size_is_refused(path: pathlib.Path) -> None:
    made(path)
    for size in (0, 32, 159, 161, 1 << 40):
        os.truncate(path / "rows-1.npy", size)
        refused(path, f"/rows-1.npy must be of 160 bytes, got {size}$")


def test_another_header_is_refused(path: pathlib.Path) -> None:
    made(path)
    for place in (0, 20, 127):
        raw = bytearray((path / "rows-1.npy").read_bytes())
        raw[place] ^= 1
        (path / "rows-1.npy").write_bytes(raw)
        refused(path, r"/rows-1.npy must have the header of dtype int64 and shape \(4,\)$")
        raw[place] ^= 1
        (path / "rows-1.npy").write_bytes(raw)


@pytest.mark.parametrize("name", ["storage.json", "clean.json"])
def test_every_byte_of_a_json_file_counts(path: pathlib.Path, name: str) -> None:
    made(path)
    whole = (path / name).read_bytes()
    rng = np.random.default_rng(0)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        for content in (bytes(changed), *([whole[:place]] if place % 4 == 0 else [])):
            (path / name).write_bytes(content)
            with pytest.raises(errors.CheckpointError, match=f"^{path}/{name} "):
                memmap.reader(str(path))
    for content in (whole + b"\n", whole + whole, b"\xff" * 100, b"\0" * 100):
        (path / name).write_bytes(content)
        refused(path, f"^{path}/{name} (is|was) ")
    os.truncate(path / name, 1 << 40)
    refused(path, f"/{name} must be of at most 2097152 bytes$")


def forge(path: pathlib.Path, name: str, **members: Any) -> None:
    """Rewrite some members of a JSON file, with the checksum that belongs to them; a None goes."""
    whole = json.loads((path / name).read_bytes()) | members
    del whole["crc32"]
    whole = {member: value for member, value in whole.items() if value is not None}
    (path / name).write_bytes(manifest.sealed(whole))


DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]

FORGED: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("storage.json", members, "is not the manifest of a relive memory map$")
        for members in ({"format": "relive checkpoint"}, {"format": None}, {"version": None}, {"version": "1"})
    ),
    ("storage.json", {"version": 3}, "is of format version 3, and this relive reads 2: update relive$"),
    ("storage.json", {"id": None}, "cannot be read: id is missing$"),
    ("storage.json", {"id": 3}, "cannot be read: id must be a string, got 3$"),
    ("storage.json", {"id": "../x"}, "cannot be read: id must be 32 digits of hexadecimal, got '../x'$"),
    ("storage.json", {"id": "0" * 33}, "storage.json cannot be read: id must be 32 digits of hexadecimal, got "),
    ("storage.json", {"id": "0" * 32}, f"clean.json cannot be read: id must be '{'0' * 32}', got '"),
    ("storage.json", {"capacity": None}, "cannot be read: capacity is missing$"),
    *(
        ("storage.json", {"capacity": capacity}, "cannot be read: capacity must be an integer in ")
        for capacity in (0, True, 4.0, 10**300)
    ),
    ("storage.json", {"capacity": 10**15}, "cannot be read: blocks must be those of its schema and capacity, got "),
    ("storage.json", {"schema": None}, "cannot be read: schema is missing$"),
    ("storage.json", {"schema": []}, "cannot be read: schema "),
    ("storage.json", {"schema": 3}, "cannot be read: schema must be "),
    ("storage.json", {"schema": DEEP}, "must have at most .* lists and dicts"),
    ("storage.json", {"schema": [["observation", "|O", []]]}, "cannot be read: schema "),
    ("storage.json", {"schema": [["observation" + "/a" * 5000, "|u1", []]]}, "cannot be read: "),
    ("storage.json", {"blocks": None}, "cannot be read: blocks is missing$"),
    ("storage.json", {"blocks": []}, "cannot be read: blocks must be those of its schema and capacity, got "),
    ("clean.json", {"id": None}, "cannot be read: id is missing$"),
    ("clean.json", {"id": "0" * 32}, "cannot be read: id must be '[0-9a-f]{32}', got '0000000"),
    ("clean.json", {"generation": None}, "cannot be read: generation is missing$"),
    ("clean.json", {"generation": -1}, "cannot be read: generation must be an integer in "),
    ("clean.json", {"generation": 1.0}, "cannot be read: generation must be an integer in "),
]


def test_forged_files_are_refused(path: pathlib.Path, subtests: pytest.Subtests) -> None:
    made(path)
    for name, members, rule in FORGED:
        content = (path / name).read_bytes()
        with subtests.test(name=name, rule=rule):
            forge(path, name, **members)
            refused(path, rule)
        (path / name).write_bytes(content)
    members = json.loads((path / "storage.json").read_bytes())
    del members["crc32"]
    (path / "storage.json").write_bytes(manifest.sealed(members | {"schema": None}))
    refused(path, "/storage.json cannot be read: schema must be one, got None$")


def test_invalid_json_with_valid_checksum_is_refused(path: pathlib.Path) -> None:
    made(path)
    for name in ("clean.json", "storage.json"):
        content = (path / name).read_bytes()
        for inside in (b'"x": ' + b"[" * 100_000, b'"x": 1' + b"0" * 5000, b'"x": \xff', b"", b'"x": NaN.'):
            begin = b'{\n "format": "relive memory map",\n "version": 2,\n' + inside
            (path / name).write_bytes(sealed_bytes(begin))
            refused(path, f"/{name} (is not JSON: |must have at most )")
        (path / name).write_bytes(content)


def sealed_bytes(content: bytes) -> bytes:
    seal = zlib.crc32(content)
    return content + b',\n "crc32": %d\n}\n' % seal


def test_a_claim_of_many_rows_takes_no_memory(path: pathlib.Path) -> None:
    relive.MemmapStorage(path, PLAIN, 4).close()
    claim = memmap._manifest("0" * 32, PLAIN, 10**15)
    (path / "storage.json").write_bytes(manifest.sealed(claim))
    (path / "clean.json").write_bytes(memmap._sealed_state("0" * 32, 0))
    refused(path, " cannot be mapped: capacity must fit in memory, got 10{15} steps of 24 bytes each, .* in all$")
    claim = memmap._manifest("0" * 32, PLAIN, 10**12)
    (path / "storage.json").write_bytes(manifest.sealed(claim))
    refused(path, "/rows-0.npy must be of 8000000000128 bytes, got 160$")


@pytest.mark.parametrize("shape", [(1,) * 70, (0, 2**70), (0, 2**40, 2**40)])
def test_rows_that_numpy_cannot_hold_are_refused(path: pathlib.Path, shape: tuple[int, ...]) -> None:
    schema = relive.Schema(relive.Field(shape, "u1"), relive.Field((), np.int64))
    with pytest.raises(errors.ArgumentError, match=r"^schema must be one that files can hold: "):
        relive.MemmapStorage(path, schema, 4)
    assert not path.exists()
    size = 0 if 0 in shape else 1
    relive.MemmapStorage(path, relive.Schema(relive.Field(size, "u1"), relive.Field((), np.int64)), 4).close()
    identity = json.loads((path / "storage.json").read_bytes())["id"]
    (path / "storage.json").write_bytes(manifest.sealed(memmap._manifest(identity, schema, 4)))
    refused(path, "rows-0.npy must (be of|have the header)|storage.json cannot be read: it must have at most 32 axes")


def test_a_map_that_cannot_be_read_is_an_error(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir()

    monkeypatch.setattr(os, "listdir", posix_test.failing(errno.EACCES))
    with pytest.raises(errors.CheckpointError, match=f"^{path} cannot be read: Permission denied$"):
        relive.MemmapStorage(path, PLAIN, 4)


def test_a_closed_map_is_closed_in_a_fork_too(path: pathlib.Path) -> None:
    rows = relive.MemmapStorage(path, PLAIN, 4)
    rows.close()
    rows._begin_in_a_fork()
    with pytest.raises(errors.ClosedError, match=f"^{path} was closed: open it again$"):
        rows.write(0, row(1.0))


# Temporary maps.


def test_temporary_maps_hold_zeros_and_leave_nothing_behind(tmp_path: pathlib.Path) -> None:
    allocate = memmap.TemporaryMaps(tmp_path)
    array = allocate((3, 2), np.dtype(np.int16))
    assert array.tolist() == [[0, 0]] * 3
    array[1] = 7
    assert (array.tolist(), array.dtype.str) == ([[0, 0], [7, 7], [0, 0]], "<i2")
    assert allocate((0, 2), np.dtype(np.int16)).shape == (0, 2)
    assert list(tmp_path.iterdir()) == []


def test_temporary_maps_need_a_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.CheckpointError, match="nowhere cannot hold 1 bytes: No such file or directory$"):
        memmap.TemporaryMaps(tmp_path / "nowhere")


def test_a_map_that_cannot_be_written_leaves_the_journal_alone(path: pathlib.Path) -> None:
    """It is asked first: then nothing that is journaled has to be taken back."""
    with relive.Journal(path.with_name("journal")) as journal:
        rows = relive.MemmapStorage(path, PLAIN, 4)
        buffer = relive.RingReplayBuffer(4, storage=rows)
        buffer.attach(journal)
        for value in range(6):
            assert buffer.add(np.full(2, value, np.float32), value, 0.5) == value
        before = journal.num_records
        rows.close()
        with pytest.raises(errors.ClosedError, match="was closed: open it again$"):
            buffer.add(np.zeros(2, np.float32), 6, 0.5)
        assert (journal.num_records, buffer.appended, len(buffer)) == (before, 6, 4)
    with relive.MemmapStorage(path) as rows:
        assert rows.read(np.arange(4))["action"].tolist() == [4, 5, 2, 3]
