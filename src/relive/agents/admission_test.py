import gc
import math
from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive.agents import admission


class Heard:
    def __init__(self) -> None:
        self.came_back = self.lost = 0

    def desk(self, rule: relive.Admission | None) -> admission.Desk:
        def came_back() -> None:
            self.came_back += 1

        def lost() -> None:
            self.lost += 1

        return admission.Desk(rule, came_back, lost)


def desk_of(max_lag: int, per_version: int) -> admission.Desk:
    return Heard().desk(relive.Admission(max_lag, per_version))


@hypothesis.given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 50), st.integers(1, 1000))
def test_the_rule_is_equation_3_of_areal(max_lag: int, per_version: int, version: int, admitted: int) -> None:
    rule = relive.Admission(max_lag, per_version)
    is_within = admitted <= rule.most_admitted(version)
    assert is_within == (math.floor((admitted - 1) / per_version) <= version + max_lag)


@hypothesis.given(st.integers(0, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_no_trained_episode_is_older_than_the_bound(max_lag: int, per_version: int, random: Any) -> None:
    """Actors start at random as soon as they may; the learner takes `per_version` in the order in which they end."""
    desk = desk_of(max_lag, per_version)
    desk.begin(0, 0)
    version, running, ended, lags = 0, [], [], []
    for _ in range(200):
        action = random.randrange(3)
        if action == 0 and desk.can_admit(1):
            desk.use(desk.admit(1), "e")
            running.append(version)
        elif action == 1 and running:
            ended.append(running.pop(random.randrange(len(running))))
        elif action == 2 and len(ended) >= per_version:
            lags += [version - started for started in ended[:per_version]]
            del ended[:per_version]
            version += 1
            desk.move_on(1)
    assert desk.admitted <= (version + max_lag + 1) * per_version
    # Those that run may fall behind those that started later: what the bound counts is how many come before them.
    assert len(running) + len(ended) <= (max_lag + 1) * per_version
    if max_lag == 0 and lags:
        assert max(lags) == 0


def test_episodes_that_end_in_order_lag_at_most_the_bound() -> None:
    for max_lag in range(4):
        desk = desk_of(max_lag, 3)
        desk.begin(0, 0)
        started: list[int] = []
        lags = []
        for version in range(50):
            while desk.can_admit(1):
                desk.use(desk.admit(1), "e")
                started.append(version)
            lags += [version - each for each in started[:3]]
            del started[:3]
            desk.move_on(1)
        assert max(lags) == max_lag


def test_places_are_limited_until_the_learner_moves_on() -> None:
    heard = Heard()
    desk = heard.desk(relive.Admission(1, 2))
    tickets = [desk.admit(1) for _ in range(4)]
    assert not desk.can_admit(1)
    for ticket in tickets:
        desk.use(ticket, "e")
    assert (desk.admitted, desk.can_admit(1)) == (4, False)
    desk.begin(0, desk.admitted)
    desk.move_on(1)
    assert desk.can_admit(2)
    assert not desk.can_admit(3)
    desk.give_back(1)
    assert (desk.admitted, desk.can_admit(3)) == (3, True)
    assert heard.came_back == 3
    desk.give_back(0)
    assert heard.came_back == 3


def test_without_a_rule_there_is_always_a_place() -> None:
    desk = Heard().desk(None)
    assert desk.checked_count(10**9) == 10**9
    assert desk.can_admit(10**9)
    desk.check(None, "start_episode")
    desk.use(None, "e")
    assert desk.admitted == 1
    desk.begin(None, 10**9)
    assert desk.admitted == 10**9


def test_a_ticket_is_good_for_its_count() -> None:
    desk = desk_of(0, 3)
    ticket = desk.admit(2)
    assert (ticket.left, desk.can_admit(1), desk.can_admit(2)) == (2, True, False)
    for left in (1, 0):
        desk.check(ticket, "start_episode")
        desk.use(ticket, "e")
        assert ticket.left == left
    with pytest.raises(relive.ArgumentError, match="^ticket must admit another episode, got one that is used up"):
        desk.check(ticket, "start_episode")
    assert (desk.admitted, desk.can_admit(1), desk.can_admit(2)) == (2, True, False)


def test_unused_places_of_a_ticket_go_back_once() -> None:
    heard = Heard()
    desk = heard.desk(relive.Admission(0, 3))
    with desk.admit(3) as ticket:
        desk.use(ticket, "e")
    assert (ticket.left, heard.came_back) == (0, 1)
    ticket.release()
    del ticket
    assert (heard.came_back, heard.lost) == (1, 0)
    assert desk.can_admit(2)
    assert not desk.can_admit(3)


def test_a_ticket_goes_back_when_its_block_raises() -> None:
    desk = desk_of(0, 1)
    with pytest.raises(ZeroDivisionError), desk.admit(1):
        assert not desk.can_admit(1)
        raise ZeroDivisionError
    assert desk.can_admit(1)


def test_a_lost_ticket_goes_back_when_somebody_asks() -> None:
    heard = Heard()
    desk = heard.desk(relive.Admission(0, 3))
    ticket: Any = desk.admit(3)
    desk.use(ticket, "e")
    assert not desk.can_admit(1)
    circle = [ticket]
    circle.append(circle)
    del ticket, circle
    gc.collect()
    assert heard.lost == 1
    assert desk.can_admit(2)
    assert not desk.can_admit(3)


def test_a_used_ticket_that_is_lost_gives_nothing_back() -> None:
    heard = Heard()
    desk = heard.desk(relive.Admission(0, 1))
    ticket = desk.admit(1)
    desk.use(ticket, "e")
    del ticket
    assert (heard.lost, desk.can_admit(1)) == (0, False)


def test_a_ticket_must_be_one_of_this_desk() -> None:
    desk = desk_of(0, 1)
    with pytest.raises(
        relive.ArgumentError, match=r"^ticket must be of this buffer, and not from before it was loaded"
    ):
        desk.check(desk_of(0, 1).admit(1), "start_episode")
    with pytest.raises(relive.ArgumentTypeError, match="^ticket must be an instance of Ticket, got 'x'$"):
        desk.check("x", "start_episode")
    message = r"^start_episode needs a ticket with Admission\(.*1\): await buffer.admit\(\) first$"
    with pytest.raises(relive.ArgumentError, match=message):
        desk.check(None, "start_episode")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: relive.Admission(-1, 1), "^max_lag must be at least 0, got -1$"),
        (lambda: relive.Admission(0, 0), "^episodes_per_version must be at least 1, got 0$"),
        (lambda: relive.Admission(0.5, 1), "^max_lag must be an integer"),  # type: ignore[arg-type]
        (lambda: desk_of(1, 2).checked_count(0), "^count must be at least 1, got 0$"),
        (
            lambda: desk_of(1, 2).checked_count(5),
            r"^count must be at most 4 with Admission\(max_lag=1, episodes_per_version=2\), got 5$",
        ),
    ],
)
def test_settings_of_admissions_are_checked(make: Any, message: str) -> None:
    with pytest.raises(relive.ArgumentError, match=message):
        make()
    assert desk_of(1, 2).checked_count(4) == 4


def test_an_error_says_how_many_are_admitted() -> None:
    desk = desk_of(0, 2)
    desk.use(desk.admit(1), "e")
    ticket = desk.admit(1)
    error = desk.held_back("admit_nowait")
    assert ticket.left == 1
    assert isinstance(error, relive.NotReadyError)
    assert str(error) == (
        "admit_nowait held back by Admission(max_lag=0, episodes_per_version=2) with 2 episodes admitted: "
        "set_policy_version as the learner moves on, or await admit"
    )


def test_a_count_that_begins_anew_is_at_most_full() -> None:
    desk = desk_of(1, 2)
    desk.begin(None, 100)
    assert (desk.admitted, desk.versions, desk.can_admit(1)) == (4, None, False)
    desk.begin(3, 100)
    assert (desk.admitted, desk.versions, desk.can_admit(1)) == (10, 3, False)
    desk.begin(3, 9)
    assert desk.can_admit(1)


def test_more_places_than_were_taken_do_not_come_back() -> None:
    desk = desk_of(0, 1)
    desk.give_back(3)
    assert desk.admitted == 0
    assert not desk.can_admit(2)
