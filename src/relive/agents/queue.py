"""LearnerQueue: delivers each episode, or complete group, to the learner once, and counts what is dropped and why.

    an episode started    a ticket is used; its group has one more open episode
    it ended              it waits: in the line of single episodes, or in its group
                          or it is dropped: "aborted", "empty", "straggler"; the place of the first two is its ticket's
    the learner asks      the first that wait are delivered; those before them that are too old are dropped: "stale";
                          those that it does not accept are dropped: "rejected"
    it rejects one        if it waited, or was delivered, it is dropped: "rejected", or for the learner's reason
    it is put back        what did not reach the learner waits again, before all others
    it is evicted         if it waited, it is dropped: "evicted"
    cleared               if it waited, it is dropped: "cleared"
    abandoned             if it waited in a group that is not complete, it is dropped: "straggler"
    a restart             what was delivered and not acknowledged waits again, before all others

With several epochs, what was delivered waits again until it was delivered that often. An episode that was delivered
once is not counted as dropped if it is too old for another delivery, or evicted before it.

A dropped episode is counted and gives back the place that its ticket took, if that still counts: to the ticket if it
failed while that is open, else to all. Invariant: the queue
is notified of events in order and, but for `abandon`, does not affect the store: a delivered episode stays there and
can be sampled.

The line of single episodes begins with the first request for one. Until then nothing waits in it, and nothing is
dropped, so evictions do not count for a learner that only samples. Episodes with a group_id belong to groups only if
the buffer has a rule for them; otherwise a group_id has no effect.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import copy
import itertools
import time
from typing import Any, Protocol, Self, TypeAlias

import numpy as np

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.common import validation

Episode: TypeAlias = bias.EndedEpisode


class Store(Protocol):
    """What the queue reads of the store of a buffer: EpisodeStore, and the table of a token buffer.

    Attributes:
        policy_version: The learner's policy version; None before the first.
        max_transitions: Maximum number of stored transitions; None for no limit.
        max_episodes: Maximum number of stored episodes; None for no limit.
        listeners: Are notified when an episode starts, ends, or is evicted.
        finished: The episodes that have ended, in that order.
        open: The episodes that run, by id.
    """

    policy_version: int | None
    listeners: Any

    @property
    def max_transitions(self) -> int | None: ...  # noqa: D102
    @property
    def max_episodes(self) -> int | None: ...  # noqa: D102
    @property
    def finished(self) -> Iterable[Any]: ...  # noqa: D102
    @property
    def open(self) -> Mapping[str, Any]: ...  # noqa: D102

    def has(self, episode_id: str) -> bool:
        """Return whether an episode with that id is stored."""
        ...

    def was_drawn(self, episode: Any) -> bool:
        """Return whether a stored episode was sampled."""
        ...

    def __contains__(self, episode: Any) -> bool: ...
    def __getitem__(self, episode_id: str) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


Line: TypeAlias = groups_lib.PendingEpisodes[list[Episode]]
"""What waits for the learner: whole groups, or single episodes, each a list of its own."""
Unacked: TypeAlias = dict[tuple[bool, str], tuple[list[Episode], list[int]]]
"""By whether it is a group, and the id of the group or episode: its episodes, and the learner's version at each
delivery that was not acknowledged, -1 for none."""

PENDING, DELIVERED, DROPPED, DELIVERED_UNCOUNTED, PENDING_UNCOUNTED = range(5)
"""How a stored episode stands with the learner; an uncounted one had been trained on when places began to be counted,
so that it has none to give back."""


class LearnerQueue:
    """What the learner of one buffer was given, and what was dropped.

    Args:
        admission: The rule for starting episodes; None to admit all.
        groups: The rule for complete groups; None for no groups.
        epochs: How often each episode or group is delivered.
        redeliver: Whether what was not acknowledged is delivered again after a restart.
        rng: Draws the order of passes if there are several epochs.
        came_back: Called when places have come back.
        lost: Called from any thread when a ticket was lost; must call `came_back` soon.

    Attributes:
        desk: Issues the tickets.
        line: Single episodes that wait; None before the first request.
        book: The groups; None without a rule for them.
        drops: Counts of dropped episodes, by reason.
        produced: Sums over the ended episodes that are no longer stored.
        trained: Sums over those of them that the learner trained on.
    """

    def __init__(
        self,
        admission: admission_lib.Admission | None,
        groups: groups_lib.Groups | None,
        epochs: int,
        redeliver: bool,
        rng: np.random.Generator,
        came_back: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        if admission is not None:
            validation.require_instance("admission", admission, admission_lib.Admission)
        if groups is not None:
            validation.require_instance("groups", groups, groups_lib.Groups)
        self.admission, self.groups = admission, groups
        self.epochs = validation.positive_int("epochs", epochs)
        self.redeliver = validation.boolean("redeliver", redeliver)
        self._rng = rng if self.epochs > 1 else None
        self.desk = admission_lib.Desk(admission, came_back, lost)
        self.drops = bias.Drops()
        self.produced, self.trained = bias.Tally(), bias.Tally()
        self.line: Line | None = None
        self.book = self._new_book()
        # Those that were delivered, and how often.
        self._handed: dict[Episode, int] = {}
        self._unacked: Unacked = {}
        # Episodes trained on before places were counted.
        self._uncounted: set[Episode] = set()
        self._stopped: float | None = None

    def new_line(self) -> Line:
        """Return an empty line."""
        return groups_lib.PendingEpisodes(self._rng)

    def _new_book(self) -> groups_lib.GroupBook | None:
        return None if self.groups is None else groups_lib.GroupBook(self.groups, self._rng)

    # Events.

    def check_start(self, group_id: str | None, ticket: object, call: str = "start_episode") -> None:
        """Raise an error, which names the call, unless an episode of that group may start with that ticket."""
        self.desk.check(ticket, call)
        if self.book is not None and group_id is not None:
            self.pass_time()
            self.book.check_start(group_id)

    def started(self, store: Store, episode: Episode) -> None:
        """Record that an episode has started, after `check_start`."""
        if self.book is not None and episode.group_id is not None:
            self.book.started(episode.group_id, self.now())

    def ended(self, store: Store, episode: Episode) -> None:
        """Record that an open episode has ended."""
        reason = _why_not(episode)
        is_kept = self.desk.ended(episode.episode_id, is_wasted=reason is not None)
        if self.book is not None and episode.group_id is not None:
            self.pass_time()
            if self.book.ended(episode.group_id, episode, counts=reason is None):
                reason = self.book.reason(episode.group_id)
        elif self.line is None:
            self.desk.give_back(reason is not None and not is_kept)
            return
        elif reason is None:
            _put_in_line(self.line, episode)
        if reason is not None:
            self._drop([(reason, episode)], num_kept=is_kept)

    def evicted(self, store: Store, episode: Episode) -> None:
        """Record that an ended episode is about to be evicted."""
        self.sum_up(store, episode)
        if self.book is not None and episode.group_id is not None:
            self.pass_time()
            self._drop(self.book.left(episode.group_id, episode))
        elif self.line is not None and episode.episode_id in self.line:
            self.drop(self.line, episode.episode_id, "evicted")
        self.forget(episode)

    def cleared(self, store: Store) -> None:
        """Record that all episodes are about to be removed."""
        waiting: groups_lib.Dropped = [("cleared", episode) for episode in self._waiting()]
        for episode in store.finished:
            self.sum_up(store, episode)
        self.line = None if self.line is None else self.new_line()
        self.book = self._new_book()
        self._drop(waiting)
        for episode in store.finished:
            self.forget(episode)
        self.desk.give_back(len(store.open))
        for episode_id in store.open:
            self.desk.ended(episode_id, is_wasted=False)

    def sum_up(self, store: Store, episode: Episode) -> None:
        """Add an ended episode to the sums, while it is still stored."""
        self.produced.add(episode)
        if self._was_trained_on(store, episode):
            self.trained.add(episode)

    def forget(self, episode: Episode) -> None:
        """Forget an episode that is removed."""
        self._uncounted.discard(episode)
        # Others of its group may have been delivered without it.
        if self._handed.pop(episode, None) is not None:
            self._unacked.pop(self._unit_of(episode), None)

    def stop_clock(self) -> None:
        """Stop the clock of the groups until `start_clock`, while a journal is replayed."""
        self._stopped = time.monotonic()

    def restart_times(self) -> None:
        """Restart the timeouts of gathering groups."""
        if self.book is not None:
            self.book.restart_times(self.now())

    def start_clock(self) -> None:
        """Start the clock of the groups again."""
        self._stopped = None

    def now(self) -> float:
        """Return the current time of the groups, by the monotonic clock."""
        return time.monotonic() if self._stopped is None else self._stopped

    def pass_time(self) -> None:
        """Close due groups, and drop their episodes."""
        if self.book is not None and self.book.due is not None:
            self._drop(self.book.pass_time(self.now()))

    def move_on(self, store: Store, versions: int) -> None:
        """Record that the policy has advanced by that many versions, or that the first one was set."""
        if self.desk.versions is None:
            self.begin_count(store, 0)
        else:
            self.desk.move_on(versions)

    # Requests of the learner.

    def begin_line(self, store: Store) -> Line:
        """Return the line of single episodes, created with those that have ended so far."""
        if self.line is None:
            self.line = self.new_line()
            for episode in store.finished:
                reason = _why_not(episode)
                if self._is_grouped(episode):
                    continue
                if reason is None:
                    _put_in_line(self.line, episode)
                else:
                    self.drops.count(reason, episode.agent_id)
        return self.line

    def whole_groups(self) -> Line:
        """Return the line of complete groups; the queue must have groups."""
        assert self.book is not None
        self.pass_time()
        return self.book.whole

    def hand_out(self, line: Line, fresh: Iterable[str], stale: Iterable[str], version: int | None) -> None:
        """Record, by key, which items of a line were delivered, and which stale ones before them were dropped.

        Args:
            line: The line.
            fresh: The keys of the delivered items.
            stale: Those of the dropped ones.
            version: The learner's policy version.
        """
        is_group = self.book is not None and line is self.book.whole
        units = {(is_group, key): self._take(line, key) for key in fresh}
        self._deliver(units, version)
        for key in stale:
            self.drop(line, key, "stale")

    def deliver(self, store: Store, episode_ids: Iterable[str]) -> None:
        """Deliver episodes and complete groups as recorded in a journal, ignoring those no longer stored.

        Raises:
            CheckpointError: One of them cannot have been delivered.
        """
        units: dict[tuple[bool, str], list[Episode]] = {}
        for episode_id in episode_ids:
            if not store.has(episode_id):
                continue
            episode = store[episode_id]
            is_possible = episode.status != "IN_PROGRESS" and _why_not(episode) is None
            if not is_possible or self._handed.get(episode, 0) >= self.epochs:
                raise errors.CheckpointError(f"hands out episode {episode_id}, which cannot be")
            if self.book is not None and episode.group_id is not None:
                self.book.give_up(episode.group_id, episode)
            elif episode_id in (line := self.begin_line(store)):
                line.pop(episode_id)
            units.setdefault(self._unit_of(episode), []).append(episode)
        self._deliver(units, store.policy_version)

    def _deliver(self, units: dict[tuple[bool, str], list[Episode]], version: int | None) -> None:
        """Record that units were delivered, which were removed from their line; they return if epochs are left."""
        for (is_group, key), unit in units.items():
            times = 1 + self._handed.get(unit[0], 0)
            self._handed.update(dict.fromkeys(unit, times))
            if self.redeliver:
                self._unacked.setdefault((is_group, key), (unit, []))[1].append(-1 if version is None else version)
            if times < self.epochs:
                self._wait_again(is_group, key, unit, first=False)

    def _wait_again(self, is_group: bool, key: str, unit: list[Episode], *, first: bool) -> None:
        if is_group:
            assert self.book is not None
            self.book.restore(key, unit, first=first)
        else:
            assert self.line is not None
            put = self.line.prepend if first else self.line.append
            put(key, unit, bias.oldest_version(unit[0]))

    def acknowledge(self, version: int, but: Collection[str] = ()) -> None:
        """Record that all that was delivered before the learner had that version will not be needed again.

        Args:
            version: The version.
            but: The ids of episodes that may not have reached their learner.
        """
        for name, (unit, versions) in list(self._unacked.items()):
            if not any(episode.episode_id in but for episode in unit):
                versions[:] = [each for each in versions if each >= version]
                if not versions:
                    del self._unacked[name]

    def restart(self) -> None:
        """Let all that was delivered and not acknowledged wait again, before all others, in the order of delivery."""
        for (is_group, key), (unit, versions) in reversed(self._unacked.items()):
            self._undeliver(is_group, key, unit, len(versions))
        self._unacked.clear()

    def put_back(self, store: Store, episode_ids: Sequence[str]) -> None:
        """Let an episode or group whose newest delivery failed wait again, before all others.

        A group of which an episode was evicted or rejected meanwhile is dropped.

        Args:
            store: The episodes.
            episode_ids: The id of the episode, or those of the group.

        Raises:
            CheckpointError: They cannot have been delivered together.
        """
        stored = [store[each] for each in episode_ids if store.has(each)]
        unit = [episode for episode in stored if episode in self._handed]
        if not unit:
            return
        is_group, key = self._unit_of(unit[0])
        sizes = range(self.groups.least_size, self.groups.size + 1) if is_group and self.groups is not None else (1,)
        are_one = all(self._unit_of(episode) == (is_group, key) for episode in unit)
        if not are_one or len(set(episode_ids)) < len(episode_ids) or len(episode_ids) not in sizes:
            raise errors.CheckpointError(f"puts {validation.short_repr(list(episode_ids))} back, which cannot be")
        _, versions = self._unacked.get((is_group, key), (unit, [0]))
        versions.pop()
        if not versions:
            self._unacked.pop((is_group, key), None)
        if len(unit) == len(episode_ids):
            self._undeliver(is_group, key, unit, 1)
            return
        for episode in unit:
            del self._handed[episode]
        reason = "rejected" if len(stored) == len(episode_ids) else "evicted"
        self._drop([(reason, episode) for episode in unit])

    def _undeliver(self, is_group: bool, key: str, unit: list[Episode], times: int) -> None:
        """Let a unit that was delivered wait again, before all others, as if it had been so many times fewer."""
        for episode in unit:
            self._handed[episode] -= times
            if not self._handed[episode]:
                del self._handed[episode]
        if is_group and self.book is not None:
            self.book.give_up(key, unit[0])
        elif self.line is not None and key in self.line:
            self.line.pop(key)
        self._wait_again(is_group, key, unit, first=True)

    def pass_over(self, store: Store, episode_ids: Iterable[str], reason: str) -> None:
        """Drop the items with those episodes from their lines as recorded in a journal; ignores those not waiting."""
        for episode_id in episode_ids:
            if store.has(episode_id):
                is_group, key = self._unit_of(store[episode_id])
                line = self.book.whole if is_group and self.book is not None else self.line
                if line is not None and key in line:
                    self.drop(line, key, reason)

    def drop(self, line: Line, key: str, reason: str) -> None:
        """Remove the item with that key from a line, and drop it."""
        self._drop([(reason, episode) for episode in self._take(line, key)])

    def gathering(self) -> list[str]:
        """Return the ids of the groups that are not complete."""
        self.pass_time()
        return [] if self.book is None else self.book.gathering

    def abandon(self, store: Any, group_ids: Iterable[str]) -> None:
        """End all open episodes of the store as ABORTED, and give up those of the groups that are not complete."""
        for episode_id in list(store.open):
            store.abort(episode_id)
        if self.book is not None:
            for group_id in set(self.book.gathering).intersection(group_ids):
                self._drop([("straggler", episode) for episode in self.book.take(group_id)])

    def reject(self, store: Store, episode_ids: Iterable[str], reason: str) -> int:
        """Drop those of the episodes that were delivered or wait, and return how many there were.

        A waiting episode drops all that wait in the same group.
        """
        rejected: list[Episode] = []
        for episode_id in episode_ids:
            episode = store[episode_id] if store.has(episode_id) else None
            if episode is None:
                continue
            unit: list[Episode] = []
            if self.book is not None and episode.group_id is not None:
                self.pass_time()
                unit = self.book.give_up(episode.group_id, episode)
            elif episode.status != "IN_PROGRESS" and _why_not(episode) is None:
                line = self.line if episode in self._handed else self.begin_line(store)
                if line is not None and episode_id in line:
                    unit = line.pop(episode_id)
            unit = unit or [episode] * (episode in self._handed)
            for each in unit:
                self._handed.pop(each, None)
                self._unacked.pop(self._unit_of(each), None)
            rejected += unit
        self._drop([(reason, episode) for episode in rejected])
        return len(rejected)

    def sums(self, store: Store) -> tuple[bias.Tally, bias.Tally]:
        """Return the sums over all episodes produced, and all trained on, stored or not. O(stored steps)."""
        produced, trained = self.produced.copy(), self.trained.copy()
        for episode in store.finished:
            produced.add(episode)
            if self._was_trained_on(store, episode):
                trained.add(episode)
        return produced, trained

    # Persistence.

    def snapshot(self) -> Self:
        """Return a snapshot of this queue. O(groups), and a pointer per episode."""
        other = copy.copy(self)
        other._handed, other._uncounted = self._handed.copy(), self._uncounted.copy()
        other._unacked = {name: (unit, versions.copy()) for name, (unit, versions) in self._unacked.items()}
        other.line = None if self.line is None else self.line.copy()
        other.book = None if self.book is None else self.book.copy()
        other.desk, other.drops = copy.copy(self.desk), copy.deepcopy(self.drops)
        other.produced, other.trained = self.produced.copy(), self.trained.copy()
        other.stop_clock()
        return other

    def turns(self, episodes: Iterable[Episode]) -> list[int]:
        """Return the state of each stored episode."""
        waiting = set(self._waiting())

        def turn(episode: Episode) -> int:
            if episode in waiting or episode not in self._handed:
                is_dropped = episode not in waiting and episode.status != "IN_PROGRESS" and self._lines_up(episode)
                if is_dropped:
                    return DROPPED
                return PENDING_UNCOUNTED if episode in self._uncounted else PENDING
            return DELIVERED_UNCOUNTED if episode in self._uncounted else DELIVERED

        return list(map(turn, episodes))

    def deliveries(self, episodes: Iterable[Episode]) -> list[int]:
        """Return how often each episode was delivered."""
        return [self._handed.get(episode, 0) for episode in episodes]

    def unacked(self) -> Unacked:
        """Return what was delivered and not acknowledged; read-only."""
        return self._unacked

    def resume(
        self,
        store: Store,
        turns: Sequence[int],
        deliveries: Sequence[int],
        phases: Iterable[tuple[str, groups_lib.Phase, float]],
        line: Sequence[Episode],
        passes: Sequence[int],
        unacked: Unacked,
    ) -> None:
        """Restore the state of another queue; whether there is a line, and the counters, must be set before.

        Args:
            store: The episodes.
            turns: What `turns` returned.
            deliveries: What `deliveries` returned.
            phases: The phases of the groups, with their start times.
            line: The episodes in the line.
            passes: The number of items in the present pass of the line, and of whole groups.
            unacked: What was delivered and not acknowledged.

        Raises:
            CorruptionError: The state is inconsistent.
        """
        waiting = self._settle_turns(store, turns, deliveries)
        if self.book is not None:
            ordered = (*store.finished, *store.open.values())
            grouped = [(each, each in waiting) for each in ordered if each.group_id is not None]
            self.book.resume(phases, grouped, passes[1])
        if self.line is not None:
            self.line.fill([(each.episode_id, [each], bias.oldest_version(each)) for each in line], passes[0])
        self._unacked = unacked
        if self.turns(store) != list(turns) or self.deliveries(store) != list(deliveries):
            raise errors.CorruptionError("what was handed out and what was dropped cannot both have been so")
        self.check(store)

    def rebuild(self, store: Store, turns: Sequence[int], deliveries: Sequence[int]) -> None:
        """Rebuild groups and admission from the stored episodes, without a saved state of them.

        Group timeouts restart, and so does the count of admitted episodes, with those not trained on so far. What was
        delivered counts as acknowledged.

        Args:
            store: The episodes.
            turns: What `turns` returned, perhaps with a different rule for groups.
            deliveries: What `deliveries` returned, perhaps with another number of epochs.

        Raises:
            CorruptionError: The state is inconsistent.
        """
        waiting = self._settle_turns(store, turns, deliveries)
        waiting = {
            episode for episode in waiting if _why_not(episode) is None and self._handed.get(episode, 0) < self.epochs
        }
        if self.groups is None and any(turns):
            self.line = self.new_line()  # Episodes delivered in groups must not be delivered again.
        self.book = self._new_book()
        if self.book is not None:
            self._rebuild(self.book, store, waiting)
        if self.line is not None:
            self.line = self.new_line()
            for episode in store.finished:
                if episode in waiting and not self._is_grouped(episode):
                    _put_in_line(self.line, episode)
        self.begin_count(store)
        self.check(store)

    def _rebuild(self, book: groups_lib.GroupBook, store: Store, waiting: set[Episode]) -> None:
        """Fill a book with all episodes of groups, given those that have ended and wait."""
        now = time.monotonic()
        grouped = [episode for episode in store if episode.group_id is not None]
        for episode in grouped:
            book.started(str(episode.group_id), now)
        delivered = [each for each in grouped if each in self._handed and each not in waiting]
        for past in {str(episode.group_id): None for episode in delivered}:
            book.take(past)
        for episode in store.finished:
            group_id = episode.group_id
            if group_id is not None and book.ended(group_id, episode, counts=episode in waiting):
                self.drops.count(book.reason(group_id), episode.agent_id)

    def _settle_turns(self, store: Store, turns: Sequence[int], deliveries: Sequence[int]) -> set[Episode]:
        """Restore the delivered episodes, and return the ended ones that wait."""
        by_turn: tuple[set[Episode], ...] = (set(), set(), set(), set(), set())
        for episode, turn, times in zip(store, turns, deliveries, strict=True):
            by_turn[turn].add(episode)
            if times:
                self._handed[episode] = times
        self._uncounted = by_turn[DELIVERED_UNCOUNTED] | by_turn[PENDING_UNCOUNTED]
        pending = by_turn[PENDING] | by_turn[PENDING_UNCOUNTED]
        return {episode for episode in pending if episode.status != "IN_PROGRESS"}

    def check(self, store: Store) -> None:
        """Raise CorruptionError if the waiting or delivered episodes are inconsistent."""
        waiting = list(self._waiting())
        for episode in (*self._handed, *waiting):
            if episode not in store or episode.status == "IN_PROGRESS" or _why_not(episode) is not None:
                raise errors.CorruptionError(
                    f"episode {episode.episode_id} is {episode.status} with {len(episode)} transitions: it can neither "
                    "wait for the learner nor have been handed out"
                )
        if any(self._handed.get(episode, 0) >= self.epochs for episode in waiting):
            raise errors.CorruptionError("an episode that waits for the learner was handed out")
        if any(times < 1 for times in self._handed.values()):
            raise errors.CorruptionError("an episode that was handed out must have been so at least once")
        if any(episode not in store or episode.status == "IN_PROGRESS" for episode in self._uncounted):
            raise errors.CorruptionError("an episode that runs, or is not stored, cannot be without a place")
        for name, (unit, versions) in self._unacked.items():
            if not versions or any(
                self._unit_of(each) != name or self._handed.get(each, 0) < len(versions) for each in unit
            ):
                raise errors.CorruptionError(f"{name[1]} cannot have been handed out without being acknowledged")
        if self.book is not None:
            self.book.check()
            for episode, times in self._handed.items():
                is_waiting = episode.group_id is not None and not self.book.is_closed(episode.group_id)
                if is_waiting and times >= self.epochs:
                    raise errors.CorruptionError(f"episode {episode.episode_id} was handed out before its group")
        if self.line is not None:
            self.line.check()
            in_line = [episode for unit in self.line for episode in unit]
            ordered = [episode for episode in store.finished if episode.episode_id in self.line]
            if len(in_line) != len(ordered) or set(in_line) != set(ordered):
                raise errors.CorruptionError("episodes that wait must be stored, and wait once")

    def _lines_up(self, episode: Episode) -> bool:
        """Return whether an episode belongs to the line, if there is one, or to the groups."""
        return self.line is not None or self._is_grouped(episode)

    def _unit_of(self, episode: Episode) -> tuple[bool, str]:
        """Return whether an episode is delivered in a group, and the name of that, or of the episode."""
        if self.book is not None and episode.group_id is not None:
            return True, episode.group_id
        return False, episode.episode_id

    def _is_grouped(self, episode: Episode) -> bool:
        return self.book is not None and episode.group_id is not None

    def _waiting(self) -> Iterator[Episode]:
        """Yield the episodes that wait, for their group or for the learner."""
        if self.line is not None:
            yield from itertools.chain.from_iterable(self.line)
        if self.book is not None:
            yield from self.book.waiting()

    def _was_trained_on(self, store: Store, episode: Episode) -> bool:
        return episode in self._handed or store.was_drawn(episode)

    def begin_count(self, store: Store, versions: int | None = None) -> None:
        """Start counting places, with the episodes that are open, or have ended and may be trained on. O(episodes)."""
        others = [each for each in store.finished if not self._lines_up(each) and _why_not(each) is None]
        drawn = {episode for episode in others if self._was_trained_on(store, episode)}
        self._uncounted = self._handed.keys() | drawn
        waiting = sum(episode not in self._handed for episode in self._waiting())
        self.desk.begin(versions, len(store.open) + waiting + len(others) - len(drawn))

    def _take(self, line: Line, key: str) -> list[Episode]:
        """Remove the item with that key from a line."""
        if self.book is not None and line is self.book.whole:
            return self.book.take(key)
        return line.pop(key)

    def _drop(self, dropped: groups_lib.Dropped, num_kept: int = 0) -> None:
        """Count dropped episodes that were not delivered before, and take back their places that no ticket has."""
        dropped = [(reason, episode) for reason, episode in dropped if episode not in self._handed]
        for reason, episode in dropped:
            self.drops.count(reason, episode.agent_id)
        self.desk.give_back(sum(episode not in self._uncounted for _, episode in dropped) - num_kept)
        self._uncounted.difference_update(episode for _, episode in dropped)


def _put_in_line(line: Line, episode: Episode) -> None:
    line.append(episode.episode_id, [episode], bias.oldest_version(episode))


def _why_not(episode: Episode) -> str | None:
    """Return why an ended episode cannot be trained on; None if it can."""
    if episode.status == "ABORTED":
        return "aborted"
    return None if len(episode) else "empty"
