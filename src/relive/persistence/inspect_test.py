"""Tests of load, verify, repair and summary for every class and every file format."""

from collections.abc import Callable
import dataclasses
import errno
import gc
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import relive
from relive.cli import saved_examples_test as examples
from relive.persistence import archive_test
from relive.persistence import checkpoint
from relive.persistence import inspect
from relive.persistence import posix_test
from relive.persistence import state as state_lib
from relive.testing import zoo


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    examples.prioritized().save(tmp_path / "buffer")
    return tmp_path / "buffer"


# Every class.


def fill(buffer: Any) -> Any:
    """Add twelve steps in episodes of four to a buffer of columns, and return it."""
    for t in range(12):
        buffer.add(float(t), t % 2, 1.0, t + 1.0, terminated=t % 4 == 3)
    return buffer


MAKERS: dict[str, Callable[[], Any]] = {
    "ColumnReplayBuffer": lambda: fill(
        relive.ColumnReplayBuffer(
            100, window=relive.SequenceWindow(3), sampler=relive.PrioritizedSampler(beta=relive.LinearSchedule(0, 1, 9))
        )
    ),
    "EpisodeReplayBuffer": examples.episodes,
    "ItemReplayBuffer": lambda: zoo.worked(zoo.KINDS["items, fragments"].make),
    "JointReplayBuffer": lambda: zoo.worked(zoo.KINDS["joint"].make),
    "JointSequenceReplayBuffer": lambda: zoo.worked(zoo.KINDS["joint sequences"].make),
    "PrioritizedReplayBuffer": examples.prioritized,
    "RingReplayBuffer": lambda: fill(relive.RingReplayBuffer(100, seed=0)),
    "RolloutBuffer": lambda: zoo.worked(zoo.KINDS["rollout"].make, 0, 5),
    "SequenceReplayBuffer": lambda: fill(relive.SequenceReplayBuffer(100, length=3, seed=0)),
    "TokenReplayBuffer": lambda: zoo.worked(zoo.KINDS["tokens"].make),
}
SHELLS = ["AsyncReplayBuffer", "ThreadSafeReplayBuffer"]
JOURNALED = [name for name in MAKERS if hasattr(getattr(relive, name), "attach")]


def test_no_class_is_left_out() -> None:
    public = [name for name in vars(relive)["__all__"] if hasattr(getattr(relive, name), "save")]
    assert sorted([*MAKERS, *SHELLS]) == public


def check_summary(path: pathlib.Path, buffer: Any, kind: str) -> dict[str, Any]:
    """Check what holds of the summary of every buffer, and return it."""
    said = relive.summary(path)
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert (said["path"], said["kind"], said["version"]) == (str(path), kind, 2 if kind == "checkpoint" else 1)
    assert (said["class"], said["faults"], said["notes"]) == (type(buffer).__name__, [], [])
    assert said["bytes"] == sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    settings = buffer._encoded_settings()
    assert said["settings"] | ({"schema": said["schema"]} if "schema" in settings else {}) == settings
    expected: dict[str, Any] = (
        dataclasses.asdict(buffer.get_stats()) if hasattr(buffer, "get_stats") else {"size": 5, "capacity": 9}
    )
    if "open_ages" in expected:
        assert said["stats"].pop("open_ages").keys() == expected.pop("open_ages").keys()
    assert said["stats"].keys() == expected.keys()
    return said


@pytest.mark.parametrize("name", MAKERS)
def test_a_checkpoint_of_every_class(name: str, tmp_path: pathlib.Path) -> None:
    buffer, path = MAKERS[name](), tmp_path / "buffer"
    buffer.save(path)
    heard: list[tuple[int, int]] = []
    relive.verify(path, progress=lambda done, total: heard.append((done, total)))
    assert heard[-1][0] == heard[-1][1] > 0
    said = check_summary(path, buffer, "checkpoint")
    if hasattr(buffer, "get_stats") and name != "EpisodeReplayBuffer":
        assert said["stats"] == dataclasses.asdict(buffer.get_stats())
    sizes = {name: len(content) for name, content in archive_test.contents_of(path).items() if name != "manifest.json"}
    assert {each["file"]: each["bytes"] for each in said["arrays"].values()} == sizes
    assert said["records"] is None
    loaded = relive.load(path)
    assert type(loaded) is type(buffer)
    assert len(loaded) == len(buffer)


