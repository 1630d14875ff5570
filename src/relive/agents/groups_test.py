from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive import errors
from relive.agents import groups

Episode = relive.Episode[Any, Any]


def ended(name: str, group_id: str = "g", version: int | None = None) -> Episode:
    return Episode(
        episode_id=name,
        agent_id="a",
        observations=[0, 1],
        actions=[0],
        rewards=[0.0],
        status="COMPLETED",
        group_id=group_id,
        policy_version=version,
    )


def book_of(size: int, timeout: float | None = None, min_size: int | None = None) -> groups.GroupBook:
    return groups.GroupBook(relive.Groups(size, timeout, min_size))


def due_of(book: groups.GroupBook) -> float | None:
    return book.due


def start(book: groups.GroupBook, count: int, group_id: str = "g", now: float = 0.0) -> None:
    for _ in range(count):
        book.check_start(group_id)
        book.started(group_id, now)


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


def test_the_least_size_is_the_size_by_default() -> None:
    assert relive.Groups(3).least_size == relive.Groups(3, 1.0).least_size == 3
    assert relive.Groups(3, 1.0, 2).least_size == 2
    assert relive.Groups(3, 1.0, 3).least_size == 3


def test_a_group_is_whole_when_all_have_ended() -> None:
    book = book_of(2)
    start(book, 2)
    first, second = ended("first"), ended("second")
    assert not book.ended("g", second, counts=True)
    assert list(book.whole) == []
    assert list(book.waiting()) == [second]
    assert not book.ended("g", first, counts=True)
    assert list(book.whole) == [[second, first]]
    assert not book.is_closed("g")
    assert book.take("g") == [second, first]
    assert book.is_closed("g")
    assert (list(book.whole), list(book.waiting())) == ([], [])


def test_groups_wait_in_the_order_in_which_they_became_whole() -> None:
    book = book_of(1)
    for group_id in "abc":
        start(book, 1, group_id)
    for group_id in "cab":
        book.ended(group_id, ended(group_id, group_id), counts=True)
    assert list(book.whole.keys()) == ["c", "a", "b"]


def test_the_version_of_a_group_is_the_oldest_that_is_known() -> None:
    assert groups.oldest_version([ended("a", version=3), ended("b"), ended("c", version=2)]) == 2
    assert groups.oldest_version([ended("a")]) is None
    book = book_of(2)
    start(book, 2)
    book.ended("g", ended("a", version=3), counts=True)
    book.ended("g", ended("b", version=5), counts=True)
    assert [book.whole.num_fresh(least) for least in (3, 4)] == [1, 0]


def test_an_uncounted_episode_makes_room_in_its_group() -> None:
    book = book_of(2)
    start(book, 2)
    with pytest.raises(
        relive.ArgumentError, match="^no episode can start in group 'g': it has 2 of 2 that run or have "
    ):
        start(book, 1)
    assert not book.ended("g", ended("a"), counts=False)
    start(book, 1)
    assert not book.ended("g", ended("b"), counts=True)
    with pytest.raises(relive.ArgumentError, match="it has 2 of 2 that run or have ended$"):
        book.check_start("g")
    book.ended("g", ended("c"), counts=True)
    with pytest.raises(relive.ArgumentError, match="^no episode can start in group 'g': it is whole already$"):
        book.check_start("g")
    book.take("g")
    with pytest.raises(
        relive.ArgumentError, match="^no episode can start in group 'g': it was handed out or given up$"
    ):
        book.check_start("g")
    start(book, 1, "another")


def test_a_group_falls_due_after_its_first_start() -> None:
    book = book_of(2, timeout=10.0)
    assert due_of(book) is None
    start(book, 1, "a", now=1.0)
    start(book, 1, "b", now=2.0)
    start(book, 1, "a", now=5.0)
    assert due_of(book) == 11.0
    book.ended("a", a := ended("x", "a"), counts=True)
    assert book.pass_time(10.999) == []
    assert book.pass_time(11.0) == [("straggler", a)]
    assert due_of(book) == 12.0
    assert book.ended("a", ended("y", "a"), counts=True)
    assert book.reason("a") == "straggler"
    assert book.pass_time(100.0) == []
    assert due_of(book) is None
    assert due_of(book_of(1)) is None


