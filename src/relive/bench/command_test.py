"""`relive bench` as a user meets it."""

from collections.abc import Mapping, Sequence
import importlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from typing import Any, NoReturn
from unittest import mock

import pytest

import relive
from relive.bench import machine
from relive.bench import report
from relive.bench import results
from relive.bench import runner
from relive.bench import workloads

# The benchmarks must not import the command line.
command_line = importlib.import_module("relive.cli.command_line")


@pytest.fixture(autouse=True)
def _pinned(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in machine.ONE_THREAD.items():
        monkeypatch.setenv(name, value)


def exit_code(*arguments: str) -> int:
    """Return the exit code, also where argparse leaves by SystemExit."""
    try:
        with mock.patch.object(sys, "argv", ["relive", "bench", *arguments]):
            return int(command_line.main())
    except SystemExit as leaving:
        return int(str(leaving.code))


def test_a_quick_run_prints_and_writes_everything(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workload that is drawn, those that begin with a word, and one of draws."""
    (tmp_path / "docs").mkdir()
    files = ("--json", "b.json", "--markdown", "docs/b.md", "--plot", "b.png")
    assert exit_code("--quick", "--workload", "n-step", "add", "uniform-17", "--peers", "relive", "take", *files) == 0
    out = capsys.readouterr().out
    assert re.search(r"^add: .*microseconds a step$", out, re.MULTILINE)
    assert re.search(r"^relive +[\d.]+ +[\d.]+ to [\d.,]+ +1\.00  right *$", out, re.MULTILINE)
    assert re.search(r"^uniform-17: .*microseconds a batch$", out, re.MULTILINE)
    written = json.loads((tmp_path / "b.json").read_text())
    assert [one["workload"] for one in written["rows"]] == ["uniform-17", "n-step", "n-step-32", "add", "add-images"]
    given = "relive bench --quick --workload n-step add uniform-17 --peers relive take " + " ".join(files)
    assert written["command"] == given
    page = (tmp_path / "docs" / "b.md").read_text(encoding="utf-8")
    assert given in page.replace(" \\\n  ", " ")
    assert "](../b.png)" in page
    assert "</details>" in page
    assert (tmp_path / "b.png").stat().st_size > 1_000


def test_a_run_prints_only_its_table_by_default(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--repeats", "1", "--workload", "add-images", "--peers", "relive", "--markdown", "b.md"]
    assert exit_code(*arguments) == 0
    assert capsys.readouterr().out.count("\n") == 5
    assert "![" not in (tmp_path / "b.md").read_text()


def test_every_name_can_be_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--list") == 0
    out = capsys.readouterr().out
    for name in ("prioritized-10m", "relive-numba", "relive-episodes", "cpprb", "a limit: a plain copy"):
        assert name in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "unifrom"], "--workload must be one of add, .*, uniform-32, or their first word, got unifrom"),
        (["--workload", "add", "ad"], "--workload must be one of .*, got ad"),
        (["--peers", "sb4"], "--peers must be one of copy, .*, torchrl, got sb4"),
        (["--repeats", "0"], "argument --repeats: must be an integer of at least 1, got '0'"),
    ],
)
def test_a_mistyped_name_lists_the_choices_and_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    assert re.fullmatch(f"relive bench: {message}" + r" \(see relive bench --help\)\n", capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--json", "--markdown", "--plot"])
@pytest.mark.parametrize("path", ["nowhere/file", ".", "n" * 300, ""])
def test_an_impossible_path_is_refused_before_measuring(
    option: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(option, path) == 1
    message = f"relive bench: {option} must be a file that can be written, got {path}: "
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize("library", ["matplotlib", "psutil"])
def test_the_bench_without_its_extra_is_refused_in_one_line(library: str) -> None:
    script = (
        f"import sys; sys.modules['{library}'] = None; from relive.cli.command_line import main; exit(main(['bench']))"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    message = f'relive bench: {library} is not installed: it comes with the extra "bench" of relive\n'
    assert (ended.returncode, ended.stderr) == (1, message)


def test_threads_are_held_to_one_by_starting_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Sequence[str], Mapping[str, str]]] = []

    class StartedError(Exception):
        pass

    def execve(path: str, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        started.append((arguments, environment))
        raise StartedError

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "relive", "bench"])
    with pytest.raises(StartedError):
        exit_code("--workload", "add")
    [(arguments, environment)] = started
    assert arguments == [sys.executable, "-m", "relive", "bench"]
    assert machine.ONE_THREAD.items() <= environment.items()


def test_a_name_is_printed_before_its_workload_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    measure = runner.measure

    def measuring(*arguments: Any, **settings: Any) -> Any:
        seen.append(capsys.readouterr().out)
        return measure(*arguments, **settings)

    monkeypatch.setattr(runner, "measure", measuring)
    assert exit_code("--quick", "--repeats", "1", "--workload", "add", "--peers", "relive") == 0
    assert seen[0].startswith("\nadd: adding a step")
    assert "right" in seen[1]
    assert "\nadd-images: " in seen[1]


@pytest.mark.parametrize(
    ("arguments", "rounds", "seconds", "capacity", "words"),
    [
        ([], 7, 0.01, 10**6, "Medians of 7 rounds, turns of 10 milliseconds at least"),
        (["--repeats", "9"], 9, 0.01, 10**6, "Medians of 9 rounds, turns of 10 milliseconds at least"),
        (["--quick"], 3, 0.001, 2_000, "Medians of 3 rounds, turns of 1 milliseconds at least, small rings "
         "(--quick): these figures say nothing about speed"),
    ],
)  # fmt: skip
def test_a_quick_run_is_shorter_and_says_so(
    arguments: list[str],
    rounds: int,
    seconds: float,
    capacity: int,
    words: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def measure(workload: workloads.Workload, peers: object, **settings: float) -> results.Row:
        asked.append((settings, workload.task.capacity))
        return results.Row(workload.name, workload.title, workload.unit, [])

    monkeypatch.setattr(runner, "measure", measure)
    assert exit_code("--workload", "uniform-17", "--json", "b.json", *arguments) == 0
    assert asked == [({"rounds": rounds, "seconds": seconds}, capacity)]
    assert json.loads((tmp_path / "b.json").read_text())["settings"] == words


def test_a_table_is_as_wide_as_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    monkeypatch.setattr(report, "text", lambda row, width: widths.append(width))
    monkeypatch.setattr(runner, "measure", lambda one, *_, **__: results.Row(one.name, one.title, one.unit, []))
    monkeypatch.setenv("COLUMNS", "60")
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        assert exit_code("--quick", "--repeats", "1", "--workload", "uniform-17", "--peers", "relive") == 0
    assert widths == [60, 1_000]


def test_missing_peers_are_named_once_with_what_installs_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("cpprb", "ray"):
        monkeypatch.setitem(sys.modules, library, None)
    assert (
        exit_code("--quick", "--repeats", "1", "--workload", "uniform-32", "--peers", "relive", "cpprb", "rllib") == 0
    )
    end = "not measured: cpprb, rllib: not installed: run pip install cpprb 'ray[rllib]'\n"
    out = capsys.readouterr().out
    assert out.endswith(end)
    assert out.count("not installed") == 1


def test_the_processor_name_falls_back_to_that_of_python(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "cpuinfo"
    said.write_text("processor: 0\nmodel name\t: Fast 9000\n")
    monkeypatch.setattr(machine, "_CPU", said)
    assert machine.facts()["processor"] == "Fast 9000"
    said.write_text("processor: 0\n")
    assert machine.facts()["processor"] == (platform.processor() or platform.machine())
    said.unlink()
    assert machine.facts()["processor"] == (platform.processor() or platform.machine())


def test_the_version_names_the_commit_where_there_is_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relive, "__file__", str(tmp_path / "__init__.py"))
    assert machine.facts()["relive"] == relive.__version__
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for line in ("init --quiet", "commit --quiet --allow-empty --message=empty"):
        subprocess.run([*git, *line.split()], check=True)
    assert machine.facts()["relive"] == relive.__version__  # The package is in no commit.
    (tmp_path / "__init__.py").touch()
    for line in ("add __init__.py", "commit --quiet --message=package"):
        subprocess.run([*git, *line.split()], check=True)
    assert re.fullmatch(re.escape(relive.__version__) + " at commit [0-9a-f]{7,}", machine.facts()["relive"])
    monkeypatch.setenv("PATH", "")
    assert machine.facts()["relive"] == relive.__version__


def test_torch_is_held_to_one_thread_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        threads = 2

        def set_num_threads(self, number: int) -> None:
            self.threads = number

    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    machine.hold_torch()
    assert torch.threads == 1
    monkeypatch.setitem(sys.modules, "torch", None)
    machine.hold_torch()


def test_output_of_libraries_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    with machine.silence():
        sys.stdout.write("from a library")
        sys.stderr.write("from a library")
    sys.stdout.write("from us")
    assert capsys.readouterr() == ("from us", "")
