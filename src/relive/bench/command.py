"""`relive bench`: measures the workloads that were asked for, prints tables, and writes what it was asked to write."""

import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import sys
import textwrap
import warnings

from relive import errors
from relive.bench import catalogue
from relive.bench import machine
from relive.bench import picture
from relive.bench import report
from relive.bench import results
from relive.bench import runner
from relive.bench import workloads


def run(options: argparse.Namespace) -> int:
    """Measure, and return 0; starts itself anew with one thread a library, where that was not seen to."""
    if options.list:
        sys.stdout.write(_listing())
        return 0
    asked = options.workload or [""]
    chosen = [one for name, one in workloads.WORKLOADS.items() if any(_begins(name, word) for word in asked)]
    for word in asked:
        if not any(_begins(one.name, word) for one in chosen):
            names = ", ".join(sorted(workloads.WORKLOADS))
            options.parser.error(f"--workload must be one of {names}, or their first word, got {word}")
    for name in options.peers or ():
        if name not in catalogue.PEERS:
            options.parser.error(f"--peers must be one of {', '.join(sorted(catalogue.PEERS))}, got {name}")
    peers = {name: peer for name, peer in catalogue.PEERS.items() if not options.peers or name in options.peers}
    for name in ("json", "markdown", "plot"):
        path = getattr(options, name)
        try:
            if path is not None:
                open(path, "ab").close()
        except OSError as error:
            words = f"--{name} must be a file that can be written, got {path}: {error.strerror}"
            raise errors.ArgumentError(words) from error
    machine.hold_libraries()
    machine.hold_torch()
    seconds = 0.001 if options.quick else 0.01
    rounds = options.repeats or (3 if options.quick else 7)
    settings = f"Medians of {rounds} rounds, turns of {seconds * 1e3:g} milliseconds at least"
    if options.quick:
        settings += ", small rings (--quick): these figures say nothing about speed"
        chosen = [one.quick() for one in chosen]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000  # A line stays a line in a pipe.
    rows = []
    with warnings.catch_warnings(action="ignore"):
        for one in chosen:
            print("\n" + textwrap.fill(f"{one.name}: {one.title}, {one.unit}", width), flush=True)
            rows.append(runner.measure(one, peers, rounds=rounds, seconds=seconds))
            print(report.text(rows[-1], width), flush=True)
    measured = results.Run(
        command=shlex.join(["relive", *sys.argv[1:]]),
        machine=machine.facts(),
        versions={one.peer: catalogue.PEERS[one.peer].version() for row in rows for one in row.measured},
        settings=settings,
        rows=rows,
    )
    print()
    for line in measured.unmeasured():
        print(textwrap.fill(f"not measured: {line}", width, subsequent_indent="  "))
    if options.json:
        text = json.dumps(dataclasses.asdict(measured), indent=1)
        pathlib.Path(options.json).write_text(text + "\n", encoding="utf-8")
    if options.markdown:
        page = pathlib.Path(options.markdown)
        seen = pathlib.Path(os.path.relpath(options.plot, page.parent)).as_posix() if options.plot else None
        page.write_text(report.page(measured, seen), encoding="utf-8")
    if options.plot:
        picture.save(measured, options.plot)
    return 0


def _begins(name: str, word: str) -> bool:
    return not word or f"{name}-".startswith(f"{word}-")


def _listing() -> str:
    width = max(map(len, [*workloads.WORKLOADS, *catalogue.PEERS]))
    lines = ["workloads (the first word of a name selects all that begin with it):"]
    lines += [f"  {one.name:{width}}  {one.title}" for one in workloads.WORKLOADS.values()]
    lines.append("peers:")
    lines += [f"  {peer.name:{width}}  {peer.what}" for peer in catalogue.PEERS.values()]
    return "\n".join(lines) + "\n"
