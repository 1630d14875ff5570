"""Measures a workload or a curve: has all who take part made and filled, times them by turns, checks their returns."""

from collections.abc import Callable, Collection, Mapping
import dataclasses
import functools
import gc
from typing import TypeAlias

from relive.bench import catalogue
from relive.bench import contestants
from relive.bench import curve as curves
from relive.bench import memory
from relive.bench import results
from relive.bench import rounds
from relive.bench import tasks
from relive.bench import workload as workloads

_Entrant: TypeAlias = contestants.Contestant | results.Outcome
"""Somebody who takes part, or what is to be said of one who does not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How long to measure.

    Attributes:
        repeats: Rounds.
        seconds: Of a turn in a round, at least.
        is_quick: Whether the rings are small.
    """

    repeats: int = 7
    seconds: float = 0.01
    is_quick: bool = False

    @classmethod
    def chosen(cls, repeats: int | None, is_quick: bool) -> "Settings":
        """Return the settings of a quick run or a full one, with another number of rounds if given."""
        settings = cls(repeats=3, seconds=0.001, is_quick=True) if is_quick else cls()
        return settings if repeats is None else dataclasses.replace(settings, repeats=repeats)

    def in_words(self) -> str:
        """Return what a reader should know of them."""
        size = ", small rings (--quick): these figures say nothing about speed" if self.is_quick else ""
        return f"Medians of {self.repeats} rounds, turns of {self.seconds * 1e3:g} milliseconds at least{size}"


def measure(
    workload: workloads.Workload,
    peers: Mapping[str, catalogue.Peer],
    settings: Settings,
    say: Callable[[str], None],
) -> results.Row:
    """Return what came of each peer, in their order.

    Args:
        workload: What to measure.
        peers: Whom, by name.
        settings: How.
        say: Told what is being prepared, for somebody who waits.
    """
    if workload.timed is None:
        outcomes = {name: _weighed(workload, name, settings, say) for name in peers}
    else:
        outcomes = _timed(workload, workload.timed, peers, settings, say)
    gc.collect()
    return results.Row(
        name=workload.name,
        title=workload.title,
        family=workload.family,
        unit=workload.unit,
        why=workload.why,
        outcomes=[outcomes[name] for name in peers],
    )


def _weighed(
    workload: workloads.Workload, name: str, settings: Settings, say: Callable[[str], None]
) -> results.Outcome:
    """Return what a stored step takes."""
    say(f"{workload.name}: filling {name} in a process of its own")
    try:
        if catalogue.PEERS[name].is_limit:
            raise tasks.CannotError("is a limit of time")
        return results.Outcome(peer=name, bytes_a_step=memory.bytes_a_step(name, workload.name, settings.is_quick))
    except tasks.CannotError as error:
        return results.Outcome(peer=name, reason=str(error))


def measure_curve(
    curve: curves.Curve, peers: Collection[str], settings: Settings, say: Callable[[str], None]
) -> results.Curve:
    """Return what came of each size: all sizes of all peers take turns with each other.

    Args:
        curve: What to measure.
        peers: The names of those whose lines are wanted; there need not be one.
        settings: How.
        say: Told what is being prepared, for somebody who waits.
    """
    if settings.is_quick:
        curve = curve.quick()
    lines = {name: line for name, line in curve.lines.items() if name in peers}
    entrants: dict[str, _Entrant] = {}
    for size in curve.sizes:
        for name, line in lines.items():
            label = _label(name, size)
            say(f"{curve.name}: filling {label}")
            entrants[label] = _entrant(name, functools.partial(line, size))
    outcomes = _raced(curve.name, entrants, settings, say)
    entrants.clear()
    gc.collect()
    return results.Curve(
        name=curve.name,
        title=curve.title,
        unit=curve.unit,
        part=curve.part,
        lines={name: {size: outcomes[_label(name, size)] for size in curve.sizes} for name in lines},
    )


def _timed(
    workload: workloads.Workload,
    timed: workloads.Timed,
    peers: Mapping[str, catalogue.Peer],
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, results.Outcome]:
    """Return how fast each is, and what is wrong with its returns."""
    if settings.is_quick:
        workload = workload.quick()
    entrants: dict[str, _Entrant] = {}
    for name, peer in peers.items():
        say(f"{workload.name}: filling {name}")
        entrants[name] = _entrant(name, functools.partial(_filled, peer, workload.task, timed))
    return _raced(workload.name, entrants, settings, say, workload.steps)


def _filled(peer: catalogue.Peer, task: tasks.Task, timed: workloads.Timed) -> contestants.Contestant:
    """Return a peer, loaded and with a full buffer."""
    return contestants.of_buffer(peer, peer.load(), task, timed)


def _entrant(peer: str, make: Callable[[], contestants.Contestant]) -> _Entrant:
    """Return who was made; or, where that failed, why."""
    try:
        return make()
    except tasks.CannotError as error:
        return results.Outcome(peer=peer, reason=str(error))
    except Exception as error:  # Whatever ails one peer must not end the run of the others.
        return results.Outcome(peer=peer, reason=f"failed: {catalogue.in_one_line(error)}")


def _raced(
    name: str,
    entrants: Mapping[str, _Entrant],
    settings: Settings,
    say: Callable[[str], None],
    steps: int = 1,
) -> dict[str, results.Outcome]:
    """Return what came of each, a part of a call of that many steps, in rounds that let every one have its turn."""
    racing = {label: one for label, one in entrants.items() if isinstance(one, contestants.Contestant)}
    say(f"{name}: timing {', '.join(racing)}")
    timings = rounds.interleaved(
        racing,
        rounds=settings.repeats,
        seconds=settings.seconds,
        after=lambda label: racing[label].check(),
    )
    return {
        label: one.outcome(timings[label].per(steps)) if isinstance(one, contestants.Contestant) else one
        for label, one in entrants.items()
    }


def _label(peer: str, size: int) -> str:
    return f"{peer} at {size:,}"
