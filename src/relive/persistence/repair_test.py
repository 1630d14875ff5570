"""A repair cleans up after a crash, deletes nothing of value, and a second one finds nothing to do."""

import contextlib
import errno
import itertools
import os
import pathlib
import shutil
from typing import Any

import pytest

import relive
from relive import errors
from relive.cli import saved_examples_test as examples
from relive.persistence import files as files_lib
from relive.persistence import journal_reader
from relive.persistence import posix_test
from relive.persistence import repair

Twin = list[tuple[int, int, bytes]]

# Journals.


def write(path: pathlib.Path) -> tuple[Twin, list[pathlib.Path]]:
    """Write a journal of several segments; return what is in it, and the segments."""
    with relive.Journal(path, fsync="never", segment_bytes=120) as log:
        log._begin(lambda: b"base")
        for number in range(12):
            log._append(1, b"payload %d" % number)
    return read(path), sorted(path.glob("*.relive"))


def read(path: pathlib.Path) -> Twin:
    return [*journal_reader.records(path)]


def flip(path: pathlib.Path, offset: int) -> bytes:
    """Change a byte, and return the content."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    return bytes(content)


FAILING = posix_test.failing(errno.EIO)


def test_a_torn_tail_is_cut_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    assert str(repair.repair_journal(str(tmp_path / "empty"))) == "0 whole records: nothing to repair"
    twin, files = write(tmp_path / "log")
    content = files[-1].read_bytes()
    files[-1].write_bytes(content + b"torn")
    report = repair.repair_journal(str(tmp_path / "log"))
    assert (report.num_records, report.num_bytes_cut, report.damage, report.set_aside) == (len(twin), 4, None, ())
    assert str(report) == f"{len(twin)} whole records: cut 4 bytes after them, which are no record"
    assert str(repair.repair_journal(str(tmp_path / "log"))) == f"{len(twin)} whole records: nothing to repair"
    assert files[-1].read_bytes() == content
    assert read(tmp_path / "log") == twin


@pytest.mark.parametrize(
    ("place", "offset"), [(1, -1), (-1, 0), (-1, 20), (-1, 40), (-1, 56), (0, 0), (1, None)], ids=str
)
def test_damage_is_only_set_aside_when_told_to(tmp_path: pathlib.Path, place: int, offset: int | None) -> None:
    """A segment whose base is damaged is set aside whole, and those after a gap are, too."""
    twin, files = write(tmp_path / "log")
    kept = twin[: int(files[2].stem[-20:]) - 1 if offset == -1 else int(files[place].stem[-20:])]
    aside = files[place % len(files) :]
    if offset is None:
        aside.pop(0).unlink()
    else:
        flip(files[place], offset)
    contents = [file.read_bytes() for file in aside]
    message = f"repair with drop_damaged=True keeps the {len(kept)} records before it$"
    with pytest.raises(errors.CheckpointError, match=message):
        repair.repair_journal(str(tmp_path / "log"))
    assert [file.read_bytes() for file in aside] == contents
    report = repair.repair_journal(str(tmp_path / "log"), drop_damaged=True)
    assert read(tmp_path / "log") == kept
    assert report.num_records == len(kept)
    assert report.set_aside == tuple(f"{file.name}.damaged" for file in aside)
    assert str(report) == f"{len(kept)} whole records: {report.damage}; set aside as {', '.join(report.set_aside)}"
    assert [(tmp_path / "log" / name).read_bytes() for name in report.set_aside] == contents
    assert str(repair.repair_journal(str(tmp_path / "log"))) == f"{len(kept)} whole records: nothing to repair"
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        assert log.num_records == len(kept)
        log._begin(lambda: b"base")
    assert read(tmp_path / "log") == (kept or [(0, 0, b"base")])


def test_files_set_aside_earlier_are_kept(tmp_path: pathlib.Path) -> None:
    twin, files = write(tmp_path / "log")
    for _ in range(3):
        flip(files[0], journal_reader.SEGMENT_HEADER_BYTES + 17 + 4 + 17)
        assert repair.repair_journal(str(tmp_path / "log"), drop_damaged=True).num_records == 1
        with relive.Journal(tmp_path / "log", fsync="never") as log:
            log._begin(lambda: b"base")
            log._append(1, b"payload 0")
            log._append(1, b"payload 1")
    names = sorted(file.name for file in (tmp_path / "log").glob(f"{files[0].name}*"))
    assert names == [files[0].name, *(f"{files[0].name}{end}" for end in (".1.damaged", ".2.damaged", ".damaged"))]
    assert read(tmp_path / "log")[0] == twin[0]


def test_a_pruned_journal_damaged_at_its_start_becomes_empty(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "log")
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        log._prune(log.num_records)
    (last,) = (tmp_path / "log").glob("*.relive")
    stale, aside = tmp_path / "log" / journal_reader.segment_name(0), f"{last.name}.damaged"
    stale.write_bytes(b"about to be deleted")
    flip(last, 0)
    with pytest.raises(errors.CheckpointError, match="keeps the 0 records before it$"):
        repair.repair_journal(str(tmp_path / "log"))
    assert repair.repair_journal(str(tmp_path / "log"), drop_damaged=True).set_aside == (aside,)
    assert [file.name for file in (tmp_path / "log").iterdir()] == [aside]
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        log._begin(lambda: b"again")
    assert read(tmp_path / "log") == [(0, 0, b"again")]


def test_a_failed_repair_is_completed_by_the_next(tmp_path: pathlib.Path) -> None:
    passing = 0
    for passing in range(40):
        path = tmp_path / str(passing)
        twin, files = write(path)
        flip(files[1], -1)
        left = itertools.count(-passing)  # The next number is 0 for the call that fails.

        def around(real: Any, left: Any = left) -> Any:
            return lambda *arguments, **named: real(*arguments, **named) if next(left) else FAILING()

        with pytest.MonkeyPatch.context() as patch:
            for name in ("rename", "ftruncate", "fsync"):
                patch.setattr(os, name, around(getattr(os, name)))
            with contextlib.suppress(errors.CheckpointError):
                repair.repair_journal(str(path), drop_damaged=True)
        if next(left) <= 0:
            break
        repair.repair_journal(str(path), drop_damaged=True)
        assert read(path) == twin[: int(files[2].stem[-20:]) - 1]
    assert 4 <= passing < 39


def test_a_torn_tail_that_stays_is_not_repaired(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, files = write(tmp_path / "log")
    files[-1].write_bytes(files[-1].read_bytes() + b"torn")
    with (
        files_lib.locked(tmp_path / "log"),
        pytest.raises(errors.CheckpointError, match="log is in use by this process"),
    ):
        repair.repair_journal(str(tmp_path / "log"))
    monkeypatch.setattr(repair, "_cut", FAILING)
    with pytest.raises(errors.CheckpointError, match="log could not be repaired: Input/output error$"):
        repair.repair_journal(str(tmp_path / "log"))


# Checkpoints.


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    """Return a path that does not exist."""
    return str(tmp_path / "buffer")


def save(path: str, steps: int = 60, keep: int = 1) -> None:
    """Save a buffer of that many steps."""
    examples.prioritized(steps).save(path, keep=keep)


def everything(path: str) -> dict[str, bytes | None]:
    """Return all files and directories beside a path, but for lock files."""
    found = sorted(pathlib.Path(path).parent.rglob("*"))
    return {str(each): each.read_bytes() if each.is_file() else None for each in found if each.suffix != ".lock"}


def refused(path: str, message: str) -> None:
    """Check that a path is not repaired, that the message says why, and that nothing has changed."""
    before = everything(path)
    with pytest.raises(relive.CheckpointError, match=message):
        relive.repair(path)
    assert everything(path) == before


def test_a_whole_checkpoint_needs_no_repair(path: str) -> None:
    refused(path, "/buffer does not exist$")
    assert os.listdir(os.path.dirname(path)) == []
    save(f"{path}.1")  # Under a number of its own, which it keeps.
    refused(path, "/buffer does not exist$")
    shutil.rmtree(f"{path}.1")
    save(path)
    before = everything(path)
    assert relive.repair(path) == repair.Repair(place=path)
    assert str(relive.repair(path)) == "nothing to repair"
    assert everything(path) == before
    with files_lib.locked(path):
        refused(path, "/buffer is in use by this process")


def test_incomplete_directories_are_deleted(path: str) -> None:
    save(path)
    new, old = files_lib.beside(path, "new"), files_lib.beside(path, "old")
    os.mkdir(new)
    pathlib.Path(new, "rows.reward.npy").touch()
    shutil.copytree(path, old)
    assert relive.repair(path).deleted == (new, old)
    assert not os.path.exists(new)
    assert not os.path.exists(old)
    assert str(relive.repair(path)) == "nothing to repair"


def test_a_checkpoint_gets_its_name_back(path: str) -> None:
    for steps in (40, 50, 60):
        save(path, steps, keep=3)
    shutil.rmtree(path)
    os.mkdir(files_lib.beside(path, "new"))
    done = relive.repair(path)
    assert done.renamed == ((f"{path}.1", path), (f"{path}.2", f"{path}.1"))
    assert str(done) == (
        f"renamed {path}.1 to {path}; renamed {path}.2 to {path}.1; deleted {files_lib.beside(path, 'new')}"
    )
    assert [len(relive.load(each)) for each in (path, f"{path}.1")] == [50, 40]
    assert not os.path.exists(f"{path}.2")
    assert str(relive.repair(path)) == "nothing to repair"


def test_a_complete_first_checkpoint_gets_its_name(path: str) -> None:
    new = files_lib.beside(path, "new")
    os.mkdir(new)
    refused(path, r"/buffer does not exist, and .*/\.buffer\.new was never completed$")
    save(path)
    os.rename(path, new)
    assert relive.repair(path) == repair.Repair(place=path, renamed=((new, path),))
    assert len(relive.load(path)) == 60


@pytest.fixture
def crashed(path: str) -> str:
    """Return a path whose newest checkpoint is gone, with an older one beside it."""
    save(path, 50)
    save(path, keep=2)
    shutil.rmtree(path)
    return path


def test_damaged_checkpoints_stay_and_a_whole_one_is_named(path: str) -> None:
    for steps in (40, 50, 60):
        save(path, steps, keep=3)
    os.mkdir(files_lib.beside(path, "new"))
    for each in (path, f"{path}.1"):
        os.unlink(f"{each}/barred.npy")
    is_left = r"/buffer/barred\.npy is missing: .*/buffer is left as it is"
    refused(path, rf"{is_left}, but .*/buffer\.2 is whole: load that$")
    os.unlink(f"{path}.2/barred.npy")
    refused(path, f"{is_left}: nothing beside it is whole$")
    os.rmdir(files_lib.beside(path, "new"))
    save(f"{path}x")
    os.rename(f"{path}x", files_lib.beside(path, "new"))
    refused(path, rf"{is_left}, but .*/\.buffer\.new is whole: load that$")


@pytest.mark.parametrize("kind", ["new", "old"])
def test_foreign_files_are_not_deleted_by_a_repair(crashed: str, kind: str) -> None:
    for each in ("new", "old"):
        os.mkdir(files_lib.beside(crashed, each))
    pathlib.Path(files_lib.beside(crashed, kind), "thesis.tex").touch()
    refused(crashed, rf"/\.buffer\.{kind} holds 'thesis\.tex', which relive did not write: move it away$")


def test_a_repair_that_the_system_refuses_is_one_line(crashed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", FAILING)
    refused(crashed, "/buffer could not be repaired: Input/output error$")
