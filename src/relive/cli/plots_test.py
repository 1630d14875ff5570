"""The pictures of a report."""

import io

import hypothesis
from hypothesis import strategies as st
from matplotlib import image
import numpy as np
import pytest

from relive.cli import contents
from relive.cli import distribution
from relive.cli import frames
from relive.cli import plots

PNG = b"\x89PNG\r\n\x1a\n"


def found(name: str, values: list[float], by_age: list[float] | None = None) -> contents.Contents:
    """Return contents with one distribution."""
    return contents.Contents(
        distributions={
            name: distribution.of([np.array(values)], len(values)),
            "ages": distribution.of([np.arange(len(values))], len(values)),
        },
        by_age={} if by_age is None else {name: np.array(by_age)},
    )


@hypothesis.settings(max_examples=2 * hypothesis.settings().max_examples)
@hypothesis.given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30)
    | st.lists(st.integers(-100, 100).map(float), min_size=1, max_size=30)
)
def test_each_value_is_in_one_bin(values: list[float]) -> None:
    edges = plots._edges(np.array(values))
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
    assert plots._edges(np.array(values)).tolist() == edges


@pytest.mark.parametrize(
    ("name", "values", "by_age", "titles"),
    [
        ("rewards", [1.0], None, ["Rewards"]),
        ("rewards", [], None, []),
        ("rewards", [float("nan")], None, []),
        ("episode_lengths", [3.0, 90.0], None, ["Episode lengths"]),
        ("episode_returns", [1.0] * 100, None, ["Returns over time"]),
        ("episode_returns", [], None, []),
        ("priorities", [1.0, 2.0], [float("nan"), 1.0], ["Priorities", "Priorities by age"]),
        ("priorities", [float("nan")], [float("nan")], []),
        ("times_sampled", [0.0, 3.0], [1.0, 2.0], ["Draw counts", "Draw counts by age"]),
        ("times_sampled", [], [], []),
    ],
)
def test_there_is_a_picture_of_all_there_is_something_of(
    name: str, values: list[float], by_age: list[float] | None, titles: list[str]
) -> None:
    pictures = list(plots.of(found(name, values, by_age)))
    assert [picture.title for picture in pictures] == titles
    assert all(picture.png.startswith(PNG) and picture.alt for picture in pictures)


@pytest.mark.parametrize("channels", [(), (3,)])
def test_a_frame_has_the_pixels_of_its_observation(channels: tuple[int, ...]) -> None:
    pixels = np.arange(256, dtype=np.uint8)[::-1].repeat(3).reshape(16, 48)[:, :: 1 if channels else 3]
    pixels = pixels.reshape(16, 16, *channels)
    shown = contents.Contents(frames=[frames.Frame("one", pixels)])
    (picture,) = plots.frames(shown)
    found = np.rint(image.imread(io.BytesIO(picture.png))[..., :3] * 255)
    assert (found == (pixels if channels else pixels[..., np.newaxis])).all()


def test_of_what_is_broken_there_is_no_picture() -> None:
    broken = contents.Contents()
    assert list(plots.of(broken)) == list(plots.frames(broken)) == []


def test_a_share_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "MOST_KEPT", 500)
    (picture,) = plots.of(found("rewards", [float(number) for number in range(1000)]))
    assert "1,000 steps from 0 to 999, a share of" in picture.caption
