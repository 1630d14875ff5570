import json
import pathlib
import sys

import numpy as np
import pytest

from relive.bench import fleet_programs
from relive.bench import tasks
from relive.testing import fleet_work

_ECHO = """
import json, sys
print(json.dumps({"version": "echo 1"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["mode"] == "ping":
        sys.exit("it broke")
    answer = {"inserted": asked.get("message_steps", 0), "insert_seconds": asked["seconds"], "drawn": 0}
    print(json.dumps({**answer, "draw_seconds": 0.0, "processor": {"rest": 1.0}}), flush=True)
"""
_STUBBORN = """
import json, time
print(json.dumps({"version": "1"}), flush=True)
time.sleep(60)
"""


def _program(code: str, folder: pathlib.Path) -> fleet_programs.Program:
    return fleet_programs.Program([sys.executable, "-c", code], folder / "log")


def test_a_program_answers_what_came_of_a_turn(tmp_path: pathlib.Path) -> None:
    program = _program(_ECHO, tmp_path)
    try:
        assert program.version == "echo 1"
        turn = program.turn("insert", 0.5, fleet="f", message_steps=100)
        assert (turn.steps, turn.transitions, turn.processor) == (200.0, 0.0, {"rest": 1.0})
        assert program.turn("both", 2.0, fleet="f").steps == 0.0
    finally:
        program.close()


def test_a_rate_is_what_was_drawn_over_the_time_of_drawing() -> None:
    turn = fleet_programs.Turn(inserted=0, insert_seconds=0.0, drawn=512, draw_seconds=0.25, processor={})
    assert turn.transitions == 2048.0


def test_a_program_that_ends_too_early_is_an_error_with_what_it_said(tmp_path: pathlib.Path) -> None:
    program = _program(_ECHO, tmp_path)
    try:
        with pytest.raises(tasks.CannotError, match="^ended: it broke$"):
            program.turn("ping", 0.5, fleet="f")
        with pytest.raises(tasks.CannotError, match="^ended: it broke$"):
            program.turn("sample", 0.5, fleet="f")
    finally:
        program.close()


def test_a_program_that_does_not_start_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(tasks.CannotError, match="^ended: it said nothing$"):
        _program("", tmp_path)


def test_a_program_that_does_not_end_is_ended(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_programs, "_PATIENCE", 0.01)
    program = _program(_STUBBORN, tmp_path)
    program.close()
    assert program.is_running is False


def test_a_program_is_told_of_each_fleet_and_where_its_episodes_are(tmp_path: pathlib.Path) -> None:
    work = fleet_work.Work(steps=3, capacity=50)
    told = json.loads(fleet_programs.config({"one": (1, work), "two": (2, work)}, tmp_path))
    assert {name: fleet["shards"] for name, fleet in told.items()} == {"one": 1, "two": 2}
    assert (told["two"]["steps"], told["two"]["capacity"]) == (3, 50)
    with np.load(told["two"]["path"]) as episodes:
        assert episodes["actions"].shape[1:] == (3,)
