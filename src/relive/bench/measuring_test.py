"""Peers that are right, wrong, missing or broken, in one run."""

from collections.abc import Iterable
import dataclasses
import importlib
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest

from relive.bench import catalogue
from relive.bench import machine
from relive.bench import measuring
from relive.bench import memory
from relive.bench import results
from relive.bench import rounds
from relive.bench import selection
from relive.bench import tasks
from relive.bench import workload as workloads
from relive.bench.peers import own
from relive.testing import synthetic

QUICK = measuring.Settings.chosen(2, is_quick=True)
SAME_IN_SMALL = (
    *("uniform-17", "images-256", "episodes-10k", "episodes-100k"),
    *("prioritized-100k", "prioritized-1m", "prioritized-10m"),
)
"""Workloads that differ from another one in little but their size, of which a quick run leaves nothing."""


class Fake(tasks.Buffer):
    """relive's own buffer, with a fault."""

    fault = ""

    def __init__(self, task: tasks.Task) -> None:
        self._inner, self._is_large = own.make(task), task.capacity > 1_000
        self._draws = 0

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        self._inner.fill(episodes)

    def prepared(self, step: synthetic.Step) -> Any:
        return self._inner.prepared(step)

    def add(self, prepared: Any) -> None:
        self._inner.add(prepared)

    def sample(self) -> Any:
        self._draws += 1
        if self.fault == "breaks" and self._is_large and self._draws > 1:
            raise ZeroDivisionError
        return self._inner.sample()

    def answer(self, sample: Any) -> tasks.Answer:
        answer = self._inner.answer(sample)
        if self.fault == "wrong":
            answer["reward"] = answer["reward"] + 1
        return answer


class Wrong(Fake):
    fault = "wrong"


class Breaking(Fake):
    fault = "breaks"


@dataclasses.dataclass(frozen=True)
class FakePeer(catalogue.Peer):
    """A peer whose adapter is a class of this file, or None if its library is missing."""

    buffer: type[tasks.Buffer] | None = None

    def load(self) -> catalogue.Make:
        if self.buffer is None:
            raise tasks.CannotError("is not there")
        return self.buffer


FAKES: dict[str, catalogue.Peer] = {
    "relive": catalogue.PEERS["relive"],
    "wrong": FakePeer("wrong", "", None, "answers wrongly", buffer=Wrong),
    "breaking": FakePeer("breaking", "", None, "breaks in the middle", buffer=Breaking),
    "missing": FakePeer("missing", "", None, "is not there"),
    "abstract": FakePeer("abstract", "", None, "lacks everything", buffer=tasks.Buffer),
    "take": catalogue.PEERS["take"],
}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> dict[str, catalogue.Peer]:
    for name, peer in FAKES.items():
        monkeypatch.setitem(catalogue.PEERS, name, peer)
    return FAKES


def test_each_peer_gets_its_own_verdict(peers: dict[str, catalogue.Peer]) -> None:
    said: list[str] = []
    row = measuring.measure(selection.WORKLOADS["uniform"], peers, QUICK, said.append)
    outcomes = {outcome.peer: outcome for outcome in row.outcomes}
    assert list(outcomes) == list(peers)
    assert outcomes["relive"].is_right
    assert outcomes["relive"].value
    assert outcomes["wrong"].value
    assert outcomes["wrong"].wrong == {"reward": 1.0} == outcomes["wrong"].small_wrong
    assert outcomes["breaking"].reason == "ZeroDivisionError"
    assert outcomes["missing"].reason == "is not there"
    assert outcomes["abstract"].reason == "failed: TypeError: Buffer() takes no arguments"
    assert outcomes["take"].is_limit
    assert outcomes["take"].value
    assert row.fastest is None  # The only other one that answered at all is wrong.
    assert said[0] == "uniform: filling relive"
    assert said[-1] == "uniform: timing relive, wrong, breaking, take"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one.name, marks=[pytest.mark.long] if one.name in SAME_IN_SMALL else [])
        for one in selection.WORKLOADS.values()
        if one.timed
    ],
)
def test_relive_is_right_in_every_workload(name: str) -> None:
    wanted = {name: catalogue.PEERS[name] for name in ("relive", "relive-episodes", "naive", "take", "copy", "files")}
    row = measuring.measure(selection.WORKLOADS[name], wanted, QUICK, lambda line: None)
    assert row.own is not None
    assert row.has("relive")
    assert row.has("take") or selection.WORKLOADS[name].task.prioritized or name.startswith("episodes")
    for outcome in row.outcomes:
        assert outcome.is_right, outcome
        assert outcome.value or re.match(
            "has nothing for |is for |has no |is of no use|is a limit of saving", outcome.reason
        )
    assert row.has("files") == (name in ("save", "load"))


