"""The command line as a user meets it: what is printed, and the exit code."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import time

import pytest

import relive
from relive import cli
from relive.cli import command_line
from relive.cli import demo
from relive.cli import display
from relive.cli import memory_task

PNG = b"\x89PNG\r\n\x1a\n"
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A shell starts what runs in its background with interrupts ignored, these tests too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def exit_code(*arguments: str) -> int:
    """Return the exit code, also where argparse leaves by SystemExit."""
    try:
        return command_line.main(arguments)
    except SystemExit as leaving:
        return int(str(leaving.code))


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code() == 0
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    assert text.count("relive convert replay steps.parquet") == 2
    assert exit_code("demo", "--help") == 0
    assert "--actors" in capsys.readouterr().out


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"relive {relive.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["dmeo"],
            r"relive: argument COMMAND: invalid choice: 'dmeo' \(choose from '?demo'?, '?bench'?, .*\) \(see .*\)",
        ),
        (["demo", "--ste", "3"], r"relive demo: unrecognized arguments: --ste 3 \(see relive demo --help\)"),
        (["demo", "--sed", "3"], r"relive demo: unrecognized arguments: --sed 3 \(see relive demo --help\)"),
        (
            ["demo", "--steps", "0"],
            r"relive demo: argument --steps: must be at least 1, got 0 \(see relive demo --help\)",
        ),
        (["demo", "--steps", "1e5"], r"relive demo: argument --steps: must be an integer, got '1e5' \(see .*\)"),
        (["demo", "--actors", "0"], r"relive demo: argument --actors: must be at least 1, got 0 \(see .*\)"),
        (["demo", "--seed", "-1"], r"relive demo: argument --seed: must be at least 0, got -1 \(see .*\)"),
        (
            ["demo", "--buffer", "sequenze"],
            r"relive demo: argument --buffer: invalid choice: 'sequenze' \(choose from .*\) \(see .*\)",
        ),
        (
            ["demo", "--buffer", "sequence", "--env", "CartPole-v1"],
            r"relive demo: argument --env: not allowed with --buffer sequence \(see relive demo --help\)",
        ),
        (
            ["demo", "--buffer", "sequence", "--actors", "8"],
            r"relive demo: argument --actors: not allowed with --buffer sequence \(see relive demo --help\)",
        ),
        (
            ["demo", "--actors", "2", "--buffer", "prioritized"],
            r"relive demo: argument --actors: not allowed with --buffer prioritized \(see relive demo --help\)",
        ),
        (
            ["demo", "--watch", "--quiet"],
            r"relive demo: argument --quiet: not allowed with argument --watch \(see relive demo --help\)",
        ),
        (["demo", "--plot"], r"relive demo: argument --plot: expected one argument \(see .*\)"),
        (["inspect"], r"relive inspect: the following arguments are required: PATH \(see relive inspect --help\)"),
        (["inspect", "a", "b"], r"relive inspect: unrecognized arguments: b \(see relive inspect --help\)"),
        (
            ["inspect", "a", "--html", "b"],
            r"relive inspect: unrecognized arguments: --html b \(see relive inspect --help\)",
        ),
        (["inspect", "a", "--report"], r"relive inspect: argument --report: expected one argument \(see .*\)"),
        (["verify"], r"relive verify: the following arguments are required: PATH \(see .*\)"),
        (["verify", "a", "--html"], r"relive verify: unrecognized arguments: --html \(see relive verify --help\)"),
        (["repair", "a", "--drop"], r"relive repair: unrecognized arguments: --drop \(see relive repair --help\)"),
        (["convert", "a"], r"relive convert: the following arguments are required: TO \(see .*\)"),
        (
            ["convert", "a", "a.parquet", "--over"],
            r"relive convert: unrecognized arguments: --over \(see relive convert --help\)",
        ),
    ],
)
def test_a_mistyped_command_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    shown = capsys.readouterr()
    assert re.fullmatch(message + "\n", shown.err), shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPol-v1"], "cannot make environment 'CartPol-v1': .*doesn't exist.*"),
        (["--env", "no_such_module:Thing-v0"], "cannot make environment 'no_such_module:Thing-v0': .*"),
        (["--env", "Pendulum-v1"], r"the actions of Pendulum-v1 must be Discrete for Q-learning, got Box\(.*\)"),
        (
            ["--env", "FrozenLake-v1"],
            r"the observations of FrozenLake-v1 must be a Box of one axis, got Discrete\(16\)",
        ),
        (["--plot", "nowhere/curve.png"], "--plot must be a file in a directory that exists, got nowhere/curve.png"),
        (["--plot", "."], r"--plot must be a file in a directory that exists, got \."),
    ],
)
def test_what_cannot_be_learned_is_one_line_and_exit_code_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("demo", *arguments) == 1
    shown = capsys.readouterr()
    assert re.fullmatch(f"relive demo: {message}\n", shown.err), shown.err
    assert shown.out == ""


def test_an_option_without_a_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--over") == 2
    assert capsys.readouterr() == ("", "relive: unrecognized arguments: --over (see relive --help)\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this platform has no /dev/full")
def test_a_full_disk_for_what_is_printed_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "relive", "bench", "--list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "relive bench: No space left on device\n")


def test_an_error_of_the_system_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: object) -> int:
        sys.stdout.write("half a table\n")
        raise OSError("the tape is torn")

    monkeypatch.setattr(demo, "run", fail)
    assert exit_code("demo") == 1
    assert capsys.readouterr() == ("half a table\n", "relive demo: the tape is torn\n")


def test_a_file_that_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="^--plot must be a file that can be written, got curve.png$"):
        demo.check_plot_path("curve.png")


@pytest.mark.parametrize(
    ("name", "needed_by"), [("gymnasium", "environments"), ("matplotlib", "curve"), ("rich", "watch")]
)
def test_a_missing_library_is_one_line_that_names_the_extra(
    name: str, needed_by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    for module in ("demo", needed_by):  # Import them anew.
        monkeypatch.delitem(sys.modules, f"relive.cli.{module}")
        monkeypatch.delattr(cli, module)
    assert exit_code("demo") == 1
    shown = capsys.readouterr()
    assert shown.err == f"relive demo: {name} is not installed: run pip install 'relive[demo]'\n"
    assert shown.out == ""


@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        (["episode", "--actors", "3"], r"CartPole-v1 \(threshold 475\): mean return \d+\.\d"),
        (["prioritized"], r"CartPole-v1 \(threshold 475\): mean return \d+\.\d"),
        (["prioritized", "--env", "MountainCar-v0"], r"MountainCar-v0 \(threshold -110\): mean return -\d+\.\d"),
        (["sequence"], r"FourDoors \(threshold 0\.9\): mean return \d\.\d\d"),
    ],
)
def test_every_buffer_ends_with_one_clear_line_and_a_picture(
    arguments: list[str], task: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("demo", "--steps", "300", "--quiet", "--plot", "curve.png", "--buffer", *arguments) == 0
    assert re.fullmatch(
        rf"not solved {task} over 20 greedy episodes of the best network, 300 steps, [\d,]+ episodes, \d+ s, "
        r"curve in curve\.png\n",
        capsys.readouterr().out,
    )
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)


def test_watching_through_a_pipe_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("demo", "--steps", "300", "--watch", "--plot", "curve.png", "--buffer", "sequence") == 0
    assert re.fullmatch(r"(.* in buffer, last 20: .*\n)*not solved FourDoors .*\n", capsys.readouterr().out)


def test_a_solved_task_is_called_solved(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("demo", "--seed", "3", "--steps", "3000", "--quiet", "--buffer", "sequence") == 0
    assert capsys.readouterr().out.startswith("solved FourDoors (threshold 0.9): mean return ")


def test_an_environment_without_a_threshold_is_learned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory_task.MemoryTask, "solved_at", None)
    assert exit_code("demo", "--steps", "20", "--quiet", "--buffer", "sequence") == 0
    assert capsys.readouterr().out.startswith("learned FourDoors (it has no threshold): mean return 0.")


@pytest.mark.parametrize("buffer", ["episode", "prioritized", "sequence"])
def test_a_first_interrupt_stops_at_the_next_step_and_evaluates(
    buffer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = interrupting(monkeypatch, [50])
    assert exit_code("demo", "--buffer", buffer, "--plot", "curve.png") == 130
    out, err = capsys.readouterr()
    assert err == ""
    assert re.fullmatch(
        r"stopping: what was learned so far is evaluated \(Ctrl-C again to leave at once\)\n"
        r"interrupted, (not )?solved .* of the latest network, 50 steps, \d+ episodes, \d+ s, curve in curve\.png\n",
        out,
    )
    assert len(shown) == 50


def test_quiet_says_no_more_of_an_interrupt_than_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupting(monkeypatch, [50])
    assert exit_code("demo", "--buffer", "sequence", "--quiet") == 130
    assert re.fullmatch(r"interrupted, .*\n", capsys.readouterr().out)


@pytest.mark.parametrize("buffer", ["episode", "prioritized", "sequence"])
def test_a_second_interrupt_leaves_at_once(
    buffer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupting(monkeypatch, [50, 50])
    assert exit_code("demo", "--buffer", buffer) == 130
    assert capsys.readouterr() == ("", "\nrelive demo: interrupted\n")


def interrupting(monkeypatch: pytest.MonkeyPatch, steps: list[int]) -> list[None]:
    """Let Ctrl-C be pressed at those steps of a training; return what grows by one a step."""
    shown: list[None] = []

    def show() -> None:
        shown.append(None)
        for _ in range(steps.count(len(shown))):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(display, "choose", lambda training, quiet: contextlib.nullcontext(show))
    return shown


def test_after_the_demo_an_interrupt_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert exit_code("demo", "--steps", "20", "--quiet", "--buffer", "sequence") == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_where_interrupts_are_ignored_they_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, [10])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert exit_code("demo", "--steps", "20", "--quiet", "--buffer", "sequence") == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_curve_that_cannot_be_written_costs_the_curve_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "check_plot_path", lambda plot: None)
    assert exit_code("demo", "--steps", "300", "--quiet", "--plot", "nowhere/curve.png") == 1
    shown = capsys.readouterr()
    assert re.fullmatch(r"not solved CartPole-v1 .* s, no curve\n", shown.out)
    assert shown.err == "relive demo: --plot could not be written to nowhere/curve.png: No such file or directory\n"


def test_a_reader_that_leaves_is_no_error_of_ours(tmp_path: pathlib.Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "relive", "bench", "--list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE) == 1


def test_python_m_relive_is_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["relive", "--version"])
    with pytest.raises(SystemExit) as leaving:
        runpy.run_module("relive", run_name="__main__")
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith("relive ")


def test_importing_python_m_relive_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("relive.__main__", run_name="imported")
    assert capsys.readouterr().out == ""


def test_an_interrupt_outside_training_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert exit_code("demo") == 130
    assert capsys.readouterr().err == "\nrelive demo: interrupted\n"


if sys.platform != "win32":  # which has no SIGINT for another process

    def test_ctrl_c_ends_tidily_with_what_was_learned(tmp_path: pathlib.Path) -> None:
        script = "from relive.cli import command_line as c, display as d; d._SECONDS_A_LINE = 0.1; exit(c.main())"
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", script, "demo", "--env", "MountainCar-v0", "--plot", "curve.png"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        assert process.stdout is not None
        assert "steps, " in process.stdout.readline()  # the first line of progress
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert err == ""
        assert re.search(
            r"^interrupted, not solved MountainCar-v0 \(threshold -110\): mean return .*, curve in curve.png$",
            out,
            re.M,
        )
        assert (tmp_path / "curve.png").read_bytes().startswith(PNG)

    @pytest.mark.parametrize("seconds", [0.3, *(pytest.param(n / 8, marks=pytest.mark.long) for n in range(16))])
    def test_ctrl_c_right_after_the_start_is_tidy_too(tmp_path: pathlib.Path, seconds: float) -> None:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from relive.cli import command_line; "
                "is_up = lambda event, of: event == 'import' and of[0] == 'matplotlib' and print('up', flush=True); "
                "sys.addaudithook(is_up); "
                "raise SystemExit(command_line.main())",
                "demo",
                "--env",
                "MountainCar-v0",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert err in ("", "\nrelive demo: interrupted\n")
