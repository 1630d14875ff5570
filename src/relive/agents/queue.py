"""What the learner is given, each episode once and whole groups at a time, and what it is not given, and why.

    an episode started    a ticket is used; its group has one more that runs
    it ended              it waits: in the line of single episodes, or in its group
                          or it is dropped: "aborted", "empty", "straggler"
    the learner asks      the first that wait are handed out; those before them that are too old are dropped: "stale";
                          those that it does not accept are dropped: "rejected"
    it gives one back     if it waited, or was handed out, it is dropped: "rejected", or for a reason of the learner's
    it is evicted         if it waited, it is dropped: "evicted"
    cleared               if it waited, it is dropped: "cleared"

An episode that is dropped is counted, and gives the place back that its ticket took, if that counts still. The law of
this file: it is told of what has happened, in order, and decides nothing about the store: an episode that was handed
out stays there, and can be drawn.

The line of single episodes begins with the first request for one. Until then nothing waits in it, and nothing is
dropped: a learner that draws samples loses nothing by an eviction. Episodes with a group_id belong to the groups if the
buffer has a rule for these; else a group_id is a name like another.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import copy
import itertools
import time
from typing import Any, Self, TypeAlias

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import store as store_lib

Episode: TypeAlias = episode_lib.Episode[Any, Any]
Store: TypeAlias = store_lib.EpisodeStore[Any, Any]
Line: TypeAlias = groups_lib.PendingEpisodes[list[Episode]]
"""What waits for the learner: whole groups, or single episodes, each a list of its own."""

PENDING, DELIVERED, DROPPED, DELIVERED_UNCOUNTED, PENDING_UNCOUNTED = range(5)
"""How a stored episode stands with the learner; an uncounted one had been trained on when places began to be counted,
so that it has none to give back."""


class LearnerQueue:
    """What the learner of one buffer is handed, and what was dropped.

    Args:
        admission: When one may start; None for always.
        groups: What makes a group whole; None if there are none.
        came_back: Called when places have come back.
        lost: Called when a ticket was lost, from any thread; what calls `came_back` soon.

    Attributes:
        desk: What gives the tickets.
        line: Single episodes that wait; None before the first request.
        book: The groups; None without a rule for them.
        drops: How many episodes were not given to the learner, and why.
        produced: Sums over the episodes that have ended and are not stored any more.
        trained: Sums over those of them that the learner was trained on.
    """

    def __init__(
        self,
        admission: admission_lib.Admission | None,
        groups: groups_lib.Groups | None,
        came_back: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        if admission is not None:
            validation.require_instance("admission", admission, admission_lib.Admission)
        if groups is not None:
            validation.require_instance("groups", groups, groups_lib.Groups)
        self.admission, self.groups = admission, groups
        self.desk = admission_lib.Desk(admission, came_back, lost)
        self.drops = bias.Drops()
        self.produced, self.trained = bias.Tally(), bias.Tally()
        self.line: Line | None = None
        self.book = None if groups is None else groups_lib.GroupBook(groups)
        self._handed: set[Episode] = set()
        # Those that had been trained on when the places began to be counted.
        self._uncounted: set[Episode] = set()
        self._stopped: float | None = None

    # What happens.

    def check_start(self, group_id: str | None, ticket: object) -> None:
        """Raise an error unless an episode of that group may start with that ticket."""
        self.desk.check(ticket, "start_episode")
        if self.book is not None and group_id is not None:
            self.pass_time()
            self.book.check_start(group_id)

    def started(self, store: Store, episode: Episode) -> None:
        """Record that an episode has started, which `check_start` let pass."""
        if self.book is not None and episode.group_id is not None:
            self.book.started(episode.group_id, self.now())

    def ended(self, store: Store, episode: Episode) -> None:
        """Record that an open episode has ended."""
        reason = _why_not(episode)
        if self.book is not None and episode.group_id is not None:
            self.pass_time()
            if self.book.ended(episode.group_id, episode, counts=reason is None):
                reason = self.book.reason(episode.group_id)
        elif self.line is None:
            self.desk.give_back(reason is not None)
            return
        elif reason is None:
            _put_in_line(self.line, episode)
        if reason is not None:
            self._drop([(reason, episode)])

    def evicted(self, store: Store, episode: Episode) -> None:
        """Record that an ended episode makes room for others, just before it goes."""
        self.sum_up(store, episode)
        if self.book is not None and episode.group_id is not None:
            self.pass_time()
            self._drop(self.book.left(episode.group_id, episode))
        elif self.line is not None and episode.episode_id in self.line:
            self.drop(self.line, episode.episode_id, "evicted")
        self.forget(episode)

    def cleared(self, store: Store) -> None:
        """Record that all episodes will be forgotten, just before they are."""
        waiting: groups_lib.Dropped = [("cleared", episode) for episode in self._waiting()]
        for episode in store.finished:
            self.sum_up(store, episode)
        self.line = None if self.line is None else groups_lib.PendingEpisodes()
        self.book = None if self.groups is None else groups_lib.GroupBook(self.groups)
        self._drop(waiting)
        for episode in store.finished:
            self.forget(episode)
        self.desk.give_back(len(store.open))

    def sum_up(self, store: Store, episode: Episode) -> None:
        """Add an ended episode to the sums, while it is still stored."""
        self.produced.add(episode)
        if self._was_trained_on(store, episode):
            self.trained.add(episode)

    def forget(self, episode: Episode) -> None:
        """Forget what is known of an episode that goes."""
        self._handed.discard(episode)
        self._uncounted.discard(episode)

    def stop_clock(self) -> None:
        """Let no time pass for the groups until `start_clock`, while a journal is played back."""
        self._stopped = time.monotonic()

    def restart_times(self) -> None:
        """Give groups that gather all their time again."""
        if self.book is not None:
            self.book.restart_times(self.now())

    def start_clock(self) -> None:
        """Let time pass again."""
        self._stopped = None

    def now(self) -> float:
        """Return what time it is for the groups, by the monotonic clock."""
        return time.monotonic() if self._stopped is None else self._stopped

    def pass_time(self) -> None:
        """Drop what falls due."""
        if self.book is not None and self.book.due is not None:
            self._drop(self.book.pass_time(self.now()))

    def move_on(self, store: Store, versions: int) -> None:
        """Record that the policy has moved on by so many versions, or that the first one was set."""
        if self.desk.versions is None:
            self.begin_count(store, 0)
        else:
            self.desk.move_on(versions)

    # What the learner asks for.

    def begin_line(self, store: Store) -> Line:
        """Return the line of single episodes, which begins with those that have ended so far."""
        if self.line is None:
            self.line = groups_lib.PendingEpisodes()
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
        """Return the line of whole groups, in a queue that has groups."""
        assert self.book is not None
        self.pass_time()
        return self.book.whole

    def hand_out(self, line: Line, fresh: Iterable[str], stale: Iterable[str]) -> None:
        """Record that some of a line were handed out, and that those before them were too old; by key."""
        for key in fresh:
            self._handed.update(self._take(line, key))
        for key in stale:
            self.drop(line, key, "stale")

    def deliver(self, store: Store, episode_ids: Iterable[str]) -> None:
        """Hand out episodes, and whole groups, as a journal says; those that are not stored any more are passed over.

        Raises:
            CheckpointError: One of them can have been handed out to nobody.
        """
        for episode_id in episode_ids:
            if not store.has(episode_id):
                continue
            episode = store[episode_id]
            if episode.status == "IN_PROGRESS" or _why_not(episode) is not None or episode in self._handed:
                raise errors.CheckpointError(f"hands out episode {episode_id}, which cannot be")
            if self.book is not None and episode.group_id is not None:
                self.book.give_up(episode.group_id, episode)
            elif episode_id in (line := self.begin_line(store)):
                line.pop(episode_id)
            self._handed.add(episode)

    def drop(self, line: Line, key: str, reason: str) -> None:
        """Take what has that key out of a line, and drop it."""
        self._drop([(reason, episode) for episode in self._take(line, key)])

    def reject(self, store: Store, episode_ids: Iterable[str], reason: str) -> int:
        """Drop those of the episodes that were handed out, or that wait, and return how many that were.

        One that waits takes along those that wait in the same group.
        """
        rejected: list[Episode] = []
        for episode_id in episode_ids:
            episode = store[episode_id] if store.has(episode_id) else None
            if episode is None:
                continue
            if episode in self._handed:
                self._handed.discard(episode)
                rejected.append(episode)
            elif self.book is not None and episode.group_id is not None:
                self.pass_time()
                rejected += self.book.give_up(episode.group_id, episode)
            elif episode.status != "IN_PROGRESS" and _why_not(episode) is None:
                line = self.begin_line(store)
                rejected += self._take(line, episode_id) if episode_id in line else []
        self._drop([(reason, episode) for episode in rejected])
        return len(rejected)

    def sums(self, store: Store) -> tuple[bias.Tally, bias.Tally]:
        """Return the sums over all that was produced, and was trained on, stored or not. O(steps that are stored)."""
        produced, trained = self.produced.copy(), self.trained.copy()
        for episode in store.finished:
            produced.add(episode)
            if self._was_trained_on(store, episode):
                trained.add(episode)
        return produced, trained

    # To outlive the process.

    def snapshot(self) -> Self:
        """Return a queue that stands as this one does and does not go on. O(groups), and a pointer an episode."""
        other = copy.copy(self)
        other._handed, other._uncounted = self._handed.copy(), self._uncounted.copy()
        other.line = None if self.line is None else self.line.copy()
        other.book = None if self.book is None else self.book.copy()
        other.desk, other.drops = copy.copy(self.desk), copy.deepcopy(self.drops)
        other.produced, other.trained = self.produced.copy(), self.trained.copy()
        other.stop_clock()
        return other

    def turns(self, episodes: Iterable[Episode]) -> list[int]:
        """Return how each of the stored episodes stands."""
        waiting = set(self._waiting())

        def turn(episode: Episode) -> int:
            if episode in self._handed:
                return DELIVERED_UNCOUNTED if episode in self._uncounted else DELIVERED
            if episode.status != "IN_PROGRESS" and self._lines_up(episode) and episode not in waiting:
                return DROPPED
            return PENDING_UNCOUNTED if episode in self._uncounted else PENDING

        return list(map(turn, episodes))

    def resume(self, store: Store, turns: Sequence[int], phases: Iterable[tuple[str, groups_lib.Phase, float]]) -> None:
        """Take up where another one has stopped; whether there is a line, and what is counted, is set before.

        Args:
            store: The episodes.
            turns: What `turns` returned.
            phases: What the groups were, with the times of the clock when each began.

        Raises:
            CorruptionError: They cannot have been so.
        """
        waiting = self._settle_turns(store, turns)
        if self.book is not None:
            ordered = (*store.finished, *store.open.values())
            self.book.resume(phases, [(each, each in waiting) for each in ordered if each.group_id is not None])
        self._line_up(store, waiting)
        if self.turns(store) != list(turns):
            raise errors.CorruptionError("what was handed out and what was dropped cannot both have been so")
        self.check(store)

    def rebuild(self, store: Store, turns: Sequence[int]) -> None:
        """Make the best of the stored episodes, where nothing is known of the groups and of admission.

        The times of groups begin again, and so does the count of admitted episodes: with those not trained on so far.

        Args:
            store: The episodes.
            turns: What `turns` returned, with another rule for groups perhaps.

        Raises:
            CorruptionError: They cannot have been so.
        """
        waiting = self._settle_turns(store, turns)
        waiting = {episode for episode in waiting if _why_not(episode) is None}
        if self.groups is None and any(turns):
            self.line = groups_lib.PendingEpisodes()  # What was handed out in groups is not to be handed out again.
        if self.groups is not None:
            self.book = groups_lib.GroupBook(self.groups)
            self._rebuild(self.book, store, waiting)
        self._line_up(store, waiting)
        self.begin_count(store)
        self.check(store)

    def _rebuild(self, book: groups_lib.GroupBook, store: Store, waiting: set[Episode]) -> None:
        """Fill a book with all episodes of groups, of which some have ended and wait."""
        now = time.monotonic()
        grouped = [episode for episode in store if episode.group_id is not None]
        for episode in grouped:
            book.started(str(episode.group_id), now)
        for past in {str(episode.group_id): None for episode in grouped if episode in self._handed}:
            book.take(past)
        for episode in store.finished:
            group_id = episode.group_id
            if group_id is not None and book.ended(group_id, episode, counts=episode in waiting):
                self.drops.count(book.reason(group_id), episode.agent_id)

    def _settle_turns(self, store: Store, turns: Sequence[int]) -> set[Episode]:
        """Restore what was handed out, and return the ended episodes that were neither handed out nor dropped."""
        by_turn: tuple[set[Episode], ...] = (set(), set(), set(), set(), set())
        for episode, turn in zip(store, turns, strict=True):
            by_turn[turn].add(episode)
        self._handed = by_turn[DELIVERED] | by_turn[DELIVERED_UNCOUNTED]
        self._uncounted = by_turn[DELIVERED_UNCOUNTED] | by_turn[PENDING_UNCOUNTED]
        pending = by_turn[PENDING] | by_turn[PENDING_UNCOUNTED]
        return {episode for episode in pending if episode.status != "IN_PROGRESS"}

    def _line_up(self, store: Store, waiting: set[Episode]) -> None:
        """Begin the line again, if there is one, with those of `waiting` that are for it."""
        if self.line is not None:
            self.line = groups_lib.PendingEpisodes()
            for episode in store.finished:
                if episode in waiting and not self._is_grouped(episode):
                    _put_in_line(self.line, episode)

    def check(self, store: Store) -> None:
        """Raise CorruptionError if something waits, or was handed out, that cannot be."""
        waiting = list(self._waiting())
        for episode in (*self._handed, *waiting):
            if episode not in store or episode.status == "IN_PROGRESS" or _why_not(episode) is not None:
                raise errors.CorruptionError(
                    f"episode {episode.episode_id} is {episode.status} with {len(episode)} transitions: it can neither "
                    "wait for the learner nor have been handed out"
                )
        if not self._handed.isdisjoint(waiting):
            raise errors.CorruptionError("an episode that waits for the learner was handed out")
        if any(episode not in store or episode.status == "IN_PROGRESS" for episode in self._uncounted):
            raise errors.CorruptionError("an episode that runs, or is not stored, cannot be without a place")
        if self.book is not None:
            self.book.check()
            for episode in self._handed:
                if episode.group_id is not None and not self.book.is_closed(episode.group_id):
                    raise errors.CorruptionError(f"episode {episode.episode_id} was handed out before its group")
        if self.line is not None:
            self.line.check()
            in_line = [episode for unit in self.line for episode in unit]
            if in_line != [episode for episode in store.finished if episode.episode_id in self.line]:
                raise errors.CorruptionError("episodes that wait must be in the order in which they ended")

    def _lines_up(self, episode: Episode) -> bool:
        """Return whether an episode is for the line, if there is one, or for the groups."""
        return self.line is not None or self._is_grouped(episode)

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
        """Begin to count places, with the episodes that are open, or have ended and may be trained on. O(episodes)."""
        others = [each for each in store.finished if not self._lines_up(each) and _why_not(each) is None]
        drawn = {episode for episode in others if self._was_trained_on(store, episode)}
        self._uncounted = self._handed | drawn
        self.desk.begin(versions, len(store.open) + len(list(self._waiting())) + len(others) - len(drawn))

    def _take(self, line: Line, key: str) -> list[Episode]:
        """Take what has that key out of a line."""
        if self.book is not None and line is self.book.whole:
            return self.book.take(key)
        return line.pop(key)

    def _drop(self, dropped: groups_lib.Dropped) -> None:
        """Count episodes that the learner is not trained on, and take the places back that they have."""
        for reason, episode in dropped:
            self.drops.count(reason, episode.agent_id)
        self.desk.give_back(sum(episode not in self._uncounted for _, episode in dropped))
        self._uncounted.difference_update(episode for _, episode in dropped)


def _put_in_line(line: Line, episode: Episode) -> None:
    line.append(episode.episode_id, [episode], bias.oldest_version(episode))


def _why_not(episode: Episode) -> str | None:
    """Return why an ended episode cannot be trained on; None if it can."""
    if episode.status == "ABORTED":
        return "aborted"
    return None if len(episode) else "empty"
