"""What the learner is given, each episode once and whole groups at a time, and what it is not given, and why.

    an episode started    a ticket is used; its group has one more that runs
    it ended              it waits: in the line of single episodes, or in its group
                          or it is dropped: "aborted", "empty", "straggler"
    the learner asks      the first that wait are handed out; those before them that are too old are dropped: "stale"
    it is evicted         if it waited, it is dropped: "evicted"
    cleared               if it waited, it is dropped: "cleared"

An episode that is dropped is counted, and gives the place back that its ticket took. The law of this file: it is told
of what has happened, in order, and decides nothing about the store: an episode that was handed out stays there, and can
be drawn.

The line of single episodes begins with the first request for one. Until then nothing waits in it, and nothing is
dropped: a learner that draws samples loses nothing by an eviction. Episodes with a group_id belong to the groups if the
buffer has a rule for these; else a group_id is a name like another.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import time
from typing import Any, TypeAlias

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import store as store_lib

Episode: TypeAlias = episode_lib.Episode[Any, Any]
Store: TypeAlias = store_lib.EpisodeStore[Any, Any]
Line: TypeAlias = groups_lib.PendingEpisodes[Episode]

PENDING, DELIVERED, DROPPED = range(3)
"""How a stored episode stands with the learner."""


class LearnerQueue:
    """What the learner of one buffer is handed, and what was dropped.

    Args:
        store: Its episodes.
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
        store: Store,
        admission: admission_lib.Admission | None,
        groups: groups_lib.Groups | None,
        came_back: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        if admission is not None:
            validation.require_instance("admission", admission, admission_lib.Admission)
        if groups is not None:
            validation.require_instance("groups", groups, groups_lib.Groups)
        self.store, self.admission, self.groups = store, admission, groups
        self.desk = admission_lib.Desk(admission, came_back, lost)
        self.drops = bias.Drops()
        self.produced, self.trained = bias.Tally(), bias.Tally()
        self.line: Line | None = None
        self.book = None if groups is None else groups_lib.GroupBook(groups)
        self._handed: set[Episode] = set()

    # What happens.

    def check_start(self, group_id: str | None, ticket: object) -> None:
        """Raise an error unless an episode of that group may start with that ticket."""
        self.desk.check(ticket, "start_episode")
        if self.book is not None and group_id is not None:
            self.pass_time()
            self.book.check_start(group_id)

    def started(self, episode: Episode, ticket: admission_lib.Ticket | None) -> None:
        """Record that an episode has started, which `check_start` let pass."""
        self.desk.use(ticket)
        if self.book is not None and episode.group_id is not None:
            self.book.started(episode.group_id, time.monotonic())

    def ended(self, episode: Episode) -> None:
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
            self.line.append(episode.episode_id, episode, bias.oldest_version(episode))
        if reason is not None:
            self._drop([(reason, episode)])

    def left(self, episode: Episode) -> None:
        """Record that an ended episode makes room for others, just before it goes."""
        self.sum_up(episode)
        self._handed.discard(episode)
        if self.book is not None and episode.group_id is not None:
            self.pass_time()
            self._drop(self.book.left(episode.group_id, episode))
        elif self.line is not None and episode.episode_id in self.line:
            self._drop([("evicted", self.line.pop(episode.episode_id))])

    def sum_up(self, episode: Episode) -> None:
        """Add an ended episode, which is still stored, to the sums."""
        self.produced.add(episode)
        if self._was_trained_on(episode):
            self.trained.add(episode)

    def past(self, episode: Episode) -> None:
        """Record the same while a journal is played back: the sums change, nothing is dropped again."""
        self.sum_up(episode)
        self._handed.discard(episode)

    def clearing(self) -> None:
        """Record that all episodes will be forgotten, just before they are."""
        waiting: groups_lib.Dropped = [("cleared", episode) for episode in self._waiting()]
        for episode in self.store.finished:
            self.sum_up(episode)
        self._handed.clear()
        self.line = None if self.line is None else groups_lib.PendingEpisodes()
        self.book = None if self.groups is None else groups_lib.GroupBook(self.groups)
        self._drop(waiting)
        self.desk.give_back(len(self.store.open))

    def pass_time(self) -> None:
        """Drop what falls due."""
        if self.book is not None and self.book.due is not None:
            self._drop(self.book.pass_time(time.monotonic()))

    def move_on(self, versions: int) -> None:
        """Record that the policy has moved on by so many versions, or that the first one was set."""
        if self.desk.versions is None:
            self.desk.begin(0, self._num_untrained())
        else:
            self.desk.move_on(versions)

    # What the learner asks for.

    def begin_line(self) -> Line:
        """Return the line of single episodes, which begins with those that have ended so far."""
        if self.line is None:
            self.line = groups_lib.PendingEpisodes()
            for episode in self.store.finished:
                reason = _why_not(episode)
                if self._is_grouped(episode):
                    continue
                if reason is None:
                    self.line.append(episode.episode_id, episode, bias.oldest_version(episode))
                else:
                    self.drops.count(reason, episode.agent_id)
        return self.line

    def hand_out(self, fresh: Iterable[str], stale: Iterable[str]) -> None:
        """Record that single episodes were handed out, and that those before them were too old; by id."""
        assert self.line is not None
        self._handed.update([self.line.pop(key) for key in fresh])
        self._drop([("stale", self.line.pop(key)) for key in stale])

    def hand_out_groups(self, fresh: Iterable[str], stale: Iterable[str]) -> None:
        """Record that whole groups were handed out, and that those before them were too old; by id."""
        assert self.book is not None
        for group_id in fresh:
            self._handed.update(self.book.take(group_id))
        self._drop([("stale", episode) for group_id in stale for episode in self.book.take(group_id)])

    def sums(self) -> tuple[bias.Tally, bias.Tally]:
        """Return the sums over all that was produced, and was trained on, stored or not. O(steps that are stored)."""
        produced, trained = self.produced.copy(), self.trained.copy()
        for episode in self.store.finished:
            produced.add(episode)
            if self._was_trained_on(episode):
                trained.add(episode)
        return produced, trained

    # To outlive the process.

    def turns(self) -> list[int]:
        """Return how each stored episode stands, in the order of their starts."""
        waiting = set(self._waiting())
        return [
            DELIVERED
            if episode in self._handed
            else DROPPED
            if episode.status != "IN_PROGRESS" and self._lines_up(episode) and episode not in waiting
            else PENDING
            for episode in self.store
        ]

    def resume(self, turns: Sequence[int], phases: Iterable[tuple[str, groups_lib.Phase, float]]) -> None:
        """Take up where another one has stopped; whether there is a line, and what is counted, is set before.

        Args:
            turns: What `turns` returned.
            phases: What the groups were, with the times of the clock when each began.

        Raises:
            CorruptionError: They cannot have been so.
        """
        waiting = self._settle_turns(turns)
        if self.book is not None:
            ordered = (*self.store.finished, *self.store.open.values())
            self.book.resume(phases, [(each, each in waiting) for each in ordered if each.group_id is not None])
        self._line_up(waiting)
        if self.turns() != list(turns):
            raise errors.CorruptionError("what was handed out and what was dropped cannot both have been so")
        self.check()

    def rebuild(self, turns: Sequence[int]) -> None:
        """Make the best of the stored episodes, where nothing is known of the groups and of admission.

        The times of groups begin again, and so does the count of admitted episodes: with those not trained on so far.

        Args:
            turns: What `turns` returned, with another rule for groups perhaps.

        Raises:
            CorruptionError: They cannot have been so.
        """
        waiting = self._settle_turns(turns)
        waiting = {episode for episode in waiting if _why_not(episode) is None}
        if self.groups is not None:
            self.book = groups_lib.GroupBook(self.groups)
            self._rebuild(self.book, [episode for episode in self.store if episode.group_id is not None], waiting)
        self._line_up(waiting)
        self.desk.begin(None, self._num_untrained())
        self.check()

    def _rebuild(self, book: groups_lib.GroupBook, grouped: Sequence[Episode], waiting: set[Episode]) -> None:
        """Fill a book with all episodes of groups, in the order of their starts, of which some have ended and wait."""
        now = time.monotonic()
        for episode in grouped:
            book.started(str(episode.group_id), now)
        for past in {str(episode.group_id): None for episode in grouped if episode in self._handed}:
            book.take(past)
        for episode in self.store.finished:
            group_id = episode.group_id
            if group_id is not None and book.ended(group_id, episode, counts=episode in waiting):
                self.drops.count(book.reason(group_id), episode.agent_id)

    def _settle_turns(self, turns: Sequence[int]) -> set[Episode]:
        """Restore what was handed out, and return the ended episodes that were neither handed out nor dropped."""
        by_turn: tuple[set[Episode], ...] = (set(), set(), set())
        for episode, turn in zip(self.store, turns, strict=True):
            by_turn[turn].add(episode)
        self._handed = by_turn[DELIVERED]
        return {episode for episode in by_turn[PENDING] if episode.status != "IN_PROGRESS"}

    def _line_up(self, waiting: set[Episode]) -> None:
        """Begin the line again, if there is one, with those of `waiting` that are for it."""
        if self.line is not None:
            self.line = groups_lib.PendingEpisodes()
            for episode in self.store.finished:
                if episode in waiting and not self._is_grouped(episode):
                    self.line.append(episode.episode_id, episode, bias.oldest_version(episode))

    def check(self) -> None:
        """Raise CorruptionError if something waits, or was handed out, that cannot be."""
        waiting = list(self._waiting())
        for episode in (*self._handed, *waiting):
            if episode not in self.store or episode.status == "IN_PROGRESS" or _why_not(episode) is not None:
                raise errors.CorruptionError(
                    f"episode {episode.episode_id} is {episode.status} with {len(episode)} transitions: it can neither "
                    "wait for the learner nor have been handed out"
                )
        if not self._handed.isdisjoint(waiting):
            raise errors.CorruptionError("an episode that waits for the learner was handed out")
        if self.book is not None:
            self.book.check()
            for episode in self._handed:
                if episode.group_id is not None and not self.book.is_closed(episode.group_id):
                    raise errors.CorruptionError(f"episode {episode.episode_id} was handed out before its group")
        if self.line is not None:
            self.line.check()
            in_line = set(self.line)
            if list(self.line) != [episode for episode in self.store.finished if episode in in_line]:
                raise errors.CorruptionError("episodes that wait must be in the order in which they ended")

    def _lines_up(self, episode: Episode) -> bool:
        """Return whether an episode is for the line, if there is one, or for the groups."""
        return self.line is not None or self._is_grouped(episode)

    def _is_grouped(self, episode: Episode) -> bool:
        return self.book is not None and episode.group_id is not None

    def _waiting(self) -> Iterator[Episode]:
        """Yield the episodes that wait, for their group or for the learner."""
        if self.line is not None:
            yield from self.line
        if self.book is not None:
            yield from self.book.waiting()

    def _was_trained_on(self, episode: Episode) -> bool:
        return episode in self._handed or self.store.was_drawn(episode)

    def _num_untrained(self) -> int:
        """Return how many episodes are open, or have ended and may still be trained on. O(episodes)."""
        waiting = len(list(self._waiting()))
        others = (episode for episode in self.store.finished if not self._lines_up(episode))
        undrawn = sum(_why_not(episode) is None and not self._was_trained_on(episode) for episode in others)
        return len(self.store.open) + waiting + undrawn

    def _drop(self, dropped: groups_lib.Dropped) -> None:
        """Count episodes that the learner will not be given, and take their places back."""
        for reason, episode in dropped:
            self.drops.count(reason, episode.agent_id)
        self.desk.give_back(len(dropped))


def _why_not(episode: Episode) -> bias.Reason | None:
    """Return why an ended episode cannot be trained on; None if it can."""
    if episode.status == "ABORTED":
        return "aborted"
    return None if len(episode) else "empty"
