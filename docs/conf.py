"""How Sphinx builds these pages: `sphinx-build -W -b html docs docs/_build`."""

import os
import sys
from typing import Any

import relive

project = "relive"
author = "The relive authors"
project_copyright = "The relive authors"
version = release = relive.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.programoutput",
]
exclude_patterns = ["_build", "decisions", "install.md"]

# Docstrings put names between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
myst_heading_anchors = 3

# The pages show what the `relive` beside this Python says of itself, 80 columns wide.
os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}

# What is copied from a block is what one types: without prompts, and without what Python answers.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Two dashes begin an option, and are no dash.
smartquotes = False

html_theme = "furo"
html_title = f"relive {release}"
html_copy_source = False


def mark_pictures(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make a literal block of each picture in a docstring: what is indented below a plain line and an empty one."""
    marked: list[str] = []
    text = ""
    for line in lines:
        if line.startswith("    ") and text and not text.startswith(" ") and not marked[-1]:
            marked += ["::", ""]
        text = line or text
        marked.append(line)
    lines[:] = marked


def drop_last_empty_line(app: Any, docname: str, source: list[str]) -> None:
    """Take away the empty line before a closing fence, which doctest needs and nobody else."""
    source[0] = source[0].replace("\n\n```\n", "\n```\n")


def setup(app: Any) -> None:
    """Connect both; pictures are marked before napoleon (priority 500) indents blocks of its own."""
    app.connect("autodoc-process-docstring", mark_pictures, priority=400)
    app.connect("source-read", drop_last_empty_line)
