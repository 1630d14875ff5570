"""A page about what was saved, in one file that needs nothing else.

Whatever comes from the file is escaped, and the page's own policy lets no script run and nothing be fetched.
"""

import base64
from collections.abc import Iterable
import html
from typing import Any

import relive
from relive.cli import contents
from relive.cli import formatting
from relive.cli import plots
from relive.cli import tables

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_ABOUT_FRAMES = "Of rows drawn at random. Four channels are shown side by side."

_CARDS = {
    "size": "steps",
    "total_transitions": "transitions",
    "total_episodes": "episodes",
    "items": "items",
    "tokens": "tokens",
}
"""Which statistics are looked for first."""

_STYLE = """
:root { color-scheme: light; --ink: #1d2730; --soft: #5c6670; --line: #e1e5e9; --blue: #2f6fb0; }
* { box-sizing: border-box; }
body { margin: 0; background: #f4f6f8; color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 24px 48px; }
header { margin-bottom: 24px; }
h1 { margin: 0; font-size: 26px; line-height: 1.25; }
h2 { margin: 36px 0 12px; font-size: 18px; }
.path { margin: 6px 0 0; color: var(--soft); font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px;
  overflow-wrap: anywhere; }
.health { display: inline-block; margin-top: 14px; padding: 3px 12px; border-radius: 999px; font-size: 13px;
  font-weight: 600; background: #dff3e4; color: #17612e; }
.health.broken { background: #fbe0de; color: #8f1d14; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 14px; }
.card, figure, .table { background: white; border: 1px solid var(--line); border-radius: 10px; }
.card { padding: 14px 18px; }
.card b { display: block; font-size: 22px; line-height: 1.3; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.about { margin: -6px 0 12px; color: var(--soft); font-size: 13px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 16px; }
figure { margin: 0; padding: 14px 18px 16px; }
figure h3 { margin: 0; font-size: 15px; }
figcaption { margin-bottom: 8px; color: var(--soft); font-size: 13px; }
.plots img { display: block; width: 100%; height: auto; max-width: 640px; margin: 0 auto; }
.frames { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)); gap: 16px; }
.frames figure { padding: 10px; }
.frames figcaption { margin: 6px 0 0; font-size: 12px; text-align: center; }
.frames img { display: block; width: 100%; height: auto; image-rendering: pixelated; border-radius: 4px; }
.table { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th, td { padding: 7px 18px; text-align: left; vertical-align: top; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
tr:first-child > * { border-top: 0; }
thead th { color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody th { font-weight: 500; white-space: nowrap; }
.pairs th { width: 260px; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.broken td, .broken th { color: #8f1d14; font-weight: 600; }
footer { margin-top: 32px; color: var(--soft); font-size: 13px; }
"""


def page(said: dict[str, Any], found: contents.Contents) -> str:
    """Return the page about what was said of a path, and found in its buffer."""
    name = formatting.plain(said["class"] or said["kind"])
    sections = [
        _header(said, name),
        _cards(said, found),
        _section("Charts", "plots", map(_plot, plots.of(found))),
        _section("Sample frames", "frames", map(_frame, plots.frames(found)), _ABOUT_FRAMES),
        *map(_table, tables.of(said, found)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(name)}: {html.escape(said["path"])}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{''.join(sections)}"
        f"<footer>Made by relive {relive.__version__}, relive inspect.</footer>\n</main>\n</body>\n</html>\n"
    )


def _header(said: dict[str, Any], name: str) -> str:
    count = len(said["faults"])
    words = f"broken in {formatting.counted(count, 'place')}: see below" if count else "nothing is broken"
    return (
        f'<header>\n<h1>{html.escape(name)}</h1>\n<p class="path">{html.escape(said["path"])}</p>\n'
        f'<span class="health {"broken" if count else "whole"}">{html.escape(words)}</span>\n</header>\n'
    )


def _cards(said: dict[str, Any], found: contents.Contents) -> str:
    """Return the few numbers that are looked for first."""
    stats = said["stats"]
    cards = [(formatting.number(stats[name]), words) for name, words in _CARDS.items() if name in stats]
    if said["records"] is not None:
        cards.append((formatting.number(said["records"]["records"]), "records"))
    for name, words in (("episode_lengths", "mean episode length"), ("episode_returns", "mean return")):
        spread = found.distributions.get(name)
        if spread is not None and spread.count:
            cards.append((formatting.number(spread.mean), words))
    cards.append((formatting.size(said["bytes"]), "on disk"))
    shown = [f'<div class="card"><b>{html.escape(value)}</b><span>{words}</span></div>\n' for value, words in cards]
    return f'<div class="cards">\n{"".join(shown)}</div>\n'


def _section(title: str, name: str, figures: Iterable[str], about: str = "") -> str:
    """Return a section with figures, or nothing if there is none."""
    shown = "".join(figures)
    words = f'<p class="about">{about}</p>\n' if about else ""
    return f'<h2>{title}</h2>\n{words}<div class="{name}">\n{shown}</div>\n' if shown else ""


def _plot(picture: plots.Picture) -> str:
    head = f"<h3>{html.escape(picture.title)}</h3>\n<figcaption>{html.escape(picture.caption)}</figcaption>"
    return f"<figure>\n{head}\n{_image(picture)}\n</figure>\n"


def _frame(picture: plots.Picture) -> str:
    return f"<figure>\n{_image(picture)}\n<figcaption>{html.escape(picture.title)}</figcaption>\n</figure>\n"


def _image(picture: plots.Picture) -> str:
    source = base64.b64encode(picture.png).decode()
    return f'<img src="data:image/png;base64,{source}" alt="{html.escape(picture.alt)}">'


def _table(table: tables.Table) -> str:
    head = ""
    if table.header:
        words = [_cell("th", word, number, table) for number, word in enumerate(table.header)]
        head = f"<thead><tr>{''.join(words)}</tr></thead>\n"
    rows = []
    for row in table.rows:
        kind = ' class="broken"' if row[0] == "broken" and not table.header else ""
        cells = [_cell("td" if number else "th", word, number, table) for number, word in enumerate(row)]
        rows.append(f"<tr{kind}>{''.join(cells)}</tr>\n")
    title = html.escape(table.title or "Overview")
    name = "" if table.header else ' class="pairs"'
    body = f"<tbody>\n{''.join(rows)}</tbody>"
    return f'<h2>{title}</h2>\n<div class="table"><table{name}>\n{head}{body}\n</table></div>\n'


def _cell(tag: str, word: str, number: int, table: tables.Table) -> str:
    kind = ' class="number"' if number >= table.num_words else ""
    return f"<{tag}{kind}>{html.escape(word)}</{tag}>"
