import contextlib
import errno
import os
import pathlib
import stat
import sys
import types
from typing import Any

import pytest

from relive import errors
from relive.persistence import files
from relive.persistence import posix_test


def test_a_second_holder_is_told_so(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state"
    rule = rf"^{path} is in use by this process \(pid {os.getpid()}\): wait for it, or name another path$"
    with pytest.raises(ZeroDivisionError), files.locked(path):
        for _ in range(2):
            with pytest.raises(errors.CheckpointError, match=rule), files.locked(path):
                pass
            with files.locked(tmp_path / "other"):
                pass
        raise ZeroDivisionError
    with files.locked(path):
        (tmp_path / ".state.lock").write_text("")
        with pytest.raises(errors.CheckpointError, match="is in use by another process: "), files.locked(path):
            pass
    assert (tmp_path / ".state.lock").read_text() == ""


@pytest.mark.parametrize("kind", posix_test.PUT)
def test_what_is_no_lock_file_is_left_alone(tmp_path: pathlib.Path, kind: str) -> None:
    place, victim = tmp_path / ".state.lock", tmp_path / "victim"
    posix_test.put(place, kind)
    with pytest.raises(errors.CheckpointError, match=r"\.state\.lock (cannot be locked: |is not a lock file: move it)"):
        files.locked(tmp_path / "state").__enter__()
    assert {each.read_text() for each in (place, victim) if each.is_file()} <= {posix_test.MINE}


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setitem(
        sys.modules, "fcntl", types.SimpleNamespace(flock=posix_test.failing(code), LOCK_EX=2, LOCK_NB=4)
    )
    with pytest.raises(errors.CheckpointError, match=f"^{tmp_path}/state cannot be locked: {os.strerror(code)}$"):
        files.locked(tmp_path / "state").__enter__()


def test_without_flock_a_byte_behind_the_text_is_locked(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    is_held = False

    def locking(descriptor: int, mode: int, length: int) -> None:
        calls.append((os.lseek(descriptor, 0, os.SEEK_CUR), mode, length))
        if is_held:
            raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    with files.locked(tmp_path / "state"):
        assert (tmp_path / ".state.lock").read_text() == f"{os.getpid()}\n"
        is_held = True
        with pytest.raises(errors.CheckpointError, match="is in use by this process"), files.locked(tmp_path / "state"):
            pass
    assert calls == [(1 << 30, 2, 1)] * 2


def test_a_lock_holds_where_nothing_can_be_noted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", posix_test.failing(errno.ENOSPC))
    rule = "is in use by another process: "
    with files.locked(tmp_path / "state"), pytest.raises(errors.CheckpointError, match=rule):
        files.locked(tmp_path / "state").__enter__()


class Odd:
    """A path that is none."""

    def __fspath__(self) -> Any:
        return 5


def test_a_path_that_no_file_can_have_is_refused() -> None:
    for path in ["a\ud800b", b"a\0b", "", 5, None, Odd(), ["a"]]:
        rule = "the path of a directory in another" if isinstance(path, str | bytes) else "a path"
        with pytest.raises(errors.ArgumentError, match=f"^path must be {rule}, got ") as refused:
            files.absolute("path", path)
        assert isinstance(refused.value, errors.ArgumentTypeError) != isinstance(path, str | bytes)
        assert files.absolute("path", b"a\xff").endswith("a\udcff")
        with pytest.raises(errors.ArgumentError, match="^path must be the path of a file, got ''$"):
            files.absolute("path", "", "file")


def test_a_path_on_one_line_stays_as_it_is() -> None:
    assert files.named("/a b/é") == "/a b/é"
    assert files.named("/a\nb\udcff") == r"'/a\nb\udcff'"


def test_a_reason_is_the_systems_or_what_there_is() -> None:
    assert files.reason(OSError(errno.ENOSPC, "full")) == "full"
    assert files.reason(OSError("odd")) == "odd"


def test_a_path_becomes_absolute() -> None:
    for path in ["a", b"a", pathlib.Path("a"), "a/", "./b/../a"]:
        assert files.absolute("path", path) == os.path.join(os.getcwd(), "a")


# Replacing a file.


def test_a_file_is_replaced_once_it_is_on_the_disk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "file"
    synced: list[Any] = []
    place.write_text("old")
    place.chmod(0o640)
    monkeypatch.setattr(files, "fsync_file", lambda descriptor: synced.append(os.fstat(descriptor)))
    monkeypatch.setattr(files, "fsync_directory", lambda path: synced.append((path, place.read_text())))
    with files.replacing(str(place)) as file, files.replacing(str(place)) as other:
        file.write(b"new")
        other.write(b"other")
        assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o640}
        assert place.read_text() == "old"
    assert [synced[0].st_size, *synced[1:2]] == [5, (str(tmp_path), "other")]
    assert [synced[2].st_size, *synced[3:]] == [3, (str(tmp_path), "new")]
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "file"
    with pytest.raises(KeyboardInterrupt), files.replacing(str(place)):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    place.mkdir()
    with pytest.raises(OSError, match="irectory"), files.replacing(str(place)) as file:
        file.write(b"new")
    assert os.listdir(tmp_path) == ["file"]
    (tmp_path / "file").rmdir()
    for kind in ("ready", "new"):
        ready = posix_test.failing(errno.EIO) if kind == "ready" else lambda: None
        (tmp_path / "other").write_text("other")
        new = str(tmp_path / ("other" if kind == "new" else "temporary"))
        with pytest.raises(OSError, match="error|exists"), files.replacing(str(place), new, ready) as file:
            file.write(b"new")
        assert os.listdir(tmp_path) == ["other"]


# Syncing.


def test_files_are_synced_by_the_strongest_call_there_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(("fsync", descriptor)))
    files.fsync_file(7)
    strong = types.SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda *values: calls.append(values))
    monkeypatch.setitem(sys.modules, "fcntl", strong)
    files.fsync_file(7)

    strong.fcntl = posix_test.failing(errno.ENOTSUP)
    files.fsync_file(8)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    files.fsync_file(9)
    assert calls == [("fsync", 7), (7, 51), ("fsync", 8), ("fsync", 9)]


