from collections.abc import Callable, Iterator
import contextlib
import errno
import io
import itertools
import os
import pathlib
import random
import shutil
import threading
import tracemalloc
from typing import Any
import zipfile

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.persistence import archive_test
from relive.persistence import checkpoint
from relive.persistence import dtypes_test
from relive.persistence import files
from relive.persistence import journal_crash_test
from relive.persistence import npy
from relive.persistence import npy_test
from relive.persistence import posix_test
from relive.persistence import state as state_lib


def whole(state: state_lib.State) -> state_lib.State:
    """Return a state with the dtype, shape and bytes of each array."""
    arrays = {}
    for name, column in state["arrays"].items():
        rows = column if isinstance(column, np.ndarray) else column.read(0, column.shape[0])
        arrays[name] = column.dtype, column.shape, rows.tobytes()
    return {**state, "arrays": arrays}


def loaded(path: Any, **options: Any) -> state_lib.State:
    with checkpoint.opened(path, **options) as state:
        return whole(state)


def numbered(number: int) -> state_lib.State:
    return {"number": number, "arrays": {"a": np.full(3, number), "b/c": np.arange(number)}}


TEXT = st.text(max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
    max_leaves=8,
)
NAMES = TEXT.filter(bool)
MEMBERS = ("format", "version", "relive", "arrays")


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2)
@hypothesis.given(
    st.dictionaries(TEXT.filter(lambda name: name not in MEMBERS), VALUES, max_size=4),
    st.dictionaries(NAMES, st.tuples(dtypes_test.DTYPES, dtypes_test.SHAPES, st.integers(0, 9)), max_size=3),
    st.booleans(),
)
def test_a_state_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, values: Any, arrays: Any, verify: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "state"
    state: state_lib.State = {**values, "arrays": {}}
    for name, (dtype, shape, seed) in arrays.items():
        state["arrays"][name] = np.zeros(shape, dtype)
        npy_test.fill(state["arrays"][name], np.random.default_rng(seed))
    checkpoint.save(state, path)
    read = loaded(path)
    assert read == whole(state)
    assert repr(read) == repr({**values, "arrays": read["arrays"]})  # Types and order, too.
    with checkpoint.opened(path) as columns:  # A checkpoint of a checkpoint, onto itself.
        checkpoint.save(columns, path)
    assert loaded(path) == read


def test_the_manifest_is_text_that_says_everything(tmp_path: pathlib.Path) -> None:
    checkpoint.save({"name": "é", "n": 2**100, "arrays": {"a": np.arange(3, dtype="<i2")}}, tmp_path / "state")
    text = f"""{{
 "format": "relive checkpoint",
 "version": 2,
 "relive": "{relive.__version__}",
 "name": "é",
 "n": 1267650600228229401496703205376,
 "arrays": {{"a": {{"file": "a.npy", "dtype": "<i2", "shape": [3]}}}}
}}
"""
    with zipfile.ZipFile(tmp_path / "state") as archive:
        assert archive.namelist() == ["manifest.json", "a.npy"]
        assert archive.read("manifest.json").decode() == text
    with np.load(tmp_path / "state") as arrays:
        assert arrays["a"].tolist() == [0, 1, 2]


