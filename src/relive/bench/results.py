"""What came of a run: outcomes by workload, and what can be said about them."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any

from relive.bench import catalogue
from relive.bench import workloads

OWN = ("relive", "relive-numba", "relive-episodes")
"""relive's own buffers; the first one that was measured is what the others are compared with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """What a call took, in seconds: the median over the rounds, the fastest and the slowest; each made `repeats`."""

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
    """What came of one peer in one workload.

    Attributes:
        peer: Its name.
        value: What is compared: microseconds, or bytes; None if it was not measured.
        seconds: The timing of one part; None if it was not timed.
        wrong: What was wrong in which share of the rows that it returned while it was timed.
        wrong_in_a_small_ring: The same in one of a few hundred steps, where no row is far from an end or from the seam.
        not_measured: Why there is no value.
    """

    peer: str
    value: float | None = None
    seconds: Timing | None = None
    wrong: Mapping[str, float] = dataclasses.field(default_factory=dict)
    wrong_in_a_small_ring: Mapping[str, float] = dataclasses.field(default_factory=dict)
    not_measured: str = ""

    @property
    def is_right(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.wrong and not self.wrong_in_a_small_ring

    @property
    def is_limit(self) -> bool:
        """Whether it is a limit instead of a buffer."""
        return catalogue.PEERS[self.peer].is_limit

    def faults(self) -> str:
        """Return what is wrong in which share of the rows, in words; nothing if it is right.

        The shares are those of the full size, and of a small ring in brackets where the full size showed none.
        """
        small = {part: share for part, share in self.wrong_in_a_small_ring.items() if part not in self.wrong}
        parts = [f"{part} in {_share(share)}" for part, share in self.wrong.items()]
        return ", ".join(parts + [f"{part} in ({_share(share)})" for part, share in small.items()])


def _share(share: float) -> str:
    """Return a share in percent, with a digit more where it is small."""
    if share < 0.0001:
        return "less than 0.01%"
    return f"{share:.1%}" if share >= 0.01 else f"{share:.2%}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One workload and the outcomes of all peers."""

    workload: workloads.Workload
    outcomes: Sequence[Outcome]

    @property
    def measured(self) -> list[Outcome]:
        """Those who were measured, the fastest first and limits last."""
        return sorted(
            (one for one in self.outcomes if one.value is not None), key=lambda one: (one.is_limit, one.value)
        )

    @property
    def own(self) -> Outcome | None:
        """What came of relive: of its buffer of columns, or else of episodes."""
        return next((one for name in OWN for one in self.measured if one.peer == name), None)

    @property
    def fastest(self) -> Outcome | None:
        """The best of those that are right and neither a limit nor relive."""
        return next((one for one in self.measured if one.is_right and not one.is_limit and one.peer not in OWN), None)

    def ratio(self, outcome: Outcome | None, base: Outcome | None) -> float | None:
        """Return how many times the base's value the outcome's is."""
        if outcome is None or outcome.value is None or base is None or not base.value:
            return None
        return outcome.value / base.value

    def as_json(self) -> dict[str, Any]:
        """Return all of it in what JSON has."""
        outcomes = []
        for one in self.outcomes:
            is_right = one.is_right if one.value is not None and not one.is_limit else None
            derived: dict[str, Any] = {
                "is_limit": one.is_limit,
                "is_right": is_right,
                "not_measured": one.not_measured or None,
            }
            ratios = {"relive": self.ratio(one, self.own), "fastest_right_peer": self.ratio(one, self.fastest)}
            derived |= {f"times_{name}": ratio for name, ratio in ratios.items()}
            outcomes.append(dataclasses.asdict(one) | derived)
        return {
            "workload": self.workload.name,
            "title": self.workload.title,
            "unit": self.workload.unit,
            "outcomes": outcomes,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the command: how and where it was made, with which peers, and a row a workload."""

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    settings: str
    rows: Sequence[Row]

    def wrong(self) -> Iterator[tuple[str, Outcome]]:
        """Yield who was wrong, and where, peer by peer."""
        for name in catalogue.PEERS:
            for row in self.rows:
                yield from ((row.workload.name, one) for one in row.outcomes if one.peer == name and not one.is_right)

    def unmeasured(self) -> dict[str, list[str]]:
        """Return the peers that were not measured in some workload, by the reason."""
        reasons: dict[str, dict[str, None]] = {}
        for row in self.rows:
            for one in row.outcomes:
                if one.value is None:
                    reasons.setdefault(one.not_measured, {})[one.peer] = None
        return {reason: list(peers) for reason, peers in reasons.items()}

    def as_json(self) -> dict[str, Any]:
        """Return all of it in what JSON has."""
        facts = {name: value for name, value in vars(self).items() if name != "rows"}
        return facts | {"workloads": [row.as_json() for row in self.rows]}
