import gc

import pytest

from relive.bench import rounds


class Clock:
    """A clock that moves when a call says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.called: list[str] = []

    def __call__(self) -> float:
        return self.now

    def taking(self, name: str, seconds: list[float]) -> rounds.Call:
        """Return a call that takes those seconds, one after the other, and the last of them from then on."""

        def call() -> None:
            self.called.append(name)
            self.now += seconds.pop(0) if len(seconds) > 1 else seconds[0]

        return call


def test_every_call_has_its_turn_in_every_round() -> None:
    clock = Clock()
    calls = {name: clock.taking(name, [1.0]) for name in "ABC"}
    after: list[str] = []
    rounds.interleaved(calls, rounds=3, seconds=1.0, after=after.append, clock=clock)
    assert "".join(clock.called) == "ABC" + 3 * "ABC"  # Once each to find out how long it takes.
    assert "".join(after) == 3 * "ABC"


def test_the_median_stands_between_the_fastest_and_the_slowest_round() -> None:
    clock = Clock()
    calls = {"A": clock.taking("A", [1.0, 5.0, 2.0, 9.0, 3.0, 4.0]), "B": clock.taking("B", [7.0])}
    timings = rounds.interleaved(calls, rounds=5, seconds=1.0, clock=clock)
    assert timings["A"] == rounds.Timing(median=4.0, low=2.0, high=9.0, rounds=5, repeats=1)
    assert timings["B"] == rounds.Timing(median=7.0, low=7.0, high=7.0, rounds=5, repeats=1)


def test_a_short_call_is_repeated_until_a_turn_is_long() -> None:
    clock = Clock()
    timings = rounds.interleaved({"A": clock.taking("A", [0.125])}, rounds=2, seconds=2.0, clock=clock)
    assert timings["A"] == rounds.Timing(median=0.125, low=0.125, high=0.125, rounds=2, repeats=16)


def test_a_call_that_takes_no_time_at_all_is_not_repeated_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_MOST", 8)
    timings = rounds.interleaved({"A": lambda: None}, rounds=1, seconds=1.0, clock=lambda: 0.0)
    assert timings["A"].repeats == 8


def test_a_part_of_a_call_takes_its_share() -> None:
    whole = rounds.Timing(median=4.0, low=2.0, high=8.0, rounds=7, repeats=3)
    assert whole.per(4) == rounds.Timing(median=1.0, low=0.5, high=2.0, rounds=7, repeats=3)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_off_while_timing_and_as_before_after_it(is_enabled: bool) -> None:
    seen: list[bool] = []
    try:
        if not is_enabled:
            gc.disable()
        rounds.interleaved({"A": lambda: None}, rounds=1, seconds=0.0, after=lambda name: seen.append(gc.isenabled()))
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
    assert seen == [False]
