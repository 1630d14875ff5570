"""`relive bench`: measures the workloads that were asked for, prints tables, and writes what it was asked to write."""

import argparse
from collections.abc import Sequence
import contextlib
import json
import os
import pathlib
import shlex
import sys
import warnings

from relive import errors
from relive.bench import catalogue
from relive.bench import machine
from relive.bench import report
from relive.bench import results
from relive.bench import runner
from relive.bench import workloads

_FILES = ("json", "markdown", "plot")


def run(options: argparse.Namespace) -> int:
    """Measure, and return 0; starts itself anew with one thread a library, where that was not seen to."""
    if options.list:
        sys.stdout.write(_listing())
        return 0
    try:
        chosen, peers = _workloads(options.workload), _peers(options.peers)
    except errors.ArgumentError as error:
        parser: argparse.ArgumentParser = options.parser
        parser.error(str(error))
    for name in _FILES:
        _check_path(name, getattr(options, name))
    arguments = _arguments(options)
    if not machine.is_held_to_one_thread(os.environ):
        machine.start_anew(arguments)
    machine.hold_torch()
    settings = runner.Settings.chosen(options.repeats, options.quick)
    rows = []
    with warnings.catch_warnings(action="ignore"):
        for workload in chosen:
            rows.append(runner.measure(workload, peers, settings, _say))
            _say("")  # The table comes in the place of what was going on.
            sys.stdout.write(rows[-1].table())
            sys.stdout.flush()
    measured = results.Run(
        command=shlex.join(["relive", *arguments]),
        facts=machine.facts(),
        versions={name: peer.version() for name, peer in peers.items() if any(row.has(name) for row in rows)},
        settings=settings.in_words(),
        rows=rows,
    )
    if options.json:
        _write("json", options.json, json.dumps(measured.as_json(), indent=1) + "\n")
    if options.plot:
        report.save_picture(measured, options.plot)
    if options.markdown:
        _write("markdown", options.markdown, report.page(measured, _picture(options)))
    return 0


def _workloads(names: Sequence[str] | None) -> list[workloads.Workload]:
    """Return the workloads of those names or families, all of them if None, in the order of the tables."""
    known = {name for one in workloads.WORKLOADS.values() for name in (one.name, one.family)}
    for name in names or ():
        if name not in known:
            raise errors.ArgumentError(f"--workload must be one of {', '.join(sorted(known))}, got {name}")
    return [one for one in workloads.WORKLOADS.values() if not names or one.name in names or one.family in names]


def _peers(names: Sequence[str] | None) -> dict[str, catalogue.Peer]:
    """Return the peers of those names, all of them if None, in the order of the tables."""
    for name in names or ():
        if name not in catalogue.PEERS:
            raise errors.ArgumentError(f"--peers must be some of {', '.join(catalogue.PEERS)}, got {name}")
    return {name: peer for name, peer in catalogue.PEERS.items() if not names or name in names}


def _listing() -> str:
    """Return every name there is and what it stands for."""
    width = max(map(len, [*workloads.WORKLOADS, *catalogue.PEERS]))
    lines = ["workloads (a family stands for all of its own):"]
    family = ""
    for one in workloads.WORKLOADS.values():
        label = f"{one.family}:" if one.family != family else ""
        family = one.family
        lines.append(f"  {label:13}{one.name:{width}}  {one.title}")
    lines.append("peers:")
    lines += [f"  {'':13}{peer.name:{width}}  {peer.what}" for peer in catalogue.PEERS.values()]
    return "\n".join(lines) + "\n"


def _arguments(options: argparse.Namespace) -> list[str]:
    """Return the command line that the options came from, without the name of the program."""
    arguments = ["bench"]
    for name in ("workload", "peers"):
        if getattr(options, name):
            arguments += [f"--{name}", *getattr(options, name)]
    if options.repeats:
        arguments += ["--repeats", str(options.repeats)]
    if options.quick:
        arguments.append("--quick")
    for name in _FILES:
        if getattr(options, name):
            arguments += [f"--{name}", getattr(options, name)]
    return arguments


def _picture(options: argparse.Namespace) -> str | None:
    """Return where the picture is, seen from the page; None if there is none."""
    if not options.plot:
        return None
    return os.path.relpath(options.plot, pathlib.Path(options.markdown).parent)


def _check_path(name: str, path: str | None) -> None:
    """Raise ArgumentError if a file cannot be there; before the measuring, not after it."""
    if path is not None and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or ".")):
        raise errors.ArgumentError(f"--{name} must be a file in a directory that exists, got {path}")


def _write(name: str, path: str, content: str) -> None:
    try:
        pathlib.Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise errors.ArgumentError(f"--{name} could not be written to {path}: {error.strerror}") from error


def _say(line: str) -> None:
    """Show what is going on, in the last line of a terminal; elsewhere nobody waits for it."""
    if sys.stderr.isatty():
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