@posix_test.DIRECTORIES
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_directories_are_synced_where_they_can_be(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    files.fsync_directory(str(tmp_path))

    monkeypatch.setattr(os, "fsync", posix_test.failing(code))
    with pytest.raises(OSError, match=os.strerror(code)) if code == errno.EIO else contextlib.nullcontext():
        files.fsync_directory(str(tmp_path))
    monkeypatch.setattr(files, "_HAS_DIRECTORIES", False)
    files.fsync_directory(str(tmp_path / "missing"))


# Directories.


@pytest.fixture(params=[True, False])
def has_directories(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(files, "_HAS_DIRECTORIES", request.param)
    return bool(request.param)


@pytest.mark.usefixtures("has_directories")
def test_files_are_made_read_and_deleted_in_a_directory(tmp_path: pathlib.Path) -> None:
    with files.Directory(str(tmp_path)) as directory:
        with open(directory.create("a"), "wb") as file:
            file.write(b"text")
        with pytest.raises(FileExistsError):
            directory.create("a")
        with open(directory.open("a"), "rb") as file:
            assert file.read() == b"text"
        assert directory.names() == ["a"]
        assert directory.has("a")
        directory.unlink("a")
        assert directory.names() == []


@posix_test.DIRECTORIES
def test_a_directory_stays_the_same_one_when_its_name_goes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a").write_text("1")
    with files.Directory(str(tmp_path / "one")) as directory:
        os.rename(tmp_path / "one", tmp_path / "two")
        (tmp_path / "one").mkdir()
        assert directory.names() == ["a"]
        with open(directory.open("a")) as file:
            assert file.read() == "1"


@pytest.mark.usefixtures("has_directories")
def test_what_is_no_directory_is_not_opened(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        files.Directory(str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError):
        files.Directory(str(tmp_path / "missing"))


@pytest.mark.usefixtures("has_directories")
def test_a_link_to_a_directory_is_opened_if_asked_for(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with files.Directory(str(tmp_path / "link"), follow=True) as directory:
        assert directory.names() == ["link"]
    with pytest.raises(OSError, match="link"):
        files.Directory(str(tmp_path / "link"))


@pytest.mark.parametrize("kind", ["missing", "long", *posix_test.PUT[1:]])
def test_what_is_no_regular_file_is_not_read(tmp_path: pathlib.Path, kind: str) -> None:
    rules = {"missing": "is missing", "long": "cannot be opened: File name too long"}
    rules |= dict.fromkeys(("link", "dangling", "device"), "is a link")
    name = "a" * 300 if kind == "long" else "a"
    if kind not in ("missing", "long"):
        posix_test.put(tmp_path / "a", kind)
    with files.Directory(str(tmp_path)) as directory:
        rule = rules.get(kind, "is not a regular file")
        with pytest.raises(errors.CheckpointError, match=f"^{tmp_path}/{name} {rule}$"):
            directory.open(name)
        if kind not in ("missing", "long"):
            assert directory.has(name)


@pytest.mark.parametrize("target", ["file", "nowhere"])
def test_a_link_is_refused_where_the_system_follows_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(files, "STRICT", files.STRICT & ~getattr(os, "O_NOFOLLOW", 0))
    monkeypatch.setattr(files, "_HAS_DIRECTORIES", False)
    monkeypatch.delattr(os, "O_NOFOLLOW", raising=False)
    (tmp_path / "file").write_text("")
    (tmp_path / "a").symlink_to(target)
    with files.Directory(str(tmp_path)) as directory:
        with pytest.raises(errors.CheckpointError, match=f"^{tmp_path}/a is a link$"):
            directory.open("a")
        os.close(directory.open("file"))


# Reading.


@pytest.mark.parametrize("kind", ["missing", "directory", "file", "link", "dangling", "device"])
def test_a_regular_file_is_opened_also_through_a_link(tmp_path: pathlib.Path, kind: str) -> None:
    place = tmp_path / "a"
    if kind != "missing":
        posix_test.put(place, kind)
    if kind in ("file", "link"):
        with files.opened(str(place)) as file:
            assert file.read().decode() == posix_test.MINE
        assert file.closed
        return
    rule = {"directory": "is not a regular file|cannot be read: Is", "device": "is not a regular file"}
    message = f"^{place} ({rule.get(kind, 'does not exist')})"
    with pytest.raises(errors.CheckpointError, match=message), files.opened(str(place)):
        pass


def test_a_file_that_the_system_refuses_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", posix_test.failing(errno.EACCES))
    with pytest.raises(errors.CheckpointError, match="a cannot be read: Permission denied$"):
        files.opened(str(tmp_path / "a")).__enter__()
