"""Measures a fleet of shards beside Reverb's server, by turns, and what the parts of a fleet take of the processor."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

from relive.bench import fleet_processor
from relive.bench import fleet_programs
from relive.bench import fleet_simulation
from relive.bench import machine
from relive.bench import tasks
from relive.testing import fleet_work

_MODES: tuple[fleet_programs.Mode, ...] = ("insert", "sample", "both")
_SHARDS = (1, 2, 4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of step that the parts of a fleet are measured with, on one shard.

    Attributes:
        work: The steps.
        messages: Steps in a small message of a writer and in a large one.
        batches: Transitions in a small batch and in a large one.
    """

    work: fleet_work.Work
    messages: tuple[int, int] = (100, 1000)
    batches: tuple[int, int] = (64, 1024)


KINDS = {
    "small": Kind(work=fleet_work.Work(capacity=100_000)),
    "medium": Kind(work=fleet_work.Work(shape=(256,), capacity=20_000)),
    "image": Kind(
        work=fleet_work.Work(shape=(84, 84, 4), dtype="uint8", steps=20, capacity=4_000, message_steps=100),
        messages=(20, 100),
        batches=(32, 256),
    ),
}
"""Steps of 64 bytes, of 1 kB and of 28 kB, the four stacked images of an Atari game."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How long to measure.

    Attributes:
        rounds: So many turns has each system in each mode; half of them count.
        seconds: Of a turn.
    """

    rounds: int = 9
    seconds: float = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Observed:
    """A turn, and the cores that all else on the machine took meanwhile."""

    turn: fleet_programs.Turn
    others: float


