"""Values for people: on one line, and so that a terminal obeys nothing in them."""

import math
from typing import Any

import numpy as np

_MOST_CHARACTERS, _MOST_ENTRIES = 300, 8


def size(nbytes: float) -> str:
    """Return a number of bytes."""
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    power = min(int(math.log2(nbytes) // 10), 4)
    return f"{nbytes / 1024**power:,.1f} {' KMGT'[power]}iB"


def counted(count: int, noun: str) -> str:
    """Return a number of things: 1 record, 2,000 records."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def statistic(value: Any) -> str:
    """Return a number of four digits or all of an integer, a dash for none, or a mapping of them."""
    if isinstance(value, dict) and len(value) > _MOST_ENTRIES:
        return f"{len(value):,} of them"
    if isinstance(value, dict):
        return plain(", ".join(f"{name}: {statistic(each)}" for name, each in value.items()) or "none")
    if value is None or isinstance(value, bool):
        return "—" if value is None else str(value)
    is_grouped = abs(value) < 1e15 and (value == int(value) or abs(value) >= 1000)
    return f"{value:,.0f}" if is_grouped else f"{value:.4g}"


def setting(value: Any) -> str:
    """Return a setting: an object as it is made, a schema as its fields."""
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
