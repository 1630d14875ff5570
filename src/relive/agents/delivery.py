"""Delivery: the calls of a buffer for asynchronous learners, which consume each episode once, or in a few epochs.

    actor                                             learner
    ticket = await buffer.admit()                     await buffer.next_episodes(count)
    await buffer.start_episode(..., ticket=ticket)    buffer.reject(episode_ids)
                                                      buffer.set_policy_version(version)
                                                      buffer.ack(version)

Deciding and waiting are separate, as in the buffer: an awaited call waits for its turn, then takes, without awaiting in
between.

Learners are served first come, first served. But while a learner with a `max_lag` waits, episodes that are too old for
it go to later callers, and fresh ones are kept for it. So no caller waits for episodes that only others can use.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar
import warnings

import numpy as np

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.agents import queue
from relive.common import copies
from relive.common import imports
from relive.common import validation
from relive.persistence import checkpointable
from relive.persistence import state
from relive.waiting import gate as gate_lib
from relive.waiting import rate_limiters

if TYPE_CHECKING:
    from relive.agents import queue_state
    from relive.persistence import journal as journal_lib
    from relive.persistence import settings
else:
    queue_state = imports.lazy_module("relive.agents.queue_state")
    settings = imports.lazy_module("relive.persistence.settings")

SETTINGS = ("admission", "groups", "epochs", "redeliver")
"""The settings of a buffer that are those of its queue."""
_STARTS_A_TURN = 32
Unit: TypeAlias = list[queue.Episode]


class Request:
    """A request for the next episodes or groups.

    Args:
        line: Returns the queue of items requested from.
        count: Number of items.
        max_lag: Maximum lag behind the learner's version; None for any.
        accept: Decides from a copy whether an item is wanted; None for all.
        quotas: Maximum number of episodes of each agent that it names.

    Attributes:
        kept: The oldest version reserved for earlier requests; None if none is.
        accepted: Accepted items that still wait, by key; they are not checked again.
    """

    def __init__(
        self,
        line: Callable[[], queue.Line],
        count: int,
        max_lag: int | None,
        accept: Callable[[Any], object] | None,
        quotas: Mapping[str, int],
    ) -> None:
        self.line, self.count, self.max_lag, self.accept, self.quotas = line, count, max_lag, accept, quotas
        self.kept: int | None = None
        self.accepted: dict[str, Unit] = {}

    @property
    def is_selective(self) -> bool:
        """Whether others may use what this request passes over."""
        return self.max_lag is not None or bool(self.quotas)

    def find(self, least: int | None) -> tuple[list[str], list[str]]:
        """Return the keys of the next items, and those of the stale ones before them; see PendingEpisodes.find."""
        left = dict(self.quotas)

        def admits(unit: Unit) -> bool:
            agent = unit[0].agent_id
            left[agent] = left.get(agent, self.count) - 1
            return left[agent] >= 0

        return self.line().find(self.count, least, self.kept, admits)

    def num_ready(self, least: int | None) -> int:
        """Return how many items are ready, at least `count` if there are enough."""
        if self.quotas:
            return len(self.find(least)[0])
        return self.line().num_fresh(least, self.kept)


class DeliveryWaiters:
    """The coroutines waiting for tickets, episodes or groups of one buffer."""

    def __init__(self) -> None:
        self.starts = gate_lib.FairCondition()
        self.episodes = gate_lib.FairCondition()
        self.groups = gate_lib.FairCondition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Return how to make a copy, without waiters."""
        return type(self), ()

    async def wait_for(
        self,
        queue: gate_lib.FairCondition,
        ready: Callable[[], bool],
        due: Callable[[], float | None],
        request: Request | None = None,
    ) -> None:
        """Wait until it is the caller's turn in a queue and `ready()` returns True.

        Always yields to other tasks first.

        Args:
            queue: The queue.
            ready: Returns whether the caller may proceed; raises if the buffer is closed.
            due: Returns when passing time will next matter, by the monotonic clock; None if never.
            request: Represents the caller in the queue.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer = loop, None  # The timer of a closed loop never fires.
        await asyncio.sleep(0)

        def asked() -> bool:
            if ready():
                return True
            self._set_timer(due())
            return False

        is_selective = request is not None and request.is_selective
        try:
            await queue.wait_for(asked, blocks=lambda: not is_selective, waiter=request)
        finally:
            if self._timer is not None and not self._does_time_matter():
                self._timer.cancel()
                self._timer = None

    def started(self, due: float | None) -> None:
        """Record that an episode has started, which may set a new due time."""
        if self._does_time_matter():
            self._set_timer(due)

    def wake(self) -> None:
        """Let the first waiters of each queue check again."""
        self.wake_starts()
        self.wake_learner()

    def wake_learner(self) -> None:
        """Let the first waiters for episodes or groups check again."""
        self.episodes.notify()
        self.groups.notify()

    def wake_starts(self) -> None:
        """Let the first waiters for a ticket check again."""
        self.starts.notify(_STARTS_A_TURN)

    def wake_starts_soon(self) -> None:
        """Schedule `wake_starts` in the event loop, from any thread."""
        if self._loop is not None and self.starts.waiting:
            with contextlib.suppress(RuntimeError):  # It is closed.
                self._loop.call_soon_threadsafe(self.wake_starts)

    def _does_time_matter(self) -> bool:
        """Return whether any waiter depends on a due time."""
        return bool(self.starts.waiting or self.groups.waiting)

    def _set_timer(self, due: float | None) -> None:
        """Set a timer for the next due time, if any. Due times only get later: what starts now falls due last."""
        if due is not None and self._timer is None and self._loop is not None and not self._loop.is_closed():
            self._timer = self._loop.call_later(max(due - time.monotonic(), 0), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.wake()


E = TypeVar("E")


class Delivery(checkpointable.Journalable, Generic[E]):
    """The calls of a buffer that admit episodes and deliver each of them, as an E, to the learner."""

    _store: Any  # A queue.Store.
    _gate: gate_lib.Gate
    _limited: rate_limiters.LimitedBuffer
    _hand_outs: queue.LearnerQueue
    _queues: DeliveryWaiters
    _rng: np.random.Generator
    _HAS_WHOLE_EPISODES: ClassVar[bool] = False
    """Whether episodes are stored when they have ended, so that none is ever open."""
    _is_warned = False

    @property
    def admission(self) -> admission_lib.Admission | None:
        """The admission rule for starting episodes; None to admit all."""
        return self._hand_outs.admission

    @property
    def groups(self) -> groups_lib.Groups | None:
        """The rule for groups of episodes; None for no groups."""
        return self._hand_outs.groups

    @property
    def epochs(self) -> int:
        """How often each episode or group is delivered."""
        return self._hand_outs.epochs

    @property
    def redeliver(self) -> bool:
        """Whether what was delivered and not acknowledged is delivered again after a restart."""
        return self._hand_outs.redeliver

    async def admit(self, count: int = 1) -> admission_lib.Ticket:
        """Return a ticket to start `count` episodes; waits, first come, first served, while the Admission requires it.

        Without an Admission, a ticket is always available. Always yields to other tasks first. A task that has to wait
        while it holds an open ticket with unused places gets a MisuseWarning: it may wait for itself.

        Args:
            count: Number of episodes, such as the size of a group: all are admitted together, or none.

        Raises:
            ArgumentError: `count` is not an integer of at least 1, or more than can ever be admitted.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        count = self._hand_outs.desk.checked_count(count)
        await asyncio.sleep(0)  # Tasks that were given a ticket may start with it.
        if not self._can_admit(count):
            self._hand_outs.desk.warn_of_self()

        def ready() -> bool:
            self._gate.refuse_if_closed()
            return self._can_admit(count) or self._warn_if_stuck(self._queues.episodes, self._queues.groups)

        with self._hand_outs.desk.waiting():
            await self._queues.wait_for(self._queues.starts, ready, self._due)
        return self._hand_outs.desk.admit(count)

    def admit_nowait(self, count: int = 1) -> admission_lib.Ticket:
        """Do what `admit` does, with the same exceptions, as a plain call.

        Raises:
            NotReadyError: The Admission holds starts back.
        """
        self._gate.refuse_if_closed()
        count = self._hand_outs.desk.checked_count(count)
        if not self._can_admit(count):
            raise self._hand_outs.desk.held_back("admit_nowait", count, len(self._store.open))
        return self._hand_outs.desk.admit(count)

    async def next_episodes(
        self,
        count: int,
        *,
        max_lag: int | None = None,
        accept: Callable[[E], bool] | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> list[E]:
        """Return copies of the next `count` episodes, in the order in which they ended; waits until there are enough.

        Each episode is delivered once, or `epochs` times; it stays stored, and can be sampled, until it is evicted.
        ABORTED episodes and those without a transition are skipped, as are, in a buffer with `groups`, those with a
        group_id. The first call begins with the episodes stored then. Always yields to other tasks first.

        With several epochs, a pass goes over the episodes that wait when it begins, in a random order; what ends
        meanwhile, and what has deliveries left, waits for the next pass. A call never returns an episode twice.

        Args:
            count: The exact number of episodes to return. A cancelled call takes none.
            max_lag: Maximum lag of an episode's oldest version behind the learner's. Older episodes, and those of
                unknown version, that precede the delivered ones are dropped as "stale". None for any. While the call
                waits, episodes that are too old for it go to later calls.
            accept: A plain function that takes a copy of an episode and returns whether to deliver it. It is called for
                the next episodes in order; those that it refuses are dropped as "rejected" at once, even if the call is
                then cancelled. It is called once for each episode, except that accepted ones that could not be
                delivered yet are checked again by the next call. Its exceptions propagate, and that episode stays in
                the queue. It must not call the buffer. None to accept all.
            quotas: Maximum number of episodes of an agent, by agent_id; others are unlimited. Episodes beyond the quota
                of their agent go to later calls.

        Raises:
            ArgumentError: An argument is invalid, `count` is more than can be stored, max_lag is given before
                `set_policy_version` was called, or `accept` does not return True or False.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        request = self._episode_request(count, max_lag, accept, quotas)
        return [episode for (episode,) in await self._next(self._queues.episodes, request)]

    def next_episodes_nowait(
        self,
        count: int,
        *,
        max_lag: int | None = None,
        accept: Callable[[E], bool] | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> list[E]:
        """Do what `next_episodes` does, as a plain call; works on a closed buffer too.

        Raises:
            NotReadyError: Too few episodes have ended or were accepted; those that `accept` refused stay dropped.
        """
        request = self._episode_request(count, max_lag, accept, quotas)
        units = self._next_nowait(request, "next_episodes", "episodes: end more of them")
        return [episode for (episode,) in units]

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
        request = self._group_request("next_groups", count, max_lag, accept)
        return await self._next(self._queues.groups, request)

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
        request = self._group_request("next_groups_nowait", count, max_lag, accept)
        return self._next_nowait(request, "next_groups", "whole groups: end more episodes")

    def reject(self, episode_ids: Iterable[str], *, reason: str = "rejected") -> int:
        """Drop episodes that were delivered or wait for delivery, and return how many were dropped.

        They are counted under `reason` and give their places back, but stay stored and can be sampled. If an episode
        waits in a group, the whole group is given up. Other ids are ignored: episodes that are open, already dropped or
        rejected, or no longer stored.

        Args:
            episode_ids: Ids of the episodes.
            reason: The reason in `get_drops`; the first hundred reasons are listed by name.

        Raises:
            ArgumentTypeError: episode_ids is one string, or holds something other than strings, or reason is not a
                string.
            ArgumentError: reason is empty.
        """
        ids = validation.items("episode_ids", episode_ids, "strings")
        checked = [validation.string("each of episode_ids", episode_id) for episode_id in ids]
        reason = checked_name("reason", reason)
        stored: Unit = [self._store[each] for each in checked if self._store.has(each)]
        if stored and self._journal is not None:
            self._journal.reject(stored, reason)
        return self._hand_outs.reject(self._store, checked, reason)

    def abort_open_episodes(self) -> int:
        """End what a crash left unfinished, and return how much it was: call it after `recover`, or `load`.

        Every open episode ends as ABORTED, and every group that is not complete is given up: the episodes that wait in
        it are dropped as "straggler", and no other can start in it. All their places come back, and all tickets are
        released. Works on a closed buffer too.

        Returns:
            The number of episodes that were open; in a buffer of tokens, where none is, that of the groups given up.

        Raises:
            CheckpointError: The journal could not be written or synced. Nothing has changed.
        """
        group_ids = self._hand_outs.gathering()
        count = len(group_ids) if self._HAS_WHOLE_EPISODES else len(self._store.open)
        if self._store.open or group_ids:
            position = self._position
            is_as_recovered = position is not None and position.written == self._written()
            if self._journal is not None:
                self._journal.abandon(group_ids)
            self._hand_outs.abandon(self._store, group_ids)
            if position is not None and is_as_recovered:
                abandoned = (*position.abandoned, group_ids)
                self._position = dataclasses.replace(position, written=self._written(), abandoned=abandoned)
            self._gate.wake()
            self._wake_ended()
        self._hand_outs.desk.release_all()
        return count

    def ack(self, version: int) -> None:
        """Acknowledge all that was delivered before the learner had that policy version.

        Call it when the learner has saved the weights of that version. What was delivered and not acknowledged is
        delivered again after `load`, `load_state_dict` or `recover`, before all others and in the order of delivery;
        nothing else is. A group of which an episode was evicted or rejected meanwhile is not.

        Args:
            version: At most the learner's policy version.

        Raises:
            ArgumentError: The buffer was made without `redeliver=True`, no policy version was set, or `version` is not
                an integer from 0 to the learner's.
            CheckpointError: The journal could not be written.
        """
        self._ack(version, [])

    def _ack(self, version: int, but: Collection[str]) -> None:
        """Acknowledge all but those episodes, which may not have reached their learner; see `ack`."""
        if not self.redeliver:
            raise errors.ArgumentError("ack needs a buffer that delivers again: give it redeliver=True")
        version = validation.non_negative_int("version", version)
        newest = self._store.policy_version
        if newest is None or version > newest:
            known = "none was set" if newest is None else newest
            raise errors.ArgumentError(
                f"version must be at most the learner's, {known}, got {version}: call set_policy_version first"
            )
        if self._journal is not None:
            self._journal.acknowledge(version, but)
        self._hand_outs.acknowledge(version, but)

    def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version, from which the lag of what is stored is counted.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0, or below the previous version.
            CheckpointError: The journal could not be written or synced.
        """
        before = self._store.policy_version
        version = validation.next_version(version, before)
        if self._journal is not None:
            self._journal.learn(version)
        self._store.policy_version = version
        self._hand_outs.move_on(self._store, 0 if before is None else version - before)
        self._gate.wake()
        self._queues.wake_learner()

    def _swap(self, beside: Any) -> None:
        super()._swap(beside)
        self._limited.counts = self._store
        self._gate.wake()
        self._queues.wake()

    def _restarted(self) -> Self:
        """Let what was not acknowledged wait again, and return the buffer."""
        self._hand_outs.restart()
        self._queues.wake_learner()
        return self

    def _put_back(self, units: Sequence[Sequence[str]]) -> None:
        """Let episodes or groups, each a list of ids, wait again, before all others: they did not reach the learner."""
        for ids in reversed(units):
            if self._journal is not None:
                self._journal.put_back(ids)
            self._hand_outs.put_back(self._store, ids)
        self._queues.wake_learner()

    def get_drops(self) -> dict[str, dict[str, int]]:
        """Return the number of episodes dropped before training: reason -> agent_id -> episodes.

        The reasons are "aborted", "cleared", "empty", "evicted", "rejected", "stale" and "straggler", and those given
        to `reject`. The first thousand agents are listed by name, the others as "(others)". A buffer that is only
        sampled from drops nothing.
        """
        self._hand_outs.pass_time()
        return self._hand_outs.drops.view()

    def get_training_bias(self) -> bias.TrainingBias:
        """Return statistics of all ended episodes, and of those that the learner trained on.

        The latter are those that were sampled, or delivered and not rejected. O(stored steps).
        """
        produced, trained = self._hand_outs.sums(self._store)
        return bias.TrainingBias(produced=produced.totals(), trained=trained.totals())

    def _begin_handing_out(
        self,
        admission: admission_lib.Admission | None,
        groups: groups_lib.Groups | None,
        epochs: int,
        redeliver: bool,
    ) -> None:
        """Create the queues; the store, the gate and the generator exist already."""
        self._queues = DeliveryWaiters()
        self._follow(self._new_hand_outs(admission, groups, epochs, redeliver))
        if groups is not None:
            self._check_room(admission, groups.size)

    def _check_room(self, admission: admission_lib.Admission | None, size: int) -> None:
        """Raise ArgumentError if a group of that size could never be complete."""
        rooms = {
            f"max_transitions = {self._store.max_transitions}": self._store.max_transitions,
            f"max_episodes = {self._store.max_episodes}": self._store.max_episodes,
        }
        if admission is not None:
            rooms[f"{admission.most_at_once} with {admission!r}"] = admission.most_at_once
        for room, most in rooms.items():
            if most is not None and size > most:
                raise errors.ArgumentError(f"size of groups must be at most {room}, got {size}")

    def _new_hand_outs(
        self,
        admission: admission_lib.Admission | None,
        groups: groups_lib.Groups | None,
        epochs: int,
        redeliver: bool,
    ) -> queue.LearnerQueue:
        return queue.LearnerQueue(
            admission, groups, epochs, redeliver, self._rng, self._queues.wake_starts, self._queues.wake_starts_soon
        )

    def _follow(self, hand_outs: queue.LearnerQueue) -> None:
        """Set the buffer's queue, and make it listen to its store."""
        self._hand_outs, self._store.listeners = hand_outs, [hand_outs]

    def _loaded_hand_outs(self, given: state.StateReader, store: queue.Store) -> queue.LearnerQueue:
        """Return the queue of a state, given the episodes of that state."""
        own = self._hand_outs
        hand_outs = self._new_hand_outs(own.admission, own.groups, own.epochs, own.redeliver)
        saved = given.part("settings")
        is_same_rule = all(
            settings.are_same(settings.encoded(getattr(own, name)), saved.value(name)) for name in SETTINGS
        )
        queue_state.load(given, store, hand_outs, is_same_rule=is_same_rule)
        return hand_outs

    def _attach(self, journal: "journal_lib.Journal", **options: Any) -> None:
        position = self._position
        super()._attach(journal, **options)
        if position is not None:
            if self.redeliver:
                self._journal.restart()
            for group_ids in position.abandoned:
                self._journal.abandon(group_ids)

    def _queue_replay(self) -> dict[str, Any]:
        """Return the queue for the records of a journal, and what to call at its end."""
        written, store, hand_outs = self._written(), self._store, self._hand_outs
        hand_outs.stop_clock()
        hand_outs.restart_times()

        def ended() -> None:
            hand_outs.start_clock()
            if self._written() != written:
                # From now on, each new learner version frees places.
                hand_outs.begin_count(store, None if store.policy_version is None else 0)

        return {"hand_outs": hand_outs, "ended": ended}

    def _wake_ended(self) -> None:
        """Wake the callers that wait for the end of an episode."""
        self._queues.wake_learner()
        if self.admission is not None and self.admission.max_running is not None:
            self._queues.wake_starts()

    def _due(self) -> float | None:
        """Return when the next group falls due, by the monotonic clock."""
        book = self._hand_outs.book
        return None if book is None else book.due

    async def _next(self, condition: gate_lib.FairCondition, request: Request) -> list[list[E]]:
        """Wait in a queue until a request can be met, and deliver it."""

        def ready() -> bool:
            self._gate.refuse_if_closed()
            before = itertools.takewhile(lambda other: other is not request, condition.waiting)
            bounds = [self._least_version(other) for other in before if isinstance(other, Request)]
            request.kept = min([bound for bound in bounds if bound is not None], default=None)
            return self._num_ready(request) >= request.count or self._warn_if_stuck(self._queues.starts)

        await self._queues.wait_for(condition, ready, self._due, request)
        return self._take(request)

    def _next_nowait(self, request: Request, call: str, missing: str) -> list[list[E]]:
        """Deliver what a request asks for, or raise NotReadyError."""
        found = self._num_ready(request)
        if found < request.count:
            raise errors.NotReadyError(f"{call}_nowait found {found} of {request.count} {missing}, or await {call}")
        return self._take(request)

    def _episode_request(self, count: object, max_lag: object, accept: Any, quotas: Any) -> Request:
        """Return the checked request for the next episodes."""
        request = self._request(lambda: self._hand_outs.begin_line(self._store), 1, count, max_lag, accept, quotas)
        if self._hand_outs.line is None:
            self._write_hand_out([], [], "")
        request.line()
        if accept is not None:
            request.accept = lambda unit: accept(*unit)
        return request

    def _group_request(self, call: str, count: object, max_lag: object, accept: Any) -> Request:
        """Return the checked request for the next groups."""
        if self.groups is None:
            name = type(self).__name__
            raise errors.ArgumentError(f"{call} needs a buffer with groups: {name}(groups=Groups(size))")
        return self._request(lambda: self._hand_outs.whole_groups(), self.groups.least_size, count, max_lag, accept)

    def _request(
        self,
        line: Callable[[], queue.Line],
        episodes_each: int,
        count: object,
        max_lag: object,
        accept: Any,
        quotas: Any = None,
    ) -> Request:
        count = validation.positive_int("count", count)
        for what, most in (("episodes", self._store.max_episodes), ("transitions", self._store.max_transitions)):
            if most is not None and count * episodes_each > most:
                raise errors.ArgumentError(
                    f"count must be at most {most // episodes_each} with {most} {what}, got {count}"
                )
        if accept is not None:
            validation.require_function("accept", accept)
        checked: dict[str, int] = {}
        if quotas is not None:
            validation.require_instance("quotas", quotas, Mapping)
            for agent, most in quotas.items():
                agent = validation.string("each of quotas", agent)
                checked[agent] = validation.non_negative_int(f"quota of {validation.short_repr(agent)}", most)
        if max_lag is None:
            return Request(line, count, None, accept, checked)
        max_lag = validation.non_negative_int("max_lag", max_lag)
        if self._store.policy_version is None:
            raise errors.ArgumentError("max_lag asks for the learner's policy version: call set_policy_version first")
        return Request(line, count, max_lag, accept, checked)

    def _write_hand_out(self, delivered: Unit, dropped: Unit, reason: str) -> None:
        """Journal, if a journal is attached, what is delivered, what is dropped, and why."""
        if self._journal is not None:
            self._journal.hand_out(delivered, dropped, reason)

    def _can_admit(self, count: int) -> bool:
        self._hand_outs.pass_time()
        return self._hand_outs.desk.can_admit(count, len(self._store.open))

    def _warn_if_stuck(self, *others: gate_lib.FairCondition) -> bool:
        """Return False, after a warning if the caller and others wait for what is never finished."""
        book, desk = self._hand_outs.book, self._hand_outs.desk
        if self._is_warned or desk.is_running or desk.reserved or not any(each.waiting for each in others):
            return False
        unfinished = [f"episode {episode_id}" for episode_id in itertools.islice(self._store.open, 1)]
        if book is not None and book.due is None:
            unfinished += [f"group {validation.short_repr(group_id)}" for group_id in book.gathering[:1]]
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

    def _least_version(self, request: Request) -> int | None:
        """Return the oldest acceptable version; None if all are."""
        version = self._store.policy_version
        return None if request.max_lag is None or version is None else version - request.max_lag

    def _num_ready(self, request: Request) -> int:
        """Return how many items are ready for a request, after calling `accept` for as many as needed."""
        least = self._least_version(request)
        if request.accept is not None:
            while self._refuse(request, request.accept, least):
                pass  # More items became available.
        return request.num_ready(least)

    def _refuse(self, request: Request, accept: Callable[[Unit], object], least: int | None) -> bool:
        """Call `accept` for the next items, drop the refused ones, and return whether any was checked."""
        line, has_asked = request.line(), False
        request.accepted = {key: unit for key, unit in request.accepted.items() if key in line and line[key] is unit}
        for key in request.find(least)[0]:
            if key not in request.accepted:
                if key not in line:
                    continue  # An earlier `accept` has called the buffer.
                unit, has_asked = line[key], True
                if validation.boolean("what accept returns", accept(_copied(unit))):
                    request.accepted[key] = unit
                elif key in line:
                    self._write_hand_out([], unit, "rejected")
                    self._hand_outs.drop(line, key, "rejected")
        return has_asked

    def _take(self, request: Request) -> list[list[E]]:
        """Deliver what a request asks for, which must be ready."""
        line = request.line()
        fresh, stale = request.find(self._least_version(request))
        answer = [_copied(line[key]) for key in fresh]
        delivered, dropped = ([episode for key in keys for episode in line[key]] for keys in (fresh, stale))
        self._write_hand_out(delivered, dropped, "stale" if dropped else "")
        self._hand_outs.hand_out(line, fresh, stale, self._store.policy_version)
        return answer


def checked_name(name: str, value: object) -> str:
    """Return a checked, non-empty string.

    Raises:
        ArgumentTypeError: `value` is not a string.
        ArgumentError: It is empty.
    """
    text = validation.string(name, value)
    if not text:
        raise errors.ArgumentError(f"{name} must be a string of at least 1 character, got ''")
    return text


def _copied(episodes: Unit) -> Any:
    """Return copies that share nothing mutable with the store."""
    return [copies.copied(episode) for episode in episodes]
