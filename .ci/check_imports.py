"""Checks style rule 1: modules are imported, not names; `typing` and `collections.abc` names alone may be bare."""

import ast
import importlib.util
import pathlib
import sys

BARE = {"typing", "collections.abc", "__future__"}
ROOMS = (".", "testing", "integrations", "integrations/gymnasium")
FACES = [pathlib.Path(f"src/relive/{room}/__init__.py") for room in ROOMS]
"""Packages that users import as one module."""


def is_module(name: str) -> bool:
    """Return whether `name` can be imported as a module."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def main() -> int:
    """Print each import of a name, and return how many there are."""
    faults = 0
    for path in sorted(pathlib.Path("src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module in BARE:
                continue
            for alias in node.names:
                if node.level or not is_module(f"{node.module}.{alias.name}"):
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
