"""Tests of the workloads with coroutines and episodes: their counts, their draws, and the faults that they find."""

import pytest

from relive.bench import catalogue
from relive.bench import coroutines
from relive.bench import runner
from relive.bench import verification
from relive.bench import workloads

QUICK = runner.Settings(1, is_quick=True)
ENTERED = [one for one in workloads.WORKLOADS.values() if one.enter and not one.name.startswith("growth")]


@pytest.mark.parametrize("workload", ENTERED, ids=lambda one: one.name)
def test_every_peer_is_right(workload: workloads.Workload) -> None:
    row = runner.measure(workload, catalogue.PEERS, QUICK, lambda line: None)
    assert {one.peer for one in row.measured} | {"relive-numba"} == {*workload.only, "relive-numba"}
    assert all(one.is_right for one in row.outcomes)
    assert row.own


def test_the_full_size_has_1000_coroutines_of_100_steps() -> None:
    assert workloads.WORKLOADS["coroutines"].sizes == (1_000,)
    assert coroutines.crowd("await", 2).steps == 200


@pytest.mark.parametrize("peer", ["relive", "relive-episodes"])
def test_a_limited_learner_draws_each_step_once(peer: str) -> None:
    stats = coroutines.crowd(peer, 20, learns=True, limits=True).call()
    assert stats.appended == 2_000
    assert abs(stats.sampled - 1_500) <= 1_024


def shares(entrant: verification.Entrant, drawn: object) -> dict[str, float]:
    findings = verification.Findings()
    assert entrant.check
    entrant.check(drawn, findings)
    return findings.shares()


def test_missing_steps_and_learners_without_turns_are_found() -> None:
    stats = coroutines.crowd("relive", 1).call()
    assert shares(coroutines.crowd("relive", 1), stats) == {}
    assert shares(coroutines.crowd("relive", 2, learns=True), stats) == {"samples": 1.0, "steps": 1.0}
