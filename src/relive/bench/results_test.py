"""Tests of the report of a run: table, page, picture and figures."""

import dataclasses
import io
import json

from rich import console

from relive.bench import report
from relive.bench import results
from relive.bench import workloads


def timed(peer: str, microseconds: float, **wrong: float) -> results.Outcome:
    seconds = microseconds / 1e6
    timing = results.Timing(median=seconds, low=seconds / 2, high=seconds * 2, rounds=7, repeats=1)
    return results.Outcome(peer=peer, value=microseconds, seconds=timing, wrong=wrong)


def printed(row: results.Row, width: int = 200) -> list[str]:
    file = io.StringIO()
    report.print_table(row, console.Console(file=file, width=width, markup=False))
    return [line.rstrip() for line in file.getvalue().splitlines()]


DRAW = results.Row(
    dataclasses.replace(workloads.WORKLOADS["uniform"], title="a draw"),
    [
        timed("relive", 100.0),
        timed("cpprb", 50.0, reward=0.5),
        timed("sb3", 80.0),
        timed("tianshou", 300.0),
        results.Outcome(peer="torchrl", not_measured="does not load"),
        results.Outcome(peer="flashbax", not_measured="does not load"),
        timed("take", 10.0),
    ],
)
MEMORY = results.Row(
    dataclasses.replace(workloads.WORKLOADS["memory"], title="memory of a step"),
    [
        results.Outcome(peer="relive", value=40.0),
        results.Outcome(peer="sb3", value=52.0),
        results.Outcome(peer="torchrl", not_measured="does not load"),
    ],
)
RUN = results.Run(
    command="relive bench --quick", machine={"python": "3.11"}, versions={"relive": "", "sb3": "2.9"},
    settings="Medians of 7 rounds", rows=[DRAW, MEMORY],
)  # fmt: skip


def test_the_fastest_peer_is_the_fastest_correct_one() -> None:
    assert DRAW.fastest is not None
    assert DRAW.fastest.peer == "sb3"
    assert DRAW.ratio(DRAW.outcomes[0], DRAW.fastest) == 1.25


def test_results_without_relive_have_no_ratio_to_it() -> None:
    row = dataclasses.replace(DRAW, outcomes=DRAW.outcomes[1:])
    assert row.own is None
    assert row.ratio(row.outcomes[0], row.own) is None
    assert "x relive" in printed(row)[2]
    assert "| sb3 80 |  |" in report.page(dataclasses.replace(RUN, rows=[row]), None)


def test_the_table_lists_the_fastest_first_and_limits_last() -> None:
    assert printed(DRAW) == [
        "",
        "uniform: a draw, microseconds a batch",
        "          median      rounds  x relive  answers",
        "cpprb         50   25 to 100      0.50  WRONG: reward in 50.0%",
        "sb3           80   40 to 160      0.80  right",
        "relive       100   50 to 200      1.00  right",
        "tianshou     300  150 to 600      3.00  right",
        "take          10     5 to 20      0.10  limit",
    ]
    assert printed(MEMORY)[4].split() == ["sb3", "52", "1.30", "right"]


def test_peers_that_are_not_measured_are_named_once() -> None:
    file = io.StringIO()
    report.print_unmeasured(RUN, console.Console(file=file, width=200))
    assert file.getvalue() == "\nnot measured: torchrl, flashbax: does not load\n"
    assert report.page(RUN, None).count("does not load") == 1


def test_a_narrow_terminal_omits_rounds_and_folds_faults() -> None:
    wrong = dataclasses.replace(DRAW.outcomes[1], wrong={"reward": 0.5, "terminal flag": 0.25, "discount": 0.01})
    assert printed(results.Row(DRAW.workload, [DRAW.outcomes[0], wrong]), 60) == [
        "",
        "uniform: a draw, microseconds a batch",
        "        median  x relive  answers",
        "cpprb       50      0.50  WRONG: reward in 50.0%, terminal",
        "                          flag in 25.0%, discount in 1.0%",
        "relive     100      1.00  right",
    ]


def test_the_page_names_faster_and_faulty_peers() -> None:
    page = report.page(RUN, "picture.png")
    for line in (
        "# Benchmarks",
        "relive bench --quick",
        "Medians of 7 rounds.",
        "| python | 3.11 |",
        "Measured: sb3 2.9.",
        "![Microseconds of every peer in four workloads, with what was wrong](picture.png)",
        "| a draw | 100 | sb3 80 | 1.25 | 10.00 |  |",
        "| memory of a step | 40 | sb3 52 | 0.77 |  |  |",
        "- **a draw**: 2.00 times cpprb, which is wrong there (C++); 1.25 times sb3 (numpy, and tensors of torch).",
        "| cpprb | uniform | reward in 50.0% |",
        "<details><summary>A draw: microseconds a batch (<code>uniform</code>)</summary>",
        "</details>",
        "- torchrl, flashbax: does not load",
        "| relive | 100 | 50 to 200 | 1.00 | right |",
        "| take | 10 | 5 to 20 | 0.10 | limit |",
        "| sb3 | 52 |  | 1.30 | right |",
    ):
        assert line in page.splitlines()
    assert "tianshou (" not in page


def test_a_run_without_faults_is_reported_as_such() -> None:
    row = dataclasses.replace(MEMORY, outcomes=MEMORY.outcomes[:2])
    page = report.page(dataclasses.replace(RUN, rows=[row]), None)
    for line in ("Nowhere in this run.", "Nothing was found in this run."):
        assert line in page.splitlines()
    assert "![" not in page
    assert "## Not measured" not in page


def test_the_figures_survive_json() -> None:
    written = json.loads(json.dumps(RUN.as_json()))
    first, wrong = written["workloads"][0]["outcomes"][:2]
    assert first["times_relive"] == 1.0
    assert first["times_fastest_right_peer"] == 1.25
    assert first["is_right"] is True
    assert first["not_measured"] is None
    assert wrong["wrong"] == {"reward": 0.5}
    assert wrong["seconds"]["median"] == 5e-05
    assert written["workloads"][0]["outcomes"][4]["not_measured"] == "does not load"
    assert written["workloads"][1]["outcomes"][1]["value"] == 52.0
