"""`relive demo --watch`: what the buffer says of itself while the demo learns, four times a second, in a terminal.

the steps so far                                     a bar
learning            stored        drawn              a box each, side by side where they fit
the returns so far                                   a line of little bars
"""

from collections.abc import Iterator
import contextlib
import time
from typing import TypeAlias

import numpy as np

import relive
from relive.cli import display
from relive.cli import formatting
from relive.common import imports

with imports.optional_dependency("demo"):
    from rich import box as rich_box
    from rich import columns as rich_columns
    from rich import console as rich_console
    from rich import live as rich_live
    from rich import panel as rich_panel
    from rich import progress_bar as rich_progress_bar
    from rich import table as rich_table
    from rich import text as rich_text

Stats: TypeAlias = relive.ColumnBufferStats | relive.EpisodeBufferStats
Facts: TypeAlias = list[tuple[str, str]]

_SECONDS_A_LOOK = 0.25
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
_BOX_WIDTH = 29


def choose(training: display.Training) -> contextlib.AbstractContextManager[display.Show]:
    """Return the view for this output: where it is no terminal, lines."""
    console = rich_console.Console()
    return view(training, console) if display.is_terminal(console) else display.lines(training)


@contextlib.contextmanager
def view(training: display.Training, console: rich_console.Console) -> Iterator[display.Show]:
    """Yield a function that draws the view, four times a second at most, and draw it as it is at the end."""
    started = time.monotonic()

    def picture() -> rich_console.Group:
        return _picture(training, time.monotonic() - started)

    with rich_live.Live(picture(), console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:

        def draw() -> None:
            live.update(picture(), refresh=True)

        yield display.now_and_then(draw, _SECONDS_A_LOOK)
        live.update(picture())


class Sparkline:
    """Numbers as a line of little bars, as wide as there is room: each is the mean of some neighbours.

    >>> from rich import console
    >>> from relive.cli import watch
    >>> console.Console(width=8).print(watch.Sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
    ▁▂▃▄▅▆▇█
    """

    def __init__(self, values: list[float]) -> None:
        self._values = np.array(values, np.float64)

    def __rich_console__(
        self, console: rich_console.Console, options: rich_console.ConsoleOptions
    ) -> rich_console.RenderResult:
        """Yield the line."""
        bars = _ASCII_BARS if options.ascii_only else _BARS
        values = self._values
        if len(values) > options.max_width:
            values = np.array([part.mean() for part in np.array_split(values, options.max_width)])
        if not len(values):
            return
        least, most = values.min(), values.max()
        heights = (values - least) / (most - least or 1.0) * (len(bars) - 1)
        yield rich_text.Text("".join(bars[round(height)] for height in heights.tolist()), style="green")


def boxes(stats: Stats) -> dict[str, Facts]:
    """Return what the statistics say, in words, by title."""
    if isinstance(stats, relive.EpisodeBufferStats):
        stored = [
            ("transitions", f"{stats.total_transitions:,}"),
            ("episodes", f"{stats.total_episodes:,}"),
            ("of them open", f"{stats.in_progress:,}"),
            ("oldest open", f"{stats.oldest_open_age:.1f} s"),
            ("agents", f"{stats.num_agents:,}"),
        ]
        drawn = [("never drawn", f"{stats.never_drawn_share:.1%}")]
    else:
        stored = [
            ("steps", f"{stats.size:,}"),
            ("of capacity", f"{stats.size / stats.capacity:.0%}"),
            ("eligible", f"{stats.num_eligible:,}"),
            ("episodes", f"{stats.terminated_episodes + stats.truncated_episodes + stats.open_episodes:,}"),
            ("oldest age", f"{stats.oldest_age:,} steps"),
            ("memory", formatting.size(stats.nbytes)),
        ]
        drawn = [
            ("never drawn", f"{stats.never_drawn_share:.1%}"),
            ("effective", _share(stats.effective_sample_size, stats.num_eligible)),
            ("mean age", _steps(stats.mean_drawn_age)),
        ]
    drawn = [("samples", f"{stats.sampled:,}"), ("draws a step", f"{stats.mean_draws:.1f}"), *drawn]
    dropped = [(reason, f"{count:,}") for reason, count in stats.dropped.items()]
    if isinstance(stats, relive.ColumnBufferStats):
        dropped += [("stale keys", f"{stats.stale_keys:,}"), ("lost resets", f"{stats.spliced_episodes:,}")]
    return {"stored": stored, "drawn": drawn, "dropped": dropped}


def _share(size: float | None, count: int) -> str:
    """Return in words which share of so many anchors an effective sample size is."""
    return "unknown" if size is None else f"{size / max(count, 1):.0%}"


def _steps(age: float | None) -> str:
    return "none yet" if age is None else f"{age:,.0f} steps"


def _picture(training: display.Training, seconds: float) -> rich_console.Group:
    record, settings = training.record, training.settings
    recent = record.recent_mean_return()
    best = max(record.check_means, default=None)
    learning = [
        ("steps", f"{record.steps:,}"),
        ("episodes", f"{len(record.episode_returns):,}"),
        ("last 20", _return(training, recent)),
        ("best check", _return(training, best)),
        ("time", f"{seconds:.0f} s"),
    ]
    facts = {"learning": learning, **boxes(training.buffer.get_stats())}
    bar = rich_table.Table.grid(expand=True)
    bar.add_row(rich_progress_bar.ProgressBar(total=settings.steps, completed=record.steps))
    return rich_console.Group(
        bar,
        rich_columns.Columns([box(title, rows) for title, rows in facts.items()]),
        Sparkline(record.episode_returns),
    )


def _return(training: display.Training, value: float | None) -> str:
    return "none yet" if value is None else display.mean_return(training, value)


def box(title: str, facts: Facts) -> rich_panel.Panel:
    """Return a box of facts."""
    table = rich_table.Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", style="dim")
    table.add_column(no_wrap=True, overflow="ellipsis", justify="right")
    for row in facts:
        table.add_row(*row)
    return rich_panel.Panel(table, title=title, title_align="left", box=rich_box.ROUNDED, width=_BOX_WIDTH)