def test_the_same_state_makes_the_same_bytes(tmp_path: pathlib.Path) -> None:
    for name in ("one", "two"):
        checkpoint.save(numbered(3), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_older_ones_are_kept(tmp_path: pathlib.Path) -> None:
    for number in range(5):
        checkpoint.save(numbered(number), tmp_path / "state", keep=3)
    assert sorted(os.listdir(tmp_path)) == [".state.lock", "state", "state.1", "state.2"]
    for name, number in (("state", 4), ("state.1", 3), ("state.2", 2)):
        assert loaded(tmp_path / name) == whole(numbered(number))
    checkpoint.save(numbered(5), tmp_path / "state", keep=2)
    assert sorted(os.listdir(tmp_path)) == [".state.lock", "state", "state.1"]


def test_older_ones_are_copied_where_there_are_no_links(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", posix_test.failing(errno.EPERM))
    for number in range(4):
        checkpoint.save(numbered(number), tmp_path / "state", keep=3)
    assert numbers_of(tmp_path) == {"state": 3, "state.1": 2, "state.2": 1}


def test_what_is_open_stays_readable_while_it_is_replaced(tmp_path: pathlib.Path) -> None:
    checkpoint.save(numbered(1), tmp_path / "state")
    with checkpoint.opened(tmp_path / "state") as state:
        checkpoint.save(numbered(2), tmp_path / "state")
        assert not (tmp_path / "state.1").exists()
        assert whole(state) == whole(numbered(1))
    assert loaded(tmp_path / "state") == whole(numbered(2))
    with pytest.raises(errors.ClosedError, match="was closed: read it before"):
        state["arrays"]["a"].read(0, 1)


def test_a_reader_beside_a_writer_sees_whole_states_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state"
    checkpoint.save(numbered(0), path)
    stop = threading.Event()

    def write() -> None:
        number = 1
        while not stop.is_set():
            checkpoint.save(numbered(number), path)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = []
        for _ in range(20):
            state = loaded(path)
            assert state == whole(numbered(state["number"]))
            seen.append(state["number"])
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)


def test_a_link_to_a_checkpoint_is_read_and_not_replaced(tmp_path: pathlib.Path) -> None:
    checkpoint.save(numbered(1), tmp_path / "state")
    (tmp_path / "link").symlink_to("state")
    assert loaded(tmp_path / "link") == whole(numbered(1))
    with pytest.raises(errors.CheckpointError, match="link is a link: name the file itself$"):
        checkpoint.save(numbered(2), tmp_path / "link")


def test_a_save_keeps_the_mode_of_the_file(tmp_path: pathlib.Path) -> None:
    checkpoint.save(numbered(1), tmp_path / "state")
    (tmp_path / "state").chmod(0o600)
    checkpoint.save(numbered(2), tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


# Progress and memory.


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lib, "CHUNK", 64)


@pytest.mark.usefixtures("small_chunks")
def test_progress_is_told_in_bytes(tmp_path: pathlib.Path) -> None:
    calls: list[tuple[int, int]] = []
    state = {"arrays": {"a": np.zeros(20), "b": np.zeros((0, 3))}}
    checkpoint.save(state, tmp_path / "state", progress=lambda *each: calls.append(each))
    with zipfile.ZipFile(tmp_path / "state") as archive:
        size = len(archive.read("manifest.json"))
    assert calls == [(size + n, size + 416) for n in (0, 128, 192, 256, 288, 416)]
    calls.clear()
    with checkpoint.opened(tmp_path / "state", progress=lambda *each: calls.append(each)) as read:
        assert not calls
        for _ in range(2):
            state_lib.in_memory(read["arrays"]["a"])
    assert [call for call in calls if call != calls[-1]] + calls[-1:] == [(64, 160), (128, 160), (160, 160)]
    calls.clear()
    assert checkpoint.faults(str(tmp_path / "state"), lambda *each: calls.append(each)) == []
    assert calls == [(64, 160), (128, 160), (160, 160)]


def test_progress_that_raises_ends_a_save_that_never_was(tmp_path: pathlib.Path) -> None:
    for kind in [KeyboardInterrupt, OSError, ZeroDivisionError]:
        checkpoint.save(numbered(1), tmp_path / "state")

        def stop(done_bytes: int, total_bytes: int, kind: type[BaseException] = kind) -> None:
            raise kind

        with pytest.raises((kind, errors.CheckpointError)):
            checkpoint.save(numbered(2), tmp_path / "state", progress=stop)
        assert sorted(os.listdir(tmp_path)) == [".state.lock", "state"]
        assert loaded(tmp_path / "state") == whole(numbered(1))


def test_twenty_mebibytes_pass_through_one_chunk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lib, "CHUNK", 1 << 20)
    rows = 20 << 10

    def read(start: int, stop: int) -> Any:
        return np.broadcast_to(np.arange(start, stop, dtype=np.float32)[:, None], (stop - start, 256))

    column = state_lib.LazyArray((rows, 256), np.dtype("f4"), read)
    tracemalloc.start()
    try:
        checkpoint.save({"arrays": {"a": column}}, tmp_path / "state")
        assert tracemalloc.get_traced_memory()[1] < 1.3 * state_lib.CHUNK
        tracemalloc.reset_peak()
        with checkpoint.opened(tmp_path / "state") as state:
            assert state["arrays"]["a"].read(rows - 1, rows)[0, 0] == rows - 1
        assert tracemalloc.get_traced_memory()[1] < 2.3 * state_lib.CHUNK
    finally:
        tracemalloc.stop()


