"""What a model of a fleet says: beside what was measured, and of many machines.

    python -m relive.bench.fleet_model FILE [--machines N] [--steps N] [--gigabits N] [--cores N] ... [--markdown FILE]

FILE is what `python -m relive.bench.fleet --json` has written. The model takes from it what the parts of a fleet of one
shard take of the processor, and how many cores others left; no rate that was measured goes into it.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import pathlib
import sys
from typing import Any

from relive.bench import fleet_bounds
from relive.bench import fleet_simulation

_BATCHES = (256, 2048, 16384)
_SECONDS = 10.0
"""How long what was measured is simulated."""

_EVENTS = 50_000
"""About so many messages or requests a simulation lasts at most, so that a large fleet is not simulated for ever."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """What is asked about; none of it was measured here.

    Attributes:
        machines: With one shard and `writers` writers each; the learner has one more.
        steps: That are to be stored.
        cores: Of a machine.
        gigabits: Of its network, a second.
        microseconds: From one machine to another.
        gigabytes: Of a machine's memory.
        writers: On a machine.
    """

    machines: int = 64
    steps: float = 1e9
    cores: int = 16
    gigabits: float = 25.0
    microseconds: float = 100.0
    gigabytes: float = 128.0
    writers: int = 4

    def plan(self, work: Mapping[str, Any], batch_size: int) -> fleet_simulation.Plan:
        """Return where the fleet is."""
        return fleet_simulation.Plan(
            shards=self.machines,
            writers=self.machines * self.writers,
            machines=self.machines,
            cores=self.cores,
            bytes_a_second=self.gigabits * 1e9 / 8,
            latency=self.microseconds * 1e-6,
            message_rows=work["message_steps"],
            in_flight=work["in_flight"],
            batch_size=batch_size,
            prefetch=work["prefetch"] + 1,
        )


def costs_of(told: Mapping[str, Any]) -> fleet_simulation.Costs:
    """Return the costs that were written as JSON."""
    costs: dict[str, Any] = {
        name: fleet_simulation.Cost(**value) if isinstance(value, dict) else value for name, value in told.items()
    }
    return fleet_simulation.Costs(**costs)


def here(measured: Mapping[str, Any], point: Mapping[str, Any]) -> fleet_simulation.Plan:
    """Return where the fleet of a measured point was: on one machine, of which others had a part."""
    work = measured["work"]
    return fleet_simulation.Plan(
        shards=point["shards"],
        writers=work["writers"],
        cores=max(0.1, int(measured["machine"]["cores"]) - point["others"] - point["cores"]["rest"]),
        message_rows=work["message_steps"],
        in_flight=work["in_flight"],
        batch_size=work["batch_size"],
        prefetch=work["prefetch"] + 1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A measured rate and what the model says of it.

    Attributes:
        shards, mode: Of what.
        what: "steps" inserted or "transitions" drawn.
        cores: That were free for the fleet.
        measured, simulated: A second.
        bound: What binds, and how many a second it allows; None where both share what there is.
    """

    shards: int
    mode: str
    what: str
    cores: float
    measured: float
    simulated: float
    bound: tuple[str, float] | None

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured


def check(measured: Mapping[str, Any]) -> list[Checked]:
    """Return each rate of relive's that was measured, beside what the model makes of it."""
    costs = costs_of(next(iter(measured["kinds"].values()))["costs"])
    checked = []
    for point in measured["points"]:
        if not point["system"].startswith("relive"):
            continue
        plan, mode = here(measured, point), point["mode"]
        outcome = fleet_simulation.simulate(costs, plan, mode, seconds=_SECONDS)
        simulated = {"steps": outcome.inserted, "transitions": outcome.drawn}
        bounds = {"insert": fleet_bounds.inserting, "sample": fleet_bounds.drawing}
        bound = fleet_bounds.least(bounds[mode](costs, plan)) if mode in bounds else None
        for what, value in simulated.items():
            if point[what]["median"]:
                checked.append(
                    Checked(
                        shards=point["shards"],
                        mode=mode,
                        what=what,
                        cores=plan.cores,
                        measured=point[what]["median"],
                        simulated=value,
                        bound=bound,
                    )
                )
    return checked


def page(measured: Mapping[str, Any], hardware: Hardware) -> str:
    """Return the tables of the model, in Markdown."""
    parts = [_costs(measured), _checked(measured), _memory(measured, hardware)]
    parts += [_inserting(measured, hardware), _drawing(measured, hardware)]
    return "\n".join("\n".join([*part, ""]) for part in parts)


