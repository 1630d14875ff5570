import dataclasses
import itertools
import json
import pathlib
import sys
import time
from typing import Any

import pytest

from relive.bench import fleet
from relive.bench import fleet_measuring
from relive.bench import fleet_processor
from relive.bench import fleet_programs
from relive.bench import tasks
from relive.testing import fleet_work

_SETTINGS = fleet_measuring.Settings(rounds=3, seconds=0.5)
_KINDS = {
    "small": fleet_measuring.Kind(work=fleet_work.Work(capacity=25_000, steps=5)),
    "large": fleet_measuring.Kind(work=fleet_work.Work(shape=(8,), capacity=10, steps=5, message_steps=10)),
}


class _Fake:
    """A program whose parts take what is written here, and that was asked what it keeps."""

    made: list["_Fake"]
    missing: str = ""

    def __init__(self, arguments: list[str], log: pathlib.Path) -> None:
        if arguments[0] == self.missing:
            raise tasks.CannotError("ended: nothing there")
        self.version = f"fake {len(self.made)}"
        self.turns: list[tuple[str, str]] = []
        self.is_closed = False
        self.fleets = json.loads(arguments[-1])
        self.made.append(self)

    def turn(self, mode: str, seconds: float, *, fleet: str, **asked: int) -> fleet_programs.Turn:
        assert seconds == _SETTINGS.seconds
        self.turns.append((mode, fleet))
        steps, rows = asked.get("message_steps", 1000), asked.get("batch_size", 256)
        parts: dict[str, float] = {"writers": 0.0, "shards": 0.0, "learner": 0.0, "rest": 0.25}
        answer: dict[str, Any] = {"inserted": 0, "insert_seconds": 0.0, "drawn": 0, "draw_seconds": 0.0}
        if mode in ("insert", "both"):
            answer |= {"inserted": 10 * steps, "insert_seconds": 0.5}
            parts["writers"] += 10 * (0.001 + 0.00001 * steps)
            parts["shards"] += 10 * (0.002 + 0.00002 * steps)
        if mode in ("sample", "both"):
            answer |= {"drawn": 10 * rows, "draw_seconds": 0.5, "wrong": 1 if mode == "both" else 0}
            parts["learner"] += 10 * (2 * 0.003 + 0.0005 + 0.00003 * rows)
            parts["shards"] += 10 * (0.004 + 0.005 + 0.00004 * rows)
        if mode == "ping":
            answer |= {"asked": 20}
            parts["learner"] += 20 * 0.003
            parts["shards"] += 20 * 0.004
        return fleet_programs.Turn(**answer, processor=parts)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[_Fake]:
    """The programs that a run has started."""
    programs: list[_Fake] = []
    monkeypatch.setattr(_Fake, "made", programs, raising=False)
    monkeypatch.setattr(_Fake, "missing", "")
    monkeypatch.setattr(fleet_programs, "Program", _Fake)
    clock = iter(range(10**6))
    # From one look to the next everybody has taken a second, and of it this process and its children three quarters.
    monkeypatch.setattr(fleet_processor, "busy_seconds", lambda: float(next(clock)))
    own = iter(range(10**6))
    monkeypatch.setattr(fleet_processor, "seconds_by_process", lambda: {1: 0.75 * next(own), 2: 7.0})
    hours = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: 0.5 * next(hours))
    return programs


def _run(reverb: str | None = "python") -> dict[str, Any]:
    return fleet_measuring.run(reverb, _SETTINGS, _KINDS)


def test_systems_take_turns_in_every_mode_and_full(made: list[_Fake]) -> None:
    _run()
    own, reverb = made
    filled = own.turns[: own.turns.index(("sample", "relive-1"))]
    assert filled.count(("insert", "relive-4")) == 4
    assert [turn for turn in own.turns if turn[1] == "relive-2"] == [
        *[("insert", "relive-2")] * 3,
        *[(mode, "relive-2") for _ in range(3) for mode in ("insert", "sample", "both")],
    ]
    assert reverb.turns == [
        *[("insert", "reverb")] * 3,
        *[(mode, "reverb") for _ in range(3) for mode in ("insert", "sample", "both")],
    ]
    assert own.is_closed
    assert reverb.is_closed


def test_every_fleet_has_the_work_of_its_kind(made: list[_Fake]) -> None:
    _run()
    told = {name: (fleet["shards"], fleet["shape"], fleet["capacity"]) for name, fleet in made[0].fleets.items()}
    assert told == {
        "relive-1": (1, [16], 25_000),
        "relive-2": (2, [16], 25_000),
        "relive-4": (4, [16], 25_000),
        "relive-1-large": (1, [8], 10),
    }
    assert list(made[1].fleets) == ["reverb"]


