"""The picture of a run, by its words and bars."""

import dataclasses
import pathlib

from matplotlib import figure
from matplotlib import patches
import pytest

from relive.bench import picture
from relive.bench import results
from relive.bench import workloads


def outcome(peer: str, microseconds: float, *, is_limit: bool = False, **wrong: float) -> results.Outcome:
    return results.Outcome(peer=peer, is_limit=is_limit, value=microseconds, wrong=wrong)


def row(name: str, outcomes: list[results.Outcome]) -> results.Row:
    workload = workloads.WORKLOADS[name]
    return results.Row(name, workload.title, workload.unit, outcomes)


OUTCOMES = [
    outcome("relive", 100.0), outcome("relive-numba", 50.0), outcome("cpprb", 70.0, reward=0.5),
    outcome("rllib", 500.0), outcome("flashbax", 350.0, discount=0.25), outcome("take", 10.0, is_limit=True),
    results.Outcome(peer="torchrl", not_measured="does not load"),
]  # fmt: skip
RUN = results.Run(
    command="", machine={}, versions={}, settings="", rows=[row(name, OUTCOMES) for name in ("add", *picture.PANELS)]
)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[figure.Figure]:
    """The pictures that are saved, instead of files."""
    kept: list[figure.Figure] = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *args, **settings: kept.append(self))
    return kept


def test_a_picture_has_a_panel_for_each_of_four_workloads(drawn: list[figure.Figure]) -> None:
    picture.save(RUN, "p.png")
    panels = drawn[0].axes
    titles = [workloads.WORKLOADS[name].title for name in picture.PANELS]
    assert [panel.get_title().replace("\n", " ") for panel in panels] == titles
    assert panels[0].get_xlabel() == "microseconds a batch, less is better"
    assert panels[3].get_xlabel() == "microseconds a step, less is better"
    peers = ["relive-numba", "cpprb", "relive", "flashbax", "rllib", "take"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == peers


def test_words_stand_beside_their_bars(drawn: list[figure.Figure]) -> None:
    picture.save(RUN, "p.png")
    for panel in drawn[0].axes:
        drawn[0].draw_without_rendering()
        right = panel.get_xlim()[1]
        for bar, text in zip(panel.patches, panel.texts, strict=True):
            box = text.get_window_extent().transformed(panel.transData.inverted())
            assert isinstance(bar, patches.Rectangle)
            assert bar.get_width() < box.x0 < box.x1 <= right


def test_a_bar_shows_its_figure_and_whether_rows_differ(drawn: list[figure.Figure]) -> None:
    picture.save(RUN, "p.png")
    panel = drawn[0].axes[0]
    assert [text.get_text() for text in panel.texts] == [
        "50", "70, rows differ", "100", "350, rows differ", "500 (bar cut)", "10",
    ]  # fmt: skip
    bars = [bar for bar in panel.patches if isinstance(bar, patches.Rectangle)]
    widths = [bar.get_width() for bar in bars]
    assert widths == [50.0, 70.0, 100.0, 350.0, 400.0, 10.0]
    assert [bar.get_hatch() for bar in bars] == [None, "////", None, "////", None, None]
    colors = [bar.get_facecolor() for bar in bars]
    assert colors[0] == colors[2] != colors[1] == colors[3] == colors[4] != colors[5]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_workload_that_was_not_measured_has_no_panel(count: int, drawn: list[figure.Figure]) -> None:
    few = RUN.rows[1 : count + 1]
    picture.save(dataclasses.replace(RUN, rows=[*few, row("loop", OUTCOMES[-1:])]), "p.png")
    assert sum(panel.axison for panel in drawn[0].axes) == count


def test_other_workloads_are_drawn_where_there_is_nothing_else(drawn: list[figure.Figure]) -> None:
    names = ["add", "extend", "save", "load", "memory"]
    picture.save(dataclasses.replace(RUN, rows=[row(name, OUTCOMES) for name in names]), "p.png")
    titles = [panel.get_title().replace("\n", " ") for panel in drawn[0].axes]
    assert titles == [workloads.WORKLOADS[name].title for name in names[:4]]


def test_a_picture_is_a_png(tmp_path: pathlib.Path) -> None:
    picture.save(RUN, str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
