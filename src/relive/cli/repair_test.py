"""`relive repair`: what it prints, and the exit code."""

import os
import pathlib

import pytest

from relive.cli import command_line
from relive.cli import saved_examples_test as examples
from relive.persistence import journal_reader


def repaired(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, what was printed, and the errors."""
    code = command_line.main(["repair", *arguments])
    shown = capsys.readouterr()
    place = f"{os.getcwd()}/"
    return code, shown.out.replace(place, ""), shown.err.replace(place, "")


def test_a_failed_repair_prints_one_line_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert repaired(capsys, "buffer") == (1, "", "relive repair: buffer does not exist\n")
    examples.prioritized().save("buffer")
    code, out, error = repaired(capsys, "buffer")
    assert (code, out) == (1, "")
    assert error.startswith("relive repair: buffer is a checkpoint, which needs no repair: a crash leaves the old one")


def test_a_damaged_journal_loses_nothing_without_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    examples.journal(pathlib.Path("journal"))
    first = examples.segments(pathlib.Path("journal"))[0]
    examples.change_byte(first, len(first.read_bytes()) - 10)
    before = {path.name: path.read_bytes() for path in pathlib.Path("journal").iterdir()}
    code, out, error = repaired(capsys, "journal")
    count = journal_reader.examine("journal").num_records
    assert (code, out) == (1, "")
    assert "is damaged at byte" in error
    assert error.endswith(f": repair with --drop-damaged keeps the {count} records before it\n")
    assert {path.name: path.read_bytes() for path in pathlib.Path("journal").iterdir()} == before
    code, out, error = repaired(capsys, "--drop-damaged", "journal")
    assert (code, error) == (0, "")
    assert out.startswith(f"journal: {count} whole records: journal/{first.name} is damaged at byte ")
    assert f"; set aside as {first.name}.damaged, " in out
    assert repaired(capsys, "journal") == (0, f"journal: {count} whole records: nothing to repair\n", "")
    assert command_line.main(["verify", "journal"]) == 0
