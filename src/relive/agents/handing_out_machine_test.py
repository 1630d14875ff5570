"""Hand-outs against a naive twin, which looks through lists of everything that ever was, in any order of calls.

Among the calls are crashes: what is left then is a journal, or a checkpoint.
"""

import collections
import dataclasses
import math
import pathlib
import random
import tempfile
import time
import types
from typing import Any, ClassVar
import weakref

import numpy as np

import relive
from relive.agents import ledger
from relive.agents import queue_state
from relive.persistence import recover_test
from relive.testing import walks

STARTS = walks.lists(
    walks.tuples(
        walks.sampled_from(["a", "b"]),
        walks.sampled_from([None, None, "g", "h", "i"]),
        walks.maybe(walks.integers(0, 6)),
        walks.integers(0, 9),
    ),
    1,
    3,
)
ENDS = walks.lists(walks.tuples(walks.integers(0, 9), walks.integers(0, 2), walks.sampled_from("CCCTA")), 1, 3)


def some_admission(rng: random.Random) -> relive.Admission | None:
    limits = rng.randint(0, 2), rng.randint(1, 4), rng.choice([None, None, 2, 4])
    return relive.Admission(*limits) if rng.random() < 0.6 else None


@dataclasses.dataclass(eq=False)
class Record:
    """One episode."""

    episode_id: str
    agent: str
    group: str | None
    version: int | None
    steps: int = 0
    rewards: int = 0
    status: str = "IN_PROGRESS"
    ended: int = -1
    place: int = -1
    is_stored: bool = True
    turn: str = ""
    was_drawn: bool = False
    has_place: bool = True
    """False if it had been delivered, or was too old, when places were counted anew, until it is delivered again."""

    @property
    def why_not(self) -> str | None:
        if self.status == "ABORTED":
            return "aborted"
        return None if self.steps else "empty"


@dataclasses.dataclass(eq=False)
class Group:
    """One group, until no episode of it is stored."""

    name: str
    since: float
    started: int
    phase: str = "gathering"
    became_whole: int = -1