def test_a_whole_group_does_not_fall_due() -> None:
    book = book_of(1, timeout=1.0)
    start(book, 1)
    book.ended("g", ended("a"), counts=True)
    assert due_of(book) is None
    assert book.pass_time(100.0) == []
    assert len(book.whole) == 1


def test_enough_make_a_group_whole_when_its_time_is_up() -> None:
    book = book_of(3, timeout=1.0, min_size=2)
    for group_id in "ab":
        start(book, 3, group_id)
    dropped = ended("a0", "a")
    kept = [ended("b0", "b"), ended("b1", "b")]
    book.ended("a", dropped, counts=True)
    for episode in kept:
        book.ended("b", episode, counts=True)
    assert book.pass_time(1.0) == [("straggler", dropped)]
    assert list(book.whole) == [kept]
    assert book.ended("b", ended("b2", "b"), counts=True)
    assert list(book.whole) == [kept]


def test_an_eviction_gives_a_group_up() -> None:
    book = book_of(3)
    start(book, 3)
    waiting = [ended("a"), ended("b")]
    for episode in waiting:
        book.ended("g", episode, counts=True)
    assert book.left("g", waiting[0]) == [("evicted", episode) for episode in waiting]
    assert book.is_closed("g")
    assert book.ended("g", late := ended("c"), counts=True)
    assert book.reason("g") == "evicted"
    assert book.left("g", waiting[1]) == []
    assert len(book) == 1
    assert book.left("g", late) == []
    assert len(book) == 0
    start(book, 1)


def test_an_eviction_gives_a_whole_group_up() -> None:
    book = book_of(1)
    start(book, 1)
    book.ended("g", episode := ended("a"), counts=True)
    assert book.left("g", episode) == [("evicted", episode)]
    assert (len(book.whole), len(book)) == (0, 0)


def test_an_eviction_of_one_that_does_not_count_does_no_harm() -> None:
    book = book_of(2, timeout=1.0)
    start(book, 2)
    book.ended("g", first := ended("a"), counts=False)
    assert book.left("g", first) == []
    assert not book.is_closed("g")
    book.ended("g", second := ended("b"), counts=False)
    assert book.left("g", second) == []
    assert (len(book), book.due) == (0, None)


def test_groups_of_the_past_are_not_remembered() -> None:
    book = book_of(1)
    for number in range(1000):
        start(book, 1, str(number))
        book.ended(str(number), episode := ended("a"), counts=True)
        book.take(str(number))
        assert book.left(str(number), episode) == []
    assert len(book) == 0


def phases_of(*phases: groups.Phase) -> list[tuple[str, groups.Phase, float]]:
    return [(str(number), phase, float(number)) for number, phase in enumerate(phases)]


def test_a_book_resumes_where_another_stopped() -> None:
    book = book_of(2, timeout=9.0, min_size=1)
    ids = ["gathers", "late", "whole", "handed", "evicted"]
    for now, group_id in enumerate(ids):
        start(book, 2, group_id, float(now))
    episodes = {name: [ended(name + "0", name), ended(name + "1", name)] for name in ids}
    for name in ("whole", "handed", "evicted"):
        for episode in episodes[name]:
            book.ended(name, episode, counts=True)
    book.ended("late", episodes["late"][0], counts=True)
    book.take("handed")
    book.left("evicted", episodes["evicted"][0])
    book.pass_time(9.5)
    assert book.phases() == [
        ("late", "GATHERING", 1.0),
        ("whole", "WHOLE", 2.0),
        ("evicted", "EVICTED", 4.0),
        ("gathers", "CLOSED", 0.0),
        ("handed", "CLOSED", 3.0),
    ]
    running = [Episode(episode_id=name, agent_id="a", group_id=name) for name in ("gathers", "gathers", "late")]
    waiting = [episodes["late"][0], *episodes["whole"]]
    past = [*episodes["handed"], episodes["evicted"][1]]
    twin = book_of(2, timeout=9.0, min_size=1)
    known = [*((each, True) for each in waiting), *((each, False) for each in (*past, *running))]
    twin.resume(book.phases(), known, num_in_pass=1)
    assert twin.phases() == book.phases()
    for each in (book, twin):
        assert (each.due, list(each.whole), set(each.waiting())) == (10.0, [episodes["whole"]], set(waiting))
        each.pass_time(10.0)
        assert list(each.whole) == [episodes["whole"], [episodes["late"][0]]]
        assert each.ended("late", episodes["late"][1], counts=True)
        each.check()


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
