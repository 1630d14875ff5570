"""Tests of growth curves: what is measured, and what is reported for sizes that do not fit."""

from collections.abc import Iterable
import dataclasses
import pathlib
import tempfile
import types

import numpy as np
import psutil
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

QUICK = runner.Settings(2, is_quick=True)
SIZES = (1_000, 3_000, 10_000)


GROWTH = [one for one in workloads.WORKLOADS.values() if one.name.startswith("growth")]
TREE = workloads.WORKLOADS["growth-tree"]


def measured(workload: workloads.Workload, *names: str) -> results.Row:
    return runner.measure(workload, {name: catalogue.PEERS[name] for name in names}, QUICK, lambda line: None)


@pytest.mark.parametrize("workload", GROWTH, ids=lambda one: one.name)
def test_relive_is_right_at_every_size(workload: workloads.Workload) -> None:
    row = measured(workload, "relive", "take")
    assert [(one.peer, one.size) for one in row.outcomes] == [
        (peer, size) for peer in ("relive", "take") if peer in workload.only for size in SIZES
    ]
    for one in row.outcomes:
        assert one.value, one.not_measured
        assert one.is_right
        assert one.is_limit == (one.peer == "take")
        assert one.size != SIZES[0] or row.times(one) == 1.0


def test_full_sizes_go_from_ten_thousand_to_a_hundred_million() -> None:
    for workload in GROWTH:
        assert workload.sizes == (10**4, 10**5, 10**6, 10**7, 10**8)


def test_sizes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def interleaved(calls: Iterable[str], **settings: object) -> dict[str, results.Timing]:
        timed.extend(calls)
        return {name: results.Timing(median=1e-6, low=1e-6, high=1e-6, rounds=1, repeats=1) for name in calls}

    monkeypatch.setattr(runner, "interleaved", interleaved)
    said: list[str] = []
    runner.measure(TREE, {"relive": catalogue.PEERS["relive"]}, QUICK, said.append)
    assert timed == ["relive at 1,000", "relive at 3,000", "relive at 10,000"]
    assert said[0] == "growth-tree: filling relive at 1,000"
    assert said[-1] == "growth-tree: timing relive at 1,000, relive at 3,000, relive at 10,000"


def leave_free(monkeypatch: pytest.MonkeyPatch, memory: int = 10**12, disk: int = 10**12) -> None:
    """Make the machine report that many free bytes."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=memory))
    monkeypatch.setattr(psutil, "disk_usage", lambda path: types.SimpleNamespace(free=disk))


@pytest.mark.parametrize(
    ("name", "free", "reason"),
    [
        ("growth-uniform", {"disk": 350_000}, "takes 0.0003 GB of disk, and 0.00035 GB are free"),
        ("growth-tree", {"memory": 100_000}, "takes 0.00016 GB of memory, and 0.0001 GB are free"),
        ("growth-prioritized", {"memory": 350_000}, "takes 0.00032 GB of memory, and 0.00035 GB are free"),
    ],
)
def test_a_size_that_does_not_fit_is_left_out_with_the_reason(
    name: str, free: dict[str, int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_free(monkeypatch, **free)
    row = measured(workloads.WORKLOADS[name], "relive")
    small, middle, large = row.outcomes
    assert small.value
    assert middle.value
    assert large.not_measured == reason
    assert row.times(large) is None


def test_a_failing_size_is_reported_and_the_others_go_on() -> None:
    def enter(peer: str, size: int) -> verification.Entrant:
        if size == 1_000:
            raise MemoryError
        return own.tree(peer, size)

    row = measured(dataclasses.replace(TREE, enter=enter), "relive")
    assert [one.not_measured for one in row.outcomes] == ["failed: MemoryError", "", ""]
    assert row.times(row.outcomes[1]) == 1.0  # The smallest that was measured.


def test_a_memory_mapped_size_leaves_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    task = dataclasses.replace(TREE.task, is_mapped=True)
    array = task.allocate((5, 2), np.dtype(np.float32))
    array[...] = 7
    assert isinstance(array.base, np.memmap)
    assert (array == 7).all()
    assert array.shape == (5, 2)
    assert not list(tmp_path.iterdir())


def test_a_size_needs_a_quarter_more_free_memory_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, memory=1_024_000_000)
    machine.require(memory=819_200_000, disk=0)
    with pytest.raises(tasks.CannotError, match="^takes 0.819 GB of memory, and 1.02 GB are free$"):
        machine.require(memory=819_200_001, disk=0)
    with pytest.raises(tasks.CannotError, match=r"^takes 1e\+09 GB of disk, and 1e\+03 GB are free$"):
        machine.require(memory=0, disk=10**18)


def test_a_tree_that_draws_or_sums_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves weigh 0 1 2 3 0 1 2 3 and so on."""
    entrant = own.tree("relive", 12)
    assert shares(entrant, [3, 11, 5, 2]) == {}
    assert shares(entrant, [4, 11]) == {"leaf without weight": 1 / 2}
    monkeypatch.setattr(relive.SumTree, "total", 17.0)
    assert shares(entrant, [3]) == {"total": 1.0}


def shares(entrant: verification.Entrant, drawn: list[int]) -> dict[str, float]:
    findings = verification.Findings()
    assert entrant.check
    entrant.check(np.array(drawn), findings)
    return findings.shares()


def test_every_leaf_of_the_tree_is_filled_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_CHUNK", 300)
    entrant, findings = own.tree("relive", 1_001), verification.Findings()
    assert entrant.check
    entrant.check(entrant.call(), findings)
    assert findings.rows
    assert not findings.shares()
