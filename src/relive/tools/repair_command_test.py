"""`relive repair`: what a crash left is put in order, and nothing that is worth something goes."""

import os
import pathlib
import shutil

import pytest

import relive
from relive.persistence import files
from relive.persistence import journal_reader
from relive.tools import cli
from relive.tools import saved_examples_test as examples


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def repaired(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], list[str]]:
    """Return the exit code, the lines printed, and the errors without their beginning."""
    code = cli.main(["repair", *arguments])
    shown = capsys.readouterr()
    place = f"{os.getcwd()}/"
    errors = [line.removeprefix("relive repair: ") for line in shown.err.replace(place, "").splitlines()]
    return code, shown.out.replace(place, "").splitlines(), errors


def save(path: str, steps: int = 60, keep: int = 1) -> None:
    """Save a buffer of so many steps."""
    examples.prioritized(steps).save(path, keep=keep)


def steps(path: str) -> int:
    """Return how many steps are in a checkpoint."""
    return len(relive.PrioritizedReplayBuffer.load(path))


def test_what_is_whole_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    save("buffer")
    assert repaired(capsys, "buffer") == (0, ["buffer is whole: nothing to repair"], [])


def test_what_was_never_completed_is_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    save("buffer")
    os.mkdir(".buffer.new")
    pathlib.Path(".buffer.new/rows.reward.npy").touch()
    shutil.copytree("buffer", ".buffer.old")
    assert repaired(capsys, "buffer") == (
        0,
        [
            "deleted .buffer.new, which was never completed",
            "deleted .buffer.old, which was being deleted",
            "buffer is whole",
        ],
        [],
    )
    assert repaired(capsys, "buffer")[1] == ["buffer is whole: nothing to repair"]


def test_a_checkpoint_gets_its_name_back(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (40, 50, 60):
        save("buffer", number, keep=3)
    shutil.rmtree("buffer")
    assert repaired(capsys, "buffer") == (
        0,
        ["renamed buffer.1 to buffer", "renamed buffer.2 to buffer.1", "buffer is whole"],
        [],
    )
    assert (steps("buffer"), steps("buffer.1")) == (50, 40)
    assert not os.path.exists("buffer.2")
    assert repaired(capsys, "buffer")[1] == ["buffer is whole: nothing to repair"]


def test_a_first_checkpoint_that_lacks_its_name_alone_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    save("other")
    shutil.move("other", ".buffer.new")
    assert repaired(capsys, "buffer")[1] == ["renamed .buffer.new to buffer", "buffer is whole"]
    assert steps("buffer") == 60


def test_a_first_checkpoint_that_was_never_completed_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkdir(".buffer.new")
    code, out, errors = repaired(capsys, "buffer")
    assert (code, out, errors) == (1, [], ["buffer does not exist, and .buffer.new was never completed"])
    assert os.path.exists(".buffer.new")


def test_of_a_damaged_checkpoint_nothing_goes_and_a_whole_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (40, 50, 60):
        save("buffer", number, keep=3)
    os.mkdir(".buffer.new")
    for path in ("buffer", "buffer.1"):
        os.unlink(f"{path}/barred.npy")
    code, out, errors = repaired(capsys, "buffer")
    assert (code, out) == (1, [])
    assert errors == ["buffer/barred.npy is missing", "buffer is left as it is, but buffer.2 is whole: load that"]
    assert os.path.exists(".buffer.new")
    os.unlink("buffer.2/barred.npy")
    assert repaired(capsys, "buffer")[2][1] == "buffer is left as it is: nothing beside it is whole"
    save("other")
    os.rmdir(".buffer.new")
    shutil.move("other", ".buffer.new")
    assert repaired(capsys, "buffer")[2][1] == "buffer is left as it is, but .buffer.new is whole: load that"


def test_one_in_use_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    save("buffer")
    with files.locked("buffer"):
        code, _, (error,) = repaired(capsys, "buffer")
    assert code == 1
    assert error.startswith("buffer is in use by this process")


def test_what_is_not_ours_is_not_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    save("buffer")
    os.mkdir(".buffer.new")
    pathlib.Path(".buffer.new/thesis.tex").touch()
    code, _, (error,) = repaired(capsys, "buffer")
    assert (code, error) == (1, ".buffer.new holds 'thesis.tex', which is not ours: move it away")


def test_a_missing_path_leaves_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert repaired(capsys, "buffer") == (1, [], ["buffer does not exist"])
    assert os.listdir() == []


def test_a_checkpoint_that_was_saved_by_a_name_with_a_number_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    save("buffer.1")
    assert repaired(capsys, "buffer") == (1, [], ["buffer does not exist"])
    assert steps("buffer.1") == 60


def test_what_the_system_refuses_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save("buffer")
    shutil.move("buffer", "buffer.1")

    def refuse(source: str, target: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    assert repaired(capsys, "buffer") == (1, [], ["buffer cannot be repaired: Permission denied"])


def test_a_torn_journal_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    examples.journal(pathlib.Path("journal"))
    last = examples.segments(pathlib.Path("journal"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole + b"torn")
    count = journal_reader.examine("journal").num_records
    assert repaired(capsys, "journal") == (0, [f"journal: cut 4 bytes of a torn record; {count} records are whole"], [])
    assert last.read_bytes() == whole
    assert repaired(capsys, "journal")[1] == [f"journal: nothing to repair, {count} records are whole"]


def test_a_damaged_journal_loses_nothing_until_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    examples.journal(pathlib.Path("journal"))
    first = examples.segments(pathlib.Path("journal"))[0]
    examples.change_byte(first, len(first.read_bytes()) - 10)
    before = {path.name: path.read_bytes() for path in pathlib.Path("journal").iterdir()}
    code, out, (error,) = repaired(capsys, "journal")
    count = journal_reader.examine("journal").num_records
    assert (code, out) == (1, [])
    assert "is damaged at byte" in error
    kept = f"keeps the {count} records before it, and sets the rest aside"
    assert error.endswith(f": relive repair --drop-damaged journal {kept}")
    assert {path.name: path.read_bytes() for path in pathlib.Path("journal").iterdir()} == before
    code, (damage, done), errors = repaired(capsys, "--drop-damaged", "journal")
    assert (code, errors) == (0, [])
    assert "is damaged at byte" in damage
    assert done.startswith(
        f"journal now ends before that, with {count} records; set aside in it: {first.name}.damaged, "
    )
    assert repaired(capsys, "journal")[1] == [f"journal: nothing to repair, {count} records are whole"]
    assert cli.main(["verify", "journal"]) == 0
