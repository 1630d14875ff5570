"""Admission, groups, lag, quotas, rejections, acknowledgements, evictions, checkpoints and crashes together.

Random programs run against a naive model, which keeps a list of episodes and searches it.
"""

import dataclasses
import pathlib
import random
from typing import Any
import uuid

import pytest

import relive

SHORT, LONG, BLOCKS = 80, 10_000, 40


@dataclasses.dataclass(eq=False)
class Record:
    """An episode of the model; `state` is "open", "waiting", "delivered", "dropped" or "evicted"."""

    episode_id: str
    agent: str
    group: str | None
    version: int | None
    steps: int = 0
    state: str = "open"
    why_not: str | None = None
    holds_place: bool = True
    tags: list[int] = dataclasses.field(default_factory=list)


class Model:
    """What the queue must do, by searching lists; groups have no timeout, and each unit is delivered once."""

    def __init__(self, rule: relive.Admission, size: int, most: int, redeliver: bool) -> None:
        self.rule, self.size, self.most, self.redeliver = rule, size, most, redeliver
        self.stored: list[Record] = []  # In the order of their ends; open ones are in `running`.
        self.running: list[Record] = []
        self.phases: dict[str, str] = {}
        self.line: list[list[Record]] | None = None
        self.whole: list[list[Record]] = []
        self.unacked: list[tuple[list[Record], bool]] = []
        self.delivered: list[list[Record]] = []
        self.drops: dict[str, dict[str, int]] = {}
        self.admitted = self.reserved = 0
        self.policy_version: int | None = None
        self.versions: int | None = None

    def places(self) -> int:
        return self.rule.most_admitted(self.versions or 0)

    def can_admit(self, count: int) -> bool:
        running = len(self.running) + self.reserved + count
        is_crowded = self.rule.max_running is not None and running > self.rule.max_running
        return self.admitted + self.reserved + count <= self.places() and not is_crowded

    def can_start(self, group: str | None) -> bool:
        if group is None or group not in self.phases:
            return True
        gathered = [each for each in (*self.running, *self.stored) if each.group == group]
        busy = sum(each.state in ("open", "waiting") for each in gathered)
        return self.phases[group] == "GATHERING" and busy < self.size

    def make_room(self, count: int) -> None:
        while len(self.stored) + len(self.running) + count > self.most and self.stored:
            self.evict(self.stored[0])

    def start(self, record: Record) -> None:
        self.admitted, self.reserved = self.admitted + 1, self.reserved - 1
        self.make_room(1)
        if record.group is not None:
            self.phases.setdefault(record.group, "GATHERING")
        self.running.append(record)

    def end(self, record: Record, status: str) -> None:
        self.make_room(0)
        self.running.remove(record)
        self.stored.append(record)
        reason = "aborted" if status == "ABORTED" else None if record.steps else "empty"
        record.why_not = reason
        record.state = "waiting" if reason is None else "dropped"
        if record.group is not None:
            phase = self.phases[record.group]
            if reason is None and phase != "GATHERING":
                reason = "evicted" if phase == "EVICTED" else "straggler"
            if reason is None:
                unit = self.waiting_in(record.group)
                if len(unit) == self.size:
                    self.phases[record.group] = "WHOLE"
                    self.whole.append(unit)
        elif self.line is None:
            if reason is not None:
                self.give_back(record)
            return
        elif reason is None:
            self.line.append([record])
        if reason is not None:
            self.drop([record], reason)

    def waiting_in(self, group: str) -> list[Record]:
        return [each for each in self.stored if each.group == group and each.state == "waiting"]

    def give_back(self, record: Record) -> None:
        if record.holds_place:
            self.admitted = max(self.admitted - 1, 0)
        record.holds_place = True  # Of what was dropped nothing is remembered.

    def drop(self, records: list[Record], reason: str) -> None:
        for each in records:
            self.count(each, reason)
            each.state = "dropped"
        for each in records:
            self.give_back(each)

    def unit_of(self, record: Record) -> list[Record]:
        """Remove a waiting episode and all that wait in its group from where they wait, and return them."""
        if record.group is None:
            self.line = [unit for unit in self.line or [] if unit != [record]]
            return [record]
        unit = self.waiting_in(record.group)
        self.whole = [each for each in self.whole if each[0].group != record.group]
        return unit

    def evict(self, record: Record) -> None:
        if record.state == "waiting" and (record.group is not None or self.line is not None):
            if record.group is not None:
                self.phases[record.group] = "EVICTED"
            self.drop(self.unit_of(record), "evicted")
        self.unacked = [(unit, is_group) for unit, is_group in self.unacked if record not in unit]
        record.state = "evicted"
        self.stored.remove(record)
        if record.group is not None and not any(e.group == record.group for e in (*self.running, *self.stored)):
            del self.phases[record.group]

    def begin_line(self) -> None:
        if self.line is not None:
            return
        self.line = []
        for each in self.stored:
            if each.group is None:
                if each.why_not is None:
                    self.line.append([each])
                else:
                    self.count(each, each.why_not)

    def count(self, record: Record, reason: str) -> None:
        of_reason = self.drops.setdefault(reason, {})
        of_reason[record.agent] = of_reason.get(record.agent, 0) + 1

    def take(
        self,
        units: list[list[Record]],
        count: int,
        max_lag: int | None,
        refused: set[str],
        quotas: dict[str, int],
    ) -> list[list[str]] | None:
        least = None if max_lag is None or self.policy_version is None else self.policy_version - max_lag

        def oldest(unit: list[Record]) -> int | None:
            return min((each.version for each in unit if each.version is not None), default=None)

        def is_stale(unit: list[Record]) -> bool:
            version = oldest(unit)
            return least is not None and (version is None or version < least)

        while True:
            left = dict(quotas)
            chosen: list[list[Record]] = []
            stale: list[list[Record]] = []
            for unit in units:
                if len(chosen) == count:
                    break
                if is_stale(unit):
                    stale.append(unit)
                    continue
                agent = unit[0].agent
                left[agent] = left.get(agent, count) - 1
                if left[agent] >= 0:
                    chosen.append(unit)
            unwanted = [unit for unit in chosen if unit[0].agent in refused]
            if not unwanted:
                break
            for unit in unwanted:
                self.close(units, unit)
                self.drop(unit, "rejected")
        if len(chosen) < count:
            return None
        for unit in (*chosen, *stale):
            self.close(units, unit)
        for unit in chosen:
            for each in unit:
                each.state = "delivered"
                each.tags = [-1 if self.policy_version is None else self.policy_version]
            self.delivered.append(unit)
            if self.redeliver:
                self.unacked.append((unit, unit[0].group is not None))
        for unit in stale:
            self.drop(unit, "stale")
        return [[each.episode_id for each in unit] for unit in chosen]

    def close(self, units: list[list[Record]], unit: list[Record]) -> None:
        units.remove(unit)
        if unit[0].group is not None:
            self.phases[unit[0].group] = "CLOSED"

    def reject(self, episode_ids: list[str]) -> int:
        rejected = 0
        for episode_id in episode_ids:
            for record in self.stored:
                if record.episode_id != episode_id:
                    continue
                if record.state == "waiting":
                    if record.group is None:
                        self.begin_line()
                    else:
                        self.phases[record.group] = "CLOSED"
                    unit = self.unit_of(record)
                elif record.state == "delivered":
                    unit = [record]
                    self.unacked = [each for each in self.unacked if record not in each[0]]
                else:
                    unit = []
                self.drop(unit, "rejected")
                rejected += len(unit)
        return rejected

    def set_policy_version(self, version: int) -> None:
        before, self.policy_version = self.policy_version, version
        if self.versions is None:
            self.begin_count(0)
        else:
            self.versions += version - (before or 0)

    def begin_count(self, versions: int | None) -> None:
        self.versions = versions
        for each in self.stored:
            each.holds_place = each.state != "delivered"
        holding = sum(each.state == "waiting" for each in self.stored) + len(self.running)
        self.admitted = min(holding, self.places())

    def acknowledge(self, version: int, but: list[Record]) -> None:
        self.unacked = [each for each in self.unacked if each[0][0].tags[0] >= version or each[0] is but]

    def restart(self) -> None:
        for unit, _ in reversed(self.unacked):
            self.wait_again(unit)
        self.unacked = []

    def wait_again(self, unit: list[Record]) -> None:
        for each in unit:
            each.state = "waiting"
        if unit[0].group is not None:
            self.phases[unit[0].group] = "WHOLE"
            self.whole.insert(0, unit)
        else:
            assert self.line is not None
            self.line.insert(0, unit)

    def put_back(self, unit: list[Record]) -> None:
        self.unacked = [each for each in self.unacked if each[0] is not unit]
        there = [each for each in unit if each.state == "delivered"]
        if len(there) == len(unit):
            self.wait_again(unit)
        else:
            self.drop(there, "evicted" if any(each.state == "evicted" for each in unit) else "rejected")

    def crash(self) -> None:
        self.reserved = 0
        self.begin_count(None if self.policy_version is None else 0)
        self.restart()


