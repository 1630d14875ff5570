"""The shared part of the examples: means over runs, their bands, and the command line."""

import pathlib
from typing import Any

import numpy as np
import pytest

figure = pytest.importorskip("matplotlib.figure")

import curves


def test_a_running_mean_is_over_the_last_values() -> None:
    assert curves.running_mean([3, 5, 10, 0], window=2) == [3, 4, 7.5, 5]


def test_a_curve_has_its_mean_and_a_band_of_extremes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    savefig = figure.Figure.savefig

    def spied(picture: Any, *arguments: Any, **options: Any) -> None:
        drawn.extend(picture.axes)
        savefig(picture, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", spied)
    runs: curves.Runs = {"rising": [([0, 10], [0, 10]), ([2, 4, 20], [6, 8, 24])], "flat": [([0, 10], [3, 3])]}
    curves.plot(str(tmp_path / "picture.png"), runs, ylabel="apples", title="Orchard", xlabel="days")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

    (axes,) = drawn
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Orchard", "days", "apples")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rising", "flat"]
    rising, flat = axes.lines
    grid = rising.get_xdata()
    assert (grid[0], grid[-1]) == (2, 10)
    assert rising.get_ydata() == pytest.approx(grid + 2)
    assert flat.get_ydata().tolist() == [3] * len(grid)
    edges = np.concatenate([path.vertices for path in axes.collections[0].get_paths()])
    assert set((edges[:, 1] - edges[:, 0]).round(9)) == {0, 4}


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [
        ([], [(500, seed, size) for seed in range(4) for size in (1, 2)]),
        (["--short"], [(1_200, 0, 1), (1_200, 0, 2)]),
        (["--steps", "7", "--seeds", "1"], [(7, 0, 1), (7, 0, 2)]),
    ],
)
def test_each_case_is_trained_with_each_seed(
    arguments: list[str], calls: list[tuple[int, int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[int, int, int]] = []

    def train(steps: int, seed: int, *, size: int) -> curves.Run:
        made.append((steps, seed, size))
        return [0, steps], [0.0, seed + size]

    curves.main(train, {"A": {"size": 1}, "B": {"size": 2}}, arguments, steps=500, title="T", ylabel="score")
    assert made == calls
    lines = [f"{' AB'[size]}, seed {seed}: score at the end: {seed + size}.0" for _, seed, size in calls]
    assert capsys.readouterr().out.splitlines() == lines


def test_the_picture_shows_the_runs_of_all_cases(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures: list[Any] = []
    monkeypatch.setattr(curves, "plot", lambda *arguments, **labels: pictures.append((arguments, labels)))
    arguments = ["--plot", "path", "--seeds", "2"]
    curves.main(lambda steps, seed: ([seed], [steps]), {"A": {}}, arguments, steps=5, title="T", ylabel="score")
    assert pictures == [(("path", {"A": [([0], [5]), ([1], [5])]}), {"ylabel": "score", "title": "T"})]


def test_a_run_too_short_to_measure_asks_for_more_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        curves.main(lambda steps, seed: ([], []), {"A": {}}, ["--steps", "7"], steps=5, title="T", ylabel="score")
    assert capsys.readouterr().err.endswith("--steps must be more than 7: nothing could be measured in so few\n")
