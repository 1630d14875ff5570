"""Delivery: the calls of a buffer for asynchronous learners, which consume each episode once.

    actor                                             learner
    ticket = await buffer.admit()                     await buffer.next_episodes(count)
    await buffer.start_episode(..., ticket=ticket)    buffer.reject(episode_ids)
                                                      buffer.set_policy_version(version)
                                                      buffer.ack(version)
                                                      buffer.resume_policy_version(version)

Deciding and waiting are separate, as in the buffer: an awaited call waits for its turn, then takes, without awaiting in
between.

Learners are served first come, first served. But while a learner with a `max_lag` waits, episodes that are too old for
it go to later callers, and fresh ones are kept for it. So no caller waits for episodes that only others can use.

A buffer has a queue if it has rules for admission or groups, or once one of these calls was made.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import copy
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar
import warnings

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.agents import queue as queue_lib
from relive.agents import units
from relive.common import copies
from relive.common import imports
from relive.common import validation
from relive.limits import gate as gate_lib
from relive.limits import rate_limiters
from relive.persistence import checkpointable
from relive.persistence import state as state_lib

if TYPE_CHECKING:
    from relive.agents import queue_journal
    from relive.agents import queue_state
    from relive.persistence import commands
else:
    commands = imports.lazy_module("relive.persistence.commands")
    queue_journal = imports.lazy_module("relive.agents.queue_journal")
    queue_state = imports.lazy_module("relive.agents.queue_state")

_STARTS_A_TURN = 32
Accept: TypeAlias = Callable[[Any], object]


class Request:
    """A request for the next episodes or groups.

    Args:
        line: Returns the line of units requested from.
        count: Number of units.
        max_lag: Maximum lag behind the learner's version; None for any.
        accept: Decides from copies of its episodes whether a unit is wanted; None for all.

    Attributes:
        kept: The oldest version reserved for earlier requests; None if none is.
        accepted: Accepted units that still wait; they are not checked again.
    """

    def __init__(self, line: Callable[[], units.Line], count: int, max_lag: int | None, accept: Accept | None) -> None:
        self.line, self.count, self.max_lag, self.accept = line, count, max_lag, accept
        self.kept: int | None = None
        self.accepted: set[units.Unit] = set()


class DeliveryWaiters:
    """The coroutines waiting for tickets, episodes or groups of one buffer.

    Attributes:
        wakes: How often any of them had a reason to check again.
    """

    def __init__(self) -> None:
        self.wakes = 0
        self.starts = gate_lib.FairCondition()
        self.episodes = gate_lib.FairCondition()
        self.groups = gate_lib.FairCondition()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Return how to make a copy, without waiters."""
        return type(self), ()

    async def wait_for(
        self,
        condition: gate_lib.FairCondition,
        ready: Callable[[], bool],
        due: Callable[[], float | None],
        request: Request | None = None,
    ) -> None:
        """Wait until it is the caller's turn and `ready()` returns True; see FairCondition. Always yields first.

        A request with a `max_lag` lets others pass, as they may use what it passes over.
        """
        self._loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        others_may_pass = request is not None and request.max_lag is not None
        await condition.wait_for(ready, blocks=lambda: not others_may_pass, waiter=request, due=due)

    def wake(self) -> None:
        """Let the first waiters of each condition check again."""
        self.wake_starts()
        self.wake_learner()

    def wake_learner(self) -> None:
        """Let the first waiters for episodes or groups check again."""
        self.wakes += 1
        self.episodes.notify()
        self.groups.notify()

    def wake_starts(self) -> None:
        """Let the first waiters for a ticket check again."""
        self.wakes += 1
        self.starts.notify(_STARTS_A_TURN)

    def wake_starts_soon(self) -> None:
        """Schedule `wake_starts` in the event loop, from any thread."""
        if self._loop is not None and self.starts.waiting:
            with contextlib.suppress(RuntimeError):  # It is closed.
                self._loop.call_soon_threadsafe(self.wake_starts)


E = TypeVar("E")


