"""What is said about a run: table, page, picture and figures."""

import dataclasses
import json
import pathlib

import pytest

from relive.bench import report
from relive.bench import results


def timed(peer: str, microseconds: float, **wrong: float) -> results.Outcome:
    """Return the outcome of a peer that took that long, and what was wrong with it."""
    seconds = microseconds / 1e6
    timing = results.Timing(median=seconds, low=seconds / 2, high=seconds * 2, rounds=7, repeats=1)
    return results.Outcome(peer=peer, timing=timing, wrong=wrong)


DRAW = results.Row(
    name="uniform",
    title="a draw",
    family="uniform",
    unit="microseconds a batch",
    outcomes=[
        timed("relive", 100.0),
        timed("cpprb", 50.0, reward=0.5),
        timed("sb3", 80.0),
        timed("tianshou", 300.0),
        results.Outcome(peer="torchrl", reason="does not load"),
        results.Outcome(peer="reverb", reason="does not load"),
        timed("take", 10.0),
    ],
    why="They check nothing.",
)
MEMORY = results.Row(
    name="memory",
    title="memory of a step",
    family="memory",
    unit="bytes a step",
    outcomes=[
        results.Outcome(peer="relive", bytes_a_step=40.0),
        results.Outcome(peer="sb3", bytes_a_step=52.0),
        results.Outcome(peer="torchrl", reason="does not load"),
    ],
)
RUN = results.Run(
    command="relive bench --quick",
    facts={"python": "3.11"},
    versions={"relive": "", "sb3": "2.9"},
    settings="Medians of 7 rounds",
    rows=[DRAW, MEMORY],
)


def test_the_fastest_is_the_fastest_that_is_right() -> None:
    assert DRAW.fastest is not None
    assert DRAW.fastest.peer == "sb3"
    assert DRAW.ratio(DRAW.outcomes[0], DRAW.fastest) == 1.25


def test_without_relive_there_is_no_ratio_to_it() -> None:
    row = dataclasses.replace(DRAW, outcomes=DRAW.outcomes[1:])
    assert row.own is None
    assert row.ratio(row.outcomes[0], row.own) is None
    assert "x relive" in row.table()
    assert "| sb3 80 |  |" in report.page(dataclasses.replace(RUN, rows=[row]), None)


def test_the_table_lists_the_fastest_first_and_limits_last() -> None:
    assert DRAW.table().splitlines() == [
        "",
        "uniform: a draw, microseconds a batch",
        "             median        low       high    x relive",
        "  cpprb        50.00      25.00     100.00       0.50  WRONG: reward in 50.0%",
        "  sb3          80.00      40.00     160.00       0.80",
        "  relive      100.00      50.00     200.00       1.00",
        "  tianshou    300.00     150.00     600.00       3.00",
        "  take         10.00       5.00      20.00       0.10  a limit",
        "  not measured: torchrl, reverb: does not load",
    ]
    assert "  sb3         52.00      52.00      52.00       1.30" in MEMORY.table().splitlines()


def test_the_page_says_who_is_ahead_and_who_is_wrong() -> None:
    page = report.page(RUN, "picture.png")
    for line in (
        "# Benchmarks",
        "relive bench --quick",
        "Medians of 7 rounds.",
        "| python | 3.11 |",
        "Measured: sb3 2.9.",
        "![Every peer in every workload, as times of relive](picture.png)",
        "| a draw | 100 | sb3 80 | 1.25 | 10.00 |  |",
        "| memory of a step | 40 | sb3 52 | 0.77 |  |  |",
        "- **a draw**: 2.00 times cpprb, which is wrong there (C++); 1.25 times sb3 (numpy, and tensors of torch). "
        "They check nothing.",
        "| cpprb | uniform | reward in 50.0% |",
        "| torchrl | everywhere | does not load |",
        "| reverb | uniform | does not load |",
        "### A draw",
        "| **relive** | 100 | 50.00 to 200.00 | 1.00 | right |",
        "| take | 10 | 5.00 to 20.00 | 0.10 | limit |",
        "| sb3 | 52 |  | 1.30 |  |",
    ):
        assert line in page.splitlines()
    assert "tianshou (" not in page


def test_a_run_without_a_fault_says_so() -> None:
    row = dataclasses.replace(MEMORY, outcomes=MEMORY.outcomes[:2])
    page = report.page(dataclasses.replace(RUN, rows=[row]), None)
    for line in ("Nowhere in this run.", "Nothing was found in this run.", "All were measured everywhere."):
        assert line in page.splitlines()
    assert "![" not in page


def test_the_figures_survive_json() -> None:
    written = json.loads(json.dumps(RUN.as_json()))
    first, wrong = written["workloads"][0]["outcomes"][:2]
    assert first["times_relive"] == 1.0
    assert first["times_fastest_right_peer"] == 1.25
    assert first["is_right"] is True
    assert wrong["wrong"] == {"reward": 0.5}
    assert wrong["seconds"]["median"] == 5e-05
    assert written["workloads"][0]["outcomes"][4]["not_measured"] == "does not load"
    assert written["workloads"][1]["outcomes"][1]["value"] == 52.0


def test_the_picture_is_a_png(tmp_path: pathlib.Path) -> None:
    rows = [DRAW, MEMORY, DRAW, DRAW, dataclasses.replace(DRAW, outcomes=[])]
    report.save_picture(dataclasses.replace(RUN, rows=rows), str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_picture_that_cannot_be_written_is_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="^--plot could not be written to .*: Is a directory$"):
        report.save_picture(RUN, str(tmp_path))
