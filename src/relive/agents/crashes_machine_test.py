"""Crashes at any file call of a learner's queue, beside a naive twin that knows records and versions.

After a crash what a call did is in the journal, or it is not. The learner that comes back has newer or older weights.
"""

import contextlib
import copy
import dataclasses
import os
import pathlib
import random
import tempfile
from typing import Any, ClassVar

import pytest

import relive
from relive import errors
from relive.episodes import helpers_test
from relive.persistence import journal_crash_test
from relive.persistence import posix_test
from relive.testing import walks


@dataclasses.dataclass
class Twin:
    """What a learner was given, by the numbers of the episodes, which are those of one version each."""

    rule: relive.Admission
    redeliver: bool
    versions: list[int] = dataclasses.field(default_factory=list)
    waiting: list[int] = dataclasses.field(default_factory=list)
    out: dict[int, int | None] = dataclasses.field(default_factory=dict)
    """What was delivered, with the learner's version; None once it is acknowledged."""
    again: dict[int, int] = dataclasses.field(default_factory=dict)
    """Likewise what waits again."""
    placed: set[int] = dataclasses.field(default_factory=set)
    version: int | None = None
    since: int | None = None
    has_restarted: bool = False

    def add(self, version: int) -> None:
        self.waiting.append(len(self.versions))
        self.placed.add(len(self.versions))
        self.versions.append(version)

    def take(self, count: int, max_lag: int | None) -> list[int] | None:
        least = 0 if max_lag is None or self.version is None else self.version - max_lag
        fresh = [number for number in self.waiting if self.versions[number] >= least][:count]
        if len(fresh) < count:
            return None
        passed = self.waiting[: self.waiting.index(fresh[-1])]
        self.drop([number for number in passed if self.versions[number] < least])
        self.waiting = [number for number in self.waiting if number not in fresh]
        self.out |= dict.fromkeys(fresh, -1 if self.version is None else self.version)
        self.placed.update(fresh)
        self.again = {number: version for number, version in self.again.items() if number not in fresh}
        return fresh

    def drop(self, numbers: list[int]) -> None:
        self.waiting = [number for number in self.waiting if number not in numbers]
        self.out = {number: version for number, version in self.out.items() if number not in numbers}
        self.placed.difference_update(numbers)

    def ack(self, version: int) -> None:
        self.out = {n: None if v is None or v < version else v for n, v in self.out.items()}
        kept = [number for number in self.waiting if self.again.get(number, version) < version]
        self.drop(kept)
        self.out |= dict.fromkeys(kept)
        self.again = {number: each for number, each in self.again.items() if number not in kept}

    def put_back(self, numbers: list[int]) -> None:
        self.waiting = [*numbers, *self.waiting]
        self.again = {number: version for number, version in self.again.items() if number not in numbers}
        self.out = {number: version for number, version in self.out.items() if number not in numbers}
        self.placed.update(numbers)

    def take_back(self, least: int) -> None:
        found = [number for number, version in self.out.items() if version is not None and version >= least]
        again = {number: version for number, version in self.out.items() if number in found and version is not None}
        (self.put_back if self.redeliver else self.drop)(found)
        self.again |= again

    def set_version(self, version: int) -> None:
        self.version = version
        if self.since is None or self.has_restarted:
            self.count()

    def resume(self, version: int) -> None:
        self.version = version
        self.take_back(version)
        self.count()

    def count(self) -> None:
        self.has_restarted, self.since = False, self.version
        least = 0 if self.version is None else self.version - self.rule.max_lag
        self.placed = {number for number in self.waiting if self.versions[number] >= least}

    def restart(self) -> "Twin":
        """Return what a recovery gives."""
        again = copy.deepcopy(self)
        again.count()
        if again.redeliver:
            again.take_back(-1)
        again.has_restarted = True
        return again

    def num_places(self) -> int:
        moved = 0 if self.since is None or self.version is None else self.version - self.since
        return (moved + self.rule.max_lag + 1) * self.rule.episodes_per_version - len(self.placed)

    def view(self) -> Any:
        waiting = [(number, self.again.get(number)) for number in self.waiting]
        return self.version, waiting, [*self.out.items()], self.num_places()


