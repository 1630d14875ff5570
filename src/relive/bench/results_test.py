"""Tests of the report of a run: table, page and figures."""

import dataclasses
import json
import shlex

from relive.bench import report
from relive.bench import results


def timed(peer: str, value: float, *, is_limit: bool = False, **wrong: float) -> results.Outcome:
    return results.Outcome(peer=peer, is_limit=is_limit, value=value, low=value / 2, high=value * 2, wrong=wrong)


DRAW = results.Row(
    "uniform",
    "a draw",
    "microseconds a batch",
    [
        timed("relive", 100.0),
        timed("cpprb", 50.0, reward=0.5),
        timed("sb3", 80.0),
        timed("tianshou", 300.0),
        results.Outcome(peer="torchrl", not_measured="does not load"),
        results.Outcome(peer="flashbax", not_measured="does not load"),
        results.Outcome(peer="rllib", not_measured="not installed"),
        timed("take", 10.0, is_limit=True),
    ],
)
MEMORY = results.Row(
    "memory",
    "memory of a step",
    "bytes a step",
    [
        results.Outcome(peer="relive", value=40.0),
        results.Outcome(peer="sb3", value=52.0),
        results.Outcome(peer="torchrl", not_measured="does not load"),
        results.Outcome(peer="rllib", not_measured="not installed"),
        results.Outcome(peer="relive-numba", not_measured="not installed"),
    ],
)
RUN = results.Run(
    command="relive bench --quick", machine={"python": "3.11"}, versions={"relive": "", "sb3": "2.9"},
    settings="Medians of 7 rounds", rows=[DRAW, MEMORY],
)  # fmt: skip


def test_results_without_relive_have_no_ratio_to_it() -> None:
    row = dataclasses.replace(DRAW, outcomes=DRAW.outcomes[1:])
    assert row.own is None
    assert results.ratio(row.outcomes[0], row.own) is None
    assert "x relive" in report.text(row, 200)
    assert "| a draw |  | sb3 80 |  |  |  |" in report.page(dataclasses.replace(RUN, rows=[row]), None)


def test_relive_is_its_first_buffer_that_was_measured() -> None:
    row = dataclasses.replace(DRAW, outcomes=[timed("relive-episodes", 1.0), timed("relive-numba", 2.0)])
    assert row.own is row.outcomes[1]


def test_a_value_of_nothing_has_no_ratio() -> None:
    assert results.ratio(timed("sb3", 1.0), timed("relive", 0.0)) is None
    assert results.ratio(DRAW.outcomes[4], DRAW.outcomes[0]) is None


def test_the_table_lists_the_fastest_first_and_limits_last() -> None:
    assert report.text(DRAW, 200).splitlines() == [
        "          median      rounds  x relive  rows",
        "cpprb         50   25 to 100      0.50  differ: reward in 50.0%",
        "sb3           80   40 to 160      0.80  right",
        "relive       100   50 to 200      1.00  right",
        "tianshou     300  150 to 600      3.00  right",
        "take          10     5 to 20      0.10  limit",
    ]
    assert report.text(MEMORY, 200).splitlines()[2].split() == ["sb3", "52", "1.30", "right"]


def test_a_narrow_terminal_folds_faults() -> None:
    wrong = dataclasses.replace(DRAW.outcomes[1], wrong={"reward": 0.5, "terminal flag": 0.25, "discount": 0.01})
    assert report.text(dataclasses.replace(DRAW, outcomes=[DRAW.outcomes[0], wrong]), 70).splitlines() == [
        "        median     rounds  x relive  rows",
        "cpprb       50  25 to 100      0.50  differ: reward in 50.0%, terminal",
        "                                     flag in 25.0%, discount in 1.0%",
        "relive     100  50 to 200      1.00  right",
    ]


def test_a_table_of_nothing_has_its_heads() -> None:
    assert report.text(dataclasses.replace(DRAW, outcomes=[]), 80) == "  median  rounds  x relive  rows"


def test_peers_that_are_not_measured_are_named_once() -> None:
    install = "rllib, relive-numba: not installed: run pip install 'ray[rllib]' numba"
    assert RUN.unmeasured() == ["torchrl, flashbax: does not load", install]


def test_the_page_names_faster_and_faulty_peers() -> None:
    page = report.page(RUN, "picture.png").splitlines()
    for line in (
        "# Benchmarks",
        "relive bench --quick",
        "Medians of 7 rounds.",
        "| python | 3.11 |",
        "Measured: sb3 2.9.",
        "![Microseconds of each library in four workloads; bars are hatched where rows differ](picture.png)",
        "| a draw | 100 | sb3 80 | **1.25** | 10.00 |  |",
        "| memory of a step | 40 | sb3 52 | 0.77 |  |  |",
        "  rows of a truncated episode have a next observation of ones. `load_transitions` does not restore where",
        "<details><summary><code>uniform</code>: a draw, microseconds a batch</summary>",
        "</details>",
        "- torchrl, flashbax: does not load",
        "| cpprb | 50 | 25 to 100 | 0.50 | differ: reward in 50.0% |",
        "| take | 10 | 5 to 20 | 0.10 | limit |",
        "| sb3 | 52 |  | 1.30 | right |",
    ):
        assert line in page


def test_a_long_command_can_be_copied_from_the_page() -> None:
    command = "relive bench --peers " + " ".join(["stable-baselines3"] * 10)
    page = report.page(dataclasses.replace(RUN, command=command), None)
    block = page.split("```sh\n")[1].split("\n```")[0]
    assert max(map(len, block.splitlines())) <= 84
    assert shlex.split(block.replace("\\\n", " ")) == shlex.split(command)


def test_a_run_without_faults_is_reported_as_such() -> None:
    row = dataclasses.replace(MEMORY, outcomes=MEMORY.outcomes[:2])
    page = report.page(dataclasses.replace(RUN, rows=[row]), None)
    assert "All rows of this run were right." in page.splitlines()
    assert "![" not in page
    assert "## Not measured" not in page


def test_shares_are_shown_with_the_digits_they_need() -> None:
    wrong, small = {"reward": 0.25, "action": 0.0012, "mask": 0.01}, {"reward": 1.0, "x": 1e-5}
    outcome = results.Outcome(peer="cpprb", wrong=wrong, wrong_in_a_small_ring=small)
    assert outcome.faults() == "reward in 25.0%, action in 0.12%, mask in 1.0%, x in (less than 0.01%)"


def test_the_figures_survive_json() -> None:
    written = json.loads(json.dumps(dataclasses.asdict(RUN)))
    wrong = written["rows"][0]["outcomes"][1]
    assert (wrong["peer"], wrong["value"], wrong["low"], wrong["wrong"]) == ("cpprb", 50.0, 25.0, {"reward": 0.5})
    assert written["rows"][0]["outcomes"][4]["not_measured"] == "does not load"
    assert written["rows"][1]["outcomes"][1]["value"] == 52.0
