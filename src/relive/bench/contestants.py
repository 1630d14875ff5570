"""Those who take turns: a call that is timed, and what was wrong with what it returned."""

from collections.abc import Callable
from typing import Any, TypeAlias

from relive.bench import answers
from relive.bench import catalogue
from relive.bench import results
from relive.bench import rounds
from relive.bench import small_ring
from relive.bench import tasks
from relive.bench import workload as workloads

Check: TypeAlias = Callable[[Any, answers.Findings], None]
"""Adds to the findings what is wrong with what the call answered."""

OVERFILL = 1.05
"""How often over a ring is filled before it is measured."""


class Contestant:
    """A peer that is ready to be timed, and what it returned last.

    Args:
        peer: Its name.
        call: What is timed; it is called once.
        check: StateReader each answer that is looked at; None for a limit, which returns nothing that could be right.
        small: What was wrong in a small ring.
    """

    def __init__(
        self, peer: str, call: rounds.Call, check: Check | None, small: answers.Findings | None = None
    ) -> None:
        self._peer, self._call, self._check = peer, call, check
        self._small, self._findings = small or answers.Findings(), answers.Findings()
        self._failure = ""
        self._last: Any = None
        self._call()

    def __call__(self) -> None:
        """Make the call, unless it has failed before."""
        try:
            self._last = self._call()
        except Exception as error:  # Whatever ails one peer must not end the run of the others.
            self._failure = catalogue.in_one_line(error)
            self._call = lambda: None

    def check(self) -> None:
        """Check what was returned last."""
        if self._last is not None and self._check and not self._failure:
            self._check(self._last, self._findings)

    def outcome(self, timing: rounds.Timing) -> results.Outcome:
        """Return what came of it."""
        if self._failure:
            return results.Outcome(peer=self._peer, reason=self._failure)
        return results.Outcome(
            peer=self._peer, timing=timing, wrong=self._findings.shares(), small_wrong=self._small.shares()
        )


def of_buffer(peer: catalogue.Peer, make: catalogue.Make, task: tasks.Task, timed: workloads.Timed) -> Contestant:
    """Return a peer with a buffer that is full and more, after a look at what it returns in a small ring.

    Args:
        peer: Who it is.
        make: Returns its buffer for a task.
        task: What the buffer has to do.
        timed: Returns the call.

    Raises:
        CannotError: The peer has nothing for the task, or there is no room for it.
    """
    small = None if peer.is_limit else small_ring.check(make, task)
    filled = int(task.capacity * OVERFILL)
    story = task.story(filled + 10_000)
    buffer = make(task)
    head, rest = story.until(filled)
    feed = workloads.Feed(buffer, task, story, rest)
    if task.streams > 1:
        rows = feed.rows()
        for _ in range(filled // task.streams):
            buffer.extend(next(rows))
    else:
        buffer.fill(head)

    def check(drawn: Any, findings: answers.Findings) -> None:
        answers.check(task, story, buffer.answer(drawn), findings)

    return Contestant(peer.name, timed(buffer, feed), None if peer.is_limit else check, small)
