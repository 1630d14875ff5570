"""A fleet of shards beside Reverb's server, on the same work in one run, and what its parts take of the processor.

    python -m relive.bench.fleet [--quick] [--rounds N] [--reverb PYTHON] [--json FILE] [--markdown FILE]

Writers send whole episodes, a learner draws batches of transitions; alone, and both at a time. Everything is on this
machine: where there are fewer cores than processes, they share them. `relive.bench.fleet_model` makes a model of what
is measured here. `pip install 'relive[ray]'` brings Ray; PYTHON is one that has dm-reverb.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import json
import pathlib
import sys
from typing import Any

from relive.bench import fleet_measuring
from relive.bench import tasks
from relive.testing import fleet_work

_QUICK = fleet_measuring.Settings(rounds=1, seconds=0.3)
_SMALL = {"small": fleet_measuring.Kind(work=fleet_work.Work(capacity=2_000))}
_COLUMNS = {"insert": ("steps",), "sample": ("transitions",), "both": ("steps", "transitions")}


def page(measured: Mapping[str, Any]) -> str:
    """Return the tables of a run, in Markdown."""
    return "\n".join(_lines(measured)) + "\n"


def _lines(measured: Mapping[str, Any]) -> Iterator[str]:
    work, settings, facts = measured["work"], measured["settings"], measured["machine"]
    yield (
        f"{work['writers']} writers send episodes of {work['steps']} steps of {work['dtype']}{list(work['shape'])}, a "
        f"learner draws batches of {work['batch_size']} transitions; {work['capacity']:,} steps are stored. Systems "
        f"take turns of {settings['seconds']:g} seconds, {settings['rounds']} in each mode; medians of the half of "
        "them in which others took least of the machine, with the lowest and the highest. All processes share "
        f"{facts['cores']} cores ({facts['processor']}); {', '.join(measured['versions'].values())}."
    )
    yield ""
    yield "| | steps/s inserted, alone | transitions/s drawn, alone | steps/s, both | transitions/s, both |"
    yield "|---|---|---|---|---|"
    systems: dict[str, dict[str, Mapping[str, Any]]] = {}
    for point in measured["points"]:
        systems.setdefault(point["system"], {})[point["mode"]] = point
    for system, modes in systems.items():
        cells = [_rate(modes[mode][name]) for mode, names in _COLUMNS.items() for name in names]
        yield f"| {system} | {' | '.join(cells)} |"
    yield ""
    yield "Cores that each kind of process took, and that others on the machine took meanwhile:"
    yield ""
    yield "| | mode | writers | shards | learner | Ray's own | others |"
    yield "|---|---|---|---|---|---|---|"
    for point in measured["points"]:
        cores = [f"{cores:.2f}" for cores in (*point["cores"].values(), point["others"])]
        yield f"| {point['system']} | {point['mode']} | {' | '.join(cores)} |"
    wrong = sum(point["wrong"] for point in measured["points"])
    yield ""
    yield f"Wrong transitions in the last batch of each turn: {wrong}."
    if measured["left_out"]:
        yield f"\nNote: {measured['left_out']}."


def _rate(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:,.0f} ({spread['low']:,.0f} to {spread['high']:,.0f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, prints the tables, and write what it was asked to write."""
    parser = argparse.ArgumentParser(prog="python -m relive.bench.fleet", description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="little of everything: the figures say nothing about speed"
    )
    parser.add_argument("--rounds", type=int, help="turns of each system in each mode")
    parser.add_argument("--reverb", metavar="PYTHON", help="a Python that has dm-reverb; left out without it")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write what was measured, for the model")
    parser.add_argument("--markdown", metavar="FILE", type=pathlib.Path, help="write the tables")
    options = parser.parse_args(arguments)
    settings = _QUICK if options.quick else fleet_measuring.Settings()
    if options.rounds is not None:
        settings = fleet_measuring.Settings(rounds=options.rounds, seconds=settings.seconds)
    kinds = _SMALL if options.quick else fleet_measuring.KINDS
    try:
        measured = fleet_measuring.run(options.reverb, settings, kinds)
    except tasks.CannotError as error:
        parser.exit(1, f"relive's fleets could not be measured: the program {error}\n")
    tables = page(measured)
    sys.stdout.write(tables)
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(tables, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
