import errno
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import pytest

from relive import errors
from relive.persistence import files
from relive.persistence import posix_test

HOLD = """
import sys
from relive.persistence import files
with files.locked(sys.argv[1]):
    sys.stdout.write("locked\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_is_first(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        rule = rf"^{path} is in use by another process \(pid {holder.pid}\): wait for it, or name another path$"
        with pytest.raises(errors.CheckpointError, match=rule), files.locked(path):
            pass
        holder.kill()
    with files.locked(path):
        pass


def test_a_second_holder_is_told_so(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state"
    with files.locked(path):
        rule = rf"^{path} is in use by this process \(pid {os.getpid()}\): "
        with pytest.raises(errors.CheckpointError, match=rule), files.locked(path):
            pass
        with files.locked(tmp_path / "other"):
            pass
        with pytest.raises(errors.CheckpointError, match=rule), files.locked(path):
            pass
    with files.locked(path):
        (tmp_path / ".state.lock").write_text("")
        with pytest.raises(errors.CheckpointError, match="is in use by another process: "), files.locked(path):
            pass
    assert (tmp_path / ".state.lock").read_text() == ""


def test_a_lock_is_given_back_when_its_block_raises(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ZeroDivisionError), files.locked(tmp_path / "state"):
        raise ZeroDivisionError
    with files.locked(tmp_path / "state"):
        pass


@pytest.mark.parametrize("kind", ["text", "directory", "link", pytest.param("pipe", marks=posix_test.PIPES)])
def test_what_is_no_lock_file_is_left_alone(tmp_path: pathlib.Path, kind: str) -> None:
    place = tmp_path / ".state.lock"
    (tmp_path / "victim").write_text("mine")
    if kind == "text":
        place.write_text("something that somebody wrote here")
    elif kind == "directory":
        place.mkdir()
    elif kind == "link":
        place.symlink_to("victim")
    else:
        os.mkfifo(place)
    with pytest.raises(errors.CheckpointError, match=r"\.state\.lock($| is not a lock file: move it away$)"):
        files.locked(tmp_path / "state").__enter__()
    assert (tmp_path / "victim").read_text() == "mine"
    if kind == "text":
        assert place.read_text() == "something that somebody wrote here"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    fcntl = types.SimpleNamespace(flock=refuse, LOCK_EX=2, LOCK_NB=4)
    monkeypatch.setitem(sys.modules, "fcntl", fcntl)
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
        with (
            pytest.raises(errors.CheckpointError, match="is in use by this process"),
            files.locked(tmp_path / "state"),
        ):
            pass
    assert calls == [(1 << 30, 2, 1)] * 2


def test_a_lock_holds_where_nothing_can_be_noted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    rule = "is in use by another process: "
    with files.locked(tmp_path / "state"), pytest.raises(errors.CheckpointError, match=rule):
        files.locked(tmp_path / "state").__enter__()


# Replacing: the whole of it is tested through checkpoints.


def made(path: pathlib.Path, text: str) -> str:
    path.mkdir()
    (path / "manifest.json").write_bytes(files.MARKER + text.encode())
    (path / "a.npy").write_text(text)
    return str(path)


def texts(tmp_path: pathlib.Path) -> dict[str, str]:
    return {each.name: (each / "a.npy").read_text() for each in tmp_path.iterdir()}


def test_a_gap_is_filled_and_what_is_behind_it_stays(tmp_path: pathlib.Path) -> None:
    path = made(tmp_path / "s", "5")
    for name, text in (("s.1", "4"), ("s.3", "2"), ("s.4", "1")):
        made(tmp_path / name, text)
    files.replace_directory(made(tmp_path / ".s.new", "6"), path, 9)
    assert texts(tmp_path) == {"s": "6", "s.1": "5", "s.2": "4", "s.3": "2", "s.4": "1"}
    files.replace_directory(made(tmp_path / ".s.new", "7"), path, 2)
    assert texts(tmp_path) == {"s": "7", "s.1": "6"}


def test_a_number_of_ones_own_is_not_deleted(tmp_path: pathlib.Path) -> None:
    path = made(tmp_path / "s", "5")
    made(tmp_path / "s.2", "mine")
    (tmp_path / ".s.2.lock").write_text("")
    files.replace_directory(made(tmp_path / ".s.new", "6"), path, 1)
    (tmp_path / ".s.2.lock").unlink()
    assert texts(tmp_path) == {"s": "6", "s.2": "mine"}


def test_a_rename_that_fails_is_undone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, new = made(tmp_path / "s", "5"), str(tmp_path / ".s.new")
    with pytest.raises(FileNotFoundError):
        files.replace_directory(new, path, 1)
    assert texts(tmp_path) == {"s": "5"}
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        files.replace_directory(new, path, 1)
    assert texts(tmp_path) == {"elsewhere": "5"}


def test_a_directory_that_cannot_be_deleted_stays(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "s", "5")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        files.replace_directory(made(tmp_path / ".s.new", "6"), path, 1)
    assert texts(tmp_path) == {"s": "6", ".s.old": "5"}
    files.remove_directory(str(tmp_path / ".s.old"))
    assert texts(tmp_path) == {"s": "6"}


def test_a_directory_is_deleted_its_manifest_last(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "s", "5")
    (tmp_path / "s" / "zz.npy").write_text("")
    names: list[str] = []
    system = files.Directory.unlink

    def unlink(directory: files.Directory, name: str) -> None:
        names.append(name)
        system(directory, name)

    monkeypatch.setattr(files.Directory, "unlink", unlink)
    files.remove_directory(str(tmp_path / "s"))
    assert names == ["a.npy", "zz.npy", "manifest.json"]
    files.remove_directory(str(tmp_path / "s"))


def test_what_is_no_directory_is_not_deleted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.CheckpointError, match="file is not a directory: move it away$"):
        files.remove_directory(str(tmp_path / "file"))
    assert (tmp_path / "file").exists()


class Odd:
    """A path that is none."""

    def __fspath__(self) -> Any:
        return 5


def test_a_path_that_no_file_can_have_is_refused() -> None:
    for path in ("a\ud800b", b"a\0b", ""):
        with pytest.raises(errors.ArgumentError, match="^path must be the path of a directory in another, got "):
            files.absolute("path", path)
    others: list[Any] = [5, None, Odd(), ["a"]]
    for other in others:
        with pytest.raises(errors.ArgumentTypeError, match="^path must be a path, got "):
            files.absolute("path", other)
    assert files.absolute("path", b"a\xff").endswith("a\udcff")
