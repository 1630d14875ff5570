"""The page about a run, in Markdown, and its picture: a panel a workload."""

from collections.abc import Iterator
import functools
import textwrap

from relive import errors
from relive.bench import catalogue
from relive.bench import results
from relive.common import imports

with imports.optional_dependency("bench"):
    from matplotlib import axes as matplotlib_axes
    from matplotlib import figure

_INTRODUCTION = """\
This page was written by the command below, on the machine below. It measures relive beside every library of its kind
that is installed, and checks what each of them answers:

- **By turns.** In a round every peer has its turn (A B C A B C ...), so that a machine whose speed drifts slows all of
  them. A turn repeats the call for some milliseconds. The figures are medians over the rounds, with the fastest and the
  slowest round beside them. One thread a library; the garbage collector is off.
- **Checked.** Every observation says of which episode and step it is, so that each answer can be compared with what it
  should be: action, reward or n-step return, next observation, terminal flag, discount, the frames of a stack, the
  steps of a sequence; with priorities, how often what is drawn, and the weights that make up for it. That is done in
  the rings that are timed, and in one of some hundred steps that went round twice, where an episode's end and the
  ring's seam are never far. **A fast wrong answer is reported as wrong**, with what is wrong in which share of the
  rows; a share in brackets is of the small ring, where the large one showed nothing.
- **Limits.** *take* gathers the same bytes with one `ndarray.take` a column (and assigns them, where steps are added);
  *copy* copies a batch that lies ready. Nothing that answers fresh arrays can be faster than these. *files* is
  `np.save` and `np.load` of the same bytes; what is saved is synced to the disk, by all. *await* awaits an empty
  function.
- **Growth.** Where a workload has several sizes, they take turns with each other, so that their ratios are those of one
  moment. The steps of *growth* lie in files mapped into memory; a size that does not fit is left out. While the files
  are smaller than the memory that is free, nothing waits for a disk; where the spread of a size is wide, something did.
- **As a user would write it.** Peers are used as their documentation has it, with the settings it recommends. What
  turns an answer into something that can be compared is not part of the time.

`pip install cpprb tianshou stable-baselines3 torchrl 'ray[rllib]' flashbax` installs the peers. Reverb
(`dm-reverb[tensorflow]`) is built for a TensorFlow that wants numpy 1, and runs in an environment of its own alone.
"""

_COLUMNS = 3
_OWN, _RIGHT, _WRONG, _LIMIT = "tab:blue", "tab:gray", "tab:red", "lightgray"
_WIDTH = 64
"""Characters that a panel is wide."""
_MOST = 6.0
"""Times relive at which a bar is cut, so that the slowest do not make the others invisible."""


def page(run: results.Run, picture: str | None) -> str:
    """Return the page.

    Args:
        run: What it is about.
        picture: Where the picture is, seen from the page; None if there is none.
    """
    return "\n".join(_lines(run, picture))


def _lines(run: results.Run, picture: str | None) -> Iterator[str]:
    yield "# Benchmarks\n"
    yield _INTRODUCTION
    yield f"```sh\n{run.command}\n```\n"
    yield f"{run.settings}.\n"
    yield from _table(["", ""], [[name, fact] for name, fact in run.facts.items()])
    versions = ", ".join(f"{name} {version}".strip() for name, version in run.versions.items() if version)
    yield f"Measured: {versions or 'no peer'}.\n"
    if picture:
        yield f"![Every peer in every workload, as times of relive]({picture})\n"
    yield from _summary(run)
    yield from _behind(run)
    yield "## What is wrong in whose answers\n"
    wrong = [[one.peer, where, one.faults()] for where, one in run.wrong()]
    yield from _table(["peer", "workload", "wrong"], wrong, "Nothing was found in this run.")
    yield "## What was not measured\n"
    yield from _table(["peer", "workloads", "why"], _unmeasured(run), "All were measured everywhere.")
    yield "## Every workload\n"
    for row in run.rows:
        yield from _workload(row)


def _summary(run: results.Run) -> Iterator[str]:
    yield "## At a glance\n"
    yield "Microseconds a batch or a step, and bytes where memory is meant; below 1, relive is ahead.\n"
    heads = ["", "relive", "fastest right peer", "relive / peer", "relive / take", "relive / copy"]
    yield from _table(heads, [_glance(row) for row in run.rows if not row.counted])


def _glance(row: results.Row) -> list[str]:
    """Return what there is to see of a workload at a glance."""
    own, fastest = row.own, row.fastest
    limits = {one.peer: row.ratio(own, one) for one in row.measured if one.is_limit} if own else {}
    return [
        row.title,
        _value(own),
        f"{fastest.peer} {_value(fastest)}" if fastest else "nobody else",
        _times(row.ratio(own, fastest) if own else None),
        _times(limits.get("take")),
        _times(limits.get("copy")),
    ]


def _behind(run: results.Run) -> Iterator[str]:
    yield "## Where relive is behind\n"
    lines = []
    for row in (row for row in run.rows if not row.counted):
        ahead = [words for words in map(functools.partial(_ahead, row), row.measured) if words]
        if ahead:
            lines.append(f"- **{row.title}**: {'; '.join(ahead)}. {row.why}".rstrip())
    yield "\n".join(lines or ["Nowhere in this run."]) + "\n"


