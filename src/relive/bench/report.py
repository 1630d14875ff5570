"""What is said of a run: a table a workload, for the terminal and for Markdown, and the page around them."""

from collections.abc import Iterator, Sequence
import textwrap

from relive.bench import catalogue
from relive.bench import results

_KINDS = ("arrays", "tensors")
_INTRODUCTION = """\
This page was written by the command below, on the machine below. It measures relive beside every library of its kind
that is installed, used as its documentation has it, and checks what each of them returns:

- **Like with like.** A batch is arrays from {arrays}, and tensors of torch from
  {tensors}. relive and tianshou have calls that convert. Draws have a table for each of the two,
  with those who return it; arrays of flashbax are those of JAX.
- **By turns.** In a round every peer has its turn (A B C A B C ...), so that a machine whose speed drifts slows all of
  them. The figures are medians over the rounds, with the fastest and the slowest round beside them. One thread a
  library; the garbage collector is off.
- **Checked.** Every observation says of which episode and step it is, so that each row of an answer is compared with
  what it should be: in the rings that are timed, and in one of some hundred steps that went round twice. With
  priorities, so are the shares of draws and the weights. **A fast wrong answer is reported as wrong**, with what is
  wrong in which share of the rows; a share in brackets is of the small ring, where the large one showed nothing.
- **Limits.** *take* gathers the same bytes with one `ndarray.take` a column (and assigns them, where steps are added);
  *copy* copies a batch that lies ready.

`pip install cpprb 'tianshou>=2' stable-baselines3 torchrl 'ray[rllib]' flashbax` installs the peers. A server such as
Reverb, which is built for another numpy, cannot be installed beside them and is not measured.
"""


def _introduction() -> str:
    """Return the introduction, which begins with who returns what."""
    peers = {kind: [name for name, peer in catalogue.PEERS.items() if kind in peer.returns] for kind in _KINDS}
    return _INTRODUCTION.format(**{kind: ", ".join(names) for kind, names in peers.items()})


Cells = Sequence[Sequence[str]]


def figure(value: float | None) -> str:
    """Return a value with three digits, or all of a large one; nothing for None."""
    if value is None:
        return ""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _times(outcome: results.Outcome | None, base: results.Outcome | None) -> str:
    ratio = results.ratio(outcome, base)
    return "" if ratio is None else f"{ratio:.2f}"


def _cells(row: results.Row) -> Cells:
    """Return the words of a table, its heads first."""
    rows = [["", "median", "rounds", "x relive", "answers"]]
    for one in row.measured:
        spread = "" if one.low is None else f"{figure(one.low)} to {figure(one.high)}"
        verdict = "limit" if one.is_limit else f"WRONG: {one.faults()}" if one.faults() else "right"
        rows.append([one.peer, figure(one.value), spread, _times(one, row.own), verdict])
    return rows


def text(row: results.Row, width: int) -> str:
    """Return the table of a workload for a terminal of that many columns."""
    cells, lines = _cells(row), []
    name, *figures = (max(map(len, column)) for column in list(zip(*cells, strict=True))[:-1])
    for peer, *values, verdict in cells:
        lead = f"{peer:{name}}  " + "".join(f"{value:>{size}}  " for value, size in zip(values, figures, strict=True))
        lines.append(textwrap.fill(lead + verdict, width, subsequent_indent=" " * len(lead)))
    return "\n".join(lines)


def page(run: results.Run, picture: str | None) -> str:
    """Return the page in Markdown.

    Args:
        run: What it is about.
        picture: Where the picture is, seen from the page; None if there is none.
    """
    return "\n".join(_lines(run, picture))


def _lines(run: results.Run, picture: str | None) -> Iterator[str]:
    command = " \\\n  ".join(textwrap.wrap(run.command, 80, break_long_words=False, break_on_hyphens=False))
    yield f"# Benchmarks\n\n{_introduction()}\n```sh\n{command}\n```\n\n{run.settings}.\n"
    yield from _table([["", ""], *run.machine.items()])
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if version)
    yield f"Measured: {versions or 'no peer'}.\n"
    if picture:
        yield f"![Microseconds of every peer in four workloads, with what was wrong]({picture})\n"
    yield "## At a glance\n"
    yield "Microseconds a batch or a step, and bytes where memory is meant. **Bold** is where relive is behind.\n"
    heads = ["", "relive", "fastest right peer", "relive / peer", "relive / take", "relive / copy"]
    yield from _table([heads, *map(_glance, run.rows)])
    yield "## Wrong results\n"
    wrong = [f"- **{peer}**: {', '.join(names)}" for peer, names in run.wrong().items()]
    yield from [*(wrong or ["Nothing was found in this run."]), ""]
    yield "## Every workload\n"
    for row in run.rows:
        yield f"<details><summary><code>{row.workload}</code>: {row.title}, {row.unit}</summary>\n"
        yield from [*_table(_cells(row)), "</details>\n"]
    unmeasured = run.unmeasured()
    yield from ["## Not measured\n", *(f"- {line}" for line in unmeasured), ""] if unmeasured else []


def _glance(row: results.Row) -> list[str]:
    limits = {one.peer: one for one in row.measured if one.is_limit}
    right = (one for one in row.measured if not (one.is_limit or one.faults() or one.peer in results.OWN))
    fastest = next(right, None)
    times = _times(row.own, fastest)
    return [
        row.title,
        figure(row.own.value) if row.own else "",
        f"{fastest.peer} {figure(fastest.value)}" if fastest else "nobody else",
        f"**{times}**" if (results.ratio(row.own, fastest) or 0.0) > 1.0 else times,
        *(_times(row.own, limits.get(name)) for name in ("take", "copy")),
    ]


def _table(cells: Cells) -> Iterator[str]:
    heads, *rows = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)
    yield from [heads, f"|{'---|' * len(cells[0])}", *rows, ""]
