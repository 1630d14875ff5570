"""What is said of a run: a table a workload, for the terminal and for Markdown, and the page around them."""

from collections.abc import Iterator, Sequence
import textwrap

from relive.bench import catalogue
from relive.bench import results

_KINDS = ("arrays", "tensors")
_INTRODUCTION = """\
The command below wrote this page, on the machine below. It measures relive and every library of its kind that is
installed, each used as its documentation shows, and checks every row that they return.

- **Like with like.** {arrays} return arrays; {tensors} return tensors of torch. relive and
  tianshou have calls that convert, so draws have one table for arrays and one for tensors. Flashbax's arrays are those
  of JAX.
- **In turns.** In each round every library has its turn (A B C A B C ...), so a machine that slows down slows all of
  them. The tables show the median of the rounds, with the fastest and the slowest. Each library has one thread; the
  garbage collector is off.
- **Checked.** Each observation encodes its episode and its step, so every row of a batch can be checked against
  [the definition below](#rows-that-differ), while it is timed and again in a small ring of a few hundred steps that has
  wrapped around twice.
- **Limits.** *take* gathers the same bytes with one `ndarray.take` a column (or assigns them, where steps are added);
  *copy* copies a batch that is already gathered.

`pip install cpprb 'tianshou>=2' stable-baselines3 torchrl 'ray[rllib]' flashbax` installs the libraries. Reverb needs
another version of numpy than they do, and is not measured.
"""
_GLANCE = """\
Microseconds for a batch or a step; bytes for memory. **Bold** marks where relive is slower or larger than the fastest
library whose rows are all right. Libraries that could not be measured in a workload are not compared there, such as
TorchRL's prioritized buffer where its C++ part does not load; [the last section](#not-measured) lists them.
"""
_DEFINITION = """\
A row of a draw is **right** if some m from 1 to n explains all of it:

- its reward is the discounted sum of the m rewards that follow its observation;
- its terminal flag is set if and only if the episode terminated after those m steps;
- its next observation is the one after those m steps, in the same episode, and its discount is gamma^m; neither matters
  after termination, where the value is multiplied by 0.

A stack holds the frames before it in its episode; before the first frame there are zeros, or that frame again. A
sequence holds consecutive steps of one episode. A batch has the size that was asked for. With priorities, steps are
drawn in proportion to priority^alpha, and weights are proportional to priority^(-alpha beta).

Not every library promises that. Listed are the workloads where rows differ from this definition, and the reason. The
tables below show which part differs in which share of the rows. A share in brackets is from the small ring; no row of
the large one differed.
"""


def _introduction() -> str:
    """Return the introduction, which lists who returns what."""
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
    rows = [["", "median", "rounds", "x relive", "rows"]]
    for one in row.measured:
        spread = "" if one.low is None else f"{figure(one.low)} to {figure(one.high)}"
        verdict = "limit" if one.is_limit else f"differ: {one.faults()}" if one.faults() else "right"
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
        yield f"![Microseconds of each library in four workloads; bars are hatched where rows differ]({picture})\n"
    yield "## At a glance\n"
    yield _GLANCE
    heads = ["", "relive", "fastest right library", "relive / library", "relive / take", "relive / copy"]
    yield from _table([heads, *map(_glance, run.rows)])
    yield f"## Rows that differ\n\n{_DEFINITION}"
    wrong = [
        textwrap.fill(
            f"- **{peer}** ({', '.join(names)}). {catalogue.PEERS[peer].differs}".rstrip(), 112, subsequent_indent="  "
        )
        for peer, names in run.wrong().items()
    ]
    yield from [*(wrong or ["All rows of this run were right."]), ""]
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
