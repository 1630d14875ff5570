import re

import pytest

from relive.bench import coroutines

SIZE = coroutines.Size(actors=20, episodes=2, rounds=1)


@pytest.mark.parametrize("row", coroutines.ROWS, ids=lambda row: row.label)
async def test_every_step_of_a_crowd_is_counted(row: coroutines.Row) -> None:
    measured = await coroutines.measured(row.make(SIZE), SIZE.actors)
    assert measured.seconds > 0
    has_buffer = "Buffer" in row.label or "learner" in row.label
    assert measured.steps == (2_000 if has_buffer else 0)
    assert (measured.samples > 0) == ("learner" in row.label)


async def test_a_learner_that_is_held_to_the_actors_draws_each_step_once() -> None:
    rows = [row for row in coroutines.ROWS if row.label.endswith("1 sample a step")]
    assert len(rows) == 2
    for row in rows:
        measured = await coroutines.measured(row.make(SIZE), SIZE.actors)
        assert abs(measured.samples - (measured.steps - 500)) <= 1_024


def test_ratios_are_to_the_medians_of_coroutines_that_do_nothing() -> None:
    def found(*seconds: float, samples: int = 0) -> list[coroutines.Measured]:
        return [coroutines.Measured(one, 2_000, samples) for one in seconds]

    results = [found(0.001, 0.002, 9.0), *(found(0.02, 0.01, 0.03, samples=100) for _ in coroutines.ROWS[1:])]
    results[-2] = found(0.004)
    table = list(coroutines.lines(SIZE, results))
    assert table[0] == "20 coroutines, 2,000 steps a round, medians of 1 rounds"
    assert re.search(r"empty function +1\.0 +1\.00 +1,000,000$", table[2])
    assert re.search(r"deque +10\.0 +10\.00 +100,000 +5,000$", table[3])
    assert re.search(r"same, then sleep\(0\) +1\.0 +2\.00 +500,000$", table[-3])
    assert re.search(r"EpisodeReplayBuffer, then sleep\(0\) +5\.0 +10\.00 +100,000 +5,000$", table[-2])
    assert len(table) == len(coroutines.ROWS) + 3


@pytest.mark.parametrize("one_in", [4, pytest.param(1, marks=pytest.mark.long)])
def test_a_quick_run_prints_a_line_for_each_crowd(
    one_in: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coroutines, "ROWS", coroutines.ROWS[::one_in])
    coroutines.main(["--quick"])
    out = capsys.readouterr().out
    assert out.startswith("50 coroutines, 2,500 steps a round, medians of 2 rounds\n")
    for row in coroutines.ROWS:
        assert row.label in out


def test_the_full_size_is_a_thousand_coroutines() -> None:
    assert (coroutines.Size().actors, coroutines.Size().steps) == (1_000, 100_000)
