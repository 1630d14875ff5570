"""Ledger: what the learner of one buffer was given, what waits for it, and what was dropped and why.

    an episode started    it takes a place; its group has one more open episode
    it ended              it waits: in the line of single episodes, or in its group
                          or it is dropped: "aborted", "empty", "straggler"
    it is delivered       those before it that are too old are dropped: "stale"; what is not accepted: "rejected"
    it is rejected        if it waited, or was delivered, it is dropped: "rejected", or for the learner's reason
    it is put back        what did not reach the learner waits again, before all others
    it is evicted         if it waited, it is dropped: "evicted"
    cleared               if it waited, it is dropped: "cleared"
    abandoned             if it waited in a group that is not complete, it is dropped: "straggler"
    a restart             what was delivered and not acknowledged waits again, before all others
    the learner resumes   likewise what was delivered at its version or later, or it is dropped: "resumed"

A dropped episode is counted and gives back its place: to its ticket if it failed while that is open, else to all.
Invariant: the ledger is told what started, ended or was evicted, in order, and does not affect the store: a delivered
episode stays there and can be sampled. Of a store it asks for an episode by id, and for those that have ended.

The line of single episodes begins with the first request for one. Until then nothing waits in it, and nothing is
dropped, so evictions do not count for a learner that only samples. Episodes with a group_id belong to groups only if
the buffer has a rule for them; otherwise a group_id has no effect.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
import time
from typing import Any, Protocol, TypeAlias

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.agents import units
from relive.agents import waiters as waiters_lib
from relive.common import validation
from relive.episodes import sums

Episode: TypeAlias = sums.EndedEpisode
Event: TypeAlias = units.Event


class Store(Protocol):
    """What the queue asks of the store of a buffer."""

    @property
    def finished(self) -> Iterable[Any]:
        """The episodes that have ended, in that order."""
        ...

    def find(self, episode_id: str) -> Any:
        """Return the stored episode with that id, or None."""
        ...


class Ledger:
    """What the learner of one buffer was given, what waits, and what was dropped.

    Args:
        admission: The rule for starting episodes; None to admit all.
        groups: The rule for complete groups; None for no groups.
        waiters: Those who wait for the buffer.

    Attributes:
        places: Issues the tickets, and counts their places.
        groups: The groups; None without a rule for them.
        singles: The single episodes that wait or were delivered, by id.
        line: Those of them that wait; None before the first request.
        delivered: The units that were delivered, in that order.
        drops: Counts of dropped episodes, by reason.
        num_waiting: Number of episodes that have ended and may still be delivered, also before there is a line.
        unplaced: The ids of stored episodes that hold no place: when places were counted anew, they had been delivered
            or were too old. Once they are delivered, or delivered again, they hold one.
    """

    def __init__(
        self,
        admission: admission_lib.Admission | None,
        groups: groups_lib.Groups | None,
        waiters: waiters_lib.DeliveryWaiters,
    ) -> None:
        self._rule, self._waiters = groups, waiters
        self.places = admission_lib.AdmissionCounter(admission, waiters.wake_starts, waiters.wake_starts_soon)
        self.groups = self._new_groups()
        self.singles: dict[str, units.Unit] = {}
        self.line: units.Line | None = None
        self.delivered: dict[units.Unit, None] = {}
        self.drops = bias.Drops()
        self.num_waiting = 0
        self.unplaced: set[str] = set()
        self._has_restarted = False
        self._stopped: float | None = None

    def _new_groups(self) -> groups_lib.GroupTracker | None:
        return None if self._rule is None else groups_lib.GroupTracker(self._rule)

    def group_of(self, episode: Episode) -> groups_lib.GroupTracker | None:
        """Return the groups if an episode belongs to one of them; None if it is a single one."""
        return None if episode.group_id is None else self.groups

    # Events.

    def check_start(self, group_id: str | None, ticket: object, call: str) -> None:
        """Raise an error, which names the call, unless an episode of that group may start with that ticket."""
        self.places.check(ticket, call)
        if self.groups is not None and group_id is not None:
            self.pass_time()
            self.groups.check_start(group_id)

    def started(self, store: Store, episode: Episode) -> None:
        """Record that an episode has started, after `check_start`."""
        self.places.started()
        if self.groups is not None and episode.group_id is not None:
            had_due = self.groups.due is not None
            self.groups.started(episode.group_id, self.now())
            if not had_due and self.groups.due is not None:
                self._waiters.wake()

    def ended(self, store: Store, episode: Episode) -> None:
        """Record that an open episode has ended."""
        reason = drop_reason(episode)
        self.places.ended(episode.episode_id, is_wasted=reason is not None)
        if self.groups is not None and episode.group_id is not None:
            self.pass_time()
            late = self.groups.ended(self.groups.groups[episode.group_id], episode, counts=reason is None)
            if late is not None:
                self._drop(late, [episode])
            self.num_waiting += reason is None and late is None
        else:
            self.num_waiting += reason is None
            if self.line is None:
                return
            if reason is None:
                self._line_up(self.line, episode)
        if reason is not None:
            self.drops.count(reason, episode.agent_id)

    def added(self, store: Store, episode: Episode) -> None:
        """Record that an episode was added that has ended, after `check_start`."""
        self.started(store, episode)
        self.ended(store, episode)

    def evicted(self, store: Store, episode: Episode) -> None:
        """Record that an ended episode is about to be evicted."""
        if self.groups is not None and episode.group_id is not None:
            self.pass_time()
        unit = self.unit_of(episode)
        if unit is None:
            self.num_waiting -= self.line is None and drop_reason(episode) is None
        elif episode in unit.episodes:
            if unit.is_pending:
                self.drop(unit, "evicted", Event.EVICTED)
            else:
                self._take_out(unit, [episode])
        if self.groups is not None and isinstance(unit, units.GroupUnit):
            self.groups.left(unit)
        self.unplaced.discard(episode.episode_id)

    def cleared(self, store: Store) -> None:
        """Record that all episodes are about to be removed."""
        for unit in [unit for unit in self.all_units() if unit.is_pending]:
            self._drop("cleared", unit.episodes)
        self.groups, self.line = self._new_groups(), None if self.line is None else units.Line()
        self.singles.clear()
        self.delivered.clear()
        self.unplaced.clear()
        self.num_waiting = 0
        self.places.cleared()

    # Time.

    @property
    def due(self) -> float | None:
        """When the next group falls due, by the monotonic clock; None if none will."""
        return None if self.groups is None else self.groups.due

    def stop_clock(self) -> None:
        """Stop the clock of the groups until `start_clock`, while a journal is replayed, and restart their timeouts."""
        self._stopped = time.monotonic()
        if self.groups is not None:
            self.groups.restart_times(self._stopped)

    def start_clock(self) -> None:
        """Start the clock of the groups again."""
        self._stopped = None

    def now(self) -> float:
        """Return the current time of the groups, by the monotonic clock."""
        return time.monotonic() if self._stopped is None else self._stopped

    def pass_time(self) -> None:
        """Complete or close due groups."""
        if self.groups is not None and self.groups.due is not None:
            stragglers = self.groups.pass_time(self.now())
            self.num_waiting -= len(stragglers)
            self._drop("straggler", stragglers)

    # What the learner does.

    def singles_line(self, store: Store) -> units.Line:
        """Return the line of single episodes, begun with those that have ended so far."""
        if self.line is None:
            self.line = units.Line()
            for episode in store.finished:
                if waits_alone(episode, self._rule):
                    self._line_up(self.line, episode)
                elif self.group_of(episode) is None:
                    self.drops.count(drop_reason(episode) or "", episode.agent_id)
        return self.line

    @property
    def has_removed(self) -> bool:
        """Whether any single episode has left the line, of those that ever waited."""
        return self.line is not None and self.line.num_removed > 0

    def forget_line(self, drops: bias.Drops) -> None:
        """Go back to before the line of single episodes began, given the drops then; nothing has left it."""
        for unit in self.line or ():
            del self.singles[unit.key]
        self.line, self.drops = None, drops

    def groups_line(self) -> units.Line:
        """Return the line of complete groups; the queue must have groups."""
        assert self.groups is not None
        self.pass_time()
        return self.groups.complete

    def deliver(self, delivered: Mapping[units.Unit, list[Episode]], version: int | None) -> None:
        """Record that units that wait were delivered, given their episodes.

        Args:
            delivered: The units, and their episodes. Others of a group come too late: time that has passed may have
                completed it without them, but does not in a replay.
            version: The learner's policy version.
        """
        for unit, episodes in delivered.items():
            self._drop("straggler", [each for each in self._close(unit, Event.TAKEN) if each not in episodes])
            unit.episodes, unit.version = episodes, -1 if version is None else version
            self.delivered[unit] = None
            self._hold_places(episodes)

    def waiting(self, store: Store, episode_ids: Iterable[str]) -> dict[units.Unit, list[Episode]]:
        """Return the units of episodes that wait, with these; those no longer stored are ignored.

        Raises:
            CheckpointError: One of them does not wait.
        """
        found: dict[units.Unit, list[Episode]] = {}
        for episode in self._stored(store, episode_ids):
            unit = self.unit_of(episode)
            if unit is None or not unit.is_pending or episode not in unit.episodes:
                raise errors.CheckpointError(f"hands out episode {episode.episode_id}, which cannot be")
            found.setdefault(unit, []).append(episode)
        return found

    def pass_over(self, store: Store, episode_ids: Iterable[str], reason: str) -> None:
        """Drop the units of those episodes that wait."""
        for episode in self._stored(store, episode_ids):
            unit = self.unit_of(episode)
            if unit is not None and unit.is_pending:
                self.drop(unit, reason)

    def reject(self, store: Store, episode_ids: Iterable[str], reason: str, *, has_single: bool) -> int:
        """Drop those of the episodes that were delivered or wait, and return how many there were.

        A waiting episode drops all that wait in the same group. If any is a single one, their line begins.
        """
        if has_single:
            self.singles_line(store)
        num_dropped = 0
        for episode in self._stored(store, episode_ids):
            self.pass_time()
            unit = self.unit_of(episode)
            if unit is None or episode not in unit.episodes:
                continue
            rejected = [episode]
            if unit.is_pending:
                rejected = self.drop(unit, reason)
            else:
                self._take_out(unit, rejected, reason)
            num_dropped += len(rejected)
        return num_dropped

    def acknowledge(self, version: int, but: Collection[str] = ()) -> None:
        """Record that all that was delivered before the learner had that version will not be needed again.

        What waits again, since the learner was restarted before it could say so, does not wait any more.

        Args:
            version: The version.
            but: The ids of episodes that may not have reached their learner.
        """
        groups = () if self.groups is None else self.groups.complete
        for unit in [*self.delivered, *(self.line or ()), *groups]:
            is_older = unit.version is not None and unit.version < version
            if is_older and not any(episode.episode_id in but for episode in unit.episodes):
                if unit.is_pending:
                    held = {each.episode_id for each in self._close(unit, Event.TAKEN)} - self.unplaced
                    self.unplaced |= held
                    self.places.release_place(len(held))
                    self.delivered[unit] = None
                unit.version = None

    def restart(self, *, waits: bool) -> None:
        """Go on after a restart: places are counted anew at the next version, and what is not acknowledged `waits`."""
        self._has_restarted = self.places.rule is not None
        if waits:
            self.take_back(-1, waits=True)

    def resume(self, store: Store, version: int, *, waits: bool) -> None:
        """Go on from weights of that version, with places counted anew; see `take_back`."""
        self.take_back(version, waits=waits)
        self.count_places(store, version)

    def take_back(self, least: int, *, waits: bool) -> None:
        """Let what was delivered at that version or later, and not acknowledged, wait again, in the order of delivery.

        It comes before all others; or it is dropped as "resumed" unless it `waits`.
        """
        for unit in reversed([each for each in self.delivered if each.version is not None and each.version >= least]):
            if waits:
                self._wait_again(unit, unit.version)
            else:
                self._take_out(unit, unit.episodes, "resumed")

    def put_back(self, store: Store, ids_of_units: Sequence[Sequence[str]]) -> None:
        """Let episodes or groups, each a list of ids, whose newest delivery failed wait again, before all others."""
        for episode_ids in reversed(ids_of_units):
            self._put_back(store, episode_ids)

    def _put_back(self, store: Store, episode_ids: Sequence[str]) -> None:
        """Let an episode or group wait again.

        A group of which an episode was evicted or rejected meanwhile is dropped.

        Args:
            store: The episodes.
            episode_ids: The id of the episode, or those of the group.

        Raises:
            CheckpointError: They cannot have been delivered together.
        """
        stored = self._stored(store, episode_ids)
        found = [(self.unit_of(episode), episode) for episode in stored]
        delivered = [(unit, each) for unit, each in found if unit and unit.is_delivered and each in unit.episodes]
        if not delivered:
            return
        unit = delivered[0][0]
        assert unit is not None
        sizes = groups_lib.sizes(self._rule if unit.is_group else None)
        are_one = all(each is unit for each, _ in delivered)
        if not are_one or len(set(episode_ids)) < len(episode_ids) or len(episode_ids) not in sizes:
            raise errors.CheckpointError(f"puts {validation.short_repr(list(episode_ids))} back, which cannot be")
        if len(delivered) == len(episode_ids):
            self._wait_again(unit)
        else:
            reason = "rejected" if len(stored) == len(episode_ids) else "evicted"
            self._take_out(unit, [episode for _, episode in delivered], reason)

    def drop(self, unit: units.Unit, reason: str, event: Event = Event.DROPPED) -> list[Episode]:
        """Drop a unit that waits, and return its episodes."""
        episodes = self._close(unit, event)
        self._drop(reason, episodes)
        return episodes

    def abandon(self, group_ids: Iterable[str]) -> None:
        """Give up those of the groups that are not complete."""
        for group in self._gathering_among(group_ids):
            self.drop(group, "straggler")

    # Questions.

    def gathering(self) -> list[str]:
        """Return the ids of the groups that are not complete."""
        self.pass_time()
        return [] if self.groups is None else list(self.groups.gathering)

    def first_in(self, group_ids: Iterable[str]) -> list[str]:
        """Return the id of the first episode that waits in each of the groups that are not complete, if any does."""
        return [group.episodes[0].episode_id for group in self._gathering_among(group_ids) if group.episodes]

    def unit_of(self, episode: Episode) -> units.Unit | None:
        """Return the group of a stored episode, or its own unit, which it has only while it waits or is delivered."""
        groups = self.group_of(episode)
        return self.singles.get(episode.episode_id) if groups is None else groups.groups.get(episode.group_id or "")

    def all_units(self) -> Iterator[units.Unit]:
        """Yield all units: those that gather and wait in their order, the delivered ones, and groups that are past."""
        if self.groups is not None:
            yield from self.groups.gathering.values()
            yield from self.groups.complete
        yield from self.line or ()
        yield from self.delivered
        if self.groups is not None:
            yield from (group for group in self.groups.groups.values() if group.state in units.FINAL)

    def is_delivered(self, episode: Episode) -> bool:
        """Return whether a stored episode was delivered, and not rejected."""
        unit = self.unit_of(episode)
        return unit is not None and unit.is_delivered and episode in unit.episodes

    @property
    def num_outstanding(self) -> int:
        """Number of episodes that are open, or have ended and may still be delivered."""
        return self.places.running + self.num_waiting

    def num_older(self, least: int) -> int:
        """Return how many episodes wait in units that are older than a version. O(units that wait)."""
        groups = [] if self.groups is None else [*self.groups.gathering.values(), *self.groups.complete]
        return len(units.episodes_of(unit for unit in [*groups, *(self.line or ())] if unit.is_older(least)))

    def waiting_units(self, ended: Iterable[Episode]) -> list[units.Unit]:
        """Return what may still be delivered, in units, given the episodes that have ended. O(episodes)."""
        found = [unit for unit in self.all_units() if unit.is_pending]
        if self.line is None:
            single = [each for each in ended if self.unit_of(each) is None and drop_reason(each) is None]
            found += [units.Unit("", units.DeliveryState.COMPLETE, [each]) for each in single]
        return found

    def count_waiting(self, ended: Iterable[Episode]) -> int:
        """Return what `num_waiting` must be, given the episodes that have ended. O(episodes)."""
        return len(units.episodes_of(self.waiting_units(ended)))

    def set_version(self, store: Store, before: int | None, version: int) -> None:
        """Record that the learner has set its version: the first, and the first after a restart, count places anew.

        What was delivered before was trained on before it.
        """
        if self.places.versions is None or before is None or self._has_restarted:
            self.count_places(store, version)
        else:
            self.places.move_on(version - before)

    def count_places(self, store: Store, version: int | None) -> None:
        """Count places anew: what is open, or may still be delivered and is not too old for that version, holds one."""
        self._has_restarted, least = False, self.places.least_version(version)
        fresh = [unit for unit in self.waiting_units(store.finished) if not unit.is_older(least)]
        held = {each.episode_id for each in units.episodes_of(fresh)}
        self.unplaced = {each.episode_id for each in store.finished} - held
        self.places.begin(None if version is None else 0, self.places.running + len(held))

    # Parts.

    def _gathering_among(self, group_ids: Iterable[str]) -> list[units.GroupUnit]:
        """Return those of the groups that are not complete, in the order in which they began."""
        groups, wanted = self.groups, set(group_ids)
        return [] if groups is None else [group for key, group in groups.gathering.items() if key in wanted]

    def _stored(self, store: Store, episode_ids: Iterable[str]) -> list[Episode]:
        found = [store.find(episode_id) for episode_id in episode_ids]
        return [episode for episode in found if episode is not None]

    def _line_up(self, line: units.Line, episode: Episode) -> None:
        unit = units.Unit(episode.episode_id, units.DeliveryState.COMPLETE, [episode])
        self.singles[unit.key] = unit
        line.add(unit)

    def _close(self, unit: units.Unit, event: Event) -> list[Episode]:
        """End the waiting of a unit, and return its episodes."""
        unit.version = None
        self.num_waiting -= len(unit.episodes)
        if self.groups is not None and isinstance(unit, units.GroupUnit):
            return self.groups.close(unit, event)
        assert self.line is not None
        self.line.remove(unit)
        unit.note(event)
        if not unit.is_delivered:
            del self.singles[unit.key]
        return unit.episodes

    def _take_out(self, unit: units.Unit, episodes: list[Episode], reason: str | None = None) -> None:
        """Take episodes out of a delivered unit, which is not delivered again, and drop them if there is a reason."""
        if reason is not None:
            self._drop(reason, episodes)
        unit.episodes = [episode for episode in unit.episodes if episode not in episodes]
        unit.version = None
        if not unit.episodes:
            unit.note(Event.EMPTIED)
            del self.delivered[unit]
            if not unit.is_group:
                del self.singles[unit.key]

    def _wait_again(self, unit: units.Unit, version: int | None = None) -> None:
        """Let a delivered unit wait again, before all others, given the version if it had reached the learner."""
        self._hold_places(unit.episodes)
        unit.version = version
        unit.note(Event.RETURNED)
        self.num_waiting += len(unit.episodes)
        del self.delivered[unit]
        line = self.groups.complete if self.groups is not None and unit.is_group else self.line
        assert line is not None
        line.add(unit, first=True)

    def _hold_places(self, episodes: Iterable[Episode]) -> None:
        """Let those of the episodes that hold no place hold one."""
        held = self.unplaced.intersection([each.episode_id for each in episodes])
        self.unplaced -= held
        self.places.admitted += len(held)

    def _drop(self, reason: str, episodes: Iterable[Episode]) -> None:
        """Count dropped episodes, and take back their places."""
        dropped = list(episodes)
        for episode in dropped:
            self.drops.count(reason, episode.agent_id)
        self.places.release_place(sum(each.episode_id not in self.unplaced for each in dropped))


def waits_alone(episode: Episode, rule: groups_lib.Groups | None) -> bool:
    """Return whether an episode waits, or has waited, in the line of single episodes, once there is one."""
    is_single = rule is None or episode.group_id is None
    return is_single and episode.status != "IN_PROGRESS" and drop_reason(episode) is None


def drop_reason(episode: Episode) -> str | None:
    """Return why an ended episode cannot be trained on; None if it can."""
    if episode.status == "ABORTED":
        return "aborted"
    return None if len(episode) else "empty"
