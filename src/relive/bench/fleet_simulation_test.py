import dataclasses
import itertools
from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

from relive.bench import fleet_bounds
from relive.bench import fleet_simulation

_SECONDS = st.integers(1, 20).map(lambda n: n * 1e-4)
_COST = st.builds(fleet_simulation.Cost, fixed=_SECONDS, row=_SECONDS.map(lambda s: s / 200))
_COSTS = st.builds(
    fleet_simulation.Costs,
    write=_COST,
    insert=_COST,
    ask=_SECONDS,
    look=_SECONDS,
    draw=_COST,
    join=_COST,
    step_bytes=st.just(80.0),
    transition_bytes=st.just(150.0),
)
_PLANS = st.builds(
    fleet_simulation.Plan,
    shards=st.integers(1, 5),
    writers=st.integers(1, 4),
    machines=st.integers(1, 3),
    cores=st.integers(1, 3),
    bytes_a_second=st.sampled_from([1e6, 1e8]),
    latency=st.sampled_from([0.0, 1e-3]),
    in_flight=st.integers(1, 3),
    prefetch=st.integers(1, 3),
    spread=st.sampled_from([0.0, 1.0]),
)
_MODES = st.sampled_from(["insert", "sample", "both"])

_MILLISECOND = fleet_simulation.Cost(fixed=0.001)
_SAME = fleet_simulation.Costs(
    write=_MILLISECOND,
    insert=_MILLISECOND,
    ask=0.0005,
    look=0.0005,
    draw=_MILLISECOND,
    join=_MILLISECOND,
    step_bytes=80.0,
    transition_bytes=150.0,
)
_PLAN = fleet_simulation.Plan(shards=1, writers=1, cores=64)


def _steps(costs: fleet_simulation.Costs, plan: fleet_simulation.Plan, seconds: float = 4.0) -> float:
    return fleet_simulation.simulate(costs, plan, "insert", seconds=seconds).inserted


def _with(part: str, cost: fleet_simulation.Cost) -> fleet_simulation.Costs:
    parts: dict[str, Any] = {part: cost}
    return dataclasses.replace(_SAME, **parts)


def test_a_cost_goes_through_both_points() -> None:
    cost = fleet_simulation.Cost.through((10, 0.5), (30, 0.9))
    assert (cost.of(10), cost.of(30)) == pytest.approx((0.5, 0.9))


def test_a_cost_that_falls_with_the_rows_is_the_same_for_all() -> None:
    assert fleet_simulation.Cost.through((10, 0.5), (30, 0.4)) == fleet_simulation.Cost(fixed=0.4)


def test_a_cost_that_starts_below_nothing_starts_at_nothing() -> None:
    assert fleet_simulation.Cost.through((1, 0.1), (2, 1.0)).fixed == 0.0


def test_one_message_in_flight_goes_round_in_the_time_of_all_its_stops() -> None:
    plan = dataclasses.replace(_PLAN, in_flight=1, latency=0.004)
    assert _steps(_SAME, plan) == pytest.approx(100 / 0.010, rel=0.01)


def test_the_slowest_stop_says_how_fast_many_messages_pass() -> None:
    costs = dataclasses.replace(_SAME, insert=fleet_simulation.Cost(fixed=0.003, row=0.00001))
    assert _steps(costs, _PLAN) == pytest.approx(100 / 0.004, rel=0.01)


def test_two_shards_take_twice_what_one_takes_and_on_one_core_no_more() -> None:
    costs = dataclasses.replace(_SAME, insert=fleet_simulation.Cost(fixed=0.01))
    one = dataclasses.replace(_PLAN, writers=4)
    two = dataclasses.replace(one, shards=2)
    assert _steps(costs, two) == pytest.approx(2 * _steps(costs, one), rel=0.01)
    held = dataclasses.replace(two, cores=1)
    assert _steps(costs, held) == pytest.approx(100 / 0.011, rel=0.02)


def test_a_slow_network_says_how_fast_batches_come() -> None:
    plan = dataclasses.replace(_PLAN, shards=4, machines=4, bytes_a_second=1e6, prefetch=8)
    outcome = fleet_simulation.simulate(_SAME, plan, "sample", seconds=20.0)
    size = 256 * 150 + 8 * fleet_simulation.SMALL
    assert outcome.drawn == pytest.approx(256 / size * 1e6, rel=0.02)
    assert outcome.busy["network"] == pytest.approx(1.0, rel=0.02)


def test_on_one_machine_nothing_goes_over_the_network() -> None:
    outcome = fleet_simulation.simulate(_SAME, _PLAN, "both", seconds=1.0)
    assert outcome.busy["network"] == 0.0


def test_a_writer_sends_to_all_shards_in_turn() -> None:
    costs = dataclasses.replace(
        _SAME, write=fleet_simulation.Cost(fixed=1e-5), insert=fleet_simulation.Cost(fixed=0.01)
    )
    three = dataclasses.replace(_PLAN, shards=3, in_flight=9)
    assert _steps(costs, three) == pytest.approx(3 * 100 / 0.01, rel=0.02)


