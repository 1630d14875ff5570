"""HTML representations of buffers and batches for notebooks."""

from collections.abc import Iterable, Mapping
import html
from typing import Any, TypeAlias

Row: TypeAlias = tuple[str, str, tuple[int, ...], int]
"""Name, dtype, shape and bytes of a field."""


def fields(prefix: str, described: Mapping[str, Any], count: int) -> list[Row]:
    """Return a table row for each field of a schema with `count` stored values."""
    return [
        (f"{prefix}{path}", str(field.dtype), (count, *field.shape), count * field.nbytes)
        for path, field in described.items()
    ]


def table(title: str, rows: Iterable[Row]) -> str:
    """Return a title and a table of fields as escaped HTML; only the title if there are no fields."""
    lines = [
        (name, dtype, " x ".join(f"{length:,}" for length in shape), f"{nbytes:,}")
        for name, dtype, shape, nbytes in rows
    ]
    shown = "".join("<tr>" + "".join(f"<td>{html.escape(word)}" for word in line) for line in lines)
    head = "<tr><th>field<th>dtype<th>shape<th>bytes"
    return f"<div>{html.escape(title)}{shown and f'<table>{head}{shown}</table>'}</div>"
