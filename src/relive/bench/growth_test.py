"""Curves: what of them is measured, and what is said of sizes that do not fit."""

from collections.abc import Iterable
import dataclasses
import json
import pathlib
import tempfile

import numpy as np
import pytest

from relive.bench import answers
from relive.bench import chart
from relive.bench import contestants
from relive.bench import curve
from relive.bench import markdown
from relive.bench import measuring
from relive.bench import results
from relive.bench import room
from relive.bench import rounds
from relive.bench import selection
from relive.bench import tasks
from relive.bench import text
from relive.bench.peers import mapped
from relive.bench.peers import own_tree
from relive.samplers import sum_tree

QUICK = measuring.Settings.chosen(2, is_quick=True)
SIZES = (1_000, 3_000, 10_000)


def measured(one: curve.Curve, peers: Iterable[str] = ("relive", "take")) -> results.Curve:
    """Return what came of a curve in a quick run."""
    return measuring.measure_curve(one, list(peers), QUICK, lambda line: None)


@pytest.mark.parametrize("one", selection.CURVES.values(), ids=lambda one: one.name)
def test_relive_is_right_at_every_size(one: curve.Curve) -> None:
    result = measured(one)
    assert list(result.lines) == list(one.lines)
    for peer, line in result.lines.items():
        assert tuple(line) == SIZES
        assert result.growth(peer, SIZES[0]) == 1.0
        for outcome in line.values():
            assert outcome.value, outcome.reason
            assert outcome.is_right
            assert outcome.is_limit == (peer == "take")


def test_full_curves_go_from_ten_thousand_to_a_hundred_million() -> None:
    for one in selection.CURVES.values():
        assert one.sizes == (10**4, 10**5, 10**6, 10**7, 10**8)
        assert one.quick() == dataclasses.replace(one, sizes=SIZES)


def test_the_sizes_of_a_curve_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def interleaved(calls: Iterable[str], **settings: object) -> dict[str, rounds.Timing]:
        timed.extend(calls)
        return {name: rounds.Timing(median=1e-6, low=1e-6, high=1e-6, rounds=1, repeats=1) for name in calls}

    monkeypatch.setattr(rounds, "interleaved", interleaved)
    said: list[str] = []
    measuring.measure_curve(selection.CURVES["growth-tree"], ["relive"], QUICK, said.append)
    assert timed == ["relive at 1,000", "relive at 3,000", "relive at 10,000"]
    assert said[0] == "growth-tree: filling relive at 1,000"
    assert said[-1] == "growth-tree: timing relive at 1,000, relive at 3,000, relive at 10,000"


