import errno
import os
import pathlib
import sys
import types
from typing import Any

import pytest

from relive import errors
from relive.persistence import files
from relive.persistence import posix_test


def test_a_path_on_one_line_stays_as_it_is() -> None:
    assert files.named("/a b/é") == "/a b/é"
    assert files.named("/a\nb\udcff") == r"'/a\nb\udcff'"


def test_a_reason_is_the_systems_or_what_there_is() -> None:
    assert files.reason(OSError(errno.ENOSPC, "full")) == "full"
    assert files.reason(OSError("odd")) == "odd"


@pytest.mark.parametrize("path", ["a", b"a", pathlib.Path("a"), "a/", "./b/../a"])
def test_a_path_becomes_absolute(path: Any) -> None:
    assert files.absolute("path", path) == os.path.join(os.getcwd(), "a")


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

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "none here")

    strong.fcntl = refuse
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

    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    if code == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(code)):
            files.fsync_directory(str(tmp_path))
    else:
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
        assert (directory.has("a"), directory.has("b"), directory.is_regular("a")) == (True, False, True)
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


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("missing", "is missing"),
        ("link", "is a link"),
        ("dangling", "is a link"),
        ("directory", "is not a regular file"),
        pytest.param("pipe", "is not a regular file", marks=posix_test.PIPES),
        ("device", "is a link"),
        ("long", "cannot be opened: File name too long"),
    ],
)
def test_what_is_no_regular_file_is_not_read(tmp_path: pathlib.Path, kind: str, rule: str) -> None:
    name = "a" * 300 if kind == "long" else "a"
    (tmp_path / "file").write_text("")
    if kind == "directory":
        (tmp_path / "a").mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / "a")
    elif kind in ("link", "dangling", "device"):
        targets = {"link": "file", "dangling": "nowhere", "device": "/dev/zero"}
        (tmp_path / "a").symlink_to(targets[kind])
    with files.Directory(str(tmp_path)) as directory:
        with pytest.raises(errors.CheckpointError, match=f"^{tmp_path}/{name} {rule}$"):
            directory.open(name)
        if kind not in ("missing", "long"):
            assert not directory.is_regular(name)


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
