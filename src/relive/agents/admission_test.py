"""The rule of an admission, and what is refused; `handing_out_machine_test` has what becomes of tickets."""

import math
from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive.agents import admission


def counter_of(max_lag: int, per_version: int, max_running: int | None = None) -> admission.AdmissionCounter:
    return admission.AdmissionCounter(relive.Admission(max_lag, per_version, max_running), lambda: None, lambda: None)


@hypothesis.given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 50), st.integers(1, 1000))
def test_the_rule_is_equation_3_of_areal(max_lag: int, per_version: int, version: int, admitted: int) -> None:
    rule = relive.Admission(max_lag, per_version)
    is_within = admitted <= rule._most_admitted(version)
    assert is_within == (math.floor((admitted - 1) / per_version) <= version + max_lag)


@hypothesis.given(st.integers(0, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_no_trained_episode_is_older_than_the_bound(max_lag: int, per_version: int, random: Any) -> None:
    """Actors start at random as soon as they may; the learner takes `per_version` in the order in which they end."""
    counter = counter_of(max_lag, per_version)
    counter.begin(0, 0)
    version, running, ended, lags = 0, [], [], []
    for _ in range(200):
        action = random.randrange(3)
        if action == 0 and counter.can_admit(1):
            counter.use(counter.admit(1), "e")
            counter.started()
            running.append(version)
        elif action == 1 and running:
            ended.append(running.pop(random.randrange(len(running))))
        elif action == 2 and len(ended) >= per_version:
            lags += [version - started for started in ended[:per_version]]
            del ended[:per_version]
            version += 1
            counter.move_on(1)
    assert counter.admitted <= (version + max_lag + 1) * per_version
    # Those that run may fall behind those that started later: what the bound counts is how many come before them.
    assert len(running) + len(ended) <= (max_lag + 1) * per_version
    if max_lag == 0 and lags:
        assert max(lags) == 0


def test_a_ticket_must_be_one_of_this_counter() -> None:
    counter = counter_of(0, 1)
    with pytest.raises(
        relive.ArgumentError, match=r"^ticket must be of this buffer, and not from before it was loaded"
    ):
        counter.check(counter_of(0, 1).admit(1), "start_episode")
    with pytest.raises(relive.ArgumentTypeError, match="^ticket must be an instance of Ticket, got 'x'$"):
        counter.check("x", "start_episode")
    used = counter.admit(1)
    counter.use(used, "e")
    with pytest.raises(relive.ArgumentError, match="^ticket must admit another episode, got one that is used up"):
        counter.check(used, "start_episode")
    message = r"^start_episode needs a ticket with Admission\(.*1\): await buffer.admit\(\) first$"
    with pytest.raises(relive.ArgumentError, match=message):
        counter.check(None, "start_episode")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: relive.Admission(-1, 1), "^max_lag must be at least 0, got -1$"),
        (lambda: relive.Admission(0, 0), "^episodes_per_version must be at least 1, got 0$"),
        (lambda: relive.Admission(0.5, 1), "^max_lag must be an integer"),  # type: ignore[arg-type]
        (lambda: relive.Admission(1, 1, max_running=0), "^max_running must be at least 1, got 0$"),
        (
            lambda: counter_of(9, 9, 2).checked_count(3),
            r"^count must be at most 2 with Admission\(.*max_running=2\), got 3$",
        ),
        (lambda: counter_of(1, 2).checked_count(0), "^count must be at least 1, got 0$"),
        (
            lambda: counter_of(1, 2).checked_count(5),
            r"^count must be at most 4 with Admission\(max_lag=1, episodes_per_version=2\), got 5$",
        ),
    ],
)
def test_settings_of_admissions_are_checked(make: Any, message: str) -> None:
    with pytest.raises(relive.ArgumentError, match=message):
        make()
    assert counter_of(1, 2).checked_count(4) == 4


def test_an_error_says_how_many_are_admitted() -> None:
    counter = counter_of(0, 2)
    counter.use(counter.admit(1), "e")
    counter.started()
    ticket = counter.admit(1)
    error = counter.held_back("admit_nowait")
    assert ticket.left == 1
    assert isinstance(error, relive.NotReadyError)
    assert str(error) == (
        "admit_nowait held back by Admission(max_lag=0, episodes_per_version=2) with 2 episodes admitted: "
        "set_policy_version as the learner moves on, or await admit"
    )
    message = "with 2 episodes running: end one, or await admit$"
    with pytest.raises(relive.NotReadyError, match=message):
        counter = counter_of(9, 9, 2)
        counter.running = 2
        raise counter.held_back("admit_nowait")
