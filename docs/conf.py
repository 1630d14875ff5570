"""How Sphinx builds these pages: `sphinx-build -W -b html docs docs/_build`."""

import functools
import html
import importlib
import os
import pathlib
import re
import sys
from typing import Any

from docutils import nodes
import numpy.typing
from sphinx import addnodes
from sphinx.domains import python
from sphinx.util import typing

import relive

HERE = pathlib.Path(__file__).parent

project = "relive"
author = "The relive authors"
project_copyright = "The relive authors"
version = release = relive.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.programoutput",
]
exclude_patterns = ["_build", "decisions", "install.md"]

# Docstrings put names between single backticks: those that have an entry in the reference become links.
default_role = "relive-name"
autodoc_default_options = {
    "members": True,
    "inherited-members": True,
    "special-members": "__len__, __next__, __anext__",
}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
myst_heading_anchors = 3

# Public methods that only other classes of relive call, or that refuse or pass on what a base class of another library
# defines: they are in no page.
INTERNAL = {
    "ColumnReplayBuffer": "check_priorities history readable_slots",
    "TransitionReplayBuffer": "window_for",
    "Episode": "check_can_end check_next_step checked_next_version",
    "Derived": "derive",
    "Schema": "columns description from_description leaves named_fields observation_paths rows",
    "ColumnStorage": "gather prepare rewards write_rows",
    "MemmapStorage": "id",
    "Sampler": "attach begin_telling catch_up draw drawn exponent has_hooks importance is_tracking weights",
    "PrioritizedSampler": "check_priorities least_weight note_priority ticks total_weight tree",
    "SumTree": "draw settle write",
    "TransitionWindow": "assembled",
    "Window": "read rule why_not_ready",
    "Admission": "most_admitted",
    "Groups": "least_size",
    "Journal": "append begin is_due prune save_base",
    "OpenEpisode": "send",
    "Recorder": "spec",
    "EpisodeRecorder": "spec",
    "ReplayBuffer": "actions dones next_observations observations rewards timeouts",
}

# Where these pages are published, and what they are made from.
html_baseurl = "https://relive-rl.github.io/relive/"
REPOSITORY = "https://github.com/relive-rl/relive"

# Types of other libraries become links where the network is.
if os.environ.get("GITHUB_ACTIONS"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3/", None),
        "numpy": ("https://numpy.org/doc/stable/", None),
        "torch": ("https://docs.pytorch.org/docs/stable/", None),
        "gymnasium": ("https://gymnasium.farama.org/", None),
    }

# The pages show what the `relive` beside this Python says of itself, 80 columns wide.
os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}

# What is copied from a block is what one types: without prompts, and without what Python prints.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Two hyphens begin an option: `mark_dashes` writes the dashes that Sphinx leaves to smartquotes.
smartquotes = False

html_theme = "furo"
html_title = f"relive {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_extra_path = ["social.png"]
html_search_scorer = str(HERE / "_static" / "scorer.js")
html_theme_options = {
    "source_repository": f"{REPOSITORY}/",
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [
        {
            "name": "GitHub",
            "url": REPOSITORY,
            "html": (HERE / "_static" / "github.svg").read_text(encoding="utf-8"),
            "class": "",
        }
    ],
}

# What Sphinx writes for the types of arrays and for defaults that are made, and what the code says.
SIGNATURES = {
    re.escape(typing.stringify_annotation(numpy.typing.ArrayLike, "smart")): "~numpy.typing.ArrayLike",
    re.escape(typing.stringify_annotation(numpy.typing.DTypeLike, "smart")): "~numpy.typing.DTypeLike",
    r"~numpy\.ndarray\[tuple\[~typing\.Any, \.\.\.\], ~numpy\.dtype\[(~?[\w.]+)\]\]": r"~numpy.typing.NDArray[\1]",
    r"<factory>": "...",
}


class NameRole(python.PyXRefRole):
    """Shows text as code, and makes it a link if it is a name that has an entry in the reference."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the nodes of one such text."""
        if all(part.isidentifier() for part in self.text.split(".")):
            self.refdomain, self.reftype = "py", "obj"
            self.classes = ["xref", "py", "py-obj"]
            return self.create_xref_node()
        return [nodes.literal(self.rawtext, self.text)], []


def resolve_public_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Resolve the names of types, which signatures have with the module of their code, to their public names."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in relive.__all__:
        return None
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", f"relive.{name}", node, content)


