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
from typing import NoReturn

import pytest

from relive.bench import machine

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
        return int(command_line.main(["bench", *arguments]))
    except SystemExit as leaving:
        return int(str(leaving.code))


def test_a_quick_run_prints_and_writes_everything(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workload that is drawn, those of a family, and one of draws."""
    (tmp_path / "docs").mkdir()
    files = ("--json", "b.json", "--markdown", "docs/b.md", "--plot", "b.png")
    assert exit_code("--quick", "--workload", "n-step", "add", "uniform-17", "--peers", "relive", "take", *files) == 0
    out = capsys.readouterr().out
    assert re.search(r"^add: .*microseconds a step$", out, re.MULTILINE)
    assert re.search(r"^relive +[\d.]+ +[\d.]+ to [\d.,]+ +1\.00  right *$", out, re.MULTILINE)
    assert re.search(r"^uniform-17: .*microseconds a batch$", out, re.MULTILINE)
    written = json.loads((tmp_path / "b.json").read_text())
    assert [one["workload"] for one in written["workloads"]] == ["uniform-17", "n-step", "add", "add-images"]
    given = "relive bench --workload n-step add uniform-17 --peers relive take --quick " + " ".join(files)
    assert written["command"] == given
    page = (tmp_path / "docs" / "b.md").read_text(encoding="utf-8")
    assert given in page
    assert "](../b.png)" in page
    assert "</details>" in page
    assert (tmp_path / "b.png").stat().st_size > 1_000


def test_a_run_prints_only_its_table_by_default(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--repeats", "1", "--workload", "add-images", "--peers", "relive", "--markdown", "b.md"]
    assert exit_code(*arguments) == 0
    assert capsys.readouterr().out.count("\n") == 4
    assert "![" not in (tmp_path / "b.md").read_text()


def test_every_name_can_be_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--list") == 0
    out = capsys.readouterr().out
    for name in (
        "prioritized:",
        "prioritized-10m",
        "relive-numba",
        "relive-episodes",
        "cpprb",
        "a limit: a plain copy",
    ):
        assert name in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "unifrom"], "relive bench: --workload must be one of add, .*, uniform-17, got unifrom"),
        (["--peers", "sb4"], "relive bench: --peers must be one of copy, .*, torchrl, got sb4"),
        (["--repeats", "0"], "relive bench: argument --repeats: must be an integer of at least 1, got '0'"),
    ],
)
def test_a_mistyped_name_lists_the_choices_and_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    assert re.fullmatch(message + r" \(see relive bench --help\)\n", capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--json", "--markdown", "--plot"])
@pytest.mark.parametrize("path", ["nowhere/file", "."])
def test_an_impossible_path_is_refused_before_measuring(
    option: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(option, path) == 1
    message = f"relive bench: {option} must be a file in a directory that exists, got {path}\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(("option", "workload"), [("--json", "add"), ("--plot", "n-step")])
def test_a_file_that_cannot_be_written_is_reported(
    option: str, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "n" * 300
    arguments = ["--quick", "--repeats", "1", "--workload", workload, "--peers", "relive", option, long]
    assert exit_code(*arguments) == 1
    assert capsys.readouterr().err == f"relive bench: {option} could not be written to {long}: File name too long\n"


@pytest.mark.parametrize("library", ["matplotlib", "psutil", "rich"])
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
    with pytest.raises(StartedError):
        command_line.main(["bench", "--repeats", "9", "--workload", "add", "--quick", "--json", "b.json"])
    [(arguments, environment)] = started
    assert arguments[1:] == [
        "-m", "relive", "bench", "--workload", "add", "--repeats", "9", "--quick", "--json", "b.json",
    ]  # fmt: skip
    assert machine.ONE_THREAD.items() <= environment.items()


def test_a_terminal_shows_the_progress_of_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    arguments = ["--quick", "--repeats", "1", "--workload", "uniform", "--peers", "relive"]
    assert exit_code(*arguments) == 0
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert exit_code(*arguments) == 0
    out, err = capsys.readouterr()
    assert "uniform: filling relive" in err
    assert "\x1b" not in out


@pytest.mark.parametrize("columns", ["60", "120"])
def test_a_table_fits_a_terminal(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": columns}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert exit_code("--quick", "--repeats", "1", "--workload", "uniform", "--peers", "relive") == 0
    lines = re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert any(re.match(r"relive .* right", line) for line in lines)


def test_a_picture_without_workloads_is_refused_before_measuring(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("--workload", "add", "--plot", "b.png") == 1
    message = "--plot needs one of the workloads uniform, n-step, prioritized-1m, loop, got add, add-images"
    assert capsys.readouterr() == ("", f"relive bench: {message}\n")
    assert not list(tmp_path.iterdir())


def test_a_picture_without_peers_is_refused_after_the_results(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--json", "b.json", "--plot", "b.png")
    assert exit_code("--quick", "--workload", "loop", "--peers", "naive", *files) == 1
    assert capsys.readouterr().err.startswith("relive bench: --plot needs a peer that was measured in uniform, ")
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


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


def test_output_of_libraries_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    with machine.silence():
        os.write(1, b"from C")
        sys.stderr.write("from Python")
    sys.stdout.write("from us")
    sys.stdout.flush()
    assert capfd.readouterr() == ("from us", "")
