from collections.abc import Iterable
import functools

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.bench import fleet_machines

_JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=12)


class _Use:
    """Jobs that come to a station at given times; when each went."""

    def __init__(self) -> None:
        self.simulation = fleet_machines.Simulation()
        self.left: dict[int, float] = {}

    def run(
        self, use: fleet_machines.Cores | fleet_machines.Process, jobs: Iterable[tuple[float, float]]
    ) -> list[float]:
        """Yield when each job went, given when each comes and what work it is."""

        def path(number: int, work: float) -> fleet_machines.Path:
            yield use.use(work)
            self.left[number] = self.simulation.now

        def come(number: int, at: float, work: float) -> None:
            self.simulation.after(at, lambda: self.simulation.start(path(number, work)))

        for number, (at, work) in enumerate(jobs):
            come(number, at, work)
        self.simulation.run(until=1e9)
        return [self.left[number] for number in range(len(self.left))]


def _process(use: _Use) -> fleet_machines.Process:
    return fleet_machines.Process(use.simulation, fleet_machines.Cores(use.simulation, 1))


def _poisson(count: int, rate: float, work: np.ndarray) -> list[tuple[float, float]]:
    times = np.random.default_rng(7).exponential(1 / rate, count).cumsum()
    return list(zip(times.tolist(), work.tolist(), strict=True))


def _mean_sojourn(jobs: list[tuple[float, float]], left: list[float]) -> float:
    return float(np.mean([end - came for (came, _), end in zip(jobs, left, strict=True)]))


def test_nobody_waits_where_jobs_come_more_slowly_than_they_are_served() -> None:
    use = _Use()
    process = _process(use)
    assert use.run(process, [(2.0 * i, 1.0) for i in range(5)]) == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert process.tally.sojourn == 5.0


def test_the_line_grows_by_one_second_a_job_where_they_come_twice_as_fast_as_they_are_served() -> None:
    use = _Use()
    assert use.run(_process(use), [(float(i), 2.0) for i in range(5)]) == [2.0, 4.0, 6.0, 8.0, 10.0]


@hypothesis.given(jobs=_JOBS.map(sorted))
def test_a_process_serves_one_after_the_other(jobs: list[tuple[int, int]]) -> None:
    """A job ends its work after the later of its own coming and the end of the one before (Lindley 1952)."""
    ends, end = [], 0
    for at, work in jobs:
        end = max(at, end) + work
        ends.append(float(end))
    use = _Use()
    assert use.run(_process(use), jobs) == ends


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "is_exponential", "sojourn"),
    [
        ("process", True, 2.0),  # M/M/1: 1 / (mu - lambda).
        ("process", False, 1.5),  # M/D/1, Pollaczek and Khinchine: 1 + rho / (2 (1 - rho)).
        ("cores", True, 2.0),  # M/M/1 with processor sharing: as M/M/1.
        ("cores", False, 2.0),  # M/D/1 with processor sharing: only the mean of the work counts.
    ],
)
def test_mean_sojourns_at_half_load_are_those_of_the_theory(kind: str, is_exponential: bool, sojourn: float) -> None:
    use, count = _Use(), 40_000
    work = np.random.default_rng(3).exponential(1.0, count) if is_exponential else np.ones(count)
    jobs = _poisson(count, 0.5, work)
    station = _process(use) if kind == "process" else fleet_machines.Cores(use.simulation, 1)
    assert _mean_sojourn(jobs, use.run(station, jobs)) == pytest.approx(sojourn, rel=0.04)


def test_three_jobs_on_two_cores_take_half_as_long_again() -> None:
    use = _Use()
    assert use.run(fleet_machines.Cores(use.simulation, 2), [(0.0, 1.0)] * 3) == pytest.approx([1.5] * 3)


def test_a_job_has_one_core_at_most() -> None:
    use = _Use()
    assert use.run(fleet_machines.Cores(use.simulation, 8), [(0.0, 1.0), (0.0, 2.0)]) == [1.0, 2.0]


def _shared(jobs: list[tuple[int, int]], cores: int) -> list[float]:
    """Share the cores from event to event, over all jobs each time."""
    left = {number: float(work) for number, (_, work) in enumerate(jobs)}
    here: set[int] = set()
    ends: dict[int, float] = {}
    now = 0.0
    while len(ends) < len(jobs):
        coming = [at for number, (at, _) in enumerate(jobs) if number not in here and number not in ends]
        speed = min(1.0, cores / len(here)) if here else 1.0
        next_end = min((now + left[number] / speed for number in here), default=np.inf)
        moment = min(next_end, min(coming, default=np.inf))
        for number in here:
            left[number] -= (moment - now) * speed
        now = moment
        for number in [number for number in here if left[number] < 1e-9]:
            here.remove(number)
            ends[number] = now
        here |= {n for n, (at, _) in enumerate(jobs) if n not in ends and n not in here and at <= now}
    return [ends[number] for number in range(len(jobs))]


