"""The pictures of a report, as PNG."""

from collections.abc import Callable, Iterator
import dataclasses
import io
from typing import Any, TypeAlias

import numpy as np

from relive.cli import contents
from relive.cli import formatting
from relive.common import arrays
from relive.common import imports

with imports.optional_dependency("cli"):
    from matplotlib import figure
    from matplotlib import image
    from matplotlib import ticker

Axes: TypeAlias = Any

_BLUE, _ORANGE, _GREY = "#2f6fb0", "#d9792b", "#5c6670"
_MOST_BINS = 40
_MOST_DOTS = 20_000
_LEAST_WIDTH = 6
"""A histogram of whole numbers is at least as wide, so that one bar looks like one."""

_LARGEST_WHOLE = 2.0**50


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Attributes:
        title: What it shows.
        caption: What to know about it, in a sentence.
        png: The file.
        alt: What it shows, for those who cannot see it.
    """

    title: str
    caption: str
    png: bytes
    alt: str


def of(found: contents.Contents) -> Iterator[Picture]:
    """Yield a picture of each distribution there is something of, and of what depends on the age of a row."""
    yield from _histogram(found, "episode_lengths", "Episode lengths", "steps", "episodes")
    yield from _returns(found)
    yield from _histogram(found, "rewards", "Rewards", "reward", "steps")
    yield from _histogram(found, "priorities", "Priorities", "raw priority", "rows")
    yield from _histogram(found, "times_sampled", "Draw counts", "times sampled", "rows")
    yield from _by_age(found, "times_sampled", "Draw counts by age", "mean times sampled")
    yield from _by_age(found, "priorities", "Priorities by age", "mean raw priority")


def frames(found: contents.Contents) -> Iterator[Picture]:
    """Yield the frames that were taken."""
    for frame in found.frames:
        file = io.BytesIO()
        # A colour map in greys would make some pixels one darker.
        pixels = frame.image if frame.image.ndim == 3 else np.stack([frame.image] * 3, axis=2)
        image.imsave(file, pixels, format="png")
        yield Picture(frame.title, "", file.getvalue(), f"The observation of {frame.title}")


def _drawn(title: str, caption: str, alt: str, x: str, y: str, draw: Callable[[Axes], None]) -> Picture:
    picture = figure.Figure(figsize=(5.6, 3.1), layout="constrained", facecolor="white")
    axes = picture.add_subplot()
    draw(axes)
    axes.set_xlabel(x, color=_GREY)
    axes.set_ylabel(y, color=_GREY)
    axes.tick_params(colors=_GREY, labelsize=9)
    axes.grid(axis="y", color="#e6e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c5ccd3")
    file = io.BytesIO()
    picture.savefig(file, format="png", dpi=160)
    return Picture(title, caption, file.getvalue(), alt)


def _histogram(found: contents.Contents, name: str, title: str, x: str, y: str) -> Iterator[Picture]:
    """Yield the histogram of a distribution, if it has numbers."""
    spread = found.distributions.get(name)
    if spread is None or spread.quartiles is None or spread.least is None or spread.most is None:
        return
    values, median = spread.kept, spread.quartiles[1]
    edges = _edges(values)
    counts = np.histogram(values, edges)[0]

    def draw(axes: Axes) -> None:
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=_BLUE, edgecolor="white", linewidth=0.4)
        axes.axvline(median, color=_ORANGE, linewidth=1.5)
        axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        if edges[-1] - edges[0] < _LEAST_WIDTH and _are_whole(values):
            middle = (edges[0] + edges[-1]) / 2
            axes.set_xlim(middle - _LEAST_WIDTH / 2, middle + _LEAST_WIDTH / 2)
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))

    least, most = formatting.number(spread.least), formatting.number(spread.most)
    shown = "" if len(values) == spread.count else f", a share of {len(values) / spread.count:.1%} drawn here"
    text = f"{spread.count:,} {y} from {least} to {most}{shown}; the line is the median, {formatting.number(median)}"
    yield _drawn(title, text, f"Histogram: {text}", x, y, draw)


def _are_whole(values: arrays.Floats) -> bool:
    return bool(np.array_equal(values, np.round(values)))


def _edges(values: arrays.Floats) -> arrays.Floats:
    """Return the edges of at most about `_MOST_BINS` bins; of whole numbers each bin has as many."""
    least, most = float(values.min()), float(values.max())
    if most - least < _LARGEST_WHOLE and max(abs(least), abs(most)) < _LARGEST_WHOLE and _are_whole(values):
        step = (most - least + 1) // _MOST_BINS + 1
        whole: arrays.Floats = np.arange(least - 0.5, most + step, step)
        return whole
    edges: arrays.Floats = least * np.linspace(1, 0, _MOST_BINS + 1) + most * np.linspace(0, 1, _MOST_BINS + 1)
    if np.unique(edges).size == edges.size:
        return edges
    width = max(abs(least), abs(most), 1e-300) * 1e-6  # All are about the same.
    one: arrays.Floats = np.array([least - width, most + width])
    return one


def _returns(found: contents.Contents) -> Iterator[Picture]:
    """Yield the returns in the order of the episodes, with their running mean."""
    spread = found.distributions.get("episode_returns")
    if spread is None or not spread.count:
        return
    returns = spread.kept
    window = max(1, len(returns) // 20)

    def draw(axes: Axes) -> None:
        dots = np.unique(np.linspace(0, len(returns) - 1, _MOST_DOTS).astype(np.int64))
        axes.plot(dots, returns[dots], ".", color=_BLUE, alpha=0.45, markersize=9 if len(dots) < 200 else 4)
        if window > 1:
            sums = np.cumsum(np.insert(returns, 0, 0.0))
            means = (sums[window:] - sums[:-window]) / window
            axes.plot(np.arange(window - 1, len(returns)), means, color=_ORANGE)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))

    text = f"{formatting.counted(spread.count, 'episode')} of which all steps are here, in the order they began"
    if window > 1:
        text = f"{text}; the line is the mean of {window:,}"
    yield _drawn("Returns over time", text, f"Plot: the returns of {text}", "episode", "return", draw)


def _by_age(found: contents.Contents, name: str, title: str, y: str) -> Iterator[Picture]:
    """Yield the means of groups of rows of about one age."""
    means, spread = found.by_age.get(name), found.distributions.get("ages")
    if means is None or spread is None or not len(means) or np.isnan(means).all():
        return
    width = spread.count / len(means)

    def draw(axes: Axes) -> None:
        axes.bar(
            np.arange(len(means)) * width, means, width, align="edge", color=_BLUE, edgecolor="white", linewidth=0.4
        )

    text = f"means of about {formatting.counted(round(width), 'row')} each, the newest on the left"
    yield _drawn(title, text, f"Bars: {text}", "age in steps", y, draw)
