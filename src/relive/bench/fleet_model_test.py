from collections.abc import Iterator
import contextlib
import dataclasses
import io
import json
import pathlib
from typing import Any

import pytest

from relive.bench import fleet_bounds
from relive.bench import fleet_model
from relive.bench import fleet_simulation
from relive.testing import fleet_work

_COSTS = fleet_simulation.Costs(
    write=fleet_simulation.Cost(fixed=0.001, row=0.000002),
    insert=fleet_simulation.Cost(fixed=0.001, row=0.000002),
    ask=0.0005,
    look=0.0004,
    draw=fleet_simulation.Cost(fixed=0.0005, row=0.000001),
    join=fleet_simulation.Cost(fixed=0.0005, row=0.000001),
    step_bytes=80.0,
    transition_bytes=180.0,
)
_HARDWARE = fleet_model.Hardware(machines=4, steps=1e6, gigabytes=2.0, writers=2)
_SECONDS = 1.0


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fleet_model, "_SECONDS", _SECONDS)
        patched.setattr(fleet_model, "_EVENTS", 1_000)
        yield


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What a run would have written had the machine been the model."""
    return _told()


@pytest.fixture(scope="module")
def page(told: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, _short: None) -> str:
    """What the command prints and writes."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "told").write_text(json.dumps(told), encoding="utf-8")
    asked = ["--machines", "4", "--steps", "1e6", "--gigabytes", "2", "--writers", "2"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert fleet_model.main([str(folder / "told"), *asked, "--markdown", str(folder / "tables")]) == 0
    assert printed.getvalue() == (folder / "tables").read_text(encoding="utf-8")
    return printed.getvalue()


def _told(others: float = 0.25) -> dict[str, Any]:
    work = fleet_work.Work()
    points = []
    for shards in (1, 2, 4):
        for mode in ("insert", "sample", "both"):
            plan = fleet_simulation.Plan(shards=shards, writers=2, cores=2 - others - 0.25, message_rows=1000)
            outcome = fleet_simulation.simulate(_COSTS, plan, mode, seconds=_SECONDS)
            points.append(
                {
                    "system": f"relive-{shards}",
                    "shards": shards,
                    "mode": mode,
                    "steps": {"median": outcome.inserted},
                    "transitions": {"median": outcome.drawn},
                    "cores": {"rest": 0.25},
                    "others": others,
                }
            )
    points.append({"system": "reverb", "shards": 1, "mode": "insert"})
    kind: dict[str, Any] = {"costs": dataclasses.asdict(_COSTS), "work": dataclasses.asdict(work), "stored_bytes": 81.0}
    image = {**kind, "work": {**kind["work"], "message_steps": 10}, "stored_bytes": 1_000.0}
    return {
        "machine": {"cores": "2"},
        "work": dataclasses.asdict(work),
        "points": points,
        "kinds": {"small": kind, "image": image},
    }


def test_a_machine_that_is_as_the_model_says_is_met_exactly(told: dict[str, Any]) -> None:
    checked = fleet_model.check(json.loads(json.dumps(told)))
    assert [(one.shards, one.mode, one.what) for one in checked[:4]] == [
        (1, "insert", "steps"),
        (1, "sample", "transitions"),
        (1, "both", "steps"),
        (1, "both", "transitions"),
    ]
    assert len(checked) == 12
    assert [one.ratio for one in checked] == [1.0] * 12
    assert {one.cores for one in checked} == {1.5}


def test_hardware_is_asked_about_in_its_own_units() -> None:
    plan = dataclasses.replace(_HARDWARE, gigabits=8.0, microseconds=125.0).plan(
        dataclasses.asdict(fleet_work.Work()), 512
    )
    assert (plan.bytes_a_second, plan.latency) == (1e9, 125 * 1e-6)
    assert (plan.shards, plan.machines, plan.writers, plan.cores) == (4, 4, 8, 16)
    assert (plan.batch_size, plan.message_rows, plan.in_flight, plan.prefetch) == (512, 1000, 4, 3)


def test_simulated_rates_are_below_their_bounds(told: dict[str, Any]) -> None:
    for one in fleet_model.check(told):
        assert (one.bound is None) == (one.mode == "both")
        if one.bound:
            assert one.simulated <= 1.02 * one.bound[1]


def test_there_is_always_some_of_a_core_left(told: dict[str, Any]) -> None:
    busy = {**told, "points": [{**told["points"][0], "others": 5.0}]}
    assert fleet_model.check(busy)[0].cores == 0.1


def _table(page: str, head: str) -> list[list[str]]:
    lines = page[page.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_memory_is_what_the_steps_take_of_each_machine(page: str) -> None:
    rows = _table(page, "| kind | bytes a stored step")
    assert rows[1] == ["image", "1,000", "0.2", "8,000,000"]


def test_the_page_says_what_binds_inserts(page: str) -> None:
    rows = _table(page, "| kind | binds first | steps/s")
    plan = _HARDWARE.plan(dataclasses.asdict(fleet_work.Work()), 256)
    name, steps = fleet_bounds.least(fleet_bounds.inserting(_COSTS, plan))
    assert rows[0][:3] == ["small", name, f"{steps:,.0f}"]
    simulated = float(rows[0][4].replace(",", ""))
    assert simulated == pytest.approx(steps, rel=0.05)


def test_the_page_says_what_binds_draws_of_each_size(page: str) -> None:
    rows = _table(page, "| kind | batch | binds first")
    assert [row[1] for row in rows] == ["256", "2,048", "16,384"] * 2
    for row in rows:
        bound, simulated = (float(row[place].replace(",", "")) for place in (3, 5))
        assert simulated == pytest.approx(bound, rel=0.05)
        assert row[2] == "learner"


def test_a_cost_is_shown_with_both_its_parts(page: str) -> None:
    rows = _table(page, "| milliseconds of a core")
    assert rows[0][1] == "1.00 + 0.00200 n"
    assert rows[2][1] == "0.50"


def test_no_file_is_written_that_was_not_asked_for(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_model, "page", lambda measured, hardware: f"{measured} {hardware.cores}\n")
    (tmp_path / "told").write_text("{}", encoding="utf-8")
    assert fleet_model.main([str(tmp_path / "told"), "--cores", "3"]) == 0
    assert capsys.readouterr().out == "{} 3\n"
    assert [path.name for path in tmp_path.iterdir()] == ["told"]
