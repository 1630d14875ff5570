"""Peers that are right, wrong, missing or broken, in one run."""

from collections.abc import Iterator
from concurrent.futures import process
import dataclasses
import gc
import pathlib
import pkgutil
import re
from typing import Any

import numpy as np
import pytest

import relive
from relive.bench import catalogue
from relive.bench import machine
from relive.bench import results
from relive.bench import runner
from relive.bench import tasks
from relive.bench import verification
from relive.bench import workloads
from relive.bench.peers import own
from relive.kernels import choice

SAME_IN_SMALL = (
    *("uniform-17", "images-256", "episodes-10k", "episodes-100k"),
    *("prioritized-100k", "prioritized-1m", "prioritized-10m", "extend-1k-in-step"),
    *(name for name in workloads.WORKLOADS if "-32" in name or name.startswith("tensors")),
)
"""Workloads that differ from another one in little but their size, of which a quick run leaves nothing."""


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    """Leave the kernels as they were."""
    before = choice.chosen().name
    yield
    relive.use_kernels(before)


def task_of(name: str) -> tasks.Task:
    return workloads.WORKLOADS[name].task


def measured(name: str, *peers: str) -> results.Row:
    """Return the outcomes of peers in a quick workload."""
    wanted = {peer: catalogue.PEERS[peer] for peer in peers}
    return runner.measure(workloads.WORKLOADS[name].quick(), wanted, rounds=2, seconds=0.001)


class Fake(own._Columns):
    """relive's own buffer, with a fault."""

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self._draws = 0


class Wrong(Fake):
    def answer(self, sample: Any) -> tasks.Answer:
        answer = super().answer(sample)
        return answer | {"reward": answer["reward"] + 1}


class Breaking(Fake):
    def sample(self) -> Any:
        self._draws += 1
        if self.task.capacity > 1_000 and self._draws > 1:
            raise ZeroDivisionError
        return super().sample()


@dataclasses.dataclass(frozen=True)
class FakePeer(catalogue.Peer):
    """A peer whose adapter is a class of this file, or None if its library is missing."""

    buffer: type[tasks.Buffer] | None = None

    def load(self) -> tasks.Make:
        if self.buffer is None:
            raise tasks.CannotError("is not there")
        return self.buffer


FAKES: dict[str, catalogue.Peer] = {
    "relive": catalogue.PEERS["relive"],
    "wrong": FakePeer("wrong", "", "", "answers wrongly", buffer=Wrong),
    "breaking": FakePeer("breaking", "", "", "breaks in the middle", buffer=Breaking),
    "missing": FakePeer("missing", "", "", "is not there"),
    "abstract": FakePeer("abstract", "", "", "lacks everything", buffer=tasks.Buffer),
    "take": catalogue.PEERS["take"],
}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> dict[str, catalogue.Peer]:
    for name, peer in FAKES.items():
        monkeypatch.setitem(catalogue.PEERS, name, peer)
    return FAKES


def test_each_peer_gets_its_own_verdict(peers: dict[str, catalogue.Peer]) -> None:
    row = measured("uniform", *peers)
    outcomes = {outcome.peer: outcome for outcome in row.outcomes}
    assert list(outcomes) == list(peers)
    assert not outcomes["relive"].faults()
    low, value, high = (outcomes["relive"].low, outcomes["relive"].value, outcomes["relive"].high)
    assert low
    assert value
    assert high
    assert low <= value <= high
    assert outcomes["wrong"].value
    assert outcomes["wrong"].wrong == {"reward": 1.0} == outcomes["wrong"].wrong_in_a_small_ring
    assert outcomes["breaking"].not_measured == "failed in uniform: ZeroDivisionError"
    assert outcomes["breaking"].value is None
    assert outcomes["missing"].not_measured == "is not there"
    assert outcomes["abstract"].not_measured == "has no way to add one step"
    assert outcomes["take"].is_limit
    assert outcomes["take"].value
    assert not outcomes["take"].faults()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one.name, marks=[pytest.mark.long] if one.name in SAME_IN_SMALL else [])
        for one in workloads.WORKLOADS.values()
        if one.timed
    ],
)
def test_relive_is_right_in_every_workload(name: str) -> None:
    row = measured(name, "relive", "relive-episodes", "naive", "take", "copy")
    took_part = {one.peer for one in row.measured}
    assert "relive" in took_part
    task = task_of(name)
    assert "take" in took_part or task.prioritized or task.by_episode or task.returns == "tensors"
    assert ("naive" in took_part) == ("relive-episodes" in took_part) == name.startswith("episodes")
    for outcome in row.outcomes:
        assert not outcome.faults(), outcome
        assert outcome.value or re.match("has nothing for |is for |has no |returns arrays alone", outcome.not_measured)


