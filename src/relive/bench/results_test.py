"""Tests of the report of a run: table, page, picture and figures."""

import dataclasses
import io
import json

from rich import console

from relive.bench import report
from relive.bench import results
from relive.bench import workloads


def timed(peer: str, microseconds: float, size: int = 0, **wrong: float) -> results.Outcome:
    seconds = microseconds / 1e6
    timing = results.Timing(median=seconds, low=seconds / 2, high=seconds * 2, rounds=7, repeats=1)
    return results.Outcome(peer=peer, size=size, value=microseconds, seconds=timing, wrong=wrong)


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
        results.Outcome(peer="reverb", not_measured="does not load"),
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
        "not measured: torchrl, reverb: does not load",
    ]
    assert printed(MEMORY)[4].split() == ["sb3", "52", "1.30", "right"]


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
        "- Not measured: torchrl, reverb: does not load",
        "### A draw",
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
    assert "Not measured" not in page


def test_the_figures_survive_json() -> None:
    written = json.loads(json.dumps(RUN.as_json()))
    first, wrong = written["workloads"][0]["outcomes"][:2]
    assert first["times_relive"] == 1.0
    assert first["times_fastest_right_peer"] == 1.25
    assert first["is_right"] is True
    assert first["size"] is first["not_measured"] is None
    assert wrong["wrong"] == {"reward": 0.5}
    assert wrong["seconds"]["median"] == 5e-05
    assert written["workloads"][0]["outcomes"][4]["not_measured"] == "does not load"
    assert written["workloads"][1]["outcomes"][1]["value"] == 52.0


# Sizes that are compared with each other.

GROWTH = results.Row(
    dataclasses.replace(workloads.WORKLOADS["growth-uniform"], name="growth-x", title="a draw"),
    [
        timed("relive", 20.0, size=10),
        timed("relive", 30.0, size=1_000, reward=0.5),
        timed("take", 4.0, size=10),
        results.Outcome(peer="take", size=1_000, not_measured="takes 3 GB"),
    ],
)
GROWTH_RUN = dataclasses.replace(RUN, rows=[GROWTH])


def test_growth_is_the_ratio_to_the_smallest_size() -> None:
    assert [GROWTH.times(one) for one in GROWTH.outcomes] == [1.0, 1.5, 1.0, None]


def test_the_table_of_growth_has_a_line_a_size() -> None:
    assert printed(GROWTH) == [
        "",
        "growth-x: a draw, microseconds a batch",
        "        steps  median    rounds  x smallest  answers",
        "relive     10      20  10 to 40        1.00  right",
        "relive  1,000      30  15 to 60        1.50  WRONG: reward in 50.0%",
        "take       10       4    2 to 8        1.00  limit",
        "not measured: take at 1,000: takes 3 GB",
    ]
    assert printed(results.Row(GROWTH.workload, []))[2:] == ["not measured: none of the peers takes part"]


def test_the_page_shows_growth_with_its_faults() -> None:
    page = report.page(GROWTH_RUN, "picture.png").splitlines()
    for line in (
        "`relive bench --workload growth-x`, microseconds a batch",
        "|  | steps | median | rounds | x smallest | answers |",
        "| relive | 10 | 20 | 10 to 40 | 1.00 | right |",
        "| relive | 1,000 | 30 | 15 to 60 | 1.50 | WRONG: reward in 50.0% |",
        "| take | 10 | 4 | 2 to 8 | 1.00 | limit |",
        "- Not measured: take at 1,000: takes 3 GB",
        "| relive | growth-x | reward in 50.0% |",
    ):
        assert line in page


def test_the_sizes_survive_json() -> None:
    [written] = json.loads(json.dumps(GROWTH_RUN.as_json()))["workloads"]
    first, second, _, fourth = written["outcomes"]
    assert (first["peer"], first["size"], first["times_smallest"], first["is_right"]) == ("relive", 10, 1.0, True)
    assert (second["value"], second["times_smallest"], second["wrong"]) == (30.0, 1.5, {"reward": 0.5})
    assert (fourth["peer"], fourth["value"], fourth["not_measured"]) == ("take", None, "takes 3 GB")