def test_the_costs_are_those_of_the_parts() -> None:
    for told in _run()["kinds"].values():
        costs = told["costs"]
        assert costs["write"] == pytest.approx({"fixed": 0.001, "row": 0.00001})
        assert costs["insert"] == pytest.approx({"fixed": 0.002, "row": 0.00002})
        assert (costs["ask"], costs["look"]) == pytest.approx((0.003, 0.004))
        assert costs["draw"] == pytest.approx({"fixed": 0.005, "row": 0.00004})
        assert costs["join"] == pytest.approx({"fixed": 0.0005, "row": 0.00003})


def test_turns_in_which_others_took_much_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take more from turn to turn, and each inserts more than the one before: the last of three is left out."""
    busy = itertools.accumulate(itertools.count())
    monkeypatch.setattr(fleet_processor, "busy_seconds", lambda: float(next(busy)))
    monkeypatch.setattr(fleet_processor, "seconds_by_process", dict)
    usual = _Fake.turn

    def turn(self: _Fake, mode: str, seconds: float, *, fleet: str, **asked: int) -> fleet_programs.Turn:
        answer = usual(self, mode, seconds, fleet=fleet, **asked)
        return dataclasses.replace(answer, inserted=answer.inserted * self.turns.count((mode, fleet)))

    monkeypatch.setattr(_Fake, "turn", turn)
    steps = [point["steps"] for point in _run()["points"] if point["mode"] == "both"]
    assert steps == [{"median": 30_000.0, "low": 20_000.0, "high": 40_000.0}] * 4


def test_points_are_medians_and_say_what_others_took() -> None:
    points = {(point["system"], point["mode"]): point for point in _run()["points"]}
    assert len(points) == 12
    both = points["relive-2", "both"]
    assert (both["shards"], both["wrong"]) == (2, 3)
    assert both["steps"] == {"median": 20_000.0, "low": 20_000.0, "high": 20_000.0}
    assert both["transitions"]["median"] == 5_120.0
    assert both["cores"]["rest"] == 0.5
    assert both["others"] == 0.5
    assert points["reverb", "insert"]["transitions"]["median"] == 0.0


def test_reverb_is_left_out_with_a_word_where_it_is_not(made: list[_Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(None)["left_out"].startswith("reverb was left out: give --reverb")
    monkeypatch.setattr(_Fake, "missing", "nowhere")
    measured = _run("nowhere")
    assert measured["left_out"] == "reverb was left out: it ended: nothing there"
    assert {point["system"] for point in measured["points"]} == {"relive-1", "relive-2", "relive-4"}
    assert all(program.is_closed for program in made)


def test_the_command_prints_and_writes_what_it_measured(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_QUICK", _SETTINGS)
    monkeypatch.setattr(fleet, "_SMALL", _KINDS)
    arguments = [
        "--quick",
        "--reverb",
        sys.executable,
        "--json",
        str(tmp_path / "a"),
        "--markdown",
        str(tmp_path / "b"),
    ]
    assert fleet.main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "b").read_text(encoding="utf-8")
    assert printed == fleet.page(json.loads((tmp_path / "a").read_text(encoding="utf-8")))
    assert "| relive-2 | 20,000 (20,000 to 20,000) | 5,120 (5,120 to 5,120) | 20,000" in printed
    assert "Wrong transitions in the last batch of each turn: 12." in printed
    assert "left out" not in printed


def test_the_page_says_who_was_left_out() -> None:
    assert "\nNote: reverb was left out: give --reverb PYTHON" in fleet.page(_run(None))


def test_the_command_ends_with_a_word_where_relive_cannot_be_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Fake, "missing", sys.executable)
    with pytest.raises(SystemExit, match="^1$"):
        fleet.main([])
    assert capsys.readouterr().err == "relive's fleets could not be measured: the program ended: nothing there\n"


def test_the_number_of_rounds_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    measured = _run()

    def run(*arguments: Any) -> dict[str, Any]:
        seen.append(arguments)
        return measured

    monkeypatch.setattr(fleet_measuring, "run", run)
    assert fleet.main(["--rounds", "7"]) == 0
    assert seen == [(None, fleet_measuring.Settings(rounds=7), fleet_measuring.KINDS)]
