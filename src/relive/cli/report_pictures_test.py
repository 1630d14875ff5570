"""The pictures of a report."""

import io

import hypothesis
from hypothesis import strategies as st
from matplotlib import axes
from matplotlib import image
import numpy as np
import pytest

from relive.cli import contents
from relive.cli import report

PNG = b"\x89PNG\r\n\x1a\n"


@hypothesis.settings(max_examples=2 * hypothesis.settings().max_examples)
@hypothesis.given(
    values=st.lists(st.floats(-report._LARGEST, report._LARGEST), min_size=1, max_size=30)
    | st.lists(st.integers(-100, 100).map(float), min_size=1, max_size=30)
)
def test_each_value_is_in_one_bin(values: list[float]) -> None:
    edges = report._edges(np.array(values))
    assert (np.diff(edges) > 0).all()
    assert len(edges) <= 42
    assert np.histogram(values, edges)[0].sum() == len(values)


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([7.0], [6.5, 7.5]),
        ([0.0, 2.0], [-0.5, 0.5, 1.5, 2.5]),
        ([0.0, 40.0], [-0.5 + 2 * number for number in range(22)]),
    ],
)
def test_bins_of_whole_numbers_have_whole_widths(values: list[float], edges: list[float]) -> None:
    assert report._edges(np.array(values)).tolist() == edges


@pytest.mark.parametrize(
    ("name", "values", "titles"),
    [
        ("rewards", [1.0], ["Rewards"]),
        ("rewards", [-1.7e308, 1.7e308, 0.5], ["Rewards"]),
        ("rewards", [0.0, 5e-324], ["Rewards"]),
        ("rewards", [], []),
        ("rewards", [float("nan")], []),
        ("episode lengths", [3.0, 90.0], ["Episode lengths"]),
        ("episode returns", [1.0] * 100, ["Returns over time"]),
        ("episode returns", [float("inf")], []),
        ("priorities", [*([float("nan")] * 10), 1.0, 2.0], ["Priorities", "Priorities by age"]),
        ("times sampled", [0.0, 3.0], ["Times sampled", "Times sampled by age"]),
        ("seconds open", [3.0], []),
    ],
)
def test_there_is_a_chart_of_all_there_is_something_of(name: str, values: list[float], titles: list[str]) -> None:
    pictures = list(report.charts({name: np.array(values)}))
    assert [picture.title for picture in pictures] == titles
    assert all(picture.png.startswith(PNG) and picture.caption for picture in pictures)


def test_means_by_age_begin_with_the_newest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[float]] = []
    monkeypatch.setattr(axes.Axes, "stairs", lambda self, values, *rest, **how: drawn.append(list(values)))
    list(report.charts({"priorities": np.arange(1000.0)}))
    assert drawn[1] == [989.5 - 20 * group for group in range(50)]
    list(report.charts({"priorities": np.arange(11.0)}))
    assert drawn[3] == [7.5, 2.0]


@pytest.mark.parametrize("channels", [(), (3,)])
def test_a_frame_has_the_pixels_of_its_observation(channels: tuple[int, ...]) -> None:
    pixels = np.arange(256, dtype=np.uint8)[::-1].repeat(3).reshape(16, 48)[:, :: 1 if channels else 3]
    shown = contents.image_of(pixels.reshape(16, 16, *channels))
    assert shown is not None
    found = np.rint(image.imread(io.BytesIO(report.frame("one", shown).png))[..., :3] * 255)
    assert (found == shown).all()
