"""What a path is said to be, and what in it is broken."""

import os
import pathlib
import re
from typing import Any

import pytest

import relive
from relive.persistence import inspect
from relive.tools import saved_examples_test as examples


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    examples.prioritized().save(tmp_path / "buffer")
    return tmp_path / "buffer"


def test_what_was_saved_is_told_apart(saved: pathlib.Path) -> None:
    examples.journal(saved.parent / "journal")
    assert inspect.kind_of(str(saved)) is inspect.Kind.CHECKPOINT
    assert inspect.kind_of(str(saved.parent / "journal")) is inspect.Kind.JOURNAL
    saved.rename(f"{saved}.1")
    assert inspect.kind_of(str(saved)) is inspect.Kind.CHECKPOINT


@pytest.mark.parametrize(
    ("made", "typed", "message"),
    [
        (None, "buffer", "/buffer does not exist"),
        ("buffer/x.txt", "buffer", r"/buffer is neither a checkpoint nor a journal: it holds 'x\.txt'"),
        ("buffer/storage.json", "buffer", "/buffer is the memory map of a MemmapStorage: open it with that"),
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
        inspect.kind_of(str(tmp_path / typed))


def test_an_empty_directory_and_one_of_much_else_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(relive.CheckpointError, match="is empty: neither a checkpoint nor a journal$"):
        inspect.kind_of(str(tmp_path))
    for name in "abcd":
        (tmp_path / name).touch()
    with pytest.raises(relive.CheckpointError, match=r"it holds 'a', 'b', 'c', \.\.\.$"):
        inspect.kind_of(str(tmp_path))


def test_a_directory_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(relive.CheckpointError, match="cannot be opened: Permission denied$"):
        inspect.kind_of(str(tmp_path))


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
    assert inspect.is_of_journal(name) == is_segment


def test_each_broken_file_is_named_and_no_other(saved: pathlib.Path) -> None:
    assert inspect.faults(str(saved)) == []
    examples.change_byte(saved / "rows.reward.npy", 300)
    (saved / "barred.npy").unlink()
    (saved / "rows.action.npy").write_bytes(b"short")
    (saved / "times_sampled.npy").unlink()
    (saved / "times_sampled.npy").symlink_to("/etc/passwd")
    heard: list[tuple[int, int]] = []
    found = inspect.faults(str(saved), lambda done, total: heard.append((done, total)))
    names = {re.sub(r".*/([\w.]+npy) .*", r"\1", line) for line in found}
    assert names == {"rows.reward.npy", "barred.npy", "rows.action.npy", "times_sampled.npy"}
    assert len(found) == 4
    assert heard[-1][0] == heard[-1][1]
    assert len(inspect.faults(str(saved))) == 4


def test_a_broken_manifest_is_the_one_fault(saved: pathlib.Path) -> None:
    examples.change_byte(saved / "manifest.json", 100)
    (fault,) = inspect.faults(str(saved))
    assert fault.endswith("manifest.json was changed or cut: its CRC-32 is another")
    (saved / "manifest.json").unlink()
    (saved / "manifest.json").symlink_to("/etc/passwd")
    assert inspect.faults(str(saved))[0].endswith("manifest.json is a link")
    with pytest.raises(relive.CheckpointError, match="cannot be read: Not a directory$"):
        inspect.read_manifest(str(saved / "rows.reward.npy"))


def test_a_manifest_without_end_is_not_read(saved: pathlib.Path) -> None:
    os.truncate(saved / "manifest.json", 1 << 40)
    with pytest.raises(relive.CheckpointError, match="must have at most 2097152 bytes$"):
        inspect.read_manifest(str(saved))


def test_a_file_that_was_mended_meanwhile_is_a_fault_all_the_same(
    saved: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples.change_byte(saved / "rows.reward.npy", 300)
    monkeypatch.setattr(inspect, "_faults_of_each", lambda path, progress: [])
    (fault,) = inspect.faults(str(saved))
    assert "rows.reward.npy was changed" in fault


def test_older_checkpoints_are_found_until_a_number_is_missing(saved: pathlib.Path) -> None:
    buffer = examples.prioritized()
    for _ in range(3):
        buffer.save(saved, keep=3)
    assert inspect.older(str(saved)) == [f"{saved}.1", f"{saved}.2"]
    buffer.save(f"{saved}.2.1")
    assert inspect.older(f"{saved}.2") == []


# Buffers of any class.


@pytest.mark.parametrize("number", range(6))
def test_whatever_was_saved_is_loaded_by_its_path_alone(number: int, tmp_path: pathlib.Path) -> None:
    items, tokens = relive.ItemReplayBuffer(9, "timesteps", seed=0), relive.TokenReplayBuffer(max_tokens=9, seed=0)
    rollout, joint = relive.RolloutBuffer(4), relive.JointReplayBuffer(9, agents=("a", "b"), seed=0)
    buffer: Any = (examples.prioritized(), examples.episodes(), items, tokens, rollout, joint)[number]
    buffer.save(tmp_path / "buffer")
    relive.verify(tmp_path / "buffer")
    loaded = relive.load(tmp_path / "buffer")
    assert type(loaded) is type(buffer)
    assert len(loaded) == len(buffer)


def test_a_journal_is_recovered(tmp_path: pathlib.Path) -> None:
    examples.journal(tmp_path / "journal")
    relive.verify(tmp_path / "journal")
    assert len(relive.load(tmp_path / "journal")) == len(relive.recover(tmp_path / "journal")) > 0


def test_overrides_and_codecs_reach_the_class(tmp_path: pathlib.Path) -> None:
    examples.prioritized().save(tmp_path / "steps")
    assert relive.load(tmp_path / "steps", limiter=relive.MinSize(7)).limiter.min_size == 7
    examples.episodes().save(tmp_path / "episodes")
    assert len(relive.load(tmp_path / "episodes", codec=relive.PlainCodec())) > 0


def test_a_class_that_is_not_defined_here_is_named(saved: pathlib.Path) -> None:
    examples.forge(saved, **{"class": "MyBuffer"})
    message = "it is of a 'MyBuffer', a class that is not defined here: import its module"
    with pytest.raises(relive.CheckpointError, match=f"^{message}$"):
        relive.load(saved)
    relive.verify(saved)
    assert inspect.examine(str(saved)).reason == message


def test_all_that_is_broken_is_said_at_once(saved: pathlib.Path) -> None:
    for name in ("rows.reward.npy", "barred.npy"):
        examples.change_byte(saved / name, 140)
    with pytest.raises(relive.CheckpointError, match=r"rows\.reward\.npy.*; .*barred\.npy|barred.*; .*rows\.reward"):
        relive.verify(saved)
    with pytest.raises(relive.CheckpointError, match="/nothing does not exist$"):
        relive.verify(saved / "nothing")
    with pytest.raises(relive.ArgumentTypeError, match="^progress must"):
        relive.verify(saved, progress=3)  # type: ignore[arg-type]


def test_a_rollout_is_whole(tmp_path: pathlib.Path) -> None:
    rollout = relive.RolloutBuffer(4)
    rollout.add([1.0], 1, 1.0)
    rollout.save(tmp_path / "rollout")
    relive.verify(tmp_path / "rollout")
    assert len(relive.load(tmp_path / "rollout")) == 1


def test_a_codec_is_for_objects_alone(saved: pathlib.Path) -> None:
    message = "codec must be left out for a PrioritizedReplayBuffer, which holds no objects"
    with pytest.raises(relive.ArgumentError, match=f"^{message}$"):
        relive.load(saved, codec=relive.PlainCodec())