def test_who_does_nothing_takes_nothing() -> None:
    inserts = fleet_simulation.simulate(_SAME, _PLAN, "insert", seconds=1.0)
    samples = fleet_simulation.simulate(_SAME, _PLAN, "sample", seconds=1.0)
    assert (inserts.drawn, inserts.batch_seconds, inserts.busy["learner"]) == (0.0, 0.0, 0.0)
    assert (samples.inserted, samples.messages, samples.busy["writer"]) == (0.0, (0, 0), 0.0)


def test_both_share_a_shard() -> None:
    insert, sample, both = (
        fleet_simulation.simulate(_SAME, dataclasses.replace(_PLAN, prefetch=4), mode)
        for mode in ("insert", "sample", "both")
    )
    assert both.inserted < insert.inserted
    assert both.drawn <= sample.drawn
    assert both.busy["shard"] == pytest.approx(1.0, abs=0.01)


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2)
@hypothesis.given(costs=_COSTS, plan=_PLANS, mode=_MODES, seed=st.integers(0, 9))
def test_the_same_seed_gives_the_same_outcome(
    costs: fleet_simulation.Costs, plan: fleet_simulation.Plan, mode: fleet_simulation.Mode, seed: int
) -> None:
    first, second = (fleet_simulation.simulate(costs, plan, mode, seconds=0.1, seed=seed) for _ in range(2))
    assert first == second


def test_another_seed_gives_another_outcome_where_something_is_drawn() -> None:
    plan = dataclasses.replace(_PLAN, spread=1.0)
    outcomes = [fleet_simulation.simulate(_SAME, plan, "both", seconds=1.0, seed=seed) for seed in (1, 2)]
    assert outcomes[0] != outcomes[1]


def test_service_times_that_vary_keep_their_mean() -> None:
    outcome = fleet_simulation.simulate(
        _SAME, dataclasses.replace(_PLAN, spread=1.0, in_flight=1), "insert", seconds=40.0
    )
    assert outcome.inserted == pytest.approx(100 / 0.002, rel=0.02)


@hypothesis.given(costs=_COSTS, plan=_PLANS, mode=_MODES)
def test_every_message_arrives_once_or_is_among_those_in_flight(
    costs: fleet_simulation.Costs, plan: fleet_simulation.Plan, mode: fleet_simulation.Mode
) -> None:
    sent, arrived = fleet_simulation.simulate(costs, plan, mode, seconds=0.1).messages
    assert 0 <= sent - arrived <= plan.writers * plan.in_flight


@hypothesis.given(costs=_COSTS, plan=_PLANS, mode=_MODES)
def test_nothing_passes_a_bound(
    costs: fleet_simulation.Costs, plan: fleet_simulation.Plan, mode: fleet_simulation.Mode
) -> None:
    plan = dataclasses.replace(plan, spread=0.0)
    seconds = 0.2
    outcome = fleet_simulation.simulate(costs, plan, mode, seconds=seconds)
    step_slack = 2 * plan.writers * plan.in_flight * plan.message_rows / (0.8 * seconds)
    row_slack = 2 * plan.prefetch * plan.batch_size / (0.8 * seconds)
    assert outcome.inserted <= fleet_bounds.least(fleet_bounds.inserting(costs, plan))[1] + step_slack
    assert outcome.drawn <= 1.1 * fleet_bounds.least(fleet_bounds.drawing(costs, plan))[1] + row_slack


@hypothesis.given(costs=_COSTS, plan=_PLANS)
def test_batches_times_their_seconds_are_the_batches_drawn_ahead(
    costs: fleet_simulation.Costs, plan: fleet_simulation.Plan
) -> None:
    """Little's law of a closed system: N = X R."""
    batches_a_second = fleet_bounds.least(fleet_bounds.drawing(costs, plan))[1] / plan.batch_size
    seconds = 200 / batches_a_second
    outcome = fleet_simulation.simulate(costs, plan, "sample", seconds=seconds)
    hypothesis.assume(outcome.drawn * seconds > 80 * plan.batch_size)
    assert outcome.drawn / plan.batch_size * outcome.batch_seconds == pytest.approx(plan.prefetch, rel=0.05)


@pytest.mark.parametrize("part", ["write", "insert"])
def test_slower_parts_insert_no_more(part: str) -> None:
    plan = dataclasses.replace(_PLAN, shards=2, writers=3, cores=2)
    rates = [_steps(_with(part, fleet_simulation.Cost(fixed=0.0005 * times)), plan, 2.0) for times in (1, 2, 5, 11)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.5 * rates[0]


@pytest.mark.parametrize("part", ["draw", "join"])
def test_slower_parts_draw_no_more(part: str) -> None:
    plan = dataclasses.replace(_PLAN, shards=2, cores=2)
    rates = [
        fleet_simulation.simulate(_with(part, fleet_simulation.Cost(fixed=0.0005 * times)), plan, "sample").drawn
        for times in (1, 2, 5, 11)
    ]
    assert all(slower <= 1.01 * faster for faster, slower in itertools.pairwise(rates))
    assert rates[-1] < 0.7 * rates[0]