class Naive:
    """The rules, one after the other, each as a loop over all there is."""

    def __init__(self, rule: relive.Groups | None, admission: relive.Admission | None) -> None:
        self.rule, self.admission = rule, admission
        # What was delivered and not acknowledged, with the learner's version.
        self.unacked: list[tuple[list[Record], int]] = []
        # Likewise what waits again, until it is delivered or dropped.
        self.again: list[tuple[list[Record], int]] = []
        self.records: list[Record] = []
        self.groups: list[Group] = []
        self.drops: collections.Counter[tuple[str, str]] = collections.Counter()
        self.ticks = self.given_up = self.late = self.places_again = self.without_place = 0
        self.now = 0.0
        self.has_line = False
        self.admitted = self.reserved = 0
        self.version: int | None = None
        self.first_version: int | None = None
        self.has_restarted = False

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks

    def is_grouped(self, record: Record) -> bool:
        return self.rule is not None and record.group is not None

    def group_of(self, name: str) -> Group | None:
        return next((group for group in self.groups if group.name == name), None)

    def waiting(self, name: str | None = None) -> list[Record]:
        """Those that wait in a group, in the order of their ends, or in the line."""
        found = [r for r in self.records if r.turn == "waits" and (r.group if self.is_grouped(r) else None) == name]
        return sorted(found, key=lambda record: record.place if name is None else record.ended)

    def running(self, name: str) -> int:
        return sum(r.status == "IN_PROGRESS" and r.is_stored and r.group == name for r in self.records)

    def open(self) -> list[Record]:
        return [r for r in self.records if r.is_stored and r.status == "IN_PROGRESS"]

    def forget(self, record: Record) -> None:
        """It will not be delivered again."""
        self.unacked = [each for each in self.unacked if record not in each[0]]

    def drop(self, record: Record, reason: str) -> None:
        record.turn = "dropped"
        self.without_place += not record.has_place
        self.drops[reason, record.agent] += 1
        self.give_back(record.has_place)

    def give_back(self, count: int) -> None:
        self.admitted = max(self.admitted - count, 0)

    def pass_time(self) -> None:
        if self.rule is None or self.rule.timeout is None:
            return
        for group in sorted(self.groups, key=lambda each: each.started):
            if group.phase == "gathering" and group.since + self.rule.timeout <= self.now:
                ended = self.waiting(group.name)
                least = self.rule.size if self.rule.min_size is None else self.rule.min_size
                if len(ended) >= least:
                    group.phase, group.became_whole = "whole", self.tick()
                else:
                    group.phase = "closed"
                    for record in ended:
                        self.drop(record, "straggler")
                    self.given_up += len(ended)

    def most_admitted(self) -> float:
        if self.admission is None:
            return math.inf
        versions = 0 if self.first_version is None else self.version - self.first_version  # type: ignore[operator]
        return (versions + self.admission.max_lag + 1) * self.admission.episodes_per_version

    def can_admit(self, count: int) -> bool:
        most = None if self.admission is None else self.admission.max_running
        is_crowded = most is not None and len(self.open()) + self.reserved + count > most
        return self.admitted + self.reserved + count <= self.most_admitted() and not is_crowded

    def can_start(self, name: str | None) -> bool:
        group = None if self.rule is None or name is None else self.group_of(name)
        if group is None:
            return True
        assert self.rule is not None
        assert name is not None
        return group.phase == "gathering" and self.running(name) + len(self.waiting(name)) < self.rule.size

    def evicted(self, records: list[Record]) -> None:
        for record in sorted(records, key=lambda each: each.ended):
            if self.is_grouped(record):
                self.pass_time()
            if record.turn == "waits":
                together = [record]
                if self.is_grouped(record):
                    group = self.group_of(str(record.group))
                    assert group is not None
                    group.phase = "evicted"
                    together = self.waiting(group.name)
                for each in together:
                    self.drop(each, "evicted")
            record.is_stored = False
            self.forget(record)
            self.forget_groups()

    def forget_groups(self) -> None:
        stored = {record.group for record in self.records if record.is_stored}
        self.groups = [group for group in self.groups if group.name in stored]

    def started(self, record: Record) -> None:
        self.records.append(record)
        if self.is_grouped(record) and self.group_of(str(record.group)) is None:
            self.groups.append(Group(str(record.group), self.now, self.tick()))

    def ended(self, record: Record) -> None:
        record.ended = record.place = self.tick()
        reason = record.why_not
        if self.is_grouped(record):
            self.pass_time()
            group = self.group_of(str(record.group))
            assert group is not None
            assert self.rule is not None
            if reason is None and group.phase != "gathering":
                reason = "evicted" if group.phase == "evicted" else "straggler"
                self.late += 1
            if reason is None:
                record.turn = "waits"
                if len(self.waiting(group.name)) == self.rule.size:
                    group.phase, group.became_whole = "whole", self.tick()
        elif not self.has_line:
            self.give_back(reason is not None)
            return
        elif reason is None:
            record.turn = "waits"
        if reason is not None:
            self.drop(record, reason)

    def cleared(self) -> None:
        for record in self.records:
            if record.is_stored:
                if record.turn == "waits":
                    self.drop(record, "cleared")
                elif record.status == "IN_PROGRESS":
                    self.give_back(1)
                record.is_stored = False
        self.unacked.clear()
        self.forget_groups()

    def begin_line(self) -> None:
        if not self.has_line:
            self.has_line = True
            for record in sorted(self.records, key=lambda each: each.ended):
                if record.is_stored and record.ended > 0 and not self.is_grouped(record):
                    record.turn = "waits" if record.why_not is None else "dropped"
                    if record.why_not is not None:
                        self.drops[record.why_not, record.agent] += 1

    def is_fresh(self, records: list[Record], max_lag: int | None) -> bool:
        versions = [record.version for record in records if record.version is not None]
        if max_lag is None:
            return True
        assert self.version is not None
        return bool(versions) and self.version - min(versions) <= max_lag

    def close(self, unit: list[Record]) -> None:
        group = self.group_of(str(unit[0].group)) if self.is_grouped(unit[0]) else None
        if group is not None:
            group.phase = "closed"

    def take(
        self, units: list[list[Record]], count: int, max_lag: int | None, refused: set[str]
    ) -> list[list[Record]] | None:
        """The first fresh units that no refused episode is in; stale ones before are dropped."""
        while True:
            fresh = [unit for unit in units if self.is_fresh(unit, max_lag)][:count]
            unwanted = [unit for unit in fresh if not refused.isdisjoint(record.episode_id for record in unit)]
            if not unwanted:
                break
            for unit in unwanted:
                units.remove(unit)
                self.reject(unit, "rejected")
        if len(fresh) < count:
            return None
        for unit in units[: units.index(fresh[-1]) + 1]:
            if unit in fresh or not self.is_fresh(unit, max_lag):
                self.close(unit)
            for record in unit:
                if unit in fresh:
                    record.turn = "handed"
                    self.take_place(record)
                elif not self.is_fresh(unit, max_lag):
                    self.drop(record, "stale")
        self.again = [each for each in self.again if each[0][0].turn == "waits"]
        self.unacked += [(unit, -1 if self.version is None else self.version) for unit in fresh]
        return fresh

    def reject(self, records: list[Record], reason: str) -> int:
        """Those that were handed out or that wait, and who waits in the same group, are dropped."""
        before = self.drops.total()
        for record in records:
            if record.is_stored and record.turn == "handed":
                self.forget(record)
                self.drop(record, reason)
            elif record.is_stored and record.turn == "waits":
                unit = self.waiting(record.group) if self.is_grouped(record) else [record]
                self.close([record])
                for each in unit:
                    self.drop(each, reason)
        return self.drops.total() - before

    def put_back(self, unit: list[Record]) -> None:
        """What did not reach the learner comes first, if all of it is as it was; else it is dropped."""
        handed = [record for record in unit if record.is_stored and record.turn == "handed"]
        self.unacked = [each for each in self.unacked if each[0] != unit]
        if len(handed) < len(unit):
            for record in handed:
                self.drop(record, "rejected" if all(each.is_stored for each in unit) else "evicted")
        else:
            self.wait_again(unit)

    def wait_again(self, unit: list[Record]) -> None:
        group = self.group_of(str(unit[0].group)) if self.is_grouped(unit[0]) else None
        if group is not None:
            group.phase, group.became_whole = "whole", -self.tick()
        for record in unit:
            self.places_again += not record.has_place
            record.turn, record.place = "waits", -self.tick()
            self.take_place(record)

    def take_place(self, record: Record) -> None:
        self.admitted += not record.has_place
        record.has_place = True

    def whole_groups(self) -> list[list[Record]]:
        whole = sorted((group for group in self.groups if group.phase == "whole"), key=lambda each: each.became_whole)
        return [self.waiting(group.name) for group in whole]

    def said(self, version: int) -> None:
        self.version = version
        if self.first_version is None or self.has_restarted:
            self.begin_count()

    def begin_count(self) -> None:
        """Count places anew: none is held by what was delivered, nor by what is too old now."""
        self.has_restarted, self.first_version = False, self.version
        fresh = self.pending()
        if self.admission is not None and self.version is not None:
            least = self.version - self.admission.max_lag
            ages = [min([r.version for r in unit if r.version is not None], default=least) for unit in fresh]
            fresh = [unit for unit, age in zip(fresh, ages, strict=True) if age >= least]
        for record in self.records:
            record.has_place = record in self.open() or any(record in unit for unit in fresh)
        self.admitted = len(self.open()) + sum(map(len, fresh))

    def pending(self) -> list[list[Record]]:
        """What has ended and may still be delivered, in units."""
        names = [group.name for group in self.groups if group.phase in ("gathering", "whole")]
        ended = [r for r in self.records if r.is_stored and r.ended > 0 and r.why_not is None]
        single = [[r] for r in ended if not self.is_grouped(r) and r.turn in ("waits", "")]
        return [self.waiting(name) for name in names] + single

    @property
    def num_outstanding(self) -> int:
        """How many episodes are open, or have ended and may still be delivered."""
        return len(self.open()) + sum(map(len, self.pending()))

    def take_back(self, least: int, *, waits: bool) -> None:
        """What was delivered at that version or later, and not acknowledged, comes first, or is dropped."""
        for unit, version in reversed([each for each in self.unacked if each[1] >= least]):
            if waits:
                self.wait_again(unit)
                self.again.append((unit, version))
            else:
                for record in unit:
                    self.drop(record, "resumed")
        self.unacked = [each for each in self.unacked if each[1] < least]

    def acknowledge(self, version: int, but: list[Record]) -> None:
        self.unacked = [each for each in self.unacked if each[1] >= version or each[0] == but]
        self.again = [each for each in self.again if each[0][0].turn == "waits"]
        for unit, delivered in self.again:
            if delivered < version and unit != but:
                self.close(unit)
                for record in unit:
                    record.turn = "handed"
                    self.give_back(record.has_place)
                    record.has_place = False

    def totals(self, *, trained: bool) -> dict[str, Any]:
        records = [r for r in self.records if r.ended > 0]
        if trained:
            records = [r for r in records if r.turn == "handed" or r.was_drawn]
        count = len(records)
        versions = [record.version for record in records if record.version is not None]

        def mean(total: float, of: int) -> float | None:
            return total / of if of else None

        return {
            "episodes": count,
            "transitions": sum(record.steps for record in records),
            "mean_length": mean(sum(record.steps for record in records), count),
            "mean_return": mean(math.fsum(math.fsum([0.1] * record.rewards) for record in records), count),
            "completed_share": mean(sum(record.status == "COMPLETED" for record in records), count),
            "truncated_share": mean(sum(record.status == "TRUNCATED" for record in records), count),
            "aborted_share": mean(sum(record.status == "ABORTED" for record in records), count),
            "mean_policy_version": mean(sum(versions), len(versions)),
        }


