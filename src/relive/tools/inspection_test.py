"""What is said of checkpoints and journals, whole and broken."""

import gc
import json
import pathlib

import numpy as np
import pytest

import relive
from relive.persistence import inspect
from relive.persistence import journal as journal_lib
from relive.tools import inspection
from relive.tools import saved_examples_test as examples


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    examples.prioritized().save(tmp_path / "buffer")
    return tmp_path / "buffer"


@pytest.fixture
def journal(tmp_path: pathlib.Path) -> pathlib.Path:
    examples.journal(tmp_path / "journal")
    return tmp_path / "journal"


def test_a_checkpoint_is_what_was_saved(saved: pathlib.Path) -> None:
    found = inspection.of(str(saved), num_frames=2)
    assert (found.path, found.kind.value) == (str(saved), "checkpoint")
    assert (found.class_name, found.generator) == ("PrioritizedReplayBuffer", "PCG64")
    assert found.settings["capacity"] == 100
    assert found.facts is not None
    assert found.facts.sizes == {"rows": 60, "capacity": 100, "episodes": 6}
    assert (found.faults, found.notes, len(found.frames)) == ([], [], 2)
    sizes = {path.name: path.stat().st_size for path in saved.glob("*.npy")}
    assert {file.name: file.nbytes for file in found.files} == sizes
    assert found.nbytes == sum(sizes.values())


def test_all_of_it_is_json(saved: pathlib.Path) -> None:
    said = json.loads(json.dumps(inspection.of(str(saved)).as_json(), allow_nan=False))
    assert said["class"] == "PrioritizedReplayBuffer"
    assert said["episodes"] == {"terminated": 5, "truncated": 1, "open": 0, "spliced": 0}
    assert said["distributions"]["episode_lengths"] == {
        "count": 6,
        "not_finite": 0,
        "min": 10.0,
        "q1": 10.0,
        "median": 10.0,
        "q3": 10.0,
        "max": 10.0,
        "mean": 10.0,
    }
    assert said["counters"]["sampled"] == 32
    assert said["faults"] == []
    assert {"name": "rows.reward.npy", "nbytes": 608, "dtype": "float64", "shape": [60]} in said["files"]


def test_a_broken_checkpoint_says_what_its_manifest_does_and_what_is_broken(saved: pathlib.Path) -> None:
    examples.change_byte(saved / "rows.reward.npy", 300)
    (saved / "barred.npy").unlink()
    found = inspection.of(str(saved), num_frames=2)
    assert found.class_name == "PrioritizedReplayBuffer"
    assert (found.facts, found.frames, len(found.faults), len(found.files)) == (None, [], 2, 15)
    assert found.as_json()["faults"] == found.faults
    examples.change_byte(saved / "manifest.json", 100)
    with pytest.raises(relive.CheckpointError, match="manifest.json was changed or cut"):
        inspection.of(str(saved))


def test_progress_is_heard(saved: pathlib.Path) -> None:
    heard: list[tuple[int, int]] = []
    inspection.of(str(saved), progress=lambda done, total: heard.append((done, total)))
    assert heard[-1][0] == heard[-1][1] > 0


def test_forged_values_are_faults_or_left_out(saved: pathlib.Path) -> None:
    examples.forge(saved, settings=3, generator={"bit_generator": 3}, counters=[], **{"class": ["x"]})
    found = inspection.of(str(saved))
    assert (found.class_name, found.generator, found.settings, found.facts) == (None, None, {}, None)
    (fault,) = found.faults
    assert fault == f"{saved}: settings must be a mapping, got 3"


def test_what_a_crash_left_is_read_and_said(saved: pathlib.Path) -> None:
    examples.prioritized().save(saved, keep=2)
    assert inspection.of(str(saved)).notes == [f"older ones: {saved}.1"]
    (saved.parent / "elsewhere").mkdir()
    saved.rename(saved.parent / "elsewhere" / "buffer")
    found = inspection.of(str(saved))
    assert found.notes == [f"read from {saved}.1, as a crash left it"]
    assert found.faults == []