def shorten_types(app: Any, what: str, name: str, thing: Any, options: Any, *texts: str | None) -> Any:
    """Write the arguments and the returned type as the code does."""
    for pattern, short in SIGNATURES.items():
        texts = tuple(text and re.sub(pattern, short, text) for text in texts)
    return texts


def shorten_attributes(app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Show the types of attributes without their modules, as in signatures."""
    for number, line in enumerate(lines):
        if line.startswith(":vartype "):
            head, _, types = line.partition(": ")
            types = re.sub(r"(?<![\w.'])(?=[a-zA-Z_]\w*\.)", "~", types)
            for pattern, short in SIGNATURES.items():
                types = re.sub(pattern, short, types.replace("tuple[Any", "tuple[~typing.Any"))
            lines[number] = f"{head}: {types}"


def function_of(thing: Any) -> Any:
    """Return the function behind a method or a property, or else the thing itself."""
    return next((getattr(thing, name) for name in ("fget", "func", "__func__") if hasattr(thing, name)), thing)


def skip_internal(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out members of modules, what is inherited from other libraries, and what INTERNAL names."""
    if what == "module":
        return True
    function = function_of(thing)
    module = getattr(function, "__module__", None) or getattr(function, "__objclass__", relive.Schema).__module__
    if not module.startswith("relive"):
        return True
    owner = getattr(sys.modules[module], getattr(function, "__qualname__", "").rpartition(".")[0], object)
    hidden = " ".join(INTERNAL.get(base.__name__, "") for base in owner.__mro__).split()
    is_tuple_field = (getattr(thing, "__doc__", None) or "").startswith("Alias for field number")
    return True if name in hidden or is_tuple_field else None


SOURCES: dict[tuple[str, str], str] = {}


def name_sources(app: Any, doctree: nodes.document) -> None:
    """Name each inherited member as its own class does, under which viewcode finds its source."""
    for signature in doctree.findall(addnodes.desc_signature):
        if signature.get("module") and signature.get("fullname"):
            thing = importlib.import_module(signature["module"])
            thing = functools.reduce(lambda it, name: getattr(it, name, None), signature["fullname"].split("."), thing)
            thing = function_of(thing)
            name, module = getattr(thing, "__qualname__", None), getattr(thing, "__module__", None)
            if name and module:
                signature["fullname"] = name
                SOURCES[signature["module"], name] = module


def mark_dashes(app: Any, doctree: nodes.document) -> None:
    """Write a dash between a parameter and its description, where Sphinx leaves two hyphens to smartquotes."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def describe_page(
    app: Any, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Tell search engines and social networks what a page is about: its title and its first paragraph."""
    if doctree is None:
        return
    paragraphs = (node.astext() for node in doctree.findall(nodes.paragraph))
    text = next((" ".join(text.split()) for text in paragraphs if len(text) > 20), "")
    if len(text) > 200:
        text = text[:200].rpartition(" ")[0] + " …"
    title = next((node.astext() for node in doctree.findall(nodes.title)), project)
    tags = {
        'name="description"': text,
        'property="og:title"': title,
        'property="og:description"': text,
        'property="og:type"': "website",
        'property="og:site_name"': project,
        'property="og:url"': html_baseurl + app.builder.get_target_uri(pagename),
        'property="og:image"': f"{html_baseurl}social.png",
        'name="twitter:card"': "summary_large_image",
    }
    context["metatags"] += "\n".join(f'<meta {name} content="{html.escape(value)}" />' for name, value in tags.items())


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
    """Connect all; pictures are marked before napoleon, and sources are named before viewcode (priority 500)."""
    app.add_role("relive-name", NameRole())
    for field in python.PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("autodoc-process-docstring", mark_pictures, priority=400)
    app.connect("autodoc-process-docstring", shorten_attributes, priority=600)
    app.connect("autodoc-process-signature", shorten_types)
    app.connect("autodoc-skip-member", skip_internal)
    app.connect("doctree-read", mark_dashes)
    app.connect("doctree-read", name_sources, priority=400)
    app.connect("html-page-context", describe_page)
    app.connect("missing-reference", resolve_public_name)
    app.connect("source-read", drop_last_empty_line)
    app.connect("viewcode-follow-imported", lambda app, module, name: SOURCES.get((module, name)))
