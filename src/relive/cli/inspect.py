"""`relive inspect`: prints what relive wrote at a path, as tables or as JSON, and writes a page about it."""

import argparse
from collections.abc import Callable
import importlib
import json
import pathlib
import sys
from typing import Any, TypeAlias

from relive import errors
from relive.cli import contents
from relive.cli import progress
from relive.cli import tables
from relive.common import imports
from relive.persistence import files
from relive.persistence import inspect

with imports.optional_dependency("cli"):
    from rich import box
    from rich import console as rich_console
    from rich import table as rich_table
    from rich import text as rich_text

Page: TypeAlias = Callable[[dict[str, Any], contents.Contents], str]

_WIDTH_ELSEWHERE = 100
_WIDE = 10_000
_LEAST_WIDTH = 8
_FRAMES = 6
_STYLES = {"broken": "bold red", "note": "yellow", "health": "green"}


def run(options: argparse.Namespace) -> int:
    """Inspect a path; return 0, or 1 if something in it is broken."""
    page = _page_maker(options.report) if options.report else None
    with progress.shown("reading") as show:
        examined = inspect.examine(files.absolute("PATH", options.path), show)
    said = examined.summary()
    found = contents.of(examined.buffer, _FRAMES if options.report else 0)
    if page is not None:
        _write(options.report, page(said, found))
    if options.json:
        sys.stdout.write(json.dumps(said, indent=1, allow_nan=False) + "\n")
    else:
        _print(said, found)
        if options.report:
            sys.stdout.write(f"report in {options.report}\n")
    sys.stdout.flush()
    return 1 if said["faults"] else 0


def _print(said: dict[str, Any], found: contents.Contents) -> None:
    """Print the tables; where nobody looks, without colours and of a fixed width, but what is broken is not cut."""
    is_seen = sys.stdout.isatty()
    console = rich_console.Console(highlight=False, markup=False, emoji=False, width=None if is_seen else _WIDE)
    console.print(rich_text.Text(said["path"], style="bold"))
    for table in tables.of(said, found):
        console.print(_drawn(table), width=None if is_seen or not table.title else _WIDTH_ELSEWHERE)


def _drawn(table: tables.Table) -> rich_table.Table:
    """Return a table as rich draws it; its words are words, and no markup."""
    drawn = rich_table.Table(
        title=table.title or None,
        title_justify="left",
        title_style="bold",
        show_header=bool(table.header),
        box=box.SIMPLE_HEAD,
        min_width=len(table.title),
        pad_edge=False,
    )
    for number, word in enumerate(table.header or table.rows[0]):
        drawn.add_column(
            rich_text.Text(word if table.header else ""),
            justify="left" if number < table.num_words else "right",
            overflow="fold" if number < table.num_words else "ellipsis",
            no_wrap=number >= table.num_words,  # Half a number is another one.
            style="cyan" if number == 0 else "",
            min_width=_LEAST_WIDTH if number == 0 else None,
        )
    for row in table.rows:
        drawn.add_row(
            *(rich_text.Text(word, style=_STYLES.get(row[0], "") if not table.header else "") for word in row)
        )
    return drawn


def _page_maker(path: str) -> Page:
    """Return what makes a page; it is imported for a report alone, since what draws takes its time.

    Raises:
        ArgumentError: No file can be written there. That is said before anything is read, not after it.
        MissingExtraError: Nothing can draw.
    """
    place = pathlib.Path(path)
    if place.is_dir() or not place.parent.is_dir():
        raise errors.ArgumentError(f"--report must be a file in a directory that exists, got {path}")
    maker: Page = importlib.import_module("relive.cli.report").page
    return maker


def _write(path: str, page: str) -> None:
    try:
        pathlib.Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise errors.ArgumentError(f"--report could not be written to {path}: {error.strerror}") from error