@pytest.mark.parametrize("name", JOURNALED)
def test_a_journal_of_every_class_that_has_one(name: str, tmp_path: pathlib.Path) -> None:
    buffer, path = MAKERS[name](), tmp_path / "journal"
    with relive.Journal(path, fsync="never") as journal:
        buffer.attach(journal)
        buffer.clear()
        buffer.detach()
    relive.verify(path)
    said = check_summary(path, buffer, "journal")
    assert said["records"] == {"segments": 1, "records": 2, "torn_bytes": 0}
    assert str(relive.repair(path)) == "2 whole records: nothing to repair"
    assert type(relive.load(path)) is type(buffer)


def test_a_shell_saves_what_is_inside(tmp_path: pathlib.Path) -> None:
    relive.ThreadSafeReplayBuffer(examples.prioritized()).save(tmp_path / "buffer")
    assert relive.summary(tmp_path / "buffer")["class"] == "PrioritizedReplayBuffer"


def test_a_fresh_python_knows_all_of_our_classes(tmp_path: pathlib.Path) -> None:
    for name in ("ColumnReplayBuffer", "EpisodeReplayBuffer"):
        MAKERS[name]().save(tmp_path / name)
    with relive.Journal(tmp_path / "journal") as journal:
        relive.SequenceReplayBuffer(10, length=3).attach(journal)
    script = """
import sys, relive
for path in sys.argv[1:]:
    relive.verify(path)
    print(relive.summary(path)["notes"], type(relive.load(path)).__name__)
print(type(relive.recover(path)).__name__, [each for each in ("pyarrow", "rich") if each in sys.modules])
"""
    paths = [str(tmp_path / name) for name in ("ColumnReplayBuffer", "EpisodeReplayBuffer", "journal")]
    ended = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True, check=False)
    found = [f"[] {name}" for name in ("ColumnReplayBuffer", "EpisodeReplayBuffer", "SequenceReplayBuffer")]
    assert (ended.stdout.splitlines(), ended.stderr) == ([*found, "SequenceReplayBuffer []"], "")


def test_schemas_are_there_where_they_are_no_setting(tmp_path: pathlib.Path) -> None:
    for name in ("joint", "rollout"):
        zoo.worked(zoo.KINDS[name].make, 0, 5).save(tmp_path / name)
    schemas = relive.summary(tmp_path / "joint")["schema"]
    assert [row[0] for row in schemas["left"]] == ["observation", "action", "reward"]
    assert relive.summary(tmp_path / "rollout")["schema"][0] == ["observation/image", "|u1", [2, 2]]


# Files that hold no buffer.


SCHEMA = relive.Schema(relive.Field(2, "float32"), relive.Field((), "int64"))


def test_a_memory_map_says_what_it_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "map"
    with relive.MemmapStorage(path, SCHEMA, 100) as storage:
        relive.RingReplayBuffer(100, storage=storage, seed=0).add([1, 2], 0, 1.0, [3, 4])
        said = relive.summary(path)
        assert said["stats"] == {"generation": 0, "is_dirty": True}
    said = relive.summary(path)
    assert (said["kind"], said["class"], said["version"]) == ("memory map", None, 2)
    assert (said["settings"], said["schema"]) == ({"capacity": 100}, SCHEMA._description())
    assert said["stats"] == {"generation": 1, "is_dirty": False}
    assert json.dumps(said, allow_nan=False)
    relive.verify(path)
    rule = rf"/map is a memory map, which holds rows and no buffer: .*storage=relive\.MemmapStorage\('{path}'\)$"
    for refuses in (relive.load, relive.repair):
        with pytest.raises(relive.CheckpointError, match=rule):
            refuses(path)
    (path / "rows-0.npy").write_bytes(b"short")
    for verifies in (relive.verify, relive.summary):
        with pytest.raises(relive.CheckpointError, match=r"rows-0\.npy must be of \d+ bytes, got 5$"):
            verifies(path)


