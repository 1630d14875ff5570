import contextlib
import errno
import json
import os
import pathlib
import shutil
import threading
import tracemalloc
from typing import Any
import zlib

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.persistence import checkpoint
from relive.persistence import dtypes_test
from relive.persistence import files as files_lib
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
MEMBERS = ("format", "version", "relive", "arrays", "crc32")


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
    raw = (tmp_path / "state" / "manifest.json").read_bytes()
    crc32 = zlib.crc32((tmp_path / "state" / "a.npy").read_bytes())
    text = f"""{{
 "format": "relive checkpoint",
 "version": 1,
 "relive": "{relive.__version__}",
 "name": "é",
 "n": 1267650600228229401496703205376,
 "arrays": {{
  "a": {{
   "file": "a.npy",
   "dtype": "<i2",
   "shape": [
    3
   ],
   "crc32": {crc32},
   "nbytes": 134
  }}
 }}"""
    assert raw.decode() == f'{text},\n "crc32": {zlib.crc32(text.encode())}\n}}\n'
    assert json.loads(raw)["crc32"] == zlib.crc32(raw[: raw.rindex(b',\n "crc32"')])


def test_the_same_state_makes_the_same_bytes(tmp_path: pathlib.Path) -> None:
    files = []
    for name in ("one", "two"):
        checkpoint.save(numbered(3), tmp_path / name)
        files.append({each.name: each.read_bytes() for each in (tmp_path / name).iterdir()})
    assert files[0] == files[1]
    assert sorted(files[0]) == ["a.npy", "b.c.npy", "manifest.json"]


def test_older_ones_are_kept(tmp_path: pathlib.Path) -> None:
    for number in range(5):
        checkpoint.save(numbered(number), tmp_path / "state", keep=3)
    assert sorted(os.listdir(tmp_path)) == [".state.lock", "state", "state.1", "state.2"]
    for name, number in (("state", 4), ("state.1", 3), ("state.2", 2)):
        assert loaded(tmp_path / name) == whole(numbered(number))
    checkpoint.save(numbered(5), tmp_path / "state", keep=2)
    assert sorted(os.listdir(tmp_path)) == [".state.lock", "state", "state.1"]


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
    with pytest.raises(errors.CheckpointError, match="link is a link: name the directory itself$"):
        checkpoint.save(numbered(2), tmp_path / "link")


def test_extra_files_are_ignored_and_never_deleted(tmp_path: pathlib.Path) -> None:
    checkpoint.save(numbered(1), tmp_path / "state")
    (tmp_path / "state" / "notes.txt").write_text("mine")
    assert loaded(tmp_path / "state") == whole(numbered(1))
    for number in range(2, 5):
        checkpoint.save(numbered(number), tmp_path / "state")
    assert loaded(tmp_path / "state") == whole(numbered(4))
    kept = [each for each in tmp_path.iterdir() if (each / "notes.txt").exists()]
    assert len(kept) == 1
    assert loaded(kept[0]) == whole(numbered(1))
    assert len(os.listdir(tmp_path)) <= 4


# Progress and memory.


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lib, "CHUNK", 64)


@pytest.mark.usefixtures("small_chunks")
def test_progress_is_told_in_bytes(tmp_path: pathlib.Path) -> None:
    calls: list[tuple[int, int]] = []
    checkpoint.save({"arrays": {}}, tmp_path / "state", progress=lambda *each: calls.append(each))
    assert calls == [(0, 0)]
    assert loaded(tmp_path / "state") == {"arrays": {}}
    calls.clear()
    state = {"arrays": {"a": np.zeros(20), "b": np.zeros((0, 3))}}
    checkpoint.save(state, tmp_path / "state", progress=lambda *each: calls.append(each))
    assert calls == [(n, 416) for n in (128, 192, 256, 288, 416, 416)]
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


ARRAY = np.zeros(1)
TOO_LONG: list[Any] = ["a" * 2**21, [[]] * 10**5]


