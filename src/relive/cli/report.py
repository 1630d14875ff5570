"""A page about what was saved, in one file that needs nothing else: `report.html`, filled in.

Whatever comes from the file is escaped, and the page's own policy lets no script run and nothing be fetched.
"""

import base64
from importlib import resources
from typing import Any

import numpy as np

import relive
from relive.cli import contents
from relive.cli import formatting
from relive.cli import plots
from relive.cli import tables
from relive.common import imports

with imports.optional_dependency("cli"):
    import jinja2

_FRAMES = 6
_CARDS = {
    "size": "steps",
    "total_transitions": "transitions",
    "total_episodes": "episodes",
    "items": "items",
    "tokens": "tokens",
}
"""Which statistics are looked for first."""


def page(said: dict[str, Any], buffer: object) -> str:
    """Return the page about what was said of a path, and what is in the buffer that was made of it."""
    found = contents.of(buffer)
    text = resources.files("relive.cli").joinpath("report.html").read_text(encoding="utf-8")
    template = jinja2.Template(text, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    text = template.render(
        said=said,
        name=formatting.plain(said["class"] or said["kind"]),
        cards=_cards(said, found),
        charts=list(plots.charts(found)),
        frames=[plots.frame(*each) for each in contents.images(buffer, _FRAMES)],
        tables=tables.of(said, found),
        version=relive.__version__,
        counted=formatting.counted,
        base64=lambda png: base64.b64encode(png).decode(),
    )
    return str(text)


def _cards(said: dict[str, Any], found: contents.Contents) -> list[tuple[str, str]]:
    """Return the few numbers that are looked for first, and what they are."""
    stats = said["stats"]
    cards = [(formatting.number(stats[name]), words) for name, words in _CARDS.items() if name in stats]
    if said["records"] is not None:
        cards.append((formatting.number(said["records"]["records"]), "records"))
    for name, words in (("episode lengths", "mean episode length"), ("episode returns", "mean return")):
        if len(found.get(name, ())):
            cards.append((formatting.number(np.mean(found[name]).item()), words))
    return [*cards, (formatting.size(said["bytes"]), "on disk")]