def _costs(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "| milliseconds of a core | " + " | ".join(measured["kinds"]) + " |"
    yield "|---" * (1 + len(measured["kinds"])) + "|"
    kinds = [costs_of(kind["costs"]) for kind in measured["kinds"].values()]
    names = {
        "write": "a writer, for a message of n steps",
        "insert": "a shard, for it",
        "ask": "the learner, for a request",
        "look": "a shard, for saying how much it has",
        "draw": "a shard, for n transitions",
        "join": "the learner, for a batch of n",
    }
    for name, words in names.items():
        cells = [_cost(getattr(costs, name)) for costs in kinds]
        yield f"| {words} | {' | '.join(cells)} |"


def _cost(cost: fleet_simulation.Cost | float) -> str:
    if isinstance(cost, fleet_simulation.Cost):
        return f"{cost.fixed * 1e3:.2f} + {cost.row * 1e3:.5f} n"
    return f"{cost * 1e3:.2f}"


def _checked(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "| shards | mode | what | cores left | measured/s | simulated/s | simulated / measured | bound/s |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in check(measured):
        bound = f"{one.bound[1]:,.0f}: {one.bound[0]}" if one.bound else ""
        yield (
            f"| {one.shards} | {one.mode} | {one.what} | {one.cores:.2f} | {one.measured:,.0f} | {one.simulated:,.0f} "
            f"| {one.ratio:.2f} | {bound} |"
        )


def _memory(measured: Mapping[str, Any], hardware: Hardware) -> Iterator[str]:
    steps, memory = f"{hardware.steps:,.0f} steps", f"{hardware.machines} x {hardware.gigabytes:g} GB"
    yield f"| kind | bytes a stored step | GB a machine for {steps} | steps in {memory} |"
    yield "|---|---|---|---|"
    for name, kind in measured["kinds"].items():
        size = kind["stored_bytes"]
        fit = hardware.gigabytes * 1e9 / size * hardware.machines
        yield f"| {name} | {size:,.0f} | {size * hardware.steps / hardware.machines / 1e9:,.1f} | {fit:,.0f} |"


def _inserting(measured: Mapping[str, Any], hardware: Hardware) -> Iterator[str]:
    yield "| kind | binds first | steps/s allowed by it | by what comes next | simulated steps/s | minutes for all |"
    yield "|---|---|---|---|---|---|"
    for name, kind in measured["kinds"].items():
        costs, work = costs_of(kind["costs"]), measured["work"] | kind["work"]
        plan = hardware.plan(work, work["batch_size"])
        (first, steps), following = _two_least(fleet_bounds.inserting(costs, plan))
        seconds = min(4.0, _EVENTS * plan.message_rows / steps)
        simulated = fleet_simulation.simulate(costs, plan, "insert", seconds=seconds).inserted
        yield (
            f"| {name} | {first} | {steps:,.0f} | {following[1]:,.0f}: {following[0]} | {simulated:,.0f} "
            f"| {hardware.steps / simulated / 60:,.1f} |"
        )


def _drawing(measured: Mapping[str, Any], hardware: Hardware) -> Iterator[str]:
    yield (
        "| kind | batch | binds first | transitions/s allowed by it | by what comes next | simulated transitions/s "
        "| steps/s inserted beside it, at most | learners until the shards bind |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, kind in measured["kinds"].items():
        costs, work = costs_of(kind["costs"]), measured["work"] | kind["work"]
        for size in _BATCHES:
            plan = hardware.plan(work, size)
            bounds = fleet_bounds.drawing(costs, plan)
            (first, drawn), following = _two_least(bounds)
            seconds = min(600.0, max(_EVENTS / (2 * plan.shards), 50) * size / drawn)
            simulated = fleet_simulation.simulate(costs, plan, "sample", seconds=seconds).drawn
            beside = fleet_bounds.inserting_beside(costs, plan, drawn)
            learners = min(bounds["shards"], bounds["cores"]) / drawn
            yield (
                f"| {name} | {size:,} | {first} | {drawn:,.0f} | {following[1]:,.0f}: {following[0]} "
                f"| {simulated:,.0f} | {beside:,.0f} | {learners:,.0f} |"
            )


def _two_least(bounds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(bounds.items(), key=lambda item: item[1])[:2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, and write them where it was asked to."""
    parser = argparse.ArgumentParser(
        prog="python -m relive.bench.fleet_model", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("file", type=pathlib.Path, help="what `python -m relive.bench.fleet --json` has written")
    for field in dataclasses.fields(Hardware):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default, metavar="N")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the tables")
    options = parser.parse_args(arguments)
    hardware = Hardware(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Hardware)})
    tables = page(json.loads(options.file.read_text(encoding="utf-8")), hardware)
    sys.stdout.write(tables)
    if options.markdown:
        options.markdown.write_text(tables, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
