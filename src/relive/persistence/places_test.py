"""How the content of a path is described, and what in it is broken."""

import os
import pathlib
import re

import pytest

import relive
from relive.cli import saved_examples_test as examples
from relive.persistence import places
from relive.persistence import posix_test


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    examples.prioritized().save(tmp_path / "buffer")
    return tmp_path / "buffer"


def test_what_was_saved_is_told_apart(saved: pathlib.Path) -> None:
    examples.journal(saved.parent / "journal")
    assert places.kind_of(str(saved)) is places.Kind.CHECKPOINT
    assert places.kind_of(str(saved.parent / "journal")) is places.Kind.JOURNAL
    saved.rename(f"{saved}.1")
    assert places.kind_of(str(saved)) is places.Kind.CHECKPOINT


@pytest.mark.parametrize(
    ("made", "typed", "message"),
    [
        (None, "buffer", "/buffer does not exist"),
        ("buffer/x.txt", "buffer", r"/buffer is neither a checkpoint nor a journal: it holds 'x\.txt'"),
        (
            "buffer/storage.json",
            "buffer",
            r"/buffer is a memory map, which holds rows and no buffer: "
            r"load its checkpoint with storage=relive\.MemmapStorage\('.*/buffer'\)$",
        ),
        ("buffer", "buffer", "/buffer is not a directory: a checkpoint or a journal is a directory"),
        ("b/manifest.json", "b/manifest.json", r"/manifest\.json is not a directory: name the directory that it is in"),
        ("b/rows.reward.npy", "b/rows.reward.npy", r"\.npy is not a directory: name the directory that it is in"),
        (f"segment-{0:020}.relive", f"segment-{0:020}.relive", "is not a directory: name the directory that it is in"),
    ],
)
def test_what_is_something_else_is_named(tmp_path: pathlib.Path, made: str | None, typed: str, message: str) -> None:
    if made:
        (tmp_path / made).parent.mkdir(exist_ok=True)
        (tmp_path / made).touch()
    with pytest.raises(relive.CheckpointError, match=message):
        places.kind_of_buffer(str(tmp_path / typed))


def test_a_parquet_file_is_told_by_its_first_bytes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps"
    path.write_bytes(b"PAR1...")
    assert places.kind_of(str(path)) is places.Kind.PARQUET
    rule = r"is a Parquet file, which holds steps and no buffer: relive\.integrations\.arrow\.add_parquet adds them"
    with pytest.raises(relive.CheckpointError, match=rule):
        relive.load(path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(relive.CheckpointError, match="steps cannot be opened: Permission denied$"):
        places.kind_of(str(path))


def test_a_journal_without_a_segment_is_still_a_journal(tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal" / "base").mkdir(parents=True)
    assert places.kind_of(str(tmp_path / "journal")) is places.Kind.JOURNAL


@posix_test.PIPES
def test_a_pipe_is_not_read(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(relive.CheckpointError, match="pipe is not a directory"):
        places.kind_of(str(tmp_path / "pipe"))


def test_an_empty_directory_and_one_of_much_else_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(relive.CheckpointError, match="is empty: neither a checkpoint nor a journal$"):
        places.kind_of(str(tmp_path))
    for name in "abcd":
        (tmp_path / name).touch()
    with pytest.raises(relive.CheckpointError, match=r"it holds 'a', 'b', 'c', \.\.\.$"):
        places.kind_of(str(tmp_path))


def test_an_unreadable_place_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(relive.CheckpointError, match="cannot be opened: Permission denied$"):
        places.kind_of(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "is_segment"),
    [
        (f"segment-{7:020}.relive", True),
        (f"segment-{7:020}.relive.new", True),
        (f"segment-{7:020}.relive.damaged", True),
        (f"segment-{7:020}.relive.2.damaged", True),
        ("segment-7.relive", False),
        ("notes.damaged", False),
    ],
)
def test_the_files_of_a_journal_are_known_by_name(name: str, is_segment: bool) -> None:
    assert places.is_of_journal(name) == is_segment


def test_each_broken_file_is_named_and_no_other(saved: pathlib.Path) -> None:
    assert places.faults(str(saved)) == []
    examples.change_byte(saved / "rows.reward.npy", 300)
    (saved / "barred.npy").unlink()
    (saved / "rows.action.npy").write_bytes(b"short")
    (saved / "times_sampled.npy").unlink()
    (saved / "times_sampled.npy").symlink_to("/etc/passwd")
    heard: list[tuple[int, int]] = []
    found = places.faults(str(saved), lambda done, total: heard.append((done, total)))
    names = {re.sub(r".*/([\w.]+npy) .*", r"\1", line) for line in found}
    assert names == {"rows.reward.npy", "barred.npy", "rows.action.npy", "times_sampled.npy"}
    assert len(found) == 4
    assert heard[-1][0] == heard[-1][1]
    assert len(places.faults(str(saved))) == 4


def test_a_broken_manifest_is_the_one_fault(saved: pathlib.Path) -> None:
    examples.change_byte(saved / "manifest.json", 100)
    (fault,) = places.faults(str(saved))
    assert fault.endswith("manifest.json was changed or cut: its CRC-32 does not match")
    (saved / "manifest.json").unlink()
    (saved / "manifest.json").symlink_to("/etc/passwd")
    assert places.faults(str(saved))[0].endswith("manifest.json is a link")
    with pytest.raises(relive.CheckpointError, match="cannot be read: Not a directory$"):
        places.read_manifest(str(saved / "rows.reward.npy"))


def test_a_manifest_without_end_is_not_read(saved: pathlib.Path) -> None:
    os.truncate(saved / "manifest.json", 1 << 40)
    with pytest.raises(relive.CheckpointError, match="must have at most 2097152 bytes$"):
        places.read_manifest(str(saved))


def test_a_file_mended_meanwhile_is_still_a_fault(saved: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples.change_byte(saved / "rows.reward.npy", 300)
    monkeypatch.setattr(places, "_faults_of_each", lambda path, progress: [])
    (fault,) = places.faults(str(saved))
    assert "rows.reward.npy was changed" in fault


def test_older_checkpoints_are_found_until_a_number_is_missing(saved: pathlib.Path) -> None:
    buffer = examples.prioritized()
    for _ in range(3):
        buffer.save(saved, keep=3)
    assert places.older(str(saved)) == [f"{saved}.1", f"{saved}.2"]
    buffer.save(f"{saved}.2.1")
    assert places.older(f"{saved}.2") == []
