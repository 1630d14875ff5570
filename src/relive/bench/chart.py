"""The picture of a run: a panel a workload, a bar a peer, in times of relive; and a panel a curve."""

import textwrap

import numpy as np

from relive import errors
from relive.bench import results
from relive.common import imports

with imports.optional_dependency("bench"):
    from matplotlib import axes as matplotlib_axes
    from matplotlib import figure

_COLUMNS = 3
_OWN, _RIGHT, _WRONG, _LIMIT = "tab:blue", "tab:gray", "tab:red", "lightgray"
_CURVE = 10
"""Bars that a panel of a curve is as high as."""
_OUTSIDE = 1.6
"""Times the largest median at which a panel of a curve ends."""
_WIDTH = 64
"""Characters that a panel is wide."""
_MOST = 6.0
"""Times relive at which a bar is cut, so that the slowest do not make the others invisible."""


def save(run: results.Run, path: str) -> None:
    """Write the picture as a PNG.

    Raises:
        ArgumentError: The file cannot be written.
    """
    rows = [row for row in run.rows if row.measured]
    curves = [curve for curve in run.curves if any(map(curve.measured, curve.lines))]
    lines = -(-(len(rows) + len(curves)) // _COLUMNS)
    longest = max([len(row.measured) for row in rows] + [_CURVE] * len(curves), default=1)
    picture = figure.Figure(figsize=(15, 1.2 + lines * (0.9 + 0.21 * longest)), layout="constrained")
    panels = picture.subplots(max(lines, 1), _COLUMNS, squeeze=False).flatten()
    for panel, row in zip(panels, rows, strict=False):
        _draw(panel, row, longest)
    for panel, curve in zip(panels[len(rows) :], curves, strict=False):
        _draw_curve(panel, curve)
    for panel in panels[len(rows) + len(curves) :]:
        panel.axis("off")
    if rows:
        picture.suptitle(
            "relive (blue) beside right answers (gray), wrong answers (red, hatched) and limits of numpy (light); "
            f"shorter is better, cut at {_MOST:g} times relive",
            fontsize=11,
        )
    try:
        picture.savefig(path, format="png", dpi=100)
    except OSError as error:
        raise errors.ArgumentError(f"--plot could not be written to {path}: {error.strerror}") from error


def _titled(title: str, unit: str) -> str:
    """Return the title of a panel, in lines that do not reach into the next panel."""
    return f"{textwrap.fill(title, _WIDTH)}\n{unit}"


def _draw(panel: "matplotlib_axes.Axes", row: results.Row, longest: int) -> None:
    """Draw the bars of one workload, the shortest on top, as thick as those of the workload with most of them."""
    base = row.own or row.measured[0]
    ordered = sorted(row.measured, key=lambda one: one.value or 0.0, reverse=True)
    for place, one in enumerate(ordered):
        times = row.ratio(one, base) or 0.0
        is_wrong = not one.is_right and not one.is_limit
        color = _OWN if one.peer in results.OWN else _LIMIT if one.is_limit else _WRONG if is_wrong else _RIGHT
        panel.barh(place, min(times, _MOST), color=color, hatch="///" if is_wrong else None, edgecolor="white")
        words = f" {one.value:.3g}" if (one.value or 0.0) < 1000 else f" {one.value:.0f}"
        panel.text(min(times, _MOST), place, words + (" wrong" if is_wrong else ""), va="center", fontsize=7)
    panel.set_ylim(len(ordered) - longest - 0.7, len(ordered) - 0.3)
    panel.set_yticks(range(len(ordered)), [one.peer for one in ordered], fontsize=7)
    panel.axvline(1.0, color=_OWN, linewidth=0.8, linestyle=":")
    panel.set_xlim(0.0, _MOST * 1.2)
    panel.tick_params(axis="x", labelsize=7)
    panel.set_title(_titled(row.title, row.unit), fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _draw_curve(panel: "matplotlib_axes.Axes", curve: results.Curve) -> None:
    """Draw a line a peer: the medians, and from the fastest round to the slowest, which may lie outside."""
    most = 0.0
    for peer, line in curve.lines.items():
        timings = {size: one.timing for size, one in line.items() if one.timing}
        rounds = [(timing.low, timing.median, timing.high) for timing in timings.values()]
        lows, medians, highs = 1e6 * np.reshape(rounds, (-1, 3)).T
        color = _OWN if peer in results.OWN else _RIGHT
        label = peer if all(one.is_right for one in line.values()) else f"{peer}, wrong"
        panel.plot(list(timings), medians, color=color, marker="o", markersize=4, label=label)
        panel.vlines(list(timings), lows, highs, color=color, linewidth=0.8)
        for size, median in zip(timings, medians.tolist(), strict=True):
            if peer in results.OWN:
                panel.text(size, median, f"{median:.3g}\n", ha="center", va="center", fontsize=8)
        most = max(most, medians.max(initial=0.0))
    panel.set_xscale("log")
    panel.set_ylim(0.0, _OUTSIDE * most)
    panel.set_xlabel(curve.part, fontsize=7)
    panel.tick_params(labelsize=7)
    panel.set_title(_titled(curve.title, curve.unit), fontsize=8)
    panel.legend(fontsize=7, loc="upper left")
    panel.spines[["top", "right"]].set_visible(False)
