"""How Sphinx builds these pages: `sphinx-build -W -b html docs docs/_build`."""

from collections.abc import Iterator
import functools
import importlib
import os
import re
import sys
from typing import Any, get_args, get_origin

from docutils import nodes
import numpy.typing
from sphinx import addnodes
from sphinx.domains import python
from sphinx.util import inspect
from sphinx.util import typing

import relive

project = "relive"
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
exclude_patterns = ["_build", "decisions"]

# Docstrings put names between single backticks: those that have an entry in the reference become links.
default_role = "py:obj"
autodoc_default_options = {"members": True, "inherited-members": True, "special-members": "__len__"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
viewcode_follow_imported_members = False  # `name_sources` has followed them.
toc_object_entries_show_parents = "hide"
myst_heading_anchors = 3

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

# A dash stands between a parameter and its description; quotes stay as they are.
smartquotes_action = "D"

html_theme = "furo"
html_favicon = "_static/favicon.svg"
html_title = f"relive {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_extra_path = ["social.png"]
# What social networks show with a link.
myst_html_meta = {"property=og:image": f"{html_baseurl}social.png", "name=twitter:card": "summary_large_image"}
html_search_scorer = os.path.abspath("_static/scorer.js")
html_theme_options = {
    "source_repository": f"{REPOSITORY}/",
    "source_branch": "main",
    "source_directory": "docs/",
}

# What Sphinx writes for the types of arrays, and what the code says.
TYPES = {
    re.escape(typing.stringify_annotation(numpy.typing.ArrayLike, "smart")): "~numpy.typing.ArrayLike",
    re.escape(typing.stringify_annotation(numpy.typing.DTypeLike, "smart")): "~numpy.typing.DTypeLike",
    r"~numpy\.ndarray\[tuple\[~typing\.Any, \.\.\.\], ~numpy\.dtype\[(~?[\w.]+)\]\]": r"~numpy.typing.NDArray[\1]",
    rf"[\w.]+\.({'|'.join(relive.__all__)})\b": r"relive.\1",
}


def write_type(annotation: Any, mode: Any = "", written: Any = typing.stringify_annotation, **options: Any) -> str:
    """Return a type as the code has it, with the public names of classes."""
    text: str = written(annotation, "smart", **options)
    for pattern, short in TYPES.items():
        text = re.sub(pattern, short, text)
    return text


typing.stringify_annotation = inspect.stringify_annotation = write_type


def code_of(member: Any) -> Any:
    """Return the code of a method as it is written; of anything else, that itself."""
    return getattr(inspect.unwrap(getattr(member, "__func__", member)), "__code__", member)


def skip_inherited(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what is inherited from other libraries, or from a class that has an entry of its own."""
    place = app.env.current_document
    cls = getattr(importlib.import_module(place.autodoc_module), place.autodoc_class, None)
    bases = getattr(cls, "__mro__", (object,))
    defined = [(base, code_of(vars(base)[name])) for base in bases if name in vars(base)]
    # A class has copies of the methods that it inherits, of the same code.
    owner = next((base for base, code in reversed(defined) if code is defined[0][1]), cls)
    is_elsewhere = any(base.__name__ in relive.__all__ and issubclass(base, owner) for base in bases[1:])
    return cls is None or is_elsewhere or not owner.__module__.startswith("relive") or None


def type_arguments(cls: type) -> dict[str, Any]:
    """Return what the type variables of the bases of a class stand for in it, by their names."""
    found: dict[str, Any] = {}
    for base in cls.__mro__[::-1]:
        for generic in getattr(base, "__orig_bases__", ()):
            parameters = getattr(get_origin(generic), "__parameters__", ())
            found |= {each.__name__: value for each, value in zip(parameters, get_args(generic), strict=False)}
    return {name: value for name, value in found.items() if isinstance(value, type)}


def class_of(name: str) -> type | None:
    """Return the class of a dotted name below relive, or None."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError):
        return None
    return found if isinstance(found, type) else None


def resolve_types(app: Any, what: str, name: str, thing: Any, options: Any, given: str, returned: str) -> Any:
    """Replace Self and the type variables of what a method takes and returns by the classes that they are."""
    cls = class_of(name.rpartition(".")[0])
    if cls is None:
        return None
    public = name.rpartition(".")[0]
    known = {"Self": public} | {name: write_type(value) for name, value in type_arguments(cls).items()}
    for variable, meant in known.items():
        given, returned = (
            re.sub(rf"(?<![\w.~])~?(?:[a-z_]\w*\.)*{variable}\b(?!\.)", meant, text) if text else text
            for text in (given, returned)
        )
    return given, returned


def list_methods(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """List in the entry of a class the methods that another entry describes, those that write first."""
    if what != "class" or not isinstance(thing, type):
        return
    elsewhere: dict[str, list[str]] = {}
    for member in dir(thing):
        defined = [(base, code_of(vars(base)[member])) for base in thing.__mro__ if member in vars(base)]
        same = [base.__name__ for base, code in defined if code is defined[0][1] and base.__name__ in relive.__all__]
        if same and same[-1] != thing.__name__ and not member.startswith("_") and callable(getattr(thing, member)):
            elsewhere.setdefault(same[-1], []).append(member)
    for base, members in elsewhere.items():
        members.sort(key=lambda member: not member.startswith(("add", "append", "extend", "start")))
        links = ", ".join(f":py:meth:`{member} <relive.{base}.{member}>`" for member in members)
        lines += ["", f"Methods described in :py:class:`relive.{base}`: {links}.", ""]


def link_names(app: Any, doctree: nodes.document) -> None:
    """Link names of public classes in the text and the tables of pages to their entries."""
    for literal in [*doctree.findall(nodes.literal)]:
        name = literal.astext().removeprefix("relive.")
        is_class = isinstance(getattr(relive, name, None), type) if name in relive.__all__ else False
        inside = (nodes.reference, addnodes.pending_xref, nodes.title, addnodes.desc_signature)
        if is_class and not any(isinstance(parent, inside) for parent in parents_of(literal)):
            target = {"refdomain": "py", "reftype": "obj", "reftarget": f"relive.{name}", "refwarn": False}
            xref = addnodes.pending_xref("", refdoc=app.env.current_document.docname, refexplicit=True, **target)
            literal.replace_self(xref)
            xref += literal


def parents_of(node: Any) -> Iterator[Any]:
    """Yield the nodes that a node is in, the nearest first."""
    while node := node.parent:
        yield node


def name_sources(app: Any, doctree: nodes.document) -> None:
    """Name each member as the class does that defines it, under which viewcode finds its source."""
    for signature in doctree.findall(addnodes.desc_signature):
        if signature.get("module"):
            names = signature["fullname"].split(".")
            thing = functools.reduce(lambda it, name: getattr(it, name, None), names, sys.modules[signature["module"]])
            thing = getattr(thing, "fget", thing)
            if hasattr(thing, "__qualname__"):
                name = getattr(code_of(thing), "co_qualname", thing.__qualname__)
                signature["module"], signature["fullname"] = thing.__module__, name


# Where a name may break: after a bracket, dot, underscore or equals sign, and before a capital in the middle.
BREAKS = re.compile(r"([(._=]|[a-z](?=[A-Z]))(?=\w)")


def break_names(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let long names in tables break, so that no column is pushed off the page."""

    def broken(cell: re.Match[str]) -> str:
        return re.sub(r'(?<=<span class="pre">)[^<]{16,}', lambda name: BREAKS.sub(r"\1<wbr>", name[0]), cell[0])

    if "body" in context:
        context["body"] = re.sub(r"<td>.*?</td>", broken, context["body"], flags=re.DOTALL)


def setup(app: Any) -> None:
    """Connect all; sources are named before viewcode looks for them (priority 500)."""
    for field in python.PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("autodoc-process-signature", resolve_types)
    app.connect("autodoc-process-docstring", list_methods, priority=400)
    app.connect("doctree-read", name_sources, priority=400)
    app.connect("doctree-read", link_names)
    app.connect("html-page-context", break_names)
