"""Measures a workload: has all who take part made and filled, times them by turns, and checks what they return."""

from collections.abc import Callable, Mapping
import concurrent.futures
import dataclasses
import gc
import math
import multiprocessing
import statistics
import time
import timeit
from typing import Any

from relive.bench import catalogue
from relive.bench import machine
from relive.bench import results
from relive.bench import tasks
from relive.bench import verification
from relive.bench import workloads

_MOST = 1 << 20
"""Calls in a turn at most, however short they are."""
_SMALL = 4_000


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


class _Contestant:
    """Who takes part, what it returned last, and what was wrong with that."""

    def __init__(self, entrant: verification.Entrant) -> None:
        self._entrant, self._findings = entrant, verification.Findings()
        self._failure = ""
        self._last: Any = entrant.call()

    def __call__(self) -> None:
        """Make the call, unless it has failed before."""
        if not self._failure:
            try:
                self._last = self._entrant.call()
            except Exception as error:  # Whatever ails one peer must not end the run of the others.
                self._failure = catalogue.in_one_line(error)

    def check(self) -> None:
        """Check what was returned last."""
        if self._last is not None and self._entrant.check and not self._failure:
            self._entrant.check(self._last, self._findings)

    def outcome(self, outcome: results.Outcome, timing: results.Timing) -> results.Outcome:
        """Return what came of it."""
        if self._failure:
            return dataclasses.replace(outcome, reason=self._failure)
        return dataclasses.replace(
            outcome,
            timing=timing.per(self._entrant.steps),
            wrong=self._findings.shares(),
            small_wrong=self._entrant.small.shares(),
        )


def measure(
    workload: workloads.Workload,
    peers: Mapping[str, catalogue.Peer],
    settings: Settings,
    say: Callable[[str], None],
) -> results.Row:
    """Return what came of each peer, in their order, and of each size.

    Args:
        workload: What to measure.
        peers: Whom, by name.
        settings: How.
        say: Told what is being prepared, for somebody who waits.
    """
    if settings.is_quick:
        workload = workload.quick()
    outcomes: dict[str, results.Outcome] = {}
    contestants: dict[str, _Contestant] = {}
    for peer in peers.values():
        for size in workload.sizes:
            label = f"{peer.name} at {size:,}" if workload.counted else peer.name
            outcome = results.Outcome(peer=peer.name, size=size)
            try:
                if workload.task and not workload.timed:
                    say(f"{workload.name}: filling {label} in a process of its own")
                    outcome = dataclasses.replace(outcome, bytes_a_step=bytes_a_step(peer, workload.task))
                elif line := workload.line(peer):
                    say(f"{workload.name}: filling {label}")
                    contestants[label] = _Contestant(line(size))
                else:
                    continue
            except tasks.CannotError as error:
                outcome = dataclasses.replace(outcome, reason=str(error))
            except Exception as error:  # As above.
                outcome = dataclasses.replace(outcome, reason=f"failed: {catalogue.in_one_line(error)}")
            outcomes[label] = outcome
    if contestants:
        say(f"{workload.name}: timing {', '.join(contestants)}")
    timings = interleaved(
        contestants,
        rounds=settings.repeats,
        seconds=settings.seconds,
        after=lambda label: contestants[label].check(),
    )
    outcomes |= {label: one.outcome(outcomes[label], timings[label]) for label, one in contestants.items()}
    contestants.clear()
    gc.collect()
    facts = {name: getattr(workload, name) for name in ("name", "title", "family", "unit", "counted", "why")}
    return results.Row(outcomes=list(outcomes.values()), **facts)


def interleaved(
    calls: Mapping[str, workloads.Call],
    *,
    rounds: int,
    seconds: float,
    after: Callable[[str], None] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, results.Timing]:
    """Return what each call takes, over rounds that let every call have its turn: A B C A B C ...

    So a machine whose speed drifts slows all of them alike. The garbage collector is off meanwhile.

    Args:
        calls: What is timed, by name.
        rounds: How often each has its turn.
        seconds: How long a turn is at least: a call is repeated until it is.
        after: Told the name after each turn, outside of the time.
        clock: Returns the seconds since some moment.
    """
    turns = {name: timeit.Timer(call, timer=clock).timeit for name, call in calls.items()}
    repeats = {name: _repeats(turn, seconds) for name, turn in turns.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, turn in turns.items():
            times[name].append(turn(repeats[name]) / repeats[name])
            after(name)
    return {
        name: results.Timing(
            median=statistics.median(values), low=min(values), high=max(values), rounds=rounds, repeats=repeats[name]
        )
        for name, values in times.items()
    }


def _repeats(turn: Callable[[int], float], seconds: float) -> int:
    """Return how many calls make a turn of that length, and warm the call up."""
    repeats = 1
    while (taken := turn(repeats)) < seconds / 2 and repeats < _MOST:
        repeats *= 2
    return min(_MOST, max(1, math.ceil(repeats * seconds / max(taken, 1e-9))))


def bytes_a_step(peer: catalogue.Peer, task: tasks.Task) -> float:
    """Return what a stored step takes in memory: by how much a new process grows while a buffer is made and filled.

    Raises:
        CannotError: The peer has nothing for the task.
    """
    if peer.is_limit:
        raise tasks.CannotError("is a limit of time")
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as processes:
        return processes.submit(grown, peer, task).result()


def grown(peer: catalogue.Peer, task: tasks.Task) -> float:
    """Return by how many bytes a step this process grows.

    It uses a small buffer before, so that libraries and compiled code do not count.
    """
    machine.hold_torch()
    with machine.silence():
        make, few = peer.load(), min(_SMALL, task.capacity)
        tasks.filled(make, dataclasses.replace(task, capacity=few), few, 0)
        story, before = task.story(task.capacity), machine.resident()
        buffer = make(task)
        buffer.fill(story.until(task.capacity)[0])
        after = machine.resident()
        buffer.sample()
    return (after - before) / task.capacity