def _calm(observed: Sequence[_Observed]) -> list[_Observed]:
    """Return the half of the turns, or one more than that, in which others took least, whatever came of them."""
    return sorted(observed, key=lambda one: one.others)[: (len(observed) + 1) // 2]


def _point(system: str, shards: int, mode: str, observed: Sequence[_Observed]) -> dict[str, Any]:
    """Return what one system did in one mode: medians over the calm turns, and the least and the most of each rate."""
    turns = [one.turn for one in _calm(observed)]
    seconds = [max(turn.insert_seconds, turn.draw_seconds) for turn in turns]
    return {
        "system": system,
        "shards": shards,
        "mode": mode,
        "steps": _spread([turn.steps for turn in turns]),
        "transitions": _spread([turn.transitions for turn in turns]),
        "cores": {
            kind: statistics.median(
                turn.processor.get(kind, 0.0) / taken for turn, taken in zip(turns, seconds, strict=True)
            )
            for kind in ("writers", "shards", "learner", "rest")
        },
        "others": statistics.median(one.others for one in _calm(observed)),
        "wrong": sum(one.turn.wrong for one in observed),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


class _Bench:
    """The programs and their fleets.

    Args:
        programs: By name.
        fleets: The program and the number of shards of each fleet, by name.
        settings: How long to measure.
    """

    def __init__(
        self,
        programs: Mapping[str, fleet_programs.Program],
        fleets: Mapping[str, tuple[str, int]],
        settings: Settings,
    ) -> None:
        self._programs, self._fleets, self._settings = programs, fleets, settings

    def turn(self, mode: fleet_programs.Mode, fleet: str, **asked: int) -> _Observed:
        """Return what came of a turn."""
        start, busy = time.perf_counter(), fleet_processor.busy_seconds()
        own = sum(fleet_processor.seconds_by_process().values())
        turn = self._programs[self._fleets[fleet][0]].turn(mode, self._settings.seconds, fleet=fleet, **asked)
        taken, busy = time.perf_counter() - start, fleet_processor.busy_seconds() - busy
        own = sum(fleet_processor.seconds_by_process().values()) - own
        return _Observed(turn=turn, others=max(0.0, busy - own) / taken)

    def fill(self, fleet: str, capacity: int) -> None:
        """Insert as many steps as are stored at most, so that from then on one goes for each that comes."""
        inserted = 0
        while inserted < capacity:
            inserted += self.turn("insert", fleet).turn.inserted

    def points(self, systems: Sequence[str]) -> list[dict[str, Any]]:
        """Measure by turns: in every round each system has its turn in each mode."""
        found: dict[tuple[str, str], list[_Observed]] = {}
        for _ in range(self._settings.rounds):
            for mode in _MODES:
                for system in systems:
                    found.setdefault((system, mode), []).append(self.turn(mode, system))
        return [_point(system, self._fleets[system][1], mode, observed) for (system, mode), observed in found.items()]

    def costs(self, kind: Kind, fleet: str) -> dict[str, Any]:
        """Return what the parts of a fleet of one shard take of the processor, each for few rows and for many."""
        turns: dict[tuple[fleet_programs.Mode, int], list[_Observed]] = {}
        for _ in range(self._settings.rounds):
            for steps in kind.messages:
                turns.setdefault(("insert", steps), []).append(self.turn("insert", fleet, message_steps=steps))
            for rows in kind.batches:
                turns.setdefault(("sample", rows), []).append(self.turn("sample", fleet, batch_size=rows))
            turns.setdefault(("ping", 1), []).append(self.turn("ping", fleet))
        calm = {asked: [one.turn for one in _calm(observed)] for asked, observed in turns.items()}

        def seconds(mode: fleet_programs.Mode, part: str, rows: int) -> float:
            """Return what a part of the fleet took for a message, a batch or a request of so many rows."""
            return statistics.median(
                turn.processor[part] * rows / (turn.inserted + turn.drawn + turn.asked) for turn in calm[mode, rows]
            )

        ask, look = seconds("ping", "learner", 1), seconds("ping", "shards", 1)

        def through(mode: fleet_programs.Mode, part: str, sizes: tuple[int, int], less: float) -> fleet_simulation.Cost:
            few, many = ((rows, seconds(mode, part, rows) - less) for rows in sizes)
            return fleet_simulation.Cost.through(few, many)

        sizes = kind.work.sizes()
        costs = fleet_simulation.Costs(
            write=through("insert", "writers", kind.messages, 0.0),
            insert=through("insert", "shards", kind.messages, 0.0),
            ask=ask,
            look=look,
            draw=through("sample", "shards", kind.batches, look),
            join=through("sample", "learner", kind.batches, 2 * ask),
            step_bytes=sizes["step"],
            transition_bytes=sizes["transition"],
        )
        return {
            "work": dataclasses.asdict(kind.work),
            "costs": dataclasses.asdict(costs),
            "stored_bytes": sizes["stored"],
        }


def run(reverb: str | None, settings: Settings, kinds: Mapping[str, Kind] = KINDS) -> dict[str, Any]:
    """Return what was measured.

    Args:
        reverb: A Python that has dm-reverb; None to leave it out.
        settings: How long.
        kinds: Of steps; the first one is what the systems are measured with.
    """
    work = next(iter(kinds.values())).work
    own = {f"relive-{shards}": (shards, work) for shards in _SHARDS}
    apart = {kind: f"relive-1-{kind}" for kind in list(kinds)[1:]}
    fleets = {**own, **{name: (1, kinds[kind].work) for kind, name in apart.items()}}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        directory = pathlib.Path(folder)
        programs = {
            "relive": fleet_programs.Program(
                [sys.executable, "-m", fleet_programs.RAY, fleet_programs.config(fleets, directory)],
                directory / "relive",
            )
        }
        stack.callback(programs["relive"].close)
        where = {name: ("relive", shards) for name, (shards, _) in fleets.items()}
        left_out = "reverb was left out: give --reverb PYTHON, one that has dm-reverb"
        if reverb:
            told = fleet_programs.config({"reverb": (1, work)}, directory)
            try:
                programs["reverb"] = fleet_programs.Program(
                    [reverb, str(fleet_programs.REVERB), told], directory / "reverb"
                )
            except tasks.CannotError as error:
                left_out = f"reverb was left out: it {error}"
            else:
                stack.callback(programs["reverb"].close)
                where["reverb"], left_out = ("reverb", 1), ""
        bench = _Bench(programs, where, settings)
        for name in where:
            bench.fill(name, fleets[name][1].capacity if name in fleets else work.capacity)
        points = bench.points([*(["reverb"] if "reverb" in where else []), *own])
        costs = {kind: bench.costs(one, apart.get(kind, "relive-1")) for kind, one in kinds.items()}
        versions = {name: program.version for name, program in programs.items()}
    return {
        "machine": machine.facts(),
        "versions": versions,
        "left_out": left_out,
        "work": dataclasses.asdict(work),
        "settings": dataclasses.asdict(settings),
        "points": points,
        "kinds": costs,
    }
