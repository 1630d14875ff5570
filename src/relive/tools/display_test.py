import asyncio
import io
import sys
import time

import pytest
from rich import console as rich_console

from relive.tools import demo
from relive.tools import display
from relive.tools import environments


@pytest.fixture
def training() -> demo.Training:
    made = [environments.Environment("CartPole-v1") for _ in range(2)]
    training = demo.Training(made[1:], made[0], demo.Settings(seed=0, steps=1000))
    training.record.steps = 500
    return training


def test_without_a_terminal_a_line_comes_every_few_seconds(
    training: demo.Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with display.choose(quiet=False) as show:
        show(training)
        assert capsys.readouterr().out == ""
        now = 105.0
        show(training)
        show(training)
        training.record.add_episode(17.0)
        now = 110.0
        show(training)
    assert capsys.readouterr().out == (
        "500 steps, 0 episodes, 0 in buffer, last 20: none yet\n500 steps, 1 episodes, 0 in buffer, last 20: 17.0\n"
    )


def test_quiet_shows_nothing(training: demo.Training, capsys: pytest.CaptureFixture[str]) -> None:
    with display.choose(quiet=True) as show:
        show(training)
    assert capsys.readouterr().out == ""


def test_in_a_terminal_a_bar_shows_steps_episodes_buffer_and_return(training: demo.Training) -> None:
    training.record.add_episode(17.0)
    screen = io.StringIO()
    with display.bar(rich_console.Console(file=screen, force_terminal=True, width=80)) as show:
        show(training)
    for fact in ("500 steps", "1 episodes", "0 in buffer", "last 20: 17.0", "━", "0:00:00"):
        assert fact in screen.getvalue()


def test_a_terminal_gets_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert "bar" in repr(display.choose(quiet=False).func)  # type: ignore[attr-defined]


def test_a_pipe_gets_lines_whatever_the_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "lines" in repr(display.choose(quiet=False).func)  # type: ignore[attr-defined]


async def test_a_watcher_looks_until_it_is_cancelled(training: demo.Training) -> None:
    shown: list[demo.Training] = []
    watcher = asyncio.create_task(display.watch(training, shown.append))
    await asyncio.sleep(0.25)
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)
    assert len(shown) >= 2
