"""Delivery: the calls of a buffer for asynchronous actors and learners that wait, each with a plain form.

Deciding and waiting are separate, as in the buffer: an awaited call waits for its turn, then takes, without awaiting in
between. The queue decides.

Learners are served first come, first served. But while a learner with a `max_lag` waits, episodes that are too old for
it go to later callers, and fresh ones are kept for it. So no caller waits for episodes that only others can use.
"""

import asyncio
from collections.abc import Callable
import itertools
from typing import Generic, TypeVar
import warnings

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import queue as queue_lib
from relive.agents import queued
from relive.agents import units
from relive.common import validation
from relive.limits import gate as gate_lib

E = TypeVar("E")


class Delivering(queued.Queued, Generic[E]):
    """A buffer that can admit episodes, and deliver each of them, as an E, to the learner; see Queued."""

    _is_warned = False

    @property
    def policy_version(self) -> int | None:
        """The learner's policy version; None before the first `set_policy_version`."""
        version: int | None = self._store.policy_version
        return version

    async def admit(self, count: int = 1) -> admission_lib.Ticket:
        """Return a ticket to start `count` episodes; waits, first come, first served, while the Admission requires it.

        Without an Admission, a ticket is always available. Always yields to other tasks first. A task that has to wait
        while it holds an open ticket with unused places gets a MisuseWarning: it may wait for itself. If warnings are
        errors, this one ends the wait, and no ticket is taken; so does that of actors and learner who wait for each
        other, here and in `next_groups`.

        Args:
            count: Number of episodes, such as the size of a group: all are admitted together, or none.

        Raises:
            ArgumentError: `count` is not an integer of at least 1, or more than can ever be admitted.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        count = self._queue.ledger().places.checked_count(count)
        await asyncio.sleep(0)  # Tasks that were given a ticket may start with it.
        if not self._can_admit(count):
            self._queue.ledger().places.warn_of_self()

        def ready() -> bool:
            self._gate.refuse_if_closed()
            return self._can_admit(count) or self._warn_if_stuck(self._waiters.episodes, self._waiters.groups)

        with self._queue.ledger().places.waiting():
            await self._waiters.wait_for(self._waiters.starts, ready, lambda: self._queue.ledger().due)
        return self._queue.ledger().places.admit(count)

    def admit_nowait(self, count: int = 1) -> admission_lib.Ticket:
        """Do what `admit` does, with the same exceptions, as a plain call.

        Raises:
            NotReadyError: The Admission holds starts back.
        """
        self._gate.refuse_if_closed()
        places = self._queue.ledger().places
        count = places.checked_count(count)
        if not self._can_admit(count):
            raise places.held_back("admit_nowait", count)
        return places.admit(count)

    async def next_episodes(
        self,
        count: int,
        *,
        max_lag: int | None = None,
        accept: Callable[[E], bool] | None = None,
    ) -> list[E]:
        """Return copies of the next `count` episodes, in the order in which they ended; waits until there are enough.

        Each episode is delivered once; it stays stored, and can be sampled, until it is evicted. ABORTED episodes and
        those without a transition are skipped, as are, in a buffer with `groups`, those with a group_id. The first call
        begins with the episodes stored then. Always yields to other tasks first.

        Args:
            count: The exact number of episodes to return. A cancelled call takes none.
            max_lag: Maximum lag of an episode's oldest version behind the learner's. Older episodes, and those of
                unknown version, that precede the delivered ones are dropped as "stale". None for any. While the call
                waits, episodes that are too old for it go to later calls.
            accept: A plain function that takes a copy of an episode and returns whether to deliver it. It is called for
                the next episodes in order; those that it refuses are dropped as "rejected" at once, even if the call is
                then cancelled. It is called once for each episode, except that accepted ones that could not be
                delivered yet are checked again by the next call. Its exceptions propagate, and that episode stays in
                the queue. It must not call the buffer, whose `clear` and `load_state_dict` raise meanwhile. None to
                accept all.

        Raises:
            ArgumentError: An argument is invalid, `count` is more than can be stored, max_lag is given before
                `set_policy_version` was called, or `accept` does not return True or False.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        request = self._queue.request("episodes", "next_episodes", count, max_lag, accept)
        self._queue.begin_line()
        return [episode for (episode,) in await self._next(self._waiters.episodes, request)]

    def next_episodes_nowait(
        self,
        count: int,
        *,
        max_lag: int | None = None,
        accept: Callable[[E], bool] | None = None,
    ) -> list[E]:
        """Do what `next_episodes` does, as a plain call; works on a closed buffer too.

        Raises:
            NotReadyError: Too few episodes have ended or were accepted; those that `accept` refused stay dropped, and a
                first call counts as such.
        """
        request = self._queue.request("episodes", "next_episodes_nowait", count, max_lag, accept)
        found = self._next_nowait(request, "next_episodes", "episodes: end more of them")
        return [episode for (episode,) in found]

    async def next_groups(
        self,
        count: int,
        *,
        max_lag: int | None = None,
        accept: Callable[[list[E]], bool] | None = None,
    ) -> list[list[E]]:
        """Return copies of the next `count` complete groups, in the order of completion; waits until there are enough.

        A group is a list of its episodes in the order in which they ended: `size` of them, or fewer after its timeout.
        Each group is delivered once. Always yields to other tasks first.

        Args:
            count: The exact number of groups to return. A cancelled call takes none.
            max_lag: As in `next_episodes`, for the oldest episode of a group; groups are dropped as a whole.
            accept: As in `next_episodes`, but takes a list of copies of the episodes of a group.

        Raises:
            ArgumentError: The buffer was made without `groups`, or as in `next_episodes`.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        request = self._queue.request("groups", "next_groups", count, max_lag, accept)
        return await self._next(self._waiters.groups, request)

    def next_groups_nowait(
        self,
        count: int,
        *,
        max_lag: int | None = None,
        accept: Callable[[list[E]], bool] | None = None,
    ) -> list[list[E]]:
        """Do what `next_groups` does, as a plain call; works on a closed buffer too.

        Raises:
            NotReadyError: Too few groups are complete or were accepted; those that `accept` refused stay dropped.
        """
        request = self._queue.request("groups", "next_groups_nowait", count, max_lag, accept)
        return self._next_nowait(request, "next_groups", "whole groups: end more episodes")

    async def _next(self, condition: gate_lib.FairCondition, request: queue_lib.Take) -> list[list[E]]:
        """Wait in a queue until a request can be met, and deliver it."""
        accepted, kept = set[units.Unit](), None

        def ready() -> bool:
            nonlocal kept
            self._gate.refuse_if_closed()
            before = itertools.takewhile(lambda other: other is not request, condition.waiting)
            bounds = [self._queue.least_version(other) for other in before if isinstance(other, queue_lib.Take)]
            kept = min([bound for bound in bounds if bound is not None], default=None)
            num_ready = self._queue.num_ready(request, accepted, kept)
            return num_ready >= request.count or self._warn_if_stuck(self._waiters.starts)

        lets_pass = request.max_lag is not None  # Others may use what it passes over.
        await self._waiters.wait_for(condition, ready, lambda: self._queue.ledger().due, request, lets_pass=lets_pass)
        return self._queue.deliver(request, request.count, kept)

    def _next_nowait(self, request: queue_lib.Take, call: str, missing: str) -> list[list[E]]:
        """Deliver what a request asks for, or raise NotReadyError."""
        units, found = self._queue.take(request)
        if not units:
            raise errors.NotReadyError(f"{call}_nowait found {found} of {request.count} {missing}, or await {call}")
        return units

    def _can_admit(self, count: int) -> bool:
        ledger = self._queue.ledger()
        ledger.pass_time()
        return ledger.places.can_admit(count)

    def _warn_if_stuck(self, *others: gate_lib.FairCondition) -> bool:
        """Return False, after a warning if the caller and others wait for what is never finished."""
        ledger = self._queue.ledger()
        is_alone = not any(each.waiting for each in others)
        if self._is_warned or is_alone or ledger.places.is_running or ledger.places.reserved:
            return False
        unfinished = [f"episode {episode_id}" for episode_id in itertools.islice(self._open_ids(), 1)]
        if ledger.groups is not None and ledger.due is None:
            unfinished += [f"group {validation.short_repr(group_id)}" for group_id in ledger.gathering()[:1]]
        if unfinished:
            self._is_warned = True
            warnings.warn(
                f"next_groups and admit wait for each other: no actor runs an episode, and {unfinished[0]} holds "
                "places but is not complete. After a crash, call abort_open_episodes if its actors do not go on; "
                "otherwise, when an episode of a group ends as ABORTED or empty, start another one in it, reject the "
                "others, or give Groups a timeout",
                errors.MisuseWarning,
                stacklevel=2,
            )
        return False