def test_structured_columns_and_dict_observations_are_described(tmp_path: pathlib.Path) -> None:
    kind = np.dtype([("x", np.float32), ("y", np.int64)])
    schema = relive.Schema({"pose": relive.Field((), kind)}, relive.Field((), np.int64))
    buffer = relive.RingReplayBuffer(10, schema, seed=0)
    buffer.save(tmp_path / "buffer")
    (file,) = [file for file in inspection.of(str(tmp_path / "buffer")).files if "rows.observation" in file.name]
    assert file.dtype == "structured"


def test_a_journal_is_the_buffer_that_it_rebuilds(journal: pathlib.Path) -> None:
    before = {path.name: path.read_bytes() for path in journal.iterdir()}
    found = inspection.of(str(journal))
    assert (found.kind, found.class_name) == (inspect.Kind.JOURNAL, "RingReplayBuffer")
    assert found.facts is not None
    assert found.facts.sizes == {"rows": 30, "capacity": 100, "episodes": 6}
    assert found.facts.distributions["episode_returns"].kept.tolist() == [5.0] * 6
    assert found.records is not None
    assert found.records["segments"] == len(before) > 1
    assert {file.name: file.nbytes for file in found.files} == {name: len(raw) for name, raw in before.items()}
    assert {path.name: path.read_bytes() for path in journal.iterdir()} == before
    assert json.dumps(found.as_json(), allow_nan=False)


def test_a_torn_journal_is_said_and_left_as_it_is(journal: pathlib.Path) -> None:
    last = examples.segments(journal)[-1]
    torn = last.read_bytes()[:-3]
    last.write_bytes(torn)
    found = inspection.of(str(journal))
    assert (found.faults, found.facts) == ([], None)
    assert "it ends with a torn record of " in found.notes[0]
    assert last.read_bytes() == torn


def test_a_damaged_journal_says_where(journal: pathlib.Path) -> None:
    examples.change_byte(examples.segments(journal)[0], 200)
    (journal / f"segment-{9:020}.relive.damaged").touch()
    found = inspection.of(str(journal))
    assert "is damaged at byte" in found.faults[0]
    assert (found.facts, found.class_name) == (None, None)
    assert found.notes == ["1 file that a repair set aside is no part of it"]


def test_a_journal_that_is_written_to_is_not_rebuilt(tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    with journal_lib.Journal(tmp_path / "journal", fsync="never") as journal:
        buffer.attach(journal)
        found = inspection.of(str(tmp_path / "journal"))
        buffer.detach()
    assert found.facts is None
    assert "its buffer is not rebuilt here:" in found.notes[0]
    assert "is in use by this process" in found.notes[0]


@pytest.mark.parametrize(
    ("base", "message"), [(b"nonsense", "rebuilds no buffer: "), (b"N", "a base must hold a state, got None")]
)
def test_a_journal_whose_base_is_none_is_broken(tmp_path: pathlib.Path, base: bytes, message: str) -> None:
    with journal_lib.Journal(tmp_path / "journal", fsync="never") as journal:
        journal.begin(lambda: base)
    assert message in inspection.of(str(tmp_path / "journal")).faults[0]


def test_a_journal_without_a_record_has_no_buffer(tmp_path: pathlib.Path) -> None:
    (tmp_path / f"segment-{0:020}.relive.new").touch()
    found = inspection.of(str(tmp_path))
    assert (found.notes, found.faults, found.facts) == (
        ["its buffer is not rebuilt here: it holds no record"],
        [],
        None,
    )


def test_a_journal_of_a_class_of_ones_own_is_not_rebuilt(tmp_path: pathlib.Path) -> None:
    def write() -> None:
        class Missing(relive.RingReplayBuffer):
            pass

        buffer = Missing(10, seed=0)
        with journal_lib.Journal(tmp_path / "journal", fsync="never") as journal:
            buffer.attach(journal)
            buffer.detach()

    write()
    gc.collect()
    found = inspection.of(str(tmp_path / "journal"))
    assert found.notes == [
        "its buffer is not rebuilt here: it is of a 'Missing', a class that is not defined here: import its module"
    ]
    assert found.faults == []