class CrashesMachine(walks.Machine):
    """One buffer of tokens and its twin; any call may be its last."""

    often: ClassVar = {"add": 5, "take": 3, "resume": 2}
    least: ClassVar = {"crashed before it was written": 20, "crashed when it was written": 20, "full": 20}
    least |= {"crashed in attach": 10, "newer weights": 20, "older weights": 20, "comes again": 20, "resumed": 5}

    @walks.initialize(
        max_lag=walks.integers(0, 2), count=walks.integers(1, 3), redeliver=walks.sampled_from([True, True, False])
    )
    def begin(self, max_lag: int, count: int, redeliver: bool) -> None:
        rule = relive.Admission(max_lag, count)
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.path = pathlib.Path(self.folder.name) / "journal"
        self.disk = journal_crash_test.Disk(self.path)
        self.twin = Twin(rule, redeliver)
        self.buffer: Any = relive.TokenReplayBuffer(100_000, admission=rule, redeliver=redeliver)
        with contextlib.suppress(relive.NotReadyError):
            self.buffer.next_episodes_nowait(1)
        self.journal = relive.Journal(self.path, segment_bytes=3000)
        self.buffer.attach(self.journal)
        self.on_disk = [self.twin]

    def teardown(self) -> None:
        self.reached["resumed"] += sum(self.buffer.get_drops().get("resumed", {}).values())
        self.journal.close()
        self.folder.cleanup()

    def view(self) -> Any:
        numbers = {each: number for number, each in enumerate(self.ids())}
        queue, rule = self.buffer._queue.ledger(), self.twin.rule
        assert queue.line is not None
        waiting = [(numbers[unit.key], unit.version) for unit in queue.line]
        places = rule._most_admitted(queue.places.versions or 0) - queue.places.admitted
        return self.buffer.policy_version, waiting, [(numbers[u.key], u.version) for u in queue.delivered], places

    def ids(self) -> list[str]:
        return helpers_test.ids(helpers_test.stored(self.buffer))

    def make(self, rng: random.Random, change: Any, call: Any) -> Any:
        """Make a call that may crash, or find a full disk, and the same change to the twin."""
        after, fate = copy.deepcopy(self.twin), rng.randrange(5)
        expected = change(after)
        if fate == 0:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "write", posix_full)
                with contextlib.suppress(errors.CheckpointError):
                    call()
                    assert after.view() == self.twin.view()
            self.reached["full"] += 1
        elif fate == 1:
            passing, is_late = rng.choice([0, 0, 1, 1, rng.randrange(12)]), rng.random() < 0.5
            try:
                with self.disk.crashing(passing, is_late=is_late):
                    assert call() == expected
                self.twin, self.on_disk = after, [after]
            except journal_crash_test.Crash:
                self.on_disk = [*self.on_disk, after]
                self.crash(rng)
        else:
            assert call() == expected
            self.twin, self.on_disk = after, [after]

    def crash(self, rng: random.Random) -> None:
        """End the process, and begin the next one, which may end before it is attached."""
        while True:
            journal_crash_test.kill(self.journal)
            self.buffer = relive.recover(self.path)
            self.buffer.check()
            found = [twin for twin in self.on_disk if twin.restart().view() == self.view()]
            assert found, (self.view(), [twin.restart().view() for twin in self.on_disk])
            self.reached["crashed when it was written"] += found[-1] is not self.on_disk[0]
            self.reached["crashed before it was written"] += found[0] is self.on_disk[0]
            self.twin, self.on_disk = found[0].restart(), found
            self.reached["comes again"] += len(self.twin.waiting) - len(found[0].waiting)
            self.journal = relive.Journal(self.path, segment_bytes=3000)
            try:
                with self.disk.crashing(rng.randrange(6), is_late=rng.random() < 0.5):
                    self.buffer.attach(self.journal)
                break
            except journal_crash_test.Crash:
                self.on_disk = [*found, self.twin]
                self.reached["crashed in attach"] += 1
        self.on_disk = [self.twin]
        version = self.twin.version or 0
        if rng.random() < 0.4:
            self.set_version(rng, rng.randrange(4))
            self.reached["newer weights"] += 1
        elif rng.random() < 0.8:
            self.resume(rng, max(version + rng.randint(-4, 2), 0) - version)
            self.reached["older weights"] += 1

    @walks.rule(rng=walks.generator, lag=walks.integers(-1, 2))
    def add(self, rng: random.Random, lag: int) -> None:
        if self.twin.num_places() <= 0:
            with pytest.raises(relive.NotReadyError):
                self.buffer.admit_nowait()
            return
        version = max((self.twin.version or 0) - lag, 0)
        step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-0.5], policy_version=version)
        ticket = self.buffer.admit_nowait()

        def call() -> None:
            self.buffer.add_episode([step], agent_id="a", ticket=ticket)

        self.make(rng, lambda twin: twin.add(version), call)
        ticket.release()

    @walks.rule(rng=walks.generator, count=walks.integers(1, 3), max_lag=walks.maybe(walks.integers(0, 2)))
    def take(self, rng: random.Random, count: int, max_lag: int | None) -> None:
        max_lag = None if self.twin.version is None else max_lag
        if copy.deepcopy(self.twin).take(count, max_lag) is None:
            with pytest.raises(relive.NotReadyError):
                self.buffer.next_episodes_nowait(count, max_lag=max_lag)
            return
        ids = {each: number for number, each in enumerate(self.ids())}
        self.make(
            rng,
            lambda twin: twin.take(count, max_lag),
            lambda: [ids[each.episode_id] for each in self.buffer.next_episodes_nowait(count, max_lag=max_lag)],
        )

    @walks.rule(rng=walks.generator, number=walks.integers(0, 30))
    def reject(self, rng: random.Random, number: int) -> None:
        if number in [*self.twin.waiting, *self.twin.out]:
            self.make(
                rng, lambda twin: twin.drop([number]), lambda: self.buffer.reject([self.ids()[number]]) - 1 or None
            )

    @walks.rule(rng=walks.generator, lag=walks.integers(0, 2))
    def ack(self, rng: random.Random, lag: int) -> None:
        if self.twin.redeliver and self.twin.version is not None:
            version = max(self.twin.version - lag, 0)
            self.make(rng, lambda twin: twin.ack(version), lambda: self.buffer.ack(version))

    @walks.rule(rng=walks.generator, count=walks.integers(1, 3))
    def put_back(self, rng: random.Random, count: int) -> None:
        numbers = [*self.twin.out][-count:]
        ids = [[self.ids()[number]] for number in numbers]
        if numbers:
            self.make(rng, lambda twin: twin.put_back(numbers), lambda: self.buffer._queue.put_back(ids))

    @walks.rule(rng=walks.generator, more=walks.integers(0, 2))
    def set_version(self, rng: random.Random, more: int) -> None:
        version = (self.twin.version or 0) + more
        self.make(rng, lambda twin: twin.set_version(version), lambda: self.buffer.set_policy_version(version))

    @walks.rule(rng=walks.generator, more=walks.integers(-3, 2))
    def resume(self, rng: random.Random, more: int) -> None:
        version = max((self.twin.version or 0) + more, 0)
        self.make(rng, lambda twin: twin.resume(version), lambda: self.buffer.resume_policy_version(version))

    @walks.invariant()
    def all_is_alike(self) -> None:
        assert self.view() == self.twin.view()


def posix_full(*_: Any) -> int:
    raise OSError(28, "No space left on device")


TestCrashes = posix_test.DIRECTORIES(walks.tests_of(CrashesMachine))
