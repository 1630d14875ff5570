"""The bar of a long reading."""

import sys
import time

import pytest

from relive.cli import progress


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


@pytest.mark.parametrize(("out", "err"), [(False, True), (True, False), (False, False)])
def test_without_a_terminal_nothing_is_shown(out: bool, err: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    with progress.shown("reading") as show:
        assert show is None


def test_a_bar_comes_after_a_second_and_goes_at_the_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.shown("reading") as show:
        assert show is not None
        show(1 << 20, 4 << 20)
        clock.now = 101.0
        show(2 << 20, 4 << 20)
        show(3 << 20, 4 << 20)
        clock.now = 101.2
        show(0, 0)
    shown = capsys.readouterr()
    assert shown.out == ""
    half = "━" * 15 + "─" * 15
    assert shown.err == f"\r\x1b[Kreading {half} 50% of 4 MiB\r\x1b[Kreading {'─' * 30} 0% of 0 MiB\r\x1b[K"


def test_what_takes_no_second_shows_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.shown("reading") as show:
        assert show is not None
        show(1, 1)
    assert capsys.readouterr().err == ""
