"""`relive inspect` as a user meets it: what is printed, what is written, and the exit code."""

from collections.abc import Callable
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
from relive.cli import command_line
from relive.cli import saved_examples_test as examples
from relive.persistence import archive_test
from relive.persistence import checkpoint
from relive.persistence import inspect_test

MAKERS: dict[str, Callable[[], Any]] = inspect_test.MAKERS | {"learner's queue": examples.queued}


@pytest.fixture(autouse=True)
def _saved(_elsewhere: None) -> None:
    examples.prioritized().save("buffer")


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the lines of a table, each with single spaces."""
    assert command_line.main(["inspect", *arguments]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_tables_show_the_contents_of_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["inspect", "buffer"]) == 0
    shown = capsys.readouterr()
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    for line in (
        os.path.abspath("buffer"),
        "class PrioritizedReplayBuffer",
        "health nothing is broken",
        "schema observation uint8 [12, 12], action int64, reward float64",
    ):
        assert line in lines
    for words in ("size 60, ", "terminated episodes 5, ", "sampled 32, ", "max policy lag —", "limiter=MinSize(n=1)"):
        assert words in shown.out
    assert "rows.observation.npy" not in shown.out
    assert "rows.observation.npy uint8 [60, 12, 12], 8.6 KiB" in inspected(capsys, "buffer", "--files")
    assert shown.err == ""
    assert "\x1b" not in shown.out


def test_inspect_prints_only_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["inspect", "buffer", "--json"]) == 0
    shown = capsys.readouterr()
    said = json.loads(shown.out)
    assert (said, shown.err) == (relive.summary("buffer"), "")


def test_a_broken_file_is_reported_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    path = pathlib.Path("a" * 80, "b" * 80, "buffer")
    path.parent.mkdir(parents=True)
    os.rename("buffer", path)
    archive_test.change_byte(path, "barred.npy", 150)
    assert command_line.main(["inspect", str(path)]) == 1
    out = capsys.readouterr().out
    (fault,) = checkpoint.faults(str(path.absolute()))
    assert fault.startswith(f"{path.absolute()}/barred.npy was changed: ")
    assert out.splitlines()[0] == str(path.absolute())
    assert fault in out
    assert "health" not in out
    assert command_line.main(["inspect", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == [fault]


@pytest.mark.parametrize("name", MAKERS)
def test_a_checkpoint_of_every_class_is_inspected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = MAKERS[name]()
    made.save("every")
    words = type(made).__name__
    lines = inspected(capsys, "every")
    assert {"kind checkpoint", f"class {words}", "health nothing is broken"} <= set(lines)
    assert command_line.main(["verify", "every"]) == 0
    assert f", which loads <{words} " in capsys.readouterr().out
    for command in ("inspect", "verify"):
        assert command_line.main([command, "every", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == "checkpoint"


def test_memory_maps_and_parquet_files_are_inspected(capsys: pytest.CaptureFixture[str]) -> None:
    schema = relive.Schema(relive.Field((), "int64"), relive.Field((), "int64"))
    relive.MemmapStorage("map", schema, 10).close()
    arrow = pytest.importorskip("relive.integrations.arrow", exc_type=ImportError)
    arrow.write_parquet(examples.prioritized(), "steps.parquet")
    for path, kind in (("map", "memory map"), ("steps.parquet", "Parquet file")):
        lines = inspected(capsys, path)
        assert {f"kind {kind}", "class unknown", "health nothing is broken"} <= set(lines)
        assert command_line.main(["verify", path]) == 0
        assert f"{path} is whole: a {kind}, whose rows were not read" in capsys.readouterr().out


def items() -> relive.ItemReplayBuffer:
    buffer = relive.ItemReplayBuffer(100, "sequences", seed=0)
    buffer.add({"x": np.arange(10), "seq_lens": [3, 7]})
    return buffer


SHOWN: dict[str, tuple[Callable[[pathlib.Path], object], list[str]]] = {
    "a journal": (examples.journal, ["kind journal", "records .* in .* segments?", "counts size 30, .*"]),
    "episodes": (
        lambda path: examples.episodes().save(path),
        ["counts .*completed 1, .*total transitions 7, .*open ages .*"],
    ),
    "items": (lambda path: items().save(path), ["counts .*items 2, .*timesteps 10, .*"]),
    "a state of no buffer": (
        lambda path: checkpoint.save({"class": "Mine", "arrays": {"notes": np.arange(4)}}, path),
        ["class Mine", r"notes.npy int64 \[4\], 160 B"],
    ),
}


@pytest.mark.parametrize(("save", "shown"), SHOWN.values(), ids=SHOWN.keys())
def test_tables_show_what_is_there(save: Any, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    save(pathlib.Path("here"))
    lines = inspected(capsys, "here", "--files")
    for line in shown:
        assert any(re.fullmatch(line, each) for each in lines), line
    assert any(line.startswith("counts ") for line in lines) == ("class Mine" not in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bufer"], "{}/bufer does not exist"),
        (["letter"], "{}/letter is not a checkpoint"),
        (["."], "{} is neither a checkpoint nor a journal: it holds '.buffer.lock', 'buffer', 'letter'"),
        ([""], "PATH must be the path of a file or a directory, got ''"),
    ],
)
def test_a_failed_inspection_prints_one_line_and_exits_with_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("letter").write_text("a letter")
    assert command_line.main(["inspect", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.err == "relive inspect: " + message.replace("{}", os.getcwd()) + "\n"
    assert shown.out == ""


def test_a_newer_format_version_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    place = pathlib.Path("buffer")
    place.write_bytes(place.read_bytes().replace(b'"version": 2,', b'"version": 3,'))
    for command in ("inspect", "verify"):
        assert command_line.main([command, "buffer"]) == 1
        assert "buffer is of format version 3, and this relive reads 2: update relive" in capsys.readouterr().err


def test_text_from_a_file_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"[red]x[/red]": "\x1b[2J\x07", "long": "x" * 10_000, "\x1b]0;owned\x07": [1, "\r"]}
    examples.forge(pathlib.Path("buffer"), settings=settings | {"capacity": 100}, **{"class": "\x1b[31m[bold]Mine"})
    assert command_line.main(["inspect", "buffer"]) == 0
    out = capsys.readouterr().out
    assert "[red]x[/red]" in out
    assert "'\\x1b[31m[bold]Mine'" in out
    assert out.replace("\n", "").isprintable()
    assert len(out) < 20_000


def test_inspect_shows_why_a_buffer_is_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    examples.forge(pathlib.Path("buffer"), **{"class": "Mine"})
    note = "note not loaded: it is of a 'Mine', a class that is not defined here: import its module"
    assert note in inspected(capsys, "buffer")


@pytest.mark.parametrize("command", ["verify", "inspect --json"])
def test_numpy_alone_is_enough(command: str) -> None:
    script = (
        "import sys; sys.modules['rich'] = None; "
        "from relive.cli import command_line; sys.exit(command_line.main(sys.argv[1:]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, *command.split(), "buffer"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