# Arguments.
TOO_LONG: list[Any] = ["a" * 2**21, [[]] * 10**5]


RULE = (
    "must hold None, bools, finite numbers, strings, lists, and dicts with strings as names, that JSON can hold, got "
)
NO_JSON: list[Any] = [
    np.int64(1), (1, 2), b"a", [1, {"b": {3}}], float("nan"), [float("-inf")], {1: 2}, {"\ud800": 2}, "\ud800",
    10**4300,
]  # fmt: skip
WRONG: list[tuple[Any, str]] = [
    *(({"a": value}, f"state['a'] {RULE}") for value in NO_JSON),
    *(({"a": value}, "state must be at most 2097152 bytes of JSON") for value in TOO_LONG),
    *(({name: 1}, f"state must not have '{name}': every manifest") for name in ("format", "version", "relive")),
    ({"arrays": {"a": np.zeros((1,) * 33)}}, "array 'a' cannot be saved: it must have at most 32 axes, got 33"),
    ({"arrays": {"a": np.array([{}])}}, "array 'a' must hold no Python objects, got "),
]


def test_what_no_checkpoint_holds_is_named(tmp_path: pathlib.Path, subtests: pytest.Subtests) -> None:
    for state, message in WRONG:
        with subtests.test(message=message):
            with pytest.raises(errors.ArgumentError) as caught:
                checkpoint.save({"arrays": {}, **state}, tmp_path / "state")
            start, _, rest = message.partition("... ")
            assert str(caught.value).startswith(start)
            assert rest in str(caught.value)
            assert not os.listdir(tmp_path)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


def test_values_may_lie_deep_but_not_too_deep(tmp_path: pathlib.Path) -> None:
    state = {"a": nested(63), "arrays": {"a": np.zeros((1,) * 32)}}
    checkpoint.save(state, tmp_path / "state")
    assert loaded(tmp_path / "state") == whole(state)
    with pytest.raises(errors.ArgumentError, match="and at most 100000 lists and dicts, 64 deep, got "):
        checkpoint.save({"a": nested(64), "arrays": {}}, tmp_path / "state")


def test_options_are_checked(tmp_path: pathlib.Path) -> None:
    keep: Any
    for keep in (0, 1.5):
        with pytest.raises(errors.ArgumentError, match="^keep must be "):
            checkpoint.save({"arrays": {}}, tmp_path / "state", keep=keep)
    for call in (lambda path, **given: checkpoint.save({"arrays": {}}, path, **given), loaded):
        with pytest.raises(errors.ArgumentError, match="^progress must be "):
            call(tmp_path / "state", progress=3)
        for path in ("", "/", "a\0b", "//", 3):
            message = "^path must be (the path of a file|a path), "
            with pytest.raises(errors.ArgumentError, match=message):
                call(path)
    assert not os.listdir(tmp_path)


# What the system refuses.


