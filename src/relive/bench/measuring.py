"""Measures one workload: builds and fills every peer's buffer, checks a small one, times all by turns, checks again."""

from collections.abc import Callable, Mapping
import dataclasses
import gc
from typing import Any

from relive.bench import answers
from relive.bench import catalogue
from relive.bench import memory
from relive.bench import results
from relive.bench import rounds
from relive.bench import small_ring
from relive.bench import tasks
from relive.bench import workload as workloads

OVERFILL = 1.05
"""How often over a ring is filled before it is measured."""


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
        """Answers the settings of a quick run or a full one, with another number of rounds if given."""
        settings = cls(repeats=3, seconds=0.001, is_quick=True) if is_quick else cls()
        return settings if repeats is None else dataclasses.replace(settings, repeats=repeats)

    def in_words(self) -> str:
        """Answers what a reader should know of them."""
        size = ", small rings (--quick): these figures say nothing about speed" if self.is_quick else ""
        return f"Medians of {self.repeats} rounds, turns of {self.seconds * 1e3:g} milliseconds at least{size}"


class _Contestant:
    """A peer in one workload: its full buffer, and what it answered last."""

    def __init__(self, peer: catalogue.Peer, make: catalogue.Make, task: tasks.Task, timed: workloads.Timed) -> None:
        self.peer, self.failure = peer, ""
        self.small_findings = answers.Findings() if peer.is_limit else small_ring.check(make, task)
        self._findings = answers.Findings()
        self._task = task
        filled = int(task.capacity * OVERFILL)
        self._story = task.story(filled + 10_000)
        buffer = make(task)
        head, rest = self._story.until(filled)
        feed = workloads.Feed(buffer, task, self._story, rest)
        if task.streams > 1:
            rows = feed.rows()
            for _ in range(filled // task.streams):
                buffer.extend(next(rows))
        else:
            buffer.fill(head)
        self._buffer, self._call = buffer, timed(buffer, feed)
        self._last: Any = None
        self._call()

    def __call__(self) -> None:
        try:
            self._last = self._call()
        except Exception as error:  # As below.
            self.failure = catalogue.in_one_line(error)
            self._call = lambda: None

    def check(self) -> None:
        """Checks what was answered last."""
        if self._last is not None and not self.peer.is_limit and not self.failure:
            answers.check(self._task, self._story, self._buffer.answer(self._last), self._findings)

    def outcome(self, timing: rounds.Timing) -> results.Outcome:
        """Answers what came of it."""
        if self.failure:
            return results.Outcome(peer=self.peer.name, reason=self.failure)
        return results.Outcome(
            peer=self.peer.name,
            timing=timing,
            wrong=self._findings.shares(),
            small_wrong=self.small_findings.shares(),
        )


def measure(
    workload: workloads.Workload,
    peers: Mapping[str, catalogue.Peer],
    settings: Settings,
    say: Callable[[str], None],
) -> results.Row:
    """Answers what came of each peer, in their order.

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
        outcomes=[outcomes[name] for name in peers],
    )


def _weighed(
    workload: workloads.Workload, name: str, settings: Settings, say: Callable[[str], None]
) -> results.Outcome:
    """Answers what a stored step takes."""
    say(f"{workload.name}: filling {name} in a process of its own")
    try:
        if catalogue.PEERS[name].is_limit:
            raise tasks.CannotError("is a limit of time")
        return results.Outcome(peer=name, bytes_a_step=memory.bytes_a_step(name, workload.name, settings.is_quick))
    except tasks.CannotError as error:
        return results.Outcome(peer=name, reason=str(error))


def _timed(
    workload: workloads.Workload,
    timed: workloads.Timed,
    peers: Mapping[str, catalogue.Peer],
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, results.Outcome]:
    """Answers how fast each is, and what is wrong with its answers."""
    if settings.is_quick:
        workload = workload.quick()
    contestants: dict[str, _Contestant] = {}
    outcomes: dict[str, results.Outcome] = {}
    for name, peer in peers.items():
        say(f"{workload.name}: filling {name}")
        try:
            contestants[name] = _Contestant(peer, peer.load(), workload.task, timed)
        except tasks.CannotError as error:
            outcomes[name] = results.Outcome(peer=name, reason=str(error))
        except Exception as error:  # Whatever ails one peer must not end the run of the others.
            outcomes[name] = results.Outcome(peer=name, reason=f"failed: {catalogue.in_one_line(error)}")
    say(f"{workload.name}: timing {', '.join(contestants)}")
    timings = rounds.interleaved(
        contestants,
        rounds=settings.repeats,
        seconds=settings.seconds,
        after=lambda name: contestants[name].check(),
    )
    for name, contestant in contestants.items():
        outcomes[name] = contestant.outcome(timings[name].per(workload.steps))
    return outcomes
