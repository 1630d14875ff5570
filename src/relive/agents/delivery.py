"""The calls of an episode buffer for asynchronous learners: when an episode may start, and what the learner gets next.

    actor                                             learner
    ticket = await buffer.admit()                     await buffer.next_episodes(count)
    await buffer.start_episode(..., ticket=ticket)    buffer.set_policy_version(version)

Deciding and waiting are apart, as in the buffer: an awaited call waits for its turn, then takes, and awaits nothing in
between.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
import contextlib
import functools
import time
from typing import TYPE_CHECKING, Generic, TypeVar
import weakref

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.agents import queue
from relive.common import copies
from relive.common import imports
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import store as store_lib
from relive.persistence import state
from relive.waiting import gate
from relive.waiting import gate as gate_lib

if TYPE_CHECKING:
    from relive.persistence import settings
else:
    settings = imports.lazy_module("relive.persistence.settings")

_STARTS_A_TURN = 32


class DeliveryWaiters:
    """The coroutines that wait at one buffer for a ticket, for episodes or for groups.

    Args:
        gate: The gate of the buffer, which knows whether it is closed.
        due: Returns when time alone will change an answer, by the monotonic clock; None if it will not.
    """

    def __init__(self, gate: gate_lib.Gate, due: Callable[[], float | None]) -> None:
        self.starts = gate_lib.FairCondition()
        self.episodes = gate_lib.FairCondition()
        self.groups = gate_lib.FairCondition()
        self._gate = gate
        self._due = due
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def wait_for(self, queue: gate_lib.FairCondition, ready: Callable[[], bool]) -> None:
        """Return when it is the caller's turn in one of the queues and `ready()` returns True.

        Other tasks run first, even if there is no need to wait.

        Raises:
            ClosedError: The buffer is closed.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer = loop, None  # The timer of a loop that was closed never rings.
        await asyncio.sleep(0)

        def asked() -> bool:
            self._gate.refuse_if_closed()
            if ready():
                return True
            self._set_timer()
            return False

        try:
            await queue.wait_for(asked)
        finally:
            if self._timer is not None and not self._does_time_matter():
                self._timer.cancel()
                self._timer = None

    def started(self) -> None:
        """Record that an episode has started: there may be another time to wait for."""
        if self._does_time_matter():
            self._set_timer()

    def wake(self) -> None:
        """Let the first of each queue ask again."""
        self.wake_starts()
        self.wake_learner()

    def wake_learner(self) -> None:
        """Let the first of those that wait for episodes or groups ask again."""
        self.episodes.notify()
        self.groups.notify()

    def wake_starts(self) -> None:
        """Let the first of those that wait for a ticket ask again."""
        self.starts.notify(_STARTS_A_TURN)

    def wake_starts_soon(self) -> None:
        """Do the same from any thread, in the event loop, if there are any."""
        if self._loop is not None and self.starts.waiting:
            with contextlib.suppress(RuntimeError):  # It is closed.
                self._loop.call_soon_threadsafe(self.wake_starts)

    def _does_time_matter(self) -> bool:
        """Return whether somebody waits for what may fall due."""
        return bool(self.starts.waiting or self.groups.waiting)

    def _set_timer(self) -> None:
        """Set a timer for the next due time, if there is one. It only gets later: what starts now falls due last."""
        due = self._due() if self._timer is None else None
        if due is not None and self._loop is not None and not self._loop.is_closed():
            self._timer = self._loop.call_later(max(due - time.monotonic(), 0), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.wake()


Obs = TypeVar("Obs")
Act = TypeVar("Act")


class Delivery(Generic[Obs, Act]):
    """The calls of an episode buffer that admit episodes and hand each out once."""

    _store: store_lib.EpisodeStore[Obs, Act]
    _gate: gate.Gate
    _hand_outs: queue.LearnerQueue
    _queues: DeliveryWaiters

    @property
    def admission(self) -> admission_lib.Admission | None:
        """What decides when an episode may start; None for always."""
        return self._hand_outs.admission

    @property
    def groups(self) -> groups_lib.Groups | None:
        """How many episodes belong together; None for no groups."""
        return self._hand_outs.groups

    async def admit(self, count: int = 1) -> admission_lib.Ticket:
        """Return a ticket to start `count` episodes; waits, first come, first served, while the Admission asks for it.

        Without an Admission there is always one. Other tasks run first, even if there is no need to wait.

        Args:
            count: How many episodes, such as all of a group: they are admitted together, or not at all.

        Raises:
            ArgumentError: `count` is not an integer of at least 1, or more than there are ever places for.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        count = self._hand_outs.desk.checked_count(count)
        await self._queues.wait_for(self._queues.starts, lambda: self._can_admit(count))
        return self._hand_outs.desk.admit(count)

    def admit_nowait(self, count: int = 1) -> admission_lib.Ticket:
        """Do what `admit` does, and raise what it raises, as a plain call.

        Raises:
            NotReadyError: The Admission holds starts back.
        """
        self._gate.refuse_if_closed()
        count = self._hand_outs.desk.checked_count(count)
        if not self._can_admit(count):
            raise self._hand_outs.desk.held_back("admit_nowait")
        return self._hand_outs.desk.admit(count)

    async def next_episodes(self, count: int, *, max_lag: int | None = None) -> list[episode_lib.Episode[Obs, Act]]:
        """Return copies of the `count` episodes that ended first, of those not handed out yet; waits for the last one.

        Each is handed out once; it stays stored, and can be drawn, until it is evicted. ABORTED episodes are passed
        over, and those without a transition; in a buffer with `groups`, also those with a group_id. The first call
        begins with what is stored then. Other tasks run first, even if there is no need to wait.

        Args:
            count: How many: just so many, or it waits. A call that is cancelled has taken none.
            max_lag: By how much the learner's version may be ahead of the oldest one in an episode. Those before the
                ones that are handed out which are older, or say no version, are dropped as "stale". None for any.

        Raises:
            ArgumentError: An argument breaks its rule, `count` is more than can be stored, or max_lag is given before
                `set_policy_version` was called.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        count, max_lag = self._checked_next(count, max_lag, 1)
        self._hand_outs.begin_line()
        await self._queues.wait_for(self._queues.episodes, lambda: self._num_episodes(max_lag) >= count)
        return self._next_episodes(count, max_lag)

    def next_episodes_nowait(self, count: int, *, max_lag: int | None = None) -> list[episode_lib.Episode[Obs, Act]]:
        """Do what `next_episodes` does, as a plain call; works on a closed buffer too.

        Raises:
            NotReadyError: Fewer have ended.
        """
        count, max_lag = self._checked_next(count, max_lag, 1)
        self._hand_outs.begin_line()
        found = self._num_episodes(max_lag)
        if found < count:
            raise errors.NotReadyError(
                f"next_episodes_nowait found {found} of {count} episodes: end more of them, or await next_episodes"
            )
        return self._next_episodes(count, max_lag)

    async def next_groups(self, count: int, *, max_lag: int | None = None) -> list[list[episode_lib.Episode[Obs, Act]]]:
        """Return copies of the `count` groups that became whole first, of those not handed out yet; waits for them.

        A group is a list of its episodes, the first to end first: `size` of them, or fewer where its time was up. Each
        is handed out once. It lets the other tasks run first, also where it need not wait.

        Args:
            count: How many: just so many, or it waits. A call that is cancelled has taken none.
            max_lag: As in `next_episodes`, of the oldest episode of a group: a group is dropped as a whole.

        Raises:
            ArgumentError: The buffer was made without `groups`, or as in `next_episodes`.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        count, max_lag = self._checked_next(count, max_lag, self._groups("next_groups").least_size)
        await self._queues.wait_for(self._queues.groups, lambda: self._num_groups(max_lag) >= count)
        return self._next_groups(count, max_lag)

    def next_groups_nowait(
        self, count: int, *, max_lag: int | None = None
    ) -> list[list[episode_lib.Episode[Obs, Act]]]:
        """Do what `next_groups` does, as a plain call; works on a closed buffer too.

        Raises:
            NotReadyError: Fewer are whole.
        """
        count, max_lag = self._checked_next(count, max_lag, self._groups("next_groups_nowait").least_size)
        found = self._num_groups(max_lag)
        if found < count:
            raise errors.NotReadyError(
                f"next_groups_nowait found {found} of {count} whole groups: end more episodes, or await next_groups"
            )
        return self._next_groups(count, max_lag)

    def get_drops(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many episodes the learner was not given: reason -> agent_id -> episodes; for reading only.

        The reasons are "aborted", "cleared", "empty", "evicted", "stale" and "straggler". The first thousand agents are
        named, the others count as "(others)". A buffer that is only drawn from drops nothing.
        """
        self._hand_outs.pass_time()
        return self._hand_outs.drops.view()

    def get_training_bias(self) -> bias.TrainingBias:
        """Return statistics of all episodes that have ended, and of those that the learner was trained on.

        Those are the ones that a sample came from or that were handed out. O(steps that are stored).
        """
        produced, trained = self._hand_outs.sums()
        return bias.TrainingBias(produced=produced.totals(), trained=trained.totals())

    def _begin_handing_out(self, admission: admission_lib.Admission | None, groups: groups_lib.Groups | None) -> None:
        """Make the queues; the store and the gate are there already."""
        self._queues = DeliveryWaiters(self._gate, functools.partial(Delivery._due, weakref.proxy(self)))
        self._follow(self._new_hand_outs(self._store, admission, groups))
        if groups is not None:
            self._check_room(admission, groups.size)

    def _check_room(self, admission: admission_lib.Admission | None, size: int) -> None:
        """Raise ArgumentError if a group of that size could never be whole."""
        rooms = {
            f"max_transitions = {self._store.max_transitions}": self._store.max_transitions,
            f"max_episodes = {self._store.max_episodes}": self._store.max_episodes,
        }
        if admission is not None:
            rooms[f"{admission.most_admitted(0)} with {admission!r}"] = admission.most_admitted(0)
        for room, most in rooms.items():
            if most is not None and size > most:
                raise errors.ArgumentError(f"size of groups must be at most {room}, got {size}")

    def _new_hand_outs(
        self,
        store: store_lib.EpisodeStore[Obs, Act],
        admission: admission_lib.Admission | None,
        groups: groups_lib.Groups | None,
    ) -> queue.LearnerQueue:
        return queue.LearnerQueue(store, admission, groups, self._queues.wake_starts, self._queues.wake_starts_soon)

    def _follow(self, hand_outs_: queue.LearnerQueue) -> None:
        """Make this the buffer's queue, which the store tells of evictions through a weak reference."""
        self._hand_outs, hand_outs_.store = hand_outs_, self._store
        self._store.left = functools.partial(queue.LearnerQueue.left, weakref.proxy(hand_outs_))

    def _has_rules_of(self, given: state.StateReader) -> bool:
        """Return whether admission and groups are those of a state."""
        saved, own = given.part("settings"), self._hand_outs
        return all(
            settings.are_same(settings.encoded(mine), saved.value(name))
            for name, mine in (("admission", own.admission), ("groups", own.groups))
        )

    def _due(self) -> float | None:
        """Return when the next group falls due, by the monotonic clock."""
        book = self._hand_outs.book
        return None if book is None else book.due

    def _groups(self, call: str) -> groups_lib.Groups:
        groups = self._hand_outs.groups
        if groups is None:
            raise errors.ArgumentError(f"{call} needs a buffer with groups: EpisodeReplayBuffer(groups=Groups(size))")
        return groups

    def _checked_next(self, count: object, max_lag: object, episodes_each: int) -> tuple[int, int | None]:
        """Return the arguments of a call for the next ones, checked."""
        count = validation.positive_int("count", count)
        for what, most in (("episodes", self._store.max_episodes), ("transitions", self._store.max_transitions)):
            if most is not None and count * episodes_each > most:
                raise errors.ArgumentError(
                    f"count must be at most {most // episodes_each} with {most} {what}, got {count}"
                )
        if max_lag is None:
            return count, None
        max_lag = validation.non_negative_int("max_lag", max_lag)
        if self._store.policy_version is None:
            raise errors.ArgumentError("max_lag asks for the learner's policy version: call set_policy_version first")
        return count, max_lag

    def _can_admit(self, count: int) -> bool:
        self._hand_outs.pass_time()
        return self._hand_outs.desk.can_admit(count)

    def _least_version(self, max_lag: int | None) -> int | None:
        """Return the oldest version that is fresh enough; None if all are."""
        version = self._store.policy_version
        return None if max_lag is None or version is None else version - max_lag

    def _num_episodes(self, max_lag: int | None) -> int:
        return self._hand_outs.begin_line().num_fresh(self._least_version(max_lag))

    def _num_groups(self, max_lag: int | None) -> int:
        self._hand_outs.pass_time()
        book = self._hand_outs.book
        assert book is not None
        return book.whole.num_fresh(self._least_version(max_lag))

    def _next_episodes(self, count: int, max_lag: int | None) -> list[episode_lib.Episode[Obs, Act]]:
        line = self._hand_outs.begin_line()
        fresh, stale = line.find(count, self._least_version(max_lag))
        answer = _copied(line[key] for key in fresh)
        self._hand_outs.hand_out(fresh, stale)
        return answer

    def _next_groups(self, count: int, max_lag: int | None) -> list[list[episode_lib.Episode[Obs, Act]]]:
        book = self._hand_outs.book
        assert book is not None
        fresh, stale = book.whole.find(count, self._least_version(max_lag))
        answer = [_copied(book.whole[group_id]) for group_id in fresh]
        self._hand_outs.hand_out_groups(fresh, stale)
        return answer


def _copied(episodes: Iterable[episode_lib.Episode[Obs, Act]]) -> list[episode_lib.Episode[Obs, Act]]:
    """Return copies that share nothing with the store that a caller could change."""
    return [copies.copied(episode) for episode in episodes]
