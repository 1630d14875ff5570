"""The reference has every public name, and every public method of every class."""

import ast
from collections.abc import Iterator
import importlib
import inspect
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

import relive
from relive import testing

REFERENCE = pathlib.Path(__file__).parent
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: ([\w.]+)", re.MULTILINE)
INTEGRATIONS = pathlib.Path(relive.__file__).parent / "integrations"
# What integrations share, or import from another module.
NOT_PUBLIC = {"step_columns", "tensor_storage"}
# What Stable-Baselines3 writes to.
UNDOCUMENTED = {
    f"relive.integrations.stable_baselines3.{kind}.{name}"
    for kind in ("ReplayBuffer", "HerReplayBuffer")
    for name in ("actions", "dones", "next_observations", "observations", "rewards", "timeouts")
}
LIBRARIES = ("gymnasium", "jax", "minari", "pyarrow", "ray", "sphinx", "stable_baselines3", "torch")


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


def code_of(member: object) -> object:
    """Return the code of a method as it is written; of anything else, that itself."""
    function: Any = getattr(member, "__func__", member)
    return getattr(inspect.unwrap(function), "__code__", member)


def members_to_document(cls: type) -> Iterator[str]:
    """Yield the public methods, properties and fields of a class, inherited ones too unless they have an entry."""
    for name in dir(cls):
        # A class has copies of the methods that it inherits, of the same code.
        defined = [(base, code_of(vars(base)[name])) for base in cls.__mro__ if name in vars(base)]
        owner = next((base for base, code in reversed(defined) if code is defined[0][1]), cls)
        is_elsewhere = any(base.__name__ in relive.__all__ and issubclass(base, owner) for base in cls.__mro__[1:])
        if not (name.startswith(("_", "test_")) or is_elsewhere) and owner.__module__.startswith("relive"):
            yield name


def built(path: pathlib.Path) -> pathlib.Path:
    """Build the documentation, which must give no warning, and return the directory of the reference."""
    for library in LIBRARIES:
        pytest.importorskip(library)
    options = ("-W", "--keep-going", "-q", "-b", "html", "-d", path / "doctrees", REFERENCE.parent, path / "html")
    build = subprocess.run([sys.executable, "-m", "sphinx", *options], capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    return path / "html" / "reference"


def test_the_pages_have_every_public_name_once() -> None:
    names = [name for _, name in documented()]
    assert public_names() - {*names} == set()
    assert len(names) == len({*names})


def test_the_index_lists_every_page() -> None:
    tree = (REFERENCE / "index.md").read_text("utf-8").partition("```{toctree}")[2]
    assert {f"{line}.md" for line in re.findall(r"^(\w+)$", tree, re.MULTILINE)} | {"index.md"} == {
        path.name for path in REFERENCE.glob("*.md")
    }


def test_the_built_pages_have_every_public_method(tmp_path: pathlib.Path) -> None:
    """The one test that builds all pages, without a warning; it takes longer than all others here."""
    site = built(tmp_path)
    text = "".join(page.read_text("utf-8") for page in site.glob("*.html"))
    shown = set(re.findall(r'<dt class="sig[^>]*id="([\w.]+)"', text))
    missing = []
    for kind, name in documented():
        if kind == "class":
            cls = found(name)
            fields = set(re.findall(r"^\s+(\w+)(?: \(.*\))?:", inspect.getdoc(cls) or "", re.MULTILINE))
            missing += sorted(f"{name}.{member}" for member in members_to_document(cls) if member not in fields)
    assert {*missing} - shown == UNDOCUMENTED
    # What a class inherits from one that has an entry is not there twice.
    assert "relive.ColumnReplayBuffer.save" in shown
    assert "relive.RingReplayBuffer.save" not in shown
    # Entries have dashes, and links to their source.
    page = (site / "column_methods.html").read_text("utf-8")
    assert "<strong>capacity</strong> – " in page
    signature = page[page.index('id="relive.ColumnReplayBuffer.load"') :]
    assert "Checkpointable.load" in signature[: signature.index("</dt>")]
