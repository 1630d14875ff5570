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


def save(run: results.Run, path: str) -> None:
    """Write the picture as a PNG."""
    measured = [row for row in run.rows if row.measured]
    rows = [row for row in measured if row.workload in PANELS] or measured[: len(PANELS)]
    columns = min(2, len(rows)) or 1
    lines = -(-len(rows) // columns) or 1
    picture = figure.Figure(figsize=(5.5 * columns, 0.4 + 3.8 * lines), layout="constrained")
    panels = picture.subplots(lines, columns, squeeze=False).flatten()
    for panel in panels[len(rows) :]:
        panel.axis("off")
    for panel, row in zip(panels, rows, strict=False):
        _draw(panel, row)
    words = "relive in blue, peers in gray; hatched where results are wrong; light: limits of numpy"
    picture.suptitle(textwrap.fill(words, 60 * columns), fontsize=10)
    picture.savefig(path, format="png", dpi=150)


def _draw(panel: "matplotlib_axes.Axes", row: results.Row) -> None:
    """Draw the bars of one workload, the fastest on top and limits below; what is too long for them is cut."""
    most = _MOST * ((row.own or row.measured[0]).value or 1.0)
    for place, one in enumerate(row.measured):
        value, faults = one.value or 0.0, "" if one.is_limit else one.faults()
        color = _OWN if one.peer in results.OWN else _LIMIT if one.is_limit else _PEER
        panel.barh(place, min(value, most), color=color, hatch="////" if faults else None, edgecolor="white")
        words = report.figure(value) + (" (bar cut)" if value > most else "")
        if faults:
            words = textwrap.fill(f"{words}, wrong: {faults}", 46)
        is_inside = value > most / 2  # There is no room beside a long bar.
        panel.text(
            min(value, most) * 0.98 if is_inside else value + most * 0.02,
            place,
            words,
            ha="right" if is_inside else "left",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1} if is_inside else None,
        )
    panel.set_title(textwrap.fill(row.title, 60), fontsize=10)
    panel.set_yticks(range(len(row.measured)), [one.peer for one in row.measured], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0.0, most)
    panel.set_xlabel(f"{row.unit}, less is better", fontsize=8)
    panel.tick_params(axis="x", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
