"""What came of a run: outcomes by workload, what can be said about them, and the tables that the command prints."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from relive.bench import catalogue

OWN = ("relive", "relive-numba", "relive-episodes")
"""relive's own buffers; the first one that was measured is what the others are compared with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """What a call took, in seconds a call.

    Attributes:
        median: Over the rounds.
        low: In the fastest round.
        high: In the slowest round.
        rounds: How many there were.
        repeats: How many calls a round made.
    """

    median: float
    low: float
    high: float
    rounds: int
    repeats: int

    def per(self, steps: int) -> "Timing":
        """Return the timing of one of the equal parts that a call is made of."""
        return dataclasses.replace(self, median=self.median / steps, low=self.low / steps, high=self.high / steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one peer in one workload, at one size.

    Attributes:
        peer: Its name.
        size: Where a workload has several.
        timing: Of one part, in seconds; None if it was not timed.
        bytes_a_step: What a stored step takes; None if it was not measured.
        reason: Why there is neither.
        wrong: What was wrong in which share of the rows that it returned while it was timed.
        small_wrong: The same in a ring of a few hundred steps, where no row is far from an end or from the seam.
    """

    peer: str
    size: int = 0
    timing: Timing | None = None
    bytes_a_step: float | None = None
    reason: str = ""
    wrong: Mapping[str, float] = dataclasses.field(default_factory=dict)
    small_wrong: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """What is compared: microseconds, or bytes; None if it was not measured."""
        return self.timing.median * 1e6 if self.timing else self.bytes_a_step

    @property
    def spread(self) -> tuple[float, float]:
        """The values of the fastest and the slowest round."""
        value = self.bytes_a_step or 0.0
        return (self.timing.low * 1e6, self.timing.high * 1e6) if self.timing else (value, value)

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

    def as_json(self) -> dict[str, Any]:
        """Return all of it in what JSON has."""
        return {
            "peer": self.peer,
            "size": self.size or None,
            "is_limit": self.is_limit,
            "value": self.value,
            "seconds": self.timing and dataclasses.asdict(self.timing),
            "is_right": self.is_right if self.value is not None and not self.is_limit else None,
            "wrong": dict(self.wrong),
            "wrong_in_a_small_ring": dict(self.small_wrong),
            "not_measured": self.reason or None,
        }


def _share(share: float) -> str:
    """Return a share in percent, with a digit more where it is small."""
    if share < 0.0001:
        return "less than 0.01%"
    return f"{share:.1%}" if share >= 0.01 else f"{share:.2%}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One workload and the outcomes of all who were asked.

    Attributes:
        name, title, family: The workload's own.
        unit: What the values are: microseconds a batch or step, or bytes a step.
        outcomes: In the order of the tables: peer by peer, the sizes of each from the smallest on.
        counted: What the sizes count; nothing where there is only one.
        why: Why others are faster, where one is.
    """

    name: str
    title: str
    family: str
    unit: str
    outcomes: Sequence[Outcome]
    counted: str = ""
    why: str = ""

    @functools.cached_property
    def measured(self) -> list[Outcome]:
        """Those who were measured, limits included."""
        return [outcome for outcome in self.outcomes if outcome.value is not None]

    @property
    def ordered(self) -> list[Outcome]:
        """The same, the fastest first and limits last; sizes stay in their order."""
        return sorted(self.measured, key=lambda one: not self.counted and (one.is_limit, one.value))

    @property
    def own(self) -> Outcome | None:
        """What came of relive: of its buffer of columns, or else of episodes."""
        return next((one for name in OWN for one in self.measured if one.peer == name), None)

    @property
    def fastest(self) -> Outcome | None:
        """The best of those that are right and neither a limit nor relive."""
        rivals = [one for one in self.measured if one.is_right and not one.is_limit and one.peer not in OWN]
        return min(rivals, key=lambda one: one.value or 0.0, default=None)

    @property
    def base(self) -> str:
        """What the values are times of."""
        return "smallest" if self.counted else "relive"

    def has(self, peer: str) -> bool:
        """Return whether that peer was measured."""
        return any(one.peer == peer for one in self.measured)

    def ratio(self, outcome: Outcome, base: Outcome | None) -> float | None:
        """Return how many times the base's value the outcome's is."""
        if base is None or not base.value or outcome.value is None:
            return None
        return outcome.value / base.value

    def times(self, outcome: Outcome) -> float | None:
        """Return how many times relive's value the outcome's is, or that of the same peer at its smallest size."""
        smallest = next((one for one in self.measured if one.peer == outcome.peer), None)
        return self.ratio(outcome, smallest if self.counted else self.own)

    def as_json(self) -> dict[str, Any]:
        """Return all of it in what JSON has."""
        outcomes = []
        for one in self.outcomes:
            rival = {} if self.counted else {"times_fastest_right_peer": self.ratio(one, self.fastest)}
            outcomes.append({f"times_{self.base}": self.times(one), **rival, **one.as_json()})
        return {"workload": self.name, "title": self.title, "unit": self.unit, "outcomes": outcomes}

    def table(self) -> str:
        """Return the lines that the command prints: who was measured, then who was not."""
        return "\n".join(["", f"{self.name}: {self.title}, {self.unit}", *self._lines()]) + "\n"

    def _lines(self) -> Iterator[str]:
        if not self.outcomes:
            yield "  not measured: none of the peers takes part"
            return
        width, wide = max(len(outcome.peer) for outcome in self.outcomes), 13 if self.counted else 10
        size = f"{self.counted:>14}" if self.counted else ""
        yield f"  {'':{width}}{size}   median        low       high    x {self.base}"
        for outcome in self.ordered:
            size = f"{outcome.size:14,}" if self.counted else ""
            (low, high), ratio = outcome.spread, self.times(outcome)
            times = "" if ratio is None else f"{ratio:.2f}"
            words = "a limit" if outcome.is_limit else f"WRONG: {outcome.faults()}" if not outcome.is_right else ""
            figures = f"{outcome.value:10.2f} {low:10.2f} {high:10.2f} {times:>{wide}}"
            yield f"  {outcome.peer:{width}}{size}{figures}  {words}".rstrip()
        reasons: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            if outcome.value is None:
                size = f" at {outcome.size:,}" if self.counted else ""
                reasons.setdefault(outcome.reason, []).append(outcome.peer + size)
        for reason, names in reasons.items():
            yield f"  not measured: {', '.join(names)}: {reason}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the command.

    Attributes:
        command: The command line.
        facts: Of the machine and the interpreter.
        versions: Of the peers that were measured, by name.
        settings: Of the measuring, in words.
        rows: One for each workload.
    """

    command: str
    facts: Mapping[str, str]
    versions: Mapping[str, str]
    settings: str
    rows: Sequence[Row]

    def wrong(self) -> Iterator[tuple[str, Outcome]]:
        """Yield who was wrong, and where, peer by peer."""
        for name in catalogue.PEERS:
            for row in self.rows:
                yield from ((row.name, one) for one in row.outcomes if one.peer == name and not one.is_right)

    def as_json(self) -> dict[str, Any]:
        """Return all of it in what JSON has."""
        return {
            "command": self.command,
            "machine": dict(self.facts),
            "versions": dict(self.versions),
            "settings": self.settings,
            "workloads": [row.as_json() for row in self.rows],
        }
