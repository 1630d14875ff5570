"""What a user sees: rows of a label and words, in colour where rich is installed; a bar while much is read."""

from collections.abc import Iterator, Sequence
import contextlib
import importlib.util
import shutil
import sys
import textwrap
import time
from typing import Any, TextIO

from relive.common import imports
from relive.persistence import state

rich_console: Any = imports.lazy_module("rich.console")
rich_progress: Any = imports.lazy_module("rich.progress")
rich_text: Any = imports.lazy_module("rich.text")

_SECONDS_BEFORE = 1.0
_STYLES = {"broken": "bold red", "note": "yellow", "health": "green"}


def _is_drawn(stream: TextIO) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None


def show(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print rows of a label and words under a title, folded to the width of a terminal."""
    margin = max(len(label) for label, _ in rows) + 3
    width = max(shutil.get_terminal_size().columns - margin, 20) if sys.stdout.isatty() else sys.maxsize
    console = rich_console.Console(highlight=False, soft_wrap=True) if _is_drawn(sys.stdout) else None
    for label, words, style in [(title, "", "bold"), *((f" {label}", words, "cyan") for label, words in rows)]:
        lines = textwrap.wrap(words, width, break_on_hyphens=False) or [""]
        for head, line in zip([label, *[""] * (len(lines) - 1)], lines, strict=True):
            head = head.ljust(margin) if line else head
            if console is None:
                sys.stdout.write(f"{head}{line}\n")
            else:
                console.print(rich_text.Text.assemble((head, style), (line, _STYLES.get(label.strip(), ""))))


@contextlib.contextmanager
def progress(label: str) -> Iterator[state.Progress | None]:
    """Yield what takes the amount done and the total, and shows a bar after a second; None without terminal or rich."""
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