class Delivering(checkpointable.Journalable, Generic[E]):
    """A buffer that can admit episodes, and deliver each of them, as an E, to the learner.

    Args:
        store: The episodes.
        limiter: The limiter with the counts of the buffer.
        still_there: The calls that still work after `close`; for error messages.
        admission: The rule for starting episodes; None to admit all.
        groups: The rule for groups; None for no groups.
        redeliver: Whether what was not acknowledged is delivered again after a restart.
        limits: The most that can be stored, by name, where there is a limit: a learner cannot ask for more.
    """

    _HAS_WHOLE_EPISODES: ClassVar[bool] = False
    """Whether episodes are stored when they have ended, so that none is ever open."""
    _num_commands = 0
    """How many commands of the learner were carried out."""

    def __init__(
        self,
        store: Any,
        limiter: rate_limiters.LimiterState,
        still_there: str,
        *,
        admission: admission_lib.Admission | None,
        groups: groups_lib.Groups | None,
        redeliver: bool,
        limits: Mapping[str, int],
    ) -> None:
        if admission is not None:
            validation.require_instance("admission", admission, admission_lib.Admission)
        if groups is not None:
            validation.require_instance("groups", groups, groups_lib.Groups)
            rooms = {f"max_{what} = {most}": most for what, most in limits.items()}
            if admission is not None:
                rooms[f"{admission._most_at_once} with {admission!r}"] = admission._most_at_once
            for room, most in rooms.items():
                if groups.size > most:
                    raise errors.ArgumentError(f"size of groups must be at most {room}, got {groups.size}")
        self._admission, self._groups = admission, groups
        self._redeliver = validation.boolean("redeliver", redeliver)
        self._store, self._limited, self._limits = store, limiter, limits
        self._gate = gate_lib.Gate(limiter, still_there)
        self._waiters = DeliveryWaiters()
        self._is_warned = False
        self._queue: queue_lib.LearnerQueue | None = None
        if admission is not None or groups is not None:
            self._learner()

    def _learner(self) -> queue_lib.LearnerQueue:
        """Return the queue, made now if there was none."""
        if self._queue is None:
            queue = self._new_queue()
            queue.places.running = len(self._open_ids())
            queue.num_waiting = queue.count_waiting(self._store.finished)
            self._follow(queue)
        assert self._queue is not None
        return self._queue

    def _new_queue(self) -> queue_lib.LearnerQueue:
        return queue_lib.LearnerQueue(self._admission, self._groups, self._waiters)

    def _follow(self, queue: queue_lib.LearnerQueue | None) -> None:
        """Set the queue, and let the store tell it what starts, ends and is evicted."""
        self._queue = queue
        if queue is not None:
            self._store.listeners.insert(0, queue)

    @property
    def admission(self) -> admission_lib.Admission | None:
        """The admission rule for starting episodes; None to admit all."""
        return self._admission

    @property
    def groups(self) -> groups_lib.Groups | None:
        """The rule for groups of episodes; None for no groups."""
        return self._groups

    @property
    def redeliver(self) -> bool:
        """Whether what was delivered and not acknowledged is delivered again after a restart."""
        return self._redeliver

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
        count = self._learner().places.checked_count(count)
        await asyncio.sleep(0)  # Tasks that were given a ticket may start with it.
        if not self._can_admit(count):
            self._learner().places.warn_of_self()

        def ready() -> bool:
            self._gate.refuse_if_closed()
            return self._can_admit(count) or self._warn_if_stuck(self._waiters.episodes, self._waiters.groups)

        with self._learner().places.waiting():
            await self._waiters.wait_for(self._waiters.starts, ready, lambda: self._learner().due)
        return self._learner().places.admit(count)

    def admit_nowait(self, count: int = 1) -> admission_lib.Ticket:
        """Do what `admit` does, with the same exceptions, as a plain call.

        Raises:
            NotReadyError: The Admission holds starts back.
        """
        self._gate.refuse_if_closed()
        places = self._learner().places
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
                the queue. It must not call the buffer. None to accept all.

        Raises:
            ArgumentError: An argument is invalid, `count` is more than can be stored, max_lag is given before
                `set_policy_version` was called, or `accept` does not return True or False.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        request = self._episode_request(count, max_lag, accept)
        self._begin_line()
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
        request = self._episode_request(count, max_lag, accept)
        with self._asking():
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
        reason = validation.non_empty_string("reason", reason)
        found = [episode for episode_id in checked if (episode := self._store.find(episode_id)) is not None]
        if not found:
            return 0
        stored, has_single = [episode.episode_id for episode in found], any(map(self._is_in_line, found))
        self._write_later(queue_journal.REJECT, has_single, stored, reason)
        return self._learner().reject(self._store, stored, reason, has_single=has_single)

    def _is_in_line(self, episode: Any) -> bool:
        """Return whether an episode waits, or has waited, in the line of single episodes, once there is one."""
        is_single = self._groups is None or episode.group_id is None
        return is_single and episode.status != "IN_PROGRESS" and queue_lib.why_not(episode) is None

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
        group_ids = [] if self._queue is None else self._queue.gathering()
        num_open = len(self._open_ids())
        if num_open or group_ids:
            position = self._position
            is_as_recovered = position is not None and position.written == self._written()
            if self._journal is not None:
                self._journal.write(queue_journal.ABANDON, group_ids)
            self._abandon(group_ids)
            if position is not None and is_as_recovered:
                abandoned = (*position.abandoned, group_ids)
                self._position = dataclasses.replace(position, written=self._written(), abandoned=abandoned)
            self._gate.wake()
            self._wake_ended()
        if self._queue is not None:
            self._queue.places.release_all()
        return len(group_ids) if self._HAS_WHOLE_EPISODES else num_open

    def _open_ids(self) -> Collection[str]:
        """Return the ids of the open episodes."""
        return ()

    def _abandon(self, group_ids: Sequence[str]) -> None:
        """End all open episodes as ABORTED, and give up those of the groups that are not complete."""
        if self._queue is not None:
            self._queue.abandon(group_ids)

    def ack(self, version: int) -> None:
        """Acknowledge all that was delivered before the learner had that policy version.

        Call it when the learner has saved the weights of that version, and again after a restart from them: it may have
        been killed in between. What was delivered and not acknowledged is delivered again after `load`,
        `load_state_dict` or `recover`, before all others and in the order of delivery; nothing else is. A group of
        which an episode was evicted or rejected meanwhile is not.

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
        self._write(queue_journal.ACKNOWLEDGE, version, list(but))
        if self._queue is not None:
            self._queue.acknowledge(version, but)

    def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version, from which the lag of what is stored is counted.

        The first call after `load`, `load_state_dict` or `recover` counts the places of an Admission anew: what is
        open, or stored, undelivered and not too old for that version, holds one.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0, or below the previous version: `resume_policy_version` goes back.
            CheckpointError: The journal could not be written or synced.
        """
        before = self._store.policy_version
        version = validation.next_version(version, before)
        self._write(queue_journal.LEARN, version)
        self._store.policy_version = version
        if self._queue is not None:
            self._queue.set_version(self._store, before, version)
        self._gate.wake()
        self._waiters.wake_learner()

    def resume_policy_version(self, version: int) -> None:
        """Let the learner go on from weights of that policy version, newer or older than its own.

        Call it instead of `set_policy_version` if the weights of later versions are lost, after a crash or to go back.
        What was delivered at that version or later, and is not acknowledged, trained weights that are gone. With
        `redeliver` it is delivered again, before all others and in the order of delivery; a group of which an episode
        was evicted or rejected meanwhile is not. Otherwise it is dropped as "resumed". The places of an Admission are
        counted anew, as after a restart. What was generated by later versions has a lag of 0.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0.
            CheckpointError: The journal could not be written or synced.
        """
        version = validation.non_negative_int("version", version)
        self._write(queue_journal.RESUME, version, self._redeliver)
        self._store.policy_version = version
        if self._queue is not None:
            self._queue.resume(self._store, version, waits=self._redeliver)
        self._gate.wake()
        self._waiters.wake_learner()

    def get_drops(self) -> dict[str, dict[str, int]]:
        """Return the number of episodes dropped before training: reason -> agent_id -> episodes.

        The reasons are "aborted", "cleared", "empty", "evicted", "rejected", "resumed", "stale" and "straggler", and
        those given to `reject`. The first thousand agents are listed by name, the others as "(others)". A buffer that
        is only sampled from drops nothing.
        """
        if self._queue is None:
            return {}
        self._queue.pass_time()
        return self._queue.drops.view()

    def get_training_bias(self) -> bias.TrainingBias:
        """Return statistics of all ended episodes, and of those that the learner trained on.

        The latter are those that were sampled, or delivered and not rejected. O(stored steps).
        """
        sums = self._store.sums.with_stored(self._store)
        return bias.TrainingBias(produced=sums.produced.totals(), trained=sums.trained.totals())

    def _put_back(self, ids_of_units: Sequence[Sequence[str]]) -> None:
        """Let episodes or groups, each a list of ids, wait again, before all others: they did not reach the learner."""
        self._write_later(queue_journal.PUT_BACK, [list(ids) for ids in ids_of_units])
        self._learner().put_back(self._store, ids_of_units)
        self._waiters.wake_learner()

    # State.

    def _queue_snapshot(self) -> "queue_state.Snapshot":
        return queue_state.snapshot(self._queue, self._store.sums)

    def _base_queue_state(self) -> dict[str, Any]:
        """Return the state of the queue as if everything stored had just been evicted."""
        sums = self._store.sums.with_stored(self._store)
        return queue_state.snapshot(self._queue, sums, is_empty=True).state_dict([])

    def _loaded_queue(self, given: state_lib.StateReader, store: Any) -> queue_lib.LearnerQueue | None:
        """Return the queue of a state, if it has one, given the episodes of that state."""
        rules = {"admission": self._admission, "groups": self._groups}
        queue = queue_state.load(given, store, self._new_queue, rules)
        if queue is not None and self._redeliver and not given.part("settings").boolean("redeliver"):
            queue.acknowledge(validation.LARGEST + 1)  # Nobody could.
        return queue

    def _swap(self, twin: Any) -> None:
        super()._swap(twin)
        self._limited.counts = self._store
        self._gate.wake()
        self._waiters.wake()

    def _restarted(self) -> Self:
        """Let what was not acknowledged wait again, and return the buffer."""
        if self._queue is not None:
            self._queue.restart(waits=self._redeliver)
        self._waiters.wake_learner()
        return self

    def _since_recovery(self, position: checkpointable.Position) -> list[tuple[int, bytes]]:
        restarts = [(queue_journal.RESTART, commands.encoded())] if self._redeliver else []
        return restarts + [(queue_journal.ABANDON, commands.encoded(ids)) for ids in position.abandoned]

    def _write(self, kind: int, *arguments: Any) -> None:
        """Journal a command of the learner, if a journal is attached, and count it."""
        if self._journal is not None:
            self._journal.write(kind, *arguments)
        self._num_commands += 1

    def _write_later(self, kind: int, *arguments: Any) -> None:
        """Likewise; it is synced with the next record."""
        with contextlib.nullcontext() if self._journal is None else self._journal._syncing_later():
            self._write(kind, *arguments)

    # Waiting.

    def _wake_ended(self) -> None:
        """Wake the callers that wait for the end of an episode."""
        self._waiters.wake_learner()
        if self._admission is not None and self._admission.max_running is not None:
            self._waiters.wake_starts()

    async def _next(self, condition: gate_lib.FairCondition, request: Request) -> list[list[E]]:
        """Wait in a queue until a request can be met, and deliver it."""

        def ready() -> bool:
            self._gate.refuse_if_closed()
            before = itertools.takewhile(lambda other: other is not request, condition.waiting)
            bounds = [self._least_version(other) for other in before if isinstance(other, Request)]
            request.kept = min([bound for bound in bounds if bound is not None], default=None)
            return self._num_ready(request) >= request.count or self._warn_if_stuck(self._waiters.starts)

        await self._waiters.wait_for(condition, ready, lambda: self._learner().due, request)
        return self._take(request)

    def _next_nowait(self, request: Request, call: str, missing: str) -> list[list[E]]:
        """Deliver what a request asks for, or raise NotReadyError."""
        found = self._num_ready(request)
        if found < request.count:
            raise errors.NotReadyError(f"{call}_nowait found {found} of {request.count} {missing}, or await {call}")
        return self._take(request)

    def _episode_request(self, count: object, max_lag: object, accept: Any) -> Request:
        """Return the checked request for the next episodes."""
        request = self._request(lambda: self._learner().singles_line(self._store), 1, count, max_lag, accept)
        if accept is not None:
            request.accept = lambda unit: accept(*unit)
        return request

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Let the line of single episodes begin in a block, unless that raises before any of them was dropped.

        The line begins where too few of them wait, too.
        """
        had_queue, queue = self._queue is not None, self._learner()
        if queue.line is not None:
            yield
            return
        drops = copy.deepcopy(queue.drops)
        try:
            try:
                yield
            except errors.NotReadyError:
                if not queue.has_removed:
                    self._write_later(queue_journal.DELIVER, True, [], [], "")
                raise
        except errors.NotReadyError:
            raise
        except BaseException:
            if not queue.has_removed:
                queue.forget_line(drops)
                if not had_queue:
                    self._store.listeners.remove(queue)
                    self._queue = None
            raise

    def _begin_line(self) -> None:
        """Let the line of single episodes begin, as the learner waits for them."""
        if self._learner().line is None:
            self._write_later(queue_journal.DELIVER, True, [], [], "")
            self._learner().singles_line(self._store)

    def _group_request(self, call: str, count: object, max_lag: object, accept: Any) -> Request:
        """Return the checked request for the next groups."""
        if self._groups is None:
            name = type(self).__name__
            raise errors.ArgumentError(f"{call} needs a buffer with groups: {name}(groups=Groups(size))")
        return self._request(lambda: self._learner().groups_line(), self._groups._least_size, count, max_lag, accept)

    def _request(
        self, line: Callable[[], units.Line], episodes_each: int, count: object, max_lag: object, accept: Any
    ) -> Request:
        count = validation.positive_int("count", count)
        for what, most in self._limits.items():
            if count * episodes_each > most:
                raise errors.ArgumentError(
                    f"count must be at most {most // episodes_each} with {most} {what}, got {count}"
                )
        if accept is not None:
            validation.require_function("accept", accept)
        if max_lag is not None:
            max_lag = validation.non_negative_int("max_lag", max_lag)
            if self._store.policy_version is None:
                raise errors.ArgumentError(
                    "max_lag asks for the learner's policy version: call set_policy_version first"
                )
        return Request(line, count, max_lag, accept)

    def _can_admit(self, count: int) -> bool:
        queue = self._learner()
        queue.pass_time()
        return queue.places.can_admit(count)

    def _warn_if_stuck(self, *others: gate_lib.FairCondition) -> bool:
        """Return False, after a warning if the caller and others wait for what is never finished."""
        queue = self._learner()
        is_alone = not any(each.waiting for each in others)
        if self._is_warned or is_alone or queue.places.is_running or queue.places.reserved:
            return False
        unfinished = [f"episode {episode_id}" for episode_id in itertools.islice(self._open_ids(), 1)]
        if queue.groups is not None and queue.due is None:
            unfinished += [f"group {validation.short_repr(group_id)}" for group_id in queue.gathering()[:1]]
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
        """Return how many units are ready for a request, after calling `accept` for as many as needed."""
        least = self._least_version(request)
        if request.accept is not None:
            while self._refuse(request, request.accept, least):
                pass  # More units became available.
        return request.line().num_fresh(least, request.kept)

    def _refuse(self, request: Request, accept: Accept, least: int | None) -> bool:
        """Call `accept` for the next units, drop the refused ones, and return whether any was checked."""
        line, has_asked = request.line(), False
        request.accepted = {unit for unit in request.accepted if unit in line}
        for unit in line.find(request.count, least, request.kept)[0]:
            if unit not in request.accepted and unit in line:  # An earlier `accept` may have called the buffer.
                has_asked = True
                if validation.boolean("what accept returns", accept(_copied(unit))):
                    request.accepted.add(unit)
                elif unit in line:
                    self._write_later(queue_journal.DELIVER, not unit.is_group, [], _ids([unit]), "rejected")
                    self._learner().drop(unit, "rejected")
        return has_asked

    def _take(self, request: Request) -> list[list[E]]:
        """Deliver what a request asks for, which must be ready."""
        fresh, stale = request.line().find(request.count, self._least_version(request), request.kept)
        answer = [_copied(unit) for unit in fresh]
        queue = self._learner()
        are_single = request.line() is queue.line
        self._write_later(queue_journal.DELIVER, are_single, _ids(fresh), _ids(stale), "stale" if stale else "")
        queue.deliver({unit: unit.episodes for unit in fresh}, self._store.policy_version)
        for unit in stale:
            queue.drop(unit, "stale")
        return answer


class Deliveries:
    """The queue of a buffer, for those who serve learners and actors in other processes.

    Args:
        buffer: The buffer; one without a queue, such as one of columns, delivers nothing.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    @property
    def changes(self) -> int:
        """How often anyone had a reason to look again; 0 without a queue."""
        return 0 if self._queue is None else 1 + int(self._buffer._waiters.wakes)

    def take(self, number: int, most: int, *, groups: bool, max_lag: int | None, accept: Any) -> tuple[list[Any], int]:
        """Deliver the next episodes or groups, and return them, and how many more are ready.

        Args:
            number: How many to deliver; none if fewer are ready.
            most: How many the learner needs: no more are looked for.
            groups: Whether groups are asked for.
            max_lag: As in `next_groups`, like the next one, and with the same exceptions.
            accept: Decides whether a unit is wanted.
        """
        buffer = self._buffer
        if groups:
            request = buffer._group_request("next_groups", 1, max_lag, accept)
        else:
            request = buffer._episode_request(1, max_lag, accept)
            buffer._begin_line()
        request.count = most
        ready = min(buffer._num_ready(request), most)
        request.count = number if number <= ready else 0
        return buffer._take(request) if request.count else [], ready - request.count

    def put_back(self, ids_of_units: Sequence[Sequence[str]]) -> None:
        """Let episodes or groups, each a list of ids, wait again, before all others."""
        self._buffer._put_back(ids_of_units)

    def ack(self, version: int, but: Collection[str]) -> None:
        """Acknowledge all but those episodes, which may not have reached their learner; see `ack` of the buffer."""
        self._buffer._ack(version, but)

    def places(self, max_lag: int | None = None) -> tuple[int, int]:
        """Return how many episodes run or may still be delivered, and how many run.

        What waits with a larger lag is not counted, given a `max_lag`: O(units that wait), otherwise O(1).
        """
        queue, version = self._buffer._learner(), self._buffer.policy_version
        queue.pass_time()
        older = 0 if max_lag is None or version is None else queue.num_older(version - max_lag)
        return queue.num_outstanding - older, queue.places.running

    def are_delivered(self, episode_ids: Iterable[str]) -> bool:
        """Return whether any of those episodes is delivered."""
        found = [self._buffer._store.find(episode_id) for episode_id in episode_ids]
        return any(episode is not None and self._queue.is_delivered(episode) for episode in found)

    def gathering(self) -> list[str]:
        """Return the ids of the groups that are not complete."""
        return [] if self._queue is None else self._queue.gathering()

    def is_past(self, group_id: str) -> bool:
        """Return whether a group was complete or given up, if any of its episodes is still stored."""
        tracker = None if self._queue is None else self._queue.groups
        group = None if tracker is None else tracker.groups.get(group_id)
        return group is not None and group.state is not units.DeliveryState.GATHERING

    def give_up(self, group_ids: Iterable[str]) -> int:
        """Give up those of the groups that are not complete and hold places, and return how many there were."""
        torn = [self._queue.groups.gathering[each] for each in {*self.gathering()}.intersection(group_ids)]
        ids = [group.episodes[0].episode_id for group in torn if group.episodes]
        if ids:
            self._buffer.reject(ids, reason="straggler")
        return len(ids)

    @property
    def _queue(self) -> Any:
        return getattr(self._buffer, "_queue", None)


def _ids(some: Iterable[units.Unit]) -> list[str]:
    return [episode.episode_id for episode in units.episodes_of(some)]


def _copied(unit: units.Unit) -> Any:
    """Return copies of the episodes of a unit that share nothing mutable with the store."""
    return [copies.copied(episode) for episode in unit.episodes]
