"""What is said of a run: a table a workload, for the terminal and for Markdown, and the page around them."""

from collections.abc import Iterator, Sequence

from relive.bench import catalogue
from relive.bench import results
from relive.common import imports

with imports.optional_dependency("bench"):
    from rich import console as rich_console
    from rich import table as rich_table
    from rich import text as rich_text

_INTRODUCTION = """\
This page was written by the command below, on the machine below. It measures relive beside every library of its kind
that is installed, used as its documentation has it, and checks what each of them returns:

- **By turns.** In a round every peer has its turn (A B C A B C ...), so that a machine whose speed drifts slows all of
  them. The figures are medians over the rounds, with the fastest and the slowest round beside them. One thread a
  library; the garbage collector is off.
- **Checked.** Every observation says of which episode and step it is, so that each row of an answer is compared with
  what it should be: in the rings that are timed, and in one of some hundred steps that went round twice. With
  priorities, so are the shares of draws and the weights. **A fast wrong answer is reported as wrong**, with what is
  wrong in which share of the rows; a share in brackets is of the small ring, where the large one showed nothing.
- **Limits.** *take* gathers the same bytes with one `ndarray.take` a column (and assigns them, where steps are added);
  *copy* copies a batch that lies ready.

`pip install cpprb tianshou stable-baselines3 torchrl 'ray[rllib]' flashbax` installs the peers. A server such as
Reverb, which is built for another numpy, cannot be installed beside them and is not measured.
"""

_WIDE = 80
"""Columns of a terminal that has room for all."""

Cells = Sequence[Sequence[str]]


def figure(value: float) -> str:
    """Return a value with three digits, or all of a large one."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _cells(row: results.Row) -> Cells:
    """Return the words of a table, its heads first."""
    rows = [["", "median", "rounds", "x relive", "answers"]]
    for one in row.measured:
        spread = f"{figure(one.seconds.low * 1e6)} to {figure(one.seconds.high * 1e6)}" if one.seconds else ""
        verdict = "limit" if one.is_limit else f"WRONG: {one.faults()}" if one.faults() else "right"
        rows.append([one.peer, figure(one.value or 0.0), spread, _times(row.ratio(one, row.own)), verdict])
    return rows


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def print_table(row: results.Row, console: rich_console.Console) -> None:
    """Print the table of a workload."""
    cells = _cells(row)
    if console.width < _WIDE:  # There is no room for the rounds.
        cells = [[*line[:-3], *line[-2:]] for line in cells]
    heads, *rows = cells
    console.print(f"\n{row.workload.name}: {row.workload.title}, {row.workload.unit}", style="bold")
    if rows:
        table = rich_table.Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        for head in heads:
            is_word = head in ("", "answers")
            table.add_column(head, justify="left" if is_word else "right", no_wrap=head != "answers")
        for peer, *figures, verdict in rows:
            style = "bold" if peer in results.OWN else "dim" if verdict == "limit" else ""
            last = rich_text.Text(verdict, style="red" if verdict.startswith("WRONG") else style)
            table.add_row(peer, *figures, last, style=style)
        console.print(table)


def print_unmeasured(run: results.Run, console: rich_console.Console) -> None:
    """Print once who was not measured, and why."""
    for number, (reason, names) in enumerate(run.unmeasured().items()):
        console.print(f"{'' if number else chr(10)}not measured: {', '.join(names)}: {reason}", style="dim")


def page(run: results.Run, picture: str | None) -> str:
    """Return the page in Markdown.

    Args:
        run: What it is about.
        picture: Where the picture is, seen from the page; None if there is none.
    """
    return "\n".join(_lines(run, picture))


def _lines(run: results.Run, picture: str | None) -> Iterator[str]:
    yield f"# Benchmarks\n\n{_INTRODUCTION}\n```sh\n{run.command}\n```\n\n{run.settings}.\n"
    yield from _table([["", ""], *run.machine.items()])
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if version)
    yield f"Measured: {versions or 'no peer'}.\n"
    if picture:
        yield f"![Microseconds of every peer in four workloads, with what was wrong]({picture})\n"
    yield "## At a glance\n"
    yield "Microseconds a batch or a step, and bytes where memory is meant; below 1, relive is ahead.\n"
    heads = ["", "relive", "fastest right peer", "relive / peer", "relive / take", "relive / copy"]
    yield from _table([heads, *map(_glance, run.rows)])
    yield "## Where relive is behind\n"
    ahead = [f"- **{row.workload.title}**: {words}." for row in run.rows if (words := _ahead(row))]
    yield "\n".join(ahead or ["Nowhere in this run."]) + "\n"
    yield "## Wrong results\n"
    wrong = [[one.peer, name, one.faults()] for name, one in run.wrong()]
    yield from _table([["peer", "workload", "wrong"], *wrong]) if wrong else ["Nothing was found in this run.\n"]
    yield "## Every workload\n"
    for row in run.rows:
        title, name = f"{row.workload.title[0].upper()}{row.workload.title[1:]}", row.workload.name
        yield f"<details><summary>{title}: {row.workload.unit} (<code>{name}</code>)</summary>\n"
        yield from [*_table(_cells(row)), "</details>\n"]
    unmeasured = [f"- {', '.join(names)}: {reason}" for reason, names in run.unmeasured().items()]
    yield from ["## Not measured\n", *unmeasured, ""] if unmeasured else []


def _glance(row: results.Row) -> list[str]:
    limits = {one.peer: row.ratio(row.own, one) for one in row.measured if one.is_limit}
    return [
        row.workload.title,
        figure(row.own.value or 0.0) if row.own else "",
        f"{row.fastest.peer} {figure(row.fastest.value or 0.0)}" if row.fastest else "nobody else",
        *map(_times, (row.ratio(row.own, row.fastest), limits.get("take"), limits.get("copy"))),
    ]


def _ahead(row: results.Row) -> str:
    """Return who is faster than relive and by how much, in words."""
    words = []
    for one in row.measured:
        ratio = row.ratio(row.own, one)
        if ratio and ratio > 1.0 and not one.is_limit and one.peer not in results.OWN:
            right = "" if one.is_right else ", which is wrong there"
            words.append(f"{ratio:.2f} times {one.peer}{right} ({catalogue.PEERS[one.peer].what})")
    return "; ".join(words)


def _table(cells: Cells) -> Iterator[str]:
    """Yield the lines of a table, its heads first."""
    heads, *rows = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)
    yield from [heads, f"|{'---|' * len(cells[0])}", *rows, ""]
