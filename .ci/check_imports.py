"""Checks style rule 1: modules are imported, not names; `typing` and `collections.abc` names alone may be bare."""

import ast
import functools
from importlib import machinery
import pathlib
import sys

BARE = {"typing", "collections.abc", "__future__"}
ROOMS = (".", "testing", "integrations", "integrations/gymnasium")
FACES = [pathlib.Path(f"src/relive/{room}/__init__.py") for room in ROOMS]
"""Packages that users import as one module."""


@functools.cache
def spec_of(name: str) -> machinery.ModuleSpec | None:
    """Return where a module is, or None; no package is imported, which takes seconds for some."""
    package, _, _ = name.rpartition(".")
    if not package:
        return machinery.PathFinder.find_spec(name)
    above = spec_of(package)
    return above and machinery.PathFinder.find_spec(name, above.submodule_search_locations or [])


def main() -> int:
    """Print each import of a name, and return how many there are."""
    faults = 0
    for path in sorted(pathlib.Path("src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module in BARE:
                continue
            for alias in node.names:
                if node.level or not spec_of(f"{node.module}.{alias.name}"):
                    faults += 1
                    print(
                        f"{path}:{node.lineno}: {alias.name} is no module: import {node.module} and name it from there"
                    )
        if path.name == "__init__.py" and path not in FACES and tree.body:
            faults += 1
            print(f"{path}:1: a sub-package has an empty __init__.py")
    return faults


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
