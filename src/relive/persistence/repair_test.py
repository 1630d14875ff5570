"""A repair of a journal deletes nothing of value, and a second one finds nothing to do."""

import contextlib
import errno
import itertools
import os
import pathlib
from typing import Any

import pytest

import relive
from relive import errors
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


def test_a_checkpoint_needs_no_repair(tmp_path: pathlib.Path) -> None:
    relive.RingReplayBuffer(9).save(tmp_path / "buffer")
    message = "/buffer is a checkpoint, which needs no repair: a crash leaves the old one or the new one, and relive"
    with pytest.raises(errors.CheckpointError, match=message):
        relive.repair(tmp_path / "buffer")
