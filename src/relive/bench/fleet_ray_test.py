"""A fleet of Ray's, measured for a moment: that the program does what it is asked, not how fast."""

from collections.abc import Iterator
import sys

import pytest

from relive.bench import fleet_programs
from relive.testing import fleet_work

pytest.importorskip("ray")

_WORK = fleet_work.Work(steps=5, batch_size=16, writers=1, capacity=200, message_steps=50)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fleet_programs.Program]:
    """A program with one fleet of two shards."""
    folder = tmp_path_factory.mktemp("fleet")
    told = fleet_programs.config({"two": (2, _WORK)}, folder)
    program = fleet_programs.Program([sys.executable, "-m", fleet_programs.RAY, told], folder / "log")
    yield program
    program.close()


def test_every_mode_does_what_it_says(program: fleet_programs.Program) -> None:
    assert " on ray " in program.version
    insert, sample, both = (program.turn(mode, 0.1, fleet="two") for mode in ("insert", "sample", "both"))
    assert insert.inserted % _WORK.steps == sample.drawn % _WORK.batch_size == 0
    assert min(insert.inserted, sample.drawn, both.inserted, both.drawn) > 0
    assert (insert.drawn, sample.inserted) == (0, 0)
    assert (sample.wrong, both.wrong) == (0, 0)
    assert set(both.processor) == {"writers", "shards", "learner", "rest"}


def test_a_ping_asks_every_shard(program: fleet_programs.Program) -> None:
    turn = program.turn("ping", 0.1, fleet="two")
    assert turn.asked > 0
    assert turn.asked % 2 == 0
    assert (turn.inserted, turn.drawn) == (0, 0)


def test_a_turn_may_have_other_messages_and_batches(program: fleet_programs.Program) -> None:
    assert program.turn("sample", 0.1, fleet="two", batch_size=48).drawn % 48 == 0
    assert program.turn("insert", 0.1, fleet="two", message_steps=5).inserted > 0