@pytest.mark.parametrize(("call", "code"), [("write", errno.ENOSPC), ("fsync", errno.EIO), ("replace", errno.EACCES)])
def test_a_system_that_refuses_leaves_the_old_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    path = tmp_path / "state"
    checkpoint.save(numbered(1), path)
    before = path.read_bytes()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(errors.CheckpointError, match=f"^{path} cannot be saved: {os.strerror(code)}$"):
            checkpoint.save(numbered(2), path)
    assert sorted(os.listdir(tmp_path)) == [".state.lock", "state"]
    assert path.read_bytes() == before
    checkpoint.save(numbered(2), path)
    assert loaded(path) == whole(numbered(2))


def test_all_is_on_the_disk_before_it_gets_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        calls.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def replaced(old: str, new: str) -> None:
        calls.append(f"{os.path.basename(old)} -> {os.path.basename(new)}")
        replace(old, new)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("the system does not say what a descriptor is of")
    for number in range(2):
        checkpoint.save(numbered(number), tmp_path / "state", keep=3)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    checkpoint.save(numbered(2), tmp_path / "state", keep=3)
    moves = [".state.1.new -> state.2", ".state.1.new -> state.1", ".state.new -> state"]
    assert calls == [".state.new", *(each for move in moves for each in (move, tmp_path.name))]


# Crashes.


