"""The picture of a run: four workloads, a bar a peer."""

import textwrap

from relive.bench import report
from relive.bench import results
from relive.common import imports

with imports.optional_dependency("bench"):
    from matplotlib import axes as matplotlib_axes
    from matplotlib import figure

PANELS = ("uniform", "n-step", "prioritized-1m", "loop")
"""The workloads that are drawn; the first four of a run that has none of them."""

_OWN, _PEER, _LIMIT = "tab:blue", "darkgray", "gainsboro"
_MOST = 4.0
"""Times relive at which a bar is cut, so that the slowest do not make the others invisible."""
_ROOM = 1.7
"""The width of a panel, in lengths of the longest bar: words stand beside bars, not on them."""


def save(run: results.Run, path: str) -> None:
    """Write the picture as a PNG: a column, which can be read where a page is 500 pixels wide."""
    measured = [row for row in run.rows if row.measured]
    rows = [row for row in measured if row.workload in PANELS] or measured[: len(PANELS)]
    heights = [len(row.measured) + 4 for row in rows] or [1]
    picture = figure.Figure(figsize=(5, 0.9 + 0.2 * sum(heights)), layout="constrained")
    panels = picture.subplots(len(heights), 1, squeeze=False, height_ratios=heights).flatten()
    for panel in panels[len(rows) :]:
        panel.axis("off")
    for panel, row in zip(panels, rows, strict=False):
        _draw(panel, row)
    picture.suptitle("relive in blue, others in gray, limits of numpy light;\nhatched where rows differ", fontsize=9)
    picture.savefig(path, format="png", dpi=200)


def _draw(panel: "matplotlib_axes.Axes", row: results.Row) -> None:
    """Draw the bars of one workload, the fastest on top and limits below; what is too long for them is cut."""
    most = _MOST * ((row.own or row.measured[0]).value or 1.0)
    for place, one in enumerate(row.measured):
        value, faults = one.value or 0.0, "" if one.is_limit else one.faults()
        color = _OWN if one.peer in results.OWN else _LIMIT if one.is_limit else _PEER
        panel.barh(place, min(value, most), color=color, hatch="////" if faults else None, edgecolor="white")
        words = report.figure(value) + (", rows differ" if faults else "") + (" (bar cut)" if value > most else "")
        panel.text(min(value, most) + most * 0.02, place, words, ha="left", va="center", fontsize=8)
    panel.set_title(textwrap.fill(row.title, 52), fontsize=9)
    panel.set_yticks(range(len(row.measured)), [one.peer for one in row.measured], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0.0, most * _ROOM)
    panel.set_xlabel(f"{row.unit}, less is better", fontsize=8)
    panel.tick_params(axis="x", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
