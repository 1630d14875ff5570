import fractions
import math

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive.episodes import episode as episode_lib
from relive.episodes import sums as sums_lib

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
    tally = sums_lib.Tally()
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
    totals = sums_lib.Tally().totals()
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


@pytest.mark.parametrize(
    ("start", "changes", "version"), [(None, [], None), (3, [(1, 5)], 3), (None, [(1, 5), (2, 7)], 5), (0, [], 0)]
)
def test_the_oldest_version_is_the_first_that_was_said(
    start: int | None, changes: list[tuple[int, int]], version: int | None
) -> None:
    episode = episode_of([0.0] * 3, version=start)
    episode.version_changes = changes
    assert sums_lib.oldest_version(episode) == version


@pytest.mark.parametrize(
    ("numbers", "value"),
    [([1e308] * 4, math.inf), ([-1e308] * 4, -math.inf), ([1e308] * 4 + [-1e308] * 4, 0.0), ([-0.0], 0.0)],
)
def test_returns_beyond_all_floats_are_infinite(numbers: list[float], value: float) -> None:
    for returns in ([[1.0], *([number] for number in numbers), [-1.0]], [[1.0, *numbers, -1.0]]):
        tally = sums_lib.Tally()
        for rewards in returns:
            tally.add(episode_of(rewards))
        assert tally.totals().mean_return == value
