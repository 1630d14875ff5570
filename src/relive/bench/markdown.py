"""The page about a run, in Markdown."""

from collections.abc import Iterator
import functools

from relive.bench import catalogue
from relive.bench import results

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
  `np.save` and `np.load` of the same bytes; what is saved is synced to the disk, by all.
- **As a user would write it.** Peers are used as their documentation has it, with the settings it recommends. What
  turns an answer into something that can be compared is not part of the time.

`pip install cpprb tianshou stable-baselines3 torchrl 'ray[rllib]' flashbax pfrl d3rlpy` installs most peers. The others
do not agree with them on what they need: Dopamine and AgileRL came in by `pip install --no-deps dopamine-rl agilerl`
with what their buffers import; Reverb (`dm-reverb[tensorflow]`) is built for a TensorFlow that wants numpy 1, and runs
in an environment of its own alone.

What a draw and an awaited append of the episode buffer cost as its episodes become many has a program of its own:
`python -m relive.bench.episode_costs`.
"""

_GROWTH = """\
The sizes of a curve take turns with each other, so that their ratios are those of one moment; beside each median stand
the fastest and the slowest round. Steps lie in files mapped into memory, written by `add_episode`; what a buffer keeps
beside its columns, and the sum tree, is in memory, and a size that does not fit is left out. The system keeps of the
files in memory what it has room for: while they are smaller than what is free there, nothing here waits for a disk;
where the spread of a size is wide, something did. Leaves of the tree are checked against strata and totals that are
known beforehand.
"""


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
    if run.rows:
        yield from _summary(run)
        yield from _behind(run)
    curves = [curve for curve in run.curves if curve.lines]
    if curves:
        yield f"## As more is stored\n\n{_GROWTH}"
    for curve in curves:
        yield from _curve(curve)
    yield from _wrong(run)
    if run.rows:
        yield from _unmeasured(run)
        yield "## Every workload\n"
    for row in run.rows:
        yield from _workload(row)


def _summary(run: results.Run) -> Iterator[str]:
    yield "## At a glance\n"
    rows = []
    for row in run.rows:
        own, fastest = row.own, row.fastest
        limits = {one.peer: row.ratio(own, one) for one in row.measured if one.is_limit} if own else {}
        rows.append(
            [
                row.title,
                _value(own),
                f"{fastest.peer} {_value(fastest)}" if fastest else "nobody else",
                _times(row.ratio(own, fastest) if own else None),
                _times(limits.get("take")),
                _times(limits.get("copy")),
            ]
        )
    heads = ["", "relive", "fastest right peer", "relive / peer", "relive / take", "relive / copy"]
    yield "Microseconds a batch or a step, and bytes where memory is meant; below 1, relive is ahead.\n"
    yield from _table(heads, rows)


def _behind(run: results.Run) -> Iterator[str]:
    yield "## Where relive is behind\n"
    is_ahead = True
    for row in run.rows:
        ahead = [name for name in map(functools.partial(_ahead, row), row.measured) if name]
        if ahead:
            is_ahead = False
            yield f"- **{row.title}**: {'; '.join(ahead)}. {row.why}".rstrip()
    yield "Nowhere in this run.\n" if is_ahead else ""


def _ahead(row: results.Row, one: results.Outcome) -> str:
    """Return how much faster than relive somebody is, in words; nothing if nobody is, or it is a limit."""
    ratio = row.ratio(row.own, one) if row.own else None
    if ratio is None or ratio <= 1.0 or one.is_limit or one.peer in results.OWN:
        return ""
    right = "" if one.is_right else ", which is wrong there"
    return f"{ratio:.2f} times {one.peer}{right} ({catalogue.PEERS[one.peer].what})"


def _wrong(run: results.Run) -> Iterator[str]:
    yield "## What is wrong in whose answers\n"
    rows = [[name, where, outcome.faults()] for name, where, outcome in run.wrong()]
    if not rows:
        yield "Nothing was found in this run.\n"
        return
    yield from _table(["peer", "workload", "wrong"], rows)


def _unmeasured(run: results.Run) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in run.rows:
        for one in row.outcomes:
            if one.value is None and not one.is_limit:
                reasons.setdefault((one.peer, one.reason), []).append(row.name)
    yield "## What was not measured\n"
    rows = [
        [peer, "everywhere" if len(names) == len(run.rows) else ", ".join(names), reason]
        for (peer, reason), names in sorted(reasons.items())
    ]
    if not rows:
        yield "All were measured everywhere.\n"
        return
    yield from _table(["peer", "workloads", "why"], rows)


def _workload(row: results.Row) -> Iterator[str]:
    yield f"### {row.title[0].upper()}{row.title[1:]}\n"
    yield f"`relive bench --workload {row.name}`, {row.unit}\n"
    rows = []
    for one in sorted(row.measured, key=lambda one: (one.is_limit, one.value)):
        spread = f"{one.timing.low * 1e6:.2f} to {one.timing.high * 1e6:.2f}" if one.timing else ""
        verdict = "limit" if one.is_limit else one.faults() or ("right" if one.timing else "")
        name = f"**{one.peer}**" if one.peer in results.OWN else one.peer
        rows.append([name, _value(one), spread, _times(row.ratio(one, row.own)), verdict])
    yield from _table(["", "median", "rounds", "x relive", "answers"], rows)


def _curve(curve: results.Curve) -> Iterator[str]:
    yield f"### {curve.title[0].upper()}{curve.title[1:]}\n"
    yield f"`relive bench --workload {curve.name}`, {curve.unit}\n"
    rows = []
    for size in next(iter(curve.lines.values())):
        cells = [f"{size:,}"]
        for peer, line in curve.lines.items():
            cells += [_point(line[size]), _times(curve.growth(peer, size))]
        rows.append(cells)
    heads = [cell for peer in curve.lines for cell in (f"**{peer}**" if peer in results.OWN else peer, "x smallest")]
    yield from _table([curve.part, *heads], rows)


def _point(one: results.Outcome) -> str:
    """Return the cell about one size: the median and the rounds, or why there is none."""
    if not one.timing:
        return one.reason
    wrong = "" if one.is_right else f", wrong: {one.faults()}"
    return f"{_value(one)} ({one.timing.low * 1e6:.3g} to {one.timing.high * 1e6:.3g}){wrong}"


def _table(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _value(outcome: results.Outcome | None) -> str:
    return (
        ""
        if outcome is None or outcome.value is None
        else f"{outcome.value:.3g}"
        if outcome.value < 100
        else f"{outcome.value:.0f}"
    )


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
