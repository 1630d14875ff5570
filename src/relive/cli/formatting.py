"""Values for people: on one line, and so that a terminal obeys nothing in them."""

import math
from typing import Any

import numpy as np

_MOST_CHARACTERS, _MOST_ENTRIES = 300, 8


def number(value: float | None) -> str:
    """Return a number of four digits, or all of an integer; a dash for none.

    >>> from relive.cli import formatting
    >>> formatting.number(1234567), formatting.number(0.1 + 0.2), formatting.number(None)
    ('1,234,567', '0.3', '—')
    """
    if value is None:
        return "—"
    is_grouped = abs(value) < 1e15 and (value == int(value) or abs(value) >= 1000)
    return f"{value:,.0f}" if is_grouped else f"{value:.4g}"


def size(nbytes: float) -> str:
    """Return a number of bytes.

    >>> from relive.cli import formatting
    >>> formatting.size(512), formatting.size(3 * 2**20)
    ('512 B', '3.0 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    power = min(int(math.log2(nbytes) // 10), 4)
    return f"{nbytes / 1024**power:,.1f} {' KMGT'[power]}iB"


def counted(count: int, noun: str) -> str:
    """Return a number of things.

    >>> from relive.cli import formatting
    >>> formatting.counted(1, "record"), formatting.counted(2000, "record")
    ('1 record', '2,000 records')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def statistic(value: Any) -> str:
    """Return a statistic: a number, none, or a mapping of them, which is counted if it is large.

    >>> from relive.cli import formatting
    >>> formatting.statistic({"stale": 2, "empty": 3}), formatting.statistic({})
    ('stale: 2, empty: 3', 'none')
    """
    if isinstance(value, dict) and len(value) > _MOST_ENTRIES:
        return f"{len(value):,} of them"
    if isinstance(value, dict):
        return plain(", ".join(f"{name}: {statistic(each)}" for name, each in value.items()) or "none")
    return str(value) if isinstance(value, bool) else number(value)


def setting(value: Any) -> str:
    """Return a setting: an object as it is made, a schema as its fields.

    >>> from relive.cli import formatting
    >>> formatting.setting({"kind": "MinSize", "n": 100})
    'MinSize(n=100)'
    >>> formatting.setting([["observation", "|u1", [84, 84]], ["reward", "<f4", []]])
    'observation uint8 [84, 84], reward float32'
    """
    if isinstance(value, dict) and isinstance(value.get("kind"), str):
        if value["kind"] == "own":
            return plain(f"an object of {value.get('class')}")
        arguments = ", ".join(f"{name}={setting(each)}" for name, each in value.items() if name != "kind")
        return plain(f"{value['kind']}({arguments})")
    if isinstance(value, list) and value and all(isinstance(row, list) and len(row) == 3 for row in value):
        return plain(", ".join(f"{path} {_dtype(dtype)} {shape or ''}".rstrip() for path, dtype, shape in value))
    return plain(value if isinstance(value, str) else repr(value))


def _dtype(description: Any) -> str:
    if not isinstance(description, str):
        return "structured"
    try:
        return np.dtype(description).name
    except TypeError:
        return description


def plain(text: str) -> str:
    """Return a text from a file, cut if it is long, and without anything that moves a cursor."""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