class HandingOutMachine(walks.Machine):
    """One buffer and its twin."""

    often: ClassVar = {
        "train": 4,
        "next_episodes": 2,
        "next_groups": 2,
        "put_back": 3,
        "reject": 2,
        "admit": 2,
        "crash": 2,
        "wait": 4,
        "start_and_end": 4,
    }
    least: ClassVar = {
        "evicted": 20,
        "rejected": 20,
        "given up by its timeout": 3,
        "ended too late for its group": 3,
        "evicted before there is a line": 10,
        "waits again without a place": 20,
        "dropped without a place": 3,
        "stale": 1,
        "cleared": 5,
        "aborted": 20,
        "empty": 20,
        "a ticket given up": 5,
        "a ticket has its place again": 1,
        "put back": 20,
        "waits again after a restart": 5,
        "waits again for a learner that resumes": 5,
        "resumed": 5,
    }

    wants_line = True
    """If not, nobody asks for single episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.delivered: list[list[Record]] = []

    @walks.initialize(
        size=walks.sampled_from([1, 2, 3, 3]),
        timeout=walks.sampled_from([None, 2.5, 2.5, 5.0]),
        min_size=walks.sampled_from([None, 1, 1, 2]),
        admission=some_admission,
        max_episodes=walks.maybe(walks.integers(3, 8)),
        has_groups=walks.sampled_from([False, True, True, True]),
        has_journal=walks.BOOLEANS,
        redeliver=walks.BOOLEANS,
        wants_line=walks.sampled_from([False, True, True]),
    )
    def begin(
        self,
        size: int,
        timeout: float | None,
        min_size: int | None,
        admission: relive.Admission | None,
        max_episodes: int | None,
        has_groups: bool,
        has_journal: bool,
        redeliver: bool,
        wants_line: bool,
    ) -> None:
        self.wants_line = wants_line
        timeout = None if has_journal else timeout  # It does not know the time.
        size = size if admission is None else min(size, admission._most_at_once)
        least = None if timeout is None or min_size is None else min(min_size, size)
        self.start_twins(relive.Groups(size, timeout, least) if has_groups else None, admission)
        self.use_clock(types.SimpleNamespace(monotonic=lambda: self.naive.now))
        self.max_episodes = max_episodes
        buffer = relive.EpisodeReplayBuffer[int, int](
            max_episodes=max_episodes, admission=admission, groups=self.naive.rule, redeliver=redeliver, seed=0
        )
        self.use(buffer, has_journal)

    def start_twins(self, rule: relive.Groups | None, admission: relive.Admission | None) -> None:
        self.naive = Naive(rule, admission)
        self.tickets: list[relive.Ticket] = []
        self.started_with: dict[str, weakref.ref[relive.Ticket]] = {}
        self.records: dict[str, Record] = {}
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "journal"

    def use(self, buffer: Any, has_journal: bool) -> None:
        """Go on with a buffer, which may write to the journal."""
        self.buffer: Any = buffer
        self.journal = relive.Journal(self.path, fsync="never") if has_journal else None
        if self.journal is not None:
            buffer.attach(self.journal)

    def teardown(self) -> None:
        self.reached["given up by its timeout"] = self.naive.given_up
        self.reached["ended too late for its group"] = self.naive.late
        self.reached["waits again without a place"] = self.naive.places_again
        self.reached["dropped without a place"] = self.naive.without_place
        for (reason, _), count in self.naive.drops.items():
            self.reached[reason] += count
        self.use_clock(time)
        if self.journal is not None:
            self.journal.close()
        self.folder.cleanup()

    def use_clock(self, clock: Any) -> None:
        for module in (ledger, queue_state):
            vars(module)["time"] = clock

    def settle(self) -> None:
        """Tell the twin what is not stored any more."""
        stored = {episode.episode_id for episode in self.buffer._store}
        gone = [r for r in self.naive.records if r.is_stored and r.episode_id not in stored]
        self.reached["evicted before there is a line"] += 0 if self.naive.has_line else len(gone)
        self.naive.evicted([record for record in gone if record.ended > 0])

    @walks.rule(count=walks.integers(1, 3))
    def admit(self, count: int) -> None:
        naive = self.naive
        if naive.admission is not None and count > naive.admission._most_at_once:
            return
        naive.pass_time()
        try:
            self.tickets.append(self.buffer.admit_nowait(count))
        except relive.NotReadyError:
            assert not naive.can_admit(count)
        else:
            assert naive.can_admit(count)
            naive.reserved += count

    @walks.rule(when=lambda self: self.tickets, number=walks.integers(0, 9), lost=walks.BOOLEANS)
    def give_up_ticket(self, number: int, lost: bool) -> None:
        ticket = self.tickets.pop(number % len(self.tickets))
        self.naive.reserved -= ticket.left
        self.reached["a ticket given up"] += ticket.left > 0
        if lost:
            del ticket
        else:
            ticket.release()

    @walks.rule(starts=STARTS)
    def start(self, starts: list[tuple[str, str | None, int | None, int]]) -> None:
        for agent, group, lag, number in starts:
            version = None if lag is None else max((self.naive.version or 0) + 1 - lag, 0)
            self.start_one(agent, group, version, number)

    def start_one(self, agent: str, group: str | None, version: int | None, number: int) -> None:
        naive = self.naive
        ticket = self.tickets[number % len(self.tickets)] if self.tickets else None
        if group is not None and (ticket is not None or naive.admission is None):
            naive.pass_time()
        can_start = naive.can_start(group) and not (ticket is None and naive.admission is not None)
        try:
            episode_id = self.buffer.start_episode_nowait(agent, group_id=group, policy_version=version, ticket=ticket)
        except relive.ArgumentError:
            assert not can_start
            return
        assert can_start
        self.settle()
        naive.admitted += 1
        if ticket is not None:
            naive.reserved -= 1
            self.started_with[episode_id] = weakref.ref(ticket)
            if not ticket.left:
                self.tickets.remove(ticket)
        record = Record(episode_id, agent, group, version)
        self.records[episode_id] = record
        naive.started(record)

    @walks.rule(ends=ENDS)
    def end(self, ends: list[tuple[int, int, str]]) -> None:
        for each in ends:
            self.end_one(*each)

    @walks.rule(starts=STARTS, ends=ENDS)
    def start_and_end(
        self, starts: list[tuple[str, str | None, int | None, int]], ends: list[tuple[int, int, str]]
    ) -> None:
        if self.naive.admission is not None:
            self.admit(1)
        self.start(starts)
        self.end(ends)

    def end_one(self, number: int, steps: int, status: str) -> None:
        running = self.naive.open()
        if not running:
            return
        record = running[number % len(running)]
        for t in range(steps):
            self.buffer.append_observation_action_reward_nowait(record.episode_id, t, t, 0.1)
            self.settle()
        record.steps = record.rewards = steps
        if status == "A":
            record.steps = max(steps - 1, 0)
            assert self.buffer.abort_episode_nowait(record.episode_id)
            record.status = "ABORTED"
        else:
            final: Any = {"C": "COMPLETED", "T": "TRUNCATED"}[status]
            self.buffer.end_episode_nowait(record.episode_id, steps, final)
            record.status = final
        self.settle()
        self.naive.ended(record)
        ticket = self.started_with.get(record.episode_id, lambda: None)()
        if record.why_not is not None and ticket in self.tickets:
            self.naive.reserved += 1  # Its place is its ticket's again.
            self.reached["a ticket has its place again"] += 1

    @walks.rule(
        starts=STARTS,
        ends=ENDS,
        more=walks.integers(0, 2),
        lag=walks.integers(0, 2),
        number=walks.maybe(walks.integers(0, 9)),
    )
    def train(
        self,
        starts: list[tuple[str, str | None, int | None, int]],
        ends: list[tuple[int, int, str]],
        more: int,
        lag: int,
        number: int | None,
    ) -> None:
        """Do what a run does, so that more is in use."""
        self.set_policy_version(more)
        self.start_and_end(starts, ends)
        self.next_episodes(1, None, set())
        self.next_groups(1, None, set())
        if self.buffer.redeliver:
            self.acknowledge(lag, number)

    def refused(self, numbers: set[int]) -> tuple[set[str], Any]:
        """The episodes of those numbers, and what accepts all units that have none of them."""
        ids = {record.episode_id for number, record in enumerate(self.naive.records) if number % 5 in numbers}
        if not numbers:
            return ids, None
        asked: set[str] = set()

        def accept(unit: Any) -> bool:
            episodes = unit if isinstance(unit, list) else [unit]
            found = {episode.episode_id for episode in episodes}
            assert asked.isdisjoint(found)
            asked.update(found)
            for episode in episodes:
                if isinstance(episode, relive.Episode):
                    episode.rewards.clear()  # It is a copy.
            return np.bool_(ids.isdisjoint(found))  # type: ignore[return-value]

        return ids, accept

    @walks.rule(numbers=walks.subsets(range(10), 0, 3), reason=walks.sampled_from(["rejected", "too easy"]))
    def reject(self, numbers: set[int], reason: str) -> None:
        records = [record for number, record in enumerate(reversed(self.naive.records)) if number in numbers]
        naive = self.naive
        if any(record.is_stored for record in records):
            naive.pass_time()
        for record in records:
            has_ended = record.is_stored and record.ended > 0 and record.why_not is None
            if has_ended and not naive.is_grouped(record) and record.turn == "":
                naive.begin_line()
        expected = naive.reject(records, reason)
        assert self.buffer.reject([record.episode_id for record in records], reason=reason) == expected

    @walks.rule(
        count=walks.integers(1, 3),
        max_lag=walks.maybe(walks.integers(0, 5)),
        numbers=walks.subsets(range(5), 0, 4),
    )
    def next_episodes(self, count: int, max_lag: int | None, numbers: set[int]) -> None:
        if not self.wants_line:
            return
        naive = self.naive
        max_lag = None if naive.version is None else max_lag
        naive.begin_line()
        units = [[record] for record in naive.waiting(None)]
        refused, accept = self.refused(numbers)
        expected = naive.take(units, count, max_lag, refused if accept else set())
        try:
            found = self.buffer.next_episodes_nowait(count, max_lag=max_lag, accept=accept)
        except relive.NotReadyError:
            assert expected is None
        else:
            assert expected is not None
            assert [episode.episode_id for episode in found] == [unit[0].episode_id for unit in expected]
            self.delivered += expected

    @walks.rule(
        count=walks.integers(1, 2), max_lag=walks.maybe(walks.integers(0, 5)), numbers=walks.subsets(range(5), 0, 3)
    )
    def next_groups(self, count: int, max_lag: int | None, numbers: set[int]) -> None:
        naive = self.naive
        if naive.rule is None or (self.max_episodes is not None and count * naive.rule._least_size > self.max_episodes):
            return
        max_lag = None if naive.version is None else max_lag
        naive.pass_time()
        refused, accept = self.refused(numbers)
        expected = naive.take(naive.whole_groups(), count, max_lag, refused if accept else set())
        try:
            found = self.buffer.next_groups_nowait(count, max_lag=max_lag, accept=accept)
        except relive.NotReadyError:
            assert expected is None
        else:
            assert expected is not None
            ids = [[episode.episode_id for episode in group] for group in found]
            assert ids == [[record.episode_id for record in unit] for unit in expected]
            self.delivered += expected

    @walks.rule(when=lambda self: self.delivered, number=walks.integers(0, 9))
    def put_back(self, number: int) -> None:
        unit = self.delivered.pop(number % len(self.delivered))
        self.naive.put_back(unit)
        self.reached["put back"] += unit[0].turn == "waits"
        self.buffer._queue.put_back([[record.episode_id for record in unit]])

    @walks.rule(
        when=lambda self: self.buffer.redeliver and self.naive.version is not None,
        lag=walks.integers(0, 2),
        number=walks.maybe(walks.integers(0, 9)),
    )
    def acknowledge(self, lag: int, number: int | None) -> None:
        naive = self.naive
        assert naive.version is not None
        version = max(naive.version - lag, 0)
        but = self.delivered[number % len(self.delivered)] if self.delivered and number is not None else []
        self.buffer._queue.ack(version, [record.episode_id for record in but])
        naive.acknowledge(version, but)

    @walks.rule(really=walks.sampled_from([False, False, True]))
    def abandon(self, really: bool) -> None:
        if not really:
            return
        naive, running = self.naive, self.naive.open()
        naive.pass_time()
        gathering = [group for group in naive.groups if group.phase == "gathering"]
        assert self.buffer.abort_open_episodes() == len(gathering if self.buffer._HAS_WHOLE_EPISODES else running)
        for group in gathering:
            for record in naive.waiting(group.name):
                naive.drop(record, "straggler")
            group.phase = "closed"
        for record in running:
            record.status = "ABORTED"
            naive.ended(record)
        self.settle()
        self.tickets.clear()
        naive.reserved = 0

    @walks.rule()
    def sample(self) -> None:
        if len(self.buffer) and self.journal is None:  # There are no draws in a journal.
            for sample in self.buffer.sample_n_step_nowait(2, 1, 0.9):
                self.records[sample.episode_id].was_drawn = True

    @walks.rule(more=walks.integers(0, 3))
    def set_policy_version(self, more: int) -> None:
        version = (self.naive.version or 0) + more
        self.buffer.set_policy_version(version)
        self.naive.said(version)

    @walks.rule(more=walks.integers(-3, 3))
    def resume_policy_version(self, more: int) -> None:
        """Go on from weights that are older or newer."""
        version = max((self.naive.version or 0) + more, 0)
        self.buffer.resume_policy_version(version)
        waits = self.buffer.redeliver
        self.reached["waits again for a learner that resumes"] += waits * len(self.naive.unacked)
        self.naive.take_back(version, waits=waits)
        self.naive.version = version
        self.naive.begin_count()

    @walks.rule(seconds=walks.sampled_from([1.0, 2.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.naive.now += seconds

    @walks.rule(into_itself=walks.BOOLEANS)
    def crash(self, into_itself: bool) -> None:
        for ticket in self.tickets:
            ticket.release()
        self.tickets.clear()
        self.naive.reserved = 0
        if self.journal is not None:
            self.journal.close()
            recovered: Any = relive.recover(self.path)
            if not self.buffer.redeliver:
                assert recover_test.content(recovered) == recover_test.content(self.buffer)
            self.use(recovered, has_journal=True)
            self.naive.begin_count()
        else:
            state = self.buffer.state_dict()
            if into_itself:
                self.buffer.load_state_dict(state)
            else:
                self.buffer = type(self.buffer).from_state(state)
            if not self.buffer.redeliver:
                assert {**self.buffer.state_dict(), "arrays": None} == {**state, "arrays": None}
        self.naive.has_restarted = True
        if self.buffer.redeliver:
            self.reached["waits again after a restart"] += len(self.naive.unacked)
            self.naive.take_back(-1, waits=True)

    @walks.rule(really=walks.sampled_from([False, False, False, True]))
    def clear(self, really: bool) -> None:
        if really:
            self.naive.cleared()
            self.buffer.clear()

    @walks.invariant(every=5)
    def all_is_alike(self) -> None:
        self.buffer.check()
        naive, own = self.naive, self.buffer._queue.known
        if own is None:
            assert not naive.has_line
            assert not naive.drops
            return
        assert own.places.running == len(naive.open())
        assert own.num_outstanding == naive.num_outstanding
        if naive.admission is not None:
            assert own.places.admitted == naive.admitted
        assert [unit.key for unit in own.line or ()] == [r.episode_id for r in naive.waiting(None)]
        states = {episode.episode_id: unit.state.name for unit in own.all_units() for episode in unit.episodes}
        turns = {"waits": ["GATHERING", "COMPLETE"], "handed": ["DELIVERED"]}
        for record in naive.records:
            if record.is_stored:
                assert states.get(record.episode_id) in turns.get(record.turn, [None])
        names = {record.group for record in naive.records if record.is_stored and naive.is_grouped(record)}
        assert own.groups is None or own.groups.groups.keys() == names
        if own.groups is not None:
            assert [unit.key for unit in own.groups.complete] == [unit[0].group for unit in naive.whole_groups()]

    @walks.rule()
    def look(self) -> None:
        naive = self.naive
        naive.pass_time()
        found = {(reason, agent): n for reason, by in self.buffer.get_drops().items() for agent, n in by.items()}
        assert found == dict(naive.drops)
        bias = self.buffer.get_training_bias()
        assert dataclasses.asdict(bias.produced) == naive.totals(trained=False)
        assert dataclasses.asdict(bias.trained) == naive.totals(trained=True)


TestHandingOut = walks.tests_of(HandingOutMachine)
