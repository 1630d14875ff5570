"""A repair cleans up after a crash, deletes nothing of value, and a second one finds nothing to do."""

import contextlib
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
from relive.persistence import repair

Twin = list[tuple[int, int, bytes]]

# Journals.


def write(path: pathlib.Path) -> tuple[Twin, list[pathlib.Path]]:
    """Write a journal of several segments; return what is in it, and the segments."""
    with relive.Journal(path, fsync="never", segment_bytes=120) as log:
        log.begin(lambda: b"base")
        for number in range(12):
            log.append(1, b"payload %d" % number)
    return read(path), sorted(path.glob("*.relive"))


def read(path: pathlib.Path) -> Twin:
    return [*journal_reader.records(path)]


def flip(path: pathlib.Path, offset: int) -> bytes:
    """Change a byte, and return the content."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    return bytes(content)


def failing(*_: object, **__: object) -> Any:
    raise OSError(5, "Input/output error")


def test_a_whole_journal_needs_no_repair(tmp_path: pathlib.Path) -> None:
    twin, files = write(tmp_path / "log")
    contents = [file.read_bytes() for file in files]
    report = repair.repair_journal(tmp_path / "log")
    assert str(report) == f"{len(twin)} whole records: nothing to repair"
    assert [file.read_bytes() for file in files] == contents


def test_an_empty_directory_needs_no_repair(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log").mkdir()
    assert str(repair.repair_journal(tmp_path / "log")) == "0 whole records: nothing to repair"
    with pytest.raises(errors.ArgumentTypeError, match="^drop_damaged must be True or False, got 'yes'$"):
        repair.repair_journal(tmp_path / "log", drop_damaged="yes")  # type: ignore[arg-type]


def test_a_torn_tail_is_cut_once(tmp_path: pathlib.Path) -> None:
    twin, files = write(tmp_path / "log")
    content = files[-1].read_bytes()
    files[-1].write_bytes(content + b"torn")
    report = repair.repair_journal(tmp_path / "log")
    assert (report.num_records, report.num_bytes_cut, report.damage, report.set_aside) == (len(twin), 4, None, ())
    assert str(report) == f"{len(twin)} whole records: cut 4 bytes after them, which are no record"
    assert files[-1].read_bytes() == content
    assert repair.repair_journal(tmp_path / "log").num_bytes_cut == 0
    assert read(tmp_path / "log") == twin


def test_damage_is_only_set_aside_when_told_to(tmp_path: pathlib.Path) -> None:
    twin, files = write(tmp_path / "log")
    spoiled = flip(files[1], -1)
    later = [file.read_bytes() for file in files[2:]]
    kept = twin[: int(files[2].stem[-20:]) - 1]
    with pytest.raises(
        errors.CheckpointError,
        match=f"another segment follows: repair with drop_damaged=True keeps the {len(kept)} records before it$",
    ):
        repair.repair_journal(tmp_path / "log")
    assert files[1].read_bytes() == spoiled
    report = repair.repair_journal(tmp_path / "log", drop_damaged=True)
    assert read(tmp_path / "log") == kept
    assert report.num_records == len(kept)
    assert report.set_aside == tuple(f"{file.name}.damaged" for file in files[1:])
    assert str(report) == f"{len(kept)} whole records: {report.damage}; set aside as {', '.join(report.set_aside)}"
    assert [(tmp_path / "log" / name).read_bytes() for name in report.set_aside] == [spoiled, *later]
    assert str(repair.repair_journal(tmp_path / "log")) == f"{len(kept)} whole records: nothing to repair"
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        assert log.num_records == len(kept)


def test_files_set_aside_earlier_are_kept(tmp_path: pathlib.Path) -> None:
    twin, files = write(tmp_path / "log")
    for count in range(3):
        spoiled = flip(files[0], journal_reader.SEGMENT_HEADER_BYTES + 17 + 4 + 17)
        with files[0].open("ab") as file:
            file.write(spoiled[:0])
        report = repair.repair_journal(tmp_path / "log", drop_damaged=True)
        assert report.num_records == 1
        if count == 0:
            assert report.set_aside[0] == f"{files[0].name}.damaged"
        with relive.Journal(tmp_path / "log", fsync="never") as log:
            log.begin(lambda: b"base")
            log.append(1, b"payload 0")
            log.append(1, b"payload 1")
    names = sorted(file.name for file in (tmp_path / "log").glob(f"{files[0].name}*"))
    assert names == [files[0].name, *(f"{files[0].name}{end}" for end in (".1.damaged", ".2.damaged", ".damaged"))]
    assert read(tmp_path / "log")[0] == twin[0]


@pytest.mark.parametrize("offset", [0, 20, 40, 56])
def test_segments_without_a_base_are_set_aside_whole(tmp_path: pathlib.Path, offset: int) -> None:
    twin, files = write(tmp_path / "log")
    flip(files[-1], offset)
    report = repair.repair_journal(tmp_path / "log", drop_damaged=True)
    assert report.set_aside == (f"{files[-1].name}.damaged",)
    assert read(tmp_path / "log") == twin[: int(files[-1].stem[-20:])]


def test_segments_after_a_gap_are_set_aside(tmp_path: pathlib.Path) -> None:
    twin, files = write(tmp_path / "log")
    files[1].unlink()
    report = repair.repair_journal(tmp_path / "log", drop_damaged=True)
    assert report.set_aside == tuple(f"{file.name}.damaged" for file in files[2:])
    assert read(tmp_path / "log") == twin[: int(files[1].stem[-20:])]


def test_a_journal_damaged_at_its_start_becomes_empty(tmp_path: pathlib.Path) -> None:
    _, files = write(tmp_path / "log")
    flip(files[0], 0)
    assert repair.repair_journal(tmp_path / "log", drop_damaged=True).num_records == 0
    assert read(tmp_path / "log") == []
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        log.begin(lambda: b"again")
    assert read(tmp_path / "log") == [(0, 0, b"again")]


def test_a_pruned_journal_damaged_at_its_start_becomes_empty(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "log")
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        log.prune(log.num_records)
    (last,) = (tmp_path / "log").glob("*.relive")
    stale, aside = tmp_path / "log" / journal_reader.segment_name(0), f"{last.name}.damaged"
    stale.write_bytes(b"about to be deleted")
    flip(last, 0)
    with pytest.raises(errors.CheckpointError, match="keeps the 0 records before it$"):
        repair.repair_journal(tmp_path / "log")
    assert repair.repair_journal(tmp_path / "log", drop_damaged=True).set_aside == (aside,)
    assert [file.name for file in (tmp_path / "log").iterdir()] == [aside]
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        log.begin(lambda: b"again")
    assert read(tmp_path / "log") == [(0, 0, b"again")]


def test_a_failed_repair_is_completed_by_the_next(tmp_path: pathlib.Path) -> None:
    passing = 0
    for passing in range(40):
        path = tmp_path / str(passing)
        twin, files = write(path)
        flip(files[1], -1)
        kept = twin[: int(files[2].stem[-20:]) - 1]
        left = [passing]

        def around(real: Any, left: list[int] = left) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                left[0] -= 1
                return failing() if left[0] == -1 else real(*arguments, **named)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("rename", "ftruncate", "fsync"):
                patch.setattr(os, name, around(getattr(os, name)))
            with contextlib.suppress(errors.CheckpointError):
                repair.repair_journal(path, drop_damaged=True)
        if left[0] >= 0:
            break
        repair.repair_journal(path, drop_damaged=True)
        assert read(path) == kept
    assert 4 <= passing < 39


def test_a_torn_tail_that_stays_is_not_repaired(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, files = write(tmp_path / "log")
    with files[-1].open("ab") as file:
        file.write(b"torn")
    monkeypatch.setattr(repair, "cut", failing)
    with pytest.raises(errors.CheckpointError, match="log could not be repaired: Input/output error$"):
        repair.repair_journal(tmp_path / "log")


def test_a_journal_in_use_is_not_repaired(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "log")
    with (
        files_lib.locked(tmp_path / "log"),
        pytest.raises(errors.CheckpointError, match="log is in use by this process"),
    ):
        repair.repair_journal(tmp_path / "log")


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
    save(path)
    before = everything(path)
    assert relive.repair(path) == repair.Repair(place=path)
    assert str(relive.repair(path)) == "nothing to repair"
    assert everything(path) == before


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
    save(path)
    new = files_lib.beside(path, "new")
    os.rename(path, new)
    assert relive.repair(path) == repair.Repair(place=path, renamed=((new, path),))
    assert len(relive.load(path)) == 60


def test_an_incomplete_first_checkpoint_is_refused(path: str) -> None:
    os.mkdir(files_lib.beside(path, "new"))
    refused(path, r"/buffer does not exist, and .*/\.buffer\.new was never completed$")


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


def test_a_damaged_checkpoint_gets_no_name(path: str) -> None:
    save(path, 50)
    save(path, keep=2)
    shutil.rmtree(path)
    os.unlink(f"{path}.1/barred.npy")
    refused(path, r"/buffer\.1/barred\.npy is missing: .*/buffer is left as it is: nothing beside it is whole$")


def test_a_checkpoint_in_use_is_not_repaired(path: str) -> None:
    save(path)
    with files_lib.locked(path):
        refused(path, "/buffer is in use by this process")


@pytest.mark.parametrize("kind", ["new", "old"])
def test_foreign_files_are_not_deleted_by_a_repair(path: str, kind: str) -> None:
    save(path, 50)
    save(path, keep=2)
    shutil.rmtree(path)
    for each in ("new", "old"):
        os.mkdir(files_lib.beside(path, each))
    pathlib.Path(files_lib.beside(path, kind), "thesis.tex").touch()
    refused(path, rf"/\.buffer\.{kind} holds 'thesis\.tex', which relive did not write: move it away$")


def test_repairing_a_missing_path_creates_nothing(path: str) -> None:
    refused(path, "/buffer does not exist$")
    assert os.listdir(os.path.dirname(path)) == []


def test_a_checkpoint_saved_under_a_number_keeps_it(path: str) -> None:
    save(f"{path}.1")
    refused(path, "/buffer does not exist$")


def test_a_repair_that_the_system_refuses_is_one_line(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(path, 50)
    save(path, keep=2)
    shutil.rmtree(path)
    monkeypatch.setattr(os, "rename", failing)
    refused(path, "/buffer could not be repaired: Input/output error$")
