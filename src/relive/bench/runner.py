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
_OVERFILL = 1.05
"""How often over a ring is filled before it is measured."""
_SMALL = 4_000


class _Entrant:
    """A peer with a full buffer, ready to be timed. What it returns in a small ring was looked at before."""

    def __init__(self, workload: workloads.Workload, peer: catalogue.Peer, outcome: results.Outcome) -> None:
        assert workload.timed
        self._workload, self._outcome, self._is_limit = workload, outcome, peer.is_limit
        peer.require(workload.task.returns)
        task, make = workload.task, peer.load()
        small, self._findings = verification.Findings(), verification.Findings()
        if not peer.is_limit:
            verification.check_small_ring(make, task, small)
        self._buffer, self._story, following = tasks.filled(make, task, int(task.capacity * _OVERFILL), 10_000)
        self._call = workload.timed(self._buffer, following)
        self._last = self._call()
        outcome.wrong_in_a_small_ring = small.shares()

    def __call__(self) -> None:
        """Make the call, unless it has failed before."""
        if not self._outcome.not_measured:
            try:
                self._last = self._call()
            except Exception as error:
                self._outcome.not_measured = _failure(self._workload, error)

    def look(self) -> None:
        """Check what was returned last."""
        if self._last is not None and not self._is_limit and not self._outcome.not_measured:
            verification.check(self._workload.task, self._story, self._buffer.answer(self._last), self._findings)
            self._outcome.wrong = self._findings.shares()


def _failure(workload: workloads.Workload, error: Exception) -> str:
    return f"failed in {workload.name}: {catalogue.in_one_line(error)}"


def measure(
    workload: workloads.Workload, peers: Mapping[str, catalogue.Peer], *, rounds: int, seconds: float
) -> results.Row:
    """Return the outcome of each peer, in their order.

    Args:
        workload: What to measure.
        peers: The peers, by name.
        rounds: How often each has its turn.
        seconds: How long a turn is at least.
    """
    outcomes = {name: results.Outcome(peer=name, is_limit=peer.is_limit) for name, peer in peers.items()}
    entrants: dict[str, _Entrant] = {}
    for name, outcome in outcomes.items():
        try:
            if workload.timed:
                entrants[name] = _Entrant(workload, peers[name], outcome)
            else:
                outcome.value = bytes_a_step(peers[name], workload.task)
        except tasks.CannotError as error:
            outcome.not_measured = str(error)
        except Exception as error:  # Whatever ails one peer must not end the run of the others.
            outcome.not_measured = _failure(workload, error)
    times = interleaved(entrants, rounds=rounds, seconds=seconds, after=lambda name: entrants[name].look())
    for name, values in times.items():
        if not outcomes[name].not_measured:
            parts = [value * 1e6 / (workload.parts or workload.task.capacity) for value in values]
            outcomes[name].value = statistics.median(parts)
            outcomes[name].low, outcomes[name].high = min(parts), max(parts)
    entrants.clear()
    gc.collect()
    return results.Row(workload.name, workload.title, workload.unit, list(outcomes.values()))


def interleaved(
    calls: Mapping[str, workloads.Call],
    *,
    rounds: int,
    seconds: float,
    after: Callable[[str], None] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return what each call takes, in rounds that let every call have its turn: A B C A B C ...

    So a machine whose speed drifts slows all of them alike. The garbage collector is off meanwhile.

    Args:
        calls: What is timed, by name.
        rounds: How often each has its turn.
        seconds: How long a turn is at least: a call is repeated until it is.
        after: Told the name after each turn, outside of the time.
        clock: Returns the seconds since some moment.

    Returns:
        The seconds of one call, in each round.
    """
    turns = {name: timeit.Timer(call, timer=clock).timeit for name, call in calls.items()}
    repeats = {name: _repeats(turn, seconds) for name, turn in turns.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, turn in turns.items():
            times[name].append(turn(repeats[name]) / repeats[name])
            after(name)
    return times


def _repeats(turn: Callable[[int], float], seconds: float) -> int:
    """Return how many calls make a turn of that length, and warm the call up."""
    repeats = 1
    while (taken := turn(repeats)) < seconds / 2 and repeats < _MOST:
        repeats *= 2
    return min(_MOST, max(1, math.ceil(repeats * seconds / max(taken, 1e-9))))


def bytes_a_step(peer: catalogue.Peer, task: tasks.Task) -> float:
    """Return what a stored step takes in memory: how much a process grows as a buffer is made, filled and drawn from.

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
        buffer.sample()  # Some build at the first draw what they need for it.
        after = machine.resident()
    return (after - before) / task.capacity