def numbers_of(path: pathlib.Path) -> dict[str, int]:
    """Return the numbers of the states there, all of them whole."""
    names = [each.name for each in path.iterdir() if not each.name.startswith(".")]
    return {name: loaded(path / name)["number"] for name in names if loaded(path / name)}


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("keep", [1, pytest.param(2, marks=pytest.mark.full), 3])
def test_a_crash_at_any_call_leaves_the_old_one_or_the_new_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, keep: int, has_links: bool
) -> None:
    """Killed before or after each call of the file system; then the power may fail, too."""
    if not has_links:
        monkeypatch.setattr(os, "link", posix_test.failing(errno.EPERM))
    (tmp_path / "before").mkdir()
    for number in range(3 - keep, 4):  # One more than are kept.
        checkpoint.save(numbered(number), tmp_path / "before" / "state", keep=keep)
    rng, is_saved, step = random.Random(keep), False, 0
    for step in itertools.count():
        parent = shutil.copytree(tmp_path / "before", tmp_path / str(step))
        path, disk = parent / "state", journal_crash_test.Disk(parent)
        disk.restart()
        with disk.crashing(step // 2, is_late=step % 2 == 1), contextlib.suppress(journal_crash_test.Crash):
            checkpoint.save(numbered(4), path, keep=keep)
            is_saved = disk.left >= 0
        for has_power in (True, False):
            if not has_power:
                disk.lose_power(rng)
            found = numbers_of(parent)
            assert found["state"] == 4 if is_saved else found["state"] in (3, 4)
            assert {found["state"] - kept for kept in range(keep - 1)} <= set(found.values())
        checkpoint.save(numbered(5), path, keep=keep)
        found = numbers_of(parent)
        assert found["state"] == 5
        assert sorted(found.values(), reverse=True) == [found[name] for name in sorted(found)]
        assert set(os.listdir(parent)) == {".state.lock", *found}
        assert len(found) <= keep
        if is_saved:
            break
    assert step > 30


def test_a_crash_before_the_last_rename_is_not_kept_twice(tmp_path: pathlib.Path) -> None:
    for number in range(3):
        checkpoint.save(numbered(number), tmp_path / "state", keep=3)
    (tmp_path / "state.1").unlink()
    os.link(tmp_path / "state", tmp_path / "state.1")
    checkpoint.save(numbered(3), tmp_path / "state", keep=3)
    assert numbers_of(tmp_path) == {"state": 3, "state.1": 2, "state.2": 0}
    (tmp_path / "state.2").unlink()
    os.link(tmp_path / "state.1", tmp_path / "state.2")
    checkpoint.save(numbered(4), tmp_path / "state", keep=4)
    assert numbers_of(tmp_path) == {"state": 4, "state.1": 3, "state.2": 2}


def test_what_cannot_be_deleted_is_left(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        checkpoint.save(numbered(number), tmp_path / "state", keep=3)
    system = os.unlink

    def unlink(path: str) -> None:
        if path.endswith(".2"):
            raise OSError(errno.EACCES, "Permission denied")
        system(path)

    monkeypatch.setattr(os, "unlink", unlink)
    checkpoint.save(numbered(3), tmp_path / "state")
    assert numbers_of(tmp_path) == {"state": 3, "state.2": 0}


# Files that relive did not write.


@pytest.mark.parametrize("name", ["state", "state.1"])
@pytest.mark.parametrize("kind", [*posix_test.PUT, "archive", "own"])
def test_what_is_not_ours_is_never_replaced(tmp_path: pathlib.Path, name: str, kind: str) -> None:
    place = tmp_path / name
    if name == "state.1":
        checkpoint.save(numbered(1), tmp_path / "state")
    if kind == "own":
        checkpoint.save(numbered(7), place)
    elif kind == "archive":
        np.savez(place, a=np.zeros(3))
        os.rename(f"{place}.npz", place)
    else:
        posix_test.put(place, kind)
    before = sorted(os.listdir(tmp_path))
    if kind == "own" and name == "state":
        checkpoint.save(numbered(2), tmp_path / "state")
        return
    message = rf"/{name} (is|was) .*: name (another path|the file itself)$"
    with pytest.raises(errors.CheckpointError, match=message):
        checkpoint.save(numbered(2), tmp_path / "state", progress=lambda *_: pytest.fail("it is refused at once"))
    assert sorted({*os.listdir(tmp_path)} - {".state.lock"}) == sorted({*before} - {".state.lock"})
    if name == "state.1":
        assert loaded(tmp_path / "state") == whole(numbered(1))


@pytest.mark.parametrize("name", ["state", "state.1"])
def test_an_empty_file_is_replaced(tmp_path: pathlib.Path, name: str) -> None:
    if name == "state.1":
        checkpoint.save(numbered(1), tmp_path / "state")
    (tmp_path / name).touch()
    checkpoint.save(numbered(2), tmp_path / "state", keep=2)
    assert loaded(tmp_path / "state") == whole(numbered(2))
    if name == "state.1":
        assert loaded(tmp_path / "state.1") == whole(numbered(1))


def test_a_number_of_ones_own_is_not_deleted(tmp_path: pathlib.Path) -> None:
    for number in range(4):
        checkpoint.save(numbered(number), tmp_path / "state", keep=4)
    (tmp_path / "state.2").write_text("mine")
    with pytest.raises(errors.CheckpointError, match=r"state\.2 is not a checkpoint: name another path$"):
        checkpoint.save(numbered(4), tmp_path / "state")
    (tmp_path / "state.2").unlink()
    checkpoint.save(numbered(4), tmp_path / "state")
    assert numbers_of(tmp_path) == {"state": 4, "state.3": 0}


# Archives of other forms.


def rewritten(path: pathlib.Path, change: Callable[[dict[str, Any]], object], **options: Any) -> None:
    """Write the members of an archive anew with zipfile, after a change."""
    members: dict[str, Any] = dict(archive_test.contents_of(path))
    change(members)
    with zipfile.ZipFile(path, "w", **options) as other:
        for name, content in members.items():
            other.writestr(name, content)


OTHERS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda members: members.pop("a.npy"), r"state/a\.npy is missing"),
    (lambda members: members.update({"x.txt": b""}), r"state/x\.txt is not in manifest\.json"),
    (lambda members: members.update({"a.npy": members["b.c.npy"]}), r"state/a\.npy must have 152 bytes, got 136"),
    (
        lambda members: members.update({"a.npy": members["a.npy"].replace(b"<i8", b"<f8")}),
        r"state/a\.npy must have the header of dtype int64 and shape \(3,\)",
    ),
    (
        lambda members: members.update({"manifest.json": b"{}"}),
        r"state/manifest\.json is not the manifest of a relive.*",
    ),
    (
        lambda members: members.update({"manifest.json": members.pop("manifest.json")}),
        r"state is a zip file, such as \.npz and not of relive: docs/guides/my_file\.md tells .*",
    ),
    (
        lambda members: members.update({"manifest.json": members["manifest.json"].replace(b'n": 2', b'n": 3')}),
        "state is of format version 3, and this relive reads 2: update relive",
    ),
    (
        lambda members: members.update({"manifest.json": members["manifest.json"] + b" " * 2**21}),
        r"state/manifest\.json must have at most 2097152 bytes, got 2097\d+",
    ),
    (
        lambda members: members.update({"manifest.json": members["manifest.json"].replace(b'"number"', b'"relive"')}),
        r"state/manifest\.json is not JSON: a name occurs twice",
    ),
]


