"""`relive bench`: measures the workloads that were asked for, prints tables, and writes what it was asked to write."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import json
import os
import pathlib
import shlex
import sys
import warnings

from relive import errors
from relive.bench import catalogue
from relive.bench import machine
from relive.bench import picture
from relive.bench import report
from relive.bench import results
from relive.bench import runner
from relive.bench import workloads
from relive.common import imports

with imports.optional_dependency("bench"):
    from rich import console as rich_console
    from rich import live as rich_live
    from rich import text as rich_text

_FILES = ("json", "markdown", "plot")


def run(options: argparse.Namespace) -> int:
    """Measure, and return 0; starts itself anew with one thread a library, where that was not seen to."""
    if options.list:
        sys.stdout.write(_listing())
        return 0
    families = {one.name: family for family, members in workloads.FAMILIES.items() for one in members}
    for option, known in {"workload": {*families, *families.values()}, "peers": {*catalogue.PEERS}}.items():
        for name in getattr(options, option) or ():
            if name not in known:
                options.parser.error(f"--{option} must be one of {', '.join(sorted(known))}, got {name}")
    wanted = set(options.workload or families)
    chosen = [one for name, one in workloads.WORKLOADS.items() if {name, families[name]} & wanted]
    peers = {name: peer for name, peer in catalogue.PEERS.items() if not options.peers or name in options.peers}
    for name in _FILES:
        path = getattr(options, name)
        if path is not None and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or ".")):
            raise errors.ArgumentError(f"--{name} must be a file in a directory that exists, got {path}")
    if options.plot:
        picture.check([one.name for one in chosen])
    arguments = _arguments(options)
    machine.hold_libraries(arguments)
    machine.hold_torch()
    settings = runner.Settings(options.repeats or (3 if options.quick else 7), options.quick)
    with warnings.catch_warnings(action="ignore"):
        rows = list(_measured(chosen, peers, settings))
    measured = results.Run(
        command=shlex.join(["relive", *arguments]),
        machine=machine.facts(),
        versions={one.peer: catalogue.PEERS[one.peer].version() for row in rows for one in row.measured},
        settings=settings.in_words(),
        rows=rows,
    )
    report.print_unmeasured(measured, _console())
    for name in _FILES:
        try:
            _write(measured, name, options)
        except OSError as error:
            path = getattr(options, name)
            raise errors.ArgumentError(f"--{name} could not be written to {path}: {error.strerror}") from error
    return 0


def _write(measured: results.Run, name: str, options: argparse.Namespace) -> None:
    path = getattr(options, name)
    if not path:
        return
    if name == "json":
        pathlib.Path(path).write_text(json.dumps(measured.as_json(), indent=1) + "\n", encoding="utf-8")
    elif name == "markdown":
        page = pathlib.Path(path)
        seen = pathlib.Path(os.path.relpath(options.plot, page.parent)).as_posix() if options.plot else None
        page.write_text(report.page(measured, seen), encoding="utf-8")
    else:
        picture.save(measured, path)


def _measured(
    chosen: Sequence[workloads.Workload], peers: Mapping[str, catalogue.Peer], settings: runner.Settings
) -> Iterator[results.Row]:
    """Yield the row of each workload after printing it; on a terminal, show meanwhile what is going on."""
    console = _console()
    for workload in chosen:
        # No thread draws it anew: that would be timed, too.
        stderr = rich_console.Console(stderr=True)
        with rich_live.Live(console=stderr, auto_refresh=False, transient=True) as live:

            def say(words: str, live: rich_live.Live = live) -> None:
                live.update(rich_text.Text(words, no_wrap=True, overflow="ellipsis"), refresh=True)

            row = runner.measure(workload, peers, settings, say)
        report.print_table(row, console)
        yield row


def _console() -> rich_console.Console:
    wide = None if sys.stdout.isatty() else 1_000  # A line stays a line for what reads a pipe.
    return rich_console.Console(width=wide, markup=False, emoji=False, highlight=False)


def _listing() -> str:
    width = max(map(len, [*workloads.WORKLOADS, *catalogue.PEERS]))
    lines = ["workloads (the name of a family selects all of its workloads):"]
    for family, members in workloads.FAMILIES.items():
        labels = [f"{family}:", *[""] * len(members)]
        lines += [f"  {label:13}{one.name:{width}}  {one.title}" for label, one in zip(labels, members, strict=False)]
    lines.append("peers:")
    lines += [f"  {'':13}{peer.name:{width}}  {peer.what}" for peer in catalogue.PEERS.values()]
    return "\n".join(lines) + "\n"


def _arguments(options: argparse.Namespace) -> list[str]:
    """Return the command line that the options came from, without the name of the program."""
    arguments = ["bench"]
    for name in ("workload", "peers", "repeats", "quick", *_FILES):
        value = getattr(options, name)
        if value:
            values = [] if value is True else value if isinstance(value, list) else [str(value)]
            arguments += [f"--{name}", *values]
    return arguments
