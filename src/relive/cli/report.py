"""The report of `relive inspect` as a page, one file that needs nothing else: `report.html`, filled in.

Whatever comes from the file is escaped, and the page's own policy lets no script run and nothing be fetched.
"""

import base64
from collections.abc import Iterator
from importlib import resources
import io
from typing import Any, NamedTuple

import numpy as np

import relive
from relive.cli import contents
from relive.cli import formatting
from relive.cli import tables
from relive.common import imports

with imports.optional_dependency("cli"):
    import jinja2
    from matplotlib import axes as axes_lib
    from matplotlib import figure
    from matplotlib import image as image_lib
    from matplotlib import ticker

_FRAMES = 6
_CARDS = {
    "size": "steps",
    "total_transitions": "transitions",
    "total_episodes": "episodes",
    "items": "items",
    "tokens": "tokens",
}
"""Which statistics are looked for first."""

_BLUE, _ORANGE, _GREY = "#2f6fb0", "#d9792b", "#5c6670"
_MOST_BINS = 40
_MOST_DOTS = 20_000
_MOST_GROUPS, _LEAST_ROWS = 50, 10
"""How many groups of rows there are at most, and how many rows are in each at least, if there are so many."""
_LARGEST_WHOLE = 2.0**50
_LARGEST = 1e300
"""The width of a larger range would be infinite."""
_UNITS = {
    "episode lengths": ("steps", "episodes"),
    "rewards": ("reward", "steps"),
    "priorities": ("raw priority", "rows"),
    "times sampled": ("times sampled", "rows"),
}
"""What the axes of a histogram say."""


def page(said: dict[str, Any], buffer: object) -> str:
    """Return the page about what was said of a path, and what is in the buffer that was made of it."""
    found = contents.of(buffer)
    text = resources.files("relive.cli").joinpath("report.html").read_text(encoding="utf-8")
    template = jinja2.Template(text, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    text = template.render(
        said=said,
        name=formatting.plain(said["class"] or said["kind"]),
        cards=_cards(said, found),
        charts=list(charts(found)),
        frames=[frame(*each) for each in contents.images(buffer, _FRAMES)],
        tables=tables.of(said, found),
        version=relive.__version__,
        counted=formatting.counted,
        base64=lambda png: base64.b64encode(png).decode(),
    )
    return str(text)


def _cards(said: dict[str, Any], found: contents.Contents) -> list[tuple[str, str]]:
    """Return the few numbers that are looked for first, and what they are."""
    stats = said["stats"]
    cards = [(formatting.number(stats[name]), words) for name, words in _CARDS.items() if name in stats]
    if said["records"] is not None:
        cards.append((formatting.number(said["records"]["records"]), "records"))
    for name, words in (("episode lengths", "mean episode length"), ("episode returns", "mean return")):
        if len(found.get(name, ())):
            cards.append((formatting.number(np.mean(found[name]).item()), words))
    return [*cards, (formatting.size(said["bytes"]), "on disk")]


# Pictures, as PNG.


class Picture(NamedTuple):
    """A picture of a page: what it shows, what to know about it, and the file."""

    title: str
    caption: str
    png: bytes


def charts(found: contents.Contents) -> Iterator[Picture]:
    """Yield a picture of each kind of numbers there is something of, and of what depends on the age of a row."""
    for name, values in found.items():
        finite = np.clip(values[np.isfinite(values)], -_LARGEST, _LARGEST)
        if len(finite) and name in _UNITS:
            yield _histogram(name, finite)
        if len(finite) and name == "episode returns":
            yield _returns(finite)
        if len(finite) and name in ("priorities", "times sampled"):
            yield _by_age(name, values)


def frame(title: str, pixels: contents.Image) -> Picture:
    """Return an observation as a picture, pixel by pixel."""
    file = io.BytesIO()
    image_lib.imsave(file, pixels, format="png")
    return Picture(title, "", file.getvalue())


def _axes(x: str, y: str) -> axes_lib.Axes:
    """Return axes of a new figure, in the manner of all of them."""
    axes = figure.Figure(figsize=(5.6, 3.1), layout="constrained").add_subplot(xlabel=x, ylabel=y)
    axes.grid(axis="y", color="#e6e9ec")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_GREY, labelsize=9)
    return axes


def _png(axes: axes_lib.Axes) -> bytes:
    file = io.BytesIO()
    picture: Any = axes.figure
    picture.savefig(file, format="png", dpi=160)
    return file.getvalue()


def _histogram(name: str, values: contents.Values) -> Picture:
    x, y = _UNITS[name]
    axes = _axes(x, y)
    edges = _edges(values)
    axes.stairs(np.histogram(values, edges)[0], edges, fill=True, color=_BLUE)
    median = np.quantile(values, 0.5, method="inverted_cdf").item()
    axes.axvline(median, color=_ORANGE, linewidth=1.5)
    axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    least, most, line = (formatting.number(value) for value in (values.min(), values.max(), median))
    caption = f"{len(values):,} {y} from {least} to {most}; the line is the median, {line}"
    return Picture(name.capitalize(), caption, _png(axes))


def _edges(values: contents.Values) -> contents.Values:
    """Return the edges of at most about `_MOST_BINS` bins; each of whole numbers holds as many of them."""
    least, most = values.min(), values.max()
    if (values == np.rint(values)).all() and np.abs(values).max() < _LARGEST_WHOLE:
        step = np.ceil((most - least + 1) / _MOST_BINS)
        return np.arange(least - 0.5, most + step, step)
    edges = np.linspace(least, most, _MOST_BINS + 1)
    if (np.diff(edges) > 0).all():
        return edges
    width = max(abs(least), abs(most)) * 1e-6  # All are about the same.
    return np.array([least - width, most + width])


def _returns(values: contents.Values) -> Picture:
    """Return the returns in the order of the episodes, with their running mean."""
    axes = _axes("episode", "return")
    dots = np.unique(np.linspace(0, len(values) - 1, _MOST_DOTS).astype(np.int64))
    axes.plot(dots, values[dots], ".", color=_BLUE, alpha=0.45, markersize=9 if len(dots) < 200 else 4)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    caption = f"{formatting.counted(len(values), 'episode')} of which all steps are here, in the order they began"
    window = len(values) // 20
    if window > 1:
        means = np.convolve(values, np.full(window, 1 / window), "valid")
        axes.plot(np.arange(window - 1, len(values)), means, color=_ORANGE)
        caption += f"; the line is the mean of {window:,}"
    return Picture("Returns over time", caption, _png(axes))


def _by_age(name: str, values: contents.Values) -> Picture:
    """Return the means of groups of rows of about one age, the newest first."""
    groups = np.array_split(values[::-1], min(_MOST_GROUPS, -(-len(values) // _LEAST_ROWS)))
    finite = [group[np.isfinite(group)] for group in groups]
    edges = np.cumsum([0, *map(len, groups)])
    axes = _axes("age in steps", f"mean {_UNITS[name][0]}")
    axes.stairs([group.mean() if len(group) else np.nan for group in finite], edges, fill=True, color=_BLUE)
    caption = f"means of about {formatting.counted(len(groups[0]), 'row')} each, the newest on the left"
    return Picture(f"{name.capitalize()} by age", caption, _png(axes))
