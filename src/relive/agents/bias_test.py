import collections
import fractions
import math

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive.agents import bias as bias_lib
from relive.episodes import episode as episode_lib

EPISODES = st.lists(
    st.tuples(
        st.lists(
            st.integers(-100, 100).map(float)
            | st.floats(-1e300, 1e300)
            | st.sampled_from([1e16, -1e16, 1e-300, 2.0**-1074]),
            max_size=5,
        ),
        st.sampled_from(episode_lib.FINAL_STATUSES),
        st.none() | st.integers(0, 10**18),
    ),
    max_size=20,
)


def episode_of(
    rewards: list[float], status: relive.EpisodeStatus = "COMPLETED", version: int | None = None
) -> relive.Episode[int, int]:
    observations = len(rewards) + (status != "ABORTED")
    return relive.Episode(
        episode_id="e",
        agent_id="a",
        observations=[0] * observations,
        actions=[0] * len(rewards),
        rewards=rewards,
        status=status,
        policy_version=version,
    )


@hypothesis.given(EPISODES)
def test_sums_are_exact(described: list[tuple[list[float], relive.FinalStatus, int | None]]) -> None:
    tally = bias_lib.Tally()
    episodes = [episode_of(*each) for each in described]
    for episode in episodes:
        tally.add(episode)
    totals = tally.totals()
    count = len(episodes)
    versions = [episode.policy_version for episode in episodes if episode.policy_version is not None]
    returns = math.fsum(math.fsum(episode.rewards) for episode in episodes)
    assert (totals.episodes, totals.transitions) == (count, sum(map(len, episodes)))
    if count:
        assert totals.mean_length == totals.transitions / count
        assert totals.mean_return == returns / count
        for status in episode_lib.FINAL_STATUSES:
            share = getattr(totals, f"{status.lower()}_share")
            assert share == sum(episode.status == status for episode in episodes) / count
    if versions:
        assert totals.mean_policy_version == float(fractions.Fraction(sum(versions), len(versions)))


def test_a_mean_of_nothing_is_none() -> None:
    totals = bias_lib.Tally().totals()
    assert totals == relive.EpisodeTotals(
        episodes=0,
        transitions=0,
        mean_length=None,
        mean_return=None,
        completed_share=None,
        truncated_share=None,
        aborted_share=None,
        mean_policy_version=None,
    )
    assert relive.TrainingBias(produced=totals, trained=totals).difference == {}


def test_the_difference_is_of_the_means_that_are_known() -> None:
    produced, trained = bias_lib.Tally(), bias_lib.Tally()
    for tally in (produced, trained):
        tally.add(episode_of([1.0, 2.0], "TRUNCATED"))
    produced.add(episode_of([0.0] * 6, "COMPLETED", 3))
    bias = relive.TrainingBias(produced=produced.totals(), trained=trained.totals())
    assert bias.difference == {
        "mean_length": -2.0,
        "mean_return": 1.5,
        "completed_share": -0.5,
        "truncated_share": 0.5,
        "aborted_share": 0.0,
    }


@pytest.mark.parametrize(
    ("start", "changes", "version"), [(None, [], None), (3, [(1, 5)], 3), (None, [(1, 5), (2, 7)], 5), (0, [], 0)]
)
def test_the_oldest_version_is_the_first_that_was_said(
    start: int | None, changes: list[tuple[int, int]], version: int | None
) -> None:
    episode = episode_of([0.0] * 3, version=start)
    episode.version_changes = changes
    assert bias_lib.oldest_version(episode) == version


@pytest.mark.parametrize(
    ("numbers", "value"),
    [([1e308] * 4, math.inf), ([-1e308] * 4, -math.inf), ([1e308] * 4 + [-1e308] * 4, 0.0), ([-0.0], 0.0)],
)
def test_returns_beyond_all_floats_are_infinite(numbers: list[float], value: float) -> None:
    for returns in ([[1.0], *([number] for number in numbers), [-1.0]], [[1.0, *numbers, -1.0]]):
        tally = bias_lib.Tally()
        for rewards in returns:
            tally.add(episode_of(rewards))
        assert tally.totals().mean_return == value


@hypothesis.given(st.lists(st.tuples(st.sampled_from(bias_lib.REASONS), st.sampled_from("abc"), st.integers(1, 3))))
def test_counts_are_those_of_a_list(events: list[tuple[str, str, int]]) -> None:
    counted = bias_lib.Drops()
    expected: dict[str, collections.Counter[str]] = {}
    for reason, source, episodes in events:
        counted.count(reason, source, episodes)
        expected.setdefault(reason, collections.Counter())[source] += episodes
    assert counted.view() == expected
    assert list(counted.view()) == sorted(expected)


def test_the_first_thousand_sources_are_named() -> None:
    counted = bias_lib.Drops()
    for reason in ("stale", "aborted"):
        for number in range(1500):
            counted.count(reason, f"agent-{number}")
    counted.count("evicted", "agent-999")
    counted.count("evicted", "agent-1000")
    view = counted.view()
    assert len(view["stale"]) == len(view["aborted"]) == 1001
    assert view["stale"]["(others)"] == view["aborted"]["(others)"] == 500
    assert view["evicted"] == {"agent-999": 1, "(others)": 1}


def test_the_first_hundred_reasons_are_named() -> None:
    drops = bias_lib.Drops()
    for number in range(200):
        drops.count(f"score {number}", "a")
    drops.count("stale", "a")
    view = drops.view()
    assert len(view) == 102  # With one of the buffer's own, and one for the others.
    assert (view["score 99"], view["stale"], view["(others)"]) == ({"a": 1}, {"a": 1}, {"a": 100})


def test_the_others_take_no_name() -> None:
    counted = bias_lib.Drops()
    counted.count("stale", "(others)")
    for number in range(1000):
        counted.count("stale", str(number))
    assert counted.view()["stale"] == {"(others)": 1, **{str(number): 1 for number in range(1000)}}


def test_a_view_is_a_copy_of_now() -> None:
    counted = bias_lib.Drops()
    counted.count("stale", "a")
    view = counted.view()
    counted.count("stale", "a")
    counted.count("empty", "a")
    assert view == {"stale": {"a": 1}}
    view["stale"]["a"] = 0
    assert counted.view() == {"empty": {"a": 1}, "stale": {"a": 2}}