def test_a_call_of_many_steps_counts_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = rounds.Timing(median=64e-6, low=32e-6, high=128e-6, rounds=7, repeats=1)
    monkeypatch.setattr(rounds, "interleaved", lambda calls, **settings: dict.fromkeys(calls, timing))
    wanted = {"relive": catalogue.PEERS["relive"]}
    [outcome] = measuring.measure(selection.WORKLOADS["extend"], wanted, QUICK, lambda line: None).outcomes
    assert outcome.value == 1.0


def test_the_memory_of_a_step_is_measured_in_a_process_of_its_own() -> None:
    wanted = {name: catalogue.PEERS[name] for name in ("relive", "take")}
    row = measuring.measure(selection.WORKLOADS["memory"], wanted, QUICK, lambda line: None)
    own_outcome, take = row.outcomes
    assert own_outcome.bytes_a_step is not None
    assert take.reason == "is a limit of time"
    assert row.unit == "bytes a step"


def test_a_process_answers_what_it_grew_by(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "hold_torch", lambda: None)  # This process is not one of its own.
    assert memory.main(["relive", "memory", "--quick"]) == 0
    assert re.fullmatch(r"bytes [-\d.e]+\n", capsys.readouterr().out)
    assert memory.main(["naive", "memory-prioritized", "--quick"]) == 0
    assert capsys.readouterr().out == "cannot has nothing for priorities\n"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo noise; echo cannot has nothing for priorities", "has nothing for priorities"),
        ("echo noise >&2; echo \"KeyError: 'nobody'\" >&2; exit 1", "failed: KeyError: 'nobody'"),
        ("echo bytes 3.0; exit 1", "failed: exit code 1"),
        ("echo other 3.0", "failed: exit code 0"),
    ],
)
def test_a_process_that_cannot_or_dies_is_said(
    script: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(tasks.CannotError, match=f"^{message}$"):
        memory.bytes_a_step("relive", "memory", is_quick=True)


def test_without_a_way_to_see_a_process_memory_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    with pytest.raises(tasks.CannotError, match="^is measured on Linux alone"):
        memory.bytes_a_step("relive", "memory", is_quick=True)


def test_an_adapter_lacks_what_it_does_not_implement() -> None:
    buffer, step = tasks.Buffer(), next(iter(next(selection.WORKLOADS["uniform"].task.story(10).episodes()).steps()))
    assert buffer.prepared(step) is step
    for call in (
        lambda: buffer.prepared_streams([step]),
        lambda: buffer.add(step),
        lambda: buffer.extend([step]),
        buffer.sample,
        lambda: buffer.update(None, np.ones(1)),
        lambda: buffer.answer(None),
    ):
        with pytest.raises(tasks.CannotError, match="^has no "):
            call()


def test_a_peer_with_an_object_a_step_has_its_limit() -> None:
    task = selection.WORKLOADS["prioritized-10m"].task
    with pytest.raises(tasks.CannotError, match="^keeps Python objects for each step: more than 1,000,000 of them"):
        task.refuse_above(1_000_000)
    task.refuse_above(10_000_000)


def test_a_missing_library_is_named_with_the_package_that_brings_it() -> None:
    missing = catalogue.Peer("fake", "nothing_of_that_name", "fake-replay", "")
    with pytest.raises(tasks.CannotError, match=r"^relive\S+ is not installed: run pip install fake-replay$"):
        missing.load()


def test_a_version_is_that_of_the_distribution() -> None:
    assert re.match(r"\d+\.", catalogue.Peer("fake", "", "numpy", "").version())
    assert catalogue.Peer("fake", "", None, "").version() == ""


def test_a_library_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("undefined symbol: x\nand much more")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(tasks.CannotError, match="^does not load: OSError: undefined symbol: x$"):
        catalogue.PEERS["relive"].load()


def test_settings_say_whether_their_figures_mean_anything() -> None:
    assert measuring.Settings.chosen(None, is_quick=False).repeats == 7
    words = measuring.Settings.chosen(9, is_quick=False).in_words()
    assert words == "Medians of 9 rounds, turns of 10 milliseconds at least"
    assert "say nothing about speed" in QUICK.in_words()


@pytest.mark.parametrize("workload", selection.WORKLOADS.values(), ids=lambda one: one.name)
def test_a_quick_workload_is_the_same_in_small(workload: workloads.Workload) -> None:
    quick = workload.quick()
    assert quick.task.capacity <= 10_000
    assert dataclasses.replace(quick, task=workload.task) == workload


def test_shares_are_said_with_the_digits_they_need() -> None:
    wrong, small_wrong = {"reward": 0.25, "action": 0.0012}, {"reward": 1.0, "x": 1e-5}
    outcome = results.Outcome(peer="cpprb", wrong=wrong, small_wrong=small_wrong)
    assert outcome.faults() == "reward in 25.0%, action in 0.12%, x in (less than 0.01%)"
