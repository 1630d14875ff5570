"""`relive repair`: puts in order what a crash has left of a checkpoint or a journal, and says what it did."""

import argparse
import sys

from relive import errors
from relive.cli import progress
from relive.persistence import files
from relive.persistence import inspect


def run(options: argparse.Namespace) -> int:
    """Repair a path; return 0: it is whole then."""
    path = files.absolute("PATH", options.path)
    try:
        with progress.shown("verifying") as show:
            done = inspect.repair(path, drop_damaged=options.drop_damaged, progress=show)
    except errors.CheckpointError as error:
        raise errors.CheckpointError(str(error).replace("drop_damaged=True", "--drop-damaged")) from error
    sys.stdout.write(f"{files.named(path)}: {done}\n")
    return 0