@hypothesis.given(jobs=_JOBS, cores=st.integers(1, 4))
def test_cores_share_as_a_naive_twin_does(jobs: list[tuple[int, int]], cores: int) -> None:
    use = _Use()
    station = fleet_machines.Cores(use.simulation, cores)
    assert use.run(station, jobs) == pytest.approx(_shared(jobs, cores), abs=1e-6)
    assert station.tally.busy == sum(work for _, work in jobs)


@hypothesis.given(jobs=_JOBS, cores=st.integers(1, 4), is_process=st.booleans())
def test_how_many_are_there_over_time_is_how_long_each_was_there(
    jobs: list[tuple[int, int]], cores: int, is_process: bool
) -> None:
    """Little's law: the area under the number in the station is the sum of the sojourns, once all have gone."""
    use = _Use()
    shared = fleet_machines.Cores(use.simulation, cores)
    station = fleet_machines.Process(use.simulation, shared) if is_process else shared
    left = use.run(station, jobs)
    tally = station.tally
    assert (tally.arrived, tally.left) == (len(jobs), len(jobs))
    assert tally.area == pytest.approx(tally.sojourn)
    assert tally.sojourn == pytest.approx(sum(end - at for (at, _), end in zip(jobs, left, strict=True)))


def test_what_waits_in_line_counts_as_there() -> None:
    use = _Use()
    process = _process(use)
    use.run(process, [(0.0, 3.0), (1.0, 1.0)])
    assert (process.tally.area, process.tally.sojourn, process.tally.busy) == (6.0, 6.0, 4.0)


def test_messages_go_over_a_link_one_after_the_other_and_are_under_way_together() -> None:
    simulation = fleet_machines.Simulation()
    link = fleet_machines.Link(simulation, 100.0, 0.5)
    arrived = []

    def message() -> fleet_machines.Path:
        yield link.send(100.0)
        arrived.append(simulation.now)

    for _ in range(2):
        simulation.start(message())
    simulation.after(10.0, lambda: simulation.start(message()))
    simulation.run(until=20.0)
    assert arrived == [1.5, 2.5, 11.5]
    assert (link.tally.busy, link.tally.sojourn) == (3.0, 4.0)


def test_who_finds_no_place_has_the_next_that_is_given_back() -> None:
    simulation = fleet_machines.Simulation()
    places = fleet_machines.Places(simulation, 2)
    seen = []

    def guest(number: int) -> fleet_machines.Path:
        yield places.take()
        seen.append((simulation.now, number))
        yield simulation.sleep(1.0 + number)
        places.give()

    for number in range(4):
        simulation.start(guest(number))
    simulation.run(until=2.5)
    assert seen == [(0.0, 0), (0.0, 1), (1.0, 2), (2.0, 3)]
    simulation.run(until=9.0)
    simulation.start(guest(0))
    simulation.run(until=9.0)
    assert seen[-1] == (9.0, 0)


def test_a_wait_for_many_ends_with_the_last_of_them() -> None:
    simulation = fleet_machines.Simulation()
    ends = []

    def sleeper(seconds: float) -> fleet_machines.Path:
        yield simulation.sleep(seconds)

    def waiter(paths: list[fleet_machines.Path]) -> fleet_machines.Path:
        yield simulation.all_of(paths)
        ends.append(simulation.now)

    simulation.start(waiter([sleeper(1.0), sleeper(3.0), sleeper(2.0)]))
    simulation.run(until=5.0)
    assert ends == [3.0]


def test_what_is_due_at_one_moment_happens_in_the_order_of_asking() -> None:
    simulation = fleet_machines.Simulation()
    seen: list[int] = []
    for number in range(5):
        simulation.after(1.0, functools.partial(seen.append, number))
    simulation.run(until=1.0)
    assert seen == [0, 1, 2, 3, 4]


def test_the_clock_stands_where_it_was_run_to() -> None:
    simulation = fleet_machines.Simulation()
    seen: list[float] = []
    simulation.after(2.0, lambda: seen.append(simulation.now))
    simulation.run(until=1.0)
    assert (simulation.now, seen) == (1.0, [])
    simulation.run(until=3.0)
    assert (simulation.now, seen) == (3.0, [2.0])