def test_a_peer_is_measured_where_it_returns_what_is_asked_for() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    peers = {name: FakePeer(name, "", "", "", returns=(name,), buffer=Fake) for name in ("arrays", "tensors")}
    for name, other in (("uniform", "tensors"), ("tensors-uniform", "arrays")):
        row = runner.measure(workloads.WORKLOADS[name].quick(), peers, rounds=1, seconds=0.001)
        assert {one.peer: one.not_measured for one in row.outcomes if one.not_measured} == {
            other: f"returns {other} alone"
        }
    catalogue.PEERS["sb3"].require("")


@pytest.mark.parametrize(("name", "value"), [("extend", 1.0), ("loop", 16.0), ("uniform", 64.0), ("load", 0.032)])
def test_a_call_of_many_steps_counts_as_many(name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [128e-6, 32e-6, 64e-6]
    monkeypatch.setattr(runner, "interleaved", lambda calls, **settings: dict.fromkeys(calls, times))
    [outcome] = measured(name, "relive").outcomes
    assert (outcome.value, outcome.low, outcome.high) == pytest.approx((value, value / 2, value * 2))


@pytest.mark.full
def test_memory_per_step_is_measured_in_a_separate_process() -> None:
    row = measured("memory-prioritized", "relive", "naive", "take")
    relive, naive, take = row.outcomes
    assert relive.value is not None
    assert relive.low is None
    assert naive.not_measured == "has nothing for priorities"
    assert take.not_measured == "is a limit of time"
    assert row.unit == "bytes a step"


def test_a_process_reports_how_much_it_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1_000, 41_000])
    monkeypatch.setattr(machine, "hold_torch", lambda: None)  # This process is not an isolated one.
    monkeypatch.setattr(machine, "resident", lambda: next(sizes))
    task = dataclasses.replace(task_of("memory"), capacity=1_000)
    assert runner.grown(catalogue.PEERS["relive"], task) == 40.0


def test_a_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(peer: catalogue.Peer, task: tasks.Task) -> float:
        raise process.BrokenProcessPool("A process was terminated abruptly")

    monkeypatch.setattr(runner, "bytes_a_step", dead)
    [outcome] = measured("memory", "relive").outcomes
    assert outcome.not_measured == "failed in memory: BrokenProcessPool: A process was terminated abruptly"


def test_an_adapter_lacks_calls_it_does_not_implement() -> None:
    buffer = tasks.Buffer(task_of("uniform"))
    step = next(iter(next(task_of("uniform").story(10).episodes()).steps()))
    assert buffer.prepared(step) is step
    for call in (
        lambda: buffer.add(step),
        buffer.sample,
        lambda: buffer.update(None, np.ones(1)),
        lambda: buffer.save("nowhere"),
        lambda: buffer.load("nowhere"),
    ):
        with pytest.raises(tasks.CannotError, match="^has no "):
            call()


