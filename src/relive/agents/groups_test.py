"""Groups: what is refused, audits, and the line against a list; `handing_out_machine_test` has the rest."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive import errors
from relive.agents import groups
from relive.agents import units

Episode = relive.Episode[Any, Any]


def ended(name: str, group_id: str = "g") -> Episode:
    return Episode(
        episode_id=name,
        agent_id="a",
        observations=[0, 1],
        actions=[0],
        rewards=[0.0],
        status="COMPLETED",
        group_id=group_id,
    )


def tracker_of(size: int) -> groups.GroupTracker:
    return groups.GroupTracker(relive.Groups(size))


def start(tracker: groups.GroupTracker, count: int) -> None:
    for _ in range(count):
        tracker.check_start("g")
        tracker.started("g", 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "^size must be at least 1, got 0$"),
        ((2, -1.0), "^timeout must be at least 0, got -1.0$"),
        ((2, 0), r"^timeout must be above 0 seconds \(None for no timeout\), got 0$"),
        ((2, "soon"), "^timeout must be a finite real number, got 'soon'$"),
        ((2, 1.0, 0), "^min_size must be at least 1, got 0$"),
        ((2, 1.0, 3), "^min_size must be at most size = 2, got 3$"),
        ((2, None, 1), "^min_size must come with a timeout, got 1 without one$"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(relive.ArgumentError, match=message):
        relive.Groups(*arguments)


def test_a_start_that_a_group_refuses_says_why() -> None:
    tracker = tracker_of(2)
    start(tracker, 2)
    group = tracker.groups["g"]
    begin = "^no episode can start in group 'g': it "
    for why, change in (
        ("has 2 of 2 that run or have ended", lambda: tracker.ended(group, ended("a"), counts=True)),
        ("has 2 of 2 that run or have ended", lambda: tracker.ended(group, ended("b"), counts=True)),
        ("is whole already", lambda: tracker.close(group, units.Event.DROPPED)),
        ("was handed out or given up", lambda: None),
    ):
        with pytest.raises(relive.ArgumentError, match=f"{begin}{why}$"):
            tracker.check_start("g")
        change()


def test_more_that_run_than_are_stored_are_found() -> None:
    tracker = tracker_of(2)
    start(tracker, 1)
    tracker.groups["g"].running += 1
    with pytest.raises(errors.CorruptionError, match="^group 'g' cannot be GATHERING with 1 episodes, of which 2 run"):
        tracker.check()


def test_gathering_groups_keep_the_order_of_their_starts() -> None:
    tracker = tracker_of(2)
    tracker.started("g", 2.0)
    tracker.started("h", 1.0)
    with pytest.raises(errors.CorruptionError, match="^groups that gather must be in the order of their starts$"):
        tracker.check()


EVENTS = st.lists(
    st.tuples(st.sampled_from(["append", "prepend"]), st.none() | st.integers(0, 4))
    | st.tuples(st.just("remove"), st.integers(0, 9))
    | st.tuples(st.just("find"), st.tuples(st.integers(1, 3), *[st.none() | st.integers(0, 5)] * 2)),
    max_size=60,
)


@hypothesis.given(EVENTS)
def test_a_line_is_a_list_that_is_searched(events: list[tuple[str, Any]]) -> None:
    line, naive = units.Line(), list[tuple[units.Unit, int | None]]()
    for number, (kind, value) in enumerate(events):
        if kind in ("append", "prepend"):
            episode = ended(f"{number}")
            episode.policy_version = value
            unit = units.Unit(f"{number}", units.DeliveryState.COMPLETE, [episode])
            assert unit not in line
            line.add(unit, first=kind == "prepend")
            naive.insert(0 if kind == "prepend" else len(naive), (unit, value))
        elif kind == "remove" and naive:
            unit, _ = naive.pop(value % len(naive))
            assert unit in line
            line.remove(unit)
            assert unit not in line
        elif kind == "find":
            count, least, kept = value
            states = [
                "stale"
                if least is not None and (v is None or v < least)
                else "kept"
                if kept is not None and v is not None and v >= kept
                else "fresh"
                for _, v in naive
            ]
            assert line.num_fresh(least, kept) == states.count("fresh")
            fresh = [place for place, state in enumerate(states) if state == "fresh"][:count]
            last = fresh[-1] if len(fresh) == count else len(naive)
            stale = [place for place, state in enumerate(states[:last]) if state == "stale"]
            assert line.find(count, least, kept) == tuple(
                [naive[place][0] for place in each] for each in (fresh, stale)
            )
        assert (len(line), list(line)) == (len(naive), [unit for unit, _ in naive])
        line.check()


def test_an_audit_finds_what_a_line_cannot_hold() -> None:
    line = units.Line()
    episode = ended("a")
    episode.policy_version = 3
    line.add(units.Unit("a", units.DeliveryState.COMPLETE, [episode]))
    line._versions[3] += 1
    with pytest.raises(errors.CorruptionError, match=r"versions that wait must be \{3: 1\}, found \{3: 2\}"):
        line.check()
    line._versions[3] -= 1
    next(iter(line)).state = units.DeliveryState.DELIVERED
    with pytest.raises(errors.CorruptionError, match="what waits for the learner must be complete"):
        line.check()
