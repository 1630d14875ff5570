"""`relive verify`: says that what relive wrote at a path is whole, or what is broken in it, a line each."""

import argparse
import json
import sys

from relive.cli import formatting
from relive.cli import progress
from relive.persistence import files
from relive.persistence import inspect
from relive.persistence import places


def run(options: argparse.Namespace) -> int:
    """Verify a path; return 0 if it is whole, else 1."""
    path = files.absolute("PATH", options.path)
    with progress.shown("verifying") as show:
        found = inspect.examine(path, show)
    if options.json:
        said = {"path": files.named(path), "kind": found.kind.value, "faults": found.faults, "notes": found.notes}
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
    elif found.faults:
        sys.stderr.writelines(f"relive verify: {fault}\n" for fault in found.faults)
    else:
        said_of_it = "".join(f"; {note}" for note in found.notes)
        sys.stdout.write(f"{files.named(path)} is whole: {_described(found)}{said_of_it}\n")
    return 1 if found.faults else 0


def _described(found: inspect.Examination) -> str:
    """Return what was looked at, and what was made of it."""
    if found.kind is places.Kind.CHECKPOINT:
        words = f"a checkpoint of {formatting.counted(len(found.entries), 'array')}"
    elif found.findings is not None:
        records, segments = found.findings.num_records, found.findings.num_segments
        words = f"a journal of {formatting.counted(records, 'record')} in {formatting.counted(segments, 'segment')}"
    else:
        words = f"a {found.kind.value}"
    return words if found.buffer is None else f"{words}, which loads {formatting.plain(repr(found.buffer))}"
