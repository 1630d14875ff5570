"""The reference has every public name, and every public method of every class."""

import ast
from collections.abc import Iterator
import importlib
import inspect
import os
import pathlib
import re
import runpy
import subprocess
import sys
from typing import Any

import pytest

import relive
from relive import testing

REFERENCE = pathlib.Path(__file__).parent
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: ([\w.]+)", re.MULTILINE)
INTEGRATIONS = pathlib.Path(relive.__file__).parent / "integrations"
NOT_PUBLIC = {"step_columns"}
LIBRARIES = ("gymnasium", "jax", "minari", "pandas", "pyarrow", "ray", "sphinx", "stable_baselines3", "torch")


def documented() -> list[tuple[str, str]]:
    """Return the kind and the name of each entry of the pages."""
    return [entry for page in sorted(REFERENCE.glob("*.md")) for entry in DIRECTIVE.findall(page.read_text("utf-8"))]


def names_of_integrations() -> Iterator[str]:
    """Yield the public names of each module of relive.integrations, which may miss its library here."""
    for path in [*INTEGRATIONS.glob("*.py"), *INTEGRATIONS.glob("*/__init__.py")]:
        name = path.parent.name if path.name == "__init__.py" else path.stem
        if path.stem.endswith("_test") or name in NOT_PUBLIC:
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [getattr(node, "name", "_")]
            if isinstance(node, ast.Assign) and path.name == "__init__.py":
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for own in names:
                if not own.startswith("_") and own not in NOT_PUBLIC:
                    yield f"relive.integrations.{name}.{own}"


def public_names() -> set[str]:
    """Return every name that users import."""
    names = {f"relive.{name}" for name in relive.__all__}
    names |= {f"relive.testing.{name}" for name, value in vars(testing).items() if callable(value)}
    return names | set(names_of_integrations())


def found(name: str) -> Any:
    """Return what a dotted name names."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def internal_methods(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return the methods that conf.py leaves out, by class."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    conf = runpy.run_path(str(REFERENCE.parent / "conf.py"))
    return {owner: names.split() for owner, names in conf["INTERNAL"].items()}


def members_to_document(cls: type, internal: dict[str, list[str]]) -> Iterator[str]:
    """Yield the public methods, properties and fields of a class that relive has, inherited ones too."""
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
        if name.startswith(("_", "test_")) or not owner.__module__.startswith("relive"):
            continue
        if not any(name in internal.get(base.__name__, []) for base in cls.__mro__):
            yield name


def built(path: pathlib.Path) -> pathlib.Path:
    """Build the pages of the reference, and return their directory."""
    for library in LIBRARIES:
        pytest.importorskip(library)
    options = ("-q", "-b", "html", "-c", REFERENCE.parent, "-d", path / "doctrees", REFERENCE, path / "html")
    subprocess.run([sys.executable, "-m", "sphinx", *options], check=True, capture_output=True)
    return path / "html"


def test_the_pages_have_every_public_name_once() -> None:
    names = [name for _, name in documented()]
    assert public_names() - {*names} == set()
    assert len(names) == len({*names})


def test_the_index_lists_every_page() -> None:
    tree = (REFERENCE / "index.md").read_text("utf-8").partition("```{toctree}")[2]
    assert {f"{line}.md" for line in re.findall(r"^(\w+)$", tree, re.MULTILINE)} | {"index.md"} == {
        path.name for path in REFERENCE.glob("*.md")
    }


def test_the_built_pages_have_every_public_method(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one test that builds them, which takes longer than all others here."""
    site, internal = built(tmp_path), internal_methods(monkeypatch)
    text = "".join(page.read_text("utf-8") for page in site.glob("*.html"))
    shown = set(re.findall(r'<dt class="sig[^>]*id="([\w.]+)"', text))
    missing, too_much = [], []
    for kind, name in documented():
        if kind == "class":
            cls = found(name)
            fields = set(re.findall(r"^\s+(\w+)(?: \(.*\))?:", inspect.getdoc(cls) or "", re.MULTILINE))
            wanted = {f"{name}.{member}" for member in members_to_document(cls, internal)}
            missing += sorted(wanted - shown - {f"{name}.{field}" for field in fields})
            too_much += [f"{name}.{member}" for base in cls.__mro__ for member in internal.get(base.__name__, [])]
    assert missing == []
    assert shown.isdisjoint(too_much)
    # Entries have dashes, and links to their source.
    page = (site / "columns.html").read_text("utf-8")
    assert "<strong>capacity</strong> – " in page
    assert [path.name for path in site.rglob("*.html") if "</strong> -- " in path.read_text("utf-8")] == []
    signature = page[page.index('id="relive.RingReplayBuffer.save"') :]
    assert "ColumnReplayBuffer.save" in signature[: signature.index("</dt>")]


def test_internal_methods_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in LIBRARIES:
        pytest.importorskip(library)
    bases = [base for kind, name in documented() if kind == "class" for base in found(name).__mro__]
    classes = {base.__name__: base for base in bases if base.__module__.startswith("relive")}
    for owner, names in internal_methods(monkeypatch).items():
        assert [name for name in names if not hasattr(classes[owner], name)] == []
