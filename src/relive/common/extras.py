"""Optional libraries: a missing one becomes an error that names the extra which brings it."""

from collections.abc import Iterator
import contextlib

from relive import errors


@contextlib.contextmanager
def needed(extra: str) -> Iterator[None]:
    """Turns a failed import in its block into an error that says what to install.

    Raises:
        MissingExtraError: A library of that extra is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise errors.MissingExtraError(
            f"{error.name or error} is not installed: run pip install 'relive[{extra}]'", name=error.name
        ) from error
