"""Rows and bars, on a terminal and elsewhere."""

import io
import re
import sys
import time

import pytest

from relive.cli import terminal

ROWS = [("kind", "checkpoint"), ("broken", "a file " * 20 + "[red]"), ("rows.npy", "int64 [3], 156.4 KiB")]


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def screen_of(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Return what a terminal of 60 columns shows."""
    found = Screen()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, found)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


def seen(screen: Screen) -> str:
    """Return what was shown, without its colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())


@pytest.mark.parametrize("has_rich", [True, False])
def test_rows_fit_a_terminal(has_rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of(monkeypatch)
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    terminal.show("/replay", ROWS)
    assert ("\x1b[1m/replay" in screen.getvalue()) == has_rich
    lines = seen(screen).splitlines()
    assert lines[:2] == ["/replay", " kind      checkpoint"]
    assert max(map(len, lines)) <= 60
    assert lines[-2:] == [" " * 11 + "a file " * 6 + "[red]", " rows.npy  int64 [3], 156.4 KiB"]
    assert "".join(seen(screen).split()).count("afile") == 20


def test_rows_outside_a_terminal_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show("/replay", ROWS[:2])
    assert capsys.readouterr().out.splitlines() == [
        "/replay", " kind    checkpoint", " broken  " + "a file " * 20 + "[red]",
    ]  # fmt: skip
    with terminal.progress("reading") as show:
        assert show is None


def test_a_bar_appears_after_a_second_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of(monkeypatch)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with terminal.progress("reading") as show:
        assert show is not None
        show(1, 4)
        assert screen.getvalue() == ""
        now = 101.0
        show(2, 4)
        show(3, 4)
    assert re.search("reading .* 50%", seen(screen))
    assert screen.getvalue().endswith("\x1b[2K")  # The line is erased.
