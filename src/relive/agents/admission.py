"""Admission: limits when episodes may start, so that they are not too stale when the learner trains on them.

    learner's version   i                 moves on with each batch of B episodes
    admitted            N                 tickets given and not given back, used or not
    running             R                 open episodes, and unused tickets
    the rule            N <= (i - i0 + max_lag + 1) * B, and R <= max_running

Episodes that end in the order in which they started are trained on in it, B a version. So the N-th is trained on at
version i0 + floor((N - 1) / B), and if it starts at version i, that is at most max_lag later: floor((N - 1) / B) <= i -
i0 + max_lag, equation 3 of AReaL (Fu et al. 2025, arXiv 2505.24298), which counts from i0 = 0. Here i0 is the first
version that the learner sets, in its life or after a restart, or the one that it resumes from: a run that goes on at
version 100 does not admit a hundred batches at once. N is then what is open, or stored, undelivered and not too old.

Nothing here waits. A dropped episode gives its place back, since the learner will never train on it.
"""

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import contextvars
import threading
import types
from typing import Any, NoReturn, Protocol, Self
import warnings
import weakref

from relive import errors
from relive.common import validation
from relive.persistence import registry


class Admission(registry.Configurable):
    """Limits the staleness of training data: an episode lags at most `max_lag` versions when it is trained on.

    This holds if the learner takes `episodes_per_version` episodes for each version, in order, with `next_episodes` or
    `next_groups`, and episodes end in the order in which they started. If the learner takes fewer, or others overtake
    an episode, it gets older: `next_episodes(..., max_lag=)` drops it then. With a `max_lag` of 0 none is overtaken.

    Args:
        max_lag: Maximum number of policy updates between the start of an episode and its training; with 0, actors and
            learner alternate.
        episodes_per_version: Number of episodes that the learner trains on per version.
        max_running: Maximum number of episodes that run at once, unused tickets included; None for no limit.

    Raises:
        ArgumentError: max_lag is not an integer of at least 0, or another number is not one of at least 1.

    >>> import relive
    >>> rule = relive.Admission(max_lag=1, episodes_per_version=4)
    >>> buffer = relive.EpisodeReplayBuffer(admission=rule)
    >>> with buffer.admit_nowait(8) as ticket:
    ...     ticket.left
    8
    """

    def __init__(self, max_lag: int, episodes_per_version: int, max_running: int | None = None) -> None:
        self.max_lag = validation.non_negative_int("max_lag", max_lag)
        self.episodes_per_version = validation.positive_int("episodes_per_version", episodes_per_version)
        self.max_running = None if max_running is None else validation.positive_int("max_running", max_running)

    def __repr__(self) -> str:
        running = "" if self.max_running is None else f", max_running={self.max_running}"
        return f"Admission(max_lag={self.max_lag}, episodes_per_version={self.episodes_per_version}{running})"

    def _most_admitted(self, versions: int) -> int:
        """Return how many episodes may have been admitted after that many policy updates."""
        return (versions + self.max_lag + 1) * self.episodes_per_version

    @property
    def _most_at_once(self) -> int:
        """Maximum number of episodes of one ticket."""
        most = self._most_admitted(0)
        return most if self.max_running is None else min(most, self.max_running)


def is_within(rule: Admission | None, *, admitted: int, running: int, versions: int = 0) -> bool:
    """Return whether that many episodes may be admitted and run at once, tickets included."""
    return rule is None or (admitted <= rule._most_admitted(versions) and not is_crowded(rule, running))


def is_crowded(rule: Admission | None, running: int) -> bool:
    """Return whether that many episodes may not run at once."""
    return rule is not None and rule.max_running is not None and running > rule.max_running


def checked_count(rule: Admission | None, count: object) -> int:
    """Return the number of episodes for a ticket, which must not be more than can ever be admitted at once."""
    checked = validation.positive_int("count", count)
    if rule is not None and checked > rule._most_at_once:
        raise errors.ArgumentError(f"count must be at most {rule._most_at_once} with {rule!r}, got {checked}")
    return checked


_HELD: contextvars.ContextVar[frozenset[Any]] = contextvars.ContextVar("_HELD", default=frozenset())
"""References to the tickets whose block this context is in, or that it has used, or a context that it began in."""


def _runner() -> object:
    """Return a reference to the running task, or to the thread if there is none."""
    with contextlib.suppress(RuntimeError):  # No event loop runs.
        return weakref.ref(asyncio.current_task() or threading.current_thread())
    return weakref.ref(threading.current_thread())


class Counts(Protocol):
    """Counts the places of a ticket."""

    def release_ticket(self, ticket: "Ticket", count: int) -> None:
        """Close a ticket, which was released when it admitted `count` episodes more."""
        ...

    def report_lost(self, count: int) -> None:
        """Record, in any thread, that a ticket for that many episodes was lost."""
        ...


