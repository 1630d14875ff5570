"""LearnerQueue: what the learner of one buffer asks and says. The queue decides; its ledger holds the outcome.

    take           the next episodes or groups are delivered, each once, in order, if as many are ready as are asked for
    put_back       what did not reach the learner waits again, before all others
    reject         the learner does not want what it has, or what waits for it
    ack            what was delivered before a version will not be needed again
    set_version    the learner has moved on, so there are new places
    resume         it goes on from other weights

Each is checked, then written to the journal, if one is attached, then entered in the ledger: a call that fails has
changed nothing. Nothing here waits. The ledger begins with the first of these calls, or at once if there are rules.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import contextlib
import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import groups as groups_lib
from relive.agents import ledger as ledger_lib
from relive.agents import ledger_check
from relive.agents import units
from relive.agents import waiters as waiters_lib
from relive.common import copies
from relive.common import imports
from relive.common import validation

if TYPE_CHECKING:
    from relive.agents import queue_journal
else:
    queue_journal = imports.lazy_module("relive.agents.queue_journal")

Kind: TypeAlias = Literal["episodes", "groups"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Take:
    """A request for the next episodes or groups; `LearnerQueue.request` returns checked ones.

    Attributes:
        kind: Which are asked for.
        count: How many.
        max_lag: Maximum lag behind the learner's version; None for any.
        accept: Decides from copies of its episodes whether a unit is wanted; None for all.
    """

    kind: Kind
    count: int
    max_lag: int | None = None
    accept: Callable[[list[Any]], object] | None = None


class Taken(NamedTuple):
    """Copies of what was delivered, in units, and how many more are ready."""

    units: list[list[Any]]
    ready: int


class Rules(NamedTuple):
    """The rules of a buffer for its actors and its learner; `checked` returns sound ones.

    Attributes:
        admission: For starting episodes; None to admit all.
        groups: For groups of episodes; None for no groups.
        redeliver: Whether what was not acknowledged is delivered again after a restart.
        limits: The most that can be stored, by name, where there is a limit: a learner cannot ask for more.
    """

    admission: admission_lib.Admission | None
    groups: groups_lib.Groups | None
    redeliver: bool
    limits: Mapping[str, int]

    def checked(self) -> Self:
        """Return the same rules, or raise ArgumentError if one is invalid, or groups do not fit the others."""
        if self.admission is not None:
            validation.require_instance("admission", self.admission, admission_lib.Admission)
        if self.groups is not None:
            validation.require_instance("groups", self.groups, groups_lib.Groups)
            rooms = {f"max_{what} = {most}": most for what, most in self.limits.items()}
            if self.admission is not None:
                most = self.admission._most_at_once
                rooms[f"{most} with {self.admission!r}"] = most
            for room, most in rooms.items():
                if self.groups.size > most:
                    raise errors.ArgumentError(f"size of groups must be at most {room}, got {self.groups.size}")
        return self._replace(redeliver=validation.boolean("redeliver", self.redeliver))


class LearnerQueue:
    """The queue of one buffer.

    Args:
        store: The episodes.
        waiters: Those who wait for the buffer.
        rules: The rules.
        name: The class of the buffer, for error messages.
        ledger: A ledger of these episodes; None if the learner has asked for none.

    Attributes:
        known: The ledger; None before it begins.
        num_commands: How many commands of the learner were carried out.
    """

    def __init__(
        self,
        store: Any,
        waiters: waiters_lib.DeliveryWaiters,
        rules: Rules,
        name: str,
        ledger: ledger_lib.Ledger | None = None,
    ) -> None:
        self._store, self._waiters, self._rules, self._name = store, waiters, rules, name
        self._journal: Any = None
        self.known: ledger_lib.Ledger | None = None
        self.num_commands = self._num_asking = 0
        if ledger is not None:
            self._begin(ledger)
        elif rules.admission is not None or rules.groups is not None:
            self.ledger()

    def new_ledger(self) -> ledger_lib.Ledger:
        """Return an empty ledger with the rules of the queue."""
        return ledger_lib.Ledger(self._rules.admission, self._rules.groups, self._waiters)

    def ledger(self) -> ledger_lib.Ledger:
        """Return the ledger, begun now if there was none."""
        if self.known is None:
            ledger = self.new_ledger()
            ledger.places.running = sum(each.status == "IN_PROGRESS" for each in self._store)
            ledger.num_waiting = ledger.count_waiting(self._store.finished)
            self._begin(ledger)
        assert self.known is not None
        return self.known

    def _begin(self, ledger: ledger_lib.Ledger) -> None:
        self.known = ledger
        self._store.listeners.insert(0, ledger)

    def write_to(self, journal: Any) -> None:
        """Write each command to a journal from now on; to none if None."""
        self._journal = journal

    # Requests.

    def request(self, kind: Kind, call: str, count: object, max_lag: object, accept: Any) -> Take:
        """Return a checked request for the next episodes or groups; see Delivering.

        Raises:
            ArgumentError: An argument is invalid for this buffer; the error names the call.
        """
        if kind == "groups" and self._rules.groups is None:
            raise errors.ArgumentError(f"{call} needs a buffer with groups: {self._name}(groups=Groups(size))")
        count = validation.positive_int("count", count)
        each = groups_lib.sizes(self._rules.groups if kind == "groups" else None)[0]
        for what, most in self._rules.limits.items():
            if count * each > most:
                raise errors.ArgumentError(f"count must be at most {most // each} with {most} {what}, got {count}")
        if accept is not None:
            validation.require_function("accept", accept)
        if max_lag is not None:
            max_lag = validation.non_negative_int("max_lag", max_lag)
            if self._store.policy_version is None:
                raise errors.ArgumentError(
                    "max_lag asks for the learner's policy version: call set_policy_version first"
                )
        of_unit = accept if accept is None or kind == "groups" else lambda unit: accept(*unit)
        return Take(kind, count, max_lag, of_unit)

    def least_version(self, request: Take) -> int | None:
        """Return the oldest acceptable version; None if all are."""
        version = self._store.policy_version
        return None if request.max_lag is None or version is None else version - request.max_lag

    def begin_line(self) -> None:
        """Let the line of single episodes begin, as the learner waits for them."""
        if self.ledger().line is None:
            self._write_line()
            self.ledger().singles_line(self._store)

    def num_ready(self, request: Take, accepted: set[units.Unit], kept: int | None = None) -> int:
        """Return how many units are ready for a request, after calling `accept` for as many as needed.

        Args:
            request: The request.
            accepted: Units that were accepted before, and are not checked again; more are added.
            kept: The oldest version reserved for earlier requests; None if none is.
        """
        while request.accept is not None and self._refuse(request, request.accept, accepted, kept):
            pass  # More units became available.
        return self._line(request.kind).num_fresh(self.least_version(request), kept)

    def _refuse(
        self,
        request: Take,
        accept: Callable[[list[Any]], object],
        accepted: set[units.Unit],
        kept: int | None,
    ) -> bool:
        """Call `accept` for the next units, drop the refused ones, and return whether any was checked."""
        has_asked, line = False, self._line(request.kind)
        accepted.intersection_update([unit for unit in accepted if unit in line])
        for unit in line.find(request.count, self.least_version(request), kept)[0]:
            if unit not in accepted and unit in line:  # An earlier `accept` may have called the buffer.
                has_asked = True
                if self._is_accepted(unit, accept):
                    accepted.add(unit)
                elif unit in line:
                    self._write_later(queue_journal.DELIVER, not unit.is_group, [], _ids([unit]), "rejected")
                    self.ledger().drop(unit, "rejected")
        return has_asked

    def _is_accepted(self, unit: units.Unit, accept: Callable[[list[Any]], object]) -> bool:
        self._num_asking += 1
        try:
            return validation.boolean("what accept returns", accept(_copied(unit)))
        finally:
            self._num_asking -= 1

    def refuse_while_asking(self, call: str) -> None:
        """Raise ArgumentError if `accept` makes a call that takes away what it is asked about."""
        if self._num_asking:
            raise errors.ArgumentError(f"accept must not call {call}: return True or False first")

    def deliver(self, request: Take, number: int, kept: int | None = None) -> list[list[Any]]:
        """Deliver `number` units of what a request asks for, which must be ready, and return copies of them."""
        fresh, stale = self._line(request.kind).find(number, self.least_version(request), kept)
        answer, ledger = [_copied(unit) for unit in fresh], self.ledger()
        reason = "stale" if stale else ""
        self._write_later(queue_journal.DELIVER, request.kind == "episodes", _ids(fresh), _ids(stale), reason)
        ledger.deliver({unit: unit.episodes for unit in fresh}, self._store.policy_version)
        for unit in stale:
            ledger.drop(unit, reason)
        return answer

    def take(self, request: Take, at_most: int | None = None) -> Taken:
        """Deliver the next episodes or groups, or none if fewer are ready, and say how many more are.

        With the first request for single episodes their line begins, also if too few of them wait; unless this raises
        before any of them was dropped.

        Args:
            request: What is asked for; no more than that are looked for.
            at_most: How many of them to deliver; None for all.
        """
        number = request.count if at_most is None else at_most
        if request.kind == "groups" or (self.known is not None and self.known.line is not None):
            return self._take(request, number)
        had_ledger, ledger = self.known is not None, self.ledger()
        drops = copy.deepcopy(ledger.drops)
        try:
            taken = self._take(request, number)
            if not taken.units and not ledger.has_removed:
                self._write_line()
        except BaseException:
            if not ledger.has_removed:
                ledger.forget_line(drops)
                if not had_ledger:
                    self._store.listeners.remove(ledger)
                    self.known = None
            raise
        return taken

    def _take(self, request: Take, number: int) -> Taken:
        ready = min(self.num_ready(request, set()), request.count)
        if not 0 < number <= ready:
            return Taken([], ready)
        return Taken(self.deliver(request, number), ready - number)

    def _line(self, kind: Kind) -> units.Line:
        """Return the line of units of a kind, as it is now."""
        ledger = self.ledger()
        return ledger.singles_line(self._store) if kind == "episodes" else ledger.groups_line()

    # What the learner says.

    def put_back(self, ids_of_units: Sequence[Sequence[str]]) -> None:
        """Let episodes or groups, each a list of ids, wait again, before all others: they did not reach the learner."""
        self._write_later(queue_journal.PUT_BACK, [list(ids) for ids in ids_of_units])
        self.ledger().put_back(self._store, ids_of_units)
        self._waiters.wake_learner()

    def reject(self, episode_ids: Iterable[str], reason: str) -> int:
        """Drop those of the episodes that were delivered or wait, and return how many there were."""
        found = [episode for episode_id in episode_ids if (episode := self._store.find(episode_id)) is not None]
        if not found:
            return 0
        stored = [episode.episode_id for episode in found]
        has_single = any(ledger_lib.waits_alone(episode, self._rules.groups) for episode in found)
        self._write_later(queue_journal.REJECT, has_single, stored, reason)
        return self.ledger().reject(self._store, stored, reason, has_single=has_single)

    def ack(self, version: int, but: Collection[str] = ()) -> None:
        """Acknowledge what was delivered before a version, but for those episodes: they may not have reached anyone.

        Raises:
            ArgumentError: Nothing is delivered again, or the learner does not have that version.
        """
        if not self._rules.redeliver:
            raise errors.ArgumentError("ack needs a buffer that delivers again: give it redeliver=True")
        version, newest = validation.non_negative_int("version", version), self._store.policy_version
        if newest is None or version > newest:
            known = "none was set" if newest is None else newest
            raise errors.ArgumentError(
                f"version must be at most the learner's, {known}, got {version}: call set_policy_version first"
            )
        self._write(queue_journal.ACKNOWLEDGE, version, list(but))
        if self.known is not None:
            self.known.acknowledge(version, but)

    def set_version(self, version: int) -> None:
        """Set the learner's policy version, which never goes down."""
        before = self._store.policy_version
        version = validation.next_version(version, before)
        self._write(queue_journal.LEARN, version)
        self._store.policy_version = version
        if self.known is not None:
            self.known.set_version(self._store, before, version)
        self._waiters.wake_learner()

    def resume(self, version: int) -> None:
        """Go on from weights of any policy version."""
        version = validation.non_negative_int("version", version)
        self._write(queue_journal.RESUME, version, self._rules.redeliver)
        self._store.policy_version = version
        if self.known is not None:
            self.known.resume(self._store, version, waits=self._rules.redeliver)
        self._waiters.wake_learner()

    def restart(self) -> None:
        """Let what was not acknowledged wait again, after a restart."""
        if self.known is not None:
            self.known.restart(waits=self._rules.redeliver)
        self._waiters.wake_learner()

    def abandon(self, group_ids: Iterable[str]) -> None:
        """Give up those of the groups that are not complete; the caller has written that to the journal."""
        if self.known is not None:
            self.known.abandon(group_ids)

    def give_up(self, group_ids: Iterable[str]) -> int:
        """Give up those of the groups that are not complete and hold places, and return how many there were."""
        if self.known is None:
            return 0
        self.known.pass_time()
        ids = self.known.first_in(group_ids)
        if ids:
            self.reject(ids, "straggler")
        return len(ids)

    # Questions.

    @property
    def changes(self) -> int:
        """How often anyone had a reason to look again; 0 before the ledger begins."""
        return 0 if self.known is None else 1 + self._waiters.wakes

    def gathering(self) -> list[str]:
        """Return the ids of the groups that are not complete."""
        return [] if self.known is None else self.known.gathering()

    def is_past(self, group_id: str) -> bool:
        """Return whether a group was complete or given up, if any of its episodes is still stored."""
        groups = None if self.known is None else self.known.groups
        group = None if groups is None else groups.groups.get(group_id)
        return group is not None and group.state is not units.DeliveryState.GATHERING

    def are_delivered(self, episode_ids: Iterable[str]) -> bool:
        """Return whether any of those episodes is delivered."""
        found = [self._store.find(episode_id) for episode_id in episode_ids]
        ledger = self.known
        return ledger is not None and any(episode is not None and ledger.is_delivered(episode) for episode in found)

    def num_outstanding(self, max_lag: int | None = None) -> tuple[int, int]:
        """Return how many episodes run or may still be delivered, and how many run.

        What waits with a larger lag is not counted, given a `max_lag`: O(units that wait), otherwise O(1).
        """
        ledger, version = self.ledger(), self._store.policy_version
        ledger.pass_time()
        older = 0 if max_lag is None or version is None else ledger.num_older(version - max_lag)
        return ledger.num_outstanding - older, ledger.places.running

    def check(self) -> None:
        """Raise CorruptionError if the ledger is inconsistent. O(episodes)."""
        if self.known is not None:
            ledger_check.check(self.known, self._store)

    # The journal.

    def _write(self, kind: int, *arguments: Any) -> None:
        """Journal a command of the learner, if a journal is attached, and count it."""
        if self._journal is not None:
            self._journal.write(kind, *arguments)
        self.num_commands += 1

    def _write_later(self, kind: int, *arguments: Any) -> None:
        """Likewise; it is synced with the next record."""
        with contextlib.nullcontext() if self._journal is None else self._journal.delayed_syncs():
            self._write(kind, *arguments)

    def _write_line(self) -> None:
        """Journal that the line of single episodes begins."""
        self._write_later(queue_journal.DELIVER, True, [], [], "")


def _ids(some: Iterable[units.Unit]) -> list[str]:
    return [episode.episode_id for episode in units.episodes_of(some)]


def _copied(unit: units.Unit) -> list[Any]:
    """Return copies of the episodes of a unit that share nothing mutable with the store."""
    return [copies.copied(episode) for episode in unit.episodes]
