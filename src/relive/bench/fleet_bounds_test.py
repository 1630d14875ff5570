import dataclasses

import numpy as np
import pytest

from relive.bench import fleet_bounds
from relive.bench import fleet_simulation

_COSTS = fleet_simulation.Costs(
    write=fleet_simulation.Cost(fixed=0.002, row=0.00001),
    insert=fleet_simulation.Cost(fixed=0.001, row=0.00003),
    ask=0.0005,
    look=0.0007,
    draw=fleet_simulation.Cost(fixed=0.001, row=0.00001),
    join=fleet_simulation.Cost(fixed=0.0002, row=0.000002),
    step_bytes=80.0,
    transition_bytes=150.0,
)
_PLAN = fleet_simulation.Plan(shards=2, writers=4, cores=2)
_SPREAD = dataclasses.replace(_PLAN, machines=2, latency=0.001)


def test_the_shards_asked_are_as_many_as_a_draw_hits() -> None:
    plan = dataclasses.replace(_PLAN, shards=64, batch_size=100)
    draws = np.random.default_rng(0).integers(0, 64, (2_000, 100))
    hit = np.mean([len(np.unique(draw)) for draw in draws])
    assert fleet_bounds.asked(plan) == pytest.approx(hit, rel=0.01)


def test_the_bounds_of_inserts_are_what_each_resource_has_over_what_a_step_takes() -> None:
    bounds = fleet_bounds.inserting(_COSTS, _PLAN)
    assert bounds == pytest.approx(
        {
            "writers": 4 * 100 / 0.003,
            "shards": 2 * 100 / 0.004,
            "cores": 2 * 100 / 0.007,
            "in flight": 4 * 4 * 100 / 0.007,
        }
    )
    name, steps = fleet_bounds.least(bounds)
    assert name == "cores"
    assert steps == pytest.approx(100 / 0.0035)


def test_the_bounds_of_draws_are_what_each_resource_has_over_what_a_transition_takes() -> None:
    learner = 4 * 0.0005 + 0.0002 + 256 * 0.000002
    draw = 2 * 0.0007 + 2 * 0.001 + 256 * 0.00001
    assert fleet_bounds.drawing(_COSTS, _PLAN) == pytest.approx(
        {
            "shards": 2 * 256 / draw,
            "learner": 256 / learner,
            "cores": 2 * 256 / (draw + learner),
            "in flight": 3 * 256 / (learner + 0.0007 + 0.001 + 128 * 0.00001),
        }
    )


def test_a_learner_on_a_machine_of_its_own_takes_nothing_of_the_shards_cores() -> None:
    here, apart = (fleet_bounds.resources(_COSTS, plan)["cores"] for plan in (_PLAN, _SPREAD))
    assert apart.supply == 2 * here.supply
    assert apart.transition == pytest.approx(here.transition - (4 * 0.0005 + 0.0002 + 256 * 0.000002) / 256)


def test_the_network_binds_where_there_is_one() -> None:
    slow = dataclasses.replace(_SPREAD, bytes_a_second=1e6)
    assert "learner's network" not in fleet_bounds.drawing(_COSTS, _PLAN)
    name, drawn = fleet_bounds.least(fleet_bounds.drawing(_COSTS, slow))
    assert name == "learner's network"
    assert drawn == pytest.approx(256 * 1e6 / (256 * 150 + 4 * 500))
    assert fleet_bounds.inserting(_COSTS, slow)["shards' network"] == pytest.approx(2 * 100 * 1e6 / (8_000 + 500))


@pytest.mark.parametrize("plan", [_PLAN, _SPREAD, dataclasses.replace(_SPREAD, bytes_a_second=1e6)])
def test_alone_is_what_a_simulation_of_one_in_flight_takes(plan: fleet_simulation.Plan) -> None:
    plan = dataclasses.replace(plan, cores=64, writers=1, in_flight=1, prefetch=1, shards=1)
    message, batch = fleet_bounds.alone(_COSTS, plan)
    outcome = fleet_simulation.simulate(_COSTS, plan, "insert", seconds=10.0)
    assert outcome.inserted == pytest.approx(100 / message, rel=0.01)
    assert fleet_simulation.simulate(_COSTS, plan, "sample", seconds=10.0).batch_seconds == pytest.approx(batch)


def test_what_draws_leave_of_a_resource_is_there_for_inserts() -> None:
    shards = fleet_bounds.resources(_COSTS, _PLAN)["shards"]
    drawn = 0.9 * shards.supply / shards.transition
    plan = dataclasses.replace(_PLAN, cores=100)
    beside = fleet_bounds.inserting_beside(_COSTS, plan, drawn)
    assert shards.busy(beside, drawn) == pytest.approx(1.0)
    assert fleet_bounds.inserting_beside(_COSTS, plan, 0.0) == fleet_bounds.inserting(_COSTS, plan)["shards"]
    assert fleet_bounds.inserting_beside(_COSTS, plan, 2 * drawn) == 0.0


def test_what_is_busy_adds_up() -> None:
    resource = fleet_bounds.Resource(supply=2.0, step=0.001, transition=0.0001)
    assert resource.busy(500.0, 2_500.0) == pytest.approx(0.375)