class Ticket:
    """The right to start episodes; returned by `EpisodeReplayBuffer.admit`.

    Used up by `start_episode(..., ticket=ticket)`. An episode that ends as ABORTED or without a transition returns its
    place to the ticket, so that the attempt can be made again at once. Unused places are given back to all by
    `release()`, at the end of a `with ticket:` block, and when the ticket is garbage collected; so is then the place of
    an episode that fails later.
    """

    __slots__ = ("__weakref__", "_counter", "_has_come_back", "_holder", "_left")

    def __init__(self, counter: Counts, count: int) -> None:
        self._counter, self._left = counter, count
        self._hold()

    # Until a place comes back, its holder is the task, or the thread without a task, that was given it or used it last:
    # others may be about to use it. Then it is everybody in its `with` block, or who has used it, and the tasks that
    # they begin.

    def _hold(self, *, is_used: bool = False) -> None:
        """Record that the caller holds the ticket."""
        self._has_come_back, self._holder = False, _runner()
        if is_used:
            _HELD.set(frozenset([*(each for each in _HELD.get() if each() is not None), weakref.ref(self)]))

    @property
    def _is_held(self) -> bool:
        """Whether the running task holds the ticket, so that it would wait for itself if it waited for a place."""
        return weakref.ref(self) in _HELD.get() if self._has_come_back else self._holder is _runner()

    def _require_left(self) -> None:
        if not self._left:
            raise errors.ArgumentError("ticket must admit another episode, got one that is used up: admit again")

    def _take(self) -> None:
        """Record that an episode starts with it."""
        self._left -= 1
        self._hold(is_used=True)

    def _take_back(self) -> None:
        """Record that such an episode has failed, while the ticket is open: the place comes back to it."""
        self._left += 1
        self._has_come_back = True

    @property
    def left(self) -> int:
        """Number of episodes that the ticket still admits."""
        return self._left

    def release(self) -> None:
        """Give back what is left of the ticket, if anything; it admits no further episode."""
        left, self._left = self._left, 0
        self._counter.release_ticket(self, left)

    def __enter__(self) -> Self:
        self._hold(is_used=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        raise errors.ArgumentTypeError("a ticket cannot be copied or pickled: admit again where it is needed")

    def __del__(self) -> None:
        # This may run at any time in any thread, so it only records what came back.
        if self._left:
            self._counter.report_lost(self._left)


def warn_of_self() -> None:
    """Warn that a task waits in `admit` while it holds an open ticket with unused places."""
    warnings.warn(
        "admit waits while an open ticket of the same task has unused places: start with it, or release it; the place "
        "of an episode that ends as ABORTED or empty is its ticket's again",
        errors.MisuseWarning,
        stacklevel=3,
    )


class AdmissionCounter:
    """Issues the tickets of one buffer, and counts the places that they and the episodes take.

    Args:
        rule: The admission rule; None to admit all.
        came_back: Called when places have come back, in the thread that owns the buffer.
        lost: Called from any thread when a ticket was lost; must call `came_back` soon.

    Attributes:
        rule: The rule.
        admitted: Number of admitted episodes that have not given their place back, including open and trained ones.
        running: Number of episodes that are open.
        reserved: Number of episodes that unused tickets admit.
        versions: How many versions the policy has moved on since the first one that was set; None before that.
    """

    def __init__(self, rule: Admission | None, came_back: Callable[[], None], lost: Callable[[], None]) -> None:
        self.rule, self._came_back, self._lost, self._is_warned = rule, came_back, lost, False
        self._lost_tickets: list[int] = []
        self._open: set[weakref.ref[Ticket]] = set()
        # The tickets that those who wait for one hold themselves.
        self._waiting: list[frozenset[Any]] = []
        # The ticket of each open episode that was started in this process, if it had one.
        self._started: dict[str, weakref.ref[Ticket] | None] = {}
        self.admitted = self.running = self.reserved = 0
        self.versions: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy; tickets belong to the original."""
        return {**vars(self), "_lost_tickets": [], "_open": set(), "_waiting": [], "_started": {}, "reserved": 0}

    @property
    def is_running(self) -> bool:
        """Whether an episode is open that was started in this process."""
        return bool(self._started)

    # Tickets.

    def checked_count(self, count: object) -> int:
        """Return the number of episodes for a ticket, which must not be more than can ever be admitted at once."""
        return checked_count(self.rule, count)

    def can_admit(self, count: int) -> bool:
        """Return whether that many more episodes may start."""
        while self._lost_tickets:
            self.reserved -= self._lost_tickets.pop()
        more = self.reserved + count
        return is_within(
            self.rule, admitted=self.admitted + more, running=self.running + more, versions=self.versions or 0
        )

    def held_back(self, call: str, count: int = 1) -> errors.NotReadyError:
        """Return the error for a call that would have to wait to admit `count` episodes."""
        if is_crowded(self.rule, self.running + self.reserved + count):
            what, remedy = f"{self.running + self.reserved} episodes running", "end one"
        else:
            what = f"{self.admitted + self.reserved} episodes admitted"
            remedy = "set_policy_version as the learner moves on"
        return errors.NotReadyError(f"{call} held back by {self.rule!r} with {what}: {remedy}, or await admit")

    def admit(self, count: int) -> Ticket:
        """Return a ticket for that many episodes; they must be admissible now."""
        self.reserved += count
        ticket = Ticket(self, count)
        self._open.add(weakref.ref(ticket, self._open.discard))
        return ticket

    def check(self, ticket: object, call: str) -> None:
        """Raise an error unless an episode may start with that ticket, which may be None without a rule."""
        if ticket is None:
            if self.rule is not None:
                raise errors.ArgumentError(f"{call} needs a ticket with {self.rule!r}: await buffer.admit() first")
            return
        validation.require_instance("ticket", ticket, Ticket)
        assert isinstance(ticket, Ticket)
        if ticket._counter is not self:
            raise errors.ArgumentError("ticket must be of this buffer, and not from before it was loaded: admit again")
        ticket._require_left()

    def use(self, ticket: Ticket | None, episode_id: str) -> None:
        """Record that an episode starts with a ticket that `check` let pass, or without one."""
        self._started[episode_id] = None
        if ticket is not None:
            self._started[episode_id] = weakref.ref(ticket)
            self.reserved -= 1
            ticket._take()

    def release_ticket(self, ticket: Ticket, count: int) -> None:
        """Close a ticket, which was released when it admitted `count` episodes more."""
        self._open.discard(weakref.ref(ticket))
        if count:
            self.reserved -= count
            self._came_back()

    def release_all(self) -> None:
        """Release all tickets."""
        for ticket in self._tickets():
            ticket.release()

    def _tickets(self) -> list[Ticket]:
        return [ticket for ticket in [each() for each in self._open] if ticket is not None]

    def report_lost(self, count: int) -> None:
        """Record, in any thread, that a ticket for that many episodes was lost."""
        self._lost_tickets.append(count)
        self._lost()

    # Places.

    def started(self) -> None:
        """Record that an episode has started."""
        self.admitted += 1
        self.running += 1

    def ended(self, episode_id: str, *, is_wasted: bool) -> None:
        """Record that an open episode has ended.

        If it is wasted, since it can never be trained on, its place comes back: to its ticket if that is open,
        otherwise to all.
        """
        self.running -= 1
        reference = self._started.pop(episode_id, None)
        ticket = None if reference is None else reference()
        if not is_wasted:
            return
        if ticket is None or weakref.ref(ticket) not in self._open:
            self.release_place()
            return
        self.admitted = max(self.admitted - 1, 0)
        self.reserved += 1
        ticket._take_back()
        if self._waiting:
            with contextlib.suppress(RuntimeError):  # No event loop runs.
                asyncio.get_running_loop().call_soon(self._warn_waiting)

    def release_place(self, count: int = 1) -> None:
        """Record that `count` started episodes will never be trained on."""
        if count:
            self.admitted = max(self.admitted - count, 0)
            self._came_back()

    def cleared(self) -> None:
        """Record that no episode is open any more."""
        self.release_place(self.running)
        self.running = 0
        self._started.clear()

    def move_on(self, versions: int) -> None:
        """Record that the learner has set a version that is newer by so many than the one before."""
        assert self.versions is not None
        self.versions += versions
        self._came_back()

    def begin(self, versions: int | None, admitted: int) -> None:
        """Restart counting, with `admitted` episodes that the learner may still train on.

        If they are more than there are places, nothing starts until the learner has caught up.
        """
        self.versions, self.admitted = versions, admitted
        self._came_back()

    def least_version(self, version: int | None) -> int | None:
        """Return the oldest version that is not too old for a learner of that version; None if all are."""
        return None if version is None or self.rule is None else version - self.rule.max_lag

    # Tasks that wait for themselves.

    def warn_of_self(self) -> None:
        """Warn, once, if the caller is about to wait for a ticket and holds one with unused places."""
        if not self._is_warned and any(ticket.left and ticket._is_held for ticket in self._tickets()):
            self._is_warned = True
            warn_of_self()

    def _warn_waiting(self) -> None:
        """Warn, once, if a place has come back to a ticket that one who waits holds."""
        back = {weakref.ref(ticket) for ticket in self._tickets() if ticket.left and ticket._has_come_back}
        if not self._is_warned and any(back & held for held in self._waiting):
            self._is_warned = True
            warn_of_self()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context manager in which the caller waits for a ticket."""
        held = _HELD.get()
        self._waiting.append(held)
        try:
            yield
        finally:
            self._waiting.remove(held)
