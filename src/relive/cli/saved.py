"""`relive inspect`, `verify` and `repair`: what relive wrote at a path, and whether it is whole. Numpy is enough."""

import argparse
from collections.abc import Iterator
import json
import sys
from typing import Any

from relive import errors
from relive.cli import formatting
from relive.cli import terminal
from relive.persistence import files
from relive.persistence import inspect as inspect_lib


def inspect(options: argparse.Namespace) -> int:
    """Print what is at a path, as rows or as JSON; return 1 if something is broken."""
    examined = _examined(options, "reading")
    said = examined.summary()
    if options.json:
        sys.stdout.write(json.dumps(said, indent=1, allow_nan=False) + "\n")
    else:
        terminal.show(said["path"], list(_rows(said, has_files=options.files)))
    return 1 if said["faults"] else 0


def _rows(said: dict[str, Any], *, has_files: bool) -> Iterator[tuple[str, str]]:
    """Yield rows of a label and words: class and health, then settings, then counts, then files if they are wanted."""
    yield "kind", said["kind"]
    yield "class", formatting.plain(said["class"] or "unknown")
    yield from (("broken", fault) for fault in said["faults"])
    if not said["faults"]:
        yield "health", "nothing is broken"
    yield from (("note", formatting.plain(note)) for note in said["notes"])
    if said["records"] is not None:
        segments = formatting.counted(said["records"]["segments"], "segment")
        yield "records", f"{said['records']['records']:,} in {segments}"
    yield "on disk", formatting.size(said["bytes"])
    if said["schema"] is not None:
        yield "schema", formatting.setting(said["schema"])
    if said["settings"]:
        settings = (f"{formatting.plain(name)}={formatting.setting(value)}" for name, value in said["settings"].items())
        yield "settings", ", ".join(settings)
    if said["stats"]:
        counts = (f"{name.replace('_', ' ')} {formatting.statistic(value)}" for name, value in said["stats"].items())
        yield "counts", ", ".join(counts)
    for each in said["arrays"].values() if has_files else ():
        yield formatting.plain(each["file"]), f"{each['dtype']} {each['shape']}, {formatting.size(each['bytes'])}"


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
    if found.kind is inspect_lib.Kind.CHECKPOINT:
        words = f"a checkpoint of {formatting.counted(len(found.members), 'array')}"
    elif found.findings is not None:
        records, segments = found.findings.num_records, found.findings.num_segments
        words = f"a journal of {formatting.counted(records, 'record')} in {formatting.counted(segments, 'segment')}"
    else:
        words = f"a {found.kind.value}, whose rows were not read"
    return words if found.buffer is None else f"{words}, which loads {formatting.plain(repr(found.buffer))}"


def repair(options: argparse.Namespace) -> int:
    """Put in order what a crash has left at a path, and say what was done; return 0: it is whole then."""
    path = files.absolute("PATH", options.path, files.ANY)
    try:
        with terminal.progress("verifying") as show:
            done = inspect_lib.repair(path, drop_damaged=options.drop_damaged, progress=show)
    except errors.CheckpointError as error:
        raise errors.CheckpointError(str(error).replace("drop_damaged=True", "--drop-damaged")) from error
    sys.stdout.write(f"{files.named(path)}: {done}\n")
    return 0


def _examined(options: argparse.Namespace, label: str) -> inspect_lib.Examination:
    with terminal.progress(label) as show:
        return inspect_lib.examine(files.absolute("PATH", options.path, files.ANY), show)
