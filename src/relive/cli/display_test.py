import io
import sys
import time
from typing import Any

import pytest
from rich import console as rich_console

from relive.cli import display
from relive.cli import environments
from relive.cli import prioritized_training


@pytest.fixture
def training() -> display.Training:
    found = prioritized_training.PrioritizedTraining(
        lambda: environments.Environment("CartPole-v1"), prioritized_training.Settings(seed=0, steps=1000)
    )
    found.record.steps = 500
    return found


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


def test_without_a_terminal_a_line_comes_every_few_seconds(
    training: display.Training, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with display.choose(training, quiet=False) as show:
        show()
        assert capsys.readouterr().out == ""
        clock.now = 105.0
        show()
        show()
        training.record.add_episode(17.0)
        clock.now = 109.9
        show()
        clock.now = 110.0
        show()
    assert capsys.readouterr().out == (
        "500 steps, 0 episodes, 0 in buffer, last 20: none yet\n500 steps, 1 episodes, 0 in buffer, last 20: 17.0\n"
    )


def test_after_a_long_pause_one_line_comes(
    training: display.Training, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with display.choose(training, quiet=False) as show:
        clock.now = 200.0
        show()
        show()
    assert capsys.readouterr().out.count("\n") == 1


def test_lines_that_nobody_reads_do_not_end_the_training(
    training: display.Training, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str) -> int:
        raise BrokenPipeError

    with display.choose(training, quiet=False) as show:
        monkeypatch.setattr(sys.stdout, "write", broken)
        clock.now = 105.0
        show()


def test_quiet_shows_nothing(training: display.Training, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with display.choose(training, quiet=True) as show:
        clock.now = 200.0
        show()
    assert capsys.readouterr().out == ""


def test_in_a_terminal_a_bar_shows_steps_episodes_buffer_and_return(training: display.Training, clock: Clock) -> None:
    screen = io.StringIO()
    with display.bar(training, rich_console.Console(file=screen, force_terminal=True, width=80)) as show:
        training.record.add_episode(17.0)
        show()
        clock.now += 0.1
        show()
        training.record.steps = 777
        show()
    for fact in ("777 steps", "1 episodes", "0 in buffer", "last 20: 17.0", "━", "0:00:00"):
        assert fact in screen.getvalue()


@pytest.mark.parametrize(
    ("solved_at", "value", "shown"),
    [(0.9, 0.953, "0.95"), (475.0, 99.953, "100.0"), (-110.0, -120.04, "-120.0"), (None, 0.953, "1.0")],
)
def test_a_mean_return_has_decimals_enough(
    training: display.Training,
    monkeypatch: pytest.MonkeyPatch,
    solved_at: float | None,
    value: float,
    shown: str,
) -> None:
    monkeypatch.setattr(training.check_task, "solved_at", solved_at)
    assert display.mean_return(training, value) == shown


def chosen(training: display.Training) -> str:
    found: Any = display.choose(training, quiet=False)
    return str(found.func.__name__)


def test_a_terminal_gets_the_bar(training: display.Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert chosen(training) == "bar"


def test_a_pipe_gets_lines_whatever_the_colours(training: display.Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert chosen(training) == "lines"
