"""The facts of a checkpoint or a journal as tables of words: what the terminal and the page show alike."""

from collections.abc import Sequence
import dataclasses

from relive.tools import inspection
from relive.tools import wording

_NOT_FINITE = {"priorities": "unrated"}


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of words under a title.

    Attributes:
        title: What it is about.
        header: A word over each column; none if the first word of a row says enough.
        rows: The words, as many in each.
        num_words: So many columns hold words, and stand to the left; those behind them hold numbers.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    num_words: int = 2


def of(found: inspection.Inspection) -> list[Table]:
    """Return the tables that have rows."""
    tables = [_overview(found), _distributions(found), _counters(found), _settings(found), _files(found)]
    return [table for table in tables if table.rows]


def _overview(found: inspection.Inspection) -> Table:
    rows = [("kind", found.kind.value), ("class", wording.plain(found.class_name or "unknown"))]
    if found.records is not None:
        segments, count = found.records["segments"], found.records["records"]
        rows.append(("records", f"{count:,} in {wording.counted(segments, 'segment')}"))
    if found.facts is not None:
        sizes = found.facts.sizes
        for what, limit in (("rows", "capacity"), ("transitions", "max_transitions")):
            if what in sizes:
                rows.append((what, _of_limit(sizes[what], sizes.get(limit))))
        if "items" in sizes:
            rows.append(("items", _of_limit(sizes["items"], None)))
        if found.facts.episodes:
            ends = [f"{count:,} {name.lower().replace('_', ' ')}" for name, count in found.facts.episodes.items()]
            total = _of_limit(sizes["episodes"], sizes.get("max_episodes"))
            rows.append(("episodes", f"{total}: {', '.join(ends)}"))
    rows.append(("on disk", f"{wording.size(found.nbytes)} in {wording.counted(len(found.files), 'file')}"))
    if found.generator is not None:
        rows.append(("generator", wording.plain(found.generator)))
    rows += [("note", note) for note in found.notes]
    rows += [("broken", fault) for fault in found.faults]
    if not found.faults:
        rows.append(("health", "all checksums are right"))
    return Table("", (), rows)


def _of_limit(count: int | None, limit: int | None) -> str:
    """Return a number of rows and how many there can be."""
    return f"{count:,}" if not limit else f"{count:,} of {limit:,} ({(count or 0) / limit:.0%})"


def _distributions(found: inspection.Inspection) -> Table:
    spreads = {} if found.facts is None else found.facts.distributions
    rows = []
    for name, spread in spreads.items():
        if spread.count or spread.num_not_finite:
            values = (spread.least, *(spread.quartiles or (None,) * 3), spread.most, spread.mean)
            rest = (
                f" (+ {spread.num_not_finite:,} {_NOT_FINITE.get(name, 'not finite')})" if spread.num_not_finite else ""
            )
            rows.append((wording.distribution(name), f"{spread.count:,}{rest}", *map(wording.number, values)))
    return Table("Distributions", ("", "count", "min", "25 %", "median", "75 %", "max", "mean"), rows, num_words=1)


def _counters(found: inspection.Inspection) -> Table:
    counters = {} if found.facts is None else found.facts.counters
    rows = [(wording.plain(name).replace("_", " "), f"{count:,}") for name, count in counters.items()]
    return Table("Since it was made", (), rows)


def _settings(found: inspection.Inspection) -> Table:
    rows = [(wording.plain(name), wording.setting(value)) for name, value in found.settings.items()]
    return Table("Settings", (), rows)


def _files(found: inspection.Inspection) -> Table:
    rows = []
    for file in found.files:
        what = "" if file.dtype is None else f"{file.dtype} {list(file.shape or ())}"
        rows.append((wording.plain(file.name), what, wording.size(file.nbytes)))
    return Table("Files", ("file", "array", "size"), rows)