def test_compiled_kernels_are_used(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("numba")
    task = dataclasses.replace(task_of("uniform"), capacity=500)
    buffer, story, _ = tasks.filled(own._CompiledColumns, task, 600, 0)
    assert choice.chosen().name == "numba"
    buffer.save(str(tmp_path / "saved"))
    buffer.load(str(tmp_path / "saved"))
    findings = verification.Findings()
    verification.check(task, story, buffer.answer(buffer.sample()), findings)
    assert findings.rows == 256
    assert not findings.shares()


def test_without_numba_compiled_kernels_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def use_kernels(name: str) -> None:
        raise relive.MissingExtraError("numba is not installed")

    monkeypatch.setattr(relive, "use_kernels", use_kernels)
    with pytest.raises(tasks.CannotError, match=f"^{catalogue.MISSING}$"):
        own._CompiledColumns(task_of("uniform"))


def test_memory_of_a_process_grows_by_what_it_keeps() -> None:
    before = machine.resident()
    kept = np.ones(10_000_000)
    assert machine.resident() - before == pytest.approx(kept.nbytes, rel=0.1)


def test_a_library_that_is_not_installed_is_missing() -> None:
    with pytest.raises(tasks.CannotError, match=f"^{catalogue.MISSING}$"):
        catalogue.Peer("fake", "nothing_of_that_name:_Buffer", "fake[replay]", "").load()


def test_a_version_is_that_of_the_distribution() -> None:
    assert re.match(r"\d+\.", catalogue.Peer("fake", "", "numpy", "").version())
    assert re.match(r"\d+\.", catalogue.Peer("fake", "", "numpy[extra]", "").version())
    assert re.match(r"\d+\.", catalogue.Peer("fake", "", "numpy>=2", "").version())
    assert catalogue.Peer("fake", "", "", "").version() == ""


def test_a_library_that_fails_to_load_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("undefined symbol: x\nand much more")

    monkeypatch.setattr(pkgutil, "resolve_name", broken)
    with pytest.raises(tasks.CannotError, match="^does not load: OSError: undefined symbol: x$"):
        catalogue.PEERS["relive"].load()


@pytest.mark.parametrize("workload", workloads.WORKLOADS.values(), ids=lambda one: one.name)
def test_a_quick_workload_is_a_smaller_copy(workload: workloads.Workload) -> None:
    quick = workload.quick()
    assert quick.task.capacity <= max(10_000, 16 * quick.task.streams)
    assert dataclasses.replace(quick, task=workload.task) == workload


class Clock:
    """A clock that a call moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.called: list[str] = []

    def __call__(self) -> float:
        return self.now

    def taking(self, name: str, seconds: list[float]) -> workloads.Call:
        """Return a call that takes those seconds, one after the other, and the last of them from then on."""

        def call() -> None:
            self.called.append(name)
            self.now += seconds.pop(0) if len(seconds) > 1 else seconds[0]

        return call


def test_every_call_has_its_turn_in_every_round() -> None:
    clock = Clock()
    calls = {name: clock.taking(name, [1.0]) for name in "ABC"}
    after: list[str] = []
    runner.interleaved(calls, rounds=3, seconds=1.0, after=after.append, clock=clock)
    assert "".join(clock.called) == "ABC" + 3 * "ABC"  # Once each to find out how long it takes.
    assert "".join(after) == 3 * "ABC"


def test_a_round_is_what_one_call_takes() -> None:
    clock = Clock()
    calls = {"A": clock.taking("A", [1.0, 5.0, 2.0, 9.0, 3.0, 4.0]), "B": clock.taking("B", [7.0])}
    timings = runner.interleaved(calls, rounds=5, seconds=1.0, clock=clock)
    assert timings == {"A": [5.0, 2.0, 9.0, 3.0, 4.0], "B": [7.0] * 5}


def test_a_short_call_is_repeated_until_a_turn_is_long() -> None:
    clock = Clock()
    assert runner.interleaved({"A": clock.taking("A", [0.125])}, rounds=2, seconds=2.0, clock=clock) == {
        "A": [0.125] * 2
    }
    assert len(clock.called) == 1 + 2 + 4 + 8 + 2 * 16


def test_a_call_that_takes_no_time_is_repeated_finitely_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_MOST", 8)
    called: list[None] = []
    runner.interleaved({"A": lambda: called.append(None)}, rounds=1, seconds=1.0, clock=lambda: 0.0)
    assert len(called) == 1 + 2 + 4 + 8 + 8


def test_the_collector_is_off_while_timing() -> None:
    seen: list[bool] = []
    runner.interleaved({"A": lambda: seen.append(gc.isenabled())}, rounds=1, seconds=0.0)
    assert gc.isenabled()
    assert set(seen) == {False}