def test_rows_in_a_memory_map_are_no_fault_of_a_checkpoint(tmp_path: pathlib.Path) -> None:
    with relive.MemmapStorage(tmp_path / "map", SCHEMA, 100) as storage:
        buffer = relive.RingReplayBuffer(100, storage=storage, seed=0)
        buffer.add([1, 2], 0, 1.0, [3, 4])
        buffer.save(tmp_path / "buffer", copy_rows=False)
    relive.verify(tmp_path / "buffer")
    note = "not loaded: its rows are in a memory map: load it with storage=relive.MemmapStorage(...)"
    assert relive.summary(tmp_path / "buffer")["notes"] == [note]
    with relive.MemmapStorage(tmp_path / "map") as storage:
        assert len(relive.load(tmp_path / "buffer", storage=storage)) == 1


def test_a_parquet_file_says_what_it_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "steps.parquet"
    path.write_bytes(b"PAR1 and more PAR1")
    relive.verify(path)
    said = relive.summary(path)
    assert (said["kind"], said["version"], said["bytes"], said["class"]) == ("Parquet file", 1, 18, None)
    rule = "it holds steps and no buffer: relive.integrations.arrow.add_parquet adds them to one"
    assert said["notes"] == [f"not loaded: {rule}"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(relive.CheckpointError, match=r"steps\.parquet was cut: it does not end like a Parquet file$"):
        relive.verify(path)


# Buffers that cannot be loaded.


def test_forged_values_are_faults_or_left_out(saved: pathlib.Path) -> None:
    examples.forge(saved, settings=3, generator={"bit_generator": 3}, **{"class": ["x"]})
    said = relive.summary(saved)
    assert (said["class"], said["generator"], said["settings"], said["stats"]) == (None, None, {}, {})
    assert said["notes"] == ["not loaded: class must be a string, got ['x']"]


def test_a_state_of_no_buffer_is_described_as_far_as_it_goes(tmp_path: pathlib.Path) -> None:
    pairs = np.zeros(4, [("x", "f4"), ("y", "i8")])
    checkpoint.save({"class": "Mine", "arrays": {"pairs": pairs, "notes": np.arange(4)}}, tmp_path / "mine")
    said = relive.summary(tmp_path / "mine")
    assert (said["class"], said["stats"], said["schema"]) == ("Mine", {}, None)
    assert said["arrays"] == {
        "pairs": {"file": "pairs.npy", "dtype": "structured", "shape": [4], "bytes": 176},
        "notes": {"file": "notes.npy", "dtype": "int64", "shape": [4], "bytes": 160},
    }


def save_with_a_schedule_of_its_own(path: pathlib.Path) -> None:
    """Save a buffer with an object, within another, of a class that is gone afterwards."""

    class Mine(relive.Schedule):
        def value(self, tick: int) -> float:
            return 0.5

    sampler = relive.PrioritizedSampler(beta=Mine())
    relive.ColumnReplayBuffer(9, window=relive.TransitionWindow(), sampler=sampler).save(path)


def test_an_unknown_class_within_another_is_no_fault(tmp_path: pathlib.Path) -> None:
    save_with_a_schedule_of_its_own(tmp_path / "buffer")
    gc.collect()
    relive.verify(tmp_path / "buffer")
    note = "not loaded: 'beta is a Mine', a class that is not defined here"
    assert relive.summary(tmp_path / "buffer")["notes"] == [note]


def test_our_codecs_are_known_by_name_and_no_others(tmp_path: pathlib.Path) -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any](seed=0)
    step = relive.TokenStep(prompt=[1, 2], response=[3], logprobs=[-0.5], policy_version=0)
    buffer.append_observation_action_reward_nowait(buffer.start_episode_nowait("agent"), "", step, 0.0)
    buffer.save(tmp_path / "buffer", codec=relive.TokenStepCodec())
    said = relive.summary(tmp_path / "buffer")
    assert (said["notes"], said["stats"]["waiting_steps"]) == ([], 1)
    examples.forge(tmp_path / "buffer", codec="words")
    note = "not loaded: its codec is 'words', whose code is not in it"
    assert relive.summary(tmp_path / "buffer")["notes"] == [note]


