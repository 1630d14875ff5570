"""Timing by turns: A B C A B C ..., so that a machine whose speed drifts slows all of them alike."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import gc
import math
import statistics
import time
from typing import TypeAlias

Call: TypeAlias = Callable[[], object]
Clock: TypeAlias = Callable[[], float]

_MOST = 1 << 20
"""Calls in a turn at most, however short they are."""


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


def interleaved(
    calls: Mapping[str, Call],
    *,
    rounds: int,
    seconds: float,
    after: Callable[[str], None] = lambda name: None,
    clock: Clock = time.perf_counter,
) -> dict[str, Timing]:
    """Return what each call takes, over rounds that let every call have its turn; the garbage collector is off.

    Args:
        calls: What is timed, by name.
        rounds: How often each has its turn.
        seconds: How long a turn is at least: a call is repeated until it is.
        after: Told the name after each turn, outside of the time.
        clock: Returns the seconds since some moment.
    """
    repeats = {name: _repeats(call, seconds, clock) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with _no_collector():
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(_turn(call, repeats[name], clock) / repeats[name])
                after(name)
    return {
        name: Timing(
            median=statistics.median(values), low=min(values), high=max(values), rounds=rounds, repeats=repeats[name]
        )
        for name, values in times.items()
    }


def _turn(call: Call, repeats: int, clock: Clock) -> float:
    turns = range(repeats)
    start = clock()
    for _ in turns:
        call()
    return clock() - start


def _repeats(call: Call, seconds: float, clock: Clock) -> int:
    """Return how many calls make a turn of that length, and warms the call up."""
    repeats = 1
    while True:
        taken = _turn(call, repeats, clock)
        if taken >= seconds / 2 or repeats >= _MOST:
            return min(_MOST, max(1, math.ceil(repeats * seconds / max(taken, 1e-9))))
        repeats *= 2


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Keep the garbage collector out of the block."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
