"""What a user sees while much is read: after a second a bar on a terminal; elsewhere nothing."""

from collections.abc import Iterator
import contextlib
import sys
import time

from relive.persistence import state

_SECONDS_BEFORE = 1.0
_SECONDS_A_LOOK = 0.1
_WIDTH = 30


@contextlib.contextmanager
def shown(label: str) -> Iterator[state.Progress | None]:
    """Yield a function that is told how many bytes were read, and how many there are; None where nobody looks."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield None
        return
    following = time.monotonic() + _SECONDS_BEFORE
    is_shown = False

    def show(num_read: int, total: int) -> None:
        nonlocal following, is_shown
        now = time.monotonic()
        if now >= following:
            following, is_shown = now + _SECONDS_A_LOOK, True
            share = num_read / max(total, 1)
            bar = "━" * round(share * _WIDTH)
            sys.stderr.write(f"\r\x1b[K{label} {bar:─<{_WIDTH}} {share:.0%} of {total / 2**20:,.0f} MiB")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
