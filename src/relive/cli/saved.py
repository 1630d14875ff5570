"""`relive inspect`, `verify` and `repair`: what relive wrote at a path, and whether it is whole. Numpy is enough."""

import argparse
import json
import sys

from relive import errors
from relive.cli import contents
from relive.cli import formatting
from relive.cli import tables
from relive.cli import terminal
from relive.persistence import files
from relive.persistence import inspect as inspect_lib
from relive.persistence import places


def inspect(options: argparse.Namespace) -> int:
    """Print what is at a path, as tables or as JSON; return 1 if something is broken."""
    examined = _examined(options, "reading")
    said = examined.summary()
    if options.json:
        sys.stdout.write(json.dumps(said, indent=1, allow_nan=False) + "\n")
    else:
        terminal.show(said["path"], tables.of(said, contents.of(examined.buffer)))
    return 1 if said["faults"] else 0


def verify(options: argparse.Namespace) -> int:
    """Say that what is at a path is whole, or what is broken in it, a line each; return 1 then."""
    found = _examined(options, "verifying")
    if options.json:
        said = {"path": files.named(found.path), "kind": found.kind.value, "faults": found.faults, "notes": found.notes}
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
    elif found.faults:
        sys.stderr.writelines(f"relive verify: {fault}\n" for fault in found.faults)
    else:
        sys.stdout.write(f"{files.named(found.path)} is whole: {'; '.join([_described(found), *found.notes])}\n")
    return 1 if found.faults else 0


def _described(found: inspect_lib.Examination) -> str:
    """Return what was looked at, and what was made of it."""
    if found.kind is places.Kind.CHECKPOINT:
        words = f"a checkpoint of {formatting.counted(len(found.entries), 'array')}"
    elif found.findings is not None:
        records, segments = found.findings.num_records, found.findings.num_segments
        words = f"a journal of {formatting.counted(records, 'record')} in {formatting.counted(segments, 'segment')}"
    else:
        words = f"a {found.kind.value}"
    return words if found.buffer is None else f"{words}, which loads {formatting.plain(repr(found.buffer))}"


def repair(options: argparse.Namespace) -> int:
    """Put in order what a crash has left at a path, and say what was done; return 0: it is whole then."""
    path = files.absolute("PATH", options.path)
    try:
        with terminal.progress("verifying") as show:
            done = inspect_lib.repair(path, drop_damaged=options.drop_damaged, progress=show)
    except errors.CheckpointError as error:
        raise errors.CheckpointError(str(error).replace("drop_damaged=True", "--drop-damaged")) from error
    sys.stdout.write(f"{files.named(path)}: {done}\n")
    return 0


def _examined(options: argparse.Namespace, label: str) -> inspect_lib.Examination:
    with terminal.progress(label) as show:
        return inspect_lib.examine(files.absolute("PATH", options.path), show)