def _ahead(row: results.Row, one: results.Outcome) -> str:
    """Return how much faster than relive somebody is, in words; nothing if nobody is, or it is a limit."""
    ratio = row.ratio(row.own, one) if row.own else None
    if ratio is None or ratio <= 1.0 or one.is_limit or one.peer in results.OWN:
        return ""
    right = "" if one.is_right else ", which is wrong there"
    return f"{ratio:.2f} times {one.peer}{right} ({catalogue.PEERS[one.peer].what})"


def _unmeasured(run: results.Run) -> list[list[str]]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in run.rows:
        for one in row.outcomes:
            if one.value is None and not one.is_limit:
                reasons.setdefault((one.peer, one.reason), []).append(row.name)
    return [
        [peer, "everywhere" if len(names) == len(run.rows) else ", ".join(names), reason]
        for (peer, reason), names in sorted(reasons.items())
    ]


def _workload(row: results.Row) -> Iterator[str]:
    yield f"### {row.title[0].upper()}{row.title[1:]}\n"
    yield f"`relive bench --workload {row.name}`, {row.unit}\n"
    rows = []
    for one in row.ordered:
        spread = "{:.2f} to {:.2f}".format(*one.spread) if one.timing else ""
        verdict = "limit" if one.is_limit else one.faults() or ("right" if one.timing else "")
        name = f"**{one.peer}**" if one.peer in results.OWN else one.peer
        size = [f"{one.size:,}"] if row.counted else []
        rows.append([name, *size, _value(one), spread, _times(row.times(one)), verdict])
    counted = [row.counted] if row.counted else []
    yield from _table(["", *counted, "median", "rounds", f"x {row.base}", "answers"], rows)


def _table(heads: list[str], rows: list[list[str]], otherwise: str = "") -> Iterator[str]:
    """Yield the lines of a table; what to say instead, if it is empty."""
    if otherwise and not rows:
        yield f"{otherwise}\n"
        return
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _value(outcome: results.Outcome | None) -> str:
    if outcome is None or outcome.value is None:
        return ""
    return f"{outcome.value:.3g}" if outcome.value < 100 else f"{outcome.value:.0f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def save_picture(run: results.Run, path: str) -> None:
    """Write the picture as a PNG.

    Raises:
        ArgumentError: The file cannot be written.
    """
    rows = [row for row in run.rows if row.measured]
    lines = -(-len(rows) // _COLUMNS)
    longest = max((len(row.measured) for row in rows), default=1)
    picture = figure.Figure(figsize=(15, 1.2 + lines * (0.9 + 0.21 * longest)), layout="constrained")
    panels = picture.subplots(max(lines, 1), _COLUMNS, squeeze=False).flatten()
    for panel in panels[len(rows) :]:
        panel.axis("off")
    for panel, row in zip(panels, rows, strict=False):
        panel.set_title(f"{textwrap.fill(row.title, _WIDTH)}\n{row.unit}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
        if row.counted:
            _draw_growth(panel, row)
        else:
            _draw_bars(panel, row, longest)
    picture.suptitle(
        "relive (blue) beside right answers (gray), wrong answers (red, hatched) and limits of numpy (light); "
        f"shorter is better, cut at {_MOST:g} times relive",
        fontsize=11,
    )
    try:
        picture.savefig(path, format="png", dpi=100)
    except OSError as error:
        raise errors.ArgumentError(f"--plot could not be written to {path}: {error.strerror}") from error


def _draw_bars(panel: "matplotlib_axes.Axes", row: results.Row, longest: int) -> None:
    """Draw the bars of one workload, the shortest on top, as thick as those of the workload with most of them."""
    base = row.own or row.measured[0]
    ordered = sorted(row.measured, key=lambda one: one.value or 0.0, reverse=True)
    for place, one in enumerate(ordered):
        times = min(row.ratio(one, base) or 0.0, _MOST)
        is_wrong = not one.is_right and not one.is_limit
        color = _OWN if one.peer in results.OWN else _LIMIT if one.is_limit else _WRONG if is_wrong else _RIGHT
        panel.barh(place, times, color=color, hatch="///" if is_wrong else None, edgecolor="white")
        panel.text(times, place, f" {_value(one)}" + (" wrong" if is_wrong else ""), va="center", fontsize=7)
    panel.set_ylim(len(ordered) - longest - 0.7, len(ordered) - 0.3)
    panel.set_yticks(range(len(ordered)), [one.peer for one in ordered])
    panel.axvline(1.0, color=_OWN, linewidth=0.8, linestyle=":")
    panel.set_xlim(0.0, _MOST * 1.2)


def _draw_growth(panel: "matplotlib_axes.Axes", row: results.Row) -> None:
    """Draw a line a peer: the medians, and from the fastest round to the slowest."""
    for peer in dict.fromkeys(one.peer for one in row.measured):
        line = [one for one in row.measured if one.peer == peer]
        color = _OWN if peer in results.OWN else _RIGHT
        label = peer if all(one.is_right for one in line) else f"{peer}, wrong"
        sizes, medians = [one.size for one in line], [one.value or 0.0 for one in line]
        panel.plot(sizes, medians, color=color, marker="o", markersize=4, label=label)
        panel.vlines(sizes, *zip(*(one.spread for one in line), strict=True), color=color, linewidth=0.8)
    panel.set_xscale("log")
    panel.set_ylim(0.0, 1.6 * max(one.value or 0.0 for one in row.measured))  # A slow round may lie outside.
    panel.set_xlabel(row.counted, fontsize=7)
    panel.legend(fontsize=7, loc="upper left")
