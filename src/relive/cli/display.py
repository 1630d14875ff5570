"""What a user sees while a demo learns: a bar in a terminal, a line now and then elsewhere, or nothing."""

from collections.abc import Callable, Iterator
import contextlib
import sys
import time
from typing import Any, TypeAlias

from relive.cli import training as training_lib
from relive.common import imports

with imports.optional_dependency("demo"):
    from rich import console as rich_console
    from rich import progress as rich_progress

Training: TypeAlias = training_lib.Training[Any, Any]
Show: TypeAlias = training_lib.Show

_SECONDS_A_LINE = 5.0
_SECONDS_A_LOOK = 0.1


def choose(training: Training, quiet: bool) -> contextlib.AbstractContextManager[Show]:
    """Return the display for this user and this output."""
    if quiet:
        return contextlib.nullcontext(lambda: None)
    console = rich_console.Console()
    return bar(training, console) if is_terminal(console) else lines(training)


def is_terminal(console: rich_console.Console) -> bool:
    """Return whether somebody looks at a terminal in which lines can be drawn over; a pipe is none."""
    return sys.stdout.isatty() and console.is_interactive


@contextlib.contextmanager
def bar(training: Training, console: rich_console.Console) -> Iterator[Show]:
    """Yield a function that draws a progress bar, ten times a second at most, and draw it as it is at the end."""
    columns = (
        rich_progress.TextColumn("{task.completed:,.0f} steps"),
        rich_progress.BarColumn(bar_width=None),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=console, expand=True) as progress:
        task = progress.add_task(_facts(training), total=training.settings.steps)

        def draw() -> None:
            progress.update(task, completed=training.record.steps, description=_facts(training))

        yield now_and_then(draw, _SECONDS_A_LOOK)
        draw()


@contextlib.contextmanager
def lines(training: Training) -> Iterator[Show]:
    """Yield a function that prints a line every few seconds, for as long as somebody reads them."""

    def draw() -> None:
        with contextlib.suppress(BrokenPipeError):  # Whoever closed the pipe is told so by the last line.
            sys.stdout.write(f"{training.record.steps:,} steps, {_facts(training)}\n")
            sys.stdout.flush()

    yield now_and_then(draw, _SECONDS_A_LINE)


def mean_return(training: Training, value: float) -> str:
    """Return a mean return in words: to two decimals where the threshold is so small that one would hide it."""
    solved_at = training.check_task.solved_at
    return f"{value:.1f}" if solved_at is None or abs(solved_at) >= 10.0 else f"{value:.2f}"


def now_and_then(draw: Callable[[], None], seconds: float) -> Show:
    """Return a function that draws, but not again before that many seconds are over, nor at first."""
    following = time.monotonic() + seconds

    def show() -> None:
        nonlocal following
        now = time.monotonic()
        if now >= following:
            following = now + seconds
            draw()

    return show


def _facts(training: Training) -> str:
    """Return episodes, buffer size and the mean return of the last 20 episodes in words; all fits 80 columns."""
    recent = training.record.recent_mean_return()
    shown = "none yet" if recent is None else mean_return(training, recent)
    return f"{len(training.record.episode_returns):,} episodes, {len(training.buffer):,} in buffer, last 20: {shown}"
