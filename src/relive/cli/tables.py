"""What was saved, as tables of words: what the terminal shows."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from relive.cli import contents
from relive.cli import formatting

_LABELS = ("count", "without", "min", "25 %", "median", "75 %", "max", "mean")
"""What there is to say of numbers: how many there are, how many rows are without one, and how they are spread."""

_MOST_ENTRIES = 8
"""Of a mapping that is written out."""


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


def of(said: dict[str, Any], found: contents.Contents) -> list[Table]:
    """Return the tables that have rows: of what was said of a path, and of what was found in its buffer."""
    settings = ({} if said["schema"] is None else {"schema": said["schema"]}) | said["settings"]
    tables = [
        _overview(said),
        _distributions(found),
        Table("Statistics", (), [(name.replace("_", " "), _value(value)) for name, value in said["stats"].items()]),
        Table(
            "Settings", (), [(formatting.plain(name), formatting.setting(value)) for name, value in settings.items()]
        ),
        Table("Files", ("file", "array", "size"), [_array(each) for each in said["arrays"].values()]),
    ]
    return [table for table in tables if table.rows]


def _overview(said: dict[str, Any]) -> Table:
    rows = [("kind", said["kind"]), ("class", formatting.plain(said["class"] or "unknown"))]
    if said["records"] is not None:
        segments, count = said["records"]["segments"], said["records"]["records"]
        rows.append(("records", f"{count:,} in {formatting.counted(segments, 'segment')}"))
    rows.append(("on disk", formatting.size(said["bytes"])))
    if said["generator"] is not None:
        rows.append(("generator", formatting.plain(said["generator"])))
    rows += [("note", formatting.plain(note)) for note in said["notes"]]
    rows += [("broken", fault) for fault in said["faults"]]
    if not said["faults"]:
        rows.append(("health", "nothing is broken"))
    return Table("", (), rows)


def _distributions(found: contents.Contents) -> Table:
    columns = {name: _numbers(values) for name, values in found.items() if len(values)}
    rows = list(zip(_LABELS, *columns.values(), strict=True)) if columns else []
    rows = [row for row in rows if row[0] != "without" or set(row[1:]) != {"0"}]
    return Table("Distributions", ("", *columns), rows, num_words=1)


def _numbers(values: contents.Values) -> list[str]:
    finite = values[np.isfinite(values)]
    counts = [len(finite), len(values) - len(finite)]
    if not len(finite):
        return [*map(formatting.number, counts), *["—"] * 6]
    mean = np.sum(finite / len(finite)).item()  # The sum of the largest floats has no value.
    quartiles = np.quantile(finite, (0, 0.25, 0.5, 0.75, 1), method="inverted_cdf").tolist()
    return [formatting.number(number) for number in (*counts, *quartiles, mean)]


def _value(value: Any) -> str:
    """Return a statistic: a number, none, or a mapping of them."""
    if isinstance(value, dict) and len(value) > _MOST_ENTRIES:
        return f"{len(value):,} of them"
    if isinstance(value, dict):
        return formatting.plain(", ".join(f"{name}: {_value(each)}" for name, each in value.items()) or "none")
    return str(value) if isinstance(value, bool) else formatting.number(value)


def _array(each: dict[str, Any]) -> tuple[str, str, str]:
    return formatting.plain(each["file"]), f"{each['dtype']} {each['shape']}", formatting.size(each["bytes"])
