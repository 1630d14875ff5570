"""The picture of a run: four workloads, a bar a peer."""

from collections.abc import Collection
import textwrap

from relive import errors
from relive.bench import report
from relive.bench import results
from relive.common import imports

with imports.optional_dependency("bench"):
    from matplotlib import axes as matplotlib_axes
    from matplotlib import figure

PANELS = {
    "uniform": "Uniform draw of 256",
    "n-step": "5-step draw of 256",
    "prioritized-1m": "Prioritized draw of 256 and its update, a million steps",
    "loop": "Loop: 4 adds, a prioritized draw of 32, its update",
}
"""The workloads that are drawn, and their titles."""

_AXES = {
    "batch": "microseconds for a batch of 256, less is better",
    "step": "microseconds for a step of the loop, less is better",
}
_OWN, _PEER, _LIMIT = "tab:blue", "darkgray", "gainsboro"
_MOST = 4.0
"""Times relive at which a bar is cut, so that the slowest do not make the others invisible."""


def check(names: Collection[str]) -> None:
    """Raise ArgumentError if none of those workloads would be drawn."""
    if not any(name in PANELS for name in names):
        raise errors.ArgumentError(f"--plot needs one of the workloads {', '.join(PANELS)}, got {', '.join(names)}")


def save(run: results.Run, path: str) -> None:
    """Write the picture as a PNG.

    Raises:
        ArgumentError: Nothing that is drawn was measured.
        OSError: The file cannot be written.
    """
    rows = [row for row in run.rows if row.workload.name in PANELS and row.measured]
    if not rows:
        raise errors.ArgumentError(f"--plot needs a peer that was measured in {', '.join(PANELS)}, got none")
    columns = min(2, len(rows))
    lines = -(-len(rows) // columns)
    picture = figure.Figure(figsize=(5.5 * columns, 0.4 + 3.8 * lines), layout="constrained")
    panels = picture.subplots(lines, columns, squeeze=False).flatten()
    for panel in panels[len(rows) :]:
        panel.axis("off")
    for panel, row in zip(panels, rows, strict=False):
        _draw(panel, row)
    picture.suptitle(
        "relive in blue, peers in gray; hatched where results are wrong; light: limits of numpy", fontsize=10
    )
    picture.savefig(path, format="png", dpi=150)


def _draw(panel: "matplotlib_axes.Axes", row: results.Row) -> None:
    """Draw the bars of one workload, the fastest on top and limits below; what is too long for them is cut."""
    base = row.own or row.measured[0]
    most = _MOST * (base.value or 1.0)
    for place, one in enumerate(row.measured):
        value = one.value or 0.0
        color = _OWN if one.peer in results.OWN else _LIMIT if one.is_limit else _PEER
        is_wrong = not one.is_right and not one.is_limit
        panel.barh(place, min(value, most), color=color, hatch="////" if is_wrong else None, edgecolor="white")
        words = report.figure(value) + (" (bar cut)" if value > most else "")
        if is_wrong:
            words = textwrap.fill(f"{words}, wrong: {one.faults()}", 46)
        is_inside = value > most / 2  # There is no room beside a long bar.
        panel.text(
            min(value, most) * (0.98 if is_inside else 1.0) + (0 if is_inside else most * 0.02),
            place,
            words,
            ha="right" if is_inside else "left",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1} if is_inside else None,
        )
    panel.set_title(PANELS[row.workload.name], fontsize=10)
    panel.set_yticks(range(len(row.measured)), [one.peer for one in row.measured], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0.0, most)
    panel.set_xlabel(_AXES[row.workload.part], fontsize=8)
    panel.tick_params(axis="x", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
