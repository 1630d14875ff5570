"""Crowds of coroutines and many episodes: what they count and draw, and whether a fault is found."""

import dataclasses

import pytest

import relive
from relive.bench import catalogue
from relive.bench import coroutines
from relive.bench import runner
from relive.bench import verification
from relive.bench import workloads

QUICK = runner.Settings.chosen(1, is_quick=True)
FAMILIES = ("coroutines", "episodes")
LINED = [one for one in workloads.WORKLOADS.values() if one.family in FAMILIES and not one.task]


@pytest.mark.parametrize("workload", LINED, ids=lambda one: one.name)
def test_every_line_is_right(workload: workloads.Workload) -> None:
    row = runner.measure(workload, catalogue.PEERS, QUICK, lambda line: None)
    assert {one.peer for one in row.measured} == set(workload.lines)
    assert all(one.is_right for one in row.outcomes)
    assert row.own


def test_the_full_size_is_a_thousand_coroutines_of_a_hundred_steps() -> None:
    assert workloads.WORKLOADS["coroutines"].sizes == (1_000,)
    assert coroutines.crowd(2, "await").steps == 200


@pytest.mark.parametrize("peer", ["relive", "relive-episodes"])
def test_a_learner_that_is_held_to_the_actors_draws_each_step_once(peer: str) -> None:
    stats = coroutines.crowd(20, peer, learns=True, limits=True).call()
    assert stats.appended == 2_000
    assert abs(stats.sampled - 1_500) <= 1_024


def shares(entrant: verification.Entrant, drawn: object) -> dict[str, float]:
    """Return what is found wrong with what a call has returned."""
    findings = verification.Findings()
    assert entrant.check
    entrant.check(drawn, findings)
    return findings.shares()


def test_a_missing_step_and_a_learner_without_a_turn_are_found() -> None:
    stats = coroutines.crowd(1, "relive").call()
    assert shares(coroutines.crowd(1, "relive"), stats) == {}
    assert shares(coroutines.crowd(2, "relive", learns=True), stats) == {"samples": 1.0, "steps": 1.0}


def test_a_sample_of_another_step_is_found() -> None:
    entrant = coroutines.drawing(3)
    samples: list[relive.ReplaySample[int, int]] = entrant.call()
    assert shares(entrant, samples) == {}
    spoiled = [dataclasses.replace(one, observation=one.observation + 1) for one in samples]
    assert shares(entrant, spoiled) == {"observation": 1.0}
    spoiled = [dataclasses.replace(one, next_observation=one.observation) for one in samples]
    assert shares(entrant, spoiled) == {"next observation": 1.0}
