"""What came of a run: outcomes by workload, and what can be said about them."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from relive.bench import catalogue
from relive.bench import rounds

OWN = ("relive", "relive-numba", "relive-episodes")
"""relive's own buffers; the first one that was measured is what the others are compared with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one peer in one workload.

    Attributes:
        peer: Its name.
        timing: Of one part, in seconds; None if it was not timed.
        bytes_a_step: What a stored step takes; None if it was not measured.
        reason: Why there is neither.
        wrong: What was wrong in which share of the rows that it returned while it was timed.
        small_wrong: The same in a ring of a few hundred steps, where no row is far from an end or from the seam.
    """

    peer: str
    timing: rounds.Timing | None = None
    bytes_a_step: float | None = None
    reason: str = ""
    wrong: Mapping[str, float] = dataclasses.field(default_factory=dict)
    small_wrong: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """What is compared: microseconds, or bytes; None if it was not measured."""
        return self.timing.median * 1e6 if self.timing else self.bytes_a_step

    @property
    def is_right(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.wrong and not self.small_wrong

    @property
    def is_limit(self) -> bool:
        """Whether it is no buffer but a limit."""
        return catalogue.PEERS[self.peer].is_limit

    def faults(self) -> str:
        """Return what is wrong in which share of the rows, in words; nothing if it is right.

        The shares are those of the full size, and of a small ring in brackets where the full size showed none.
        """
        parts = [f"{part} in {_share(share)}" for part, share in self.wrong.items()]
        parts += [f"{part} in ({_share(share)})" for part, share in self.small_wrong.items() if part not in self.wrong]
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One workload and the outcomes of all who were asked.

    Attributes:
        name, title, family: The workload's own.
        unit: What the values are: microseconds a batch or step, or bytes a step.
        why: Why others are faster, where one is.
        outcomes: In the order of the tables.
    """

    name: str
    title: str
    family: str
    unit: str
    outcomes: Sequence[Outcome]
    why: str = ""

    @functools.cached_property
    def measured(self) -> list[Outcome]:
        """Those who were measured, limits included."""
        return [outcome for outcome in self.outcomes if outcome.value is not None]

    @property
    def own(self) -> Outcome | None:
        """What came of relive: of its buffer of columns, or else of episodes."""
        return next((one for name in OWN for one in self.measured if one.peer == name), None)

    @property
    def fastest(self) -> Outcome | None:
        """The best of those that are right and neither a limit nor relive."""
        rivals = [one for one in self.measured if one.is_right and not one.is_limit and one.peer not in OWN]
        return min(rivals, key=lambda one: one.value or 0.0, default=None)

    def has(self, peer: str) -> bool:
        """Return whether that peer was measured."""
        return any(one.peer == peer for one in self.measured)

    def ratio(self, outcome: Outcome, base: Outcome | None) -> float | None:
        """Return how many times the base's value the outcome's is."""
        if base is None or not base.value or outcome.value is None:
            return None
        return outcome.value / base.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """One curve and the outcomes at all of its sizes.

    Attributes:
        name, title, unit, part: The curve's own.
        lines: The outcomes of each peer by size, from the smallest on.
    """

    name: str
    title: str
    unit: str
    part: str
    lines: Mapping[str, Mapping[int, Outcome]]

    def measured(self, peer: str) -> dict[int, Outcome]:
        """Return the outcomes of the sizes at which that peer was measured."""
        return {size: one for size, one in self.lines[peer].items() if one.value is not None}

    def growth(self, peer: str, size: int) -> float | None:
        """Return how many times the value at its smallest size a peer's value is; None where it was not measured."""
        values = {size: one.value or 0.0 for size, one in self.measured(peer).items()}
        return values[size] / next(iter(values.values())) if size in values else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the command.

    Attributes:
        command: The command line.
        facts: Of the machine and the interpreter.
        versions: Of the peers that were measured, by name.
        settings: Of the measuring, in words.
        rows: One for each workload.
        curves: What grows.
    """

    command: str
    facts: Mapping[str, str]
    versions: Mapping[str, str]
    settings: str
    rows: Sequence[Row]
    curves: Sequence[Curve] = ()

    def wrong(self) -> Iterator[tuple[str, str, Outcome]]:
        """Yield who was wrong, and where, peer by peer."""
        outcomes = [(row.name, one) for row in self.rows for one in row.outcomes]
        for curve in self.curves:
            outcomes += [(curve.name, one) for line in curve.lines.values() for one in line.values()]
        for name in catalogue.PEERS:
            for where, one in outcomes:
                if one.peer == name and not one.is_right:
                    yield name, where, one

    def as_json(self) -> dict[str, Any]:
        """Return all of it in what JSON has."""
        rows = [
            {
                "workload": row.name,
                "title": row.title,
                "unit": row.unit,
                "outcomes": [
                    {
                        "times_relive": row.ratio(one, row.own),
                        "times_fastest_right_peer": row.ratio(one, row.fastest),
                        **_outcome_as_json(one),
                    }
                    for one in row.outcomes
                ],
            }
            for row in self.rows
        ]
        curves = [
            {
                "curve": curve.name,
                "title": curve.title,
                "unit": curve.unit,
                "points": [
                    {"size": size, "times_smallest": curve.growth(peer, size), **_outcome_as_json(one)}
                    for peer, line in curve.lines.items()
                    for size, one in line.items()
                ],
            }
            for curve in self.curves
        ]
        return {
            "command": self.command,
            "machine": dict(self.facts),
            "versions": dict(self.versions),
            "settings": self.settings,
            "workloads": rows,
            "curves": curves,
        }


def _outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    timing = outcome.timing and dataclasses.asdict(outcome.timing)
    return {
        "peer": outcome.peer,
        "is_limit": outcome.is_limit,
        "value": outcome.value,
        "seconds": timing,
        "is_right": outcome.is_right if outcome.value is not None and not outcome.is_limit else None,
        "wrong": dict(outcome.wrong),
        "wrong_in_a_small_ring": dict(outcome.small_wrong),
        "not_measured": outcome.reason or None,
    }


def _share(share: float) -> str:
    """Return a share in percent, with a digit more where it is small."""
    if share < 0.0001:
        return "less than 0.01%"
    return f"{share:.1%}" if share >= 0.01 else f"{share:.2%}"
