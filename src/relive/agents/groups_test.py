"""Groups: what is refused, audits, and the line against a list; `handing_out_machine_test` has the rest."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive import errors
from relive.agents import groups

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


def book_of(size: int) -> groups.GroupBook:
    return groups.GroupBook(relive.Groups(size))


def start(book: groups.GroupBook, count: int) -> None:
    for _ in range(count):
        book.check_start("g")
        book.started("g", 0.0)


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
    book = book_of(2)
    start(book, 2)
    begin = "^no episode can start in group 'g': it "
    for why, change in (
        ("has 2 of 2 that run or have ended", lambda: book.ended("g", ended("a"), counts=True)),
        ("has 2 of 2 that run or have ended", lambda: book.ended("g", ended("b"), counts=True)),
        ("is whole already", lambda: book.take("g")),
        ("was handed out or given up", lambda: None),
    ):
        with pytest.raises(relive.ArgumentError, match=f"{begin}{why}$"):
            book.check_start("g")
        change()


@pytest.mark.parametrize(
    ("phases", "waits", "message"),
    [
        ([], [], "^group 'g' of a stored episode is missing$"),
        ([("g", "CLOSED", 0.0)] * 2, [], "^group 'g' is there twice$"),
        ([("g", "CLOSED", 0.0), ("h", "CLOSED", 0.0)], [], "^group 'h' cannot be CLOSED with 0 episodes"),
        ([("g", "WHOLE", 0.0)], [], "^group 'g' cannot be WHOLE with 3 episodes, of which 0 run and 0 wait$"),
        ([("g", "WHOLE", 0.0)], [0], "^group 'g' cannot be WHOLE .* 1 wait$"),
        ([("g", "WHOLE", 0.0)], [0, 1, 2], "^group 'g' cannot be WHOLE .* 3 wait$"),
        ([("g", "GATHERING", 0.0)], [0, 1], "^group 'g' cannot be GATHERING .* 2 wait$"),
        ([("g", "CLOSED", 0.0)], [1], "^group 'g' cannot be CLOSED .* 1 wait$"),
    ],
)
def test_groups_that_cannot_be_are_refused(phases: Any, waits: list[int], message: str) -> None:
    episodes = [(ended(str(number)), number in waits) for number in range(3)]
    with pytest.raises(errors.CorruptionError, match=message):
        book_of(2).resume(phases, episodes, len(phases))


def test_gathering_groups_keep_the_order_of_their_starts() -> None:
    phases: Any = [("g", "GATHERING", 2.0), ("h", "GATHERING", 1.0)]
    episodes = [(ended("0"), False), (ended("1", "h"), False)]
    with pytest.raises(errors.CorruptionError, match="^groups that gather must be in the order of their starts$"):
        book_of(2).resume(phases, episodes, len(phases))
    book_of(2).resume(reversed(phases), episodes, len(phases))


def test_more_that_run_than_are_stored_are_found() -> None:
    book = book_of(2)
    start(book, 1)
    book._groups["g"].running += 1
    with pytest.raises(errors.CorruptionError, match="^group 'g' cannot be GATHERING with 1 episodes, of which 2 run"):
        book.check()


EVENTS = st.lists(
    st.tuples(st.just("append"), st.none() | st.integers(0, 4))
    | st.tuples(st.just("pop"), st.integers(0, 9))
    | st.tuples(st.just("take"), st.tuples(st.integers(1, 3), st.none() | st.integers(0, 5))),
    max_size=60,
)


def is_fresh(version: int | None, least: int | None) -> bool:
    return least is None or (version is not None and version >= least)


@hypothesis.given(EVENTS)
def test_a_line_is_a_list_that_is_searched(events: list[tuple[str, Any]]) -> None:
    line: groups.PendingEpisodes[int] = groups.PendingEpisodes()
    naive: list[tuple[str, int, int | None]] = []
    for number, (kind, value) in enumerate(events):
        if kind == "append":
            line.append(f"k{number}", number, value)
            naive.append((f"k{number}", number, value))
        elif kind == "pop" and naive:
            key, item, _ = naive.pop(value % len(naive))
            assert key in line
            assert line.pop(key) == item
            assert key not in line
        elif kind == "take":
            count, least = value
            fresh = [row for row in naive if is_fresh(row[2], least)]
            assert line.num_fresh(least) == len(fresh)
            if len(fresh) >= count:
                last = naive.index(fresh[count - 1])
                before = naive[: last + 1]
                expected = [row[0] for row in before if is_fresh(row[2], least)]
                stale = [row[0] for row in before if not is_fresh(row[2], least)]
                assert line.find(count, least) == (expected, stale)
                assert [line[key] for key in expected] == [row[1] for row in fresh[:count]]
                for key in (*expected, *stale):
                    line.pop(key)
                del naive[: last + 1]
        assert (len(line), list(line), list(line.keys())) == (
            len(naive),
            [row[1] for row in naive],
            [row[0] for row in naive],
        )
        line.check()


def test_an_audit_finds_miscounted_versions() -> None:
    line: groups.PendingEpisodes[int] = groups.PendingEpisodes()
    line.append("a", 1, 3)
    line._versions[3] += 1
    with pytest.raises(errors.CorruptionError, match=r"versions that wait must be \{3: 1\}, found \{3: 2\}"):
        line.check()