@pytest.mark.parametrize(
    ("name", "free", "reason"),
    [
        ("growth-uniform", {"free_disk": 350_000}, "takes 0.0003 GB of disk, and 0.00035 GB are free"),
        ("growth-tree", {"free_memory": 100_000}, "takes 0.00016 GB of memory, and 0.0001 GB are free"),
        ("growth-prioritized", {"free_memory": 350_000}, "takes 0.00032 GB of memory, and 0.00035 GB are free"),
    ],
)
def test_a_size_that_does_not_fit_is_left_out_with_the_reason(
    name: str, free: dict[str, int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function, size in free.items():
        monkeypatch.setattr(room, function, lambda size=size: size)
    result = measured(selection.CURVES[name], ["relive"])
    small, middle, large = result.lines["relive"].values()
    assert small.value
    assert middle.value
    assert large.reason == reason
    assert result.growth("relive", 10_000) is None


def test_what_breaks_at_one_size_is_said_and_the_others_go_on() -> None:
    def line(size: int) -> contestants.Contestant:
        if size == 1_000:
            raise MemoryError
        return own_tree.contestant(size)

    result = measured(dataclasses.replace(selection.CURVES["growth-tree"], lines={"relive": line}))
    assert [one.reason for one in result.lines["relive"].values()] == ["failed: MemoryError", "", ""]
    assert result.growth("relive", 3_000) == 1.0  # The smallest that was measured.


def test_what_is_mapped_is_a_file_and_leaves_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    array = mapped.allocate((5, 2), np.dtype(np.float32))
    array[...] = 7
    assert isinstance(array.base, np.memmap)
    assert (array == 7).all()
    assert array.shape == (5, 2)
    assert not list(tmp_path.iterdir())


def test_memory_is_enough_where_nobody_knows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MEMORY", tmp_path / "nowhere")
    assert room.whole_memory() == "unknown"
    room.require(memory=10**18)
    with pytest.raises(tasks.CannotError, match=r"^takes 1e\+09 GB of disk, and .* GB are free$"):
        room.require(memory=0, disk=10**18)


def test_memory_is_what_the_system_says(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "meminfo"
    said.write_text("MemTotal:  2000000 kB\nMemFree:  5 kB\nMemAvailable:  1000000 kB\n")
    monkeypatch.setattr(room, "_MEMORY", said)
    assert room.free_memory() == 1_024_000_000
    assert room.whole_memory() == "2.05 GB"
    room.require(memory=819_200_000)
    with pytest.raises(tasks.CannotError, match="^takes 0.819 GB of memory, and 1.02 GB are free$"):
        room.require(memory=819_200_001)


def weighing(size: int) -> sum_tree.SumTree:
    """Return a tree as the curve fills it."""
    tree = sum_tree.SumTree(size)
    tree.set(np.arange(size), np.arange(size) % 4)
    return tree


def found(tree: sum_tree.SumTree, drawn: list[int]) -> dict[str, float]:
    """Return what is wrong with leaves that were drawn."""
    findings = answers.Findings()
    own_tree.check(tree, np.array(drawn), findings)
    return findings.shares()


def test_each_stratum_of_the_tree_has_its_leaf() -> None:
    """Twelve leaves weigh 0 1 2 3 0 1 2 3 0 1 2 3: each third of the total is four of them."""
    tree = weighing(12)
    assert found(tree, [3, 11, 5]) == {}
    assert found(tree, [3, 2, 9]) == {"stratum": 1 / 3}
    assert found(tree, [4, 11]) == {"leaf without weight": 1 / 2}
    assert found(tree, [1, 5, 9]) == found(tree, [3, 7, 11]) == {}
    tree.check()
    assert tree.get(np.arange(12)).tolist() == [0, 1, 2, 3] * 3


def test_a_tree_that_sets_or_sums_wrongly_is_found() -> None:
    class Deaf(sum_tree.SumTree):
        def set(self, leaves: object, weights: object) -> None:
            """Set nothing."""

    assert found(Deaf(12), [3, 7, 11]) == {"total": 1.0}
    tree = weighing(12)
    tree.set([0], [1.0])
    assert found(tree, [3, 7, 11]) == {"total": 1.0}
    full = weighing(12)
    deaf = Deaf(12)
    for name, value in full.__dict__.items():
        setattr(deaf, name, value)
    assert found(deaf, [3, 7, 11]) == {"total": 1.0}


def test_every_leaf_of_the_tree_is_filled_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_tree, "_CHUNK", 300)
    contestant = own_tree.contestant(1_001)
    contestant()
    contestant.check()
    timing = rounds.Timing(median=1e-6, low=1e-6, high=1e-6, rounds=1, repeats=1)
    assert contestant.outcome(timing).is_right


def timed(peer: str, microseconds: float, **wrong: float) -> results.Outcome:
    """Return the outcome of a peer that took that long, and what was wrong with it."""
    seconds = microseconds / 1e6
    timing = rounds.Timing(median=seconds, low=seconds / 2, high=seconds * 2, rounds=7, repeats=1)
    return results.Outcome(peer=peer, timing=timing, wrong=wrong)


CURVE = results.Curve(
    name="growth-x",
    title="a draw",
    unit="microseconds a batch",
    part="steps",
    lines={
        "relive": {10: timed("relive", 20.0), 1_000: timed("relive", 30.0, reward=0.5)},
        "take": {10: timed("take", 4.0), 1_000: results.Outcome(peer="take", reason="takes 3 GB")},
    },
)
RUN = results.Run(command="", facts={}, versions={}, settings="", rows=[], curves=[CURVE])


def test_growth_is_the_ratio_to_the_smallest_size() -> None:
    assert CURVE.growth("relive", 10) == 1.0
    assert CURVE.growth("relive", 1_000) == 1.5
    assert CURVE.growth("take", 1_000) is None


def test_the_table_has_a_line_a_size() -> None:
    assert text.curve_table(CURVE).splitlines() == [
        "",
        "growth-x: a draw, microseconds a batch",
        "                 steps   median        low       high    x smallest",
        "  relive            10     20.00      10.00      40.00          1.00",
        "  relive         1,000     30.00      15.00      60.00          1.50  WRONG: reward in 50.0%",
        "  take              10      4.00       2.00       8.00          1.00  a limit",
        "  take           1,000  not measured: takes 3 GB",
    ]
    nobody = measured(selection.CURVES["growth-tree"], ["cpprb"])
    assert text.curve_table(nobody).endswith("\n  not measured: none of the peers has such a curve\n")


def test_the_page_shows_growth_with_its_faults_and_gaps() -> None:
    page = markdown.page(RUN, "picture.png").splitlines()
    for line in (
        "## As more is stored",
        "`relive bench --workload growth-x`, microseconds a batch",
        "| steps | **relive** | x smallest | take | x smallest |",
        "| 10 | 20 (10 to 40) | 1.00 | 4 (2 to 8) | 1.00 |",
        "| 1,000 | 30 (15 to 60), wrong: reward in 50.0% | 1.50 | takes 3 GB |  |",
        "| relive | growth-x | reward in 50.0% |",
    ):
        assert line in page
    assert "## Every workload" not in page
    nobody = dataclasses.replace(RUN, curves=[dataclasses.replace(CURVE, lines={})])
    assert "## As more is stored" not in markdown.page(nobody, None)


def test_the_picture_has_a_panel_a_curve(tmp_path: pathlib.Path) -> None:
    empty = dataclasses.replace(CURVE, lines={})
    for curves in ([], [CURVE], [CURVE, empty, CURVE, CURVE, CURVE]):
        chart.save(dataclasses.replace(RUN, curves=curves), str(tmp_path / f"{len(curves)}.png"))
    sizes = [(tmp_path / f"{count}.png").stat().st_size for count in (0, 1, 5)]
    assert sizes == sorted(set(sizes))


def test_the_points_of_a_curve_survive_json() -> None:
    [written] = json.loads(json.dumps(RUN.as_json()))["curves"]
    assert written["curve"] == "growth-x"
    first, second, _, fourth = written["points"]
    assert (first["peer"], first["size"], first["times_smallest"], first["is_right"]) == ("relive", 10, 1.0, True)
    assert (second["value"], second["times_smallest"], second["wrong"]) == (30.0, 1.5, {"reward": 0.5})
    assert (fourth["peer"], fourth["value"], fourth["not_measured"]) == ("take", None, "takes 3 GB")
