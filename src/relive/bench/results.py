"""What came of a run: outcomes by workload, and what can be said about them."""

from collections.abc import Mapping, Sequence
import dataclasses
import shlex

from relive.bench import catalogue

OWN = ("relive", "relive-numba", "relive-episodes")
"""relive's own buffers; the first one that was measured is what the others are compared with."""


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """What came of one peer in one workload.

    Attributes:
        peer: Its name.
        is_limit: Whether it is a limit instead of a buffer.
        value: What is compared: the median over the rounds, microseconds or bytes; None if it was not measured.
        low: The fastest round, where there are several.
        high: The slowest round.
        wrong: What was wrong in which share of the rows that it returned while it was timed.
        wrong_in_a_small_ring: The same in one of a few hundred steps, where no row is far from an end or from the seam.
        not_measured: Why there is no value.
    """

    peer: str
    is_limit: bool = False
    value: float | None = None
    low: float | None = None
    high: float | None = None
    wrong: Mapping[str, float] = dataclasses.field(default_factory=dict)
    wrong_in_a_small_ring: Mapping[str, float] = dataclasses.field(default_factory=dict)
    not_measured: str = ""

    def faults(self) -> str:
        """Return what is wrong in which share of the rows, in words; nothing if it is right.

        The shares are those of the full size, and of a small ring in brackets where the full size showed none.
        """
        small = {part: share for part, share in self.wrong_in_a_small_ring.items() if part not in self.wrong}
        parts = [f"{part} in {_percent(share)}" for part, share in self.wrong.items()]
        return ", ".join(parts + [f"{part} in ({_percent(share)})" for part, share in small.items()])


def _percent(share: float) -> str:
    if share < 0.0001:
        return "less than 0.01%"
    return f"{share:.1%}" if share >= 0.01 else f"{share:.2%}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One workload, what the values are of, and the outcomes of all peers."""

    workload: str
    title: str
    unit: str
    outcomes: Sequence[Outcome]

    @property
    def measured(self) -> list[Outcome]:
        """Those who were measured, the fastest first and limits last."""
        measured = [one for one in self.outcomes if one.value is not None]
        return sorted(measured, key=lambda one: (one.is_limit, one.value))

    @property
    def own(self) -> Outcome | None:
        """What came of relive: of its buffer of columns, or else of episodes."""
        return next((one for name in OWN for one in self.measured if one.peer == name), None)


def ratio(outcome: Outcome | None, base: Outcome | None) -> float | None:
    """Return how many times the base's value the outcome's is; None if one of them was not measured."""
    if outcome is None or outcome.value is None or base is None or not base.value:
        return None
    return outcome.value / base.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the command: how and where it was made, with which peers, and a row a workload."""

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    settings: str
    rows: Sequence[Row]

    def wrong(self) -> dict[str, list[str]]:
        """Return the workloads in which something was wrong, by the peer."""
        return {
            peer: names
            for peer in catalogue.PEERS
            if (
                names := [
                    row.workload for row in self.rows for one in row.outcomes if one.peer == peer and one.faults()
                ]
            )
        }

    def unmeasured(self) -> list[str]:
        """Return the peers that were not measured in some workload, with the reason or how to install them."""
        reasons: dict[str, dict[str, None]] = {}
        for one in (one for row in self.rows for one in row.outcomes if one.value is None):
            reasons.setdefault(one.not_measured, {})[one.peer] = None
        lines = [f"{', '.join(peers)}: {reason}" for reason, peers in reasons.items()]
        if missing := reasons.get(catalogue.MISSING):
            install = shlex.join(catalogue.PEERS[peer].requirement for peer in missing)
            lines[[*reasons].index(catalogue.MISSING)] += f": run pip install {install}"
        return lines
