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

from relive.bench import catalogue
from relive.bench import machine
from relive.bench import results
from relive.bench import tasks
from relive.bench import verification
from relive.bench import workloads

_MOST = 1 << 20
"""Calls in a turn at most, however short they are."""
_SMALL = 4_000


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long to measure: in how many rounds, and whether in small rings and short turns."""

    repeats: int
    is_quick: bool

    @property
    def seconds(self) -> float:
        """How long a turn in a round is at least."""
        return 0.001 if self.is_quick else 0.01

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
    """Return the outcome of each peer, in their order.

    Args:
        workload: What to measure.
        peers: The peers, by name.
        settings: How.
        say: Called with what is being prepared.
    """
    workload = workload.quick() if settings.is_quick else workload
    outcomes: dict[str, results.Outcome] = {}
    entrants: dict[str, verification.Entrant] = {}
    for name, peer in peers.items():
        say(f"{workload.name}: filling {name}")
        outcome = results.Outcome(peer=name)
        try:
            if workload.timed:
                entrant = workload.entrant(peer)
                entrant.last = entrant.call()
                entrants[name] = entrant
            else:
                outcome = dataclasses.replace(outcome, value=bytes_a_step(peer, workload.task))
        except tasks.CannotError as error:
            outcome = dataclasses.replace(outcome, not_measured=str(error))
        except Exception as error:  # Whatever ails one peer must not end the run of the others.
            reason = f"failed in {workload.name}: {tasks.in_one_line(error)}"
            outcome = dataclasses.replace(outcome, not_measured=reason)
        outcomes[name] = outcome
    if entrants:
        say(f"{workload.name}: timing {', '.join(entrants)}")
    timings = interleaved(
        entrants, rounds=settings.repeats, seconds=settings.seconds, after=lambda name: entrants[name].look()
    )
    for name, entrant in entrants.items():
        part = timings[name].per(entrant.steps)
        outcomes[name] = dataclasses.replace(
            outcomes[name],
            value=None if entrant.failure else part.median * 1e6,
            seconds=None if entrant.failure else part,
            wrong=entrant.findings.shares(),
            wrong_in_a_small_ring=entrant.small.shares(),
            not_measured=f"failed in {workload.name}: {entrant.failure}" if entrant.failure else "",
        )
    entrants.clear()
    gc.collect()
    return results.Row(workload, list(outcomes.values()))


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
