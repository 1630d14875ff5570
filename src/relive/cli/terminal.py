"""What a user sees: tables as rich draws them on a terminal, plain lines elsewhere; a bar while much is read."""

from collections.abc import Iterator, Sequence
import contextlib
import importlib.util
import sys
import time
from typing import TYPE_CHECKING, TextIO

from relive.cli import tables as tables_lib
from relive.common import imports
from relive.persistence import state

if TYPE_CHECKING:
    from rich import box
    from rich import console as rich_console
    from rich import progress as rich_progress
    from rich import table as rich_table
    from rich import text as rich_text
else:
    box = imports.lazy_module("rich.box")
    rich_console = imports.lazy_module("rich.console")
    rich_progress = imports.lazy_module("rich.progress")
    rich_table = imports.lazy_module("rich.table")
    rich_text = imports.lazy_module("rich.text")

_SECONDS_BEFORE = 1.0
_LEAST_WIDTH = 6
_STYLES = {"broken": "bold red", "note": "yellow", "health": "green"}


def _is_drawn(stream: TextIO) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None


def show(title: str, tables: Sequence[tables_lib.Table]) -> None:
    """Print tables under a title."""
    if not _is_drawn(sys.stdout):
        sys.stdout.write("\n".join([title, *map(_plain, tables)]))
        return
    console = rich_console.Console(highlight=False, markup=False, emoji=False)
    console.print(rich_text.Text(title, style="bold"))
    for table in tables:
        console.print(_drawn(table))


def _plain(table: tables_lib.Table) -> str:
    """Return a table as lines of aligned words, of which nothing is cut."""
    rows = [table.header, *table.rows] if table.header else table.rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [table.title] if table.title else []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        words = [
            word.ljust(width) if number < table.num_words else word.rjust(width) for number, (word, width) in cells
        ]
        lines.append(f" {'  '.join(words)}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def _drawn(table: tables_lib.Table) -> "rich_table.Table":
    """Return a table as rich draws it; its words are words, and no markup."""
    drawn = rich_table.Table(
        title=table.title or None,
        title_justify="left",
        title_style="bold",
        show_header=bool(table.header),
        box=box.SIMPLE_HEAD,
        min_width=len(table.title),
        pad_edge=False,
        collapse_padding=True,
    )
    for number, word in enumerate(table.header or table.rows[0]):
        is_word = number < table.num_words
        drawn.add_column(
            rich_text.Text(word if table.header else ""),
            justify="left" if is_word else "right",
            overflow="fold" if is_word else "ellipsis",
            no_wrap=not is_word and " " not in word,  # Words may be put below one another, but no part of a number.
            style="cyan" if number == 0 else "",
            min_width=_LEAST_WIDTH if number == 0 else None,
        )
    for row in table.rows:
        style = "" if table.header else _STYLES.get(row[0], "")
        drawn.add_row(*(rich_text.Text(word, style=style) for word in row))
    return drawn


@contextlib.contextmanager
def progress(label: str) -> Iterator[state.Progress | None]:
    """Yield a function that takes the amount done and the total; after a second a bar shows them.

    Without a terminal or rich there is no bar, and None.
    """
    if not _is_drawn(sys.stderr):
        yield None
        return
    bar = rich_progress.Progress(console=rich_console.Console(stderr=True), transient=True)
    task = bar.add_task(label)
    begun = time.monotonic()

    def show(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - begun >= _SECONDS_BEFORE:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()