def test_an_archive_with_other_members_is_refused(tmp_path: pathlib.Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "state"
    for change, message in OTHERS:
        with subtests.test(message=message):
            path.unlink(missing_ok=True)
            checkpoint.save(numbered(1), path)
            rewritten(path, change)
            with pytest.raises(errors.CheckpointError, match=f"^{tmp_path}/{message}$"):
                loaded(path)
    path.unlink()
    checkpoint.save(numbered(1), path)
    rewritten(path, lambda members: None)
    assert loaded(path) == whole(numbered(1))
    rewritten(path, lambda members: None, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(errors.CheckpointError, match=r"manifest\.json is compressed, by method 8: it must be stored$"):
        loaded(path)


def test_what_is_no_checkpoint_says_what_it_is(tmp_path: pathlib.Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "x"
    read_on = r" and not of relive: docs/guides/my_file\.md tells how to read files of other libraries$"
    for head, what in [
        (b"\x89HDF\r\n", "an HDF5 file" + read_on), (b"\x93NUMPY", r"\.npy" + read_on), (b"", "not a checkpoint$"),
        (b"letter", "not a checkpoint$"), (b"\x80\4", "a pickle" + read_on), (b"PK\3\4", "a zip file, such as"),
    ]:  # fmt: skip
        with subtests.test(head=head):
            path.write_bytes(head)
            with pytest.raises(errors.CheckpointError, match=f"^{path} is {what}"):
                loaded(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(errors.CheckpointError, match="x is a directory, and a checkpoint is a file$"):
        loaded(path)
    (path / "manifest.json").write_text('{\n "format": "relive checkpoint",\n "version": 1,\n')
    message = (
        "x is a directory, as checkpoints of format version 1 were, and this relive reads 2: read it with an older"
    )
    with pytest.raises(errors.CheckpointError, match=message):
        loaded(path)


def test_two_names_of_one_file_are_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "file_name", lambda name: "a.npy")
    with pytest.raises(errors.ArgumentError, match="^arrays must have names whose checksums differ: rename one$"):
        checkpoint.save(numbered(1), tmp_path / "state")


@pytest.mark.parametrize("passing", [0, 1, 8])
def test_a_file_that_the_system_cannot_read_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, passing: int
) -> None:
    left = passing

    class Broken(io.FileIO):
        def readinto(self, buffer: Any, /) -> int | None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.EIO, "broken")
            return super().readinto(buffer)

        def read(self, size: int | None = -1, /) -> bytes:
            content = bytearray(4096 if size is None else size)
            return bytes(content[: self.readinto(content)])

    @contextlib.contextmanager
    def opened(path: str) -> Iterator[io.FileIO]:
        with Broken(path) as file:
            yield file

    checkpoint.save(numbered(1), tmp_path / "state")
    monkeypatch.setattr(files, "opened", opened)
    with pytest.raises(errors.CheckpointError, match="state cannot be read: broken$"):
        loaded(tmp_path / "state")
