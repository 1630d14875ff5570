import collections

import hypothesis
from hypothesis import strategies as st

import relive
from relive.agents import bias as bias_lib
from relive.episodes import sums as sums_lib
from relive.episodes import sums_test


def test_the_difference_is_of_the_means_that_are_known() -> None:
    produced, trained = sums_lib.Tally(), sums_lib.Tally()
    for tally in (produced, trained):
        tally.add(sums_test.episode_of([1.0, 2.0], "TRUNCATED"))
    produced.add(sums_test.episode_of([0.0] * 6, "COMPLETED", 3))
    bias = relive.TrainingBias(produced=produced.totals(), trained=trained.totals())
    assert bias.difference == {
        "mean_length": -2.0,
        "mean_return": 1.5,
        "completed_share": -0.5,
        "truncated_share": 0.5,
        "aborted_share": 0.0,
    }


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