def test_older_ones_are_noted(saved: pathlib.Path) -> None:
    examples.prioritized().save(saved, keep=2)
    assert relive.summary(saved)["notes"] == [f"older ones: {saved}.1"]


def test_a_torn_journal_is_said_and_left_as_it_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    examples.journal(path)
    last = examples.segments(path)[-1]
    torn = last.read_bytes()[:-3]
    last.write_bytes(torn)
    relive.verify(path)
    said = relive.summary(path)
    num_torn = said["records"]["torn_bytes"]
    assert (said["class"], said["settings"]["capacity"], said["stats"]) == ("RingReplayBuffer", 100, {})
    assert said["notes"] == [f"not loaded: it ends with a torn record of {num_torn} B: relive repair cuts it off"]
    assert last.read_bytes() == torn
    assert relive.repair(path).num_bytes_cut == num_torn > 0
    assert relive.summary(path)["stats"]["size"] == 29


def test_a_damaged_journal_says_where(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    examples.journal(path)
    examples.change_byte(examples.segments(path)[0], examples.segments(path)[0].stat().st_size - 10)
    said = relive.summary(path)
    assert "is damaged at byte" in said["faults"][0]
    assert (said["class"], said["stats"]) == ("RingReplayBuffer", {})
    with pytest.raises(relive.CheckpointError, match="drop_damaged=True keeps the"):
        relive.repair(path)
    aside = relive.repair(path, drop_damaged=True).set_aside
    assert relive.summary(path)["notes"] == [
        f"{name} was set aside by a repair, and is not part of it" for name in aside
    ]


def test_a_journal_that_is_written_to_is_not_rebuilt(tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    with relive.Journal(tmp_path / "journal", fsync="never") as journal:
        buffer.attach(journal)
        said = relive.summary(tmp_path / "journal")
        buffer.detach()
    assert (said["class"], said["stats"], said["faults"]) == ("RingReplayBuffer", {}, [])
    assert "not loaded: " in said["notes"][0]
    assert "is in use by this process" in said["notes"][0]


def test_a_summary_beside_a_pruning_writer_is_complete(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = os.walk
    with relive.Journal(tmp_path / "journal", fsync="never", segment_bytes=2000) as journal:
        buffer = relive.RingReplayBuffer(200)
        buffer.attach(journal)
        for t in range(100):
            buffer.add(float(t), 0, 1.0, t + 1.0)

        def pruned(place: str) -> Any:
            for found in list(walk(place)):
                assert journal._prune(journal.num_records)
                yield found

        monkeypatch.setattr(os, "walk", pruned)
        said = relive.summary(tmp_path / "journal")
        left = sum(each.stat().st_size for each in (tmp_path / "journal").iterdir() if each.suffix != ".oldest")
    assert (said["bytes"], said["faults"]) == (left, [])


def test_verifying_a_journal_verifies_its_checkpoint(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lib, "CHUNK", 64)  # What is larger is a checkpoint of its own.
    buffer = examples.prioritized()
    with relive.Journal(tmp_path / "journal", fsync="never") as journal:
        buffer.attach(journal)
        relive.verify(tmp_path / "journal")
        archive_test.change_byte(tmp_path / "journal" / "base" / "checkpoint", "rows.reward.npy", 300)
        with pytest.raises(relive.CheckpointError, match=r"rows\.reward\.npy was changed"):
            relive.verify(tmp_path / "journal")
        buffer.detach()


@pytest.mark.parametrize(
    ("base", "message"), [(b"nonsense", "cannot be recovered: "), (b"N", "a base must hold a state, got None")]
)
def test_a_journal_whose_base_is_none_is_broken(tmp_path: pathlib.Path, base: bytes, message: str) -> None:
    with relive.Journal(tmp_path / "journal", fsync="never") as journal:
        journal._begin(lambda: base)
    with pytest.raises(relive.CheckpointError, match=message):
        relive.verify(tmp_path / "journal")


def test_a_journal_without_a_record_has_no_buffer(tmp_path: pathlib.Path) -> None:
    (tmp_path / f"segment-{0:020}.relive.new").touch()
    said = relive.summary(tmp_path)
    assert (said["notes"], said["faults"], said["class"]) == (["not loaded: it holds no record"], [], None)


# What is asked for.


def test_overrides_and_codecs_reach_the_class(tmp_path: pathlib.Path) -> None:
    examples.prioritized().save(tmp_path / "steps")
    assert relive.load(tmp_path / "steps", limiter=relive.MinSize(7)).limiter.min_size == 7
    message = "^codec must be left out for a PrioritizedReplayBuffer, which holds no objects$"
    with pytest.raises(relive.ArgumentError, match=message):
        relive.load(tmp_path / "steps", codec=relive.PlainCodec())
    examples.episodes().save(tmp_path / "episodes")
    assert len(relive.load(tmp_path / "episodes", codec=relive.PlainCodec())) > 0


def test_a_class_that_is_not_defined_here_is_named(saved: pathlib.Path) -> None:
    examples.forge(saved, **{"class": "MyBuffer"})
    message = "it is of a 'MyBuffer', a class that is not defined here: import its module"
    with pytest.raises(relive.CheckpointError, match=f"^{message}$"):
        relive.load(saved)
    relive.verify(saved)
    assert inspect.examine(str(saved)).reason == message


def test_each_damaged_array_is_named_and_no_other(saved: pathlib.Path) -> None:
    assert checkpoint.faults(str(saved)) == []
    for name in ("rows.reward.npy", "barred.npy"):
        archive_test.change_byte(saved, name, 150)
    found = checkpoint.faults(str(saved))
    assert [re.sub(r".*/([\w.]+npy) .*", r"\1", line) for line in found] == ["rows.reward.npy", "barred.npy"]
    with pytest.raises(relive.CheckpointError) as broken:
        relive.verify(saved)
    assert str(broken.value) == "; ".join(checkpoint.faults(str(saved)))
    said = relive.summary(saved)
    assert (said["class"], said["settings"]["capacity"], said["stats"]) == ("PrioritizedReplayBuffer", 100, {})
    assert (said["faults"], len(said["arrays"]), said["notes"]) == (found, 13, [])


def test_a_broken_manifest_is_the_one_fault(saved: pathlib.Path) -> None:
    archive_test.change_byte(saved, "manifest.json", 100)
    (fault,) = checkpoint.faults(str(saved))
    assert re.search(r"manifest\.json was changed: its CRC-32 must be \d+, got \d+$", fault)
    with pytest.raises(relive.CheckpointError, match=r"manifest\.json was changed"):
        relive.summary(saved)


def test_wrong_arguments_of_an_inspection_are_refused(saved: pathlib.Path) -> None:
    wrong: Any = "yes"
    for call in (relive.verify, relive.summary, relive.repair):
        with pytest.raises(relive.ArgumentTypeError, match="^progress must be callable or None, got 'yes'$"):
            call(saved, progress=wrong)
        with pytest.raises(relive.ArgumentError, match="^path must be the path of a file or a directory, got ''$"):
            call("")
        with pytest.raises(relive.CheckpointError, match="/nothing does not exist$"):
            call(saved.parent / "nothing")
    with pytest.raises(relive.ArgumentTypeError, match="^drop_damaged must be True or False, got 'yes'$"):
        relive.repair(saved, drop_damaged=wrong)
    assert sorted(os.listdir(saved.parent)) == [".buffer.lock", "buffer"]


# What is at a path.


def test_what_was_saved_is_told_apart(saved: pathlib.Path) -> None:
    examples.journal(saved.parent / "journal")
    (saved.parent / "new" / "base").mkdir(parents=True)
    for name in ("journal", "new"):
        assert inspect.kind_of(str(saved.parent / name)) is inspect.Kind.JOURNAL
    assert inspect.kind_of(str(saved)) is inspect.Kind.CHECKPOINT


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
        ("buffer", "buffer", "/buffer is not a checkpoint$"),
        ("b/rows.reward.npy", "b/rows.reward.npy", r"/rows\.reward\.npy is not a checkpoint$"),
        ("b/manifest.json", "b", "/b is a directory, and a checkpoint is a file$"),
        (f"segment-{0:020}.relive", f"segment-{0:020}.relive", "is a part of a journal: name the directory that it is"),
    ],
)
def test_what_is_something_else_is_named(tmp_path: pathlib.Path, made: str | None, typed: str, message: str) -> None:
    if made:
        (tmp_path / made).parent.mkdir(exist_ok=True)
        (tmp_path / made).touch()
    with pytest.raises(relive.CheckpointError, match=message):
        inspect.kind_of_buffer(str(tmp_path / typed))


@pytest.mark.parametrize(
    ("beginning", "form"),
    [(b"\x89HDF", "an HDF5 file"), (b"PK\3\4", "a zip file, such as .npz"), (b"\x80\5", "a pickle")],
)
def test_a_file_of_another_library_names_the_page(beginning: bytes, form: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "steps"
    path.write_bytes(beginning)
    rule = f"/steps is {form} and not of relive: docs/guides/my_file.md tells how to read files of other libraries$"
    with pytest.raises(relive.CheckpointError, match=rule):
        inspect.kind_of(str(path))


def test_a_parquet_file_is_told_by_its_first_bytes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps"
    path.write_bytes(b"PAR1...")
    assert inspect.kind_of(str(path)) is inspect.Kind.PARQUET
    rule = r"is a Parquet file, which holds steps and no buffer: relive\.integrations\.arrow\.add_parquet adds them"
    with pytest.raises(relive.CheckpointError, match=rule):
        relive.load(path)

    monkeypatch.setattr(os, "open", posix_test.failing(errno.EACCES))
    with pytest.raises(relive.CheckpointError, match="steps cannot be read: Permission denied$"):
        inspect.kind_of(str(path))


@posix_test.PIPES
def test_a_pipe_is_not_read(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(relive.CheckpointError, match="pipe is not a regular file$"):
        inspect.kind_of(str(tmp_path / "pipe"))


def test_an_empty_directory_and_one_of_much_else_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(relive.CheckpointError, match="is empty: neither a checkpoint nor a journal$"):
        inspect.kind_of(str(tmp_path))
    for name in "abcd":
        (tmp_path / name).touch()
    with pytest.raises(relive.CheckpointError, match=r"it holds 'a', 'b', 'c', \.\.\.$"):
        inspect.kind_of(str(tmp_path))
    monkeypatch.setattr(os, "listdir", posix_test.failing(errno.EACCES))
    with pytest.raises(relive.CheckpointError, match="cannot be read: Permission denied$"):
        inspect.kind_of(str(tmp_path))


def test_the_files_of_a_journal_are_known_by_name() -> None:
    for name, is_segment in [
        (f"segment-{7:020}.relive", True), (f"segment-{7:020}.relive.new", True),
        (f"segment-{7:020}.relive.damaged", True), (f"segment-{7:020}.relive.2.damaged", True),
        ("segment-7.relive", False), ("notes.damaged", False),
    ]:  # fmt: skip
        assert inspect.is_of_journal(name) == is_segment


def test_older_checkpoints_are_found_until_a_number_is_missing(saved: pathlib.Path) -> None:
    buffer = examples.prioritized()
    for _ in range(3):
        buffer.save(saved, keep=3)
    assert checkpoint.kept(str(saved)) == [f"{saved}.1", f"{saved}.2"]
    buffer.save(f"{saved}.2.1")
    assert checkpoint.kept(f"{saved}.2") == []
