"""`relive bench`: measures the workloads that were asked for, prints tables, and writes what it was asked to write."""

import argparse
from collections.abc import Sequence
import contextlib
import importlib
import json
import os
import pathlib
import shlex
import sys
import types
import warnings

from relive import errors
from relive.bench import catalogue
from relive.bench import curve
from relive.bench import machine
from relive.bench import markdown
from relive.bench import measuring
from relive.bench import results
from relive.bench import selection
from relive.bench import text
from relive.bench import workload as workloads

_FILES = ("json", "markdown", "plot")


def run(options: argparse.Namespace) -> int:
    """Measure, and return 0; starts itself anew with one thread a library, where that was not seen to."""
    if options.list:
        sys.stdout.write(selection.listing())
        return 0
    try:
        selection.check(options.workload)
        peers = selection.peers(options.peers)
    except errors.ArgumentError as error:
        parser: argparse.ArgumentParser = options.parser
        parser.error(str(error))
    for name in _FILES:
        _check_path(name, getattr(options, name))
    chart = _chart() if options.plot else None
    arguments = _arguments(options)
    if not machine.is_held_to_one_thread(os.environ):
        machine.start_anew(arguments)
    machine.hold_torch()
    settings = measuring.Settings.chosen(options.repeats, options.quick)
    with warnings.catch_warnings(action="ignore"):
        rows = _measured(selection.workloads(options.workload), peers, settings)
        curves = _measured_curves(selection.curves(options.workload), peers, settings)
    measured = results.Run(
        command=shlex.join(["relive", *arguments]),
        facts=machine.facts(),
        versions={name: peer.version() for name, peer in peers.items() if any(row.has(name) for row in rows)},
        settings=settings.in_words(),
        rows=rows,
        curves=curves,
    )
    if options.json:
        _write("json", options.json, json.dumps(measured.as_json(), indent=1) + "\n")
    if chart:
        chart.save(measured, options.plot)
    if options.markdown:
        _write("markdown", options.markdown, markdown.page(measured, _picture(options)))
    return 0


def _measured(
    chosen: Sequence[workloads.Workload], peers: dict[str, catalogue.Peer], settings: measuring.Settings
) -> list[results.Row]:
    """Measure one workload after the other, and print each when it is there."""
    rows = []
    for workload in chosen:
        rows.append(measuring.measure(workload, peers, settings, _say))
        _print(text.table(rows[-1]))
    return rows


def _measured_curves(
    chosen: Sequence[curve.Curve], peers: dict[str, catalogue.Peer], settings: measuring.Settings
) -> list[results.Curve]:
    """Measure one curve after the other, and print each when it is there."""
    curves = []
    for one in chosen:
        curves.append(measuring.measure_curve(one, peers, settings, _say))
        _print(text.curve_table(curves[-1]))
    return curves


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


def _chart() -> types.ModuleType:
    """Import what draws, and matplotlib with it: before the measuring, not after it."""
    return importlib.import_module("relive.bench.chart")


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


def _print(table: str) -> None:
    """Print a table in the place of what was going on."""
    _say("")
    sys.stdout.write(table)
    sys.stdout.flush()


def _say(line: str) -> None:
    """Show what is going on, in the last line of a terminal; elsewhere nobody waits for it."""
    if sys.stderr.isatty():
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
