"""The command line as a user meets it: what is printed, and the exit code."""

import os
import re
import runpy
import signal
import subprocess
import sys

import pytest

import relive
from relive.cli import command_line
from relive.cli import saved
from relive.cli import saved_examples_test as examples
from relive.persistence import inspect

PATIENCE = 60.0


def exit_code(*arguments: str) -> int:
    """Return the exit code, also where argparse leaves by SystemExit."""
    try:
        return command_line.main(arguments)
    except SystemExit as leaving:
        return int(str(leaving.code))


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code() == exit_code("--help") == 0
    text = capsys.readouterr().out
    assert text.count("relive convert buffer.relive steps.parquet") == text.count("130 interrupted") == 2
    assert exit_code("demo", "--help") == 0
    assert "--actors" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize("command", ["", "demo", "bench", "inspect", "verify", "repair", "convert"])
def test_help_fits_the_terminal(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert exit_code(*command.split(), "--help") == 0
    lengths = [len(line) for line in capsys.readouterr().out.splitlines()]
    assert columns / 2 < max(lengths) <= columns


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_printed(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(option) == 0
    assert capsys.readouterr().out == f"relive {relive.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("benhc", "relive: there is no command 'benhc', did you mean bench?"),
        ("Inspect x", "relive: there is no command 'Inspect', did you mean inspect?"),
        ("help", "relive: there is no command 'help', only demo, bench, inspect, verify, repair, convert"),
        ("--force", "relive: there is no option '--force'"),
        ("--bench", "relive: there is no option '--bench', did you mean bench?"),
        ("-v", "relive: there is no option '-v', did you mean -V?"),
        ("--quiet demo", "relive demo: --quiet must follow the command, as in relive demo --quiet"),
        ("demo --ste 3", "relive demo: there is no option '--ste', did you mean --steps?"),
        ("demo --watch", "relive demo: there is no option '--watch'"),
        ("demo --steps=0", "relive demo: argument --steps: must be an integer of at least 1, got '0'"),
        ("demo --steps 1e5", "relive demo: argument --steps: must be an integer of at least 1, got '1e5'"),
        ("demo --actors 0", "relive demo: argument --actors: must be an integer of at least 1, got '0'"),
        ("demo --seed -1", "relive demo: argument --seed: must be an integer of at least 0, got '-1'"),
        ("demo --plot", "relive demo: argument --plot: expected one argument"),
        ("inspect", "relive inspect: the following arguments are required: PATH"),
        ("inspect a verify", "relive inspect: unrecognized arguments: verify"),
        ("inspect x --jsn", "relive inspect: there is no option '--jsn', did you mean --json?"),
        ("inspect x --JSON=3", "relive inspect: there is no option '--JSON', did you mean --json?"),
        ("inspect a --page b", "relive inspect: there is no option '--page'"),
        ("inspect a --report b", "relive inspect: there is no option '--report'"),
        ("verify", "relive verify: the following arguments are required: PATH"),
        ("repair a --drop", "relive repair: there is no option '--drop', did you mean --drop-damaged?"),
        ("convert a", "relive convert: the following arguments are required: TO"),
        (
            "convert a a.parquet --overwrit",
            "relive convert: there is no option '--overwrit', did you mean --overwrite?",
        ),
    ],
)
def test_a_mistyped_command_prints_one_line_and_exits_with_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments.split()) == 2
    prog = message.partition(":")[0]
    assert capsys.readouterr() == ("", f"{message} (see {prog} --help)\n")


def test_the_demo_gets_its_options() -> None:
    options = command_line.parser().parse_args(["demo", "--seed", "0", "--actors", "1"])
    assert (options.env, options.seed, options.steps, options.actors) == ("CartPole-v1", 0, 30_000, 1)
    assert (options.plot, options.quiet) == ("relive-demo.png", False)


def fails_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of a command that prints, and then raises."""

    def fail(options: object) -> int:
        sys.stdout.write("half a table\n")
        raise error

    monkeypatch.setattr(saved, "verify", fail)
    return exit_code("verify", "replay")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError("the tape is torn"), 1, "relive verify: the tape is torn\n"),
        (relive.ShardLostError("a shard is gone"), 1, "relive verify: a shard is gone\n"),
        (MemoryError("no 8 TiB"), 1, "relive verify: there is not enough memory: no 8 TiB\n"),
        (KeyboardInterrupt(), 130, "\nrelive verify: interrupted\n"),
    ],
)
def test_an_error_that_ends_a_command_is_one_line(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails_with(error, monkeypatch) == code
    assert capsys.readouterr() == ("half a table\n", message)


@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "convert"])
def test_ctrl_c_while_something_is_read_is_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(path: str) -> inspect.Kind:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    if command == "convert":
        pytest.importorskip("pyarrow")
    examples.prioritized().save("replay")
    monkeypatch.setattr(inspect, "kind_of", interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # In the background a shell ignores it.
    try:
        assert exit_code(command, "replay", *(["steps.parquet"] if command == "convert" else [])) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", f"\nrelive {command}: interrupted\n")
    assert "steps.parquet" not in os.listdir()


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_text_a_console_cannot_show_is_escaped(command: str) -> None:
    """Where output goes to a file, Windows writes in the encoding of its region."""
    examples.prioritized().save("λ")
    ended = subprocess.run(
        [sys.executable, "-m", "relive", command, "λ"],
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert rb"\u03bb" in ended.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this platform has no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["verify", "replay"]])
def test_a_full_disk_while_printing_is_one_line(arguments: list[str]) -> None:
    examples.prioritized().save("replay")
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "relive", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    name = "relive verify" if "verify" in arguments else "relive"
    assert (ended.returncode, ended.stderr) == (1, f"{name}: No space left on device\n")


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "replay", "--json"]])
def test_a_closed_pipe_is_not_an_error(arguments: list[str]) -> None:
    examples.prioritized().save("replay")
    process = subprocess.Popen(
        [sys.executable, "-m", "relive", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE) == 1


def test_output_to_a_closed_pipe_is_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(options: object) -> int:
        sys.stdout.write("all is well\n")
        return 0

    monkeypatch.setattr(saved, "verify", say)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", pipe)
        assert exit_code("verify", "replay") == 1
    assert capsys.readouterr() == ("", "")


def test_python_m_relive_is_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["relive", "--version"])
    with pytest.raises(SystemExit) as leaving:
        runpy.run_module("relive", run_name="__main__")
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith("relive ")


def test_importing_python_m_relive_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("relive.__main__", run_name="imported")
    assert capsys.readouterr().out == ""


def test_help_waits_for_no_library() -> None:
    script = "import sys; from relive.cli import command_line; command_line.main([]); sys.exit('numpy' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert re.search("^  relive inspect buffer", ended.stdout, re.M)