WRONG: list[tuple[Any, str]] = [
    ({"a": np.float64(1)}, "state['a'] must be ... got a numpy.float64"),
    ({"a": np.int64(1)}, "state['a'] must be ... got a numpy.int64"),
    ({"a": np.str_("a")}, "state['a'] must be ... got a numpy.str_"),
    ({"a": (1, 2)}, "state['a'] must be ... got a builtins.tuple"),
    ({"a": b"a"}, "state['a'] must be ... got a builtins.bytes"),
    ({"a": [1, {"b": {3}}]}, "state['a'][1]['b'] must be ... got a builtins.set"),
    ({"a": float("nan")}, "state['a'] must be a finite number, got nan"),
    ({"a": [float("-inf")]}, "state['a'][0] must be a finite number, got -inf"),
    ({"a": {1: 2}}, "state['a'] must be a dict with strings as names, got 1"),
    ({"a": {"\ud800": 2}}, "state['a'] must be a dict with strings as names, got "),
    ({"a": "\ud800"}, "state['a'] must be a string without lone surrogates, got "),
    ({"a": 2**1024}, "state['a'] must be less than 2**1024, got an integer of 1025 bits"),
    ({"a": -(2**1024)}, "state['a'] must be less than 2**1024"),
    *(({"a": value}, "state must be at most 2097152 bytes and 100000 lists") for value in TOO_LONG),
    *(
        ({name: 1}, f"state must not have '{name}': every manifest")
        for name in ("format", "version", "relive", "crc32")
    ),
    ({"arrays": {"a": np.zeros((1,) * 33)}}, "array 'a' must have at most 32 axes, got 33"),
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
            assert os.listdir(tmp_path) in ([], [".state.lock"])


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


def test_values_may_lie_deep_but_not_too_deep(tmp_path: pathlib.Path) -> None:
    state = {"a": nested(63), "arrays": {"a": np.zeros((1,) * 32)}}
    checkpoint.save(state, tmp_path / "state")
    assert loaded(tmp_path / "state") == whole(state)
    with pytest.raises(errors.ArgumentError, match="must be at most 64 lists and dicts deep$"):
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
            message = "^path must be (the path of a directory in another|a path), "
            with pytest.raises(errors.ArgumentError, match=message):
                call(path)
    assert not os.listdir(tmp_path)


# What the system refuses.


@pytest.mark.parametrize(
    ("call", "code"), [("write", errno.ENOSPC), ("fsync", errno.EIO), ("mkdir", errno.EROFS), ("rename", errno.EACCES)]
)
def test_a_system_that_refuses_leaves_the_old_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    path = tmp_path / "state"
    checkpoint.save(numbered(1), path)
    before = {each.name: each.read_bytes() for each in path.iterdir()}

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(errors.CheckpointError, match=f"^{path} cannot be saved: {os.strerror(code)}$"):
            checkpoint.save(numbered(2), path)
    assert sorted(os.listdir(tmp_path)) == [".state.lock", "state"]
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before
    checkpoint.save(numbered(2), path)
    assert loaded(path) == whole(numbered(2))


def test_a_file_that_cannot_be_synced_leaves_the_old_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is synced beside the writing of others."""
    path, fsync, calls = tmp_path / "state", os.fsync, []
    checkpoint.save(numbered(1), path)

    def refuse_once(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_once)
    with pytest.raises(errors.CheckpointError, match=f"^{path} cannot be saved: {os.strerror(errno.EIO)}$"):
        checkpoint.save(numbered(2), path)
    assert loaded(path) == whole(numbered(1))


def test_all_is_on_the_disk_before_it_gets_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        calls.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(old: str, new: str) -> None:
        calls.append("rename")
        rename(old, new)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("the system does not say what a descriptor is of")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    checkpoint.save(numbered(1), tmp_path / "state")
    assert calls == ["a.npy", "b.c.npy", "manifest.json", ".state.new", "rename", tmp_path.name]


# Crashes.


def names_of(tmp_path: pathlib.Path) -> set[int]:
    """Return the numbers of the states that are kept, all of them whole."""
    return {loaded(each)["number"] for each in tmp_path.iterdir() if not each.name.startswith(".")}


class Crash(BaseException):
    pass


@pytest.mark.parametrize("keep", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_a_crash_at_any_step_leaves_the_old_one_or_the_new_one(tmp_path: pathlib.Path, keep: int) -> None:
    steps = ("mkdir", "rmdir", "rename", "unlink", "fsync", "open", "write", "ftruncate")
    (tmp_path / "before").mkdir()
    for number in range(3 - keep, 4):  # One more than are kept.
        checkpoint.save(numbered(number), tmp_path / "before" / "state", keep=keep)
    for step in range(200):
        parent = shutil.copytree(tmp_path / "before", tmp_path / str(step))
        path, left, is_saved = parent / "state", step, False
        with pytest.MonkeyPatch.context() as patch:
            for call in steps:
                system = getattr(os, call)

                def crash(*values: Any, system: Any = system, **options: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:  # Nothing happens after this: the process is killed.
                        raise Crash
                    return system(*values, **options)

                patch.setattr(os, call, crash)
            with contextlib.suppress(Crash):
                checkpoint.save(numbered(4), path, keep=keep)
                is_saved = True
        state = loaded(path)
        assert state["number"] in (3, 4)
        assert state == whole(numbered(state["number"]))
        assert {state["number"] - kept for kept in range(keep - 1)} <= names_of(parent)
        checkpoint.save(numbered(5), path, keep=keep)
        assert loaded(path) == whole(numbered(5))
        kept = {f"state.{number}" for number in range(1, keep)}
        assert set(os.listdir(parent)) <= {".state.lock", "state", *kept}
        if is_saved:
            break
    assert 20 < step < 199  # pyright: ignore[reportPossiblyUnboundVariable]


# Directories that relive did not write.


@pytest.mark.parametrize("name", ["state", "state.1"])
@pytest.mark.parametrize("kind", ["file", "link", "directory", "foreign manifest", "own"])
def test_what_is_not_ours_is_never_moved(tmp_path: pathlib.Path, name: str, kind: str) -> None:
    place = tmp_path / name
    if name == "state.1":
        checkpoint.save(numbered(1), tmp_path / "state")
    if kind == "own":
        checkpoint.save(numbered(7), place)
    else:
        posix_test.put(place, "directory" if kind == "foreign manifest" else kind)
    if kind in ("directory", "foreign manifest"):
        (place / ("notes.txt" if kind == "directory" else "manifest.json")).write_text("{}")
    before = sorted(os.listdir(tmp_path))
    if kind == "own" and name == "state":
        checkpoint.save(numbered(2), tmp_path / "state")
        return
    message = rf"/{name} (is|was) .*: name (another path|the directory itself)$"
    with pytest.raises(errors.CheckpointError, match=message):
        checkpoint.save(numbered(2), tmp_path / "state", progress=lambda *_: pytest.fail("it is refused at once"))
    assert sorted({*os.listdir(tmp_path)} - {".state.lock"}) == sorted({*before} - {".state.lock"})
    if name == "state.1":
        assert loaded(tmp_path / "state") == whole(numbered(1))


@pytest.mark.parametrize("name", ["state", "state.1"])
def test_an_empty_directory_is_replaced(tmp_path: pathlib.Path, name: str) -> None:
    if name == "state.1":
        checkpoint.save(numbered(1), tmp_path / "state")
    (tmp_path / name).mkdir()
    checkpoint.save(numbered(2), tmp_path / "state")
    assert loaded(tmp_path / "state") == whole(numbered(2))
    assert sorted(os.listdir(tmp_path)) == [".state.lock", "state"]


@pytest.mark.parametrize("kind", ["new", "old"])
@pytest.mark.parametrize(("strange", "what"), [("notes.txt", "file"), ("a.npy", "directory"), ("a.npy", "link")])
def test_what_no_crash_left_is_not_deleted(tmp_path: pathlib.Path, kind: str, strange: str, what: str) -> None:
    left = tmp_path / f".state.{kind}"
    left.mkdir()
    (left / "b.npy").write_bytes(b"torn")
    posix_test.put(left / strange, what)
    before = sorted(os.listdir(left))
    with pytest.raises(errors.CheckpointError, match="holds '.*', which relive did not write: move it away$"):
        checkpoint.save(numbered(1), tmp_path / "state")
    assert sorted(os.listdir(left)) == before


def test_where_directories_cannot_be_opened_paths_do(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_lib, "_HAS_DIRECTORIES", False)
    for number in range(3):
        checkpoint.save(numbered(number), tmp_path / "state", keep=2)
    assert loaded(tmp_path / "state") == whole(numbered(2))
    assert loaded(tmp_path / "state.1") == whole(numbered(1))
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.CheckpointError, match="file cannot be read: Not a directory$"):
        loaded(tmp_path / "file")


def test_a_directory_replaced_while_it_is_opened_is_opened_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "state", checkpoint._state
    checkpoint.save(numbered(1), path)

    def state(*_: Any) -> Any:
        monkeypatch.setattr(checkpoint, "_state", real)
        checkpoint.save(numbered(2), path)
        return {"arrays": {}}, ["a.npy is missing"]

    monkeypatch.setattr(checkpoint, "_state", state)
    assert loaded(path) == whole(numbered(2))
    monkeypatch.setattr(checkpoint, "_identity", lambda path: object())
    assert loaded(path) == whole(numbered(2))


def test_a_reader_closes_what_it_opened(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(numbered(1), tmp_path / "state")
    opened: list[npy.Reader] = []
    system = npy.Reader

    def reader(*values: Any, **options: Any) -> npy.Reader:
        opened.append(system(*values, **options))
        return opened[-1]

    monkeypatch.setattr(npy, "Reader", reader)
    (tmp_path / "state" / "b.c.npy").unlink()
    with pytest.raises(errors.CheckpointError, match=r"state/b\.c\.npy is missing$"):
        loaded(tmp_path / "state")
    assert [each._file.closed for each in opened] == [True]
    assert files_lib.newest(str(tmp_path / "state")) == str(tmp_path / "state")


def test_a_directory_replaced_again_and_again_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(1000))
    monkeypatch.setattr(checkpoint, "_identity", lambda path: next(numbers))
    with pytest.raises(errors.CheckpointError, match="state is replaced again and again: stop its writer$"):
        loaded(tmp_path / "state")
