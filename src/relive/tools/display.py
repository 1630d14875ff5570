"""What a user sees while a demo learns: a bar in a terminal, a line now and then elsewhere, or nothing."""

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import sys
import time
from typing import TypeAlias

from relive import extras
from relive.tools import demo

with extras.needed("demo"):
    from rich import console as rich_console
    from rich import progress as rich_progress

Show: TypeAlias = Callable[[demo.Training], None]
"""Shows how far a training has come."""

_SECONDS_A_LINE = 5.0


def choose(quiet: bool) -> contextlib.AbstractContextManager[Show]:
    """Answers the display for this user and this output."""
    if quiet:
        return contextlib.nullcontext(lambda training: None)
    console = rich_console.Console()
    return bar(console) if sys.stdout.isatty() and console.is_interactive else lines()


@contextlib.contextmanager
def bar(console: rich_console.Console) -> Iterator[Show]:
    """Gives a function that draws a progress bar."""
    columns = (
        rich_progress.TextColumn("{task.completed:,.0f} steps"),
        rich_progress.BarColumn(bar_width=None),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=console, expand=True) as progress:
        task = progress.add_task("", total=None)

        def show(training: demo.Training) -> None:
            progress.update(
                task, completed=training.record.steps, total=training.settings.steps, description=_facts(training)
            )

        yield show


@contextlib.contextmanager
def lines() -> Iterator[Show]:
    """Gives a function that prints a line every few seconds."""
    following = time.monotonic() + _SECONDS_A_LINE

    def show(training: demo.Training) -> None:
        nonlocal following
        if time.monotonic() >= following:
            following += _SECONDS_A_LINE
            sys.stdout.write(f"{training.record.steps:,} steps, {_facts(training)}\n")
            sys.stdout.flush()

    yield show


async def watch(training: demo.Training, show: Show) -> None:
    """Shows the training ten times a second until it is cancelled; it only looks."""
    while True:
        show(training)
        await asyncio.sleep(0.1)


def _facts(training: demo.Training) -> str:
    """Answers episodes, buffer size and the mean return of the last 20 episodes in words; all fits 80 columns."""
    mean_return = training.record.recent_mean_return()
    recent = "none yet" if mean_return is None else f"{mean_return:.1f}"
    return f"{len(training.record.episode_returns):,} episodes, {len(training.buffer):,} in buffer, last 20: {recent}"