class Program:
    """One random program, run on a buffer of episodes and on the model."""

    def __init__(self, rng: random.Random, directory: pathlib.Path) -> None:
        self.rng, self.directory = rng, directory
        size = rng.randrange(1, 4)
        lag, batch = rng.randrange(4), rng.randrange(size, 5)
        rule = relive.Admission(lag, batch, max_running=rng.choice([None, 4]))
        redeliver, most = rng.random() < 0.5, rng.randrange(4, 12)
        self.model = Model(rule, size, most, redeliver)
        self.buffer: Any = self.made(rule, relive.Groups(size), most, redeliver)
        self.tickets: list[Any] = []
        self.journal: relive.Journal | None = None
        if rng.random() < 0.5:
            self.journal = relive.Journal(directory / "journal")
            self.buffer.attach(self.journal)

    def made(self, rule: Any, groups: Any, most: int, redeliver: bool) -> Any:
        return relive.EpisodeReplayBuffer[Any, Any](
            max_episodes=most, admission=rule, groups=groups, redeliver=redeliver, seed=0
        )

    def run(self, length: int) -> None:
        actions = [self.admit] * 3 + [self.start] * 6 + [self.end] * 6 + [self.next] * 4
        actions += [self.learn, self.reject, self.acknowledge, self.put_back, self.release, self.crash]
        for _ in range(length):
            self.rng.choice(actions)()
            self.compare()
        if self.journal is not None:
            self.journal.close()

    def admit(self) -> None:
        count = self.rng.randrange(1, 3)
        if count > self.model.rule.most_at_once:
            return
        if self.model.can_admit(count):
            self.tickets += [self.buffer.admit_nowait() for _ in range(count)]
            self.model.reserved += count
        else:
            with pytest.raises(relive.NotReadyError, match="held back by Admission"):
                self.buffer.admit_nowait(count)

    def release(self) -> None:
        if self.tickets:
            self.tickets.pop().release()
            self.model.reserved -= 1

    def start(self) -> None:
        if not self.tickets:
            return
        group = self.rng.choice([None, "x", "y", str(self.rng.randrange(9))])
        agent, version = self.rng.choice("ab"), self.rng.choice([None, self.model.policy_version])
        described = {"group_id": group, "policy_version": version, "ticket": self.tickets[-1]}
        if not self.model.can_start(group):
            with pytest.raises(relive.ArgumentError, match="^no episode can start in group"):
                self.buffer.start_episode_nowait(agent, **described)
            return
        episode_id = self.buffer.start_episode_nowait(agent, **described)
        self.tickets.pop()
        self.model.start(Record(episode_id, agent, group, version))

    def end(self) -> None:
        if not self.model.running:
            return
        record = self.rng.choice(self.model.running)
        for t in range(self.rng.choice([0, 1, 1, 2])):
            self.buffer.append_observation_action_reward_nowait(record.episode_id, t, t, 0.5)
            record.steps += 1
        status = self.rng.choice(["COMPLETED", "COMPLETED", "TRUNCATED", "ABORTED"])
        self.buffer.end_episode_nowait(record.episode_id, 9, status)
        self.model.end(record, status)

    def next(self) -> None:
        count, lag = self.rng.choice([1, 1, 2]), self.rng.choice([None, None, 0, 1])
        if self.model.policy_version is None:
            lag = None
        if count * self.model.size > self.model.most:
            return
        refused = set(self.rng.choice(["", "", "", "a", "b"]))
        if self.rng.random() < 0.5:
            quotas = self.rng.choice([{}, {}, {"a": 1}, {"a": 0, "b": 1}])
            self.model.begin_line()
            assert self.model.line is not None
            expected = self.model.take(self.model.line, count, lag, refused, quotas)
            call, found = self.buffer.next_episodes_nowait, None
            keywords: dict[str, Any] = {"accept": lambda each: each.agent_id not in refused, "quotas": quotas}
        else:
            expected = self.model.take(self.model.whole, count, lag, refused, {})
            call, found = self.buffer.next_groups_nowait, None
            keywords = {"accept": lambda group: group[0].agent_id not in refused}
        if expected is None:
            with pytest.raises(relive.NotReadyError, match=" found "):
                call(count, max_lag=lag, **keywords)
            return
        found = call(count, max_lag=lag, **keywords)
        units = [unit if isinstance(unit, list) else [unit] for unit in found]
        assert [[each.episode_id for each in unit] for unit in units] == expected

    def learn(self) -> None:
        version = (self.model.policy_version or 0) + self.rng.randrange(3)
        self.buffer.set_policy_version(version)
        self.model.set_policy_version(version)

    def reject(self) -> None:
        known = [each.episode_id for each in (*self.model.stored, *self.model.running)] + [str(uuid.UUID(int=0))]
        chosen = self.rng.choices(known, k=2)
        assert self.buffer.reject(chosen) == self.model.reject(chosen)

    def acknowledge(self) -> None:
        if self.model.redeliver and self.model.policy_version is not None:
            version = self.rng.randrange(self.model.policy_version + 1)
            but = self.rng.choice([[], *self.model.delivered[-2:]])
            self.buffer._ack(version, [each.episode_id for each in but])
            self.model.acknowledge(version, but)

    def put_back(self) -> None:
        """Something that was delivered has not reached the learner."""
        if not self.model.delivered:
            return
        unit = self.rng.choice(self.model.delivered[-3:])
        self.model.put_back(unit)
        self.model.delivered.remove(unit)
        self.buffer._put_back([[each.episode_id for each in unit]])

    def crash(self) -> None:
        """Kill the process, as it were: all that is left is the journal, or a checkpoint."""
        self.tickets.clear()
        if self.journal is not None:
            self.journal.close()
            self.buffer = relive.recover(self.directory / "journal")
            self.journal = relive.Journal(self.directory / "journal")
            self.buffer.attach(self.journal)
            self.model.crash()
            return
        self.buffer.save(self.directory / "saved")
        self.buffer = type(self.buffer).load(self.directory / "saved")
        self.model.reserved = 0
        self.model.restart()

    def compare(self) -> None:
        self.buffer.check()
        model = self.model
        queue = self.buffer._hand_outs
        assert self.buffer.get_drops() == model.drops
        assert (queue.desk.admitted, len(self.buffer._store.open)) == (model.admitted, len(model.running))
        line = None if queue.line is None else [[each.episode_id for each in unit] for unit in queue.line]
        assert line == (None if model.line is None else [[each.episode_id for each in unit] for unit in model.line])
        whole = [[each.episode_id for each in unit] for unit in queue.book.whole]
        assert whole == [[each.episode_id for each in unit] for unit in model.whole]


def run(numbers: range, directory: pathlib.Path) -> None:
    for number in numbers:
        folder = directory / str(number)
        folder.mkdir()
        Program(random.Random(number), folder).run(60)


def test_random_programs_agree_with_the_model(tmp_path: pathlib.Path) -> None:
    run(range(SHORT), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS), ids=lambda block: f"block{block}")
def test_ten_thousand_random_programs_agree_with_the_model(block: int, tmp_path: pathlib.Path) -> None:
    size = LONG // BLOCKS
    run(range(block * size, (block + 1) * size), tmp_path)
